//! The list that replaces the texts of the cache, for a body with other series than the last one.

use std::collections::HashMap;
use std::hash::BuildHasher;

use firn_model::{Error, GroupId, Labels, Result, SeriesRef, Timestamp, excerpt_within};
use hashbrown::HashTable;

use super::index::TextIndex;
use super::{
    BOUND_SHIFT, DROPPED, GROUP_SHIFT, Held, Member, OLD_TEXT_BYTES, PENDING, PENDING_BYTES,
    PIECE_BYTES_MIN, REFUSED, REPEATED, RESOLVED_COUNT_MAX, Scrape, ScrapeCache, ScrapeOptions,
};
use crate::relabel::NameScheme;
use crate::scrape::text::{BoundLabel, Parser, SampleLine};
use crate::scrape::texts::Texts;

/// The list that replaces the texts of the cache.
pub(super) struct Changed {
    pub(super) texts: Texts,
    pub(super) members: Vec<Member>,
    /// Samples in order of lines: index of the member, time, value.
    pub(super) cells: Vec<(u32, Timestamp, f64)>,
    /// [`ScrapeCache::groups`] with those of new members.
    pub(super) groups: Vec<GroupId>,
    /// New label sets; the members from `pending_start` that are pending refer to them.
    pending: PendingLabels,
    pending_start: usize,
    /// The old texts, and those of the body that are new, once one is looked up.
    old_texts: Option<OldTexts>,
    new_texts: TextIndex,
    /// For each old member whether the body has its text.
    pub(super) visited: Vec<bool>,
    /// A tracked series now has a time of its own.
    pub(super) lost_tracking: bool,
    pub(super) stored_count: u64,
}

struct OldTexts {
    bytes: Vec<u8>,
    index: TextIndex,
    /// For each text the position of the next one.
    next_at: Vec<usize>,
}

impl Changed {
    /// A list that begins with the first `idx` members of `cache`, whose texts end at `at`.
    pub(super) fn new(cache: &ScrapeCache, idx: usize, at: usize, stored_count: u64) -> Changed {
        let mut texts = Texts::default();
        texts.copy_from(&cache.texts, at);
        let mut visited = vec![true; idx];
        visited.resize(cache.members.len(), false);
        Changed {
            texts,
            members: cache.members.get(..idx).unwrap_or(&[]).to_vec(),
            cells: Vec::new(),
            groups: cache.groups.clone(),
            pending: PendingLabels::default(),
            pending_start: 0,
            old_texts: None,
            new_texts: TextIndex::default(),
            visited,
            lost_tracking: false,
            stored_count,
        }
    }

    /// The index of an old member by its text, and the position of the next text.
    pub(super) fn find_old(
        &mut self,
        cache: &ScrapeCache,
        text: &[u8],
        bound_label: BoundLabel,
        held: &mut Held<'_>,
    ) -> Result<Option<(usize, usize)>> {
        let old = match &mut self.old_texts {
            Some(old) => old,
            None => self.old_texts.insert(OldTexts::read(cache, held)?),
        };
        let found = old.index.find(&old.bytes, text, bound_label);
        Ok(found.and_then(|found| Some((found, *old.next_at.get(found)?))))
    }

    /// A member for a text that no old member has. Lines with one new text share their labels.
    /// Over the limit the scrape fails, so that only its counts are needed.
    pub(super) fn new_member(
        &mut self,
        body: &[u8],
        line: &SampleLine,
        parser: &Parser<'_>,
        is_over: bool,
        scrape: &mut Scrape<'_>,
    ) -> Result<Member> {
        let text = body.get(line.series.clone()).unwrap_or(&[]);
        let bound_label = parser.bound_label();
        let bits = (bound_label as u32) << BOUND_SHIFT;
        let first = self.new_texts.find(body, text, bound_label);
        if let Some(mut member) = first.and_then(|first| self.members.get(first).copied()) {
            member.set(REPEATED, true);
            return Ok(member);
        }
        let member = match scrape.source.labels(parser.labels())? {
            None => Member { slot: 0, bits: bits | DROPPED },
            Some(labels) => {
                check_labels(&labels, scrape.options)?;
                let slot = if is_over { 0 } else { self.add_pending(labels, scrape)? };
                if !is_over {
                    scrape.count_added(text);
                }
                Member { slot, bits: bits | PENDING }
            }
        };
        self.new_texts.insert(body, line.series.clone(), bound_label, self.members.len());
        Ok(member)
    }

