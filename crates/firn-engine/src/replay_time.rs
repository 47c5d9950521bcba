//! How long a restart would replay the log, and the flushes that bound it.
//!
//! The estimate multiplies the contents of the log above the floors by costs that this process has
//! measured: those of the last replay, and of conversions while it runs. Before the first
//! measurement there are defaults, which are too high for most machines.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use crate::options::EngineOptions;

/// Costs of one thread, before they are measured: twice those of a 2.5 GHz core.
const READ_BYTE_NS: f64 = 1.0;
const DEFINITION_BYTE_NS: f64 = 5.0;
const ROW_BYTE_NS: f64 = 6.0;
const CONVERSION_BYTE_NS: f64 = 40.0;
/// A measured cost counts as at most this many times its default: a start on a busy machine or from
/// a cold disk must not cause tiny flushes until the next start.
const COST_FACTOR_MAX: f64 = 10.0;
/// With fewer units, a measurement counts as none.
const UNITS_MIN: u64 = 64 << 10;
/// Beyond this many units the older half of a measurement is forgotten.
const UNITS_MAX: u64 = 1 << 30;
/// A replay reads the log twice: to find transactions and times, and to apply it.
const PASSES: f64 = 2.0;
/// Divisor of the head size that forces a flush: replayed rows that are not columns yet may take
/// 1/4 of it.
const ROWS_FRACTION: u64 = 4;
/// Bytes of an arena for each byte of rows in the log.
const ARENA_FACTOR: f64 = 2.0;
/// Maximum number of threads of a replay.
const THREADS_MAX: usize = 8;

/// The time between two checks whether a flush is due, conversions included.
const CHECK_MS: f64 = 500.0;
/// Two flushes for this reason begin at least this long after each other, and at least
/// `SPACING` times the duration of the earlier one. On a machine that flushes too slowly the log
/// grows beyond the bound instead.
const SPACING_MS_MIN: f64 = 1_000.0;
const SPACING: f64 = 4.0;
/// Duration of a flush as a multiple of the replay that it saves, before it is measured.
const FLUSH_RATIO: f64 = 1.0;
/// Growth is measured over at least this long.
const GROWTH_MS_MIN: f64 = 1_000.0;
/// The load may return to its peak at any time. The peak counts half after this long.
const PEAK_HALF_LIFE_MS: f64 = 3_600_000.0;
/// Share of the bound that flushes use; the rest is for a load above the peak.
const BOUND_SHARE: f64 = 0.9;

/// The part of the log above the floors, by the work of its replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoggedWork {
    /// All bytes.
    pub(crate) bytes: u64,
    /// Bytes of definitions of series.
    pub(crate) definition_bytes: u64,
    /// Rows of a group, as they came in.
    pub(crate) row_count: u64,
}

/// A measured cost: nanoseconds of one thread and the units that took them.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    ns: AtomicU64,
    units: AtomicU64,
}

/// The speed of a replay on this machine.
#[derive(Debug, Default)]
pub(crate) struct ReplaySpeed {
    /// Bytes read, checked and split into entries.
    pub(crate) read: Cost,
    /// Bytes of definitions put into the index.
    pub(crate) definitions: Cost,
    /// Bytes of rows put into arenas.
    pub(crate) rows: Cost,
    /// Rows that became columns.
    pub(crate) conversion: Cost,
}

/// When the log was flushed, and how its estimate grows.
#[derive(Debug, Default)]
pub(crate) struct FlushPace(Mutex<FlushTimes>);

#[derive(Clone, Copy, Debug)]
struct FlushTimes {
    /// Monotonic time at which the last flush began, or the start.
    flushed_at_ms: f64,
    /// Its duration.
    flush_ms: f64,
    /// Its duration as a multiple of the replay that it saved.
    flush_ratio: f64,
    /// A time since then, and the estimate at that time.
    seen_at_ms: f64,
    seen_estimate_ms: f64,
    /// Milliseconds of replay that a millisecond of writing adds: the peak, which decays.
    growth: f64,
}

impl Cost {
    /// `units` took `ns`. Measurements without a clock are ignored.
    pub(crate) fn add(&self, ns: u64, units: u64) {
        if ns == 0 {
            return;
        }
        let all_ns = self.ns.fetch_add(ns, Relaxed).saturating_add(ns);
        let all_units = self.units.fetch_add(units, Relaxed).saturating_add(units);
        if all_units > UNITS_MAX {
            // A race with another thread costs some of a measurement.
            self.ns.store(all_ns / 2, Relaxed);
            self.units.store(all_units / 2, Relaxed);
        }
    }

    /// Nanoseconds of `units`, which are `default_ns` before enough were measured.
    fn of(&self, units: u64, default_ns: f64) -> f64 {
        let measured_units = self.units.load(Relaxed);
        if measured_units < UNITS_MIN {
            return default_ns;
        }
        let of_one = self.ns.load(Relaxed) as f64 / measured_units as f64;
        (of_one * units as f64).min(COST_FACTOR_MAX * default_ns)
    }
}

