//! Labels: a sorted set of name and value pairs in one block of bytes.
//!
//! Encoding, also on disk: for each pair in order of names `varint(name bytes) name varint(value
//! bytes) value`. Names are unique, values are not empty, both are UTF-8.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::{Error, Result, excerpt};

/// The label that holds a metric's name.
pub const METRIC_NAME: &str = "__name__";

/// The label set of a series or group: sorted by name, unique, no empty values. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Labels(Arc<[u8]>);

/// Iterates over the pairs of a [`Labels`] in order of names.
#[derive(Clone, Debug)]
pub struct LabelsIter<'a>(LabelBytesIter<'a>);

/// As [`LabelsIter`], but yields bytes.
#[derive(Clone, Debug)]
pub struct LabelBytesIter<'a>(&'a [u8]);

/// Collects pairs in any order. Reuse it to save allocations.
#[derive(Debug, Default)]
pub struct LabelsBuilder {
    text: String,
    /// (start of name, end of name = start of value, end of value) in `text`.
    pairs: Vec<(u32, u32, u32)>,
}

/// Upper limits on a label set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelLimits {
    /// Number of pairs in a set.
    pub label_count_max: usize,
    /// Bytes of a name.
    pub name_bytes_max: usize,
    /// Bytes of a value.
    pub value_bytes_max: usize,
}

impl Default for LabelLimits {
    fn default() -> LabelLimits {
        LabelLimits { label_count_max: 64, name_bytes_max: 1_024, value_bytes_max: 4_096 }
    }
}

impl LabelLimits {
    /// Checks the labels of one series, the parts of which are in `parts`: of its group and of the
    /// member, for example.
    ///
    /// # Errors
    /// `TooLarge` with the first limit that is exceeded.
    pub fn check(&self, parts: &[&Labels]) -> Result<()> {
        self.check_count(parts.iter().map(|labels| labels.count()).sum())?;
        let mut pairs = parts.iter().flat_map(|labels| labels.iter());
        pairs.try_for_each(|(name, value)| self.check_pair(name, value))
    }

    /// The part of [`LabelLimits::check`] for a number of labels, of which the caller has no set.
    ///
    /// # Errors
    /// `TooLarge` over the limit.
    pub fn check_count(&self, label_count: usize) -> Result<()> {
        if label_count > self.label_count_max {
            return Err(Error::too_large(format!(
                "{label_count} labels exceed the limit of {} (label_count_max): send fewer, \
                 or raise the limit",
                self.label_count_max
            )));
        }
        Ok(())
    }

    fn check_pair(&self, name: &str, value: &str) -> Result<()> {
        if name.len() > self.name_bytes_max {
            return Err(Error::too_large(format!(
                "label name {:?}... has {} bytes, over the limit of {} \
                 (name_bytes_max)",
                head(name),
                name.len(),
                self.name_bytes_max
            )));
        }
        if value.len() > self.value_bytes_max {
            return Err(Error::too_large(format!(
                "value of label {:?} has {} bytes, over the limit of {} \
                 (value_bytes_max)",
                excerpt(name),
                value.len(),
                self.value_bytes_max
            )));
        }
        Ok(())
    }
}

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A larger buffer is dropped, so that threads do not keep the memory.
const BUFFER_BYTES_MAX: usize = 16 << 10;

impl Labels {
    /// An empty label set.
    pub fn empty() -> Labels {
        Labels(Arc::from([]))
    }

