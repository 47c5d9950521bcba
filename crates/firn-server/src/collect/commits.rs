//! Scrapes that share a commit.
//!
//! A sync of the log costs as much CPU time as parsing a scrape of 1,000 samples, and scrapes end
//! one by one. So the rows of those that end within a tenth of a second are one batch. A scrape
//! stays whole: a batch becomes durable and visible at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use firn_model::{Budget, Cell, Error, ErrorKind, Pool, Reservation, Result, RowBatch};
use firndb::WriteReport;
use parking_lot::{Condvar, Mutex};

/// The rows of scrapes that wait for the next commit. `S` is the rest of a scrape.
#[derive(Debug)]
pub(super) struct Commits<S> {
    next: Mutex<Next<S>>,
    /// Wakes the thread of [`Commits::run`].
    wake: Condvar,
}

#[derive(Debug)]
struct Next<S> {
    group: CommitGroup<S>,
    /// The memory of the rows here and of those that are being written.
    held: Reservation,
    is_closed: bool,
    /// Whether the thread waits for a first scrape.
    is_idle: bool,
}

/// Scrapes of one commit.
#[derive(Debug)]
struct CommitGroup<S> {
    rows: RowBatch,
    scrapes: Vec<S>,
    /// The generation of the oldest references.
    generation: u32,
}

/// Shortest time between two commits, unless there are many rows.
const COMMIT_INTERVAL: Duration = Duration::from_millis(100);
/// As many rows are written at once.
const ROWS_MAX: usize = 16 << 10;
/// Rows that are refused with `Busy` are written again for this time, such as until others release
/// memory. Scrapes that end meanwhile are the next group.
const BUSY_TIME_MAX: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The thread releases freed memory this often.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);

impl<S> Commits<S> {
    /// No rows. Their memory is part of `budget`.
    pub(super) fn new(budget: &Budget) -> Commits<S> {
        let next = Next {
            group: CommitGroup::empty(),
            held: budget.empty(Pool::Requests),
            is_closed: false,
            is_idle: false,
        };
        Commits { next: Mutex::new(next), wake: Condvar::new() }
    }

