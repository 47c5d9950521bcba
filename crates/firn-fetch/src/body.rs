//! Bodies: unpacked as they arrive, within a limit and a reservation.

use std::io::{self, Write};

use bytes::Bytes;
use firn_model::Reservation;
use flate2::write::MultiGzDecoder;

use crate::FetchError;

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
    bytes: Vec<u8>,
    bytes_max: u64,
    /// The first growth.
    first_bytes: usize,
    held: Reservation,
    failed: Option<FetchError>,
}

// Bounds of the first growth of a body, which is that of the last one: a longer body grows as it
// arrives.
const FIRST_BYTES_MIN: usize = 4 << 10;
const FIRST_BYTES_MAX: usize = 1 << 20;

impl Unpacker {
    /// A body of fewer than `bytes_max` bytes when unpacked; 0 is no limit. The last body from
    /// there had `last_len` bytes.
    pub(crate) fn new(
        is_gzip: bool,
        bytes_max: u64,
        last_len: usize,
        held: Reservation,
    ) -> Unpacker {
        // A sixteenth more: the numbers of the same metrics differ in length.
        let first_bytes = last_len.saturating_add(last_len / 16);
        let first_bytes = first_bytes.clamp(FIRST_BYTES_MIN, FIRST_BYTES_MAX);
        let sink = Sink { bytes: Vec::new(), bytes_max, first_bytes, held, failed: None };
        let sink = match is_gzip {
            true => Packed::Gzip(Box::new(MultiGzDecoder::new(sink))),
            false => Packed::Plain(sink),
        };
        Unpacker { sink }
    }

    pub(crate) fn push(&mut self, frame: &Bytes) -> Result<(), FetchError> {
        let (written, sink) = match &mut self.sink {
            Packed::Plain(sink) => (sink.write_all(frame), sink),
            Packed::Gzip(decoder) => (decoder.write_all(frame), decoder.get_mut()),
        };
        written.map_err(|error| sink.error(&error))
    }

    /// The whole body.
    pub(crate) fn finish(self) -> Result<(Vec<u8>, Reservation), FetchError> {
        let sink = match self.sink {
            Packed::Plain(sink) => sink,
            Packed::Gzip(mut decoder) => {
                if let Err(error) = decoder.try_finish() {
                    return Err(decoder.get_mut().error(&error));
                }
                decoder.finish().map_err(|error| FetchError::transport("gzip", error))?
            }
        };
        Ok((sink.bytes, sink.held))
    }
}

impl Sink {
    fn error(&mut self, error: &io::Error) -> FetchError {
        self.failed.take().unwrap_or_else(|| FetchError::transport("gzip", error))
    }

    fn make_room(&mut self, more: usize) -> Result<(), FetchError> {
        let len = self.bytes.len().saturating_add(more);
        if self.bytes_max > 0 && len as u64 >= self.bytes_max {
            return Err(FetchError::BodyLimit);
        }
        if len > self.bytes.capacity() {
            let capacity = self.bytes.capacity().saturating_mul(2).max(len).max(self.first_bytes);
            self.held.cover(capacity as u64).map_err(FetchError::Memory)?;
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        Ok(())
    }
}

impl Write for Sink {
    fn write(&mut self, frame: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.make_room(frame.len()) {
            self.failed = Some(error);
            return Err(io::ErrorKind::Other.into());
        }
        self.bytes.extend_from_slice(frame);
        Ok(frame.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use firn_model::{Budget, Pool};
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
        let held = Budget::new(memory).empty(Pool::Requests);
        let mut unpacker = Unpacker::new(is_gzip, bytes_max, 0, held);
        for frame in body.chunks(7) {
            unpacker.push(&Bytes::copy_from_slice(frame))?;
        }
        unpacker.finish().map(|(bytes, held)| {
            assert!(held.bytes() >= bytes.capacity() as u64);
            bytes
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

    #[test]
    fn a_body_as_long_as_the_last_one_is_allocated_once() {
        let held = Budget::new(1 << 20).empty(Pool::Requests);
        let mut unpacker = Unpacker::new(false, 0, 16_000, held);
        for _ in 0..1_000 {
            unpacker.push(&Bytes::from_static(b"sixteen bytes...")).unwrap();
        }
        let (body, held) = unpacker.finish().unwrap();
        assert_eq!((body.len(), body.capacity(), held.bytes()), (16_000, 17_000, 17_000));
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

    #[test]
    fn a_gzip_bomb_takes_no_more_than_the_memory_that_is_free() {
        let bomb = packed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 100_000);
        let error = unpack(&bomb, true, 0, 1 << 20).unwrap_err();
        assert!(matches!(error, FetchError::Memory(_)), "{error}");
        assert!(matches!(unpack(&bomb, true, 4_096, 1 << 20), Err(FetchError::BodyLimit)));
    }
}
