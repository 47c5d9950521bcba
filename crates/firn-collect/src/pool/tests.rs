use std::time::Duration;

use firn_model::{Budget, Error, RowBatch};
use proptest::prelude::*;

use super::*;
use crate::config::Config;
use crate::scrape::{Answer, MetadataItem, ScrapeScratch, Store};

/// The newest value of each series; `None` is a stale marker.
#[derive(Debug, Default)]
struct Values {
    series: Vec<(Labels, Labels)>,
    newest: BTreeMap<u32, (Timestamp, Option<f64>)>,
    fails: bool,
}

impl Values {
    fn of(&mut self, group: &Labels, member: &Labels) -> SeriesRef {
        let wanted = (group.clone(), member.clone());
        let idx = self.series.iter().position(|known| *known == wanted).unwrap_or_else(|| {
            self.series.push(wanted);
            self.series.len() - 1
        });
        SeriesRef {
            group: firn_model::GroupId(0),
            slot: firn_model::Slot(u32::try_from(idx).unwrap()),
        }
    }

    /// Metrics of targets with a live `instance`, as `instance metric`.
    fn live(&self) -> Vec<String> {
        let live = self.newest.iter().filter(|(_, (_, value))| value.is_some());
        let mut live: Vec<String> = live
            .map(|(slot, _)| {
                let (group, member) = &self.series[*slot as usize];
                format!("{} {}", group.get("instance").unwrap(), member.metric_name())
            })
            .filter(|series| !series.contains("scrape_"))
            .collect();
        live.sort();
        live
    }
}

