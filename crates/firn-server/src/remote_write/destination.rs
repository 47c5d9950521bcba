//! A destination: follows the log, sends windows of samples, and stores its position.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderName, header};
use bytes::Bytes;
use firn_collect::config::{RemoteWrite, WriteMessage};
use firn_fetch::{Client, Connections, Content, FetchError, Request, Response};
use firn_model::{Budget, Error, Labels, Pool, Reservation, Result, Secret, SeriesRef, Timestamp};
use firndb::{Db, LogReader, LoggedSample, ReaderProgress};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;

use super::message::{MetadataPage, metadata_request};
use super::metrics::{Named, SenderTotals};
use super::sent::SentSamples;
use super::series::{Outgoing, OutgoingLabels};
use super::share::{MemoryShare, WINDOW_LEN_MAX, samples_bytes};
use super::window::{
    OutgoingSample, RequestLimits, SendWindow, batch_bytes_max, batch_request, batches,
};
use crate::app::App;
use crate::clock::clock_ms;
use crate::collect::USER_AGENT;
use crate::metadata::Metadata;
use crate::throttle::Throttle;

/// A section of the configuration, checked.
#[derive(Debug)]
pub(super) struct WriteDestination {
    pub(super) settings: RemoteWrite,
    /// Labels of all series.
    pub(super) external: Labels,
    pub(super) url: String,
    /// The memory that it may reserve.
    pub(super) share: MemoryShare,
    /// In metrics.
    pub(super) name: String,
    /// The name of the stored position.
    pub(super) reader: String,
    pub(super) client: Client,
    pub(super) totals: SenderTotals,
    pub(super) failures: Throttle,
}

/// The things that all destinations share.
#[derive(Clone, Debug)]
pub(super) struct SenderContext {
    pub(super) app: Arc<App>,
    pub(super) db: Arc<Db>,
    /// The turns of those that read the log, whose memory is in no share.
    pub(super) reading: Arc<Semaphore>,
}

/// The log of a destination, and the window that is being sent.
#[derive(Debug)]
struct Feed {
    db: Arc<Db>,
    reader: LogReader,
    progress: ReaderProgress,
    series: OutgoingLabels,
    samples: Vec<LoggedSample>,
    sent: SentSamples,
    /// Samples that the receiver had refused before this window.
    failed_before: u64,
    /// The memory of the samples, and of the parts that are made of them.
    memory: Reservation,
    /// The memory of the labels of a part.
    part_labels: Budget,
    /// The memory for making labels, and then of the requests of a part.
    requests: Budget,
    /// The shards of the window.
    shard_count: usize,
    /// The first samples of the window, whose parts were sent.
    sent_count: usize,
    /// The labels of the samples of this window so far.
    window_labels_bytes: u64,
    /// The labels of a sample in the last window, on average.
    labels_bytes: u64,
    is_at_end: bool,
}

/// The memory of the requests of a part, which is reserved before the first is made: none waits for
/// memory that others hold.
#[derive(Debug)]
struct RequestRoom {
    /// One permit for each of [`ROOM_STEP_BYTES`].
    room: Semaphore,
    permit_count: u32,
    limits: RequestLimits,
    _held: Reservation,
}

/// A part of a window, with the memory of its requests.
#[derive(Debug)]
struct WindowPart {
    window: SendWindow,
    requests: RequestRoom,
}

/// The outcome of a request.
enum SendOutcome {
    Accepted,
    /// Never to be sent again.
    Refused(String),
    /// To be repeated, after the time that the receiver names.
    Failed(String, Option<Duration>),
}

// The log is looked at this often.
const POLL: Duration = Duration::from_millis(100);
// After an error of the database.
const RETRY: Duration = Duration::from_secs(1);
// A stop waits this long for running requests.
const GRACE: Duration = Duration::from_secs(1);
// A position is stored this often while there is nothing to send.
const STORE_INTERVAL: Duration = Duration::from_secs(5);
const ROOM_STEP_BYTES: u64 = 1 << 10;
// More than a share has.
const ROOM_PERMITS_MAX: u32 = 1 << 28;
const RESPONSE_BYTES_MAX: u64 = 64 << 10;
// The memory of metadata in a request of version 2.0: its texts, in tables, encoded and packed.
const METADATA_BYTES_MAX: u64 = 256 << 10;
const METADATA_COPIES: u64 = 4;
const VERSION_HEADER: HeaderName = HeaderName::from_static("x-prometheus-remote-write-version");

