//! The queries of each shape, drawn again for every request, so that no answer comes from a cache.
//!
//! Times end in 5 ms, which no sample does, so that open and closed windows are equal. A range
//! starts where its first window of 5 minutes is within the data: VictoriaMetrics reads one sample
//! before a window, which would be absent there.

use crate::client::percent_encoded;
use crate::index::scatter;
use crate::pattern::Agreement;

use super::data::Part;
use super::shape::{Labelling, SenderShape};

/// A class of queries; each has aims of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Five metrics of eight sources over the age: a dashboard of some hosts.
    Narrow,
    /// A sum of rates over a metric of all sources, and over the age.
    Wide,
    /// The newest value of all series of a regex of names.
    Instant,
    /// The ten highest of `max_over_time` over the age.
    Topk,
    /// The number of series of a regex of names by a label.
    Count,
    /// Label names, values of a label, series of a regex, each with start and end; metadata.
    List,
}

/// One kind of query to one shape.
#[derive(Clone, Copy, Debug)]
pub struct FreshQuery {
    /// Its class.
    pub class: Class,
    /// Distinguishes the queries of a class; may be empty.
    pub name: &'static str,
    /// The sources that it reads.
    pub part: Part,
    /// The rule for comparing its answers.
    pub agreement: Agreement,
    kind: QueryKind,
}

/// The data that queries read.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The end of the last interval with samples.
    pub end_ms: i64,
    /// The time since the first sample.
    pub span_ms: i64,
    /// The labelling of the sources.
    pub labelling: Labelling,
}

/// A request to any of the programs. Times are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the HTTP API")]
pub enum ApiRequest {
    Instant { query: String, time_ms: i64 },
    Range { query: String, start_ms: i64, end_ms: i64, step_ms: i64 },
    LabelNames { start_ms: i64, end_ms: i64 },
    LabelValues { label: String, selector: Option<String>, start_ms: i64, end_ms: i64 },
    Series { selector: String, start_ms: i64, end_ms: i64 },
    Metadata,
}

#[derive(Clone, Copy, Debug)]
enum QueryKind {
    Narrow,
    Wide,
    Instant,
    Topk,
    Count,
    Names,
    Values,
    ValuesOfMetric,
    Series,
    Metadata,
}

/// The names that a shape's queries use.
struct Vocabulary {
    /// Metrics of a source, for narrow queries.
    gauges: [&'static str; 5],
    counter: &'static str,
    counter_by: &'static str,
    topk: &'static str,
    instant: &'static str,
    count: &'static str,
    count_by: &'static str,
    /// Metrics of a source, for lists of series.
    listed: &'static str,
}

// The windows of 5 minutes, and the draws of the end.
const MARGIN_MS: i64 = 330_000;

impl Class {
    /// All classes.
    pub const ALL: [Class; 6] =
        [Class::Narrow, Class::Wide, Class::Instant, Class::Topk, Class::Count, Class::List];

    /// For tables and for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Class::Narrow => "narrow",
            Class::Wide => "wide",
            Class::Instant => "instant",
            Class::Topk => "topk",
            Class::Count => "count",
            Class::List => "list",
        }
    }
}

impl FreshQuery {
    /// The queries to the sources of `part`.
    pub fn of(part: Part) -> Vec<FreshQuery> {
        let query =
            |class, name, agreement, kind| FreshQuery { class, name, part, agreement, kind };
        vec![
            query(Class::Narrow, "", Agreement::Exact, QueryKind::Narrow),
            query(Class::Wide, "", Agreement::Rate, QueryKind::Wide),
            query(Class::Instant, "", Agreement::Exact, QueryKind::Instant),
            query(Class::Topk, "", Agreement::TopOfRates, QueryKind::Topk),
            query(Class::Count, "", Agreement::Exact, QueryKind::Count),
            query(Class::List, "names", Agreement::Labels, QueryKind::Names),
            query(Class::List, "values", Agreement::Labels, QueryKind::Values),
            query(Class::List, "values of a metric", Agreement::Labels, QueryKind::ValuesOfMetric),
            query(Class::List, "series", Agreement::Labels, QueryKind::Series),
            query(Class::List, "metadata", Agreement::Labels, QueryKind::Metadata),
        ]
    }

