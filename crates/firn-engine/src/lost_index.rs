//! An index file that is damaged or missing when the database opens: it is fetched from the slow tier, or, only
//! if that is asked for, written anew without what is lost or its series are forgotten.
//!
//! Nobody but the file knows which label sets it had. Without it they would get second references, and a query
//! would silently lack their samples: so a database does not open without it as if nothing had happened.
//! Forgotten, they are new series when they are written again. Nothing of what is left is mixed with them:
//! group ids are never given again, and no group of before takes a new member, because its next slot may have
//! been given in the file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use firn_env::{Disk, Env, OpenMode};
use firn_index::{Index, LostSeries};
use firn_model::{Error, ErrorKind, Result};
use firn_tree::Tree;

use crate::manifest::{Found, Manifest, Room};
use crate::recover::parts;
use crate::tier::Tier;
use crate::{Engine, EngineOptions, RecoveryProgress, tier};

const INDEX_FOLDER: &str = "index/";

/// The index files that a database is opened without, or with what is left of them.
#[derive(Default)]
pub(crate) struct LostFiles {
    forgotten: Vec<String>,
    repaired: Vec<String>,
    /// Put in place of what was there from the slow tier's copy.
    fetched: Vec<String>,
}

/// An index file that was written anew or fetched, and what is lost by that.
pub(crate) type RepairedFile = (String, Option<LostSeries>);

impl Engine {
    /// Opens the database of `env`, or makes one in an empty folder.
    ///
    /// # Errors
    /// `Busy` when another process has it open; `Corrupt` for a manifest that no copy can mend, and for an index
    /// file that is damaged or missing, that the slow tier does not have, and that `forget_lost_index` does not
    /// give up; `Invalid` for a format of a newer version; `Unavailable`.
    pub fn open(
        env: Env,
        options: EngineOptions,
        progress: &RecoveryProgress,
    ) -> Result<Arc<Engine>> {
        let mut lost = LostFiles::default();
        let (mut repaired, mut fetched) = (BTreeSet::new(), BTreeSet::new());
        loop {
            progress.bytes_done.store(0, Relaxed);
            let opened = Engine::open_without(&lost, env.clone(), options.clone(), progress);
            let Err(error) = opened else { return opened };
            let ErrorKind::Corrupt { file, .. } = error.kind() else { return Err(error) };
            let is_index = file.starts_with(INDEX_FOLDER) && !options.read_only;
            if !is_index || lost.forgotten.contains(file) {
                return Err(error);
            }
            if options.repair_index && repaired.insert(file.clone()) {
                lost.repaired.push(file.clone());
                continue;
            }
            // Nothing of it can be read.
            lost.repaired.retain(|one| one != file);
            if fetched.insert(file.clone()) && fetch(&env, file)? {
                tracing::warn!("recovery: {error}: it was fetched from the slow tier");
                lost.fetched.push(file.clone());
            } else if options.forget_lost_index {
                lost.forgotten.push(file.clone());
            } else {
                return Err(advised(&error));
            }
        }
    }
}

impl LostFiles {
    /// The index's parts of a manifest without these files, which are put aside as `index/<n>.lost`; one sentence
    /// for each that is forgotten goes to `damage`.
    ///
    /// # Errors
    /// As [`Tier::check_ours`], before anything is written anew without what the slow tier may have.
    pub(crate) fn leave_out(
        &self,
        env: &Env,
        found: &Found,
        (tier, tree): (&Tier, &Tree),
        damage: &mut Vec<String>,
    ) -> Result<(Vec<Vec<u8>>, Vec<RepairedFile>)> {
        let disk = &*env.disk;
        let mut index_parts: Vec<Vec<u8>> =
            parts(found, Room::Index).into_iter().map(<[u8]>::to_vec).collect();
        let mut repaired: Vec<RepairedFile> =
            self.fetched.iter().map(|path| (path.clone(), None)).collect();
        if !self.repaired.is_empty() {
            tier.check_ours(&*env.bucket, tree)?;
        }
        for path in &self.repaired {
            let aside = aside_of(path);
            if matches!(disk.open(path, OpenMode::Read), Err(e) if *e.kind() == ErrorKind::NotFound)
            {
                // Put aside by a repair that was interrupted before the manifest had its file.
                disk.rename(&aside, path)?;
            }
            let copy = tier::copy_of(&*env.bucket, (tier, tree), path);
            let found = Index::part_repaired(disk, &slices(&index_parts), path, &copy)?;
            index_parts.push(found.part);
            put_aside(disk, path)?;
            repaired.push((path.clone(), found.lost));
        }
        for path in &self.forgotten {
            let (part, series_count) = Index::part_without(&slices(&index_parts), path)?;
            index_parts.push(part);
            let aside = put_aside(disk, path)?;
            damage.push(format!(
                "{path} is damaged or missing: its {series_count} series are forgotten, as was asked for; what is left \
                 of it is {aside}"
            ));
        }
        Ok((index_parts, repaired))
    }
}

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

fn aside_of(path: &str) -> String {
    format!("{}.lost", path.trim_end_matches(".seg"))
}

/// Gives a file that is damaged or missing a name that nobody reads; which one.
fn put_aside(disk: &dyn Disk, path: &str) -> Result<String> {
    let aside = aside_of(path);
    match disk.rename(path, &aside) {
        Err(e) if *e.kind() != ErrorKind::NotFound => Err(e),
        _ => disk.sync_dir("index").map(|()| aside),
    }
}

/// Brings an index file back from the slow tier; `false` if it is not there, or not for certain the same.
fn fetch(env: &Env, path: &str) -> Result<bool> {
    let _lock = env.disk.lock()?;
    let (_, found) = Manifest::open(Arc::clone(&env.disk))?;
    let mark = parts(&found, Room::Engine).into_iter().find_map(tier::mark_in);
    let Some(mark) = mark.transpose()? else { return Ok(false) };
    tier::fetch_lost(env, mark, &parts(&found, Room::Index), path).map_err(|e| {
        e.context(format!("{path} is damaged or missing, and the slow tier was asked for it"))
    })
}

fn advised(error: &Error) -> Error {
    let ErrorKind::Corrupt { file, offset } = error.kind() else {
        return Error::internal(error.what());
    };
    Error::corrupt(
        file.as_str(),
        *offset,
        format!(
            "{}; the slow tier does not have it. `firn check --repair` writes it anew with what can be read of it. Or \
             bring it back from a backup of this folder, or start with --forget-lost-index: then its series are forgotten, their samples cannot be asked for any more, and all \
             others are there",
            error.what()
        ),
    )
}
