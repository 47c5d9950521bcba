//! Limits on new series: in total, per metric, per group, per second. Known series are never
//! checked.
//!
//! A limit that is not set costs nothing. The series of a metric or group are counted in the index
//! once, with the first new series, and incrementally afterwards. A restart therefore counts only
//! metrics and groups that still grow.

use std::hash::BuildHasher;

use firn_model::{
    Error, ErrorKind, Labels, METRIC_NAME, Result, RwLockReadGuard, SeriesLimit, Timestamp,
};
use hashbrown::{DefaultHashBuilder, HashMap};
use smallvec::SmallVec;

use crate::memory::index::MemoryIndex;
use crate::options::SeriesLimits;
use crate::sealed::{HashedLabels, Sealed};
use crate::version::IndexVersion;

/// A starting target sends all its series in one request after a long pause.
const BURST_SECONDS: u64 = 10;
// The time at which series will leave is unknown; clients should retry rarely.
const FULL_RETRY_AFTER_MS: u64 = 60_000;
const TOKEN: u64 = 1_000;

/// Counts existing series. Called once per metric or group, so an implementation may search.
pub(crate) trait Census {
    /// All series.
    fn series(&self) -> u64;
    /// Series of a metric name.
    fn of_metric(&self, name: &str) -> u64;
    /// Members of all groups with exactly these labels, without lone series.
    fn of_group(&self, labels: &Labels) -> u64;
}

/// A label set that has no series yet.
pub(crate) struct NewSeries<'a> {
    pub(crate) metric: &'a str,
    /// The labels of the group that it would join; `None` for a lone series.
    pub(crate) group: Option<&'a dyn Fn() -> Labels>,
}

/// Whether the limits apply to a new series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// They do.
    Limited,
    /// The series is counted and never refused: it is the program's own.
    Exempt,
}

/// The limits and their counters.
#[derive(Debug)]
pub(crate) struct LimitCounters {
    limits: SeriesLimits,
    hasher: DefaultHashBuilder,
    /// Series by the hash of the metric or group. Two of 2^32 keys share a hash, and are then
    /// refused too early; this is too rare to keep the text.
    by_metric: HashMap<u64, u64>,
    by_group: HashMap<u64, u64>,
    /// New series that are admitted now, in thousandths, so that milliseconds divide without
    /// remainder.
    tokens: u64,
    refilled_ms: Option<Timestamp>,
    refused: [u64; SeriesLimit::ALL.len()],
}

impl LimitCounters {
    pub(crate) fn new(limits: SeriesLimits) -> LimitCounters {
        LimitCounters {
            limits,
            hasher: DefaultHashBuilder::default(),
            by_metric: HashMap::new(),
            by_group: HashMap::new(),
            tokens: tokens_max(limits.new_series_per_second_max),
            refilled_ms: None,
            refused: [0; SeriesLimit::ALL.len()],
        }
    }

    /// Checks whether one more series fits, and counts it. If it is not defined afterwards, the
    /// caller calls [`LimitCounters::recount`].
    ///
    /// # Errors
    /// `SeriesLimit` with the exceeded limit.
    pub(crate) fn admit(&mut self, new: &NewSeries<'_>, census: &impl Census) -> Result<()> {
        let checked = self.check(new, census);
        if let Err((limit, _)) = checked {
            self.refused[limit as usize] += 1;
            self.forget_unused(new);
        }
        checked.map_err(|(_, error)| error)
    }

    /// Advances the time to `now_ms`. A clock that is set back adds no tokens and does no harm.
    pub(crate) fn tick(&mut self, now_ms: Timestamp) {
        let Some(per_second) = self.limits.new_series_per_second_max else { return };
        let elapsed_ms = now_ms.saturating_sub(self.refilled_ms.unwrap_or(now_ms)).max(0) as u64;
        self.refilled_ms = Some(now_ms);
        let tokens = self.tokens.saturating_add(elapsed_ms.saturating_mul(per_second));
        self.tokens = tokens.min(tokens_max(Some(per_second)));
    }

    /// Counts one more series that the limits do not concern.
    pub(crate) fn admit_exempt(&mut self, new: &NewSeries<'_>) {
        if let Some(count) = self.by_metric.get_mut(&self.hasher.hash_one(new.metric)) {
            *count += 1;
        }
        if let Some(group) = new.group
            && let Some(count) = self.by_group.get_mut(&self.hasher.hash_one(group()))
        {
            *count += 1;
        }
    }

    /// Forgets the counts of a metric and a group without series: a sender may try any number of
    /// them.
    fn forget_unused(&mut self, new: &NewSeries<'_>) {
        let metric = self.hasher.hash_one(new.metric);
        if self.by_metric.get(&metric) == Some(&0) {
            self.by_metric.remove(&metric);
        }
        if let (Some(_), Some(group)) = (self.limits.series_per_group_max, new.group) {
            let group = self.hasher.hash_one(group());
            if self.by_group.get(&group) == Some(&0) {
                self.by_group.remove(&group);
            }
        }
    }

