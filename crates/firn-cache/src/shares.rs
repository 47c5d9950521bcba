//! Finds the parts that several expressions share: those are worth caching by themselves.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Parts that are remembered; at this many, all are forgotten.
const PARTS_MAX: usize = 4_096;
const PART_BYTES: u64 = 48;

/// The users of each part, by the hash of its key. A collision costs a needless lookup only.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    parts: HashMap<u64, PartUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartUse {
    /// One expression uses it; its hash.
    Of(u64),
    Shared,
    /// Its answer cannot be kept, or not be used by an evaluation.
    Unfit,
}

impl Shares {
    /// Records that an expression has an expensive part.
    pub(crate) fn note(&mut self, part: &[u8], expression: &str) {
        let by = hash(expression.as_bytes());
        let known = self.entry(part, PartUse::Of(by));
        if matches!(known, PartUse::Of(first) if *first != by) {
            *known = PartUse::Shared;
        }
    }

    /// Marks a part as never shared.
    pub(crate) fn mark_unfit(&mut self, part: &[u8]) {
        *self.entry(part, PartUse::Unfit) = PartUse::Unfit;
    }

    /// Whether several expressions use a part.
    pub(crate) fn is_shared(&self, part: &[u8]) -> bool {
        self.parts.get(&hash(part)) == Some(&PartUse::Shared)
    }

    /// Approximate memory.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.parts.len() as u64 * PART_BYTES
    }

    fn entry(&mut self, part: &[u8], new: PartUse) -> &mut PartUse {
        if self.parts.len() >= PARTS_MAX {
            self.parts.clear();
        }
        self.parts.entry(hash(part)).or_insert(new)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shared_when_two_expressions_have_it() {
        let mut shares = Shares::default();
        shares.note(b"sum(a)", "sum(a) / sum(b)");
        shares.note(b"sum(a)", "sum(a) / sum(b)");
        assert!(!shares.is_shared(b"sum(a)") && !shares.is_shared(b"sum(b)"));
        shares.note(b"sum(a)", "sum(a)");
        assert!(shares.is_shared(b"sum(a)") && !shares.is_shared(b"sum(b)"));
        shares.mark_unfit(b"sum(a)");
        shares.note(b"sum(a)", "sum(a) / sum(c)");
        assert!(!shares.is_shared(b"sum(a)"), "it is unfit");
        for n in 0..2 * PARTS_MAX as u32 {
            shares.note(&n.to_be_bytes(), "x");
        }
        assert!(shares.parts.len() <= PARTS_MAX);
    }
}
