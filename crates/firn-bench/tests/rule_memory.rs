//! The memory of rules is counted: files of many shapes take no more bytes than they reserve.

use std::cell::Cell;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_model::{Budget, CancelToken, QueryContext};
use firn_rules::file::{FileGroup, ReadOptions, RuleFile};
use firn_rules::group::Group;
use firn_rules::template::{Environment, MissingKey, Template, Value};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn repeated(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect()
}

fn group(rules: &str) -> String {
    format!("groups:\n- name: g\n  rules:\n{rules}")
}

/// One test, because the count is one for the process.
#[test]
fn the_memory_of_rules_is_reserved() {
    rules_reserve_the_memory_that_they_take();
    templates_reserve_the_memory_that_they_take();
}

fn rules_reserve_the_memory_that_they_take() {
    let shapes: [(&str, String); 7] = [
        (
            "short rules",
            group(&repeated(2_000, |n| format!("  - {{record: 'r{n}', expr: '{n}'}}\n"))),
        ),
        (
            "rules with a label",
            group(&repeated(2_000, |n| {
                format!("  - {{record: r, expr: '1', labels: {{n: '{n}'}}}}\n")
            })),
        ),
        (
            "rules that share parts",
            group(&repeated(500, |n| {
                format!("  - {{record: 'r{n}', expr: 'sum(rate(load{{a=\"b\"}}[5m])) > {n}'}}\n")
            })),
        ),
        (
            "long expressions",
            group(&repeated(50, |n| {
                format!("  - {{record: 'r{n}', expr: '{}1'}}\n", "a{b=~\"c.*\"} + ".repeat(50))
            })),
        ),
        (
            "alerts",
            group(&repeated(500, |n| {
                format!(
                    "  - {{alert: 'A{n}', expr: 'load > {n}', for: 5m, \
                     labels: {{severity: page}}, annotations: {{text: 'load is {{{{ $value }}}}'}}}}\n"
                )
            })),
        ),
        (
            "small groups",
            format!(
                "groups:\n{}",
                repeated(500, |n| format!("- {{name: g{n}, rules: [{{record: r, expr: '1'}}]}}\n"))
            ),
        ),
        ("empty groups", format!("groups:\n{}", repeated(2_000, |n| format!("- name: g{n}\n")))),
    ];
    for (shape, text) in shapes {
        let budget = Budget::new(1 << 30);
        let context = QueryContext::new(CancelToken::new(), budget.clone());
        let options = ReadOptions { context, ..ReadOptions::default() };
        // Names and tables that are made once for all.
        drop(RuleFile::parse_within(&text, &options, &budget).expect("right rules"));
        let before = live_bytes();
        let allocated = || (live_bytes() - before) as u64;
        let (file, held) = RuleFile::parse_within(&text, &options, &budget).expect("right rules");
        let (parsed, reserved) = (allocated(), budget.usage().used_bytes);
        println!("{shape}: {parsed} bytes of texts and expressions, {reserved} reserved");
        assert!(parsed <= reserved && reserved <= 2 * parsed, "{shape}: {parsed} of {reserved}");
        let running = file.groups.iter().map(|group| group.running_bytes("f.yml")).sum::<u64>();
        let make = |group: FileGroup| group.into_group("f.yml", 1_000, true);
        let groups: Vec<Group> = file.groups.into_iter().map(make).collect();
        let running = running + groups.iter().map(Group::part_bytes).sum::<u64>();
        let added = allocated() - parsed;
        println!("{shape}: {added} bytes more of groups, {running} reserved");
        assert!(added <= running, "{shape}: {added} of {running}");
        // The views of a server take some of it.
        let (all, reserved) = (parsed + added, reserved + running);
        assert!(reserved <= 10 * all, "{shape}: {all} of {reserved}");
        drop((groups, held));
        assert_eq!(budget.usage().used_bytes, 0, "{shape}");
    }
}

/// Before, every execution reserved 4 MiB, and 32 MiB more if its text named a regular expression:
/// with little memory such an alert never fired.
fn templates_reserve_the_memory_that_they_take() {
    let replaced = |pattern: &str| format!("{{{{ reReplaceAll `{pattern}` `<$0>` $value }}}}");
    let patterns = [
        "a",
        "^(.*)[.]example[.](com|org)$",
        "(?i)some words",
        r"\pL+",
        r"(\w+) (\d{4})-(\d{2})",
        "[a-z]{200}",
        r"\w{20}",
        "(a|b|c)*d{10}",
        r"(\pL{3}){5}x{500}",
    ];
    let many: String = (0..40).map(|n| replaced(&format!("[a-f]+{n}x{{{n}}}"))).collect();
    let texts: Vec<String> = patterns.into_iter().map(replaced).chain([many]).collect();
    let long = "{{ printf `%30000s` $value }}".to_owned();
    let longer = "{{ reReplaceAll `x` `` (printf `%1000000s` $value) }}".to_owned();
    let value = Value::text("any value of 2026-11 in Ελλάδα ".repeat(20));
    for (text, most) in
        texts.iter().map(|text| (text, 7 << 20)).chain([(&long, 256 << 10), (&longer, 14 << 20)])
    {
        let reserved = Cell::new(0);
        let reserved_max = Cell::new(0);
        let reserve = |bytes: usize| {
            reserved.set(bytes);
            reserved_max.set(reserved_max.get().max(bytes));
            Ok(())
        };
        let environment = Environment {
            now: 0,
            external_url: "http://host",
            missing_key: MissingKey::Zero,
            query: &|_| Ok(Vec::new()),
            reserve: &reserve,
        };
        let template =
            Template::parse("t", &format!("{{{{ $value := . }}}}{text}")).expect("right");
        reset_peak();
        let before = live_bytes();
        let expanded = template.execute(&value, &environment).expect("expands");
        let (peak, reserved_max) = (peak_bytes() - before, reserved_max.get());
        println!("{text:.60}: {} bytes, {peak} allocated, {reserved_max} reserved", expanded.len());
        assert!(peak <= reserved_max && reserved_max <= most, "{text:.60}: {peak} {reserved_max}");
        assert!(reserved.get() <= reserved_max);
    }
}
