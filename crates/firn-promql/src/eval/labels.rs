//! Functions that change labels or the order of series.
//!
//! They can make labels of any length, so a label's length is computed, checked and reserved before
//! the label is built.

use std::cmp::Ordering;
use std::collections::HashMap;

use firn_model::{Error, Labels, METRIC_NAME, PATTERN_DEPTH_MAX, Result, excerpt, rust_pattern};

use super::evaluator::Evaluator;
use super::meter::Meter;
use super::series::{keep_floats, merge_same_labels};
use super::template::Template;
use super::vector::{VectorSeries, is_absent};
use super::window::Steps;
use crate::functions::natural;
use crate::syntax::{FunctionId, Node, NodeKind, Span};

/// The maximum number of capture groups in a pattern of `label_replace`.
const CAPTURE_GROUPS_MAX: usize = 100;
/// The compiled sizes that are tried for a pattern of `label_replace`: most need the first.
const PATTERN_BYTES: [usize; 3] = [32 << 10, 512 << 10, 4 << 20];
/// The memory of the automata of a pattern, in times of its compiled size.
const AUTOMATA_FACTOR: usize = 4;
/// The memory of a search for one capture group, in times of the compiled size: two lists with two
/// positions for each state, of which there is one per 24 bytes.
const SEARCH_FACTOR: usize = 2;
/// The memory of a parsed pattern per byte.
const PARSED_FACTOR: usize = 128;
/// The memory of a parsed class such as `\w`: up to 800 ranges of characters, twice.
const CLASS_BYTES: usize = 16 << 10;

/// The bytes of a string argument.
pub(super) fn text(args: &[Node], idx: usize) -> Result<&[u8]> {
    match args.get(idx).map(|arg| &arg.kind) {
        Some(NodeKind::String(bytes)) => Ok(bytes),
        _ => Err(Error::internal("a text was expected; type checks come first")),
    }
}

/// A string argument that names a label.
fn label_name<'a>(args: &'a [Node], idx: usize, what: &str) -> Result<&'a str> {
    let bytes = text(args, idx)?;
    std::str::from_utf8(bytes).ok().filter(|name| !name.is_empty()).ok_or_else(|| {
        let name = String::from_utf8_lossy(bytes);
        Error::invalid(format!("invalid {what}: {}", excerpt(&name)))
    })
}

fn invalid_pattern(pattern: &str) -> Error {
    let pattern = excerpt(pattern);
    Error::invalid(format!("invalid regular expression in label_replace(): {pattern}"))
}

