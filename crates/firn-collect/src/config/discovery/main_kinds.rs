//! The kinds that are supported, without Kubernetes.

use std::collections::BTreeMap;

use firn_model::Secret;

use super::super::{BasicAuth, FilePath, HttpClient, LabelSet, Millis, Url};
use super::{check_http_url, checked, client, refuse};
use firn_yaml::quoted;
use firn_yaml::{Checked, Field, Items, section};

section! {
    /// Targets with the same labels.
    pub struct TargetGroup: "targetgroup.Group" {
        targets: Vec<String> = "targets",
        labels: LabelSet = "labels" omit,
    }
}

section! {
    /// Target groups in files.
    pub struct FileDiscovery: "file.plain" {
        /// Paths and patterns with `*` in their last element.
        files: Vec<FilePath> = "files",
        refresh_interval: Millis = "refresh_interval" omit,
    }
}

section! {
    /// Target groups of an HTTP server.
    pub struct HttpDiscovery: "http.plain" {
        refresh_interval: Millis = "refresh_interval" omit,
        url: Url = "url",
    }
    inline { http: HttpClient, }
}

section! {
    /// Records of DNS.
    pub struct DnsDiscovery: "dns.plain" {
        names: Vec<String> = "names",
        refresh_interval: Millis = "refresh_interval" omit,
        /// `SRV`, `A`, `AAAA`, `MX` or `NS`, in any case.
        kind: String = "type",
        /// Without effect for `SRV`.
        port: i64 = "port",
    }
}

section! {
    /// Services of Consul.
    pub struct ConsulDiscovery: "consul.plain" {
        server: String = "server" omit,
        path_prefix: String = "path_prefix" omit,
        token: Secret = "token" omit,
        datacenter: String = "datacenter" omit,
        namespace: String = "namespace" omit,
        partition: String = "partition" omit,
        tag_separator: String = "tag_separator" omit,
        scheme: String = "scheme" omit,
        username: String = "username" omit,
        password: Secret = "password" omit,
        allow_stale: bool = "allow_stale",
        refresh_interval: Millis = "refresh_interval" omit,
        /// All services if empty.
        services: Vec<String> = "services" omit,
        tags: Vec<String> = "tags" omit,
        node_meta: BTreeMap<String, String> = "node_meta" omit,
        filter: String = "filter" omit,
        health_filter: String = "health_filter" omit,
    }
    inline { http: HttpClient, }
}

section! {
    /// Containers of Docker.
    pub struct DockerDiscovery: "moby.plain" {
        host: Url = "host",
        port: i64 = "port",
        filters: Vec<SwarmFilter> = "filters",
        host_networking_host: String = "host_networking_host",
        refresh_interval: Millis = "refresh_interval",
        match_first_network: bool = "match_first_network",
    }
    inline { http: HttpClient, }
}

section! {
    /// Objects of Docker Swarm.
    pub struct SwarmDiscovery: "moby.plain" {
        host: Url = "host",
        /// `services`, `tasks` or `nodes`.
        role: String = "role",
        port: i64 = "port",
        filters: Vec<SwarmFilter> = "filters",
        refresh_interval: Millis = "refresh_interval",
    }
    inline { http: HttpClient, }
}

section! {
    /// A filter of Docker.
    pub struct SwarmFilter: "moby.Filter" {
        name: String = "name",
        values: Vec<String> = "values",
    }
}

section! {
    /// Instances of EC2.
    pub struct Ec2Discovery: "aws.plain" {
        endpoint: String = "endpoint",
        region: String = "region",
        access_key: String = "access_key" omit,
        secret_key: Secret = "secret_key" omit,
        profile: String = "profile" omit,
        role_arn: String = "role_arn" omit,
        external_id: String = "external_id" omit,
        refresh_interval: Millis = "refresh_interval" omit,
        port: i64 = "port",
        filters: Items<Filter> = "filters",
    }
    inline { http: HttpClient, }
}

