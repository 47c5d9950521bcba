//! Eviction policies that the cache is compared with: the paper's, its baselines, and S3-FIFO.
//!
//! All of them evict whole slabs, and merge slabs that overlap in time even if that frees few
//! slots, as in the paper: without merges, an order by time has little effect.

use std::collections::{BTreeSet, HashMap, VecDeque};

use firn_cache::{EvictionPolicy, PolicyStats, SlabId};
use firn_model::{TimeRange, Timestamp};

/// The order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// The paper's two partitions, in the order of time (TSCache 3.6).
    TwoPartitions,
    /// The oldest data first: the paper's first baseline.
    Fifo,
    /// The least recently used first: the paper's second baseline.
    Lru,
    /// Slabs that were not used soon after they arrived, then slabs that were not used recently.
    S3Fifo,
}

/// A policy of the paper, or S3-FIFO: whole slabs, in the order of the time of their data.
#[derive(Debug)]
pub struct ComparedPolicy {
    kind: PolicyKind,
    slab_count_max: usize,
    /// The FIFO partition in two halves by time; `older` has as many slabs as `newer` or one more.
    older: BTreeSet<(Timestamp, SlabId)>,
    newer: BTreeSet<(Timestamp, SlabId)>,
    /// Slabs of the LRU partition by their last use.
    lru: BTreeSet<(u64, SlabId)>,
    slabs: HashMap<SlabId, SlabUse>,
    lru_count_max: usize,
    use_count: u64,
    fifo_ghosts: Ghosts,
    lru_ghosts: Ghosts,
    /// Hits on the slabs that are next to leave their partition.
    fifo_edge_hits: u64,
    lru_edge_hits: u64,
    /// Contains all slabs, instead of the two partitions, if that is the kind.
    s3_fifo: Option<S3Fifo>,
}

