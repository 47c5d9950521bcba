//! HTTP over streams in memory, with a clock that advances while all tasks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, Uri};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::http::{ClientAddress, HttpService, ListenAddress, serve_stream};
use super::*;

/// Bytes that a stream holds until the other side reads them.
const PIPE_BYTES: usize = 4 << 10;
const LONG_BYTES: usize = 8 << 20;
const OPTIONS: HttpOptions = HttpOptions {
    open_paths: &["/open", "/open/long"],
    explains_errors: true,
    buffer_bytes_max: BUFFER_BYTES_MAX,
};

/// A client whose connection is served.
struct MemoryClient {
    stream: DuplexStream,
    serving: JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// A long response is in memory.
    is_held: Arc<AtomicBool>,
}

struct LongBody(Arc<AtomicBool>);

impl AsRef<[u8]> for LongBody {
    fn as_ref(&self) -> &[u8] {
        static LONG: [u8; LONG_BYTES] = [b'x'; LONG_BYTES];
        &LONG
    }
}

impl Drop for LongBody {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

async fn echo(request: Request<Body>) -> (StatusCode, String) {
    match request.into_body().collect().await {
        Ok(body) => (StatusCode::OK, String::from_utf8_lossy(&body.to_bytes()).into_owned()),
        Err(error) => {
            let mut text = String::new();
            let mut cause = Some(&error as &dyn std::error::Error);
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            (StatusCode::BAD_REQUEST, text)
        }
    }
}

async fn long(State(is_held): State<Arc<AtomicBool>>) -> Body {
    is_held.store(true, Ordering::SeqCst);
    Body::from(Bytes::from_owner(LongBody(is_held)))
}

async fn client_in(table: &Arc<ConnectionTable>) -> MemoryClient {
    let is_held = Arc::<AtomicBool>::default();
    let router = Router::new()
        .route("/", any(async |uri: Uri| uri.to_string()))
        .route("/api/v1/query", get(async |uri: Uri| uri.to_string()))
        .route("/open", get(async || "open"))
        .route("/open/long", get(long))
        .route("/echo", post(echo))
        .route("/early", post(async || (StatusCode::PAYLOAD_TOO_LARGE, "too large")))
        .route("/empty", any(async || StatusCode::IM_A_TEAPOT))
        .route("/slow", get(async || sleep(Duration::from_secs(300)).await))
        .route("/long", get(long))
        .with_state(Arc::clone(&is_held));
    let http = HttpService::new(router, OPTIONS);
    let (stream, served) = duplex(PIPE_BYTES);
    let (stop, stopping) = watch::channel(false);
    let client = "192.0.2.1:1".parse().unwrap();
    let ends = (ClientAddress(client), ListenAddress("127.0.0.1:9420".parse().unwrap()));
    let handle = Arc::new(table.enter(client).await);
    handle.set_grown();
    let serving = tokio::spawn(async move {
        tokio::select! {
            () = serve_stream(served, ends, Arc::clone(&handle), http, stopping) => {}
            () = handle.evicted() => {}
        }
    });
    MemoryClient { stream, serving, stop, is_held }
}

async fn client() -> MemoryClient {
    client_in(&ConnectionTable::new(ConnectionLimits::new(8, None))).await
}

impl MemoryClient {
    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next response: status and text.
    async fn answer(&mut self) -> (u16, String) {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            assert_eq!(self.stream.read(&mut byte).await.unwrap(), 1, "the connection ended");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.to_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body).await.unwrap();
        (status, String::from_utf8(body).unwrap())
    }

    async fn ask(&mut self, text: &str) -> (u16, String) {
        self.send(text).await;
        self.answer().await
    }

