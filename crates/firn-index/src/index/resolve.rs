//! The resolution of label sets: each is found, or defined as a new series.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firn_model::{Error, GroupId, Labels, Result, SeriesRef, Timestamp};
use hashbrown::HashMap;

use super::{BATCH_KNOWN, BATCH_NEW, Index};
use crate::group_rules::GROUP_SLOTS_GOOD;
use crate::limits::{Admission, NewSeries, SegmentCensus};
use crate::memory::index::{GrowingGroup, MemoryIndex, SeriesPosition};
use crate::memory::lookup::Lookup;
use crate::options::GroupBy;
use crate::pair::raw_pairs;
use crate::version::IndexVersion;

/// The choice of the group of new series.
#[derive(Clone, Copy)]
enum Placement<'a> {
    /// By the options; with a timestamp of each series.
    ByOptions(&'a [Timestamp]),
    /// The group of these labels.
    Group(&'a Labels),
}

/// An unknown label set that is to be defined.
struct NewLabelSet<'l> {
    whole: &'l Labels,
    /// The identity labels of the group that it joins; `None`: a lone series.
    identity: Option<Labels>,
    is_by_options: bool,
    admission: Admission,
}

impl Index {
    /// Finds or defines each label set: the slow path of a write. Clears `out` and adds one result
    /// per label set, in order. A new series joins the group that `group_by` chooses or is a lone
    /// series. Takes about 0.5 us for a known label set and 1 us for a new one.
    ///
    /// # Errors
    /// Per label set: `SeriesLimit` if a new series exceeds a limit, `Invalid` for an empty label
    /// set, `TooLarge` if the index has no space for more text, `Corrupt` if a damaged segment may
    /// contain the label set.
    pub fn resolve(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        self.resolve_admitted(labels, &[], Admission::Limited, out);
    }

    /// As [`Index::resolve`], with a timestamp of each label set: series of one group come with
    /// equal ones, which [`GroupBy::Auto`] considers.
    pub fn resolve_at(
        &self,
        labels: &[Labels],
        times: &[Timestamp],
        out: &mut Vec<Result<SeriesRef>>,
    ) {
        self.resolve_admitted(labels, times, Admission::Limited, out);
    }

    /// As [`Index::resolve`], for series of the program itself: no limit on new series refuses
    /// them, though they count.
    pub fn resolve_exempt(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        self.resolve_admitted(labels, &[], Admission::Exempt, out);
    }

    fn resolve_admitted(
        &self,
        labels: &[Labels],
        times: &[Timestamp],
        admission: Admission,
        out: &mut Vec<Result<SeriesRef>>,
    ) {
        out.clear();
        out.reserve(labels.len());
        let generation = self.generation();
        let version = self.version();
        let mut lookup = Lookup::default();
        let mut missing: Vec<usize> = Vec::new();
        for batch in labels.chunks(BATCH_KNOWN) {
            let memory = version.active.memory.read();
            for labels in batch {
                match lookup.find(&memory, labels) {
                    Some(position) => out.push(Ok(memory.series_ref(position))),
                    None => {
                        missing.push(out.len());
                        out.push(Err(Error::invalid("a series has no labels: add at least one")));
                    }
                }
            }
        }
        missing.retain(|&idx| !labels[idx].is_empty());
        let whole: Vec<&Labels> = missing.iter().map(|&idx| &labels[idx]).collect();
        let times: Vec<Timestamp> =
            missing.iter().map(|&idx| times.get(idx).copied().unwrap_or(0)).collect();
        let found = self.find_or_define(&whole, admission, Placement::ByOptions(&times));
        for (&idx, found) in missing.iter().zip(found) {
            out[idx] = found;
        }
        // Rows of these series follow, so remember the references to save lookups in files.
        let found = out.iter().filter_map(|found| found.as_ref().ok().copied());
        self.shared.known.write().note(generation, found);
    }

