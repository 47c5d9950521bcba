//! The write path of groups: by labels and by references (`TimeUnion`, section 3.4).
//!
//! A request is checked completely before it defines anything: its own rules while it is read, then
//! against the database. So a mistake leaves nothing half done. Later refusals depend on time: rows
//! too far in the future, and series over a limit.

use std::collections::HashMap;

use firn_model::{
    Budget, Error, ErrorKind, Labels, Pool, Reservation, Result, RowBatch, SeriesRef, Timestamp,
};
use firndb::ForeignMember;

use crate::ingest::{Ingest, Outcome, RESOLVED_AT_ONCE};
use crate::tally::{Reason, Tally};
use crate::wire::groups::{
    Cell, Columns, Group, GroupEncoding, GroupsAnswer, GroupsRequest, Refusal, Refusals,
};

/// The outcome of a request with groups.
#[derive(Debug)]
pub struct GroupsOutcome {
    /// The response; `None` if all of the request was refused.
    pub answer: Option<GroupsAnswer>,
    /// The tally of its values.
    pub tally: Tally,
    /// The reason if all of it was refused, or a retryable reason.
    pub error: Option<Error>,
    /// The memory of the request, for the answer, which is smaller.
    pub held: Reservation,
}

/// The resolved columns of one group.
struct Resolved {
    /// The reference of each column, or which limit refused its series.
    refs: Vec<Result<SeriesRef, Reason>>,
    /// The error of that limit.
    over_limit: Option<Error>,
}

impl Ingest {
    /// Defines groups or looks them up, and returns their references.
    ///
    /// # Errors
    /// `Invalid` with the position of a mistake, `TooLarge`, `SeriesLimit` over a limit for new
    /// series, `Busy` without memory. Only the last two may leave definitions behind.
    pub fn define_groups(&self, form: GroupEncoding, body: &[u8]) -> Result<GroupsOutcome> {
        let request = self.decode(form, body)?;
        for (idx, group) in request.groups.iter().enumerate() {
            let is_defined = matches!(group.columns, Columns::Slots { .. });
            if is_defined || request.rows_of(group).next().is_some() {
                return Err(Error::invalid(format!(
                    "groups[{idx}]: slots and rows are for groups/write; send labels and members, or series"
                )));
            }
        }
        self.check(&request)?;
        // Read before the references: a change meanwhile makes them stale, never wrong.
        let generation = self.generation();
        let resolve = |(idx, group): (usize, &Group)| {
            let resolved = self.resolve_columns(&group.columns, request.elsewhere)?;
            match resolved.over_limit {
                Some(why) => Err(why.context(format!("groups[{idx}]"))),
                None => Ok(resolved.refs.into_iter().map(Result::ok).collect()),
            }
        };
        let groups = request.groups.iter().enumerate().map(resolve).collect::<Result<_>>()?;
        let answer = GroupsAnswer { generation, groups, ..GroupsAnswer::default() };
        let tally = Tally::default();
        Ok(GroupsOutcome { answer: Some(answer), tally, error: None, held: request.into_held() })
    }

    /// Writes rows of groups that are named by labels or by references.
    ///
    /// # Errors
    /// If nothing of the request was counted: `Invalid` with the position of a mistake, `TooLarge`,
    /// `Busy` without memory.
    pub fn write_groups(&self, form: GroupEncoding, body: &[u8]) -> Result<GroupsOutcome> {
        let request = self.decode(form, body)?;
        let mut tally = Tally::of(request.value_count());
        let mut error = None;
        let written = self
            .check(&request)
            .and_then(|()| self.write_checked(&request, &mut tally, &mut error));
        let answer = match written {
            Ok(answer) => Some(answer),
            Err(why) => {
                // Values that were refused keep their reasons.
                tally.reject_rest(Reason::of_request(&why));
                error = Some(why);
                None
            }
        };
        Ok(GroupsOutcome { answer, tally, error, held: request.into_held() })
    }

