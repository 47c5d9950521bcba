use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use firn_model::{Budget, Error};

use super::access::in_cluster;
use super::*;
use crate::config::discovery::KubernetesDiscovery;
use crate::config::{Config, Files, LabelSet};
use crate::pool::DiscoveredGroup;

fn config(keys: &str) -> KubernetesDiscovery {
    let text = format!("scrape_configs: [{{job_name: j, kubernetes_sd_configs: [{{{keys}}}]}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    loaded.config.scrape_configs[0].discoveries.kubernetes[0].clone()
}

/// A cluster with the objects of each watch in the order of [`WatchSpec::all_of`].
fn state(keys: &str, lists: &[&str]) -> ClusterState {
    let config = config(keys);
    let specs = WatchSpec::all_of(&config, None);
    assert_eq!(specs.len(), lists.len(), "{specs:?}");
    let mut state = ClusterState::new(&config, specs.clone());
    for (idx, (spec, items)) in specs.iter().zip(lists).enumerate() {
        assert!(!state.is_complete());
        let body = format!(r#"{{"metadata": {{"resourceVersion": "7"}}, "items": [{items}]}}"#);
        let mut list = ObjectList::default();
        let budget = Budget::unlimited();
        let end = list.add_page(spec.resource, body.as_bytes(), &budget).unwrap();
        assert_eq!((end.version.as_str(), end.next.as_str()), ("7", ""));
        state.set_list(idx, list);
    }
    assert!(state.is_complete());
    state
}

fn groups(keys: &str, lists: &[&str]) -> Vec<DiscoveredGroup> {
    let (groups, held) = state(keys, lists).groups(&Budget::unlimited()).unwrap();
    assert!(held.bytes() as usize >= super::super::heap_bytes(&groups));
    groups
}

/// All labels of the targets of the only group, without the common prefix.
fn labels_of(groups: &[DiscoveredGroup]) -> (Vec<String>, Vec<Vec<String>>) {
    let [group] = groups else { panic!("{groups:?}") };
    let text = |labels: &LabelSet| {
        let label = |(name, value): (&str, &str)| {
            format!("{}={value}", name.strip_prefix("__meta_kubernetes_").unwrap_or(name))
        };
        labels.iter().map(label).collect::<Vec<_>>()
    };
    (text(&group.labels), group.targets.iter().map(text).collect())
}

const POD: &str = r#"{
    "metadata": {
        "name": "web-7d4b-x2x", "namespace": "shop", "uid": "u-1", "resourceVersion": "41",
        "labels": {"app.kubernetes.io/name": "web"}, "annotations": {"prometheus.io/scrape": "yes"},
        "ownerReferences": [
            {"kind": "Thing", "name": "t"},
            {"kind": "ReplicaSet", "name": "web-7d4b", "controller": true}
        ],
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}]
    },
    "spec": {
        "nodeName": "n1",
        "containers": [
            {"name": "web", "image": "web:1", "ports": [
                {"name": "http", "containerPort": 80, "protocol": "TCP"},
                {"name": "admin", "containerPort": 81, "protocol": "TCP"}
            ]},
            {"name": "log", "image": "log:2", "ports": null}
        ],
        "initContainers": [{"name": "init", "image": "init:3"}]
    },
    "status": {
        "podIP": "fd00::5", "hostIP": "10.0.0.1", "phase": "Running",
        "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "web", "containerID": "cri://1"}],
        "initContainerStatuses": [{"name": "init", "containerID": "cri://0"}]
    }
}"#;

const POD_LABELS: [&str; 13] = [
    "pod_annotation_prometheus_io_scrape=yes",
    "pod_annotationpresent_prometheus_io_scrape=true",
    "pod_controller_kind=ReplicaSet",
    "pod_controller_name=web-7d4b",
    "pod_host_ip=10.0.0.1",
    "pod_ip=fd00::5",
    "pod_label_app_kubernetes_io_name=web",
    "pod_labelpresent_app_kubernetes_io_name=true",
    "pod_name=web-7d4b-x2x",
    "pod_node_name=n1",
    "pod_phase=Running",
    "pod_ready=true",
    "pod_uid=u-1",
];

