//! Merging of sources of one group: the newest write wins for each (slot, timestamp).
//!
//! Members with the same time columns in the same sources share one plan: the entries of the
//! sources that each timestamp of the result may come from. The plan is built once; each member
//! only walks it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Column, ColumnBatch, ColumnValues, Presence, Slot, TimeRange, Timestamp};

use crate::columns::{GroupColumns, doubles, is_sparse, newest_of_each, span};

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

/// The fast path for sources with one member without NULLs, the same in all: mostly lone series. It
/// needs no plan. Sources that do not overlap in time are concatenated; otherwise the newest of
/// equal timestamps is kept.
fn merge_one_member(sources: &[Cow<'_, GroupColumns>]) -> Option<GroupColumns> {
    let slot = sources.first()?.batch.columns.first()?.slot;
    let mut parts: Vec<(&[Timestamp], &[f64])> = Vec::with_capacity(sources.len());
    for source in sources {
        let ([times], [column]) = (source.batch.times.as_slice(), source.batch.columns.as_slice())
        else {
            return None;
        };
        if column.slot != slot || column.presence.is_some() {
            return None;
        }
        parts.push((times, doubles(&column.values)));
    }
    let apart = |pair: &[(&[Timestamp], &[f64])]| span(pair[0].0).end < span(pair[1].0).start;
    let (times, values): (Arc<[Timestamp]>, Vec<f64>) = if parts.windows(2).all(apart) {
        let count = parts.iter().map(|part| part.0.len()).sum();
        let mut times = Vec::with_capacity(count);
        let mut values = Vec::with_capacity(count);
        for part in &parts {
            times.extend_from_slice(part.0);
            values.extend_from_slice(part.1);
        }
        (times.into(), values)
    } else {
        let all = parts.iter().flat_map(|part| part.0.iter().copied().zip(part.1.iter().copied()));
        let mut all: Vec<(Timestamp, f64)> = all.collect();
        let kept = newest_of_each(&mut all);
        let all = all.get(..kept)?;
        (all.iter().map(|one| one.0).collect(), all.iter().map(|one| one.1).collect())
    };
    let seq = sources.iter().skip(1).fold(sources[0].seq, |seq, source| seq.union(source.seq));
    let mut batch = ColumnBatch::of_one(slot, times, values);
    batch.columns.iter_mut().for_each(|column| column.key = sources[0].batch.columns[0].key);
    Some(GroupColumns { batch, seq })
}

fn merge_overlapping(sources: &[Cow<'_, GroupColumns>]) -> GroupColumns {
    // (slot, source, column); a stable sort of ascending runs is a merge.
    let mut members: Vec<(Slot, u32, u32)> = Vec::new();
    for (source_idx, source) in sources.iter().enumerate() {
        let columns = source.batch.columns.iter().enumerate();
        members.extend(columns.map(|(idx, column)| (column.slot, source_idx as u32, idx as u32)));
    }
    members.sort_by_key(|&(slot, source_idx, _)| (slot, source_idx));

    let mut plans: Vec<MergePlan> = Vec::new();
    let mut plan_of: HashMap<Vec<(u32, u32)>, usize> = HashMap::new();
    // Most members have the plan of the previous one, which then needs no lookup.
    let mut key: Vec<(u32, u32)> = Vec::new();
    let mut last_key: Vec<(u32, u32)> = Vec::new();
    let mut plan_idx = 0;
    let mut columns: Vec<&Column> = Vec::new();
    let mut result = ResultColumns::default();
    for parts in members.chunk_by(|a, b| a.0 == b.0) {
        let column = |&(_, source, column): &(Slot, u32, u32)| {
            &sources[source as usize].batch.columns[column as usize]
        };
        columns.clear();
        columns.extend(parts.iter().map(column));
        key.clear();
        key.extend(parts.iter().zip(&columns).map(|(part, column)| (part.1, column.time_idx)));
        if key != last_key {
            plan_idx = match plan_of.get(&key) {
                Some(&idx) => idx,
                None => {
                    let times = key
                        .iter()
                        .map(|&(source, time)| {
                            &*sources[source as usize].batch.times[time as usize]
                        })
                        .collect::<Vec<_>>();
                    plans.push(MergePlan::new(&times));
                    plan_of.insert(key.clone(), plans.len() - 1);
                    plans.len() - 1
                }
            };
        }
        std::mem::swap(&mut key, &mut last_key);
        let plan = &plans[plan_idx];
        let (presence, values) = plan.merge(&columns);
        result.push(plan_idx, &plan.times, &columns, presence, values);
    }
    let seq = sources.iter().skip(1).fold(sources[0].seq, |seq, source| seq.union(source.seq));
    GroupColumns { batch: ColumnBatch { times: result.times, columns: result.columns }, seq }
}

/// For each timestamp of the result, the entries of the parts that can supply its value.
struct MergePlan {
    times: Arc<[Timestamp]>,
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
        if apart {
            let times = order.iter().flat_map(|&part| parts[part as usize]).copied().collect();
            return MergePlan { times, steps: MergeSteps::Concat(order) };
        }
        let mut all: Vec<(Timestamp, Candidate)> = Vec::new();
        for (part, times) in parts.iter().enumerate().rev() {
            let part = part as u32;
            all.extend(
                times
                    .iter()
                    .enumerate()
                    .map(|(entry, &ts)| (ts, Candidate { part, entry: entry as u32 })),
            );
        }
        // The sort is stable: of equal timestamps the newest part stays first.
        all.sort_by_key(|&(ts, _)| ts);
        let mut times = Vec::with_capacity(all.len());
        let mut ends = Vec::with_capacity(all.len());
        let mut end = 0;
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            times.push(same[0].0);
            end += same.len() as u32;
            ends.push(end);
        }
        let candidates = all.into_iter().map(|(_, candidate)| candidate).collect();
        MergePlan { times: times.into(), steps: MergeSteps::Pick { candidates, ends } }
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
    let mut values = Vec::with_capacity(ends.len());
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
    /// Time column by plan and, for sparse members, by pattern.
    whole: Vec<Option<u32>>,
    sparse: HashMap<(usize, Vec<u64>), u32>,
}

impl ResultColumns {
    fn push(
        &mut self,
        plan_idx: usize,
        plan_times: &Arc<[Timestamp]>,
        parts: &[&Column],
        presence: Option<Presence>,
        values: Vec<f64>,
    ) {
        let own = presence.as_ref().filter(|presence| is_sparse(presence));
        let (time_idx, presence) = match own {
            None => {
                if self.whole.len() <= plan_idx {
                    self.whole.resize(plan_idx + 1, None);
                }
                let times = &mut self.times;
                let known = &mut self.whole[plan_idx];
                (*known.get_or_insert_with(|| add_times(times, plan_times)), presence)
            }
            Some(pattern) => {
                let key = (plan_idx, pattern.words().to_vec());
                let idx = *self.sparse.entry(key).or_insert_with(|| {
                    let own: Arc<[Timestamp]> = pattern.iter().map(|idx| plan_times[idx]).collect();
                    add_times(&mut self.times, &own)
                });
                (idx, None)
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
}

/// The index of `times` in `known`; appended if it is new. There are few plans, so a scan is fast.
fn add_times(known: &mut Vec<Arc<[Timestamp]>>, times: &Arc<[Timestamp]>) -> u32 {
    if let Some(idx) = known.iter().position(|other| other == times) {
        return idx as u32;
    }
    known.push(Arc::clone(times));
    (known.len() - 1) as u32
}
