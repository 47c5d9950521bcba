//! Deletes: what they hide, and getting rid of them.
//!
//! A delete is a transaction with one tombstone (`commit`): it has one [`CommitSeq`] and hides what has a smaller
//! one. Recovery knows of every delete before it meets rows that are younger. Readers get it in all shards at
//! once: the list of tombstones is swapped as a whole.
//!
//! While its number is drawn every shard that it touches is held and its run ended, so that whatever
//! is made of rows later is older or younger than the delete as a whole, or has had it applied.
//!
//! A tombstone lives in the log until a flush puts it into the manifest, and there until nothing is
//! left that it could hide something in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use firn_codec::{HiddenMembers, HiddenSlots, Tombstone, Tombstones};
use firn_index::Matches;
use firn_model::{
    CommitSeq, Error, ErrorKind, Matcher, Pool, Reservation, Result, ShardBits, ShardId, TimeRange,
    decode_varint, encode_varint,
};
use firn_tree::Deletes;
use parking_lot::{Mutex, RwLock};

use crate::manifest::{Edit, Room};
use crate::planted::Planted;
use crate::{Engine, Lane, Snapshot};

pub(crate) const TAG_TOMBSTONES: u8 = 3;
pub(crate) const TAG_FORGOTTEN: u8 = 4;
// Each costs every reader a look and breaks the runs of the shards that it touches.
const TOMBSTONE_COUNT_MAX: usize = 10_000;
// So many broken runs, and a flush unites them.
pub(crate) const UNFLUSHED_COUNT_MAX: usize = 64;
// Several deletes in a row shall cost one rewriting of tables.
const CLEAN_AGE_MS: i64 = 60 * 60_000;
const CLEAN_REPORT_STEPS: u64 = 16;
const CLEAN_WAITS_MAX: u32 = 8;
// Only another transaction of the same milliseconds makes a second try necessary.
const TRIES_MAX: u32 = 16;

/// What [`Engine::delete`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteReport {
    /// Series that had samples in the range, as exact as [`Snapshot::has_data`].
    pub series: u64,
    /// The commit; `None` if there was nothing to delete.
    pub seq: Option<CommitSeq>,
}

/// The tombstones of a database and what is known about them.
pub(crate) struct DeleteState {
    /// Swapped under the engine's `view` lock.
    tombstones: RwLock<Arc<Tombstones>>,
    /// What the tombstones hold.
    memory: Mutex<Reservation>,
    /// Those of them that the manifest has, and with them the rows of their transactions. Swapped under the manifest's
    /// lock.
    flushed: RwLock<Arc<Tombstones>>,
    /// Deletes up to this one are in the manifest, or were.
    flushed_through: AtomicU64,
    /// Deletes up to this one shall leave the tables soon.
    clean_through: AtomicU64,
}

impl DeleteState {
    /// The manifest has those up to `flushed`.
    pub(crate) fn new(
        tombstones: Tombstones,
        flushed: CommitSeq,
        mut memory: Reservation,
    ) -> DeleteState {
        memory.take(tombstones.heap_bytes());
        DeleteState {
            flushed: RwLock::new(Arc::new(tombstones.up_to(flushed))),
            tombstones: RwLock::new(Arc::new(tombstones)),
            memory: Mutex::new(memory),
            flushed_through: AtomicU64::new(flushed.0),
            clean_through: AtomicU64::new(0),
        }
    }

    /// The tombstones as they are.
    pub(crate) fn tombstones(&self) -> Arc<Tombstones> {
        Arc::clone(&self.tombstones.read())
    }

    /// From now on these count; what they hold is `memory` more. Called under the engine's `view`. Returns those that
    /// counted before.
    pub(crate) fn install(&self, tombstones: Tombstones, memory: Reservation) -> Arc<Tombstones> {
        self.memory.lock().merge(memory);
        std::mem::replace(&mut *self.tombstones.write(), Arc::new(tombstones))
    }

    /// Those that the manifest does not have yet.
    pub(crate) fn unflushed(&self) -> Tombstones {
        self.unflushed_of(&self.tombstones.read())
    }

