//! Keeping the slow tier's manifest up to date.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use firn_codec::Tombstones;
use firn_env::{PutMode, RangeRequest};
use firn_index::Index;
use firn_model::{Error, ErrorKind, Result, Timestamp};
use firn_tree::{SlowTables, Version};

use crate::edit::{Edit, Room};
use crate::ledger::Ledger;
use crate::manifest_format;
use crate::parts::{self, SlowPart};
use crate::rooms::Rooms;
use crate::slow::claim;
use crate::slow::description::{self, KEY, index_part};
use crate::slow::segments::{INDEX_FOLDER, TieredSegment, epoch_in_key, upload};
use crate::slow::state::{Claim, PublishedState, SlowTier};

// A writer whose slow tier was taken over notices it within this time.
const LOOK_MS: i64 = 60_000;

/// A state for the slow tier's manifest, all of one moment.
struct SlowState {
    now: Timestamp,
    state: Edit,
    tables: SlowTables,
    tombstones: Arc<Tombstones>,
    version: Arc<Version>,
}

impl SlowTier {
    /// Claims the slow tier, or brings its manifest up to date. Returns whether it did anything.
    ///
    /// # Errors
    /// `Conflict` if another writer has taken it over; those of both tiers.
    pub(crate) fn tend(&self, rooms: &Rooms, ledger: &Ledger) -> Result<bool> {
        if self.claim.lock().is_none() {
            self.take_claim(rooms, ledger)?;
            return Ok(true);
        }
        self.publish(rooms, ledger)
    }

    /// Puts a new manifest if the one in place is outdated.
    fn publish(&self, rooms: &Rooms, ledger: &Ledger) -> Result<bool> {
        let mut lane = self.claim.lock();
        let Some(claim) = lane.as_mut() else { return Ok(false) };
        let is_unchanged = |published: &PublishedState| {
            let tombstones = ledger.tombstones.of_state(rooms);
            Weak::ptr_eq(&published.version, &Arc::downgrade(&rooms.tree.version()))
                && Weak::ptr_eq(&published.tombstones, &Arc::downgrade(&tombstones))
        };
        self.check_claim(rooms, ledger, claim)?;
        claim.list_again(rooms);
        if claim.published.as_ref().is_some_and(is_unchanged)
            && !rooms.tree.has_unpublished_garbage()
        {
            return Ok(false);
        }
        let SlowState { now, state, tables, tombstones, version } = slow_state(rooms, ledger);
        let published = PublishedState {
            version: Arc::downgrade(&version),
            tombstones: Arc::downgrade(&tombstones),
            named: tables.named,
        };
        drop((version, tombstones));
        let is_same = |previous: &PublishedState| {
            Weak::ptr_eq(&previous.tombstones, &published.tombstones)
                && previous.named == published.named
        };
        // Objects found by a listing are this writer's to delete only after a successful put.
        if !rooms.tree.has_unpublished_garbage() && claim.published.as_ref().is_some_and(is_same) {
            claim.published = Some(published);
            return Ok(false);
        }
        let files = Index::files_of(&[&index_part(&state)])?;
        let mut segment_epochs = Vec::with_capacity(files.len());
        for (path, bytes) in &files {
            segment_epochs.push(put_segment(rooms, claim, path, *bytes)?);
        }
        let slow = SlowPart { written_ms: now, segment_epochs };
        let state = state
            .with(Room::Engine, parts::encode_claims(&[ledger.folder.writer().number]))
            .with(Room::Engine, slow.encode());
        put_manifest(rooms, claim, manifest_format::encode_object(claim.epoch, &state)?)?;
        claim.published = Some(published);
        self.set_current(claim.epoch, tables.newest_ts);
        // A replica could read the previous manifest until the put was done.
        let published_ms = rooms.env.clock.now_ms();
        rooms.tree.note_published(&tables.dead, published_ms);
        claim.retire_segments(&files, published_ms);
        Ok(true)
    }

    /// Verifies now and then, and after a put without an answer, that this process's manifest is in
    /// place.
    fn check_claim(&self, rooms: &Rooms, ledger: &Ledger, claim: &mut Claim) -> Result<()> {
        let now = rooms.env.clock.now_ms();
        let looks = now.saturating_sub(claim.looked_at_ms) >= LOOK_MS;
        if looks {
            let version = description::version(&*rooms.env.bucket)?;
            claim.version.take_if(|known| version.as_ref() != Some(known));
        }
        if claim.version.is_none() {
            self.read_back(rooms, ledger, claim)?;
        }
        if looks {
            claim.looked_at_ms = now;
        }
        Ok(())
    }

