//! The scrapes of one target: their times, their request, and the rows of an answer.
//!
//! Neither waits nor connects: the caller starts a scrape when it is due, sends its request and
//! hands back the answer. So a simulated clock and network drive it as the real ones do.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_model::{
    Error, ErrorKind, Labels, Pool, Reservation, Result, RowBatch, STALE_NAN, SeriesRef, Timestamp,
    excerpt_within, is_stale_nan,
};

use super::{
    BodyFormat, ExposedLabels, ExtraReport, MetadataItem, Schedule, ScrapeCache, ScrapeCounts,
    ScrapeOptions, ScrapeReport, ScrapeRequest, ScrapedBody, SeriesSource,
};
use crate::config::ScrapeConfig;
use crate::relabel::LabelEditor;
use crate::targets::{Target, sample_labels};

#[cfg(test)]
mod tests;

/// The receiver of samples.
pub trait Store {
    /// References of series of a group, one for each of `members`, in order: their labels beside
    /// those of the group. Sets do not repeat.
    fn resolve_group(&mut self, group: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>>;

    /// References of other series.
    fn resolve(&mut self, series: &[Labels]) -> Vec<Result<SeriesRef>>;

    /// References are valid as long as this number is the same.
    fn generation(&self) -> u32;

    /// Metadata of a target's metric that is new or has changed.
    fn metadata(&mut self, target: &Labels, name: &str, item: MetadataItem<'_>);

    /// Makes a scrape durable and visible at once. Returns the number of samples that are left out,
    /// because their times are out of bounds.
    ///
    /// # Errors
    /// If nothing is written.
    fn write(&mut self, batch: &mut RowBatch) -> Result<u64>;
}

/// Memory that the scrapes of many targets use one after the other.
#[derive(Debug)]
pub struct ScrapeScratch {
    batch: RowBatch,
    editor: LabelEditor,
    /// The memory of one scrape: rows, and lines that changed.
    held: Reservation,
}

/// An answer of a target.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status with its text, as in `404 Not Found`.
    pub status: &'a str,
    /// `Content-Type`.
    pub content_type: Option<&'a str>,
    /// The unpacked body.
    pub body: &'a [u8],
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum FetchFailure {
    /// The unpacked body reached its limit.
    BodyLimit,
    /// Any other reason.
    Other(String),
}

/// The state of a target after its last scrape.
#[derive(Clone, Debug, Default)]
pub struct TargetStatus {
    /// When the scrape started; `None` before the first.
    pub last_scrape: Option<Timestamp>,
    /// Its duration.
    pub duration: Duration,
    /// Why it failed.
    pub error: Option<String>,
    /// Its numbers.
    pub counts: ScrapeCounts,
    /// Samples that were left out, because their times are out of bounds.
    pub out_of_bounds: u64,
    /// It failed because of its number of samples.
    pub exceeded_sample_limit: bool,
    /// It failed because of the size of its body.
    pub exceeded_body_limit: bool,
    /// It failed before there was a body: `scrape_failure_log_file` names it.
    pub has_no_body: bool,
}

impl TargetStatus {
    /// That of a target without a scrape.
    pub const NONE: TargetStatus = TargetStatus {
        last_scrape: None,
        duration: Duration::ZERO,
        error: None,
        counts: ScrapeCounts {
            scraped: 0,
            kept: 0,
            added: 0,
            repeated: 0,
            refused: 0,
            exemplars: 0,
        },
        out_of_bounds: 0,
        exceeded_sample_limit: false,
        exceeded_body_limit: false,
        has_no_body: false,
    };
}

/// The scrapes of one target.
#[derive(Debug)]
pub struct TargetScraper {
    job: Arc<ScrapeConfig>,
    target: Arc<Target>,
    /// The labels of the target's group.
    public: Labels,
    schedule: Schedule,
    cache: ScrapeCache,
    /// The memory of the cache and of the error.
    held: Reservation,
    generation: u32,
    /// Series that have left, with stale markers that could not be written.
    owed: Vec<SeriesRef>,
    /// The stale markers of the batch that is being written.
    marked: Vec<SeriesRef>,
    status: TargetStatus,
    /// When the last scrape began.
    begun: Option<Instant>,
    /// Scrapes until the target is steady again.
    unsteady_count: u32,
}

/// The values that the scrapers of a server share.
#[derive(Clone, Debug)]
pub struct ScrapeContext {
    /// See [`super::phase_seed`].
    pub phase_seed: u64,
    /// Memory of bodies, changed lines and caches.
    pub budget: firn_model::Budget,
}

impl ScrapeScratch {
    /// Memory from `budget`.
    pub fn new(budget: &firn_model::Budget) -> ScrapeScratch {
        ScrapeScratch {
            batch: RowBatch::default(),
            editor: LabelEditor::default(),
            held: budget.empty(Pool::Requests),
        }
    }

    /// The rows of the last scrape that was read.
    pub fn rows(&self) -> &RowBatch {
        &self.batch
    }

    /// Forgets the rows, and releases their memory if it is more than most scrapes need.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.batch.shrink_to(CELLS_KEPT);
        self.release_unused();
    }

    /// Releases the memory that the batch does not use.
    fn release_unused(&mut self) {
        let used = self.batch.heap_bytes();
        self.held.shrink_to(used);
    }
}

// A scrape of a steady target has at most as many new lines: they take milliseconds.
const STEADY_LINES_MAX: usize = 1_000;
// A target with more of them is not steady for this many scrapes: a pod that starts adds its
// series once.
const UNSTEADY_SCRAPES: u32 = 4;
// Rows that a worker's batch keeps room for between two scrapes.
const CELLS_KEPT: usize = 16 << 10;

impl TargetScraper {
    /// Scrapes of `target` after `now`.
    pub fn new(
        job: &Arc<ScrapeConfig>,
        target: Arc<Target>,
        context: &ScrapeContext,
        now: Timestamp,
    ) -> TargetScraper {
        let mut identity = target.labels.as_encoded().to_vec();
        identity.extend_from_slice(target.url(job).as_bytes());
        let hash = xxhash_rust::xxh3::xxh3_64(&identity);
        TargetScraper {
            job: Arc::clone(job),
            public: target.public_labels(),
            schedule: Schedule::new(target.interval, hash, context.phase_seed, now),
            target,
            cache: ScrapeCache::default(),
            held: context.budget.empty(Pool::Cache),
            generation: 0,
            owed: Vec::new(),
            marked: Vec::new(),
            status: TargetStatus::default(),
            begun: None,
            unsteady_count: 0,
        }
    }

