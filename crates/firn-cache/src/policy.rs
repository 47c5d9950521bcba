//! Decides which slab is evicted when a slot is needed: cold slabs in the order of arrival, hot
//! slabs by their last use.
//!
//! New slabs enter the FIFO partition. A slab of its older half that is used again moves to the LRU
//! partition; the least recently used slabs of a full LRU partition move back. The size of the LRU
//! partition follows the hits on ghosts (recently evicted slabs) and on the slabs that are next to
//! be evicted. Source: TSCache 3.6.
//!
//! Two things differ from the paper. It orders the FIFO partition by the time of the data. Here a
//! slab contains the results of queries of one moment, so nearly all slabs end at the newest data,
//! and one that ends earlier contains a hot spot: the order is that of arrival, and the ranges of
//! an evicted slab that were used again are kept (`store/rescue.rs`). And each partition has
//! several ghosts (a 32nd of all slabs) instead of one, with all counters halved at each decision:
//! a single slab is hardly ever hit, and old hits should not decide. Measurements:
//! docs/decisions/0014-cache-eviction.md.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;

use firn_model::{TimeRange, Timestamp};

/// A slab, as the policy knows it: its generation, so later slabs have larger ids.
pub type SlabId = u64;

/// Decides which slab is evicted. Benchmarks compare other policies with `UsedRanges`.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// Adds a slab. Its newest data is of `ts`.
    fn insert(&mut self, slab: SlabId, ts: Timestamp);

    /// Adds a slab that replaces others which were removed, some of them hot.
    fn insert_hot(&mut self, slab: SlabId, ts: Timestamp);

    /// Whether a slab is among the hot ones.
    fn is_hot(&self, slab: SlabId) -> bool;

    /// Records a use of a slab.
    fn touch(&mut self, slab: SlabId);

    /// Removes a slab for another reason than lack of space.
    fn remove(&mut self, slab: SlabId);

    /// The slab to evict next.
    fn victim(&mut self) -> Option<SlabId>;

    /// The slabs to evict next, in order, as far as that is known.
    fn next_victims(&self, count: usize) -> Vec<SlabId>;

    /// Keeps a slab although it is the victim: it counts as just used.
    fn keep(&mut self, slab: SlabId);

    /// Evicts the victim. `contents` are the hashes of its keys with their ranges.
    fn evict(&mut self, slab: SlabId, contents: Vec<(u64, TimeRange)>);

    /// Records a miss of a key in `range`: a ghost might have had it.
    fn missed(&mut self, key_hash: u64, range: TimeRange);

    /// Counters since the cache was opened.
    fn stats(&self) -> PolicyStats;

    /// Whether the ranges of an evicted slab that were used again are kept, and crowds of slabs are
    /// merged only where that frees slots.
    fn keeps_used_ranges(&self) -> bool;
}

/// Sizes of the partitions, and evictions and ghost hits of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    /// Slabs in the FIFO partition.
    pub fifo_slabs: u64,
    /// Slabs in the LRU partition.
    pub lru_slabs: u64,
    /// Slabs that the LRU partition may have now.
    pub lru_slabs_max: u64,
    /// Slabs evicted from each partition: FIFO, LRU.
    pub evictions: [u64; 2],
    /// Lookups that a recently evicted slab would have answered: evicted from FIFO, from LRU.
    pub ghost_hits: [u64; 2],
}

/// The policy of the product: two partitions, the FIFO one in the order of arrival.
#[derive(Debug)]
pub(crate) struct UsedRanges {
    slab_count_max: usize,
    /// The FIFO partition in two halves; `older` has as many slabs as `newer` or one more.
    older: BTreeSet<SlabId>,
    newer: BTreeSet<SlabId>,
    /// Slabs of the LRU partition by their last use.
    lru: BTreeMap<u64, SlabId>,
    slabs: HashMap<SlabId, SlabUse>,
    lru_count_max: usize,
    use_count: u64,
    fifo_ghosts: Ghosts,
    lru_ghosts: Ghosts,
    /// Hits on the slabs that are next to leave their partition.
    fifo_edge_hits: u64,
    lru_edge_hits: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlabUse {
    /// The slab's key in `lru`, if it is there.
    stamp: Option<u64>,
    /// Whether the slab has ever been in the LRU partition.
    was_hot: bool,
}

/// Recently evicted slabs: the keys and ranges that they had, no data.
#[derive(Debug, Default)]
struct Ghosts {
    slabs: VecDeque<Vec<(u64, TimeRange)>>,
    hits: u64,
    hits_total: u64,
    evictions: u64,
}

impl UsedRanges {
    pub(crate) fn new(slab_count_max: usize) -> UsedRanges {
        UsedRanges {
            slab_count_max,
            older: BTreeSet::new(),
            newer: BTreeSet::new(),
            lru: BTreeMap::new(),
            slabs: HashMap::new(),
            // One third at the start, as in the paper.
            lru_count_max: (slab_count_max / 3).max(1),
            use_count: 0,
            fifo_ghosts: Ghosts::default(),
            lru_ghosts: Ghosts::default(),
            fifo_edge_hits: 0,
            lru_edge_hits: 0,
        }
    }

