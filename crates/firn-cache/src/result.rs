//! The result cache: answers of range queries that are never stale.
//!
//! **The way of a query**: [`ResultCache::begin`], then take a snapshot, then [`ResultCache::lookup`] with its number,
//! compute the one range of steps that is missing from that snapshot, [`ResultCache::fill`]. **The way of a change**:
//! the engine tells of it before it can be seen; what depends on it is cut out of what is cached at once, and
//! out of every answer that was computed from an older snapshot when that comes to be filled in.
//!
//! Why a hit equals what the snapshot would say: what is cached was computed from a snapshot that is not younger, and
//! no change since then touched it, else it would have been cut out before the change could be seen. A change
//! that is told and not yet visible costs a hit, no truth. New series are told too, before their first change,
//! and matched against the selectors of all that is cached.
//!
//! Source: TSCache 3 for the cache, FirnDB's own protocol for the truth.

use std::fmt;
use std::sync::Arc;

use firn_env::Disk;
use firn_model::{
    Budget, Change, ChangeSink, CommitSeq, GroupId, Labels, Matcher, Pool, Reclaim, Reservation,
    Result, SeriesRef, TimeRange, Timestamp,
};

use super::sync::Mutex;
use crate::answer::{Answer, Collector, encode_steps};
use crate::background::Wake;
use crate::changes::Recent;
use crate::dependency::{
    Dependency, Grid, Span, decode_note, encode_key, encode_note, grid_of_key,
};
use crate::hot::{HotAnswers, part_of, width, without};
use crate::planted::Planted;
use crate::selectors::{Groups, Selectors, Use, matches_all};
use crate::shares::Shares;
use crate::store::{DeclineReason, Fill, Lookup, OwnerHistory, Store, StoreOptions, StoreStats};

/// The field of a store that answers are kept in.
const FIELD: u64 = 0;
/// A fill that changes cut into more pieces keeps the newest of them.
const PIECES_MAX: usize = 16;
/// Steps that a series of a found answer has room for behind its own, at most.
const STEPS_AHEAD_MAX: usize = 1_024;

/// How large a result cache may be.
#[derive(Clone, Copy, Debug)]
pub struct ResultOptions {
    /// The cache below.
    pub store: StoreOptions,
    /// Changes that are remembered for answers on their way. Queries that last longer than so many are not cached.
    pub change_count_max: usize,
    /// New series that are remembered for answers on their way.
    pub defined_count_max: usize,
    /// Groups of one selector that are listed; with more, every change is taken for one of theirs.
    pub group_count_max: usize,
    /// A part that several expressions have is kept by itself if a step of one of them looks at so many samples: with
    /// fewer, computing it again costs less than keeping it.
    pub shared_samples_min: u64,
    /// An answer of more bytes in slabs is computed: nobody has looked yet what its query may hold.
    pub answer_bytes_max: u64,
    /// Bytes of answers that are kept in memory as they are given. Of the memory that is short it is the first to go.
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

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct ResultQuery<'a> {
    /// The expression as normalised text: what is equal in it is equal in meaning.
    pub expression: &'a str,
    /// The first step.
    pub start: Timestamp,
    /// The last step at most.
    pub end: Timestamp,
    /// The distance of steps, above 0.
    pub step_ms: i64,
    /// How far back a selector looks.
    pub lookback_ms: i64,
    /// Every selector of the expression. An answer must depend on nothing else: not on the clock, not on the
    /// question's start and end.
    pub dependencies: &'a [Dependency],
}

/// A query on its way, from before its snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    defined_count: u64,
    clear_count: u64,
}

/// What the cache knows of an answer.
#[derive(Debug)]
pub struct CachedAnswer {
    /// What it has.
    pub answer: Answer,
    /// The first and the last of the steps that are to be computed; `None` for a hit. All before and behind them
    /// are in `answer`.
    pub missing: Option<(Timestamp, Timestamp)>,
    /// What is kept is too much to be given. What is computed is not kept then: it would take the place of just that.
    pub is_too_large: bool,
}

