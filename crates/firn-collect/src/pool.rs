//! The targets of all jobs, and the order of their scrapes.
//!
//! Holds no thread and reads no clock. The caller takes each scrape that is due with its scraper,
//! and brings the scraper back; so scrapes run side by side, and none waits for a lock. A new list
//! of targets is prepared without the pools, because that may take seconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use firn_model::{
    ErrorKind, HEAP_BLOCK_BYTES, Labels, Pool, Reservation, Result, SeriesRef, Timestamp,
};

use crate::config::{LabelSet, ScrapeConfig};
use crate::scrape::{ScrapeContext, TargetScraper, TargetStatus};
use crate::targets::Target;

mod list;
#[cfg(test)]
mod tests;

use self::list::ListedTarget;
pub use self::list::{KnownTarget, PreparedList};

/// A target in the lifetime of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(u64);

/// Targets that a discovery has found, with labels that they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredGroup {
    /// The labels of each target.
    pub targets: Vec<LabelSet>,
    /// Labels for targets that lack them.
    pub labels: LabelSet,
}

/// The targets of all jobs.
#[derive(Debug)]
pub struct ScrapePools {
    context: ScrapeContext,
    pools: BTreeMap<String, ScrapePool>,
    slots: HashMap<TargetId, Slot>,
    /// The scrapes and ends to come. An entry that does not agree with its slot is void.
    due: BinaryHeap<Reverse<(Timestamp, TargetId)>>,
    /// The targets of one group of samples, without those that leave: usually one.
    by_labels: HashMap<Labels, BTreeSet<TargetId>>,
    /// The live series of the targets with these labels, until one of them may change.
    alive: Option<(Labels, Arc<AliveSeries>)>,
    /// The series that were listed since a time.
    listed: (Timestamp, usize),
    next_id: u64,
    /// The time of the last call of [`ScrapePools::take_due`].
    latest: Timestamp,
}

/// The targets of a job.
#[derive(Debug)]
pub struct ScrapePool {
    job: Arc<ScrapeConfig>,
    /// By all labels, which the address and the parameters of the request are part of.
    targets: HashMap<Labels, TargetId>,
    dropped: Vec<Labels>,
    report: SyncReport,
    /// Why no target is scraped: there are too many.
    over_limit: Option<Arc<str>>,
    /// Why the last list was refused, while the targets of an earlier one stay.
    refused: Option<Arc<str>>,
    /// The memory of the labels of dropped targets.
    held: Reservation,
}

/// The outcome of the last list of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Targets that are scraped.
    pub active_count: usize,
    /// Targets that relabelling dropped.
    pub dropped_count: usize,
    /// Targets that cannot be scraped: the first errors.
    pub errors: Vec<String>,
    /// Their number.
    pub failed_count: usize,
    /// Whether there are more targets than `target_limit`.
    pub exceeds_limit: bool,
}

#[derive(Debug)]
struct Slot {
    target: Arc<Target>,
    job: Arc<ScrapeConfig>,
    public: Labels,
    /// The state to show while it is not that of the scraper.
    shown: Option<Box<TargetStatus>>,
    /// `None` while the caller has it.
    scraper: Option<Box<TargetScraper>>,
    due_at: Timestamp,
    state: SlotState,
    /// The memory of the target, without that of its series.
    _held: Reservation,
}

impl Slot {
    /// Takes the scraper for a scrape or an end. Until it is back, its present state is shown.
    fn take_scraper(&mut self) -> Option<Box<TargetScraper>> {
        let scraper = self.scraper.take()?;
        self.shown = Some(Box::new(scraper.status().clone()));
        Some(scraper)
    }

    fn status(&self) -> &TargetStatus {
        let own = self.scraper.as_deref().map(TargetScraper::status);
        self.shown.as_deref().or(own).unwrap_or(&TargetStatus::NONE)
    }
}

#[derive(Debug)]
enum SlotState {
    Active,
    /// Continues this scraper's series once it is back.
    Successor {
        of: TargetId,
    },
    /// Its series become stale, unless another target has them.
    Leaving {
        /// When its end was first tried.
        tried_at: Option<Timestamp>,
    },
    /// It is in flight, and another target continues its series.
    HandsOver {
        to: TargetId,
    },
}

/// Work that is due. The caller brings the scraper back with [`ScrapePools::done`].
#[derive(Debug)]
pub struct Due {
    /// The target.
    pub id: TargetId,
    /// Its scraper.
    pub scraper: Box<TargetScraper>,
    /// The work that is due.
    pub work: Work,
}

