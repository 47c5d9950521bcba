//! The memory of scrapes is counted: bodies of many shapes take no more bytes than they reserve,
//! and little less.

use std::sync::Arc;
use std::time::Duration;

use firn_bench::index::counting::{
    Counting, compare_with, live_bytes, peak_bytes, reset_peak, reset_unreserved_peak,
    unreserved_bytes, unreserved_peak,
};
use firn_collect::config::{Config, LabelSet};
use firn_collect::pool::{DiscoveredGroup, PreparedList, ScrapePools};
use firn_collect::relabel::LabelEditor;
use firn_collect::scrape::{
    Answer, MetadataItem, ScrapeContext, ScrapeScratch, Store, TargetScraper,
};
use firn_collect::targets::Target;
use firn_model::{Budget, Error, GroupId, Labels, Result, RowBatch, SeriesRef, Slot};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that does not depend on the number of series.
const SLACK_BYTES: i64 = 768 << 10;

/// The same for a list of targets: the job and the labels of one target.
const LIST_SLACK_BYTES: i64 = 32 << 10;

/// A database that keeps nothing.
#[derive(Default)]
struct CountingStore {
    series_count: u32,
    is_full: bool,
}

impl CountingStore {
    fn series(&mut self) -> Result<SeriesRef> {
        if self.is_full {
            return Err(Error::busy(1_000, "out of memory for new series; send them again"));
        }
        self.series_count += 1;
        Ok(SeriesRef {
            group: GroupId((self.series_count >> 12).into()),
            slot: Slot(self.series_count),
        })
    }
}