/// Numbers of a result cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultStats {
    /// The cache below.
    pub store: StoreStats,
    /// Steps that were answered.
    pub steps_hit: u64,
    /// Steps that had to be computed.
    pub steps_missed: u64,
    /// Questions whose kept steps were in memory as they are given: no slab was read.
    pub hot_hits: u64,
    /// Bytes of answers that are kept so.
    pub hot_bytes: u64,
    /// Answers that were kept, or parts of them.
    pub fills: u64,
    /// Answers that could not be kept: for want of memory, or because the query took too long.
    pub fills_refused: u64,
    /// Ranges that changes cut out of what was cached.
    pub trims: u64,
    /// Ranges that changes cut out of answers on their way.
    pub fill_trims: u64,
    /// Distinct selectors.
    pub selectors: u64,
    /// Bytes of memory that they take.
    pub selector_bytes: u64,
}

/// A cache of range queries' answers. Tell it to the engine as its [`ChangeSink`].
///
/// Lock order: `state`, then what [`Store`] has. `state` is never held over I/O.
pub struct ResultCache {
    store: Store,
    options: ResultOptions,
    state: Mutex<State>,
}

struct State {
    recent: Recent,
    selectors: Selectors,
    hot: HotAnswers,
    shares: Shares,
    /// How often all answers were given up.
    clear_count: u64,
    memory: Reservation,
    stats: ResultStats,
}

