//! The head of an HTTP request: its end, its errors, and the length of the body.
//!
//! A head that passes [`check`] is accepted by hyper, whose own refusals have no text. The parser
//! and the grammar of the target are the same ones.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use axum::http::uri::Authority;
use axum::http::{Method, Request, StatusCode, Uri};
use firn_model::redacted;

/// Longest head, as received and as passed on. The longest URL of a program has some 60 kB.
pub(crate) const HEAD_BYTES_MAX: usize = 127 << 10;
/// As hyper.
pub(crate) const HEADERS_MAX: usize = 100;
const HEADER_NAME_BYTES_MAX: usize = 8 << 10;
/// The limit of `http::Uri`.
const TARGET_BYTES_MAX: usize = 65_534;
/// Bytes of the client's input that an error repeats.
const SHOWN_BYTES_MAX: usize = 80;

/// A well-formed head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    /// As received, except for bytes of the target that are now percent-encoded.
    pub(super) bytes: Vec<u8>,
    pub(super) body: BodyLength,
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// 0 without a body.
    Bytes(u64),
    Chunked,
}

/// The response to a request that no handler receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeadRefusal {
    pub(crate) status: StatusCode,
    /// One sentence.
    pub(crate) why: String,
    /// Whether the path is one of the API, whose errors are JSON.
    pub(super) is_api: bool,
}

/// The end of the head at the start of `bytes`, of which the first `scanned` bytes contain none.
pub(super) fn find_end(bytes: &[u8], scanned: usize) -> Option<usize> {
    // An end that began in the scanned bytes has at most two bytes there.
    let mut from = scanned.saturating_sub(2);
    loop {
        let rest = bytes.get(from..)?;
        let line_end = from.saturating_add(rest.iter().position(|&byte| byte == b'\n')?);
        let next = line_end.saturating_add(1);
        match bytes.get(next..)? {
            [b'\n', ..] => return Some(next.saturating_add(1)),
            [b'\r', b'\n', ..] => return Some(next.saturating_add(2)),
            _ => from = next,
        }
    }
}

/// Whether a request may begin with `byte`: everything else is another protocol.
pub(super) fn may_begin(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Checks a whole head, and percent-encodes bytes of its target that HTTP does not allow there but
/// that browsers, curl and Prometheus' other servers accept.
///
/// # Errors
/// The answer to the client.
pub(super) fn check(head: &[u8]) -> Result<RequestHead, HeadRefusal> {
    let (method, target, rest) = request_line(head)?;
    let is_api = target.starts_with(b"/api/");
    let at_path = |refusal: HeadRefusal| HeadRefusal { is_api, ..refusal };
    check_target(target).map_err(at_path)?;
    let mut bytes = Vec::with_capacity(head.len());
    bytes.extend_from_slice(method);
    bytes.push(b' ');
    push_target(target, &mut bytes);
    bytes.extend_from_slice(rest);
    let body = check_encoded(&bytes).map_err(at_path)?;
    Ok(RequestHead { bytes, body })
}

/// As [`check`], as a request without its body.
///
/// # Errors
/// The answer to the client.
pub(crate) fn parse(head: &[u8]) -> Result<Request<()>, HeadRefusal> {
    let malformed = || bad("the head of the request is malformed");
    let RequestHead { bytes, .. } = check(head)?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(&bytes).map_err(named)?;
    let mut request = Request::builder()
        .method(parsed.method.unwrap_or_default())
        .uri(parsed.path.unwrap_or_default());
    for header in parsed.headers.iter() {
        request = request.header(header.name, header.value);
    }
    request.body(()).map_err(|_| malformed())
}

/// Method, target, and the bytes from the space behind the target.
type RequestLine<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn request_line(head: &[u8]) -> Result<RequestLine<'_>, HeadRefusal> {
    let malformed = || bad("the request line is malformed; expected: METHOD TARGET HTTP/1.1");
    let space = |bytes: &[u8]| bytes.iter().position(|&byte| matches!(byte, b' ' | b'\n'));
    let (method, rest) =
        space(head).and_then(|at| head.split_at_checked(at)).ok_or_else(malformed)?;
    let rest = rest.strip_prefix(b" ").ok_or_else(malformed)?;
    let (target, rest) =
        space(rest).and_then(|at| rest.split_at_checked(at)).ok_or_else(malformed)?;
    if target.is_empty() || !rest.starts_with(b" HTTP/") {
        return Err(malformed());
    }
    Ok((method, target, rest))
}

