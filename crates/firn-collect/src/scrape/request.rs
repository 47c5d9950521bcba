//! The request of a scrape.

use std::time::Duration;

use super::accept_header;
use crate::config::{Escaping, ScrapeConfig, ScrapeProtocol};
use crate::targets::Target;

/// The request of a scrape. The caller sends it and returns the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeRequest {
    /// The address.
    pub url: String,
    /// The path of the Unix socket that serves the target, if it is not reached over TCP.
    pub unix_socket: Option<String>,
    /// Names and values, without those of the client's configuration.
    pub headers: Vec<(&'static str, String)>,
    /// An unpacked body of this length is too long. 0 is no limit.
    pub body_bytes_max: u64,
    /// From the connection to the last byte of the body.
    pub timeout: Duration,
}

impl ScrapeRequest {
    /// The request for `target` of `job`, by a client that calls itself `user_agent`.
    pub fn new(job: &ScrapeConfig, target: &Target, user_agent: &str) -> ScrapeRequest {
        let protocols: &[ScrapeProtocol] = job.scrape_protocols.as_deref().unwrap_or(&[]);
        let escaping = job.metric_name_escaping_scheme.parsed().unwrap_or(Escaping::Unset);
        let encoding = if job.enable_compression { "gzip" } else { "identity" };
        let timeout = Duration::from_millis(target.timeout.as_ms());
        ScrapeRequest {
            url: target.url(job),
            unix_socket: target.unix_socket().map(str::to_owned),
            headers: vec![
                ("accept", accept_header(protocols, escaping)),
                ("accept-encoding", encoding.to_owned()),
                ("user-agent", user_agent.to_owned()),
                ("x-prometheus-scrape-timeout-seconds", timeout.as_secs_f64().to_string()),
            ],
            body_bytes_max: job.body_size_limit.as_bytes().max(0).unsigned_abs(),
            timeout,
        }
    }
}
