//! Discovery: the lists of targets of a job or of a set of Alertmanagers.
//!
//! [`Provider`]s are the discoveries of a configuration. The caller reads files, sends requests
//! and looks up names; this module knows the files, the requests, their intervals and the meaning
//! of answers. A failed refresh keeps the previous list.

mod dns;
mod ec2;
mod file;
mod http;
mod kubernetes;
mod names;

pub use dns::DnsTargets;
pub use ec2::{
    AwsCredentials, AwsRequest, CredentialSource, Ec2Targets, ZoneIds, known_region, metadata_url,
    role_credentials, role_request, session_credentials, web_identity_request,
};
pub use file::FileTargets;
pub use http::HttpTargets;
pub use kubernetes::{
    ClusterAccess, ClusterState, ObjectList, PageEnd, Resource, StoredObject, WatchEvent,
    WatchSpec, refusal,
};

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
    /// Addresses of names.
    Dns(DnsDiscovery),
    /// Instances of EC2.
    Ec2(Box<Ec2Discovery>),
    /// Objects of a Kubernetes cluster.
    Kubernetes(Box<KubernetesDiscovery>),
}

impl Provider {
    /// The discoveries of `place`, a job or a set of Alertmanagers, in the order of keys.
    ///
    /// # Errors
    /// `Invalid` for a kind that is not implemented, with its key and `place`.
    pub fn all_of(discoveries: &Discoveries, place: &str) -> Result<Vec<Provider>> {
        check_implemented(discoveries, place)?;
        let mut providers = Vec::new();
        if !discoveries.static_groups.is_empty() {
            providers.push(Provider::Static(discoveries.static_groups.to_vec()));
        }
        providers.extend(discoveries.dns.iter().cloned().map(Provider::Dns));
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
        }
    }
}

fn check_implemented(discoveries: &Discoveries, place: &str) -> Result<()> {
    let known = [
        ("consul_sd_configs", discoveries.consul.is_empty()),
        ("docker_sd_configs", discoveries.docker.is_empty()),
        ("dockerswarm_sd_configs", discoveries.dockerswarm.is_empty()),
    ];
    let known = known.into_iter().filter_map(|(key, is_empty)| (!is_empty).then_some(key));
    if let Some(key) = discoveries.unsupported().chain(known).next() {
        return Err(Error::invalid(format!(
            "{key} of {place}: this discovery is not implemented; use file_sd_configs or \
             http_sd_configs (docs/collect.md)"
        )));
    }
    discoveries.dns.iter().try_for_each(|dns| DnsTargets::check(dns, place))
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

// A map of labels is one node with room for eleven labels.
const LABEL_SET_BYTES: usize = 576;
const LABELS_PER_NODE: usize = 5;

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
    // A node of the map is split when it has eleven labels: each has at least five.
    let nodes = count.checked_div(LABELS_PER_NODE).unwrap_or(0).saturating_add(1);
    nodes.saturating_mul(LABEL_SET_BYTES).saturating_add(texts_bytes)
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
                    dns_sd_configs: [{names: [n], type: a, port: 1}]";
        let found = providers(text).unwrap();
        let kinds: Vec<&str> = found.iter().map(Provider::kind).collect();
        assert_eq!(kinds, ["static", "dns", "file", "file", "http"]);
        assert_eq!(found, providers(text).unwrap());
        assert_ne!(found[2], found[3]);
        let Provider::Static(groups) = &found[0] else { panic!("{found:?}") };
        let groups = static_groups(groups);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].targets[1].get("__address__"), Some("b"));
        assert_eq!(groups[0].labels.get("x"), Some("y"));
        assert!(heap_bytes(&groups) > 3 * LABEL_SET_BYTES);
    }

    #[test]
    fn a_kind_that_is_not_implemented_is_named() {
        for (keys, want) in [
            ("consul_sd_configs: [{}]", "consul_sd_configs of job"),
            ("nomad_sd_configs: [{}]", "nomad_sd_configs of job"),
            ("dns_sd_configs: [{names: [n]}]", "dns_sd_configs of job \"j\": type SRV"),
            ("dns_sd_configs: [{names: [n], type: mx, port: 1}]", "type MX"),
        ] {
            let error = providers(keys).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("not implemented"), "{error}");
        }
    }
}