section! {
    /// A filter of AWS.
    pub struct Filter: "aws.Filter" {
        name: String = "name",
        values: Vec<String> = "values",
    }
}

impl Checked for TargetGroup {
    fn start(&mut self) {
        *self = TargetGroup::zero();
    }
}

impl Checked for SwarmFilter {}
impl Checked for Filter {}

checked!(FileDiscovery { refresh_interval = Millis::seconds(300); } |file| {
    refuse(
        file.files.is_empty(),
        "file service discovery config must contain at least one path name",
    )?;
    for path in &file.files {
        let path = path.as_str();
        let is_known = ["json", "yml", "yaml", "JSON", "YML", "YAML"]
            .iter()
            .any(|kind| path.strip_suffix(kind).is_some_and(|path| path.ends_with('.')));
        let behind = path.split_once('*').map_or("", |(_, behind)| behind);
        if !is_known || behind.contains('/') {
            let path = quoted(path.as_bytes());
            return Err(format!("path name {path} is not valid for file discovery"));
        }
    }
    Ok(())
});

checked!(HttpDiscovery { refresh_interval = Millis::seconds(60); http = client(); } |http| {
    check_http_url(&http.url)?;
    http.http.check()
});

checked!(DnsDiscovery {
    refresh_interval = Millis::seconds(30);
    kind = "SRV".to_owned();
} |dns| {
    refuse(dns.names.is_empty(), "DNS-SD config must contain at least one SRV record name")?;
    match dns.kind.to_uppercase().as_str() {
        "SRV" => Ok(()),
        "A" | "AAAA" | "MX" | "NS" => refuse(
            dns.port == 0,
            "a port is required in DNS-SD configs for all record types except SRV",
        ),
        _ => Err(format!("invalid DNS-SD records type {}", dns.kind)),
    }
});

checked!(ConsulDiscovery {
    tag_separator = ",".to_owned();
    scheme = "http".to_owned();
    server = "localhost:8500".to_owned();
    allow_stale = true;
    refresh_interval = Millis::seconds(30);
    http = client();
} |consul| {
    refuse(
        consul.server.trim().is_empty(),
        "consul SD configuration requires a server address",
    )?;
    if !consul.username.is_empty() || !consul.password.is_zero() {
        refuse(
            consul.http.basic_auth.is_some(),
            "at most one of consul SD configuration username and password and basic auth can be \
             configured",
        )?;
        consul.http.basic_auth = Some(BasicAuth {
            username: consul.username.clone(),
            password: consul.password.clone(),
            ..BasicAuth::zero()
        });
    }
    let has_auth = consul.http.authorization.is_some() || consul.http.oauth2.is_some();
    refuse(
        !consul.token.is_zero() && has_auth,
        "at most one of consul SD token, authorization, or oauth2 can be configured",
    )?;
    consul.http.check()
});

checked!(DockerDiscovery {
    refresh_interval = Millis::seconds(60);
    port = 80;
    host_networking_host = "localhost".to_owned();
    match_first_network = true;
    http = client();
} |docker| {
    refuse(docker.host.is_zero(), "host missing")?;
    docker.http.check()
});

checked!(SwarmDiscovery {
    refresh_interval = Millis::seconds(60);
    port = 80;
    http = client();
} |swarm| {
    refuse(swarm.host.is_zero(), "host missing")?;
    match swarm.role.as_str() {
        "services" | "nodes" | "tasks" => swarm.http.check(),
        "" => Err("role missing (one of: tasks, services, nodes)".to_owned()),
        role => Err(format!("invalid role {role}, expected tasks, services, or nodes")),
    }
});

checked!(Ec2Discovery {
    refresh_interval = Millis::seconds(60);
    port = 80;
    http = client();
} |ec2| {
    let is_wrong = ec2.filters.has_null() || ec2.filters.iter().any(|one| one.values.is_empty());
    refuse(is_wrong, "EC2 SD configuration filter values cannot be empty")?;
    ec2.http.check()
});
