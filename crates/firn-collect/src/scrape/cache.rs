//! The cache of a target: from a body to a row with a comparison and a number per unchanged line.
//!
//! The cache keeps the series texts of the last good body in order, each with its reference. A
//! body is walked beside them. As long as each line begins with the text that is expected next,
//! its reference is that of the text (`Walk::Unchanged`). The first other line starts a new list
//! (`Changed`): known texts are found by hash, new ones are parsed, relabelled and resolved, and at
//! the end the new list replaces the old one. Series of the old list alone become stale.

use std::collections::HashSet;

use firn_model::{
    Cell, Error, GroupId, Labels, METRIC_NAME, Reservation, Result, RowBatch, STALE_NAN, SeriesRef,
    Slot, Timestamp,
};

use super::held::Held;
use super::labels::ExposedLabels;
use super::negotiate::BodyFormat;
use super::protobuf::to_text;
use super::text::{BoundLabel, Entry, MetadataItem, Parser, SampleLine};
use super::texts::{Item, Texts, hash};
use crate::config::ScrapeConfig;
use crate::relabel::NameScheme;

mod changed;
mod index;
#[cfg(test)]
mod tests;

use changed::Changed;

/// The caller's part of a scrape: labels and references for lines that the cache does not know.
pub trait SeriesSource {
    /// The labels to store: those of the line with those of the target, relabelled. `None` drops
    /// the series.
    ///
    /// # Errors
    /// Any error fails the scrape.
    fn labels(&mut self, exposed: &ExposedLabels) -> Result<Option<Labels>>;

    /// References of new series, one for each label set, in order. Sets do not repeat. A series
    /// with an error is left out of this scrape.
    fn resolve(&mut self, new: &[Labels]) -> Vec<Result<SeriesRef>>;

    /// Metadata in a run of comment lines that has changed: the family's name and the item.
    fn metadata(&mut self, name: &str, item: MetadataItem<'_>);
}

/// A body to read.
#[derive(Clone, Copy, Debug)]
pub struct ScrapedBody<'a> {
    /// The body, unpacked.
    pub bytes: &'a [u8],
    /// Its format.
    pub format: BodyFormat,
    /// The time of its samples that have none of their own.
    pub ts: Timestamp,
}

/// The settings of a job that concern the samples of a body. A limit of 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct ScrapeOptions {
    /// Samples keep their own times.
    pub honor_timestamps: bool,
    /// Series with own times become stale too.
    pub track_timestamps_staleness: bool,
    /// The metric and label names that are allowed.
    pub names: NameScheme,
    /// Samples after relabelling.
    pub sample_count_max: u64,
    /// Labels of a series, with those of its target.
    pub label_count_max: u64,
    /// Bytes of a label name.
    pub label_name_bytes_max: u64,
    /// Bytes of a label value.
    pub label_value_bytes_max: u64,
}

impl ScrapeOptions {
    /// Those of `job`.
    pub fn of(job: &ScrapeConfig) -> ScrapeOptions {
        ScrapeOptions {
            honor_timestamps: job.honor_timestamps,
            track_timestamps_staleness: job.track_timestamps_staleness,
            names: job.metric_name_validation_scheme,
            sample_count_max: job.sample_limit,
            label_count_max: job.label_limit,
            label_name_bytes_max: job.label_name_length_limit,
            label_value_bytes_max: job.label_value_length_limit,
        }
    }
}

/// The numbers that a scrape reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrapeCounts {
    /// Samples in the body: `scrape_samples_scraped`.
    pub scraped: u64,
    /// Of these, samples that relabelling kept: `scrape_samples_post_metric_relabeling`.
    pub kept: u64,
    /// Series that the last good scrape did not have: `scrape_series_added`.
    pub added: u64,
    /// Samples of a series and time that an earlier line has; the earlier one is stored.
    pub repeated: u64,
    /// Samples of series that could not be resolved.
    pub refused: u64,
    /// Exemplars, which are not stored.
    pub exemplars: u64,
}

