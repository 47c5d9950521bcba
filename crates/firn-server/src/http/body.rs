//! Reading request bodies: within a limit of size, the memory budget and a limit of time.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use firn_model::{Budget, Error, ErrorKind, Pool, Reservation, Result};
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::app::{App, Ready};
use crate::config::ServeConfig;
use crate::http::auth::Caller;
use crate::http::turns::{Turn, TurnClient, Turns};
use crate::wire::snappy;

/// A request body in memory, accounted.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    pub(crate) bytes: Vec<u8>,
    held: Reservation,
    /// More will not be pushed.
    len_max: usize,
}

/// How the body of a write is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packed {
    Plain,
    Gzip,
    Snappy,
}

/// The largest body that a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit {
    bytes_max: usize,
    /// The setting that raises it; `None` for a constant.
    setting: Option<&'static str>,
    /// Whether a longer body is no form, as for Prometheus; else it is `TooLarge`.
    is_form: bool,
}

impl BodyLimit {
    /// The limit of a write, whether its body is compressed or not.
    pub(crate) fn of_write(config: &ServeConfig) -> BodyLimit {
        let bytes_max = config.body_bytes_max.to_usize();
        BodyLimit { bytes_max, setting: Some("--body-bytes-max"), is_form: false }
    }

    /// A limit that is not a setting.
    pub(crate) fn constant(bytes_max: usize) -> BodyLimit {
        BodyLimit { bytes_max, setting: None, is_form: false }
    }

    /// The limit of a form.
    pub(crate) fn form(bytes_max: usize) -> BodyLimit {
        BodyLimit { bytes_max, setting: None, is_form: true }
    }
}

// While memory is short, a body must arrive at a rate: these bytes per second, and this part of the
// bytes that are here. It is checked at this interval. Otherwise the body releases its memory: a
// client that holds a lot of memory must send a lot. While memory is not short, the limits of the
// connection decide.
const RATE_INTERVAL: Duration = Duration::from_secs(2);
const RATE_BYTES_PER_SECOND: usize = 32 << 10;
const RATE_PARTS_PER_SECOND: usize = 8;
// Room for some hundred new series, which are refused before other writes and queries.
const SERIES_BYTES: u64 = 256 << 10;
// Reserved for the first bytes of a body.
const FIRST_BYTES: usize = 16 << 10;
// A short body grows in larger steps.
const SHORT_BYTES: usize = 1 << 20;
// Per read of a decoder.
const STEP_BYTES: usize = 64 << 10;
// A gzip body may unpack to this much, whatever size it declares: no turn is taken for it.
const UNDECLARED_BYTES_MAX: usize = 1 << 20;

/// Reads all of `body`, whose memory is `pool`'s: reserved as the bytes arrive, because a length is
/// announced for free.
///
/// # Errors
/// `TooLarge` over `limit` (`Invalid` for a form), before anything is read if the length is
/// announced, and for a body that never fits into the memory; `Busy` without memory; `Invalid` when
/// the sender stops in the middle, `Timeout` when it is too slow.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: BodyLimit,
    memory: (&Budget, Pool),
) -> Result<HeldBytes> {
    Ok(read_in_turn(headers, body, limit, memory, None).await?.0)
}

/// Reads the body of a write as [`read`]. A large one has a turn, to be kept until it was written.
///
/// # Errors
/// As [`read`]; `Busy` also if its turn does not come.
pub(crate) async fn read_write(
    app: &App,
    ready: &Ready,
    parts: &Parts,
    body: Body,
    packed: Packed,
) -> Result<(HeldBytes, Option<Turn>)> {
    let limit = BodyLimit::of_write(&app.config);
    let memory = (ready.db.budget(), Pool::Requests);
    let client = TurnClient::from(&Caller::of_parts(parts));
    let queue = BodyTurns { turns: &app.turns, client: &client, packed };
    let (held, mut turn) = read_in_turn(&parts.headers, body, limit, memory, Some(queue)).await?;
    let unpacked_bytes = held.unpacked_bytes(packed);
    if turn.is_none() && app.turns.is_large(unpacked_bytes) {
        turn = Some(app.turns.take(&client, unpacked_bytes, held.bytes.len()).await?);
    }
    app.telemetry.written.bytes_compressed.add(held.bytes.len() as u64);
    Ok((held, turn))
}

