//! The write path that all protocols share: decoded series to references, to rows, to the database.
//!
//! Pass 1 was the walk (`wire`). Pass 2 looks up all hashes at once; labels are parsed only for
//! unknown ones, which are resolved together. Pass 3 fills one row batch, and one call makes it
//! durable.
//!
//! Nothing is allocated per sample; buffers are reused. A worker mostly waits for the log's device
//! and holds only its batch meanwhile: its decode buffers serve the next worker. So the number of
//! decode buffers is the largest number of workers that ever decoded at once.

pub mod groups;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::mem;
use std::sync::Arc;

use firn_collect::scrape::at_line;
use firn_model::{
    Error, ErrorKind, LabelLimits, Labels, LabelsBuilder, Pool, Reservation, Result, RowBatch,
    Sample, SeriesLimit, SeriesRef, Timestamp,
};
use parking_lot::Mutex;

use crate::access::account::TokenBucket;
use crate::metadata::MetadataStore;
use crate::sender_cache::SenderCache;
use crate::tally::{Reason, Tally};
use crate::wire::LabelFault;
use crate::wire::decoded::{Decoded, EncodedSeries, SpanHasher};
use crate::wire::exposition::ExtraLabels;
use crate::wire::{exposition, remote_write, snappy};
use firndb::Db;

/// State shared by all writers.
#[derive(Debug)]
pub struct Ingest {
    db: Arc<Db>,
    cache: Arc<SenderCache>,
    hasher: SpanHasher,
    limits: IngestLimits,
    /// A random number that identifies this run of the server; see `groups`.
    life: u64,
    /// Free decode buffers; the last one used is next.
    idle: Mutex<Vec<Decoding>>,
}

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// The limits of one label set.
    pub labels: LabelLimits,
    /// Bytes of one request, unpacked.
    pub request_bytes_max: usize,
    /// Series that the sender cache may know.
    pub cached_series_max: usize,
}

/// One worker's memory, reused for each request: the rows to write.
#[derive(Debug, Default)]
pub struct Scratch {
    batch: RowBatch,
    held: Option<Reservation>,
    /// The rate of new series of this request's user, if it is limited.
    pub(crate) new_series: Option<Arc<TokenBucket>>,
}

/// A decompressed and decoded request, with its memory reservation.
#[derive(Debug)]
struct Decoding {
    unpacked: Vec<u8>,
    work: Work,
    held: Reservation,
}

/// Intermediate results of the three passes.
#[derive(Debug, Default)]
struct Work {
    decoded: Decoded,
    /// The reference of each series, once it is known.
    found: Vec<Option<SeriesRef>>,
    /// Indexes of series that the cache did not know.
    unknown: Vec<u32>,
    /// Those of one piece of them, and their labels.
    piece: Vec<u32>,
    labels: Vec<Labels>,
    builder: LabelsBuilder,
    /// Memory of new series between index and log, until the request ends.
    new_bytes: u64,
    /// As [`Scratch::new_series`].
    new_series: Option<Arc<TokenBucket>>,
}

/// The outcome of a request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The tally of its samples.
    pub tally: Tally,
    /// Bytes of the request, unpacked.
    pub unpacked_bytes: u64,
    /// Exemplars that were accepted and dropped.
    pub exemplars_ignored: u64,
    /// Samples that were skipped, and the reasons.
    pub refused: RefusedParts,
    /// Set if samples were skipped for a retryable reason, or if the request failed after its
    /// samples were counted.
    pub error: Option<Error>,
    /// The generation of the references that its rows are written with.
    generation: u32,
}

/// The rules for the series of a request.
#[derive(Clone, Copy, Debug)]
struct SeriesRules {
    labels: LabelLimits,
    /// Whether the limits on new series apply.
    is_limited: bool,
}

/// Permanently refused parts of a request.
#[derive(Debug, Default)]
pub struct RefusedParts {
    /// Series whose labels break a rule.
    pub series_count: u64,
    /// Samples whose timestamps are out of bounds.
    pub time_count: u64,
    /// Native histogram samples.
    pub histogram_count: u64,
    first: Vec<String>,
}