/// Bytes of arenas beyond which a replay converts rows to columns at once.
pub(crate) fn rows_bytes_max(options: &EngineOptions) -> u64 {
    options.head_bytes_max / ROWS_FRACTION
}

/// The most threads of a replay.
pub(crate) fn threads_max(options: &EngineOptions) -> usize {
    options.recovery_threads.clamp(1, THREADS_MAX)
}

impl ReplaySpeed {
    /// Milliseconds that a replay of `work` would take.
    pub(crate) fn estimate_ms(&self, work: LoggedWork, options: &EngineOptions) -> f64 {
        let definition_bytes = work.definition_bytes.min(work.bytes);
        let row_bytes = work.bytes - definition_bytes;
        let of_bytes =
            |cost: &Cost, bytes: u64, byte_ns: f64| cost.of(bytes, bytes as f64 * byte_ns);
        let read_ns = PASSES * of_bytes(&self.read, work.bytes, READ_BYTE_NS);
        let definition_ns = of_bytes(&self.definitions, definition_bytes, DEFINITION_BYTE_NS);
        let rows_ns = of_bytes(&self.rows, row_bytes, ROW_BYTE_NS);
        let all_conversion_ns =
            self.conversion.of(work.row_count, row_bytes as f64 * CONVERSION_BYTE_NS);
        // The last rows stay in arenas.
        let kept = rows_bytes_max(options) as f64 / (row_bytes as f64 * ARENA_FACTOR).max(1.0);
        let conversion_ns = all_conversion_ns * (1.0 - kept).max(0.0);
        // Definitions are put into the index one after the other, everything else in parallel.
        let shared_ns = definition_ns + rows_ns + conversion_ns;
        let apply_ns = definition_ns.max(shared_ns / threads_max(options) as f64);
        (read_ns + apply_ns) / 1e6
    }
}

impl Default for FlushTimes {
    fn default() -> FlushTimes {
        FlushTimes {
            flushed_at_ms: 0.0,
            flush_ms: 0.0,
            flush_ratio: FLUSH_RATIO,
            seen_at_ms: 0.0,
            seen_estimate_ms: 0.0,
            growth: 0.0,
        }
    }
}

impl FlushPace {
    /// Begins at the monotonic time `now_ms`.
    pub(crate) fn new(now_ms: f64) -> FlushPace {
        let (flushed_at_ms, seen_at_ms) = (now_ms, now_ms);
        FlushPace(Mutex::new(FlushTimes { flushed_at_ms, seen_at_ms, ..FlushTimes::default() }))
    }

    /// Whether a flush must begin now, so that a replay takes at most `max_ms` until the flush is
    /// complete.
    pub(crate) fn is_due(&self, now_ms: f64, estimate_ms: f64, max_ms: f64) -> bool {
        let mut times = self.0.lock();
        let seen_ms = now_ms - times.seen_at_ms;
        if seen_ms >= GROWTH_MS_MIN {
            let growth = (estimate_ms - times.seen_estimate_ms) / seen_ms;
            let peak = times.growth * 0.5_f64.powf(seen_ms / PEAK_HALF_LIFE_MS);
            times.growth = peak.max(growth);
            (times.seen_at_ms, times.seen_estimate_ms) = (now_ms, estimate_ms);
        }
        let age_ms = now_ms - times.flushed_at_ms;
        let growth = times.growth.max(estimate_ms / age_ms.max(GROWTH_MS_MIN));
        let later_ms = growth * (times.flush_ratio * estimate_ms + CHECK_MS);
        // More than that cannot be helped by flushing sooner.
        let later_ms = later_ms.min(estimate_ms);
        let spacing_ms = SPACING_MS_MIN.max(SPACING * times.flush_ms);
        age_ms >= spacing_ms && estimate_ms + later_ms >= BOUND_SHARE * max_ms
    }

    /// A flush from `started_ms` to `now_ms` has saved a replay of `saved_ms`; `left_ms` remain.
    pub(crate) fn note_flushed(
        &self,
        (started_ms, now_ms): (f64, f64),
        saved_ms: f64,
        left_ms: f64,
    ) {
        let mut times = self.0.lock();
        times.flushed_at_ms = started_ms;
        times.flush_ms = now_ms - started_ms;
        // Short ones consist of waits for the device.
        if saved_ms >= CHECK_MS / 2.0 {
            times.flush_ratio = times.flush_ms / saved_ms;
        }
        (times.seen_at_ms, times.seen_estimate_ms) = (now_ms, left_ms);
    }
}

#[cfg(test)]
mod tests {
    use firn_sim::Rng;

    use super::*;

    const MAX_MS: f64 = 2_000.0;

    fn options() -> EngineOptions {
        EngineOptions { recovery_threads: 2, ..EngineOptions::default() }
    }