    /// Whether the server closes the connection without another byte, now or later.
    async fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]).await, Ok(0) | Err(_))
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_head_has_ten_seconds_and_its_refusal_has_a_text() {
    let mut client = client().await;
    for byte in GET.as_bytes() {
        client.stream.write_all(&[*byte]).await.unwrap();
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(client.answer().await, (200, "/".to_owned()), "8 seconds");
    let start = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n").await;
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        client.send("A: b\r\n").await;
    }
    let (status, why) = client.answer().await;
    assert_eq!((status, start.elapsed().as_secs()), (408, 10));
    assert!(why.contains("within 10 seconds"), "{why}");
    assert!(client.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_outlives_the_idle_time_of_clients() {
    let mut client = client().await;
    for _ in 0..3 {
        sleep(Duration::from_secs(119)).await;
        assert_eq!(client.ask(GET).await.0, 200);
    }
    let start = Instant::now();
    assert!(client.is_closed().await);
    assert_eq!(start.elapsed().as_secs(), 120);
    client.serving.await.unwrap();
}

/// Before, 16 were answered first, and twenty such clients delayed health checks by two seconds.
#[tokio::test(start_paused = true)]
async fn other_clients_are_answered_between_requests_in_a_row() {
    let (mut greedy, mut other) = (client().await, client().await);
    // The task of the test itself would run more rarely than spawned ones.
    let both = tokio::spawn(async move {
        greedy.send(&GET.repeat(100)).await;
        assert_eq!(other.ask(GET).await.0, 200);
        let mut answers = vec![0; 64 << 10];
        let count = greedy.stream.read(&mut answers).await.unwrap();
        String::from_utf8_lossy(&answers[..count]).matches("HTTP/1.1 200").count()
    });
    let count = both.await.unwrap();
    assert!((1..=6).contains(&count), "{count} answers");
}

#[tokio::test(start_paused = true)]
async fn requests_in_a_row_are_answered_in_order_up_to_a_malformed_one() {
    let mut client = client().await;
    let text = "\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\
         GET /?a HTTP/1.1\r\nHost: x\r\n\r\n\
         HEAD /?b HTTP/1.1\r\nHost: x\r\n\r\n\
         POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\ndef\r\n0\r\nT: u\r\n\r\n\
         GET /empty HTTP/1.1\r\nHost: x\r\n\r\n\
         GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n folded\r\n\r\n\
         GET /?smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    for piece in [1, 7, 1_000] {
        let client = self::client().await;
        let (mut reader, mut writer) = tokio::io::split(client.stream);
        let written = async {
            for piece in text.as_bytes().chunks(piece) {
                writer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let mut answers = String::new();
        let (read, ()) = tokio::join!(reader.read_to_string(&mut answers), written);
        read.unwrap();
        let ok = answers.matches("HTTP/1.1 200 OK").count();
        let bodies = ["\r\n\r\nabc", "\r\n\r\n/?a", "\r\n\r\ndef", "I'm a teapot", "second line"];
        let offsets = bodies.map(|body| answers.find(body));
        assert!(ok == 4 && offsets.is_sorted() && offsets[0].is_some(), "{piece}: {answers}");
        assert!(answers.contains("HTTP/1.1 418") && answers.contains("HTTP/1.1 400"));
        assert!(!answers.contains("smuggled"), "{answers}");
        client.serving.abort();
    }
    // A malformed head behind a running request waits for its response.
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n").await;
    let start = Instant::now();
    assert_eq!(client.answer().await.0, 200);
    assert_eq!(start.elapsed().as_secs(), 300);
    assert_eq!(client.answer().await.0, 400);
    assert!(client.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn every_refusal_closes_the_connection_with_a_text() {
    for (request, status, why) in [
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
            "twice",
        ),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "both",
        ),
        ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "send chunked"),
        ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", 400, "once"),
        ("GET / HTTP/1.1\nA: b\n\n", 400, "CR LF"),
        ("\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "HTTP"),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "requires HTTP/1.1"),
        ("CONNECT x:1 HTTP/1.1\r\n\r\n", 405, "CONNECT"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
        ("\u{16}\u{3}\u{1}", 400, "TLS"),
        ("get k 0 0 9 json\r\n\r\n", 400, "request line"),
    ] {
        let mut client = client().await;
        let (found, text) = client.ask(request).await;
        assert!(found == status && text.contains(why) && text.ends_with('\n'), "{found} {text}");
        assert!(client.is_closed().await);
        client.serving.await.unwrap();
    }
    let mut client = client().await;
    let (status, text) =
        client.ask("GET /api/v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n").await;
    let wanted = "{\"status\":\"error\",\"errorType\":\"bad_data\",\"error\":\"Content-Length is";
    assert!(status == 400 && text.starts_with(wanted), "{text}");
    let client = self::client().await;
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", "b".repeat(200 << 10));
    let (mut reader, mut writer) = tokio::io::split(client.stream);
    // The refusal precedes the end of the head; further bytes are received and dropped.
    let (text, _) = tokio::join!(
        async {
            let mut text = String::new();
            let _ = reader.read_to_string(&mut text).await;
            text
        },
        writer.write_all(head.as_bytes())
    );
    assert!(text.starts_with("HTTP/1.1 431 ") && text.contains("more than"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn raw_bytes_in_a_url_are_percent_encoded() {
    let mut client = client().await;
    let (status, text) =
        client.ask("GET /api/v1/query?query=up{a=\"<b>`\"} HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!((status, text.as_str()), (200, "/api/v1/query?query=up%7Ba=%22%3Cb%3E%60%22%7D"));
}

#[tokio::test(start_paused = true)]
async fn a_body_has_a_minimal_rate() {
    let post = |length: usize| {
        format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n")
    };
    // Silence, and a byte now and then: as if nothing came.
    for interval in [None, Some(Duration::from_secs(2))] {
        let mut client = client().await;
        let start = Instant::now();
        client.send(&post(1_000)).await;
        let (mut reader, mut writer) = tokio::io::split(client.stream);
        let trickle = async {
            while let Some(interval) = interval {
                sleep(interval).await;
                if writer.write_all(b"x").await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await
        };
        let mut text = String::new();
        tokio::select! {
            read = reader.read_to_string(&mut text) => { let _ = read; }
            () = trickle => {}
        }
        assert!(text.contains("arrives too slowly"), "{text}");
        assert!((30..36).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }
    // A slow line that moves is served for as long as it takes.
    let mut client = client().await;
    let start = Instant::now();
    client.send(&post(200 * 20_000)).await;
    for _ in 0..200 {
        sleep(Duration::from_secs(1)).await;
        client.send(&"x".repeat(20_000)).await;
    }
    let (status, text) = client.answer().await;
    assert_eq!((status, text.len(), start.elapsed().as_secs()), (200, 200 * 20_000, 200));
}

#[tokio::test(start_paused = true)]
async fn malformed_chunks_are_an_error_of_the_body() {
    let mut client = client().await;
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (status, text) = client.ask(&format!("{head}3\r\nabcX")).await;
    assert!(status == 400 && text.contains("longer than its size"), "{text}");
    assert!(client.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn a_client_may_wait_for_100_continue_or_ask_for_an_upgrade() {
    let mut client = client().await;
    client
        .send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.0, 100);
    assert_eq!(client.ask("ab").await, (200, "ab".to_owned()));
    let upgrade =
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n";
    assert_eq!(client.ask(upgrade).await.0, 200);
    assert_eq!(client.ask(GET).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_response_before_the_end_of_the_body_arrives_whole() {
    let client = client().await;
    let (mut reader, mut writer) = tokio::io::split(client.stream);
    let request = "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    let mut text = String::new();
    let (read, written) = tokio::join!(reader.read_to_string(&mut text), async {
        writer.write_all(request.as_bytes()).await?;
        writer.write_all(&[b'x'; 1_000_000]).await
    });
    read.unwrap();
    written.unwrap();
    assert!(text.starts_with("HTTP/1.1 413") && text.ends_with("too large"), "{text}");
    client.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_is_cut_off_and_a_slow_one_is_served() {
    let mut client = client().await;
    let start = Instant::now();
    client.send("GET /long HTTP/1.1\r\nHost: x\r\n\r\n").await;
    (&mut client.serving).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(!client.is_held.load(Ordering::SeqCst));

    let mut client = self::client().await;
    client.send("GET /long HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (start, mut received, mut buffer) = (Instant::now(), 0, [0; PIPE_BYTES]);
    while received < LONG_BYTES {
        sleep(Duration::from_millis(100)).await;
        received += client.stream.read(&mut buffer).await.unwrap();
    }
    assert!(start.elapsed().as_secs() > 200);
    while client.is_held.load(Ordering::SeqCst) {
        assert!(client.stream.read(&mut buffer).await.unwrap() > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_requests_and_not_for_stalled_clients() {
    let mut client = client().await;
    client.send("GET /long HTTP/1.1\r\nHost: x\r\n\r\n").await;
    sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    client.stop.send(true).unwrap();
    (&mut client.serving).await.unwrap();
    assert!(start.elapsed().as_secs() <= 3, "{:?}", start.elapsed());

    for half in ["", "GET / HT", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na"] {
        let mut client = self::client().await;
        client.send(half).await;
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        client.stop.send(true).unwrap();
        (&mut client.serving).await.unwrap();
        assert!(start.elapsed().as_secs() <= 4, "{half:?}: {:?}", start.elapsed());
    }

    let mut client = self::client().await;
    client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
    sleep(Duration::from_secs(1)).await;
    client.stop.send(true).unwrap();
    assert_eq!(client.answer().await.0, 200, "it finishes");
    assert!(client.is_closed().await);
}

#[tokio::test(start_paused = true)]
async fn health_is_answered_while_all_connections_have_requests() {
    let table = ConnectionTable::new(ConnectionLimits::new(2, Some(2)));
    let mut busy = [client_in(&table).await, client_in(&table).await];
    for client in &mut busy {
        client.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
        sleep(Duration::from_millis(1)).await;
    }
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(client_in(&table).await);
    }
    let mut health = client_in(&table).await;
    let start = Instant::now();
    assert_eq!(health.ask("GET /open HTTP/1.1\r\nHost: x\r\n\r\n").await.0, 200);
    assert_eq!(start.elapsed().as_secs(), 0);
    let (status, why) = health.ask("GET /api/v1/query HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!((status, start.elapsed().as_secs()), (503, 30), "it waited for a connection");
    assert!(why.contains("\"unavailable\"") && why.contains("--connections-max"), "{why}");
    for client in &mut busy {
        assert_eq!(client.answer().await.0, 200);
    }
    let mut next = client_in(&table).await;
    assert_eq!(next.ask(GET).await.0, 200, "in place of an idle one");
    assert!(busy[0].is_closed().await);
}

/// Before, they kept all others from being accepted, health checks too, for seconds each; and then
/// still those with a second request behind the first one.
#[tokio::test(start_paused = true)]
async fn clients_that_do_not_read_metrics_shut_nobody_out() {
    let table = ConnectionTable::new(ConnectionLimits::new(8, None));
    let mut deaf = Vec::new();
    for _ in 0..limits::PENDING_MAX {
        let mut client = client_in(&table).await;
        let request = "GET /open/long HTTP/1.1\r\nHost: x\r\n\r\n";
        client.send(request).await;
        // hyper reads on once the response waits for the client.
        sleep(Duration::from_millis(1)).await;
        client.send(request).await;
        deaf.push(client);
    }
    sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    let mut other = client_in(&table).await;
    let (status, text) = other.ask("GET /open HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!((status, text.as_str()), (200, "open"));
    assert!(started.elapsed() < Duration::from_millis(100), "{:?}", started.elapsed());
}