/// The memory of a request.
struct DecodeMemory<'a> {
    /// All but the body.
    held: &'a mut Reservation,
    body_bytes: usize,
    unpacked_bytes: usize,
}

/// A protocol's parser for the labels that its walk located.
type ParseLabels<'a> =
    dyn Fn(&EncodedSeries, &mut LabelsBuilder) -> Result<Labels, LabelFault> + 'a;

/// The error of the request, from a series and the reason to refuse that.
type RefuseWhole<'a> = dyn Fn(&EncodedSeries, Error) -> Error + 'a;

/// The labels of the series of a request.
#[derive(Clone, Copy)]
struct SeriesLabels<'a> {
    parse: &'a ParseLabels<'a>,
    /// Bytes that each label set has beside those of its span in the request.
    added_bytes: u64,
    /// As [`SeriesRules::is_limited`].
    is_limited: bool,
    /// For a protocol that writes all or nothing: the error of a request with a refused series.
    refuse_whole: Option<&'a RefuseWhole<'a>>,
}

/// The mistake in the labels of a series.
struct SeriesFault {
    reason: Reason,
    why: Error,
    /// Whether it refuses the request as a whole.
    is_of_request: bool,
}

// Series named in an error; a few examples show the kind of mistake.
const NAMED_COUNT_MAX: usize = 3;
// Bytes of decode buffers kept for later requests: several of Prometheus' size, which is 2,000
// samples in 700 KB.
const KEPT_BYTES_MAX: u64 = 4 << 20;
// New series are rare; the list of their labels stays small between requests.
const LABELS_KEPT_MAX: usize = 1_024;
// The bytes of a new series' labels exist in the log's buffer until the end of the request. The
// buffer grows by doubling.
const DEFINITION_COPIES: u64 = 2;
// A label set beside its bytes, and its definition.
const NEW_SERIES_BYTES: u64 = 64;
// Unknown series that are resolved together, and whose label sets are in memory. Each that is
// refused has an error of some 300 bytes: 300,000 series of one request took 96 MB, outside of the
// budget.
const RESOLVED_AT_ONCE: usize = 4_096;
// Rows of a usual request, some 40 bytes each.
const CELLS_KEPT_MAX: usize = 4_096;

impl Ingest {
    /// Writers of `db`.
    pub fn new(db: Arc<Db>, limits: IngestLimits) -> Ingest {
        let cache = Arc::new(SenderCache::new(limits.cached_series_max, db.budget()));
        let giver = Arc::clone(&cache);
        db.add_reclaimer(giver);
        // `RandomState` is seeded by the operating system.
        let life = RandomState::new().build_hasher().finish();
        Ingest { db, cache, hasher: SpanHasher::random(), limits, life, idle: Mutex::default() }
    }

    /// The sender cache, for its metrics.
    pub fn cache(&self) -> &SenderCache {
        &self.cache
    }

    /// Writes a remote write 1.0 request, a snappy block: valid samples are written, others
    /// reported.
    ///
    /// # Errors
    /// If nothing of the request was counted: `Invalid` if block or message are malformed,
    /// `TooLarge` also if it never fits into the memory, `Busy` without memory.
    pub fn remote_write(
        &self,
        compressed: &[u8],
        scratch: &mut Scratch,
        metadata: &MetadataStore,
    ) -> Result<Outcome> {
        let bytes_max = self.limits.request_bytes_max;
        let declared_bytes = snappy::declared_bytes(compressed, bytes_max)?;
        let body_bytes = compressed.len();
        // The smallest meaningful sample takes 13 bytes of this protocol.
        let decoded_bytes_max = declared_bytes.saturating_mul(4);
        let mut decoding = self.begin(body_bytes, declared_bytes, decoded_bytes_max)?;
        let Decoding { unpacked, work, held } = &mut decoding;
        work.new_series = scratch.new_series.take();
        let body = snappy::decompress(compressed, bytes_max, unpacked)?;
        remote_write::decode(body, &self.hasher, &mut work.decoded)?;
        metadata.put(&mut work.decoded.metadata);
        let parse = |series: &EncodedSeries, builder: &mut LabelsBuilder| {
            remote_write::labels(body.get(series.span()).unwrap_or(&[]), builder)?;
            let built = builder.build(&self.limits.labels).and_then(with_name);
            built.map_err(LabelFault::Refused)
        };
        let labels =
            SeriesLabels { parse: &parse, added_bytes: 0, is_limited: true, refuse_whole: None };
        let memory = DecodeMemory { held, body_bytes, unpacked_bytes: body.len() };
        let mut outcome = self.fill(work, memory, labels, &mut scratch.batch);
        outcome.unpacked_bytes = body.len() as u64;
        outcome.exemplars_ignored = work.decoded.exemplar_count;
        self.end(decoding, scratch);
        Ok(self.write(outcome, &mut scratch.batch))
    }

