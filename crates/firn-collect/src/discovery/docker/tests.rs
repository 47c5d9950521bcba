use super::*;
use crate::config::Config;

fn targets(keys: &str) -> DockerTargets {
    let text = format!(
        "scrape_configs: [{{job_name: j, docker_sd_configs: [{{host: 'unix:///d', {keys}}}]}}]"
    );
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let config = loaded.config.scrape_configs[0].discoveries.docker[0].clone();
    DockerTargets::new(config, "job").unwrap()
}

const NETWORKS: &str = r#"[
  {"Name": "front", "Id": "net-f", "Scope": "local", "Internal": false, "Ingress": false,
    "Labels": {"com.docker.compose.project": "shop"}},
  {"Name": "back", "Id": "net-b", "Scope": "local", "Internal": true, "Labels": null},
  {"Name": "host", "Id": "net-h", "Scope": "local"}
]"#;

/// A container with more keys.
fn container(id: &str, mode: &str, ports: &str, networks: &str) -> String {
    format!(
        r#"{{"Id": "{id}", "Names": ["/{id}", "/other/alias"], "Image": "img:1",
            "ImageID": "sha256:1", "Command": "run", "Created": 1, "Ports": {ports},
            "Labels": {{"com.team": "a"}}, "State": "running",
            "HostConfig": {{"NetworkMode": "{mode}"}},
            "NetworkSettings": {{"Networks": {networks}}}, "Mounts": []}}"#
    )
}

fn groups(keys: &str, containers: &[String]) -> Result<DiscoveredGroup> {
    let containers = format!("[{}]", containers.join(","));
    let bodies = [containers.as_bytes(), NETWORKS.as_bytes()];
    let (group, held) = targets(keys).group(&bodies, &Budget::unlimited())?;
    assert!(held.bytes() >= super::super::heap_bytes(std::slice::from_ref(&group)) as u64);
    Ok(group)
}

fn addresses(keys: &str, containers: &[String]) -> String {
    let group = groups(keys, containers).unwrap();
    let address = |target: &LabelSet| target.get(ADDRESS).unwrap_or("-").to_owned();
    group.targets.iter().map(address).collect::<Vec<_>>().join(" ")
}

const FRONT: &str = r#"{"front": {"NetworkID": "net-f", "IPAddress": "172.18.0.2"}}"#;
const BOTH: &str = r#"{"front": {"NetworkID": "net-f", "IPAddress": "172.18.0.3"},
    "back": {"NetworkID": "net-b", "IPAddress": "172.19.0.3"}, "away": null}"#;
const WEB: &str = r#"[{"IP": "0.0.0.0", "PrivatePort": 80, "PublicPort": 8080, "Type": "tcp"},
    {"PrivatePort": 53, "Type": "udp"}, {"PrivatePort": 9100, "Type": "tcp"}]"#;

#[test]
fn each_port_of_tcp_is_a_target() {
    let group = groups("", &[container("web", "shop_front", WEB, FRONT)]).unwrap();
    assert_eq!(group.targets.len(), 2);
    assert_eq!(
        group.targets[0].iter().collect::<Vec<_>>(),
        [
            ("__address__", "172.18.0.2:80"),
            ("__meta_docker_container_id", "web"),
            ("__meta_docker_container_image", "img:1"),
            ("__meta_docker_container_image_id", "sha256:1"),
            ("__meta_docker_container_label_com_team", "a"),
            ("__meta_docker_container_name", "/web"),
            ("__meta_docker_container_network_mode", "shop_front"),
            ("__meta_docker_network_id", "net-f"),
            ("__meta_docker_network_ingress", "false"),
            ("__meta_docker_network_internal", "false"),
            ("__meta_docker_network_ip", "172.18.0.2"),
            ("__meta_docker_network_label_com_docker_compose_project", "shop"),
            ("__meta_docker_network_name", "front"),
            ("__meta_docker_network_scope", "local"),
            ("__meta_docker_port_private", "80"),
            ("__meta_docker_port_public", "8080"),
            ("__meta_docker_port_public_ip", "0.0.0.0"),
        ]
    );
    let second = &group.targets[1];
    assert_eq!(second.get(ADDRESS), Some("172.18.0.2:9100"));
    assert_eq!(second.get("__meta_docker_port_public"), None);
}

