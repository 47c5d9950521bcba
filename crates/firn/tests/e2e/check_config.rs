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
         WARNING: vultr_sd_configs in scrape job \"a\" is not implemented: a server refuses the \
         file\n  \
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
    let lint = "  FAILED:\nlint error 1 duplicate rule(s) found.\nMetric: r\n";
    assert!(twice.errors.starts_with(lint), "{}", twice.errors);
    assert_eq!(check(folder.path(), &["--lint-fatal", "--lint=none", "good.yml"]).code, Some(0));
    write("r.rules", "groups: [{name: a, rules: [{record: r}]}]\n");
    let wrong = check(folder.path(), &["good.yml"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.errors.starts_with("  FAILED:\nr.rules: 0:0: group"), "{}", wrong.errors);
    assert!(wrong.output.ends_with("Checking r.rules\n"), "{}", wrong.output);
    write("r.rules", "groups: []\n");
    let lint = ["--lint=too-long-scrape-interval", "--lint-fatal", "good.yml"];
    let long = check(folder.path(), &lint);
    assert_eq!(long.code, Some(3));
    assert!(long.errors.contains("too long scrape interval found"), "{}", long.errors);
    let lookback = check(folder.path(), &[&["--query.lookback-delta=6m"], &lint[..]].concat());
    assert_eq!(lookback.code, Some(0), "{}", lookback.errors);
    let unknown = check(folder.path(), &["--lint=foo", "--lint-fatal", "good.yml"]);
    assert_eq!(unknown.code, Some(0), "{}", unknown.errors);
    let warning = "WARNING: unknown lint option: \"foo\"\nChecking good.yml\n";
    assert!(unknown.output.starts_with(warning), "{}", unknown.output);
    for lint in ["--lint=foo,none", "--lint="] {
        let silent = check(folder.path(), &[lint, "good.yml"]);
        assert!(silent.output.starts_with("Checking good.yml\n"), "{}", silent.output);
    }
    let mut before = Command::new(env!("CARGO_BIN_EXE_firn"));
    before.args(["check", "--query.lookback-delta=6m", "config"]).args(lint);
    let before = before.current_dir(folder.path()).output().expect("a process");
    assert_eq!(before.status.code(), Some(0), "{}", String::from_utf8_lossy(&before.stderr));

    let wrong = check(folder.path(), &["unknown.yml", "good.yml"]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.errors.contains("line 3: field target not found in type"), "{}", wrong.errors);
    assert!(wrong.output.contains("SUCCESS: good.yml"), "{}", wrong.output);

    write(
        "slash.yml",
        "scrape_configs:\n- job_name: a\n  relabel_configs: [{target_label: x, replacement: y}]\n  \
         static_configs: [{targets: ['h:1']}, {targets: ['h:2', 'http://bad']}]\n",
    );
    let slash = check(folder.path(), &["slash.yml"]);
    let text = "  FAILED: instance 1 in group 1: \"http://bad\" is not a valid hostname\n";
    assert_eq!((slash.code, slash.errors.as_str()), (Some(1), text));

    assert_eq!(check(folder.path(), &["token.yml"]).code, Some(1));
    assert_eq!(check(folder.path(), &["--syntax-only", "token.yml"]).code, Some(0));
    assert_eq!(check(folder.path(), &["missing.yml"]).code, Some(1));
}

/// Before, these succeeded without a word, and a server refused the file or ignored the key.
#[test]
fn parts_that_a_server_refuses_or_ignores_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let old_tls = "tls_config: {min_version: TLS10, max_version: TLS11}";
    for (text, code, want) in [
        (
            "remote_write: [{url: 'http://h/', sigv4: {region: eu}}]",
            1,
            "  FAILED: a server refuses the file: remote_write: sigv4 is not supported\n",
        ),
        ("alerting: {alertmanagers: [{sigv4: {}}]}", 1, "alerting: sigv4 is not supported\n"),
        (&*format!("remote_write: [{{url: 'http://h/', {old_tls}}}]"), 1, "before 1.2 are not"),
        (
            &*format!("scrape_configs: [{{job_name: a, {old_tls}}}]"),
            0,
            "  WARNING: every scrape fails: job \"a\": tls_config: versions of TLS before 1.2",
        ),
        (
            "scrape_configs: [{job_name: a, gce_sd_configs: [{project: p, zone: z}]}]",
            0,
            "  WARNING: gce_sd_configs in scrape job \"a\" is not implemented: a server refuses",
        ),
        (
            "remote_read: [{url: 'http://h/'}]\nruntime: {gogc: 50}\n",
            0,
            "  WARNING: remote_read: a server ignores it\n  WARNING: runtime: a server",
        ),
    ] {
        std::fs::write(folder.path().join("c.yml"), text).expect("a file");
        let checked = check(folder.path(), &["c.yml"]);
        assert_eq!(checked.code, Some(code), "{text}: {}", checked.output);
        let output = checked.output + &checked.errors;
        assert!(output.contains(want), "{text}: {output}");
        let syntax = check(folder.path(), &["--syntax-only", "c.yml"]);
        assert_eq!(syntax.code, Some(0), "{text}: {}", syntax.errors);
        let is_tls = text.contains("TLS10");
        assert_eq!(syntax.output.contains("a server "), !is_tls, "{text}: {}", syntax.output);
    }
}

/// Before, a pattern skipped such links: the check succeeded and the server had no rules of them.
#[test]
fn links_without_a_target_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).expect("a link");
    };
    write("one.rules", "groups: []\n");
    link("/nonexistent", "dead.rules");
    link("loop.rules", "loop.rules");
    link("/nonexistent", "dead.yml");
    write("all.yml", "rule_files: ['*.rules']\n");
    let all = check(folder.path(), &["all.yml"]);
    assert_eq!(all.code, Some(1), "{}", all.output);
    assert!(all.output.contains("SUCCESS: 3 rule files found"), "{}", all.output);
    let want = "  FAILED:\ndead.rules: open dead.rules: no such file or directory\n  \
                FAILED:\nloop.rules: open loop.rules: too many levels of symbolic links\n";
    assert_eq!(all.errors, want);
    let groups = "file_sd_configs: [{files: ['dead*.yml']}]";
    for (text, want) in [
        (
            "rule_files: [dead.rules]",
            "error checking rule file \"dead.rules\": stat dead.rules: no",
        ),
        ("scrape_config_files: ['dea*.yml']", "open dead.yml: no such file or directory"),
        (
            &*format!("scrape_configs: [{{job_name: a, {groups}}}]"),
            "checking SD file \"dead*.yml\"",
        ),
    ] {
        write("c.yaml", text);
        let checked = check(folder.path(), &["c.yaml"]);
        assert_eq!(checked.code, Some(1), "{text}: {}", checked.output);
        assert!(checked.errors.contains(want), "{text}: {}", checked.errors);
    }
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
