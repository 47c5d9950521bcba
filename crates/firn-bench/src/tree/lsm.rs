//! A multi-level LSM tree as in TimeUnion's comparison (SIGMOD 2022): its levels beyond the fast
//! tier are on the slow one, and bytes uploaded there are counted. By the paper's equations 7 to
//! 10, and as a model that merges equal chunks step by step, with trivial moves.

/// Sizes of a tree, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct TreeShape {
    /// Capacity of the first level.
    pub base_bytes: f64,
    /// The factor between the capacities of successive levels.
    pub multiplier: f64,
    /// Capacity of the fast tier.
    pub fast_bytes: f64,
    /// Size at which a table is closed.
    pub table_bytes: f64,
}

/// A table: the chunks of some groups, sorted by group, then by time.
#[derive(Clone, Debug)]
struct Table {
    chunks: Vec<((u32, u32), f64)>,
    bytes: f64,
}

impl TreeShape {
    /// Equation 7: the number of levels that `bytes` fill.
    pub fn levels(&self, bytes: f64) -> f64 {
        let m = self.multiplier;
        (bytes * (m - 1.0) / self.base_bytes + 1.0).ln() / m.ln()
    }

    /// Equations 8 and 9: bytes put to the slow tier by a multi-level tree, and by one slow level.
    pub fn computed_puts(&self, data_bytes: f64) -> (f64, f64) {
        let fast = self.levels(self.fast_bytes).floor();
        let slow = (self.levels(data_bytes).floor() - fast).max(0.0) as u32;
        let level = |l: u32| self.base_bytes * self.multiplier.powf(fast + f64::from(l) - 1.0);
        let many = (1..=slow).map(|l| level(l) * f64::from(l)).sum();
        (many, (1..=slow).map(level).sum())
    }

    /// Uploads of such a tree when `flushes` of all `groups` arrive one after the other, with
    /// chunks of `chunk_bytes`; everything is on the slow tier in the end.
    pub fn simulated_puts(&self, groups: u32, flushes: u32, chunk_bytes: f64) -> f64 {
        let fast_levels = self.levels(self.fast_bytes).floor().max(1.0) as usize;
        let mut levels: Vec<Vec<Table>> = vec![Vec::new()];
        let mut next_pick: Vec<u32> = vec![0];
        let mut put_bytes = 0.0;
        for flush in 0..flushes {
            // Below the first level each flush is a run of tables over all groups.
            let chunks = (0..groups).map(|group| ((group, flush), chunk_bytes)).collect();
            merge(&mut levels[0], chunks, self.table_bytes);
            let mut level = 0;
            while level < levels.len() {
                let limit = self.base_bytes * self.multiplier.powi(level as i32);
                while bytes_of(&levels[level]) > limit {
                    if levels.len() == level + 1 {
                        levels.push(Vec::new());
                        next_pick.push(0);
                    }
                    let table = pick(&mut levels[level], &mut next_pick[level]);
                    let written = push_down(&mut levels[level + 1], table, self.table_bytes);
                    let is_slow = level + 1 >= fast_levels;
                    // A table that moves without a merge is put once, when it leaves the fast tier.
                    let is_first = level + 1 == fast_levels;
                    put_bytes += match written {
                        Written::Merged(bytes) if is_slow => bytes,
                        Written::Moved(bytes) if is_first => bytes,
                        _ => 0.0,
                    };
                }
                level += 1;
            }
        }
        let left: f64 = levels.iter().take(fast_levels).map(|tables| bytes_of(tables)).sum();
        put_bytes + left
    }
}

enum Written {
    Merged(f64),
    Moved(f64),
}

/// As LevelDB: the next table after the one that was taken last.
fn pick(tables: &mut Vec<Table>, next: &mut u32) -> Table {
    let at = tables.iter().position(|table| table.chunks[0].0.0 >= *next).unwrap_or(0);
    let table = tables.remove(at);
    *next = table.chunks.last().map_or(0, |chunk| chunk.0.0 + 1);
    table
}

/// Merges `table` with the tables of `level` whose keys it overlaps; without any it is moved.
fn push_down(level: &mut Vec<Table>, table: Table, table_bytes: f64) -> Written {
    let first = table.chunks[0].0;
    let last = table.chunks[table.chunks.len() - 1].0;
    let overlaps = |other: &Table| {
        other.chunks[0].0 <= last && other.chunks[other.chunks.len() - 1].0 >= first
    };
    if !level.iter().any(overlaps) {
        let bytes = table.bytes;
        let at = level.partition_point(|other| other.chunks[0].0 < first);
        level.insert(at, table);
        return Written::Moved(bytes);
    }
    let mut chunks = table.chunks;
    let mut written = table.bytes;
    for other in level.extract_if(.., |other| overlaps(other)) {
        written += other.bytes;
        chunks.extend(other.chunks);
    }
    chunks.sort_by_key(|chunk| chunk.0);
    cut(level, chunks, table_bytes);
    Written::Merged(written)
}

/// Merges everything of the first level.
fn merge(level: &mut Vec<Table>, mut chunks: Vec<((u32, u32), f64)>, table_bytes: f64) {
    chunks.extend(level.drain(..).flat_map(|table| table.chunks));
    chunks.sort_by_key(|chunk| chunk.0);
    cut(level, chunks, table_bytes);
}

fn cut(level: &mut Vec<Table>, chunks: Vec<((u32, u32), f64)>, table_bytes: f64) {
    let mut table = Table { chunks: Vec::new(), bytes: 0.0 };
    for chunk in chunks {
        table.bytes += chunk.1;
        table.chunks.push(chunk);
        if table.bytes >= table_bytes {
            level.push(std::mem::replace(&mut table, Table { chunks: Vec::new(), bytes: 0.0 }));
        }
    }
    if !table.chunks.is_empty() {
        level.push(table);
    }
    level.sort_by_key(|table| table.chunks[0].0);
}

fn bytes_of(tables: &[Table]) -> f64 {
    tables.iter().map(|table| table.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1_048_576.0;

    #[test]
    fn the_papers_example_saves_64_gb() {
        let shape = TreeShape {
            base_bytes: 64.0 * MIB,
            multiplier: 10.0,
            fast_bytes: 1024.0 * MIB,
            table_bytes: 2.0 * MIB,
        };
        assert!((shape.levels(shape.fast_bytes) - 2.2).abs() < 0.1);
        assert!((shape.levels(100.0 * 1024.0 * MIB) - 4.2).abs() < 0.1);
        let (many, one) = shape.computed_puts(100.0 * 1024.0 * MIB);
        assert!(((many - one) / 1024.0 / MIB - 62.5).abs() < 0.1, "{}", (many - one) / MIB);
    }

    #[test]
    fn a_tree_that_is_simulated_puts_everything_at_least_once() {
        let shape =
            TreeShape { base_bytes: 100.0, multiplier: 4.0, fast_bytes: 150.0, table_bytes: 20.0 };
        let data = 50.0 * 60.0;
        let puts = shape.simulated_puts(50, 60, 1.0);
        assert!(puts > 1.5 * data && puts < 20.0 * data, "{puts} of {data}");
    }
}
