//! The slow tier describes itself: its own manifest names the tables and index segments that lie there, so
//! that history opens on an empty machine ([`Engine::restore`]) and elsewhere for reading (`replica`).
//!
//! The object `manifest` is a whole state, put with the condition that nobody else has put one since. It says
//! who writes: the *mark* of a data folder, the *number* that each process draws, and an *epoch* that rises
//! whenever one claims the place. A folder remembers the numbers of its own processes, so that a copy which was
//! left behind knows that the one it was copied to has gone on. Whoever finds another's there, or a younger one,
//! is *fenced*: it changes nothing on the slow tier any more, and takes no writes, which would never get there.
//!
//! Objects are put before the manifest that names them. One is removed only when manifests that do not name
//! it have been there for the grace time: a writer that takes over later, and a replica that reads now and
//! then, need what the manifest names that they read, nothing else. What killed uploads left is found by one
//! listing after the claim; otherwise nothing is ever listed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Weak};

use firn_codec::Tombstones;
use firn_codec::varint::{encode_zigzag, take_count, take_varint, take_zigzag};
use firn_env::{Bucket, Env, OpenMode, PutMode, RangeRequest};
use firn_index::Index;
use firn_model::{CommitSeq, Error, ErrorKind, Pool, Result, Timestamp, encode_varint};
use firn_tree::{SlowTables, TierScope, Tree, Version};
use parking_lot::Mutex;

use crate::manifest::{self, Edit, Manifest, Object, Room};
use crate::planted::Planted;
use crate::{Engine, recover};

/// Which data folder a manifest is of: `5, mark (8 B)`.
pub(crate) const TAG_WRITER: u8 = 5;
/// What only the slow tier's manifest says: `6, zigzag wall time in ms, varint count, varint epoch of each
/// index segment`.
pub(crate) const TAG_SLOW: u8 = 6;
/// Which process claimed the slow tier: `7, the number that it drew (8 B)`. Copies of one folder have one mark. In the
/// folder: the numbers of its processes that may be found there, oldest first, all in one part that replaces the one before.
pub(crate) const TAG_CLAIM: u8 = 7;

pub(crate) const KEY: &str = "manifest";
const INDEX_FOLDER: &str = "index/";
const TABLE_FOLDER: &str = "tables/";

// A tier that fails is asked again after this long, doubled up to the maximum.
const RETRY_MS: i64 = 1_000;
const RETRY_MS_MAX: i64 = 60_000;
// Somebody may put a new manifest between the question for its length and its bytes.
const READ_TRIES: usize = 4;
// Whoever was taken over learns of it so soon.
const LOOK_MS: i64 = 60_000;
const COPY_BYTES: u64 = 4 << 20;
// A process adds its number to those of the folder, which begin with the one that is there: so many cannot put and die in a row.
const CLAIMS_MAX: usize = 32;

/// What [`Engine::restore`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Index segments that were fetched.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Wall time at which the manifest was written that was restored.
    pub written_ms: Timestamp,
}

/// The slow tier's state as the process that writes it knows it.
pub(crate) struct Tier {
    writer: Writer,
    /// [`crate::EngineOptions::forget_lost_history`].
    forgets_history: bool,
    /// What this folder remembers, see [`TAG_CLAIM`]; `None` in one whose servers did not remember it yet.
    claims: Mutex<Option<Vec<u64>>>,
    is_fenced: AtomicBool,
    epoch: AtomicU64,
    newest_ts: AtomicI64,
    /// Used by who has the tree's lane alone.
    claim: Mutex<Option<Claim>>,
    retry: Mutex<Retry>,
}

/// Who writes the slow tier.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Writer {
    /// Of the data folder.
    mark: u64,
    /// Of the process; no other has it.
    number: u64,
}

#[derive(Default)]
struct Retry {
    at_ms: Timestamp,
    wait_ms: i64,
}

/// What this process put there.
struct Claim {
    epoch: u64,
    /// Of the manifest that is there; `None` after a put whose answer was lost.
    version: Option<String>,
    looked_at_ms: Timestamp,
    /// What the manifest that is there was made of.
    told: Option<Told>,
    /// By path of the file, the epoch in the object's key.
    segments: BTreeMap<String, u64>,
    /// Objects of index segments that the manifest does not name, since when.
    dead_segments: Vec<(String, Timestamp)>,
}

struct Told {
    version: Weak<Version>,
    tombstones: Weak<Tombstones>,
    /// [`SlowTables::named`].
    named: Vec<u8>,
}

/// What the slow tier's manifest says.
#[derive(Clone)]
pub(crate) struct Described {
    pub(crate) epoch: u64,
    writer: Writer,
    pub(crate) version: String,
    pub(crate) written_ms: Timestamp,
    /// The whole state, as of a database without fast tier and log.
    pub(crate) state: Edit,
    /// In the order of the index's part.
    segment_epochs: Vec<u64>,
    /// Where one of the object's two copies is damaged.
    pub(crate) damaged_at: Option<u64>,
}

impl Tier {
    /// Of a folder with this mark, and the numbers of processes that it remembers.
    pub(crate) fn new(mark: u64, claims: Option<Vec<u64>>, forgets_history: bool) -> Tier {
        Tier {
            writer: Writer { mark, number: new_mark() },
            forgets_history,
            claims: Mutex::new(claims),
            is_fenced: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            newest_ts: AtomicI64::new(i64::MIN),
            claim: Mutex::new(None),
            retry: Mutex::default(),
        }
    }

