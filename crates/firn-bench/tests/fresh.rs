//! The fresh data and its queries in a small form: each query of each shape finds the series that
//! it claims to read, however the sources are labelled. The database runs in this process.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeSet;

use firn_bench::fresh::data::{INTERVAL_MS, Part};
use firn_bench::fresh::query::{ApiRequest, Class, Extent, FreshQuery};
use firn_bench::fresh::shape::{LabelForm, Labelling, SenderShape};
use firndb::{Db, Labels, Options, QueryTime, RowBatch, TimeRange, Value, local_env};

const SCRAPES: i64 = 30;

/// The size of an answer.
struct Answer {
    /// Series or entries of a list.
    count: usize,
    /// The sum of an instant vector's values.
    sum: f64,
}

fn load(db: &Db, part: Part, labelling: Labelling, end_ms: i64) {
    for source in 0..part.source_count {
        let series = part.shape.series(source, labelling.form(source));
        let labels = series.iter().map(|series| {
            let pairs = series.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            Labels::from_pairs(pairs).unwrap()
        });
        let found = db.resolve(&labels.collect::<Vec<_>>());
        let mut batch = RowBatch::default();
        for (idx, found) in found.into_iter().enumerate() {
            let found = found.unwrap();
            for scrape in 0..SCRAPES {
                let ts = end_ms - (SCRAPES - scrape) * INTERVAL_MS;
                batch.push(found, ts, (idx as i64 + scrape) as f64);
            }
        }
        db.write(&mut batch).unwrap();
    }
}

fn answer(db: &Db, request: &ApiRequest) -> Answer {
    let context = db.context();
    let values = |query: &str, time: QueryTime| match db.query_now(query, time).unwrap().value {
        Value::Vector(points) => {
            let sum = points.iter().map(|point| match point.value {
                firn_promql::PointValue::Float(value) => value,
                _ => f64::NAN,
            });
            Answer { count: points.len(), sum: sum.sum() }
        }
        Value::Matrix(series) => {
            assert!(series.iter().all(|series| !series.floats.is_empty()), "{query}");
            Answer { count: series.len(), sum: f64::NAN }
        }
        other => panic!("{query}: {:?}", other.value_type()),
    };
    let selector = |text: &str| firn_promql::parse_selector(text, &context).unwrap();
    match request {
        ApiRequest::Instant { query, time_ms } => values(query, QueryTime::Instant(*time_ms)),
        ApiRequest::Range { query, start_ms, end_ms, step_ms } => {
            let (start, end, step_ms) = (*start_ms, *end_ms, *step_ms);
            values(query, QueryTime::Range { start, end, step_ms })
        }
        ApiRequest::LabelNames { start_ms, end_ms } => {
            let range = TimeRange::new(*start_ms, *end_ms);
            let names = db.label_names(&[], range, 0, &context).unwrap().0;
            Answer { count: names.len(), sum: f64::NAN }
        }
        ApiRequest::LabelValues { label, selector: text, start_ms, end_ms } => {
            let selectors: Vec<_> = text.iter().map(|text| selector(text)).collect();
            let range = TimeRange::new(*start_ms, *end_ms);
            let values = db.label_values(label, &selectors, range, 0, &context).unwrap().0;
            Answer { count: values.len(), sum: f64::NAN }
        }
        ApiRequest::Series { selector: text, start_ms, end_ms } => {
            let range = TimeRange::new(*start_ms, *end_ms);
            let series = db.series(&[selector(text)], range, 0, &context).unwrap().0;
            Answer { count: series.len(), sum: f64::NAN }
        }
        ApiRequest::Metadata => unreachable!("the server has it, not the database"),
    }
}

/// The queries of the database's data.
fn queries_of_data(part: Part) -> impl Iterator<Item = FreshQuery> {
    FreshQuery::of(part).into_iter().filter(|query| !query.is_for_firn_alone())
}