    /// Moves the border between the partitions by one slab, to where that gains hits (TSCache 3.6).
    fn tune(&mut self) {
        let gain_of_lru = self.lru_ghosts.hits as i64 - self.fifo_edge_hits as i64;
        let gain_of_fifo = self.fifo_ghosts.hits as i64 - self.lru_edge_hits as i64;
        match gain_of_lru.cmp(&gain_of_fifo) {
            std::cmp::Ordering::Greater => self.lru_count_max += 1,
            std::cmp::Ordering::Less => self.lru_count_max -= 1,
            std::cmp::Ordering::Equal => {}
        }
        // Neither partition may become empty: it could not grow again.
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

    fn edge_count(&self) -> usize {
        (self.slab_count_max / 32).max(1)
    }

    fn is_edge<'a>(&self, oldest_first: impl Iterator<Item = &'a SlabId>, slab: SlabId) -> bool {
        oldest_first.take(self.edge_count()).any(|&one| one == slab)
    }

    fn place_in_lru(&mut self, slab: SlabId) {
        self.use_count += 1;
        self.lru.insert(self.use_count, slab);
        if let Some(slab) = self.slabs.get_mut(&slab) {
            *slab = SlabUse { stamp: Some(self.use_count), was_hot: true };
        }
    }

    fn place_in_fifo(&mut self, slab: SlabId) {
        let is_new = self.older.last().is_some_and(|last| slab > *last);
        let half = if is_new { &mut self.newer } else { &mut self.older };
        half.insert(slab);
        self.balance();
    }

    fn shrink_lru(&mut self) {
        while self.lru.len() > self.lru_count_max {
            let Some((_, slab)) = self.lru.pop_first() else { return };
            if let Some(slab_use) = self.slabs.get_mut(&slab) {
                slab_use.stamp = None;
                self.place_in_fifo(slab);
            }
        }
    }

    /// Keeps both halves of the FIFO partition equally long.
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

impl EvictionPolicy for UsedRanges {
    fn insert(&mut self, slab: SlabId, _: Timestamp) {
        self.slabs.insert(slab, SlabUse::default());
        self.place_in_fifo(slab);
    }

    fn insert_hot(&mut self, slab: SlabId, _: Timestamp) {
        self.slabs.insert(slab, SlabUse::default());
        self.place_in_lru(slab);
        self.shrink_lru();
    }

    fn is_hot(&self, slab: SlabId) -> bool {
        self.slabs.get(&slab).is_some_and(|slab| slab.stamp.is_some())
    }

    fn touch(&mut self, slab: SlabId) {
        let Some(&SlabUse { stamp, .. }) = self.slabs.get(&slab) else { return };
        if let Some(stamp) = stamp {
            self.lru_edge_hits += u64::from(self.is_edge(self.lru.values(), slab));
            self.lru.remove(&stamp);
            self.place_in_lru(slab);
            return;
        }
        self.fifo_edge_hits += u64::from(self.is_edge(self.older.iter(), slab));
        if self.older.remove(&slab) {
            self.place_in_lru(slab);
            self.balance();
            self.shrink_lru();
        }
    }

    fn remove(&mut self, slab: SlabId) {
        let Some(SlabUse { stamp, .. }) = self.slabs.remove(&slab) else { return };
        if let Some(stamp) = stamp {
            self.lru.remove(&stamp);
        }
        self.older.remove(&slab);
        self.newer.remove(&slab);
        self.balance();
    }

