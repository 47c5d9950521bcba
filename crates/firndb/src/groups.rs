//! Groups: series that share labels and timestamps, put by labels once and by references ever after.
//!
//! Source: `TimeUnion` 3.1 and 3.4 ("Put (Group)"). A row may lack members (NULL), bring new ones, come late, and
//! come in pieces; there is no other code for that than the one of every write.

use std::collections::HashMap;

use firn_model::{
    Error, ErrorKind, GroupId, Grouping, Labels, Matcher, Pool, QueryContext, Result, RowBatch,
    SeriesRef, Slot, Timestamp,
};

use crate::{Db, WriteReport};

#[cfg(test)]
mod tests;

/// What to do with a member whose label set is a series of another group already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignMember {
    /// Refuse the whole call: a label set has one place, and whoever defines a group should hear
    /// that its members will not share it.
    Refuse,
    /// Give its reference there: its values are kept with the other group's timestamps.
    Use,
}

/// The references of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRefs {
    /// They hold as long as [`Db::generation`] says this.
    pub generation: u32,
    /// One for each member, in the order in which they were given. They are in one group unless it
    /// was full (a sibling with the same labels opens then) or [`ForeignMember::Use`] found some in others.
    pub members: Vec<SeriesRef>,
}

/// A group as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Its id.
    pub group: GroupId,
    /// Its labels; of a group of one all labels of its member.
    pub labels: Labels,
    /// A group of one: it never gets another member.
    pub is_lone: bool,
    /// Members that the selectors match; all without selectors.
    pub member_count: u64,
    /// Slots that were given out, members that are gone included.
    pub slot_count: u32,
}

/// A group with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    /// Its labels; of a group of one all labels of its member.
    pub labels: Labels,
    /// A group of one: it never gets another member.
    pub is_lone: bool,
    /// The members with what they have beside the group's labels, slots rising.
    pub members: Vec<(Slot, Labels)>,
}

impl GroupRefs {
    /// Adds a row to `batch`: the value of each member at `ts`, `None` where it has none.
    ///
    /// # Panics
    /// If there are more values than members.
    pub fn push_row(&self, batch: &mut RowBatch, ts: Timestamp, values: &[Option<f64>]) {
        assert!(values.len() <= self.members.len(), "a row has a value for each member at most");
        for (&member, value) in self.members.iter().zip(values) {
            if let Some(value) = *value {
                batch.push(member, ts, value);
            }
        }
    }
}

