//! The text format that exposes metrics, and the memory of its texts.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{Budget, Pool, Reservation, Result};

/// A metric's type in the text format.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

/// Writes the text exposition format 0.0.4.
#[derive(Debug, Default)]
pub(crate) struct MetricsText(String);

impl MetricsText {
    /// Begins a family; its samples follow.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        // Writing into a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One line.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (idx, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let _ = write!(self.0, "{}{label}=\"{value}\"", if idx == 0 { '{' } else { ',' });
        }
        self.0.push_str(if labels.is_empty() { " " } else { "} " });
        let mut number = Vec::new();
        crate::wire::number::push_float(value, &mut number);
        self.0.push_str(&String::from_utf8_lossy(&number));
        self.0.push('\n');
    }

    /// A counter without labels.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, Kind::Counter, help);
        self.sample(name, &[], value);
    }

    /// A gauge without labels.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, Kind::Gauge, help);
        self.sample(name, &[], value);
    }

    /// The text.
    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// The memory of texts of `/metrics` until their clients have read them.
#[derive(Debug)]
pub(crate) struct MetricsMemory {
    /// The memory of the texts of a server with few targets and rules, at every state of the
    /// database.
    own: Budget,
    /// The length of the last text: the next one has probably a similar one.
    last_bytes: AtomicU64,
}

// Some dozen short texts that clients read slowly.
const METRICS_BYTES_MAX: u64 = 4 << 20;
impl MetricsMemory {
    pub(crate) fn new() -> MetricsMemory {
        let own = Budget::unlimited().part(METRICS_BYTES_MAX);
        MetricsMemory { own, last_bytes: AtomicU64::new(0) }
    }

    /// A text of this length was made.
    pub(crate) fn note(&self, bytes: usize) {
        self.last_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// The length of the last text; 0 before the first one.
    pub(crate) fn last_bytes(&self) -> u64 {
        self.last_bytes.load(Ordering::Relaxed)
    }

    /// Reserves a text that grows to twice its length, beside this memory in that of the database.
    ///
    /// # Errors
    /// `Busy` without memory.
    pub(crate) fn reserve(
        &self,
        database: Option<&Budget>,
        text_bytes: u64,
    ) -> Result<Reservation> {
        let bytes = 2 * text_bytes;
        self.own.reserve(Pool::Query, bytes).or_else(|error| match database {
            // A network thread reclaims nothing.
            Some(budget) => budget.of_free().reserve(Pool::Query, bytes),
            None => Err(error),
        })
    }
}