impl ResultCache {
    /// Opens the cache in `folder` with what is left of it. `recovered` says which changes are now told again, with
    /// [`ResultCache::replayed`]; `None` if what is cached may know of more than the engine: it begins empty then.
    /// Until [`ResultCache::rematch`] was called every change is taken for one of every selector.
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
        let state = State { recent, selectors, hot, shares, clear_count: 0, memory, stats };
        let cache = ResultCache { store, options, state: Mutex::new(state) };
        if !cache.state.lock().settle() {
            cache.clear();
        }
        Ok(cache)
    }

    /// Tells again that samples in `range` were changed, by changes up to `number`, of series that nobody knows. What
    /// was written by the cache without knowing of them is forgotten. After opening, before the first query.
    pub fn replayed(&self, range: TimeRange, number: CommitSeq) {
        if self.planted(Planted::InvalidationOff) {
            return;
        }
        let mut state = self.state.lock();
        let touch = |span: Span, samples: TimeRange| match self.planted(Planted::WindowIgnored) {
            true => samples,
            false => span.touched_by(samples),
        };
        state.selectors.touched(range, None, touch, |one, steps| {
            let steps = one.grid.steps_in(steps);
            if !steps.is_empty() {
                self.store.replay(number, &one.key, FIELD, one.grid.cells(steps));
            }
            true
        });
    }

    /// Asks `groups_of` for the groups that match each selector whose groups are not known: once after opening,
    /// when the index is there.
    ///
    /// # Errors
    /// That of `groups_of`; the rest stays as it was.
    pub fn rematch(
        &self,
        mut groups_of: impl FnMut(&[Matcher]) -> Result<Vec<GroupId>>,
    ) -> Result<()> {
        let unmatched = self.state.lock().selectors.unmatched();
        for matchers in unmatched {
            let session = self.begin();
            let groups = groups_of(&matchers)?;
            let mut state = self.state.lock();
            if let Some(groups) = state.groups_now(&session, &matchers, &groups, &self.options) {
                state.selectors.set_groups(&matchers, groups);
            }
            state.settle();
        }
        Ok(())
    }

    /// A query begins. Call it before its snapshot is taken: what is defined from now on is looked at when the
    /// answer is filled in.
    pub fn begin(&self) -> Session {
        let state = self.state.lock();
        Session { defined_count: state.recent.defined_count(), clear_count: state.clear_count }
    }

    /// What is known of the answer that a snapshot with `number` has.
    pub fn lookup(&self, question: &ResultQuery<'_>, number: CommitSeq) -> CachedAnswer {
        self.store.heard(number);
        let Some((grid, steps)) = question.steps() else {
            let is_empty = question.end < question.start;
            let missing = (!is_empty).then_some((question.start, question.end));
            return CachedAnswer::new(Answer::default(), missing);
        };
        if steps.is_empty() {
            return CachedAnswer::new(Answer::default(), None);
        }
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let number = match self.options.store.planted {
            Some(Planted::LaterAnswerGiven) => CommitSeq(u64::MAX),
            _ => number,
        };
        let range = grid.cells(steps);
        let ask = Lookup {
            key: &key,
            field: FIELD,
            range,
            number,
            partial_bytes_min: 0,
            bytes_max: self.options.answer_bytes_max,
        };
        let found = match self.recall(&ask, grid) {
            Some(found) => found,
            None => self.read(&key, &ask, grid, steps),
        };
        self.state.lock().count(grid, steps, found.missing);
        found
    }

    /// What is in memory as it is given, if the store does not have more.
    fn recall(&self, ask: &Lookup<'_>, grid: Grid) -> Option<CachedAnswer> {
        let (known, answer) = self.state.lock().hot.get(ask.key, ask.range, ask.number)?;
        let missing = without(ask.range, known).next().unwrap_or(TimeRange::EMPTY);
        if self.store.is_off() || !self.store.missing(ask).covers(missing) {
            return None;
        }
        let missing_count = grid.count(grid.steps_in(missing)) as usize;
        let answer = part_of(&answer, known, missing_count.min(STEPS_AHEAD_MAX));
        let points: usize = answer.series.iter().map(|series| series.floats.len()).sum();
        self.store.count_use(ask, missing, (points * size_of::<f64>()) as u64);
        self.state.lock().stats.hot_hits += 1;
        Some(CachedAnswer::new(answer, grid.ends_of(missing)))
    }

    /// What the store has; it is in memory from now on.
    fn read(
        &self,
        key: &Arc<[u8]>,
        ask: &Lookup<'_>,
        grid: Grid,
        steps: TimeRange,
    ) -> CachedAnswer {
        let ticket = self.state.lock().hot.expect(key, ask.range, ask.number);
        let got = self.store.get(ask);
        let missing = grid.ends_of(got.missing);
        let is_missing = |ts| missing.is_some_and(|(start, end)| start <= ts && ts <= end);
        let mut collector = Collector::of(grid.count(steps));
        let mut failed = Ok(());
        let read = got.for_each(&mut |point| {
            if failed.is_ok() && !is_missing(point.ts) {
                failed = collector.add(point);
            }
        });
        let (found, known) = match read.and(failed) {
            Ok(()) => {
                let known = without(ask.range, got.missing).max_by_key(|part| width(*part));
                let is_too_large = got.declined == Some(DeclineReason::TooLarge);
                (
                    CachedAnswer { is_too_large, ..CachedAnswer::new(collector.finish(), missing) },
                    known,
                )
            }
            Err(_) => {
                // Not what was put in: it must not be met again.
                self.store.trim(key, FIELD, ask.range);
                let missing = Some((steps.start, steps.end));
                (CachedAnswer::new(Answer::default(), missing), None)
            }
        };
        if let Some(ticket) = ticket {
            let known = known.unwrap_or(TimeRange::EMPTY);
            let part = part_of(&found.answer, known, 0);
            let mut state = self.state.lock();
            state.hot.keep(key, ticket, known, part);
            state.settle();
        }
        found
    }

    /// How many steps of the answer that a snapshot with `number` has are kept, and how many are not; reads nothing.
    pub fn count_steps(&self, question: &ResultQuery<'_>, number: CommitSeq) -> (u64, u64) {
        let Some((grid, steps)) = question.steps() else { return (0, 0) };
        let key = encode_key(question.expression, grid, question.lookback_ms);
        let (range, bytes_max) = (grid.cells(steps), u64::MAX);
        let ask =
            Lookup { key: &key, field: FIELD, range, number, partial_bytes_min: 0, bytes_max };
        let missing = self.store.missing(&ask);
        let missing = match missing.is_empty() {
            true => 0,
            false => grid.count(TimeRange::new(grid.floor(missing.start), grid.floor(missing.end))),
        };
        let all = grid.count(steps);
        (all - missing.min(all), missing.min(all))
    }

    /// Notes that `expression` has a part that is dear to compute, and is asked for as `part` says.
    pub fn note_part(&self, part: &ResultQuery<'_>, expression: &str) {
        if let Some((grid, _)) = part.steps() {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.note(&key, expression);
        }
    }

    /// A part turned out to be none that can be kept, or given to an evaluation: it is not shared again.
    pub fn drop_shared_part(&self, part: &ResultQuery<'_>) {
        if let Some((grid, _)) = part.steps() {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.give_up(&key);
        }
    }

    /// Whether several expressions have this part, so that its answer is worth keeping by itself.
    pub fn is_shared(&self, part: &ResultQuery<'_>) -> bool {
        part.steps().is_some_and(|(grid, _)| {
            let key = encode_key(part.expression, grid, part.lookback_ms);
            self.state.lock().shares.is_shared(&key)
        })
    }

    /// Whether it is known which groups a dependency's selector matches: something that depends on it is kept.
    pub fn knows_groups(&self, dependency: &Dependency) -> bool {
        self.state.lock().selectors.groups_of(&dependency.matchers).is_some()
    }

    /// Keeps the answer of a question that was computed from the snapshot with `number`, as far as nothing has
    /// changed since. `question` asks for what was computed, so for [`CachedAnswer::missing`]; `groups` are for each of
    /// its dependencies the groups that the snapshot has; `None` will do where the cache knows them
    /// ([`ResultCache::knows_groups`]). Returns whether anything was kept.
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
        let encoded = encode_steps(answer, grid.iter(steps), last_head.as_ref());
        let note = encode_note(question.dependencies);
        let mut state = self.state.lock();
        // What all answers were given up for may be in this one too.
        let is_outlived =
            session.clear_count != state.clear_count && !self.planted(Planted::FillOutlivesClear);
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
        if self.planted(Planted::FillKeptLater) {
            drop(state);
            state = self.state.lock();
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

    /// A snapshot with this number was seen: what is cached is true as of it.
    pub fn heard(&self, number: CommitSeq) {
        self.store.heard(number);
    }

    /// Whom an answer wakes that is to be written.
    pub fn wake(&self) -> Arc<Wake> {
        self.store.wake()
    }

    /// Does one piece of work in the background; see [`Store::work`]. Returns whether there was any.
    pub fn work(&self) -> bool {
        let is_done = self.store.work();
        let mut state = self.state.lock();
        // Keys go without a word when their slabs do.
        let key_count = self.store.stats().keys as usize;
        if state.selectors.use_count() > 4 * key_count + 64 {
            let State { selectors, hot, .. } = &mut *state;
            selectors.prune(|one| self.store.has_key(&one.key, FIELD) || hot.has_key(&one.key));
            state.settle();
        }
        is_done
    }

    /// Writes everything that waits in memory.
    pub fn flush(&self) {
        self.store.flush();
    }

    /// Writes all that there is, for the next open. Nothing changes any more, and all that ever will be visible up to
    /// `number` is durable and told.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the next open finds less.
    pub fn close(&self, number: CommitSeq) -> Result<()> {
        self.store.set_doubted(false);
        self.store.heard(number);
        self.store.flush();
        self.store.checkpoint().map(|_| ())
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        self.store.clear();
        state.clear_count += 1;
        match self.planted(Planted::TicketsReused) {
            true => state.hot = HotAnswers::new(self.options.hot_bytes_max),
            false => state.hot.clear(),
        }
        state.selectors = Selectors::default();
        state.settle();
    }

    /// Numbers at this moment.
    pub fn stats(&self) -> ResultStats {
        let state = self.state.lock();
        ResultStats {
            store: self.store.stats(),
            selectors: state.selectors.count() as u64,
            selector_bytes: state.selectors.heap_bytes(),
            hot_bytes: state.hot.heap_bytes(),
            ..state.stats
        }
    }

    fn planted(&self, mistake: Planted) -> bool {
        self.options.store.planted == Some(mistake)
    }
}

