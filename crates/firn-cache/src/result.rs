//! The result cache: answers of range queries that are never stale.
//!
//! **Read path**: [`ResultCache::begin`], take a snapshot, [`ResultCache::lookup`] with its number,
//! compute the one missing range of steps from that snapshot, [`ResultCache::fill`].
//!
//! **Invalidation**: the engine announces each change before it becomes visible. The change waits
//! in an [`Inbox`], so that writers do not meet at one lock. Before anything cached is read, filled
//! in or made durable, all waiting changes are cut out of everything cached. A change is also cut
//! out of every answer that was computed from an older snapshot, when that answer is filled in.
//!
//! **Why a hit equals the computed answer**: a cached step was computed from a snapshot that is not
//! newer, and no change since touched it, or it would have been cut out before the change became
//! visible. A change that is announced and not yet visible costs a hit, never correctness. New
//! series are announced too, before their first change, and matched against the selectors of
//! everything cached.
//!
//! Source: TSCache, section 3, for the cache; the invalidation protocol is FirnDB's own.

use std::fmt;
use std::ops::DerefMut;
use std::sync::Arc;

use firn_env::Disk;
use firn_model::{
    Budget, Change, ChangeSink, CommitSeq, ErrorKind, GroupId, Labels, Matcher, Pool, Reclaim,
    Reservation, Result, SeriesRef, TimeRange, Timestamp,
};

use super::inbox::{INBOX_BYTES_MAX, Inbox};
use super::sync::Mutex;
use crate::answer::{Answer, Collector, encode_steps, encoding_bytes_max};
use crate::background::Wake;
use crate::changes::Recent;
use crate::dependency::{
    Dependency, Grid, Span, decode_note, encode_key, encode_note, grid_of_key,
};
use crate::hot::{HotAnswers, part_bytes, part_of, width, without};
use crate::known::KnownQueries;
use crate::lock;
use crate::mutant::mutant;
use crate::selectors::{Groups, Selectors, TRIAL_WORK_MAX, Use, may_match};
use crate::shares::Shares;
use crate::store::{DeclineReason, Fill, Lookup, OwnerHistory, Store, StoreOptions, StoreStats};

/// The field of a store that contains answers.
const FIELD: u64 = 0;
/// If changes cut a fill into more pieces, only the newest ones are kept.
const PIECES_MAX: usize = 16;
/// The work of matching the latest new series against the selectors of one fill.
const FILL_TRIAL_WORK_MAX: usize = 16 * TRIAL_WORK_MAX;
/// Upper bound of the steps reserved after the cached ones of each series.
const STEPS_AHEAD_MAX: usize = 1_024;

/// How large a result cache may be and how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct ResultOptions {
    /// The store of the answers.
    pub store: StoreOptions,
    /// Changes that are remembered for queries in flight. A query during which more are announced
    /// is not cached.
    pub change_count_max: usize,
    /// New series that are remembered for queries in flight.
    pub defined_count_max: usize,
    /// Groups of one selector that are listed; with more, every change is assumed to touch it.
    pub group_count_max: usize,
    /// A part that several expressions share is cached by itself if a step of one of them reads at
    /// least this many samples: with fewer, computing it again costs less than keeping it.
    pub shared_samples_min: u64,
    /// A cached answer with more bytes in slabs is not read but computed, under the query's limits.
    pub answer_bytes_max: u64,
    /// Bytes of decoded answers in memory. They are released first when memory is short.
    pub hot_bytes_max: u64,
}

impl Default for ResultOptions {
    fn default() -> ResultOptions {
        ResultOptions {
            store: StoreOptions::default(),
            change_count_max: 16_384,
            defined_count_max: 16_384,
            group_count_max: 8_192,
            shared_samples_min: 1_000,
            answer_bytes_max: 64 << 20,
            hot_bytes_max: 32 << 20,
        }
    }
}

/// A range query.
#[derive(Clone, Copy, Debug)]
pub struct ResultQuery<'a> {
    /// The expression as normalised text: equal texts have equal meanings.
    pub expression: &'a str,
    /// The first step.
    pub start: Timestamp,
    /// No step is later.
    pub end: Timestamp,
    /// The distance between steps, above 0.
    pub step_ms: i64,
    /// How far back a selector looks.
    pub lookback_ms: i64,
    /// Every selector of the expression. The answer must depend on nothing else: not on the clock,
    /// not on the query's start and end.
    pub dependencies: &'a [Dependency],
}

