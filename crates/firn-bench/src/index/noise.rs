//! Texts that cannot be compressed, from letters that a label name may have.

/// `bytes` letters of 32 kinds; the same for the same `seed`.
pub fn noise(seed: usize, bytes: usize) -> String {
    let mut random = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            char::from(b"abcdefghijklmnopqrstuvwxyz_ABCDE"[(random >> 32) as usize % 32])
        })
        .collect()
}
