//! A second reader of the log, written from `docs/formats/log.md` alone. It must find the same
//! entries as replay.
//!
//! - Crashed: sometimes the machine, with any subset of unsynced sectors lost. So all kinds of
//!   segments occur: torn, failed, recycled, passed over.

use firn_env::{Disk, OpenMode};
use firn_log::{EntryKind, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, LogPosition, ShardId};
use firn_sim::Operation;

use crate::world::{World, seeds, setup};

/// Kind, shard, sequence, payload.
type Entry = (u8, u64, u64, Vec<u8>);

#[derive(Clone, Copy)]
struct Header {
    number: u64,
    base: u64,
    bytes: u64,
    nonce: u32,
    previous: u64,
    previous_end: u64,
}

fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in parts.iter().copied().flatten() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn header(file: &[u8]) -> Option<Header> {
    let mut copies = file.chunks_exact(512).take(2);
    let copy = copies
        .find(|copy| copy.starts_with(b"FIRNLOG\0") && u32_at(copy, 72) == crc32(&[&copy[..72]]))?;
    assert_eq!(copy[8..10], [1, 0], "version");
    Some(Header {
        number: u64_at(copy, 16),
        base: u64_at(copy, 24),
        bytes: u64_at(copy, 32),
        nonce: u32_at(copy, 40),
        previous: u64_at(copy, 48),
        previous_end: u64_at(copy, 56),
    })
}

