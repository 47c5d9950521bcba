//! Which slab goes when a place is needed: what came in its order, hot data by use.
//!
//! Slabs begin in the FIFO partition. One of its older half that is used again moves to the LRU partition; what cools
//! down there goes back. How large the LRU partition may be follows the hits on ghosts (slabs that went lately) and on
//! the next to go. Source: TSCache 3.6.
//!
//! The paper orders the FIFO partition by the time of the data. A slab here has what questions of a moment brought, so that
//! nearly all end at the newest data, and one that ends earlier holds a hot spot: the order is that of arrival, and
//! what was asked for of a slab that goes is kept (`store/rescue.rs`). Measured: docs/decisions/0014-cache-eviction.md.
//!
//! Where the paper has one ghost per partition there are some (a 32nd of all slabs), and all counters are halved at
//! each decision: one slab alone has hardly ever a hit, and what was long ago shall not decide.

mod s3_fifo;

use std::collections::{BTreeSet, HashMap, VecDeque};

use firn_model::{TimeRange, Timestamp};

use self::s3_fifo::S3Fifo;

/// A slab, as the policy knows it.
pub(crate) type SlabId = u64;

/// The policy's state: who is where.
#[derive(Debug)]
pub(crate) struct Policy {
    kind: PolicyKind,
    slab_count_max: usize,
    /// Slabs of the FIFO partition, in two halves by time; `older` has as many as `newer` or one more.
    older: BTreeSet<(Timestamp, SlabId)>,
    newer: BTreeSet<(Timestamp, SlabId)>,
    /// Slabs of the LRU partition by their last use.
    lru: BTreeSet<(u64, SlabId)>,
    places: HashMap<SlabId, Place>,
    lru_count_max: usize,
    use_count: u64,
    fifo_ghosts: Ghosts,
    lru_ghosts: Ghosts,
    /// Hits on the slabs that are next to leave their partition.
    fifo_edge_hits: u64,
    lru_edge_hits: u64,
    /// Has all slabs in place of the two partitions, if that is the kind.
    s3_fifo: Option<S3Fifo>,
}

/// Who goes first. All but the first go by whole slabs and have every crowd merged, as in the paper: without that the order
/// of time means little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// The two partitions in the order of arrival; ranges that were asked for outlive their slabs.
    #[default]
    UsedRanges,
    /// The paper's two partitions: in the order of time, whole slabs.
    TwoPartitions,
    /// The oldest data, whatever is used: the paper's first baseline.
    Fifo,
    /// What was not used for longest: the paper's second baseline.
    Lru,
    /// What was not used soon after it came, then what was not used lately.
    S3Fifo,
}

/// How many slabs are where, and what the ghosts saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Slabs in the FIFO partition.
    pub fifo_slabs: u64,
    /// Slabs in the LRU partition.
    pub lru_slabs: u64,
    /// Slabs that the LRU partition may have now.
    pub lru_slabs_max: u64,
    /// Slabs that went from each partition: FIFO, LRU.
    pub evictions: [u64; 2],
    /// Questions that slabs would have answered that went from FIFO, from LRU.
    pub ghost_hits: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Its place in the FIFO partition; slabs of one time are in the order in which they were begun.
    ts: Timestamp,
    /// Its key in `lru`, if it is there.
    stamp: Option<u64>,
    /// Whether it was in the LRU partition once.
    was_hot: bool,
}

/// Slabs that went lately: what they had, no data.
#[derive(Debug, Default)]
struct Ghosts {
    slabs: VecDeque<Vec<(u64, TimeRange)>>,
    hits: u64,
    hits_total: u64,
    evictions: u64,
}

impl Policy {
    pub(crate) fn new(kind: PolicyKind, slab_count_max: usize) -> Policy {
        Policy {
            kind,
            slab_count_max,
            older: BTreeSet::new(),
            newer: BTreeSet::new(),
            lru: BTreeSet::new(),
            places: HashMap::new(),
            // One to two at the start, as the paper has it.
            lru_count_max: match kind {
                PolicyKind::UsedRanges | PolicyKind::TwoPartitions => (slab_count_max / 3).max(1),
                PolicyKind::Fifo | PolicyKind::S3Fifo => 0,
                PolicyKind::Lru => usize::MAX,
            },
            use_count: 0,
            fifo_ghosts: Ghosts::default(),
            lru_ghosts: Ghosts::default(),
            fifo_edge_hits: 0,
            lru_edge_hits: 0,
            s3_fifo: (kind == PolicyKind::S3Fifo).then(|| S3Fifo::new(slab_count_max)),
        }
    }

