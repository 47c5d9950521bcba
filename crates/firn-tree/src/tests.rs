//! The whole room at once: a small world with a tree, a durable list of edits in place of the
//! manifest, and a plain map that knows the samples that must be readable.

mod damage;
mod lifecycle;
mod mapped;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_codec::{GroupColumns, SeqRange, merge_columns};
use firn_model::{
    Budget, CancelToken, Column, ColumnBatch, ColumnValues, CommitSeq, ErrorKind, GroupId,
    Presence, QueryContext, Result, Slot, TimeRange, Timestamp,
};
use firn_sim::{Rng, Sim};

use crate::{
    ColumnRequest, Damage, Deletes, FlushChunks, Job, TierScope, Tree, TreeOptions, Version,
};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Values by (group, slot, timestamp), as bits.
type Samples = BTreeMap<(GroupId, Slot, Timestamp), u64>;

struct World {
    sim: Sim,
    options: TreeOptions,
    /// The parts that a manifest would contain.
    parts: Vec<Vec<u8>>,
    tree: Tree,
    /// The samples that must be readable.
    samples: Samples,
    next_seq: u64,
    deletes: Deletes,
}

impl World {
    fn new(seed: u64, options: TreeOptions) -> World {
        let sim = Sim::new(seed);
        let tree = Tree::open(&sim.env(), options.clone(), &[], Budget::unlimited()).unwrap();
        World {
            sim,
            options,
            parts: Vec::new(),
            tree,
            samples: Samples::new(),
            next_seq: 1,
            deletes: Deletes::default(),
        }
    }

    fn now(&self) -> Timestamp {
        self.sim.env().clock.now_ms()
    }

    fn advance(&self, ms: i64) {
        self.sim.clock.advance(std::time::Duration::from_millis(ms as u64));
    }

    /// Opens the tree again from the durable parts and, as the engine does, writes a new manifest.
    fn reopen(&mut self) {
        let parts: Vec<&[u8]> = self.parts.iter().map(Vec::as_slice).collect();
        self.tree =
            Tree::open(&self.sim.env(), self.options.clone(), &parts, Budget::unlimited()).unwrap();
        self.parts = vec![self.tree.snapshot_part()];
    }

    /// As the engine does it: files durable, manifest durable, version swapped.
    fn flush(&mut self, samples: &Samples) -> Result<()> {
        let groups: BTreeSet<GroupId> = samples.keys().map(|key| key.0).collect();
        let first = self.next_seq;
        self.next_seq += 10;
        let seq = SeqRange { min: CommitSeq(first), max: CommitSeq(first + 9) };
        let chunks = || {
            let groups = groups.iter();
            let chunks = groups.map(|&group| Ok((group, columns_of(samples, group, seq))));
            Box::new(chunks) as FlushChunks<'_>
        };
        let edit = self.tree.write_level0(&chunks, CommitSeq(0), &CancelToken::new())?;
        self.parts.push(edit.encode());
        self.tree.apply(&edit)?;
        self.samples.extend(samples);
        Ok(())
    }

    /// Flushes a sample for each 16 hours of five years.
    fn flush_far_apart(&mut self, offset_ms: i64) {
        let (step_ms, end) = (16 * HOUR_MS, self.now() - offset_ms);
        let start = end - 5 * 365 * 24 * HOUR_MS;
        self.flush(&regular(1..2, 0..1, start..end, step_ms, 0.5)).unwrap();
    }

    fn plan(&self) -> Option<Job> {
        self.tree.plan(&self.tree.version(), &self.deletes, self.now(), TierScope::Both)
    }

    fn damage(&self) -> Vec<Damage> {
        self.tree.version().check(&CancelToken::new(), &mut |_| ()).unwrap()
    }

    /// As the engine does it after it has written the slow tier's own manifest.
    fn collect_garbage(&self) -> Result<usize> {
        self.tree.note_published(&self.tree.slow_tables().dead, self.now());
        self.tree.collect_garbage(&self.sim.env(), TierScope::Both)
    }

    fn run(&mut self, job: &Job) -> Result<()> {
        let edit = job.run(&self.sim.env(), &Budget::unlimited(), &CancelToken::new())?;
        self.tree.check(&edit)?;
        self.parts.push(edit.encode());
        self.tree.apply(&edit)
    }

    /// Runs planned work until there is none; returns the kinds.
    fn settle(&mut self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        loop {
            assert!(kinds.len() < 1_000, "work without end: {kinds:?}");
            let Some(job) = self.plan() else {
                match self.tree.adapt(&self.tree.version()) {
                    true => continue,
                    false => return kinds,
                }
            };
            self.run(&job).unwrap();
            kinds.push(job.kind().name());
        }
    }

    #[track_caller]
    fn check(&self) {
        self.check_range(TimeRange::ALL);
    }

    #[track_caller]
    fn check_range(&self, range: TimeRange) {
        let want: Samples = self
            .samples
            .iter()
            .filter(|((_, _, ts), _)| range.contains(*ts))
            .map(|(key, bits)| (*key, *bits))
            .collect();
        let got = read(&self.tree.version(), &self.members(), range).unwrap();
        assert_same(&got, &want);
        self.check_present(range, &want);
    }