    fn write_checked(
        &self,
        request: &GroupsRequest,
        tally: &mut Tally,
        error: &mut Option<Error>,
    ) -> Result<GroupsAnswer> {
        let mut answer = GroupsAnswer { generation: self.generation(), ..GroupsAnswer::default() };
        let mut batch = RowBatch::default();
        for (group_idx, group) in request.groups.iter().enumerate() {
            // Errors other than limits would affect every group.
            let resolved = self.resolve_columns(&group.columns, request.elsewhere)?;
            self.push_rows(request, group_idx, &resolved, &mut batch, &mut answer.refused, tally);
            answer.groups.push(resolved.refs.into_iter().map(Result::ok).collect());
            if let Some(why) = resolved.over_limit
                && error.as_ref().is_none_or(Outcome::is_lasting_limit)
            {
                // Other reasons are retryable, so they are reported first.
                *error = Some(why);
            }
        }
        if !batch.is_empty() {
            let report = self.db.write(&mut batch)?;
            answer.written = report.written;
            tally.add_report(&report);
            // Checked before; a reference that the database refuses here was removed since.
            let refused =
                report.unknown + report.too_far_ahead + report.too_old + report.in_seconds;
            if refused > 0 {
                answer.refused.value_count += refused;
                *error = Some(Error::unavailable(format!(
                    "{refused} values refer to series that were removed during the write; \
                     define the groups again"
                )));
            }
        }
        Ok(answer)
    }

    /// Adds the rows of one group to the batch, or reports the reason against it.
    fn push_rows(
        &self,
        request: &GroupsRequest,
        group_idx: usize,
        resolved: &Resolved,
        batch: &mut RowBatch,
        refused: &mut Refusals,
        tally: &mut Tally,
    ) {
        let Some(group) = request.groups.get(group_idx) else { return };
        let times = self.db.accepted_times();
        let mut refused_counts = vec![0; resolved.refs.len()];
        for (row_idx, (ts, cells)) in request.rows_of(group).enumerate() {
            let refusal =
                |value_count, reason, why| Refusal { group_idx, row_idx, value_count, reason, why };
            if let Some(time) = times.refusal(ts) {
                let (value_count, reason) = (cells.len() as u64, Reason::of_time(time));
                tally.reject(reason, value_count);
                refused.push(refusal(value_count, reason, times.explain(ts, time).to_string()));
                continue;
            }
            if let Some((value_count, reason)) =
                push_row(batch, resolved, ts, cells, &mut refused_counts)
            {
                let why = resolved.over_limit.as_ref().map(Error::to_string);
                refused.push(refusal(value_count, reason, why.unwrap_or_default()));
            }
        }
        for (series, count) in resolved.refs.iter().zip(refused_counts) {
            if let Err(reason) = series {
                tally.reject_series(*reason, count);
            }
        }
    }

    /// The generation of references. Ids are dense: after a restart on another folder or an older
    /// copy, an id may mean another series. So references are valid for one life of the server, and
    /// only until a series leaves the index.
    fn generation(&self) -> String {
        format!("{:016x}-{}", self.life, self.db.generation())
    }

    fn decode(&self, form: GroupEncoding, body: &[u8]) -> Result<GroupsRequest> {
        let held = self.db.budget().of_request(Pool::Requests, body.len() as u64);
        GroupsRequest::decode(form, body, &self.limits.labels, held)
    }

    /// Checks the request against the database before anything changes.
    fn check(&self, request: &GroupsRequest) -> Result<()> {
        let generation = self.generation();
        for (idx, group) in request.groups.iter().enumerate() {
            let checked = match &group.columns {
                Columns::Series(_) => Ok(()),
                Columns::Members { labels, members } => {
                    self.db.check_group(labels, members, request.elsewhere)
                }
                Columns::Slots { .. } if request.generation.as_ref() != Some(&generation) => {
                    let given = request.generation.as_deref().unwrap_or("none");
                    let given = given.get(..given.floor_char_boundary(64)).unwrap_or_default();
                    Err(Error::not_found(format!(
                        "the references are of generation {given:?}, expected {generation:?}; \
                         define the groups again"
                    )))
                }
                Columns::Slots { group, slots } => {
                    let refs = slots.iter().map(|&slot| SeriesRef { group: *group, slot });
                    self.db.check_refs(&refs.collect::<Vec<_>>())
                }
            };
            checked.map_err(|e| e.context(format!("groups[{idx}]")))?;
        }
        match request.elsewhere {
            ForeignMember::Refuse => check_among_themselves(&request.groups, self.db.budget()),
            ForeignMember::Use => Ok(()),
        }
    }

