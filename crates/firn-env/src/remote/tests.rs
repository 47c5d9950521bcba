//! Tests against a real S3 server on loopback (moto), and against none at all.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::*;
use crate::conformance;

/// A server of this test alone; it goes when this is dropped.
struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    /// `None`, with a word on why, if there is no server program and that is allowed.
    fn start() -> Option<Moto> {
        let Some(program) = program() else {
            let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
            let why = "no moto_server: run `make deps`, or set FIRN_MOTO_SERVER to its path";
            assert!(!required, "{why}");
            eprintln!("skipped: {why}");
            return None;
        };
        let port = free_port();
        let process = Command::new(program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("moto_server starts");
        let moto = Moto { process, port };
        // A newly started Python takes a second or two, ten times that on a busy machine.
        let patience = Instant::now() + Duration::from_secs(60);
        while moto.http("PUT /firn-test HTTP/1.1").is_none_or(|answer| !answer.contains(" 200 ")) {
            assert!(Instant::now() < patience, "moto_server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    fn http(&self, request: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let headers = "Host: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(format!("{request}\r\n{headers}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn bucket(&self, url: &str) -> RemoteBucket {
        open(url, self.port, &RemoteOptions::default()).expect("a bucket")
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program() -> Option<PathBuf> {
    let installed =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-programs/moto/bin/moto_server");
    let named = std::env::var_os("FIRN_MOTO_SERVER").map(PathBuf::from);
    named.into_iter().chain([PathBuf::from(installed)]).find(|path| path.exists())
}

/// Free now; nobody else listens on a port of the ephemeral range in the moment until we do.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

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
fn an_s3_server_keeps_the_rules_of_the_seam() {
    let Some(moto) = Moto::start() else { return };
    conformance::check_bucket(&moto.bucket("s3://firn-test/some/prefix/"));
    conformance::check_bucket(&moto.bucket("s3://firn-test"));
    prefixes_do_not_mix(&moto);
    large_objects_go_up_in_parts(&moto);
    one_create_wins(&moto);
    many_objects_are_listed_and_deleted(&moto);
    a_missing_bucket_is_named(&moto);
    a_thread_of_another_runtime_may_wait(&moto);
}

fn prefixes_do_not_mix(moto: &Moto) {
    let [one, other] = ["s3://firn-test/a", "s3://firn-test/ab"].map(|url| moto.bucket(url));
    one.put("key", Arc::from(*b"1"), PutMode::Create).unwrap();
    other.put("key", Arc::from(*b"22"), PutMode::Create).unwrap();
    assert_eq!(one.list("").unwrap().len(), 1);
    assert_eq!(other.head("key").unwrap().bytes, 2);
    one.delete(&["key".to_owned()]).unwrap();
    other.delete(&["key".to_owned()]).unwrap();
}

fn large_objects_go_up_in_parts(moto: &Moto) {
    let bucket = moto.bucket("s3://firn-test/large");
    let content: Arc<[u8]> = (0..2 * PART_BYTES + 12_345).map(|at| (at % 249) as u8).collect();
    let info = bucket.put("table", Arc::clone(&content), PutMode::Overwrite).unwrap();
    assert_eq!(bucket.head("table").unwrap(), info);
    let around_a_border = PART_BYTES as u64 - 10;
    let range = RangeRequest { key: "table".to_owned(), offset: around_a_border, len: 20 };
    let whole = RangeRequest { key: "table".to_owned(), offset: 0, len: content.len() as u64 };
    let answers = bucket.get_ranges(&[range, whole]);
    let start = around_a_border as usize;
    assert_eq!(&**answers[0].as_ref().unwrap(), &content[start..start + 20]);
    assert!(**answers[1].as_ref().unwrap() == *content);
    bucket.delete(&["table".to_owned()]).unwrap();

    // To be created only, by one of some.
    let wins: Vec<bool> = std::thread::scope(|scope| {
        let create = |racer: u8| {
            let content: Arc<[u8]> = vec![racer; 2 * PART_BYTES].into();
            bucket.put("table", content, PutMode::Create).map(drop)
        };
        let racers: Vec<_> = (0..3u8).map(|racer| scope.spawn(move || create(racer))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap().is_ok()).collect()
    });
    assert_eq!(wins.iter().filter(|won| **won).count(), 1, "{wins:?}");
    let winner = wins.iter().position(|won| *won).unwrap() as u8;
    let whole = RangeRequest { key: "table".to_owned(), offset: 0, len: 2 * PART_BYTES as u64 };
    let found = bucket.get_ranges(&[whole]).remove(0).unwrap();
    assert!(found.iter().all(|&byte| byte == winner));
    bucket.delete(&["table".to_owned()]).unwrap();
    assert!(bucket.list("").unwrap().is_empty());
}

fn one_create_wins(moto: &Moto) {
    let bucket = moto.bucket("s3://firn-test/race");
    let wins: usize = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8u8)
            .map(|racer| {
                let bucket = &bucket;
                scope.spawn(move || bucket.put("m/1", Arc::from([racer]), PutMode::Create))
            })
            .collect();
        racers.into_iter().map(|racer| usize::from(racer.join().unwrap().is_ok())).sum()
    });
    assert_eq!(wins, 1);
    bucket.delete(&["m/1".to_owned()]).unwrap();
}

/// More than a page of a listing and a batch of a deletion hold, 1,000 each.
fn many_objects_are_listed_and_deleted(moto: &Moto) {
    let bucket = moto.bucket("s3://firn-test/many");
    let keys: Vec<String> = (0..1_050).map(|number| format!("t/{number:05}")).collect();
    std::thread::scope(|scope| {
        for keys in keys.chunks(150) {
            let bucket = &bucket;
            scope.spawn(move || {
                for key in keys {
                    bucket.put(key, Arc::from(*b"x"), PutMode::Overwrite).unwrap();
                }
            });
        }
    });
    let found: Vec<String> = bucket.list("t/").unwrap().into_iter().map(|info| info.key).collect();
    assert_eq!(found, keys);
    bucket.delete(&keys).unwrap();
    assert!(bucket.list("").unwrap().is_empty());
}

fn a_missing_bucket_is_named(moto: &Moto) {
    let bucket = moto.bucket("s3://no-such-bucket/x");
    for error in [
        bucket.put("a", Arc::from(*b"x"), PutMode::Create).unwrap_err(),
        bucket.put("a", Arc::from(*b"x"), PutMode::Overwrite).unwrap_err(),
        bucket.list("").unwrap_err(),
        bucket
            .get_ranges(&[RangeRequest { key: "a".to_owned(), offset: 0, len: 1 }])
            .remove(0)
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        assert!(error.to_string().contains("s3://no-such-bucket/x: is there such"), "{error}");
    }
}

fn a_thread_of_another_runtime_may_wait(moto: &Moto) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let bucket = moto.bucket("s3://firn-test/async");
        assert!(bucket.list("").unwrap().is_empty());
    });
}

