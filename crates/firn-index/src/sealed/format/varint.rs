//! Varints, most of which take one byte.

use firn_model::decode_varint;

/// As [`decode_varint`], faster for one byte.
#[inline]
pub(crate) fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    match **rest {
        [byte, ref after @ ..] if byte < 0x80 => {
            *rest = after;
            Some(u64::from(byte))
        }
        _ => decode_varint(rest),
    }
}
