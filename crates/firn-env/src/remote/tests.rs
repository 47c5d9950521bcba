//! Tests against scripted servers on loopback. Those against a real S3 server are in
//! `tests/env/s3.rs`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::*;

fn open(url: &str, port: u16, options: &RemoteOptions) -> Result<RemoteBucket> {
    let variables = [
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_PAGER", "less".to_owned()),
    ];
    RemoteBucket::open(url, variables.map(|(name, value)| (name.to_owned(), value)), options)
}

#[test]
fn an_unreachable_store_is_unavailable_in_bounded_time() {
    let options = RemoteOptions { give_up_ms: 300, ..RemoteOptions::default() };
    // Accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = open("s3://firn-test", silent.local_addr().unwrap().port(), &options).unwrap();
    // The client port of a connection refuses connections, and no other process can listen on it.
    let client = TcpStream::connect(silent.local_addr().unwrap()).unwrap();
    let refused = open("s3://firn-test", client.local_addr().unwrap().port(), &options).unwrap();
    for bucket in [refused, hung] {
        let range = RangeRequest { key: "a".to_owned(), offset: 0, len: 1 };
        let put = |mode| bucket.put("a", Arc::from(*b"x"), mode).map(drop);
        let errors = [
            bucket.get_ranges(&[range]).remove(0).map(drop),
            put(PutMode::Overwrite),
            put(PutMode::Create),
            put(PutMode::IfVersion("v".to_owned())),
            bucket.head("a").map(drop),
            bucket.list("a").map(drop),
            bucket.delete(&["a".to_owned()]),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert_eq!(error.kind(), &ErrorKind::Unavailable);
            let text = error.to_string();
            assert!(
                ["a in s3://firn-test", "a* in s3://"].iter().any(|w| text.contains(w)),
                "{text}"
            );
        }
    }
}

/// Without the checks the client waits for the pipe's other end: at the start, and in every request
/// after a token has expired.
#[test]
fn variables_that_name_pipes_or_devices_are_refused() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let open = |url: &str, variables: &[(&str, &std::path::Path)]| {
        let named = |&(name, path): &(&str, &std::path::Path)| {
            (name.to_owned(), path.to_str().unwrap().to_owned())
        };
        RemoteBucket::open(url, variables.iter().map(named), &RemoteOptions::default())
    };
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    for (url, name) in [
        ("s3://b", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("s3://b", "aws_container_authorization_token_file"),
        ("gs://b", "GOOGLE_SERVICE_ACCOUNT"),
        ("gs://b", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        ("gs://b", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://b", "SERVICE_ACCOUNT"),
        ("gs://b", "SERVICE_ACCOUNT_PATH"),
        ("az://b", "AZURE_FEDERATED_TOKEN_FILE"),
    ] {
        for bad in [&*path, folder.path(), std::path::Path::new("/dev/zero")] {
            let error = open(url, &[(name, bad)]).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Invalid, "{name}: {error}");
            assert!(error.to_string().contains(&name.to_uppercase()), "{name}: {error}");
        }
    }
    // Variables of other stores do not matter.
    open("s3://b", &[("GOOGLE_SERVICE_ACCOUNT", &path)]).unwrap();

    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "token").unwrap();
    let bucket = open("s3://b", &[("AWS_WEB_IDENTITY_TOKEN_FILE", &path)]).unwrap();
    std::fs::remove_file(&path).unwrap();
    mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
    let error = bucket.head("a").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unavailable);
    assert!(error.to_string().contains("it is a pipe"), "{error}");
}

/// Before, such a variable was ignored here, and a path in it was not checked.
#[test]
fn variables_of_stores_are_text() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let f = |name: &str| {
        let value = OsString::from_vec(b"/tmp/\xff".to_vec());
        store::text_variables([(name.into(), value), ("A".into(), "b".into())])
    };
    for name in ["AWS_WEB_IDENTITY_TOKEN_FILE", "google_service_account", "AZURE_CLIENT_ID"] {
        let error = f(name).unwrap_err();
        assert!(error.to_string().contains(&format!("{name}: expected UTF-8")), "{error}");
    }
    assert_eq!(f("PWD").unwrap(), [("A".to_owned(), "b".to_owned())]);
}