    /// Writes a text exposition, all of it or nothing; samples without a time get `default_ts`.
    ///
    /// # Errors
    /// When nothing of the text was counted: `Invalid` with the line of the first mistake, and as
    /// [`Ingest::remote_write`].
    pub fn exposition(
        &self,
        text: &[u8],
        default_ts: Timestamp,
        extra: &ExtraLabels,
        scratch: &mut Scratch,
        metadata: &MetadataStore,
    ) -> Result<Outcome> {
        let rules = SeriesRules { labels: self.limits.labels, is_limited: true };
        self.exposition_by(rules, text, default_ts, extra, scratch, metadata)
    }

    /// As [`Ingest::exposition`], for the server's own metrics: limits on series and labels are for
    /// data of others.
    ///
    /// # Errors
    /// As [`Ingest::exposition`].
    pub fn own_exposition(
        &self,
        text: &[u8],
        ts: Timestamp,
        extra: &ExtraLabels,
        scratch: &mut Scratch,
        metadata: &MetadataStore,
    ) -> Result<Outcome> {
        let rules = SeriesRules { labels: LabelLimits::default(), is_limited: false };
        self.exposition_by(rules, text, ts, extra, scratch, metadata)
    }

    fn exposition_by(
        &self,
        rules: SeriesRules,
        text: &[u8],
        default_ts: Timestamp,
        extra: &ExtraLabels,
        scratch: &mut Scratch,
        metadata: &MetadataStore,
    ) -> Result<Outcome> {
        // A line is at most a series and a sample; the texts of metadata are copied.
        let line_count = lines_with_items(text);
        let bytes_max = text.len() * 2 + line_count * 2 * Decoded::ITEM_BYTES;
        let mut decoding = self.begin(text.len(), 0, bytes_max)?;
        let Decoding { work, held, .. } = &mut decoding;
        work.decoded.series.reserve_exact(line_count);
        work.decoded.samples.reserve_exact(line_count);
        work.new_series = scratch.new_series.take();
        let key = extra.key(&self.hasher);
        exposition::decode(text, default_ts, key, &self.hasher, &mut work.decoded)?;
        let times = self.db.accepted_times();
        for (series, samples) in work.decoded.iter() {
            let refused =
                samples.iter().find_map(|sample| Some((sample.ts, times.refusal(sample.ts)?)));
            if let Some((ts, refusal)) = refused {
                let at = series.span().start;
                let why = at_line(text, at, times.explain(ts, refusal));
                let mut outcome = Outcome::of(&work.decoded);
                outcome.tally.reject(Reason::of_time(refusal), 1);
                return Ok(outcome.failed(why, Reason::Request));
            }
        }
        let parse = |series: &EncodedSeries, builder: &mut LabelsBuilder| {
            exposition::labels(text, series.span(), extra, builder)?;
            builder.build(&rules.labels).map_err(LabelFault::Refused)
        };
        let refuse_whole =
            |series: &EncodedSeries, broken: Error| at_line(text, series.span().start, broken);
        metadata.put(&mut work.decoded.metadata);
        let (added_bytes, is_limited) = (extra.bytes(), rules.is_limited);
        let refuse_whole: Option<&RefuseWhole<'_>> = Some(&refuse_whole);
        let labels = SeriesLabels { parse: &parse, added_bytes, is_limited, refuse_whole };
        let memory = DecodeMemory { held, body_bytes: text.len(), unpacked_bytes: 0 };
        let mut outcome = self.fill(work, memory, labels, &mut scratch.batch);
        outcome.unpacked_bytes = text.len() as u64;
        self.end(decoding, scratch);
        Ok(self.write(outcome, &mut scratch.batch))
    }

