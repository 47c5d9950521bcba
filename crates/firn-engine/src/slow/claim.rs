//! Claiming the slow tier, and recognising whose it is.

use std::collections::{BTreeMap, BTreeSet};

use firn_env::{Bucket, PutMode};
use firn_model::{Budget, CommitSeq, Error, ErrorKind, Result};
use firn_tree::{Tree, Version};

use crate::edit::{Edit, Room};
use crate::folder::{Folder, Writer};
use crate::ledger::Ledger;
use crate::manifest_format;
use crate::parts::{self, SlowPart};
use crate::rooms::Rooms;
use crate::slow::description::{self, Description, KEY};
use crate::slow::segments::{INDEX_FOLDER, TieredSegment, are_same, epoch_in_key, segment_key};
use crate::slow::state::{Claim, SlowTier, fenced_error};

const TABLE_FOLDER: &str = "tables/";

// A failed listing for garbage is repeated after this long.
const LIST_RETRY_MS: i64 = 600_000;

/// Whether a process of this folder wrote the manifest: not one of a copy made before it, and not
/// one that the folder has forgotten because it was restored from a backup. A folder without
/// recorded claims is recognised by its mark.
pub(crate) fn is_ours(folder: &Folder, described: &Description, tree: &Tree) -> bool {
    let part = described.state.parts(Room::Tree).next();
    described.writer == folder.writer()
        || folder.remembers(described.writer)
            && part.is_none_or(|part| tree.has_named(part).is_ok_and(|has| has))
}

/// Refuses repairs of a slow tier that is not this folder's: it may belong to a machine that was
/// replaced, or `--slow-tier` may name the wrong location. A damaged manifest is accepted, because
/// it proves neither.
///
/// # Errors
/// `Conflict`; `Unavailable` if the tier fails.
pub(crate) fn check_ours(
    folder: &Folder,
    bucket: &dyn Bucket,
    tree: &Tree,
    forgets_history: bool,
    budget: &Budget,
) -> Result<()> {
    match description::read(bucket, budget) {
        Ok(Some(found)) if !is_ours(folder, &found, tree) => Err(not_ours_error(found.epoch)),
        Ok(None) => drops_history(bucket, &tree.version(), forgets_history).map(drop),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => Ok(()),
        found => found.map(|_| ()),
    }
}

/// The manifest if this folder wrote it. Errors count as no manifest.
pub(crate) fn read_own(
    folder: &Folder,
    bucket: &dyn Bucket,
    tree: &Tree,
    budget: &Budget,
) -> Option<Description> {
    description::read(bucket, budget).ok().flatten().filter(|found| is_ours(folder, found, tree))
}

/// Refuses a location that has no manifest and none of the tables that `version` names there: it is
/// not where they were uploaded. With `forgets_history` they are dropped instead: returns `true`.
fn drops_history(bucket: &dyn Bucket, version: &Version, forgets_history: bool) -> Result<bool> {
    let slow = version.tables().filter(|table| table.level.is_slow());
    let named: BTreeSet<String> = slow.map(|table| table.path()).collect();
    if named.is_empty() || bucket.list(TABLE_FOLDER)?.iter().any(|found| named.contains(&found.key))
    {
        return Ok(false);
    }
    if forgets_history {
        return Ok(true);
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "the slow tier has no manifest and none of the {} tables of this database's history: \
             set --slow-tier to their location or, if they are lost, drop them with `firn check \
             --repair --forget-lost-history`",
            named.len()
        ),
    ))
}

/// Refuses to create a database where the slow tier has one, or has the tables of one: a writer
/// deletes the objects that its manifest does not name.
///
/// # Errors
/// `Conflict`; `Unavailable` if the tier fails.
pub(crate) fn check_unclaimed(bucket: &dyn Bucket, budget: &Budget) -> Result<()> {
    match description::read(bucket, budget)? {
        None => match table_count(bucket)? {
            0 => Ok(()),
            count => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "this folder has no database, and the slow tier has {count} tables without \
                     their manifest, which a new database would delete: restore its object \
                     `manifest` and start with --restore, or use another prefix"
                ),
            )),
        },
        Some(found) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "this folder has no database, but the slow tier has one (epoch {}): start with \
                 --restore to take it over, with --read-only to follow it, or use another prefix",
                found.epoch
            ),
        )),
    }
}

