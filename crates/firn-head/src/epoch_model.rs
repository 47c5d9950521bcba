//! A model of readers, a flush, conversions and the reclaimer: `epoch.rs` compiled against a
//! scheduler that tries many interleavings of its locks and atomics.
//!
//! The head is one list of pieces of memory, each with one row. A flush copies rows to `tables`. A
//! reader must find every row that was there when it registered, repeatedly, whatever is replaced,
//! flushed and recycled meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shuttle::thread::{spawn, yield_now};

#[expect(clippy::duplicate_mod, reason = "this copy names the model's locks")]
#[expect(dead_code, reason = "the model uses a part of the interface")]
#[path = "epoch.rs"]
mod epoch;

use epoch::{Epochs, Lease, Memory, Reader};
use sync::{AtomicU64, Ordering};

/// The locks of the model, with the interface that `epoch.rs` expects.
mod sync {
    use std::ops::{Deref, DerefMut};

    pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> impl DerefMut<Target = T> {
            self.0.lock().unwrap()
        }
    }

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> impl Deref<Target = T> {
            self.0.read().unwrap()
        }

        pub(crate) fn write(&self) -> impl DerefMut<Target = T> {
            self.0.write().unwrap()
        }
    }
}

type Rows = Arc<BTreeSet<u32>>;
type Block = Arc<Memory<Rows>>;

const BYTES: u64 = 10;
const ROWS: u32 = 4;

/// Deliberate bugs; the model must detect each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The epoch of a flush begins before its tables exist.
    EpochBeforeSwap,
    /// Memory counts as replaced for all readers at once.
    ReadersForgotten,
    /// Memory records a later epoch than the one in which it was made.
    MadeTooLate,
    /// The list's version is incremented after a conversion, not before its epoch begins.
    VersionAfterEpoch,
}

/// A head of one shard, and tables. `lists` has the shard's lock, `swap` is the engine's. A reader
/// with lists of the present `version` reuses them without the lock, because another shard has
/// changed.
struct World {
    epochs: Arc<Epochs<Rows>>,
    version: AtomicU64,
    seen: shuttle::sync::Mutex<Option<(u64, Lists)>>,
    lists: shuttle::sync::Mutex<Lists>,
    swap: shuttle::sync::RwLock<()>,
    tables: shuttle::sync::Mutex<Rows>,
    mutant: Mutant,
}

#[derive(Default, Clone)]
struct Lists {
    cold: Vec<Block>,
    hot: Vec<Block>,
}

struct View {
    reader: Reader<Rows>,
    lists: Lists,
    tables: Rows,
}

impl World {
    fn new(cooling_bytes_max: u64, mutant: Mutant) -> Arc<World> {
        let world = World {
            epochs: Arc::new(Epochs::new(cooling_bytes_max)),
            version: AtomicU64::new(0),
            seen: shuttle::sync::Mutex::default(),
            lists: shuttle::sync::Mutex::default(),
            swap: shuttle::sync::RwLock::new(()),
            tables: shuttle::sync::Mutex::default(),
            mutant,
        };
        for row in 0..ROWS {
            world.lists.lock().unwrap().cold.push(world.block([row].into()));
        }
        Arc::new(world)
    }

    fn block(&self, rows: BTreeSet<u32>) -> Block {
        let late = u64::from(self.mutant == Mutant::MadeTooLate);
        Arc::new(Memory::new(Arc::new(rows), self.epochs.now() + late))
    }

    fn view(&self) -> View {
        let _swap = self.swap.read().unwrap();
        let reader = Epochs::register(&self.epochs);
        let mut seen = self.seen.lock().unwrap();
        let lists = match &*seen {
            Some((version, lists)) if *version == self.version.load(Ordering::Acquire) => {
                lists.clone()
            }
            _ => {
                let lists = self.lists.lock().unwrap();
                let version = self.version.load(Ordering::Acquire);
                seen.insert((version, lists.clone())).1.clone()
            }
        };
        drop(seen);
        reader.seen_all();
        let tables = Arc::clone(&self.tables.lock().unwrap());
        View { reader, lists, tables }
    }

    /// Merges the two oldest unflushed blocks.
    fn convert(&self) {
        let mut lists = self.lists.lock().unwrap();
        if lists.cold.len() < 2 {
            return;
        }
        let inputs: Vec<Block> = lists.cold.drain(..2).collect();
        let rows =
            inputs.iter().flat_map(|block| block.content().iter().copied().collect::<Vec<_>>());
        let output = self.block(rows.collect());
        lists.cold.insert(0, output);
        if self.mutant != Mutant::VersionAfterEpoch {
            self.version.fetch_add(1, Ordering::Release);
        }
        let epoch = self.epochs.advance();
        for input in inputs {
            self.retire(input, epoch);
        }
        self.version.fetch_add(1, Ordering::Release);
        drop(lists);
        self.epochs.settle();
    }

