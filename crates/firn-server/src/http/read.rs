//! Remote read: raw samples for a Prometheus or a Thanos sidecar.
//!
//! A response in one message is made on a reader thread and sent as a whole. A streamed one is made
//! in parts of about one frame: [`send_parts`] requests the next part from a reader thread when the
//! connection has accepted the previous one. So a slow client costs two parts of memory and no
//! thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use firn_model::{
    CancelToken, Error, ErrorKind, Labels, Pool, QueryContext, Reservation, Result, TimeRange,
    Timestamp,
};
use firndb::{SeriesWalk, Snapshot, WalkOptions};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::access::account::UserQuery;
use crate::answer::{ApiError, Packing, Payload, text, with_retry_after};
use crate::app::{App, CancelOnDrop, QueryDesk};
use crate::http::auth::{Access, Caller};
use crate::http::body::{self, BodyLimit, HeldBytes};
use crate::http::query::{Evaluator, QuerySource};
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, unready};
use crate::throttle::Throttle;
use crate::wire::remote_read::{
    self, FrameWriter, ReadQuery, ReadRequest, ResponseType, SamplesWriter,
};
use crate::wire::snappy;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Read, Methods::Post, "/api/v1/read", read)
}

// As Prometheus: of the body, compressed and decompressed.
const BODY_BYTES_MAX: usize = 32 << 20;
// Timestamp and value in the buffers of a walk.
const SAMPLE_BYTES: usize = 16;
// The time for which a client may delay a stream in all. A stream holds its view of the database:
// memory of the index and of flushed rows, and files that were merged since. At 10 Mbit/s this is
// 1 GB.
const CLIENT_WAIT_MAX: Duration = Duration::from_secs(15 * 60);
const SAMPLES_TYPE: &str = "application/x-protobuf";
const STREAM_TYPE: &str = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse";

/// `POST /api/v1/read`.
async fn read(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let Some(source) = QuerySource::of(&app) else { return unready(&app) };
    let user = Caller::of(&request).user;
    let Some(user_query) = user.begin_query() else {
        return ApiError::too_many_queries().into_response();
    };
    let (parts, body) = request.into_parts();
    let memory = (source.budget(), Pool::Query);
    let limit = BodyLimit::constant(BODY_BYTES_MAX);
    let body = match body::read(&parts.headers, body, limit, memory).await {
        Ok(body) => body,
        Err(error) => return body_refusal(error),
    };
    if let Err(error) = snappy::declared_bytes(&body.bytes, BODY_BYTES_MAX) {
        return match error.kind() {
            // The limit is a constant and no setting.
            ErrorKind::TooLarge => body_refusal(Error::too_large(format!(
                "the decompressed request is over {} MiB",
                BODY_BYTES_MAX >> 20
            ))),
            _ => body_refusal(error),
        };
    }
    let running = Running::new(&app);
    let (desk, context) = source.begin(&user);
    let (desk, evaluator) = (Arc::clone(desk), source.evaluator());
    let cancel = context.cancel.clone();
    let canceled_when_dropped = CancelOnDrop(cancel.clone());
    let samples_max = user.query_samples_max(u64::MAX);
    let starting = async {
        let place = desk.read_permit().await?;
        let shared = Arc::clone(&app);
        let job = move || start(&shared, &evaluator, &body, samples_max, context);
        Ok((place, desk.read(job).await??))
    };
    let timeout = app.config.query_timeout.duration();
    match within(timeout, &cancel, starting).await {
        Ok((_, Started::NeedsLog)) => unready(&app),
        Ok((_, Started::Whole(payload))) => {
            let mut response = payload.answer(StatusCode::OK, SAMPLES_TYPE);
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
            response
        }
        Ok((place, Started::Stream { first, rest })) => {
            let held = Held {
                running,
                desk,
                _place: place,
                _user_query: user_query,
                _canceled_when_dropped: canceled_when_dropped,
            };
            stream(first, rest, held)
        }
        Err(error) => refusal(&error),
    }
}

/// One remote read, counted while it runs, sends or waits.
struct Running(Shared);

impl Running {
    fn new(app: &Shared) -> Running {
        app.telemetry.remote_reads.rise();
        Running(Arc::clone(app))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.telemetry.remote_reads.fall();
    }
}

/// The state before the first byte is sent.
enum Started {
    /// Samples of the request are in a log that is being replayed.
    NeedsLog,
    Whole(Payload),
    /// Starts with the first part, so that an immediate failure still has a status.
    Stream {
        first: Option<Vec<u8>>,
        rest: Box<ReadStream>,
    },
}

