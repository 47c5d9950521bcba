//! An open segment file.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::sync::Arc;

use firn_codec::postings::Postings;
use firn_env::Mapped;
use firn_model::{Error, Result};

use crate::pair::name_mask;
use crate::sealed::format::blocks::{Blocks, DoubledSections, PackedArray, Records, Section};
use crate::sealed::format::buckets::{Buckets, HashBuckets, IdBuckets};
use crate::sealed::format::footer::{self, Contents, ContentsReader, SEGMENT_CONTENTS};
use crate::sealed::format::lists::{
    BUNCH_LISTS, PairPostings, PostingBunch, TABLE_KINDS, TableKind,
};
use crate::sealed::format::names::Names;
use crate::sealed::format::rows::{Rows, Schema};
use crate::sealed::format::strings::Strings;

/// An open segment file. Blocks are read in place and verified at their first use. Cheap to share
/// in an `Arc`; may be used by many threads.
///
/// # Errors
/// Every call that reads: `Corrupt` with file and offset if it needs a damaged block. Other calls
/// succeed.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) blocks: Blocks,
    pub(crate) names: Names,
    pub(crate) strings: Strings,
    /// By pair, in bunches: its posting lists.
    pub(crate) lists: Records,
    pub(crate) lone: Table,
    pub(crate) parts: Table,
    /// By part row, in bunches: shape, missing positions, slots.
    pub(crate) part_records: Records,
    pub(crate) sets: Table,
    /// By member set, in bunches: the shapes that contain it.
    pub(crate) set_shapes: Records,
    pub(crate) shapes: Records,
    /// The distinct combinations of identity label names.
    pub(crate) identities: Vec<Box<[u32]>>,
    /// [`name_mask`] of each.
    pub(crate) identity_masks: Vec<u64>,
    pub(crate) series_count: u64,
    pub(crate) group_count: u64,
}

/// Rows, and maps to them.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) rows: Rows,
    /// By the hash of the row's labels; of parts by their identity labels.
    pub(crate) hashes: HashBuckets,
    /// The group id of each row, less the least; empty for member sets.
    pub(crate) ids: PackedArray,
    pub(crate) by_id: IdBuckets,
}

impl Sealed {
    /// Reads the footer, the names and the schemas. `name` is for messages.
    ///
    /// # Errors
    /// `Corrupt` if one of them is damaged; `Invalid` for another version.
    pub(crate) fn open(bytes: Mapped, name: &str) -> Result<Sealed> {
        let (blocks, contents) = footer::open(bytes, name, SEGMENT_CONTENTS)?;
        let absurd = || Error::corrupt(name, 0, "the table of contents is malformed");
        Sealed::from_contents(blocks, &contents, absurd)
    }

    /// As [`Sealed::open`], with damaged blocks taken from `copy`, as [`Sealed::mended`].
    pub(crate) fn open_mended(
        bytes: Mapped,
        name: &str,
        copy: &dyn Fn(u64, u64) -> Option<Arc<[u8]>>,
    ) -> Result<Sealed> {
        let (blocks, _) = footer::open(bytes, name, SEGMENT_CONTENTS)?;
        Sealed::open(Mapped::from(blocks.mended(copy)), name)
    }

    /// One error for each damaged block, with the uses of its bytes.
    pub(crate) fn check(&self) -> Vec<Error> {
        let regions = self.regions();
        let named = |(range, error): (std::ops::Range<usize>, Error)| {
            let here = |region: &&(&str, Section)| {
                let end = region.1.start.saturating_add(region.1.len);
                region.1.start < range.end && range.start < end
            };
            let mut names: Vec<&str> = regions.iter().filter(here).map(|region| region.0).collect();
            names.sort_unstable();
            names.dedup();
            if names.is_empty() { error } else { error.context(names.join(", ")) }
        };
        self.blocks.check().into_iter().map(named).collect()
    }

    /// This segment with each damaged block replaced by that of `copy` (called with offset and
    /// length) if it has one. Holds the whole file in memory.
    ///
    /// # Errors
    /// As [`Sealed::open`].
    pub(crate) fn mended(&self, copy: &dyn Fn(u64, u64) -> Option<Arc<[u8]>>) -> Result<Sealed> {
        Sealed::open(Mapped::from(self.blocks.mended(copy)), self.blocks.file())
    }

    /// All bytes of the file, verified or not.
    pub(crate) fn file_contents(&self) -> &[u8] {
        self.blocks.file_contents()
    }

