//! Changes of transactions since the oldest open one began: the side table for validation.
//!
//! The entry of a point is its *uts*, the number of the last transaction that touched it. A point
//! without an entry was not touched since. Ranges are looked up by group and time partition, so
//! that a sample or a series that entered a range after it was read is found. Plain inserts are not
//! recorded.
//!
//! Source: DecLog, section 4.1 (extended timestamp, rules 3 and 4, validation in three steps).
//! There the uts counts the updates of a point in 10 bits, restarts at every checkpoint and blocks
//! updates meanwhile. Here it is the commit's number, which never restarts: a checkpoint resets
//! nothing, no epoch is needed, the check is one comparison, and an entry is dropped once no open
//! transaction is older.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use firn_codec::Tombstone;
use firn_index::IndexView;
use firn_model::{
    CommitSeq, GroupId, Grouping, Labels, Matcher, QueryContext, Reservation, Result, RowBatch,
    SeriesRef, TimeRange, Timestamp,
};

/// Resolution of range lookups.
const PARTITION_MS: i64 = 15 * 60_000;
// With fewer entries, a walk over all of them frees too little.
const PRUNE_COUNT_MIN: usize = 1_024;
// Points compared between two checks of the deadline, each with up to thousands of deletes.
const POINTS_PER_CHECK: usize = 64;

/// A series and a time.
pub(crate) type Point = (SeriesRef, Timestamp);

/// The reads of a transaction.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(crate) points: HashSet<Point>,
    pub(crate) ranges: Vec<(Vec<Matcher>, TimeRange)>,
    /// Ends the validation, and limits its memory.
    pub(crate) context: QueryContext,
}

/// The changes of transactions, and the last change of each point.
#[derive(Debug)]
pub(crate) struct Versions {
    points: HashMap<Point, CommitSeq>,
    pieces: HashMap<(GroupId, i64), CommitSeq>,
    /// In the order of their numbers. Their members count with the tombstones in force.
    deletes: Vec<(CommitSeq, Arc<Tombstone>)>,
    /// The newest transaction that touched anything.
    newest: CommitSeq,
    /// Changes up to this number were dropped: a transaction that began before it conflicts.
    floor: CommitSeq,
    memory: Reservation,
    prune_at: usize,
}

/// The numbers at which open transactions began, with their counts.
#[derive(Debug, Default)]
pub(crate) struct OpenSet(BTreeMap<CommitSeq, usize>);

impl Reads {
    /// The reads of a transaction in `context`. They are validated under locks that reclaiming
    /// memory may need, so the validation takes only free memory.
    pub(crate) fn new(context: &QueryContext) -> Reads {
        let context = QueryContext::new(context.cancel.clone(), context.budget.of_free());
        Reads { points: HashSet::new(), ranges: Vec::new(), context }
    }
}

impl Versions {
    pub(crate) fn new(memory: Reservation) -> Versions {
        Versions {
            points: HashMap::new(),
            pieces: HashMap::new(),
            deletes: Vec::new(),
            newest: CommitSeq(0),
            floor: CommitSeq(0),
            memory,
            prune_at: PRUNE_COUNT_MIN,
        }
    }

    /// Describes a change by another transaction to one of `reads` since `begun`; `None` if there
    /// is none.
    ///
    /// # Errors
    /// `Corrupt` if a damaged index segment may contain a matching series, `Canceled`, `Timeout`,
    /// `Busy` or `TooLarge` without memory to match again.
    pub(crate) fn find_conflict(
        &self,
        reads: &Reads,
        begun: CommitSeq,
        index: &IndexView,
    ) -> Result<Option<String>> {
        if self.newest <= begun {
            return Ok(None);
        }
        if begun < self.floor {
            return Ok(Some("more than there is memory for".into()));
        }
        for (idx, &(series, ts)) in reads.points.iter().enumerate() {
            if idx % POINTS_PER_CHECK == 0 {
                reads.context.cancel.check()?;
            }
            let is_changed = self.points.get(&(series, ts)).is_some_and(|uts| *uts > begun)
                || self.deletes_since(begun).any(|deleted| deleted.hides(series, ts));
            if is_changed {
                let labels = index.labels(series)?.unwrap_or_else(Labels::empty);
                return Ok(Some(format!("{labels} at {ts}")));
            }
        }
        for (matchers, range) in &reads.ranges {
            reads.context.cancel.check()?;
            if self.is_range_touched((matchers, *range), begun, index, &reads.context)? {
                let matchers: Vec<String> = matchers.iter().map(ToString::to_string).collect();
                let (start, end) = (range.start, range.end);
                return Ok(Some(format!("{{{}}} from {start} to {end}", matchers.join(", "))));
            }
        }
        Ok(None)
    }

