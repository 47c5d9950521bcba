//! Bodies: unpacked as they arrive, within a limit and a reservation, in buffers that serve again.

use std::io::{self, Write};
use std::ops::Deref;
use std::sync::Arc;

use firn_model::{Budget, Pool, Reservation};
use flate2::write::MultiGzDecoder;
use parking_lot::Mutex;

use crate::FetchError;

/// The memory of bodies: reserved in a budget. A few buffers are kept for the next bodies, because
/// the pages of a new one cost more than reading a body into it. Clones share them.
#[derive(Clone, Debug)]
pub struct Bodies {
    budget: Budget,
    /// The part of the budget that the bodies of this client have.
    own: Budget,
    idle: Arc<Mutex<Vec<Buffer>>>,
}

/// An unpacked body. [`Bodies`] gets its buffer back.
#[derive(Debug)]
pub struct Body {
    buffer: Buffer,
    home: Bodies,
}

/// Memory and its reservation, which is at least its capacity.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    held: Reservation,
}

// Together at most 1 MiB.
const IDLE_BUFFERS_MAX: usize = 4;
const IDLE_BUFFER_BYTES_MAX: usize = 256 << 10;

// Bounds of the first growth of a body, which is that of the last one: a longer body grows as it
// arrives.
const FIRST_BYTES_MIN: usize = 4 << 10;
const FIRST_BYTES_MAX: usize = 1 << 20;

// Bodies that leave no memory to those of other clients: most bodies of targets that do not answer
// in time are not longer, and their number is bounded.
const SHORT_BYTES_MAX: usize = 64 << 10;
// The memory of a client's bodies for that which is left: see `FairPlaces`.
const SHARE_MAX: u64 = 3;

// Unpacked bytes that take a fraction of a millisecond. The rest of a body is unpacked by a thread
// of its own: a body of 100 KB may unpack to 100 MB, and many scrapes share one thread.
const UNPACKED_HERE_MAX: usize = 256 << 10;
// Packed bytes, which unpack to a thousand times as many at most.
const PIECE_BYTES: usize = 512;

impl Bodies {
    /// No body yet. All are reserved in the pool `requests` of `budget`.
    pub fn new(budget: &Budget) -> Bodies {
        Bodies { budget: budget.clone(), own: budget.part(u64::MAX), idle: Arc::default() }
    }

    /// Those of one more client.
    pub(crate) fn of_client(&self) -> Bodies {
        Bodies { own: self.budget.part(u64::MAX), ..self.clone() }
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A body of these bytes, which are few: they are reserved without a limit.
    pub(crate) fn unlimited(&self, bytes: Vec<u8>) -> Body {
        let mut held = self.own.empty(Pool::Requests);
        held.take(bytes.capacity() as u64);
        Body { buffer: Buffer { bytes, held }, home: self.clone() }
    }

    fn empty(&self) -> Body {
        self.unlimited(Vec::new())
    }

    /// A kept buffer of at least this capacity.
    fn idle(&self, capacity_min: usize) -> Option<Buffer> {
        let mut idle = self.idle.lock();
        let idx = idle.iter().position(|buffer| buffer.bytes.capacity() >= capacity_min)?;
        Some(idle.swap_remove(idx))
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let Buffer { bytes, held } = &mut self.buffer;
        if !(FIRST_BYTES_MIN..=IDLE_BUFFER_BYTES_MAX).contains(&bytes.capacity()) {
            return;
        }
        let mut idle = self.home.idle.lock();
        // The oldest is dropped: sizes change with the targets.
        if idle.len() >= IDLE_BUFFERS_MAX {
            idle.remove(0);
        }
        let mut bytes = std::mem::take(bytes);
        bytes.clear();
        let held =
            moved(std::mem::replace(held, self.home.own.empty(Pool::Requests)), &self.home.budget);
        idle.push(Buffer { bytes, held });
    }
}

/// `held` as a reservation in `budget`: a buffer serves several clients, and the part of each has
/// its present bodies only. For a moment the bytes count twice, never less than once.
fn moved(held: Reservation, budget: &Budget) -> Reservation {
    let mut moved = budget.empty(Pool::Requests);
    moved.take(held.bytes());
    moved
}

/// Receives the frames of a body.
pub(crate) struct Unpacker {
    sink: Packed,
}

enum Packed {
    Plain(Sink),
    Gzip(Box<MultiGzDecoder<Sink>>),
}

/// The unpacked bytes. Writing fails at the limit, so that a small body that unpacks to a huge one
/// costs no more than the limit.
struct Sink {
    body: Body,
    bytes_max: u64,
    /// The first growth.
    first_bytes: usize,
    failed: Option<FetchError>,
}

impl Unpacker {
    /// A body of fewer than `bytes_max` bytes when unpacked; 0 is no limit. The last body from
    /// there had `last_len` bytes.
    pub(crate) fn new(is_gzip: bool, bytes_max: u64, last_len: usize, bodies: &Bodies) -> Unpacker {
        // A sixteenth more: the numbers of the same metrics differ in length.
        let first_bytes = last_len.saturating_add(last_len / 16);
        let first_bytes = first_bytes.clamp(FIRST_BYTES_MIN, FIRST_BYTES_MAX);
        let sink = Sink { body: bodies.empty(), bytes_max, first_bytes, failed: None };
        let sink = match is_gzip {
            true => Packed::Gzip(Box::new(MultiGzDecoder::new(sink))),
            false => Packed::Plain(sink),
        };
        Unpacker { sink }
    }

