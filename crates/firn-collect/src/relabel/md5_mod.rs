//! The shard of a value.

use md5::{Digest, Md5};

/// The last eight bytes of the MD5 of `value`, big endian, modulo `modulus`; 0 for a modulus of 0.
#[expect(clippy::big_endian_bytes, reason = "the shards of Prometheus")]
pub(super) fn hash_mod(value: &str, modulus: u64) -> u64 {
    let hash: [u8; 16] = Md5::digest(value.as_bytes()).into();
    let [.., a, b, c, d, e, f, g, h] = hash;
    u64::from_be_bytes([a, b, c, d, e, f, g, h]).checked_rem(modulus).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_those_of_prometheus() {
        assert_eq!(hash_mod("x", 8), 6);
        assert_eq!(hash_mod("baz", 1000), 976);
        assert_eq!(hash_mod("x", 0), 0);
    }
}