fn varint(input: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = input[0];
        *input = &input[1..];
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

/// The block at position `at`: its mark, its entries and the position of the next block.
fn block(file: &[u8], header: &Header, at: u64) -> Option<(u64, Vec<Entry>, u64)> {
    let bytes = file.get((at - header.base) as usize..)?;
    if bytes.len() < 24 || u32_at(bytes, 0) != header.nonce {
        return None;
    }
    let len = u32_at(bytes, 8) as usize;
    let covered = bytes.get(8..24 + len)?;
    let crc = crc32(&[&header.nonce.to_le_bytes(), &at.to_le_bytes(), covered]);
    if u32_at(bytes, 4) != crc {
        return None;
    }
    let (mut input, mut seq, mut entries) = (&covered[16..], 0u64, Vec::new());
    for _ in 0..u32_at(bytes, 12) {
        let len = varint(&mut input) as usize;
        let kind = input[0];
        input = &input[1..];
        let shard = varint(&mut input);
        let zigzag = varint(&mut input);
        seq = seq.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
        entries.push((kind, shard, seq, input[..len].to_vec()));
        input = &input[len..];
    }
    Some((u64_at(bytes, 16), entries, at + (24 + len as u64).next_multiple_of(8)))
}

/// All entries of the segments that reach above `floor`. `files` are the stream's files in the
/// order of their numbers.
fn read_stream(files: &[Vec<u8>], floor: u64) -> Vec<Entry> {
    let used: Vec<(&Vec<u8>, Header)> =
        files.iter().filter_map(|file| Some((file, header(file)?))).collect();
    let mut found = Vec::new();
    for (idx, (file, header)) in used.iter().enumerate() {
        let file_end = header.base + header.bytes.min(file.len() as u64);
        let (end, is_named) = match used.get(idx + 1).map(|next| next.1) {
            None => (file_end, false),
            Some(next) if next.previous == header.number => (next.previous_end, true),
            // A purge removed the segment between the two, and a crash brought this one back.
            Some(next) if next.previous > header.number && next.previous != u64::MAX => {
                (file_end, false)
            }
            // Passed over: no commit ever reached it.
            Some(_) => continue,
        };
        if end <= floor && is_named {
            continue;
        }
        let at_each = |from: u64| (from..end).step_by(8);
        let mut at = header.base + 1_024;
        while at < end {
            if let Some((_, entries, next)) = block(file, header, at) {
                found.extend(entries);
                at = next;
                continue;
            }
            let marks = at_each(at).filter_map(|behind| Some(block(file, header, behind)?.0));
            if !is_named && at >= marks.max().unwrap_or(0) {
                break;
            }
            let next = at_each(at).find(|&behind| block(file, header, behind).is_some());
            at = next.unwrap_or(end);
        }
    }
    found
}

#[test]
fn a_reader_written_from_the_page_agrees_with_replay() {
    let (mut entries, mut recycled, mut failed) = (0, 0, 0);
    for seed in seeds(300_000_000, 60) {
        let mut world = World::new(seed);
        for life in 0..5 {
            let setup = setup(8 << 10, SyncPolicy::Always);
            let log = world.open(setup).unwrap();
            let replayed = world.replay(&log).unwrap();
            for (stream, replayed) in replayed.iter().enumerate() {
                let folder = format!("log/{stream}/");
                let mut files: Vec<(u64, Vec<u8>)> = Vec::new();
                for path in world.sim.disk.files() {
                    if let Some(name) = path.strip_prefix(&folder) {
                        let number = name.strip_suffix(".log").unwrap().parse().unwrap();
                        files.push((number, world.sim.disk.bytes(&path).unwrap()));
                    }
                }
                files.sort();
                let files: Vec<Vec<u8>> = files.into_iter().map(|file| file.1).collect();
                recycled += files.iter().filter(|file| u32_at(file, 44) == 1).count();
                let model = &world.streams[stream];
                let want: Vec<Entry> = replayed
                    .found
                    .iter()
                    .map(|&idx| &model.records[idx])
                    .map(|one| {
                        (one.kind as u8, u64::from(one.shard.0), one.seq.0, one.payload.clone())
                    })
                    .collect();
                entries += want.len();
                let found = read_stream(&files, model.floor.0);
                assert!(
                    found == want,
                    "stream {stream}, life {life}: {} entries, expected {}",
                    found.len(),
                    want.len()
                );
            }
            log.start().unwrap();
            world.settle(&replayed);
            world.sim.faults.set_rate(Operation::Sync, 0.05);
            for _ in 0..world.rng.below(100) {
                // This writer ignores failures; the next start sees their outcome.
                if let Ok(position) = world.append(&log, 800) {
                    failed += u32::from(world.commit(&log, &[position]).is_err());
                }
                if world.rng.chance(0.05) {
                    let _ = world.purge(&log);
                }
            }
            world.sim.faults.clear();
            if world.rng.chance(0.5) {
                drop(log);
                world.sim.restart();
            }
        }
    }
    println!("{entries} entries, {recycled} recycled segments, {failed} failed commits");
    assert!(entries > 1_000 && recycled > 10 && failed > 10);
}

/// This reader and the log find the entry in the example of the page.
#[test]
fn the_example_of_the_page_is_a_log() {
    let page = include_str!("../../../../docs/formats/log.md");
    let example = page.split("## Example").nth(1).expect("an example");
    let mut file = vec![0; 1 << 20];
    for line in example.split("```").nth(1).expect("bytes").lines() {
        let Some((offset, rest)) = line.split_once(": ") else { continue };
        let offset: usize = offset.trim().parse().expect("an offset");
        if rest == "the same 76 bytes" {
            file.copy_within(..76, offset);
            continue;
        }
        let digits = |word: &&str| word.len() == 2;
        let words = rest.split_whitespace().take_while(digits).take(16);
        for (idx, word) in words.enumerate() {
            file[offset + idx] = u8::from_str_radix(word, 16).expect("a byte");
        }
    }
    let entry = (1, 3, 7, vec![0xaa, 0xbb]);
    assert_eq!(read_stream(std::slice::from_ref(&file), 0), [entry]);
    let world = World::new(1);
    world.sim.disk.create_dir("log/0").unwrap();
    let made = world.sim.disk.open("log/0/1.log", OpenMode::Create).unwrap();
    made.write_at(0, &file).unwrap();
    let counts =
        LogSetup { stream_count: 1, shard_count: 64, ..setup(1 << 20, SyncPolicy::Always) };
    let (log, mut found) = (world.open(counts).unwrap(), Vec::new());
    let report = log.replay(StreamId(0), LogPosition(0), &mut |entry| {
        found.push((entry.kind, entry.shard, entry.seq, entry.payload.to_vec()));
        Ok(())
    });
    assert_eq!(found, [(EntryKind::Rows, ShardId(3), CommitSeq(7), vec![0xaa, 0xbb])]);
    let report = report.unwrap();
    assert_eq!((report.end.0, report.damage, report.torn_tail), (1_056, vec![], None));
}
