//! The protobuf form: `crates/firn-server/proto/groups.proto`.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, GroupId, LabelLimits, Labels, LabelsBuilder, Result, Slot, Timestamp};
use firndb::ForeignMember;

use crate::wire::groups::{GroupParts, GroupsAnswer, GroupsRequest, SLOT_BYTES, column_at, parts};
use firn_model::protobuf::{
    Reader, WireType, close_message, malformed, push_bytes, push_varint, wrong_type,
};

/// Reads a body into an empty `request`.
pub(super) fn decode(
    body: &[u8],
    limits: &LabelLimits,
    mut request: GroupsRequest,
) -> Result<GroupsRequest> {
    let mut decoder =
        ProtoGroupsDecoder { limits, builder: LabelsBuilder::default(), columns: Vec::new() };
    let mut reader = Reader::new(body);
    while !reader.is_done() {
        let at = reader.at();
        match reader.key()? {
            (1, WireType::Bytes) => {
                request.generation = Some(text(reader.bytes()?, at)?.to_owned());
            }
            (2, WireType::Varint) => {
                request.elsewhere = match reader.varint()? {
                    0 => ForeignMember::Refuse,
                    _ => ForeignMember::Use,
                };
            }
            (3, WireType::Bytes) => {
                let group_idx = request.groups.len();
                let decoded = decoder.group(reader.message()?, &mut request);
                decoded.map_err(|e| e.context(format!("groups[{group_idx}]")))?;
            }
            (field @ 1..=3, wire) => return Err(wrong_type(at, "GroupsRequest", field, wire)),
            (field, wire) => reader.skip(field, wire)?,
        }
    }
    Ok(request)
}

struct ProtoGroupsDecoder<'l> {
    limits: &'l LabelLimits,
    builder: LabelsBuilder,
    /// The columns of one row.
    columns: Vec<u32>,
}

impl ProtoGroupsDecoder<'_> {
    fn group(&mut self, mut reader: Reader<'_>, request: &mut GroupsRequest) -> Result<()> {
        let mut parts = GroupParts { limits: Some(*self.limits), ..GroupParts::default() };
        let mut builder = LabelsBuilder::default();
        let (mut has_labels, mut group_id) = (false, None);
        while !reader.is_done() {
            let at = reader.at();
            match reader.key()? {
                (1, WireType::Bytes) => {
                    label(reader.message()?, &mut builder, self.limits)?;
                    has_labels = true;
                }
                (2, WireType::Bytes) => {
                    let labels = self.labels(reader.message()?, request)?;
                    parts.members.get_or_insert_default().push(labels);
                }
                (3, WireType::Bytes) => {
                    let labels = self.labels(reader.message()?, request)?;
                    parts.series.get_or_insert_default().push(labels);
                }
                (4, WireType::Varint) => group_id = Some(GroupId(reader.varint()?)),
                (5, wire) => {
                    let slots = parts.slots.get_or_insert_default();
                    varints(&mut reader, wire, at, "Group", 5, |slot| {
                        request.spend(SLOT_BYTES)?;
                        slots.push(Slot(small(slot, at)?));
                        Ok(())
                    })?;
                }
                (6, WireType::Bytes) => self.row(reader.message()?, request)?,
                (field @ 1..=6, wire) => return Err(wrong_type(at, "Group", field, wire)),
                (field, wire) => reader.skip(field, wire)?,
            }
        }
        if has_labels {
            let labels = builder.build(self.limits)?;
            request.spend_labels(&labels)?;
            parts.labels = Some(labels);
        }
        // Protobuf omits a 0, so slots alone mean the group with id 0.
        parts.group = group_id.or(parts.slots.is_some().then_some(GroupId(0)));
        request.push_group(parts)
    }

    fn labels(&mut self, mut reader: Reader<'_>, request: &mut GroupsRequest) -> Result<Labels> {
        self.builder.clear();
        while !reader.is_done() {
            let at = reader.at();
            match reader.key()? {
                (1, WireType::Bytes) => {
                    label(reader.message()?, &mut self.builder, self.limits)?;
                }
                (1, wire) => return Err(wrong_type(at, "LabelSet", 1, wire)),
                (field, wire) => reader.skip(field, wire)?,
            }
        }
        let labels = self.builder.build(self.limits)?;
        request.spend_labels(&labels)?;
        Ok(labels)
    }

    fn row(&mut self, mut reader: Reader<'_>, request: &mut GroupsRequest) -> Result<()> {
        let start = reader.at();
        let first_cell = request.cells.len();
        let mut ts: Timestamp = 0;
        self.columns.clear();
        while !reader.is_done() {
            let at = reader.at();
            match reader.key()? {
                (1, WireType::Varint) => ts = reader.varint()? as Timestamp,
                (2, WireType::Fixed64) => {
                    let column = column_at(request.cells.len().saturating_sub(first_cell))?;
                    request.push_cell(column, f64::from_bits(reader.fixed64()?))?;
                }
                (2, WireType::Bytes) => {
                    let mut packed = reader.message()?;
                    while !packed.is_done() {
                        let column = column_at(request.cells.len().saturating_sub(first_cell))?;
                        request.push_cell(column, f64::from_bits(packed.fixed64()?))?;
                    }
                }
                (3, wire) => varints(&mut reader, wire, at, "Row", 3, |column| {
                    request.spend(SLOT_BYTES)?;
                    self.columns.push(small(column, at)?);
                    Ok(())
                })?,
                (field @ 1..=3, wire) => return Err(wrong_type(at, "Row", field, wire)),
                (field, wire) => reader.skip(field, wire)?,
            }
        }
        let cells = request.cells.get_mut(first_cell..).unwrap_or_default();
        let mut width = cells.len();
        if !self.columns.is_empty() {
            if self.columns.len() != cells.len() {
                let what = format!(
                    "a row has {} columns and {} values; each value needs its column",
                    self.columns.len(),
                    cells.len()
                );
                return Err(malformed(start, what));
            }
            for (cell, &column) in cells.iter_mut().zip(&self.columns) {
                cell.column = column;
            }
            self.columns.sort_unstable();
            if let Some([twice, _]) = self.columns.array_windows().find(|[a, b]| a == b) {
                return Err(malformed(start, format!("a row names column {twice} twice")));
            }
            width = self.columns.last().map_or(0, |&last| (last as usize).saturating_add(1));
        }
        request.push_row(ts, width)
    }
}

