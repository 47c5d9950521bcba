//! The group API on the wire (docs/groups.md): requests and responses in JSON and protobuf. Both
//! forms decode to one [`GroupsRequest`].
//!
//! A request is checked completely while it is read: label rules, counts, types. Only checks
//! against the database remain.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod json;
mod proto;

pub(in crate::wire) use json::{once, unknown, value};

use std::fmt;

use firn_model::{
    Error, GroupId, LabelLimits, Labels, METRIC_NAME, Reservation, Result, SeriesRef, Slot,
    Timestamp, excerpt,
};
use firndb::ForeignMember;

use crate::tally::Reason;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEncoding {
    /// JSON, UTF-8.
    Json,
    /// `firn.groups.v1` (crates/firn-server/proto/groups.proto).
    Protobuf,
}

/// A decoded request.
#[derive(Debug)]
pub struct GroupsRequest {
    /// The generation of the references; required if the request contains references.
    pub generation: Option<String>,
    /// Handling of members that are series of other groups.
    pub elsewhere: ForeignMember,
    /// In the order of the request.
    pub groups: Vec<Group>,
    rows: Vec<Row>,
    cells: Vec<Cell>,
    held: Reservation,
    spent_bytes: u64,
}

/// One group of a request with its rows.
#[derive(Debug)]
pub struct Group {
    /// The series that the values of its rows belong to.
    pub columns: Columns,
    /// Its rows: which of [`GroupsRequest::rows_of`].
    rows: std::ops::Range<usize>,
}

/// The series of a row's values, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Columns {
    /// Members of a group that is named by labels; they have these beside the group's.
    Members {
        /// The group's.
        labels: Labels,
        /// Each member's own.
        members: Vec<Labels>,
    },
    /// Series by their whole label sets: groups form as they do for remote write.
    Series(Vec<Labels>),
    /// References.
    Slots {
        /// The group.
        group: GroupId,
        /// Its members.
        slots: Vec<Slot>,
    },
}

/// A timestamp and some values.
#[derive(Clone, Copy, Debug)]
struct Row {
    ts: Timestamp,
    /// End of its cells; they start at the end of the previous row's.
    cells_end: usize,
    /// Columns that it names, absent values included.
    width: usize,
}

/// A value and its column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// An index of the group's columns.
    pub column: u32,
    /// The value.
    pub value: f64,
}

/// The response to a request that succeeded completely or in part.
#[derive(Debug, Default)]
pub struct GroupsAnswer {
    /// Under which the references hold.
    pub generation: String,
    /// The references of each group's columns, in order; `None` if some column has none.
    pub groups: Vec<Option<Vec<SeriesRef>>>,
    /// Values that are durable and visible.
    pub written: u64,
    /// The values that were not written.
    pub refused: Refusals,
}

/// Rows that were not written, or not whole: all are counted, the first are listed.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Values of all of them.
    pub value_count: u64,
    /// At most [`Refusals::LISTED_MAX`].
    pub listed: Vec<Refusal>,
}

/// The rejected part of one row.
#[derive(Debug)]
pub struct Refusal {
    /// Which group of the request.
    pub group_idx: usize,
    /// Which of its rows.
    pub row_idx: usize,
    /// How many of its values.
    pub value_count: u64,
    /// Why, as a word.
    pub reason: Reason,
    /// Why, as a sentence.
    pub why: String,
}

impl Refusals {
    /// Rejected rows listed by position; further ones are only counted.
    pub const LISTED_MAX: usize = 1_000;

    /// Adds one.
    pub fn push(&mut self, refusal: Refusal) {
        self.value_count = self.value_count.saturating_add(refusal.value_count);
        if self.listed.len() < Refusals::LISTED_MAX {
            self.listed.push(refusal);
        }
    }
}

/// One sentence: how many values, and the first row.
impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not written: {} values", self.value_count)?;
        match self.listed.first() {
            Some(r) => write!(f, "; groups[{}].rows[{}]: {}", r.group_idx, r.row_idx, r.why),
            None => Ok(()),
        }
    }
}

