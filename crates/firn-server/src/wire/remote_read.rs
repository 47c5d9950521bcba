//! Remote read: the requests of Prometheus and Thanos, and the two response formats.
//!
//! ```text
//! ReadRequest   { queries = 1: Query, accepted_response_types = 2: repeated enum }
//! Query         { start_timestamp_ms = 1, end_timestamp_ms = 2: int64,
//!                 matchers = 3: LabelMatcher, hints = 4 }
//! LabelMatcher  { type = 1: enum, name = 2, value = 3: string }
//!
//! ReadResponse  { results = 1: QueryResult { timeseries = 1: TimeSeries } }, one snappy block
//! TimeSeries    { labels = 1: Label, samples = 2: Sample }
//! Sample        { value = 1: double, timestamp = 2: int64 }
//!
//! body          = frame frame ... until the body ends
//! frame         = varint(message bytes) crc32c(message):u32 big endian message
//! message       = ChunkedReadResponse { chunked_series = 1: ChunkedSeries,
//!                                       query_index = 2: int64 }
//! ChunkedSeries { labels = 1: Label, chunks = 2: Chunk }
//! Chunk         { min_time_ms = 1, max_time_ms = 2: int64,
//!                 type = 3: enum (1: XOR), data = 4: bytes }
//! Label         { name = 1, value = 2: string }
//! ```
//!
//! Hints announce the use of the samples and do not change the response.

mod frames;
mod request;
mod samples;

use firn_model::Labels;

pub use frames::FrameWriter;
pub use request::{ReadQuery, ReadRequest, ResponseType, decode};
pub use samples::SamplesWriter;

use firn_model::protobuf::{close_message, push_bytes};

/// Appends every pair as field 1, in order of names.
fn push_labels(labels: &Labels, out: &mut Vec<u8>) {
    for (name, value) in labels {
        let start = out.len();
        push_bytes(1, name.as_bytes(), out);
        push_bytes(2, value.as_bytes(), out);
        close_message(1, start, out);
    }
}

#[cfg(test)]
mod tests;