    /// Whether the answer is the same for every shape of a database.
    pub fn is_of_all_shapes(&self) -> bool {
        matches!(self.kind, QueryKind::Names | QueryKind::Metadata)
    }

    /// Whether the other programs have no answer: they drop the metadata of remote write.
    pub fn is_for_firn_alone(&self) -> bool {
        matches!(self.kind, QueryKind::Metadata)
    }

    /// A request whose answer is complete only if every sample of one metric of `part` is there.
    pub fn sample_count(part: Part, extent: Extent) -> ApiRequest {
        let metric = vocabulary(part.shape).topk;
        let window_s = extent.span_ms / 1_000 + 60;
        let query = format!("sum(count_over_time({metric}[{window_s}s]))");
        ApiRequest::Instant { query, time_ms: extent.end_ms }
    }

    /// Request number `number`, the same for every program.
    pub fn request(&self, extent: Extent, number: u64) -> ApiRequest {
        let draw = |salt: u64, of: u64| scatter(number * 16 + salt) % of;
        // Up to 14 s before the end of the data.
        let end_ms = extent.end_ms - 10 * draw(1, 1_400) as i64 - 5;
        let start_ms = end_ms - (extent.span_ms - MARGIN_MS).max(0);
        let Part { shape, source_count } = self.part;
        let words = vocabulary(shape);
        // Label values and sources of one form: a dashboard knows one name of the source's label.
        let form = extent.labelling.form(draw(2, source_count.min(2) as u64) as usize);
        let range = |query: String| {
            // 15 s, or about 120 steps.
            let step_ms = ((end_ms - start_ms) / 120 / 15_000 * 15_000).max(15_000);
            ApiRequest::Range { query, start_ms, end_ms, step_ms }
        };
        let instant = |query: String| ApiRequest::Instant { query, time_ms: end_ms };
        let sources = |count: usize| {
            let draws = (0..).map(|idx| scatter(scatter(number) ^ idx) as usize % source_count);
            let of_form = draws.filter(|&source| extent.labelling.form(source) == form);
            let mut names: Vec<String> =
                of_form.take(count).map(|source| shape.source_label(source, form).1).collect();
            names.sort_unstable();
            names.dedup();
            names.join("|")
        };
        let source_label = shape.source_label(0, form).0;
        match self.kind {
            QueryKind::Narrow if shape == SenderShape::Random => {
                let selector = format!("{{key=~\"{}\"}}", sources(8));
                range(format!("max by (key) (max_over_time({selector}[5m]))"))
            }
            QueryKind::Narrow => {
                let sources = sources(8);
                let terms = words.gauges.map(|gauge| {
                    let selector = format!("{gauge}{{{source_label}=~\"{sources}\"}}");
                    format!("max by ({source_label}) (max_over_time({selector}[5m]))")
                });
                range(terms.join(" + "))
            }
            QueryKind::Wide => {
                let Vocabulary { counter, counter_by, .. } = words;
                range(format!("sum by ({counter_by}) (rate({counter}[5m]))"))
            }
            QueryKind::Topk => range(format!("topk(10, max_over_time({}[5m]))", words.topk)),
            QueryKind::Instant => instant(format!("{{__name__=~\"{}\"}}", words.instant)),
            QueryKind::Count => {
                let Vocabulary { count, count_by, .. } = words;
                instant(format!("count by ({count_by}) ({{__name__=~\"{count}\"}})"))
            }
            QueryKind::Names => ApiRequest::LabelNames { start_ms, end_ms },
            QueryKind::Values | QueryKind::ValuesOfMetric => {
                let selector = match self.kind {
                    QueryKind::ValuesOfMetric => Some(words.topk.to_owned()),
                    _ => None,
                };
                ApiRequest::LabelValues {
                    label: source_label.to_owned(),
                    selector,
                    start_ms,
                    end_ms,
                }
            }
            QueryKind::Series => {
                // About 200 series.
                let sources = sources(if shape == SenderShape::Random { 200 } else { 6 });
                let listed = words.listed;
                let selector = format!("{{__name__=~\"{listed}\",{source_label}=~\"{sources}\"}}");
                ApiRequest::Series { selector, start_ms, end_ms }
            }
            QueryKind::Metadata => ApiRequest::Metadata,
        }
    }
}

