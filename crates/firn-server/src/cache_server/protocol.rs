//! The protocol's request lines and their errors. Byte by byte: docs/cache-protocol.md.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{TimeRange, Timestamp};

/// A longer line is refused.
pub(super) const LINE_BYTES_MAX: usize = 8 << 10;
/// A longer key is refused.
pub(super) const KEY_BYTES_MAX: usize = 4 << 10;
/// The start of the version in the first line of an HTTP request.
const HTTP_VERSION: &[u8] = b"HTTP/";
/// Fields of a key: each has slabs of its own, and an open one in memory.
pub(super) const FIELDS_MAX: u64 = 16;

/// How points are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Binary,
}

/// Points of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeKey {
    pub(super) key: Vec<u8>,
    pub(super) field: u64,
    pub(super) range: TimeRange,
}

/// A parsed request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Auth(Vec<u8>),
    /// With the length of the points that follow, before the end of a line.
    Set(RangeKey, Format, usize),
    /// With the smallest size of a partial hit that the client accepts.
    Get(RangeKey, Format, Option<u64>),
    Delete(RangeKey),
    Version,
    Quit,
    /// The first line of a GET: an HTTP client.
    Http,
    /// A line of an HTTP request other than that: a browser, or a client of another server.
    ForeignHttp,
}

/// Why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) problem: String,
    /// Unwanted bytes of a value that follow; `None` if their number is unknown: the connection
    /// ends.
    pub(super) skip_bytes: Option<usize>,
}

impl Format {
    /// The store's field for a key's field: the two formats do not share values.
    pub(super) fn store_field(self, field: u64) -> u64 {
        // A field is below `FIELDS_MAX`.
        field.saturating_mul(2).saturating_add(u64::from(self == Format::Binary))
    }
}

/// Parses a line without its end.
///
/// # Errors
/// The mistake, and how to continue.
pub(super) fn parse_line(line: &[u8], value_bytes_max: usize) -> Result<Command, Refused> {
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    match words.as_slice() {
        [b"GET", _, version] if version.starts_with(HTTP_VERSION) => Ok(Command::Http),
        _ if is_http(&words) => Ok(Command::ForeignHttp),
        [b"get", key, field, start, end, format, rest @ ..] if rest.len() <= 1 => {
            let place = place(key, field, start, end)?;
            let format = parse_format(format)?;
            let least = rest.first().map(|word| number(word, "bytes of a part", u64::MAX));
            Ok(Command::Get(place, format, least.transpose()?))
        }
        [b"set", key, field, start, end, format, bytes] => {
            // The start of the next request is known once this number is.
            let bytes = match number(bytes, "bytes of the value", 1 << 40) {
                Ok(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
                Err(refused) => return Err(Refused { skip_bytes: None, ..refused }),
            };
            let and_skip = |refused| Refused { skip_bytes: Some(bytes), ..refused };
            if bytes > value_bytes_max {
                let problem = format!(
                    "the value has {bytes} bytes, {value_bytes_max} are allowed \
                     (--value-bytes-max); set shorter ranges"
                );
                return Err(and_skip(refused(problem)));
            }
            let format = parse_format(format).map_err(and_skip)?;
            let place = place(key, field, start, end).map_err(and_skip)?;
            Ok(Command::Set(place, format, bytes))
        }
        [b"delete", key, field, start, end] => Ok(Command::Delete(place(key, field, start, end)?)),
        [b"auth", token] => Ok(Command::Auth(token.to_vec())),
        [b"version"] => Ok(Command::Version),
        [b"quit"] => Ok(Command::Quit),
        [b"set", ..] => Err(Refused {
            problem: "expected: set KEY FIELD START END json|binary BYTES".into(),
            skip_bytes: None,
        }),
        [b"get", ..] => {
            Err(refused("expected: get KEY FIELD START END json|binary [LEAST_BYTES]".into()))
        }
        [b"delete", ..] => Err(refused("expected: delete KEY FIELD START END".into())),
        [b"auth", ..] => Err(refused("expected: auth TOKEN".into())),
        // A client of another protocol. Its next lines may look like commands: a mail, a header, a
        // form, a TLS session.
        [word, ..] => Err(Refused {
            problem: format!(
                "unknown command {}; expected get, set, delete, auth, version or quit",
                shown(word)
            ),
            skip_bytes: None,
        }),
        [] => Err(Refused { problem: "expected a command".into(), skip_bytes: None }),
    }
}

/// Whether a line belongs to an HTTP request: it starts with a method, ends with a version, or is a
/// header.
fn is_http(words: &[&[u8]]) -> bool {
    const METHODS: [&[u8]; 10] = [
        b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH",
        b"PRI",
    ];
    let first = words.first().copied().unwrap_or_default();
    let ends_with_version =
        words.len() > 1 && words.last().is_some_and(|word| word.starts_with(HTTP_VERSION));
    let name = first.split(|&byte| byte == b':').next().unwrap_or_default();
    let is_host = name.eq_ignore_ascii_case(b"host") && name.len() < first.len();
    METHODS.contains(&first) || ends_with_version || is_host || first.ends_with(b":")
}

fn place(key: &[u8], field: &[u8], start: &[u8], end: &[u8]) -> Result<RangeKey, Refused> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let bytes = key.len();
        return Err(refused(format!("the key has {bytes} bytes, expected 1 to {KEY_BYTES_MAX}")));
    }
    let mut bytes = key.iter().enumerate();
    if let Some((at, byte)) = bytes.find(|(_, byte)| !byte.is_ascii_graphic()) {
        return Err(refused(format!(
            "byte {at} of the key is {byte:#04x}, expected 0x21 to 0x7e; others are written as %XX"
        )));
    }
    let field = number(field, "field", FIELDS_MAX - 1)?;
    let (start, end) = (time(start, "start")?, time(end, "end")?);
    if start > end {
        return Err(refused(format!(
            "the range {start} to {end} ends before it starts; both ends belong to it"
        )));
    }
    Ok(RangeKey { key: key.to_vec(), field, range: TimeRange::new(start, end) })
}

