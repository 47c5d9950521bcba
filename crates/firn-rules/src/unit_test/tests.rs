use firn_model::Budget;

use super::*;

const RULES: &str = "groups:
- name: late
  rules:
  - {record: c, expr: b * 2}
- name: early
  interval: 10m
  labels: {team: x}
  rules:
  - {record: b, expr: sum by (job) (a)}
  - {alert: High, expr: b > 4, for: 1m, annotations: {text: high}}
";

fn parse(text: &str) -> Result<TestFile, String> {
    TestFile::parse("t.yml", text, &Budget::unlimited())
}

fn run(test: &str, options: &RunTests) -> Vec<TestReport> {
    let file = parse(test).unwrap();
    file.run(&[RuleSource { path: "r.yml", text: RULES }], options)
}

fn failures(test: &str) -> Vec<String> {
    let reports = run(test, &RunTests::default());
    reports.into_iter().flat_map(|report| report.failures).collect()
}

/// Tests at all minutes, whatever the interval of the group.
fn with_input(rest: &str) -> String {
    format!(
        "group_eval_order: [early, late]\ntests:\n- input_series:\n  - {{series: 'a{{job=\"j\"}}', \
         values: '1+1x9'}}\n{rest}"
    )
}

#[test]
fn groups_run_in_order_and_see_input_up_to_each_time() {
    let test = with_input(
        "  promql_expr_test:\n  - {expr: c, eval_time: 3m, exp_samples: [{labels: 'c{job=\"j\", \
         team=\"x\"}', value: 8}]}\n  - {expr: a, eval_time: 3m30s, exp_samples: [{labels: \
         'a{job=\"j\"}', value: 4}]}\n  - {expr: 'ALERTS', eval_time: 3m}\n  - {expr: 'count(a) + \
         1', eval_time: 0, exp_samples: [{value: 2}]}\n  - {expr: '3', eval_time: 0, exp_samples: \
         [{labels: ' ', value: 3}]}\n",
    );
    assert_eq!(failures(&test), [""; 0]);
    // Without an order `late` reads the result of the previous minute.
    let test = test.replace("[early, late]", "[late, early]");
    let want = "    expr: \"c\", time: 3m,\n        exp: {__name__=\"c\", job=\"j\", team=\"x\"} \
                8E+00\n        got: {__name__=\"c\", job=\"j\", team=\"x\"} 6E+00";
    assert_eq!(failures(&test), [want]);
}

/// Samples of the earlier line showed in the gaps of the later one.
#[test]
fn a_later_line_of_a_series_replaces_the_earlier_one() {
    let test = "tests:\n- input_series:\n  - {series: x, values: 1x9}\n  - {series: y, values: 5x9}\n\
                \x20 - {series: x, values: _x4 2 3}\n  promql_expr_test:\n\
                \x20 - {expr: x, eval_time: 3m}\n\
                \x20 - {expr: x, eval_time: 4m, exp_samples: [{labels: x, value: 2}]}\n\
                \x20 - {expr: 'count_over_time(x[1h])', eval_time: 9m, exp_samples: [{value: 2}]}\n\
                \x20 - {expr: y, eval_time: 3m, exp_samples: [{labels: y, value: 5}]}\n";
    assert_eq!(failures(test), [""; 0]);
}

#[test]
fn firing_alerts_are_compared_with_their_labels() {
    let expected = |time: &str, alerts: &str| {
        with_input(&format!(
            "  name: t\n  alert_rule_test:\n  - {{eval_time: {time}, alertname: High, exp_alerts: \
             [{alerts}]}}\n"
        ))
    };
    let alert = "{exp_labels: {job: j, team: x}, exp_annotations: {text: high}}";
    assert_eq!(failures(&expected("4m", "")), [""; 0], "pending");
    assert_eq!(failures(&expected("5m59s", alert)), [""; 0]);
    assert_eq!(
        failures(&expected("5m", "")),
        [
            "    name: t,\n    alertname: High, time: 5m, \n        exp:[], \n        got:[\n            \
          0:\n              Labels:{alertname=\"High\", job=\"j\", team=\"x\"}\n              \
          Annotations:{text=\"high\"}\n            ]"
        ]
    );
    let options = RunTests { has_diff: true, ..RunTests::default() };
    let reports = run(&expected("5m", ""), &options);
    assert!(reports[0].failures[0].contains("diff: \n          + Labels:{alertname=\"High\""));
}

