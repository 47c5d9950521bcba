//! Limits on new series: in all, of one metric, in one group, per second. Known series never come here.
//!
//! A limit that is not set costs nothing. Series of a metric or group are counted in the index once, when
//! the first new one comes, and from then on along; so a restart counts only what goes on growing.

use std::hash::BuildHasher;

use firn_model::{Error, ErrorKind, Labels, METRIC_NAME, Result, SeriesLimit, Timestamp};
use hashbrown::{DefaultHashBuilder, HashMap};

use crate::memory::index::MemoryIndex;
use crate::options::SeriesLimits;
use crate::sealed::{HashedLabels, Sealed};
use crate::version::IndexVersion;

/// A target that starts sends all its series in one request, and nothing for long before.
const BURST_SECONDS: u64 = 10;
// Nobody can tell when series will go; senders that retry should not do so often.
const FULL_RETRY_AFTER_MS: u64 = 60_000;
const TOKEN: u64 = 1_000;

/// How many series there are already. Asked once per metric or group, so it may look something up.
pub(crate) trait Census {
    /// Series in all.
    fn series(&self) -> u64;
    /// Series of a metric name.
    fn of_metric(&self, name: &str) -> u64;
    /// Members of all groups with exactly these labels, groups of one left out.
    fn of_group(&self, labels: &Labels) -> u64;
}

/// A label set that has no series yet.
pub(crate) struct NewSeries<'a> {
    pub(crate) metric: &'a str,
    /// The labels of the group that it would join, `None` if it becomes a group of one.
    pub(crate) group: Option<&'a dyn Fn() -> Labels>,
}

/// The limits and what they count.
#[derive(Debug)]
pub(crate) struct LimitCounters {
    limits: SeriesLimits,
    hasher: DefaultHashBuilder,
    /// Series by the hash of what they are counted under. Of 2^32 keys two share one, and then both are
    /// refused too early; that is no reason to keep their text.
    by_metric: HashMap<u64, u64>,
    by_group: HashMap<u64, u64>,
    /// New series that may come now, in thousandths, so that milliseconds divide without a rest.
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

    /// Whether one more series fits; it is counted then. If it is not defined after all, the caller
    /// calls [`LimitCounters::recount`].
    ///
    /// # Errors
    /// `SeriesLimit` with the limit that it breaks.
    pub(crate) fn admit(&mut self, new: &NewSeries<'_>, census: &impl Census) -> Result<()> {
        let checked = self.check(new, census);
        if let Err((limit, _)) = checked {
            self.refused[limit as usize] += 1;
        }
        checked.map_err(|(_, error)| error)
    }

    /// The time has come to `now_ms`. A clock that is set back stops nothing and gives nothing.
    pub(crate) fn tick(&mut self, now_ms: Timestamp) {
        let Some(per_second) = self.limits.new_series_per_second_max else { return };
        let elapsed_ms = now_ms.saturating_sub(self.refilled_ms.unwrap_or(now_ms)).max(0) as u64;
        self.refilled_ms = Some(now_ms);
        let tokens = self.tokens.saturating_add(elapsed_ms.saturating_mul(per_second));
        self.tokens = tokens.min(tokens_max(Some(per_second)));
    }

    /// Series went, or one did not come: counts are taken from the index again.
    pub(crate) fn recount(&mut self) {
        self.by_metric.clear();
        self.by_group.clear();
    }

    /// Refusals so far, by limit.
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
                    "more than {per_second} new series per second (new_series_per_second_max): new \
                     ones are refused, known ones go on; send them again later or raise the limit"
                );
                return Err(refusal(SeriesLimit::PerSecond, retry_after_ms, what));
            }
            self.tokens -= TOKEN;
        }
        // Only now is it certain that it comes.
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
        "{} has {count} series, the limit is {max} ({}); new series are refused, known ones go on: \
         raise the limit or send fewer label sets",
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

/// What is in `active`, which the caller has locked, and in all other segments of `version`.
pub(crate) struct SegmentCensus<'a> {
    pub(crate) version: &'a IndexVersion,
    pub(crate) active: &'a MemoryIndex,
}

impl SegmentCensus<'_> {
    /// Adds up over all segments. One that is damaged counts nothing: nobody gets past it to define a
    /// series anyway.
    fn sum(
        &self,
        in_memory: impl Fn(&MemoryIndex) -> u64,
        sealed: impl Fn(&Sealed) -> Result<u64>,
    ) -> u64 {
        let frozen = self.version.frozen.iter().map(|layer| in_memory(&layer.memory.read()));
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