impl Evaluator<'_> {
    pub(super) fn label_replace(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        // The JSON of Prometheus has the same replacement characters.
        let template = String::from_utf8_lossy(text(args, 2)?);
        let template = Template { text: &template };
        let source = std::str::from_utf8(text(args, 3)?).ok();
        let pattern = text(args, 4)?;
        let pattern = std::str::from_utf8(pattern)
            .map_err(|_| invalid_pattern(&String::from_utf8_lossy(pattern)))?;
        let regex = self.replace_pattern(pattern)?;
        let target = label_name(args, 1, "destination label name in label_replace()")?;
        self.check_label_name("label_replace", target)?;
        let mut series = self.vector(&args[0], steps)?;
        for one in &mut series {
            self.meter.check_canceled()?;
            let value = source.and_then(|name| one.labels.get(name)).unwrap_or("");
            let Some(captures) = regex.captures(value.as_bytes()) else { continue };
            let value_bytes = template.expanded_bytes(&captures, &self.meter)?;
            self.reserve_label("label_replace", &one.labels, target, value_bytes)?;
            let replaced = template.expand(&captures, value_bytes);
            one.labels = one.labels.with(target, &replaced);
            one.drop_name &= target != METRIC_NAME;
        }
        merge_same_labels(series, &mut self.meter)
    }

    /// Compiles the pattern of `label_replace`.
    ///
    /// A search for captures takes memory for each group and state, so a pattern with many groups
    /// must be small. It matches bytes, so that `\B` may be an ASCII boundary; groups are
    /// characters nevertheless, because the whole value is matched.
    fn replace_pattern(&mut self, pattern: &str) -> Result<regex::bytes::Regex> {
        let group_count = capture_groups_max(pattern);
        if group_count > CAPTURE_GROUPS_MAX {
            return Err(Error::invalid(format!(
                "the pattern of label_replace() has {group_count} capture groups, at most \
                 {CAPTURE_GROUPS_MAX} are supported: use (?:...) for groups that the replacement \
                 does not contain"
            )));
        }
        self.meter.reserve_items(pattern.len(), PARSED_FACTOR)?;
        self.meter.reserve_items(class_count(pattern), CLASS_BYTES)?;
        let anchored = rust_pattern(pattern).map_err(|_| invalid_pattern(pattern))?;
        let factor = AUTOMATA_FACTOR + SEARCH_FACTOR * (group_count + 1);
        let bytes_max = PATTERN_BYTES[PATTERN_BYTES.len() - 1] / (group_count + 1);
        let mut built = Err(regex::Error::CompiledTooBig(0));
        for limit_bytes in PATTERN_BYTES.map(|limit_bytes| limit_bytes.min(bytes_max)) {
            self.meter.reserve_items(limit_bytes, factor)?;
            built = regex::bytes::RegexBuilder::new(&anchored)
                .nest_limit(PATTERN_DEPTH_MAX)
                .size_limit(limit_bytes)
                .dfa_size_limit(limit_bytes)
                .build();
            if !matches!(built, Err(regex::Error::CompiledTooBig(_))) {
                break;
            }
        }
        built.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => Error::invalid(format!(
                "the pattern of label_replace() compiles to more than {bytes_max} bytes, the limit \
                 for {group_count} capture groups: use fewer groups or repetitions"
            )),
            _ => invalid_pattern(pattern),
        })
    }

    pub(super) fn label_join(&mut self, args: &[Node], steps: &Steps) -> Result<Vec<VectorSeries>> {
        let separator = String::from_utf8_lossy(text(args, 2)?);
        let sources = (3..args.len())
            .map(|idx| label_name(args, idx, "source label name in label_join()"))
            .collect::<Result<Vec<_>>>()?;
        let target = label_name(args, 1, "destination label name in label_join()")?;
        self.check_label_name("label_join", target)?;
        let separators_bytes = sources.len().saturating_sub(1).saturating_mul(separator.len());
        let mut series = self.vector(&args[0], steps)?;
        for one in &mut series {
            self.meter.check_canceled()?;
            let values =
                || sources.iter().map(|name| one.labels.get(name).unwrap_or("")).enumerate();
            let mut value_bytes = separators_bytes;
            for (idx, value) in values() {
                self.meter.check_canceled_at(idx)?;
                value_bytes = value_bytes.saturating_add(value.len());
            }
            self.reserve_label("label_join", &one.labels, target, value_bytes)?;
            let mut joined = String::with_capacity(value_bytes);
            for (idx, value) in values() {
                self.meter.check_canceled_at(idx)?;
                if idx > 0 {
                    joined.push_str(&separator);
                }
                joined.push_str(value);
            }
            one.labels = one.labels.with(target, &joined);
            one.drop_name &= target != METRIC_NAME;
        }
        merge_same_labels(series, &mut self.meter)
    }

    /// Checks the length of a label name that `function` stores a value in.
    ///
    /// # Errors
    /// `Invalid` over the limit of stored label names.
    pub(super) fn check_label_name(&self, function: &str, name: &str) -> Result<()> {
        let (name_bytes, limit) = (name.len(), self.options.labels_max.name_bytes_max);
        if name_bytes <= limit {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{function}() would make a label name of {name_bytes} bytes, over the limit of {limit} \
             (--label-name-bytes-max): shorten it or raise the limit"
        )))
    }

    /// Checks the length of a value that `function` is about to build, and reserves the label set
    /// with it.
    ///
    /// # Errors
    /// `Invalid` over the limit of stored label values, and as `Meter::reserve`.
    fn reserve_label(
        &mut self,
        function: &str,
        labels: &Labels,
        name: &str,
        value_bytes: usize,
    ) -> Result<()> {
        let limit = self.options.labels_max.value_bytes_max;
        if value_bytes > limit {
            return Err(Error::invalid(format!(
                "{function}() would make a value of {value_bytes} bytes for label {:?}, over the \
                 limit of {limit} (--label-value-bytes-max): join or replace less, or raise the limit",
                excerpt(name)
            )));
        }
        self.meter.reserve_labels(labels.as_encoded().len() + name.len() + value_bytes)
    }

    /// `sort`, `sort_desc`, `sort_by_label`, `sort_by_label_desc`: only an instant query keeps this
    /// order.
    pub(super) fn sort(
        &mut self,
        span: Span,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        // A range of one instant has an order.
        let one_step = self.options.steps().count == 1;
        if steps.count > 1 || one_step && self.options.start != self.options.end_or_start() {
            let text = "sort is ineffective for range queries since results are always ordered \
                        by labels";
            self.notes.warn(span, text);
        }
        let mut series = self.vector(&args[0], steps)?;
        // A stable sort copies up to all entries.
        self.meter.reserve_items(series.len(), size_of::<VectorSeries>())?;
        if matches!(function, FunctionId::Sort | FunctionId::SortDesc) {
            keep_floats(&mut series, &self.meter)?;
            sort_by_value(&mut series, function == FunctionId::SortDesc, &mut self.meter)?;
            return Ok(series);
        }
        // The place of each name in the list. No label has a name that is not UTF-8.
        let mut places: HashMap<&str, usize> = HashMap::new();
        self.meter.reserve_entries(args.len())?;
        for idx in 1..args.len() {
            if let Ok(name) = std::str::from_utf8(text(args, idx)?) {
                places.entry(name).or_insert(idx);
            }
        }
        let mut keys: Vec<Vec<(usize, &str)>> = Vec::with_capacity(series.len());
        for one in &series {
            self.meter.check_canceled()?;
            let place = |(name, value)| Some((*places.get(name)?, value));
            let mut key: Vec<(usize, &str)> = one.labels.iter().filter_map(place).collect();
            self.meter.reserve_items(key.capacity() + 2, size_of::<(usize, &str)>())?;
            key.sort_unstable();
            keys.push(key);
        }
        let mut order: Vec<usize> = (0..series.len()).collect();
        self.meter.sort_by(&mut order, |&a, &b| {
            let by_labels = || series[a].labels.cmp(&series[b].labels);
            let order = compare_keys(&keys[a], &keys[b]).then_with(by_labels);
            if function == FunctionId::SortByLabelDesc { order.reverse() } else { order }
        })?;
        drop(keys);
        let mut series: Vec<Option<VectorSeries>> = series.into_iter().map(Some).collect();
        Ok(order.into_iter().filter_map(|idx| series[idx].take()).collect())
    }
}

