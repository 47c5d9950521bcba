//! The address and the credentials of an API server.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use firn_model::{Error, Result, Secret};
use firn_yaml::{Checked, Document, Failure, Field, UnknownKeys, section};

use crate::config::discovery::KubernetesDiscovery;
use crate::config::{
    Authorization, BasicAuth, FilePath, Files, HttpClient, TlsConfig, Url, join_folder,
};

/// The way to an API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterAccess {
    /// The address without a slash at its end.
    pub server: String,
    /// The client.
    pub http: HttpClient,
    /// The namespace of the own pod, if the configuration refers to it.
    pub own_namespace: Option<String>,
}

/// The files that Kubernetes mounts into a pod.
const ACCOUNT_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl ClusterAccess {
    /// The server of `config`: `api_server`, that of `kubeconfig_file`, or that of the cluster in
    /// which the process runs, which `env` and files describe.
    ///
    /// # Errors
    /// `Invalid` outside of a cluster, and for a file that cannot be read or used.
    pub fn of(
        config: &KubernetesDiscovery,
        env: &dyn Fn(&str) -> Option<String>,
        files: &dyn Files,
    ) -> Result<ClusterAccess> {
        if !config.kubeconfig_file.is_empty() {
            return from_kubeconfig(&config.kubeconfig_file, files);
        }
        match &config.api_server {
            Some(server) => Ok(ClusterAccess {
                server: without_slash(server.as_str()),
                http: config.http.clone(),
                own_namespace: None,
            }),
            None => in_cluster(config, env, Path::new(ACCOUNT_FOLDER), files),
        }
    }
}

fn without_slash(server: &str) -> String {
    server.trim_end_matches('/').to_owned()
}

