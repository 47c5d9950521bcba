//! Worker threads, on which requests become blocking calls. Named, counted, with a bounded queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Context;
use std::thread::JoinHandle;
use std::time::Duration;

use firn_model::{Error, Result, as_network_thread};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::machine::check_thread_mappings;

/// A pool of threads, and states that jobs use one after the other.
///
/// The thread and the state that were used last are used next: their memory is warm, and its amount
/// follows the number of concurrent jobs, not the number of threads.
pub(crate) struct Workers<S> {
    shared: Arc<PoolState<S>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Options of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerOptions {
    /// Threads are called `<name>-<n>`.
    pub(crate) name: &'static str,
    pub(crate) thread_count: usize,
    /// Jobs that may wait; further ones are refused.
    pub(crate) queue_len_max: usize,
    /// Called by a thread that has been idle for a while.
    pub(crate) on_idle: fn(),
}

// An idle thread releases memory after the first time. It does so once more after the second one,
// because other threads have freed memory of it meanwhile, such as a sent response.
const IDLE_TIMES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

const NO_THREAD: &str = "cannot start a worker thread; raise the limits on processes (ulimit -u) \
                         and address space (ulimit -v), or set --query-concurrency-max lower";

struct PoolState<S> {
    options: WorkerOptions,
    idle_states: Mutex<Vec<S>>,
    queue: Mutex<Queue<S>>,
    /// One for each thread, all with the queue's lock.
    wakers: Box<[Condvar]>,
}

struct Queue<S> {
    jobs: VecDeque<Job<S>>,
    /// The idle threads, longest first.
    idle: Vec<usize>,
    closed: bool,
}

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

impl<S: Send + 'static> Workers<S> {
    /// Starts the threads. `make_state` makes a state when none is idle; a state whose job panicked
    /// is dropped.
    ///
    /// # Errors
    /// `Unavailable` when a thread cannot be started.
    pub(crate) fn start(
        options: WorkerOptions,
        make_state: impl Fn() -> S + Send + Sync + 'static,
    ) -> Result<Workers<S>> {
        check_thread_mappings(options.thread_count)
            .map_err(|error| Error::unavailable(NO_THREAD).because(error))?;
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), idle: Vec::new(), closed: false });
        let idle_states = Mutex::new(Vec::new());
        let wakers = (0..options.thread_count).map(|_| Condvar::new()).collect();
        let shared = Arc::new(PoolState { options, idle_states, queue, wakers });
        let make_state = Arc::new(make_state);
        let mut threads = Vec::new();
        for idx in 0..options.thread_count {
            let (shared, make_state) = (Arc::clone(&shared), Arc::clone(&make_state));
            let thread = std::thread::Builder::new()
                .name(format!("{}-{idx}", options.name))
                .spawn(move || work(&shared, idx, &*make_state))
                .map_err(|e| Error::unavailable(NO_THREAD).because(e))?;
            threads.push(thread);
        }
        Ok(Workers { shared, threads: Mutex::new(threads) })
    }

    /// Runs `job` on a thread of the pool. It runs to its end even if this future is dropped.
    ///
    /// # Errors
    /// `Busy` when too many jobs wait, `Closed` after [`Workers::stop`], `Internal` when it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.submit(Box::new(move |state| {
            // The caller may have stopped waiting; the job is done anyway.
            let _ = sender.send(job(state));
        }))?;
        receiver
            .await
            .map_err(|_| Error::internal("a request panicked, which is a bug; see the log"))
    }

    fn submit(&self, job: Job<S>) -> Result<()> {
        let options = &self.shared.options;
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return Err(Error::closed("the server is stopping"));
        }
        if queue.jobs.len() >= options.queue_len_max {
            return Err(Error::busy(
                1_000,
                format!(
                    "{} requests wait for {} threads; retry later",
                    queue.jobs.len(),
                    options.name
                ),
            ));
        }
        queue.jobs.push_back(job);
        let woken = queue.idle.pop();
        drop(queue);
        if let Some(idx) = woken {
            self.shared.wakers[idx].notify_one();
        }
        Ok(())
    }

    /// Refuses further jobs, finishes the queued ones, and waits for the threads.
    pub(crate) fn stop(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wakers.iter().for_each(|waker| {
            waker.notify_one();
        });
        for thread in self.threads.lock().drain(..) {
            // Panics are caught inside the thread.
            let _ = thread.join();
        }
    }
}

