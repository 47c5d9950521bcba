//! Runs the cases of a folder laid out like `../shared/collect` and prints a summary.

use std::path::PathBuf;
use std::process::ExitCode;

use firn_collecttest::Kind;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(folder), Some(firn)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: firn-collecttest FOLDER PROGRAM, where PROGRAM is the path of firn");
        return ExitCode::FAILURE;
    };
    let resolved = folder.canonicalize().and_then(|folder| Ok((folder, firn.canonicalize()?)));
    let (folder, firn) = match resolved {
        Ok(resolved) => resolved,
        Err(error) => {
            eprintln!("firn-collecttest: {} or {}: {error}", folder.display(), firn.display());
            return ExitCode::FAILURE;
        }
    };
    let mut summary = Vec::new();
    let (mut case_count, mut has_failed) = (0, false);
    for kind in Kind::ALL {
        let report = kind.run(&folder, &firn);
        for failure in &report.failures {
            println!("{kind}: {failure}");
        }
        case_count += report.count();
        has_failed |= !report.failures.is_empty();
        summary.push(format!("{kind} {} of {}", report.passed_count, report.count()));
    }
    println!("{}", summary.join(", "));
    if case_count == 0 {
        eprintln!("firn-collecttest: {} has no cases", folder.display());
    }
    if has_failed || case_count == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
