//! `firn check`: checks every byte of a database against its checksum, and repairs it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use firn_server::{
    CheckProgress, CheckReport, DatabaseFlags, Error, ErrorKind, GroupId, Loss, Result,
    check_folder,
};

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
/// `Corrupt` when damage remains.
#[expect(clippy::print_stdout, reason = "the command line prints to the terminal")]
pub(crate) fn check(check: &Check) -> Result<()> {
    let is_terminal = std::io::stderr().is_terminal();
    let mut printed = Instant::now();
    let mut each = |progress: &CheckProgress| {
        if printed.elapsed() >= PROGRESS_INTERVAL {
            printed = Instant::now();
            let line = progress_line(progress);
            if is_terminal { eprint!("\r{line}") } else { eprintln!("{line}") }
        }
    };
    let (folder, slow_tier) = check.database.load()?;
    let repairs = (check.repair, check.forget_lost_history);
    let report = check_folder(&folder, slow_tier.as_deref(), repairs, &mut each)?;
    if is_terminal {
        eprintln!();
    }
    print!("{}", text(&report, check.repair));
    match report.findings.iter().find(|finding| !finding.is_repaired) {
        None => Ok(()),
        Some(first) => {
            let kind = ErrorKind::Corrupt { file: folder.display().to_string(), offset: 0 };
            Err(Error::new(kind, format!("the database is damaged: {}", first.error)))
        }
    }
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

fn text(report: &CheckReport, repairs: bool) -> String {
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
    if !repairs && report.findings.iter().any(|finding| finding.loss.is_some()) {
        lines.push(
            "Run firn check --repair to rewrite damaged files without the lost data.".to_owned(),
        );
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
