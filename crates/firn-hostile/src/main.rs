//! `hostile [--only WORDS] [--verbose] [--quick]`: attacks the `firn` beside this program.

use std::process::ExitCode;

use firn_hostile::{Options, run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(program) =
        std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join("firn")))
    else {
        eprintln!("hostile: the folder of this program is unknown");
        return ExitCode::FAILURE;
    };
    let mut options = Options {
        program,
        only: Vec::new(),
        is_verbose: false,
        is_quick: false,
        latency_ms_max: 100.0,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => {
                let words = arguments.next().unwrap_or_default();
                options.only = words.split_whitespace().map(str::to_owned).collect();
            }
            "--program" => options.program = arguments.next().unwrap_or_default().into(),
            "--verbose" => options.is_verbose = true,
            "--quick" => options.is_quick = true,
            other => {
                eprintln!(
                    "hostile: unknown argument {other}; usage: hostile [--only WORDS] \
                     [--program FILE] [--quick] [--verbose]"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    match run(&options) {
        Ok(report) => {
            if let Err(e) = report.write("target/bench") {
                eprintln!("hostile: cannot write target/bench/hostile.json: {e}");
                return ExitCode::FAILURE;
            }
            report.print();
            if report.all_withstood() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("hostile: {e}");
            ExitCode::FAILURE
        }
    }
}
