//! TLS of the listeners: certificates of clients and servers, reloads, a real Prometheus.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use firn_cache_client::{Client, Format, Options, Tls, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::access::{add_user, add_with_token};
use crate::http::{self, Answer};
use crate::process::{Process, firn, free_address, installed, wait_for};

/// An authority of its own.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for `name`, which ends in `last_year`.
    pub(crate) fn sign(&self, name: &str, last_year: i32) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let names = vec![name.to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    /// A client that trusts this authority, with a certificate of its own or without.
    pub(crate) fn client(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.pem)).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
                builder
                    .with_client_auth_cert(vec![certificate(&identity.certificate)], key)
                    .expect("an identity")
            }
        })
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

impl Identity {
    /// Writes `server.crt` and `server.key`, the certificate first.
    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join("server.crt"), &self.certificate).expect("a file");
        fs::write(folder.join("server.key"), &self.key).expect("a file");
    }
}

/// The end of a TLS connection to `localhost`.
pub(crate) fn connect(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
) -> Option<StreamOwned<ClientConnection, std::net::TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::clone(client), name).expect("a connection");
    Some(StreamOwned::new(connection, http::connect(address)?))
}

pub(crate) fn get(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
    path: &str,
    headers: &[(&str, &str)],
) -> Option<Answer> {
    http::exchange(&mut connect(address, client)?, address, "GET", path, headers, &[])
}

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";

/// Starts `firn serve` with the web configuration `web`.
fn start(folder: &Path, address: SocketAddr, web: &str) -> Process {
    let file = folder.join("web.yml");
    fs::write(&file, web).expect("a file");
    let mut command = firn(folder, address);
    command.arg("--web-config").arg(&file);
    Process::start("firn", folder, &mut command)
}

fn wait_until_ready(address: SocketAddr, client: &Arc<ClientConfig>) {
    wait_for("a ready server", Duration::from_secs(60), || {
        get(address, client, "/-/ready", &[]).is_some_and(|answer| answer.status == 200)
    });
}