    /// Labels from pairs in any order, without limits: for tests and constants.
    ///
    /// # Errors
    /// `Invalid` for a repeated or empty name.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Labels> {
        let mut builder = LabelsBuilder::default();
        for (name, value) in pairs {
            builder.push(name, value);
        }
        builder.build(&LabelLimits {
            label_count_max: usize::MAX,
            name_bytes_max: usize::MAX,
            value_bytes_max: usize::MAX,
        })
    }

    /// Decodes labels from outside or from disk, and checks every rule.
    ///
    /// # Errors
    /// `Invalid` with the first violation.
    pub fn from_encoded(encoded: &[u8]) -> Result<Labels> {
        let mut rest = encoded;
        let mut last: Option<&str> = None;
        while !rest.is_empty() {
            let name = take_text(&mut rest)?;
            let value = take_text(&mut rest)?;
            if name.is_empty() || value.is_empty() {
                return Err(Error::invalid("encoded labels contain an empty name or value"));
            }
            if last.is_some_and(|last| last >= name) {
                return Err(Error::invalid(format!("encoded labels: {name:?} is out of order")));
            }
            last = Some(name);
        }
        Ok(Labels(Arc::from(encoded)))
    }

    /// Builds labels from pairs in order of names that came from a `Labels`. Checked in debug
    /// builds only.
    pub fn from_sorted<'a>(pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Labels {
        // The encoding is built in a buffer that the thread keeps, because one thread builds many.
        let mut encoded = BUFFER.take();
        encoded.clear();
        pairs.into_iter().for_each(|(name, value)| push_pair(&mut encoded, name, value));
        debug_assert!(Labels::from_encoded(&encoded).is_ok(), "{encoded:?}");
        let labels = Labels(Arc::from(encoded.as_slice()));
        if encoded.capacity() <= BUFFER_BYTES_MAX {
            BUFFER.set(encoded);
        }
        labels
    }

    /// The encoding; see the module documentation.
    pub fn as_encoded(&self) -> &[u8] {
        &self.0
    }

    /// The pairs in order of names.
    pub fn iter(&self) -> LabelsIter<'_> {
        LabelsIter(self.iter_bytes())
    }

    /// The pairs as bytes: cheaper than [`Labels::iter`] where the caller only compares or copies
    /// them, because it skips the UTF-8 check.
    pub fn iter_bytes(&self) -> LabelBytesIter<'_> {
        LabelBytesIter(&self.0)
    }

    /// The value of `name`. O(labels).
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.iter_bytes().find(|pair| pair.0 == name.as_bytes())?.1;
        std::str::from_utf8(value).ok()
    }

    /// The metric's name, `""` if there is none.
    pub fn metric_name(&self) -> &str {
        self.get(METRIC_NAME).unwrap_or("")
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of pairs. O(labels).
    pub fn count(&self) -> usize {
        self.iter_bytes().count()
    }

    /// Keeps the pairs that have a name accepted by `keep`.
    pub fn filter(&self, mut keep: impl FnMut(&str) -> bool) -> Labels {
        let mut encoded = Vec::with_capacity(self.0.len());
        // Only names are checked as UTF-8.
        let mut keeps = |name: &[u8]| std::str::from_utf8(name).is_ok_and(&mut keep);
        for (name, value) in self.iter_bytes().filter(|pair| keeps(pair.0)) {
            push_pair(&mut encoded, name, value);
        }
        if encoded.len() == self.0.len() { self.clone() } else { Labels(Arc::from(encoded)) }
    }

    /// These labels with `name` set to `value`; an empty value removes it.
    #[expect(clippy::arithmetic_side_effects, reason = "lengths in memory")]
    pub fn with(&self, name: &str, value: &str) -> Labels {
        let mut encoded = Vec::with_capacity(self.0.len() + name.len() + value.len() + 4);
        let (name, value) = (name.as_bytes(), value.as_bytes());
        let mut pending = (!value.is_empty()).then_some((name, value));
        for pair in self.iter_bytes() {
            if pair.0 >= name
                && let Some(new) = pending.take()
            {
                push_pair(&mut encoded, new.0, new.1);
            }
            if pair.0 != name {
                push_pair(&mut encoded, pair.0, pair.1);
            }
        }
        if let Some(new) = pending {
            push_pair(&mut encoded, new.0, new.1);
        }
        Labels(Arc::from(encoded))
    }

    /// A stable 64-bit hash (XXH3) of the encoding; may be stored.
    pub fn hash64(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.0)
    }
}

impl<'a> Iterator for LabelsIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let (name, value) = self.0.next()?;
        // A `Labels` is checked when it is built, so neither step can fail.
        Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
    }
}

impl<'a> Iterator for LabelBytesIter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        Some((take_bytes(&mut self.0)?, take_bytes(&mut self.0)?))
    }
}

