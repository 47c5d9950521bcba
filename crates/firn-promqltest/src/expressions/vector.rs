//! The properties of an expression that the generator has written.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::{Labels, METRIC_NAME};

use super::traits::Traits;

/// An expression of type instant vector.
#[derive(Clone, Debug)]
pub(super) struct VectorText {
    pub(super) text: String,
    /// The precedence of the outermost operator, or [`ATOM`].
    pub(super) level: u8,
    /// A superset of the result's series at any time.
    pub(super) series: Vec<Labels>,
    pub(super) traits: Traits,
}

/// An expression of type scalar.
#[derive(Clone, Debug)]
pub(super) struct ScalarText {
    pub(super) text: String,
    pub(super) level: u8,
}

/// The level of a text that never needs parentheses.
pub(super) const ATOM: u8 = 10;
/// The level of a signed text: the precedence of `*`, which is lower than that of `^`.
pub(super) const UNARY: u8 = 5;

impl VectorText {
    /// A function call or an aggregation.
    pub(super) fn atom(text: String, series: Vec<Labels>, traits: Traits) -> VectorText {
        VectorText { text, level: ATOM, series, traits }
    }

    /// The text as operand of an operator of `level`.
    pub(super) fn operand(&self, level: u8) -> String {
        operand(&self.text, self.level, level)
    }

    /// The series without their metric's name; `None` if two of them would be equal.
    pub(super) fn nameless(&self) -> Option<Vec<Labels>> {
        unique(self.series.iter().map(nameless))
    }

    /// Names of labels except `__name__`.
    pub(super) fn label_names(&self) -> Vec<String> {
        let names: BTreeSet<&str> =
            self.series.iter().flat_map(|labels| labels.iter().map(|pair| pair.0)).collect();
        names.into_iter().filter(|name| *name != METRIC_NAME).map(str::to_owned).collect()
    }
}

impl ScalarText {
    pub(super) fn atom(text: impl Into<String>) -> ScalarText {
        ScalarText { text: text.into(), level: ATOM }
    }

    pub(super) fn operand(&self, level: u8) -> String {
        operand(&self.text, self.level, level)
    }
}

fn operand(text: &str, own_level: u8, level: u8) -> String {
    // On the same level associativity decides; parentheses are correct on both sides.
    if own_level > level { text.to_owned() } else { format!("({text})") }
}

pub(super) fn nameless(labels: &Labels) -> Labels {
    labels.filter(|name| name != METRIC_NAME)
}

/// The label sets; `None` if two are equal.
pub(super) fn unique(labels: impl Iterator<Item = Labels>) -> Option<Vec<Labels>> {
    let all: Vec<Labels> = labels.collect();
    let distinct: BTreeSet<&Labels> = all.iter().collect();
    (distinct.len() == all.len()).then(|| all.clone())
}

/// The label sets without duplicates.
pub(super) fn distinct(labels: impl Iterator<Item = Labels>) -> Vec<Labels> {
    labels.collect::<BTreeSet<Labels>>().into_iter().collect()
}

/// The indexes of the series that share each key.
pub(super) fn by_key(
    series: &[Labels],
    key: impl Fn(&Labels) -> Labels,
) -> BTreeMap<Labels, Vec<usize>> {
    let mut groups: BTreeMap<Labels, Vec<usize>> = BTreeMap::new();
    for (idx, labels) in series.iter().enumerate() {
        groups.entry(key(labels)).or_default().push(idx);
    }
    groups
}
