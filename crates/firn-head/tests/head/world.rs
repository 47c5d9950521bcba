//! A head in a model of its surroundings: a log, tables, and the correct answer of every read, as
//! plain collections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firn_codec::{
    GroupColumns, HiddenMembers, HiddenSlots, MemberColumn, Slots, Tombstone, Tombstones,
    merge_columns,
};
use firn_head::{FlushJob, Head, HeadOptions, HeadSnapshot, bound_bytes};
use firn_model::{
    Budget, ColumnValues, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits,
    ShardId, Slot, TimeRange, Timestamp,
};

pub(crate) const GROUP_COUNT: u64 = 6;

/// Key to the bits of the value and the position of the newest write.
pub(crate) type Map = BTreeMap<(u64, u32, Timestamp), (LogPosition, u64)>;
pub(crate) type Cells = Vec<(u64, u32, Timestamp, f64)>;
type Tables = Vec<Arc<Vec<(GroupId, GroupColumns)>>>;

/// One entry of the log.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) shard: ShardId,
    pub(crate) seq: CommitSeq,
    pub(crate) position: LogPosition,
    pub(crate) segment: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) cells: Cells,
    /// Neither published nor rolled back.
    pub(crate) waits: bool,
}

/// A delete: members of a group and a time range.
#[derive(Clone, Debug)]
pub(crate) struct DeleteRecord {
    pub(crate) seq: CommitSeq,
    group: u64,
    slots: Vec<Slot>,
    range: TimeRange,
}

/// Deliberate bugs in the surroundings of a head, as the engine could have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A delete does not split the parts that it touches.
    SplitSkipped,
    /// A flush merges rows of both sides of a delete without applying it.
    TombstonesSkipped,
    /// Memory turns hot without tables.
    TablesSkipped,
    /// Rows of tables count as younger than rows in memory.
    TablesAreYounger,
    /// Members that are missing in a piece of a row count as deleted.
    AbsentMembersDelete,
    /// Views pin no memory.
    PinsSkipped,
}

impl Mutant {
    pub(crate) const ALL: [Mutant; 6] = [
        Mutant::SplitSkipped,
        Mutant::TombstonesSkipped,
        Mutant::TablesSkipped,
        Mutant::TablesAreYounger,
        Mutant::AbsentMembersDelete,
        Mutant::PinsSkipped,
    ];
}

/// Writes `batch` in the commit and at the position `seq`. A segment of the log has 500 of them.
pub(crate) fn put(head: &Head, budget: &Budget, batch: &mut RowBatch, seq: u64) {
    batch.sort(head.shard_bits());
    let mut given = budget.reserve(Pool::Head, bound_bytes(batch)).unwrap();
    for rows in batch.by_shard() {
        let mut writer = head.shard(rows.shard);
        writer.encode(CommitSeq(seq), rows, seq / 500);
        writer.stage(LogPosition(seq), &mut given);
        drop(writer);
        head.publish(rows.shard, LogPosition(seq));
    }
}

pub(crate) struct World {
    /// Shared with threads that need only the head.
    pub(crate) head: Arc<Head>,
    pub(crate) budget: Budget,
    pub(crate) bits: ShardBits,
    pub(crate) log: Vec<Entry>,
    pub(crate) segment: u64,
    pub(crate) visible: Map,
    pub(crate) tables: Tables,
    pub(crate) deletes: Vec<DeleteRecord>,
    in_tables: BTreeSet<(u64, u32, Timestamp)>,
    /// Log positions of each shard up to which rows are in tables.
    pub(crate) flushed: BTreeMap<ShardId, LogPosition>,
    /// Positions of entries that the log lost.
    pub(crate) lost: BTreeSet<LogPosition>,
    /// Hot memory is younger than this.
    pub(crate) hard_line: Timestamp,
    pub(crate) mutant: Option<Mutant>,
    next_seq: u64,
    next_position: u64,
}

/// A snapshot and the rows that it must always show.
pub(crate) struct HeldView {
    mutant: Option<Mutant>,
    snapshot: HeadSnapshot,
    tables: Tables,
    tombstones: Tombstones,
    expected: Map,
}