    pub(crate) fn mark(&self) -> u64 {
        self.writer.mark
    }

    /// For the local manifest.
    pub(crate) fn claims_part(&self) -> Option<Vec<u8>> {
        self.claims.lock().as_deref().map(encode_claims)
    }

    /// Whether a process of this folder put it, none of a copy that was made before it, and none that this folder has
    /// forgotten because it was put back as it had been. A folder that remembers no processes goes by the mark.
    pub(crate) fn is_ours(&self, found: &Described, tree: &Tree) -> bool {
        let part = found.state.parts(Room::Tree).next();
        let knows = |ours: &Vec<u64>| ours.contains(&found.writer.number);
        found.writer == self.writer
            || found.writer.mark == self.writer.mark
                && self.claims.lock().as_ref().is_none_or(knows)
                && part.is_none_or(|part| tree.has_named(part).is_ok_and(|has| has))
    }

    /// Refuses what is not this folder's to mend: it may be that of a machine that was replaced, or that was copied and
    /// left behind, or the place may not be the one where its history lies.
    ///
    /// # Errors
    /// `Conflict`; `Unavailable` if nobody can tell. A manifest that cannot be read is none.
    pub(crate) fn check_ours(&self, bucket: &dyn Bucket, tree: &Tree) -> Result<()> {
        match read(bucket) {
            Ok(Some(found)) if !self.is_ours(&found, tree) => Err(another_servers(&found)),
            Ok(None) => self.gives_up_history(bucket, &tree.version()).map(drop),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => Ok(()),
            found => found.map(|_| ()),
        }
    }

    /// Refuses a place without a manifest and without a single one of the tables that `version` names there: it is not
    /// where they were put, and nothing of them is to be given up for that unless somebody says that they are lost:
    /// then `true`.
    fn gives_up_history(&self, bucket: &dyn Bucket, version: &Version) -> Result<bool> {
        let slow = version.tables().filter(|table| table.level.is_slow());
        let named: BTreeSet<String> = slow.map(|table| table.path()).collect();
        if named.is_empty()
            || bucket.list(TABLE_FOLDER)?.iter().any(|found| named.contains(&found.key))
        {
            return Ok(false);
        }
        if self.forgets_history {
            return Ok(true);
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "the slow tier has no manifest and none of the {} tables of this database's history: name the place where \
                 they are with --slow-tier, or, if they are lost, give them up by `firn check --repair \
                 --forget-lost-history`",
                named.len()
            ),
        ))
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Relaxed)
    }

    /// The newest timestamp that the slow tier's manifest names.
    pub(crate) fn newest_ts(&self) -> Option<Timestamp> {
        Some(self.newest_ts.load(Relaxed)).filter(|&ts| ts > i64::MIN)
    }

    /// 0 before the claim.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    /// A replica has read this.
    pub(crate) fn set_read(&self, epoch: u64, newest_ts: Option<Timestamp>) {
        self.epoch.store(epoch, Relaxed);
        self.newest_ts.store(newest_ts.unwrap_or(i64::MIN), Relaxed);
    }

    /// The next step claims anew.
    pub(crate) fn forget_claim(&self) {
        *self.claim.lock() = None;
    }

    /// What may be planned now.
    pub(crate) fn reach(&self, now: Timestamp) -> TierScope {
        match self.is_fenced() || now < self.retry.lock().at_ms {
            true => TierScope::Fast,
            false => TierScope::Both,
        }
    }

    /// After work on the slow tier: it is left alone for a while when it fails.
    pub(crate) fn note<T>(&self, done: &Result<T>, now: Timestamp) {
        let mut retry = self.retry.lock();
        match done {
            Ok(_) => *retry = Retry::default(),
            Err(_) => {
                retry.wait_ms = (retry.wait_ms * 2).clamp(RETRY_MS, RETRY_MS_MAX);
                retry.at_ms = now.saturating_add(retry.wait_ms);
            }
        }
    }

    fn fence(&self, found: &Described) -> Error {
        self.is_fenced.store(true, Relaxed);
        Error::new(
            ErrorKind::Conflict,
            format!(
                "the slow tier is written by another server (epoch {}), or what wrote there knows more than this folder: \
                 this server is fenced and takes no writes any more; stop one of the two, or start with --restore in an \
                 empty folder",
                found.epoch
            ),
        )
    }
}

