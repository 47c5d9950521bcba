//! Settings: each declared once, with flag, environment variable, default and words, in
//! [`Settings`]. [`Settings::check`] turns what was typed into the [`Config`] that the server runs by,
//! and [`Config::listed`] turns it back.

mod listed;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use firn_model::{Error, LabelLimits, Labels, MatchOp, Matcher, Result};
use firndb::{LogDevice, SeriesLimits};

use crate::machine;
use crate::wire::number::parse_unit_duration_ms;

/// What can be set, as it is typed. Sizes are like `512MiB`, durations like `15d` or `1h30m`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Folder of the database; made if it is missing
    #[arg(long, env = "FIRN_DATA", value_name = "FOLDER", default_value = "./firn-data")]
    pub data: PathBuf,

    /// Address and port to listen on
    #[arg(long, env = "FIRN_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:9420")]
    pub listen: SocketAddr,

    /// Where history goes: a folder, or s3://, gs:// or az:// with bucket and prefix
    /// [default: the folder `slow` below --data]
    #[arg(long, env = "FIRN_SLOW_TIER", value_name = "PLACE")]
    pub slow_tier: Option<String>,

    /// If the folder has no database yet, make one of what the slow tier holds and take the slow tier over:
    /// a server that wrote there before takes nothing any more (docs/tiers.md)
    #[arg(long, env = "FIRN_RESTORE", conflicts_with = "read_only")]
    pub restore: bool,

    /// Start without index files that are damaged or missing and that the slow tier does not have: the series in
    /// them are forgotten for good, all others are there. Without it such a database does not start
    #[arg(long, env = "FIRN_FORGET_LOST_INDEX", conflicts_with = "read_only")]
    pub forget_lost_index: bool,

    /// Only show the history that another server writes to the slow tier; the folder has to be another
    /// one (docs/tiers.md)
    #[arg(long, env = "FIRN_READ_ONLY")]
    pub read_only: bool,

    /// Hard limit for everything that is kept in memory; `auto` is half of what the machine or
    /// this process' control group has
    #[arg(long, env = "FIRN_MEMORY", value_name = "SIZE", default_value = "auto")]
    pub memory: String,

    /// Age at which data is dropped; `forever` keeps all
    #[arg(long, env = "FIRN_RETENTION", value_name = "DURATION", default_value = "forever")]
    pub retention: String,

    /// Bytes of tables that this machine may hold: near it data moves to the slow tier sooner,
    /// far from it later; `unlimited` moves it at fixed times
    #[arg(long, env = "FIRN_FAST_BYTES_MAX", value_name = "SIZE", default_value = "unlimited")]
    pub fast_bytes_max: String,

    /// Bytes of tables that the slow tier may hold; beyond it the oldest data is dropped
    #[arg(long, env = "FIRN_SLOW_BYTES_MAX", value_name = "SIZE", default_value = "unlimited")]
    pub slow_bytes_max: String,

    /// Bytes of the local disk for what queries read of the slow tier, so that it is asked once; kept over a restart,
    /// given back when the disk is nearly full; 0 keeps none, nor does a slow tier that is a folder
    #[arg(long, env = "FIRN_SLOW_CACHE_BYTES_MAX", value_name = "SIZE", default_value = "1GiB")]
    pub slow_cache_bytes_max: String,

    /// Labels by which series are grouped when they are first seen, separated by commas
    #[arg(
        long,
        env = "FIRN_GROUP_BY",
        value_name = "LABELS",
        default_value = "job,instance",
        value_delimiter = ','
    )]
    pub group_by: Vec<String>,

    /// When a write is acknowledged: `always` after it is on the device, `never` before, or a
    /// duration such as `100ms` (or `interval:100`) that bounds what a power failure may take
    #[arg(long, env = "FIRN_LOG_SYNC", value_name = "WHEN", default_value = "always")]
    pub log_sync: String,

    /// Where the log of a new database is: `file`, beside its tables, or `memory:` and a folder on a file system that
    /// maps byte-addressable memory (docs/durability.md)
    #[arg(long, env = "FIRN_LOG_DEVICE", value_name = "DEVICE", default_value = "file")]
    pub log_device: String,

    /// How long samples may stay in memory and log before they are flushed to tables
    #[arg(long, env = "FIRN_FLUSH_AGE_MAX", value_name = "DURATION", default_value = "20m")]
    pub flush_age_max: String,

    /// How long data may wait on this machine before it is uploaded to the slow tier: bounds
    /// what losing the machine loses
    #[arg(long, env = "FIRN_UPLOAD_AGE_MAX", value_name = "DURATION", default_value = "4h")]
    pub upload_age_max: String,

    /// Patches, late data beside what is on the slow tier already, that may lie on one part of a partition there: one more
    /// and they are merged with it. Each costs a query of that part a request, a merge puts all of the part again
    #[arg(long, env = "FIRN_PATCHES_MAX", value_name = "COUNT", default_value_t = 3)]
    pub patches_max: usize,

    /// Bytes of unflushed rows in memory that start a flush; `auto` is an eighth of
    /// --memory, at most 512 MiB
    #[arg(long, env = "FIRN_HEAD_FLUSH_BYTES", value_name = "SIZE", default_value = "auto")]
    pub head_flush_bytes: String,

    /// Bytes of log that start a flush: bounds how long a restart takes. Writes are refused, 429, at
    /// twice as much
    #[arg(long, env = "FIRN_LOG_BYTES_MAX", value_name = "SIZE", default_value = "1GiB")]
    pub log_bytes_max: String,

    /// Shards of a new database, a power of two; an old one keeps its number
    #[arg(long, env = "FIRN_SHARDS", value_name = "COUNT", default_value_t = 64)]
    pub shards: usize,

    /// Log streams; another number than before takes effect at the start, after a flush
    /// [default: 1 in files; on memory the number of cores, at most 4]
    #[arg(long, env = "FIRN_LOG_STREAMS", value_name = "COUNT")]
    pub log_streams: Option<usize>,

    /// Series beyond which new ones are refused, 429, while known ones go on; 0 is no limit
    #[arg(long, env = "FIRN_SERIES_MAX", value_name = "COUNT", default_value_t = 50_000_000)]
    pub series_max: u64,

    /// Series of one metric name beyond which new ones are refused; 0 is no limit
    #[arg(long, env = "FIRN_SERIES_PER_METRIC_MAX", value_name = "COUNT", default_value_t = 0)]
    pub series_per_metric_max: u64,

    /// Series of one group (--group-by: mostly one target) beyond which new ones are refused; 0 is
    /// no limit
    #[arg(long, env = "FIRN_SERIES_PER_GROUP_MAX", value_name = "COUNT", default_value_t = 0)]
    pub series_per_group_max: u64,

    /// New series per second beyond which they are refused; ten seconds' worth may come at once; 0
    /// is no limit
    #[arg(long, env = "FIRN_NEW_SERIES_PER_SECOND_MAX", value_name = "COUNT", default_value_t = 0)]
    pub new_series_per_second_max: u64,

    /// How far after the clock a timestamp may lie
    #[arg(long, env = "FIRN_FUTURE_MAX", value_name = "DURATION", default_value = "10m")]
    pub future_max: String,

    /// Labels that one series may have
    #[arg(long, env = "FIRN_LABEL_COUNT_MAX", value_name = "COUNT", default_value_t = 64)]
    pub label_count_max: usize,

    /// Length of one label's name
    #[arg(long, env = "FIRN_LABEL_NAME_BYTES_MAX", value_name = "SIZE", default_value = "1KiB")]
    pub label_name_bytes_max: String,

    /// Length of one label's value
    #[arg(long, env = "FIRN_LABEL_VALUE_BYTES_MAX", value_name = "SIZE", default_value = "4KiB")]
    pub label_value_bytes_max: String,

    /// Size of one write request as it is sent
    #[arg(long, env = "FIRN_BODY_BYTES_MAX", value_name = "SIZE", default_value = "32MiB")]
    pub body_bytes_max: String,

    /// Size of one write request after it is unpacked
    #[arg(long, env = "FIRN_REQUEST_BYTES_MAX", value_name = "SIZE", default_value = "64MiB")]
    pub request_bytes_max: String,

    /// Answer 204 also when series of a remote write request were refused, as Prometheus does, or
    /// were over a limit that waiting does not lift; they are counted in
    /// firn_write_rejected_samples_total all the same
    #[arg(long, env = "FIRN_WRITE_LENIENT")]
    pub write_lenient: bool,

    /// Queries that run at one time; further ones wait
    #[arg(long, env = "FIRN_QUERY_CONCURRENCY_MAX", value_name = "COUNT", default_value_t = 20)]
    pub query_concurrency_max: usize,

    /// How long a query may take, waiting included
    #[arg(long, env = "FIRN_QUERY_TIMEOUT", value_name = "DURATION", default_value = "2m")]
    pub query_timeout: String,

    /// Samples that one query may have in memory at one time
    #[arg(
        long,
        env = "FIRN_QUERY_SAMPLES_MAX",
        value_name = "COUNT",
        default_value_t = 50_000_000
    )]
    pub query_samples_max: u64,

    /// Memory that one query may take; `auto` is a quarter of --memory
    #[arg(long, env = "FIRN_QUERY_MEMORY", value_name = "SIZE", default_value = "auto")]
    pub query_memory: String,

    /// Space below --data for answers of range queries, so that a dashboard's next refresh computes its
    /// newest steps only; 0 switches it off
    #[arg(long, env = "FIRN_RESULT_CACHE", value_name = "SIZE", default_value = "1GiB")]
    pub result_cache: String,

    /// Remote reads that run at one time; further ones wait
    #[arg(
        long,
        env = "FIRN_REMOTE_READ_CONCURRENCY_MAX",
        value_name = "COUNT",
        default_value_t = 10
    )]
    pub remote_read_concurrency_max: usize,

    /// Samples that one query of a remote read may return, unless the answer is streamed; 0 is no
    /// limit but memory's
    #[arg(
        long,
        env = "FIRN_REMOTE_READ_SAMPLES_MAX",
        value_name = "COUNT",
        default_value_t = 50_000_000
    )]
    pub remote_read_samples_max: u64,

    /// Size at which a frame of a streamed remote read is closed
    #[arg(long, env = "FIRN_REMOTE_READ_FRAME_BYTES", value_name = "SIZE", default_value = "1MiB")]
    pub remote_read_frame_bytes: String,

    /// How far back an instant selector looks for a sample
    #[arg(long, env = "FIRN_LOOKBACK", value_name = "DURATION", default_value = "5m")]
    pub lookback: String,

    /// Connections that are open at one time; further ones wait
    #[arg(long, env = "FIRN_CONNECTIONS_MAX", value_name = "COUNT", default_value_t = 512)]
    pub connections_max: usize,

    /// Origins whose web pages may read answers: a regular expression for the whole origin
    #[arg(long, env = "FIRN_CORS_ORIGIN", value_name = "REGEX", default_value = ".*")]
    pub cors_origin: String,

    /// Labels that name this server among others, as name=value between commas: federation,
    /// remote read and /api/v1/status/config tell them [default: none]
    #[arg(long, env = "FIRN_EXTERNAL_LABELS", value_name = "LABELS", value_delimiter = ',')]
    pub external_labels: Vec<String>,

    /// Let HTTP clients delete series, clean up after deletes and make snapshots
    #[arg(long, env = "FIRN_ENABLE_ADMIN_API")]
    pub enable_admin_api: bool,

    /// Let HTTP clients stop the server with /-/quit, and call /-/reload
    #[arg(long, env = "FIRN_ENABLE_LIFECYCLE")]
    pub enable_lifecycle: bool,

    /// Time between two scrapes of the server by itself; `never` switches it off
    #[arg(long, env = "FIRN_SELF_SCRAPE", value_name = "DURATION", default_value = "15s")]
    pub self_scrape: String,
}

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of the database.
    pub data: PathBuf,
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What each thread does that has had nothing to do for a moment: the program may have its allocator give back what
    /// the thread has freed. No setting; nothing by default.
    pub on_idle: fn(),
    /// Folder or URL of the slow tier.
    pub slow_tier: String,
    /// Whether an empty folder is filled from the slow tier.
    pub restore: bool,
    /// Whether series of lost index files are given up.
    pub forget_lost_index: bool,
    /// Whether another server's history is shown, and nothing taken.
    pub read_only: bool,
    /// Hard limit of the database's budget.
    pub memory_bytes_max: u64,
    /// Age at which data is dropped.
    pub retention_ms: Option<i64>,
    /// Size of the tables on this machine.
    pub fast_bytes_max: Option<u64>,
    /// Size of the slow tier at which the oldest data is dropped.
    pub slow_bytes_max: Option<u64>,
    /// Space on the local disk for what was read of the slow tier.
    pub slow_cache_bytes_max: u64,
    /// Labels that make a group.
    pub group_by: Vec<String>,
    /// When a write is acknowledged.
    pub log_sync: LogSync,
    /// Where the log is.
    pub log_device: LogDevice,
    /// Age at which rows are flushed.
    pub flush_age_ms_max: i64,
    /// Age at which data is uploaded.
    pub upload_age_ms_max: i64,
    /// Patches on one part of the slow tier.
    pub patches_max: usize,
    /// Bytes of unflushed rows that start a flush.
    pub head_flush_bytes: u64,
    /// Bytes of log that start a flush.
    pub log_bytes_max: u64,
    /// Shards of a new database.
    pub shard_count: usize,
    /// Log streams of a new database.
    pub stream_count: usize,
    /// What new series are refused by.
    pub series: SeriesLimits,
    /// How far after the clock a timestamp may lie.
    pub future_ms_max: i64,
    /// Limits of one label set.
    pub labels: LabelLimits,
    /// Size of a write request on the wire.
    pub body_bytes_max: usize,
    /// Size of a write request unpacked.
    pub request_bytes_max: usize,
    /// Whether refused series are kept from the sender.
    pub write_lenient: bool,
    /// Queries at one time.
    pub query_concurrency_max: usize,
    /// Time for one query.
    pub query_timeout: Duration,
    /// Samples in memory for one query.
    pub query_samples_max: u64,
    /// Memory of one query.
    pub query_bytes_max: u64,
    /// Space for answers of range queries.
    pub result_cache_bytes: Option<u64>,
    /// Remote reads at one time.
    pub remote_read_concurrency_max: usize,
    /// Samples of one query of a remote read in one message.
    pub remote_read_samples_max: Option<u64>,
    /// Size at which a frame is closed.
    pub remote_read_frame_bytes: usize,
    /// Lookback of instant selectors.
    pub lookback_ms: i64,
    /// Open connections.
    pub connections_max: usize,
    /// Matches the origins whose pages may read answers.
    pub cors_origin: Matcher,
    /// What names this server among others.
    pub external_labels: Labels,
    /// Whether clients may delete and make snapshots.
    pub admin_api: bool,
    /// Whether clients may stop the server.
    pub lifecycle_api: bool,
    /// Time between scrapes of itself.
    pub self_scrape: Option<Duration>,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSync {
    /// After it is on the device.
    Always,
    /// Before; synced so often.
    IntervalMs(u64),
    /// Before; synced when the operating system likes.
    Never,
}

