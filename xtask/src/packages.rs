//! Checks the packages that a build uses: licences, banned packages, sources. It reads
//! `cargo metadata` of all platforms and features and takes a second.

use serde_json::Value;

use crate::command::cargo;

/// Licences that are compatible with Apache-2.0 and require at most a notice.
const LICENCES: [&str; 11] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

const BANNED: [(&str, &str); 7] = [
    ("async-std", "one async runtime, tokio, and only at the edges"),
    ("smol", "one async runtime, tokio, and only at the edges"),
    ("openssl", "no C library for TLS: a build needs Rust and a C compiler only"),
    ("openssl-sys", "no C library for TLS: a build needs Rust and a C compiler only"),
    ("native-tls", "no C library for TLS: a build needs Rust and a C compiler only"),
    ("prost-build", "no protoc at build time"),
    ("serde_yaml", "unmaintained"),
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Every breach in one message.
pub(crate) fn check() -> Result<(), String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let breaches: Vec<String> = packages.iter().flat_map(breaches_of).collect();
    if breaches.is_empty() {
        println!("== packages: ok, {} packages", packages.len());
        return Ok(());
    }
    Err(format!("packages that may not be used:\n  {}", breaches.join("\n  ")))
}

fn breaches_of(package: &Value) -> Vec<String> {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let (name, version) = (text("name"), text("version"));
    let mut breaches = Vec::new();
    // No source: a package of this workspace.
    let source = package["source"].as_str();
    if source.is_some_and(|source| source != REGISTRY) {
        breaches.push(format!("{name} {version} is from {}, not crates.io", text("source")));
    }
    if source.is_some() && !is_allowed(text("license")) {
        let licence = package["license"].as_str().unwrap_or("none");
        breaches.push(format!("{name} {version}: licence {licence} is not in the list"));
    }
    for (_, reason) in BANNED.iter().filter(|(banned, _)| *banned == name) {
        breaches.push(format!("{name} {version} is banned: {reason}"));
    }
    breaches
}

/// Whether the list of licences satisfies an SPDX expression. `A/B` is an old form of `A OR B`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = any_of(&mut words);
    allowed == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `None`: no expression.
fn any_of(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = all_of(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all_of(words)?;
    }
    Some(allowed)
}

fn all_of(words: &mut Words<'_>) -> Option<bool> {
    let mut allowed = licence(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= licence(words)?;
    }
    Some(allowed)
}

fn licence(words: &mut Words<'_>) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let inside = any_of(words)?;
        return (words.next()? == ")").then_some(inside);
    }
    let mut name = word.to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next()?);
    }
    Some(LICENCES.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spdx_expressions() {
        for allowed in [
            "MIT",
            "MIT/GPL-2.0",
            "GPL-3.0 OR Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "GPL-2.0 AND ISC OR MIT",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        let denied = ["", "GPL-2.0", "MIT AND GPL-2.0", "(MIT", "MIT ISC", "MIT WITH X", "MIT OR"];
        for denied in denied {
            assert!(!is_allowed(denied), "{denied}");
        }
    }

    #[test]
    fn sources_bans_and_licences() {
        let package = |name: &str, source: Value, licence: Value| {
            let version = "1.0.0";
            serde_json::json!({
                "name": name, "version": version, "source": source, "license": licence
            })
        };
        assert!(breaches_of(&package("a", REGISTRY.into(), "MIT".into())).is_empty());
        assert!(breaches_of(&package("firn", Value::Null, Value::Null)).is_empty());
        assert_eq!(breaches_of(&package("smol", "git+x".into(), Value::Null)).len(), 3);
    }
}
