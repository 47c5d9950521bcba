//! The reference page `docs/settings.md`, made from the tables.

use super::cache::CacheConfig;
use super::declare::Settings;
use super::flags::file_variable;
use super::serve::ServeConfig;
use super::setting::Setting;

/// Widest line of the page.
const COLUMNS: usize = 120;
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");

/// `make settings` runs this test with `FIRN_UPDATE_DOCS` set.
#[test]
fn the_settings_page_is_up_to_date() {
    let page = settings_page();
    if std::env::var_os("FIRN_UPDATE_DOCS").is_some() {
        std::fs::write(PATH, page).unwrap();
        return;
    }
    let stored = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(stored == page, "docs/settings.md is out of date; run `make settings` to write it");
}

fn settings_page() -> String {
    let mut page = wrapped(
        "<!-- Generated from crates/firn-server/src/config/ by `make settings`; do not edit. -->\n\
         # Settings\n\n\
         A setting comes from, in order of precedence: its flag, its environment variable, the \
         configuration file that `--config FILE` names, its default. `firn config print serve` and \
         `firn config print cache` print the effective values and their sources without starting a \
         server; they accept the flags of these commands, `--config` among them.\n\n\
         The configuration file is YAML. Its keys are the names of the flags without the dashes. \
         Lists may be YAML lists, and `name=value` pairs a YAML mapping. Unknown keys are refused. \
         `firn config check serve FILE` and `firn config check cache FILE` check a file alone.\n\n\
         ```yaml\n\
         data: /var/lib/firn\n\
         slow-tier: s3://bucket/prefix\n\
         retention: 400d\n\
         group-by: [job, instance]\n\
         external-labels:\n  region: eu\n\
         ```\n\n\
         Sizes are written `512MiB` or `4GiB` (`KB`, `MB` and `GB` are powers of 1000; `512M` is \
         `512MiB`, and `512m` is refused), durations `15s`, `1h30m` or `15d`. A flag that is on or \
         off may be typed without a value: `--read-only` is `--read-only=true`. A flag of a list \
         may be repeated: `--listen A --listen B` is `--listen A,B`. A setting that has no effect \
         together with another one is refused, with a message that names both. Changes take \
         effect at the next start, unless a setting states otherwise.\n",
    );
    page += &settings_chapter::<ServeConfig>();
    page += &settings_chapter::<CacheConfig>();
    page
}

fn settings_chapter<C: Settings>() -> String {
    let mut text = format!(
        "\n## firn {}\n\nThe configuration file is `--config FILE` or `{}`.\n",
        C::COMMAND,
        file_variable::<C>()
    );
    let mut section = "";
    for setting in C::TABLE {
        if setting.section != section {
            section = setting.section;
            text += &format!("\n### {section}\n");
        }
        let help = wrapped(&with_links(setting.help.trim_start()));
        let facts = wrapped(&facts(setting, C::PREFIX));
        text += &format!("\n#### --{}\n\n{help}\n\n{facts}\n", setting.name);
    }
    text
}

/// `docs/tiers.md` as a link from a page in `docs`.
fn with_links(help: &str) -> String {
    let mut parts = help.split("docs/");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(".md") {
            Some((page, rest)) => text += &format!("[{page}]({page}.md){rest}"),
            None => text += &format!("docs/{part}"),
        }
    }
    text
}

fn facts(setting: &Setting, prefix: &str) -> String {
    let unit = if setting.unit.is_empty() { "" } else { ", " };
    let default = if setting.default.is_empty() { "empty" } else { setting.default };
    let mut text = format!(
        "Value: {}{unit}{}. Default: `{default}`. Variable: `{}`.{}",
        setting.kind,
        setting.unit,
        setting.variable(prefix),
        if setting.is_reloadable { " A running server applies changes." } else { "" },
    );
    if let Some(condition) = setting.only_with {
        text += &format!(" Only with {}.", condition.phrase);
    }
    if !setting.not_with.is_empty() {
        let names: Vec<String> =
            setting.not_with.iter().map(|name| format!("`--{name}`")).collect();
        text += &format!(" Not with {}.", names.join(" or "));
    }
    text
}

/// Breaks lines at blanks so that none is wider than the page. Code blocks stay as they are.
fn wrapped(text: &str) -> String {
    let mut out = Vec::new();
    let mut in_code = false;
    for line in text.split('\n') {
        in_code ^= line.starts_with("```");
        if in_code || line.len() <= COLUMNS {
            out.push(line.to_owned());
            continue;
        }
        let mut current = String::new();
        for word in line.split(' ') {
            if !current.is_empty() && current.len() + 1 + word.len() > COLUMNS {
                out.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current += word;
        }
        out.push(current);
    }
    out.join("\n")
}
