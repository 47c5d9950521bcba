//! Requests to HTTP APIs of discoveries.

use std::time::Duration;

use axum::http::HeaderName;
use firn_collect::discovery::{ApiHost, check_status};
use firn_fetch::{Client, Connections, Request, Response};
use firn_model::Secret;

use super::{ANSWER_BYTES_MAX, USER_AGENT};

/// A request to an API.
#[derive(Debug)]
pub(super) struct ApiCall<'c> {
    pub(super) host: &'c ApiHost,
    /// Path and query.
    pub(super) path: &'c str,
    pub(super) secrets: Vec<(HeaderName, Secret)>,
    pub(super) timeout: Duration,
}

impl ApiCall<'_> {
    /// Sends the request.
    ///
    /// # Errors
    /// If there is no whole answer, or one with another status than 200.
    pub(super) async fn send(
        self,
        client: &Client,
        connections: &mut Connections,
    ) -> Result<Response, String> {
        let headers = [
            ("user-agent", USER_AGENT),
            ("accept", "application/json"),
            ("accept-encoding", "gzip"),
        ];
        let headers = headers.map(|(name, text)| (HeaderName::from_static(name), text.to_owned()));
        let request = Request {
            url: format!("{}{}", self.host.base, self.path),
            unix_socket: self.host.unix_socket.clone(),
            headers: headers.to_vec(),
            authorization: None,
            secrets: self.secrets,
            content: None,
            body_bytes_max: ANSWER_BYTES_MAX,
            timeout: self.timeout,
        };
        let sent = client.send(&request, connections).await;
        let response = sent.map_err(|error| error.to_string())?;
        check_status(&response.status_text(), &response.body).map_err(|error| error.to_string())?;
        Ok(response)
    }
}
