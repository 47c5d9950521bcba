//! Parts of names, addresses and queries.

use firn_model::{Error, Result};

/// `key` as a part of a label's name.
pub(super) fn label_name(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// `host` with `port`; brackets around an IPv6 address.
pub(super) fn host_port(host: &str, port: impl std::fmt::Display) -> String {
    match host.contains([':', '%']) {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// `text` as a part of a path or a query.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

// A URL has up to three bytes for each, and at most 64 KiB. Servers send some hundred.
const REPEATED_BYTES_MAX: usize = 16 << 10;

/// Checks the length of a text of an answer that the next request repeats, such as a token of a
/// page.
///
/// # Errors
/// `Invalid` if no request has room for it.
pub(super) fn check_repeated(what: &str, text: &str) -> Result<()> {
    match text.len() {
        0..=REPEATED_BYTES_MAX => Ok(()),
        len => Err(Error::invalid(format!(
            "{what} has {len} bytes, expected at most {REPEATED_BYTES_MAX}"
        ))),
    }
}
