use std::collections::BTreeMap;

use firn_model::{Budget, GroupId, Slot};

use super::*;
use crate::config::{Config, LabelSet};

/// A database: series by labels, samples by time.
#[derive(Debug, Default)]
struct MemoryStore {
    groups: Vec<String>,
    series: Vec<String>,
    samples: BTreeMap<(Timestamp, String), String>,
    generation: u32,
    batch_count: usize,
    metadata: Vec<String>,
    is_full: bool,
}

impl MemoryStore {
    fn series(&mut self, labels: String, group: String) -> Result<SeriesRef> {
        let position = |list: &mut Vec<String>, item: String| {
            let found = list.iter().position(|known| *known == item);
            u32::try_from(found.unwrap_or_else(|| {
                list.push(item);
                list.len() - 1
            }))
            .unwrap()
        };
        let group = GroupId(u64::from(position(&mut self.groups, group)));
        Ok(SeriesRef { group, slot: Slot(position(&mut self.series, labels)) })
    }

    /// The samples since the last call: `ts series value`, without the report of durations.
    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.samples)
            .into_iter()
            .filter(|((_, series), _)| !series.starts_with("scrape_duration_seconds"))
            .map(|((ts, series), value)| format!("{ts} {series} {value}"))
            .collect()
    }
}

/// `name{labels}` without those of the target.
fn shown(labels: &Labels) -> String {
    let rest = labels.filter(|name| !["__name__", "job", "instance"].contains(&name));
    let rest = if rest.is_empty() { String::new() } else { rest.to_string() };
    format!("{}{rest}", labels.metric_name())
}

