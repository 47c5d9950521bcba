//! Detection of deadlocks in debug builds, before they happen: each test is a detector.
//!
//! Every watched lock belongs to a [`LockClass`]. The order in which threads take classes is
//! recorded for the whole process. A thread panics if it takes a lock in an order that contradicts
//! the recorded one, whether or not another thread waits at that moment. Reclaiming memory is a
//! class too: a reservation that may reclaim takes it, even if there is memory enough.
//!
//! In a release build all of this is nothing.

use std::marker::PhantomData;

/// Locks that are taken at one place in the order of locks, such as the locks of all shards.
#[derive(Debug)]
pub struct LockClass {
    #[cfg(debug_assertions)]
    watched: watch::WatchedClass,
}

/// A lock that this thread holds, as the order of locks sees it. Dropped after the lock.
#[derive(Debug)]
#[must_use = "the lock counts as released when this is dropped"]
pub struct HeldLock {
    #[cfg(debug_assertions)]
    _entry: watch::HeldEntry,
    /// Threads are watched, so a guard stays on its thread.
    _not_send: PhantomData<*const ()>,
}

impl LockClass {
    /// A class whose locks are held alone or in one order with locks of other classes. `name`
    /// appears in messages.
    pub const fn new(name: &'static str) -> LockClass {
        LockClass::make(name, false, false)
    }

    /// As [`LockClass::new`], for locks that are held for moments and by writers: nothing that may
    /// reclaim memory is reserved while one is held. Reclaiming may take such a lock.
    pub const fn brief(name: &'static str) -> LockClass {
        LockClass::make(name, true, false)
    }

    /// As [`LockClass::brief`], for locks of which one thread may hold several. The order within
    /// the class is not checked.
    pub const fn brief_many(name: &'static str) -> LockClass {
        LockClass::make(name, true, true)
    }

    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "nothing is watched"))]
    const fn make(name: &'static str, is_brief: bool, is_many: bool) -> LockClass {
        LockClass {
            #[cfg(debug_assertions)]
            watched: watch::WatchedClass::new(name, is_brief, is_many),
        }
    }

    /// Notes that this thread waits for the lock at `address` and then holds it. Call it before
    /// the thread waits.
    ///
    /// # Panics
    /// In a debug build, if another thread may hold the lock and wait for one of this thread's.
    #[inline]
    #[track_caller]
    pub fn wait_for(&'static self, address: usize) -> HeldLock {
        #[cfg(debug_assertions)]
        self.watched.check(address);
        self.hold(address)
    }

    /// Notes that this thread holds the lock at `address`, for which it did not wait.
    #[inline]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "nothing is watched"))]
    pub fn hold(&'static self, address: usize) -> HeldLock {
        HeldLock {
            #[cfg(debug_assertions)]
            _entry: watch::HeldEntry::new(&self.watched, address),
            _not_send: PhantomData,
        }
    }
}

/// Reclaiming memory: a thread that reserves memory waits for it, and holds it while caches release
/// theirs.
static RECLAIM: LockClass = LockClass::new("reclaiming memory");

/// Checks that this thread may reclaim memory: it holds no lock that reclaiming may wait for.
///
/// # Panics
/// In a debug build, if it does.
#[inline]
#[track_caller]
pub fn assert_may_reclaim() {
    drop(RECLAIM.wait_for(0));
}

/// Marks this thread as reclaiming until the result is dropped.
///
/// # Panics
/// As [`assert_may_reclaim`], and if it is reclaiming already.
#[track_caller]
pub fn reclaiming() -> HeldLock {
    RECLAIM.wait_for(0)
}

/// Runs `work` as if another thread ran it, which holds none of this thread's locks: for tests that
/// let one thread do the steps of several.
pub fn as_another_thread<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(debug_assertions)]
    let _others = watch::OtherThread::new();
    work()
}

