//! Label shapes: the series of a source (a host, a pod, a device) as six kinds of senders label
//! them.

use crate::devops::REGIONS;
use crate::index::scatter;

use super::walk::Walk;

/// A kind of sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SenderShape {
    /// TSBS DevOps: hosts with ten tags and 101 metrics, all at the same instant.
    Tsbs,
    /// Telegraf: `host`, two global tags, and further tags by plugin.
    Telegraf,
    /// OpenTelemetry: eleven resource attributes, histograms by route.
    Otlp,
    /// cAdvisor of a Kubernetes node: a source is a pod with two containers. The node has a hundred
    /// pods, and each container its own timestamps.
    Cadvisor,
    /// Devices with twelve channels each; every device has its own timestamps.
    Iot,
    /// Series with random names and labels and their own timestamps: no two belong together.
    Random,
}

/// How the sources of a run are labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Labelling {
    /// With `job` and `instance`.
    Grouped,
    /// As the sender labels them, without `job` and `instance`.
    Lone,
    /// Sources with even numbers are grouped, the others lone.
    Mixed,
}

/// How one source is labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelForm {
    /// With `job` and `instance`.
    Grouped,
    /// Without them.
    Lone,
}

/// One series.
#[derive(Clone, Debug)]
pub struct SentSeries {
    /// Sorted by name, with `__name__`.
    pub labels: Vec<(String, String)>,
    /// Its values.
    pub walk: Walk,
    /// Series with the same number have the same timestamps. Those of 0 are multiples of the
    /// interval, as of an agent that rounds.
    pub clock: u64,
}

impl Labelling {
    /// The form of source number `source`.
    pub fn form(self, source: usize) -> LabelForm {
        match self {
            Labelling::Grouped => LabelForm::Grouped,
            Labelling::Lone => LabelForm::Lone,
            Labelling::Mixed if source.is_multiple_of(2) => LabelForm::Grouped,
            Labelling::Mixed => LabelForm::Lone,
        }
    }
}

impl SenderShape {
    /// All shapes.
    pub const ALL: [SenderShape; 6] = [
        SenderShape::Tsbs,
        SenderShape::Telegraf,
        SenderShape::Otlp,
        SenderShape::Cadvisor,
        SenderShape::Iot,
        SenderShape::Random,
    ];

