//! Rows: any rows come back bit for bit, any bytes do no harm.

use firn_codec::{
    RowState, Slots, decode_row, decode_row_members, decode_row_slots, encode_row, row_bytes_max,
};
use firn_model::{Cell, GroupId, Slot, Timestamp};
use proptest::prelude::*;

use crate::support::value_bits;

type Row = (bool, Timestamp, Vec<(u32, u64)>);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let slots = prop_oneof![
        Just(vec![0u32]),
        (1u32..40).prop_map(|count| (0..count).collect()),
        prop::collection::btree_set(0u32..300, 1..40).prop_map(|set| set.into_iter().collect()),
        (64u32..200).prop_map(|count| (0..count).collect()),
        Just(vec![7, 65_535]),
        (0u32..4).prop_map(|piece| (piece..60).step_by(4).collect()),
    ];
    let row = (
        prop::bool::weighted(0.1),
        prop_oneof![4 => -10i64..20_000, 1 => any::<i64>(), 4 => Just(0)],
        slots,
        prop::collection::vec((any::<u8>(), value_bits()), 40),
    );
    // Values come from few candidates, so that many repeat; some slots drop out.
    (prop::collection::vec(row, 1..20), prop::collection::vec(value_bits(), 3)).prop_map(
        |(rows, usual)| {
            let mut ts = 0i64;
            let rows = rows.into_iter().map(|(restart, step, slots, dice)| {
                ts = ts.wrapping_add(step);
                let mut cells: Vec<(u32, u64)> = Vec::new();
                for (idx, &slot) in slots.iter().enumerate() {
                    let (die, wild) = dice[idx % dice.len()];
                    match die {
                        0..10 => {}
                        10..60 => cells.push((slot, wild)),
                        _ => cells.push((slot, usual[die as usize % 3])),
                    }
                }
                if cells.is_empty() {
                    cells.push((slots[0], usual[0]));
                }
                (restart, ts, cells)
            });
            rows.collect()
        },
    )
}

/// Scrapes of a target, whole or in pieces: decimals that change or not, a few members with other
/// values, members that drop out, stale markers.
fn scrapes() -> impl Strategy<Value = Vec<Row>> {
    let member = (prop::sample::select(vec![0u8, 1, 1, 1, 2, 3, 4]), 0i64..5_000);
    let dice = prop::collection::vec(any::<u8>(), 150);
    (
        prop::collection::vec(member, 1..150),
        prop::collection::vec(dice, 1..12),
        prop::sample::select(vec![1usize, 1, 2, 7, 30]),
    )
        .prop_map(|(members, rounds, piece_count)| {
            let mut rows: Vec<Row> = Vec::new();
            for (round, dice) in rounds.iter().enumerate() {
                let value = |slot: usize| {
                    let (kind, start) = members[slot];
                    let step = round as i64 * i64::from(dice[slot] % 16);
                    match (dice[slot], kind) {
                        (250.., _) => f64::from_bits(0x7ff0_0000_0000_0002),
                        (_, 0) => start as f64,
                        (_, 1) => (start + step) as f64,
                        (_, 2) => (start + step * 300) as f64 / 100.0,
                        (_, 3) => (start + step) as f64 * 0.1 + 0.2,
                        _ => (start + step) as f64 / 3.0,
                    }
                };
                for piece in 0..piece_count {
                    let slots = (piece..members.len()).step_by(piece_count);
                    let slots = slots.filter(|&slot| !(240..250).contains(&dice[slot]));
                    let cells: Vec<_> =
                        slots.map(|slot| (slot as u32, value(slot).to_bits())).collect();
                    if !cells.is_empty() {
                        rows.push((rows.is_empty(), round as i64 * 15_000, cells));
                    }
                }
            }
            rows
        })
}

fn cells(row: &Row) -> Vec<Cell> {
    let cell = |&(slot, bits): &(u32, u64)| Cell {
        group: GroupId(1),
        ts: row.1,
        slot: Slot(slot),
        value: f64::from_bits(bits),
    };
    row.2.iter().map(cell).collect()
}

fn encode(rows: &[Row]) -> Vec<u8> {
    let mut state = RowState::new();
    let mut bytes = Vec::new();
    for row in rows {
        let before = bytes.len();
        encode_row(&mut state, row.0, row.1, &cells(row), &mut bytes);
        assert!(bytes.len() - before <= row_bytes_max(row.2.len()));
    }
    bytes
}

