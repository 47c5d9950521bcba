//! The labels of series as a destination receives them: with external labels, relabelled, encoded.

use std::collections::HashMap;
use std::sync::Arc;

use firn_collect::config::RuleList;
use firn_collect::relabel::LabelEditor;
use firn_model::{Labels, Reservation, Result, SeriesRef};
use firndb::Db;

use super::message::encode_labels;

/// The labels of a series that is sent; `None` if relabelling drops it, or it does not exist.
pub(super) type Outgoing = Option<Arc<[u8]>>;

/// The labels of the series that were sent last. Half of it is dropped when it is full: series that
/// are still written come back.
#[derive(Debug)]
pub(super) struct OutgoingLabels {
    external: Labels,
    rules: RuleList,
    editor: LabelEditor,
    recent: HashMap<SeriesRef, Outgoing>,
    recent_bytes: u64,
    older: HashMap<SeriesRef, Outgoing>,
    bytes_max: u64,
    memory: Reservation,
}

// A place in the table, and the head of the shared bytes.
const ENTRY_BYTES: u64 = 96;

impl OutgoingLabels {
    /// An empty cache of at most `bytes_max`. `memory` reserves its entries.
    pub(super) fn new(
        external: Labels,
        rules: RuleList,
        bytes_max: u64,
        memory: Reservation,
    ) -> OutgoingLabels {
        OutgoingLabels {
            external,
            rules,
            editor: LabelEditor::default(),
            recent: HashMap::new(),
            recent_bytes: 0,
            older: HashMap::new(),
            bytes_max,
            memory,
        }
    }

    /// The labels of `wanted`, in the same order.
    ///
    /// # Errors
    /// `Corrupt` if a file of the index is damaged.
    pub(super) fn resolve(&mut self, db: &Db, wanted: &[SeriesRef]) -> Result<Vec<Outgoing>> {
        let mut found: Vec<Option<Outgoing>> =
            wanted.iter().map(|series| self.cached(*series)).collect();
        let missing: Vec<SeriesRef> = wanted
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_none())
            .map(|(series, _)| *series)
            .collect();
        let mut labels = db.labels_of(&missing)?.into_iter();
        for (series, found) in wanted.iter().zip(&mut found) {
            if found.is_none() {
                let outgoing = labels.next().flatten().and_then(|labels| self.outgoing(&labels));
                self.add(*series, outgoing.clone());
                *found = Some(outgoing);
            }
        }
        Ok(found.into_iter().map(Option::flatten).collect())
    }

    fn cached(&mut self, series: SeriesRef) -> Option<Outgoing> {
        if let Some(found) = self.recent.get(&series) {
            return Some(found.clone());
        }
        let found = self.older.remove(&series)?;
        self.add(series, found.clone());
        Some(found)
    }

    fn add(&mut self, series: SeriesRef, outgoing: Outgoing) {
        let bytes = ENTRY_BYTES + outgoing.as_ref().map_or(0, |labels| labels.len() as u64);
        if bytes > self.bytes_max / 2 {
            return;
        }
        let is_full = self.recent_bytes + bytes > self.bytes_max / 2;
        if is_full || self.memory.grow(bytes).is_err() {
            self.older = std::mem::take(&mut self.recent);
            self.memory.shrink(self.memory.bytes().saturating_sub(self.recent_bytes));
            self.recent_bytes = 0;
            if self.memory.grow(bytes).is_err() {
                return;
            }
        }
        self.recent_bytes += bytes;
        self.recent.insert(series, outgoing);
    }

    /// External labels first, as in Prometheus: rules see them.
    fn outgoing(&mut self, labels: &Labels) -> Outgoing {
        self.editor.reset(labels);
        for (name, value) in self.external.iter() {
            if self.editor.get(name).is_empty() && self.editor.set(name, value).is_err() {
                return None;
            }
        }
        match self.rules.rules().apply(&mut self.editor) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => {
                tracing::error!(%error, "a series is not sent: its labels cannot be changed");
                return None;
            }
        }
        let labels = self.editor.labels();
        (!labels.is_empty()).then(|| Arc::from(encode_labels(&labels)))
    }
}

#[cfg(test)]
mod tests {
    use firn_collect::config::Config;
    use firn_model::{Budget, GroupId, Pool, Slot};
    use firndb::{Options, local_env};

    use super::*;

    const TEXT: &str = "remote_write:\n- url: 'http://a'\n  write_relabel_configs:\n\
        \x20 - {source_labels: [region, idx], regex: 'eu;3', action: drop}\n\
        \x20 - {source_labels: [idx], regex: (.*), target_label: idx, replacement: 'i$1'}\n";

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::from_pairs(pairs.iter().copied()).unwrap()
    }

    /// With and without room for all series, the same labels come out.
    #[test]
    fn external_labels_are_added_before_the_rules_whatever_is_cached() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let sets: Vec<Labels> = (0..6)
            .map(|idx| labels(&[("__name__", "m"), ("idx", &idx.to_string())]))
            .chain([labels(&[("__name__", "m"), ("idx", "9"), ("region", "us")])])
            .collect();
        let refs = db.resolve(&sets).into_iter().map(Result::unwrap);
        let unknown = SeriesRef { group: GroupId(1 << 40), slot: Slot(0) };
        let wanted: Vec<SeriesRef> = refs.chain([unknown]).collect();
        let rules = &Config::parse(TEXT, &|_| None).unwrap().config.remote_write;
        let rules = rules.iter().next().unwrap().write_relabel_configs.clone();
        let encoded = |pairs: &[(&str, &str)]| Some(Arc::from(encode_labels(&labels(pairs))));
        let expected: Vec<Outgoing> = (0..6)
            .map(|idx| match idx {
                3 => None,
                _ => encoded(&[("__name__", "m"), ("idx", &format!("i{idx}")), ("region", "eu")]),
            })
            .chain([encoded(&[("__name__", "m"), ("idx", "i9"), ("region", "us")]), None])
            .collect();
        for bytes_max in [1 << 20, 1_000, 0] {
            let budget = Budget::unlimited().part(1 << 20);
            let memory = budget.empty(Pool::Requests);
            let external = labels(&[("region", "eu")]);
            let mut cache = OutgoingLabels::new(external, rules.clone(), bytes_max, memory);
            for _ in 0..3 {
                assert_eq!(cache.resolve(&db, &wanted).unwrap(), expected, "{bytes_max}");
                assert!(cache.memory.bytes() <= bytes_max, "{}", cache.memory.bytes());
            }
        }
    }
}
