//! From rows that match to groups, slots and keys.
//!
//! Keys are made from pairs, not from label sets: a part's labels are projected once per part, a member set's once, and
//! a label set is built for a pair of projections that was not seen before (for `Grouping::Series` for each series, since
//! that is what is asked for).

use std::rc::Rc;

use firn_model::{CancelToken, GroupId, Grouping, Labels, METRIC_NAME, Result, Slot};
use hashbrown::HashMap;

use crate::idset::IdSet;
use crate::key_table::KeyTable;
use crate::matching::{GroupMatch, Member};
use crate::sealed::matching::{Class, push_run};
use crate::sealed::rows::{RowReader, Schema};
use crate::sealed::shapes::{Part, PartReader, Shape};
use crate::sealed::{Kind, Sealed};

// Up to so many member sets say themselves which parts have them; more, and parts are walked.
const SETS_LISTED_MAX: u64 = 1_024;
const ROWS_PER_CHECK: usize = 1_024;
// Up to so many members of a shape are looked for one by one in each part.
const POSITIONS_SEARCHED_MAX: usize = 4;
// Values kept at hand: neighbours share most of theirs.
const TEXTS: usize = 1 << 10;
const NONE: u32 = u32::MAX;

/// Appends what matches.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    sealed: &'a Sealed,
    keys: KeyMaker<'a>,
    out: &'a mut Vec<GroupMatch>,
    part_rows: RowReader<'a>,
    set_rows: RowReader<'a>,
    set_projections: HashMap<u32, u32>,
}

