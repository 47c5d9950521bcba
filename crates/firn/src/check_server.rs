//! `firn check healthy` and `firn check ready`: the state of a running server, with the output and
//! the exit codes of promtool.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use firn_model::excerpt;

use crate::client::{ClientFile, ServerAddress};
use crate::output;

/// `firn check healthy` and `firn check ready`.
#[derive(Debug, Args)]
pub(crate) struct CheckServer {
    #[command(flatten)]
    client: ClientFile,

    /// The address of the server
    #[arg(long, default_value = "http://localhost:9420")]
    url: ServerAddress,
}

/// As in promtool.
const TIMEOUT: Duration = Duration::from_secs(10);
const OK: u16 = 200;
/// The part of a response of which an excerpt is printed.
const TEXT_BYTES_MAX: usize = 4_096;

/// Prints the response of `endpoint`.
pub(crate) fn run(check: &CheckServer, endpoint: &str) -> ExitCode {
    match state(check, endpoint) {
        Ok(text) => {
            output::report_line(&format!("  SUCCESS:  {}", text.trim_end()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::report_line(&error);
            ExitCode::FAILURE
        }
    }
}

fn state(check: &CheckServer, endpoint: &str) -> Result<String, String> {
    let mut server = check.client.client(&check.url, &[])?;
    let url = server.url(endpoint);
    let response =
        server.get(endpoint, TIMEOUT).map_err(|error| format!("Get {url:?}: {error}"))?;
    match response.status {
        OK => {
            let body = response.body.get(..TEXT_BYTES_MAX).unwrap_or(&response.body);
            Ok(excerpt(&String::from_utf8_lossy(body)).into_owned())
        }
        status => Err(format!("check failed: URL={}, status={status}", check.url)),
    }
}