/// A server that records the head of each request and replies with the next of `answers`; the last
/// one repeats. An empty answer closes the connection.
struct Scripted {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn start(answers: &[&'static str]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, answers, mut hung) = (Arc::clone(&requests), answers.to_vec(), Vec::new());
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // The whole request: a close with unread bytes resets the connection.
                let Ok(head) = read_head(&mut stream) else { continue };
                let mut body = vec![0; body_bytes(&head)];
                if stream.read_exact(&mut body).is_err() {
                    continue;
                }
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(head);
                    seen.len() - 1
                };
                match answers[number.min(answers.len() - 1)] {
                    HANGS => hung.push(stream),
                    answer => drop(stream.write_all(answer.as_bytes())),
                }
            }
        });
        Scripted { port, requests }
    }

    /// The number of requests that `call` makes within `give_up_ms`.
    fn count(&self, give_up_ms: u64, call: impl FnOnce(&RemoteBucket)) -> usize {
        let options = RemoteOptions { give_up_ms, ..RemoteOptions::default() };
        let before = self.requests.lock().unwrap().len();
        call(&open("s3://firn-test", self.port, &options).unwrap());
        self.requests.lock().unwrap().len() - before
    }
}

/// Reads the head of a request; returns it in lower case.
fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).to_ascii_lowercase())
}

fn body_bytes(head: &str) -> usize {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.map_or(0, |length| length.parse().unwrap())
}

/// A limit for calls that succeed: no machine is so slow that one of their attempts times out.
const PATIENT_MS: u64 = 60_000;
/// Not an answer: the connection stays open.
const HANGS: &str = "hangs";
const OUT_OF_ORDER: &str =
    "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const NOT_MET: &str =
    "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const DONE: &str =
    "HTTP/1.1 200 OK\r\nETag: \"7\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const TWO_BYTES: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\
    Content-Range: bytes 0-1/2\r\nETag: \"1\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\nok";
/// For an object of one byte: the response to a `head`, and the byte.
const ONE_BYTE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nETag: \"7\"\r\n\
    Connection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n";
const AN_X: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\
    Content-Range: bytes 0-0/1\r\nETag: \"7\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\nx";
const A_Y: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\
    Content-Range: bytes 0-0/1\r\nETag: \"8\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\ny";

#[test]
fn requests_are_retried_while_the_store_is_busy() {
    let soon_well = Scripted::start(&[OUT_OF_ORDER, OUT_OF_ORDER, TWO_BYTES]);
    let range = RangeRequest { key: "a".to_owned(), offset: 0, len: 2 };
    let tries = soon_well.count(PATIENT_MS, |bucket| {
        let got = bucket.get_ranges(std::slice::from_ref(&range)).remove(0).unwrap();
        assert_eq!(&*got, b"ok");
    });
    assert_eq!(tries, 3);

    let never_well = |mode| {
        let tries = Scripted::start(&[OUT_OF_ORDER]).count(15_000, |bucket| {
            let error = bucket.put("a", Arc::from(*b"x"), mode).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
        });
        assert!(tries > 2, "{tries} tries");
    };
    let modes = [PutMode::Overwrite, PutMode::Create, PutMode::IfVersion("1".to_owned())];
    std::thread::scope(|scope| {
        for mode in modes {
            scope.spawn(|| never_well(mode));
        }
    });
}

/// The error of a large read contains the cause, or the real waiting time.
#[test]
fn a_large_read_reports_the_cause() {
    let read = |answer| {
        let server = Scripted::start(&[answer]);
        // 3 s of it are for the request that finds the cause.
        let options = RemoteOptions { give_up_ms: 9_000, ..RemoteOptions::default() };
        let bucket = open("s3://firn-test", server.port, &options).unwrap();
        // The length extends the deadline by 3 s.
        let range = RangeRequest { key: "a".to_owned(), offset: 0, len: 3 * BYTES_PER_SECOND_MIN };
        let error = bucket.get_ranges(&[range]).remove(0).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        error.to_string()
    };
    let [cause, error] = std::thread::scope(|scope| {
        let reads = [OUT_OF_ORDER, HANGS].map(|answer| scope.spawn(move || read(answer)));
        reads.map(|read| read.join().unwrap())
    });
    assert!(cause.contains("503"), "{cause}");
    let waited = error.split_once(" not done within ").and_then(|rest| rest.1.split_once(" ms"));
    let waited: u64 = waited.expect("a time").0.parse().unwrap();
    // 9 s, less the time until the request was polled.
    assert!(waited > 6_000, "{error}");
}