    /// The target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The labels of its samples.
    pub fn public_labels(&self) -> &Labels {
        &self.public
    }

    /// The state after the last scrape.
    pub fn status(&self) -> &TargetStatus {
        &self.status
    }

    /// Replaces the error of the last scrape, which may quote the body, with `hide` of it.
    pub fn hide_in_error(&mut self, hide: impl Fn(&str) -> String) {
        if let Some(error) = &mut self.status.error {
            *error = hide(error);
        }
    }

    /// Its job.
    pub fn job(&self) -> &Arc<ScrapeConfig> {
        &self.job
    }

    /// The time between two scrapes.
    pub fn interval_ms(&self) -> i64 {
        self.schedule.interval_ms()
    }

    /// The time of the next scrape.
    pub fn next_at(&self) -> Timestamp {
        self.schedule.next_at()
    }

    /// See [`Schedule::follow_clock`].
    pub fn follow_clock(&mut self, now: Timestamp) {
        self.schedule.follow_clock(now);
    }

    /// The request of each scrape, by a client that calls itself `user_agent`. It is several times
    /// as large as the labels, so it exists only during the scrape.
    pub fn request(&self, user_agent: &str) -> ScrapeRequest {
        ScrapeRequest::new(&self.job, &self.target, user_agent)
    }

    /// A scrape starts. Returns the time of its samples.
    pub fn start(&mut self, now: Timestamp) -> Timestamp {
        let ts = self.schedule.start(now);
        self.status.last_scrape = Some(now);
        ts
    }

    /// A scrape begins at `now`. Returns the time since the previous one began.
    pub fn begin(&mut self, now: Instant) -> Option<Duration> {
        let previous = self.begun.replace(now)?;
        Some(now.saturating_duration_since(previous))
    }

