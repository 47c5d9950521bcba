//! The settings of `firn serve`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Budget, LabelLimits, Result};
use firndb::{LogDevice, OwnFolder, QueryOptions, SeriesLimits};

use super::declare::{SettingValue, Settings, kebab_case, settings};
use super::log_files;
use super::reader::SettingsReader;
use super::setting::{Setting, UNBOUNDED};
use super::values::{
    Addresses, ByteSize, Count, Device, FilePath, Folder, Forever, GroupLabels, HostNames,
    LabelPairs, LabelValue, LogSync, Measured, Never, Or, OriginPattern, OriginUrl, ShardCount,
    SlowTier, Span, Switch, Unlimited, Unset, Zero,
};
use crate::access::GateOptions;
use crate::access::line_log::ForbiddenFiles;
use crate::clock::clock_ms;
use crate::hostname::hostname;
use crate::machine;
use crate::rules::RuleOptions;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

// Below this the log's buffers, one flush and one query do not fit side by side.
const MEMORY_BYTES_MIN: u64 = 64 * MIB;
// A few tables of full size; a tier that holds less is a mistake.
const TIER_BYTES_MIN: u64 = 64 * MIB;
// One series list, one batch of columns and one response.
const QUERY_BYTES_MIN: u64 = MIB;
// A few slabs.
const RESULT_CACHE_BYTES_MIN: u64 = 8 * MIB;
// Slabs that hold the larger directories.
const SLOW_CACHE_BYTES_MIN: u64 = 8 * MIB;
/// With less, usual requests are refused until a flush, and each needs one.
const LOG_BYTES_MIN: u64 = 16 * MIB;
// Each has a segment of 32 MiB ahead and syncs of its own; more than cores gain nothing.
const LOG_STREAMS_MAX: u64 = 16;
// A query requests 32 objects at a time.
const PATCHES_MAX: u64 = 32;
// Smaller frames hold one chunk each. Prometheus accepts no frame above 50 MB.
const FRAME_BYTES_MIN: u64 = KIB;
const FRAME_BYTES_MAX: u64 = 32 * MIB;
/// A stream holds four frames: sent, made, growing, and the samples of one, which are decoded.
const FRAME_MEMORY_PART: u64 = 16;
// More would only make a flush and a restart longer.
const HEAD_FLUSH_BYTES_MAX: u64 = 512 * MIB;
// A thread each. More only share the cores, and take memory while they are idle.
const CONCURRENCY_MAX: u64 = 1_024;
// Linux allows a process at most this number of file descriptors by default (fs.nr_open).
pub(super) const CONNECTIONS_MAX: u64 = 1 << 20;
// `__name__`, and the names and values that servers, agents and this server itself write.
const LABEL_BYTES_MIN: u64 = 64;
// A name, `job`, `instance` and a few more.
const LABEL_COUNT_MIN: u64 = 8;
// A usual request of remote write has some 30 KiB.
const REQUEST_BYTES_MIN: u64 = 64 * KIB;
// Data is dropped as whole tables, and samples arrive seconds late.
const RETENTION_MS_MIN: u64 = 60_000;
// Positions inside a request are 32 bits wide.
const REQUEST_BYTES_MAX: u64 = 2 * GIB;
// A thread each.
const RULE_THREADS_MAX: u64 = 256;
// A template with regular expressions.
const RULE_BYTES_MIN: u64 = 8 * MIB;
// Alerts of a kilobyte each fill a gigabyte.
const ALERT_QUEUE_MAX: u64 = 1_000_000;
// A scrape of a server with little data takes some milliseconds of a core.
const SELF_SCRAPE_MS_MIN: u64 = 100;
// All files are read at each comparison.
const CONFIG_RELOAD_MS_MIN: u64 = 1_000;

