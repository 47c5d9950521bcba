//! Storage in a sorted map of samples: for tests of rules and of the evaluator.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use firn_model::{
    Column, ColumnBatch, ColumnValues, Histogram, Labels, MixedEntry, PointValue, Pool, Presence,
    QueryContext, Reservation, ResetHint, Result, Select, Selected, Selection, Slot, TimeRange,
    Timestamp, is_stale_nan,
};

use crate::histogram::detects_reset;

/// Samples by series, which are selected in the order of their first samples. Series with equal
/// `job` and `instance` labels are read as members of one group, all others alone, so that tests
/// cover both shapes of batches.
#[derive(Clone, Debug, Default)]
pub struct MemorySelect {
    series: BTreeMap<Labels, MemorySeries>,
    has_no_groups: bool,
}

#[derive(Clone, Debug)]
struct MemorySeries {
    /// The number of older series.
    position: usize,
    samples: BTreeMap<Timestamp, MixedEntry>,
}

impl MemorySelect {
    /// Creates an empty storage.
    pub fn new() -> MemorySelect {
        MemorySelect::default()
    }

    /// Creates an empty storage without groups: results have the order of the series.
    pub fn without_groups() -> MemorySelect {
        MemorySelect { has_no_groups: true, ..MemorySelect::default() }
    }

    /// Sets a sample; a later one for the same series and time wins.
    pub fn push(&mut self, labels: &Labels, ts: Timestamp, value: f64) {
        self.push_entry(labels, ts, MixedEntry { start: 0, value: PointValue::Float(value) });
    }

    /// Sets a sample of any kind.
    pub fn push_entry(&mut self, labels: &Labels, ts: Timestamp, entry: MixedEntry) {
        let position = self.series.len();
        let new = || MemorySeries { position, samples: BTreeMap::new() };
        self.series.entry(labels.clone()).or_insert_with(new).samples.insert(ts, entry);
    }

    /// Whether it has samples of a series.
    pub fn has_series(&self, labels: &Labels) -> bool {
        self.series.contains_key(labels)
    }

    /// Removes all samples.
    pub fn clear(&mut self) {
        self.series.clear();
    }

    /// The value of a series at a time.
    pub fn get(&self, labels: &Labels, ts: Timestamp) -> Option<&PointValue> {
        self.series.get(labels)?.samples.get(&ts).map(|entry| &entry.value)
    }
}

impl Select for MemorySelect {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        context.cancel.check()?;
        let matches = |labels: &Labels| {
            let value = |name: &str| labels.get(name).unwrap_or("").to_owned();
            selection.matchers.iter().all(|matcher| matcher.matches(&value(matcher.name())))
        };
        let mut keys: Vec<Labels> = Vec::new();
        let mut key_indexes: BTreeMap<Labels, usize> = BTreeMap::new();
        let (mut held, mut bytes) = (context.budget.empty(Pool::Query), 0);
        let mut groups: Vec<Vec<MemoryMember>> = Vec::new();
        let mut group_indexes: BTreeMap<Labels, usize> = BTreeMap::new();
        let mut found: Vec<_> = self.series.iter().filter(|(labels, _)| matches(labels)).collect();
        found.sort_unstable_by_key(|(_, series)| series.position);
        for (labels, MemorySeries { samples, .. }) in found {
            let key = selection.grouping.key(labels);
            let key_idx = *key_indexes.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                keys.len() - 1
            });
            let has_group = labels.get("job").is_some() && labels.get("instance").is_some();
            let grouped = has_group && !self.has_no_groups;
            let group = match grouped {
                true => labels.filter(|name| name == "job" || name == "instance"),
                false => labels.clone(),
            };
            let range = selection.range;
            let samples = match range.is_empty() {
                true => Vec::new(),
                false => with_hints(samples, range),
            };
            // Copies of the samples as rows and as a column.
            let row_bytes = 2 * size_of::<(Timestamp, MixedEntry)>();
            bytes += (SERIES_BYTES + samples.len() * row_bytes) as u64;
            held.cover(bytes)?;
            let group_idx = *group_indexes.entry(group).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group_idx].push(MemoryMember { key: key_idx as u32, samples });
        }
        Ok(Box::new(MemorySelected { keys, groups, _held: held }))
    }
}

