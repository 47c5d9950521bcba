//! Metric metadata: type, help and unit by metric name, as last sent.
//!
//! Its memory is bounded and reserved. When it is full, entries that were not repeated for the
//! longest time are evicted; Prometheus repeats all of its own every minute. The server stores it
//! in the database's folder some time after a change (`metadata_file`).

use std::collections::BTreeMap;
use std::ops::Bound;

use firn_codec::varint::{encode_varint, take_bytes, take_count, take_u8};
use firn_model::{Budget, Error, MetricType, Pool, Reservation, Result};
use parking_lot::{Mutex, RwLock};

use crate::metrics_text::{Kind, MetricsText};

/// The metadata of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Its type.
    pub kind: MetricType,
    /// The help text.
    pub help: Box<str>,
    /// Its unit, `""` if none.
    pub unit: Box<str>,
}

// Longer names are dropped with their metadata, longer texts are cut.
const NAME_BYTES_MAX: usize = 1_024;
const HELP_BYTES_MAX: usize = 1_024;
const UNIT_BYTES_MAX: usize = 128;
// An entry beside its texts: in the list of a request, and in the store.
const REQUEST_ENTRY_BYTES: usize = 96;
const STORED_ENTRY_BYTES: usize = 192;

impl Metadata {
    /// Cuts long texts.
    pub fn new(kind: MetricType, help: &str, unit: &str) -> Metadata {
        let cut = |text: &str, most: usize| {
            Box::from(text.get(..text.floor_char_boundary(most)).unwrap_or_default())
        };
        Metadata { kind, help: cut(help, HELP_BYTES_MAX), unit: cut(unit, UNIT_BYTES_MAX) }
    }

    fn text_bytes(&self, name: &str) -> usize {
        name.len().saturating_add(self.help.len()).saturating_add(self.unit.len())
    }
}

/// The metadata of one request.
#[derive(Debug, Default)]
pub struct MetadataBatch {
    entries: Vec<(Box<str>, Metadata)>,
    bytes: usize,
    /// Entries without a name, with too long a name, and those for which there was no room.
    dropped_count: u64,
}

impl MetadataBatch {
    /// Adds an entry, or drops it if the batch would take more than `bytes_max`: the samples of a
    /// request are more important than its help texts.
    pub fn push(&mut self, name: &str, metadata: Metadata, bytes_max: usize) {
        let bytes = metadata.text_bytes(name).saturating_add(REQUEST_ENTRY_BYTES);
        let bytes = self.bytes.saturating_add(bytes);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || bytes > bytes_max {
            self.dropped_count = self.dropped_count.saturating_add(1);
            return;
        }
        self.bytes = bytes;
        self.entries.push((Box::from(name), metadata));
    }

    /// The newest entry.
    pub fn last_mut(&mut self) -> Option<&mut (Box<str>, Metadata)> {
        self.entries.last_mut()
    }

    /// Removes the newest entry.
    pub fn pop(&mut self) {
        if let Some((name, metadata)) = self.entries.pop() {
            let bytes = metadata.text_bytes(&name).saturating_add(REQUEST_ENTRY_BYTES);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// The entries in the order of the request.
    pub fn entries(&self) -> &[(Box<str>, Metadata)] {
        &self.entries
    }

    /// The memory of the entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes all entries and releases their memory.
    pub fn clear(&mut self) {
        *self = MetadataBatch::default();
    }
}

/// Metadata of every metric, newest wins.
#[derive(Debug)]
pub struct MetadataStore {
    state: RwLock<StoredMetrics>,
    bytes_max: u64,
    /// The version that was saved last.
    saved: Mutex<u64>,
}

#[derive(Debug, Default)]
struct StoredMetrics {
    by_name: BTreeMap<Box<str>, StoredMetadata>,
    bytes: u64,
    /// `None` until the database is open: nothing is stored before.
    held: Option<Reservation>,
    /// Number of batches so far.
    batch_count: u64,
    /// Rises with every change.
    version: u64,
    counts: MetadataCounts,
}

#[derive(Debug)]
struct StoredMetadata {
    metadata: Metadata,
    /// The last batch that contained it.
    seen_in: u64,
}

/// Counts for the server's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataCounts {
    /// Stored metrics.
    pub metrics: u64,
    /// Their memory.
    pub bytes: u64,
    /// Evicted since the start.
    pub evicted: u64,
    /// Received but not stored since the start.
    pub dropped: u64,
}

// The share that one eviction releases, so that few of them are needed.
const EVICTED_PART: u64 = 8;
// Entries read or stored under one lock.
const ENTRIES_PER_LOCK: usize = 256;
const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = 32 << 20;

impl MetadataStore {
    /// An empty store that takes at most `bytes_max`.
    pub fn new(bytes_max: u64) -> MetadataStore {
        MetadataStore { state: RwLock::default(), bytes_max, saved: Mutex::default() }
    }

