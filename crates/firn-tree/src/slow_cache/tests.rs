//! Tests of the slow cache: kept, evicted and damaged pieces.

use firn_sim::{Operation, Sim};

use super::*;

const SLAB: u64 = SLAB_BYTES_MIN;

fn key(table: u64, piece: u32) -> PieceKey {
    PieceKey { table: TableId(table), print: 7, piece }
}

/// Bytes that no other piece has.
fn piece(table: u64, piece: u32, len: usize) -> Vec<u8> {
    (0..len).map(|idx| (table as u8) ^ (piece as u8).wrapping_mul(31) ^ idx as u8).collect()
}

fn open(sim: &Sim, slabs: u64) -> SlowCache {
    SlowCache::open(&sim.env().disk, slabs * SLAB, &Budget::unlimited(), &|_| true)
}

fn get(cache: &SlowCache, key: PieceKey) -> Option<Vec<u8>> {
    cache.get(&[key]).pop().flatten().map(|bytes| bytes.to_vec())
}

/// Pieces 0 to `count` of a table, of 500 bytes: seven fill a slab.
fn put_all(cache: &SlowCache, table: u64, count: u32) {
    (0..count).for_each(|idx| cache.put(key(table, idx), &piece(table, idx, 500)));
}

#[test]
fn a_piece_is_returned_also_after_a_restart() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 20);
    put_all(&cache, 2, 20);
    // Some in the file, some in the open slab, one that is not there, in any order.
    let keys = [key(1, 3), key(2, 19), key(1, 99), key(1, 4), key(1, 0)];
    let found = cache.get(&keys);
    let want = [(1, 3), (2, 19), (1, 99), (1, 4), (1, 0)].map(|(t, p)| piece(t, p, 500));
    for (idx, found) in found.iter().enumerate() {
        assert_eq!(found.as_deref(), (idx != 2).then_some(&want[idx][..]), "{idx}");
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_bytes), (4, 1, 2_000));
    cache.flush();
    let known = |id| id == TableId(2);
    let again = SlowCache::open(&sim.env().disk, 16 * SLAB, &Budget::unlimited(), &known);
    assert!((0..20).all(|idx| get(&again, key(2, idx)) == Some(piece(2, idx, 500))));
    assert_eq!(get(&again, key(1, 3)), None, "no version names that table");
    assert_eq!(get(&again, PieceKey { print: 8, ..key(2, 3) }), None, "of another database");
    assert_eq!(again.stats().pieces, 20);
}

#[test]
fn a_smaller_limit_empties_the_file_and_none_removes_it() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 100);
    assert_eq!(sim.disk.files(), [FILE]);
    let smaller = open(&sim, 4);
    assert_eq!((get(&smaller, key(1, 0)), smaller.stats().pieces), (None, 0));
    put_all(&smaller, 1, 100);
    assert!(sim.disk.bytes(FILE).unwrap().len() as u64 <= 4 * SLAB);
    let none = open(&sim, 0);
    assert!(sim.disk.files().is_empty());
    put_all(&none, 1, 100);
    assert_eq!(get(&none, key(1, 0)), None);
    assert_eq!(none.stats(), SlowCacheStats::default());
}

#[test]
fn invariant_5_no_flipped_byte_is_served() {
    let sim = Sim::new(1);
    let cache = open(&sim, 4);
    put_all(&cache, 1, 14);
    cache.flush();
    let whole = sim.disk.bytes(FILE).unwrap();
    let mut damaged = 0;
    for at in 0..whole.len() {
        let before = open(&sim, 4);
        sim.disk.damage(FILE, |bytes| bytes[at] ^= 0x10).unwrap();
        for (cache, is_opened_after) in [(before, false), (open(&sim, 4), true)] {
            let served = (0..14).filter(|&idx| match get(&cache, key(1, idx)) {
                Some(bytes) => {
                    assert_eq!(bytes, piece(1, idx, 500), "byte {at}");
                    true
                }
                None => false,
            });
            // One piece, or a slab of seven whose front or entries are hit.
            let served = served.count();
            let is_slab = served == 7 && is_opened_after;
            assert!(served == 14 || served == 13 || is_slab, "byte {at}: {served}");
            damaged += cache.stats().damaged;
        }
        sim.disk.damage(FILE, |bytes| bytes.clone_from(&whole)).unwrap();
    }
    // Each cache finds each flipped byte of a piece once.
    assert_eq!(damaged, 2 * 14 * 500);
}

#[test]
fn a_cut_file_costs_only_the_cut_pieces() {
    let sim = Sim::new(1);
    let cache = open(&sim, 4);
    put_all(&cache, 1, 14);
    cache.flush();
    sim.disk.damage(FILE, |bytes| bytes.truncate(SLAB as usize + 1_000)).unwrap();
    assert_eq!(get(&cache, key(1, 3)), Some(piece(1, 3, 500)));
    assert_eq!(get(&cache, key(1, 12)), None);
    assert_eq!((cache.stats().damaged, cache.stats().device_failures), (1, 0));
}

