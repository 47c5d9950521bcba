//! Settings as the server tells them: under its own names and under Prometheus'.

use crate::config::{Config, LogSync};
use crate::wire::json;
use crate::wire::number::unit_duration;

/// Parts of PromQL that Prometheus must be asked for and that are always on here.
const PROMQL_FEATURES: &str = "promql-experimental-functions,promql-duration-expr,\
                               promql-extended-range-selectors,promql-binop-fill-modifiers";

impl Config {
    /// Every setting as it is in effect, by the name of its flag, in the order of the help; typed as
    /// flags the values give the same configuration.
    pub fn listed(&self) -> Vec<(&'static str, String)> {
        let labels = self.external_labels.iter().map(|(name, value)| format!("{name}={value}"));
        let text = |text: &str| text.to_owned();
        vec![
            ("data", self.data.display().to_string()),
            ("listen", self.listen.to_string()),
            ("slow-tier", self.slow_tier.clone()),
            ("restore", self.restore.to_string()),
            ("forget-lost-index", self.forget_lost_index.to_string()),
            ("read-only", self.read_only.to_string()),
            ("memory", size(self.memory_bytes_max)),
            ("retention", self.retention_ms.map_or_else(|| text("forever"), unit_duration)),
            ("fast-bytes-max", tier_size(self.fast_bytes_max)),
            ("slow-bytes-max", tier_size(self.slow_bytes_max)),
            ("slow-cache-bytes-max", size(self.slow_cache_bytes_max)),
            ("group-by", self.group_by.join(",")),
            (
                "log-sync",
                match self.log_sync {
                    LogSync::Always => text("always"),
                    LogSync::Never => text("never"),
                    LogSync::IntervalMs(ms) => unit_duration(ms as i64),
                },
            ),
            ("log-device", self.log_device.to_string()),
            ("flush-age-max", unit_duration(self.flush_age_ms_max)),
            ("upload-age-max", unit_duration(self.upload_age_ms_max)),
            ("patches-max", self.patches_max.to_string()),
            ("head-flush-bytes", size(self.head_flush_bytes)),
            ("log-bytes-max", size(self.log_bytes_max)),
            ("shards", self.shard_count.to_string()),
            ("log-streams", self.stream_count.to_string()),
            ("series-max", count(self.series.series_max)),
            ("series-per-metric-max", count(self.series.series_per_metric_max)),
            ("series-per-group-max", count(self.series.series_per_group_max)),
            ("new-series-per-second-max", count(self.series.new_series_per_second_max)),
            ("future-max", unit_duration(self.future_ms_max)),
            ("label-count-max", self.labels.label_count_max.to_string()),
            ("label-name-bytes-max", size(self.labels.name_bytes_max as u64)),
            ("label-value-bytes-max", size(self.labels.value_bytes_max as u64)),
            ("body-bytes-max", size(self.body_bytes_max as u64)),
            ("request-bytes-max", size(self.request_bytes_max as u64)),
            ("write-lenient", self.write_lenient.to_string()),
            ("query-concurrency-max", self.query_concurrency_max.to_string()),
            ("query-timeout", unit_duration(self.query_timeout.as_millis() as i64)),
            ("query-samples-max", self.query_samples_max.to_string()),
            ("query-memory", size(self.query_bytes_max)),
            ("result-cache", size(self.result_cache_bytes.unwrap_or(0))),
            ("remote-read-concurrency-max", self.remote_read_concurrency_max.to_string()),
            ("remote-read-samples-max", count(self.remote_read_samples_max)),
            ("remote-read-frame-bytes", size(self.remote_read_frame_bytes as u64)),
            ("lookback", unit_duration(self.lookback_ms)),
            ("connections-max", self.connections_max.to_string()),
            ("cors-origin", text(self.cors_origin.value())),
            ("external-labels", labels.collect::<Vec<_>>().join(",")),
            ("enable-admin-api", self.admin_api.to_string()),
            ("enable-lifecycle", self.lifecycle_api.to_string()),
            ("self-scrape", self.scrape_interval().unwrap_or_else(|| text("never"))),
        ]
    }

    /// What ends the life of data, as Prometheus puts it: time, size, or both.
    pub fn storage_retention(&self) -> String {
        let limits = [self.retention_ms.map(unit_duration), self.slow_bytes_max.map(size)];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        if limits.is_empty() { "forever".to_owned() } else { limits.join(" or ") }
    }

    /// [`Config::listed`], and the same under the names that clients of Prometheus look for. `listen` is
    /// where the server really listens.
    pub fn flags(&self, listen: &str) -> Vec<(&'static str, String)> {
        // 0 is Prometheus' word for data that is kept.
        let retention = self.retention_ms.map_or_else(|| "0s".to_owned(), unit_duration);
        let mut flags = self.listed();
        flags.extend([
            ("enable-feature", PROMQL_FEATURES.to_owned()),
            ("query.lookback-delta", unit_duration(self.lookback_ms)),
            ("query.max-concurrency", self.query_concurrency_max.to_string()),
            ("query.max-samples", self.query_samples_max.to_string()),
            ("query.timeout", unit_duration(self.query_timeout.as_millis() as i64)),
            ("storage.remote.read-concurrent-limit", self.remote_read_concurrency_max.to_string()),
            ("storage.remote.read-max-bytes-in-frame", self.remote_read_frame_bytes.to_string()),
            ("storage.remote.read-sample-limit", count(self.remote_read_samples_max)),
            ("storage.tsdb.path", self.data.display().to_string()),
            ("storage.tsdb.retention", retention.clone()),
            ("storage.tsdb.retention.size", self.slow_bytes_max.map_or("0B".to_owned(), size)),
            ("storage.tsdb.retention.time", retention),
            ("web.cors.origin", self.cors_origin.value().to_owned()),
            ("web.enable-admin-api", self.admin_api.to_string()),
            ("web.enable-lifecycle", self.lifecycle_api.to_string()),
            ("web.enable-otlp-receiver", "false".to_owned()),
            ("web.enable-remote-write-receiver", "true".to_owned()),
            ("web.listen-address", listen.to_owned()),
            ("web.max-connections", self.connections_max.to_string()),
        ]);
        flags
    }

    /// The settings as YAML: under `global` what Prometheus calls the same, so that its clients find
    /// their external labels, under `firn` all of them.
    pub fn yaml(&self) -> String {
        let mut yaml = "global:\n".to_owned();
        if let Some(interval) = self.scrape_interval() {
            yaml += &format!("  scrape_interval: {interval}\n");
        }
        if !self.external_labels.is_empty() {
            yaml += "  external_labels:\n";
            for (name, value) in self.external_labels.iter() {
                yaml += &format!("    {}: {}\n", quoted(name), quoted(value));
            }
        }
        yaml += "firn:\n";
        for (name, value) in self.listed() {
            yaml += &format!("  {name}: {}\n", quoted(&value));
        }
        yaml
    }

    fn scrape_interval(&self) -> Option<String> {
        self.self_scrape.map(|interval| unit_duration(interval.as_millis() as i64))
    }
}

/// A limit, 0 if there is none.
fn count(max: Option<u64>) -> String {
    max.unwrap_or(0).to_string()
}

fn tier_size(max: Option<u64>) -> String {
    max.map_or_else(|| "unlimited".to_owned(), size)
}

/// A size in the largest unit that holds it whole.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    whole.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// A text that YAML takes for nothing but a text: a JSON string is one.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::new();
    json::push_string(text, &mut quoted);
    String::from_utf8_lossy(&quoted).into_owned()
}
