//! Chunks: any columns round-trip bit for bit, member by member and cut to any range.

use firn_codec::{
    Chunk, Effort, GroupColumns, MemberColumn, SeqRange, Slots, encode_chunk, encode_run,
};
use firn_model::{GroupId, Slot, TimeRange};
use proptest::prelude::*;

use crate::support::{Cells, cells_of, columns_of, times, value_run};

/// Members on a shared time column, with gaps of several patterns, some with times of their own.
pub(crate) fn cells() -> impl Strategy<Value = Cells> {
    let member = (0u32..200, 0u8..8, times(1..20), value_run(150));
    (times(1..150), prop::collection::vec(member, 1..8)).prop_map(|(shared, members)| {
        let mut cells = Cells::new();
        for (slot, pattern, own, run) in members {
            let slot = if slot < 30 { 0 } else { slot };
            let len = shared.len();
            let times = match pattern {
                0..3 => shared.clone(),
                3 => shared[..len.div_ceil(2)].to_vec(),
                4 => shared[len / 2..].to_vec(),
                5 => shared.iter().copied().step_by(3).collect(),
                6 => shared[len - 1..].to_vec(),
                _ => own,
            };
            cells.extend(times.iter().zip(&run).map(|(&ts, &bits)| ((slot, ts), bits)));
        }
        cells
    })
}

fn encode(columns: &GroupColumns, effort: Effort) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_chunk(GroupId(77), columns, effort, &mut bytes);
    bytes
}

/// Reads as much as possible; damaged bytes may yield anything except a panic.
fn read_all(bytes: &[u8]) {
    for chunk in [Chunk::open(bytes), Chunk::open_run(bytes, -7)].into_iter().flatten() {
        read_all_of(&chunk);
    }
}

fn read_all_of(chunk: &Chunk<'_>) {
    let _ = chunk.slots().count();
    // Huge columns are valid, but take too long in a test.
    if chunk.entry_count() > 100_000 {
        return;
    }
    let some: Vec<Slot> = chunk.slots().step_by(2).take(20).collect();
    let _ = chunk.read(Slots::Some(&some), TimeRange::ALL);
    let _ = chunk.read(Slots::Some(&some), TimeRange::new(0, 100_000));
    let _ = chunk.append_one(Slot(0), TimeRange::ALL, &mut MemberColumn::default());
}

