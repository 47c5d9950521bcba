//! Factors the common labels of a group's members out of their label sets.

use hashbrown::HashMap;

/// A member with its labels besides the identity, sorted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabeledMember<'a> {
    pub(crate) slot: u32,
    pub(crate) pairs: &'a [u32],
}

// A pair that all but one in this many members have is common; the others become a part of their
// own.
const ODD_ONE_IN: usize = 8;
// In the last of these rounds, only pairs of all remaining members are common.
const ROUNDS_MAX: usize = 3;

/// Splits members into parts: the sorted pairs that all members of a part share, and the members.
///
/// A single member without a rack must not put the rack into the label sets of a thousand others. A
/// few members that share a label by chance must not become a part.
pub(crate) fn factor<'m>(members: &[LabeledMember<'m>]) -> Vec<(Vec<u32>, Vec<LabeledMember<'m>>)> {
    let (mut parts, mut left) = (Vec::new(), members.to_vec());
    let mut counts: HashMap<u32, usize> = HashMap::new();
    while !left.is_empty() {
        counts.clear();
        for &pair in left.iter().flat_map(|member| member.pairs) {
            *counts.entry(pair).or_default() += 1;
        }
        let is_last = parts.len() + 1 >= ROUNDS_MAX;
        let odd_max = if is_last { 0 } else { left.len() / ODD_ONE_IN };
        let mut common: Vec<u32> = counts
            .iter()
            .filter(|count| *count.1 + odd_max >= left.len())
            .map(|count| *count.0)
            .collect();
        common.sort_unstable();
        let has_all = |member: &LabeledMember<'m>| {
            common.iter().all(|pair| member.pairs.binary_search(pair).is_ok())
        };
        let (with, without): (Vec<_>, Vec<_>) = left.into_iter().partition(has_all);
        if with.is_empty() {
            // Each member lacks another one of the common pairs.
            parts.push((Vec::new(), without));
            break;
        }
        parts.push((common, with));
        left = without;
    }
    if members.is_empty() {
        parts.push((Vec::new(), Vec::new()));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_common_labels_are_factored_and_odd_members_get_a_part() {
        let f = |members: &[&[u32]]| -> Vec<(Vec<u32>, usize)> {
            let members: Vec<LabeledMember<'_>> =
                (0..).zip(members).map(|(slot, pairs)| LabeledMember { slot, pairs }).collect();
            factor(&members).into_iter().map(|part| (part.0, part.1.len())).collect()
        };
        assert_eq!(f(&[]), [(vec![], 0)]);
        assert_eq!(f(&[&[1, 5]]), [(vec![1, 5], 1)]);
        assert_eq!(f(&[&[1, 5], &[2, 5]]), [(vec![5], 2)]);
        // Three of four do not justify a split.
        assert_eq!(f(&[&[1, 5], &[2, 5], &[3, 5], &[4]]), [(vec![], 4)]);
        let mut many: Vec<&[u32]> = vec![&[1, 5], &[2, 5], &[3, 5], &[4, 5]];
        many.extend([&[5, 6][..], &[5, 7], &[5, 8], &[5, 9], &[10]]);
        assert_eq!(f(&many), [(vec![5], 8), (vec![10], 1)]);
    }
}
