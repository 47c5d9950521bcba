//! Where a database lives.

use std::path::Path;
use std::sync::Arc;

use firn_env::{Env, LocalDisk, SystemClock, open_bucket};
use firn_model::Result;

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
/// `Invalid` for a URL that is not understood, `Unavailable` when the folder cannot be made.
pub fn local_env_with_slow_tier(folder: &Path, slow_tier: &str) -> Result<Env> {
    Ok(Env {
        disk: Arc::new(LocalDisk::open(folder.join("fast"))?),
        bucket: open_bucket(slow_tier)?,
        clock: Arc::new(SystemClock::new()),
    })
}