impl<'a> IntoIterator for &'a Labels {
    type Item = (&'a str, &'a str);
    type IntoIter = LabelsIter<'a>;

    fn into_iter(self) -> LabelsIter<'a> {
        self.iter()
    }
}

impl LabelsBuilder {
    /// Removes all pairs and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.pairs.clear();
    }

    /// Adds a pair. A pair with an empty value is ignored: it means the same as no pair.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`build` refuses texts beyond 32 bits before it uses the offsets"
    )]
    pub fn push(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let start = self.text.len() as u32;
        self.text.push_str(name);
        let middle = self.text.len() as u32;
        self.text.push_str(value);
        self.pairs.push((start, middle, self.text.len() as u32));
    }

    /// As [`LabelsBuilder::push`], but refuses a pair over `limits` before it takes memory.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn push_within(&mut self, name: &str, value: &str, limits: &LabelLimits) -> Result<()> {
        if !value.is_empty() {
            limits.check_pair(name, value)?;
        }
        self.push(name, value);
        limits.check_count(self.pairs.len())
    }

    /// Sorts, checks and encodes the pairs. The builder is empty on return.
    ///
    /// # Errors
    /// `Invalid` for a repeated or empty name; `TooLarge` if a limit is exceeded.
    #[expect(clippy::arithmetic_side_effects, reason = "lengths in memory")]
    pub fn build(&mut self, limits: &LabelLimits) -> Result<Labels> {
        let text_bytes = self.text.len();
        if u32::try_from(text_bytes).is_err() {
            *self = LabelsBuilder::default();
            return Err(Error::too_large(format!(
                "labels of one series have {text_bytes} bytes, over 4 GiB: shorten them"
            )));
        }
        let text = std::mem::take(&mut self.text);
        let mut pairs = std::mem::take(&mut self.pairs);
        let name_of = |pair: &(u32, u32, u32)| &text[pair.0 as usize..pair.1 as usize];
        let value_of = |pair: &(u32, u32, u32)| &text[pair.1 as usize..pair.2 as usize];
        pairs.sort_unstable_by(|a, b| name_of(a).cmp(name_of(b)));
        let built = check(&pairs, &name_of, &value_of, limits).map(|()| {
            let mut encoded = Vec::with_capacity(text.len() + 2 * pairs.len());
            for pair in &pairs {
                push_pair(&mut encoded, name_of(pair).as_bytes(), value_of(pair).as_bytes());
            }
            Labels(Arc::from(encoded))
        });
        // The builder keeps its memory for the next series.
        (self.text, self.pairs) = (text, pairs);
        self.clear();
        built
    }
}

fn check<'t>(
    pairs: &[(u32, u32, u32)],
    name_of: &impl Fn(&(u32, u32, u32)) -> &'t str,
    value_of: &impl Fn(&(u32, u32, u32)) -> &'t str,
    limits: &LabelLimits,
) -> Result<()> {
    limits.check_count(pairs.len())?;
    let mut last = None;
    for pair in pairs {
        let (name, value) = (name_of(pair), value_of(pair));
        if name.is_empty() {
            return Err(Error::invalid(format!(
                "label with value {:?} has an empty name",
                excerpt(value)
            )));
        }
        if last.replace(name) == Some(name) {
            return Err(Error::invalid(format!("label {:?} is repeated", excerpt(name))));
        }
        limits.check_pair(name, value)?;
    }
    Ok(())
}

fn head(text: &str) -> &str {
    &text[..text.floor_char_boundary(32)]
}

impl PartialOrd for Labels {
    fn partial_cmp(&self, other: &Labels) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares the first pair that differs, name before value; a prefix sorts first, as in Prometheus.
impl Ord for Labels {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the rest of a text is never longer than the text"
    )]
    fn cmp(&self, other: &Labels) -> Ordering {
        let same_bytes = common_bytes(&self.0, &other.0);
        // Texts that end before the first difference are equal on both sides, so only one side is
        // parsed up to there.
        let (mut left, mut right) = (&*self.0, &*other.0);
        loop {
            let start = left;
            let left_text = take_bytes(&mut left);
            if left_text.is_some() && self.0.len() - left.len() <= same_bytes {
                continue;
            }
            right = right.get(self.0.len() - start.len()..).unwrap_or_default();
            return match (left_text, take_bytes(&mut right)) {
                (Some(left_text), Some(right_text)) => left_text.cmp(right_text),
                (left_text, right_text) => left_text.is_some().cmp(&right_text.is_some()),
            };
        }
    }
}

