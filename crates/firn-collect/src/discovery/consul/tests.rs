use super::*;
use crate::config::Config;

fn targets(keys: &str) -> ConsulTargets {
    let text = format!("scrape_configs: [{{job_name: j, consul_sd_configs: [{{{keys}}}]}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let config = loaded.config.scrape_configs[0].discoveries.consul[0].clone();
    ConsulTargets::new(config, "job").unwrap()
}

#[test]
fn the_server_may_have_a_scheme_and_a_folder() {
    let f = |keys: &str| {
        let host = targets(keys).host().clone();
        format!("{} {}", host.base, host.unix_socket.unwrap_or_default())
    };
    assert_eq!(f(""), "http://localhost:8500 ");
    assert_eq!(f("server: 'c:1', scheme: https"), "https://c:1 ");
    assert_eq!(f("server: 'https://c:1', path_prefix: /a/b/"), "https://c:1/a/b ");
    assert_eq!(f("server: 'unix:///run/consul'"), "http://localhost /run/consul");
    let mut config = targets("").config().clone();
    config.server = "user:hunter2://x@c:1".to_owned();
    let error = ConsulTargets::new(config, "job").unwrap_err().to_string();
    assert!(error.contains("scheme \"\"") && !error.contains("hunter2"), "{error}");
}

#[test]
fn queries_have_the_parameters_of_the_configuration() {
    let plain = targets("");
    assert_eq!(plain.catalog_path(0, 120_000), "/v1/catalog/services?stale=&wait=120000ms");
    assert_eq!(
        plain.service_path("a/b c", 7, 120_000),
        "/v1/health/service/a%2Fb%20c?stale=&index=7&wait=120000ms"
    );
    assert!(plain.uses_catalog());
    assert_eq!(plain.refresh_ms(), 30_000);
    let all = targets(
        "datacenter: dc1, namespace: n, partition: p, allow_stale: false, services: [a], \
         tags: [x, 'y&z'], node_meta: {rack: '1', zone: b}, filter: 'Meta.a == b', \
         health_filter: 'Node.x == y'",
    );
    let shared = "dc=dc1&ns=n&partition=p&index=2&wait=5ms&node-meta=rack%3A1&node-meta=zone%3Ab";
    assert_eq!(
        all.catalog_path(2, 5),
        format!("/v1/catalog/services?{shared}&filter=Meta.a%20%3D%3D%20b")
    );
    assert_eq!(
        all.service_path("a", 2, 5),
        format!("/v1/health/service/a?{shared}&tag=x&tag=y%26z&filter=Node.x%20%3D%3D%20y")
    );
    for (keys, uses_catalog) in [
        ("services: [a]", false),
        ("services: [a], health_filter: x", false),
        ("services: [a], filter: x", true),
        ("services: [a], tags: [x]", true),
        ("tags: [x]", true),
    ] {
        assert_eq!(targets(keys).uses_catalog(), uses_catalog, "{keys}");
    }
}

#[test]
fn an_index_is_one_of_the_next_query() {
    for (last, header, want) in [
        (0, Some("5"), (5, true)),
        (5, Some("6"), (6, true)),
        (5, Some("5"), (5, false)),
        // The state of the server is another one, or it has no index.
        (5, Some("4"), (0, true)),
        (5, Some("0"), (0, true)),
        (0, Some("0"), (0, true)),
        (5, None, (0, true)),
        (5, Some("x"), (0, true)),
        (5, Some("99999999999999999999"), (0, true)),
    ] {
        assert_eq!(next_index(last, header), want, "{last} {header:?}");
    }
}

#[test]
fn the_catalog_is_filtered_by_names_and_all_tags() {
    let body = br#"{"a": ["x", "y"], "b": ["x"], "c": [], "d": null}"#;
    let f = |keys: &str| {
        let (names, held) = targets(keys).services(body, &Budget::unlimited()).unwrap();
        assert!(held.bytes() >= 100, "names are kept for long");
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(f(""), "a b c d");
    assert_eq!(f("tags: [x]"), "a b");
    assert_eq!(f("tags: [x, y]"), "a");
    assert_eq!(f("services: [b, d, e]"), "b d");
    assert_eq!(f("services: [b, c], tags: [x]"), "b");
    let error = |body: &[u8]| targets("").services(body, &Budget::unlimited()).unwrap_err();
    assert!(error(b"<html>").to_string().contains("json"));
    assert!(error(b"[]").to_string().contains("json"));
    // Before, the path of its query was made without a reservation.
    let long = format!("{{\"{}\": []}}", "%".repeat(20_000));
    assert!(error(long.as_bytes()).to_string().contains("has 20000 bytes"));
    // Before, names were kept in watches without a reservation.
    let names: Vec<String> = (0..20).map(|idx| format!("\"{idx:010000}\": []")).collect();
    let body = format!("{{{}}}", names.join(","));
    let read = |memory| targets("").services(body.as_bytes(), &Budget::unlimited().part(memory));
    assert!(read(600_000).is_err());
    assert!(read(1_200_000).is_ok());
}

#[test]
fn the_agent_names_its_data_centre() {
    let f = |body: &str| targets("").datacenter(body.as_bytes(), &Budget::unlimited());
    assert_eq!(f(r#"{"Config": {"Datacenter": "dc9", "X": 1}, "Member": {}}"#).unwrap(), "dc9");
    for body in ["{}", r#"{"Config": null}"#, r#"{"Config": {"Datacenter": 1}}"#, "<html>"] {
        assert!(f(body).is_err(), "{body}");
    }
    // Each group has a copy.
    let long = format!(r#"{{"Config": {{"Datacenter": "{}"}}}}"#, "x".repeat(1 << 20));
    let error = f(&long).unwrap_err().to_string();
    assert!(error.contains("1048576 bytes") && error.len() < 200, "{error}");
}

const INSTANCES: &str = r#"[
  {"Node": {"ID": "n", "Node": "node1", "Address": "10.1.0.1", "Datacenter": "dc1",
      "TaggedAddresses": {"lan": "10.1.0.1", "wan-ipv4": "1.2.3.4"}, "Meta": {"rack.no": "7"}},
    "Service": {"ID": "web-1", "Service": "web", "Tags": ["a", "b"], "Address": "",
      "Meta": {"version": "2"}, "Port": 8080, "Namespace": "", "Weights": {"Passing": 1}},
    "Checks": [{"CheckID": "serfHealth", "Status": "passing"},
      {"CheckID": "service:web-1", "Status": "warning"}]},
  {"Node": {"Node": "node2", "Address": "10.1.0.2", "TaggedAddresses": null, "Meta": null},
    "Service": {"ID": "web-2", "Tags": null, "Address": "fc00::2", "Meta": null, "Port": 0,
      "Namespace": "ns", "Partition": "part"},
    "Checks": []}
]"#;

#[test]
fn instances_are_targets() {
    let targets = targets("tag_separator: ';'");
    let budget = Budget::unlimited();
    let (group, held) = targets.group("web", "dc1", INSTANCES.as_bytes(), &budget).unwrap();
    assert!(held.bytes() >= super::super::heap_bytes(std::slice::from_ref(&group)) as u64);
    assert_eq!(
        group.labels.iter().collect::<Vec<_>>(),
        [("__meta_consul_dc", "dc1"), ("__meta_consul_service", "web")]
    );
    let labels = |idx: usize| group.targets[idx].iter().collect::<Vec<_>>();
    assert_eq!(
        labels(0),
        [
            ("__address__", "10.1.0.1:8080"),
            ("__meta_consul_address", "10.1.0.1"),
            ("__meta_consul_health", "warning"),
            ("__meta_consul_metadata_rack_no", "7"),
            ("__meta_consul_node", "node1"),
            ("__meta_consul_service_id", "web-1"),
            ("__meta_consul_service_metadata_version", "2"),
            ("__meta_consul_service_port", "8080"),
            ("__meta_consul_tagged_address_lan", "10.1.0.1"),
            ("__meta_consul_tagged_address_wan_ipv4", "1.2.3.4"),
            ("__meta_consul_tags", ";a;b;"),
        ]
    );
    assert_eq!(
        labels(1),
        [
            ("__address__", "[fc00::2]:0"),
            ("__meta_consul_address", "10.1.0.2"),
            ("__meta_consul_health", "passing"),
            ("__meta_consul_namespace", "ns"),
            ("__meta_consul_node", "node2"),
            ("__meta_consul_partition", "part"),
            ("__meta_consul_service_address", "fc00::2"),
            ("__meta_consul_service_id", "web-2"),
            ("__meta_consul_service_port", "0"),
            ("__meta_consul_tags", ";;"),
        ]
    );
}

#[test]
fn the_worst_check_is_the_health() {
    let f = |checks: &[(&str, &str)]| {
        let check = |(id, status): &(&str, &str)| Check {
            id: (*id).to_owned(),
            status: (*status).to_owned(),
        };
        health(&checks.iter().map(check).collect::<Vec<_>>())
    };
    assert_eq!(f(&[]), "passing");
    assert_eq!(f(&[("a", "warning"), ("b", "critical"), ("c", "passing")]), "critical");
    assert_eq!(f(&[("a", "critical"), ("_node_maintenance", "critical")]), "maintenance");
    assert_eq!(f(&[("_service_maintenance:web", "x")]), "maintenance");
    assert_eq!(f(&[("a", "critical"), ("b", "other")]), "");
}
