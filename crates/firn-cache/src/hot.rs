//! Decoded answers in memory, of the latest queries: refreshing a dashboard reads and decodes
//! nothing.
//!
//! Each is one range of steps. It is a copy of a range of the store: every trim of the store trims
//! it too, under the same lock, before the change becomes visible. Beside it are the texts that
//! readers made of whole ranges, until the range of the answer changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use firn_model::{CommitSeq, Sample, TimeRange, Timestamp};

use crate::answer::{Answer, AnswerSeries};

/// One answer takes at most this fraction of the room.
const SHARE: u64 = 16;
/// Approximate memory of an answer besides its series.
const ANSWER_BYTES: u64 = 256;
/// Texts beside one answer: clients accept different encodings.
const TEXTS_MAX: usize = 2;
/// Memory of a text besides its bytes.
const TEXT_BYTES: u64 = 64;

/// The most recently used answers.
#[derive(Debug)]
pub(crate) struct HotAnswers {
    answers: HashMap<Arc<[u8]>, HotAnswer>,
    /// Keys by their last use.
    uses: BTreeMap<u64, Arc<[u8]>>,
    use_count: u64,
    bytes: u64,
    bytes_max: u64,
}

#[derive(Debug)]
struct HotAnswer {
    /// All steps of it are in `answer` and valid. Points outside of it are not.
    range: TimeRange,
    /// The newest snapshot that a part of it was computed from.
    number: CommitSeq,
    /// Sorted by labels, floats only. `None` while it is being read from the store.
    answer: Option<Arc<Answer>>,
    bytes: u64,
    last_use: u64,
    /// The earliest start of the lookups in this period and in the previous one; a period ends when
    /// `range` ends after `period_end`.
    asked_start: Timestamp,
    asked_before: Timestamp,
    period_end: Timestamp,
    /// Texts of ranges inside `range`.
    texts: Vec<HotText>,
    /// Whether a lookup found all of its steps since the last new step, and between the two new
    /// steps before.
    is_repeated: bool,
    was_repeated: bool,
}

/// The points of a range as text.
#[derive(Debug)]
struct HotText {
    range: TimeRange,
    /// The kind of text, as the reader numbers it.
    form: u8,
    point_count: u64,
    text: Arc<[u8]>,
}

impl HotAnswers {
    /// With room for about `bytes_max` bytes; 0 keeps nothing.
    pub(crate) fn new(bytes_max: u64) -> HotAnswers {
        let (answers, uses) = (HashMap::new(), BTreeMap::new());
        HotAnswers { answers, uses, use_count: 0, bytes: 0, bytes_max }
    }

    /// The part of `range` that is valid for a snapshot with `number`, if it begins or ends like
    /// `range`, with an answer that contains its points.
    pub(crate) fn get(
        &mut self,
        key: &[u8],
        range: TimeRange,
        number: CommitSeq,
    ) -> Option<(TimeRange, Arc<Answer>)> {
        let hot = self.answers.get_mut(key).filter(|hot| hot.number <= number)?;
        let answer = Arc::clone(hot.answer.as_ref()?);
        let known = hot.range.intersect(range);
        if known.is_empty() || (known.start > range.start && known.end < range.end) {
            return None;
        }
        hot.is_repeated |= known == range;
        self.touch(key, range);
        Some((known, answer))
    }

    /// The text of all points of `range` and their number, if it is valid for a snapshot with
    /// `number`.
    pub(crate) fn text(
        &mut self,
        key: &[u8],
        range: TimeRange,
        number: CommitSeq,
        form: u8,
    ) -> Option<(Arc<[u8]>, u64)> {
        let hot = self.answers.get(key).filter(|hot| hot.number <= number)?;
        let known = hot.texts.iter().find(|known| known.range == range && known.form == form)?;
        let found = (Arc::clone(&known.text), known.point_count);
        self.touch(key, range);
        Some(found)
    }

    /// Whether [`HotAnswers::keep_text`] would keep a text: all points of `range` are here as of a
    /// snapshot with `number`, and such a range was requested more than once. The answer of a panel
    /// with a new step at each refresh is never requested again.
    pub(crate) fn wants_text(&self, key: &[u8], range: TimeRange, number: CommitSeq) -> bool {
        self.answers.get(key).is_some_and(|hot| {
            hot.answer.is_some()
                && hot.number <= number
                && hot.range.covers(range)
                && (hot.is_repeated || hot.was_repeated)
        })
    }

