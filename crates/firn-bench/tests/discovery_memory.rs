//! The memory of discoveries is counted: hostile answers take no more bytes than they reserve.

use std::path::Path;

use firn_bench::index::counting::{
    Counting, compare_with, live_bytes, peak_bytes, reset_peak, reset_unreserved_peak,
    unreserved_bytes, unreserved_peak,
};
use firn_collect::config::discovery::TargetGroup;
use firn_collect::config::{Config, Files};
use firn_collect::discovery::{
    ConsulTargets, DockerTargets, HttpTargets, ObjectList, Provider, Resource, SwarmTargets,
    WatchEvent,
};
use firn_model::{Budget, Result};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BODY_BYTES: usize = 256 << 10;
// A tree of YAML takes a hundred times more.
const YAML_BYTES: usize = 64 << 10;
/// Blocks between two comparisons, and the texts of errors.
const SLACK_BYTES: i64 = 128 << 10;
// The longest list of a tree while it is copied.
const YAML_SLACK_PERCENT: i64 = 16;

/// One file of target groups.
struct OneFile<'t> {
    text: &'t str,
    budget: Budget,
}

impl Files for OneFile<'_> {
    fn read(&self, _path: &Path) -> std::io::Result<String> {
        Ok(self.text.to_owned())
    }

    fn list(&self, _folder: &Path) -> std::io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn budget(&self) -> Budget {
        self.budget.clone()
    }

    fn bytes(&self, _path: &Path) -> u64 {
        self.text.len() as u64
    }
}

struct Readers {
    consul: ConsulTargets,
    docker: DockerTargets,
    swarms: Vec<SwarmTargets>,
    http: HttpTargets,
}

fn readers() -> Readers {
    let text = "scrape_configs: [{job_name: j, consul_sd_configs: [{}], \
                docker_sd_configs: [{host: 'tcp://h:1', match_first_network: false}], \
                dockerswarm_sd_configs: [{host: 'tcp://h:1', role: services}, \
                {host: 'tcp://h:1', role: tasks}, {host: 'tcp://h:1', role: nodes}], \
                http_sd_configs: [{url: 'http://h/list'}]}]";
    let loaded = Config::parse(text, &|_| None).expect("a right configuration");
    let discoveries = &loaded.config.scrape_configs[0].discoveries;
    let (mut consul, mut docker, mut swarms, mut http) = (None, None, Vec::new(), None);
    for provider in Provider::all_of(discoveries, "job").expect("supported discoveries") {
        match provider {
            Provider::Consul(targets) => consul = Some(*targets),
            Provider::Docker(targets) => docker = Some(*targets),
            Provider::Swarm(targets) => swarms.push(*targets),
            Provider::Http(config) => http = Some(HttpTargets::new(*config)),
            _ => {}
        }
    }
    Readers {
        consul: consul.expect("a section"),
        docker: docker.expect("a section"),
        swarms,
        http: http.expect("a section"),
    }
}