impl GroupsRequest {
    /// Decodes a body. Its memory is reserved in `held` as it grows.
    ///
    /// # Errors
    /// `Invalid` with byte and path of the first mistake, `TooLarge` for labels over `limits`,
    /// `Busy` without memory.
    pub fn decode(
        form: GroupEncoding,
        body: &[u8],
        limits: &LabelLimits,
        held: Reservation,
    ) -> Result<GroupsRequest> {
        let request = GroupsRequest {
            generation: None,
            elsewhere: ForeignMember::Refuse,
            groups: Vec::new(),
            rows: Vec::new(),
            cells: Vec::new(),
            held,
            spent_bytes: 0,
        };
        match form {
            GroupEncoding::Json => json::decode(body, limits, request),
            GroupEncoding::Protobuf => proto::decode(body, limits, request),
        }
    }

    /// The rows of a group: each timestamp with the values that are there, columns rising or in the
    /// order in which the request names them.
    pub fn rows_of(&self, group: &Group) -> impl Iterator<Item = (Timestamp, &[Cell])> {
        let rows = self.rows.get(group.rows.clone()).unwrap_or_default();
        let before = group.rows.start.checked_sub(1).and_then(|idx| self.rows.get(idx));
        let mut start = before.map_or(0, |row| row.cells_end);
        rows.iter().map(move |row| {
            let cells = self.cells.get(start..row.cells_end).unwrap_or_default();
            start = row.cells_end;
            (row.ts, cells)
        })
    }

    /// How many values there are.
    pub fn value_count(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Its memory reservation.
    pub fn into_held(self) -> Reservation {
        self.held
    }

    /// Reserves memory before it is used.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.spent_bytes = self.spent_bytes.saturating_add(bytes as u64);
        let missing = self.spent_bytes.saturating_sub(self.held.bytes());
        if missing > 0 {
            // Reserves in steps, to avoid one budget request per value.
            self.held.grow(missing.max(STEP_BYTES))?;
        }
        Ok(())
    }

    fn spend_labels(&mut self, labels: &Labels) -> Result<()> {
        self.spend(labels.as_encoded().len().saturating_mul(2).saturating_add(LABELS_BYTES))
    }

    fn push_cell(&mut self, column: u32, value: f64) -> Result<()> {
        self.spend(CELL_BYTES)?;
        self.cells.push(Cell { column, value });
        Ok(())
    }

    /// The cells that were pushed since the last row become the next one.
    fn push_row(&mut self, ts: Timestamp, width: usize) -> Result<()> {
        self.spend(ROW_BYTES)?;
        self.rows.push(Row { ts, cells_end: self.cells.len(), width });
        Ok(())
    }

    /// The rows that were pushed since the last group become those of the next one.
    fn push_group(&mut self, parts: GroupParts) -> Result<()> {
        let start = self.groups.last().map_or(0, |group| group.rows.end);
        let rows = start..self.rows.len();
        let rows_are_whole = parts.rows_are_whole;
        let columns = parts.into_columns()?;
        let column_count = columns.count();
        for (row_idx, row) in self.rows.get(rows.clone()).unwrap_or_default().iter().enumerate() {
            // Rows in protobuf may name their columns; those are checked when they are read.
            if row.width > column_count || (rows_are_whole && row.width != column_count) {
                return Err(Error::invalid(format!(
                    "rows[{row_idx}] has {} values for {column_count} columns; \
                     every column needs one, null if it has none",
                    row.width
                )));
            }
        }
        self.spend(GROUP_BYTES)?;
        self.groups.push(Group { columns, rows });
        Ok(())
    }
}

// Upper bounds of their memory: vectors grow by doubling, and cells become cells of a batch later.
const LABELS_BYTES: usize = 128;
const CELL_BYTES: usize = 64;
const ROW_BYTES: usize = 48;
const GROUP_BYTES: usize = 256;
// With its place in the map that finds repeated slots.
const SLOT_BYTES: usize = 64;
const STEP_BYTES: u64 = 64 << 10;

