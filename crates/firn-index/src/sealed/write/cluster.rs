//! Clusters similar groups: groups with nearly the same members share one list, the master shape,
//! and each stores the members that it lacks.
//!
//! Groups are processed from the largest to the smallest. A group joins the master shape that
//! contains most of its members if at least three quarters of both are common. Members that the
//! master lacks are inserted after their predecessor in the group, so that slots ascend with
//! positions in nearly all groups.

use hashbrown::HashMap;

const NONE: u32 = u32::MAX;
// Members of a group that vote for a master.
const VOTES: usize = 16;

/// The shapes, and the shape of each group.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    /// Member sets by position.
    pub(crate) shapes: Vec<Vec<u32>>,
    /// By group, in the order of the input.
    pub(crate) shape_of: Vec<u32>,
}

#[derive(Debug)]
struct MasterShape {
    /// The index of a set in `order`.
    places: HashMap<u32, u32>,
    /// A linked list of sets by index; entry 0 is a head without a set.
    order: Vec<(u32, u32)>,
}

/// `groups` are lists of member sets in order of slots; sets are below `set_count`.
pub(crate) fn cluster(groups: &[Vec<u32>], set_count: usize) -> Clusters {
    let mut by_size: Vec<u32> = (0..groups.len() as u32).collect();
    by_size.sort_by_key(|&group| std::cmp::Reverse(groups[group as usize].len()));
    let mut last_master = vec![NONE; set_count];
    let mut masters: Vec<MasterShape> = Vec::new();
    let mut shape_of = vec![0; groups.len()];
    for group in by_size {
        let sets = &groups[group as usize];
        let master = match vote(sets, &last_master).filter(|&m| masters[m as usize].suits(sets)) {
            Some(master) => master,
            None => {
                masters.push(MasterShape { places: HashMap::new(), order: vec![(NONE, NONE)] });
                masters.len() as u32 - 1
            }
        };
        masters[master as usize].take_in(sets);
        sets.iter().for_each(|&set| last_master[set as usize] = master);
        shape_of[group as usize] = master;
    }
    Clusters { shapes: masters.iter().map(MasterShape::sets).collect(), shape_of }
}

/// The most frequent last master of a sample of members.
fn vote(sets: &[u32], last_master: &[u32]) -> Option<u32> {
    let step = (sets.len() / VOTES).max(1);
    let mut votes: Vec<u32> = sets
        .iter()
        .step_by(step)
        .map(|&set| last_master[set as usize])
        .filter(|&master| master != NONE)
        .collect();
    votes.sort_unstable();
    votes.chunk_by(|a, b| a == b).max_by_key(|same| same.len()).map(|same| same[0])
}

impl MasterShape {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn suits(&self, sets: &[u32]) -> bool {
        let shared = sets.iter().filter(|set| self.places.contains_key(*set)).count();
        4 * shared >= 3 * sets.len() && 4 * shared >= 3 * self.len()
    }

    fn take_in(&mut self, sets: &[u32]) {
        let mut before = 0;
        for &set in sets {
            if let Some(&place) = self.places.get(&set) {
                before = place;
                continue;
            }
            let place = self.order.len() as u32;
            let next = std::mem::replace(&mut self.order[before as usize].1, place);
            self.order.push((set, next));
            self.places.insert(set, place);
            before = place;
        }
    }

    fn sets(&self) -> Vec<u32> {
        let mut sets = Vec::with_capacity(self.len());
        let mut next = self.order[0].1;
        while let Some(&(set, after)) = self.order.get(next as usize) {
            sets.push(set);
            next = after;
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_lack_a_few_members_share_a_shape() {
        let whole: Vec<u32> = (0..40).collect();
        let without =
            |gone: &[u32]| -> Vec<u32> { (0..40).filter(|set| !gone.contains(set)).collect() };
        let groups = [
            without(&[3, 9]),
            without(&[5]),
            whole.clone(),
            (40..60).collect(),
            (30..50).collect(),
        ];
        let clusters = cluster(&groups, 60);
        assert_eq!(clusters.shape_of[..3], [clusters.shape_of[2]; 3]);
        assert_eq!(clusters.shapes[clusters.shape_of[2] as usize], whole);
        assert_eq!(clusters.shapes[clusters.shape_of[3] as usize], (40..60).collect::<Vec<_>>());
        assert_eq!(clusters.shapes.len(), 3);
    }

    #[test]
    fn a_new_member_is_inserted_after_its_predecessor() {
        let groups = [vec![0, 1, 2, 4, 5, 6, 7, 8], vec![0, 1, 2, 3, 4, 5, 6, 7]];
        let clusters = cluster(&groups, 9);
        assert_eq!(clusters.shapes, [vec![0, 1, 2, 3, 4, 5, 6, 7, 8]]);
    }
}
