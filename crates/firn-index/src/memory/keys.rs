//! Group keys of the series of one segment in memory, as numbers.
//!
//! The labels of a part are projected once per part, those of a member once per distinct member
//! set. Label sets are built only for new pairs of projections: a `sum by (instance)` over a
//! million grouped series builds one label set per instance.

use firn_model::{Grouping, METRIC_NAME, Result};
use hashbrown::HashMap;

use crate::key_table::KeyTable;
use crate::memory::index::{MemoryIndex, SeriesPosition};

/// Assigns keys and caches them.
#[derive(Debug)]
pub(crate) struct Keys<'t> {
    table: &'t mut KeyTable,
    kind: KeyNames,
    projections: HashMap<Vec<u32>, u32>,
    /// Member set to projection.
    of_set: HashMap<u32, u32>,
    /// (part's projection, member's projection) to key.
    of_both: HashMap<(u32, u32), u32>,
    /// The last result: (part, set, key).
    last: Option<(u32, u32, u32)>,
    /// The last part's projection.
    last_part: Option<(u32, u32)>,
}

#[derive(Debug)]
enum KeyNames {
    /// One key per series.
    Series,
    /// Only these names.
    Only(Vec<u32>),
    /// All but these names.
    AllBut(Vec<u32>),
}

impl<'t> Keys<'t> {
    pub(crate) fn new(memory: &MemoryIndex, table: &'t mut KeyTable) -> Keys<'t> {
        // A name that is unknown now is on no series of the view.
        let ids = |names: &[String]| -> Vec<u32> {
            names.iter().filter_map(|name| memory.pairs.find_name(name.as_bytes())).collect()
        };
        let kind = match table.grouping() {
            Grouping::Series => KeyNames::Series,
            Grouping::By(names) => KeyNames::Only(ids(names)),
            Grouping::Without(names) => {
                let mut names = ids(names);
                names.extend(memory.pairs.find_name(METRIC_NAME.as_bytes()));
                KeyNames::AllBut(names)
            }
        };
        Keys {
            table,
            kind,
            projections: HashMap::new(),
            of_set: HashMap::new(),
            of_both: HashMap::new(),
            last: None,
            last_part: None,
        }
    }

    /// As [`KeyTable::hold_others`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn hold_others(&mut self, bytes: u64) -> Result<()> {
        self.table.hold_others(bytes)
    }

    /// The key of the series at `position`, which has member set `set`.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` beyond the query's share.
    pub(crate) fn key(
        &mut self,
        memory: &MemoryIndex,
        position: SeriesPosition,
        set: u32,
    ) -> Result<u32> {
        if matches!(self.kind, KeyNames::Series) {
            return self.table.intern(memory.labels_at(position));
        }
        if let Some((part_no, last_set, key)) = self.last
            && (part_no, last_set) == (position.part_no, set)
        {
            return Ok(key);
        }
        let part = self.part_projection(memory, position.part_no);
        let member = self.set_projection(memory, set);
        let key = match self.of_both.get(&(part, member)) {
            Some(&key) => key,
            None => self.make_key(memory, position, (part, member))?,
        };
        self.last = Some((position.part_no, set, key));
        Ok(key)
    }

    fn part_projection(&mut self, memory: &MemoryIndex, part_no: u32) -> u32 {
        if let Some((last, projection)) = self.last_part
            && last == part_no
        {
            return projection;
        }
        let pairs = memory.parts.identity(part_no).chain(memory.parts.common(part_no));
        let projection = self.intern(self.project(memory, pairs));
        self.last_part = Some((part_no, projection));
        projection
    }

    fn set_projection(&mut self, memory: &MemoryIndex, set: u32) -> u32 {
        if let Some(&projection) = self.of_set.get(&set) {
            return projection;
        }
        let pairs = self.project(memory, memory.sets.pairs(set));
        let projection = self.intern(pairs);
        self.of_set.insert(set, projection);
        projection
    }

    fn project(&self, memory: &MemoryIndex, pairs: impl Iterator<Item = u32>) -> Vec<u32> {
        pairs.filter(|&pair| self.keeps(memory.pairs.pair(pair).name)).collect()
    }

    fn keeps(&self, name: u32) -> bool {
        match &self.kind {
            KeyNames::Series => true,
            KeyNames::Only(names) => names.contains(&name),
            KeyNames::AllBut(names) => !names.contains(&name),
        }
    }

    fn intern(&mut self, pairs: Vec<u32>) -> u32 {
        let next = self.projections.len() as u32;
        *self.projections.entry(pairs).or_insert(next)
    }

    fn make_key(
        &mut self,
        memory: &MemoryIndex,
        position: SeriesPosition,
        both: (u32, u32),
    ) -> Result<u32> {
        let identity = self.project(memory, memory.parts.identity(position.part_no));
        let common = self.project(memory, memory.parts.common(position.part_no));
        let own = self.project(memory, memory.sets.pairs(memory.set_of(position)));
        // Another part or segment may split the same labels differently, so use the table of all
        // keys.
        let lists = (identity.into_iter(), common.into_iter(), own.into_iter());
        let key = self.table.intern(memory.labels_of(lists.0, lists.1, lists.2))?;
        self.of_both.insert(both, key);
        Ok(key)
    }
}
