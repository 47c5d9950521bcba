//! Runs every `*.test` file of a folder: `cargo run -p firn-promqltest -- DIR [--failures]`.
//!
//! Prints `FILE: N of M` for each file and, as its last line, `float N of M, native N of M`.

use std::path::PathBuf;
use std::process::ExitCode;

use firn_promqltest::{Report, run_script};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(folder) = args.next() else {
        eprintln!("usage: firn-promqltest DIR [--failures]");
        return ExitCode::FAILURE;
    };
    let shows_failures = args.next().as_deref() == Some("--failures");
    match run(&PathBuf::from(folder), shows_failures) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &PathBuf, shows_failures: bool) -> Result<(), String> {
    let named = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(named)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(named)?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "test"));
    files.sort();
    let mut total = Report::default();
    for path in &files {
        let text = std::fs::read(path).map_err(named)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let report = match run_script(&String::from_utf8_lossy(&text)) {
            Ok(report) => report,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let passed = report.float_passed + report.native_passed;
        println!(
            "{name}: {passed} of {} (float {} of {})",
            report.float_count + report.native_count,
            report.float_passed,
            report.float_count
        );
        for failure in report.failures.iter().filter(|_| shows_failures) {
            let kind = if failure.is_native { "native" } else { "float" };
            println!("  line {} ({kind}): {}: {}", failure.line, failure.query, failure.reason);
        }
        total.add(&report);
    }
    println!(
        "float {} of {}, native {} of {}",
        total.float_passed, total.float_count, total.native_passed, total.native_count
    );
    Ok(())
}
