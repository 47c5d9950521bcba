//! A limit on the response heads that an HTTP/2 server sends to one request.
//!
//! The HTTP/2 client queues informational heads (status 1xx) until the final one arrives. They are
//! outside of the flow-control windows, so a server could fill the memory with them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Informational heads, the final one and trailers.
const HEADS_MAX: u32 = 16;

/// The type of a frame that begins a head.
const HEADERS: u8 = 1;
/// Three bytes of length, the type, the flags and four bytes of stream identifier.
const FRAME_HEADER_BYTES: u8 = 9;
/// The position of the type in the header of a frame.
const TYPE_POSITION: u8 = 3;

/// The heads that a connection has received since its last request began.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeadCount(Arc<AtomicU32>);

impl HeadCount {
    /// A request begins.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts `heads`. False if they exceed the limit.
    fn add(&self, heads: u32) -> bool {
        self.0.fetch_add(heads, Ordering::Relaxed).saturating_add(heads) <= HEADS_MAX
    }
}

/// A stream below an HTTP/2 client. Reads fail once the server has sent too many heads.
#[derive(Debug)]
pub(crate) struct HeadLimit<S> {
    stream: S,
    frames: FrameReader,
    count: HeadCount,
}

impl<S> HeadLimit<S> {
    pub(crate) fn new(stream: S, count: HeadCount) -> HeadLimit<S> {
        HeadLimit { stream, frames: FrameReader::default(), count }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HeadLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buf);
        let heads = self.frames.count_heads(buf.filled().get(before..).unwrap_or_default());
        if heads > 0 && !self.count.add(heads) {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other(format!(
                "the server sent more than {HEADS_MAX} response heads to one request"
            ))));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HeadLimit<S> {
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
    /// The number of HEADERS frames whose type is in `bytes`, the next ones of the connection.
    fn count_heads(&mut self, mut bytes: &[u8]) -> u32 {
        let mut heads: u32 = 0;
        loop {
            let payload_len = self.skipped_len.min(bytes.len());
            self.skipped_len = self.skipped_len.saturating_sub(payload_len);
            bytes = bytes.get(payload_len..).unwrap_or_default();
            let Some((&byte, rest)) = bytes.split_first() else { return heads };
            bytes = rest;
            if self.position < TYPE_POSITION {
                self.payload_len = self.payload_len << 8 | u32::from(byte);
            } else if self.position == TYPE_POSITION && byte == HEADERS {
                heads = heads.saturating_add(1);
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
    fn heads_are_counted_however_the_bytes_are_split() {
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
            let heads: u32 = bytes.chunks(piece_len).map(|piece| frames.count_heads(piece)).sum();
            assert_eq!(heads, 3, "{piece_len}");
        }
    }
}
