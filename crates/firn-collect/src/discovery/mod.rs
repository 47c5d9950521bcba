//! Discovery: the lists of targets of a job or of a set of Alertmanagers.
//!
//! [`Provider`]s are the discoveries of a configuration. The caller reads files, sends requests
//! and looks up names; this module knows the files, the requests, their intervals and the meaning
//! of answers. A failed refresh keeps the previous list.

mod api;
mod consul;
mod dns;
mod docker;
mod ec2;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
mod kubernetes;
mod names;
mod swarm;

pub use api::{ApiHost, check_status};
pub use consul::{ConsulTargets, INDEX_HEADER, TOKEN_HEADER, next_index};
pub use dns::{DnsKind, DnsRecord, DnsTargets};
pub use docker::{DockerTargets, VERSION_HEADER, VERSION_PATH, version_folder};
pub use ec2::{
    AwsCredentials, AwsRequest, CredentialSource, Ec2Targets, ZoneIds, known_region, metadata_url,
    role_credentials, role_request, session_credentials, web_identity_request,
};
pub use file::FileTargets;
pub use http::HttpTargets;
pub use kubernetes::{
    ClusterAccess, ClusterState, ObjectEvents, ObjectList, PageEnd, Resource, StoredObject,
    WatchEvent, WatchSpec, refusal,
};
pub use swarm::SwarmTargets;

use firn_model::{Error, Result};

use crate::config::LabelSet;
use crate::config::discovery::{
    Discoveries, DnsDiscovery, Ec2Discovery, FileDiscovery, HttpDiscovery, KubernetesDiscovery,
    TargetGroup,
};
use crate::pool::DiscoveredGroup;
use crate::targets::ADDRESS;

/// A discovery of a configuration. Equal ones find the same targets.
#[derive(Clone, Debug, PartialEq)]
pub enum Provider {
    /// Targets of the configuration itself.
    Static(Vec<TargetGroup>),
    /// Targets of files.
    File(FileDiscovery),
    /// Targets of an HTTP server.
    Http(Box<HttpDiscovery>),
    /// Records of names.
    Dns(DnsDiscovery),
    /// Instances of EC2.
    Ec2(Box<Ec2Discovery>),
    /// Objects of a Kubernetes cluster.
    Kubernetes(Box<KubernetesDiscovery>),
    /// Services of Consul.
    Consul(Box<ConsulTargets>),
    /// Containers of Docker.
    Docker(Box<DockerTargets>),
    /// Objects of Docker Swarm.
    Swarm(Box<SwarmTargets>),
}

impl Provider {
    /// The discoveries of `place`, a job or a set of Alertmanagers, in the order of keys.
    ///
    /// # Errors
    /// `Invalid` for a kind that is not implemented, and for an address that is not supported, with
    /// its key and `place`.
    pub fn all_of(discoveries: &Discoveries, place: &str) -> Result<Vec<Provider>> {
        match discoveries.unsupported().next() {
            Some(key) => Err(Error::invalid(format!(
                "{key} of {place}: this discovery is not implemented; use file_sd_configs or \
                 http_sd_configs (docs/collect.md)"
            ))),
            None => Provider::implemented(discoveries, place),
        }
    }

    /// Those of `discoveries` that are implemented.
    ///
    /// # Errors
    /// `Invalid` for an address that is not supported, with its key and `place`.
    pub fn implemented(discoveries: &Discoveries, place: &str) -> Result<Vec<Provider>> {
        discoveries.dns.iter().try_for_each(|dns| DnsTargets::check(dns, place))?;
        let mut providers = Vec::new();
        if !discoveries.static_groups.is_empty() {
            providers.push(Provider::Static(discoveries.static_groups.to_vec()));
        }
        for consul in discoveries.consul.iter() {
            providers.push(Provider::Consul(Box::new(ConsulTargets::new(consul.clone(), place)?)));
        }
        providers.extend(discoveries.dns.iter().cloned().map(Provider::Dns));
        for docker in discoveries.docker.iter() {
            providers.push(Provider::Docker(Box::new(DockerTargets::new(docker.clone(), place)?)));
        }
        for swarm in discoveries.dockerswarm.iter() {
            providers.push(Provider::Swarm(Box::new(SwarmTargets::new(swarm.clone(), place)?)));
        }
        providers.extend(discoveries.file.iter().cloned().map(Provider::File));
        let http = discoveries.http.iter().cloned();
        providers.extend(http.map(|http| Provider::Http(Box::new(http))));
        let ec2 = discoveries.ec2.iter().cloned();
        providers.extend(ec2.map(|ec2| Provider::Ec2(Box::new(ec2))));
        let kubernetes = discoveries.kubernetes.iter().cloned().map(Box::new);
        providers.extend(kubernetes.map(Provider::Kubernetes));
        Ok(providers)
    }

    /// The kind in metrics and messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Provider::Static(_) => "static",
            Provider::File(_) => "file",
            Provider::Http(_) => "http",
            Provider::Dns(_) => "dns",
            Provider::Ec2(_) => "ec2",
            Provider::Kubernetes(_) => "kubernetes",
            Provider::Consul(_) => "consul",
            Provider::Docker(_) => "docker",
            Provider::Swarm(_) => "dockerswarm",
        }
    }
}

/// The groups of the configuration itself.
pub fn static_groups(groups: &[TargetGroup]) -> Vec<DiscoveredGroup> {
    groups.iter().map(|group| discovered(group, &[])).collect()
}

