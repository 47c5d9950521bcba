//! Targets and metric metadata: the targets of `--prometheus-config`, and the server itself in a
//! scrape pool of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, Uri};
use axum::response::IntoResponse;
use firn_collect::config::{ScrapeConfig, Url};
use firn_collect::pool::ScrapePool;
use firn_collect::scrape::TargetStatus;
use firn_model::{Error, Labels, Matcher, Pool, QueryContext, Reservation};
use serde_json::{Map, Value, json};

use crate::answer::ApiError;
use crate::app::App;
use crate::collect::{Family, ScrapeState};
use crate::held_body::HeldBody;
use crate::hostname::hostname;
use crate::http::Shared;
use crate::http::auth::Access;
use crate::http::computed::computed;
use crate::http::params::{Params, refused};
use crate::http::relabel_steps::relabel_steps;
use crate::http::roles::{Methods, Routes};
use crate::http::status::{answer, answer_with};
use crate::metadata::Metadata;
use crate::target::Target;
use crate::wire::json as wire_json;
use crate::wire::number::{rfc3339, unit_duration};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::ReadServer, Methods::Get, "/api/v1/targets", targets)
        .route(Access::ReadServer, Methods::Get, "/api/v1/targets/metadata", targets_metadata)
        .route(Access::ReadServer, Methods::Get, "/api/v1/targets/relabel_steps", relabel_steps)
        .route(Access::ReadServer, Methods::Get, "/api/v1/scrape_pools", scrape_pools)
        .route(Access::ReadServer, Methods::Get, "/api/v1/metadata", metadata)
}

/// The parameters of the list of targets.
struct TargetFilter {
    active: bool,
    dropped: bool,
    pool: Option<String>,
}

impl TargetFilter {
    fn of(params: &Params) -> TargetFilter {
        let state = params.get("state").unwrap_or_default().to_lowercase();
        let shows = |kind: &str| state.is_empty() || state == "any" || state == kind;
        TargetFilter {
            active: shows("active"),
            dropped: shows("dropped"),
            pool: params.get("scrapePool").filter(|pool| !pool.is_empty()).map(str::to_owned),
        }
    }

    fn shows_pool(&self, pool: &str) -> bool {
        self.pool.as_ref().is_none_or(|wanted| wanted == pool)
    }
}

/// `/api/v1/targets`.
async fn targets(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    // The server's own target is known before the database is open.
    if app.collect.is_none() {
        return answer(request, |params| Ok(own_targets(&app, &TargetFilter::of(params)))).await;
    }
    let shared = Shared::clone(&app);
    let check = |params: &Params, _: &QueryContext| Ok(TargetFilter::of(params));
    computed(app, request, check, move |_, filter, context, packing| {
        let (body, warnings) = all_targets(&shared, &filter, context)?;
        Ok(body.end(&warnings, packing)?)
    })
    .await
}

/// The list without targets of a configuration.
fn own_targets(app: &App, filter: &TargetFilter) -> Value {
    let own = app.target.iter().filter(|target| filter.active && filter.shows_pool(&target.job));
    let active: Vec<Value> = own.map(active_target).collect();
    let counts: BTreeMap<&str, usize> =
        app.target.iter().map(|target| (target.job.as_str(), 0)).collect();
    json!({
        "activeTargets": active,
        "droppedTargets": [],
        "droppedTargetCounts": filter.dropped.then_some(counts),
    })
}

/// A target at the moment of the request.
struct ShownTarget {
    job: Arc<ScrapeConfig>,
    target: Arc<firn_collect::targets::Target>,
    status: TargetStatus,
}

// Memory of a shown target, with the text of its error.
const SHOWN_BYTES: u64 = 512;
// Of a target in a list that grows.
const LISTED_BYTES: u64 = 64;

