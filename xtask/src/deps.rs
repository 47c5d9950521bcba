//! Finds and installs the programs that the tests start.

use std::path::Path;
use std::process::Command;

use crate::command::succeed;

/// Folder of the programs that no Debian package contains.
const PROGRAMS: &str = "target/test-programs";
const MOTO: &str = "target/test-programs/moto/bin/moto_server";
const MOTO_VERSION: &str = "moto[s3,server]==5.2.5";

/// A program that tests or benchmarks start.
struct Program {
    name: &'static str,
    package: &'static str,
    /// The tests that are skipped without it; empty if there are none.
    tests: &'static str,
}

const fn program(name: &'static str, package: &'static str, tests: &'static str) -> Program {
    Program { name, package, tests }
}

const DEBIAN_PROGRAMS: [Program; 13] = [
    program("prometheus", "prometheus", "comparisons with Prometheus, proxy, remote read, Grafana"),
    program("prometheus-node-exporter", "prometheus-node-exporter", "scrapes of a real exporter"),
    program("prometheus-alertmanager", "prometheus-alertmanager", "delivery of alerts"),
    program("prometheus-pushgateway", "prometheus-pushgateway", "scrapes of a Pushgateway"),
    program("prometheus-redis-exporter", "prometheus-redis-exporter", "scrapes of a real exporter"),
    // Without it, the exporter reports a Redis that is down.
    program("redis-server", "redis-server", ""),
    program("influxd", "influxdb", "proxy of InfluxDB"),
    program("strace", "strace", "failing disks, system calls of the log"),
    program("curl", "curl", "commands of the documents"),
    program("zstd", "zstd", "the reader of docs/formats"),
    program("python3", "python3", "the Python client, the reader of docs/formats"),
    program("c++", "g++", "20 s of each fuzzer"),
    program("victoria-metrics", "victoria-metrics", ""),
];

/// Installs missing programs before the tests, as root. For other users it prints the line that
/// installs them and the tests that are left out; with `FIRN_REQUIRE_SHARED=1` that is an error.
pub(crate) fn provide() -> Result<(), String> {
    let missing = missing_tests();
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() && on_path("apt-get") {
        match install() {
            Ok(()) => return Ok(()),
            Err(e) => println!("the programs of the tests cannot be installed: {e}"),
        }
    } else {
        println!("to install the programs of the tests, run: {}", install_line());
    }
    let missing = missing_tests();
    for (name, tests) in &missing {
        println!("left out without {name}: {tests}");
    }
    let is_required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
    if is_required && !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
        return Err(format!("FIRN_REQUIRE_SHARED=1, but these are missing: {}", names.join(", ")));
    }
    Ok(())
}

/// Runs one apt line if a package is missing, then puts moto into a folder of its own.
pub(crate) fn install() -> Result<(), String> {
    let is_complete = DEBIAN_PROGRAMS.iter().all(|program| on_path(program.name));
    if !is_complete || (!Path::new(MOTO).exists() && !has_venv()) {
        println!("{}", apt_line().join(" "));
        if !is_root() {
            return Err(format!("run `make deps` as root, or run: {}", install_line()));
        }
        let quietly =
            |command: &mut Command| succeed(command.env("DEBIAN_FRONTEND", "noninteractive"));
        quietly(Command::new("apt-get").args(["update", "--quiet"]))?;
        quietly(Command::new("apt-get").args(&apt_line()[1..]))?;
    }
    if !Path::new(MOTO).exists() {
        let venv = format!("{PROGRAMS}/moto");
        succeed(Command::new("python3").args(["-m", "venv", &venv]))?;
        let pip = format!("{venv}/bin/pip");
        succeed(Command::new(pip).args(["install", "--quiet", MOTO_VERSION]))?;
    }
    Ok(())
}

/// Programs that tests need and that are absent, with the tests that need them.
fn missing_tests() -> Vec<(&'static str, &'static str)> {
    let used = DEBIAN_PROGRAMS.iter().filter(|program| !program.tests.is_empty());
    let absent = used.filter(|program| !on_path(program.name));
    let mut missing: Vec<_> = absent.map(|program| (program.name, program.tests)).collect();
    if !Path::new(MOTO).exists() {
        missing.push(("moto_server", "buckets of S3, Azure and Google over HTTP"));
    }
    missing
}

fn install_line() -> String {
    format!("sudo {} && make deps", apt_line().join(" "))
}

fn apt_line() -> Vec<&'static str> {
    let mut line = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    line.extend(DEBIAN_PROGRAMS.iter().map(|program| program.package));
    line.push("python3-venv");
    line
}

/// Whether Python can make the folder for moto; Debian has that in a package of its own.
fn has_venv() -> bool {
    let check = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    check.is_ok_and(|check| check.status.success())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| String::from_utf8_lossy(&id.stdout).trim() == "0")
}