impl Store for Values {
    fn resolve_group(&mut self, group: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>> {
        members.iter().map(|member| Ok(self.of(group, member))).collect()
    }

    fn resolve(&mut self, series: &[Labels]) -> Vec<Result<SeriesRef>> {
        series.iter().map(|_| Err(Error::internal("a series of no target"))).collect()
    }

    fn generation(&self) -> u32 {
        0
    }

    fn metadata(&mut self, _: &Labels, _: &str, _: MetadataItem<'_>) {}

    fn write(&mut self, batch: &mut RowBatch) -> Result<u64> {
        if self.fails {
            return Err(Error::unavailable("disk full"));
        }
        for cell in batch.cells() {
            let value = (!firn_model::is_stale_nan(cell.value)).then_some(cell.value);
            let newest = self.newest.entry(cell.slot.0).or_insert((cell.ts, value));
            if newest.0 <= cell.ts {
                *newest = (cell.ts, value);
            }
        }
        Ok(0)
    }
}

struct Collector {
    pools: ScrapePools,
    store: Values,
    scratch: ScrapeScratch,
    now: Timestamp,
    /// Scrapes and ends so far, without those that had no request.
    scrape_count: usize,
    end_count: usize,
    refusals: Vec<String>,
    body: String,
}

fn jobs(text: &str) -> Vec<Arc<ScrapeConfig>> {
    let loaded = Config::parse(&format!("scrape_configs: {text}"), &|_| None).unwrap();
    loaded.config.scrape_configs.iter().cloned().map(Arc::new).collect()
}

fn group(addresses: &[&str]) -> DiscoveredGroup {
    let target = |address: &&str| [("__address__", *address)].into_iter().collect();
    DiscoveredGroup {
        targets: addresses.iter().map(target).collect(),
        labels: [("team", "x")].into_iter().collect(),
    }
}

impl Collector {
    fn new(text: &str) -> Collector {
        let budget = Budget::new(16 << 20);
        let scratch = ScrapeScratch::new(&budget);
        let context = ScrapeContext { phase_seed: 1, budget };
        let mut world = Collector {
            pools: ScrapePools::new(context),
            store: Values::default(),
            scratch,
            now: 1_000_000,
            scrape_count: 0,
            end_count: 0,
            refusals: Vec::new(),
            body: "a 1\n".to_owned(),
        };
        world.set_jobs(text);
        world
    }

    fn set_jobs(&mut self, text: &str) -> Vec<String> {
        self.pools.set_jobs(&jobs(text), self.now)
    }

    fn sync(&mut self, job: &str, addresses: &[&str]) -> SyncReport {
        self.sync_group(job, &group(addresses)).unwrap()
    }

    fn sync_group(&mut self, job: &str, group: &DiscoveredGroup) -> Result<SyncReport> {
        let pools = &self.pools;
        let pool = pools.pools.get(job).or(pools.pools.values().next()).unwrap();
        let known = |labels: &Labels| pools.known(&pool.job, labels);
        let list = PreparedList::read(&pool.job, [group], &pools.context.budget, 64, known);
        self.pools.sync(job, list, self.now)
    }

    fn finish(&mut self, due: Due) {
        let Due { id, mut scraper, work } = due;
        let elapsed = || Duration::ZERO;
        match work {
            Work::Scrape { ts, refused } => {
                let answer = match refused {
                    Some(text) => {
                        self.refusals.push(text.to_string());
                        Err(crate::scrape::FetchFailure::Other(text.to_string()))
                    }
                    None => {
                        self.scrape_count += 1;
                        let body = self.body.as_bytes();
                        Ok(Answer { status: "200 OK", content_type: Some("text/plain"), body })
                    }
                };
                let store = &mut self.store;
                let written = scraper.finish(ts, answer, &elapsed, store, &mut self.scratch);
                assert_eq!(written.is_err(), self.store.fails);
            }
            Work::End { ts, alive } => {
                self.end_count += 1;
                let is_alive = |series| alive.contains(&series);
                let ended = scraper.end(ts, &is_alive, &mut self.store, &mut self.scratch);
                assert_eq!(ended.is_err(), self.store.fails);
            }
        }
        self.pools.done(id, scraper, self.now);
    }

    /// Does everything that is due in the next `seconds`, at its time.
    fn run(&mut self, seconds: i64) {
        let end = self.now + seconds * 1_000;
        while let Some(at) = self.pools.next_at().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            while let Some(due) = self.pools.take_due(self.now) {
                self.finish(due);
            }
        }
        self.now = end;
    }
}

const JOB: &str = "[{job_name: j, scrape_interval: 10s}]";

#[test]
fn each_target_is_scraped_once_an_interval() {
    let mut world = Collector::new(JOB);
    assert_eq!(world.sync("j", &["h:1", "h:2", "h:3"]).active_count, 3);
    assert_eq!(world.sync("unknown", &["h:1"]), SyncReport::default());
    world.run(60);
    assert_eq!(world.scrape_count, 18);
    assert_eq!(world.store.live(), ["h:1 a", "h:1 up", "h:2 a", "h:2 up", "h:3 a", "h:3 up"]);
    // Item 26: targets have phases of their own.
    let times: HashSet<i64> = world.store.newest.values().map(|(ts, _)| ts % 10_000).collect();
    assert_eq!(times.len(), 3);
    // The same list again changes nothing.
    world.sync("j", &["h:3", "h:2", "h:1"]);
    world.run(60);
    assert_eq!((world.scrape_count, world.end_count), (36, 0));
}

/// Scrapes stopped until the clock was where it had been.
#[test]
fn scrapes_go_on_after_the_clock_was_set_back() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1", "h:2", "h:3"]);
    world.run(60);
    let in_flight = std::iter::from_fn(|| {
        world.now += 10_000;
        world.pools.take_due(world.now)
    });
    let in_flight = in_flight.take(1).last().unwrap();
    world.now -= 3_600_000;
    assert!(world.pools.take_due(world.now).is_none());
    world.finish(in_flight);
    world.run(60);
    assert!((36..=38).contains(&world.scrape_count), "{}", world.scrape_count);
}

// Items 17 and 18: dropped targets, targets that cannot be scraped, and equal targets.
#[test]
fn targets_are_sorted_out_before_they_are_scraped() {
    let mut world = Collector::new(
        "[{job_name: j, keep_dropped_targets: 1, relabel_configs: [\
           {source_labels: [__address__], regex: 'drop.*', action: drop}]}]",
    );
    let report = world.sync("j", &["h:1", "drop1", "drop2", "a/b", "h:1"]);
    assert_eq!((report.active_count, report.dropped_count, report.failed_count), (1, 2, 1));
    assert_eq!(report.errors, ["\"a/b\" is not a valid hostname"]);
    let (_, pool) = world.pools.pools().next().unwrap();
    assert_eq!(pool.dropped().len(), 1);
    assert_eq!(pool.report(), &report);
    world.run(60);
    let targets: Vec<_> = world.pools.targets(pool_of(&world)).collect();
    assert_eq!(targets.len(), 1);
    assert!(targets[0].status.last_scrape.is_some());
}

