//! Read-only replicas: the history that another server writes, read from the slow tier alone.
//!
//! A replica has a folder of its own for index segments, at the paths that they have at the writer;
//! tables are read in place. It polls the slow tier's manifest and swaps to each new state as a
//! whole. The writer deletes an object only after the grace time, an hour: a replica may lag by
//! that much.

use std::sync::Arc;

use firn_env::Env;
use firn_model::{Budget, Error, ErrorKind, Pool, Result};

use crate::edit::Room;
use crate::ledger::Ledger;
use crate::rooms::Rooms;
use crate::slow::description::{self, Description};
use crate::slow::segments::{download_all, missing_segments};
use crate::slow::state::SlowTier;
use crate::unnamed::{self, UnnamedFiles};
use crate::upkeep::IndexUpkeep;

// One request for a few hundred bytes; the writer puts a manifest every few minutes.
const LOOK_MS: i64 = 10_000;

/// Reads the manifest that a new replica shows and downloads its index segments.
///
/// # Errors
/// `Conflict` if the folder has a database, `Corrupt` if it has files of one, `NotFound` if nothing
/// was ever uploaded, those of the tiers.
pub(crate) fn begin(env: &Env, is_empty: bool, budget: &Budget) -> Result<Description> {
    if !is_empty {
        return Err(Error::new(
            ErrorKind::Conflict,
            "this folder has a database that is written to; set --data to a separate folder for \
             the replica",
        ));
    }
    UnnamedFiles::count(env)?.check_replica()?;
    let described = description::read_existing(env, budget)?;
    let missing = missing_segments(env, &described)?;
    unnamed::mark_copies(&*env.disk)?;
    download_all(env, &missing)?;
    Ok(described)
}

impl SlowTier {
    /// Swaps to the slow tier's current manifest. Returns whether it has changed.
    ///
    /// # Errors
    /// Those of the tiers.
    pub(crate) fn follow(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        upkeep: &IndexUpkeep,
    ) -> Result<bool> {
        let now = rooms.env.clock.now_ms();
        {
            let mut followed = self.followed.lock();
            if now.saturating_sub(followed.looked_at_ms) < LOOK_MS {
                return Ok(false);
            }
            followed.looked_at_ms = now;
        }
        let version = description::version(&*rooms.env.bucket)?;
        if version.as_ref() == Some(&self.followed.lock().version) {
            return Ok(false);
        }
        let mut next = description::read_existing(&rooms.env, &rooms.budget)?;
        download_all(&rooms.env, &missing_segments(&rooms.env, &next)?)?;
        let part = |room| next.state.parts(room).next();
        let edit = part(Room::Tree).map(|part| rooms.tree.plan_follow(part)).transpose()?;
        // The labels first, then the samples of their series.
        if let Some(part) = part(Room::Index) {
            rooms.index.follow(part)?;
        }
        upkeep.hold_memory(rooms);
        let tombstones = next.parts.tombstones.move_to(rooms.budget.empty(Pool::Index));
        let set = Arc::new(tombstones.to_set());
        {
            let _view = rooms.view.write();
            if let Some(edit) = &edit {
                rooms.tree.follow(edit)?;
            }
            ledger.tombstones.follow(set);
        }
        ledger.tombstones.replace_memory(tombstones);
        ledger.sequence.advance(next.parts.last);
        self.note_followed(rooms, &next);
        Ok(true)
    }

    /// Records that a replica shows `described`.
    pub(crate) fn note_followed(&self, rooms: &Rooms, described: &Description) {
        self.set_current(described.epoch, rooms.tree.version().newest_slow_ts());
        self.followed.lock().version.clone_from(&described.version);
    }
}