#[test]
fn the_listener_speaks_tls_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, stranger, address) = (Authority::new(), Authority::new(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    let server = start(folder.path(), address, TLS);
    let client = authority.client(None);
    wait_until_ready(address, &client);
    let page = get(address, &client, "/", &[]).expect("a page");
    assert_eq!(page.status, 200);
    assert!(get(address, &stranger.client(None), "/", &[]).is_none(), "another authority");
    let plain = http::get(address, "/").expect("a sentence");
    assert!(plain.status == 400 && plain.body.contains("https://"), "{}", plain.body);
    let greeting = format!("https://{address}/");
    wait_for("the greeting", Duration::from_secs(60), || server.output().contains(&greeting));
}

/// A client with a wrong, expired or missing certificate is refused. The certificate's name counts.
#[test]
fn clients_need_the_certificate_that_the_file_demands() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, stranger, address) = (Authority::new(), Authority::new(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    fs::write(folder.path().join("ca.crt"), &authority.pem).expect("a file");
    let web = format!(
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  \
         client_allowed_sans: [agent.example]\n"
    );
    let _server = start(folder.path(), address, &web);
    let right = authority.client(Some(&authority.sign("agent.example", 2_099)));
    wait_until_ready(address, &right);
    assert_eq!(get(address, &right, "/version", &[]).expect("an answer").status, 200);
    for (what, client) in [
        ("no certificate", authority.client(None)),
        ("another authority", authority.client(Some(&stranger.sign("agent.example", 2_099)))),
        ("expired", authority.client(Some(&authority.sign("agent.example", 2_001)))),
        ("another name", authority.client(Some(&authority.sign("other.example", 2_099)))),
        ("a part of the name", authority.client(Some(&authority.sign("x.agent.example", 2_099)))),
    ] {
        assert!(get(address, &client, "/version", &[]).is_none(), "{what}");
    }
}

/// Before, a connection outlived the rules under which its certificate was accepted: a client whose
/// authority was removed kept it as long as it sent requests.
#[test]
fn a_connection_ends_once_its_certificate_is_not_accepted_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, second, address) = (Authority::new(), Authority::new(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    let authorities = folder.path().join("ca.crt");
    fs::write(&authorities, &authority.pem).expect("a file");
    let web =
        format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n");
    let server = start(folder.path(), address, &web);
    let client = authority.client(Some(&authority.sign("agent.example", 2_099)));
    wait_until_ready(address, &client);
    let mut stream = connect(address, &client).expect("a connection");
    let mut is_served = || {
        let sent = stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut answer = [0; 4_096];
        let read = sent.and_then(|()| stream.read(&mut answer)).unwrap_or_default();
        read > 0 && answer.starts_with(b"HTTP/1.1 200")
    };
    assert!(is_served());
    // Another certificate of the server changes no rule.
    let renewed = authority.sign("localhost", 2_098);
    renewed.write(folder.path());
    server.hang_up();
    let der = certificate(&renewed.certificate).to_vec();
    wait_for("the new certificate", Duration::from_secs(60), || presented(address, &client) == der);
    assert!(is_served());

    fs::write(&authorities, &second.pem).expect("a file");
    server.hang_up();
    let other = authority.client(Some(&second.sign("agent.example", 2_099)));
    wait_until_ready(address, &other);
    wait_for("the end of the connection", Duration::from_secs(60), || !is_served());
    assert!(get(address, &client, "/-/healthy", &[]).is_none());
}

/// The certificate that a new connection presents.
fn presented(address: SocketAddr, client: &Arc<ClientConfig>) -> Vec<u8> {
    let mut stream = connect(address, client).expect("a connection");
    stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    stream.conn.peer_certificates().expect("certificates")[0].to_vec()
}

#[test]
fn new_certificates_are_used_and_unusable_ones_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, address) = (Authority::new(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    let server = start(folder.path(), address, TLS);
    let client = authority.client(None);
    wait_until_ready(address, &client);
    let first = presented(address, &client);

    // By itself, within seconds of the change.
    let renewed = authority.sign("localhost", 2_098);
    renewed.write(folder.path());
    let der = certificate(&renewed.certificate).to_vec();
    wait_for("the new certificate", Duration::from_secs(60), || presented(address, &client) == der);
    assert_ne!(first, der);

    // A key of another certificate: the previous pair stays, and the error names both files.
    fs::write(folder.path().join("server.key"), authority.sign("x", 2_099).key).expect("a file");
    server.hang_up();
    wait_for("the error", Duration::from_secs(60), || {
        server.output().contains("cert_file and key_file do not belong together")
    });
    assert_eq!(presented(address, &client), der);
    let metrics = get(address, &client, "/metrics", &[]).expect("metrics").body;
    let failed = "firn_web_config_reloads_total{result=\"error\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(failed)).expect("a counter");
    assert_ne!(count, "0");

    // SIGHUP.
    let again = authority.sign("localhost", 2_097);
    again.write(folder.path());
    server.hang_up();
    let der = certificate(&again.certificate).to_vec();
    wait_for("the third", Duration::from_secs(60), || presented(address, &client) == der);
}

#[test]
fn every_listener_speaks_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, addresses) = (Authority::new(), [(); 3].map(|()| free_address()));
    authority.sign("localhost", 2_099).write(folder.path());
    let web = folder.path().join("web.yml");
    fs::write(&web, TLS).expect("a file");
    let [first, second, admin] = addresses;
    let mut command = firn(folder.path(), first);
    command.arg("--web-config").arg(&web).args(["--listen", &second.to_string()]);
    command.args(["--admin-listen", &admin.to_string()]);
    let mut server = Process::start("firn", folder.path(), &mut command);
    let client = authority.client(None);
    for address in addresses {
        wait_until_ready(address, &client);
        let plain = http::get(address, "/").expect("a sentence");
        assert!(plain.status == 400 && plain.body.contains("https://"), "{}", plain.body);
    }
    let flags = get(second, &client, "/api/v1/status/flags", &[]).expect("flags").body;
    assert!(flags.contains(&format!("\"web.listen-address\":\"{first},{second}\"")), "{flags}");
    let greeting = format!("https://{first}/ and https://{second}/");
    wait_for("the greeting", Duration::from_secs(60), || server.output().contains(&greeting));
    // Loopback of each has the rules against web pages.
    for address in addresses {
        let mut stream = connect(address, &client).expect("a connection");
        stream.write_all(b"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n").expect("a request");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(
            answer.starts_with("HTTP/1.1 421") || answer.starts_with("HTTP/1.0 421"),
            "{answer}"
        );
    }
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
}