fn decode(
    state: &mut RowState,
    input: &mut &[u8],
) -> firn_model::Result<(Timestamp, Vec<(u32, u64)>)> {
    let mut seen = Vec::new();
    let ts = decode_row(state, input, |slot, value| seen.push((slot.0, value.to_bits())))?;
    Ok((ts, seen))
}

/// The members that `is_wanted` selects decode to the same values as among all, and are the same
/// without values.
fn check_selected(rows: &[Row], is_wanted: impl Fn(u32) -> bool) -> Result<(), TestCaseError> {
    let bytes = encode(rows);
    let wanted: Vec<Slot> = (0..300).filter(|&slot| is_wanted(slot)).map(Slot).collect();
    let (mut all, mut some, mut none) = (RowState::new(), RowState::new(), RowState::new());
    let mut input = bytes.as_slice();
    for row in rows {
        let (mut of_this, bytes_of_row) = (input, input);
        let (ts, mut want) = decode(&mut all, &mut input).unwrap();
        want.retain(|cell| wanted.contains(&Slot(cell.0)));
        let mut seen = Vec::new();
        let cell = |at, slot: Slot, value: f64| {
            assert_eq!(at, row.1);
            seen.push((slot.0, value.to_bits()));
        };
        let decoded = decode_row_slots(&mut some, Slots::Some(&wanted), &mut of_this, cell);
        prop_assert_eq!(decoded.unwrap(), ts);
        prop_assert_eq!(&seen, &want);
        let mut members = Vec::new();
        let decoded =
            decode_row_members(&mut none, bytes_of_row, &wanted, |slot| members.push(slot.0));
        prop_assert_eq!(decoded.unwrap(), ts);
        prop_assert_eq!(members, want.iter().map(|cell| cell.0).collect::<Vec<_>>());
    }
    Ok(())
}

