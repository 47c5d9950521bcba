//! `scrape_configs`: the jobs.

use std::collections::BTreeMap;

use super::discovery::Discoveries;
use super::global::check_protocols;
use super::{
    Escaping, EscapingText, FilePath, Global, HttpClient, Millis, RuleList, ScrapeProtocol, Size,
};
use crate::relabel::NameScheme;
use firn_yaml::quoted;
use firn_yaml::{Checked, Field, section};

section! {
    /// A job. In a loaded configuration it has the values that it inherits: no interval, timeout or
    /// list of protocols is empty and no switch is absent.
    pub struct ScrapeConfig: "config.ScrapeConfig" {
        job_name: String = "job_name",
        honor_labels: bool = "honor_labels" omit,
        honor_timestamps: bool = "honor_timestamps",
        track_timestamps_staleness: bool = "track_timestamps_staleness",
        params: BTreeMap<String, Vec<String>> = "params" omit,
        scrape_interval: Millis = "scrape_interval" omit,
        scrape_timeout: Millis = "scrape_timeout" omit,
        scrape_protocols: Option<Vec<ScrapeProtocol>> = "scrape_protocols" omit,
        fallback_scrape_protocol: Option<ScrapeProtocol> = "fallback_scrape_protocol" omit,
        scrape_native_histograms: Option<bool> = "scrape_native_histograms" omit,
        always_scrape_classic_histograms: Option<bool> = "always_scrape_classic_histograms" omit,
        convert_classic_histograms_to_nhcb: Option<bool> =
            "convert_classic_histograms_to_nhcb" omit,
        scrape_failure_log_file: FilePath = "scrape_failure_log_file" omit,
        metrics_path: String = "metrics_path" omit,
        scheme: String = "scheme" omit,
        enable_compression: bool = "enable_compression",
        /// Bytes of an uncompressed body. 0 is no limit, as in all limits.
        body_size_limit: Size = "body_size_limit" omit,
        sample_limit: u64 = "sample_limit" omit,
        target_limit: u64 = "target_limit" omit,
        label_limit: u64 = "label_limit" omit,
        label_name_length_limit: u64 = "label_name_length_limit" omit,
        label_value_length_limit: u64 = "label_value_length_limit" omit,
        native_histogram_bucket_limit: u64 = "native_histogram_bucket_limit" omit,
        native_histogram_min_bucket_factor: f64 = "native_histogram_min_bucket_factor" omit,
        keep_dropped_targets: u64 = "keep_dropped_targets" omit,
        metric_name_validation_scheme: NameScheme = "metric_name_validation_scheme" omit,
        metric_name_escaping_scheme: EscapingText = "metric_name_escaping_scheme" omit,
        extra_scrape_metrics: Option<bool> = "extra_scrape_metrics" omit,
        relabel_configs: RuleList = "relabel_configs" omit,
        metric_relabel_configs: RuleList = "metric_relabel_configs" omit,
    }
    inline { http: HttpClient, discoveries: Discoveries, }
}

impl Checked for ScrapeConfig {
    fn start(&mut self) {
        *self = ScrapeConfig {
            honor_timestamps: true,
            metrics_path: "/metrics".to_owned(),
            scheme: "http".to_owned(),
            enable_compression: true,
            http: HttpClient::default(),
            ..ScrapeConfig::zero()
        };
    }

    fn check(&mut self) -> Result<(), String> {
        self.discoveries.check_nulls()?;
        if self.job_name.is_empty() {
            return Err("job_name is empty".to_owned());
        }
        self.http.check()?;
        if self.relabel_configs.is_empty() {
            self.discoveries.check_static_targets()?;
        }
        if self.relabel_configs.has_null() {
            return Err("empty or null target relabeling rule in scrape config".to_owned());
        }
        if self.metric_relabel_configs.has_null() {
            return Err("empty or null metric relabeling rule in scrape config".to_owned());
        }
        Ok(())
    }
}