/// A repeated number, packed or not.
fn varints(
    reader: &mut Reader<'_>,
    wire: WireType,
    at: usize,
    message: &str,
    field: u32,
    mut take: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    match wire {
        WireType::Varint => take(reader.varint()?),
        WireType::Bytes => {
            let mut packed = reader.message()?;
            while !packed.is_done() {
                take(packed.varint()?)?;
            }
            Ok(())
        }
        _ => Err(wrong_type(at, message, field, wire)),
    }
}

fn small(number: u64, at: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| malformed(at, format!("{number} is over 32 bits")))
}

fn label(mut reader: Reader<'_>, builder: &mut LabelsBuilder, limits: &LabelLimits) -> Result<()> {
    let (mut name, mut value) = ("", "");
    while !reader.is_done() {
        let at = reader.at();
        match reader.key()? {
            (1, WireType::Bytes) => name = text(reader.bytes()?, at)?,
            (2, WireType::Bytes) => value = text(reader.bytes()?, at)?,
            (field @ 1..=2, wire) => return Err(wrong_type(at, "Label", field, wire)),
            (field, wire) => reader.skip(field, wire)?,
        }
    }
    builder.push_within(name, value, limits)
}

fn text(bytes: &[u8], at: usize) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|e| malformed(at, "not UTF-8").because(e))
}