/// The kinds of work.
#[derive(Debug)]
pub enum Work {
    /// A scrape with samples at `ts`. With a text it fails for that reason without a request.
    Scrape {
        /// The time of its samples.
        ts: Timestamp,
        /// Why there is no request.
        refused: Option<Arc<str>>,
    },
    /// The target was removed: stale markers at `ts`.
    End {
        /// The time of the first scrape that it missed, or of the end if that is earlier.
        ts: Timestamp,
        /// Series that other targets have now.
        alive: Arc<AliveSeries>,
    },
}

/// The series of targets with the same labels.
#[derive(Debug)]
pub struct AliveSeries {
    /// `None` for all series: there are too many to list.
    listed: Option<HashSet<SeriesRef>>,
    _held: Reservation,
}

impl AliveSeries {
    /// Whether one of the targets has `series`.
    pub fn contains(&self, series: &SeriesRef) -> bool {
        self.listed.as_ref().is_none_or(|listed| listed.contains(series))
    }
}

/// A target in the list of targets.
#[derive(Clone, Copy, Debug)]
pub struct ActiveTarget<'a> {
    /// Its id.
    pub id: TargetId,
    /// Its job.
    pub job: &'a Arc<ScrapeConfig>,
    /// The target.
    pub target: &'a Arc<Target>,
    /// The state after its last scrape.
    pub status: &'a TargetStatus,
}

impl ScrapePools {
    /// No jobs.
    pub fn new(context: ScrapeContext) -> ScrapePools {
        ScrapePools {
            context,
            pools: BTreeMap::new(),
            slots: HashMap::new(),
            due: BinaryHeap::new(),
            latest: Timestamp::MIN,
            by_labels: HashMap::new(),
            alive: None,
            listed: (Timestamp::MIN, 0),
            next_id: 0,
        }
    }

    /// Sets the jobs of a configuration. Jobs that have not changed continue. The others
    /// wait for [`ScrapePools::sync`] with their targets. The targets of removed jobs leave.
    /// Returns the names of new and changed jobs.
    pub fn set_jobs(&mut self, jobs: &[Arc<ScrapeConfig>], now: Timestamp) -> Vec<String> {
        let names: HashSet<&str> = jobs.iter().map(|job| job.job_name.as_str()).collect();
        let gone: Vec<String> =
            self.pools.keys().filter(|name| !names.contains(name.as_str())).cloned().collect();
        for name in gone {
            if let Some(pool) = self.pools.remove(&name) {
                for id in pool.targets.into_values() {
                    self.leave(id, now);
                }
            }
        }
        let mut changed = Vec::new();
        for job in jobs {
            match self.pools.get_mut(&job.job_name) {
                Some(pool) if pool.job == *job => {}
                Some(pool) => {
                    pool.job = Arc::clone(job);
                    changed.push(job.job_name.clone());
                }
                None => {
                    let pool = ScrapePool {
                        job: Arc::clone(job),
                        targets: HashMap::new(),
                        dropped: Vec::new(),
                        report: SyncReport::default(),
                        over_limit: None,
                        refused: None,
                        held: self.context.budget.empty(Pool::Cache),
                    };
                    self.pools.insert(job.job_name.clone(), pool);
                    changed.push(job.job_name.clone());
                }
            }
        }
        changed
    }

    /// The target of `job` with `labels`, unless the job has changed.
    pub fn known(&self, job: &ScrapeConfig, labels: &Labels) -> Option<KnownTarget> {
        let pool = self.pools.get(&job.job_name)?;
        let (labels, id) = pool.targets.get_key_value(labels)?;
        let slot = self.slots.get(id)?;
        Arc::ptr_eq(&slot.job, &pool.job).then(|| KnownTarget {
            id: *id,
            labels: labels.clone(),
            target: Arc::clone(&slot.target),
        })
    }

    /// Sets the targets of a job to those of `list`, unless it was refused. Targets that were there
    /// before continue unchanged. Without effect for an unknown job. Between the first call of
    /// [`ScrapePools::known`] for `list` and this one, neither jobs nor targets are set.
    ///
    /// # Errors
    /// The error of `list`, or `Busy` without memory. The previous targets stay; see
    /// [`ScrapePool::refused`].
    pub fn sync(
        &mut self,
        job_name: &str,
        list: Result<PreparedList>,
        now: Timestamp,
    ) -> Result<SyncReport> {
        let Some(mut pool) = self.pools.remove(job_name) else {
            return Ok(SyncReport::default());
        };
        let synced = list.and_then(|list| self.sync_pool(&mut pool, list, now));
        let synced = synced.map_err(|error| match error.kind() {
            ErrorKind::Busy { .. } => {
                let remedy = self.context.budget.remedy("list fewer targets");
                error.context(format_args!("no memory is left for the targets: {remedy}"))
            }
            _ => error,
        });
        pool.refused = synced.as_ref().err().map(|error| error.to_string().into());
        self.pools.insert(job_name.to_owned(), pool);
        self.forget_void_work();
        synced
    }

