//! Keys of the series of one segment. While groups are collected, a key is a numbered list of
//! pairs. The texts of all used keys are read at the end, each once and in file order.

use firn_model::{CancelToken, Grouping, Labels, METRIC_NAME, Result};
use hashbrown::{HashMap, HashTable};

use crate::key_table::KeyTable;
use crate::matches::GroupMatch;
use crate::pair::hash_ids;
use crate::sealed::format::rows::{RowReader, Schema};
use crate::sealed::read::segment::Sealed;

const NONE: u32 = u32::MAX;
const ITEMS_PER_CHECK: usize = 1_024;
// The first allocation of texts.
const TEXT_BYTES_MIN: usize = 1 << 10;
// If at least one in this many pairs of the segment is needed, an index by pair costs less than
// binary searches.
const PLACES_PER_PAIR: usize = 16;

/// Makes the keys of one segment.
#[derive(Debug)]
pub(crate) struct KeyMaker<'a> {
    sealed: &'a Sealed,
    /// Ranks of the names of the grouping, ascending.
    listed: Vec<u32>,
    kind: KeyFilter,
    /// The projected pairs of parts, member sets and series; number 0 is the empty list.
    lists: KeyLists,
    /// The list of a series from those of its part and its member set, if neither is empty.
    of_both: HashMap<(u32, u32), u32>,
    merged: Vec<u32>,
    /// The last interned list, and its number.
    last: (Vec<u32>, u32),
    /// The last schema with its kept columns.
    kept: Option<(&'a Schema, Vec<(usize, u32)>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFilter {
    Series,
    Only,
    AllBut,
}

/// Numbered lists of pairs.
#[derive(Debug, Default)]
struct KeyLists {
    pairs: Vec<u32>,
    ends: Vec<usize>,
    numbers: HashTable<u32>,
}

