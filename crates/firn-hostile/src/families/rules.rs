//! Rule files that are expensive or wrong, and results that explode.

use std::fs;
use std::time::Duration;

use super::collecting::{INTERVAL, SERVED_TIME_MAX, reload, setup, state, unaffected};
use super::peer::{bytes, peer, wait_until, whole};
use crate::attack::{Action, Attack, Family, attack, deaf, flood, script, status};
use crate::client::{deaf_connections, get, post};
use crate::target::Target;
use crate::wire::noise;

/// In the short run.
const QUICK: &[&str] = &["1,000,000 empty groups", "a template that calls itself"];

pub(crate) fn family() -> Family {
    let setup = setup(&["--alert-resend-delay=1s"]);
    Family::new("rules", setup)
        .because("a file is read within the memory, or refused", files())
        .because("an evaluation has its own memory and time", expressions())
        .because("a template has bounded text, time and depth", templates())
        .because("reloads in a loop change nothing for others", reloads())
        .with_quick(QUICK)
}

/// The file is loaded or refused, and evaluated.
fn file(name: &'static str, text: impl Fn() -> String + 'static) -> Attack {
    let act = script(move |target| {
        let mut answers = vec![load(target, &text())];
        if answers.iter().all(|answer| answer.status == 200) {
            wait_until(Duration::from_secs(5), || has_evaluated(target));
            // Some evaluations more.
            std::thread::sleep(Duration::from_millis(1_200));
        }
        answers.extend(state(target));
        let _ = load(target, "groups: []");
        answers
    });
    // A wrong file is a refused reload.
    attack(name, act, unaffected().or(500).or(400))
}

fn load(target: &Target, text: &str) -> crate::client::Answer {
    let path = target.folder().join("rules.yml");
    let _ = fs::write(&path, text);
    peer().set("/alertmanager", bytes(whole("application/json", "{}")));
    let address = peer().address;
    let sections = format!(
        "rule_files: ['{}']\nalerting: {{alertmanagers: [{{path_prefix: /alertmanager, \
         static_configs: [{{targets: ['{address}']}}]}}]}}",
        path.display()
    );
    reload(target, "", &sections)
}

/// Clients that do not read `/metrics`, which has lines for each group.
fn unread() -> Action {
    script(|target| {
        let group = |n: usize| format!("- {{name: g{n}, interval: 1h, rules: []}}\n");
        let mut answers = vec![load(target, &format!("groups:\n{}", repeated(3_000, group)))];
        let held = deaf_connections(&get("/metrics"), 60, target);
        std::thread::sleep(Duration::from_secs(3));
        drop(held);
        answers.push(load(target, "groups: []"));
        answers
    })
}

fn has_evaluated(target: &Target) -> bool {
    get("/api/v1/rules").send(target).text().contains("\"lastEvaluation\":\"20")
}

fn group(rules: impl AsRef<str>) -> String {
    format!("groups:\n- name: g\n  interval: {INTERVAL}\n  rules:\n{}\n", rules.as_ref())
}

fn repeated(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect()
}

fn files() -> Vec<Attack> {
    let rule = |n: usize| format!("  - {{record: 'r{n}', expr: '{n}'}}\n");
    vec![
        file("1,000,000 rules", move || group(repeated(1_000_000, rule))),
        file("60,000 rules", move || group(repeated(60_000, rule))),
        file("5,000 rules", move || group(repeated(5_000, rule))),
        file("20,000 groups", || {
            let one = |n| {
                format!(
                    "- {{name: g{n}, interval: 500ms, rules: [{{record: r, labels: {{n: '{n}'}}, expr: '1'}}]}}\n"
                )
            };
            format!("groups:\n{}", repeated(20_000, one))
        }),
        file("1,000,000 values", || format!("groups: [{}]", "a,".repeat(990_000))),
        file("1,000,000 empty groups", || format!("groups: [{}]", "{},".repeat(990_000))),
        file("aliases of aliases in rules", || {
            format!("groups:\n{}", super::discovery::laughs(12, 12))
        }),
        file("3,000 aliases of a group of 1,000 rules", || {
            let rules = repeated(1_000, |n| format!("{{record: r{n}, expr: '1'}},"));
            format!(
                "groups:\n- {{name: a, rules: &r [{rules}]}}\n{}",
                repeated(3_000, |n| format!("- {{name: g{n}, rules: *r}}\n"))
            )
        }),
        file("deep YAML in rules", || format!("groups: {}", "[".repeat(1_000_000))),
        file("a mapping of itself", || "groups: &a {b: *a}".to_owned()),
        file("20 MB of comments", || format!("{}groups: []", "# x\n".repeat(5_000_000))),
        file("15 MB of one expression", || {
            group(format!("  - {{record: r, expr: '{}'}}", "1+".repeat(7_500_000)))
        }),
        file("an expression of 3 MB", || {
            group(format!("  - {{record: r, expr: '{}1'}}", "1+".repeat(1_500_000)))
        }),
        file("an expression of 100,000 levels", || {
            group(format!("  - {{record: r, expr: '{}'}}", "(".repeat(100_000)))
        }),
        file("a regular expression that grows", || {
            group("  - {record: r, expr: 'a{b=~\"((((x{100}){100}){100}){100})\"}'}")
        }),
        file("10,000 mistakes", || group("  - {record: '', expr: ')'}\n".repeat(10_000))),
        file("mistakes of 1 MB", || {
            group(format!("  - {{record: '{}', expr: ')'}}\n", "x y".repeat(300_000)))
        }),
        file("noise in place of rules", || noise(11, 1 << 20)),
        file("a forged line of the log in a rule", || {
            group(format!(
                "  - {{alert: \"a\\n{}\", expr: 'x{{', labels: {{\"a\\n\": b}}}}",
                crate::target::FORGED
            ))
        }),
    ]
}