/// Decompresses and checks the request, and makes the response or its first part.
fn start(
    app: &App,
    evaluator: &Evaluator,
    body: &HeldBytes,
    user_samples_max: u64,
    context: QueryContext,
) -> Result<Started> {
    context.cancel.check()?;
    let (request, held) = unpack(&body.bytes, &context)?;
    request.compile(&context)?;
    let external = &app.external_labels();
    let queries: Vec<ReadQuery> =
        request.queries.into_iter().map(|query| query.without_external(external)).collect();
    let range = queries.iter().fold(TimeRange::EMPTY, |range, query| range.union(query.range));
    let Some(snapshot) = evaluator.view(range) else { return Ok(Started::NeedsLog) };
    let frame_bytes = app.config.frame_bytes();
    let reading = Reading {
        snapshot,
        external: external.clone(),
        samples_max: frame_bytes / SAMPLE_BYTES,
        user_samples_left: user_samples_max,
        context,
        _held: held,
    };
    match request.response_type {
        ResponseType::Samples => whole(app, reading, queries).map(Started::Whole),
        ResponseType::StreamedXorChunks => {
            let mut rest = Box::new(ReadStream::new(reading, queries, frame_bytes)?);
            let first = rest.next(app)?;
            Ok(Started::Stream { first, rest })
        }
    }
}

/// The request and its memory.
fn unpack(body: &[u8], context: &QueryContext) -> Result<(ReadRequest, Reservation)> {
    let unpacked_bytes = snappy::declared_bytes(body, BODY_BYTES_MAX)?;
    let budget = &context.budget;
    let too_long = |error: Error| budget.error_of_text(error, "a remote read", unpacked_bytes);
    let mut unpacked_held = budget.of_request(Pool::Query, body.len() as u64);
    unpacked_held.grow(unpacked_bytes as u64).map_err(too_long)?;
    let mut unpacked = Vec::new();
    let mut held = budget.of_request(Pool::Query, body.len() as u64);
    let body = snappy::decompress(body, BODY_BYTES_MAX, &mut unpacked)?;
    Ok((remote_read::decode(body, &mut held).map_err(too_long)?, held))
}

/// The view that all queries of a request are answered from.
struct Reading {
    snapshot: Snapshot,
    /// Labels added to every series.
    external: Labels,
    /// In memory at one time.
    samples_max: usize,
    /// That the user may still read with this request.
    user_samples_left: u64,
    context: QueryContext,
    /// The memory of the queries.
    _held: Reservation,
}

impl Reading {
    fn walk(&self, query: ReadQuery) -> Result<SeriesWalk> {
        let options = WalkOptions {
            matchers: query.matchers,
            range: query.range,
            extra: self.external.clone(),
            samples_max: self.samples_max,
        };
        self.snapshot.walk(options, &self.context)
    }

    /// # Errors
    /// `TooLarge` over the user's limit.
    fn take_samples(&mut self, count: usize) -> Result<()> {
        let left = self.user_samples_left.checked_sub(count as u64);
        let what =
            "the request reads more samples than its user may (users.limits.samples_per_query)";
        self.user_samples_left = left.ok_or_else(|| Error::too_large(what))?;
        Ok(())
    }
}

/// All samples in one message.
fn whole(app: &App, mut reading: Reading, queries: Vec<ReadQuery>) -> Result<Payload> {
    let mut held = reading.context.budget.empty(Pool::Query);
    let mut writer = SamplesWriter::default();
    for query in queries {
        let mut walk = reading.walk(query)?;
        let (mut sample_count, mut series_before) = (0, None);
        while let Some(run) = walk.next_run()? {
            reading.take_samples(run.times.len())?;
            sample_count += run.times.len() as u64;
            if let Some(samples_max) = app.config.remote_read_samples_max.get().map(|max| max.0)
                && sample_count > samples_max
            {
                return Err(Error::too_large(format!("exceeded sample limit ({samples_max})")));
            }
            held.grow(whole_bytes_max(run.labels, run.times))?;
            if series_before.replace(run.series_idx) != Some(run.series_idx) {
                writer.begin_series(run.labels);
            }
            writer.push(run.times, run.values);
        }
        writer.end_query();
        app.telemetry.samples_read.add(sample_count);
    }
    let message = writer.into_bytes();
    held.grow(snap::raw::max_compress_len(message.len()) as u64)?;
    let packed = snap::raw::Encoder::new().compress_vec(&message).map_err(|e| {
        let why = "the response is too large for one message: use streamed chunks or select less";
        Error::too_large(why).because(e)
    })?;
    drop(message);
    held.shrink_to(packed.capacity() as u64);
    Ok(Payload::new(packed, Packing::Plain, Some(held)))
}