/// Compares the values of two series label by label, in the order of places. A label that one of
/// them lacks is empty there.
fn compare_keys(mut a: &[(usize, &str)], mut b: &[(usize, &str)]) -> Ordering {
    loop {
        let (place_a, place_b) = (a.first().map(|one| one.0), b.first().map(|one| one.0));
        let Some(place) = place_a.into_iter().chain(place_b).min() else { return Ordering::Equal };
        let order = natural::compare(take_at(&mut a, place), take_at(&mut b, place));
        if order.is_ne() {
            return order;
        }
    }
}

/// Takes the value at `place`, which is the first one or absent.
fn take_at<'k>(key: &mut &[(usize, &'k str)], place: usize) -> &'k str {
    match key.split_first() {
        Some(((at, value), rest)) if *at == place => {
            *key = rest;
            value
        }
        _ => "",
    }
}

/// Sorts by the value of the only step, NaN last in both directions.
///
/// Equal values keep their order. NaNs reverse theirs: Prometheus sorts by insertion, and its
/// comparison puts any value in front of a NaN, even another NaN.
///
/// # Errors
/// As [`Meter::sort_by`].
fn sort_by_value(
    series: &mut Vec<VectorSeries>,
    descending: bool,
    meter: &mut Meter,
) -> Result<()> {
    let value = |series: &VectorSeries| {
        let value = series.values.first().copied();
        value.filter(|value| !is_absent(*value)).unwrap_or(f64::NAN)
    };
    meter.sort_by(series, |a, b| {
        let (a, b) = (value(a), value(b));
        let order = if descending { b.partial_cmp(&a) } else { a.partial_cmp(&b) };
        order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    })?;
    let numbers = series.partition_point(|one| !value(one).is_nan());
    series[numbers..].reverse();
    Ok(())
}

