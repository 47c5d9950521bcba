//! Cases of collection: files and tables of Prometheus, laid out like `../shared/collect`. No
//! product crate depends on this crate.
//!
//! **Owns** the runners of the cases. The program `firn-collecttest` runs a folder and prints a
//! summary.
//!
//! **Never** contains expectations: they are in the folder.
//!
//! Terms: `docs/glossary.md`. Reading order: `report`, `configs`, `relabel`, `rules`, `promtool`,
//! `templates`, `targets`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a malformed case is a failed run")]

use std::fmt;
use std::path::{Path, PathBuf};

mod configs;
mod promtool;
mod relabel;
mod report;
mod rules;
mod targets;
mod templates;

pub use report::Report;
pub use templates::run_template_lines;

/// The kinds of cases in the order of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `configs/`.
    Configs,
    /// `relabel.json`.
    Relabel,
    /// `rules/`.
    Rules,
    /// `promtool/`, which needs the program `firn`.
    Promtool,
    /// `templates.json`.
    Templates,
    /// `targets.json`.
    Targets,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Configs, Kind::Relabel, Kind::Rules, Kind::Promtool, Kind::Templates, Kind::Targets];

    /// Runs the cases of the kind in `folder` with the program `firn`. Panics on a malformed file.
    pub fn run(self, folder: &Path, firn: &Path) -> Report {
        match self {
            Kind::Configs => configs::run(folder),
            Kind::Relabel => relabel::run(folder),
            Kind::Rules => rules::run(folder),
            Kind::Promtool => promtool::run(folder, firn),
            Kind::Templates => templates::run(folder),
            Kind::Targets => targets::run(folder),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Configs => "configs",
            Kind::Relabel => "relabel",
            Kind::Rules => "rules",
            Kind::Promtool => "promtool",
            Kind::Templates => "templates",
            Kind::Targets => "targets",
        })
    }
}

/// The folder of the shared cases; `None` where it is absent, unless `FIRN_REQUIRE_SHARED=1`.
pub fn shared_folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/collect");
    if folder.is_dir() {
        // Paths in errors have no `..`.
        return Some(folder.canonicalize().unwrap());
    }
    let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
    assert!(!required, "{} is missing and FIRN_REQUIRE_SHARED=1", folder.display());
    None
}

/// Runs the shared cases of `kinds` and panics with the failures.
pub fn assert_shared_cases_pass(kinds: &[Kind], firn: &Path) {
    let Some(folder) = shared_folder() else { return };
    for kind in kinds {
        let report = kind.run(&folder, firn);
        assert!(report.count() > 0, "no cases of {kind}");
        assert!(report.failures.is_empty(), "{kind}:\n{}", report.failures.join("\n"));
    }
}
