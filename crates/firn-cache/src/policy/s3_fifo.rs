//! S3-FIFO over slabs, to compare with: "FIFO queues are all you need for cache eviction" (SOSP 2023), section 4.
//!
//! Its ghost queue has no part here: data that is asked for again comes back in a slab of its own, which no queue has seen.

use std::collections::{HashMap, VecDeque};

use super::SlabId;

/// The most uses that are told apart.
const USES_MAX: u8 = 3;

#[derive(Debug)]
pub(super) struct S3Fifo {
    /// New slabs; those that were used before they leave go on to `main`.
    small: VecDeque<SlabId>,
    small_count_max: usize,
    main: VecDeque<SlabId>,
    uses: HashMap<SlabId, u8>,
}

impl S3Fifo {
    pub(super) fn new(slab_count_max: usize) -> S3Fifo {
        // A tenth, as the paper has it.
        let small_count_max = (slab_count_max / 10).max(1);
        let (small, main) = (VecDeque::new(), VecDeque::new());
        S3Fifo { small, small_count_max, main, uses: HashMap::new() }
    }

    pub(super) fn insert(&mut self, slab: SlabId) {
        self.small.push_back(slab);
        self.uses.insert(slab, 0);
    }

    pub(super) fn touch(&mut self, slab: SlabId) {
        if let Some(uses) = self.uses.get_mut(&slab) {
            *uses = (*uses + 1).min(USES_MAX);
        }
    }

    pub(super) fn remove(&mut self, slab: SlabId) {
        if self.uses.remove(&slab).is_some() {
            self.small.retain(|&other| other != slab);
            self.main.retain(|&other| other != slab);
        }
    }

    /// The slab that goes next: it stays at the front of its queue until it is removed.
    pub(super) fn victim(&mut self) -> Option<SlabId> {
        loop {
            let is_small = self.small.len() > self.small_count_max || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let slab = *queue.front()?;
            let uses = self.uses.get_mut(&slab)?;
            if *uses == 0 {
                return Some(slab);
            }
            // Used since it came: one more round in the main queue, for each use one.
            *uses -= 1;
            queue.pop_front();
            self.main.push_back(slab);
        }
    }

    /// Slabs in the small queue, in the main one.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.small.len(), self.main.len())
    }
}
