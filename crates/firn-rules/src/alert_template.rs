//! The templates of alerts: the seam [`Expand`] of groups, implemented with [`Template`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use firn_model::{Result as ModelResult, Timestamp};
use firn_promql::{Value as QueryValue, VectorPoint};

use crate::group::{AlertRule, Expand};
use crate::template::{AlertData, Environment, MissingKey, Sample, Template, Value};

/// Expands labels and annotations. The data is that of Prometheus: `.Labels` are the labels of the
/// sample with its name, without the labels of the rule.
pub struct AlertTemplates<'a> {
    /// The labels of this server.
    pub external_labels: Arc<BTreeMap<String, String>>,
    /// The URL of this server.
    pub external_url: Arc<str>,
    /// Runs an instant query of a template. It bounds the memory of the text and of the result.
    pub query: &'a dyn Fn(&str, Timestamp) -> ModelResult<QueryValue>,
}

impl fmt::Debug for AlertTemplates<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertTemplates")
            .field("external_labels", &self.external_labels)
            .field("external_url", &self.external_url)
            .finish_non_exhaustive()
    }
}

impl AlertTemplates<'_> {
    /// Expands `text`. `reserve` is [`Environment::reserve`].
    ///
    /// # Errors
    /// The text of the failure, in the words of Prometheus.
    pub fn expand_within(
        &self,
        text: &str,
        rule: &AlertRule,
        (point, slot): (&VectorPoint, Timestamp),
        reserve: &dyn Fn(usize) -> Result<(), String>,
    ) -> Result<String, String> {
        let name = format!("__alert_{}", rule.name);
        let template = Template::parse_alert(&rule.name, text)
            .map_err(|error| format!("error parsing template {name}: {error}"))?;
        let (labels, value) = Sample::from(point).into_parts();
        let data = Value::Alert(Arc::new(AlertData {
            labels,
            external_labels: Arc::clone(&self.external_labels),
            external_url: Arc::clone(&self.external_url),
            value,
        }));
        let query = |text: &str| {
            let value = (self.query)(text, slot).map_err(|error| error.to_string())?;
            crate::group::vector(value)
        };
        let environment = Environment {
            now: slot,
            external_url: &self.external_url,
            missing_key: MissingKey::Zero,
            query: &query,
            reserve,
        };
        template
            .execute(&data, &environment)
            .map_err(|error| format!("error executing template {name}: {error}"))
    }
}

impl Expand for AlertTemplates<'_> {
    fn expand(
        &self,
        text: &str,
        rule: &AlertRule,
        point: &VectorPoint,
        slot: Timestamp,
    ) -> Result<String, String> {
        self.expand_within(text, rule, (point, slot), &|_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Error, Labels, PointValue};
    use firn_promql::parse;

    use super::*;

    const SLOT: Timestamp = 1_353_755_652_000;

    fn rule() -> AlertRule {
        AlertRule {
            name: "Down".to_owned(),
            expr: parse("up == 0").unwrap().into(),
            hold_ms: 0,
            keep_firing_ms: 0,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    fn point(value: f64) -> VectorPoint {
        let labels = [("__name__", "up"), ("instance", "a:80")];
        let labels = Labels::from_pairs(labels).unwrap();
        VectorPoint { labels, ts: SLOT, value: PointValue::Float(value) }
    }

    fn check(text: &str, want: Result<&str, &str>) {
        let query = |text: &str, ts: Timestamp| {
            assert_eq!(ts, SLOT, "the query offset does not apply");
            match text {
                "vector" => Ok(QueryValue::Vector(vec![point(7.0)])),
                "scalar" => Ok(QueryValue::Scalar { ts, value: 3.0 }),
                "matrix" => Ok(QueryValue::Matrix(Vec::new())),
                _ => Err(Error::invalid("no such query")),
            }
        };
        let templates = AlertTemplates {
            external_labels: Arc::new(BTreeMap::from([("dc".to_owned(), "eu".to_owned())])),
            external_url: "http://host:9090/prom".into(),
            query: &query,
        };
        let got = templates.expand(text, &rule(), &point(0.25), SLOT);
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{text}");
    }

    #[test]
    fn templates_see_the_sample_and_the_server() {
        check("{{ $labels }} {{ $value }}", Ok("map[__name__:up instance:a:80] 0.25"));
        check("{{ .Labels.instance }}{{ .Labels.severity }} {{ .Value }}", Ok("a:80 0.25"));
        check("{{ $externalLabels.dc }} {{ $externalURL }}", Ok("eu http://host:9090/prom"));
        check(
            "{{ .ExternalLabels.dc }} {{ .ExternalURL }} {{ pathPrefix }}",
            Ok("eu http://host:9090/prom /prom"),
        );
        check("{{ now }}", Ok("1.353755652e+09"));
        check("{{ if gt $value 0.2 }}high{{ end }}", Ok("high"));
    }

    #[test]
    fn queries_run_at_the_slot() {
        check(
            "{{ range query `vector` }}{{ .Labels.instance }}={{ .Value }}{{ end }}",
            Ok("a:80=7"),
        );
        check("{{ query `scalar` | first | value }}", Ok("3"));
        let at = "error executing template __alert_Down: template: __alert_Down:1:115: executing \
                  \"__alert_Down\" at <query `";
        check(
            "{{ query `matrix` }}",
            Err(&format!(
                "{at}matrix`>: error calling query: rule result is not a vector or scalar"
            )),
        );
        check(
            "{{ query `other` }}",
            Err(&format!("{at}other`>: error calling query: no such query")),
        );
    }

    /// Columns count the declarations that Prometheus puts in front of the text.
    #[test]
    fn errors_are_those_of_prometheus() {
        check(
            "{{ $label }}",
            Err("error parsing template __alert_Down: template: __alert_Down:1: undefined \
                 variable \"$label\""),
        );
        check(
            "{{ if gt $value 5 }}{{ end }}",
            Err("error executing template __alert_Down: template: __alert_Down:1:118: executing \
                 \"__alert_Down\" at <gt $value 5>: error calling gt: incompatible types for \
                 comparison: float64 and int"),
        );
    }
}
