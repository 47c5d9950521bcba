//! Groups: series that share labels and timestamps, written by labels once and by references
//! afterwards.
//!
//! Source: TimeUnion (SIGMOD 2022), section 3.1 and "Put (Group)" in section 3.4. A row may lack
//! members (NULL), add new ones, be late, or arrive in pieces; all these cases use the code path of
//! every write.

use std::collections::HashMap;
use std::ops::ControlFlow;

use firn_engine::Matches;
use firn_model::{
    Error, ErrorKind, GroupId, Grouping, Labels, Matcher, Pool, QueryContext, Reservation, Result,
    RowBatch, SeriesRef, Slot, Timestamp,
};

use crate::{Db, GroupRule, WriteReport};

#[cfg(test)]
mod tests;

/// The handling of a member with a label set that is already a series of another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignMember {
    /// Refuse the whole call: a label set belongs to one group, so this member would not share the
    /// new group's timestamps.
    Refuse,
    /// Return its reference in the other group: its values are stored with that group's timestamps.
    Use,
}

/// The references of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRefs {
    /// The references are valid as long as [`Db::generation`] returns this value.
    pub generation: u32,
    /// One reference per member, in the order of the call. All are in one group, unless it was full
    /// (a sibling with the same labels is then opened) or [`ForeignMember::Use`] found some in
    /// other groups.
    pub members: Vec<SeriesRef>,
}

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Its id.
    pub group: GroupId,
    /// Its labels; for a lone series all labels of the series.
    pub labels: Labels,
    /// A group of one lone series: it never gets another member.
    pub is_lone: bool,
    /// The number of members that match the selectors; of all members without selectors.
    pub member_count: u64,
    /// The number of assigned slots, including those of removed members; in a context with a scope
    /// those up to the last member that matches.
    pub slot_count: u32,
}

/// A group with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    /// Its labels; for a lone series all labels of the series.
    pub labels: Labels,
    /// A group of one lone series: it never gets another member.
    pub is_lone: bool,
    /// The members with their own labels, by rising slot.
    pub members: Vec<(Slot, Labels)>,
}

impl GroupSummary {
    /// The memory that it takes in a list that grows to twice its length.
    pub(crate) fn bytes(&self) -> u64 {
        (2 * size_of::<GroupSummary>() + self.labels.as_encoded().len() + LABELS_BYTES) as u64
    }
}

impl GroupRefs {
    /// Adds a row to `batch`: the value of each member at `ts`; `None` for a missing value.
    ///
    /// # Panics
    /// If there are more values than members.
    pub fn push_row(&self, batch: &mut RowBatch, ts: Timestamp, values: &[Option<f64>]) {
        assert!(values.len() <= self.members.len(), "a row has at most one value per member");
        for (&member, value) in self.members.iter().zip(values) {
            if let Some(value) = *value {
                batch.push(member, ts, value);
            }
        }
    }
}

