//! The fuzzer of the protocol; see `crate::fuzz`.

use super::points;
use super::protocol::{self, Command, FIELDS_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX, RangeKey};
use crate::fuzz::check_message;

const VALUE_BYTES_MAX: usize = 256;

/// Bytes of a client of `firn cache`, as the server splits them into lines and values. Each refusal
/// is one line, and each accepted request obeys `docs/cache-protocol.md`.
pub fn cache_protocol(data: &[u8]) {
    let mut rest = data;
    while let Some(end) = rest.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        let (line, behind) = (&rest[..end], &rest[end + 1..]);
        let skip_bytes = match protocol::parse_line(line, VALUE_BYTES_MAX) {
            Ok(Command::Set(place, format, bytes)) => {
                check(&place);
                assert!(bytes <= VALUE_BYTES_MAX);
                let Some(value) = behind.get(..bytes) else { return };
                match points::decode(format, place.range, value) {
                    Ok(points) => {
                        assert!(points.is_sorted_by(|a, b| a.ts < b.ts));
                        assert!(points.iter().all(|point| place.range.contains(point.ts)));
                    }
                    Err(why) => check_line(&why),
                }
                bytes
            }
            Ok(Command::Get(place, ..) | Command::Delete(place)) => {
                check(&place);
                0
            }
            Ok(_) => 0,
            Err(refused) => {
                check_line(&refused.problem);
                let Some(skip_bytes) = refused.skip_bytes else { return };
                skip_bytes
            }
        };
        let Some(behind) = behind.get(skip_bytes..) else { return };
        rest = behind;
    }
}

fn check(place: &RangeKey) {
    assert!((1..=KEY_BYTES_MAX).contains(&place.key.len()));
    assert!(place.key.iter().all(u8::is_ascii_graphic));
    assert!(place.field < FIELDS_MAX && place.range.start <= place.range.end);
}

fn check_line(text: &str) {
    assert!(!text.contains('\n'), "{text}");
    check_message(text);
}
