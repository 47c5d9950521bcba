//! Which parts of expressions are worth keeping by themselves: those that several expressions have.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Parts that are remembered; with more of them, all are met anew.
const PARTS_MAX: usize = 4_096;
const PART_BYTES: u64 = 48;

/// Who asked for which part, by the hash of its key. Two parts of one hash cost a needless look, no truth.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    parts: HashMap<u64, Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Of one expression, by its hash.
    Of(u64),
    Shared,
    /// Its answer cannot be kept or given.
    Unfit,
}

impl Shares {
    /// An expression has a part that is dear to compute.
    pub(crate) fn note(&mut self, part: &[u8], expression: &str) {
        let by = hash(expression.as_bytes());
        let known = self.entry(part, Part::Of(by));
        if matches!(known, Part::Of(first) if *first != by) {
            *known = Part::Shared;
        }
    }

    /// A part is not shared, whoever has it.
    pub(crate) fn give_up(&mut self, part: &[u8]) {
        *self.entry(part, Part::Unfit) = Part::Unfit;
    }

    /// Whether several expressions have a part.
    pub(crate) fn is_shared(&self, part: &[u8]) -> bool {
        self.parts.get(&hash(part)) == Some(&Part::Shared)
    }

    /// What they hold, about.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.parts.len() as u64 * PART_BYTES
    }

    fn entry(&mut self, part: &[u8], new: Part) -> &mut Part {
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
        shares.give_up(b"sum(a)");
        shares.note(b"sum(a)", "sum(a) / sum(c)");
        assert!(!shares.is_shared(b"sum(a)"), "it cannot be given");
        for n in 0..2 * PARTS_MAX as u32 {
            shares.note(&n.to_be_bytes(), "x");
        }
        assert!(shares.parts.len() <= PARTS_MAX);
    }
}
