//! Label sets of three kinds, deterministic and generated on demand: five million of them would be
//! more than a gigabyte of text. Of every group 2% of the members are missing, at random.
//!
//! - DevOps: the hosts of TSBS, 101 fields of nine subsystems each, ten tags of the host on every
//!   series.
//! - Kubernetes: scraped pods, 60 series each, over 24 hours in which a third of all pods is
//!   replaced every hour: names with random ends, unique ids, addresses, images that change with a
//!   rollout.
//! - Recordings: the label sets of the recorded scrapes (`../shared/data`), repeated for as many
//!   instances as needed.

use std::fs;
use std::io;
use std::path::Path;

use firn_model::{LabelLimits, Labels, LabelsBuilder};

use super::scatter;
use crate::devops::REGIONS;

/// The kind of label sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelSetKind {
    /// Hosts of TSBS.
    DevOps,
    /// Pods with churn.
    Kubernetes,
    /// Recorded scrapes.
    Recordings,
}

/// Groups of label sets, made on demand.
#[derive(Debug)]
pub struct LabelSets {
    kind: LabelSetKind,
    group_count: usize,
    /// Members of each kind of group: their own labels.
    templates: Vec<Template>,
}

#[derive(Debug)]
struct Template {
    /// The recorded program: the `job` of the group.
    job: String,
    members: Vec<Pairs>,
}

pub(crate) type Pairs = Vec<(String, String)>;

/// One member of this many is missing from its group.
const MISSING_OF: u64 = 50;
const RECORDED: [&str; 6] =
    ["node", "prometheus", "alertmanager", "pushgateway", "redis", "process"];
// Fields of each subsystem, as TSBS has them.
const SUBSYSTEMS: [(&str, usize); 9] = [
    ("cpu", 10),
    ("disk", 7),
    ("diskio", 7),
    ("kernel", 7),
    ("mem", 9),
    ("net", 8),
    ("nginx", 7),
    ("postgresl", 16),
    ("redis", 30),
];
// Live pods of one hour, and the third that is replaced in each of the 23 that follow.
const HOURS: usize = 24;
const PODS_PER_DEPLOYMENT: usize = 12;
const PODS_PER_NODE: usize = 30;
// Regions, architectures, data centers of a region, systems, racks, services, environments,
// versions, teams.
const HOST_CHOICES: [usize; 9] = [9, 2, 3, 3, 100, 20, 3, 2, 4];

impl LabelSetKind {
    /// All of them.
    pub const ALL: [LabelSetKind; 3] =
        [LabelSetKind::DevOps, LabelSetKind::Kubernetes, LabelSetKind::Recordings];

    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            LabelSetKind::DevOps => "devops",
            LabelSetKind::Kubernetes => "kubernetes",
            LabelSetKind::Recordings => "recordings",
        }
    }
}

impl LabelSets {
    /// Groups with at least `series_count` series in all.
    ///
    /// # Errors
    /// `NotFound` without recordings; other errors if they are malformed.
    pub fn new(kind: LabelSetKind, series_count: usize) -> io::Result<LabelSets> {
        let templates = match kind {
            LabelSetKind::DevOps => vec![devops_members()],
            LabelSetKind::Kubernetes => vec![pod_members()],
            LabelSetKind::Recordings => {
                let folder = Path::new("../shared/data");
                RECORDED.iter().map(|job| recorded(folder, job)).collect::<io::Result<_>>()?
            }
        };
        let mut sets = LabelSets { kind, group_count: 0, templates };
        let mut count = 0;
        while count < series_count {
            count += sets.present(sets.group_count).count();
            sets.group_count += 1;
        }
        Ok(sets)
    }

    /// The kind.
    pub fn kind(&self) -> LabelSetKind {
        self.kind
    }