/// A query in flight, since before its snapshot.
#[derive(Debug)]
pub struct Session {
    defined_count: u64,
    clear_count: u64,
    /// The query's budget: memory for reading, decoding and encoding answers is reserved here.
    budget: Budget,
}

/// The cached part of an answer.
#[derive(Debug)]
pub struct CachedAnswer {
    /// The cached steps.
    pub answer: Answer,
    /// The reservation of their memory.
    pub held: Reservation,
    /// The first and the last of the missing steps; `None` for a hit. All steps before and after
    /// them are in `answer`.
    pub missing: Option<(Timestamp, Timestamp)>,
    /// The cached answer exceeds [`ResultOptions::answer_bytes_max`] or the query's memory. The
    /// computed one is not kept either: it would replace the cached one.
    pub is_too_large: bool,
}

/// The steps of a query that may be known by its text.
#[derive(Clone, Copy, Debug)]
pub struct QueryRange {
    /// The first step.
    pub start: Timestamp,
    /// No step is later.
    pub end: Timestamp,
    /// The distance between steps, above 0.
    pub step_ms: i64,
    /// How far back a selector looks.
    pub lookback_ms: i64,
    /// The samples after this time are here; those before it may have been removed.
    pub oldest: Option<Timestamp>,
}

/// The text that a reader has made of a whole cached answer.
#[derive(Clone, Debug)]
pub struct CachedText {
    /// The text.
    pub text: Arc<[u8]>,
    /// Number of points of the answer.
    pub point_count: u64,
    /// Number of steps of the answer, with points or without.
    pub step_count: u64,
}

/// A text that [`ResultCache::keep_text`] keeps.
#[derive(Debug)]
pub struct TextTicket {
    query: Arc<str>,
    expression: Box<str>,
    lookback_ms: i64,
    dependencies: Vec<Dependency>,
    key: Arc<[u8]>,
    range: TimeRange,
    number: CommitSeq,
    clear_count: u64,
    form: u8,
    point_count: u64,
}

/// Counters of a result cache, and its present size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultStats {
    /// Those of the store.
    pub store: StoreStats,
    /// Steps that were answered from the cache.
    pub steps_hit: u64,
    /// Steps that had to be computed.
    pub steps_missed: u64,
    /// Lookups answered from decoded answers in memory: no slab was read.
    pub hot_hits: u64,
    /// Lookups answered with a kept text.
    pub text_hits: u64,
    /// Bytes of decoded answers and their texts.
    pub hot_bytes: u64,
    /// Answers that were kept, completely or in part.
    pub fills: u64,
    /// Answers that were not kept: memory was short, or the query took too long.
    pub fills_refused: u64,
    /// Ranges that changes cut out of cached answers.
    pub trims: u64,
    /// Ranges that changes cut out of answers in flight.
    pub fill_trims: u64,
    /// Distinct selectors.
    pub selectors: u64,
    /// Bytes of memory of the selectors.
    pub selector_bytes: u64,
}

/// A cache of the answers of range queries. Attach it to the engine as its [`ChangeSink`].
///
/// Lock order: `state`, then the locks of [`Store`] or of the inbox. `state` is never held over
/// I/O.
pub struct ResultCache {
    store: Store,
    options: ResultOptions,
    inbox: Inbox,
    /// May lack changes that wait in the inbox; [`ResultCache::current`] applies them.
    state: Mutex<ResultState>,
}

struct ResultState {
    recent: Recent,
    /// Empty; its memory is used again.
    taken: Vec<Change>,
    selectors: Selectors,
    hot: HotAnswers,
    known: KnownQueries,
    shares: Shares,
    /// How often the cache was cleared.
    clear_count: u64,
    memory: Reservation,
    stats: ResultStats,
}