    /// Pass 2 over the decoded request, and its rows in `batch`: none if the request failed.
    /// Replaces the estimated reservation by the actual size.
    fn fill(
        &self,
        work: &mut Work,
        memory: DecodeMemory<'_>,
        labels: SeriesLabels<'_>,
        batch: &mut RowBatch,
    ) -> Outcome {
        batch.clear();
        let mut outcome = Outcome::of(&work.decoded);
        let generation = self.db.generation();
        self.cache.look_up(generation, &work.decoded.series, &mut work.found);
        work.new_bytes = work.new_series_bytes(labels.added_bytes);
        let DecodeMemory { held, body_bytes, unpacked_bytes } = memory;
        let wanted = work.new_bytes.saturating_add((unpacked_bytes + work.needed_bytes()) as u64);
        held.shrink_to(wanted);
        let resolved = self
            .db
            .budget()
            .check_request(wanted.saturating_add(body_bytes as u64))
            .and_then(|()| held.cover(wanted))
            .and_then(|()| self.resolve_unknown(generation, work, labels, &mut outcome));
        if let Err(why) = resolved {
            // Nothing is written yet. The series that were refused keep their reasons.
            let reason = Reason::of_request(&why);
            return outcome.failed(why, reason);
        }
        let times = self.db.accepted_times();
        for ((series, samples), found) in work.decoded.iter().zip(&work.found) {
            let Some(series_ref) = *found else { continue };
            for sample in samples {
                if let Some(refusal) = times.refusal(sample.ts) {
                    outcome.tally.reject(Reason::of_time(refusal), 1);
                    let why = times.explain(sample.ts, refusal);
                    outcome.refused.time(|| format!("{}: {why}", describe(series, labels.parse)));
                    continue;
                }
                batch.push(series_ref, sample.ts, sample.value);
            }
        }
        outcome.generation = generation;
        outcome
    }

    /// Pass 3: makes the rows durable.
    fn write(&self, mut outcome: Outcome, batch: &mut RowBatch) -> Outcome {
        if batch.is_empty() {
            return outcome;
        }
        match self.db.write_known(batch, outcome.generation) {
            Ok(report) => {
                outcome.tally.add_report(&report);
                outcome.refused.time_count +=
                    report.too_far_ahead + report.too_old + report.in_seconds;
                if report.unknown > 0 {
                    outcome.error = Some(Error::unavailable(format!(
                        "{} samples belong to series that were removed during the write; send them again",
                        report.unknown
                    )));
                }
                outcome
            }
            Err(why) => {
                let reason = Reason::of_request(&why);
                outcome.failed(why, reason)
            }
        }
    }

    /// Refuses series that do not exist and exceed the rate of the user.
    fn admit_new(
        &self,
        bucket: &TokenBucket,
        work: &mut Work,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let found = self.db.find(&work.labels)?;
        let mut admitted = bucket.take_up_to(found.iter().filter(|one| one.is_none()).count());
        let (piece, labels) = (mem::take(&mut work.piece), mem::take(&mut work.labels));
        for ((idx, labels), found) in piece.into_iter().zip(labels).zip(found) {
            if found.is_none() && admitted == 0 {
                let limit = SeriesLimit::PerSecond;
                let kind = ErrorKind::SeriesLimit { limit, retry_after_ms: 1_000 };
                let what = "new series exceed the rate of this user \
                            (users.limits.new_series_per_second); retry later";
                let why = Error::new(kind, what);
                let sample_count = work.decoded.samples_of(idx as usize).len() as u64;
                outcome.tally.reject_series(Reason::of(&why), sample_count);
                outcome.without_series(why, &labels);
                continue;
            }
            admitted -= usize::from(found.is_none());
            work.piece.push(idx);
            work.labels.push(labels);
        }
        Ok(())
    }

