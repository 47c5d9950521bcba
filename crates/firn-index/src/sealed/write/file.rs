//! Writes a builder's content to a file.
//!
//! Pairs are numbered by name and value, rows sorted, groups clustered to shapes, and lists made
//! name by name. Besides the builder's ids, only one name's lists or one table's arrays are in
//! memory. Texts are copied directly from the sources to the file.

use firn_codec::bits::{bit_width, pack};
use firn_codec::postings::encode_postings;
use firn_env::DiskFile;
use firn_model::{Error, Result, encode_varint};
use hashbrown::HashMap;

use crate::sealed::format::buckets::{WrittenBuckets, write_hashes, write_ids};
use crate::sealed::format::footer::{FileWriter, SEGMENT_CONTENTS};
use crate::sealed::format::hash::pair_hash;
use crate::sealed::format::lists::{BUNCH_LISTS, BUNCH_OF_ROWS, TABLE_KINDS, TableKind};
use crate::sealed::format::rows::{RowsWriter, encode_schemas};
use crate::sealed::format::shapes::{BUNCH_PARTS, push_part, push_shape};
use crate::sealed::format::strings::{NameCode, StringsPlanner, StringsWriter};
use crate::sealed::write::builder::{Builder, BuiltPart, SegmentTotals, SetTable};
use crate::sealed::write::cluster::{Clusters, cluster};
use crate::sealed::write::columns::column_order;
use crate::sealed::write::factor::LabeledMember;
use crate::sealed::write::pair_union::PairUnion;

const NONE: u32 = u32::MAX;
// The longest varint of 32 bits.
const COUNT_BYTES_MAX: usize = 5;

/// All used pairs, numbered by name and value.
#[derive(Debug)]
struct Dictionary<'a> {
    /// Each name with its pairs in the builder, used or not, and the encoding of its values.
    names: Vec<(&'a [u8], std::ops::Range<u32>, NameCode)>,
    /// The first pair of each name, and the end.
    first_pairs: Vec<u32>,
    name_of: Vec<u32>,
    hashes: Vec<u64>,
    /// From the builder's number to the number here.
    to: Vec<u32>,
}

/// Label sets to be sorted into rows.
#[derive(Debug, Default)]
struct LabelSets {
    pairs: Vec<u32>,
    /// Whether each pair is an identity label.
    identity: Vec<bool>,
    ends: Vec<usize>,
}

/// Rows in their final order.
#[derive(Debug)]
struct SortedRows {
    /// The original item of each row.
    order: Vec<u32>,
    /// The label sets, by row.
    rows: LabelSets,
    schemas: Vec<SortedSchema>,
}

#[derive(Debug)]
struct SortedSchema {
    /// Names with their identity flag.
    names: Vec<(u32, bool)>,
    rows: std::ops::Range<u32>,
}

impl Builder<'_> {
    /// Writes the segment to an empty file and makes it durable.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails; `Invalid` if a group has different identities or a series
    /// different labels; `TooLarge` when ids are exhausted.
    pub(crate) fn finish(mut self, file: &dyn DiskFile) -> Result<SegmentTotals> {
        self.close_part();
        self.pairs.drop_numbers();
        write(self, file)
    }
}

