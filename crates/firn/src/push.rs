//! `firn push`: sends metrics by remote write, with the arguments, the output and the exit codes of
//! promtool.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use firn_collect::scrape::{Entry, ExposedLabels, MetadataItem, Parser};
use firn_fetch::Content;
use firn_model::{Labels, METRIC_NAME, Sample};
use firn_server::metadata::Metadata;
use firn_server::{Error, push_request};

use crate::client::{ClientFile, ExtraHeader, ServerAddress, ServerClient};
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
    /// Send metrics in the text format by remote write 1.0
    Metrics(PushMetrics),
}

#[derive(Debug, Args)]
struct PushMetrics {
    /// The address of remote write, such as http://localhost:9420/api/v1/write
    #[arg(value_name = "URL")]
    address: ServerAddress,

    /// The files; by default standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// A label that all samples without such a label get; may be repeated
    #[arg(long, value_name = "NAME=VALUE", default_value = "job=promtool")]
    label: Vec<PushedLabel>,

    /// The time for a request
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: GoDuration,

    /// A header of the requests; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<ExtraHeader>,
}

/// A label of `--label`: `NAME=VALUE` or `NAME:VALUE`.
#[derive(Clone, Debug)]
struct PushedLabel {
    name: String,
    value: String,
}

/// The headers of a request of remote write 1.0.
const HEADERS: [&str; 2] = ["Content-Encoding=snappy", "X-Prometheus-Remote-Write-Version=0.1.0"];
const JOB: &str = "job";
const EXPORTED_JOB: &str = "exported_job";
/// Of the text of a response, as promtool shows it.
const ERROR_CHARS_MAX: usize = 256;
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

/// Sends all files. A file that fails does not stop the others.
pub(crate) fn run(push: &Push) -> ExitCode {
    let Pushed::Metrics(metrics) = &push.subject;
    let fixed = HEADERS.map(|header| ExtraHeader::from(header.to_owned()));
    let headers: Vec<ExtraHeader> = fixed.into_iter().chain(metrics.header.clone()).collect();
    let mut server = match push.client.client(&metrics.address, &headers) {
        Ok(server) => server,
        Err(error) => {
            output::report_line(&error);
            return ExitCode::FAILURE;
        }
    };
    let mut is_good = true;
    let mut send = |read: std::io::Result<String>, from: &str, what: &str| {
        let sent = read.map_err(|error| error.to_string()).and_then(|text| {
            output::announce_line(&format!("Parsing {from}"));
            send(&mut server, metrics, &text)
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

fn send(server: &mut ServerClient, metrics: &PushMetrics, text: &str) -> Result<(), String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    let (samples, metadata) = parse(text, &metrics.label, now).map_err(|e| e.to_string())?;
    let content = Content {
        is_put: false,
        is_secret: false,
        media_type: "application/x-protobuf".to_owned(),
        bytes: push_request(&samples, &metadata).into(),
    };
    let timeout = Duration::from_nanos(u64::try_from(metrics.timeout.0).unwrap_or(0));
    let response = server
        .send(metrics.address.rest(), Some(content), timeout)
        .map_err(|error| error.to_string())?;
    if (200..300).contains(&response.status) {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&response.body);
    let shown: String = body.trim_end().chars().take(ERROR_CHARS_MAX).collect();
    Err(format!("server returned HTTP status {}: {shown}", response.status_text()))
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
