//! The tombstones of a database: those in force, those in the manifest, those to be applied soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::{MemberLists, Tombstone, Tombstones};
use firn_model::{CommitSeq, Error, Mutex, Pool, Reservation, Result, RwLock, ShardBits, ShardId};
use firn_tree::Deletes;

use crate::lock;
use crate::parts;
use crate::pressure::Pressure;
use crate::rooms::Rooms;
use crate::stored_tombstones::StoredTombstones;

// Each costs every reader a check, and ends the runs of the shards that it touches.
const TOMBSTONE_COUNT_MAX: usize = 10_000;
// After this many ended runs a flush merges them.
const UNFLUSHED_COUNT_MAX: usize = 64;
// Several deletes in a row are applied by one rewrite of the tables.
const CLEAN_AGE_MS: i64 = 60 * 60_000;
// This many are applied at once. They share one rewrite of each table that they touch, so a delete
// pays for at most 1/1,250 of it, and seven times as many may arrive meanwhile.
const CLEAN_COUNT: usize = TOMBSTONE_COUNT_MAX / 8;
// So are at least `CLEAN_COUNT_MIN` with this part of the memory limit, because each hides other
// members: in 128 MiB 8 MiB, which are 350,000 groups.
const CLEAN_BYTES_FRACTION: u64 = 16;
const CLEAN_COUNT_MIN: usize = UNFLUSHED_COUNT_MAX;
// A refused client retries after this time, in which a few tables are rewritten.
const RETRY_MS: u64 = 10_000;

/// The tombstones of a database. Its locks are innermost, and no two are held together.
pub(crate) struct TombstoneSet {
    /// Replaced under `Rooms::view`.
    tombstones: RwLock<Arc<Tombstones>>,
    /// Memory of the tombstones, without members.
    memory: Mutex<Reservation>,
    /// Also of deletes that are about to be logged, or that only a reader has.
    members: Mutex<CountedMembers>,
    /// Those in the manifest, with the rows of their transactions in tables. Replaced under the
    /// manifest's lock; in a replica under `Rooms::view`.
    flushed: RwLock<Arc<Tombstones>>,
    /// Deletes up to this number are in the manifest, or were.
    flushed_through: AtomicU64,
    /// Deletes up to this number are applied to tables soon.
    clean_through: AtomicU64,
}

/// The members of tombstones, equal ones once, and their memory.
struct CountedMembers {
    lists: MemberLists,
    memory: Reservation,
}

impl CountedMembers {
    fn release_unused(&mut self) {
        self.memory.shrink(self.lists.release_unused());
    }
}

impl TombstoneSet {
    /// The manifest contains those up to `flushed`.
    pub(crate) fn new(stored: StoredTombstones, flushed: CommitSeq) -> TombstoneSet {
        let tombstones = stored.to_set();
        let (lists, of_members, memory) = stored.into_memory();
        let members = CountedMembers { lists, memory: of_members };
        TombstoneSet {
            flushed: RwLock::new(&lock::FLUSHED_TOMBSTONES, Arc::new(tombstones.up_to(flushed))),
            tombstones: RwLock::new(&lock::TOMBSTONES, Arc::new(tombstones)),
            memory: Mutex::new(&lock::TOMBSTONE_MEMORY, memory),
            members: Mutex::new(&lock::TOMBSTONE_MEMBERS, members),
            flushed_through: AtomicU64::new(flushed.0),
            clean_through: AtomicU64::new(0),
        }
    }

    /// The tombstones in force.
    pub(crate) fn all(&self) -> Arc<Tombstones> {
        Arc::clone(&self.tombstones.read())
    }

    /// Makes `deletes` share the members of equal tombstones, and reserves their memory before they
    /// are logged. Returns the memory without that of members, which is released by itself.
    ///
    /// # Errors
    /// `Busy` without memory; a large part of it that tombstones hold is released soon.
    pub(crate) fn admit(
        &self,
        rooms: &Rooms,
        pressure: &Pressure,
        deletes: &mut [Arc<Tombstone>],
    ) -> Result<Reservation> {
        let mut new = MemberLists::default();
        {
            let mut known = self.members.lock();
            known.release_unused();
            for deleted in &mut *deletes {
                let deleted = Arc::make_mut(deleted);
                if !known.lists.share(deleted) {
                    new.add(deleted);
                }
            }
        }
        let own_bytes = Tombstone::OWN_BYTES * deletes.len() as u64;
        let mut memory = pressure
            .reserve(rooms, Pool::Index, own_bytes + new.heap_bytes())
            .inspect_err(|_| self.relieve(rooms))?;
        drop(new);
        let mut known = self.members.lock();
        for deleted in deletes {
            // Another delete may have added them meanwhile.
            let added = known.lists.add(Arc::make_mut(deleted));
            known.memory.move_from(&mut memory, added);
        }
        drop(known);
        memory.shrink(memory.bytes() - own_bytes);
        Ok(memory)
    }