impl Db {
    /// Resolves the members of an explicit group to references and defines new ones (the slow
    /// path). `members` are the labels that each member has beside the group's labels. A known
    /// group keeps its id, its members keep their slots, and new members get the next slots.
    ///
    /// # Errors
    /// `Invalid` for a member that repeats a label of the group or another member, that has no
    /// label at all, or, with [`ForeignMember::Refuse`], that belongs to another group: nothing is
    /// defined then. `SeriesLimit` over a limit for new series, `Busy` without memory, `TooLarge`
    /// when the index is full.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        elsewhere: ForeignMember,
    ) -> Result<GroupRefs> {
        self.check_group(group_labels, members, elsewhere)?;
        let _whole_held = self.hold_whole(group_labels, members)?;
        let generation = self.generation();
        let (_, members) = self.engine.resolve_group(group_labels, members)?;
        Ok(GroupRefs { generation, members })
    }

    /// The references of the members of a group that exist; defines nothing.
    ///
    /// # Errors
    /// As [`Db::find`] and [`Db::check_group`].
    pub fn find_members(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<Vec<Option<SeriesRef>>> {
        let _whole_held = self.hold_whole(group_labels, members)?;
        self.engine.find(&whole_labels(group_labels, members)?)
    }

    /// Reserves the complete label sets of members: a request contains the labels of its group only
    /// once, but each set repeats them.
    fn hold_whole(&self, group_labels: &Labels, members: &[Labels]) -> Result<Reservation> {
        let group_bytes = group_labels.as_encoded().len() + LABELS_BYTES + size_of::<Labels>();
        let member_bytes = members.iter().map(|member| member.as_encoded().len() + group_bytes);
        // Sets are built in a buffer that grows.
        let bytes = member_bytes.sum::<usize>() + 2 * group_bytes;
        let mut held = self.budget().of_request(Pool::Requests, 0);
        held.grow(bytes as u64)?;
        Ok(held)
    }

    /// Checks whether [`Db::resolve_group`] would return `Invalid`; defines nothing.
    ///
    /// # Errors
    /// As [`Db::resolve_group`], except for limits of series.
    pub fn check_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        elsewhere: ForeignMember,
    ) -> Result<()> {
        let _whole_held = self.hold_whole(group_labels, members)?;
        let whole = whole_labels(group_labels, members)?;
        if elsewhere == ForeignMember::Use {
            return Ok(());
        }
        let snapshot = self.snapshot();
        // Most members are in one group, so its labels are read only once.
        let mut groups: HashMap<GroupId, bool> = HashMap::new();
        for (idx, found) in self.engine.find(&whole)?.into_iter().enumerate() {
            let Some(found) = found else { continue };
            let is_same = match groups.get(&found.group) {
                Some(&is_same) => is_same,
                None => {
                    let group = snapshot.index().group(found.group)?;
                    // A group that is newer than the snapshot is checked by the next call.
                    let is_same = group.is_none_or(|g| g.labels == *group_labels && !g.is_lone);
                    groups.insert(found.group, is_same);
                    is_same
                }
            };
            if !is_same {
                let other = snapshot.index().group(found.group)?;
                let other = other.map_or_else(String::new, |group| group.labels.to_string());
                return Err(Error::invalid(format!(
                    "member {idx} of group {group_labels} collides: {} is member {} of group {} \
                     {other}; leave it out, write to that group, or accept members of other groups",
                    whole.get(idx).unwrap_or(group_labels),
                    found.slot.0,
                    found.group.0,
                )));
            }
        }
        Ok(())
    }

    /// The rule by which new series join the group with these labels.
    pub fn group_rule(&self, group_labels: &Labels) -> GroupRule {
        self.engine.group_rule(group_labels)
    }

    /// The references of known label sets; defines nothing.
    ///
    /// # Errors
    /// `Corrupt` when a damaged index segment may contain one.
    pub fn find(&self, labels: &[Labels]) -> Result<Vec<Option<SeriesRef>>> {
        self.engine.find(labels)
    }

    /// Checks references from an external source.
    ///
    /// # Errors
    /// `NotFound` for the first reference with an unknown group or slot.
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

    /// Writes one sample of one series by its labels, and returns the reference for the fast path
    /// ([`RowBatch::push`], [`Db::write`]). Use it for the first sample of a series or for a few: a
    /// sample in a batch costs a hundredth of this.
    ///
    /// # Errors
    /// As [`Db::resolve`] and [`Db::write`]; `Invalid` for a time too far in the future.
    ///
    /// ```
    /// use firndb::{Db, Labels, Options, RowBatch, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let labels = Labels::from_pairs([("__name__", "temperature"), ("room", "attic")])?;
    /// let attic = db.put(&labels, 1_000, 21.5)?;
    /// let mut batch = RowBatch::default();
    /// batch.push(attic, 16_000, 22.0);
    /// assert_eq!(db.write(&mut batch)?.written, 1);
    /// # db.close()
    /// # }
    /// ```
    pub fn put(&self, labels: &Labels, ts: Timestamp, value: f64) -> Result<SeriesRef> {
        let resolved = self.resolve(std::slice::from_ref(labels)).pop();
        let series =
            resolved.unwrap_or_else(|| Err(Error::internal("resolving returned no reference")))?;
        let mut batch = RowBatch::default();
        batch.push(series, ts, value);
        all_written(self, &self.write(&mut batch)?)?;
        Ok(series)
    }

    /// Writes one row of a group by labels, and returns the references for the fast path
    /// ([`GroupRefs::push_row`], [`Db::write`]). `values` are those of `members` at `ts`; `None`
    /// for a missing value.
    ///
    /// # Errors
    /// As [`Db::resolve_group`] and [`Db::write`]; `Invalid` if the numbers of values and members
    /// differ, and for a time too far in the future.
    ///
    /// ```
    /// use firndb::{Db, Labels, Options, local_env};
    ///
    /// # fn main() -> firndb::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let db = Db::open(local_env(folder.path())?, Options::default())?;
    /// let pump = Labels::from_pairs([("device", "pump-7")])?;
    /// let members = [
    ///     Labels::from_pairs([("__name__", "pressure")])?,
    ///     Labels::from_pairs([("__name__", "flow")])?,
    /// ];
    /// let refs = db.put_row(&pump, &members, 1_000, &[Some(2.5), None])?;
    /// assert_eq!(refs.members[0].group, refs.members[1].group);
    /// # db.close()
    /// # }
    /// ```
    pub fn put_row(
        &self,
        group_labels: &Labels,
        members: &[Labels],
        ts: Timestamp,
        values: &[Option<f64>],
    ) -> Result<GroupRefs> {
        if values.len() != members.len() {
            return Err(Error::invalid(format!(
                "a row of group {group_labels} has {} values for {} members; \
                 use None for a missing value",
                values.len(),
                members.len()
            )));
        }
        let refs = self.resolve_group(group_labels, members, ForeignMember::Refuse)?;
        let mut batch = RowBatch::default();
        refs.push_row(&mut batch, ts, values);
        all_written(self, &self.write(&mut batch)?)?;
        Ok(refs)
    }

    /// The groups with a member that matches one of `selectors` (all groups without selectors), by
    /// rising id; lone series only `with_lone`. Reads no samples: members without remaining samples
    /// are listed until they leave the index. Returns the reservation of the list's memory too.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` or `TooLarge` without memory for the list.
    pub fn groups(
        &self,
        selectors: &[Vec<Matcher>],
        with_lone: bool,
        context: &QueryContext,
    ) -> Result<(Vec<GroupSummary>, Reservation)> {
        let (mut groups, mut bytes) = (Vec::new(), 0);
        let mut held = context.budget.empty(Pool::Query);
        self.each_group(selectors, with_lone, context, &mut |summary| {
            bytes += summary.bytes();
            held.cover(bytes)?;
            groups.push(summary);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((groups, held))
    }

    /// Calls `each` with the groups of [`Db::groups`] until it breaks. Groups take the memory of
    /// their ids only.
    ///
    /// # Errors
    /// As [`Db::groups`], and those of `each`.
    pub fn each_group(
        &self,
        selectors: &[Vec<Matcher>],
        with_lone: bool,
        context: &QueryContext,
        each: &mut dyn FnMut(GroupSummary) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let snapshot = self.snapshot();
        let all = [Vec::new()];
        let selectors = if selectors.is_empty() { &all[..] } else { selectors };
        let one_key = Grouping::By(Vec::new());
        let matches =
            |matchers: &Vec<Matcher>| snapshot.index().matches(matchers, &one_key, context);
        let found: Vec<Matches> = selectors.iter().map(matches).collect::<Result<_>>()?;
        let mut lists: Vec<_> = found.iter().map(|found| found.groups.iter().peekable()).collect();
        let mut slots: Vec<Slot> = Vec::new();
        loop {
            context.cancel.check()?;
            let heads = lists.iter_mut().filter_map(|list| list.peek().map(|found| found.group));
            let Some(group) = heads.min() else { return Ok(()) };
            slots.clear();
            for found in lists.iter_mut().filter_map(|list| list.next_if(|f| f.group == group)) {
                slots.extend(found.members.iter().map(|member| member.slot));
            }
            let Some(info) = snapshot.index().group(group)? else { continue };
            if info.is_lone && !with_lone {
                continue;
            }
            slots.sort_unstable();
            slots.dedup();
            // Further slots belong to series that the caller must not know of.
            let slot_count = match (context.scope.is_empty(), slots.last()) {
                (false, Some(last)) => last.0.saturating_add(1),
                _ => info.slot_count,
            };
            let summary = GroupSummary {
                group,
                labels: info.labels,
                is_lone: info.is_lone,
                member_count: slots.len() as u64,
                slot_count,
            };
            if each(summary)?.is_break() {
                return Ok(());
            }
        }
    }

    /// A group with all its members, and the reservation of their memory; `None` for an unknown id.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory, `Canceled`, `Timeout`, `Corrupt` for a damaged index
    /// segment.
    pub fn group(
        &self,
        group: GroupId,
        context: &QueryContext,
    ) -> Result<Option<(GroupMembers, Reservation)>> {
        let snapshot = self.snapshot();
        let Some(info) = snapshot.index().group(group)? else { return Ok(None) };
        let mut members = Vec::new();
        let mut held = context.budget.empty(Pool::Query);
        let mut bytes = info.labels.as_encoded().len();
        for slot in (0..info.slot_count).map(Slot) {
            context.cancel.check()?;
            // A removed member leaves an empty slot.
            let Some(whole) = snapshot.index().labels(SeriesRef { group, slot })? else { continue };
            let own = whole.filter(|name| info.labels.get(name).is_none());
            bytes += own.as_encoded().len() + 2 * size_of::<(Slot, Labels)>() + LABELS_BYTES;
            held.cover(bytes as u64)?;
            members.push((slot, own));
        }
        let found = GroupMembers { labels: info.labels, is_lone: info.is_lone, members };
        Ok(Some((found, held)))
    }
}

// The memory of an allocated label set beside its text.
const LABELS_BYTES: usize = 32;

/// The complete label set of each member.
fn whole_labels(group_labels: &Labels, members: &[Labels]) -> Result<Vec<Labels>> {
    let mut seen: HashMap<&Labels, usize> = HashMap::with_capacity(members.len());
    let join = |(idx, member): (usize, &'_ Labels)| {
        if let Some((name, _)) = member.iter().find(|(name, _)| group_labels.get(name).is_some()) {
            return Err(Error::invalid(format!(
                "member {idx} {member} repeats label {name:?} of its group {group_labels}; \
                 remove it from the member"
            )));
        }
        Labels::from_pairs(group_labels.iter().chain(member.iter()))
    };
    for (idx, member) in members.iter().enumerate() {
        if group_labels.is_empty() && member.is_empty() {
            return Err(Error::invalid(format!(
                "member {idx} and its group have no label; add at least one label"
            )));
        }
        if let Some(first) = seen.insert(member, idx) {
            return Err(Error::invalid(format!(
                "members {first} and {idx} of group {group_labels} are equal: {member}; remove one"
            )));
        }
    }
    members.iter().enumerate().map(join).collect()
}

/// Checks that all samples were written.
fn all_written(db: &Db, report: &WriteReport) -> Result<()> {
    if let Some(ts) = report.refused_ts {
        let times = db.accepted_times();
        let why = match times.refusal(ts) {
            Some(refusal) => times.explain(ts, refusal).to_string(),
            // The clock has moved since.
            None => format!("timestamp {ts} was out of bounds; retry"),
        };
        return Err(Error::invalid(why));
    }
    match report.unknown {
        0 => Ok(()),
        // The series left the index between the two steps; a retry defines it again.
        _ => Err(Error::new(ErrorKind::Unavailable, "the series has just left the index; retry")),
    }
}
