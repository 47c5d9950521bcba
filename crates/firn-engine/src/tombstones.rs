//! The tombstones of a database: those in force, those in the manifest, those to be applied soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::{Tombstone, Tombstones};
use firn_model::{CommitSeq, Mutex, Reservation, RwLock, ShardBits, ShardId};
use firn_tree::Deletes;

use crate::lock;
use crate::parts;
use crate::rooms::Rooms;

// Several deletes in a row are applied by one rewrite of the tables.
const CLEAN_AGE_MS: i64 = 60 * 60_000;

/// The tombstones of a database. Its locks are innermost, and no two are held together.
pub(crate) struct TombstoneSet {
    /// Replaced under `Rooms::view`.
    tombstones: RwLock<Arc<Tombstones>>,
    /// Memory of the tombstones.
    memory: Mutex<Reservation>,
    /// Those in the manifest, with the rows of their transactions in tables. Replaced under the
    /// manifest's lock; in a replica under `Rooms::view`.
    flushed: RwLock<Arc<Tombstones>>,
    /// Deletes up to this number are in the manifest, or were.
    flushed_through: AtomicU64,
    /// Deletes up to this number are applied to tables soon.
    clean_through: AtomicU64,
}

impl TombstoneSet {
    /// The manifest contains those up to `flushed`.
    pub(crate) fn new(
        tombstones: Tombstones,
        flushed: CommitSeq,
        mut memory: Reservation,
    ) -> TombstoneSet {
        memory.take(tombstones.heap_bytes());
        TombstoneSet {
            flushed: RwLock::new(&lock::FLUSHED_TOMBSTONES, Arc::new(tombstones.up_to(flushed))),
            tombstones: RwLock::new(&lock::TOMBSTONES, Arc::new(tombstones)),
            memory: Mutex::new(&lock::TOMBSTONE_MEMORY, memory),
            flushed_through: AtomicU64::new(flushed.0),
            clean_through: AtomicU64::new(0),
        }
    }

    /// The tombstones in force.
    pub(crate) fn all(&self) -> Arc<Tombstones> {
        Arc::clone(&self.tombstones.read())
    }

    /// Replaces the tombstones in force; `memory` is reserved for the additional ones. Called under
    /// `Rooms::view`. Returns the previous ones.
    pub(crate) fn install(&self, tombstones: Tombstones, memory: Reservation) -> Arc<Tombstones> {
        self.memory.lock().merge(memory);
        std::mem::replace(&mut *self.tombstones.write(), Arc::new(tombstones))
    }

    /// Releases the memory of tombstones that were removed.
    pub(crate) fn release(&self, bytes: u64) {
        self.memory.lock().shrink(bytes);
    }

    /// Those that the manifest does not contain yet.
    pub(crate) fn unflushed(&self) -> Tombstones {
        self.unflushed_of(&self.tombstones.read())
    }

    /// Those of `tombstones` that the manifest does not contain yet.
    pub(crate) fn unflushed_of(&self, tombstones: &Tombstones) -> Tombstones {
        tombstones.after(CommitSeq(self.flushed_through.load(Ordering::Relaxed)))
    }

    /// Those that the manifest contains. The others, and the rows of their transactions, may not be
    /// durable, so nothing durable may depend on them.
    fn flushed(&self) -> Arc<Tombstones> {
        Arc::clone(&self.flushed.read())
    }

    /// Takes over the tombstones of the slow tier's manifest, in a replica. The caller holds
    /// `Rooms::view`.
    pub(crate) fn follow(&self, tombstones: Tombstones) {
        let tombstones = Arc::new(tombstones);
        *self.flushed.write() = Arc::clone(&tombstones);
        *self.tombstones.write() = tombstones;
    }

    /// Records that the manifest contains those up to `through`. Called under the manifest's lock,
    /// before a table that is younger than one of them is visible.
    pub(crate) fn note_flushed(&self, through: CommitSeq) {
        let previous = self.flushed_through.fetch_max(through.0, Ordering::Relaxed);
        if previous < through.0 {
            self.list_flushed();
        }
    }

    /// Brings the list of flushed ones up to date. Called under the manifest's lock.
    pub(crate) fn list_flushed(&self) {
        let (all, through) = (self.all(), self.flushed_through.load(Ordering::Relaxed));
        let has_all = all.through().0 <= through;
        *self.flushed.write() = if has_all { all } else { Arc::new(all.up_to(CommitSeq(through))) };
    }

    /// Makes the tree apply deletes up to `through` as soon as it can.
    pub(crate) fn clean(&self, through: CommitSeq) {
        self.clean_through.fetch_max(through.0, Ordering::Relaxed);
    }

    /// Those that a whole state may name. A delete that only the log contains may be lost, or is
    /// not copied along with the state, and with it the rows of its transaction. Consistent with
    /// the tables while the manifest's lock is held.
    pub(crate) fn of_state(&self, rooms: &Rooms) -> Arc<Tombstones> {
        if mutant!(rooms, UnflushedDeletesNamed) { self.all() } else { self.flushed() }
    }

    /// The manifest part with `tombstones`; `None` if there are none.
    pub(crate) fn part(&self, rooms: &Rooms, tombstones: &Tombstones) -> Option<Vec<u8>> {
        let is_lost = mutant!(rooms, TombstonesNotInManifest);
        (!tombstones.is_empty() && !is_lost).then(|| parts::encode_tombstones(tombstones))
    }

    /// The deletes that the tree must know. Those that were requested or are old enough are applied
    /// to tables. A delete that only the log contains is younger than all tables, and with a
    /// relaxed `log.sync` a power failure may lose it: until it is flushed, the samples that it
    /// hides stay.
    pub(crate) fn of_tree(&self, rooms: &Rooms) -> Deletes {
        if mutant!(rooms, TombstonesForgottenAtMerge) {
            return Deletes::default();
        }
        let is_early = mutant!(rooms, UnflushedDeletesApplied);
        let tombstones = if is_early { self.all() } else { self.flushed() };
        let old = rooms.env.clock.now_ms().saturating_sub(CLEAN_AGE_MS);
        let is_old = |one: &(CommitSeq, &Arc<Tombstone>)| one.1.made_ms <= old;
        let oldest = tombstones.iter().take_while(is_old).last().map_or(0, |one| one.0.0);
        let requested = self.clean_through.load(Ordering::Relaxed);
        Deletes { tombstones, clean_through: CommitSeq(requested.max(oldest)) }
    }
}

/// The shards that a tombstone touches, ascending.
pub(crate) fn touched_shards(
    bits: ShardBits,
    tombstone: &Tombstone,
) -> impl Iterator<Item = ShardId> + use<> {
    let mut shards: Vec<ShardId> =
        tombstone.members().iter().map(|members| bits.shard(members.group)).collect();
    shards.sort_unstable();
    shards.dedup();
    shards.into_iter()
}