    /// The index of `labels` among those that are pending.
    fn add_pending(&mut self, labels: Labels, scrape: &mut Scrape<'_>) -> Result<u32> {
        let bytes = PENDING_BYTES.saturating_add(labels.as_encoded().len());
        self.hold(bytes, scrape)?;
        Ok(self.pending.insert(labels, bytes as u64))
    }

    /// Reserves memory for another text. A list that grows exists twice meanwhile.
    pub(super) fn hold_text(&mut self, text: &[u8], scrape: &mut Scrape<'_>) -> Result<()> {
        if let Some(bytes) = self.texts.grown_bytes(text.len()) {
            self.hold(bytes, scrape)?;
            let before = self.texts.heap_bytes() as u64;
            self.texts.grow(bytes);
            scrape.held.subtract(before);
        }
        Ok(())
    }

    /// Reserves `bytes`. If they are refused, resolves the pending label sets and tries again.
    pub(super) fn hold(&mut self, bytes: usize, scrape: &mut Scrape<'_>) -> Result<()> {
        scrape.held.add(bytes).or_else(|error| {
            if self.pending.bytes < PIECE_BYTES_MIN {
                return Err(error);
            }
            self.resolve_pending(scrape);
            scrape.held.add(bytes)
        })
    }

    /// Releases the memory that only the look-up of texts needs.
    pub(super) fn forget_texts(&mut self) {
        self.new_texts = TextIndex::default();
        self.old_texts = None;
    }

    /// Resolves the pending label sets, and releases their memory.
    pub(super) fn resolve_pending(&mut self, scrape: &mut Scrape<'_>) {
        if self.pending.labels.is_empty() {
            return;
        }
        let PendingLabels { labels, table, bytes, .. } = std::mem::take(&mut self.pending);
        drop(table);
        let mut refs: Vec<Option<SeriesRef>> = Vec::with_capacity(labels.len());
        for labels in labels.chunks(RESOLVED_COUNT_MAX) {
            let mut found = scrape.source.resolve(labels).into_iter();
            refs.extend(labels.iter().map(|_| found.next().and_then(Result::ok)));
        }
        drop(labels);
        scrape.held.subtract(bytes);
        let refs_bytes = refs.capacity().saturating_mul(size_of::<Option<SeriesRef>>());
        let places_bytes = GroupPlaces::bytes(self.groups.len().saturating_add(refs.len()));
        let bytes = refs_bytes.saturating_add(places_bytes);
        // Without memory, new series are refused.
        let mut places = match scrape.held.add(bytes) {
            Ok(()) => Some(GroupPlaces::of(&self.groups)),
            Err(_) => None,
        };
        let counts = &mut scrape.counts;
        let Changed { members, groups, .. } = self;
        let new = members.get_mut(self.pending_start..).unwrap_or(&mut []).iter_mut();
        for member in new.filter(|member| member.has(PENDING)) {
            member.set(PENDING, false);
            let found = refs.get(member.slot as usize).copied().flatten();
            let place = |series: SeriesRef| {
                let places = places.as_mut()?;
                Some((series.slot.0, places.place_of(series.group, groups)?))
            };
            match found.and_then(place) {
                Some((slot, group_idx)) => {
                    member.slot = slot;
                    member.bits |= group_idx << GROUP_SHIFT;
                }
                None => {
                    let is_added = u64::from(!member.has(REPEATED));
                    counts.added = counts.added.saturating_sub(is_added);
                    member.set(REFUSED, true);
                }
            }
        }
        self.pending_start = self.members.len();
        if places.is_some() {
            scrape.held.subtract(bytes as u64);
        }
    }
}

/// Label sets to resolve, each once.
#[derive(Default)]
struct PendingLabels {
    labels: Vec<Labels>,
    /// Indexes of `labels`. Seeded at random, so that a target cannot choose labels of one hash.
    table: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
    /// The memory that is held for them.
    bytes: u64,
}

impl PendingLabels {
    /// The index of `new`, for which `bytes` are held.
    fn insert(&mut self, new: Labels, bytes: u64) -> u32 {
        let PendingLabels { labels, table, hasher, .. } = self;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_new = |idx: &u32| labels.get(*idx as usize) == Some(&new);
        if let Some(idx) = table.find(hasher.hash_one(&new), is_new) {
            return *idx;
        }
        let idx = u32::try_from(labels.len()).unwrap_or(u32::MAX);
        labels.push(new);
        let hash_at = |idx: &u32| labels.get(*idx as usize).map_or(0, |set| hasher.hash_one(set));
        table.insert_unique(hash_at(&idx), idx, hash_at);
        idx
    }
}