    /// The store of a server with a memory limit of `memory_bytes`: 1/32 of it, from 1 to 32 MiB.
    pub fn within(memory_bytes: u64) -> MetadataStore {
        MetadataStore::new((memory_bytes / 32).clamp(BYTES_MIN, BYTES_MAX))
    }

    /// Reserves memory in `budget` from now on. Nothing is stored before.
    pub fn open(&self, budget: &Budget) {
        self.state.write().held = Some(budget.empty(Pool::Cache));
    }

    /// Stores the metadata of a request, which replaces older metadata. Some entries at a time:
    /// readers, and other requests, do not wait for all of a long batch.
    pub fn put(&self, batch: &mut MetadataBatch) {
        let MetadataBatch { entries, dropped_count, .. } = std::mem::take(batch);
        if entries.is_empty() && dropped_count == 0 {
            return;
        }
        let seen_in = {
            let mut state = self.state.write();
            state.counts.dropped += dropped_count;
            state.batch_count += 1;
            state.batch_count
        };
        let mut entries = entries.into_iter();
        let mut has_room = true;
        while entries.len() > 0 {
            let mut state = self.state.write();
            for (name, metadata) in entries.by_ref().take(ENTRIES_PER_LOCK) {
                let bytes_max = if has_room { self.bytes_max } else { 0 };
                has_room = state.put(name, StoredMetadata { metadata, seen_in }, bytes_max);
            }
        }
    }

    /// Calls `visit` with the metadata of `metric`, or of at most `limit` metrics in order of their
    /// names. No lock is held for long, so metrics that are added meanwhile may be missed.
    ///
    /// # Errors
    /// Those of `visit`, which end the visit.
    pub fn visit(
        &self,
        metric: Option<&str>,
        limit: usize,
        mut visit: impl FnMut(&str, &Metadata) -> Result<()>,
    ) -> Result<()> {
        if let Some(name) = metric {
            return match self.state.read().by_name.get(name).filter(|_| limit > 0) {
                Some(found) => visit(name, &found.metadata),
                None => Ok(()),
            };
        }
        self.visit_after("", limit, visit)
    }

    /// As [`MetadataStore::visit`] of the metrics whose names are behind `after`.
    ///
    /// # Errors
    /// Those of `visit`, which end the visit.
    pub(crate) fn visit_after(
        &self,
        after: &str,
        limit: usize,
        mut visit: impl FnMut(&str, &Metadata) -> Result<()>,
    ) -> Result<()> {
        let (mut left, mut last) = (limit, Box::<str>::from(after));
        loop {
            let state = self.state.read();
            let start = Bound::Excluded(&*last);
            let some = state.by_name.range::<str, _>((start, Bound::Unbounded));
            let mut newest = None;
            for (name, stored) in some.take(left.min(ENTRIES_PER_LOCK)) {
                visit(name, &stored.metadata)?;
                left = left.saturating_sub(1);
                newest = Some(name.clone());
            }
            match newest {
                Some(newest) => last = newest,
                None => return Ok(()),
            }
        }
    }

