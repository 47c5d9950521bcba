//! `firn cache`: a cache server, a caching proxy, and statistics of either.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Args, Subcommand};
use firn_model::excerpt;
use firn_server::{CacheConfig, CacheServer, Error, Flags, Proxy, Result, one_line, redacted};

use crate::http::ServerAccess;
use crate::{allocator, output};

/// Path of the metrics of both kinds.
const METRICS_PATH: &str = "/-/cache/metrics";

/// `firn cache`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: Option<CacheCommand>,

    #[command(flatten)]
    flags: Flags<CacheConfig>,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Print statistics of a running cache or proxy as a table
    Stats(Stats),
}

#[derive(Debug, Args)]
struct Stats {
    /// Address of the cache or proxy; https://HOST:PORT with TLS
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9421")]
    server: String,

    #[command(flatten)]
    access: ServerAccess,
}

/// Runs a cache until it is stopped, or prints statistics of a running one.
///
/// # Errors
/// Those of the settings and of the start; `Unavailable` when no cache responds.
pub(crate) fn cache(cache: &Cache) -> Result<()> {
    if let Some(CacheCommand::Stats(stats)) = &cache.command {
        return output::print(&fetch_stats(stats)?);
    }
    let version = env!("CARGO_PKG_VERSION");
    let loaded = cache.flags.load()?;
    loaded.warn_of_credentials();
    output::log_warnings(&loaded.warnings);
    let config = loaded.config;
    output::log_warnings(firn_server::raise_open_files(config.connections_max.0).as_slice());
    let data = one_line(&config.data.to_string()).into_owned();
    match config.proxy.get() {
        Some(origin) => {
            let proxy = Proxy::start(&origin, config, allocator::release)?;
            let scheme = output::scheme(proxy.has_tls());
            let (urls, listen) = (output::urls(scheme, proxy.listens()), proxy.listens()[0]);
            output::announce(&format!(
                "FirnDB {version}   cache in {data}\n\
                 URL            {urls} in place of {origin:?}\n\
                 Metrics        {scheme}://{listen}{METRICS_PATH}\n",
            ));
            let served = proxy.wait_for_signal();
            log_stop(proxy.stop());
            served
        }
        None => {
            let server = CacheServer::start(config, allocator::release)?;
            let scheme = output::scheme(server.has_tls());
            let addresses: Vec<String> = server.listens().iter().map(ToString::to_string).collect();
            let (addresses, listen) = (addresses.join(" and "), server.listens()[0]);
            output::announce(&format!(
                "FirnDB {version}   cache in {data}\n\
                 Address        {addresses} (docs/cache-protocol.md)\n\
                 Metrics        {scheme}://{listen}{METRICS_PATH}\n",
            ));
            let served = server.wait_for_signal();
            log_stop(server.stop());
            served
        }
    }
}

/// A cache that cannot be written at its stop has lost nothing that cannot be fetched again.
fn log_stop(stopped: Result<()>) {
    if let Err(error) = stopped {
        output::log_warnings(&[format!("stopping: the points in memory are not kept: {error}")]);
    }
}

fn fetch_stats(stats: &Stats) -> Result<String> {
    let server = stats.access.server(&stats.server, &["FIRN_CACHE_TOKEN", "FIRN_TOKEN"])?;
    let body = server.get(METRICS_PATH)?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let samples: BTreeMap<&str, f64> = text
        .lines()
        .filter(|line| line.starts_with("firn_cache_"))
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    if !samples.contains_key("firn_cache_slabs") {
        let first = excerpt(text.lines().next().unwrap_or_default());
        let what = format!(
            "no firn cache responds at {}: expected its metrics, got {first:?}; check --server and \
             --credentials-file",
            redacted(&stats.server)
        );
        return Err(Error::unavailable(what));
    }
    table(&samples)
        .map_err(|error| error.context(format!("the cache at {}", redacted(&stats.server))))
}

