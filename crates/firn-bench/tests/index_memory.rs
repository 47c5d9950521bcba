//! The memory of the index is counted: of many shapes of label sets, new series and files take no
//! more bytes than the index reports, and writing and merging files no more than was estimated.

use std::sync::Arc;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_bench::index::noise::noise;
use firn_env::{Disk, LocalDisk};
use firn_index::{GroupBy, Index, IndexOptions, WRITE_BUFFER_BYTES};
use firn_model::{Labels, ShardBits, ShardId};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SHARDS: u16 = 2;
/// Lists that have grown by doubling just now, and memory that does not depend on the number of
/// series.
const SLACK_BYTES: u64 = 256 << 10;
/// The number of files that are merged.
const FILES: usize = 4;

fn check(shape: &str, count: usize, group_by: GroupBy, labels: impl Fn(usize) -> Labels) {
    let folder = tempfile::tempdir().expect("a folder");
    let disk: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder.path()).expect("a disk"));
    let before = live_bytes();
    let options = IndexOptions { group_by, ..IndexOptions::default() };
    let index = Index::open(Arc::clone(&disk), ShardBits::for_count(SHARDS.into()), options, &[])
        .expect("opens");
    let held = |when: &str| {
        let (allocated, counted) = ((live_bytes() - before) as u64, index.stats().heap_bytes);
        println!("{shape}, {when}: {allocated} bytes allocated, {counted} counted");
        assert!(
            allocated <= counted + SLACK_BYTES && counted <= 2 * allocated + SLACK_BYTES,
            "{shape}, {when}: {allocated} bytes allocated, {counted} counted"
        );
    };
    let takes = |what: &str, estimate: u64, allocated: usize| {
        let allocated = allocated as u64;
        println!("{shape}, {what}: {allocated} bytes allocated, {estimate} estimated");
        assert!(
            allocated <= estimate + SLACK_BYTES && estimate <= 3 * allocated + WRITE_BUFFER_BYTES,
            "{shape}, {what}: {allocated} bytes allocated, {estimate} estimated"
        );
    };
    for file in 0..FILES {
        let mut found = Vec::new();
        for first in (0..count).step_by(100) {
            let series: Vec<Labels> =
                (first..count.min(first + 100)).map(|n| labels(file * count + n)).collect();
            found.clear();
            index.resolve(&series, &mut found);
            assert!(found.iter().all(Result::is_ok), "{shape}: {found:?}");
            for shard in 0..SHARDS {
                index.take_pending(ShardId(shard), &mut Vec::new());
            }
        }
        drop(found);
        held("new");
        let estimate = index.stats().seal_bytes + WRITE_BUFFER_BYTES;
        let job = index.plan_seal().expect("new series");
        let live = live_bytes();
        reset_peak();
        let part = job.run(&*disk).expect("a file");
        takes("seal", estimate, peak_bytes() - live);
        index.apply(&part).expect("applied");
        drop((part, job));
        held("sealed");
    }
    let job = index.plan_merge(u64::MAX).expect("files of one size");
    let live = live_bytes();
    reset_peak();
    let part = job.run(&*disk).expect("a file");
    takes("merge", job.memory_bytes(), peak_bytes() - live);
    index.apply(&part).expect("applied");
    drop((part, job));
    held("merged");
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::from_pairs(pairs.iter().copied()).expect("valid")
}

/// Series `n` with `names` label names of its own, each of `bytes`.
fn own_names(n: usize, names: usize, bytes: usize) -> Labels {
    let metric = format!("m_{n}");
    let own: Vec<String> =
        (0..names).map(|at| format!("l_{n}_{at}_{}", noise(n * names + at, bytes))).collect();
    let mut pairs = vec![("__name__", metric.as_str())];
    pairs.extend(own.iter().map(|name| (name.as_str(), "v")));
    labels(&pairs)
}

#[test]
fn series_of_any_shape_are_counted() {
    let by = |names: &[&'static str]| GroupBy::labels(names.iter().copied());
    check("60 long names of its own", 400, by(&[]), |n| own_names(n, 60, 150));
    check("60 short names of its own", 400, by(&[]), |n| own_names(n, 60, 1));
    check("60 names of its own, grouped", 400, by(&["__name__"]), |n| own_names(n, 60, 30));
    check("one name of its own", 8_000, by(&[]), |n| own_names(n, 1, 1));
    check("one name of its own with a long value", 1_000, by(&[]), |n| {
        labels(&[("__name__", "m"), (&format!("l_{n}"), &noise(n, 4_000))])
    });
    check("one value of its own", 8_000, by(&[]), |n| {
        labels(&[("__name__", "m"), ("id", &n.to_string())])
    });
    check("long values", 2_000, by(&[]), |n| {
        labels(&[("__name__", "m"), ("id", &n.to_string()), ("path", &noise(n, 1_500))])
    });
    check("ten labels of hosts, lone", 8_000, by(&[]), |n| host(n, 100));
    check("ten labels of hosts, grouped", 8_000, by(&["host"]), |n| host(n, 100));
    check("hosts with few metrics", 8_000, by(&["host"]), |n| host(n, 2));
    check("one large group", 4_000, by(&["job"]), |n| {
        labels(&[("__name__", "m"), ("job", "j"), ("id", &n.to_string())])
    });
}

/// Metric `n % metrics` of host `n / metrics`.
fn host(n: usize, metrics: usize) -> Labels {
    let (host, metric) = (n / metrics, n % metrics);
    let texts = [
        format!("metric_{metric}"),
        format!("host_{host}"),
        format!("rack_{}", host % 40),
        format!("region_{}", host % 5),
        format!("{}", host % 3),
    ];
    let mut pairs = vec![("__name__", texts[0].as_str()), ("host", &texts[1])];
    for name in ["rack", "datacenter", "service"] {
        pairs.push((name, &texts[2]));
    }
    for name in ["region", "os", "arch"] {
        pairs.push((name, &texts[3]));
    }
    pairs.extend([("team", texts[4].as_str()), ("service_version", &texts[4])]);
    labels(&pairs)
}
