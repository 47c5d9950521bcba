//! A bucket in an object store: Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob
//! Storage. The only async code below the server; callers block.
//!
//! Transient failures are retried inside, with growing pauses, until the call's time is over. This
//! includes conditional puts, which may then find their own object (`condition`). Large objects are
//! uploaded in parallel parts.

mod condition;
mod fetch;
mod http;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use firn_model::{Error, ErrorKind, Result, redacted};
use futures_util::StreamExt;
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload, PutResult, UpdateVersion};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::bucket::{check_key, corrupt_range};
use crate::{Bucket, Mapped, ObjectInfo, PutMode, RangeRequest};
pub use fetch::{Fetch, plan_fetches};
use store::Stores;

/// Larger objects are uploaded in parallel parts, so that a lost connection costs one part.
/// Exception: a put with a version condition, which only the manifest uses; one of this size names
/// 100,000 tables. 8 MiB: above the S3 minimum of 5 MiB, under a second on a slow uplink of 100
/// Mbit/s.
const PART_BYTES: usize = 8 << 20;

/// Extends a call's deadline by the bytes it transfers. A slower line cannot feed a database
/// anyway.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// Upper bound of every deadline, so that times cannot overflow.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Error codes in the XML of stores for a missing bucket.
const NO_BUCKET_CODES: [&str; 2] = ["<Code>NoSuchBucket", "<Code>ContainerNotFound"];

/// Codes of credentials that will not become right by themselves.
const REFUSALS: [&str; 10] = [
    "AccessDenied",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NotSignedUp",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
];

/// The longest code of Azure has 44 bytes.
const CODE_BYTES_MAX: usize = 64;

/// A start waits this long for a store that does not answer.
const ACCESS_WAIT: Duration = Duration::from_secs(5);

/// Memory of the objects of a listing, about half a million: as many as a manifest may name. A
/// store may list without an end.
const LIST_BYTES_MAX: usize = 64 << 20;

/// Extends the deadline of a listing by its objects. A store may list an object at a time without
/// an end, 8,000 each second; S3 sends pages of 1,000.
const LISTED_PER_SECOND_MIN: u64 = 20_000;

/// Requests need little CPU time; two threads keep TLS off the caller's thread.
const THREAD_COUNT: usize = 2;

/// Options of a remote bucket.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Time after which a call fails with `Unavailable`, including retries and queueing. Reads and
    /// puts have 1 s more for each MiB, and a listing for each 20,000 objects; a deletion has this
    /// time for each page.
    pub give_up_ms: u64,
    /// Maximum number of reads in flight. Writes have a quarter as many of their own, so that an
    /// upload does not delay queries.
    pub request_count_max: usize,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        // S3 answers in 30 to 100 ms, so 32 in flight are 300 to 1,000 reads per second.
        RemoteOptions { give_up_ms: 30_000, request_count_max: 32 }
    }
}

/// Objects below one prefix of one bucket of an object store.
pub struct RemoteBucket {
    shared: Arc<Client>,
    /// `Some` until dropped.
    runtime: Option<Runtime>,
}

struct Client {
    /// Without credentials.
    url: String,
    stores: Stores,
    prefix: Path,
    give_up: Duration,
    read_permits: Semaphore,
    write_permits: Semaphore,
}

impl RemoteBucket {
    /// Opens the bucket behind `s3://bucket/prefix`, `gs://bucket/prefix` or
    /// `az://container/prefix`. Takes credentials, region and endpoint from the usual environment
    /// variables (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT`,
    /// `AWS_ALLOW_HTTP`, `GOOGLE_*`, `AZURE_*`), otherwise from the machine. Sends no request yet.
    ///
    /// # Errors
    /// `Invalid` for a malformed URL or variable, and for a variable (`SSL_CERT_FILE` included)
    /// that names a pipe, a device or a folder instead of a file.
    pub fn from_url(url: &str, options: &RemoteOptions) -> Result<RemoteBucket> {
        RemoteBucket::open(url, store::text_variables(std::env::vars_os())?, options)
    }