    /// Unpacks `frame` as long as this takes a short time. Returns the rest.
    pub(crate) fn push_here<'f>(&mut self, frame: &'f [u8]) -> Result<&'f [u8], FetchError> {
        let mut rest = frame;
        if let Packed::Plain(_) = self.sink {
            return self.push(frame).map(|()| &[][..]);
        }
        while !rest.is_empty() && self.len() <= UNPACKED_HERE_MAX {
            let (piece, behind) = rest.split_at(rest.len().min(PIECE_BYTES));
            self.push(piece)?;
            rest = behind;
        }
        Ok(rest)
    }

    /// The unpacked bytes so far.
    fn len(&self) -> usize {
        match &self.sink {
            Packed::Plain(sink) => sink.body.len(),
            Packed::Gzip(decoder) => decoder.get_ref().body.len(),
        }
    }

    pub(crate) fn push(&mut self, frame: &[u8]) -> Result<(), FetchError> {
        let (written, sink) = match &mut self.sink {
            Packed::Plain(sink) => (sink.write_all(frame), sink),
            Packed::Gzip(decoder) => (decoder.write_all(frame), decoder.get_mut()),
        };
        written.map_err(|error| sink.error(&error))
    }

    /// The whole body.
    pub(crate) fn finish(self) -> Result<Body, FetchError> {
        let sink = match self.sink {
            Packed::Plain(sink) => sink,
            Packed::Gzip(mut decoder) => {
                if let Err(error) = decoder.try_finish() {
                    return Err(decoder.get_mut().error(&error));
                }
                decoder.finish().map_err(|error| FetchError::transport("gzip", error))?
            }
        };
        Ok(sink.body)
    }
}

impl Sink {
    fn error(&mut self, error: &io::Error) -> FetchError {
        self.failed.take().unwrap_or_else(|| FetchError::transport("gzip", error))
    }