impl Store for MemoryStore {
    fn resolve_group(&mut self, group: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>> {
        if self.is_full {
            return members.iter().map(|_| Err(Error::internal("series limit"))).collect();
        }
        assert!(
            members.iter().all(|member| group.iter().all(|(name, _)| member.get(name).is_none()))
        );
        members.iter().map(|member| self.series(shown(member), group.to_string())).collect()
    }

    fn resolve(&mut self, series: &[Labels]) -> Vec<Result<SeriesRef>> {
        let lone = |labels: &Labels| (format!("lone {labels}"), labels.to_string());
        series
            .iter()
            .map(|labels| {
                let (l, g) = lone(labels);
                self.series(l, g)
            })
            .collect()
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn metadata(&mut self, target: &Labels, name: &str, item: MetadataItem<'_>) {
        self.metadata.push(format!("{target} {name} {item:?}"));
    }

    fn write(&mut self, batch: &mut RowBatch) -> Result<u64> {
        if self.is_full {
            return Err(Error::unavailable("disk full"));
        }
        self.batch_count += 1;
        for cell in batch.cells() {
            let value = match is_stale_nan(cell.value) {
                true => "stale".to_owned(),
                false => cell.value.to_string(),
            };
            let series = self.series[cell.slot.0 as usize].clone();
            self.samples.insert((cell.ts, series), value);
        }
        Ok(0)
    }
}

struct World {
    scraper: TargetScraper,
    store: MemoryStore,
    scratch: ScrapeScratch,
    now: Timestamp,
}

fn context() -> ScrapeContext {
    ScrapeContext { phase_seed: 1, budget: Budget::new(16 << 20) }
}

fn scraper(keys: &str, now: Timestamp) -> TargetScraper {
    let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    let job = Arc::new(loaded.config.scrape_configs[0].clone());
    let mut editor = LabelEditor::default();
    let labels: LabelSet = [("__address__", "h:1")].into_iter().collect();
    let none = std::iter::empty::<(&str, &str)>().collect();
    let discovered = Target::discovered_labels(&job, &labels, &none, &mut editor).unwrap();
    let target = Target::populate(&job, discovered, &mut editor).unwrap().unwrap();
    TargetScraper::new(&job, Arc::new(target), &context(), now)
}

impl World {
    fn new(keys: &str) -> World {
        let scratch = ScrapeScratch::new(&context().budget);
        World { scraper: scraper(keys, 0), store: MemoryStore::default(), scratch, now: 0 }
    }

    fn answer(&mut self, answer: std::result::Result<Answer<'_>, FetchFailure>) -> Vec<String> {
        self.now = self.scraper.next_at();
        let ts = self.scraper.start(self.now);
        assert_eq!(ts, self.now);
        let elapsed = || Duration::from_millis(250);
        let written = self.scraper.finish(ts, answer, &elapsed, &mut self.store, &mut self.scratch);
        assert_eq!(written.is_err(), self.store.is_full);
        let rows = self.store.take();
        rows.into_iter().map(|row| row.replace(&format!("{ts} "), "")).collect()
    }

    fn body(&mut self, body: &str) -> Vec<String> {
        let answer =
            Answer { status: "200 OK", content_type: Some("text/plain"), body: body.as_bytes() };
        self.answer(Ok(answer))
    }

    /// The samples without the report.
    fn samples(&mut self, body: &str) -> Vec<String> {
        let rows = self.body(body);
        rows.into_iter()
            .filter(|row| !row.starts_with("scrape_") && !row.starts_with("up "))
            .collect()
    }
}

// Items 30 and 36: the report has the labels of the target and the time of the scrape; a whole
// scrape is one batch.
#[test]
fn a_scrape_is_one_batch_with_its_report() {
    let mut world = World::new(
        "metric_relabel_configs: [\
        {source_labels: [__name__], regex: 'other|up', action: drop}]",
    );
    let rows = world.body("a 1\nother 2\nb{x=\"y\"} 3\n");
    assert_eq!(
        rows,
        [
            "a 1",
            "b{x=\"y\"} 3",
            "scrape_samples_post_metric_relabeling 2",
            "scrape_samples_scraped 3",
            "scrape_series_added 2",
            "up 1",
        ]
    );
    assert_eq!(world.store.batch_count, 1);
    assert_eq!(world.store.groups, ["{instance=\"h:1\",job=\"j\"}"]);
    let status = world.scraper.status();
    assert_eq!((status.error.as_deref(), status.duration.as_millis()), (None, 250));
    assert!(world.body("a 2\nb{x=\"y\"} 4\n").contains(&"scrape_series_added 0".to_owned()));
}

/// Before, a target whose lines were all new in each scrape was read on the thread that scrapes all
/// others.
#[test]
fn a_target_with_many_new_lines_is_not_steady_for_some_scrapes() {
    let mut world = World::new("metric_relabel_configs: [{regex: b, action: labeldrop}]");
    let body = |name: &str| -> String {
        (0..=STEADY_LINES_MAX).map(|idx| format!("m{{a=\"{idx}\",b=\"{name}\"}} 1\n")).collect()
    };
    assert!(!world.scraper.is_steady());
    for _ in 0..2 {
        world.body(&body("first"));
        assert!(world.scraper.is_steady(), "each target has a first scrape");
    }
    for _ in 0..UNSTEADY_SCRAPES {
        world.body(&body("other"));
        assert!(!world.scraper.is_steady());
    }
    world.body(&body("other"));
    assert!(world.scraper.is_steady());
    world.body("# nothing\n");
    assert!(!world.scraper.is_steady());
}

/// The lines held all memory that was left, so that there was no `up`.
#[test]
fn a_scrape_without_memory_leaves_some_for_its_report() {
    let mut world = World::new("");
    let budget = Budget::new(200 << 10);
    world.scratch = ScrapeScratch::new(&budget);
    let body: String = (0..10_000).map(|n| format!("a{{n=\"{n}\"}} 1\n")).collect();
    let answer =
        Answer { status: "200 OK", content_type: Some("text/plain"), body: body.as_bytes() };
    let used_bytes = std::cell::Cell::new(u64::MAX);
    let before_report = || {
        used_bytes.set(budget.usage().used_bytes);
        Duration::ZERO
    };
    let (store, scratch) = (&mut world.store, &mut world.scratch);
    world.scraper.finish(1_000, Ok(answer), &before_report, store, scratch).unwrap();
    assert!(used_bytes.get() < 10_000, "{}", used_bytes.get());
    assert!(budget.usage().peak_bytes > 100_000);
    assert!(world.store.take().contains(&"1000 up 0".to_owned()));
}

// Items 23, 25, 36 and 37: failures and empty bodies.
#[test]
fn a_failed_scrape_marks_its_series_and_reports() {
    let mut world = World::new("extra_scrape_metrics: true, sample_limit: 5, body_size_limit: 99B");
    world.body("a 1\nb 1\n");
    let failed = |rows: &[String], bytes: &str| {
        assert_eq!(rows[..2], ["a stale", "b stale"], "{rows:?}");
        assert!(rows.contains(&"up 0".to_owned()));
        assert!(rows.contains(&format!("scrape_body_size_bytes {bytes}")), "{rows:?}");
        assert!(rows.contains(&"scrape_timeout_seconds 10".to_owned()), "{rows:?}");
        assert!(rows.contains(&"scrape_sample_limit 5".to_owned()), "{rows:?}");
    };
    let text = Some("text/plain");
    for (answer, want, bytes) in [
        (
            Ok(Answer { status: "404 Not Found", content_type: text, body: b"a 1\n" }),
            "server returned HTTP status 404 Not Found",
            "0",
        ),
        (
            Ok(Answer { status: "200 OK", content_type: Some("text/html"), body: b"<html>" }),
            "received unsupported Content-Type \"text/html\"",
            "0",
        ),
        (Ok(Answer { status: "200 OK", content_type: text, body: b"a 1\nb x\n" }), "line 2", "0"),
        (
            Ok(Answer {
                status: "200 OK",
                content_type: text,
                body: b"a 1\nb 1\nc 1\nd 1\ne 1\nf 1\n",
            }),
            "sample limit exceeded",
            "0",
        ),
        (Err(FetchFailure::BodyLimit), "body size limit exceeded", "-1"),
        (Err(FetchFailure::Other("context deadline exceeded".to_owned())), "context deadline", "0"),
    ] {
        failed(&world.answer(answer.clone()), bytes);
        let status = world.scraper.status().clone();
        assert!(status.error.unwrap().contains(want), "{want}");
        assert_eq!(status.exceeded_sample_limit, want == "sample limit exceeded");
        assert_eq!(status.exceeded_body_limit, bytes == "-1");
        // A second failure marks nothing again.
        assert!(world.answer(answer).iter().all(|row| !row.contains("stale")));
        let rows = world.body("a 1\nb 1\n");
        assert!(rows.contains(&"scrape_body_size_bytes 8".to_owned()), "{rows:?}");
    }
    let empty = Answer { status: "200 OK", content_type: None, body: b"" };
    let rows = world.answer(Ok(empty));
    assert_eq!(rows[..2], ["a stale", "b stale"]);
    assert!(rows.contains(&"up 1".to_owned()));
}

// Item 25: the fallback protocol.
#[test]
fn the_fallback_protocol_reads_a_body_without_type() {
    let mut world = World::new("fallback_scrape_protocol: PrometheusText0.0.4");
    let rows = world.answer(Ok(Answer { status: "200 OK", content_type: None, body: b"a 1\n" }));
    assert_eq!(rows[0], "a 1");
}

// Item 29: honor_labels; series that are not the target's belong to no group of it.
#[test]
fn exposed_labels_are_renamed_or_honoured() {
    let body = "a{job=\"x\",exported_job=\"y\"} 1\nb{instance=\"\"} 2\nc 3\n";
    let mut world = World::new("honor_labels: false");
    let rows = world.samples(body);
    assert_eq!(
        rows,
        ["a{exported_exported_job=\"x\", exported_job=\"y\"} 1", "b 2", "c 3"]
            .map(|row| row.replace(", ", ","))
    );
    let mut world = World::new("honor_labels: true");
    let rows = world.samples(body);
    assert_eq!(
        rows,
        ["c 3", "lone a{exported_job=\"y\",instance=\"h:1\",job=\"x\"} 1", "lone b{job=\"j\"} 2",]
    );
    assert!(world.samples("c 4\n").iter().filter(|row| row.contains("stale")).count() == 2);
}

// Items 28 and 37: times of samples.
#[test]
fn own_timestamps_are_kept_and_not_tracked() {
    let mut world = World::new("honor_timestamps: true");
    assert_eq!(world.samples("a 1 5\nb 1\n"), ["5 a 1", "b 1"]);
    assert_eq!(world.samples(""), ["b stale"]);
    let mut world = World::new("honor_timestamps: false");
    assert_eq!(world.samples("a 1 5\n"), ["a 1"]);
    let mut world = World::new("track_timestamps_staleness: true");
    assert_eq!(world.samples("a 1 5\n"), ["5 a 1"]);
    assert_eq!(world.samples(""), ["a stale"]);
}

// Items 28 and 30: limits of labels count those of the target.
#[test]
fn limits_of_labels_fail_the_scrape() {
    for (keys, body) in [
        ("label_limit: 3", "a 1\nb{x=\"1\"} 1\n"),
        ("label_name_length_limit: 8", "a 1\nb{long_name=\"1\"} 1\n"),
        ("label_value_length_limit: 3", "a 1\nb{x=\"1234\"} 1\n"),
    ] {
        let mut world = World::new(keys);
        assert_eq!(world.samples("a 1\n"), ["a 1"], "{keys}");
        assert_eq!(world.samples(body), ["a stale"]);
        let error = world.scraper.status().error.clone().unwrap();
        let limit = keys.split(':').next().unwrap();
        assert!(error.contains(&format!("{limit} exceeded")), "{error}");
    }
}

// Items 21 and 22: the request.
#[test]
fn the_request_says_what_the_target_may_answer() {
    let scraper = scraper(
        "scrape_timeout: 1500ms, enable_compression: false, body_size_limit: 1KB, \
         params: {m: [a b]}, scrape_protocols: [PrometheusText0.0.4]",
        0,
    );
    let request = scraper.request("test/1");
    assert_eq!(request.url, "http://h:1/metrics?m=a+b");
    assert_eq!((request.body_bytes_max, request.timeout.as_millis()), (1_024, 1_500));
    assert_eq!(
        request.headers,
        [
            ("accept", "text/plain;version=0.0.4;q=0.6,*/*;q=0.5"),
            ("accept-encoding", "identity"),
            ("user-agent", "test/1"),
            ("x-prometheus-scrape-timeout-seconds", "1.5"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
    );
}

// Item 37: a removed target.
#[test]
fn the_end_marks_series_and_reports_that_nobody_else_has() {
    let mut world = World::new("");
    world.body("a 1\nb 1\n");
    let mut live = HashSet::new();
    world.scraper.live_series(&mut live);
    assert_eq!(live.len(), 7);
    let of_b = world.store.series.iter().position(|series| series == "b").unwrap();
    let is_alive = |series: SeriesRef| series.slot.0 as usize == of_b;
    let ts = world.scraper.next_at();
    world.scraper.end(ts, &is_alive, &mut world.store, &mut world.scratch).unwrap();
    let rows = world.store.take();
    assert_eq!(rows.len(), 5, "{rows:?}");
    assert!(rows.iter().all(|row| row.starts_with(&ts.to_string()) && row.ends_with("stale")));
    assert!(
        rows.iter().any(|row| row.contains(" up ")) && !rows.iter().any(|row| row.contains(" b "))
    );
    // Nothing is marked twice.
    let batches = world.store.batch_count;
    world.scraper.end(ts, &|_| false, &mut world.store, &mut world.scratch).unwrap();
    assert_eq!(world.store.batch_count, batches);
}

// Items 37 and 47: a reload with other rules.
#[test]
fn a_changed_job_continues_its_series() {
    let mut world = World::new("");
    world.body("a 1\nb 1\n");
    let parsed = world.store.series.len();
    let mut changed = scraper(
        "metric_relabel_configs: [\
        {source_labels: [__name__], regex: a, action: drop}]",
        world.now,
    );
    let next_at = world.scraper.next_at();
    let old = std::mem::replace(&mut world.scraper, scraper("", 0));
    changed.take_over(old);
    world.scraper = changed;
    assert_eq!(world.scraper.next_at(), next_at, "the phase is the same");
    assert_eq!(world.samples("a 1\nb 2\n"), ["a stale", "b 2"]);
    assert_eq!(world.store.series.len(), parsed);
}

#[test]
fn references_of_another_generation_are_resolved_again() {
    let mut world = World::new("");
    world.body("a 1\nb 1\n");
    world.store.generation = 1;
    world.store.series.insert(0, "other".to_owned());
    let rows = world.body("a 2\nb 2\n");
    assert_eq!(rows[..2], ["a 2", "b 2"], "{rows:?}");
}

#[test]
fn a_scrape_that_is_not_written_is_an_error_and_the_next_one_stands() {
    let mut world = World::new("");
    world.store.is_full = true;
    assert!(world.body("a 1\n").is_empty());
    world.store.is_full = false;
    let rows = world.body("a 2\n");
    assert!(rows.contains(&"a 2".to_owned()) && rows.contains(&"up 1".to_owned()), "{rows:?}");
}

// Before, markers of a batch that failed were never written: the series stayed current for the
// whole lookback.
#[test]
fn stale_markers_that_are_not_written_are_written_with_the_next_scrape() {
    let mut world = World::new("");
    world.body("a 1\nb 1\nc 1\n");
    let full = |world: &mut World, body: &str| {
        world.store.is_full = true;
        assert!(world.body(body).is_empty());
        world.store.is_full = false;
    };
    full(&mut world, "a 2\n");
    full(&mut world, "a 3\n");
    // `b` is back, `c` is not.
    assert_eq!(world.samples("a 4\nb 4\n"), ["a 4", "b 4", "c stale"]);
    assert_eq!(world.samples("a 5\nb 5\n"), ["a 5", "b 5"]);
    // A failed scrape.
    full(&mut world, "a x\n");
    assert_eq!(world.samples("a 6\n"), ["a 6", "b stale"]);
    // A new job continues them, and the database has issued other references.
    full(&mut world, "d 1\n");
    let old = std::mem::replace(&mut world.scraper, scraper("", world.now));
    world.scraper.take_over(old);
    assert_eq!(world.samples("d 1\n"), ["a stale", "d 1"]);
    full(&mut world, "");
    world.store.generation = 1;
    assert!(world.samples("e 1\n").contains(&"e 1".to_owned()));
    assert!(world.scraper.owed.is_empty());
}

#[test]
fn an_end_that_is_not_written_is_not_over() {
    let mut world = World::new("");
    world.body("a 1\n");
    let ts = world.scraper.next_at();
    let of_a = world.store.series.iter().position(|series| series == "a").unwrap();
    for _ in 0..2 {
        world.store.is_full = true;
        let ended = world.scraper.end(ts, &|_| false, &mut world.store, &mut world.scratch);
        assert!(ended.is_err() && !world.scraper.is_ended());
        world.store.is_full = false;
    }
    let is_alive = |series: SeriesRef| series.slot.0 as usize == of_a;
    world.scraper.end(ts, &is_alive, &mut world.store, &mut world.scratch).unwrap();
    assert!(world.scraper.is_ended());
    assert_eq!(world.store.take().len(), 4, "the reports without the duration");
}

#[test]
fn the_memory_of_caches_and_scrapes_is_reserved() {
    let mut world = World::new("");
    let body: String = (0..1_000).map(|idx| format!("metric{{x=\"{idx}\"}} {idx}\n")).collect();
    world.body(&body);
    let held = world.scraper.held.bytes();
    assert!((10_000..60_000).contains(&held), "{held}");
    assert!(world.scratch.held.bytes() >= 1_000 * 24);
    world.body("a 1\n");
    assert!(world.scraper.held.bytes() < 1_000);
}
