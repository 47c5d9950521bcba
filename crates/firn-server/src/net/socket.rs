//! The layer between a connection and hyper. It reads and checks heads, and limits the time of both
//! directions. Bodies pass through without a copy.
//!
//! hyper receives a head once it is whole and well-formed. In place of a malformed or late head it
//! receives a request that [`Exchange::next_request`] recognises, so the refusal is sent in the
//! order of responses.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::chunks::ChunkedBody;
use super::head::{self, BodyLength, HeadRefusal};
use super::table::ConnectionHandle;
use super::transfer::{
    SHORT_TRANSFER_LIMITS, TRANSFER_LIMITS, TransferClock, TransferLimits, after,
};

/// Longer than clients keep idle connections (Go: 90 s), so that the client closes them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// From the first byte of a head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes after the last response are discarded for this long: a connection that is closed with
/// unread bytes is reset, and the response may be lost.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Bytes per read of a head.
const STEP_BYTES: usize = 8 << 10;
/// Passed on in place of a refused request.
const REFUSED_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// A connection with well-formed requests and a minimal rate.
#[derive(Debug)]
pub(super) struct Socket<S> {
    stream: S,
    handle: Arc<ConnectionHandle>,
    exchange: Arc<Exchange>,
    reading: InputState,
    /// Received bytes that were not passed on start at `start`.
    input: Vec<u8>,
    start: usize,
    /// How many of them contain no end of a head.
    scanned: usize,
    /// The next head arrived with the previous one, and other connections have had a turn.
    has_yielded: bool,
    /// Bytes to pass on before the input; the rest starts at `passed`.
    head: Vec<u8>,
    passed: usize,
    /// When the idle connection, or the head, will have taken too long.
    deadline: Option<Instant>,
    read_alarm: Alarm,
    body_clock: TransferClock,
    write_alarm: Alarm,
    write_clock: TransferClock,
    /// Written bytes were not flushed yet.
    is_unflushed: bool,
    lingering: Lingering,
}

#[derive(Clone, Copy, Debug)]
enum InputState {
    Head,
    Body(BodyPosition),
    /// A refusal is the last response.
    Refused,
}

#[derive(Clone, Copy, Debug)]
enum BodyPosition {
    /// Bytes that are left.
    Bytes(u64),
    Chunked(ChunkedBody),
}

/// Wakes the task at a deadline. The timer is reset for an earlier deadline and when it fires too
/// early, which is once a minute and not once a request.
#[derive(Debug, Default)]
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Whether `deadline` is over. If not, the task is woken then.
    fn is_over(&mut self, context: &mut Context<'_>, deadline: Instant) -> bool {
        if deadline <= Instant::now() {
            return true;
        }
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if deadline <= Instant::now() {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}

#[derive(Clone, Copy, Debug)]
enum Lingering {
    Open,
    Until { deadline: Instant, bytes: usize },
    Done,
}

/// State that the socket below hyper and the service above it share.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// Requests passed on.
    begun: AtomicU64,
    /// Requests that the service has seen.
    seen: AtomicU64,
    /// Requests whose response was handed over or dropped.
    ended: AtomicU64,
    /// The number of the refused request, the last one, and its response.
    refused: Mutex<Option<(u64, HeadRefusal)>>,
    is_stopping: AtomicBool,
}

impl Exchange {
    /// Called for each request, in order: the refusal if it is a refused one.
    pub(super) fn next_request(&self) -> Option<HeadRefusal> {
        let number = self.seen.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let refused = self.refused.lock();
        refused.as_ref().filter(|(refused, _)| *refused == number).map(|(_, why)| why.clone())
    }

