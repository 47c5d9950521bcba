//! Servers of discoveries with an API, in the hands of an attacker: Consul, Docker, Docker Swarm,
//! Kubernetes and EC2.

use std::sync::Arc;
use std::time::Duration;

use super::collecting::{SECRET, path_of, reload, setup, state, unaffected};
use super::peer::{
    Behaviour, bytes, coded, dripping, endless, late, made, peer, redirect, silent, whole,
};
use crate::attack::{Attack, Family, attack, script};
use crate::wire::noise;

/// In the short run.
const QUICK: &[&str] = &[
    "4,000 services with names of 10 KB",
    "a container with 3,000 ports in 3,000 networks",
    "a page of Kubernetes that is never the last",
    "an instance with 100,000 subnets",
];

pub(crate) fn family() -> Family {
    Family::new("discovery apis", setup(&[]))
        .because("a server of a discovery that hangs or never ends delays no other", stalling())
        .because("lists and watches of Consul are bounded in number and memory", consul())
        .because("lists of Docker are bounded in memory", docker())
        .because("lists and watches of Kubernetes are bounded in memory", kubernetes())
        .because("answers of EC2 are bounded in memory and time", ec2())
        .with_quick(QUICK)
}

const JSON: &str = "application/json";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
/// A server that is not requested again is no failure: some requests wait for minutes.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A kind of discovery: its section for a server at an address with a path.
#[derive(Clone, Copy, Debug)]
enum Api {
    /// Of the services of the catalog.
    Consul,
    /// Of one service.
    ConsulService,
    Docker,
    Swarm,
    Kubernetes,
    Ec2,
}

use Api::{Consul, ConsulService, Docker, Ec2, Kubernetes, Swarm};

impl Api {
    fn section(self, path: &str) -> String {
        let address = peer().address;
        let auth = format!("authorization: {{credentials: {SECRET}}}");
        let consul = format!(
            "consul_sd_configs: [{{server: '{address}', path_prefix: '{path}', token: {SECRET}, \
             refresh_interval: 1s"
        );
        match self {
            Consul => format!("{consul}}}]"),
            ConsulService => format!("{consul}, datacenter: dc, services: [s]}}]"),
            Docker => format!(
                "docker_sd_configs: [{{host: 'http://{address}{path}', refresh_interval: 1s, \
                 match_first_network: false, {auth}}}]"
            ),
            Swarm => format!(
                "dockerswarm_sd_configs: [{{host: 'http://{address}{path}', role: tasks, \
                 refresh_interval: 1s, {auth}}}]"
            ),
            Kubernetes => format!(
                "kubernetes_sd_configs: [{{role: pod, api_server: 'http://{address}{path}', \
                 {auth}}}]"
            ),
            Ec2 => format!(
                "ec2_sd_configs: [{{endpoint: 'http://{address}{path}', region: r, \
                 refresh_interval: 1s, access_key: k, secret_key: {SECRET}}}]"
            ),
        }
    }
}

/// A job whose discovery has this behaviour is refreshed some times.
fn api(name: &'static str, api: Api, behaviour: Behaviour) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, Behaviour::clone(&behaviour));
        let job = format!("- job_name: hostile\n  {}\n", api.section(&path));
        let mut answers = vec![reload(target, &job, "")];
        peer().wait_for(&path, 4, WAIT_MAX);
        answers.extend(state(target));
        answers
    });
    attack(name, act, unaffected())
}

/// The behaviour of the first part that the first line of a request contains.
fn routed(routes: Vec<(&'static str, Behaviour)>) -> Behaviour {
    Arc::new(move |stream, head| {
        let line = head.lines().next().unwrap_or_default();
        let known = routes.iter().find(|(part, _)| line.contains(part));
        known.map_or(Ok(()), |(_, behave)| behave(stream, head))
    })
}

fn json(make: impl Fn() -> String + Send + Sync + 'static) -> Behaviour {
    late(move || whole(JSON, make()))
}

fn list(count: usize, one: impl Fn(usize) -> String) -> String {
    format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(","))
}