fn work<S>(shared: &PoolState<S>, idx: usize, make_state: &impl Fn() -> S) {
    while let Some(job) = next_job(shared, idx) {
        let idle = shared.idle_states.lock().pop();
        let mut state = idle.unwrap_or_else(make_state);
        match catch_unwind(AssertUnwindSafe(|| job(&mut state))) {
            Ok(()) => shared.idle_states.lock().push(state),
            Err(_) => {
                tracing::error!(pool = shared.options.name, "a request panicked, which is a bug");
            }
        }
    }
}

fn next_job<S>(shared: &PoolState<S>, idx: usize) -> Option<Job<S>> {
    let mut queue = shared.queue.lock();
    let mut idle_times = IDLE_TIMES.into_iter();
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            return Some(job);
        }
        if queue.closed {
            return None;
        }
        queue.idle.push(idx);
        let at_most = idle_times.next();
        let is_idle = match at_most {
            Some(at_most) => shared.wakers[idx].wait_for(&mut queue, at_most).timed_out(),
            None => {
                shared.wakers[idx].wait(&mut queue);
                false
            }
        };
        // A submit has removed the thread from the list; a stop and a timeout have not.
        queue.idle.retain(|&waiting| waiting != idx);
        if is_idle {
            MutexGuard::unlocked(&mut queue, shared.options.on_idle);
        }
    }
}

/// Runs `work` and marks the thread that polls it as one that serves sockets: a debug build panics
/// if it parses a query or compiles a regular expression.
pub(crate) async fn on_network_thread<F: Future>(work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    let poll = |context: &mut Context<'_>| as_network_thread(true, || work.as_mut().poll(context));
    std::future::poll_fn(poll).await
}

impl<S> std::fmt::Debug for Workers<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.options.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    #[cfg(debug_assertions)]
    async fn a_parse_on_a_network_thread_panics_and_one_on_a_worker_does_not() {
        use firn_model::{MatchOp, Matcher, QueryContext};
        let options =
            WorkerOptions { name: "test", thread_count: 1, queue_len_max: 1, on_idle: || () };
        let workers = Workers::start(options, || ()).unwrap();
        let works: [fn(); 3] = [
            || drop(firn_promql::prepare("up", &QueryContext::unbounded())),
            || drop(firn_promql::parse_selector("up", &QueryContext::unbounded())),
            || drop(Matcher::new("a", MatchOp::Regex, "a[bc]")),
        ];
        for work in works {
            let on_network = on_network_thread(async { catch_unwind(work).is_err() });
            assert!(on_network.await, "a network thread must not compile");
            let on_worker = on_network_thread(workers.run(move |()| work()));
            assert!(on_worker.await.is_ok());
            work();
        }
        workers.stop();
    }

    #[test]
    fn too_many_threads_are_an_error() {
        let options = WorkerOptions {
            name: "test",
            thread_count: 1_000_000_000,
            queue_len_max: 1,
            on_idle: || (),
        };
        let error = Workers::start(options, || ()).unwrap_err().to_string();
        assert!(error.contains("--query-concurrency-max") && error.contains("mappings"), "{error}");
    }

    #[tokio::test]
    async fn jobs_reuse_states_panics_are_contained_and_the_queue_is_bounded() {
        static IDLE_COUNT: AtomicUsize = AtomicUsize::new(0);
        let on_idle = || {
            IDLE_COUNT.fetch_add(1, Ordering::Relaxed);
        };
        let options = WorkerOptions { name: "test", thread_count: 1, queue_len_max: 1, on_idle };
        let workers = Workers::start(options, || 0u32).unwrap();
        let count = |state: &mut u32| {
            *state += 1;
            *state
        };
        assert_eq!(workers.run(count).await.unwrap(), 1);
        assert_eq!(workers.run(count).await.unwrap(), 2);
        let panicked = workers.run::<()>(|_| panic!("on purpose")).await;
        assert!(panicked.unwrap_err().to_string().contains("bug"));
        assert_eq!(workers.run(count).await.unwrap(), 1, "the state is a new one");
        while IDLE_COUNT.load(Ordering::Relaxed) < IDLE_TIMES.len() {
            std::thread::yield_now();
        }

        let (release, gate) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = oneshot::channel();
        let blocked = workers.run(move |_| {
            let _ = started.send(());
            let _ = gate.recv();
        });
        let waiting = async {
            has_started.await.unwrap();
            let queued = workers.run(count);
            let refused = async {
                let refused = workers.run(count).await.unwrap_err();
                release.send(()).unwrap();
                refused
            };
            tokio::join!(queued, refused)
        };
        let (_, (queued, refused)) = tokio::join!(blocked, waiting);
        assert_eq!(queued.unwrap(), 2);
        assert!(refused.is_retriable());
        workers.stop();
        assert!(workers.run(count).await.is_err());
    }
}
