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
    Column, ColumnBatch, ColumnValues, CommitSeq, Error, Grouping, Labels, Matcher, Pool,
    QueryContext, Reservation, Result, RowBatch, Sample, Selected, Selection, SeriesRef, Slot,
    TimeRange, Timestamp,
};

use crate::commit::{CommitRequest, OpenTransaction};
use crate::delete::UNFLUSHED_COUNT_MAX;
use crate::snapshot::of_groups;
use crate::versions::{Point, Reads};
use crate::{Engine, Snapshot};

/// Each is a tombstone that every reader checks until tables are rewritten.
const DELETE_COUNT_MAX: usize = 256;
/// Each selection may be matched against the index again when the commit is validated.
const RANGE_COUNT_MAX: usize = 1_024;
// A change or a point read, with the overhead of its tree or hash set.
const CHANGE_BYTES: u64 = 64;

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
    /// For the recorded reads and changes, and for results that the caller may still hold.
    memory: Reservation,
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
    /// Series with deleted samples, as exact as [`Snapshot::has_data`]; a series that two deletes
    /// touch counts twice.
    pub deleted_series: u64,
}

impl Engine {
    /// Opens a transaction over the current state.
    ///
    /// # Errors
    /// `Busy` with too many open ones, `Closed`.
    pub fn begin(&self) -> Result<Transaction<'_>> {
        self.rooms.wakeup.check_open()?;
        let open = self.transactions.open()?;
        Ok(Transaction {
            engine: self,
            snapshot: self.snapshot(),
            reads: Reads::default(),
            writes: BTreeMap::new(),
            deletes: Vec::new(),
            memory: self.rooms.budget.empty(Pool::Query),
            open,
        })
    }
}

