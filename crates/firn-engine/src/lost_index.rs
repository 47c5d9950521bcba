//! An index file that is damaged or missing when the database opens: it is fetched from the slow tier, or, only
//! if that is asked for, its series are forgotten.
//!
//! Nobody but the file knows which label sets it had. Without it they would get second references, and a query
//! would silently lack their samples: so a database does not open without it as if nothing had happened.
//! Forgotten, they are new series when they are written again. Nothing of what is left is mixed with them:
//! group ids are never given again, and no group of before takes a new member, because its next slot may have
//! been given in the file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use firn_env::{Disk, Env};
use firn_index::Index;
use firn_model::{Error, ErrorKind, Result};

use crate::manifest::{Found, Manifest, Room};
use crate::recover::parts;
use crate::{Engine, EngineOptions, RecoveryProgress, tier};

const INDEX_FOLDER: &str = "index/";

/// The index files that a database is opened without.
#[derive(Default)]
pub(crate) struct LostFiles(Vec<String>);

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
        let mut fetched = BTreeSet::new();
        loop {
            progress.bytes_done.store(0, Relaxed);
            let opened = Engine::open_without(&lost, env.clone(), options.clone(), progress);
            let Err(error) = opened else { return opened };
            let ErrorKind::Corrupt { file, .. } = error.kind() else { return Err(error) };
            let is_index = file.starts_with(INDEX_FOLDER) && !options.read_only;
            if !is_index || lost.0.contains(file) {
                return Err(error);
            }
            if fetched.insert(file.clone()) && fetch(&env, file)? {
                tracing::warn!("recovery: {error}: it was fetched from the slow tier");
            } else if options.forget_lost_index {
                lost.0.push(file.clone());
            } else {
                return Err(advised(&error));
            }
        }
    }
}

impl LostFiles {
    /// The index's parts of a manifest without these files, which are put aside as `index/<n>.lost`; one sentence
    /// for each goes to `damage`.
    pub(crate) fn leave_out(
        &self,
        disk: &dyn Disk,
        found: &Found,
        damage: &mut Vec<String>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut index_parts: Vec<Vec<u8>> =
            parts(found, Room::Index).into_iter().map(<[u8]>::to_vec).collect();
        for path in &self.0 {
            let known: Vec<&[u8]> = index_parts.iter().map(Vec::as_slice).collect();
            let (part, series_count) = Index::part_without(&known, path)?;
            index_parts.push(part);
            let aside = format!("{}.lost", path.trim_end_matches(".seg"));
            match disk.rename(path, &aside) {
                Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
                _ => disk.sync_dir("index")?,
            }
            damage.push(format!(
                "{path} is damaged or missing: its {series_count} series are forgotten, as was asked for; what is left \
                 of it is {aside}"
            ));
        }
        Ok(index_parts)
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
            "{}; the slow tier does not have it. Bring it back from a backup of this folder, or start with \
             --forget-lost-index: then its series are forgotten, their samples cannot be asked for any more, and all \
             others are there",
            error.what()
        ),
    )
}