    fn is_range_touched(
        &self,
        (matchers, range): (&[Matcher], TimeRange),
        begun: CommitSeq,
        index: &IndexView,
        context: &QueryContext,
    ) -> Result<bool> {
        let partitions = partition(range.start)..=partition(range.end);
        let pieces = self.pieces.iter().filter(|(piece, uts)| {
            **uts > begun && partitions.contains(&piece.1) && !range.is_empty()
        });
        let deleted = self.deletes_since(begun).filter(|deleted| deleted.range().overlaps(range));
        let deleted = deleted.flat_map(|deleted| deleted.members().iter().map(|one| one.group));
        let mut touched = pieces.map(|(piece, _)| piece.0).chain(deleted).peekable();
        if touched.peek().is_none() {
            return Ok(false);
        }
        // Matched again, because a group may have been defined since the read.
        let nothing = Grouping::By(Vec::new());
        let found = index.matches(matchers, &nothing, context)?;
        let groups = &found.groups;
        Ok(touched.any(|group| groups.binary_search_by_key(&group, |found| found.group).is_ok()))
    }

    fn deletes_since(&self, begun: CommitSeq) -> impl Iterator<Item = &Tombstone> {
        self.deletes.iter().filter(move |one| one.0 > begun).map(|one| &*one.1)
    }

    /// Records the changes of transaction `seq`, the newest so far.
    pub(crate) fn touch(&mut self, seq: CommitSeq, rows: &RowBatch, deletes: &[Arc<Tombstone>]) {
        self.newest = seq;
        let deleted_bytes = Tombstone::OWN_BYTES * deletes.len() as u64;
        let bytes = growth_bytes(&self.points, rows.len()) + growth_bytes(&self.pieces, rows.len());
        if self.memory.grow(bytes + deleted_bytes).is_err() {
            // All open transactions will conflict.
            self.forget_all();
            return;
        }
        self.points.reserve(rows.len());
        self.pieces.reserve(rows.len());
        for cell in rows.cells() {
            let series = SeriesRef { group: cell.group, slot: cell.slot };
            self.points.insert((series, cell.ts), seq);
            self.pieces.insert((cell.group, partition(cell.ts)), seq);
        }
        self.deletes.extend(deletes.iter().map(|deleted| (seq, Arc::clone(deleted))));
        self.settle_memory();
    }

    /// Releases the memory that is not needed any more.
    fn settle_memory(&mut self) {
        let deleted_bytes = Tombstone::OWN_BYTES * self.deletes.len() as u64;
        let bytes = table_bytes(&self.points) + table_bytes(&self.pieces) + deleted_bytes;
        self.memory.shrink_to(bytes);
    }

    /// Drops entries that no transaction that began at `oldest` or later needs: deletes at once,
    /// because their members may take much memory, others if a walk is worthwhile.
    pub(crate) fn prune(&mut self, oldest: CommitSeq) {
        let passed = self.deletes.partition_point(|one| one.0 <= oldest);
        self.deletes.drain(..passed);
        if self.count() < self.prune_at {
            return;
        }
        self.points.retain(|_, uts| *uts > oldest);
        self.pieces.retain(|_, uts| *uts > oldest);
        self.points.shrink_to_fit();
        self.pieces.shrink_to_fit();
        self.settle_memory();
        self.prune_at = (2 * self.count()).max(PRUNE_COUNT_MIN);
    }

    fn forget_all(&mut self) {
        self.floor = self.newest;
        (self.points, self.pieces, self.deletes) = Default::default();
        self.memory.shrink(self.memory.bytes());
        self.prune_at = PRUNE_COUNT_MIN;
    }

    fn count(&self) -> usize {
        self.points.len() + self.pieces.len() + self.deletes.len()
    }
}

/// The memory of a table, of which an eighth is always free.
fn table_bytes<K, V>(table: &HashMap<K, V>) -> u64 {
    slots_bytes::<K, V>(table.capacity())
}

/// The memory that `table` takes in addition while it grows for `more` entries: the table after
/// that, at most twice as large as needed. The table before it exists meanwhile.
fn growth_bytes<K, V>(table: &HashMap<K, V>, more: usize) -> u64 {
    let count = table.len() + more;
    if count <= table.capacity() { 0 } else { slots_bytes::<K, V>(2 * count) }
}

fn slots_bytes<K, V>(capacity: usize) -> u64 {
    // A byte per slot is the table's own.
    ((capacity + 16) * (size_of::<(K, V)>() + 1) * 8 / 7) as u64
}

impl OpenSet {
    pub(crate) fn enter(&mut self, begun: CommitSeq) {
        *self.0.entry(begun).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, begun: CommitSeq) {
        if let Some(count) = self.0.get_mut(&begun) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&begun);
            }
        }
    }

    pub(crate) fn oldest(&self) -> Option<CommitSeq> {
        self.0.first_key_value().map(|entry| *entry.0)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.values().sum()
    }
}

fn partition(ts: Timestamp) -> i64 {
    ts.div_euclid(PARTITION_MS)
}