    /// Those of `tombstones` that the manifest does not have yet.
    pub(crate) fn unflushed_of(&self, tombstones: &Tombstones) -> Tombstones {
        tombstones.after(CommitSeq(self.flushed_through.load(Ordering::Relaxed)))
    }

    /// Those that the manifest has. Of the others neither they nor the rows of their transactions need be durable, so
    /// nothing that is may depend on them.
    pub(crate) fn flushed(&self) -> Arc<Tombstones> {
        Arc::clone(&self.flushed.read())
    }

    /// A replica's, of the slow tier's manifest. The caller holds the engine's `view`.
    pub(crate) fn follow(&self, tombstones: Tombstones) {
        let tombstones = Arc::new(tombstones);
        *self.flushed.write() = Arc::clone(&tombstones);
        *self.tombstones.write() = tombstones;
    }

    /// The manifest has those of now up to `through`. Before a table is seen that is younger than one of them.
    pub(crate) fn note_flushed(&self, through: CommitSeq) {
        let before = self.flushed_through.fetch_max(through.0, Ordering::Relaxed);
        if before < through.0 {
            self.list_flushed();
        }
    }

    /// Under the manifest's lock.
    fn list_flushed(&self) {
        let (all, through) = (self.tombstones(), self.flushed_through.load(Ordering::Relaxed));
        let has_all = all.through().0 <= through;
        *self.flushed.write() = if has_all { all } else { Arc::new(all.up_to(CommitSeq(through))) };
    }
}

impl Engine {
    /// Hides all samples in `range` of the series that one of `selectors` matches and that were
    /// committed before. When this returns the delete is durable (by `log.sync`) and visible; after a
    /// crash it is there as a whole or not at all. Writes that are on their way may come before or
    /// after it.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `TooLarge` for more series than a log segment has room for, `Busy`
    /// without memory or with too many deletes that were not applied yet, `Unavailable` when the log
    /// device is full or fails, `Closed`. Then nothing is hidden, but after a failure of the device
    /// and a crash it may be.
    pub fn delete(&self, selectors: &[Vec<Matcher>], range: TimeRange) -> Result<DeleteReport> {
        self.check_open()?;
        self.check_writable()?;
        if range.is_empty() {
            return Err(Error::invalid("a delete's end lies before its start"));
        }
        for _ in 1..TRIES_MAX {
            match self.try_delete(selectors, range) {
                Err(e) if *e.kind() == ErrorKind::Conflict => {}
                deleted => return deleted,
            }
        }
        self.try_delete(selectors, range)
    }

    fn try_delete(&self, selectors: &[Vec<Matcher>], range: TimeRange) -> Result<DeleteReport> {
        let mut transaction = self.begin()?;
        for matchers in selectors {
            transaction.delete_range(matchers, range)?;
        }
        let report = transaction.commit()?;
        Ok(DeleteReport { series: report.deleted_series, seq: report.seq })
    }

    /// What matches and has data. A series that is written for the first time meanwhile counts as
    /// written afterwards.
    pub(crate) fn hidden_members(
        &self,
        snapshot: &Snapshot,
        matches: &Matches,
        range: TimeRange,
    ) -> Vec<HiddenMembers> {
        // What a failed commit left in the log shows in no snapshot and may come back after a crash.
        let is_settled = self.log.stats().failures == 0;
        // With the slow tier down nobody knows: then all that matches is taken.
        let directories = snapshot.load_directories(&matches.groups, range, &self.budget);
        let is_known = is_settled && !matches.groups.is_empty() && directories.is_ok();
        let found = matches.groups.iter();
        let found = found.filter(|found| !is_known || snapshot.has_data(found.group, range));
        let members = found.map(|found| HiddenMembers {
            group: found.group,
            slots: HiddenSlots::new(found.members.iter().map(|member| member.slot).collect()),
        });
        members.collect()
    }

