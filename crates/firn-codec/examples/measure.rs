//! Bytes and nanoseconds per sample on the recordings: `cargo run --release -p firn-codec --example
//! measure`.

#![allow(clippy::disallowed_methods, reason = "measures real time")]

use std::time::Instant;

use firn_codec::bits::BitWriter;
use firn_codec::{
    Chunk, Effort, GroupColumns, RowState, RowsToColumns, SeqRange, Slots, decode_row,
    encode_chunk, encode_row, merge_columns,
};
use firn_model::{Cell, ColumnValues, CommitSeq, GroupId, Slot, TimeRange};

#[path = "../tests/support/recordings.rs"]
mod recordings;

fn main() {
    let scrapes: Vec<_> = recordings::SCRAPES
        .into_iter()
        .filter_map(|target| Some((target, recordings::scrapes(target)?)))
        .collect();
    println!("rows, one group a target\n");
    println!(
        "| target | samples | B/sample | state B/slot | encode ns | decode ns | transpose ns |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (target, rows) in &scrapes {
        measure_rows(target, rows);
    }
    if let Some((target, rows)) = scrapes.first() {
        for pieces in [8, 50] {
            measure_rows(&format!("{target}, {pieces} pieces a row"), &in_pieces(rows, pieces));
        }
    }
    println!("\nchunks, all bytes included\n");
    println!("| set | entries | effort | B/sample | encode ns | decode ns | one column us |");
    println!("|---|---|---|---|---|---|---|");
    for (target, rows) in &scrapes {
        for (entries, effort) in
            [(32, Effort::Fast), (120, Effort::Fast), (120, Effort::Small), (480, Effort::Small)]
        {
            let chunks: Vec<_> = rows.chunks(entries).map(group).collect();
            measure_chunks(target, entries, effort, &chunks);
        }
    }
    for (entries, effort) in [(32, Effort::Fast), (120, Effort::Fast), (480, Effort::Small)] {
        let chunks: Vec<_> =
            scrapes.iter().flat_map(|(_, rows)| rows.chunks(entries).map(group)).collect();
        measure_chunks("all targets", entries, effort, &chunks);
    }
    for entries in [32, 120, 480] {
        let chunks: Vec<_> =
            scrapes.iter().flat_map(|(_, rows)| rows.chunks(entries).map(group)).collect();
        measure_xor_tuples("all targets", entries, &chunks);
    }
    for name in recordings::SERIES {
        let Some(series) = recordings::series(name) else { continue };
        let lone = |samples: &[(i64, f64)]| {
            group(&samples.iter().map(|&(ts, value)| (ts, vec![(0, value)])).collect::<Vec<_>>())
        };
        let chunks: Vec<_> =
            series.iter().take(60).flat_map(|samples| samples.chunks(480).map(lone)).collect();
        measure_chunks(name, 480, Effort::Small, &chunks);
    }
    if let Some((target, rows)) = scrapes.first() {
        measure_merge(target, rows);
    }
}

/// Splits each row as a sender with several connections does; a series stays on one connection.
fn in_pieces(rows: &[recordings::Row], pieces: u32) -> Vec<recordings::Row> {
    let piece_of = |slot: u32| slot.wrapping_mul(2_654_435_769) >> 16;
    let split = |(ts, cells): &recordings::Row| -> Vec<recordings::Row> {
        let piece = |nr| {
            let cells = cells.iter().filter(|cell| piece_of(cell.0) % pieces == nr);
            (*ts, cells.copied().collect())
        };
        (0..pieces).map(piece).filter(|row: &recordings::Row| !row.1.is_empty()).collect()
    };
    rows.iter().flat_map(split).collect()
}

fn group(rows: &[recordings::Row]) -> GroupColumns {
    let mut columns = RowsToColumns::new();
    for (ts, cells) in rows {
        cells.iter().for_each(|&(slot, value)| columns.push(*ts, Slot(slot), value));
    }
    columns.finish(SeqRange { min: CommitSeq(1_000_000), max: CommitSeq(1_000_500) })
}

fn measure_rows(target: &str, rows: &[recordings::Row]) {
    let rows: Vec<(i64, Vec<Cell>)> = rows
        .iter()
        .map(|(ts, cells)| {
            let cell = |&(slot, value): &(u32, f64)| Cell {
                group: GroupId(1),
                ts: *ts,
                slot: Slot(slot),
                value,
            };
            (*ts, cells.iter().map(cell).collect())
        })
        .collect();
    let samples: usize = rows.iter().map(|row| row.1.len()).sum();
    let mut bytes = Vec::new();
    let mut state_bytes = 0;
    let encode_ns = fastest_ns(|| {
        bytes.clear();
        let mut state = RowState::new();
        for (idx, (ts, cells)) in rows.iter().enumerate() {
            encode_row(&mut state, idx == 0, *ts, cells, &mut bytes);
        }
        state_bytes = state.heap_bytes();
    });
    let decode_ns = fastest_ns(|| {
        let mut state = RowState::new();
        let mut input = bytes.as_slice();
        let mut check = 0u64;
        while !input.is_empty() {
            let cell = |_, value: f64| check ^= value.to_bits();
            decode_row(&mut state, &mut input, cell).expect("own bytes");
        }
        std::hint::black_box(check);
    });
    let mut columns = RowsToColumns::new();
    let transpose_ns = fastest_ns(|| {
        for rows in rows.chunks(120) {
            for (ts, cells) in rows {
                cells.iter().for_each(|cell| columns.push(*ts, cell.slot, cell.value));
            }
            std::hint::black_box(columns.finish(SeqRange::default()));
        }
    });
    let slots = rows.iter().flat_map(|row| &row.1).map(|cell| cell.slot.0 + 1).max().unwrap_or(1);
    println!(
        "| {target} | {samples} | {:.3} | {:.1} | {:.1} | {:.1} | {:.1} |",
        bytes.len() as f64 / samples as f64,
        state_bytes as f64 / f64::from(slots),
        encode_ns / samples as f64,
        decode_ns / samples as f64,
        transpose_ns / samples as f64,
    );
}

