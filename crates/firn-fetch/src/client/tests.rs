use std::sync::{Arc, Mutex};

use firn_collect::config::HttpClient;
use firn_model::{Budget, Secret};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::outgoing::Places;
use crate::test_config::{client_config, write_file};

/// The answer of a test server to a request, of which it has the text. Empty bytes
/// close the connection; `None` leaves it without an answer.
type Respond = dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync;

/// A server on a port of the system. Counts connections and keeps the heads of requests.
#[derive(Clone)]
struct TestServer {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connection_count: usize,
    heads: Vec<String>,
}

impl TestServer {
    async fn start(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> TestServer {
        TestServer::with_tls(None, answer).await
    }

    async fn with_tls(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> TestServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = TestServer { port, seen: Arc::default() };
        let (seen, answer) = (Arc::clone(&server.seen), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                seen.lock().unwrap().connection_count += 1;
                let (seen, answer, tls) = (Arc::clone(&seen), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &seen, &*answer).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &seen, &*answer).await;
                            }
                        }
                    }
                });
            }
        });
        server
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn heads(&self) -> Vec<String> {
        self.seen.lock().unwrap().heads.clone()
    }

    fn connection_count(&self) -> usize {
        self.seen.lock().unwrap().connection_count
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Seen>,
    answer: &Respond,
) {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4_096];
        let read = stream.read(&mut part).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        bytes.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let len = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
            })
            .unwrap_or(0_usize);
        if rest.len() < len {
            continue;
        }
        seen.lock().unwrap().heads.push(text.clone());
        match answer(&text) {
            Some(answer) if answer.is_empty() => return,
            Some(answer) => stream.write_all(&answer).await.unwrap_or(()),
            None => std::future::pending().await,
        }
        bytes.clear();
    }
}

fn ok(body: &str) -> Option<Vec<u8>> {
    let len = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len}\r\n\r\n");
    Some([head.as_bytes(), body.as_bytes()].concat())
}

fn redirect(location: &str) -> Option<Vec<u8>> {
    let head = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    Some(head.into_bytes())
}

fn request(url: String) -> Request {
    Request {
        url,
        unix_socket: None,
        headers: vec![(ACCEPT_ENCODING, "gzip".to_owned())],
        authorization: None,
        secrets: Vec::new(),
        content: None,
        body_bytes_max: 0,
        timeout: Duration::from_secs(30),
    }
}

fn open(config: &HttpClient) -> Client {
    Client::new(config, &Bodies::new(&Budget::new(64 << 20))).unwrap()
}

async fn get(client: &Client, url: String) -> Result<Response, FetchError> {
    client.send(&request(url), &mut Connections::default()).await
}

// Item 22: the request; and a connection serves many requests.
#[tokio::test]
async fn requests_share_a_connection() {
    let server = TestServer::start(|_| ok("a 1\n")).await;
    let (client, mut connections) = (open(&HttpClient::default()), Connections::default());
    for _ in 0..3 {
        let request = request(server.url("/metrics?a=b"));
        let response = client.send(&request, &mut connections).await.unwrap();
        assert_eq!((response.status, &response.body[..]), (200, &b"a 1\n"[..]));
        assert_eq!(response.content_type(), Some("text/plain"));
    }
    assert_eq!(server.connection_count(), 1);
    let head = server.heads().remove(0);
    let port = server.port;
    assert!(head.starts_with("GET /metrics?a=b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{head}");
    assert!(head.contains("accept-encoding: gzip\r\n"), "{head}");
}

#[tokio::test]
async fn a_connection_that_the_server_closes_is_replaced() {
    let count = Mutex::new(0);
    let server = TestServer::start(move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        // The second request finds the connection closed.
        if *count == 2 { Some(Vec::new()) } else { ok("") }
    })
    .await;
    let (client, mut connections) = (open(&HttpClient::default()), Connections::default());
    for _ in 0..2 {
        client.send(&request(server.url("/")), &mut connections).await.unwrap();
    }
    assert_eq!(server.connection_count(), 2);
    // A new connection that breaks is an error.
    let broken = TestServer::start(|_| Some(Vec::new())).await;
    let error = get(&client, broken.url("/")).await.unwrap_err();
    assert!(matches!(error, FetchError::Transport(_)), "{error}");
    assert_eq!(broken.connection_count(), 1);
}