// The memory of a line that is not where the last body had it, beside its text: a member and a
// sample, each in a list that grows to twice its length; until new series are resolved its text in
// a table, then its row and an entry of the set that finds repeated series.
// `firn-bench/tests/scrape_memory.rs` measures this and the next two.
const LINE_BYTES: usize = 2 * (size_of::<(u32, Timestamp, f64)>() + size_of::<Member>()) + 96;
// The memory of a sample among those that were seen: a place of a set that is at least seven
// sixteenths full.
const REPEATED_BYTES: usize = 3 * size_of::<(SeriesRef, Timestamp)>();
// The memory of a text of the last body that is looked up, beside two copies of it.
const OLD_TEXT_BYTES: usize = 96;
// The memory of labels that are not resolved yet, beside their bytes: two counts, a place in a list
// that grows to twice its length, in a table, and in the list of references.
const PENDING_BYTES: usize = 2 * size_of::<Labels>() + size_of::<Option<SeriesRef>>() + 32;
// Label sets that are resolved together. The caller needs a few times their memory until it
// returns, with a text for each that is refused.
const RESOLVED_COUNT_MAX: usize = 1_024;
// Pending label sets that take less are not resolved early: the memory would last for few lines.
const PIECE_BYTES_MIN: u64 = 128 << 10;

// Size of the buffer for the labels of a line that is kept between two scrapes.
const LABELS_BYTES_KEPT: usize = 1 << 10;

/// The numbers of a scrape that are stored as series of the target.
#[derive(Clone, Copy, Debug)]
pub struct ScrapeReport {
    /// Whether the scrape succeeded.
    pub up: bool,
    /// Its duration, storing included.
    pub duration_s: f64,
    /// The counts.
    pub counts: ScrapeCounts,
    /// More series, with `extra_scrape_metrics`.
    pub extra: Option<ExtraReport>,
}

/// The series of `extra_scrape_metrics`.
#[derive(Clone, Copy, Debug)]
pub struct ExtraReport {
    /// `scrape_timeout_seconds`.
    pub timeout_s: f64,
    /// `scrape_sample_limit`.
    pub sample_count_max: u64,
    /// `scrape_body_size_bytes`: the unpacked body, 0 if the scrape failed, -1 over its limit.
    pub body_bytes: i64,
}

const REPORT_NAMES: [&str; 8] = [
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
    "scrape_timeout_seconds",
    "scrape_sample_limit",
    "scrape_body_size_bytes",
];

/// The series of one target. About 30 bytes per series; see [`ScrapeCache::heap_bytes`].
#[derive(Debug, Default)]
pub struct ScrapeCache {
    texts: Texts,
    /// One for each text.
    members: Vec<Member>,
    /// The groups of members: one, or a few for a target of more than 4,096 series.
    groups: Vec<GroupId>,
    /// The format of the texts; `None` if they must not be compared any more.
    format: Option<BodyFormat>,
    /// Whether the members' newest samples are those of the last scrape, not stale markers.
    is_live: bool,
    has_repeats: bool,
    /// The new series of the last scrape, if it failed.
    failed: NewSeries,
    report: Vec<SeriesRef>,
    labels: ExposedLabels,
}

/// New series of a body: their number, and a hash of their texts in order of lines. Prometheus
/// keeps the series of a failed scrape, so that the next scrape does not count them as added again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NewSeries {
    count: u64,
    hash: u64,
}

/// The series of a text.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// Its slot; for a member that is not resolved yet the index of its labels.
    slot: u32,
    /// The index of its group, above eight bits of flags.
    bits: u32,
}

