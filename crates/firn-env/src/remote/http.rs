//! The HTTP client of a store: that of object_store, except that it follows no redirect and bounds
//! every answer. A store may be hostile or broken, and object_store collects answers whole.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE, TRANSFER_ENCODING};
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequestBody, HttpResponseBody,
    HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

/// The longest successful answer without a range. A page of a listing is the largest: 1,000 keys of
/// up to 1 KiB with 400 bytes of XML each (S3), or 5,000 of ours with 1 KiB each (Azure).
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Of XML in such an answer, about: tags and entities. The parser takes up to 100 bytes for each. A
/// page of Azure with 5,000 objects has 180,000.
const NODES_MAX: usize = 1 << 18;

/// The longest text of an error; the rest is cut off. Stores send one XML element or JSON object.
const ERROR_BYTES_MAX: u64 = 64 << 10;

const USER_AGENT: &str = concat!("firn/", env!("CARGO_PKG_VERSION"));

/// Connects as object_store's own connector does. Addresses are tried in the order of the resolver.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let built = client(options)
            .map_err(|source| object_store::Error::Generic { store: "HTTP client", source })?;
        Ok(HttpClient::new(BoundedClient(built)))
    }
}

type BuildResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn client(options: &ClientOptions) -> BuildResult<reqwest::Client> {
    use ClientConfigKey as Key;
    let text = |key: Key| options.get_config_value(&key);
    let is_on = |key: Key| -> BuildResult<bool> {
        let value = text(key).unwrap_or_default();
        match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" | "yes" | "y" => Ok(true),
            "" | "false" | "0" | "off" | "no" | "n" => Ok(false),
            _ => Err(format!("{}: expected true or false, got {value:?}", key.as_ref()).into()),
        }
    };
    let duration = |key: Key| -> BuildResult<Option<Duration>> {
        let parse = |value: String| {
            let bad = |e| format!("{}: {e}: {value:?}", key.as_ref());
            humantime::parse_duration(&value).map_err(bad)
        };
        Ok(text(key).map(parse).transpose()?)
    };
    let mut builder = reqwest::Client::builder()
        // A redirect to another host would carry the session token and signed headers there. The
        // stores redirect only to correct a wrong region, with signatures that the other refuses.
        .redirect(reqwest::redirect::Policy::none())
        .https_only(!is_on(Key::AllowHttp)?)
        .danger_accept_invalid_certs(is_on(Key::AllowInvalidCertificates)?)
        .user_agent(text(Key::UserAgent).unwrap_or_else(|| USER_AGENT.to_owned()));
    if let Some(headers) = options.get_default_headers() {
        builder = builder.default_headers(headers.clone());
    }
    if let Some(url) = text(Key::ProxyUrl) {
        let mut proxy = reqwest::Proxy::all(url)?;
        if let Some(pem) = text(Key::ProxyCaCertificate) {
            let certificate = reqwest::Certificate::from_pem(pem.as_bytes())?;
            builder = builder.add_root_certificate(certificate);
        }
        if let Some(excluded) = text(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(reqwest::NoProxy::from_string(&excluded));
        }
        builder = builder.proxy(proxy);
    }
    if let Some(limit) = duration(Key::Timeout)? {
        builder = builder.timeout(limit);
    }
    if let Some(limit) = duration(Key::ConnectTimeout)? {
        builder = builder.connect_timeout(limit);
    }
    if let Some(limit) = duration(Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(limit);
    }
    if let Some(max) = text(Key::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(max.parse()?);
    }
    if let Some(interval) = duration(Key::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(interval);
    }
    if let Some(limit) = duration(Key::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(limit);
    }
    if let Some(max) = text(Key::Http2MaxFrameSize) {
        builder = builder.http2_max_frame_size(Some(max.parse()?));
    }
    builder = builder.http2_keep_alive_while_idle(is_on(Key::Http2KeepAliveWhileIdle)?);
    if is_on(Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if is_on(Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder.build()?)
}

#[derive(Debug)]
struct BoundedClient(reqwest::Client);