const NODE: &str = r#"{
    "metadata": {"name": "n1", "labels": {"topology/zone": "a"}, "annotations": null},
    "spec": {"providerID": "aws:///a/i-1"},
    "status": {
        "addresses": [
            {"type": "Hostname", "address": "n1.local"}, {"type": "ExternalIP", "address": "1.2.3.4"},
            {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"}
        ],
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "Unknown"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}
    }
}"#;

const SERVICE: &str = r#"{
    "metadata": {"name": "web", "namespace": "shop", "labels": {"team": "x"}},
    "spec": {
        "type": "LoadBalancer", "clusterIP": "10.96.0.7", "loadBalancerIP": "5.6.7.8",
        "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]
    }
}"#;

#[test]
fn a_node_is_its_kubelet() {
    let (common, targets) = labels_of(&groups("role: node", &[NODE]));
    assert_eq!(
        common,
        [
            "node_condition_memorypressure=false",
            "node_condition_ready=unknown",
            "node_label_topology_zone=a",
            "node_labelpresent_topology_zone=true",
            "node_name=n1",
            "node_provider_id=aws:///a/i-1",
        ]
    );
    assert_eq!(
        targets,
        [[
            "__address__=10.0.0.1:10250",
            "node_address_ExternalIP=1.2.3.4",
            "node_address_Hostname=n1.local",
            "node_address_InternalIP=10.0.0.1",
            "instance=n1",
        ]]
    );
    let no_address = r#"{"metadata": {"name": "n2"}, "status": {"addresses": null}}"#;
    assert!(groups("role: node", &[no_address]).is_empty());
}

#[test]
fn a_pod_has_a_target_for_each_port() {
    let (common, targets) = labels_of(&groups("role: pod", &[POD]));
    let mut want = POD_LABELS.to_vec();
    want.insert(0, "namespace=shop");
    assert_eq!(common, want);
    let port = |name: &str, number: &str| {
        vec![
            format!("__address__=[fd00::5]:{number}"),
            "pod_container_id=cri://1".to_owned(),
            "pod_container_image=web:1".to_owned(),
            "pod_container_init=false".to_owned(),
            "pod_container_name=web".to_owned(),
            format!("pod_container_port_name={name}"),
            format!("pod_container_port_number={number}"),
            "pod_container_port_protocol=TCP".to_owned(),
        ]
    };
    let plain = |name: &str, image: &str, id: &str, is_init: bool| {
        vec![
            "__address__=fd00::5".to_owned(),
            format!("pod_container_id={id}"),
            format!("pod_container_image={image}"),
            format!("pod_container_init={is_init}"),
            format!("pod_container_name={name}"),
        ]
    };
    let log = plain("log", "log:2", "", false);
    let init = plain("init", "init:3", "cri://0", true);
    assert_eq!(targets, [port("http", "80"), port("admin", "81"), log, init]);
    let no_ip = r#"{"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [{}]}}"#;
    assert!(groups("role: pod", &[no_ip]).is_empty());
}

