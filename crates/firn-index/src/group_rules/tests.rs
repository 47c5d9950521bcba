//! Label sets of several kinds of senders, in several orders: the share of series in groups, and
//! their sizes.

use std::collections::BTreeMap;

use firn_model::{Labels, Timestamp, encode_varint};

use super::{GroupRule, GroupRules, mix};

type TimedLabels = (Labels, Timestamp);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Entity after entity.
    Natural,
    /// As shards of a sender with hashed series.
    Shuffled,
    /// All series of one metric, then of the next.
    ByMetric,
}

const ORDERS: [Order; 3] = [Order::Natural, Order::Shuffled, Order::ByMetric];

struct Grouped {
    series_count: usize,
    /// Members of each group.
    sizes: Vec<usize>,
    rules: GroupRules,
}

impl Grouped {
    /// The share of series in groups of at least `size` members, in percent.
    fn share(&self, size: usize) -> f64 {
        let members: usize = self.sizes.iter().filter(|&&count| count >= size).sum();
        100.0 * members as f64 / self.series_count as f64
    }

    /// The share of series in the largest group and those that were full before it.
    fn share_of_largest(&self) -> f64 {
        100.0 * self.largest() as f64 / self.series_count as f64
    }

    fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

/// Groups new series as the index does.
fn group(mut rules: GroupRules, series: &[TimedLabels], order: Order) -> Grouped {
    let mut series: Vec<&TimedLabels> = series.iter().collect();
    match order {
        Order::Natural => {}
        Order::Shuffled => series.sort_by_key(|series| mix(series.0.hash64())),
        Order::ByMetric => series.sort_by_key(|series| series.0.metric_name().to_owned()),
    }
    let mut groups: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for request in series.chunks(500) {
        rules.observe(request.iter().map(|series| (&series.0, series.1)));
        for (labels, _) in request {
            let Some(identity) = rules.identity(labels) else { continue };
            let size = groups.entry(identity.as_encoded().to_vec()).or_default();
            *size += 1;
            if *size > super::GROUP_SLOTS_GOOD as usize {
                rules.note_overgrown(labels);
            }
        }
    }
    Grouped { series_count: series.len(), sizes: groups.into_values().collect(), rules }
}

/// `name`, labels such as `a=1,b=2`, and a time.
fn series(name: &str, labels: &str, time: Timestamp) -> TimedLabels {
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    (Labels::from_pairs(pairs.chain([("__name__", name)])).unwrap(), time)
}

/// A number below `count` that depends on `seed` only.
fn draw(seed: usize, count: usize) -> usize {
    (mix(seed as u64) >> 11) as usize % count
}

fn devops(hosts: usize) -> Vec<TimedLabels> {
    let labels = |h: usize| {
        let (region, rest) = (draw(h, 9), draw(h + 7_000, 1_000));
        format!(
            "hostname=host_{h},region=r{region},datacenter=dc{region}{},rack={},os=o{},arch=a{},\
             team=t{},service={},service_version={},service_environment={}",
            rest % 3,
            rest % 100,
            rest % 3,
            rest % 2,
            rest % 4,
            rest % 20,
            rest % 2,
            rest % 3
        )
    };
    let metrics = |h| (0..101).map(move |m| series(&format!("m{m}"), &labels(h), 0));
    (0..hosts).flat_map(metrics).collect()
}

fn telegraf(hosts: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for h in 0..hosts {
        let mut put = |name: String, labels: String| {
            out.push(series(&name, &format!("host=h{h}{labels}"), 0));
        };
        (0..70).for_each(|m| put(format!("mem_{m}"), String::new()));
        (0..90).for_each(|m| put(format!("cpu_{}", m % 10), format!(",cpu=cpu{}", m / 10)));
        (0..14).for_each(|m| {
            let d = m / 7;
            put(format!("disk_{}", m % 7), format!(",device=sda{d},fstype=ext4,path=/p{d}"));
        });
        (0..16).for_each(|m| put(format!("net_{}", m % 8), format!(",interface=eth{}", m / 8)));
    }
    out
}

fn otlp(instances: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for i in 0..instances {
        let (service, id) = (i % 12, mix(i as u64));
        let resource =
            format!("service_name=s{service},service_instance_id={id:x},host_name=n{}", i / 4);
        let time = draw(i, 10_000) as i64;
        let mut put = |name: String, labels: String| {
            out.push(series(&name, &format!("{resource}{labels}"), time));
        };
        (0..25).for_each(|m| put(format!("runtime_{m}"), String::new()));
        for route in 0..6 {
            for le in 0..12 {
                put(
                    "http_bucket".to_owned(),
                    format!(",route=/{service}/{route},code=200,le={le}"),
                );
            }
            put("http_sum".to_owned(), format!(",route=/{service}/{route},code=200"));
            put("http_count".to_owned(), format!(",route=/{service}/{route},code=200"));
        }
        (0..20).for_each(|m| put(format!("pool_{}", m % 5), format!(",pool=p{}", m / 5)));
    }
    out
}

fn cadvisor(nodes: usize, pods: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for n in 0..nodes {
        let time = draw(n, 15_000) as i64;
        let mut put = |name: String, labels: String| {
            let labels = format!("job=kubelet,instance=10.0.0.{n}:10250{labels}");
            out.push(series(&name, &labels, time));
        };
        (0..50).for_each(|m| put(format!("container_{m}"), ",id=/".to_owned()));
        for p in 0..pods {
            let seed = n * 1_000 + p;
            let pod = format!(",namespace=ns{},pod=pod-{seed:x}", draw(seed, 20));
            (0..8).for_each(|m| {
                put(format!("net_{m}"), format!("{pod},id=/k/{seed},image=pause,interface=eth0"));
            });
            for c in 0..1 + draw(seed, 3) {
                let image = draw(seed + c, 200);
                let labels = format!("{pod},container=c{c},id=/k/{seed}/{c},image=i{image}");
                (0..50).for_each(|m| put(format!("container_{m}"), labels.clone()));
                (0..12).for_each(|m| {
                    put(format!("fs_{}", m % 6), format!("{labels},device=/dev/{}", m / 6));
                });
            }
        }
    }
    out
}

fn devices(count: usize, is_label: bool) -> Vec<TimedLabels> {
    let labels =
        |d| format!("device_id=d{d},location=l{},firmware={}", draw(d, 50), draw(d + 9, 6));
    let one = move |d, sensor| match is_label {
        true => series("reading", &format!("{},sensor=s{sensor}", labels(d)), 0),
        false => series(&format!("sensor_{sensor}"), &labels(d), 0),
    };
    (0..count).flat_map(move |d| (0..12).map(move |sensor| one(d, sensor))).collect()
}

fn interfaces(switches: usize) -> Vec<TimedLabels> {
    let one = |s: usize, port: usize, m: usize| {
        let alias = draw(s * 999 + port, 5_000);
        let port = format!("ifIndex={port},ifDescr=Gi0/{port},ifAlias=a{alias}");
        series(&format!("if_{m}"), &format!("agent=10.1.{s}.1,{port}"), s as i64)
    };
    let of_port = |s, port| (0..20).map(move |m| one(s, port, m));
    (0..switches).flat_map(|s| (0..48).flat_map(move |port| of_port(s, port))).collect()
}

fn random_values(count: usize, values: usize, labels: usize) -> Vec<TimedLabels> {
    let mut out: Vec<TimedLabels> = (0..count)
        .map(|i| {
            let pairs = (0..labels).map(|l| format!("l{l}={},", draw(i * 97 + l, values)));
            series(&format!("m{}", draw(i + 3, 100)), &pairs.collect::<String>(), 0)
        })
        .collect();
    out.sort_by(|a, b| a.0.as_encoded().cmp(b.0.as_encoded()));
    out.dedup();
    out
}

fn random_names(count: usize) -> Vec<TimedLabels> {
    let one = |i: usize| {
        let mut names: Vec<usize> = (0..2 + draw(i, 6)).map(|l| draw(i * 31 + l, 300)).collect();
        names.sort_unstable();
        names.dedup();
        let pairs = names.iter().map(|name| format!("n{name}={},", draw(i * 7 + name, 100_000)));
        series(&format!("m{}", draw(i + 5, 100)), &pairs.collect::<String>(), 0)
    };
    (0..count).map(one).collect()
}

fn kafka() -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for broker in 0..6 {
        let mut put = |name: String, labels: String| {
            out.push(series(&name, &format!("cluster=c,broker=b{broker}{labels}"), broker));
        };
        (0..60).for_each(|m| put(format!("server_{m}"), String::new()));
        for topic in 0..100 {
            (0..8).for_each(|m| put(format!("topic_{m}"), format!(",topic=t{topic}")));
            (0..36).for_each(|m| {
                put(format!("log_{}", m % 6), format!(",topic=t{topic},partition={}", m / 6));
            });
        }
    }
    out
}