/// A shape with what of it passes in a class.
#[derive(Debug)]
struct Passing {
    len: u32,
    /// Rising, each with the projection of its member set and the set.
    positions: Vec<(u32, u32, u32)>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        sealed: &'a Sealed,
        keys: &'a mut KeyTable,
        out: &'a mut Vec<GroupMatch>,
    ) -> Collector<'a> {
        Collector {
            sealed,
            keys: KeyMaker::new(sealed, keys),
            out,
            part_rows: sealed.parts.rows.reader(&sealed.blocks),
            set_rows: sealed.sets.rows.reader(&sealed.blocks),
            set_projections: HashMap::new(),
        }
    }

    /// Lone series.
    pub(super) fn lone(&mut self, rows: &IdSet, cancel: &CancelToken) -> Result<()> {
        let mut reader = self.sealed.lone.rows.reader(&self.sealed.blocks);
        let mut pairs = Vec::new();
        let none = self.keys.projection(&[]);
        let mut last: Option<(Vec<u32>, u32)> = None;
        self.out.reserve(rows.count() as usize);
        for (idx, row) in rows.iter().enumerate() {
            if idx.is_multiple_of(ROWS_PER_CHECK) {
                cancel.check()?;
            }
            self.keys.project(&mut reader, row, &mut pairs)?;
            let key = match &last {
                Some((last, key)) if *last == pairs && !self.keys.is_series() => *key,
                _ => {
                    let projection = self.keys.projection(&pairs);
                    let key = self.keys.key((projection, none), &pairs, &[])?;
                    last = Some((pairs.clone(), key));
                    key
                }
            };
            let group = self.sealed.group_of(Kind::Lone, row)?;
            let member = Member { slot: Slot(0), key };
            self.out.push(GroupMatch { group, members: std::iter::once(member).collect() });
        }
        Ok(())
    }

    /// The members that pass in the parts of a class.
    pub(super) fn class(&mut self, class: &Class, cancel: &CancelToken) -> Result<()> {
        let parts = self.candidates(class, cancel)?;
        let parts = parts.as_ref().unwrap_or(&class.parts);
        let mut shapes: HashMap<u32, Rc<Passing>> = HashMap::new();
        let mut last: Option<(u32, Rc<Passing>)> = None;
        let mut scratch = Scratch::default();
        let sealed = self.sealed;
        let mut part_reader = PartReader::new(&sealed.blocks, &sealed.part_records);
        for (idx, row) in parts.iter().enumerate() {
            if idx.is_multiple_of(ROWS_PER_CHECK) {
                cancel.check()?;
            }
            let part = part_reader.read(row)?;
            // Parts that are alike mostly follow each other.
            let passing = match &last {
                Some((shape, passing)) if *shape == part.shape => passing,
                _ => {
                    let passing = match shapes.get(&part.shape) {
                        Some(passing) => Rc::clone(passing),
                        None => {
                            let passing = Rc::new(self.passing(part.shape, class)?);
                            shapes.insert(part.shape, Rc::clone(&passing));
                            passing
                        }
                    };
                    &last.insert((part.shape, passing)).1
                }
            };
            if !passing.positions.is_empty() {
                self.part(row, &part, passing, &mut scratch)?;
            }
        }
        Ok(())
    }

    /// The parts of the class that have one of its member sets, if that narrows it cheaply.
    fn candidates(&self, class: &Class, cancel: &CancelToken) -> Result<Option<IdSet>> {
        let Some(sets) = class.sets.as_ref().filter(|sets| sets.count() <= SETS_LISTED_MAX) else {
            return Ok(None);
        };
        let sealed = self.sealed;
        let mut shapes = Vec::new();
        for set in sets.iter() {
            cancel.check()?;
            let pushed = sealed.shapes_of_set(set)?.for_each_run(|first, last| {
                push_run(first, last, &mut shapes);
            });
            pushed.map_err(|e| sealed.blocks.corrupt_by(sealed.set_shapes.bytes.start, &e))?;
        }
        let mut parts = Vec::new();
        for shape in IdSet::from_runs(shapes).iter() {
            let shape = Shape::read(&sealed.blocks, &sealed.shapes, shape)?;
            let pushed = shape.parts.for_each_run(|first, last| push_run(first, last, &mut parts));
            pushed.map_err(|e| sealed.blocks.corrupt_by(sealed.shapes.bytes.start, &e))?;
        }
        Ok(Some(IdSet::from_runs(parts).intersect(&class.parts)))
    }

    fn passing(&mut self, shape: u32, class: &Class) -> Result<Passing> {
        let shape = Shape::read(&self.sealed.blocks, &self.sealed.shapes, shape)?;
        let mut positions = Vec::new();
        match class.sets.as_ref().filter(|sets| sets.count() < u64::from(shape.len / 8)) {
            Some(sets) => {
                for set in sets.iter() {
                    if let Some(position) = shape.position(set) {
                        positions.push((position, self.set_projection(set)?, set));
                    }
                }
                positions.sort_unstable();
            }
            None => {
                for position in 0..shape.len {
                    let set = shape.set(position);
                    if class.sets.as_ref().is_none_or(|sets| has(sets, set)) {
                        positions.push((position, self.set_projection(set)?, set));
                    }
                }
            }
        }
        Ok(Passing { len: shape.len, positions })
    }

    fn part(
        &mut self,
        row: u32,
        part: &Part<'_>,
        passing: &Passing,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let bad = || self.sealed.bad_part();
        // A few are looked for among the missing ones; for many these are laid out once.
        let is_few = passing.positions.len() <= POSITIONS_SEARCHED_MAX;
        if !is_few {
            part.missing(passing.len, &mut scratch.missing).ok_or_else(bad)?;
            part.slots(part.member_count(passing.len), &mut scratch.slots).ok_or_else(bad)?;
        }
        self.keys.project(&mut self.part_rows, row, &mut scratch.pairs)?;
        let projection = self.keys.projection(&scratch.pairs);
        let mut members = smallvec::SmallVec::new();
        let mut missing = 0;
        for &(position, set_projection, set) in &passing.positions {
            let rank = if is_few {
                let Some(rank) = part.rank_of(position) else { continue };
                rank
            } else {
                while scratch.missing.get(missing).is_some_and(|&at| at < position) {
                    missing += 1;
                }
                if scratch.missing.get(missing) == Some(&position) {
                    continue;
                }
                position - missing as u32
            };
            let slot = match is_few {
                true => part.slot(rank),
                false => scratch.slots.get(rank as usize).copied(),
            };
            let slot = Slot(slot.ok_or_else(bad)?);
            let key = match self.keys.is_series() {
                true => self.series_key(&scratch.pairs, set)?,
                false => self.keys.seen((projection, set_projection)).map_or_else(
                    || {
                        let mut set_pairs = Vec::new();
                        self.keys.project(&mut self.set_rows, set, &mut set_pairs)?;
                        self.keys.key((projection, set_projection), &scratch.pairs, &set_pairs)
                    },
                    Ok,
                )?,
            };
            members.push(Member { slot, key });
        }
        if members.is_empty() {
            return Ok(());
        }
        if !part.is_in_order() {
            members.sort_by_key(|member: &Member| member.slot);
        }
        let group: GroupId = self.sealed.group_of(Kind::Parts, row)?;
        self.out.push(GroupMatch { group, members });
        Ok(())
    }

    fn series_key(&mut self, part_pairs: &[u32], set: u32) -> Result<u32> {
        let mut set_pairs = Vec::new();
        self.keys.project(&mut self.set_rows, set, &mut set_pairs)?;
        self.keys.key((0, 0), part_pairs, &set_pairs)
    }

    fn set_projection(&mut self, set: u32) -> Result<u32> {
        if self.keys.is_series() {
            return Ok(0);
        }
        if let Some(&projection) = self.set_projections.get(&set) {
            return Ok(projection);
        }
        let mut pairs = Vec::new();
        self.keys.project(&mut self.set_rows, set, &mut pairs)?;
        let projection = self.keys.projection(&pairs);
        self.set_projections.insert(set, projection);
        Ok(projection)
    }
}

