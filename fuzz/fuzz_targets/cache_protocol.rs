//! Any bytes, sent by a client of `firn cache`. The target parses lines and values as the server
//! does. It checks that each refusal is one line, and that each accepted request obeys
//! `docs/cache-protocol.md`.

#![no_main]
#![expect(dead_code, reason = "only the parsers are fuzzed; the writers of responses are unused")]

// By path: the server around them would be most of the build.
#[path = "../../crates/firn-server/src/cache_server/points.rs"]
mod points;
#[path = "../../crates/firn-server/src/cache_server/protocol.rs"]
mod protocol;
#[path = "../../crates/firn-server/src/wire"]
mod wire {
    pub(crate) mod number;
}

use protocol::{Command, FIELDS_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX, RangeKey};

const VALUE_BYTES_MAX: usize = 64;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
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
                    Err(why) => assert!(!why.contains('\n'), "{why}"),
                }
                bytes
            }
            Ok(Command::Get(place, ..) | Command::Delete(place)) => {
                check(&place);
                0
            }
            Ok(_) => 0,
            Err(refused) => {
                assert!(!refused.problem.contains('\n'), "{}", refused.problem);
                let Some(skip_bytes) = refused.skip_bytes else { return };
                skip_bytes
            }
        };
        let Some(behind) = behind.get(skip_bytes..) else { return };
        rest = behind;
    }
});

fn check(place: &RangeKey) {
    assert!((1..=KEY_BYTES_MAX).contains(&place.key.len()));
    assert!(place.key.iter().all(u8::is_ascii_graphic));
    assert!(place.field < FIELDS_MAX && place.range.start <= place.range.end);
}