    /// Adds a scrape and its rows, with references of `generation`.
    ///
    /// # Errors
    /// The scrape, and `Busy` without memory or `Closed` after [`Commits::close`].
    pub(super) fn add(
        &self,
        scraped: S,
        rows: &RowBatch,
        generation: u32,
    ) -> std::result::Result<(), (S, Error)> {
        let mut next = self.next.lock();
        let reserved = match next.is_closed {
            true => Err(Error::closed("the server is stopping")),
            false => next.reserve(rows.len()),
        };
        if let Err(error) = reserved {
            return Err((scraped, error));
        }
        let group = &mut next.group;
        group.generation = match group.scrapes.is_empty() {
            true => generation,
            false => group.generation.min(generation),
        };
        group.rows.append(rows);
        group.scrapes.push(scraped);
        if next.is_idle || next.group.rows.len() >= ROWS_MAX {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Commits groups of scrapes until [`Commits::close`], the last one included. `write` writes
    /// rows with references of a generation; `done` gets their number, the result and the scrapes.
    pub(super) fn run(
        &self,
        write: impl Fn(&mut RowBatch, u32) -> Result<WriteReport>,
        done: impl Fn(usize, &Result<WriteReport>, &mut Vec<S>),
        on_idle: fn(),
    ) {
        let mut group = CommitGroup::empty();
        let mut last: Option<Instant> = None;
        let mut released = Instant::now();
        while self.take(&mut group, last) {
            last = Some(Instant::now());
            let row_count = group.rows.len();
            let CommitGroup { rows, generation, .. } = &mut group;
            let writing = || self.insist(rows, |rows| write(rows, *generation));
            let panicked = |_| Err(Error::internal("a commit of scrapes panicked, which is a bug"));
            let written = catch_unwind(AssertUnwindSafe(writing)).unwrap_or_else(panicked);
            done(row_count, &written, &mut group.scrapes);
            group.scrapes.clear();
            group.rows.clear();
            group.rows.shrink_to(ROWS_MAX);
            if released.elapsed() >= RELEASE_INTERVAL {
                released = Instant::now();
                on_idle();
            }
        }
    }

    /// Writes again after `Busy`, for a while, and until the next group is full. A batch that has
    /// become shorter is not repeated: the reasons of refused rows, or rows with the same series
    /// and time, would not be counted.
    fn insist(
        &self,
        rows: &mut RowBatch,
        write: impl Fn(&mut RowBatch) -> Result<WriteReport>,
    ) -> Result<WriteReport> {
        let (begun, row_count) = (Instant::now(), rows.len());
        loop {
            let written = write(rows);
            let is_busy = |error: &Error| matches!(error.kind(), ErrorKind::Busy { .. });
            let may_repeat = written.as_ref().is_err_and(is_busy)
                && rows.len() == row_count
                && begun.elapsed() < BUSY_TIME_MAX;
            if !may_repeat || self.next.lock().is_full_or_closed() {
                return written;
            }
            std::thread::park_timeout(BUSY_PAUSE);
        }
    }

    /// Waits for the next group, which takes the place of the empty `group`. Returns `false` at the
    /// end.
    fn take(&self, group: &mut CommitGroup<S>, last: Option<Instant>) -> bool {
        let mut next = self.next.lock();
        next.release_to(&group.rows);
        loop {
            let since = last.map_or(COMMIT_INTERVAL, |last| last.elapsed());
            let wait = COMMIT_INTERVAL.saturating_sub(since);
            if next.group.scrapes.is_empty() {
                if next.is_closed {
                    return false;
                }
                next.is_idle = true;
                self.wake.wait(&mut next);
                next.is_idle = false;
            } else if wait.is_zero() || next.is_full_or_closed() {
                std::mem::swap(&mut next.group, group);
                return true;
            } else {
                // A scrape that is added meanwhile does not wake the thread.
                self.wake.wait_for(&mut next, wait);
            }
        }
    }

    /// Refuses further scrapes. [`Commits::run`] returns after the ones that wait.
    pub(super) fn close(&self) {
        self.next.lock().is_closed = true;
        self.wake.notify_one();
    }
}

impl<S> Next<S> {
    fn is_full_or_closed(&self) -> bool {
        self.is_closed || self.group.rows.len() >= ROWS_MAX
    }

    /// Makes room for more rows. Their memory is reserved first; a batch that grows exists twice.
    fn reserve(&mut self, row_count: usize) -> Result<()> {
        let rows = &mut self.group.rows;
        let row_count = rows.len() + row_count;
        let bytes = (row_count.next_power_of_two() * size_of::<Cell>()) as u64;
        if bytes > rows.heap_bytes() {
            self.held.grow(bytes)?;
            rows.reserve(row_count.next_power_of_two());
        }
        Ok(())
    }

    /// Releases the memory that neither the waiting rows nor `other` use.
    fn release_to(&mut self, other: &RowBatch) {
        let used = self.group.rows.heap_bytes() + other.heap_bytes();
        self.held.shrink_to(used);
    }
}

impl<S> CommitGroup<S> {
    fn empty() -> CommitGroup<S> {
        CommitGroup { rows: RowBatch::default(), scrapes: Vec::new(), generation: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use firn_model::{GroupId, SeriesRef, Slot};

    use super::*;

    fn rows(group: u64, row_count: u32) -> RowBatch {
        let mut rows = RowBatch::default();
        for slot in 0..row_count {
            rows.push(SeriesRef { group: GroupId(group), slot: Slot(slot) }, 1, 1.0);
        }
        rows
    }

    /// Runs the commits of `adding` and returns them: scrapes, rows and generation of each.
    /// `adding` gets a function that waits until commits with this number of rows in all have
    /// begun. None ends while `gate` is locked.
    fn commits_of(
        commits: &Commits<u64>,
        gate: &std::sync::Mutex<()>,
        adding: impl FnOnce(&dyn Fn(usize)),
    ) -> Vec<(Vec<u64>, usize, u32)> {
        let (sender, receiver) = channel();
        let (begun, has_begun) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let begun = std::sync::Mutex::new(begun);
                let sender = std::sync::Mutex::new(sender);
                let generation = std::cell::Cell::new(0);
                commits.run(
                    |rows, of| {
                        begun.lock().unwrap().send(rows.len()).unwrap();
                        drop(gate.lock());
                        generation.set(of);
                        Err(Error::closed("a test"))
                    },
                    |row_count, written, scrapes| {
                        assert!(written.is_err());
                        let commit = (std::mem::take(scrapes), row_count, generation.get());
                        sender.lock().unwrap().send(commit).unwrap();
                    },
                    || (),
                );
            });
            let begun_count = std::cell::Cell::new(0);
            adding(&|row_count| {
                while begun_count.get() < row_count {
                    begun_count.set(begun_count.get() + has_begun.recv().unwrap());
                }
            });
            commits.close();
        });
        receiver.try_iter().collect()
    }