    /// Marks the contents as saved.
    pub(crate) fn set_saved(&self) {
        *self.saved.lock() = self.state.read().version;
    }

    /// Calls `save` if the contents have changed since it succeeded last. One call at a time.
    ///
    /// # Errors
    /// Those of `save`.
    pub(crate) fn save(&self, save: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut saved = self.saved.lock();
        let version = self.state.read().version;
        if version != *saved {
            save()?;
            *saved = version;
        }
        Ok(())
    }

    /// Counts for metrics.
    pub fn counts(&self) -> MetadataCounts {
        let state = self.state.read();
        let metrics = state.by_name.len() as u64;
        MetadataCounts { metrics, bytes: state.bytes, ..state.counts }
    }

    /// Writes the store's own metrics.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        let counts = self.counts();
        text.gauge("firn_metadata_metrics", "Metrics with stored metadata.", counts.metrics as f64);
        text.gauge("firn_metadata_bytes", "Memory of stored metadata.", counts.bytes as f64);
        let name = "firn_metadata_evicted_total";
        let help = "Metadata of metrics that were evicted because the store was full.";
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], counts.evicted as f64);
        let name = "firn_metadata_dropped_total";
        let help = "Received metadata that was not stored: no name, too long a name, or no room.";
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], counts.dropped as f64);
    }

    /// All metadata as the payload of a file: for each metric the varint lengths and the bytes of
    /// name, help and unit, then the number of the type. Its memory is reserved in `held`.
    ///
    /// # Errors
    /// `Busy` without memory.
    pub fn encode(&self, held: &mut Reservation) -> Result<Vec<u8>> {
        // Each length takes less than the memory of its entry.
        held.cover(self.state.read().bytes)?;
        let mut payload = Vec::new();
        self.visit(None, usize::MAX, |name, metadata| {
            for text in [name, &*metadata.help, &*metadata.unit] {
                encode_varint(text.len() as u64, &mut payload);
                payload.extend_from_slice(text.as_bytes());
            }
            payload.push(metadata.kind.number() as u8);
            held.cover(payload.capacity() as u64)
        })?;
        Ok(payload)
    }

    /// Stores the entries of an encoded payload.
    ///
    /// # Errors
    /// `Corrupt` if the payload is malformed; the entries before that place are stored.
    pub fn decode(&self, payload: &[u8]) -> Result<()> {
        let input = &mut &payload[..];
        let mut batch = MetadataBatch::default();
        while !input.is_empty() {
            let name = take_text(input)?;
            let (help, unit) = (take_text(input)?, take_text(input)?);
            let kind = usize::from(take_u8(input, "type of a metric")?);
            let kind = MetricType::ALL.get(kind).copied();
            let kind = kind.ok_or_else(|| Error::corrupt("metadata", 0, "unknown metric type"))?;
            batch.push(name, Metadata::new(kind, help, unit), usize::MAX);
            if batch.entries().len() >= ENTRIES_PER_LOCK || input.is_empty() {
                self.put(&mut batch);
            }
        }
        Ok(())
    }
}

fn take_text<'a>(input: &mut &'a [u8]) -> Result<&'a str> {
    let len = take_count(input, HELP_BYTES_MAX.max(NAME_BYTES_MAX), "text of metadata")?;
    let bytes = take_bytes(input, len, "text of metadata")?;
    let fault = |_| Error::corrupt("metadata", 0, "a text of metadata is not UTF-8");
    std::str::from_utf8(bytes).map_err(fault)
}