/// The response to a put was lost or an error, but the put may have succeeded. A retry then
/// conflicts with it; the content decides whether the object is its own.
#[test]
fn a_conditional_put_recognises_its_own_object() {
    let modes = [PutMode::Create, PutMode::IfVersion("1".to_owned())];
    let check = |answers: &[&'static str], want: std::result::Result<usize, ErrorKind>| {
        for mode in &modes {
            let server = Scripted::start(answers);
            let tries = server.count(PATIENT_MS, |bucket| {
                let put = bucket.put("a", Arc::from(*b"x"), mode.clone());
                match (&put, &want) {
                    (Ok(info), Ok(_)) => assert_eq!((&*info.version, info.bytes), ("\"7\"", 1)),
                    (Err(error), Err(kind)) => assert_eq!(error.kind(), kind),
                    _ => panic!("{mode:?}, {answers:?}: {put:?}"),
                }
            });
            let all = want.as_ref().map_or(answers.len(), |tries| *tries);
            assert_eq!(tries, all, "{mode:?}, {answers:?}");
        }
    };
    check(&[DONE], Ok(1));
    check(&[OUT_OF_ORDER, OUT_OF_ORDER, DONE], Ok(3));
    check(&["", DONE], Ok(2));
    check(&[OUT_OF_ORDER, NOT_MET, ONE_BYTE, AN_X], Ok(4));
    check(&["", NOT_MET, ONE_BYTE, AN_X], Ok(4));
    check(&["", NOT_MET, ONE_BYTE, A_Y], Err(ErrorKind::Conflict));
    // The first attempt conflicts, so another writer created the object.
    check(&[NOT_MET], Err(ErrorKind::Conflict));
    // A retry would fail too.
    check(&[FORBIDDEN], Err(ErrorKind::Unavailable));
}

/// A store may report a conflict while it still processes the first put: the object does not exist
/// yet.
#[test]
fn a_create_that_conflicts_with_a_missing_object_is_retried() {
    let server = Scripted::start(&["", NOT_MET, NOT_FOUND, DONE]);
    let tries = server.count(PATIENT_MS, |bucket| {
        bucket.put("a", Arc::from(*b"x"), PutMode::Create).unwrap();
    });
    assert_eq!(tries, 4);
}

/// A store with multipart uploads and a limited line speed that records the requests.
struct Parts {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy)]
struct PartsRules {
    /// Per connection.
    bytes_per_second: usize,
    is_out_of_order: bool,
    /// Loses the response to the completion once; later requests find no such upload.
    loses_the_end: bool,
}

impl Parts {
    fn start(rules: PartsRules) -> Parts {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let content: Arc<Mutex<Vec<u8>>> = Arc::default();
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, content) = (Arc::clone(&seen), Arc::clone(&content));
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let _ = Parts::answer(&mut stream, rules, &seen, &content);
                });
            }
        });
        Parts { port, requests }
    }

    fn answer(
        stream: &mut TcpStream,
        rules: PartsRules,
        seen: &Mutex<Vec<String>>,
        content: &Mutex<Vec<u8>>,
    ) -> std::io::Result<()> {
        let head = read_head(stream)?;
        let line = head.lines().next().unwrap_or_default().to_owned();
        let mut body = vec![0; body_bytes(&head)];
        rules.at_line_speed(body.len(), |piece| stream.read_exact(&mut body[piece]))?;
        let ends_before = {
            let mut seen = seen.lock().unwrap();
            seen.push(line.clone());
            seen.iter()
                .filter(|line| line.contains("?uploadid=") && line.starts_with("post"))
                .count()
        };
        let of_last = "ETag: \"7\"\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n";
        let is_end = line.starts_with("post") && line.contains("?uploadid=");
        let length = content.lock().unwrap().len();
        let asked =
            head.lines().find_map(|line| line.strip_prefix("range: bytes=")?.split_once('-'));
        let asked = asked.map_or(0..length, |(first, last)| {
            first.parse().unwrap()..1 + last.parse::<usize>().unwrap()
        });
        let (status, headers, answer) = match &line {
            _ if is_end && rules.loses_the_end && ends_before == 1 => return Ok(()),
            _ if is_end && rules.loses_the_end => ("404 Not Found", "", "NoSuchUpload".into()),
            line if line.starts_with("put /firn-test/a ") => ("200 OK", of_last, Vec::new()),
            _ if rules.is_out_of_order => ("503 Slow Down", "", Vec::new()),
            line if line.contains("?uploads") => {
                ("200 OK", "", b"<R><UploadId>u</UploadId></R>".to_vec())
            }
            line if line.starts_with("put") => {
                let mut content = content.lock().unwrap();
                let at = usize::from(line.contains("partnumber=2")) * PART_BYTES;
                let end = content.len().max(at + body.len());
                content.resize(end, 0);
                content[at..at + body.len()].copy_from_slice(&body);
                ("200 OK", of_last, Vec::new())
            }
            _ if is_end => ("200 OK", "", b"<R><ETag>\"7\"</ETag></R>".to_vec()),
            line if line.starts_with("get") => {
                ("206 Partial Content", of_last, content.lock().unwrap()[asked.clone()].to_vec())
            }
            _ => ("200 OK", of_last, Vec::new()),
        };
        let shown = if line.starts_with("head") { length } else { answer.len() };
        let range = match status.starts_with("206") {
            true => format!("Content-Range: bytes {}-{}/{length}\r\n", asked.start, asked.end - 1),
            false => String::new(),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}{range}Content-Length: {shown}\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        rules.at_line_speed(answer.len(), |piece| stream.write_all(&answer[piece]))
    }

    fn create(&self, give_up_ms: u64) -> Result<ObjectInfo> {
        let options = RemoteOptions { give_up_ms, ..RemoteOptions::default() };
        let bucket = open("s3://firn-test", self.port, &options).unwrap();
        let content: Arc<[u8]> = (0..2 * PART_BYTES).map(|at| (at % 251) as u8).collect();
        bucket.put("a", content, PutMode::Create)
    }
}