fn expressions() -> Vec<Attack> {
    let one = |name: &'static str, expr: &'static str| {
        file(name, move || group(format!("  - {{record: made, expr: '{expr}'}}")))
    };
    let growing = "label_join(grows, \"x\", \"\", \"x\", \"x\") or label_replace(vector(1), \"x\", \"abcdefgh\", \"\", \"\")";
    vec![
        one(
            "each series under another name",
            "label_replace({__name__=~\"load|made\"}, \"m\", \"$1\", \"path\", \"(.*)\")",
        ),
        one("a product of series", "load * on(job) group_left load"),
        one("a product that is wrong", "load + on(job) load"),
        one("a value for each sample", "count_values(\"v\", load)"),
        one("subqueries in subqueries", "max_over_time(max_over_time(sum(load)[1h:1s])[1d:1s])"),
        one(
            "labels of 1 MB",
            "label_join(load, \"x\", \"{}\", \"path\", \"path\", \"path\", \"path\", \"path\")",
        ),
        file("5,000 results with 40 KB of labels", || {
            let label = |n| format!("l{n}: '{}', ", "x".repeat(2_000));
            let labels = repeated(20, label);
            group(format!("  - {{record: made, expr: load, labels: {{{labels}}}}}"))
        }),
        one("a rule that reads its own result", "made + 1 or vector(0)"),
        file("a rule whose label grows", move || {
            group(format!("  - {{record: grows, expr: '{growing}'}}"))
        }),
        file("a rule with more series each time", || {
            group(
                "  - {record: more, expr: 'label_replace(more, \"a\", \"${1}x\", \"a\", \"(.*)\") or more or vector(1)'}",
            )
        }),
        file("a new series each time", || {
            group("  - {record: fresh, expr: 'count_values(\"t\", time() + load * 0)'}")
        }),
        file("5,000 alerts", || {
            group("  - {alert: A, expr: load, annotations: {a: '{{ $labels.path }} {{ $value }}'}}")
        }),
        file("5,000 alerts with new labels each time", || {
            group(
                "  - {alert: A, expr: load, labels: {v: '{{ $value }}', t: '{{ query \"time()\" | first | value }}'}}",
            )
        }),
        file("5,000 alerts with 10 KB of text", || {
            group(format!(
                "  - {{alert: A, expr: load, annotations: {{a: '{}'}}}}",
                "x".repeat(10_000)
            ))
        }),
        file("alerts that flap", || {
            group("  - {alert: A, expr: 'load and (time() % 2 < 1)', keep_firing_for: 0s}")
        }),
        attack("many readers of the alerts", flood(50, 4, get("/api/v1/alerts")), unaffected()),
        attack(
            "deaf readers of the alerts",
            deaf(40, 3, get("/api/v1/alerts")),
            unaffected().or(crate::client::SILENT),
        ),
    ]
}

