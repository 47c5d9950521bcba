//! The keys of a test file.

use std::collections::BTreeMap;

use firn_model::Timestamp;
use firn_yaml::{Checked, Decoder, Encoded, Failure, Field, Millis, Node, section, text_of};

use super::time::parse_time;

section! {
    /// A file.
    pub(super) struct TestFileText: "main.unitTestFile" {
        rule_files: Vec<String> = "rule_files",
        evaluation_interval: Millis = "evaluation_interval" omit,
        group_eval_order: Vec<String> = "group_eval_order",
        tests: Vec<CaseText> = "tests",
        fuzzy_compare: bool = "fuzzy_compare" omit,
    }
}

section! {
    /// A test of a file.
    pub(super) struct CaseText: "main.testGroup" {
        interval: Millis = "interval",
        input_series: Vec<InputText> = "input_series",
        alert_tests: Vec<AlertTest> = "alert_rule_test" omit,
        expr_tests: Vec<ExprTest> = "promql_expr_test" omit,
        external_labels: BTreeMap<String, String> = "external_labels" omit,
        external_url: String = "external_url" omit,
        name: String = "name" omit,
        start: StartTime = "start_timestamp" omit,
    }
}

section! {
    /// A series and its values.
    pub(super) struct InputText: "main.series" {
        series: String = "series",
        values: String = "values",
    }
}

section! {
    /// Expected alerts at a time.
    pub(super) struct AlertTest: "main.alertTestCase" {
        eval_time: Millis = "eval_time",
        alert_name: String = "alertname",
        expected: Vec<ExpectedAlert> = "exp_alerts",
    }
}

section! {
    /// An expected alert without its name.
    pub(super) struct ExpectedAlert: "main.alert" {
        labels: BTreeMap<String, String> = "exp_labels",
        annotations: BTreeMap<String, String> = "exp_annotations",
    }
}

section! {
    /// The expected result of an expression at a time.
    pub(super) struct ExprTest: "main.promqlTestCase" {
        expr: String = "expr",
        eval_time: Millis = "eval_time",
        expected: Vec<ExpectedSample> = "exp_samples",
    }
}

section! {
    /// An expected sample. The value of a histogram is 0.
    pub(super) struct ExpectedSample: "main.sample" {
        labels: String = "labels",
        value: f64 = "value",
        histogram: String = "histogram",
    }
}

impl Checked for TestFileText {}
impl Checked for CaseText {}
impl Checked for InputText {}
impl Checked for AlertTest {}
impl Checked for ExpectedAlert {}
impl Checked for ExprTest {}
impl Checked for ExpectedSample {}

/// The time of the first sample: seconds since 1970, or RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StartTime(pub(super) Timestamp);

impl Field for StartTime {
    fn type_name() -> String {
        "main.testStartTimestamp".to_owned()
    }

    fn zero() -> StartTime {
        StartTime::default()
    }

    fn read(&mut self, node: &Node, decoder: &mut Decoder) -> Result<bool, Failure> {
        let Some(text) = text_of(node, decoder, "string")? else { return Ok(false) };
        let time = parse_time(text).ok_or_else(|| {
            let text = firn_yaml::quoted(text.as_bytes());
            Failure::new(format!("cannot parse {text} to a valid timestamp")).at(node.line)
        })?;
        *self = StartTime(time);
        Ok(true)
    }

    fn encode(&self) -> Encoded {
        Encoded::Word(self.0.to_string())
    }

    fn is_zero(&self) -> bool {
        self.0 == 0
    }
}