/// Writes everything that `builder` contains.
fn write(mut builder: Builder<'_>, file: &dyn DiskFile) -> Result<SegmentTotals> {
    join_lone(&mut builder)?;
    join_parts(&mut builder)?;
    let dictionary = Dictionary::new(&mut builder)?;
    let mut used = vec![NONE; builder.sets.count()];
    let (mut lone, mut parts, mut sets) =
        (LabelSets::default(), LabelSets::default(), LabelSets::default());
    for &(_, labels) in &builder.lone {
        lone.push(builder.sets.get(labels), &[]);
    }
    for part in &builder.parts {
        parts.push(builder.sets.get(part.identity), builder.sets.get(part.common));
        for member in &mut builder.members[part.members.clone()] {
            let item = &mut used[member.1 as usize];
            if *item == NONE {
                *item = sets.ends.len() as u32;
                sets.push(&[], builder.sets.get(member.1));
            }
            member.1 = *item;
        }
    }
    // From here on label sets are only read as rows.
    builder.sets = SetTable::default();
    let sorted = [
        SortedRows::new(lone, &dictionary)?,
        SortedRows::new(parts, &dictionary)?,
        SortedRows::new(sets, &dictionary)?,
    ];
    let group_ids: [Vec<u64>; 3] = [
        builder.lone.iter().map(|lone| lone.0.0).collect(),
        builder.parts.iter().map(|part| part.group.0).collect(),
        Vec::new(),
    ];
    let by_id = [0, 1, 2].map(|kind: usize| {
        let rows = (0..).zip(&sorted[kind].order);
        write_ids(
            rows.filter_map(|(row, &item)| Some((*group_ids[kind].get(item as usize)?, row)))
                .collect(),
        )
    });
    let mut writer = FileWriter::new(file);
    let series_count =
        builder.lone.len() + builder.parts.iter().map(|part| part.members.len()).sum::<usize>();
    let distinct = builder.parts.chunk_by(|a, b| a.group == b.group).count();
    let group_count = (builder.lone.len() + distinct) as u64;
    let empty_parts = builder.parts.iter().filter(|part| part.members.is_empty()).count() as u64;
    for count in [series_count as u64, group_count, empty_parts] {
        writer.push_count(count);
    }
    for count in [dictionary.names.len(), dictionary.name_of.len()] {
        writer.push_count(count as u64);
    }
    for kind in [TableKind::Lone, TableKind::Parts] {
        writer.push_count(by_id[kind as usize].base);
        writer.push_count(u64::from(by_id[kind as usize].shift));
    }
    writer.push_head(&dictionary.encode_names())?;
    for sorted in &sorted {
        let schemas = sorted.schemas.iter();
        let schemas: Vec<_> =
            schemas.map(|schema| (&schema.names[..], schema.rows.len() as u32)).collect();
        writer.push_head(&encode_schemas(&schemas))?;
    }
    dictionary.write_values(&builder.pairs, &mut writer)?;
    for (kind, by_id) in TABLE_KINDS.into_iter().zip(by_id) {
        let at = kind as usize;
        write_table(&mut writer, &dictionary, kind, &sorted[at], &group_ids[at], by_id)?;
    }
    write_shapes(&mut writer, &builder, &sorted)?;
    write_lists(&mut writer, &dictionary, &sorted)?;
    writer.push_heads_again()?;
    // Pairs with `Sealed::open`, which reads exactly these entries.
    assert!(
        writer.contents.size() == SEGMENT_CONTENTS,
        "index file: entries differ from the format"
    );
    let file_bytes = writer.finish()?;
    Ok(SegmentTotals { file_bytes, series_count: series_count as u64, group_count })
}

/// Sorts lone series by group and removes duplicates.
fn join_lone(builder: &mut Builder<'_>) -> Result<()> {
    let sets = &builder.sets;
    builder.lone.sort_unstable();
    let mut conflict = None;
    builder.lone.dedup_by(|later, kept| {
        if later.0 == kept.0 && sets.get(later.1) != sets.get(kept.1) {
            conflict = Some(kept.0);
        }
        later.0 == kept.0
    });
    match conflict {
        Some(group) => {
            Err(Error::invalid(format!("the segment input has two label sets for {group}")))
        }
        None => Ok(()),
    }
}

