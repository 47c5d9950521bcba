//! The label pairs of several inputs as one sorted list, without a copy of their texts. A
//! file has sorted pairs; for a segment in memory, the numbers of its pairs are sorted by name and
//! value. A merging iteration yields each text once and can be repeated.
//!
//! A merge therefore holds only four bytes per pair of each input, independent of the length of
//! texts.

use std::cmp::Ordering;
use std::ops::Range;

use firn_model::{CancelToken, Error, Result};

use crate::memory::pairs::Pairs;
use crate::sealed::format::strings::StringWalk;
use crate::sealed::read::segment::Sealed;

/// An input with pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PairSource<'a> {
    /// A frozen segment in memory.
    Memory(&'a Pairs),
    File(&'a Sealed),
}

/// The distinct pairs of all sources, numbered by name and value.
#[derive(Debug)]
pub(crate) struct PairUnion<'a> {
    inputs: Vec<PairInput<'a>>,
    /// Ascending.
    names: Vec<&'a [u8]>,
    /// The number of each name's first pair, and the end.
    first_pairs: Vec<u32>,
    /// By source, the number of each of its pairs.
    numbers: Vec<Vec<u32>>,
    /// Ends the work between two names.
    cancel: CancelToken,
}

#[derive(Debug)]
enum PairInput<'a> {
    Memory {
        pairs: &'a Pairs,
        /// By name and value.
        order: Vec<u32>,
        /// Names with the range of their pairs in `order`.
        names: Vec<(&'a [u8], Range<usize>)>,
    },
    File(&'a Sealed),
}

/// The current value of one name in one input.
#[derive(Debug)]
struct ValueHead<'u> {
    source: usize,
    at: ValueCursor<'u>,
}

#[derive(Debug)]
enum ValueCursor<'u> {
    Memory { pairs: &'u Pairs, rest: &'u [u32] },
    File { walk: StringWalk<'u>, end: u64 },
}

// The last number is reserved.
const PAIR_COUNT_MAX: u32 = u32::MAX - 1;