impl Transaction<'_> {
    /// Reads the samples of all matching series, including this transaction's changes, in no
    /// particular order of series. The commit depends on them, and on the absence of others.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` after too many selections, `Unavailable` or `Corrupt` from
    /// the rooms.
    pub fn read(&mut self, matchers: &[Matcher], range: TimeRange) -> Result<Vec<SeriesSamples>> {
        self.depend_on(matchers, range)?;
        let (view, found) = self.find(matchers, range)?;
        let groups = found.groups.clone();
        let selected = view.selected(found, range, &self.context());
        let (mut out, mut idx) = (Vec::new(), 0);
        let (memory, keys) = (&mut self.memory, selected.keys());
        let (writes, deletes) = (&self.writes, &self.deletes);
        selected.each(0..groups.len(), &mut |batch| {
            let found = &groups[idx];
            idx += 1;
            for member in &found.members {
                let series = SeriesRef { group: found.group, slot: member.slot };
                let mut samples = samples_of(batch, member.slot)?;
                let is_deleted = |ts| deletes.iter().any(|deleted| deleted.hides(series, ts));
                samples.retain(|sample| !is_deleted(sample.ts));
                if !range.is_empty() {
                    let own = writes.range((series, range.start)..=(series, range.end));
                    overlay(&mut samples, own.map(|(&(_, ts), &value)| Sample { ts, value }));
                }
                if !samples.is_empty() {
                    memory.grow((samples.len() * size_of::<Sample>()) as u64)?;
                    let labels = keys[member.key as usize].clone();
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
        self.reads.points.insert((series, ts));
        let member = Member { slot: series.slot, key: 0 };
        let group = GroupMatch { group: series.group, members: [member].into_iter().collect() };
        let (range, context) = (TimeRange::at(ts), self.context());
        let selected = self.snapshot.selected(of_groups(vec![group], &context), range, &context);
        let mut value = None;
        selected.each(0..1, &mut |batch| {
            value = samples_of(batch, series.slot)?.first().map(|sample| sample.value);
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
        if self.writes.insert((series, ts), value).is_none() {
            self.memory.grow(CHANGE_BYTES)?;
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

    /// Replaces the value of every matching sample by the result of `change`. Returns their number.
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
            for sample in found.samples {
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
            self.hide(TimeRange::at(ts), vec![HiddenMembers { group: series.group, slots }])?;
        }
        Ok(own || is_stored)
    }

    /// Deletes all samples in `range` of the matching series. Returns the number of series with
    /// samples there, as exact as [`Snapshot::has_data`], without those that only this transaction
    /// wrote.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete_range(&mut self, matchers: &[Matcher], range: TimeRange) -> Result<u64> {
        self.depend_on(matchers, range)?;
        let view = self.snapshot.with_index(self.engine.rooms.index.view());
        // `find` is not used: the slow tier may be down.
        let nothing = Grouping::By(Vec::new());
        let found = view.index().matches(matchers, &nothing, &self.context())?;
        self.writes.retain(|&(series, ts), _| !(range.contains(ts) && selects(&found, series)));
        let members = self.engine.hidden_members(&view, &found, range);
        let count = members.iter().map(|members| members.slots.count()).sum();
        if !members.is_empty() {
            self.hide(range, members)?;
        }
        Ok(count)
    }

    fn hide(&mut self, range: TimeRange, members: Vec<HiddenMembers>) -> Result<()> {
        let made_ms = self.engine.rooms.env.clock.now_ms();
        let same = self.deletes.iter().position(|deleted| deleted.range() == range);
        let mut all = same.map_or_else(Vec::new, |idx| self.deletes[idx].members().to_vec());
        all.extend(members);
        let deleted = Tombstone::new(made_ms, range, all);
        self.memory.grow(deleted.heap_bytes())?;
        match same {
            Some(idx) => self.deletes[idx] = deleted,
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
    /// `Unavailable` if the log device is full or fails, `Closed`. Then nothing is changed, except
    /// that after a failure of the device and a crash it may be.
    pub fn commit(self) -> Result<CommitReport> {
        let Transaction { engine, snapshot, reads, writes, deletes, memory, open } = self;
        if writes.is_empty() && deletes.is_empty() {
            return Ok(CommitReport::default());
        }
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
        if delete_count > 0 && engine.ledger.tombstones.unflushed().len() >= UNFLUSHED_COUNT_MAX {
            engine.rooms.wakeup.request_flush();
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
                "transaction too large: it has more than {RANGE_COUNT_MAX} selections; select more \
                 series at once"
            )));
        }
        self.reads.ranges.push((matchers.to_vec(), range));
        Ok(())
    }

    /// The series that match now. Series defined since the transaction began have no sample in its
    /// snapshot, but the transaction may have written some.
    fn find(&self, matchers: &[Matcher], range: TimeRange) -> Result<(Snapshot, Matches)> {
        let view = self.snapshot.with_index(self.engine.rooms.index.view());
        let selection =
            Selection { matchers: matchers.to_vec(), range, grouping: Grouping::Series };
        let found = view.find(&selection, &self.context())?;
        Ok((view, found))
    }

    fn context(&self) -> QueryContext {
        QueryContext { budget: self.engine.rooms.budget.clone(), ..QueryContext::unbounded() }
    }
}

fn selects(found: &Matches, series: SeriesRef) -> bool {
    let group = found.groups.binary_search_by_key(&series.group, |found| found.group);
    group.is_ok_and(|idx| {
        let members = &found.groups[idx].members;
        members.binary_search_by_key(&series.slot, |member| member.slot).is_ok()
    })
}

/// The samples of one member.
fn samples_of(batch: &ColumnBatch, slot: Slot) -> Result<Vec<Sample>> {
    let Some(column) = batch.columns.iter().find(|column| column.slot == slot) else {
        return Ok(Vec::new());
    };
    let Column { time_idx, presence, values, .. } = column;
    let ColumnValues::F64(values) = values else {
        return Err(Error::internal("a transaction can read columns of doubles only"));
    };
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