    /// A slab came in whose newest data is of `ts`.
    pub(crate) fn insert(&mut self, slab: SlabId, ts: Timestamp) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.insert(slab);
        }
        let ts = self.place_ts(ts);
        self.places.insert(slab, Place { ts, stamp: None, was_hot: false });
        if self.kind == PolicyKind::Lru {
            self.place_in_lru(slab);
        } else {
            self.place_in_fifo(slab, ts);
        }
    }

    /// A slab takes over from others, which are no longer there: it is as hot as the hottest was.
    pub(crate) fn insert_hot(&mut self, slab: SlabId, ts: Timestamp) {
        if self.s3_fifo.is_some() {
            return self.insert(slab, ts);
        }
        let ts = self.place_ts(ts);
        self.places.insert(slab, Place { ts, stamp: None, was_hot: true });
        self.place_in_lru(slab);
        self.shrink_lru();
    }

    /// Whether a slab is in the LRU partition.
    pub(crate) fn is_hot(&self, slab: SlabId) -> bool {
        self.places.get(&slab).is_some_and(|place| place.stamp.is_some())
    }

    /// A slab was used.
    pub(crate) fn touch(&mut self, slab: SlabId) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.touch(slab);
        }
        let Some(&place) = self.places.get(&slab) else { return };
        match place.stamp {
            Some(stamp) => {
                if self.is_edge(self.lru.iter().map(|one| one.1), slab) {
                    self.lru_edge_hits += 1;
                }
                self.lru.remove(&(stamp, slab));
                self.place_in_lru(slab);
            }
            None if self.has_partitions() => {
                if self.is_edge(self.older.iter().map(|one| one.1), slab) {
                    self.fifo_edge_hits += 1;
                }
                if self.older.remove(&(place.ts, slab)) {
                    self.place_in_lru(slab);
                    self.balance();
                    self.shrink_lru();
                }
            }
            None => {}
        }
    }

    /// A slab is no longer there, for another reason than want of place.
    pub(crate) fn remove(&mut self, slab: SlabId) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.remove(slab);
        }
        let Some(place) = self.places.remove(&slab) else { return };
        if let Some(stamp) = place.stamp {
            self.lru.remove(&(stamp, slab));
        }
        self.older.remove(&(place.ts, slab));
        self.newer.remove(&(place.ts, slab));
        self.balance();
    }

    /// The slab that should go next.
    pub(crate) fn victim(&mut self) -> Option<SlabId> {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.victim();
        }
        let fifo = self.older.first().map(|one| one.1);
        fifo.or_else(|| self.lru.first().map(|one| one.1))
    }

    /// The slabs that go next, as far as that is known: those of the FIFO partition in their order, then the others.
    pub(crate) fn next_to_go(&self, count: usize) -> Vec<SlabId> {
        let fifo = self.older.iter().chain(&self.newer).map(|one| one.1);
        fifo.chain(self.lru.iter().map(|one| one.1)).take(count).collect()
    }

    /// A slab stays although it is its turn: it counts as just used.
    pub(crate) fn keep(&mut self, slab: SlabId) {
        let Some(&place) = self.places.get(&slab) else { return };
        if let Some(stamp) = place.stamp {
            self.lru.remove(&(stamp, slab));
        }
        self.older.remove(&(place.ts, slab));
        self.newer.remove(&(place.ts, slab));
        self.place_in_lru(slab);
        self.balance();
        self.shrink_lru();
    }

    /// The victim goes; `contents` is what it had: hashes of keys with their ranges.
    pub(crate) fn evict(&mut self, slab: SlabId, contents: Vec<(u64, TimeRange)>) {
        let was_hot = self.places.get(&slab).is_some_and(|place| place.was_hot);
        let ghost_count_max = self.edge_count();
        self.remove(slab);
        let ghosts = if was_hot { &mut self.lru_ghosts } else { &mut self.fifo_ghosts };
        ghosts.evictions += 1;
        ghosts.slabs.push_back(contents);
        while ghosts.slabs.len() > ghost_count_max {
            ghosts.slabs.pop_front();
        }
        self.tune();
    }

    /// Nothing was found for a key in `range`: would a ghost have had it?
    pub(crate) fn missed(&mut self, key_hash: u64, range: TimeRange) {
        for ghosts in [&mut self.fifo_ghosts, &mut self.lru_ghosts] {
            let had = |one: &(u64, TimeRange)| one.0 == key_hash && one.1.overlaps(range);
            if ghosts.slabs.iter().any(|contents| contents.iter().any(had)) {
                ghosts.hits += 1;
                ghosts.hits_total += 1;
            }
        }
    }

    pub(crate) fn stats(&self) -> PolicyStats {
        let partitions = (self.older.len() + self.newer.len(), self.lru.len());
        let (fifo, lru) = self.s3_fifo.as_ref().map_or(partitions, S3Fifo::counts);
        PolicyStats {
            fifo_slabs: fifo as u64,
            lru_slabs: lru as u64,
            lru_slabs_max: self.lru_count_max.min(self.slab_count_max) as u64,
            evictions: [self.fifo_ghosts.evictions, self.lru_ghosts.evictions],
            ghost_hits: [self.fifo_ghosts.hits_total, self.lru_ghosts.hits_total],
        }
    }

    /// Moves the border between the partitions by a slab, to where that gains hits (TSCache 3.6).
    fn tune(&mut self) {
        if !self.has_partitions() {
            return;
        }
        let gain_of_lru = self.lru_ghosts.hits as i64 - self.fifo_edge_hits as i64;
        let gain_of_fifo = self.fifo_ghosts.hits as i64 - self.lru_edge_hits as i64;
        match gain_of_lru.cmp(&gain_of_fifo) {
            std::cmp::Ordering::Greater => self.lru_count_max += 1,
            std::cmp::Ordering::Less => self.lru_count_max -= 1,
            std::cmp::Ordering::Equal => {}
        }
        // Neither partition dies out: it could not grow again.
        self.lru_count_max = self.lru_count_max.clamp(1, (self.slab_count_max * 9 / 10).max(1));
        for hits in [
            &mut self.fifo_edge_hits,
            &mut self.lru_edge_hits,
            &mut self.fifo_ghosts.hits,
            &mut self.lru_ghosts.hits,
        ] {
            *hits /= 2;
        }
        self.shrink_lru();
    }

    fn has_partitions(&self) -> bool {
        matches!(self.kind, PolicyKind::UsedRanges | PolicyKind::TwoPartitions)
    }

    fn place_ts(&self, ts: Timestamp) -> Timestamp {
        if self.kind == PolicyKind::UsedRanges { 0 } else { ts }
    }

    fn edge_count(&self) -> usize {
        (self.slab_count_max / 32).max(1)
    }

    fn is_edge(&self, mut oldest_first: impl Iterator<Item = SlabId>, slab: SlabId) -> bool {
        oldest_first.by_ref().take(self.edge_count()).any(|one| one == slab)
    }

    fn place_in_lru(&mut self, slab: SlabId) {
        self.use_count += 1;
        self.lru.insert((self.use_count, slab));
        let has_partitions = self.has_partitions();
        if let Some(place) = self.places.get_mut(&slab) {
            place.stamp = Some(self.use_count);
            place.was_hot |= has_partitions;
        }
    }

    fn place_in_fifo(&mut self, slab: SlabId, ts: Timestamp) {
        let is_new = self.older.last().is_some_and(|last| (ts, slab) > *last);
        if is_new {
            self.newer.insert((ts, slab))
        } else {
            self.older.insert((ts, slab))
        };
        self.balance();
    }

    fn shrink_lru(&mut self) {
        while self.has_partitions() && self.lru.len() > self.lru_count_max {
            let Some((_, slab)) = self.lru.pop_first() else { return };
            if let Some(place) = self.places.get_mut(&slab) {
                place.stamp = None;
                let ts = place.ts;
                self.place_in_fifo(slab, ts);
            }
        }
    }

    /// Keeps both halves of the FIFO partition of one length.
    fn balance(&mut self) {
        while self.older.len() > self.newer.len() + 1 {
            let last = self.older.pop_last();
            self.newer.extend(last);
        }
        while self.newer.len() > self.older.len() {
            let first = self.newer.pop_first();
            self.older.extend(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(policy: &mut Policy) -> SlabId {
        let victim = policy.victim().unwrap();
        policy.evict(victim, vec![(victim, TimeRange::at(0))]);
        victim
    }

    #[test]
    fn the_oldest_data_goes_first_whenever_it_came() {
        let mut policy = Policy::new(PolicyKind::TwoPartitions, 9);
        for slab in [5, 3, 8, 1] {
            policy.insert(slab, slab as i64);
        }
        assert_eq!([evict(&mut policy), evict(&mut policy)], [1, 3]);
        policy.remove(5);
        assert_eq!(evict(&mut policy), 8);
        assert_eq!(policy.victim(), None);
    }

    #[test]
    fn what_is_used_again_in_the_older_half_stays_and_cools_down_to_its_place_in_time() {
        let mut policy = Policy::new(PolicyKind::TwoPartitions, 6);
        (0..6).for_each(|slab| policy.insert(slab, slab as i64));
        policy.touch(5);
        assert!(!policy.is_hot(5), "the newer half does not move");
        (0..3).for_each(|slab| policy.touch(slab));
        // Room for two: the first of the three has cooled down.
        assert_eq!(policy.stats().lru_slabs_max, 2);
        assert_eq!([0, 1, 2].map(|slab| policy.is_hot(slab)), [false, true, true]);
        assert_eq!(evict(&mut policy), 0);
        // Hits on the oldest of the FIFO partition and none on ghosts: that partition grows.
        assert_eq!(policy.stats().lru_slabs_max, 1);
        assert_eq!([evict(&mut policy), evict(&mut policy)], [1, 3]);
    }

    #[test]
    fn in_the_order_of_arrival_what_is_kept_goes_later() {
        let mut policy = Policy::new(PolicyKind::UsedRanges, 6);
        (0..6).for_each(|slab| policy.insert(slab, 100 - slab as i64));
        assert_eq!(policy.next_to_go(2), [0, 1]);
        policy.keep(0);
        assert!(policy.is_hot(0));
        assert_eq!(policy.next_to_go(6), [1, 2, 3, 4, 5, 0]);
        // The third that is kept takes the place of the first.
        (1..3).for_each(|slab| policy.keep(slab));
        assert_eq!([0, 1, 2].map(|slab| policy.is_hot(slab)), [false, true, true]);
        assert_eq!(policy.victim(), Some(0));
    }

    #[test]
    fn ghosts_move_the_border() {
        let mut policy = Policy::new(PolicyKind::TwoPartitions, 12);
        (0..12).for_each(|slab| policy.insert(slab, slab as i64));
        let start = policy.stats().lru_slabs_max;
        let mut next = 12;
        let mut round = |policy: &mut Policy, hot: bool| {
            if hot {
                // What was hot goes, and is asked for again.
                let victim = policy.victim().unwrap();
                policy.touch(victim);
                (0..12).for_each(|_| {
                    let other = policy.victim().unwrap();
                    policy.touch(other);
                });
            }
            let victim = evict(policy);
            for _ in 0..40 {
                policy.missed(victim, TimeRange::at(0));
            }
            policy.insert(next, next as i64);
            next += 1;
        };
        (0..6).for_each(|_| round(&mut policy, true));
        let grown = policy.stats().lru_slabs_max;
        assert!(grown > start, "{:?}", policy.stats());
        (0..12).for_each(|_| round(&mut policy, false));
        assert!(policy.stats().lru_slabs_max < grown, "{:?}", policy.stats());
        policy.missed(1 << 40, TimeRange::at(0));
        assert_eq!(policy.stats().evictions.iter().sum::<u64>(), 18);
    }

    #[test]
    fn the_baselines_are_what_they_are_called() {
        let mut fifo = Policy::new(PolicyKind::Fifo, 4);
        let mut lru = Policy::new(PolicyKind::Lru, 4);
        let mut s3_fifo = Policy::new(PolicyKind::S3Fifo, 4);
        for policy in [&mut fifo, &mut lru, &mut s3_fifo] {
            (0..4).for_each(|slab| policy.insert(slab, slab as i64));
            policy.touch(0);
        }
        assert_eq!([evict(&mut fifo), evict(&mut fifo)], [0, 1]);
        assert_eq!([evict(&mut lru), evict(&mut lru)], [1, 2]);
        // 0 was used and went to the main queue, which gives way when the small one is down to its part.
        let order = std::array::from_fn(|_| evict(&mut s3_fifo));
        assert_eq!(order, [1, 2, 0, 3]);
    }
}