#[test]
fn senders_with_entities_are_grouped_in_any_order() {
    let cases = [
        ("devops", devops(200), 95.0),
        ("one host", devops(1), 95.0),
        ("telegraf", telegraf(100), 95.0),
        ("one agent", telegraf(1), 95.0),
        ("otlp", otlp(60), 95.0),
        ("cadvisor", cadvisor(10, 40), 95.0),
        ("cadvisor, one node", cadvisor(1, 40), 95.0),
        ("devices", devices(2_000, false), 85.0),
        ("devices with a label per sensor", devices(2_000, true), 85.0),
        ("interfaces", interfaces(20), 90.0),
        ("kafka", kafka(), 95.0),
    ];
    for (name, series, by_metric) in cases {
        for order in ORDERS {
            let grouped = group(GroupRules::default(), &series, order);
            let wanted = if order == Order::ByMetric { by_metric } else { 95.0 };
            let (share, largest) = (grouped.share(8), grouped.largest());
            assert!(share >= wanted, "{name}, {order:?}: {share:.1}% of series in groups");
            assert!(largest <= 1_600, "{name}, {order:?}: a group of {largest}");
        }
    }
}

/// Proxies of a service mesh: few own metrics, and requests by peer, code and bucket.
fn mesh(pods: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for p in 0..pods {
        let pod =
            format!("pod=w{}-{:x},namespace=ns{},node=n{}", p / 4, mix(p as u64), p / 16, p / 8);
        let mut put = |name: String, labels: String| {
            out.push(series(&name, &format!("{pod}{labels}"), draw(p, 15_000) as i64));
        };
        (0..40).for_each(|m| put(format!("envoy_{m}"), String::new()));
        for peer in 0..3 {
            let peer = format!(",destination=svc{},reporter=source", draw(p * 7 + peer, 60));
            for code in ["200", "404", "503"] {
                let labels = format!("{peer},response_code={code}");
                put("requests_total".to_owned(), labels.clone());
                for le in 0..10 {
                    put("duration_bucket".to_owned(), format!("{labels},le={le}"));
                }
            }
        }
    }
    out
}

