//! Rules, alerts and the Alertmanagers that receive them.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use firn_model::{CancelToken, Error, Matcher, QueryContext, excerpt};
use firn_rules::group::{Alert, AlertState, Rule};
use ring::digest::{SHA256, digest};
use serde_json::json;

use crate::answer::ApiError;
use crate::held_body::HeldBody;
use crate::http::Shared;
use crate::http::auth::Access;
use crate::http::computed::computed;
use crate::http::params::{Params, parse_bool};
use crate::http::roles::{Methods, Routes};
use crate::http::status::answer_with;
use crate::rules::{LastEvaluation, RuleOutcome, ShownGroup};
use crate::wire::json;
use crate::wire::number::rfc3339;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::ReadServer, Methods::Get, "/api/v1/rules", rules)
        .route(Access::ReadServer, Methods::Get, "/api/v1/alerts", alerts)
        .route(Access::ReadServer, Methods::Get, "/api/v1/alertmanagers", alertmanagers)
}

/// Go's text for an unset time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The selection of `/api/v1/rules`.
struct RulesRequest {
    /// `None` for both kinds.
    is_alerting: Option<bool>,
    names: Vec<String>,
    groups: Vec<String>,
    files: Vec<String>,
    /// A rule is listed if all matchers of one of them match its labels.
    selectors: Vec<Vec<Matcher>>,
    has_alerts: bool,
    /// The number of groups of a page, and the token of its first group.
    page: Option<(usize, Option<String>)>,
}