impl Engine {
    /// # Errors
    /// `Unavailable` for a replica, and for a writer whose slow tier another has taken over: what it took
    /// would be lost with this machine.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::unavailable(
                "this is a read-only replica; write to the server that it follows",
            ));
        }
        if self.tier.is_fenced() && !self.planted(Planted::FenceSkipped) {
            return Err(Error::unavailable(
                "another server has taken this one's slow tier over, so nothing is taken here any \
                 more; write to that one",
            ));
        }
        Ok(())
    }

    /// Claims the slow tier, brings its manifest up to date, removes what nobody needs there.
    pub(crate) fn tend_slow_tier(&self) -> Result<bool> {
        if self.tier.claim.lock().is_none() {
            self.claim()?;
            return Ok(true);
        }
        self.tell_slow_tier()
    }

    /// Makes this process the one that writes the slow tier, and finds what others left there.
    fn claim(&self) -> Result<()> {
        let bucket = &*self.env.bucket;
        let found = read(bucket)?;
        match &found {
            Some(found) if !self.tier.is_ours(found, &self.tree) && !self.goes_by_mark(found) => {
                return Err(self.tier.fence(found));
            }
            Some(_) => {}
            None => {
                if self.tier.gives_up_history(bucket, &self.tree.version())? {
                    // Where the history was, nothing is this folder's from now on.
                    *self.tier.claims.lock() = Some(Vec::new());
                }
            }
        }
        self.note_claim(found.as_ref().map(|found| found.writer.number))?;
        let claimed = claim_as(bucket, found, self.tier.writer, &self.described_nothing());
        let mut claim = claimed.map_err(|e| match e.kind() {
            // Another's, or our own that was given up and came late: the next step reads it.
            ErrorKind::Conflict => {
                Error::unavailable("the slow tier's manifest has changed").because(e)
            }
            _ => e,
        })?;
        self.tier.epoch.store(claim.epoch, Relaxed);
        // A number may have been given again since: what is there counts only if it is the same.
        let known: Vec<Segment> =
            claim.segments.iter().map(|(path, &epoch)| Segment::of(path, 0, epoch)).collect();
        for (path, bytes) in self.index.segment_files() {
            let Some(&epoch) = claim.segments.get(&path) else { continue };
            let segment = Segment::of(&path, bytes, epoch);
            if !is_same(&self.env, std::slice::from_ref(&segment))?.contains(&true) {
                claim.segments.remove(&path);
            }
        }
        let now = self.env.clock.now_ms();
        let objects = bucket.list(INDEX_FOLDER)?.into_iter().map(|object| object.key);
        let is_named = |key: &String| known.iter().any(|segment| segment.key == *key);
        claim.dead_segments = objects.filter(|key| !is_named(key)).map(|key| (key, now)).collect();
        self.tree.note_listed(bucket.list(TABLE_FOLDER)?.into_iter().map(|object| object.key));
        *self.tier.claim.lock() = Some(claim);
        Ok(())
    }

    /// Whether a planted mistake takes whoever has the mark for its own.
    fn goes_by_mark(&self, found: &Described) -> bool {
        self.planted(Planted::LeftCopyNotFenced) && found.writer.mark == self.tier.writer.mark
    }

    /// The folder remembers that this process is about to put, before it does; `found` is the number of who put last. A copy of
    /// the folder that was made before does not know it.
    fn note_claim(&self, found: Option<u64>) -> Result<()> {
        let known = self.tier.claims.lock().clone();
        let mut claims = known.unwrap_or_else(|| Vec::from_iter(found));
        // A put of one before `found` that comes late does not meet its condition.
        let gone = claims.iter().position(|&number| Some(number) == found).unwrap_or(0);
        claims.drain(..gone);
        let number = self.tier.writer.number;
        if claims.contains(&number) {
            return Ok(());
        }
        if claims.len() >= CLAIMS_MAX {
            claims.remove(1);
        }
        claims.push(number);
        let edit = Edit::default().with(Room::Engine, encode_claims(&claims));
        self.commit_edit(edit, || {
            *self.tier.claims.lock() = Some(claims);
            Ok(())
        })
    }

    /// A state without tables, for a place where nothing is yet.
    fn described_nothing(&self) -> Edit {
        Edit::default()
            .with(Room::Engine, self.identity.encode())
            .with(Room::Engine, recover::encode_sequence(CommitSeq(0)))
            .with(Room::Engine, encode_slow(self.env.clock.now_ms(), &[]))
    }

    /// Puts a new manifest if the one that is there is not true any more.
    fn tell_slow_tier(&self) -> Result<bool> {
        let mut lane = self.tier.claim.lock();
        let Some(claim) = lane.as_mut() else { return Ok(false) };
        let is_unchanged = |told: &Told| {
            Weak::ptr_eq(&told.version, &Arc::downgrade(&self.tree.version()))
                && Weak::ptr_eq(&told.tombstones, &Arc::downgrade(&self.tombstones_of_state()))
        };
        let now = self.env.clock.now_ms();
        let looks = now.saturating_sub(claim.looked_at_ms) >= LOOK_MS;
        let version = if looks { version(&*self.env.bucket)? } else { None };
        if looks {
            claim.version.take_if(|known| version.as_ref() != Some(known));
        }
        if claim.version.is_none() {
            self.read_back(claim)?;
        }
        if looks {
            claim.looked_at_ms = now;
        }
        if claim.told.as_ref().is_some_and(is_unchanged) && !self.tree.has_unpublished_garbage() {
            return Ok(false);
        }
        let (now, state, slow, tombstones, version) = self.describe();
        let told = Told {
            version: Arc::downgrade(&version),
            tombstones: Arc::downgrade(&tombstones),
            named: slow.named,
        };
        drop((version, tombstones));
        let is_true = |before: &Told| {
            Weak::ptr_eq(&before.tombstones, &told.tombstones) && before.named == told.named
        };
        // A put after they were found shows that they are not a younger writer's.
        if !self.tree.has_unpublished_garbage() && claim.told.as_ref().is_some_and(is_true) {
            claim.told = Some(told);
            return Ok(false);
        }
        let files = Index::files_of(&[&index_part(&state)])?;
        let mut epochs = Vec::with_capacity(files.len());
        for (path, bytes) in &files {
            epochs.push(self.put_segment(claim, path, *bytes)?);
        }
        let state = state
            .with(Room::Engine, encode_claims(&[self.tier.writer.number]))
            .with(Room::Engine, encode_slow(now, &epochs));
        self.put_manifest(claim, manifest::encode_object(claim.epoch, &state))?;
        claim.told = Some(told);
        self.tier.set_read(claim.epoch, slow.newest_ts);
        // The put may have taken long, and up to its end the manifest before was there to be read.
        let told_ms = self.env.clock.now_ms();
        self.tree.note_published(&slow.dead, told_ms);
        claim.retire_segments(&files, told_ms);
        Ok(true)
    }

    /// What the manifest is to say, all of one moment.
    fn describe(&self) -> (Timestamp, Edit, SlowTables, Arc<Tombstones>, Arc<Version>) {
        let _no_edit = self.manifest.lock();
        let now = self.env.clock.now_ms();
        let (tombstones, version) = (self.tombstones_of_state(), self.tree.version());
        let slow = self.tree.slow_tables();
        let mut state = Edit::default()
            .with(Room::Engine, self.identity.encode())
            .with(Room::Engine, encode_writer(self.tier.mark()))
            .with(Room::Engine, recover::encode_sequence(self.sequence.last()))
            .with(Room::Index, self.index.snapshot_part())
            .with(Room::Tree, slow.part.clone());
        if let Some(part) = self.tombstones_part(&tombstones) {
            state = state.with(Room::Engine, part);
        }
        (now, state, slow, tombstones, version)
    }

    /// The epoch under which an index segment lies on the slow tier; puts it if it does not yet.
    fn put_segment(&self, claim: &mut Claim, path: &str, bytes: u64) -> Result<u64> {
        if let Some(epoch) = claim.segments.get(path) {
            return Ok(*epoch);
        }
        let _memory = self.reserve(Pool::Jobs, bytes)?;
        put_file(&self.env, &Segment::of(path, bytes, claim.epoch))?;
        claim.segments.insert(path.to_owned(), claim.epoch);
        Ok(claim.epoch)
    }

    fn put_manifest(&self, claim: &mut Claim, bytes: Vec<u8>) -> Result<()> {
        let mode = match claim.version.take() {
            _ if self.planted(Planted::FenceSkipped) => PutMode::Overwrite,
            Some(version) => PutMode::IfVersion(version),
            None => return Err(Error::internal("the slow tier's manifest was not read back")),
        };
        match self.env.bucket.put(KEY, bytes.into(), mode) {
            Ok(info) => {
                claim.version = Some(info.version);
                Ok(())
            }
            // Another's, or our own whose answer was lost: the next step reads it.
            Err(e) if *e.kind() == ErrorKind::Conflict => {
                claim.told = None;
                Err(Error::unavailable("the slow tier's manifest has changed").because(e))
            }
            Err(e) => {
                claim.told = None;
                Err(e)
            }
        }
    }

    /// Puts a manifest anew of which neither copy is whole, if what is left of it shows that this folder's writer put it:
    /// on the condition that it still lies there, and with everything in it. `false` if nothing shows that, or it is gone.
    pub(crate) fn put_manifest_anew(&self) -> Result<bool> {
        let bucket = &*self.env.bucket;
        let info = bucket.head(KEY)?;
        let request = RangeRequest { key: KEY.to_owned(), offset: 0, len: info.bytes };
        let missing = || Err(Error::internal("a range has no answer"));
        let left = bucket.get_ranges(&[request]).pop().unwrap_or_else(missing)?;
        let ours: Vec<Vec<u8>> = match &*self.tier.claims.lock() {
            Some(claims) => claims.iter().map(|&number| encode_claims(&[number])).collect(),
            None => vec![encode_writer(self.tier.mark())],
        };
        if !ours.iter().any(|ours| left.windows(ours.len()).any(|part| part == *ours)) {
            return Ok(false);
        }
        self.note_claim(None)?;
        // Above every one that a name on the slow tier has: no segment is put over another.
        let named = bucket.list(INDEX_FOLDER)?.into_iter().filter_map(|object| {
            object.key.strip_suffix(".seg")?.rsplit_once('-')?.1.parse::<u64>().ok()
        });
        let known = manifest::epochs_in(&left).into_iter().chain([self.tier.epoch()]);
        let epoch = named.chain(known).max().unwrap_or(0) + 1;
        *self.tier.claim.lock() = Some(Claim {
            epoch,
            version: Some(info.version),
            looked_at_ms: i64::MIN,
            told: None,
            segments: BTreeMap::new(),
            dead_segments: Vec::new(),
        });
        self.tier.epoch.store(epoch, Relaxed);
        while self.tell_slow_tier()? {}
        // The next claim finds what it does not name.
        self.tier.forget_claim();
        Ok(true)
    }

    /// After a put whose end is not known.
    fn read_back(&self, claim: &mut Claim) -> Result<()> {
        let found = read(&*self.env.bucket)?.ok_or_else(|| {
            Error::unavailable(
                "the slow tier's manifest has been removed by somebody; restart this server to put it \
                 anew",
            )
        })?;
        let is_ours = (found.epoch, found.writer) == (claim.epoch, self.tier.writer);
        if !is_ours && !self.planted(Planted::FenceSkipped) {
            return Err(self.tier.fence(&found));
        }
        claim.version = Some(found.version);
        Ok(())
    }

    /// Removes index segments that no manifest has named for the grace time. Tables are the tree's.
    pub(crate) fn collect_dead_segments(&self, now: Timestamp) -> Result<usize> {
        let mut lane = self.tier.claim.lock();
        let Some(claim) = lane.as_mut().filter(|claim| claim.told.is_some()) else { return Ok(0) };
        let grace_ms = self.options.tree.bucket_grace_ms;
        let is_due = |since: Timestamp| now.saturating_sub(since) >= grace_ms;
        let due = claim.dead_segments.iter().filter(|dead| is_due(dead.1));
        let keys: Vec<String> = due.map(|dead| dead.0.clone()).collect();
        if !keys.is_empty() {
            self.env.bucket.delete(&keys)?;
            claim.dead_segments.retain(|dead| !keys.contains(&dead.0));
        }
        Ok(keys.len())
    }

    /// Makes a database in the empty folder of `env` of what its slow tier says of itself, and takes the slow
    /// tier over: whoever wrote it before is fenced. Open it afterwards. Killed anywhere, it can be called
    /// again. `None` if there is a database in the folder already: then nothing was done.
    ///
    /// What had not been uploaded is not there: see [`crate::EngineOptions::tree`], `upload_age_ms_max`.
    ///
    /// # Errors
    /// `NotFound` if the slow tier has no manifest, `Invalid` if it is of a newer version, `Corrupt`,
    /// `Busy` when another process has the folder, `Conflict` when another restores at the same time,
    /// `Unavailable`.
    pub fn restore(env: &Env) -> Result<Option<RestoreReport>> {
        let _lock = env.disk.lock()?;
        let (mut local, found) = Manifest::open(Arc::clone(&env.disk))?;
        if !found.edits.is_empty() {
            return Ok(None);
        }
        let found = read_some(env)?;
        let writer = Writer { mark: new_mark(), number: new_mark() };
        // First of all: what is there does not change any more, whoever wrote it.
        claim_as(&*env.bucket, Some(found.clone()), writer, &found.state)?;
        let mut report = RestoreReport { written_ms: found.written_ms, ..RestoreReport::default() };
        fetch_segments(env, &found, &mut report)?;
        let is_engine =
            |part: &[u8]| matches!(part.first(), Some(&(TAG_WRITER | TAG_SLOW | TAG_CLAIM)));
        let state = found.state.without(Room::Engine, is_engine);
        let state = state
            .with(Room::Engine, encode_writer(writer.mark))
            .with(Room::Engine, encode_claims(&[writer.number]));
        local.commit(&Edit::default(), || state)?;
        Ok(Some(report))
    }
}

