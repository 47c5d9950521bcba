//! Sections that configure the server: `runtime`, `storage`, `tracing`, `otlp`.

use std::collections::BTreeMap;

use super::http::is_reserved_header;
use super::{HiddenText, Millis, Size, TlsConfig};
use firn_yaml::quoted;
use firn_yaml::{Checked, Field, section, words};

words! {
    /// The least severity of messages.
    pub enum LogLevel: "config.LogLevel" {
        Debug = "debug",
        Info = "info",
        Warn = "warn",
        Error = "error",
    }
    fold |text| text.to_lowercase();
    unknown |text| format!("unrecognized log level {text}");
    empty Info;
}

section! {
    /// Settings of the process.
    pub struct Runtime: "config.RuntimeConfig" {
        /// Percentage of Go's garbage collector: read, without effect.
        gogc: i64 = "gogc" omit,
        log_level: LogLevel = "log_level" omit,
    }
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime { gogc: 75, log_level: LogLevel::Info }
    }
}

/// Without checks, a section keeps the defaults of absent keys.
impl Checked for Runtime {}

section! {
    /// Settings of the storage.
    pub struct Storage: "config.StorageConfig" {
        /// Always set in a loaded configuration.
        tsdb: Option<Tsdb> = "tsdb" omit,
        exemplars: Option<Exemplars> = "exemplars" omit,
    }
}

section! {
    /// Settings of the blocks.
    pub struct Tsdb: "config.plain" {
        out_of_order_time_window: Millis = "out_of_order_time_window" omit,
        /// Between 0 and 1.
        stale_series_compaction_threshold: f64 = "stale_series_compaction_threshold" omit,
        chunk_encoding: ChunkEncoding = "chunk_encoding" omit,
        /// Always set in a loaded configuration.
        retention: Option<Retention> = "retention" omit,
    }
}

section! {
    /// Encodings of chunks.
    pub struct ChunkEncoding: "config.ChunkEncodingConfig" {
        /// `xor`, `xor2` or empty.
        floats: String = "floats" omit,
    }
}

section! {
    /// Limits of the data that is kept. 0 is no limit.
    pub struct Retention: "config.plain" {
        time: Millis = "time" omit,
        size: Size = "size" omit,
        /// Of the disk.
        percentage: f64 = "percentage" omit,
    }
}

section! {
    /// Settings of exemplars.
    pub struct Exemplars: "config.ExemplarsConfig" {
        /// Kept in memory.
        max_exemplars: i64 = "max_exemplars" omit,
    }
}

impl Checked for Storage {}
impl Checked for ChunkEncoding {}
impl Checked for Exemplars {}

impl Tsdb {
    pub(super) fn defaults() -> Tsdb {
        Tsdb { retention: Some(Retention::zero()), ..Tsdb::zero() }
    }
}

impl Checked for Tsdb {
    fn start(&mut self) {
        *self = Tsdb::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        let floats = &self.chunk_encoding.floats;
        if !matches!(floats.as_str(), "" | "xor" | "xor2") {
            let floats = quoted(floats.as_bytes());
            return Err(format!(
                "'storage.tsdb.chunk_encoding.floats' must be 'xor' or 'xor2', or the field must \
                 be omitted entirely, got {floats}"
            ));
        }
        self.retention.get_or_insert_with(Retention::zero);
        Ok(())
    }
}

impl Checked for Retention {
    fn start(&mut self) {
        *self = Retention::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        if self.size.as_bytes() < 0 {
            return Err(format!(
                "'storage.tsdb.retention.size' must be greater than or equal to 0, got {}",
                self.size
            ));
        }
        if !(0.0..=100.0).contains(&self.percentage) {
            return Err(format!(
                "'storage.tsdb.retention.percentage' must be in the range [0, 100], got {}",
                self.percentage
            ));
        }
        Ok(())
    }
}

words! {
    /// A protocol of traces.
    pub enum TracingClient: "config.TracingClientType" {
        Http = "http",
        Grpc = "grpc",
    }
    fold |text| text.to_owned();
    unknown |text| format!(
        "expected tracing client type to be to be http or grpc, but got {text}"
    );
}

section! {
    /// The destination of traces.
    pub struct Tracing: "config.plain" {
        client_type: TracingClient = "client_type" omit,
        endpoint: String = "endpoint" omit,
        sampling_fraction: f64 = "sampling_fraction" omit,
        insecure: bool = "insecure" omit,
        tls_config: TlsConfig = "tls_config" omit,
        headers: BTreeMap<String, HiddenText> = "headers" omit,
        compression: String = "compression" omit,
        timeout: Millis = "timeout" omit,
    }
}