// Items 23 and 24: gzip, limits, and bodies that break off.
#[tokio::test]
async fn bodies_are_bounded_while_they_are_read() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let text: Vec<u8> = (0..400_000).flat_map(|n| format!("a {n}\n").into_bytes()).collect();
    encoder.write_all(&text).unwrap();
    let packed = encoder.finish().unwrap();
    let server = TestServer::start(move |head| match head.split(' ').nth(1) {
        Some("/gzip") => {
            let len = packed.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len}\r\n\r\n"
            );
            Some([head.as_bytes(), &packed].concat())
        }
        Some("/endless") => {
            let chunk = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            Some([head, &chunk.repeat(100)].concat().into_bytes())
        }
        _ => Some(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na 1\n".to_vec()),
    })
    .await;
    let client = open(&HttpClient::default());
    let response = get(&client, server.url("/gzip")).await.unwrap();
    assert!(*response.body == text);
    assert!(client.bodies.budget().usage().used_bytes >= text.len() as u64);
    for path in ["/gzip", "/endless"] {
        let limited = Request { body_bytes_max: 100_000, ..request(server.url(path)) };
        let error = client.send(&limited, &mut Connections::default()).await.unwrap_err();
        assert!(matches!(error, FetchError::BodyLimit), "{path}: {error}");
    }
}

// Item 23: the time limit covers everything up to the last byte.
#[tokio::test(start_paused = true)]
async fn a_request_ends_in_time() {
    let server = TestServer::start(|head| match head.split(' ').nth(1) {
        Some("/part") => Some(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na 1\n".to_vec()),
        _ => None,
    })
    .await;
    let client = open(&HttpClient::default());
    for path in ["/", "/part"] {
        let error = get(&client, server.url(path)).await.unwrap_err();
        assert!(matches!(error, FetchError::Timeout), "{path}: {error}");
        assert_eq!(error.to_string(), "context deadline exceeded");
    }
}

/// Before, the error was that of a server that does not answer.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_connection_names_the_limit_of_open_files() {
    let server = TestServer::start(|_| Some(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())).await;
    let (places, purpose) = (Places::of_process(), Purpose::Alerts);
    let mut open_connections = Vec::new();
    let next = || tokio::time::timeout(Duration::ZERO, places.take(purpose, ClientId::unique()));
    while let Ok(permit) = next().await {
        open_connections.push(permit.unwrap());
    }
    let client = open(&HttpClient::default()).with_purpose(purpose);
    let error = get(&client, server.url("/")).await.unwrap_err().to_string();
    let count = open_connections.len();
    let (what, limit) = ("no connection was free", format!("at most {count} for alerts"));
    assert!(error.contains(what) && error.contains(&limit), "{error}");
    assert!(error.contains("ulimit -n"), "{error}");
}

// Item 44: redirects are followed, not for ever, and not against the configuration.
#[tokio::test]
async fn redirects_are_followed() {
    let server = TestServer::start(|head| match head.split(' ').nth(1) {
        Some("/a") => redirect("b"),
        Some("/b") => redirect("/c?x=1"),
        Some("/loop") => redirect("/loop"),
        Some("/none") => Some(b"HTTP/1.1 302 Found\r\ncontent-length: 2\r\n\r\nno".to_vec()),
        _ => ok("a 1\n"),
    })
    .await;
    let client = open(&HttpClient::default());
    assert_eq!(get(&client, server.url("/a")).await.unwrap().body[..], b"a 1\n"[..]);
    assert_eq!(server.connection_count(), 1);
    let error = get(&client, server.url("/loop")).await.unwrap_err();
    assert_eq!(error.to_string(), "stopped after 10 redirects");
    let response = get(&client, server.url("/none")).await.unwrap();
    assert_eq!((response.status_text().as_str(), &response.body[..]), ("302 Found", &b"no"[..]));
    let config = HttpClient { follow_redirects: false, ..HttpClient::default() };
    let response = get(&open(&config), server.url("/a")).await.unwrap();
    assert_eq!(response.status, 302);
}

