//! Merging of sources of one group: the newest write wins for each (slot, timestamp).
//!
//! Members with the same time columns in the same sources share one plan: the entries of the
//! sources that each timestamp of the result may come from. The plan is built once; each member
//! only walks it.

use std::borrow::{Borrow, Cow};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Slot, TimeRange, Timestamp};

use crate::columns::{GroupColumns, doubles, is_sparse, span};

/// Merges `sources` (oldest first, by `seq.max`) and cuts the result to `range`.
///
/// The newest source wins for one (slot, timestamp) (invariant 2); NULL never overrides a value.
/// The result has one time column where members share timestamps. A member that would be sparse on
/// a shared one gets its own, shared with members of the same pattern. Sources without overlap in
/// time are concatenated; a single one is only sliced.
///
/// ```
/// use std::sync::Arc;
///
/// use firn_codec::{GroupColumns, SeqRange, merge_columns};
/// use firn_model::{ColumnBatch, ColumnValues, CommitSeq, Slot, TimeRange};
///
/// let source = |seq, ts: [i64; 2], values: [f64; 2]| GroupColumns {
///     batch: ColumnBatch::of_one(Slot(0), Arc::from(ts), values.to_vec()),
///     seq: SeqRange::at(CommitSeq(seq)),
/// };
/// let old = source(1, [1_000, 2_000], [1.0, 2.0]);
/// let new = source(2, [2_000, 3_000], [20.0, 30.0]);
/// let merged = merge_columns(&[old, new], TimeRange::ALL);
/// assert_eq!(&*merged.batch.times[0], [1_000, 2_000, 3_000]);
/// let ColumnValues::F64(values) = &merged.batch.columns[0].values else { unreachable!() };
/// assert_eq!(values, &[1.0, 20.0, 30.0]);
/// ```
pub fn merge_columns(sources: &[GroupColumns], range: TimeRange) -> GroupColumns {
    let cut: Vec<Cow<'_, GroupColumns>> = sources
        .iter()
        .map(|source| match range.covers(source.time_range()) {
            true => Cow::Borrowed(source),
            false => Cow::Owned(source.slice(range)),
        })
        .filter(|source| !source.is_empty())
        .collect();
    match cut.as_slice() {
        [] => GroupColumns::default(),
        [only] => only.clone().into_owned(),
        _ => merge_one_member(&cut).unwrap_or_else(|| merge_overlapping(&cut)),
    }
}

/// The most bytes that [`merge_columns`] allocates beside `sources` and their copy: plans, and time
/// columns of members that shared one in a source.
pub fn merge_bytes(sources: &[GroupColumns]) -> u64 {
    let mut ranges: Vec<TimeRange> = sources.iter().map(GroupColumns::time_range).collect();
    ranges.retain(|range| !range.is_empty());
    if ranges.len() < 2 {
        return 0;
    }
    ranges.sort_unstable_by_key(|range| range.start);
    let are_apart = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
    let entry_count: usize = sources.iter().map(GroupColumns::entry_count).sum();
    // The timestamps of the result, once more before they are shared.
    if are_apart || one_member(sources).is_some() {
        return (entry_count * size_of::<Timestamp>()) as u64;
    }
    // For each plan, whether several members have it; then the entries of all plans, and of the
    // time columns that they make.
    let mut planned: HashMap<Vec<(u32, u32)>, bool> = HashMap::new();
    let (mut planned_count, mut time_count) = (0, 0);
    let mut key = Vec::new();
    for parts in members_of(sources).chunk_by(|a, b| a.slot == b.slot) {
        key.clear();
        key.extend(parts.iter().map(|part| part.key(sources)));
        let entry_count = entry_count_of(&key, sources);
        // See `ResultColumns::push`.
        let values = parts.iter().map(|part| part.column(sources).values.len());
        let own_count = entry_count.min(2 * values.sum::<usize>());
        match planned.get_mut(&key) {
            None => {
                planned.insert(key.clone(), false);
                planned_count += entry_count;
                time_count += own_count;
            }
            Some(is_shared) if !*is_shared => {
                *is_shared = true;
                time_count += entry_count;
            }
            Some(_) => {}
        }
    }
    const PLAN_BYTES: usize =
        2 * size_of::<Timestamp>() + size_of::<Candidate>() + size_of::<u32>();
    let kept_count = planned_count.min((PLANS_MAX + 1) * entry_count);
    (PLAN_BYTES * kept_count + size_of::<Timestamp>() * time_count) as u64
}