    fn victim(&mut self) -> Option<SlabId> {
        self.older.first().or_else(|| self.lru.values().next()).copied()
    }

    fn next_victims(&self, count: usize) -> Vec<SlabId> {
        let fifo = self.older.iter().chain(&self.newer);
        fifo.chain(self.lru.values()).copied().take(count).collect()
    }

    fn keep(&mut self, slab: SlabId) {
        let Some(&SlabUse { stamp, .. }) = self.slabs.get(&slab) else { return };
        if let Some(stamp) = stamp {
            self.lru.remove(&stamp);
        }
        self.older.remove(&slab);
        self.newer.remove(&slab);
        self.place_in_lru(slab);
        self.balance();
        self.shrink_lru();
    }

    fn evict(&mut self, slab: SlabId, contents: Vec<(u64, TimeRange)>) {
        let was_hot = self.slabs.get(&slab).is_some_and(|slab| slab.was_hot);
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

    fn missed(&mut self, key_hash: u64, range: TimeRange) {
        for ghosts in [&mut self.fifo_ghosts, &mut self.lru_ghosts] {
            let had = |one: &(u64, TimeRange)| one.0 == key_hash && one.1.overlaps(range);
            if ghosts.slabs.iter().any(|contents| contents.iter().any(had)) {
                ghosts.hits += 1;
                ghosts.hits_total += 1;
            }
        }
    }

    fn stats(&self) -> PolicyStats {
        PolicyStats {
            fifo_slabs: (self.older.len() + self.newer.len()) as u64,
            lru_slabs: self.lru.len() as u64,
            lru_slabs_max: self.lru_count_max.min(self.slab_count_max) as u64,
            evictions: [self.fifo_ghosts.evictions, self.lru_ghosts.evictions],
            ghost_hits: [self.fifo_ghosts.hits_total, self.lru_ghosts.hits_total],
        }
    }

    fn keeps_used_ranges(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(slab_count: u64) -> UsedRanges {
        let mut policy = UsedRanges::new(slab_count as usize);
        (0..slab_count).for_each(|slab| policy.insert(slab, 100 - slab as i64));
        policy
    }

    fn evict(policy: &mut UsedRanges) -> SlabId {
        let victim = policy.victim().unwrap();
        policy.evict(victim, vec![(victim, TimeRange::at(0))]);
        victim
    }

    #[test]
    fn slabs_are_evicted_in_the_order_of_arrival() {
        let mut policy = policy(4);
        assert_eq!([evict(&mut policy), evict(&mut policy)], [0, 1]);
        policy.remove(2);
        assert_eq!(evict(&mut policy), 3);
        assert_eq!(policy.victim(), None);
    }

    #[test]
    fn a_slab_of_the_older_half_that_is_used_again_stays_and_cools_down() {
        let mut policy = policy(6);
        policy.touch(5);
        assert!(!policy.is_hot(5), "the newer half does not move");
        (0..3).for_each(|slab| policy.touch(slab));
        // Two fit: the first of the three has cooled down.
        assert_eq!(policy.stats().lru_slabs_max, 2);
        assert_eq!([0, 1, 2].map(|slab| policy.is_hot(slab)), [false, true, true]);
        assert_eq!(evict(&mut policy), 0);
        // Hits on the oldest of the FIFO partition and none on ghosts: that partition grows.
        assert_eq!(policy.stats().lru_slabs_max, 1);
        assert_eq!([evict(&mut policy), evict(&mut policy)], [1, 3]);
    }

    #[test]
    fn a_kept_victim_is_evicted_later() {
        let mut policy = policy(6);
        assert_eq!(policy.next_victims(2), [0, 1]);
        policy.keep(0);
        assert!(policy.is_hot(0));
        assert_eq!(policy.next_victims(6), [1, 2, 3, 4, 5, 0]);
        // The third kept slab replaces the first.
        (1..3).for_each(|slab| policy.keep(slab));
        assert_eq!([0, 1, 2].map(|slab| policy.is_hot(slab)), [false, true, true]);
        assert_eq!(policy.victim(), Some(0));
    }

    #[test]
    fn ghosts_move_the_border() {
        let mut policy = policy(12);
        let start = policy.stats().lru_slabs_max;
        let mut next = 12;
        let mut round = |policy: &mut UsedRanges, hot: bool| {
            if hot {
                // Hot slabs are evicted, and looked up again.
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
}