/// Sorts parts by group; joins groups that came in pieces, with each slot once.
fn join_parts(builder: &mut Builder<'_>) -> Result<()> {
    let mut entries = std::mem::take(&mut builder.parts);
    entries.sort_by_key(|entry| entry.group);
    let mut at_lone = builder.lone.iter().map(|lone| lone.0).peekable();
    let is_both = entries.iter().find(|entry| {
        while at_lone.next_if(|lone| *lone < entry.group).is_some() {}
        at_lone.peek() == Some(&entry.group)
    });
    if let Some(entry) = is_both {
        return Err(Error::invalid(format!(
            "the segment input has {} both as a lone series and as a group",
            entry.group
        )));
    }
    for group in entries.chunk_by(|a, b| a.group == b.group) {
        let first = &group[0];
        if group.iter().any(|entry| entry.identity != first.identity) {
            return Err(Error::invalid(format!(
                "the segment input has two identities for {}",
                first.group
            )));
        }
        let next_slot = group.iter().map(|entry| entry.next_slot).max().unwrap_or(0);
        if group.iter().all(|entry| entry.origin == first.origin) {
            for entry in group {
                sort_members(builder, entry)?;
                builder.parts.push(BuiltPart { next_slot, ..entry.clone() });
            }
        } else {
            join_group(builder, group, next_slot)?;
        }
    }
    // Every part of a group contains its next slot, so that one part is enough to read it.
    for group in builder.parts.chunk_by_mut(|a, b| a.group == b.group) {
        let slots = group.iter().flat_map(|part| &builder.members[part.members.clone()]);
        let end = slots.map(|member| member.0).max().map_or(Some(0), |slot| slot.checked_add(1));
        let end = end.ok_or_else(|| Error::too_large("a group has no free slot number"))?;
        group.iter_mut().for_each(|part| part.next_slot = part.next_slot.max(end));
    }
    Ok(())
}

/// Factors a group's pieces again, as one group.
fn join_group(builder: &mut Builder<'_>, pieces: &[BuiltPart], next_slot: u32) -> Result<()> {
    let mut pairs: Vec<u32> = Vec::new();
    let mut spans = Vec::new();
    for piece in pieces {
        for &(slot, set) in &builder.members[piece.members.clone()] {
            let start = pairs.len();
            pairs.extend_from_slice(builder.sets.get(piece.common));
            pairs.extend_from_slice(builder.sets.get(set));
            pairs[start..].sort_unstable();
            spans.push((slot, start..pairs.len()));
        }
    }
    let mut members: Vec<LabeledMember<'_>> = spans
        .iter()
        .map(|(slot, span)| LabeledMember { slot: *slot, pairs: &pairs[span.clone()] })
        .collect();
    members.sort_by_key(|member| member.slot);
    let (group, identity) = (pieces[0].group, pieces[0].identity);
    let conflict =
        members.windows(2).find(|two| two[0].slot == two[1].slot && two[0].pairs != two[1].pairs);
    if let Some(two) = conflict {
        return Err(two_label_sets(group, two[0].slot));
    }
    members.dedup_by_key(|member| member.slot);
    builder.push_factored(group, identity, next_slot, &members);
    Ok(())
}

fn sort_members(builder: &mut Builder<'_>, part: &BuiltPart) -> Result<()> {
    let members = &mut builder.members[part.members.clone()];
    members.sort_unstable();
    match members.windows(2).find(|two| two[0].0 == two[1].0) {
        Some(two) => Err(two_label_sets(part.group, two[0].0)),
        None => Ok(()),
    }
}

fn two_label_sets(group: firn_model::GroupId, slot: u32) -> Error {
    Error::invalid(format!("the segment input has two label sets for slot {slot} of {group}"))
}

