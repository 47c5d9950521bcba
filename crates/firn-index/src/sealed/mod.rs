//! Sealed segments: the compressed index, one immutable file each, answered where it lies.
//!
//! **Shape** (docs/formats/index.md, byte by byte). Every label pair once, sorted, front coded; a pair is its rank. Three
//! tables of rows (`rows`): *lone* series, *parts* (a group's labels: those that decide who joins it and those that all
//! its members share), and *member sets* (what is left of a member's labels, shared by all groups). A part has a *shape*:
//! a list of member sets, shared by groups that are alike, less what the group lacks of it. From each pair a list of rows
//! of each table; from hashes and group ids to rows by `buckets`.
//!
//! **Invariants**: a segment holds each series once. Nothing is loaded at open but names and schemas. A byte is used only
//! after its block's checksum was compared; what cannot be is `Corrupt` with file and offset, and only what needs that
//! block fails. No input makes it panic.
//!
//! Reading order: `blocks`, `footer`, `letters`, `strings`, `names`, `rows`, `buckets`, `shapes`, `hash`; then the reader here,
//! `lookup`, `automaton`, `matching`, `found`, `keys`, `collect`, `listing`, `counts`; then `pair_union`, `builder`,
//! `factor`, `cluster`, `columns`, `write`, `merge`.
//!
//! Sources: `ByteSeries` 3.2 (the compressed inverted index), `TimeUnion` 3.1 (groups, two-level lists).

mod automaton;
mod blocks;
mod buckets;
mod builder;
mod cluster;
mod collect;
mod columns;
mod counts;
mod factor;
mod footer;
mod found;
mod hash;
mod keys;
mod letters;
mod listing;
mod lookup;
mod matching;
mod merge;
mod names;
mod pair_union;
mod rows;
mod shapes;
mod strings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod write;

use firn_codec::bits::{get_bits, packed_bytes};
use firn_codec::postings::Postings;
use firn_env::Mapped;
use firn_model::{Error, Result};

pub(crate) use builder::{Builder, Live, PartInput};
pub(crate) use counts::PairCounts;
pub(crate) use found::SealedFound;
pub(crate) use hash::HashedLabels;
pub(crate) use lookup::Neighbour;
#[cfg(test)]
pub(crate) use lookup::OpenGroup;
pub(crate) use pair_union::PairSource;

use crate::sealed::blocks::{Blocks, Packed, Records};
use crate::sealed::buckets::{Buckets, HashBuckets, IdBuckets};
use crate::sealed::footer::{Contents, ContentsReader, ContentsSize};
use crate::sealed::names::Names;
use crate::sealed::rows::Rows;
use crate::sealed::strings::Strings;

/// An open segment. Nothing is loaded: what is asked for is read from the file, each block verified
/// when it is first touched. Cheap to share in an `Arc`; calls may come from many threads.
///
/// # Errors
/// Every call that reads: `Corrupt` with file and offset when a block is damaged. Other blocks go on.
#[derive(Debug)]
pub(crate) struct Sealed {
    blocks: Blocks,
    names: Names,
    strings: Strings,
    /// By pair, in bunches: its lists of rows.
    lists: Records,
    lone: Table,
    parts: Table,
    /// By part row, in bunches: shape, missing positions, slots.
    part_records: Records,
    sets: Table,
    /// By member set, in bunches: the shapes that have it.
    set_shapes: Records,
    shapes: Records,
    /// The label names that decide who joins a group, each combination once.
    identities: Vec<Vec<u32>>,
    series_count: u64,
    group_count: u64,
    /// Parts that only remember a group's labels and next slot.
    empty_part_count: u64,
}

/// Rows with the ways to them.
#[derive(Debug)]
struct Table {
    rows: Rows,
    /// By the hash of the row's labels; of parts only of those that are identity.
    hashes: HashBuckets,
    /// Group id of each row, less the least; member sets have none.
    ids: Packed,
    by_id: IdBuckets,
}

/// The lists of one pair.
#[derive(Clone, Copy, Debug, Default)]
struct PairLists<'a> {
    lists: [Option<Postings<'a>>; 3],
}

/// The lists of some pairs in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Bunch<'a> {
    rest: &'a [u8],
    /// If each pair has one row and all in one table: that, and how rows are packed: width and the least.
    rows: Option<(Kind, u32, u64)>,
}

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Lone = 0,
    Parts = 1,
    Sets = 2,
}

const KINDS: [Kind; 3] = [Kind::Lone, Kind::Parts, Kind::Sets];
/// Pairs and member sets stand in bunches of so many behind one start.
const BUNCH_LISTS: u64 = 16;
/// The first byte of a bunch of pairs that have one row each, less the number of the table.
const BUNCH_OF_ROWS: u8 = 128;
// series, groups, parts without members, names, pairs; base and shift of the ids of lone series and of parts.
const SIZE: ContentsSize = ContentsSize { counts: 9, sections: 12, arrays: 29 };