impl StoredMetrics {
    /// Stores one entry in at most `bytes_max`, or drops it. Returns whether more entries may fit.
    fn put(&mut self, name: Box<str>, mut new: StoredMetadata, bytes_max: u64) -> bool {
        let new_bytes = stored_bytes(&name, &new.metadata);
        let mut old_bytes = 0;
        if let Some(known) = self.by_name.get_mut(&name) {
            // Pieces of a later batch may have come before.
            new.seen_in = new.seen_in.max(known.seen_in);
            known.seen_in = new.seen_in;
            if known.metadata == new.metadata {
                return bytes_max > 0;
            }
            old_bytes = stored_bytes(&name, &known.metadata);
        }
        let more = new_bytes.saturating_sub(old_bytes);
        if self.bytes + more > bytes_max && bytes_max > 0 {
            let missing = (self.bytes + more - bytes_max).max(bytes_max / EVICTED_PART);
            self.evict(missing, new.seen_in);
        }
        let wanted = self.bytes + more;
        let is_covered = self.held.as_mut().is_some_and(|held| held.cover_of_free(wanted));
        if wanted > bytes_max || !is_covered {
            self.counts.dropped += 1;
            return false;
        }
        self.bytes = self.bytes + new_bytes - old_bytes;
        self.by_name.insert(name, new);
        self.version += 1;
        true
    }

    /// Removes about `bytes` of entries, those not repeated for the longest time first, but none of
    /// the batch `current` or a later one.
    fn evict(&mut self, bytes: u64, current: u64) {
        let mut oldest: Vec<(u64, u64)> = self
            .by_name
            .iter()
            .filter(|(_, stored)| stored.seen_in < current)
            .map(|(name, stored)| (stored.seen_in, stored_bytes(name, &stored.metadata)))
            .collect();
        oldest.sort_unstable();
        let mut sum = 0;
        let end = oldest.iter().take_while(|one| {
            let is_needed = sum < bytes;
            sum += one.1;
            is_needed
        });
        let Some(&(newest, _)) = end.last() else { return };
        let (mut left, before) = (bytes, self.by_name.len());
        self.by_name.retain(|name, stored| {
            let stays = stored.seen_in > newest || left == 0;
            if !stays {
                let freed = stored_bytes(name, &stored.metadata);
                self.bytes -= freed;
                left = left.saturating_sub(freed);
            }
            stays
        });
        self.counts.evicted += (before - self.by_name.len()) as u64;
        self.version += 1;
        if let Some(held) = &mut self.held {
            held.shrink_to(self.bytes);
        }
    }
}