    /// For tables and for the command line.
    pub fn name(self) -> &'static str {
        match self {
            SenderShape::Tsbs => "tsbs",
            SenderShape::Telegraf => "telegraf",
            SenderShape::Otlp => "otlp",
            SenderShape::Cadvisor => "cadvisor",
            SenderShape::Iot => "iot",
            SenderShape::Random => "random",
        }
    }

    /// The number of series of each source.
    pub fn series_per_source(self) -> usize {
        match self {
            SenderShape::Tsbs => 101,
            SenderShape::Telegraf => 130,
            SenderShape::Otlp => 88,
            SenderShape::Cadvisor => 58,
            SenderShape::Iot => 12,
            SenderShape::Random => 1,
        }
    }

    /// Whether the sender mixes the series of its sources, as Prometheus' remote write does with
    /// its shards and a gateway of devices does. The others send one source after another.
    pub fn is_mixed_by_sender(self) -> bool {
        matches!(self, SenderShape::Cadvisor | SenderShape::Iot | SenderShape::Random)
    }

    /// The label that names the source, and its value.
    pub fn source_label(self, source: usize, form: LabelForm) -> (&'static str, String) {
        let number = source as u64;
        match (self, form) {
            (SenderShape::Tsbs, LabelForm::Grouped) => ("instance", format!("host_{source}")),
            (SenderShape::Tsbs, LabelForm::Lone) => ("hostname", format!("host_{source}")),
            (SenderShape::Telegraf, LabelForm::Grouped) => {
                ("instance", format!("{}:9273", host(source)))
            }
            (SenderShape::Telegraf, LabelForm::Lone) => ("host", host(source)),
            (SenderShape::Otlp, LabelForm::Grouped) => ("instance", uuid(number)),
            (SenderShape::Otlp, LabelForm::Lone) => ("service_instance_id", uuid(number)),
            (SenderShape::Cadvisor, _) => ("pod", pod(source)),
            (SenderShape::Iot, LabelForm::Grouped) => ("instance", device(source)),
            (SenderShape::Iot, LabelForm::Lone) => ("device_id", device(source)),
            (SenderShape::Random, _) => ("key", key(number)),
        }
    }

    /// The labels that all series of a source share, except for the source's name.
    pub(super) fn tags(self, source: usize, form: LabelForm) -> Vec<(String, String)> {
        let pick = |salt: u64, of: u64| scatter(source as u64 * 64 + salt) % of;
        let is_grouped = form == LabelForm::Grouped;
        let mut tags: Vec<(String, String)> = Vec::new();
        let mut tag = |name: &str, value: String| tags.push((name.to_owned(), value));
        match self {
            SenderShape::Tsbs => {
                let region = REGIONS[pick(1, 9) as usize];
                tag("arch", one_of(&["x64", "x86"], pick(2, 2)));
                tag("datacenter", format!("{region}{}", one_of(&["a", "b", "c"], pick(3, 3))));
                let os = ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"];
                tag("os", one_of(&os, pick(4, 3)));
                tag("rack", pick(5, 100).to_string());
                tag("region", region.to_owned());
                tag(if is_grouped { "job" } else { "service" }, pick(8, 20).to_string());
                let environments = ["production", "staging", "test"];
                tag("service_environment", one_of(&environments, pick(6, 3)));
                tag("service_version", pick(7, 2).to_string());
                tag("team", one_of(&["SF", "NYC", "LON", "CHI"], pick(9, 4)));
            }
            SenderShape::Telegraf => {
                tag("dc", format!("dc{}", pick(1, 6)));
                tag("environment", one_of(&["live", "canary"], pick(2, 2)));
                if is_grouped {
                    tag("host", host(source));
                    tag("job", "telegraf".to_owned());
                }
            }
            SenderShape::Otlp => {
                let service = pick(1, 25);
                let (namespace, name) = (format!("shop-{}", service % 5), format!("svc-{service}"));
                if is_grouped {
                    tag("job", format!("{namespace}/{name}"));
                } else {
                    tag("service_name", name.clone());
                    tag("service_namespace", namespace.clone());
                }
                tag("deployment_environment_name", "production".to_owned());
                tag("host_name", format!("ip-10-1-{}-{}", pick(2, 8), pick(3, 250)));
                tag("k8s_cluster_name", format!("cluster-{}", pick(4, 3)));
                tag("k8s_namespace_name", namespace);
                tag("k8s_pod_name", format!("{name}-6d5f7c9b8-{:05x}", pick(5, 0xf_ffff)));
                tag("service_version", format!("2.{}.0", service % 7));
                tag("telemetry_sdk_language", "java".to_owned());
                tag("telemetry_sdk_name", "opentelemetry".to_owned());
            }
            SenderShape::Cadvisor => {
                let node = source / PODS_PER_NODE;
                tag("namespace", namespace(source));
                tag("node", format!("ip-10-0-{}-{}", node / 200, node % 200));
                if is_grouped {
                    tag("instance", format!("10.0.{}.{}:10250", node / 200, node % 200));
                    tag("job", "kubelet".to_owned());
                    tag("metrics_path", "/metrics/cadvisor".to_owned());
                } else {
                    tag("cluster", "eu-1".to_owned());
                }
            }
            SenderShape::Iot => {
                tag("firmware", format!("4.{}.{}", pick(1, 3), pick(2, 9)));
                tag("model", one_of(&["PX-200", "PX-400", "VT-9", "VT-10"], pick(3, 4)));
                tag("site", format!("plant-{:02}", pick(4, 30)));
                if is_grouped {
                    tag("job", "mqtt-bridge".to_owned());
                }
            }
            SenderShape::Random => {
                // Three to nine labels; each block of the pool of names contributes one.
                for block in 0..3 + pick(1, 7) {
                    let name = block * 15 + pick(20 + block, 15);
                    let values = [2, 9, 60, 700, 5_000][(name % 5) as usize];
                    tag(&format!("attr_{name:03}"), format!("v{}", pick(40 + block, values)));
                }
                if is_grouped {
                    // Labels that promise a group where there is none.
                    tag("instance", format!("worker-{}", pick(2, 5_000)));
                    tag("job", format!("batch-{}", pick(3, 50)));
                }
            }
        }
        tags
    }
}

/// The pods of a node; two containers each.
pub const PODS_PER_NODE: usize = 100;

fn one_of(names: &[&str], idx: u64) -> String {
    names[idx as usize].to_owned()
}

fn host(source: usize) -> String {
    format!("web-{source:05}.example.net")
}

fn uuid(number: u64) -> String {
    let (high, low) = (scatter(2 * number), scatter(2 * number + 1));
    let node = low & 0xffff_ffff_ffff;
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{node:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 52
    )
}

fn namespace(pod: usize) -> String {
    format!("team-{}", scatter(pod as u64 * 64) % 40)
}

fn pod(source: usize) -> String {
    let random = scatter(source as u64 * 64 + 63);
    format!("app-{}-{:09x}-{:05x}", random % 300, random >> 28, random & 0xf_ffff)
}

fn key(number: u64) -> String {
    // An odd factor: every number has its own key.
    format!("{:08x}", number.wrapping_mul(0x9e37_79b1) & 0xffff_ffff)
}

