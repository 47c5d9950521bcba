//! `firn check`: checks every byte of a database against its checksum, and repairs it. The checks
//! of other files are subcommands.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use firn_server::{
    CheckProgress, CheckReport, DatabaseFlags, Error, Finding, GroupId, Loss, Result, check_folder,
    one_line,
};

use crate::check_config::CheckConfig;
use crate::check_others::{CheckDiscovery, CheckMetrics, CheckWebConfig};
use crate::check_rules::CheckRules;
use crate::check_server::CheckServer;
use crate::output;

/// `firn check`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Check {
    #[command(subcommand)]
    pub(crate) subject: Option<Subject>,

    #[command(flatten)]
    database: DatabaseFlags,

    /// Repair damaged tables and index files: copy them from the slow tier if it has them, else
    /// rewrite them without the damaged blocks; the report names lost groups and times
    #[arg(long)]
    repair: bool,

    /// Drop the history if the slow tier has neither its manifest nor any of its tables; the
    /// database then continues with the data in its folder
    #[arg(long, requires = "repair")]
    forget_lost_history: bool,
}

/// Files that are checked instead of a database.
#[derive(Debug, Subcommand)]
pub(crate) enum Subject {
    /// Check configuration files of Prometheus, as promtool does
    ///
    /// Exits with 1 for a wrong file, and with --lint-fatal with 3 for a failed lint. Discoveries
    /// that are not supported are warnings. Rule files are checked too.
    Config(CheckConfig),
    /// Check rule files of Prometheus, as promtool does
    ///
    /// Exits with 1 for a wrong file, and with --lint-fatal with 3 for a failed lint.
    Rules(CheckRules),
    /// Lint metrics from standard input, as promtool does
    ///
    /// Exits with 3 for a problem, and with 1 for a text that cannot be parsed.
    Metrics(CheckMetrics),
    /// Check web configurations, with the certificates that they name
    WebConfig(CheckWebConfig),
    /// Print the targets of a job before and after relabelling
    ///
    /// The targets are those that the discoveries of the job list within --timeout. Discoveries
    /// that are not implemented are named in a warning.
    ServiceDiscovery(CheckDiscovery),
    /// Check whether a server is healthy
    Healthy(CheckServer),
    /// Check whether a server accepts queries and writes
    Ready(CheckServer),
}

// Short enough to show progress, long enough for a log file.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Checks a database and prints the report.
///
/// # Errors
/// Those of opening the database; `Invalid` when damage remains, whether or not the report could be
/// printed.
pub(crate) fn check(check: &Check) -> Result<()> {
    let is_terminal = std::io::stderr().is_terminal();
    let mut printed = Instant::now();
    let mut each = |progress: &CheckProgress| {
        if printed.elapsed() >= PROGRESS_INTERVAL {
            printed = Instant::now();
            let line = progress_line(progress);
            output::report(&if is_terminal { format!("\r{line}") } else { line + "\n" });
        }
    };
    output::report_warnings(&check.database.warnings());
    let (folder, slow_tier) = check.database.load()?;
    let repairs = (check.repair, check.forget_lost_history);
    let report = check_folder(&folder, slow_tier.as_deref(), repairs, &mut each)?;
    if is_terminal {
        output::report("\n");
    }
    let printed = output::print(&text(&report));
    remaining_damage(&report, &folder, check.repair).and(printed)
}

/// An error if damage remains, with the way out.
fn remaining_damage(report: &CheckReport, folder: &Path, repairs: bool) -> Result<()> {
    let remaining: Vec<&Finding> = report.findings.iter().filter(|f| !f.is_repaired).collect();
    let Some(first) = remaining.first() else { return Ok(()) };
    let (folder, count) = (folder.display(), remaining.len());
    let advice = match repairs {
        false => "run `firn check --repair`, which lists all losses".to_owned(),
        true => format!("the repair could not mend the first one: {}", first.error),
    };
    Err(Error::invalid(format!(
        "the database in {folder} is damaged: {count} damaged places remain; {advice}"
    )))
}

fn progress_line(progress: &CheckProgress) -> String {
    let percent = 100 * progress.bytes_done / progress.bytes_total.max(1);
    format!(
        "{percent} %  {} of {} files, {} of {} MiB",
        progress.files_done,
        progress.files_total,
        progress.bytes_done >> 20,
        progress.bytes_total >> 20
    )
}

fn text(report: &CheckReport) -> String {
    let mut lines = vec![format!(
        "read {} files with {} bytes; found {} damaged blocks and {} orphaned files",
        report.progress.files_done,
        report.progress.bytes_done,
        report.findings.len(),
        report.orphans.len()
    )];
    for finding in &report.findings {
        lines.push(format!("damaged   {}", finding.error));
        lines.push(format!("          {}", loss_text(finding.loss.as_ref())));
        if finding.is_repaired {
            lines.push(
                match finding.loss {
                    None => "          repaired: nothing is lost",
                    Some(_) => "          repaired: rewritten without the lost data",
                }
                .to_owned(),
            );
        }
    }
    for orphan in &report.orphans {
        lines.push(format!(
            "orphan    {orphan}: the server removes it; a file at the start, an object after 1 h"
        ));
    }
    // Errors and orphans have names of files.
    lines.iter().map(|line| one_line(line) + "\n").collect()
}

fn loss_text(loss: Option<&Loss>) -> String {
    let of_groups = |groups: Option<(GroupId, GroupId)>| {
        groups.map_or_else(String::new, |(first, last)| {
            format!(" of groups {} to {}", first.0, last.0)
        })
    };
    match loss {
        None => "nothing is lost".to_owned(),
        Some(Loss::Samples(lost)) => format!(
            "lost: {} chunks{}, time {} to {} (ms)",
            lost.chunk_count,
            of_groups(Some((lost.group_min, lost.group_max))),
            lost.range.start,
            lost.range.end
        ),
        Some(Loss::Series(lost)) => format!(
            "lost: the labels of {} series{}; their samples can no longer be queried, and further \
             samples make new series",
            lost.count,
            of_groups(lost.groups)
        ),
        Some(Loss::Rows) => "lost: the samples there that no flush has written to a table yet; \
             the next start of the server continues without them"
            .to_owned(),
        Some(Loss::Unknown) => {
            "reads of this block fail; --repair restores it from the slow tier's copy, \
             or else loses the series with labels in it"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(repaired: &[bool]) -> CheckReport {
        let finding = |&is_repaired: &bool| Finding {
            error: Error::corrupt("tables/7", 24, "checksum 0x1a, expected 0x2b"),
            loss: Some(Loss::Unknown),
            is_repaired,
        };
        CheckReport { findings: repaired.iter().map(finding).collect(), ..CheckReport::default() }
    }

    #[test]
    fn the_error_names_the_folder_the_number_of_places_and_the_next_step() {
        let folder = Path::new("./firn-data");
        let check = |repaired: &[bool], repairs| {
            remaining_damage(&report(repaired), folder, repairs).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[], false), Ok(()));
        assert_eq!(check(&[true], true), Ok(()));
        let found = "the database in ./firn-data is damaged: 2 damaged places remain";
        assert_eq!(
            check(&[false, true, false], false),
            Err(format!("{found}; run `firn check --repair`, which lists all losses"))
        );
        assert_eq!(
            check(&[false, false], true),
            Err(format!(
                "{found}; the repair could not mend the first one: tables/7 at byte 24: checksum \
                 0x1a, expected 0x2b"
            ))
        );
    }
}