impl ResultCache {
    /// Opens the cache in `folder`. `recovered` states which changes are announced again with
    /// [`ResultCache::replayed`]; `None` if cached answers may reflect changes that the engine has
    /// lost: then the cache starts empty. Until [`ResultCache::rematch`] is called, every change is
    /// assumed to touch every selector.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: ResultOptions,
        recovered: Option<OwnerHistory>,
    ) -> Result<ResultCache> {
        let recovered = match recovered {
            Some(recovered) => recovered,
            None => {
                Store::forget(&*disk, folder)?;
                OwnerHistory::IMMUTABLE
            }
        };
        let store = Store::open(disk, folder, budget, options.store, recovered)?;
        let mut selectors = Selectors::default();
        for key in store.keys(FIELD) {
            let known = decode_note(&key.note).and_then(|note| Ok((note, grid_of_key(&key.text)?)));
            let Ok((dependencies, grid)) = known else {
                store.trim(&key.text, FIELD, TimeRange::ALL);
                continue;
            };
            for Dependency { matchers, span } in dependencies {
                let one = Use { key: Arc::clone(&key.text), span, grid, filled: key.hull };
                selectors.add(&matchers, &Groups::Any, options.group_count_max, one);
            }
        }
        let recent = Recent::new(
            options.change_count_max,
            options.defined_count_max,
            recovered.replays_after,
        );
        let memory = budget.empty(Pool::Cache);
        let (hot, stats) = (HotAnswers::new(options.hot_bytes_max), ResultStats::default());
        let shares = Shares::default();
        let state = ResultState {
            recent,
            taken: Vec::new(),
            selectors,
            hot,
            known: KnownQueries::default(),
            shares,
            clear_count: 0,
            memory,
            stats,
        };
        let cache = ResultCache {
            store,
            options,
            inbox: Inbox::new(),
            state: Mutex::new(&lock::RESULTS, state),
        };
        if !cache.state.lock().settle() {
            cache.clear();
        }
        Ok(cache)
    }

    /// Announces again, after opening and before the first query, that changes up to `number`
    /// touched samples in `range` of unknown series. Slabs that were written without them lose the
    /// range.
    pub fn replayed(&self, range: TimeRange, number: CommitSeq) {
        if mutant!(self.options.store, InvalidationOff) {
            return;
        }
        let mut state = self.state.lock();
        let touch = |span: Span, samples: TimeRange| self.touched_steps(span, samples);
        state.selectors.touched(range, None, touch, |one, steps| {
            let steps = one.grid.steps_in(steps);
            if !steps.is_empty() {
                self.store.replay(number, &one.key, FIELD, one.grid.cells(steps));
            }
            true
        });
    }

    /// Calls `groups_of` for each selector without known groups: once after opening, when the index
    /// is available.
    ///
    /// # Errors
    /// Those of `groups_of`; the remaining selectors stay without groups.
    pub fn rematch(
        &self,
        mut groups_of: impl FnMut(&[Matcher]) -> Result<Vec<GroupId>>,
    ) -> Result<()> {
        let unmatched = self.state.lock().selectors.unmatched();
        for matchers in unmatched {
            let session = self.begin(&Budget::unlimited());
            let groups = groups_of(&matchers)?;
            let mut state = self.state.lock();
            let mut work_left = FILL_TRIAL_WORK_MAX;
            let limits = (&mut work_left, &self.options);
            if let Some(groups) = state.groups_now(&session, &matchers, &groups, limits) {
                state.selectors.set_groups(&matchers, groups);
            }
            state.settle();
        }
        Ok(())
    }

    /// Starts a query. Call it before its snapshot is taken: series defined from now on are matched
    /// when the answer is filled in. Its lookups and fills reserve their memory in `budget`.
    pub fn begin(&self, budget: &Budget) -> Session {
        let state = self.state.lock();
        let (defined_count, clear_count) = (state.recent.defined_count(), state.clear_count);
        Session { defined_count, clear_count, budget: budget.clone() }
    }

    /// The cached part of the answer for a snapshot with `number`.
    pub fn lookup(
        &self,
        session: &Session,
        question: &ResultQuery<'_>,
        number: CommitSeq,
    ) -> CachedAnswer {
        let budget = &session.budget;
        self.heard(number);
        let Some((grid, steps)) = question.steps() else {
            let is_empty = question.end < question.start;
            let missing = (!is_empty).then_some((question.start, question.end));
            return CachedAnswer::nothing(missing, budget);
        };
        if steps.is_empty() {
            return CachedAnswer::nothing(None, budget);
        }
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let is_later = mutant!(self.options.store, LaterAnswerReturned);
        let number = if is_later { CommitSeq(u64::MAX) } else { number };
        let range = grid.cells(steps);
        let ask = Lookup {
            key: &key,
            field: FIELD,
            range,
            number,
            partial_bytes_min: 0,
            bytes_max: self.options.answer_bytes_max,
        };
        let found = match self.recall(&ask, grid, budget) {
            Some(found) => found,
            None => self.read(&key, &ask, (grid, steps), budget),
        };
        self.state.lock().count(grid, steps, found.missing);
        found
    }

    /// Answers from the decoded answers in memory, if the store does not have more.
    fn recall(&self, ask: &Lookup<'_>, grid: Grid, budget: &Budget) -> Option<CachedAnswer> {
        let (known, answer) = self.state.lock().hot.get(ask.key, ask.range, ask.number)?;
        let missing = without(ask.range, known).next().unwrap_or(TimeRange::EMPTY);
        if self.store.is_off() || !self.store.missing(ask).covers(missing) {
            return None;
        }
        let missing_count = grid.count(grid.steps_in(missing)) as usize;
        let more = missing_count.min(STEPS_AHEAD_MAX);
        let held = budget.reserve(Pool::Query, part_bytes(&answer, known, more)).ok()?;
        let answer = part_of(&answer, known, more);
        let point_bytes = answer.point_count() * size_of::<f64>();
        self.store.count_use(ask, missing, point_bytes as u64);
        self.state.lock().stats.hot_hits += 1;
        let missing = grid.ends_of(missing);
        Some(CachedAnswer { answer, held, missing, is_too_large: false })
    }

    /// As [`ResultCache::recall_text`], for a query that was not parsed: its text is that of a
    /// ticket. Never waits: `None` also if another thread has the lock, or if a change that may
    /// touch an answer was not applied yet.
    pub fn recall_known(
        &self,
        query: &str,
        range: QueryRange,
        number: CommitSeq,
        form: u8,
    ) -> Option<CachedText> {
        let state = self.state.try_lock()?;
        let known = state.known.get(query)?;
        let QueryRange { start, end, step_ms, lookback_ms, oldest } = range;
        let is_same = known.lookback_ms == lookback_ms
            && oldest.is_none_or(|oldest| known.needed_from(start) > oldest);
        let frontier = state.selectors.frontier();
        let is_current = self.inbox.earliest().is_none_or(|earliest| earliest > frontier);
        if !is_same || !is_current {
            return None;
        }
        let expression = &*known.expression;
        let dependencies = &[];
        let question = ResultQuery { expression, start, end, step_ms, lookback_ms, dependencies };
        self.text(self.with_changes(state), &question, number, form)
    }

    /// The text in `form` that was kept of the whole answer for a snapshot with `number`.
    pub fn recall_text(
        &self,
        question: &ResultQuery<'_>,
        number: CommitSeq,
        form: u8,
    ) -> Option<CachedText> {
        self.text(self.current(), question, number, form)
    }

    fn text(
        &self,
        mut state: impl DerefMut<Target = ResultState>,
        question: &ResultQuery<'_>,
        number: CommitSeq,
        form: u8,
    ) -> Option<CachedText> {
        let (grid, steps) = question.steps().filter(|known| !known.1.is_empty())?;
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let range = grid.cells(steps);
        self.store.heard(number);
        let (text, point_count) = state.hot.text(&key, range, number, form)?;
        if self.store.is_off() {
            return None;
        }
        state.stats.hot_hits += 1;
        state.stats.text_hits += 1;
        state.count(grid, steps, None);
        drop(state);
        let (field, bytes_max) = (FIELD, u64::MAX);
        let ask = Lookup { key: &key, field, range, number, partial_bytes_min: 0, bytes_max };
        self.store.count_use(&ask, TimeRange::EMPTY, point_count * size_of::<f64>() as u64);
        Some(CachedText { text, point_count, step_count: grid.count(steps) })
    }

    /// A ticket to keep a text in `form` of the whole answer for the snapshot with `number`, which
    /// has `point_count` points. `query` is the text that was parsed. `None` if the text would not
    /// be kept: the answer is not in memory, or its steps are not requested repeatedly.
    pub fn expect_text(
        &self,
        session: &Session,
        question: &ResultQuery<'_>,
        number: CommitSeq,
        (form, point_count): (u8, u64),
        query: &Arc<str>,
    ) -> Option<TextTicket> {
        let (grid, steps) = question.steps().filter(|known| !known.1.is_empty())?;
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let range = grid.cells(steps);
        let is_wanted = self.state.lock().hot.wants_text(&key, range, number);
        let clear_count = session.clear_count;
        is_wanted.then(|| TextTicket {
            query: Arc::clone(query),
            expression: question.expression.into(),
            lookback_ms: question.lookback_ms,
            dependencies: question.dependencies.to_vec(),
            key,
            range,
            number,
            clear_count,
            form,
            point_count,
        })
    }

    /// Keeps the text of an answer until a change touches one of its steps, or a step is added.
    ///
    /// A step that a change has touched since the ticket's snapshot is not in memory, or belongs to
    /// a later snapshot. So the text is valid if the answer in memory has all of its steps, none
    /// of them from a later snapshot.
    pub fn keep_text(&self, ticket: TextTicket, text: &[u8]) {
        let text: Arc<[u8]> = text.into();
        let mut state = self.current();
        if ticket.clear_count == state.clear_count || mutant!(self.options.store, TextOutlivesClear)
        {
            let TextTicket { key, range, form, .. } = ticket;
            let is_earlier = mutant!(self.options.store, EarlierTextKept);
            let number = if is_earlier { CommitSeq(u64::MAX) } else { ticket.number };
            state.hot.keep_text(&key, range, number, form, (text, ticket.point_count));
            let known = (&*ticket.expression, ticket.lookback_ms, &*ticket.dependencies);
            state.known.add(&ticket.query, known);
            state.settle();
        }
    }

    /// Answers from the store, and keeps the decoded answer in memory.
    fn read(
        &self,
        key: &Arc<[u8]>,
        ask: &Lookup<'_>,
        (grid, steps): (Grid, TimeRange),
        budget: &Budget,
    ) -> CachedAnswer {
        let ticket = self.state.lock().hot.expect(key, ask.range, ask.number);
        let mut read_held = budget.empty(Pool::Query);
        let got = self.store.get_reserved(ask, &mut read_held);
        let missing = grid.ends_of(got.missing);
        let is_missing = |ts| missing.is_some_and(|(start, end)| start <= ts && ts <= end);
        let mut collector = Collector::new(grid.count(steps), budget.empty(Pool::Query));
        let mut failed = Ok(());
        let read = got.for_each(&mut |point| {
            if failed.is_ok() && !is_missing(point.ts) {
                failed = collector.add(point);
            }
        });
        let (found, known) = match read.and(failed) {
            Ok(()) => {
                let known = without(ask.range, got.missing).max_by_key(|part| width(*part));
                let is_too_large = got.declined.is_some_and(|reason| {
                    matches!(reason, DeclineReason::TooLarge | DeclineReason::NoMemory)
                });
                let (answer, held) = collector.finish();
                (CachedAnswer { answer, held, missing, is_too_large }, known)
            }
            Err(error) => {
                let is_too_large = !matches!(error.kind(), ErrorKind::Corrupt { .. });
                if !is_too_large {
                    // Not the answer that was written: never read it again.
                    self.store.trim(key, FIELD, ask.range);
                }
                let nothing = CachedAnswer::nothing(Some((steps.start, steps.end)), budget);
                (CachedAnswer { is_too_large, ..nothing }, None)
            }
        };
        if let Some(ticket) = ticket {
            let known = known.unwrap_or(TimeRange::EMPTY);
            let mut state = self.state.lock();
            state.hot.keep(key, ticket, known, &found.answer);
            state.settle();
        }
        found
    }

    /// Records that `expression` contains an expensive part that is queried like `part`.
    pub fn note_part(&self, part: &ResultQuery<'_>, expression: &str) {
        if let Some((grid, _)) = part.steps() {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.note(&key, expression);
        }
    }

    /// Marks a part as one that cannot be kept, or not used by an evaluation: it is not shared
    /// again.
    pub fn drop_shared_part(&self, part: &ResultQuery<'_>) {
        if let Some((grid, _)) = part.steps() {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.mark_unfit(&key);
        }
    }

    /// Whether several expressions share this part, so that its answer is worth keeping by itself.
    pub fn is_shared(&self, part: &ResultQuery<'_>) -> bool {
        part.steps().is_some_and(|(grid, _)| {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.is_shared(&key)
        })
    }

    /// Groups of a selector that are listed: [`ResultOptions::group_count_max`].
    pub fn group_count_max(&self) -> usize {
        self.options.group_count_max
    }

    /// Whether the groups of a dependency's selector are known: a cached answer depends on it.
    pub fn knows_groups(&self, dependency: &Dependency) -> bool {
        self.state.lock().selectors.groups_of(&dependency.matchers).is_some()
    }

    /// Keeps the answer of a query that was computed from the snapshot with `number`, without the
    /// steps that changed since. `question` covers the computed steps ([`CachedAnswer::missing`]);
    /// `groups` are, per dependency, the matching groups of the snapshot, or `None` where the cache
    /// knows them ([`ResultCache::knows_groups`]). Returns whether anything was kept.
    ///
    /// # Panics
    /// If there are not as many lists of groups as dependencies.
    pub fn fill(
        &self,
        session: &Session,
        question: &ResultQuery<'_>,
        number: CommitSeq,
        groups: &[Option<Vec<GroupId>>],
        answer: &Answer,
    ) -> bool {
        assert_eq!(groups.len(), question.dependencies.len(), "one list per dependency");
        let Some((grid, steps)) = question.steps().filter(|known| !known.1.is_empty()) else {
            return false;
        };
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let last_head = self.store.last_head(&key, FIELD);
        let bytes_max = encoding_bytes_max(answer, last_head.as_ref());
        let Ok(_held) = session.budget.reserve(Pool::Query, bytes_max as u64) else {
            self.state.lock().stats.fills_refused += 1;
            return false;
        };
        let encoded = encode_steps(answer, grid.iter(steps), last_head.as_ref());
        let note = encode_note(question.dependencies);
        let mut state = self.current();
        // The cause of the clear may be in this answer too.
        let is_outlived = session.clear_count != state.clear_count
            && !mutant!(self.options.store, FillOutlivesClear);
        for dependency in question.dependencies {
            let ResultState { selectors, hot, .. } = &mut *state;
            selectors.make_room(&dependency.matchers, |one| {
                hot.trim(&one.key, TimeRange::ALL);
                self.store.trim(&one.key, FIELD, TimeRange::ALL);
            });
        }
        let pieces = match encoded {
            Some(_) if !is_outlived => {
                state.admit(session, question.dependencies, number, groups, steps, &self.options)
            }
            _ => None,
        };
        let (Some((pieces, groups)), Some(encoded)) = (pieces, encoded) else {
            state.stats.fills_refused += 1;
            return false;
        };
        if mutant!(self.options.store, FillKeptLater) {
            drop(state);
            state = self.current();
        }
        for (dependency, groups) in question.dependencies.iter().zip(&groups) {
            let one = Use { key: Arc::clone(&key), span: dependency.span, grid, filled: steps };
            let count_max = self.options.group_count_max;
            state.selectors.add(&dependency.matchers, groups, count_max, one);
        }
        let mut is_kept = false;
        for piece in pieces {
            let piece = grid.steps_in(piece);
            if piece.is_empty() {
                continue;
            }
            let kept = self.store.set(&Fill {
                key: &key,
                field: FIELD,
                range: grid.cells(piece),
                number,
                note: &note,
                points: &encoded.points(piece.start, piece.end),
            });
            if !kept.is_empty() {
                is_kept = true;
                state.hot.extend(&key, kept, number, answer);
            }
        }
        state.settle();
        state.stats.fills += u64::from(is_kept);
        state.stats.fills_refused += u64::from(!is_kept);
        is_kept
    }

    /// Records a snapshot number: everything cached is valid as of it.
    pub fn heard(&self, number: CommitSeq) {
        // Waiting changes may have numbers up to this one.
        drop(self.current());
        self.store.heard(number);
    }

    /// The handle that wakes the background thread when there is a slab to write.
    pub fn wake(&self) -> Arc<Wake> {
        self.store.wake()
    }

    /// Does one unit of background work; see [`Store::work`]. Returns whether there was any.
    pub fn work(&self) -> bool {
        let is_done = self.store.work();
        let mut state = self.state.lock();
        // Keys leave the store with their slabs, without notice.
        let key_count = self.store.stats().keys as usize;
        if state.selectors.use_count() > 4 * key_count + 64 {
            let ResultState { selectors, hot, .. } = &mut *state;
            selectors.prune(|one| self.store.has_key(&one.key, FIELD) || hot.has_key(&one.key));
            state.settle();
        }
        is_done
    }

    /// Writes all slabs in memory.
    pub fn flush(&self) {
        self.store.flush();
    }

    /// Writes everything for the next open. Call it when all changes up to `number`, the last ones,
    /// are durable and announced.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the next open finds less.
    pub fn close(&self, number: CommitSeq) -> Result<()> {
        self.store.set_doubted(false);
        self.heard(number);
        self.store.flush();
        self.store.checkpoint().map(|_| ())
    }

    /// Removes everything.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        self.store.clear();
        state.clear_count += 1;
        if mutant!(self.options.store, TicketsReused) {
            state.hot = HotAnswers::new(self.options.hot_bytes_max);
        }
        state.hot.clear();
        state.known.clear();
        state.selectors = Selectors::default();
        state.settle();
    }

    /// Current counters and sizes.
    pub fn stats(&self) -> ResultStats {
        let state = self.current();
        ResultStats {
            store: self.store.stats(),
            selectors: state.selectors.count() as u64,
            selector_bytes: state.selectors.heap_bytes(),
            hot_bytes: state.hot.heap_bytes(),
            ..state.stats
        }
    }

    /// The locked state after all announced changes.
    fn current(&self) -> impl DerefMut<Target = ResultState> {
        self.with_changes(self.state.lock())
    }

    /// The locked state after all announced changes.
    fn with_changes<G: DerefMut<Target = ResultState>>(&self, mut state: G) -> G {
        let mut taken = std::mem::take(&mut state.taken);
        if !mutant!(self.options.store, ChangesNotTaken) {
            self.inbox.take(&mut taken);
        }
        taken.drain(..).for_each(|change| self.apply(&mut state, change));
        state.taken = taken;
        state
    }

    /// Cuts a change out of everything cached.
    fn apply(&self, state: &mut ResultState, change: Change) {
        if !mutant!(self.options.store, InvalidationOff) {
            let ResultState { selectors, hot, stats, .. } = &mut *state;
            let touch = |span: Span, samples: TimeRange| self.touched_steps(span, samples);
            selectors.touched(change.range, Some(&change.groups), touch, |one, steps| {
                let steps = one.grid.steps_in(steps);
                stats.trims += u64::from(!steps.is_empty());
                let cells = one.grid.cells(steps);
                let is_skipped = mutant!(self.options.store, HotNotTrimmed);
                let is_hot =
                    if is_skipped { hot.has_key(&one.key) } else { hot.trim(&one.key, cells) };
                self.store.trim(&one.key, FIELD, cells) || is_hot
            });
        }
        state.recent.changed(change);
    }

    fn touched_steps(&self, span: Span, samples: TimeRange) -> TimeRange {
        if mutant!(self.options.store, WindowIgnored) { samples } else { span.touched_by(samples) }
    }
}

