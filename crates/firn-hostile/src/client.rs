//! A client without manners: sends any bytes, and reports any outcome as an answer.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dial::Connection;
use crate::target::Target;
use crate::wire::encode;

/// In place of a status: the server closed the connection without a response.
pub(crate) const CLOSED: u16 = 0;
/// In place of a status: the connection is open and the server silent.
pub(crate) const SILENT: u16 = 1;
/// In place of a status: the response is not HTTP.
pub(crate) const TEXT: u16 = 2;

/// Longest wait for a response.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// A connection without a response for this time is silent.
const SILENCE: Duration = Duration::from_millis(1_500);
/// After a response the next one of the same connection follows sooner.
const SILENCE_AFTER_ANSWER: Duration = Duration::from_millis(300);
/// Of a body; the rest is counted.
const KEPT_BYTES: usize = 256 << 10;
const EXCERPT_CHARS: usize = 200;
/// Between the requests of clients that do not read.
const DEAF_PAUSE: Duration = Duration::from_millis(25);

/// One outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Of HTTP, or [`CLOSED`], [`SILENT`], [`TEXT`].
    pub(crate) status: u16,
    /// Status line and headers, in lower case.
    pub(crate) head: String,
    /// The first part of the body.
    pub(crate) body: Vec<u8>,
    /// Length of the body.
    pub(crate) body_bytes: u64,
    /// The response to a `HEAD` request, which has no body.
    pub(crate) is_head: bool,
}

impl Answer {
    /// Without a response.
    pub(crate) fn of_status(status: u16) -> Answer {
        Answer { status, ..Answer::default() }
    }

    /// Head and body.
    pub(crate) fn text(&self) -> String {
        format!("{}\r\n\r\n{}", self.head, String::from_utf8_lossy(&self.body))
    }

    /// The value of a header; its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let values = self.head.lines().filter_map(|line| line.split_once(':'));
        values.filter(|(found, _)| *found == name).map(|(_, value)| value.trim()).next()
    }

    /// For messages.
    pub(crate) fn excerpt(&self) -> String {
        let status = match self.status {
            CLOSED => "closed without a response".to_owned(),
            SILENT => "silent".to_owned(),
            TEXT => "text".to_owned(),
            status => status.to_string(),
        };
        let body = String::from_utf8_lossy(&self.body);
        let body: String = body.chars().take(EXCERPT_CHARS).collect();
        format!("{status} {:?}", body.trim())
    }
}

/// A request of HTTP.
#[derive(Clone)]
pub(crate) struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Body,
    is_anonymous: bool,
}

#[derive(Clone)]
enum Body {
    Absent,
    Bytes(Vec<u8>),
    /// Large bodies exist only while they are sent.
    Made(Arc<dyn Fn() -> Vec<u8> + Send + Sync>),
}

/// A `GET`.
pub(crate) fn get(path: impl Into<String>) -> Request {
    request("GET", path)
}

/// A `POST` without a body.
pub(crate) fn post(path: impl Into<String>) -> Request {
    request("POST", path)
}

/// Any method.
pub(crate) fn request(method: &str, path: impl Into<String>) -> Request {
    Request {
        method: method.to_owned(),
        path: path.into(),
        headers: Vec::new(),
        body: Body::Absent,
        is_anonymous: false,
    }
}

/// A `POST` of a form.
pub(crate) fn form<K: AsRef<str>, V: AsRef<[u8]>>(
    path: &str,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> Request {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name.as_ref());
        text.push('=');
        text.push_str(&encode(value));
    }
    post(path).header("Content-Type", "application/x-www-form-urlencoded").body(text)
}

impl Request {
    /// Adds a header; it replaces one that the client would add.
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Request {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// The body.
    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = Body::Bytes(body.into());
        self
    }

