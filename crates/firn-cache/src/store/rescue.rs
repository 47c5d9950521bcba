//! Keeps the used ranges of slabs that must be evicted: the ranges that were looked up since their
//! slab was written move together into new slabs, which are hot.
//!
//! TSCache keeps or drops whole slabs (3.6). But a slab contains the results of many queries, old
//! and new, of all keys, and is nearly always used by some of them: use distinguishes ranges, not
//! slabs. Ranges that were not looked up again, and unreachable points, are dropped. Measurements:
//! docs/decisions/0014-cache-eviction.md.

use std::collections::HashMap;

use firn_model::TimeRange;

use super::compact::Merge;
use super::state::{Body, Node, StoreOptions, StoreState};
use crate::key_index::{KeyEntry, Segment};
use crate::policy::SlabId;

/// Slabs that are evicted together.
const VICTIMS_MAX: usize = 8;
/// A slab with a larger used share stays in its slot: moving it would free little.
const KEPT_SHARE_MIN: f64 = 0.75;
/// A smaller share is not worth a new slab.
const RESCUED_SHARE_MIN: f64 = 0.1;

impl StoreState {
    /// Which ranges of the next victims should move, if a slot is needed; `None` if there are none.
    pub(super) fn plan_rescue(&mut self, options: &StoreOptions) -> Option<Merge> {
        let is_wanted = self.policy.keeps_used_ranges() && !self.has_place();
        if !is_wanted || !self.dying.is_empty() {
            return None;
        }
        let victim_count = VICTIMS_MAX.min(self.slot_count as usize / 4);
        let mut shares: HashMap<SlabId, f64> = HashMap::new();
        let mut victims = Vec::new();
        // Each round keeps one slab, which then has no used range, so the loop ends.
        for _ in 0..self.slot_count {
            victims = self.policy.next_victims(victim_count);
            for &id in &victims {
                shares.entry(id).or_insert_with(|| {
                    self.share_of(id, options.slab_bytes, |range, one| range.intersect(one.used))
                });
            }
            let Some(&kept) = victims.iter().find(|id| shares[*id] > KEPT_SHARE_MIN) else { break };
            shares.insert(kept, 0.0);
            self.cool(kept);
            self.policy.keep(kept);
        }
        let field = self.nodes.get(victims.first()?)?.field;
        victims.retain(|id| self.nodes.get(id).is_some_and(|node| node.field == field));
        let count = fullest(victims.iter().map(|id| shares[id]))?;
        victims.truncate(count);
        self.merge_of(&victims, options.slab_bytes, true, true)
    }

    /// The share of its slot that a part of the reachable points of a slab takes.
    pub(super) fn share_of(
        &self,
        slab: SlabId,
        slab_bytes: u32,
        part: impl Fn(TimeRange, Segment) -> TimeRange,
    ) -> f64 {
        let Some(Node { field, keys, body: Body::Flash(flash), .. }) = self.nodes.get(&slab) else {
            return 0.0;
        };
        let Some(field) = self.fields.get(field) else { return 0.0 };
        let entries = keys.keys().filter_map(|text| field.keys.get(text));
        let own = entries.flat_map(KeyEntry::segments).filter(|one| one.1.slab == slab);
        let bytes: f64 = own.map(|(range, one)| one.bytes_of(part(range, one))).sum();
        // Points that keys share are counted for each of them.
        let share = (bytes / flash.payload_bytes.max(1) as f64).min(1.0);
        share * f64::from(flash.preamble.data_bytes) / f64::from(slab_bytes)
    }

    fn cool(&mut self, slab: SlabId) {
        let Some(node) = self.nodes.get(&slab) else { return };
        let Some(field) = self.fields.get_mut(&node.field) else { return };
        for text in node.keys.keys() {
            if let Some(entry) = field.keys.get_mut(text) {
                entry.cool(slab);
            }
        }
    }
}

/// How many of the next victims, at least half of them, to evict together so that their used ranges
/// fill new slabs best. `None` if that is not worth a slab, or would fill as many as it frees.
fn fullest(shares: impl Iterator<Item = f64>) -> Option<usize> {
    // Sizes are estimates, and a slab is never quite full.
    const FILLED: f64 = 0.9;
    let mut sum = 0.0;
    let all: Vec<(usize, f64, f64)> = (1..)
        .zip(shares)
        .map(|(count, share)| {
            sum += share / FILLED;
            (count, sum, sum.ceil())
        })
        .collect();
    let half = all.len() / 2;
    let possible = all
        .into_iter()
        .skip(half)
        .filter(|&(count, sum, slabs)| sum > RESCUED_SHARE_MIN && slabs < count as f64);
    possible.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2))).map(|one| one.0)
}