impl WriteDestination {
    pub(super) fn named(&self) -> Named<'_> {
        let queue = &self.settings.queue_config;
        Named {
            name: &self.name,
            url: &self.url,
            totals: &self.totals,
            shard_count_max: queue.max_shards.max(0) as u64,
            shard_count_min: queue.min_shards.max(0) as u64,
            capacity: queue.capacity.max(0) as u64,
            samples_per_send_max: queue.max_samples_per_send.max(0) as u64,
        }
    }

    fn batch_len_max(&self) -> usize {
        usize::try_from(self.settings.queue_config.max_samples_per_send).unwrap_or(1).max(1)
    }

    /// As many as the samples fill, within the limits of the section.
    fn shard_count(&self, sample_count: usize) -> usize {
        let queue = &self.settings.queue_config;
        let count = |count: i64| usize::try_from(count).unwrap_or(1).max(1);
        let useful = sample_count.div_ceil(self.batch_len_max());
        let wanted = useful.clamp(count(queue.min_shards), count(queue.max_shards));
        wanted.min(self.share.shard_count_max()).min(WINDOW_LEN_MAX)
    }

    fn window_len_max(&self, labels_bytes: u64) -> usize {
        let queue = &self.settings.queue_config;
        let all = queue.capacity.saturating_mul(queue.max_shards);
        let fitting = self.share.window_len_max(labels_bytes);
        usize::try_from(all).unwrap_or(WINDOW_LEN_MAX).min(fitting).clamp(1, WINDOW_LEN_MAX)
    }

    /// The limits of the requests of `shard_count` shards.
    fn request_limits(&self, shard_count: usize) -> RequestLimits {
        let all = self.share.request_bytes(shard_count);
        let settings = &self.settings;
        let has_metadata =
            settings.protobuf_message == WriteMessage::V2 && settings.metadata_config.send;
        let metadata_bytes = if has_metadata { METADATA_BYTES_MAX.min(all / 4) } else { 0 };
        let bytes_max = all.saturating_sub(metadata_bytes);
        RequestLimits { len_max: self.batch_len_max(), bytes_max, metadata_bytes }
    }

    /// Logs a failure, at most one a minute.
    fn complain(&self, what: &str, error: &dyn std::fmt::Display) {
        if let Some(count) = self.failures.note(1, Instant::now()) {
            let (name, url) = (&self.name, &self.url);
            tracing::error!(name, url, count, %error, "remote write: {what}");
        }
    }
}

/// Sends to `to` until `stopping` is set.
pub(super) async fn run(
    to: Arc<WriteDestination>,
    shared: SenderContext,
    mut stopping: watch::Receiver<bool>,
) {
    to.totals.shards.set(to.shard_count(0) as u64);
    let mut feed = loop {
        let (to, db) = (Arc::clone(&to), Arc::clone(&shared.db));
        let opened = blocking(move || Feed::open(&to, &db)).await;
        match opened {
            Ok(feed) => break feed,
            Err(error) => tracing::error!(%error, "remote write: the log cannot be read yet"),
        }
        if pause(RETRY, &mut stopping).await {
            return;
        }
    };
    let mut connections: Vec<Connections> = Vec::new();
    let (mut waits_since, mut stored) = (None::<Instant>, Instant::now());
    while !*stopping.borrow() {
        if feed.has_news() {
            let (max, read_for) = (to.window_len_max(feed.labels_bytes), Arc::clone(&to));
            // An error means that it was closed, which nothing does.
            let turn = shared.reading.acquire().await;
            let (back, read) = moved(feed, move |feed| feed.read(&read_for, max)).await;
            drop(turn);
            feed = back;
            if let Err(error) = read {
                to.complain("the log cannot be read", &error);
                // Samples that were read are sent: they hold memory.
                if feed.samples.is_empty() || feed.is_retry() {
                    if pause(RETRY, &mut stopping).await {
                        return;
                    }
                    continue;
                }
            }
        }
        to.totals.behind_bytes.set(feed.undelivered_bytes());
        if feed.samples.is_empty() {
            waits_since = None;
            if stored.elapsed() >= STORE_INTERVAL && feed.has_moved() {
                let (back, saved) = moved(feed, Feed::save_position).await;
                feed = back;
                stored = Instant::now();
                saved.unwrap_or_else(|error| to.complain("the position is not stored", &error));
            }
            if feed.is_at_end && pause(POLL, &mut stopping).await {
                return;
            }
            continue;
        }
        let since = *waits_since.get_or_insert_with(Instant::now);
        let deadline = millis(to.settings.queue_config.batch_send_deadline.as_ms());
        let is_full = feed.samples.len() >= to.batch_len_max() || !feed.is_at_end;
        if !is_full && !feed.is_retry() && since.elapsed() < deadline {
            if pause(POLL.min(deadline), &mut stopping).await {
                return;
            }
            continue;
        }
        let begun_for = Arc::clone(&to);
        let (back, begun) = moved(feed, move |feed| feed.begin_window(&begun_for)).await;
        feed = back;
        if let Err(error) = begun {
            to.complain("a request cannot be prepared", &error);
            if pause(RETRY, &mut stopping).await {
                return;
            }
            continue;
        }
        waits_since = None;
        let sent = send_window(feed, &to, &shared, &mut connections, &mut stopping).await;
        let Some(back) = sent else { return };
        feed = back;
        feed.end_window(&to);
        // A failure to store it is noticed before the next window; a crash before that repeats
        // this one.
        stored = Instant::now().checked_sub(STORE_INTERVAL).unwrap_or_else(Instant::now);
    }
}

