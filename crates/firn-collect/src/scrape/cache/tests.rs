use std::collections::BTreeMap;

use proptest::prelude::*;

use firn_model::{Budget, Pool};

use super::*;

/// References in order of first sight; drops and refuses by label.
#[derive(Debug, Default)]
struct Series {
    known: BTreeMap<String, u32>,
    by_slot: Vec<String>,
    metadata_count: usize,
    parsed_count: usize,
    refuses: bool,
}

impl SeriesSource for Series {
    fn labels(&mut self, exposed: &ExposedLabels) -> Result<Option<Labels>> {
        self.parsed_count += 1;
        if exposed.iter().any(|pair| pair == ("drop", "1")) {
            return Ok(None);
        }
        // Relabelling maps two series to one.
        let pairs = exposed.iter().filter(|(name, _)| *name != "gone");
        Labels::from_pairs(pairs).map(Some)
    }

    fn resolve(&mut self, new: &[Labels]) -> Vec<Result<SeriesRef>> {
        let mut resolve = |labels: &Labels| {
            let text = labels.to_string();
            if self.refuses && text.contains("refuse") {
                return Err(Error::internal("refused"));
            }
            let next = u32::try_from(self.known.len()).unwrap();
            let slot = *self.known.entry(text.clone()).or_insert(next);
            if slot == next {
                self.by_slot.push(text);
            }
            Ok(SeriesRef { group: GroupId(u64::from(slot / 4)), slot: Slot(slot) })
        };
        new.iter().map(&mut resolve).collect()
    }

    fn metadata(&mut self, _: &str, _: MetadataItem<'_>) {
        self.metadata_count += 1;
    }
}

const OPTIONS: ScrapeOptions = ScrapeOptions {
    honor_timestamps: true,
    track_timestamps_staleness: false,
    names: NameScheme::Utf8,
    sample_count_max: 0,
    label_count_max: 0,
    label_name_bytes_max: 0,
    label_value_bytes_max: 0,
};

#[derive(Default)]
struct ScrapedTarget {
    budget: Option<Budget>,
    cache: ScrapeCache,
    series: Series,
    ts: Timestamp,
}

impl ScrapedTarget {
    /// The samples of a scrape one second after the last one: series, time, value.
    fn scrape_with(
        &mut self,
        body: &str,
        options: &ScrapeOptions,
    ) -> (Vec<String>, ScrapeCounts, Result<()>) {
        self.ts += 1_000;
        let mut batch = RowBatch::default();
        let body = ScrapedBody { bytes: body.as_bytes(), format: BodyFormat::Text, ts: self.ts };
        let mut held = self.budget.as_ref().unwrap_or(&Budget::unlimited()).empty(Pool::Requests);
        let (counts, result) =
            self.cache.scrape(body, options, &mut self.series, &mut batch, &mut held);
        assert!(self.budget.is_some() || held.bytes() >= batch.len() as u64 * 24);
        (self.rows(&batch), counts, result)
    }

    fn rows(&self, batch: &RowBatch) -> Vec<String> {
        let cells = batch.cells().iter();
        let mut rows: Vec<_> = cells
            .map(|cell| {
                let value = if firn_model::is_stale_nan(cell.value) {
                    "stale".to_owned()
                } else {
                    cell.value.to_string()
                };
                let ts = cell.ts - self.ts;
                let at = if ts == 0 { String::new() } else { format!(" @{}", cell.ts) };
                format!("{} {value}{at}", self.series.by_slot[cell.slot.0 as usize])
            })
            .collect();
        rows.sort();
        rows
    }

    fn check(&mut self, body: &str, want: &[&str]) -> ScrapeCounts {
        let (rows, counts, result) = self.scrape_with(body, &OPTIONS);
        result.unwrap();
        assert_eq!(rows, want, "{body}");
        counts
    }
}

