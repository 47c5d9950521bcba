//! From a label set to its series, and from a series to its labels.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, GroupId, Labels, Result, SeriesRef, Slot};

use hashbrown::HashMap;

use crate::pair::{RawPair, name_mask};
use crate::sealed::format::hash::HashedLabels;
use crate::sealed::format::lists::{TABLE_KINDS, TableKind};
use crate::sealed::format::rows::{RowReader, Schema};
use crate::sealed::format::shapes::{PartRecord, Shape};
use crate::sealed::read::segment::Sealed;

/// A group that takes new members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenGroup {
    pub(crate) group: GroupId,
    /// The first slot that was never issued.
    pub(crate) next_slot: u32,
    /// Members in this segment.
    pub(crate) live_count: u32,
}

/// A series found by its label set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocatedSeries {
    pub(crate) series: SeriesRef,
    /// Part row and member set; `None` for a lone series.
    member: Option<(u32, u32)>,
}

/// The part of the last hit, and known member sets. Consecutive label sets are usually members of
/// one group, and the members of the next group have the same sets.
#[derive(Debug)]
pub(crate) struct PartHint<'s, 'l> {
    group: GroupId,
    row: u32,
    part: PartRecord<'s>,
    shape: Shape<'s>,
    /// The part's labels, encoded as in the last label set, in order of names; and the sum of their
    /// hashes.
    pairs: Vec<&'l [u8]>,
    hash: u64,
    /// Member sets by the hash of their labels, with these labels, encoded.
    sets: HashMap<u64, (Vec<&'l [u8]>, u32)>,
}

/// The member set of the wanted series, if it is in a part of this schema.
#[derive(Clone, Copy, Debug)]
struct MemberSetLookup {
    schema_idx: usize,
    /// `None` if no member set has these labels.
    set: Option<u32>,
}

// The usual maximum of members of a group.
const SETS_REMEMBERED_MAX: usize = 4_096;
/// More lists of names that identify groups are compared with the names of a label set first. A
/// client may define groups with any number of such lists.
const IDENTITIES_TRIED_MAX: usize = 8;

impl<'l> PartHint<'_, 'l> {
    /// Remembers the member set of a label set that was found in the part.
    pub(crate) fn learn(&mut self, labels: &HashedLabels<'l>, found: LocatedSeries) {
        let Some((_, set)) = found.member else { return };
        if self.sets.len() >= SETS_REMEMBERED_MAX {
            self.sets.clear();
        }
        let mut pairs = self.pairs.iter().peekable();
        let own = labels.pairs().iter().map(|pair| pair.0.encoded);
        let own = own.filter(|encoded| pairs.next_if(|known| *known == encoded).is_none());
        self.sets.insert(labels.hash().wrapping_sub(self.hash), (own.collect(), set));
    }

    fn slot(&self, set: u32) -> Option<Slot> {
        self.part.slot(self.part.rank_of(self.shape.position(set)?)?).map(Slot)
    }

    /// The series with these labels, if it is a member of the same part and its member set is
    /// known. Reads no text of the file: earlier lookups compared the remembered labels with it.
    pub(crate) fn find(&self, labels: &HashedLabels<'_>) -> Option<SeriesRef> {
        let (own, set) = self.sets.get(&labels.hash().wrapping_sub(self.hash))?;
        let (mut pairs, mut own) = (self.pairs.iter().peekable(), own.iter().peekable());
        let is_known = |pair: &(RawPair<'_>, u64)| {
            let is_it = |known: &&&[u8]| **known == pair.0.encoded;
            pairs.next_if(is_it).is_some() || own.next_if(is_it).is_some()
        };
        let is_same = labels.pairs().iter().all(is_known);
        if !is_same || pairs.next().is_some() || own.next().is_some() {
            return None;
        }
        Some(SeriesRef { group: self.group, slot: self.slot(*set)? })
    }
}

