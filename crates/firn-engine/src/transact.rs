//! Transactions: a frozen view to read, a list of changes, and a commit of all of them or none.
//!
//! An open transaction holds no lock. Its reads are recorded. [`Transaction::commit`] fails with
//! `Conflict` if another transaction has touched any of them since, so committed transactions are
//! serialisable (optimistic: read, then lock, validate, write). A transaction without changes is
//! not validated: its view is the state between two other transactions.
//!
//! An update is a newer sample and a delete is a tombstone, wherever the old sample is stored:
//! nothing is changed in place. Plain writes are no transactions: see `docs/consistency.md`.
//!
//! Source: DecLog, section 4.1; `commit` and `versions` describe the differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::{HiddenMembers, HiddenSlots, Tombstone};
use firn_index::{GroupMatch, Matches, Member};
use firn_model::{
    Cell, Column, ColumnBatch, ColumnValues, CommitSeq, Error, Grouping, Labels, Matcher, Pool,
    QueryContext, Reservation, Result, RowBatch, Sample, Selected, Selection, SeriesRef, Slot,
    TimeRange, Timestamp, is_stale_nan,
};

use crate::commit::{CommitRequest, OpenTransaction};
use crate::snapshot::of_groups;
use crate::versions::{Point, Reads};
use crate::{Engine, Snapshot};

/// Each is a tombstone that every reader checks until tables are rewritten.
const DELETE_COUNT_MAX: usize = 256;
/// Each selection may be matched against the index again when the commit is validated.
const RANGE_COUNT_MAX: usize = 1_024;
// A change or a point read: an entry of a tree with half-full nodes takes up to 78 bytes, one of a
// hash set up to 86 while the set grows.
const CHANGE_BYTES: u64 = 88;
// A cell of the batch that a commit writes, while its list grows.
const ROW_BYTES: u64 = 3 * size_of::<Cell>() as u64;

/// An open transaction. Dropping it changes nothing. It holds a snapshot, and with it memory:
/// commit or drop it soon.
#[derive(Debug)]
pub struct Transaction<'a> {
    engine: &'a Engine,
    snapshot: Snapshot,
    reads: Reads,
    /// Samples to write; `deletes` hide none of them.
    writes: BTreeMap<Point, f64>,
    deletes: Vec<Tombstone>,
    /// Samples that may still be read.
    samples_left: u64,
    /// For the recorded reads and changes, and for results that the caller may still hold.
    memory: Reservation,
    context: QueryContext,
    open: OpenTransaction<'a>,
}

/// One series that [`Transaction::read`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesSamples {
    /// Its labels.
    pub labels: Labels,
    /// Its reference, for changes.
    pub series: SeriesRef,
    /// At least one, in ascending order of time.
    pub samples: Vec<Sample>,
}

/// Summary of [`Transaction::commit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitReport {
    /// The commit; `None` if there was nothing to change.
    pub seq: Option<CommitSeq>,
    /// Samples inserted and updated.
    pub written_samples: u64,
    /// Series with deleted samples, as exact as [`Snapshot::has_data`], without those that only the
    /// transaction itself wrote; a series that two deletes touch counts twice.
    pub deleted_series: u64,
}

impl Engine {
    /// Opens a transaction over the current state.
    ///
    /// # Errors
    /// `Busy` with too many open ones, `Closed`.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        let budget = self.rooms.budget.clone();
        self.begin_within(QueryContext { budget, ..QueryContext::unbounded() })
    }

    /// As [`Engine::begin`], for a client: reads end with `Canceled` or `Timeout` after `context`
    /// was cancelled, and stay within its budget, a part of this engine's. So does the commit,
    /// until it writes to the log.
    ///
    /// # Errors
    /// As [`Engine::begin`].
    pub fn begin_within(&self, context: QueryContext) -> Result<Transaction<'_>> {
        self.rooms.wakeup.check_open()?;
        context.cancel.check()?;
        let open = self.transactions.open()?;
        Ok(Transaction {
            engine: self,
            snapshot: self.snapshot(),
            reads: Reads::new(&context),
            writes: BTreeMap::new(),
            deletes: Vec::new(),
            samples_left: u64::MAX,
            memory: context.budget.empty(Pool::Query),
            context,
            open,
        })
    }
}