fn vocabulary(shape: SenderShape) -> Vocabulary {
    match shape {
        SenderShape::Tsbs => Vocabulary {
            gauges: [
                "cpu_usage_user",
                "cpu_usage_system",
                "cpu_usage_idle",
                "mem_used",
                "disk_free",
            ],
            counter: "net_bytes_sent",
            counter_by: "region",
            topk: "nginx_active",
            instant: "cpu_.+",
            count: "cpu_.*",
            count_by: "team",
            listed: "(redis|nginx)_.+",
        },
        SenderShape::Telegraf => Vocabulary {
            gauges: [
                "mem_used_percent",
                "system_load1",
                "swap_used",
                "processes_total",
                "disk_used",
            ],
            counter: "net_bytes_recv",
            counter_by: "dc",
            topk: "cpu_usage_system",
            instant: "disk_.+",
            count: "cpu_.*",
            count_by: "environment",
            listed: "cpu_.+",
        },
        SenderShape::Otlp => Vocabulary {
            gauges: [
                "jvm_memory_used_bytes",
                "jvm_thread_count",
                "jvm_class_count",
                "db_client_connection_count",
                "jvm_cpu_recent_utilization_ratio",
            ],
            counter: "http_server_request_duration_seconds_bucket",
            counter_by: "le",
            topk: "jvm_memory_used_bytes",
            instant: "jvm_.+",
            count: "http_server_.*",
            count_by: "k8s_namespace_name",
            listed: "http_server_.+",
        },
        SenderShape::Cadvisor => Vocabulary {
            gauges: [
                "container_memory_working_set_bytes",
                "container_memory_rss",
                "container_memory_cache",
                "container_threads",
                "container_file_descriptors",
            ],
            counter: "container_cpu_usage_seconds_total",
            counter_by: "namespace",
            topk: "container_memory_working_set_bytes",
            instant: "container_memory_.+",
            count: "container_.*_total",
            count_by: "namespace",
            listed: "container_.+",
        },
        SenderShape::Iot => Vocabulary {
            gauges: [
                "device_temperature_celsius",
                "device_humidity_percent",
                "device_battery_volts",
                "device_motor_rpm",
                "sensor_vibration_rms",
            ],
            counter: "device_energy_watt_hours_total",
            counter_by: "site",
            topk: "device_motor_rpm",
            instant: "sensor_.+",
            count: "device_.*",
            count_by: "model",
            listed: "device_.+",
        },
        SenderShape::Random => Vocabulary {
            gauges: ["gauge_20"; 5],
            counter: "events_07_total",
            counter_by: "attr_001",
            topk: "gauge_31",
            instant: "gauge_3.+",
            count: "events_1.*",
            count_by: "attr_017",
            listed: ".+",
        },
    }
}

impl ApiRequest {
    /// Its path with its query.
    pub fn target(&self) -> String {
        let seconds = |ms: i64| format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000));
        let times = |start_ms: i64, end_ms: i64| {
            format!("start={}&end={}", seconds(start_ms), seconds(end_ms))
        };
        let matching = |selector: &str| format!("match%5B%5D={}", percent_encoded(selector));
        match self {
            ApiRequest::Instant { query, time_ms } => {
                let query = percent_encoded(query);
                format!("/api/v1/query?query={query}&time={}", seconds(*time_ms))
            }
            ApiRequest::Range { query, start_ms, end_ms, step_ms } => {
                let (query, times) = (percent_encoded(query), times(*start_ms, *end_ms));
                format!("/api/v1/query_range?query={query}&{times}&step={}", step_ms / 1_000)
            }
            ApiRequest::LabelNames { start_ms, end_ms } => {
                format!("/api/v1/labels?{}", times(*start_ms, *end_ms))
            }
            ApiRequest::LabelValues { label, selector, start_ms, end_ms } => {
                let selector = selector.iter().map(|s| matching(s) + "&").collect::<String>();
                let times = times(*start_ms, *end_ms);
                format!("/api/v1/label/{label}/values?{selector}{times}")
            }
            ApiRequest::Series { selector, start_ms, end_ms } => {
                format!("/api/v1/series?{}&{}", matching(selector), times(*start_ms, *end_ms))
            }
            ApiRequest::Metadata => "/api/v1/metadata".to_owned(),
        }
    }
}
