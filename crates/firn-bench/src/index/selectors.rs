//! Random selectors, after the production queries of `ByteSeries` (SoCC 2020), section 5.3: each is
//! drawn from an existing series, so that it matches, and names its metric and up to three of its
//! labels.

use firn_model::{Labels, METRIC_NAME, MatchOp, Matcher};

use super::label_sets::LabelSets;
use super::scatter;

/// One query to the index.
#[derive(Debug)]
pub struct Selector {
    /// All must hold.
    pub matchers: Vec<Matcher>,
    /// The name of the label to aggregate by.
    pub by: String,
}

struct SelectorDraw(u64);

impl SelectorDraw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = scatter(self.0);
        (self.0 % bound as u64) as usize
    }
}

/// Selector `number`, deterministic.
///
/// Each names its metric and up to three other labels, of which 70% are equalities, 15% prefixes of
/// half the value, 10% one of two values and 5% inequalities.
pub fn selector(sets: &LabelSets, number: u64) -> Selector {
    let mut draw = SelectorDraw(number);
    let (series, other) = (sets.draw(draw.0), sets.draw(scatter(number ^ 0x99)));
    let mut rest: Vec<(&str, &str)> = series.iter().filter(|pair| pair.0 != METRIC_NAME).collect();
    let by = rest[draw.below(rest.len())].0.to_owned();
    let mut matchers = vec![Matcher::equal(METRIC_NAME, series.metric_name())];
    for _ in 0..draw.below(4).min(rest.len()) {
        let (name, value) = rest.swap_remove(draw.below(rest.len()));
        matchers.push(matcher(name, value, &other, &mut draw));
    }
    Selector { matchers, by }
}

fn matcher(name: &str, value: &str, other: &Labels, draw: &mut SelectorDraw) -> Matcher {
    let made = match draw.below(20) {
        0..14 => Ok(Matcher::equal(name, value)),
        14..17 => {
            let half = value.floor_char_boundary(value.len().div_ceil(2));
            Matcher::new(name, MatchOp::Regex, format!("{}.*", escaped(&value[..half])))
        }
        17..19 => {
            let second = other.get(name).unwrap_or(value);
            let either = format!("{}|{}", escaped(value), escaped(second));
            Matcher::new(name, MatchOp::Regex, either)
        }
        _ => Matcher::new(name, MatchOp::NotEqual, other.get(name).unwrap_or("none")),
    };
    made.expect("an escaped pattern")
}

fn escaped(text: &str) -> String {
    let special = |c: char| "\\.+*?()|[]{}^$/".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::label_sets::LabelSetKind;

    #[test]
    fn a_selector_asks_for_something() {
        let sets = LabelSets::new(LabelSetKind::Kubernetes, 5_000).unwrap();
        let mut all = Vec::new();
        (0..sets.group_count()).for_each(|group| sets.push_group(group, &mut all));
        let mut found = 0;
        for number in 0..100 {
            let Selector { matchers, .. } = selector(&sets, number);
            assert!(matchers.iter().any(|matcher| !matcher.matches("")), "{matchers:?}");
            let holds =
                |l: &&Labels| matchers.iter().all(|m| m.matches(l.get(m.name()).unwrap_or("")));
            found += usize::from(all.iter().any(|labels| holds(&labels)));
        }
        assert!(found > 90, "{found} of 100 find something");
    }
}