    fn sync_pool(
        &mut self,
        pool: &mut ScrapePool,
        list: PreparedList,
        now: Timestamp,
    ) -> Result<SyncReport> {
        let PreparedList { targets, dropped, held, mut report } = list;
        // A target that replaces another one has its room.
        let more_count = targets.len().saturating_sub(pool.targets.len()) as u64;
        let room_bytes = more_count.saturating_mul(ROOM_BYTES_PER_TARGET);
        drop(self.context.budget.reserve(Pool::Cache, room_bytes)?);
        let limit = pool.job.target_limit;
        report.exceeds_limit = limit > 0 && targets.len() as u64 > limit;
        pool.over_limit = report.exceeds_limit.then(|| {
            let count = targets.len();
            format!("target_limit exceeded (number of targets: {count}, limit: {limit})").into()
        });
        (pool.dropped, pool.held) = (dropped, held);
        self.replace_targets(pool, targets, now);
        pool.report = report.clone();
        Ok(report)
    }

    /// Starts new targets and stops removed ones. A new target with the labels of a removed one
    /// continues its series.
    fn replace_targets(
        &mut self,
        pool: &mut ScrapePool,
        listed: HashMap<Labels, ListedTarget>,
        now: Timestamp,
    ) {
        let mut gone: HashMap<Labels, Vec<TargetId>> = HashMap::new();
        for (labels, id) in std::mem::take(&mut pool.targets) {
            let Some(slot) = self.slots.get(&id) else { continue };
            if !matches!(listed.get(&labels), Some(ListedTarget::Known(..))) {
                gone.entry(slot.public.clone()).or_default().push(id);
            }
        }
        pool.targets.reserve(listed.len());
        for (labels, listed) in listed {
            let id = match listed {
                ListedTarget::Known(id, changed) => {
                    if let (Some(slot), Some((target, held))) = (self.slots.get_mut(&id), changed) {
                        (slot.target, slot._held) = (target, held);
                    }
                    id
                }
                ListedTarget::New(target, held) => {
                    let old = gone.get_mut(&target.public_labels()).and_then(Vec::pop);
                    self.start(&pool.job, target, held, old, now)
                }
            };
            pool.targets.insert(labels, id);
        }
        for id in gone.into_values().flatten() {
            self.leave(id, now);
        }
    }

    fn start(
        &mut self,
        job: &Arc<ScrapeConfig>,
        target: Arc<Target>,
        held: Reservation,
        old: Option<TargetId>,
        now: Timestamp,
    ) -> TargetId {
        let id = TargetId(self.next_id);
        self.next_id = self.next_id.saturating_add(1);
        let mut scraper =
            Box::new(TargetScraper::new(job, Arc::clone(&target), &self.context, now));
        let mut state = SlotState::Active;
        let mut shown = None;
        if let Some(old) = old
            && let Some(slot) = self.slots.get_mut(&old)
        {
            let waits_for = match (&slot.state, slot.scraper.take()) {
                (SlotState::Successor { of }, _) => Some(*of),
                (_, Some(old_scraper)) => {
                    scraper.take_over(*old_scraper);
                    None
                }
                (_, None) => Some(old),
            };
            if waits_for.is_some() {
                shown = slot.shown.clone();
            }
            if waits_for != Some(old) {
                self.remove(old);
            }
            if let Some(of) = waits_for
                && let Some(slot) = self.slots.get_mut(&of)
            {
                // A running scrape ends first.
                slot.state = SlotState::HandsOver { to: id };
                state = SlotState::Successor { of };
            }
        }
        let public = scraper.public_labels().clone();
        let due_at = scraper.next_at();
        self.by_labels.entry(public.clone()).or_default().insert(id);
        forget_alive(&mut self.alive, &public);
        let job = Arc::clone(job);
        let scraper = Some(scraper);
        let slot = Slot { target, job, public, shown, scraper, due_at, state, _held: held };
        self.slots.insert(id, slot);
        self.due.push(Reverse((due_at, id)));
        id
    }

