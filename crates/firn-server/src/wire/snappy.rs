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

/// The uncompressed length that `compressed` declares.
///
/// # Errors
/// `Invalid` if it does not start as a snappy block; `TooLarge` over `limit_bytes`.
pub fn declared_bytes(compressed: &[u8], limit_bytes: usize) -> Result<usize> {
    let declared = decompress_len(compressed)
        .map_err(|e| Error::invalid("snappy: the body has no block header").because(e))?;
    if declared > limit_bytes {
        return Err(Error::too_large(format!(
            "snappy: the body declares {declared} uncompressed bytes, the limit is {limit_bytes} \
             (--request-bytes-max)"
        )));
    }
    Ok(declared)
}

/// Decompresses `compressed` into the front of `buf` and returns that front. `buf` only grows, so
/// that bytes are zeroed once and not for every request.
///
/// # Errors
/// `Invalid` for a malformed block, `TooLarge` as [`declared_bytes`].
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
        assert_eq!(buf.len(), 1_000, "nothing was allocated for it");
        // The framed format is another one.
        assert!(decompress(b"\xff\x06\x00\x00sNaPpY", 1 << 20, &mut buf).is_err());
        assert!(decompress(&packed[..packed.len() - 1], 1_000, &mut buf).is_err());
        assert!(decompress(&[], 1_000, &mut buf).is_err());
    }
}