fn pool_of(world: &Collector) -> &ScrapePool {
    world.pools.pools().next().unwrap().1
}

// Item 20: over target_limit no target is scraped.
#[test]
fn too_many_targets_fail_all() {
    let mut world = Collector::new("[{job_name: j, scrape_interval: 10s, target_limit: 2}]");
    world.sync("j", &["h:1", "h:2"]);
    world.run(10);
    assert_eq!(world.scrape_count, 2);
    assert!(world.sync("j", &["h:1", "h:2", "h:3"]).exceeds_limit);
    world.run(10);
    assert_eq!(world.scrape_count, 2);
    assert_eq!(world.refusals, ["target_limit exceeded (number of targets: 3, limit: 2)"; 3]);
    let up = |world: &Collector| {
        let mut live = world.store.live();
        live.retain(|series| series.ends_with(" a"));
        live.len()
    };
    assert_eq!(up(&world), 0, "the series are stale");
    world.sync("j", &["h:1", "h:3"]);
    world.run(10);
    assert_eq!((world.scrape_count, up(&world)), (4, 2));
}

// Item 37: series of a removed target become stale at the time of the scrape that it missed,
// 2.1 intervals after its last one.
#[test]
fn targets_that_are_gone_become_stale() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1", "h:2"]);
    world.run(20);
    world.sync("j", &["h:2"]);
    world.run(10);
    assert_eq!(world.end_count, 0);
    assert!(world.store.live().contains(&"h:1 a".to_owned()));
    world.run(12);
    assert_eq!((world.end_count, world.store.live()), (1, vec!["h:2 a".into(), "h:2 up".into()]));
    let stale: Vec<_> = world.store.newest.values().filter(|(_, value)| value.is_none()).collect();
    // `a` and five reports, at the time of the grid.
    assert_eq!(stale.len(), 6);
    assert!(stale.iter().all(|(ts, _)| *ts == stale[0].0 && *ts <= 1_000_000 + 30_000));
    world.set_jobs("[]");
    world.run(40);
    assert_eq!((world.end_count, world.store.live().len()), (2, 0));
    assert_eq!(world.pools.slots.len() + world.pools.by_labels.len(), 0);
    assert_eq!(world.pools.next_at(), None);
}

// Item 37: no marker for a series that has newer samples.
#[test]
fn a_target_that_comes_back_is_not_marked() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1"]);
    world.run(20);
    world.sync("j", &[]);
    world.run(5);
    world.sync("j", &["h:1"]);
    world.body = "a 2\nb 1\n".to_owned();
    world.run(60);
    assert_eq!(world.end_count, 1);
    assert_eq!(world.store.live(), ["h:1 a", "h:1 b", "h:1 up"]);
    assert!(world.store.newest.values().all(|(_, value)| value.is_some()));
}

