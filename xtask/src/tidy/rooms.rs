//! Checks the rooms: which room may use which, where async and unsafe may be, and the room cards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Breach;
use super::lexer::Source;
use crate::command::cargo;

/// The rooms and the rooms that each may use, as in `docs/architecture.md`. Development
/// dependencies are free: tests may use `firn-sim` and any room above.
const ROOMS: [(&str, &[&str]); 21] = [
    ("firn-model", &[]),
    ("firn-env", &["firn-model"]),
    ("firn-codec", &["firn-model"]),
    ("firn-log", &["firn-model", "firn-env", "firn-codec"]),
    ("firn-index", &["firn-model", "firn-env", "firn-codec"]),
    ("firn-head", &["firn-model", "firn-codec"]),
    ("firn-tree", &["firn-model", "firn-env", "firn-codec"]),
    (
        "firn-engine",
        &[
            "firn-model",
            "firn-env",
            "firn-codec",
            "firn-log",
            "firn-index",
            "firn-head",
            "firn-tree",
        ],
    ),
    ("firn-promql", &["firn-model"]),
    ("firn-cache", &["firn-model", "firn-env", "firn-codec"]),
    ("firn-cache-client", &["firn-env"]),
    ("firn-yaml", &["firn-model"]),
    ("firn-collect", &["firn-model", "firn-yaml"]),
    ("firn-fetch", &["firn-model", "firn-env", "firn-collect"]),
    ("firn-rules", &["firn-model", "firn-yaml", "firn-promql"]),
    (
        "firndb",
        &["firn-model", "firn-env", "firn-codec", "firn-engine", "firn-promql", "firn-cache"],
    ),
    (
        "firn-server",
        &[
            "firn-model",
            "firn-env",
            "firn-codec",
            "firn-cache",
            "firn-cache-client",
            "firn-collect",
            "firn-fetch",
            "firn-rules",
            "firn-yaml",
            "firn-promql",
            "firndb",
        ],
    ),
    (
        "firn",
        &[
            "firn-model",
            "firn-cache-client",
            "firn-collect",
            "firn-fetch",
            "firn-promql",
            "firn-rules",
            "firn-server",
            "firndb",
        ],
    ),
    ("firn-sim", &["firn-model", "firn-env"]),
    ("firn-promqltest", &["firn-model", "firn-promql"]),
    ("firn-collecttest", &["firn-model", "firn-promql", "firn-collect", "firn-rules"]),
];
const ASYNC_ALLOWED: [&str; 5] = [
    "crates/firn-server/",
    "crates/firn-fetch/",
    "crates/firn/",
    "crates/firn-env/src/remote",
    "crates/firn-bench/",
];
// Allocators that count, calls of the program's allocator, handlers of signals, a mapped file and
// memory that outlives power loss: the compiler cannot check these, so each file proves them in its
// `SAFETY` comments.
const UNSAFE_ALLOWED: [&str; 8] = [
    "fuzz/src/allocator.rs",
    "crates/firn/src/allocator.rs",
    "crates/firn/src/signals.rs",
    "crates/firn-env/src/lines.rs",
    "crates/firn-env/src/mapped.rs",
    "crates/firn-bench/src/index/counting.rs",
    "crates/firn-promql/tests/promql/counting.rs",
    "crates/firn-index/examples/footprint.rs",
];
const ASYNC_RUNTIMES: [&str; 3] = ["tokio", "async-std", "smol"];

pub(crate) fn check_edges(breaches: &mut Vec<Breach>) -> Result<(), String> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let rooms: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let uses: BTreeSet<&str> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["name"].as_str())
            .collect();
        let Some(allowed) = rooms.get(name) else {
            if !["firn-bench", "firn-hostile", "xtask"].contains(&name) {
                let message = "a new room needs a line in xtask/src/tidy/rooms.rs".to_owned();
                breaches.push(Breach::at(&manifest(name), 1, message));
            }
            continue;
        };
        for used in uses.iter().filter(|used| used.starts_with("firn")) {
            if !allowed.contains(used) {
                let message = format!("{name} may not use {used} (docs/architecture.md, rooms)");
                breaches.push(Breach::at(&manifest(name), 1, message));
            }
        }
        let async_allowed = ["firn-server", "firn-fetch", "firn", "firn-env"].contains(&name);
        for runtime in ASYNC_RUNTIMES.iter().filter(|runtime| uses.contains(*runtime)) {
            if !async_allowed {
                let message = format!("{name} may not use {runtime}: the core is blocking");
                breaches.push(Breach::at(&manifest(name), 1, message));
            }
        }
    }
    Ok(())
}

fn manifest(package: &str) -> String {
    format!("crates/{package}/Cargo.toml")
}

/// Async functions and unsafe code in one file.
pub(crate) fn check_rust(path: &str, source: &Source<'_>, breaches: &mut Vec<Breach>) {
    let allowed = |list: &[&str]| list.iter().any(|prefix| path.starts_with(prefix));
    for pair in source.tokens.windows(2) {
        let [token, next] = pair else { continue };
        let is_async = token.text == "async" && ["fn", "move", "{"].contains(&next.text);
        if is_async && !allowed(&ASYNC_ALLOWED) {
            let message = "async belongs to the edges (server, fetch, firn, env/remote)".to_owned();
            breaches.push(Breach::at(path, token.line, message));
        }
        if token.text == "unsafe" && !allowed(&UNSAFE_ALLOWED) {
            let message = "unsafe is allowed only in the files that tidy lists".to_owned();
            breaches.push(Breach::at(path, token.line, message));
        }
    }
}

/// The card at the top of each room's `lib.rs` has the parts `Owns` and `Never` and links the
/// glossary.
pub(crate) fn check_cards(breaches: &mut Vec<Breach>) {
    for (room, _) in ROOMS {
        let library = format!("crates/{room}/src/lib.rs");
        let program = format!("crates/{room}/src/main.rs");
        let path = if Path::new(&library).exists() { library } else { program };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let card: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for part in ["**Owns**", "**Never**", "docs/glossary.md"] {
            if !card.contains(part) {
                let message = format!("the room card lacks {part}");
                breaches.push(Breach::at(&path, 1, message));
            }
        }
    }
}