/// `/api/v1/rules`.
async fn rules(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    computed(app, request, rules_request, move |_, asked, context, packing| {
        let groups = shared.rules.groups();
        let mut body = HeldBody::success(context)?;
        body.push(r#"{"groups":["#)?;
        let next_token = push_groups(&groups, &asked, &context.cancel, &mut body)?;
        body.push("]")?;
        if let Some(token) = next_token {
            body.push(&format!(r#","groupNextToken":"{token}""#))?;
        }
        body.push("}")?;
        Ok(body.end(&[], packing)?)
    })
    .await
}

/// Appends a page of groups. Returns the token of the next page.
fn push_groups(
    groups: &[std::sync::Arc<ShownGroup>],
    asked: &RulesRequest,
    cancel: &CancelToken,
    body: &mut HeldBody,
) -> Result<Option<String>, ApiError> {
    let (limit, token) = match &asked.page {
        Some((limit, token)) => (*limit, token.as_deref()),
        None => (usize::MAX, None),
    };
    let mut is_before = token.is_some();
    let mut count = 0;
    for group in groups {
        if is_before && token != Some(&token_of(group)) {
            continue;
        }
        is_before = false;
        let latest = group.latest();
        let mut rules = Vec::new();
        for (idx, rule) in group.rules.iter().enumerate() {
            // A URL has room for thousands of matchers.
            cancel.check()?;
            if asked.selects(group, rule) {
                rules.push(idx);
            }
        }
        if rules.is_empty() {
            continue;
        }
        if count == limit {
            return Ok(Some(token_of(group)));
        }
        body.push(if count > 0 { "," } else { "" })?;
        count += 1;
        push_group(group, &latest, &rules, asked.has_alerts, body)?;
    }
    match token.filter(|_| is_before) {
        None => Ok(None),
        Some(token) => {
            let token = excerpt(token);
            let why = format!("invalid group_next_token {token:?}. were rule groups changed?");
            Err(ApiError::parameter("group_next_token", why))
        }
    }
}

/// The token of the page that begins with `group`.
fn token_of(group: &ShownGroup) -> String {
    let hash = digest(&SHA256, format!("{};{}", group.file, group.name).as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn push_group(
    group: &ShownGroup,
    latest: &LastEvaluation,
    rules: &[usize],
    has_alerts: bool,
    body: &mut HeldBody,
) -> Result<(), ApiError> {
    let (name, file) = (json!(group.name), json!(group.file));
    body.push(&format!(r#"{{"name":{name},"file":{file},"rules":["#))?;
    for (position, &idx) in rules.iter().enumerate() {
        body.push(if position > 0 { "," } else { "" })?;
        if let Some(rule) = group.rules.get(idx) {
            push_rule(rule, latest, latest.rules.get(idx), has_alerts, body)?;
        }
    }
    let (interval, took) = (group.interval_ms as f64 / 1e3, latest.took.as_secs_f64());
    let (limit, evaluated) = (group.limit, last_evaluation(latest));
    let interval = json!(whole(interval));
    body.push(&format!(
        r#"],"interval":{interval},"limit":{limit},"evaluationTime":{took},"lastEvaluation":"{evaluated}"}}"#
    ))?;
    Ok(())
}

fn push_rule(
    rule: &Rule,
    latest: &LastEvaluation,
    outcome: Option<&RuleOutcome>,
    has_alerts: bool,
    body: &mut HeldBody,
) -> Result<(), ApiError> {
    body.push("{")?;
    if let Rule::Alerting(alert) = rule {
        let state = outcome.map_or("unknown", |outcome| outcome.state.text());
        let seconds = |ms: i64| whole(ms as f64 / 1e3);
        let (hold, keep) = (seconds(alert.hold_ms), seconds(alert.keep_firing_ms));
        let annotations = json!(alert.annotations);
        body.push(&format!(
            r#""state":"{state}","duration":{hold},"keepFiringFor":{keep},"annotations":{annotations},"alerts":"#
        ))?;
        match has_alerts {
            true => push_alerts(outcome.into_iter().flat_map(|outcome| &outcome.alerts), body)?,
            false => body.push("null")?,
        }
        body.push(",")?;
    }
    let kind = if is_alerting(rule) { "alerting" } else { "recording" };
    let health = outcome.map_or_else(|| "unknown".to_owned(), |rule| rule.health.to_string());
    let (name, query, labels) =
        (json!(rule.name()), json!(rule.expr().to_string()), json!(rule.labels()));
    let took = outcome.map_or(0.0, |outcome| outcome.took.as_secs_f64());
    let error = outcome.and_then(|outcome| outcome.last_error.as_deref());
    let error = error.map_or(String::new(), |error| format!(r#""lastError":{},"#, json!(error)));
    let evaluated = last_evaluation(latest);
    body.push(&format!(
        r#""name":{name},"query":{query},"labels":{labels},"health":"{health}",{error}"evaluationTime":{took},"lastEvaluation":"{evaluated}","type":"{kind}"}}"#
    ))?;
    Ok(())
}

fn is_alerting(rule: &Rule) -> bool {
    matches!(rule, Rule::Alerting(_))
}

fn last_evaluation(latest: &LastEvaluation) -> String {
    latest.began.map_or_else(|| NEVER.to_owned(), rfc3339)
}

/// A whole number without a fraction, as Go writes a float.
fn whole(seconds: f64) -> serde_json::Value {
    if seconds.fract() == 0.0 && seconds.abs() < 1e15 {
        return json!(seconds as i64);
    }
    json!(seconds)
}

/// `/api/v1/alerts`.
async fn alerts(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let shared = Shared::clone(&app);
    let no_parameters = |_: &Params, _: &QueryContext| Ok(());
    computed(app, request, no_parameters, move |_, (), context, packing| {
        let groups = shared.rules.groups();
        let latest: Vec<_> = groups.iter().map(|group| group.latest()).collect();
        let rules = latest.iter().flat_map(|latest| &latest.rules);
        let mut body = HeldBody::success(context)?;
        body.push(r#"{"alerts":"#)?;
        push_alerts(rules.flat_map(|rule| &rule.alerts), &mut body)?;
        body.push("}")?;
        Ok(body.end(&[], packing)?)
    })
    .await
}

fn push_alerts<'a>(
    alerts: impl Iterator<Item = &'a Alert>,
    body: &mut HeldBody,
) -> Result<(), ApiError> {
    body.push_array(alerts, |alert| alert_bytes(alert), push_alert)?;
    Ok(())
}

/// The JSON of an alert takes at most this many bytes.
fn alert_bytes(alert: &Alert) -> usize {
    // Keys, times, state and value.
    const FIXED_BYTES: usize = 256;
    let annotations = alert.annotations.iter();
    let texts =
        annotations.map(|(name, text)| json::string_bytes(name) + json::string_bytes(text) + 2);
    FIXED_BYTES + json::labels_bytes(&alert.labels) + texts.sum::<usize>()
}

fn push_alert(alert: &Alert, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"labels":"#);
    json::push_labels(&alert.labels, out);
    out.extend_from_slice(br#","annotations":"#);
    let annotations = alert.annotations.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    json::push_object(annotations, out, json::push_string);
    out.extend_from_slice(br#","state":""#);
    out.extend_from_slice(alert.state.text().as_bytes());
    out.extend_from_slice(br#"","activeAt":""#);
    out.extend_from_slice(rfc3339(alert.active_at).as_bytes());
    if let Some(since) = alert.keep_firing_since.filter(|_| alert.state == AlertState::Firing) {
        out.extend_from_slice(br#"","keepFiringSince":""#);
        out.extend_from_slice(rfc3339(since).as_bytes());
    }
    out.extend_from_slice(br#"","value":""#);
    out.extend_from_slice(exponent_text(alert.value).as_bytes());
    out.extend_from_slice(br#""}"#);
}

/// As Go's `FormatFloat(v, 'e', -1, 64)`: `1e+00`, `1.5e-07`.
fn exponent_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{value:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// `/api/v1/alertmanagers`.
async fn alertmanagers(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    // Not on a network thread: a new list of Alertmanagers may hold their lock for a second.
    let listed = tokio::task::spawn_blocking(move || {
        let notifier = app.rules.notifier();
        (notifier.discovery_failures(), notifier.urls())
    });
    let Ok((failures, (active, dropped))) = listed.await else {
        return ApiError::from(Error::internal("listing Alertmanagers panicked")).into_response();
    };
    answer_with(request, &failures, |_| {
        let list = |urls: Vec<String>| -> Vec<_> {
            urls.into_iter().map(|url| json!({ "url": url })).collect()
        };
        Ok(json!({ "activeAlertmanagers": list(active), "droppedAlertmanagers": list(dropped) }))
    })
    .await
}

impl RulesRequest {
    fn selects(&self, group: &ShownGroup, rule: &Rule) -> bool {
        let has = |names: &[String], name: &str| {
            names.is_empty() || names.iter().any(|wanted| wanted == name)
        };
        self.is_alerting.is_none_or(|wanted| wanted == is_alerting(rule))
            && has(&self.names, rule.name())
            && has(&self.groups, &group.name)
            && has(&self.files, &group.file)
            && self.matches(rule.labels())
    }

    /// Whether the labels of a rule match as they are written: templates are not expanded.
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let is_match = |matcher: &Matcher| {
            let value = labels.get(matcher.name());
            value.map_or_else(|| matcher.matches_absent(), |value| matcher.matches(value))
        };
        self.selectors.is_empty()
            || self.selectors.iter().any(|matchers| matchers.iter().all(is_match))
    }
}

fn rules_request(params: &Params, context: &QueryContext) -> Result<RulesRequest, ApiError> {
    let kind = params.get("type").unwrap_or_default().to_lowercase();
    let is_alerting = match kind.as_str() {
        "" => None,
        "alert" => Some(true),
        "record" => Some(false),
        _ => {
            let why = format!("not supported value {:?}", excerpt(&kind));
            return Err(ApiError::parameter("type", why));
        }
    };
    let selectors = params.selectors(context)?;
    let excludes_alerts = params.get("exclude_alerts").map(str::to_lowercase);
    let excludes_alerts = match excludes_alerts.as_deref().map(parse_bool) {
        None => false,
        Some(Some(excludes)) => excludes,
        Some(None) => {
            let why = "error converting exclude_alerts: it is neither true nor false";
            return Err(ApiError::parameter("exclude_alerts", why));
        }
    };
    let all = |name: &str| params.all(name).map(str::to_owned).collect();
    Ok(RulesRequest {
        is_alerting,
        names: all("rule_name[]"),
        groups: all("rule_group[]"),
        files: all("file[]"),
        selectors,
        has_alerts: !excludes_alerts,
        page: page(params)?,
    })
}

fn page(params: &Params) -> Result<Option<(usize, Option<String>)>, ApiError> {
    let token = params.get("group_next_token").map(str::to_owned);
    let Some(limit) = params.get("group_limit") else {
        return match token {
            None => Ok(None),
            Some(_) => {
                let why = "group_limit needs to be present in order to paginate over the groups";
                Err(ApiError::parameter("group_next_token", why))
            }
        };
    };
    let why = match limit.parse::<i32>().map(usize::try_from) {
        Ok(Ok(limit)) if limit > 0 => return Ok(Some((limit, token))),
        Ok(_) => "group_limit needs to be greater than 0",
        Err(_) => "group_limit needs to be a valid number",
    };
    Err(ApiError::parameter("group_limit", why))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use firn_collect::config::{Config, Files};
    use firn_model::Budget;
    use firndb::QueryOptions;

    use super::*;
    use crate::rules::{RuleManager, RuleOptions};

    struct OneFile;

    impl Files for OneFile {
        fn read(&self, _: &Path) -> io::Result<String> {
            Ok("groups: [{name: g, rules: [{record: r, expr: vector(1)}]}]".to_owned())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Ok(vec!["a.yml".to_owned()])
        }
    }

    /// Before, a request compared thousands of matchers with each rule, and its time limit ended
    /// nothing.
    #[test]
    fn a_search_of_rules_ends_with_its_time() {
        let manager = RuleManager::new(RuleOptions {
            thread_count: 1,
            budget: Budget::unlimited(),
            memory_bytes: 1 << 20,
            query: QueryOptions::default(),
            timeout: Duration::from_secs(1),
            outage_ms: 0,
            grace_ms: 0,
            resend_ms: 0,
            queue_len_max: 1,
            external_labels: BTreeMap::new(),
            on_idle: || (),
            clock: std::sync::Arc::new(|| 0),
        });
        let config = Config::parse("rule_files: [/r/*.yml]", &|_| None).unwrap().config;
        manager.apply(manager.check(&config, &OneFile).unwrap());
        let context = QueryContext::unbounded();
        let text = b"match[]={a=\"b\"}";
        let asked = rules_request(&Params::of_form(text).unwrap_or_default(), &context);
        let asked = asked.ok().unwrap();
        let mut body = HeldBody::success(&context).unwrap();
        let mut list = || push_groups(&manager.groups(), &asked, &context.cancel, &mut body);
        assert!(matches!(list(), Ok(None)));
        context.cancel.time_out();
        assert!(list().is_err());
    }

    #[test]
    fn values_have_an_exponent_of_two_digits() {
        for (value, want) in [
            (1.0, "1e+00"),
            (0.0, "0e+00"),
            (-12.5, "-1.25e+01"),
            (1.5e-7, "1.5e-07"),
            (2e123, "2e+123"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(exponent_text(value), want);
        }
    }
}