fn measure_chunks(set: &str, entries: usize, effort: Effort, chunks: &[GroupColumns]) {
    let samples: usize = chunks.iter().map(GroupColumns::value_count).sum();
    let columns: usize = chunks.iter().map(|chunk| chunk.batch.columns.len()).sum();
    let mut encoded: Vec<Vec<u8>> = Vec::new();
    let encode_ns = fastest_ns(|| {
        encoded.clear();
        for chunk in chunks {
            let mut bytes = Vec::new();
            encode_chunk(GroupId(12_345), chunk, effort, &mut bytes);
            encoded.push(bytes);
        }
    });
    let decode_ns = fastest_ns(|| {
        for bytes in &encoded {
            let chunk = Chunk::open(bytes).expect("own bytes");
            std::hint::black_box(chunk.read(Slots::All, TimeRange::ALL).expect("own bytes"));
        }
    });
    let one_ns = fastest_ns(|| {
        for bytes in &encoded {
            let chunk = Chunk::open(bytes).expect("own bytes");
            let middle = chunk.slots().nth(columns / chunks.len() / 2);
            let wanted: Vec<Slot> = middle.into_iter().collect();
            let read = chunk.read(Slots::Some(&wanted), TimeRange::ALL);
            std::hint::black_box(read.expect("own bytes"));
        }
    });
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    println!(
        "| {set} | {entries} | {effort:?} | {:.3} | {:.1} | {:.1} | {:.2} |",
        bytes as f64 / samples as f64,
        encode_ns / samples as f64,
        decode_ns / samples as f64,
        one_ns / chunks.len() as f64 / 1000.0,
    );
}

/// The baseline: the values (no timestamps) in the in-memory form of Heracles, section 3.1.2: XORs
/// in tuples of eight, each of whole bytes and found by its offset of two bytes.
fn measure_xor_tuples(set: &str, entries: usize, chunks: &[GroupColumns]) {
    let columns = || chunks.iter().flat_map(|chunk| &chunk.batch.columns);
    let samples: usize = columns().map(|column| column.values.len()).sum();
    let mut bytes = Vec::new();
    let encode_ns = fastest_ns(|| {
        bytes.clear();
        for column in columns() {
            let ColumnValues::F64(values) = &column.values else { continue };
            let first = values.first().map_or(0, |value| value.to_bits());
            for tuple in values.chunks(8) {
                xor_tuple(first, tuple, &mut bytes);
            }
        }
    });
    let offsets: usize = columns().map(|column| 2 * column.values.len().div_ceil(8)).sum();
    println!(
        "| {set} | {entries} | XOR tuples of 8 | {:.3} | {:.1} | | |",
        (bytes.len() + offsets) as f64 / samples as f64,
        encode_ns / samples as f64,
    );
}

fn xor_tuple(first: u64, values: &[f64], out: &mut Vec<u8>) {
    let mut writer = BitWriter::new(out);
    let (mut last, mut window) = (first, None);
    for value in values {
        let xor = last ^ value.to_bits();
        last = value.to_bits();
        if xor == 0 {
            writer.write(0, 1);
            continue;
        }
        // Five bits for the number of leading zeros.
        let (leading, trailing) = (xor.leading_zeros().min(31), xor.trailing_zeros());
        match window {
            Some((lead, trail)) if lead <= leading && trail <= trailing => {
                writer.write(0b01, 2);
                writer.write(xor >> trail, 64 - lead - trail);
            }
            _ => {
                let len = 64 - leading - trailing;
                writer.write(0b11, 2);
                writer.write(u64::from(leading), 5);
                writer.write(u64::from(len & 63), 6);
                writer.write(xor >> trailing, len);
                window = Some((leading, trailing));
            }
        }
    }
    writer.finish();
}

fn measure_merge(target: &str, rows: &[recordings::Row]) {
    let apart: Vec<_> = rows.chunks(120).map(group).collect();
    let evens: Vec<_> = rows.iter().step_by(2).cloned().collect();
    let mixed = [group(rows), group(&evens)];
    println!("\nmerging {target}\n");
    for (name, sources) in [("apart in time", apart.as_slice()), ("overlapping", &mixed)] {
        let samples: usize = sources.iter().map(GroupColumns::value_count).sum();
        let ns = fastest_ns(|| {
            std::hint::black_box(merge_columns(sources, TimeRange::ALL));
        });
        println!("{name}: {:.1} ns/sample", ns / samples as f64);
    }
}

/// Nanoseconds of the fastest of some runs, so that other work on the machine counts little.
fn fastest_ns(mut f: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_nanos() as f64
    };
    (0..7).map(run).fold(f64::INFINITY, f64::min)
}
