//! Clients of tests, and their files.

use std::path::Path;

use firn_collect::config::{Config, HttpClient};

/// The client of a job with `keys`.
pub(crate) fn client_config(keys: &str) -> HttpClient {
    let text = format!("scrape_configs: [{{job_name: j, {keys}}}]");
    let loaded = Config::parse(&text, &|_| None).unwrap();
    loaded.config.scrape_configs[0].http.clone()
}

/// Writes a file that the configuration names.
#[expect(clippy::disallowed_methods, reason = "a file of the user, not of the database")]
pub(crate) fn write_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