#[test]
fn an_unchanged_body_is_not_parsed_again() {
    let mut target = ScrapedTarget::default();
    let body = "# HELP a x\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 2\n\n# TYPE b gauge\nb 3\n";
    let first = target.check(body, &["a{x=\"1\"} 1", "a{x=\"2\"} 2", "b 3"]);
    assert_eq!(first, ScrapeCounts { scraped: 3, kept: 3, added: 3, ..ScrapeCounts::default() });
    assert_eq!((target.series.parsed_count, target.series.metadata_count), (3, 3));
    let body = body.replace(" 2\n", " 5.5\n");
    let again = target.check(&body, &["a{x=\"1\"} 1", "a{x=\"2\"} 5.5", "b 3"]);
    assert_eq!(again, ScrapeCounts { scraped: 3, kept: 3, ..ScrapeCounts::default() });
    assert_eq!((target.series.parsed_count, target.series.metadata_count), (3, 3));
}

/// A run of comments that is new before a known line was not recorded, and announced each time.
#[test]
fn changed_metadata_is_announced_once() {
    let mut target = ScrapedTarget::default();
    target.check("a 1\nb 1\n", &["a 1", "b 1"]);
    for _ in 0..3 {
        target.check("a 1\n# HELP b x\nb 1\n", &["a 1", "b 1"]);
        assert_eq!(target.series.metadata_count, 1);
    }
    target.check("a 1\n# HELP b y\nb 1\n", &["a 1", "b 1"]);
    assert_eq!(target.series.metadata_count, 2);
    target.check("a 1\nb 1\n", &["a 1", "b 1"]);
    target.check("a 1\n# HELP b y\nb 1\n", &["a 1", "b 1"]);
    assert_eq!(target.series.metadata_count, 3);
}

#[test]
fn a_scrape_without_memory_fails_and_marks_its_series() {
    let mut target = ScrapedTarget::default();
    target.check("a 1\nb 1\n", &["a 1", "b 1"]);
    let body: String = (0..1_000).map(|idx| format!("a{{x=\"{idx}\"}} 1\n")).collect();
    target.budget = Some(Budget::new(100 << 10));
    let (rows, _, result) = target.scrape_with(&body, &OPTIONS);
    assert!(matches!(result.unwrap_err().kind(), firn_model::ErrorKind::Busy { .. }));
    assert_eq!(rows, ["a stale", "b stale"]);
    target.budget = Some(Budget::new(10 << 20));
    assert_eq!(target.scrape_with(&body, &OPTIONS).0.len(), 1_000);
}

/// Labels take more memory than lines. All series of a new target were refused if the labels of all
/// did not fit at the same time.
#[test]
fn new_series_are_resolved_in_pieces_without_memory_for_all() {
    let text = |idx: usize| format!("a{{w=\"{}\",x=\"{idx}\"}}", "v".repeat(400));
    // The last lines repeat a text and the labels of the first piece.
    let lines = (0..2_000).map(|idx| format!("{} 1\n", text(idx)));
    let again = format!("{} 2\n{} 2\n", text(7), text(8).replace("a{", "a{gone=\"1\","));
    let body = lines.collect::<String>() + &again;
    let mut whole = ScrapedTarget::default();
    let (rows, counts, result) = whole.scrape_with(&body, &OPTIONS);
    result.unwrap();
    assert_eq!((rows.len(), counts.added, counts.repeated), (2_000, 2_001, 2));
    let budget = Budget::new(900 << 10);
    let mut target = ScrapedTarget { budget: Some(budget.clone()), ..ScrapedTarget::default() };
    let (rows, found, result) = target.scrape_with(&body, &OPTIONS);
    result.unwrap();
    assert_eq!((rows.len(), found), (2_000, counts));
    assert_eq!(budget.usage().used_bytes, 0);
    // All lines are known: none is parsed again.
    let parsed_count = target.series.parsed_count;
    let (rows, ..) = target.scrape_with(&body, &OPTIONS);
    assert_eq!((rows.len(), target.series.parsed_count), (2_000, parsed_count));
}