/// The turns that a write may need.
#[derive(Clone, Copy, Debug)]
struct BodyTurns<'a> {
    turns: &'a Turns,
    client: &'a TurnClient,
    packed: Packed,
}

/// The progress of a body since the last check.
struct ArrivalRate {
    next_check: Instant,
    bytes_before: usize,
}

impl ArrivalRate {
    /// The rate of a body of which `bytes` have arrived.
    fn at(bytes: usize) -> ArrivalRate {
        ArrivalRate { next_check: Instant::now() + RATE_INTERVAL, bytes_before: bytes }
    }

    /// Checks whether a body of which `bytes` are here may keep its memory, if a check is due.
    ///
    /// # Errors
    /// `Busy` if it arrives slowly and memory is short.
    fn check(&mut self, bytes: usize, budget: &Budget) -> Result<()> {
        if Instant::now() < self.next_check {
            return Ok(());
        }
        let per_second = RATE_BYTES_PER_SECOND + self.bytes_before / RATE_PARTS_PER_SECOND;
        // A short body of a slow line holds next to nothing.
        let wanted = match bytes {
            0..=FIRST_BYTES => 1,
            _ => per_second.saturating_mul(RATE_INTERVAL.as_secs() as usize),
        };
        let is_slow = bytes - self.bytes_before < wanted;
        *self = ArrivalRate::at(bytes);
        if is_slow && budget.missing_bytes(Pool::Index, SERIES_BYTES) > 0 {
            return Err(Error::busy(
                1_000,
                "memory is short and the body arrives slowly; retry later",
            ));
        }
        Ok(())
    }
}

/// Reads as [`read`]. With `queue` a body that turns out to be large takes a turn, which it may
/// lose while it arrives.
async fn read_in_turn(
    headers: &HeaderMap,
    body: Body,
    limit: BodyLimit,
    (budget, pool): (&Budget, Pool),
    queue: Option<BodyTurns<'_>>,
) -> Result<(HeldBytes, Option<Turn>)> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|len: u64| len > limit.bytes_max as u64) {
        return Err(too_large(limit));
    }
    let mut read = HeldBytes::empty(budget, pool);
    // At most the limit.
    let len_max = announced.map_or(limit.bytes_max, |len| len as usize);
    // Until then no turn is needed.
    let mut small_max = queue.map(|queue| queue.turns.bytes_before_turn(announced));
    read.len_max = small_max.map_or(len_max, |small_max| small_max.min(len_max));
    let mut turn: Option<Turn> = None;
    let mut rate = ArrivalRate::at(0);
    let mut body = body;
    loop {
        rate.check(read.bytes.len(), budget)?;
        let mut wait_max = rate.next_check.saturating_duration_since(Instant::now());
        if let Some(until) = turn.as_ref().map(|turn| turn.arrives_until(read.bytes.len())) {
            let left = until.saturating_duration_since(Instant::now());
            wait_max = wait_max.min(left);
            turn = turn.filter(|_| !left.is_zero());
        }
        let frame = match tokio::time::timeout(wait_max, body.frame()).await {
            Ok(Some(frame)) => frame.map_err(cut_off)?,
            Ok(None) => return Ok((read, turn)),
            Err(_) => continue,
        };
        let Ok(data) = frame.into_data() else { continue };
        let wanted = read.bytes.len() + data.len();
        if wanted > limit.bytes_max {
            return Err(too_large(limit));
        }
        if let Some(BodyTurns { turns, client, packed }) = queue
            && small_max.take_if(|small_max| wanted > *small_max).is_some()
        {
            // The size of compressed data is not known yet.
            let bytes = if packed == Packed::Plain { len_max as u64 } else { u64::MAX };
            turn = Some(turns.take(client, bytes, read.bytes.len()).await?);
            rate = ArrivalRate::at(read.bytes.len());
            read.len_max = len_max;
        }
        read.push(&data)?;
    }
}