proptest! {
    #[test]
    fn selected_members_decode_as_among_all(rows in rows(), mask in any::<u64>()) {
        check_selected(&rows, |slot| mask >> (slot % 64) & 1 == 1)?;
    }

    #[test]
    fn selected_members_of_scrapes_decode_as_among_all(
        rows in scrapes(),
        first in 0u32..160,
        step in 1u32..200,
    ) {
        check_selected(&rows, |slot| slot >= first && (slot - first).is_multiple_of(step))?;
    }

    #[test]
    fn invariant_7_rows_are_bit_exact(rows in rows()) {
        let bytes = encode(&rows);
        let mut input = bytes.as_slice();
        let mut state = RowState::new();
        for row in &rows {
            prop_assert_eq!(decode(&mut state, &mut input).unwrap(), (row.1, row.2.clone()));
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn a_restart_row_is_independent_of_earlier_rows(before in rows(), mut after in rows()) {
        after[0].0 = true;
        let mut state = RowState::new();
        let mut bytes = Vec::new();
        let mut restart_at = 0;
        for (idx, row) in before.iter().chain(&after).enumerate() {
            if idx == before.len() {
                restart_at = bytes.len();
            }
            encode_row(&mut state, row.0, row.1, &cells(row), &mut bytes);
        }
        // A decoder in any state can begin there.
        let mut input = &bytes[restart_at..];
        let mut state = RowState::new();
        decode(&mut state, &mut bytes.as_slice()).unwrap();
        for row in &after {
            prop_assert_eq!(decode(&mut state, &mut input).unwrap(), (row.1, row.2.clone()));
        }
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut state = RowState::new();
        let mut input = bytes.as_slice();
        while !input.is_empty() && decode(&mut state, &mut input).is_ok() {}
    }

    #[test]
    fn damaged_rows_do_no_harm(
        rows in rows(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = encode(&rows);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut state = RowState::new();
        let mut input = bytes.as_slice();
        while !input.is_empty() && decode(&mut state, &mut input).is_ok() {}
        let mut cut = &bytes[..at];
        let mut state = RowState::new();
        while !cut.is_empty() && decode(&mut state, &mut cut).is_ok() {}
    }
}

#[test]
fn a_lone_series_is_lean() {
    assert!(size_of::<RowState>() <= 24);
    let mut state = RowState::new();
    let mut bytes = Vec::new();
    let row = |ts, value: f64| (false, ts, vec![(0, value.to_bits())]);
    for (idx, value) in [41.0, 41.0, 42.0, 42.5].into_iter().enumerate() {
        let row = row(1_700_000_000_000 + idx as i64 * 15_000, value);
        encode_row(&mut state, idx == 0, row.1, &cells(&row), &mut bytes);
    }
    assert_eq!(state.heap_bytes(), 0);
    // Whole, the first step, a delta of one, a new scale.
    assert_eq!(bytes.len(), (1 + 6 + 1 + 1) + (1 + 3) + (1 + 1) + (1 + 3));
}

#[rustfmt::skip]
#[expect(clippy::unusual_byte_groupings, reason = "flags are grouped by field")]
#[test]
fn version_1_of_rows_is_unchanged() {
    let row = |restart, ts, cells: &[(u32, f64)]| -> Row {
        (restart, ts, cells.iter().map(|&(slot, value)| (slot, value.to_bits())).collect())
    };
    let rows = [
        row(true, 1000, &[(0, 1.0), (1, 0.0), (2, 0.5)]),
        row(false, 2000, &[(0, 1.0), (1, 2.0), (2, 0.25)]),
        row(false, 2000, &[(1, 3.0)]),
        row(false, 3000, &[(0, 2.0), (1, 7.389_999_999_999_975), (2, 1.0 / 3.0)]),
    ];
    let third = (0.25f64.to_bits() ^ (1.0f64 / 3.0).to_bits()).to_le_bytes();
    let mut want = vec![
        // Restart, 1000, slots 0 to 2, first and last changed: 1, and 5 at scale 1.
        0b0_01_10_01_1, 0xd0, 0x0f, 3, 0b101, 2, 0, 1, 10,
        // The same step and members, the last two changed: 2, and -25 at scale 2.
        0b0_00_10_00_0, 0b110, 4, 0, 2, 49,
        // The same time; listed: one id, 1; all changed.
        0b0_10_01_11_0, 4, 1, 2,
        // The same step; the set before the last; all changed: 2,
        0b1_00_01_00_0, 1, 2,
        // near scale 2: 439 on, 28 steps back;
        0, 194, 0xef, 0x06, 55,
        // XORs from now on, from byte 0, seven bytes.
        0, 128 | 6,
    ];
    want.extend(&third[..7]);
    assert_eq!(encode(&rows), want);
}

#[rustfmt::skip]
#[expect(clippy::unusual_byte_groupings, reason = "flags are grouped by field")]
#[test]
fn rows_with_blocks_are_unchanged() {
    // Slots 0 to 69. Then the two members around the border of blocks, and those of the first block
    // to values with deltas of two bytes. At last a row of the first block alone.
    let row = |restart, ts, slots: std::ops::Range<u32>, value: &dyn Fn(u32) -> f64| -> Row {
        (restart, ts, slots.map(|slot| (slot, value(slot).to_bits())).collect())
    };
    let rows = [
        row(true, 1000, 0..70, &|_| 1.0),
        row(false, 2000, 0..70, &|slot| if slot == 63 || slot == 64 { 2.0 } else { 1.0 }),
        row(false, 3000, 0..70, &|slot| if slot < 64 { 101.0 } else { 1.0 }),
        row(false, 4000, 0..3, &|_| 102.0),
    ];
    // Restart with blocks, 1000, slots 0 to 69; 64 and 6 values.
    let mut want = vec![0b0_01_01_00_1, 0xd0, 0x0f, 1, 70, 64];
    want.extend([2; 64]);
    want.push(6);
    want.extend([2; 6]);
    // Bits 63 and 64 as sparse bits; a block each, of one byte.
    want.extend([0b0_00_11_00_0, 0b1000_0000, 1, 0x80, 1, 1, 2, 1, 2]);
    // Bits 0 to 63, and 64, which is 1 again; two bytes of length.
    want.extend([0b0_00_10_00_0, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0x80, 1]);
    (0..63).for_each(|_| want.extend([0xc8, 1]));
    want.extend([0xc6, 1, 1, 1]);
    // No length.
    want.extend([0b0_00_01_01_0, 3, 2, 2, 2]);
    assert_eq!(encode(&rows), want);
    // A group that was short at its restart has rows without blocks.
    let grown = [row(true, 1000, 0..2, &|_| 1.0), row(false, 2000, 0..70, &|_| 1.0)];
    let mut want = vec![0b0_01_01_01_1, 0xd0, 0x0f, 2, 2, 2, 0b0_00_10_01_0, 70];
    want.extend([0xfc, 255, 255, 255, 255, 255, 255, 255, 0b11_1111]);
    want.extend([2; 68]);
    assert_eq!(encode(&grown), want);
}
