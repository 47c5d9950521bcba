//! The JSON form.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_collect::scrape::parse_value;
use firn_model::{
    GroupId, LabelLimits, Labels, LabelsBuilder, Result, STALE_NAN, Slot, Timestamp, excerpt,
};
use firndb::ForeignMember;

use crate::wire::groups::{GroupParts, GroupsAnswer, GroupsRequest, SLOT_BYTES, column_at, parts};
use crate::wire::json::{push_array, push_string};
use crate::wire::json_reader::{JsonReader, Read, read_json};
use crate::wire::number::push_u64;

/// Reads a body into an empty `request`.
pub(super) fn decode(
    body: &[u8],
    limits: &LabelLimits,
    mut request: GroupsRequest,
) -> Result<GroupsRequest> {
    let mut decoder = JsonGroupsDecoder { limits, builder: LabelsBuilder::default() };
    let copies = request.held.split(0);
    read_json(body, copies, |reader| {
        let mut has_groups = false;
        reader.object(|reader, key| match key {
            "generation" => {
                let (at, text) = (reader.at(), reader.string()?);
                request.spend(text.len()).map_err(|e| reader.refuse_at(at, e))?;
                request.generation = Some(text.into_owned());
                Ok(())
            }
            "known_elsewhere" => {
                let at = reader.at();
                request.elsewhere = match reader.string()?.as_ref() {
                    "refuse" => ForeignMember::Refuse,
                    "use" => ForeignMember::Use,
                    other => {
                        let what =
                            format!("{:?} is neither \"refuse\" nor \"use\"", excerpt(other));
                        return Err(reader.fault_at(at, what));
                    }
                };
                Ok(())
            }
            "groups" => {
                once(reader, !has_groups, key)?;
                has_groups = true;
                reader.array(|reader, _| decoder.group(reader, &mut request))
            }
            _ => Err(unknown(reader)),
        })?;
        if has_groups { Ok(()) } else { Err(reader.fault("groups is missing")) }
    })?;
    Ok(request)
}

struct JsonGroupsDecoder<'l> {
    limits: &'l LabelLimits,
    builder: LabelsBuilder,
}

impl JsonGroupsDecoder<'_> {
    fn group(&mut self, reader: &mut JsonReader<'_>, request: &mut GroupsRequest) -> Read<()> {
        let start = reader.at();
        let mut parts = GroupParts {
            rows_are_whole: true,
            limits: Some(*self.limits),
            ..GroupParts::default()
        };
        let mut has_rows = false;
        reader.object(|reader, key| {
            match key {
                "labels" => {
                    once(reader, parts.labels.is_none(), key)?;
                    parts.labels = Some(self.labels(reader, request)?);
                }
                "members" => {
                    once(reader, parts.members.is_none(), key)?;
                    parts.members = Some(self.label_sets(reader, request)?);
                }
                "series" => {
                    once(reader, parts.series.is_none(), key)?;
                    parts.series = Some(self.label_sets(reader, request)?);
                }
                "group" => {
                    once(reader, parts.group.is_none(), key)?;
                    parts.group = Some(GroupId(reader.integer("the id of a group")?));
                }
                "slots" => {
                    once(reader, parts.slots.is_none(), key)?;
                    let mut slots = Vec::new();
                    reader.array(|reader, _| {
                        request.spend(SLOT_BYTES).map_err(|e| reader.refuse_at(reader.at(), e))?;
                        slots.push(Slot(reader.integer("a slot")?));
                        Ok(())
                    })?;
                    parts.slots = Some(slots);
                }
                "rows" => {
                    once(reader, !has_rows, key)?;
                    has_rows = true;
                    reader.array(|reader, _| row(reader, request))?;
                }
                _ => return Err(unknown(reader)),
            }
            Ok(())
        })?;
        request.push_group(parts).map_err(|e| reader.refuse_at(start, e))
    }

    fn label_sets(
        &mut self,
        reader: &mut JsonReader<'_>,
        request: &mut GroupsRequest,
    ) -> Read<Vec<Labels>> {
        let mut sets = Vec::new();
        reader.array(|reader, _| {
            sets.push(self.labels(reader, request)?);
            Ok(())
        })?;
        Ok(sets)
    }

    fn labels(&mut self, reader: &mut JsonReader<'_>, request: &mut GroupsRequest) -> Read<Labels> {
        let start = reader.at();
        self.builder.clear();
        reader.object(|reader, name| {
            let pushed = self.builder.push_within(name, &reader.string()?, self.limits);
            pushed.map_err(|e| reader.refuse_at(start, e))
        })?;
        let built = self.builder.build(self.limits);
        let built = built.and_then(|labels| request.spend_labels(&labels).map(|()| labels));
        built.map_err(|e| reader.refuse_at(start, e))
    }
}

