//! Chooses the labels that identify a group from the series that arrive (`--group-by auto`).
//!
//! A **shape** is the list of label names of a series, without the metric name. Each shape has a
//! **key**: the names whose values identify the group of a series, or none for lone series. The
//! group of a new series depends on its labels and the key of its shape only, so neither the order
//! of series nor the sharding of a sender splits a group.
//!
//! Candidates for a key, coarse to fine, of which the first acceptable one is taken:
//!
//! 1. `job` and `instance`;
//! 2. the labels that most metrics carry: `host` is on 150 metrics, `cpu` on 10 of them;
//! 3. all labels;
//! 4. all labels but those that take the same values in every group, such as `sensor`.
//!
//! A candidate is acceptable if series share its values at all, arrive with one timestamp, repeat
//! their other labels from group to group, and make groups of a sensible size. Random label sets
//! fail the first test or the third. The sum that candidate 4 lowers, groups and distinct members,
//! is the label cost of TimeUnion (SIGMOD 2022), section 3.1, equation 2.
//!
//! Rules are knowledge about savings, never about correctness: every key is valid for every series,
//! and definitions contain the labels of their group. Lost rules are learned again.
//!
//! Senders choose names and series, so everything here is bounded: shapes, names and rows by
//! number, and the work of evaluations by a credit that new series earn. A shape without a place is
//! grouped by `job` and `instance` or not at all.

use firn_model::{Error, Labels, METRIC_NAME, Result, Timestamp, decode_varint, encode_varint};
use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::pair::{raw_pairs, take_text};

mod key;
mod shape;
#[cfg(test)]
mod tests;

use key::{Key, KeyCounter, KeyStats, Row, bits, key_of, mix, search_work, whole_key, work};
use shape::{Candidate, LabelShape, choose};

/// The reason for the labels of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupRule {
    /// The labels of the setting `group_by`.
    Setting,
    /// `job` and `instance`.
    Target,
    /// The labels that most metrics of the sender carry.
    SharedLabels,
    /// All labels but the metric name.
    AllLabels,
    /// All labels but those with the same values in every group.
    FewerLabels,
    /// None of the current rules: a client defined the group, or an older setting made it.
    Other,
}

/// The keys of all shapes, and the sample they are learned from.
#[derive(Debug)]
pub(crate) struct GroupRules {
    names: Vec<Name>,
    name_ids: HashMap<u64, u32>,
    shapes: Vec<LabelShape>,
    /// By the hash of the names.
    shape_nos: HashMap<u64, u32>,
    /// Rows in the windows of all shapes.
    row_count: usize,
    /// Rows in the thinned samples of all shapes.
    kept_count: usize,
    /// Series seen so far.
    seen: u64,
    /// Shapes are not dropped again before this many series.
    forget_at: u64,
    /// Row visits that evaluations may still cost; below 0 there is none.
    credit: i64,
    heap_bytes: usize,
    /// `heap_bytes` is computed again at this many series.
    weigh_at: u64,
    /// Label lists of definitions that were recalled.
    recalled: HashSet<u64>,
    request_count: u32,
    /// Statistics over all shapes with the names of a key, by their hash.
    families: HashMap<u64, (u64, KeyStats)>,
    /// Keys of an earlier process.
    older_keys: Vec<Vec<u32>>,
    /// Shapes to evaluate before the next answer.
    due: Vec<u32>,
}

#[derive(Debug)]
struct Name {
    text: Box<str>,
    /// Bits of metric names that carry this label: a linear counter.
    metrics: Box<[u64; COUNTER_BITS / 64]>,
}