impl HttpService for BoundedClient {
    fn call<'a, 'b>(
        &'a self,
        request: Request<HttpRequestBody>,
    ) -> BoxFuture<'b, Result<Response<HttpResponseBody>, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        let range = request.headers().get(RANGE).map(Range::parse);
        let has_body = request.method() != Method::HEAD;
        Box::pin(async move {
            let range = range.transpose()?;
            let (parts, body) = self.0.call(request).await?.into_parts();
            let is_error = !parts.status.is_success();
            let bytes_max = match &range {
                _ if is_error => ERROR_BYTES_MAX,
                Some(range) => range.bytes(),
                None => ANSWER_BYTES_MAX,
            };
            let header = |name| parts.headers.get(name).and_then(|v| v.to_str().ok());
            if let Some(range) = range.filter(|_| !is_error)
                && !range.is_of(header(CONTENT_RANGE).unwrap_or_default())
            {
                return Err(refused("the answer is not the requested range".to_owned()));
            }
            // With two lengths, the client may use another one than a proxy in front of the store.
            if parts.headers.contains_key(TRANSFER_ENCODING) && header(CONTENT_LENGTH).is_some() {
                return Err(refused("the answer has two lengths".to_owned()));
            }
            let announced = header(CONTENT_LENGTH).and_then(|v| v.parse::<u64>().ok());
            if has_body && !is_error && announced.is_some_and(|bytes| bytes > bytes_max) {
                return Err(too_long(bytes_max));
            }
            let nodes_left = (range.is_none() && !is_error).then_some(NODES_MAX);
            let stream = Mutex::new(body.bytes_stream());
            let body =
                BoundedBody { stream, bytes_left: bytes_max, bytes_max, nodes_left, is_error };
            Ok(Response::from_parts(parts, HttpResponseBody::new(body)))
        })
    }
}

/// The range of a request.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// # Errors
    /// For an empty range: a client that received too much of a body requests the rest of it.
    fn parse(value: &HeaderValue) -> Result<Range, HttpError> {
        let range = || {
            let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(Range { first, last })
        };
        range().ok_or_else(|| refused("the answer is longer than its range".to_owned()))
    }

    fn bytes(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether `content_range` is this one or its part up to the end of the object.
    fn is_of(&self, content_range: &str) -> bool {
        let got = || {
            let (range, _) = content_range.strip_prefix("bytes ")?.split_once('/')?;
            let (first, last) = range.split_once('-')?;
            Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
        };
        got().is_some_and(|(first, last)| first == self.first && last <= self.last)
    }
}

fn too_long(bytes_max: u64) -> HttpError {
    refused(format!("the answer is longer than expected, {bytes_max} bytes"))
}

/// An error that is not retried.
fn refused(what: String) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, std::io::Error::other(what))
}

/// A body that fails after `bytes_max` bytes or too many nodes; that of an error ends there.
struct BoundedBody {
    /// The lock makes it `Sync`. It is never taken.
    stream: Mutex<BoxStream<'static, Result<Bytes, HttpError>>>,
    bytes_left: u64,
    bytes_max: u64,
    /// `None` if they are not counted.
    nodes_left: Option<usize>,
    is_error: bool,
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let body = self.get_mut();
        if body.is_error && body.bytes_left == 0 {
            return Poll::Ready(None);
        }
        let stream = body.stream.get_mut().unwrap_or_else(PoisonError::into_inner);
        stream.poll_next_unpin(context).map(|next| {
            let mut bytes = match next? {
                Ok(bytes) => bytes,
                Err(error) => return Some(Err(error)),
            };
            if bytes.len() as u64 > body.bytes_left {
                if !body.is_error {
                    return Some(Err(too_long(body.bytes_max)));
                }
                bytes.truncate(body.bytes_left as usize);
            }
            body.bytes_left -= bytes.len() as u64;
            if let Some(left) = body.nodes_left {
                let nodes = bytes.iter().filter(|byte| matches!(byte, b'<' | b'&')).count();
                body.nodes_left = left.checked_sub(nodes);
                if body.nodes_left.is_none() {
                    let what = format!("the answer has more than {NODES_MAX} XML elements");
                    return Some(Err(refused(what)));
                }
            }
            Some(Ok(Frame::data(bytes)))
        })
    }
}

#[cfg(test)]
mod tests {
    //! Stores that send without an end. They stop at `SENT_BYTES_MAX`, so that a client without
    //! bounds fails the test and not the machine.

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use firn_model::{Error, ErrorKind};
    use http::header::HeaderValue;

