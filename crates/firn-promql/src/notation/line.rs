//! The parsed form of a series line: `name{a="b"} 1 {{sum:2}} _`.

use std::sync::Arc;

use firn_model::{Histogram, Labels};

/// One position of a series line.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesItem {
    /// No sample.
    Gap,
    /// A float.
    Float(f64),
    /// A native histogram.
    Histogram(ScriptHistogram),
}

/// A series with one item per position.
#[derive(Clone, Debug)]
pub struct SeriesLine {
    /// The labels with the name.
    pub labels: Labels,
    /// The items.
    pub items: Vec<SeriesItem>,
    /// For a line of start timestamps instead of values: the offset of each from its sample's time.
    pub starts: Option<Vec<Option<i64>>>,
}

/// A histogram in a script.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptHistogram {
    /// The histogram.
    pub histogram: Arc<Histogram>,
    /// Whether the script contains a counter reset hint.
    pub has_hint: bool,
}
