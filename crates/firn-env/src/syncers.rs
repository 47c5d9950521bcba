//! Threads that sync several files in parallel, so that this takes as long as the slowest sync.
//!
//! A single file is synced on the caller's thread. Threads start when first needed, sleep while
//! idle and end with the disk.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use firn_model::{Error, Result};

use crate::DiskFile;

/// The log has at most one stream per core, four by default. More files share these threads.
const THREAD_COUNT_MAX: usize = 8;

/// The threads of one disk.
#[derive(Default)]
pub(crate) struct Syncers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<JobQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    thread_count: usize,
    idle_count: usize,
    is_closed: bool,
}

struct Job {
    file: Arc<dyn DiskFile>,
    file_idx: usize,
    done: Sender<(usize, Result<()>)>,
}

impl Syncers {
    /// Syncs all of `files`: the first on this thread, the others on helper threads.
    pub(crate) fn sync(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        let Some((first, others)) = files.split_first() else { return Vec::new() };
        let (done, finished) = channel();
        for (other_idx, file) in others.iter().enumerate() {
            let job = Job { file: Arc::clone(file), file_idx: other_idx + 1, done: done.clone() };
            self.dispatch(job);
        }
        drop(done);
        let unfinished =
            || Err(Error::internal("a sync thread ended without a result; reopen the database"));
        let mut outcomes: Vec<Result<()>> = files.iter().map(|_| unfinished()).collect();
        outcomes[0] = first.sync();
        for (file_idx, outcome) in finished {
            outcomes[file_idx] = outcome;
        }
        outcomes
    }

    /// Passes the job to an idle or new thread. Runs it here if no thread could be started.
    fn dispatch(&self, job: Job) {
        let mut state = self.0.lock();
        let is_short = state.jobs.len() >= state.idle_count;
        if is_short && state.thread_count < THREAD_COUNT_MAX {
            let shared = Arc::clone(&self.0);
            let started = thread::Builder::new().name("firn-sync".into()).spawn(move || {
                shared.work();
            });
            state.thread_count += usize::from(started.is_ok());
        }
        if state.thread_count == 0 {
            drop(state);
            return job.run();
        }
        state.jobs.push_back(job);
        drop(state);
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    job.run();
                    state = self.lock();
                }
                None => {
                    state.idle_count += 1;
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle_count -= 1;
                }
            }
        }
    }

    /// No code that can panic runs while this lock is held.
    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn run(self) {
        // The caller waits until the last sender is dropped.
        let _ = self.done.send((self.file_idx, self.file.sync()));
    }
}

impl Drop for Syncers {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.wake.notify_all();
    }
}

impl fmt::Debug for Syncers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syncers({} threads)", self.0.lock().thread_count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// A file with a sync that returns when all files are being synced.
    #[derive(Debug)]
    struct BarrierFile {
        all: Arc<Barrier>,
        fails: bool,
    }

    impl DiskFile for BarrierFile {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
            unreachable!("never read")
        }

        fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
            unreachable!("never written")
        }

        fn preallocate(&self, _: u64) -> Result<()> {
            unreachable!("never preallocated")
        }

        fn sync(&self) -> Result<()> {
            self.all.wait();
            if self.fails { Err(Error::unavailable("broken")) } else { Ok(()) }
        }

        fn len(&self) -> Result<u64> {
            Ok(0)
        }
    }

    /// Sequential syncs would wait for ever.
    #[test]
    fn files_are_synced_in_parallel_with_one_result_each() {
        let syncers = Syncers::default();
        for round in 0..20 {
            let all = Arc::new(Barrier::new(4));
            let file = |idx| BarrierFile { all: Arc::clone(&all), fails: idx == round % 5 };
            let files: Vec<Arc<dyn DiskFile>> =
                (0..4).map(|idx| Arc::new(file(idx)) as Arc<dyn DiskFile>).collect();
            let outcomes = syncers.sync(&files);
            for (idx, outcome) in outcomes.iter().enumerate() {
                assert_eq!(outcome.is_err(), idx == round % 5, "round {round}, file {idx}");
            }
            // A thread that sent its result becomes idle shortly afterwards.
            let all_idle = |state: &JobQueue| state.idle_count == state.thread_count;
            while !all_idle(&syncers.0.lock()) {
                thread::yield_now();
            }
        }
        assert!(syncers.sync(&[]).is_empty());
        assert_eq!(syncers.0.lock().thread_count, 3, "idle threads are reused");
    }
}