impl Sealed {
    /// Reads the footer, the names and the schemas. `name` is for messages.
    pub(crate) fn open(bytes: Mapped, name: &str) -> Result<Sealed> {
        let (blocks, contents) = footer::open(bytes, name, SIZE)?;
        let absurd = || Error::corrupt(name, 0, "the table of contents makes no sense");
        Sealed::from_contents(blocks, &contents, absurd)
    }

    /// One error for each damaged block.
    pub(crate) fn check(&self) -> Vec<Error> {
        self.blocks.check()
    }

    fn from_contents(
        blocks: Blocks,
        contents: &Contents,
        absurd: impl Fn() -> Error,
    ) -> Result<Sealed> {
        let mut next = ContentsReader::new(contents);
        let mut count = || next.count().ok_or_else(&absurd);
        let [series_count, group_count, empty_part_count] = [count()?, count()?, count()?];
        let [name_count, pair_count] = [count()?, count()?];
        let [lone_base, lone_shift, part_base, part_shift] =
            [count()?, count()?, count()?, count()?];
        let names = next.section().ok_or_else(&absurd)?;
        let (names, letters) = Names::parse(blocks.section(names)?, name_count, pair_count)
            .ok_or_else(|| blocks.corrupt(names.start, "the label names make no sense"))?;
        let text = next.records().ok_or_else(&absurd)?;
        let name_count = names.count();
        let lone = Table::open(&blocks, &mut next, name_count, (lone_base, lone_shift));
        let parts = Table::open(&blocks, &mut next, name_count, (part_base, part_shift));
        let sets = Table::open(&blocks, &mut next, name_count, (0, 0));
        let mut records = || next.records().ok_or_else(&absurd);
        let (part_records, set_shapes, shapes) = (records()?, records()?, records()?);
        let lists = records()?;
        // What memory is reserved by is bounded by the file before: each takes a bit at least.
        let most = blocks.file_bytes().saturating_mul(8);
        let rows = [&lone, &parts, &sets].map(|table| table.as_ref().map_or(0, |t| t.rows.count));
        let counts = rows.map(u64::from).into_iter().chain([pair_count, shapes.starts.count]);
        if counts.max().is_some_and(|count| count > most) {
            return Err(absurd());
        }
        let parts = parts?;
        let mut identities: Vec<Vec<u32>> =
            parts.rows.schemas.iter().map(|schema| schema.identity_names().collect()).collect();
        identities.sort_unstable();
        identities.dedup();
        Ok(Sealed {
            blocks,
            names,
            strings: Strings::new(text, pair_count, letters),
            lists,
            lone: lone?,
            parts,
            part_records,
            sets: sets?,
            set_shapes,
            shapes,
            identities,
            series_count,
            group_count,
            empty_part_count,
        })
    }

    pub(crate) fn series_count(&self) -> u64 {
        self.series_count
    }

    /// Groups, lone series included.
    pub(crate) fn group_count(&self) -> u64 {
        self.group_count
    }

    pub(crate) fn name_count(&self) -> u64 {
        self.names.count() as u64
    }

    pub(crate) fn pair_count(&self) -> u64 {
        self.strings.count
    }

    pub(crate) fn member_set_count(&self) -> u64 {
        u64::from(self.sets.rows.count)
    }

    /// Label sets of lone series, of parts and of members, as they are stored.
    pub(crate) fn set_count(&self) -> u64 {
        KINDS.map(|kind| u64::from(self.table(kind).rows.count)).iter().sum()
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.blocks.file_bytes()
    }

    /// What the file's bytes are spent on.
    pub(crate) fn bytes_by_use(&self) -> Vec<(&'static str, u64)> {
        let records = |records: &Records| records.bytes.len as u64 + records.starts.bytes();
        let buckets = |b: &Buckets| b.starts.bytes() + b.tags.bytes() + b.rows.bytes();
        let tables = KINDS.map(|kind| self.table(kind));
        let sum = |of: &dyn Fn(&Table) -> u64| tables.iter().map(|table| of(table)).sum::<u64>();
        let mut uses = vec![
            ("label values", records(&self.strings.text)),
            ("rows of label sets", sum(&|table| records(&table.rows.cells))),
            ("ways by hash", sum(&|table| buckets(&table.hashes.0))),
            ("ways by id", sum(&|table| buckets(&table.by_id.buckets) + table.ids.bytes())),
            ("parts", records(&self.part_records)),
            ("shapes", records(&self.shapes) + records(&self.set_shapes)),
            ("posting lists", records(&self.lists)),
        ];
        let known: u64 = uses.iter().map(|used| used.1).sum();
        uses.push(("names, schemas, checksums", self.file_bytes() - known));
        uses
    }

