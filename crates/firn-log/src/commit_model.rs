//! A model of the group commit: `commit.rs` compiled against a scheduler that tries many
//! interleavings of its locks and condition variables, with a file that fails on request.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use firn_env::{DiskFile, Memory};
use firn_model::{CommitSeq, Error, LogPosition, Result, ShardId};
use shuttle::thread::{JoinHandle, ThreadId, current, spawn, yield_now};

use crate::entry::{EntryKind, EntryRef};
use crate::queue::PushOutcome;
use crate::segment::{Header, SegmentNo};

#[expect(clippy::duplicate_mod, reason = "this copy names the model's locks")]
#[expect(dead_code, reason = "the model reads no statistics")]
#[path = "commit.rs"]
mod commit;

use commit::{CommitTurn, Queue};

/// The locks of the model, with the interface that `commit.rs` expects.
mod sync {
    pub(crate) use shuttle::sync::MutexGuard;
    pub(crate) use shuttle::thread::yield_now;

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    #[derive(Debug)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(shuttle::sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// A file with slow syncs, during which other threads run. Chosen syncs and writes fail. It records
/// the synced length.
struct File {
    state: shuttle::sync::Mutex<FileState>,
    fails_sync: Option<u64>,
    fails_write: Option<u64>,
}

#[derive(Default)]
struct FileState {
    written: u64,
    durable: u64,
    writes: u64,
    syncs: u64,
    is_writing: bool,
    is_syncing: bool,
}

impl File {
    fn new(fails_sync: Option<u64>) -> Arc<File> {
        Arc::new(File { state: shuttle::sync::Mutex::default(), fails_sync, fails_write: None })
    }

    fn with_failing_write(fails_write: u64) -> Arc<File> {
        let state = shuttle::sync::Mutex::default();
        Arc::new(File { state, fails_sync: None, fails_write: Some(fails_write) })
    }

    fn durable(&self) -> u64 {
        self.state.lock().unwrap().durable
    }

    fn has_failed(&self) -> bool {
        let state = self.state.lock().unwrap();
        self.fails_sync.is_some_and(|at| state.syncs >= at)
            || self.fails_write.is_some_and(|at| state.writes >= at)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("File")
    }
}

impl DiskFile for File {
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        unreachable!("group commit does not read")
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        {
            let mut state = self.state.lock().unwrap();
            assert!(!std::mem::replace(&mut state.is_writing, true), "two concurrent writes");
            assert_eq!(offset, state.written, "a gap or an overlap");
        }
        yield_now();
        let mut state = self.state.lock().unwrap();
        state.is_writing = false;
        state.writes += 1;
        if self.fails_write == Some(state.writes) {
            return Err(Error::unavailable("write failed"));
        }
        state.written += bytes.len() as u64;
        Ok(())
    }

    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let written = {
            let mut state = self.state.lock().unwrap();
            assert!(!std::mem::replace(&mut state.is_syncing, true), "two leaders");
            state.written
        };
        yield_now();
        let mut state = self.state.lock().unwrap();
        state.is_syncing = false;
        state.syncs += 1;
        if self.fails_sync == Some(state.syncs) {
            return Err(Error::unavailable("sync failed"));
        }
        state.durable = written;
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(1 << 20)
    }
}

fn header(number: u64) -> Header {
    Header {
        stream: 0,
        stream_count: 1,
        shard_count: 1,
        number: SegmentNo(number),
        base: LogPosition(0),
        bytes: 1 << 20,
        nonce: 7,
        is_recycled: false,
        previous: None,
    }
}

fn queue_on(file: &Arc<File>) -> Arc<Queue> {
    Arc::new(Queue::new("model".into(), header(1), Arc::<File>::clone(file), 8))
}

fn append(queue: &Queue, payload: &[u8]) -> Option<(SegmentNo, LogPosition)> {
    let segment = queue.tip().segment;
    let entry = EntryRef { kind: EntryKind::Rows, shard: ShardId(0), seq: CommitSeq(1), payload };
    match queue.append(segment, &[entry]) {
        PushOutcome::At(position) => Some((segment, position)),
        PushOutcome::Rotated | PushOutcome::Full => None,
    }
}

