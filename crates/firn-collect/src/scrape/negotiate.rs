//! Content negotiation: the `Accept` header of a scrape, and the parser for a `Content-Type`.

use firn_model::{Error, Result, excerpt};

use crate::config::{Escaping, ScrapeProtocol};

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// Prometheus' text format 0.0.4 or 1.0.0.
    Text,
    /// OpenMetrics text.
    OpenMetrics,
    /// `io.prometheus.client.MetricFamily` messages with their lengths.
    Protobuf,
}

/// The `Accept` header: the protocols with falling weights, the preferred one first.
pub fn accept_header(protocols: &[ScrapeProtocol], escaping: Escaping) -> String {
    let escaping = match escaping {
        Escaping::AllowUtf8 | Escaping::Unset => "allow-utf-8",
        Escaping::Underscores => "underscores",
        Escaping::Dots => "dots",
        Escaping::Values => "values",
    };
    let mut header = String::new();
    // One weight for each of the five known protocols, and one for any other type.
    let mut weight = 6_usize;
    for protocol in protocols {
        let (media_type, has_escaping) = match protocol {
            ScrapeProtocol::PrometheusProto => (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                 encoding=delimited",
                false,
            ),
            ScrapeProtocol::PrometheusText0_0_4 => ("text/plain;version=0.0.4", false),
            ScrapeProtocol::PrometheusText1_0_0 => ("text/plain;version=1.0.0", true),
            ScrapeProtocol::OpenMetricsText0_0_1 => {
                ("application/openmetrics-text;version=0.0.1", false)
            }
            ScrapeProtocol::OpenMetricsText1_0_0 => {
                ("application/openmetrics-text;version=1.0.0", true)
            }
            ScrapeProtocol::Unknown(_) => continue,
        };
        header += media_type;
        if has_escaping {
            header += &format!(";escaping={escaping}");
        }
        header += &format!(";q=0.{weight},");
        weight = weight.saturating_sub(1).max(1);
    }
    header + &format!("*/*;q=0.{weight}")
}

impl BodyFormat {
    /// The format for a `Content-Type`. `fallback` applies where the header is absent, malformed or
    /// of another type.
    ///
    /// # Errors
    /// `Invalid` without a fallback.
    pub fn of(content_type: Option<&str>, fallback: Option<&ScrapeProtocol>) -> Result<BodyFormat> {
        let content_type = content_type.unwrap_or("").trim();
        let media_type = media_type(content_type);
        match media_type.as_deref() {
            Some("text/plain") => return Ok(BodyFormat::Text),
            Some("application/openmetrics-text") => return Ok(BodyFormat::OpenMetrics),
            Some("application/vnd.google.protobuf") => return Ok(BodyFormat::Protobuf),
            _ => {}
        }
        match fallback {
            Some(ScrapeProtocol::PrometheusProto) => return Ok(BodyFormat::Protobuf),
            Some(ScrapeProtocol::PrometheusText0_0_4 | ScrapeProtocol::PrometheusText1_0_0) => {
                return Ok(BodyFormat::Text);
            }
            Some(ScrapeProtocol::OpenMetricsText0_0_1 | ScrapeProtocol::OpenMetricsText1_0_0) => {
                return Ok(BodyFormat::OpenMetrics);
            }
            Some(ScrapeProtocol::Unknown(_)) | None => {}
        }
        let shown = excerpt(content_type);
        Err(Error::invalid(match media_type {
            _ if content_type.is_empty() => "non-compliant scrape target sending blank \
                 Content-Type and no fallback_scrape_protocol specified for target"
                .to_owned(),
            None => format!(
                "cannot parse Content-Type {shown:?} and no fallback_scrape_protocol for target"
            ),
            Some(_) => format!(
                "received unsupported Content-Type {shown:?} and no fallback_scrape_protocol \
                 specified for target"
            ),
        }))
    }
}

/// The media type in lower case, if it and its parameters are well formed.
fn media_type(text: &str) -> Option<String> {
    let mut parts = split_parameters(text)?.into_iter();
    let media_type = parts.next()?.trim().to_ascii_lowercase();
    let (kind, subtype) = media_type.split_once('/').unwrap_or((&media_type, "x"));
    (is_token(kind) && is_token(subtype)).then_some(())?;
    let mut names: Vec<String> = Vec::new();
    let count = parts.len();
    for (idx, part) in parts.enumerate() {
        let part = part.trim();
        if part.is_empty() && idx.saturating_add(1) == count {
            break;
        }
        let (name, value) = part.split_once('=')?;
        let name = name.trim().to_ascii_lowercase();
        let value = value.trim();
        let is_quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
        (is_token(&name) && (is_quoted || is_token(value)) && !names.contains(&name))
            .then_some(())?;
        names.push(name);
    }
    Some(media_type)
}

/// Splits at semicolons outside of quotes.
fn split_parameters(text: &str) -> Option<Vec<&str>> {
    let (mut in_quotes, mut is_escaped) = (false, false);
    let parts = text
        .split(|c: char| {
            if is_escaped {
                is_escaped = false;
            } else if c == '\\' {
                is_escaped = in_quotes;
            } else if c == '"' {
                in_quotes = !in_quotes;
            }
            c == ';' && !in_quotes
        })
        .collect();
    (!in_quotes).then_some(parts)
}

fn is_token(text: &str) -> bool {
    let is_separator = |byte: &u8| b"()<>@,;:\\\"/[]?= \t".contains(byte);
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !is_separator(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_is_that_of_prometheus() {
        assert_eq!(
            accept_header(&ScrapeProtocol::DEFAULT, Escaping::AllowUtf8),
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        );
        let header =
            accept_header(&ScrapeProtocol::default_with_histograms(), Escaping::Underscores);
        assert!(header.starts_with(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
             encoding=delimited;q=0.6,"
        ));
        assert!(header.ends_with("text/plain;version=0.0.4;q=0.2,*/*;q=0.1"), "{header}");
    }

    #[test]
    fn the_content_type_decides_and_the_fallback_helps_only_without_one() {
        let f = |text: &str, want: Option<BodyFormat>| {
            assert_eq!(BodyFormat::of(Some(text), None).ok(), want, "{text}");
        };
        f("text/plain", Some(BodyFormat::Text));
        f("Text/Plain; version=0.0.4; charset=utf-8", Some(BodyFormat::Text));
        f("text/plain;version=\"a;b\";", Some(BodyFormat::Text));
        f("application/openmetrics-text; version=9", Some(BodyFormat::OpenMetrics));
        f("application/vnd.google.protobuf; encoding=delimited", Some(BodyFormat::Protobuf));
        for bad in ["", "text/html", "text/plain; version", "text/plain; a=1; a=2", "text/ plain"] {
            f(bad, None);
            let fallback = Some(&ScrapeProtocol::PrometheusText0_0_4);
            assert_eq!(BodyFormat::of(Some(bad), fallback).ok(), Some(BodyFormat::Text), "{bad}");
        }
        let fallback = Some(&ScrapeProtocol::PrometheusProto);
        assert_eq!(BodyFormat::of(Some("text/plain"), fallback).ok(), Some(BodyFormat::Text));
        assert_eq!(BodyFormat::of(None, fallback).ok(), Some(BodyFormat::Protobuf));
    }
}