impl Reclaim for ResultCache {
    fn reclaim(&self, bytes: u64) -> u64 {
        let freed = {
            // Held while memory is reserved for the cache, for which nobody is asked to give back.
            let mut state = self.state.lock();
            let before = state.memory.bytes();
            state.hot.give_back(bytes);
            state.settle();
            before.saturating_sub(state.memory.bytes())
        };
        freed + self.store.reclaim(bytes.saturating_sub(freed))
    }
}

impl ChangeSink for ResultCache {
    fn changed(&self, change: &Change) {
        let mut state = self.state.lock();
        let State { recent, selectors, hot, stats, .. } = &mut *state;
        recent.changed(change);
        if self.planted(Planted::InvalidationOff) {
            return;
        }
        let touch = |span: Span, samples: TimeRange| match self.planted(Planted::WindowIgnored) {
            true => samples,
            false => span.touched_by(samples),
        };
        selectors.touched(change.range, Some(&change.groups), touch, |one, steps| {
            let steps = one.grid.steps_in(steps);
            stats.trims += u64::from(!steps.is_empty());
            let cells = one.grid.cells(steps);
            let is_hot = match self.planted(Planted::HotNotTrimmed) {
                true => hot.has_key(&one.key),
                false => hot.trim(&one.key, cells),
            };
            self.store.trim(&one.key, FIELD, cells) || is_hot
        });
    }