/// A name could print the success of another file.
#[test]
fn names_of_a_file_add_no_line_to_failures() {
    const EVIL: &str = r#""x\n  SUCCESS\r\u009b""#;
    for (rest, lines) in [
        (
            format!(
                "  name: {EVIL}\n  alert_rule_test:\n  - {{eval_time: 1m, alertname: {EVIL}, \
                 exp_alerts: [{{exp_labels: {{{EVIL}: {EVIL}}}}}]}}\n"
            ),
            8,
        ),
        (format!("  name: {EVIL}\n  alert_rule_test: [{{eval_time: 1m}}]\n"), 1),
        (format!("  promql_expr_test: [{{expr: {EVIL}}}]\n"), 1),
        (format!("  promql_expr_test: [{{expr: a, exp_samples: [{{labels: {EVIL}}}]}}]\n"), 1),
    ] {
        let found = failures(&with_input(&rest));
        assert_eq!(found.len(), 1, "{rest}");
        assert_eq!(found[0].split('\n').count(), lines, "{}", found[0]);
        assert!(!found[0].contains(['\r', '\u{9b}']), "{}", found[0]);
    }
    let order = format!("group_eval_order: [{EVIL}, {EVIL}]");
    assert!(!parse(&order).unwrap_err().contains('\n'));
}

#[test]
fn wrong_tests_and_rules_fail() {
    for (test, want) in [
        (
            with_input("  promql_expr_test:\n  - {expr: 'sum('}\n"),
            "    expr: \"sum(\", time: 0s, err: 1:5",
        ),
        (
            with_input("  promql_expr_test:\n  - {expr: a, exp_samples: [{labels: '{'}]}\n"),
            "    expr: \"a\", time: 0s, err: labels \"{\": ",
        ),
        (
            with_input("  promql_expr_test:\n  - {expr: 'a[1m]'}\n"),
            "rule result is not a vector or scalar",
        ),
        (
            with_input("  name: n\n  alert_rule_test:\n  - {eval_time: 5m}\n"),
            "an item under alert_rule_test misses required attribute alertname at eval_time 5m (in \
             TestGroup n)",
        ),
        (
            "tests:\n- input_series: [{series: 'a{', values: '1'}]\n".to_owned(),
            "2:4: parse error: unexpected character inside braces: '1'",
        ),
        (
            "tests:\n- input_series: [{series: 'a', values: \"1\\n2\"}]\n".to_owned(),
            "3:1: parse error: unexpected number \"2\" in series values",
        ),
        (
            "tests:\n- input_series: [{series: a, values: 1}, {series: b, values: 1z}]\n"
                .to_owned(),
            "3:3: parse error: bad number syntax: \"1\"",
        ),
        (
            "tests:\n- input_series: [{series: 'a{b=\"1\",b=\"2\"}', values: 1}]\n".to_owned(),
            "label name \"b\" is not unique: invalid sample",
        ),
        (
            "tests:\n- promql_expr_test: [{expr: '', eval_time: 1m}]\n".to_owned(),
            "expr: \"\", time: 1m, err: unknown position: parse error: no expression found in input",
        ),
    ] {
        let got = failures(&test);
        assert!(got.len() == 1 && got[0].contains(want), "{test}: {got:?}");
    }
    let file = parse("tests: [{}, {name: b}]").unwrap();
    let rules = "groups:\n- name: g\n  rules:\n  - {record: r, expr: 'x + on() y'}\n";
    let report = |text| file.run(&[RuleSource { path: "r.yml", text }], &RunTests::default());
    let names: Vec<String> = report(rules).into_iter().map(|report| report.name).collect();
    assert_eq!(names, ["unnamed#0", "b"]);
    let bad = report("groups:\n- name: g\n  rules:\n  - {record: r, expr: 'x +'}\n");
    assert!(bad[0].failures[0].starts_with("r.yml: 4:23: group \"g\", rule 1"), "{bad:?}");
    for (text, want) in [
        ("test: []", "field test not found in type main.unitTestFile"),
        ("group_eval_order: [a, a]", "group name repeated in evaluation order: a"),
        ("tests: [{start_timestamp: x}]", "cannot parse \"x\" to a valid timestamp"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(want), "{text}: {error}");
    }
}

