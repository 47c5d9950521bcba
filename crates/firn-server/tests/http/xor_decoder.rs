//! Prometheus' XOR chunks, decoded bit by bit; see `wire/xor_chunk.rs` for the format.

/// Decodes a chunk literally by its description: the counterpart of the server's encoder, for
/// tests.
pub(crate) fn decode(chunk: &[u8]) -> Vec<(i64, u64)> {
    let count = usize::from(chunk[0]) << 8 | usize::from(chunk[1]);
    let mut bits = Bits { bytes: &chunk[2..], at: 0 };
    let mut samples: Vec<(i64, u64)> = Vec::new();
    let (mut step, mut leading, mut len) = (0u64, 0, 0);
    for idx in 0..count {
        let before = samples.last().copied();
        let ts = match (idx, before) {
            (1, Some((ts, _))) => {
                step = bits.varint();
                ts.wrapping_add(step as i64)
            }
            (_, Some((ts, _))) => {
                step = step.wrapping_add(bits.change() as u64);
                ts.wrapping_add(step as i64)
            }
            (_, None) => {
                let zigzag = bits.varint();
                (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
            }
        };
        let value = match before {
            None => bits.take(64),
            Some((_, value)) if bits.take(1) == 0 => value,
            Some((_, value)) => {
                if bits.take(1) == 1 {
                    leading = bits.take(5);
                    len = bits.take(6);
                    len = if len == 0 { 64 } else { len };
                }
                value ^ bits.take(len as u32) << (64 - leading - len)
            }
        };
        samples.push((ts, value));
    }
    assert!(bits.bytes.len() * 8 - bits.at < 8, "bytes behind the last sample");
    samples
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, len: u32) -> u64 {
        (0..len).fold(0, |bits, _| {
            let bit = self.bytes[self.at / 8] >> (7 - self.at % 8) & 1;
            self.at += 1;
            bits << 1 | u64::from(bit)
        })
    }

    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(8);
            value |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        value
    }

    fn change(&mut self) -> i64 {
        let ones = (0..4).take_while(|_| self.take(1) == 1).count();
        let len = match ones {
            0 => return 0,
            1 => 14,
            2 => 17,
            3 => 20,
            _ => return self.take(64) as i64,
        };
        let bits = self.take(len) as i64;
        if bits > 1 << (len - 1) { bits - (1 << len) } else { bits }
    }
}