#[test]
fn metadata_of_related_objects_is_attached() {
    let namespace = r#"{"metadata": {"name": "shop", "labels": {"env": "prod"}}}"#;
    let replicas = r#"{"metadata": {"name": "web-7d4b", "namespace": "shop", "ownerReferences":
        [{"kind": "Deployment", "name": "web", "controller": true}]}}"#;
    let keys = "role: pod, attach_metadata: \
                {node: true, namespace: true, deployment: true, job: true, cronjob: true}";
    let (common, _) = labels_of(&groups(keys, &[POD, NODE, namespace, replicas, ""]));
    for want in [
        "node_label_topology_zone=a",
        "node_name=n1",
        "namespace_label_env=prod",
        "namespace_labelpresent_env=true",
        "pod_deployment_name=web",
    ] {
        assert!(common.iter().any(|label| label == want), "{want}: {common:?}");
    }
    assert!(!common.iter().any(|label| label.starts_with("node_provider_id")), "{common:?}");
    let pod = POD.replace("ReplicaSet", "Job").replace("\"web-7d4b\"", "\"tidy-1\"");
    let job = r#"{"metadata": {"name": "tidy-1", "namespace": "shop", "ownerReferences":
        [{"kind": "CronJob", "name": "tidy", "controller": true}]}}"#;
    let (common, _) = labels_of(&groups(keys, &[&pod, NODE, namespace, "", job]));
    for want in ["pod_job_name=tidy-1", "pod_cronjob_name=tidy"] {
        assert!(common.iter().any(|label| label == want), "{want}: {common:?}");
    }
}

#[test]
fn a_service_has_a_target_for_each_port() {
    let (common, targets) = labels_of(&groups("role: service", &[SERVICE]));
    assert_eq!(
        common,
        [
            "namespace=shop",
            "service_label_team=x",
            "service_labelpresent_team=true",
            "service_name=web",
        ]
    );
    let port = [
        "__address__=web.shop.svc:80",
        "service_cluster_ip=10.96.0.7",
        "service_loadbalancer_ip=5.6.7.8",
        "service_port_name=http",
        "service_port_number=80",
        "service_port_protocol=TCP",
        "service_type=LoadBalancer",
    ];
    assert_eq!(targets, [port]);
    let other = SERVICE.replace("LoadBalancer", "ExternalName");
    let (_, targets) = labels_of(&groups("role: service", &[&other]));
    assert!(targets[0].contains(&"service_external_name=".to_owned()), "{targets:?}");
    assert!(!targets[0].iter().any(|label| label.starts_with("service_cluster_ip")));
}

const ENDPOINTS: &str = r#"{
    "metadata": {"name": "web", "namespace": "shop", "labels": {"e": "f"}},
    "subsets": [{
        "addresses": [
            {"ip": "fd00::5", "nodeName": "n1",
             "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-7d4b-x2x"}},
            {"ip": "10.9.9.9", "hostname": "h", "targetRef": null}
        ],
        "notReadyAddresses": [{"ip": "10.9.9.8"}],
        "ports": [{"name": "http", "port": 80, "protocol": "UDP"}]
    }]
}"#;

#[test]
fn endpoints_have_their_service_and_pods() {
    let groups = groups("role: endpoints", &[ENDPOINTS, SERVICE, POD]);
    let (common, targets) = labels_of(&groups);
    assert_eq!(
        common,
        [
            "endpoints_label_e=f",
            "endpoints_labelpresent_e=true",
            "endpoints_name=web",
            "namespace=shop",
            "service_label_team=x",
            "service_labelpresent_team=true",
            "service_name=web",
        ]
    );
    assert_eq!(targets.len(), 4);
    let of_pod = [
        "__address__=[fd00::5]:80",
        "endpoint_address_target_kind=Pod",
        "endpoint_address_target_name=web-7d4b-x2x",
        "endpoint_node_name=n1",
        "endpoint_port_name=http",
        "endpoint_port_protocol=UDP",
        "endpoint_ready=true",
        "pod_container_image=web:1",
        "pod_container_init=false",
        "pod_container_name=web",
        "pod_container_port_name=http",
        "pod_container_port_number=80",
        "pod_container_port_protocol=UDP",
    ];
    for want in of_pod.iter().chain(&POD_LABELS) {
        assert!(targets[0].iter().any(|label| label == want), "{want}: {targets:?}");
    }
    assert_eq!(targets[0].len(), of_pod.len() + POD_LABELS.len());
    assert!(targets[1].contains(&"endpoint_hostname=h".to_owned()), "{targets:?}");
    assert_eq!(
        targets[2],
        [
            "__address__=10.9.9.8:80",
            "endpoint_port_name=http",
            "endpoint_port_protocol=UDP",
            "endpoint_ready=false",
        ]
    );
    // A port of the pod that is no endpoint.
    assert!(targets[3].contains(&"__address__=[fd00::5]:81".to_owned()), "{targets:?}");
    assert!(targets[3].contains(&"pod_container_port_protocol=TCP".to_owned()), "{targets:?}");
}