fn check_target(target: &[u8]) -> Result<(), HeadRefusal> {
    if let Some(byte) = target.iter().find(|byte| byte.is_ascii_control()) {
        let why =
            format!("the URL contains the control character {byte:#04x}; write it as %{byte:02X}");
        return Err(bad(why));
    }
    let encoded: usize = target.iter().map(|&byte| if is_allowed(byte) { 1 } else { 3 }).sum();
    if encoded > TARGET_BYTES_MAX {
        let why = format!(
            "the URL has {encoded} bytes, at most {TARGET_BYTES_MAX} are accepted; send long \
             parameters as a form with POST"
        );
        return Err(refusal(StatusCode::URI_TOO_LONG, why));
    }
    Ok(())
}

/// The bytes that a path and a query may contain (RFC 3986), and brackets.
fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(byte, b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
}

fn push_target(target: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
    for &byte in target {
        match is_allowed(byte) {
            true => out.push(byte),
            false => out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
}

/// Parses the head as hyper does, except for lines that end with LF alone: programs on the way may
/// see one line there, or two.
fn check_encoded(head: &[u8]) -> Result<BodyLength, HeadRefusal> {
    let mut lines = head.split(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        if lines.peek().is_some() && !line.ends_with(b"\r") {
            return Err(named(httparse::Error::NewLine));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(bad("the head of the request is malformed")),
        Err(error) => return Err(named(error)),
    }
    let method = request.method.unwrap_or_default();
    if Method::from_bytes(method.as_bytes()).is_err() {
        return Err(bad("the method is malformed"));
    }
    if method == "CONNECT" {
        let why = "CONNECT is refused: this server forwards no connections";
        return Err(refusal(StatusCode::METHOD_NOT_ALLOWED, why));
    }
    let target = request.path.unwrap_or_default();
    if Uri::try_from(target).is_err() {
        return Err(bad(format!("the URL is malformed: {}", shown(target.as_bytes()))));
    }
    if head.len() > HEAD_BYTES_MAX {
        return Err(too_large());
    }
    let body = body_length(&request)?;
    check_host(&request)?;
    Ok(body)
}

/// # Errors
/// Refuses a request without exactly one host: programs on the way may choose its server by another
/// one.
fn check_host(request: &httparse::Request<'_, '_>) -> Result<(), HeadRefusal> {
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(is_host);
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(bad("the request has Host twice")),
        (None, _) if request.version == Some(1) => {
            Err(bad("HTTP/1.1 requires the header Host; send it with the name of this server"))
        }
        (Some(host), None) if !is_authority(host.value) => {
            Err(bad(format!("Host is {}, expected a name and a port", shown(host.value))))
        }
        _ => Ok(()),
    }
}

/// Empty, or a host with or without a port.
fn is_authority(host: &[u8]) -> bool {
    host.is_empty() || (!host.contains(&b'@') && Authority::try_from(host).is_ok())
}

/// # Errors
/// The length of the body. Two lengths, one that is no number, and a coding other than `chunked`
/// are refused: another program on the way may have found the end of the body elsewhere, and taken
/// its rest for a request.
fn body_length(request: &httparse::Request<'_, '_>) -> Result<BodyLength, HeadRefusal> {
    let (mut length, mut is_chunked) = (None, false);
    for header in request.headers.iter() {
        if header.name.len() > HEADER_NAME_BYTES_MAX {
            return Err(too_large());
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if request.version != Some(1) {
                return Err(bad("Transfer-Encoding requires HTTP/1.1"));
            }
            // RFC 9112 has 501 for codings that are only unknown. One answer for all is simpler,
            // and no program sends other codings.
            if is_chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err(bad(format!(
                    "Transfer-Encoding {} is not supported; send chunked, once",
                    shown(header.value)
                )));
            }
            is_chunked = true;
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let number = content_length(header.value).ok_or_else(|| {
                bad(format!("Content-Length is {}, expected a number", shown(header.value)))
            })?;
            if length.replace(number).is_some() {
                return Err(bad("the request has Content-Length twice"));
            }
        }
    }
    match (length, is_chunked) {
        (Some(_), true) => Err(bad("the request has both Content-Length and Transfer-Encoding")),
        (None, true) => Ok(BodyLength::Chunked),
        (length, false) => Ok(BodyLength::Bytes(length.unwrap_or(0))),
    }
}

/// Digits only. Longer numbers than this server's limits allow are refused by the handler.
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok()?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&number| is_number && number <= i64::MAX as u64)
}

