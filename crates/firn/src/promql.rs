//! `firn promql`: formats and changes queries, with the output and the exit codes of promtool.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use firn_model::{MatchOp, Matcher};
use firn_promql::Selector;

use crate::output;

/// `firn promql`.
#[derive(Debug, Subcommand)]
pub(crate) enum Promql {
    /// Print a query on as many lines as it needs
    Format(PromqlFormat),
    /// Change the matchers of a query
    #[command(subcommand)]
    LabelMatchers(LabelMatchers),
}

#[derive(Debug, Args)]
pub(crate) struct PromqlFormat {
    /// The query
    query: String,
}

/// `firn promql label-matchers`.
#[derive(Debug, Subcommand)]
pub(crate) enum LabelMatchers {
    /// Set the matcher of a label in each selector
    Set(SetMatcher),
    /// Remove the matchers of a label from each selector
    Delete(DeleteMatcher),
}

#[derive(Debug, Args)]
pub(crate) struct SetMatcher {
    /// The operator: =, !=, =~ or !~
    #[arg(short = 't', long = "type", value_name = "OPERATOR", default_value = "=")]
    operator: String,

    /// The query
    query: String,

    /// The name of the label
    name: String,

    /// The value or the regular expression
    value: String,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteMatcher {
    /// The query
    query: String,

    /// The name of the label
    name: String,
}

/// Prints the query.
pub(crate) fn run(promql: &Promql) -> ExitCode {
    let formatted = match promql {
        Promql::Format(format) => edited(&format.query, |_| ()),
        Promql::LabelMatchers(LabelMatchers::Set(set)) => set.edited(),
        Promql::LabelMatchers(LabelMatchers::Delete(delete)) => edited(&delete.query, |selector| {
            selector.matchers.retain(|matcher| matcher.name() != delete.name);
        }),
    };
    let printed = formatted.and_then(|text| output::print(&text).map_err(|e| e.to_string()));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report_line(&error);
            ExitCode::FAILURE
        }
    }
}

impl SetMatcher {
    fn edited(&self) -> Result<String, String> {
        let op = match self.operator.as_str() {
            "=" => Some(MatchOp::Equal),
            "!=" => Some(MatchOp::NotEqual),
            "=~" => Some(MatchOp::Regex),
            "!~" => Some(MatchOp::NotRegex),
            _ => None,
        };
        let text = edited(&self.query, |selector| {
            let Some(op) = op else { return };
            let matcher = || Matcher::parsed(&*self.name, op, &*self.value);
            let mut is_known = false;
            for known in selector.matchers.iter_mut().filter(|one| one.name() == self.name) {
                *known = matcher();
                is_known = true;
            }
            if !is_known {
                selector.matchers.push(matcher());
            }
        })?;
        // A mistake in the query is reported first.
        op.map(|_| text).ok_or_else(|| format!("invalid label match type: {}", self.operator))
    }
}

/// The query after a change of each selector, on as many lines as it needs.
fn edited(query: &str, mut edit: impl FnMut(&mut Selector)) -> Result<String, String> {
    let mut expr = firn_promql::parse(query).map_err(|error| error.to_string())?;
    expr.edit_selectors(&mut edit);
    Ok(format!("{}\n", expr.pretty()))
}