/// The same texts have other labels under other rules.
#[test]
fn changed_rules_apply_to_known_texts() {
    let mut target = ScrapedTarget::default();
    target.check("a{gone=\"1\"} 1\nb 1\n", &["a 1", "b 1"]);
    let parsed = target.series.parsed_count;
    target.cache.forget_labels();
    target.check("a{drop=\"1\"} 1\nb 1\n", &["a stale", "b 1"]);
    assert_eq!(target.series.parsed_count, parsed + 2);
    let mut series = HashSet::new();
    target.cache.live_series(&mut series);
    assert_eq!(series.len(), 1);
}

#[test]
fn series_that_go_become_stale_once() {
    let mut target = ScrapedTarget::default();
    target.check("a 1\nb 1\nc 1 7\n", &["a 1", "b 1", "c 1 @7"]);
    // A series with a time of its own does not become stale.
    target.check("b 2\n", &["a stale", "b 2"]);
    target.check("b 3\n", &["b 3"]);
    let counts = target.check("a 4\nb 4\n", &["a 4", "b 4"]);
    assert_eq!(counts.added, 1);
    // A failed scrape marks all, a second one none.
    let (rows, counts, result) = target.scrape_with("a 5\nb x\n", &OPTIONS);
    assert!(result.unwrap_err().to_string().contains("line 2"));
    assert_eq!(rows, ["a stale", "b stale"]);
    assert_eq!((counts.scraped, counts.kept), (1, 1));
    assert!(target.scrape_with("a x\n", &OPTIONS).0.is_empty());
    let counts = target.check("a 6\nb 6\n", &["a 6", "b 6"]);
    assert_eq!(counts.added, 0, "the series are known from before the failure");
    target.check("", &["a stale", "b stale"]);
    target.check("a 7\n", &["a 7"]);
    let mut batch = RowBatch::default();
    target.cache.stop(target.ts, &mut batch);
    assert_eq!(target.rows(&batch), ["a stale"]);
}

/// Before, they stayed for ever: a target with `honor_labels` and other series in each scrape took
/// more memory with each, beyond all limits, and each new series was compared with all groups.
#[test]
fn groups_without_series_are_forgotten() {
    let mut target = ScrapedTarget::default();
    for round in 0..60 {
        let line = |idx: usize| format!("m{{a=\"{}\"}} {idx}\n", round * 30 + idx);
        let body: String = (0..40).map(line).collect();
        let (rows, _, result) = target.scrape_with(&body, &OPTIONS);
        result.unwrap();
        let (stale, live): (Vec<String>, Vec<String>) =
            rows.into_iter().partition(|row| row.ends_with(" stale"));
        let mut want: Vec<&str> = body.lines().collect();
        want.sort_unstable();
        assert_eq!(live, want);
        assert_eq!(stale.len(), if round == 0 { 0 } else { 30 });
        assert!(target.cache.groups.len() < 150, "{}", target.cache.groups.len());
    }
}

#[test]
fn the_first_of_two_samples_of_a_series_and_time_wins() {
    let mut target = ScrapedTarget::default();
    let body = "a 1\na 2\na 3 5\na 4 5\na 5 6\na{gone=\"1\"} 6\n";
    for _ in 0..2 {
        let want = ["a 1", "a 3 @5", "a 5 @6"];
        let counts = target.check(body, &want);
        assert_eq!((counts.scraped, counts.kept, counts.repeated), (6, 6, 3));
    }
}

#[test]
fn dropped_and_refused_series_are_counted() {
    let mut target = ScrapedTarget::default();
    target.series.refuses = true;
    for _ in 0..2 {
        let counts = target.check("a{drop=\"1\"} 1\nrefuse 1\nb 1\n", &["b 1"]);
        assert_eq!((counts.scraped, counts.kept, counts.refused), (3, 2, 1));
        assert!(counts.added < 2, "a refused series is not added");
    }
    target.series.refuses = false;
    target.check("a{drop=\"1\"} 1\nrefuse 1\nb 1\n", &["b 1", "refuse 1"]);
}