/// Before, it was followed by a GET, and the answer to that counted as the receipt of the samples.
#[tokio::test]
async fn a_redirect_that_drops_a_body_is_an_error() {
    let server = TestServer::start(|head| match head.split(' ').nth(1) {
        Some("/write") => redirect("/page"),
        _ => ok("a page"),
    })
    .await;
    let client = open(&HttpClient::default());
    let (media_type, bytes) = ("text/plain".to_owned(), b"a 1\n".to_vec().into());
    let content = Some(Content { is_put: false, is_secret: false, media_type, bytes });
    let request = Request { content, ..request(server.url("/write")) };
    let error = client.send(&request, &mut Connections::default()).await.unwrap_err().to_string();
    assert!(error.contains("(HTTP status 302) drops the body of the request"), "{error}");
    assert_eq!(server.heads().len(), 1);
}

/// Before, a receiver elsewhere could delete all series by this server's own API on loopback: a
/// redirect keeps the method.
#[tokio::test]
async fn a_server_elsewhere_cannot_redirect_to_this_machine() {
    let own = TestServer::start(|_| ok("")).await;
    let to_own = format!("http://127.0.0.1:{}/api", own.port);
    // A server elsewhere, behind a proxy.
    let proxy = TestServer::start(move |head| match head.contains("elsewhere.test/back") {
        true => Some(
            format!("HTTP/1.1 307 X\r\nlocation: {to_own}\r\ncontent-length: 0\r\n\r\n").into(),
        ),
        false => redirect("http://elsewhere.test/back"),
    })
    .await;
    let keys = format!("proxy_url: {}, no_proxy: 127.0.0.1", proxy.url(""));
    let client = open(&client_config(&keys));
    let mut connections = Connections::default();
    // A connection that an earlier request has left open is not used either.
    for path in ["/back", "/", "/own", "/back"] {
        if path == "/own" {
            client.send(&request(own.url("/")), &mut connections).await.unwrap();
            continue;
        }
        let request = request(format!("http://elsewhere.test{path}"));
        let error = client.send(&request, &mut connections).await.unwrap_err().to_string();
        assert!(error.contains("redirects to this machine"), "{path}: {error}");
    }
    assert_eq!(own.heads().len(), 1);
}

// Item 44: no credentials after a redirect to another host.
#[tokio::test]
async fn credentials_stay_with_their_host() {
    let other = TestServer::start(|_| ok("")).await;
    let away = format!("http://localhost:{}/x", other.port);
    let server = TestServer::start(move |head| match head.split(' ').nth(1) {
        Some("/away") => redirect(&away),
        Some("/here") => redirect("/x"),
        _ => ok(""),
    })
    .await;
    let client = open(&client_config("authorization: {credentials: secret}"));
    get(&client, server.url("/here")).await.unwrap();
    assert!(server.heads().iter().all(|head| head.contains("authorization: Bearer secret")));
    get(&client, server.url("/away")).await.unwrap();
    assert_eq!(other.heads().len(), 1);
    assert!(!other.heads()[0].contains("secret"));
}