#[cfg(debug_assertions)]
mod watch {
    use std::cell::RefCell;
    use std::fmt::Write as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, OnceLock, PoisonError};

    /// A class and the address of one of its locks.
    type HeldClass = (&'static WatchedClass, usize);

    const CLASS_COUNT_MAX: usize = 64;

    /// For each class a bit per class that some thread waited for while it held the first.
    static AFTER: [AtomicU64; CLASS_COUNT_MAX] = [const { AtomicU64::new(0) }; CLASS_COUNT_MAX];
    /// Names of classes, by number.
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

    thread_local! {
        /// The locks that this thread holds, by class and address.
        static HELD: RefCell<Vec<HeldClass>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug)]
    pub(super) struct WatchedClass {
        name: &'static str,
        is_brief: bool,
        is_many: bool,
        /// Assigned at the first use.
        number: OnceLock<usize>,
    }

    #[derive(Debug)]
    pub(super) struct HeldEntry {
        class: &'static WatchedClass,
        address: usize,
    }

    impl WatchedClass {
        pub(super) const fn new(name: &'static str, is_brief: bool, is_many: bool) -> WatchedClass {
            WatchedClass { name, is_brief, is_many, number: OnceLock::new() }
        }

        fn number(&self) -> usize {
            *self.number.get_or_init(|| {
                let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
                assert!(names.len() < CLASS_COUNT_MAX, "more than {CLASS_COUNT_MAX} lock classes");
                names.push(self.name);
                names.len() - 1
            })
        }

        #[track_caller]
        pub(super) fn check(&'static self, address: usize) {
            // A second panic would abort the process and hide the first.
            if std::thread::panicking() {
                return;
            }
            let broken = HELD.with_borrow(|held| {
                held.iter()
                    .find_map(|&(before, held_at)| self.broken_after(address, before, held_at))
            });
            if let Some(broken) = broken {
                panic!("{broken}");
            }
        }

        /// Records that this class is waited for while `before` is held. Returns the broken rule.
        fn broken_after(
            &'static self,
            address: usize,
            before: &'static WatchedClass,
            held_at: usize,
        ) -> Option<String> {
            if std::ptr::eq(self, before) {
                let is_same = address == held_at;
                return (is_same || !self.is_many).then(|| {
                    let which = if is_same { "the same" } else { "another" };
                    format!(
                        "lock order: {which} `{}` is taken twice by one thread: it waits for \
                         itself, or for a thread that waits for it",
                        self.name
                    )
                });
            }
            if std::ptr::eq(self, &super::RECLAIM.watched) && before.is_brief {
                return Some(format!(
                    "lock order: memory that may be reclaimed is reserved while `{}` is held: \
                     reserve it before, or only free memory",
                    before.name
                ));
            }
            let (first, second) = (before.number(), self.number());
            if AFTER[first].load(Ordering::Relaxed) & (1 << second) != 0 {
                return None;
            }
            let path = path(second, first);
            if path.is_empty() {
                AFTER[first].fetch_or(1 << second, Ordering::Relaxed);
                return None;
            }
            let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
            let mut message = format!(
                "lock order: `{}` is taken while `{}` is held, but elsewhere",
                self.name, before.name
            );
            for pair in path.windows(2) {
                let _ = write!(message, " `{}` while `{}`,", names[pair[1]], names[pair[0]]);
            }
            message.push_str(" so threads may wait for each other for ever");
            Some(message)
        }
    }

    /// The classes on the shortest recorded way from one class to another; empty if there is none.
    fn path(from: usize, to: usize) -> Vec<usize> {
        let mut previous: [Option<usize>; CLASS_COUNT_MAX] = [None; CLASS_COUNT_MAX];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(class) = queue.pop_front() {
            if class == to {
                let mut path: Vec<usize> =
                    std::iter::successors(Some(to), |&at| previous[at]).collect();
                path.reverse();
                return path;
            }
            let after = AFTER[class].load(Ordering::Relaxed);
            for next in (0..CLASS_COUNT_MAX).filter(|next| after & (1 << next) != 0) {
                if next != from && previous[next].is_none() {
                    previous[next] = Some(class);
                    queue.push_back(next);
                }
            }
        }
        Vec::new()
    }

    /// Hides the locks that this thread holds until it is dropped.
    pub(super) struct OtherThread(Vec<HeldClass>);

    impl OtherThread {
        pub(super) fn new() -> OtherThread {
            OtherThread(HELD.take())
        }
    }

    impl Drop for OtherThread {
        fn drop(&mut self) {
            HELD.set(std::mem::take(&mut self.0));
        }
    }

    impl HeldEntry {
        pub(super) fn new(class: &'static WatchedClass, address: usize) -> HeldEntry {
            HELD.with_borrow_mut(|held| held.push((class, address)));
            HeldEntry { class, address }
        }
    }

    impl Drop for HeldEntry {
        fn drop(&mut self) {
            // The list is dropped already if a guard is in another thread-local value.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                let is_this = |one: &(&WatchedClass, usize)| {
                    std::ptr::eq(one.0, self.class) && one.1 == self.address
                };
                if let Some(idx) = held.iter().rposition(is_this) {
                    held.remove(idx);
                }
            });
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{Budget, Mutex, Pool, RwLock};

    /// The panic of `work`.
    fn panic_of(work: impl FnOnce()) -> String {
        let work = std::panic::AssertUnwindSafe(work);
        let panic = std::panic::catch_unwind(work).expect_err("a panic");
        panic.downcast_ref::<String>().expect("a text").clone()
    }

    #[test]
    fn an_order_that_contradicts_another_is_found_without_waiting() {
        static A: LockClass = LockClass::new("a");
        static B: LockClass = LockClass::new("b");
        static C: LockClass = LockClass::new("c");
        let (a, b, c) = (Mutex::new(&A, ()), RwLock::new(&B, ()), Mutex::new(&C, ()));
        let hold_both = || {
            let _a = a.lock();
            drop(b.read());
        };
        (0..2).for_each(|_| hold_both());
        {
            let _b = b.write();
            let _c = c.lock();
            drop(a.try_lock().expect("a try never waits, so it has no order"));
        }
        let found = panic_of(|| {
            let _c = c.lock();
            drop(a.lock());
        });
        assert_eq!(
            found,
            "lock order: `a` is taken while `c` is held, but elsewhere `b` while `a`, `c` while \
             `b`, so threads may wait for each other for ever"
        );
        let _free = (a.lock(), b.write(), c.lock());
    }

    #[test]
    fn a_lock_that_its_own_thread_holds_is_not_waited_for() {
        static ONE: LockClass = LockClass::new("one");
        static MANY: LockClass = LockClass::brief_many("many");
        let one = [RwLock::new(&ONE, 1), RwLock::new(&ONE, 2)];
        let many = [RwLock::new(&MANY, 3), RwLock::new(&MANY, 4)];
        let twice = |first: &RwLock<i32>, second: &RwLock<i32>| *first.read() + *second.read();
        let found = panic_of(|| assert_eq!(twice(&one[0], &one[0]), 2));
        assert!(found.starts_with("lock order: the same `one` is taken twice"), "{found}");
        let found = panic_of(|| assert_eq!(twice(&one[0], &one[1]), 3));
        assert!(found.starts_with("lock order: another `one` is taken twice"), "{found}");
        let found = panic_of(|| assert_eq!(twice(&many[0], &many[0]), 6));
        assert!(found.starts_with("lock order: the same `many`"), "{found}");
        assert_eq!(twice(&many[0], &many[1]), 7);
        let _held = one[0].read();
        as_another_thread(|| assert_eq!(*one[0].read(), 1));
        let found = panic_of(|| assert_eq!(*one[0].read(), 1));
        assert!(found.starts_with("lock order: the same `one`"), "{found}");
    }

    #[test]
    fn memory_is_not_reclaimed_under_a_brief_lock_nor_by_a_thread_that_reclaims() {
        static BRIEF: LockClass = LockClass::brief("brief");
        let budget = Budget::unlimited();
        let lock = Mutex::new(&BRIEF, ());
        let locked = |work: &dyn Fn()| {
            let _locked = lock.lock();
            work();
        };
        let mut held = budget.reserve(Pool::Query, 100).unwrap();
        let works: [&dyn Fn(); 3] = [
            &|| drop(budget.reserve(Pool::Query, 1).unwrap()),
            &|| drop(budget.part(10).reserve(Pool::Jobs, 1).unwrap()),
            &|| budget.empty(Pool::Requests).cover(0).unwrap(),
        ];
        for work in works {
            let found = panic_of(|| locked(work));
            assert!(found.contains("is reserved while `brief` is held"), "{found}");
        }
        locked(&|| drop(budget.reserve(Pool::Head, 1).unwrap()));
        locked(&|| drop(budget.part(10).of_free().reserve(Pool::Query, 1).unwrap()));
        {
            let _locked = lock.lock();
            assert!(held.cover_of_free(200));
        }
        let _reclaiming = reclaiming();
        let found = panic_of(|| held.grow(1).unwrap());
        assert!(found.contains("the same `reclaiming memory`"), "{found}");
        locked(&|| ());
    }
}