/// Formats a series as PromQL does: `name{a="1",b="2"}`, with names of other characters than the
/// language's own in quotes: `{"my name","a b"="1"}`.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metric = self.metric_name();
        let is_quoted = !metric.is_empty() && !is_word(metric);
        let mut rest = self.iter().filter(|pair| pair.0 != METRIC_NAME).peekable();
        if !is_quoted {
            f.write_str(metric)?;
            if rest.peek().is_none() && !metric.is_empty() {
                return Ok(());
            }
        }
        f.write_str("{")?;
        if is_quoted {
            write!(f, "{metric:?}")?;
        }
        for (idx, (name, value)) in rest.enumerate() {
            f.write_str(if idx > 0 || is_quoted { "," } else { "" })?;
            match is_word(name) {
                true => write!(f, "{name}={value:?}")?,
                false => write!(f, "{name:?}={value:?}")?,
            }
        }
        f.write_str("}")
    }
}

/// Whether PromQL has this name without quotes.
fn is_word(name: &str) -> bool {
    let is_of_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_of_word)
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn push_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for text in [name, value] {
        encode_varint(text.len() as u64, out);
        out.extend_from_slice(text);
    }
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str> {
    let bad = || Error::invalid("encoded labels are truncated");
    let text = take_bytes(rest).ok_or_else(bad)?;
    std::str::from_utf8(text).map_err(|e| Error::invalid("encoded labels: not UTF-8").because(e))
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text_bytes = match **rest {
        // Most texts are short.
        [len, ref after @ ..] if len < 0x80 => {
            *rest = after;
            usize::from(len)
        }
        _ => usize::try_from(decode_varint(rest)?).ok()?,
    };
    let (text, after) = rest.split_at_checked(text_bytes)?;
    *rest = after;
    Some(text)
}