#[test]
fn an_unreachable_store_is_unavailable_in_bounded_time() {
    let options = RemoteOptions { give_up_ms: 300, ..RemoteOptions::default() };
    let refused = open("s3://firn-test", free_port(), &options).unwrap();
    // Accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = open("s3://firn-test", silent.local_addr().unwrap().port(), &options).unwrap();
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

/// A server that keeps the head of each request and answers with the next of `answers`, the last one for ever;
/// an empty one hangs up.
struct Scripted {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn start(answers: &[&'static str]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, answers) = (Arc::clone(&requests), answers.to_vec());
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // Headers and the one byte of a body fit into one read.
                let mut head = [0; 16_384];
                let len = stream.read(&mut head).unwrap_or(0);
                let number = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(String::from_utf8_lossy(&head[..len]).to_ascii_lowercase());
                    seen.len() - 1
                };
                let _ = stream.write_all(answers[number.min(answers.len() - 1)].as_bytes());
            }
        });
        Scripted { port, requests }
    }

    /// How many requests `call` makes.
    fn count(&self, call: impl FnOnce(&RemoteBucket)) -> usize {
        let options = RemoteOptions { give_up_ms: 6_000, ..RemoteOptions::default() };
        let before = self.requests.lock().unwrap().len();
        call(&open("s3://firn-test", self.port, &options).unwrap());
        self.requests.lock().unwrap().len() - before
    }
}

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
/// Of an object of one byte: what a `head` is told, and the byte.
const ONE_BYTE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nETag: \"7\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n";
const AN_X: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\
    Content-Range: bytes 0-0/1\r\nETag: \"7\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\nx";