    /// The labels that make a group.
    pub fn group_by(&self) -> Vec<String> {
        let names: &[&str] = match self.kind {
            LabelSetKind::DevOps => &["hostname"],
            LabelSetKind::Kubernetes | LabelSetKind::Recordings => &["instance", "job"],
        };
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Number of groups.
    pub fn group_count(&self) -> usize {
        self.group_count
    }

    /// Number of series in all groups.
    pub fn series_count(&self) -> usize {
        (0..self.group_count).map(|group| self.present(group).count()).sum()
    }

    /// The random bits in the label sets: a lower bound for any encoding.
    pub fn random_bits(&self) -> f64 {
        let mut bits = 0.0;
        for group in 0..self.group_count {
            let missing = 1.0 / MISSING_OF as f64;
            let per_member = -missing * missing.log2() - (1.0 - missing) * (1.0 - missing).log2();
            bits += per_member * self.template(group).members.len() as f64;
            bits += match self.kind {
                LabelSetKind::DevOps => {
                    HOST_CHOICES.iter().map(|&count| (count as f64).log2()).sum()
                }
                LabelSetKind::Kubernetes => pod_bits(group, self.group_count),
                LabelSetKind::Recordings => 0.0,
            };
        }
        bits
    }

    /// Appends the label sets of group `group`, in order of arrival.
    pub fn push_group(&self, group: usize, out: &mut Vec<Labels>) {
        let shared = self.shared(group);
        let members = &self.template(group).members;
        let mut builder = LabelsBuilder::default();
        for member in self.present(group) {
            let pairs = shared.iter().chain(&members[member]);
            pairs.for_each(|(name, value)| builder.push(name, value));
            out.push(builder.build(&LabelLimits::default()).expect("made by the rules"));
        }
    }

    /// The label set of a random series.
    pub fn draw(&self, number: u64) -> Labels {
        let group = (scatter(number) % self.group_count as u64) as usize;
        let mut sets = Vec::new();
        self.push_group(group, &mut sets);
        let idx = (scatter(number ^ 0x55) % sets.len() as u64) as usize;
        sets.swap_remove(idx)
    }

    fn template(&self, group: usize) -> &Template {
        &self.templates[group % self.templates.len()]
    }

    /// The members that are not missing.
    fn present(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        let member_count = self.template(group).members.len();
        let is_there = move |&member: &usize| {
            !scatter((group * 10_007 + member) as u64).is_multiple_of(MISSING_OF)
        };
        (0..member_count).filter(is_there)
    }

    /// The labels that all series of a group share.
    fn shared(&self, group: usize) -> Pairs {
        match self.kind {
            LabelSetKind::DevOps => host(group),
            LabelSetKind::Kubernetes => pod(group, self.group_count),
            LabelSetKind::Recordings => {
                let instance = group / self.templates.len();
                owned([
                    ("job", self.template(group).job.clone()),
                    ("instance", format!("node-{instance}.example.org:9100")),
                ])
            }
        }
    }
}

fn devops_members() -> Template {
    let fields = SUBSYSTEMS.iter().flat_map(|&(subsystem, count)| {
        (0..count).map(move |field| format!("{subsystem}_field_{field:02}"))
    });
    Template { job: String::new(), members: fields.map(|name| named(&name)).collect() }
}

/// The ten tags of a host, in the cardinalities of TSBS.
fn host(number: usize) -> Pairs {
    let random =
        |salt: u64, count: usize| (scatter(number as u64 * 16 + salt) % count as u64) as usize;
    let region = REGIONS[random(1, 9)];
    owned([
        ("arch", ["x64", "x86"][random(2, 2)].to_owned()),
        ("datacenter", format!("{region}{}", ["a", "b", "c"][random(3, 3)])),
        ("hostname", format!("host_{number}")),
        ("os", ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"][random(4, 3)].to_owned()),
        ("rack", random(5, 100).to_string()),
        ("region", region.to_owned()),
        ("service", random(6, 20).to_string()),
        ("service_environment", ["production", "staging", "test"][random(7, 3)].to_owned()),
        ("service_version", random(8, 2).to_string()),
        ("team", ["SF", "NYC", "LON", "CHI"][random(9, 4)].to_owned()),
    ])
}

/// 30 plain series, 5 of 4 devices each, one histogram of 10 buckets.
fn pod_members() -> Template {
    let mut members: Vec<Pairs> =
        (0..30).map(|metric| named(&format!("container_resource_{metric:02}_total"))).collect();
    for metric in ["reads", "writes", "io_time_seconds", "read_bytes", "write_bytes"] {
        for device in ["sda", "sdb", "nvme0n1", "nvme1n1"] {
            let mut member = named(&format!("container_fs_{metric}_total"));
            member.push(("device".to_owned(), format!("/dev/{device}")));
            members.push(member);
        }
    }
    for le in ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "5", "+Inf"] {
        let mut member = named("http_request_duration_seconds_bucket");
        member.push(("le".to_owned(), le.to_owned()));
        members.push(member);
    }
    Template { job: String::new(), members }
}

/// The random bits of a pod: its position, its node, its unique id, the end of its name, and its
/// share of a rollout's number.
fn pod_bits(number: usize, pod_count: usize) -> f64 {
    let live = live_pods(pod_count);
    let place_bits = if number < live { 0.0 } else { (live as f64).log2() };
    let node_bits = (live.div_ceil(PODS_PER_NODE) as f64).log2();
    // The pods that a deployment starts in eight hours share a rollout.
    let pods_per_rollout = PODS_PER_DEPLOYMENT * 8 / 3;
    place_bits + node_bits + 128.0 + 5.0 * 27f64.log2() + 40.0 / pods_per_rollout as f64
}

/// The number of pods alive at a time: this and 23 thirds of it are `pod_count`.
fn live_pods(pod_count: usize) -> usize {
    (pod_count * 3 / (HOURS + 2)).max(1)
}

/// Pod `number` of all that there were, in the order of their starts.
fn pod(number: usize, pod_count: usize) -> Pairs {
    let live = live_pods(pod_count);
    let (hour, place) = match number.checked_sub(live) {
        None => (0, number),
        Some(replaced) => {
            let third = live.div_ceil(3);
            (1 + replaced / third, (scatter(number as u64) % live as u64) as usize)
        }
    };
    let deployment = place / PODS_PER_DEPLOYMENT;
    // A rollout every eight hours, at different hours in different deployments.
    let version = (hour + deployment) / 8;
    let namespace = deployment % 40;
    let rollout = scatter((deployment * 100 + version) as u64);
    let name = format!("service-{deployment}");
    let pod = format!("{name}-{:010x}-{}", rollout >> 24, letters(number as u64, 5));
    let id = (scatter(number as u64 ^ 0xaaaa), scatter(number as u64 ^ 0xbbbb));
    let uid = format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        id.0 >> 32,
        id.0 >> 16 & 0xffff,
        id.0 & 0xffff,
        id.1 >> 48,
        id.1 & 0xffff_ffff_ffff
    );
    let node_count = (live / PODS_PER_NODE).max(1) as u64;
    let node = scatter(number as u64 ^ 0xcccc) % node_count;
    let address = format!("10.{}.{}.{}:8080", number >> 16, number >> 8 & 255, number & 255);
    owned([
        ("container", name.clone()),
        ("image", format!("registry.example.org/team-{}/{name}:1.{version}", namespace % 7)),
        ("instance", address),
        ("job", "pods".to_owned()),
        ("namespace", format!("team-{}-{}", namespace % 7, namespace)),
        ("node", format!("ip-10-{}-{}.ec2.internal", node >> 8, node & 255)),
        ("pod", pod),
        ("uid", uid),
    ])
}