/// The list with those of the configuration, by pool and labels; and warnings of pools whose list
/// is not the newest.
fn all_targets(
    app: &App,
    filter: &TargetFilter,
    context: &QueryContext,
) -> firn_model::Result<(HeldBody, Vec<String>)> {
    let mut warnings = Vec::new();
    let mut held = context.budget.empty(Pool::Query);
    let mut active: Vec<ShownTarget> = Vec::new();
    let mut dropped: Vec<(String, Labels)> = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    counts.extend(app.target.iter().map(|target| (target.job.clone(), 0)));
    if let Some(state) = app.collect.as_ref().and_then(|collect| collect.collector.state()) {
        for (name, pool) in state.pools.pools() {
            *counts.entry(name.to_owned()).or_default() += pool.report().dropped_count;
            if !filter.shows_pool(name) {
                continue;
            }
            warnings.extend(pool_warnings(&state, name, pool));
            if filter.active {
                for shown in state.pools.targets(pool) {
                    held.cover((active.len() as u64 + 1) * SHOWN_BYTES)?;
                    active.push(ShownTarget {
                        job: Arc::clone(shown.job),
                        target: Arc::clone(shown.target),
                        status: shown.status.clone(),
                    });
                }
            }
            if filter.dropped {
                let listed = (active.len() + dropped.len() + pool.dropped().len()) as u64;
                held.cover(listed * SHOWN_BYTES)?;
                dropped
                    .extend(pool.dropped().iter().map(|labels| (name.to_owned(), labels.clone())));
            }
        }
    }
    active.sort_by(|a, b| {
        (&a.job.job_name, &a.target.labels).cmp(&(&b.job.job_name, &b.target.labels))
    });
    let mut body = HeldBody::success(context)?;
    body.push(r#"{"activeTargets":["#)?;
    let own = app.target.iter().filter(|target| filter.active && filter.shows_pool(&target.job));
    let own = own.map(active_target);
    push_values(&mut body, own.chain(active.iter().map(scraped_target)))?;
    body.push(r#"],"droppedTargets":["#)?;
    let dropped = dropped
        .iter()
        .map(|(pool, labels)| json!({ "discoveredLabels": label_map(labels), "scrapePool": pool }));
    push_values(&mut body, dropped)?;
    let counts = json!(filter.dropped.then_some(counts)).to_string();
    body.push(r#"],"droppedTargetCounts":"#)?;
    body.push(&counts)?;
    body.push("}")?;
    Ok((body, warnings))
}

/// The warnings of a pool whose last list was refused, or whose discoveries fail: its targets, if
/// any, are older.
fn pool_warnings(state: &ScrapeState, name: &str, pool: &ScrapePool) -> Vec<String> {
    let refused = pool.refused();
    let refusal = refused.map(|why| format!("the last list of targets was refused: {why}"));
    let warnings = refusal.into_iter().chain(state.discovery_failures(name));
    warnings.map(|warning| format!("scrape pool {name:?}: {warning}")).collect()
}

fn push_values(body: &mut HeldBody, values: impl Iterator<Item = Value>) -> firn_model::Result<()> {
    for (idx, value) in values.enumerate() {
        if idx > 0 {
            body.push(",")?;
        }
        body.push(&value.to_string())?;
    }
    Ok(())
}

fn label_map(labels: &Labels) -> Map<String, Value> {
    labels.iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn scraped_target(shown: &ShownTarget) -> Value {
    let ShownTarget { job, target, status } = shown;
    let url = Url::shown(&target.url(job));
    let health = match (status.last_scrape, &status.error) {
        (None, _) => "unknown",
        (Some(_), Some(_)) => "down",
        (Some(_), None) => "up",
    };
    json!({
        "discoveredLabels": label_map(&target.discovered),
        "labels": label_map(&target.public_labels()),
        "scrapePool": job.job_name,
        "scrapeUrl": url,
        "globalUrl": global_url_of(&url),
        "lastError": status.error.as_deref().unwrap_or_default(),
        "lastScrape": status.last_scrape.map_or_else(|| NEVER.to_owned(), rfc3339),
        "lastScrapeDuration": status.duration.as_secs_f64(),
        "health": health,
        "scrapeInterval": target.interval.to_string(),
        "scrapeTimeout": target.timeout.to_string(),
    })
}

/// The address for other machines: the host name instead of a loopback address.
fn global_url_of(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return url.to_owned() };
    let is_local = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "[::1]" | "::1");
    if !uri.host().is_some_and(is_local) {
        return url.to_owned();
    }
    let scheme = uri.scheme_str().unwrap_or("http");
    let port = uri.port_u16().map_or_else(String::new, |port| format!(":{port}"));
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    format!("{scheme}://{}{port}{path}", hostname())
}

// Go's text for an unset time.
const NEVER: &str = "0001-01-01T00:00:00Z";

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
    if target.address.ip().is_unspecified() {
        return format!("http://{}:{}/metrics", hostname(), target.address.port());
    }
    global_url_of(&format!("http://{}/metrics", target.address))
}

/// `/api/v1/targets/metadata`.
async fn targets_metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, targets_request, move |_, asked, context, packing| {
        let TargetsRequest { list, matchers } = asked;
        let mut body = HeldBody::success(context)?;
        body.push("[")?;
        let mut entries = TargetEntries { body: &mut body, count: 0, names: list.metric.is_none() };
        let own = shared.target.as_ref().filter(|target| matches(target, &matchers));
        if let Some(target) = own.filter(|_| list.limit > 0) {
            let labels = self_labels(target).to_string();
            let push = |name: &str, metadata: &Metadata| entries.push(&labels, name, metadata);
            target.metadata.visit(list.metric.as_deref(), usize::MAX, push)?;
        }
        let (listed, _held) = target_families(&shared, &matchers, context)?;
        for (labels, families) in listed {
            // As Prometheus, which counts before each target.
            if entries.count >= list.limit {
                break;
            }
            let labels = Value::Object(label_map(&labels)).to_string();
            let is_listed =
                |family: &&Arc<Family>| list.metric.as_ref().is_none_or(|m| *family.name == **m);
            for family in families.iter().filter(is_listed) {
                entries.push(&labels, &family.name, &family.metadata)?;
            }
        }
        body.push("]")?;
        Ok(body.end(&[], packing)?)
    })
    .await
}