    fn from_contents(
        blocks: Blocks,
        contents: &Contents,
        absurd: impl Fn() -> Error,
    ) -> Result<Sealed> {
        let mut next = ContentsReader::new(contents);
        let mut count = || next.count().ok_or_else(&absurd);
        // The third counts parts without members.
        let [series_count, group_count, _] = [count()?, count()?, count()?];
        let [name_count, pair_count] = [count()?, count()?];
        let [lone_base, lone_shift, part_base, part_shift] =
            [count()?, count()?, count()?, count()?];
        let again = contents.sections.last().copied().unwrap_or_default();
        let mut heads = DoubledSections::new(&blocks, again);
        let names = next.section().ok_or_else(&absurd)?;
        let (names, letters) = Names::parse(heads.next(names)?, name_count, pair_count)
            .ok_or_else(|| blocks.corrupt(names.start, "the label names are malformed"))?;
        let mut schemas = || -> Result<Vec<Schema>> {
            let section = next.section().ok_or_else(&absurd)?;
            Schema::parse(heads.next(section)?, names.count() as u64)
                .ok_or_else(|| blocks.corrupt(section.start, "the schemas are malformed"))
        };
        let [of_lone, of_parts, of_sets] = [schemas()?, schemas()?, schemas()?];
        let text = next.records().ok_or_else(&absurd)?;
        let mut table =
            |schemas, base_shift| Table::open(&mut next, schemas, base_shift).ok_or_else(&absurd);
        let lone = table(of_lone, (lone_base, lone_shift))?;
        let parts = table(of_parts, (part_base, part_shift))?;
        let sets = table(of_sets, (0, 0))?;
        let mut records = || next.records().ok_or_else(&absurd);
        let (part_records, set_shapes, shapes) = (records()?, records()?, records()?);
        let lists = records()?;
        // Counts that determine allocations are bounded by the file: each entry takes at least one
        // bit.
        let most = blocks.file_bytes().saturating_mul(8);
        let rows = [&lone, &parts, &sets].map(|table| table.rows.count);
        let counts = rows.map(u64::from).into_iter().chain([pair_count, shapes.starts.count]);
        if counts.max().is_some_and(|count| count > most) {
            return Err(absurd());
        }
        // Pairs with the assertions of the writer.
        let has_ids = |table: &Table| {
            let row_count = u64::from(table.rows.count);
            table.ids.count == row_count && table.by_id.buckets.rows.count == row_count
        };
        let has_hashes = |table: &Table| table.hashes.0.rows.count == u64::from(table.rows.count);
        let is_complete = has_ids(&lone) && has_ids(&parts);
        if !is_complete || ![&lone, &parts, &sets].into_iter().all(has_hashes) {
            return Err(absurd());
        }
        let mut identities: Vec<Box<[u32]>> =
            parts.rows.schemas.iter().map(|schema| schema.identity_names().collect()).collect();
        identities.sort_unstable();
        identities.dedup();
        identities.shrink_to_fit();
        let identity_masks =
            identities.iter().map(|names| name_mask(names.iter().copied())).collect();
        Ok(Sealed {
            blocks,
            names,
            strings: Strings::new(text, pair_count, letters),
            lists,
            lone,
            parts,
            part_records,
            sets,
            set_shapes,
            shapes,
            identities,
            identity_masks,
            series_count,
            group_count,
        })
    }

    pub(crate) fn series_count(&self) -> u64 {
        self.series_count
    }

    /// Groups, including lone series.
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

    /// Stored label sets: of lone series, parts and members.
    pub(crate) fn set_count(&self) -> u64 {
        TABLE_KINDS.map(|kind| u64::from(self.table(kind).rows.count)).iter().sum()
    }

    /// The labels of all stored label sets.
    pub(crate) fn label_count(&self) -> u64 {
        TABLE_KINDS.map(|kind| self.table(kind).rows.label_count()).iter().sum()
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.blocks.file_bytes()
    }