#[test]
fn a_failing_rule_ends_its_test() {
    let file = parse(
        "tests:\n- input_series:\n  - {series: 'x{a=\"1\"}', values: '_x2 1'}\n  - {series: \
         'x{a=\"2\"}', values: '1x2'}\n  promql_expr_test: [{expr: nothing, eval_time: 5m, \
         exp_samples: [{value: 1}]}]\n",
    )
    .unwrap();
    let text = "groups:\n- name: g\n  rules:\n  - {record: r, expr: 'label_replace(x, \"a\", \"3\", \
                \"\", \"\")'}\n";
    let reports = file.run(&[RuleSource { path: "r.yml", text }], &RunTests::default());
    let [failure] = reports[0].failures.as_slice() else { panic!("{reports:?}") };
    assert!(failure.starts_with("    rule: r, time: 2m0s, err: "), "{failure}");
}

#[test]
fn floats_are_exact_unless_fuzzy() {
    let test = |fuzzy: bool, value: &str| {
        format!(
            "fuzzy_compare: {fuzzy}\ntests:\n- input_series: [{{series: a, values: \
             '{value}'}}]\n  promql_expr_test: [{{expr: a, exp_samples: [{{labels: a, value: \
             3}}]}}]\n"
        )
    };
    for (fuzzy, value, want) in [
        (false, "3", true),
        (false, "2.9999999999999996", false),
        (true, "2.9999999999999996", true),
        (true, "3.0000000000000004", true),
        (true, "3.000000000000001", false),
        (true, "NaN", false),
    ] {
        assert_eq!(failures(&test(fuzzy, value)).is_empty(), want, "{fuzzy} {value}");
    }
    let test = "tests: [{input_series: [{series: a, values: NaN}], promql_expr_test: [{expr: a, \
                exp_samples: [{labels: a, value: .nan}]}]}]";
    assert_eq!(failures(test).len(), 1);
}

#[test]
fn histograms_are_compared_in_series_notation() {
    let test = "tests: [{input_series: [{series: a, values: '{{schema:1 count:3 sum:2 buckets:[1 \
                2]}}'}], promql_expr_test: [{expr: a, exp_samples: [{labels: a, histogram: \
                '{{schema:1 count:3 sum:2 buckets:[1 2 0]}}'}]}, {expr: a, exp_samples: [{labels: \
                a, histogram: '{{schema:1 count:3 sum:2 buckets:[1 3]}}'}]}]}]";
    let got = failures(test);
    assert!(got.len() == 1 && got[0].contains("buckets:[1 3]"), "{got:?}");
}

/// Before, the layout was another one, and histograms had the notation of series.
#[test]
fn all_samples_are_printed_as_by_promtool() {
    let options = RunTests { has_samples: true, ..RunTests::default() };
    let samples = |series: &str| {
        let test = format!(
            "tests: [{{input_series: [{series}], promql_expr_test: [{{expr: '1', eval_time: 2m, \
             exp_samples: [{{value: 1}}]}}]}}]"
        );
        let report = run(&test, &options).remove(0);
        assert_eq!(report.failures, [""; 0]);
        report.samples.unwrap()
    };
    let head = "DEBUG: Dump of all data (input_series and rules) at 2m1s:\n";
    let series = "{series: 'y{z=\"1\"}', values: '1e6 _ Inf'}, {series: x, values: '{{count:2 sum:3 \
                  buckets:[1 1]}}'}";
    let want = "{__name__=\"x\"} =>\n{count:2, sum:3, (0.5,1]:1, (1,2]:1} @[0]\n{__name__=\"y\", \
                z=\"1\"} =>\n1000000 @[0]\n+Inf @[120000]";
    assert_eq!(samples(series), format!("{head}{want}"));
    assert_eq!(samples(""), head);
}