impl Claim {
    /// The manifest names `files` and no others.
    fn retire_segments(&mut self, files: &[(String, u64)], now: Timestamp) {
        let is_dead = |path: &String| files.iter().all(|file| file.0 != *path);
        let dead = self.segments.iter().filter(|(path, _)| is_dead(path));
        let dead: Vec<(String, u64)> = dead.map(|(path, epoch)| (path.clone(), *epoch)).collect();
        for (path, epoch) in dead {
            self.dead_segments.push((segment_key(&path, epoch), now));
            self.segments.remove(&path);
        }
    }
}

impl Described {
    /// Objects of index segments that it does not name.
    pub(crate) fn orphans(&self, bucket: &dyn Bucket) -> Result<Vec<String>> {
        let segments = self.segments()?;
        let is_named = |key: &String| segments.iter().any(|segment| segment.key == *key);
        let objects = bucket.list(INDEX_FOLDER)?.into_iter().map(|object| object.key);
        Ok(objects.filter(|key| !is_named(key)).collect())
    }

    fn segments(&self) -> Result<Vec<Segment>> {
        let files = Index::files_of(&[&index_part(&self.state)])?;
        if files.len() != self.segment_epochs.len() {
            return Err(Error::corrupt(KEY, 0, "index segments and their epochs do not fit"));
        }
        let files = files.iter().zip(&self.segment_epochs);
        Ok(files.map(|((path, bytes), &epoch)| Segment::of(path, *bytes, epoch)).collect())
    }
}