    fn make_room(&mut self, more: usize) -> Result<(), FetchError> {
        let Body { buffer, home } = &mut self.body;
        let len = buffer.bytes.len().saturating_add(more);
        if self.bytes_max > 0 && len as u64 >= self.bytes_max {
            return Err(FetchError::BodyLimit);
        }
        if len <= buffer.bytes.capacity() {
            return Ok(());
        }
        let capacity = buffer.bytes.capacity().saturating_mul(2).max(len).max(self.first_bytes);
        if buffer.bytes.is_empty()
            && let Some(Buffer { bytes, held }) = home.idle(capacity)
        {
            *buffer = Buffer { bytes, held: moved(held, &home.own) };
            return Ok(());
        }
        // The bodies of a client grow while a third of their memory is left to those of others. The
        // memory of caches counts as left: else long bodies would be refused while caches are full.
        let is_long = capacity > SHORT_BYTES_MAX;
        let left = if is_long { home.own.usage().used_bytes / SHARE_MAX } else { 0 };
        let left = home.budget.reserve(Pool::Requests, left).map_err(FetchError::Memory)?;
        buffer.held.cover(capacity as u64).map_err(FetchError::Memory)?;
        drop(left);
        buffer.bytes.reserve_exact(capacity.saturating_sub(buffer.bytes.len()));
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, frame: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.make_room(frame.len()) {
            self.failed = Some(error);
            return Err(io::ErrorKind::Other.into());
        }
        self.body.buffer.bytes.extend_from_slice(frame);
        Ok(frame.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn unpack(
        body: &[u8],
        is_gzip: bool,
        bytes_max: u64,
        memory: u64,
    ) -> Result<Vec<u8>, FetchError> {
        let bodies = Bodies::new(&Budget::new(memory));
        let mut unpacker = Unpacker::new(is_gzip, bytes_max, 0, &bodies);
        for frame in body.chunks(7) {
            unpacker.push(frame)?;
        }
        unpacker.finish().map(|body| {
            assert!(body.buffer.held.bytes() >= body.buffer.bytes.capacity() as u64);
            body.to_vec()
        })
    }

    // Item 23: gzip is unpacked; a body may have several members.
    #[test]
    fn bodies_are_unpacked() {
        let text = b"a 1\nb 2\n".repeat(1_000);
        assert_eq!(unpack(&text, false, 0, 1 << 20).unwrap(), text);
        assert_eq!(unpack(&packed(&text), true, 0, 1 << 20).unwrap(), text);
        let twice = [packed(b"a 1\n"), packed(b"b 2\n")].concat();
        assert_eq!(unpack(&twice, true, 0, 1 << 20).unwrap(), b"a 1\nb 2\n");
        let cut = packed(&text);
        let error = unpack(&cut[..cut.len() - 9], true, 0, 1 << 20).unwrap_err();
        assert!(matches!(error, FetchError::Transport(_)), "{error}");
    }

    fn body_of_len(bodies: &Bodies, len: usize, last_len: usize) -> Body {
        let mut unpacker = Unpacker::new(false, 0, last_len, bodies);
        for frame in vec![b'a'; len].chunks(1_000) {
            unpacker.push(frame).unwrap();
        }
        unpacker.finish().unwrap()
    }

    #[test]
    fn a_body_as_long_as_the_last_one_is_allocated_once() {
        let bodies = Bodies::new(&Budget::new(1 << 20));
        let Buffer { bytes, held } = &body_of_len(&bodies, 16_000, 16_000).buffer;
        assert_eq!((bytes.len(), bytes.capacity(), held.bytes()), (16_000, 17_000, 17_000));
    }

    #[test]
    fn the_next_body_takes_the_buffer_of_the_last_one() {
        let bodies = Bodies::new(&Budget::new(16 << 20));
        let used = || bodies.budget.usage().used_bytes;
        let first = body_of_len(&bodies, 16_000, 0);
        let (place, reserved) = (first.as_ptr(), used());
        drop(first);
        assert_eq!(used(), reserved);
        let second = body_of_len(&bodies, 9_000, 9_000);
        assert_eq!((second.as_ptr(), second.len(), used()), (place, 9_000, reserved));
        // A longer one needs another.
        let third = body_of_len(&bodies, 40_000, 40_000);
        assert_ne!(third.as_ptr(), place);
        drop((second, third));
        for len in (0..50).map(|idx| 1_000 + 20_000 * idx) {
            drop(body_of_len(&bodies, len, len));
        }
        assert_eq!(bodies.idle.lock().len(), IDLE_BUFFERS_MAX);
        assert!(used() <= (IDLE_BUFFERS_MAX * IDLE_BUFFER_BYTES_MAX) as u64, "{}", used());
    }

    // Item 24: reaching the limit exceeds it, in unpacked bytes.
    #[test]
    fn a_body_is_shorter_than_its_limit() {
        for is_gzip in [false, true] {
            let f = |len: usize| {
                let text = vec![b'a'; len];
                let body = if is_gzip { packed(&text) } else { text };
                unpack(&body, is_gzip, 100, 1 << 20)
            };
            assert_eq!(f(99).unwrap().len(), 99);
            assert!(matches!(f(100), Err(FetchError::BodyLimit)));
        }
    }

    /// Before, all of it was unpacked by the thread of all scrapes: good targets of a job with 200
    /// bombs of 100 KB timed out.
    #[test]
    fn only_the_beginning_of_a_body_is_unpacked_here() {
        let bodies = Bodies::new(&Budget::new(64 << 20));
        for (text_len, is_whole) in [(100_000, true), (UNPACKED_HERE_MAX, true), (8 << 20, false)] {
            let frame = packed(&vec![b'a'; text_len]);
            let mut unpacker = Unpacker::new(true, 0, 0, &bodies);
            let rest = unpacker.push_here(&frame).unwrap();
            assert_eq!(rest.is_empty(), is_whole, "{text_len}");
            assert!(unpacker.len() <= UNPACKED_HERE_MAX + 1_100 * PIECE_BYTES, "{text_len}");
            unpacker.push(rest).unwrap();
            assert_eq!(unpacker.finish().unwrap().len(), text_len);
        }
        let mut unpacker = Unpacker::new(false, 0, 0, &bodies);
        assert!(unpacker.push_here(&[b'a'; 1 << 20]).unwrap().is_empty());
    }

    /// Before, the body of one job in a buffer of another one counted as one of that job.
    #[test]
    fn a_buffer_counts_for_the_client_whose_body_it_has() {
        let all = Bodies::new(&Budget::new(16 << 20));
        let [first, second] = [(); 2].map(|()| all.of_client());
        let used = |bodies: &Bodies| bodies.own.usage().used_bytes;
        let body = body_of_len(&first, 100_000, 100_000);
        let (place, reserved) = (body.as_ptr(), used(&first));
        assert!(reserved >= 100_000);
        drop(body);
        // No client's, but reserved.
        assert_eq!((used(&first), all.budget.usage().used_bytes), (0, reserved));
        let mut unpacker = Unpacker::new(false, 0, 0, &second);
        unpacker.push(&[b'a'; 100]).unwrap();
        let Packed::Plain(sink) = &unpacker.sink else { unreachable!() };
        assert_eq!((sink.body.as_ptr(), used(&second)), (place, reserved));
        unpacker.push(&[b'a'; 200_000]).unwrap();
        assert!(used(&first) == 0 && used(&second) >= 200_000);
        assert_eq!(all.budget.usage().used_bytes, used(&second));
        drop(unpacker);
        assert_eq!(used(&second), 0);
    }

    /// Before, the bodies of one job that arrive slowly took all memory: other scrapes failed.
    #[test]
    fn bodies_of_one_client_leave_memory_to_others() {
        let all = Bodies::new(&Budget::new(16 << 20));
        let [many, other] = [(); 2].map(|()| all.of_client());
        let open = |bodies: &Bodies| {
            let mut unpacker = Unpacker::new(false, 0, 0, bodies);
            unpacker.push(&[b'a'; 1 << 20]).map(|()| unpacker)
        };
        let held: Vec<Unpacker> = std::iter::from_fn(|| open(&many).ok()).collect();
        assert!((8..12).contains(&held.len()), "{}", held.len());
        assert!(open(&other).is_ok());
        drop(held);
        assert_eq!(many.own.usage().used_bytes, 0);
    }

    #[test]
    fn a_gzip_bomb_takes_no_more_than_the_memory_that_is_free() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        let error = unpack(&bomb, true, 0, 1 << 20).unwrap_err();
        assert!(matches!(error, FetchError::Memory(_)), "{error}");
        assert!(matches!(unpack(&bomb, true, 4_096, 1 << 20), Err(FetchError::BodyLimit)));
    }
}