    /// # Errors
    /// `Busy` if too many deletes wait to be applied.
    pub(crate) fn check_tombstone_count(&self, more: usize) -> Result<()> {
        if more == 0 || self.deletes.tombstones().len() + more <= TOMBSTONE_COUNT_MAX {
            return Ok(());
        }
        self.ask_for_flush();
        Err(Error::busy(
            60_000,
            format!(
                "{TOMBSTONE_COUNT_MAX} deletes wait to be applied to tables; clean tombstones, then \
                 try again"
            ),
        ))
    }

    /// Rewrites every table, on both tiers, that has something that deletes up to now hide, and
    /// forgets these deletes, so that they cost no space and no time any more. Objects of the slow tier
    /// go after their grace time. May take long; what is done stays done if it fails.
    ///
    /// # Errors
    /// Those of [`Engine::flush`] and of the tiers; `Closed`. A table that is damaged keeps its
    /// deletes, and what they hide stays hidden.
    pub fn clean_tombstones(&self) -> Result<()> {
        self.check_open()?;
        self.check_writable()?;
        let through = self.deletes.tombstones().through();
        if through == CommitSeq(0) {
            return Ok(());
        }
        self.flush()?;
        self.deletes.clean_through.fetch_max(through.0, Ordering::Relaxed);
        let (mut steps, mut waits) = (0u64, 0);
        loop {
            let left = self.deletes.tombstones().iter().take_while(|one| one.0 <= through).count();
            if left == 0 {
                tracing::info!("clean: done in {steps} steps");
                return Ok(());
            }
            if self.step(Lane::Tree)?.is_some() {
                steps += 1;
                if steps.is_multiple_of(CLEAN_REPORT_STEPS) {
                    tracing::info!("clean: {left} deletes to apply, {steps} steps done");
                }
            } else if waits < CLEAN_WAITS_MAX {
                // A write that is older than a delete may just now be on its way to be visible.
                waits += 1;
                self.env.clock.sleep(Duration::from_millis(1 << waits));
                self.flush()?;
            } else {
                tracing::warn!("clean: {left} deletes stay: a table that they touch is damaged");
                return Ok(());
            }
        }
    }

    /// What the tree must know of deletes: those that were asked for or have waited long enough leave
    /// the tables. Those that only the log has are younger than all tables, and with a relaxed `log.sync` a power loss
    /// may take them: what they hide stays until then.
    pub(crate) fn tree_deletes(&self) -> Deletes {
        let tombstones = match self.planted(Planted::UnflushedDeletesApplied) {
            true => self.deletes.tombstones(),
            false => self.deletes.flushed(),
        };
        if self.planted(Planted::TombstonesForgottenAtMerge) {
            return Deletes::default();
        }
        let old = self.env.clock.now_ms().saturating_sub(CLEAN_AGE_MS);
        let is_old = |one: &(CommitSeq, &Arc<Tombstone>)| one.1.made_ms <= old;
        let oldest = tombstones.iter().take_while(is_old).last().map_or(0, |one| one.0.0);
        let asked = self.deletes.clean_through.load(Ordering::Relaxed);
        Deletes { tombstones, clean_through: CommitSeq(asked.max(oldest)) }
    }

