//! The samples of both servers: written, partly late or twice, and deleted.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use firn_model::Labels;
use firn_promqltest::expressions::{DecisionSource, World};
use serde_json::{Value, json};

use crate::http;
use crate::process::wait_for;
use crate::remote_write::WriteRequest;

/// The two labels that all series of a sender share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderLabels {
    /// As the world is drawn. A group needs no evidence.
    JobAndInstance,
    /// FirnDB learns that these labels identify a group.
    SiteAndDevice,
}

/// The samples of a world, with the labels of its senders.
pub(super) struct Data<'w> {
    pub(super) world: &'w World,
    pub(super) senders: SenderLabels,
}

/// Samples that FirnDB deletes. Prometheus never has them: after its own delete, Debian's version
/// returns some of them to queries that end in the range.
struct Deletion {
    selector: &'static str,
    matches: fn(&Labels) -> bool,
    /// The first and the last minute after the start of the world.
    minutes: (i64, i64),
}

/// Time span of one request: Prometheus accepts samples in order, so it receives these one after
/// the other.
const SLICE_MS: i64 = 300_000;
/// The slices that stay in FirnDB's memory; older ones are flushed to tables.
const MEMORY_SLICES: usize = 6;
/// The senders of a world.
const SENDER_COUNT: usize = 6;
/// The metrics that FirnDB receives first: too few for evidence of a group, so they stay lone.
const FIRST_METRICS: [&str; 2] = ["up", "memory_bytes"];
/// The first two are in tables, the last one is in memory. If groups are learned, each has samples
/// of lone series and of members.
const DELETES: [Deletion; 3] = [
    Deletion {
        selector: "{instance=\"b:1\"}",
        matches: |labels| labels.get("instance") == Some("b:1"),
        minutes: (20, 28),
    },
    Deletion {
        selector: "{__name__=~\"memory_bytes|requests_total\",job=\"db\"}",
        matches: |labels| {
            ["memory_bytes", "requests_total"].contains(&labels.metric_name())
                && labels.get("job") == Some("db")
        },
        minutes: (50, 57),
    },
    Deletion {
        selector: "{__name__=~\"up|errors_total\",instance!=\"\"}",
        matches: |labels| ["up", "errors_total"].contains(&labels.metric_name()),
        minutes: (101, 107),
    },
];

impl SenderLabels {
    /// A query, path or label name of a drawn world with the labels of these senders. Nothing else
    /// in a world contains these words.
    pub(super) fn rename(self, text: &str) -> String {
        match self {
            SenderLabels::JobAndInstance => text.to_owned(),
            SenderLabels::SiteAndDevice => {
                text.replace("instance", "device").replace("job", "site")
            }
        }
    }
}