settings! {
    /// Checked settings of `firn serve`.
    pub struct ServeConfig("serve", "FIRN_");

    section "Storage";

    /// Folder of the database. `firn serve` creates it if it is missing.
    data: Folder = "./firn-data";

    /// Location of the history: a folder, or s3://, gs:// or az:// with bucket and prefix. `auto`
    /// is the folder `slow` inside --data.
    slow_tier: SlowTier = auto(SlowTier::below(&data));

    /// Fill an empty --data from the slow tier and take the slow tier over. The server that wrote
    /// there before is fenced and accepts no more writes (docs/tiers.md). A folder that has a
    /// database is opened as it is.
    restore: Switch = "false", not_with(&["read-only"]);

    /// Start without the index files that are damaged or missing and that the slow tier does not
    /// have. The series in them are lost for good; all others remain. Without this setting such a
    /// database does not start.
    forget_lost_index: Switch = "false", not_with(&["read-only"]);

    /// Start although all files of the log, or of one of its streams, are missing. The samples that
    /// no flush had written to a table yet are lost for good. Without this setting such a database
    /// does not start: the log's disk may only not be mounted.
    forget_lost_log: Switch = "false", not_with(&["read-only"]);

    /// Follow the history that another server writes to the slow tier, and accept no writes. --data
    /// must be a folder of its own (docs/tiers.md).
    read_only: Switch = "false";

    /// Age beyond which data is dropped, at least 1m. `forever` keeps all data.
    retention: Or<Forever, Span> = "forever",
        bounds(RETENTION_MS_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Upper limit for the tables on the local disk, at least 64MiB. Near the limit data moves to
    /// the slow tier sooner, far from it later. `unlimited` moves data at fixed ages.
    fast_bytes_max: Or<Unlimited, ByteSize> = "unlimited",
        bounds(TIER_BYTES_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Upper limit for the tables on the slow tier, at least 64MiB. Beyond it the oldest data is
    /// dropped. A limit switches --result-cache off.
    slow_bytes_max: Or<Unlimited, ByteSize> = "unlimited",
        bounds(TIER_BYTES_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Space on the local disk for blocks that queries have read from the slow tier. The cache
    /// survives a restart and shrinks when the disk is nearly full. At least 8MiB; 0 switches it
    /// off.
    slow_cache_bytes_max: Or<Zero, ByteSize> = "1GiB",
        bounds(SLOW_CACHE_BYTES_MIN, UNBOUNDED), only_with("slow-tier", "a remote --slow-tier");

    /// The labels that group new series, separated by commas. Series with equal values of all these
    /// labels share their timestamps. `auto` uses `job` and `instance`, or learns the labels from
    /// the series that arrive (docs/groups.md); `none` groups no series. Existing series keep their
    /// groups.
    group_by: GroupLabels = "auto", not_with(&["read-only"]);

    /// Shards of a new database, a power of two. An existing database keeps its number. Each takes
    /// 3 KiB, and all together at most an eighth of --memory.
    shards: ShardCount = "64", unit("shards"), not_with(&["read-only"]);

    section "Memory and queries";

    /// Upper limit for all memory of the database, at least 64MiB. `auto` is half the memory of the
    /// machine or of the control group of this process. More than all of that memory is reduced to
    /// it, with a warning.
    memory: ByteSize = auto(ByteSize((machine::memory_bytes() / 2).max(MEMORY_BYTES_MIN))),
        bounds(MEMORY_BYTES_MIN, UNBOUNDED);

    /// Queries that run at the same time, each on a thread of its own. Further ones wait. A thread
    /// counts as 64 KiB; those of queries, remote reads and rules take at most an eighth of
    /// --memory together.
    query_concurrency_max: Count = "20", unit("queries"), bounds(1, CONCURRENCY_MAX);

    /// Time that a query may take, waiting included.
    query_timeout: Span = "2m";

    /// Samples that a query may hold in memory at the same time. 0 means no limit other than
    /// memory.
    query_samples_max: Or<Zero, Count> = "50000000", unit("samples");

    /// Memory that a query may use, from 1MiB to --memory. `auto` is a quarter of --memory.
    query_memory: ByteSize = auto(ByteSize(machine::usable(memory.0) / 4)),
        bounds(QUERY_BYTES_MIN, UNBOUNDED);

    /// Space in --data for results of range queries: the next refresh of a dashboard computes its
    /// newest steps only. At least 8MiB; 0 switches the cache off.
    result_cache: Or<Zero, ByteSize> = "1GiB",
        bounds(RESULT_CACHE_BYTES_MIN, UNBOUNDED), not_with(&["read-only", "slow-bytes-max"]);

    /// How far back an instant selector looks for a sample.
    lookback: Span = "5m";

    section "Log and flush";

    /// When a write is acknowledged. `always`: once it is synced to the log's device. `never`: once
    /// the operating system has it. A duration such as 100ms: the same, with a sync at least this
    /// often, which bounds the data that a power failure may lose.
    log_sync: LogSync = "always", not_with(&["read-only"]);

    /// Device of the log of a new database: `file` is a folder beside its tables; `memory:FOLDER`
    /// is on a file system that maps byte-addressable memory (docs/durability.md). An existing
    /// database keeps its device.
    log_device: Device = "file", not_with(&["read-only"]);

    /// Number of log streams, at most 16 and at most --shards. Each takes 33 MiB of disk or more. A
    /// new number takes effect at the start, after a flush. `auto` is 1 for a log in files, and the
    /// number of cores, at most 4, on memory.
    log_streams: Count = auto(Count(stream_count(&log_device.0))),
        unit("streams"), bounds(1, LOG_STREAMS_MAX), not_with(&["read-only"]);

    /// Time that reading the log may take at the start after a crash. A flush begins before the
    /// estimate, which uses the measured speed of this machine, exceeds it. A machine that cannot
    /// flush as fast takes longer.
    restart_time_max: Span = "2s", not_with(&["read-only"]);

    /// Size of the log that starts a flush, at least 16MiB. The unused ends of files that killed
    /// processes leave count. At twice this size, without these ends, writes are refused with
    /// status 429.
    log_bytes_max: ByteSize = "1GiB", bounds(LOG_BYTES_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Size of the files of the log that are kept for destinations of `remote_write` which have not
    /// received them, beyond the log that a restart needs. Beyond it the oldest part is dropped,
    /// and counted in `firn_remote_write_log_dropped_bytes_total`.
    remote_write_log_max: ByteSize = "4GiB", not_with(&["read-only"]);

    /// Age at which samples in memory and log are flushed to tables.
    flush_age_max: Span = "20m", not_with(&["read-only"]);

    /// Size of unflushed samples in memory that starts a flush. `auto` is an eighth of --memory, at
    /// most 512MiB.
    head_flush_bytes: ByteSize =
        auto(ByteSize((machine::usable(memory.0) / 8).min(HEAD_FLUSH_BYTES_MAX))),
        bounds(1, UNBOUNDED), not_with(&["read-only"]);

    /// Age at which flushed data is uploaded to the slow tier. It bounds the data that is lost with
    /// the machine.
    upload_age_max: Span = "4h", not_with(&["read-only"]);

    /// Patches (late data) that may wait beside one part of a partition on the slow tier, at most
    /// 32. With one more they are merged. Each patch costs a query of that part one request; a
    /// merge uploads the whole part again.
    patches_max: Count = "3", unit("patches"), bounds(1, PATCHES_MAX), not_with(&["read-only"]);

    section "Writes";

    /// Number of series beyond which new ones are refused with status 429. Known series are still
    /// written. 0 means no limit.
    series_max: Or<Zero, Count> = "50000000", unit("series"), not_with(&["read-only"]);

    /// Number of series of one metric name beyond which new ones are refused. 0 means no limit.
    series_per_metric_max: Or<Zero, Count> = "0", unit("series"), not_with(&["read-only"]);

    /// Number of series of one group (--group-by; usually one target or host) beyond which new ones
    /// are refused. 0 means no limit.
    series_per_group_max: Or<Zero, Count> = "0", unit("series"), not_with(&["read-only"]);

    /// New series per second beyond which they are refused. Ten seconds' worth may arrive at once.
    /// 0 means no limit.
    new_series_per_second_max: Or<Zero, Count> = "0",
        unit("series per second"), not_with(&["read-only"]);

    /// Time by which a timestamp may be ahead of the server's clock.
    future_max: Span = "10m", not_with(&["read-only"]);

    /// Number of labels that one series may have, at least 8.
    label_count_max: Count = "64", unit("labels"), bounds(LABEL_COUNT_MIN, UNBOUNDED);

    /// Length of a label name, at least 64.
    label_name_bytes_max: ByteSize = "1KiB", bounds(LABEL_BYTES_MIN, REQUEST_BYTES_MAX);

    /// Length of a label value, at least 64.
    label_value_bytes_max: ByteSize = "4KiB", bounds(LABEL_BYTES_MIN, REQUEST_BYTES_MAX);

    /// Size of a write request as it is sent, compressed or not; at least 64KiB.
    body_bytes_max: ByteSize = "32MiB", bounds(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX);

    /// Size of a write request after decompression, if it is compressed; at least 64KiB.
    request_bytes_max: ByteSize = "64MiB", bounds(REQUEST_BYTES_MIN, REQUEST_BYTES_MAX);

    /// Respond with success although a part of a write was refused, if a retry would not help: to
    /// remote write with status 204, to writes of groups with 200.
    /// firn_write_rejected_samples_total counts the refused samples either way.
    write_lenient: Switch = "false", not_with(&["read-only"]);

    section "Remote read";

    /// Remote reads that run at the same time, each on a thread of its own. Further ones wait. For
    /// the number of threads see --query-concurrency-max.
    remote_read_concurrency_max: Count = "10", unit("reads"), bounds(1, CONCURRENCY_MAX);

    /// Samples that one query of a remote read may return, unless the response is streamed. 0 is no
    /// limit other than memory.
    remote_read_samples_max: Or<Zero, Count> = "50000000", unit("samples");

    /// Size at which a frame of a streamed remote read is closed, from 1KiB to 32MiB. A size over
    /// 1/16 of --query-memory is reduced to that, because a read holds several frames and their
    /// samples.
    remote_read_frame_bytes: ByteSize = "1MiB", bounds(FRAME_BYTES_MIN, FRAME_BYTES_MAX);

    section "Server";

    /// Addresses and ports to listen on, separated by commas. Each has the same TLS and users. Port
    /// 0 selects a free one.
    listen: Addresses = "127.0.0.1:9420";

    /// Addresses and ports of further listeners with a thread of their own, for health, readiness
    /// and metrics. /-/quit, /-/reload and /api/v1/admin are then served only there.
    admin_listen: Or<Unset, Addresses> = "none";

    /// Connections that have sent a request. At the limit the oldest connection between two
    /// requests is closed for a new one; without such a connection, further requests wait. Health,
    /// readiness and metrics are answered in any case.
    connections_max: Count = "512", unit("connections"), bounds(1, CONNECTIONS_MAX);

    /// The same for each client address, or IPv6 network of 64 bits. `auto` is half of
    /// --connections-max, and all of it for clients on this machine.
    connections_per_client_max: Or<Measured, Count> = "auto",
        unit("connections"), bounds(1, CONNECTIONS_MAX);

    /// Origins whose web pages may send requests and read responses: a regular expression for the
    /// whole origin, such as `https://grafana.example`. `none` allows only the page of this server.
    cors_origin: Or<Unset, OriginPattern> = "none";

    /// Names and addresses by which clients reach this server, separated by commas, beside
    /// localhost and the address in --listen. A request with another Host header is refused, so
    /// that no web page reaches the server under a name of its own (DNS rebinding). `*` allows
    /// every name. Without this setting a server that does not listen on loopback allows every
    /// name.
    allowed_hosts: HostNames = "";

    /// Labels that distinguish this server from others, as name=value pairs separated by commas.
    /// Federation, remote read and /api/v1/status/config return them.
    external_labels: LabelPairs = "";

    /// Let HTTP clients delete series, clean up after deletes, take snapshots, and delete or update
    /// ranges in transactions.
    enable_admin_api: Switch = "false";

    /// Let HTTP clients stop the server with /-/quit and call /-/reload.
    enable_lifecycle: Switch = "false";

    /// Interval at which the server scrapes its own metrics, at least 100ms. `never` switches it
    /// off.
    self_scrape: Or<Never, Span> = "15s",
        bounds(SELF_SCRAPE_MS_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Label `job` of the server's own metrics. Choose another one than the job under which a
    /// Prometheus scrapes this server. The limits on series never refuse these metrics.
    self_scrape_job: LabelValue = "firndb-self",
        only_with("self-scrape", "--self-scrape"), not_with(&["read-only"]);

    section "Collection";

    /// Configuration file of Prometheus with the targets to scrape (docs/collect.md). The running
    /// server reads it again after SIGHUP and /-/reload. `none` scrapes only the server itself.
    prometheus_config: Or<Unset, FilePath> = "none", not_with(&["read-only"]);

    /// Interval, at least 1s, at which a running server compares that file, its rule files and its
    /// further scrape configurations with the texts in use. It reads them again if they differ and
    /// have not changed since the previous comparison. `never` waits for SIGHUP or /-/reload.
    prometheus_config_reload: Or<Never, Span> = "never",
        bounds(CONFIG_RELOAD_MS_MIN, UNBOUNDED),
        only_with("prometheus-config", "--prometheus-config"), not_with(&["read-only"]);

    section "Rules and alerts";

    /// Rules that are evaluated at the same time, each on a thread of its own. Threads evaluate
    /// groups that are due first, then rules of running groups that do not read each other's
    /// results. Queries of clients do not use these threads.
    rule_concurrency_max: Count = "4", unit("rules"), bounds(1, RULE_THREADS_MAX),
        not_with(&["read-only"]);

    /// Memory of rules: their expressions, queries, series, alerts and notifications. It is set
    /// aside while there are rules, so that queries of clients cannot use it. An eighth is for
    /// expressions alone: rules whose results fill the rest can be replaced. From 8MiB to half of
    /// --memory; `auto` is an eighth.
    rule_memory: ByteSize =
        auto(ByteSize((machine::usable(memory.0) / 8).max(RULE_BYTES_MIN))),
        bounds(RULE_BYTES_MIN, UNBOUNDED), not_with(&["read-only"]);

    /// Age beyond which the state of an alert is not restored after a start, as Prometheus'
    /// --rules.alert.for-outage-tolerance.
    alert_outage_max: Span = "1h", not_with(&["read-only"]);

    /// Shortest time for which a restored alert stays pending. Alerts with a shorter `for` are not
    /// restored; as Prometheus' --rules.alert.for-grace-period.
    alert_grace_period: Span = "10m", not_with(&["read-only"]);

    /// Time after which an alert that still fires is sent to Alertmanager again, as Prometheus'
    /// --rules.alert.resend-delay.
    alert_resend_delay: Span = "1m", not_with(&["read-only"]);

    /// Alerts that may wait for one Alertmanager. Beyond that number the oldest are dropped and
    /// counted.
    alert_queue_max: Count = "10000", unit("alerts"), bounds(1, ALERT_QUEUE_MAX),
        not_with(&["read-only"]);

    /// URL by which users reach this server; links in alerts begin with it. `auto` is the host name
    /// with the port of --listen.
    external_url: Or<Measured, OriginUrl> = "auto", not_with(&["read-only"]);

    /// Offer the metrics of rules, notifications, queries and the database also under the names of
    /// Prometheus, which its dashboards and alerts use.
    prometheus_metric_names: Switch = "true", not_with(&["read-only"]);

    section "Security";

    /// File with TLS, users and their roles, in the format of Prometheus' --web.config.file and
    /// with keys of its own (docs/security.md). A running server applies changes of the file within
    /// seconds, or on SIGHUP. `none` admits every client.
    web_config: Or<Unset, FilePath> = "none";

    /// Refuse to start without users, or without TLS on an address that is not loopback.
    require_auth: Switch = "false";

    /// File that receives a JSON line for each delete, snapshot, range transaction, reload, refused
    /// login and refused request. `stderr` is standard error.
    audit_log: Or<Unset, FilePath> = "none";

    /// File that receives a JSON line for each query, as Prometheus' query_log_file, with user and
    /// cost. `stderr` is standard error.
    query_log: Or<Unset, FilePath> = "none";
}

/// A shard without data, in head, index and log.
const SHARD_BYTES: u64 = 3 << 10;
/// Shards take at most this part of --memory.
const SHARDS_MEMORY_PART: u64 = 8;
/// An idle thread: 28 KiB were measured; the first job adds to them.
const THREAD_BYTES: u64 = 64 << 10;
/// Threads that settings count take at most this part of --memory.
const THREADS_MEMORY_PART: u64 = 8;

/// In files a second sync costs more than a second stream saves (docs/decisions/0010).
fn stream_count(device: &LogDevice) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if *device == LogDevice::File { 1 } else { cores.min(4) as u64 }
}

impl ServeConfig {
    fn check_together(&self, reader: &SettingsReader<'_>) -> Result<()> {
        let shards = self.shards.get() as u64;
        if self.log_streams.0 > shards {
            let expected = format!("1 to the number of --shards, {shards}");
            return Err(reader.refuse("log-streams", expected));
        }
        if let Some(memory) = self.memory_for_shards(self.shards.get()) {
            let shards_max = self.memory.0 / SHARDS_MEMORY_PART / SHARD_BYTES;
            let expected = format!(
                "at most {} with --memory {}; this number needs {memory}",
                1_u64 << shards_max.max(1).ilog2(),
                self.memory
            );
            return Err(reader.refuse("shards", expected));
        }
        self.check_threads(reader)?;
        if self.query_memory > self.memory {
            let expected = format!("at most --memory, {}", self.memory);
            return Err(reader.refuse("query-memory", expected));
        }
        if self.rule_memory.0 > self.memory.0 / 2 {
            let expected = format!("at most half of --memory, {}", self.memory);
            return Err(reader.refuse("rule-memory", expected));
        }
        let logs = [("audit-log", &self.audit_log), ("query-log", &self.query_log)];
        log_files::check(reader, &logs, &self.inputs(), self.own_folders())
    }

    /// Names the setting with the most threads, with the number that the others leave to it.
    fn check_threads(&self, reader: &SettingsReader<'_>) -> Result<()> {
        let counts = [
            ("query-concurrency-max", self.query_concurrency_max.0),
            ("remote-read-concurrency-max", self.remote_read_concurrency_max.0),
            ("rule-concurrency-max", self.rule_concurrency_max.0),
        ];
        let sum: u64 = counts.iter().map(|(_, count)| count).sum();
        let sum_max = self.memory.0 / THREADS_MEMORY_PART / THREAD_BYTES;
        let Some((name, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return Ok(());
        };
        if sum <= sum_max {
            return Ok(());
        }
        let expected = format!(
            "at most {} with --memory {}: threads of queries, remote reads and rules, {sum} \
             together, take up to {} each and an eighth of the memory in all",
            (count + sum_max).saturating_sub(sum).max(1),
            self.memory,
            ByteSize(THREAD_BYTES)
        );
        Err(reader.refuse(name, expected))
    }

    /// The least `--memory` with `count` shards; `None` if there is as much.
    pub(crate) fn memory_for_shards(&self, count: usize) -> Option<ByteSize> {
        let needed = ByteSize(count as u64 * SHARD_BYTES * SHARDS_MEMORY_PART);
        (needed > self.memory).then_some(needed)
    }

    /// The settings of files that are read.
    fn inputs(&self) -> [(&'static str, &Or<Unset, FilePath>); 2] {
        [("web-config", &self.web_config), ("prometheus-config", &self.prometheus_config)]
    }

    /// Finds the folder of a database that a file is in.
    fn own_folders(&self) -> impl Fn(&Path) -> Option<String> + Send + Sync + use<> {
        let (data, slow_tier) = (self.data.clone(), self.slow_tier.clone());
        move |path| {
            let own = OwnFolder::around(path, Some(&data));
            own.or_else(|| slow_tier.around(path)).map(|own| own.to_string())
        }
    }

    /// Users and TLS of the listeners.
    pub(crate) fn gate_options(&self) -> GateOptions {
        let path = |setting: &Or<Unset, FilePath>| setting.get().map(|path| path.0);
        GateOptions {
            file: path(&self.web_config),
            audit_log: path(&self.audit_log),
            requires_auth: self.require_auth.is_on(),
            token: None,
            forbidden: ForbiddenFiles {
                inputs: log_files::input_files(&self.inputs()),
                own: Some(Arc::new(self.own_folders())),
            },
            is_http: true,
            refuses_matchers: false,
        }
    }

    /// Memory of rules, and limits of their queries.
    pub(crate) fn rule_options(&self, on_idle: fn()) -> RuleOptions {
        let labels = self.external_labels.0.iter();
        let memory_bytes = self.rule_memory.0;
        RuleOptions {
            thread_count: self.rule_concurrency_max.to_usize(),
            budget: Budget::unlimited().part_of_setting(memory_bytes, "--rule-memory"),
            memory_bytes,
            query: QueryOptions {
                lookback_ms: self.lookback.ms(),
                samples_max: self.query_samples_max(),
                labels_max: self.label_limits(),
                ..QueryOptions::default()
            },
            timeout: self.query_timeout.duration(),
            outage_ms: self.alert_outage_max.ms(),
            grace_ms: self.alert_grace_period.ms(),
            resend_ms: self.alert_resend_delay.ms(),
            queue_len_max: self.alert_queue_max.to_usize(),
            external_labels: labels.map(|(name, value)| (name.into(), value.into())).collect(),
            on_idle,
            clock: Arc::new(clock_ms),
        }
    }

    /// The URL of this server in alerts, without a slash at its end.
    pub(crate) fn external_url(&self, listens: &[SocketAddr]) -> String {
        match self.external_url.get() {
            Some(url) => url.to_string().trim_end_matches('/').to_owned(),
            None => {
                let port = listens.first().map_or(0, SocketAddr::port);
                format!("http://{}:{port}", hostname())
            }
        }
    }

    /// Settings that take effect otherwise than they are typed.
    fn warnings(&self) -> Vec<String> {
        machine::warn_of(self.memory).into_iter().collect()
    }

    /// The memory limit that is in force: at most the memory of the machine.
    pub fn memory_bytes(&self) -> u64 {
        machine::usable(self.memory.0)
    }

    /// The samples of a query; the greatest number without a limit.
    pub(crate) fn query_samples_max(&self) -> u64 {
        self.query_samples_max.get().map_or(u64::MAX, |max| max.0)
    }

    /// The size of frames that is in force, which fits into the memory of a query.
    pub(crate) fn frame_bytes(&self) -> usize {
        ByteSize(self.remote_read_frame_bytes.0.min(self.query_memory.0 / FRAME_MEMORY_PART))
            .to_usize()
    }

    /// Limits by which new series are refused.
    pub fn series_limits(&self) -> SeriesLimits {
        let limit = |max: &Or<Zero, Count>| max.get().map(|max| max.0);
        SeriesLimits {
            series_max: limit(&self.series_max),
            series_per_metric_max: limit(&self.series_per_metric_max),
            series_per_group_max: limit(&self.series_per_group_max),
            new_series_per_second_max: limit(&self.new_series_per_second_max),
        }
    }

    /// Limits of one label set.
    pub fn label_limits(&self) -> LabelLimits {
        LabelLimits {
            label_count_max: self.label_count_max.to_usize(),
            name_bytes_max: self.label_name_bytes_max.to_usize(),
            value_bytes_max: self.label_value_bytes_max.to_usize(),
        }
    }

    /// Size of the result cache; `None` where it has no effect.
    pub fn result_cache_bytes(&self) -> Option<u64> {
        // A replica is not notified of its writer's changes; data that is dropped by size leaves at
        // a time that kept results cannot know.
        let has_effect = !self.read_only.0 && self.slow_bytes_max.get().is_none();
        self.result_cache.get().filter(|_| has_effect).map(|size| size.0)
    }

    /// Whether `slow_bytes_max` alone disables the result cache.
    pub fn drops_result_cache(&self) -> bool {
        let has_limit = !self.read_only.0 && self.slow_bytes_max.get().is_some();
        has_limit && self.result_cache.get().is_some()
    }

    /// Interval of the scrapes of itself; `None` for a replica, which accepts no samples.
    pub fn self_scrape_interval(&self) -> Option<Span> {
        self.self_scrape.get().filter(|_| !self.read_only.0)
    }
}
