use firn_model::{Budget, CancelToken, ErrorKind};

use super::*;

fn read_as(text: &str, names: RuleNames, unknown: UnknownKeys) -> Result<RuleFile, Vec<String>> {
    let options = ReadOptions { names, unknown, ..ReadOptions::default() };
    RuleFile::parse(text, &options)
}

fn read(text: &str) -> Result<RuleFile, Vec<String>> {
    read_as(text, RuleNames::Utf8, UnknownKeys::Refused)
}

/// It was called a shortage of memory, which a repetition may end.
#[test]
fn an_expression_over_the_limits_of_a_query_is_a_mistake() {
    let selector = |of: usize| {
        let matchers: String = (0..501).map(|n| format!("b=~\"{of}x{n}[ab]+\",")).collect();
        format!("a{{{matchers}}}")
    };
    let expr = format!("{} + {}", selector(1), selector(2));
    let text = format!("groups: [{{name: g, rules: [{{record: r, expr: '{expr}'}}]}}]");
    let mistakes = read(&text).unwrap_err();
    assert!(mistakes[0].contains("rule 1, \"r\": could not parse expression"), "{mistakes:?}");
    assert!(mistakes[0].contains("over 1000 regular expressions"), "{mistakes:?}");
}

#[test]
fn groups_have_their_settings_and_labels() {
    let file = read(
        "groups:\n- name: a\n  interval: 5s\n  query_offset: 1m\n  limit: 3\n  labels: {x: '1', \
         y: '2'}\n  rules:\n  - {record: r, expr: up, labels: {y: '3'}}\n  - {alert: A, expr: up, \
         for: 1m, keep_firing_for: 2m, annotations: {t: '{{ $value }}'}}\n- name: b\n",
    )
    .unwrap();
    let [a, b] = file.groups.as_slice() else { panic!("{file:?}") };
    assert_eq!(
        (a.interval_ms, a.query_offset_ms, a.limit, b.interval_ms, b.query_offset_ms, b.limit),
        (Some(5_000), Some(60_000), 3, None, None, 0)
    );
    let [record, Rule::Alerting(alert)] = a.rules.as_slice() else { panic!("{a:?}") };
    assert_eq!(format!("{:?}", record.labels()), r#"{"x": "1", "y": "3"}"#);
    assert_eq!((alert.hold_ms, alert.keep_firing_ms), (60_000, 120_000));
    assert_eq!(format!("{:?}", alert.labels), r#"{"x": "1", "y": "2"}"#);
    assert!(!file.has_more_documents);
    assert!(read("groups: []\n---\n").unwrap().has_more_documents);
    assert!(read("").unwrap().groups.is_empty());
}

#[test]
fn anchors_and_merge_keys_work() {
    let text = "groups:\n- name: a\n  rules:\n  - &r\n    record: r\n    expr: up\n  - <<: *r\n    \
                record: s\n";
    let file = read(text).unwrap();
    let names: Vec<&str> = file.groups[0].rules.iter().map(Rule::name).collect();
    assert_eq!(names, ["r", "s"]);
}

/// The texts and places are those of promtool for the same file.
#[test]
fn all_mistakes_are_found_with_their_places() {
    let text = "groups:
  - name: x
    rules:
      - record: a
        alert: b
        expr: sum(
        labels: {\"\": c}
      - expr:
      - record: 'a{b}'
        for: 5m
        annotations: {a: b}
        keep_firing_for: 5m
        expr: 1
        labels: {__name__: x, \"\": y}
      - alert: A
        expr: up
        labels: {x: '{{ bad }}'}
        annotations: {\"\": '{{ bad }}'}
  - name: x
    labels: {__name__: x}
    rules: []
  -
    rules:
";
    let want = r#"4:17: 5:16: group "x", rule 1, "b": only one of 'record' and 'alert' must be set
6:15: group "x", rule 1, "b": could not parse expression: 1:5: parse error: unclosed left parenthesis
group "x", rule 1, "b": invalid label name: 
0:0: 0:0: group "x", rule 2, "": one of 'record' or 'alert' must be set
8:13: group "x", rule 2, "": field 'expr' must be set in rule
9:17: group "x", rule 3, "a{b}": invalid field 'annotations' in recording rule
9:17: group "x", rule 3, "a{b}": invalid field 'for' in recording rule
9:17: group "x", rule 3, "a{b}": invalid field 'keep_firing_for' in recording rule
9:17: group "x", rule 3, "a{b}": braces present in the recording rule name; should it be in expr?: a{b}
group "x", rule 3, "a{b}": invalid label name: 
group "x", rule 3, "a{b}": invalid label name: __name__
group "x", rule 4, "A": invalid annotation name: 
group "x", rule 4, "A": label "x": template: __alert_A:1: function "bad" not defined
group "x", rule 4, "A": annotation "": template: __alert_A:1: function "bad" not defined
19:5: groupname: "x" is repeated in the same file
invalid label name: __name__
23:5: Groupname must not be empty"#;
    assert_eq!(read(text).unwrap_err().join("\n"), want);
}

/// Before, they were empty groups and rules, and so mistakes.
#[test]
fn nulls_in_lists_are_left_out() {
    assert!(read("groups: [~]").unwrap().groups.is_empty());
    let file = read("groups: [~, {name: a, rules: [~, {record: r, expr: up}, ~]}]").unwrap();
    assert_eq!((file.groups.len(), file.groups[0].rules.len()), (1, 1));
    let mistakes = read("groups: [{name: a, rules: [~, {record: r}]}]").unwrap_err();
    assert_eq!(mistakes, ["0:0: group \"a\", rule 1, \"r\": field 'expr' must be set in rule"]);
    assert!(read("groups: x").unwrap_err()[0].contains("into []rulefmt.RuleGroup"));
}

/// Before, the whole file was refused as no UTF-8, without a place.
#[test]
fn names_and_values_that_are_not_utf8_are_found_with_their_rule() {
    let text = "groups: [{name: a, labels: {!!binary /w==: x}, rules: [{alert: A, expr: up, \
                labels: {!!binary /w==: b, c: !!binary /w==, d: e}, \
                annotations: {!!binary /w==: f}}]}]";
    let want = "invalid label name: \u{fffd}
group \"a\", rule 1, \"A\": invalid label name: \u{fffd}
group \"a\", rule 1, \"A\": invalid label value: \u{fffd}
group \"a\", rule 1, \"A\": invalid annotation name: \u{fffd}";
    assert_eq!(read(text).unwrap_err().join("\n"), want);
    let text =
        "groups: [{name: a, rules: [{alert: A, expr: up, annotations: {b: !!binary /w==}}]}]";
    let file = read(text).unwrap();
    let Rule::Alerting(alert) = &file.groups[0].rules[0] else { panic!("{file:?}") };
    assert_eq!(alert.annotations["b"], "\u{fffd}");
}

#[test]
fn keys_and_values_are_checked_before_rules() {
    let text = "groups:\n- name: a\n  foo: 1\n  limit: x\n  rules:\n  - record: a\n    bar: 3\n";
    let want = "yaml: unmarshal errors:\n  line 3: field foo not found in type \
                rulefmt.RuleGroup\n  line 4: cannot unmarshal !!str `x` into int\n  line 7: field \
                bar not found in type rulefmt.Rule";
    assert_eq!(read(text).unwrap_err(), [want]);
    let text = "groups:\n- name: a\n  foo: 1\n  rules:\n  - {record: a, bar: 3, expr: '1'}\n";
    assert!(read(text).is_err());
    assert!(read_as(text, RuleNames::Utf8, UnknownKeys::Ignored).is_ok());
    for (text, want) in [
        ("groups:\n- name: a\n  interval: 5\n", "not a valid duration string: \"5\" (line 3)"),
        ("groups:\n- name: a\n\trules: x\n", "yaml: line 2"),
        ("- a", "yaml: unmarshal errors"),
        // Before, these were the texts of configurations.
        (
            "groups:\n- name: a\n  name: b\n  name: c\n  foo: 1\n",
            "yaml: unmarshal errors:\n  line 3: mapping key \"name\" already defined at line 2\n  \
             line 4: mapping key \"name\" already defined at line 2\n  line 4: mapping key \
             \"name\" already defined at line 3",
        ),
        (
            "groups:\n- {name: a, labels: {x: y, x: z}}\n",
            "yaml: unmarshal errors:\n  line 2: mapping key \"x\" already defined at line 2",
        ),
    ] {
        let mistakes = read(text).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(want), "{text}: {mistakes:?}");
    }
}

/// A name could print the success of another file.
#[test]
fn names_of_a_file_add_no_line_to_mistakes() {
    let evil = r#""x\n  SUCCESS: 1 rules found\r\u009b""#;
    let rule = format!("{{record: {evil}, expr: up, for: 1m, labels: {{{evil}: {evil}}}}}");
    for text in [
        format!("groups: [{{name: {evil}}}, {{name: {evil}}}]"),
        format!("groups: [{{name: a, labels: {{{evil}: a}}, rules: [{rule}]}}]"),
        format!("groups: [{{name: a, rules: [{{alert: {evil}, expr: 'sum('}}]}}]"),
        format!("groups: [{{name: a, interval: {evil}}}]"),
        format!("{evil}: 1"),
        "groups: [{name: a, limit: \"\\nerror\"}]".to_owned(),
        evil.to_owned(),
    ] {
        for mistake in read_as(&text, RuleNames::Legacy, UnknownKeys::Refused).unwrap_err() {
            let mistake = mistake.replace("unmarshal errors:\n  line", "");
            assert_eq!(firn_model::one_line(&mistake), mistake, "{text}");
        }
    }
    let rule = rule.replace("for: 1m, ", "");
    let text = format!("groups: [{{name: a, rules: [{rule}, {rule}]}}]");
    let found = duplicates_text(&duplicates(&read(&text).unwrap().groups)).unwrap();
    assert_eq!(found.lines().count(), 5, "{found}");
}

#[test]
fn names_follow_the_scheme() {
    let rule = |name: &str, label: &str, annotation: &str| {
        format!(
            "groups:\n- name: g\n  rules:\n  - {{record: '{name}', expr: up, labels: {{'{label}': \
             x}}}}\n  - {{alert: 'a b', expr: up, annotations: {{'{annotation}': x}}}}\n"
        )
    };
    for (name, label, annotation, utf8, legacy) in [
        ("a:b", "c", "__name__", true, true),
        ("a.b", "c", "d", true, false),
        ("a", "c:d", "d", true, false),
        ("a", "b", "d-e", true, false),
        ("1a", "b", "d", true, false),
        ("a", "__name__", "d", false, false),
    ] {
        let text = rule(name, label, annotation);
        for (names, want) in [(RuleNames::Utf8, utf8), (RuleNames::Legacy, legacy)] {
            let result = read_as(&text, names, UnknownKeys::Refused);
            assert_eq!(result.is_ok(), want, "{text} {names:?} {result:?}");
        }
    }
}

#[test]
fn duplicates_are_rules_with_equal_names_and_labels() {
    let file = read(
        "groups:\n- name: a\n  labels: {x: '1'}\n  rules:\n  - {record: r, expr: a}\n  - {record: \
         r, expr: b}\n  - {record: r, expr: b}\n  - {record: s, expr: b}\n- name: b\n  rules:\n  - \
         {alert: s, expr: a, labels: {x: '1'}}\n  - {record: r, expr: a}\n",
    )
    .unwrap();
    let found = duplicates(&file.groups);
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["r", "s"]);
    let want = "lint error 2 duplicate rule(s) found.\nMetric: r\nLabel(s):\n\tx: 1\nMetric: \
                s\nLabel(s):\n\tx: 1\nMight cause inconsistency while recording expressions";
    assert_eq!(duplicates_text(&found).unwrap(), want);
    assert_eq!(duplicates_text(&[]), None);
}

proptest::proptest! {
    /// Texts of the pieces of rule files: most are wrong in some way.
    #[test]
    fn no_text_panics(
        pieces in proptest::collection::vec(
            "groups:|- |name: |rules:|record: |expr: |alert: |for: |labels: |\n|  |    |\\{|\\}|\
             x|1m|up|&a |\\*a|<<: |'|\"|\\[|\\]|, |\\{\\{ \\$x|\\}\\}|!!binary |é",
            0..40,
        ),
    ) {
        let text = pieces.concat();
        if let Ok(file) = read(&text) {
            duplicates(&file.groups);
            for group in file.groups {
                group.into_group("a.yml", 60_000, true);
            }
        }
        let _ = crate::unit_test::TestFile::parse("t.yml", &text, &Budget::unlimited());
    }
}

/// Before, each expression held the memory of its tokens, and each rule that of all its keys twice:
/// 45 MB and 39 MB, instead of 22 MB and 18 MB.
#[test]
fn rules_hold_the_memory_that_they_take() {
    let group = |group: usize| {
        let rules = (0..50).map(|rule| {
            let n = group * 50 + rule;
            format!(
                "  - record: job:metric_{n}:rate5m\n    expr: sum by (job) (rate(metric_{n}[5m]))\n  \
                 - alert: Metric{n}High\n    \
                 expr: sum by (job, instance) (rate(metric_{n}{{job=\"api\"}}[5m])) > {n}\n    \
                 for: 5m\n    labels: {{severity: page, team: infra}}\n    \
                 annotations:\n      summary: 'Metric {n} of {{{{ $labels.instance }}}} is high'\n"
            )
        });
        format!("groups:\n- name: g{group}\n  rules:\n{}", rules.collect::<String>())
    };
    let (budget, expr_budget) = (Budget::new(64 << 20), Budget::new(32 << 20));
    let context = QueryContext::new(CancelToken::new(), expr_budget.clone());
    let options = ReadOptions { context, ..ReadOptions::default() };
    let read =
        |n| RuleFile::parse_within(&group(n), &options, &budget).map_err(|e| e[0].to_string());
    let files: Vec<_> = (0..200).map(read).collect::<Result<_, _>>().unwrap();
    let used = [&budget, &expr_budget].map(|budget| budget.usage().used_bytes);
    assert!(used.iter().all(|used| *used > 10 << 20), "{used:?}");
    drop(files);
    assert_eq!((budget.usage().used_bytes, expr_budget.usage().used_bytes), (0, 0));
}

/// Before, the copies were not counted: a file of 1 MB could take a gigabyte.
#[test]
fn copies_of_the_labels_of_a_group_are_counted() {
    let rules = "  - {record: r, expr: '1'}\n".repeat(1_000);
    let text =
        format!("groups:\n- name: g\n  labels: {{a: {}}}\n  rules:\n{rules}", "x".repeat(100_000));
    let mistakes = RuleFile::parse_within(&text, &ReadOptions::default(), &Budget::new(64 << 20));
    let mistakes = mistakes.map(drop).unwrap_err();
    assert!(matches!(mistakes[0].kind(), ErrorKind::Busy { .. }), "{mistakes:?}");
}