impl Transaction<'_> {
    /// Bounds the samples that all further reads together may return; a change of a range reads its
    /// samples.
    pub fn limit_samples(&mut self, samples_max: u64) {
        self.samples_left = samples_max;
    }

    /// Reads the samples of all matching series, including stale markers and this transaction's
    /// changes, in no particular order of series. The commit depends on them, and on the absence of
    /// others.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` after too many selections, over the budget of
    /// [`Engine::begin_within`] or over [`Transaction::limit_samples`], `Canceled`, `Timeout`,
    /// `Unavailable` or `Corrupt` from the rooms.
    pub fn read(&mut self, matchers: &[Matcher], range: TimeRange) -> Result<Vec<SeriesSamples>> {
        self.depend_on(matchers, range)?;
        let (view, found) = self.find(matchers, range)?;
        let selected = view.selected(found, range, &self.context);
        let groups = selected.groups();
        let (mut out, mut idx) = (Vec::new(), 0);
        let mut reading = self.context.budget.empty(Pool::Query);
        let (memory, keys) = (&mut self.memory, selected.keys());
        let samples_left = &mut self.samples_left;
        let (writes, deletes) = (&self.writes, &self.deletes);
        let cancel = &self.context.cancel;
        selected.each(0..groups.len(), &mut |batch| {
            cancel.check()?;
            let found = &groups[idx];
            idx += 1;
            for member in &found.members {
                let series = SeriesRef { group: found.group, slot: member.slot };
                let mut samples = samples_of(batch, member.slot, &mut reading)?;
                let is_deleted = |ts| deletes.iter().any(|deleted| deleted.hides(series, ts));
                samples.retain(|sample| !is_deleted(sample.ts));
                if !range.is_empty() {
                    let own = writes.range((series, range.start)..=(series, range.end));
                    let own_count = own.clone().count();
                    if own_count > 0 {
                        let overlaid = (samples.len() + own_count) as u64;
                        reading.cover(2 * CHANGE_BYTES * overlaid)?;
                    }
                    overlay(&mut samples, own.map(|(&(_, ts), &value)| Sample { ts, value }));
                }
                take_samples(samples_left, samples.len())?;
                if !samples.is_empty() {
                    let labels = keys[member.key as usize].clone();
                    samples.shrink_to_fit();
                    let bytes = labels.as_encoded().len()
                        + 3 * size_of::<SeriesSamples>()
                        + samples.len() * size_of::<Sample>();
                    memory.grow(bytes as u64)?;
                    out.push(SeriesSamples { labels, series, samples });
                }
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Reads the sample of a series at exactly `ts`, including this transaction's changes. The
    /// commit depends on it, or on its absence.
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub fn read_point(&mut self, series: SeriesRef, ts: Timestamp) -> Result<Option<f64>> {
        if let Some(&value) = self.writes.get(&(series, ts)) {
            return Ok(Some(value));
        }
        if self.deletes.iter().any(|deleted| deleted.hides(series, ts)) {
            return Ok(None);
        }
        self.read_stored(series, ts)
    }

    fn read_stored(&mut self, series: SeriesRef, ts: Timestamp) -> Result<Option<f64>> {
        self.memory.grow(CHANGE_BYTES)?;
        take_samples(&mut self.samples_left, 1)?;
        self.reads.points.insert((series, ts));
        let member = Member { slot: series.slot, key: 0 };
        let group = GroupMatch { group: series.group, members: [member].into_iter().collect() };
        let (range, context) = (TimeRange::at(ts), &self.context);
        context.cancel.check()?;
        let selected = self.snapshot.selected(of_groups(vec![group], context), range, context);
        let mut value = None;
        let mut reading = context.budget.empty(Pool::Query);
        selected.each(0..1, &mut |batch| {
            value =
                samples_of(batch, series.slot, &mut reading)?.first().map(|sample| sample.value);
            Ok(())
        })?;
        Ok(value)
    }

    /// Writes a sample, whether or not one exists.
    ///
    /// # Errors
    /// `Invalid` for a timestamp outside of [`Engine::accepted_times`], `Busy` without memory. The
    /// commit reports an unknown series.
    pub fn insert(&mut self, series: SeriesRef, ts: Timestamp, value: f64) -> Result<()> {
        let times = self.engine.rooms.accepted_times();
        if let Some(refusal) = times.refusal(ts) {
            return Err(Error::invalid(format!("insert refused: {}", times.explain(ts, refusal))));
        }
        self.put(series, ts, value)
    }

    fn put(&mut self, series: SeriesRef, ts: Timestamp, value: f64) -> Result<()> {
        self.memory.grow(CHANGE_BYTES)?;
        if self.writes.insert((series, ts), value).is_some() {
            self.memory.shrink(CHANGE_BYTES);
        }
        Ok(())
    }

    /// Replaces the value of an existing sample.
    ///
    /// # Errors
    /// `NotFound` if there is none; the transaction can continue. Those of [`Transaction::read`].
    pub fn update(&mut self, series: SeriesRef, ts: Timestamp, value: f64) -> Result<()> {
        if self.read_point(series, ts)?.is_none() {
            let labels =
                self.engine.rooms.index.view().labels(series)?.unwrap_or_else(Labels::empty);
            return Err(Error::not_found(format!(
                "{labels} has no sample at {ts}; insert it instead of updating it"
            )));
        }
        self.put(series, ts, value)
    }

    /// Replaces the value of every matching sample by the result of `change`. Stale markers stay:
    /// series that have ended do not continue. Returns the number of samples.
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub fn update_range(
        &mut self,
        matchers: &[Matcher],
        range: TimeRange,
        mut change: impl FnMut(&Labels, Sample) -> f64,
    ) -> Result<u64> {
        let mut count = 0;
        for found in self.read(matchers, range)? {
            self.context.cancel.check()?;
            for sample in found.samples.into_iter().filter(|sample| !is_stale_nan(sample.value)) {
                self.put(found.series, sample.ts, change(&found.labels, sample))?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Deletes the sample of a series at `ts`. Returns whether it existed.
    ///
    /// # Errors
    /// `TooLarge` after too many deletes of different times; those of [`Transaction::read`].
    pub fn delete(&mut self, series: SeriesRef, ts: Timestamp) -> Result<bool> {
        let own = self.writes.remove(&(series, ts)).is_some();
        if self.deletes.iter().any(|deleted| deleted.hides(series, ts)) {
            return Ok(own);
        }
        let is_stored = self.read_stored(series, ts)?.is_some();
        if is_stored {
            let slots = HiddenSlots::new(vec![series.slot]);
            let held = self.context.budget.reserve(Pool::Query, CHANGE_BYTES)?;
            let members = vec![HiddenMembers { group: series.group, slots }];
            self.hide(TimeRange::at(ts), members, held)?;
        }
        Ok(own || is_stored)
    }

    /// Deletes all samples in `range` of the matching series, those of this transaction included.
    /// Returns the number of series with samples there, as exact as [`Snapshot::has_data`].
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete_range(&mut self, matchers: &[Matcher], range: TimeRange) -> Result<u64> {
        self.context.cancel.check()?;
        self.depend_on(matchers, range)?;
        let view = self.snapshot.with_index(self.engine.rooms.index.view());
        // `find` is not used: the slow tier may be down.
        let nothing = Grouping::By(Vec::new());
        let found = view.index().matches(matchers, &nothing, &self.context)?;
        let (members, held) = self.engine.hidden_members(&view, &found, range, &self.context)?;
        let mut count = members.iter().map(|members| members.slots.count()).sum();
        // In ascending order of series. All members of a hidden group are counted already.
        let mut last_deleted = None;
        self.writes.retain(|&(series, ts), _| {
            let is_deleted = range.contains(ts) && selects(&found, series);
            if is_deleted && last_deleted != Some(series) {
                last_deleted = Some(series);
                let group = members.binary_search_by_key(&series.group, |hidden| hidden.group);
                count += u64::from(group.is_err());
            }
            !is_deleted
        });
        if !members.is_empty() {
            self.hide(range, members, held)?;
        }
        Ok(count)
    }

    /// `held` is the memory of `members`.
    fn hide(
        &mut self,
        range: TimeRange,
        mut members: Vec<HiddenMembers>,
        mut held: Reservation,
    ) -> Result<()> {
        let made_ms = self.engine.rooms.env.clock.now_ms();
        let same = self.deletes.iter().position(|deleted| deleted.range() == range);
        if let Some(idx) = same {
            // A copy, and the list that grows for it.
            held.grow(2 * self.deletes[idx].heap_bytes() + held.bytes())?;
            members.extend_from_slice(self.deletes[idx].members());
        }
        // The list is copied once.
        held.grow(size_of_val(&*members) as u64)?;
        let deleted = Tombstone::new(made_ms, range, members);
        held.cover(deleted.heap_bytes())?;
        held.shrink_to(deleted.heap_bytes());
        self.memory.merge(held);
        match same {
            Some(idx) => {
                self.memory.shrink(self.deletes[idx].heap_bytes());
                self.deletes[idx] = deleted;
            }
            None if self.deletes.len() < DELETE_COUNT_MAX => self.deletes.push(deleted),
            None => {
                return Err(Error::too_large(format!(
                    "transaction too large: it deletes more than {DELETE_COUNT_MAX} time ranges; \
                     delete longer ranges, or use several transactions"
                )));
            }
        }
        Ok(())
    }

    /// Applies all changes at once, or none. On return they are durable (by `log.sync`) and visible
    /// in all shards. Without changes nothing is validated and nothing can fail.
    ///
    /// # Errors
    /// `Conflict` if another transaction changed data that this one read: begin again. `NotFound`
    /// for an unknown series, `TooLarge` for more changes than fit into a log segment, `Busy`,
    /// `Unavailable` if the log device is full or fails, `Closed`, `Canceled`, `Timeout`. Then
    /// nothing is changed, except that after a failure of the device and a crash it may be.
    pub fn commit(self) -> Result<CommitReport> {
        let Transaction { engine, snapshot, reads, writes, deletes, mut memory, open, .. } = self;
        if writes.is_empty() && deletes.is_empty() {
            return Ok(CommitReport::default());
        }
        reads.context.cancel.check()?;
        memory.grow(ROW_BYTES * writes.len() as u64)?;
        let mut rows = RowBatch::default();
        writes.iter().for_each(|(&(series, ts), &value)| rows.push(series, ts, value));
        let written_samples = rows.len() as u64;
        let deleted_series = deletes.iter().map(Tombstone::series_count).sum();
        let deletes: Vec<Arc<Tombstone>> = deletes.into_iter().map(Arc::new).collect();
        let (begun, delete_count) = (snapshot.transactions(), deletes.len() as u64);
        // Releases the memory that the snapshot pins.
        drop(snapshot);
        let work = CommitRequest { reads: &reads, begun, rows, deletes };
        let seq = engine.commit(work)?;
        drop((open, memory));
        engine.counters.transactions.add(1);
        engine.counters.deletes.add(delete_count);
        engine.counters.samples_written.add(written_samples);
        if delete_count > 0 {
            if engine.ledger.tombstones.is_flush_due(&engine.rooms) {
                engine.rooms.wakeup.request_flush();
            }
            // The commit is done. The head's lane plans the same work and reports its errors.
            let _ = engine.convert_backlog();
        }
        Ok(CommitReport { seq: Some(seq), written_samples, deleted_series })
    }

    fn depend_on(&mut self, matchers: &[Matcher], range: TimeRange) -> Result<()> {
        let same = |one: &(Vec<Matcher>, TimeRange)| one.1 == range && one.0 == matchers;
        if self.reads.ranges.iter().any(same) {
            return Ok(());
        }
        if self.reads.ranges.len() >= RANGE_COUNT_MAX {
            return Err(Error::too_large(format!(
                "transaction too large: its reads, updates and deletes by selector, and its deletes \
                 of series that do not exist, are more than {RANGE_COUNT_MAX} selections; select \
                 more series at once, or use several transactions"
            )));
        }
        let bytes = matchers.iter().map(|matcher| size_of::<Matcher>() + matcher.heap_bytes());
        self.memory.grow(bytes.sum::<usize>() as u64 + 4 * CHANGE_BYTES)?;
        self.reads.ranges.push((matchers.to_vec(), range));
        Ok(())
    }

    /// The series that match now. Series defined since the transaction began have no sample in its
    /// snapshot, but the transaction may have written some.
    fn find(&self, matchers: &[Matcher], range: TimeRange) -> Result<(Snapshot, Matches)> {
        let view = self.snapshot.with_index(self.engine.rooms.index.view());
        let selection =
            Selection { matchers: matchers.to_vec(), range, grouping: Grouping::Series };
        let found = view.find(&selection, &self.context)?;
        Ok((view, found))
    }
}

/// # Errors
/// `TooLarge` if fewer are left.
fn take_samples(samples_left: &mut u64, count: usize) -> Result<()> {
    *samples_left = samples_left.checked_sub(count as u64).ok_or_else(|| {
        Error::too_large(
            "the transaction reads more samples than a query may; select fewer series or a shorter \
             range",
        )
    })?;
    Ok(())
}

fn selects(found: &Matches, series: SeriesRef) -> bool {
    let group = found.groups.binary_search_by_key(&series.group, |found| found.group);
    group.is_ok_and(|idx| {
        let members = &found.groups[idx].members;
        members.binary_search_by_key(&series.slot, |member| member.slot).is_ok()
    })
}

/// The samples of one member. `held` covers their memory while the list grows.
fn samples_of(batch: &ColumnBatch, slot: Slot, held: &mut Reservation) -> Result<Vec<Sample>> {
    let Ok(idx) = batch.columns.binary_search_by_key(&slot, |column| column.slot) else {
        return Ok(Vec::new());
    };
    let Column { time_idx, presence, values, .. } = &batch.columns[idx];
    let ColumnValues::F64(values) = values else {
        return Err(Error::internal("a transaction can read columns of doubles only"));
    };
    held.cover((2 * values.len() * size_of::<Sample>()) as u64)?;
    let times = &batch.times[*time_idx as usize];
    let sample = |(&ts, &value): (&Timestamp, &f64)| Sample { ts, value };
    Ok(match presence {
        None => times.iter().zip(values).map(sample).collect(),
        Some(presence) => presence.iter().map(|idx| &times[idx]).zip(values).map(sample).collect(),
    })
}

/// Replaces and adds samples; both lists are in ascending order of time.
fn overlay(samples: &mut Vec<Sample>, over: impl Iterator<Item = Sample>) {
    let mut over = over.peekable();
    if over.peek().is_none() {
        return;
    }
    let mut all: BTreeMap<Timestamp, f64> =
        samples.iter().map(|sample| (sample.ts, sample.value)).collect();
    all.extend(over.map(|sample| (sample.ts, sample.value)));
    *samples = all.into_iter().map(|(ts, value)| Sample { ts, value }).collect();
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use firn_model::Budget;

    use super::*;

    /// Each member was searched for among all of its group: for 100,000 that took a minute, in
    /// which no time-out was noticed.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the bound is a hundred times the time")]
    fn members_of_a_large_group_are_found_in_time() {
        const COUNT: u32 = 100_000;
        let column = |slot| Column {
            slot: Slot(2 * slot),
            key: 0,
            time_idx: 0,
            presence: None,
            values: ColumnValues::F64(vec![f64::from(slot)]),
        };
        let batch =
            ColumnBatch { times: vec![Arc::from([7])], columns: (0..COUNT).map(column).collect() };
        let mut held = Budget::unlimited().empty(Pool::Query);
        let started = Instant::now();
        for slot in 0..2 * COUNT {
            let samples = samples_of(&batch, Slot(slot), &mut held).unwrap();
            let sample = Sample { ts: 7, value: f64::from(slot / 2) };
            assert_eq!(samples, if slot % 2 == 0 { vec![sample] } else { Vec::new() });
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
