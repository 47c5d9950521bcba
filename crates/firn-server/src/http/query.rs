//! `query` and `query_range`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{Budget, CancelToken, Pool, QueryContext, TimeRange, Timestamp};
use firn_promql::{Expr, QueryOutput, ValueType};

use crate::access::account::User;
use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::app::{App, QueryDesk, Ready};
use crate::clock::{clock_ms, monotonic_ns};
use crate::held_body::HeldBody;
use crate::http::auth::{Access, Caller};
use crate::http::params::Params;
use crate::http::query_log::QuerySender;
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, unready};
use crate::wire::json;
use crate::wire::query_stats::{StatsLevel, Timings};
use firndb::{Db, History, QueryOptions, QueryReply, QueryTime, Snapshot, TextTicket};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Read, Methods::GetPost, "/api/v1/query", instant).route(
        Access::Read,
        Methods::GetPost,
        "/api/v1/query_range",
        range,
    )
}

/// The data that a query or a list is answered from.
pub(super) enum QuerySource<'a> {
    Open(&'a Ready),
    /// While the log is replayed.
    Opening(Arc<QueryDesk>, Arc<History>),
}

/// A query whose parameters are checked, except for its text.
struct QueryRequest {
    time: QueryTime,
    options: QueryOptions,
    timeout: Duration,
    limit: usize,
    stats: StatsLevel,
    packing: Packing,
}

// Points per series, as in Prometheus.
const POINTS_MAX: i128 = 11_000;

/// `/api/v1/query`.
pub(crate) async fn instant(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |app, now_ms, params, packing| {
        // In Prometheus' order, so that the same one of several mistakes is reported.
        let limit = params.limit()?;
        let ts = params.time("time")?.unwrap_or(now_ms);
        let timeout = timeout(app, params)?;
        let stats = stats_level(params);
        let options = options(app, params, &stats)?;
        let time = QueryTime::Instant(ts);
        Ok(QueryRequest { time, options, timeout, limit, stats, packing })
    })
    .await
}

/// `/api/v1/query_range`.
pub(crate) async fn range(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |app, _, params, packing| {
        let limit = params.limit()?;
        let start = params.required_time("start")?;
        let end = params.required_time("end")?;
        if end < start {
            let why = "end timestamp must not be before start time";
            return Err(ApiError::parameter("end", why));
        }
        let step_ns = match params.duration_ns("step")? {
            Some(step_ns) => step_ns,
            None => {
                return Err(ApiError::parameter("step", "cannot parse \"\" to a valid duration"));
            }
        };
        // Evaluation times are milliseconds: a shorter step would never move.
        if step_ns < 1_000_000 {
            return Err(ApiError::parameter(
                "step",
                "zero or negative query resolution step widths are not accepted. Try a positive \
                 integer",
            ));
        }
        if (i128::from(end) - i128::from(start)) * 1_000_000 / i128::from(step_ns) > POINTS_MAX {
            return Err(ApiError::bad_data(
                "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the \
                 query resolution (?step=XX)",
            ));
        }
        let timeout = timeout(app, params)?;
        let stats = stats_level(params);
        let options = options(app, params, &stats)?;
        let time = QueryTime::Range { start, end, step_ms: step_ns / 1_000_000 };
        Ok(QueryRequest { time, options, timeout, limit, stats, packing })
    })
    .await
}