fn stored_bytes(name: &str, metadata: &Metadata) -> u64 {
    metadata.text_bytes(name).saturating_add(STORED_ENTRY_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn batch(entries: &[(&str, &str)]) -> MetadataBatch {
        let mut batch = MetadataBatch::default();
        for (name, help) in entries {
            batch.push(name, Metadata::new(MetricType::Gauge, help, ""), usize::MAX);
        }
        batch
    }

    fn listed(
        store: &MetadataStore,
        metric: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Metadata)> {
        let mut listed = Vec::new();
        let visit = |name: &str, metadata: &Metadata| {
            listed.push((name.to_owned(), metadata.clone()));
            Ok(())
        };
        store.visit(metric, limit, visit).unwrap();
        listed
    }

    fn opened(bytes_max: u64) -> (MetadataStore, Budget) {
        let (store, budget) = (MetadataStore::new(bytes_max), Budget::new(1 << 30));
        store.open(&budget);
        (store, budget)
    }

    #[test]
    fn the_newest_wins_and_long_texts_are_cut() {
        let (store, budget) = opened(1 << 20);
        store.put(&mut batch(&[("up", "old"), ("a", "")]));
        store.put(&mut batch(&[("up", &"é".repeat(2_000)), ("", "no name")]));
        store.put(&mut batch(&[(&"n".repeat(1_025), "long name")]));
        let known = listed(&store, Some("up"), 10);
        assert_eq!((known[0].1.kind, known[0].1.help.len()), (MetricType::Gauge, 1_024));
        assert_eq!(listed(&store, None, 10).len(), 2);
        assert_eq!(listed(&store, None, 1)[0].0, "a");
        assert!(listed(&store, Some("down"), 10).is_empty());
        let counts = store.counts();
        assert_eq!((counts.metrics, counts.dropped, counts.evicted), (2, 2, 0));
        assert_eq!(budget.usage().by_pool[Pool::Cache as usize], counts.bytes);
    }

    #[test]
    fn a_full_store_evicts_the_metrics_that_were_not_repeated() {
        let (store, budget) = opened(100_000);
        let help = "h".repeat(500);
        let names: Vec<String> = (0..100).map(|idx| format!("old_{idx:03}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*help)).collect();
        store.put(&mut batch(&all));
        store.put(&mut batch(&all[..50]));
        for idx in 0..1_000 {
            store.put(&mut batch(&[(&format!("new_{idx}"), &help)]));
            if idx % 10 == 0 {
                store.put(&mut batch(&all[..50]));
            }
            let counts = store.counts();
            assert!(counts.bytes <= 100_000, "{counts:?}");
            assert_eq!(budget.usage().by_pool[Pool::Cache as usize], counts.bytes);
        }
        for (name, _) in &all[..50] {
            assert_eq!(listed(&store, Some(name), 1).len(), 1, "{name} is repeated all the time");
        }
        assert!(listed(&store, Some("old_099"), 1).is_empty());
        assert!(store.counts().evicted > 900);
        // More than fits at once: the rest is dropped, and the store stays within its limit.
        let names: Vec<String> = (0..1_000).map(|idx| format!("flood_{idx}")).collect();
        let flood: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*help)).collect();
        store.put(&mut batch(&flood));
        assert!(store.counts().bytes <= 100_000 && store.counts().dropped > 800);
    }

    /// Before, a batch of 16 MiB held the lock until its end.
    #[test]
    fn a_reader_does_not_wait_for_all_of_a_batch() {
        let names: Vec<String> = (0..20_000).map(|idx| format!("metric_{idx}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "Some help.")).collect();
        let is_part = |count: u64| count > 0 && count < all.len() as u64;
        // Whether a reader sees a part of a batch. It may not run meanwhile.
        let sees_part = |_| {
            let ((store, _), is_over) = (opened(64 << 20), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        if is_part(store.counts().metrics) {
                            return true;
                        }
                    }
                    false
                });
                store.put(&mut batch(&all));
                is_over.store(true, Relaxed);
                reader.join().unwrap()
            })
        };
        assert!((0..100).any(sees_part));
    }

    #[test]
    fn without_memory_metadata_is_dropped() {
        let store = MetadataStore::new(1 << 20);
        store.put(&mut batch(&[("up", "before the database is open")]));
        assert!(listed(&store, None, 9).is_empty());
        store.open(&Budget::new(1_000));
        store.put(&mut batch(&[("a", "x"), ("b", &"x".repeat(900)), ("c", "x")]));
        assert_eq!(listed(&store, None, 9).len(), 1);
        let mut small = MetadataBatch::default();
        small.push("a", Metadata::default(), 100);
        small.push("b", Metadata::default(), 100);
        assert_eq!((small.entries().len(), small.bytes()), (1, 97));
    }

    #[test]
    fn stored_metadata_comes_back() {
        let (store, budget) = opened(1 << 20);
        let names: Vec<String> = (0..1_000).map(|idx| format!("metric_{idx}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "Some help.")).collect();
        store.put(&mut batch(&all));
        let mut held = budget.empty(Pool::Jobs);
        let payload = store.encode(&mut held).unwrap();
        assert!(held.bytes() >= payload.len() as u64);
        let (again, _) = opened(1 << 20);
        again.decode(&payload).unwrap();
        assert_eq!(listed(&again, None, 9_999), listed(&store, None, 9_999));
        for len in 0..100 {
            // A cut in the middle of an entry is found, at its end it is not.
            let (cut, _) = opened(1 << 20);
            let is_whole = cut.decode(&payload[..len]).is_ok();
            assert_eq!(is_whole, [0, 22, 44, 67, 91].contains(&len), "{len}");
        }
    }
}