impl World {
    pub(crate) fn new(shard_count: usize, change: impl FnOnce(&mut HeadOptions)) -> World {
        let bits = ShardBits::for_count(shard_count);
        let mut options = HeadOptions::default();
        change(&mut options);
        let budget = Budget::unlimited();
        World {
            head: Arc::new(Head::new(bits, options, budget.clone())),
            budget,
            bits,
            mutant: None,
            log: Vec::new(),
            segment: 1,
            visible: Map::new(),
            tables: Tables::new(),
            deletes: Vec::new(),
            in_tables: BTreeSet::new(),
            flushed: BTreeMap::new(),
            lost: BTreeSet::new(),
            hard_line: i64::MIN,
            next_seq: 1,
            next_position: 1,
        }
    }

    pub(crate) fn batch(&self, cells: &Cells) -> RowBatch {
        let mut batch = RowBatch::default();
        for &(group, slot, ts, value) in cells {
            batch.push(SeriesRef { group: GroupId(group), slot: Slot(slot) }, ts, value);
        }
        batch.sort(self.bits);
        batch
    }

    /// Encodes, logs and stages.
    pub(crate) fn write(&mut self, cells: &Cells) {
        let batch = self.batch(cells);
        let mut given = self.budget.reserve(Pool::Head, bound_bytes(&batch)).unwrap();
        let seq = self.seq();
        for rows in batch.by_shard() {
            let mut writer = self.head.shard(rows.shard);
            let payload = writer.encode(seq, rows, self.segment).to_vec();
            let position = LogPosition(self.next_position);
            self.next_position += payload.len() as u64;
            writer.stage(position, &mut given);
            let cells = rows.cells().iter().map(|c| (c.group.0, c.slot.0, c.ts, c.value)).collect();
            let (shard, segment) = (rows.shard, self.segment);
            self.log.push(Entry { shard, seq, position, segment, payload, cells, waits: true });
        }
    }

    /// Encodes rows that the log refuses.
    pub(crate) fn write_refused(&mut self, cells: &Cells, abandons: bool) {
        let batch = self.batch(cells);
        let seq = self.seq();
        for rows in batch.by_shard() {
            let mut writer = self.head.shard(rows.shard);
            writer.encode(seq, rows, self.segment);
            if abandons {
                writer.abandon();
            }
        }
    }

    /// Writes rows and makes them visible.
    pub(crate) fn put(&mut self, cells: &Cells) {
        self.write(cells);
        self.publish_all();
    }

    /// Publishes at the position of entry `idx`, unless the log lost it.
    pub(crate) fn publish(&mut self, idx: usize) {
        let Some(entry) = self.log.get(idx).cloned() else { return };
        if self.lost.contains(&entry.position) {
            return;
        }
        self.head.publish(entry.shard, entry.position);
        let ahead = |other: &&mut Entry| {
            other.shard == entry.shard
                && other.segment == entry.segment
                && other.position <= entry.position
                && other.waits
        };
        if !entry.waits {
            return;
        }
        for other in self.log.iter_mut().filter(ahead) {
            other.waits = false;
            show(&mut self.visible, other, &self.deletes);
        }
    }

    /// Deletes older rows, visible or not yet.
    pub(crate) fn delete(&mut self, group: u64, slots: Vec<Slot>, range: TimeRange) {
        let seq = self.seq();
        // All touched shards at once, as in the engine; splitting others does no harm.
        let closes = self.mutant != Some(Mutant::SplitSkipped);
        for shard in (0..self.bits.shard_count()).filter(|_| closes) {
            self.head.shard(ShardId(shard as u16)).split_parts();
        }
        let deleted = DeleteRecord { seq, group, slots, range };
        self.visible.retain(|&(group, slot, ts), _| !deleted.hides(group, slot, ts));
        self.deletes.push(deleted);
    }

    pub(crate) fn publish_all(&mut self) {
        (0..self.log.len()).for_each(|idx| self.publish(idx));
    }

    /// The log's present segment fails: of its waiting entries, those from index `kept` on are
    /// lost.
    pub(crate) fn poison(&mut self, kept: usize) {
        let segment = self.segment;
        let waiting = self.log.iter().filter(|e| e.waits && e.segment == segment);
        let lost = waiting.skip(kept).map(|entry| entry.position);
        self.lost.extend(lost.collect::<Vec<_>>());
        self.segment += 1;
    }

