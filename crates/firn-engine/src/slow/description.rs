//! The slow tier's manifest, decoded.

use firn_env::{Bucket, Env, RangeRequest};
use firn_index::Index;
use firn_model::{Budget, Error, ErrorKind, Pool, Result, Timestamp};

use crate::edit::{Edit, Room};
use crate::folder::Writer;
use crate::manifest_format::{self, ManifestObject};
use crate::parts::{EngineParts, SlowPart};

/// Key of the manifest.
pub(crate) const KEY: &str = "manifest";

// Another manifest may be put between the request for its length and that for its bytes.
const READ_TRIES: usize = 4;

/// More than a manifest of half a million tables. The bucket may be another's.
const BYTES_MAX: u64 = 64 << 20;
/// However low the memory limit is: a manifest of about 8,000 tables.
const BYTES_MAX_LEAST: u64 = 1 << 20;
/// The part of the memory limit that a manifest's length may be.
const MEMORY_PART: u64 = 16;
/// Memory per byte while a manifest is read and decoded: the object, its parts, their contents.
const MEMORY_TIMES: u64 = 6;

/// The contents of the slow tier's manifest.
pub(crate) struct Description {
    pub(crate) epoch: u64,
    pub(crate) writer: Writer,
    /// The object's version, for conditional puts.
    pub(crate) version: String,
    /// The whole state, as of a database without fast tier and log.
    pub(crate) state: Edit,
    /// The engine's parts of the state.
    pub(crate) parts: EngineParts,
    /// The first byte at which one of the object's two copies is damaged.
    pub(crate) damaged_at: Option<u64>,
}

impl Description {
    fn decode(bytes: &[u8], version: String) -> Result<Description> {
        let ManifestObject { epoch, state, damaged_at } =
            manifest_format::decode_object(KEY, bytes)?;
        let bad = |e: Error| Error::corrupt(KEY, 0, e.what());
        // Not counted: most callers read other parts only. A replica counts those that it keeps.
        let memory = Budget::unlimited().empty(Pool::Index);
        let parts = EngineParts::decode(state.parts(Room::Engine), memory).map_err(bad)?;
        let number = match parts.claims.as_deref() {
            None => 0,
            Some(&[number]) => number,
            Some(_) => {
                return Err(Error::corrupt(KEY, 0, "it must name one process as its writer"));
            }
        };
        let writer = Writer { mark: parts.mark.unwrap_or(0), number };
        Ok(Description { epoch, writer, version, state, parts, damaged_at })
    }

    /// Wall time at which the manifest was written.
    pub(crate) fn written_ms(&self) -> Timestamp {
        self.slow_part().written_ms
    }

    fn slow_part(&self) -> SlowPart {
        self.parts.slow.clone().unwrap_or_default()
    }

    /// The index files that it names, with their lengths and the epochs of their objects' keys.
    ///
    /// # Errors
    /// `Corrupt` if files and epochs do not match.
    pub(crate) fn index_files(&self) -> Result<Vec<(String, u64, u64)>> {
        let files = Index::files_of(&[&index_part(&self.state)])?;
        let epochs = self.slow_part().segment_epochs;
        if files.len() != epochs.len() {
            return Err(Error::corrupt(
                KEY,
                0,
                format!("it names {} index segments and {} epochs", files.len(), epochs.len()),
            ));
        }
        let files = files.into_iter().zip(epochs);
        Ok(files.map(|((path, bytes), epoch)| (path, bytes, epoch)).collect())
    }
}

/// The index's part of a slow-tier state.
pub(crate) fn index_part(state: &Edit) -> Vec<u8> {
    state.parts(Room::Index).next().map_or_else(Index::empty_part, <[u8]>::to_vec)
}

