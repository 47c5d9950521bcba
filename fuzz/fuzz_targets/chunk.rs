//! Chunks, rows and tombstones of a file that FirnDB has not written; the first byte selects.

#![no_main]

use firn_codec::{Chunk, RowState, Slots, Tombstone, decode_row};
use firn_model::{CommitSeq, TimeRange};

/// Values of a chunk that are decoded. A chunk may have 512 MiB of them in a few bytes, which its
/// readers reserve first.
const VALUES_MAX: usize = 1 << 16;

firn_fuzz::fuzzer!(check, base_bytes: 32 << 20, bytes_per_byte: 64);

fn check(data: &[u8]) {
    let Some((kind, mut data)) = data.split_first() else { return };
    match kind & 3 {
        0 => read(Chunk::open(data)),
        1 => read(Chunk::open_run(data, 1_700_000_000_000)),
        2 => {
            let mut state = RowState::new();
            while !data.is_empty() && decode_row(&mut state, &mut data, |_, _| ()).is_ok() {}
        }
        _ => {
            if let Ok(tombstone) = Tombstone::decode(data, &[]) {
                let mut encoded = Vec::new();
                tombstone.encode(&mut encoded);
                let again = Tombstone::decode(&encoded, &[]).expect("encoded here");
                assert_eq!(again.series_count(), tombstone.series_count());
            }
        }
    }
}

fn read(chunk: firn_model::Result<Chunk<'_>>) {
    let Ok(chunk) = chunk else { return };
    let _ = (chunk.group(), chunk.outline());
    assert!(chunk.seq().min <= chunk.seq().max || chunk.seq().max == CommitSeq(0));
    if chunk.slots().count().saturating_mul(chunk.entry_count()) <= VALUES_MAX
        && let Ok(columns) = chunk.read(Slots::All, TimeRange::new(i64::MIN, i64::MAX))
    {
        columns.check();
    }
}
