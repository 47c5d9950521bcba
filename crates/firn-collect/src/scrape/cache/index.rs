//! Texts by their content. Lives for one scrape.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::HashTable;

use crate::scrape::text::BoundLabel;

/// A map from texts in a buffer, which every call passes, to indexes.
#[derive(Default)]
pub(super) struct TextIndex {
    /// Seeded at random, so that a target cannot choose texts of one hash.
    hasher: foldhash::fast::RandomState,
    lines: Vec<(Range<usize>, BoundLabel, usize)>,
    table: HashTable<u32>,
}

impl TextIndex {
    /// The index of `text`; of the first one if it was inserted several times.
    pub(super) fn find(&self, buf: &[u8], text: &[u8], bound_label: BoundLabel) -> Option<usize> {
        let wanted = (Some(text), bound_label);
        let found = self.table.find(self.hasher.hash_one((text, bound_label)), |line| {
            self.lines
                .get(*line as usize)
                .is_some_and(|(span, bound, _)| (buf.get(span.clone()), *bound) == wanted)
        })?;
        self.lines.get(*found as usize).map(|line| line.2)
    }

    /// Adds a text, unless it is there.
    pub(super) fn insert(
        &mut self,
        buf: &[u8],
        span: Range<usize>,
        bound_label: BoundLabel,
        idx: usize,
    ) {
        let text = buf.get(span.clone()).unwrap_or(&[]);
        let Ok(line) = u32::try_from(self.lines.len()) else { return };
        if self.find(buf, text, bound_label).is_none() {
            let TextIndex { hasher, lines, table } = self;
            let hash = hasher.hash_one((text, bound_label));
            lines.push((span, bound_label, idx));
            table.insert_unique(hash, line, |line| {
                lines.get(*line as usize).map_or(0, |(span, bound, _)| {
                    hasher.hash_one((buf.get(span.clone()).unwrap_or(&[]), *bound))
                })
            });
        }
    }
}
