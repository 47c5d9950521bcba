//! Real recordings are encoded as rows and chunks and decoded bit for bit.

use firn_codec::{Chunk, Effort, RowState, Slots, decode_row, encode_chunk, encode_row};
use firn_model::{Cell, GroupId, Slot, TimeRange};

use crate::support::recordings::{SCRAPES, SERIES, scrapes, series};
use crate::support::{Cells, cells_of, columns_of};

#[test]
fn scrapes_round_trip_as_rows_and_chunks() {
    for target in SCRAPES {
        let Some(rows) = scrapes(target) else { return };
        let (mut writer, mut reader) = (RowState::new(), RowState::new());
        let mut samples = 0;
        let mut row_bytes = 0;
        for (idx, (ts, cells)) in rows.iter().enumerate() {
            let cell =
                |&(slot, value)| Cell { group: GroupId(1), ts: *ts, slot: Slot(slot), value };
            let row: Vec<Cell> = cells.iter().map(cell).collect();
            let mut bytes = Vec::new();
            encode_row(&mut writer, idx % 200 == 0, *ts, &row, &mut bytes);
            let mut seen = Vec::new();
            let mut input = bytes.as_slice();
            let push = |slot: Slot, value: f64| seen.push((slot.0, value.to_bits()));
            assert_eq!(decode_row(&mut reader, &mut input, push).unwrap(), *ts);
            assert!(input.is_empty());
            assert!(seen.iter().copied().eq(cells.iter().map(|cell| (cell.0, cell.1.to_bits()))));
            samples += row.len();
            row_bytes += bytes.len();
        }
        let mut chunk_bytes = 0;
        for rows in rows.chunks(120) {
            let cells: Cells = rows
                .iter()
                .flat_map(|(ts, cells)| cells.iter().map(|c| ((c.0, *ts), c.1.to_bits())))
                .collect();
            chunk_bytes += check_chunk(&cells);
        }
        // Far above the measured sizes (docs/formats), far below those of a broken form.
        assert!(row_bytes < samples, "{target}: {row_bytes} B of rows, {samples} samples");
        assert!(chunk_bytes * 10 < samples * 6, "{target}: {chunk_bytes} B, {samples} samples");
    }
}

#[test]
fn series_round_trip_as_chunks() {
    for name in SERIES {
        let Some(series) = series(name) else { return };
        for samples in series.iter().take(40) {
            for part in samples.chunks(2000).take(4) {
                let cells: Cells = part.iter().map(|s| ((0, s.0), s.1.to_bits())).collect();
                check_chunk(&cells);
            }
        }
    }
}

fn check_chunk(cells: &Cells) -> usize {
    let columns = columns_of(cells, 9);
    let mut small_bytes = 0;
    for effort in [Effort::Fast, Effort::Small] {
        let mut bytes = Vec::new();
        encode_chunk(GroupId(3), &columns, effort, &mut bytes);
        let read = Chunk::open(&bytes).unwrap().read(Slots::All, TimeRange::ALL).unwrap();
        assert!(cells_of(&read) == *cells);
        small_bytes = bytes.len();
    }
    small_bytes
}