async fn answer(
    app: Shared,
    request: Request<Body>,
    check: impl FnOnce(&App, Timestamp, &Params, Packing) -> Result<QueryRequest, ApiError>,
) -> Response<Body> {
    let Some(source) = QuerySource::of(&app) else { return unready(&app) };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let sender = QuerySender::of(&request);
    let asked = match Params::read(request, source.budget()).await {
        Ok(params) => check(&app, source.now_ms(), &params, packing).map(|asked| (params, asked)),
        Err(error) => Err(error),
    };
    let (params, mut asked) = match asked {
        Ok(asked) => asked,
        Err(error) => return error.into_response(),
    };
    asked.options.samples_max = user.query_samples_max(asked.options.samples_max);
    if let Some(payload) = recalled(&app, &source, &user, &params, &asked) {
        return payload.answer(StatusCode::OK, JSON);
    }
    let shared = Shared::clone(&app);
    let (desk, context) = source.begin(&user);
    let (desk, evaluator) = (Arc::clone(desk), source.evaluator());
    let threads = Arc::clone(&desk);
    let answered = desk.run(&user, asked.timeout, context, move |context| {
        let expr = expr(&params, asked.time, context)?;
        drop(params);
        let start_ns = monotonic_ns();
        let reply = evaluator.evaluate(&expr, &asked, context);
        let Some(reply) = reply.map_err(ApiError::from).transpose() else { return Ok(None) };
        let timings = Timings { eval_ns: monotonic_ns().saturating_sub(start_ns) };
        let times = [timings.eval_ns, context.stats.queue_ns.get()].map(Duration::from_nanos);
        let [evaluated, waited] = times;
        threads.durations.add(evaluated, waited);
        shared.query_log.push(|| {
            let samples = reply.as_ref().map(|reply| match reply {
                QueryReply::Text(_) => (0, 0),
                QueryReply::Output(output, _) => (output.samples_read, output.samples_peak),
            });
            let read = samples.as_ref().map_or(0, |both| both.0);
            let peak = samples.map(|both| both.1);
            sender.line(expr.text(), asked.time, (read, peak), (timings, context))
        });
        let (output, ticket) = match reply? {
            QueryReply::Text(text) => {
                let held = context.budget.reserve(Pool::Query, text.len() as u64)?;
                return Ok(Some(Payload::of_kept_json(text, asked.packing, held)));
            }
            QueryReply::Output(output, ticket) => (output, ticket),
        };
        shared.telemetry.samples_read.add(output.samples_read);
        let payload = encode(&output, &asked, timings, context)?;
        if let (Some(ticket), Some(bytes)) = (ticket, payload.bytes()) {
            evaluator.keep_text(ticket, bytes);
        }
        Ok(Some(payload))
    });
    match answered.await {
        Ok(Some(payload)) => payload.answer(StatusCode::OK, JSON),
        Ok(None) => unready(&app),
        Err(error) => error.into_response(),
    }
}

/// The response of an equal query, if it was kept: a lookup in memory, without another thread.
fn recalled(
    app: &App,
    source: &QuerySource<'_>,
    user: &User,
    params: &Params,
    asked: &QueryRequest,
) -> Option<Payload> {
    let QuerySource::Open(ready) = source else { return None };
    let form = asked.form()?;
    let is_plain =
        user.scope().is_empty() && !app.query_log.is_on() && asked.timeout.as_millis() > 0;
    let _counted = is_plain.then(|| user.begin_query())??;
    let start_ns = monotonic_ns();
    let query = params.get("query")?;
    let text = ready.db.recall(query, asked.time, &asked.options, form)?;
    // Without memory the query is refused like any other.
    let context = ready.query_context(user, CancelToken::new());
    let held = context.budget.reserve(Pool::Query, text.len() as u64).ok()?;
    let took = Duration::from_nanos(monotonic_ns().saturating_sub(start_ns));
    ready.desk().durations.add(took, Duration::ZERO);
    Some(Payload::of_kept_json(text, asked.packing, held))
}

/// [`QuerySource`] on a query thread.
pub(super) enum Evaluator {
    Open(Arc<Db>),
    Opening(Arc<History>),
}

impl QuerySource<'_> {
    /// `None` before the log was read once, and while the server stops.
    pub(super) fn of(app: &App) -> Option<QuerySource<'_>> {
        if let Some(ready) = app.ready() {
            return Some(QuerySource::Open(ready));
        }
        app.history().map(|(desk, history)| QuerySource::Opening(desk, history))
    }

    pub(super) fn budget(&self) -> &Budget {
        match self {
            QuerySource::Open(ready) => ready.db.budget(),
            QuerySource::Opening(_, history) => history.budget(),
        }
    }

    fn now_ms(&self) -> Timestamp {
        match self {
            QuerySource::Open(ready) => ready.db.now_ms(),
            QuerySource::Opening(..) => clock_ms(),
        }
    }

    /// The query threads, and the context of a query of `user`.
    pub(super) fn begin(&self, user: &User) -> (&Arc<QueryDesk>, QueryContext) {
        let cancel = CancelToken::new();
        match self {
            QuerySource::Open(ready) => (ready.desk(), ready.query_context(user, cancel)),
            QuerySource::Opening(desk, history) => {
                (desk, desk.query_context(user, cancel, history.budget()))
            }
        }
    }

    pub(super) fn evaluator(&self) -> Evaluator {
        match self {
            QuerySource::Open(ready) => Evaluator::Open(Arc::clone(&ready.db)),
            QuerySource::Opening(_, history) => Evaluator::Opening(Arc::clone(history)),
        }
    }
}