/// As Go's client: the user of the address comes before the credentials of the configuration, and
/// no other host gets it. `curl` and Go send the same bytes.
#[tokio::test]
async fn a_user_in_the_address_is_sent_as_basic_authentication() {
    let other = TestServer::start(|_| ok("")).await;
    let away = format!("http://localhost:{}/x", other.port);
    let server = TestServer::start(move |head| match head.split(' ').nth(1) {
        Some("/away") => redirect(&away),
        Some("/here") => redirect("/x"),
        _ => ok(""),
    })
    .await;
    let with = |user: &str, path: &str| server.url(path).replace("://", &format!("://{user}@"));
    let bearer = client_config("authorization: {credentials: other}");
    for client in [open(&HttpClient::default()), open(&bearer)] {
        // `me:p@ss+w%`, `me:` and `:p`.
        for (user, header) in [
            ("me:p%40ss+w%25", "Basic bWU6cEBzcyt3JQ=="),
            ("me", "Basic bWU6"),
            (":p", "Basic OnA="),
        ] {
            let before = server.heads().len();
            get(&client, with(user, "/here")).await.unwrap();
            let heads = server.heads().split_off(before);
            assert_eq!(heads.len(), 2);
            for head in heads {
                assert!(head.contains(&format!("authorization: {header}\r\n")), "{head}");
                assert!(!head.contains('@') && !head.contains("Bearer"), "{head}");
            }
        }
    }
    let client = open(&HttpClient::default());
    get(&client, with("me:secret", "/away")).await.unwrap();
    assert!(!other.heads()[0].contains("authorization"), "{}", other.heads()[0]);
    // No error shows it.
    let error = get(&client, "http://me:secret@127.0.0.1:1/".to_owned()).await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

// So do headers of the request that are secret.
#[tokio::test]
async fn secret_headers_stay_with_their_host() {
    let other = TestServer::start(|_| ok("")).await;
    let away = format!("http://localhost:{}/x", other.port);
    let server = TestServer::start(move |_| redirect(&away)).await;
    let token = HeaderName::from_static("x-token");
    let secrets = vec![(token, Secret::new("hidden"))];
    let request = Request { secrets, ..request(server.url("/")) };
    let client = open(&HttpClient::default());
    client.send(&request, &mut Connections::default()).await.unwrap();
    assert!(server.heads()[0].contains("x-token: hidden"));
    assert_eq!(other.heads().len(), 1);
    assert!(!other.heads()[0].contains("hidden"));
}

/// Before, a redirect that keeps the method sent a form with secrets on, to any host.
#[tokio::test]
async fn secret_forms_stay_with_their_host() {
    let other = TestServer::start(|_| ok("")).await;
    let away = format!("http://localhost:{}/x", other.port);
    let server = TestServer::start(move |head| {
        let to = match head.split(' ').nth(1) {
            Some("/away") => &away,
            Some("/here") => "/x",
            _ => return ok("done"),
        };
        let head = "content-length: 0\r\n\r\n";
        Some(format!("HTTP/1.1 307 X\r\nlocation: {to}\r\n{head}").into_bytes())
    })
    .await;
    let client = open(&HttpClient::default());
    for (path, is_secret, want) in
        [("/away", true, "credentials to another host"), ("/here", true, ""), ("/away", false, "")]
    {
        let (media_type, bytes) = ("text/plain".to_owned(), Bytes::from_static(b"hidden"));
        let content = Some(Content { is_put: false, is_secret, media_type, bytes });
        let request = Request { content, ..request(server.url(path)) };
        match client.send(&request, &mut Connections::default()).await {
            Ok(_) => assert!(want.is_empty(), "{path}"),
            Err(error) => assert!(!want.is_empty() && error.to_string().contains(want), "{error}"),
        }
        assert_eq!(other.heads().len(), usize::from(!is_secret), "{path}");
    }
    // So do the secrets of tokens.
    let keys = format!(
        "oauth2: {{client_id: i, client_secret: hidden, token_url: '{}'}}",
        server.url("/away")
    );
    let error = get(&open(&client_config(&keys)), server.url("/")).await.unwrap_err();
    assert!(error.to_string().contains("credentials to another host"), "{error}");
    assert_eq!(other.heads().len(), 1);
}

// Items 40 and 42: tokens are fetched once and sent.
#[tokio::test]
async fn tokens_are_fetched_and_reused() {
    let tokens = TestServer::start(|head| {
        // Reads only the form.
        if !head.contains("client_secret=s%26") {
            return Some(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_vec());
        }
        ok("{\"access_token\":\"T\",\"token_type\":\"bearer\",\"expires_in\":3600}")
    })
    .await;
    let server = TestServer::start(|_| ok("")).await;
    let config = |secret: &str| {
        let url = tokens.url("/token");
        client_config(&format!(
            "oauth2: {{client_id: id, client_secret: '{secret}', token_url: '{url}', \
             scopes: [a, b], endpoint_params: {{x: y}}}}"
        ))
    };
    let client = open(&config("s&"));
    for _ in 0..2 {
        get(&client, server.url("/")).await.unwrap();
    }
    assert!(server.heads().iter().all(|head| head.contains("authorization: Bearer T\r\n")));
    let heads = tokens.heads();
    assert_eq!(heads.len(), 2, "one with the header, one with the form");
    assert!(heads[0].contains("authorization: Basic aWQ6cyUyNg=="), "{}", heads[0]);
    assert!(heads[1].contains("grant_type=client_credentials&scope=a+b"), "{}", heads[1]);
    assert!(heads[1].ends_with("&x=y"), "{}", heads[1]);
    // Before, a token of 1 MiB was sent with every scrape, in memory that nothing reserved.
    let long =
        TestServer::start(|_| ok(&format!("{{\"access_token\":\"{}\"}}", "T".repeat(20_000))))
            .await;
    let url = long.url("/token");
    let keys = format!("oauth2: {{client_id: id, client_secret: s, token_url: '{url}'}}");
    let error = get(&open(&client_config(&keys)), server.url("/")).await.unwrap_err().to_string();
    assert_eq!(error, "oauth2: the token has 20007 bytes, at most 16384 are sent");
    // A text that is no address fails the request.
    let keys = "oauth2: {client_id: id, client_secret: s, token_url: 'http://u:hidden@h:x/'}";
    let error = get(&open(&client_config(keys)), server.url("/")).await.unwrap_err().to_string();
    assert!(error.starts_with("oauth2: token_url: parse "), "{error}");
    assert!(error.ends_with(": invalid port") && !error.contains("hidden"), "{error}");
    // A refusal names no secret.
    let config = config("other");
    let error = get(&open(&config), server.url("/")).await.unwrap_err().to_string();
    assert_eq!(error, "oauth2: cannot fetch token: 401 Unauthorized");
}

// A server that repeats the whole request in its error, in the body and where a redirect leads.
#[tokio::test]
async fn no_refusal_shows_a_secret() {
    let echo = |head: &str| {
        let status = if head.contains(" /redirect") { "302 Found" } else { "400 Bad Request" };
        let place = head.lines().last().unwrap_or_default().replace(' ', "");
        let body = format!("got {head}");
        let len = body.len();
        let head = format!("HTTP/1.1 {status}\r\nlocation: ://{place}\r\ncontent-length: {len}");
        Some(format!("{head}\r\n\r\n{body}").into_bytes())
    };
    let server = TestServer::start(echo).await;
    let with_user = server.url("/").replace("://", "://u:hunter2@");
    let mut token = request(server.url("/"));
    token.secrets = vec![(HeaderName::from_static("x-consul-token"), Secret::new("hunter2"))];
    let mut form = request(server.url("/"));
    form.content = Some(Content {
        is_put: false,
        is_secret: true,
        media_type: "application/x-www-form-urlencoded".to_owned(),
        bytes: "client_secret=hunter2".into(),
    });
    for (keys, request) in [
        ("basic_auth: {username: u, password: hunter2}", request(server.url("/"))),
        ("authorization: {credentials: hunter2}", request(server.url("/"))),
        ("authorization: {type: Key, credentials: hunter2}", request(server.url("/"))),
        ("http_headers: {X-Key: {values: [plain], secrets: [hunter2]}}", request(server.url("/"))),
        ("http_headers: {X-Key: {secrets: [hunter2]}}", request(server.url("/redirect"))),
        ("follow_redirects: true", request(with_user)),
        ("follow_redirects: true", token),
        ("follow_redirects: true", form),
    ] {
        let client = open(&client_config(keys));
        let shown = match client.send(&request, &mut Connections::default()).await {
            Ok(refusal) => {
                let body = String::from_utf8_lossy(&refusal.body).into_owned();
                assert!(refusal.status == 400 && body.starts_with("got "), "{body}");
                assert!(body.contains("<secret>"), "{body}");
                assert!(!keys.contains("plain") || body.contains("x-key: plain"), "{body}");
                body
            }
            Err(error) => error.to_string(),
        };
        assert!(!shown.contains("hunter2") && !shown.contains("dTpodW50ZXIy"), "{shown}");
    }
}

// Item 16: Unix sockets.
#[tokio::test]
async fn a_unix_socket_serves_a_target() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, &Mutex::default(), &|head: &str| {
            assert!(head.contains("host: localhost\r\n"), "{head}");
            ok("a 1\n")
        })
        .await;
    });
    let unix_socket = Some(path.to_str().unwrap().to_owned());
    let request = Request { unix_socket, ..request("http://localhost/metrics".to_owned()) };
    let client = open(&HttpClient::default());
    let response = client.send(&request, &mut Connections::default()).await.unwrap();
    assert_eq!(response.body[..], b"a 1\n"[..]);
}