/// The slow tier's manifest; `None` if there is none. Its memory is reserved in `budget` while it
/// is decoded.
///
/// # Errors
/// `Corrupt` if both its copies are damaged, `Invalid` for a newer version, `TooLarge` for the
/// memory limit, `Busy` without memory, `Unavailable`.
pub(crate) fn read(bucket: &dyn Bucket, budget: &Budget) -> Result<Option<Description>> {
    for _ in 0..READ_TRIES {
        let info = match bucket.head(KEY) {
            Ok(info) => info,
            Err(e) if *e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        check_length(info.bytes, budget)?;
        let _memory = budget.reserve(Pool::Jobs, info.bytes.saturating_mul(MEMORY_TIMES))?;
        let request = RangeRequest { key: KEY.to_owned(), offset: 0, len: info.bytes };
        match bucket.get_ranges(&[request]).pop() {
            Some(Ok(bytes)) if bytes.len() as u64 == info.bytes => {
                return Description::decode(&bytes, info.version).map(Some);
            }
            // Shorter now: another manifest was put.
            Some(Err(e)) if !matches!(e.kind(), ErrorKind::Corrupt { .. }) => return Err(e),
            _ => {}
        }
    }
    Err(Error::unavailable(format!(
        "the slow tier's manifest changed during each of {READ_TRIES} reads; retry"
    )))
}

/// # Errors
/// `Corrupt` for a manifest that no server writes, and that must not be read; `TooLarge` for one
/// that takes too much of the memory limit.
pub(crate) fn check_length(bytes: u64, budget: &Budget) -> Result<()> {
    if bytes > BYTES_MAX {
        let what = format!("has {bytes} bytes, expected at most {BYTES_MAX}");
        return Err(Error::corrupt(KEY, 0, what));
    }
    let limit_bytes = budget.usage().limit_bytes;
    let bytes_max = (limit_bytes / MEMORY_PART).max(BYTES_MAX_LEAST);
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "the slow tier's manifest has {bytes} bytes, expected at most {bytes_max} \
         (1/{MEMORY_PART} of --memory): raise --memory above {} bytes",
        bytes.saturating_mul(MEMORY_PART)
    )))
}

/// The manifest, which must exist.
///
/// # Errors
/// As [`read`], and `NotFound`.
pub(crate) fn read_existing(env: &Env, budget: &Budget) -> Result<Description> {
    read(&*env.bucket, budget)?.ok_or_else(|| {
        Error::not_found(
            "the slow tier has no manifest: nothing was uploaded there yet, or --slow-tier names \
             the wrong location",
        )
    })
}

/// The version of the manifest; `None` if there is none.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn version(bucket: &dyn Bucket) -> Result<Option<String>> {
    match bucket.head(KEY) {
        Ok(info) => Ok(Some(info.version)),
        Err(e) if *e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use firn_env::PutMode;
    use firn_sim::Sim;

    use super::*;

    /// One of 300 MiB took twice its length of memory, one of 8 GiB ended the process.
    #[test]
    fn a_long_manifest_is_not_read() {
        let env = Sim::new(1).env();
        let bytes = vec![0; BYTES_MAX as usize + 1];
        env.bucket.put(KEY, bytes.into(), PutMode::Overwrite).unwrap();
        let error = read(&*env.bucket, &Budget::unlimited()).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("expected at most"), "{error}");
    }

    /// One of 61 MiB took 465 MiB, however low `--memory` was.
    #[test]
    fn the_memory_limit_bounds_the_length_of_a_manifest() {
        let mib = 1 << 20;
        let check = |bytes, limit| check_length(bytes, &Budget::new(limit));
        for (limit, bytes_max) in [(mib, mib), (64 * mib, 4 * mib), (1 << 40, BYTES_MAX)] {
            check(bytes_max, limit).unwrap();
            check(bytes_max + 1, limit).unwrap_err();
        }
        let env = Sim::new(1).env();
        env.bucket.put(KEY, vec![0; 5 << 20].into(), PutMode::Overwrite).unwrap();
        let error = read(&*env.bucket, &Budget::new(64 * mib)).err().unwrap();
        assert_eq!(*error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.to_string().contains("--memory"), "{error}");

        let budget = Budget::new(128 * mib);
        let error = read(&*env.bucket, &budget).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        let usage = budget.usage();
        assert_eq!((usage.used_bytes, usage.peak_bytes), (0, 30 * mib), "it was reserved");
    }
}
