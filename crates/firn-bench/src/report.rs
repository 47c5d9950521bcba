//! The end of every benchmark: a table of aims, and the same as JSON in `target/bench`.

use std::fs;
use std::io;

use serde_json::{Value, json};

/// One figure and its aim.
#[derive(Clone, Debug)]
pub struct Aim {
    /// The measured quantity, with its unit.
    pub name: String,
    /// The measured value.
    pub figure: f64,
    /// The upper bound.
    pub at_most: f64,
}

impl Aim {
    /// Whether the figure keeps the aim.
    pub fn met(&self) -> bool {
        self.figure <= self.at_most
    }
}

/// Prints the table and writes `target/bench/<bench>.json`.
///
/// # Errors
/// When the file cannot be written.
pub fn finish(bench: &str, aims: &[Aim]) -> io::Result<()> {
    finish_with(bench, aims, None)
}

/// As [`finish`], with the single figures in the file.
///
/// # Errors
/// As [`finish`].
pub fn finish_with(bench: &str, aims: &[Aim], figures: Option<Value>) -> io::Result<()> {
    let width = aims.iter().map(|aim| aim.name.len()).max().unwrap_or(0).max(4);
    println!("\n{:width$}  {:>10}  {:>10}  met", "aim", "figure", "at most");
    for aim in aims {
        let met = if aim.met() { "yes" } else { "NO" };
        println!("{:width$}  {:>10.3}  {:>10.3}  {met}", aim.name, aim.figure, aim.at_most);
    }
    let list: Vec<_> = aims
        .iter()
        .map(|aim| {
            json!({"name": aim.name, "figure": aim.figure, "aim": aim.at_most, "met": aim.met()})
        })
        .collect();
    let mut report = json!({"bench": bench, "aims": list});
    if let Some(figures) = figures {
        report["figures"] = figures;
    }
    fs::create_dir_all("target/bench")?;
    fs::write(format!("target/bench/{bench}.json"), format!("{report:#}\n"))
}

/// The median.
///
/// # Panics
/// If there is none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
