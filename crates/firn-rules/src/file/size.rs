//! The memory of rules, beside that of their expressions.

use std::collections::BTreeMap;

use firn_model::HEAP_BLOCK_BYTES;

use super::FileGroup;
use crate::group::Rule;

impl FileGroup {
    /// The memory of the group and its texts.
    pub(super) fn text_bytes(&self) -> usize {
        let own = size_of::<FileGroup>().saturating_add(string_bytes(&self.name));
        let own = own.saturating_add(map_bytes(&self.labels));
        self.rules.iter().map(rule_bytes).fold(own, usize::saturating_add)
    }
}

fn rule_bytes(rule: &Rule) -> usize {
    let (name, maps) = match rule {
        Rule::Recording(rule) => (&rule.name, [Some(&rule.labels), None]),
        Rule::Alerting(rule) => (&rule.name, [Some(&rule.labels), Some(&rule.annotations)]),
    };
    let maps = maps.into_iter().flatten().map(map_bytes);
    // A running rule is a block with two counts.
    let own =
        size_of::<Rule>().saturating_add(2 * HEAP_BLOCK_BYTES).saturating_add(string_bytes(name));
    maps.fold(own, usize::saturating_add)
}

/// The memory of labels or annotations: that of the nodes of their tree, and of their texts.
pub(super) fn map_bytes(map: &BTreeMap<String, String>) -> usize {
    // A node has room for 11 entries and 12 nodes below it. One that is not the root has at least
    // five entries.
    const NODE_BYTES: usize = 11 * size_of::<(String, String)>() + 14 * size_of::<usize>();
    let node_count = match map.len() {
        0 => 0,
        1..=11 => 1,
        len => len.div_ceil(5),
    };
    let texts =
        map.iter().map(|(name, value)| string_bytes(name).saturating_add(string_bytes(value)));
    let nodes = node_count.saturating_mul(NODE_BYTES.saturating_add(HEAP_BLOCK_BYTES));
    texts.fold(nodes, usize::saturating_add)
}

fn string_bytes(text: &String) -> usize {
    text.capacity().saturating_add(HEAP_BLOCK_BYTES)
}