    /// Keeps the text of all points of `range`, if it is wanted and not too long.
    pub(crate) fn keep_text(
        &mut self,
        key: &[u8],
        range: TimeRange,
        number: CommitSeq,
        form: u8,
        (text, point_count): (Arc<[u8]>, u64),
    ) {
        let is_wanted = self.wants_text(key, range, number);
        let Some(hot) = self.answers.get_mut(key).filter(|_| is_wanted) else { return };
        let before = text_bytes(&hot.texts);
        hot.texts.retain(|known| known.range != range || known.form != form);
        if hot.texts.len() == TEXTS_MAX {
            hot.texts.remove(0);
        }
        let bytes = hot.bytes - before + text_bytes(&hot.texts);
        let is_kept = bytes + text.len() as u64 + TEXT_BYTES <= self.bytes_max / SHARE;
        if is_kept {
            hot.texts.push(HotText { range, form, point_count, text });
        }
        let added = text_bytes(&hot.texts);
        hot.bytes = hot.bytes - before + added;
        self.bytes = self.bytes - before + added;
        self.shrink();
    }

    /// Records a lookup of `range`.
    fn touch(&mut self, key: &[u8], range: TimeRange) {
        let Some(hot) = self.answers.get_mut(key) else { return };
        hot.asked_start = hot.asked_start.min(range.start);
        if let Some(key) = self.uses.remove(&hot.last_use) {
            self.use_count += 1;
            hot.last_use = self.use_count;
            self.uses.insert(hot.last_use, key);
        }
    }

    /// Announces that `range` will be read from the store; trims until then apply to it. Returns
    /// the ticket for [`HotAnswers::keep`], or `None` if a later snapshot's answer is here and
    /// stays.
    pub(crate) fn expect(
        &mut self,
        key: &Arc<[u8]>,
        range: TimeRange,
        number: CommitSeq,
    ) -> Option<u64> {
        let is_later = |hot: &HotAnswer| hot.answer.is_some() && hot.number > number;
        if self.bytes_max == 0 || self.answers.get(key).is_some_and(is_later) {
            return None;
        }
        self.insert(key, range, number, None);
        Some(self.use_count)
    }

    /// Keeps the part in `known` of a read answer, as far as it is still valid: `answer` contains
    /// all its points.
    pub(crate) fn keep(&mut self, key: &Arc<[u8]>, ticket: u64, known: TimeRange, answer: &Answer) {
        let Some(hot) = self.answers.get(key).filter(|hot| hot.last_use == ticket) else { return };
        let (range, number) = (hot.range.intersect(known), hot.number);
        self.remove(key);
        self.insert_part(key, range, number, answer);
    }

    /// Keeps a computed part: `answer` contains all points of `range`.
    pub(crate) fn extend(
        &mut self,
        key: &Arc<[u8]>,
        range: TimeRange,
        number: CommitSeq,
        answer: &Answer,
    ) {
        let known = self.answers.get(key).filter(|hot| hot.answer.is_some()).map(|hot| hot.range);
        match known {
            Some(known) if known.covers(range) => {}
            Some(known) if known.start <= range.start && touch(known, range) => {
                self.append(key, TimeRange::new(known.end + 1, range.end), number, answer);
            }
            Some(known) if width(known) >= width(range) => {}
            _ => {
                self.remove(key);
                self.insert_part(key, range, number, answer);
            }
        }
    }

    /// Removes a range that is no longer valid. Returns whether the key is here.
    pub(crate) fn trim(&mut self, key: &[u8], range: TimeRange) -> bool {
        let Some(hot) = self.answers.get_mut(key) else { return false };
        match without(hot.range, range).max_by_key(|part| width(*part)) {
            Some(longest) if longest == hot.range => {}
            Some(longest) => {
                hot.range = longest;
                let bytes = hot.drop_texts();
                self.bytes -= bytes;
            }
            None => self.remove(key),
        }
        true
    }

