//! Rows on the write path: a batch of cells of many groups, sorted into row pieces.

use crate::{GroupId, SeriesRef, ShardBits, ShardId, Slot, TimeRange, Timestamp};

/// One value of one series at one time, with the series' group and slot.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The group of the series.
    pub group: GroupId,
    /// Timestamp in milliseconds.
    pub ts: Timestamp,
    /// The series' slot in the group.
    pub slot: Slot,
    /// The value.
    pub value: f64,
}

/// The rows of one write request. Fill it in any order, then [`RowBatch::sort`] it into row pieces.
///
/// Of two cells for one series and timestamp, the one pushed later wins.
#[derive(Debug, Default)]
pub struct RowBatch {
    cells: Vec<Cell>,
    sorted_for: Option<ShardBits>,
}

/// The rows of one shard in a sorted batch: ordered by (group, ts, slot), no duplicates.
#[derive(Clone, Copy, Debug)]
pub struct ShardRows<'a> {
    /// The shard that owns all of them.
    pub shard: ShardId,
    cells: &'a [Cell],
}

/// One timestamp and the values of some members of one group, slots ascending. A row may arrive in
/// several pieces.
#[derive(Clone, Copy, Debug)]
pub struct RowPiece<'a> {
    /// The group.
    pub group: GroupId,
    /// The timestamp that the members share.
    pub ts: Timestamp,
    /// At least one cell; all of `group` at `ts`, slots strictly ascending.
    pub cells: &'a [Cell],
}

impl RowBatch {
    /// Removes all cells and keeps the memory.
    pub fn clear(&mut self) {
        self.cells.clear();
        self.sorted_for = None;
    }

    /// Makes room for `cell_count` cells in all.
    pub fn reserve(&mut self, cell_count: usize) {
        self.cells.reserve_exact(cell_count.saturating_sub(self.cells.len()));
    }

    /// Releases memory beyond `cell_count` cells.
    pub fn shrink_to(&mut self, cell_count: usize) {
        self.cells.shrink_to(cell_count);
    }

    /// Bytes of heap memory.
    pub fn heap_bytes(&self) -> u64 {
        (self.cells.capacity() * size_of::<Cell>()) as u64
    }

    /// Adds one value.
    #[inline]
    pub fn push(&mut self, series: SeriesRef, ts: Timestamp, value: f64) {
        self.sorted_for = None;
        self.cells.push(Cell { group: series.group, ts, slot: series.slot, value });
    }

    /// Adds the values of some members of `group` that share `ts`.
    #[inline]
    pub fn push_row(&mut self, group: GroupId, ts: Timestamp, values: &[(Slot, f64)]) {
        self.sorted_for = None;
        self.cells.extend(values.iter().map(|&(slot, value)| Cell { group, ts, slot, value }));
    }

    /// Adds the cells of another batch.
    pub fn append(&mut self, other: &RowBatch) {
        self.sorted_for = None;
        self.cells.extend_from_slice(&other.cells);
    }

    /// Sorts by (shard, group, ts, slot) and keeps only the last of equal cells. Nearly free if the
    /// cells are already in that order, as in a scrape; some nanoseconds per cell if those of each
    /// shard are, as in requests of a sender that keeps its order. It may double the memory
    /// meanwhile.
    pub fn sort(&mut self, bits: ShardBits) {
        if self.sorted_for == Some(bits) {
            return;
        }
        let key = |cell: &Cell| (bits.shard(cell.group), cell.group, cell.ts, cell.slot);
        if !self.cells.is_sorted_by_key(key) {
            self.gather_shards(bits);
            // The sort is stable and takes sorted runs as they are.
            self.cells.sort_by_key(key);
        }
        // Among equal keys the last was pushed last: keep its value.
        self.cells.dedup_by(|later, kept| {
            let same = key(later) == key(kept);
            if same {
                kept.value = later.value;
            }
            same
        });
        self.sorted_for = Some(bits);
    }

    /// Moves the cells of each shard together and keeps their order: a counting sort of runs of one
    /// group.
    fn gather_shards(&mut self, bits: ShardBits) {
        if self.cells.len() < bits.shard_count() {
            return;
        }
        let shard_of = |run: &[Cell]| usize::from(bits.shard(run[0].group).0);
        let runs = || self.cells.chunk_by(|a, b| a.group == b.group);
        let mut next = vec![0u32; bits.shard_count()];
        runs().for_each(|run| next[shard_of(run)] += 1);
        let mut run_count = 0;
        for count in &mut next {
            (*count, run_count) = (run_count, run_count + *count);
        }
        let mut order: Vec<&[Cell]> = vec![&[]; run_count as usize];
        for run in runs() {
            let target = &mut next[shard_of(run)];
            order[*target as usize] = run;
            *target += 1;
        }
        let mut cells = Vec::with_capacity(self.cells.capacity());
        order.into_iter().for_each(|run| cells.extend_from_slice(run));
        self.cells = cells;
    }