/// Answers with a list at `@`, by their reader.
const SHAPES: [(&str, &str); 33] = [
    ("http", "@"),
    ("http", r#"[{"targets": @}]"#),
    ("http", r#"[{"labels": @}]"#),
    ("json", "@"),
    ("yml", "@"),
    ("consul", "@"),
    ("consul", r#"[{"Checks": @}]"#),
    ("consul", r#"[{"Service": {"Tags": @}}]"#),
    ("consul services", r#"{"a": @}"#),
    ("docker", "@"),
    ("docker", r#"[{"Names": ["/a"], "Ports": @}]"#),
    ("docker", r#"[{"Names": @}]"#),
    ("docker", r#"[{"Names": ["/a"], "NetworkSettings": {"Networks": @}}]"#),
    ("swarm", "@"),
    ("swarm", r#"[{"Spec": @}]"#),
    ("swarm", r#"[{"Endpoint": {"Ports": @}}]"#),
    ("swarm", r#"[{"Endpoint": {"VirtualIPs": @}}]"#),
    ("swarm", r#"[{"Spec": {"ContainerSpec": @}, "NetworksAttachments": @}]"#),
    ("swarm", r#"[{"Status": {"PortStatus": {"Ports": @}}, "NetworksAttachments": []}]"#),
    ("pods", r#"{"metadata": {}, "items": @}"#),
    ("pods", r#"{"items": [{"metadata": {"name": "p", "ownerReferences": @}}]}"#),
    ("pods", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"containers": @}}]}"#),
    ("pods", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"containers": [{"ports": @}]}}]}"#),
    ("pods", r#"{"items": [{"metadata": {"name": "p"}, "status": {"containerStatuses": @}}]}"#),
    ("services", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"ports": @}}]}"#),
    ("services", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"ipFamilies": @}}]}"#),
    ("ingresses", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"rules": @}}]}"#),
    ("ingresses", r#"{"items": [{"metadata": {"name": "p"}, "spec": {"tls": @}}]}"#),
    ("endpoints", r#"{"items": [{"metadata": {"name": "p"}, "subsets": @}]}"#),
    ("endpoints", r#"{"items": [{"metadata": {"name": "p"}, "subsets": [{"addresses": @}]}]}"#),
    ("slices", r#"{"items": [{"metadata": {"name": "p"}, "endpoints": @}]}"#),
    ("slices", r#"{"items": [{"metadata": {"name": "p"}, "ports": @}]}"#),
    ("event", r#"{"type": "ADDED", "object": {"metadata": {"name": "p"}, "endpoints": @}}"#),
];

/// Items of the lists.
const ITEMS: [&str; 9] = ["[]", "{}", "\"\"", "null", "0", "[[]]", "[\"\"]", "{\"\":\"\"}", "[{}]"];

fn read(readers: &Readers, reader: &str, body: &str, budget: &Budget) -> Result<()> {
    let bytes = body.as_bytes();
    let page = |resource| ObjectList::default().add_page(resource, bytes, budget).map(drop);
    match reader {
        "http" => {
            let json = Some("application/json");
            readers.http.groups("200 OK", json, bytes, budget).map(drop)
        }
        "json" | "yml" => {
            let path = format!("x.{reader}");
            let file = OneFile { text: body, budget: budget.clone() };
            TargetGroup::read_file(Path::new(&path), &file).map(drop)
        }
        "consul" => readers.consul.group("s", "dc", bytes, budget).map(drop),
        "consul services" => readers.consul.services(bytes, budget).map(drop),
        "docker" => readers.docker.group(&[bytes, b"[]"], budget).map(drop),
        "swarm" => {
            for swarm in &readers.swarms {
                // The number of answers is that of the role.
                for count in 1..=4 {
                    let mut bodies = [&b"[]"[..]; 4];
                    bodies[0] = bytes;
                    swarm.group(&bodies[..count], budget).ok();
                }
            }
            Ok(())
        }
        "pods" => page(Resource::Pods),
        "services" => page(Resource::Services),
        "ingresses" => page(Resource::Ingresses),
        "endpoints" => page(Resource::Endpoints),
        "slices" => page(Resource::EndpointSlices),
        "event" => WatchEvent::parse(Resource::EndpointSlices, bytes, budget).map(drop),
        other => panic!("no reader {other}"),
    }
}

#[test]
fn hostile_answers_reserve_the_memory_that_they_take() {
    let budget = Budget::new(8 << 30);
    let usage = budget.clone();
    compare_with(move || usage.usage().used_bytes);
    let readers = readers();
    let mut beyond = Vec::new();
    for (reader, shape) in SHAPES {
        let is_yaml = reader == "yml";
        let body_bytes = if is_yaml { YAML_BYTES } else { BODY_BYTES };
        let list_of = |item: &'static str| {
            let count = body_bytes / (item.len() + 1);
            (item, format!("[{}{item}]", format!("{item},").repeat(count)))
        };
        // Errors write each of these characters as eight.
        let text = format!("\"{}\"", "\u{200b}".repeat(body_bytes / 3));
        let texts = [("a text", text.clone()), ("a list of a text", format!("[{text}]"))];
        for (item, value) in ITEMS.into_iter().map(list_of).chain(texts) {
            let body = shape.replace('@', &value);
            let (live, unreserved) = (live_bytes(), unreserved_bytes());
            reset_peak();
            reset_unreserved_peak();
            let is_read = read(&readers, reader, &body, &budget).is_ok();
            let taken = (peak_bytes() - live) as i64;
            let more = unreserved_peak() - unreserved;
            println!("{reader} {shape} of {item}: {taken} taken, {more} beyond, read: {is_read}");
            let percent = if is_yaml { YAML_SLACK_PERCENT } else { 0 };
            if more > SLACK_BYTES + taken * percent / 100 {
                beyond.push(format!("{reader} {shape} of {item}: {more} of {taken}"));
            }
            assert_eq!(budget.usage().used_bytes, 0, "memory is released");
        }
    }
    assert!(beyond.is_empty(), "bytes that are not reserved: {beyond:#?}");
}
