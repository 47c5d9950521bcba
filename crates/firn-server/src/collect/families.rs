//! The metadata of each target's metrics.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use firn_collect::pool::TargetId;
use firn_model::{Budget, Pool, Reservation};

use crate::metadata::Metadata;

/// A metric family of a target.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Family {
    pub(crate) name: Box<str>,
    pub(crate) metadata: Metadata,
}

/// The families whose comment lines a scrape has changed, in order of names.
#[derive(Debug, Default)]
pub(crate) struct TargetFamilies(Vec<Family>);

/// The families of all targets. Targets of the same program share them.
#[derive(Debug)]
pub(crate) struct Families {
    shared: HashSet<Arc<Family>>,
    targets: HashMap<TargetId, Vec<Arc<Family>>>,
    /// Without memory, families are left out.
    held: Reservation,
    bytes: u64,
    /// The most memory that they take.
    bytes_max: u64,
    /// Families that were put since those of no target were last searched for.
    put_count: usize,
}

// An entry of the set with its allocation, beside its texts; and one of a target's list, which
// grows to twice its length.
const FAMILY_BYTES: usize = 192;
const LISTED_BYTES: u64 = 16;
const TARGET_BYTES: u64 = 64;
// The families of one target, those of other targets included: some 15,000. A program has a few
// hundred, and one that renames its metrics would add to them with every scrape.
const FAMILIES_BYTES_MAX: u64 = 4 << 20;
// All of them may take this part of the memory, and a MiB in any case.
const MEMORY_PART: u64 = 8;
const BYTES_MAX_MIN: u64 = 1 << 20;

impl TargetFamilies {
    /// The families in the metadata of one scrape.
    pub(crate) fn of(entries: &[(Box<str>, Metadata)]) -> TargetFamilies {
        let family = |(name, metadata): &(Box<str>, Metadata)| Family {
            name: name.clone(),
            metadata: metadata.clone(),
        };
        let mut families: Vec<Family> = entries.iter().map(family).collect();
        families.sort_by(|a, b| a.name.cmp(&b.name));
        families.dedup_by(|a, b| a.name == b.name);
        TargetFamilies(families)
    }
}

impl Family {
    fn heap_bytes(&self) -> u64 {
        let texts = [&self.name, &self.metadata.help, &self.metadata.unit].map(|text| text.len());
        (texts.iter().sum::<usize>() + FAMILY_BYTES) as u64
    }
}

impl Families {
    /// No families. Their memory is part of `budget`.
    pub(crate) fn new(budget: &Budget) -> Families {
        Families {
            shared: HashSet::new(),
            targets: HashMap::new(),
            held: budget.empty(Pool::Cache),
            bytes: 0,
            bytes_max: (budget.usage().limit_bytes / MEMORY_PART).max(BYTES_MAX_MIN),
            put_count: 0,
        }
    }

    /// Adds families of a target, in place of those of the same names, and of all others if there
    /// are too many. Scrapes wait meanwhile: the work is that of the two lists.
    pub(crate) fn put(&mut self, id: TargetId, families: TargetFamilies) {
        if families.0.is_empty() {
            return;
        }
        self.put_count = self.put_count.saturating_add(families.0.len());
        let mut old = self.take(id);
        let new: Vec<_> = families.0.into_iter().filter_map(|family| self.intern(family)).collect();
        let mut released = Vec::new();
        if families_bytes(&old).saturating_add(families_bytes(&new)) > FAMILIES_BYTES_MAX {
            std::mem::swap(&mut released, &mut old);
        }
        let mut list = merged(old, new, &mut released);
        if !list.is_empty() {
            list.shrink_to_fit();
            self.bytes += list_bytes(&list);
            self.targets.insert(id, list);
        }
        self.release(released);
    }

    /// The families of a target in order of names.
    pub(crate) fn of(&self, id: TargetId) -> &[Arc<Family>] {
        self.targets.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The bytes of the types, help texts and units of a target.
    pub(crate) fn text_bytes(&self, id: TargetId) -> usize {
        let metadata = self.of(id).iter().map(|family| &family.metadata);
        metadata.map(|m| m.kind.name().len() + m.help.len() + m.unit.len()).sum()
    }

    /// The target was removed.
    pub(crate) fn remove(&mut self, id: TargetId) {
        let released = self.take(id);
        self.release(released);
    }

    /// Removes the targets that are not kept.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(TargetId) -> bool) {
        let removed: Vec<TargetId> =
            self.targets.keys().copied().filter(|id| !is_kept(*id)).collect();
        for id in removed {
            self.take(id);
        }
        self.sweep();
    }

