//! Rule files: found by the patterns of the configuration, read and checked whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_collect::config::{Config, Files, glob};
use firn_collect::relabel::NameScheme;
use firn_model::{Error, ErrorKind, Pool, QueryContext, RaisedLimit, Reservation, Result};
use firn_rules::file::{
    MORE_DOCUMENTS, ReadOptions, RuleFile, RuleNames, RunningExprs, UnknownKeys,
    no_memory_for_expressions,
};
use firn_rules::group::Group;

use super::view::ShownGroup;

/// All groups of a configuration, not running yet.
#[derive(Debug)]
pub(super) struct LoadedRules {
    /// In order of files, then as in the file.
    pub(super) groups: Vec<Group>,
    pub(super) settings: EvaluationSettings,
    /// Files with more than one document, of which only the first counts.
    pub(super) warnings: Vec<String>,
    /// The memory of the groups, beside their expressions and results.
    pub(super) held: Vec<Reservation>,
    /// Until the running rules are replaced.
    pub(super) beside_running: Option<BesideRunning>,
}

/// Memory in which expressions are read while those that they replace still run.
#[derive(Debug)]
pub(super) struct BesideRunning {
    _raised: RaisedLimit,
    _held: Reservation,
}

/// The values of the configuration that all evaluations use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EvaluationSettings {
    pub(super) query_offset_ms: i64,
    /// The step of subqueries without a step of their own.
    pub(super) subquery_step_ms: i64,
    pub(super) external_labels: Arc<BTreeMap<String, String>>,
}

/// Reads the rule files of `config`. A file that several patterns match is read once.
/// Expressions of `running` groups are used again. `is_restored` as in [`Group::new`].
///
/// # Errors
/// `Invalid` with all mistakes of all files, as promtool prints them; `Unavailable` if a file
/// cannot be read; `Busy` without memory for the files and their groups, or for the expressions in
/// `context`.
pub(super) fn load(
    config: &Config,
    files: &dyn Files,
    context: QueryContext,
    running: &[Arc<ShownGroup>],
    is_restored: bool,
) -> Result<LoadedRules> {
    let names = match config.global.metric_name_validation_scheme {
        NameScheme::Legacy => RuleNames::Legacy,
        _ => RuleNames::Utf8,
    };
    let rule_count: usize = running.iter().map(|group| group.rules.len()).sum();
    let running_bytes = (rule_count as u64).saturating_mul(RunningExprs::EXPR_BYTES);
    let _running_held = files.budget().reserve(Pool::Requests, running_bytes)?;
    let rules = running.iter().flat_map(|group| &group.rules);
    let replaced: Arc<RunningExprs> = Arc::new(rules.map(|rule| rule.expr()).collect());
    let rule_budget = context.budget.clone();
    // A smaller set of rules can always replace a larger one.
    let replaced_bytes = replaced.held_bytes();
    let beside_held = files.budget().reserve(Pool::Requests, replaced_bytes).ok();
    let beside_running = beside_held
        .map(|held| BesideRunning { _raised: rule_budget.raise(replaced_bytes), _held: held });
    let running = Arc::clone(&replaced);
    let options = ReadOptions { names, unknown: UnknownKeys::Refused, context, running };
    let interval_ms = ms(config.global.evaluation_interval.as_ms());
    let mut paths = BTreeSet::new();
    for pattern in &config.rule_files {
        let pattern = pattern.as_str();
        let matching = glob(files, pattern).map_err(|error| {
            error.context(format_args!("error retrieving rule files for {pattern}"))
        })?;
        paths.extend(matching);
    }
    let (mut groups, mut mistakes, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let (budget, mut held) = (files.budget(), Vec::new());
    for path in paths {
        let shown = path.to_string_lossy();
        let _text_held = budget.reserve(Pool::Requests, files.bytes(&path))?;
        let text = files.read(&path).map_err(|error| {
            Error::unavailable(format!("error loading rules: cannot read {shown}")).because(error)
        })?;
        match RuleFile::parse_within(&text, &options, &budget) {
            Ok((file, mut file_held)) => {
                let running = file.groups.iter().map(|group| group.running_bytes(&shown));
                file_held.grow(running.fold(0, u64::saturating_add))?;
                if file.has_more_documents {
                    warnings.push(format!("{shown}: {MORE_DOCUMENTS}"));
                }
                for group in file.groups {
                    let group = group.into_group(&shown, interval_ms, is_restored);
                    file_held.grow(group.part_bytes())?;
                    groups.push(group);
                }
                held.push(file_held);
            }
            Err(mut found) => {
                if let Some(idx) = found.iter().position(|e| *e.kind() != ErrorKind::Invalid) {
                    return Err(found.swap_remove(idx).context(format_args!("{shown}")));
                }
                mistakes.extend(found.into_iter().map(|mistake| format!("{shown}: {mistake}")));
            }
        }
    }
    if !mistakes.is_empty() {
        return Err(Error::invalid(format!(
            "error loading rules, previous rule set restored: {}",
            mistakes.join("; ")
        )));
    }
    let usage = rule_budget.usage();
    if usage.used_bytes.saturating_sub(replaced.held_bytes()) > usage.limit_bytes {
        return Err(no_memory_for_expressions(&rule_budget));
    }
    let labels = config.global.external_labels.iter();
    let settings = EvaluationSettings {
        query_offset_ms: ms(config.global.rule_query_offset.as_ms()),
        subquery_step_ms: interval_ms,
        external_labels: Arc::new(labels.map(owned).collect()),
    };
    Ok(LoadedRules { groups, settings, warnings, held, beside_running })
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn ms(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