#[test]
fn limits_fail_the_scrape() {
    let f = |options: ScrapeOptions, want: &str| {
        let mut target = ScrapedTarget::default();
        let (rows, counts, result) = target.scrape_with("a{bcd=\"efgh\"} 1\nb 1\nc 1\n", &options);
        assert!(result.unwrap_err().to_string().contains(want));
        assert!(rows.is_empty());
        assert!(target.series.by_slot.is_empty(), "nothing is defined");
        counts
    };
    let counts = f(ScrapeOptions { sample_count_max: 2, ..OPTIONS }, "sample limit exceeded");
    assert_eq!((counts.scraped, counts.kept), (3, 3));
    f(ScrapeOptions { label_count_max: 1, ..OPTIONS }, "label_limit exceeded (metric: a, ");
    let options = ScrapeOptions { label_name_bytes_max: 7, ..OPTIONS };
    f(options, "label_name_length_limit exceeded (metric: a, label name: __name__");
    let options = ScrapeOptions { label_value_bytes_max: 3, ..OPTIONS };
    f(options, "label_value_length_limit exceeded (metric: a, label name: bcd, value: \"efgh\"");
    let mut target = ScrapedTarget::default();
    let options = ScrapeOptions { sample_count_max: 3, ..OPTIONS };
    assert!(target.scrape_with("a 1\nb 1\nc 1\nc 2\n", &options).2.is_ok());
    let options = ScrapeOptions { sample_count_max: 2, ..OPTIONS };
    assert!(target.scrape_with("a 1\nb 1\nc 1\nc 2\n", &options).2.is_err());
}

#[test]
fn names_beyond_the_legacy_scheme_fail_the_scrape() {
    let legacy = ScrapeOptions { names: NameScheme::Legacy, ..OPTIONS };
    for body in ["{\"a.b\"} 1\n", "a{\"b.c\"=\"d\"} 1\n", "a{\"0b\"=\"c\"} 1\n"] {
        let (rows, _, result) = ScrapedTarget::default().scrape_with(body, &legacy);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("invalid metric name or label names: "), "{error}");
        assert!(rows.is_empty());
        assert!(ScrapedTarget::default().scrape_with(body, &OPTIONS).2.is_ok(), "{body}");
    }
    let (_, _, result) = ScrapedTarget::default().scrape_with("a:b{_c1=\"d\"} 1\n", &legacy);
    assert!(result.is_ok(), "{result:?}");
}

/// `scrape_series_added` stayed above 0 for a target that always failed.
#[test]
fn series_of_a_failed_scrape_are_added_once() {
    let mut target = ScrapedTarget::default();
    let mut added = |body: &str, options: &ScrapeOptions| {
        let (_, counts, result) = target.scrape_with(body, options);
        (counts.added, result.is_ok())
    };
    let bad = "a 1\nb 1\n}\n";
    assert_eq!(added(bad, &OPTIONS), (2, false));
    assert_eq!(added(bad, &OPTIONS), (0, false));
    assert_eq!(added("a 2\nb 2\nc 1\n", &OPTIONS), (1, true));
    let bad = "a 1\nd 1\n}\n";
    assert_eq!(added(bad, &OPTIONS), (1, false));
    assert_eq!(added(bad, &OPTIONS), (0, false));
    assert_eq!(added("a 1\ne 1\n}\n", &OPTIONS), (1, false));
    let limited = ScrapeOptions { sample_count_max: 2, ..OPTIONS };
    assert!(!added("f 1\ng 1\nh 1\n", &limited).1);
    assert_eq!(added("f 1\ng 1\nh 1\n", &limited), (0, false));
}

