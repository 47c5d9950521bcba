//! `firn check`: checks every byte of a database against its checksum, and repairs it.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use firn_server::{
    CheckProgress, CheckReport, DatabaseFlags, Error, Finding, GroupId, Loss, Result, check_folder,
};

use crate::output;

/// `firn check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    database: DatabaseFlags,

    /// Repair damaged tables and index files: from the slow tier's copy where there is one, else by
    /// rewriting them without the damaged blocks; the report names lost groups and times
    #[arg(long)]
    repair: bool,

    /// Drop the history if the slow tier has neither a manifest nor any table of it; the
    /// database then continues with the data in its folder
    #[arg(long, requires = "repair")]
    forget_lost_history: bool,
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
    lines.join("\n") + "\n"
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
