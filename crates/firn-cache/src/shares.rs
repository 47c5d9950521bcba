//! Which parts of expressions are worth keeping by themselves: those that several expressions have.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Parts that are remembered; with more of them, all are met anew.
const PARTS_MAX: usize = 4_096;

/// Who asked for which part.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By the hash of a part's key: the hash of the expression that had it first, and whether another one has it too. Two
    /// parts of one hash cost a needless look, no truth.
    parts: HashMap<u64, (u64, bool)>,
}

impl Shares {
    /// An expression has a part that is dear to compute.
    pub(crate) fn note(&mut self, part: &[u8], expression: &str) {
        if self.parts.len() >= PARTS_MAX {
            self.parts.clear();
        }
        let by = hash(expression.as_bytes());
        let (first, is_shared) = self.parts.entry(hash(part)).or_insert((by, false));
        *is_shared |= *first != by;
    }

    /// Whether several expressions have a part.
    pub(crate) fn is_shared(&self, part: &[u8]) -> bool {
        self.parts.get(&hash(part)).is_some_and(|part| part.1)
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
        for n in 0..2 * PARTS_MAX as u32 {
            shares.note(&n.to_be_bytes(), "x");
        }
        assert!(shares.parts.len() <= PARTS_MAX);
    }
}
