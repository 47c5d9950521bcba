//! Sim: a simulated world drawn from a seed, for tests only.
//!
//! **Owns** [`SimDisk`], [`SimBucket`] and [`SimClock`] (deterministic implementations of the seams
//! of `env`, in memory), [`Faults`] (failures and power cuts), the [`Oracle`] (a map of the samples
//! that must or may be readable), and [`conformance`], the suite that all disks and buckets pass.
//!
//! **Never** starts a thread, sleeps, reads the machine's clock or uses a random source other than
//! its seed: the same seed and the same calls produce the same world, bit for bit.
//!
//! **Invariants**: data covered by [`firn_env::DiskFile::sync`] survives every crash, and on memory
//! the lines that were written back and fenced. Other data survives, is lost or is torn at 512-byte
//! sectors or 64-byte lines, depending on the seed. A name survives once its folder was synced; a
//! rename is atomic; an acknowledged `put` is permanent.
//!
//! **Path** of a test: build a [`Sim`], pass [`Sim::env`] to the code under test, plan a crash with
//! [`Faults::crash_at`], run, call [`Sim::restart`], open again and check with the oracle.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `rng`, `faults`, `disk` (`sectors`, `names`), `bucket`, `clock`, `wrappers`,
//! `conformance`, `observed`, `oracle`, `seeds`.

#![forbid(unsafe_code)]

mod bucket;
mod clock;
pub mod conformance;
mod disk;
mod faults;
mod observed;
mod oracle;
mod rng;
mod seeds;
mod wrappers;

use std::sync::Arc;

use firn_env::{Disk, Env};

pub use bucket::SimBucket;
pub use clock::SimClock;
pub use disk::SimDisk;
pub use faults::{Faults, Operation};
pub use observed::ObservedSamples;
pub use oracle::{Oracle, PieceId};
pub use rng::Rng;
pub use seeds::{for_cases, for_seeds};
pub use wrappers::{Record, RecordingDisk, SyncFaultDisk, ZeroFile};

/// One simulated machine and its object store. Clones are the same world.
#[derive(Clone, Debug)]
pub struct Sim {
    /// Failures and power cuts; shared by disk and bucket.
    pub faults: Faults,
    /// The machine's disk.
    pub disk: SimDisk,
    /// The machine's byte-addressable memory for the log, if there is any.
    pub memory: Option<SimDisk>,
    /// The object store.
    pub bucket: SimBucket,
    /// The clock; only tests and sleeps advance it.
    pub clock: SimClock,
}

impl Sim {
    /// A world without faults: an empty, unlimited disk, an empty bucket, a clock at 2026-01-01.
    pub fn new(seed: u64) -> Sim {
        let (faults, clock) = (Faults::new(seed), SimClock::new());
        faults.set_clock(clock.clone());
        Sim {
            disk: SimDisk::new(faults.clone()),
            memory: None,
            bucket: SimBucket::new(faults.clone()),
            clock,
            faults,
        }
    }

    /// A world with byte-addressable memory.
    pub fn with_memory(seed: u64) -> Sim {
        let sim = Sim::new(seed);
        Sim { memory: Some(SimDisk::of_memory(sim.faults.clone())), ..sim }
    }

    /// The world as the code under test sees it.
    pub fn env(&self) -> Env {
        Env {
            disk: Arc::new(self.disk.clone()),
            log: self.memory.clone().map(|memory| Arc::new(memory) as Arc<dyn Disk>),
            bucket: Arc::new(self.bucket.clone()),
            clock: Arc::new(self.clock.clone()),
        }
    }

    /// Cuts the power now: every operation fails with `Closed` until [`Sim::restart`].
    pub fn crash(&self) {
        self.disk.crash();
        self.memory.iter().for_each(SimDisk::crash);
    }

    /// Restarts the machine after a power loss (cuts the power first if it is on). Files and locks
    /// from before stay dead; planned crashes and failures are cleared, rates are kept.
    pub fn restart(&self) {
        self.crash();
        self.memory.iter().for_each(SimDisk::restart);
        self.disk.restart();
    }
}