/// The series of a source with a metric that starts so.
fn series_named(shape: SenderShape, prefix: &str) -> usize {
    let series = shape.series(0, LabelForm::Lone);
    let is_named =
        |(name, value): &(String, String)| name == "__name__" && value.starts_with(prefix);
    series.iter().filter(|series| series.labels.iter().any(is_named)).count()
}

#[test]
fn every_query_reads_the_series_that_it_claims() {
    for shape in SenderShape::ALL {
        for labelling in [Labelling::Grouped, Labelling::Lone, Labelling::Mixed] {
            // Random series need some of each name.
            let source_count = if shape == SenderShape::Random { 2_000 } else { 16 };
            let part = Part { shape, source_count };
            let folder = tempfile::tempdir().unwrap();
            let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
            let end_ms = db.now_ms() / INTERVAL_MS * INTERVAL_MS - 60_000;
            load(&db, part, labelling, end_ms);
            let extent = Extent { end_ms, span_ms: SCRAPES * INTERVAL_MS, labelling };
            for (number, query) in queries_of_data(part).flat_map(|q| (0..4).map(move |n| (n, q))) {
                let request = query.request(extent, number);
                let what = format!("{labelling:?} {request:?}");
                let Answer { count, sum } = answer(&db, &request);
                let of_form = match labelling {
                    Labelling::Mixed => source_count / 2,
                    _ => source_count,
                };
                match (query.class, query.name) {
                    (Class::Narrow, _) => assert!((2..=8).contains(&count), "{count} {what}"),
                    (Class::Wide | Class::Topk, _) => assert!(count > 0, "{what}"),
                    (Class::Instant | Class::Count, _) if shape == SenderShape::Random => {
                        assert!(count > 0, "{what}");
                    }
                    (Class::Instant, _) => {
                        let prefix = match shape {
                            SenderShape::Tsbs => "cpu_",
                            SenderShape::Telegraf => "disk_",
                            SenderShape::Otlp => "jvm_",
                            SenderShape::Cadvisor => "container_memory_",
                            _ => "sensor_",
                        };
                        assert_eq!(count, source_count * series_named(shape, prefix), "{what}");
                    }
                    (Class::Count, _) => {
                        let of_source = match shape {
                            SenderShape::Tsbs => 10,
                            SenderShape::Telegraf => 50,
                            SenderShape::Otlp => 64,
                            SenderShape::Cadvisor => 28,
                            _ => 9,
                        };
                        assert_eq!(sum, f64::from(of_source) * source_count as f64, "{what}");
                    }
                    (_, "names") => assert!(count > 5, "{count} {what}"),
                    (_, "series") => assert!((9..=600).contains(&count), "{count} {what}"),
                    // Names of all pods and keys; else those of one form.
                    (_, "values") => {
                        let is_one = match &request {
                            // Telegraf's grouped series have both labels.
                            ApiRequest::LabelValues { label, .. } if label == "host" => true,
                            _ => matches!(shape, SenderShape::Cadvisor | SenderShape::Random),
                        };
                        assert_eq!(count, if is_one { source_count } else { of_form }, "{what}");
                    }
                    (_, name) => assert!(count > 0, "{name} {what}"),
                }
            }
            db.close().unwrap();
        }
    }
}

#[test]
fn requests_differ_so_that_no_cache_answers_them() {
    let part = Part { shape: SenderShape::Telegraf, source_count: 100 };
    let end_ms = 1_790_000_010_000;
    let extent = Extent { end_ms, span_ms: 7_200_000, labelling: Labelling::Lone };
    for query in queries_of_data(part) {
        let targets: BTreeSet<String> =
            (0..200).map(|number| query.request(extent, number).target()).collect();
        // Times are drawn from 1,400.
        assert!(targets.len() > 170, "{query:?} {}", targets.len());
        assert_eq!(query.request(extent, 7), query.request(extent, 7));
    }
}
