//! Targets and metric metadata. The only target is the server itself, in a scrape pool of its own.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use firn_model::Matcher;
use serde_json::{Map, Value, json};

use crate::answer::ApiError;
use crate::http::Shared;
use crate::http::params::Params;
use crate::http::roles::{Access, Methods, Routes};
use crate::http::status::{answer, hostname};
use crate::metadata::Metadata;
use crate::target::{SELF_JOB, Target};
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
        let in_pool = |_: &&Target| params.get("scrapePool").is_none_or(|pool| pool == SELF_JOB);
        let pool = app.target.iter().filter(in_pool);
        let active: Vec<Value> = pool.filter(|_| shows("active")).map(active_target).collect();
        let mut dropped_counts = Map::new();
        if shows("dropped") && app.target.is_some() {
            dropped_counts.insert(SELF_JOB.to_owned(), json!(0));
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
            "job": SELF_JOB,
        },
        "labels": self_labels(target),
        "scrapePool": SELF_JOB,
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
    json!({ "instance": target.address.to_string(), "job": SELF_JOB })
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
    answer(request, |params| {
        let limit = number(params, "limit")?;
        let matchers = match params.get("match_target") {
            Some(text) => firn_promql::parse_selector(text)
                .map_err(|e| ApiError::parameter("match_target", e))?,
            None => Vec::new(),
        };
        let is_wanted = |target: &&Target| matches(target, &matchers);
        let wanted = app.target.iter().filter(is_wanted).take(limit.unwrap_or(usize::MAX));
        let metric = params.get("metric");
        let entries = wanted.flat_map(|target| {
            let known = target.metadata.list(metric, usize::MAX);
            known.into_iter().map(|(name, metadata)| {
                let mut entry = entry(&metadata);
                entry.insert("target".to_owned(), self_labels(target));
                if metric.is_none() {
                    entry.insert("metric".to_owned(), Value::String(name));
                }
                Value::Object(entry)
            })
        });
        Ok(entries.collect())
    })
    .await
}

fn matches(target: &Target, matchers: &[Matcher]) -> bool {
    let instance = target.address.to_string();
    matchers.iter().all(|matcher| match matcher.name() {
        "job" => matcher.matches(SELF_JOB),
        "instance" => matcher.matches(&instance),
        _ => matcher.matches_absent(),
    })
}

/// `/api/v1/scrape_pools`.
async fn scrape_pools(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let pools: &[&str] = if app.target.is_some() { &[SELF_JOB] } else { &[] };
    answer(request, |_| Ok(json!({ "scrapePools": pools }))).await
}

/// `/api/v1/alertmanagers`: empty, because there are no alerts.
async fn alertmanagers(request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(json!({ "activeAlertmanagers": [], "droppedAlertmanagers": [] }))).await
}

/// `/api/v1/metadata`. Only the newest metadata of a metric is stored, so `limit_per_metric` never
/// truncates.
async fn metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(request, |params| {
        let limit = number(params, "limit")?.unwrap_or(usize::MAX);
        number(params, "limit_per_metric")?;
        let known = app.metadata.list(params.get("metric"), limit);
        let metric = |(name, metadata): (String, Metadata)| (name, json!([entry(&metadata)]));
        Ok(Value::Object(known.into_iter().map(metric).collect()))
    })
    .await
}

fn entry(metadata: &Metadata) -> Map<String, Value> {
    let fields = [
        ("type", metadata.kind.name()),
        ("help", metadata.help.as_str()),
        ("unit", metadata.unit.as_str()),
    ];
    fields.map(|(name, text)| (name.to_owned(), Value::from(text))).into_iter().collect()
}

/// A number of things to list; one below 0 is the same as none.
fn number(params: &Params, name: &str) -> Result<Option<usize>, ApiError> {
    let Some(text) = params.get(name) else { return Ok(None) };
    let number: i64 =
        text.parse().map_err(|_| ApiError::bad_data(format!("{name} must be a number")))?;
    Ok(usize::try_from(number).ok())
}
