//! Encodes chunks and runs.

use firn_model::{ColumnBatch, GroupId, Presence, Slot, Timestamp};

use super::directory::DirectoryBuilder;
use super::head::{LONE, REGULAR, VERSION, encode_head};
use super::shape::Shapes;
use crate::columns::{GroupColumns, doubles, span};
use crate::effort::Effort;
use crate::limits::{ENTRIES_MAX, SLOTS_MAX, VALUES_MAX};
use crate::postings::encode_postings;
use crate::time_column::encode_times;
use crate::value_column::encode_values;
use crate::varint::encode_varint;

/// Appends one chunk with all of `columns`.
///
/// # Panics
/// If `columns` is empty, violates the invariants of [`GroupColumns`], or exceeds [`SLOTS_MAX`],
/// [`ENTRIES_MAX`] or [`VALUES_MAX`]: wrong data must not become durable.
pub fn encode_chunk(group: GroupId, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    columns.check();
    let members = &columns.batch.columns;
    let last = members.last().expect("a chunk has at least one member");
    assert!((last.slot.0 as usize) < SLOTS_MAX, "slot {} is over {SLOTS_MAX}", last.slot.0);
    assert!(columns.value_count() <= VALUES_MAX, "a chunk of over {VALUES_MAX} values");
    let shapes = match lone_times(&columns.batch) {
        Some(times) => {
            check_entry_count(times);
            let flags = LONE | if is_regular(times) { REGULAR } else { 0 };
            encode_head(flags, group, columns.seq, span(times), out);
            encode_varint(times.len() as u64, out);
            return encode_lone(times, doubles(&last.values), effort, out);
        }
        None => Shapes::of(&columns.batch),
    };
    encode_head(0, group, columns.seq, shapes.time_range(), out);
    encode_members(&shapes, columns, effort, out);
}

/// Appends a *run*: a chunk in memory without group and commits, which its owner knows. No
/// timestamp may be before `base`. With few entries a run takes a third fewer bytes than a chunk.
///
/// # Panics
/// As [`encode_chunk`].
pub fn encode_run(base: Timestamp, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    columns.check();
    let values = columns.value_count();
    assert!(values > 0 && values <= VALUES_MAX, "a run of {values} values");
    if let (Some(times), [column]) = (lone_times(&columns.batch), columns.batch.columns.as_slice())
    {
        return encode_lone_run(base, times, doubles(&column.values), effort, out);
    }
    let shapes = Shapes::of(&columns.batch);
    let range = shapes.time_range();
    out.push(VERSION);
    encode_run_start(base, range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
    encode_members(&shapes, columns, effort, out);
}

/// As [`encode_run`] for slot 0 alone, with a value at each timestamp.
///
/// # Panics
/// As [`encode_run`]; if the timestamps do not strictly rise.
pub fn encode_lone_run(
    base: Timestamp,
    times: &[Timestamp],
    values: &[f64],
    effort: Effort,
    out: &mut Vec<u8>,
) {
    assert!(!times.is_empty() && times.len() == values.len(), "a value for each timestamp");
    assert!(times.is_sorted_by(|a, b| a < b), "timestamps of a time column must rise");
    check_entry_count(times);
    let (first, last) = (times[0], times[times.len() - 1]);
    let regular = is_regular(times);
    out.push(VERSION | LONE | if regular { REGULAR } else { 0 });
    encode_run_start(base, first, out);
    encode_varint(times.len() as u64, out);
    let steps = if regular { (times.len() as u64 - 1).max(1) } else { 1 };
    encode_varint(last.wrapping_sub(first) as u64 / steps, out);
    encode_lone(times, values, effort, out);
}

fn encode_run_start(base: Timestamp, start: Timestamp, out: &mut Vec<u8>) {
    debug_assert!(start >= base, "a run from {start} on is before {base}");
    encode_varint(start.wrapping_sub(base) as u64, out);
}

fn encode_lone(times: &[Timestamp], values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    if !is_regular(times) {
        encode_times(times[0], times, out);
    }
    encode_values(values, effort, out);
}

/// Panics for a time column that is longer than readers accept.
fn check_entry_count(times: &[Timestamp]) {
    assert!(times.len() <= ENTRIES_MAX, "a time column of {} entries", times.len());
}

/// The timestamps if slot 0 is the only member and has a value at each.
fn lone_times(batch: &ColumnBatch) -> Option<&[Timestamp]> {
    match (batch.times.as_slice(), batch.columns.as_slice()) {
        ([times], [column])
            if column.slot == Slot(0) && column.presence.as_ref().is_none_or(Presence::is_full) =>
        {
            Some(times)
        }
        _ => None,
    }
}

/// Whether the timestamps are equidistant.
fn is_regular(times: &[Timestamp]) -> bool {
    let mut steps = times.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    steps.next().is_none_or(|first| steps.all(|step| step == first))
}

/// Appends everything after the head of a chunk with members.
fn encode_members(shapes: &Shapes, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    let members = &columns.batch.columns;
    let slots: Vec<u64> = members.iter().map(|column| u64::from(column.slot.0)).collect();
    encode_postings(&slots, out);
    shapes.bases.iter().for_each(|times| check_entry_count(times));
    shapes.encode(shapes.time_range().start, out);
    let mut directory = DirectoryBuilder::new(members.len());
    let mut values: Vec<u8> = Vec::new();
    let mut previous = 0..0;
    for column in members {
        let start = values.len();
        encode_values(doubles(&column.values), effort, &mut values);
        if values[previous.clone()] == values[start..] {
            values.truncate(start);
            directory.add(start, 0);
        } else {
            directory.add(start, values.len() - start);
            previous = start..values.len();
        }
    }
    directory.encode(out);
    out.append(&mut values);
}