/// As [`merge_columns`], for sources that the caller no longer needs: a single one is returned as
/// is.
pub fn merge_into_one(mut sources: Vec<GroupColumns>, range: TimeRange) -> GroupColumns {
    sources.retain(|source| !source.is_empty());
    match sources.pop() {
        Some(only) if sources.is_empty() && range.covers(only.time_range()) => only,
        Some(last) => {
            sources.push(last);
            merge_columns(&sources, range)
        }
        None => GroupColumns::default(),
    }
}

/// Timestamps and values.
type Samples<'a> = (&'a [Timestamp], &'a [f64]);

/// The member of all sources, and its samples there, if each source has no other and no NULL.
fn one_member<S: Borrow<GroupColumns>>(sources: &[S]) -> Option<(Slot, Vec<Samples<'_>>)> {
    let slot = sources.first()?.borrow().batch.columns.first()?.slot;
    let mut parts = Vec::with_capacity(sources.len());
    for source in sources {
        let batch = &source.borrow().batch;
        let ([times], [column]) = (batch.times.as_slice(), batch.columns.as_slice()) else {
            return None;
        };
        if column.slot != slot || column.presence.is_some() {
            return None;
        }
        parts.push((&**times, doubles(&column.values)));
    }
    Some((slot, parts))
}

