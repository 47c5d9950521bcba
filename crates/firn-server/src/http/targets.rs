//! Targets and metric metadata. The only target is the server itself, in a scrape pool of its own.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use firn_model::{Matcher, Pool, QueryContext, Reservation};
use serde_json::{Map, Value, json};

use crate::answer::{ApiError, Packing, Payload};
use crate::http::Shared;
use crate::http::computed::computed;
use crate::http::params::{Params, refused};
use crate::http::roles::{Access, Methods, Routes};
use crate::http::status::{answer, hostname};
use crate::metadata::Metadata;
use crate::target::Target;
use crate::wire::json as wire_json;
use crate::wire::number::{rfc3339, unit_duration};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::ReadServer, Methods::Get, "/api/v1/targets", targets)
        .route(Access::ReadServer, Methods::Get, "/api/v1/targets/metadata", targets_metadata)
        .route(Access::ReadServer, Methods::Get, "/api/v1/scrape_pools", scrape_pools)
        .route(Access::Read, Methods::Get, "/api/v1/alertmanagers", alertmanagers)
        .route(Access::ReadServer, Methods::Get, "/api/v1/metadata", metadata)
}

/// `/api/v1/targets`.
async fn targets(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(request, |params| {
        let state = params.get("state").unwrap_or_default().to_lowercase();
        let shows = |kind: &str| state.is_empty() || state == "any" || state == kind;
        let in_pool =
            |target: &&Target| params.get("scrapePool").is_none_or(|pool| pool == target.job);
        let pool = app.target.iter().filter(in_pool);
        let active: Vec<Value> = pool.filter(|_| shows("active")).map(active_target).collect();
        let mut dropped_counts = Map::new();
        if let Some(target) = app.target.as_ref().filter(|_| shows("dropped")) {
            dropped_counts.insert(target.job.clone(), json!(0));
        }
        Ok(json!({
            "activeTargets": active,
            "droppedTargets": [],
            "droppedTargetCounts": dropped_counts,
        }))
    })
    .await
}

fn active_target(target: &Target) -> Value {
    let last = target.last();
    let interval = unit_duration(target.interval.as_millis() as i64);
    let timeout = unit_duration(target.timeout().as_millis() as i64);
    let address = target.address.to_string();
    let health = match &last {
        None => "unknown",
        Some(scrape) if scrape.error.is_some() => "down",
        Some(_) => "up",
    };
    // Go's text for an unset time.
    const NEVER: &str = "0001-01-01T00:00:00Z";
    json!({
        "discoveredLabels": {
            "__address__": address,
            "__metrics_path__": "/metrics",
            "__scheme__": "http",
            "__scrape_interval__": interval,
            "__scrape_timeout__": timeout,
            "job": target.job,
        },
        "labels": self_labels(target),
        "scrapePool": target.job,
        "scrapeUrl": format!("http://{address}/metrics"),
        "globalUrl": global_url(target),
        "lastError": last.as_ref().and_then(|scrape| scrape.error.as_deref()).unwrap_or_default(),
        "lastScrape": last.as_ref().map_or_else(|| NEVER.to_owned(), |scrape| rfc3339(scrape.ts)),
        "lastScrapeDuration": last.map_or(0.0, |scrape| scrape.took.as_secs_f64()),
        "health": health,
        "scrapeInterval": interval,
        "scrapeTimeout": timeout,
    })
}

fn self_labels(target: &Target) -> Value {
    json!({ "instance": target.address.to_string(), "job": target.job })
}

/// The target's address for other machines: the host name instead of a loopback address.
fn global_url(target: &Target) -> String {
    let ip = target.address.ip();
    if ip.is_loopback() || ip.is_unspecified() {
        return format!("http://{}:{}/metrics", hostname(), target.address.port());
    }
    format!("http://{}/metrics", target.address)
}

/// `/api/v1/targets/metadata`.
async fn targets_metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, targets_request, move |_, asked, context, packing| {
        let TargetsRequest { list, matchers } = asked;
        let target = shared.target.as_ref().filter(|target| matches(target, &matchers));
        let mut items = List::begin(b'[', context)?;
        // Of targets, of which there is at most one.
        if let Some(target) = target.filter(|_| list.limit > 0) {
            let labels = self_labels(target).to_string();
            target.metadata.visit(list.metric.as_deref(), usize::MAX, |name, metadata| {
                items.make_room(labels.len() + 2 * name.len(), metadata)?;
                let out = items.next();
                out.extend_from_slice(br#"{"target":"#);
                out.extend_from_slice(labels.as_bytes());
                out.push(b',');
                if list.metric.is_none() {
                    out.extend_from_slice(br#""metric":"#);
                    wire_json::push_string(name, out);
                    out.push(b',');
                }
                push_fields(metadata, out);
                out.push(b'}');
                Ok(())
            })?;
        }
        Ok(items.finish(b']', packing))
    })
    .await
}

/// The parameters of both lists of metadata.
struct MetadataRequest {
    metric: Option<String>,
    limit: usize,
}