/// Sends the parts of a window. Returns `None` if `stopping` came first.
async fn send_window(
    mut feed: Feed,
    to: &Arc<WriteDestination>,
    shared: &SenderContext,
    connections: &mut Vec<Connections>,
    stopping: &mut watch::Receiver<bool>,
) -> Option<Feed> {
    while feed.sent_count < feed.samples.len() {
        let made_for = Arc::clone(to);
        let (back, part) = moved(feed, move |feed| feed.next_part(&made_for)).await;
        feed = back;
        let part = match part {
            Ok(part) => part,
            Err(error) => {
                to.complain("a request cannot be prepared", &error);
                if pause(RETRY, stopping).await {
                    return None;
                }
                continue;
            }
        };
        let behind_bytes: &(dyn Fn() -> u64 + Sync) = &|| feed.undelivered_bytes();
        if !send_part(to, shared, (part, behind_bytes), connections, stopping).await {
            return None;
        }
    }
    Some(feed)
}

impl Feed {
    fn open(to: &WriteDestination, db: &Arc<Db>) -> Result<Feed> {
        let (reader, progress) = db.log_reader(&to.reader)?;
        let budget = db.budget();
        let labels = budget.part(to.share.labels_bytes()).empty(Pool::Requests);
        let rules = to.settings.write_relabel_configs.clone();
        let series = OutgoingLabels::new(to.external.clone(), rules, to.share, labels);
        Ok(Feed {
            db: Arc::clone(db),
            reader,
            progress,
            series,
            samples: Vec::new(),
            sent: SentSamples::new(budget, to.share.sent_bytes()),
            failed_before: 0,
            memory: budget.empty(Pool::Requests),
            part_labels: budget.part(to.share.part_labels_bytes()),
            requests: budget.part(to.share.requests_bytes()),
            shard_count: 1,
            sent_count: 0,
            window_labels_bytes: 0,
            labels_bytes: 0,
            is_at_end: false,
        })
    }

    /// Whether the log may have entries after the position. They may not be committed yet.
    fn has_news(&self) -> bool {
        !self.is_at_end || self.reader.behind_bytes() > 0
    }

    /// Bytes of the log that the destination has not received.
    fn undelivered_bytes(&self) -> u64 {
        if self.samples.is_empty() && self.is_at_end && !self.is_retry() {
            return 0;
        }
        self.reader.bytes_after(&self.progress.done)
    }

    /// Whether there is a part of the log that needs no request.
    fn has_moved(&self) -> bool {
        self.progress.done != self.reader.positions()
    }

    /// Whether the samples are those of a window of an earlier process.
    fn is_retry(&self) -> bool {
        self.progress.tried.iter().zip(&self.progress.done).any(|(tried, done)| tried > done)
    }

    /// Reads on, up to `count_max` samples.
    fn read(&mut self, to: &WriteDestination, count_max: usize) -> Result<()> {
        // Also after an error.
        self.is_at_end = false;
        let bytes = samples_bytes(count_max);
        if bytes > self.memory.bytes() {
            self.memory.grow(bytes.saturating_sub(self.memory.bytes()))?;
        }
        let is_retry = self.is_retry();
        let until = is_retry.then(|| self.progress.tried.clone());
        let count_max = if is_retry { usize::MAX } else { count_max };
        let before = self.samples.len();
        let read = self.reader.read(&mut self.samples, count_max, until.as_deref());
        self.drop_repeated(to, before);
        for sample in self.samples.get(before..).unwrap_or_default() {
            to.totals.note_read(sample.ts);
        }
        // An entry may have more samples than were wanted. The reader had memory for them.
        self.memory.take(self.used_bytes(to).saturating_sub(self.memory.bytes()));
        let reading = read?;
        to.totals.lost_rows.add(reading.lost_rows);
        if reading.lost_rows > 0 || reading.damaged_bytes > 0 {
            let what =
                format!("{} rows lost, {} bytes damaged", reading.lost_rows, reading.damaged_bytes);
            to.complain("a part of the log is lost", &what);
        }
        self.is_at_end = reading.is_at_end;
        if is_retry && self.samples.is_empty() {
            // The range has nothing that could have been sent.
            self.progress.tried = self.progress.done.clone();
        }
        Ok(())
    }

