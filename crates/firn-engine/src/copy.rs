//! A consistent copy of the whole database that opens like the original.
//!
//! It contains everything that the manifest names at one moment: index segments, tables of both
//! tiers, deletes, and a manifest of its own. It also contains the file of metadata. It has no log:
//! a flush moves its rows to tables first.

use std::sync::Arc;

use firn_env::{Env, LOCK_FILE, copy_file, copy_object};
use firn_model::{Error, ErrorKind, Pool, Result, excerpt};

use crate::edit::{Edit, Room};
use crate::folder::new_mark;
use crate::manifest::Manifest;
use crate::parts::LogCut;
use crate::{Engine, metadata, parts};

/// Summary of [`Engine::copy_to`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Tables and index segments.
    pub files: u64,
    /// Objects of the slow tier.
    pub objects: u64,
    /// Bytes of both; hard links count too.
    pub bytes: u64,
}

impl Engine {
    /// Copies the database to the empty location `target`, with everything acknowledged before the
    /// call or, with `skip_head`, without the rows that are only in memory and log. Files and
    /// objects are hard-linked where possible, else copied, one at a time. Writes and queries
    /// continue; maintenance waits while index segments are copied. The manifest is written last:
    /// an incomplete copy is no database.
    ///
    /// Blocks of the index that nothing has read since the open are verified first. Tables are
    /// copied as they are: each block is verified when the copy reads it.
    ///
    /// # Errors
    /// `Conflict`, before anything is written, if a tier of `target` is not empty; `Corrupt` with
    /// the file if the index is damaged, those of [`Engine::flush`], `Unavailable` if a tier on
    /// either side fails.
    pub fn copy_to(&self, target: &Env, skip_head: bool) -> Result<CopyReport> {
        self.rooms.wakeup.check_open()?;
        check_empty(target)?;
        let _lock = target.disk.lock()?;
        let (mut manifest, found) = Manifest::open(Arc::clone(&target.disk))?;
        if !found.edits.is_empty() {
            return Err(not_empty("a database"));
        }
        if !skip_head {
            self.flush()?;
        }
        // Without a lock, because it may read the whole index. The check below then reads the
        // segments that were written meanwhile.
        self.check_copied_index()?;
        let mut report = CopyReport::default();
        let (state, version) = {
            // The next merge may replace index segments; tables stay while the version is held.
            let _no_merge = self.lanes.tree.lock();
            let _no_flush = self.flusher.hold();
            let frozen = {
                let _no_edit = self.ledger.hold_edits();
                // The copy has no log yet.
                let cut = LogCut { is_started: false, ..self.ledger.cut() };
                let state = self.ledger.whole_state_of(&self.rooms, new_mark(), &cut);
                (state.with(Room::Engine, parts::encode_claims(&[])), self.rooms.tree.version())
            };
            self.check_copied_index()?;
            for (path, bytes) in self.rooms.index.segment_files() {
                self.copy_one(target, &path, bytes, &mut report)?;
            }
            frozen
        };
        for table in version.tables() {
            if table.level.is_slow() {
                let _memory = self.pressure.reserve(&self.rooms, Pool::Jobs, table.bytes)?;
                copy_object(&*self.rooms.env.bucket, &*target.bucket, &table.path(), table.bytes)?;
                report.objects += 1;
                report.bytes += table.bytes;
            } else {
                self.copy_one(target, &table.path(), table.bytes, &mut report)?;
            }
        }
        metadata::copy(&self.rooms.env, target)?;
        target.disk.sync_dir("")?;
        manifest.commit(&Edit::default(), || state)?;
        Ok(report)
    }

    /// A copy would make the damage of the index durable in a backup.
    fn check_copied_index(&self) -> Result<()> {
        match self.rooms.index.check().into_iter().next() {
            Some(error) => Err(error.context("cannot copy a damaged index")),
            None => Ok(()),
        }
    }

    fn copy_one(
        &self,
        target: &Env,
        path: &str,
        bytes: u64,
        report: &mut CopyReport,
    ) -> Result<()> {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        target.disk.create_dir(folder)?;
        copy_file(&*self.rooms.env.disk, &*target.disk, path)?;
        target.disk.sync_dir(folder)?;
        report.files += 1;
        report.bytes += bytes;
        Ok(())
    }
}

/// Refuses a target with files or objects: the copy could name them, or be deleted with them.
fn check_empty(target: &Env) -> Result<()> {
    if let Some(name) = target.disk.list("")?.iter().find(|name| *name != LOCK_FILE) {
        return Err(not_empty(&excerpt(name)));
    }
    match target.bucket.first("")? {
        Some(object) => Err(not_empty(&format!("{} on its slow tier", excerpt(&object.key)))),
        None => Ok(()),
    }
}

fn not_empty(what: &str) -> Error {
    let what = format!("cannot copy: the target contains {what}; copy to an empty folder");
    Error::new(ErrorKind::Conflict, what)
}
