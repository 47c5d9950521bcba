//! An alert in the form of Alertmanager's API.

use std::sync::Arc;

use firn_model::{Labels, Timestamp};
use firn_rules::group::{Alert, Texts};

use crate::wire::json;
use crate::wire::number::rfc3339;

/// An alert to send. Its labels are those of the rule: receivers add and change some.
#[derive(Clone, Debug)]
pub(crate) struct Notification {
    pub(super) labels: Labels,
    annotations: Texts,
    starts_at: Timestamp,
    ends_at: Timestamp,
    generator_url: Arc<str>,
}

/// The link to the expression of a rule.
pub(crate) fn link(query: &str, external_url: &str) -> String {
    format!("{external_url}/graph?g0.expr={}&g0.tab=1", escaped(query))
}

impl Notification {
    /// The notification of `alert`, with the [`link`] of its rule.
    pub(crate) fn new(alert: Alert, link: Arc<str>) -> Notification {
        let starts_at = alert.fired_at.unwrap_or(alert.active_at);
        let ends_at = alert.resolved_at.or(alert.valid_until).unwrap_or(starts_at);
        Notification {
            labels: alert.labels,
            annotations: alert.annotations,
            starts_at,
            ends_at,
            generator_url: link,
        }
    }

    /// The JSON object with `labels` instead of its own.
    pub(super) fn json(&self, labels: &Labels) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(br#"{"labels":"#);
        json::push_labels(labels, &mut out);
        if !self.annotations.is_empty() {
            let texts = self.annotations.iter();
            let texts = texts.map(|(name, text)| (name.as_str(), text.as_str()));
            out.extend_from_slice(br#","annotations":"#);
            json::push_object(texts, &mut out, json::push_string);
        }
        for (key, ts) in [("startsAt", self.starts_at), ("endsAt", self.ends_at)] {
            out.push(b',');
            json::push_string(key, &mut out);
            out.push(b':');
            json::push_string(&with_ms(ts), &mut out);
        }
        out.extend_from_slice(br#","generatorURL":"#);
        json::push_string(&self.generator_url, &mut out);
        out.push(b'}');
        out
    }
}

/// RFC 3339 with milliseconds, also if they are 0.
fn with_ms(ts: Timestamp) -> String {
    let text = rfc3339(ts);
    match text.strip_suffix('Z').filter(|text| !text.contains('.')) {
        Some(seconds) => format!("{seconds}.000Z"),
        None => text,
    }
}

/// As Go's `url.QueryEscape`.
fn escaped(text: &str) -> String {
    let form: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    form.replace('*', "%2A").replace("%7E", "~")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use firn_rules::group::AlertState;

    use super::*;

    fn alert() -> Alert {
        Alert {
            labels: Labels::from_pairs([("alertname", "Down"), ("job", "a\"b")]).unwrap(),
            annotations: Texts::from(BTreeMap::from([
                ("empty".to_owned(), String::new()),
                ("summary".to_owned(), "is down\n".to_owned()),
            ])),
            state: AlertState::Firing,
            value: 1.0,
            active_at: 1_767_323_040_000,
            fired_at: Some(1_767_323_045_000),
            resolved_at: None,
            last_sent_at: None,
            valid_until: Some(1_767_323_285_250),
            keep_firing_since: None,
        }
    }

    #[test]
    fn the_json_is_that_of_prometheus() {
        let notification =
            Notification::new(alert(), link("up == 0 * ~x", "http://h:9090/p").into());
        let labels = Labels::from_pairs([("alertname", "Down"), ("dc", "eu")]).unwrap();
        let json = String::from_utf8(notification.json(&labels)).unwrap();
        assert_eq!(
            json,
            "{\"labels\":{\"alertname\":\"Down\",\"dc\":\"eu\"},\
             \"annotations\":{\"empty\":\"\",\"summary\":\"is down\\n\"},\
             \"startsAt\":\"2026-01-02T03:04:05.000Z\",\"endsAt\":\"2026-01-02T03:08:05.250Z\",\
             \"generatorURL\":\"http://h:9090/p/graph?g0.expr=up+%3D%3D+0+%2A+~x&g0.tab=1\"}"
        );
    }

    #[test]
    fn a_resolved_alert_ends_when_it_was_resolved() {
        let resolved = Alert {
            resolved_at: Some(1_767_323_100_000),
            annotations: Texts::default(),
            ..alert()
        };
        let labels = resolved.labels.clone();
        let json = Notification::new(resolved, link("x", "").into()).json(&labels);
        let json = String::from_utf8(json).unwrap();
        assert!(json.contains("\"endsAt\":\"2026-01-02T03:05:00.000Z\""), "{json}");
        assert!(!json.contains("annotations"), "{json}");
    }
}