fn named(error: httparse::Error) -> HeadRefusal {
    match error {
        httparse::Error::TooManyHeaders => {
            let why = format!("the request has more than {HEADERS_MAX} headers");
            refusal(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why)
        }
        httparse::Error::Version => {
            let why = "this version of HTTP is not supported; send HTTP/1.1";
            refusal(StatusCode::HTTP_VERSION_NOT_SUPPORTED, why)
        }
        httparse::Error::HeaderName => {
            bad("a header's name is malformed; headers must not continue on a second line")
        }
        httparse::Error::HeaderValue => bad("a header's value contains a control character"),
        httparse::Error::NewLine => bad("a line of the head does not end with CR LF"),
        httparse::Error::Token => bad("the method or the URL is malformed"),
        httparse::Error::Status => bad("the head of the request is malformed"),
    }
}

/// The head is longer than [`HEAD_BYTES_MAX`].
pub(crate) fn too_large() -> HeadRefusal {
    let why = format!("the URL and the headers have more than {HEAD_BYTES_MAX} bytes");
    refusal(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why)
}

/// A malformed request.
pub(super) fn bad(why: impl Into<String>) -> HeadRefusal {
    refusal(StatusCode::BAD_REQUEST, why)
}

pub(super) fn refusal(status: StatusCode, why: impl Into<String>) -> HeadRefusal {
    HeadRefusal { status, why: why.into(), is_api: false }
}