// Item 44: proxies of HTTP, and headers for tunnels.
#[tokio::test]
async fn requests_take_the_proxy() {
    let proxy = TestServer::start(|head| match head.starts_with("CONNECT") {
        true => {
            let token = head.lines().find_map(|line| line.strip_prefix("X-Token: "));
            let status = format!("403 Forbidden {}", token.unwrap_or_default());
            Some(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes())
        }
        false => ok("a 1\n"),
    })
    .await;
    let config = client_config(&format!(
        "proxy_url: 'http://u:p@127.0.0.1:{}', \
         proxy_connect_header: {{X-A: [b], X-Token: [hunter2]}}, \
         tls_config: {{insecure_skip_verify: true}}",
        proxy.port
    ));
    let client = open(&config);
    get(&client, "http://nowhere.invalid/x".to_owned()).await.unwrap();
    let head = proxy.heads().remove(0);
    assert!(head.starts_with("GET http://nowhere.invalid/x HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("proxy-authorization: Basic dTpw\r\n"), "{head}");
    let error = get(&client, "https://nowhere.invalid/x".to_owned()).await.unwrap_err();
    assert!(error.to_string().contains("the proxy answered \"HTTP/1.1 403 Forbidden <secret>\""));
    let head = proxy.heads().remove(1);
    assert!(head.starts_with("CONNECT nowhere.invalid:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("X-A: b\r\n"), "{head}");
}

#[tokio::test]
async fn a_socks_proxy_connects_by_name() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut greeting = [0; 3];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(greeting, [5, 1, 0]);
        stream.write_all(&[5, 0]).await.unwrap();
        let mut wanted = [0; 4 + 1 + 4 + 2];
        stream.read_exact(&mut wanted).await.unwrap();
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        serve(stream, &Mutex::default(), &|_: &str| ok("a 1\n")).await;
        wanted
    });
    let config = client_config(&format!("proxy_url: 'socks5://127.0.0.1:{port}'"));
    let client = open(&config);
    assert_eq!(get(&client, "http://name:81/".to_owned()).await.unwrap().body[..], b"a 1\n"[..]);
    assert_eq!(asked.await.unwrap(), *b"\x05\x01\x00\x03\x04name\x00\x51");
}

/// A server's certificate for `name`, and the text of it.
fn certificate(name: &str) -> (TlsAcceptor, String) {
    certificate_for(name, &[])
}

/// As [`certificate`], with the protocols that the server offers.
fn certificate_for(name: &str, protocols: &[&[u8]]) -> (TlsAcceptor, String) {
    let issued = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), issued.cert.pem())
}

