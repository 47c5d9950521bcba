//! Tests of the remote bucket against a real S3 server on loopback (moto).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use firn_env::{Bucket, PutMode, RangeRequest, RemoteBucket, RemoteOptions};
use firn_model::ErrorKind;
use firn_sim::conformance;

/// The size of the parts in which the bucket uploads large objects.
const PART_BYTES: usize = 8 << 20;

/// Runs moto so that a thread keeps the interpreter until it blocks. Moto checks the condition of a
/// put and stores the object in two steps, between which another put could meet the same condition.
const START_MOTO: &str =
    "import sys; sys.setswitchinterval(1_000); from moto.server import main; main()";

/// An S3 server for one test; stopped on drop.
struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    /// `None`, with a message, if the server program is missing and the test may be skipped.
    fn start() -> Option<Moto> {
        let Some(program) = program() else {
            let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
            let why = "no moto_server: run `make deps`, or set FIRN_MOTO_SERVER to its path";
            assert!(!required, "{why}");
            eprintln!("skipped: {why}");
            return None;
        };
        let mut process = Command::new(program.with_file_name("python3"))
            // The system chooses the port; the server logs it.
            .args(["-c", START_MOTO, "-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto_server starts");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let port = log.by_ref().map_while(Result::ok).find_map(|line| {
            line.split_once("Running on http://127.0.0.1:")?.1.trim().parse().ok()
        });
        // A full pipe would block the server.
        std::thread::spawn(move || log.for_each(drop));
        let moto = Moto { process, port: port.expect("moto_server listens") };
        let answer = moto.http("PUT /firn-test HTTP/1.1").expect("an answer");
        assert!(answer.contains(" 200 "), "{answer}");
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
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "hush-hush".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        RemoteBucket::open(url, variables, &RemoteOptions::default()).expect("a bucket")
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
    named.into_iter().chain([PathBuf::from(installed)]).find_map(|path| path.canonicalize().ok())
}

#[test]
fn an_s3_server_passes_the_suite() {
    let Some(moto) = Moto::start() else { return };
    conformance::check_bucket(&moto.bucket("s3://firn-test/some/prefix/"));
    conformance::check_bucket(&moto.bucket("s3://firn-test"));
    prefixes_do_not_mix(&moto);
    large_objects_are_uploaded_in_parts(&moto);
    one_create_wins(&moto);
    many_objects_are_listed_and_deleted(&moto);
    a_missing_bucket_is_named(&moto);
    a_thread_of_another_runtime_may_block(&moto);
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

fn large_objects_are_uploaded_in_parts(moto: &Moto) {
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

    // Several writers create one key; one of them succeeds.
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

/// More objects than a page of a listing or a batch of a deletion contains (1,000 each).
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
        assert!(
            error.to_string().contains("s3://no-such-bucket/x: the bucket does not exist"),
            "{error}"
        );
    }
}

fn a_thread_of_another_runtime_may_block(moto: &Moto) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let blocks = std::future::poll_fn(|_| {
        let bucket = moto.bucket("s3://firn-test/async");
        assert!(bucket.list("").unwrap().is_empty());
        std::task::Poll::Ready(())
    });
    runtime.block_on(blocks);
}
