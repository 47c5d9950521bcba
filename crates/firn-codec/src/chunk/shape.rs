//! Assigns the members of a chunk to shapes: bases and subsets of them.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{ColumnBatch, Presence, TimeRange, Timestamp};

use crate::columns::{Times, span};
use crate::limits::ENTRIES_MAX;
use crate::postings::encode_postings;
use crate::time_column::encode_times;
use crate::varint::encode_varint;

/// A selection of this many equidistant entries is a base of its own: it takes no more bytes, and a
/// reader passes no entry of another base. Members with intervals of their own are such selections.
const REGULAR_ENTRIES_MIN: usize = 16;

/// The shapes of a chunk and the shape of each member.
pub(super) struct Shapes {
    pub(super) bases: Vec<Times>,
    /// Index of the base and the entries in it.
    subsets: Vec<(usize, Vec<u64>)>,
    members: Vec<Shape>,
}

/// The timestamps of a member's values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// All entries of the base at this index.
    Base(usize),
    /// The subset at this index.
    Subset(usize),
}

impl Shapes {
    pub(super) fn of(batch: &ColumnBatch) -> Shapes {
        let assigned = assign_bases(&batch.times);
        let mut shapes = Shapes { bases: assigned.bases, subsets: Vec::new(), members: Vec::new() };
        let mut known: HashMap<(usize, Option<&[u64]>), Shape> = HashMap::new();
        for column in &batch.columns {
            let time_idx = column.time_idx as usize;
            let bits = column.presence.as_ref().filter(|presence| !presence.is_full());
            let shape = *known.entry((time_idx, bits.map(Presence::words))).or_insert_with(|| {
                let (base, entries) = &assigned.columns[time_idx];
                match (entries, bits) {
                    (None, None) => Shape::Base(*base),
                    (None, Some(bits)) => {
                        shapes.selection(*base, bits.iter().map(|idx| idx as u64).collect())
                    }
                    (Some(entries), None) => shapes.selection(*base, entries.clone()),
                    (Some(entries), Some(bits)) => {
                        shapes.selection(*base, bits.iter().map(|idx| entries[idx]).collect())
                    }
                }
            });
            shapes.members.push(shape);
        }
        shapes.drop_first_base_if_unused();
        shapes
    }

    fn selection(&mut self, base: usize, entries: Vec<u64>) -> Shape {
        let times = || entries.iter().map(|&entry| self.bases[base][entry as usize]);
        if entries.len() >= REGULAR_ENTRIES_MIN && is_equidistant(times()) {
            let own = times().collect();
            self.bases.push(own);
            return Shape::Base(self.bases.len() - 1);
        }
        self.subsets.push((base, entries));
        Shape::Subset(self.subsets.len() - 1)
    }

    /// The base of all timestamps is not needed if all of its selections are bases.
    fn drop_first_base_if_unused(&mut self) {
        let is_used = self.members.contains(&Shape::Base(0))
            || self.subsets.iter().any(|(base, _)| *base == 0);
        if is_used || self.bases.len() < 2 {
            return;
        }
        self.bases.remove(0);
        self.subsets.iter_mut().for_each(|(base, _)| *base -= 1);
        for shape in &mut self.members {
            if let Shape::Base(base) = shape {
                *base -= 1;
            }
        }
    }

    /// Its number in the chunk: bases first, then subsets.
    fn number(&self, shape: Shape) -> u64 {
        match shape {
            Shape::Base(idx) => idx as u64,
            Shape::Subset(idx) => (self.bases.len() + idx) as u64,
        }
    }

    pub(super) fn time_range(&self) -> TimeRange {
        self.bases.iter().fold(TimeRange::EMPTY, |range, times| range.union(span(times)))
    }

    /// Appends bases, subsets and the members' shapes as runs.
    pub(super) fn encode(&self, start: Timestamp, out: &mut Vec<u8>) {
        encode_varint(self.bases.len() as u64, out);
        encode_varint(self.subsets.len() as u64, out);
        let mut bytes = Vec::new();
        for times in &self.bases {
            encode_varint(times.len() as u64, out);
            bytes.clear();
            encode_times(start, times, &mut bytes);
            encode_varint(bytes.len() as u64, out);
            out.extend_from_slice(&bytes);
        }
        for (base, entries) in &self.subsets {
            encode_varint(*base as u64, out);
            encode_postings(entries, out);
        }
        if self.bases.len() + self.subsets.len() > 1 {
            for run in self.members.chunk_by(|a, b| a == b) {
                encode_varint(self.number(run[0]), out);
                encode_varint(run.len() as u64 - 1, out);
            }
        }
    }
}

/// The bases of some time columns, and the base and entries of each time column (`None`: all
/// entries).
struct BaseAssignment {
    bases: Vec<Times>,
    columns: Vec<(usize, Option<Vec<u64>>)>,
}

/// One base of all timestamps if the columns share most of them, otherwise one base per column.
fn assign_bases(times: &[Times]) -> BaseAssignment {
    let one_per_column = || BaseAssignment {
        bases: times.to_vec(),
        columns: (0..times.len()).map(|idx| (idx, None)).collect(),
    };
    if times.len() < 2 {
        return one_per_column();
    }
    let total: usize = times.iter().map(|times| times.len()).sum();
    let mut all: Vec<Timestamp> = times.iter().flat_map(|times| times.iter().copied()).collect();
    all.sort();
    all.dedup();
    // A base costs up to some bits per entry, a subset mostly a few bytes. Readers refuse a base of
    // more than `ENTRIES_MAX` entries, even if every column is shorter.
    if all.len() * 4 > total * 3 || all.len() > ENTRIES_MAX {
        return one_per_column();
    }
    let columns = times.iter().map(|times| (0, entries_among(&all, times))).collect();
    BaseAssignment { bases: vec![Arc::from(all)], columns }
}

fn is_equidistant(times: impl Iterator<Item = Timestamp> + Clone) -> bool {
    let mut pairs = times.clone().zip(times.skip(1));
    let mut first = None;
    pairs.all(|(before, after)| {
        let step = after.wrapping_sub(before);
        *first.get_or_insert(step) == step
    })
}

/// The indexes of `times` in `all`, which contains them; `None` if they are all of it.
fn entries_among(all: &[Timestamp], times: &[Timestamp]) -> Option<Vec<u64>> {
    if all.len() == times.len() {
        return None;
    }
    let mut idx = 0;
    let entries = times.iter().map(|&ts| {
        while all[idx] < ts {
            idx += 1;
        }
        idx as u64
    });
    Some(entries.collect())
}