impl Reclaim for ResultCache {
    fn reclaim(&self, bytes: u64) -> u64 {
        let freed = {
            // Held while memory is reserved for the cache; such a reservation never calls
            // reclaimers.
            let mut state = self.state.lock();
            let before = state.memory.bytes();
            state.hot.release(bytes);
            state.settle();
            before.saturating_sub(state.memory.bytes())
        };
        freed + self.store.reclaim(bytes.saturating_sub(freed))
    }
}

impl ChangeSink for ResultCache {
    fn changed(&self, change: Change) {
        if self.inbox.push(change) {
            drop(self.current());
        }
    }

    fn defined(&self, series: SeriesRef, labels: &Labels) {
        if mutant!(self.options.store, NewSeriesIgnored) {
            return;
        }
        let mut state = self.state.lock();
        state.recent.defined(series.group, labels);
        state.selectors.defined(series.group, labels, self.options.group_count_max);
    }

    /// Seals open slabs so that they are written soon, and writes a checkpoint: slabs that are on
    /// the device and still valid then survive a crash.
    fn released(&self, through: CommitSeq) {
        self.heard(through);
        self.store.seal_open();
        // Without a checkpoint fewer slabs survive a crash.
        let _ = self.store.checkpoint();
    }

    fn failed(&self) {
        self.store.set_doubted(true);
    }
}