/// The indexes of groups in a list: with `honor_labels`, each series may have a group of its own.
struct GroupPlaces {
    by_group: HashMap<GroupId, u32>,
    /// Most series have that of the one before.
    last: Option<(GroupId, u32)>,
}

impl GroupPlaces {
    /// The memory of the places of `group_count` groups. A few need none of their own.
    fn bytes(group_count: usize) -> usize {
        const FREE_COUNT: usize = 1_024;
        const PLACE_BYTES: usize = 3 * size_of::<(GroupId, u32)>();
        if group_count > FREE_COUNT { group_count.saturating_mul(PLACE_BYTES) } else { 0 }
    }

    fn of(groups: &[GroupId]) -> GroupPlaces {
        GroupPlaces { by_group: groups.iter().copied().zip(0..).collect(), last: None }
    }

    /// The index of `group` in `groups`, which it is added to. It fits into 24 bits.
    fn place_of(&mut self, group: GroupId, groups: &mut Vec<GroupId>) -> Option<u32> {
        if let Some((_, idx)) = self.last.filter(|(last, _)| *last == group) {
            return Some(idx);
        }
        let next = u32::try_from(groups.len()).ok().filter(|idx| *idx < 1 << (32 - GROUP_SHIFT));
        let idx = match self.by_group.get(&group) {
            Some(idx) => *idx,
            None => {
                let next = next?;
                groups.push(group);
                self.by_group.insert(group, next);
                next
            }
        };
        self.last = Some((group, idx));
        Some(idx)
    }
}

impl OldTexts {
    fn read(cache: &ScrapeCache, held: &mut Held<'_>) -> Result<OldTexts> {
        let mut old =
            OldTexts { bytes: Vec::new(), index: TextIndex::default(), next_at: Vec::new() };
        let (mut at, mut last_start) = (0, 0);
        for (idx, member) in cache.members.iter().enumerate() {
            let Some(item) = cache.texts.item(at) else { break };
            let start = old.bytes.len();
            let text_bytes = item.shared_bytes.saturating_add(item.rest.len());
            held.add(OLD_TEXT_BYTES.saturating_add(text_bytes.saturating_mul(2)))?;
            let shared = last_start..item.shared_bytes.saturating_add(last_start);
            old.bytes.extend_from_within(shared);
            old.bytes.extend_from_slice(item.rest);
            at = item.next_at;
            last_start = start;
            old.next_at.push(at);
            if !member.has(REFUSED) {
                let span = start..old.bytes.len();
                old.index.insert(&old.bytes, span, member.bound_label(), idx);
            }
        }
        Ok(old)
    }
}

/// Checks labels after relabelling, as Prometheus does.
fn check_labels(labels: &Labels, options: &ScrapeOptions) -> Result<()> {
    let metric = labels.metric_name();
    if metric.is_empty() {
        return Err(Error::invalid("missing metric name (__name__ label)"));
    }
    if options.names == NameScheme::Legacy {
        let is_metric = |c: char| c == ':' || c == '_' || c.is_ascii_alphanumeric();
        let is_valid = !metric.starts_with(|c: char| c.is_ascii_digit())
            && metric.chars().all(is_metric)
            && labels.iter().all(|(name, _)| options.names.is_label_name(name));
        if !is_valid {
            let labels = labels.to_string();
            let labels = excerpt_within(&labels, 200);
            return Err(Error::invalid(format!("invalid metric name or label names: {labels}")));
        }
    }
    let is_over = |count: usize, limit: u64| limit > 0 && count as u64 > limit;
    let metric = excerpt_within(metric, 50);
    if is_over(labels.count(), options.label_count_max) {
        return Err(Error::too_large(format!(
            "label_limit exceeded (metric: {metric}, number of labels: {}, limit: {})",
            labels.count(),
            options.label_count_max
        )));
    }
    for (name, value) in labels {
        let shown = excerpt_within(name, 50);
        if is_over(name.len(), options.label_name_bytes_max) {
            return Err(Error::too_large(format!(
                "label_name_length_limit exceeded (metric: {metric}, label name: {shown}, \
                 length: {}, limit: {})",
                name.len(),
                options.label_name_bytes_max
            )));
        }
        if is_over(value.len(), options.label_value_bytes_max) {
            return Err(Error::too_large(format!(
                "label_value_length_limit exceeded (metric: {metric}, label name: {shown}, \
                 value: {:?}, length: {}, limit: {})",
                excerpt_within(value, 50),
                value.len(),
                options.label_value_bytes_max
            )));
        }
    }
    Ok(())
}