/// An index segment on both tiers.
struct Segment {
    path: String,
    bytes: u64,
    key: String,
}

impl Segment {
    /// `index/7.seg` of epoch 3 is the object `index/7-3.seg`: numbers may be given again after a restore.
    fn of(path: &str, bytes: u64, epoch: u64) -> Segment {
        Segment { path: path.to_owned(), bytes, key: segment_key(path, epoch) }
    }
}

/// Index segments that are not the same there as here, for a check: an error and the path of each.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn differing_segments(env: &Env, described: &Described) -> Result<Vec<(Error, String)>> {
    let mut differing = Vec::new();
    for segment in described.segments()? {
        // Merged with others here since, perhaps.
        let Ok(file) = env.disk.open(&segment.path, OpenMode::Read) else { continue };
        let mut offset = 0;
        while offset < segment.bytes {
            let len = (segment.bytes - offset).min(COPY_BYTES);
            let request = RangeRequest { key: segment.key.clone(), offset, len };
            let mut here = vec![0; len as usize];
            file.read_at(offset, &mut here)?;
            let missing = || Err(Error::internal("a range has no answer"));
            match env.bucket.get_ranges(&[request]).pop().unwrap_or_else(missing) {
                Ok(there) if *there == *here => offset += len,
                Err(e) if *e.kind() == ErrorKind::Unavailable => return Err(e),
                _ => {
                    let what = "it is not what the index has here";
                    differing.push((Error::corrupt(&*segment.key, offset, what), segment.path));
                    break;
                }
            }
        }
    }
    Ok(differing)
}

/// Puts an index segment there as it is here.
pub(crate) fn put_again(env: &Env, described: &Described, path: &str) -> Result<()> {
    for segment in described.segments()?.iter().filter(|segment| segment.path == path) {
        put_file(env, segment)?;
    }
    Ok(())
}