/// Database servers with metrics of each table.
fn tables(servers: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for s in 0..servers {
        let mut put = |name: String, labels: String| {
            let server = format!("cluster=c{},server=db{s}", s / 3);
            out.push(series(&name, &format!("{server}{labels}"), 0));
        };
        (0..50).for_each(|m| put(format!("pg_{m}"), String::new()));
        (0..30).for_each(|m| put(format!("pg_locks_{}", m % 3), format!(",mode=m{}", m / 3)));
        for d in 0..3 {
            (0..15).for_each(|m| put(format!("pg_db_{m}"), format!(",datname=d{d}")));
            for t in 0..20 + draw(s * 5 + d, 20) {
                let labels = format!(",datname=d{d},schemaname=public,relname=t{t}");
                (0..22).for_each(|m| put(format!("pg_table_{m}"), labels.clone()));
            }
        }
    }
    out
}

/// Performance counters with an `instance` that is no target.
fn counters(hosts: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for h in 0..hosts {
        for (object, instances, metrics) in
            [("Processor", 9, 12), ("LogicalDisk", 3, 14), ("Network", 2, 10), ("Process", 25, 6)]
        {
            for i in 0..instances {
                let labels = format!("host=win{h},objectname={object},instance={object}{i}");
                let one = |m| series(&format!("win_{object}_{m}"), &labels, 0);
                out.extend((0..metrics).map(one));
            }
        }
        let labels = format!("host=win{h},objectname=Memory");
        out.extend((0..20).map(|m| series(&format!("win_mem_{m}"), &labels, 0)));
    }
    out
}

/// Statistics of virtual machines in a cloud, by dimension.
fn cloud(machines: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for m in 0..machines {
        let place = format!("account=a{},region=r{}", draw(m, 3), draw(m + 1, 5));
        let mut put = |name: String, labels: String| {
            out.push(series(&name, &format!("{place}{labels}"), 0));
        };
        let machine = format!(",namespace=vm,dimension_machine=i-{:x}", mix(m as u64));
        for name in 0..11 {
            for statistic in ["average", "maximum", "minimum", "sum", "samples"] {
                put(format!("vm_{name}_{statistic}"), machine.clone());
            }
        }
        for disk in 0..draw(m + 2, 3) {
            let disk =
                format!(",namespace=disk,dimension_disk=vol-{:x}", mix((m * 8 + disk) as u64));
            for name in 0..8 {
                for statistic in ["average", "sum"] {
                    put(format!("disk_{name}_{statistic}"), disk.clone());
                }
            }
        }
    }
    out
}