/// Before, each of them searched all targets with its labels, those that left as well, and had a
/// set of their series of its own: 20,000 of them took minutes, in which none was scraped.
#[test]
fn targets_with_the_same_labels_leave_side_by_side() {
    let mut world = Collector::new(JOB);
    let sync = |world: &mut Collector, count: usize| {
        let target = |idx: usize| [("__address__", &*format!("h:{idx}"))].into_iter().collect();
        let targets = (1..=count).map(target).collect();
        let labels = [("instance", "same")].into_iter().collect();
        world.sync_group("j", &DiscoveredGroup { targets, labels }).unwrap();
        let listed: usize = world.pools.by_labels.values().map(BTreeSet::len).sum();
        assert_eq!(listed, count, "those that leave are not searched");
    };
    let take_ends = |world: &mut Collector, count: usize| {
        let mut ends = Vec::new();
        world.now += 30_000;
        while ends.len() < count {
            match world.pools.take_due(world.now).expect("an end is due") {
                due if matches!(due.work, Work::End { .. }) => ends.push(due),
                due => world.finish(due),
            }
        }
        let alive = |due: &Due| match &due.work {
            Work::End { alive, .. } => (Arc::as_ptr(alive), alive.listed.is_some()),
            Work::Scrape { .. } => unreachable!(),
        };
        let alive: HashSet<_> = ends.iter().map(alive).collect();
        ends.into_iter().for_each(|due| world.finish(due));
        alive
    };
    sync(&mut world, 60);
    world.run(20);
    sync(&mut world, 20);
    let alive = take_ends(&mut world, 40);
    assert!(alive.iter().all(|(_, is_listed)| !is_listed), "20 are not compared");
    sync(&mut world, 1);
    let alive = take_ends(&mut world, 19);
    assert!(alive.iter().all(|(_, is_listed)| *is_listed));
    assert!(alive.len() < 10, "{} sets for 19 ends", alive.len());
    assert_eq!(world.store.live(), ["same a", "same up"]);
    sync(&mut world, 2);
    world.run(20);
    sync(&mut world, 1);
    world.now += 30_000;
    world.pools.listed = (world.now, ALIVE_COUNT_MAX);
    let ends = |world: &mut Collector| {
        let due = std::iter::from_fn(|| {
            let due = world.pools.take_due(world.now)?;
            let is_end = matches!(due.work, Work::End { .. });
            world.finish(due);
            Some(is_end)
        });
        due.filter(|is_end| *is_end).count()
    };
    assert_eq!(ends(&mut world), 0, "too many were listed just now");
    world.now += RETRY_MS;
    assert_eq!(ends(&mut world), 1);
    sync(&mut world, 0);
    world.run(60);
    assert_eq!((world.store.live().len(), world.pools.slots.len()), (0, 0));
}

// Items 37 and 47: a reload.
#[test]
fn a_reload_keeps_what_has_not_changed() {
    let text = |interval: &str, other: &str| {
        format!(
            "[{{job_name: j, scrape_interval: {interval}}}, \
              {{job_name: k, scrape_interval: 10s, {other}}}]"
        )
    };
    let mut world = Collector::new(&text("10s", ""));
    world.sync("j", &["h:1"]);
    world.sync("k", &["h:2"]);
    world.run(20);
    assert!(world.set_jobs(&text("10s", "")).is_empty());
    // An interval is a label of the target: it is another target with the same series.
    assert_eq!(world.set_jobs(&text("5s", "")), ["j"]);
    world.sync("j", &["h:1"]);
    let before = world.scrape_count;
    world.run(20);
    assert_eq!(world.scrape_count - before, 2 + 4);
    assert_eq!(world.end_count, 0);
    assert_eq!(world.store.live(), ["h:1 a", "h:1 up", "h:2 a", "h:2 up"]);
    // Other rules: series that they drop become stale at the next scrape.
    let dropping = "metric_relabel_configs: [{source_labels: [__name__], regex: a, action: drop}]";
    assert_eq!(world.set_jobs(&text("5s", dropping)), ["k"]);
    world.sync("k", &["h:2"]);
    world.run(10);
    assert_eq!(world.store.live(), ["h:1 a", "h:1 up", "h:2 up"]);
}

// Item 47: a running scrape ends first, and its successor continues.
#[test]
fn a_scrape_that_runs_at_a_reload_ends_first() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1"]);
    world.run(20);
    world.now = world.pools.next_at().unwrap();
    let due = world.pools.take_due(world.now).unwrap();
    for limit in [7, 8] {
        world.set_jobs(&format!("[{{job_name: j, scrape_interval: 10s, sample_limit: {limit}}}]"));
        world.sync("j", &["h:1"]);
    }
    world.run(15);
    assert_eq!(world.scrape_count, 2, "the new target waits");
    world.finish(due);
    world.body = "b 1\n".to_owned();
    world.run(20);
    assert!(world.scrape_count >= 4);
    assert_eq!(world.store.live(), ["h:1 b", "h:1 up"]);
    // The target is removed while it is scraped.
    world.now = world.pools.next_at().unwrap();
    let due = world.pools.take_due(world.now).unwrap();
    world.sync("j", &[]);
    world.finish(due);
    world.run(60);
    assert_eq!((world.end_count, world.store.live().len()), (1, 0));
    assert_eq!(world.pools.slots.len(), 0);
}

