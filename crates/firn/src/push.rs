//! `firn push`: sends metrics by remote write, with the arguments, the output and the exit codes of
//! promtool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use firn_collect::config::WriteMessage;
use firn_collect::scrape::{Entry, ExposedLabels, MetadataItem, Parser};
use firn_fetch::Content;
use firn_model::{Labels, METRIC_NAME, Sample};
use firn_promql::go_quote;
use firn_server::metadata::Metadata;
use firn_server::{Error, push_request};

use crate::client::{ClientFile, ExtraHeader, ServerAddress, ServerClient, error_text};
use crate::go_text::GoDuration;
use crate::local_files::{read_file, read_input};
use crate::output;

/// `firn push`.
#[derive(Debug, Args)]
pub(crate) struct Push {
    #[command(flatten)]
    client: ClientFile,

    #[command(subcommand)]
    subject: Pushed,
}

#[derive(Debug, Subcommand)]
enum Pushed {
    /// Send metrics in the text format by remote write
    Metrics(PushMetrics),
}

#[derive(Debug, Args)]
struct PushMetrics {
    /// The address of the server, such as http://localhost:9420
    #[arg(value_name = "URL")]
    address: ServerAddress,

    /// The files; by default standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// A label to add to samples without it; may be repeated
    #[arg(long, value_name = "NAME=VALUE", default_value = "job=promtool")]
    label: Vec<PushedLabel>,

    /// Time limit of a request
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: GoDuration,

    /// A header of the requests; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<ExtraHeader>,

    /// The message: prometheus.WriteRequest or io.prometheus.write.v2.Request
    #[arg(
        long = "protobuf_message",
        value_name = "NAME",
        default_value = "prometheus.WriteRequest"
    )]
    protobuf_message: String,

    /// The path to append to the address; by default /api/v1/write, unless the address ends with it
    #[arg(long = "remote-write.path", value_name = "PATH")]
    path: Option<String>,
}

/// A label of `--label`: `NAME=VALUE` or `NAME:VALUE`.
#[derive(Clone, Debug)]
struct PushedLabel {
    name: String,
    value: String,
}

const DEFAULT_PATH: &str = "/api/v1/write";
const JOB: &str = "job";
const EXPORTED_JOB: &str = "exported_job";
/// Requests after the first one, as in promtool.
const RETRIES_MAX: u32 = 10;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The most of `Retry-After` that is added to a backoff.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
const TOO_MANY_REQUESTS: u16 = 429;
/// Headers of a receiver of version 2.0: each response has one of them.
const WRITTEN_HEADERS: [&str; 3] = [
    "X-Prometheus-Remote-Write-Samples-Written",
    "X-Prometheus-Remote-Write-Histograms-Written",
    "X-Prometheus-Remote-Write-Exemplars-Written",
];
/// The memory of parsed samples: a text of 64 MiB may have 16 million, which took 2 GB.
const PARSED_BYTES_MAX: usize = 512 << 20;
/// The memory of a sample, or of the metadata of a metric, without its texts.
const ITEM_BYTES: usize = 160;

impl FromStr for PushedLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<PushedLabel, String> {
        match text.split_once(['=', ':']) {
            Some((name, value)) if !name.is_empty() => {
                Ok(PushedLabel { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("expected NAME=VALUE, got {text:?}")),
        }
    }
}

/// The destination of all files.
struct Receiver<'a> {
    server: ServerClient,
    message: WriteMessage,
    /// Behind the address.
    rest: &'a str,
    timeout: Duration,
}

/// A request that failed.
struct PushFailure {
    text: String,
    /// The least time before another attempt; `None` if there is none.
    retry_after: Option<Duration>,
}

