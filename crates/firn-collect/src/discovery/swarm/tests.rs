use super::*;
use crate::config::Config;

fn targets(keys: &str) -> SwarmTargets {
    let text = format!(
        "scrape_configs: [{{job_name: j, dockerswarm_sd_configs: [{{host: 'tcp://m:1', {keys}}}]}}]"
    );
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let config = loaded.config.scrape_configs[0].discoveries.dockerswarm[0].clone();
    SwarmTargets::new(config, "job").unwrap()
}

fn read(keys: &str, bodies: &[&str]) -> Result<Vec<LabelSet>> {
    let bodies: Vec<&[u8]> = bodies.iter().map(|body| body.as_bytes()).collect();
    let (group, held) = targets(keys).group(&bodies, &Budget::unlimited())?;
    assert!(held.bytes() >= super::super::heap_bytes(std::slice::from_ref(&group)) as u64);
    Ok(group.targets)
}

fn labels(target: &LabelSet) -> Vec<String> {
    let short = |(name, value): (&str, &str)| {
        format!("{}={value}", name.strip_prefix(PREFIX).unwrap_or(name))
    };
    target.iter().map(short).collect()
}

const NODES: &str = r#"[
  {"ID": "n1", "Version": {"Index": 9}, "Spec": {"Labels": {"disk.kind": "ssd"}, "Role": "manager",
      "Availability": "active"},
    "Description": {"Hostname": "host1", "Platform": {"Architecture": "x86_64", "OS": "linux"},
      "Engine": {"EngineVersion": "27.0.1", "Plugins": []}},
    "Status": {"State": "ready", "Addr": "10.0.0.1"},
    "ManagerStatus": {"Leader": true, "Reachability": "reachable", "Addr": "10.0.0.1:2377"}},
  {"ID": "n2", "Spec": {"Labels": {}, "Role": "worker", "Availability": "drain"},
    "Description": {"Hostname": "host2"}, "Status": {"State": "down", "Addr": "fc00::2"}}
]"#;

const NETWORKS: &str = r#"[
  {"Name": "ingress", "Id": "net-i", "Scope": "swarm", "Internal": false, "Ingress": true,
    "Labels": {}},
  {"Name": "app", "Id": "net-a", "Scope": "swarm", "Internal": true, "Ingress": false,
    "Labels": {"team": "x"}}
]"#;

const SERVICES: &str = r#"[
  {"ID": "s1", "Spec": {"Name": "web", "Labels": {"com.job": "web"},
      "TaskTemplate": {"ContainerSpec": {"Image": "web:1", "Hostname": "web", "Labels": {}}},
      "Mode": {"Replicated": {"Replicas": 2}}},
    "Endpoint": {"Ports": [
        {"Name": "http", "Protocol": "tcp", "TargetPort": 80, "PublishedPort": 8080,
          "PublishMode": "ingress"},
        {"Protocol": "udp", "TargetPort": 53, "PublishedPort": 53, "PublishMode": "ingress"}],
      "VirtualIPs": [{"NetworkID": "net-i", "Addr": "10.255.0.5/16"},
        {"NetworkID": "net-a", "Addr": "10.0.1.2/24"}]},
    "UpdateStatus": {"State": "completed"}},
  {"ID": "s2", "Spec": {"Name": "agent", "Labels": null,
      "TaskTemplate": {"PluginSpec": {"Name": "p"}}, "Mode": {"Global": {}}},
    "Endpoint": {"VirtualIPs": [{"NetworkID": "net-a", "Addr": "10.0.1.9/24"}]}},
  {"ID": "s3", "Spec": {"Name": "hostmode", "Mode": {"ReplicatedJob": {}}}, "Endpoint": {}}
]"#;

const TASKS: &str = r#"[
  {"ID": "t1", "Slot": 2, "ServiceID": "s1", "NodeID": "n1", "DesiredState": "running",
    "Spec": {"ContainerSpec": {"Labels": {"x-y": "1"}}},
    "Status": {"State": "running", "ContainerStatus": {"ContainerID": "c1", "PID": 7},
      "PortStatus": {"Ports": [
        {"Protocol": "tcp", "TargetPort": 80, "PublishedPort": 32768, "PublishMode": "host"},
        {"Protocol": "udp", "TargetPort": 53, "PublishedPort": 32769, "PublishMode": "host"}]}},
    "NetworksAttachments": [{"Network": {"ID": "net-a"}, "Addresses": ["10.0.1.3/24"]}]},
  {"ID": "t2", "ServiceID": "s2", "NodeID": "n2", "DesiredState": "shutdown",
    "Spec": {"PluginSpec": {}}, "Status": {"State": "failed", "PortStatus": {}},
    "NetworksAttachments": [{"Network": {"ID": "net-a"}, "Addresses": ["10.0.1.10/24"]}]},
  {"ID": "t3", "ServiceID": "s1", "NodeID": "n2", "DesiredState": "running", "Spec": {},
    "Status": {"State": "pending"}, "NetworksAttachments": null}
]"#;

#[test]
fn nodes_are_targets() {
    let found = read("role: nodes, port: 9323", &[NODES]).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(
        labels(&found[0]),
        [
            "__address__=10.0.0.1:9323",
            "node_address=10.0.0.1",
            "node_availability=active",
            "node_engine_version=27.0.1",
            "node_hostname=host1",
            "node_id=n1",
            "node_label_disk_kind=ssd",
            "node_manager_address=10.0.0.1:2377",
            "node_manager_leader=true",
            "node_manager_reachability=reachable",
            "node_platform_architecture=x86_64",
            "node_platform_os=linux",
            "node_role=manager",
            "node_status=ready",
        ]
    );
    assert_eq!(found[1].get(ADDRESS), Some("[fc00::2]:9323"));
    assert_eq!(found[1].get("__meta_dockerswarm_node_manager_leader"), None);
}