/// A group with labels of its discovery.
fn discovered(group: &TargetGroup, meta: &[(&str, &str)]) -> DiscoveredGroup {
    DiscoveredGroup {
        targets: group.members().collect(),
        labels: group.labels.iter().chain(meta.iter().copied()).collect::<LabelSet>(),
    }
}

// A list of labels is a block of the allocator, and has a place in a list that grows.
const LABEL_SET_BYTES: usize = 16 + 2 * size_of::<LabelSet>();

/// As [`heap_bytes`] of the groups that [`discovered`] makes of `groups` with `meta`.
fn discovered_bytes(groups: &[TargetGroup], meta: &[(&str, &str)]) -> usize {
    let pair = |(name, value): (&str, &str)| text_bytes(name.len(), value.len());
    let meta = meta.iter().copied().map(pair).fold(0, usize::saturating_add);
    groups.iter().fold(0, |sum, group| {
        let labels = group.labels.iter().map(pair).fold(meta, usize::saturating_add);
        let own = set_bytes(group.labels.iter().count().saturating_add(1), labels)
            .saturating_add(size_of::<DiscoveredGroup>());
        let target = |target: &String| set_bytes(1, text_bytes(ADDRESS.len(), target.len()));
        sum.saturating_add(group.targets.iter().map(target).fold(own, usize::saturating_add))
    })
}

/// The memory of a set of `count` labels, of which the texts have `texts_bytes`.
fn set_bytes(count: usize, texts_bytes: usize) -> usize {
    let labels = count.saturating_mul(size_of::<(String, String)>());
    labels.saturating_add(LABEL_SET_BYTES).saturating_add(texts_bytes)
}

/// The memory of the name and the value of a label, which are blocks of the allocator.
fn text_bytes(name_bytes: usize, value_bytes: usize) -> usize {
    name_bytes.saturating_add(value_bytes).saturating_add(32)
}

/// An upper estimate of the memory of `groups`.
pub fn heap_bytes(groups: &[DiscoveredGroup]) -> usize {
    groups.iter().fold(0, |sum, group| {
        let own = label_set_bytes(&group.labels).saturating_add(size_of::<DiscoveredGroup>());
        let targets = group.targets.iter().map(label_set_bytes).fold(own, usize::saturating_add);
        sum.saturating_add(targets)
    })
}

/// An upper estimate of the memory of `labels`.
fn label_set_bytes(labels: &LabelSet) -> usize {
    let texts = labels.iter().map(|(name, value)| text_bytes(name.len(), value.len()));
    set_bytes(labels.iter().count(), texts.fold(0, usize::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn providers(keys: &str) -> Result<Vec<Provider>> {
        let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
        let loaded = Config::parse(&text, &|_| None).unwrap();
        Provider::all_of(&loaded.config.scrape_configs[0].discoveries, "job \"j\"")
    }

    #[test]
    fn kinds_are_found_and_equal_ones_are_equal() {
        let text = "static_configs: [{targets: [a, b], labels: {x: y}}], \
                    file_sd_configs: [{files: [a.json]}, {files: [b.yml]}], \
                    http_sd_configs: [{url: 'http://h/'}], \
                    dns_sd_configs: [{names: [n], type: a, port: 1}], \
                    consul_sd_configs: [{}], docker_sd_configs: [{host: 'unix:///s'}], \
                    dockerswarm_sd_configs: [{host: 'tcp://h:1', role: nodes}]";
        let found = providers(text).unwrap();
        let kinds: Vec<&str> = found.iter().map(Provider::kind).collect();
        assert_eq!(
            kinds,
            ["static", "consul", "dns", "docker", "dockerswarm", "file", "file", "http"]
        );
        assert_eq!(found, providers(text).unwrap());
        assert_ne!(found[5], found[6]);
        let Provider::Static(groups) = &found[0] else { panic!("{found:?}") };
        let groups = static_groups(groups);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].targets[1].get("__address__"), Some("b"));
        assert_eq!(groups[0].labels.get("x"), Some("y"));
        assert!(heap_bytes(&groups) > 3 * LABEL_SET_BYTES);
    }

    #[test]
    fn a_kind_that_is_not_implemented_is_named() {
        let error = providers("nomad_sd_configs: [{}]").unwrap_err().to_string();
        let want = "nomad_sd_configs of job \"j\"";
        assert!(error.contains(want) && error.contains("not implemented"), "{error}");
    }

    #[test]
    fn an_address_that_is_not_supported_is_named() {
        for (keys, want) in [
            ("dns_sd_configs: [{names: [n], type: mx, port: 70000}]", "70000 is not a port"),
            ("consul_sd_configs: [{scheme: ftp}]", "job \"j\": scheme \"ftp\""),
            ("consul_sd_configs: [{server: 'npipe://h'}]", "scheme \"npipe\""),
            ("docker_sd_configs: [{host: 'ssh://u:secret@h'}]", "host ssh://u:xxxxx@h: expected"),
            ("docker_sd_configs: [{host: 'unix://'}]", "docker_sd_configs of job \"j\": host"),
            ("docker_sd_configs: [{host: 'localhost:2375'}]", "host localhost:2375: expected"),
            ("dockerswarm_sd_configs: [{host: 'http://', role: tasks}]", "dockerswarm_sd_configs"),
        ] {
            let error = providers(keys).unwrap_err().to_string();
            assert!(error.contains(want) && !error.contains("secret"), "{error}");
        }
    }
}