    /// The response of a request was written to hyper, or its client has disconnected.
    pub(super) fn end_request(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// The client has less time from now on.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    fn is_answered(&self) -> bool {
        self.begun.load(Ordering::SeqCst) == self.ended.load(Ordering::SeqCst)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(
        stream: S,
        handle: Arc<ConnectionHandle>,
        exchange: Arc<Exchange>,
    ) -> Socket<S> {
        Socket {
            stream,
            handle,
            exchange,
            reading: InputState::Head,
            input: Vec::new(),
            start: 0,
            scanned: 0,
            has_yielded: false,
            head: Vec::new(),
            passed: 0,
            deadline: None,
            read_alarm: Alarm::default(),
            body_clock: TransferClock::default(),
            write_alarm: Alarm::default(),
            write_clock: TransferClock::default(),
            is_unflushed: false,
            lingering: Lingering::Open,
        }
    }

    /// Received bytes that were not passed on.
    fn unread(&self) -> &[u8] {
        self.input.get(self.start..).unwrap_or_default()
    }

    /// Steps over unread bytes; the memory of the last ones is released.
    fn step(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes);
        if self.start >= self.input.len() {
            self.input = Vec::new();
            self.start = 0;
        }
    }

    /// Reads the next head until it is ready to be passed on. False at the end of the connection.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // hyper would handle up to 16 pipelined requests in one poll, and a few clients with
        // thousands of them would delay all others by seconds.
        if !self.unread().is_empty() && !std::mem::replace(&mut self.has_yielded, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(end) = self.whole_head() {
                return Poll::Ready(Ok(self.pass_head(end)));
            }
            if let Some(refusal) = self.early_refusal() {
                self.handle.closings().malformed.add(1);
                return Poll::Ready(Ok(self.refuse(refusal)));
            }
            let was_empty = self.unread().is_empty();
            match self.poll_more(context)? {
                Poll::Ready(0) => return Poll::Ready(Ok(false)),
                // An idle connection had another deadline.
                Poll::Ready(_) if was_empty => self.deadline = None,
                Poll::Ready(_) => {}
                Poll::Pending if was_empty => {
                    self.settle();
                    let is_over =
                        self.deadline.is_some_and(|at| self.read_alarm.is_over(context, at));
                    if !is_over {
                        return Poll::Pending;
                    }
                    self.handle.closings().idle.add(1);
                    return Poll::Ready(Ok(false));
                }
                Poll::Pending => {
                    if self.is_between_responses() && !self.handle.set_head() {
                        return Poll::Ready(Ok(false));
                    }
                    let deadline = *self.deadline.get_or_insert_with(|| after(HEAD_TIMEOUT));
                    if !self.read_alarm.is_over(context, deadline) {
                        return Poll::Pending;
                    }
                    self.handle.closings().slow_request.add(1);
                    let seconds = HEAD_TIMEOUT.as_secs();
                    let why = format!("the request's head did not arrive within {seconds} seconds");
                    let refusal = head::refusal(StatusCode::REQUEST_TIMEOUT, why);
                    return Poll::Ready(Ok(self.refuse(refusal)));
                }
            }
        }
    }

    /// Reads more of a head.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut step = [const { MaybeUninit::uninit() }; STEP_BYTES];
        let mut read = ReadBuf::uninit(&mut step);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        self.input.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// The length of the next head if all of it is here. Empty lines before it do not count.
    fn whole_head(&mut self) -> Option<usize> {
        let lines = self.unread().chunks_exact(2).take_while(|line| *line == b"\r\n").count();
        if lines > 0 {
            self.step(lines.saturating_mul(2));
            self.scanned = 0;
        }
        let end = head::find_end(self.unread(), self.scanned);
        self.scanned = self.unread().len();
        end
    }

    /// The refusal of bytes that cannot become a head, however they continue.
    fn early_refusal(&self) -> Option<HeadRefusal> {
        let unread = self.unread();
        if unread.len() > head::HEAD_BYTES_MAX {
            return Some(head::too_large());
        }
        let other_protocol =
            unread != b"\r" && unread.first().is_some_and(|&byte| !head::may_begin(byte));
        other_protocol.then(|| head::bad("this is not HTTP; is TLS expected on this port?"))
    }

    /// False if the connection was closed for another one.
    fn pass_head(&mut self, end: usize) -> bool {
        let checked = match end > head::HEAD_BYTES_MAX {
            true => Err(head::too_large()),
            false => head::check(self.unread().get(..end).unwrap_or_default()),
        };
        match checked {
            Ok(checked) => {
                self.step(end);
                self.reading = match checked.body {
                    BodyLength::Bytes(0) => InputState::Head,
                    BodyLength::Bytes(bytes) => InputState::Body(BodyPosition::Bytes(bytes)),
                    BodyLength::Chunked => {
                        InputState::Body(BodyPosition::Chunked(ChunkedBody::new()))
                    }
                };
                self.pass(checked.bytes)
            }
            Err(refusal) => {
                self.handle.closings().malformed.add(1);
                self.refuse(refusal)
            }
        }
    }

    /// False if the connection was closed for another one.
    fn refuse(&mut self, refusal: HeadRefusal) -> bool {
        let number = self.exchange.begun.load(Ordering::SeqCst).saturating_add(1);
        *self.exchange.refused.lock() = Some((number, refusal));
        self.reading = InputState::Refused;
        self.pass(REFUSED_REQUEST.to_vec())
    }

    fn pass(&mut self, head: Vec<u8>) -> bool {
        self.scanned = 0;
        self.has_yielded = false;
        self.deadline = None;
        self.body_clock = TransferClock::default();
        // A request behind one whose response is not sent yet does not protect the connection: that
        // one may need no admission. If this one needs it, that protects it.
        let is_open = match self.is_between_responses() {
            true => self.handle.set_busy(),
            false => !self.handle.is_evicted(),
        };
        if !is_open {
            return false;
        }
        (self.passed, self.head) = (0, head);
        self.exchange.begun.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Copies as much of a head as fits.
    fn copy_head(&mut self, buffer: &mut ReadBuf<'_>) {
        let rest = self.head.get(self.passed..).unwrap_or_default();
        let here = rest.get(..buffer.remaining()).unwrap_or(rest);
        buffer.put_slice(here);
        self.passed = self.passed.saturating_add(here.len());
        if self.passed >= self.head.len() {
            (self.head, self.passed) = (Vec::new(), 0);
        }
    }

    fn poll_body(
        &mut self,
        mut body: BodyPosition,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.unread().is_empty() {
            match Pin::new(&mut self.stream).poll_read(context, buffer) {
                Poll::Ready(read) => read?,
                Poll::Pending => {
                    let deadline = self.body_clock.waits(self.limits());
                    if self.read_alarm.is_over(context, deadline) {
                        self.handle.closings().slow_request.add(1);
                        let why = "the body of the request arrives too slowly";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                    }
                    return Poll::Pending;
                }
            }
        } else {
            let here = self.unread().len().min(buffer.remaining());
            let here = match body {
                BodyPosition::Bytes(left) => usize::try_from(left).unwrap_or(usize::MAX).min(here),
                BodyPosition::Chunked(_) => here,
            };
            buffer.put_slice(self.unread().get(..here).unwrap_or_default());
            self.step(here);
        }
        let received = buffer.filled().get(before..).unwrap_or_default();
        self.body_clock.moved(received.len());
        let of_body = match &mut body {
            BodyPosition::Bytes(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(received.len());
                *left = left.saturating_sub(here as u64);
                here
            }
            BodyPosition::Chunked(chunks) => chunks.step(received).map_err(|why| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the body is malformed: {why}"))
            })?,
        };
        let is_at_end = match &body {
            BodyPosition::Bytes(left) => *left == 0,
            BodyPosition::Chunked(chunks) => chunks.is_at_end(),
        };
        self.reading = if is_at_end { InputState::Head } else { InputState::Body(body) };
        // Bytes behind the body belong to the next head.
        if let Some(behind @ [_, ..]) = received.get(of_body..) {
            self.input.splice(..self.start, behind.iter().copied());
            self.start = 0;
            buffer.set_filled(before.saturating_add(of_body));
        }
        Poll::Ready(Ok(()))
    }

    /// Between two requests the connection is idle, once the last response was sent.
    fn settle(&mut self) {
        let is_idle = matches!(self.reading, InputState::Head)
            && self.head.is_empty()
            && self.unread().is_empty()
            && self.is_between_responses();
        if is_idle && self.deadline.is_none() {
            self.write_clock = TransferClock::default();
            self.deadline = Some(after(IDLE_TIMEOUT));
            self.handle.set_idle();
        }
    }

    /// Every response was sent.
    fn is_between_responses(&self) -> bool {
        !self.is_unflushed && self.exchange.is_answered()
    }

    fn limits(&self) -> TransferLimits {
        let is_stopping = self.exchange.is_stopping.load(Ordering::SeqCst);
        if is_stopping || !self.handle.is_admitted() {
            SHORT_TRANSFER_LIMITS
        } else {
            TRANSFER_LIMITS
        }
    }

    /// After a write: `Pending` until the client has accepted something, or has taken too long.
    fn after_write(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.is_unflushed = true;
        match written {
            Poll::Ready(written) => {
                self.write_clock.moved(*written.as_ref().unwrap_or(&0));
                Poll::Ready(written)
            }
            Poll::Pending => {
                let deadline = self.write_clock.waits(self.limits());
                if self.write_alarm.is_over(context, deadline) {
                    self.handle.closings().slow_response.add(1);
                    let why = "the client reads its response too slowly";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Poll::Pending
            }
        }
    }

    /// Discards further bytes of the client.
    fn poll_linger(
        &mut self,
        context: &mut Context<'_>,
        deadline: Instant,
        mut bytes: usize,
    ) -> Poll<()> {
        let mut step = [const { MaybeUninit::uninit() }; STEP_BYTES];
        loop {
            let mut read = ReadBuf::uninit(&mut step);
            match Pin::new(&mut self.stream).poll_read(context, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                    bytes = bytes.saturating_add(read.filled().len());
                    if bytes > LINGER_BYTES_MAX || Instant::now() >= deadline {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    self.lingering = Lingering::Until { deadline, bytes };
                    let is_over = self.read_alarm.is_over(context, deadline);
                    return if is_over { Poll::Ready(()) } else { Poll::Pending };
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        if socket.head.is_empty() {
            match socket.reading {
                InputState::Body(body) => return socket.poll_body(body, context, buffer),
                // An end would abort the response.
                InputState::Refused => return Poll::Pending,
                InputState::Head => {
                    if !ready!(socket.poll_head(context))? {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
        socket.copy_head(buffer);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let written = Pin::new(&mut socket.stream).poll_write(context, bytes);
        socket.after_write(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let written = Pin::new(&mut socket.stream).poll_write_vectored(context, slices);
        socket.after_write(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let flushed = Pin::new(&mut socket.stream).poll_flush(context).map_ok(|()| 0);
        ready!(socket.after_write(context, flushed))?;
        socket.is_unflushed = false;
        socket.settle();
        // The task may have polled for a head before it became idle: it must be woken in the end.
        if let Some(deadline) = socket.deadline
            && socket.read_alarm.is_over(context, deadline)
        {
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        loop {
            match socket.lingering {
                Lingering::Open => {
                    let closed = Pin::new(&mut socket.stream).poll_shutdown(context);
                    ready!(socket.after_write(context, closed.map_ok(|()| 0)))?;
                    let has_more =
                        !matches!(socket.reading, InputState::Head) || !socket.unread().is_empty();
                    socket.handle.set_evictable();
                    socket.lingering = match has_more {
                        true => {
                            let deadline = after(LINGER_TIMEOUT);
                            Lingering::Until { deadline, bytes: 0 }
                        }
                        false => Lingering::Done,
                    };
                }
                Lingering::Until { deadline, bytes } => {
                    ready!(socket.poll_linger(context, deadline, bytes));
                    socket.lingering = Lingering::Done;
                }
                Lingering::Done => return Poll::Ready(Ok(())),
            }
        }
    }
}
