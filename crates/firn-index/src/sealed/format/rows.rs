//! Label sets as rows of value ranks: the structure of lone series, parts and member sets.
//!
//! Rows of one schema (the same names) are adjacent, sorted by the columns with few values first,
//! so that most columns of a block hardly change.
//!
//! ```text
//! schemas = varint(count) schema*
//! schema  = varint(names) varint(name << 1 | is identity)* varint(rows)          names ascend
//! block   = column*             one per name; 128 rows of a schema, fewer at its end
//! column  = width:u8 varint(least rank) packed(rank - least)                     width 0 to 32
//!         | 64:u8 varint(least rank) varint(bytes) run*
//! run     = varint(rows) varint(rank - least)
//! ```

use std::ops::Range;

use firn_codec::bits::{bit_width, get_bits, pack, packed_bytes};
use firn_codec::varint::take_bytes;
use firn_model::{Budget, Error, Result, decode_varint, encode_varint};

use crate::id_set::{IdSet, common_runs, skip_to};
use crate::sealed::format::blocks::{Blocks, Records};
use crate::sealed::format::varint::take_varint;

/// Rows of a block.
pub(crate) const BLOCK_ROWS: u32 = 128;
const RUNS: u8 = 64;
// Names of sets with up to this many runs, such as all rows, are looked up one by one: there are
// fewer names than schemas.
const RUNS_BY_NAME_MAX: usize = 4;

/// Rows with the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    /// Names by rank, ascending.
    pub(crate) names: Box<[u32]>,
    /// Whether each name is an identity label; empty if none is.
    identity: Box<[bool]>,
    pub(crate) rows: Range<u32>,
    /// The block of its first row.
    first_block: u64,
}

/// The rows of the schemas with each name, so that a name is found without a walk over schemas:
/// thousands where each series has labels of its own.
#[derive(Debug)]
struct RowsOfNames {
    /// For each name the index of its first run, and the number of all runs.
    starts: Vec<u32>,
    /// Disjoint and ascending for each name; they do not touch.
    runs: Vec<(u32, u32)>,
}

/// A table of label sets.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) schemas: Vec<Schema>,
    of_names: RowsOfNames,
    /// One block per start.
    pub(crate) cells: Records,
    pub(crate) count: u32,
}

/// Reads rows; adjacent rows are cheaper.
#[derive(Clone, Debug)]
pub(crate) struct RowReader<'a> {
    table: &'a Rows,
    blocks: &'a Blocks,
    schema_idx: usize,
    /// The rows of the loaded block; empty at first.
    rows: Range<u32>,
    columns: Vec<Column<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Column<'a> {
    width: u8,
    base: u64,
    payload: &'a [u8],
    /// For runs: the current run, so that ascending rows cost one step each.
    run: RankRun<'a>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RankRun<'a> {
    start: u64,
    end: u64,
    rank: u64,
    /// The following runs.
    rest: &'a [u8],
}

impl Schema {
    /// Decodes the schemas of a table; `None` if malformed. Names must be below `name_count`.
    pub(crate) fn parse(mut bytes: &[u8], name_count: u64) -> Option<Vec<Schema>> {
        let input = &mut bytes;
        let schema_count = decode_varint(input)?;
        let (mut schemas, mut next_row, mut next_block) = (Vec::new(), 0u32, 0u64);
        for _ in 0..schema_count {
            let (mut names, mut identity) = (Vec::new(), Vec::new());
            for _ in 0..decode_varint(input)? {
                let flagged = decode_varint(input)?;
                let name = u32::try_from(flagged >> 1)
                    .ok()
                    .filter(|&name| u64::from(name) < name_count)?;
                if names.last().is_some_and(|last| *last >= name) {
                    return None;
                }
                names.push(name);
                identity.push(flagged & 1 == 1);
            }
            if !identity.contains(&true) {
                identity.clear();
            }
            let row_count = u32::try_from(decode_varint(input)?).ok().filter(|&count| count > 0)?;
            let rows = next_row..next_row.checked_add(row_count)?;
            next_row = rows.end;
            let first_block = next_block;
            next_block = next_block.checked_add(u64::from(row_count.div_ceil(BLOCK_ROWS)))?;
            let (names, identity) = (names.into(), identity.into());
            schemas.push(Schema { names, identity, rows, first_block });
        }
        schemas.shrink_to_fit();
        bytes.is_empty().then_some(schemas)
    }

    /// Whether a column has an identity label.
    pub(crate) fn is_identity(&self, column_idx: usize) -> bool {
        self.identity.get(column_idx).copied().unwrap_or_default()
    }

    /// The identity names.
    pub(crate) fn identity_names(&self) -> impl Iterator<Item = u32> + '_ {
        self.names.iter().zip(&self.identity).filter(|name| *name.1).map(|name| *name.0)
    }
}

