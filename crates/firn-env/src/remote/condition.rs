//! Conditional puts, which are retried and recognise their own object, and puts in parts.
//!
//! A put may have succeeded although its response was lost. A retry then finds its own object, and
//! the store reports a conflict that no other writer caused. So after a possible conflict with
//! itself the put reads the object back: equal bytes are its own. Callers of conditional puts write
//! bytes that are unique (a manifest contains a number that its process drew) or that mean the same
//! for every writer (a table under its id).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use firn_model::{Error, ErrorKind, Result};
use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutOptions, PutPayload};
use tokio::time::{Instant, sleep, timeout};

use super::store::ShownCause;
use super::{Client, PART_BYTES, version_of};
use crate::{ObjectInfo, PutMode, RangeRequest};

// The pauses of the client's own retries (`store`).
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Client {
    /// Puts in one piece; retries while the store is unavailable and the call's time lasts.
    ///
    /// # Errors
    /// `Conflict` if the condition does not hold for a reason other than this put; `Unavailable` if
    /// the content of the key is unknown.
    pub(super) async fn put_if(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        mode: &PutMode,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        // The last attempt starts early enough for its answer; a stalled one leaves time for two
        // more.
        let try_lasts = deadline.saturating_duration_since(Instant::now()) / 3;
        let last_try = Instant::now() + try_lasts * 2;
        let mut pause = PAUSE;
        let mut may_be_ours = false;
        loop {
            let until = deadline.min(Instant::now() + try_lasts);
            let error = match self.put_once(key, location, bytes.clone(), mode, until).await {
                Ok(info) => return Ok(info),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Conflict if !may_be_ours => return Err(error),
                ErrorKind::Conflict => match self.compare(key, &bytes, deadline).await? {
                    KeyContent::Same(info) => return Ok(info),
                    KeyContent::Other => return Err(error),
                    // The store is still processing the previous attempt.
                    KeyContent::Missing if *mode == PutMode::Create => {}
                    KeyContent::Missing => return Err(error),
                },
                ErrorKind::Unavailable if is_transient(&error) || Instant::now() >= until => {
                    may_be_ours = true;
                }
                _ => return Err(error),
            }
            if Instant::now() + pause > last_try {
                return Err(error);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Creates a large object: a conditional put of a placeholder claims the key, then the parts
    /// replace it, because this client cannot upload parts with a condition.
    ///
    /// # Errors
    /// As [`Client::put_if`].
    pub(super) async fn create_in_parts(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        let placeholder =
            Bytes::from(format!("FirnDB is putting this object in parts: {}\n", nonce()));
        self.put_if(key, location, placeholder, &PutMode::Create, deadline).await?;
        // If this fails the key stays claimed: the parts may already be there, or appear soon.
        self.put_parts(key, location, bytes, deadline).await
    }

    /// As [`Client::put_if`] without a condition, in parallel parts.
    ///
    /// # Errors
    /// `Unavailable` if the content of the key is unknown.
    pub(super) async fn put_parts(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        let start = self.stores.patient.put_multipart(location);
        let mut upload = self.write(deadline, "write", key, start).await?;
        let parts: Vec<_> = (0..bytes.len())
            .step_by(PART_BYTES)
            .map(|start| bytes.slice(start..bytes.len().min(start + PART_BYTES)))
            .map(|part| upload.put_part(PutPayload::from_bytes(part)))
            .map(|part| self.write(deadline, "write", key, part))
            .collect();
        let done = match try_join_all(parts).await {
            Ok(_) => self.write(deadline, "write", key, upload.complete()).await,
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(put) => return Ok(ObjectInfo::of_put(key, bytes.len() as u64, put)),
            Err(error) => error,
        };
        // The parts may have become the object although the response was lost; a retry then reports
        // that the upload does not exist.
        if let Ok(KeyContent::Same(info)) = self.compare(key, &bytes, deadline + self.give_up).await
        {
            return Ok(info);
        }
        // Incomplete parts cost money until the store's rules remove them.
        let _ = timeout(self.give_up, upload.abort()).await;
        Err(match error.kind() {
            ErrorKind::NotFound => {
                Error::unavailable(format!("{key}: the store lost the uploaded parts; retry"))
                    .because(error)
            }
            _ => error,
        })
    }

    async fn put_once(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        mode: &PutMode,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        let byte_count = bytes.len() as u64;
        let mode = match mode {
            PutMode::Overwrite => object_store::PutMode::Overwrite,
            PutMode::Create => object_store::PutMode::Create,
            PutMode::IfVersion(version) => {
                let update = self.update_version(key, version, deadline).await?;
                object_store::PutMode::Update(update)
            }
        };
        let payload = PutPayload::from_bytes(bytes);
        let put = self.stores.once.put_opts(location, payload, PutOptions::from(mode));
        let put = self.write(deadline, "write", key, put).await?;
        Ok(ObjectInfo::of_put(key, byte_count, put))
    }

    /// Compares the stored object with `bytes`.
    async fn compare(&self, key: &str, bytes: &Bytes, deadline: Instant) -> Result<KeyContent> {
        let location = self.location(key)?;
        let head = self.stores.retrying.head(&location);
        let meta = match self.read(deadline, "examine", key, head).await {
            Ok(meta) => meta,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(KeyContent::Missing),
            Err(error) => return Err(error),
        };
        if meta.size != bytes.len() as u64 {
            return Ok(KeyContent::Other);
        }
        let whole = RangeRequest { key: key.to_owned(), offset: 0, len: meta.size };
        match self.fetch_one(&whole, deadline).await {
            Ok(found) if *found == **bytes => Ok(KeyContent::Same(ObjectInfo {
                key: key.to_owned(),
                bytes: meta.size,
                version: version_of(&meta),
            })),
            Err(error) if *error.kind() == ErrorKind::Unavailable => Err(error),
            _ => Ok(KeyContent::Other),
        }
    }
}

/// The content of a key.
enum KeyContent {
    Missing,
    /// The bytes of this put.
    Same(ObjectInfo),
    Other,
}

fn is_transient(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let cause = source.and_then(|source| source.downcast_ref::<ShownCause>());
    cause.is_some_and(|cause| cause.is_transient)
}

/// A value that no other writer draws.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