/// The number of classes of characters in `pattern` that may have many ranges.
fn class_count(pattern: &str) -> usize {
    let is_class = |pair: &&[u8]| pair[0] == b'\\' && b"pPwWdDsS".contains(&pair[1]);
    pattern.as_bytes().windows(2).filter(is_class).count()
}

/// An upper bound of the capture groups in `pattern`: its opening parentheses that neither follow a
/// backslash nor precede flags. Computed from the text, because compiling many groups takes much
/// memory.
fn capture_groups_max(pattern: &str) -> usize {
    let mut count = 0;
    let mut rest = pattern.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', [_, after @ ..]) => after,
            (b'(', [b'?', b'P', b'<', ..] | [b'?', b'<', ..]) => {
                count += 1;
                after
            }
            (b'(', [b'?', ..]) => after,
            (b'(', _) => {
                count += 1;
                after
            }
            _ => after,
        };
    }
    count
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;

    use super::*;

    #[test]
    fn series_are_compared_by_the_labels_of_a_list() {
        let order = |a: &[(usize, &str)], b: &[(usize, &str)]| compare_keys(a, b);
        assert_eq!(order(&[], &[]), Ordering::Equal);
        assert_eq!(order(&[(3, "x")], &[]), Ordering::Greater);
        // Without the first label, whatever the second is.
        assert_eq!(order(&[(2, "z")], &[(1, "a")]), Ordering::Less);
        assert_eq!(order(&[(1, "a10"), (2, "a")], &[(1, "a9"), (2, "b")]), Ordering::Greater);
        assert_eq!(order(&[(1, "a"), (4, "b")], &[(1, "a"), (4, "c")]), Ordering::Less);
    }

    #[test]
    fn capture_groups_are_counted_before_compilation() {
        let f = capture_groups_max;
        assert_eq!(f("(a)(?P<b>c)(?<d>e)"), 3);
        assert_eq!(f(r"(?:a)(?i)b\(c\\"), 0);
        for pattern in ["(a)(b(c))", r"\\(a)[(]", "(?s:(.*))", "a", r"\("] {
            let real = regex::Regex::new(pattern).unwrap().captures_len() - 1;
            assert!(f(pattern) >= real, "{pattern}");
        }
    }

    #[test]
    fn sorting_puts_nans_last_in_reverse() {
        let series = |value: f64, name: &str| {
            let labels = Labels::from_pairs([("n", name)]).unwrap();
            VectorSeries::floats(labels, false, vec![value])
        };
        let nan = f64::NAN;
        let all = [(nan, "a"), (1.0, "b"), (nan, "c"), (-0.0, "d"), (0.0, "e"), (nan, "f")];
        let order = |descending| {
            let mut list: Vec<_> = all.iter().map(|(value, name)| series(*value, name)).collect();
            let mut meter = Meter::new(u64::MAX, &QueryContext::unbounded());
            sort_by_value(&mut list, descending, &mut meter).unwrap();
            list.iter().map(|one| one.labels.get("n").unwrap()).collect::<String>()
        };
        assert_eq!((order(false), order(true)), ("debfca".to_owned(), "bdefca".to_owned()));
    }
}
