//! The types of metrics.

/// A metric's type as the exposition formats name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// Every type, by its number in files and in messages of Prometheus' remote write.
    pub const ALL: [MetricType; 8] = [
        MetricType::Unknown,
        MetricType::Counter,
        MetricType::Gauge,
        MetricType::Histogram,
        MetricType::GaugeHistogram,
        MetricType::Summary,
        MetricType::Info,
        MetricType::StateSet,
    ];

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
    /// Its number in files and messages.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// The type with a number; [`MetricType::Unknown`] for others.
    pub fn of_number(number: u64) -> MetricType {
        let idx = usize::try_from(number).unwrap_or(usize::MAX);
        MetricType::ALL.get(idx).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_remote_write() {
        for (number, of_number) in (0..).zip(MetricType::ALL) {
            assert_eq!((of_number.number(), MetricType::of_number(number)), (number, of_number));
        }
        assert_eq!(MetricType::of_number(2).name(), "gauge");
        assert_eq!(MetricType::of_number(8), MetricType::Unknown);
        assert_eq!(MetricType::of_number(u64::MAX), MetricType::Unknown);
    }
}