fn parse_format(word: &[u8]) -> Result<Format, Refused> {
    match word {
        b"json" => Ok(Format::Json),
        b"binary" => Ok(Format::Binary),
        _ => Err(refused(format!("the format is {}, expected json or binary", shown(word)))),
    }
}

fn number(word: &[u8], name: &str, most: u64) -> Result<u64, Refused> {
    let digits = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'));
    let number = digits.and_then(|text| text.parse().ok()).filter(|&number| number <= most);
    number.ok_or_else(|| {
        refused(format!("{name} is {}, expected a number from 0 to {most}", shown(word)))
    })
}

fn time(word: &[u8], name: &str) -> Result<Timestamp, Refused> {
    let digits = std::str::from_utf8(word).ok().filter(|text| !text.starts_with('+'));
    digits
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| refused(format!("the {name} is {}, expected a 64-bit integer", shown(word))))
}

fn refused(problem: String) -> Refused {
    Refused { problem, skip_bytes: Some(0) }
}

/// The start of a client's input, fit for one line.
fn shown(word: &[u8]) -> String {
    const SHOWN_BYTES: usize = 40;
    let cut = word.get(..SHOWN_BYTES).unwrap_or(word);
    let more = if cut.len() < word.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> Result<Command, Refused> {
        parse_line(line.as_bytes(), 1_000)
    }

    #[test]
    fn lines_match_the_document() {
        let place = |field, start, end| RangeKey {
            key: b"k%20".to_vec(),
            field,
            range: TimeRange::new(start, end),
        };
        for (line, command) in [
            ("get k%20 0 -5 5 json", Command::Get(place(0, -5, 5), Format::Json, None)),
            ("get k%20 15 5 5 binary 7", Command::Get(place(15, 5, 5), Format::Binary, Some(7))),
            ("set k%20 1 0 9 json 1000", Command::Set(place(1, 0, 9), Format::Json, 1_000)),
            (
                "delete k%20 0 -9223372036854775808 9223372036854775807",
                Command::Delete(place(0, i64::MIN, i64::MAX)),
            ),
            ("auth t", Command::Auth(b"t".to_vec())),
            ("version", Command::Version),
            ("quit", Command::Quit),
            ("GET /-/cache/metrics HTTP/1.1", Command::Http),
        ] {
            assert_eq!(parsed(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn errors_are_named_and_the_connection_continues_if_possible() {
        for (line, problem, skip_bytes) in [
            ("", "unknown command \"\"", None),
            ("flush_all", "unknown command \"flush_all\"", None),
            ("EHLO example.org", "unknown command \"EHLO\"", None),
            ("\u{16}\u{3}\u{1}", "unknown command", None),
            ("*3", "unknown command \"*3\"", None),
            ("get k 0 9 5 json", "range 9 to 5 ends before it starts", Some(0)),
            ("get k 16 0 5 json", "field is \"16\", expected a number from 0 to 15", Some(0)),
            ("get k 0 x 5 json", "start is \"x\"", Some(0)),
            ("get k 0 0 9223372036854775808 json", "end is \"92233", Some(0)),
            ("get k 0 0 5 xml", "format is \"xml\"", Some(0)),
            ("get k 0 0 5", "expected: get KEY", Some(0)),
            ("get  0 0 5 json", "key has 0 bytes", Some(0)),
            ("get k\u{1} 0 0 5 json", "byte 1 of the key is 0x01", Some(0)),
            ("set k 0 0 5 json 1001", "1001 bytes, 1000 are allowed", Some(1_001)),
            ("set k 0 5 0 json 20", "ends before it starts", Some(20)),
            ("set k 0 0 5 json -1", "bytes of the value is \"-1\"", None),
            ("set k 0 0 5 20", "expected: set KEY", None),
            ("delete k 0 5", "expected: delete KEY", Some(0)),
        ] {
            let refused = parsed(line).unwrap_err();
            assert!(refused.problem.contains(problem), "{line}: {}", refused.problem);
            assert_eq!(refused.skip_bytes, skip_bytes, "{line}");
            assert!(!refused.problem.contains(['\r', '\n']), "{line}");
        }
    }

    #[test]
    fn lines_of_http_are_no_commands() {
        for line in [
            "POST / HTTP/1.1",
            "POST",
            "PUT /k HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "CONNECT a:1 HTTP/1.1",
            "PRI * HTTP/2.0",
            "GET /",
            "GET / HTCPCP/1.0",
            "set / HTTP/1.1",
            "delete k 0 5 HTTP/1.1",
            "Host: 127.0.0.1:9421",
            "host:x",
            "HOST : x",
            "Content-Type: text/plain",
        ] {
            let is_foreign = line != "HOST : x";
            assert_eq!(parsed(line) == Ok(Command::ForeignHttp), is_foreign, "{line}");
            let ends = matches!(parsed(line), Err(Refused { skip_bytes: None, .. }));
            assert!(is_foreign || ends, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_one_line_of_why_not(
            line in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                "(get|set|delete) [!-~]{0,5} [0-9-]{0,3} [0-9-]{0,20} [0-9-]{0,20} (json|binary)( [0-9]{0,25})?"
                    .prop_map(String::into_bytes),
            ],
        ) {
            match parse_line(&line, 1_000) {
                Ok(Command::Set(place, _, bytes)) => {
                    prop_assert!(!place.range.is_empty() && bytes <= 1_000);
                }
                Ok(Command::Get(place, ..) | Command::Delete(place)) => {
                    prop_assert!(!place.range.is_empty() && place.field < FIELDS_MAX);
                }
                Ok(_) => {}
                Err(refused) => {
                    prop_assert!(refused.problem.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
                }
            }
        }
    }
}