#[test]
fn addresses_of_services_are_targets() {
    let found = read("role: services", &[SERVICES, NETWORKS]).unwrap();
    let addresses: Vec<_> = found.iter().map(|target| target.get(ADDRESS).unwrap()).collect();
    assert_eq!(addresses, ["10.255.0.5:8080", "10.0.1.2:8080", "10.0.1.9:80"]);
    assert_eq!(
        labels(&found[0]),
        [
            "__address__=10.255.0.5:8080",
            "network_id=net-i",
            "network_ingress=true",
            "network_internal=false",
            "network_name=ingress",
            "network_scope=swarm",
            "service_endpoint_port_name=http",
            "service_endpoint_port_publish_mode=ingress",
            "service_id=s1",
            "service_label_com_job=web",
            "service_mode=replicated",
            "service_name=web",
            "service_task_container_hostname=web",
            "service_task_container_image=web:1",
            "service_updating_status=completed",
        ]
    );
    assert_eq!(
        labels(&found[2]),
        [
            "__address__=10.0.1.9:80",
            "network_id=net-a",
            "network_ingress=false",
            "network_internal=true",
            "network_label_team=x",
            "network_name=app",
            "network_scope=swarm",
            "service_id=s2",
            "service_mode=global",
            "service_name=agent",
        ]
    );
}

#[test]
fn ports_and_networks_of_tasks_are_targets() {
    let found = read("role: tasks", &[TASKS, NETWORKS, SERVICES, NODES]).unwrap();
    let addresses: Vec<_> = found.iter().map(|target| target.get(ADDRESS).unwrap()).collect();
    assert_eq!(addresses, ["10.0.0.1:32768", "10.0.1.3:8080", "10.0.1.10:80"]);
    let shared = [
        "node_address=10.0.0.1",
        "node_availability=active",
        "node_hostname=host1",
        "node_id=n1",
        "node_label_disk_kind=ssd",
        "node_platform_architecture=x86_64",
        "node_platform_os=linux",
        "node_role=manager",
        "node_status=ready",
        "service_id=s1",
        "service_label_com_job=web",
        "service_mode=replicated",
        "service_name=web",
        "task_container_id=c1",
        "task_desired_state=running",
        "task_id=t1",
    ];
    let end = ["task_slot=2", "task_state=running"];
    let network = [
        "network_id=net-a",
        "network_ingress=false",
        "network_internal=true",
        "network_label_team=x",
        "network_name=app",
        "network_scope=swarm",
    ];
    let want = [
        &["__address__=10.0.0.1:32768", "container_label_x_y=1"][..],
        &shared,
        &["task_port_publish_mode=host"],
        &end,
    ];
    assert_eq!(labels(&found[0]), want.concat());
    let want = [
        &["__address__=10.0.1.3:8080", "container_label_x_y=1"][..],
        &network,
        &shared,
        &["task_port_publish_mode=ingress"],
        &end,
    ];
    // Labels are in order of names.
    let mut want = want.concat();
    want[1..].sort_unstable();
    assert_eq!(labels(&found[1]), want);
    assert_eq!(found[2].get("__meta_dockerswarm_task_slot"), Some("0"));
    assert_eq!(found[2].get("__meta_dockerswarm_task_container_id"), None);
}

#[test]
fn filters_select_objects_of_the_role() {
    let filters = "filters: [{name: name, values: [a]}]";
    let query = "?filters=%7B%22name%22%3A%7B%22a%22%3Atrue%7D%7D";
    let f = |role: &str| targets(&format!("role: {role}, {filters}")).paths();
    assert_eq!(f("nodes"), [format!("/nodes{query}")]);
    assert_eq!(f("services"), [format!("/services{query}"), "/networks".to_owned()]);
    let others = ["/networks", "/services", "/nodes"].map(str::to_owned);
    assert_eq!(f("tasks"), [&[format!("/tasks{query}")][..], &others].concat());
}

#[test]
fn malformed_answers_are_refused() {
    let service =
        |address: &str| format!(r#"[{{"Endpoint": {{"VirtualIPs": [{{"Addr": "{address}"}}]}}}}]"#);
    for address in ["", "10.0.0.1", "10.0.0.1/33", "x/24", "10.0.0.1/-1"] {
        let error = read("role: services", &[&service(address), "[]"]).unwrap_err().to_string();
        assert!(error.contains("error while parsing address"), "{error}");
    }
    assert_eq!(read("role: services", &[&service("fc00::1/64"), "[]"]).unwrap().len(), 1);
    // A daemon that is no manager.
    let refusal = r#"{"message": "This node is not a swarm manager."}"#;
    assert!(read("role: nodes", &[refusal]).unwrap_err().to_string().contains("expected a list"));
    assert!(read("role: tasks", &["[]", "[]"]).unwrap().is_empty());
}

// Each task has the labels of its service and of its node.
#[test]
fn labels_of_tasks_are_within_memory() {
    let long = "x".repeat(100_000);
    let services = format!(r#"[{{"ID": "s", "Spec": {{"Name": "{long}"}}}}]"#);
    let task = r#"{"ServiceID": "s", "NetworksAttachments": [{"Addresses": ["10.0.0.1/8"]}]}"#;
    let tasks = format!("[{}]", vec![task; 1_000].join(","));
    let bodies = [tasks.as_bytes(), b"[]", services.as_bytes(), b"[]"];
    let read =
        |memory: u64| targets("role: tasks").group(&bodies, &Budget::unlimited().part(memory));
    assert!(read(10 << 20).is_err());
    assert_eq!(read(200 << 20).unwrap().0.targets.len(), 1_000);
}
