//! `/api/v1/targets/relabel_steps`: the labels after each rule of a job.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use firn_collect::relabel::{RuleConfig, Rules};
use firn_model::{Labels, Pool, QueryContext, Reservation};
use firn_promql::go_quote;

use crate::answer::ApiError;
use crate::app::App;
use crate::held_body::HeldBody;
use crate::http::Shared;
use crate::http::computed::computed;
use crate::http::params::Params;
use crate::wire::json;
use crate::wire::relabel::rule_json;

/// The parameters.
struct StepsRequest {
    pool: String,
    labels: Labels,
    /// The memory of `labels` and of a label set that rules make of them.
    _held: Reservation,
}

// Memory of a label while the parameter is read, per byte of its shortest text.
const BYTES_PER_BYTE: u64 = 32;

/// `/api/v1/targets/relabel_steps`.
pub(crate) async fn relabel_steps(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, steps_request, move |_, asked, context, packing| {
        let rules = rules_of(&shared, &asked.pool).ok_or_else(|| {
            let pool = go_quote(asked.pool.as_bytes());
            ApiError::bad_data(format!(
                "error retrieving scrape config: scrape pool {pool} not found"
            ))
        })?;
        Ok(steps(&rules, &asked.labels, context)?.end(&[], packing)?)
    })
    .await
}

fn steps_request(params: &Params, context: &QueryContext) -> Result<StepsRequest, ApiError> {
    let required = |name: &str| {
        let text = params.get(name);
        text.ok_or_else(|| ApiError::bad_data(format!("no {name} parameter provided")))
    };
    let pool = required("scrapePool")?.to_owned();
    let text = required("labels")?;
    let budget = &context.budget;
    let held = budget.reserve(Pool::Query, BYTES_PER_BYTE * text.len() as u64);
    let held = held.map_err(|e| budget.error_of_text(e, "the parameter labels", text.len()))?;
    let wrong = |error: &dyn std::fmt::Display| {
        ApiError::bad_data(format!("error parsing labels: {error}"))
    };
    let pairs: BTreeMap<String, String> = serde_json::from_str(text).map_err(|e| wrong(&e))?;
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let labels = Labels::from_pairs(pairs).map_err(|e| wrong(&e))?;
    Ok(StepsRequest { pool, labels, _held: held })
}

/// The rules of a pool. The server's own target has none.
fn rules_of(app: &App, name: &str) -> Option<Rules> {
    if let Some(state) = app.collect.as_ref().and_then(|collect| collect.collector.state())
        && let Some((_, pool)) = state.pools.pools().find(|(pool, _)| *pool == name)
    {
        return Some(pool.job().relabel_configs.rules().clone());
    }
    app.target.as_ref().filter(|target| target.job == name).map(|_| Rules::default())
}

fn steps(rules: &Rules, labels: &Labels, context: &QueryContext) -> firn_model::Result<HeldBody> {
    let mut body = HeldBody::success(context)?;
    body.push(r#"{"steps":["#)?;
    let mut is_first = true;
    rules.for_each_step(labels, |rule: &RuleConfig, labels: Option<&Labels>| {
        context.cancel.check()?;
        body.push(if std::mem::take(&mut is_first) { r#"{"rule":"# } else { r#",{"rule":"# })?;
        body.push(&rule_json(rule).to_string())?;
        body.push(r#","output":"#)?;
        match labels {
            Some(labels) => {
                json::push_labels(labels, body.room(json::labels_bytes(labels))?);
                body.push(r#","keep":true}"#)
            }
            None => body.push(r#"{},"keep":false}"#),
        }
    })?;
    body.push("]}")?;
    Ok(body)
}
