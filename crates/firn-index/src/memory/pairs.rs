//! Label pairs: each distinct `name=value` is stored once and identified by a `u32`.

use std::hash::{BuildHasher, Hasher};

use firn_model::{Result, encode_varint};
use hashbrown::HashTable;

use crate::memory::arena::{Arena, Chunked};
use crate::memory::posting::PostingList;
use crate::pair::take_text;

/// All names and pairs with their posting lists.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    names: Vec<NameEntry>,
    name_table: HashTable<u32>,
    pairs: Chunked<PairEntry>,
    pair_table: HashTable<u32>,
    text: Arena,
    /// Length of the text of all names.
    name_text_bytes: u64,
    /// Heap of all posting lists and lists of a name's pairs.
    list_bytes: usize,
    // Randomly seeded, so that clients cannot choose colliding values. The order of the tables is
    // not observable.
    hasher: foldhash::fast::RandomState,
}

/// A label name.
#[derive(Debug)]
pub(crate) struct NameEntry {
    text_at: u32,
    /// Its pairs, ids ascending.
    pub(crate) pairs: Vec<u32>,
    /// Parts with this name.
    pub(crate) parts: PostingList,
    /// Member sets with this name.
    pub(crate) sets: PostingList,
}

/// A label name with a value.
#[derive(Debug)]
pub(crate) struct PairEntry {
    pub(crate) name: u32,
    value_at: u32,
    /// Parts with this pair; numbers ascend.
    pub(crate) parts: PostingList,
    /// Member sets with this pair; ids ascend.
    pub(crate) sets: PostingList,
}

impl Pairs {
    /// The id of a known pair.
    pub(crate) fn find(&self, name: &[u8], value: &[u8]) -> Option<u32> {
        let is_it = |&id: &u32| self.bytes_of(id) == (name, value);
        self.pair_table.find(hash_pair(&self.hasher, name, value), is_it).copied()
    }

    /// The id of a known name.
    pub(crate) fn find_name(&self, name: &[u8]) -> Option<u32> {
        let is_it = |&id: &u32| self.name_bytes(id) == name;
        self.name_table.find(self.hasher.hash_one(name), is_it).copied()
    }

    /// The id of a pair; adds a new pair.
    ///
    /// # Errors
    /// `TooLarge` when the text arena is full.
    pub(crate) fn intern(&mut self, name: &[u8], value: &[u8]) -> Result<u32> {
        if let Some(id) = self.find(name, value) {
            return Ok(id);
        }
        let name_id = self.intern_name(name)?;
        let id = self.pairs.len();
        let value_at = push_text(&mut self.text, value)?;
        let (parts, sets) = Default::default();
        self.pairs.push(PairEntry { name: name_id, value_at, parts, sets });
        let ids = &mut self.names[name_id as usize].pairs;
        let before = ids.capacity();
        ids.push(id);
        self.list_bytes += (ids.capacity() - before) * size_of::<u32>();
        let (pairs, names, text, hasher) = (&self.pairs, &self.names, &self.text, &self.hasher);
        self.pair_table.insert_unique(hash_pair(hasher, name, value), id, |&id| {
            let pair = &pairs[id];
            let name = text_at(text, names[pair.name as usize].text_at);
            hash_pair(hasher, name, text_at(text, pair.value_at))
        });
        Ok(id)
    }

    fn intern_name(&mut self, name: &[u8]) -> Result<u32> {
        if let Some(id) = self.find_name(name) {
            return Ok(id);
        }
        let id = self.names.len() as u32;
        let text_at_ = push_text(&mut self.text, name)?;
        self.name_text_bytes += name.len() as u64;
        let (parts, sets) = Default::default();
        self.names.push(NameEntry { text_at: text_at_, pairs: Vec::new(), parts, sets });
        let (names, text, hasher) = (&self.names, &self.text, &self.hasher);
        self.name_table.insert_unique(hasher.hash_one(name), id, |&id| {
            hasher.hash_one(text_at(text, names[id as usize].text_at))
        });
        Ok(id)
    }