/// As in Prometheus: the last container with the port counts, and its first port of the number.
#[test]
fn a_port_that_several_containers_have() {
    let twice = r#"{"name": "again", "containerPort": 80, "protocol": "SCTP"}"#;
    let pod = POD.replace(
        r#""protocol": "TCP"}
            ]"#,
        &format!(r#""protocol": "TCP"}}, {twice}]"#),
    );
    assert_ne!(pod, POD);
    let name = |pod: &str| {
        let found = groups("role: endpoints", &[ENDPOINTS, SERVICE, pod]);
        let (_, targets) = labels_of(&found);
        let of_port = |label: &&String| label.starts_with("pod_container_port_name=");
        targets[0].iter().find(of_port).cloned().unwrap_or_default()
    };
    assert_eq!(name(&pod), "pod_container_port_name=http");
    let other = pod.replace(r#""ports": null"#, &format!(r#""ports": [{twice}]"#));
    assert_eq!(name(&other), "pod_container_port_name=again");
}

const SLICE: &str = r#"{
    "metadata": {"name": "web-abc", "namespace": "shop",
                 "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "endpoints": [
        {"addresses": ["10.1.1.1"], "conditions": {"ready": true, "serving": true, "terminating": null},
         "hostname": "h", "nodeName": "n1", "zone": "a",
         "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-7d4b-x2x"}},
        {"addresses": ["10.1.1.2"], "conditions": null, "deprecatedTopology": {"a/b": "c"},
         "targetRef": {"kind": "Node", "name": "n1"}}
    ],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP", "appProtocol": "h2c"}]
}"#;

#[test]
fn slices_have_their_service_nodes_and_pods() {
    let keys = "role: endpointslice, attach_metadata: {node: true}";
    let found = groups(keys, &[SLICE, SERVICE, POD, NODE]);
    let (common, targets) = labels_of(&found);
    for want in
        ["endpointslice_address_type=IPv4", "endpointslice_name=web-abc", "service_name=web"]
    {
        assert!(common.iter().any(|label| label == want), "{want}: {common:?}");
    }
    assert_eq!(targets.len(), 3);
    for want in [
        "__address__=10.1.1.1:80",
        "endpointslice_address_target_kind=Pod",
        "endpointslice_endpoint_conditions_ready=true",
        "endpointslice_endpoint_conditions_serving=true",
        "endpointslice_endpoint_hostname=h",
        "endpointslice_endpoint_node_name=n1",
        "endpointslice_endpoint_zone=a",
        "endpointslice_port=80",
        "endpointslice_port_app_protocol=h2c",
        "endpointslice_port_name=http",
        "endpointslice_port_protocol=TCP",
        "node_name=n1",
        "pod_container_name=web",
        "pod_name=web-7d4b-x2x",
    ] {
        assert!(targets[0].iter().any(|label| label == want), "{want}: {targets:?}");
    }
    assert!(!targets[0].iter().any(|label| label.contains("terminating")), "{targets:?}");
    assert!(targets[1].contains(&"node_name=n1".to_owned()), "{targets:?}");
    assert!(targets[1].contains(&"endpointslice_endpoint_topology_a_b=c".to_owned()));
    assert!(targets[2].contains(&"__address__=[fd00::5]:81".to_owned()), "{targets:?}");
    // The addresses of the second family are those of the same pods.
    let second = SLICE.replace("IPv4", "IPv6");
    assert!(groups(keys, &[&second, SERVICE, POD, NODE]).is_empty());
    let single = SERVICE.replace("PreferDualStack", "SingleStack");
    assert_eq!(groups(keys, &[&second, &single, POD, NODE]).len(), 1);
}

