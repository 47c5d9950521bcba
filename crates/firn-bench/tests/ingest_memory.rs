//! The memory of write requests is counted: texts of many shapes take no more bytes than they
//! reserve, and little less.

use std::sync::{Arc, Mutex};

use firn_bench::index::counting::{
    Counting, compare_with, live_bytes, peak_bytes, reset_peak, reset_unreserved_peak,
    unreserved_bytes, unreserved_peak,
};
use firn_model::{Budget, LabelLimits};
use firn_server::ingest::{Ingest, IngestLimits, Scratch};
use firn_server::metadata::MetadataStore;
use firn_server::wire::exposition::ExtraLabels;
use firndb::{Db, Options, RecoveryProgress, local_env};
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The budget of the database under test.
static BUDGET: Mutex<Option<Budget>> = Mutex::new(None);

/// Memory that does not depend on the number of series.
const SLACK_BYTES: i64 = 512 << 10;

fn with_budget(budget: Option<Budget>) {
    *BUDGET.lock().expect("no panic") = budget;
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| format!("{} {n} 1700000000000\n", line(n))).collect()
}

fn check(shape: &str, text: &str) {
    let folder = TempDir::new().expect("a folder");
    let options = Options { memory_bytes_max: 512 << 20, ..Options::default() };
    let env = local_env(folder.path()).expect("a local folder");
    let db = Db::open_idle(env, options, &RecoveryProgress::default()).expect("opens");
    let db = Arc::new(db);
    with_budget(Some(db.budget().clone()));
    let limits = IngestLimits {
        labels: LabelLimits::default(),
        request_bytes_max: 32 << 20,
        cached_series_max: 1_000_000,
    };
    let (ingest, metadata) = (Ingest::new(Arc::clone(&db), limits), MetadataStore::new(1 << 20));
    let mut scratch = Scratch::default();
    let unreserved = unreserved_bytes();
    for round in ["new", "known"] {
        let (live, used) = (live_bytes(), db.budget().usage().used_bytes);
        reset_peak();
        reset_unreserved_peak();
        let outcome = ingest
            .exposition(text.as_bytes(), 0, &ExtraLabels::default(), &mut scratch, &metadata)
            .expect("right text");
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        let taken = (peak_bytes() - live) as i64;
        let reserved = (db.budget().usage().peak_bytes - used) as i64;
        let more = unreserved_peak() - unreserved;
        println!("{shape}, {round}: {taken} bytes taken, {reserved} reserved, {more} beyond");
        assert!(more <= SLACK_BYTES, "{shape}, {round}: {more} bytes are not reserved");
        // The peak is that of the first request.
        assert!(
            round == "known" || reserved <= taken / 2 * 5,
            "{shape}: {reserved} bytes reserved for {taken}"
        );
        scratch.trim();
    }
    with_budget(None);
}

#[test]
fn requests_reserve_the_memory_that_they_take() {
    compare_with(|| {
        let budget = BUDGET.try_lock().ok();
        budget.and_then(|budget| budget.as_ref().map(|it| it.usage().used_bytes)).unwrap_or(0)
    });
    for count in [30_000, 120_000] {
        check(&format!("{count} short texts"), &lines(count, |n| format!("m{n}")));
        let label = |n: usize| {
            format!("request_duration_seconds_count{{path=\"/{n}\",code=\"200\",method=\"get\"}}")
        };
        check(&format!("{count} with labels"), &lines(count, label));
    }
    let long = |n: usize| format!("m{{n=\"{n}{}\"}}", "v".repeat(300));
    check("30000 long texts", &lines(30_000, long));
}