/// The fast path for sources with one member without NULLs, the same in all: mostly lone series. It
/// needs no plan.
fn merge_one_member(sources: &[Cow<'_, GroupColumns>]) -> Option<GroupColumns> {
    let (slot, parts) = one_member(sources)?;
    let count = parts.iter().map(|part| part.0.len()).sum();
    let (mut times, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let lists: Vec<&[Timestamp]> = parts.iter().map(|part| part.0).collect();
    each_run(&lists, |run| {
        if run.is_newest {
            let (of_times, of_values) = parts[run.part];
            times.extend_from_slice(&of_times[run.entries.clone()]);
            values.extend_from_slice(&of_values[run.entries]);
        }
    });
    let seq = sources.iter().skip(1).fold(sources[0].seq, |seq, source| seq.union(source.seq));
    // The caller counts the values, not the room for equal timestamps.
    values.shrink_to_fit();
    let mut batch = ColumnBatch::of_one(slot, times.into(), values);
    batch.columns.iter_mut().for_each(|column| column.key = sources[0].batch.columns[0].key);
    Some(GroupColumns { batch, seq })
}

fn merge_overlapping(sources: &[Cow<'_, GroupColumns>]) -> GroupColumns {
    let mut plans = Plans::new(sources);
    let mut key: Vec<(u32, u32)> = Vec::new();
    let mut columns: Vec<&Column> = Vec::new();
    let mut result = ResultColumns::default();
    for parts in members_of(sources).chunk_by(|a, b| a.slot == b.slot) {
        columns.clear();
        columns.extend(parts.iter().map(|part| part.column(sources)));
        key.clear();
        key.extend(parts.iter().map(|part| part.key(sources)));
        let plan = plans.find(&key, sources);
        let (presence, values) = plan.merge(&columns);
        result.push(plan, &columns, presence, values);
    }
    let seq = sources.iter().skip(1).fold(sources[0].seq, |seq, source| seq.union(source.seq));
    GroupColumns { batch: ColumnBatch { times: result.times, columns: result.columns }, seq }
}

/// A column of a member.
#[derive(Clone, Copy)]
struct MemberPart {
    slot: Slot,
    source: u32,
    column: u32,
}

impl MemberPart {
    fn column<S: Borrow<GroupColumns>>(self, sources: &[S]) -> &Column {
        &sources[self.source as usize].borrow().batch.columns[self.column as usize]
    }

    /// The source and its time column.
    fn key<S: Borrow<GroupColumns>>(self, sources: &[S]) -> (u32, u32) {
        (self.source, self.column(sources).time_idx)
    }
}

/// The columns of all sources by member, oldest source first.
fn members_of<S: Borrow<GroupColumns>>(sources: &[S]) -> Vec<MemberPart> {
    let columns = sources.iter().map(|source| source.borrow().batch.columns.as_slice());
    let mut members = Vec::with_capacity(columns.clone().map(<[Column]>::len).sum());
    for (source, columns) in (0..).zip(columns) {
        let part = |(column, it): (u32, &Column)| MemberPart { slot: it.slot, source, column };
        members.extend((0..).zip(columns).map(part));
    }
    // A stable sort of ascending runs is a merge.
    members.sort_by_key(|part| part.slot);
    members
}

fn times_of<'a, S: Borrow<GroupColumns>>(
    key: &[(u32, u32)],
    sources: &'a [S],
) -> impl Iterator<Item = &'a [Timestamp]> {
    let times = |&(source, time): &(u32, u32)| {
        &*sources[source as usize].borrow().batch.times[time as usize]
    };
    key.iter().map(times)
}

fn entry_count_of<S: Borrow<GroupColumns>>(key: &[(u32, u32)], sources: &[S]) -> usize {
    times_of(key, sources).map(<[Timestamp]>::len).sum()
}

/// Entries of one part that follow each other in the result.
struct Run {
    part: usize,
    entries: Range<usize>,
    /// Whether no later part has the timestamps of the entries. If one has, this is one entry,
    /// behind that of the newest part.
    is_newest: bool,
}

/// Calls `each` with all entries of `parts` (sorted timestamps, oldest part first) in order of
/// time, and those of one timestamp newest part first.
fn each_run(parts: &[&[Timestamp]], mut each: impl FnMut(Run)) {
    // The first entry of each part that is left: the smallest timestamp, then the newest part.
    let mut heads: BinaryHeap<Reverse<(Timestamp, Reverse<usize>, usize)>> = parts
        .iter()
        .enumerate()
        .filter_map(|(part, times)| Some(Reverse((*times.first()?, Reverse(part), 0))))
        .collect();
    let mut last = None;
    while let Some(Reverse((ts, Reverse(part), start))) = heads.pop() {
        let is_newest = last != Some(ts);
        let end = match heads.peek() {
            _ if !is_newest => start + 1,
            None => parts[part].len(),
            Some(Reverse((next, ..))) if *next == ts => start + 1,
            Some(Reverse((next, ..))) => start + count_before(&parts[part][start..], *next),
        };
        last = parts[part].get(end - 1).copied();
        each(Run { part, entries: start..end, is_newest });
        heads.extend(parts[part].get(end).map(|&next| Reverse((next, Reverse(part), end))));
    }
}

/// How many of sorted `times` are before `end`: a search from the first one on.
fn count_before(times: &[Timestamp], end: Timestamp) -> usize {
    let mut bound = 1;
    while times.get(bound).is_some_and(|&ts| ts < end) {
        bound *= 2;
    }
    let first = bound / 2;
    let rest = &times[first..times.len().min(bound)];
    first + rest.partition_point(|&ts| ts < end)
}

/// The plans of the last members.
struct Plans {
    plans: Vec<MergePlan>,
    /// By the sources and their time columns.
    by_key: HashMap<Vec<(u32, u32)>, usize>,
    /// Most members have the plan of the previous one, which then needs no lookup.
    last_key: Vec<(u32, u32)>,
    last: usize,
    /// Number of entries of all plans, and the most.
    entry_count: usize,
    entry_count_max: usize,
}

/// Plans are kept up to this multiple of the entries of all sources, and one plan more.
const PLANS_MAX: usize = 2;

impl Plans {
    fn new(sources: &[Cow<'_, GroupColumns>]) -> Plans {
        let (plans, by_key, last_key) = Default::default();
        let all: usize = sources.iter().map(|source| source.entry_count()).sum();
        let entry_count_max = PLANS_MAX * all;
        Plans { plans, by_key, last_key, last: 0, entry_count: 0, entry_count_max }
    }

    /// The plan for the time columns `key` of `sources`.
    fn find(&mut self, key: &[(u32, u32)], sources: &[Cow<'_, GroupColumns>]) -> &mut MergePlan {
        if key != self.last_key {
            self.last_key.clear();
            self.last_key.extend_from_slice(key);
            self.last = match self.by_key.get(key) {
                Some(&idx) => idx,
                None => self.add(key, sources),
            };
        }
        let plan = &mut self.plans[self.last];
        plan.member_count += 1;
        plan
    }

    fn add(&mut self, key: &[(u32, u32)], sources: &[Cow<'_, GroupColumns>]) -> usize {
        self.entry_count += entry_count_of(key, sources);
        if self.entry_count > self.entry_count_max {
            self.plans.clear();
            self.by_key.clear();
            self.entry_count = entry_count_of(key, sources);
        }
        self.plans.push(MergePlan::new(&times_of(key, sources).collect::<Vec<_>>()));
        let idx = self.plans.len() - 1;
        self.by_key.insert(key.to_vec(), idx);
        idx
    }
}

/// For each timestamp of the result, the entries of the parts that can supply its value.
struct MergePlan {
    times: Arc<[Timestamp]>,
    /// The index of `times` in the result, once a member has it.
    time_idx: Option<u32>,
    /// Members with this plan so far.
    member_count: usize,
    steps: MergeSteps,
}

enum MergeSteps {
    /// The parts do not overlap in time; this is their order.
    Concat(Vec<u32>),
    /// For each timestamp a run of candidates, newest part first.
    Pick { candidates: Vec<Candidate>, ends: Vec<u32> },
}

#[derive(Clone, Copy)]
struct Candidate {
    part: u32,
    entry: u32,
}

impl MergePlan {
    /// `parts`: sorted timestamps of each part, oldest part first.
    fn new(parts: &[&[Timestamp]]) -> MergePlan {
        let mut order: Vec<u32> = (0..parts.len() as u32).collect();
        order.sort_by_key(|&part| span(parts[part as usize]).start);
        let apart = order
            .windows(2)
            .all(|pair| span(parts[pair[0] as usize]).end < span(parts[pair[1] as usize]).start);
        let count = parts.iter().map(|times| times.len()).sum();
        let mut times = Vec::with_capacity(count);
        if apart {
            order.iter().for_each(|&part| times.extend_from_slice(parts[part as usize]));
            let steps = MergeSteps::Concat(order);
            return MergePlan { times: times.into(), time_idx: None, member_count: 0, steps };
        }
        let (mut candidates, mut ends) = (Vec::with_capacity(count), Vec::with_capacity(count));
        each_run(parts, |Run { part, entries, is_newest }| {
            for entry in entries {
                candidates.push(Candidate { part: part as u32, entry: entry as u32 });
                let end = candidates.len() as u32;
                match ends.last_mut() {
                    Some(last) if !is_newest => *last = end,
                    _ => {
                        times.push(parts[part][entry]);
                        ends.push(end);
                    }
                }
            }
        });
        let steps = MergeSteps::Pick { candidates, ends };
        MergePlan { times: times.into(), time_idx: None, member_count: 0, steps }
    }

    /// Walks the plan for one member. `parts` must be in the order of [`MergePlan::new`]. `None`:
    /// all present.
    fn merge(&self, parts: &[&Column]) -> (Option<Presence>, Vec<f64>) {
        match &self.steps {
            MergeSteps::Concat(order) => concat(order, parts),
            MergeSteps::Pick { candidates, ends } => pick(candidates, ends, parts),
        }
    }
}

fn concat(order: &[u32], parts: &[&Column]) -> (Option<Presence>, Vec<f64>) {
    let in_order = || order.iter().map(|&part| parts[part as usize]);
    let mut values = Vec::with_capacity(parts.iter().map(|part| part.values.len()).sum());
    in_order().for_each(|part| values.extend_from_slice(doubles(&part.values)));
    if parts.iter().all(|part| part.presence.is_none()) {
        return (None, values);
    }
    let mut presence = Presence::new();
    for part in in_order() {
        match &part.presence {
            None => (0..part.values.len()).for_each(|_| presence.push(true)),
            Some(bits) => (0..bits.len()).for_each(|idx| presence.push(bits.get(idx))),
        }
    }
    (Some(presence), values)
}

fn pick(candidates: &[Candidate], ends: &[u32], parts: &[&Column]) -> (Option<Presence>, Vec<f64>) {
    let value_count = parts.iter().map(|part| part.values.len()).sum();
    let mut values = Vec::with_capacity(ends.len().min(value_count));
    let mut presence = Presence::new();
    // Every entry of a part is visited once and in order, so a cursor finds its value.
    let mut next = vec![0usize; parts.len()];
    let mut start = 0;
    for &end in ends {
        let mut chosen = None;
        for candidate in &candidates[start..end as usize] {
            let part = parts[candidate.part as usize];
            let there = part.presence.as_ref().is_none_or(|p| p.get(candidate.entry as usize));
            if there {
                let cursor = &mut next[candidate.part as usize];
                chosen = chosen.or(Some(doubles(&part.values)[*cursor]));
                *cursor += 1;
            }
        }
        presence.push(chosen.is_some());
        values.extend(chosen);
        start = end as usize;
    }
    ((!presence.is_full()).then_some(presence), values)
}

/// Finished columns and their time columns.
#[derive(Default)]
struct ResultColumns {
    times: Vec<Arc<[Timestamp]>>,
    columns: Vec<Column>,
    /// The index of each time column, once there are two.
    known: HashMap<Arc<[Timestamp]>, u32>,
    /// Working memory.
    own: Vec<Timestamp>,
}

impl ResultColumns {
    fn push(
        &mut self,
        plan: &mut MergePlan,
        parts: &[&Column],
        presence: Option<Presence>,
        values: Vec<f64>,
    ) {
        // Timestamps of a plan may be many more than the values of the only member that has it.
        let is_shared = plan.time_idx.is_some() || plan.member_count > 1;
        let is_own = |presence: &&Presence| {
            is_sparse(presence) || !is_shared && 2 * presence.count_present() < presence.len()
        };
        let (time_idx, presence) = match (presence.as_ref().filter(is_own), plan.time_idx) {
            (Some(pattern), _) => {
                let mut own = std::mem::take(&mut self.own);
                own.clear();
                own.extend(pattern.iter().map(|idx| plan.times[idx]));
                let idx = self.find(&own).unwrap_or_else(|| self.add(own.as_slice().into()));
                self.own = own;
                (idx, None)
            }
            (None, Some(known)) => (known, presence),
            (None, None) => {
                let known = self.find(&plan.times);
                let idx = known.unwrap_or_else(|| self.add(Arc::clone(&plan.times)));
                plan.time_idx = Some(idx);
                (idx, presence)
            }
        };
        self.columns.push(Column {
            slot: parts[0].slot,
            key: parts[0].key,
            time_idx,
            presence,
            values: ColumnValues::F64(values),
        });
    }

    /// The index of an equal time column.
    fn find(&self, times: &[Timestamp]) -> Option<u32> {
        match self.times.as_slice() {
            [only] => (**only == *times).then_some(0),
            _ => self.known.get(times).copied(),
        }
    }

    /// Appends a new time column. Returns its index. The only one, as most groups have, is not
    /// hashed.
    fn add(&mut self, times: Arc<[Timestamp]>) -> u32 {
        self.times.push(times);
        let new = if self.times.len() == 2 { 0 } else { self.times.len() - 1 };
        if self.times.len() > 1 {
            let new = self.times.iter().enumerate().skip(new);
            self.known.extend(new.map(|(idx, times)| (Arc::clone(times), idx as u32)));
        }
        (self.times.len() - 1) as u32
    }
}