#[test]
fn a_type_line_that_changes_gives_bounds_their_other_form() {
    let mut target = ScrapedTarget::default();
    target.check("# TYPE a histogram\na{le=\"1\"} 1\n", &["a{le=\"1.0\"} 1"]);
    target.check("# TYPE a gauge\na{le=\"1\"} 1\n", &["a{le=\"1\"} 1", "a{le=\"1.0\"} stale"]);
}

#[test]
fn reports_are_series_of_the_target() {
    let mut target = ScrapedTarget::default();
    let labels = Labels::from_pairs([("job", "j")]).unwrap();
    let counts = ScrapeCounts { scraped: 3, kept: 2, added: 1, ..ScrapeCounts::default() };
    let report = ScrapeReport { up: true, duration_s: 0.5, counts, extra: None };
    let mut batch = RowBatch::default();
    let ScrapedTarget { cache, series, ts, .. } = &mut target;
    cache.report(*ts, &report, &labels, series, &mut batch).unwrap();
    assert_eq!(
        target.rows(&batch),
        [
            "scrape_duration_seconds{job=\"j\"} 0.5",
            "scrape_samples_post_metric_relabeling{job=\"j\"} 2",
            "scrape_samples_scraped{job=\"j\"} 3",
            "scrape_series_added{job=\"j\"} 1",
            "up{job=\"j\"} 1",
        ]
    );
    batch.clear();
    target.cache.stop(target.ts, &mut batch);
    assert_eq!(batch.len(), 5);
}

/// A line of a body.
fn line() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec!["a", "a_b", "ab", "b", "refuse", "x{y=\"1\"}"]);
    prop_oneof![
        8 => (names, "(\\{(le=\"[12]\"|drop=\"1\"|gone=\"1\"|x=\"[ab]{1,3}\")\\})?", "[0-9]( 5)?")
            .prop_map(|(name, labels, value)| match name.contains('{') {
                true => format!("{name} {value}"),
                false => format!("{name}{labels} {value}"),
            }),
        1 => "# TYPE a (histogram|gauge|summary)",
        1 => "# HELP a [xy]{0,3}|# c|| ",
        1 => r#"a  1|a \{x="1"\} 2|a\{x="1"\}3|b\t4"#,
    ]
}

proptest! {
    /// A cached scrape stores the same as one that knows the members of the last scrape only.
    #[test]
    fn a_cached_body_gives_the_rows_of_an_uncached_one(
        mut lines in prop::collection::vec(line(), 1..12),
        steps in prop::collection::vec((0..6_usize, any::<prop::sample::Index>(), line()), 1..12),
    ) {
        let mut cached = ScrapedTarget::default();
        let mut uncached = ScrapedTarget::default();
        cached.series.refuses = true;
        uncached.series.refuses = true;
        for (step, at, other) in steps {
            let at = at.index(lines.len());
            match step {
                0 => lines.insert(at, other),
                1 if lines.len() > 1 => drop(lines.remove(at)),
                2 => lines[at] = other,
                3 => lines.rotate_left(at),
                4 => lines.swap(0, at),
                _ => {}
            }
            let body = lines.join("\n");
            let got = cached.scrape_with(&body, &OPTIONS);
            uncached.cache.format = None;
            let want = uncached.scrape_with(&body, &OPTIONS);
            prop_assert_eq!(&got.0, &want.0, "{}", body);
            prop_assert_eq!(
                ScrapeCounts { added: 0, ..got.1 },
                ScrapeCounts { added: 0, ..want.1 },
            );
            prop_assert_eq!(got.2.is_ok(), want.2.is_ok());
        }
    }

    #[test]
    fn any_bytes_are_survived(
        bodies in prop::collection::vec(r#"([a-b{}"\\\n#=, 0-2]|# HELP a|# TYPE a){0,40}"#, 1..4),
    ) {
        let mut target = ScrapedTarget::default();
        for body in bodies {
            let _ = target.scrape_with(&body, &OPTIONS);
        }
    }
}