    /// The writers of lost entries roll back.
    pub(crate) fn roll_back(&mut self) {
        let lost: Vec<Entry> =
            self.log.iter().filter(|e| self.lost.contains(&e.position)).cloned().collect();
        for entry in lost {
            let of_segment = |other: &&Position| {
                self.log.iter().any(|e| e.position == **other && e.segment == entry.segment)
            };
            let first = self.lost.iter().find(of_segment).unwrap();
            self.head.rollback(entry.shard, entry.segment, LogPosition(first.0 - 1));
        }
        self.log.retain(|entry| !self.lost.contains(&entry.position));
        self.lost.clear();
    }

    /// The tables of `job` are written, and its memory turns hot.
    pub(crate) fn finish_flush(&mut self, job: &FlushJob) {
        let tombstones = match self.mutant {
            Some(Mutant::TombstonesSkipped) => Tombstones::default(),
            _ => tombstones_of(&self.deletes),
        };
        let chunks: Vec<_> = job.chunks(&tombstones).collect::<Result<_, _>>().unwrap();
        assert!(chunks.is_sorted_by_key(|chunk| chunk.0), "groups of a flush must not descend");
        for (group, columns) in &chunks {
            let points = points(columns, Slots::All);
            self.in_tables.extend(points.iter().map(|&(slot, ts, _)| (group.0, slot, ts)));
        }
        self.flushed.extend(job.through());
        if self.mutant != Some(Mutant::TablesSkipped) {
            self.tables.push(Arc::new(chunks));
        }
        self.head.flushed(job);
        self.head.recycle_surplus(self.hard_line);
    }

    /// A whole flush. The tables are one list of columns.
    pub(crate) fn flush(&mut self) -> bool {
        let marks = self.head.seal_all();
        for &(_, position) in &marks.marks {
            let idx = self.log.iter().position(|entry| entry.position == position).unwrap();
            self.publish(idx);
        }
        let Some(job) = self.head.plan_flush() else { return false };
        if !job.covers(&marks) {
            return false;
        }
        self.finish_flush(&job);
        true
    }

    pub(crate) fn convert(&mut self) -> bool {
        match self.head.plan_convert() {
            Some(job) => self.head.apply_convert(job.run().unwrap()),
            None => false,
        }
    }

    pub(crate) fn compress(&mut self) -> bool {
        match self.head.plan_compress() {
            Some(job) => self.head.apply_convert(job.run().unwrap()),
            None => false,
        }
    }

    pub(crate) fn hold(&self) -> HeldView {
        HeldView {
            mutant: self.mutant,
            snapshot: self.head.snapshot(),
            tables: self.tables.clone(),
            tombstones: tombstones_of(&self.deletes),
            expected: self.visible.clone(),
        }
    }

    /// The visible rows are the expected ones, and held memory is reserved.
    pub(crate) fn check(&self) {
        assert!(self.hold().check(), "memory of a new snapshot was revoked");
        self.check_young();
        self.check_floor();
    }

    /// The log may be truncated at the positions that flushes reported.
    fn check_floor(&self) {
        for entry in &self.log {
            if self.flushed.get(&entry.shard).is_some_and(|&through| entry.position <= through) {
                assert!(!entry.waits, "an entry below the floor is undecided");
                let there = |&(group, slot, ts, _): &_| {
                    self.in_tables.contains(&(group, slot, ts))
                        || is_hidden(&self.deletes, entry.seq, group, slot, ts)
                };
                assert!(entry.cells.iter().all(there), "a value below the floor is in no table");
            }
        }
    }

    /// Reservations equal the held memory. Only valid while no snapshot or job pins replaced
    /// memory.
    pub(crate) fn check_budget(&self) {
        let stats = self.head.stats();
        assert_eq!(stats.cooling_bytes, 0, "no reader is left");
        let usage = self.budget.usage();
        let columns_and_rows = stats.arena_bytes + stats.segment_bytes;
        let head = columns_and_rows + stats.state_bytes + stats.free_bytes;
        assert_eq!(usage.by_pool[Pool::Head as usize], head, "{stats:?}");
        assert_eq!(usage.by_pool[Pool::Hot as usize], stats.hot_bytes, "{stats:?}");
    }