impl ResultState {
    /// The pieces of `steps` that are still valid, and the present groups of each dependency.
    /// `None` if that is no longer known, or if memory is short.
    fn admit(
        &mut self,
        session: &Session,
        dependencies: &[Dependency],
        number: CommitSeq,
        groups: &[Option<Vec<GroupId>>],
        steps: TimeRange,
        options: &ResultOptions,
    ) -> Option<(Vec<TimeRange>, Vec<Groups>)> {
        let mut now = Vec::new();
        let mut work_left = FILL_TRIAL_WORK_MAX;
        for (dependency, groups) in dependencies.iter().zip(groups) {
            let matchers = &dependency.matchers;
            now.push(match groups {
                Some(groups) => {
                    self.groups_now(session, matchers, groups, (&mut work_left, options))?
                }
                // Every series defined since the selector was added has been matched against it.
                None => self.selectors.groups_of(matchers)?.clone(),
            });
        }
        if !self.settle() {
            return None;
        }
        let mut pieces = vec![steps];
        let is_trimmed = !mutant!(options.store, FillNotTrimmed);
        for change in self.recent.changes_after(number)?.filter(|_| is_trimmed) {
            for (dependency, groups) in dependencies.iter().zip(&now) {
                let is_touched = match groups {
                    Groups::Any => true,
                    Groups::Known(groups) => change.touches(groups),
                };
                let touched = dependency.span.touched_by(change.range);
                if is_touched && pieces.iter().any(|piece| piece.overlaps(touched)) {
                    self.stats.fill_trims += 1;
                    pieces = pieces.into_iter().flat_map(|piece| without(piece, touched)).collect();
                    // At once: thousands of changes would make as many pieces.
                    let surplus = pieces.len().saturating_sub(PIECES_MAX);
                    pieces.drain(..surplus);
                }
            }
        }
        Some((pieces, now))
    }