    /// Resolves the series that the cache does not know in the database.
    ///
    /// # Errors
    /// Those that make the whole request malformed; then no series was defined.
    fn resolve_unknown(
        &self,
        generation: u32,
        work: &mut Work,
        labels: SeriesLabels<'_>,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut unknown = mem::take(&mut work.unknown);
        unknown.clear();
        let indexes = work.found.iter().zip(0u32..).filter(|(found, _)| found.is_none());
        unknown.extend(indexes.map(|(_, idx)| idx));
        if unknown.len() > RESOLVED_AT_ONCE {
            for &idx in &unknown {
                let Some(series) = work.decoded.series.get(idx as usize) else { continue };
                match labels.parse_one(series, &mut work.builder) {
                    Err(fault) if fault.is_of_request => {
                        return Err(fault.count(work.decoded.samples_of(idx as usize), outcome));
                    }
                    // Others are counted with their piece.
                    _ => {}
                }
            }
        }
        for piece in unknown.chunks(RESOLVED_AT_ONCE) {
            self.resolve_piece(piece, work, labels, outcome)?;
        }
        let known = unknown.iter().filter_map(|&idx| {
            let series = work.decoded.series.get(idx as usize).filter(|s| s.cacheable)?;
            Some((series.hash, (*work.found.get(idx as usize)?)?))
        });
        self.cache.insert(generation, known);
        work.unknown = unknown;
        Ok(())
    }

    /// Parses the labels of the series `piece` and resolves them.
    fn resolve_piece(
        &self,
        piece: &[u32],
        work: &mut Work,
        labels: SeriesLabels<'_>,
        outcome: &mut Outcome,
    ) -> Result<()> {
        work.piece.clear();
        work.labels.clear();
        for &idx in piece {
            let Some(series) = work.decoded.series.get(idx as usize) else { continue };
            match labels.parse_one(series, &mut work.builder) {
                Ok(labels) => {
                    work.piece.push(idx);
                    work.labels.push(labels);
                }
                Err(fault) => {
                    let is_of_request = fault.is_of_request;
                    let why = fault.count(work.decoded.samples_of(idx as usize), outcome);
                    if is_of_request {
                        return Err(why);
                    }
                    outcome.refused.series(&why);
                }
            }
        }
        if let Some(bucket) = work.new_series.clone() {
            self.admit_new(&bucket, work, outcome)?;
        }
        let resolved = match labels.is_limited {
            true => {
                let first = |&idx: &u32| {
                    let samples = work.decoded.samples_of(idx as usize);
                    samples.first().map_or(0, |sample| sample.ts)
                };
                let times: Vec<Timestamp> = work.piece.iter().map(first).collect();
                self.db.resolve_at(&work.labels, &times)
            }
            false => self.db.resolve_exempt(&work.labels),
        };
        for ((&idx, labels), resolved) in work.piece.iter().zip(&work.labels).zip(resolved) {
            match (resolved, work.found.get_mut(idx as usize)) {
                (Ok(series_ref), Some(found)) => *found = Some(series_ref),
                (Err(why), _) => {
                    let sample_count = work.decoded.samples_of(idx as usize).len() as u64;
                    outcome.tally.reject_series(Reason::of(&why), sample_count);
                    outcome.without_series(why, labels);
                }
                (Ok(_), None) => {}
            }
        }
        Ok(())
    }