/// The cache server's protocol, and the proxy's HTTP.
#[test]
fn cache_and_proxy_speak_tls_too() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    authority.sign("localhost", 2_099).write(folder.path());
    let web = folder.path().join("web.yml");
    fs::write(&web, TLS).expect("a file");
    let client = authority.client(None);
    let start = |name: &str, address: SocketAddr, proxy: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["cache", "--proxy", proxy, "--listen", &address.to_string()]);
        command.arg("--data").arg(folder.path().join(name)).arg("--web-config").arg(&web);
        let process = Process::start(name, folder.path(), &mut command);
        wait_for(name, Duration::from_secs(60), || {
            let answer = get(address, &client, "/-/cache/metrics", &[]);
            answer.is_some_and(|answer| answer.status == 200)
        });
        process
    };
    let (cache_at, proxy_at) = (free_address(), free_address());
    let _cache = start("cache", cache_at, "none");
    let mut stream = connect(cache_at, &client).expect("a connection");
    stream.write_all(b"version\r\n").expect("a request");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("a line");
    assert!(line.starts_with("VERSION "), "{line}");
    let _proxy = start("proxy", proxy_at, "http://127.0.0.1:9");
}

#[test]
fn a_real_prometheus_writes_over_tls_with_a_password() {
    let Some(prometheus) = installed("prometheus") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, address, at) = (Authority::new(), free_address(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    let authority_file = folder.path().join("ca.crt");
    fs::write(&authority_file, &authority.pem).expect("a file");
    let web = folder.path().join("web.yml");
    fs::write(&web, TLS).expect("a file");
    add_user(&web, "prometheus", &["--role", "read,write"], "secret");
    let text = fs::read_to_string(&web).expect("the file");
    let _server = start(folder.path(), address, &text);
    let client = authority.client(None);
    wait_until_ready(address, &client);
    let config = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: self\n  static_configs:\n  \
         - targets: ['{at}']\nremote_write:\n- url: https://localhost:{}/api/v1/write\n  \
         basic_auth: {{username: prometheus, password: secret}}\n  tls_config: {{ca_file: '{}'}}\n",
        address.port(),
        authority_file.display()
    );
    let _prometheus = crate::process::start_prometheus(&prometheus, folder.path(), at, &config);
    let login = [("Authorization", "Basic cHJvbWV0aGV1czpzZWNyZXQ=")];
    wait_for("samples of Prometheus", Duration::from_secs(120), || {
        let path = "/api/v1/query?query=up{job=%22self%22}";
        get(address, &client, path, &login).is_some_and(|answer| answer.body.contains("\"1\""))
    });
    let refused = get(address, &client, "/api/v1/query?query=up", &[]).expect("an answer");
    assert_eq!(refused.status, 401, "{}", refused.body);
}

