//! The result: a line per failure, a table per family, and `target/bench/hostile.json`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::server::MEMORY_MIB;

/// Resident memory may exceed `--memory` by a tenth.
pub(crate) const PEAK_BYTES_MAX: u64 = (MEMORY_MIB << 20) / 10 * 11;

/// The figures of one family.
#[derive(Clone, Debug)]
pub(crate) struct FamilyResult {
    pub(crate) name: &'static str,
    pub(crate) attacks: usize,
    pub(crate) withstood: usize,
    pub(crate) peak_bytes: u64,
    pub(crate) p99: Duration,
    pub(crate) ends: usize,
    pub(crate) took: Duration,
}

/// The outcome of all attacks.
#[derive(Debug, Default)]
pub struct Report {
    pub(crate) families: Vec<FamilyResult>,
    pub(crate) failures: Vec<String>,
    pub(crate) latency_ms_max: f64,
}

impl Report {
    /// Whether every attack was withstood, and at least one was made.
    pub fn all_withstood(&self) -> bool {
        let (withstood, attacks) = self.counts();
        withstood == attacks && attacks > 0
    }

    /// One line per failure.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    fn counts(&self) -> (usize, usize) {
        let sum = |of: fn(&FamilyResult) -> usize| self.families.iter().map(of).sum();
        (sum(|family| family.withstood), sum(|family| family.attacks))
    }

    /// Prints the table and `hostile N of M`, the last line.
    pub fn print(&self) {
        println!(
            "\n{:16} {:>8} {:>10} {:>10} {:>10} {:>8}",
            "family", "attacks", "withstood", "peak MiB", "p99 ms", "seconds"
        );
        for family in &self.families {
            println!(
                "{:16} {:>8} {:>10} {:>10.1} {:>10.1} {:>8.1}",
                family.name,
                family.attacks,
                family.withstood,
                family.peak_bytes as f64 / f64::from(1 << 20),
                family.p99.as_secs_f64() * 1e3,
                family.took.as_secs_f64(),
            );
        }
        let (withstood, attacks) = self.counts();
        println!("hostile {withstood} of {attacks}");
    }

    /// Writes `hostile.json` in the form of the benchmarks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>) -> io::Result<()> {
        let (withstood, attacks) = self.counts();
        let peak = self.families.iter().map(|family| family.peak_bytes).max().unwrap_or(0);
        let p99 = self.families.iter().map(|family| family.p99).max().unwrap_or_default();
        let ends: usize = self.families.iter().map(|family| family.ends).sum();
        let mut aims = vec![
            aim("attacks that had an effect".to_owned(), (attacks - withstood) as f64, 0.0),
            aim("processes that an attack ended".to_owned(), ends as f64, 0.0),
            aim(
                "peak of resident memory, MiB".to_owned(),
                peak as f64 / f64::from(1 << 20),
                PEAK_BYTES_MAX as f64 / f64::from(1 << 20),
            ),
            aim(
                "p99 of health checks during an attack, ms".to_owned(),
                p99.as_secs_f64() * 1e3,
                self.latency_ms_max,
            ),
            // At least 300 attacks.
            aim("300 attacks, as a share of those made".to_owned(), 300.0 / attacks as f64, 1.0),
        ];
        aims.extend(self.families.iter().map(|family| {
            let failed = family.attacks - family.withstood;
            aim(format!("attacks that had an effect: {}", family.name), failed as f64, 0.0)
        }));
        fs::create_dir_all(&folder)?;
        let text = format!("{:#}\n", json!({"bench": "hostile", "aims": aims}));
        fs::write(folder.as_ref().join("hostile.json"), text)
    }
}

fn aim(name: String, figure: f64, at_most: f64) -> serde_json::Value {
    json!({"name": name, "figure": figure, "aim": at_most, "met": figure <= at_most})
}