/// The last sample had the time of the scrape, or `track_timestamps_staleness` is set.
const TRACKED: u32 = 1;
/// Relabelling drops the series.
const DROPPED: u32 = 2;
/// The series could not be resolved.
const REFUSED: u32 = 4;
/// An earlier line of the body has the series too.
const REPEATED: u32 = 8;
/// The series is resolved after the walk.
const PENDING: u32 = 16;
const BOUND_SHIFT: u32 = 5;
const GROUP_SHIFT: u32 = 8;

impl Member {
    fn has(self, flag: u32) -> bool {
        self.bits & flag != 0
    }

    /// Whether samples of the series are stored.
    fn is_stored(self) -> bool {
        self.bits & (DROPPED | REFUSED) == 0
    }

    /// Whether the last sample had no time of its own and is stored.
    fn is_plain(self) -> bool {
        self.bits & (TRACKED | DROPPED | REFUSED | REPEATED) == TRACKED
    }

    fn set(&mut self, flag: u32, on: bool) {
        self.bits = if on { self.bits | flag } else { self.bits & !flag };
    }

    fn bound_label(self) -> BoundLabel {
        match self.bits >> BOUND_SHIFT & 3 {
            1 => BoundLabel::Le,
            2 => BoundLabel::Quantile,
            _ => BoundLabel::None,
        }
    }

    fn group_idx(self) -> usize {
        (self.bits >> GROUP_SHIFT) as usize
    }
}

impl ScrapeOptions {
    /// `sample_count_max` without its special value.
    fn stored_count_max(&self) -> u64 {
        if self.sample_count_max == 0 { u64::MAX } else { self.sample_count_max }
    }
}