#[derive(Clone, Copy, Debug)]
struct SlabUse {
    /// The slab's key in the FIFO partition; slabs of one time are in the order of their ids.
    ts: Timestamp,
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

impl ComparedPolicy {
    /// A policy for a cache of at most `slab_count_max` slabs.
    pub fn new(kind: PolicyKind, slab_count_max: usize) -> ComparedPolicy {
        ComparedPolicy {
            kind,
            slab_count_max,
            older: BTreeSet::new(),
            newer: BTreeSet::new(),
            lru: BTreeSet::new(),
            slabs: HashMap::new(),
            // One third at the start, as in the paper.
            lru_count_max: match kind {
                PolicyKind::TwoPartitions => (slab_count_max / 3).max(1),
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

    /// Moves the border between the partitions by one slab in the direction that gains hits
    /// (TSCache 3.6).
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

    fn has_partitions(&self) -> bool {
        self.kind == PolicyKind::TwoPartitions
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
        if let Some(slab_use) = self.slabs.get_mut(&slab) {
            slab_use.stamp = Some(self.use_count);
            slab_use.was_hot |= has_partitions;
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
            if let Some(slab_use) = self.slabs.get_mut(&slab) {
                slab_use.stamp = None;
                let ts = slab_use.ts;
                self.place_in_fifo(slab, ts);
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

impl EvictionPolicy for ComparedPolicy {
    fn insert(&mut self, slab: SlabId, ts: Timestamp) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.insert(slab);
        }
        self.slabs.insert(slab, SlabUse { ts, stamp: None, was_hot: false });
        if self.kind == PolicyKind::Lru {
            self.place_in_lru(slab);
        } else {
            self.place_in_fifo(slab, ts);
        }
    }

    fn insert_hot(&mut self, slab: SlabId, ts: Timestamp) {
        if self.s3_fifo.is_some() {
            return self.insert(slab, ts);
        }
        self.slabs.insert(slab, SlabUse { ts, stamp: None, was_hot: true });
        self.place_in_lru(slab);
        self.shrink_lru();
    }

    fn is_hot(&self, slab: SlabId) -> bool {
        self.slabs.get(&slab).is_some_and(|slab_use| slab_use.stamp.is_some())
    }

    fn touch(&mut self, slab: SlabId) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.touch(slab);
        }
        let Some(&slab_use) = self.slabs.get(&slab) else { return };
        match slab_use.stamp {
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
                if self.older.remove(&(slab_use.ts, slab)) {
                    self.place_in_lru(slab);
                    self.balance();
                    self.shrink_lru();
                }
            }
            None => {}
        }
    }

    fn remove(&mut self, slab: SlabId) {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.remove(slab);
        }
        let Some(slab_use) = self.slabs.remove(&slab) else { return };
        if let Some(stamp) = slab_use.stamp {
            self.lru.remove(&(stamp, slab));
        }
        self.older.remove(&(slab_use.ts, slab));
        self.newer.remove(&(slab_use.ts, slab));
        self.balance();
    }

    fn victim(&mut self) -> Option<SlabId> {
        if let Some(s3_fifo) = &mut self.s3_fifo {
            return s3_fifo.victim();
        }
        let fifo = self.older.first().map(|one| one.1);
        fifo.or_else(|| self.lru.first().map(|one| one.1))
    }

    fn next_victims(&self, count: usize) -> Vec<SlabId> {
        let fifo = self.older.iter().chain(&self.newer).map(|one| one.1);
        fifo.chain(self.lru.iter().map(|one| one.1)).take(count).collect()
    }

    fn keep(&mut self, slab: SlabId) {
        let Some(&slab_use) = self.slabs.get(&slab) else { return };
        if let Some(stamp) = slab_use.stamp {
            self.lru.remove(&(stamp, slab));
        }
        self.older.remove(&(slab_use.ts, slab));
        self.newer.remove(&(slab_use.ts, slab));
        self.place_in_lru(slab);
        self.balance();
        self.shrink_lru();
    }

    fn evict(&mut self, slab: SlabId, contents: Vec<(u64, TimeRange)>) {
        let was_hot = self.slabs.get(&slab).is_some_and(|slab_use| slab_use.was_hot);
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

    fn keeps_used_ranges(&self) -> bool {
        false
    }
}

/// More uses than this count as this many.
const USES_MAX: u8 = 3;

/// S3-FIFO over slabs: "FIFO queues are all you need for cache eviction" (SOSP 2023), section 4.
///
/// It has no ghost queue here: evicted data that is set again arrives in a new slab, which no queue
/// has seen.
#[derive(Debug)]
struct S3Fifo {
    /// New slabs. Slabs that are used while here move to `main`.
    small: VecDeque<SlabId>,
    small_count_max: usize,
    main: VecDeque<SlabId>,
    uses: HashMap<SlabId, u8>,
}

impl S3Fifo {
    fn new(slab_count_max: usize) -> S3Fifo {
        // A tenth, as in the paper.
        let small_count_max = (slab_count_max / 10).max(1);
        let (small, main) = (VecDeque::new(), VecDeque::new());
        S3Fifo { small, small_count_max, main, uses: HashMap::new() }
    }

    fn insert(&mut self, slab: SlabId) {
        self.small.push_back(slab);
        self.uses.insert(slab, 0);
    }

    fn touch(&mut self, slab: SlabId) {
        if let Some(uses) = self.uses.get_mut(&slab) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    fn remove(&mut self, slab: SlabId) {
        if self.uses.remove(&slab).is_some() {
            self.small.retain(|&other| other != slab);
            self.main.retain(|&other| other != slab);
        }
    }

    /// The slab to evict next; it stays at the front of its queue until it is removed.
    fn victim(&mut self) -> Option<SlabId> {
        loop {
            let is_small = self.small.len() > self.small_count_max || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let slab = *queue.front()?;
            let uses = self.uses.get_mut(&slab)?;
            if *uses == 0 {
                return Some(slab);
            }
            // One more round in the main queue for each use.
            *uses -= 1;
            queue.pop_front();
            self.main.push_back(slab);
        }
    }

    /// Slabs in the small queue, in the main one.
    fn counts(&self) -> (usize, usize) {
        (self.small.len(), self.main.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(kind: PolicyKind, slab_count_max: usize, slabs: &[SlabId]) -> ComparedPolicy {
        let mut policy = ComparedPolicy::new(kind, slab_count_max);
        slabs.iter().for_each(|&slab| policy.insert(slab, slab as i64));
        policy
    }

    fn evict(policy: &mut ComparedPolicy) -> SlabId {
        let victim = policy.victim().unwrap();
        policy.evict(victim, vec![(victim, TimeRange::at(0))]);
        victim
    }

    #[test]
    fn the_oldest_data_is_evicted_first_whenever_it_arrived() {
        let mut policy = policy(PolicyKind::TwoPartitions, 9, &[5, 3, 8, 1]);
        assert_eq!([evict(&mut policy), evict(&mut policy)], [1, 3]);
        policy.remove(5);
        assert_eq!(evict(&mut policy), 8);
        assert_eq!(policy.victim(), None);
    }

    #[test]
    fn a_slab_that_cools_down_returns_to_its_position_in_time() {
        let mut policy = policy(PolicyKind::TwoPartitions, 6, &[0, 1, 2, 3, 4, 5]);
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
    fn ghosts_move_the_border() {
        let all: Vec<SlabId> = (0..12).collect();
        let mut policy = policy(PolicyKind::TwoPartitions, 12, &all);
        let start = policy.stats().lru_slabs_max;
        let mut next = 12;
        let mut round = |policy: &mut ComparedPolicy, hot: bool| {
            if hot {
                // Hot slabs are evicted, and looked up again.
                (0..13).for_each(|_| {
                    let victim = policy.victim().unwrap();
                    policy.touch(victim);
                });
            }
            let victim = evict(policy);
            (0..40).for_each(|_| policy.missed(victim, TimeRange::at(0)));
            policy.insert(next, next as i64);
            next += 1;
        };
        (0..6).for_each(|_| round(&mut policy, true));
        let grown = policy.stats().lru_slabs_max;
        assert!(grown > start, "{:?}", policy.stats());
        (0..12).for_each(|_| round(&mut policy, false));
        assert!(policy.stats().lru_slabs_max < grown, "{:?}", policy.stats());
    }

    #[test]
    fn the_baselines_are_what_their_names_promise() {
        let all = [PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::S3Fifo];
        let [mut fifo, mut lru, mut s3_fifo] = all.map(|kind| {
            let mut policy = policy(kind, 4, &[0, 1, 2, 3]);
            policy.touch(0);
            policy
        });
        assert_eq!([evict(&mut fifo), evict(&mut fifo)], [0, 1]);
        assert_eq!([evict(&mut lru), evict(&mut lru)], [1, 2]);
        // 0 was used and moved to the main queue, which is drained once the small one is short.
        let order = std::array::from_fn(|_| evict(&mut s3_fifo));
        assert_eq!(order, [1, 2, 0, 3]);
    }
}
