//! Tests of the slab format.

use std::collections::BTreeSet;
use std::sync::Arc;

use firn_model::{CommitSeq, Error, Result, TimeRange, Timestamp};
use firn_sim::Rng;

use super::*;

const SLOT: u32 = 3;

/// A point as it must come back.
type PlainPoint = (Timestamp, Option<Arc<[u8]>>, Vec<u8>);

/// The points of each key of a slab.
struct Sample {
    /// With the key that it is of.
    points: Vec<(usize, PlainPoint)>,
    bytes: Vec<u8>,
}

fn sample(seed: u64, key_count: usize, payload_bytes_max: u64) -> Sample {
    let mut rng = Rng::new(seed);
    let mut slab = OpenSlab::new(7);
    let texts: Vec<Arc<[u8]>> =
        (0..key_count).map(|key| Arc::from(format!("key {key}").as_bytes())).collect();
    texts.iter().for_each(|text| {
        slab.add_key(text, 0);
    });
    let heads: Vec<Arc<[u8]>> = (0..3u8).map(|head| Arc::from(vec![head; 9])).collect();
    let mut points = Vec::new();
    let mut ts = rng.between(-1_000, 1_000);
    for _ in 0..200 {
        ts += rng.between(0, 50);
        let head = rng.chance(0.7).then(|| Arc::clone(rng.pick(&heads)));
        let payload = vec![rng.next_u64() as u8; rng.below(payload_bytes_max) as usize];
        let owners: BTreeSet<usize> =
            (0..1 + rng.below(3)).map(|_| rng.below(key_count as u64) as usize).collect();
        for key in owners {
            slab.push(key as u32, ts, head.as_ref(), &payload);
            points.push((key, (ts, head.clone(), payload.clone())));
        }
    }
    let extents =
        vec![Extent { range: TimeRange::new(-1_000, ts), number: CommitSeq(rng.below(99)) }];
    let keys: Vec<SlabKey> = texts
        .iter()
        .map(|text| SlabKey {
            text: Arc::clone(text),
            note: Arc::from(*b"note"),
            extents: extents.clone(),
        })
        .collect();
    let identity = Identity {
        generation: 77,
        slot: SLOT,
        heard: CommitSeq(41),
        is_compacted: true,
        is_doubted: true,
    };
    let encoded = encode(&slab, &keys, &identity);
    let most = slab.slab_bytes((4 + 30) * key_count);
    assert!(encoded.bytes.len() <= most.next_multiple_of(BLOCK_BYTES));
    // It is not taken for much larger than it is: places would stay empty.
    let unknown = 80 * key_count + 15 * slab.sets().len() + 2 * BLOCK_BYTES;
    assert!(most <= encoded.bytes.len() + unknown, "{most} for {}", encoded.bytes.len());
    Sample { points, bytes: encoded.bytes }
}

fn open(bytes: &[u8]) -> Result<Header> {
    let preamble = Preamble::decode("slabs", 0, SLOT, bytes)?;
    let end = PREAMBLE_BYTES + preamble.header_bytes as usize;
    let header = bytes.get(PREAMBLE_BYTES..end).ok_or_else(|| Error::internal("cut"))?;
    Header::decode("slabs", 0, preamble, header)
}

/// The points of one key in a range, as a reader finds them: reading only the blocks that it needs.
fn read(bytes: &[u8], key: usize, range: TimeRange) -> Result<Vec<PlainPoint>> {
    let header = open(bytes)?;
    let position = header.position(format!("key {key}").as_bytes());
    let position = position.ok_or_else(|| Error::internal("no such key"))?;
    let mut found = Vec::new();
    for set in header.sets_of(position) {
        let blocks = header.blocks(set, range);
        let place = header.bytes_of(&blocks);
        let bytes = &bytes[place.start as usize..place.end as usize];
        header.check("slabs", &blocks, bytes)?;
        header.walk_set("slabs", set, range, bytes, &mut |point| {
            let head = point.head.and_then(|head| header.head(head)).cloned();
            found.push((point.ts, head, point.payload.to_vec()));
        })?;
    }
    Ok(found)
}