// The series of a removed target become stale once the database can be written again; but not for
// ever, else targets would pile up.
#[test]
fn an_end_that_fails_is_tried_again_for_some_time() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1"]);
    world.run(20);
    world.sync("j", &[]);
    world.store.fails = true;
    world.run(60);
    let tries = world.end_count;
    assert!((3..7).contains(&tries), "{tries}");
    world.store.fails = false;
    world.run(15);
    assert_eq!((world.end_count, world.store.live().len()), (tries + 1, 0));
    assert_eq!(world.pools.next_at(), None);

    world.sync("j", &["h:2"]);
    world.run(20);
    let ids: Vec<TargetId> = world.pools.targets(pool_of(&world)).map(|target| target.id).collect();
    world.sync("j", &[]);
    world.store.fails = true;
    world.run(700);
    assert!(!world.pools.contains(ids[0]));
    assert_eq!(world.pools.next_at(), None);
}

#[test]
fn a_scraper_that_is_lost_is_replaced() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1"]);
    world.run(20);
    world.now = world.pools.next_at().unwrap();
    let due = world.pools.take_due(world.now).unwrap();
    world.pools.lost(due.id, world.now);
    let before = world.scrape_count;
    world.run(20);
    assert_eq!(world.scrape_count - before, 2);
    // It was removed meanwhile.
    let due = loop {
        world.now = world.pools.next_at().unwrap();
        if let Some(due) = world.pools.take_due(world.now) {
            break due;
        }
    };
    world.sync("j", &[]);
    world.pools.lost(due.id, world.now);
    assert!(!world.pools.contains(due.id));
}

/// Before, the list of targets showed the labels that a target had when it was first seen.
#[test]
fn labels_before_relabelling_follow_the_list() {
    let mut world = Collector::new(JOB);
    let used = |world: &Collector| world.pools.context.budget.usage().used_bytes;
    let sync = |world: &mut Collector, text: &str| {
        let mut group = group(&["h:1"]);
        group.labels = [("team", "x"), ("__meta_x", text)].into_iter().collect();
        world.sync_group("j", &group).unwrap();
        let shown: Vec<_> = world.pools.targets(pool_of(world)).collect();
        assert_eq!(shown[0].target.discovered.get("__meta_x"), Some(text));
        (shown[0].id, used(world))
    };
    let (first, bytes) = sync(&mut world, "one");
    world.run(10);
    let (second, more_bytes) = sync(&mut world, &"two".repeat(100));
    assert!(first == second && more_bytes > bytes + 200);
    world.run(10);
    assert_eq!((world.scrape_count, world.end_count), (2, 0));
}

/// Before, a target with very many labels, such as a pod with 2,100 annotations, kept all targets
/// of its job as they were.
#[test]
fn a_target_with_too_many_labels_fails_alone() {
    let mut world = Collector::new(JOB);
    let many: Vec<String> = (0..5_000).map(|idx| format!("__meta_{idx}")).collect();
    let own = many.iter().map(|name| (name.as_str(), "1"));
    let mut all = group(&["h:1", "h:2"]);
    all.targets.push(own.chain([("__address__", "h:3")]).collect());
    let report = world.sync_group("j", &all).unwrap();
    assert_eq!((report.active_count, report.failed_count), (2, 1));
    assert!(report.errors[0].contains("over 4096 labels"), "{:?}", report.errors);
}