    #[test]
    fn scrapes_that_end_soon_after_each_other_share_a_commit() {
        let budget = Budget::new(64 << 20);
        let commits = Commits::new(&budget);
        let gate = std::sync::Mutex::new(());
        let done = commits_of(&commits, &gate, |wait_for_rows| {
            let _closed = gate.lock();
            commits.add(1, &rows(1, 10), 7).unwrap();
            wait_for_rows(10);
            commits.add(2, &rows(2, 20), 7).unwrap();
            commits.add(3, &rows(3, 30), 6).unwrap();
        });
        assert_eq!(done, [(vec![1], 10, 7), (vec![2, 3], 50, 6)]);
        let (scrape, error) = commits.add(4, &rows(1, 1), 7).unwrap_err();
        assert_eq!((scrape, error.kind()), (4, &ErrorKind::Closed));
    }

    /// A refusal for one moment lost the samples of all targets that were scraped in it.
    #[test]
    fn rows_that_are_refused_for_the_moment_are_written_again() {
        let commits: Commits<u64> = Commits::new(&Budget::new(64 << 20));
        let tries = std::cell::Cell::new(0);
        let insist = |write: &dyn Fn(&mut RowBatch) -> Result<WriteReport>| {
            tries.set(0);
            let written = commits.insist(&mut rows(1, 10), |rows| {
                tries.set(tries.get() + 1);
                write(rows)
            });
            (tries.get(), written.map(|report| report.written).map_err(|e| e.kind().clone()))
        };
        let busy = || Err(Error::busy(1_000, "no memory"));
        let report = |rows: &RowBatch| {
            Ok(WriteReport { written: rows.len() as u64, ..WriteReport::default() })
        };
        let third = |rows: &mut RowBatch| if tries.get() < 3 { busy() } else { report(rows) };
        assert_eq!(insist(&third), (3, Ok(10)));
        let broken = |_: &mut RowBatch| Err(Error::unavailable("a disk"));
        assert_eq!(insist(&broken), (1, Err(ErrorKind::Unavailable)));
        let shortened = |rows: &mut RowBatch| {
            rows.clear();
            busy()
        };
        assert_eq!(insist(&shortened).0, 1);
        commits.close();
        assert_eq!(insist(&|_| busy()).0, 1);
    }

    #[test]
    fn many_rows_are_committed_at_once() {
        let budget = Budget::new(64 << 20);
        let commits = Commits::new(&budget);
        let half = rows(1, ROWS_MAX as u32 / 2);
        let done = commits_of(&commits, &std::sync::Mutex::default(), |wait_for_rows| {
            for scrape in 0..6 {
                commits.add(scrape, &half, 1).unwrap();
                if scrape % 2 == 1 {
                    wait_for_rows((scrape as usize + 1) * half.len());
                }
            }
        });
        let scrapes: Vec<u64> = done.iter().flat_map(|commit| commit.0.clone()).collect();
        assert_eq!(scrapes, [0, 1, 2, 3, 4, 5]);
        assert!(done.iter().all(|commit| commit.1 <= ROWS_MAX), "{done:?}");
    }

    #[test]
    fn rows_without_memory_are_refused() {
        let budget = Budget::new(1 << 20);
        let commits = Commits::new(&budget);
        let (scrape, error) = commits.add(1, &rows(1, 100_000), 1).unwrap_err();
        assert_eq!(scrape, 1);
        assert!(error.is_retriable(), "{error}");
        commits.add(2, &rows(1, 1_000), 1).unwrap();
        assert!(budget.usage().used_bytes >= 32_000);
        assert_eq!(
            commits_of(&commits, &std::sync::Mutex::default(), |_| ()),
            [(vec![2], 1_000, 1)]
        );
    }
}
