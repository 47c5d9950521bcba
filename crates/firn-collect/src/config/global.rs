//! `global`: values that jobs and rules inherit.

use super::{FilePath, LabelSet, Millis, Size};
use crate::relabel::NameScheme;
use firn_yaml::quoted;
use firn_yaml::{Checked, Decoder, Encoded, Failure, Field, Node, section, text_of, words};

words! {
    /// The request for names of other schemes in a scrape.
    pub enum Escaping: "string" {
        /// Names as they are.
        AllowUtf8 = "allow-utf-8",
        /// Other characters become underscores.
        Underscores = "underscores",
        /// Dots become `_dot_`, underscores are doubled.
        Dots = "dots",
        /// Other characters become their code point.
        Values = "values",
    }
    fold |text| text.to_owned();
    unknown |text| format!(
        "must be one of 'allow-utf-8', 'underscores', 'dots', or 'values', got {}",
        quoted(text.as_bytes())
    );
}

/// An escaping as it was typed; checked with the job or the section that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EscapingText(String);

impl EscapingText {
    /// The escaping; `Unset` if the key is absent.
    ///
    /// # Errors
    /// The names of the escapings, if it is none of them.
    pub(crate) fn parsed(&self) -> Result<Escaping, String> {
        if self.0.is_empty() { Ok(Escaping::Unset) } else { self.0.parse() }
    }

    /// The escaping of a checked configuration.
    pub fn get(&self) -> Escaping {
        self.parsed().unwrap_or_default()
    }
}

impl From<Escaping> for EscapingText {
    fn from(escaping: Escaping) -> EscapingText {
        EscapingText(escaping.as_str().to_owned())
    }
}

impl Field for EscapingText {
    fn type_name() -> String {
        String::type_name()
    }

    fn zero() -> EscapingText {
        EscapingText::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        self.0.read(node, decoder)
    }