/// Three writers append and commit; every outcome is compared with the file. Under the lazy policy
/// commits do not sync, and each writer syncs afterwards.
fn writers(queue: &Arc<Queue>, file: &Arc<File>, lazy: bool) -> Vec<JoinHandle<()>> {
    let writer = |way: usize| {
        let (queue, file) = (Arc::clone(queue), Arc::clone(file));
        spawn(move || {
            for _ in 0..2 {
                let Some((segment, position)) = append(&queue, &[1; 9]) else { return };
                // As a commit over several streams.
                if way == 0
                    && let CommitTurn::Mine(mut lead) = queue.turn(position)
                {
                    let written = lead.write();
                    let sync = |()| if lazy { Ok(()) } else { lead.file().sync() };
                    let outcome = written.and_then(sync);
                    drop(lead.finish(outcome, !lazy));
                }
                let outcome = queue.commit(position, !lazy);
                let outcome =
                    if lazy { outcome.and_then(|()| queue.harden(position)) } else { outcome };
                if outcome.is_err() {
                    assert!(file.has_failed(), "{outcome:?}");
                    assert!(lazy || queue.durable_before(position) < position);
                } else if segment == SegmentNo(1) && queue.durable_before(position) == position {
                    // The first segment begins at position 0: its positions are offsets.
                    assert!(file.durable() >= position.0, "acknowledged, but not durable");
                } else {
                    assert!(
                        lazy || segment != SegmentNo(1),
                        "acknowledged, then reported as failed"
                    );
                }
            }
        })
    };
    (0..3).map(writer).collect()
}

#[test]
fn every_waiter_returns_and_acknowledged_positions_are_durable() {
    for lazy in [false, true] {
        check(move || {
            let file = File::new(None);
            let queue = queue_on(&file);
            for thread in writers(&queue, &file, lazy) {
                thread.join().unwrap();
            }
            assert!(file.durable() <= queue.end().0);
        });
    }
}

#[test]
fn a_failed_sync_fails_its_waiters_and_no_thread_hangs() {
    for (lazy, fails_sync) in [(false, 1), (false, 2), (false, 3), (true, 1), (true, 2)] {
        check(move || {
            let file = File::new(Some(fails_sync));
            let queue = queue_on(&file);
            for thread in writers(&queue, &file, lazy) {
                thread.join().unwrap();
            }
        });
    }
}

/// A write that ran ahead while an earlier batch was synced may fail; the earlier batch holds.
#[test]
fn a_failed_write_fails_the_writes_behind_it_and_no_thread_hangs() {
    for (lazy, fails_write) in [(false, 1), (false, 2), (false, 3), (false, 4), (true, 2)] {
        check(move || {
            let file = File::with_failing_write(fails_write);
            let queue = queue_on(&file);
            for thread in writers(&queue, &file, lazy) {
                thread.join().unwrap();
            }
        });
    }
}

#[test]
fn a_rotation_among_writers_loses_nothing() {
    for fails_sync in [None, Some(1), Some(2)] {
        check(move || {
            let [old, new] = [File::new(fails_sync), File::new(None)];
            let queue = queue_on(&old);
            let threads = writers(&queue, &old, false);
            let before = queue.end();
            let (_, end) = queue.rotate(header(2), Arc::<File>::clone(&new));
            assert!(end >= before);
            assert!(fails_sync.is_some() || old.durable() == end.0);
            let (segment, position) = append(&queue, &[2; 9]).unwrap();
            assert_eq!(segment, SegmentNo(2));
            queue.commit(position, true).unwrap();
            assert!(new.durable() >= position.0 - end.0);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}

/// Byte-addressable memory: written bytes are durable once a thread has written them back and then
/// fenced.
#[derive(Default)]
struct CacheLines(shuttle::sync::Mutex<CacheLinesState>);

#[derive(Default)]
struct CacheLinesState {
    written: u64,
    /// `None`: no write fails.
    writes_left: Option<u64>,
    begun: HashMap<ThreadId, Vec<Range<u64>>>,
    durable: Vec<Range<u64>>,
}

impl CacheLines {
    /// Everything before this is durable.
    fn durable(&self) -> u64 {
        let mut ranges = self.0.lock().unwrap().durable.clone();
        ranges.sort_by_key(|range| range.start);
        let grow = |end: u64, range: &Range<u64>| {
            if range.start <= end { end.max(range.end) } else { end }
        };
        ranges.iter().fold(0, grow)
    }
}

impl fmt::Debug for CacheLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheLines")
    }
}

impl DiskFile for CacheLines {
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        unreachable!("group commit does not read")
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.0.lock().unwrap();
        assert_eq!(offset, state.written, "a gap or an overlap");
        if state.writes_left == Some(0) {
            return Err(Error::unavailable("write failed"));
        }
        state.writes_left = state.writes_left.map(|left| left - 1);
        state.written += bytes.len() as u64;
        Ok(())
    }

    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        unreachable!("memory is not synced by a system call")
    }

    fn len(&self) -> Result<u64> {
        Ok(1 << 20)
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }
}