#[test]
fn points_come_back_by_key_and_time() {
    for seed in 0..60 {
        let key_count = [1, 5, 128, 129, 300][seed as usize % 5];
        // From nothing to points that fill several blocks by themselves.
        let payload_bytes_max = [1, 30, 300, 9_000][seed as usize % 4];
        let sample = sample(seed, key_count, payload_bytes_max);
        let mut rng = Rng::new(seed);
        for _ in 0..40 {
            let start = rng.between(-1_200, 6_000);
            let range = TimeRange::new(start, start + rng.between(-1, 3_000));
            let key = rng.below(key_count as u64) as usize;
            let mut want: Vec<_> = sample
                .points
                .iter()
                .filter(|(owner, point)| *owner == key && range.contains(point.0))
                .map(|(_, point)| point.clone())
                .collect();
            let mut found = read(&sample.bytes, key, range).unwrap();
            // Two equal points of one key at one time are one point.
            want.sort();
            want.dedup();
            found.sort();
            assert_eq!(found, want, "seed {seed}");
        }
    }
}

#[test]
fn a_point_of_two_keys_is_stored_once_and_outlives_either() {
    let mut slab = OpenSlab::new(0);
    let keys: [Arc<[u8]>; 2] = [Arc::from(*b"a"), Arc::from(*b"b")];
    for (position, key) in keys.iter().enumerate() {
        assert_eq!(slab.add_key(key, 0), position as u32);
        slab.push(position as u32, 5, None, b"same");
    }
    assert_eq!(slab.points().count(), 1);
    slab.clear(0, TimeRange::at(5));
    let has = |slab: &OpenSlab, key| slab.points_of(key, TimeRange::ALL).count();
    assert_eq!((has(&slab, 0), has(&slab, 1)), (0, 1));
    slab.push(0, 5, None, b"same");
    assert_eq!((slab.points().count(), has(&slab, 0), has(&slab, 1)), (1, 1, 1));
    (0..2).for_each(|key| slab.clear(key, TimeRange::at(5)));
    assert_eq!(slab.points().count(), 0);
    assert_eq!(slab.time_range(), TimeRange::EMPTY);
}

#[test]
fn a_flipped_bit_is_found_or_means_nothing() {
    let sample = sample(1, 3, 300);
    let whole: Vec<_> =
        (0..3).map(|key| read(&sample.bytes, key, TimeRange::ALL).unwrap()).collect();
    let preamble = open(&sample.bytes).unwrap().preamble;
    let header_end = PREAMBLE_BYTES + preamble.header_bytes as usize;
    let mut found_count = 0;
    for byte in 0..sample.bytes.len() {
        let mut flipped = sample.bytes.clone();
        flipped[byte] ^= 1 << (byte % 8);
        let read =
            (0..3).map(|key| read(&flipped, key, TimeRange::ALL)).collect::<Result<Vec<_>>>();
        let is_data = (preamble.data_at() as usize..preamble.slab_bytes() as usize).contains(&byte);
        match read {
            Ok(read) => {
                assert!(byte >= header_end && !is_data, "byte {byte} is covered by no checksum");
                assert_eq!(read, whole);
            }
            Err(_) => found_count += 1,
        }
    }
    assert!(found_count > header_end);
    for len in [0, 10, PREAMBLE_BYTES, header_end - 1] {
        assert!(open(&sample.bytes[..len]).is_err());
    }
}

#[test]
fn a_part_of_an_older_slab_in_the_same_place_is_not_taken_for_one_of_this() {
    let (new, old) = (sample(5, 2, 300), sample(6, 2, 300));
    let preamble = open(&new.bytes).unwrap().preamble;
    // A torn write leaves the front of the new slab before the tail of the old one.
    for at in [PREAMBLE_BYTES, PREAMBLE_BYTES + 30, preamble.data_at() as usize + BLOCK_BYTES] {
        let mut torn = new.bytes.clone();
        let end = torn.len().min(old.bytes.len());
        torn[at..end].copy_from_slice(&old.bytes[at..end]);
        let error = read(&torn, 0, TimeRange::ALL).unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
    }
    assert!(Preamble::decode("slabs", 0, SLOT + 1, &new.bytes).is_err(), "another place");
}