/// As in Prometheus. Before, all ports of such an endpoint were visited, whatever their number, and
/// the other ports of its pod were targets.
#[test]
fn an_endpoint_without_addresses_has_no_targets() {
    let empty = SLICE.replace(r#"["10.1.1.1"]"#, "[]").replace(r#"["10.1.1.2"]"#, "null");
    assert!(groups("role: endpointslice", &[&empty, SERVICE, POD]).is_empty());
}

/// Before, each of them took the time of all labels of its namespace, every five seconds.
#[test]
fn the_labels_of_objects_without_targets_are_bounded() {
    let labels: Vec<String> = (0..1_000).map(|idx| format!(r#""l{idx}": "{idx:0100}""#)).collect();
    let labels = labels.join(",");
    let namespace = format!(r#"{{"metadata": {{"name": "shop", "labels": {{{labels}}}}}}}"#);
    let pods = |count: usize| {
        let pod = |idx: usize| {
            let metadata = format!(r#"{{"name": "p{idx}", "namespace": "shop"}}"#);
            format!(r#"{{"metadata": {metadata}, "status": {{"podIP": "10.0.0.1"}}}}"#)
        };
        (0..count).map(pod).collect::<Vec<_>>().join(",")
    };
    let keys = "role: pod, attach_metadata: {namespace: true}";
    assert!(groups(keys, &[&pods(2), &namespace]).is_empty());
    let error = state(keys, &[&pods(100), &namespace]).groups(&Budget::unlimited()).unwrap_err();
    assert!(error.to_string().contains("without targets"), "{error}");
}

#[test]
fn an_ingress_has_a_target_for_each_path() {
    let ingress = r#"{
        "metadata": {"name": "front", "namespace": "shop"},
        "spec": {
            "ingressClassName": "nginx",
            "tls": [{"hosts": ["*.example.com"]}, {"hosts": null}],
            "rules": [
                {"host": "a.example.com", "http": {"paths": [{"path": "/x"}, {"path": ""}]}},
                {"host": "a.b.example.com"}
            ]
        }
    }"#;
    let (common, targets) = labels_of(&groups("role: ingress", &[ingress]));
    assert_eq!(common, ["ingress_class_name=nginx", "ingress_name=front", "namespace=shop"]);
    let target = |host: &str, path: &str, scheme: &str| {
        [
            format!("__address__={host}"),
            format!("ingress_host={host}"),
            format!("ingress_path={path}"),
            format!("ingress_scheme={scheme}"),
        ]
    };
    assert_eq!(
        targets,
        [
            target("a.example.com", "/x", "https"),
            target("a.example.com", "/", "https"),
            target("a.b.example.com", "/", "http"),
        ]
    );
}

/// Before, each host of a rule was compared with all hosts of certificates, and each container with
/// all statuses: objects of some megabytes occupied a thread for minutes.
#[test]
fn wide_objects_are_read_in_time() {
    let joined =
        |one: &dyn Fn(usize) -> String| (0..100_000).map(one).collect::<Vec<_>>().join(",");
    let rules = joined(&|n| format!(r#"{{"host": "{n}.a", "http": {{}}}}"#));
    let hosts = joined(&|n| format!(r#""*.{n}""#));
    let ingress = format!(
        r#"{{"metadata": {{"name": "i"}}, "spec": {{"rules": [{rules}, {{"host": "x.7"}}],
            "tls": [{{"hosts": [{hosts}]}}]}}}}"#
    );
    let (_, targets) = labels_of(&groups("role: ingress", &[&ingress]));
    assert_eq!(targets.len(), 1);
    assert!(targets[0].contains(&"ingress_scheme=https".to_owned()), "{targets:?}");
    let container = |n: usize| format!(r#"{{"name": "{n}"}}"#);
    let status = |n: usize| format!(r#"{{"name": "{}", "containerID": "{n}"}}"#, n / 2);
    let pod = format!(
        r#"{{"metadata": {{"name": "p"}}, "spec": {{"containers": [{}]}},
            "status": {{"podIP": "1", "containerStatuses": [{}]}}}}"#,
        joined(&container),
        joined(&status),
    );
    let found = groups("role: pod", &[&pod]);
    let id = |n: usize| found[0].targets[n].get("__meta_kubernetes_pod_container_id");
    // Of two statuses the first one counts.
    assert_eq!((id(49_999), id(50_000)), (Some("99998"), Some("")));
}

#[test]
fn watches_follow_the_configuration() {
    let paths = |keys: &str, own: Option<&str>| -> Vec<String> {
        let specs = WatchSpec::all_of(&config(keys), own);
        specs.iter().map(|spec| spec.list_path("")).collect()
    };
    assert_eq!(paths("role: node", None), ["/api/v1/nodes?limit=500"]);
    assert_eq!(
        paths(
            "role: pod, namespaces: {names: [b, a, b], own_namespace: true}, \
             attach_metadata: {node: true}, selectors: [{role: pod, label: 'a in (b,c)', \
             field: status.phase=Running}, {role: node, label: x}]",
            Some("own"),
        ),
        [
            "/api/v1/namespaces/a/pods?limit=500&labelSelector=a%20in%20%28b%2Cc%29\
             &fieldSelector=status.phase%3DRunning",
            "/api/v1/namespaces/b/pods?limit=500&labelSelector=a%20in%20%28b%2Cc%29\
             &fieldSelector=status.phase%3DRunning",
            "/api/v1/namespaces/own/pods?limit=500&labelSelector=a%20in%20%28b%2Cc%29\
             &fieldSelector=status.phase%3DRunning",
            "/api/v1/nodes?limit=500&labelSelector=x",
        ]
    );
    assert_eq!(
        paths("role: endpointslice", None),
        [
            "/apis/discovery.k8s.io/v1/endpointslices?limit=500",
            "/api/v1/services?limit=500",
            "/api/v1/pods?limit=500",
        ]
    );
    let ingresses = &WatchSpec::all_of(&config("role: ingress"), None)[0];
    assert_eq!(
        ingresses.watch_path("12", 300),
        "/apis/networking.k8s.io/v1/ingresses?watch=true&allowWatchBookmarks=true\
         &resourceVersion=12&timeoutSeconds=300"
    );
    assert_eq!(
        ingresses.list_path("a=b"),
        "/apis/networking.k8s.io/v1/ingresses?limit=500&continue=a%3Db"
    );
}

#[test]
fn events_change_the_objects() {
    let budget = Budget::unlimited();
    let mut state = state("role: pod", &[POD]);
    let addresses = |state: &ClusterState| state.groups(&Budget::unlimited()).unwrap().0.len();
    let parse = |line: &str| WatchEvent::parse(Resource::Pods, line.as_bytes(), &budget);
    let event = |kind: &str, name: &str| {
        let object = POD.replace("web-7d4b-x2x", name);
        parse(&format!(r#"{{"type": "{kind}", "object": {object}}}"#)).unwrap()
    };
    let (WatchEvent::Set(object), version) = event("ADDED", "other") else { panic!() };
    assert_eq!(version, "41");
    state.set_object(0, object);
    assert_eq!(addresses(&state), 2);
    let (WatchEvent::Set(object), _) = event("MODIFIED", "other") else { panic!() };
    state.set_object(0, object);
    assert_eq!(addresses(&state), 2);
    let (WatchEvent::Removed(object), _) = event("DELETED", "other") else { panic!() };
    state.remove_object(0, &object);
    assert_eq!(addresses(&state), 1);
    let bookmark = r#"{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}"#;
    assert!(matches!(parse(bookmark), Ok((WatchEvent::Bookmark, version)) if version == "50"));
    assert!(parse(&bookmark.replace("50", &"5".repeat(20_000))).is_err());
    let gone = r#"{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "old"}}"#;
    assert!(matches!(parse(gone), Ok((WatchEvent::Gone, _))));
    // Before, the texts of a line were copied without a reservation.
    let long = gone.replace("old", &"x".repeat(2 << 20));
    let within = |memory| {
        WatchEvent::parse(Resource::Pods, long.as_bytes(), &Budget::unlimited().part(memory))
    };
    assert!(within(1 << 20).is_err() && within(4 << 20).is_ok());
    let error = parse(&gone.replace("410", "500")).unwrap_err().to_string();
    assert!(error.contains("500 old"), "{error}");
    for wrong in ["<html>", "{}", r#"{"type": "ADDED", "object": {}}"#, r#"{"type": "ADDED"}"#] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn lists_and_groups_are_within_the_memory() {
    let pods: Vec<String> =
        (0..2_000).map(|idx| POD.replace("web-7d4b-x2x", &format!("p{idx}"))).collect();
    let body = format!(r#"{{"metadata": {{}}, "items": [{}]}}"#, pods.join(","));
    let add = |body: &str, memory: u64| {
        let mut list = ObjectList::default();
        let budget = Budget::new(memory);
        list.add_page(Resource::Pods, body.as_bytes(), &budget).map(|_| (list, budget))
    };
    let is_busy = |error: Error| matches!(error.kind(), firn_model::ErrorKind::Busy { .. });
    assert!(is_busy(add(&body, 1 << 20).map(drop).unwrap_err()));
    let (list, budget) = add(&body, 64 << 20).unwrap();
    assert_eq!(list.len(), 2_000);
    // About two to twenty kilobytes for each.
    let used = budget.usage().used_bytes;
    assert!((4_000_000..40_000_000).contains(&used), "{used}");
    let config = config("role: pod");
    let mut state = ClusterState::new(&config, WatchSpec::all_of(&config, None));
    state.set_list(0, list);
    assert!(is_busy(state.groups(&Budget::new(1 << 20)).map(drop).unwrap_err()));
    assert_eq!(state.groups(&budget).unwrap().0.len(), 2_000);
    drop(state);
    assert_eq!(budget.usage().used_bytes, 0);
    // Small objects take more memory than their text.
    let empty = format!(r#"{{"metadata": {{}}, "items": [{}{{}}]}}"#, "{},".repeat(300_000));
    assert!(add(&empty, 1 << 30).is_err());
    let containers = "{},".repeat(100_000);
    let wide = format!(
        r#"{{"items": [{{"metadata": {{"name": "p"}}, "spec": {{"containers": [{containers}{{}}]}}}}]}}"#
    );
    assert!(is_busy(add(&wide, 16 << 20).map(drop).unwrap_err()));
    for wrong in ["<html>", "{}", r#"{"items": [null]}"#, r#"{"items": 7}"#] {
        assert!(add(wrong, 1 << 30).is_err(), "{wrong}");
    }
    let endless = r#"{"metadata": {"continue": "x"}, "items": []}"#;
    assert!(add(endless, 1 << 30).is_err());
    // Before, the next request had a copy of a token of megabytes, which was not reserved.
    for key in ["continue", "resourceVersion"] {
        let long =
            format!(r#"{{"metadata": {{"{key}": "{}"}}, "items": [{POD}]}}"#, "%".repeat(20_000));
        let error = add(&long, 1 << 30).map(drop).unwrap_err().to_string();
        assert!(error.contains("has 20000 bytes"), "{error}");
    }
}

#[test]
fn a_refusal_has_the_reason_of_the_server() {
    let status = br#"{"kind": "Status", "message": "pods is forbidden", "code": 403}"#;
    let text = refusal("403 Forbidden", status);
    assert_eq!(text, "server returned HTTP status 403 Forbidden: pods is forbidden");
    assert_eq!(
        refusal("502 Bad Gateway", b"<html>"),
        "server returned HTTP status 502 Bad Gateway"
    );
}

#[derive(Default)]
struct TextFiles(RefCell<BTreeMap<String, String>>);

impl Files for TextFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        let files = self.0.borrow();
        files.get(path.to_str().unwrap()).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

#[test]
fn a_pod_uses_its_service_account() {
    let files = TextFiles::default();
    let env = |name: &str| match name {
        "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
        _ => None,
    };
    let access = |keys: &str, env: &dyn Fn(&str) -> Option<String>| {
        in_cluster(&config(keys), env, Path::new("/account"), &files)
    };
    let found = access("role: pod", &env).unwrap();
    assert_eq!(found.server, "https://[fd00::1]:443");
    let token = found.http.authorization.unwrap();
    assert_eq!(
        (token.kind.as_str(), token.credentials_file.as_str()),
        ("Bearer", "/account/token")
    );
    assert_eq!(found.http.tls_config.ca_file.as_str(), "/account/ca.crt");
    assert_eq!(found.own_namespace, None);
    let own = "role: pod, namespaces: {own_namespace: true}";
    assert!(access(own, &env).is_err());
    files.0.borrow_mut().insert("/account/namespace".to_owned(), "mon\n".to_owned());
    assert_eq!(access(own, &env).unwrap().own_namespace.as_deref(), Some("mon"));
    let error = access("role: pod", &|_| None).unwrap_err().to_string();
    assert!(error.contains("KUBERNETES_SERVICE_HOST"), "{error}");
}

#[test]
fn a_kubeconfig_names_server_and_credentials() {
    let files = TextFiles::default();
    let access = |text: &str| {
        files.0.borrow_mut().insert("/k/config".to_owned(), text.to_owned());
        let config = config("role: pod, kubeconfig_file: /k/config");
        ClusterAccess::of(&config, &|_| None, &files)
    };
    let text = |user: &str| {
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: dev\n\
             contexts:\n- name: dev\n  context: {{cluster: c, user: u, namespace: n}}\n\
             clusters:\n- name: c\n  cluster: {{server: 'https://k:6443/', \
             certificate-authority-data: UEVN, tls-server-name: kube}}\n\
             users:\n- name: u\n  user: {{{user}}}\n"
        )
    };
    let found = access(&text("token: sekret")).unwrap();
    assert_eq!(found.server, "https://k:6443");
    assert_eq!(found.http.tls_config.ca, "PEM");
    assert_eq!(found.http.tls_config.server_name, "kube");
    assert_eq!(found.http.authorization.clone().unwrap().credentials.expose(), "sekret");
    assert!(!format!("{found:?}").contains("sekret"));
    let found = access(&text("client-certificate: c.pem, client-key-data: UEVN")).unwrap();
    assert_eq!(found.http.tls_config.cert_file.as_str(), "/k/c.pem");
    assert_eq!(found.http.tls_config.key.expose(), "PEM");
    for (wrong, want) in [
        (text("exec: {command: aws}"), "exec"),
        (text("as: admin"), "impersonation"),
        (text("client-key-data: '-'"), "client-key-data is not base64"),
        (text("client-certificate: c.pem"), "client certificate is configured"),
        (text("token: a").replace("current-context: dev", ""), "current-context"),
        (text("token: a").replace("cluster: c,", "cluster: d,"), "names no cluster"),
        (text("token: a").replace("user: u,", "user: d,"), "names no user"),
        ("a: [".to_owned(), "kubeconfig_file /k/config"),
    ] {
        let error = access(&wrong).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}
