//! Reading request bodies: within a limit of size, the memory budget and a limit of time.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use firn_model::{Budget, Error, Pool, Reservation, Result};
use http_body_util::BodyExt;

use crate::config::ServeConfig;
use crate::wire::snappy;

/// A request body in memory, accounted.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    pub(crate) bytes: Vec<u8>,
    held: Reservation,
}

/// The largest body that a request may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit {
    bytes_max: usize,
    /// The setting that raises it; `None` for a constant.
    setting: Option<&'static str>,
}

impl BodyLimit {
    /// The limit of a body that is compressed or not.
    pub(crate) fn of(config: &ServeConfig, is_compressed: bool) -> BodyLimit {
        let (size, setting) = match is_compressed {
            true => (config.body_bytes_max, "--body-bytes-max"),
            false => (config.request_bytes_max, "--request-bytes-max"),
        };
        BodyLimit { bytes_max: size.to_usize(), setting: Some(setting) }
    }

    /// A limit that is not a setting.
    pub(crate) fn constant(bytes_max: usize) -> BodyLimit {
        BodyLimit { bytes_max, setting: None }
    }
}

// A sender that needs longer for one request has failed or is malicious.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
// Reserved at once for a body of unknown length.
const STEP_BYTES: usize = 64 << 10;

/// Reads all of `body`, whose memory is `pool`'s.
///
/// # Errors
/// `TooLarge` over `limit`, before anything is read if the length is announced; `Busy` without
/// memory; `Invalid` when the sender stops in the middle or takes over a minute.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: BodyLimit,
    (budget, pool): (&Budget, Pool),
) -> Result<HeldBytes> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|len: u64| len > limit.bytes_max as u64) {
        return Err(too_large(limit));
    }
    let mut read = HeldBytes::empty(budget, pool);
    read.held.grow(announced.unwrap_or(0))?;
    read.bytes.reserve_exact(announced.unwrap_or(0) as usize);
    let reading = async {
        let mut body = body;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| Error::invalid("the body ends early").because(e))?;
            let Ok(data) = frame.into_data() else { continue };
            if read.bytes.len() + data.len() > limit.bytes_max {
                return Err(too_large(limit));
            }
            read.push(&data)?;
        }
        Ok(())
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(done) => done.map(|()| read),
        Err(_) => Err(Error::invalid(format!(
            "the body did not arrive within {} seconds",
            BODY_TIMEOUT.as_secs()
        ))),
    }
}

impl HeldBytes {
    /// No bytes, no memory yet.
    fn empty(budget: &Budget, pool: Pool) -> HeldBytes {
        HeldBytes { bytes: Vec::new(), held: budget.empty(pool) }
    }

    /// Adds `data` after reserving its memory.
    ///
    /// # Errors
    /// `Busy` without memory.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<()> {
        let wanted = self.bytes.len() + data.len();
        if wanted as u64 > self.held.bytes() {
            // Doubled, as the vector does.
            let target = wanted.max(2 * self.bytes.len()).max(STEP_BYTES) as u64;
            self.held.grow(target - self.held.bytes())?;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl HeldBytes {
    /// Decompresses a gzip body to at most `bytes_max`.
    ///
    /// # Errors
    /// `Invalid`, `TooLarge` over `bytes_max`, `Busy` without memory.
    pub(crate) fn unpack_gzip(self, bytes_max: usize, budget: &Budget) -> Result<HeldBytes> {
        let mut unpacked = HeldBytes::empty(budget, Pool::Requests);
        let mut reader = flate2::read::MultiGzDecoder::new(self.bytes.as_slice());
        let mut step = vec![0; STEP_BYTES];
        loop {
            let len = reader
                .read(&mut step)
                .map_err(|e| Error::invalid("gzip: the body is not valid").because(e))?;
            if len == 0 {
                return Ok(unpacked);
            }
            if unpacked.bytes.len() + len > bytes_max {
                return Err(Error::too_large(format!(
                    "gzip: the body unpacks to more than the limit of {bytes_max} bytes \
                     (--request-bytes-max)"
                )));
            }
            unpacked.push(step.get(..len).unwrap_or(&[]))?;
        }
    }

    /// Decompresses a snappy block to at most `bytes_max`.
    ///
    /// # Errors
    /// As [`HeldBytes::unpack_gzip`].
    pub(crate) fn unpack_snappy(self, bytes_max: usize, budget: &Budget) -> Result<HeldBytes> {
        let mut unpacked = HeldBytes::empty(budget, Pool::Requests);
        unpacked.held.grow(snappy::declared_bytes(&self.bytes, bytes_max)? as u64)?;
        let len = snappy::decompress(&self.bytes, bytes_max, &mut unpacked.bytes)?.len();
        unpacked.bytes.truncate(len);
        Ok(unpacked)
    }
}

fn too_large(limit: BodyLimit) -> Error {
    let setting = limit.setting.map_or_else(String::new, |name| format!(" ({name})"));
    Error::too_large(format!("the body is over the limit of {} bytes{setting}", limit.bytes_max))
}
