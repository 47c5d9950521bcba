//! Encodes posting lists: computes the size of each form and writes the smallest.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, not stored bytes"
)]

use super::{BITMAP, BLOCK, GAPS, PACKED, RUNS};
use crate::bits::{bit_width, pack, packed_bytes};
use crate::varint::{encode_varint, varint_bytes};

/// Appends `ids`, which must strictly rise.
///
/// # Panics
/// In debug builds if they do not.
pub fn encode_postings(ids: &[u64], out: &mut Vec<u8>) {
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids of a posting list must rise");
    let count = ids.len() as u64;
    let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else {
        return encode_varint(0, out);
    };
    if count == 1 {
        encode_varint(count << 2 | GAPS, out);
        return encode_varint(first, out);
    }
    let (gap_bytes, run_bytes) = sizes(ids);
    // Above 2^40 bits a bitmap is never the smallest form of a list that fits into memory.
    let bitmap_bytes = ((last - first) / 8).min(1 << 40) + 1;
    // Short lists are walked anyway; from four blocks on, the packed form makes seeks faster.
    let packed_bytes = if ids.len() > 4 * BLOCK { packed_size(ids) } else { u64::MAX };
    let forms =
        [(RUNS, run_bytes), (BITMAP, bitmap_bytes), (PACKED, packed_bytes), (GAPS, gap_bytes)];
    let smallest = forms.into_iter().min_by_key(|&(_, bytes)| bytes);
    let (form, payload_bytes) = smallest.unwrap_or((GAPS, gap_bytes));
    encode_varint(count << 2 | form, out);
    encode_varint(first, out);
    encode_varint(payload_bytes, out);
    let start = out.len();
    match form {
        GAPS => ids.windows(2).for_each(|pair| encode_varint(pair[1] - pair[0] - 1, out)),
        RUNS => {
            for_runs(ids, |run_len, skipped| {
                encode_varint(run_len - 1, out);
                if let Some(skipped) = skipped {
                    encode_varint(skipped - 1, out);
                }
            });
        }
        PACKED => push_packed(ids, out),
        _ => {
            out.resize(start + payload_bytes as usize, 0);
            for id in ids {
                let bit = id - first;
                out[start + (bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
    }
    debug_assert_eq!(out.len() - start, payload_bytes as usize, "size of form {form}");
}

/// Payload bytes of the gap form and of the run form.
fn sizes(ids: &[u64]) -> (u64, u64) {
    let gaps = ids.windows(2).map(|pair| varint_bytes(pair[1] - pair[0] - 1) as u64).sum();
    let mut runs = 0;
    for_runs(ids, |run_len, skipped| {
        runs += varint_bytes(run_len - 1) as u64;
        runs += skipped.map_or(0, |skipped| varint_bytes(skipped - 1) as u64);
    });
    (gaps, runs)
}

/// Payload bytes of the packed form.
fn packed_size(ids: &[u64]) -> u64 {
    let span = ids.last().map_or(0, |last| last - ids[0]);
    let block_count = (ids.len() - 1).div_ceil(BLOCK);
    let blocks = gap_blocks(ids).map(|(count, width, _)| packed_bytes(count, width)).sum::<usize>();
    (1 + packed_bytes(block_count, bit_width(span)) + block_count + blocks) as u64
}

fn push_packed(ids: &[u64], out: &mut Vec<u8>) {
    let first = ids.first().copied().unwrap_or_default();
    let skip_width = bit_width(ids.last().map_or(0, |last| last - first));
    out.push(skip_width as u8);
    pack(gap_blocks(ids).map(|block| block.2[block.0] - first), skip_width, out);
    out.extend(gap_blocks(ids).map(|block| block.1 as u8));
    for (_, width, ids) in gap_blocks(ids) {
        pack(ids.windows(2).map(|pair| pair[1] - pair[0] - 1), width, out);
    }
}

/// For each block: its number of gaps, their width, and the ids around them (one more).
fn gap_blocks(ids: &[u64]) -> impl Iterator<Item = (usize, u32, &[u64])> {
    (0..ids.len() - 1).step_by(BLOCK).map(|start| {
        let ids = &ids[start..(start + BLOCK + 1).min(ids.len())];
        let all = ids.windows(2).fold(0, |all, pair| all | (pair[1] - pair[0] - 1));
        (ids.len() - 1, bit_width(all), ids)
    })
}

/// Calls `f` with the length of each run and the number of ids skipped after it (`None` at the
/// end).
fn for_runs(ids: &[u64], mut f: impl FnMut(u64, Option<u64>)) {
    let mut rest = ids;
    while let Some(&start) = rest.first() {
        let run_len =
            rest.iter().zip(start..=u64::MAX).take_while(|(id, want)| **id == *want).count();
        let (run, after) = rest.split_at(run_len);
        let last = run[run_len - 1];
        f(run_len as u64, after.first().map(|next| next - last - 1));
        rest = after;
    }
}