/// Refuses the location of another database to a folder that has never claimed a slow tier. One
/// that has may have been replaced: it is fenced, and still answers queries. A tier that cannot be
/// read is no reason not to start.
///
/// # Errors
/// `Conflict`.
pub(crate) fn check_not_foreign(
    folder: &Folder,
    bucket: &dyn Bucket,
    version: &Version,
    budget: &Budget,
) -> Result<()> {
    if folder.claims().is_none_or(|claims| !claims.is_empty()) {
        return Ok(());
    }
    let found = match description::read(bucket, budget) {
        Ok(Some(found)) if found.writer.mark != folder.writer().mark => {
            format!("another database (epoch {})", found.epoch)
        }
        // A copy of a database has tables there before its first start.
        Ok(None) if !version.tables().any(|table| table.level.is_slow()) => {
            match table_count(bucket).unwrap_or(0) {
                0 => return Ok(()),
                count => format!("{count} tables of another database"),
            }
        }
        _ => return Ok(()),
    };
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "the slow tier has {found}, and the database in this folder has never used it; nothing \
             was changed: set --slow-tier to another location or prefix, or --data to the folder \
             of that database"
        ),
    ))
}

fn table_count(bucket: &dyn Bucket) -> Result<usize> {
    let objects = bucket.list(TABLE_FOLDER)?;
    Ok(objects.iter().filter(|object| object.key.ends_with(".fst")).count())
}

/// The error of a repair of another folder's slow tier.
pub(crate) fn not_ours_error(epoch: u64) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the slow tier was written from another folder (epoch {epoch}), or this folder was \
             restored from an older backup; nothing there was changed. Check it from that \
             server's folder. To continue with this folder, without the history on the slow tier, \
             use another --slow-tier and run `firn check --repair --forget-lost-history`"
        ),
    )
}

/// The epoch of the next writer. `last` is the largest that the slow tier contains.
///
/// # Errors
/// `Corrupt` if there is none: no writer has had `last`.
pub(super) fn epoch_after(last: u64) -> Result<u64> {
    last.checked_add(1).ok_or_else(|| Error::corrupt(KEY, 0, "its epoch is out of range"))
}

/// Puts the manifest that was `found`, or `empty`, with `writer` and the next epoch.
///
/// # Errors
/// `Conflict` if another manifest was put since, `Unavailable`.
pub(super) fn claim_as(
    bucket: &dyn Bucket,
    found: Option<&Description>,
    writer: Writer,
    empty: &Edit,
) -> Result<Claim> {
    let epoch = epoch_after(found.map_or(0, |found| found.epoch))?;
    let (mode, state, segments) = match found {
        None => (PutMode::Create, empty.clone(), BTreeMap::new()),
        Some(found) => {
            let files = found.index_files()?.into_iter();
            let segments = files.map(|(path, _, epoch)| (path, epoch)).collect();
            (PutMode::IfVersion(found.version.clone()), found.state.clone(), segments)
        }
    };
    let state = state
        .without(Room::Engine, parts::is_claim)
        .with(Room::Engine, parts::encode_mark(writer.mark))
        .with(Room::Engine, parts::encode_claims(&[writer.number]));
    let info = bucket.put(KEY, manifest_format::encode_object(epoch, &state)?.into(), mode)?;
    Ok(Claim::new(epoch, info.version, segments))
}

impl SlowTier {
    /// Makes this process the writer of the slow tier, and lists the objects that others left.
    pub(super) fn take_claim(&self, rooms: &Rooms, ledger: &Ledger) -> Result<()> {
        let (bucket, folder) = (&*rooms.env.bucket, &ledger.folder);
        let found = description::read(bucket, &rooms.budget)?;
        match &found {
            Some(found)
                if !is_ours(folder, found, &rooms.tree) && !goes_by_mark(rooms, folder, found) =>
            {
                return Err(self.fence(found.epoch));
            }
            Some(_) => {}
            None => {
                let forgets_history = rooms.options.forget_lost_history;
                if drops_history(bucket, &rooms.tree.version(), forgets_history)? {
                    // From now on nothing at the previous location is this folder's.
                    folder.set_claims(Vec::new());
                }
            }
        }
        self.announce_claim(rooms, ledger, found.as_ref().map(|found| found.writer.number))?;
        let claimed =
            claim_as(bucket, found.as_ref(), folder.writer(), &empty_state(rooms, ledger));
        let mut claim = claimed.map_err(|e| match e.kind() {
            // Another process's put, or a late one of this process: the next step reads it.
            ErrorKind::Conflict => {
                Error::unavailable("the slow tier's manifest has changed; it is read again")
                    .because(e)
            }
            _ => e,
        })?;
        self.set_epoch(claim.epoch);
        // A file number may have been used again since: an object counts only if it is the same.
        let known: Vec<TieredSegment> = claim
            .segments
            .iter()
            .map(|(path, &epoch)| TieredSegment::new(path, 0, epoch))
            .collect();
        for (path, bytes) in rooms.index.segment_files() {
            let Some(&epoch) = claim.segments.get(&path) else { continue };
            let segment = TieredSegment::new(&path, bytes, epoch);
            if !are_same(&rooms.env, std::slice::from_ref(&segment))?.contains(&true) {
                claim.segments.remove(&path);
            }
        }
        let named = known.into_iter().map(|segment| segment.key).collect();
        claim.list_left_objects(rooms, &named);
        *self.claim.lock() = Some(claim);
        Ok(())
    }