    /// Leaves out samples behind the first `kept_count` that the receiver has received just before.
    fn drop_repeated(&mut self, to: &WriteDestination, kept_count: usize) {
        let Feed { samples, sent, .. } = self;
        let (read_count, mut idx) = (samples.len(), 0);
        samples.retain(|sample| {
            idx += 1;
            idx <= kept_count || !sent.forget_unless_repeated(sample)
        });
        to.totals.repeated.add(read_count.saturating_sub(samples.len()) as u64);
    }

    /// The memory of the samples and of a part of them.
    fn used_bytes(&self, to: &WriteDestination) -> u64 {
        let part_len = self.samples.len().min(to.share.window_len_max(0));
        let listed = self.samples.capacity().saturating_mul(size_of::<LoggedSample>());
        samples_bytes(part_len).max(listed as u64)
    }

    /// Makes a window of the samples: stores that it is being sent.
    fn begin_window(&mut self, to: &WriteDestination) -> Result<()> {
        self.shard_count = match self.is_retry() {
            true => usize::try_from(self.progress.note).unwrap_or(1).clamp(1, WINDOW_LEN_MAX),
            false => to.shard_count(self.samples.len()),
        };
        self.failed_before = to.totals.failed.get();
        self.progress.tried = self.reader.positions();
        self.progress.note = self.shard_count as u64;
        to.totals.shards.set(self.shard_count as u64);
        self.reader.save(&self.progress)
    }

    /// The next part of the window. It ends where the memory of its labels is used up, so the same
    /// window always has the same parts.
    ///
    /// # Errors
    /// `Busy` without memory: nothing of the part is held then, and the next call makes it again.
    fn next_part(&mut self, to: &WriteDestination) -> Result<WindowPart> {
        let Feed { db, series, samples, part_labels, requests, .. } = self;
        let rest = samples.get(self.sent_count..).unwrap_or_default();
        let complain = |error: &Error| to.complain("a series is not sent", error);
        let mut known: HashMap<SeriesRef, Outgoing> = HashMap::new();
        let mut held = part_labels.empty(Pool::Requests);
        let mut scratch = requests.empty(Pool::Requests);
        let (mut count, mut bytes) = (0, 0u64);
        for sample in rest.iter().take(to.share.window_len_max(0)) {
            if let Entry::Vacant(place) = known.entry(sample.series) {
                let outgoing = series.labels(db, sample.series, &mut scratch, &complain)?;
                let more = outgoing.as_ref().map_or(0, |labels| labels.len() as u64);
                if bytes.saturating_add(more) > to.share.part_labels_bytes() {
                    break;
                }
                bytes = bytes.saturating_add(more);
                held.cover(bytes)?;
                place.insert(outgoing);
            }
            count += 1;
        }
        drop(scratch);
        let part = rest.get(..count).unwrap_or_default();
        let (window, dropped) = SendWindow::new(part, &known, self.shard_count, held);
        let limits = to.request_limits(self.shard_count);
        let wanted = window.requests_bytes(limits).min(to.share.requests_bytes());
        let requests = RequestRoom::new(requests.reserve(Pool::Requests, wanted)?, limits);
        to.totals.dropped_series.add(dropped);
        self.sent_count = self.sent_count.saturating_add(count);
        self.window_labels_bytes = self.window_labels_bytes.saturating_add(bytes);
        Ok(WindowPart { window, requests })
    }

    /// All parts were sent.
    fn end_window(&mut self, to: &WriteDestination) {
        self.progress.done = self.progress.tried.clone();
        self.labels_bytes = self.window_labels_bytes / (self.samples.len() as u64).max(1);
        (self.window_labels_bytes, self.sent_count) = (0, 0);
        // A client may write refused samples again, once their receiver accepts them.
        if to.totals.failed.get() == self.failed_before {
            self.samples.iter().for_each(|sample| self.sent.note(sample));
        }
        self.samples.clear();
        self.samples.shrink_to(to.share.window_len_max(0));
        let kept = samples_bytes(to.share.window_len_max(0));
        self.memory.shrink_to(kept);
    }

