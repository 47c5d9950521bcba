//! What the generator knows about a piece of text that it wrote.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::{Labels, METRIC_NAME};

use super::traits::Traits;

/// An expression of type instant vector.
#[derive(Clone, Debug)]
pub(super) struct Vector {
    pub(super) text: String,
    /// How tightly the text holds together: [`ATOM`], or the precedence of its outermost operator.
    pub(super) level: u8,
    /// The series that it may give, whatever the time: what it really gives is among them.
    pub(super) series: Vec<Labels>,
    pub(super) traits: Traits,
}

/// An expression of type scalar.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) level: u8,
}

/// Holds together whatever stands beside it.
pub(super) const ATOM: u8 = 10;
/// Binds as `*` does: looser than `^`.
pub(super) const UNARY: u8 = 5;

impl Vector {
    /// A function call or an aggregation.
    pub(super) fn atom(text: String, series: Vec<Labels>, traits: Traits) -> Vector {
        Vector { text, level: ATOM, series, traits }
    }

    /// The text as operand of an operator of `level`.
    pub(super) fn operand(&self, level: u8) -> String {
        operand(&self.text, self.level, level)
    }

    /// The series without their metric's name, `None` if two of them would be the same.
    pub(super) fn nameless(&self) -> Option<Vec<Labels>> {
        unique(self.series.iter().map(nameless))
    }

    /// Names of labels, `__name__` apart.
    pub(super) fn label_names(&self) -> Vec<String> {
        let names: BTreeSet<&str> =
            self.series.iter().flat_map(|labels| labels.iter().map(|pair| pair.0)).collect();
        names.into_iter().filter(|name| *name != METRIC_NAME).map(str::to_owned).collect()
    }
}

impl Scalar {
    pub(super) fn atom(text: impl Into<String>) -> Scalar {
        Scalar { text: text.into(), level: ATOM }
    }

    pub(super) fn operand(&self, level: u8) -> String {
        operand(&self.text, self.level, level)
    }
}

fn operand(text: &str, own_level: u8, level: u8) -> String {
    // On the same level the side decides; parentheses are right on both.
    if own_level > level { text.to_owned() } else { format!("({text})") }
}

pub(super) fn nameless(labels: &Labels) -> Labels {
    labels.filter(|name| name != METRIC_NAME)
}

/// The labels if no two are the same.
pub(super) fn unique(labels: impl Iterator<Item = Labels>) -> Option<Vec<Labels>> {
    let all: Vec<Labels> = labels.collect();
    let distinct: BTreeSet<&Labels> = all.iter().collect();
    (distinct.len() == all.len()).then(|| all.clone())
}

/// The labels, each once.
pub(super) fn distinct(labels: impl Iterator<Item = Labels>) -> Vec<Labels> {
    labels.collect::<BTreeSet<Labels>>().into_iter().collect()
}

/// The indices of the series that share each key.
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