/// Groups with more slots get a finer key for further members.
pub(crate) const GROUP_SLOTS_GOOD: u32 = 1_024;
/// A finer key with fewer members per group does not replace a coarser one.
const MEMBERS_GOOD: usize = 24;
const MEMBERS_MIN: usize = 8;
/// Groups with more timestamps in a request are divided where possible.
const TIMES_GOOD: usize = 4;
/// As many members of targets with times of their own are no coincidence.
const MEMBERS_OF_A_TARGET: usize = 128;
/// Series that share a key by chance are fewer.
const REPEATS_MIN: usize = 12;
const COUNTER_BITS: usize = 2_048;
const SHAPE_COUNT_MAX: usize = 4_096;
const NAME_COUNT_MAX: usize = 4_096;
const ROWS_PER_SHAPE: usize = 2_048;
// A row of ten labels takes about 100 bytes.
const ROW_COUNT_MAX: usize = 8_192;
const FORMER_MAX: usize = 8;
/// Shapes with longer names have no rule but `job` and `instance`.
const NAME_BYTES_MAX: usize = 256;
/// Keys of dropped shapes and earlier processes that are candidates for other shapes.
const OLDER_KEYS_MAX: usize = 64;
/// Leaving out one label after another of a longer list costs too much.
const NAMES_TRIED_MAX: usize = 24;
/// Shapes in a manifest part; about 100 bytes each.
const STORED_SHAPES_MAX: usize = 512;
const STORED_BYTES_MAX: usize = 64 * 1_024;
/// Row visits, of about 0.1 us, that a new series adds to the credit of evaluations, and the
/// largest credit.
const CREDIT_PER_SERIES: i64 = 8;
const CREDIT_MAX: i64 = 4 << 20;
/// More bound a single evaluation, of the longest shapes, to some tenths of a second.
const CANDIDATE_COUNT_MAX: usize = 12;
/// A shape is evaluated again when it has a fourth more series, at most this number.
const EVALUATE_EVERY_MAX: u64 = 16_384;
const RULES_VERSION: u64 = 1;
const TARGET: [&str; 2] = ["instance", "job"];

impl Default for GroupRules {
    fn default() -> GroupRules {
        GroupRules {
            names: Vec::new(),
            name_ids: HashMap::new(),
            shapes: Vec::new(),
            shape_nos: HashMap::new(),
            row_count: 0,
            kept_count: 0,
            seen: 0,
            forget_at: 0,
            credit: CREDIT_MAX,
            heap_bytes: 0,
            weigh_at: 0,
            recalled: HashSet::new(),
            request_count: 0,
            families: HashMap::new(),
            older_keys: Vec::new(),
            due: Vec::new(),
        }
    }
}

