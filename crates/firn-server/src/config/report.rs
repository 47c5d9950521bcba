//! Settings as the server and `firn config print` show them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use firn_model::one_line;

use super::cache::CacheConfig;
use super::declare::Settings;
use super::load::LoadedConfig;
use super::serve::ServeConfig;
use super::source::Source;
use super::values::{SettingType, joined};
use crate::wire::json;

/// Parts of PromQL that Prometheus has behind a flag and that are always on here.
const PROMQL_FEATURES: &str = "promql-experimental-functions,promql-duration-expr,\
                               promql-extended-range-selectors,promql-binop-fill-modifiers";

impl<C: Settings> LoadedConfig<C> {
    /// The effective settings as a configuration file, with the source of each as a comment.
    /// Settings without effect are comments. Passwords are left out.
    pub fn print(&self) -> String {
        let mut text = format!("# firn {}: effective settings and their sources\n", C::COMMAND);
        for warning in &self.warnings {
            text += &format!("# warning: {}\n", one_line(warning));
        }
        let mut section = "";
        for entry in &self.effective {
            if entry.setting.section != section {
                section = entry.setting.section;
                // Writing into a string cannot fail.
                let _ = write!(text, "\n# {section}\n");
            }
            let line = format!("{}: {}", entry.setting.name, scalar(&entry.value));
            let computed = match entry.source {
                Source::Default if entry.setting.has_auto => " (auto)",
                _ => "",
            };
            let source = format!("{}{computed}", one_line(&entry.source.to_string()));
            let _ = match &entry.without_effect {
                None => writeln!(text, "{line:<46} # {source}"),
                Some(reason) => {
                    writeln!(text, "{:<46} # {source}; no effect {reason}", format!("# {line}"))
                }
            };
        }
        text
    }
}

impl LoadedConfig<CacheConfig> {
    /// Warns of credentials that every user of this machine can read in the list of processes.
    pub fn warn_of_credentials(&self) {
        let has_credentials =
            self.config.proxy.get().is_some_and(|origin| origin.has_credentials());
        let is_flag = self
            .effective
            .iter()
            .any(|entry| entry.setting.name == "proxy" && entry.source == Source::Flag);
        if has_credentials && is_flag {
            tracing::warn!(
                "--proxy contains credentials, which other users of this machine can see in the \
                 list of processes; set FIRN_CACHE_PROXY or use a configuration file instead"
            );
        }
    }
}

impl ServeConfig {
    /// Every setting by the name of its flag, in the order of the table, without passwords. A
    /// setting without effect is listed with its value.
    pub fn listed(&self) -> Vec<(&'static str, String)> {
        let values = self.values().into_iter().map(|value| value.shown);
        Self::TABLE.iter().map(|setting| setting.name).zip(values).collect()
    }

    /// The limits that end the life of data, as Prometheus shows them: time, size, or both.
    pub fn storage_retention(&self) -> String {
        let age = self.retention.get().map(|age| age.to_string());
        let size = self.slow_bytes_max.get().map(|size| size.to_string());
        let limits: Vec<String> = [age, size].into_iter().flatten().collect();
        if limits.is_empty() { "forever".to_owned() } else { limits.join(" or ") }
    }

    /// [`ServeConfig::listed`], and the same under the names that clients of Prometheus read.
    /// `listens` are the addresses of the open sockets.
    pub fn flags(&self, listens: &[SocketAddr]) -> Vec<(&'static str, String)> {
        // Prometheus writes 0 for data that is kept.
        let retention = self.retention.get().map_or_else(|| "0s".to_owned(), |age| age.to_string());
        let slow_bytes = self.slow_bytes_max.get();
        let mut flags = self.listed();
        flags.extend([
            ("config.auto-reload-interval", self.prometheus_config_reload.to_string()),
            ("config.file", self.prometheus_config.to_string()),
            ("alertmanager.notification-queue-capacity", self.alert_queue_max.to_string()),
            ("enable-feature", PROMQL_FEATURES.to_owned()),
            ("query.lookback-delta", self.lookback.to_string()),
            ("query.max-concurrency", self.query_concurrency_max.to_string()),
            ("query.max-samples", self.query_samples_max.to_string()),
            ("query.timeout", self.query_timeout.to_string()),
            ("rules.alert.for-grace-period", self.alert_grace_period.to_string()),
            ("rules.alert.for-outage-tolerance", self.alert_outage_max.to_string()),
            ("rules.alert.resend-delay", self.alert_resend_delay.to_string()),
            ("rules.max-concurrent-evals", self.rule_concurrency_max.to_string()),
            ("storage.remote.read-concurrent-limit", self.remote_read_concurrency_max.to_string()),
            ("storage.remote.read-max-bytes-in-frame", self.remote_read_frame_bytes.0.to_string()),
            ("storage.remote.read-sample-limit", self.remote_read_samples_max.to_string()),
            ("storage.tsdb.path", self.data.to_string()),
            ("storage.tsdb.retention", retention.clone()),
            (
                "storage.tsdb.retention.size",
                slow_bytes.map_or_else(|| "0B".to_owned(), |size| size.to_string()),
            ),
            ("storage.tsdb.retention.time", retention),
            ("web.cors.origin", self.cors_origin.to_string()),
            ("web.enable-admin-api", self.enable_admin_api.to_string()),
            ("web.enable-lifecycle", self.enable_lifecycle.to_string()),
            ("web.enable-otlp-receiver", "false".to_owned()),
            ("web.enable-remote-write-receiver", "true".to_owned()),
            ("web.external-url", self.external_url(listens)),
            ("web.listen-address", joined(listens)),
            ("web.max-connections", self.connections_max.to_string()),
        ]);
        flags
    }

    /// The settings as YAML: under `global` those that Prometheus has too, where its clients look
    /// for external labels, and under `firn` all of them.
    pub fn yaml(&self) -> String {
        let mut yaml = "global:\n".to_owned();
        if let Some(interval) = self.self_scrape_interval() {
            yaml += &format!("  scrape_interval: {interval}\n");
        }
        if self.external_labels.is_on() {
            yaml += "  external_labels:\n";
            for (name, value) in self.external_labels.0.iter() {
                yaml += &format!("    {}: {}\n", quoted(name), quoted(value));
            }
        }
        yaml += "firn:\n";
        for (name, value) in self.listed() {
            yaml += &format!("  {name}: {}\n", quoted(&value));
        }
        yaml
    }
}

/// A text as YAML, quoted where it needs to be.
fn scalar(text: &str) -> String {
    let is_plain_char = |c: char| c.is_ascii_alphanumeric() || "_./:=,+-".contains(c);
    let starts_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "./".contains(c));
    let is_plain = starts_plain && text.chars().all(is_plain_char) && !text.ends_with(':');
    if is_plain { text.to_owned() } else { quoted(text) }
}

/// A text that YAML reads as a string: a JSON string is one.
fn quoted(text: &str) -> String {
    let mut quoted = Vec::new();
    json::push_string(text, &mut quoted);
    String::from_utf8_lossy(&json::printable(quoted)).into_owned()
}
