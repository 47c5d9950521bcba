//! Settings of `firn cache`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use firn_model::{Error, Result};

use crate::cache_server::CacheServerConfig;
use crate::config::{bad, bytes, duration_ms};
use crate::proxy::ProxyConfig;

/// What can be set, as it is typed. Sizes are like `512MiB`, durations like `15d` or `1h30m`.
#[derive(Args, Clone, Debug)]
pub struct CacheSettings {
    /// The database to stand before, compatible with Prometheus or InfluxDB 1.x: http:// or https:// with a host, and a path
    /// if its API has one before /api/v1. Without it this is a cache for programs that get and set points
    /// (docs/cache-protocol.md)
    #[arg(long, env = "FIRN_CACHE_PROXY", value_name = "URL")]
    pub proxy: Option<String>,

    /// Address and port to listen on
    #[arg(
        long,
        env = "FIRN_CACHE_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:9421"
    )]
    pub listen: SocketAddr,

    /// Folder of the cache; made if it is missing
    #[arg(long, env = "FIRN_CACHE_DATA", value_name = "FOLDER", default_value = "./firn-cache")]
    pub data: PathBuf,

    /// Space on disk
    #[arg(long, env = "FIRN_CACHE_SIZE", value_name = "SIZE", default_value = "1GiB")]
    pub size: String,

    /// Memory for the cache's index and what waits for the disk
    #[arg(long, env = "FIRN_CACHE_MEMORY", value_name = "SIZE", default_value = "128MiB")]
    pub memory: String,

    /// Of the proxy: age from which on the database does not change its samples any more; younger ones are not cached
    #[arg(long, env = "FIRN_CACHE_SETTLE", value_name = "DURATION", default_value = "10m")]
    pub settle: String,

    /// Of the proxy: size of an answer above which it is passed on and not cached
    #[arg(long, env = "FIRN_CACHE_ANSWER_BYTES_MAX", value_name = "SIZE", default_value = "64MiB")]
    pub answer_bytes_max: String,

    /// Connections that are open at one time; further ones wait
    #[arg(long, env = "FIRN_CACHE_CONNECTIONS_MAX", value_name = "COUNT", default_value_t = 512)]
    pub connections_max: usize,

    /// Without --proxy: file with the token that clients must show first
    #[arg(long, env = "FIRN_CACHE_TOKEN_FILE", value_name = "FILE", conflicts_with = "proxy")]
    pub token_file: Option<PathBuf>,

    /// Without --proxy: size of a value that is set or got at once
    #[arg(long, env = "FIRN_CACHE_VALUE_BYTES_MAX", value_name = "SIZE", default_value = "8MiB")]
    pub value_bytes_max: String,

    /// A part of what is asked for is given only if it has about so many bytes; the client, or the database behind the proxy,
    /// computes all of it otherwise. A get may say another number. 512KiB if it is left out; a proxy measures then what its
    /// database takes for a byte
    #[arg(long, env = "FIRN_CACHE_PARTIAL_BYTES_MIN", value_name = "SIZE")]
    pub partial_bytes_min: Option<String>,

    /// Without --proxy: a connection that is silent for so long is closed
    #[arg(long, env = "FIRN_CACHE_IDLE", value_name = "DURATION", default_value = "10m")]
    pub idle: String,
}

/// Checked settings of what `firn cache` is.
#[derive(Clone, Debug)]
pub enum CacheConfig {
    /// In front of a database.
    Proxy(ProxyConfig),
    /// For other programs.
    Server(CacheServerConfig),
}

// Two slabs and what is written to them.
const FLASH_BYTES_MIN: u64 = 8 << 20;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
const ANSWER_BYTES_MAX: u64 = 1 << 30;
const VALUE_BYTES_MAX: u64 = 256 << 20;
const TOKEN_BYTES_MAX: usize = 1_000;
/// The paper's break-even for its own database; what stands behind a client this server does not know.
const PARTIAL_BYTES_MIN: u64 = 512 << 10;

impl CacheSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// `Invalid`, naming the setting, what was given and what is wanted.
    pub fn check(&self) -> Result<CacheConfig> {
        if self.connections_max == 0 {
            return Err(bad("connections-max", "0", "at least 1"));
        }
        let answer_bytes_max =
            bytes("answer-bytes-max", &self.answer_bytes_max, 1, ANSWER_BYTES_MAX)?;
        let flash_bytes_max = bytes("size", &self.size, FLASH_BYTES_MIN, u64::MAX >> 1)?;
        let memory_bytes_max = bytes("memory", &self.memory, MEMORY_BYTES_MIN, u64::MAX >> 1)?;
        let partial_bytes_min = self.partial_bytes_min.as_deref();
        let partial_bytes_min = partial_bytes_min
            .map(|text| bytes("partial-bytes-min", text, 0, u64::MAX >> 1))
            .transpose()?;
        if let Some(origin) = &self.proxy {
            return Ok(CacheConfig::Proxy(ProxyConfig {
                origin: origin.clone(),
                listen: self.listen,
                data: self.data.clone(),
                flash_bytes_max,
                memory_bytes_max,
                settle_ms: duration_ms("settle", &self.settle)?,
                answer_bytes_max: answer_bytes_max as usize,
                connections_max: self.connections_max,
                partial_bytes_min,
                on_idle: || (),
            }));
        }
        let value_bytes_max = bytes("value-bytes-max", &self.value_bytes_max, 1, VALUE_BYTES_MAX)?;
        let idle_ms = duration_ms("idle", &self.idle)?;
        Ok(CacheConfig::Server(CacheServerConfig {
            listen: self.listen,
            data: self.data.clone(),
            flash_bytes_max,
            memory_bytes_max,
            connections_max: self.connections_max,
            value_bytes_max: value_bytes_max as usize,
            partial_bytes_min: partial_bytes_min.unwrap_or(PARTIAL_BYTES_MIN),
            token: self.token_file.as_deref().map(read_token).transpose()?,
            idle: Duration::from_millis(idle_ms.unsigned_abs()),
            on_idle: || (),
        }))
    }
}

/// The token in a file: its first line, without blanks.
fn read_token(path: &Path) -> Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::invalid(format!("cannot read --token-file {shown}")).because(e))?;
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    let is_word = token.bytes().all(|byte| byte.is_ascii_graphic());
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX || !is_word {
        return Err(Error::invalid(format!(
            "--token-file {shown}: its first line must be a token of 1 to {TOKEN_BYTES_MAX} printable characters without \
             blanks"
        )));
    }
    Ok(token)
}