    /// Copies the rows of the head to tables; its memory turns hot.
    fn flush(&self) {
        if self.mutant == Mutant::EpochBeforeSwap {
            let epoch = self.epochs.advance();
            let lists = self.lists.lock().unwrap();
            lists.cold.iter().for_each(|block| block.replaced_at(epoch));
        }
        yield_now();
        let _swap = self.swap.write().unwrap();
        let mut lists = self.lists.lock().unwrap();
        let flushed = std::mem::take(&mut lists.cold);
        let epoch = self.epochs.advance();
        let mut tables = BTreeSet::clone(&self.tables.lock().unwrap());
        for block in &flushed {
            tables.extend(block.content().iter());
            block.replaced_at(epoch);
        }
        lists.hot.extend(flushed);
        *self.tables.lock().unwrap() = Arc::new(tables);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn recycle(&self) {
        let mut lists = self.lists.lock().unwrap();
        for block in std::mem::take(&mut lists.hot) {
            let epoch = block.replaced();
            self.retire(block, epoch);
        }
        self.version.fetch_add(1, Ordering::Release);
        drop(lists);
        self.epochs.settle();
    }

    fn retire(&self, block: Block, epoch: u64) {
        let epoch = if self.mutant == Mutant::ReadersForgotten { 0 } else { epoch };
        block.replaced_at(epoch);
        self.epochs.cool(block, BYTES);
    }
}

impl View {
    /// Every row, from memory or, if that was released, from tables; `None` if memory was revoked.
    fn read(&self) -> Option<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        let mut is_released = false;
        for block in self.lists.hot.iter().chain(&self.lists.cold) {
            match block.lease(&self.reader) {
                Lease::Held(rows) => {
                    // The lease is held during the read.
                    yield_now();
                    found.extend(rows.iter());
                }
                Lease::Released => is_released = true,
                Lease::Revoked => return None,
            }
        }
        if is_released || self.lists.hot.is_empty() {
            found.extend(self.tables.iter());
        }
        Some(found)
    }
}

/// Runs readers beside a thread that converts, flushes and recycles. Returns whether a reader saw a
/// wrong result.
fn run(cooling_bytes_max: u64, mutant: Mutant) -> bool {
    let world = World::new(cooling_bytes_max, mutant);
    let all: BTreeSet<u32> = (0..ROWS).collect();
    // Recorded, not asserted: a panic here would drop other readers in the middle of a step.
    let is_wrong = Arc::new(AtomicBool::new(false));
    let reader = |world: Arc<World>, all: BTreeSet<u32>| {
        let is_wrong = Arc::clone(&is_wrong);
        move || {
            for _ in 0..2 {
                let view = world.view();
                for _ in 0..2 {
                    let is_right = match view.read() {
                        Some(found) => found == all,
                        None => cooling_bytes_max < u64::MAX,
                    };
                    if !is_right {
                        is_wrong.store(true, Relaxed);
                    }
                    yield_now();
                }
            }
        }
    };
    let threads = [
        spawn(reader(Arc::clone(&world), all.clone())),
        spawn(reader(Arc::clone(&world), all)),
        spawn({
            let world = Arc::clone(&world);
            move || {
                world.convert();
                world.flush();
                world.recycle();
            }
        }),
        spawn({
            let world = Arc::clone(&world);
            move || world.convert()
        }),
    ];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // No reader is left: all memory that left the head is free.
    let usage = world.epochs.usage();
    assert_eq!(usage.bytes, 0);
    let lists = world.lists.lock().unwrap();
    assert!(usage.released_bytes > 0 && lists.hot.len() + lists.cold.len() < ROWS as usize);
    assert!(cooling_bytes_max < u64::MAX || usage.revoked_bytes == 0);
    is_wrong.load(Relaxed)
}

#[test]
fn invariant_3_nothing_is_reclaimed_under_a_reader_that_has_no_other_source() {
    (0..5).for_each(|_| check(|| assert!(!run(u64::MAX, Mutant::None))));
}

#[test]
fn over_the_limit_readers_fail_and_never_see_a_part() {
    check(|| assert!(!run(BYTES, Mutant::None)));
}

#[test]
fn mutants_are_detected() {
    for mutant in [
        Mutant::EpochBeforeSwap,
        Mutant::ReadersForgotten,
        Mutant::MadeTooLate,
        Mutant::VersionAfterEpoch,
    ] {
        let found = Arc::new(AtomicBool::new(false));
        let model = {
            let found = Arc::clone(&found);
            move || found.store(run(u64::MAX, mutant) || found.load(Relaxed), Relaxed)
        };
        // Some mutants need one order of steps in thousands.
        let is_detected = (0..30).any(|_| {
            check(model.clone());
            found.load(Relaxed)
        });
        assert!(is_detected, "the model does not detect {mutant:?}");
    }
}

/// Many random schedules, and many with few, well placed switches.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), 1_000);
    shuttle::check_pct(model, 1_000, 3);
}
