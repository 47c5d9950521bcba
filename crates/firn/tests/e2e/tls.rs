//! TLS of the listeners: certificates of clients and servers, reloads, a real Prometheus.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::access::add_user;
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

/// The certificate that a new connection presents.
fn presented(address: SocketAddr, client: &Arc<ClientConfig>) -> Vec<u8> {
    use std::io::Write;
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

/// The cache server's protocol, and the proxy's HTTP.
#[test]
fn cache_and_proxy_speak_tls_too() {
    use std::io::{BufRead, BufReader, Write};
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