    /// The references of columns. If a limit refuses new series, known ones are still found.
    fn resolve_columns(&self, columns: &Columns, elsewhere: ForeignMember) -> Result<Resolved> {
        match columns {
            Columns::Slots { group, slots } => {
                let found = |&slot| Ok(SeriesRef { group: *group, slot });
                Ok(Resolved { refs: slots.iter().map(found).collect(), over_limit: None })
            }
            Columns::Members { labels, members } => {
                let why = match self.db.resolve_group(labels, members, elsewhere) {
                    Ok(refs) => {
                        let refs = refs.members.into_iter().map(Ok).collect();
                        return Ok(Resolved { refs, over_limit: None });
                    }
                    Err(why) if is_over_limit(&why) => why,
                    Err(why) => return Err(why),
                };
                let found = self.db.find_members(labels, members)?;
                let refs = found.into_iter().map(|series| series.ok_or(Reason::of(&why))).collect();
                Ok(Resolved { refs, over_limit: Some(why) })
            }
            Columns::Series(series) => {
                let mut resolved = Resolved { refs: Vec::new(), over_limit: None };
                let pieces = series.chunks(RESOLVED_AT_ONCE);
                for series in pieces.flat_map(|series| self.db.resolve(series)) {
                    resolved.refs.push(match series {
                        Ok(series) => Ok(series),
                        Err(why) if is_over_limit(&why) => {
                            let reason = Reason::of(&why);
                            resolved.over_limit = Some(why);
                            Err(reason)
                        }
                        Err(why) => return Err(why),
                    });
                }
                Ok(resolved)
            }
        }
    }
}

/// Adds a row to the batch. Returns the number of values whose series a limit refused, and the
/// first such limit.
fn push_row(
    batch: &mut RowBatch,
    resolved: &Resolved,
    ts: Timestamp,
    cells: &[Cell],
    refused_counts: &mut [u64],
) -> Option<(u64, Reason)> {
    let mut refused: Option<(u64, Reason)> = None;
    for cell in cells {
        match resolved.refs.get(cell.column as usize) {
            Some(Ok(series)) => batch.push(*series, ts, cell.value),
            Some(Err(reason)) => {
                refused.get_or_insert((0, *reason)).0 += 1;
                if let Some(count) = refused_counts.get_mut(cell.column as usize) {
                    *count += 1;
                }
            }
            // A request that is read has a column for every value.
            None => {}
        }
    }
    refused
}

fn is_over_limit(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::SeriesLimit { .. })
}

// The memory of a label set in a list or a map, beside its text.
const NAMED_BYTES: usize = 64;

/// Refuses a label set that two groups of one request name: the first would define it, and the
/// second collide with it.
fn check_among_themselves(groups: &[Group], budget: &Budget) -> Result<()> {
    if groups.len() < 2 {
        return Ok(());
    }
    let mut held = budget.of_request(Pool::Requests, 0);
    let group_labels = |group: &Group| match &group.columns {
        Columns::Members { labels, .. } => Some(labels.clone()),
        Columns::Series(_) | Columns::Slots { .. } => None,
    };
    let mut named: HashMap<Labels, usize> = HashMap::new();
    for (idx, group) in groups.iter().enumerate() {
        let whole: Vec<Labels> = match &group.columns {
            Columns::Members { labels, members } => {
                // Each set repeats the labels of its group. It is in the list and in the map.
                let group_bytes = labels.as_encoded().len() + NAMED_BYTES;
                let bytes = members.iter().map(|member| member.as_encoded().len() + group_bytes);
                held.grow(2 * bytes.sum::<usize>() as u64)?;
                let whole =
                    |member: &Labels| Labels::from_pairs(labels.iter().chain(member.iter()));
                members.iter().map(whole).collect::<Result<_>>()?
            }
            Columns::Series(series) => series.clone(),
            Columns::Slots { .. } => continue,
        };
        for labels in whole {
            let first = *named.entry(labels.clone()).or_insert(idx);
            let is_same = groups.get(first).is_some_and(|g| group_labels(g) == group_labels(group));
            if !is_same {
                return Err(Error::invalid(format!(
                    "groups[{idx}] collides with groups[{first}]: both have {labels}; name it once"
                )));
            }
        }
    }
    Ok(())
}
