//! The check that the fuzzer in `fuzz/` runs on its input. Compiled for tests and fuzzers only.

use crate::{Error, decode_points, read_reply};

/// A message repeats at most this much of a response.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Bytes of a cache server: responses are read until the first error.
///
/// # Panics
/// If an accepted value is longer than the bytes.
pub fn reply(data: &[u8]) {
    let mut rest = data;
    while !rest.is_empty() {
        match read_reply(&mut rest, (0, 9)) {
            Ok(reply) => {
                assert!(reply.value.len() <= data.len());
                let _ = decode_points(&reply.value);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.len() <= MESSAGE_BYTES_MAX, "{text:.200}");
                if matches!(error, Error::Unavailable(..)) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Responses as short as possible for their announcements, and long lines.
    #[test]
    fn announced_lengths_are_not_trusted() {
        let long = "x".repeat(60_000);
        for text in [
            "VALUE 0 9 1073741824\r\nabc".to_owned(),
            "VALUE 0 9 1073741825\r\nabc".to_owned(),
            "VALUE 0 9 3\r\nabc\r\nVALUE 0 9 3\r\nabcde".to_owned(),
            format!("CLIENT_ERROR {long}\r\nSERVER_ERROR {long}\r\n{long}\r\n"),
        ] {
            reply(text.as_bytes());
        }
        let cut = read_reply(&mut &b"VALUE 0 9 1073741824\r\nabc"[..], (0, 9)).unwrap_err();
        assert!(cut.to_string().contains("cut short"), "{cut}");
    }
}
