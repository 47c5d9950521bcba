//! The contents of the database: cardinality and tables.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use firn_model::QueryContext;
use serde_json::{Value, json};

use crate::answer::{ApiError, Payload};
use crate::http::Shared;
use crate::http::computed::computed;
use crate::http::params::{Params, refused};
use crate::http::roles::{Access, Methods, Routes};
use crate::http::status::success;
use crate::inspect::{InspectGroups, costs_json};
use firndb::{Db, TableId, TableRecord};

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
    answer(app, request, top, |db, &top, context| {
        let cardinality = db.cardinality(top, context)?;
        let snapshot = db.snapshot();
        let in_memory = snapshot.memory_range();
        Ok(json!({
            "headStats": {
                "numSeries": cardinality.series_count,
                "numLabelPairs": cardinality.pair_count,
                "chunkCount": snapshot.memory_part_count(),
                "minTime": in_memory.start,
                "maxTime": in_memory.end,
            },
            "seriesCountByMetricName": counts(&cardinality.series_by_metric),
            "labelValueCountByLabelName": counts(&cardinality.values_by_name),
            "memoryInBytesByLabelName": counts(&cardinality.bytes_by_name),
            "seriesCountByLabelValuePair": counts(&cardinality.series_by_pair),
            "seriesCountByGroup": counts(&cardinality.series_by_group),
        }))
    })
    .await
}

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

fn counts(table: &[(String, u64)]) -> Value {
    table.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

/// `/api/v1/status/tsdb/blocks`: the tables in the form of Prometheus' blocks.
async fn blocks(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(
        app,
        request,
        |_, _| Ok(()),
        |db, (), _| {
            let snapshot = db.snapshot();
            let mut tables: Vec<&TableRecord> = snapshot.tables().collect();
            tables.sort_by_key(|table| (table.time_range.start, table.id));
            Ok(json!({ "blocks": tables.into_iter().map(block).collect::<Value>() }))
        },
    )
    .await
}

/// `/api/v1/status/groups`: savings and costs of each group (docs/groups.md).
async fn groups(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let check = |params: &Params, context: &QueryContext| {
        let partition = params.get("partition").unwrap_or("2h");
        let selectors = params.selector_texts()?.into_iter();
        let top = top(params, context)?;
        let asked = InspectGroups::parse_within(selectors, top, partition, context);
        asked.map_err(|why| refused(why, |why| ApiError::bad_data(why.to_string())))
    };
    answer(app, request, check, |db, asked, context| {
        let costs = db.group_costs(&asked.selectors, &asked.options, context)?;
        Ok(costs_json(&costs, asked))
    })
    .await
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

/// All is computed like a query.
async fn answer<T: 'static>(
    app: Shared,
    request: Request<Body>,
    check: fn(&Params, &QueryContext) -> Result<T, ApiError>,
    data: fn(&Db, &T, &QueryContext) -> Result<Value, ApiError>,
) -> Response<Body> {
    computed(app, request, check, move |db, asked, context, packing| {
        Ok(Payload::new(success(&data(db, &asked, context)?), packing, None))
    })
    .await
}
