//! The API of Prometheus as its Go client uses it, with the client's errors.

use std::time::Duration;

use firn_fetch::Response;
use form_urlencoded::Serializer;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::result::QueryResult;
use crate::client::{ServerClient, error_text};

/// The time for a response, as in promtool.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of values in a response, by its commas: the shortest value has three bytes
/// and takes about 70 in memory. Each sample of a range has two.
const VALUES_MAX: usize = 16_000_000;
/// A label set counts as this number of values: the shortest one takes 600 bytes in memory.
const LABEL_SET_VALUES: usize = 10;
const BAD_REQUEST: u16 = 400;
const METHOD_NOT_ALLOWED: u16 = 405;
const UNPROCESSABLE: u16 = 422;
const NOT_IMPLEMENTED: u16 = 501;
const NO_CONTENT: u16 = 204;

/// The data of a successful response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) data: String,
    pub(super) warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(default)]
    status: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

/// Names and values of a request.
pub(super) type Params = Vec<(&'static str, String)>;

/// Sends a request as a form; a server that knows no POST there gets a GET.
///
/// # Errors
/// The text of the Go client.
pub(super) fn post_or_get(
    server: &mut ServerClient,
    path: &str,
    params: &Params,
) -> Result<Answer, String> {
    let form = encoded(params);
    let posted = server.post(path, form.clone(), TIMEOUT);
    let response = posted.map_err(|error| failed("Post", server, path, &error.to_string()))?;
    match response.status {
        METHOD_NOT_ALLOWED | NOT_IMPLEMENTED => get(server, path, params),
        _ => answer(&response),
    }
}

/// Sends a request without a body.
///
/// # Errors
/// As [`post_or_get`].
pub(super) fn get(
    server: &mut ServerClient,
    path: &str,
    params: &Params,
) -> Result<Answer, String> {
    let target = format!("{path}?{}", encoded(params));
    let got = server.get(&target, TIMEOUT);
    let response = got.map_err(|error| failed("Get", server, &target, &error.to_string()))?;
    answer(&response)
}

/// An instant or a range query.
///
/// # Errors
/// As [`post_or_get`], and for a result of another form.
pub(super) fn query(
    server: &mut ServerClient,
    path: &str,
    params: &Params,
) -> Result<QueryResult, String> {
    QueryResult::parse(&post_or_get(server, path, params)?.data)
}

fn encoded(params: &Params) -> String {
    let mut form = Serializer::new(String::new());
    form.extend_pairs(params);
    form.finish()
}

fn failed(method: &str, server: &ServerClient, target: &str, error: &str) -> String {
    format!("{method} {:?}: {error}", server.url(target))
}

/// An upper bound of the values in a response.
fn value_count(body: &[u8]) -> usize {
    let values = |byte: &u8| match byte {
        b',' => 1,
        b'{' => LABEL_SET_VALUES,
        // Control characters and marks of direction begin with them: an escape has six bytes.
        0x7f | 0xc2 | 0xe2 => 1,
        _ => 0,
    };
    body.iter().map(values).fold(0, usize::saturating_add)
}

fn answer(response: &Response) -> Result<Answer, String> {
    let status = response.status;
    let is_refusal = matches!(status, BAD_REQUEST | UNPROCESSABLE);
    if status / 100 != 2 && !is_refusal {
        let why = match status / 100 {
            4 => format!("client_error: client error: {status}"),
            5 => format!("server_error: server error: {status}"),
            _ => format!("bad_response: bad response code {status}"),
        };
        return Err(match error_text(&response.body).trim() {
            "" => why,
            detail => format!("{why} (detail: {detail})"),
        });
    }
    if value_count(&response.body) > VALUES_MAX {
        return Err(format!(
            "bad_response: more than {VALUES_MAX} values: select fewer series or a shorter range"
        ));
    }
    let envelope: Envelope<'_> = match status {
        NO_CONTENT => serde_json::from_str("{}"),
        _ => serde_json::from_slice(&response.body),
    }
    .map_err(|error| format!("bad_response: {}", response.without_secrets(error)))?;
    // Some proxies send an error with status 200.
    if envelope.status == "error" && !envelope.error.is_empty() {
        let [kind, error] =
            [envelope.error_type, envelope.error].map(|text| error_text(text.as_bytes()));
        return Err(format!("{kind}: {error}"));
    }
    if is_refusal == (envelope.status == "success") {
        return Err("bad_response: inconsistent body for response code".to_owned());
    }
    if is_refusal && envelope.error.is_empty() {
        return Err(format!("bad_response: status {status} without the key error"));
    }
    let data = envelope.data.map_or("null", RawValue::get).to_owned();
    let warnings = envelope.warnings.unwrap_or_default().into_iter();
    let warnings = warnings.map(|text| error_text(text.as_bytes())).collect();
    Ok(Answer { data, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, a list of short label sets took 60 times its length: 144 MB took 9 GB.
    #[test]
    fn label_sets_count_for_their_memory() {
        let list = |item: &str| format!("[{}]", vec![item; 1_000].join(","));
        assert_eq!(value_count(list("\"a\"").as_bytes()), 999);
        assert_eq!(value_count(list("{\"a\":\"b\"}").as_bytes()), 999 + 1_000 * LABEL_SET_VALUES);
        assert_eq!(value_count("\"\u{7f}\u{9b}\u{202e}é\"".as_bytes()), 3);
    }
}
