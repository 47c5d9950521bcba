//! A destination: follows the log, sends windows of samples, and stores its position.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderName, header};
use bytes::Bytes;
use firn_collect::config::{RemoteWrite, WriteMessage};
use firn_fetch::{Client, Connections, Content, FetchError, Request, Response};
use firn_model::{Budget, Error, Labels, Pool, Reservation, Result, Secret, SeriesRef, Timestamp};
use firndb::{Db, LogReader, LoggedSample, ReaderProgress};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::message::{MetadataPage, metadata_request};
use super::metrics::{Named, SenderTotals};
use super::series::OutgoingLabels;
use super::share::{MemoryShare, samples_bytes};
use super::window::{OutgoingSample, SendWindow, batch_bytes_max, batch_request, batches};
use crate::app::{App, clock_ms};
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
    /// Of the stored position.
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

/// The log of a destination, between two windows.
#[derive(Debug)]
struct Feed {
    db: Arc<Db>,
    reader: LogReader,
    progress: ReaderProgress,
    series: OutgoingLabels,
    samples: Vec<LoggedSample>,
    /// The memory of samples, labels and windows.
    budget: Budget,
    /// Of the samples and of the window that is made of them.
    memory: Reservation,
    /// The labels of a sample in the last window, on average.
    labels_bytes: u64,
    is_at_end: bool,
}

/// The memory of the requests of a window.
#[derive(Clone, Debug)]
struct RequestMemory {
    /// Of all requests of the destination.
    budget: Budget,
    /// Of each of them.
    batch_bytes_max: u64,
    /// Of the metadata in each of them, which version 2.0 sends.
    metadata_bytes: u64,
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
// Samples of a window. More shards than these fill are of no use.
const WINDOW_LEN_MAX: usize = 50_000;
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

    /// The memory of each request of `shard_count` shards.
    fn request_memory(&self, budget: &Budget, shard_count: usize) -> RequestMemory {
        let all = self.share.request_bytes(shard_count);
        let settings = &self.settings;
        let has_metadata =
            settings.protobuf_message == WriteMessage::V2 && settings.metadata_config.send;
        let metadata_bytes = if has_metadata { METADATA_BYTES_MAX.min(all / 4) } else { 0 };
        let batch_bytes_max = all.saturating_sub(metadata_bytes);
        RequestMemory { budget: budget.clone(), batch_bytes_max, metadata_bytes }
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
        let (to, shared) = (Arc::clone(&to), shared.clone());
        let opened = blocking(move || Feed::open(&to, &shared)).await;
        match opened {
            Ok(feed) => break feed,
            Err(error) => tracing::error!(%error, "remote write: the log cannot be read yet"),
        }
        if pause(RETRY, &mut stopping).await {
            return;
        }
    };
    let mut connections: Vec<Connections> = Vec::new();
    let requests = shared.db.budget().part(to.share.requests_bytes());
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
                if pause(RETRY, &mut stopping).await {
                    return;
                }
                continue;
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
        let made_for = Arc::clone(&to);
        let (back, window) = moved(feed, move |feed| feed.window(&made_for)).await;
        feed = back;
        let window = match window {
            Ok(window) => window,
            Err(error) => {
                to.complain("a request cannot be prepared", &error);
                if pause(RETRY, &mut stopping).await {
                    return;
                }
                continue;
            }
        };
        waits_since = None;
        let behind_bytes: &(dyn Fn() -> u64 + Sync) = &|| feed.undelivered_bytes();
        let memory = to.request_memory(&requests, window.shards.len());
        let work = (window, &memory, behind_bytes);
        if !send_window(&to, &shared, work, &mut connections, &stopping).await {
            return;
        }
        feed.progress.done = feed.progress.tried.clone();
        // A failure to store it is noticed before the next window; a crash before that repeats
        // this one.
        stored = Instant::now().checked_sub(STORE_INTERVAL).unwrap_or_else(Instant::now);
    }
}

