//! Services of which the discovery is not supported: read and checked as in Prometheus.

use firn_model::Secret;

use super::super::{FilePath, HttpClient, Millis, TlsConfig, Url};
use super::{check_http_url, checked, client, refuse};
use firn_yaml::{Field, section};

section! {
    /// Instances of Eureka.
    pub struct EurekaDiscovery: "eureka.plain" {
        server: Url = "server" omit,
        refresh_interval: Millis = "refresh_interval" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Services of Kuma.
    pub struct KumaDiscovery: "xds.plain" {
        refresh_interval: Millis = "refresh_interval" omit,
        fetch_timeout: Millis = "fetch_timeout" omit,
        server: Url = "server" omit,
        client_id: String = "client_id" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Applications of Marathon.
    pub struct MarathonDiscovery: "marathon.plain" {
        servers: Vec<String> = "servers" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        auth_token: Secret = "auth_token" omit,
        auth_token_file: FilePath = "auth_token_file" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Services of Nerve in ZooKeeper.
    pub struct NerveDiscovery: "zookeeper.plain" {
        servers: Vec<String> = "servers",
        paths: Vec<String> = "paths",
        timeout: Millis = "timeout" omit,
    }
}

section! {
    /// Server sets in ZooKeeper.
    pub struct ServersetDiscovery: "zookeeper.plain" {
        servers: Vec<String> = "servers",
        paths: Vec<String> = "paths",
        timeout: Millis = "timeout" omit,
    }
}

section! {
    /// Services of Nomad.
    pub struct NomadDiscovery: "nomad.plain" {
        allow_stale: bool = "allow_stale",
        namespace: String = "namespace",
        refresh_interval: Millis = "refresh_interval",
        region: String = "region",
        server: String = "server",
        tag_separator: String = "tag_separator" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Resources of PuppetDB.
    pub struct PuppetdbDiscovery: "puppetdb.plain" {
        refresh_interval: Millis = "refresh_interval" omit,
        url: Url = "url",
        query: String = "query",
        include_parameters: bool = "include_parameters",
        port: i64 = "port",
    }
    inline { http: HttpClient, }
}

section! {
    /// Containers of Triton.
    pub struct TritonDiscovery: "triton.plain" {
        account: String = "account",
        role: String = "role",
        dns_suffix: String = "dns_suffix",
        endpoint: String = "endpoint",
        groups: Vec<String> = "groups" omit,
        port: i64 = "port",
        refresh_interval: Millis = "refresh_interval" omit,
        tls_config: TlsConfig = "tls_config" omit,
        version: i64 = "version",
    }
}

section! {
    /// Systems of Uyuni.
    pub struct UyuniDiscovery: "uyuni.plain" {
        server: Url = "server",
        username: String = "username",
        password: Secret = "password",
        entitlement: String = "entitlement" omit,
        separator: String = "separator" omit,
        refresh_interval: Millis = "refresh_interval" omit,
    }
    inline { http: HttpClient, }
}

checked!(EurekaDiscovery {
    refresh_interval = Millis::seconds(30);
    http = client();
} |eureka| {
    refuse(eureka.server.is_zero(), "eureka_sd: empty or null eureka server")?;
    let url = &eureka.server;
    let is_wrong = url.scheme().is_empty() || url.host().is_empty();
    refuse(is_wrong, "eureka_sd: invalid eureka server URL")?;
    eureka.http.check()
});

checked!(KumaDiscovery {
    refresh_interval = Millis::seconds(15);
    fetch_timeout = Millis::seconds(120);
    http = client();
} |kuma| {
    let url = &kuma.server;
    refuse(url.is_zero(), "kuma SD server must not be empty: ")?;
    refuse(
        url.scheme().is_empty() || url.host().is_empty(),
        &format!("kuma SD server must not be empty and have a scheme: {url}"),
    )?;
    kuma.http.check()
});

checked!(MarathonDiscovery {
    refresh_interval = Millis::seconds(30);
    http = client();
} |marathon| {
    let (has_token, has_file) =
        (!marathon.auth_token.is_zero(), !marathon.auth_token_file.is_empty());
    let http = &marathon.http;
    let has_bearer = !http.bearer_token.is_zero() || !http.bearer_token_file.is_empty();
    let text = if marathon.servers.is_empty() {
        "must contain at least one Marathon server"
    } else if has_token && has_file {
        "at most one of auth_token & auth_token_file must be configured"
    } else if !has_token && !has_file {
        return marathon.http.check();
    } else if http.basic_auth.is_some() {
        "at most one of basic_auth, auth_token & auth_token_file must be configured"
    } else if has_bearer {
        "at most one of bearer_token, bearer_token_file, auth_token & auth_token_file must be \
         configured"
    } else if http.authorization.is_some() {
        "at most one of auth_token, auth_token_file & authorization must be configured"
    } else {
        return marathon.http.check();
    };
    Err(format!("marathon_sd: {text}"))
});

checked!(NerveDiscovery {
    timeout = Millis::seconds(10);
} |nerve| {
    check_paths("nerve", &nerve.servers, &nerve.paths)
});

checked!(ServersetDiscovery {
    timeout = Millis::seconds(10);
} |serverset| {
    check_paths("serverset", &serverset.servers, &serverset.paths)
});

fn check_paths(kind: &str, servers: &[String], paths: &[String]) -> Result<(), String> {
    let text = if servers.is_empty() {
        "must contain at least one Zookeeper server".to_owned()
    } else if paths.is_empty() {
        "must contain at least one path".to_owned()
    } else if let Some(path) = paths.iter().find(|path| !path.starts_with('/')) {
        format!("paths must begin with '/': {path}")
    } else {
        return Ok(());
    };
    Err(format!("{kind} SD config {text}"))
}

checked!(NomadDiscovery {
    allow_stale = true;
    namespace = "default".to_owned();
    refresh_interval = Millis::seconds(60);
    region = "global".to_owned();
    server = "http://localhost:4646".to_owned();
    tag_separator = ",".to_owned();
    http = client();
} |nomad| {
    let has_server = !nomad.server.trim().is_empty();
    refuse(!has_server, "nomad SD configuration requires a server address")?;
    nomad.http.check()
});

checked!(PuppetdbDiscovery {
    port = 80;
    refresh_interval = Millis::seconds(60);
    http = client();
} |puppet| {
    check_http_url(&puppet.url)?;
    refuse(puppet.query.is_empty(), "query missing")?;
    puppet.http.check()
});

checked!(TritonDiscovery {
    role = "container".to_owned();
    port = 9163;
    refresh_interval = Millis::seconds(60);
    version = 1;
} |triton| {
    let text = if !matches!(triton.role.as_str(), "container" | "cn") {
        "role to be 'container' or 'cn'"
    } else if triton.account.is_empty() {
        "an account"
    } else if triton.dns_suffix.is_empty() {
        "a dns_suffix"
    } else if triton.endpoint.is_empty() {
        "an endpoint"
    } else if triton.refresh_interval.is_zero() {
        "RefreshInterval to be a positive integer"
    } else {
        return Ok(());
    };
    Err(format!("triton SD configuration requires {text}"))
});

checked!(UyuniDiscovery {
    entitlement = "monitoring_entitled".to_owned();
    separator = ",".to_owned();
    refresh_interval = Millis::seconds(60);
    http = client();
} |uyuni| {
    refuse(uyuni.server.is_zero(), "Uyuni SD configuration requires server host")?;
    refuse(uyuni.username.is_empty(), "Uyuni SD configuration requires a username")?;
    refuse(uyuni.password.is_zero(), "Uyuni SD configuration requires a password")?;
    uyuni.http.check()
});
