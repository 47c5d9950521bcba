//! The labels of series as a destination receives them: with external labels, relabelled, encoded.

use std::collections::HashMap;
use std::sync::Arc;

use firn_collect::config::RuleList;
use firn_collect::relabel::LabelEditor;
use firn_model::{Error, ErrorKind, Labels, Reservation, Result, SeriesRef};
use firndb::Db;

use super::message::encode_labels;
use super::share::{MemoryShare, labels_scratch_bytes};

/// The labels of a series that is sent; `None` if relabelling drops it, or it does not exist.
pub(super) type Outgoing = Option<Arc<[u8]>>;

/// The labels of the series that were sent last. Half of it is dropped when it is full: series that
/// are still written come back.
#[derive(Debug)]
pub(super) struct OutgoingLabels {
    external: Labels,
    rules: RuleList,
    editor: LabelEditor,
    /// The most bytes of texts that `editor` makes.
    made_bytes_max: u64,
    /// Series with longer labels are dropped.
    series_bytes_max: u64,
    recent: HashMap<SeriesRef, Outgoing>,
    recent_bytes: u64,
    older: HashMap<SeriesRef, Outgoing>,
    bytes_max: u64,
    memory: Reservation,
}

// A place in the table, and the head of the shared bytes.
const ENTRY_BYTES: u64 = 96;

impl OutgoingLabels {
    /// An empty cache with the limits of `share`. `memory` reserves its entries.
    pub(super) fn new(
        external: Labels,
        rules: RuleList,
        share: MemoryShare,
        memory: Reservation,
    ) -> OutgoingLabels {
        let rules_bytes_max = share.rules_bytes_max();
        let made_bytes_max = match rules.is_empty() {
            true => rules_bytes_max.min(external.as_encoded().len() as u64),
            false => rules_bytes_max,
        };
        OutgoingLabels {
            external,
            rules,
            editor: LabelEditor::within(usize::try_from(made_bytes_max).unwrap_or(usize::MAX)),
            made_bytes_max,
            series_bytes_max: share.series_bytes_max(),
            recent: HashMap::new(),
            recent_bytes: 0,
            older: HashMap::new(),
            bytes_max: share.labels_bytes(),
            memory,
        }
    }

