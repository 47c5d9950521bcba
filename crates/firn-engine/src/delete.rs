//! Deletes: hiding samples, applying deletes to tables, dropping tombstones.
//!
//! A delete is a transaction with one tombstone (`commit`). It has one [`CommitSeq`] and hides
//! samples with smaller ones. Recovery finds every delete before it replays younger rows. Readers
//! see it in all shards at once, because the list of tombstones is replaced as a whole.
//!
//! While the number is drawn, every shard that the delete touches is locked and its run of rows
//! ended. So every later chunk and table is older or younger than the delete as a whole, or has it
//! applied.
//!
//! A tombstone is in the log until a flush moves it to the manifest. It stays there until no sample
//! is left that it could hide.

use std::time::Duration;

use firn_codec::{HiddenMembers, HiddenSlots, Tombstone};
use firn_index::Matches;
use firn_model::{
    CommitSeq, Error, ErrorKind, Matcher, Pool, QueryContext, Reservation, Result, Slot, TimeRange,
};
use firn_tree::Deletes;

use crate::edit::{Edit, Room};
use crate::{Engine, Lane, Snapshot, parts};

// Steps of a cleaning between two log messages.
const CLEAN_REPORT_STEPS: u64 = 16;
// Waits of a cleaning for older writes, each twice as long as the previous one: 0.5 s in total.
const CLEAN_WAITS_MAX: u32 = 8;
// Only another transaction in the same milliseconds makes a retry necessary.
const TRIES_MAX: u32 = 16;

/// Summary of [`Engine::delete`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteReport {
    /// Series with samples in the range, as exact as [`Snapshot::has_data`].
    pub series: u64,
    /// The commit; `None` if there was nothing to delete.
    pub seq: Option<CommitSeq>,
}

impl Engine {
    /// Hides all samples in `range` of the series that one of `selectors` matches and that were
    /// committed before. On return the delete is durable (by `log.sync`) and visible. After a crash
    /// it exists as a whole or not at all. Concurrent writes come before or after it.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `TooLarge` for more series than fit into a log segment, `Busy`
    /// without memory or with too many unapplied deletes, `Unavailable` if the log device is full
    /// or fails, `Closed`. Then nothing is hidden, except that after a failure of the device and a
    /// crash it may be.
    pub fn delete(&self, selectors: &[Vec<Matcher>], range: TimeRange) -> Result<DeleteReport> {
        let budget = self.rooms.budget.clone();
        let context = QueryContext { budget, ..QueryContext::unbounded() };
        self.delete_within(selectors, range, &context)
    }

