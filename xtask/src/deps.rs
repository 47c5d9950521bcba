//! Finds and installs the programs that the tests run.

use std::path::Path;
use std::process::Command;

/// Folder of the programs that no Debian package contains.
const PROGRAMS: &str = "target/test-programs";
const DEBIAN_PACKAGES: [(&str, &str); 7] = [
    ("prometheus", "prometheus"),
    ("prometheus-node-exporter", "prometheus-node-exporter"),
    ("victoria-metrics", "victoria-metrics"),
    ("influxd", "influxdb"),
    ("strace", "strace"),
    ("curl", "curl"),
    ("zstd", "zstd"),
];

/// Lists the missing programs. They are an error only under `FIRN_REQUIRE_SHARED`; otherwise the
/// tests that need them are skipped with a reason.
pub(crate) fn check() -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(", ");
    if std::env::var_os("FIRN_REQUIRE_SHARED").is_some() {
        return Err(format!("missing: {list}; `make deps` installs them"));
    }
    println!("missing: {list}; tests that need them are skipped, `make deps` installs them");
    if missing.contains(&"cargo-deny") {
        return Err("cargo-deny checks licences; `make deps` installs it".into());
    }
    Ok(())
}

/// Prints the one apt line and runs it, then moto into a folder of its own and cargo-deny.
pub(crate) fn install() -> Result<(), String> {
    let packages: Vec<&str> = DEBIAN_PACKAGES
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(_, package)| *package)
        .collect();
    let mut line = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    line.extend(DEBIAN_PACKAGES.iter().map(|(_, package)| *package));
    line.push("python3-venv");
    println!("{}", line.join(" "));
    if !packages.is_empty() {
        if !is_root() {
            return Err("run `make deps` as root, or the line above with sudo".into());
        }
        // Services of these packages are of no use here: the tests start their own.
        run(Command::new("apt-get").arg("update").arg("--quiet"))?;
        run(Command::new(line[0]).args(&line[1..]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    if !moto().exists() {
        let venv = format!("{PROGRAMS}/moto");
        run(Command::new("python3").args(["-m", "venv", &venv]))?;
        let pip = format!("{venv}/bin/pip");
        run(Command::new(pip).args(["install", "--quiet", "moto[s3,server]==5.2.5"]))?;
    }
    if !on_path("cargo-deny") {
        run(Command::new("cargo").args(["install", "--locked", "--quiet", "cargo-deny"]))?;
    }
    Ok(())
}

fn missing() -> Vec<&'static str> {
    let mut missing: Vec<&str> = DEBIAN_PACKAGES
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(_, package)| *package)
        .collect();
    if !moto().exists() {
        missing.push("moto");
    }
    if !on_path("cargo-deny") {
        missing.push("cargo-deny");
    }
    missing
}

fn moto() -> &'static Path {
    Path::new("target/test-programs/moto/bin/moto_server")
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| String::from_utf8_lossy(&id.stdout).trim() == "0")
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