impl GroupRules {
    /// Learns from the new series of one request. Costs about 0.3 us per series.
    pub(crate) fn observe<'l>(&mut self, new: impl Iterator<Item = (&'l Labels, Timestamp)>) {
        self.request_count = self.request_count.wrapping_add(1);
        self.recalled = HashSet::new();
        let is_full =
            self.shapes.len() >= SHAPE_COUNT_MAX || self.names.len() + 64 > NAME_COUNT_MAX;
        if is_full && self.seen >= self.forget_at {
            self.make_room();
        }
        let mut pairs = Vec::new();
        for (labels, time) in new {
            let Some((no, metric)) = self.shape_or_new(labels, &mut pairs) else { continue };
            self.seen += 1;
            self.credit = (self.credit + CREDIT_PER_SERIES).min(CREDIT_MAX);
            let counter = metric as usize % COUNTER_BITS;
            let shape = &mut self.shapes[no as usize];
            for &name in &shape.names {
                self.names[name as usize].metrics[counter / 64] |= 1 << (counter % 64);
            }
            shape.seen += 1;
            shape.weight += 1;
            if shape.seen == shape.evaluate_at {
                self.due.push(no);
            }
            let request = self.request_count;
            let moment = mix(u64::from(request) ^ (time as u64).rotate_left(32)) as u32;
            let labels = pairs.iter().map(|pair| pair.1).collect();
            self.push(no, Row { metric, request, moment, labels });
        }
        self.evaluate_due();
        if self.seen >= self.weigh_at {
            self.weigh();
        }
    }

    /// The identity labels of the group of a series; `None` for a lone series.
    pub(crate) fn identity(&self, labels: &Labels) -> Option<Labels> {
        let Some(shape) = self.shape(labels) else {
            let is_target = TARGET.iter().all(|name| labels.get(name).is_some());
            return is_target.then(|| labels.filter(|name| TARGET.contains(&name)));
        };
        (shape.key != 0).then(|| {
            let mut bits = shape.key;
            labels.filter(|name| {
                if name == METRIC_NAME {
                    return false;
                }
                let is_key = bits & 1 == 1;
                bits >>= 1;
                is_key
            })
        })
    }

    /// Notes that a new member has a slot that makes its group larger than sensible.
    pub(crate) fn note_overgrown(&mut self, labels: &Labels) {
        let Some(&no) = self.shape_nos.get(&shape_hash(labels)) else { return };
        let shape = &mut self.shapes[no as usize];
        let (key, Some(rule)) = (shape.key, shape.rule) else { return };
        if key == 0 || shape.is_overgrown(key) {
            return;
        }
        shape.retire(key, rule, true);
        self.due.push(no);
        self.evaluate_due();
    }

    /// Whether a definition with these label names was recalled before. Replay calls it per series.
    pub(crate) fn is_recalled(&mut self, identity: &Labels, rest: [&Labels; 2]) -> bool {
        let sum = |labels: &Labels, seed: u64| {
            let names = raw_pairs(labels).map(|pair| mix(seed ^ xxh3_64(pair.name)));
            names.fold(0, u64::wrapping_add)
        };
        let others = sum(rest[0], 2).wrapping_add(sum(rest[1], 2));
        if self.recalled.len() > SHAPE_COUNT_MAX {
            return true;
        }
        !self.recalled.insert(sum(identity, 1).wrapping_add(others))
    }

    /// Learns the key of a series that is defined already, unless its shape has one.
    pub(crate) fn recall(&mut self, labels: &Labels, identity: &Labels) {
        let Some((no, _)) = self.shape_or_new(labels, &mut Vec::new()) else { return };
        let shape = &mut self.shapes[no as usize];
        let names = labels.iter().map(|pair| pair.0).filter(|&name| name != METRIC_NAME);
        let bits = names.enumerate().filter(|name| identity.get(name.1).is_some());
        let key = bits.fold(0, |key, (at, _)| key | 1 << at);
        if key != 0 && shape.key == 0 && shape.seen == 0 {
            shape.key = key;
            let is_target = identity.count() == TARGET.len()
                && TARGET.iter().all(|name| identity.get(name).is_some());
            let is_whole = shape.key == whole_key(shape.names.len());
            shape.rule = Some(match () {
                () if is_target => GroupRule::Target,
                () if is_whole => GroupRule::AllLabels,
                () => GroupRule::SharedLabels,
            });
            shape.evaluate_at = RECALLED_SEEN_MIN;
            self.trust_older(no);
        }
    }

    /// The rule that makes groups with the label names of `identity`.
    pub(crate) fn rule_of(&self, identity: &Labels) -> Option<GroupRule> {
        let names: Option<Vec<u32>> = identity
            .iter()
            .map(|pair| self.name_ids.get(&xxh3_64(pair.0.as_bytes())).copied())
            .collect();
        let names = names?;
        // Several shapes may have the key, by different rules: rather one of a current key, then
        // rather the rule that most shapes of a sender have.
        let mut found: Option<(bool, u64, GroupRule)> = None;
        for shape in &self.shapes {
            let key = key_of(&shape.names, &names);
            let current = shape.rule.map(|rule| (shape.key, rule, false));
            for &(known, rule, _) in current.iter().chain(&shape.former) {
                let rank = (known != shape.key, rule.number(), rule);
                if key != 0
                    && known == key
                    && found.is_none_or(|one| (rank.0, rank.1) < (one.0, one.1))
                {
                    found = Some(rank);
                }
            }
        }
        found.map(|found| found.2)
    }

    /// The keys of the commonest shapes, for [`GroupRules::load`]:
    ///
    /// ```text
    /// rules = varint(version 1) varint(shape count) shape*
    /// shape = varint(name count) text* varint(key) varint(rule) varint(former count) former*
    /// former = varint(key) varint(rule) varint(1 if its groups became too large, else 0)
    /// text  = varint(bytes) bytes
    /// ```
    ///
    /// A key has one bit per name. Empty if no shape is known.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if self.shapes.is_empty() {
            return Vec::new();
        }
        let mut shapes: Vec<(usize, &LabelShape)> =
            self.shapes.iter().enumerate().filter(|shape| shape.1.key != 0).collect();
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.1.seen));
        shapes.truncate(STORED_SHAPES_MAX);
        let mut stored_bytes = 0;
        let stored_count = shapes.iter().take_while(|(_, shape)| {
            let texts = shape.names.iter().map(|&name| self.names[name as usize].text.len() + 2);
            stored_bytes += texts.sum::<usize>() + FORMER_MAX * 12;
            stored_bytes <= STORED_BYTES_MAX
        });
        let stored_count = stored_count.count();
        shapes.truncate(stored_count);
        // The same rules are the same bytes, whichever shape has the most series.
        shapes.sort_by_key(|shape| shape.0);
        let mut out = Vec::new();
        encode_varint(RULES_VERSION, &mut out);
        encode_varint(shapes.len() as u64, &mut out);
        for (_, shape) in shapes {
            encode_varint(shape.names.len() as u64, &mut out);
            for &name in &shape.names {
                let text = self.names[name as usize].text.as_bytes();
                encode_varint(text.len() as u64, &mut out);
                out.extend_from_slice(text);
            }
            encode_varint(shape.key, &mut out);
            encode_varint(shape.rule.map_or(0, GroupRule::number), &mut out);
            encode_varint(shape.former.len() as u64, &mut out);
            for &(key, rule, is_overgrown) in &shape.former {
                encode_varint(key, &mut out);
                encode_varint(rule.number(), &mut out);
                encode_varint(u64::from(is_overgrown), &mut out);
            }
        }
        out
    }

    /// The rules of [`GroupRules::encode`].
    ///
    /// # Errors
    /// `Invalid` for malformed bytes or another version.
    pub(crate) fn load(bytes: &[u8]) -> Result<GroupRules> {
        let mut rules = GroupRules::default();
        let mut rest = bytes;
        if rest.is_empty() {
            return Ok(rules);
        }
        let version = take(&mut rest)?;
        if version != RULES_VERSION {
            return Err(Error::invalid(format!(
                "group rules have version {version}, expected {RULES_VERSION}: use the build that \
                 wrote them"
            )));
        }
        for _ in 0..take(&mut rest)? {
            rules.load_shape(&mut rest)?;
        }
        rules.weigh();
        if rest.is_empty() { Ok(rules) } else { Err(malformed()) }
    }

    fn load_shape(&mut self, rest: &mut &[u8]) -> Result<()> {
        let (mut names, mut hash) = (Vec::new(), 0);
        for _ in 0..take(rest)? {
            let text = take_text(rest).and_then(|text| std::str::from_utf8(text).ok());
            let text = text.ok_or_else(malformed)?;
            let name = xxh3_64(text.as_bytes());
            hash = mix(hash ^ name);
            names.push(self.name_id(name, text));
            // A name takes 300 bytes here and three in a foreign manifest.
            if names.len() > Key::BITS as usize || self.names.len() > NAME_COUNT_MAX {
                return Err(malformed());
            }
        }
        let whole = whole_key(names.len());
        let (key, rule) = (take(rest)? & whole, GroupRule::of_number(take(rest)?));
        let mut shape =
            LabelShape { names, key, rule, kept_below: u32::MAX, ..LabelShape::default() };
        shape.evaluate_at = RECALLED_SEEN_MIN;
        for _ in 0..take(rest)? {
            let (key, rule) = (take(rest)? & whole, GroupRule::of_number(take(rest)?));
            let is_overgrown = take(rest)? == 1;
            shape.retire(key, rule.ok_or_else(malformed)?, is_overgrown);
        }
        if shape.rule.is_none() || shape.names.is_empty() || key == 0 {
            return Err(malformed());
        }
        if self.shapes.len() < SHAPE_COUNT_MAX && !self.shape_nos.contains_key(&hash) {
            let no = self.shapes.len() as u32;
            self.shapes.push(shape);
            self.shape_nos.insert(hash, no);
            self.trust_older(no);
        }
        Ok(())
    }

    /// Bytes on the heap, as of some new series ago.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// Counts the bytes on the heap.
    pub(crate) fn weigh(&mut self) {
        self.weigh_at = self.seen + 512;
        let of_shape = |shape: &LabelShape| {
            let rows = shape.window.iter().chain(&shape.kept);
            (shape.window.capacity() + shape.kept.capacity()) * size_of::<Row>()
                + rows.map(|row| row.labels.len() * 4 + 16).sum::<usize>()
                + shape.names.len() * 4
                + shape.former.capacity() * size_of::<(Key, GroupRule, bool)>()
        };
        let of_name = |name: &Name| name.text.len() + COUNTER_BITS / 8 + 32;
        self.heap_bytes = self.shapes.iter().map(of_shape).sum::<usize>()
            + self.shapes.capacity() * size_of::<LabelShape>()
            + self.names.iter().map(of_name).sum::<usize>()
            + self.names.capacity() * size_of::<Name>()
            + self.older_keys.iter().map(|key| key.capacity() * 4 + 24).sum::<usize>()
            + self.families.allocation_size()
            + self.recalled.allocation_size()
            + self.shape_nos.allocation_size()
            + self.name_ids.allocation_size();
    }

    fn shape(&self, labels: &Labels) -> Option<&LabelShape> {
        self.shape_nos.get(&shape_hash(labels)).map(|&no| &self.shapes[no as usize])
    }

    /// The shape of a label set and the hash of its metric name; collects the hashes of names and
    /// pairs. `None` if there are too many names or shapes, or no label.
    fn shape_or_new(&mut self, labels: &Labels, pairs: &mut Vec<(u64, u32)>) -> Option<(u32, u32)> {
        pairs.clear();
        let (mut hash, mut metric) = (0, 0);
        for pair in raw_pairs(labels) {
            if pair.name == METRIC_NAME.as_bytes() {
                metric = xxh3_64(pair.value) as u32;
                continue;
            }
            let name = xxh3_64(pair.name);
            hash = mix(hash ^ name);
            pairs.push((name, xxh3_64(pair.encoded) as u32));
        }
        if pairs.is_empty() || pairs.len() > Key::BITS as usize {
            return None;
        }
        if let Some(&no) = self.shape_nos.get(&hash) {
            // A client can find other names with this hash. Bits of a key are places in the list.
            let has_as_many = self.shapes[no as usize].names.len() == pairs.len();
            return has_as_many.then_some((no, metric));
        }
        let is_full =
            self.shapes.len() >= SHAPE_COUNT_MAX || self.names.len() + pairs.len() > NAME_COUNT_MAX;
        if is_full {
            return None;
        }
        let texts = labels.iter().map(|pair| pair.0).filter(|&name| name != METRIC_NAME);
        if texts.clone().any(|text| text.len() > NAME_BYTES_MAX) {
            return None;
        }
        let names = texts.zip(&*pairs).map(|(text, pair)| self.name_id(pair.0, text)).collect();
        let no = self.shapes.len() as u32;
        let evaluate_at = 1;
        self.shapes.push(LabelShape {
            names,
            evaluate_at,
            kept_below: u32::MAX,
            ..LabelShape::default()
        });
        self.shape_nos.insert(hash, no);
        Some((no, metric))
    }

    fn name_id(&mut self, hash: u64, text: &str) -> u32 {
        let next = self.names.len() as u32;
        let id = *self.name_ids.entry(hash).or_insert(next);
        if id == next {
            self.names.push(Name { text: text.into(), metrics: Box::new([0; COUNTER_BITS / 64]) });
        }
        id
    }

    fn push(&mut self, no: u32, row: Row) {
        let shape = &mut self.shapes[no as usize];
        if shape.window.len() < ROWS_PER_SHAPE {
            self.row_count += 1;
        } else if let Some(old) = shape.window.pop_front() {
            self.kept_count -= shape.kept.len();
            shape.keep(old);
            self.kept_count += shape.kept.len();
        }
        shape.window.push_back(row);
        let mut len_max = ROWS_PER_SHAPE;
        // Each pass visits all shapes, so it makes room for many rows.
        let is_full = self.row_count > ROW_COUNT_MAX;
        let row_count_max = if is_full { ROW_COUNT_MAX / 8 * 7 } else { ROW_COUNT_MAX };
        while self.row_count > row_count_max && len_max > 1 {
            len_max = len_max * 3 / 4;
            for shape in &mut self.shapes {
                let excess = shape.window.len().saturating_sub(len_max);
                if excess > 0 {
                    shape.window.drain(..excess);
                    shape.window.shrink_to(shape.window.len() * 2);
                }
                self.row_count -= excess;
            }
        }
        if self.kept_count > ROW_COUNT_MAX / 2 {
            self.shapes.iter_mut().for_each(LabelShape::thin);
            self.kept_count = self.shapes.iter().map(|shape| shape.kept.len()).sum();
        }
    }

    /// Makes room: drops the shapes with the fewest series, such as random label sets, and unused
    /// names.
    fn make_room(&mut self) {
        self.forget_at = self.seen + SHAPE_COUNT_MAX as u64;
        self.due.clear();
        self.families.clear();
        let mut order: Vec<usize> = (0..self.shapes.len()).collect();
        order.sort_by_key(|&no| std::cmp::Reverse(self.shapes[no].weight));
        let mut is_kept = vec![false; self.shapes.len()];
        let mut names: HashSet<u32> = self.older_keys.iter().flatten().copied().collect();
        for no in order.into_iter().take(SHAPE_COUNT_MAX / 2) {
            names.extend(&self.shapes[no].names);
            if names.len() > NAME_COUNT_MAX / 2 {
                break;
            }
            is_kept[no] = true;
        }
        let mut is_kept = is_kept.into_iter();
        self.shapes.retain(|shape| {
            is_kept.next().unwrap_or(false) && (shape.key != 0 || shape.seen >= 64)
        });
        self.shapes.iter_mut().for_each(|shape| shape.weight /= 2);
        let old = std::mem::take(&mut self.names);
        self.name_ids.clear();
        let mut old: Vec<Option<Name>> = old.into_iter().map(Some).collect();
        let mut new_ids = vec![0; old.len()];
        let keys = self.older_keys.iter_mut().chain(self.shapes.iter_mut().map(|s| &mut s.names));
        for name in keys.flatten() {
            let new_id = &mut new_ids[*name as usize];
            if let Some(used) = old[*name as usize].take() {
                *new_id = self.names.len() as u32;
                self.name_ids.insert(xxh3_64(used.text.as_bytes()), *new_id);
                self.names.push(used);
            }
            *name = *new_id;
        }
        self.shape_nos = (0..).zip(&self.shapes).map(|(no, s)| (self.hash_of(s), no)).collect();
        self.row_count = self.shapes.iter().map(|shape| shape.window.len()).sum();
        self.kept_count = self.shapes.iter().map(|shape| shape.kept.len()).sum();
    }

    fn hash_of(&self, shape: &LabelShape) -> u64 {
        let texts = shape.names.iter().map(|&name| self.names[name as usize].text.as_bytes());
        texts.fold(0, |hash, name| mix(hash ^ xxh3_64(name)))
    }

    fn evaluate_due(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        // Shapes with few labels first: their keys are candidates for the others.
        due.sort_by_key(|&no| (self.shapes[no as usize].names.len(), no));
        due.dedup();
        for no in due {
            self.evaluate(no);
        }
    }

    fn evaluate(&mut self, no: u32) {
        let shape = &mut self.shapes[no as usize];
        shape.evaluate_at = shape.seen + (shape.seen / 4).clamp(8, EVALUATE_EVERY_MAX);
        if self.credit <= 0 {
            return;
        }
        let candidates = self.candidates(no);
        let shape = &mut self.shapes[no as usize];
        let is_sparse = shape.window.len() < RECALLED_SEEN_MIN as usize / 4;
        match choose(shape, &candidates, &mut self.credit) {
            Some((key, _)) if shape.keeps_key(key, &candidates) => {}
            Some((key, rule)) => shape.set(key, rule),
            // Too little is known of a shape of an earlier process.
            None if is_sparse && shape.key != 0 => {}
            None => shape.clear(),
        }
    }

    /// The candidates of a shape, coarse to fine.
    fn candidates(&mut self, no: u32) -> Vec<Candidate> {
        let names = self.shapes[no as usize].names.clone();
        let mut keys: Vec<(Key, GroupRule)> = Vec::new();
        let target: Option<Vec<u32>> = TARGET
            .iter()
            .map(|name| self.name_ids.get(&xxh3_64(name.as_bytes())).copied())
            .collect();
        let target = target.map_or(0, |target| key_of(&names, &target));
        if target != 0 {
            keys.push((target, GroupRule::Target));
        }
        let older = self.older_keys.iter().map(|key| key_of(&names, key)).filter(|&key| key != 0);
        let older = older.map(|key| key | target).filter(|&key| key != whole_key(names.len()));
        keys.extend(older.map(|key| (key, GroupRule::SharedLabels)));
        let mut order: Vec<(f64, usize)> =
            names.iter().enumerate().map(|(at, &name)| (self.coverage(name), at)).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut key, mut last) = (target, f64::INFINITY);
        for (coverage, at) in order {
            if coverage < 0.75 * last && key != 0 {
                keys.push((key, GroupRule::SharedLabels));
            }
            key |= 1 << at;
            last = coverage;
        }
        keys.push((key, GroupRule::AllLabels));
        keys.sort_by_key(|key| key.0.count_ones());
        keys.dedup_by_key(|key| key.0);
        if keys.len() > CANDIDATE_COUNT_MAX {
            keys.drain(CANDIDATE_COUNT_MAX - 1..keys.len() - 1);
        }
        let is_rare = self.shapes[no as usize].window.len() < MEMBERS_MIN;
        let mut candidates = Vec::with_capacity(keys.len());
        for (key, rule) in keys {
            let family = self.family(&names, key, is_rare);
            let mut one = Candidate { key, rule, own: KeyStats::default(), family };
            // Most shapes of a sender without groups end here.
            if one.is_acceptable() {
                let rows = self.shapes[no as usize].rows();
                one.own = KeyStats::of(&rows, key, names.len());
                self.credit -= work(rows.len(), names.len());
            }
            candidates.push(one);
        }
        candidates
    }

    /// The number of metrics that carry a label, estimated.
    fn coverage(&self, name: u32) -> f64 {
        let bits = &self.names[name as usize].metrics;
        let unset: u32 = bits.iter().map(|word| word.count_zeros()).sum();
        let size = COUNTER_BITS as f64;
        size * (size / f64::from(unset.max(1))).ln()
    }

    /// Statistics of a key over all shapes that have its names. Kept until a fourth as many series
    /// more have arrived; a shape with few series computes none of its own.
    fn family(&mut self, names: &[u32], key: Key, is_rare: bool) -> KeyStats {
        let names: Vec<u32> = bits(key).map(|at| names[at]).collect();
        let hash = names.iter().fold(0, |hash, &name| mix(hash ^ u64::from(name)));
        match self.families.get(&hash) {
            Some(&(at, stats)) if self.seen < at + (at / 4).min(EVALUATE_EVERY_MAX / 2) => {
                return stats;
            }
            None if is_rare => return KeyStats::default(),
            _ => {}
        }
        let mut counter = KeyCounter::default();
        self.credit -= work(self.shapes.len() / 8, 0);
        let mut name_count = 0;
        for shape in &self.shapes {
            name_count += shape.names.len();
            let key = key_of(&shape.names, &names);
            if key != 0 {
                let rows = shape.rows();
                counter.add(&rows, key, shape.names.len());
                self.credit -= work(rows.len(), shape.names.len());
            }
        }
        self.credit -= search_work(name_count);
        if self.families.len() >= SHAPE_COUNT_MAX {
            self.families.clear();
        }
        let stats = counter.stats();
        self.families.insert(hash, (self.seen, stats));
        stats
    }

    /// Makes the key of a shape a candidate for other shapes without a sample.
    fn trust_older(&mut self, no: u32) {
        let shape = &self.shapes[no as usize];
        let names: Vec<u32> = bits(shape.key).map(|at| shape.names[at]).collect();
        let is_full = self.older_keys.len() >= OLDER_KEYS_MAX;
        if shape.key == 0 || is_full || self.older_keys.contains(&names) {
            return;
        }
        let hash = names.iter().fold(0, |hash, &name| mix(hash ^ u64::from(name)));
        let stats = KeyStats { series: 1_024, groups: 64, members: 64, ..KeyStats::default() };
        let stats = KeyStats { per_request: 64, per_moment: 64, ..stats };
        self.families.insert(hash, (ROW_COUNT_MAX as u64, stats));
        self.older_keys.push(names);
    }
}