    /// The groups that a selector matches: those of a snapshot and those defined since the session
    /// began.
    fn groups_now(
        &self,
        session: &Session,
        matchers: &[Matcher],
        groups: &[GroupId],
        (work_left, options): (&mut usize, &ResultOptions),
    ) -> Option<Groups> {
        let defined = self.recent.defined_since(session.defined_count)?;
        let new = defined.filter(|one| may_match(matchers, &one.1, work_left)).map(|one| one.0);
        Some(Groups::new(groups.iter().copied().chain(new).collect(), options.group_count_max))
    }

    /// Adjusts the reservation, dropping the decoded answers if memory is short; `false` if it is
    /// short even then.
    fn settle(&mut self) -> bool {
        if self.reserve() {
            return true;
        }
        self.hot.clear();
        self.known.clear();
        self.reserve()
    }

    fn reserve(&mut self) -> bool {
        let held = self.selectors.heap_bytes()
            + (self.recent.heap_bytes() + INBOX_BYTES_MAX) as u64
            + self.hot.heap_bytes()
            + self.known.heap_bytes()
            + self.shares.heap_bytes();
        let reserved = self.memory.bytes();
        if held <= reserved {
            self.memory.shrink_to(held);
            return true;
        }
        self.memory.grow(held - reserved).is_ok()
    }

    fn count(&mut self, grid: Grid, steps: TimeRange, missing: Option<(Timestamp, Timestamp)>) {
        let all = grid.count(steps);
        let missing = missing.map_or(0, |(start, end)| grid.count(TimeRange::new(start, end)));
        self.stats.steps_missed += missing;
        self.stats.steps_hit += all - missing.min(all);
    }
}

impl CachedAnswer {
    fn nothing(missing: Option<(Timestamp, Timestamp)>, budget: &Budget) -> CachedAnswer {
        let (answer, held) = (Answer::default(), budget.empty(Pool::Query));
        CachedAnswer { answer, held, missing, is_too_large: false }
    }
}

impl ResultQuery<'_> {
    /// The grid of the query, and its first and last step; `None` for times that are not cached.
    fn steps(&self) -> Option<(Grid, TimeRange)> {
        let grid = Grid::new(self.start, self.end, self.step_ms)?;
        Some((grid, grid.steps_in(TimeRange::new(self.start, self.end))))
    }
}

impl fmt::Debug for ResultCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