    /// The target is no longer in the list.
    fn leave(&mut self, id: TargetId, now: Timestamp) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if let SlotState::Successor { of } = slot.state
            && let Some(old) = self.slots.get_mut(&of)
        {
            old.state = SlotState::Leaving { tried_at: None };
            self.forget_labels(of);
        }
        self.forget_labels(id);
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.state = SlotState::Leaving { tried_at: None };
        match &slot.scraper {
            Some(scraper) if scraper.is_ended() => self.remove(id),
            Some(scraper) => {
                slot.due_at = end_by(scraper, now).max(now);
                let entry = (slot.due_at, id);
                self.due.push(Reverse(entry));
            }
            None => {}
        }
    }

    fn remove(&mut self, id: TargetId) {
        self.forget_labels(id);
        self.slots.remove(&id);
    }

    /// Forgets void entries of the work to come, once they are many: those of a target with a long
    /// interval would stay for as long.
    fn forget_void_work(&mut self) {
        const VOID_MIN: usize = 1_024;
        let slot_count = self.slots.len();
        if self.due.len() <= slot_count.saturating_mul(2).saturating_add(VOID_MIN) {
            return;
        }
        let waiting = self.slots.iter().filter(|(_, slot)| slot.scraper.is_some());
        self.due = waiting.map(|(id, slot)| Reverse((slot.due_at, *id))).collect();
    }

    /// The series of the target are no longer alive.
    fn forget_labels(&mut self, id: TargetId) {
        let Some(slot) = self.slots.get(&id) else { return };
        let Some(ids) = self.by_labels.get_mut(&slot.public) else { return };
        if ids.remove(&id) {
            forget_alive(&mut self.alive, &slot.public);
        }
        if ids.is_empty() {
            self.by_labels.remove(&slot.public);
        }
    }

    /// When the next work is due.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes work that is due at `now`. If the clock was set back, all work is planned again.
    pub fn take_due(&mut self, now: Timestamp) -> Option<Due> {
        if now.saturating_add(SET_BACK_MS_MIN) < self.latest {
            self.follow_clock(now);
        }
        self.latest = now;
        loop {
            let Reverse((at, id)) = *self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
            self.due.pop();
            let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.due_at == at) else {
                continue;
            };
            match &slot.state {
                SlotState::Leaving { .. } => {
                    if let Some(due) = self.take_end(id, now) {
                        return Some(due);
                    }
                }
                SlotState::Active => {
                    let Some(mut scraper) = slot.take_scraper() else { continue };
                    forget_alive(&mut self.alive, &slot.public);
                    let ts = scraper.start(now);
                    let pool = self.pools.get(&slot.job.job_name);
                    let refused = pool.and_then(|pool| pool.over_limit.clone());
                    return Some(Due { id, scraper, work: Work::Scrape { ts, refused } });
                }
                // Its first scrape waits for the last one of the old target.
                SlotState::Successor { .. } | SlotState::HandsOver { .. } => {}
            }
        }
    }

    fn follow_clock(&mut self, now: Timestamp) {
        self.due.clear();
        for (id, slot) in &mut self.slots {
            let Some(scraper) = &mut slot.scraper else { continue };
            scraper.follow_clock(now);
            slot.due_at = match slot.state {
                SlotState::Leaving { .. } => end_by(scraper, now),
                _ => scraper.next_at(),
            };
            self.due.push(Reverse((slot.due_at, *id)));
        }
    }

    fn take_end(&mut self, id: TargetId, now: Timestamp) -> Option<Due> {
        let Some(alive) = self.alive(id, now) else {
            // Another target is being scraped: its series are known afterwards.
            let slot = self.slots.get_mut(&id)?;
            slot.due_at = now.saturating_add(RETRY_MS);
            self.due.push(Reverse((slot.due_at, id)));
            return None;
        };
        let slot = self.slots.get_mut(&id)?;
        let scraper = slot.take_scraper()?;
        if let SlotState::Leaving { tried_at } = &mut slot.state {
            // Not later than now: the clock may have been set back.
            *tried_at = Some(tried_at.map_or(now, |at| at.min(now)));
        }
        let ts = scraper.next_at().min(now);
        Some(Due { id, scraper, work: Work::End { ts, alive } })
    }

    /// The series of targets with the labels of `id`, which leaves. `None` while one of them is
    /// being scraped, and if many were listed just now: scrapes wait meanwhile.
    fn alive(&mut self, id: TargetId, now: Timestamp) -> Option<Arc<AliveSeries>> {
        let public = &self.slots.get(&id)?.public;
        if let Some((labels, alive)) = &self.alive
            && labels == public
        {
            return Some(Arc::clone(alive));
        }
        let others = self.by_labels.get(public);
        let is_small = others.is_none_or(|others| others.len() <= SAME_LABELS_MAX);
        let mut scrapers = Vec::new();
        for other in others.into_iter().flatten().filter(|_| is_small) {
            scrapers.push(self.slots.get(other)?.scraper.as_deref()?);
        }
        let count: usize = scrapers.iter().map(|scraper| scraper.live_count()).sum();
        let is_small = is_small && count <= ALIVE_COUNT_MAX;
        if is_small && count > 0 {
            let (since, listed) = self.listed;
            let is_over = now < since || now >= since.saturating_add(RETRY_MS);
            let (since, listed) = if is_over { (now, 0) } else { (since, listed) };
            if listed >= ALIVE_COUNT_MAX {
                return None;
            }
            self.listed = (since, listed.saturating_add(count));
        }
        let bytes = count.saturating_mul(ALIVE_SERIES_BYTES) as u64;
        let held = match is_small {
            true => self.context.budget.reserve(Pool::Requests, bytes).ok(),
            false => None,
        };
        let listed = held.is_some().then(|| {
            let mut listed = HashSet::with_capacity(count);
            scrapers.iter().for_each(|scraper| scraper.live_series(&mut listed));
            listed
        });
        let _held = held.unwrap_or_else(|| self.context.budget.empty(Pool::Requests));
        let alive = Arc::new(AliveSeries { listed, _held });
        self.alive = Some((public.clone(), Arc::clone(&alive)));
        Some(alive)
    }

    /// Brings a scraper back.
    pub fn done(&mut self, id: TargetId, mut scraper: Box<TargetScraper>, now: Timestamp) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        scraper.follow_clock(now);
        slot.shown = None;
        match slot.state {
            SlotState::Active => {
                slot.due_at = scraper.next_at();
                slot.scraper = Some(scraper);
                let entry = (slot.due_at, id);
                self.due.push(Reverse(entry));
            }
            SlotState::Leaving { .. } if scraper.is_ended() => self.remove(id),
            // Not from `end_at`, which may be years away.
            SlotState::Leaving { tried_at: Some(at) } if now > at.saturating_add(END_TRIES_MS) => {
                self.remove(id);
            }
            SlotState::Leaving { .. } => {
                // Later than now: an end that was not written is tried again.
                let pause_ms = scraper.interval_ms().min(END_WAIT_MS_MAX);
                slot.due_at = end_by(&scraper, now).max(now.saturating_add(pause_ms));
                slot.scraper = Some(scraper);
                let entry = (slot.due_at, id);
                self.due.push(Reverse(entry));
            }
            SlotState::HandsOver { to } => {
                self.remove(id);
                if let Some(slot) = self.slots.get_mut(&to) {
                    slot.shown = None;
                    if let Some(successor) = &mut slot.scraper {
                        successor.take_over(*scraper);
                        slot.due_at = successor.next_at();
                    }
                    if matches!(slot.state, SlotState::Successor { .. }) {
                        slot.state = SlotState::Active;
                    }
                    let entry = (slot.due_at, to);
                    self.due.push(Reverse(entry));
                }
            }
            // A target that waits is never in flight.
            SlotState::Successor { .. } => slot.scraper = Some(scraper),
        }
    }

    /// The scraper of a target is lost, because its work has panicked: a new one replaces it.
    pub fn lost(&mut self, id: TargetId, now: Timestamp) {
        let Some(slot) = self.slots.get(&id) else { return };
        let scraper = TargetScraper::new(&slot.job, Arc::clone(&slot.target), &self.context, now);
        self.done(id, Box::new(scraper), now);
    }

    /// Whether the target is in a list, or in flight, or its series are not stale yet.
    pub fn contains(&self, id: TargetId) -> bool {
        self.slots.contains_key(&id)
    }

    /// The jobs by name.
    pub fn pools(&self) -> impl Iterator<Item = (&str, &ScrapePool)> {
        self.pools.iter().map(|(name, pool)| (name.as_str(), pool))
    }

    /// The targets of a job, in no order.
    pub fn targets<'a>(&'a self, pool: &'a ScrapePool) -> impl Iterator<Item = ActiveTarget<'a>> {
        let slots = pool.targets.values().filter_map(|id| Some((*id, self.slots.get(id)?)));
        slots.map(|(id, slot)| ActiveTarget {
            id,
            job: &slot.job,
            target: &slot.target,
            status: slot.status(),
        })
    }
}