impl GroupRule {
    /// The name, for output.
    pub fn name(self) -> &'static str {
        match self {
            GroupRule::Setting => "setting",
            GroupRule::Target => "job and instance",
            GroupRule::SharedLabels => "shared labels",
            GroupRule::AllLabels => "all labels",
            GroupRule::FewerLabels => "fewer labels",
            GroupRule::Other => "other",
        }
    }

    /// Its number in files.
    fn number(self) -> u64 {
        match self {
            GroupRule::Other => 0,
            GroupRule::Setting => 1,
            GroupRule::Target => 2,
            GroupRule::SharedLabels => 3,
            GroupRule::AllLabels => 4,
            GroupRule::FewerLabels => 5,
        }
    }

    fn of_number(number: u64) -> Option<GroupRule> {
        use GroupRule::{AllLabels, FewerLabels, Other, Setting, SharedLabels, Target};
        let rules = [Other, Setting, Target, SharedLabels, AllLabels, FewerLabels];
        rules.into_iter().find(|rule| rule.number() == number)
    }
}

fn take(rest: &mut &[u8]) -> Result<u64> {
    decode_varint(rest).ok_or_else(malformed)
}

fn malformed() -> Error {
    Error::invalid("group rules are malformed: restore the manifest from a backup")
}

/// A recalled key stays until this many new series of its shape have arrived.
const RECALLED_SEEN_MIN: u64 = ROWS_PER_SHAPE as u64;

fn shape_hash(labels: &Labels) -> u64 {
    let names = raw_pairs(labels).map(|pair| pair.name);
    let names = names.filter(|&name| name != METRIC_NAME.as_bytes());
    names.fold(0, |hash, name| mix(hash ^ xxh3_64(name)))
}