impl<'a> Dictionary<'a> {
    /// Numbers the used pairs, and renumbers all sets of the builder.
    fn new(builder: &mut Builder<'a>) -> Result<Dictionary<'a>> {
        let mut used_sets = vec![false; builder.sets.count()];
        builder.lone.iter().for_each(|lone| used_sets[lone.1 as usize] = true);
        for part in &builder.parts {
            used_sets[part.identity as usize] = true;
            used_sets[part.common as usize] = true;
            let members = &builder.members[part.members.clone()];
            members.iter().for_each(|member| used_sets[member.1 as usize] = true);
        }
        let pairs: &PairUnion<'_> = &builder.pairs;
        let mut to = vec![NONE; pairs.count()];
        for set in (0..).zip(&used_sets).filter(|set| *set.1).map(|set| set.0) {
            builder.sets.get(set).iter().for_each(|&pair| to[pair as usize] = 0);
        }
        // Both numbers ascend together.
        (0..).zip(to.iter_mut().filter(|to| **to != NONE)).for_each(|(number, to)| *to = number);
        let names = Vec::with_capacity(pairs.name_count());
        let (name_of, hashes) = Default::default();
        let mut all = Dictionary { names, first_pairs: vec![0], name_of, hashes, to };
        let (mut planner, mut encoded) = (StringsPlanner::default(), Vec::new());
        for (name, of_name) in pairs.names() {
            let used = all.to[of_name.start as usize..of_name.end as usize].iter();
            let used_count = used.filter(|to| **to != NONE).count();
            if used_count == 0 {
                continue;
            }
            let code = planner.plan(|each| all.each_value(pairs, name, of_name.clone(), each))?;
            let mut hashes = std::mem::take(&mut all.hashes);
            all.each_value(pairs, name, of_name.clone(), &mut |value| {
                encoded.clear();
                for text in [name, value] {
                    encode_varint(text.len() as u64, &mut encoded);
                    encoded.extend_from_slice(text);
                }
                hashes.push(pair_hash(&encoded));
            })?;
            all.hashes = hashes;
            all.name_of.extend(std::iter::repeat_n(all.names.len() as u32, used_count));
            all.names.push((name, of_name, code));
            all.first_pairs.push(all.name_of.len() as u32);
        }
        builder.sets.renumber(&all.to);
        Ok(all)
    }

    /// Calls `each` with every used value of a name, in order.
    fn each_value(
        &self,
        pairs: &PairUnion<'_>,
        name: &[u8],
        of_name: std::ops::Range<u32>,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        pairs.each_value(name, of_name, |number, value| {
            if self.to[number as usize] != NONE {
                each(value);
            }
            Ok(())
        })
    }

    fn encode_names(&self) -> Vec<u8> {
        // Long names are most of the memory of a job: the list must not grow by doubling.
        let bytes_max = |(name, _, code): &(&[u8], _, NameCode)| {
            name.len() + code.encoded_bytes_max() + 2 * COUNT_BYTES_MAX
        };
        let mut out = Vec::with_capacity(self.names.iter().map(bytes_max).sum());
        for ((name, _, code), pairs) in self.names.iter().zip(self.first_pairs.windows(2)) {
            encode_varint(name.len() as u64, &mut out);
            out.extend_from_slice(name);
            encode_varint(u64::from(pairs[1] - pairs[0]), &mut out);
            code.encode(&mut out);
        }
        out
    }

    /// Writes the values of all pairs.
    fn write_values(&self, pairs: &PairUnion<'_>, writer: &mut FileWriter<'_>) -> Result<()> {
        let (mut strings, mut coded) = (StringsWriter::default(), Vec::new());
        writer.begin_section();
        for (name, of_name, code) in &self.names {
            pairs.each_value(name, of_name.clone(), |number, value| {
                if self.to[number as usize] == NONE {
                    return Ok(());
                }
                coded.clear();
                strings.push(value, code, &mut coded);
                writer.extend_section(&coded)
            })?;
        }
        writer.push_array(&strings.starts)
    }

    fn rank(&self, pair: u32) -> u32 {
        pair - self.first_pairs[self.name_of[pair as usize] as usize]
    }

    fn value_count(&self, name: u32) -> u32 {
        self.first_pairs[name as usize + 1] - self.first_pairs[name as usize]
    }
}

impl LabelSets {
    /// Adds a label set of identity and other labels, each sorted.
    fn push(&mut self, identity: &[u32], others: &[u32]) {
        let (mut left, mut right) = (identity.iter().peekable(), others.iter().peekable());
        loop {
            let is_left = match (left.peek(), right.peek()) {
                (Some(left), Some(right)) => left < right,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            self.pairs.extend(if is_left { left.next() } else { right.next() });
            self.identity.push(is_left);
        }
        self.ends.push(self.pairs.len());
    }

    fn span(&self, item: u32) -> std::ops::Range<usize> {
        let start = item.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start..self.ends[item as usize]
    }

    fn get(&self, item: u32) -> &[u32] {
        &self.pairs[self.span(item)]
    }

    /// Checks that no label set has a name twice; a file could not be read otherwise.
    fn check(&self, dictionary: &Dictionary<'_>) -> Result<()> {
        let name = |pair: u32| dictionary.name_of[pair as usize];
        for item in 0..self.ends.len() as u32 {
            if self.get(item).windows(2).any(|two| name(two[0]) == name(two[1])) {
                return Err(Error::invalid(
                    "the segment input has a label set with a repeated name",
                ));
            }
        }
        if self.ends.len() >= NONE as usize {
            return Err(Error::too_large("an index segment has no free row number"));
        }
        Ok(())
    }
}

impl SortedRows {
    /// Sorts items by schema, then column by column.
    fn new(items: LabelSets, dictionary: &Dictionary<'_>) -> Result<SortedRows> {
        items.check(dictionary)?;
        let mut schema_ids: HashMap<Vec<(u32, bool)>, u32> = HashMap::new();
        let mut by_schema: Vec<Vec<u32>> = Vec::new();
        let mut names = Vec::new();
        for item in 0..items.ends.len() as u32 {
            let span = items.span(item);
            names.clear();
            names.extend(
                items.pairs[span.clone()]
                    .iter()
                    .map(|&pair| dictionary.name_of[pair as usize])
                    .zip(items.identity[span].iter().copied()),
            );
            let id = match schema_ids.get(&names) {
                Some(&id) => id,
                None => {
                    let id = by_schema.len() as u32;
                    schema_ids.insert(names.clone(), id);
                    by_schema.push(Vec::new());
                    id
                }
            };
            by_schema[id as usize].push(item);
        }
        let mut by_names: Vec<(Vec<(u32, bool)>, u32)> = schema_ids.into_iter().collect();
        by_names.sort_unstable();
        let mut order = Vec::with_capacity(items.ends.len());
        let mut schemas = Vec::new();
        for (names, id) in by_names {
            let of_schema = std::mem::take(&mut by_schema[id as usize]);
            let start = order.len() as u32;
            let columns = column_order(names.len(), &of_schema, |item| items.get(item));
            sort_items(&items, dictionary, of_schema, &columns, &names, &mut order);
            schemas.push(SortedSchema { names, rows: start..order.len() as u32 });
        }
        // The following code iterates over rows; label sets in that order are read about twice as
        // fast.
        let mut rows = LabelSets::default();
        rows.pairs.reserve_exact(items.pairs.len());
        rows.ends.reserve_exact(items.ends.len());
        for &item in &order {
            rows.pairs.extend_from_slice(items.get(item));
            rows.ends.push(rows.pairs.len());
        }
        Ok(SortedRows { order, rows, schemas })
    }
}

fn sort_items(
    items: &LabelSets,
    dictionary: &Dictionary<'_>,
    of_schema: Vec<u32>,
    columns: &[usize],
    names: &[(u32, bool)],
    out: &mut Vec<u32>,
) {
    let width = |&column_idx: &usize| {
        let value_count = dictionary.value_count(names[column_idx].0);
        u32::BITS - value_count.saturating_sub(1).leading_zeros()
    };
    // Pack as many columns as fit into a number with the same order.
    let (mut bits, mut packed_count) = (0, 0);
    while let Some(column_idx) = columns.get(packed_count)
        && bits + width(column_idx) <= 128
    {
        bits += width(column_idx);
        packed_count += 1;
    }
    let (packed, rest) = columns.split_at(packed_count);
    let mut keyed: Vec<(u128, u32)> = of_schema
        .into_iter()
        .map(|item| {
            let pairs = items.get(item);
            let key = packed.iter().fold(0u128, |key, column_idx| {
                let rank = dictionary.rank(pairs[*column_idx]);
                key << width(column_idx) | u128::from(rank)
            });
            (key, item)
        })
        .collect();
    if rest.is_empty() {
        keyed.sort_unstable();
    } else {
        let others = |item: u32| rest.iter().map(move |&column_idx| items.get(item)[column_idx]);
        keyed.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| others(a.1).cmp(others(b.1))).then(a.1.cmp(&b.1))
        });
    }
    out.extend(keyed.into_iter().map(|keyed| keyed.1));
}