    /// A scrape with the time `ts` has its answer. Its samples, stale markers and report are one
    /// batch, which is written. `elapsed` is the time since the start.
    ///
    /// # Errors
    /// If the batch is not written: its samples are lost, and its stale markers are written with
    /// the next scrape. A failed scrape is no error; see [`TargetScraper::status`].
    pub fn finish(
        &mut self,
        ts: Timestamp,
        answer: std::result::Result<Answer<'_>, FetchFailure>,
        elapsed: &dyn Fn() -> Duration,
        store: &mut dyn Store,
        scratch: &mut ScrapeScratch,
    ) -> Result<()> {
        let reported = self.read(ts, answer, elapsed, store, scratch);
        let written = store.write(&mut scratch.batch);
        self.written(&written);
        scratch.clear();
        reported.and(written.map(|_| ()))
    }

    /// The first part of [`TargetScraper::finish`]: the batch is [`ScrapeScratch::rows`]. The
    /// caller writes it, alone or with those of other targets, and then calls
    /// [`TargetScraper::written`].
    ///
    /// # Errors
    /// If a series of the report is refused. The batch has the other rows.
    pub fn read(
        &mut self,
        ts: Timestamp,
        answer: std::result::Result<Answer<'_>, FetchFailure>,
        elapsed: &dyn Fn() -> Duration,
        store: &mut dyn Store,
        scratch: &mut ScrapeScratch,
    ) -> Result<()> {
        scratch.batch.clear();
        self.follow_generation(store);
        let mut status =
            TargetStatus { last_scrape: self.status.last_scrape, ..TargetStatus::default() };
        let mut body_bytes = 0;
        match self.body(&answer) {
            Ok(body) => {
                body_bytes = i64::try_from(body.bytes.len()).unwrap_or(i64::MAX);
                let (counts, read) = self.read_body(ScrapedBody { ts, ..body }, store, scratch);
                status.counts = counts;
                if let Err(error) = read {
                    let is_sample_limit = *error.kind() == ErrorKind::TooLarge
                        && error.to_string().contains(super::SAMPLE_LIMIT_TEXT);
                    status.exceeded_sample_limit = is_sample_limit;
                    status.error = Some(error.to_string());
                    body_bytes = 0;
                    // The report may need the memory of the lines that are not written.
                    scratch.release_unused();
                }
            }
            Err(error) => {
                self.cache.mark_stale(ts, &mut scratch.batch);
                // A body of an unknown type is one.
                status.has_no_body = !answer.as_ref().is_ok_and(|answer| answer.status == "200 OK");
                status.exceeded_body_limit = matches!(answer, Err(FetchFailure::BodyLimit));
                if status.exceeded_body_limit {
                    body_bytes = -1;
                }
                status.error = Some(error);
            }
        }
        status.duration = elapsed();
        let reported = self.report(ts, &status, body_bytes, store, scratch);
        if !self.owed.is_empty() {
            self.mark_owed(ts, &mut scratch.batch);
        }
        self.marked = stale_series(&scratch.batch);
        self.status = status;
        self.hold_cache();
        reported
    }

    /// The batch of [`TargetScraper::read`] was written, without a number of samples whose times
    /// are out of bounds; or it is lost, and the next batch repeats its stale markers.
    pub fn written(&mut self, written: &Result<u64>) {
        match written {
            Ok(out_of_bounds) => self.status.out_of_bounds = *out_of_bounds,
            Err(_) => self.owed = std::mem::take(&mut self.marked),
        }
        self.marked = Vec::new();
        self.hold_cache();
    }

    /// The end of the target: stale markers at `ts` for its series and reports, except for those
    /// that `is_alive`, because another target has them now.
    ///
    /// # Errors
    /// If they are not written. The caller may call it again; see [`TargetScraper::is_ended`].
    pub fn end(
        &mut self,
        ts: Timestamp,
        is_alive: &dyn Fn(SeriesRef) -> bool,
        store: &mut dyn Store,
        scratch: &mut ScrapeScratch,
    ) -> Result<()> {
        scratch.batch.clear();
        self.follow_generation(store);
        self.cache.stop(ts, &mut scratch.batch);
        self.owed.drain(..).for_each(|series| scratch.batch.push(series, ts, STALE_NAN));
        scratch.batch.retain(|cell| !is_alive(SeriesRef { group: cell.group, slot: cell.slot }));
        let written =
            if scratch.batch.is_empty() { Ok(0) } else { store.write(&mut scratch.batch) };
        if written.is_err() {
            self.owed = stale_series(&scratch.batch);
        }
        scratch.batch.clear();
        written.map(|_| ())
    }