impl Memory for CacheLines {
    fn write_back(&self, offset: u64, len: u64) {
        yield_now();
        let mut state = self.0.lock().unwrap();
        assert!(offset + len <= state.written, "write-back of unwritten bytes");
        state.begun.entry(current().id()).or_default().push(offset..offset + len);
    }

    fn fence(&self) {
        yield_now();
        let mut state = self.0.lock().unwrap();
        let begun = state.begun.remove(&current().id()).unwrap_or_default();
        state.durable.extend(begun);
    }
}

#[test]
fn on_memory_a_commit_makes_all_earlier_positions_durable() {
    check(|| {
        let [old, new] = [Arc::<CacheLines>::default(), Arc::<CacheLines>::default()];
        let queue = Queue::new("model".into(), header(1), Arc::<CacheLines>::clone(&old), 8);
        let queue = Arc::new(queue);
        let writer = |way: usize| {
            let (queue, old) = (Arc::clone(&queue), Arc::clone(&old));
            spawn(move || {
                for _ in 0..2 {
                    let Some((segment, position)) = append(&queue, &[1; 9]) else { return };
                    // As a commit over several streams, and as a commit over one stream.
                    if way == 0 {
                        if let Some(written) = queue.write_through(position).unwrap() {
                            written.write_back();
                            written.fence();
                            queue.persisted(&written, position).unwrap();
                        }
                    } else {
                        queue.commit(position, true).unwrap();
                    }
                    assert!(segment != SegmentNo(1) || old.durable() >= position.0);
                }
            })
        };
        let threads: Vec<_> = (0..3).map(writer).collect();
        let (_, end) = queue.rotate(header(2), Arc::<CacheLines>::clone(&new));
        assert!(old.durable() >= end.0);
        let (_, position) = append(&queue, &[2; 9]).unwrap();
        queue.commit(position, true).unwrap();
        assert!(new.durable() >= position.0 - end.0);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A write fails while another thread writes back and fences its earlier write. The segment ends
/// before both, and both commits fail.
#[test]
fn on_memory_no_acknowledged_position_is_behind_a_failed_write() {
    check(|| {
        let lines = Arc::<CacheLines>::default();
        lines.0.lock().unwrap().writes_left = Some(1);
        let queue = Arc::new(Queue::new("model".into(), header(1), lines, 8));
        let writer = |_| {
            let queue = Arc::clone(&queue);
            spawn(move || {
                let (_, position) = append(&queue, &[1; 9])?;
                let written = queue.write_through(position).ok()?;
                if let Some(written) = written {
                    written.write_back();
                    written.fence();
                    queue.persisted(&written, position).ok()?;
                }
                Some(position)
            })
        };
        let threads: Vec<_> = (0..2).map(writer).collect();
        for thread in threads {
            if let Some(position) = thread.join().unwrap() {
                assert_eq!(queue.durable_before(position), position, "it was acknowledged");
            }
        }
    });
}

/// Many random schedules, and many with few, well placed switches.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), 1_000);
    shuttle::check_pct(model, 1_000, 3);
}
