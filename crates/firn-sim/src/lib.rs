//! Sim: a simulated world drawn from a seed, for tests only.
//!
//! **Owns** [`SimDisk`], [`SimBucket`] and [`SimClock`] (the seams of `env`, deterministic, in
//! memory), [`Faults`] (what fails, when the power goes), and the [`Oracle`] (a plain map that knows
//! what must be readable and what may be).
//!
//! **Never** starts a thread, sleeps, reads the machine's clock or draws from another source than its
//! seed: the same seed and the same calls give the same world, bit for bit.
//!
//! **Invariants**: what [`firn_env::DiskFile::sync`] covered survives every crash, and on memory what was written back and
//! fenced; what was not covered survives, is lost or is torn at 512-byte sectors or 64-byte lines, as the seed says; a name survives once
//! its folder was synced, a rename is never half done; an acknowledged `put` is there for ever.
//!
//! The way of a test: build a [`Sim`], give [`Sim::env`] to the code under test, plan its end with
//! [`Faults::crash_at`], run, call [`Sim::restart`], open again and ask the oracle.
//!
//! Reading order: `rng`, `faults`, `disk` (`sectors`, `names`), `bucket`, `clock`, `wrappers`, `seen`,
//! `oracle`, `seeds`.

#![forbid(unsafe_code)]

mod bucket;
mod clock;
pub mod conformance;
mod disk;
mod faults;
mod oracle;
mod rng;
mod seeds;
mod seen;
mod wrappers;

use std::sync::Arc;

use firn_env::{Disk, Env};

pub use bucket::SimBucket;
pub use clock::SimClock;
pub use disk::SimDisk;
pub use faults::{Faults, Operation};
pub use oracle::{Oracle, PieceId};
pub use rng::Rng;
pub use seeds::{for_places, for_seeds};
pub use seen::Seen;
pub use wrappers::{LyingDisk, Record, RecordingDisk};

/// One simulated machine and its object store. Clones are the same world.
#[derive(Clone, Debug)]
pub struct Sim {
    /// What goes wrong; shared by disk and bucket.
    pub faults: Faults,
    /// The machine's disk.
    pub disk: SimDisk,
    /// Its byte-addressable memory, where the log lies if there is any.
    pub memory: Option<SimDisk>,
    /// The object store.
    pub bucket: SimBucket,
    /// The clock; it moves only when told.
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

    /// The same with byte-addressable memory.
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

    /// The machine comes back after a power loss (which happens now if it had not). Open files and
    /// locks of before stay dead; planned crashes and failures are forgotten, rates are kept.
    pub fn restart(&self) {
        self.crash();
        self.memory.iter().for_each(SimDisk::restart);
        self.disk.restart();
    }
}