impl ScrapeCache {
    /// Reads a body into `batch`, which the caller has cleared: a sample for each line, and stale
    /// markers for series that the last scrape had and this one has not. The memory of the batch
    /// and of lines that changed is reserved in `held`, which only grows.
    ///
    /// If the scrape fails, the batch contains stale markers for all series of the last scrape.
    /// The counts are those before the error. An empty body is a good scrape of nothing.
    ///
    /// # Errors
    /// `Invalid` with the line of the first mistake, or for labels that are not allowed;
    /// `TooLarge` over a limit of `options`; `Busy` without memory.
    pub fn scrape(
        &mut self,
        body: ScrapedBody<'_>,
        options: &ScrapeOptions,
        source: &mut dyn SeriesSource,
        batch: &mut RowBatch,
        held: &mut Reservation,
    ) -> (ScrapeCounts, Result<()>) {
        let ScrapedBody { bytes, format, ts } = body;
        let mut held = Held { reservation: held, bytes: 0 };
        // A batch grows to twice its rows at most. Unchanged bodies have as many as the last one,
        // and so do stale markers.
        let repeated_bytes = if self.has_repeats { REPEATED_BYTES } else { 0 };
        let row_bytes = size_of::<Cell>().saturating_mul(2).saturating_add(repeated_bytes);
        let reserved = held.add(self.members.len().saturating_mul(row_bytes));
        if bytes.is_empty() {
            self.mark_stale(ts, batch);
            return (ScrapeCounts::default(), Ok(()));
        }
        if self.format != Some(format) {
            // A text has other labels in another format. The old members still become stale.
            self.format = None;
        }
        let counts = ScrapeCounts::default();
        let (new, failed) = (NewSeries::default(), self.failed);
        let mut scrape =
            Scrape { ts, options, source, batch, counts, held, new, failed, known_count: 0 };
        let read = match reserved.and_then(|()| self.walk(bytes, format, &mut scrape)) {
            Ok(Some(changed)) => self.apply(changed, &mut scrape),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        let Scrape { batch, mut counts, new, known_count, .. } = scrape;
        counts.added = counts.added.saturating_sub(known_count);
        self.failed = if read.is_ok() { NewSeries::default() } else { new };
        match &read {
            Ok(()) => {
                self.format = Some(format);
                self.is_live = true;
                if self.has_repeats {
                    counts.repeated = drop_repeated(batch);
                }
            }
            Err(_) => {
                batch.clear();
                self.mark_stale(ts, batch);
            }
        }
        (counts, read)
    }

    /// Adds stale markers for all series of the last scrape: it failed to produce a body, or the
    /// target was removed. Without effect if they were added before.
    pub fn mark_stale(&mut self, ts: Timestamp, batch: &mut RowBatch) {
        if std::mem::take(&mut self.is_live) {
            let is_marked = |m: &&Member| m.has(TRACKED) && m.is_stored() && !m.has(REPEATED);
            for member in self.members.iter().filter(is_marked) {
                batch.push(self.series(*member), ts, STALE_NAN);
            }
        }
    }

    /// Adds stale markers for the series of a removed target, those of reports included.
    pub fn stop(&mut self, ts: Timestamp, batch: &mut RowBatch) {
        self.mark_stale(ts, batch);
        for series in self.report.drain(..) {
            batch.push(series, ts, STALE_NAN);
        }
    }

    /// Adds the numbers of a scrape as series with the labels of the target.
    ///
    /// # Errors
    /// The first series that cannot be resolved; the others are added.
    pub fn report(
        &mut self,
        ts: Timestamp,
        report: &ScrapeReport,
        target: &Labels,
        source: &mut dyn SeriesSource,
        batch: &mut RowBatch,
    ) -> Result<()> {
        let count = if report.extra.is_some() { 8 } else { 5 };
        if self.report.len() != count {
            let names = REPORT_NAMES.iter().take(count);
            let labels: Vec<Labels> = names.map(|name| target.with(METRIC_NAME, name)).collect();
            self.report = source.resolve(&labels).into_iter().collect::<Result<_>>()?;
        }
        let counts = &report.counts;
        let extra = report.extra.as_ref();
        let values = [
            f64::from(u8::from(report.up)),
            report.duration_s,
            counts.scraped as f64,
            counts.kept as f64,
            counts.added as f64,
            extra.map_or(0.0, |extra| extra.timeout_s),
            extra.map_or(0.0, |extra| extra.sample_count_max as f64),
            extra.map_or(0.0, |extra| extra.body_bytes as f64),
        ];
        for (&series, value) in self.report.iter().zip(values) {
            batch.push(series, ts, value);
        }
        Ok(())
    }

    /// Whether [`ScrapeCache::stop`] would add nothing.
    pub fn is_ended(&self) -> bool {
        !self.is_live && self.report.is_empty()
    }

    /// Adds the series of the last good scrape, and those of reports, to `series`.
    pub fn live_series(&self, series: &mut HashSet<SeriesRef>) {
        if self.is_live {
            let stored = self.members.iter().filter(|member| member.is_stored());
            series.extend(stored.map(|member| self.series(*member)));
        }
        series.extend(&self.report);
    }

    /// At most this many are added by [`ScrapeCache::live_series`].
    pub fn live_count(&self) -> usize {
        self.members.len().saturating_add(self.report.len())
    }

    /// Forgets which labels the texts have, because the rules have changed: the next scrape reads
    /// every line again, and series that it does not have become stale.
    pub fn forget_labels(&mut self) {
        self.format = None;
    }

    /// Forgets the references, because the database has issued others: the next scrape resolves
    /// every series again.
    pub fn forget_references(&mut self) {
        self.format = None;
        self.report.clear();
    }

    /// Lines that the cache knows, those of dropped series included.
    pub fn line_count(&self) -> usize {
        self.members.len()
    }

    /// Bytes of heap memory.
    pub fn heap_bytes(&self) -> usize {
        let members = self.members.capacity().saturating_mul(size_of::<Member>());
        let groups = self.groups.capacity().saturating_mul(size_of::<GroupId>());
        let lists = members.saturating_add(groups).saturating_add(self.labels.heap_bytes());
        self.texts.heap_bytes().saturating_add(lists)
    }

    fn series(&self, member: Member) -> SeriesRef {
        let group = self.groups.get(member.group_idx()).copied().unwrap_or(GroupId(u64::MAX));
        SeriesRef { group, slot: Slot(member.slot) }
    }

    /// Walks over a body. Returns the new list if the body differs from the last one.
    fn walk(
        &mut self,
        body: &[u8],
        format: BodyFormat,
        scrape: &mut Scrape<'_>,
    ) -> Result<Option<Changed>> {
        let labels = std::mem::take(&mut self.labels);
        let transcoded;
        let (body, mut parser) = if format == BodyFormat::Protobuf {
            (transcoded, scrape.counts.exemplars) = to_text(body, &mut scrape.held)?;
            (transcoded.as_slice(), Parser::of_protobuf(&transcoded, labels))
        } else {
            (body, Parser::new(body, format == BodyFormat::OpenMetrics, labels))
        };
        let mut walk = Walk::new(self, body, scrape);
        let read = walk.lines(&mut parser);
        let changed = walk.changed;
        self.labels = parser.into_labels();
        self.labels.shrink_to(LABELS_BYTES_KEPT);
        read.map(|()| changed)
    }

    /// Replaces the texts by those of a changed body.
    fn apply(&mut self, mut changed: Changed, scrape: &mut Scrape<'_>) -> Result<()> {
        if changed.stored_count > scrape.options.stored_count_max() {
            return Err(over_sample_limit());
        }
        changed.resolve_pending(scrape);
        changed.forget_texts();
        self.groups = std::mem::take(&mut changed.groups);
        self.has_repeats = mark_repeated(&mut changed.members);
        scrape.batch.reserve(changed.cells.len());
        for &(idx, ts, value) in &changed.cells {
            let Some(&member) = changed.members.get(idx as usize) else { continue };
            if member.has(REFUSED) {
                scrape.counts.refused = scrape.counts.refused.saturating_add(1);
            } else {
                scrape.batch.push(self.series(member), ts, value);
            }
        }
        self.mark_gone(&changed, scrape.ts, scrape.batch);
        self.texts = changed.texts;
        self.texts.shrink();
        self.members = changed.members;
        self.members.shrink_to_fit();
        self.forget_unused_groups();
        Ok(())
    }

    /// Removes groups without members, once most are: with `honor_labels`, each new series may have
    /// a group of its own.
    fn forget_unused_groups(&mut self) {
        const UNUSED_MIN: usize = 64;
        let (group_count, member_count) = (self.groups.len(), self.members.len());
        if group_count < member_count.saturating_mul(2).saturating_add(UNUSED_MIN) {
            return;
        }
        let mut places: Vec<Option<u32>> = vec![None; group_count];
        let mut used = Vec::new();
        for member in &mut self.members {
            let Some(place) = places.get_mut(member.group_idx()) else { continue };
            let idx = *place.get_or_insert_with(|| {
                used.extend(self.groups.get(member.group_idx()));
                u32::try_from(used.len()).unwrap_or(u32::MAX).saturating_sub(1)
            });
            let flags = member.bits & ((1 << GROUP_SHIFT) - 1);
            member.bits = idx << GROUP_SHIFT | flags;
        }
        self.groups = used;
    }

    /// Adds stale markers for tracked series of the last scrape that are not in the new list.
    fn mark_gone(&self, changed: &Changed, ts: Timestamp, batch: &mut RowBatch) {
        if !self.is_live {
            return;
        }
        let is_tracked = |member: &Member| member.has(TRACKED) && member.is_stored();
        let gone = self.members.iter().zip(&changed.visited).filter(|(member, visited)| {
            is_tracked(member) && (!**visited || changed.lost_tracking)
        });
        let mut gone = gone.map(|(member, _)| self.series(*member)).peekable();
        if gone.peek().is_none() {
            return;
        }
        let present: HashSet<SeriesRef> = changed
            .members
            .iter()
            .filter(|member| is_tracked(member))
            .map(|member| self.series(*member))
            .collect();
        let mut marked = HashSet::new();
        for series in gone.filter(|series| !present.contains(series)) {
            if marked.insert(series) {
                batch.push(series, ts, STALE_NAN);
            }
        }
    }
}

/// One scrape: the arguments of the caller, and the counts so far.
struct Scrape<'s> {
    ts: Timestamp,
    options: &'s ScrapeOptions,
    source: &'s mut dyn SeriesSource,
    batch: &'s mut RowBatch,
    counts: ScrapeCounts,
    held: Held<'s>,
    /// Those of this scrape so far, and those of the last one if it failed.
    new: NewSeries,
    failed: NewSeries,
    /// New series that the last scrape had, which failed.
    known_count: u64,
}