#[derive(Debug, Default)]
struct Scratch {
    missing: Vec<u32>,
    slots: Vec<u32>,
    pairs: Vec<u32>,
}

fn has(sets: &IdSet, set: u32) -> bool {
    let runs = sets.runs();
    let after = runs.partition_point(|run| run.0 <= set);
    after.checked_sub(1).and_then(|at| runs.get(at)).is_some_and(|run| set < run.1)
}

/// Makes keys of one segment's pairs.
#[derive(Debug)]
struct KeyMaker<'a> {
    sealed: &'a Sealed,
    keys: &'a mut KeyTable,
    /// Ranks of the names that the grouping lists, rising.
    listed: Vec<u32>,
    kind: KeyKind,
    projections: HashMap<Vec<u32>, u32>,
    /// What no label is left of is projection 0.
    last_projection: (Vec<u32>, u32),
    of_both: HashMap<(u32, u32), u32>,
    last: Option<((u32, u32), u32)>,
    /// Values read before: pair and value, the pair's low bits being its place.
    texts: Vec<(u32, Vec<u8>)>,
    /// Of the label set at hand, where its values are.
    places: Vec<usize>,
    /// The schema projected last, and its columns that are kept.
    kept: Option<(&'a Schema, Vec<(usize, u32)>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    Series,
    Only,
    AllBut,
}

