//! Parts that the discoveries of HTTP APIs share: the address of a server, its JSON within memory,
//! and targets that are made one by one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use firn_model::{Budget, Error, Pool, Reservation, Result, excerpt_within};
use serde::de::{DeserializeOwned, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{set_bytes, text_bytes};
use crate::config::LabelSet;
use crate::json::{JsonCounts, from_json, json_error};
use crate::pool::DiscoveredGroup;

/// The server of an API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiHost {
    /// Scheme, host and folder, without a slash at the end.
    pub base: String,
    /// The path of a Unix socket to connect to, in place of the host of `base`.
    pub unix_socket: Option<String>,
}

impl ApiHost {
    /// The server behind a Unix socket. HTTP needs a host: its name is of no meaning.
    pub(super) fn unix(path: &str) -> ApiHost {
        ApiHost { base: "http://localhost".to_owned(), unix_socket: Some(path.to_owned()) }
    }

    pub(super) fn http(base: &str) -> ApiHost {
        ApiHost { base: base.trim_end_matches('/').to_owned(), unix_socket: None }
    }
}

/// Checks the status of an answer, as in `200 OK`.
///
/// # Errors
/// `Invalid` for another status, with the beginning of the body.
pub fn check_status(status: &str, body: &[u8]) -> Result<()> {
    if status == "200 OK" {
        return Ok(());
    }
    let text = String::from_utf8_lossy(body);
    let (status, text) = (excerpt_within(status, 100), excerpt_within(text.trim(), 200));
    Err(Error::invalid(format!("server returned HTTP status {status}: {text:?}")))
}

/// A null is the default, as in Go.
pub(super) fn or_default<'de, D: Deserializer<'de>, T>(
    deserializer: D,
) -> std::result::Result<T, D::Error>
where
    T: serde::Deserialize<'de> + Default,
{
    let value: Option<T> = serde::Deserialize::deserialize(deserializer)?;
    Ok(value.unwrap_or_default())
}

// A text in a list that has grown to twice its length, with the block of the allocator.
const TEXT_BYTES: usize = 2 * size_of::<String>() + 112;
// An object of an answer in such a list, and the node of a map.
const OBJECT_BYTES: usize = 1_600;

/// The memory of the objects of a JSON text, at most, whatever its shape.
fn parsed_bytes(text: &[u8]) -> u64 {
    JsonCounts::of(text).bytes(TEXT_BYTES, OBJECT_BYTES, text) as u64
}

/// Reads a whole answer, which is dropped soon: its memory is reserved for the call of `read`.
///
/// # Errors
/// `Invalid` for malformed JSON, `Busy` without memory, and those of `read`.
pub(super) fn whole<T: DeserializeOwned, R>(
    body: &[u8],
    budget: &Budget,
    read: impl FnOnce(T) -> Result<R>,
) -> Result<R> {
    let _held = budget.reserve(Pool::Requests, parsed_bytes(body))?;
    read(from_json(body).map_err(json_error)?)
}

/// Calls `read` for each object of a JSON list. Only one of them is in memory at a time.
///
/// # Errors
/// As [`whole`].
pub(super) fn each_item<T: DeserializeOwned>(
    body: &[u8],
    budget: &Budget,
    read: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let error_bytes = JsonCounts::of(body).error_bytes() as u64;
    let _held = budget.reserve(Pool::Requests, error_bytes)?;
    let mut failed = None;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let visitor =
        ItemVisitor { budget, read, failed: &mut failed, item: std::marker::PhantomData::<T> };
    let ended = deserializer.deserialize_any(visitor).and_then(|()| deserializer.end());
    match (failed, ended) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(json_error(error)),
        (None, Ok(())) => Ok(()),
    }
}

struct ItemVisitor<'a, T, F> {
    budget: &'a Budget,
    read: F,
    /// The error of `read`, which the deserializer cannot carry.
    failed: &'a mut Option<Error>,
    item: std::marker::PhantomData<T>,
}

impl<'de, T: DeserializeOwned, F: FnMut(T) -> Result<()>> Visitor<'de> for ItemVisitor<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    /// A null is an empty list, as in Go.
    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> std::result::Result<(), A::Error> {
        while let Some(raw) = list.next_element::<&RawValue>()? {
            let read = whole(raw.get().as_bytes(), self.budget, &mut self.read);
            if let Err(error) = read {
                *self.failed = Some(error);
                return Err(A::Error::custom("the reader failed"));
            }
        }
        Ok(())
    }
}

/// Name and value.
pub(super) type Label<'l> = (&'l str, &'l str);

/// Targets of one group. Memory is reserved before a target exists.
#[derive(Debug)]
pub(super) struct TargetsBuilder {
    targets: Vec<LabelSet>,
    bytes: usize,
    held: Reservation,
}

impl TargetsBuilder {
    pub(super) fn new(budget: &Budget) -> TargetsBuilder {
        TargetsBuilder { targets: Vec::new(), bytes: 0, held: budget.empty(Pool::Cache) }
    }

    /// Adds a target with the labels of `shared` and `own`. Of labels with the same name the last
    /// one counts; an empty value is no label.
    pub(super) fn push(&mut self, shared: &[Label<'_>], own: &[Label<'_>]) -> Result<()> {
        let labels = shared.iter().chain(own).copied();
        let bytes = labels_bytes(labels.clone());
        self.bytes = self.bytes.saturating_add(bytes);
        self.held.cover(self.bytes as u64)?;
        self.targets.push(labels.filter(|(_, value)| !value.is_empty()).collect());
        Ok(())
    }