/// Electricity meters: some readings by phase, some not.
fn meters(count: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for m in 0..count {
        let feeder = draw(m, 60);
        let meter = format!("meter=m{m:07},feeder=f{feeder},substation=s{}", feeder / 6);
        for name in 0..5 {
            out.push(series(&format!("meter_{name}"), &meter, 0));
        }
        for phase in 1..4 {
            let labels = format!("{meter},phase=L{phase}");
            (0..4).for_each(|name| out.push(series(&format!("phase_{name}"), &labels, 0)));
        }
    }
    out
}

/// Vehicles with a time of their own each.
fn vehicles(count: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for v in 0..count {
        let vehicle = format!("vin=V{:x},model=m{},fleet=f{}", mix(v as u64), draw(v, 7), v % 9);
        let time = draw(v + 5, 60_000) as i64;
        (0..22).for_each(|name| out.push(series(&format!("vehicle_{name}"), &vehicle, time)));
        for wheel in ["FL", "FR", "RL", "RR"] {
            let labels = format!("{vehicle},wheel={wheel}");
            (0..3).for_each(|name| out.push(series(&format!("wheel_{name}"), &labels, time)));
        }
    }
    out
}

/// Wind turbines: one metric name, and labels for everything else.
fn turbines(count: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for t in 0..count {
        for component in 0..6 {
            for sensor in 0..4 + component {
                let turbine =
                    format!("farm=w{},turbine=t{},component=c{component}", t / 30, t % 30);
                for field in ["value", "quality"] {
                    out.push(series(field, &format!("{turbine},sensor=s{sensor}"), 0));
                }
            }
        }
    }
    out
}

/// Graphics processors of machine learning hosts, and their jobs.
fn processors(hosts: usize) -> Vec<TimedLabels> {
    let mut out = Vec::new();
    for h in 0..hosts {
        for gpu in 0..8 {
            let uuid = mix((h * 8 + gpu) as u64);
            let labels = format!(
                "Hostname=gpu-{h},UUID=GPU-{uuid:x},device=nvidia{gpu},gpu={gpu},modelName=H{},\
                 pod=train-{:x}",
                draw(h, 2),
                draw(h * 8 + gpu, 900)
            );
            (0..30).for_each(|name| out.push(series(&format!("DCGM_{name}"), &labels, 0)));
        }
    }
    out
}

/// Names made of a path, and the host as the only label.
fn paths(hosts: usize) -> Vec<TimedLabels> {
    let one = |h: usize, m: usize| {
        let name = format!("app_{}_{}_count", m % 40, m / 40);
        series(&name, &format!("server=web{h}"), (h % 10) as i64)
    };
    (0..hosts).flat_map(|h| (0..160).map(move |m| one(h, m))).collect()
}

/// Shapes that were written after the rules.
#[test]
fn other_senders_are_grouped_too() {
    for (name, series) in [
        ("mesh", mesh(120)),
        ("tables", tables(12)),
        ("counters", counters(60)),
        ("cloud", cloud(150)),
        ("meters", meters(1_000)),
        ("vehicles", vehicles(400)),
        ("turbines", turbines(120)),
        ("processors", processors(30)),
        ("paths", paths(60)),
    ] {
        for order in ORDERS {
            let grouped = group(GroupRules::default(), &series, order);
            let (share, largest) = (grouped.share(8), grouped.largest());
            let mut sizes = grouped.sizes;
            sizes.sort_unstable();
            let median = sizes[sizes.len() / 2];
            println!(
                "{name} {order:?}: {share:.1}%, {} groups of {median}, {largest}",
                sizes.len()
            );
            let wanted = if order == Order::ByMetric { 85.0 } else { 95.0 };
            assert!(share >= wanted && largest <= 1_600, "{name}, {order:?}: {share:.1}%");
        }
    }
}

#[test]
fn random_label_sets_stay_alone() {
    let cases = [
        ("random values", random_values(10_000, 1_000_000, 5)),
        ("few random values", random_values(10_000, 100, 5)),
        ("very few random values", random_values(10_000, 10, 6)),
        ("random names", random_names(10_000)),
    ];
    for (name, series) in cases {
        for order in ORDERS {
            let grouped = group(GroupRules::default(), &series, order);
            let share = grouped.share(2);
            assert!(share <= 1.0, "{name}, {order:?}: {share:.1}% of series in groups");
        }
    }
}

