//! `firn check`: every byte of a database against its checksum, and repair.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use firn_server::{
    CheckProgress, CheckReport, Error, ErrorKind, GroupId, Loss, Result, check_folder,
};

/// `firn check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Folder of the database, which no server has open
    #[arg(long, env = "FIRN_DATA", value_name = "FOLDER", default_value = "./firn-data")]
    data: PathBuf,

    /// Where its history lies, if not in the folder: what the server was started with
    #[arg(long, env = "FIRN_SLOW_TIER", value_name = "PLACE")]
    slow_tier: Option<String>,

    /// Write damaged tables and index files anew without what is lost, and say what that was
    #[arg(long)]
    repair: bool,

    /// Give up the history, or go on with this folder alone, where the slow tier has neither a manifest nor any table of it
    #[arg(long, requires = "repair")]
    forget_lost_history: bool,
}

// Often enough to see that it goes on, seldom enough for a log file.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Checks and prints.
///
/// # Errors
/// `Corrupt` when something is damaged and stays so.
#[expect(clippy::print_stdout, reason = "the terminal is this room's")]
pub(crate) fn check(check: &Check) -> Result<()> {
    let is_terminal = std::io::stderr().is_terminal();
    let mut told = Instant::now();
    let mut each = |progress: &CheckProgress| {
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let line = progress_line(progress);
            if is_terminal { eprint!("\r{line}") } else { eprintln!("{line}") }
        }
    };
    let repairs = (check.repair, check.forget_lost_history);
    let report = check_folder(&check.data, check.slow_tier.as_deref(), repairs, &mut each)?;
    if is_terminal {
        eprintln!();
    }
    print!("{}", text(&report, check.repair));
    match report.findings.iter().find(|finding| !finding.is_repaired) {
        None => Ok(()),
        Some(first) => {
            let kind = ErrorKind::Corrupt { file: check.data.display().to_string(), offset: 0 };
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
        "{} files with {} bytes read, {} damaged places, {} files that nobody names",
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
                    None => "          repaired: it is whole again",
                    Some(_) => "          repaired: the rest was written anew",
                }
                .to_owned(),
            );
        }
    }
    for orphan in &report.orphans {
        lines.push(format!(
            "orphan    {orphan}: a server removes it by itself, a file at its start, an object an hour after it"
        ));
    }
    if !repairs && report.findings.iter().any(|finding| finding.loss.is_some()) {
        lines.push(
            "--repair writes damaged tables and index files anew without what is lost".to_owned(),
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
        None => "nothing is lost by it".to_owned(),
        Some(Loss::Samples(lost)) => format!(
            "lost: {} chunks{}, time {} to {} (ms)",
            lost.chunk_count,
            of_groups(Some((lost.group_min, lost.group_max))),
            lost.range.start,
            lost.range.end
        ),
        Some(Loss::Series(lost)) => format!(
            "lost: the labels of {} series{}; nobody can ask for their samples any more, and they are new series when \
             they are written again",
            lost.count,
            of_groups(lost.groups)
        ),
        Some(Loss::Unknown) => "what needs this block fails; --repair takes it from the slow tier's copy, or else loses \
             the series whose labels are in it"
            .to_owned(),
    }
}