    /// Directories contain all members with samples in `range`, and no others except ones with
    /// samples nearby.
    #[track_caller]
    fn check_present(&self, range: TimeRange, samples: &Samples) {
        let version = self.tree.version();
        // From a member's first sample in a partition to its last.
        let longest_ms = version.tables().map(|record| record.partition.len().as_ms()).max();
        let near_ms = longest_ms.unwrap_or(0);
        let near =
            TimeRange::new(range.start.saturating_sub(near_ms), range.end.saturating_add(near_ms));
        let mut reader = version.presence(range, &Budget::unlimited());
        let mut listed = BTreeSet::new();
        let mut list = |group| _ = listed.insert(group);
        assert!(version.presence(range, &Budget::unlimited()).each_group(&mut list).unwrap());
        let members: Vec<(GroupId, Slot)> = self.members().into_iter().collect();
        for of_group in members.chunk_by(|a, b| a.0 == b.0) {
            let group = of_group[0].0;
            let mut left: Vec<Slot> = of_group.iter().map(|member| member.1).collect();
            assert!(
                reader.take_present(group, &[], &mut left).unwrap(),
                "{group}: directories decide about all members"
            );
            assert!(left.len() == of_group.len() || listed.contains(&group), "{group}");
            for &(_, slot) in of_group {
                let is_here = !left.contains(&slot);
                let first = (group, slot, near.start)..=(group, slot, near.end);
                assert!(!is_here || self.samples.range(first).next().is_some(), "{group} {slot:?}");
                assert_eq!(version.first_data(group, slot, range).is_some(), is_here);
            }
            let mut missed = left.iter().filter(|slot| {
                let all = (group, **slot, i64::MIN)..=(group, **slot, i64::MAX);
                samples.range(all).next().is_some()
            });
            assert_eq!(missed.next(), None, "{group} has samples in {range:?}");
        }
    }

    /// All members that there ever were.
    fn members(&self) -> BTreeSet<(GroupId, Slot)> {
        self.samples.keys().map(|(group, slot, _)| (*group, *slot)).collect()
    }
}

#[track_caller]
fn assert_same(got: &Samples, want: &Samples) {
    if got != want {
        let lost = want.iter().find(|(key, bits)| got.get(key) != Some(bits));
        let extra = got.iter().find(|(key, _)| !want.contains_key(key));
        panic!(
            "{} samples, want {}; first lost or wrong {lost:?} (got {:?}), first extra {extra:?}",
            got.len(),
            want.len(),
            lost.and_then(|(key, _)| got.get(key)),
        );
    }
}

/// Everything of `members` in `range`, merged, newest first won.
fn read(
    version: &Version,
    members: &BTreeSet<(GroupId, Slot)>,
    range: TimeRange,
) -> Result<Samples> {
    let members: Vec<(GroupId, Slot)> = members.iter().copied().collect();
    let slots: Vec<Slot> = members.iter().map(|member| member.1).collect();
    let mut rest = &slots[..];
    let groups = members.chunk_by(|a, b| a.0 == b.0);
    let asks: Vec<ColumnRequest<'_>> = groups
        .map(|members| {
            let (slots, left) = rest.split_at(members.len());
            rest = left;
            ColumnRequest { group: members[0].0, slots, before: None }
        })
        .collect();
    let found = version.scan(&asks, range, None, &QueryContext::unbounded())?;
    let mut samples = Samples::new();
    for (ask, sources) in asks.iter().zip(found) {
        assert!(sources.is_sorted_by_key(|columns| columns.seq.max), "oldest first");
        let merged = merge_columns(&sources, range);
        if !merged.is_empty() {
            assert!(version.has_data(ask.group, range));
        }
        add_columns(ask.group, &merged, &mut samples);
    }
    Ok(samples)
}

fn add_columns(group: GroupId, columns: &GroupColumns, samples: &mut Samples) {
    for column in &columns.batch.columns {
        let times = &columns.batch.times[column.time_idx as usize];
        let present: Vec<usize> = match &column.presence {
            Some(presence) => presence.iter().collect(),
            None => (0..times.len()).collect(),
        };
        let ColumnValues::F64(values) = &column.values else { unreachable!() };
        for (idx, value) in present.into_iter().zip(values) {
            samples.insert((group, column.slot, times[idx]), value.to_bits());
        }
    }
}

/// The columns of one group: one shared time column, NULLs where a member has no value.
fn columns_of(samples: &Samples, group: GroupId, seq: SeqRange) -> GroupColumns {
    let of_group = || samples.iter().filter(move |((of, _, _), _)| *of == group);
    let times: BTreeSet<Timestamp> = of_group().map(|((_, _, ts), _)| *ts).collect();
    let slots: BTreeSet<Slot> = of_group().map(|((_, slot, _), _)| *slot).collect();
    let mut batch = ColumnBatch::default();
    for slot in slots {
        let mut presence = Presence::new();
        let mut values = Vec::new();
        for ts in &times {
            let bits = samples.get(&(group, slot, *ts));
            presence.push(bits.is_some());
            values.extend(bits.map(|bits| f64::from_bits(*bits)));
        }
        let presence = (!presence.is_full()).then_some(presence);
        let values = ColumnValues::F64(values);
        batch.columns.push(Column { slot, key: 0, time_idx: 0, presence, values });
    }
    batch.times.push(times.into_iter().collect::<Vec<_>>().into());
    GroupColumns { batch, seq }
}

/// Regular samples of some groups and slots: `range` is half open.
fn regular(
    groups: std::ops::Range<u64>,
    slots: std::ops::Range<u32>,
    range: std::ops::Range<i64>,
    step_ms: i64,
    value: f64,
) -> Samples {
    let mut samples = Samples::new();
    for group in groups {
        for slot in slots.clone() {
            let mut ts = range.start;
            while ts < range.end {
                let value = value + group as f64 + f64::from(slot) / 8.0 + (ts % 7) as f64;
                samples.insert((GroupId(group), Slot(slot), ts), value.to_bits());
                ts += step_ms;
            }
        }
    }
    samples
}

/// Small blocks and tables, so that a little data makes many of them.
fn small_options() -> TreeOptions {
    TreeOptions { block_bytes: 512, table_bytes_max: 4_096, ..TreeOptions::default() }
}

fn is_corrupt(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt { .. })
}
