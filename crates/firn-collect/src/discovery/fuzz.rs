//! The check that the fuzzer in `fuzz/` runs on answers of discoveries. Compiled for tests and
//! fuzzers only.

use std::sync::LazyLock;

use firn_model::{Budget, Reservation, Result};

use super::{
    ClusterState, ConsulTargets, DockerTargets, Ec2Targets, ObjectList, Provider, SwarmTargets,
    WatchEvent, WatchSpec, ZoneIds, heap_bytes, refusal, role_credentials, session_credentials,
};
use crate::config::Config;
use crate::config::discovery::KubernetesDiscovery;
use crate::pool::DiscoveredGroup;

/// A message repeats at most this much of an answer.
const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Less than a small answer may claim.
const BUDGET_BYTES: u64 = 1 << 20;

/// Discoveries of a configuration, which reads no file.
struct KnownTargets {
    consul: ConsulTargets,
    docker: DockerTargets,
    swarm: SwarmTargets,
    ec2: Ec2Targets,
    kubernetes: Vec<KubernetesDiscovery>,
}

static TARGETS: LazyLock<KnownTargets> = LazyLock::new(KnownTargets::new);

const CONFIG: &str = "scrape_configs: [{job_name: j, consul_sd_configs: [{}], \
    docker_sd_configs: [{host: 'tcp://h:1', match_first_network: false}], \
    dockerswarm_sd_configs: [{host: 'tcp://h:1', role: tasks}], ec2_sd_configs: [{region: r}], \
    kubernetes_sd_configs: [ROLES]}]";
const ROLES: [&str; 6] = ["pod", "node", "service", "endpoints", "endpointslice", "ingress"];

impl KnownTargets {
    fn new() -> KnownTargets {
        let attach = "attach_metadata: {node: true, namespace: true}";
        let roles = ROLES.map(|role| format!("{{role: {role}, api_server: 'http://h', {attach}}}"));
        let text = CONFIG.replace("ROLES", &roles.join(", "));
        let loaded = Config::parse(&text, &|_| None).expect("a valid configuration");
        let discoveries = &loaded.config.scrape_configs[0].discoveries;
        let (mut consul, mut docker, mut swarm, mut ec2) = (None, None, None, None);
        let mut kubernetes = Vec::new();
        for provider in Provider::all_of(discoveries, "job").expect("supported discoveries") {
            match provider {
                Provider::Consul(targets) => consul = Some(*targets),
                Provider::Docker(targets) => docker = Some(*targets),
                Provider::Swarm(targets) => swarm = Some(*targets),
                Provider::Ec2(config) => ec2 = Some(Ec2Targets::new(*config, "r".to_owned())),
                Provider::Kubernetes(config) => kubernetes.push(*config),
                _ => {}
            }
        }
        KnownTargets {
            consul: consul.expect("a section"),
            docker: docker.expect("a section"),
            swarm: swarm.expect("a section"),
            ec2: ec2.expect("a section"),
            kubernetes,
        }
    }
}

/// Answers, which zero bytes separate; the first byte chooses the discovery.
///
/// # Panics
/// If the memory of targets is not reserved, or for a long message.
pub fn discovery_answer(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let budget = Budget::unlimited().part(BUDGET_BYTES);
    let bodies: Vec<&[u8]> = rest.split(|byte| *byte == 0).collect();
    let targets = &*TARGETS;
    match first % 14 {
        0 => check_group(targets.consul.group("s", "dc", rest, &budget)),
        1 => {
            check_error(targets.consul.services(rest, &budget).map(|(names, held)| {
                let bytes: usize = names.iter().map(String::len).sum();
                assert!(held.bytes() >= bytes as u64);
            }));
            check_error(targets.consul.datacenter(rest, &budget).map(drop));
        }
        2 => check_group(targets.docker.group(&bodies, &budget)),
        // The number of answers is that of the role.
        3..=5 => check_group(targets.swarm.group(&bodies, &budget)),
        6 => check_instances(&targets.ec2, &bodies, &budget),
        7 => {
            check_error(role_credentials("200 OK", rest, &budget).map(drop));
            check_error(session_credentials(rest).map(drop));
            assert!(refusal("403 Forbidden", rest).len() <= MESSAGE_BYTES_MAX);
        }
        role => {
            let config = &targets.kubernetes[usize::from(role - 8)];
            check_cluster(config, &bodies, &budget);
        }
    }
    assert_eq!(budget.usage().used_bytes, 0, "memory is released with the targets");
}

fn check_group(read: Result<(DiscoveredGroup, Reservation)>) {
    check_error(read.map(|(group, held)| check_memory(&[group], &held)));
}