// Items 41 and 43: certificates are checked, and read from their files at every request.
#[tokio::test]
async fn certificates_are_checked() {
    let (tls, text) = certificate("example.org");
    let server = TestServer::with_tls(Some(tls), |_| ok("a 1\n")).await;
    let url = format!("https://127.0.0.1:{}/", server.port);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let ca_file = path.display();
    let config =
        client_config(&format!("tls_config: {{ca_file: '{ca_file}', server_name: example.org}}"));
    // A job whose certificates are missing does not start.
    let error = Client::new(&config, &Bodies::new(&Budget::unlimited())).unwrap_err().to_string();
    assert!(error.contains("ca_file"), "{error}");
    write_file(&path, &certificate("example.org").1);
    let client = open(&config);
    let error = get(&client, url.clone()).await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    write_file(&path, &text);
    assert_eq!(get(&client, url.clone()).await.unwrap().body[..], b"a 1\n"[..]);
    // The name counts, unless nothing is checked.
    let config = client_config(&format!("tls_config: {{ca_file: '{ca_file}'}}"));
    assert!(get(&open(&config), url.clone()).await.is_err());
    let config = client_config("tls_config: {insecure_skip_verify: true}");
    assert!(get(&open(&config), url).await.is_ok());
}

// Item 44: HTTP/2 where the server speaks it, if the configuration allows it.
#[tokio::test]
async fn a_server_may_speak_http_2() {
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let (tls, _) = certificate_for("example.org", &[b"h2", b"http/1.1"]);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://127.0.0.1:{}/metrics", listener.local_addr().unwrap().port());
    let connection_count = Arc::new(Mutex::new(0));
    let count = Arc::clone(&connection_count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            *count.lock().unwrap() += 1;
            let stream = tls.accept(stream).await.unwrap();
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                tokio::spawn(async move {
                    serve(stream, &Mutex::default(), &|_: &str| ok("one")).await;
                });
                continue;
            }
            let answer = service_fn(|request: hyper::Request<Incoming>| async move {
                let has_host = request.uri().host() == Some("127.0.0.1");
                let text = if has_host { "two" } else { "no host" };
                Ok::<_, hyper::Error>(hyper::Response::new(Full::new(Bytes::from(text))))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(
                async move { server.serve_connection(TokioIo::new(stream), answer).await },
            );
        }
    });
    for (http2, want) in [(true, "two"), (false, "one")] {
        let client = open(&client_config(&format!(
            "enable_http2: {http2}, tls_config: {{insecure_skip_verify: true}}"
        )));
        let mut connections = Connections::default();
        *connection_count.lock().unwrap() = 0;
        for _ in 0..2 {
            let response = client.send(&request(url.clone()), &mut connections).await.unwrap();
            assert_eq!(response.body[..], *want.as_bytes());
        }
        assert_eq!(*connection_count.lock().unwrap(), 1, "a connection serves many requests");
    }
}

