//! The alerts of a group in the database's folder, so that a restart continues them.
//!
//! The file is replaced before alerts are sent. So the process after a crash sends no alert again
//! before `--alert-resend-delay` is over, and one that it has not sent at most that much later.
//!
//! Format: `docs/formats/alerts.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::varint::{
    encode_varint, encode_zigzag, take_bytes, take_count, take_u8, take_u64, take_varint,
    take_zigzag,
};
use firn_model::{Budget, Error, Labels, Pool, Reservation, Result, Timestamp};
use firn_rules::group::{Alert, AlertState, Group, SavedAlerts, Texts};
use firndb::Db;

/// The bits of optional times, in the order of the file.
const FIRED: u8 = 1;
const RESOLVED: u8 = 2;
const SENT: u8 = 4;
const KEPT: u8 = 8;
/// The memory of a rule and of a text with a name, beside their bytes.
const RULE_BYTES: u64 = 256;
const TEXT_BYTES: u64 = 128;

/// Stores the alerts of `group` that were sent until `slot`. Durable on return.
///
/// # Errors
/// `Busy` without memory in `budget`, and those of [`Db::save_alerts`]; the old file is kept.
pub(super) fn save(db: &Db, group: &Group, slot: Timestamp, budget: &Budget) -> Result<()> {
    let mut held = budget.empty(Pool::Query);
    db.save_alerts(group.key(), &encode(group, slot, &mut held)?)
}

/// Continues in `group` the alerts that were stored before the restart: resolved ones, and firing
/// ones if they were stored at `oldest` or later.
///
/// # Errors
/// `Corrupt` for a damaged file, `Busy` without memory in `budget`, and those of
/// [`Db::load_alerts`]; the group continues no alert.
pub(super) fn load(
    db: &Db,
    group: &mut Group,
    (oldest, now): (Timestamp, Timestamp),
    budget: &Budget,
) -> Result<()> {
    let (mut file_held, mut held) = (budget.empty(Pool::Query), budget.empty(Pool::Query));
    let Some(payload) = db.load_alerts(group.key(), &mut file_held)? else { return Ok(()) };
    let (saved_at, mut saved) = decode(&payload, &mut held)?;
    if saved_at < oldest {
        for rule in &mut saved {
            rule.alerts.retain(|alert| alert.state == AlertState::Inactive);
        }
    }
    group.continue_alerts(saved, now);
    Ok(())
}

fn encode(group: &Group, slot: Timestamp, held: &mut Reservation) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    encode_zigzag(slot, &mut out);
    for (rule, alerts) in group.sent_alerts() {
        push_text(&rule.name, &mut out);
        push_texts(&rule.labels, &mut out);
        let mut last: Option<&Texts> = None;
        for alert in alerts {
            out.push(1);
            push_alert(alert, last, &mut out);
            last = Some(&alert.annotations);
            // The file is written from a copy.
            held.cover((out.capacity() as u64).saturating_mul(2))?;
        }
        out.push(0);
    }
    Ok(out)
}

fn push_alert(alert: &Alert, last: Option<&Texts>, out: &mut Vec<u8>) {
    let labels = alert.labels.as_encoded();
    encode_varint(labels.len() as u64, out);
    out.extend_from_slice(labels);
    out.push(u8::from(alert.state == AlertState::Firing));
    out.extend_from_slice(&alert.value.to_le_bytes());
    encode_zigzag(alert.active_at, out);
    let times = [
        (FIRED, alert.fired_at),
        (RESOLVED, alert.resolved_at),
        (SENT, alert.last_sent_at),
        (KEPT, alert.keep_firing_since),
    ];
    out.push(times.iter().filter(|(_, time)| time.is_some()).map(|(bit, _)| bit).sum());
    times.iter().filter_map(|(_, time)| *time).for_each(|time| encode_zigzag(time, out));
    let is_same = last.is_some_and(|last| Arc::ptr_eq(last, &alert.annotations));
    out.push(u8::from(!is_same));
    if !is_same {
        push_texts(&alert.annotations, out);
    }
}