    /// Forgets deletes that can hide nothing any more: no visible row and no table is older, or tables
    /// have had them applied. Returns how many.
    ///
    /// Rows in the log that are older and could come back are in the head, or in tables that a flush
    /// began before the delete: then the delete stands behind that flush's floor and comes back too.
    pub(crate) fn forget_applied(&self, deletes: &Deletes) -> Result<usize> {
        let is_due = |seq: CommitSeq| seq <= deletes.clean_through;
        if !deletes.tombstones.iter().next().is_some_and(|one| is_due(one.0)) {
            return Ok(0);
        }
        // In the order in which rows move: on their way, head, tables.
        self.head.recycle_before(deletes.clean_through);
        let decided = self.sequence.visible();
        let oldest = self.head.oldest_commit().unwrap_or(CommitSeq(u64::MAX));
        let version = self.tree.version();
        let is_applied = |seq: CommitSeq, tombstone: &Tombstone| {
            self.planted(Planted::TombstonesForgottenEarly)
                || (seq <= decided && seq < oldest && !version.needs(seq, tombstone))
        };
        let _nothing_on_its_way = self.transactions.pause();
        let tombstones = self.deletes.tombstones();
        let applied: Vec<CommitSeq> = tombstones
            .iter()
            .take_while(|one| is_due(one.0))
            .filter(|one| is_applied(one.0, one.1))
            .map(|one| one.0)
            .collect();
        if applied.is_empty() {
            return Ok(0);
        }
        let left = tombstones.without(&applied);
        let freed = tombstones.heap_bytes() - left.heap_bytes();
        let edit = Edit::default().with(Room::Engine, encode_forgotten(&applied));
        self.commit_edit(edit, || {
            let nothing = self.budget.empty(Pool::Index);
            {
                let _view = self.view.write();
                self.deletes.install(left, nothing);
            }
            self.deletes.list_flushed();
            Ok(())
        })?;
        self.deletes.memory.lock().shrink(freed);
        Ok(applied.len())
    }

    /// Those that a whole state may name: what only the log has may be lost, or is not where the state goes, and with it the
    /// rows of a transaction whose deletes it would have. As the tables are while the manifest's lock is held.
    pub(crate) fn tombstones_of_state(&self) -> Arc<Tombstones> {
        match self.planted(Planted::UnflushedDeletesNamed) {
            true => self.deletes.tombstones(),
            false => self.deletes.flushed(),
        }
    }

    /// The engine's part of the manifest that has `tombstones`; empty ones need none.
    pub(crate) fn tombstones_part(&self, tombstones: &Tombstones) -> Option<Vec<u8>> {
        let lost = self.planted(Planted::TombstonesNotInManifest);
        (!tombstones.is_empty() && !lost).then(|| encode_tombstones(tombstones))
    }
}

/// The shards that a tombstone touches, rising.
pub(crate) fn touched_shards(
    bits: ShardBits,
    tombstone: &Tombstone,
) -> impl Iterator<Item = ShardId> + use<> {
    let mut shards: Vec<ShardId> =
        tombstone.members().iter().map(|members| bits.shard(members.group)).collect();
    shards.sort_unstable();
    shards.dedup();
    shards.into_iter()
}

/// Deletes of which the manifest knows since a moment: `3, (varint seq, varint bytes, tombstone)*`.
fn encode_tombstones(tombstones: &Tombstones) -> Vec<u8> {
    let mut out = vec![TAG_TOMBSTONES];
    let mut bytes = Vec::new();
    for (seq, tombstone) in tombstones.iter() {
        bytes.clear();
        tombstone.encode(&mut bytes);
        encode_varint(seq.0, &mut out);
        encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(&bytes);
    }
    out
}

/// Deletes that it need not know any more: `4, varint seq*`.
fn encode_forgotten(seqs: &[CommitSeq]) -> Vec<u8> {
    let mut out = vec![TAG_FORGOTTEN];
    seqs.iter().for_each(|seq| encode_varint(seq.0, &mut out));
    out
}

/// Adds up what parts of the manifest say about deletes: `rest` is what stands behind `tag`. `None` for
/// bytes that are none.
pub(crate) fn read_part(
    tag: u8,
    mut rest: &[u8],
    tombstones: &mut BTreeMap<CommitSeq, Arc<Tombstone>>,
) -> Option<Result<()>> {
    while !rest.is_empty() {
        let seq = CommitSeq(decode_varint(&mut rest)?);
        if tag == TAG_FORGOTTEN {
            tombstones.remove(&seq);
            continue;
        }
        let len = usize::try_from(decode_varint(&mut rest)?).ok()?;
        let (bytes, after) = rest.split_at_checked(len)?;
        rest = after;
        match Tombstone::decode(bytes) {
            Ok(tombstone) => tombstones.insert(seq, Arc::new(tombstone)),
            Err(e) => return Some(Err(e)),
        };
    }
    Some(Ok(()))
}