/// The start of a client's input, fit for one line, without credentials of a URL.
fn shown(input: &[u8]) -> String {
    // Redacted before it is cut: the end of the credentials may be in the part that is cut off.
    let escaped = input.escape_ascii().to_string();
    let plain = redacted(&escaped);
    let cut = plain.get(..SHOWN_BYTES_MAX).unwrap_or(&plain);
    let more = if cut.len() < plain.len() { "..." } else { "" };
    format!("\"{cut}\"{more}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checked(lines: &str) -> Result<RequestHead, HeadRefusal> {
        // Every head but that of another version or another test has a host.
        let host = if lines.contains("Host") { "" } else { "\r\nHost: x" };
        let head = format!("{}{host}\r\n\r\n", lines.replace('\n', "\r\n"));
        assert_eq!(find_end(head.as_bytes(), 0), Some(head.len()));
        check(head.as_bytes())
    }

    #[test]
    fn a_head_ends_at_the_first_empty_line_however_it_arrives() {
        let f = |bytes: &[u8], want: Option<usize>| {
            assert_eq!(find_end(bytes, 0), want, "{}", bytes.escape_ascii());
            // As if it had arrived byte by byte.
            let at = (0..=bytes.len()).find_map(|len| find_end(&bytes[..len], len.max(1) - 1));
            assert_eq!(at, want, "{} byte by byte", bytes.escape_ascii());
        };
        f(b"GET / HTTP/1.1\r\n\r\nbody\r\n\r\n", Some(18));
        f(b"GET / HTTP/1.1\n\nbody", Some(16));
        f(b"GET / HTTP/1.1\r\nA: b\n\r\n", Some(23));
        f(b"GET / HTTP/1.1\r\nA: b\r\n\r", None);
        f(b"GET / HTTP/1.1\r\n\r \n", None);
        f(b"", None);
    }

    #[test]
    fn targets_that_browsers_and_curl_send_are_encoded() {
        for (target, encoded) in [
            ("/api/v1/query?query=up{job=\"a\"}", "/api/v1/query?query=up%7Bjob=%22a%22%7D"),
            ("/q?a<b>`|\\^#c", "/q?a%3Cb%3E%60%7C%5C%5E%23c"),
            ("/q?ä[0]", "/q?%C3%A4[0]"),
            ("/label/\"x\"", "/label/%22x%22"),
            ("/kept?%22+'()*,;:@!$&=~-._", "/kept?%22+'()*,;:@!$&=~-._"),
            ("http://host:1/q?\"", "http://host:1/q?%22"),
            ("*", "*"),
        ] {
            let head = checked(&format!("GET {target} HTTP/1.1\nHost: x")).unwrap();
            let wanted = format!("GET {encoded} HTTP/1.1\r\nHost: x\r\n\r\n");
            assert_eq!(String::from_utf8(head.bytes).unwrap(), wanted);
        }
    }

    #[test]
    fn every_length_of_a_body_is_certain() {
        let f = |headers: &str, want: Result<BodyLength, (u16, &str)>| {
            let found = checked(&format!("POST / HTTP/1.1{headers}"));
            match (found, want) {
                (Ok(head), Ok(length)) => assert_eq!(head.body, length, "{headers}"),
                (Err(refusal), Err((status, why))) => {
                    assert_eq!(refusal.status.as_u16(), status, "{headers}");
                    assert!(refusal.why.contains(why), "{headers}: {}", refusal.why);
                }
                (found, _) => panic!("{headers}: {found:?}"),
            }
        };
        f("", Ok(BodyLength::Bytes(0)));
        f("\nContent-Length: 7", Ok(BodyLength::Bytes(7)));
        f("\nContent-Length: 7\ncontent-length: 7", Err((400, "twice")));
        f("\nContent-Length: 7\ncontent-length: 8", Err((400, "twice")));
        f("\nContent-Length: 7, 7", Err((400, "\"7, 7\"")));
        f("\nContent-Length: +7", Err((400, "\"+7\"")));
        f("\nContent-Length: -7", Err((400, "\"-7\"")));
        f("\nContent-Length:", Err((400, "\"\"")));
        f("\nContent-Length: 18446744073709551616", Err((400, "expected a number")));
        f("\nTransfer-Encoding: CHUNKED", Ok(BodyLength::Chunked));
        for coding in [
            "gzip, chunked",
            "chunked, gzip",
            "chunked, chunked",
            "identity",
            "xchunked",
            "\"chunked\"",
            "",
        ] {
            f(&format!("\nTransfer-Encoding: {coding}"), Err((400, "send chunked")));
        }
        f("\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked", Err((400, "once")));
        f("\nTransfer-Encoding: chunked\n chunked", Err((400, "name")));
        f("\nContent-Length: 0x5", Err((400, "0x5")));
        f("\nContent-Length: 5 5", Err((400, "5 5")));
        f("\nTransfer-Encoding: chunked\nContent-Length: 7", Err((400, "both")));
        f("\nContent-Length: 7\nTransfer-Encoding: chunked", Err((400, "both")));
        f("\nTransfer-Encoding : chunked", Err((400, "name")));
    }

    #[test]
    fn a_request_names_one_host() {
        let f = |head: &str, want: &str| {
            let checked = check(format!("GET / HTTP/{head}\r\n\r\n").as_bytes());
            match checked {
                Ok(_) => assert_eq!(want, "", "{head}"),
                Err(refusal) => {
                    assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
                    assert!(!want.is_empty() && refusal.why.contains(want), "{}", refusal.why);
                }
            }
        };
        f("1.1", "requires the header Host");
        f("1.1\r\nX-Host: a", "requires the header Host");
        f("1.0", "");
        f("1.1\r\nhost: a:1", "");
        f("1.1\r\nHost:", "");
        f("1.1\r\nHost: [::1]:9420", "");
        f("1.1\r\nHost: a\r\nHost: a", "twice");
        f("1.0\r\nHost: a\r\nHOST: b", "twice");
        for host in ["a b", "a/b", "u@a", "a?b", "\u{e9}"] {
            f(&format!("1.1\r\nHost: {host}"), "expected a name");
        }
    }

    /// Before, the password was in the error, which clients log.
    #[test]
    fn errors_repeat_no_credentials() {
        let long = format!("user:{}secret@host", "x".repeat(100));
        for head in [
            "GET / HTTP/1.1\nHost: user:secret@host",
            &format!("GET / HTTP/1.1\nHost: {long}"),
            "GET http://user:secret@[::1/ HTTP/1.1",
        ] {
            let why = checked(head).unwrap_err().why;
            assert!(why.contains("xxxxx@"), "{why}");
            assert!(!why.contains("secret") && !why.contains("user"), "{why}");
        }
    }

    #[test]
    fn malformed_heads_are_refused_with_a_sentence() {
        let f = |lines: &str, status: u16, why: &str| {
            let refusal = checked(lines).unwrap_err();
            assert_eq!(refusal.status.as_u16(), status, "{lines:?}: {}", refusal.why);
            assert!(refusal.why.contains(why), "{lines:?}: {}", refusal.why);
        };
        f("GET", 400, "request line");
        f("GET /", 400, "request line");
        f("GET / x HTTP/1.1", 400, "request line");
        f("GET  / HTTP/1.1", 400, "request line");
        f("GET /\u{1} HTTP/1.1", 400, "%01");
        f("GET /\r HTTP/1.1", 400, "%0D");
        f("GET / HTTP/2.0", 505, "send HTTP/1.1");
        f("G(T / HTTP/1.1", 400, "method");
        f("GET x:// HTTP/1.1", 400, "URL is malformed");
        f("CONNECT a:1 HTTP/1.1", 405, "CONNECT");
        f("GET / HTTP/1.1\nA: b\n c", 400, "second line");
        f("GET / HTTP/1.1\nA: b\u{0}", 400, "control character");
        f("GET / HTTP/1.1\n: b", 400, "name");
        f(&format!("GET / HTTP/1.1{}", "\na: b".repeat(100)), 431, "100 headers");
        f(&format!("GET /?{} HTTP/1.1", "\"".repeat(30_000)), 414, "POST");
        f(&format!("GET / HTTP/1.1\n{}: b", "a".repeat(9_000)), 431, "headers have more");
        for head in [
            "GET / HTTP/1.1\n\n",
            "GET / HTTP/1.1\r\nA: b\n\r\n",
            "GET / HTTP/1.1\nA: b\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\n\n",
        ] {
            let refusal = check(head.as_bytes()).unwrap_err();
            let expected = (StatusCode::BAD_REQUEST, "a line of the head does not end with CR LF");
            assert_eq!((refusal.status, &*refusal.why), expected, "{head:?}");
        }
        assert!(checked("GET /api/v1/query HTTP/3").unwrap_err().is_api);
        assert!(!checked("GET /federate HTTP/3").unwrap_err().is_api);
    }

    proptest! {
        /// hyper's parser and its grammar of URLs accept whatever passes.
        #[test]
        fn a_checked_head_is_accepted_by_hyper(
            target in prop::collection::vec(any::<u8>(), 0..40),
            absolute in prop::option::of(Just(b"http://".to_vec())),
        ) {
            let target = [absolute.unwrap_or_else(|| b"/".to_vec()), target].concat();
            let head = [b"GET ", &*target, b" HTTP/1.1\r\nHost: b\r\n\r\n"].concat();
            if let Ok(head) = check(&head) {
                let mut headers = [httparse::EMPTY_HEADER; 4];
                let mut request = httparse::Request::new(&mut headers);
                prop_assert!(request.parse(&head.bytes).unwrap().is_complete());
                prop_assert!(Uri::try_from(request.path.unwrap()).is_ok());
            }
        }

        #[test]
        fn any_bytes_are_a_head_or_not(head in prop::collection::vec(any::<u8>(), 0..200)) {
            let head = [&*head, b"\r\n\r\n"].concat();
            if let Err(refusal) = check(&head) {
                prop_assert!(!refusal.why.is_empty() && refusal.why.is_ascii());
            }
        }
    }
}
