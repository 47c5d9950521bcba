//! The rows that may have some labels: by the hash of the labels, or by the posting lists of their
//! pairs.
//!
//! The hash has no secret key, because files contain it. A sender can choose any number of label
//! sets with one bucket and tag; trying each of them for each new series takes quadratic time. A
//! search in the lists skips the rows that lack one of the pairs.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::postings::{Postings, PostingsIter};
use firn_model::Result;

use crate::pair::RawPair;
use crate::sealed::format::blocks::Blocks;
use crate::sealed::format::buckets::Candidates;
use crate::sealed::format::lists::TableKind;
use crate::sealed::read::segment::Sealed;

/// With more entries in the rest of a bucket, lists are searched. A bucket has 16 on average; the
/// parts of one group share a hash.
const BUCKET_REST_MAX: u64 = if cfg!(test) { 3 } else { 256 };

/// Rows that may have some labels, each once.
#[derive(Debug)]
pub(crate) enum CandidateRows<'a> {
    Hashed(Candidates),
    Listed(CommonRows<'a>),
}

/// The rows that several lists have in common.
#[derive(Debug)]
pub(crate) struct CommonRows<'a>(Vec<ListCursor<'a>>);

#[derive(Debug)]
struct ListCursor<'a> {
    next: Option<u64>,
    ids: PostingsIter<'a>,
}

impl Sealed {
    /// The rows of a table that may have the labels `pairs` with this hash.
    ///
    /// # Errors
    /// `Corrupt` for a damaged block.
    pub(crate) fn candidates<'p, 't: 'p>(
        &self,
        kind: TableKind,
        hash: u64,
        pairs: impl Iterator<Item = &'p RawPair<'t>>,
    ) -> Result<CandidateRows<'_>> {
        let hashed = self.table(kind).hashes.rows(&self.blocks, hash)?;
        if hashed.rest_len() <= BUCKET_REST_MAX {
            return Ok(CandidateRows::Hashed(hashed));
        }
        let mut lists = Vec::new();
        for pair in pairs {
            let Some(list) = self.list_of(kind, pair)? else {
                return Ok(CandidateRows::Listed(CommonRows(Vec::new())));
            };
            lists.push(list);
        }
        // The empty label set is in no list.
        if lists.is_empty() {
            return Ok(CandidateRows::Hashed(hashed));
        }
        lists.sort_by_key(Postings::len);
        Ok(CandidateRows::Listed(CommonRows::new(&lists)))
    }

    fn list_of(&self, kind: TableKind, pair: &RawPair<'_>) -> Result<Option<Postings<'_>>> {
        let Some(name) = self.names.find(pair.name) else { return Ok(None) };
        let Some(pair) = self.find_pair(name, pair.value)? else { return Ok(None) };
        Ok(self.pair_lists(pair)?.of(kind))
    }
}

impl CandidateRows<'_> {
    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` for a damaged block.
    pub(crate) fn next(&mut self, blocks: &Blocks) -> Result<Option<u32>> {
        match self {
            CandidateRows::Hashed(rows) => rows.next(blocks),
            CandidateRows::Listed(rows) => Ok(rows.next()),
        }
    }
}

impl<'a> CommonRows<'a> {
    fn new(lists: &[Postings<'a>]) -> CommonRows<'a> {
        let cursor = |list: &Postings<'a>| {
            let mut ids = list.iter();
            ListCursor { next: ids.next(), ids }
        };
        CommonRows(lists.iter().map(cursor).collect())
    }

    /// The next row that all lists have.
    fn next(&mut self) -> Option<u32> {
        let mut wanted = self.0.first()?.next?;
        'search: loop {
            for cursor in &mut self.0 {
                let found = cursor.skip_to(wanted)?;
                if found > wanted {
                    wanted = found;
                    continue 'search;
                }
            }
            let first = self.0.first_mut()?;
            first.next = first.ids.next();
            return u32::try_from(wanted).ok();
        }
    }
}

impl ListCursor<'_> {
    /// The first id that is at least `id`.
    fn skip_to(&mut self, id: u64) -> Option<u64> {
        if self.next.is_some_and(|next| next < id) {
            self.next = self.ids.seek(id);
        }
        self.next
    }
}

#[cfg(test)]
mod tests {
    use firn_codec::postings::encode_postings;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn common_rows_are_those_of_all_lists(
            lists in prop::collection::vec(
                prop::collection::btree_set(prop_oneof![0u64..60, 0u64..4_000], 1..300),
                1..5,
            ),
        ) {
            let encoded: Vec<Vec<u8>> = lists.iter().map(|list| {
                let (ids, mut out) = (list.iter().copied().collect::<Vec<_>>(), Vec::new());
                encode_postings(&ids, &mut out);
                out
            }).collect();
            let postings: Vec<Postings<'_>> =
                encoded.iter().map(|bytes| Postings::take(&mut &bytes[..]).unwrap()).collect();
            let mut common = CommonRows::new(&postings);
            let found: Vec<u32> = std::iter::from_fn(|| common.next()).collect();
            let is_common = |id: &&u64| lists.iter().all(|list| list.contains(*id));
            let wanted: Vec<u32> =
                lists[0].iter().filter(is_common).map(|id| *id as u32).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