impl<'a> KeyMaker<'a> {
    fn new(sealed: &'a Sealed, keys: &'a mut KeyTable) -> KeyMaker<'a> {
        let ranks = |names: &[String]| -> Vec<u32> {
            names.iter().filter_map(|name| sealed.names.find(name.as_bytes())).collect()
        };
        let (kind, mut listed) = match keys.grouping() {
            Grouping::Series => (KeyKind::Series, Vec::new()),
            Grouping::By(names) => (KeyKind::Only, ranks(names)),
            Grouping::Without(names) => {
                let mut listed = ranks(names);
                listed.extend(sealed.names.find(METRIC_NAME.as_bytes()));
                (KeyKind::AllBut, listed)
            }
        };
        listed.sort_unstable();
        let (of_both, texts, places, last_projection) = Default::default();
        let projections = HashMap::from([(Vec::new(), 0)]);
        KeyMaker {
            sealed,
            keys,
            listed,
            kind,
            projections,
            last_projection,
            of_both,
            last: None,
            texts,
            places,
            kept: None,
        }
    }

    fn is_series(&self) -> bool {
        self.kind == KeyKind::Series
    }

    fn keeps(&self, name: u32) -> bool {
        match self.kind {
            KeyKind::Series => true,
            KeyKind::Only => self.listed.binary_search(&name).is_ok(),
            KeyKind::AllBut => self.listed.binary_search(&name).is_err(),
        }
    }

    /// Whether all series have one key.
    fn keeps_nothing(&self) -> bool {
        self.kind == KeyKind::Only && self.listed.is_empty()
    }

    /// The pairs of a row that the grouping keeps, into `pairs`.
    fn project(
        &mut self,
        reader: &mut RowReader<'a>,
        row: u32,
        pairs: &mut Vec<u32>,
    ) -> Result<()> {
        pairs.clear();
        if self.keeps_nothing() {
            return Ok(());
        }
        let schema: &Schema = reader.load(row)?;
        if !self.kept.as_ref().is_some_and(|kept| std::ptr::eq(kept.0, schema)) {
            let columns = schema.names.iter().enumerate().filter(|column| self.keeps(*column.1));
            self.kept = Some((schema, columns.map(|(idx, &name)| (idx, name)).collect()));
        }
        for &(column_idx, name) in self.kept.iter().flat_map(|kept| &kept.1) {
            pairs.push(self.sealed.pair_at(name, reader.rank(row, column_idx)?)?);
        }
        Ok(())
    }

    fn projection(&mut self, pairs: &[u32]) -> u32 {
        if self.is_series() {
            return 0;
        }
        if self.last_projection.0 == pairs {
            return self.last_projection.1;
        }
        let next = self.projections.len() as u32;
        let projection = match self.projections.get(pairs) {
            Some(&projection) => projection,
            None => {
                self.projections.insert(pairs.to_vec(), next);
                next
            }
        };
        self.last_projection.0.clear();
        self.last_projection.0.extend_from_slice(pairs);
        self.last_projection.1 = projection;
        projection
    }

    fn seen(&mut self, both: (u32, u32)) -> Option<u32> {
        if let Some((last, key)) = self.last
            && last == both
        {
            return Some(key);
        }
        let key = *self.of_both.get(&both)?;
        self.last = Some((both, key));
        Some(key)
    }

    /// The key of a series whose projections are these.
    fn key(&mut self, both: (u32, u32), part: &[u32], set: &[u32]) -> Result<u32> {
        if !self.is_series()
            && let Some(key) = self.seen(both)
        {
            return Ok(key);
        }
        let mut pairs = [part, set].concat();
        pairs.sort_unstable();
        let labels = self.labels(&pairs)?;
        let key = self.keys.intern(labels);
        if !self.is_series() {
            self.of_both.insert(both, key);
        }
        Ok(key)
    }

    fn labels(&mut self, pairs: &[u32]) -> Result<Labels> {
        let sealed = self.sealed;
        self.places.clear();
        for &pair in pairs {
            let place = self.text(pair)?;
            self.places.push(place);
        }
        let is_whole = pairs.iter().zip(&self.places).all(|(pair, at)| self.texts[*at].0 == *pair);
        if !is_whole {
            // Two of them have one place.
            return sealed.labels_of_pairs(pairs);
        }
        let names = pairs.iter().map(|&pair| sealed.names.text(sealed.names.of_pair(pair)));
        let values = self.places.iter().map(|&place| self.texts[place].1.as_slice());
        Ok(Labels::from_sorted(names.zip(values)))
    }

    /// Where a pair's value is among the texts.
    fn text(&mut self, pair: u32) -> Result<usize> {
        if self.texts.is_empty() {
            self.texts.resize(TEXTS, (NONE, Vec::new()));
        }
        let place = pair as usize % TEXTS;
        let (held, value) = &mut self.texts[place];
        if *held != pair {
            *held = NONE;
            self.sealed.strings.get(&self.sealed.blocks, u64::from(pair), value)?;
            *held = pair;
        }
        Ok(place)
    }
}