/// Sends all files. A file that fails does not stop the others.
pub(crate) fn run(push: &Push) -> ExitCode {
    let Pushed::Metrics(metrics) = &push.subject;
    let address = match &metrics.path {
        Some(path) => metrics.address.with_path(path),
        None if metrics.address.ends_with(DEFAULT_PATH) => metrics.address.with_path(""),
        None => metrics.address.with_path(DEFAULT_PATH),
    };
    let message = match metrics.protobuf_message.as_str() {
        "io.prometheus.write.v2.Request" => Some(WriteMessage::V2),
        "prometheus.WriteRequest" => Some(WriteMessage::V1),
        _ => None,
    };
    let version = if message == Some(WriteMessage::V2) { "2.0.0" } else { "0.1.0" };
    let version = format!("X-Prometheus-Remote-Write-Version={version}");
    let fixed = ["Content-Encoding=snappy".to_owned(), version].map(ExtraHeader::from);
    let headers: Vec<ExtraHeader> = fixed.into_iter().chain(metrics.header.clone()).collect();
    let server = push.client.client(&address, &headers).and_then(|server| {
        let message = message.ok_or_else(|| {
            format!(
                "  FAILED: invalid protobuf message {}, must be prometheus.WriteRequest or \
                 io.prometheus.write.v2.Request",
                go_quote(metrics.protobuf_message.as_bytes())
            )
        })?;
        let timeout = Duration::from_nanos(u64::try_from(metrics.timeout.0).unwrap_or(0));
        Ok(Receiver { server, message, rest: address.rest(), timeout })
    });
    let mut receiver = match server {
        Ok(receiver) => receiver,
        Err(error) => {
            output::report_line(&error);
            return ExitCode::FAILURE;
        }
    };
    let mut is_good = true;
    let mut send = |read: std::io::Result<String>, from: &str, what: &str| {
        let sent = read.map_err(|error| error.to_string()).and_then(|text| {
            output::announce_line(&format!("Parsing {from}"));
            receiver.send(&text, &metrics.label)
        });
        match sent {
            Ok(()) => {
                output::announce_line(&format!("  SUCCESS: {what} pushed to remote write."));
            }
            Err(error) => {
                is_good = false;
                output::report_line(&format!("  FAILED: {error}"));
            }
        }
    };
    if metrics.files.is_empty() {
        send(read_input(), "standard input", "metrics");
    }
    for path in &metrics.files {
        let name = path.display();
        let read = read_file(path)
            .map_err(|error| std::io::Error::new(error.kind(), format!("open {name}: {error}")));
        send(read, &format!("metrics file {name}"), &format!("metrics file {name}"));
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Receiver<'_> {
    /// Sends the metrics of a text, and repeats a request whose failure may be temporary.
    fn send(&mut self, text: &str, extra: &[PushedLabel]) -> Result<(), String> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let (samples, metadata) = parse(text, extra, now).map_err(|e| e.to_string())?;
        let body = push_request(self.message, &samples, &metadata);
        drop((samples, metadata));
        let mut backoff = BACKOFF_MIN;
        for _ in 0..RETRIES_MAX {
            match self.attempt(body.clone()) {
                Ok(()) => return Ok(()),
                Err(PushFailure { text, retry_after: None }) => return Err(text),
                Err(PushFailure { retry_after: Some(least), .. }) => {
                    std::thread::sleep(backoff + least.min(RETRY_AFTER_MAX));
                    backoff = (2 * backoff).min(BACKOFF_MAX);
                }
            }
        }
        self.attempt(body).map_err(|failure| failure.text)
    }

    fn attempt(&mut self, body: Vec<u8>) -> Result<(), PushFailure> {
        let media_type = match self.message {
            WriteMessage::V2 => "application/x-protobuf;proto=io.prometheus.write.v2.Request",
            _ => "application/x-protobuf",
        };
        let media_type = media_type.to_owned();
        let content = Content { is_put: false, is_secret: false, media_type, bytes: body.into() };
        let sent = self.server.send(self.rest, Some(content), self.timeout);
        let response = sent.map_err(|error| PushFailure {
            text: error.to_string(),
            retry_after: Some(Duration::ZERO),
        })?;
        let is_written = |name: &&str| response.headers.get(*name).is_some_and(|v| !v.is_empty());
        match response.status {
            200..300 if self.message != WriteMessage::V2 => Ok(()),
            200..300 if WRITTEN_HEADERS.iter().any(is_written) => Ok(()),
            200..300 => Err(PushFailure {
                text: "sent v2 request; got 2xx, but PRW 2.0 response header statistics indicate \
                       0 samples, 0 histograms and 0 exemplars were accepted; assuming failure \
                       e.g. the target only supports PRW 1.0 prometheus.WriteRequest, but does not \
                       check the Content-Type header correctly"
                    .to_owned(),
                retry_after: None,
            }),
            status => {
                let (name, body) = (response.status_text(), error_text(&response.body));
                let text = format!("server returned HTTP status {name}: {body}");
                let is_temporary = status / 100 == 5 || status == TOO_MANY_REQUESTS;
                Err(PushFailure {
                    text,
                    retry_after: is_temporary.then(|| response.retry_after().unwrap_or_default()),
                })
            }
        }
    }
}

type ParsedText = (Vec<(Labels, Sample)>, Vec<(Box<str>, Metadata)>);

/// The samples and the metadata of a text. Samples without a time have that of `now`.
fn parse(text: &str, extra: &[PushedLabel], now: i64) -> firn_server::Result<ParsedText> {
    let (mut samples, mut metadata) = (Vec::new(), BTreeMap::<Box<str>, Metadata>::new());
    let mut parser = Parser::new(text.as_bytes(), false, ExposedLabels::default());
    let mut bytes = 0_usize;
    let mut reserve = |texts: usize| {
        bytes = bytes.saturating_add(ITEM_BYTES).saturating_add(texts);
        match bytes > PARSED_BYTES_MAX {
            true => Err(Error::too_large(format!(
                "the samples take more than {PARSED_BYTES_MAX} bytes of memory: push a part of \
                 them at a time"
            ))),
            false => Ok(()),
        }
    };
    while let Some(entry) = parser.next(|_| 0)? {
        match entry {
            Entry::Metadata(name, item) => {
                reserve(name.len())?;
                let known = metadata.entry(Box::from(&*name)).or_default();
                match item {
                    MetadataItem::Help(help) => {
                        *known = Metadata::new(known.kind, &help, &known.unit);
                    }
                    MetadataItem::Type(kind) => known.kind = kind,
                    MetadataItem::Unit(unit) => {
                        *known = Metadata::new(known.kind, &known.help, &unit);
                    }
                }
            }
            Entry::Sample(line) => {
                let ts = line.ts.filter(|ts| *ts != 0).unwrap_or(now);
                let labels = labels(parser.labels(), extra)?;
                reserve(labels.iter().map(|pair| pair.0.len() + pair.1.len()).sum())?;
                samples.push((labels, Sample { ts, value: line.value }));
            }
        }
    }
    Ok((samples, metadata.into_iter().collect()))
}

/// The labels of a sample, which win over those of `extra`; only its job gets another name.
fn labels(exposed: &ExposedLabels, extra: &[PushedLabel]) -> firn_server::Result<Labels> {
    let mut labels: BTreeMap<&str, &str> =
        extra.iter().map(|label| (&*label.name, &*label.value)).collect();
    // The name of the metric cannot be given.
    labels.remove(METRIC_NAME);
    for (name, value) in exposed.iter() {
        labels.insert(if name == JOB { EXPORTED_JOB } else { name }, value);
    }
    Labels::from_pairs(labels)
}