    fn save_position(&mut self) -> Result<()> {
        self.progress.done = self.reader.positions();
        self.progress.tried = self.progress.done.clone();
        self.reader.save(&self.progress)
    }
}

impl RequestRoom {
    /// A room of `held`.
    fn new(held: Reservation, limits: RequestLimits) -> RequestRoom {
        let permit_count = u32::try_from(held.bytes().div_ceil(ROOM_STEP_BYTES));
        let permit_count = permit_count.unwrap_or(u32::MAX).clamp(1, ROOM_PERMITS_MAX);
        let room = Semaphore::new(permit_count as usize);
        RequestRoom { room, permit_count, limits, _held: held }
    }

    /// Waits until requests of other shards leave `bytes`. One with more takes all.
    async fn enter(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let wanted = u32::try_from(bytes.div_ceil(ROOM_STEP_BYTES)).unwrap_or(u32::MAX);
        // An error means that it was closed, which nothing does.
        self.room.acquire_many(wanted.min(self.permit_count)).await.ok()
    }
}

/// Sends all samples of a part. Returns whether it is done: `false` if `stopping` came first.
async fn send_part(
    to: &Arc<WriteDestination>,
    shared: &SenderContext,
    (part, behind_bytes): (WindowPart, &(dyn Fn() -> u64 + Sync)),
    connections: &mut Vec<Connections>,
    stopping: &watch::Receiver<bool>,
) -> bool {
    let WindowPart { window, requests } = part;
    let requests = Arc::new(requests);
    to.totals.pending.set(window.len() as u64);
    let _held = window.held;
    let shards: Vec<Vec<OutgoingSample>> =
        window.shards.into_iter().filter(|samples| !samples.is_empty()).collect();
    let mut sending = JoinSet::new();
    for samples in shards {
        let mut own = connections.pop().unwrap_or_default();
        let (to, shared, stopping) = (Arc::clone(to), shared.clone(), stopping.clone());
        let requests = Arc::clone(&requests);
        sending.spawn(async move {
            let mut is_done = true;
            for batch in batches(&samples, requests.limits) {
                let work = (batch, &*requests);
                is_done = is_done && send_batch(&to, &shared, work, &mut own, &stopping).await;
            }
            (is_done, own)
        });
    }
    let mut is_done = true;
    loop {
        to.totals.behind_bytes.set(behind_bytes());
        // During an outage, the log grows.
        let sent = tokio::time::timeout(RETRY, sending.join_next()).await;
        let Ok(sent) = sent else { continue };
        let Some(sent) = sent else { break };
        match sent {
            Ok((shard_is_done, own)) => {
                is_done &= shard_is_done;
                connections.push(own);
            }
            // A panic, which the log shows.
            Err(_) => is_done = false,
        }
    }
    to.totals.pending.set(0);
    is_done
}

/// Sends a request until it is accepted or refused. `false` if `stopping` came first.
async fn send_batch(
    to: &WriteDestination,
    shared: &SenderContext,
    (batch, requests): (&[OutgoingSample], &RequestRoom),
    connections: &mut Connections,
    stopping: &watch::Receiver<bool>,
) -> bool {
    let mut stopping = stopping.clone();
    let (queue, total) = (&to.settings.queue_config, batch.len() as u64);
    let mut backoff = millis(queue.min_backoff.as_ms());
    let mut made: Option<(Bytes, u64)> = None;
    let mut too_old = 0;
    let held = requests.enter(batch_bytes_max(batch, requests.limits)).await;
    let done = loop {
        if *stopping.borrow() {
            break false;
        }
        let (body, count) = match &made {
            // Without an age limit, each attempt sends the same bytes.
            Some((body, count)) if queue.sample_age_limit.as_ms() == 0 => (body.clone(), *count),
            _ => {
                let (body, count) = encode(to, shared, batch, requests.limits.metadata_bytes);
                too_old = total.saturating_sub(count);
                let body = Bytes::from(body);
                made = Some((body.clone(), count));
                (body, count)
            }
        };
        if count == 0 {
            break true;
        }
        to.totals.samples.add(count);
        to.totals.bytes.add(body.len() as u64);
        let Some(answer) = post(to, body, connections, &mut stopping).await else { break false };
        match answer {
            SendOutcome::Accepted => {
                batch.iter().for_each(|sample| to.totals.note_sent(sample.ts));
                break true;
            }
            SendOutcome::Refused(why) => {
                to.totals.failed.add(count);
                to.complain("samples were refused and are dropped", &why);
                break true;
            }
            SendOutcome::Failed(why, wait) => {
                to.totals.retried.add(count);
                to.complain("a request failed and is repeated", &why);
                if pause(wait.unwrap_or(backoff), &mut stopping).await {
                    break false;
                }
                backoff = (backoff * 2).min(millis(queue.max_backoff.as_ms()));
            }
        }
    };
    drop(held);
    to.totals.dropped_old.add(if done { too_old } else { 0 });
    to.totals.pending.subtract(total);
    done
}