#[test]
fn a_container_without_ports_has_the_default_port() {
    let none = container("a", "bridge", "[]", FRONT);
    let udp = container("b", "bridge", r#"[{"PrivatePort": 53, "Type": "udp"}]"#, FRONT);
    let null = container("c", "bridge", "null", FRONT);
    assert_eq!(
        addresses("port: 9000", &[none, udp, null]),
        "172.18.0.2:9000 172.18.0.2:9000 172.18.0.2:9000"
    );
    let host = container("h", "host", "[]", r#"{"host": {"NetworkID": "net-h", "IPAddress": ""}}"#);
    assert_eq!(addresses("", std::slice::from_ref(&host)), "localhost");
    assert_eq!(addresses("host_networking_host: 'n:1'", &[host]), "n:1");
    let ipv6 = r#"{"x": {"NetworkID": "x", "IPAddress": "", "GlobalIPv6Address": "fc00::2"}}"#;
    assert_eq!(addresses("", &[container("v", "x", "[]", ipv6)]), "[fc00::2]:80");
}

#[test]
fn the_first_network_by_name_counts_unless_all_do() {
    let both = || [container("a", "front", "[]", BOTH)];
    assert_eq!(addresses("", &both()), "172.19.0.3:80");
    assert_eq!(addresses("match_first_network: false", &both()), "172.19.0.3:80 172.18.0.3:80");
    assert_eq!(addresses("", &[container("a", "none", "[]", "{}")]), "");
}

#[test]
fn a_container_may_use_the_networks_of_another_one() {
    let ports = r#"[{"PrivatePort": 9104, "Type": "tcp"}]"#;
    let containers = [
        container("exporter", "container:side", ports, "{}"),
        container("side", "container:main", "[]", "null"),
        container("main", "front", "[]", FRONT),
        container("lost", "container:gone", ports, "{}"),
        container("ring1", "container:ring2", ports, "{}"),
        container("ring2", "container:ring1", ports, "{}"),
    ];
    assert_eq!(addresses("", &containers), "172.18.0.2:9104 172.18.0.2:80 172.18.0.2:80");
    let group = groups("", &containers[..3]).unwrap();
    assert_eq!(group.targets[0].get("__meta_docker_network_name"), Some("front"));
}

#[test]
fn odd_containers_are_skipped_or_refused() {
    let nameless = r#"{"Id": "x", "Names": []}"#.to_owned();
    let bare = r#"{"Id": "x", "Names": ["/x"], "HostConfig": null, "NetworkSettings": null}"#;
    assert_eq!(addresses("", &[nameless, bare.to_owned(), "{}".to_owned()]), "");
    let unknown_network = r#"{"x": {"NetworkID": "gone", "IPAddress": "1.1.1.1"}}"#;
    assert_eq!(addresses("", &[container("a", "x", "[]", unknown_network)]), "1.1.1.1:80");
    for wrong in [
        "null".to_owned(),
        container("a", "x", r#"[{"PrivatePort": 70000}]"#, "{}"),
        container("a", "x", "{}", "{}"),
    ] {
        assert!(groups("", &[wrong]).is_err());
    }
    let error = targets("").group(&[b"<html>", b"[]"], &Budget::unlimited()).unwrap_err();
    assert!(error.to_string().contains("json"), "{error}");
    assert!(targets("").group(&[b"[]"], &Budget::unlimited()).is_err());
}

// Labels of a container are those of each of its ports and networks.
#[test]
fn targets_without_memory_are_a_failed_refresh() {
    let ports: Vec<String> =
        (1..5_000).map(|port| format!(r#"{{"PrivatePort": {port}, "Type": "tcp"}}"#)).collect();
    let ports = format!("[{}]", ports.join(","));
    let body = format!("[{}]", container("a", "front", &ports, FRONT));
    let bodies = [body.as_bytes(), NETWORKS.as_bytes()];
    let read = |memory: u64| targets("").group(&bodies, &Budget::unlimited().part(memory));
    assert!(read(4 << 20).is_err());
    assert_eq!(read(64 << 20).unwrap().0.targets.len(), 4_999);
}

#[test]
fn requests_have_filters_and_a_version() {
    assert_eq!(targets("").paths(), ["/containers/json", "/networks"]);
    let filters = "filters: [{name: name, values: [b, a]}, {name: label, values: ['x=y']}, \
                   {name: name, values: [c]}, {name: none, values: []}]";
    // {"label":{"x=y":true},"name":{"a":true,"b":true,"c":true}}
    assert_eq!(
        targets(filters).paths()[0],
        "/containers/json?filters=%7B%22label%22%3A%7B%22x%3Dy%22%3Atrue%7D%2C%22name%22%3A%7B\
         %22a%22%3Atrue%2C%22b%22%3Atrue%2C%22c%22%3Atrue%7D%7D"
    );
    for (version, want) in [
        (Some("1.44"), "/v1.44"),
        (Some(" 1.51\t"), "/v1.51"),
        (None, "/v1.24"),
        (Some("x/../y"), "/v1.24"),
        (Some("1."), "/v1.24"),
        (Some("12345.1"), "/v1.24"),
    ] {
        assert_eq!(version_folder(version), want, "{version:?}");
    }
}

#[test]
fn a_daemon_is_behind_a_socket_or_at_an_address() {
    for (url, base, socket) in [
        ("unix:///var/run/docker.sock", "http://localhost", Some("/var/run/docker.sock")),
        ("tcp://h:2375", "http://h:2375", None),
        ("http://h:1/folder/", "http://h:1/folder", None),
        ("https://[::1]:2376", "https://[::1]:2376", None),
    ] {
        let host = daemon(&Url::parse(url).unwrap(), "key", "job").unwrap();
        assert_eq!((host.base.as_str(), host.unix_socket.as_deref()), (base, socket), "{url}");
    }
    for url in ["user:hunter2@h:2375", "ftp://user:hunter2@h", "tcp:user:hunter2@h"] {
        let error = daemon(&Url::parse(url).unwrap(), "key", "job").unwrap_err().to_string();
        assert!(error.contains("expected an address") && !error.contains("hunter2"), "{error}");
    }
}
