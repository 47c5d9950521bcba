//! Repository rules: who may use whom, where async and unsafe may be, that documents tell the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The rooms and what each may use, straight from `docs/architecture.md`. Development
/// dependencies are free: tests may use `firn-sim` and anything above.
const ROOMS: [(&str, &[&str]); 15] = [
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
    ("firn-cache-client", &[]),
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
            "firn-promql",
            "firndb",
        ],
    ),
    ("firn", &["firn-server", "firndb"]),
    ("firn-sim", &["firn-model", "firn-env"]),
];
const ASYNC_ALLOWED: [&str; 4] =
    ["crates/firn-server/", "crates/firn/", "crates/firn-env/src/remote", "crates/firn-bench/"];
// The footprint example counts allocations, which takes a global allocator; mapping a file into memory is
// sound only while nobody changes it, which no type can say.
// Memory that outlives the power is written by stores and made durable by instructions.
const UNSAFE_ALLOWED: [&str; 5] = [
    "crates/firn/src/allocator.rs",
    "crates/firn-env/src/lines.rs",
    "crates/firn-env/src/mapped.rs",
    "crates/firn-bench/src/index/counting.rs",
    "crates/firn-index/examples/footprint.rs",
];
const ASYNC_RUNTIMES: [&str; 3] = ["tokio", "async-std", "smol"];

/// Every breach in one message.
pub(crate) fn check() -> Result<(), String> {
    let mut breaches = Vec::new();
    check_edges(&mut breaches)?;
    for path in files_below(Path::new("."), "rs") {
        check_source(&path, &mut breaches);
    }
    check_cards(&mut breaches);
    check_documents(&mut breaches);
    if breaches.is_empty() {
        println!("== tidy: ok");
        return Ok(());
    }
    Err(format!(
        "{} breaches of the repository's rules\n  {}",
        breaches.len(),
        breaches.join("\n  ")
    ))
}

fn check_edges(breaches: &mut Vec<String>) -> Result<(), String> {
    let output = Command::new("cargo")
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
            if !["firn-bench", "xtask"].contains(&name) {
                breaches.push(format!("{name}: a new room needs a line in xtask/src/tidy.rs"));
            }
            continue;
        };
        for used in uses.iter().filter(|used| used.starts_with("firn")) {
            if !allowed.contains(used) {
                breaches.push(format!("{name} may not use {used} (docs/architecture.md, rooms)"));
            }
        }
        let async_allowed = ["firn-server", "firn", "firn-env"].contains(&name);
        for runtime in ASYNC_RUNTIMES.iter().filter(|runtime| uses.contains(*runtime)) {
            if !async_allowed {
                breaches.push(format!("{name} may not use {runtime}: the core is blocking"));
            }
        }
    }
    Ok(())
}

fn check_source(path: &Path, breaches: &mut Vec<String>) {
    let name = path.to_string_lossy().trim_start_matches("./").to_owned();
    let Ok(text) = fs::read_to_string(path) else { return };
    let allowed = |list: &[&str]| list.iter().any(|prefix| name.starts_with(prefix));
    for (idx, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", idx + 1);
        let code = line.split("//").next().unwrap_or_default();
        if name.starts_with("xtask/") {
            continue;
        }
        if code.contains("async fn") && !allowed(&ASYNC_ALLOWED) {
            breaches.push(format!("{at}: async belongs to the edges (server, firn, env/remote)"));
        }
        if code.contains("unsafe ") && !allowed(&UNSAFE_ALLOWED) {
            breaches.push(format!("{at}: unsafe is allowed only in the files that tidy lists"));
        }
        let core = name.starts_with("crates/")
            && name.contains("/src/")
            && !["firn-env/", "firn-server/", "firn-bench/", "firn/", "firndb/"]
                .iter()
                .any(|room| name.starts_with(&format!("crates/{room}")));
        if core && !in_tests(&text, idx) {
            for (word, instead) in [
                ("std::fs::", "firn_env::Disk"),
                ("SystemTime::now", "firn_env::Clock"),
                ("Instant::now", "firn_env::Clock"),
                ("thread::spawn", "the lanes of firndb"),
                ("thread::sleep", "firn_env::Clock::sleep"),
            ] {
                if code.contains(word) {
                    breaches.push(format!("{at}: {word} in a core room; use {instead}"));
                }
            }
        }
        if line.contains(concat!("TO", "DO")) && !line.contains("(#") {
            breaches.push(format!("{at}: a to-do needs an issue number: (#12)"));
        }
    }
}

/// Whether line `idx` stands behind the `mod tests` of its file.
fn in_tests(text: &str, idx: usize) -> bool {
    text.lines().take(idx).any(|line| line.trim_start().starts_with("mod tests"))
        || text.starts_with("//! Tests")
}

/// Every room's `lib.rs` says what it owns and what it never does.
fn check_cards(breaches: &mut Vec<String>) {
    for (room, _) in ROOMS {
        let path = format!("crates/{room}/src/lib.rs");
        let path =
            if Path::new(&path).exists() { path } else { format!("crates/{room}/src/main.rs") };
        let text = fs::read_to_string(&path).unwrap_or_default();
        let card: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for word in ["**Owns**", "**Never**"] {
            if !card.contains(word) {
                breaches.push(format!("{path}: the room's card does not say what it {word}"));
            }
        }
    }
}

/// Paths and links that the documents name exist.
fn check_documents(breaches: &mut Vec<String>) {
    let mut documents = files_below(Path::new("docs"), "md");
    documents.extend(["README.md", "CHANGELOG.md"].map(PathBuf::from));
    for document in documents {
        let Ok(text) = fs::read_to_string(&document) else {
            breaches.push(format!("{} is missing", document.display()));
            continue;
        };
        let folder = document.parent().unwrap_or(Path::new("."));
        for target in links(&text) {
            if !target.contains("://") && !target.starts_with('#') {
                let file = target.split('#').next().unwrap_or_default();
                if !folder.join(file).exists() {
                    breaches
                        .push(format!("{}: link to {target} leads nowhere", document.display()));
                }
            }
        }
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_path = ["crates/", "docs/", "xtask/"].iter().any(|p| quoted.starts_with(p))
                && !quoted.contains([' ', '*', '<', '{']);
            if is_path && !Path::new(quoted.trim_end_matches('/')).exists() {
                breaches.push(format!("{}: `{quoted}` does not exist", document.display()));
            }
        }
    }
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["target", ".git", "firn-data"].contains(&name.as_str()) {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