    fn encode(&self) -> Encoded {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

/// A format of scraped text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScrapeProtocol {
    /// Protobuf messages with their lengths.
    PrometheusProto,
    /// `text/plain;version=0.0.4`
    PrometheusText0_0_4,
    /// `text/plain;version=1.0.0`
    PrometheusText1_0_0,
    /// `application/openmetrics-text;version=0.0.1`
    OpenMetricsText0_0_1,
    /// `application/openmetrics-text;version=1.0.0`
    OpenMetricsText1_0_0,
    /// Another word. Never in a checked configuration.
    Unknown(String),
}

impl ScrapeProtocol {
    /// In the order of messages.
    const KNOWN: [(&'static str, ScrapeProtocol); 5] = [
        ("OpenMetricsText0.0.1", ScrapeProtocol::OpenMetricsText0_0_1),
        ("OpenMetricsText1.0.0", ScrapeProtocol::OpenMetricsText1_0_0),
        ("PrometheusProto", ScrapeProtocol::PrometheusProto),
        ("PrometheusText0.0.4", ScrapeProtocol::PrometheusText0_0_4),
        ("PrometheusText1.0.0", ScrapeProtocol::PrometheusText1_0_0),
    ];

    /// The protocols of a scrape without a choice, the preferred one first.
    pub const DEFAULT: [ScrapeProtocol; 4] = [
        ScrapeProtocol::OpenMetricsText1_0_0,
        ScrapeProtocol::OpenMetricsText0_0_1,
        ScrapeProtocol::PrometheusText1_0_0,
        ScrapeProtocol::PrometheusText0_0_4,
    ];

    /// The same for a job that scrapes native histograms, which only protobuf has.
    pub fn default_with_histograms() -> Vec<ScrapeProtocol> {
        let mut protocols = vec![ScrapeProtocol::PrometheusProto];
        protocols.extend(ScrapeProtocol::DEFAULT);
        protocols
    }

    /// The name in a configuration.
    pub fn as_str(&self) -> &str {
        match self {
            ScrapeProtocol::Unknown(text) => text,
            known => ScrapeProtocol::KNOWN
                .iter()
                .find(|(_, protocol)| protocol == known)
                .map_or("", |(name, _)| name),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let ScrapeProtocol::Unknown(text) = self else { return Ok(()) };
        let known = ScrapeProtocol::KNOWN.map(|(name, _)| name).join(" ");
        Err(format!("unknown scrape protocol {text}, supported: [{known}]"))
    }
}

/// Checks the protocols of a job or of `global`.
pub(super) fn check_protocols(protocols: &[ScrapeProtocol]) -> Result<(), String> {
    if protocols.is_empty() {
        return Err("scrape_protocols cannot be empty".to_owned());
    }
    let mut seen = Vec::new();
    for protocol in protocols {
        let lower = protocol.as_str().to_lowercase();
        if seen.contains(&lower) {
            let all: Vec<&str> = protocols.iter().map(ScrapeProtocol::as_str).collect();
            let all = all.join(" ");
            return Err(format!("duplicated protocol in scrape_protocols, got [{all}]"));
        }
        protocol.check().map_err(|error| format!("scrape_protocols: {error}"))?;
        seen.push(lower);
    }
    Ok(())
}

impl Field for ScrapeProtocol {
    fn type_name() -> String {
        "config.ScrapeProtocol".to_owned()
    }

    fn zero() -> ScrapeProtocol {
        ScrapeProtocol::Unknown(String::new())
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "config.ScrapeProtocol")? else { return Ok(false) };
        let known = ScrapeProtocol::KNOWN.into_iter().find(|(name, _)| *name == text);
        *self = known.map_or_else(|| ScrapeProtocol::Unknown(text.to_owned()), |(_, known)| known);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Text(self.as_str().to_owned())
    }

    fn is_zero(&self) -> bool {
        self.as_str().is_empty()
    }
}

section! {
    /// Values that jobs and rules inherit. A limit of 0 is no limit.
    pub struct Global: "config.plain" {
        scrape_interval: Millis = "scrape_interval" omit,
        scrape_timeout: Millis = "scrape_timeout" omit,
        /// `None` if each job has the default for its histograms.
        scrape_protocols: Option<Vec<ScrapeProtocol>> = "scrape_protocols" omit,
        /// The interval of rule groups, and of subqueries without a step.
        evaluation_interval: Millis = "evaluation_interval" omit,
        rule_query_offset: Millis = "rule_query_offset" omit,
        query_log_file: FilePath = "query_log_file" omit,
        scrape_failure_log_file: FilePath = "scrape_failure_log_file" omit,
        /// After the expansion of variables.
        external_labels: LabelSet = "external_labels" omit,
        body_size_limit: Size = "body_size_limit" omit,
        sample_limit: u64 = "sample_limit" omit,
        target_limit: u64 = "target_limit" omit,
        label_limit: u64 = "label_limit" omit,
        label_name_length_limit: u64 = "label_name_length_limit" omit,
        label_value_length_limit: u64 = "label_value_length_limit" omit,
        keep_dropped_targets: u64 = "keep_dropped_targets" omit,
        metric_name_validation_scheme: NameScheme = "metric_name_validation_scheme" omit,
        metric_name_escaping_scheme: EscapingText = "metric_name_escaping_scheme" omit,
        scrape_native_histograms: Option<bool> = "scrape_native_histograms" omit,
        convert_classic_histograms_to_nhcb: bool = "convert_classic_histograms_to_nhcb" omit,
        always_scrape_classic_histograms: bool = "always_scrape_classic_histograms" omit,
        extra_scrape_metrics: Option<bool> = "extra_scrape_metrics" omit,
    }
}

const INTERVAL_DEFAULT: Millis = Millis::seconds(60);
const TIMEOUT_DEFAULT: Millis = Millis::seconds(10);

impl Default for Global {
    /// The values without a section, or with an empty one.
    fn default() -> Global {
        Global {
            scrape_interval: INTERVAL_DEFAULT,
            scrape_timeout: TIMEOUT_DEFAULT,
            evaluation_interval: INTERVAL_DEFAULT,
            metric_name_validation_scheme: NameScheme::Utf8,
            metric_name_escaping_scheme: Escaping::AllowUtf8.into(),
            scrape_native_histograms: Some(false),
            extra_scrape_metrics: Some(false),
            ..Global::zero()
        }
    }
}

impl Checked for Global {
    fn start(&mut self) {
        *self = Global::zero();
    }

    fn check(&mut self) -> Result<(), String> {
        if self.metric_name_validation_scheme == NameScheme::Unset {
            self.metric_name_validation_scheme = NameScheme::Utf8;
        }
        for (name, _) in self.external_labels.iter() {
            if !self.metric_name_validation_scheme.is_label_name(name) {
                return Err(format!("{} is not a valid label name", quoted(name.as_bytes())));
            }
        }
        if self.scrape_interval.is_zero() {
            self.scrape_interval = INTERVAL_DEFAULT;
        }
        if self.scrape_timeout > self.scrape_interval {
            return Err("global scrape timeout greater than scrape interval".to_owned());
        }
        if self.scrape_timeout.is_zero() {
            self.scrape_timeout = TIMEOUT_DEFAULT.min(self.scrape_interval);
        }
        if self.evaluation_interval.is_zero() {
            self.evaluation_interval = INTERVAL_DEFAULT;
        }
        self.scrape_native_histograms.get_or_insert(false);
        self.extra_scrape_metrics.get_or_insert(false);
        match &self.scrape_protocols {
            Some(protocols) => {
                check_protocols(protocols).map_err(|error| format!("{error} for global config"))
            }
            None => Ok(()),
        }
    }
}