fn letters(number: u64, count: u32) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = scatter(number ^ 0xdddd);
    (0..count).map(|at| LETTERS[(random / 27u64.pow(at) % 27) as usize] as char).collect()
}

/// The label sets of the last frame of a recording.
fn recorded(folder: &Path, job: &str) -> io::Result<Template> {
    let path = folder.join(format!("scrape_{job}.zst"));
    let bytes = zstd::decode_all(fs::File::open(&path)?)?;
    let broken = || io::Error::other(format!("{}: not a recording", path.display()));
    let mut rest = bytes.strip_prefix(b"FIRNSCR1").ok_or_else(broken)?;
    let mut last: &[u8] = &[];
    while !rest.is_empty() {
        // Time (8 bytes), duration (4), length (4), text.
        let (head, tail) = rest.split_at_checked(16).ok_or_else(broken)?;
        let length = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
        (last, rest) = tail.split_at_checked(length).ok_or_else(broken)?;
    }
    let text = std::str::from_utf8(last).map_err(|_| broken())?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let members: Option<Vec<Pairs>> = lines.map(exposed).collect();
    Ok(Template { job: job.to_owned(), members: members.ok_or_else(broken)? })
}

/// `name{a="b"} 1` of the text exposition as pairs.
pub(crate) fn exposed(line: &str) -> Option<Pairs> {
    let end = line.find(['{', ' '])?;
    let mut pairs = named(&line[..end]);
    let Some(mut rest) = line[end..].strip_prefix('{') else { return Some(pairs) };
    while !rest.starts_with('}') {
        let (name, tail) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = tail.char_indices();
        let close = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, letter) => value.push(letter),
            }
        };
        // As a scrape renames labels that the target sets itself.
        let exported = if ["job", "instance"].contains(&name) { "exported_" } else { "" };
        pairs.push((format!("{exported}{name}"), value));
        rest = tail[close + 1..].trim_start_matches(',');
    }
    Some(pairs)
}

fn named(name: &str) -> Pairs {
    vec![("__name__".to_owned(), name.to_owned())]
}

fn owned<const N: usize>(pairs: [(&str, String); N]) -> Pairs {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn series_are_unique_and_match_the_requested_count() {
        for kind in [LabelSetKind::DevOps, LabelSetKind::Kubernetes] {
            let sets = LabelSets::new(kind, 20_000).unwrap();
            let mut all = Vec::new();
            (0..sets.group_count()).for_each(|group| sets.push_group(group, &mut all));
            assert_eq!(all.len(), sets.series_count());
            assert!((20_000..20_200).contains(&all.len()), "{}", all.len());
            let has =
                |labels: &Labels| sets.group_by().iter().all(|name| labels.get(name).is_some());
            assert!(all.iter().all(has));
            assert!(all.contains(&sets.draw(7)) && sets.draw(7) == sets.draw(7));
            let per_group = all.len() as f64 / sets.group_count() as f64;
            let present = per_group / sets.templates[0].members.len() as f64;
            assert!((0.97..0.99).contains(&present), "{present} are there");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        }
    }

    #[test]
    fn an_exposed_line_becomes_its_labels() {
        let pairs = exposed(r#"m{a="x,\"y\\",job="j",b=""} 1 2"#).unwrap();
        assert_eq!(
            pairs,
            owned([
                ("__name__", "m".into()),
                ("a", "x,\"y\\".into()),
                ("exported_job", "j".into()),
                ("b", "".into()),
            ])
        );
        assert_eq!(exposed("m 1").unwrap(), named("m"));
        assert_eq!(exposed("m{a=\"x"), None);
    }
}