/// Before, each of thousands of servers could send 5 MB before its body was read.
#[tokio::test]
async fn a_server_of_http_2_cannot_send_ahead() {
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let (tls, _) = certificate_for("example.org", &[b"h2"]);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://127.0.0.1:{}/metrics", listener.local_addr().unwrap().port());
    let windows = tokio::spawn(async move {
        let mut stream = tls.accept(listener.accept().await.unwrap().0).await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        let (mut stream_window, mut connection_window) = (65_535, 65_535);
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; len];
            stream.read_exact(&mut payload).await.unwrap();
            let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
            match head[3] {
                SETTINGS => {
                    let mut settings = payload.chunks(6);
                    if let Some(found) =
                        settings.find(|setting| setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes())
                    {
                        stream_window = number(&found[2..]);
                    }
                }
                WINDOW_UPDATE => connection_window += number(&payload),
                // The head of the request.
                _ => return (stream_window, connection_window),
            }
        }
    });
    let client = open(&client_config("tls_config: {insecure_skip_verify: true}"));
    assert!(get(&client, url).await.is_err());
    let (stream_window, connection_window) = windows.await.unwrap();
    assert!(stream_window <= 64 << 10, "{stream_window}");
    assert!(connection_window <= 64 << 10, "{connection_window}");
}

/// Before, informational heads were queued without a limit until the final one arrived.
#[tokio::test]
async fn informational_heads_of_http_2_are_bounded() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        bytes.extend_from_slice(payload);
        bytes
    }
    // HPACK: a literal with the name of entry 8, `:status`; then entry 8 whole, status 200.
    let informational = |stream| frame(HEADERS, END_HEADERS, stream, b"\x08\x03103");
    let answer = |stream| {
        let data = frame(DATA, END_STREAM, stream, b"a 1\n");
        [frame(HEADERS, END_HEADERS, stream, b"\x88"), data].concat()
    };
    // Eight requests with two informational heads each, then one with hundreds.
    const ANSWERED: usize = 8;
    let (tls, _) = certificate_for("example.org", &[b"h2"]);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://127.0.0.1:{}/metrics", listener.local_addr().unwrap().port());
    let server = tokio::spawn(async move {
        let mut request_count = 0;
        // The failed connection is replaced once.
        for _ in 0..2 {
            let mut stream = tls.accept(listener.accept().await.unwrap().0).await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
            let mut head = [0; 9];
            // Until the client closes the connection.
            while stream.read_exact(&mut head).await.is_ok() {
                let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                stream.read_exact(&mut vec![0; len]).await.unwrap();
                if head[3] != HEADERS {
                    continue;
                }
                request_count += 1;
                let id = head[8];
                let heads = if request_count <= ANSWERED { 2 } else { 500 };
                let bytes = [informational(id).repeat(heads), answer(id)].concat();
                stream.write_all(&bytes).await.unwrap();
            }
        }
        request_count
    });
    let client = open(&client_config("tls_config: {insecure_skip_verify: true}"));
    let mut connections = Connections::default();
    for _ in 0..ANSWERED {
        let response = client.send(&request(url.clone()), &mut connections).await.unwrap();
        assert_eq!(response.body[..], b"a 1\n"[..]);
    }
    let error = client.send(&request(url), &mut connections).await.unwrap_err().to_string();
    assert!(error.contains("more than 16 response heads to one request"), "{error}");
    assert_eq!(server.await.unwrap(), ANSWERED + 2);
}