#[test]
fn series_with_times_of_their_own_stay_alone() {
    let mut series = devices(500, false);
    assert!(group(GroupRules::default(), &series, Order::Shuffled).share(8) > 95.0);
    series.iter_mut().zip(0..).for_each(|(series, time)| series.1 = time);
    assert_eq!(group(GroupRules::default(), &series, Order::Shuffled).sizes, [0; 0]);
}

#[test]
fn job_and_instance_need_no_evidence_and_divide_when_too_large() {
    let mut rules = GroupRules::default();
    let (labels, time) = series("up", "job=a,instance=b,zone=c", 5);
    rules.observe([(&labels, time)].into_iter());
    assert_eq!(rules.identity(&labels).unwrap().to_string(), "{instance=\"b\",job=\"a\"}");
    // One target with many metrics of the same labels cannot be divided.
    let large: Vec<TimedLabels> =
        (0..3_000).map(|m| series(&format!("m{m}"), "job=a,instance=b", 0)).collect();
    assert_eq!(group(GroupRules::default(), &large, Order::Natural).sizes, [3_000]);
    // One node with many containers can.
    let grouped = group(GroupRules::default(), &cadvisor(1, 200), Order::Natural);
    assert!(grouped.sizes.len() > 200 && grouped.largest() < 1_600, "{:?}", grouped.sizes);
}

#[test]
fn rules_are_found_again_after_a_restart_and_after_a_crash() {
    for all in [telegraf(50), devices(500, true), cadvisor(5, 40), devops(20)] {
        let (older, newer) = all.split_at(all.len() / 2);
        let known = group(GroupRules::default(), older, Order::Natural).rules;
        let mut loaded = GroupRules::load(&known.encode()).unwrap();
        let mut recalled = GroupRules::default();
        for (labels, _) in older {
            if let Some(identity) = known.identity(labels) {
                recalled.recall(labels, &identity);
            }
        }
        assert_eq!(loaded.encode().len(), known.encode().len());
        for (labels, time) in newer {
            let wanted = known.identity(labels);
            assert!(wanted.is_some(), "{labels}");
            let rule = known.rule_of(wanted.as_ref().unwrap());
            for rules in [&mut loaded, &mut recalled] {
                rules.observe([(labels, *time)].into_iter());
                assert_eq!(rules.identity(labels), wanted, "{labels}");
            }
            assert_eq!(loaded.rule_of(wanted.as_ref().unwrap()), rule);
        }
    }
}

#[test]
fn a_shape_that_appears_after_a_restart_joins_the_known_groups() {
    let known = group(GroupRules::default(), &telegraf(20), Order::Natural).rules;
    let mut rules = GroupRules::load(&known.encode()).unwrap();
    let (labels, time) = series("gpu_load", "host=h3,gpu=0", 0);
    rules.observe([(&labels, time)].into_iter());
    assert_eq!(rules.identity(&labels).unwrap().to_string(), "{host=\"h3\"}");
    assert_eq!(rules.rule_of(&rules.identity(&labels).unwrap()), Some(GroupRule::SharedLabels));
}

#[test]
fn entities_are_found_after_many_random_label_sets() {
    let mut rules = group(GroupRules::default(), &random_names(30_000), Order::Natural).rules;
    assert!(rules.heap_bytes() < 12 << 20, "{} bytes", rules.heap_bytes());
    rules = group(rules, &random_names(10_000), Order::Shuffled).rules;
    let grouped = group(rules, &telegraf(40), Order::Natural);
    assert!(grouped.share(8) > 95.0, "{}", grouped.share(8));
}

/// A client may define groups by a metric name.
#[test]
fn a_group_of_a_metric_name_teaches_no_key() {
    let mut rules = GroupRules::default();
    let (labels, _) = series("up", "host=a", 0);
    rules.recall(&labels, &labels.filter(|name| name == "__name__"));
    assert_eq!((rules.identity(&labels), rules.encode()), (None, vec![1, 0]));
    rules.recall(&labels, &labels);
    assert_eq!(rules.identity(&labels).unwrap().to_string(), "{host=\"a\"}");
    assert!(GroupRules::load(&rules.encode()).is_ok());
}