/// Before, each series of such a target was compared label by label, only to be refused: a target
/// with 4,000 labels that was down occupied the scraping thread for most of a second.
#[test]
fn a_target_with_more_labels_than_series_may_have_fails_alone() {
    let mut world = Collector::new(JOB);
    let many: Vec<String> = (0..62).map(|idx| format!("l{idx}")).collect();
    let labels = |count: usize| {
        let own = many.iter().take(count).map(|name| (name.as_str(), "1"));
        own.chain([("__address__", "h:3"), ("__meta_x", "1")]).collect()
    };
    let mut all = group(&["h:1"]);
    all.targets.push(labels(62));
    // With `job`, `instance` and `team`, 65 labels.
    let report = world.sync_group("j", &all).unwrap();
    assert_eq!((report.active_count, report.failed_count), (1, 1));
    assert!(report.errors[0].contains("65 labels"), "{:?}", report.errors);
    all.targets = vec![labels(61)];
    assert_eq!(world.sync_group("j", &all).unwrap().active_count, 1);
}

/// Its samples may have fewer labels.
#[test]
fn a_target_with_many_labels_that_rules_of_its_metrics_may_drop_is_scraped() {
    let mut world = Collector::new(
        "[{job_name: j, metric_relabel_configs: [{action: labeldrop, regex: l.*}]}]",
    );
    let names: Vec<String> = (0..100).map(|idx| format!("l{idx}")).collect();
    let own = names.iter().map(|name| (name.as_str(), "1"));
    let mut all = group(&[]);
    all.targets.push(own.chain([("__address__", "h:1")]).collect());
    let report = world.sync_group("j", &all).unwrap();
    assert_eq!((report.active_count, report.failed_count), (1, 0));
}

