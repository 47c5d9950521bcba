//! Power loss on byte-addressable memory, at every write-back and every fence.
//!
//! - Crashed: the machine, at each write-back and each fence in turn.
//! - On the device: every cache line that was written back and fenced. Any other line has its old
//!   or its new content, as the seed decides, because a cache may evict a line at any time.
//! - Afterwards: every committed entry is replayed in order, once, bit for bit. All other replayed
//!   entries belong to whole appends.
//!
//! The test must detect every mutant.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use firn_env::{Disk, LINE_BYTES, LineFlusher, Mapping, MemoryDisk, SystemClock};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, LogPosition, ShardId};
use firn_sim::Rng;

use crate::world::seeds;

const STREAM_COUNT: usize = 2;
const SETUP: LogSetup = LogSetup {
    stream_count: STREAM_COUNT,
    shard_count: 8,
    unit_bytes: 256,
    options: LogOptions { segment_bytes: 8 << 10, sync: SyncPolicy::Always },
};

/// A deliberate bug of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// The last line of a range is not written back.
    LineSkipped,
    /// Fences do nothing.
    FenceSkipped,
}

/// Processor caches and the memory behind them.
#[derive(Debug)]
struct ProcessorCaches(Mutex<CacheState>);

#[derive(Debug)]
struct CacheState {
    folder: PathBuf,
    mutant: Option<Mutant>,
    rng: Rng,
    /// Durable content by file.
    durable: BTreeMap<u64, Vec<u8>>,
    /// Bytes that a thread has written back since its last fence: file, offset, bytes.
    begun: HashMap<ThreadId, Vec<(u64, u64, Vec<u8>)>>,
    operations: u64,
    crash_at: Option<u64>,
    /// The files after the crash, by path, and the number of entries that were committed before it.
    crashed_files: Option<(FileContents, usize)>,
    committed: Vec<EntryRecord>,
}

/// Paths and bytes.
type FileContents = Vec<(String, Vec<u8>)>;

/// Stream, number and payload of an entry.
type EntryRecord = (u16, u64, Vec<u8>);