    /// The body of each sending.
    pub(crate) fn make(mut self, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Request {
        self.body = Body::Made(Arc::new(make));
        self
    }

    /// Without the credentials of the target.
    pub(crate) fn anonymous(mut self) -> Request {
        self.is_anonymous = true;
        self
    }

    /// Its bytes.
    pub(crate) fn encode(&self, target: &Target) -> Vec<u8> {
        let body = match &self.body {
            Body::Absent => Vec::new(),
            Body::Bytes(bytes) => bytes.clone(),
            Body::Made(make) => make(),
        };
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let mut add = |name: &str, value: &str| {
            if !self.headers.iter().any(|header| header.0.eq_ignore_ascii_case(name)) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &target.address().to_string());
        add("Connection", "close");
        if !self.is_anonymous
            && let Some(authorization) = target.authorization()
        {
            add("Authorization", authorization);
        }
        let has_coding =
            self.headers.iter().any(|header| header.0.eq_ignore_ascii_case("Transfer-Encoding"));
        if !has_coding && (!matches!(self.body, Body::Absent) || self.method == "POST") {
            add("Content-Length", &body.len().to_string());
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Sends it on a connection of its own.
    pub(crate) fn send(&self, target: &Target) -> Answer {
        let bytes = self.encode(target);
        let Ok(mut connection) = target.connect() else { return Answer::of_status(CLOSED) };
        let _ = connection.write_all(&bytes);
        let mut answer = first_answer(&mut connection, target.limit(ANSWER_TIME_MAX));
        answer.is_head = self.method == "HEAD";
        answer
    }
}

/// Sends a request until the server accepts it or `time_max` has passed: after an attack it may
/// still be busy, which is not a loss of data.
pub(crate) fn insist(time_max: Duration, send: impl Fn() -> Answer, wanted: u16) -> Answer {
    let start = Instant::now();
    loop {
        let answer = send();
        if answer.status == wanted || start.elapsed() > time_max {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// As many connections as the target takes.
pub(crate) fn connect_all(connections: usize, target: &Target) -> Vec<Box<dyn Connection>> {
    // Beyond the queue of the listener a connection takes seconds: those are left out.
    (0..connections).map_while(|_| target.connect().ok()).collect()
}

/// Connections that have sent the request and do not read the response.
pub(crate) fn deaf_connections(
    request: &Request,
    connections: usize,
    target: &Target,
) -> Vec<Box<dyn Connection>> {
    let bytes = request.encode(target);
    let mut open = connect_all(connections, target);
    for connection in &mut open {
        let _ = connection.write_all(&bytes);
        // One response is complete before the next is requested: all of them wait for a reader.
        std::thread::sleep(DEAF_PAUSE);
    }
    open
}

/// Sends bytes that call for a response, and reads responses until the server closes the
/// connection or is silent after the first one, for which a busy machine may need long.
pub(crate) fn exchange(target: &Target, bytes: &[u8]) -> Vec<Answer> {
    exchange_within(target, bytes, [target.limit(ANSWER_TIME_MAX), SILENCE_AFTER_ANSWER])
}

/// The same for bytes to which silence is a right reaction, too.
pub(crate) fn exchange_or_silence(target: &Target, bytes: &[u8]) -> Vec<Answer> {
    exchange_within(target, bytes, [SILENCE, SILENCE_AFTER_ANSWER])
}

/// Sends bytes that end with a `quit`, and reads until the server closes the connection: it may
/// have to do much, or to wait for memory, before it responds.
pub(crate) fn exchange_to_end(target: &Target, bytes: &[u8]) -> Vec<Answer> {
    exchange_within(target, bytes, [target.limit(ANSWER_TIME_MAX); 2])
}

fn exchange_within(target: &Target, bytes: &[u8], silences: [Duration; 2]) -> Vec<Answer> {
    let Ok(mut connection) = target.connect() else { return vec![Answer::of_status(CLOSED)] };
    let _ = connection.write_all(bytes);
    answers_until(&mut connection, silences)
}

/// All responses until the end of the connection or silence.
pub(crate) fn all_answers(connection: &mut Box<dyn Connection>) -> Vec<Answer> {
    answers_until(connection, [SILENCE, SILENCE_AFTER_ANSWER])
}

/// The same with the time of a silence before and after the first bytes.
fn answers_until(connection: &mut Box<dyn Connection>, silences: [Duration; 2]) -> Vec<Answer> {
    let mut received = Vec::new();
    let time_max = silences[0].max(ANSWER_TIME_MAX);
    let start = Instant::now();
    let is_open = loop {
        let silence = silences[usize::from(!received.is_empty())];
        match read_some(connection, silence, &mut received) {
            Event::Bytes if start.elapsed() < time_max => {}
            Event::Bytes | Event::Silence => break true,
            Event::End => break false,
        }
    };
    let answers = parse_all(&received);
    match answers.is_empty() {
        true => vec![Answer::of_status(if is_open { SILENT } else { CLOSED })],
        false => answers,
    }
}

/// The first response.
pub(crate) fn first_answer(connection: &mut Box<dyn Connection>, time_max: Duration) -> Answer {
    let mut received = Vec::new();
    let start = Instant::now();
    loop {
        if let Some((answer, _)) = parse(&received, false) {
            return answer;
        }
        let left = time_max.saturating_sub(start.elapsed());
        if let Some((answer, missing)) = parse_long(&received) {
            return count_rest(connection, answer, missing, left);
        }
        match read_some(connection, left.max(Duration::from_millis(1)), &mut received) {
            Event::Bytes => {}
            Event::Silence => return Answer::of_status(SILENT),
            Event::End => break,
        }
    }
    let answer = parse(&received, true).map(|(answer, _)| answer);
    answer.unwrap_or_else(|| Answer::of_status(CLOSED))
}

/// An answer of which enough was received to know its length and the part that is kept, and the
/// number of bytes that are missing.
fn parse_long(received: &[u8]) -> Option<(Answer, u64)> {
    if received.len() <= 2 * KEPT_BYTES {
        return None;
    }
    let (answer, _) = parse(received, true)?;
    let is_chunked = answer.header("transfer-encoding").is_some();
    let length: u64 = answer.header("content-length")?.parse().ok()?;
    let missing = length.checked_sub(answer.body_bytes)?;
    (!is_chunked).then_some((answer, missing))
}

/// Receives the rest of a body without keeping it: many clients with a long answer would take most
/// of the processor.
fn count_rest(
    connection: &mut Box<dyn Connection>,
    mut answer: Answer,
    mut missing: u64,
    time_max: Duration,
) -> Answer {
    let (start, mut buffer) = (Instant::now(), vec![0; 64 << 10]);
    while missing > 0 {
        let left = time_max.saturating_sub(start.elapsed());
        let _ = connection.socket().set_read_timeout(Some(left.max(Duration::from_millis(1))));
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                missing = missing.saturating_sub(len as u64);
                answer.body_bytes += len as u64;
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Answer::of_status(SILENT);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    answer
}

enum Event {
    Bytes,
    Silence,
    End,
}

fn read_some(connection: &mut Box<dyn Connection>, wait: Duration, out: &mut Vec<u8>) -> Event {
    let mut buffer = vec![0; 64 << 10];
    let _ = connection.socket().set_read_timeout(Some(wait));
    match connection.read(&mut buffer) {
        Ok(0) => Event::End,
        Ok(len) => {
            out.extend_from_slice(&buffer[..len]);
            Event::Bytes
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Event::Silence,
        Err(e) if e.kind() == ErrorKind::Interrupted => Event::Bytes,
        Err(_) => Event::End,
    }
}

fn parse_all(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    if !bytes.is_empty() && !bytes.starts_with(b"HTTP/") {
        return vec![Answer { status: TEXT, ..with_body(bytes) }];
    }
    while let Some((answer, len)) = parse(bytes, true) {
        answers.push(answer);
        bytes = &bytes[len..];
    }
    answers
}

/// One response at the start of `bytes` and its length; `None` if it is not complete. A connection
/// that has ended ends the body.
fn parse(bytes: &[u8], has_ended: bool) -> Option<(Answer, usize)> {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..split]).to_ascii_lowercase();
    let status: u16 = head.split(' ').nth(1)?.get(..3)?.parse().ok()?;
    let rest = &bytes[split + 4..];
    let parsed = Answer { status, head, ..Answer::default() };
    let finish = |body: &[u8], len: usize| {
        let answer = Answer { status, head: parsed.head.clone(), ..with_body(body) };
        Some((answer, split + 4 + len))
    };
    if matches!(status, 100..=199 | 204 | 304) {
        return finish(&[], 0);
    }
    if parsed.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        return match unchunk(rest) {
            Some((body, len)) => finish(&body, len),
            None if has_ended => finish(rest, rest.len()),
            None => None,
        };
    }
    let length = parsed.header("content-length").and_then(|length| length.parse::<usize>().ok());
    match length {
        Some(length) if rest.len() >= length => finish(&rest[..length], length),
        _ if has_ended => finish(rest, rest.len()),
        _ => None,
    }
}

fn with_body(body: &[u8]) -> Answer {
    let kept = body[..body.len().min(KEPT_BYTES)].to_vec();
    Answer { body: kept, body_bytes: body.len() as u64, ..Answer::default() }
}

/// The body of chunks, and their length.
fn unchunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let line = bytes.get(at..)?.windows(2).position(|window| window == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let len = usize::from_str_radix(text.trim(), 16).ok()?;
        at += line + 2;
        body.extend_from_slice(bytes.get(at..at + len)?);
        at += len + 2;
        if len == 0 {
            return (bytes.len() >= at).then_some((body, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_body_of_known_length_is_counted() {
        let answer = |head: &str| {
            let mut bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").into_bytes();
            bytes.resize(3 * KEPT_BYTES, b'x');
            bytes
        };
        let long = answer("Content-Length: 10000000");
        let (found, missing) = parse_long(&long).expect("a long answer");
        assert_eq!((found.status, found.body.len()), (200, KEPT_BYTES));
        assert_eq!(found.body_bytes + missing, 10_000_000);
        assert!(parse_long(&long[..KEPT_BYTES]).is_none());
        assert!(parse_long(&answer("Transfer-Encoding: chunked")).is_none());
    }

    fn statuses(bytes: &[u8]) -> Vec<(u16, u64)> {
        parse_all(bytes).iter().map(|answer| (answer.status, answer.body_bytes)).collect()
    }

    #[test]
    fn responses_of_every_framing_are_read() {
        assert_eq!(statuses(b""), []);
        assert_eq!(statuses(b"VERSION 1\r\n"), [(TEXT, 11)]);
        assert_eq!(statuses(b"HTTP/1.1 204 No Content\r\n\r\n"), [(204, 0)]);
        let fixed = b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno";
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        let open = b"HTTP/1.1 200 OK\r\n\r\nuntil the end";
        let all = [&fixed[..], &chunked[..], &fixed[..], &open[..]].concat();
        assert_eq!(statuses(&all), [(400, 2), (200, 2), (400, 2), (200, 13)]);
    }

    #[test]
    fn an_incomplete_response_is_waited_for() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        for len in 0..whole.len() {
            assert!(parse(&whole[..len], false).is_none(), "{len}");
        }
        let (answer, len) = parse(whole, false).expect("it is complete");
        assert_eq!((answer.body.as_slice(), len), (&b"abc"[..], whole.len()));
        assert_eq!(answer.header("content-length"), Some("3"));
    }
}