/// `firn` with some arguments: whether it succeeds, and its output.
fn run(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_firn")).args(args).output().expect("firn runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The library, `firn cache stats` and `firn inspect` reach servers with TLS, users and client
/// certificates, and fail with a reason without them.
#[test]
fn our_own_clients_speak_tls_with_certificates_and_credentials() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.sign("localhost", 2_099).write(folder.path());
    fs::write(path("ca.crt"), &authority.pem).expect("a file");
    fs::write(path("other.crt"), &stranger.pem).expect("a file");
    let own = authority.sign("agent.example", 2_099);
    fs::write(path("agent.pem"), format!("{}{}", own.certificate, own.key)).expect("a file");
    let foreign = stranger.sign("agent.example", 2_099);
    let text = format!("{}{}", foreign.certificate, foreign.key);
    fs::write(path("foreign.pem"), text).expect("a file");
    let mixed = format!("{}{}", own.certificate, foreign.key);
    fs::write(path("mixed.pem"), mixed).expect("a file");
    let web = path("web.yml");
    let demands = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n";
    fs::write(&web, format!("{TLS}{demands}")).expect("a file");
    add_user(&web, "alice", &["--role", "read,write"], "secret:with:colons");
    let header = add_with_token(&web, "program", &["--role", "read,write"]);
    let token = header.trim_start_matches("Bearer ").to_owned();
    fs::write(path("token"), format!("{token}\n")).expect("a file");
    fs::write(path("password"), "alice:secret:with:colons\n").expect("a file");

    let (serve_at, cache_at, admin_at) = (free_address(), free_address(), free_address());
    let _server = start(folder.path(), serve_at, &fs::read_to_string(&web).expect("the file"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["cache", "--listen", &cache_at.to_string()]).arg("--web-config").arg(&web);
    command.args(["--require-auth", "--admin-listen", &admin_at.to_string()]);
    command.arg("--data").arg(path("cache"));
    let _cache = Process::start("cache", folder.path(), &mut command);
    let client = authority.client(Some(&own));
    wait_until_ready(serve_at, &client);
    // The second listener: TLS, and users except for probes.
    wait_until_ready(admin_at, &client);
    let metrics = |headers: &[(&str, &str)]| {
        get(admin_at, &client, "/metrics", headers).expect("an answer").status
    };
    assert_eq!((metrics(&[]), metrics(&[("Authorization", &header)])), (401, 200));
    assert!(get(admin_at, &authority.client(None), "/-/healthy", &[]).is_none(), "a certificate");

    let open = |ca_file: &str, identity: Option<&str>| {
        let identity_file = identity.map(path);
        Tls::open(&TlsOptions { ca_file: Some(path(ca_file)), identity_file })
    };
    let cache = |tls: Option<Tls>, token: &str| {
        let name = format!("localhost:{}", cache_at.port());
        let timeout = Duration::from_secs(60);
        let options = Options { token: Some(token.to_owned()), tls, timeout };
        let mut client = Client::new(&[&name], options).expect("a client");
        let kept = client.set("k", 0, (0, 9), Format::Json, b"[[5,1.5]]")?;
        assert_eq!(kept, Some((0, 9)));
        client.get("k", 0, (0, 9), Format::Json).map(|reply| reply.value)
    };
    let tls = open("ca.crt", Some("agent.pem")).expect("TLS");
    assert_eq!(cache(Some(tls.clone()), &token).expect("a value"), b"[[5,1.5]]");
    assert!(cache(Some(tls), "firn_wrong").is_err(), "a wrong token");
    assert!(cache(None, &token).is_err(), "no TLS");
    for (ca_file, identity) in
        [("ca.crt", None), ("other.crt", Some("agent.pem")), ("ca.crt", Some("foreign.pem"))]
    {
        let tls = open(ca_file, identity).expect("TLS");
        assert!(cache(Some(tls), &token).is_err(), "{ca_file} {identity:?}");
    }
    for (ca_file, identity) in
        [("none", None), ("token", None), ("ca.crt", Some("ca.crt")), ("ca.crt", Some("mixed.pem"))]
    {
        assert!(open(ca_file, identity).is_err(), "{ca_file} {identity:?}");
    }

    // The same flags of all commands.
    let file = |name: &str| path(name).display().to_string();
    let (ca, identity) = (file("ca.crt"), file("agent.pem"));
    let (token_file, password_file) = (file("token"), file("password"));
    let commands = [
        (vec!["cache", "stats"], cache_at, "hits"),
        (vec!["inspect", "groups"], serve_at, "members each"),
    ];
    for (command, address, wanted) in commands {
        let url = format!("https://localhost:{}", address.port());
        let with = |args: &[&str]| run(&[&command[..], &["--server", &url], args].concat());
        let files = ["--ca-file", &ca, "--identity-file", &identity];
        for credentials in [&token_file, &password_file] {
            let args = [&files[..], &["--credentials-file", credentials]].concat();
            let (is_done, text) = with(&args);
            assert!(is_done && text.contains(wanted), "{text}");
        }
        // The list of processes shows this one.
        let (is_done, text) = with(&[&files[..], &["--token", &token]].concat());
        assert!(is_done && text.contains("--credentials-file"), "{text}");
        assert!(!text.contains(&token), "{text}");
        for (args, wanted) in [
            (vec!["--ca-file", &ca, "--identity-file", &identity], "password"),
            (
                // The server runs: it refuses the client after the handshake.
                vec!["--ca-file", &ca, "--credentials-file", &token_file],
                "the request to the server at localhost",
            ),
            (vec!["--credentials-file", &token_file], "server"),
            (vec!["--ca-file", &token_file], "expected certificates in PEM form"),
            (
                vec!["--ca-file", &ca, "--credentials-file", "/nonexistent"],
                "cannot read --credentials-file",
            ),
        ] {
            let (is_done, text) = with(&args);
            let wanted =
                if command[0] == "cache" && wanted == "password" { "expected" } else { wanted };
            assert!(!is_done && text.contains(wanted), "{args:?}: {text}");
        }
        let plain = address.to_string();
        let (is_done, text) = run(&[&command[..], &["--server", &plain]].concat());
        assert!(!is_done, "{text}");
        let url = format!("http://{plain}");
        let (is_done, text) = run(&[&command[..], &["--server", &url, "--ca-file", &ca]].concat());
        assert!(!is_done && text.contains("https://"), "{text}");
    }
}

/// Reads one response of a connection that stays open; its status.
fn keep_alive(stream: &mut (impl Read + Write)) -> Option<u16> {
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    stream.flush().ok()?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.trim().parse().ok()?];
    stream.read_exact(&mut body).ok()?;
    head.split(' ').nth(1)?.parse().ok()
}