    #[test]
    fn the_estimate_follows_the_measured_costs() {
        let speed = ReplaySpeed::default();
        let rows = LoggedWork { bytes: 100_000_000, definition_bytes: 0, row_count: 20_000_000 };
        let definitions = LoggedWork { definition_bytes: 100_000_000, ..rows };
        let before_ms = speed.estimate_ms(rows, &options());
        assert!(before_ms > 200.0, "{before_ms}");
        assert!(speed.estimate_ms(definitions, &options()) > 500.0);
        assert_eq!(speed.estimate_ms(LoggedWork::default(), &options()), 0.0);
        // A machine without a clock, and a measurement of next to nothing.
        speed.rows.add(0, 1 << 20);
        speed.rows.add(1 << 20, 10);
        assert_eq!(speed.estimate_ms(rows, &options()), before_ms);
        speed.rows.add(50 << 20, 1 << 20);
        let slow_ms = speed.estimate_ms(rows, &options());
        assert!(slow_ms > 2_500.0, "50 ns a byte on two threads: {slow_ms}");
        // A disk that was cold at the start: half a microsecond a byte.
        let cold = ReplaySpeed::default();
        cold.read.add(500 << 20, 1 << 20);
        let cold_ms = cold.estimate_ms(rows, &options());
        assert!(cold_ms < before_ms + 2_000.0, "at most 10 ns a byte and pass: {cold_ms}");
        // Faster now: the old measurement is forgotten.
        (0..64).for_each(|_| speed.rows.add(1 << 26, 1 << 26));
        let fast_ms = speed.estimate_ms(rows, &options());
        assert!(fast_ms < before_ms, "{fast_ms}");
        let one = EngineOptions { recovery_threads: 1, ..options() };
        assert!(speed.estimate_ms(rows, &one) > fast_ms);
    }

    /// A server under a load of its own, with a model clock.
    struct Model {
        now_ms: f64,
        /// Replay of the rows that only the log has.
        estimate_ms: f64,
        /// The greatest estimate so far.
        peak_ms: f64,
        flush_count: u64,
        /// Duration of all flushes before the last one.
        flushing_ms: f64,
        last_flush_ms: f64,
    }

    /// Writes for `hours`. `growth` milliseconds of replay come in each millisecond, changing from
    /// minute to minute; a flush takes `ratio` times the replay that it saves.
    fn run(rng: &mut Rng, growth_max: f64, ratio: f64, hours: f64) -> Model {
        let pace = FlushPace::new(0.0);
        let mut model = Model {
            now_ms: 0.0,
            estimate_ms: 0.0,
            peak_ms: 0.0,
            flush_count: 0,
            flushing_ms: 0.0,
            last_flush_ms: 0.0,
        };
        let mut growth = growth_max;
        let mut next_change_ms = 60_000.0;
        while model.now_ms < hours * 3_600_000.0 {
            if model.now_ms >= next_change_ms {
                growth = growth_max * rng.below(1_001) as f64 / 1_000.0;
                next_change_ms += 60_000.0;
            }
            let step_ms = 1.0 + rng.below(CHECK_MS as u64 - 50) as f64;
            model.write(growth, step_ms);
            if !pace.is_due(model.now_ms, model.estimate_ms, MAX_MS) {
                continue;
            }
            let (started_ms, saved_ms) = (model.now_ms, model.estimate_ms);
            let flush_ms = 20.0 + ratio * saved_ms;
            model.write(growth, flush_ms);
            model.estimate_ms -= saved_ms;
            model.flush_count += 1;
            model.flushing_ms += model.last_flush_ms;
            model.last_flush_ms = flush_ms;
            pace.note_flushed((started_ms, model.now_ms), saved_ms, model.estimate_ms);
        }
        model
    }

    impl Model {
        fn write(&mut self, growth: f64, took_ms: f64) {
            self.now_ms += took_ms;
            self.estimate_ms += growth * took_ms;
            self.peak_ms = self.peak_ms.max(self.estimate_ms);
        }
    }

    /// Whenever the process is killed, also in the middle of a flush, its restart takes no longer
    /// than the bound, if flushes can keep up.
    #[test]
    fn the_log_never_grows_beyond_the_bound() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let growth = 0.001 + rng.below(400) as f64 / 1_000.0;
            // A flush may take a fifth of the time.
            let ratio = (0.05 + rng.below(1_000) as f64 / 500.0).min(0.2 / growth);
            let model = run(&mut rng, growth, ratio, 2.0);
            assert!(model.peak_ms <= MAX_MS, "seed {seed}: {} ms", model.peak_ms);
            let flush_count = model.flush_count as f64;
            let useful = model.now_ms * growth / (MAX_MS / 2.0) + 1.0;
            assert!(flush_count <= useful, "seed {seed}: {flush_count} flushes, {useful} suffice");
        }
    }

    /// A machine that flushes too slowly writes no tiny tables and exceeds the bound.
    #[test]
    fn flushes_take_a_quarter_of_the_time_at_most() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let growth = 0.1 + rng.below(1_000) as f64 / 500.0;
            let ratio = 2.0 + rng.below(10) as f64;
            let model = run(&mut rng, growth, ratio, 0.5);
            let share = model.flushing_ms / model.now_ms;
            assert!(share <= 1.0 / SPACING, "seed {seed}: {share}");
            assert!(model.flush_count <= (model.now_ms / SPACING_MS_MIN) as u64);
        }
    }
}