impl Db {
    /// The references of the members of a group that the caller names; what is new is defined (the
    /// slow path). `members` are the labels that each has beside the group's. A group that is known
    /// keeps its id, its members keep their slots, new ones get the next.
    ///
    /// # Errors
    /// `Invalid` for a member that repeats a label of the group or another member, that has no label
    /// in all, or, with [`ForeignMember::Refuse`], that is known elsewhere: nothing is defined then.
    /// `SeriesLimit` over a limit for new series, `Busy` without memory, `TooLarge` when the index is full.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        elsewhere: ForeignMember,
    ) -> Result<GroupRefs> {
        self.check_group(group_labels, members, elsewhere)?;
        let generation = self.generation();
        let (_, members) = self.engine.resolve_group(group_labels, members)?;
        Ok(GroupRefs { generation, members })
    }

    /// Whether [`Db::resolve_group`] would refuse this as `Invalid`; nothing is defined.
    ///
    /// # Errors
    /// As [`Db::resolve_group`], limits apart.
    pub fn check_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        elsewhere: ForeignMember,
    ) -> Result<()> {
        let whole = whole_labels(group_labels, members)?;
        if elsewhere == ForeignMember::Use {
            return Ok(());
        }
        let snapshot = self.snapshot();
        // Most members are in one group: its labels are looked at once.
        let mut groups: HashMap<GroupId, bool> = HashMap::new();
        for (idx, found) in self.engine.find(&whole)?.into_iter().enumerate() {
            let Some(found) = found else { continue };
            let is_same = match groups.get(&found.group) {
                Some(&is_same) => is_same,
                None => {
                    let group = snapshot.index().group(found.group)?;
                    // One that is younger than the snapshot is checked by the next call.
                    let is_same = group.is_none_or(|g| g.labels == *group_labels && !g.is_lone);
                    groups.insert(found.group, is_same);
                    is_same
                }
            };
            if !is_same {
                let other = snapshot.index().group(found.group)?;
                let other = other.map_or_else(String::new, |group| group.labels.to_string());
                return Err(Error::invalid(format!(
                    "member {idx} of group {group_labels} collides: {} is member {} of group {} {other}; \
                     leave it out, define that group, or accept members that are elsewhere",
                    whole.get(idx).unwrap_or(group_labels),
                    found.slot.0,
                    found.group.0,
                )));
            }
        }
        Ok(())
    }

    /// The references of label sets that have one; nothing is defined.
    ///
    /// # Errors
    /// `Corrupt` when a damaged index segment may have one.
    pub fn find(&self, labels: &[Labels]) -> Result<Vec<Option<SeriesRef>>> {
        self.engine.find(labels)
    }

    /// Checks references that came from outside.
    ///
    /// # Errors
    /// `NotFound` with the first that does not exist, group or slot.
    pub fn check_refs(&self, refs: &[SeriesRef]) -> Result<()> {
        let Some(unknown) = self.engine.find_unknown(refs)? else { return Ok(()) };
        let SeriesRef { group, slot } = unknown;
        Err(Error::not_found(match self.snapshot().index().group(group)? {
            None => format!("group {} does not exist", group.0),
            Some(known) => format!(
                "group {} has no slot {}: it has {} slots, from 0",
                group.0, slot.0, known.slot_count
            ),
        }))
    }

    /// Writes one sample of one series by its labels, and gives the reference for the fast path
    /// ([`RowBatch::push`], [`Db::write`]). For the first sample, or a few: a batch costs a hundredth.
    ///
    /// # Errors
    /// Those of [`Db::resolve`] and [`Db::write`]; `Invalid` for a time too far in the future.
    pub fn put(&self, labels: &Labels, ts: Timestamp, value: f64) -> Result<SeriesRef> {
        let resolved = self.resolve(std::slice::from_ref(labels)).pop();
        let series = resolved.unwrap_or_else(|| Err(Error::internal("no reference was given")))?;
        let mut batch = RowBatch::default();
        batch.push(series, ts, value);
        all_written(&self.write(&mut batch)?)?;
        Ok(series)
    }

    /// Writes one row of a group by labels, and gives the references for the fast path
    /// ([`GroupRefs::push_row`], [`Db::write`]). `values` are those of `members` at `ts`, `None` where
    /// there is none.
    ///
    /// # Errors
    /// Those of [`Db::resolve_group`] and [`Db::write`]; `Invalid` when there are not as many values as
    /// members and for a time too far in the future.
    pub fn put_row(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        ts: Timestamp,
        values: &[Option<f64>],
    ) -> Result<GroupRefs> {
        if values.len() != members.len() {
            return Err(Error::invalid(format!(
                "a row of group {group_labels} has {} values for {} members",
                values.len(),
                members.len()
            )));
        }
        let refs = self.resolve_group(group_labels, members, ForeignMember::Refuse)?;
        let mut batch = RowBatch::default();
        refs.push_row(&mut batch, ts, values);
        all_written(&self.write(&mut batch)?)?;
        Ok(refs)
    }

    /// The groups that have a member which one of `selectors` matches (all, without selectors), ids
    /// rising; groups of one only `with_lone`. Reads no data: members whose data has aged out are
    /// listed until they leave the index.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` without memory for the list.
    pub fn groups(
        &self,
        selectors: &[Vec<Matcher>],
        with_lone: bool,
        context: &QueryContext,
    ) -> Result<Vec<GroupSummary>> {
        let snapshot = self.snapshot();
        let mut found: HashMap<GroupId, Vec<Slot>> = HashMap::new();
        let mut held = context.budget.empty(Pool::Query);
        let all = [Vec::new()];
        let selectors = if selectors.is_empty() { &all[..] } else { selectors };
        for matchers in selectors {
            let one_key = Grouping::By(Vec::new());
            let matches = snapshot.index().matches(matchers, &one_key, context)?;
            held.grow((matches.series_count() * SLOT_BYTES) as u64)?;
            for group in &matches.groups {
                let slots = group.members.iter().map(|member| member.slot);
                found.entry(group.group).or_default().extend(slots);
            }
        }
        let mut groups = Vec::with_capacity(found.len());
        for (group, mut slots) in found {
            context.cancel.check()?;
            let Some(info) = snapshot.index().group(group)? else { continue };
            if info.is_lone && !with_lone {
                continue;
            }
            held.grow((info.labels.as_encoded().len() + size_of::<GroupSummary>()) as u64)?;
            slots.sort_unstable();
            slots.dedup();
            groups.push(GroupSummary {
                group,
                labels: info.labels,
                is_lone: info.is_lone,
                member_count: slots.len() as u64,
                slot_count: info.slot_count,
            });
        }
        groups.sort_unstable_by_key(|summary| summary.group);
        Ok(groups)
    }

    /// A group with all its members; `None` if there is none with this id.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index segment.
    pub fn group(&self, group: GroupId) -> Result<Option<GroupMembers>> {
        let snapshot = self.snapshot();
        let Some(info) = snapshot.index().group(group)? else { return Ok(None) };
        let mut members = Vec::new();
        for slot in (0..info.slot_count).map(Slot) {
            // One whose data has gone leaves an empty slot.
            if let Some(whole) = snapshot.index().labels(SeriesRef { group, slot })? {
                members.push((slot, whole.filter(|name| info.labels.get(name).is_none())));
            }
        }
        Ok(Some(GroupMembers { labels: info.labels, is_lone: info.is_lone, members }))
    }
}

// A slot in a list, and its part of the list's growth.
const SLOT_BYTES: usize = 2 * size_of::<Slot>() + 16;

/// The whole label set of each member.
fn whole_labels(group_labels: &Labels, members: &[Labels]) -> Result<Vec<Labels>> {
    let mut seen: HashMap<&Labels, usize> = HashMap::with_capacity(members.len());
    let join = |(idx, member): (usize, &'_ Labels)| {
        if let Some((name, _)) = member.iter().find(|(name, _)| group_labels.get(name).is_some()) {
            return Err(Error::invalid(format!(
                "member {idx} {member} repeats label {name:?} of its group {group_labels}; leave it out"
            )));
        }
        Labels::from_pairs(group_labels.iter().chain(member.iter()))
    };
    for (idx, member) in members.iter().enumerate() {
        if group_labels.is_empty() && member.is_empty() {
            return Err(Error::invalid(format!("member {idx} has no label, nor has its group")));
        }
        if let Some(first) = seen.insert(member, idx) {
            return Err(Error::invalid(format!(
                "members {first} and {idx} of group {group_labels} are the same: {member}"
            )));
        }
    }
    members.iter().enumerate().map(join).collect()
}

/// Nothing was left out.
fn all_written(report: &WriteReport) -> Result<()> {
    if let Some(ts) = report.too_far_ahead_max {
        return Err(Error::invalid(format!("timestamp {ts} is too far in the future")));
    }
    match report.unknown {
        0 => Ok(()),
        // The index let it go between the two steps: the next call defines it again.
        _ => Err(Error::new(ErrorKind::Unavailable, "the series has just left the index: retry")),
    }
}
