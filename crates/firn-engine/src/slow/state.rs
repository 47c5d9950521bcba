//! This process's state of the slow tier.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Weak};

use firn_codec::Tombstones;
use firn_env::Clock;
use firn_model::{Error, ErrorKind, Result, Timestamp};
use firn_tree::{TierScope, Version};
use parking_lot::Mutex;

use crate::rooms::Rooms;
use crate::slow::requests::CountedBucket;
use crate::slow::segments::segment_key;

// A failing tier is retried after this long, doubled up to the maximum.
const RETRY_MS: i64 = 1_000;
const RETRY_MS_MAX: i64 = 60_000;

/// The slow tier as this process writes or follows it.
///
/// Lock order: `claim` before the manifest's lock and those that reclaiming memory takes. `retry`
/// and `followed` are innermost.
pub(crate) struct SlowTier {
    is_fenced: AtomicBool,
    epoch: AtomicU64,
    newest_ts: AtomicI64,
    /// Used under the tree's lane only.
    pub(super) claim: Mutex<Option<Claim>>,
    retry: Mutex<Retry>,
    pub(super) followed: Mutex<FollowedManifest>,
    requests: Arc<CountedBucket>,
}

#[derive(Default)]
struct Retry {
    at_ms: Timestamp,
    wait_ms: i64,
    /// Until [`SlowTier::take_failure`].
    has_failed: bool,
}

/// The manifest that a replica shows.
#[derive(Default)]
pub(super) struct FollowedManifest {
    pub(super) version: String,
    pub(super) looked_at_ms: Timestamp,
}

/// The manifest and the index segments that this process put on the slow tier.
pub(crate) struct Claim {
    pub(super) epoch: u64,
    /// The version of the stored manifest; `None` after a put without an answer.
    pub(super) version: Option<String>,
    pub(super) looked_at_ms: Timestamp,
    /// The state from which the manifest in place was made.
    pub(super) published: Option<PublishedState>,
    /// By file path, the epoch in the object's key.
    pub(super) segments: BTreeMap<String, u64>,
    /// Keys of index segments that the manifest does not name, and since when.
    pub(super) dead_segments: Vec<(String, Timestamp)>,
    /// When a failed listing of the objects that others left is repeated.
    pub(super) lists_again_ms: Option<Timestamp>,
}

/// The state from which a manifest was made.
pub(super) struct PublishedState {
    pub(super) version: Weak<Version>,
    pub(super) tombstones: Weak<Tombstones>,
    /// [`firn_tree::SlowTables::named`].
    pub(super) named: Vec<u8>,
}

impl SlowTier {
    pub(crate) fn new(requests: Arc<CountedBucket>) -> SlowTier {
        SlowTier {
            is_fenced: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            newest_ts: AtomicI64::new(i64::MIN),
            claim: Mutex::new(None),
            retry: Mutex::default(),
            followed: Mutex::default(),
            requests,
        }
    }

