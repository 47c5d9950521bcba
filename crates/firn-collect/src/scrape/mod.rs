//! Scrapes: parsers of exposed bodies, and the cache that turns a body into a row.
//!
//! **Owns** the text formats of Prometheus and OpenMetrics, the content types, and per target the
//! texts of its series with their references.
//!
//! **Never** opens a connection, reads a clock or waits: [`TargetScraper`] receives the time of a
//! scrape and its answer, and passes rows to a [`Store`].
//!
//! Source: Heracles (PVLDB 2021), sections 4.1 to 4.3: a target is a group, a scrape is one row.
//!
//! Reading order: `number`, `held`, `labels`, `text`, `protobuf`, `negotiate`, `texts`, `cache`,
//! `schedule`, `request`, `target_scraper`.

mod cache;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod held;
mod labels;
mod negotiate;
mod number;
mod protobuf;
mod request;
mod schedule;
mod target_scraper;
mod text;
mod texts;

use cache::SAMPLE_LIMIT_TEXT;
pub use cache::{
    ExtraReport, ScrapeCache, ScrapeCounts, ScrapeOptions, ScrapeReport, ScrapedBody, SeriesSource,
};
pub use labels::{ExposedLabels, LabelSink};
pub use negotiate::{BodyFormat, accept_header};
pub use number::parse_value;
pub use request::ScrapeRequest;
pub use schedule::{Schedule, phase_seed};
pub use target_scraper::{
    Answer, FetchFailure, ScrapeContext, ScrapeScratch, Store, TargetScraper, TargetStatus,
};
pub use text::{Entry, MetadataItem, Parser, SampleLine, at_line, series_len};
