//! `POST /api/v1/transaction` (docs/transactions.md): reads, inserts, updates and deletes that take
//! effect together or not at all.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{
    Error, ErrorKind, LabelLimits, Labels, Matcher, Pool, QueryContext, Reservation, Result,
    Sample, SeriesRef, TimeRange, excerpt,
};
use firndb::{CommitReport, Db, SeriesSamples, Transaction};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::access::Gate;
use crate::answer::{ApiError, ApiErrorKind, JSON, Packing, Payload, text, write_error_json};
use crate::app::{App, Ready};
use crate::http::admin::{AUDITED_COUNT_MAX, result_text};
use crate::http::auth::{Access, Caller};
use crate::http::body::{HeldBytes, Packed};
use crate::http::roles::{Methods, Routes};
use crate::http::turns::Turn;
use crate::http::write::header;
use crate::http::{Shared, body, client_of, ready};
use serde_json::json;

use crate::tally::{Protocol, Reason, Tally};
use crate::wire::json::labels_bytes;
use crate::wire::transaction::{Operation, OperationResult, Point, decode, digest, encode};

/// The route of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::ReadWrite, Methods::Post, "/api/v1/transaction", transact)
}

// Conflicts are retried here if the request contains everything that it depends on.
const TRIES_MAX: u32 = 10;
// A large transaction that waits for longer, behind others that take long, lets large writes pass.
const TURN_WAIT_MAX: Duration = Duration::from_secs(1);
// A sample in an answer: a time, a value, brackets.
const SAMPLE_TEXT_BYTES: u64 = 48;

/// The limits of a request.
struct Limits {
    labels: LabelLimits,
    /// Deletes, and updates of ranges: one request may change everything.
    may_administrate: bool,
    /// Samples that it reads.
    samples_max: u64,
}

/// The response.
struct Done {
    body: Vec<u8>,
    held: Reservation,
    report: CommitReport,
    /// Deletes, and updates of ranges.
    administrative_count: usize,
}

/// A request that was decoded: carried out or refused. Its samples are counted.
type Decided = std::result::Result<Done, TransactionRefusal>;

/// Why a decoded request was refused.
enum TransactionRefusal {
    /// A limit of queries, which has one status for all endpoints.
    OverLimit(ApiError),
    Failed(Error),
}

/// Why a transaction failed.
struct Failure {
    error: Error,
    /// The reason against the one sample that is at fault, if one is.
    of_sample: Option<Reason>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, of_sample: None }
    }
}

/// How one try ended.
enum Tried {
    Committed(CommitReport, Vec<OperationResult>),
    /// A digest no longer matches: a retry does not help.
    Changed(Error),
}

