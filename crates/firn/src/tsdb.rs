//! Commands of promtool that work on the blocks of Prometheus: each names its substitute.

use std::process::ExitCode;

use clap::Args;

use crate::output;

/// A command of promtool that `firn` does not have.
#[derive(Debug, Args)]
pub(crate) struct Substituted {
    /// Its words and flags
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

/// The command's first words and the way to do the same.
const TSDB: [(&str, &str); 6] = [
    ("analyze", "`firn inspect cardinality` lists labels and metrics with the most series"),
    ("list", "`firn inspect tables` lists levels, partitions and tables"),
    ("dump-openmetrics", "GET /federate returns the newest samples, /api/v1/read all samples"),
    ("dump", "GET /federate returns the newest samples, /api/v1/read all samples"),
    ("create-blocks-from", "FirnDB has no blocks: late samples may be sent like new ones"),
    ("bench", "crate firn-bench measures FirnDB"),
];

/// Reports the substitute of a command of `tsdb`.
pub(crate) fn run_tsdb(command: &Substituted) -> ExitCode {
    let name = command.arguments.iter().find(|word| !word.starts_with('-'));
    let name = name.map_or("", String::as_str);
    let found = TSDB.iter().find(|(known, _)| *known == name);
    let advice = found.map_or("FirnDB has no blocks of Prometheus", |(_, advice)| advice);
    output::report_line(&format!(
        "firn: promtool's `tsdb {name}` is for blocks of Prometheus, which FirnDB does not have: \
         {advice}"
    ));
    ExitCode::FAILURE
}
