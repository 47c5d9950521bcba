//! Summaries of durations in the metrics: quantiles of the last minutes, as those of Prometheus.

use std::time::{Duration, Instant};

use crate::metrics_text::{Kind, MetricsText};

/// Counts durations, and keeps a sample of them. Its memory is that of [`DurationSummary::new`],
/// whatever their number.
#[derive(Debug)]
pub(crate) struct DurationSummary {
    count: u64,
    seconds_sum: f64,
    /// Counts by bucket, each without those of the buckets below it.
    bucket_counts: [u64; BOUNDS.len()],
    /// The first one is the older one, which is read. Each duration is part of both.
    windows: [DurationSample; 2],
    /// When the younger window began.
    rotated_at: Instant,
}

/// A uniform sample of the durations since its beginning.
#[derive(Debug)]
struct DurationSample {
    seen: u64,
    kept: Vec<f64>,
}

/// The quantiles of scrapes and rules in Prometheus.
const QUANTILES: [(f64, &str); 5] =
    [(0.01, "0.01"), (0.05, "0.05"), (0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99")];
/// The upper bounds in the histograms beside these summaries.
const BOUNDS: [(f64, &str); 4] = [(0.01, "0.01"), (0.1, "0.1"), (1.0, "1"), (10.0, "10")];
/// Quantiles are those of the last five to ten minutes; in Prometheus, of the last eight to ten.
const WINDOW: Duration = Duration::from_secs(300);

impl DurationSummary {
    /// No durations. Quantiles are exact for up to `kept_max` of them in ten minutes; the memory is
    /// 16 bytes for each.
    pub(crate) fn new(kept_max: usize, now: Instant) -> DurationSummary {
        let window = || DurationSample { seen: 0, kept: Vec::with_capacity(kept_max) };
        DurationSummary {
            count: 0,
            seconds_sum: 0.0,
            bucket_counts: [0; BOUNDS.len()],
            windows: [window(), window()],
            rotated_at: now,
        }
    }

    /// Adds a duration. Allocates nothing.
    pub(crate) fn add(&mut self, took: Duration, now: Instant) {
        self.rotate(now);
        let seconds = took.as_secs_f64();
        self.count = self.count.saturating_add(1);
        self.seconds_sum += seconds;
        let bucket = BOUNDS.iter().position(|(bound, _)| seconds <= *bound);
        if let Some(count) = bucket.and_then(|idx| self.bucket_counts.get_mut(idx)) {
            *count = count.saturating_add(1);
        }
        for window in &mut self.windows {
            window.add(seconds);
        }
    }

    /// The number of durations since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Begins new windows that are due at `now`.
    fn rotate(&mut self, now: Instant) {
        // After a longer time without durations both windows are empty.
        for _ in 0..self.windows.len() {
            if now.saturating_duration_since(self.rotated_at) < WINDOW {
                return;
            }
            self.rotated_at += WINDOW;
            self.windows.rotate_left(1);
            let [_, younger] = &mut self.windows;
            younger.clear();
        }
        if now.saturating_duration_since(self.rotated_at) >= WINDOW {
            self.rotated_at = now;
        }
    }

    /// The quantiles of the last minutes. NaN without durations.
    fn quantiles(&mut self, now: Instant) -> [f64; QUANTILES.len()] {
        self.rotate(now);
        let [older, _] = &mut self.windows;
        older.kept.sort_unstable_by(f64::total_cmp);
        QUANTILES.map(|(quantile, _)| {
            let rank = (quantile * older.kept.len() as f64).ceil() as usize;
            older.kept.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
        })
    }
}

impl DurationSample {
    /// Vitter's algorithm R: the n-th value replaces a kept one with the probability `kept / n`.
    fn add(&mut self, seconds: f64) {
        self.seen = self.seen.saturating_add(1);
        if self.kept.len() < self.kept.capacity() {
            self.kept.push(seconds);
        } else {
            let idx = scattered(self.seen) % self.seen;
            let kept = usize::try_from(idx).ok().and_then(|idx| self.kept.get_mut(idx));
            if let Some(kept) = kept {
                *kept = seconds;
            }
        }
    }

    fn clear(&mut self) {
        self.seen = 0;
        self.kept.clear();
    }
}

/// A number that depends on each bit of `number`, as in SplitMix64.
fn scattered(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Writes a summary `{name}_seconds` and a histogram `{name}_histogram_seconds` with the labels of
/// each of `all`.
pub(crate) fn write_durations<'a>(
    (name, help): (&str, &str),
    all: &mut [(Option<(&'a str, &'a str)>, &'a mut DurationSummary)],
    now: Instant,
    text: &mut MetricsText,
) {
    let with = |label: Option<(&'a str, &'a str)>, more| -> Vec<(&'a str, &'a str)> {
        label.into_iter().chain(more).collect()
    };
    let summary = format!("{name}_seconds");
    text.family(&summary, Kind::Summary, help);
    for (label, durations) in &mut *all {
        for ((_, quantile), seconds) in QUANTILES.iter().zip(durations.quantiles(now)) {
            text.sample(&summary, &with(*label, Some(("quantile", *quantile))), seconds);
        }
        text.sample(&format!("{summary}_sum"), &with(*label, None), durations.seconds_sum);
        text.sample(&format!("{summary}_count"), &with(*label, None), durations.count as f64);
    }
    let histogram = format!("{name}_histogram_seconds");
    text.family(&histogram, Kind::Histogram, help);
    for (label, durations) in all {
        let name = format!("{histogram}_bucket");
        let mut below: u64 = 0;
        for ((_, bound), count) in BOUNDS.iter().zip(durations.bucket_counts) {
            below = below.saturating_add(count);
            text.sample(&name, &with(*label, Some(("le", *bound))), below as f64);
        }
        text.sample(&name, &with(*label, Some(("le", "+Inf"))), durations.count as f64);
        text.sample(&format!("{histogram}_sum"), &with(*label, None), durations.seconds_sum);
        text.sample(&format!("{histogram}_count"), &with(*label, None), durations.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    #[test]
    fn quantiles_are_those_of_the_last_minutes() {
        let start = Instant::now();
        let mut durations = DurationSummary::new(1_000, start);
        assert!(durations.quantiles(start).iter().all(|seconds| seconds.is_nan()));
        for ms in (1..=100).rev() {
            durations.add(Duration::from_millis(ms), start);
        }
        let want = [0.001, 0.005, 0.05, 0.09, 0.099];
        assert_eq!(durations.quantiles(start), want);
        // Both windows have the first durations for five minutes, the younger one for ten.
        durations.add(Duration::from_secs(9), start + WINDOW - STEP);
        let want = [0.002, 0.006, 0.051, 0.091, 0.1];
        assert_eq!(durations.quantiles(start + WINDOW), want);
        let later = start + 2 * WINDOW - STEP;
        assert_eq!(durations.quantiles(later), want);
        durations.add(Duration::from_secs(3), later);
        assert_eq!(durations.quantiles(start + 2 * WINDOW), [3.0; 5]);
        assert!(durations.quantiles(start + 9 * WINDOW)[0].is_nan());
        durations.add(Duration::from_secs(2), start + 9 * WINDOW);
        assert_eq!(durations.quantiles(start + 9 * WINDOW), [2.0; 5]);
        assert_eq!((durations.count, durations.bucket_counts), (103, [10, 90, 0, 3]));
    }

    // 100,000 scrapes in a window: the sample is not that of the last ones, nor of the first ones.
    #[test]
    fn a_sample_stands_for_many_durations_without_more_memory() {
        let start = Instant::now();
        let mut durations = DurationSummary::new(256, start);
        let memory = |durations: &DurationSummary| {
            durations
                .windows
                .each_ref()
                .map(|window| (window.kept.as_ptr(), window.kept.capacity()))
        };
        let before = memory(&durations);
        for ms in 0..100_000 {
            durations.add(Duration::from_millis(ms), start);
        }
        let quantiles = durations.quantiles(start);
        for (found, (quantile, _)) in quantiles.iter().zip(QUANTILES) {
            assert!((found / 100.0 - quantile).abs() < 0.1, "{quantile}: {found}");
        }
        assert_eq!(memory(&durations), before);
    }

    #[test]
    fn a_summary_and_a_histogram_are_written() {
        let start = Instant::now();
        let mut durations = DurationSummary::new(4, start);
        durations.add(Duration::from_millis(500), start);
        durations.add(Duration::from_secs(20), start);
        let mut text = MetricsText::default();
        let label = Some(("b", "c"));
        let name = ("a_length", "Lengths.");
        write_durations(name, &mut [(label, &mut durations)], start, &mut text);
        let want = "# HELP a_length_seconds Lengths.\n# TYPE a_length_seconds summary\n\
                    a_length_seconds{b=\"c\",quantile=\"0.01\"} 0.5\n\
                    a_length_seconds{b=\"c\",quantile=\"0.05\"} 0.5\n\
                    a_length_seconds{b=\"c\",quantile=\"0.5\"} 0.5\n\
                    a_length_seconds{b=\"c\",quantile=\"0.9\"} 20\n\
                    a_length_seconds{b=\"c\",quantile=\"0.99\"} 20\n\
                    a_length_seconds_sum{b=\"c\"} 20.5\na_length_seconds_count{b=\"c\"} 2\n\
                    # HELP a_length_histogram_seconds Lengths.\n\
                    # TYPE a_length_histogram_seconds histogram\n\
                    a_length_histogram_seconds_bucket{b=\"c\",le=\"0.01\"} 0\n\
                    a_length_histogram_seconds_bucket{b=\"c\",le=\"0.1\"} 0\n\
                    a_length_histogram_seconds_bucket{b=\"c\",le=\"1\"} 1\n\
                    a_length_histogram_seconds_bucket{b=\"c\",le=\"10\"} 1\n\
                    a_length_histogram_seconds_bucket{b=\"c\",le=\"+Inf\"} 2\n\
                    a_length_histogram_seconds_sum{b=\"c\"} 20.5\n\
                    a_length_histogram_seconds_count{b=\"c\"} 2\n";
        assert_eq!(text.finish(), want);
    }
}