impl Columns {
    /// How many.
    pub fn count(&self) -> usize {
        match self {
            Columns::Members { members, .. } => members.len(),
            Columns::Series(series) => series.len(),
            Columns::Slots { slots, .. } => slots.len(),
        }
    }
}

/// The fields of one group, in any order.
#[derive(Debug, Default)]
struct GroupParts {
    labels: Option<Labels>,
    members: Option<Vec<Labels>>,
    series: Option<Vec<Labels>>,
    group: Option<GroupId>,
    slots: Option<Vec<Slot>>,
    /// Each row has a value or null for each column.
    rows_are_whole: bool,
    limits: Option<LabelLimits>,
}

impl GroupParts {
    /// The one form that a group is written in, by the rules that need no database.
    fn into_columns(self) -> Result<Columns> {
        let by_labels = self.labels.is_some() || self.members.is_some();
        let by_refs = self.group.is_some() || self.slots.is_some();
        let form_count = [by_labels, self.series.is_some(), by_refs].into_iter().filter(|&is| is);
        if form_count.count() != 1 {
            return Err(Error::invalid(
                "a group is written in one of three forms: labels and members, series, or group and slots",
            ));
        }
        if let Some(series) = self.series {
            check_count(series.len(), "series")?;
            series.iter().enumerate().try_for_each(|(idx, labels)| {
                has_name(labels).map_err(|e| e.context(format!("series[{idx}]")))
            })?;
            check_repeats(&series, "series", Labels::to_string)?;
            return Ok(Columns::Series(series));
        }
        if by_refs {
            let missing = |what: &str| Error::invalid(format!("{what} is missing"));
            let group = self.group.ok_or_else(|| missing("group"))?;
            let slots = self.slots.ok_or_else(|| missing("slots"))?;
            check_count(slots.len(), "slots")?;
            check_repeats(&slots, "slots", |slot: &Slot| slot.0.to_string())?;
            return Ok(Columns::Slots { group, slots });
        }
        let labels = self.labels.unwrap_or_else(Labels::empty);
        let members = self.members.ok_or_else(|| Error::invalid("members is missing"))?;
        check_count(members.len(), "members")?;
        for (idx, member) in members.iter().enumerate() {
            check_member(&labels, member, self.limits.as_ref())
                .map_err(|e| e.context(format!("members[{idx}]")))?;
        }
        check_repeats(&members, "members", Labels::to_string)?;
        Ok(Columns::Members { labels, members })
    }
}

/// The number of the value at `idx` in its row.
///
/// # Errors
/// `TooLarge` beyond 32 bits.
fn column_at(idx: usize) -> Result<u32> {
    u32::try_from(idx).map_err(|_| Error::too_large("a row has more than 4,294,967,296 values"))
}

fn check_member(labels: &Labels, member: &Labels, limits: Option<&LabelLimits>) -> Result<()> {
    if let Some((name, _)) = member.iter().find(|(name, _)| labels.get(name).is_some()) {
        let (member, labels) = (member.to_string(), labels.to_string());
        return Err(Error::invalid(format!(
            "{} repeats label {:?} of its group {}; leave it out",
            excerpt(&member),
            excerpt(name),
            excerpt(&labels)
        )));
    }
    if labels.get(METRIC_NAME).is_none() {
        has_name(member)?;
    }
    let label_count = labels.count().saturating_add(member.count());
    let checked = limits.map_or(Ok(()), |limits| limits.check_count(label_count));
    checked
        .map_err(|error| error.context(format!("{} with its group", excerpt(&member.to_string()))))
}

fn check_count(count: usize, what: &str) -> Result<()> {
    if count == 0 { Err(Error::invalid(format!("{what} is empty"))) } else { Ok(()) }
}