impl PartsRules {
    /// Transfers `len` bytes in pieces and sleeps for their transfer time.
    fn at_line_speed(
        self,
        len: usize,
        mut piece: impl FnMut(Range<usize>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let began = Instant::now();
        for start in (0..len).step_by(64 << 10) {
            piece(start..len.min(start + (64 << 10)))?;
            let due = Duration::from_secs_f64(start as f64 / self.bytes_per_second as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        Ok(())
    }
}

const IN_ORDER: PartsRules =
    PartsRules { bytes_per_second: 1 << 30, is_out_of_order: false, loses_the_end: false };

/// A large create claims its key first. The key stays claimed if the parts fail: they may have
/// become the object meanwhile, and a manifest may already name it.
#[test]
fn a_large_create_claims_its_key_and_keeps_it() {
    let server = Parts::start(PartsRules { is_out_of_order: true, ..IN_ORDER });
    let error = server.create(6_000).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
    let requests = server.requests.lock().unwrap();
    assert!(requests[0].starts_with("put /firn-test/a "), "{}", requests[0]);
    assert!(requests[1].starts_with("post /firn-test/a?uploads"), "{}", requests[1]);
    let deleted = requests.iter().find(|line| line.contains("delete"));
    assert_eq!(deleted, None);
}

/// Two parts share a line and together take longer than other requests may.
#[test]
fn a_large_object_is_uploaded_on_a_slow_line() {
    let server = Parts::start(PartsRules { bytes_per_second: 2 << 20, ..IN_ORDER });
    // A third of this expires long before the parts are sent.
    let info = server.create(6_000).unwrap();
    assert_eq!(info.bytes, 2 * PART_BYTES as u64);
    let requests = server.requests.lock().unwrap();
    assert_eq!(
        requests.iter().filter(|line| line.contains("partnumber")).count(),
        2,
        "{requests:?}"
    );
}

/// Two ranges share a line, as above; each resumes where the time of a request ended.
#[test]
fn a_large_object_is_read_on_a_slow_line() {
    let server = Parts::start(PartsRules { bytes_per_second: 8 << 20, ..IN_ORDER });
    server.create(6_000).unwrap();
    let options = RemoteOptions { give_up_ms: 900, ..RemoteOptions::default() };
    let bucket = open("s3://firn-test", server.port, &options).unwrap();
    // Two thirds of this expire long before half of the bytes arrive.
    let len = PART_BYTES as u64;
    let ranges = [0, len].map(|offset| RangeRequest { key: "a".to_owned(), offset, len });
    for (answer, range) in bucket.get_ranges(&ranges).into_iter().zip(&ranges) {
        let bytes = answer.unwrap();
        assert!(bytes.iter().zip(range.offset..).all(|(&byte, at)| byte == (at % 251) as u8));
    }
}

/// The completion succeeded but its response was lost; a retry finds no such upload.
#[test]
fn a_large_object_with_a_lost_acknowledgement_is_found() {
    let server = Parts::start(PartsRules { loses_the_end: true, ..IN_ORDER });
    let info = server.create(6_000).unwrap();
    assert_eq!((info.version.as_str(), info.bytes), ("\"7\"", 2 * PART_BYTES as u64));
}

/// The store accepts a put and never responds: there is time for another attempt, a third of 15 s.
#[test]
fn a_conditional_put_that_hangs_is_retried() {
    for (answers, tries) in [(&[HANGS, DONE][..], 2), (&[HANGS, NOT_MET, ONE_BYTE, AN_X], 4)] {
        let server = Scripted::start(answers);
        let found = server.count(15_000, |bucket| {
            let info = bucket.put("a", Arc::from(*b"x"), PutMode::Create).unwrap();
            assert_eq!(info.version, "\"7\"");
        });
        assert_eq!(found, tries);
    }
}

/// Without Google or Azure at hand, the test checks the request that each would receive.
#[test]
fn each_store_receives_the_condition_in_its_own_header() {
    let cases = [
        ("s3://name/p", "put /name/p/a", "if-none-match: *"),
        ("gs://name/p", "put /name/p%2fa", "x-goog-if-generation-match: 0"),
        ("az://name/p", "put /name/p/a", "if-none-match: *"),
    ];
    for (url, line, condition) in cases {
        let server = Scripted::start(&[DONE]);
        let endpoint = format!("http://127.0.0.1:{}", server.port);
        let google_key = format!(
            "{{\"private_key\": \"k\", \"private_key_id\": \"i\", \"client_email\": \"e\", \
             \"disable_oauth\": true, \"gcs_base_url\": {endpoint:?}}}"
        );
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
            ("AWS_ENDPOINT", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", &google_key),
            ("GOOGLE_ALLOW_HTTP", "true"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaC1odXNo"),
            ("AZURE_STORAGE_ENDPOINT", &endpoint),
            ("AZURE_ALLOW_HTTP", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let bucket = RemoteBucket::open(url, variables, &RemoteOptions::default()).unwrap();
        let info = bucket.put("a", Arc::from(*b"x"), PutMode::Create).unwrap();
        assert_eq!(info.version, "\"7\"");
        let requests = server.requests.lock().unwrap();
        let [request] = &requests[..] else { panic!("{url}: {requests:?}") };
        assert!(request.starts_with(line) && request.contains(condition), "{url}: {request}");
    }
}

#[test]
fn malformed_urls_and_variables_are_refused() {
    let cases = [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("ftp://bucket", "expected s3://, gs:// or az://"),
        ("bucket", "expected s3://, gs:// or az://"),
        ("s3://bucket/a//b", "the prefix is not a valid key"),
        ("az://container", "check the variables AZURE_*"),
    ];
    for (url, words) in cases {
        let error = open(url, 1, &RemoteOptions::default()).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
    let endpoint = [("AWS_ENDPOINT".to_owned(), "http://127.0.0.1:1".to_owned())];
    let error = RemoteBucket::open("s3://b", endpoint, &RemoteOptions::default()).unwrap_err();
    assert!(error.to_string().contains("set AWS_ALLOW_HTTP=true"), "{error}");
}

/// Before, the whole URL or variable was repeated.
#[test]
fn credentials_in_the_wrong_place_are_not_repeated() {
    for url in [
        "s3://key:hush-hush@bucket/prefix",
        "s3://key:hush/hush-hush+x@bucket",
        "s3://key:hush-hush/bucket",
        "s3://bucket?secret=hush-hush",
        "gs://hush-hush@bucket",
        "ftp://key:hush-hush@host",
    ] {
        let error = open(url, 1, &RemoteOptions::default()).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Invalid, "{error}");
        assert!(!format!("{error} {error:?}").contains("hush-hush"), "{error}");
    }
    for (url, name, value) in [
        ("s3://b", "AWS_ENDPOINT", "http://key:hush-hush@127.0.0.1:1"),
        ("gs://b", "GOOGLE_SERVICE_ACCOUNT_KEY", "\"hush-hush\""),
        ("az://b", "AZURE_STORAGE_ACCOUNT_KEY", "hush-hush"),
    ] {
        let variables = [(name.to_owned(), value.to_owned())];
        let Err(error) = RemoteBucket::open(url, variables, &RemoteOptions::default()) else {
            continue;
        };
        assert!(!format!("{error} {error:?}").contains("hush-hush"), "{error}");
    }
}

#[test]
fn google_and_azure_buckets_open_and_secrets_stay_hidden() {
    let variables = [
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaC1odXNo"),
        ("GOOGLE_SKIP_SIGNATURE", "true"),
        ("AWS_ACCESS_KEY_ID", "name"),
        ("AWS_SECRET_ACCESS_KEY", "hush-hush"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    for url in ["az://container/prefix", "gs://bucket", "s3://bucket"] {
        let bucket = RemoteBucket::open(url, variables.clone(), &RemoteOptions::default()).unwrap();
        assert_eq!(format!("{bucket:?}"), format!("RemoteBucket {{ url: \"{url}\", .. }}"));
    }
}