/// Before, two groups that a client defined with such names made each replay of the log panic: the
/// database did not open again.
#[test]
fn other_names_with_the_hash_of_a_list_are_no_shape() {
    let (one, _) = series("m", "host=a", 0);
    let (two, _) = series("m", "aaemps=a,zwpdt_Kv=b", 0);
    assert_eq!(super::shape_hash(&one), super::shape_hash(&two));
    let mut rules = GroupRules::default();
    rules.recall(&one, &one.filter(|name| name == "__name__"));
    rules.recall(&two, &two.filter(|name| name == "zwpdt_Kv"));
    assert_eq!((rules.identity(&one), rules.identity(&two)), (None, None));
    assert!(GroupRules::load(&rules.encode()).is_ok());
}

#[test]
fn malformed_rules_are_refused() {
    let bytes = group(GroupRules::default(), &telegraf(5), Order::Natural).rules.encode();
    assert!(GroupRules::load(&bytes).is_ok() && GroupRules::load(&[]).is_ok());
    assert!((1..bytes.len()).all(|end| GroupRules::load(&bytes[..end]).is_err()));
    assert!(GroupRules::load(&[&bytes[..], &[0]].concat()).is_err());
    assert!(GroupRules::load(&[9]).unwrap_err().to_string().contains("version 9"));
}

/// Before, the rules in a manifest on a foreign slow tier took 90 times their length.
#[test]
fn rules_with_too_many_names_are_refused() {
    let rules = |name_count: usize| {
        let shape_count = name_count as u64 / 64;
        let mut out = Vec::new();
        [1, shape_count].into_iter().for_each(|number| encode_varint(number, &mut out));
        for shape in 0..shape_count {
            out.push(64);
            (0..64).for_each(|name| {
                out.push(4);
                out.extend(format!("{:04x}", shape * 64 + name).into_bytes());
            });
            out.extend([1, 3, 0]);
        }
        out
    };
    assert!(GroupRules::load(&rules(super::NAME_COUNT_MAX)).is_ok());
    assert!(GroupRules::load(&rules(super::NAME_COUNT_MAX + 64)).is_err());
}

/// A sender that invents names, with `job` and `instance` or without, takes bounded memory, time
/// and space in the manifest, does not split targets, and displaces no other sender.
#[test]
fn a_hundred_thousand_lists_of_names_are_bounded() {
    for labels in ["", "job=a,instance=b,"] {
        let known = group(GroupRules::default(), &telegraf(40), Order::Natural);
        assert!(known.share(8) > 95.0);
        let one = |i: usize| series("m", &format!("{labels}n{i}=1,o{}=2", draw(i, 90_000)), 0);
        let hostile: Vec<TimedLabels> = (0..100_000).map(one).collect();
        let grouped = group(known.rules, &hostile, Order::Natural);
        let rules = &grouped.rules;
        assert!(rules.shapes.len() <= super::SHAPE_COUNT_MAX);
        assert!(rules.names.len() <= super::NAME_COUNT_MAX);
        assert!(rules.heap_bytes() < 6 << 20, "{} bytes", rules.heap_bytes());
        let bytes = rules.encode();
        assert!(bytes.len() <= super::STORED_BYTES_MAX, "{} bytes", bytes.len());
        assert!(GroupRules::load(&bytes).unwrap().rule_of(&host()).is_some());
        match labels {
            "" => assert!(grouped.sizes.len() < 1_000, "{:?} groups", grouped.sizes.len()),
            _ => assert!(grouped.share_of_largest() > 95.0, "{:?}", grouped.sizes.len()),
        }
        let (labels, time) = series("cpu_1", "host=new,cpu=cpu3", 0);
        let mut rules = grouped.rules;
        rules.observe([(&labels, time)].into_iter());
        assert_eq!(rules.identity(&labels).unwrap().to_string(), "{host=\"new\"}");
    }
}

fn host() -> Labels {
    series("up", "host=h1", 0).0.filter(|name| name == "host")
}

/// The work of evaluations is bounded by the number of series, also for long lists of names of
/// which each label could be left out.
#[test]
fn evaluations_cost_no_more_than_their_credit() {
    let one = |i: usize| {
        let (shape, member) = (i / 16, i % 16);
        let pairs = (0..60).map(|l| format!("s{}_{l}={},", shape % 50, draw(i + l, 2 + member)));
        series(&format!("m{member}"), &pairs.collect::<String>(), 0)
    };
    let all: Vec<TimedLabels> = (0..20_000).map(one).collect();
    let mut rules = GroupRules::default();
    let mut lowest = rules.credit;
    for request in all.chunks(100) {
        let before = rules.credit;
        rules.observe(request.iter().map(|series| (&series.0, series.1)));
        let earned = request.len() as i64 * super::CREDIT_PER_SERIES;
        assert!(before > 0 || rules.credit >= before, "work without credit");
        lowest = lowest.min(rules.credit - earned);
    }
    assert!(lowest > -4 * super::CREDIT_MAX, "one evaluation visits {} rows", -lowest);
}