#[test]
fn the_file_is_bounded_and_used_pieces_stay() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    cache.put(key(1, 0), &piece(1, 0, 500));
    for idx in 0..1_000 {
        cache.put(key(2, idx), &piece(2, idx, 500));
        assert_eq!(get(&cache, key(1, 0)), Some(piece(1, 0, 500)), "read after {idx}");
    }
    assert_eq!(get(&cache, key(2, 0)), None, "never read again");
    let stats = cache.stats();
    assert!(stats.evictions > 800 && stats.bytes <= 16 * SLAB, "{stats:?}");
    assert!(sim.disk.bytes(FILE).unwrap().len() as u64 <= 16 * SLAB);
    cache.put(key(3, 0), &piece(3, 0, SLAB as usize));
    assert_eq!(get(&cache, key(3, 0)), None, "larger than a slab");
}

#[test]
fn dropped_tables_make_room_and_do_not_come_back() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 70);
    put_all(&cache, 2, 25);
    let pieces = cache.stats().pieces;
    cache.forget(|table| table == TableId(1));
    assert_eq!(cache.stats().pieces, pieces - 70);
    assert_eq!(get(&cache, key(1, 5)), None);
    put_all(&cache, 3, 70);
    assert_eq!(cache.stats().evictions, 0, "the room of the first is used");
    assert_eq!(get(&cache, key(2, 5)), Some(piece(2, 5, 500)));
}

#[test]
fn memory_is_reserved_and_without_it_nothing_is_kept() {
    let sim = Sim::new(1);
    let budget = Budget::new(200_000);
    let cache = SlowCache::open(&sim.env().disk, 16 * SLAB, &budget, &|_| true);
    put_all(&cache, 1, 20);
    let used = budget.usage().by_pool[Pool::Cache as usize];
    assert_eq!(used, 20 * PLACE_BYTES + SLAB);
    let others = budget.reserve(Pool::Head, 150_000).unwrap();
    put_all(&cache, 2, 20);
    assert!((0..20).all(|idx| get(&cache, key(2, idx)).is_none()));
    drop(others);
    drop(cache);
    assert_eq!(budget.usage().used_bytes, 0);
}

#[test]
fn a_failing_device_turns_it_off_and_nothing_else() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 20);
    sim.faults.set_rate(Operation::Write, 1.0);
    put_all(&cache, 2, 30);
    assert!(!cache.stats().is_off && cache.stats().device_failures > 0);
    assert_eq!(get(&cache, key(1, 3)), Some(piece(1, 3, 500)), "written pieces can be read");
    put_all(&cache, 2, 200);
    let stats = cache.stats();
    assert!(stats.is_off && stats.device_failures == u64::from(FAILURES_MAX), "{stats:?}");
    sim.faults.clear();
    put_all(&cache, 1, 20);
    assert_eq!(get(&cache, key(1, 3)), None);
    assert_eq!(
        get(&open(&sim, 16), key(1, 3)),
        Some(piece(1, 3, 500)),
        "the next start tries again"
    );
}

#[test]
fn reads_that_fail_are_misses_and_turn_it_off_in_the_end() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 20);
    sim.faults.set_rate(Operation::Read, 1.0);
    for _ in 0..FAILURES_MAX {
        assert!(!cache.stats().is_off);
        assert_eq!(get(&cache, key(1, 3)), None);
    }
    assert!(cache.stats().is_off);
}

#[test]
fn it_shrinks_before_the_disk_is_full() {
    let sim = Sim::new(1);
    let cache = open(&sim, 16);
    put_all(&cache, 1, 20);
    // Only the space that logs and flushes need is free: it continues with its slots.
    sim.disk.set_capacity_bytes(FREE_BYTES_MIN);
    let bytes = cache.stats().bytes;
    put_all(&cache, 2, 40);
    cache.shrink_if_disk_is_full();
    assert_eq!(cache.stats().bytes, bytes);
    assert_eq!(get(&cache, key(2, 39)), Some(piece(2, 39, 500)));
    // Hardly any space: the file is removed.
    sim.disk.set_capacity_bytes(FREE_BYTES_LOW);
    cache.shrink_if_disk_is_full();
    assert!(sim.disk.files().is_empty());
    assert_eq!(get(&cache, key(2, 39)), None);
    put_all(&cache, 2, 40);
    assert!(sim.disk.files().is_empty());
    let stats = cache.stats();
    assert!(
        stats.disk_pressure_shrinks > 1 && stats.device_failures == 0 && !stats.is_off,
        "{stats:?}"
    );
    // Space again: it starts with an empty file.
    sim.disk.set_capacity_bytes(u64::MAX);
    put_all(&cache, 3, 40);
    assert_eq!(get(&cache, key(3, 0)), Some(piece(3, 0, 500)));
}

#[test]
fn torn_pieces_are_not_returned() {
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let cache = open(&sim, 4);
        put_all(&cache, 1, 60);
        // Names survive, bytes that were not synced in part.
        sim.env().disk.sync_dir("").unwrap();
        sim.env().disk.sync_dir(FOLDER).unwrap();
        put_all(&cache, 2, 60);
        sim.crash();
        sim.restart();
        let cache = open(&sim, 4);
        for (table, idx) in (0..60).flat_map(|idx| [(1, idx), (2, idx)]) {
            let found = get(&cache, key(table, idx));
            assert!(found.is_none_or(|found| found == piece(table, idx, 500)), "seed {seed}");
        }
    }
}