fn encode(
    to: &WriteDestination,
    shared: &SenderContext,
    batch: &[OutgoingSample],
    metadata_bytes: u64,
) -> (Vec<u8>, u64) {
    let limit_ms = to.settings.queue_config.sample_age_limit.as_ms() as Timestamp;
    let oldest = if limit_ms == 0 { Timestamp::MIN } else { clock_ms().saturating_sub(limit_ms) };
    let mut room = usize::try_from(metadata_bytes / METADATA_COPIES).unwrap_or(usize::MAX);
    let sends_metadata = to.settings.metadata_config.send;
    batch_request(to.settings.protobuf_message, batch, oldest, |name| {
        let mut found = None::<Metadata>;
        if sends_metadata {
            // Visiting one metric cannot fail.
            let _ = shared.app.metadata.visit(Some(name), 1, |_, metadata| {
                found = Some(metadata.clone());
                Ok(())
            });
        }
        let found = found?;
        room = room.checked_sub(found.help.len() + found.unit.len())?;
        Some(found)
    })
}

/// One attempt; `None` if `stopping` came first.
async fn post(
    to: &WriteDestination,
    body: Bytes,
    connections: &mut Connections,
    stopping: &mut watch::Receiver<bool>,
) -> Option<SendOutcome> {
    let (media_type, version) = match to.settings.protobuf_message {
        WriteMessage::V2 => {
            ("application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0")
        }
        _ => ("application/x-protobuf", "0.1.0"),
    };
    let headers = vec![
        (header::USER_AGENT, USER_AGENT.to_owned()),
        (header::CONTENT_ENCODING, "snappy".to_owned()),
        (VERSION_HEADER, version.to_owned()),
    ];
    // They may be credentials. Their names were checked with the configuration.
    let secrets = to.settings.headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::try_from(name).ok()?, Secret::new(value.expose())))
    });
    let request = Request {
        // With its password, unlike `to.url`.
        url: to.settings.url.as_ref().map_or_else(String::new, |url| url.as_str().to_owned()),
        unix_socket: None,
        headers,
        authorization: None,
        secrets: secrets.collect(),
        content: Some(Content {
            is_put: false,
            is_secret: false,
            media_type: media_type.to_owned(),
            bytes: body,
        }),
        body_bytes_max: RESPONSE_BYTES_MAX,
        timeout: millis(to.settings.remote_timeout.as_ms()),
    };
    let mut sent = std::pin::pin!(to.client.send(&request, connections));
    let stopped = async {
        // An error means that the server has ended.
        let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        response = &mut sent => Some(to.judge(response)),
        () = stopped => None,
    }
}

impl WriteDestination {
    fn judge(&self, response: std::result::Result<Response, FetchError>) -> SendOutcome {
        let response = match response {
            Ok(response) => response,
            // The status was a success; the long body is of no interest.
            Err(FetchError::BodyLimit) => return SendOutcome::Accepted,
            Err(error) => return SendOutcome::Failed(error.to_string(), None),
        };
        let why = || {
            let body = String::from_utf8_lossy(&response.body);
            let line: String = body.lines().next().unwrap_or_default().chars().take(256).collect();
            format!("server returned HTTP status {}: {line}", response.status_text())
        };
        let wait = || {
            let least = response.retry_after()?.min(Duration::from_secs(3_600));
            // At once is no time: the backoff counts.
            (!least.is_zero()).then_some(least)
        };
        match response.status {
            200..300 => SendOutcome::Accepted,
            500..600 => SendOutcome::Failed(why(), wait()),
            429 if self.settings.queue_config.retry_on_http_429 => {
                SendOutcome::Failed(why(), wait())
            }
            _ => SendOutcome::Refused(why()),
        }
    }
}