    fn take(&mut self, id: TargetId) -> Vec<Arc<Family>> {
        let list = self.targets.remove(&id).unwrap_or_default();
        if !list.is_empty() {
            self.bytes = self.bytes.saturating_sub(list_bytes(&list));
        }
        list
    }

    /// The shared form of a family; `None` without memory.
    fn intern(&mut self, family: Family) -> Option<Arc<Family>> {
        if let Some(known) = self.shared.get(&family) {
            return Some(Arc::clone(known));
        }
        let bytes = self.bytes + family.heap_bytes();
        // Room for the lists, too.
        if bytes > self.bytes_max || !self.held.cover_of_free(bytes + bytes / 8) {
            return None;
        }
        self.bytes = bytes;
        let family = Arc::new(family);
        self.shared.insert(Arc::clone(&family));
        Some(family)
    }

    /// Forgets those of `families` that no target has any more.
    fn release(&mut self, families: Vec<Arc<Family>>) {
        for family in families {
            // That of the set, and this one.
            if Arc::strong_count(&family) == 2 && self.shared.remove(&family) {
                self.bytes = self.bytes.saturating_sub(family.heap_bytes());
            }
        }
        match self.put_count > self.shared.len() {
            true => self.sweep(),
            false => self.settle(),
        }
    }

    /// Forgets all families that no target has: a request may have listed some when they were
    /// released.
    fn sweep(&mut self) {
        self.put_count = 0;
        let mut freed = 0;
        self.shared.retain(|family| {
            let is_used = Arc::strong_count(family) > 1;
            freed += if is_used { 0 } else { family.heap_bytes() };
            is_used
        });
        self.bytes = self.bytes.saturating_sub(freed);
        self.settle();
    }

    fn settle(&mut self) {
        self.held.shrink_to(self.bytes + self.bytes / 8);
        let missing = self.bytes.saturating_sub(self.held.bytes());
        self.held.take(missing);
    }
}

/// Both lists in order of names. Of two families with one name the new one stays, and the old one
/// is added to `released`.
fn merged(
    old: Vec<Arc<Family>>,
    new: Vec<Arc<Family>>,
    released: &mut Vec<Arc<Family>>,
) -> Vec<Arc<Family>> {
    let mut list = Vec::with_capacity(old.len().saturating_add(new.len()));
    let mut old = old.into_iter().peekable();
    for family in new {
        while let Some(before) = old.next_if(|known| known.name < family.name) {
            list.push(before);
        }
        released.extend(old.next_if(|known| known.name == family.name));
        list.push(family);
    }
    list.extend(old);
    list
}

fn families_bytes(list: &[Arc<Family>]) -> u64 {
    list.iter().map(|family| family.heap_bytes()).sum()
}

fn list_bytes(list: &[Arc<Family>]) -> u64 {
    list.len() as u64 * LISTED_BYTES + TARGET_BYTES
}

#[cfg(test)]
mod tests {
    use firn_collect::config::Config;
    use firn_collect::pool::{DiscoveredGroup, PreparedList, ScrapePools};
    use firn_collect::scrape::ScrapeContext;

    use super::*;
    use firn_model::MetricType;

    /// Ids of two targets.
    fn ids() -> Vec<TargetId> {
        let budget = Budget::new(1 << 20);
        let context = ScrapeContext { phase_seed: 0, budget: budget.clone() };
        let mut pools = ScrapePools::new(context);
        let loaded = Config::parse("scrape_configs: [{job_name: j}]", &|_| None).unwrap();
        let jobs: Vec<_> = loaded.config.scrape_configs.iter().cloned().map(Arc::new).collect();
        pools.set_jobs(&jobs, 0);
        let target = |address: &str| [("__address__", address)].into_iter().collect();
        let group =
            DiscoveredGroup { targets: vec![target("a"), target("b")], ..Default::default() };
        let list = PreparedList::read(&jobs[0], [&group], &budget, 64, |_| None);
        pools.sync("j", list, 0).unwrap();
        let (_, pool) = pools.pools().next().unwrap();
        pools.targets(pool).map(|target| target.id).collect()
    }

    fn families(names: &[(&str, &str)]) -> TargetFamilies {
        let entry = |(name, help): &(&str, &str)| {
            (Box::from(*name), Metadata::new(MetricType::Gauge, help, ""))
        };
        TargetFamilies::of(&names.iter().map(entry).collect::<Vec<_>>())
    }