/// Before, they held their memory for more than their interval, and so did the entries of their
/// scrapes. A discovery chooses intervals by `__scrape_interval__`.
#[test]
fn targets_with_long_intervals_leave_soon() {
    let mut world = Collector::new("[{job_name: j, scrape_interval: 1y}]");
    for round in 0..100 {
        let addresses: Vec<String> = (0..50).map(|idx| format!("h-{round}-{idx}:1")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        world.sync("j", &addresses);
        world.run(5);
    }
    let counts = (world.pools.slots.len(), world.pools.due.len());
    assert!(counts.0 == 50 && counts.1 <= 2_000, "{counts:?}");
    world.sync("j", &["h:1"]);
    world.run(366 * 86_400);
    assert_eq!(world.store.live(), ["h:1 a", "h:1 up"]);
    world.sync("j", &[]);
    world.run(901);
    assert_eq!((world.store.live().len(), world.pools.slots.len()), (0, 0));
}

/// Before, the time of tries began after the interval: it was tried each 15 minutes for years.
#[test]
fn an_end_with_a_long_interval_is_tried_for_some_time_only() {
    let mut world = Collector::new("[{job_name: j, scrape_interval: 1y}]");
    world.sync("j", &["h:1"]);
    world.run(366 * 86_400);
    world.sync("j", &[]);
    world.store.fails = true;
    world.run(901);
    assert_eq!((world.end_count, world.pools.slots.len()), (1, 1));
    world.run(900);
    assert_eq!((world.end_count, world.pools.slots.len()), (2, 0));
}

/// Before, an answer of 100 KB with a long label of a group and its address thousands of times
/// stopped all scrapes for minutes.
#[test]
fn repeated_targets_are_bounded() {
    let mut world = Collector::new(JOB);
    world.sync("j", &["h:1"]);
    let long = "x".repeat(100_000);
    let mut repeated = group(&["h:1"; 30]);
    repeated.labels = [("__meta_long", long.as_str())].into_iter().collect();
    let report = world.sync_group("j", &repeated).unwrap();
    assert_eq!(report.active_count, 1);
    // Targets with labels of their own are as long as their list.
    let own = [("__address__", "h:1"), ("__meta_long", long.as_str())];
    let listed = DiscoveredGroup {
        targets: vec![own.into_iter().collect(); 100],
        labels: LabelSet::default(),
    };
    assert_eq!(world.sync_group("j", &listed).unwrap().active_count, 1);
    repeated.targets.extend(group(&["h:1"; 50]).targets);
    let error = world.sync_group("j", &repeated).unwrap_err().to_string();
    assert!(error.contains("repeated, dropped and failed"), "{error}");
    assert_eq!(world.pools.targets(pool_of(&world)).count(), 1);
}

// A discovery that returns 100,000 targets: the memory is refused, and the previous targets stay.
#[test]
fn a_list_without_memory_changes_nothing() {
    let mut world = Collector::new(JOB);
    let addresses: Vec<String> = (0..100_000).map(|idx| format!("host-{idx}:9100")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let used = |world: &Collector| world.pools.context.budget.usage().used_bytes;
    // The first list of a job: its pool has the reason.
    let error = world.sync_group("j", &group(&addresses)).unwrap_err();
    assert_eq!(pool_of(&world).refused().map(|text| text.to_string()), Some(error.to_string()));
    assert_eq!((used(&world), world.pools.next_at()), (0, None));
    world.sync("j", &["h:1", "h:2"]);
    assert_eq!(pool_of(&world).refused(), None);
    let held = used(&world);
    assert!((2 * 1_500..10_000).contains(&held), "{held}");
    assert!(world.sync_group("j", &group(&addresses)).is_err());
    assert!(pool_of(&world).refused().is_some());
    assert_eq!(world.pools.targets(pool_of(&world)).count(), 2);
    assert_eq!(used(&world), held);
    world.run(10);
    assert_eq!(world.scrape_count, 2);
    // The next list that fits is taken. A target that leaves holds its memory until it has ended.
    world.sync("j", &["h:2"]);
    assert_eq!(pool_of(&world).refused(), None);
    world.run(30);
    world.sync("j", &[]);
    world.run(60);
    world.scratch = ScrapeScratch::new(&Budget::unlimited());
    assert_eq!(used(&world), 0);
}

// Before, each of them was counted as a scraped target.
#[test]
fn dropped_targets_hold_their_labels_only() {
    let drop = "relabel_configs: [{source_labels: [__address__], regex: 'h-.*', action: drop}]";
    for (keep, bytes_max) in [(0, 400 * 2_000), (10, 5_000)] {
        let job = format!("[{{job_name: j, keep_dropped_targets: {keep}, {drop}}}]");
        let mut world = Collector::new(&job);
        let addresses: Vec<String> = (0..2_000).map(|idx| format!("h-{idx}:9100")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        assert_eq!(world.sync("j", &addresses).dropped_count, 2_000);
        let used = world.pools.context.budget.usage().used_bytes;
        assert!(used > 0 && used < bytes_max, "{keep}: {used}");
    }
}

proptest! {
    /// After any sequence of lists, reloads and scrapes in flight, the live series are those of the
    /// targets of the last list, and nothing is left of the others.
    #[test]
    fn live_series_are_those_of_the_last_list(
        steps in proptest::collection::vec((0..6_u8, 0..8_u8, 1..30_i64), 1..20),
    ) {
        let mut world = Collector::new(JOB);
        let mut flying: Vec<Due> = Vec::new();
        let mut wanted = 0_u8;
        for (kind, set, seconds) in steps {
            match kind {
                0 | 1 => {
                    wanted = set;
                    world.sync("j", &addresses(set));
                }
                2 => {
                    let job = format!("[{{job_name: j, scrape_interval: 10s, label_limit: {}}}]", set + 20);
                    world.set_jobs(&job);
                    world.sync("j", &addresses(wanted));
                }
                3 => {
                    world.now = world.pools.next_at().unwrap_or(world.now).max(world.now);
                    flying.extend(world.pools.take_due(world.now));
                }
                _ => {
                    if let Some(due) = flying.pop() {
                        world.finish(due);
                    }
                    world.run(seconds);
                }
            }
        }
        for due in flying {
            world.finish(due);
        }
        world.run(60);
        let mut want: Vec<String> = addresses(wanted)
            .iter()
            .flat_map(|address| [format!("{address} a"), format!("{address} up")])
            .collect();
        want.sort();
        prop_assert_eq!(world.store.live(), want);
        prop_assert_eq!(world.pools.slots.len(), addresses(wanted).len());
    }
}

fn addresses(set: u8) -> Vec<&'static str> {
    let all = ["h:1", "h:2", "h:3"];
    all.into_iter().enumerate().filter(|(idx, _)| set >> idx & 1 == 1).map(|(_, a)| a).collect()
}
