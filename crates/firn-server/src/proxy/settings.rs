//! Settings of `firn cache`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use firn_model::Result;

use crate::config::{bad, bytes, duration_ms};

/// What can be set, as it is typed. Sizes are like `512MiB`, durations like `15d` or `1h30m`.
#[derive(Args, Clone, Debug)]
pub struct CacheSettings {
    /// The database to stand before, compatible with Prometheus: http:// or https:// with a host, and a path if its
    /// API has one before /api/v1
    #[arg(long, env = "FIRN_CACHE_PROXY", value_name = "URL")]
    pub proxy: String,

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

    /// Space for answers on disk
    #[arg(long, env = "FIRN_CACHE_SIZE", value_name = "SIZE", default_value = "1GiB")]
    pub size: String,

    /// Memory for the cache's index and what waits for the disk
    #[arg(long, env = "FIRN_CACHE_MEMORY", value_name = "SIZE", default_value = "128MiB")]
    pub memory: String,

    /// Age from which on the database does not change its samples any more; younger ones are not cached
    #[arg(long, env = "FIRN_CACHE_SETTLE", value_name = "DURATION", default_value = "10m")]
    pub settle: String,

    /// Size of an answer above which it is passed on and not cached
    #[arg(long, env = "FIRN_CACHE_ANSWER_BYTES_MAX", value_name = "SIZE", default_value = "64MiB")]
    pub answer_bytes_max: String,

    /// Connections that are open at one time; further ones wait
    #[arg(long, env = "FIRN_CACHE_CONNECTIONS_MAX", value_name = "COUNT", default_value_t = 512)]
    pub connections_max: usize,
}

/// Checked settings.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The database to stand before.
    pub origin: String,
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder of the cache.
    pub data: PathBuf,
    /// Space on disk.
    pub flash_bytes_max: u64,
    /// Memory of the cache.
    pub memory_bytes_max: u64,
    /// Age from which on samples do not change.
    pub settle_ms: i64,
    /// Size of an answer that is looked at.
    pub answer_bytes_max: usize,
    /// Open connections.
    pub connections_max: usize,
}

// Two slabs and what is written to them.
const FLASH_BYTES_MIN: u64 = 8 << 20;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
const ANSWER_BYTES_MAX: u64 = 1 << 30;

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
        Ok(CacheConfig {
            origin: self.proxy.clone(),
            listen: self.listen,
            data: self.data.clone(),
            flash_bytes_max: bytes("size", &self.size, FLASH_BYTES_MIN, u64::MAX >> 1)?,
            memory_bytes_max: bytes("memory", &self.memory, MEMORY_BYTES_MIN, u64::MAX >> 1)?,
            settle_ms: duration_ms("settle", &self.settle)?,
            answer_bytes_max: answer_bytes_max as usize,
            connections_max: self.connections_max,
        })
    }
}