    /// The group of the targets, with its memory.
    pub(super) fn finish(mut self, labels: LabelSet) -> Result<(DiscoveredGroup, Reservation)> {
        let own = labels_bytes(labels.iter()).saturating_add(size_of::<DiscoveredGroup>());
        self.held.cover(self.bytes.saturating_add(own) as u64)?;
        Ok((DiscoveredGroup { targets: self.targets, labels }, self.held))
    }
}

/// Labels of objects that targets refer to by an id, with their memory.
#[derive(Debug)]
pub(super) struct LabelTable {
    labels: BTreeMap<String, LabelSet>,
    bytes: usize,
    held: Reservation,
}

impl LabelTable {
    pub(super) fn new(budget: &Budget) -> LabelTable {
        LabelTable { labels: BTreeMap::new(), bytes: 0, held: budget.empty(Pool::Requests) }
    }

    pub(super) fn insert(&mut self, id: String, labels: LabelSet) -> Result<()> {
        let bytes = labels_bytes(labels.iter()).saturating_add(text_bytes(id.len(), 0));
        self.bytes = self.bytes.saturating_add(bytes);
        self.held.cover(self.bytes as u64)?;
        self.labels.insert(id, labels);
        Ok(())
    }

    /// The labels of an object; none if it is unknown.
    pub(super) fn of<'t>(&'t self, id: &str) -> impl Iterator<Item = Label<'t>> + use<'t> {
        self.labels.get(id).into_iter().flat_map(LabelSet::iter)
    }

    pub(super) fn value(&self, id: &str, name: &str) -> &str {
        self.labels.get(id).and_then(|labels| labels.get(name)).unwrap_or_default()
    }
}

fn labels_bytes<'l>(labels: impl Iterator<Item = (&'l str, &'l str)>) -> usize {
    let mut count: usize = 0;
    let texts = labels.fold(0_usize, |sum, (name, value)| {
        count = count.saturating_add(1);
        sum.saturating_add(text_bytes(name.len(), value.len()))
    });
    set_bytes(count, texts)
}

/// `prefix` and the name of a label of another program, of which other characters than letters,
/// digits and underscores are replaced.
pub(super) fn label_name(prefix: &str, name: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    prefix.chars().chain(name.chars().map(clean)).collect()
}

/// Labels of another program with names of this one.
pub(super) fn named(
    prefix: &str,
    labels: &BTreeMap<String, String>,
) -> impl Iterator<Item = (String, String)> {
    labels.iter().map(move |(name, value)| (label_name(prefix, name), value.clone()))
}

/// Host and port; an IPv6 address gets brackets.
pub(super) fn host_port(host: &str, port: impl fmt::Display) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// A part of a path or of a query.
pub(super) fn percent_encoded(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::new();
    for byte in text.bytes() {
        match is_plain(byte) {
            true => encoded.push(char::from(byte)),
            false => encoded += &format!("%{byte:02X}"),
        }
    }
    Cow::Owned(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(body: &str, budget: &Budget) -> Result<Vec<BTreeMap<String, u8>>> {
        let mut found = Vec::new();
        each_item(body.as_bytes(), budget, |item| {
            found.push(item);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn lists_are_read_item_by_item() {
        let budget = Budget::unlimited();
        assert_eq!(numbers(r#" [{"a": 1}, {}] "#, &budget).unwrap().len(), 2);
        assert_eq!(numbers("null", &budget).unwrap().len(), 0);
        for (body, want) in [
            ("<html>", "expected value"),
            ("{}", "expected a list"),
            ("[{}", "EOF"),
            ("[{}] x", "trailing characters"),
            ("[1]", "invalid type: integer"),
            ("", "EOF"),
        ] {
            let error = numbers(body, &budget).unwrap_err().to_string();
            assert!(error.contains("json: ") && error.contains(want), "{body}: {error}");
        }
        let failed = each_item(b"[{}, {}]", &budget, |_: BTreeMap<String, u8>| {
            Err(Error::invalid("a bad item"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "a bad item");
    }

    #[test]
    fn items_and_targets_are_within_memory() {
        let body = format!("[{{\"a\": 1}}, {{{}}}]", vec!["\"a\": 1"; 10_000].join(","));
        assert!(numbers(&body, &Budget::new(1 << 20)).is_err());
        let body = format!("[{}]", vec!["{\"a\": 1}"; 10_000].join(","));
        assert_eq!(numbers(&body, &Budget::new(1 << 20)).unwrap().len(), 10_000);

        let mut targets = TargetsBuilder::new(&Budget::new(1 << 20));
        let labels = [("a", "1"), ("b", ""), ("a", "2")];
        let pushed = (0..10_000).map(|_| targets.push(&labels, &[])).take_while(Result::is_ok);
        let count = pushed.count();
        assert!((100..5_000).contains(&count), "{count}");

        let mut targets = TargetsBuilder::new(&Budget::new(1 << 20));
        targets.push(&labels, &[]).unwrap();
        let (group, held) = targets.finish(LabelSet::default()).unwrap();
        assert!(held.bytes() >= super::super::heap_bytes(std::slice::from_ref(&group)) as u64);
        assert_eq!(group.targets[0].iter().collect::<Vec<_>>(), [("a", "2")]);
    }

    #[test]
    fn texts_of_other_programs_are_made_safe() {
        assert_eq!(label_name("x_", "com.é-1_a"), "x_com___1_a");
        assert_eq!(host_port("::1", 80), "[::1]:80");
        assert_eq!(host_port("h", 80), "h:80");
        assert_eq!(percent_encoded("a b/é?&"), "a%20b%2F%C3%A9%3F%26");
        let error = check_status("500 Oops", b" no \n").unwrap_err().to_string();
        assert_eq!(error, "server returned HTTP status 500 Oops: \"no\"");
    }
}