/// Upper bound of a run's bytes in the message, three times: a vector doubles when it grows, and
/// the old one exists until it is copied.
fn whole_bytes_max(labels: &Labels, times: &[Timestamp]) -> u64 {
    let heads = SamplesWriter::HEAD_BYTES_MAX * (2 + labels.count());
    let labels = labels.as_encoded().len() + heads;
    3 * (labels + times.len() * SamplesWriter::SAMPLE_BYTES_MAX) as u64
}

/// A streamed answer that is made part by part.
struct ReadStream {
    reading: Reading,
    queries: std::vec::IntoIter<ReadQuery>,
    walk: Option<SeriesWalk>,
    series_before: Option<usize>,
    frames: FrameWriter,
    part_bytes: usize,
    _held: Reservation,
}

impl ReadStream {
    fn new(reading: Reading, queries: Vec<ReadQuery>, frame_bytes: usize) -> Result<ReadStream> {
        // A part on its way to the client, one that is made, and the frame that grows for it.
        let held = reading.context.budget.reserve(Pool::Query, 3 * frame_bytes as u64)?;
        Ok(ReadStream {
            reading,
            queries: queries.into_iter(),
            walk: None,
            series_before: None,
            frames: FrameWriter::new(frame_bytes),
            part_bytes: frame_bytes,
            _held: held,
        })
    }

    /// The next frames, about as many as fit into one of full size; `None` at the end.
    fn next(&mut self, app: &App) -> Result<Option<Vec<u8>>> {
        let mut sample_count = 0;
        while self.frames.frames_bytes() < self.part_bytes {
            let Some(walk) = &mut self.walk else {
                let Some(query) = self.queries.next() else { break };
                self.walk = Some(self.reading.walk(query)?);
                self.series_before = None;
                continue;
            };
            let Some(run) = walk.next_run()? else {
                self.frames.end_query();
                self.walk = None;
                continue;
            };
            self.reading.take_samples(run.times.len())?;
            if self.series_before.replace(run.series_idx) != Some(run.series_idx) {
                self.frames.begin_series(run.labels);
            }
            self.frames.push(run.times, run.values);
            sample_count += run.times.len() as u64;
        }
        app.telemetry.samples_read.add(sample_count);
        let part = self.frames.take();
        Ok((!part.is_empty()).then_some(part))
    }
}

/// Resources of a streamed response until the connection has accepted all of it.
struct Held {
    running: Running,
    desk: Arc<QueryDesk>,
    _place: OwnedSemaphorePermit,
    _user_query: UserQuery,
    _canceled_when_dropped: CancelOnDrop,
}

/// A message to the connection. A stream that ends without `End` was cut off.
enum Sent {
    Part(Bytes),
    End,
}

fn stream(first: Option<Vec<u8>>, rest: Box<ReadStream>, held: Held) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(send_parts(first, rest, sender, held));
    let mut response = Response::new(Body::new(StreamBody(receiver)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(STREAM_TYPE));
    response
}

/// Passes parts to the connection as it accepts them. Ends early, which cuts the connection off, if
/// a part fails, is not made or accepted within a query's timeout, or if the client has delayed the
/// stream by [`CLIENT_WAIT_MAX`].
async fn send_parts(
    mut part: Option<Vec<u8>>,
    mut rest: Box<ReadStream>,
    sender: mpsc::Sender<Sent>,
    held: Held,
) {
    let app = &held.running.0;
    let timeout = app.config.query_timeout.duration();
    let cancel = rest.reading.context.cancel.clone();
    let mut patience = CLIENT_WAIT_MAX;
    while let Some(bytes) = part {
        let sending = send(&sender, Sent::Part(bytes.into()), &mut patience);
        match within(timeout, &cancel, sending).await {
            Ok(()) => {}
            Err(error) if *error.kind() == ErrorKind::Canceled => return,
            Err(error) => return report_cut_off(&error),
        }
        let shared = Arc::clone(app);
        let making =
            async { held.desk.read(move || rest.next(&shared).map(|part| (part, rest))).await? };
        let made = tokio::select! {
            made = within(timeout, &cancel, making) => made,
            () = sender.closed() => return,
        };
        match made {
            Ok(made) => (part, rest) = made,
            Err(error) => return report_cut_off(&error),
        }
    }
    let _ = within(timeout, &cancel, send(&sender, Sent::End, &mut patience)).await;
}

