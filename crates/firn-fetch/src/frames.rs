//! Limits on the frames that an HTTP/2 server sends to one request outside of its flow-control
//! windows.
//!
//! The HTTP/2 client queues informational heads (status 1xx) until the final one arrives: a server
//! could fill the memory with them. It reads pings and settings and answers them, also while a
//! connection is idle: a server could occupy a thread with them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Informational heads, the final one and trailers.
const HEADS_MAX: u32 = 16;

/// Of other types, such as pings. A receiver sends two window updates for some 32 KiB of a body.
const CONTROLS_MAX: u32 = 10_000;

/// The types of frames with contents of an answer.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Three bytes of length, the type, the flags and four bytes of stream identifier.
const FRAME_HEADER_BYTES: u8 = 9;
/// The position of the type in the header of a frame.
const TYPE_POSITION: u8 = 3;

/// The frames that a connection has received since its last request began.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameCount(Arc<ReceivedFrames>);

#[derive(Debug, Default)]
struct ReceivedFrames {
    heads: AtomicU32,
    controls: AtomicU32,
}

impl FrameCount {
    /// A request begins.
    pub(crate) fn reset(&self) {
        self.0.heads.store(0, Ordering::Relaxed);
        self.0.controls.store(0, Ordering::Relaxed);
    }

    /// Counts frames; the limit that they exceed.
    fn add(&self, heads: u32, controls: u32) -> Result<(), String> {
        let sum = |count: &AtomicU32, more: u32| {
            if more == 0 {
                0
            } else {
                count.fetch_add(more, Ordering::Relaxed).saturating_add(more)
            }
        };
        if sum(&self.0.heads, heads) > HEADS_MAX {
            return Err(format!(
                "the server sent more than {HEADS_MAX} response heads to one request"
            ));
        }
        if sum(&self.0.controls, controls) > CONTROLS_MAX {
            return Err(format!(
                "the server sent more than {CONTROLS_MAX} frames that belong to no answer"
            ));
        }
        Ok(())
    }
}

/// A stream below an HTTP/2 client. Reads fail once the server has sent too many frames.
#[derive(Debug)]
pub(crate) struct FrameLimit<S> {
    stream: S,
    frames: FrameReader,
    count: FrameCount,
}

impl<S> FrameLimit<S> {
    pub(crate) fn new(stream: S, count: FrameCount) -> FrameLimit<S> {
        FrameLimit { stream, frames: FrameReader::default(), count }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buf);
        let (heads, controls) = self.frames.count(buf.filled().get(before..).unwrap_or_default());
        if let Err(why) = self.count.add(heads, controls) {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other(why)));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Follows the frames in the bytes of a server, which may be split anywhere.
#[derive(Debug, Default)]
struct FrameReader {
    /// In the header of the current frame.
    position: u8,
    /// The payload of the current frame, as far as its header was read.
    payload_len: u32,
    /// Bytes of payload before the next header.
    skipped_len: usize,
}

impl FrameReader {
    /// The numbers of HEADERS frames and of those without contents of an answer, whose type is in
    /// `bytes`, the next ones of the connection.
    fn count(&mut self, mut bytes: &[u8]) -> (u32, u32) {
        let (mut heads, mut controls) = (0_u32, 0_u32);
        loop {
            let payload_len = self.skipped_len.min(bytes.len());
            self.skipped_len = self.skipped_len.saturating_sub(payload_len);
            bytes = bytes.get(payload_len..).unwrap_or_default();
            let Some((&byte, rest)) = bytes.split_first() else { return (heads, controls) };
            bytes = rest;
            if self.position < TYPE_POSITION {
                self.payload_len = self.payload_len << 8 | u32::from(byte);
            } else if self.position == TYPE_POSITION {
                match byte {
                    HEADERS => heads = heads.saturating_add(1),
                    DATA | CONTINUATION => {}
                    _ => controls = controls.saturating_add(1),
                }
            }
            self.position = self.position.saturating_add(1);
            if self.position == FRAME_HEADER_BYTES {
                let FrameReader { payload_len, .. } = std::mem::take(self);
                self.skipped_len = payload_len as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_however_the_bytes_are_split() {
        let frame = |kind: u8, payload: &[u8]| {
            let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
            bytes.extend_from_slice(&[kind, 4, 0, 0, 0, 1]);
            bytes.extend_from_slice(payload);
            bytes
        };
        // Payloads that look like frames of heads.
        let look_alike = frame(HEADERS, &[1; 300]);
        let bytes = [
            frame(4, &[]),
            frame(HEADERS, &look_alike),
            frame(0, &vec![HEADERS; 70_000]),
            frame(0, &[]),
            frame(HEADERS, &[]),
            frame(9, &look_alike),
            frame(HEADERS, &[1]),
        ]
        .concat();
        for piece_len in [1, 2, 3, 9, 10, 4_096, bytes.len()] {
            let mut frames = FrameReader::default();
            let counts = bytes.chunks(piece_len).map(|piece| frames.count(piece));
            let counts = counts.fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
            assert_eq!(counts, (3, 1), "{piece_len}");
        }
    }
}