/// Before, the histogram hid the value, and Prometheus stores no such input.
#[test]
fn a_histogram_has_no_value_and_is_valid() {
    let of = |histogram: &str, value: u8| {
        let test = format!(
            "tests: [{{input_series: [{{series: a, values: '{{{{{histogram}}}}}'}}], \
             promql_expr_test: [{{expr: a, exp_samples: [{{labels: a, value: {value}, histogram: \
             '{{{{{histogram}}}}}'}}]}}]}}]"
        );
        failures(&test).len()
    };
    assert_eq!(of("sum:1 count:1 buckets:[1]", 0), 0);
    assert_eq!(of("sum:1 count:1 buckets:[1]", 1), 1);
    assert_eq!(of("sum:1 count:1 buckets:[-1]", 0), 1);
}

#[test]
fn tests_are_selected_by_name_and_start_where_they_say() {
    let test = "tests:\n- {name: one, start_timestamp: '2020-01-01T00:00:00Z', input_series: \
                [{series: a, values: '1 2'}], promql_expr_test: [{expr: 'timestamp(a)', eval_time: \
                1m, exp_samples: [{labels: '{}', value: 1577836860}]}]}\n- {name: two}\n- {}\n";
    let names = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|text| text.to_string()).collect();
        let filter = Some(TestFilter::new(&patterns).unwrap());
        let reports = run(test, &RunTests { filter, has_samples: true, ..RunTests::default() });
        assert!(reports.iter().all(|report| report.failures.is_empty()), "{reports:?}");
        reports.into_iter().map(|report| report.name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&["^t"]), "two");
    assert_eq!(names(&["ne", "wo$"]), "one two");
    assert_eq!(names(&[""]), "one two unnamed#2");
    assert!(TestFilter::new(&["(".to_owned()]).is_err());
    let options = RunTests { has_samples: true, ..RunTests::default() };
    let samples = run(test, &options)[0].samples.clone().unwrap();
    let want = "{__name__=\"a\"} =>\n1 @[1577836800000]\n2 @[1577836860000]";
    assert!(samples.contains(want), "{samples}");
}

#[test]
fn templates_see_external_labels_and_query_the_input() {
    let file = parse(
        "tests:\n- external_labels: {dc: eu}\n  external_url: http://p\n  input_series: [{series: \
         'a{x=\"1\"}', values: '5'}]\n  alert_rule_test:\n  - {eval_time: 0, alertname: A, \
         exp_alerts: [{exp_labels: {x: '1', v: '5'}, exp_annotations: {t: 'eu 1 http://p 5'}}]}\n",
    )
    .unwrap();
    let text = "groups:\n- name: g\n  rules:\n  - {alert: A, expr: a, labels: {v: '{{ $value }}'}, \
                annotations: {t: '{{ $externalLabels.dc }} {{ $labels.x }} {{ $externalURL }} {{ \
                query \"a\" | first | value }}'}}\n";
    let reports = file.run(&[RuleSource { path: "r.yml", text }], &RunTests::default());
    assert_eq!(reports[0].failures, [""; 0]);
}

/// Before, the next series was read, as if each were a script of its own.
#[test]
fn an_empty_line_or_a_comment_ends_the_series() {
    let none = |series: &str| {
        let test = format!(
            "tests:\n- input_series: [{{series: x, values: 1}}, {series}, {{series: z, values: 1z}}]\n\
             \x20 promql_expr_test: [{{expr: '{{__name__=~\"x|y\"}}', exp_samples: [{{labels: x, \
             value: 1}}]}}]\n"
        );
        assert_eq!(failures(&test), [""; 0], "{series}");
    };
    none("{series: '', values: ''}");
    none("{series: '# y', values: 1}");
    none("{series: x, values: \"1\\n\"}");
    none("{series: x, values: \"1\\n\\ny 1\"}");
}

