//! Imports of the text exposition format 0.0.4, with the parser of scrapes: every text that can be
//! scraped can be imported.
//!
//! [`decode`] locates the series text, value and time of each line; [`labels`] parses a series text
//! that the sender cache does not know.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;

use firn_collect::scrape::{Entry, LabelSink, MetadataItem, Parser, SampleLine, series_len};
use firn_model::{LabelsBuilder, MetricType, Result, Sample, Timestamp};

use crate::metadata::Metadata;
use crate::wire::LabelFault;
use crate::wire::decoded::{Decoded, SpanHasher};

/// Labels that the importer adds to every series, in place of those of the same name.
#[derive(Clone, Debug, Default)]
pub struct ExtraLabels(pub Vec<(String, String)>);

impl ExtraLabels {
    /// The bytes that they add to a label set: names, values and their lengths.
    pub fn bytes(&self) -> u64 {
        let bytes = |(name, value): &(String, String)| {
            (name.len() as u64).saturating_add(value.len() as u64).saturating_add(4)
        };
        self.0.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Identifies the extra labels in the hash of a series text.
    pub fn key(&self, hasher: &SpanHasher) -> u128 {
        let mut bytes = b"exposition".to_vec();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        hasher.hash(&bytes)
    }
}

/// Walks `text` into `out`, which the caller has cleared. Samples without a time get `default_ts`;
/// `key` is [`ExtraLabels::key`].
///
/// # Errors
/// `Invalid` with the line of the first mistake; `TooLarge` from [`Decoded`].
pub fn decode(
    text: &[u8],
    default_ts: Timestamp,
    key: u128,
    hasher: &SpanHasher,
    out: &mut Decoded,
) -> Result<()> {
    let mut parser = Parser::new(text, false, ());
    while let Some(entry) = parser.next(series_len)? {
        match entry {
            Entry::Sample(SampleLine { series, value, ts, .. }) => {
                out.push_sample(Sample { ts: ts.unwrap_or(default_ts), value })?;
                let hash = hasher.hash(text.get(series.clone()).unwrap_or(&[])) ^ key;
                out.push_series(hash, series, true)?;
            }
            Entry::Metadata(name, MetadataItem::Type(kind)) => {
                merge(out, &name, Metadata { kind, ..Metadata::default() }, true);
            }
            Entry::Metadata(name, MetadataItem::Help(help)) => {
                merge(out, &name, Metadata::new(MetricType::Unknown, &help, ""), false);
            }
            // Of OpenMetrics only.
            Entry::Metadata(_, MetadataItem::Unit(_)) => {}
        }
    }
    Ok(())
}

/// Parses the series text that [`decode`] found at `span`: `name{label="value",...}` or
/// `{"name",label="value",...}`.
///
/// # Errors
/// [`LabelFault::Malformed`] for every mistake: one bad line fails the whole import.
pub fn labels(
    text: &[u8],
    span: Range<usize>,
    extra: &ExtraLabels,
    out: &mut LabelsBuilder,
) -> Result<(), LabelFault> {
    Parser::read_series(text, span, ImportedLabels { extra, out })?;
    for (name, value) in &extra.0 {
        out.push(name, value);
    }
    Ok(())
}

/// The labels of a line without those that extra labels replace. Their memory is reserved by the
/// length of the text.
struct ImportedLabels<'a> {
    extra: &'a ExtraLabels,
    out: &'a mut LabelsBuilder,
}

impl LabelSink for ImportedLabels<'_> {
    fn clear(&mut self) {
        self.out.clear();
    }

    fn push(&mut self, name: &str, value: &str) {
        if self.extra.0.iter().all(|(extra, _)| extra != name) {
            self.out.push(name, value);
        }
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// Merges adjacent HELP and TYPE lines of a metric into one entry.
fn merge(out: &mut Decoded, name: &str, found: Metadata, is_type: bool) {
    match out.metadata.last_mut() {
        Some((last, known)) if **last == *name && is_type => known.kind = found.kind,
        // Added again, because its help text counts.
        Some((last, known)) if **last == *name => {
            let kind = known.kind;
            out.metadata.pop();
            out.push_metadata(name, Metadata { kind, ..found });
        }
        _ => out.push_metadata(name, found),
    }
}

#[cfg(test)]
mod tests;