    fn shown(all: &Families, id: TargetId) -> Vec<(&str, &str)> {
        all.of(id).iter().map(|family| (&*family.name, &*family.metadata.help)).collect()
    }

    #[test]
    fn targets_share_families_and_release_them() {
        let (ids, budget) = (ids(), Budget::new(1 << 20));
        let mut all = Families::new(&budget);
        for &id in &ids {
            all.put(id, families(&[("b", "2"), ("a", "1")]));
        }
        assert_eq!(shown(&all, ids[1]), [("a", "1"), ("b", "2")]);
        assert_eq!(all.shared.len(), 2);
        all.put(ids[0], families(&[("b", "new"), ("c", "3")]));
        all.put(ids[0], families(&[]));
        assert_eq!(shown(&all, ids[0]), [("a", "1"), ("b", "new"), ("c", "3")]);
        assert_eq!((shown(&all, ids[1])[1], all.shared.len()), (("b", "2"), 4));
        assert_eq!(ids.iter().map(|id| all.text_bytes(*id)).collect::<Vec<_>>(), [20, 12]);
        assert!(budget.usage().used_bytes >= all.bytes && all.bytes > 4 * FAMILY_BYTES as u64);
        all.remove(ids[1]);
        assert_eq!(all.shared.len(), 3);
        all.retain(|_| false);
        assert_eq!((all.shared.len(), all.bytes, budget.usage().used_bytes), (0, 0, 0));
    }

    #[test]
    fn families_without_memory_are_left_out() {
        let (ids, budget) = (ids(), Budget::new(700));
        let mut all = Families::new(&budget);
        let names: Vec<String> = (0..100).map(|idx| format!("m{idx:02}")).collect();
        let names: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        all.put(ids[0], families(&names));
        assert!((1..4).contains(&all.of(ids[0]).len()), "{}", all.of(ids[0]).len());
    }

    /// Before, a target that renamed its metrics with every scrape had the families of all of them,
    /// and each scrape moved and visited all of these while no other target was scraped.
    #[test]
    fn a_target_that_renames_its_metrics_keeps_the_last_ones() {
        let (ids, budget) = (ids(), Budget::new(1 << 30));
        let mut all = Families::new(&budget);
        all.put(ids[1], families(&[("up", "")]));
        let help = "x".repeat(800);
        for round in 0..10 {
            let names: Vec<String> = (0..1_500).map(|idx| format!("m{round}_{idx:04}")).collect();
            let names: Vec<_> = names.iter().map(|name| (name.as_str(), help.as_str())).collect();
            all.put(ids[0], families(&names));
            assert!(all.bytes < FAMILIES_BYTES_MAX + (1 << 20), "{}", all.bytes);
            let kept = shown(&all, ids[0]);
            assert!(names.iter().all(|name| kept.contains(name)) && kept.is_sorted());
        }
        assert_eq!(shown(&all, ids[1]), [("up", "")]);
        all.put(ids[1], families(&[("up", "help")]));
        all.remove(ids[0]);
        assert_eq!(all.shared.len(), 1);
    }

    #[test]
    fn families_of_a_running_request_are_forgotten_later() {
        let (ids, budget) = (ids(), Budget::new(1 << 20));
        let mut all = Families::new(&budget);
        all.put(ids[0], families(&[("a", "1"), ("b", "1")]));
        let listed = all.of(ids[0]).to_vec();
        all.put(ids[0], families(&[("a", "2")]));
        drop(listed);
        for help in ["3", "4", "5"] {
            all.put(ids[0], families(&[("a", help)]));
        }
        assert_eq!((all.shared.len(), shown(&all, ids[0])[0]), (2, ("a", "5")));
    }

    #[test]
    fn all_families_take_a_part_of_the_memory() {
        let (ids, budget) = (ids(), Budget::new(16 << 20));
        let mut all = Families::new(&budget);
        let help = "x".repeat(800);
        for &id in &ids {
            let names: Vec<String> = (0..1_500).map(|idx| format!("{id:?}{idx:04}")).collect();
            let names: Vec<_> = names.iter().map(|name| (name.as_str(), help.as_str())).collect();
            all.put(id, families(&names));
        }
        assert!(all.bytes <= (2 << 20) + (1 << 17), "{}", all.bytes);
        assert!(all.of(ids[0]).len() == 1_500 && all.of(ids[1]).len() < 1_000);
    }
}
