//! Where a database lives.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firn_engine::{CopyReport, Engine, RestoreReport};
use firn_env::{Disk, Env, LocalDisk, MemoryDisk, SystemClock, open_bucket};
use firn_model::{Error, ErrorKind, Result};

use crate::Db;
use crate::log_device::LogDevice;

/// A database in `folder`, its slow tier in `folder/slow`.
///
/// # Errors
/// `Unavailable` when the folder cannot be made.
pub fn local_env(folder: &Path) -> Result<Env> {
    local_env_with_slow_tier(folder, &folder.join("slow").to_string_lossy())
}

/// A database in `folder` whose slow tier is another folder or a URL such as
/// `s3://bucket/prefix`.
///
/// # Errors
/// `Invalid` for a URL that is not understood, `Unavailable` when the folder cannot be made or the log is on memory
/// that is not there.
pub fn local_env_with_slow_tier(folder: &Path, slow_tier: &str) -> Result<Env> {
    let log: Option<Arc<dyn Disk>> = match LogDevice::of(folder)? {
        LogDevice::File => None,
        LogDevice::Memory(path) => Some(Arc::new(MemoryDisk::open(path)?)),
    };
    Ok(Env {
        disk: Arc::new(LocalDisk::open(folder.join("fast"))?),
        log,
        bucket: open_bucket(slow_tier)?,
        clock: Arc::new(SystemClock::new()),
    })
}

/// Makes a database in the empty folder of `env` of what its slow tier says of itself, and takes the slow tier
/// over; [`Db::open`] opens it then. What had not been uploaded is not there. `None` if the folder has a
/// database: then nothing was done.
///
/// # Errors
/// `NotFound` if nothing was ever uploaded there, `Corrupt`, `Invalid` for a newer version, `Conflict` when
/// another restores at the same time, `Unavailable` (try again).
pub fn restore(env: &Env) -> Result<Option<RestoreReport>> {
    Engine::restore(env)
}

impl Db {
    /// Copies the database to `folder`, which must not exist yet; its parents are made. The copy has
    /// all that was acknowledged before this was called, or, with `skip_head`, without what is only in
    /// memory and log. [`local_env`] opens it; its slow tier is `folder/slow`, or what `slow_tier`
    /// names ([`local_env_with_slow_tier`]), which must be empty. Files get a second name where that is
    /// possible and cost no space then, else they are copied. The folder gets its name when the copy is
    /// complete.
    ///
    /// # Errors
    /// `Conflict` if the folder or another database is there, `Unavailable` when a disk or tier fails
    /// or is full; what was copied until then is removed, on an object store it stays.
    pub fn copy_to(
        &self,
        folder: &Path,
        slow_tier: Option<&str>,
        skip_head: bool,
    ) -> Result<CopyReport> {
        let unfinished = unfinished(folder)?;
        let copied =
            self.copy_to_unfinished(&unfinished, slow_tier, skip_head).and_then(|report| {
                rename(&unfinished, folder)?;
                Ok(report)
            });
        if copied.is_err() {
            let _ = fs::remove_dir_all(&unfinished);
        }
        copied
    }

    fn copy_to_unfinished(
        &self,
        folder: &Path,
        slow_tier: Option<&str>,
        skip_head: bool,
    ) -> Result<CopyReport> {
        let env = match slow_tier {
            Some(slow_tier) => local_env_with_slow_tier(folder, slow_tier)?,
            None => local_env(folder)?,
        };
        self.engine.copy_to(&env, skip_head)
    }
}

/// Where a copy is made that is to become `folder`.
fn unfinished(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        let what = format!("{} is there already", folder.display());
        return Err(Error::new(ErrorKind::Conflict, what));
    }
    let name = folder.file_name().ok_or_else(|| Error::invalid("a copy's folder needs a name"))?;
    let mut name = name.to_owned();
    name.push(".unfinished");
    let unfinished = folder.with_file_name(name);
    // Left by a process that was killed.
    match fs::remove_dir_all(&unfinished) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(&unfinished, e)),
        _ => Ok(unfinished),
    }
}

/// The folder's own names are durable already.
fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| failed(to, e))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|folder| folder.sync_all()).map_err(|e| failed(parent, e))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::unavailable(format!("copying to {}", path.display())).because(error)
}