/// The body ended before its end; the connection below knows why.
fn cut_off(error: axum::Error) -> Error {
    let mut source = Some(&error as &dyn std::error::Error);
    while let Some(cause) = source {
        match cause.downcast_ref::<std::io::Error>().map(|e| (e.kind(), e.to_string())) {
            Some((std::io::ErrorKind::TimedOut, why)) => {
                return Error::new(ErrorKind::Timeout, why);
            }
            Some((std::io::ErrorKind::InvalidData, why)) => return Error::invalid(why),
            _ => source = cause.source(),
        }
    }
    Error::invalid("the body ends early").because(error)
}

impl HeldBytes {
    /// No bytes, no memory yet.
    pub(crate) fn empty(budget: &Budget, pool: Pool) -> HeldBytes {
        HeldBytes { bytes: Vec::new(), held: budget.of_request(pool, 0), len_max: usize::MAX }
    }

    /// Adds `data` after reserving its memory.
    ///
    /// # Errors
    /// `Busy` without memory.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<()> {
        let (len, wanted) = (self.bytes.len(), self.bytes.len() + data.len());
        if wanted > self.bytes.capacity() {
            let factor = if wanted < SHORT_BYTES { 4 } else { 2 };
            let ahead = (factor * len).max(FIRST_BYTES).min(self.len_max);
            let capacity = wanted.max(ahead);
            // While they are moved, the bytes exist twice.
            let released = self.bytes.capacity() as u64;
            self.held.grow(capacity as u64)?;
            let mut moved = Vec::with_capacity(capacity);
            moved.append(&mut self.bytes);
            self.bytes = moved;
            self.held.shrink(released);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl HeldBytes {
    /// The bytes and their memory.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Reservation) {
        (self.bytes, self.held)
    }

    /// Decompresses the body to at most `bytes_max`.
    ///
    /// # Errors
    /// As [`HeldBytes::unpack_gzip`].
    pub(crate) fn unpack(
        self,
        packed: Packed,
        bytes_max: usize,
        budget: &Budget,
    ) -> Result<HeldBytes> {
        match packed {
            Packed::Plain => Ok(self),
            Packed::Gzip => self.unpack_gzip(bytes_max, budget),
            Packed::Snappy => self.unpack_snappy(bytes_max, budget),
        }
    }

    /// The size of the decompressed body according to its sender, at least that of the body.
    fn unpacked_bytes(&self, packed: Packed) -> u64 {
        let declared = match packed {
            Packed::Plain => 0,
            // The last four bytes, modulo 4 GiB, of the last member. A wrong size gains little: see
            // `UNDECLARED_BYTES_MAX`.
            Packed::Gzip => {
                self.bytes.last_chunk().map_or(0, |len| u32::from_le_bytes(*len).into())
            }
            // The decoder reports the mistake.
            Packed::Snappy => snappy::declared_bytes(&self.bytes, usize::MAX).unwrap_or(0) as u64,
        };
        declared.max(self.bytes.len() as u64)
    }

    /// Decompresses a gzip body to at most `bytes_max`. One that is larger than it declares would
    /// pass by the turns of large bodies.
    ///
    /// # Errors
    /// `Invalid`, `TooLarge` over `bytes_max`, `Busy` without memory.
    fn unpack_gzip(self, bytes_max: usize, budget: &Budget) -> Result<HeldBytes> {
        let mut unpacked = HeldBytes::empty(budget, Pool::Requests);
        let declared_bytes = self.unpacked_bytes(Packed::Gzip);
        let declared_bytes = usize::try_from(declared_bytes).unwrap_or(usize::MAX);
        let mut reader = flate2::read::MultiGzDecoder::new(self.bytes.as_slice());
        let mut step = vec![0; STEP_BYTES];
        loop {
            let len = reader
                .read(&mut step)
                .map_err(|e| Error::invalid("gzip: the body is not valid").because(e))?;
            if len == 0 {
                return Ok(unpacked);
            }
            if unpacked.bytes.len() + len > bytes_max {
                return Err(Error::too_large(format!(
                    "gzip: the body unpacks to more than the limit of {bytes_max} bytes \
                     (--request-bytes-max)"
                )));
            }
            if unpacked.bytes.len() + len > declared_bytes.max(UNDECLARED_BYTES_MAX) {
                return Err(Error::too_large(
                    "gzip: the body unpacks to more than its last four bytes declare: send it as \
                     one member",
                ));
            }
            unpacked.push(step.get(..len).unwrap_or(&[]))?;
        }
    }

    /// Decompresses a snappy block to at most `bytes_max`.
    ///
    /// # Errors
    /// As [`HeldBytes::unpack_gzip`].
    fn unpack_snappy(self, bytes_max: usize, budget: &Budget) -> Result<HeldBytes> {
        let mut unpacked = HeldBytes::empty(budget, Pool::Requests);
        unpacked.held.grow(snappy::declared_bytes(&self.bytes, bytes_max)? as u64)?;
        let len = snappy::decompress(&self.bytes, bytes_max, &mut unpacked.bytes)?.len();
        unpacked.bytes.truncate(len);
        Ok(unpacked)
    }
}

fn too_large(limit: BodyLimit) -> Error {
    let what = match limit.setting {
        Some(name) => format!("the body is over the limit of {} bytes ({name})", limit.bytes_max),
        None => format!("the body is over {} MiB", limit.bytes_max >> 20),
    };
    if limit.is_form { Error::invalid(what) } else { Error::too_large(what) }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::http::HeaderValue;
    use bytes::Bytes;
    use hyper::body::Frame;

    use super::*;
    use crate::access::account::User;

    /// Sends frames, then nothing.
    struct StalledBody(Vec<Bytes>);

    impl axum::body::HttpBody for StalledBody {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<std::result::Result<Frame<Bytes>, Self::Error>>> {
            match self.0.pop() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => Poll::Pending,
            }
        }
    }