fn push_texts(texts: &BTreeMap<String, String>, out: &mut Vec<u8>) {
    encode_varint(texts.len() as u64, out);
    for (name, value) in texts {
        push_text(name, out);
        push_text(value, out);
    }
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    encode_varint(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// The time of the file, and its alerts by rule. Their memory is reserved in `held`.
fn decode(payload: &[u8], held: &mut Reservation) -> Result<(Timestamp, Vec<SavedAlerts>)> {
    let input = &mut &payload[..];
    let saved_at = take_zigzag(input, "time of the alerts")?;
    let mut saved = Vec::new();
    while !input.is_empty() {
        let (name, labels) = (take_text(input)?, take_texts(input, held)?);
        held.grow(RULE_BYTES.saturating_add(name.len() as u64))?;
        let mut rule = SavedAlerts { name, labels, alerts: Vec::new() };
        while take_bool(input)? {
            let last = rule.alerts.last().map(|last| &last.annotations);
            let alert = take_alert(input, last, held)?;
            held.grow(alert.memory_bytes())?;
            rule.alerts.push(alert);
        }
        saved.push(rule);
    }
    Ok((saved_at, saved))
}

fn take_alert(input: &mut &[u8], last: Option<&Texts>, held: &mut Reservation) -> Result<Alert> {
    let len = take_count(input, input.len(), "labels of an alert")?;
    let labels = Labels::from_encoded(take_bytes(input, len, "labels of an alert")?)?;
    let state = if take_bool(input)? { AlertState::Firing } else { AlertState::Inactive };
    let value = f64::from_bits(take_u64(input, "value of an alert")?);
    let active_at = take_zigzag(input, "start of an alert")?;
    let present = take_u8(input, "times of an alert")?;
    let mut time = |bit: u8| match present & bit {
        0 => Ok(None),
        _ => take_zigzag(input, "time of an alert").map(Some),
    };
    let (fired_at, resolved_at) = (time(FIRED)?, time(RESOLVED)?);
    let (last_sent_at, keep_firing_since) = (time(SENT)?, time(KEPT)?);
    let annotations = match (take_bool(input)?, last) {
        (true, _) => Texts::new(take_texts(input, held)?),
        (false, Some(last)) => Arc::clone(last),
        (false, None) => return Err(corrupt("the first alert of a rule has no annotations")),
    };
    Ok(Alert {
        labels,
        annotations,
        state,
        value,
        active_at,
        fired_at,
        resolved_at,
        last_sent_at,
        valid_until: None,
        keep_firing_since,
    })
}

fn take_texts(input: &mut &[u8], held: &mut Reservation) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    // Each takes at least two bytes, so a wrong number fails at the end of the file.
    for _ in 0..take_varint(input, "number of texts")? {
        let (name, value) = (take_text(input)?, take_text(input)?);
        let bytes = name.len().saturating_add(value.len()) as u64;
        held.grow(TEXT_BYTES.saturating_add(bytes))?;
        texts.insert(name, value);
    }
    Ok(texts)
}

fn take_text(input: &mut &[u8]) -> Result<String> {
    let len = take_count(input, input.len(), "text of an alert")?;
    let text = std::str::from_utf8(take_bytes(input, len, "text of an alert")?);
    text.map(str::to_owned).map_err(|_| corrupt("a text of an alert is not UTF-8"))
}

fn take_bool(input: &mut &[u8]) -> Result<bool> {
    match take_u8(input, "mark of alerts")? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(corrupt(format!("mark {other} of alerts, expected 0 or 1"))),
    }
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt("alerts", 0, what)
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;
    use firn_promql::prepare;
    use firn_rules::group::{AlertRule, GroupOptions, Rule};
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 2] = ["A", "B"];

    fn group() -> Group {
        let options = GroupOptions {
            file: "f".to_owned(),
            name: "g".to_owned(),
            interval_ms: 1_000,
            query_offset_ms: None,
            limit: 0,
        };
        let rule = |name: &str| {
            Rule::Alerting(AlertRule {
                name: name.to_owned(),
                expr: prepare("x", &QueryContext::unbounded()).unwrap().into(),
                hold_ms: 0,
                keep_firing_ms: 0,
                labels: BTreeMap::from([("team".to_owned(), "{{ $value }}".to_owned())]),
                annotations: BTreeMap::new(),
            })
        };
        Group::new(options, NAMES.map(rule).into(), false)
    }

    fn alert() -> impl Strategy<Value = Alert> {
        let time = || proptest::option::of(0..i64::MAX);
        let times = (0..i64::MAX, time(), time(), time(), time());
        let texts = proptest::collection::btree_map("[a-z]{1,9}", ".{0,9}", 0..3);
        (0..9_u8, any::<bool>(), -9.0..9.0, times, texts).prop_map(
            |(id, is_firing, value, times, texts)| Alert {
                labels: Labels::from_pairs([("id", &*id.to_string())]).unwrap(),
                annotations: Texts::new(texts),
                state: if is_firing { AlertState::Firing } else { AlertState::Inactive },
                value,
                active_at: times.0,
                fired_at: times.1,
                resolved_at: times.2,
                last_sent_at: times.3,
                valid_until: None,
                keep_firing_since: times.4,
            },
        )
    }

    fn encoded(group: &Group) -> Vec<u8> {
        encode(group, 7, &mut Budget::unlimited().empty(Pool::Query)).unwrap()
    }

    fn decoded(payload: &[u8]) -> Result<(Timestamp, Vec<SavedAlerts>)> {
        decode(payload, &mut Budget::unlimited().empty(Pool::Query))
    }

    proptest! {
        #[test]
        fn saved_alerts_come_back(
            alerts in proptest::collection::vec(proptest::collection::vec(alert(), 0..6), 2),
            flip in any::<(usize, u8)>(),
        ) {
            let mut group = group();
            let mut wanted = Vec::new();
            for (name, mut alerts) in NAMES.into_iter().zip(alerts) {
                alerts.sort_by(|a, b| a.labels.cmp(&b.labels));
                alerts.dedup_by(|a, b| a.labels == b.labels);
                // As groups list them: firing ones wait for the restoration.
                alerts.sort_by_key(|alert| alert.state == AlertState::Firing);
                let labels = BTreeMap::from([("team".to_owned(), "{{ $value }}".to_owned())]);
                wanted.push(SavedAlerts { name: name.to_owned(), labels, alerts });
            }
            group.continue_alerts(wanted.clone(), i64::MAX);
            wanted.retain(|rule| !rule.alerts.is_empty());
            let mut payload = encoded(&group);
            prop_assert_eq!(decoded(&payload).unwrap(), (7, wanted));
            // A damaged payload is an error or other alerts, never a panic.
            let idx = flip.0 % payload.len();
            payload[idx] ^= flip.1;
            let _ = decoded(&payload);
            let _ = decoded(&payload[..idx]);
        }
    }

    #[test]
    fn alerts_with_the_same_texts_share_them() {
        let texts = Texts::new(BTreeMap::from([("note".to_owned(), "text".to_owned())]));
        let alert = |id: &str| Alert {
            labels: Labels::from_pairs([("id", id)]).unwrap(),
            annotations: Arc::clone(&texts),
            state: AlertState::Inactive,
            value: 0.0,
            active_at: 1,
            fired_at: None,
            resolved_at: None,
            last_sent_at: None,
            valid_until: None,
            keep_firing_since: None,
        };
        let mut group = group();
        let labels = BTreeMap::from([("team".to_owned(), "{{ $value }}".to_owned())]);
        let alerts = vec![alert("1"), alert("2")];
        group.continue_alerts(vec![SavedAlerts { name: "B".to_owned(), labels, alerts }], 9);
        let payload = encoded(&group);
        assert_eq!(payload.windows(4).filter(|bytes| bytes == b"text").count(), 1);
        let alerts = &decoded(&payload).unwrap().1[0].alerts;
        assert!(Arc::ptr_eq(&alerts[0].annotations, &alerts[1].annotations));
    }

    #[test]
    fn alerts_without_memory_are_refused() {
        let mut group = group();
        let labels = BTreeMap::from([("team".to_owned(), "{{ $value }}".to_owned())]);
        let alert = Alert {
            labels: Labels::from_pairs([("id", &*"x".repeat(10_000))]).unwrap(),
            annotations: Texts::default(),
            state: AlertState::Firing,
            value: 0.0,
            active_at: 1,
            fired_at: Some(1),
            resolved_at: None,
            last_sent_at: Some(1),
            valid_until: None,
            keep_firing_since: None,
        };
        let saved = SavedAlerts { name: "A".to_owned(), labels, alerts: vec![alert] };
        group.continue_alerts(vec![saved], 9);
        let small = Budget::unlimited().part(5_000);
        assert!(encode(&group, 7, &mut small.empty(Pool::Query)).is_err());
        assert!(decode(&encoded(&group), &mut small.empty(Pool::Query)).is_err());
    }

    /// Three bytes for each rule, and two for each text: both take more memory than that.
    #[test]
    fn short_rules_and_texts_are_reserved() {
        let small = Budget::unlimited().part(50_000);
        let decode = |payload: &[u8]| decode(payload, &mut small.empty(Pool::Query)).map(drop);
        let payload = |rules: usize| [&[0][..], &[0, 0, 0].repeat(rules)].concat();
        assert!(decode(&payload(100)).is_ok());
        let error = decode(&payload(10_000)).unwrap_err();
        assert!(error.to_string().contains("bytes of memory"), "{error}");
        let mut texts = vec![0, 0];
        encode_varint(10_000, &mut texts);
        texts.extend([0; 20_001]);
        let error = decode(&texts).unwrap_err();
        assert!(error.to_string().contains("bytes of memory"), "{error}");
    }
}
