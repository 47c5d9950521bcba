//! Collection: Prometheus' configuration file, targets and the samples that they expose.
//!
//! **Owns** the configuration file `prometheus.yml` with its defaults and validation errors,
//! relabelling, the meaning of discovered lists, the labels of targets, the parsers of scraped
//! text, the series of each target, and the times at which targets are scraped.
//!
//! **Never** knows the database, waits, or sends a request: the caller receives requests and rows,
//! and the states of targets.
//!
//! **Paths**: [`config::Config::load`] reads `prometheus.yml` through [`config::Files`];
//! [`relabel::Rules`] change label sets; [`targets::Target::populate`] makes targets of discovered
//! labels, and [`targets::sample_labels`] labels of samples; [`discovery::Provider`] lists the
//! discoveries of a job; [`pool::ScrapePools`] returns the scrapes that are due, and
//! [`scrape::TargetScraper`] turns an answer into rows.
//!
//! **Invariants**: a loaded configuration is checked whole, and its jobs have all values that they
//! inherit; no printed form of it shows a secret; regular expressions, made labels and the aliases
//! of a document are bounded.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `relabel`, `json`, `config`, `targets`, `check`, `scrape`, `pool`, `discovery`.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

pub mod check;
pub mod config;
pub mod discovery;
pub mod json;
pub mod pool;
pub mod relabel;
pub mod scrape;
pub mod targets;