struct TargetsRequest {
    list: MetadataRequest,
    matchers: Vec<Matcher>,
}

fn targets_request(params: &Params, context: &QueryContext) -> Result<TargetsRequest, ApiError> {
    let list = metadata_request(params, context)?;
    let matchers = match params.get("match_target") {
        Some(text) => firn_promql::parse_selector(text, context)
            .map_err(|why| refused(why, |why| ApiError::parameter("match_target", why)))?,
        None => Vec::new(),
    };
    Ok(TargetsRequest { list, matchers })
}

fn metadata_request(params: &Params, _: &QueryContext) -> Result<MetadataRequest, ApiError> {
    let limit = number(params, "limit")?.unwrap_or(usize::MAX);
    number(params, "limit_per_metric")?;
    Ok(MetadataRequest { metric: params.get("metric").map(str::to_owned), limit })
}

/// A list in JSON that reserves its memory while it grows.
struct List {
    body: Vec<u8>,
    held: Reservation,
    is_empty: bool,
    context: QueryContext,
}

// JSON escapes a control character with six bytes.
const ESCAPED_BYTES_MAX: usize = 6;
// Names and punctuation around the texts of an item, and the end of the list.
const ITEM_BYTES: usize = 128;

impl List {
    fn begin(open: u8, context: &QueryContext) -> Result<List, ApiError> {
        let held = context.budget.empty(Pool::Query);
        let body = wire_json::SUCCESS_HEAD.to_vec();
        let mut list = List { body, held, is_empty: true, context: context.clone() };
        list.make_room(0, &Metadata::default())?;
        list.body.push(open);
        Ok(list)
    }

    /// Reserves the memory of an item with `metadata` and `other_bytes` of other texts.
    fn make_room(&mut self, other_bytes: usize, metadata: &Metadata) -> firn_model::Result<()> {
        self.context.cancel.check()?;
        let text_bytes = metadata.help.len() + metadata.unit.len() + other_bytes;
        let wanted = self.body.len() + ITEM_BYTES + ESCAPED_BYTES_MAX * text_bytes;
        if wanted > self.body.capacity() {
            let capacity = wanted.max(2 * self.body.capacity());
            // Old and new bytes exist together while they are copied.
            self.held.cover((self.body.capacity() + capacity) as u64)?;
            self.body.reserve_exact(capacity - self.body.len());
            let capacity = self.body.capacity() as u64;
            self.held.shrink(self.held.bytes().saturating_sub(capacity));
        }
        Ok(())
    }

    /// The place of the next item.
    fn next(&mut self) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.is_empty) {
            self.body.push(b',');
        }
        &mut self.body
    }

    fn finish(mut self, close: u8, packing: Packing) -> Payload {
        self.body.push(close);
        self.body.push(b'}');
        Payload::new(self.body, packing, Some(self.held))
    }
}

/// Type, help and unit.
fn push_fields(metadata: &Metadata, out: &mut Vec<u8>) {
    out.extend_from_slice(br#""type":""#);
    out.extend_from_slice(metadata.kind.name().as_bytes());
    out.extend_from_slice(br#"","help":"#);
    wire_json::push_string(&metadata.help, out);
    out.extend_from_slice(br#","unit":"#);
    wire_json::push_string(&metadata.unit, out);
}

fn matches(target: &Target, matchers: &[Matcher]) -> bool {
    let instance = target.address.to_string();
    matchers.iter().all(|matcher| match matcher.name() {
        "job" => matcher.matches(&target.job),
        "instance" => matcher.matches(&instance),
        _ => matcher.matches_absent(),
    })
}

/// `/api/v1/scrape_pools`.
async fn scrape_pools(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let pools: Vec<&str> = app.target.iter().map(|target| target.job.as_str()).collect();
    answer(request, |_| Ok(json!({ "scrapePools": pools }))).await
}

/// `/api/v1/alertmanagers`: empty, because there are no alerts.
async fn alertmanagers(request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(json!({ "activeAlertmanagers": [], "droppedAlertmanagers": [] }))).await
}

/// `/api/v1/metadata`. Only the newest metadata of a metric is stored, so `limit_per_metric` never
/// truncates.
async fn metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, metadata_request, move |_, list, context, packing| {
        let mut items = List::begin(b'{', context)?;
        shared.metadata.visit(list.metric.as_deref(), list.limit, |name, metadata| {
            items.make_room(name.len(), metadata)?;
            let out = items.next();
            wire_json::push_string(name, out);
            out.extend_from_slice(b":[{");
            push_fields(metadata, out);
            out.extend_from_slice(b"}]");
            Ok(())
        })?;
        Ok(items.finish(b'}', packing))
    })
    .await
}

/// A number of things to list; one below 0 is the same as none.
fn number(params: &Params, name: &str) -> Result<Option<usize>, ApiError> {
    let Some(text) = params.get(name) else { return Ok(None) };
    let number: i64 =
        text.parse().map_err(|_| ApiError::bad_data(format!("{name} must be a number")))?;
    Ok(usize::try_from(number).ok())
}