/// Entries of the list, written one after the other.
struct TargetEntries<'b> {
    body: &'b mut HeldBody,
    count: usize,
    /// Entries name their metric.
    names: bool,
}

impl TargetEntries<'_> {
    /// `labels` is the JSON of the target's.
    fn push(&mut self, labels: &str, name: &str, metadata: &Metadata) -> firn_model::Result<()> {
        let other_bytes = labels.len() + wire_json::string_bytes(name);
        let out = self.body.room(item_bytes(other_bytes, metadata))?;
        if self.count > 0 {
            out.push(b',');
        }
        self.count += 1;
        out.extend_from_slice(br#"{"target":"#);
        out.extend_from_slice(labels.as_bytes());
        out.push(b',');
        if self.names {
            out.extend_from_slice(br#""metric":"#);
            wire_json::push_string(name, out);
            out.push(b',');
        }
        push_fields(metadata, out);
        out.push(b'}');
        Ok(())
    }
}

/// The labels of a target and its families.
type ListedFamilies = (Labels, Vec<Arc<Family>>);

/// The families of each target that matches, by job and labels, with the memory of the list.
fn target_families(
    app: &App,
    matchers: &[Matcher],
    context: &QueryContext,
) -> firn_model::Result<(Vec<ListedFamilies>, Reservation)> {
    let mut held = context.budget.empty(Pool::Query);
    let state = || app.collect.as_ref().and_then(|collect| collect.collector.state());
    let mut targets = Vec::new();
    if let Some(state) = state() {
        for (_, pool) in state.pools.pools() {
            for shown in state.pools.targets(pool) {
                held.grow(LISTED_BYTES)?;
                targets.push((shown.id, Arc::clone(shown.job), Arc::clone(shown.target)));
            }
        }
    }
    // Without the state, for which scrapes wait: a URL has room for hundreds of patterns.
    let mut matched = Vec::new();
    for (id, job, target) in targets {
        context.cancel.check()?;
        let labels = target.public_labels();
        let is_match = matchers.iter().all(|matcher| match labels.get(matcher.name()) {
            Some(value) => matcher.matches(value),
            None => matcher.matches_absent(),
        });
        if is_match {
            held.grow(SHOWN_BYTES)?;
            matched.push((id, job, labels));
        }
    }
    matched.sort_by(|a, b| (&a.1.job_name, &a.2).cmp(&(&b.1.job_name, &b.2)));
    let mut found = Vec::new();
    if let Some(state) = state() {
        for (id, _, labels) in matched {
            let families = state.families.of(id);
            if !families.is_empty() {
                held.grow(size_of_val(families) as u64)?;
                found.push((labels, families.to_vec()));
            }
        }
    }
    Ok((found, held))
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

/// The bytes of an item with `metadata`, and with `other_bytes` of texts beside it.
fn item_bytes(other_bytes: usize, metadata: &Metadata) -> usize {
    // Names and punctuation around the texts.
    const ITEM_BYTES: usize = 128;
    let help_bytes = wire_json::string_bytes(&metadata.help);
    ITEM_BYTES + other_bytes + help_bytes + wire_json::string_bytes(&metadata.unit)
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
    // Not on a network thread: a new list of targets may hold the state for seconds.
    let listed = tokio::task::spawn_blocking(move || listed_pools(&app)).await;
    let Ok((pools, warnings)) = listed else {
        return ApiError::from(Error::internal("listing scrape pools panicked")).into_response();
    };
    answer_with(request, &warnings, |_| Ok(json!({ "scrapePools": pools }))).await
}

/// The names of all pools, and the warnings of those whose list is not the newest.
fn listed_pools(app: &App) -> (Vec<String>, Vec<String>) {
    let mut pools: Vec<String> = app.target.iter().map(|target| target.job.clone()).collect();
    let mut warnings = Vec::new();
    if let Some(state) = app.collect.as_ref().and_then(|collect| collect.collector.state()) {
        pools.extend(state.pools.pools().map(|(name, _)| name.to_owned()));
        warnings
            .extend(state.pools.pools().flat_map(|(name, pool)| pool_warnings(&state, name, pool)));
    }
    pools.sort_unstable();
    pools.dedup();
    (pools, warnings)
}

/// `/api/v1/metadata`. Only the newest metadata of a metric is stored, so `limit_per_metric` never
/// truncates.
async fn metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, metadata_request, move |_, list, context, packing| {
        let mut body = HeldBody::success(context)?;
        body.push("{")?;
        let mut is_first = true;
        shared.metadata.visit(list.metric.as_deref(), list.limit, |name, metadata| {
            let out = body.room(item_bytes(wire_json::string_bytes(name), metadata))?;
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            wire_json::push_string(name, out);
            out.extend_from_slice(b":[{");
            push_fields(metadata, out);
            out.extend_from_slice(b"}]");
            Ok(())
        })?;
        body.push("}")?;
        Ok(body.end(&[], packing)?)
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