impl Settings {
    /// Checks every setting.
    ///
    /// # Errors
    /// `Invalid`, naming the setting, what was given and what is wanted.
    pub fn check(&self) -> Result<Config> {
        let slow_tier = match &self.slow_tier {
            Some(place) => place.clone(),
            None => self.data.join("slow").to_string_lossy().into_owned(),
        };
        let group_by: Vec<String> =
            self.group_by.iter().map(|name| name.trim().to_owned()).collect();
        if group_by.iter().any(String::is_empty) {
            return Err(bad("group-by", &self.group_by.join(","), "label names between commas"));
        }
        for (name, count) in [
            ("connections-max", self.connections_max),
            ("query-concurrency-max", self.query_concurrency_max),
            ("remote-read-concurrency-max", self.remote_read_concurrency_max),
            ("label-count-max", self.label_count_max),
        ] {
            if count == 0 {
                return Err(bad(name, "0", "at least 1"));
            }
        }
        if !self.shards.is_power_of_two() || self.shards > SHARDS_MAX {
            let wanted = format!("a power of two up to {SHARDS_MAX}");
            return Err(bad("shards", &self.shards.to_string(), &wanted));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // In files a second sync costs more than a second stream saves (docs/decisions/0010).
        let streams = if self.log_device == "file" { 1 } else { cores.min(4) };
        let stream_count = self.log_streams.unwrap_or(streams);
        if !(1..=self.shards).contains(&stream_count) {
            let wanted = format!("between 1 and the number of shards, {}", self.shards);
            return Err(bad("log-streams", &stream_count.to_string(), &wanted));
        }
        let memory_bytes_max = match self.memory.as_str() {
            "auto" => (machine::memory_bytes() / 2).max(MEMORY_BYTES_MIN),
            text => bytes("memory", text, MEMORY_BYTES_MIN, u64::MAX >> 1)?,
        };
        Ok(Config {
            on_idle: || (),
            data: self.data.clone(),
            listen: self.listen,
            slow_tier,
            restore: self.restore,
            forget_lost_index: self.forget_lost_index,
            read_only: self.read_only,
            memory_bytes_max,
            retention_ms: match self.retention.as_str() {
                "forever" => None,
                text => Some(duration_ms("retention", text)?),
            },
            fast_bytes_max: tier_bytes("fast-bytes-max", &self.fast_bytes_max)?,
            slow_bytes_max: tier_bytes("slow-bytes-max", &self.slow_bytes_max)?,
            slow_cache_bytes_max: match bytes(
                "slow-cache-bytes-max",
                &self.slow_cache_bytes_max,
                0,
                u64::MAX >> 1,
            )? {
                given if (1..SLOW_CACHE_BYTES_MIN).contains(&given) => {
                    let wanted = format!("0 or at least {SLOW_CACHE_BYTES_MIN} bytes");
                    return Err(bad("slow-cache-bytes-max", &self.slow_cache_bytes_max, &wanted));
                }
                given => given,
            },
            group_by,
            log_sync: match self.log_sync.as_str() {
                "always" => LogSync::Always,
                "never" => LogSync::Never,
                text => match text.strip_prefix("interval:").map(str::parse) {
                    Some(Ok(ms)) if ms > 0 => LogSync::IntervalMs(ms),
                    Some(_) => return Err(bad("log-sync", text, "interval:MILLISECONDS")),
                    None => LogSync::IntervalMs(duration_ms("log-sync", text)?.unsigned_abs()),
                },
            },
            log_device: self.log_device.parse().map_err(|e: Error| e.context("--log-device"))?,
            flush_age_ms_max: duration_ms("flush-age-max", &self.flush_age_max)?,
            upload_age_ms_max: duration_ms("upload-age-max", &self.upload_age_max)?,
            patches_max: match self.patches_max {
                given @ 1..=PATCHES_MAX => given,
                given => {
                    let wanted = format!("between 1 and {PATCHES_MAX}");
                    return Err(bad("patches-max", &given.to_string(), &wanted));
                }
            },
            log_bytes_max: bytes("log-bytes-max", &self.log_bytes_max, 1, u64::MAX >> 2)?,
            head_flush_bytes: match self.head_flush_bytes.as_str() {
                "auto" => (memory_bytes_max / 8).min(HEAD_FLUSH_BYTES_MAX),
                text => bytes("head-flush-bytes", text, 1, u64::MAX >> 1)?,
            },
            shard_count: self.shards,
            stream_count,
            series: SeriesLimits {
                series_max: limit(self.series_max),
                series_per_metric_max: limit(self.series_per_metric_max),
                series_per_group_max: limit(self.series_per_group_max),
                new_series_per_second_max: limit(self.new_series_per_second_max),
            },
            future_ms_max: duration_ms("future-max", &self.future_max)?,
            labels: LabelLimits {
                label_count_max: self.label_count_max,
                name_bytes_max: size("label-name-bytes-max", &self.label_name_bytes_max)?,
                value_bytes_max: size("label-value-bytes-max", &self.label_value_bytes_max)?,
            },
            body_bytes_max: size("body-bytes-max", &self.body_bytes_max)?,
            request_bytes_max: size("request-bytes-max", &self.request_bytes_max)?,
            write_lenient: self.write_lenient,
            query_concurrency_max: self.query_concurrency_max,
            query_timeout: duration("query-timeout", &self.query_timeout)?,
            query_samples_max: self.query_samples_max,
            query_bytes_max: match self.query_memory.as_str() {
                "auto" => memory_bytes_max / 4,
                text => bytes("query-memory", text, QUERY_BYTES_MIN, memory_bytes_max)?,
            },
            result_cache_bytes: match bytes("result-cache", &self.result_cache, 0, u64::MAX >> 1)? {
                0 => None,
                given if given < RESULT_CACHE_BYTES_MIN => {
                    let wanted = format!("0 or at least {RESULT_CACHE_BYTES_MIN} bytes");
                    return Err(bad("result-cache", &self.result_cache, &wanted));
                }
                given => Some(given),
            },
            remote_read_concurrency_max: self.remote_read_concurrency_max,
            remote_read_samples_max: limit(self.remote_read_samples_max),
            remote_read_frame_bytes: bytes(
                "remote-read-frame-bytes",
                &self.remote_read_frame_bytes,
                FRAME_BYTES_MIN,
                FRAME_BYTES_MAX,
            )? as usize,
            lookback_ms: duration_ms("lookback", &self.lookback)?,
            connections_max: self.connections_max,
            cors_origin: Matcher::new("Origin", MatchOp::Regex, self.cors_origin.as_str())
                .map_err(|e| bad("cors-origin", &self.cors_origin, "a regex").because(e))?,
            external_labels: external_labels(&self.external_labels)?,
            admin_api: self.enable_admin_api,
            lifecycle_api: self.enable_lifecycle,
            self_scrape: match self.self_scrape.as_str() {
                _ if self.read_only => None,
                "never" => None,
                text => Some(duration("self-scrape", text)?),
            },
        })
    }
}

// Below this the log's buffers, one flush and one query would not fit side by side.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
// A few tables as large as they become: a tier that holds less is a mistake.
const TIER_BYTES_MIN: u64 = 64 << 20;
// One series list, one batch of columns and one answer.
const QUERY_BYTES_MIN: u64 = 1 << 20;
// A few slabs.
const RESULT_CACHE_BYTES_MIN: u64 = 8 << 20;
// A query asks 32 objects at a time.
const PATCHES_MAX: usize = 32;
// Slabs that hold the larger directories.
const SLOW_CACHE_BYTES_MIN: u64 = 8 << 20;
// Smaller frames hold one chunk each; Prometheus takes no larger ones than 50 MB.
const FRAME_BYTES_MIN: u64 = 1 << 10;
const FRAME_BYTES_MAX: u64 = 32 << 20;
// More would only make a flush and a restart longer.
const HEAD_FLUSH_BYTES_MAX: u64 = 512 << 20;
// What a group id has room for.
const SHARDS_MAX: usize = 1 << 15;
// Positions inside a request are 32 bits wide.
const REQUEST_BYTES_MAX: u64 = 2 << 30;

pub(crate) fn bad(name: &str, text: &str, wanted: &str) -> Error {
    Error::invalid(format!("--{name} is {text:?}, wanted is {wanted}"))
}

/// 0 is typed for none.
fn tier_bytes(name: &str, text: &str) -> Result<Option<u64>> {
    match text {
        "unlimited" => Ok(None),
        text => bytes(name, text, TIER_BYTES_MIN, u64::MAX >> 1).map(Some),
    }
}

fn limit(max: u64) -> Option<u64> {
    Some(max).filter(|&max| max > 0)
}

fn external_labels(pairs: &[String]) -> Result<Labels> {
    let wanted =
        || bad("external-labels", &pairs.join(","), "name=value between commas, each name once");
    let split = pairs.iter().map(|pair| pair.split_once('=').ok_or_else(wanted));
    let pairs = split.collect::<Result<Vec<_>>>()?;
    if pairs.iter().any(|(name, value)| name.is_empty() || value.is_empty()) {
        return Err(wanted());
    }
    Labels::from_pairs(pairs).map_err(|e| wanted().because(e))
}

pub(crate) fn duration_ms(name: &str, text: &str) -> Result<i64> {
    parse_unit_duration_ms(text)
        .filter(|&ms| ms > 0)
        .ok_or_else(|| bad(name, text, "a duration such as 15s, 2m, 1h30m or 15d"))
}

fn duration(name: &str, text: &str) -> Result<Duration> {
    duration_ms(name, text).map(|ms| Duration::from_millis(ms.unsigned_abs()))
}

fn size(name: &str, text: &str) -> Result<usize> {
    bytes(name, text, 1, REQUEST_BYTES_MAX).map(|bytes| bytes as usize)
}

pub(crate) fn bytes(name: &str, text: &str, least: u64, most: u64) -> Result<u64> {
    let bytes = parse_bytes(text).ok_or_else(|| bad(name, text, "a size such as 64KiB or 4GiB"))?;
    if !(least..=most).contains(&bytes) {
        return Err(bad(name, text, &format!("at least {least} and at most {most} bytes")));
    }
    Ok(bytes)
}

/// `4GiB`, `512MB`, `1g`, `1000`: units of 1024 unless they end in `B` without `i`.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * factor as f64;
            (bytes.is_finite() && bytes < 1e18).then_some(bytes as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn settings(args: &[&str]) -> Settings {
        let command = Settings::augment_args(Command::new("firn"));
        let matches = command.get_matches_from(["firn"].iter().chain(args));
        Settings::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn defaults_are_those_that_the_design_names() {
        let config = settings(&[]).check().unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:9420");
        assert_eq!(config.slow_tier, "./firn-data/slow");
        assert_eq!(config.group_by, ["job", "instance"]);
        assert_eq!((config.retention_ms, config.log_sync), (None, LogSync::Always));
        assert_eq!((config.fast_bytes_max, config.slow_bytes_max), (None, None));
        assert_eq!((config.future_ms_max, config.lookback_ms), (600_000, 300_000));
        assert_eq!(config.query_timeout, Duration::from_secs(120));
        assert_eq!(config.patches_max, crate::database::options(&config).tree.patches_max);
        assert_eq!(config.query_bytes_max, config.memory_bytes_max / 4);
        assert!(config.cors_origin.matches("http://anywhere") && config.external_labels.is_empty());
        assert!(!config.admin_api && !config.lifecycle_api);
        assert!(config.memory_bytes_max >= MEMORY_BYTES_MIN);
    }

    #[test]
    fn what_memory_may_be_hot_or_pinned_follows_the_limit() {
        for (memory, part) in [("64MiB", 8 << 20), ("8GiB", 1 << 30)] {
            let config = settings(&[&format!("--memory={memory}")]).check().unwrap();
            let options = crate::database::options(&config);
            assert_eq!((options.head.hot_bytes_max, options.head.cooling_bytes_max), (part, part));
            assert!(options.head.hot_bytes_max + options.head_bytes_max < options.memory_bytes_max);
        }
    }

    #[test]
    fn what_is_typed_is_checked_and_named() {
        let config = settings(&[
            "--memory=1.5g",
            "--retention=15d",
            "--fast-bytes-max=512MiB",
            "--slow-bytes-max=2g",
            "--log-sync=interval:100",
            "--patches-max=7",
            "--self-scrape=never",
            "--slow-tier=s3://bucket/prefix",
            "--query-memory=1MiB",
            "--cors-origin=https://.*",
            "--external-labels=region=eu,replica=a=b",
            "--enable-admin-api",
        ]);
        let config = config.check().unwrap();
        assert_eq!(config.query_bytes_max, 1 << 20);
        assert!(config.cors_origin.matches("https://x") && !config.cors_origin.matches("http://x"));
        let named: Vec<_> = config.external_labels.iter().collect();
        assert_eq!(named, [("region", "eu"), ("replica", "a=b")]);
        assert!(config.admin_api && !config.lifecycle_api);
        assert_eq!(config.memory_bytes_max, 3 << 29);
        assert_eq!(config.retention_ms, Some(15 * 86_400_000));
        assert_eq!(
            (config.fast_bytes_max, config.slow_bytes_max),
            (Some(512 << 20), Some(2 << 30))
        );
        assert_eq!(config.log_sync, LogSync::IntervalMs(100));
        assert_eq!(crate::database::options(&config).tree.patches_max, 7);
        assert_eq!((config.self_scrape, config.slow_tier.as_str()), (None, "s3://bucket/prefix"));
        for (arg, wanted) in [
            ("--memory=lots", "--memory is \"lots\", wanted is a size"),
            ("--memory=1MiB", "at least 67108864"),
            ("--retention=15", "--retention is \"15\", wanted is a duration"),
            ("--fast-bytes-max=much", "--fast-bytes-max is \"much\", wanted is a size"),
            ("--slow-bytes-max=1KiB", "at least 67108864"),
            ("--request-bytes-max=4GiB", "at most 2147483648"),
            ("--connections-max=0", "--connections-max is \"0\""),
            ("--remote-read-concurrency-max=0", "--remote-read-concurrency-max is \"0\""),
            ("--remote-read-frame-bytes=1", "at least 1024"),
            ("--group-by=a,,b", "--group-by is \"a,,b\""),
            ("--query-timeout=0s", "--query-timeout"),
            ("--shards=12", "--shards is \"12\", wanted is a power of two"),
            ("--log-streams=65", "--log-streams is \"65\""),
            ("--query-memory=1KiB", "--query-memory is \"1KiB\", wanted is at least 1048576"),
            ("--patches-max=0", "--patches-max is \"0\", wanted is between 1 and 32"),
            ("--slow-cache-bytes-max=1KiB", "wanted is 0 or at least 8388608"),
            ("--result-cache=1MiB", "--result-cache is \"1MiB\", wanted is 0 or at least 8388608"),
            ("--cors-origin=(", "--cors-origin is \"(\", wanted is a regex"),
            ("--external-labels=a=1,b", "--external-labels is \"a=1,b\", wanted is name=value"),
            ("--external-labels=a=1,a=2", "--external-labels is \"a=1,a=2\""),
            (
                "--log-sync=interval:0",
                "--log-sync is \"interval:0\", wanted is interval:MILLISECONDS",
            ),
            ("--log-sync=interval:1s", "--log-sync is \"interval:1s\""),
            ("--external-labels=a=", "--external-labels is \"a=\""),
        ] {
            let broken = settings(&[arg]).check().unwrap_err().to_string();
            assert!(broken.contains(wanted), "{broken}");
        }
    }

    #[test]
    fn every_setting_is_listed_as_it_can_be_typed() {
        for typed in [
            &[][..],
            &[
                "--memory=1000000000",
                "--retention=400d",
                "--fast-bytes-max=100000000",
                "--slow-bytes-max=1GiB",
                "--log-sync=1500ms",
                "--log-device=memory:/mnt/memory",
                "--log-streams=3",
                "--patches-max=1",
                "--write-lenient",
                "--external-labels=region=eu,zone=\"b\"",
                "--cors-origin=https?://[^,]*",
                "--result-cache=0",
                "--enable-admin-api",
                "--enable-lifecycle",
                "--self-scrape=never",
                "--slow-tier=gs://bucket",
            ],
        ] {
            let config = settings(typed).check().unwrap();
            let listed = config.listed();
            const SWITCHES: [&str; 6] = [
                "restore",
                "forget-lost-index",
                "read-only",
                "write-lenient",
                "enable-admin-api",
                "enable-lifecycle",
            ];
            let arg = |(name, value): &(&str, String)| match (*name, value.as_str()) {
                (name, "true") if SWITCHES.contains(&name) => Some(format!("--{name}")),
                (name, _) if SWITCHES.contains(&name) => None,
                ("external-labels", "") => None,
                _ => Some(format!("--{name}={value}")),
            };
            let args: Vec<String> = listed.iter().filter_map(arg).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(format!("{:?}", settings(&args).check().unwrap()), format!("{config:?}"));

            let command = Settings::augment_args(Command::new("firn"));
            let known: Vec<&str> =
                command.get_arguments().filter_map(|arg| arg.get_long()).collect();
            let names: Vec<&str> = listed.iter().map(|(name, _)| *name).collect();
            assert_eq!(
                names, known,
                "config/listed.rs lists every setting in the order of the help"
            );
        }
    }

    #[test]
    fn the_yaml_tells_external_labels_where_prometheus_does() {
        let config = settings(&["--external-labels=region=eu,zone=\"b\"", "--self-scrape=90s"]);
        let yaml = config.check().unwrap().yaml();
        let global = "global:\n  scrape_interval: 1m30s\n  external_labels:\n    \"region\": \"eu\"\n    \
                      \"zone\": \"\\\"b\\\"\"\nfirn:\n  data: \"./firn-data\"\n";
        assert!(yaml.starts_with(global), "{yaml}");
        assert!(yaml.contains("\n  label-value-bytes-max: \"4KiB\"\n"), "{yaml}");
    }

    #[test]
    fn every_setting_has_a_flag_an_environment_variable_and_words() {
        let command = Settings::augment_args(Command::new("firn"));
        for arg in command.get_arguments() {
            let long = arg.get_long().unwrap();
            let env = format!("FIRN_{}", long.replace('-', "_").to_uppercase());
            assert_eq!(arg.get_env().and_then(|env| env.to_str()), Some(env.as_str()));
            assert!(arg.get_help().is_some(), "--{long} has no words");
        }
    }
}