impl Scrape<'_> {
    fn count_added(&mut self, text: &[u8]) {
        // Odd: the order of the texts changes the sum.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        self.counts.added = self.counts.added.saturating_add(1);
        self.new.count = self.new.count.saturating_add(1);
        self.new.hash = self.new.hash.wrapping_mul(FACTOR).wrapping_add(hash(text));
        if self.new == self.failed {
            self.known_count = self.new.count;
        }
    }
}

/// The walk over one body.
struct Walk<'w, 's> {
    cache: &'w ScrapeCache,
    body: &'w [u8],
    scrape: &'w mut Scrape<'s>,
    changed: Option<Changed>,
    /// The next known text: its index, its position, and the line that was equal to the one before
    /// it.
    idx: usize,
    at: usize,
    previous: &'w [u8],
    /// The text of the last line.
    last_line: &'w [u8],
    /// The first of the comment lines before the next line.
    comments_start: Option<usize>,
    /// Samples that count for the limit, as long as there is no new list.
    stored_count: u64,
    stored_count_max: u64,
}

/// A sample of the body.
struct LineSample<'w> {
    text: &'w [u8],
    ts: Timestamp,
    has_own_ts: bool,
    is_tracked: bool,
    value: f64,
}

impl<'w, 's> Walk<'w, 's> {
    fn new(cache: &'w ScrapeCache, body: &'w [u8], scrape: &'w mut Scrape<'s>) -> Walk<'w, 's> {
        Walk {
            cache,
            body,
            stored_count_max: scrape.options.stored_count_max(),
            scrape,
            changed: None,
            idx: 0,
            at: 0,
            previous: &[],
            last_line: &[],
            comments_start: None,
            stored_count: 0,
        }
    }