proptest! {
    #[test]
    fn invariant_7_chunks_are_bit_exact(cells in cells(), small in any::<bool>()) {
        let columns = columns_of(&cells, 5);
        let bytes = encode(&columns, if small { Effort::Small } else { Effort::Fast });
        let chunk = Chunk::open(&bytes).unwrap();
        prop_assert_eq!(chunk.group(), GroupId(77));
        prop_assert_eq!(chunk.seq(), columns.seq);
        prop_assert_eq!(chunk.time_range(), columns.time_range());
        let slots: Vec<Slot> = columns.batch.columns.iter().map(|column| column.slot).collect();
        prop_assert_eq!(chunk.slots().collect::<Vec<_>>(), slots);
        let again = chunk.read(Slots::All, TimeRange::ALL).unwrap();
        prop_assert_eq!(again.seq, columns.seq);
        prop_assert_eq!(cells_of(&again), cells);
    }

    #[test]
    fn parts_are_read_independently(
        cells in cells(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        mask in any::<u64>(),
    ) {
        let columns = columns_of(&cells, 5);
        let bytes = encode(&columns, Effort::Small);
        let all: Vec<i64> = cells.keys().map(|key| key.1).collect();
        let range = TimeRange::new(all[from.index(all.len())], all[to.index(all.len())]);
        let is_wanted = |slot: &u32| mask >> (slot % 64) & 1 == 1;
        let wanted: Vec<Slot> = (0..200).filter(is_wanted).map(Slot).collect();
        let mut want = cells.clone();
        want.retain(|key, _| range.contains(key.1) && mask >> (key.0 % 64) & 1 == 1);
        let chunk = Chunk::open(&bytes).unwrap();
        for &slot in &wanted {
            let mut one = MemberColumn::default();
            let before = range.start.checked_sub(1);
            let lead = before.map_or(0, |ts| usize::from(one.push(ts, 0.5)));
            prop_assert!(chunk.append_one(slot, range, &mut one).unwrap());
            let mut one_by_one = one.times.iter().zip(&one.values).skip(lead);
            for ((_, ts), bits) in want.range((slot.0, i64::MIN)..=(slot.0, i64::MAX)) {
                let sample = one_by_one.next().map(|(ts, value)| (*ts, value.to_bits()));
                prop_assert_eq!(sample, Some((*ts, *bits)));
            }
            prop_assert!(one_by_one.next().is_none());
            let mut left = vec![slot];
            chunk.take_members(&mut left);
            let is_member = cells.keys().any(|key| key.0 == slot.0);
            prop_assert_eq!(left.is_empty(), is_member);
            // Samples that are not later than those in `one` are refused.
            let (before, has_more) = (one.clone(), one.times.len() > lead);
            prop_assert_eq!(chunk.append_one(slot, range, &mut one).unwrap(), !has_more);
            prop_assert_eq!((one.times, one.values.len()), (before.times, before.values.len()));
        }
        let read = chunk.read(Slots::Some(&wanted), range).unwrap();
        prop_assert_eq!(cells_of(&read), want);
    }

    #[test]
    fn runs_are_chunks_without_group_and_commits(
        cells in cells(),
        before in prop_oneof![0..1_000i64, Just(i64::MAX)],
        small in any::<bool>(),
    ) {
        let columns = columns_of(&cells, 5);
        let range = columns.time_range();
        let base = range.start.saturating_sub(before);
        let mut bytes = Vec::new();
        encode_run(base, &columns, if small { Effort::Small } else { Effort::Fast }, &mut bytes);
        prop_assert_eq!(Chunk::time_range_of_run(&bytes, base).unwrap(), range);
        let run = Chunk::open_run(&bytes, base).unwrap();
        prop_assert_eq!((run.group(), run.seq()), (GroupId(0), SeqRange::default()));
        prop_assert_eq!(run.time_range(), range);
        let again = run.read(Slots::All, TimeRange::ALL).unwrap();
        prop_assert_eq!(cells_of(&again), cells);
        let bytes_of_chunk = encode(&columns, Effort::Fast);
        prop_assert_eq!(Chunk::time_range_of(&bytes_of_chunk).unwrap(), range);
    }

    /// Directories of several blocks; members share bytes with the previous one across a block
    /// border.
    #[test]
    fn members_of_large_groups_are_found(
        kinds in prop::collection::vec((0u8..4, 0u8..3), 1..300),
        entry_count in prop_oneof![Just(6i64), Just(60)],
        mask in any::<u64>(),
    ) {
        let mut cells = Cells::new();
        for (slot, (kind, shape)) in kinds.iter().enumerate() {
            let ts_of = |idx: i64| 1_000 + idx * 10;
            for idx in (0..entry_count).step_by(usize::from(*shape) + 1) {
                let value = match kind {
                    0 => 1.0,
                    1 => 2.5,
                    _ => (slot as i64 * idx % 17) as f64,
                };
                cells.insert((slot as u32, ts_of(idx)), value.to_bits());
            }
        }
        let bytes = encode(&columns_of(&cells, 5), Effort::Fast);
        let chunk = Chunk::open(&bytes).unwrap();
        prop_assert_eq!(cells_of(&chunk.read(Slots::All, TimeRange::ALL).unwrap()), cells.clone());
        // One member, from the second to the fifth entry.
        let range = TimeRange::new(1_005, 1_049);
        for slot in 0..kinds.len() as u32 + 1 {
            let want = || cells.range((slot, range.start)..=(slot, range.end));
            let alone = chunk.read(Slots::Some(&[Slot(slot)]), range).unwrap();
            prop_assert!(cells_of(&alone).iter().eq(want()), "slot {}", slot);
            let mut one = MemberColumn::default();
            prop_assert!(chunk.append_one(Slot(slot), range, &mut one).unwrap());
            let samples = one.times.iter().zip(&one.values);
            let samples = samples.map(|(&ts, value)| ((slot, ts), value.to_bits()));
            prop_assert!(samples.eq(want().map(|(&at, &bits)| (at, bits))), "slot {}", slot);
        }
        let is_wanted = |slot: &u32| mask >> (slot * 7 % 64) & 1 == 1;
        let wanted: Vec<Slot> = (0..310).filter(is_wanted).map(Slot).collect();
        let mut want = cells;
        want.retain(|key, _| wanted.contains(&Slot(key.0)));
        prop_assert_eq!(cells_of(&chunk.read(Slots::Some(&wanted), TimeRange::ALL).unwrap()), want);
    }

    #[test]
    fn any_bytes_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        lone in any::<bool>(),
    ) {
        read_all(&bytes);
        let mut led = vec![if lone { 0x11 } else { 0x01 }];
        led.extend(bytes);
        read_all(&led);
    }

    #[test]
    fn damaged_chunks_do_no_harm(
        cells in cells(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = encode(&columns_of(&cells, 5), Effort::Small);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read_all(&bytes);
        read_all(&bytes[..at]);
    }
}

/// The members of a server over two hours, every 50th sometimes absent: five minutes of one member.
#[test]
fn five_minutes_of_one_member_touch_two_percent_of_the_bytes_at_most() {
    let value = |slot: u64, idx: u64| {
        let noise = (slot * 600 + idx).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match slot % 3 {
            0 => slot as f64,
            1 => (slot * 1_000 + idx * 37 + noise % 16) as f64,
            _ => (500 + noise % 100) as f64 / 10.0,
        }
    };
    let (member_count, entry_count) = (600u64, 480u64);
    let ts = |idx: u64| 1_700_000_000_000 + idx as i64 * 15_000 + (idx * 7 % 11) as i64;
    let mut cells = Cells::new();
    for slot in 0..member_count {
        for idx in (0..entry_count).filter(|idx| slot % 50 != 7 || !(idx + slot).is_multiple_of(40))
        {
            cells.insert((slot as u32, ts(idx)), value(slot, idx).to_bits());
        }
    }
    let columns = columns_of(&cells, 5);
    for effort in [Effort::Fast, Effort::Small] {
        let bytes = encode(&columns, effort);
        let chunk = Chunk::open(&bytes).unwrap();
        for slot in [0u32, 1, 2, 7, 63, 64, 300, 457, 598, 599] {
            for end in [20, 250, entry_count - 1] {
                let range = TimeRange::new(ts(end - 20), ts(end));
                let mut touched = 0;
                let read =
                    chunk.read_touching(Slots::Some(&[Slot(slot)]), range, &mut touched).unwrap();
                let want = cells.range((slot, range.start)..=(slot, range.end));
                assert!(cells_of(&read).iter().eq(want), "slot {slot} in {range:?}");
                assert!(touched > 0);
                assert!(
                    touched * 50 <= bytes.len(),
                    "{touched} of {} bytes, slot {slot}",
                    bytes.len()
                );
            }
        }
        let mut touched = 0;
        chunk.read_touching(Slots::All, TimeRange::ALL, &mut touched).unwrap();
        assert!(
            touched <= bytes.len() && touched * 10 > bytes.len() * 9,
            "everything is {touched}"
        );
    }
}

/// Ten members with half the interval of the eleventh have a time column of a few bytes. As a
/// selection of the entries of the other they took more, and a reader of one passed all entries.
#[test]
fn members_with_another_interval_have_a_time_column_of_their_own() {
    let mut cells = Cells::new();
    for idx in 0..240 {
        let slots = if idx % 2 == 0 { 0..11 } else { 10..11 };
        cells.extend(slots.map(|slot| ((slot, idx * 15_000), (idx as f64).to_bits())));
    }
    let bytes = encode(&columns_of(&cells, 5), Effort::Fast);
    let outline = Chunk::open(&bytes).unwrap().outline().unwrap();
    let mut counts: Vec<usize> = outline.times.iter().map(|times| times.entry_count).collect();
    counts.sort_unstable();
    assert_eq!(counts, [120, 240]);
    assert!(outline.times.iter().all(|times| times.bytes < 8), "{:?}", outline.times);
    // Without the eleventh, the union of all timestamps is not stored.
    cells.retain(|&(slot, ts), _| slot < 5 || (slot < 10 && ts >= 1_800_000));
    cells.retain(|&(slot, ts), _| slot >= 5 || ts < 1_800_000);
    let bytes = encode(&columns_of(&cells, 5), Effort::Fast);
    let outline = Chunk::open(&bytes).unwrap().outline().unwrap();
    assert_eq!(outline.times.iter().map(|times| times.entry_count).collect::<Vec<_>>(), [60, 60]);
    assert_eq!(
        cells_of(&Chunk::open(&bytes).unwrap().read(Slots::All, TimeRange::ALL).unwrap()),
        cells
    );
}

/// Two timestamps that are 2^64 - 1 apart: reading once lost the second.
#[test]
fn regular_timestamps_are_cut_exactly() {
    for (start, step, count) in
        [(i64::MIN, i128::from(u64::MAX), 2), (-7, 5, 9), (3, 1, 1), (i64::MAX - 20, 10, 3)]
    {
        let at = |idx: i128| (i128::from(start) + step * idx) as i64;
        let cells: Cells = (0..count).map(|idx| ((0, at(idx)), 1.5f64.to_bits())).collect();
        let bytes = encode(&columns_of(&cells, 5), Effort::Fast);
        let chunk = Chunk::open(&bytes).unwrap();
        let edges: Vec<i64> = (0..count)
            .flat_map(|idx| [at(idx).saturating_sub(1), at(idx), at(idx).saturating_add(1)])
            .chain([i64::MIN, i64::MAX])
            .collect();
        for &from in &edges {
            for &to in edges.iter().filter(|&&to| to >= from) {
                let range = TimeRange::new(from, to);
                let mut want = cells.clone();
                want.retain(|key, _| range.contains(key.1));
                assert_eq!(cells_of(&chunk.read(Slots::All, range).unwrap()), want, "{range:?}");
            }
        }
    }
}

#[rustfmt::skip]
#[test]
fn version_1_of_a_chunk_is_unchanged() {
    // Three still samples of a lone series: no timestamps, one value.
    let at = |slot: u32, ts: i64, value: f64| ((slot, ts), value.to_bits());
    let lone = Cells::from([at(0, 1000, 2.5), at(0, 2000, 2.5), at(0, 3000, 2.5)]);
    let bytes = encode(&columns_of(&lone, 5), Effort::Small);
    assert_eq!(
        bytes,
        [
            0x31, 77, 5, 0, 0xd0, 0x0f, 0xd0, 0x0f, // regular; group; seq; 1000 for 2000 ms
            3, 65, 1, 50, // three entries, constant, scale 1, 25
        ]
    );
    // Two members, the second without the middle entry and with a counter.
    let members = Cells::from([
        at(0, 1000, 1.0),
        at(0, 2000, 1.0),
        at(0, 3000, 1.0),
        at(4, 1000, 7.0),
        at(4, 3000, 9.0),
    ]);
    let bytes = encode(&columns_of(&members, 5), Effort::Small);
    assert_eq!(
        bytes,
        [
            0x01, 77, 5, 0, 0xd0, 0x0f, 0xd0, 0x0f, // members; group; seq; 1000 for 2000 ms
            10, 0, 1, 0b10001, // slots 0 and 4: two in a bitmap, from 0, one byte
            1, 1, // one base, one subset
            3, 5, // three entries, five bytes:
            1, 0, 0xd0, 0x0f, 0, // deltas, from 0, all 1000, no bits
            0, 10, 0, 1, 0b101, // of base 0: entries 0 and 2
            0, 0, 1, 0, // one member of shape 0, one of shape 1
            2, 2, 5, // two bytes of directory: columns of two and five bytes
            66, 2, // the integer 1
            0, 0, 14, 2, 0b10_00, // decimals of scale 0: a frame from 7, two bits each: 0, 2
        ]
    );
}
