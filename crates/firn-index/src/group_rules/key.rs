//! Keys: which labels of a series name its group, and how good the groups of a sample would be.

use hashbrown::HashSet;

use super::{MEMBERS_MIN, REPEATS_MIN, TIMES_GOOD};

/// A new series in the sample.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) metric: u32,
    pub(super) request: u32,
    /// Request and timestamp.
    pub(super) moment: u32,
    /// The hash of each label, in order of names.
    pub(super) labels: Box<[u32]>,
}

/// One bit per name of a shape.
pub(super) type Key = u64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyStats {
    pub(super) series: usize,
    pub(super) groups: usize,
    /// Distinct label sets of members, without labels that the key determines.
    pub(super) members: usize,
    /// Distinct groups per request, and per request and timestamp.
    pub(super) per_request: usize,
    pub(super) per_moment: usize,
}

impl Row {
    /// The hash of the labels of `key`.
    pub(super) fn hash(&self, key: Key) -> u64 {
        let labels = self.labels.iter().enumerate().filter(|label| key >> label.0 & 1 == 1);
        labels.fold(0, |sum: u64, label| sum.wrapping_add(mix(u64::from(*label.1))))
    }
}

/// The labels outside of `key` that it does not determine.
pub(super) fn undetermined(rows: &[&Row], key: Key, name_count: usize) -> Key {
    let mut own = whole_key(name_count) & !key;
    let groups = distinct(rows.iter().map(|row| row.hash(key)));
    let repeats = rows.len() - groups;
    if repeats < MEMBERS_MIN {
        return own;
    }
    for at in bits(own) {
        let split = distinct(rows.iter().map(|row| row.hash(key | 1 << at))) - groups;
        if split * 20 <= repeats.min(groups) {
            own &= !(1 << at);
        }
    }
    own
}

pub(super) fn distinct(hashes: impl Iterator<Item = u64>) -> usize {
    hashes.collect::<HashSet<u64>>().len()
}

pub(super) fn bits(key: Key) -> impl Iterator<Item = usize> + Clone {
    (0..Key::BITS as usize).filter(move |&at| key >> at & 1 == 1)
}

pub(super) fn whole_key(name_count: usize) -> Key {
    Key::MAX >> (Key::BITS as usize - name_count.min(Key::BITS as usize))
}

/// The bits of `wanted` in `names`; 0 if one is missing. Both are in the order of their texts.
pub(super) fn key_of(names: &[u32], wanted: &[u32]) -> Key {
    let mut names = names.iter().enumerate();
    let mut at = |name: &u32| Some(names.find(|known| known.1 == name)?.0);
    wanted.iter().try_fold(0, |key, name| Some(key | 1 << at(name)?)).unwrap_or(0)
}

impl KeyStats {
    pub(super) fn of(rows: &[&Row], key: Key, name_count: usize) -> KeyStats {
        let mut counter = KeyCounter::default();
        counter.add(rows, key, name_count);
        counter.stats()
    }

    /// Series beyond the first of each group.
    pub(super) fn repeats(&self) -> usize {
        self.series - self.groups
    }

    /// Whether a row would have a value of many members of its group.
    pub(super) fn is_dense(&self) -> bool {
        self.per_moment <= TIMES_GOOD * self.per_request
    }

    /// Whether most series of a group come with the timestamp of another one.
    pub(super) fn has_one_time(&self) -> bool {
        let others = self.series - self.per_request;
        others < REPEATS_MIN || 2 * self.per_moment.saturating_sub(self.per_request) <= others
    }
}

#[derive(Default)]
pub(super) struct KeyCounter {
    series: usize,
    /// A refused series comes again and again, and is counted once.
    known: HashSet<u64>,
    groups: HashSet<u64>,
    members: HashSet<u64>,
    per_request: HashSet<u64>,
    per_moment: HashSet<u64>,
}

impl KeyCounter {
    pub(super) fn add(&mut self, rows: &[&Row], key: Key, name_count: usize) {
        let own = undetermined(rows, key, name_count);
        for row in rows {
            if !self.known.insert(mix(row.hash(Key::MAX) ^ u64::from(row.metric))) {
                continue;
            }
            self.series += 1;
            let group = row.hash(key);
            self.groups.insert(group);
            self.members.insert(mix(row.hash(own) ^ u64::from(row.metric)));
            self.per_request.insert(mix(group ^ u64::from(row.request)));
            self.per_moment.insert(mix(group ^ (u64::from(row.moment) << 32)));
        }
    }

    pub(super) fn stats(&self) -> KeyStats {
        KeyStats {
            series: self.series,
            groups: self.groups.len(),
            members: self.members.len(),
            per_request: self.per_request.len(),
            per_moment: self.per_moment.len(),
        }
    }
}

/// The row visits of counting rows of shapes with this number of names.
pub(super) fn work(row_count: usize, name_count: usize) -> i64 {
    (row_count * (4 + name_count) / 4) as i64
}

/// The row visits of searching lists of names with this number of names in all.
pub(super) fn search_work(name_count: usize) -> i64 {
    (name_count / 64) as i64
}

// The finalizer of splitmix64.
pub(super) fn mix(id: u64) -> u64 {
    let mut x = id.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