fn check_memory(groups: &[DiscoveredGroup], held: &Reservation) {
    let bytes = heap_bytes(groups) as u64;
    assert!(held.bytes() >= bytes, "{} bytes reserved, {bytes} used", held.bytes());
}

fn check_error(read: Result<()>) {
    if let Err(error) = read {
        assert!(error.to_string().len() <= MESSAGE_BYTES_MAX, "{error:.200}");
    }
}

/// The first answer has the zones, the others are pages.
fn check_instances(targets: &Ec2Targets, bodies: &[&[u8]], budget: &Budget) {
    let [zones, pages @ ..] = bodies else { return };
    let zones = Ec2Targets::zones("200 OK", zones, budget).unwrap_or_else(|error| {
        check_error(Err(error));
        ZoneIds::default()
    });
    let (mut group, mut held) = Ec2Targets::group(budget);
    for page in pages {
        let answer = ("200 OK", *page);
        check_error(targets.add_page(&mut group, &mut held, &zones, answer, budget).map(drop));
        let bytes: usize = group.targets.iter().map(super::label_set_bytes).sum();
        assert!(held.bytes() >= bytes as u64);
    }
}

/// The first answers are the lists of the watches, in order; the others are events.
fn check_cluster(config: &KubernetesDiscovery, bodies: &[&[u8]], budget: &Budget) {
    let specs = WatchSpec::all_of(config, None);
    let mut state = ClusterState::new(config, specs.clone());
    let mut bodies = bodies.iter();
    for (idx, spec) in specs.iter().enumerate() {
        let mut list = ObjectList::default();
        if let Some(body) = bodies.next() {
            check_error(list.add_page(spec.resource, body, budget).map(drop));
        }
        state.set_list(idx, list);
    }
    for (number, line) in bodies.enumerate() {
        let idx = number % specs.len();
        match WatchEvent::parse(specs[idx].resource, line, budget) {
            Ok((WatchEvent::Set(object), _)) => drop(state.set_object(idx, object)),
            Ok((WatchEvent::Removed(object), _)) => drop(state.remove_object(idx, &object)),
            Ok(_) => {}
            Err(error) => check_error(Err(error)),
        }
    }
    check_error(state.groups(budget).map(|(groups, held)| check_memory(&groups, &held)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `xtask/src/corpus.rs` writes it.
    const CORPUS: &[u8] = include_bytes!("../../../../fuzz/corpus/discovery_answer.pack");

    #[test]
    fn the_corpus_passes() {
        let mut rest = CORPUS.strip_prefix(b"firn-corpus-1\n").expect("a corpus");
        while let Some((len, behind)) = rest.split_first_chunk() {
            let (input, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
            discovery_answer(input);
            rest = behind;
        }
    }

    #[test]
    fn answers_of_each_discovery_pass() {
        for data in [
            &b""[..],
            b"\x00[{\"Node\": {\"Address\": \"a\"}, \"Service\": {\"Tags\": [\"x\"], \"Port\": 1}}]",
            b"\x01{\"Config\": {\"Datacenter\": \"d\"}}",
            b"\x02[{\"Names\": [\"/a\"], \"NetworkSettings\": {\"Networks\": {\"n\": {}}}}]\0[{}]",
            b"\x03[{\"ID\": \"n\", \"Status\": {\"Addr\": \"a\"}}]",
            b"\x04[{\"ID\": \"s\"}]\0null",
            b"\x05[{}]\0[{}]\0[{}]\0[{}]",
            b"\x06<a></a>\0<a><reservationSet><item><instancesSet><item><privateIpAddress>1\
              </privateIpAddress></item></instancesSet></item></reservationSet></a>",
            b"\x07{\"AccessKeyId\": \"\", \"SecretAccessKey\": \"\", \"Token\": \"\"}",
            b"\x08{\"metadata\": {\"resourceVersion\": \"1\"}, \"items\": [{\"metadata\": \
              {\"name\": \"p\"}, \"status\": {\"podIP\": \"1\"}, \"spec\": {\"containers\": \
              [{\"name\": \"c\", \"ports\": [{\"containerPort\": 1}]}]}}]}\0{}\0{}\0{}\0{}\0\
              {\"type\": \"DELETED\", \"object\": {\"metadata\": {\"name\": \"p\"}}}",
        ] {
            discovery_answer(data);
        }
    }

    proptest::proptest! {
        #[test]
        fn random_answers_pass(
            first in 0..14_u8,
            body in "[\\[\\]{}<>/\":,0-9a-z\\x00]{0,60}",
        ) {
            discovery_answer(&[&[first], body.as_bytes()].concat());
        }
    }
}