impl ScrapePool {
    /// The job.
    pub fn job(&self) -> &ScrapeConfig {
        &self.job
    }

    /// The discovered labels of dropped targets: at most `keep_dropped_targets`.
    pub fn dropped(&self) -> &[Labels] {
        &self.dropped
    }

    /// The reason why the last list of targets was refused. The targets are those of an earlier
    /// one, if there was one.
    pub fn refused(&self) -> Option<&Arc<str>> {
        self.refused.as_ref()
    }

    /// The outcome of the last list of targets that was not refused.
    pub fn report(&self) -> &SyncReport {
        &self.report
    }
}

// The series of a target's report, and a scrape that waits. They are reserved later, so a list for
// which there is no room is refused: otherwise its targets take the memory of all other scrapes.
const ROOM_BYTES_PER_TARGET: u64 = 4 << 10;
// A table has up to 16/7 times as many places as entries, each with a byte of its own.
const PLACES_PER_ENTRY: usize = 3;
// The memory of a target, without its labels: its places in the tables of slots, of label sets and
// of two lists, of which one replaces the other; its time; the target, its scraper, and the state
// that is shown while it is scraped.
const TARGET_BYTES: usize = PLACES_PER_ENTRY
    * (size_of::<(TargetId, Slot)>()
        + size_of::<(Labels, BTreeSet<TargetId>)>()
        + size_of::<(Labels, ListedTarget)>()
        + size_of::<(Labels, TargetId)>())
    + 2 * size_of::<(Timestamp, TargetId)>()
    // A node of a set has room for eleven.
    + 14 * size_of::<TargetId>()
    + size_of::<Target>()
    + size_of::<TargetScraper>()
    + size_of::<TargetStatus>()
    + 5 * HEAP_BLOCK_BYTES;

