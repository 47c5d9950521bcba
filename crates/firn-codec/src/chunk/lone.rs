//! Reads the body of a lone series: slot 0 alone, with a value at each timestamp.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::ops::Range;

use firn_model::{ColumnBatch, Result, Slot, TimeRange, Timestamp};

use super::outline::{ColumnOutline, ColumnsOutline};
use crate::columns::{MemberColumn, Slots, Times, entries_in};
use crate::integers;
use crate::time_column::decode_times;
use crate::value_column::{self, decode_values};
use crate::varint::corrupt;

/// The body of a lone series.
#[derive(Clone, Debug)]
pub(super) struct LoneBody<'a> {
    pub(super) entry_count: usize,
    /// The timestamps are equidistant and not stored.
    pub(super) regular: bool,
    pub(super) bytes: &'a [u8],
}

impl<'a> LoneBody<'a> {
    /// The bytes of its value column.
    fn values(&self, start: Timestamp) -> Result<&'a [u8]> {
        let mut input = self.bytes;
        if !self.regular {
            decode_times(start, self.entry_count, &mut input)?;
        }
        Ok(input)
    }
}

impl LoneBody<'_> {
    /// Outlines the columns. Decodes irregular timestamps to find the start of the values.
    pub(super) fn outline(&self, start: Timestamp) -> Result<ColumnsOutline> {
        let entry_count = self.entry_count;
        let values = self.values(start)?;
        let times = match self.regular {
            true => ColumnOutline { codec: "regular".to_owned(), entry_count, bytes: 0 },
            false => ColumnOutline {
                codec: integers::codec_of(self.bytes),
                entry_count,
                bytes: self.bytes.len().saturating_sub(values.len()),
            },
        };
        let codec = value_column::codec_of(values);
        let column = ColumnOutline { codec, entry_count, bytes: values.len() };
        Ok(ColumnsOutline { times: vec![times], values: vec![(Slot(0), column)] })
    }

    pub(super) fn read(
        &self,
        all: TimeRange,
        slots: Slots<'_>,
        range: TimeRange,
        touched: &mut usize,
    ) -> Result<ColumnBatch> {
        *touched = touched.saturating_add(self.bytes.len());
        if !slots.contains(Slot(0)) {
            return Ok(ColumnBatch::default());
        }
        let mut input = self.bytes;
        let (times, entries): (Times, _) = if self.regular {
            let line = RegularTimes::new(all, self.entry_count)?;
            let entries = line.entries_in(range);
            (entries.clone().map(|idx| line.at(idx)).collect(), entries)
        } else {
            let times = decode_times(all.start, self.entry_count, &mut input)?;
            let entries = entries_in(&times, range);
            (times.get(entries.clone()).unwrap_or_default().into(), entries)
        };
        if times.is_empty() {
            return Ok(ColumnBatch::default());
        }
        let mut values = Vec::with_capacity(entries.len());
        decode_values(input, self.entry_count, entries, &mut Vec::new(), &mut values)?;
        Ok(ColumnBatch::of_one(Slot(0), times, values))
    }

    /// See [`super::reader::Chunk::append_one`].
    pub(super) fn append(
        &self,
        all: TimeRange,
        slot: Slot,
        range: TimeRange,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        if slot != Slot(0) {
            return Ok(true);
        }
        let mut input = self.bytes;
        let entries = if self.regular {
            let line = RegularTimes::new(all, self.entry_count)?;
            let entries = line.entries_in(range);
            if !entries.is_empty() && !out.is_next(line.at(entries.start)) {
                return Ok(false);
            }
            out.times.extend(entries.clone().map(|idx| line.at(idx)));
            entries
        } else {
            let times = decode_times(all.start, self.entry_count, &mut input)?;
            let entries = entries_in(&times, range);
            let kept = times.get(entries.clone()).unwrap_or_default();
            if !kept.first().is_none_or(|first| out.is_next(*first)) {
                return Ok(false);
            }
            out.times.extend_from_slice(kept);
            entries
        };
        if !entries.is_empty() {
            decode_values(input, self.entry_count, entries, &mut out.scratch, &mut out.values)?;
        }
        Ok(true)
    }
}

/// Equidistant timestamps from the start of a range to its end.
struct RegularTimes {
    start: Timestamp,
    /// 0 if there is only one timestamp.
    step: u64,
    count: usize,
}

impl RegularTimes {
    fn new(range: TimeRange, count: usize) -> Result<RegularTimes> {
        let span = range.end.wrapping_sub(range.start) as u64;
        let steps = (count as u64).saturating_sub(1);
        let fits = if steps == 0 { span == 0 } else { span >= steps && span.is_multiple_of(steps) };
        if !fits {
            return Err(corrupt(format!("{count} regular timestamps in {span} ms")));
        }
        Ok(RegularTimes { start: range.start, step: span.checked_div(steps).unwrap_or(0), count })
    }

    fn at(&self, idx: usize) -> Timestamp {
        self.start.wrapping_add((idx as u64).wrapping_mul(self.step) as i64)
    }

    /// The entries in `range`, which must overlap them.
    fn entries_in(&self, range: TimeRange) -> Range<usize> {
        let distance = |ts: Timestamp| ts.wrapping_sub(self.start) as u64;
        let step = self.step.max(1);
        let at_most = |idx: u64| usize::try_from(idx).map_or(self.count, |idx| idx.min(self.count));
        let from = match range.start <= self.start {
            true => 0,
            false => at_most(distance(range.start).div_ceil(step)),
        };
        let last_entry = distance(range.end).checked_div(step).unwrap_or(0);
        let to = match range.end < self.start {
            true => 0,
            false => at_most(last_entry.saturating_add(1)),
        };
        from..to.max(from)
    }
}