/// Before, the search in lists of names cost next to nothing: of some thousand lists with 60 names
/// of which most are the same, the evaluations of one request took seconds, in which no other
/// series was defined.
#[test]
fn evaluations_pay_for_the_lists_of_names_that_they_search() {
    let without = |a: usize, b: usize| {
        let names = (0..62).filter(|&name| name != a && name != b);
        series("m", &names.map(|name| format!("n{name:02}=1,")).collect::<String>(), 0)
    };
    let pairs = (0..62).flat_map(|a| (0..a).map(move |b| (a, b)));
    let all: Vec<TimedLabels> = pairs.map(|(a, b)| without(a, b)).collect();
    let mut rules = GroupRules::default();
    rules.observe(all.iter().map(|series| (&series.0, series.1)));
    assert_eq!(rules.shapes.len(), 1_891);
    let (names, before) = (rules.shapes[7].names.clone(), rules.credit);
    rules.family(&names, super::whole_key(names.len()), false);
    let paid = before - rules.credit;
    assert!(paid > 1_891 * 60 / 64, "{paid}");
}

/// Before, each series beyond the limit made room for itself and the next one only, and visited all
/// shapes twenty times for that.
#[test]
fn room_for_rows_is_made_for_many() {
    let one = |idx: usize, name: &str| {
        let labels = (0..12).filter(|bit| idx >> bit & 1 == 1);
        series(name, &labels.map(|bit| format!("l{bit:02}=1,")).collect::<String>(), 0)
    };
    let mut rules = GroupRules::default();
    for name in ["a", "b"] {
        let all: Vec<TimedLabels> = (1..4_091).map(|idx| one(idx, name)).collect();
        rules.observe(all.iter().map(|series| (&series.0, series.1)));
    }
    assert_eq!((rules.shapes.len(), rules.row_count), (4_090, 8_180));
    for idx in 0..100 {
        let (labels, time) = series("m", &format!("other={idx}"), 0);
        rules.observe([(&labels, time)].into_iter());
        let row_count: usize = rules.shapes.iter().map(|shape| shape.window.len()).sum();
        assert_eq!(rules.row_count, row_count);
    }
    assert!(rules.row_count < 7_300, "{}", rules.row_count);
}

/// Lists with more names than a key has bits, and names of any length.
#[test]
fn long_lists_of_names_and_long_names_have_targets_or_no_group() {
    let mut rules = GroupRules::default();
    let many: String = (0..100).map(|l| format!("l{l}=v,")).collect();
    let long = format!("{}=v,", "n".repeat(1_000));
    for labels in [many, long] {
        for m in 0..100 {
            let (alone, time) = series(&format!("m{m}"), &labels, 0);
            rules.observe([(&alone, time)].into_iter());
            assert_eq!(rules.identity(&alone), None);
            let (target, time) = series(&format!("m{m}"), &format!("{labels}job=a,instance=b"), 0);
            rules.observe([(&target, time)].into_iter());
            let identity = rules.identity(&target).unwrap();
            assert_eq!(identity.to_string(), "{instance=\"b\",job=\"a\"}");
            rules.note_overgrown(&target);
            rules.recall(&target, &identity);
        }
    }
    assert!(rules.shapes.is_empty() && rules.names.is_empty());
}

/// Series that a limit refuses are new again in each request.
#[test]
fn refused_series_that_return_are_no_evidence() {
    for random in [random_values(3_000, 1_000_000, 5), random_names(3_000)] {
        let again: Vec<TimedLabels> = random.iter().cycle().take(30_000).cloned().collect();
        let grouped = group(GroupRules::default(), &again, Order::Natural);
        assert!(grouped.share(1) <= 1.0, "{:.1}% of series in groups", grouped.share(1));
    }
}