/// Before, queries returned series in the order of their labels, and templates did not see results
/// of earlier rules of the same evaluation.
#[test]
fn templates_see_series_in_the_order_of_their_creation() {
    let rules = "groups:
- name: g
  rules:
  - {record: r, expr: m}
  - {record: s, expr: max by (a) (m)}
  - alert: A
    expr: vector(1)
    annotations:
      m: '{{ range query \"m\" }}{{ .Labels.a }}{{ .Labels.b }} {{ end }}'
      or: '{{ range query \"n or m\" }}{{ .Labels.a }}{{ .Labels.b }} {{ end }}'
      sum: '{{ range query \"sum by (a) (m)\" }}{{ .Labels.a }} {{ end }}'
      range: '{{ range query \"sum_over_time(m[5m])\" }}{{ .Labels.a }}{{ .Labels.b }} {{ end }}'
      on: '{{ range query \"m * on (a, b) r\" }}{{ .Labels.a }}{{ .Labels.b }} {{ end }}'
      r: '{{ range query \"r\" }}{{ .Labels.a }}{{ .Labels.b }} {{ end }}'
      s: '{{ range query \"s\" }}{{ .Labels.a }} {{ end }}'
      job: '{{ range query \"j\" }}{{ .Labels.instance }}{{ .Labels.a }} {{ end }}'
";
    let test = "tests:
- input_series:
  - {series: 'm{a=\"z\", b=\"1\"}', values: '1 1'}
  - {series: 'm{a=\"c\", b=\"2\"}', values: '_ 1'}
  - {series: 'm{a=\"y\", b=\"3\"}', values: '1 1'}
  - {series: 'n{a=\"x\", b=\"4\"}', values: '1 1'}
  - {series: 'm{a=\"z\", b=\"0\"}', values: '1 1'}
  - {series: 'j{a=\"2\", job=\"j\", instance=\"i\"}', values: '1 1'}
  - {series: 'j{a=\"1\", job=\"j\", instance=\"h\"}', values: '1 1'}
  - {series: 'j{a=\"1\", job=\"j\", instance=\"i\"}', values: '1 1'}
  alert_rule_test:
  - eval_time: 1m
    alertname: A
    exp_alerts:
    - exp_annotations:
        m: 'z1 y3 z0 c2 '
        or: 'x4 z1 y3 z0 c2 '
        sum: 'z y c '
        range: 'z1 y3 z0 c2 '
        on: 'z1 y3 z0 c2 '
        r: 'z1 y3 z0 c2 '
        s: 'z y c '
        job: 'i2 h1 i1 '
";
    let rules = RuleSource { path: "r.yml", text: rules };
    let reports = parse(test).unwrap().run(&[rules], &RunTests::default());
    let failures: Vec<_> = reports.into_iter().flat_map(|report| report.failures).collect();
    assert_eq!(failures, [""; 0], "{}", failures.join("\n"));
}

fn limited_failures(test: &str, limits: TestLimits) -> Vec<String> {
    let reports = run(test, &RunTests { limits, ..RunTests::default() });
    reports.into_iter().flat_map(|report| report.failures).collect()
}

/// Each of these did not end, or took all memory.
#[test]
fn evaluations_have_a_limit() {
    let series = "input_series: [{series: 'a{job=\"j\"}', values: '1x9'}]";
    for (head, rest, times) in [
        ("1ms", "promql_expr_test: [{expr: a, eval_time: 1000000h}]", "3600000000001"),
        ("1ms", "alert_rule_test: [{alertname: High, eval_time: 292y}]", "9208512000001"),
        ("1s", "alert_rule_test: [{alertname: High, eval_time: 52w}]", "31449601"),
    ] {
        let test =
            format!("evaluation_interval: {head}\ntests: [{{name: long, {series}, {rest}}}]\n");
        let found = failures(&test);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("t.yml: test \"long\" has "), "{found:?}");
        let wanted = format!("({times} times up to the last eval_time), at most 10000000 are run");
        assert!(found[0].contains(&wanted), "{found:?}");
    }
    let alerts = "{alertname: High}, ".repeat(3_400_000 / 1_000);
    let many = format!("tests:\n- alert_rule_test: &many [{alerts}]\n");
    assert_eq!(failures(&many), [""; 0]);
    // A long interval of samples, and times beyond all others.
    let test = format!(
        "evaluation_interval: 292y\ntests: [{{start_timestamp: 9e15, interval: 292y, {series}, \
         promql_expr_test: [{{expr: 'sum_over_time(a[292y])', eval_time: 292y}}]}}]\n"
    );
    assert_eq!(failures(&test).len(), 1);
}

