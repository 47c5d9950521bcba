//! The engine's own durable facts, and the one lock under which they change.

use firn_model::{CommitSeq, Mutex, Result, ShardId};

use crate::edit::{Edit, Room};
use crate::folder::Folder;
use crate::lock;
use crate::manifest::Manifest;
use crate::parts::{self, Identity, LogCut};
use crate::rooms::Rooms;
use crate::sequence::Sequence;
use crate::tombstones::TombstoneSet;

/// Manifest, counts, log cut, commit numbers, tombstones, and the folder's claims on the slow tier.
///
/// Lock order: the manifest's lock before `Rooms::view`, before the locks of tombstones, cut,
/// claims and commit numbers. The last four are innermost.
pub(crate) struct Ledger {
    manifest: Mutex<Manifest>,
    identity: Identity,
    cut: Mutex<LogCut>,
    pub(crate) folder: Folder,
    pub(crate) sequence: Sequence,
    pub(crate) tombstones: TombstoneSet,
}

impl Ledger {
    pub(crate) fn new(
        manifest: Manifest,
        (identity, cut): (Identity, LogCut),
        folder: Folder,
        sequence: Sequence,
        tombstones: TombstoneSet,
    ) -> Ledger {
        let (manifest, cut) =
            (Mutex::new(&lock::MANIFEST, manifest), Mutex::new(&lock::LOG_CUT, cut));
        Ledger { manifest, identity, cut, folder, sequence, tombstones }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    pub(crate) fn cut(&self) -> LogCut {
        self.cut.lock().clone()
    }

    /// Called under the manifest's lock, after an edit with `cut` is durable.
    pub(crate) fn set_cut(&self, cut: LogCut) {
        *self.cut.lock() = cut;
    }

    /// Makes `edit` durable in one atomic manifest record, then runs `apply`. On return, everything
    /// that the edit names survives a crash and is visible to new snapshots. Both steps run under
    /// the manifest's lock, so a whole state that is written meanwhile contains every durable edit.
    ///
    /// # Errors
    /// Those of [`Manifest::commit`] and of `apply`.
    pub(crate) fn commit(
        &self,
        rooms: &Rooms,
        edit: Edit,
        apply: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut manifest = self.manifest.lock();
        manifest.commit(&edit, || self.whole_state(rooms))?;
        apply()
    }

    /// Writes the whole manifest again if another program has removed or replaced it, unless the
    /// folder is not `is_ours`. Returns whether it was written.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full.
    pub(crate) fn replace_lost_manifest(
        &self,
        rooms: &Rooms,
        is_ours: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let mut manifest = self.manifest.lock();
        if manifest.is_in_place()? || !is_ours() {
            return Ok(false);
        }
        manifest.replace_lost(&self.whole_state(rooms))?;
        Ok(true)
    }

    /// Holds back manifest edits until the returned guard is dropped.
    pub(crate) fn hold_edits(&self) -> impl Sized + '_ {
        self.manifest.lock()
    }

    /// The state before the edit in progress: rooms apply edits only afterwards.
    fn whole_state(&self, rooms: &Rooms) -> Edit {
        let state = self.whole_state_of(rooms, self.folder.writer().mark, &self.cut());
        match self.folder.claims_part() {
            Some(part) => state.with(Room::Engine, part),
            None => state,
        }
    }

    /// The state as of a folder with `mark` and a log of `cut` that has never claimed a slow tier.
    /// The caller holds the manifest's lock.
    pub(crate) fn whole_state_of(&self, rooms: &Rooms, mark: u64, cut: &LogCut) -> Edit {
        let state = Edit::default()
            .with(Room::Engine, self.identity.encode())
            .with(Room::Engine, parts::encode_mark(mark))
            .with(Room::Engine, parts::encode_sequence(self.sequence.last()))
            .with(Room::Log, cut.encode())
            .with(Room::Index, rooms.index.snapshot_part())
            .with(Room::Tree, rooms.tree.snapshot_part());
        let tombstones = self.tombstones.of_state(rooms);
        match self.tombstones.part(rooms, &tombstones) {
            Some(part) => state.with(Room::Engine, part),
            None => state,
        }
    }

    /// A number up to which all changes are announced, at least as large as that of every row that
    /// is in the log now.
    pub(crate) fn all_announced(&self, rooms: &Rooms) -> CommitSeq {
        if mutant!(rooms, CutNotRecorded) {
            return self.cut.lock().announced;
        }
        let last = self.sequence.last();
        // A writer draws a number and announces its change under its shard's lock. Once each lock
        // was free, every writer with a number up to `last` has done both.
        let shards = 0..rooms.bits.shard_count() as u16;
        shards.for_each(|shard| drop(rooms.head.shard(ShardId(shard))));
        last
    }
}