fn write_table(
    writer: &mut FileWriter<'_>,
    dictionary: &Dictionary<'_>,
    kind: TableKind,
    sorted: &SortedRows,
    group_ids: &[u64],
    by_id: WrittenBuckets,
) -> Result<()> {
    let mut rows = RowsWriter::default();
    for schema in &sorted.schemas {
        rows.push(&schema.names, schema.rows.len() as u32, |row, column_idx| {
            dictionary.rank(sorted.rows.get(schema.rows.start + row)[column_idx])
        });
    }
    writer.push_records(&rows.cells, &rows.starts)?;
    // The hash of a part covers its identity labels, that of other rows all labels.
    let mut hashes = Vec::with_capacity(sorted.order.len());
    for schema in &sorted.schemas {
        for row in schema.rows.clone() {
            let pairs = sorted.rows.get(row).iter().zip(&schema.names);
            let pairs = pairs.filter(|(_, name)| kind != TableKind::Parts || name.1);
            let sum = |sum: u64, pair: u32| sum.wrapping_add(dictionary.hashes[pair as usize]);
            hashes.push((pairs.fold(0, |hash, (pair, _)| sum(hash, *pair)), row));
        }
    }
    // Pairs with the check of row counts in `Sealed::open`.
    assert!(hashes.len() == sorted.order.len(), "index file: rows without a hash entry");
    assert!(
        kind == TableKind::MemberSets || by_id.rows.len() == sorted.order.len(),
        "index file: rows without a group id"
    );
    let base = by_id.base;
    for buckets in [write_hashes(hashes), by_id] {
        writer.push_array(&buckets.starts)?;
        writer.push_array(&buckets.tags)?;
        writer.push_array(&buckets.rows)?;
    }
    let ids = sorted.order.iter().filter_map(|&item| group_ids.get(item as usize));
    writer.push_array(&ids.map(|id| id - base).collect::<Vec<_>>())
}