impl RowsOfNames {
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "names are below `end`, and runs are counted before they are filled in"
    )]
    fn of(schemas: &[Schema]) -> RowsOfNames {
        let last = schemas.iter().filter_map(|schema| schema.names.last()).max();
        let end = last.map_or(0, |&last| last as usize + 1);
        // For each name the end of its last run, above 0; then the index of its next run.
        let mut ends = vec![0u32; end];
        let mut starts = vec![0u32; end + 1];
        for schema in schemas {
            for &name in &schema.names {
                let name = name as usize;
                if ends[name] == 0 || ends[name] != schema.rows.start {
                    starts[name + 1] += 1;
                }
                ends[name] = schema.rows.end;
            }
        }
        for name in 0..end {
            starts[name + 1] += starts[name];
        }
        let mut next = starts.clone();
        let mut runs = vec![(0, 0); starts[end] as usize];
        for schema in schemas {
            let Range { start, end } = schema.rows;
            for &name in &schema.names {
                let name = name as usize;
                let is_joined = next[name] > starts[name] && {
                    let run: &mut (u32, u32) = &mut runs[next[name] as usize - 1];
                    let joins = run.1 == start;
                    run.1 = if joins { end } else { run.1 };
                    joins
                };
                if !is_joined {
                    runs[next[name] as usize] = (start, end);
                    next[name] += 1;
                }
            }
        }
        RowsOfNames { starts, runs }
    }

    /// The first name above all names.
    fn end(&self) -> u32 {
        u32::try_from(self.starts.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    fn get(&self, name: u32) -> &[(u32, u32)] {
        let bounds = self.starts.get(name as usize..).and_then(|starts| starts.first_chunk::<2>());
        let range = bounds.map_or(0..0, |&[start, end]| start as usize..end as usize);
        self.runs.get(range).unwrap_or_default()
    }
}

impl Rows {
    pub(crate) fn new(schemas: Vec<Schema>, cells: Records) -> Rows {
        let count = schemas.last().map_or(0, |last| last.rows.end);
        Rows { of_names: RowsOfNames::of(&schemas), schemas, cells, count }
    }

    /// Those of `among` with `name`.
    ///
    /// # Errors
    /// As [`IdSet::intersect_runs`].
    pub(crate) fn with_name(&self, name: u32, among: &IdSet, budget: &Budget) -> Result<IdSet> {
        among.intersect_runs(self.of_names.get(name), budget)
    }

    /// Calls `each` with the names of `among`, each with one row of `among`, in no order and
    /// possibly several times.
    pub(crate) fn each_name(&self, among: &IdSet, mut each: impl FnMut(u32, u32)) {
        let runs = among.runs();
        if runs.len() <= RUNS_BY_NAME_MAX {
            for name in 0..self.of_names.end() {
                let row = common_runs(self.of_names.get(name), runs).next();
                row.into_iter().for_each(|(row, _)| each(name, row));
            }
            return;
        }
        let mut rest = runs;
        for schema in &self.schemas {
            rest = skip_to(rest, schema.rows.start);
            if let Some(run) = rest.first().filter(|run| run.0 < schema.rows.end) {
                let row = run.0.max(schema.rows.start);
                schema.names.iter().for_each(|&name| each(name, row));
            }
        }
    }

    pub(crate) fn reader<'a>(&'a self, blocks: &'a Blocks) -> RowReader<'a> {
        RowReader { table: self, blocks, schema_idx: 0, rows: 0..0, columns: Vec::new() }
    }

    pub(crate) fn schema_of(&self, row: u32) -> Option<usize> {
        let idx = self.schemas.partition_point(|schema| schema.rows.end <= row);
        (row < self.count).then_some(idx)
    }

    /// The labels of all rows.
    pub(crate) fn label_count(&self) -> u64 {
        let of =
            |schema: &Schema| (schema.rows.len() as u64).saturating_mul(schema.names.len() as u64);
        self.schemas.iter().map(of).fold(0, u64::saturating_add)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    pub(crate) fn heap_bytes(&self) -> usize {
        let of =
            |schema: &Schema| size_of::<Schema>() + schema.names.len() * 4 + schema.identity.len();
        let RowsOfNames { starts, runs } = &self.of_names;
        let of_names = starts.capacity() * 4 + runs.capacity() * 8;
        self.schemas.iter().map(of).sum::<usize>() + of_names
    }
}

impl<'a> RowReader<'a> {
    /// Loads the block of `row`.
    ///
    /// # Errors
    /// `Corrupt` if the row does not exist or its block is damaged.
    #[inline]
    pub(crate) fn load(&mut self, row: u32) -> Result<&'a Schema> {
        if !self.rows.contains(&row) {
            self.load_block(row)?;
        }
        self.table.schemas.get(self.schema_idx).ok_or_else(|| self.bad())
    }

    /// The rank of `row`'s value in a column of its schema. The row's block must be loaded.
    ///
    /// # Errors
    /// `Corrupt` for a malformed column.
    #[inline]
    pub(crate) fn rank(&mut self, row: u32, column_idx: usize) -> Result<u32> {
        let at = row.wrapping_sub(self.rows.start);
        let column = self.columns.get_mut(column_idx);
        let rank =
            column.and_then(|column| column.rank(at)).and_then(|rank| u32::try_from(rank).ok());
        rank.ok_or_else(|| self.bad())
    }

    fn load_block(&mut self, row: u32) -> Result<()> {
        let schema_idx = self.table.schema_of(row).ok_or_else(|| self.bad())?;
        let schema = self.table.schemas.get(schema_idx).ok_or_else(|| self.bad())?;
        let in_schema = row.saturating_sub(schema.rows.start) / BLOCK_ROWS;
        let block = schema.first_block.saturating_add(u64::from(in_schema));
        let mut rest = self.table.cells.get(self.blocks, block)?;
        let first = schema.rows.start.saturating_add(in_schema.saturating_mul(BLOCK_ROWS));
        self.take_block(schema_idx, first, &mut rest).ok_or_else(|| self.bad())
    }

    /// Loads the block that begins with row `first` of a schema from `rest`, and advances `rest`
    /// past it.
    pub(crate) fn take_block(
        &mut self,
        schema_idx: usize,
        first: u32,
        rest: &mut &'a [u8],
    ) -> Option<()> {
        self.rows = 0..0;
        self.columns.clear();
        let schema = self.table.schemas.get(schema_idx)?;
        let rows = first..schema.rows.end.min(first.saturating_add(BLOCK_ROWS));
        self.columns.reserve(schema.names.len());
        for _ in &schema.names {
            self.columns.push(Column::take(rest, rows.len())?);
        }
        (self.schema_idx, self.rows) = (schema_idx, rows);
        Some(())
    }

    #[cold]
    fn bad(&self) -> Error {
        self.blocks.corrupt(
            self.table.cells.bytes.start,
            "a block of label sets is malformed: run `firn check --repair`",
        )
    }
}

impl<'a> Column<'a> {
    fn take(rest: &mut &'a [u8], row_count: usize) -> Option<Column<'a>> {
        let (&width, after) = rest.split_first()?;
        *rest = after;
        let base = take_varint(rest)?;
        let payload_bytes = match width {
            0..=32 => packed_bytes(row_count, u32::from(width)),
            RUNS => usize::try_from(take_varint(rest)?).ok()?,
            _ => return None,
        };
        let payload = take_bytes(rest, payload_bytes, "column").ok()?;
        let run = RankRun { rest: payload, ..RankRun::default() };
        Some(Column { width, base, payload, run })
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "hot; the product of 32-bit numbers fits in 64 bits"
    )]
    fn rank(&mut self, at: u32) -> Option<u64> {
        let width = u32::from(self.width);
        if self.width != RUNS {
            let rank = get_bits(self.payload, at as usize * width as usize, width);
            return self.base.checked_add(rank);
        }
        let at = u64::from(at);
        if at < self.run.start {
            self.run = RankRun { rest: self.payload, ..RankRun::default() };
        }
        while at >= self.run.end {
            let (rows, rank) = (take_varint(&mut self.run.rest)?, take_varint(&mut self.run.rest)?);
            self.run.start = self.run.end;
            self.run.end = self.run.end.checked_add(rows)?;
            self.run.rank = rank;
        }
        self.base.checked_add(self.run.rank)
    }
}

/// Encodes blocks of rows.
#[derive(Debug, Default)]
pub(crate) struct RowsWriter {
    pub(crate) cells: Vec<u8>,
    pub(crate) starts: Vec<u64>,
}

#[expect(clippy::arithmetic_side_effects, reason = "encodes data of this process")]
impl RowsWriter {
    /// Appends the rows of a schema; `rank(row, column)` returns a cell.
    pub(crate) fn push(
        &mut self,
        names: &[(u32, bool)],
        row_count: u32,
        rank: impl Fn(u32, usize) -> u32,
    ) {
        let mut ranks: Vec<u32> = Vec::with_capacity(BLOCK_ROWS as usize);
        for start in (0..row_count).step_by(BLOCK_ROWS as usize) {
            self.starts.push(self.cells.len() as u64);
            for column_idx in 0..names.len() {
                ranks.clear();
                let end = row_count.min(start + BLOCK_ROWS);
                ranks.extend((start..end).map(|row| rank(row, column_idx)));
                push_column(&ranks, &mut self.cells);
            }
        }
    }
}

/// Encodes schemas: names with their identity flag, and row counts.
pub(crate) fn encode_schemas(schemas: &[(&[(u32, bool)], u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_varint(schemas.len() as u64, &mut out);
    for (names, row_count) in schemas {
        encode_varint(names.len() as u64, &mut out);
        for &(name, identity) in *names {
            encode_varint(u64::from(name) << 1 | u64::from(identity), &mut out);
        }
        encode_varint(u64::from(*row_count), &mut out);
    }
    out
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
fn push_column(ranks: &[u32], out: &mut Vec<u8>) {
    let base = ranks.iter().copied().min().unwrap_or(0);
    let width = bit_width(ranks.iter().map(|rank| u64::from(rank - base)).max().unwrap_or(0));
    let packed = packed_bytes(ranks.len(), width);
    let mut runs = Vec::new();
    for run in ranks.chunk_by(|a, b| a == b) {
        encode_varint(run.len() as u64, &mut runs);
        encode_varint(u64::from(run[0] - base), &mut runs);
        if runs.len() >= packed {
            break;
        }
    }
    let is_runs = runs.len() + 1 < packed;
    out.push(if is_runs { RUNS } else { width as u8 });
    encode_varint(u64::from(base), out);
    if is_runs {
        encode_varint(runs.len() as u64, out);
        out.extend_from_slice(&runs);
    } else {
        pack(ranks.iter().map(|rank| u64::from(rank - base)), width, out);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sealed::testing::written;

    proptest! {
        #[test]
        fn rows_are_read_back(
            tables in prop::collection::vec(
                (prop::collection::btree_set(0u32..9, 0..4), 1u32..300, 1u32..70_000),
                1..4,
            ),
            seed in any::<u32>(),
        ) {
            let mut writer = RowsWriter::default();
            // The first column changes rarely, the others always.
            let rank = |row: u32, column: usize, span: u32| match column {
                0 => row / 60 * 7 % span,
                _ => row.wrapping_mul(seed | 1) % span,
            };
            let names = tables.iter().map(|(names, ..)| {
                names.iter().map(|&name| (name, name % 2 == 0)).collect::<Vec<_>>()
            });
            let names: Vec<Vec<(u32, bool)>> = names.collect();
            let mut schemas = Vec::new();
            for (names, (_, row_count, span)) in names.iter().zip(&tables) {
                writer.push(names, *row_count, |row, column| rank(row, column, *span));
                schemas.push((&names[..], *row_count));
            }
            let schemas = encode_schemas(&schemas);
            let (blocks, contents) = written(&[&schemas, &writer.cells], &[&writer.starts]);
            let cells = Records { bytes: contents.sections[1], starts: contents.arrays[0] };
            let schemas = Schema::parse(blocks.section(contents.sections[0]).unwrap(), 9).unwrap();
            let rows = Rows::new(schemas, cells);
            let mut reader = rows.reader(&blocks);
            let mut first = 0;
            for (schema_idx, (names, row_count, span)) in tables.iter().enumerate() {
                for row in 0..*row_count {
                    let schema = reader.load(first + row).unwrap();
                    prop_assert!(schema.names.iter().eq(names));
                    prop_assert_eq!(rows.schema_of(first + row), Some(schema_idx));
                    for column in 0..names.len() {
                        let got = reader.rank(first + row, column).unwrap();
                        prop_assert_eq!(got, rank(row, column, *span));
                    }
                }
                first += row_count;
            }
            let budget = Budget::unlimited();
            let has = |row: u32, name: u32| {
                let schema = rows.schema_of(row).and_then(|idx| rows.schemas.get(idx));
                schema.is_some_and(|schema| schema.names.contains(&name))
            };
            let step = seed % 50 + 1;
            let sparse = (0..first).step_by(step as usize).map(|row| (row, row + step / 3 + 1));
            let among = IdSet::from_runs(sparse.take_while(|run| run.1 <= first), &budget).unwrap();
            for among in [IdSet::below(rows.count), among, IdSet::empty()] {
                let mut firsts = [None; 10];
                rows.each_name(&among, |name, row| firsts[name as usize] = Some(row));
                for name in 0..10 {
                    let want: Vec<u32> = among.iter().filter(|&row| has(row, name)).collect();
                    let got = rows.with_name(name, &among, &budget).unwrap();
                    prop_assert!(got.runs().is_sorted_by(|a, b| a.1 < b.0));
                    prop_assert_eq!(got.iter().collect::<Vec<_>>(), &want[..]);
                    let row = firsts[name as usize];
                    prop_assert_eq!(row.is_some(), !want.is_empty());
                    prop_assert!(row.is_none_or(|row| want.contains(&row)));
                }
            }
            prop_assert_eq!(rows.count, first);
            prop_assert!(reader.load(first).is_err());
        }
    }
}
