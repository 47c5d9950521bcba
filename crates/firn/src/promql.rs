//! `firn promql`: formats queries, with the output and the exit codes of promtool.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output;

/// `firn promql`.
#[derive(Debug, Subcommand)]
pub(crate) enum Promql {
    /// Print a query on as many lines as it needs
    Format(PromqlFormat),
}

#[derive(Debug, Args)]
pub(crate) struct PromqlFormat {
    /// The query
    query: String,

    /// Accepted as in promtool: the command is not experimental here
    #[arg(long, hide = true)]
    experimental: bool,
}

/// Prints the query.
pub(crate) fn run(promql: &Promql) -> ExitCode {
    let Promql::Format(format) = promql;
    let printed = match firn_promql::parse(&format.query) {
        Ok(expr) => output::print(&format!("{}\n", expr.pretty())).map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report_lines(&error);
            ExitCode::FAILURE
        }
    }
}