/// Logs that a stream was cut off, which a client can cause with every request.
fn report_cut_off(error: &Error) {
    static CUT_OFF: Throttle = Throttle::new();
    if let Some(count) = CUT_OFF.note(1, Instant::now()) {
        tracing::warn!("{count} streamed remote reads were cut off; the last: {error}");
    }
}

/// Waits until the connection accepts `sent`, at most for `patience`, which becomes shorter by the
/// wait.
async fn send(sender: &mpsc::Sender<Sent>, sent: Sent, patience: &mut Duration) -> Result<()> {
    let started = tokio::time::Instant::now();
    let accepted = tokio::time::timeout(*patience, sender.send(sent)).await;
    *patience = patience.saturating_sub(started.elapsed());
    match accepted {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Error::new(ErrorKind::Canceled, "the client disconnected")),
        Err(_) => {
            let what = format!("the client has delayed the stream by {CLIENT_WAIT_MAX:?}");
            Err(Error::new(ErrorKind::Timeout, what))
        }
    }
}

/// A body that ends cleanly only after an explicit end.
struct StreamBody(mpsc::Receiver<Sent>);

impl axum::body::HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|sent| match sent {
            Some(Sent::Part(bytes)) => Some(Ok(hyper::body::Frame::data(bytes))),
            Some(Sent::End) => None,
            None => Some(Err(Error::unavailable("the response was cut off; see the server's log"))),
        })
    }
}

/// Runs `work` with a timeout, after which it is canceled.
async fn within<T>(
    timeout: Duration,
    cancel: &CancelToken,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        cancel.time_out();
        let what = format!("the remote read made no progress for {timeout:?} (--query-timeout)");
        Err(Error::new(ErrorKind::Timeout, what))
    })
}

/// The refusal of a body. Its status is that of every body that is too long.
fn body_refusal(error: Error) -> Response<Body> {
    match error.kind() {
        ErrorKind::TooLarge => text(StatusCode::PAYLOAD_TOO_LARGE, format!("{error}\n")),
        _ => refusal(&error),
    }
}

/// An answer without a byte of data: a status and a sentence.
fn refusal(error: &Error) -> Response<Body> {
    let status = match error.kind() {
        ErrorKind::Invalid | ErrorKind::NotFound => StatusCode::BAD_REQUEST,
        // As of every query over a limit, whatever its protocol.
        ErrorKind::TooLarge => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Busy { .. }
        | ErrorKind::SeriesLimit { .. }
        | ErrorKind::Unavailable
        | ErrorKind::Closed
        | ErrorKind::Conflict
        | ErrorKind::Timeout
        | ErrorKind::Canceled => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupt { .. } | ErrorKind::Internal => {
            static FAILURES: Throttle = Throttle::new();
            if let Some(count) = FAILURES.note(1, Instant::now()) {
                tracing::error!("{count} remote reads failed; the last: {error}");
            }
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    with_retry_after(error, text(status, format!("{error}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, each request that a client made fail was a line of the log.
    #[test]
    fn streams_that_are_cut_off_are_logged_once_a_minute() {
        let lines = crate::throttle::lines_of(|| {
            (0..100).for_each(|_| report_cut_off(&Error::closed("stopping")));
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_drips_is_cut_off_and_a_slow_server_is_not() {
        for (client_ms, server_ms, is_cut) in [(10_000, 0, true), (0, 10_000, false)] {
            let (sender, mut receiver) = mpsc::channel(1);
            let reader = tokio::spawn(async move {
                while receiver.recv().await.is_some() {
                    tokio::time::sleep(Duration::from_millis(client_ms)).await;
                }
            });
            let mut patience = CLIENT_WAIT_MAX;
            let mut sent = Ok(());
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(server_ms)).await;
                sent = send(&sender, Sent::Part(Bytes::new()), &mut patience).await;
                if sent.is_err() {
                    break;
                }
            }
            assert_eq!(sent.is_err(), is_cut);
            if let Err(error) = sent {
                assert_eq!(*error.kind(), ErrorKind::Timeout);
                assert!(error.to_string().contains("delayed the stream by 900s"), "{error}");
            }
            drop(sender);
            reader.await.unwrap();
        }
    }
}
