//! Posting lists of label pairs, in bunches.

use firn_codec::bits::{get_bits, packed_bytes};
use firn_codec::postings::Postings;

use crate::sealed::format::varint::take_varint;

/// The posting lists of one pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PairPostings<'a> {
    pub(crate) lists: [Option<Postings<'a>>; 3],
}

/// The posting lists of consecutive pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PostingBunch<'a> {
    rest: &'a [u8],
    /// If each pair has exactly one row, all in one table: the table, the bit width and the least
    /// row.
    rows: Option<(TableKind, u32, u64)>,
}

/// A table of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    Lone = 0,
    Parts = 1,
    MemberSets = 2,
}

pub(crate) const TABLE_KINDS: [TableKind; 3] =
    [TableKind::Lone, TableKind::Parts, TableKind::MemberSets];
/// Number of pairs, or member sets, that share one start.
pub(crate) const BUNCH_LISTS: u64 = 16;
/// The first byte of a bunch of pairs with one row each is this plus the number of the table.
pub(crate) const BUNCH_OF_ROWS: u8 = 128;

impl<'a> PostingBunch<'a> {
    pub(crate) fn open(bytes: &'a [u8], len: u64) -> Option<PostingBunch<'a>> {
        let kind = match *bytes {
            [head, ..] if head >= BUNCH_OF_ROWS => {
                TABLE_KINDS.get(usize::from(head.saturating_sub(BUNCH_OF_ROWS)))?
            }
            _ => return Some(PostingBunch { rest: bytes, rows: None }),
        };
        let (&width, mut rest) = bytes.get(1..)?.split_first()?;
        let width = Some(u32::from(width)).filter(|width| *width <= 32)?;
        let least = take_varint(&mut rest)?;
        let packed = rest.get(..packed_bytes(usize::try_from(len).ok()?, width))?;
        Some(PostingBunch { rest: packed, rows: Some((*kind, width, least)) })
    }

    /// The lists of pair `at` of the bunch; must be called for 0, 1, 2...
    pub(crate) fn take(&mut self, at: u64) -> Option<PairPostings<'a>> {
        let mut lists = PairPostings::default();
        if let Some((kind, width, least)) = self.rows {
            let bit_idx = usize::try_from(at.checked_mul(u64::from(width))?).ok()?;
            let row = least.checked_add(get_bits(self.rest, bit_idx, width));
            *lists.lists.get_mut(kind as usize)? = Some(Postings::one(row?));
            return Some(lists);
        }
        let (&flags, after) = self.rest.split_first()?;
        self.rest = after;
        for kind in TABLE_KINDS {
            if flags & (1 << kind as u8) != 0 {
                *lists.lists.get_mut(kind as usize)? = Some(Postings::take(&mut self.rest).ok()?);
            }
        }
        Some(lists)
    }
}

impl<'a> PairPostings<'a> {
    pub(crate) fn of(&self, kind: TableKind) -> Option<Postings<'a>> {
        self.lists.get(kind as usize).copied().flatten()
    }
}
