//! `firn query`: queries to a server, with the arguments, the output and the exit codes of
//! promtool.

mod analyze;
mod api;
mod result;

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use firn_server::wire::number::parse_time;

use crate::client::{ClientFile, ExtraHeader, ServerAddress};
use crate::go_text::{GoDuration, go_float, push_json_text};
use crate::output;
use analyze::Analyze;
use result::{LabelMap, labels_text, push_labels, push_list};

/// `firn query`.
#[derive(Debug, Args)]
pub(crate) struct Query {
    /// Form of the output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "promql", global = true)]
    format: OutputFormat,

    #[command(flatten)]
    client: ClientFile,

    #[command(subcommand)]
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Promql,
    Json,
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Run an instant query
    Instant(InstantQuery),
    /// Run a range query
    Range(RangeQuery),
    /// List series
    Series(SeriesQuery),
    /// List values of a label
    Labels(LabelsQuery),
    /// Print statistics of the buckets of histograms
    Analyze(Analyze),
}

#[derive(Debug, Args)]
struct InstantQuery {
    /// The address of the server, such as http://localhost:9420
    server: ServerAddress,

    /// The query
    expr: String,

    /// Time of the query, as RFC 3339 or in seconds since 1970; by default now
    #[arg(long, allow_negative_numbers = true)]
    time: Option<String>,

    /// A header of the request; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<ExtraHeader>,
}

#[derive(Debug, Args)]
struct RangeQuery {
    /// The address of the server, such as http://localhost:9420
    server: ServerAddress,

    /// The query
    expr: String,

    /// A header of the request; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<ExtraHeader>,

    /// First time, as RFC 3339 or in seconds since 1970; by default 5 minutes before the last one
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    start: Option<String>,

    /// Last time; by default now
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    end: Option<String>,

    /// Step such as 15s; by default a 250th of the range, at least 1s
    #[arg(long, value_name = "DURATION")]
    step: Option<GoDuration>,
}

/// The times of lists of series and labels.
#[derive(Debug, Args)]
struct ListTimes {
    /// First time, as RFC 3339 or in seconds since 1970
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    start: Option<String>,

    /// Last time
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    end: Option<String>,
}

#[derive(Debug, Args)]
struct SeriesQuery {
    /// The address of the server, such as http://localhost:9420
    server: ServerAddress,

    /// Selector of series; may be repeated
    #[arg(long = "match", value_name = "SELECTOR", required = true)]
    selectors: Vec<String>,

    #[command(flatten)]
    times: ListTimes,
}

#[derive(Debug, Args)]
struct LabelsQuery {
    /// The address of the server, such as http://localhost:9420
    server: ServerAddress,

    /// The name of the label
    name: String,

    /// Selector of series; may be repeated
    #[arg(long = "match", value_name = "SELECTOR")]
    selectors: Vec<String>,

    #[command(flatten)]
    times: ListTimes,
}

// 9,999 hours.
const LIST_RANGE_MS: i64 = 9_999 * 3_600_000;
const RANGE_MS: i64 = 300_000;
const STEP_COUNT: i64 = 250;

/// Sends the request and prints its result.
pub(crate) fn run(query: &Query) -> ExitCode {
    let printed = match &query.request {
        Request::Instant(request) => instant(query, request),
        Request::Range(request) => range(query, request),
        Request::Series(request) => series(query, request),
        Request::Labels(request) => labels(query, request),
        // Its output is printed while it runs.
        Request::Analyze(request) => analyze::run(request, &query.client).map(|()| String::new()),
    };
    let printed = printed.and_then(|text| output::print(&text).map_err(|e| e.to_string()));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report_line(&error);
            ExitCode::FAILURE
        }
    }
}

fn instant(query: &Query, request: &InstantQuery) -> Result<String, String> {
    let mut server = query.client.client(&request.server, &request.header)?;
    let time = time_or(request.time.as_deref(), "evaluation", now_ms())?;
    let params = vec![("query", request.expr.clone()), ("time", seconds(time))];
    let result = api::query(&mut server, "/api/v1/query", &params).map_err(query_error)?;
    Ok(query.format.of(result))
}