fn device(source: usize) -> String {
    format!("{:012X}", scatter(source as u64) >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The distinct values of each label of the shape's first sources, and the number of distinct
    /// series.
    fn cardinalities(
        shape: SenderShape,
        labelling: Labelling,
        sources: usize,
    ) -> (BTreeMap<String, usize>, usize) {
        let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut series = BTreeSet::new();
        for source in 0..sources {
            for SentSeries { labels, .. } in shape.series(source, labelling.form(source)) {
                for (name, value) in &labels {
                    values.entry(name.clone()).or_default().insert(value.clone());
                }
                series.insert(labels);
            }
        }
        (values.into_iter().map(|(name, values)| (name, values.len())).collect(), series.len())
    }

    #[test]
    fn series_are_distinct_sorted_and_as_many_as_claimed() {
        for shape in SenderShape::ALL {
            for labelling in [Labelling::Grouped, Labelling::Lone, Labelling::Mixed] {
                let sources = 24_000 / shape.series_per_source();
                let (_, distinct) = cardinalities(shape, labelling, sources);
                assert_eq!(
                    distinct,
                    sources * shape.series_per_source(),
                    "{shape:?} {labelling:?}"
                );
                for source in [0, 1, sources - 1] {
                    let form = labelling.form(source);
                    let label = shape.source_label(source, form);
                    for SentSeries { labels, .. } in shape.series(source, form) {
                        assert!(labels.is_sorted_by(|a, b| a.0 < b.0), "{labels:?}");
                        assert!(
                            labels
                                .iter()
                                .all(|(name, value)| !name.is_empty() && !value.is_empty())
                        );
                        assert!(labels.contains(&(label.0.to_owned(), label.1.clone())));
                    }
                }
            }
        }
    }

    #[test]
    fn only_grouped_sources_have_job_and_instance() {
        for shape in SenderShape::ALL {
            let (grouped, _) = cardinalities(shape, Labelling::Grouped, 40);
            let (lone, _) = cardinalities(shape, Labelling::Lone, 40);
            let (mixed, _) = cardinalities(shape, Labelling::Mixed, 40);
            for name in ["job", "instance"] {
                assert!(grouped.contains_key(name), "{shape:?}");
                assert!(!lone.contains_key(name), "{shape:?}");
                assert!(mixed.contains_key(name), "{shape:?}");
            }
            let both: BTreeSet<_> = grouped.keys().chain(lone.keys()).collect();
            assert!(mixed.keys().all(|name| both.contains(name)));
        }
    }

    #[test]
    fn the_shapes_are_those_of_their_senders() {
        let of = |shape, sources| cardinalities(shape, Labelling::Lone, sources).0;
        let tsbs = of(SenderShape::Tsbs, 1_000);
        let names: Vec<&str> = tsbs.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "__name__",
                "arch",
                "datacenter",
                "hostname",
                "os",
                "rack",
                "region",
                "service",
                "service_environment",
                "service_version",
                "team"
            ]
        );
        assert_eq!((tsbs["__name__"], tsbs["hostname"], tsbs["rack"]), (101, 1_000, 100));
        assert_eq!(
            (tsbs["region"], tsbs["datacenter"], tsbs["service"], tsbs["team"]),
            (9, 27, 20, 4)
        );

        let telegraf = of(SenderShape::Telegraf, 100);
        assert_eq!((telegraf["host"], telegraf["cpu"], telegraf["interface"]), (100, 5, 2));
        assert_eq!((telegraf["dc"], telegraf["path"], telegraf["name"]), (6, 3, 2));

        let otlp = of(SenderShape::Otlp, 400);
        assert_eq!((otlp["service_instance_id"], otlp["service_name"]), (400, 25));
        assert_eq!((otlp["le"], otlp["http_route"], otlp["service_namespace"]), (14, 4, 5));

        let node = of(SenderShape::Cadvisor, PODS_PER_NODE);
        assert_eq!((node["node"], node["pod"], node["container"]), (1, 100, 2));
        // Each container of each pod and each pod itself.
        assert_eq!(node["id"], 300);
        let cluster = of(SenderShape::Cadvisor, 5 * PODS_PER_NODE);
        assert_eq!((cluster["node"], cluster["namespace"]), (5, 40));

        let iot = of(SenderShape::Iot, 2_000);
        assert_eq!((iot["device_id"], iot["site"], iot["model"]), (2_000, 30, 4));

        let random = of(SenderShape::Random, 20_000);
        let attributes = random.keys().filter(|name| name.starts_with("attr_")).count();
        assert_eq!((random["key"], random["__name__"], attributes), (20_000, 40, 9 * 15));
    }

    #[test]
    fn clocks_are_shared_by_sources_containers_or_nobody() {
        let clocks = |shape: SenderShape, sources: usize| {
            let all = (0..sources).flat_map(|source| shape.series(source, LabelForm::Lone));
            all.map(|series| series.clock).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(clocks(SenderShape::Tsbs, 50), 1);
        assert_eq!(clocks(SenderShape::Telegraf, 50), 1);
        assert_eq!(clocks(SenderShape::Otlp, 50), 50);
        assert_eq!(clocks(SenderShape::Cadvisor, 50), 150);
        assert_eq!(clocks(SenderShape::Iot, 50), 50);
        assert_eq!(clocks(SenderShape::Random, 50), 50);
    }
}
