//! Prometheus' XOR chunks: its encoding of some samples of one series, which its clients read.
//!
//! ```text
//! chunk       = sample_count:u16 big endian, then bits, the highest of a byte first
//! 1st sample  = zigzag varint(ts) value:64
//! 2nd sample  = varint(ts - ts of the 1st), value
//! the others  = change of the step between timestamps, value
//! change      = 0                    the same step
//!             | 10 change:14 | 110 change:17 | 1110 change:20 | 1111 change:64
//! value       = 0                    the previous value
//!             | 1 0 xor              inside the previous window of significant bits
//!             | 1 1 leading:5 len:6 xor:len    a new window; len 0 means 64
//! ```
//! `n` bits hold changes from `-(2^(n-1) - 1)` to `2^(n-1)`: the pattern of the lowest number means
//! the highest. Source: prometheus/prometheus `tsdb/docs/format/chunks.md`; the codec is Gorilla's
//! (VLDB 2015, section 4.1).

use firn_model::{Timestamp, encode_varint};

/// Usual samples per chunk: Prometheus and Thanos close theirs at this size.
pub const SAMPLE_COUNT_MAX: u16 = 120;

/// A chunk under construction; reused for the next by [`XorChunk::clear`].
#[derive(Clone, Debug)]
pub struct XorChunk {
    /// With the count, which is filled in at the end.
    bytes: Vec<u8>,
    /// Low bits of the last byte that are free.
    free_bit_count: u32,
    count: u16,
    first_ts: Timestamp,
    ts: Timestamp,
    step: u64,
    value_bits: u64,
    window: Option<Window>,
}

/// Position of the significant bits of a value's change.
#[derive(Clone, Copy, Debug)]
struct Window {
    leading: u32,
    trailing: u32,
}

const COUNT_BYTES: usize = 2;
// The largest number in five bits.
const LEADING_MAX: u32 = 31;
// Prefix, its bits, and the bits that follow.
const CHANGES: [(u64, u32, u32); 3] = [(0b10, 2, 14), (0b110, 3, 17), (0b1110, 4, 20)];

impl Default for XorChunk {
    fn default() -> XorChunk {
        XorChunk {
            bytes: vec![0; COUNT_BYTES],
            free_bit_count: 0,
            count: 0,
            first_ts: 0,
            ts: 0,
            step: 0,
            value_bits: 0,
            window: None,
        }
    }
}

impl XorChunk {
    /// Empties it, keeps the memory.
    pub fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(COUNT_BYTES, 0);
        *self = XorChunk { bytes, ..XorChunk::default() };
    }

    /// Adds a sample behind all others.
    ///
    /// # Panics
    /// At 65,536 samples: a chunk is closed long before.
    pub fn push(&mut self, ts: Timestamp, value: f64) {
        let value_bits = value.to_bits();
        match self.count {
            0 => {
                self.first_ts = ts;
                self.push_varint((ts << 1 ^ ts >> 63) as u64);
                self.push_bits(value_bits, 64);
            }
            1 => {
                self.step = ts.wrapping_sub(self.ts) as u64;
                self.push_varint(self.step);
                self.push_value(value_bits);
            }
            _ => {
                let step = ts.wrapping_sub(self.ts) as u64;
                self.push_change(step.wrapping_sub(self.step) as i64);
                self.step = step;
                self.push_value(value_bits);
            }
        }
        self.ts = ts;
        self.value_bits = value_bits;
        self.count = self.count.checked_add(1).expect("a chunk has fewer than 65,536 samples");
    }

    /// How many samples it holds.
    pub fn sample_count(&self) -> u16 {
        self.count
    }

    /// First and last timestamp; of an empty chunk they mean nothing.
    pub fn span(&self) -> (Timestamp, Timestamp) {
        (self.first_ts, self.ts)
    }

    /// The encoded chunk.
    pub fn bytes(&mut self) -> &[u8] {
        self.bytes[..COUNT_BYTES].copy_from_slice(&self.count.to_be_bytes());
        &self.bytes
    }

    fn push_change(&mut self, change: i64) {
        if change == 0 {
            return self.push_bits(0, 1);
        }
        for (prefix, prefix_len, len) in CHANGES {
            let highest = 1i64 << (len - 1);
            if (1 - highest..=highest).contains(&change) {
                self.push_bits(prefix, prefix_len);
                return self.push_bits(change as u64, len);
            }
        }
        self.push_bits(0b1111, 4);
        self.push_bits(change as u64, 64);
    }

    fn push_value(&mut self, value_bits: u64) {
        let xor = value_bits ^ self.value_bits;
        if xor == 0 {
            return self.push_bits(0, 1);
        }
        let leading = xor.leading_zeros().min(LEADING_MAX);
        let trailing = xor.trailing_zeros();
        let inside = |w: &Window| w.leading <= leading && w.trailing <= trailing;
        if let Some(window) = self.window.filter(inside) {
            self.push_bits(0b10, 2);
            return self.push_bits(xor >> window.trailing, 64 - window.leading - window.trailing);
        }
        let len = 64 - leading - trailing;
        self.push_bits(0b11, 2);
        self.push_bits(leading.into(), 5);
        // 64 does not fit into six bits and is written as 0, which no change has.
        self.push_bits(len.into(), 6);
        self.push_bits(xor >> trailing, len);
        self.window = Some(Window { leading, trailing });
    }

    fn push_varint(&mut self, value: u64) {
        let mut bytes = Vec::with_capacity(10);
        encode_varint(value, &mut bytes);
        bytes.iter().for_each(|&byte| self.push_bits(byte.into(), 8));
    }

    /// Appends the low `len` bits of `bits`, the highest first.
    fn push_bits(&mut self, bits: u64, len: u32) {
        let mut left = len;
        while left > 0 {
            if self.free_bit_count == 0 {
                self.bytes.push(0);
                self.free_bit_count = 8;
            }
            let taken = left.min(self.free_bit_count);
            left -= taken;
            self.free_bit_count -= taken;
            let piece = (bits >> left) & ((1 << taken) - 1);
            if let Some(last) = self.bytes.last_mut() {
                *last |= (piece as u8) << self.free_bit_count;
            }
        }
    }
}

/// The decoder, which the tests over HTTP use too.
#[cfg(any(test, fuzzing))]
#[path = "../../tests/http/xor_decoder.rs"]
pub(crate) mod decoder;
#[cfg(test)]
mod tests;