/// The statistics that matter to an operator, one line each.
///
/// # Errors
/// `Unavailable` for a missing metric.
fn table(samples: &BTreeMap<&str, f64>) -> Result<String> {
    let get = |name: &str| {
        let value = samples.get(name).copied();
        value.ok_or_else(|| Error::unavailable(format!("expected the metric {name}, got none")))
    };
    let by = |name: &str, label: &str, value: &str| get(&format!("{name}{{{label}=\"{value}\"}}"));
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{name:<16}{value}");
    };
    let lookups = |result| by("firn_cache_lookups_total", "result", result);
    let returned = |result| by("firn_cache_returned_bytes_total", "result", result).map(bytes);
    let (hits, parts, misses) = (lookups("hit")?, lookups("partial")?, lookups("miss")?);
    let percent = |count: f64| 100.0 * count / (hits + parts + misses).max(1.0);
    line("hits", format!("{hits} ({:.1} %), {} returned", percent(hits), returned("hit")?));
    line(
        "partial hits",
        format!("{parts} ({:.1} %), {} returned", percent(parts), returned("partial")?),
    );
    line("misses", format!("{misses} ({:.1} %)", percent(misses)));
    line("parts declined", format!("{}", get("firn_cache_declined_partial_hits_total")?));
    line(
        "stored",
        format!("{} keys, {} ranges", get("firn_cache_keys")?, get("firn_cache_extents")?),
    );
    let written = bytes(get("firn_cache_written_bytes_total")?);
    line(
        "set",
        format!(
            "{}, {} refused",
            bytes(get("firn_cache_stored_bytes_total")?),
            get("firn_cache_rejected_sets_total")?
        ),
    );
    line(
        "written",
        format!("{written}, {:.2} per byte set", get("firn_cache_write_amplification_ratio")?),
    );
    line("read", bytes(get("firn_cache_read_bytes_total")?));
    for partition in ["fifo", "lru"] {
        let of = |name| by(name, "partition", partition);
        let most = match partition {
            "lru" => format!(" of at most {}", get("firn_cache_lru_slabs_max")?),
            _ => String::new(),
        };
        line(
            &format!("{partition} partition"),
            format!(
                "{} slabs{most}, {} evicted, {} ghost hits",
                of("firn_cache_partition_slabs")?,
                of("firn_cache_evictions_total")?,
                of("firn_cache_ghost_hits_total")?
            ),
        );
    }
    line("compaction", format!("{} slabs merged", get("firn_cache_compacted_slabs_total")?));
    line("rescued", format!("a part of {} slabs", get("firn_cache_rescued_slabs_total")?));
    line("memory", bytes(get("firn_cache_memory_bytes")?));
    let off = if get("firn_cache_disabled")? > 0.0 { "; the cache is off" } else { "" };
    line(
        "device",
        format!(
            "{} failures, {} damaged slabs dropped{off}",
            get("firn_cache_device_errors_total")?,
            get("firn_cache_corrupt_slabs_total")?
        ),
    );
    Ok(text)
}

/// Bytes in a unit that leaves at most four digits before the point.
fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 10_000.0 {
            return format!("{value:.0} {unit}");
        }
        value /= 1_024.0;
    }
    format!("{value:.0} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_results_partitions_and_a_failed_device() {
        let samples = BTreeMap::from([
            ("firn_cache_lookups_total{result=\"hit\"}", 90.0),
            ("firn_cache_lookups_total{result=\"partial\"}", 0.0),
            ("firn_cache_lookups_total{result=\"miss\"}", 10.0),
            ("firn_cache_returned_bytes_total{result=\"hit\"}", 20_480.0),
            ("firn_cache_returned_bytes_total{result=\"partial\"}", 0.0),
            ("firn_cache_declined_partial_hits_total", 0.0),
            ("firn_cache_keys", 0.0),
            ("firn_cache_extents", 0.0),
            ("firn_cache_written_bytes_total", 0.0),
            ("firn_cache_stored_bytes_total", 0.0),
            ("firn_cache_rejected_sets_total", 0.0),
            ("firn_cache_write_amplification_ratio", 0.0),
            ("firn_cache_read_bytes_total", 0.0),
            ("firn_cache_partition_slabs{partition=\"fifo\"}", 0.0),
            ("firn_cache_evictions_total{partition=\"fifo\"}", 0.0),
            ("firn_cache_ghost_hits_total{partition=\"fifo\"}", 0.0),
            ("firn_cache_partition_slabs{partition=\"lru\"}", 3.0),
            ("firn_cache_evictions_total{partition=\"lru\"}", 0.0),
            ("firn_cache_ghost_hits_total{partition=\"lru\"}", 0.0),
            ("firn_cache_lru_slabs_max", 7.0),
            ("firn_cache_compacted_slabs_total", 0.0),
            ("firn_cache_rescued_slabs_total", 0.0),
            ("firn_cache_memory_bytes", 0.0),
            ("firn_cache_disabled", 1.0),
            ("firn_cache_device_errors_total", 0.0),
            ("firn_cache_corrupt_slabs_total", 0.0),
        ]);
        let text = table(&samples).unwrap();
        for line in [
            "hits            90 (90.0 %), 20 KiB returned",
            "misses          10 (10.0 %)",
            "lru partition   3 slabs of at most 7, 0 evicted, 0 ghost hits",
            "device          0 failures, 0 damaged slabs dropped; the cache is off",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        // Each missing metric was a zero.
        for name in samples.keys() {
            let mut some = samples.clone();
            some.remove(name);
            let error = table(&some).unwrap_err().to_string();
            assert_eq!(error, format!("expected the metric {name}, got none"));
        }
    }
}
