//! The memory of the cache of points is counted: of many shapes of keys and points, the store
//! allocates no more bytes than it reserves.

use std::sync::Arc;

use firn_bench::index::counting::{Counting, live_bytes};
use firn_cache::{Fill, OwnerHistory, Point, Store, StoreOptions};
use firn_env::LocalDisk;
use firn_model::{Budget, CommitSeq, TimeRange, Timestamp};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POINTS: Timestamp = 18;
/// Buffers of files, and lists that have grown by doubling just now.
const SLACK_BYTES: u64 = 256 << 10;

/// Sets `keys` keys in an empty store, with the times that `has` returns true for, and compares.
fn check(
    shape: &str,
    (keys, fields): (u64, u64),
    times: Timestamp,
    has: impl Fn(u64, Timestamp) -> bool,
) {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(LocalDisk::open(folder.path().to_path_buf()).expect("a disk"));
    let options = StoreOptions { flash_bytes_max: 64 << 20, ..StoreOptions::default() };
    let before = live_bytes();
    let budget = Budget::new(1 << 30);
    let store = Store::open(disk, "cache", &budget, options, OwnerHistory::IMMUTABLE);
    let store = store.expect("opens");
    let (mut steps, last) = (Vec::new(), times);
    for n in 0..keys {
        let times = (0..times).filter(|&ts| has(n, ts));
        let points: Vec<Point<'_>> =
            times.map(|ts| Point { ts, head: None, payload: b"1" }).collect();
        let key = format!("equal-{n}");
        store.set(&Fill {
            key: key.as_bytes(),
            field: n % fields,
            range: TimeRange::new(0, last),
            number: CommitSeq(0),
            note: &[],
            points: &points,
        });
        drop(points);
        if n % 1_000 == 999 {
            let allocated = (live_bytes() - before) as u64;
            steps.push((allocated, budget.usage().used_bytes));
        }
        while store.work() {}
    }
    let (allocated, reserved) = *steps.last().expect("a step");
    println!("{shape}: {allocated} bytes allocated, {reserved} reserved");
    for (allocated, reserved) in steps {
        assert!(
            allocated <= reserved + SLACK_BYTES && reserved <= 2 * allocated + SLACK_BYTES,
            "{shape}: {allocated} bytes allocated, {reserved} reserved"
        );
    }
}

/// The allocated memory was three times the reserved memory.
#[test]
fn keys_and_points_of_any_shape_are_reserved() {
    check("equal points", (20_000, 1), POINTS, |_, _| true);
    check("one point each", (20_000, 1), POINTS, |n, ts| n as Timestamp % POINTS == ts);
    check("no points", (20_000, 1), POINTS, |_, _| false);
    let lacks_one = |n: u64, ts| (n / 16) as Timestamp % POINTS != ts;
    check("all but one of the equal points, 16 fields", (20_000, 16), POINTS, lacks_one);
    check("any of the equal points", (20_000, 1), POINTS, |n, ts| n >> (ts % 15) & 1 == 0);
    check("many points", (1_000, 1), 2_000, |n, ts| (n as Timestamp + ts) % 3 == 0);
}
