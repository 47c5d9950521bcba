//! `firn relabel`: shows the labels after each rule of relabelling.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use firn_collect::check::{FoundJob, find_job};
use firn_collect::config::{Files, LabelSet, LoadOptions, ScrapeConfig};
use firn_collect::relabel::{LabelEditor, NameScheme, RuleConfig, Rules};
use firn_collect::targets::Target;
use firn_model::{Labels, MatchOp};
use firn_promql::{go_quote, parse_matchers};
use firn_server::wire::relabel::rule_json;
use firn_server::{Error, Result, one_line};
use serde_json::{Map, Value, json};

use crate::check_others::report_unknown_job;
use crate::local_files::{LocalFiles, read_file};
use crate::output;

/// `firn relabel`.
#[derive(Debug, Args)]
pub(crate) struct Relabel {
    /// The labels: {job="a", path="/x"}, up{job="a"} or a JSON object
    labels: GivenLabels,

    /// The configuration file with the job
    #[arg(long, value_name = "FILE", requires = "job", required_unless_present = "rules")]
    config: Option<PathBuf>,

    /// The job whose rules apply. Labels that each target of the job has, such as __scheme__, are
    /// added
    #[arg(long, value_name = "NAME", requires = "config")]
    job: Option<String>,

    /// Apply metric_relabel_configs of the job instead of relabel_configs
    #[arg(long, requires = "job")]
    metric: bool,

    /// A file with a list of rules, instead of those of a job
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    rules: Option<PathBuf>,

    /// Form of the output; json is the form of /api/v1/targets/relabel_steps
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "text")]
    format: StepsFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StepsFormat {
    Text,
    Json,
}

/// A label set of the command line.
#[derive(Clone, Debug, PartialEq)]
struct GivenLabels(BTreeMap<String, String>);

impl FromStr for GivenLabels {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<GivenLabels, String> {
        if let Ok(labels) = serde_json::from_str(text) {
            return Ok(GivenLabels(labels));
        }
        let matchers = parse_matchers(text).map_err(|error| {
            format!("expected labels such as {{job=\"a\"}} or a JSON object of texts: {error}")
        })?;
        let mut labels = BTreeMap::new();
        for matcher in &matchers {
            if matcher.op() != MatchOp::Equal {
                return Err("expected labels with = and a value".to_owned());
            }
            if labels.insert(matcher.name().to_owned(), matcher.value().to_owned()).is_some() {
                return Err(format!("the label {} is given twice", matcher.name()));
            }
        }
        Ok(GivenLabels(labels))
    }
}

