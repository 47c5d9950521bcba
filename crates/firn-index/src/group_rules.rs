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

use std::collections::VecDeque;

use firn_model::{Error, Labels, METRIC_NAME, Result, Timestamp, decode_varint, encode_varint};
use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::pair::{raw_pairs, take_text};

#[cfg(test)]
mod tests;

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

#[derive(Debug, Default)]
struct LabelShape {
    names: Vec<u32>,
    /// One bit per name; 0: lone series.
    key: Key,
    rule: Option<GroupRule>,
    /// Keys that were replaced, and whether their groups had become too large.
    former: Vec<(Key, GroupRule, bool)>,
    seen: u64,
    /// Series seen, halved whenever shapes are dropped.
    weight: u64,
    evaluate_at: u64,
    /// The newest series.
    window: VecDeque<Row>,
    /// Older series, thinned by the hash of their labels, so that the metrics of a label set stay
    /// together.
    kept: Vec<Row>,
    kept_below: u32,
}

/// A new series in the sample.
#[derive(Debug)]
struct Row {
    metric: u32,
    request: u32,
    /// Request and timestamp.
    moment: u32,
    /// The hash of each label, in order of names.
    labels: Box<[u32]>,
}

/// One bit per name of a shape.
type Key = u64;

#[derive(Clone, Copy, Debug, Default)]
struct KeyStats {
    series: usize,
    groups: usize,
    /// Distinct label sets of members, without labels that the key determines.
    members: usize,
    /// Distinct groups per request, and per request and timestamp.
    per_request: usize,
    per_moment: usize,
}

