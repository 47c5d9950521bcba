//! The contents of the database: cardinality and tables.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use firn_model::QueryContext;
use serde_json::{Value, json};

use crate::answer::ApiError;
use crate::held_body::HeldBody;
use crate::http::Shared;
use crate::http::auth::Access;
use crate::http::computed::computed;
use crate::http::params::{Params, refused};
use crate::http::roles::{Methods, Routes};
use crate::inspect::{GroupFields, GroupWithCost, InspectGroups, costs_head};
use crate::wire::json::{labels_bytes, push_labels, push_string, string_bytes};
use crate::wire::number::push_u64;
use firndb::{TableId, TableRecord};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/tsdb", cardinality)
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/tsdb/blocks", blocks)
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/groups", groups)
}

const TOP_DEFAULT: usize = 10;
const TOP_MAX: usize = 10_000;

/// `/api/v1/status/tsdb`.
async fn cardinality(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    computed(app, request, top, |db, top, context, packing| {
        let (cardinality, _lists_held) = db.cardinality(top, context)?;
        let snapshot = db.snapshot();
        let in_memory = snapshot.memory_range();
        let head = json!({
            "numSeries": cardinality.series_count,
            "numLabelPairs": cardinality.pair_count,
            "chunkCount": snapshot.memory_part_count(),
            "minTime": in_memory.start,
            "maxTime": in_memory.end,
        });
        let mut body = HeldBody::success(context)?;
        body.push(&format!(r#"{{"headStats":{head}"#))?;
        let keys = [
            "seriesCountByMetricName",
            "labelValueCountByLabelName",
            "memoryInBytesByLabelName",
            "seriesCountByLabelValuePair",
            "seriesCountByGroup",
        ];
        for (key, table) in keys.into_iter().zip(cardinality.tables()) {
            body.push(&format!(r#","{key}":"#))?;
            let bytes_max = |(name, _): &&(String, u64)| COUNT_BYTES + string_bytes(name);
            body.push_array(table, bytes_max, |(name, value), out| {
                out.extend_from_slice(br#"{"name":"#);
                push_string(name, out);
                out.extend_from_slice(br#","value":"#);
                push_u64(*value, out);
                out.push(b'}');
            })?;
        }
        body.push("}")?;
        Ok(body.end(&[], packing)?)
    })
    .await
}

// The bytes of a count and the signs around its name.
const COUNT_BYTES: usize = 48;

fn top(params: &Params, _: &QueryContext) -> Result<usize, ApiError> {
    let Some(text) = params.get("limit") else { return Ok(TOP_DEFAULT) };
    match text.parse::<usize>() {
        Ok(0) | Err(_) => Err(ApiError::bad_data("limit must be a positive number")),
        Ok(top) if top > TOP_MAX => {
            Err(ApiError::bad_data(format!("limit must not exceed {TOP_MAX}")))
        }
        Ok(top) => Ok(top),
    }
}

/// `/api/v1/status/tsdb/blocks`: the tables in the form of Prometheus' blocks.
async fn blocks(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    computed(
        app,
        request,
        |_, _| Ok(()),
        |db, (), context, packing| {
            let snapshot = db.snapshot();
            let mut tables: Vec<&TableRecord> = snapshot.tables().collect();
            tables.sort_by_key(|table| (table.time_range.start, table.id));
            let mut body = HeldBody::success(context)?;
            body.push(r#"{"blocks":"#)?;
            body.push_array(tables, |_| BLOCK_BYTES, |table, out| push_value(&block(table), out))?;
            body.push("}")?;
            Ok(body.end(&[], packing)?)
        },
    )
    .await
}

// The text of a block: two names of 26 digits and seven numbers.
const BLOCK_BYTES: usize = 512;

/// `/api/v1/status/groups`: savings and costs of each group (docs/groups.md).
async fn groups(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let check = |params: &Params, context: &QueryContext| {
        let partition = params.get("partition").unwrap_or("2h");
        let selectors = params.selector_texts()?.into_iter();
        let top = top(params, context)?;
        let asked = InspectGroups::parse_within(selectors, top, partition, context);
        asked.map_err(|why| refused(why, |why| ApiError::bad_data(why.to_string())))
    };
    computed(app, request, check, |db, asked, context, packing| {
        let InspectGroups { selectors, options, .. } = &asked;
        let (costs, _costs_held) =
            db.group_costs(selectors, options, asked.shown_count(), context)?;
        let head = Value::Object(costs_head(&costs, &asked)).to_string();
        let mut body = HeldBody::success(context)?;
        // The groups are the last field of the object.
        body.push(head.strip_suffix('}').unwrap_or_default())?;
        body.push(r#","groups":"#)?;
        let bytes_max = |(_, labels, _): &&GroupWithCost| GROUP_BYTES + labels_bytes(labels);
        let mut fields = GroupFields::new(db);
        body.push_array(&costs.groups, bytes_max, |group, out| {
            // The labels are the last field of the object.
            let fields = Value::Object(fields.of(group)).to_string();
            out.extend_from_slice(fields.strip_suffix('}').unwrap_or_default().as_bytes());
            out.extend_from_slice(br#","labels":"#);
            push_labels(&group.1, out);
            out.push(b'}');
        })?;
        body.push("}")?;
        Ok(body.end(&[], packing)?)
    })
    .await
}

// The text of a group's 33 numbers and its rule.
const GROUP_BYTES: usize = 2_048;

fn push_value(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn block(table: &TableRecord) -> Value {
    let name = ulid(table.id);
    json!({
        "ulid": name,
        "minTime": table.time_range.start,
        // Blocks end before this.
        "maxTime": table.time_range.end.saturating_add(1),
        // The number of series is only in the directory of the table.
        "stats": { "numSamples": table.value_count, "numChunks": table.chunk_count },
        "compaction": { "level": table.level as u8 + 1, "sources": [name] },
        "version": 1,
    })
}

/// A table's number in the shape of a ULID: 26 digits.
fn ulid(id: TableId) -> String {
    format!("{:026}", id.0)
}