/// Length of the common prefix.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`same` counts the bytes of words that are in both"
)]
fn common_bytes(left: &[u8], right: &[u8]) -> usize {
    let words = left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0);
    let mut same = 0;
    for (left, right) in words {
        let differing = u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right);
        if differing != 0 {
            return same + (differing.trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    let rest = left[same..].iter().zip(&right[same..]);
    same + rest.take_while(|(left, right)| left == right).count()
}

/// Appends `value` as a little-endian base-128 varint (at most 10 bytes).
#[expect(clippy::cast_possible_truncation, reason = "the low seven bits of each step")]
#[inline]
pub fn encode_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes a varint from the front of `input`; `None` if it is truncated or exceeds 64 bits.
#[inline]
pub fn decode_varint(input: &mut &[u8]) -> Option<u64> {
    // Most are numbers below 128: one byte, without a call.
    if let [byte, rest @ ..] = *input
        && *byte < 0x80
    {
        *input = rest;
        return Some(u64::from(*byte));
    }
    decode_long_varint(input)
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`idx` is the index of a byte of `input` and at most 9"
)]
fn decode_long_varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (idx, &byte) in input.iter().enumerate().take(10) {
        if idx == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * idx);
        if byte < 0x80 {
            *input = &input[idx + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::from_pairs(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn unsorted_labels_are_sorted_and_empty_values_dropped() {
        let built = labels(&[("b", "2"), ("empty", ""), ("a", "1"), (METRIC_NAME, "up")]);
        assert_eq!(built.to_string(), r#"up{a="1",b="2"}"#);
        assert_eq!(built.count(), 3);
        assert_eq!(Labels::from_encoded(built.as_encoded()).unwrap(), built);
    }

    #[test]
    fn names_that_are_no_words_are_quoted() {
        let f = |pairs: &[(&str, &str)], want: &str| assert_eq!(labels(pairs).to_string(), want);
        f(&[(METRIC_NAME, "a:b_1")], "a:b_1");
        f(&[(METRIC_NAME, "my.name")], r#"{"my.name"}"#);
        f(&[(METRIC_NAME, "x\ny"), ("a", "1")], r#"{"x\ny",a="1"}"#);
        f(&[("a\u{1b}b", "\u{202e}"), ("1", "2")], r#"{"1"="2","a\u{1b}b"="\u{202e}"}"#);
        f(&[], "{}");
    }

    #[test]
    fn violations_are_named_in_the_error() {
        let f = |pairs: &[(&str, &str)]| {
            let mut builder = LabelsBuilder::default();
            pairs.iter().for_each(|pair| builder.push(pair.0, pair.1));
            let limits = LabelLimits { label_count_max: 2, name_bytes_max: 3, value_bytes_max: 4 };
            builder.build(&limits).unwrap_err().to_string()
        };
        assert_eq!(f(&[("a", "1"), ("a", "2")]), r#"label "a" is repeated"#);
        assert!(f(&[("", "1")]).contains("empty name"));
        assert!(f(&[("long", "1")]).contains("name_bytes_max"));
        assert!(f(&[("a", "12345")]).contains("value_bytes_max"));
        assert!(f(&[("a", "1"), ("b", "1"), ("c", "1")]).contains("label_count_max"));
        // The same, as soon as the pair is there.
        let limits = LabelLimits { label_count_max: 2, name_bytes_max: 3, value_bytes_max: 4 };
        let mut builder = LabelsBuilder::default();
        let mut push = |name, value| {
            builder.push_within(name, value, &limits).map_err(|error| error.to_string())
        };
        assert!(push("long", "1").unwrap_err().contains("name_bytes_max"));
        assert!(push("a", "12345").unwrap_err().contains("value_bytes_max"));
        for pair in [("long", ""), ("a", "1"), ("b", "1"), ("c", "")] {
            push(pair.0, pair.1).unwrap();
        }
        assert!(push("c", "1").unwrap_err().contains("label_count_max"));
    }

    #[test]
    fn with_and_filter_keep_the_order_of_names() {
        let built = labels(&[("b", "2"), ("d", "4")]);
        assert_eq!(built.with("c", "3"), labels(&[("b", "2"), ("c", "3"), ("d", "4")]));
        assert_eq!(built.with("a", "1"), labels(&[("a", "1"), ("b", "2"), ("d", "4")]));
        assert_eq!(built.with("e", "5"), labels(&[("b", "2"), ("d", "4"), ("e", "5")]));
        assert_eq!(built.with("b", "9"), labels(&[("b", "9"), ("d", "4")]));
        assert_eq!(built.with("b", ""), labels(&[("d", "4")]));
        assert_eq!(built.filter(|name| name == "d"), labels(&[("d", "4")]));
        assert!(labels(&[("a", "1")]) < labels(&[("a", "1"), ("b", "1")]));
    }

    #[test]
    fn order_is_that_of_the_pairs() {
        let texts = ["", "a", "aa", "ab", "b", "\u{e9}", "0123456789abcdef", "0123456789abcdeg"];
        let long = "x".repeat(130);
        let mut sets = vec![Labels::empty()];
        for first in texts.into_iter().chain([long.as_str()]) {
            for second in texts {
                sets.push(labels(&[("a", first), ("b", second)]));
                sets.push(labels(&[("same as all the others", "z"), ("t", first), ("u", second)]));
            }
        }
        for left in &sets {
            for right in &sets {
                assert_eq!(left.cmp(right), left.iter().cmp(right), "{left} {right}");
            }
        }
    }

    #[test]
    fn bad_encodings_are_refused() {
        for bad in [&[1u8][..], &[1, b'a'], &[1, b'a', 0], &[2, 0xff, 0xfe, 1, b'x'], &[0xff; 11]] {
            assert!(Labels::from_encoded(bad).is_err(), "{bad:?}");
        }
        assert!(Labels::from_encoded(b"\x01b\x01x\x01a\x01x").is_err(), "unsorted");
    }
}