impl Evaluator {
    /// `None` if the result depends on rows of a log that is being replayed.
    fn evaluate(
        &self,
        expr: &Expr,
        asked: &QueryRequest,
        context: &QueryContext,
    ) -> firn_model::Result<Option<QueryReply>> {
        let (time, options) = (asked.time, &asked.options);
        match self {
            Evaluator::Open(db) => {
                db.evaluate_or_recall(expr, time, options, context, asked.form()).map(Some)
            }
            Evaluator::Opening(history) => {
                let output = firndb::evaluate_history(history, expr, time, options, context)?;
                Ok(output.map(|output| QueryReply::Output(Box::new(output), None)))
            }
        }
    }

    /// A view with all samples of `range`; `None` if some are in a log that is being replayed.
    pub(super) fn view(&self, range: TimeRange) -> Option<Snapshot> {
        match self {
            Evaluator::Open(db) => Some(db.snapshot()),
            Evaluator::Opening(history) => history.tables(range).cloned(),
        }
    }

    fn keep_text(&self, ticket: TextTicket, text: &[u8]) {
        if let Evaluator::Open(db) = self {
            db.keep_text(ticket, text);
        }
    }
}

impl QueryRequest {
    /// The form of the response; `None` if it depends on more than the result and the packing.
    fn form(&self) -> Option<u8> {
        let is_plain = self.limit == 0 && self.stats == StatsLevel::None;
        is_plain.then_some(self.packing as u8)
    }
}

/// The query, the last parameter that Prometheus checks.
fn expr(params: &Params, time: QueryTime, context: &QueryContext) -> Result<Expr, ApiError> {
    let expr = params.expr(context)?;
    let is_range = matches!(time, QueryTime::Range { .. });
    if is_range && !matches!(expr.value_type(), ValueType::Scalar | ValueType::Vector) {
        let found = expr.value_type().documented();
        let why = format!(
            "invalid expression type \"{found}\" for range query, must be Scalar or instant Vector"
        );
        return Err(ApiError::parameter("query", why));
    }
    Ok(expr)
}

/// Writes and packs the answer, on the query's thread and on its budget.
fn encode(
    output: &QueryOutput,
    asked: &QueryRequest,
    timings: Timings,
    context: &QueryContext,
) -> Result<Payload, ApiError> {
    let mut body = HeldBody::new(context);
    let out = body.room(json::query_answer_bytes(output) + asked.stats.bytes_max(output))?;
    let push_stats =
        |out: &mut Vec<u8>| asked.stats.push(output, asked.time, timings, context, out);
    json::push_query_answer(output, asked.limit, asked.stats.warning(), push_stats, out);
    Ok(body.into_payload(asked.packing))
}

fn timeout(app: &App, params: &Params) -> Result<Duration, ApiError> {
    let most = app.config.query_timeout.duration();
    let wanted = params.duration_ns("timeout")?;
    Ok(wanted.map_or(most, |ns| most.min(Duration::from_nanos(ns.max(0).unsigned_abs()))))
}

fn options(app: &App, params: &Params, stats: &StatsLevel) -> Result<QueryOptions, ApiError> {
    let lookback_ns = params.duration_ns_or_why("lookback_delta").map_err(|why| {
        ApiError::bad_data(format!("error parsing lookback delta duration: {why}"))
    })?;
    let lookback_ms = lookback_ns
        .map(|ns| ns / 1_000_000)
        .filter(|&ms| ms > 0)
        .unwrap_or(app.config.lookback.ms());
    Ok(QueryOptions {
        lookback_ms,
        samples_max: app.config.query_samples_max(),
        counts_samples: *stats != StatsLevel::None,
        labels_max: app.config.label_limits(),
        ..QueryOptions::default()
    })
}

fn stats_level(params: &Params) -> StatsLevel {
    StatsLevel::named(params.get("stats").unwrap_or_default())
}