    pub(crate) fn requests(&self) -> &CountedBucket {
        &self.requests
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Relaxed)
    }

    /// From now on this process changes nothing on the slow tier.
    pub(super) fn set_fenced(&self) {
        self.is_fenced.store(true, Relaxed);
    }

    /// The newest timestamp that the slow tier's manifest names.
    pub(crate) fn newest_ts(&self) -> Option<Timestamp> {
        Some(self.newest_ts.load(Relaxed)).filter(|&ts| ts > i64::MIN)
    }

    /// The epoch of the claim or of the followed manifest; 0 before.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Relaxed);
    }

    /// Records the manifest in place.
    pub(crate) fn set_current(&self, epoch: u64, newest_ts: Option<Timestamp>) {
        self.set_epoch(epoch);
        self.newest_ts.store(newest_ts.unwrap_or(i64::MIN), Relaxed);
    }

    /// Makes the next step claim the slow tier again.
    pub(crate) fn drop_claim(&self) {
        *self.claim.lock() = None;
    }

    /// The tiers that work may be planned for now.
    pub(crate) fn scope(&self, now: Timestamp) -> TierScope {
        match self.is_fenced() || now < self.retry.lock().at_ms {
            true => TierScope::Fast,
            false => TierScope::Both,
        }
    }

    /// Runs work that needs the slow tier. If it fails, the slow tier is not used for a while; work
    /// on the fast tier continues.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) fn run<T>(&self, clock: &dyn Clock, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        let mut retry = self.retry.lock();
        match &done {
            Ok(_) => *retry = Retry::default(),
            Err(_) => {
                let wait_ms = (retry.wait_ms * 2).clamp(RETRY_MS, RETRY_MS_MAX);
                // After the work: a request to a store that hangs takes 30 s.
                let at_ms = clock.now_ms().saturating_add(wait_ms);
                *retry = Retry { at_ms, wait_ms, has_failed: true };
            }
        }
        done
    }

    /// The pause of the slow tier, if [`SlowTier::run`] has failed since the last call.
    pub(crate) fn take_failure(&self) -> Option<i64> {
        let mut retry = self.retry.lock();
        std::mem::take(&mut retry.has_failed).then_some(retry.wait_ms)
    }

    /// # Errors
    /// `Unavailable` for a replica, and for a writer whose slow tier another process has taken
    /// over: rows written here would be lost with this machine.
    pub(crate) fn check_writable(&self, rooms: &Rooms) -> Result<()> {
        if rooms.options.read_only {
            return Err(Error::unavailable(
                "write refused: this is a read-only replica; write to the server that it follows",
            ));
        }
        if self.is_fenced() && !mutant!(rooms, FenceSkipped) {
            return Err(Error::unavailable(
                "write refused: another server has taken over this server's slow tier; write to \
                 that server",
            ));
        }
        Ok(())
    }

    /// Deletes index segments that no manifest has named for the grace time. The tree deletes
    /// tables. Returns the number of objects.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(crate) fn collect_dead_segments(&self, rooms: &Rooms, now: Timestamp) -> Result<usize> {
        let mut claim = self.claim.lock();
        let Some(claim) = claim.as_mut().filter(|claim| claim.published.is_some()) else {
            return Ok(0);
        };
        let grace_ms = rooms.options.tree.bucket_grace_ms;
        let is_due = |since: Timestamp| now.saturating_sub(since) >= grace_ms;
        let due = claim.dead_segments.iter().filter(|dead| is_due(dead.1));
        let keys: Vec<String> = due.map(|dead| dead.0.clone()).collect();
        if !keys.is_empty() {
            rooms.env.bucket.delete(&keys)?;
            claim.dead_segments.retain(|dead| !keys.contains(&dead.0));
        }
        Ok(keys.len())
    }
}

impl Claim {
    /// A claim of `epoch` with the manifest of `version` and its segments.
    pub(super) fn new(epoch: u64, version: String, segments: BTreeMap<String, u64>) -> Claim {
        Claim {
            epoch,
            version: Some(version),
            looked_at_ms: i64::MIN,
            published: None,
            segments,
            dead_segments: Vec::new(),
            lists_again_ms: None,
        }
    }

    /// The manifest names `files` and no others since `now`.
    pub(super) fn retire_segments(&mut self, files: &[(String, u64)], now: Timestamp) {
        let is_dead = |path: &String| files.iter().all(|file| file.0 != *path);
        let dead = self.segments.iter().filter(|(path, _)| is_dead(path));
        let dead: Vec<(String, u64)> = dead.map(|(path, epoch)| (path.clone(), *epoch)).collect();
        for (path, epoch) in dead {
            self.dead_segments.push((segment_key(&path, epoch), now));
            self.segments.remove(&path);
        }
    }
}

/// The error of a fenced process, which found the manifest of `epoch`.
pub(super) fn fenced_error(epoch: u64) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "this server is fenced and refuses writes: another server wrote the slow tier's \
             manifest (epoch {epoch}), or this folder was restored from an older backup. Stop one \
             of the two servers, or start with --restore in an empty folder"
        ),
    )
}