    fn lines(&mut self, parser: &mut Parser<'_>) -> Result<()> {
        let is_comparable = self.cache.format.is_some();
        loop {
            let item = self.cache.texts.item(self.at).filter(|_| is_comparable);
            let member = self.cache.members.get(self.idx).copied();
            let comments_known = self.comments(parser, item, member);
            let bound_label = parser.bound_label();
            let expected = item
                .zip(member)
                .filter(|(_, member)| !member.has(REFUSED) && member.bound_label() == bound_label);
            if comments_known
                && self.changed.is_none()
                && let Some((item, member)) = expected
                && self.plain_line(parser, item, member)
            {
                continue;
            }
            let previous = self.previous;
            let is_known =
                |rest: &[u8]| expected.map_or(0, |(item, _)| item.matches(previous, rest));
            let line = match parser.next(is_known)? {
                None => break,
                Some(Entry::Metadata(name, item)) => {
                    self.scrape.source.metadata(&name, item);
                    continue;
                }
                Some(Entry::Sample(line)) => line,
            };
            let sample = self.sample(&line);
            let expected = expected.filter(|_| line.known);
            if comments_known
                && self.changed.is_none()
                && let Some((item, member)) = expected
                && self.known_line(&sample, item, member)
            {
                continue;
            }
            self.changed_line(&line, sample, expected.map(|(item, _)| item), parser)?;
        }
        if self.changed.is_none() {
            if self.stored_count > self.stored_count_max {
                return Err(over_sample_limit());
            }
            if self.idx < self.cache.members.len() || !is_comparable {
                self.changed = Some(Changed::new(self.cache, self.idx, self.at, self.stored_count));
            }
        }
        Ok(())
    }

