//! The decoded form of a write request before its labels are parsed; the same for every protocol.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

use firn_model::{Error, Result, Sample};
use xxhash_rust::xxh3::xxh3_128_with_secret;

use crate::metadata::{Metadata, MetadataBatch};

/// One series of a request: the position of its label bytes, their hash, and its samples.
#[derive(Clone, Copy, Debug)]
pub struct EncodedSeries {
    /// Keyed hash of the label bytes, see [`SpanHasher`].
    pub hash: u128,
    /// First byte of the labels in the body.
    pub labels_start: u32,
    /// End of the labels in the body; an empty span means no labels.
    pub labels_end: u32,
    /// End of its samples in [`Decoded::samples`]; they begin where those of the series before end.
    pub sample_end: u32,
    /// Whether the span holds labels only, so that its hash will come again.
    pub cacheable: bool,
}

/// A decoded request; reused, so that a request allocates only while it is the largest so far.
#[derive(Debug, Default)]
pub struct Decoded {
    /// The series in the order of the request.
    pub series: Vec<EncodedSeries>,
    /// The samples of all series, one after the other.
    pub samples: Vec<Sample>,
    /// Types and help texts in the request.
    pub metadata: MetadataBatch,
    /// Exemplars, which are accepted and dropped.
    pub exemplar_count: u64,
    /// Native histogram samples, which are refused.
    pub histogram_count: u64,
    /// Bytes that all of them may take: metadata beyond it is dropped, a request with more series
    /// and samples is refused.
    pub bytes_max: usize,
}

impl EncodedSeries {
    /// The label bytes as a range of the body.
    pub fn span(&self) -> Range<usize> {
        self.labels_start as usize..self.labels_end as usize
    }
}

impl Decoded {
    /// Memory of one series or sample in [`crate::ingest`]: itself, its reference, and its cell in
    /// the row batch.
    pub const ITEM_BYTES: usize = 48;

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self, bytes_max: usize) {
        self.series.clear();
        self.samples.clear();
        self.metadata.clear();
        self.exemplar_count = 0;
        self.histogram_count = 0;
        self.bytes_max = bytes_max;
    }

    /// Adds a series whose samples were pushed since the last one.
    ///
    /// # Errors
    /// `TooLarge` over [`Decoded::bytes_max`]: messages of two bytes each could otherwise unpack to
    /// fifty times their size.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "bodies are limited to 2 GiB (`config`), so positions fit into 32 bits"
    )]
    pub fn push_series(&mut self, hash: u128, span: Range<usize>, cacheable: bool) -> Result<()> {
        self.check_size()?;
        self.series.push(EncodedSeries {
            hash,
            labels_start: span.start as u32,
            labels_end: span.end as u32,
            sample_end: self.samples.len() as u32,
            cacheable,
        });
        Ok(())
    }

    /// Adds a sample of the series that will be pushed next.
    ///
    /// # Errors
    /// As [`Decoded::push_series`].
    #[inline]
    pub fn push_sample(&mut self, sample: Sample) -> Result<()> {
        self.check_size()?;
        self.samples.push(sample);
        Ok(())
    }

    /// Adds metadata of a metric, or drops it if there is no room.
    pub fn push_metadata(&mut self, name: &str, metadata: Metadata) {
        let room = self.bytes_max.saturating_sub(self.item_bytes());
        self.metadata.push(name, metadata, room);
    }

    /// Every series with its samples.
    pub fn iter(&self) -> impl Iterator<Item = (&EncodedSeries, &[Sample])> + '_ {
        let mut start = 0;
        self.series.iter().map(move |series| {
            let end = series.sample_end as usize;
            let samples = self.samples.get(start..end).unwrap_or(&[]);
            start = end;
            (series, samples)
        })
    }

    /// The samples of the series at `idx`; none if there is no such series.
    pub fn samples_of(&self, idx: usize) -> &[Sample] {
        let end_of = |idx: usize| self.series.get(idx).map(|series| series.sample_end as usize);
        let start = idx.checked_sub(1).and_then(end_of).unwrap_or(0);
        end_of(idx).and_then(|end| self.samples.get(start..end)).unwrap_or(&[])
    }

    /// Memory of series and samples, their references and cells included, and of metadata.
    pub fn working_bytes(&self) -> usize {
        self.item_bytes().saturating_add(self.metadata.bytes())
    }

    fn item_bytes(&self) -> usize {
        self.series.len().saturating_add(self.samples.len()).saturating_mul(Decoded::ITEM_BYTES)
    }

    #[inline]
    fn check_size(&self) -> Result<()> {
        if self.working_bytes() >= self.bytes_max { Err(self.over_size()) } else { Ok(()) }
    }

    #[cold]
    fn over_size(&self) -> Error {
        Error::too_large(format!(
            "the request holds {} series and {} samples that unpack to over {} bytes: send less in \
             one request",
            self.series.len(),
            self.samples.len(),
            self.bytes_max
        ))
    }
}

/// Hashes spans of label bytes with a secret of this process.
///
/// A sender that found two label sets with one hash could write into another sender's series. So
/// the hash has 128 bits, and each start draws a new secret.
pub struct SpanHasher {
    secret: [u8; SECRET_BYTES],
}

// XXH3's own secret has 192 bytes; 136 is the least that it takes.
const SECRET_BYTES: usize = 192;

impl SpanHasher {
    /// A hasher with a secret from the operating system's random numbers.
    pub fn random() -> SpanHasher {
        let mut secret = [0; SECRET_BYTES];
        for (idx, word) in secret.chunks_exact_mut(8).enumerate() {
            // `RandomState` is SipHash under random keys: a counter through it is a random stream.
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_usize(idx);
            word.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        SpanHasher { secret }
    }

    /// The hash of `span`.
    #[inline]
    pub fn hash(&self, span: &[u8]) -> u128 {
        xxh3_128_with_secret(span, &self.secret)
    }
}

impl std::fmt::Debug for SpanHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SpanHasher(secret)")
    }
}