/// `POST /api/v1/transaction`.
async fn transact(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let caller = Caller::of(&request);
    if let Err(error) = caller.check_unlimited_series() {
        return write_error_json(&error);
    }
    let (parts, body) = request.into_parts();
    let encoding = header(&parts.headers, CONTENT_ENCODING);
    if !encoding.is_empty() && encoding != "identity" {
        let encoding = excerpt(encoding);
        let why = format!("Content-Encoding {encoding:?} is not supported, send plain JSON\n");
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let client = client_of(&parts.extensions);
    let limits = Limits {
        labels: app.config.label_limits(),
        may_administrate: app.config.enable_admin_api.is_on() && caller.user.roles().admin,
        samples_max: caller.user.query_samples_max(app.config.query_samples_max()),
    };
    let read = body::read_write(&app, ready, &parts, body, Packed::Plain).await;
    let done = match read {
        Ok((held, turn)) => {
            app.telemetry.written.bytes_unpacked.add(held.bytes.len() as u64);
            let audit = Audit { caller, gate: Arc::clone(&app.gate), operations: Vec::new() };
            run(&app, ready, limits, (held, turn), audit).await
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(Err(TransactionRefusal::OverLimit(error))) => error.into_response(),
        Ok(Err(TransactionRefusal::Failed(error))) => failed(&app, &error),
        Ok(Ok(Done { body, held, report, administrative_count })) => {
            if administrative_count > 0 {
                let (written, seq) = (report.written_samples, report.seq.map(|seq| seq.0));
                let count = administrative_count;
                tracing::info!(%client, count, written, seq, "committed deletes or range updates");
            }
            Payload::new(body, Packing::Plain, Some(held)).answer(StatusCode::OK, JSON)
        }
        Err(error) => {
            app.telemetry.tallies.refuse(Protocol::Transactions);
            failed(&app, &error)
        }
    }
}

fn failed(app: &App, error: &Error) -> Response<Body> {
    let response = write_error_json(error);
    if response.status().is_server_error() {
        app.telemetry.log_failure("a transaction", error);
    }
    response
}

/// The entry of a request in the audit log.
struct Audit {
    caller: Caller,
    gate: Arc<Gate>,
    /// Deletes and changes of ranges.
    operations: Vec<String>,
}

impl Audit {
    fn record<T>(&self, result: &Result<T>) {
        if !self.operations.is_empty() {
            let details = json!({ "operations": self.operations });
            self.caller.audit(&self.gate, "transaction", &result_text(result), details);
        }
    }
}

/// A decoded request and its memory.
struct DecodedRequest {
    /// The turn of a large body, until its memory is released.
    _turn: Option<Turn>,
    operations: Vec<Operation>,
    samples_max: u64,
    held: Reservation,
    audit: Audit,
}

/// Decodes and carries out a request on threads for writes. In between its regular expressions, if
/// it has any, are compiled on a thread for queries. All of it has the time, and the memory, of one
/// query.
///
/// # Errors
/// Those of a request whose samples are not counted.
async fn run(
    app: &Shared,
    ready: &Ready,
    limits: Limits,
    (body, turn): (HeldBytes, Option<Turn>),
    audit: Audit,
) -> Result<Decided> {
    let deadline = Instant::now() + app.config.query_timeout.duration();
    let (db, shared) = (Arc::clone(&ready.db), Arc::clone(app));
    let user = audit.caller.user.clone();
    let turn = Arc::new(Mutex::new(turn));
    let waiting = Arc::clone(&turn);
    let begun = ready.transact(&user, deadline, move |context| {
        let turn = turn.lock().take();
        let request = decoded(&db, &limits, &body.bytes, (audit, turn))?;
        drop(body);
        if let Err(error) = request.check_rights(&limits) {
            let sample_count = request.sample_count();
            return Ok(Ok(Err(refuse(&shared, sample_count, TransactionRefusal::Failed(error)))));
        }
        Ok(match request.operations.iter().any(Operation::needs_compiling) {
            true => Err(request),
            false => Ok(carry_out(&shared, &db, request, &context)),
        })
    });
    let mut begun = std::pin::pin!(begun);
    let begun = match tokio::time::timeout(TURN_WAIT_MAX, begun.as_mut()).await {
        Ok(begun) => begun,
        Err(_) => {
            drop(waiting.lock().take());
            begun.await
        }
    };
    let request = match begun? {
        Ok(decided) => return Ok(decided),
        Err(request) => request,
    };
    let sample_count = request.sample_count();
    let left = deadline.saturating_duration_since(Instant::now());
    let compiled = ready.query(&user, left, move |_, context| {
        let compile = |(idx, operation): (usize, &Operation)| {
            operation.compile(context).map_err(|e| e.context(format!("operation {idx}")))
        };
        let compiled = request.operations.iter().enumerate().try_for_each(compile);
        Ok(compiled.map(|()| request))
    });
    let refusal = match compiled.await {
        Ok(Ok(request)) => {
            let (db, shared) = (Arc::clone(&ready.db), Arc::clone(app));
            let work = move |context| Ok(carry_out(&shared, &db, request, &context));
            match ready.transact(&user, deadline, work).await {
                Ok(decided) => return Ok(decided),
                Err(error) => TransactionRefusal::Failed(error),
            }
        }
        Ok(Err(error)) => TransactionRefusal::of(error),
        Err(error) if matches!(error.kind, ApiErrorKind::Execution) => {
            TransactionRefusal::OverLimit(error)
        }
        Err(error) => TransactionRefusal::Failed(error.into_error()),
    };
    Ok(Err(refuse(app, sample_count, refusal)))
}

fn decoded(
    db: &Db,
    limits: &Limits,
    body: &[u8],
    (mut audit, turn): (Audit, Option<Turn>),
) -> Result<DecodedRequest> {
    let mut held = db.budget().of_request(Pool::Requests, body.len() as u64);
    let operations = decode(body, &limits.labels, &mut held)?;
    audit.operations.extend(operations.iter().filter_map(audit_text).take(AUDITED_COUNT_MAX));
    // Operations with selectors may take the time of a query, and have the memory of one.
    let turn = turn.filter(|_| operations.iter().all(|one| !one.has_selector()));
    Ok(DecodedRequest { _turn: turn, operations, samples_max: limits.samples_max, held, audit })
}

impl DecodedRequest {
    /// The samples that it contains: one for each insert, and for each update of a single sample.
    fn sample_count(&self) -> u64 {
        let is_sample =
            |one: &&Operation| matches!(one, Operation::Insert { .. } | Operation::Update { .. });
        self.operations.iter().filter(is_sample).count() as u64
    }

    fn check_rights(&self, limits: &Limits) -> Result<()> {
        let Some(idx) = self.operations.iter().position(administrates) else { return Ok(()) };
        if limits.may_administrate {
            return Ok(());
        }
        let kind = match self.operations.get(idx) {
            Some(Operation::UpdateRange { .. }) => "updates of ranges",
            _ => "deletes",
        };
        let refused = Err(Error::invalid(format!(
            "operation {idx}: {kind} need a server that runs with --enable-admin-api, and role admin"
        )));
        self.audit.record(&refused);
        refused
    }
}

/// Counts the samples where the transaction ends: a client that disconnects gets no response, but
/// its samples may be stored.
fn carry_out(app: &App, db: &Db, request: DecodedRequest, context: &QueryContext) -> Decided {
    let mut tally = Tally::of(request.sample_count());
    let DecodedRequest { _turn, operations, samples_max, held, audit } = request;
    let done = match commit(db, &operations, samples_max, held, context) {
        Ok(done) => {
            // An update of a range writes samples that the request does not contain, and one
            // sample may be written several times.
            let tally = Tally::of_stored(done.report.written_samples);
            app.telemetry.tallies.add(Protocol::Transactions, &tally);
            Ok(done)
        }
        Err(Failure { error, of_sample }) => {
            match of_sample {
                Some(reason @ Reason::SeriesLimit(_)) => tally.reject_series(reason, 1),
                Some(reason) => tally.reject(reason, 1),
                None => {}
            }
            tally.reject_rest(Reason::of_request(&error));
            app.telemetry.tally(Protocol::Transactions, &tally, &error);
            Err(error)
        }
    };
    audit.record(&done);
    done.map_err(TransactionRefusal::of)
}

/// Counts the samples of a request that was refused before it began.
fn refuse(app: &App, sample_count: u64, refusal: TransactionRefusal) -> TransactionRefusal {
    let mut tally = Tally::of(sample_count);
    match &refusal {
        TransactionRefusal::OverLimit(error) => {
            tally.reject_rest(Reason::Request);
            app.telemetry.tally(Protocol::Transactions, &tally, &error.text);
        }
        TransactionRefusal::Failed(error) => {
            tally.reject_rest(Reason::of_request(error));
            app.telemetry.tally(Protocol::Transactions, &tally, error);
        }
    }
    refusal
}

impl TransactionRefusal {
    /// Separates the limits of queries from those of bodies.
    fn of(error: Error) -> TransactionRefusal {
        match error.kind() {
            ErrorKind::TooLarge => TransactionRefusal::OverLimit(ApiError::from(error)),
            _ => TransactionRefusal::Failed(error),
        }
    }
}

fn commit(
    db: &Db,
    operations: &[Operation],
    samples_max: u64,
    mut held: Reservation,
    context: &QueryContext,
) -> Result<Done, Failure> {
    check_times(db, operations)?;
    let refs = references(db, operations)?;
    let request_bytes = held.bytes();
    let mut tries = 1;
    let (report, given) = loop {
        // For the response: after the commit it would be too late to refuse.
        let mut prepare = |given: &[OperationResult]| {
            held.cover(request_bytes + 2 * given.iter().map(result_bytes).sum::<u64>())
        };
        match try_once(db, operations, &refs, samples_max, context, &mut prepare) {
            Ok(Tried::Committed(report, given)) => break (report, given),
            Ok(Tried::Changed(error)) => return Err(error.into()),
            Err(e) if *e.kind() == ErrorKind::Conflict && tries < TRIES_MAX => tries += 1,
            Err(e) => return Err(e.into()),
        }
    };
    let body = encode(report.seq.map(|seq| seq.0), &given);
    let administrative_count = operations.iter().filter(|one| administrates(one)).count();
    Ok(Done { body, held, report, administrative_count })
}

/// Before the series of inserts are defined.
fn check_times(db: &Db, operations: &[Operation]) -> Result<(), Failure> {
    let times = db.accepted_times();
    for (idx, operation) in operations.iter().enumerate() {
        if let Operation::Insert { point, .. } = operation
            && let Some(refusal) = times.refusal(point.ts)
        {
            let why = times.explain(point.ts, refusal);
            let error = Error::invalid(format!("operation {idx}: insert refused: {why}"));
            return Err(Failure { error, of_sample: Some(Reason::of_time(refusal)) });
        }
    }
    Ok(())
}

/// Whether an operation needs `--enable-admin-api`: it removes samples, or changes all samples of a
/// selector.
fn administrates(operation: &Operation) -> bool {
    match operation {
        Operation::Delete { .. }
        | Operation::DeleteRange { .. }
        | Operation::UpdateRange { .. } => true,
        Operation::Read { .. } | Operation::Insert { .. } | Operation::Update { .. } => false,
    }
}

/// An operation that the audit log names.
fn audit_text(operation: &Operation) -> Option<String> {
    let text = match operation {
        Operation::Delete { point } => format!("delete {} at {}", point.labels, point.ts),
        Operation::DeleteRange { what } => format!("delete {:?} {:?}", what.matchers, what.range),
        Operation::UpdateRange { what, .. } => {
            format!("update {:?} {:?}", what.matchers, what.range)
        }
        Operation::Read { .. } | Operation::Insert { .. } | Operation::Update { .. } => {
            return None;
        }
    };
    Some(excerpt(&text).into_owned())
}

/// The series of each operation; those of inserts are defined if they are new.
fn references(db: &Db, operations: &[Operation]) -> Result<Vec<Option<SeriesRef>>, Failure> {
    let reference = |(idx, operation): (usize, &Operation)| {
        let found = match operation {
            Operation::Insert { point, .. } => {
                db.resolve(std::slice::from_ref(&point.labels)).remove(0).map(Some)
            }
            Operation::Update { point, .. } | Operation::Delete { point } => {
                db.find(std::slice::from_ref(&point.labels)).map(|mut found| found.remove(0))
            }
            _ => Ok(None),
        };
        found.map_err(|e| {
            let is_limit = matches!(e.kind(), ErrorKind::SeriesLimit { .. });
            let of_sample = is_limit.then(|| Reason::of(&e));
            Failure { error: e.context(format!("operation {idx}")), of_sample }
        })
    };
    operations.iter().enumerate().map(reference).collect()
}

fn try_once(
    db: &Db,
    operations: &[Operation],
    refs: &[Option<SeriesRef>],
    samples_max: u64,
    context: &QueryContext,
    prepare: &mut dyn FnMut(&[OperationResult]) -> Result<()>,
) -> Result<Tried> {
    let mut transaction = db.begin_within(context.clone())?;
    transaction.limit_samples(samples_max);
    let mut given = Vec::with_capacity(operations.len());
    for (idx, (operation, series)) in operations.iter().zip(refs).enumerate() {
        let done = operate(&mut transaction, operation, *series);
        let done = done.map_err(|e| e.context(format!("operation {idx}")))?;
        if let (Operation::Read { digest: Some(wanted), .. }, OperationResult::Samples(series)) =
            (operation, &done)
            && *wanted != digest(series)
        {
            return Ok(Tried::Changed(Error::new(
                ErrorKind::Conflict,
                format!(
                    "operation {idx}: the samples that it reads have changed: read them again and retry"
                ),
            )));
        }
        given.push(done);
    }
    prepare(&given)?;
    Ok(Tried::Committed(transaction.commit()?, given))
}

fn operate(
    transaction: &mut Transaction<'_>,
    operation: &Operation,
    series: Option<SeriesRef>,
) -> Result<OperationResult> {
    match operation {
        Operation::Read { what, .. } => {
            let mut found = transaction.read(&what.matchers, what.range)?;
            found.sort_by(|a, b| a.labels.cmp(&b.labels));
            Ok(OperationResult::Samples(found))
        }
        Operation::Insert { point, value } => {
            let series = series.ok_or_else(|| not_there(&point.labels))?;
            transaction.insert(series, point.ts, *value)?;
            Ok(OperationResult::SampleCount(1))
        }
        Operation::Update { point, change } => {
            let series = series.ok_or_else(|| not_there(&point.labels))?;
            let old = transaction.read_point(series, point.ts)?;
            transaction.update(series, point.ts, change.of(old.unwrap_or_default()))?;
            Ok(OperationResult::SampleCount(1))
        }
        Operation::UpdateRange { what, change } => {
            let changed =
                transaction.update_range(&what.matchers, what.range, |_, one| change.of(one.value));
            changed.map(OperationResult::SampleCount)
        }
        Operation::Delete { point } => match series {
            Some(series) => {
                Ok(OperationResult::SampleCount(u64::from(transaction.delete(series, point.ts)?)))
            }
            None => delete_unknown(transaction, point),
        },
        Operation::DeleteRange { what } => {
            transaction.delete_range(&what.matchers, what.range).map(OperationResult::SeriesCount)
        }
    }
}

/// Reads the missing point, so that the commit fails if another transaction has written it.
fn delete_unknown(transaction: &mut Transaction<'_>, point: &Point) -> Result<OperationResult> {
    let exactly = |(name, value): (&str, &str)| Matcher::equal(name, value);
    let matchers: Vec<Matcher> = point.labels.iter().map(exactly).collect();
    transaction.read(&matchers, TimeRange::at(point.ts))?;
    Ok(OperationResult::SampleCount(0))
}

fn not_there(labels: &Labels) -> Error {
    Error::not_found(format!("{labels} does not exist; insert a sample of it"))
}

/// The bytes of a result in memory and of its text, at most.
fn result_bytes(given: &OperationResult) -> u64 {
    let OperationResult::Samples(series) = given else { return SAMPLE_TEXT_BYTES };
    let of_one = |one: &SeriesSamples| {
        // Both labels and samples exist in memory beside the text.
        let label_bytes = one.labels.as_encoded().len() + labels_bytes(&one.labels) + 128;
        let sample_bytes = size_of::<Sample>() as u64 + SAMPLE_TEXT_BYTES;
        label_bytes as u64 + sample_bytes * one.samples.len() as u64
    };
    series.iter().map(of_one).sum()
}
