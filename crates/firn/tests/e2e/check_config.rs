//! `firn check config`: output and exit codes of promtool.

use std::path::Path;
use std::process::Command;

struct Checked {
    code: Option<i32>,
    output: String,
    errors: String,
}

fn check(folder: &Path, arguments: &[&str]) -> Checked {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    let done = command.args(["check", "config"]).args(arguments).current_dir(folder).output();
    let done = done.expect("a process");
    Checked {
        code: done.status.code(),
        output: String::from_utf8_lossy(&done.stdout).into_owned(),
        errors: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

#[test]
fn configuration_files_are_checked_as_by_promtool() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    write("r.rules", "groups: []\n");
    write(
        "good.yml",
        "global: {scrape_interval: 5m}\nrule_files: ['*.rules']\nscrape_configs:\n\
         - {job_name: a, static_configs: [{targets: ['h:1']}], vultr_sd_configs: [{}]}\n",
    );
    write("unknown.yml", "scrape_configs:\n- job_name: a\n  target: b\n");
    write("token.yml", "scrape_configs:\n- {job_name: a, bearer_token_file: missing}\n");

    let good = check(folder.path(), &["good.yml"]);
    assert_eq!(good.code, Some(0), "{}", good.errors);
    assert_eq!(
        good.output,
        "Checking good.yml\n  \
         WARNING: vultr_sd_configs in scrape job \"a\" is not supported: it finds no targets\n  \
         SUCCESS: 1 rule files found\n \
         SUCCESS: good.yml is valid prometheus config file syntax\n\n\
         Checking r.rules\n  SUCCESS: 0 rules found\n\n"
    );
    write(
        "r.rules",
        "groups:\n- name: a\n  rules: [{record: r, expr: up}, {record: r, expr: up}]\n",
    );
    assert_eq!(check(folder.path(), &["good.yml"]).code, Some(0));
    let twice = check(folder.path(), &["--lint-fatal", "good.yml"]);
    assert_eq!(twice.code, Some(3));
    let lint = "  FAILED:\n     lint error 1 duplicate rule(s) found.\nMetric: r\n";
    assert!(twice.errors.starts_with(lint), "{}", twice.errors);
    assert_eq!(check(folder.path(), &["--lint-fatal", "--lint=none", "good.yml"]).code, Some(0));
    write("r.rules", "groups: [{name: a, rules: [{record: r}]}]\n");
    let wrong = check(folder.path(), &["good.yml"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.errors.starts_with("  FAILED:\n     r.rules: 0:0: group"), "{}", wrong.errors);
    assert!(wrong.output.ends_with("Checking r.rules\n\n"), "{}", wrong.output);
    write("r.rules", "groups: []\n");
    let lint = ["--lint=too-long-scrape-interval", "--lint-fatal", "good.yml"];
    let long = check(folder.path(), &lint);
    assert_eq!(long.code, Some(3));
    assert!(long.errors.contains("too long scrape interval found"), "{}", long.errors);
    let lookback = check(folder.path(), &[&["--query.lookback-delta=6m"], &lint[..]].concat());
    assert_eq!(lookback.code, Some(0), "{}", lookback.errors);

    let wrong = check(folder.path(), &["unknown.yml", "good.yml"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.errors.contains("line 3: field target not found in type"), "{}", wrong.errors);
    assert!(wrong.output.contains("SUCCESS: good.yml"), "{}", wrong.output);

    assert_eq!(check(folder.path(), &["token.yml"]).code, Some(1));
    assert_eq!(check(folder.path(), &["--syntax-only", "token.yml"]).code, Some(0));
    assert_eq!(check(folder.path(), &["missing.yml"]).code, Some(1));
}

/// Before, a device was read until no memory was left, and a pipe for ever.
#[test]
fn files_without_an_end_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = std::fs::File::create(folder.path().join("long.yml")).expect("a file");
    long.set_len((64 << 20) + 1).expect("room for a hole");
    for command in [&["check", "config"][..], &["check", "rules"], &["test", "rules"]] {
        for (file, why) in [("long.yml", "longer than 67108864"), (".", "it is a folder")] {
            let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
            let done = firn.args(command).arg(file).current_dir(folder.path()).output();
            let done = done.expect("a process");
            let text = [done.stdout, done.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert_eq!(done.status.code(), Some(1), "{command:?} {file}: {text}");
            assert!(text.contains(why), "{command:?} {file}: {text}");
        }
    }
}
