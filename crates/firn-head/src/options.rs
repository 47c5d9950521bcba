//! What can be set.

use firn_model::{Error, Result};

/// Sizes of the head. Plain data; whoever opens a head with what others set asks [`HeadOptions::check`] before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// When rows become columns.
    pub convert: ConvertOptions,
    /// Flushed memory over this is given back by [`crate::Head::recycle_surplus`]; below it is kept for
    /// queries until [`crate::Head::recycle`] wants it.
    pub hot_bytes_max: u64,
    /// Hot memory is given back by areas: parts whose newest rows are of one span of so many milliseconds.
    pub hot_area_ms: i64,
    /// Which percentage of what is to be given back comes from the oldest area, the next and the one after it; what is
    /// missing comes from the oldest ones. All of it from the oldest is the default: a query reads no table if nothing of
    /// its range has gone, so what is hot should reach back without holes. Measured with an hour hot: of
    /// queries of the last hour all read no file, 83% with Heracles' shares (docs/memory.md).
    ///
    /// Source: Heracles 3.2 (45, 35 and 20).
    pub recycle_percents: [u8; 3],
    /// Memory that left the head and that readers keep, beyond which it is taken from them: the hard limit of
    /// what long queries pin.
    pub cooling_bytes_max: u64,
}

/// When active rows become static runs, and runs compressed chunks: by share of series, bytes, and points per series.
///
/// Source: ByteSeries 3.3, 3.5 and Algorithm 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// An arena of this many bytes is converted once it has [`ConvertOptions::rows_per_group_min`] rows a
    /// group on average (values a series: a row may come in pieces), or at [`ConvertOptions::sparse_arena_times`] this size whatever is in
    /// it. Per shard, so all active rows together hold at most `shard_count` times that, and what waits for conversion.
    ///
    /// Source: ByteSeries Algorithm 1, `max_size`.
    pub arena_bytes_max: usize,
    /// See [`ConvertOptions::arena_bytes_max`]: of millions of series an arena of that size has a row or two each, and columns
    /// of those are packed again and again.
    pub sparse_arena_times: usize,
    /// Fewer rows than these make poor columns: a column's header is some 15 bytes, and each arena
    /// starts with whole rows.
    pub rows_per_group_min: u32,
    /// An arena with this many rows a group on average is converted whatever its size: so many entries
    /// has a static run. A reader walks all rows of an arena, in a run it finds its time at once.
    ///
    /// Source: ByteSeries 3.3 and 4.3 (points per series), Heracles 3.1.1 (entries of a tuple).
    pub rows_per_group_max: u32,
    /// An arena that holds this many bytes a series is converted: active rows of a lone series cost some
    /// six bytes each, columns one or two, while a member of a group has both cheaper. Series are
    /// counted as they are written, after a restart at one a group.
    pub bytes_per_series_max: usize,
    /// Of the series that the arena before had, an arena must hold this share before points or bytes a
    /// series count for it, unless it has [`ConvertOptions::arena_bytes_min`]: a few series that are
    /// written often do not make runs for all others.
    ///
    /// Source: ByteSeries Algorithm 1, `dimen_ratio`; 4.3 measures 0.1 to 0.2 as the best.
    pub series_share_percent_min: u64,
    /// See [`ConvertOptions::series_share_percent_min`]; `max_dimen` of Algorithm 1, but in bytes.
    pub arena_bytes_min: usize,
    /// This many unflushed static segments of a shard, of about one size, are merged and packed
    /// harder: fewer are more work, more are more memory.
    pub segment_fan_in: usize,
    /// Two neighbouring segments whose chunks have fewer rows than this on average are merged at once: of irregular
    /// series an arena has five or six rows, and a chunk's header is as large as those.
    ///
    /// Source: ByteSeries Algorithm 1, `point_limit`.
    pub rows_per_chunk_min: u32,
}

impl Default for HeadOptions {
    fn default() -> HeadOptions {
        HeadOptions {
            convert: ConvertOptions::default(),
            hot_bytes_max: 128 << 20,
            hot_area_ms: 30 * 60_000,
            recycle_percents: [100, 0, 0],
            cooling_bytes_max: 512 << 20,
        }
    }
}