fn range(query: &Query, request: &RangeQuery) -> Result<String, String> {
    let mut server = query.client.client(&request.server, &request.header)?;
    let end = time_or(request.end.as_deref(), "end", now_ms())?;
    let start = time_or(request.start.as_deref(), "start", end.saturating_sub(RANGE_MS))?;
    if start >= end {
        return Err("start time is not before end time".to_owned());
    }
    let step = match request.step {
        Some(GoDuration(ns)) if ns != 0 => go_float(ns as f64 / 1e9),
        _ => (end.saturating_sub(start) / (STEP_COUNT * 1_000)).max(1).to_string(),
    };
    let params = vec![
        ("query", request.expr.clone()),
        ("start", seconds(start)),
        ("end", seconds(end)),
        ("step", step),
    ];
    let result = api::query(&mut server, "/api/v1/query_range", &params).map_err(query_error)?;
    Ok(query.format.of(result))
}

fn series(query: &Query, request: &SeriesQuery) -> Result<String, String> {
    let mut server = query.client.client(&request.server, &[])?;
    let params = request.times.params(&request.selectors)?;
    let answer = api::post_or_get(&mut server, "/api/v1/series", &params).map_err(query_error)?;
    let all: Vec<LabelMap> = parsed(&answer.data)?;
    Ok(match query.format {
        OutputFormat::Promql => all.iter().map(|labels| labels_text(labels) + "\n").collect(),
        OutputFormat::Json => list(&all, push_labels),
    })
}

fn labels(query: &Query, request: &LabelsQuery) -> Result<String, String> {
    let mut server = query.client.client(&request.server, &[])?;
    let params = request.times.params(&request.selectors)?;
    let name: String = form_urlencoded::byte_serialize(request.name.as_bytes()).collect();
    // A plus is itself in a path.
    let path = format!("/api/v1/label/{}/values", name.replace('+', "%20"));
    let answer = api::get(&mut server, &path, &params).map_err(query_error)?;
    for warning in &answer.warnings {
        output::report_line(&format!("query warning: {warning}"));
    }
    let all: Vec<String> = parsed(&answer.data)?;
    Ok(match query.format {
        OutputFormat::Promql => {
            let line = |value: &String| firn_server::one_line(value).into_owned() + "\n";
            all.iter().map(line).collect()
        }
        OutputFormat::Json => list(&all, |text, out| push_json_text(text, out)),
    })
}

impl OutputFormat {
    fn of(self, result: result::QueryResult) -> String {
        match self {
            OutputFormat::Promql => result.text(),
            OutputFormat::Json => result.json(),
        }
    }
}

impl ListTimes {
    /// The parameters of a list.
    fn params(&self, selectors: &[String]) -> Result<api::Params, String> {
        let now = now_ms();
        let start = time_or(self.start.as_deref(), "start", now.saturating_sub(LIST_RANGE_MS))?;
        let end = time_or(self.end.as_deref(), "end", now.saturating_add(LIST_RANGE_MS))?;
        let mut params = vec![("start", seconds(start)), ("end", seconds(end))];
        params.extend(selectors.iter().map(|selector| ("match[]", selector.clone())));
        Ok(params)
    }
}

fn list<T>(items: &[T], push: impl FnMut(&T, &mut String)) -> String {
    let mut out = String::new();
    push_list(items, &mut out, push);
    out + "\n"
}

fn parsed<T: serde::de::DeserializeOwned>(data: &str) -> Result<T, String> {
    serde_json::from_str(data).map_err(|error| query_error(error.to_string()))
}

fn query_error(error: String) -> String {
    format!("query error: {error}")
}

/// Milliseconds of an optional time.
fn time_or(text: Option<&str>, name: &str, default: i64) -> Result<i64, String> {
    time_or_text(text, default).map_err(|(_, error)| format!("error parsing {name} time: {error}"))
}

/// As [`time_or`], with the text and its mistake as the error.
fn time_or_text(text: Option<&str>, default: i64) -> Result<i64, (&str, String)> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(default) };
    parse_time(text).map_err(|error| (text, error.to_string()))
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A time in a parameter.
fn seconds(ms: i64) -> String {
    go_float(ms as f64 / 1_000.0)
}