fn templates() -> Vec<Attack> {
    let one = |name: &'static str, template: &'static str| {
        file(name, move || {
            let template = template.replace('\'', "''");
            group(format!("  - {{alert: A, expr: 'vector(1)', annotations: {{a: '{template}'}}}}"))
        })
    };
    vec![
        one(
            "a template that calls itself",
            r#"{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}"#,
        ),
        one(
            "two templates that call each other",
            r#"{{ define "x" }}{{ template "y" . }}{{ end }}{{ define "y" }}{{ template "x" . }}a{{ end }}{{ template "x" . }}"#,
        ),
        one(
            "a template that calls itself twice",
            r#"{{ define "x" }}aaaa{{ template "x" }}{{ template "x" }}{{ end }}{{ template "x" }}"#,
        ),
        one("a wide number", r#"{{ printf "%999999999d" 1 }}"#),
        one("a precise number", r#"{{ printf "%.999999999f" 1.0 }}"#),
        one("a width from an argument", r#"{{ printf "%*d" 999999999 1 }}"#),
        one(
            "loops in loops",
            r#"{{ range query "load" }}{{ range query "load" }}{{ range query "load" }}x{{ end }}{{ end }}{{ end }}"#,
        ),
        one(
            "queries in loops",
            r#"{{ range query "load" }}{{ range query "count(load)" }}{{ . | value }}{{ end }}{{ end }}"#,
        ),
        one(
            "a query that is large",
            r#"{{ range query "label_join(load, \"x\", \"\", \"path\")" }}{{ . }}{{ end }}"#,
        ),
        one(
            "a pattern that grows",
            r#"{{ reReplaceAll "((((x{100}){100}){100}){100})" "y" "z" }}"#,
        ),
        one(
            "text that doubles",
            r#"{{ $a := "aaaaaaaa" }}{{ range query "load" }}{{ $a = reReplaceAll "a" "aa" $a }}{{ end }}{{ $a }}"#,
        ),
        one(
            "text that is joined",
            r#"{{ $a := "aaaaaaaa" }}{{ range query "load" }}{{ $a = printf "%s%s" $a $a }}{{ end }}{{ $a }}"#,
        ),
        one(
            "deep parentheses",
            r#"{{ ((((((((((((((((((((((((((((((((((((((((((((1)))))))))))))))))))))))))))))))))))))))))))) }}"#,
        ),
        file("10,000 levels of conditions", || {
            group(format!(
                "  - {{alert: A, expr: 'vector(1)', annotations: {{a: '{}{}'}}}}",
                "{{ if 1 }}".repeat(10_000),
                "{{ end }}".repeat(10_000)
            ))
        }),
        file("100,000 parentheses in a template", || {
            group(format!(
                "  - {{alert: A, expr: 'vector(1)', annotations: {{a: '{{{{ {} }}}}'}}}}",
                "(".repeat(100_000)
            ))
        }),
        one(
            "times without sense",
            r#"{{ humanizeTimestamp 1e300 }}{{ toTime -1e300 }}{{ humanizeDuration 1e308 }}"#,
        ),
        one(
            "an address of the server",
            r#"{{ externalURL }}{{ pathPrefix }}{{ args 1 2 }}{{ . }}{{ $ }}"#,
        ),
        one(
            "a name that is a secret",
            r#"{{ $externalLabels }}{{ .ExternalURL }}{{ printf "%#v" . }}"#,
        ),
    ]
}

fn reloads() -> Vec<Attack> {
    let looped = script(|target| {
        let text = |n: usize| {
            group(repeated(200, |rule| format!("  - {{record: r{rule}, expr: '{n}'}}\n")))
        };
        let answers = (0..40).map(|n| load(target, &text(n))).collect::<Vec<_>>();
        answers.into_iter().chain(state(target)).collect()
    });
    let while_written = script(|target| {
        let path = target.folder().join("rules.yml");
        let text = group(repeated(5_000, |rule| format!("  - {{record: r{rule}, expr: '1'}}\n")));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for len in (0..text.len()).step_by(text.len() / 50) {
                    let _ = fs::write(&path, &text[..len]);
                }
            });
            (0..20).map(|_| post("/-/reload").send(target)).collect::<Vec<_>>()
        })
    });
    vec![
        attack("40 reloads, each with other rules", looped, unaffected()),
        attack("reloads of a file that is written", while_written, unaffected().or(500)),
        attack("60 clients that do not read the metrics of 3,000 groups", unread(), unaffected()),
        attack("16 clients that reload", flood(16, 4, post("/-/reload")), unaffected().or(500)),
        attack(
            "a rule file that is a device",
            script(|target| {
                vec![reload(
                    target,
                    "",
                    "rule_files: ['/dev/zero', '/dev/random', '/proc/self/mem']",
                )]
            }),
            status([500]),
        ),
        attack(
            "a rule file that is missing",
            script(|target| {
                let answer = reload(target, "", "rule_files: ['/nowhere/*.yml', '[']");
                let mut answers = vec![answer];
                peer().wait_for("/good", 1, SERVED_TIME_MAX);
                answers.push(reload(target, "", ""));
                answers
            }),
            status([200, 500]),
        ),
    ]
}