    /// Whether the key is here, or is being read.
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.answers.contains_key(key)
    }

    /// Releases at least `bytes`, or everything.
    pub(crate) fn release(&mut self, bytes: u64) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target && self.remove_oldest() {}
    }

    /// Removes everything. Numbering continues, so that the ticket of a read in flight fits no
    /// later answer.
    pub(crate) fn clear(&mut self) {
        (self.answers, self.uses, self.bytes) = (HashMap::new(), BTreeMap::new(), 0);
    }

    /// Approximate memory of all answers.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.bytes
    }

    fn append(&mut self, key: &[u8], range: TimeRange, number: CommitSeq, answer: &Answer) {
        let Some(hot) = self.answers.get_mut(key) else { return };
        let bytes = hot.bytes;
        let is_kept = answer.has_only_floats();
        if is_kept {
            hot.drop_texts();
            hot.append(range, number, answer);
            hot.let_go();
            hot.bytes = heap_bytes(key, hot.answer.as_deref());
            self.bytes = self.bytes - bytes + hot.bytes;
        }
        if !is_kept || hot.bytes > self.bytes_max / SHARE {
            self.remove(key);
        }
        self.shrink();
    }

    /// Inserts the points of `answer` in `range`, if they are floats and not too many.
    fn insert_part(
        &mut self,
        key: &Arc<[u8]>,
        range: TimeRange,
        number: CommitSeq,
        answer: &Answer,
    ) {
        // A copy that is not kept would only take memory.
        let bytes = part_bytes(answer, range, 0) + key.len() as u64 + ANSWER_BYTES;
        if range.is_empty() || bytes > self.bytes_max / SHARE {
            return;
        }
        if let Some(part) = only_floats(part_of(answer, range, 0)) {
            self.insert(key, range, number, Some(part));
        }
    }

    /// Inserts an answer, replacing the present one.
    fn insert(
        &mut self,
        key: &Arc<[u8]>,
        range: TimeRange,
        number: CommitSeq,
        answer: Option<Answer>,
    ) {
        self.remove(key);
        let bytes = heap_bytes(key, answer.as_ref());
        if bytes > self.bytes_max / SHARE {
            return;
        }
        self.use_count += 1;
        self.bytes += bytes;
        self.uses.insert(self.use_count, Arc::clone(key));
        let hot = HotAnswer {
            range,
            number,
            answer: answer.map(Arc::new),
            bytes,
            last_use: self.use_count,
            asked_start: Timestamp::MAX,
            asked_before: Timestamp::MAX,
            period_end: range.end,
            texts: Vec::new(),
            is_repeated: false,
            was_repeated: false,
        };
        self.answers.insert(Arc::clone(key), hot);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max && self.remove_oldest() {}
    }

    fn remove_oldest(&mut self) -> bool {
        let oldest = self.uses.first_key_value().map(|(_, key)| Arc::clone(key));
        oldest.is_some_and(|key| {
            self.remove(&key);
            true
        })
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(hot) = self.answers.remove(key) {
            self.uses.remove(&hot.last_use);
            self.bytes -= hot.bytes;
        }
    }
}

impl HotAnswer {
    /// Appends the points of `range`, which begins where this range ends.
    fn append(&mut self, range: TimeRange, number: CommitSeq, new: &Answer) {
        let Some(answer) = &mut self.answer else { return };
        // Copies only while a reader holds the present answer.
        let series = &mut Arc::make_mut(answer).series;
        for one in &mut *series {
            one.floats.truncate(one.floats.partition_point(|point| point.ts <= self.range.end));
        }
        let known = series.len();
        for one in &new.series {
            let floats = points_in(&one.floats, range);
            if floats.is_empty() {
                continue;
            }
            match series[..known].binary_search_by(|known| known.labels.cmp(&one.labels)) {
                Ok(idx) => series[idx].floats.extend_from_slice(floats),
                Err(_) => series.push(AnswerSeries {
                    labels: one.labels.clone(),
                    floats: floats.to_vec(),
                    histograms: Vec::new(),
                }),
            }
        }
        series.sort_by(|a, b| a.labels.cmp(&b.labels));
        self.range.end = range.end;
        self.number = self.number.max(number);
        (self.was_repeated, self.is_repeated) = (self.is_repeated, false);
    }

    /// Drops all texts, and returns their memory.
    fn drop_texts(&mut self) -> u64 {
        let bytes = text_bytes(&self.texts);
        self.texts.clear();
        self.bytes -= bytes;
        bytes
    }

    /// Drops steps that sliding windows have left, once per period, so that every client that
    /// refreshes has looked up its window since.
    fn let_go(&mut self) {
        if self.range.end <= self.period_end {
            return;
        }
        let asked_start = self.asked_before.min(self.asked_start);
        (self.asked_before, self.asked_start) = (self.asked_start, Timestamp::MAX);
        self.period_end = self.range.end.saturating_add((width(self.range) / 4) as i64);
        if asked_start == Timestamp::MAX || asked_start <= self.range.start {
            return;
        }
        self.range.start = asked_start;
        if let Some(answer) = &mut self.answer {
            let series = &mut Arc::make_mut(answer).series;
            for one in &mut *series {
                one.floats.drain(..one.floats.partition_point(|point| point.ts < asked_start));
                one.floats.shrink_to(2 * one.floats.len());
            }
            series.retain(|one| !one.floats.is_empty());
        }
    }
}