pub(super) fn in_cluster(
    config: &KubernetesDiscovery,
    env: &dyn Fn(&str) -> Option<String>,
    folder: &Path,
    files: &dyn Files,
) -> Result<ClusterAccess> {
    let variable = |name| env(name).filter(|value| !value.is_empty());
    let address = variable("KUBERNETES_SERVICE_HOST").zip(variable("KUBERNETES_SERVICE_PORT"));
    let Some((host, port)) = address else {
        return Err(Error::invalid(
            "the server does not run in a Kubernetes cluster: KUBERNETES_SERVICE_HOST or \
             KUBERNETES_SERVICE_PORT is not set; set api_server or kubeconfig_file",
        ));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let path = |name: &str| folder.join(name);
    let file = |name: &str| FilePath::from(&*path(name).to_string_lossy());
    let own_namespace = match config.namespaces.own_namespace {
        true => Some(read(&path("namespace"), files)?.trim().to_owned()),
        false => None,
    };
    if own_namespace.as_deref() == Some("") {
        return Err(Error::invalid("could not read own namespace name (empty file)"));
    }
    let mut http = HttpClient {
        authorization: Some(bearer(Secret::new(""), file("token"))),
        ..HttpClient::default()
    };
    http.tls_config.ca_file = file("ca.crt");
    Ok(ClusterAccess { server: format!("https://{host}:{port}"), http, own_namespace })
}

/// A token of the configuration, or of a file that is read again at each request.
fn bearer(credentials: Secret, credentials_file: FilePath) -> Authorization {
    Authorization {
        kind: "Bearer".to_owned(),
        credentials,
        credentials_file,
        ..Authorization::zero()
    }
}

fn read(path: &Path, files: &dyn Files) -> Result<String> {
    files
        .read(path)
        .map_err(|error| Error::invalid(format!("could not read {}: {error}", path.display())))
}

section! {
    struct KubeConfig: "api.Config" {
        current_context: String = "current-context",
        clusters: Vec<NamedCluster> = "clusters",
        contexts: Vec<NamedContext> = "contexts",
        users: Vec<NamedUser> = "users",
    }
}

section! {
    struct NamedCluster: "api.NamedCluster" { name: String = "name", cluster: KubeCluster = "cluster", }
}

section! {
    struct KubeCluster: "api.Cluster" {
        server: String = "server",
        tls_server_name: String = "tls-server-name",
        insecure_skip_tls_verify: bool = "insecure-skip-tls-verify",
        certificate_authority: FilePath = "certificate-authority",
        certificate_authority_data: String = "certificate-authority-data",
        proxy_url: Option<Url> = "proxy-url",
    }
}

section! {
    struct NamedContext: "api.NamedContext" { name: String = "name", context: KubeContext = "context", }
}

section! {
    struct KubeContext: "api.Context" { cluster: String = "cluster", user: String = "user", }
}

section! {
    struct NamedUser: "api.NamedAuthInfo" { name: String = "name", user: KubeUser = "user", }
}

section! {
    struct KubeUser: "api.AuthInfo" {
        client_certificate: FilePath = "client-certificate",
        client_certificate_data: String = "client-certificate-data",
        client_key: FilePath = "client-key",
        client_key_data: Secret = "client-key-data",
        token: Secret = "token",
        token_file: FilePath = "tokenFile",
        username: String = "username",
        password: Secret = "password",
        impersonate: String = "as",
        exec: Option<Plugin> = "exec",
        auth_provider: Option<Plugin> = "auth-provider",
    }
}

section! {
    struct Plugin: "api.Plugin" { command: String = "command", name: String = "name", }
}

impl Checked for KubeConfig {}
impl Checked for NamedCluster {}
impl Checked for KubeCluster {}
impl Checked for NamedContext {}
impl Checked for KubeContext {}
impl Checked for NamedUser {}
impl Checked for KubeUser {}
impl Checked for Plugin {}

pub(super) fn from_kubeconfig(path: &FilePath, files: &dyn Files) -> Result<ClusterAccess> {
    let text = read(path.as_path(), files)?;
    let failed = |text: &str| Error::invalid(format!("kubeconfig_file {}: {text}", path.as_str()));
    let budget = files.budget();
    let mut config = KubeConfig::zero();
    let _held = Document::parse_within(&text, &budget)
        .and_then(|mut document| document.decode(&mut config, UnknownKeys::Ignored))
        .map_err(|failure: Failure| failed(&failure.into_error().to_string()))?;
    if let Some(folder) = path.as_path().parent() {
        join_folder(&mut config, folder);
    }
    let context = config.contexts.iter().find(|named| named.name == config.current_context);
    let context = &context.ok_or_else(|| failed("current-context names no context"))?.context;
    let cluster = config.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = &cluster.ok_or_else(|| failed("the context names no cluster"))?.cluster;
    let http = match config.users.iter().find(|named| named.name == context.user) {
        Some(named) => client(cluster, Some(&named.user)),
        None if context.user.is_empty() => client(cluster, None),
        None => return Err(failed("the context names no user")),
    };
    let server = Url::parse(&cluster.server).map_err(|error| failed(&error))?;
    let http = http.map_err(|text| failed(&text))?;
    Ok(ClusterAccess { server: without_slash(server.as_str()), http, own_namespace: None })
}

fn client(cluster: &KubeCluster, user: Option<&KubeUser>) -> Result<HttpClient, String> {
    let tls_config = TlsConfig {
        ca: pem("certificate-authority-data", &cluster.certificate_authority_data)?,
        insecure_skip_verify: cluster.insecure_skip_tls_verify,
        server_name: cluster.tls_server_name.clone(),
        ..TlsConfig::zero()
    };
    let mut http = HttpClient { tls_config, ..HttpClient::default() };
    // Data has precedence over files.
    if http.tls_config.ca.is_empty() {
        http.tls_config.ca_file = cluster.certificate_authority.clone();
    }
    http.proxy.proxy_url = cluster.proxy_url.clone();
    http.proxy.proxy_from_environment = cluster.proxy_url.is_none();
    let Some(user) = user else { return Ok(http) };
    if user.exec.is_some() || user.auth_provider.is_some() {
        return Err("exec and auth-provider are not supported; use a token, a tokenFile or a \
                    client certificate"
            .to_owned());
    }
    if !user.impersonate.is_empty() {
        return Err("impersonation with \"as\" is not supported".to_owned());
    }
    http.tls_config.cert = pem("client-certificate-data", &user.client_certificate_data)?;
    if http.tls_config.cert.is_empty() {
        http.tls_config.cert_file = user.client_certificate.clone();
    }
    http.tls_config.key = Secret::new(pem("client-key-data", user.client_key_data.expose())?);
    if http.tls_config.key.is_zero() {
        http.tls_config.key_file = user.client_key.clone();
    }
    if !user.token_file.is_empty() {
        http.authorization = Some(bearer(Secret::new(""), user.token_file.clone()));
    } else if !user.token.is_zero() {
        http.authorization = Some(bearer(user.token.clone(), FilePath::default()));
    } else if !user.username.is_empty() {
        http.basic_auth = Some(BasicAuth {
            username: user.username.clone(),
            password: user.password.clone(),
            ..BasicAuth::zero()
        });
    }
    http.tls_config.check()?;
    http.check()?;
    Ok(http)
}

/// The text of base64.
fn pem(key: &str, data: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(data.trim()).map_err(|_| format!("{key} is not base64"))?;
    String::from_utf8(bytes).map_err(|_| format!("{key} is not UTF-8"))
}