    /// Rows that the snapshot reports as complete in memory are there without tables.
    fn check_young(&self) {
        let snapshot = self.head.snapshot();
        for entry in self.log.iter().filter(|entry| !entry.waits) {
            for &(group, slot, ts, _) in &entry.cells {
                let at = TimeRange::at(ts);
                if entry.seq < snapshot.reader(TimeRange::ALL).complete_since(entry.shard, at) {
                    continue;
                }
                let alone = HeldView::new(snapshot.clone(), Map::new(), &[]);
                let found = alone.read(group, Slots::Some(&[Slot(slot)]), at).unwrap();
                assert_eq!(found.len(), 1, "{group}/{slot} at {ts} is not in memory");
            }
        }
    }

    pub(crate) fn seq(&mut self) -> CommitSeq {
        self.next_seq += 1;
        CommitSeq(self.next_seq)
    }
}

type Position = LogPosition;

impl DeleteRecord {
    fn hides(&self, group: u64, slot: u32, ts: Timestamp) -> bool {
        self.group == group && self.slots.contains(&Slot(slot)) && self.range.contains(ts)
    }
}

fn is_hidden(
    deletes: &[DeleteRecord],
    seq: CommitSeq,
    group: u64,
    slot: u32,
    ts: Timestamp,
) -> bool {
    deletes.iter().any(|deleted| deleted.seq > seq && deleted.hides(group, slot, ts))
}

fn tombstones_of(deletes: &[DeleteRecord]) -> Tombstones {
    let tombstone = |deleted: &DeleteRecord| {
        let slots = HiddenSlots::new(deleted.slots.clone());
        let members = vec![HiddenMembers { group: GroupId(deleted.group), slots }];
        (deleted.seq, Arc::new(Tombstone::new(0, deleted.range, members)))
    };
    Tombstones::new(deletes.iter().map(tombstone).collect())
}

/// Shows the entry's values, except those that are overwritten or deleted.
pub(crate) fn show(visible: &mut Map, entry: &Entry, deletes: &[DeleteRecord]) {
    for &(group, slot, ts, value) in &entry.cells {
        if is_hidden(deletes, entry.seq, group, slot, ts) {
            continue;
        }
        let new = (entry.position, value.to_bits());
        let best = visible.entry((group, slot, ts)).or_insert(new);
        if best.0 <= entry.position {
            *best = new;
        }
    }
}

impl HeldView {
    pub(crate) fn new(snapshot: HeadSnapshot, expected: Map, deletes: &[DeleteRecord]) -> HeldView {
        let tombstones = tombstones_of(deletes);
        HeldView { mutant: None, snapshot, tables: Vec::new(), tombstones, expected }
    }

