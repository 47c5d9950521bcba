//! A read-only replica: the history that another server writes, from the slow tier alone.
//!
//! It has a folder of its own, where index segments lie as they do at the writer's; tables are read where
//! they are. It looks at the slow tier's manifest now and then and swaps to what it says as a whole. What
//! the writer removes it has not named for the grace time, an hour: a replica may lag that far.

use firn_codec::Tombstones;
use firn_env::Env;
use firn_model::{Error, ErrorKind, Result, Timestamp};

use crate::manifest::Room;
use crate::tier::{self, Described, RestoreReport};
use crate::{Engine, Step, recover};

// One request for a few hundred bytes; the writer puts a manifest every few minutes.
const LOOK_MS: i64 = 10_000;

/// What a replica shows.
#[derive(Default)]
pub(crate) struct Followed {
    version: String,
    looked_at_ms: Timestamp,
}

/// What there is to read; the index segments are in the folder then.
///
/// # Errors
/// `Conflict` if the folder has a database, `NotFound` if nothing was ever uploaded, those of the tiers.
pub(crate) fn begin(env: &Env, is_empty: bool) -> Result<Described> {
    if !is_empty {
        return Err(Error::new(
            ErrorKind::Conflict,
            "this folder has a database that is written to; give the replica a folder of its own with \
             --data",
        ));
    }
    let described = tier::read_some(env)?;
    tier::fetch_segments(env, &described, &mut RestoreReport::default())?;
    Ok(described)
}

impl Engine {
    /// Goes on to what the slow tier's manifest says now.
    pub(crate) fn follow(&self) -> Result<Option<Step>> {
        let now = self.env.clock.now_ms();
        {
            let mut followed = self.replica.lock();
            if now.saturating_sub(followed.looked_at_ms) < LOOK_MS {
                return Ok(None);
            }
            followed.looked_at_ms = now;
        }
        if tier::version(&*self.env.bucket)?.as_ref() == Some(&self.replica.lock().version) {
            return Ok(None);
        }
        let next = tier::read_some(&self.env)?;
        tier::fetch_segments(&self.env, &next, &mut RestoreReport::default())?;
        let part = |room| next.state.parts(room).next();
        let edit = part(Room::Tree).map(|part| self.tree.plan_follow(part)).transpose()?;
        let (last, tombstones) = recover::read_engine_parts(&next.state)?;
        // First the labels, then what is stored under them.
        if let Some(part) = part(Room::Index) {
            self.index.follow(part)?;
        }
        self.hold_index_memory();
        {
            let _view = self.view.write();
            if let Some(edit) = &edit {
                self.tree.follow(edit)?;
            }
            self.deletes.follow(Tombstones::new(tombstones.into_iter().collect()));
        }
        self.sequence.advance(last);
        self.note_followed(&next);
        Ok(Some(Step::Follow))
    }

    pub(crate) fn note_followed(&self, described: &Described) {
        self.tier.set_read(described.epoch, self.tree.version().newest_slow_ts());
        self.replica.lock().version.clone_from(&described.version);
    }
}