    /// The series of the last scrape and of its report.
    pub fn live_series(&self, series: &mut HashSet<SeriesRef>) {
        self.cache.live_series(series);
    }

    /// At most this many are added by [`TargetScraper::live_series`].
    pub fn live_count(&self) -> usize {
        self.cache.live_count()
    }

    /// Whether the lines of an earlier scrape are known, and none of the last ones had many new
    /// lines: then the next one probably has few of them.
    pub fn is_steady(&self) -> bool {
        self.cache.line_count() > 0 && self.unsteady_count == 0
    }

    /// Whether there is nothing to mark: no scrape yet, or the end was written.
    pub fn is_ended(&self) -> bool {
        self.cache.is_ended() && self.owed.is_empty()
    }

    /// Continues the series of `old`, a scraper of the same target before its job changed: its
    /// next scrape marks those stale that it does not have.
    pub fn take_over(&mut self, old: TargetScraper) {
        self.status = old.status;
        self.generation = old.generation;
        self.cache = old.cache;
        self.owed = old.owed;
        self.held = old.held;
        if old.job != self.job || old.target.labels != self.target.labels {
            self.cache.forget_labels();
        }
    }

    fn follow_generation(&mut self, store: &dyn Store) {
        let generation = store.generation();
        if generation != self.generation {
            self.generation = generation;
            self.cache.forget_references();
            // Their samples are old: nothing shows them as current for long.
            self.owed.clear();
        }
    }

    /// The body of an answer, or the text of an error.
    fn body<'a>(
        &self,
        answer: &std::result::Result<Answer<'a>, FetchFailure>,
    ) -> std::result::Result<ScrapedBody<'a>, String> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(FetchFailure::BodyLimit) => return Err("body size limit exceeded".to_owned()),
            Err(FetchFailure::Other(text)) => return Err(text.clone()),
        };
        if answer.status != "200 OK" {
            let shown = excerpt_within(answer.status, 100);
            return Err(format!("server returned HTTP status {shown}"));
        }
        let fallback = self.job.fallback_scrape_protocol.as_ref();
        let format = match answer.body {
            // Nothing to parse: the type does not matter.
            [] => BodyFormat::Text,
            _ => {
                BodyFormat::of(answer.content_type, fallback).map_err(|error| error.to_string())?
            }
        };
        Ok(ScrapedBody { bytes: answer.body, format, ts: 0 })
    }

    fn read_body(
        &mut self,
        body: ScrapedBody<'_>,
        store: &mut dyn Store,
        scratch: &mut ScrapeScratch,
    ) -> (ScrapeCounts, Result<()>) {
        let ScrapeScratch { batch, editor, held } = scratch;
        let TargetScraper { job, target, public, cache, unsteady_count, .. } = self;
        let options = ScrapeOptions::of(job);
        let is_first = cache.line_count() == 0;
        let mut source = TargetSeries { job, target, public, editor, store, new_line_count: 0 };
        let read = cache.scrape(body, &options, &mut source, batch, held);
        *unsteady_count = match !is_first && source.new_line_count > STEADY_LINES_MAX {
            true => UNSTEADY_SCRAPES,
            false => unsteady_count.saturating_sub(1),
        };
        read
    }

    /// Adds the report.
    fn report(
        &mut self,
        ts: Timestamp,
        status: &TargetStatus,
        body_bytes: i64,
        store: &mut dyn Store,
        scratch: &mut ScrapeScratch,
    ) -> Result<()> {
        let extra = self.job.extra_scrape_metrics.unwrap_or_default().then(|| ExtraReport {
            timeout_s: Duration::from_millis(self.target.timeout.as_ms()).as_secs_f64(),
            sample_count_max: self.job.sample_limit,
            body_bytes,
        });
        let report = ScrapeReport {
            up: status.error.is_none(),
            duration_s: status.duration.as_secs_f64(),
            counts: status.counts,
            extra,
        };
        let ScrapeScratch { batch, editor, .. } = scratch;
        let TargetScraper { job, target, public, cache, .. } = self;
        let mut source = TargetSeries { job, target, public, editor, store, new_line_count: 0 };
        cache.report(ts, &report, public, &mut source, batch)
    }

    /// Adds the stale markers that an earlier batch has lost, except for series that are back.
    fn mark_owed(&mut self, ts: Timestamp, batch: &mut RowBatch) {
        let mut present: HashSet<SeriesRef> = HashSet::new();
        self.cache.live_series(&mut present);
        let written = batch.cells().iter();
        present.extend(written.map(|cell| SeriesRef { group: cell.group, slot: cell.slot }));
        let gone = self.owed.drain(..).filter(|series| !present.contains(series));
        gone.for_each(|series| batch.push(series, ts, STALE_NAN));
    }

    /// Counts the memory of the cache and of the error, which exists already.
    fn hold_cache(&mut self) {
        let owed_count = self.owed.capacity().saturating_add(self.marked.capacity());
        let owed_bytes = owed_count.saturating_mul(size_of::<SeriesRef>());
        let error_bytes = self.status.error.as_ref().map_or(0, String::capacity);
        let bytes = self.cache.heap_bytes().saturating_add(owed_bytes).saturating_add(error_bytes);
        self.held.take_exactly(bytes as u64);
    }
}