    /// The rows of each shard, shards ascending.
    ///
    /// # Panics
    /// If the batch was not sorted since the last push.
    pub fn by_shard(&self) -> impl Iterator<Item = ShardRows<'_>> {
        let bits = self.sorted_for.expect("RowBatch::sort comes before by_shard");
        self.cells
            .chunk_by(move |a, b| bits.shard(a.group) == bits.shard(b.group))
            .map(move |cells| ShardRows { shard: bits.shard(cells[0].group), cells })
    }

    /// As [`RowBatch::by_shard`], in parts of about `cells_max` cells. No row is in two parts.
    ///
    /// # Panics
    /// If the batch was not sorted since the last push.
    pub fn by_part(&self, cells_max: usize) -> impl Iterator<Item = ShardRows<'_>> {
        self.by_shard().flat_map(move |rows| rows.parts(cells_max))
    }

    /// All cells in their current order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The smallest range that contains all timestamps.
    pub fn time_range(&self) -> TimeRange {
        self.cells.iter().fold(TimeRange::EMPTY, |range, cell| range.extend(cell.ts))
    }

    /// Removes the cells that `keep` rejects.
    pub fn retain(&mut self, keep: impl FnMut(&Cell) -> bool) {
        self.cells.retain(keep);
    }
}

impl<'a> ShardRows<'a> {
    /// The row pieces in order of (group, ts).
    pub fn pieces(self) -> impl Iterator<Item = RowPiece<'a>> {
        self.cells.chunk_by(|a, b| a.group == b.group && a.ts == b.ts).map(|cells| RowPiece {
            group: cells[0].group,
            ts: cells[0].ts,
            cells,
        })
    }

    /// These rows in parts of about `cells_max` cells, in order.
    fn parts(self, cells_max: usize) -> impl Iterator<Item = ShardRows<'a>> {
        let mut rest = self.cells;
        std::iter::from_fn(move || {
            let last = rest.get(cells_max.max(1) - 1).or(rest.last())?;
            let is_before = |cell: &Cell| (cell.group, cell.ts) <= (last.group, last.ts);
            let (cells, after) = rest.split_at(rest.partition_point(is_before));
            rest = after;
            Some(ShardRows { cells, ..self })
        })
    }

    /// All cells, ordered by (group, ts, slot).
    pub fn cells(self) -> &'a [Cell] {
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches below and above the size from which shards are gathered, in any order.
    #[test]
    fn batches_of_any_order_are_sorted_as_by_a_map() {
        let bits = ShardBits::for_count(8);
        for (cell_count, spread) in [(5, 3), (9, 3), (500, 7), (500, 1_000), (5_000, 40)] {
            let mut batch = RowBatch::default();
            let mut want = std::collections::BTreeMap::new();
            for idx in 0..cell_count as u64 {
                let dice = idx.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                let group = GroupId(dice % spread);
                let (slot, ts) = (Slot((dice >> 10) as u32 % 3), (dice >> 12) as i64 % 5);
                batch.push(SeriesRef { group, slot }, ts, idx as f64);
                want.insert((bits.shard(group), group, ts, slot), idx as f64);
            }
            let capacity_bytes = batch.heap_bytes();
            batch.sort(bits);
            let key = |cell: &Cell| (bits.shard(cell.group), cell.group, cell.ts, cell.slot);
            let seen: Vec<_> = batch.cells().iter().map(|cell| (key(cell), cell.value)).collect();
            assert_eq!(seen, want.into_iter().collect::<Vec<_>>());
            assert_eq!(batch.heap_bytes(), capacity_bytes, "the memory is kept for the next batch");
        }
    }

    #[test]
    fn the_last_push_wins_and_pieces_are_ordered() {
        let bits = ShardBits::for_count(2);
        let series = |group, slot| SeriesRef { group: GroupId(group), slot: Slot(slot) };
        let mut batch = RowBatch::default();
        batch.push(series(3, 1), 10, 1.0);
        batch.push(series(2, 0), 10, 2.0);
        batch.push(series(3, 0), 10, 3.0);
        batch.push(series(3, 1), 10, 4.0);
        batch.push(series(3, 1), -5, 5.0);
        batch.sort(bits);
        let seen: Vec<_> = batch
            .by_shard()
            .flat_map(|rows| rows.pieces().map(move |piece| (rows.shard.0, piece)))
            .map(|(shard, piece)| {
                let cells: Vec<_> = piece.cells.iter().map(|c| (c.slot.0, c.value)).collect();
                (shard, piece.group.0, piece.ts, cells)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (0, 2, 10, vec![(0, 2.0)]),
                (1, 3, -5, vec![(1, 5.0)]),
                (1, 3, 10, vec![(0, 3.0), (1, 4.0)]),
            ]
        );
        assert_eq!(batch.time_range(), TimeRange::new(-5, 10));
    }

    #[test]
    fn parts_are_the_batch_and_split_no_row() {
        let bits = ShardBits::for_count(2);
        let mut batch = RowBatch::default();
        for idx in 0..200 {
            let (group, slot) = (GroupId(idx % 5), Slot((idx / 5) as u32 % 7));
            batch.push(SeriesRef { group, slot }, idx as i64 % 3, idx as f64);
        }
        batch.sort(bits);
        for cells_max in [0, 1, 2, 5, 30, 1_000] {
            let parts: Vec<ShardRows<'_>> = batch.by_part(cells_max).collect();
            // The values are distinct.
            let values: Vec<f64> =
                parts.iter().flat_map(|part| part.cells()).map(|cell| cell.value).collect();
            let all: Vec<f64> = batch.cells().iter().map(|cell| cell.value).collect();
            assert_eq!(values, all);
            let row = |cell: Option<&Cell>| cell.map(|cell| (cell.group, cell.ts));
            for pair in parts.windows(2) {
                assert_ne!(row(pair[0].cells().last()), row(pair[1].cells().first()));
            }
            for part in &parts {
                assert!(part.cells().iter().all(|cell| bits.shard(cell.group) == part.shard));
                assert!(part.cells().len() < cells_max.max(1) + 7, "a row has 7 members at most");
            }
        }
    }
}