/// A `GroupsAnswer`.
pub(super) fn encode(answer: &GroupsAnswer) -> Vec<u8> {
    let mut out = Vec::with_capacity(answer.encoded_bytes());
    push_bytes(1, answer.generation.as_bytes(), &mut out);
    for refs in &answer.groups {
        let group_start = out.len();
        for (group, part) in parts(refs.as_deref().unwrap_or_default()) {
            let part_start = out.len();
            push_varint(1, group.0, &mut out);
            let slots_start = out.len();
            part.iter().for_each(|s| firn_model::encode_varint(u64::from(s.slot.0), &mut out));
            close_message(2, slots_start, &mut out);
            close_message(1, part_start, &mut out);
        }
        close_message(2, group_start, &mut out);
    }
    push_varint(3, answer.written, &mut out);
    push_varint(4, answer.refused.value_count, &mut out);
    for refusal in &answer.refused.listed {
        let start = out.len();
        push_varint(1, refusal.group_idx as u64, &mut out);
        push_varint(2, refusal.row_idx as u64, &mut out);
        push_varint(3, refusal.value_count, &mut out);
        push_bytes(4, refusal.reason.name().as_bytes(), &mut out);
        push_bytes(5, refusal.why.as_bytes(), &mut out);
        close_message(5, start, &mut out);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use firn_model::{Budget, Pool, STALE_NAN_BITS};
    use proptest::prelude::*;

    use super::*;
    use crate::wire::groups::GroupEncoding;
    use firn_model::protobuf::push_fixed64;

    fn message(fields: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        fields(&mut out);
        out
    }

    fn pair(name: &str, value: &str) -> Vec<u8> {
        message(|out| {
            push_bytes(1, name.as_bytes(), out);
            push_bytes(2, value.as_bytes(), out);
        })
    }

    fn label_set(pairs: &[(&str, &str)]) -> Vec<u8> {
        message(|out| pairs.iter().for_each(|(n, v)| push_bytes(1, &pair(n, v), out)))
    }

    fn doubles(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }

    /// The request of `both_forms_decode_to_the_same_request`, repeated numbers packed and not.
    pub(crate) fn three_groups() -> Vec<u8> {
        let first = message(|out| {
            push_bytes(1, &pair("device", "pump-7"), out);
            push_bytes(2, &label_set(&[("__name__", "flow")]), out);
            push_bytes(2, &label_set(&[("none", ""), ("__name__", "heat")]), out);
            let row = message(|out| {
                push_bytes(2, &doubles(&[1.5f64.to_bits(), STALE_NAN_BITS]), out);
                push_varint(1, 1_000, out);
            });
            push_bytes(6, &row, out);
            let row = message(|out| {
                push_varint(1, -2_000i64 as u64, out);
                push_bytes(3, &[1], out);
                push_fixed64(2, f64::NEG_INFINITY.to_bits(), out);
            });
            push_bytes(6, &row, out);
        });
        let second = message(|out| {
            push_bytes(3, &label_set(&[("job", "a"), ("__name__", "up")]), out);
            push_bytes(99, b"of another version", out);
        });
        let third = message(|out| {
            push_varint(4, 300, out);
            push_varint(5, 0, out);
            push_bytes(5, &[0xc8, 0x01], out);
            let row = message(|out| {
                push_varint(1, i64::MAX as u64, out);
                push_fixed64(2, (-0.0f64).to_bits(), out);
            });
            push_bytes(6, &row, out);
        });
        message(|out| {
            push_bytes(1, b"g1", out);
            push_varint(2, 1, out);
            [first, second, third].iter().for_each(|group| push_bytes(3, group, out));
        })
    }

    fn decode_bytes(bytes: &[u8]) -> Result<GroupsRequest> {
        let held = Budget::new(64 << 20).empty(Pool::Requests);
        GroupsRequest::decode(GroupEncoding::Protobuf, bytes, &LabelLimits::default(), held)
    }

    #[test]
    fn a_request_that_is_cut_is_refused_by_byte() {
        let whole = three_groups();
        for len in 1..whole.len() {
            // A cut between two fields of the request leaves a shorter request, not a broken one.
            match decode_bytes(&whole[..len]) {
                Ok(request) => assert!(request.groups.len() < 3, "{len}"),
                Err(error) => assert!(error.to_string().contains("byte"), "{len}: {error}"),
            }
        }
    }

    #[test]
    fn rows_whose_columns_do_not_fit_are_refused() {
        let f = |columns: &[u8], values: &[u64], wanted: &str| {
            let row = message(|out| {
                push_bytes(3, columns, out);
                push_bytes(2, &doubles(values), out);
            });
            let group = message(|out| {
                push_bytes(5, &[0, 1], out);
                push_bytes(6, &row, out);
            });
            let error = decode_bytes(&message(|out| push_bytes(3, &group, out))).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("groups[0]") && error.contains(wanted), "{wanted:?}: {error}");
        };
        f(&[0], &[1, 2], "1 columns and 2 values");
        f(&[1, 1], &[1, 2], "names column 1 twice");
        f(&[2], &[1], "rows[0] has 3 values for 2 columns");
        f(&[], &[1, 2, 3], "rows[0] has 3 values for 2 columns");
        f(&[0xff, 0xff, 0xff, 0xff, 0x7f], &[1], "over 32 bits");
        f(&[1], &[], "1 columns and 0 values");
    }

    /// Compares the messages and field numbers of the schema with the code above.
    #[test]
    fn the_schema_matches_the_code() {
        let schema = include_str!("../../../proto/groups.proto");
        let mut fields = Vec::new();
        let mut inside = "";
        for line in schema.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("message ") {
                inside = name.trim_end_matches(" {");
            } else if let Some((left, right)) = line.split_once(" = ")
                && !inside.is_empty()
            {
                fields.push(format!("{inside}: {left} = {}", right.trim_end_matches(';')));
            }
        }
        let wanted = [
            "GroupsRequest: string generation = 1",
            "GroupsRequest: bool use_members_elsewhere = 2",
            "GroupsRequest: repeated Group groups = 3",
            "Group: repeated Label labels = 1",
            "Group: repeated LabelSet members = 2",
            "Group: repeated LabelSet series = 3",
            "Group: uint64 group = 4",
            "Group: repeated uint32 slots = 5",
            "Group: repeated Row rows = 6",
            "LabelSet: repeated Label labels = 1",
            "Label: string name = 1",
            "Label: string value = 2",
            "Row: int64 timestamp = 1",
            "Row: repeated double values = 2",
            "Row: repeated uint32 columns = 3",
            "GroupsAnswer: string generation = 1",
            "GroupsAnswer: repeated GroupRefs groups = 2",
            "GroupsAnswer: uint64 written = 3",
            "GroupsAnswer: uint64 refused_values = 4",
            "GroupsAnswer: repeated Refused refused = 5",
            "GroupRefs: repeated Part parts = 1",
            "Part: uint64 group = 1",
            "Part: repeated uint32 slots = 2",
            "Refused: uint32 group_index = 1",
            "Refused: uint32 row_index = 2",
            "Refused: uint64 values = 3",
            "Refused: string reason = 4",
            "Refused: string error = 5",
        ];
        assert_eq!(fields, wanted);
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_request_or_an_error(
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = three_groups();
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            if let Ok(request) = decode_bytes(&bytes) {
                for group in &request.groups {
                    let count = group.columns.count() as u32;
                    let mut rows = request.rows_of(group);
                    prop_assert!(rows.all(|(_, row)| row.iter().all(|c| c.column < count)));
                }
            }
        }
    }
}