impl Checked for Tracing {
    fn start(&mut self) {
        *self = Tracing { client_type: TracingClient::Grpc, ..Tracing::zero() };
    }

    fn check(&mut self) -> Result<(), String> {
        for name in self.headers.keys() {
            if name.eq_ignore_ascii_case("authorization") {
                return Err(
                    "custom authorization header configuration is not yet supported".to_owned()
                );
            }
            if is_reserved_header(name) {
                return Err(format!("{name} is a reserved header. It must not be changed"));
            }
        }
        if self.endpoint.is_empty() {
            return Err("tracing endpoint must be set".to_owned());
        }
        match self.compression.as_str() {
            "" | "gzip" => Ok(()),
            other => Err(format!("invalid compression type {other} provided, valid options: gzip")),
        }
    }
}

section! {
    /// Settings of samples of OpenTelemetry.
    pub struct Otlp: "config.plain" {
        promote_all_resource_attributes: bool = "promote_all_resource_attributes" omit,
        promote_resource_attributes: Vec<String> = "promote_resource_attributes" omit,
        ignore_resource_attributes: Vec<String> = "ignore_resource_attributes" omit,
        /// One of four words, or empty.
        translation_strategy: String = "translation_strategy",
        keep_identifying_resource_attributes: bool = "keep_identifying_resource_attributes" omit,
        convert_histograms_to_nhcb: bool = "convert_histograms_to_nhcb" omit,
        promote_scope_metadata: bool = "promote_scope_metadata" omit,
        label_name_underscore_sanitization: bool = "label_name_underscore_sanitization",
        label_name_preserve_multiple_underscores: bool =
            "label_name_preserve_multiple_underscores",
    }
}

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp {
            translation_strategy: "UnderscoreEscapingWithSuffixes".to_owned(),
            label_name_underscore_sanitization: true,
            label_name_preserve_multiple_underscores: true,
            ..Otlp::zero()
        }
    }
}

impl Checked for Otlp {
    fn start(&mut self) {
        *self = Otlp::default();
    }

    fn check(&mut self) -> Result<(), String> {
        if !self.promote_all_resource_attributes {
            if !self.ignore_resource_attributes.is_empty() {
                return Err("'ignore_resource_attributes' cannot be configured unless \
                            'promote_all_resource_attributes' is true"
                    .to_owned());
            }
            return trim_attributes(&mut self.promote_resource_attributes, "promoted")
                .map_err(|error| format!("invalid 'promote_resource_attributes': {error}"));
        }
        if !self.promote_resource_attributes.is_empty() {
            return Err("'promote_all_resource_attributes' and 'promote_resource_attributes' \
                        cannot be configured simultaneously"
                .to_owned());
        }
        trim_attributes(&mut self.ignore_resource_attributes, "ignored")
            .map_err(|error| format!("invalid 'ignore_resource_attributes': {error}"))
    }
}

impl Otlp {
    /// Names beyond ASCII need a scheme that allows them.
    pub(super) fn check_strategy(&self, has_utf8: bool) -> Result<(), String> {
        let strategy = quoted(self.translation_strategy.as_bytes());
        match self.translation_strategy.as_str() {
            "" | "UnderscoreEscapingWithSuffixes" | "UnderscoreEscapingWithoutSuffixes" => Ok(()),
            "NoTranslation" | "NoUTF8EscapingWithSuffixes" if has_utf8 => Ok(()),
            "NoTranslation" | "NoUTF8EscapingWithSuffixes" => Err(format!(
                "OTLP translation strategy {strategy} is not allowed when UTF8 is disabled"
            )),
            _ => Err(format!("unsupported OTLP translation strategy {strategy}")),
        }
    }
}

/// Trims the names; all that are empty or repeated are in the error, one in each line.
fn trim_attributes(attributes: &mut [String], adjective: &str) -> Result<(), String> {
    let mut seen: Vec<String> = Vec::new();
    let mut errors = Vec::new();
    for attribute in attributes {
        let trimmed = attribute.trim();
        if trimmed.is_empty() {
            errors.push(format!("empty {adjective} OTel resource attribute"));
        } else if seen.iter().any(|one| one == trimmed) {
            let name = quoted(trimmed.as_bytes());
            errors.push(format!("duplicated {adjective} OTel resource attribute {name}"));
        } else {
            *attribute = trimmed.to_owned();
            seen.push(attribute.clone());
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}