    /// Forgets all counts, because series left or an admitted one was not defined. They are counted
    /// in the index again.
    pub(crate) fn recount(&mut self) {
        self.by_metric.clear();
        self.by_group.clear();
    }

    /// Refused series so far, by limit.
    pub(crate) fn refused(&self) -> [u64; SeriesLimit::ALL.len()] {
        self.refused
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.by_metric.allocation_size() + self.by_group.allocation_size()
    }

    fn check(
        &mut self,
        new: &NewSeries<'_>,
        census: &impl Census,
    ) -> Result<(), (SeriesLimit, Error)> {
        if let Some(max) = self.limits.series_max {
            check_full(SeriesLimit::Total, census.series(), max, || "the database".to_owned())?;
        }
        let mut metric_count = None;
        if let Some(max) = self.limits.series_per_metric_max.filter(|_| !new.metric.is_empty()) {
            let key = self.hasher.hash_one(new.metric);
            let count = self.by_metric.entry(key).or_insert_with(|| census.of_metric(new.metric));
            check_full(SeriesLimit::PerMetric, *count, max, || format!("metric {:?}", new.metric))?;
            metric_count = Some(count);
        }
        let mut group_count = None;
        if let (Some(max), Some(group)) = (self.limits.series_per_group_max, new.group) {
            let labels = group();
            let key = self.hasher.hash_one(&labels);
            let count = self.by_group.entry(key).or_insert_with(|| census.of_group(&labels));
            check_full(SeriesLimit::PerGroup, *count, max, || format!("group {labels}"))?;
            group_count = Some(count);
        }
        if let Some(per_second) = self.limits.new_series_per_second_max {
            if self.tokens < TOKEN {
                let retry_after_ms = (TOKEN - self.tokens).div_ceil(per_second.max(1));
                let what = format!(
                    "new series refused: more than {per_second} per second \
                     (new_series_per_second_max); send them again later or raise the limit"
                );
                return Err(refusal(SeriesLimit::PerSecond, retry_after_ms, what));
            }
            self.tokens -= TOKEN;
        }
        // Count the series only after all checks.
        for count in [metric_count, group_count].into_iter().flatten() {
            *count += 1;
        }
        Ok(())
    }
}

fn check_full(
    limit: SeriesLimit,
    count: u64,
    max: u64,
    of: impl FnOnce() -> String,
) -> Result<(), (SeriesLimit, Error)> {
    if count < max {
        return Ok(());
    }
    let what = format!(
        "new series refused: {} has {count} series, the limit is {max} ({}); raise the limit, \
         send fewer label sets, or delete series and clean up (clean_tombstones)",
        of(),
        limit.name()
    );
    Err(refusal(limit, FULL_RETRY_AFTER_MS, what))
}

fn refusal(limit: SeriesLimit, retry_after_ms: u64, what: String) -> (SeriesLimit, Error) {
    (limit, Error::new(ErrorKind::SeriesLimit { limit, retry_after_ms }, what))
}

fn tokens_max(per_second: Option<u64>) -> u64 {
    per_second.unwrap_or(0).saturating_mul(BURST_SECONDS * TOKEN)
}

/// Counts over `active`, which the caller has locked, and all other segments of `version`.
pub(crate) struct SegmentCensus<'a> {
    version: &'a IndexVersion,
    active: &'a MemoryIndex,
    /// Locked before the limits: see the order of locks of `Index`.
    frozen: SmallVec<[RwLockReadGuard<'a, MemoryIndex>; 1]>,
}

impl<'a> SegmentCensus<'a> {
    pub(crate) fn new(version: &'a IndexVersion, active: &'a MemoryIndex) -> SegmentCensus<'a> {
        let frozen = version.frozen.iter().map(|layer| layer.memory.read()).collect();
        SegmentCensus { version, active, frozen }
    }

    /// Adds up over all segments. A damaged segment counts as 0: a lookup in it fails, so no series
    /// is defined past it.
    fn sum(
        &self,
        in_memory: impl Fn(&MemoryIndex) -> u64,
        sealed: impl Fn(&Sealed) -> Result<u64>,
    ) -> u64 {
        let frozen = self.frozen.iter().map(|memory| in_memory(memory));
        let files = self.version.sealed.iter().map(|segment| sealed(&segment.sealed).unwrap_or(0));
        in_memory(self.active) + frozen.sum::<u64>() + files.sum::<u64>()
    }
}

impl Census for SegmentCensus<'_> {
    fn series(&self) -> u64 {
        self.sum(MemoryIndex::series_count, |sealed| Ok(sealed.series_count()))
    }

    fn of_metric(&self, name: &str) -> u64 {
        self.sum(
            |memory| memory.pair_series_count(METRIC_NAME, name),
            |sealed| sealed.pair_series_count(METRIC_NAME, name),
        )
    }

    fn of_group(&self, labels: &Labels) -> u64 {
        let hashed = HashedLabels::new(labels);
        self.sum(
            |memory| memory.group_series_count(labels),
            |sealed| sealed.group_series_count(&hashed),
        )
    }
}