    /// Buffers for a request of `unpacked_bytes` that decodes to at most `decoded_bytes_max`, both
    /// reserved. Its body of `body_bytes` is reserved already.
    fn begin(
        &self,
        body_bytes: usize,
        unpacked_bytes: usize,
        decoded_bytes_max: usize,
    ) -> Result<Decoding> {
        let all_bytes = body_bytes.saturating_add(unpacked_bytes);
        self.db.budget().check_request(all_bytes.saturating_add(decoded_bytes_max) as u64)?;
        let idle = self.idle.lock().pop();
        let mut decoding = idle.unwrap_or_else(|| Decoding {
            unpacked: Vec::new(),
            work: Work::default(),
            held: self.db.budget().empty(Pool::Requests),
        });
        let decoded_bytes_max = decoded_bytes_max.max(64 << 10);
        decoding.work.decoded.clear(decoded_bytes_max);
        let wanted = (unpacked_bytes.max(decoding.unpacked.len()) + decoded_bytes_max) as u64;
        decoding.held.grow(wanted.saturating_sub(decoding.held.bytes()))?;
        Ok(decoding)
    }

    /// Keeps the buffers for the next request unless the kept buffers exceed their bound. The rows
    /// in `scratch` keep their reservation.
    fn end(&self, mut decoding: Decoding, scratch: &mut Scratch) {
        scratch.held =
            Some(decoding.held.split(scratch.batch.heap_bytes() + decoding.work.new_bytes));
        decoding.work.labels.clear();
        decoding.work.labels.shrink_to(LABELS_KEPT_MAX);
        let bytes = (decoding.unpacked.capacity() + decoding.work.needed_bytes()) as u64;
        decoding.held.shrink_to(bytes);
        let mut idle = self.idle.lock();
        let kept_bytes: u64 = idle.iter().map(|kept| kept.held.bytes()).sum();
        if kept_bytes + bytes <= KEPT_BYTES_MAX {
            idle.push(decoding);
        }
    }
}

impl SeriesLabels<'_> {
    fn parse_one(
        &self,
        series: &EncodedSeries,
        builder: &mut LabelsBuilder,
    ) -> std::result::Result<Labels, SeriesFault> {
        (self.parse)(series, builder).map_err(|fault| match (fault, self.refuse_whole) {
            (LabelFault::Malformed(why), _) => {
                SeriesFault { reason: Reason::of(&why), why, is_of_request: true }
            }
            (LabelFault::Refused(why), Some(refuse_whole)) => {
                let reason = Reason::of(&why);
                SeriesFault { reason, why: refuse_whole(series, why), is_of_request: true }
            }
            (LabelFault::Refused(why), None) => {
                SeriesFault { reason: Reason::of(&why), why, is_of_request: false }
            }
        })
    }
}

impl SeriesFault {
    /// Counts the series and its samples.
    fn count(self, samples: &[Sample], outcome: &mut Outcome) -> Error {
        outcome.tally.reject_series(self.reason, samples.len() as u64);
        self.why
    }
}

impl Scratch {
    /// Releases the extra memory of a large request.
    pub fn trim(&mut self) {
        self.batch.clear();
        self.batch.shrink_to(CELLS_KEPT_MAX);
        self.held = None;
    }
}

impl Work {
    /// The memory of the series that the cache does not know, each with `added_bytes` of labels:
    /// the label sets of one piece, and all definitions.
    fn new_series_bytes(&self, added_bytes: u64) -> u64 {
        let all = self.decoded.series.iter().zip(&self.found);
        let unknown = all.filter(|(_, found)| found.is_none()).map(|(series, _)| series);
        let (mut definitions, mut piece, mut largest_piece) = (0u64, 0u64, 0);
        for (idx, series) in unknown.enumerate() {
            let bytes = added_bytes.saturating_add(series.span().len() as u64);
            definitions = definitions.saturating_add(DEFINITION_COPIES.saturating_mul(bytes));
            if idx.is_multiple_of(RESOLVED_AT_ONCE) {
                piece = 0;
            }
            piece = piece.saturating_add(bytes).saturating_add(NEW_SERIES_BYTES);
            largest_piece = piece.max(largest_piece);
        }
        definitions.saturating_add(largest_piece)
    }

    fn needed_bytes(&self) -> usize {
        let decoded = &self.decoded;
        (decoded.series.capacity() + decoded.samples.capacity()) * Decoded::ITEM_BYTES
    }
}

