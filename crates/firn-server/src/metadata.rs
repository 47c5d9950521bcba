//! Metric metadata: type, help and unit by metric name, as last sent.
//!
//! Bounded and kept in memory only: Prometheus repeats it every minute.

use std::collections::BTreeMap;

use parking_lot::RwLock;

/// A metric's type as the exposition formats name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricType {
    /// Not announced.
    #[default]
    Unknown,
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by bucket.
    Histogram,
    /// A histogram with counts that may decrease.
    GaugeHistogram,
    /// Quantiles.
    Summary,
    /// Labels worth knowing, value 1.
    Info,
    /// One of several states.
    StateSet,
}

impl MetricType {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            MetricType::Unknown => "unknown",
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::GaugeHistogram => "gaugehistogram",
            MetricType::Summary => "summary",
            MetricType::Info => "info",
            MetricType::StateSet => "stateset",
        }
    }
}

/// The metadata of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Its type.
    pub kind: MetricType,
    /// The help text.
    pub help: String,
    /// Its unit, `""` if none.
    pub unit: String,
}

/// Metadata of every metric, newest wins.
#[derive(Debug, Default)]
pub struct MetadataStore {
    by_name: RwLock<BTreeMap<String, Metadata>>,
}

// 100,000 metrics with 300 bytes each are 30 MB, more than servers usually have. Metadata of
// further ones is dropped; their samples are stored.
const METRIC_COUNT_MAX: usize = 100_000;
// Longer help texts are truncated.
const TEXT_BYTES_MAX: usize = 1_024;

impl MetadataStore {
    /// Stores the metadata of a request; it replaces older metadata.
    pub fn put(&self, entries: impl IntoIterator<Item = (String, Metadata)>) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        let mut by_name = self.by_name.write();
        for (name, mut metadata) in entries {
            let is_known = by_name.contains_key(&name);
            if name.is_empty() || name.len() > TEXT_BYTES_MAX {
                continue;
            }
            if is_known || by_name.len() < METRIC_COUNT_MAX {
                cut(&mut metadata.help);
                cut(&mut metadata.unit);
                by_name.insert(name, metadata);
            }
        }
    }

    /// Known metadata: of one `metric`, or of at most `limit` metrics.
    pub fn list(&self, metric: Option<&str>, limit: usize) -> Vec<(String, Metadata)> {
        let by_name = self.by_name.read();
        let copy = |(name, metadata): (&String, &Metadata)| (name.clone(), metadata.clone());
        match metric {
            Some(name) => by_name.get_key_value(name).into_iter().take(limit).map(copy).collect(),
            None => by_name.iter().take(limit).map(copy).collect(),
        }
    }
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_wins_and_long_texts_are_cut() {
        let store = MetadataStore::default();
        let gauge =
            Metadata { kind: MetricType::Gauge, help: "é".repeat(2_000), ..Metadata::default() };
        store.put([("up".to_owned(), Metadata::default()), ("a".to_owned(), Metadata::default())]);
        store.put([("up".to_owned(), gauge), (String::new(), Metadata::default())]);
        let known = store.list(Some("up"), 10);
        assert_eq!((known[0].1.kind, known[0].1.help.len()), (MetricType::Gauge, 1_024));
        assert_eq!(store.list(None, 10).len(), 2);
        assert_eq!(store.list(None, 1)[0].0, "a");
        assert!(store.list(Some("down"), 10).is_empty());
    }
}
