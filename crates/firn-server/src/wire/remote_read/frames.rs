//! The streamed response: one series per frame, long series in several frames, samples as XOR
//! chunks.

use firn_model::{Labels, Timestamp, encode_varint};

use crate::wire::crc32c::crc32c;
use crate::wire::remote_read::push_labels;
use crate::wire::xor_chunk::{SAMPLE_COUNT_MAX, XorChunk};
use firn_model::protobuf::{close_message, push_bytes, push_varint};

/// Writes frames. Push the series of each query in turn; [`FrameWriter::take`] returns the closed
/// frames.
#[derive(Debug)]
pub struct FrameWriter {
    frame_bytes_max: usize,
    query_idx: u64,
    /// Encoded labels of the present series; empty before the first of a query.
    labels: Vec<u8>,
    /// Its encoded chunks that are in no frame yet.
    chunks: Vec<u8>,
    chunk: XorChunk,
    message: Vec<u8>,
    frames: Vec<u8>,
}

// The protocol's number of XOR chunks.
const XOR: u64 = 1;

impl FrameWriter {
    /// Frames are closed by the first chunk that, with the labels, reaches `frame_bytes_max`.
    pub fn new(frame_bytes_max: usize) -> FrameWriter {
        FrameWriter {
            frame_bytes_max,
            query_idx: 0,
            labels: Vec::new(),
            chunks: Vec::new(),
            chunk: XorChunk::default(),
            message: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Begins a series.
    pub fn begin_series(&mut self, labels: &Labels) {
        self.end_series();
        self.labels.clear();
        push_labels(labels, &mut self.labels);
    }

    /// Adds samples, which follow those that were pushed before, to the series that was begun last.
    pub fn push(&mut self, times: &[Timestamp], values: &[f64]) {
        for (&ts, &value) in times.iter().zip(values) {
            self.chunk.push(ts, value);
            if self.chunk.sample_count() == SAMPLE_COUNT_MAX {
                self.close_chunk();
                if self.chunks.len() + self.labels.len() >= self.frame_bytes_max {
                    self.close_frame();
                }
            }
        }
    }

    /// Ends the query; further series belong to the next one.
    pub fn end_query(&mut self) {
        self.end_series();
        self.query_idx += 1;
    }

    /// Bytes of closed frames.
    pub fn frames_bytes(&self) -> usize {
        self.frames.len()
    }

    /// The closed frames, in order.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.frames)
    }

    fn end_series(&mut self) {
        if self.chunk.sample_count() > 0 {
            self.close_chunk();
        }
        if !self.chunks.is_empty() {
            self.close_frame();
        }
    }

    fn close_chunk(&mut self) {
        let start = self.chunks.len();
        let (first, last) = self.chunk.span();
        push_varint(1, first as u64, &mut self.chunks);
        push_varint(2, last as u64, &mut self.chunks);
        push_varint(3, XOR, &mut self.chunks);
        push_bytes(4, self.chunk.bytes(), &mut self.chunks);
        close_message(2, start, &mut self.chunks);
        self.chunk.clear();
    }

    fn close_frame(&mut self) {
        self.message.clear();
        self.message.extend_from_slice(&self.labels);
        self.message.extend_from_slice(&self.chunks);
        self.chunks.clear();
        close_message(1, 0, &mut self.message);
        push_varint(2, self.query_idx, &mut self.message);
        encode_varint(self.message.len() as u64, &mut self.frames);
        self.frames.extend_from_slice(&crc32c(&self.message).to_be_bytes());
        self.frames.extend_from_slice(&self.message);
    }
}