impl Outcome {
    /// The outcome of a request with these samples, undecided except for unsupported ones.
    fn of(decoded: &Decoded) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.tally.received = decoded.samples.len() as u64 + decoded.histogram_count;
        outcome.tally.reject(Reason::NativeHistogram, decoded.histogram_count);
        outcome.refused.histograms(decoded.histogram_count);
        outcome
    }

    /// The request failed as a whole: samples without a fate are not written.
    fn failed(mut self, why: Error, reason: Reason) -> Outcome {
        self.tally.reject_rest(reason);
        self.error = Some(why);
        self
    }

    /// The database returned no reference for `labels`.
    fn without_series(&mut self, why: Error, labels: &Labels) {
        if is_permanent(&why) {
            self.refused.series(&why.context(labels));
        } else if self.error.as_ref().is_none_or(Outcome::is_lasting_limit) {
            // Other reasons are retryable, so they are reported first.
            self.error = Some(why);
        }
    }

    /// Whether an error is a limit that waiting does not lift.
    pub fn is_lasting_limit(error: &Error) -> bool {
        use firn_model::SeriesLimit::PerSecond;
        matches!(*error.kind(), ErrorKind::SeriesLimit { limit, .. } if limit != PerSecond)
    }
}

impl RefusedParts {
    /// Whether nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.series_count + self.time_count + self.histogram_count == 0
    }

    /// Whether the response is an error. For data that a server does not store at all, such as
    /// exemplars in Prometheus, it is not: a sender would count the whole request as failed.
    pub fn is_failure(&self) -> bool {
        self.series_count + self.time_count > 0
    }

    fn series(&mut self, why: &Error) {
        self.series_count += 1;
        self.name(|| why.to_string());
    }

    fn time(&mut self, why: impl FnOnce() -> String) {
        self.time_count += 1;
        self.name(why);
    }

    fn histograms(&mut self, count: u64) {
        self.histogram_count = count;
        if count > 0 {
            self.first.push("native histograms are not stored".to_owned());
        }
    }

    fn name(&mut self, text: impl FnOnce() -> String) {
        if self.first.len() < NAMED_COUNT_MAX {
            self.first.push(text());
        }
    }
}

/// One sentence: the numbers of refused series and samples, and the first few by name.
impl fmt::Display for RefusedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.series_count, "series"),
            (self.time_count, "samples out of bounds"),
            (self.histogram_count, "native histogram samples"),
        ];
        f.write_str("not written: ")?;
        for (idx, (count, what)) in counts.iter().filter(|(count, _)| *count > 0).enumerate() {
            write!(f, "{}{count} {what}", if idx > 0 { ", " } else { "" })?;
        }
        for (idx, named) in self.first.iter().enumerate() {
            write!(f, "{}{named}", if idx > 0 { "; " } else { ": " })?;
        }
        Ok(())
    }
}

/// A series in text form, for messages.
fn describe(series: &EncodedSeries, parse: &ParseLabels<'_>) -> String {
    parse(series, &mut LabelsBuilder::default()).map(|l| l.to_string()).unwrap_or_default()
}

fn with_name(labels: Labels) -> Result<Labels> {
    if labels.metric_name().is_empty() {
        return Err(Error::invalid(format!("series {labels} has no __name__")));
    }
    Ok(labels)
}

fn is_permanent(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::Invalid | ErrorKind::TooLarge)
}
/// At least the number of samples and of metadata of a text: its lines that are neither empty nor
/// comments.
fn lines_with_items(text: &[u8]) -> usize {
    let has_item = |line: &[u8]| {
        let line = line.trim_ascii_start();
        match line.strip_prefix(b"#").map(<[u8]>::trim_ascii_start) {
            // `HELP`, `TYPE` or `UNIT`.
            Some(comment) => matches!(comment.first(), Some(b'H' | b'T' | b'U')),
            None => !line.is_empty(),
        }
    };
    text.split(|byte| *byte == b'\n').filter(|line| has_item(line)).count()
}