impl HeadOptions {
    /// Whether all of it makes sense.
    ///
    /// # Errors
    /// `Invalid`, with the setting by its name in the library's options.
    pub fn check(&self) -> Result<()> {
        if self.hot_area_ms <= 0 {
            let span = self.hot_area_ms;
            return Err(Error::invalid(format!("hot_area_ms is {span}, it must be at least 1")));
        }
        let [oldest, next, third] = self.recycle_percents;
        if u32::from(oldest) + u32::from(next) + u32::from(third) > 100 {
            return Err(Error::invalid(format!(
                "recycle_percents are {oldest}, {next} and {third}, together they are at most 100"
            )));
        }
        self.convert.check()
    }
}

impl Default for ConvertOptions {
    fn default() -> ConvertOptions {
        ConvertOptions {
            // 64 shards: 16 MiB of active rows, at most 256 MiB where millions of series are written.
            arena_bytes_max: 256 << 10,
            sparse_arena_times: 16,
            rows_per_group_min: 8,
            rows_per_group_max: 32,
            // Some nine rows of a lone series. Measured, 100,000 of them: reading the last five minutes costs 1.1 us in
            // place of 2.0 at 32 rows, active rows hold half of this on average; 48 B costs 40 ns a sample more than 64.
            bytes_per_series_max: 56,
            series_share_percent_min: 20,
            arena_bytes_min: 32 << 10,
            // Measured as above, 120 rounds: 4 costs 20 ns a sample less and holds 30 B a lone series more, 2 the other
            // way round saves nothing.
            segment_fan_in: 3,
            rows_per_chunk_min: 16,
        }
    }
}

impl ConvertOptions {
    /// Whether all of it makes sense.
    ///
    /// # Errors
    /// `Invalid`, with the setting, where nothing would ever be converted, or the same again and again.
    fn check(&self) -> Result<()> {
        let positive = [
            ("arena_bytes_max", self.arena_bytes_max as u64),
            ("sparse_arena_times", self.sparse_arena_times as u64),
            ("rows_per_group_min", self.rows_per_group_min.into()),
            ("rows_per_group_max", self.rows_per_group_max.into()),
            ("bytes_per_series_max", self.bytes_per_series_max as u64),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(Error::invalid(format!("convert.{name} is 0, it must be at least 1")));
            }
        }
        if self.series_share_percent_min > 100 {
            let share = self.series_share_percent_min;
            return Err(Error::invalid(format!(
                "convert.series_share_percent_min is {share}, at most 100 percent can have rows"
            )));
        }
        if self.rows_per_chunk_min > self.rows_per_group_max {
            let (want, most) = (self.rows_per_chunk_min, self.rows_per_group_max);
            return Err(Error::invalid(format!(
                "convert.rows_per_chunk_min is {want}, over convert.rows_per_group_max, {most}: chunks would be written \
                 again and again"
            )));
        }
        if self.segment_fan_in < 2 {
            return Err(Error::invalid(format!(
                "convert.segment_fan_in is {}, merging takes at least 2 segments",
                self.segment_fan_in
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let check = |name: &str, value: u32| {
            let mut head = HeadOptions::default();
            let options = &mut head.convert;
            match name {
                "hot_area_ms" => head.hot_area_ms = value.into(),
                "recycle_percents" => head.recycle_percents = [45, 35, value as u8],
                "arena_bytes_max" => options.arena_bytes_max = value as usize,
                "sparse_arena_times" => options.sparse_arena_times = value as usize,
                "rows_per_group_min" => options.rows_per_group_min = value,
                "rows_per_group_max" => options.rows_per_group_max = value,
                "rows_per_chunk_min" => options.rows_per_chunk_min = value,
                "bytes_per_series_max" => options.bytes_per_series_max = value as usize,
                "series_share_percent_min" => options.series_share_percent_min = value.into(),
                _ => options.segment_fan_in = value as usize,
            }
            head.check()
        };
        let (good, bad) = ([1, 20, 1, 1, 1, 16, 32, 1, 100, 2], [0, 21, 0, 0, 0, 0, 33, 0, 101, 1]);
        let names = [
            "hot_area_ms",
            "recycle_percents",
            "arena_bytes_max",
            "sparse_arena_times",
            "rows_per_group_min",
            "rows_per_group_max",
            "rows_per_chunk_min",
            "bytes_per_series_max",
            "series_share_percent_min",
            "segment_fan_in",
        ];
        for ((name, good), bad) in names.into_iter().zip(good).zip(bad) {
            assert!(check(name, good).is_ok(), "{name}");
            assert!(check(name, bad).unwrap_err().to_string().contains(name), "{name}");
        }
    }
}
