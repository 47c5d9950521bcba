//! Snappy block format with the declared length checked before anything is allocated for it.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, Result};
use snap::raw::{Decoder, decompress_len};

/// Bytes of which one compressed byte can be a part: a copy takes at least 3 bytes and has at most
/// 64.
const EXPANSION_MAX: usize = 22;

/// The uncompressed length that `compressed` declares.
///
/// # Errors
/// `Invalid` if it does not start as a snappy block, or declares more than its bytes can hold;
/// `TooLarge` over `limit_bytes`.
pub fn declared_bytes(compressed: &[u8], limit_bytes: usize) -> Result<usize> {
    let declared = decompress_len(compressed)
        .map_err(|e| Error::invalid("snappy: the body has no block header").because(e))?;
    if declared > limit_bytes {
        return Err(Error::too_large(format!(
            "snappy: the body declares {declared} uncompressed bytes, the limit is {limit_bytes} \
             (--request-bytes-max)"
        )));
    }
    // Otherwise a few bytes would reserve the memory of the longest request.
    if declared > compressed.len().saturating_mul(EXPANSION_MAX) {
        return Err(Error::invalid(format!(
            "snappy: the body declares {declared} uncompressed bytes, {} compressed bytes cannot \
             hold them",
            compressed.len()
        )));
    }
    Ok(declared)
}

/// Decompresses `compressed` into the front of `buf` and returns that front. `buf` only grows, so
/// that bytes are zeroed once and not for every request.
///
/// # Errors
/// `Invalid` for a malformed block, and as [`declared_bytes`].
pub fn decompress<'b>(
    compressed: &[u8],
    limit_bytes: usize,
    buf: &'b mut Vec<u8>,
) -> Result<&'b [u8]> {
    let declared = declared_bytes(compressed, limit_bytes)?;
    if buf.len() < declared {
        buf.resize(declared, 0);
    }
    let target = buf.get_mut(..declared).unwrap_or(&mut []);
    let written = Decoder::new()
        .decompress(compressed, target)
        .map_err(|e| Error::invalid("snappy: the body is not a valid block").because(e))?;
    Ok(buf.get(..written).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The best that a snappy encoder can do stays below the bound of the declared length.
    #[test]
    fn the_most_compressible_body_is_accepted() {
        let plain = vec![0; 16 << 20];
        let packed = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
        assert!(plain.len() / packed.len() > 20);
        assert_eq!(declared_bytes(&packed, plain.len()).unwrap(), plain.len());
    }

    #[test]
    fn malformed_blocks_are_refused_before_decompression() {
        let mut buf = Vec::new();
        let packed = snap::raw::Encoder::new().compress_vec(&[7; 1_000]).unwrap();
        assert_eq!(decompress(&packed, 1_000, &mut buf).unwrap(), [7; 1_000]);
        let refused = decompress(&packed, 999, &mut buf).unwrap_err().to_string();
        assert!(
            refused.contains("declares 1000 uncompressed bytes, the limit is 999"),
            "{refused}"
        );
        // 4 GiB announced in five bytes.
        assert!(decompress(&[0xff, 0xff, 0xff, 0xff, 0x0f], 1 << 20, &mut buf).is_err());
        // Within the limit, but more than 100 bytes can unpack to.
        let mut short = vec![0xd1, 0x11];
        short.resize(100, 0);
        let refused = declared_bytes(&short, 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("declares 2257 uncompressed bytes, 100"), "{refused}");
        assert_eq!(buf.len(), 1_000, "nothing was allocated for it");
        // The framed format is another one.
        assert!(decompress(b"\xff\x06\x00\x00sNaPpY", 1 << 20, &mut buf).is_err());
        assert!(decompress(&packed[..packed.len() - 1], 1_000, &mut buf).is_err());
        assert!(decompress(&[], 1_000, &mut buf).is_err());
    }
}