/// A small file could take all memory by its samples, results and aliases.
#[test]
fn a_test_has_a_limit_of_memory() {
    let budget = |bytes: u64| Budget::unlimited().part(bytes);
    let limits = |bytes: u64| TestLimits { budget: budget(bytes), ..TestLimits::default() };
    let refusal = |bytes: u64| {
        format!(
            "the input takes more than {bytes} bytes of memory, a fixed limit: shorten it or split it"
        )
    };
    let series = "input_series: [{series: a, values: '1x99999'}]";
    let last = "promql_expr_test: [{expr: a, eval_time: 99999m}]";
    let input = format!("tests: [{{{series}}}]\n");
    let stored = format!("tests: [{{{series}, {last}}}]\n");
    let results = "tests: [{input_series: [{series: a, values: '1'}], promql_expr_test: [{expr: a, \
                   eval_time: 20000m}]}]\n";
    let rules = "groups:\n- name: g\n  rules:\n  - {record: r, expr: 'vector(time())'}\n";
    let rules_of = |text: &'static str| [RuleSource { path: "r.yml", text }];
    for (test, rules, bytes) in
        [(input.as_str(), "", 1 << 20), (&stored, "", 17 << 20), (results, rules, 1 << 20)]
    {
        let options = RunTests { limits: limits(bytes), ..RunTests::default() };
        let reports = parse(test).unwrap().run(&rules_of(rules), &options);
        let found = &reports[0].failures;
        let is_refused = found.len() == 1 && found[0].contains(&refusal(bytes));
        assert!(is_refused, "{test:.100}: {found:?}");
    }

    // Alerts are reserved once, not once for each evaluation.
    let alerts = "tests: [{input_series: [{series: a, values: '0+1x9999'}], promql_expr_test: [{expr: \
                  a, eval_time: 9999m, exp_samples: [{labels: a, value: 9999}]}]}]\n";
    let rules = format!(
        "groups:\n- name: g\n  rules:\n  - {alert}\n  - {alert}\n",
        alert = format!(
            "{{alert: A, expr: a, annotations: {{t: '{}{{{{ $value }}}}'}}}}",
            "x".repeat(1_000)
        )
    );
    let options = RunTests { limits: limits(16 << 20), ..RunTests::default() };
    let rules = [RuleSource { path: "r.yml", text: &rules }];
    assert_eq!(parse(alerts).unwrap().run(&rules, &options)[0].failures, [""; 0]);

    let aliases = format!(
        "tests:\n- &a {{external_url: \"{}\"}}\n{}",
        "x".repeat(1 << 20),
        "- *a\n".repeat(1_000)
    );
    let error = TestFile::parse("t.yml", &aliases, &budget(64 << 20)).unwrap_err();
    assert_eq!(error, format!("yaml: {} (line 2)", refusal(64 << 20)));
    assert!(parse(&aliases).is_ok());
}

/// Each failure repeats the texts of all alerts.
#[test]
fn the_failures_of_a_file_have_a_limit() {
    let rules = format!(
        "groups:\n- name: g\n  rules:\n  - {{alert: A, expr: a, annotations: {{text: \"{}\"}}}}\n",
        "x".repeat(1 << 20)
    );
    let alerts = "{alertname: A, eval_time: 1m}, ".repeat(200);
    let test = format!(
        "tests:\n- &a {{input_series: [{{series: a, values: '1x9'}}], alert_rule_test: \
         [{alerts}]}}\n- *a\n"
    );
    let reports = parse(&test)
        .unwrap()
        .run(&[RuleSource { path: "r.yml", text: &rules }], &RunTests::default());
    let counts: Vec<usize> = reports.iter().map(|report| report.failures.len()).collect();
    assert_eq!(counts, [33, 1]);
    assert!(reports[0].failures[32].contains("are not listed"), "{}", reports[0].failures[32]);
    assert!(reports[1].failures[0].contains("did not run"), "{}", reports[1].failures[0]);
}

#[test]
fn a_run_ends_with_its_time() {
    let limits = TestLimits::default();
    limits.cancel.time_out();
    let test = with_input("  promql_expr_test: [{expr: a, eval_time: 1m}]\n");
    assert_eq!(
        limited_failures(&test, limits),
        ["    the test did not run: the time of its file is over"]
    );
}
