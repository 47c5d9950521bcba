//! Builds the server and moves its line tables into a file beside it.
//!
//! `firn.debug` holds the line tables; the program names it in a `.gnu_debuglink` section. A panic
//! prints line numbers as long as both files are in one folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{cargo, succeed};

/// `cargo xtask serve [ARGUMENTS]`: builds and starts the server. Returns only on failure.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    use std::os::unix::process::CommandExt;

    let program = build("release")?;
    let error = Command::new(&program).arg("serve").args(arguments).exec();
    Err(format!("{}: {error}", program.display()))
}

/// `cargo xtask dist`: the program for packages, with link-time optimisation.
pub(crate) fn dist() -> Result<(), String> {
    let program = build("dist")?;
    let bytes = fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?.len();
    println!("{}: {} MiB", program.display(), bytes >> 20);
    Ok(())
}

fn build(profile: &str) -> Result<PathBuf, String> {
    succeed(cargo().args(["build", "--profile", profile, "--package", "firn"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    let program = Path::new(&target).join(profile).join("firn");
    match Objcopy::find() {
        Some(objcopy) => split(&objcopy, &program)?,
        None => println!("no rust-objcopy and no objcopy: the line tables stay in the program"),
    }
    Ok(program)
}

/// Cargo puts the whole program back on each build, so this runs after each one; it takes a second.
fn split(objcopy: &Objcopy, program: &Path) -> Result<(), String> {
    let debug = program.with_extension("debug");
    let stripped = program.with_extension("stripped");
    succeed(objcopy.command().arg("--only-keep-debug").args([program, &debug]))?;
    let mut link = OsString::from("--add-gnu-debuglink=");
    link.push(&debug);
    succeed(objcopy.command().arg("--strip-debug").arg(link).args([program, &stripped]))?;
    fs::rename(&stripped, program).map_err(|e| format!("{}: {e}", program.display()))
}

/// The tool that copies sections of programs: the compiler's own, else the system's.
struct Objcopy {
    program: PathBuf,
    libraries: PathBuf,
}

impl Objcopy {
    fn find() -> Option<Objcopy> {
        let print = |what: &str| {
            let output = Command::new("rustc").args(["--print", what]).output().ok()?;
            Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
        };
        let libraries = print("sysroot")?.join("lib");
        let own = print("target-libdir")?.parent()?.join("bin/rust-objcopy");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let others = std::env::split_paths(&path).map(|folder| folder.join("objcopy"));
        let program = std::iter::once(own).chain(others).find(|program| program.exists())?;
        Some(Objcopy { program, libraries })
    }

    /// The compiler's tool needs the compiler's libraries.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }
}