/// Certificates change while clients open connections and use old ones: no request fails. A broken
/// pair and an expired certificate are reported once, and the previous pair stays.
#[test]
fn rotations_under_load_fail_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let (authority, address) = (Authority::new(), free_address());
    authority.sign("localhost", 2_099).write(folder.path());
    let server = start(folder.path(), address, TLS);
    let client = authority.client(None);
    wait_until_ready(address, &client);
    let (is_over, answered) = (AtomicBool::new(false), [0, 1, 2].map(AtomicUsize::new));
    std::thread::scope(|scope| {
        let (client, is_over, answered) = (&client, &is_over, &answered);
        for (kind, answered) in answered.iter().enumerate() {
            scope.spawn(move || {
                let mut kept = connect(address, client).expect("a connection");
                while !is_over.load(Ordering::Relaxed) {
                    let status = match kind {
                        0 => keep_alive(&mut kept),
                        _ => get(address, client, "/version", &[]).map(|answer| answer.status),
                    };
                    assert_eq!(status, Some(200), "client {kind}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // The threads end whatever fails here.
        let rotated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for year in [2_091, 2_092, 2_093, 2_094] {
                let next = authority.sign("localhost", year);
                next.write(folder.path());
                server.hang_up();
                let der = certificate(&next.certificate).to_vec();
                let event = format!("the certificate until {year}");
                wait_for(&event, Duration::from_secs(60), || presented(address, client) == der);
                let before = answered.each_ref().map(|count| count.load(Ordering::Relaxed));
                wait_for("requests of all clients", Duration::from_secs(60), || {
                    let more = answered.iter().zip(before);
                    more.into_iter().all(|(count, before)| count.load(Ordering::Relaxed) > before)
                });
            }
            let used = presented(address, client);
            let errors = || server.output().matches("the previous version stays").count();
            let broken = [
                (
                    "not belong together",
                    Identity {
                        certificate: authority.sign("localhost", 2_095).certificate,
                        key: authority.sign("localhost", 2_095).key,
                    },
                ),
                ("has expired", authority.sign("localhost", 2_001)),
            ];
            // A stopped server cannot see a new certificate with an old key.
            let write = |identity: &Identity| {
                server.send("-STOP");
                identity.write(folder.path());
                server.send("-CONT");
            };
            for (count, (wanted, identity)) in broken.into_iter().enumerate() {
                write(&identity);
                wait_for(wanted, Duration::from_secs(60), || server.output().contains(wanted));
                assert_eq!(presented(address, client), used, "{wanted}");
                assert_eq!(errors(), count + 1, "{}", server.output());
            }
            let last = authority.sign("localhost", 2_096);
            write(&last);
            let der = certificate(&last.certificate).to_vec();
            wait_for("the last", Duration::from_secs(60), || presented(address, client) == der);
            assert_eq!(errors(), 2, "{}", server.output());
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = rotated {
            std::panic::resume_unwind(panic);
        }
    });
}