/// The points of an answer in `range`, with capacity for `more` points per series.
pub(crate) fn part_of(answer: &Answer, range: TimeRange, more: usize) -> Answer {
    let series = answer.series.iter().map(|one| {
        let inside = points_in(&one.floats, range);
        let mut floats =
            Vec::with_capacity(if inside.is_empty() { 0 } else { inside.len() + more });
        floats.extend_from_slice(inside);
        let histograms = one.histograms.iter().filter(|point| range.contains(point.0));
        AnswerSeries {
            labels: one.labels.clone(),
            floats,
            histograms: histograms.cloned().collect(),
        }
    });
    let has_points = |one: &AnswerSeries| !one.floats.is_empty() || !one.histograms.is_empty();
    Answer { series: series.filter(has_points).collect() }
}

/// The memory of [`part_of`] with the same arguments, at most.
pub(crate) fn part_bytes(answer: &Answer, range: TimeRange, more: usize) -> u64 {
    let bytes = |one: &AnswerSeries| {
        let floats = points_in(&one.floats, range).len();
        let histograms = one.histograms.iter().filter(|point| range.contains(point.0)).count();
        if floats + histograms == 0 {
            return 0;
        }
        let room = if floats == 0 { 0 } else { floats + more };
        // Label sets and histograms are shared. The lists double.
        let points = room * size_of::<Sample>() + 2 * histograms * size_of::<(Timestamp, usize)>();
        points + 2 * size_of::<AnswerSeries>() + one.labels.as_encoded().len()
    };
    answer.series.iter().map(bytes).sum::<usize>() as u64
}

/// `range` without `hole`: at most two ranges, in order.
pub(crate) fn without(range: TimeRange, hole: TimeRange) -> impl Iterator<Item = TimeRange> {
    let before =
        (hole.start > i64::MIN).then(|| TimeRange { end: range.end.min(hole.start - 1), ..range });
    let behind =
        (hole.end < i64::MAX).then(|| TimeRange { start: range.start.max(hole.end + 1), ..range });
    before.into_iter().chain(behind).filter(|part| !part.is_empty())
}

/// Number of timestamps of a range, less one.
pub(crate) fn width(range: TimeRange) -> u64 {
    range.end.wrapping_sub(range.start) as u64
}

/// Whether `behind` begins in `range` or right after it, and ends after it.
fn touch(range: TimeRange, behind: TimeRange) -> bool {
    behind.end > range.end && behind.start <= range.end + 1
}

fn points_in(points: &[Sample], range: TimeRange) -> &[Sample] {
    let start = points.partition_point(|point| point.ts < range.start);
    let end = points.partition_point(|point| point.ts <= range.end);
    &points[start..end.max(start)]
}

/// Sorted by labels; `None` with histograms.
fn only_floats(mut answer: Answer) -> Option<Answer> {
    answer.series.sort_by(|a, b| a.labels.cmp(&b.labels));
    answer.has_only_floats().then_some(answer)
}

fn text_bytes(texts: &[HotText]) -> u64 {
    texts.iter().map(|known| known.text.len() as u64 + TEXT_BYTES).sum()
}

fn heap_bytes(key: &[u8], answer: Option<&Answer>) -> u64 {
    (key.len() + answer.map_or(0, Answer::heap_bytes)) as u64 + ANSWER_BYTES
}

#[cfg(test)]
mod tests {
    use firn_model::Labels;
    use firn_sim::Rng;

    use super::*;

    /// Each step has one point. Its value is the version of the computation.
    fn computed(range: TimeRange, version: f64) -> Answer {
        let floats = (range.start..=range.end).map(|ts| Sample { ts, value: version });
        let labels = Labels::from_pairs([("host", "a")]).unwrap();
        Answer {
            series: vec![AnswerSeries { labels, floats: floats.collect(), histograms: Vec::new() }],
        }
    }