impl ProcessorCaches {
    fn new(
        folder: &Path,
        mutant: Option<Mutant>,
        seed: u64,
        crash_at: Option<u64>,
    ) -> ProcessorCaches {
        ProcessorCaches(Mutex::new(CacheState {
            folder: folder.to_owned(),
            mutant,
            rng: Rng::new(seed),
            durable: BTreeMap::new(),
            begun: HashMap::new(),
            operations: 0,
            crash_at,
            crashed_files: None,
            committed: Vec::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineFlusher for ProcessorCaches {
    fn write_back(&self, mapping: &Mapping, offset: u64, len: u64) {
        let mut state = self.state();
        state.operation();
        let start = offset / LINE_BYTES * LINE_BYTES;
        let mut end = (offset + len).next_multiple_of(LINE_BYTES);
        if state.mutant == Some(Mutant::LineSkipped) && len > 0 {
            end -= LINE_BYTES;
        }
        let bytes = mapping.copy(start, end.saturating_sub(start));
        let id = mapping.file_id();
        state.durable.entry(id).or_insert_with(|| vec![0; mapping.len() as usize]);
        state.begun.entry(thread::current().id()).or_default().push((id, start, bytes));
    }

    fn fence(&self) {
        let mut state = self.state();
        state.operation();
        if state.mutant == Some(Mutant::FenceSkipped) {
            return;
        }
        for (id, offset, bytes) in state.begun.remove(&thread::current().id()).unwrap_or_default() {
            let durable = state.durable.get_mut(&id).expect("it was written back");
            durable[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
}

impl CacheState {
    fn operation(&mut self) {
        if self.crash_at == Some(self.operations) {
            self.crashed_files = Some((self.crash(), self.committed.len()));
        }
        self.operations += 1;
    }

    fn crash(&mut self) -> FileContents {
        let mut crashed_files = Vec::new();
        // Often all or none of the cached lines survive.
        let keeps = [0.0, 0.3, 0.7, 1.0][self.rng.below(4) as usize];
        for stream in 0..STREAM_COUNT {
            let Ok(names) = fs::read_dir(self.folder.join(format!("log/{stream}"))) else {
                continue;
            };
            let mut paths: Vec<PathBuf> = names.map(|name| name.unwrap().path()).collect();
            paths.sort();
            for path in paths {
                let mut bytes = fs::read(&path).unwrap();
                let none = vec![0; bytes.len()];
                let durable =
                    self.durable.get(&fs::metadata(&path).unwrap().ino()).unwrap_or(&none);
                let lines = bytes.chunks_mut(LINE_BYTES as usize);
                for (line, durable) in lines.zip(durable.chunks(LINE_BYTES as usize)) {
                    if *line != *durable && !self.rng.chance(keeps) {
                        line.copy_from_slice(durable);
                    }
                }
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                crashed_files.push((format!("log/{stream}/{name}"), bytes));
            }
        }
        crashed_files
    }
}

/// Replayed entries by stream.
type ReplayedEntries = Vec<Vec<(u64, Vec<u8>)>>;

fn open(folder: &Path, caches: &Arc<ProcessorCaches>) -> Result<(Log, ReplayedEntries), String> {
    let lines: Arc<dyn LineFlusher> = Arc::<ProcessorCaches>::clone(caches);
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::with_lines(folder, lines).unwrap());
    let log = Log::open(disk, Arc::new(SystemClock::new()), SETUP, false).unwrap();
    let mut replayed = Vec::new();
    for stream in 0..STREAM_COUNT as u16 {
        let mut entries = Vec::new();
        let report = log.replay(StreamId(stream), LogPosition(0), &mut |entry| {
            entries.push((entry.seq.0, entry.payload.to_vec()));
            Ok(())
        });
        if let Some(damage) = report.unwrap().damage.first() {
            return Err(damage.clone());
        }
        replayed.push(entries);
    }
    log.start().unwrap();
    Ok((log, replayed))
}

/// Opens the files of a crash.
fn open_crashed(files: &[(String, Vec<u8>)]) -> Result<ReplayedEntries, String> {
    let folder = tempfile::tempdir().unwrap();
    for (path, bytes) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let caches = Arc::new(ProcessorCaches::new(folder.path(), None, 0, None));
    open(folder.path(), &caches).map(|(_, replayed)| replayed)
}

/// Appends to both streams over several segments, with commits in between. Returns the number of
/// operations and the failed check after the crash, if any.
fn live(seed: u64, mutant: Option<Mutant>, crash_at: Option<u64>) -> (u64, Option<String>) {
    let folder = tempfile::tempdir().unwrap();
    let caches = Arc::new(ProcessorCaches::new(folder.path(), mutant, seed, crash_at));
    let (log, _) = open(folder.path(), &caches).unwrap();
    let (mut rng, mut waiting): (Rng, Vec<EntryRecord>) = (Rng::new(seed), Vec::new());
    let (mut all, mut ends) = (Vec::new(), [None; STREAM_COUNT]);
    for seq in 1..60u64 {
        let shard = ShardId(rng.below(8) as u16);
        let stream = log.stream_of(shard);
        // Zeros look like unwritten bytes.
        let byte = if rng.chance(0.3) { 0 } else { seq as u8 };
        let payload = vec![byte; rng.below(600) as usize];
        let entry =
            EntryRef { kind: EntryKind::Rows, shard, seq: CommitSeq(seq), payload: &payload };
        let end = loop {
            if let Append::At(end) = log.append(stream, log.tip(stream).segment, &[entry]).unwrap()
            {
                break end;
            }
        };
        ends[usize::from(stream.0)] = Some((stream, end));
        waiting.push((stream.0, seq, payload.clone()));
        all.push((stream.0, seq, payload));
        if rng.chance(0.5) {
            log.commit(&ends.iter_mut().filter_map(Option::take).collect::<Vec<_>>()).unwrap();
            caches.state().committed.append(&mut waiting);
        }
        if rng.chance(0.1) {
            log.prepare().unwrap();
        }
    }
    let mut state = caches.state();
    let (operations, crashed_files) = (state.operations, state.crashed_files.take());
    let outcome = crashed_files
        .and_then(|(files, committed)| check(&files, &state.committed[..committed], &all).err());
    (operations, outcome)
}

/// Opens the files of a crash: all committed entries are there, and no entry that was not written.
fn check(
    files: &[(String, Vec<u8>)],
    committed: &[EntryRecord],
    all: &[EntryRecord],
) -> Result<(), String> {
    for (stream, found) in (0u16..).zip(open_crashed(files)?) {
        let of_stream = |entries: &[EntryRecord]| -> Vec<(u64, Vec<u8>)> {
            let own = entries.iter().filter(|entry| entry.0 == stream);
            own.map(|(_, seq, payload)| (*seq, payload.clone())).collect()
        };
        let (committed, all) = (of_stream(committed), of_stream(all));
        if found.len() < committed.len() {
            return Err(format!("stream {stream}: {} of {}", found.len(), committed.len()));
        }
        if found != all[..found.len()] {
            return Err(format!("stream {stream}: replay differs from the written entries"));
        }
    }
    Ok(())
}

#[test]
fn invariant_1_committed_entries_survive_a_crash_at_every_write_back_and_fence() {
    for seed in seeds(0, 2) {
        let (operations, _) = live(seed, None, None);
        assert!(operations > 60, "only {operations} operations");
        for at in 0..operations {
            let (_, outcome) = live(seed, None, Some(at));
            assert_eq!(outcome, None, "seed {seed}, crash at {at}");
        }
    }
}

#[test]
fn mutants_of_the_device_are_detected() {
    for mutant in [Mutant::LineSkipped, Mutant::FenceSkipped] {
        let is_detected = (0..100).any(|at| live(1, Some(mutant), Some(20 + at)).1.is_some());
        assert!(is_detected, "{mutant:?}");
    }
}

/// Several threads at once, each of which relies on write-backs by the others.
#[test]
fn threads_that_write_back_for_each_other_keep_every_commit() {
    for seed in seeds(0, 20) {
        let folder = tempfile::tempdir().unwrap();
        let caches =
            Arc::new(ProcessorCaches::new(folder.path(), None, seed, Some(40 + seed % 20 * 3)));
        let (log, _) = open(folder.path(), &caches).unwrap();
        thread::scope(|scope| {
            for writer in 0..3u16 {
                let (log, caches) = (&log, &caches);
                scope.spawn(move || {
                    for idx in 0..20u64 {
                        let (shard, seq) = (ShardId(writer), u64::from(writer) * 1_000 + idx);
                        let stream = log.stream_of(shard);
                        let payload = vec![writer as u8; 100];
                        let (kind, seq_of) = (EntryKind::Rows, CommitSeq(seq));
                        let entry = EntryRef { kind, shard, seq: seq_of, payload: &payload };
                        let end = loop {
                            let segment = log.tip(stream).segment;
                            if let Append::At(end) = log.append(stream, segment, &[entry]).unwrap()
                            {
                                break end;
                            }
                        };
                        log.commit(&[(stream, end)]).unwrap();
                        caches.state().committed.push((stream.0, seq, payload));
                    }
                });
            }
        });
        let mut state = caches.state();
        let (files, committed) = state.crashed_files.take().expect("it crashed");
        let committed = &state.committed[..committed];
        let replayed = open_crashed(&files).unwrap();
        for (stream, seq, payload) in committed {
            let found = &replayed[usize::from(*stream)];
            assert!(found.contains(&(*seq, payload.clone())), "seed {seed}: {seq} is lost");
        }
    }
}