fn write_shapes(
    writer: &mut FileWriter<'_>,
    builder: &Builder<'_>,
    sorted: &[SortedRows; 3],
) -> Result<()> {
    let (part_order, set_order) =
        (&sorted[TableKind::Parts as usize].order, &sorted[TableKind::MemberSets as usize].order);
    let mut row_of_set = vec![NONE; set_order.len()];
    (0..).zip(set_order).for_each(|(row, &item)| row_of_set[item as usize] = row);
    let groups: Vec<Vec<u32>> = builder
        .parts
        .iter()
        .map(|part| {
            let members = &builder.members[part.members.clone()];
            members.iter().map(|member| row_of_set[member.1 as usize]).collect()
        })
        .collect();
    let clusters = cluster(&groups, set_order.len());
    let mut lacking = write_parts(writer, builder, &clusters, part_order, &groups)?;
    let mut of_set: Vec<(u32, u32)> = Vec::new();
    for (shape, sets) in (0..).zip(&clusters.shapes) {
        of_set.extend(sets.iter().map(|&set| (set, shape)));
    }
    of_set.sort_unstable();
    let (mut lists, mut starts, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = of_set.as_slice();
    for set in 0..set_order.len() as u32 {
        if u64::from(set).is_multiple_of(BUNCH_LISTS) {
            starts.push(lists.len() as u64);
        }
        let (of_set, after) = rest.split_at(rest.partition_point(|entry| entry.0 == set));
        ids.clear();
        ids.extend(of_set.iter().map(|entry| u64::from(entry.1)));
        encode_postings(&ids, &mut lists);
        rest = after;
    }
    writer.push_records(&lists, &starts)?;
    let mut parts_of: Vec<Vec<u64>> = vec![Vec::new(); clusters.shapes.len()];
    for (row, &item) in (0..).zip(part_order) {
        parts_of[clusters.shape_of[item as usize] as usize].push(row);
    }
    let (mut shapes, mut starts) = (Vec::new(), Vec::new());
    for ((sets, parts), lacking) in clusters.shapes.iter().zip(&parts_of).zip(&mut lacking) {
        starts.push(shapes.len() as u64);
        push_shape(sets, parts, lacking, &mut shapes);
    }
    writer.push_records(&shapes, &starts)
}

/// Writes the records of parts. Returns for each shape the (position, part row) pairs of missing
/// members.
fn write_parts(
    writer: &mut FileWriter<'_>,
    builder: &Builder<'_>,
    clusters: &Clusters,
    part_order: &[u32],
    groups: &[Vec<u32>],
) -> Result<Vec<Vec<(u32, u32)>>> {
    let (mut records, mut starts) = (Vec::new(), Vec::new());
    let mut lacking = vec![Vec::new(); clusters.shapes.len()];
    let set_count = groups.iter().flatten().max().map_or(0, |set| *set as usize + 1);
    let mut positions = vec![NONE; set_count];
    let mut positions_of = NONE;
    let (mut placed, mut missing) = (Vec::<(u32, u32)>::new(), Vec::new());
    for (row, &item) in (0u64..).zip(part_order) {
        if row.is_multiple_of(BUNCH_PARTS) {
            starts.push(records.len() as u64);
        }
        let (part, shape) = (&builder.parts[item as usize], clusters.shape_of[item as usize]);
        let sets = &clusters.shapes[shape as usize];
        if positions_of != shape {
            (0..).zip(sets).for_each(|(position, &set)| positions[set as usize] = position);
            positions_of = shape;
        }
        placed.clear();
        let slots = builder.members[part.members.clone()].iter().map(|member| member.0);
        placed.extend(groups[item as usize].iter().map(|&set| positions[set as usize]).zip(slots));
        placed.sort_unstable();
        missing.clear();
        let mut here = placed.iter().map(|placed| placed.0).peekable();
        let lacks = |position: &u32| here.next_if_eq(position).is_none();
        missing.extend((0..sets.len() as u32).filter(lacks).map(u64::from));
        lacking[shape as usize].extend(missing.iter().map(|&at| (at as u32, row as u32)));
        let slots: Vec<u32> = placed.iter().map(|placed| placed.1).collect();
        push_part(shape, &missing, &slots, part.next_slot, &mut records);
    }
    writer.push_records(&records, &starts)?;
    Ok(lacking)
}

/// Writes the posting lists of each pair, name by name.
fn write_lists(
    writer: &mut FileWriter<'_>,
    dictionary: &Dictionary<'_>,
    sorted: &[SortedRows; 3],
) -> Result<()> {
    let (mut lists, mut starts, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    // Table and row of the pairs of a bunch that have exactly one.
    let mut single: Vec<(TableKind, u32)> = Vec::new();
    let pair_count = dictionary.name_of.len() as u32;
    let name_count = dictionary.names.len();
    let schemas = sorted.each_ref().map(|rows| SchemasOfNames::new(name_count, &rows.schemas));
    for (name, pairs) in dictionary.first_pairs.windows(2).enumerate() {
        let tables = [0, 1, 2].map(|at: usize| {
            let value_count = (pairs[1] - pairs[0]) as usize;
            rows_of_name(name as u32, value_count, dictionary, (&sorted[at], schemas[at].of(name)))
        });
        for pair in pairs[0]..pairs[1] {
            if u64::from(pair).is_multiple_of(BUNCH_LISTS) {
                starts.push(lists.len() as u64);
                single.clear();
            }
            let rank = (pair - pairs[0]) as usize;
            let rows = tables.each_ref().map(|(ends, rows)| {
                let start = rank.checked_sub(1).map_or(0, |before| ends[before]);
                &rows[start..ends[rank]]
            });
            let flags = rows.iter().enumerate().map(|(at, rows)| u8::from(!rows.is_empty()) << at);
            lists.push(flags.sum());
            for rows in rows.iter().filter(|rows| !rows.is_empty()) {
                ids.clear();
                ids.extend(rows.iter().map(|&row| u64::from(row)));
                encode_postings(&ids, &mut lists);
            }
            if rows.iter().map(|rows| rows.len()).sum::<usize>() == 1 {
                let of_kind = TABLE_KINDS.iter().zip(&rows);
                single
                    .extend(of_kind.flat_map(|(kind, rows)| rows.iter().map(|row| (*kind, *row))));
            }
            let in_bunch = u64::from(pair) % BUNCH_LISTS + 1;
            if in_bunch == BUNCH_LISTS || pair + 1 == pair_count {
                push_single_rows(&single, in_bunch, starts.last().copied(), &mut lists);
            }
        }
    }
    writer.push_records(&lists, &starts)
}

/// Rewrites the last bunch in the short form if each of its pairs has one row, all in one table.
fn push_single_rows(
    rows: &[(TableKind, u32)],
    pair_count: u64,
    start: Option<u64>,
    lists: &mut Vec<u8>,
) {
    let (Some(&(kind, _)), Some(start)) = (rows.first(), start) else { return };
    if rows.len() as u64 != pair_count || rows.iter().any(|row| row.0 != kind) {
        return;
    }
    let least = rows.iter().map(|row| row.1).min().unwrap_or(0);
    let width = bit_width(rows.iter().map(|row| u64::from(row.1 - least)).max().unwrap_or(0));
    lists.truncate(start as usize);
    lists.extend([BUNCH_OF_ROWS + kind as u8, width as u8]);
    encode_varint(u64::from(least), lists);
    pack(rows.iter().map(|row| u64::from(row.1 - least)), width, lists);
}

/// The schemas with each name, in order. Without it each name would search all schemas, and series
/// with a name of their own would take time in the square of their number.
struct SchemasOfNames {
    /// By name, the end of its schemas.
    ends: Vec<usize>,
    schemas: Vec<u32>,
}

impl SchemasOfNames {
    fn new(name_count: usize, schemas: &[SortedSchema]) -> SchemasOfNames {
        let with_names = || {
            let schemas = (0..).zip(schemas);
            schemas
                .flat_map(|(id, schema)| schema.names.iter().map(move |name| (id, name.0 as usize)))
        };
        let mut ends = vec![0usize; name_count];
        with_names().for_each(|(_, name)| ends[name] += 1);
        let mut next = 0;
        for end in &mut ends {
            // The start of the name's schemas for now; the loop below advances it to their end.
            next += std::mem::replace(end, next);
        }
        let mut all = vec![0u32; next];
        for (id, name) in with_names() {
            let at = &mut ends[name];
            all[*at] = id;
            *at += 1;
        }
        SchemasOfNames { ends, schemas: all }
    }

    fn of(&self, name: usize) -> &[u32] {
        let start = name.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.schemas[start..self.ends[name]]
    }
}

/// The rows of each value of a name in `schemas`, concatenated, and the end of each value's rows.
fn rows_of_name(
    name: u32,
    value_count: usize,
    dictionary: &Dictionary<'_>,
    (sorted, schemas): (&SortedRows, &[u32]),
) -> (Vec<usize>, Vec<u32>) {
    let with_name = || {
        schemas.iter().filter_map(|&schema| {
            let schema = &sorted.schemas[schema as usize];
            let column_idx = schema.names.binary_search_by_key(&name, |name| name.0).ok()?;
            Some((schema.rows.clone(), column_idx))
        })
    };
    let rank =
        |row: u32, column_idx: usize| dictionary.rank(sorted.rows.get(row)[column_idx]) as usize;
    let mut ends = vec![0usize; value_count];
    for (rows, column_idx) in with_name() {
        rows.for_each(|row| ends[rank(row, column_idx)] += 1);
    }
    let mut next = 0;
    for end in &mut ends {
        // The start of the value's rows for now; the loop below advances it to their end.
        next += std::mem::replace(end, next);
    }
    let mut all = vec![0u32; next];
    for (rows, column_idx) in with_name() {
        for row in rows {
            let at = &mut ends[rank(row, column_idx)];
            all[*at] = row;
            *at += 1;
        }
    }
    (ends, all)
}