/// Two senders with the same names: hosts, and random values. The random ones cost at most a group
/// of their own each; whether they are the first or the last, hosts are grouped in the end.
#[test]
fn senders_with_the_same_names_share_a_rule() {
    let host = |h: usize, m: usize| series(&format!("m{m}"), &format!("a=h{h},b=r{}", h % 9), 0);
    let hosts: Vec<TimedLabels> = (0..200).flat_map(|h| (0..50).map(move |m| host(h, m))).collect();
    let one =
        |i: usize| series(&format!("m{}", i % 50), &format!("a=x{i},b=y{}", draw(i, 9_000)), 0);
    let random: Vec<TimedLabels> = (0..10_000).map(one).collect();
    let rules = group(GroupRules::default(), &random, Order::Natural).rules;
    let later = group(rules, &hosts, Order::Natural);
    assert!(later.share(8) > 80.0, "{:.1}%", later.share(8));
    let earlier = group(GroupRules::default(), &hosts, Order::Natural);
    assert!(earlier.share(8) > 95.0);
    // Random ones beside them are alone in their groups, until they are nearly all there is.
    let more = group(earlier.rules, &random, Order::Natural);
    assert_eq!(more.largest(), 1);
    let one = |i: usize| series("m", &format!("a=z{i},b=y{}", draw(i, 9_000)), 0);
    let many: Vec<TimedLabels> = (0..300_000).map(one).collect();
    let rules = group(more.rules, &many, Order::Natural).rules;
    assert_eq!(rules.identity(&one(300_000).0), None);
    let mixed: Vec<TimedLabels> =
        hosts.iter().zip(&random).flat_map(|pair| [pair.0.clone(), pair.1.clone()]).collect();
    for order in ORDERS {
        let grouped = group(GroupRules::default(), &mixed, order);
        assert!(grouped.largest() <= 50, "{order:?}: {:?}", grouped.largest());
    }
}

/// A node's agent repeats measurements of containers at times of their own: they are the groups.
#[test]
fn a_target_whose_members_have_times_of_their_own_is_divided() {
    let container = |c: usize, m: usize| {
        let labels = format!("job=kubelet,instance=n{},id=/k/{c},pod=p{c}", c / 100);
        series(&format!("container_{m}"), &labels, draw(c, 15_000) as i64)
    };
    let all: Vec<TimedLabels> =
        (0..500).flat_map(|c| (0..40).map(move |m| container(c, m))).collect();
    for order in [Order::Natural, Order::Shuffled] {
        let grouped = group(GroupRules::default(), &all, order);
        assert!(grouped.share(8) > 95.0 && grouped.largest() <= 600, "{:?}", grouped.largest());
        let small: usize = grouped.sizes.iter().filter(|&&size| size <= 40).sum();
        assert!(small * 10 >= all.len() * 8, "{order:?}: {small} series by container");
    }
    // Without anything shared there is no group at all.
    let one = |i: usize| {
        let labels = format!("job=batch-{},instance=w{},key={i}", draw(i, 5), draw(i + 9, 20));
        series(&format!("m{}", i % 40), &labels, i as i64)
    };
    let random: Vec<TimedLabels> = (0..10_000).map(one).collect();
    let grouped = group(GroupRules::default(), &random, Order::Shuffled);
    assert!(grouped.share(1) < 10.0, "{:.1}%", grouped.share(1));
}

/// Keys that no shape has any more are not restored by a restart.
#[test]
fn a_dropped_rule_stays_dropped_after_a_restart() {
    let hosts = |time| series("m1", "host=a", time);
    let mut rules = GroupRules::default();
    rules.recall(&hosts(0).0, &host_of("a"));
    let bytes = rules.encode();
    assert!(GroupRules::load(&bytes).unwrap().identity(&hosts(0).0).is_some());
    let shape = &mut rules.shapes[0];
    shape.clear();
    assert_ne!(rules.encode(), Vec::<u8>::new());
    assert_eq!(GroupRules::load(&rules.encode()).unwrap().identity(&hosts(0).0), None);
}

fn host_of(host: &str) -> Labels {
    Labels::from_pairs([("host", host)]).unwrap()
}

/// Replay recalls a list of names once.
#[test]
fn definitions_of_one_list_of_names_are_recalled_once() {
    let mut rules = GroupRules::default();
    let (common, member) = (Labels::empty(), |m: &str| series(m, "cpu=0", 0).0);
    assert!(!rules.is_recalled(&host_of("a"), [&common, &member("m1")]));
    assert!(rules.is_recalled(&host_of("b"), [&common, &member("m2")]));
    assert!(rules.is_recalled(&host_of("b"), [&member("m2"), &common]));
    assert!(!rules.is_recalled(&common, [&host_of("b"), &member("m2")]));
    rules.observe(std::iter::empty());
    assert!(!rules.is_recalled(&host_of("b"), [&common, &member("m2")]));
}