    /// # Errors
    /// `Busy` if too many wait to be applied; they are applied soon.
    pub(crate) fn check_count(&self, rooms: &Rooms, more: usize) -> Result<()> {
        if more == 0 || self.all().len() + more <= TOMBSTONE_COUNT_MAX {
            return Ok(());
        }
        self.relieve(rooms);
        Err(Error::busy(
            RETRY_MS,
            format!(
                "delete refused: {TOMBSTONE_COUNT_MAX} deletes wait until background work has \
                 applied them to tables; retry later, or apply them at once with \
                 /api/v1/admin/tsdb/clean_tombstones"
            ),
        ))
    }

    /// Makes the tree apply all tombstones soon, if they are many.
    fn relieve(&self, rooms: &Rooms) {
        let all = self.all();
        let bytes_max = rooms.options.memory_bytes_max / CLEAN_BYTES_FRACTION;
        if all.len() >= CLEAN_COUNT || all.heap_bytes() >= bytes_max {
            self.clean(all.through());
            rooms.wakeup.request_flush();
        }
    }

    /// Releases the memory of members that no tombstone hides any more. Called by maintenance.
    pub(crate) fn release_unused(&self) {
        self.members.lock().release_unused();
    }

    /// Replaces the tombstones in force; `memory` is reserved for the additional ones. Called under
    /// `Rooms::view`. Returns the previous ones.
    pub(crate) fn install(&self, tombstones: Tombstones, memory: Reservation) -> Arc<Tombstones> {
        self.memory.lock().merge(memory);
        std::mem::replace(&mut *self.tombstones.write(), Arc::new(tombstones))
    }

    /// Releases the memory of `count` tombstones that were removed.
    pub(crate) fn release(&self, count: usize) {
        self.memory.lock().shrink(Tombstone::OWN_BYTES * count as u64);
    }

    /// Whether a flush should move tombstones from the log to the manifest.
    pub(crate) fn is_flush_due(&self, rooms: &Rooms) -> bool {
        let unflushed = self.unflushed();
        unflushed.len() >= UNFLUSHED_COUNT_MAX
            || unflushed.heap_bytes() >= rooms.options.memory_bytes_max / CLEAN_BYTES_FRACTION
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
    pub(crate) fn follow(&self, tombstones: Arc<Tombstones>) {
        *self.flushed.write() = Arc::clone(&tombstones);
        *self.tombstones.write() = tombstones;
    }

    /// Takes over the memory of the tombstones of [`TombstoneSet::follow`].
    pub(crate) fn replace_memory(&self, tombstones: StoredTombstones) {
        let (lists, of_members, memory) = tombstones.into_memory();
        *self.members.lock() = CountedMembers { lists, memory: of_members };
        *self.memory.lock() = memory;
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

    /// The deletes that the tree must know. Those that were requested, are many or are old enough
    /// are applied to tables. A delete that only the log contains is younger than all tables, and
    /// with a relaxed `log.sync` a power failure may lose it: until it is flushed, the samples that
    /// it hides stay.
    pub(crate) fn of_tree(&self, rooms: &Rooms) -> Deletes {
        if mutant!(rooms, TombstonesForgottenAtMerge) {
            return Deletes::default();
        }
        let is_early = mutant!(rooms, UnflushedDeletesApplied);
        let tombstones = if is_early { self.all() } else { self.flushed() };
        let old = rooms.env.clock.now_ms().saturating_sub(CLEAN_AGE_MS);
        let is_old = |one: &(CommitSeq, &Arc<Tombstone>)| one.1.made_ms <= old;
        let oldest = tombstones.iter().take_while(is_old).last().map_or(0, |one| one.0.0);
        self.clean_if_many(rooms, &tombstones);
        let requested = self.clean_through.load(Ordering::Relaxed);
        Deletes { tombstones, clean_through: CommitSeq(requested.max(oldest)) }
    }

    /// Starts to apply `tombstones` if many were added since the last time. Earlier ones that stay,
    /// because they touch a damaged table or the slow tier is down, do not count again.
    fn clean_if_many(&self, rooms: &Rooms, tombstones: &Tombstones) {
        let added = tombstones.after(CommitSeq(self.clean_through.load(Ordering::Relaxed)));
        let bytes_max = rooms.options.memory_bytes_max / CLEAN_BYTES_FRACTION;
        let is_large = || added.len() >= CLEAN_COUNT_MIN && added.heap_bytes() >= bytes_max;
        if added.len() >= CLEAN_COUNT || is_large() {
            tracing::info!("applying {} deletes to tables in the background", added.len());
            self.clean(added.through());
        }
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