    pub(crate) fn name_count(&self) -> u32 {
        self.names.len() as u32
    }

    /// Length of the text of all names.
    pub(crate) fn name_text_bytes(&self) -> u64 {
        self.name_text_bytes
    }

    /// Length of the texts of all values, at most.
    pub(crate) fn value_text_bytes_max(&self) -> u64 {
        (self.text.heap_bytes() as u64).saturating_sub(self.name_text_bytes)
    }

    pub(crate) fn pair_count(&self) -> u32 {
        self.pairs.len()
    }

    pub(crate) fn name(&self, id: u32) -> &NameEntry {
        &self.names[id as usize]
    }

    pub(crate) fn pair(&self, id: u32) -> &PairEntry {
        &self.pairs[id]
    }

    /// Adds a new part to the lists of `pair`.
    pub(crate) fn add_part(&mut self, pair: u32, part_no: u32) {
        let pair = &mut self.pairs[pair];
        self.list_bytes += pair.parts.push(part_no);
        self.list_bytes += self.names[pair.name as usize].parts.push(part_no);
    }

    /// Adds a new member set to the lists of `pair`.
    pub(crate) fn add_set(&mut self, pair: u32, set: u32) {
        let pair = &mut self.pairs[pair];
        self.list_bytes += pair.sets.push(set);
        self.list_bytes += self.names[pair.name as usize].sets.push(set);
    }

    /// A name's text.
    pub(crate) fn name_text(&self, id: u32) -> &str {
        text_of(self.name_bytes(id))
    }

    /// A pair's value.
    pub(crate) fn value_text(&self, pair: u32) -> &str {
        text_of(text_at(&self.text, self.pairs[pair].value_at))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.names.capacity() * size_of::<NameEntry>()
            + self.list_bytes
            + self.pairs.heap_bytes()
            + self.text.heap_bytes()
            + self.name_table.allocation_size()
            + self.pair_table.allocation_size()
    }

    /// A name's text as bytes.
    pub(crate) fn name_bytes(&self, id: u32) -> &[u8] {
        text_at(&self.text, self.names[id as usize].text_at)
    }

    /// A pair's name and value.
    pub(crate) fn bytes_of(&self, pair: u32) -> (&[u8], &[u8]) {
        let pair = &self.pairs[pair];
        (self.name_bytes(pair.name), text_at(&self.text, pair.value_at))
    }
}

fn hash_pair(hasher: &foldhash::fast::RandomState, name: &[u8], value: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write(name);
    state.write(value);
    state.finish()
}

fn push_text(arena: &mut Arena, text: &[u8]) -> Result<u32> {
    let mut entry = Vec::with_capacity(text.len() + 2);
    encode_varint(text.len() as u64, &mut entry);
    entry.extend_from_slice(text);
    arena.push(&entry)
}

fn text_at(arena: &Arena, at: u32) -> &[u8] {
    take_text(&mut arena.from(at)).unwrap_or_default()
}

fn text_of(bytes: &[u8]) -> &str {
    // The text comes from a `Labels`, which is valid UTF-8.
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_one_id_and_keeps_its_text() {
        let mut pairs = Pairs::default();
        let ids: Vec<u32> = (0..5_000)
            .map(|n| pairs.intern(b"name", format!("value{n}").as_bytes()).unwrap())
            .collect();
        let other = pairs.intern(b"nam", b"evalue0").unwrap();
        assert_eq!(ids, (0..5_000).collect::<Vec<_>>());
        assert_eq!(pairs.find(b"name", b"value77"), Some(77));
        assert_eq!(pairs.intern(b"name", b"value77").unwrap(), 77);
        assert_eq!(pairs.find(b"name", b"no"), None);
        assert_eq!(pairs.bytes_of(77), (&b"name"[..], &b"value77"[..]));
        assert_eq!(pairs.bytes_of(other), (&b"nam"[..], &b"evalue0"[..]));
        assert_eq!((pairs.name_count(), pairs.pair_count()), (2, 5_001));
        assert_eq!(pairs.name(0).pairs.len(), 5_000);
    }
}