impl Store for CountingStore {
    fn resolve_group(&mut self, _: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>> {
        members.iter().map(|_| self.series()).collect()
    }

    fn resolve(&mut self, series: &[Labels]) -> Vec<Result<SeriesRef>> {
        series.iter().map(|_| self.series()).collect()
    }

    fn generation(&self) -> u32 {
        0
    }

    fn metadata(&mut self, _: &Labels, _: &str, _: MetadataItem<'_>) {}

    fn write(&mut self, _: &mut RowBatch) -> Result<u64> {
        Ok(0)
    }
}

fn scraper(keys: &str, budget: &Budget) -> TargetScraper {
    let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
    let loaded = Config::parse(&text, &|_| None).expect("right config");
    let job = Arc::new(loaded.config.scrape_configs[0].clone());
    let mut editor = LabelEditor::default();
    let labels: LabelSet = [("__address__", "h:1")].into_iter().collect();
    let none: LabelSet = std::iter::empty::<(&str, &str)>().collect();
    let discovered = Target::discovered_labels(&job, &labels, &none, &mut editor).expect("right");
    let target = Target::populate(&job, discovered, &mut editor).expect("right").expect("kept");
    let context = ScrapeContext { phase_seed: 1, budget: budget.clone() };
    TargetScraper::new(&job, Arc::new(target), &context, 0)
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| format!("{} {n}\n", line(n))).collect()
}

/// One test, because the count is one for the process.
#[test]
fn the_memory_of_targets_is_reserved() {
    let budget = Budget::new(1 << 30);
    let usage = budget.clone();
    compare_with(move || usage.usage().used_bytes);
    scrapes_reserve_the_memory_that_they_take(&budget);
    lists_reserve_the_memory_that_they_take(&budget);
}

fn scrapes_reserve_the_memory_that_they_take(budget: &Budget) {
    let word = |bytes: usize| "v".repeat(bytes);
    let (none, drop) =
        ("", "metric_relabel_configs: [{action: drop, regex: 'm.*', source_labels: [__name__]}]");
    let check = |shape: &str, keys: &str, is_full: bool, bodies: &[String]| {
        let mut store = CountingStore { is_full, ..CountingStore::default() };
        let mut scraper = scraper(keys, budget);
        let mut scratch = ScrapeScratch::new(budget);
        for (nth, body) in bodies.iter().enumerate() {
            let answer = Answer {
                status: "200 OK",
                content_type: Some("text/plain"),
                body: body.as_bytes(),
            };
            let (live, used) = (live_bytes(), budget.usage().used_bytes);
            let unreserved = unreserved_bytes();
            reset_peak();
            reset_unreserved_peak();
            let (report, reserved) = (std::cell::Cell::new(0), budget);
            let elapsed = || {
                report.set(reserved.usage().used_bytes - used);
                Duration::ZERO
            };
            scraper.finish(1_000, Ok(answer), &elapsed, &mut store, &mut scratch).ok();
            let taken = (peak_bytes() - live) as i64;
            let (more, reserved) = (unreserved_peak() - unreserved, report.get() as i64);
            println!(
                "{shape}, body {nth}: {taken} bytes taken, {reserved} reserved, {more} beyond"
            );
            assert!(more <= SLACK_BYTES, "{shape}, body {nth}: {more} bytes are not reserved");
            assert!(
                reserved <= 2 * taken + SLACK_BYTES,
                "{shape}, body {nth}: {reserved} bytes reserved for {taken}"
            );
        }
    };
    // Lists grow to twice their length: just before and just after they do.
    for count in [16_000, 17_000, 24_000] {
        let short = |n: usize| format!("m{n}");
        check(&format!("{count} short texts"), none, false, &[lines(count, short)]);
        let label = |n: usize| format!("metric{{path=\"/{n}\",code=\"200\",method=\"get\"}}");
        check(&format!("{count} with labels"), none, false, &[lines(count, label)]);
        let other = |n: usize| label(n + n / 2);
        let changed = [lines(count, label), lines(count, other)];
        check(&format!("{count} that change"), none, false, &changed);
        check(&format!("{count} that are dropped"), drop, false, &[lines(count, label)]);
        check(&format!("{count} that are refused"), none, true, &[lines(count, label)]);
        let twice = lines(4 * count, |n| format!("m{}", n / 2));
        check(&format!("{} that repeat", 4 * count), none, false, &[twice.clone(), twice]);
        let long = |n: usize| format!("m{{n=\"{n}{}\"}}", word(300));
        check(&format!("{count} long texts"), none, false, &[lines(count, long)]);
    }
}

/// Before, 100,000 targets took 3 KB each, or 6 KB with 20 labels, and reserved 4 KB and 9 KB.
fn lists_reserve_the_memory_that_they_take(budget: &Budget) {
    let drop = "relabel_configs: [{action: drop, regex: '.*', source_labels: [__address__]}]";
    let add = "relabel_configs: [{target_label: long, replacement: 'LONG'}]";
    let add = add.replace("LONG", &"v".repeat(2_000));
    // A table is full at 7/8 of a power of two, and grows to twice its size.
    let shapes = [("plain", ""), ("dropped", drop), ("with a long label", &add)];
    for (shape, keys) in shapes {
        for (count, label_count) in [(1_000, 1), (7_000, 1), (7_200, 1), (7_200, 20), (14_500, 8)] {
            let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
            let loaded = Config::parse(&text, &|_| None).expect("right config");
            let jobs = [Arc::new(loaded.config.scrape_configs[0].clone())];
            let target = |n: usize| {
                let labels =
                    (0..label_count).map(|l| (format!("__meta_label_{l}"), format!("v{n}")));
                let address = ("__address__".to_owned(), format!("host-{n}:9100"));
                labels.chain([address]).collect::<Vec<_>>()
            };
            let of = |from: usize| {
                let labels = (from..from + count).map(target);
                let pairs = labels.map(|pairs| pairs.iter().map(|(n, v)| (&**n, &**v)).collect());
                DiscoveredGroup { targets: pairs.collect(), labels: LabelSet::default() }
            };
            let (first, second) = (of(0), of(count / 10));
            let context = ScrapeContext { phase_seed: 1, budget: budget.clone() };
            let mut pools = ScrapePools::new(context);
            let (live, used) = (live_bytes(), budget.usage().used_bytes);
            let unreserved = unreserved_bytes();
            pools.set_jobs(&jobs, 0);
            for (nth, list) in [&first, &first, &second].into_iter().enumerate() {
                reset_unreserved_peak();
                let known = |labels: &Labels| pools.known(&jobs[0], labels);
                let list = PreparedList::read(&jobs[0], [list], budget, 64, known);
                pools.sync("j", list, 0).expect("memory");
                let taken = live_bytes() as i64 - live as i64;
                let reserved = budget.usage().used_bytes as i64 - used as i64;
                let more = unreserved_peak() - unreserved;
                println!(
                    "{count} {shape}, {label_count} labels, list {nth}: {} bytes taken, {} \
                     reserved a target, {more} beyond",
                    taken / count as i64,
                    reserved / count as i64
                );
                assert!(more <= LIST_SLACK_BYTES && taken <= reserved, "{shape}: {more}");
                assert!(reserved <= 2 * taken, "{shape}: {reserved} reserved for {taken}");
            }
            std::mem::drop(pools);
        }
    }
}