impl Sealed {
    /// The series with exactly these labels. Hashes select the rows; texts confirm the match.
    pub(crate) fn find(&self, labels: &HashedLabels<'_>) -> Result<Option<LocatedSeries>> {
        if let Some(series) = self.find_lone(labels)? {
            return Ok(Some(LocatedSeries { series, member: None }));
        }
        for identity in self.identities_of(labels) {
            let Some(hash) = self.hash_of_names(labels, identity) else { continue };
            if let Some(found) = self.find_member(labels, identity, hash)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The identities whose names may all be among those of `labels`.
    pub(crate) fn identities_of(&self, labels: &HashedLabels<'_>) -> impl Iterator<Item = &[u32]> {
        let own = match self.identities.len() {
            0..=IDENTITIES_TRIED_MAX => u64::MAX,
            _ => {
                let names = labels.pairs().iter().filter_map(|pair| self.names.find(pair.0.name));
                name_mask(names)
            }
        };
        let is_possible = move |(_, mask): &(_, &u64)| **mask & !own == 0;
        let possible = self.identities.iter().zip(&self.identity_masks).filter(is_possible);
        possible.map(|(identity, _)| &**identity)
    }

    /// Remembers the part of a hit; keeps the member sets that `before` knows.
    pub(crate) fn neighbour<'s, 'l>(
        &'s self,
        labels: &HashedLabels<'l>,
        found: LocatedSeries,
        before: Option<PartHint<'s, 'l>>,
    ) -> Result<Option<PartHint<'s, 'l>>> {
        let Some((row, _)) = found.member else { return Ok(before) };
        let before = match before {
            Some(mut same) if same.row == row => {
                same.learn(labels, found);
                return Ok(Some(same));
            }
            before => before,
        };
        let schema_idx = self.parts.rows.schema_of(row).ok_or_else(|| self.bad_part())?;
        let schema = self.parts.rows.schemas.get(schema_idx);
        let names = &schema.ok_or_else(|| self.bad_part())?.names;
        let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
        let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
        let sets = before.map_or_else(HashMap::new, |before| before.sets);
        let (mut pairs, mut hash) = (Vec::new(), 0u64);
        let mut names = names.iter().map(|&name| self.names.text(name)).peekable();
        for (pair, pair_hash) in labels.pairs() {
            if names.next_if_eq(&pair.name).is_some() {
                pairs.push(pair.encoded);
                hash = hash.wrapping_add(*pair_hash);
            }
        }
        let group = found.series.group;
        let mut neighbour = PartHint { group, row, part, shape, pairs, hash, sets };
        neighbour.learn(labels, found);
        Ok(Some(neighbour))
    }

    /// The series with these labels, if it is a member of the same part. Reads only the text of its
    /// member set.
    pub(crate) fn find_beside(
        &self,
        neighbour: &PartHint<'_, '_>,
        labels: &HashedLabels<'_>,
    ) -> Result<Option<LocatedSeries>> {
        let mut pairs = neighbour.pairs.iter().peekable();
        for (pair, _) in labels.pairs() {
            pairs.next_if(|known| **known == pair.encoded);
        }
        if pairs.next().is_some() {
            return Ok(None);
        }
        let row = neighbour.row;
        let schema_idx = self.parts.rows.schema_of(row).ok_or_else(|| self.bad_part())?;
        let schema = self.parts.rows.schemas.get(schema_idx);
        let set = self.find_set(labels, schema.ok_or_else(|| self.bad_part())?)?;
        let place = set.and_then(|set| Some((set, neighbour.slot(set)?)));
        Ok(place.map(|(set, slot)| LocatedSeries {
            series: SeriesRef { group: neighbour.group, slot },
            member: Some((row, set)),
        }))
    }

    fn find_lone(&self, labels: &HashedLabels<'_>) -> Result<Option<SeriesRef>> {
        let pairs = labels.pairs().iter().map(|pair| &pair.0);
        let mut rows = self.candidates(TableKind::Lone, labels.hash(), pairs)?;
        while let Some(row) = rows.next(&self.blocks)? {
            let mut reader = self.lone.rows.reader(&self.blocks);
            let schema = reader.load(row)?;
            if schema.names.len() == labels.pairs().len()
                && self.row_is(&mut reader, row, schema, labels, |_| true)?
            {
                return Ok(Some(SeriesRef {
                    group: self.group_of(TableKind::Lone, row)?,
                    slot: Slot(0),
                }));
            }
        }
        Ok(None)
    }

    fn find_member(
        &self,
        labels: &HashedLabels<'_>,
        identity: &[u32],
        hash: u64,
    ) -> Result<Option<LocatedSeries>> {
        let mut known: Vec<MemberSetLookup> = Vec::new();
        let mut reader = self.parts.rows.reader(&self.blocks);
        let is_identity = |pair: &&RawPair<'_>| {
            self.names.find(pair.name).is_some_and(|name| identity.binary_search(&name).is_ok())
        };
        let pairs = labels.pairs().iter().map(|pair| &pair.0).filter(is_identity);
        let mut rows = self.candidates(TableKind::Parts, hash, pairs)?;
        while let Some(row) = rows.next(&self.blocks)? {
            // The cheapest checks first: a group may have many siblings.
            let schema_idx = self.parts.rows.schema_of(row).ok_or_else(|| self.bad_part())?;
            let schema = self.parts.rows.schemas.get(schema_idx);
            let schema = schema.ok_or_else(|| self.bad_part())?;
            let rest = match known.iter().find(|rest| rest.schema_idx == schema_idx) {
                Some(rest) => *rest,
                None => {
                    let is_it = schema.identity_names().eq(identity.iter().copied());
                    let set = if is_it { self.find_set(labels, schema)? } else { None };
                    known.push(MemberSetLookup { schema_idx, set });
                    MemberSetLookup { schema_idx, set }
                }
            };
            let Some(set) = rest.set else { continue };
            let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
            let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
            let Some(position) = shape.position(set) else { continue };
            let Some(rank) = part.rank_of(position) else { continue };
            reader.load(row)?;
            if self.row_is(&mut reader, row, schema, labels, |_| true)? {
                let slot = part.slot(rank).ok_or_else(|| self.bad_part())?;
                let series =
                    SeriesRef { group: self.group_of(TableKind::Parts, row)?, slot: Slot(slot) };
                return Ok(Some(LocatedSeries { series, member: Some((row, set)) }));
            }
        }
        Ok(None)
    }

    /// The member set with the labels of `labels` that `schema` does not name; `None` also if
    /// `labels` lacks a name of the schema.
    fn find_set(&self, labels: &HashedLabels<'_>, schema: &Schema) -> Result<Option<u32>> {
        let Some(hash) = self.hash_of_names(labels, &schema.names) else { return Ok(None) };
        let rest_count = labels.pairs().len().saturating_sub(schema.names.len());
        let is_of_member = |pair: &&RawPair<'_>| {
            let name = self.names.find(pair.name);
            name.is_none_or(|name| schema.names.binary_search(&name).is_err())
        };
        let pairs = labels.pairs().iter().map(|pair| &pair.0).filter(is_of_member);
        let hash = labels.hash().wrapping_sub(hash);
        let mut rows = self.candidates(TableKind::MemberSets, hash, pairs)?;
        while let Some(row) = rows.next(&self.blocks)? {
            let mut reader = self.sets.rows.reader(&self.blocks);
            let set_schema = reader.load(row)?;
            let is_apart =
                set_schema.names.iter().all(|name| schema.names.binary_search(name).is_err());
            if set_schema.names.len() == rest_count
                && is_apart
                && self.row_is(&mut reader, row, set_schema, labels, |_| true)?
            {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The newest group with exactly these identity labels; never a lone series.
    pub(crate) fn find_open_group(&self, identity: &HashedLabels<'_>) -> Result<Option<OpenGroup>> {
        let mut open: Option<OpenGroup> = None;
        self.each_part_of_identity(identity, |group, member_count, next_slot| match &mut open {
            Some(open) if open.group > group => {}
            Some(open) if open.group == group => {
                open.live_count = open.live_count.saturating_add(member_count);
                open.next_slot = open.next_slot.max(next_slot);
            }
            _ => open = Some(OpenGroup { group, next_slot, live_count: member_count }),
        })?;
        Ok(open)
    }

    /// Members of all groups with exactly these identity labels, without lone series.
    pub(crate) fn group_series_count(&self, identity: &HashedLabels<'_>) -> Result<u64> {
        let mut count = 0u64;
        self.each_part_of_identity(identity, |_, member_count, _| {
            count = count.saturating_add(u64::from(member_count));
        })?;
        Ok(count)
    }

    /// Calls `each` with group, member count and next slot of every part with this identity.
    fn each_part_of_identity(
        &self,
        identity: &HashedLabels<'_>,
        mut each: impl FnMut(GroupId, u32, u32),
    ) -> Result<()> {
        let mut reader = self.parts.rows.reader(&self.blocks);
        let pairs = identity.pairs().iter().map(|pair| &pair.0);
        let mut rows = self.candidates(TableKind::Parts, identity.hash(), pairs)?;
        while let Some(row) = rows.next(&self.blocks)? {
            let schema = reader.load(row)?;
            let is_identity = |column_idx: usize| schema.is_identity(column_idx);
            if schema.identity_names().count() == identity.pairs().len()
                && self.row_is(&mut reader, row, schema, identity, is_identity)?
            {
                let (part, member_count) = self.part(row)?;
                let next_slot = part.next_slot(member_count).ok_or_else(|| self.bad_part())?;
                each(self.group_of(TableKind::Parts, row)?, member_count, next_slot);
            }
        }
        Ok(())
    }

    /// The first slot of `group` that was never issued; `None` if the group is not here. 1 for a
    /// lone series.
    pub(crate) fn next_slot(&self, group: GroupId) -> Result<Option<u32>> {
        if self.lone_row(group)?.is_some() {
            return Ok(Some(1));
        }
        let mut highest = None;
        let mut rows = self.parts.by_id.rows(&self.blocks, group.0)?;
        while let Some(row) = rows.next(&self.blocks)? {
            let (part, member_count) = self.part(row)?;
            highest =
                highest.max(Some(part.next_slot(member_count).ok_or_else(|| self.bad_part())?));
        }
        Ok(highest)
    }

    /// The identity labels of a group (of a lone series: all labels), and whether it is lone.
    pub(crate) fn group_labels(&self, group: GroupId) -> Result<Option<(Labels, bool)>> {
        if let Some(row) = self.lone_row(group)? {
            let pairs =
                self.row_pairs(&mut self.lone.rows.reader(&self.blocks), row, |_, _| true)?;
            return Ok(Some((self.labels_of_pairs(&pairs)?, true)));
        }
        let Some(row) = self.parts.by_id.rows(&self.blocks, group.0)?.next(&self.blocks)? else {
            return Ok(None);
        };
        let mut reader = self.parts.rows.reader(&self.blocks);
        let pairs = self.row_pairs(&mut reader, row, |schema, idx| schema.is_identity(idx))?;
        Ok(Some((self.labels_of_pairs(&pairs)?, false)))
    }

    /// All labels of a series.
    pub(crate) fn labels(&self, series: SeriesRef) -> Result<Option<Labels>> {
        LabelReader::new(self).labels(series)
    }

    pub(crate) fn contains(&self, series: SeriesRef) -> Result<bool> {
        if self.lone_row(series.group)?.is_some() {
            return Ok(series.slot.0 == 0);
        }
        Ok(self.member(series)?.is_some())
    }

    /// Part row and member set of a series; `None` for a lone series.
    pub(crate) fn member(&self, series: SeriesRef) -> Result<Option<(u32, u32)>> {
        let mut rows = self.parts.by_id.rows(&self.blocks, series.group.0)?;
        while let Some(row) = rows.next(&self.blocks)? {
            let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
            let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
            let member_count = part.member_count(shape.len);
            let Some(rank) = part.rank_of_slot(series.slot.0, member_count) else { continue };
            let position = part.position_of(rank).filter(|&position| position < shape.len);
            let position = position.ok_or_else(|| self.bad_part())?;
            return Ok(Some((row, shape.set(position))));
        }
        Ok(None)
    }

    pub(crate) fn lone_row(&self, group: GroupId) -> Result<Option<u32>> {
        self.lone.by_id.rows(&self.blocks, group.0)?.next(&self.blocks)
    }

    /// A part with its member count.
    pub(crate) fn part(&self, row: u32) -> Result<(PartRecord<'_>, u32)> {
        let part = PartRecord::read(&self.blocks, &self.part_records, row)?;
        let shape = Shape::read(&self.blocks, &self.shapes, part.shape)?;
        Ok((part, part.member_count(shape.len)))
    }

    pub(crate) fn group_of(&self, kind: TableKind, row: u32) -> Result<GroupId> {
        let table = self.table(kind);
        let distance = self.blocks.get(&table.ids, u64::from(row))?;
        Ok(GroupId(table.by_id.base.wrapping_add(distance)))
    }

    /// The pairs of a row in the columns that `keep` selects, ascending.
    pub(crate) fn row_pairs(
        &self,
        reader: &mut RowReader<'_>,
        row: u32,
        keep: impl Fn(&Schema, usize) -> bool,
    ) -> Result<Vec<u32>> {
        let mut pairs = Vec::new();
        self.push_row_pairs(reader, row, keep, &mut pairs)?;
        Ok(pairs)
    }

    fn push_row_pairs(
        &self,
        reader: &mut RowReader<'_>,
        row: u32,
        keep: impl Fn(&Schema, usize) -> bool,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let schema = reader.load(row)?;
        for (column_idx, &name) in schema.names.iter().enumerate() {
            if keep(schema, column_idx) {
                out.push(self.pair_at(name, reader.rank(row, column_idx)?)?);
            }
        }
        Ok(())
    }

    /// The pair of a name and a value rank.
    #[inline]
    pub(crate) fn pair_at(&self, name: u32, rank: u32) -> Result<u32> {
        let pairs = self.names.pairs(name);
        let pair = pairs.start.checked_add(rank).filter(|pair| *pair < pairs.end);
        pair.ok_or_else(|| {
            self.blocks.corrupt(
                0,
                "a row has a value rank that its label name lacks: run `firn check --repair`",
            )
        })
    }

    /// The label set of ascending pairs.
    pub(crate) fn labels_of_pairs(&self, pairs: &[u32]) -> Result<Labels> {
        let (mut texts, mut value) = (Vec::with_capacity(pairs.len()), Vec::new());
        for &pair in pairs {
            self.strings.get(&self.blocks, u64::from(pair), &mut value)?;
            texts.push(value.clone());
        }
        let names = pairs.iter().map(|&pair| self.names.text(self.names.of_pair(pair)));
        Ok(Labels::from_sorted(names.zip(texts.iter().map(Vec::as_slice))))
    }

    /// The hash of the labels with `names`; `None` if one of them is missing.
    fn hash_of_names(&self, labels: &HashedLabels<'_>, names: &[u32]) -> Option<u64> {
        let mut pairs = labels.pairs().iter();
        names.iter().try_fold(0u64, |sum, &name| {
            let text = self.names.text(name);
            // Both lists ascend, so skipped pairs are not needed again.
            let (_, hash) = pairs.find(|pair| pair.0.name == text)?;
            Some(sum.wrapping_add(*hash))
        })
    }

    /// Whether the row has the same values as `labels` in the columns that `keep` selects.
    fn row_is(
        &self,
        reader: &mut RowReader<'_>,
        row: u32,
        schema: &Schema,
        labels: &HashedLabels<'_>,
        keep: impl Fn(usize) -> bool,
    ) -> Result<bool> {
        let mut pairs = labels.pairs().iter();
        for (column_idx, &name) in schema.names.iter().enumerate().filter(|column| keep(column.0)) {
            let text = self.names.text(name);
            let found = pairs.find(|pair: &&(RawPair<'_>, u64)| pair.0.name == text);
            let Some((wanted, _)) = found else { return Ok(false) };
            let pair = self.pair_at(name, reader.rank(row, column_idx)?)?;
            if !self.strings.is(&self.blocks, u64::from(pair), wanted.value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    #[cold]
    pub(crate) fn text_of(&self, bytes: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
        text.ok_or_else(|| self.bad_text())
    }

    #[cold]
    pub(crate) fn bad_text(&self) -> Error {
        self.blocks.corrupt(
            self.strings.text.bytes.start,
            "a label is invalid UTF-8: run `firn check --repair`",
        )
    }

    pub(crate) fn bad_part(&self) -> Error {
        self.part_records.bad(&self.blocks)
    }
}

/// Reads the labels of many series. Keeps texts, which series share.
#[derive(Debug)]
pub(crate) struct LabelReader<'a> {
    sealed: &'a Sealed,
    lone: RowReader<'a>,
    parts: RowReader<'a>,
    sets: RowReader<'a>,
    pairs: Vec<u32>,
    /// By pair, the end of its text in `texts` and its length.
    places: HashMap<u32, (usize, usize)>,
    texts: Vec<u8>,
    value: Vec<u8>,
}

// Some megabytes of text.
const TEXTS_MAX: usize = 32_768;

impl<'a> LabelReader<'a> {
    pub(crate) fn new(sealed: &'a Sealed) -> LabelReader<'a> {
        let [lone, parts, sets] =
            TABLE_KINDS.map(|kind| sealed.table(kind).rows.reader(&sealed.blocks));
        let (pairs, places, texts, value) = Default::default();
        LabelReader { sealed, lone, parts, sets, pairs, places, texts, value }
    }

    /// All labels of a series.
    pub(crate) fn labels(&mut self, series: SeriesRef) -> Result<Option<Labels>> {
        let sealed = self.sealed;
        self.pairs.clear();
        if let Some(row) = sealed.lone_row(series.group)? {
            if series.slot.0 != 0 {
                return Ok(None);
            }
            sealed.push_row_pairs(&mut self.lone, row, |_, _| true, &mut self.pairs)?;
        } else {
            let Some((row, set)) = sealed.member(series)? else { return Ok(None) };
            sealed.push_row_pairs(&mut self.parts, row, |_, _| true, &mut self.pairs)?;
            sealed.push_row_pairs(&mut self.sets, set, |_, _| true, &mut self.pairs)?;
            self.pairs.sort_unstable();
        }
        self.read_texts()?;
        let labels = self.pairs.iter().map(|pair| {
            let &(end, len) = self.places.get(pair).unwrap_or(&(0, 0));
            let text = self.texts.get(end.saturating_sub(len)..end).unwrap_or_default();
            (sealed.names.text(sealed.names.of_pair(*pair)), text)
        });
        Ok(Some(Labels::from_sorted(labels)))
    }

    fn read_texts(&mut self) -> Result<()> {
        if self.places.len() > TEXTS_MAX {
            self.places.clear();
            self.texts.clear();
        }
        for &pair in &self.pairs {
            if !self.places.contains_key(&pair) {
                let sealed = self.sealed;
                sealed.strings.get(&sealed.blocks, u64::from(pair), &mut self.value)?;
                self.texts.extend_from_slice(&self.value);
                self.places.insert(pair, (self.texts.len(), self.value.len()));
            }
        }
        Ok(())
    }
}