/// The series of the stale markers in `batch`.
fn stale_series(batch: &RowBatch) -> Vec<SeriesRef> {
    let stale = batch.cells().iter().filter(|cell| is_stale_nan(cell.value));
    stale.map(|cell| SeriesRef { group: cell.group, slot: cell.slot }).collect()
}

/// The labels of a member of `group`, without those of the group. `None` if the series is no
/// member. O(labels): both are sorted.
fn labels_beside(labels: &Labels, group: &Labels) -> Option<Labels> {
    let mut wanted = group.iter_bytes().peekable();
    let own = labels.iter_bytes().filter(|pair| wanted.next_if_eq(pair).is_none());
    let own: Vec<_> = own.collect();
    let is_member = wanted.peek().is_none() && !group.is_empty() && !own.is_empty();
    is_member.then(|| Labels::from_sorted(own))
}

/// Labels and references of a target's series.
struct TargetSeries<'s> {
    job: &'s ScrapeConfig,
    target: &'s Target,
    public: &'s Labels,
    editor: &'s mut LabelEditor,
    store: &'s mut dyn Store,
    /// Lines whose labels were made.
    new_line_count: usize,
}

impl SeriesSource for TargetSeries<'_> {
    fn labels(&mut self, exposed: &ExposedLabels) -> Result<Option<Labels>> {
        self.new_line_count = self.new_line_count.saturating_add(1);
        let pairs: Vec<(&str, &str)> = exposed.iter().collect();
        let rules = self.job.metric_relabel_configs.rules();
        sample_labels(&pairs, &self.target.labels, self.job.honor_labels, rules, self.editor)
    }

    /// Series with the labels of the target are members of its group. Others, after relabelling or
    /// with `honor_labels`, are not.
    fn resolve(&mut self, new: &[Labels]) -> Vec<Result<SeriesRef>> {
        let (mut members, mut others) = (Vec::new(), Vec::new());
        let split = |labels: &Labels| match labels_beside(labels, self.public) {
            Some(own) => {
                members.push(own);
                true
            }
            None => {
                others.push(labels.clone());
                false
            }
        };
        let are_members: Vec<bool> = new.iter().map(split).collect();
        let resolved = |found: Vec<Result<SeriesRef>>| found.into_iter();
        let mut members = match members.is_empty() {
            true => resolved(Vec::new()),
            false => resolved(self.store.resolve_group(self.public, &members)),
        };
        let mut others = match others.is_empty() {
            true => resolved(Vec::new()),
            false => resolved(self.store.resolve(&others)),
        };
        let missing = || Err(Error::internal("the store has resolved too few series"));
        are_members
            .into_iter()
            .map(|is_member| {
                let found = if is_member { members.next() } else { others.next() };
                found.unwrap_or_else(missing)
            })
            .collect()
    }

    fn metadata(&mut self, name: &str, item: MetadataItem<'_>) {
        self.store.metadata(self.public, name, item);
    }
}
