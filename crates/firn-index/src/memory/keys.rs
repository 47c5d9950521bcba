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
    /// The memory of the lists in `projections`.
    projected_bytes: usize,
    /// Member set to projection.
    of_set: HashMap<u32, u32>,
    /// (part's projection, member's projection) to key.
    of_both: HashMap<(u32, u32), u32>,
    /// The last result: (part, set, key).
    last: Option<(u32, u32, u32)>,
    /// The last part's projection.
    last_part: Option<(u32, u32)>,
    /// Bytes that the caller holds for the result besides keys.
    result_bytes: u64,
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
            projected_bytes: 0,
            result_bytes: 0,
        }
    }

    /// Reserves free memory: `bytes` for the result, and that of the cached projections. Returns
    /// `false` without; [`Keys::make_room`] is then due.
    pub(crate) fn try_hold(&mut self, bytes: u64) -> bool {
        self.result_bytes = bytes;
        self.table.try_hold_others(bytes + self.cached_bytes())
    }

    /// As [`KeyTable::make_room`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        self.table.make_room()
    }

    /// The key of the series at `position`, which has member set `set`. Returns `None` without free
    /// memory; [`Keys::make_room`] is then due.
    pub(crate) fn try_key(
        &mut self,
        memory: &MemoryIndex,
        position: SeriesPosition,
        set: u32,
    ) -> Option<u32> {
        if matches!(self.kind, KeyNames::Series) {
            return self.table.try_intern(&memory.labels_at(position));
        }
        if let Some((part_no, last_set, key)) = self.last
            && (part_no, last_set) == (position.part_no, set)
        {
            return Some(key);
        }
        let part = self.part_projection(memory, position.part_no);
        let member = self.set_projection(memory, set);
        // These lines and the last call may have cached more.
        if !self.try_hold(self.result_bytes) {
            return None;
        }
        let key = match self.of_both.get(&(part, member)) {
            Some(&key) => key,
            None => self.make_key(memory, position, (part, member))?,
        };
        self.last = Some((position.part_no, set, key));
        Some(key)
    }

    fn cached_bytes(&self) -> u64 {
        let tables =
            table_bytes(&self.of_set) + table_bytes(&self.of_both) + table_bytes(&self.projections);
        (tables + self.projected_bytes) as u64
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
        let bytes = pairs.capacity() * size_of::<u32>();
        let number = *self.projections.entry(pairs).or_insert(next);
        if number == next {
            self.projected_bytes += bytes;
        }
        number
    }

    fn make_key(
        &mut self,
        memory: &MemoryIndex,
        position: SeriesPosition,
        both: (u32, u32),
    ) -> Option<u32> {
        let identity = self.project(memory, memory.parts.identity(position.part_no));
        let common = self.project(memory, memory.parts.common(position.part_no));
        let own = self.project(memory, memory.sets.pairs(memory.set_of(position)));
        // Another part or segment may split the same labels differently, so use the table of all
        // keys.
        let lists = (identity.into_iter(), common.into_iter(), own.into_iter());
        let key = self.table.try_intern(&memory.labels_of(lists.0, lists.1, lists.2))?;
        self.of_both.insert(both, key);
        Some(key)
    }
}

/// The memory of a table and of the next one, which has twice its size: both exist while the
/// entries are moved.
fn table_bytes<K, V>(table: &HashMap<K, V>) -> usize {
    const FEW: usize = 64;
    // A table is at most seven eighths full and has a byte of its own for each entry.
    let entry_bytes = (size_of::<(K, V)>() + 1) * 8 / 7;
    let is_full = table.len() + FEW > table.capacity();
    table.capacity() * entry_bytes * if is_full { 3 } else { 1 }
}