fn stalling() -> Vec<Attack> {
    let mut attacks = Vec::new();
    for (of, names) in [
        (Consul, ["a Consul that hangs", "an endless head of Consul", "Consul byte by byte"]),
        (Docker, ["a Docker that hangs", "an endless head of Docker", "Docker byte by byte"]),
        (Swarm, ["a swarm that hangs", "an endless head of a swarm", "a swarm byte by byte"]),
        (
            Kubernetes,
            ["a cluster that hangs", "an endless head of a cluster", "a cluster byte by byte"],
        ),
        (Ec2, ["an EC2 that hangs", "an endless head of EC2", "EC2 byte by byte"]),
    ] {
        let [hangs, head, drips] = names;
        attacks.extend([
            api(hangs, of, silent("")),
            api(head, of, endless("HTTP/1.1 200 OK\r\n", |n| format!("X-{n}: y\r\n"))),
            api(drips, of, dripping(whole(JSON, "[]"))),
        ]);
    }
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[";
    attacks.extend([
        api("half an answer of Consul", ConsulService, silent(half)),
        api("an endless answer of Consul", ConsulService, endless(HEAD, |n| first(n, "{}"))),
        api("endless containers", Docker, endless(HEAD, |n| first(n, "{\"Names\":[\"/a\"]}"))),
        api("endless tasks", Swarm, endless(HEAD, |n| first(n, "{}"))),
        api("endless pods", Kubernetes, endless(HEAD, |_| "[".to_owned())),
        api("endless XML", Ec2, endless("HTTP/1.1 200 OK\r\n\r\n<a>", |_| "<b/>".to_owned())),
        api(
            "a Consul that redirects to itself",
            ConsulService,
            redirect("/a-Consul-that-redirects-to-itself"),
        ),
    ]);
    attacks.extend([
        api("a Consul of noise", Consul, late(|| whole(JSON, noise(5, 1 << 20)))),
        api("a Docker of noise", Docker, late(|| whole(JSON, noise(6, 1 << 20)))),
        api("a cluster of noise", Kubernetes, late(|| whole(JSON, noise(7, 1 << 20)))),
        api("an EC2 of noise", Ec2, late(|| whole("text/xml", noise(8, 1 << 20)))),
        api("a list in a list of Docker", Docker, json(|| "[".repeat(1_000_000))),
        api("an object in an object of Consul", Consul, json(|| "{\"a\":".repeat(1_000_000))),
    ]);
    attacks
}

/// An item of an endless list.
fn first(n: usize, item: &str) -> String {
    format!("{}{item}", if n == 0 { '[' } else { ',' })
}

/// A Consul with this catalog and this answer about each service.
fn catalog(services: Behaviour, instances: Behaviour) -> Behaviour {
    let agent = bytes(whole(JSON, "{\"Config\": {\"Datacenter\": \"dc\"}}"));
    routed(vec![("/agent/self", agent), ("/catalog/", services), ("/health/", instances)])
}

/// As Consul does: with the index of the next query.
fn indexed(number: usize, body: &str) -> Vec<u8> {
    coded(&format!("Content-Type: {JSON}\r\nX-Consul-Index: {number}\r\n"), body)
}

fn instance(n: usize) -> String {
    format!("{{\"Node\":{{\"Address\":\"127.0.0.1\"}},\"Service\":{{\"ID\":\"{n}\",\"Port\":1}}}}")
}

fn services(count: usize, name: impl Fn(usize) -> String) -> String {
    let names = (0..count).map(|n| format!("\"{}\":[]", name(n)));
    format!("{{{}}}", names.collect::<Vec<_>>().join(","))
}

fn consul() -> Vec<Attack> {
    let none = || bytes(whole(JSON, "[]"));
    let tags = |count| {
        let tags = list(count, |n| format!("\"t{n}\""));
        format!("[{{\"Service\":{{\"Tags\":{tags}}}}}]")
    };
    vec![
        api(
            "100,000 services",
            Consul,
            catalog(json(|| services(100_000, |n| format!("s{n}"))), none()),
        ),
        api(
            "4,000 services with names of 10 KB",
            Consul,
            catalog(json(|| services(4_000, |n| format!("{n:010000}"))), none()),
        ),
        api(
            "4,000 services that hang",
            Consul,
            catalog(json(|| services(4_000, |n| format!("s{n}"))), silent("")),
        ),
        api(
            "other services each time",
            Consul,
            catalog(
                made(|number| indexed(number, &services(1_000, |n| format!("s{number}-{n}")))),
                made(|number| indexed(number, &list(10, instance))),
            ),
        ),
        api("300,000 instances", ConsulService, json(|| list(300_000, instance))),
        api("an instance with 300,000 tags", ConsulService, json(move || tags(300_000))),
        api(
            "metadata of 20 MB",
            ConsulService,
            json(|| {
                let text = "x".repeat(20_000_000);
                format!("[{{\"Node\":{{\"Meta\":{{\"a\":\"{text}\"}}}}}}]")
            }),
        ),
        api("no index", ConsulService, made(|n| whole(JSON, list(10, |m| instance(n + m))))),
        api(
            "an index that falls",
            ConsulService,
            made(|n| indexed(usize::MAX - n, &list(1, |_| instance(n)))),
        ),
        api(
            "a data centre of 20 MB",
            Consul,
            json(|| format!("{{\"Config\":{{\"Datacenter\":\"{}\"}}}}", "x".repeat(20_000_000))),
        ),
    ]
}

/// A daemon with these containers.
fn daemon(containers: Behaviour) -> Behaviour {
    let version = bytes(coded("Api-Version: 1.45\r\n", "OK"));
    let networks = bytes(whole(JSON, "[{\"Id\":\"n\",\"Name\":\"n\"}]"));
    routed(vec![("/_ping", version), ("/networks", networks), ("", containers)])
}

fn container(name: &str, mode: &str, ports: &str, networks: &str) -> String {
    format!(
        "{{\"Id\":\"{name}\",\"Names\":[\"/{name}\"],\"Ports\":{ports},\"HostConfig\":\
         {{\"NetworkMode\":\"{mode}\"}},\"NetworkSettings\":{{\"Networks\":{{{networks}}}}}}}"
    )
}

fn networks(count: usize) -> String {
    let network = |n| format!("\"n{n}\":{{\"NetworkID\":\"n\",\"IPAddress\":\"127.0.0.1\"}}");
    (0..count).map(network).collect::<Vec<_>>().join(",")
}

fn ports(count: usize) -> String {
    list(count, |n| format!("{{\"PrivatePort\":{n},\"Type\":\"tcp\"}}"))
}

fn docker() -> Vec<Attack> {
    vec![
        api(
            "300,000 containers",
            Docker,
            daemon(json(|| list(300_000, |n| container(&n.to_string(), "n", "[]", &networks(1))))),
        ),
        api(
            "a container with 3,000 ports in 3,000 networks",
            Docker,
            daemon(json(|| format!("[{}]", container("a", "n", &ports(3_000), &networks(3_000))))),
        ),
        api(
            "containers in the networks of each other",
            Docker,
            daemon(json(|| {
                let next = |n| format!("container:{}", (n + 1) % 50_000);
                list(50_000, |n| container(&n.to_string(), &next(n), "[]", ""))
            })),
        ),
        api(
            "a version that leaves its folder",
            Docker,
            bytes(coded("Api-Version: 1.45/../../admin\r\n", "[]")),
        ),
        api(
            "a swarm with 200,000 tasks",
            Swarm,
            daemon(json(|| {
                let attachment = "{\"Network\":{\"ID\":\"n\"},\"Addresses\":[\"127.0.0.1/8\"]}";
                list(200_000, |n| {
                    format!("{{\"ID\":\"{n}\",\"NetworksAttachments\":[{attachment}]}}")
                })
            })),
        ),
        api("a swarm of nulls", Swarm, json(|| list(1_000_000, |_| "null".to_owned()))),
    ]
}

fn pod(n: usize) -> String {
    format!(
        "{{\"metadata\":{{\"name\":\"p{n}\",\"namespace\":\"d\"}},\"spec\":{{\"containers\":\
         [{{\"name\":\"c\"}}]}},\"status\":{{\"podIP\":\"127.0.0.1\"}}}}"
    )
}

fn page(next: &str, items: &str) -> String {
    format!(
        "{{\"metadata\":{{\"resourceVersion\":\"1\",\"continue\":\"{next}\"}},\"items\":{items}}}"
    )
}

/// A cluster with one pod and this watch.
fn watched(lines: Behaviour) -> Behaviour {
    routed(vec![("watch=true", lines), ("", json(|| page("", &list(1, pod))))])
}

fn kubernetes() -> Vec<Attack> {
    let events = |n: usize| format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", pod(n));
    vec![
        api("200,000 pods", Kubernetes, json(|| page("", &list(200_000, pod)))),
        api(
            "a page of Kubernetes that is never the last",
            Kubernetes,
            made(|n| whole(JSON, page("x", &list(500, |m| pod(n * 500 + m))))),
        ),
        api("an empty page", Kubernetes, json(|| page("x", "[]"))),
        api("endless events", Kubernetes, watched(endless(HEAD, events))),
        api("the same event without end", Kubernetes, watched(endless(HEAD, move |_| events(1)))),
        api("an endless event", Kubernetes, watched(endless(HEAD, |_| "[".repeat(100)))),
        api("endless empty lines", Kubernetes, watched(endless(HEAD, |_| "\n".repeat(100)))),
        api("events of noise", Kubernetes, watched(late(|| whole(JSON, noise(9, 1 << 20))))),
        api(
            "a watch that is always too old",
            Kubernetes,
            watched(bytes(whole(JSON, "{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n"))),
        ),
        api(
            "a pod with 300,000 ports",
            Kubernetes,
            json(|| {
                let ports = list(300_000, |n| format!("{{\"containerPort\":{n}}}"));
                let pod = pod(1).replace("\"c\"", &format!("\"c\",\"ports\":{ports}"));
                page("", &format!("[{pod}]"))
            }),
        ),
    ]
}

/// Instances with this text each, and the token of a next page.
fn instances(count: usize, next: &str, more: &str) -> String {
    let one = |n| {
        format!(
            "<item><instanceId>{n}</instanceId><privateIpAddress>127.0.0.1</privateIpAddress>\
             {more}</item>"
        )
    };
    let items: String = (0..count).map(one).collect();
    format!(
        "<R><reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>\
         <nextToken>{next}</nextToken></R>"
    )
}

fn xml(make: impl Fn() -> String + Send + Sync + 'static) -> Behaviour {
    late(move || whole("text/xml", make()))
}

fn ec2() -> Vec<Attack> {
    vec![
        api("100,000 instances", Ec2, xml(|| instances(100_000, "", ""))),
        api(
            "pages of EC2 without end",
            Ec2,
            made(|n| whole("text/xml", instances(1_000, &n.to_string(), ""))),
        ),
        api("a token of 10 MB", Ec2, xml(|| instances(1, &"t".repeat(10_000_000), ""))),
        api(
            "an instance with 100,000 subnets",
            Ec2,
            xml(|| {
                let subnet = |n| format!("<item><subnetId>s{n}</subnetId></item>");
                let subnets: String = (0..100_000).map(subnet).collect();
                let network = format!("<networkInterfaceSet>{subnets}</networkInterfaceSet>");
                instances(1, "", &format!("<vpcId>v</vpcId>{network}"))
            }),
        ),
        api("1,000,000 elements", Ec2, xml(|| format!("<a>{}</a>", "<b/>".repeat(1_000_000)))),
        api("elements inside each other", Ec2, xml(|| "<a>".repeat(1_000_000))),
        api(
            "entities of entities",
            Ec2,
            xml(|| {
                "<!DOCTYPE a [<!ENTITY b \"bbbb\"><!ENTITY c \"&b;&b;\">]><a>&c;</a>".to_owned()
            }),
        ),
        api(
            "an entity of a file",
            Ec2,
            xml(|| "<!DOCTYPE a [<!ENTITY b SYSTEM \"/etc/passwd\">]><a>&b;</a>".to_owned()),
        ),
    ]
}
