//! Heracles' form on disk (PVLDB 2021, section 3.1.3): values XORed with one of two quantiles or
//! with the previous value, in tuples that are padded to the longest of their block. Only its size
//! is computed.

// As in the authors' code; the paper uses 8 and leaves the block size open.
const TUPLE: usize = 4;
const TUPLES_PER_BLOCK: usize = 10;

/// Bytes of one column: two quantiles, a width and an offset per block, the blocks.
pub fn encoded_bytes(values: &[f64]) -> usize {
    let mut sorted: Vec<f64> = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0 };
    let quantiles =
        [sorted[(sorted.len() / 4).min(last)], sorted[(sorted.len() * 3 / 4).min(last)]];
    let block_bytes: Vec<usize> = values
        .chunks(TUPLE * TUPLES_PER_BLOCK)
        .map(|block| {
            let bits = block.chunks(TUPLE).map(|tuple| tuple_bits(tuple, quantiles));
            let width = bits.max().unwrap_or(0);
            // A varint of the width, then the tuples, each as long as the longest.
            1 + usize::from(width >= 128) + (width * block.len().div_ceil(TUPLE)).div_ceil(8)
        })
        .collect();
    let all: usize = block_bytes.iter().sum();
    let offset_bytes = if all < 1 << 8 { 1 } else { 2 };
    16 + 1 + block_bytes.len() * offset_bytes + all
}

/// One bit selects the quantile that is the base of the first value.
fn tuple_bits(tuple: &[f64], quantiles: [f64; 2]) -> usize {
    let first = tuple[0].to_bits();
    let base = quantiles.map(|base| xor_bits(first ^ base.to_bits())).into_iter().min();
    let rest = tuple.windows(2).map(|pair| xor_bits(pair[0].to_bits() ^ pair[1].to_bits()));
    1 + base.unwrap_or(0) + rest.sum::<usize>()
}

/// Gorilla's form without the reuse of a window, which a tuple that is read alone cannot know: one
/// bit for no difference, else five bits of leading zeros and six of the length.
fn xor_bits(xor: u64) -> usize {
    match xor {
        0 => 1,
        _ => {
            let leading = xor.leading_zeros().min(31) as usize;
            2 + 5 + 6 + 64 - leading - xor.trailing_zeros() as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_takes_a_bit_each_and_noise_more_than_it_has() {
        assert_eq!(encoded_bytes(&[]), 0);
        assert!(encoded_bytes(&[7.5; 400]) < 17 + 400 / 4);
        // All bits differ from any other value, so the lengths come on top.
        let bits = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let noise: Vec<f64> = (1..400).map(|n| f64::from_bits(bits(n))).collect();
        assert!(encoded_bytes(&noise) > 8 * noise.len());
    }
}
