//! Reads the body of a lone series: slot 0 alone, with a value at each timestamp.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{ColumnBatch, Result, Slot, TimeRange};

use super::outline::{ColumnOutline, ColumnsOutline};
use crate::columns::{MemberColumn, Slots};
use crate::integers;
use crate::time_column::{RegularTimes, TimeColumn};
use crate::value_column::{self, decode_values};

/// The body of a lone series.
#[derive(Clone, Debug)]
pub(super) struct LoneBody<'a> {
    pub(super) entry_count: usize,
    /// The timestamps are equidistant and not stored.
    pub(super) regular: bool,
    pub(super) bytes: &'a [u8],
}

impl<'a> LoneBody<'a> {
    /// The timestamps, and the bytes of the value column.
    fn split(&self, all: TimeRange) -> Result<(TimeColumn, &'a [u8])> {
        let mut input = self.bytes;
        let times = match self.regular {
            true => TimeColumn::Regular(RegularTimes::between(all, self.entry_count)?),
            false => TimeColumn::take(all.start, self.entry_count, &mut input)?,
        };
        Ok((times, input))
    }
}

impl LoneBody<'_> {
    /// Outlines the columns. Decodes irregular timestamps to find the start of the values.
    pub(super) fn outline(&self, all: TimeRange) -> Result<ColumnsOutline> {
        let entry_count = self.entry_count;
        let (_, values) = self.split(all)?;
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
        let (times, bytes) = self.split(all)?;
        let entries = times.entries_in(range);
        if entries.is_empty() {
            return Ok(ColumnBatch::default());
        }
        let mut values = Vec::with_capacity(entries.len());
        decode_values(bytes, self.entry_count, entries.clone(), &mut Vec::new(), &mut values)?;
        Ok(ColumnBatch::of_one(Slot(0), times.slice(entries), values))
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
        let (times, bytes) = self.split(all)?;
        append_samples(&times, bytes, range, out)
    }
}

/// Appends the samples in `range` of a column with a value at each of `times` to `out`; `false` as
/// [`super::reader::Chunk::append_one`].
pub(super) fn append_samples(
    times: &TimeColumn,
    bytes: &[u8],
    range: TimeRange,
    out: &mut MemberColumn,
) -> Result<bool> {
    let entries = times.entries_in(range);
    if entries.is_empty() {
        return Ok(true);
    }
    if !times.get(entries.start).is_some_and(|first| out.is_next(first)) {
        return Ok(false);
    }
    times.append_to(entries.clone(), &mut out.times);
    decode_values(bytes, times.len(), entries, &mut out.scratch, &mut out.values)?;
    Ok(true)
}
