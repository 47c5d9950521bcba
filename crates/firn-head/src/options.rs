//! Options of the head.

use firn_model::{Error, Result};

/// Sizes of the head. Plain data; callers that pass on a user's values call [`HeadOptions::check`]
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// When rows become columns.
    pub convert: ConvertOptions,
    /// [`crate::Head::recycle_surplus`] releases flushed memory above this. Up to this, it serves
    /// queries until [`crate::Head::recycle`] needs it.
    pub hot_bytes_max: u64,
    /// Hot memory is released by areas: parts whose newest rows are in the same span of this many
    /// milliseconds.
    pub hot_area_ms: i64,
    /// Percentage of the released memory that comes from the oldest area, the next and the third;
    /// the rest comes from the oldest parts. The default releases the oldest area first. A query
    /// reads no table if all rows of its range are in memory, so hot memory should reach back
    /// without holes. Measured with one hour hot: all queries of the last hour read no file,
    /// against 83% with the shares of Heracles (`docs/memory.md`).
    ///
    /// Source: Heracles, section 3.2 (45, 35 and 20).
    pub recycle_percents: [u8; 3],
    /// Hard limit for memory that left the head and that readers still keep. Beyond it, leases are
    /// revoked; it bounds the memory that long queries pin.
    pub cooling_bytes_max: u64,
    /// A group is decoded as one up to about three times this size, otherwise in slices of this
    /// size: about four times as much is in memory while it is merged and encoded.
    pub slice_bytes: usize,
}

/// When active rows become static runs, and runs become compressed chunks: by share of series,
/// bytes, and points per series.
///
/// Source: ByteSeries, section 3.3 with Algorithm 1, and the thresholds of section 4.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// An arena of this size is converted once it has [`ConvertOptions::rows_per_group_min`] rows
    /// per group on average (counted as values per series, because a row may come in pieces), or at
    /// [`ConvertOptions::sparse_arena_times`] this size in any case. This is per shard: all active
    /// rows together hold at most `shard_count` times that, plus the arenas that wait for
    /// conversion.
    ///
    /// Source: ByteSeries, Algorithm 1, `max_size`.
    pub arena_bytes_max: usize,
    /// See [`ConvertOptions::arena_bytes_max`]. With millions of series, an arena of that size has
    /// one or two rows each, and columns of so few rows would be packed again and again.
    pub sparse_arena_times: usize,
    /// Fewer rows make poor columns: a column's header takes about 15 bytes, and each arena starts
    /// with whole rows.
    pub rows_per_group_min: u32,
    /// An arena with this many rows per group on average is converted at any size. A reader walks
    /// all rows of an arena, but seeks in a run.
    ///
    /// Source: ByteSeries, sections 3.3 and 4.3 (points per series); Heracles, section 3.1.1
    /// (entries of a tuple).
    pub rows_per_group_max: u32,
    /// An arena with [`ConvertOptions::rows_per_group_min`] rows per group is converted once
    /// queries have read as many bytes as this many times its own. A query of one member passes the
    /// values of the others in each row: of 101 members and 30 rows, that costs three times as much
    /// as columns. Dashboards and rules read the last minutes again and again.
    pub query_reads_max: u32,
    /// An arena with this many bytes per series is converted: active rows of a lone series cost
    /// about six bytes each, columns one or two. Members of a group are cheaper in both forms.
    /// Series are counted as they are written; after a restart, one per group is assumed.
    pub bytes_per_series_max: usize,
    /// Points or bytes per series convert an arena only if it has this share of the series of the
    /// previous arena, or [`ConvertOptions::arena_bytes_min`]. So a few series that are written
    /// often do not cut short the runs of all others.
    ///
    /// Source: ByteSeries, Algorithm 1, `dimen_ratio`. Section 4.3 finds 0.1 a good balance and
    /// uses 0.2.
    pub series_share_percent_min: u64,
    /// See [`ConvertOptions::series_share_percent_min`]. Corresponds to `max_dimen` of Algorithm 1,
    /// but in bytes.
    pub arena_bytes_min: usize,
    /// This many unflushed segments of a shard, of about one size, are merged and packed harder.
    /// Lower values cost work, higher values cost memory.
    pub segment_fan_in: usize,
    /// Two neighbouring segments are merged at once if their chunks have fewer rows than this on
    /// average. With irregular series an arena has five or six rows per series, and a chunk's
    /// header is as large as those. `point_limit` of ByteSeries, Algorithm 1, also counts points
    /// per series, but delays compression until it is reached.
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
            slice_bytes: 512 << 10,
        }
    }
}