    /// Against a model: no returned step was trimmed since it was inserted.
    #[test]
    fn a_returned_step_was_inserted_and_not_trimmed_since() {
        let key: Arc<[u8]> = Arc::from(&b"k"[..]);
        let mut given = 0;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut hot = HotAnswers::new(1 << 16);
            let mut truth = [0.0_f64; 200];
            let mut now = 60;
            let mut expected: Option<(u64, TimeRange, Answer)> = None;
            for step in 1..400 {
                now = (now + rng.between(0, 2)).min(199);
                let range = TimeRange::new((now - rng.between(5, 40)).max(0), now);
                match rng.below(10) {
                    // Late samples; the expected answer was read before.
                    0 => {
                        let start = rng.between(0, now);
                        let late_range = TimeRange::new(start, start + rng.between(0, 3));
                        hot.trim(&key, late_range);
                        let late = truth.iter_mut().skip(start as usize);
                        late.take(width(late_range) as usize + 1)
                            .for_each(|value| *value = f64::from(step));
                    }
                    1 => {
                        let mut read = computed(range, 0.0);
                        let floats = &mut read.series[0].floats;
                        floats.iter_mut().for_each(|one| one.value = truth[one.ts as usize]);
                        let ticket = hot.expect(&key, range, CommitSeq(step as u64));
                        expected = ticket.map(|ticket| (ticket, range, read));
                    }
                    2 => {
                        if let Some((ticket, range, read)) = expected.take() {
                            hot.keep(&key, ticket, range, &read);
                        }
                    }
                    _ => {
                        let number = CommitSeq(step as u64);
                        let mut missing = range;
                        if let Some((known, answer)) = hot.get(&key, range, number) {
                            let part = part_of(&answer, known, 0);
                            let floats = part.series.iter().flat_map(|one| &one.floats);
                            let floats: Vec<Sample> = floats.copied().collect();
                            assert_eq!(floats.len() as u64, width(known) + 1, "seed {seed}");
                            for one in floats {
                                assert_eq!(one.value, truth[one.ts as usize], "seed {seed}");
                            }
                            given += 1;
                            missing = without(range, known).next().unwrap_or(TimeRange::EMPTY);
                        }
                        if !missing.is_empty() {
                            let mut new = computed(missing, 0.0);
                            let floats = &mut new.series[0].floats;
                            floats.iter_mut().for_each(|one| one.value = truth[one.ts as usize]);
                            hot.extend(&key, missing, number, &new);
                        }
                    }
                }
            }
        }
        assert!(given > 5_000, "{given}");
    }

    #[test]
    fn an_answer_read_before_a_clear_is_not_kept() {
        let key: Arc<[u8]> = Arc::from(&b"k"[..]);
        let mut hot = HotAnswers::new(1 << 16);
        let range = TimeRange::new(0, 9);
        let before = hot.expect(&key, range, CommitSeq(1)).unwrap();
        hot.clear();
        // A change, and a reader that has seen it.
        let after = hot.expect(&key, range, CommitSeq(2)).unwrap();
        hot.keep(&key, before, range, &computed(range, 1.0));
        assert!(hot.get(&key, range, CommitSeq(2)).is_none(), "it was read before the change");
        hot.keep(&key, after, range, &computed(range, 2.0));
        let (_, answer) = hot.get(&key, range, CommitSeq(2)).unwrap();
        assert_eq!(*answer, computed(range, 2.0));
    }

    #[test]
    fn windows_that_slide_leave_steps_behind_and_room_is_bounded() {
        let mut hot = HotAnswers::new(256 << 10);
        let key = |n: u32| -> Arc<[u8]> { Arc::from(n.to_be_bytes()) };
        let first = TimeRange::new(0, 99);
        hot.extend(&key(0), first, CommitSeq(1), &computed(first, 1.0));
        for now in 100..5_000 {
            let range = TimeRange::new(now - 99, now);
            let (known, _) = hot.get(&key(0), range, CommitSeq(1)).unwrap();
            assert_eq!(known, TimeRange::new(now - 99, now - 1));
            hot.extend(&key(0), TimeRange::at(now), CommitSeq(1), &computed(range, 1.0));
        }
        assert!(hot.heap_bytes() < 1_000 * 16, "{} bytes for 100 steps", hot.heap_bytes());
        for n in 1..200 {
            hot.extend(&key(n), first, CommitSeq(1), &computed(first, 1.0));
            assert!(hot.heap_bytes() <= 256 << 10);
        }
        assert!(!hot.has_key(&key(0)) && hot.has_key(&key(199)), "the one used last stays");
        let bytes = hot.heap_bytes();
        hot.release(10_000);
        assert!(hot.heap_bytes() <= bytes - 10_000 && hot.has_key(&key(199)));
        let large = TimeRange::new(0, 1_200);
        hot.extend(&key(300), large, CommitSeq(1), &computed(large, 1.0));
        assert!(!hot.has_key(&key(300)), "it would take too much of the room");
        assert!(hot.get(&key(199), first, CommitSeq(0)).is_none(), "of a later snapshot");
        hot.clear();
        assert_eq!(hot.heap_bytes(), 0);
    }
}