impl<'a> PairUnion<'a> {
    /// # Errors
    /// `Corrupt` if a segment is damaged, `TooLarge` when numbers are exhausted, `Canceled`.
    pub(crate) fn new(sources: &[PairSource<'a>], cancel: &CancelToken) -> Result<PairUnion<'a>> {
        let inputs: Vec<PairInput<'a>> =
            sources.iter().map(|&source| PairInput::new(source)).collect();
        let mut names: Vec<&[u8]> = inputs.iter().flat_map(PairInput::names).collect();
        names.sort_unstable();
        names.dedup();
        let numbers = inputs.iter().map(|input| vec![0; input.pair_count()]).collect();
        let cancel = cancel.clone();
        let mut union = PairUnion { inputs, names, first_pairs: vec![0], numbers, cancel };
        let mut next = 0u32;
        for name in &union.names {
            union.cancel.check()?;
            let numbers = &mut union.numbers;
            walk(&union.inputs, name, |_, owners| {
                owners.iter().for_each(|&(source, pair)| numbers[source][pair as usize] = next);
                next = next
                    .checked_add(1)
                    .filter(|&next| next < PAIR_COUNT_MAX)
                    .ok_or_else(used_up)?;
                Ok(())
            })?;
            union.first_pairs.push(next);
        }
        Ok(union)
    }

    /// The number of a pair of a source.
    pub(crate) fn number(&self, source: usize, pair: u32) -> u32 {
        self.numbers[source][pair as usize]
    }

    /// The numbers of all pairs of a source, by pair.
    pub(crate) fn numbers(&self, source: usize) -> &[u32] {
        &self.numbers[source]
    }

    /// Frees the numbers once all sources have been added.
    pub(crate) fn drop_numbers(&mut self) {
        self.numbers = Vec::new();
    }

    pub(crate) fn count(&self) -> usize {
        self.first_pairs.last().map_or(0, |&end| end as usize)
    }

    pub(crate) fn name_count(&self) -> usize {
        self.names.len()
    }

    /// All names, ascending, with the numbers of their pairs.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&'a [u8], Range<u32>)> {
        let ranges = self.first_pairs.windows(2).map(|pairs| pairs[0]..pairs[1]);
        self.names.iter().copied().zip(ranges)
    }

    /// Calls `each` with the number and the value of every pair of a name, in order.
    ///
    /// # Errors
    /// `Corrupt` if a segment is damaged, `Canceled`, and those of `each`.
    pub(crate) fn each_value(
        &self,
        name: &[u8],
        pairs: Range<u32>,
        mut each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.cancel.check()?;
        let mut numbers = pairs;
        walk(&self.inputs, name, |value, _| match numbers.next() {
            Some(number) => each(number, value),
            None => Ok(()),
        })
    }
}

/// Calls `each` with every value of a name, in order, and with its owners: the sources and their
/// ids of the pair.
fn walk(
    inputs: &[PairInput<'_>],
    name: &[u8],
    mut each: impl FnMut(&[u8], &[(usize, u32)]) -> Result<()>,
) -> Result<()> {
    let mut heads = Vec::new();
    for (source, input) in inputs.iter().enumerate() {
        heads.extend(input.first(name)?.map(|at| ValueHead { source, at }));
    }
    let (mut least, mut owners) = (Vec::new(), Vec::new());
    while !heads.is_empty() {
        least.clear();
        owners.clear();
        for (idx, head) in heads.iter().enumerate() {
            let order = least.first().map_or(Ordering::Less, |&first: &usize| {
                head.at.value().cmp(heads[first].at.value())
            });
            if order == Ordering::Less {
                least.clear();
            }
            if order != Ordering::Greater {
                least.push(idx);
            }
        }
        owners.extend(least.iter().map(|&idx| (heads[idx].source, heads[idx].at.pair())));
        each(heads[least[0]].at.value(), &owners)?;
        for &idx in least.iter().rev() {
            if !heads[idx].at.advance()? {
                heads.remove(idx);
            }
        }
    }
    Ok(())
}

impl<'a> PairInput<'a> {
    fn new(source: PairSource<'a>) -> PairInput<'a> {
        let pairs = match source {
            PairSource::File(sealed) => return PairInput::File(sealed),
            PairSource::Memory(pairs) => pairs,
        };
        let mut by_name: Vec<(&[u8], &[u32])> = (0..pairs.name_count())
            .map(|name| (pairs.name_bytes(name), &pairs.name(name).pairs[..]))
            .collect();
        by_name.sort_unstable();
        let mut order = Vec::with_capacity(pairs.pair_count() as usize);
        let names = by_name.into_iter().map(|(name, of_name)| {
            let start = order.len();
            order.extend_from_slice(of_name);
            order[start..].sort_unstable_by_key(|&pair| pairs.bytes_of(pair).1);
            (name, start..order.len())
        });
        let names = names.collect();
        PairInput::Memory { pairs, order, names }
    }

    fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        let (in_memory, in_file) = match self {
            PairInput::Memory { names, .. } => (&names[..], None),
            PairInput::File(sealed) => (&[][..], Some(&sealed.names)),
        };
        let in_file = in_file.into_iter();
        let in_file =
            in_file.flat_map(|names| (0..names.count() as u32).map(|rank| names.text(rank)));
        in_memory.iter().map(|name| name.0).chain(in_file)
    }

    fn pair_count(&self) -> usize {
        match self {
            PairInput::Memory { pairs, .. } => pairs.pair_count() as usize,
            PairInput::File(sealed) => sealed.pair_count() as usize,
        }
    }

    /// A cursor at the first value of a name; `None` if it has none.
    fn first(&self, name: &[u8]) -> Result<Option<ValueCursor<'_>>> {
        match self {
            PairInput::Memory { pairs, order, names } => {
                let Ok(idx) = names.binary_search_by_key(&name, |name| name.0) else {
                    return Ok(None);
                };
                let rest = &order[names[idx].1.clone()];
                Ok((!rest.is_empty()).then_some(ValueCursor::Memory { pairs, rest }))
            }
            PairInput::File(sealed) => {
                let Some(rank) = sealed.names.find(name) else { return Ok(None) };
                let pairs = sealed.names.pairs(rank);
                let walk = sealed.strings.walk(&sealed.blocks, u64::from(pairs.start))?;
                let mut at = ValueCursor::File { walk, end: u64::from(pairs.end) };
                Ok(at.advance()?.then_some(at))
            }
        }
    }
}

impl ValueCursor<'_> {
    fn value(&self) -> &[u8] {
        match self {
            ValueCursor::Memory { pairs, rest } => pairs.bytes_of(rest[0]).1,
            ValueCursor::File { walk, .. } => walk.text(),
        }
    }

    fn pair(&self) -> u32 {
        match self {
            ValueCursor::Memory { rest, .. } => rest[0],
            ValueCursor::File { walk, .. } => walk.next_id() as u32 - 1,
        }
    }

    /// Advances to the next value; returns whether there is one.
    fn advance(&mut self) -> Result<bool> {
        match self {
            ValueCursor::Memory { rest, .. } => {
                *rest = &rest[1..];
                Ok(!rest.is_empty())
            }
            ValueCursor::File { walk, end } => {
                let is_there = walk.next_id() < *end;
                if is_there {
                    walk.advance()?;
                }
                Ok(is_there)
            }
        }
    }
}

fn used_up() -> Error {
    Error::too_large("the index has no free label pair number")
}