impl HeadOptions {
    /// Checks that the options work together.
    ///
    /// # Errors
    /// `Invalid`, with the name of the setting in the library's options.
    pub fn check(&self) -> Result<()> {
        if self.hot_area_ms <= 0 {
            let span = self.hot_area_ms;
            return Err(Error::invalid(format!("hot_area_ms: expected at least 1, got {span}")));
        }
        let [oldest, next, third] = self.recycle_percents;
        if u32::from(oldest) + u32::from(next) + u32::from(third) > 100 {
            return Err(Error::invalid(format!(
                "recycle_percents: expected a sum of at most 100, got {oldest} + {next} + {third}"
            )));
        }
        self.convert.check()
    }
}

impl Default for ConvertOptions {
    fn default() -> ConvertOptions {
        ConvertOptions {
            // With 64 shards: 16 MiB of active rows, at most 256 MiB with millions of series.
            arena_bytes_max: 256 << 10,
            sparse_arena_times: 16,
            rows_per_group_min: 8,
            rows_per_group_max: 32,
            query_reads_max: 16,
            // About nine rows of a lone series. Measured with 100,000 of them: a read of the last
            // five minutes costs 1.1 us instead of 2.0 us at 32 rows. Active rows hold half of this
            // on average. 48 bytes cost 40 ns per sample more than 64.
            bytes_per_series_max: 56,
            series_share_percent_min: 20,
            arena_bytes_min: 32 << 10,
            // Measured as above, 120 rounds: 4 costs 20 ns per sample less and 30 bytes per lone
            // series more. 2 costs more time and saves no memory.
            segment_fan_in: 3,
            rows_per_chunk_min: 16,
        }
    }
}

impl ConvertOptions {
    /// Checks that the thresholds work together.
    ///
    /// # Errors
    /// `Invalid`, with the setting, if rows would never be converted, or the same rows again and
    /// again.
    fn check(&self) -> Result<()> {
        let positive = [
            ("arena_bytes_max", self.arena_bytes_max as u64),
            ("sparse_arena_times", self.sparse_arena_times as u64),
            ("rows_per_group_min", self.rows_per_group_min.into()),
            ("rows_per_group_max", self.rows_per_group_max.into()),
            ("query_reads_max", self.query_reads_max.into()),
            ("bytes_per_series_max", self.bytes_per_series_max as u64),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(Error::invalid(format!("convert.{name}: expected at least 1, got 0")));
            }
        }
        if self.series_share_percent_min > 100 {
            let share = self.series_share_percent_min;
            return Err(Error::invalid(format!(
                "convert.series_share_percent_min: expected at most 100, got {share}"
            )));
        }
        if self.rows_per_chunk_min > self.rows_per_group_max {
            let (want, most) = (self.rows_per_chunk_min, self.rows_per_group_max);
            return Err(Error::invalid(format!(
                "convert.rows_per_chunk_min: expected at most convert.rows_per_group_max ({most}), \
                 got {want}; small chunks would be merged again and again"
            )));
        }
        if self.segment_fan_in < 2 {
            return Err(Error::invalid(format!(
                "convert.segment_fan_in: expected at least 2, got {}",
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
    fn options_out_of_range_are_refused_by_name() {
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
                "query_reads_max" => options.query_reads_max = value,
                "bytes_per_series_max" => options.bytes_per_series_max = value as usize,
                "series_share_percent_min" => options.series_share_percent_min = value.into(),
                _ => options.segment_fan_in = value as usize,
            }
            head.check()
        };
        let (good, bad) =
            ([1, 20, 1, 1, 1, 16, 32, 1, 1, 100, 2], [0, 21, 0, 0, 0, 0, 33, 0, 0, 101, 1]);
        let names = [
            "hot_area_ms",
            "recycle_percents",
            "arena_bytes_max",
            "sparse_arena_times",
            "rows_per_group_min",
            "rows_per_group_max",
            "rows_per_chunk_min",
            "query_reads_max",
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