/// Refuses repeated columns, because a value would belong to two of them.
fn check_repeats<T: std::hash::Hash + Eq>(
    columns: &[T],
    what: &str,
    text: impl Fn(&T) -> String,
) -> Result<()> {
    let mut seen = std::collections::HashMap::with_capacity(columns.len());
    for (idx, column) in columns.iter().enumerate() {
        if let Some(first) = seen.insert(column, idx) {
            return Err(Error::invalid(format!(
                "{what}[{first}] and {what}[{idx}] are the same: {}",
                excerpt(&text(column))
            )));
        }
    }
    Ok(())
}

fn has_name(labels: &Labels) -> Result<()> {
    if labels.metric_name().is_empty() {
        let labels = labels.to_string();
        return Err(Error::invalid(format!("series {} has no __name__", excerpt(&labels))));
    }
    Ok(())
}

impl GroupsAnswer {
    /// The body of the response; `error` is its message if values were rejected.
    pub fn encode(&self, form: GroupEncoding, error: Option<&str>) -> Vec<u8> {
        match form {
            GroupEncoding::Json => json::encode(self, error),
            GroupEncoding::Protobuf => proto::encode(self),
        }
    }

    /// Estimated bytes of the body, never much too small.
    #[expect(clippy::arithmetic_side_effects, reason = "a multiple of the response in memory")]
    pub fn encoded_bytes(&self) -> usize {
        let slots = self.groups.iter().flatten().map(Vec::len).sum::<usize>();
        let whys = self.refused.listed.iter().map(|refusal| 2 * refusal.why.len() + 128);
        512 + 64 * self.groups.len() + 48 * slots + whys.sum::<usize>()
    }
}

