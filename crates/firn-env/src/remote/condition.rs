//! Puts with a condition: sent again like all else, and told apart from those of others; and puts in parts.
//!
//! A put whose answer does not come may have been done. Sent again, it then meets its own object, and the
//! store reports a conflict that nobody caused. So after a conflict that may be with ourselves what is there is
//! read back: the same bytes are ours. Whoever puts on a condition puts bytes that nobody else does (a manifest
//! has a number that its process drew), or that mean the same whoever put them (a table under its id).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use firn_model::{Error, ErrorKind, Result};
use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutOptions, PutPayload};
use tokio::time::{Instant, sleep, timeout};

use super::{PART_BYTES, Shared, version_of};
use crate::{ObjectInfo, PutMode, RangeRequest};

// As the client pauses where it tries again itself (`store`).
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

impl Shared {
    /// Puts in one piece, again as long as the store is out of order and a call's time lasts.
    ///
    /// # Errors
    /// `Conflict` if the condition does not hold, other than by what this call put; `Unavailable`: it is
    /// unknown what is there.
    pub(super) async fn put_if(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        mode: &PutMode,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        // The last try begins so early that its answer can still come; one that hangs leaves time for two more.
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
                ErrorKind::Conflict => match self.look(key, &bytes, deadline).await? {
                    Found::Same(info) => return Ok(info),
                    Found::Other => return Err(error),
                    // The store is still busy with the one before.
                    Found::Nothing if *mode == PutMode::Create => {}
                    Found::Nothing => return Err(error),
                },
                ErrorKind::Unavailable if is_passing(&error) || Instant::now() >= until => {
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

    /// A name that nothing has is taken by a put of some bytes on that condition; then the parts, which no store takes
    /// on a condition through this client, replace them.
    ///
    /// # Errors
    /// As [`Shared::put_if`].
    pub(super) async fn create_in_parts(
        &self,
        key: &str,
        location: &Path,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<ObjectInfo> {
        let taken = Bytes::from(format!("FirnDB is putting this object in parts: {}\n", nonce()));
        self.put_if(key, location, taken, &PutMode::Create, deadline).await?;
        // If they do not, the name is not given back: it may hold all of them by now, or soon.
        self.put_parts(key, location, bytes, deadline).await
    }

    /// As [`Shared::put_if`] without a condition, in parts that go side by side.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown what is there.
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
        // The parts may have become the object, and only the answer was lost: then the next try hears of no such upload.
        if let Ok(Found::Same(info)) = self.look(key, &bytes, deadline + self.give_up).await {
            return Ok(info);
        }
        // Parts without an end cost money until the store's own rules remove them.
        let _ = timeout(self.give_up, upload.abort()).await;
        Err(match error.kind() {
            ErrorKind::NotFound => {
                Error::unavailable(format!("{key}: the store has forgotten its parts; retry"))
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

    /// What is there, compared with `bytes`.
    async fn look(&self, key: &str, bytes: &Bytes, deadline: Instant) -> Result<Found> {
        let location = self.location(key)?;
        let head = self.stores.retrying.head(&location);
        let meta = match self.read(deadline, "examine", key, head).await {
            Ok(meta) => meta,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        if meta.size != bytes.len() as u64 {
            return Ok(Found::Other);
        }
        let whole = RangeRequest { key: key.to_owned(), offset: 0, len: meta.size };
        match self.fetch_one(&whole, deadline).await {
            Ok(found) if *found == **bytes => Ok(Found::Same(ObjectInfo {
                key: key.to_owned(),
                bytes: meta.size,
                version: version_of(&meta),
            })),
            Err(error) if *error.kind() == ErrorKind::Unavailable => Err(error),
            _ => Ok(Found::Other),
        }
    }
}

/// What lies under a key.
enum Found {
    Nothing,
    /// The bytes that were to be put.
    Same(ObjectInfo),
    Other,
}

/// Whether the same request may be answered otherwise later: credentials, say, are not better then.
fn is_passing(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let store = source.and_then(|source| source.downcast_ref::<object_store::Error>());
    matches!(store, Some(object_store::Error::Generic { .. }))
}

/// What nobody else writes.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