    /// As [`RemoteBucket::from_url`] with the given variables instead of the environment.
    ///
    /// # Errors
    /// As [`RemoteBucket::from_url`].
    pub fn open(
        url: &str,
        variables: impl IntoIterator<Item = (String, String)>,
        options: &RemoteOptions,
    ) -> Result<RemoteBucket> {
        let give_up = Duration::from_millis(options.give_up_ms.max(1));
        let (stores, prefix) = store::open(url, variables, give_up)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREAD_COUNT)
            .thread_name("firn-remote")
            .enable_all()
            .build()
            .map_err(|e| {
                let url = redacted(url);
                Error::unavailable(format!("cannot start threads for {url}")).because(e)
            })?;
        let request_count_max = options.request_count_max.clamp(4, Semaphore::MAX_PERMITS);
        let shared = Client {
            url: redacted(url.trim_end_matches('/')).into_owned(),
            stores,
            prefix,
            give_up,
            read_permits: Semaphore::new(request_count_max),
            write_permits: Semaphore::new(request_count_max / 4),
        };
        Ok(RemoteBucket { shared: Arc::new(shared), runtime: Some(runtime) })
    }

    /// Blocks until `work` is done on the bucket's own threads. Works on a thread of another async
    /// runtime, where blocking inside tokio would panic.
    fn run<T, F>(&self, work: impl FnOnce(Arc<Client>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        // The client panics on some credentials of a server that issues them, such as those with
        // a line feed.
        let stopped = || {
            Error::unavailable(format!(
                "{}: the client of the store panicked, see the log; check its credentials",
                self.shared.url
            ))
        };
        let runtime = self.runtime.as_ref().ok_or_else(stopped)?;
        // A token's file is read again when the token expires, on a thread of the requests.
        self.shared.stores.files.check().map_err(|e| Error::unavailable(e.to_string()))?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let work = work(Arc::clone(&self.shared));
        runtime.spawn(async move { sender.send(work.await) });
        receiver.recv().map_err(|_| stopped())
    }
}

impl Bucket for RemoteBucket {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
        let fetches = plan_fetches(requests);
        let requests: Arc<[RangeRequest]> = Arc::from(requests);
        let count = requests.len();
        let done = self.run(|shared| async move {
            let lens = fetches.iter().map(Fetch::bytes);
            let deadline = shared.deadline(lens.fold(0, u64::saturating_add));
            let fetched = fetches.into_iter().map(|fetch| shared.fetch(fetch, &requests, deadline));
            let fetched = join_all(fetched);
            let mut answers: Vec<_> = fetched.await.into_iter().flatten().collect();
            answers.sort_unstable_by_key(|answer| answer.0);
            answers.into_iter().map(|answer| answer.1).collect()
        });
        done.unwrap_or_else(|e| {
            let same = || Error::new(e.kind().clone(), e.to_string());
            (0..count).map(|_| Err(same())).collect()
        })
    }

    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo> {
        check_key(key)?;
        let key = key.to_owned();
        self.run(|shared| async move { shared.put(&key, Bytes::from_owner(bytes), mode).await })?
    }

    fn put_file(&self, key: &str, file: Mapped) -> Result<ObjectInfo> {
        check_key(key)?;
        let (key, mode) = (key.to_owned(), PutMode::Overwrite);
        self.run(|shared| async move { shared.put(&key, Bytes::from_owner(file), mode).await })?
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        check_key(key)?;
        let key = key.to_owned();
        self.run(|shared| async move { shared.head(&key, shared.deadline(0)).await })?
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let prefix = prefix.to_owned();
        self.run(|shared| async move { shared.list(&prefix, usize::MAX).await })?
    }

    fn first(&self, prefix: &str) -> Result<Option<ObjectInfo>> {
        let prefix = prefix.to_owned();
        let listed = self.run(|shared| async move { shared.list(&prefix, 1).await })?;
        Ok(listed?.pop())
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let keys = keys.to_vec();
        self.run(|shared| async move { shared.delete(keys).await })?
    }

    fn check_access(&self, key: &str) -> Result<()> {
        let key = key.to_owned();
        self.run(|shared| async move { shared.check_access(&key).await })?
    }
}

