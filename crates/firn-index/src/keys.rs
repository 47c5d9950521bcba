//! Group keys: which labels an aggregation tells apart, as a number per series.
//!
//! The labels of a group are projected once per group and those of a member once per distinct member
//! set; label sets are only built for pairs of projections that were not seen before. A `sum by
//! (instance)` over a million grouped series builds as many label sets as there are instances.

use firn_model::{Grouping, Labels, METRIC_NAME};
use hashbrown::HashMap;

use crate::state::{Place, State};

/// Gives keys and remembers them.
#[derive(Debug)]
pub(crate) struct Keys {
    kind: Kind,
    projections: HashMap<Vec<u32>, u32>,
    /// Member set to projection.
    of_set: HashMap<u32, u32>,
    /// (group's projection, member's projection) to key.
    of_both: HashMap<(u32, u32), u32>,
    of_labels: HashMap<Labels, u32>,
    /// The last answer: (group, set, key).
    last: Option<(u32, u32, u32)>,
    /// The last group's projection.
    last_group: Option<(u32, u32)>,
    keys: Vec<Labels>,
}

#[derive(Debug)]
enum Kind {
    /// One key per series.
    Series,
    /// Only these names.
    Only(Vec<u32>),
    /// All but these names.
    AllBut(Vec<u32>),
}

impl Keys {
    pub(crate) fn new(state: &State, grouping: &Grouping) -> Keys {
        // A name that is unknown now is on no series that the view shows.
        let ids = |names: &[String]| -> Vec<u32> {
            names.iter().filter_map(|name| state.pairs.find_name(name.as_bytes())).collect()
        };
        let kind = match grouping {
            Grouping::Series => Kind::Series,
            Grouping::By(names) => Kind::Only(ids(names)),
            Grouping::Without(names) => {
                let mut names = ids(names);
                names.extend(state.pairs.find_name(METRIC_NAME.as_bytes()));
                Kind::AllBut(names)
            }
        };
        Keys {
            kind,
            projections: HashMap::new(),
            of_set: HashMap::new(),
            of_both: HashMap::new(),
            of_labels: HashMap::new(),
            last: None,
            last_group: None,
            keys: Vec::new(),
        }
    }

    /// The key of the series at `place`, whose member set is `set`.
    pub(crate) fn key(&mut self, state: &State, place: Place, set: u32) -> u32 {
        if matches!(self.kind, Kind::Series) {
            self.keys.push(state.labels_at(place));
            return self.keys.len() as u32 - 1;
        }
        if let Some((group_no, last_set, key)) = self.last
            && (group_no, last_set) == (place.group_no, set)
        {
            return key;
        }
        let group = self.group_projection(state, place.group_no);
        let member = self.set_projection(state, set);
        let key = match self.of_both.get(&(group, member)) {
            Some(&key) => key,
            None => self.make_key(state, place, (group, member)),
        };
        self.last = Some((place.group_no, set, key));
        key
    }

    /// All keys, by number.
    pub(crate) fn into_labels(self) -> Vec<Labels> {
        self.keys
    }

    fn group_projection(&mut self, state: &State, group_no: u32) -> u32 {
        if let Some((last, projection)) = self.last_group
            && last == group_no
        {
            return projection;
        }
        let pairs = self.project(state, state.groups.labels(group_no));
        let projection = self.intern(pairs);
        self.last_group = Some((group_no, projection));
        projection
    }

    fn set_projection(&mut self, state: &State, set: u32) -> u32 {
        if let Some(&projection) = self.of_set.get(&set) {
            return projection;
        }
        let pairs = self.project(state, state.sets.pairs(set));
        let projection = self.intern(pairs);
        self.of_set.insert(set, projection);
        projection
    }

    fn project(&self, state: &State, pairs: impl Iterator<Item = u32>) -> Vec<u32> {
        pairs.filter(|&pair| self.keeps(state.pairs.pair(pair).name)).collect()
    }

    fn keeps(&self, name: u32) -> bool {
        match &self.kind {
            Kind::Series => true,
            Kind::Only(names) => names.contains(&name),
            Kind::AllBut(names) => !names.contains(&name),
        }
    }

    fn intern(&mut self, pairs: Vec<u32>) -> u32 {
        let next = self.projections.len() as u32;
        *self.projections.entry(pairs).or_insert(next)
    }

    fn make_key(&mut self, state: &State, place: Place, both: (u32, u32)) -> u32 {
        let group = self.project(state, state.groups.labels(place.group_no));
        let member = self.project(state, state.sets.pairs(state.set_of(place)));
        let labels = state.labels_of(group.into_iter(), member.into_iter());
        // The same labels may be split otherwise between another group and its members.
        let next = self.keys.len() as u32;
        let key = *self.of_labels.entry(labels.clone()).or_insert(next);
        if key == next {
            self.keys.push(labels);
        }
        self.of_both.insert(both, key);
        key
    }
}