/// The memory of a selected series without its samples: keys and members.
const SERIES_BYTES: usize = 512;

/// The samples in `range`, which is not empty, with the counter reset hints that Prometheus'
/// storage returns: a counter that continues the previous histogram has no reset; for all others it
/// is unknown.
fn with_hints(
    samples: &BTreeMap<Timestamp, MixedEntry>,
    range: TimeRange,
) -> Vec<(Timestamp, MixedEntry)> {
    let previous = samples.range(..range.start).next_back();
    let mut before = previous.and_then(|(_, entry)| match &entry.value {
        PointValue::Histogram(histogram) if !is_stale_nan(histogram.sum) => Some(&**histogram),
        _ => None,
    });
    let mut found = Vec::new();
    for (&ts, entry) in samples.range(range.start..=range.end) {
        let mut entry_out = entry.clone();
        if let PointValue::Histogram(histogram) = &entry.value
            && !is_stale_nan(histogram.sum)
        {
            if histogram.reset_hint != ResetHint::Gauge {
                let goes_on = before.is_some_and(|before| continues(histogram, before));
                let reset_hint = if goes_on { ResetHint::NoReset } else { ResetHint::Unknown };
                let hinted = Histogram { reset_hint, ..Histogram::clone(histogram) };
                entry_out.value = PointValue::Histogram(Arc::new(hinted));
            }
            before = Some(histogram);
        } else {
            before = None;
        }
        found.push((ts, entry_out));
    }
    found
}

/// Whether a storage would append `histogram` to the chunk of `before`.
fn continues(histogram: &Histogram, before: &Histogram) -> bool {
    let unknown = Histogram { reset_hint: ResetHint::Unknown, ..histogram.clone() };
    histogram.reset_hint != ResetHint::Reset
        && before.reset_hint != ResetHint::Gauge
        && histogram.schema == before.schema
        && histogram.zero_threshold == before.zero_threshold
        && histogram.custom_bounds == before.custom_bounds
        && !detects_reset(&unknown, before)
}

#[derive(Debug)]
struct MemoryMember {
    key: u32,
    samples: Vec<(Timestamp, MixedEntry)>,
}

impl MemoryMember {
    /// Doubles, unless they cannot represent a sample.
    fn values(&self) -> ColumnValues {
        let plain = |entry: &MixedEntry| match entry {
            MixedEntry { start: 0, value: PointValue::Float(value) } => Some(*value),
            _ => None,
        };
        let floats: Option<Vec<f64>> = self.samples.iter().map(|sample| plain(&sample.1)).collect();
        match floats {
            Some(values) => ColumnValues::F64(values),
            None => ColumnValues::Mixed(self.samples.iter().map(|s| s.1.clone()).collect()),
        }
    }
}

#[derive(Debug)]
struct MemorySelected {
    keys: Vec<Labels>,
    groups: Vec<Vec<MemoryMember>>,
    _held: Reservation,
}

impl Selected for MemorySelected {
    fn keys(&self) -> &[Labels] {
        &self.keys
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>> {
        Ok(self.groups[groups].iter().map(|members| batch(members)).collect())
    }
}

/// One time column for all members; gaps are marked.
fn batch(members: &[MemoryMember]) -> ColumnBatch {
    let mut times: Vec<Timestamp> =
        members.iter().flat_map(|member| member.samples.iter().map(|sample| sample.0)).collect();
    times.sort_unstable();
    times.dedup();
    let columns = members
        .iter()
        .enumerate()
        .filter(|(_, member)| !member.samples.is_empty())
        .map(|(idx, member)| {
            let mut presence = Presence::filled(times.len(), false);
            for (ts, _) in &member.samples {
                if let Ok(entry) = times.binary_search(ts) {
                    presence.set(entry);
                }
            }
            Column {
                slot: Slot(idx as u32),
                key: member.key,
                time_idx: 0,
                presence: (!presence.is_full()).then_some(presence),
                values: member.values(),
            }
        })
        .collect();
    ColumnBatch { times: vec![Arc::from(times)], columns }
}