struct Candidate {
    key: Key,
    rule: GroupRule,
    own: KeyStats,
    /// Over all shapes with these names.
    family: KeyStats,
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
            if names.len() > Key::BITS as usize {
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
            return Some((no, metric));
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
        while self.row_count > ROW_COUNT_MAX && len_max > 1 {
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
        for shape in &self.shapes {
            let key = key_of(&shape.names, &names);
            if key != 0 {
                let rows = shape.rows();
                counter.add(&rows, key, shape.names.len());
                self.credit -= work(rows.len(), shape.names.len());
            }
        }
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

/// The row visits of counting rows of shapes with this number of names.
fn work(row_count: usize, name_count: usize) -> i64 {
    (row_count * (4 + name_count) / 4) as i64
}

/// The first acceptable candidate, or one with fewer labels.
fn choose(
    shape: &LabelShape,
    candidates: &[Candidate],
    credit: &mut i64,
) -> Option<(Key, GroupRule)> {
    let is_usable = |one: &Candidate| one.is_acceptable() && !shape.is_overgrown(one.key);
    let is_good = |one: &Candidate| {
        let repeats_min = REPEATS_MIN.max(one.own.series / 8);
        is_usable(one)
            && one.family.is_dense()
            && one.own.members >= MEMBERS_GOOD
            && one.own.repeats() >= repeats_min
    };
    let chosen = candidates.iter().enumerate().position(|(at, one)| {
        let is_small = one.own.members <= GROUP_SLOTS_GOOD as usize;
        let is_fit = is_small && one.family.is_dense();
        is_usable(one) && (is_fit || !candidates[at + 1..].iter().any(is_good))
    });
    let chosen = chosen.map(|at| &candidates[at]);
    if chosen.is_none_or(|one| one.rule == GroupRule::AllLabels)
        && let Some(key) = fewer_labels(shape, credit)
    {
        return Some((key, GroupRule::FewerLabels));
    }
    // Tiny groups are no better than large ones.
    let is_tiny = chosen.is_none_or(|one| one.family.members < MEMBERS_MIN);
    let overgrown = candidates.iter().rev().find(|one| {
        one.is_acceptable() && shape.former.iter().any(|former| former.0 == one.key && former.2)
    });
    let chosen = overgrown.filter(|_| is_tiny).or(chosen)?;
    Some((chosen.key, chosen.rule))
}

/// Leaves out the labels of a shape that take the same values in every group, one after another,
/// while that clearly lowers the number of groups and distinct members.
fn fewer_labels(shape: &LabelShape, credit: &mut i64) -> Option<Key> {
    let rows = shape.rows();
    let count = shape.names.len();
    if rows.len() < 32 || count > NAMES_TRIED_MAX {
        return None;
    }
    let cost = |stats: &KeyStats| stats.groups + stats.members;
    let mut best = whole_key(count);
    let mut lowest = cost(&KeyStats::of(&rows, best, count));
    let clearly = 16.max(rows.len() / 40);
    loop {
        *credit -= count as i64 * work(rows.len(), count);
        let without = bits(best).map(|at| best & !(1 << at)).filter(|&key| key != 0);
        let next = without.filter(|&key| !shape.is_overgrown(key)).filter_map(|key| {
            let stats = KeyStats::of(&rows, key, count);
            let is_good = cost(&stats) + clearly <= lowest
                && stats.members <= GROUP_SLOTS_GOOD as usize
                && stats.repeats() >= REPEATS_MIN
                && stats.has_one_time();
            // Of equal ones, leave out the label with fewer values.
            is_good.then(|| {
                (cost(&stats), distinct(rows.iter().map(|row| row.hash(best & !key))), key)
            })
        });
        match next.min() {
            Some((cost, _, key)) => (lowest, best) = (cost, key),
            None => break,
        }
    }
    (best != whole_key(count)).then_some(best)
}

impl Candidate {
    fn is_acceptable(&self) -> bool {
        let family = &self.family;
        // Documented and used everywhere, so it needs no evidence, but much can be held against it.
        if self.rule == GroupRule::Target {
            return family.series - family.per_request < MEMBERS_OF_A_TARGET
                || family.has_one_time();
        }
        let is_structured =
            family.groups < 4 || family.series < 64 || family.members * 100 <= family.series * 93;
        family.repeats() >= REPEATS_MIN.max(family.series / 64)
            && is_structured
            && family.has_one_time()
    }
}

impl KeyStats {
    fn of(rows: &[&Row], key: Key, name_count: usize) -> KeyStats {
        let mut counter = KeyCounter::default();
        counter.add(rows, key, name_count);
        counter.stats()
    }

    /// Series beyond the first of each group.
    fn repeats(&self) -> usize {
        self.series - self.groups
    }

    /// Whether a row would have a value of many members of its group.
    fn is_dense(&self) -> bool {
        self.per_moment <= TIMES_GOOD * self.per_request
    }

    /// Whether most series of a group come with the timestamp of another one.
    fn has_one_time(&self) -> bool {
        let others = self.series - self.per_request;
        others < REPEATS_MIN || 2 * self.per_moment.saturating_sub(self.per_request) <= others
    }
}

#[derive(Default)]
struct KeyCounter {
    series: usize,
    /// A refused series comes again and again, and is counted once.
    known: HashSet<u64>,
    groups: HashSet<u64>,
    members: HashSet<u64>,
    per_request: HashSet<u64>,
    per_moment: HashSet<u64>,
}

impl KeyCounter {
    fn add(&mut self, rows: &[&Row], key: Key, name_count: usize) {
        let own = undetermined(rows, key, name_count);
        for row in rows {
            if !self.known.insert(mix(row.hash(Key::MAX) ^ u64::from(row.metric))) {
                continue;
            }
            self.series += 1;
            let group = row.hash(key);
            self.groups.insert(group);
            self.members.insert(mix(row.hash(own) ^ u64::from(row.metric)));
            self.per_request.insert(mix(group ^ u64::from(row.request)));
            self.per_moment.insert(mix(group ^ (u64::from(row.moment) << 32)));
        }
    }

    fn stats(&self) -> KeyStats {
        KeyStats {
            series: self.series,
            groups: self.groups.len(),
            members: self.members.len(),
            per_request: self.per_request.len(),
            per_moment: self.per_moment.len(),
        }
    }
}

impl LabelShape {
    fn rows(&self) -> Vec<&Row> {
        self.window.iter().chain(&self.kept).collect()
    }

    /// Whether groups of `key` would be at least as large as ones that were too large.
    fn is_overgrown(&self, key: Key) -> bool {
        self.former.iter().any(|&(former, _, is_overgrown)| is_overgrown && key & !former == 0)
    }

    /// Whether another key is no reason for a change: it makes nearly the same groups, or larger
    /// ones although the present ones are good.
    fn keeps_key(&self, key: Key, candidates: &[Candidate]) -> bool {
        if self.key == 0 || self.is_overgrown(self.key) {
            return false;
        }
        let rows = self.rows();
        let groups = |key: Key| distinct(rows.iter().map(|row| row.hash(key)));
        let (present, other) = (groups(self.key), groups(key));
        let is_good = |one: &Candidate| {
            let family = &one.family;
            let is_large = family.members >= MEMBERS_GOOD
                && family.series >= MEMBERS_MIN * family.groups.max(1);
            one.key == self.key && one.is_acceptable() && is_large
        };
        present.abs_diff(other) * 10 <= present
            || key & !self.key == 0 && candidates.iter().any(is_good)
    }

    fn set(&mut self, key: Key, rule: GroupRule) {
        if self.key == key && self.rule.is_some() {
            return;
        }
        self.clear();
        (self.key, self.rule) = (key, Some(rule));
    }

    fn clear(&mut self) {
        if let (true, Some(former)) = (self.key != 0, self.rule) {
            self.retire(self.key, former, false);
        }
        (self.key, self.rule) = (0, None);
    }

    fn retire(&mut self, key: Key, rule: GroupRule, is_overgrown: bool) {
        if let Some(known) = self.former.iter_mut().find(|former| former.0 == key) {
            known.2 |= is_overgrown;
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push((key, rule, is_overgrown));
    }

    fn keep(&mut self, row: Row) {
        if (mix(row.hash(Key::MAX)) as u32) < self.kept_below {
            self.kept.push(row);
        }
        if self.kept.len() > ROWS_PER_SHAPE / 2 {
            self.thin();
        }
    }

    fn thin(&mut self) {
        self.kept_below /= 2;
        let below = self.kept_below;
        self.kept.retain(|row| (mix(row.hash(Key::MAX)) as u32) < below);
    }
}

impl Row {
    /// The hash of the labels of `key`.
    fn hash(&self, key: Key) -> u64 {
        let labels = self.labels.iter().enumerate().filter(|label| key >> label.0 & 1 == 1);
        labels.fold(0, |sum: u64, label| sum.wrapping_add(mix(u64::from(*label.1))))
    }
}

/// The labels outside of `key` that it does not determine.
fn undetermined(rows: &[&Row], key: Key, name_count: usize) -> Key {
    let mut own = whole_key(name_count) & !key;
    let groups = distinct(rows.iter().map(|row| row.hash(key)));
    let repeats = rows.len() - groups;
    if repeats < MEMBERS_MIN {
        return own;
    }
    for at in bits(own) {
        let split = distinct(rows.iter().map(|row| row.hash(key | 1 << at))) - groups;
        if split * 20 <= repeats.min(groups) {
            own &= !(1 << at);
        }
    }
    own
}

fn distinct(hashes: impl Iterator<Item = u64>) -> usize {
    hashes.collect::<HashSet<u64>>().len()
}

fn bits(key: Key) -> impl Iterator<Item = usize> + Clone {
    (0..Key::BITS as usize).filter(move |&at| key >> at & 1 == 1)
}

fn whole_key(name_count: usize) -> Key {
    Key::MAX >> (Key::BITS as usize - name_count.min(Key::BITS as usize))
}

/// The bits of `wanted` in `names`; 0 if one is missing.
fn key_of(names: &[u32], wanted: &[u32]) -> Key {
    let at = |name: &u32| names.iter().position(|known| known == name);
    wanted.iter().try_fold(0, |key, name| Some(key | 1 << at(name)?)).unwrap_or(0)
}

fn shape_hash(labels: &Labels) -> u64 {
    let names = raw_pairs(labels).map(|pair| pair.name);
    let names = names.filter(|&name| name != METRIC_NAME.as_bytes());
    names.fold(0, |hash, name| mix(hash ^ xxh3_64(name)))
}

// The finalizer of splitmix64.
fn mix(id: u64) -> u64 {
    let mut x = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