    /// Skips comment lines that are those before the next known text. Whether the comment lines
    /// before the next line are known.
    fn comments(
        &mut self,
        parser: &mut Parser<'_>,
        item: Option<Item<'_>>,
        member: Option<Member>,
    ) -> bool {
        let known = item.and_then(|item| item.comments);
        if !parser.at_comment() {
            return known.is_none() && self.comments_start.is_none();
        }
        let start = parser.at();
        let is_first = self.comments_start.is_none();
        self.comments_start.get_or_insert(start);
        let rest = self.body.get(start..).unwrap_or(&[]);
        if let (Some((len, wanted)), Some(member)) = (known, member)
            && is_first
            && self.changed.is_none()
            && rest.get(..len).is_some_and(|comments| hash(comments) == wanted)
        {
            parser.skip_known(len, member.bound_label());
            return !parser.at_comment();
        }
        false
    }

    /// The path of an unchanged line without a time. False for another line.
    #[inline]
    fn plain_line(&mut self, parser: &mut Parser<'_>, item: Item<'_>, member: Member) -> bool {
        if !member.is_plain() || self.stored_count >= self.stored_count_max {
            return false;
        }
        let start = parser.at();
        let len = item.matches(self.previous, parser.rest());
        let Some(value) = parser.plain_value(len) else { return false };
        let scrape = &mut *self.scrape;
        scrape.batch.push(self.cache.series(member), scrape.ts, value);
        scrape.counts.scraped = scrape.counts.scraped.saturating_add(1);
        scrape.counts.kept = scrape.counts.kept.saturating_add(1);
        self.stored_count = self.stored_count.saturating_add(1);
        let text = self.body.get(start..start.saturating_add(len)).unwrap_or(&[]);
        self.pass(text, item);
        true
    }

    /// The path of other unchanged lines: dropped, repeated or with a time. False if the series is
    /// tracked now and was not before, or the reverse.
    fn known_line(&mut self, sample: &LineSample<'w>, item: Item<'_>, member: Member) -> bool {
        if !member.has(DROPPED) {
            if member.has(TRACKED) != sample.is_tracked {
                return false;
            }
            let scrape = &mut *self.scrape;
            scrape.counts.kept = scrape.counts.kept.saturating_add(1);
            let is_repeat = member.has(REPEATED) && !sample.has_own_ts;
            self.stored_count = self.stored_count.saturating_add(u64::from(!is_repeat));
            if self.stored_count <= self.stored_count_max {
                scrape.batch.push(self.cache.series(member), sample.ts, sample.value);
            }
        }
        self.pass(sample.text, item);
        true
    }

    /// The line `text` was that of `item`.
    #[inline]
    fn pass(&mut self, text: &'w [u8], item: Item<'_>) {
        self.comments_start = None;
        self.idx = self.idx.saturating_add(1);
        self.at = item.next_at;
        (self.previous, self.last_line) = (text, text);
    }