    use crate::{Bucket, PutMode, RangeRequest, RemoteBucket, RemoteOptions};

    const SENT_BYTES_MAX: usize = 256 << 20;
    /// Of both kernels for a connection that the client no longer reads.
    const KERNEL_BYTES_MAX: usize = 16 << 20;

    /// Answers every request with `head` and then `chunk` again and again, unless it is empty.
    /// Reports the number of bytes that the client took.
    fn endless(head: &'static str, chunk: Arc<[u8]>) -> (RemoteBucket, Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, sent) = channel();
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, chunk, sender) =
                    (stream.unwrap(), Arc::clone(&chunk), sender.clone());
                std::thread::spawn(move || {
                    read_head(&mut stream);
                    let mut sent = stream.write(head.as_bytes()).unwrap_or(SENT_BYTES_MAX);
                    while !chunk.is_empty()
                        && sent < SENT_BYTES_MAX
                        && stream.write_all(&chunk).is_ok()
                    {
                        sent += chunk.len();
                    }
                    let _ = sender.send(sent);
                });
            }
        });
        (open(port), sent)
    }

    fn open(port: u16) -> RemoteBucket {
        open_with(port, &RemoteOptions::default())
    }

    fn open_with(port: u16, options: &RemoteOptions) -> RemoteBucket {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "hush-hush".to_owned()),
            ("AWS_SESSION_TOKEN", "hush-token".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        RemoteBucket::open("s3://firn-test", variables, options).unwrap()
    }

    fn read_head(stream: &mut TcpStream) -> String {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        String::from_utf8_lossy(&head).to_ascii_lowercase()
    }

    fn read(bucket: &RemoteBucket) -> Error {
        let range = RangeRequest { key: "a".to_owned(), offset: 0, len: 2 };
        bucket.get_ranges(&[range]).remove(0).unwrap_err()
    }

    #[test]
    fn an_answer_without_an_end_is_cut_off() {
        const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n";
        const LISTED: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        const RANGE: &str = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/2\r\n\
            ETag: \"1\"\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\
            Connection: close\r\n\r\n";
        let check = |head, call: &dyn Fn(&RemoteBucket) -> Error| {
            let (bucket, sent) = endless(head, Arc::from(vec![b'x'; 64 << 10]));
            let error = call(&bucket);
            assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().len() < 4_096, "{} bytes", error.to_string().len());
            drop(bucket);
            let sent = sent.recv().unwrap();
            assert!(sent < super::ANSWER_BYTES_MAX as usize + KERNEL_BYTES_MAX, "{sent} bytes");
        };
        let list = |bucket: &RemoteBucket| bucket.list("a").unwrap_err();
        check(FORBIDDEN, &read);
        check(FORBIDDEN, &list);
        check(FORBIDDEN, &|bucket| {
            bucket.put("a", Arc::from(*b"x"), PutMode::Overwrite).unwrap_err()
        });
        check(RANGE, &read);
        check(LISTED, &list);
    }

    /// Before, the announced length was allocated at once and ended the process.
    #[test]
    fn an_announced_length_allocates_nothing() {
        let long = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
        let (bucket, _sent) = endless(long, Arc::from(*b""));
        let error = bucket.list("a").unwrap_err();
        assert!(error.to_string().contains("longer than expected, 8388608 bytes"), "{error}");
    }

    /// Before, each retry of a read brought up to 8 MiB more.
    #[test]
    fn a_range_of_another_length_is_refused() {
        let meta = "ETag: \"1\"\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n";
        for (head, body) in [
            (
                "Content-Range: bytes 0-1/2\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
                "2\r\nok\r\n1\r\nx\r\n",
            ),
            ("Content-Range: bytes 0-1/2\r\nTransfer-Encoding: chunked", "2\r\nok\r\n1\r\nx\r\n"),
            ("Content-Range: bytes 5-6/9\r\nContent-Length: 2", "ok"),
            ("Content-Range: bytes 0-9/9\r\nContent-Length: 10", "0123456789"),
            ("Content-Length: 2", "ok"),
        ] {
            let head = format!("HTTP/1.1 206 Partial Content\r\n{meta}{head}\r\n\r\n{body}");
            let (bucket, _sent) = endless(head.leak(), Arc::from(vec![b'x'; 64 << 10]));
            let error = read(&bucket);
            assert_eq!(error.kind(), &ErrorKind::Unavailable, "{body}: {error}");
        }
        let range = |text: &str| super::Range::parse(&HeaderValue::from_str(text).unwrap()).is_ok();
        assert!(range("bytes=0-0") && range("bytes=5-9"));
        assert!(!range("bytes=2-1") && !range("bytes=-5") && !range("bytes=5-"));
    }

    /// Before, the parser of a listing took 200 MB for the elements that it did not know.
    #[test]
    fn a_listing_of_too_many_elements_is_refused() {
        let page = "<ListBucketResult><Contents>".to_owned() + &"<a/>".repeat(300_000);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
        let (bucket, _sent) = endless(answer.leak(), Arc::from(*b""));
        let error = bucket.list("a").unwrap_err();
        assert!(error.to_string().contains("more than 262144 XML elements"), "{error}");
    }

    /// Before, a panic of the client in the first request was reported as a bug of ours.
    #[test]
    fn credentials_with_control_characters_are_refused() {
        for name in ["AWS_SESSION_TOKEN", "aws_access_key_id"] {
            let variables = [(name.to_owned(), "hush-hush\n".to_owned())];
            let options = RemoteOptions::default();
            let error = RemoteBucket::open("s3://b", variables, &options).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Invalid);
            let shown = error.to_string();
            assert!(shown.contains(&name.to_uppercase()) && !shown.contains("hush"), "{shown}");
        }
    }

    /// A store whose listing has a page with these keys again and again.
    fn endless_listing(key: &str, entry_count: usize) -> u16 {
        let entry = format!(
            "<Contents><Key>{key}</Key><Size>1</Size>\
             <LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
        );
        let page = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>again</NextContinuationToken>{}</ListBucketResult>",
            entry.repeat(entry_count)
        );
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, answer) = (stream.unwrap(), answer.clone());
                std::thread::spawn(move || {
                    while !read_head(&mut stream).is_empty() {
                        let _ = stream.write_all(answer.as_bytes());
                    }
                });
            }
        });
        port
    }

    #[test]
    fn a_listing_without_an_end_fails() {
        let error = open(endless_listing(&"k".repeat(1_000), 7_000)).list("k").unwrap_err();
        assert!(error.to_string().contains("more objects than 64 MiB"), "{error}");
    }

    /// Before, each page had a time of its own: such a listing took minutes, one of objects outside
    /// of the prefix had no end, and a snapshot waited for it.
    #[test]
    fn a_listing_of_small_pages_ends_in_time() {
        for key in ["k", "other"] {
            let port = endless_listing(key, 1);
            let options = RemoteOptions { give_up_ms: 1_000, ..RemoteOptions::default() };
            let begun = Instant::now();
            let error = open_with(port, &options).list("k").unwrap_err();
            assert!(error.to_string().contains("not all of them"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        }
        let found = open(endless_listing("k", 1)).first("k").unwrap();
        assert_eq!(found.unwrap().key, "k");
    }

    /// Before, the log had the token of the session.
    #[test]
    fn an_error_that_repeats_the_request_shows_no_secret() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = read_head(&mut stream);
                let answer = format!("HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n{head}");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let bucket = open(port);
        for error in [read(&bucket), bucket.list("a").unwrap_err()] {
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("x-amz-security-token: xxxxx"), "{shown}");
            assert!(!shown.contains("hush-token"), "{shown}");
        }
        let error = bucket.check_access("a").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hush-token"), "{error:?}");
    }

    /// Before, the other host received the token of the session.
    #[test]
    fn a_redirect_is_not_followed() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let location = format!("http://{}/", other.local_addr().unwrap());
        let head = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        );
        let (bucket, _sent) = endless(head.leak(), Arc::from(*b""));
        let errors = [read(&bucket), bucket.list("a").unwrap_err(), bucket.head("a").unwrap_err()];
        for error in errors {
            assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("307"), "{error}");
        }
        assert!(other.accept().is_err(), "a request reached the other host");
    }
}