    fn headers(length: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static(length))])
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_length_reserves_nothing_and_a_stalled_body_yields_to_new_series() {
        let budget = Budget::new(100 << 20);
        let limit = BodyLimit::constant(32 << 20);
        let read_stalled = async |frames: Vec<Bytes>| {
            let body = Body::new(StalledBody(frames));
            let memory = (&budget, Pool::Requests);
            let headers = headers("33554432");
            let reading = read(&headers, body, limit, memory);
            let used = async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                budget.usage().used_bytes
            };
            tokio::select! { read = reading => Err(read.unwrap_err()), used = used => Ok(used) }
        };
        assert_eq!(read_stalled(Vec::new()).await.unwrap(), 0);
        let some = vec![Bytes::from_static(b"some")];
        assert_eq!(read_stalled(some.clone()).await.unwrap(), FIRST_BYTES as u64);
        let _used = budget.reserve(Pool::Jobs, 80 << 20).unwrap();
        let error = read_stalled(some).await.unwrap_err();
        assert!(error.is_retriable() && error.to_string().contains("slowly"), "{error}");
        assert_eq!(budget.usage().used_bytes, 80 << 20);
    }

    /// Sends much at once, then a byte per second.
    struct Trickle(Option<Bytes>, tokio::time::Interval);

    impl axum::body::HttpBody for Trickle {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            if let Some(first) = self.0.take() {
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
            self.1.poll_tick(cx).map(|_| Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    /// Before, one byte in two seconds kept the memory of all earlier bytes.
    #[tokio::test(start_paused = true)]
    async fn a_trickle_releases_its_memory_while_memory_is_short() {
        let budget = Budget::new(100 << 20);
        let limit = BodyLimit::form(10 << 20);
        let read_for = async |seconds: u64| {
            let ticks = tokio::time::interval(Duration::from_secs(1));
            let body = Body::new(Trickle(Some(Bytes::from(vec![7; 1 << 20])), ticks));
            let headers = HeaderMap::new();
            let reading = read(&headers, body, limit, (&budget, Pool::Query));
            tokio::time::timeout(Duration::from_secs(seconds), reading).await
        };
        assert!(read_for(60).await.is_err(), "nothing else needs the memory");
        let _used = budget.reserve(Pool::Jobs, 80 << 20).unwrap();
        let error = read_for(5).await.expect("refused").unwrap_err();
        assert!(error.is_retriable() && error.to_string().contains("slowly"), "{error}");
        assert_eq!(budget.usage().used_bytes, 80 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_waits_with_little_memory_and_a_slow_one_loses_its_turn() {
        let budget = Budget::new(100 << 20);
        // Large is over 1 MiB.
        let turns = Turns::within(64 << 20);
        let caller = |port| Caller {
            user: User::anyone(),
            address: Some(SocketAddr::from(([127, 0, 0, 1], port))),
        };
        let (client, other) = (TurnClient::from(&caller(1)), TurnClient::from(&caller(2)));
        let read = async |length: Option<&'static str>, body: Body, packed: Packed| {
            let headers = length.map_or_else(HeaderMap::new, headers);
            let (limit, memory) = (BodyLimit::constant(32 << 20), (&budget, Pool::Requests));
            let queue = BodyTurns { turns: &turns, client: &client, packed };
            let (held, turn) = read_in_turn(&headers, body, limit, memory, Some(queue)).await?;
            Ok::<_, Error>((held.bytes.len(), turn))
        };
        let stalled = |frame_count: usize| {
            Body::new(StalledBody(vec![Bytes::from(vec![7; 32 << 10]); frame_count]))
        };
        let used_while = async |length: Option<&'static str>| {
            let used = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                budget.usage().used_bytes
            };
            tokio::select! {
                _ = read(length, stalled(100), Packed::Plain) => panic!("it ends"),
                used = used => used,
            }
        };
        let all = turns.take(&other, u64::MAX, 0).await.unwrap();
        assert_eq!(used_while(Some("3276800")).await, 64 << 10);
        assert_eq!(used_while(None).await, 1 << 20);
        let refused = read(Some("3276800"), stalled(100), Packed::Plain).await.unwrap_err();
        assert!(refused.is_retriable() && refused.to_string().contains("requests wait"));
        assert_eq!(budget.usage().used_bytes, 0);
        let small = Body::from(vec![7; 1 << 20]);
        let (len, turn) = read(Some("1048576"), small, Packed::Snappy).await.unwrap();
        assert!(len == 1 << 20 && turn.is_none(), "small bodies do not wait");
        drop(all);

        let large = Body::from(vec![7; 3_276_800]);
        let (len, turn) = read(Some("3276800"), large, Packed::Plain).await.unwrap();
        assert!(len == 3_276_800 && turn.is_some());
        drop(turn);
        let begun = Instant::now();
        let other = async {
            tokio::task::yield_now().await;
            let _turn = turns.take(&other, u64::MAX, 0).await.unwrap();
            begun.elapsed()
        };
        let waited = tokio::select! {
            biased;
            _ = read(Some("3276800"), stalled(10), Packed::Snappy) => panic!("it ends"),
            waited = other => waited,
        };
        // A tenth of a second, and the time of the 320 KiB that came.
        assert!((400..500).contains(&waited.as_millis()), "{waited:?}");
    }

    #[tokio::test]
    async fn memory_grows_with_the_body_up_to_its_length() {
        let budget = Budget::new(100 << 20);
        for length in [0, 1, 5_000, 100_000, 3_000_000] {
            let body = vec![7; length];
            let text: &'static str = length.to_string().leak();
            for headers in [headers(text), HeaderMap::new()] {
                let body = Body::new(http_body_util::Full::from(body.clone()));
                let limit = BodyLimit::constant(4 << 20);
                let read = read(&headers, body, limit, (&budget, Pool::Requests)).await.unwrap();
                assert_eq!(read.bytes.len(), length);
                assert_eq!(read.held.bytes(), read.bytes.capacity() as u64);
            }
        }
        let mut held = HeldBytes::empty(&budget, Pool::Requests);
        for _ in 0..1_000 {
            held.push(&[7; 3_000]).unwrap();
            assert!(held.held.bytes() >= held.bytes.capacity() as u64);
        }
        assert!(held.bytes.capacity() <= 8_000_000);
        drop(held);
        assert_eq!(budget.usage().used_bytes, 0);
    }
}