impl Drop for RemoteBucket {
    fn drop(&mut self) {
        // Waiting for the threads would panic on a thread of another async runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for RemoteBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The stores contain credentials.
        f.debug_struct("RemoteBucket").field("url", &self.shared.url).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns each result with the index of its request.
    async fn fetch(
        &self,
        fetch: Fetch,
        requests: &[RangeRequest],
        deadline: Instant,
    ) -> Vec<(usize, Result<Arc<[u8]>>)> {
        if let [only] = fetch.members[..] {
            return vec![(only, self.fetch_one(&requests[only], deadline).await)];
        }
        let (offset, len) = (fetch.start, fetch.bytes());
        let whole = RangeRequest { key: fetch.key, offset, len };
        match self.fetch_one(&whole, deadline).await {
            Ok(bytes) => {
                let cut = |idx: usize| {
                    let start = (requests[idx].offset - offset) as usize;
                    (idx, Ok(Arc::from(&bytes[start..start + requests[idx].len as usize])))
                };
                fetch.members.into_iter().map(cut).collect()
            }
            // Only some of the ranges reach past the end of the object.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                let alone = fetch.members.into_iter().map(|idx| async move {
                    (idx, self.fetch_one(&requests[idx], deadline).await)
                });
                join_all(alone).await
            }
            Err(error) => {
                let same = || Err(Error::new(error.kind().clone(), error.to_string()));
                fetch.members.into_iter().map(|idx| (idx, same())).collect()
            }
        }
    }

    async fn fetch_one(&self, request: &RangeRequest, deadline: Instant) -> Result<Arc<[u8]>> {
        let location = self.location(&request.key)?;
        let end = request.offset.checked_add(request.len);
        if let Some(end) = end.filter(|&end| end > request.offset) {
            match self.read_range(&request.key, &location, request.offset..end, deadline).await {
                Ok(bytes) if bytes.len() as u64 == request.len => return Ok(Arc::from(&bytes[..])),
                // Too short, or refused: the range may reach past the end of the object.
                Ok(_) => {}
                Err(error) if error.kind() == &ErrorKind::NotFound => return Err(error),
                Err(error) => match self.head(&request.key, deadline).await {
                    Ok(info) if info.bytes < end => return Err(corrupt_range(request, info.bytes)),
                    _ => return Err(error),
                },
            }
        }
        // An empty range is legal up to the object's end, but stores refuse it.
        let info = self.head(&request.key, deadline).await?;
        if request.len == 0 && request.offset <= info.bytes {
            return Ok(Arc::from([]));
        }
        if end.is_some_and(|end| end <= info.bytes) {
            // The object contains the range: the connection ended early.
            return Err(Error::unavailable(format!(
                "{} in {}: the store sent only a part of {} bytes; retry",
                request.key, self.url, request.len
            )));
        }
        Err(corrupt_range(request, info.bytes))
    }

    async fn read_range(
        &self,
        key: &str,
        location: &Path,
        range: Range<u64>,
        deadline: Instant,
    ) -> Result<Bytes> {
        // The ranges of one call share the bandwidth; a deadline beyond `give_up` marks a large
        // read.
        if deadline <= Instant::now() + self.give_up {
            let get = self.stores.retrying.get_range(location, range);
            return self.read(deadline, "read", key, get).await;
        }
        // The remaining third is reserved for the cause: one request for one byte.
        let soon = deadline - self.give_up / 3;
        let byte = range.start..range.start + 1;
        let get = self.stores.enduring.get_range(location, range);
        match self.read(soon, "read", key, get).await {
            Err(error) if Instant::now() >= soon => {
                let get = self.stores.once.get_range(location, byte);
                match self.read(deadline, "read", key, get).await {
                    Err(cause) if Instant::now() < deadline => Err(cause),
                    _ => Err(error),
                }
            }
            done => done,
        }
    }

    async fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<ObjectInfo> {
        let location = self.location(key)?;
        let byte_count = bytes.len() as u64;
        let deadline = self.deadline(byte_count);
        let is_large = bytes.len() > PART_BYTES;
        let result = match &mode {
            PutMode::Overwrite if is_large => self.put_parts(key, &location, bytes, deadline).await,
            PutMode::Overwrite => {
                let put = self.stores.retrying.put(&location, PutPayload::from_bytes(bytes));
                let put = self.write(deadline, "write", key, put).await;
                put.map(|put| ObjectInfo::of_put(key, byte_count, put))
            }
            PutMode::Create if is_large => {
                self.create_in_parts(key, &location, bytes, deadline).await
            }
            _ => self.put_if(key, &location, bytes, &mode, deadline).await,
        };
        match result {
            // A put fails with NotFound only if the bucket is missing.
            Err(error) if error.kind() == &ErrorKind::NotFound => {
                Err(Error::unavailable(self.no_bucket()).because(error))
            }
            result => result,
        }
    }

    /// The condition for the store. Google compares generations, which only a `head` returns.
    async fn update_version(
        &self,
        key: &str,
        version: &str,
        deadline: Instant,
    ) -> Result<UpdateVersion> {
        if !self.stores.compares_generations {
            return Ok(UpdateVersion { e_tag: Some(version.to_owned()), version: None });
        }
        let location = self.location(key)?;
        let head = self.stores.retrying.head(&location);
        let meta = match self.read(deadline, "examine", key, head).await {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == &ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let present = meta.as_ref().map(version_of);
        PutMode::IfVersion(version.to_owned()).check(key, present.as_deref())?;
        let (e_tag, version) = meta.map_or((None, None), |meta| (meta.e_tag, meta.version));
        Ok(UpdateVersion { e_tag, version })
    }

    async fn head(&self, key: &str, deadline: Instant) -> Result<ObjectInfo> {
        let location = self.location(key)?;
        let head = self.stores.retrying.head(&location);
        let meta = self.read(deadline, "examine", key, head).await?;
        Ok(ObjectInfo { key: key.to_owned(), bytes: meta.size, version: version_of(&meta) })
    }

    async fn check_access(&self, key: &str) -> Result<()> {
        let location = self.location(key)?;
        // A read, because the response to `head` has no body, which names a missing bucket.
        let read = self.stores.once.get_range(&location, 0..1);
        let error = match timeout_at(Instant::now() + ACCESS_WAIT, read).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => {
                return Err(Error::unavailable(format!(
                    "{}: the store did not answer within {} s",
                    self.url,
                    ACCESS_WAIT.as_secs()
                )));
            }
        };
        use object_store::Error as Store;
        let text = error.to_string();
        let code = code_of(&text);
        let is_refused = REFUSALS.contains(&code)
            || matches!(error, Store::PermissionDenied { .. } | Store::Unauthenticated { .. });
        if NO_BUCKET_CODES.iter().any(|code| text.contains(code)) {
            return Err(Error::invalid(self.no_bucket()));
        }
        if matches!(error, Store::NotFound { .. }) {
            return Ok(());
        }
        if is_refused {
            let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
            return Err(Error::invalid(format!(
                "{}: the store refused the credentials{code}; check them and their rights in the \
                 environment (AWS_*, GOOGLE_* or AZURE_*)",
                self.url
            )));
        }
        let boundary = Error::unavailable(format!("{}: the store does not answer", self.url));
        Err(boundary.because(self.shown(&error)))
    }

    /// All objects, or `count_max` that the store lists first.
    async fn list(&self, prefix: &str, count_max: usize) -> Result<Vec<ObjectInfo>> {
        // Stores list by whole key components; a partial last component is compared here.
        let folder = prefix.rsplit_once('/').map_or("", |parts| parts.0);
        let location = if folder.is_empty() { self.prefix.clone() } else { self.location(folder)? };
        let mut metas = self.stores.retrying.list(Some(&location));
        let mut found = Vec::new();
        let mut bytes_left = LIST_BYTES_MAX;
        let first_deadline = self.deadline(0);
        let mut listed_count = 0;
        while found.len() < count_max {
            // Most items come from a page that was already received.
            let next = async { metas.next().await.transpose() };
            let what = format!("{prefix}*");
            let more_s = if count_max > 1 { listed_count / LISTED_PER_SECOND_MIN } else { 0 };
            let deadline = first_deadline + Duration::from_secs(more_s);
            let next = self.read(deadline, "list", &what, next).await.map_err(|error| {
                match listed_count > 0 && Instant::now() >= deadline {
                    true => Error::unavailable(format!(
                        "cannot list {what} in {}: the store has listed {listed_count} objects and \
                         not all of them",
                        self.url
                    )),
                    false => error,
                }
            });
            let Some(meta) = next? else { break };
            listed_count += 1;
            let version = version_of(&meta);
            // Objects outside of the prefix count, too: a store may send them without an end.
            let key_len = meta.location.as_ref().len();
            let info_bytes = size_of::<ObjectInfo>() + key_len + version.len();
            bytes_left = bytes_left.checked_sub(info_bytes).ok_or_else(|| {
                Error::unavailable(format!(
                    "{what} in {}: more objects than {} MiB of memory can list; remove those that \
                     are not FirnDB's",
                    self.url,
                    LIST_BYTES_MAX >> 20
                ))
            })?;
            if let Some(key) = self.key(&meta.location).filter(|key| key.starts_with(prefix)) {
                found.push(ObjectInfo { key, bytes: meta.size, version });
            }
        }
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    async fn delete(&self, keys: Vec<String>) -> Result<()> {
        let locations: Vec<Path> =
            keys.iter().map(|key| self.location(key)).collect::<Result<_>>()?;
        let locations = futures_util::stream::iter(locations.into_iter().map(Ok)).boxed();
        let mut deleted = self.stores.retrying.delete_stream(locations);
        let what = match &keys[..] {
            [] => return Ok(()),
            [only] => only.clone(),
            [first, ..] => format!("{first} and {} more", keys.len() - 1),
        };
        loop {
            let next = async { deleted.next().await.transpose() };
            match self.write(self.deadline(0), "delete", &what, next).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) if error.kind() == &ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The deadline of a call that transfers `byte_count` bytes and starts now.
    fn deadline(&self, byte_count: u64) -> Instant {
        let transfer = Duration::from_secs(byte_count / BYTES_PER_SECOND_MIN);
        Instant::now() + self.give_up.saturating_add(transfer).min(LIMIT_MAX)
    }

    async fn read<T>(
        &self,
        deadline: Instant,
        verb: &str,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.in_turn(&self.read_permits, deadline, verb, key, request).await
    }

    async fn write<T>(
        &self,
        deadline: Instant,
        verb: &str,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.in_turn(&self.write_permits, deadline, verb, key, request).await
    }

    async fn in_turn<T>(
        &self,
        permits: &Semaphore,
        deadline: Instant,
        verb: &str,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let permitted = async {
            // The semaphore is never closed, so `acquire` eventually succeeds.
            let _permit = permits.acquire().await;
            request.await
        };
        let began = Instant::now();
        match timeout_at(deadline, permitted).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.boundary(verb, key, error)),
            Err(_) => Err(Error::unavailable(format!(
                "cannot {verb} {key} in {}: not done within {} ms; check the endpoint, the \
                 network and the credentials",
                self.url,
                began.elapsed().as_millis()
            ))),
        }
    }

    fn location(&self, key: &str) -> Result<Path> {
        check_key(key)?;
        let whole = match self.prefix.as_ref() {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        };
        Path::parse(whole)
            .map_err(|e| Error::invalid(format!("{key:?} is not a valid object key")).because(e))
    }

    /// The key without the prefix of the bucket.
    fn key(&self, location: &Path) -> Option<String> {
        let rest = location.as_ref().strip_prefix(self.prefix.as_ref())?;
        Some(rest.strip_prefix('/').unwrap_or(rest).to_owned())
    }

    fn boundary(&self, verb: &str, key: &str, error: object_store::Error) -> Error {
        use object_store::Error as Store;
        let action = format!("cannot {verb} {key} in {}", self.url);
        let text = error.to_string();
        let boundary = match &error {
            // A missing bucket must not look like a missing object.
            _ if NO_BUCKET_CODES.iter().any(|code| text.contains(code)) => {
                Error::unavailable(format!("{action}: {}", self.no_bucket()))
            }
            Store::NotFound { .. } => Error::not_found(action),
            Store::AlreadyExists { .. } | Store::Precondition { .. } => {
                Error::new(ErrorKind::Conflict, action)
            }
            Store::InvalidPath { .. } => Error::invalid(action),
            Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => Error::unavailable(
                format!("{action}: the store refused the credentials; check them and their rights"),
            ),
            _ => Error::unavailable(action),
        };
        boundary.because(self.shown(&error))
    }

    fn shown(&self, error: &object_store::Error) -> store::ShownCause {
        store::ShownCause::new(error, &self.stores.secrets)
    }

    fn no_bucket(&self) -> String {
        format!("{}: the bucket does not exist; create it, or correct the URL", self.url)
    }
}

impl ObjectInfo {
    fn of_put(key: &str, bytes: u64, put: PutResult) -> ObjectInfo {
        let version = put.e_tag.or(put.version).unwrap_or_default();
        ObjectInfo { key: key.to_owned(), bytes, version }
    }
}

/// The code in the XML of an error of S3 or Azure; empty if there is none.
fn code_of(text: &str) -> &str {
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or("", |(code, _)| code).trim();
    let is_name = code.len() <= CODE_BYTES_MAX && code.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_name { code } else { "" }
}

/// All current stores return entity tags; the fallbacks are for others.
fn version_of(meta: &ObjectMeta) -> String {
    let fallback = || format!("{}-{}", meta.last_modified.timestamp_millis(), meta.size);
    meta.e_tag.clone().or_else(|| meta.version.clone()).unwrap_or_else(fallback)
}