    /// Records in the folder that this process is about to put a manifest, before it does. A copy
    /// of the folder made earlier lacks the record. `last` wrote the manifest in place.
    pub(super) fn announce_claim(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        last: Option<u64>,
    ) -> Result<()> {
        let Some(claims) = ledger.folder.claims_with_own(last) else { return Ok(()) };
        let edit = Edit::default().with(Room::Engine, parts::encode_claims(&claims));
        ledger.commit(rooms, edit, || {
            ledger.folder.set_claims(claims);
            Ok(())
        })
    }

    /// Fences this process, which found the manifest of `epoch`.
    pub(super) fn fence(&self, epoch: u64) -> Error {
        self.set_fenced();
        fenced_error(epoch)
    }
}

impl Claim {
    /// Lists the objects that others left, except the `named` segments, so that they are removed.
    /// Nothing else needs the listing: uploads skip the names of existing objects. A failed one is
    /// logged and tried again later, because one object of another program may fail all listings.
    fn list_left_objects(&mut self, rooms: &Rooms, named: &BTreeSet<String>) {
        let (bucket, now) = (&*rooms.env.bucket, rooms.env.clock.now_ms());
        let listed = bucket
            .list(INDEX_FOLDER)
            .and_then(|segments| Ok((segments, bucket.list(TABLE_FOLDER)?)));
        let (segments, tables) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(
                    "objects of earlier writers on the slow tier are not removed, because it \
                     cannot be listed; retry in {} min: {error}",
                    LIST_RETRY_MS / 60_000
                );
                self.lists_again_ms = Some(now.saturating_add(LIST_RETRY_MS));
                return;
            }
        };
        self.lists_again_ms = None;
        for key in segments.into_iter().map(|object| object.key) {
            let is_dead = self.dead_segments.iter().any(|dead| dead.0 == key);
            // An upload of this writer without an answer is repeated under the same key.
            let is_own = epoch_in_key(&key) == Some(self.epoch);
            if !is_dead && !is_own && !named.contains(&key) {
                self.dead_segments.push((key, now));
            }
        }
        rooms.tree.note_listed(tables.into_iter().map(|object| object.key));
    }

    /// Repeats a failed listing, once the manifest in place is this writer's and names only
    /// [`Claim::segments`].
    pub(super) fn list_again(&mut self, rooms: &Rooms) {
        let now = rooms.env.clock.now_ms();
        if self.published.is_some() && self.lists_again_ms.is_some_and(|at| now >= at) {
            let segments = self.segments.iter();
            let named = segments.map(|(path, &epoch)| segment_key(path, epoch)).collect();
            self.list_left_objects(rooms, &named);
        }
    }
}

/// Whether a mutant takes every writer with the folder's mark for its own.
fn goes_by_mark(rooms: &Rooms, folder: &Folder, found: &Description) -> bool {
    mutant!(rooms, LeftCopyNotFenced) && found.writer.mark == folder.writer().mark
}

/// A state without tables, for an empty location.
fn empty_state(rooms: &Rooms, ledger: &Ledger) -> Edit {
    let slow = SlowPart { written_ms: rooms.env.clock.now_ms(), segment_epochs: Vec::new() };
    Edit::default()
        .with(Room::Engine, ledger.identity().encode())
        .with(Room::Engine, parts::encode_sequence(CommitSeq(0)))
        .with(Room::Engine, slow.encode())
}
