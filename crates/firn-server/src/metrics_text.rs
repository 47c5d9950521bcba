//! The text format that exposes metrics.

use std::fmt::Write;

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