    /// Counts the sample of a line.
    fn sample(&mut self, line: &SampleLine) -> LineSample<'w> {
        let scrape = &mut *self.scrape;
        let counts = &mut scrape.counts;
        counts.scraped = counts.scraped.saturating_add(1);
        counts.exemplars = counts.exemplars.saturating_add(u64::from(line.exemplar));
        let own_ts = line.ts.filter(|_| scrape.options.honor_timestamps);
        LineSample {
            text: self.body.get(line.series.clone()).unwrap_or(&[]),
            ts: own_ts.unwrap_or(scrape.ts),
            has_own_ts: own_ts.is_some(),
            is_tracked: own_ts.is_none() || scrape.options.track_timestamps_staleness,
            value: line.value,
        }
    }

    /// Any other line, and every line after the first of them. `expected` is set if the line has
    /// the next known text.
    fn changed_line(
        &mut self,
        line: &SampleLine,
        sample: LineSample<'w>,
        expected: Option<Item<'_>>,
        parser: &Parser<'_>,
    ) -> Result<()> {
        let cache = self.cache;
        if self.changed.is_none() {
            self.scrape.held.add(cache.heap_bytes().saturating_add(cache.members.len()))?;
        }
        let changed = self
            .changed
            .get_or_insert_with(|| Changed::new(cache, self.idx, self.at, self.stored_count));
        changed.hold(LINE_BYTES, self.scrape)?;
        changed.hold_text(sample.text, self.scrape)?;
        let bound_label = parser.bound_label();
        let known = match expected {
            Some(item) => Some((self.idx, item.next_at)),
            None if cache.format.is_some() => {
                changed.find_old(cache, sample.text, bound_label, &mut self.scrape.held)?
            }
            None => None,
        };
        let comments =
            self.comments_start.take().and_then(|start| self.body.get(start..line.series.start));
        changed.texts.push(comments.unwrap_or(&[]), self.last_line, sample.text);
        self.last_line = sample.text;
        let mut member = match known {
            Some((found, next_at)) => {
                (self.idx, self.at) = (found.saturating_add(1), next_at);
                self.previous = sample.text;
                if let Some(visited) = changed.visited.get_mut(found) {
                    *visited = true;
                }
                cache.members.get(found).copied().unwrap_or(Member { slot: 0, bits: REFUSED })
            }
            None => {
                let is_over = changed.stored_count > self.stored_count_max;
                changed.new_member(self.body, line, parser, is_over, self.scrape)?
            }
        };
        changed.lost_tracking |= member.has(TRACKED) && !sample.is_tracked;
        let was_repeat = member.has(REPEATED);
        member.set(TRACKED, sample.is_tracked);
        let member_idx = u32::try_from(changed.members.len()).unwrap_or(u32::MAX);
        changed.members.push(member);
        if !member.has(DROPPED) {
            let counts = &mut self.scrape.counts;
            counts.kept = counts.kept.saturating_add(1);
            let is_stored = !was_repeat || sample.has_own_ts;
            changed.stored_count = changed.stored_count.saturating_add(u64::from(is_stored));
            if changed.stored_count <= self.stored_count_max {
                changed.cells.push((member_idx, sample.ts, sample.value));
            }
        }
        Ok(())
    }
}

/// Marks members whose series an earlier one has; whether there is one.
fn mark_repeated(members: &mut [Member]) -> bool {
    let mut seen: HashSet<(u32, u32), foldhash::fast::RandomState> = HashSet::default();
    seen.reserve(members.len());
    let mut found = false;
    for member in members.iter_mut().filter(|member| member.is_stored()) {
        let is_repeated = !seen.insert((member.slot, member.bits >> GROUP_SHIFT));
        member.set(REPEATED, is_repeated);
        found |= is_repeated;
    }
    found
}

/// Removes samples of a series and time that an earlier sample has; their number.
fn drop_repeated(batch: &mut RowBatch) -> u64 {
    let before = batch.len();
    let mut seen: HashSet<(SeriesRef, Timestamp)> = HashSet::with_capacity(before);
    batch.retain(|cell| seen.insert((SeriesRef { group: cell.group, slot: cell.slot }, cell.ts)));
    before.saturating_sub(batch.len()) as u64
}

/// The text of the error for too many samples.
pub(super) const SAMPLE_LIMIT_TEXT: &str = "sample limit exceeded";

fn over_sample_limit() -> Error {
    Error::too_large(SAMPLE_LIMIT_TEXT)
}
