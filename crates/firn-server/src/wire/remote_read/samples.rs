//! The answer as one message: all samples of all queries.

use firn_model::{Labels, Timestamp};

use crate::wire::remote_read::push_labels;
use firn_model::protobuf::{close_message, push_bytes_head, push_fixed64, push_varint};

/// Writes a `ReadResponse`. Push the series of each query in turn, then call
/// [`SamplesWriter::end_query`].
#[derive(Debug, Default)]
pub struct SamplesWriter {
    out: Vec<u8>,
    query_start: usize,
    /// Start of the series that was pushed last, if more samples may follow.
    series_start: Option<usize>,
}

impl SamplesWriter {
    /// Key, length and fields of one sample.
    pub const SAMPLE_BYTES_MAX: usize = 2 + 9 + 11;
    /// Upper bound of the bytes before a series, a label or a query.
    pub const HEAD_BYTES_MAX: usize = 11;

    /// Begins a series.
    pub fn begin_series(&mut self, labels: &Labels) {
        self.end_series();
        self.series_start = Some(self.out.len());
        push_labels(labels, &mut self.out);
    }

    /// Adds samples to the series that was begun last.
    pub fn push(&mut self, times: &[Timestamp], values: &[f64]) {
        for (&ts, &value) in times.iter().zip(values) {
            // Zeros are written too: a reader that substitutes 0 for an absent value would lose the
            // sign of -0.
            let len = 9 + 1 + varint_len(ts as u64);
            push_bytes_head(2, len, &mut self.out);
            push_fixed64(1, value.to_bits(), &mut self.out);
            push_varint(2, ts as u64, &mut self.out);
        }
    }

    /// The query has no more series.
    pub fn end_query(&mut self) {
        self.end_series();
        close_message(1, self.query_start, &mut self.out);
        self.query_start = self.out.len();
    }

    /// The message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    fn end_series(&mut self) {
        if let Some(start) = self.series_start.take() {
            close_message(1, start, &mut self.out);
        }
    }
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