/// The values of some pairs.
#[derive(Debug, Default)]
struct PairTexts {
    /// Ascending.
    pairs: Vec<u32>,
    /// By pair, the index in `pairs`; empty: use binary search.
    places: Vec<u32>,
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl<'a> KeyMaker<'a> {
    pub(crate) fn new(sealed: &'a Sealed, grouping: &Grouping) -> KeyMaker<'a> {
        let ranks = |names: &[String]| -> Vec<u32> {
            names.iter().filter_map(|name| sealed.names.find(name.as_bytes())).collect()
        };
        let (kind, mut listed) = match grouping {
            Grouping::Series => (KeyFilter::Series, Vec::new()),
            Grouping::By(names) => (KeyFilter::Only, ranks(names)),
            Grouping::Without(names) => {
                let mut listed = ranks(names);
                listed.extend(sealed.names.find(METRIC_NAME.as_bytes()));
                (KeyFilter::AllBut, listed)
            }
        };
        listed.sort_unstable();
        let mut lists = KeyLists::default();
        lists.intern(&[]);
        let (of_both, merged, last) = Default::default();
        KeyMaker { sealed, listed, kind, lists, of_both, merged, last, kept: None }
    }

    /// The number of the projected pairs of a row.
    pub(crate) fn project(&mut self, reader: &mut RowReader<'a>, row: u32) -> Result<u32> {
        if self.kind == KeyFilter::Only && self.listed.is_empty() {
            return Ok(0);
        }
        let schema: &Schema = reader.load(row)?;
        if !self.kept.as_ref().is_some_and(|kept| std::ptr::eq(kept.0, schema)) {
            let columns = schema.names.iter().enumerate().filter(|column| self.keeps(*column.1));
            self.kept = Some((schema, columns.map(|(idx, &name)| (idx, name)).collect()));
        }
        self.merged.clear();
        for &(column_idx, name) in self.kept.iter().flat_map(|kept| &kept.1) {
            self.merged.push(self.sealed.pair_at(name, reader.rank(row, column_idx)?)?);
        }
        // Adjacent rows usually have the same list.
        if self.last.0 != self.merged {
            self.last.1 = self.lists.intern(&self.merged);
            self.last.0.clone_from(&self.merged);
        }
        Ok(self.last.1)
    }

    /// The key of a series from the lists of its part and its member set, as a list number.
    #[inline]
    pub(crate) fn key(&mut self, part: u32, set: u32) -> u32 {
        match (part, set) {
            (list, 0) | (0, list) => list,
            // Two series never have the same labels.
            _ if self.kind == KeyFilter::Series => self.merge(part, set),
            both => match self.of_both.get(&both) {
                Some(&list) => list,
                None => {
                    let list = self.merge(part, set);
                    self.of_both.insert(both, list);
                    list
                }
            },
        }
    }

    /// Bytes of its lists.
    pub(crate) fn bytes(&self) -> u64 {
        let lists = &self.lists;
        let bytes = lists.pairs.capacity() * size_of::<u32>()
            + lists.ends.capacity() * size_of::<usize>()
            + lists.numbers.allocation_size()
            + self.of_both.allocation_size();
        bytes as u64
    }

    /// Replaces the list numbers of the members of `groups` by key numbers of `table`. `bytes` are
    /// held for groups.
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`]; `Corrupt`; `Canceled` or `Timeout` as the token reports.
    pub(crate) fn finish(
        self,
        table: &mut KeyTable,
        bytes: u64,
        groups: &mut [GroupMatch],
        cancel: &CancelToken,
    ) -> Result<()> {
        let list_count = self.lists.ends.len();
        let bytes = bytes + self.bytes() + (3 * list_count * size_of::<u32>()) as u64;
        table.hold_others(bytes)?;
        let mut numbers = vec![NONE; list_count];
        let mut used: Vec<u32> = Vec::new();
        for member in groups.iter_mut().flat_map(|group| &mut group.members) {
            let number = &mut numbers[member.key as usize];
            if *number == NONE {
                *number = used.len() as u32;
                used.push(member.key);
            }
            member.key = *number;
        }
        let texts =
            self.texts(&used, |text_bytes| table.hold_others(bytes + text_bytes), cancel)?;
        let sealed = self.sealed;
        let labels = used.iter().map(|&list| {
            let pairs = self.lists.get(list).iter();
            Labels::from_sorted(pairs.map(|&pair| {
                let name = sealed.names.text(sealed.names.of_pair(pair));
                (name, texts.get(pair))
            }))
        });
        let Some(numbers) = table.extend(labels)? else { return Ok(()) };
        for member in groups.iter_mut().flat_map(|group| &mut group.members) {
            member.key = numbers[member.key as usize];
        }
        Ok(())
    }

    fn keeps(&self, name: u32) -> bool {
        match self.kind {
            KeyFilter::Series => true,
            KeyFilter::Only => self.listed.binary_search(&name).is_ok(),
            KeyFilter::AllBut => self.listed.binary_search(&name).is_err(),
        }
    }

    fn merge(&mut self, part: u32, set: u32) -> u32 {
        self.merged.clear();
        self.merged.extend_from_slice(self.lists.get(part));
        self.merged.extend_from_slice(self.lists.get(set));
        self.merged.sort_unstable();
        match self.kind {
            KeyFilter::Series => self.lists.push(&self.merged),
            _ => self.lists.intern(&self.merged),
        }
    }

    /// The values of all pairs of the `used` lists. Calls `hold` with the bytes before allocating
    /// them.
    fn texts(
        &self,
        used: &[u32],
        mut hold: impl FnMut(u64) -> Result<()>,
        cancel: &CancelToken,
    ) -> Result<PairTexts> {
        let wanted_pairs = || used.iter().flat_map(|&list| self.lists.get(list).iter().copied());
        let wanted_count: usize = used.iter().map(|&list| self.lists.get(list).len()).sum();
        let pair_count = self.sealed.pair_count() as usize;
        let mut texts = PairTexts::default();
        let has_places = wanted_count > pair_count / PLACES_PER_PAIR;
        // Per pair its index; per needed pair its number and its end.
        let places = if has_places { pair_count } else { 0 };
        let number_bytes = (places * 4 + wanted_count.min(pair_count.max(1)) * 4 * 5) as u64;
        hold(number_bytes)?;
        if has_places {
            texts.places = vec![NONE; pair_count];
            wanted_pairs().for_each(|pair| texts.places[pair as usize] = 0);
            let places = texts.places.iter_mut().zip(0..).filter(|place| *place.0 == 0);
            for (place, pair) in places {
                *place = texts.pairs.len() as u32;
                texts.pairs.push(pair);
            }
        } else {
            texts.pairs.extend(wanted_pairs());
            texts.pairs.sort_unstable();
            texts.pairs.dedup();
        }
        let (strings, blocks) = (&self.sealed.strings, &self.sealed.blocks);
        let mut walk = None;
        for (idx, &pair) in texts.pairs.iter().enumerate() {
            if idx.is_multiple_of(ITEMS_PER_CHECK) {
                cancel.check()?;
            }
            let walk = match &mut walk {
                Some(walk) => walk,
                none => none.insert(strings.walk(blocks, u64::from(pair))?),
            };
            walk.go_to(u64::from(pair))?;
            walk.advance()?;
            let wanted = texts.bytes.len() + walk.text().len();
            if wanted > texts.bytes.capacity() {
                // Both allocations exist while the bytes move.
                let capacity = wanted.max(2 * texts.bytes.capacity()).max(TEXT_BYTES_MIN);
                hold(number_bytes + (texts.bytes.capacity() + capacity) as u64)?;
                texts.bytes.reserve_exact(capacity - texts.bytes.len());
            }
            texts.bytes.extend_from_slice(walk.text());
            texts.ends.push(texts.bytes.len());
        }
        Ok(texts)
    }
}

impl KeyLists {
    fn get(&self, number: u32) -> &[u32] {
        list(&self.pairs, &self.ends, number)
    }

    fn intern(&mut self, pairs: &[u32]) -> u32 {
        let hash = hash_ids(pairs.iter().copied());
        if let Some(&number) = self.numbers.find(hash, |&number| self.get(number) == pairs) {
            return number;
        }
        let number = self.push(pairs);
        let (all, ends) = (&self.pairs, &self.ends);
        let hash_of = |&number: &u32| hash_ids(list(all, ends, number).iter().copied());
        self.numbers.insert_unique(hash, number, hash_of);
        number
    }

    /// Adds a list without searching for an equal one.
    fn push(&mut self, pairs: &[u32]) -> u32 {
        self.pairs.extend_from_slice(pairs);
        self.ends.push(self.pairs.len());
        self.ends.len() as u32 - 1
    }
}

fn list<'p>(pairs: &'p [u32], ends: &[usize], number: u32) -> &'p [u32] {
    let start = number.checked_sub(1).map_or(0, |before| ends[before as usize]);
    &pairs[start..ends[number as usize]]
}

impl PairTexts {
    /// The value of a pair of the `used` lists.
    fn get(&self, pair: u32) -> &[u8] {
        let place = match self.places.get(pair as usize) {
            Some(&place) => place as usize,
            None => self.pairs.binary_search(&pair).unwrap_or_default(),
        };
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[place]]
    }
}