/// Sends the metadata of all metrics at intervals, as version 1.0 does.
pub(super) async fn run_metadata(
    to: Arc<WriteDestination>,
    shared: SenderContext,
    mut stopping: watch::Receiver<bool>,
) {
    let config = &to.settings.metadata_config;
    let len_max = usize::try_from(config.max_samples_per_send).unwrap_or(1).max(1);
    let bytes_max = to.share.metadata_bytes();
    let mut connections = Connections::default();
    while !pause(millis(config.send_interval.as_ms()), &mut stopping).await {
        let Ok(_memory) = shared.db.budget().reserve(Pool::Requests, bytes_max) else { continue };
        let mut last = Box::<str>::default();
        loop {
            let mut page = MetadataPage::new(bytes_max);
            // An error means that the page is full.
            let _ = shared
                .app
                .metadata
                .visit_after(&last, len_max, |name, metadata| page.push(name, metadata));
            let Some((newest, _)) = page.entries().last() else { break };
            last = newest.clone();
            let count = page.entries().len() as u64;
            to.totals.metadata.add(count);
            let body = Bytes::from(metadata_request(page.entries()));
            drop(page);
            match post(&to, body, &mut connections, &mut stopping).await {
                None => return,
                Some(SendOutcome::Accepted) => {}
                // The next interval sends it again.
                Some(SendOutcome::Refused(why) | SendOutcome::Failed(why, _)) => {
                    to.totals.metadata_failed.add(count);
                    to.complain("metadata was not sent", &why);
                }
            }
        }
    }
}

/// Waits; returns whether `stopping` is set.
async fn pause(time: Duration, stopping: &mut watch::Receiver<bool>) -> bool {
    let stopped = stopping.wait_for(|is_stopping| *is_stopping);
    // An error means that the server has ended.
    tokio::time::timeout(time, stopped).await.is_ok()
}

fn millis(ms: impl TryInto<u64>) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(u64::MAX))
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(job).await;
    done.unwrap_or_else(|_| Err(Error::internal("a thread of remote write panicked")))
}