impl Feed {
    fn open(to: &WriteDestination, shared: &SenderContext) -> Result<Feed> {
        let (reader, progress) = shared.db.log_reader(&to.reader)?;
        let budget = shared.db.budget().part(to.share.feed_bytes());
        let empty = || budget.empty(Pool::Requests);
        let labels_bytes = to.share.labels_bytes();
        let rules = to.settings.write_relabel_configs.clone();
        let series = OutgoingLabels::new(to.external.clone(), rules, labels_bytes, empty());
        let memory = empty();
        Ok(Feed {
            db: Arc::clone(&shared.db),
            budget,
            reader,
            progress,
            series,
            samples: Vec::new(),
            memory,
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
        let bytes = samples_bytes(count_max);
        if bytes > self.memory.bytes() {
            self.memory.grow(bytes.saturating_sub(self.memory.bytes()))?;
        }
        let is_retry = self.is_retry();
        let until = is_retry.then(|| self.progress.tried.clone());
        let count_max = if is_retry { usize::MAX } else { count_max };
        let before = self.samples.len();
        // Also after an error.
        self.is_at_end = false;
        let read = self.reader.read(&mut self.samples, count_max, until.as_deref());
        for sample in self.samples.get(before..).unwrap_or_default() {
            to.totals.note_read(sample.ts);
        }
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

    /// Makes a window of the samples and stores that it is being sent.
    fn window(&mut self, to: &WriteDestination) -> Result<SendWindow> {
        let shard_count = match self.is_retry() {
            true => usize::try_from(self.progress.note).unwrap_or(1).clamp(1, WINDOW_LEN_MAX),
            false => to.shard_count(self.samples.len()),
        };
        let mut known: HashMap<SeriesRef, _> =
            self.samples.iter().map(|sample| (sample.series, None)).collect();
        let wanted: Vec<SeriesRef> = known.keys().copied().collect();
        for (series, labels) in wanted.iter().zip(self.series.resolve(&self.db, &wanted)?) {
            known.insert(*series, labels);
        }
        self.progress.tried = self.reader.positions();
        self.progress.note = shard_count as u64;
        to.totals.shards.set(shard_count as u64);
        self.reader.save(&self.progress)?;
        // They exist already. Those with other owners are kept, and counted there.
        let mut held = self.budget.empty(Pool::Requests);
        let mut all_bytes: u64 = 0;
        for labels in known.values().flatten() {
            let bytes = labels.len() as u64;
            all_bytes = all_bytes.saturating_add(bytes);
            held.take(if Arc::strong_count(labels) == 1 { bytes } else { 0 });
        }
        self.labels_bytes = all_bytes / (self.samples.len() as u64).max(1);
        let (window, dropped) = SendWindow::new(&self.samples, &known, shard_count, held);
        to.totals.dropped_series.add(dropped);
        self.samples.clear();
        Ok(window)
    }

    fn save_position(&mut self) -> Result<()> {
        self.progress.done = self.reader.positions();
        self.progress.tried = self.progress.done.clone();
        self.reader.save(&self.progress)
    }
}

/// Sends all samples of a window. Returns whether it is done: `false` if `stopping` came first.
async fn send_window(
    to: &Arc<WriteDestination>,
    shared: &SenderContext,
    (window, memory, behind_bytes): (SendWindow, &RequestMemory, &(dyn Fn() -> u64 + Sync)),
    connections: &mut Vec<Connections>,
    stopping: &watch::Receiver<bool>,
) -> bool {
    to.totals.pending.set(window.len() as u64);
    let _held = window.held;
    let shards: Vec<Vec<OutgoingSample>> =
        window.shards.into_iter().filter(|samples| !samples.is_empty()).collect();
    let mut sending = JoinSet::new();
    for samples in shards {
        let mut own = connections.pop().unwrap_or_default();
        let (to, shared, stopping) = (Arc::clone(to), shared.clone(), stopping.clone());
        let memory = memory.clone();
        sending.spawn(async move {
            let mut is_done = true;
            for batch in batches(&samples, to.batch_len_max(), memory.batch_bytes_max) {
                let work = (batch, &memory);
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
    (batch, memory): (&[OutgoingSample], &RequestMemory),
    connections: &mut Connections,
    stopping: &watch::Receiver<bool>,
) -> bool {
    let mut stopping = stopping.clone();
    let (queue, total) = (&to.settings.queue_config, batch.len() as u64);
    let bytes = batch_bytes_max(batch).saturating_add(memory.metadata_bytes);
    // One sample with labels that no share has room for is sent nevertheless.
    let is_huge = bytes > memory.budget.usage().limit_bytes;
    let budget = if is_huge { shared.db.budget() } else { &memory.budget };
    let mut backoff = millis(queue.min_backoff.as_ms());
    let mut made: Option<(Bytes, u64)> = None;
    let mut too_old = 0;
    let held = loop {
        match budget.reserve(Pool::Requests, bytes) {
            Ok(held) => break held,
            Err(error) => to.complain("a request waits for memory", &error),
        }
        if pause(RETRY, &mut stopping).await {
            return false;
        }
    };
    let done = loop {
        if *stopping.borrow() {
            break false;
        }
        let (body, count) = match &made {
            // Without an age limit, each attempt sends the same bytes.
            Some((body, count)) if queue.sample_age_limit.as_ms() == 0 => (body.clone(), *count),
            _ => {
                let (body, count) = encode(to, shared, batch, memory.metadata_bytes);
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
            let seconds = response.headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
            // At once is no time: the backoff counts.
            (seconds > 0).then(|| Duration::from_secs(seconds).min(Duration::from_secs(3_600)))
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