    /// Reads the manifest after a put whose outcome is unknown.
    fn read_back(&self, rooms: &Rooms, ledger: &Ledger, claim: &mut Claim) -> Result<()> {
        let found = description::read(&*rooms.env.bucket, &rooms.budget)?.ok_or_else(|| {
            Error::unavailable(
                "the slow tier's manifest was deleted by another program; restart this server to \
                 write it again",
            )
        })?;
        let is_ours = (found.epoch, found.writer) == (claim.epoch, ledger.folder.writer());
        if !is_ours && !mutant!(rooms, FenceSkipped) {
            return Err(self.fence(found.epoch));
        }
        claim.version = Some(found.version);
        Ok(())
    }

    /// Replaces a manifest with two damaged copies, if its remains show that this folder's writer
    /// put it: on the condition that it is still in place, and complete. `false` if nothing shows
    /// that.
    ///
    /// # Errors
    /// Those of both tiers.
    pub(crate) fn replace_damaged(&self, rooms: &Rooms, ledger: &Ledger) -> Result<bool> {
        let bucket = &*rooms.env.bucket;
        let info = match bucket.head(KEY) {
            // No object at all, such as a pipe.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => return Ok(false),
            info => info?,
        };
        description::check_length(info.bytes, &rooms.budget)?;
        let request = RangeRequest { key: KEY.to_owned(), offset: 0, len: info.bytes };
        let missing = || Err(Error::internal(format!("{KEY}: the bucket returned no range")));
        let remains = bucket.get_ranges(&[request]).pop().unwrap_or_else(missing)?;
        let ours: Vec<Vec<u8>> = match ledger.folder.claims() {
            Some(claims) => claims.iter().map(|&number| parts::encode_claims(&[number])).collect(),
            None => vec![parts::encode_mark(ledger.folder.writer().mark)],
        };
        if !ours.iter().any(|ours| remains.windows(ours.len()).any(|part| part == *ours)) {
            return Ok(false);
        }
        self.announce_claim(rooms, ledger, None)?;
        // Above every epoch in the key of an object, so that no segment is overwritten.
        let objects = bucket.list(INDEX_FOLDER)?.into_iter();
        let in_keys = objects.filter_map(|object| epoch_in_key(&object.key));
        let in_remains = manifest_format::epochs_in(&remains).into_iter().chain([self.epoch()]);
        let epoch = claim::epoch_after(in_keys.chain(in_remains).max().unwrap_or(0))?;
        *self.claim.lock() = Some(Claim::new(epoch, info.version, BTreeMap::new()));
        self.set_epoch(epoch);
        while self.publish(rooms, ledger)? {}
        // The next claim lists the objects that the new manifest does not name.
        self.drop_claim();
        Ok(true)
    }
}

fn slow_state(rooms: &Rooms, ledger: &Ledger) -> SlowState {
    let _no_edit = ledger.hold_edits();
    let now = rooms.env.clock.now_ms();
    let (tombstones, version) = (ledger.tombstones.of_state(rooms), rooms.tree.version());
    let tables = rooms.tree.slow_tables();
    let mut state = Edit::default()
        .with(Room::Engine, ledger.identity().encode())
        .with(Room::Engine, parts::encode_mark(ledger.folder.writer().mark))
        .with(Room::Engine, parts::encode_sequence(ledger.sequence.last()))
        .with(Room::Index, rooms.index.snapshot_part())
        .with(Room::Tree, tables.part.clone());
    if let Some(part) = ledger.tombstones.part(rooms, &tombstones) {
        state = state.with(Room::Engine, part);
    }
    SlowState { now, state, tables, tombstones, version }
}

/// The epoch in the key of an index segment's object; uploads it if it is not there yet.
fn put_segment(rooms: &Rooms, claim: &mut Claim, path: &str, bytes: u64) -> Result<u64> {
    if let Some(epoch) = claim.segments.get(path) {
        return Ok(*epoch);
    }
    upload(&rooms.env, &TieredSegment::new(path, bytes, claim.epoch))?;
    claim.segments.insert(path.to_owned(), claim.epoch);
    Ok(claim.epoch)
}

fn put_manifest(rooms: &Rooms, claim: &mut Claim, bytes: Vec<u8>) -> Result<()> {
    description::check_length(bytes.len() as u64, &rooms.budget)?;
    let mode = match claim.version.take() {
        _ if mutant!(rooms, FenceSkipped) => PutMode::Overwrite,
        Some(version) => PutMode::IfVersion(version),
        None => return Err(Error::internal("the slow tier's manifest was not read back")),
    };
    match rooms.env.bucket.put(KEY, bytes.into(), mode) {
        Ok(info) => {
            claim.version = Some(info.version);
            Ok(())
        }
        Err(e) => {
            claim.published = None;
            // Another writer's put, or one of this process without an answer: the next step reads
            // it.
            Err(match *e.kind() {
                ErrorKind::Conflict => {
                    Error::unavailable("the slow tier's manifest has changed; it is read again")
                        .because(e)
                }
                _ => e,
            })
        }
    }
}

#[cfg(test)]
mod tests;
