//! Targets of an HTTP server.

use firn_model::{Budget, Error, Pool, Reservation, Result, excerpt_within};

use super::{discovered, discovered_bytes};
use crate::config::discovery::{HttpDiscovery, TargetGroup};
use crate::pool::DiscoveredGroup;

/// The request for a list of targets, and the meaning of its answer.
#[derive(Clone, Debug)]
pub struct HttpTargets {
    config: HttpDiscovery,
}

impl HttpTargets {
    /// Requests for the list of `config`.
    pub fn new(config: HttpDiscovery) -> HttpTargets {
        HttpTargets { config }
    }

    /// The section of the configuration: its client and its address.
    pub fn config(&self) -> &HttpDiscovery {
        &self.config
    }

    /// The time between two requests, which is also the time limit of each.
    pub fn refresh_ms(&self) -> u64 {
        self.config.refresh_interval.as_ms().max(1)
    }

    /// Names and values of headers, by a client that calls itself `user_agent`.
    pub fn headers(&self, user_agent: &str) -> Vec<(&'static str, String)> {
        let seconds = self.refresh_ms() as f64 / 1e3;
        vec![
            ("user-agent", user_agent.to_owned()),
            ("accept", "application/json".to_owned()),
            ("x-prometheus-refresh-interval-seconds", seconds.to_string()),
        ]
    }

    /// The groups of an answer with `status`, as in `200 OK`, and their memory, a part of `budget`.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text for another status, another type, and a body that is no list
    /// of groups; `Busy` without memory.
    pub fn groups(
        &self,
        status: &str,
        content_type: Option<&str>,
        body: &[u8],
        budget: &Budget,
    ) -> Result<(Vec<DiscoveredGroup>, Reservation)> {
        if status != "200 OK" {
            let status = excerpt_within(status, 100);
            return Err(Error::invalid(format!("server returned HTTP status {status}")));
        }
        let content_type = content_type.unwrap_or_default();
        if !is_json(content_type) {
            let shown = excerpt_within(content_type, 100);
            return Err(Error::invalid(format!("unsupported content type {shown:?}")));
        }
        let (groups, _groups_held) = TargetGroup::parse_json_within(body, budget)?;
        // Labels are shown to readers: without the password that an address may have.
        let url = self.config.url.to_string();
        let meta = [("__meta_url", &*url.to_string())];
        let held = budget.reserve(Pool::Cache, discovered_bytes(&groups, &meta) as u64)?;
        Ok((groups.iter().map(|group| discovered(group, &meta)).collect(), held))
    }
}

/// `application/json`, alone or as UTF-8.
fn is_json(content_type: &str) -> bool {
    let (media_type, parameter) = match content_type.trim().split_once(';') {
        Some((media_type, parameter)) => (media_type, Some(parameter.trim())),
        None => (content_type.trim(), None),
    };
    let is_utf8 = |text: &str| {
        ["charset=utf-8", "charset=\"utf-8\""].iter().any(|known| text.eq_ignore_ascii_case(known))
    };
    media_type.eq_ignore_ascii_case("application/json") && parameter.is_none_or(is_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn targets() -> HttpTargets {
        let text = "scrape_configs: [{job_name: j, http_sd_configs: \
                    [{url: 'http://h/list', refresh_interval: 1500ms}]}]";
        let loaded = Config::parse(text, &|_| None).unwrap();
        HttpTargets::new(loaded.config.scrape_configs[0].discoveries.http[0].clone())
    }

    #[test]
    fn a_request_names_its_interval_and_type() {
        let headers = targets().headers("me/1");
        assert_eq!(
            headers,
            [
                ("user-agent", "me/1".to_owned()),
                ("accept", "application/json".to_owned()),
                ("x-prometheus-refresh-interval-seconds", "1.5".to_owned()),
            ]
        );
    }

    #[test]
    fn groups_have_the_address_of_the_server() {
        let json = Some("application/json; charset=UTF-8");
        let body = br#"[{"targets": ["a:1"], "labels": {"x": "y"}}, {"targets": ["b:2"]}]"#;
        let read = |body: &[u8]| targets().groups("200 OK", json, body, &Budget::unlimited());
        let (groups, held) = read(body).unwrap();
        assert!(held.bytes() >= super::super::heap_bytes(&groups) as u64);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].labels.get("x"), Some("y"));
        assert_eq!(groups[1].labels.get("__meta_url"), Some("http://h/list"));
        assert_eq!(groups[1].targets[0].get("__address__"), Some("b:2"));
        assert!(read(b"[]").unwrap().0.is_empty());
    }

    // A label is shown to all readers of `/api/v1/targets`.
    #[test]
    fn the_password_of_the_address_is_no_label() {
        let text =
            "scrape_configs: [{job_name: j, http_sd_configs: [{url: 'http://u:sekret@h/x'}]}]";
        let loaded = Config::parse(text, &|_| None).unwrap();
        let targets = HttpTargets::new(loaded.config.scrape_configs[0].discoveries.http[0].clone());
        let json = Some("application/json");
        let read = targets.groups("200 OK", json, br#"[{"targets": ["a"]}]"#, &Budget::unlimited());
        let url = read.unwrap().0[0].labels.get("__meta_url").unwrap().to_owned();
        assert!(url.ends_with("@h/x") && !url.contains("sekret"), "{url}");
    }

    // A list of three bytes per group or target is many times as large in memory.
    #[test]
    fn the_memory_of_a_list_is_reserved_before_it_exists() {
        let json = Some("application/json");
        let repeated = |text: &str| vec![text; 10_000].join(",");
        for body in [
            format!("[{{\"targets\":[{}]}}]", repeated("\"\"")),
            format!("[{}]", repeated("{}")),
            format!("[{}]", repeated("{\"targets\":[\"\"],\"labels\":{\"a\":\"b\"}}")),
        ] {
            let read = |limit_bytes: u64| {
                let budget = Budget::unlimited().part(limit_bytes);
                let read = targets().groups("200 OK", json, body.as_bytes(), &budget);
                read.map(|(groups, held)| {
                    assert!(held.bytes() >= super::super::heap_bytes(&groups) as u64);
                    held.bytes()
                })
            };
            let bytes = read(u64::MAX).unwrap();
            assert!(bytes > 1_000_000, "{bytes}");
            for limit_bytes in [100_000, bytes / 2, bytes] {
                assert!(read(limit_bytes).is_err(), "{limit_bytes}");
            }
        }
    }

    #[test]
    fn other_answers_are_refused() {
        let json = Some("application/json");
        for (status, content_type, body, want) in [
            ("503 Service Unavailable", json, &b"[]"[..], "HTTP status 503 Service Unavailable"),
            ("204 No Content", json, b"[]", "HTTP status 204"),
            ("200 OK", None, b"[]", "unsupported content type \"\""),
            ("200 OK", Some("text/html"), b"[]", "unsupported content type \"text/html\""),
            ("200 OK", Some("application/json; charset=latin1"), b"[]", "unsupported content type"),
            ("200 OK", json, b"<html>", "json"),
            ("200 OK", json, b"[null]", "nil target group item found (index 0)"),
            ("200 OK", json, br#"[{"target": []}]"#, "json"),
        ] {
            let error = targets()
                .groups(status, content_type, body, &Budget::unlimited())
                .unwrap_err()
                .to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