    /// What it keeps in memory besides the file.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let tables = KINDS.map(|kind| self.table(kind).rows.heap_bytes()).iter().sum::<usize>();
        (self.blocks.heap_bytes() + self.names.heap_bytes() + self.strings.heap_bytes() + tables)
            as u64
    }

    fn table(&self, kind: Kind) -> &Table {
        match kind {
            Kind::Lone => &self.lone,
            Kind::Parts => &self.parts,
            Kind::Sets => &self.sets,
        }
    }

    /// The lists of `pair`.
    fn pair_lists(&self, pair: u32) -> Result<PairLists<'_>> {
        let mut lists = PairLists::default();
        self.each_pair_lists(pair..pair + 1, |_, found| {
            lists = found;
            Ok(())
        })?;
        Ok(lists)
    }

    /// Calls `each` with the lists of each pair of a range.
    fn each_pair_lists<'a>(
        &'a self,
        pairs: std::ops::Range<u32>,
        mut each: impl FnMut(u32, PairLists<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut bunch = Bunch::default();
        let start = u64::from(pairs.start) / BUNCH_LISTS * BUNCH_LISTS;
        for pair in start..u64::from(pairs.end) {
            if pair.is_multiple_of(BUNCH_LISTS) {
                let len = BUNCH_LISTS.min(self.pair_count().saturating_sub(pair));
                let opened = Bunch::open(self.lists.get(&self.blocks, pair / BUNCH_LISTS)?, len);
                bunch = opened.ok_or_else(|| self.lists.bad(&self.blocks))?;
            }
            let lists = bunch.take(pair % BUNCH_LISTS);
            let lists = lists.ok_or_else(|| self.lists.bad(&self.blocks))?;
            if pair >= u64::from(pairs.start) {
                each(pair as u32, lists)?;
            }
        }
        Ok(())
    }

    /// The shapes that have a member set.
    fn shapes_of_set(&self, set: u32) -> Result<Postings<'_>> {
        let mut rest = self.set_shapes.get(&self.blocks, u64::from(set) / BUNCH_LISTS)?;
        let bad = |_| self.set_shapes.bad(&self.blocks);
        for _ in 0..u64::from(set) % BUNCH_LISTS {
            Postings::take(&mut rest).map_err(bad)?;
        }
        Postings::take(&mut rest).map_err(bad)
    }
}

impl Table {
    fn open(
        blocks: &Blocks,
        next: &mut ContentsReader<'_>,
        name_count: usize,
        (base, shift): (u64, u64),
    ) -> Result<Table> {
        let mut taken = || {
            let (schemas, cells) = (next.section()?, next.records()?);
            let mut buckets = || {
                Some(Buckets { starts: next.array()?, tags: next.array()?, rows: next.array()? })
            };
            let (hashes, by_id) = (HashBuckets(buckets()?), buckets()?);
            let shift = u32::try_from(shift).ok().filter(|shift| *shift < 64)?;
            Some((schemas, cells, hashes, IdBuckets { buckets: by_id, base, shift }, next.array()?))
        };
        let taken = taken();
        let (schemas, cells, hashes, by_id, ids) =
            taken.ok_or_else(|| blocks.corrupt(0, "the table of contents makes no sense"))?;
        let rows = Rows::open(blocks, schemas, cells, name_count)?;
        Ok(Table { rows, hashes, ids, by_id })
    }
}

impl<'a> Bunch<'a> {
    fn open(bytes: &'a [u8], len: u64) -> Option<Bunch<'a>> {
        let kind = match *bytes {
            [head, ..] if head >= BUNCH_OF_ROWS => KINDS.get(usize::from(head - BUNCH_OF_ROWS))?,
            _ => return Some(Bunch { rest: bytes, rows: None }),
        };
        let (&width, mut rest) = bytes.get(1..)?.split_first()?;
        let width = Some(u32::from(width)).filter(|width| *width <= 32)?;
        let least = strings::take_varint(&mut rest)?;
        let packed = rest.get(..packed_bytes(len as usize, width))?;
        Some(Bunch { rest: packed, rows: Some((*kind, width, least)) })
    }

    /// The lists of the pair at a place; places rise one by one.
    fn take(&mut self, at: u64) -> Option<PairLists<'a>> {
        let mut lists = PairLists::default();
        if let Some((kind, width, least)) = self.rows {
            let row =
                least.checked_add(get_bits(self.rest, (at * u64::from(width)) as usize, width));
            lists.lists[kind as usize] = Some(Postings::one(row?));
            return Some(lists);
        }
        let (&flags, after) = self.rest.split_first()?;
        self.rest = after;
        for kind in KINDS {
            if flags & (1 << kind as u8) != 0 {
                lists.lists[kind as usize] = Some(Postings::take(&mut self.rest).ok()?);
            }
        }
        Some(lists)
    }
}

impl<'a> PairLists<'a> {
    fn of(&self, kind: Kind) -> Option<Postings<'a>> {
        self.lists[kind as usize]
    }
}
