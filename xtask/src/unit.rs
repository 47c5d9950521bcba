//! Checks the unit of systemd in `packaging`, if systemd's tools are installed.

use std::fs;
use std::process::Command;

use crate::command::succeed;

const UNIT: &str = "packaging/firn.service";
const PROGRAM: &str = "/usr/local/bin/firn";
/// Tenths of the exposure that `systemd-analyze security` computes; 100 is no restriction at all.
const EXPOSURE_MAX: &str = "15";

/// Every line of the unit is known to systemd, and its restrictions are as tight as documented.
pub(crate) fn check() -> Result<(), String> {
    let has_tools = Command::new("systemd-analyze").arg("--version").output().is_ok();
    if !has_tools {
        println!("skipped: the unit of systemd, which `systemd-analyze` checks");
        return Ok(());
    }
    let unit = fs::read_to_string(UNIT).map_err(|e| format!("{UNIT}: {e}"))?;
    // The checks require that the program exists.
    let copy = "target/unit/firn.service";
    fs::create_dir_all("target/unit")
        .and_then(|()| fs::write(copy, unit.replace(PROGRAM, "/bin/true")))
        .map_err(|e| format!("{copy}: {e}"))?;
    succeed(Command::new("systemd-analyze").args(["verify", copy]))?;
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let security = ["security", "--offline=true", "--no-pager", &threshold, copy];
    let output = Command::new("systemd-analyze").args(security).output();
    let output = output.map_err(|e| format!("systemd-analyze: {e}"))?;
    if !output.status.success() {
        return Err(format!("{UNIT}: {}", String::from_utf8_lossy(&output.stdout)));
    }
    println!("== {UNIT}: ok");
    Ok(())
}