    /// Finds or defines the members of a group that the caller names. Returns the groups, each
    /// once, and the references in order of `members`. There is usually one group; there are more
    /// if the group is full or if a label set was defined in another group before.
    ///
    /// # Errors
    /// `Invalid` if a member repeats a label name of the group or has no label at all;
    /// `SeriesLimit` if a new series exceeds a limit; `TooLarge` if the index has no space for more
    /// text; `Corrupt` if a damaged segment may contain a member. Members before the failed one
    /// stay defined.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        let mut series = Vec::with_capacity(members.len());
        for batch in members.chunks(BATCH_NEW) {
            let whole =
                batch.iter().map(|m| join(group_labels, m)).collect::<Result<Vec<Labels>>>()?;
            let whole: Vec<&Labels> = whole.iter().collect();
            let placement = Placement::Group(group_labels);
            for found in self.find_or_define(&whole, Admission::Limited, placement) {
                series.push(found?);
            }
        }
        let mut groups: Vec<GroupId> = series.iter().map(|series| series.group).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok((groups, series))
    }

    /// The labels that identify the group of a series; `None` for a lone series.
    fn identity(&self, labels: &Labels, placement: Placement<'_>) -> Option<Labels> {
        let names = match (placement, &self.shared.options.group_by) {
            (Placement::Group(group), _) => return Some(group.clone()),
            (_, GroupBy::Auto) => return self.shared.rules.lock().identity(labels),
            (_, GroupBy::Labels(names)) => names,
        };
        let is_group = |name: &[u8]| names.iter().any(|by| by.as_bytes() == name);
        let count = raw_pairs(labels).filter(|pair| is_group(pair.name)).count();
        let is_lone = names.is_empty() || count < names.len();
        (!is_lone).then(|| labels.filter(|name| is_group(name.as_bytes())))
    }

    /// Returns one result per label set of `whole`. Label sets that are in no older segment are
    /// found or defined in the active one, in the group that `placement` chooses.
    fn find_or_define(
        &self,
        whole: &[&Labels],
        admission: Admission,
        placement: Placement<'_>,
    ) -> Vec<Result<SeriesRef>> {
        let mut version = self.version();
        let mut finder = version.finder();
        let mut found: Vec<Option<Result<SeriesRef>>> =
            whole.iter().map(|labels| finder.find(labels).transpose()).collect();
        let is_auto = self.shared.options.group_by == GroupBy::Auto;
        if let (Placement::ByOptions(times), true) = (placement, is_auto) {
            // Before any is defined: the first series of a sender are enough for most rules.
            let new = whole.iter().zip(times).zip(&found).filter(|new| new.1.is_none());
            self.shared.rules.lock().observe(new.map(|new| (*new.0.0, *new.0.1)));
        }
        for (whole, found) in whole.chunks(BATCH_NEW).zip(found.chunks_mut(BATCH_NEW)) {
            if found.iter().any(Option::is_none) {
                self.define_missing(&mut version, whole, (admission, placement), found);
            }
        }
        found.into_iter().flatten().collect()
    }

    /// Defines the label sets that have no result yet.
    fn define_missing(
        &self,
        version: &mut Arc<IndexVersion>,
        whole: &[&Labels],
        (admission, placement): (Admission, Placement<'_>),
        found: &mut [Option<Result<SeriesRef>>],
    ) {
        let mut wanted: Vec<NewLabelSet<'_>> = Vec::with_capacity(whole.len());
        for (&whole, found) in whole.iter().zip(&*found) {
            let identity = if found.is_none() { self.identity(whole, placement) } else { None };
            let is_by_options = matches!(placement, Placement::ByOptions(_));
            wanted.push(NewLabelSet { whole, identity, is_by_options, admission });
        }
        // Groups of older segments that take more members, by identity labels.
        let mut growing: HashMap<&Labels, Option<GrowingGroup>> = HashMap::new();
        while found.iter().any(Option::is_none) {
            // Lookups in files run without a lock.
            let deferred = {
                let mut memory = version.active.memory.write();
                (!memory.is_frozen)
                    .then(|| self.define_some(version, &mut memory, &wanted, &growing, found))
            };
            let Some(deferred) = deferred else {
                // The segment was frozen meanwhile.
                *version = self.version();
                growing.clear();
                let mut finder = version.finder();
                for (found, wanted) in found.iter_mut().zip(&wanted) {
                    if found.is_none() {
                        *found = finder.find(wanted.whole).transpose();
                    }
                }
                continue;
            };
            for idx in deferred {
                let Some(identity) = &wanted[idx].identity else { continue };
                match self.growing(version, identity) {
                    Ok(group) => drop(growing.insert(identity, group)),
                    Err(e) => found[idx] = Some(Err(e)),
                }
            }
        }
    }

    /// Defines all label sets that need no lookup of their group in older segments. Returns the
    /// indexes in `wanted` of the others, one or more per group.
    fn define_some(
        &self,
        version: &IndexVersion,
        memory: &mut MemoryIndex,
        wanted: &[NewLabelSet<'_>],
        growing: &HashMap<&Labels, Option<GrowingGroup>>,
        found: &mut [Option<Result<SeriesRef>>],
    ) -> Vec<usize> {
        let has_older = !version.sealed.is_empty() || !version.frozen.is_empty();
        let mut lookup = Lookup::default();
        let mut deferred = Vec::new();
        for (idx, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            if found.is_some() {
                continue;
            }
            // Another writer or an earlier entry of this batch may have defined it.
            if let Some(position) = lookup.find(memory, wanted.whole) {
                *found = Some(Ok(memory.series_ref(position)));
                continue;
            }
            let known = wanted.identity.as_ref().and_then(|identity| growing.get(identity));
            let goes_on = wanted.identity.as_ref().is_some_and(|identity| {
                has_older && known.is_none() && memory.growing(identity).is_none()
            });
            if goes_on {
                deferred.push(idx);
                continue;
            }
            let position =
                self.define(version, memory, &mut lookup, wanted, known.copied().flatten());
            *found = Some(position.map(|position| memory.series_ref(position)));
        }
        deferred
    }

    /// Checks the limits before any text is stored, so that refused label sets cost no memory.
    fn define<'l>(
        &self,
        version: &IndexVersion,
        memory: &mut MemoryIndex,
        lookup: &mut Lookup<'l>,
        wanted: &NewLabelSet<'l>,
        growing: Option<GrowingGroup>,
    ) -> Result<SeriesPosition> {
        let (whole, identity) = (wanted.whole, &wanted.identity);
        let group_labels = || identity.clone().unwrap_or_else(Labels::empty);
        let group: Option<&dyn Fn() -> Labels> = identity.is_some().then_some(&group_labels);
        let new = NewSeries { metric: whole.metric_name(), group };
        let census = SegmentCensus::new(version, memory);
        let mut limits = self.shared.limits.lock();
        match wanted.admission {
            Admission::Limited => limits.admit(&new, &census)?,
            Admission::Exempt => limits.admit_exempt(&new),
        }
        drop((limits, census));
        let mut define = || {
            lookup.intern(memory, whole)?;
            let Some(identity) = identity else {
                return memory.define_lone(&lookup.ids, whole.hash64());
            };
            let (mut group, mut rest) = (Vec::new(), Vec::new());
            let mut names = raw_pairs(identity).map(|pair| pair.name).peekable();
            for (pair, &id) in raw_pairs(whole).zip(&lookup.ids) {
                let is_group = names.next_if_eq(&pair.name).is_some();
                if is_group { group.push(id) } else { rest.push(id) }
            }
            memory.define_member(&group, &rest, growing, || identity.hash64())
        };
        let position = define().inspect_err(|_| self.shared.limits.lock().recount())?;
        if wanted.is_by_options && memory.series_ref(position).slot.0 >= GROUP_SLOTS_GOOD {
            self.shared.rules.lock().note_overgrown(whole);
        }
        let shard = &self.shared.shards[usize::from(memory.parts.shard(position.part_no).0)];
        shard.push_pending(version.active.number, position);
        Ok(position)
    }

    /// The group of an older segment that takes a new member of `identity`.
    fn growing(&self, version: &IndexVersion, identity: &Labels) -> Result<Option<GrowingGroup>> {
        let growing = version.growing(identity, self.shared.options.slots_per_group_max)?;
        let bits = self.shared.bits;
        let is_trusted = |growing: &GrowingGroup| {
            let shard = &self.shared.shards[usize::from(bits.shard(growing.group).0)];
            !shard.is_distrusted.load(Ordering::Relaxed)
                && bits.local(growing.group) >= shard.closed_below.load(Ordering::Relaxed)
        };
        Ok(growing.filter(is_trusted))
    }
}

/// Both label sets as one.
///
/// # Errors
/// `Invalid` if they share a name or both are empty.
fn join(group: &Labels, member: &Labels) -> Result<Labels> {
    if let Some(pair) = member.iter().find(|pair| group.get(pair.0).is_some()) {
        return Err(Error::invalid(format!(
            "member {member} repeats label {:?} of its group {group}; leave it out",
            pair.0
        )));
    }
    if group.is_empty() && member.is_empty() {
        return Err(Error::invalid("a series has no labels: add at least one"));
    }
    Labels::from_pairs(group.iter().chain(member.iter()))
}