    /// The labels of `series`. `scratch` reserves the memory for making them, and keeps it for the
    /// next call. Labels that are too long, or that rules would make so, are `None`; `complain` is
    /// called with the reason.
    ///
    /// # Errors
    /// `Busy` without memory, `Corrupt` if a file of the index is damaged.
    pub(super) fn labels(
        &mut self,
        db: &Db,
        series: SeriesRef,
        scratch: &mut Reservation,
        complain: &dyn Fn(&Error),
    ) -> Result<Outgoing> {
        if let Some(found) = self.cached(series) {
            return Ok(found);
        }
        let stored = db.labels_of(&[series])?.pop().flatten();
        let outgoing = match stored.map(|labels| self.outgoing(&labels, scratch)) {
            None => None,
            Some(Err(error)) if *error.kind() == ErrorKind::TooLarge => {
                complain(&error);
                None
            }
            Some(made) => made?,
        };
        self.add(series, outgoing.clone());
        Ok(outgoing)
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
            self.memory.shrink_to(self.recent_bytes);
            self.recent_bytes = 0;
            if self.memory.grow(bytes).is_err() {
                return;
            }
        }
        self.recent_bytes += bytes;
        self.recent.insert(series, outgoing);
    }

    /// External labels first, as in Prometheus: rules see them.
    fn outgoing(&mut self, labels: &Labels, scratch: &mut Reservation) -> Result<Outgoing> {
        let base_bytes = labels.as_encoded().len() as u64;
        self.check(base_bytes)?;
        scratch.cover(labels_scratch_bytes(base_bytes, self.made_bytes_max))?;
        self.editor.reset(labels);
        for (name, value) in self.external.iter() {
            if self.editor.get(name).is_empty() {
                self.editor.set(name, value)?;
            }
        }
        if !self.rules.rules().apply(&mut self.editor)? {
            return Ok(None);
        }
        let labels = self.editor.labels();
        if labels.is_empty() {
            return Ok(None);
        }
        let encoded = encode_labels(&labels);
        self.check(encoded.len() as u64)?;
        Ok(Some(Arc::from(encoded)))
    }

    /// # Errors
    /// `TooLarge` if labels of `bytes` bytes are too long.
    fn check(&self, bytes: u64) -> Result<()> {
        let bytes_max = self.series_bytes_max;
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "the labels of a series have {bytes} bytes, this destination has memory for \
             {bytes_max}: shorten them, or raise --memory"
        )))
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
            let memory = Budget::unlimited().part(1 << 20).empty(Pool::Requests);
            let mut scratch = Budget::unlimited().empty(Pool::Requests);
            let share = MemoryShare::of_one(128 << 20, 1);
            let external = labels(&[("region", "eu")]);
            let mut cache = OutgoingLabels::new(external, rules.clone(), share, memory);
            cache.bytes_max = bytes_max;
            for _ in 0..3 {
                let mut one = |series: &SeriesRef| {
                    cache.labels(&db, *series, &mut scratch, &|error| panic!("{error}")).unwrap()
                };
                let found: Vec<Outgoing> = wanted.iter().map(&mut one).collect();
                assert_eq!(found, expected, "{bytes_max}");
                assert!(cache.memory.bytes() <= bytes_max, "{}", cache.memory.bytes());
            }
        }
    }

    /// Before, the labels of a whole window were made before any memory was reserved, and rules
    /// could make 1 MiB of each series.
    #[test]
    fn long_labels_are_dropped_and_the_memory_of_others_is_reserved_first() {
        const RULES: &str = "remote_write:\n- url: 'http://a'\n  write_relabel_configs:\n\
            \x20 - {source_labels: [v, v, v, v], separator: '', target_label: v}\n";
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let share = MemoryShare::of_one(128 << 20, 20);
        let (series_max, made_max) = (share.series_bytes_max(), share.rules_bytes_max());
        let long = |bytes: u64| "v".repeat(bytes as usize);
        // Too long before the rules, too long by the rules, and short enough.
        let sets = [series_max + 1, made_max / 2, made_max / 5]
            .map(|bytes| labels(&[("__name__", "m"), ("v", &long(bytes))]));
        let refs: Vec<SeriesRef> = db.resolve(&sets).into_iter().map(Result::unwrap).collect();
        let rules = &Config::parse(RULES, &|_| None).unwrap().config.remote_write;
        let rules = rules.iter().next().unwrap().write_relabel_configs.clone();
        let budget = Budget::unlimited().part(share.requests_bytes());
        let memory = Budget::unlimited().empty(Pool::Requests);
        let mut cache = OutgoingLabels::new(Labels::empty(), rules, share, memory);
        let reasons = std::cell::RefCell::new(Vec::new());
        let complain = |error: &Error| reasons.borrow_mut().push(error.to_string());
        let mut scratch = budget.empty(Pool::Requests);
        let mut found = Vec::new();
        for series in &refs {
            found.push(cache.labels(&db, *series, &mut scratch, &complain).unwrap());
        }
        let want = labels(&[("__name__", "m"), ("v", &long(made_max / 5 * 4))]);
        assert_eq!(found, [None, None, Some(Arc::from(encode_labels(&want)))]);
        assert!(scratch.bytes() >= 10 * made_max && scratch.bytes() <= share.requests_bytes());
        let reasons = reasons.borrow().clone();
        assert!(reasons[0].contains("this destination has memory for"), "{reasons:?}");
        assert!(reasons[1].contains("relabelling makes") && reasons.len() == 2, "{reasons:?}");
        // Without memory, nothing is made and nothing is dropped.
        cache.recent.clear();
        let full = Budget::new(1);
        let made = cache.labels(&db, refs[2], &mut full.empty(Pool::Requests), &complain);
        assert!(matches!(made.unwrap_err().kind(), ErrorKind::Busy { .. }));
    }
}