impl ScrapeConfig {
    /// Takes the values of `global` that the job does not set, and checks the result.
    pub(super) fn inherit(&mut self, global: &Global) -> Result<(), String> {
        let job = || quoted(self.job_name.as_bytes());
        if self.scrape_interval.is_zero() {
            self.scrape_interval = global.scrape_interval;
        }
        if self.scrape_timeout > self.scrape_interval {
            return Err(format!(
                "scrape timeout greater than scrape interval for scrape config with job name {}",
                job()
            ));
        }
        if self.scrape_timeout.is_zero() {
            self.scrape_timeout = global.scrape_timeout.min(self.scrape_interval);
        }
        if self.body_size_limit.is_zero() {
            self.body_size_limit = global.body_size_limit;
        }
        for (own, inherited) in [
            (&mut self.sample_limit, global.sample_limit),
            (&mut self.target_limit, global.target_limit),
            (&mut self.label_limit, global.label_limit),
            (&mut self.label_name_length_limit, global.label_name_length_limit),
            (&mut self.label_value_length_limit, global.label_value_length_limit),
            (&mut self.keep_dropped_targets, global.keep_dropped_targets),
        ] {
            if *own == 0 {
                *own = inherited;
            }
        }
        if self.scrape_failure_log_file.is_empty() {
            self.scrape_failure_log_file = global.scrape_failure_log_file.clone();
        }
        let inherited = global.scrape_native_histograms.unwrap_or_default();
        let has_histograms = *self.scrape_native_histograms.get_or_insert(inherited);
        let inherited = global.extra_scrape_metrics.unwrap_or_default();
        self.extra_scrape_metrics.get_or_insert(inherited);
        self.inherit_protocols(global, has_histograms)?;
        self.inherit_names(global)?;
        self.convert_classic_histograms_to_nhcb
            .get_or_insert(global.convert_classic_histograms_to_nhcb);
        self.always_scrape_classic_histograms
            .get_or_insert(global.always_scrape_classic_histograms);
        self.relabel_configs.compile(self.metric_name_validation_scheme)?;
        self.metric_relabel_configs.compile(self.metric_name_validation_scheme)
    }

    fn inherit_protocols(&mut self, global: &Global, has_histograms: bool) -> Result<(), String> {
        let job = quoted(self.job_name.as_bytes());
        let protocols =
            self.scrape_protocols.get_or_insert_with(|| match &global.scrape_protocols {
                Some(protocols) => protocols.clone(),
                None if has_histograms => ScrapeProtocol::default_with_histograms(),
                None => ScrapeProtocol::DEFAULT.to_vec(),
            });
        check_protocols(protocols)
            .map_err(|error| format!("{error} for scrape config with job name {job}"))?;
        // An empty text is no protocol.
        if self.fallback_scrape_protocol.as_ref().is_some_and(Field::is_zero) {
            self.fallback_scrape_protocol = None;
        }
        self.fallback_scrape_protocol.iter().try_for_each(ScrapeProtocol::check).map_err(|error| {
            format!(
                "invalid fallback_scrape_protocol for scrape config with job name {job}: {error}"
            )
        })
    }

    /// A job without a scheme of names inherits both; a job with one ignores the global escaping.
    fn inherit_names(&mut self, global: &Global) -> Result<(), String> {
        let unknown = |place: &'static str| {
            move |error: String| format!("unknown {place} name escaping method specified, {error}")
        };
        let of_scheme = |scheme: NameScheme| match scheme {
            NameScheme::Legacy => Escaping::Underscores,
            NameScheme::Utf8 | NameScheme::Unset => Escaping::AllowUtf8,
        };
        let global_scheme = global.metric_name_validation_scheme;
        let global_escaping =
            match global.metric_name_escaping_scheme.parsed().map_err(unknown("global"))? {
                Escaping::Unset => of_scheme(global_scheme),
                escaping => escaping,
            };
        let has_scheme = self.metric_name_validation_scheme != NameScheme::Unset;
        if !has_scheme {
            self.metric_name_validation_scheme = global_scheme;
        }
        let scheme = self.metric_name_validation_scheme;
        let escaping =
            match self.metric_name_escaping_scheme.parsed().map_err(unknown("scrape config"))? {
                Escaping::Unset if has_scheme => of_scheme(scheme),
                Escaping::Unset => global_escaping,
                escaping => escaping,
            };
        self.metric_name_escaping_scheme = escaping.into();
        if escaping == Escaping::AllowUtf8 && scheme != NameScheme::Utf8 {
            return Err(
                "utf8 metric names requested but validation scheme is not set to UTF8".to_owned()
            );
        }
        Ok(())
    }
}