fn put_file(env: &Env, segment: &Segment) -> Result<()> {
    let file = env.disk.open(&segment.path, OpenMode::Read)?;
    let mut body = vec![0; usize::try_from(segment.bytes).unwrap_or(usize::MAX)];
    file.read_at(0, &mut body)?;
    // Nobody else has this key, and whoever puts it again puts the same.
    env.bucket.put(&segment.key, body.into(), PutMode::Overwrite).map(|_| ())
}

/// Refuses to make a new database where the slow tier has one.
///
/// # Errors
/// `Conflict`, and `Unavailable` when nobody can tell.
pub(crate) fn check_unclaimed(bucket: &dyn Bucket) -> Result<()> {
    match read(bucket)? {
        None => Ok(()),
        Some(found) => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "there is no database in this folder, but the slow tier has one (epoch {}): start with \
                 --restore to take it over, with --read-only to follow it, or choose another prefix",
                found.epoch
            ),
        )),
    }
}

pub(crate) fn another_servers(found: &Described) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the slow tier is another server's (epoch {}), which has taken it over from this folder's, or this folder was put \
             back as it had been before: nothing there was changed; check it from that server's folder. To go on with this \
             one, without what is on the slow tier, give it a --slow-tier of its own by `firn check --repair \
             --forget-lost-history`",
            found.epoch
        ),
    )
}

/// Puts the manifest that was `found`, or `nothing`, as of the next epoch.
fn claim_as(
    bucket: &dyn Bucket,
    found: Option<Described>,
    writer: Writer,
    nothing: &Edit,
) -> Result<Claim> {
    let epoch = found.as_ref().map_or(0, |found| found.epoch) + 1;
    let (mode, state, segments) = match found {
        None => (PutMode::Create, nothing.clone(), BTreeMap::new()),
        Some(found) => {
            let files = Index::files_of(&[&index_part(&found.state)])?;
            let paths = files.into_iter().map(|file| file.0);
            let segments = paths.zip(found.segment_epochs).collect();
            (PutMode::IfVersion(found.version), found.state, segments)
        }
    };
    let is_writer = |part: &[u8]| matches!(part.first(), Some(&(TAG_WRITER | TAG_CLAIM)));
    let state = state
        .without(Room::Engine, is_writer)
        .with(Room::Engine, encode_writer(writer.mark))
        .with(Room::Engine, encode_claims(&[writer.number]));
    let put = manifest::encode_object(epoch, &state);
    let info = bucket.put(KEY, put.into(), mode)?;
    let version = Some(info.version);
    Ok(Claim {
        epoch,
        version,
        looked_at_ms: i64::MIN,
        told: None,
        segments,
        dead_segments: Vec::new(),
    })
}

/// The manifest that must be there.
///
/// # Errors
/// As [`read`], and `NotFound`.
pub(crate) fn read_some(env: &Env) -> Result<Described> {
    read(&*env.bucket)?.ok_or_else(|| {
        Error::not_found(
            "the slow tier has no manifest: nothing was ever uploaded there, or it is another place",
        )
    })
}