const A_Y: &str = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\
    Content-Range: bytes 0-0/1\r\nETag: \"8\"\r\nConnection: close\r\n\
    Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\ny";

#[test]
fn what_the_store_was_too_busy_for_is_asked_again() {
    let soon_well = Scripted::start(&[OUT_OF_ORDER, OUT_OF_ORDER, TWO_BYTES]);
    let range = RangeRequest { key: "a".to_owned(), offset: 0, len: 2 };
    let tries = soon_well.count(|bucket| {
        let got = bucket.get_ranges(std::slice::from_ref(&range)).remove(0).unwrap();
        assert_eq!(&*got, b"ok");
    });
    assert_eq!(tries, 3);

    let never_well = Scripted::start(&[OUT_OF_ORDER]);
    for mode in [PutMode::Overwrite, PutMode::Create, PutMode::IfVersion("1".to_owned())] {
        let tries = never_well.count(|bucket| {
            let error = bucket.put("a", Arc::from(*b"x"), mode).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
        });
        assert!(tries > 2, "{tries} tries");
    }
}

/// The answer to a put was lost, or was that the store is busy, and the put may have been done all the same: the second
/// one meets it. What is there decides whose it is.
#[test]
fn a_put_with_a_condition_knows_its_own_object() {
    let modes = [PutMode::Create, PutMode::IfVersion("1".to_owned())];
    let check = |answers: &[&'static str], want: std::result::Result<usize, ErrorKind>| {
        for mode in &modes {
            let server = Scripted::start(answers);
            let tries = server.count(|bucket| {
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
    // Nobody asked before: the conflict is with somebody else, whatever lies there.
    check(&[NOT_MET], Err(ErrorKind::Conflict));
    // It will not be otherwise a moment later.
    check(&[FORBIDDEN], Err(ErrorKind::Unavailable));
}

/// A store may still be at the first put when the second comes, and say so: there is nothing yet.
#[test]
fn a_create_that_meets_nothing_is_sent_again() {
    let server = Scripted::start(&["", NOT_MET, NOT_FOUND, DONE]);
    let tries = server.count(|bucket| {
        bucket.put("a", Arc::from(*b"x"), PutMode::Create).unwrap();
    });
    assert_eq!(tries, 4);
}

/// The name of a large object is taken first; when the parts cannot follow it is given back.
#[test]
fn a_large_create_that_fails_gives_its_name_back() {
    let server = Scripted::start(&[DONE, OUT_OF_ORDER]);
    let options = RemoteOptions { give_up_ms: 900, ..RemoteOptions::default() };
    let bucket = open("s3://firn-test", server.port, &options).unwrap();
    let content: Arc<[u8]> = vec![0; PART_BYTES + 1].into();
    let error = bucket.put("a", content, PutMode::Create).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
    let requests = server.requests.lock().unwrap();
    assert!(
        requests[0].starts_with("put /firn-test/a ") && requests[0].contains("if-none-match: *")
    );
    assert!(requests[0].contains("is putting this object in parts"), "{}", requests[0]);
    assert!(requests[1].starts_with("post /firn-test/a?uploads"), "{}", requests[1]);
    let last = requests.last().unwrap();
    assert!(last.starts_with("post /firn-test?delete"), "{last}");
}

/// No Google or Azure is at hand to be asked. What they are sent says that a put is on a condition, and where.
#[test]
fn each_store_is_told_the_condition_in_its_own_words() {
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
fn urls_and_variables_that_make_no_sense_are_refused() {
    let cases = [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("ftp://bucket", "only s3://, gs:// and az://"),
        ("bucket", "only s3://, gs:// and az://"),
        ("s3://bucket/a//b", "the prefix is no key"),
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

#[test]
fn google_and_azure_buckets_open_and_secrets_are_not_shown() {
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