    /// The file's bytes by their use.
    pub(crate) fn bytes_by_use(&self) -> Vec<(&'static str, u64)> {
        let mut uses: Vec<(&'static str, u64)> = Vec::new();
        for (what, section) in self.regions() {
            match uses.iter_mut().find(|used| used.0 == what) {
                Some(used) => used.1 = used.1.saturating_add(section.len as u64),
                None => uses.push((what, section.len as u64)),
            }
        }
        let known: u64 = uses.iter().map(|used| used.1).sum();
        uses.push(("names, schemas, checksums", self.file_bytes().saturating_sub(known)));
        uses
    }

    /// The regions of the file with their use, except those that are read at open.
    fn regions(&self) -> Vec<(&'static str, Section)> {
        let array = |array: &PackedArray| Section {
            start: array.start,
            len: usize::try_from(array.bytes()).unwrap_or(usize::MAX),
        };
        let mut regions = Vec::new();
        let mut add = |what, section| regions.push((what, section));
        let mut records = |what, records: &Records| {
            add(what, records.bytes);
            add(what, array(&records.starts));
        };
        records("label values", &self.strings.text);
        TABLE_KINDS.iter().for_each(|kind| {
            records("rows of label sets", &self.table(*kind).rows.cells);
        });
        records("parts", &self.part_records);
        records("shapes", &self.shapes);
        records("shapes", &self.set_shapes);
        records("posting lists", &self.lists);
        for table in TABLE_KINDS.map(|kind| self.table(kind)) {
            let Buckets { starts, tags, rows } = &table.hashes.0;
            [starts, tags, rows].into_iter().for_each(|part| add("buckets by hash", array(part)));
            let Buckets { starts, tags, rows } = &table.by_id.buckets;
            let by_id = [starts, tags, rows, &table.ids];
            by_id.into_iter().for_each(|part| add("buckets by id", array(part)));
        }
        regions
    }

    /// Memory besides the mapped file.
    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    pub(crate) fn heap_bytes(&self) -> u64 {
        let tables =
            TABLE_KINDS.map(|kind| self.table(kind).rows.heap_bytes()).iter().sum::<usize>();
        let of_names = |names: &[u32]| size_of::<(Box<[u32]>, u64)>() + size_of_val(names);
        let identities: usize = self.identities.iter().map(|names| of_names(names)).sum();
        let texts = self.names.heap_bytes() + self.strings.heap_bytes();
        (self.blocks.heap_bytes() + texts + tables + identities) as u64
    }

    pub(crate) fn table(&self, kind: TableKind) -> &Table {
        match kind {
            TableKind::Lone => &self.lone,
            TableKind::Parts => &self.parts,
            TableKind::MemberSets => &self.sets,
        }
    }

    /// The posting lists of `pair`.
    pub(crate) fn pair_lists(&self, pair: u32) -> Result<PairPostings<'_>> {
        let mut lists = PairPostings::default();
        self.each_pair_lists(pair..pair.saturating_add(1), |_, found| {
            lists = found;
            Ok(())
        })?;
        Ok(lists)
    }

    /// Calls `each` with the posting lists of each pair of a range.
    pub(crate) fn each_pair_lists<'a>(
        &'a self,
        pairs: std::ops::Range<u32>,
        mut each: impl FnMut(u32, PairPostings<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut bunch = PostingBunch::default();
        let start = (u64::from(pairs.start) / BUNCH_LISTS).saturating_mul(BUNCH_LISTS);
        for pair in start..u64::from(pairs.end) {
            if pair.is_multiple_of(BUNCH_LISTS) {
                let len = BUNCH_LISTS.min(self.pair_count().saturating_sub(pair));
                let opened =
                    PostingBunch::open(self.lists.get(&self.blocks, pair / BUNCH_LISTS)?, len);
                bunch = opened.ok_or_else(|| self.lists.bad(&self.blocks))?;
            }
            let lists = bunch.take(pair % BUNCH_LISTS);
            let lists = lists.ok_or_else(|| self.lists.bad(&self.blocks))?;
            if let Ok(pair) = u32::try_from(pair)
                && pair >= pairs.start
            {
                each(pair, lists)?;
            }
        }
        Ok(())
    }

    /// The shapes that contain a member set.
    pub(crate) fn shapes_of_set(&self, set: u32) -> Result<Postings<'_>> {
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
        next: &mut ContentsReader<'_>,
        schemas: Vec<Schema>,
        (base, shift): (u64, u64),
    ) -> Option<Table> {
        let cells = next.records()?;
        let mut buckets =
            || Some(Buckets { starts: next.array()?, tags: next.array()?, rows: next.array()? });
        let (hashes, buckets) = (HashBuckets(buckets()?), buckets()?);
        let shift = u32::try_from(shift).ok().filter(|shift| *shift < 64)?;
        let by_id = IdBuckets { buckets, base, shift };
        Some(Table { rows: Rows::new(schemas, cells), hashes, ids: next.array()?, by_id })
    }
}