impl Data<'_> {
    /// Everything in order, without the samples that FirnDB deletes.
    pub(super) fn write_to_prometheus(&self, address: SocketAddr) {
        let is_left = |labels: &Labels, ts: i64| {
            let contains = |delete: &Deletion| self.range(delete).contains(&ts);
            !DELETES.iter().any(|delete| contains(delete) && (delete.matches)(labels))
        };
        (0..self.slice_count()).for_each(|slice| self.send_some(slice, address, is_left));
    }

    /// Some of it late, some of it twice.
    pub(super) fn write_to_firn(&self, seed: u64, address: SocketAddr) {
        let slice_count = self.slice_count();
        let mut choices = DecisionSource::seeded(seed);
        let flushed = slice_count - MEMORY_SLICES;
        let mut order: Vec<usize> = (0..flushed).collect();
        for idx in 0..flushed / 2 {
            order.swap(choices.below(flushed), idx);
            order.push(choices.below(flushed));
        }
        self.send_some(0, address, |labels, _| FIRST_METRICS.contains(&labels.metric_name()));
        order.iter().for_each(|slice| self.send(*slice, address));
        wait_for("a flush", Duration::from_secs(60), || {
            metric(address, "firn_flushes_total") > 0.0
        });
        self.delete(&DELETES[0], address);
        self.transact(&DELETES[1], address);
        (flushed..slice_count).for_each(|slice| self.send(slice, address));
        // A flush may have come between.
        let is_in_memory = (0..10).any(|_| {
            let is_in_memory = metric(address, "firn_head_rows") > 0.0;
            if !is_in_memory {
                self.send(slice_count - 1, address);
            }
            is_in_memory
        });
        assert!(is_in_memory, "nothing is left in memory");
        self.delete(&DELETES[2], address);
    }

    fn slice_count(&self) -> usize {
        ((self.world.end - self.world.start) / SLICE_MS) as usize
    }

    fn send(&self, slice: usize, address: SocketAddr) {
        self.send_some(slice, address, |_, _| true);
    }

    /// Sends the samples of one slice of time that `is_sent` selects.
    fn send_some(&self, slice: usize, address: SocketAddr, is_sent: impl Fn(&Labels, i64) -> bool) {
        let from = self.world.start + slice as i64 * SLICE_MS;
        let mut request = WriteRequest::default();
        for series in &self.world.series {
            let samples: Vec<(i64, f64)> = series
                .samples
                .iter()
                .filter(|sample| (from..from + SLICE_MS).contains(&sample.0))
                .filter(|sample| is_sent(&series.labels, sample.0))
                .copied()
                .collect();
            if !samples.is_empty() {
                let pairs = series.labels.iter();
                let mut labels: Vec<(String, &str)> =
                    pairs.map(|(name, value)| (self.senders.rename(name), value)).collect();
                labels.sort_unstable();
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, value)| (name.as_str(), *value)).collect();
                request.series(&labels, &samples);
            }
        }
        let (status, text) = request.send(address);
        assert!(status == 200 || status == 204, "{address}, slice {slice}: {status} {text}");
    }

    /// The times of a deletion.
    fn range(&self, delete: &Deletion) -> RangeInclusive<i64> {
        let [first, last] =
            [delete.minutes.0, delete.minutes.1].map(|minute| self.world.start + minute * 60_000);
        first..=last
    }

    fn delete(&self, delete: &Deletion, address: SocketAddr) {
        let range = self.range(delete);
        let (start, end) = (range.start() / 1_000, range.end() / 1_000);
        let selector = http::encode(&self.senders.rename(delete.selector));
        let form = format!("match[]={selector}&start={start}&end={end}");
        let kind = "application/x-www-form-urlencoded";
        post(address, "/api/v1/admin/tsdb/delete_series", kind, &form);
    }

    /// A delete in a transaction that also writes samples of one sender again.
    fn transact(&self, delete: &Deletion, address: SocketAddr) {
        let range = self.range(delete);
        let (start, end) = (range.start(), range.end());
        let body = json!({ "operations": [
            {
                "op": "update",
                "match": self.senders.rename("{instance=\"a:1\",job=\"api\"}"),
                "start": start,
                "end": end,
                "multiply": 1,
                "add": 0,
            },
            {
                "op": "delete",
                "match": self.senders.rename(delete.selector),
                "start": start,
                "end": end,
            },
        ]});
        post(address, "/api/v1/transaction", "application/json", &body.to_string());
    }

    /// Checks that each sender has one group by the expected rule, and lone series too if its group
    /// was learned.
    pub(super) fn check_groups(&self, address: SocketAddr) {
        let selector = http::encode(&self.senders.rename("{instance!=\"\"}"));
        let list = |path: &str| -> Value {
            let answer = http::get(address, &format!("{path}match[]={selector}"));
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.body);
            serde_json::from_str(&answer.body).expect("JSON")
        };
        let (rule, lone_count) = match self.senders {
            SenderLabels::JobAndInstance => ("job and instance", 0),
            SenderLabels::SiteAndDevice => ("shared labels", SENDER_COUNT * FIRST_METRICS.len()),
        };
        let groups = list("/api/v1/status/groups?")["data"]["groups"].clone();
        let groups = groups.as_array().expect("groups");
        assert_eq!(groups.len(), SENDER_COUNT, "{groups:?}");
        assert!(groups.iter().all(|group| group["rule"] == rule), "{groups:?}");
        let series = list("/api/v1/groups?lone=true&")["data"].clone();
        let series = series.as_array().expect("groups").iter();
        let mut lone: Vec<&Value> =
            series.filter(|one| one["lone"] == true).map(|one| &one["labels"]).collect();
        lone.retain(|labels| FIRST_METRICS.iter().any(|name| labels["__name__"] == **name));
        assert_eq!(lone.len(), lone_count, "{lone:?}");
    }
}

fn post(address: SocketAddr, path: &str, kind: &str, body: &str) {
    let answer = http::request(address, "POST", path, &[("Content-Type", kind)], body.as_bytes());
    let answer = answer.unwrap_or_else(|| panic!("{address}{path}: no answer"));
    assert!((200..300).contains(&answer.status), "{address}{path} {body}: {}", answer.body);
}

/// One of FirnDB's own metrics.
fn metric(firn: SocketAddr, name: &str) -> f64 {
    let answer = http::get(firn, "/metrics").expect("metrics");
    let line = answer.body.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}