    /// All visible rows are there, and no others. `false` if memory was revoked.
    pub(crate) fn check(&self) -> bool {
        let expect = |group, slots: Slots<'_>, range: TimeRange| -> Vec<(u32, Timestamp, u64)> {
            let of_group = (group, 0, i64::MIN)..=(group, u32::MAX, i64::MAX);
            let all = self.expected.range(of_group);
            all.filter(|((_, slot, ts), _)| slots.contains(Slot(*slot)) && range.contains(*ts))
                .map(|((_, slot, ts), (_, bits))| (*slot, *ts, *bits))
                .collect()
        };
        for group in 0..GROUP_COUNT {
            let requests = [
                (Slots::All, TimeRange::ALL),
                (Slots::All, TimeRange::new(-20, 25)),
                (Slots::Some(&[Slot(0), Slot(3)]), TimeRange::ALL),
                (Slots::Some(&[Slot(1)]), TimeRange::new(10, 500)),
            ];
            for (slots, range) in requests {
                let want = expect(group, slots, range);
                let Some(found) = self.read(group, slots, range) else { return false };
                assert_eq!(found, want, "{group} {slots:?} {range:?}");
                let in_tables = !self.tables.is_empty();
                let has_data = self.snapshot.has_data(GroupId(group), range);
                assert!(has_data || in_tables || want.is_empty(), "{group} {range:?} is missing");
            }
        }
        self.check_one_by_one();
        true
    }

    /// A member that is read alone has the same samples as among others, unless the read refuses.
    fn check_one_by_one(&self) {
        // One reader: leased memory stays until it ends, whatever is released meanwhile.
        let (mut reader, mut one) = (self.snapshot.reader(TimeRange::ALL), MemberColumn::default());
        for group in (0..GROUP_COUNT).map(GroupId) {
            for slot in (0..5).map(Slot) {
                for range in [TimeRange::ALL, TimeRange::new(10, 60)] {
                    let sources = reader.read(group, Slots::Some(&[slot]), range).unwrap();
                    let series = SeriesRef { group, slot };
                    let mut left = vec![slot];
                    reader.take_present(group, range, &mut left).unwrap();
                    let is_here = left.is_empty();
                    // Never missing. Reported as present without samples only if a chunk of it
                    // overlaps the range.
                    assert!(is_here || sources.is_empty(), "{group} {slot:?} {range:?}");
                    let mut has_some = || {
                        let all = reader.read(group, Slots::Some(&[slot]), TimeRange::ALL);
                        !all.unwrap().is_empty()
                    };
                    assert!(!is_here || has_some(), "{group} {slot:?} {range:?}");
                    if !reader.read_one(series, range, &mut one).unwrap() {
                        continue;
                    }
                    let pairs = one.times.iter().zip(&one.values);
                    let found: Vec<_> = pairs.map(|(ts, v)| (slot.0, *ts, v.to_bits())).collect();
                    let merged = merge_columns(&sources, range);
                    assert_eq!(found, points(&merged, Slots::All), "{group} {slot:?} {range:?}");
                }
            }
        }
    }

    /// `None` if memory was revoked.
    fn read(
        &self,
        group: u64,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Option<Vec<(u32, Timestamp, u64)>> {
        let group = GroupId(group);
        let in_memory = match self.snapshot.read(group, slots, range) {
            Ok(in_memory) => in_memory,
            Err(error) => {
                assert!(error.is_retriable(), "{error}");
                assert!(self.snapshot.has_data(group, range), "revoked memory counts as present");
                return None;
            }
        };
        in_memory.iter().for_each(GroupColumns::check);
        assert!(
            in_memory.is_sorted_by(|a, b| a.seq.max <= b.seq.max),
            "sources must be oldest first"
        );
        let in_tables = self.tables.iter().flat_map(|table| {
            table.iter().filter(|(other, _)| *other == group).map(|(_, columns)| columns.clone())
        });
        let mut sources: Vec<GroupColumns> = in_memory.into_iter().chain(in_tables).collect();
        self.tombstones.walk(TimeRange::ALL).hide(group, &mut sources);
        if self.mutant != Some(Mutant::TablesAreYounger) {
            sources.sort_by_key(|columns| columns.seq.max);
        }
        if self.mutant == Some(Mutant::AbsentMembersDelete) {
            let mut newer = BTreeSet::new();
            let mut left = Vec::new();
            for source in sources.iter().rev() {
                let here = points(&merge_columns(std::slice::from_ref(source), range), Slots::All);
                left.extend(here.iter().filter(|point| !newer.contains(&point.1)));
                newer.extend(here.iter().map(|point| point.1));
            }
            left.retain(|point: &(u32, Timestamp, u64)| slots.contains(Slot(point.0)));
            left.sort_unstable();
            return Some(left);
        }
        Some(points(&merge_columns(&sources, range), slots))
    }
}

/// Columns as (slot, ts, bits), sorted.
pub(crate) fn points(columns: &GroupColumns, slots: Slots<'_>) -> Vec<(u32, Timestamp, u64)> {
    columns.check();
    let mut points = Vec::new();
    for column in columns.batch.columns.iter().filter(|column| slots.contains(column.slot)) {
        let times = &columns.batch.times[column.time_idx as usize];
        let ColumnValues::F64(values) = &column.values else { unreachable!() };
        let entries: Vec<usize> = match &column.presence {
            None => (0..times.len()).collect(),
            Some(presence) => presence.iter().collect(),
        };
        let pairs = entries.into_iter().zip(values);
        points.extend(pairs.map(|(idx, value)| (column.slot.0, times[idx], value.to_bits())));
    }
    points
}

/// Sets the flag when it is dropped, also by a panic, so that all threads end.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