/// The memory of a target, without that of its series.
fn target_bytes(target: &Target) -> u64 {
    // Those of samples are a set of their own.
    let labels = [&target.labels, &target.discovered, &target.labels];
    labels.into_iter().map(labels_bytes).fold(TARGET_BYTES as u64, u64::saturating_add)
}

fn forget_alive(alive: &mut Option<(Labels, Arc<AliveSeries>)>, public: &Labels) {
    if alive.as_ref().is_some_and(|(labels, _)| labels == public) {
        *alive = None;
    }
}

/// The memory of labels in a list that grows.
fn labels_bytes(labels: &Labels) -> u64 {
    const OWN_BYTES: usize = 2 * size_of::<Labels>() + 2 * HEAP_BLOCK_BYTES;
    OWN_BYTES.saturating_add(labels.as_encoded().len()) as u64
}

// Stale markers that cannot be written for this long are of no use: their series are out of the
// lookback of most queries.
const END_TRIES_MS: i64 = 600_000;
// An end waits at most this long for the next scrape of a successor. That of an interval of five
// minutes, the usual lookback, waits for ten and a half.
const END_WAIT_MS_MAX: i64 = 900_000;
// How long an end waits for a scrape of a target with the same labels.
const RETRY_MS: i64 = 1_000;
// The series of a target that leaves are compared with those of as many targets with the same
// labels, and with as many of their series. Beside more of them none becomes stale: those of
// reports, at least, have new samples. About as many are listed each second.
const SAME_LABELS_MAX: usize = 16;
const ALIVE_COUNT_MAX: usize = 1 << 20;
// A place of a set that is at least seven sixteenths full.
const ALIVE_SERIES_BYTES: usize = 3 * size_of::<SeriesRef>();

// A smaller step delays work by as much and needs no new plan.
const SET_BACK_MS_MIN: i64 = 1_000;

/// When the series of a target that leaves become stale: late enough that samples of a successor
/// have come.
fn end_at(scraper: &TargetScraper) -> Timestamp {
    let interval_ms = scraper.interval_ms();
    scraper.next_at().saturating_add(interval_ms).saturating_add(interval_ms / 10)
}

/// [`end_at`], but soon for a target with a long interval: it holds its memory until its end.
fn end_by(scraper: &TargetScraper, now: Timestamp) -> Timestamp {
    end_at(scraper).min(now.saturating_add(END_WAIT_MS_MAX))
}