/// Prints the steps.
pub(crate) fn run(relabel: &Relabel) -> ExitCode {
    let printed = steps_of(relabel).and_then(|steps| {
        let Some((labels, rules)) = steps else { return Ok(false) };
        match relabel.format {
            StepsFormat::Text => print_text(&labels, &rules),
            StepsFormat::Json => print_json(&labels, &rules),
        }
        .map(|()| true)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::report_mistakes(&format!("firn: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The labels before the first rule, and the rules; `None` if there is no such job.
fn steps_of(relabel: &Relabel) -> Result<Option<(Labels, Rules)>> {
    let given = &relabel.labels.0;
    let pairs = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let (Some(path), Some(name)) = (&relabel.config, &relabel.job) else {
        let path = relabel.rules.as_ref().ok_or_else(|| Error::invalid("no rules are given"))?;
        let failed = |error: String| Error::invalid(format!("{}: {error}", path.display()));
        let text = read_file(path).map_err(|error| failed(error.to_string()))?;
        let rules = Rules::parse_within(&text, NameScheme::Utf8, &LocalFiles.budget())
            .map_err(|e| failed(e.to_string()))?;
        return Ok(Some((Labels::from_pairs(pairs)?, rules)));
    };
    let options = LoadOptions { env: &|name| std::env::var(name).ok(), is_agent: false };
    let job: ScrapeConfig = match find_job(path, name, &LocalFiles, &options)? {
        FoundJob::Job(job) => *job,
        FoundJob::Unknown { jobs } => {
            report_unknown_job(name, &jobs);
            return Ok(None);
        }
    };
    if relabel.metric {
        let rules = job.metric_relabel_configs.rules().clone();
        return Ok(Some((Labels::from_pairs(pairs)?, rules)));
    }
    let given: LabelSet = given.clone().into_iter().collect();
    let none = LabelSet::default();
    let labels = Target::discovered_labels(&job, &given, &none, &mut LabelEditor::default())?;
    Ok(Some((labels, job.relabel_configs.rules().clone())))
}

fn print_text(labels: &Labels, rules: &Rules) -> Result<()> {
    output::print(&format!("before: {labels}\n"))?;
    let mut last = Some(labels.clone());
    let mut idx = 0;
    rules.for_each_step(labels, |rule, after| {
        idx += 1;
        let mut text = format!("rule {idx}: {}\n", rule_text(rule));
        match (&last, after) {
            (Some(before), Some(after)) => push_changes(before, after, &mut text),
            (Some(_), None) => text.push_str("  dropped\n"),
            (None, _) => text.push_str("  not applied: dropped before\n"),
        }
        last = after.cloned();
        output::print(&text)
    })?;
    output::print(&match last {
        Some(labels) => format!("after: {labels}\n"),
        None => "after: dropped\n".to_owned(),
    })
}

/// The action and the keys that differ from their defaults.
fn rule_text(rule: &RuleConfig) -> String {
    let default = rule_json(&RuleConfig::default());
    let mut text = rule.action.to_string();
    for (key, value) in rule_json(rule).as_object().into_iter().flatten() {
        if key != "action" && default.get(key) != Some(value) {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    text
}

fn push_changes(before: &Labels, after: &Labels, text: &mut String) {
    let names: BTreeSet<&str> = before.iter().chain(after.iter()).map(|(name, _)| name).collect();
    let quoted = |value: &str| go_quote(value.as_bytes());
    let len = text.len();
    for name in names {
        let values = (before.get(name), after.get(name));
        let name = one_line(name);
        match values {
            (None, Some(new)) => text.push_str(&format!("  + {name}={}\n", quoted(new))),
            (Some(old), None) => text.push_str(&format!("  - {name}={}\n", quoted(old))),
            (Some(old), Some(new)) if old != new => {
                text.push_str(&format!("  ~ {name}={}, was {}\n", quoted(new), quoted(old)));
            }
            _ => {}
        }
    }
    if text.len() == len {
        text.push_str("  unchanged\n");
    }
}

fn print_json(labels: &Labels, rules: &Rules) -> Result<()> {
    let mut steps = Vec::new();
    rules.for_each_step(labels, |rule, after| {
        let output: Map<String, Value> = after
            .into_iter()
            .flat_map(Labels::iter)
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        steps.push(json!({ "rule": rule_json(rule), "output": output, "keep": after.is_some() }));
        Ok(())
    })?;
    output::print_json(&json!({ "steps": steps }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
        text.parse::<GivenLabels>().map(|labels| labels.0.into_iter().collect())
    }

    #[test]
    fn labels_are_a_selector_or_json() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let want = Ok(vec![pair("__name__", "up"), pair("a", "b\nc")]);
        assert_eq!(given(r#"up{a="b\nc"}"#), want);
        assert_eq!(given(r#"{"__name__":"up","a":"b\nc"}"#), want);
        assert_eq!(given("{}"), Ok(Vec::new()));
        for text in [r#"{a=~"b"}"#, r#"{a!="b"}"#, r#"{a="1",a="2"}"#, r#"{"a":1}"#, "a b", ""] {
            assert!(given(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rule_shows_its_keys_and_changes() {
        let text = "[{source_labels: [a, b], target_label: c, separator: '/'}]";
        let rules = Rules::parse(text, NameScheme::Utf8).unwrap();
        let rule = rules.configs().next().unwrap();
        let want = r#"replace separator="/" source_labels=["a","b"] target_label="c""#;
        assert_eq!(rule_text(rule), want);
        let labels = |text: &str| {
            let given: GivenLabels = text.parse().unwrap();
            Labels::from_pairs(given.0.iter().map(|(a, b)| (a.as_str(), b.as_str()))).unwrap()
        };
        let mut changes = String::new();
        let (before, after) = (labels(r#"{a="1",b="2",c="3"}"#), labels(r#"{b="2",c="4",d="5"}"#));
        push_changes(&before, &after, &mut changes);
        push_changes(&after, &after, &mut changes);
        let want = "  - a=\"1\"\n  ~ c=\"4\", was \"3\"\n  + d=\"5\"\n  unchanged\n";
        assert_eq!(changes, want);
    }
}