/// References as parts: neighbours of one group together.
fn parts(refs: &[SeriesRef]) -> impl Iterator<Item = (GroupId, &[SeriesRef])> {
    refs.chunk_by(|a, b| a.group == b.group).filter_map(|part| Some((part.first()?.group, part)))
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};

    use super::*;

    fn decode(form: GroupEncoding, body: &[u8]) -> Result<GroupsRequest> {
        let limits = LabelLimits { label_count_max: 3, name_bytes_max: 20, value_bytes_max: 20 };
        GroupsRequest::decode(form, body, &limits, Budget::unlimited().empty(Pool::Requests))
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::from_pairs(pairs.iter().copied()).unwrap()
    }

    /// The request that both forms must decode to.
    fn check_three_groups(request: &GroupsRequest) {
        assert_eq!(request.generation.as_deref(), Some("g1"));
        assert_eq!(request.elsewhere, ForeignMember::Use);
        let columns: Vec<&Columns> = request.groups.iter().map(|group| &group.columns).collect();
        let named = |name| labels(&[("__name__", name)]);
        assert_eq!(
            columns,
            [
                &Columns::Members {
                    labels: labels(&[("device", "pump-7")]),
                    members: vec![named("flow"), named("heat")],
                },
                &Columns::Series(vec![labels(&[("__name__", "up"), ("job", "a")])]),
                &Columns::Slots { group: GroupId(300), slots: vec![Slot(0), Slot(200)] },
            ]
        );
        type Bits = Vec<(u32, u64)>;
        let rows: Vec<Vec<(Timestamp, Bits)>> = request
            .groups
            .iter()
            .map(|group| {
                let cells = |cells: &[Cell]| {
                    cells.iter().map(|cell| (cell.column, cell.value.to_bits())).collect()
                };
                request.rows_of(group).map(|(ts, row)| (ts, cells(row))).collect()
            })
            .collect();
        let stale = firn_model::STALE_NAN_BITS;
        assert_eq!(
            rows,
            [
                vec![
                    (1_000, vec![(0, 1.5f64.to_bits()), (1, stale)]),
                    (-2_000, vec![(1, f64::NEG_INFINITY.to_bits())]),
                ],
                vec![],
                vec![(i64::MAX, vec![(0, (-0.0f64).to_bits())])],
            ]
        );
    }

    #[test]
    fn both_forms_decode_to_the_same_request() {
        let json = r#"{
            "generation": "g1", "known_elsewhere": "use",
            "groups": [
                {"rows": [{"values": [1.5, "stale"], "timestamp": 1000},
                          {"timestamp": -2000, "values": [null, "-Inf"]}],
                 "members": [{"__name__": "flow"}, {"__name__": "heat", "none": ""}],
                 "labels": {"device": "pump-7"}},
                {"series": [{"job": "a", "__name__": "up"}]},
                {"group": 300, "slots": [0, 200],
                 "rows": [{"timestamp": 9223372036854775807, "values": [-0.0, null]}]}
            ]}"#;
        check_three_groups(&decode(GroupEncoding::Json, json.as_bytes()).unwrap());
        check_three_groups(
            &decode(GroupEncoding::Protobuf, &proto::tests::three_groups()).unwrap(),
        );
    }

    #[test]
    fn breaches_are_named_with_their_place() {
        let f = |group: &str, wanted: &str| {
            let body = format!(r#"{{"groups":[{{"series":[{{"__name__":"m"}}]}},{group}]}}"#);
            let error = decode(GroupEncoding::Json, body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("groups[1]") && error.contains(wanted), "{wanted:?}: {error}");
        };
        let m = r#"{"__name__":"m"}"#;
        f("{}", "one of three forms");
        f(&format!(r#"{{"labels":{{"a":"1"}},"series":[{m}]}}"#), "one of three forms");
        f(r#"{"labels":{"a":"1"}}"#, "members is missing");
        f(r#"{"slots":[1]}"#, "group is missing");
        f(r#"{"group":1}"#, "slots is missing");
        f(r#"{"group":1,"slots":[]}"#, "slots is empty");
        f(r#"{"group":1,"slots":[3,4,3]}"#, "slots[0] and slots[2] are the same: 3");
        f(r#"{"group":-1,"slots":[3]}"#, ".group: -1 is not");
        f(r#"{"group":1,"slots":[4294967296]}"#, ".slots[0]: 4294967296 is not");
        f(&format!(r#"{{"series":[{m},{m}]}}"#), "series[0] and series[1] are the same: m");
        f(r#"{"series":[{"a":"1"}]}"#, "series[0]: series {a=\"1\"} has no __name__");
        f(r#"{"series":["m"]}"#, ".series[0]: expected an object, got a string");
        f(r#"{"series":[{"__name__":1}]}"#, ".series[0].__name__: expected a string, got a number");
        f(r#"{"series":[{"__name__":"m","a":"1","a":"2"}]}"#, "label \"a\" is repeated");
        f(
            &format!(r#"{{"labels":{{"a":"1"}},"members":[{m},{{"a":"2"}}]}}"#),
            "members[1]: {a=\"2\"} repeats",
        );
        f(
            r#"{"labels":{"a":"1"},"members":[{"b":"2"}]}"#,
            "members[0]: series {b=\"2\"} has no __name__",
        );
        let four = r#"{"labels":{"a":"1","b":"2"},"members":[{"__name__":"m","c":"3"}]}"#;
        f(four, "members[0]: m{c=\"3\"} with its group: 4 labels exceed the limit of 3");
        f(
            r#"{"series":[{"__name__":"m","a":"1","b":"2","c":"3"}]}"#,
            "4 labels exceed the limit of 3",
        );
        let long = "x".repeat(21);
        f(
            &format!(r#"{{"series":[{{"__name__":"{long}"}}]}}"#),
            "has 21 bytes, over the limit of 20",
        );
        f(&format!(r#"{{"series":[{{"{long}":"1"}}]}}"#), "has 21 bytes, over the limit of 20");
        let rows = |rows: &str| format!(r#"{{"series":[{m}],"rows":[{rows}]}}"#);
        f(&rows(r#"{"timestamp":1,"values":[1,2]}"#), "rows[0] has 2 values for 1 columns");
        f(&rows(r#"{"timestamp":1,"values":[]}"#), "rows[0] has 0 values for 1 columns");
        f(&rows(r#"{"values":[1]}"#), ".rows[0]: timestamp is missing");
        f(&rows(r#"{"timestamp":1}"#), ".rows[0]: values is missing");
        f(&rows(r#"{"timestamp":1.5,"values":[1]}"#), ".rows[0].timestamp: 1.5 is not");
        f(&rows(r#"{"timestamp":"1","values":[1]}"#), ".rows[0].timestamp: expected a number");
        f(&rows(r#"{"timestamp":1,"values":[true]}"#), ".rows[0].values[0]: expected a number");
        f(
            &rows(r#"{"timestamp":1,"values":["much"]}"#),
            r#".rows[0].values[0]: expected a number, "NaN", "+Inf", "-Inf" or "stale", got "much""#,
        );
        f(
            &rows(r#"{"timestamp":1,"values":["Infinity"]}"#),
            r#".rows[0].values[0]: expected a number, "NaN", "+Inf", "-Inf" or "stale", got "Infi"#,
        );
        f(&rows(r#"{"timestamp":1,"values":[1e999]}"#), ".rows[0].values[0]: 1e999 is over");
        f(&rows(r#"{"timestamp":1,"value":[1]}"#), ".rows[0].value: no such field");
        f(r#"{"row":[]}"#, ".row: no such field");
        let f = |body: &str, wanted: &str| {
            let error = decode(GroupEncoding::Json, body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{wanted:?}: {error}");
        };
        f("{}", "groups is missing");
        f(r#"{"groups":[],"groups":[]}"#, "groups is repeated");
        f(r#"{"generation":1,"groups":[]}"#, "generation: expected a string");
        f(r#"{"known_elsewhere":"keep","groups":[]}"#, "known_elsewhere: \"keep\" is neither");
    }

    #[test]
    fn memory_is_reserved_before_it_is_taken() {
        let budget = Budget::new(1 << 20);
        let limits = LabelLimits::default();
        let body = format!(r#"{{"groups":[{{"group":1,"slots":[{}0]}}]}}"#, "1,".repeat(100_000));
        let held = budget.empty(Pool::Requests);
        let error =
            GroupsRequest::decode(GroupEncoding::Json, body.as_bytes(), &limits, held).unwrap_err();
        assert!(error.to_string().contains("memory budget"), "{error}");
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[test]
    fn an_answer_reads_back() {
        let series = |group, slot| SeriesRef { group: GroupId(group), slot: Slot(slot) };
        let mut answer = GroupsAnswer {
            generation: "5f-0".to_owned(),
            groups: vec![Some(vec![series(3, 7), series(3, 8), series(4, 0)]), None],
            written: 5,
            refused: Refusals::default(),
        };
        answer.refused.push(Refusal {
            group_idx: 1,
            row_idx: 2,
            value_count: 3,
            reason: Reason::TooFarAhead,
            why: "too \"far\"".to_owned(),
        });
        assert_eq!(
            answer.refused.to_string(),
            "not written: 3 values; groups[1].rows[2]: too \"far\""
        );
        let json: serde_json::Value =
            serde_json::from_slice(&answer.encode(GroupEncoding::Json, Some("no"))).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "status": "error", "errorType": "bad_data", "error": "no",
                "data": {
                    "generation": "5f-0",
                    "groups": [
                        {"parts": [{"group": 3, "slots": [7, 8]}, {"group": 4, "slots": [0]}]},
                        {"parts": []},
                    ],
                    "written": 5,
                    "refused_values": 3,
                    "refused": [{"group_index": 1, "row_index": 2, "values": 3, "reason": "too_far_ahead",
                                 "error": "too \"far\""}],
                },
            })
        );
        assert!(answer.encode(GroupEncoding::Json, Some("no")).len() <= answer.encoded_bytes());
        assert!(answer.encode(GroupEncoding::Protobuf, None).len() <= answer.encoded_bytes());
    }
}