/// Before, a server that sent nothing but pings, each of which the client answers, occupied a
/// thread until the next request, and after it.
#[tokio::test]
async fn pings_of_http_2_are_bounded() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let (tls, _) = certificate_for("example.org", &[b"h2"]);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("https://127.0.0.1:{}/metrics", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let stream = tls.accept(listener.accept().await.unwrap().0).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
        writer.write_all(&SETTINGS).await.unwrap();
        while writer.write_all(&PING.repeat(100)).await.is_ok() {}
    });
    let client = open(&client_config("tls_config: {insecure_skip_verify: true}"));
    let error = get(&client, url).await.unwrap_err().to_string();
    assert!(error.contains("more than 10000 frames that belong to no answer"), "{error}");
}

#[tokio::test]
async fn unusable_addresses_are_errors() {
    let client = open(&HttpClient::default());
    for (url, want) in [
        ("ftp://h/", "unsupported protocol scheme \"ftp\""),
        ("http:///x", ""),
        ("http://127.0.0.1:0/", "dial tcp 127.0.0.1:0: connect: connection refused"),
        // Before, they were sent to port 80.
        ("http://127.0.0.1:65536/", "dial tcp: address 65536: invalid port"),
        ("https://u:1@[::1]:99999999999/", "dial tcp: address 99999999999: invalid port"),
        ("http://a b/", "parse: "),
    ] {
        let error = get(&client, url.to_owned()).await.unwrap_err().to_string();
        assert!(error.contains(want), "{url}: {error}");
    }
}

/// Requests run on the threads of a runtime.
#[test]
fn a_request_may_move_between_threads() {
    fn check<T: Send>(_: T) {}
    let config = client_config("");
    let client = Client::new(&config, &Bodies::new(&Budget::unlimited())).unwrap();
    let request = request("http://127.0.0.1:1/".to_owned());
    let mut connections = Connections::default();
    check(client.send(&request, &mut connections));
}

// A watch: lines that arrive in any pieces, a refusal, silence, and an end in the middle of a line.
#[tokio::test]
async fn lines_are_read_as_they_arrive() {
    let server = TestServer::start(move |head| match head.split(' ').nth(1) {
        Some("/lines") => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            Some(format!("{head}3\r\none\r\n6\r\n\ntwo\nx\r\n0\r\n\r\n").into_bytes())
        }
        Some("/silence") => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            Some(format!("{head}4\r\none\n\r\n").into_bytes())
        }
        _ => Some(b"HTTP/1.1 410 Gone\r\ncontent-length: 3\r\n\r\nold".to_vec()),
    })
    .await;
    let client = open(&HttpClient::default());
    let watch = async |path: &str| {
        let request = Request { body_bytes_max: 100, ..request(server.url(path)) };
        client.watch(&request).await.unwrap()
    };
    let wait = Duration::from_secs(30);
    let Watched::Lines(mut lines) = watch("/lines").await else { panic!("refused") };
    for want in ["one", "two", "x"] {
        assert_eq!(lines.next(wait).await.unwrap(), Some(want.as_bytes()));
    }
    assert_eq!(lines.next(wait).await.unwrap(), None);
    let Watched::Lines(mut lines) = watch("/silence").await else { panic!("refused") };
    assert_eq!(lines.next(wait).await.unwrap(), Some(&b"one"[..]));
    let error = lines.next(Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, FetchError::Timeout), "{error}");
    let Watched::Refused(response) = watch("/gone").await else { panic!("no refusal") };
    assert_eq!((response.status, &response.body[..]), (410, &b"old"[..]));
}