/// The slow tier's manifest; `None` if there is none.
///
/// # Errors
/// `Corrupt` if both its copies are damaged, `Invalid` for a newer version, `Unavailable`.
pub(crate) fn read(bucket: &dyn Bucket) -> Result<Option<Described>> {
    for _ in 0..READ_TRIES {
        let info = match bucket.head(KEY) {
            Ok(info) => info,
            Err(e) if *e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let request = RangeRequest { key: KEY.to_owned(), offset: 0, len: info.bytes };
        match bucket.get_ranges(&[request]).pop() {
            Some(Ok(bytes)) if bytes.len() as u64 == info.bytes => {
                return Described::decode(&bytes, info.version).map(Some);
            }
            // Shorter by now: another has been put.
            Some(Err(e)) if !matches!(e.kind(), ErrorKind::Corrupt { .. }) => return Err(e),
            _ => {}
        }
    }
    Err(Error::unavailable("the slow tier's manifest changes faster than it can be read"))
}

/// The version of the manifest, if one is there.
pub(crate) fn version(bucket: &dyn Bucket) -> Result<Option<String>> {
    match bucket.head(KEY) {
        Ok(info) => Ok(Some(info.version)),
        Err(e) if *e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl Described {
    fn decode(bytes: &[u8], version: String) -> Result<Described> {
        let bad = |e: Error| Error::corrupt(KEY, 0, e.what());
        let Object { epoch, state, damaged_at } = manifest::decode_object(KEY, bytes)?;
        let mut writer = Writer { mark: 0, number: 0 };
        let (mut written_ms, mut segment_epochs) = (0, Vec::new());
        for part in state.parts(Room::Engine) {
            match part.split_first() {
                Some((&TAG_WRITER, rest)) => writer.mark = decode_writer(rest)?,
                Some((&TAG_CLAIM, rest)) => writer.number = decode_writer(rest)?,
                Some((&TAG_SLOW, mut rest)) => {
                    written_ms = take_zigzag(&mut rest, "time of the manifest").map_err(bad)?;
                    let count_max = rest.len();
                    let count = take_count(&mut rest, count_max, "index segments").map_err(bad)?;
                    for _ in 0..count {
                        let epoch = take_varint(&mut rest, "epoch of a segment").map_err(bad)?;
                        segment_epochs.push(epoch);
                    }
                }
                _ => {}
            }
        }
        Ok(Described { epoch, writer, version, written_ms, state, segment_epochs, damaged_at })
    }
}

/// Which segments are the same here and there: known by their ends, which have the checksums of all the rest.
fn is_same(env: &Env, segments: &[Segment]) -> Result<Vec<bool>> {
    const END_BYTES: u64 = 64;
    let end_of = |segment: &Segment| {
        let len = segment.bytes.min(END_BYTES);
        RangeRequest { key: segment.key.clone(), offset: segment.bytes - len, len }
    };
    let local = |request: &RangeRequest, segment: &Segment| {
        let mut end = vec![0; request.len as usize];
        let file = env.disk.open(&segment.path, OpenMode::Read).ok()?;
        file.read_at(request.offset, &mut end).ok()?;
        (file.len().ok()? == segment.bytes).then_some(end)
    };
    // What is not here need not be asked for there.
    let ends: Vec<(RangeRequest, Option<Vec<u8>>)> = segments
        .iter()
        .map(|segment| (end_of(segment), segment))
        .map(|(request, segment)| {
            let end = local(&request, segment);
            (request, end)
        })
        .collect();
    let here = ends.iter().filter(|end| end.1.is_some()).map(|end| end.0.clone());
    let mut answers = env.bucket.get_ranges(&here.collect::<Vec<_>>()).into_iter();
    let same = ends.into_iter().map(|(_, end)| {
        let Some(end) = end else { return Ok(false) };
        match answers.next() {
            Some(Ok(there)) => Ok(*there == *end),
            Some(Err(e)) if *e.kind() == ErrorKind::Unavailable => Err(e),
            // Missing, or of another length.
            _ => Ok(false),
        }
    });
    same.collect()
}

/// Brings the index segments that `described` names into the folder, as far as they are not there.
pub(crate) fn fetch_segments(
    env: &Env,
    described: &Described,
    report: &mut RestoreReport,
) -> Result<()> {
    let segments = described.segments()?;
    env.disk.create_dir("index")?;
    env.disk.sync_dir("")?;
    let is_there = is_same(env, &segments)?;
    let missing = segments.iter().zip(is_there).filter(|(_, is_there)| !is_there);
    for (segment, _) in missing {
        fetch(env, segment)?;
        report.files += 1;
        report.bytes += segment.bytes;
    }
    env.disk.sync_dir("index")
}

/// Brings an index file of the folder with `mark`, whose index is `parts`, back from the slow tier; `false` if the
/// slow tier's manifest does not name the same.
pub(crate) fn fetch_lost(env: &Env, mark: u64, parts: &[&[u8]], path: &str) -> Result<bool> {
    let Some(described) = read(&*env.bucket)?.filter(|found| found.writer.mark == mark) else {
        return Ok(false);
    };
    let there = index_part(&described.state);
    if !Index::name_same(parts, &[&there], path)? {
        return Ok(false);
    }
    let segments = described.segments()?;
    let Some(segment) = segments.iter().find(|segment| segment.path == path) else {
        return Ok(false);
    };
    match env.bucket.head(&segment.key) {
        Ok(info) if info.bytes == segment.bytes => {}
        Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
        _ => return Ok(false),
    }
    fetch(env, segment)?;
    env.disk.sync_dir("index")?;
    Ok(true)
}

/// What the slow tier has of an index file, if it is this folder's: so many bytes from an offset on, if they come. For who
/// can tell whether they are the same.
pub(crate) fn copy_of(
    bucket: &dyn Bucket,
    (tier, tree): (&Tier, &Tree),
    path: &str,
) -> impl Fn(u64, u64) -> Option<Arc<[u8]>> {
    let described = read(bucket).ok().flatten().filter(|found| tier.is_ours(found, tree));
    let segments = described.and_then(|described| described.segments().ok());
    let segment = segments.into_iter().flatten().find(|segment| segment.path == path);
    move |offset, len| {
        let request = RangeRequest { key: segment.as_ref()?.key.clone(), offset, len };
        bucket.get_ranges(&[request]).pop()?.ok()
    }
}

/// An object becomes a file.
fn fetch(env: &Env, segment: &Segment) -> Result<()> {
    let Segment { path, bytes, key } = segment;
    match env.disk.remove(path) {
        Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = env.disk.open(path, OpenMode::Create)?;
    let mut offset = 0;
    while offset < *bytes {
        let len = (bytes - offset).min(COPY_BYTES);
        let request = RangeRequest { key: key.clone(), offset, len };
        let missing = || Err(Error::internal("a range has no answer"));
        let piece = env.bucket.get_ranges(&[request]).pop().unwrap_or_else(missing)?;
        if piece.len() as u64 != len {
            return Err(Error::unavailable(format!("{key}: a part of {len} bytes came; retry")));
        }
        file.write_at(offset, &piece)?;
        offset += len;
    }
    file.sync()
}

fn segment_key(path: &str, epoch: u64) -> String {
    let stem = path.strip_suffix(".seg").unwrap_or(path);
    format!("{stem}-{epoch}.seg")
}

fn index_part(state: &Edit) -> Vec<u8> {
    state.parts(Room::Index).next().map_or_else(Index::empty_part, <[u8]>::to_vec)
}

/// Names a data folder: no two have the same.
pub(crate) fn new_mark() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(crate) fn encode_writer(mark: u64) -> Vec<u8> {
    let mut out = vec![TAG_WRITER];
    out.extend_from_slice(&mark.to_le_bytes());
    out
}

/// The mark, if an engine's part has it.
pub(crate) fn mark_in(part: &[u8]) -> Option<Result<u64>> {
    match part.split_first() {
        Some((&TAG_WRITER, rest)) => Some(decode_writer(rest)),
        _ => None,
    }
}

/// The part of a folder; of the slow tier's manifest with one number.
pub(crate) fn encode_claims(numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![TAG_CLAIM];
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    out
}

/// What stands behind the tag of a folder's claims.
pub(crate) fn decode_claims(rest: &[u8]) -> Result<Vec<u64>> {
    let (numbers, []) = rest.as_chunks() else {
        return Err(Error::corrupt("manifest", 0, "the numbers of the folder's processes"));
    };
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

/// What stands behind the tag of a writer, or of a claim on the slow tier.
pub(crate) fn decode_writer(rest: &[u8]) -> Result<u64> {
    let mark = rest.try_into().map_err(|_| Error::corrupt("manifest", 0, "the writer's mark"))?;
    Ok(u64::from_le_bytes(mark))
}

fn encode_slow(now: Timestamp, epochs: &[u64]) -> Vec<u8> {
    let mut out = vec![TAG_SLOW];
    encode_zigzag(now, &mut out);
    encode_varint(epochs.len() as u64, &mut out);
    epochs.iter().for_each(|&epoch| encode_varint(epoch, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use firn_model::{CancelToken, Labels, RowBatch};
    use firn_sim::{Operation, Sim};

    use super::*;
    use crate::{EngineOptions, Lane, RecoveryProgress};

    fn open(sim: &Sim) -> Arc<Engine> {
        let options = EngineOptions { shard_count: 4, ..EngineOptions::default() };
        Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
    }

    /// All work that is due after a sample, its upload too; an error of the slow tier is left for later.
    fn upload(sim: &Sim, engine: &Engine) {
        let labels = Labels::from_pairs([("__name__", "m")]).expect("labels");
        let series = engine.resolve(&[labels]).remove(0).expect("resolves");
        let mut batch = RowBatch::default();
        batch.push(series, sim.env().clock.now_ms(), 1.0);
        engine.write(&mut batch).expect("a write");
        engine.flush().expect("a flush");
        sim.clock.advance(Duration::from_secs(6 * 3_600));
        while engine.step(Lane::Tree).is_ok_and(|step| step.is_some()) {}
    }

    /// What servers left that remembered no processes yet.
    fn forget_claims(sim: &Sim) {
        let (mut manifest, found) = Manifest::open(sim.env().disk).expect("a manifest");
        let mut state = Edit::default();
        for room in [Room::Engine, Room::Log, Room::Index, Room::Tree] {
            for part in recover::parts(&found, room) {
                if room != Room::Engine || part.first() != Some(&TAG_CLAIM) {
                    state = state.with(room, part.to_vec());
                }
            }
        }
        manifest.commit(&Edit::default(), || state).expect("a commit");
    }

    fn claims(sim: &Sim) -> Option<Vec<u64>> {
        let (_, found) = Manifest::open(sim.env().disk).expect("a manifest");
        let parts = recover::parts(&found, Room::Engine);
        let last = parts.iter().rfind(|part| part.first() == Some(&TAG_CLAIM))?;
        Some(decode_claims(&last[1..]).expect("claims"))
    }

    /// A program of before has written the folder last: what it put on the slow tier is known by the mark, even if the first claim
    /// does not get there, and can be mended. From then on the folder remembers.
    #[test]
    fn a_folder_that_remembers_no_processes_goes_by_the_mark() {
        let sim = Sim::new(2);
        upload(&sim, &open(&sim));
        forget_claims(&sim);
        assert_eq!(claims(&sim), None);
        let before = sim.bucket.bytes(KEY).expect("a manifest");

        sim.faults.set_rate(Operation::Put, 1.0);
        upload(&sim, &open(&sim));
        sim.faults.clear();
        assert_eq!(claims(&sim).expect("remembered").len(), 2);
        assert!(sim.bucket.bytes(KEY).expect("a manifest") == before);
        let engine = open(&sim);
        upload(&sim, &engine);
        assert!(!engine.tier.is_fenced());
        assert!(sim.bucket.bytes(KEY).expect("a manifest") != before);
        drop(engine);

        for is_ruined in [false, true] {
            forget_claims(&sim);
            if is_ruined {
                let ruin = |bytes: &mut Vec<u8>| {
                    let half = bytes.len() / 2;
                    [half - 1, 2 * half - 1].iter().for_each(|&at| bytes[at] ^= 1);
                };
                sim.bucket.damage(KEY, ruin).expect("a manifest");
            }
            let engine = open(&sim);
            let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
            assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
            assert_eq!(report.findings.len(), usize::from(is_ruined));
            upload(&sim, &engine);
            assert!(!engine.tier.is_fenced());
            drop(engine);
            assert!(claims(&sim).is_some());
        }
    }

    /// Two servers with copies of one folder claim what one of them found: were their objects the same, a put whose answer
    /// was lost would be taken for one's own by both.
    #[test]
    fn no_two_claims_are_the_same() {
        let put = |sim: &Sim| {
            let writer = Tier::new(7, None, false).writer;
            claim_as(&sim.bucket, None, writer, &Edit::default()).expect("a claim");
            let found = read(&sim.bucket).expect("readable").expect("there");
            assert_eq!((found.epoch, found.writer.mark), (1, 7));
            claim_as(&sim.bucket, Some(found), writer, &Edit::default()).expect("a claim");
            sim.bucket.bytes(KEY).expect("a manifest")
        };
        let [one, other] = [Sim::new(1), Sim::new(1)].map(|sim| put(&sim));
        assert_eq!(one.len(), other.len());
        assert_ne!(one, other);
    }
}