/// Runs `job` with the feed on a thread for blocking calls.
async fn moved<T: Send + 'static>(
    mut feed: Feed,
    job: impl FnOnce(&mut Feed) -> Result<T> + Send + 'static,
) -> (Feed, Result<T>) {
    let done = tokio::task::spawn_blocking(move || {
        let result = job(&mut feed);
        (feed, result)
    });
    match done.await {
        Ok(done) => done,
        // The feed is lost with its thread: the task ends, and the panic is in the log.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use firn_collect::config::Config;
    use firn_fetch::Bodies;
    use firndb::{Options, local_env};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn destination() -> WriteDestination {
        let text = "remote_write:\n- url: 'http://127.0.0.1:9'\n";
        let settings = &Config::parse(text, &|_| None).unwrap().config.remote_write;
        let settings = settings.iter().next().unwrap().clone();
        let client = Client::new(&settings.http, &Bodies::new(&Budget::unlimited())).unwrap();
        WriteDestination {
            settings,
            external: Labels::empty(),
            url: String::new(),
            share: MemoryShare::of_one(128 * MIB, 1),
            name: "a".to_owned(),
            reader: "a".to_owned(),
            client,
            totals: SenderTotals::default(),
            failures: Throttle::default(),
        }
    }

    fn requests_bytes(db: &Db) -> u64 {
        db.budget().usage().by_pool[Pool::Requests as usize]
    }

    /// Sizes of the parts of the next window.
    fn send_window(feed: &mut Feed, to: &WriteDestination) -> Vec<usize> {
        feed.read(to, to.window_len_max(0)).unwrap();
        feed.begin_window(to).unwrap();
        let mut lens = Vec::new();
        while feed.sent_count < feed.samples.len() {
            let part = feed.next_part(to).unwrap();
            assert!(requests_bytes(&feed.db) <= 16 * MIB, "all of it is within the share");
            assert!(part.window.held.bytes() >= part.window.len() as u64 * 60_000);
            lens.push(part.window.len());
        }
        lens
    }

    /// Before, the labels of all samples were made before any memory was reserved: 2,000 series
    /// took 120 MB of 128 MiB, their requests waited for that memory, and so did each restart.
    #[test]
    fn a_window_of_long_labels_is_sent_in_parts_within_the_share() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let options = Options { memory_bytes_max: 256 * MIB, ..Options::default() };
            Arc::new(Db::open(local_env(folder.path()).unwrap(), options).unwrap())
        };
        let db = open();
        let to = destination();
        let mut feed = Feed::open(&to, &db).unwrap();
        let value = "v".repeat(60_000);
        let set = |idx: usize| {
            let pairs = [("__name__", "m"), ("idx", &idx.to_string()), ("v", value.as_str())];
            Labels::from_pairs(pairs).unwrap()
        };
        let sets: Vec<Labels> = (0..500).map(set).collect();
        let mut batch = firndb::RowBatch::default();
        for series in db.resolve(&sets) {
            batch.push(series.unwrap(), clock_ms(), 1.0);
        }
        db.write(&mut batch).unwrap();
        let lens = send_window(&mut feed, &to);
        assert_eq!(lens.iter().sum::<usize>(), 500);
        assert!(lens.len() > 10, "{lens:?}");
        // A crash before the end of the window.
        drop((feed, db));
        let db = open();
        let mut feed = Feed::open(&to, &db).unwrap();
        assert!(feed.is_retry());
        assert_eq!(send_window(&mut feed, &to), lens, "the same parts");
        feed.end_window(&to);
        assert!(!feed.is_retry() && feed.labels_bytes > 60_000);
        // Without memory, a part holds nothing and is made later.
        for series in db.resolve(&sets[..100]) {
            batch.push(series.unwrap(), clock_ms(), 2.0);
        }
        db.write(&mut batch).unwrap();
        feed.read(&to, 1_000).unwrap();
        feed.begin_window(&to).unwrap();
        let before = requests_bytes(&db);
        let mut taken = db.budget().empty(Pool::Query);
        taken.take(256 * MIB);
        assert!(feed.next_part(&to).is_err());
        assert!(requests_bytes(&db) <= before && feed.sent_count == 0);
        drop(taken);
        assert!(feed.next_part(&to).unwrap().window.len() > 10);
    }

    /// Before, two servers that write to each other sent each sample back and forth without end.
    #[test]
    fn a_sample_that_returns_is_not_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let (db, to) = (Arc::new(db), destination());
        let mut feed = Feed::open(&to, &db).unwrap();
        let set = Labels::from_pairs([("a", "b")]).unwrap();
        let series = db.resolve(&[set]).remove(0).unwrap();
        let now = clock_ms();
        let mut sent = |cells: &[(i64, f64)], is_refused: bool| {
            let mut batch = firndb::RowBatch::default();
            for &(ts, value) in cells {
                batch.push(series, now - ts, value);
                db.write(&mut batch).unwrap();
                batch = firndb::RowBatch::default();
            }
            feed.read(&to, 100).unwrap();
            let values: Vec<f64> = feed.samples.iter().map(|sample| sample.value).collect();
            if !values.is_empty() {
                feed.begin_window(&to).unwrap();
                to.totals.failed.add(u64::from(is_refused));
                feed.end_window(&to);
            }
            values
        };
        assert_eq!(sent(&[(2, 1.0), (1, 2.0), (0, 3.0)], false), [1.0, 2.0, 3.0]);
        // All of a burst, and beside a new one.
        assert_eq!(sent(&[(2, 1.0), (1, 2.0), (0, 3.0)], false), Vec::<f64>::new());
        assert_eq!(sent(&[(1, 2.0), (3, 7.0)], false), [7.0]);
        assert_eq!(to.totals.repeated.get(), 4);
        // An update and its reversal.
        assert_eq!(sent(&[(2, 5.0), (2, 1.0)], false), [5.0, 1.0]);
        assert_eq!(sent(&[(2, 5.0)], false), [5.0]);
        // The receiver has not accepted it.
        assert_eq!(sent(&[(4, 8.0)], true), [8.0]);
        assert_eq!(sent(&[(4, 8.0)], false), [8.0]);
    }

    /// Before, the log counted as read to its end after an error.
    #[test]
    fn after_an_error_the_destination_is_behind() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let (db, to) = (Arc::new(db), destination());
        let mut feed = Feed::open(&to, &db).unwrap();
        feed.read(&to, 10).unwrap();
        assert_eq!((feed.is_at_end, feed.undelivered_bytes()), (true, 0));
        let series = db.resolve(&[Labels::from_pairs([("a", "b")]).unwrap()]).remove(0).unwrap();
        let mut batch = firndb::RowBatch::default();
        batch.push(series, clock_ms(), 1.0);
        db.write(&mut batch).unwrap();
        let mut taken = db.budget().empty(Pool::Query);
        taken.take(db.budget().usage().limit_bytes);
        assert!(feed.read(&to, 20).is_err());
        assert!(feed.undelivered_bytes() > 0);
        drop(taken);
        feed.read(&to, 20).unwrap();
        assert_eq!(feed.samples.len(), 1);
    }
}