fn row(reader: &mut JsonReader<'_>, request: &mut GroupsRequest) -> Read<()> {
    let start = reader.at();
    let (mut ts, mut width): (Option<Timestamp>, Option<usize>) = (None, None);
    reader.object(|reader, key| {
        match key {
            "timestamp" => {
                once(reader, ts.is_none(), key)?;
                ts = Some(reader.integer("a time in milliseconds")?);
            }
            "values" => {
                once(reader, width.is_none(), key)?;
                let mut count = 0;
                reader.array(|reader, idx| {
                    count = idx.saturating_add(1);
                    let Some(value) = value(reader)? else { return Ok(()) };
                    let pushed = column_at(idx).and_then(|column| request.push_cell(column, value));
                    pushed.map_err(|e| reader.refuse_at(reader.at(), e))
                })?;
                width = Some(count);
            }
            _ => return Err(unknown(reader)),
        }
        Ok(())
    })?;
    let ts = ts.ok_or_else(|| reader.fault_at(start, "timestamp is missing"))?;
    let width = width.ok_or_else(|| reader.fault_at(start, "values is missing"))?;
    request.push_row(ts, width).map_err(|e| reader.refuse_at(start, e))
}

/// A number, the text of one, a text of Prometheus for a value that JSON lacks, or null. Unlike the
/// text formats, documents have one form of each.
pub(in crate::wire) fn value(reader: &mut JsonReader<'_>) -> Read<Option<f64>> {
    if reader.null() {
        return Ok(None);
    }
    let start = reader.at();
    if reader.peek() == Some(b'"') {
        let text = reader.string()?;
        return match (text.as_ref(), parse_value(text.as_bytes())) {
            ("stale", _) => Ok(Some(STALE_NAN)),
            ("NaN" | "+Inf" | "-Inf", Some(value)) => Ok(Some(value)),
            (_, Some(value)) if value.is_finite() => Ok(Some(value)),
            (other, _) => {
                let shown = other.get(..other.floor_char_boundary(32)).unwrap_or_default();
                let what = format!(
                    "expected a number, \"NaN\", \"+Inf\", \"-Inf\" or \"stale\", got {shown:?}"
                );
                Err(reader.fault_at(start, what))
            }
        };
    }
    if !matches!(reader.peek(), Some(b'-' | b'0'..=b'9')) {
        return Err(reader.unexpected("a number, null or a string"));
    }
    let text = reader.number()?;
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Some(value)),
        _ => Err(reader.fault_at(start, format!("{} is over the largest double", excerpt(text)))),
    }
}

pub(in crate::wire) fn once(reader: &JsonReader<'_>, is_first: bool, key: &str) -> Read<()> {
    if is_first { Ok(()) } else { Err(reader.fault(format!("{} is repeated", excerpt(key)))) }
}

pub(in crate::wire) fn unknown(reader: &JsonReader<'_>) -> crate::wire::json_reader::JsonFault {
    reader.fault("no such field")
}

/// The body of a response; `error` is the message of a partial failure.
pub(super) fn encode(answer: &GroupsAnswer, error: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(answer.encoded_bytes());
    match error {
        None => out.extend_from_slice(br#"{"status":"success","#),
        Some(error) => {
            out.extend_from_slice(br#"{"status":"error","errorType":"bad_data","error":"#);
            push_string(error, &mut out);
            out.push(b',');
        }
    }
    out.extend_from_slice(br#""data":{"generation":"#);
    push_string(&answer.generation, &mut out);
    out.extend_from_slice(br#","groups":"#);
    push_array(&answer.groups, &mut out, |refs, out| {
        out.extend_from_slice(br#"{"parts":"#);
        push_array(parts(refs.as_deref().unwrap_or_default()), out, |(group, part), out| {
            out.extend_from_slice(br#"{"group":"#);
            push_u64(group.0, out);
            out.extend_from_slice(br#","slots":"#);
            push_array(part, out, |series, out| push_u64(u64::from(series.slot.0), out));
            out.push(b'}');
        });
        out.push(b'}');
    });
    out.extend_from_slice(br#","written":"#);
    push_u64(answer.written, &mut out);
    out.extend_from_slice(br#","refused_values":"#);
    push_u64(answer.refused.value_count, &mut out);
    out.extend_from_slice(br#","refused":"#);
    push_array(&answer.refused.listed, &mut out, |refusal, out| {
        out.extend_from_slice(br#"{"group_index":"#);
        push_u64(refusal.group_idx as u64, out);
        out.extend_from_slice(br#","row_index":"#);
        push_u64(refusal.row_idx as u64, out);
        out.extend_from_slice(br#","values":"#);
        push_u64(refusal.value_count, out);
        out.extend_from_slice(br#","reason":"#);
        push_string(refusal.reason.name(), out);
        out.extend_from_slice(br#","error":"#);
        push_string(&refusal.why, out);
        out.push(b'}');
    });
    out.extend_from_slice(b"}}");
    out
}
