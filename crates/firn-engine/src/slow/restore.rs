//! Restoring a database from its slow tier.

use std::sync::Arc;

use firn_env::Env;
use firn_model::{Budget, Result, Timestamp};

use crate::Engine;
use crate::edit::{Edit, Room};
use crate::folder::{Writer, new_mark};
use crate::manifest::Manifest;
use crate::parts;
use crate::slow::claim::claim_as;
use crate::slow::description;
use crate::slow::segments::{download_all, missing_segments};
use crate::unnamed::{self, UnnamedFiles};

/// Summary of [`Engine::restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Number of index segments downloaded.
    pub files: u64,
    /// Bytes of index segments downloaded.
    pub bytes: u64,
    /// Wall time at which the restored manifest was written.
    pub written_ms: Timestamp,
}

impl Engine {
    /// Creates a database in the empty folder of `env` from the manifest on its slow tier, and
    /// takes the slow tier over: the previous writer is fenced. Open the database afterwards. A
    /// restore that was interrupted can be repeated. Returns `None`, and does nothing, if the
    /// folder already has a database.
    ///
    /// Data that was not uploaded yet is missing: see `upload_age_ms_max` in
    /// [`crate::EngineOptions::tree`].
    ///
    /// # Errors
    /// `NotFound` if the slow tier has no manifest, `Invalid` if it is of a newer version,
    /// `Corrupt`, also if the folder has files of a database without its manifest, `Busy` if
    /// another process has the folder open, `Conflict` if another process restores at the same
    /// time, `Unavailable`, also if the index does not fit on the disk.
    pub fn restore(env: &Env) -> Result<Option<RestoreReport>> {
        let _lock = env.disk.lock()?;
        let (mut local, contents) = Manifest::open(Arc::clone(&env.disk))?;
        if !contents.edits.is_empty() {
            return Ok(None);
        }
        UnnamedFiles::count(env)?.check_copies_only()?;
        let found = description::read_existing(env, &Budget::unlimited())?;
        let writer = Writer { mark: new_mark(), number: new_mark() };
        // Before the claim: a restore that cannot succeed does not fence the previous writer.
        let missing = missing_segments(env, &found)?;
        // Before the download: from now on no other writer changes the slow tier.
        claim_as(&*env.bucket, Some(&found), writer, &found.state)?;
        unnamed::mark_copies(&*env.disk)?;
        let bytes = download_all(env, &missing)?;
        let written_ms = found.written_ms();
        let state = found
            .state
            .without(Room::Engine, parts::is_of_writer)
            .with(Room::Engine, parts::encode_mark(writer.mark))
            .with(Room::Engine, parts::encode_claims(&[writer.number]));
        local.commit(&Edit::default(), || state)?;
        Ok(Some(RestoreReport { files: missing.len() as u64, bytes, written_ms }))
    }
}