    fn defined(&self, series: SeriesRef, labels: &Labels) {
        if self.planted(Planted::NewSeriesIgnored) {
            return;
        }
        let mut state = self.state.lock();
        state.recent.defined(series.group, labels);
        state.selectors.defined(series.group, labels, self.options.group_count_max);
    }

    /// What is cached by now goes to the device soon; what is on it by now, and still true, outlives a crash.
    fn released(&self, through: CommitSeq) {
        self.store.heard(through);
        self.store.seal_open();
        // Without a checkpoint less outlives a crash.
        let _ = self.store.checkpoint();
    }

    fn failed(&self) {
        self.store.set_doubted(true);
    }
}

impl State {
    /// What of `steps` still holds, and the groups of each dependency as they are now. `None` if that is not known
    /// any more, or if there is no memory to remember it by.
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
        for (dependency, groups) in dependencies.iter().zip(groups) {
            let matchers = &dependency.matchers;
            now.push(match groups {
                Some(groups) => self.groups_now(session, matchers, groups, options)?,
                // Every series that came since the selector did was matched against it.
                None => self.selectors.groups_of(matchers)?.clone(),
            });
        }
        if !self.settle() {
            return None;
        }
        let mut pieces = vec![steps];
        let is_trimmed = options.store.planted != Some(Planted::FillNotTrimmed);
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
                }
            }
        }
        let surplus = pieces.len().saturating_sub(PIECES_MAX);
        pieces.drain(..surplus);
        Some((pieces, now))
    }

    /// The groups that a selector matches: those of a snapshot and those defined since the session began.
    fn groups_now(
        &self,
        session: &Session,
        matchers: &[Matcher],
        groups: &[GroupId],
        options: &ResultOptions,
    ) -> Option<Groups> {
        let defined = self.recent.defined_since(session.defined_count)?;
        let new = defined.filter(|(_, labels)| matches_all(matchers, labels)).map(|one| one.0);
        Some(Groups::new(groups.iter().copied().chain(new).collect(), options.group_count_max))
    }

    /// Reserves what is held, less answers if there is no memory for more; `false` if there is none even then.
    fn settle(&mut self) -> bool {
        if self.reserve() {
            return true;
        }
        self.hot.clear();
        self.reserve()
    }

    fn reserve(&mut self) -> bool {
        let held = self.selectors.heap_bytes()
            + self.recent.heap_bytes() as u64
            + self.hot.heap_bytes()
            + self.shares.heap_bytes();
        let reserved = self.memory.bytes();
        if held <= reserved {
            self.memory.shrink(reserved - held);
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
    fn new(answer: Answer, missing: Option<(Timestamp, Timestamp)>) -> CachedAnswer {
        CachedAnswer { answer, missing, is_too_large: false }
    }
}

impl ResultQuery<'_> {
    /// Its grid and from the first to the last step; `None` for times that are not cached.
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