    /// As [`Engine::delete`], for a client: `Canceled` or `Timeout` after `context` was cancelled,
    /// and within its budget, a part of this engine's, until the commit writes to the log.
    ///
    /// # Errors
    /// As [`Engine::delete`].
    pub fn delete_within(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<DeleteReport> {
        self.rooms.wakeup.check_open()?;
        self.slow.check_writable(&self.rooms)?;
        if range.is_empty() {
            return Err(Error::invalid("delete refused: its end is before its start; swap them"));
        }
        for _ in 1..TRIES_MAX {
            match self.try_delete(selectors, range, context) {
                Err(e) if *e.kind() == ErrorKind::Conflict => {}
                deleted => return deleted,
            }
        }
        self.try_delete(selectors, range, context)
    }

    fn try_delete(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<DeleteReport> {
        let mut transaction = self.begin_within(context.clone())?;
        for matchers in selectors {
            transaction.delete_range(matchers, range)?;
        }
        let report = transaction.commit()?;
        Ok(DeleteReport { series: report.deleted_series, seq: report.seq })
    }

    /// The matching members in groups with data, and their memory. A series that is written for the
    /// first time meanwhile counts as written afterwards.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory, `Canceled`, `Timeout`.
    pub(crate) fn hidden_members(
        &self,
        snapshot: &Snapshot,
        matches: &Matches,
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<(Vec<HiddenMembers>, Reservation)> {
        // Rows of a failed commit are in no snapshot, and may come back after a crash.
        let is_settled = self.rooms.log.stats().failures == 0;
        // With the slow tier down, all matching members are hidden.
        let directories = snapshot.load_directories(&matches.groups, range, &self.rooms.budget);
        let is_known = is_settled && !matches.groups.is_empty() && directories.is_ok();
        let mut bytes = (matches.groups.len() * size_of::<HiddenMembers>()) as u64;
        let mut held = context.budget.reserve(Pool::Query, bytes)?;
        let mut members = Vec::with_capacity(matches.groups.len());
        for found in &matches.groups {
            context.cancel.check()?;
            if !is_known || snapshot.has_data(found.group, range) {
                // Slots are copied once.
                bytes += (2 * found.members.len() * size_of::<Slot>()) as u64;
                held.cover(bytes)?;
                let slots = found.members.iter().map(|member| member.slot).collect();
                members.push(HiddenMembers { group: found.group, slots: HiddenSlots::new(slots) });
            }
        }
        members.shrink_to_fit();
        Ok((members, held))
    }

    /// Rewrites every table on both tiers with samples that current deletes hide, and drops these
    /// deletes, so that they cost no more space and time. Objects of the slow tier are deleted
    /// after their grace time. May take long. Completed steps remain if it fails. Series without
    /// samples then leave the index with the next steps of the tree's lane.
    ///
    /// # Errors
    /// Those of [`Engine::flush`] and of the tiers; `Closed`. A damaged table keeps its deletes,
    /// and their samples stay hidden.
    pub fn clean_tombstones(&self) -> Result<()> {
        self.rooms.wakeup.check_open()?;
        self.slow.check_writable(&self.rooms)?;
        let through = self.ledger.tombstones.all().through();
        if through == CommitSeq(0) {
            return self.free_series();
        }
        self.flush()?;
        self.ledger.tombstones.clean(through);
        let (mut steps, mut waits) = (0u64, 0);
        loop {
            let left =
                self.ledger.tombstones.all().iter().take_while(|one| one.0 <= through).count();
            if left == 0 {
                self.ledger.tombstones.release_unused();
                tracing::info!("clean: done in {steps} steps");
                return self.free_series();
            }
            if self.step(Lane::Tree)?.is_some() {
                steps += 1;
                if steps.is_multiple_of(CLEAN_REPORT_STEPS) {
                    tracing::info!("clean: {left} deletes to apply, {steps} steps done");
                }
            } else if waits < CLEAN_WAITS_MAX {
                // A write that is older than a delete may be about to become visible.
                waits += 1;
                self.rooms.env.clock.sleep(Duration::from_millis(1 << waits));
                self.flush()?;
            } else {
                tracing::warn!("clean: {left} deletes stay: a table that they touch is damaged");
                return Ok(());
            }
        }
    }

    /// Makes the tree's lane remove series without samples soon, so that they free their places in
    /// the limits on series.
    fn free_series(&self) -> Result<()> {
        if self.upkeep.is_data_gone() {
            self.flush_and_settle()?;
            self.upkeep.hasten_removal(&*self.rooms.env.clock);
        }
        Ok(())
    }

    /// Drops deletes that hide nothing any more: no visible row and no table is older, or tables
    /// have them applied. Returns their number.
    ///
    /// Older rows in the log are also in the head, or in tables of a flush that began before the
    /// delete. In the latter case the delete is above that flush's floor and is replayed with them.
    pub(crate) fn forget_applied(&self, deletes: &Deletes) -> Result<usize> {
        let is_due = |seq: CommitSeq| seq <= deletes.clean_through;
        if !deletes.tombstones.iter().next().is_some_and(|one| is_due(one.0)) {
            return Ok(0);
        }
        // Checked in the order in which rows move: in flight, head, tables.
        self.rooms.head.recycle_before(deletes.clean_through);
        let decided = self.ledger.sequence.visible();
        let oldest = self.rooms.head.oldest_commit().unwrap_or(CommitSeq(u64::MAX));
        let version = self.rooms.tree.version();
        let is_applied = |seq: CommitSeq, tombstone: &Tombstone| {
            mutant!(self, TombstonesForgottenEarly)
                || (seq <= decided && seq < oldest && !version.needs(seq, tombstone))
        };
        let _nothing_on_its_way = self.transactions.pause();
        let tombstones = self.ledger.tombstones.all();
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
        let edit = Edit::default().with(Room::Engine, parts::encode_forgotten(&applied));
        self.ledger.commit(&self.rooms, edit, || {
            let nothing = self.rooms.budget.empty(Pool::Index);
            {
                let _view = self.rooms.view.write();
                self.ledger.tombstones.install(left, nothing);
            }
            self.ledger.tombstones.list_flushed();
            Ok(())
        })?;
        self.ledger.tombstones.release(applied.len());
        Ok(applied.len())
    }
}
