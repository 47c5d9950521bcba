//! Queries in their normal form; printing is idempotent.

use firn_promql::parse;

fn check(text: &str, expected: &str) {
    let printed = parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).to_string();
    assert_eq!(printed, expected, "for {text:?}");
    let again = parse(&printed).unwrap_or_else(|e| panic!("{printed}: {e}")).to_string();
    assert_eq!(again, printed);
}

#[test]
fn queries_have_one_form() {
    check("sum(foo)by(a,b)", "sum by (a, b) (foo)");
    check("SUM WITHOUT() (foo)", "sum without () (foo)");
    // Found by a fuzzer: an empty selector was printed as nothing.
    check("info(foo, {})", "info(foo, {})");
    check("topk(5,foo)", "topk(5, foo)");
    check("foo{b='2',a=~`1`}", "foo{a=~\"1\",b=\"2\"}");
    check("{\"my.metric\",\"a b\"=\"c\"}", "{\"a b\"=\"c\",__name__=\"my.metric\"}");
    check("foo[300] offset -5m @ 1.5", "foo[5m] @ 1.500 offset -5m");
    check("foo @ -100", "foo @ -100.000");
    check("foo @ start() offset 1w", "foo @ start() offset 1w");
    check("foo[1h:] @ end()", "foo[1h:] @ end()");
    check("foo[5m] smoothed", "foo[5m] smoothed");
    check("foo[5m+step()*2]", "foo[5m + step() * 2]");
    check("foo offset (1m+1m)", "foo offset (1m + 1m)");
    check("foo offset -step()", "foo offset -step()");
    // Arithmetic continues after a parenthesis: a number was added to the values.
    check("foo offset (1m) + 2 > 1", "foo offset ((1m) + 2) > 1");
    check("foo offset -(1m) + 2", "foo offset -(1m) + 2");
    check("foo offset 1m + 2", "foo offset 1m + 2");
    // Found by a fuzzer: lengths below a millisecond were printed as 0, which is no range.
    check("foo[33e-6] offset -4e-5", "foo[0.000033] offset -0.00004");
    check("foo[1e-10]", "foo[0.000000001]");
    check("foo[1m:4e-4]", "foo[1m:0.0004]");
    // Found by a fuzzer: the offset took the operator behind it.
    check("foo offset (1m) @ 5 + 2", "foo offset (1m) @ 5.000 + 2");
    check("foo offset (1m) smoothed - 2", "foo offset (1m) smoothed - 2");
    check("foo[1h:] offset (1m) @ end()", "foo[1h:] offset (1m) @ end()");
    check("foo offset +(1m) * 2", "(foo offset (1m)) * 2");
    check("foo offset -(1m) * 2", "foo offset -(1m) * 2");
    // Nanoseconds of a number of seconds are not exact for decades.
    check("leo[01516238358.695932]", "leo[17549d1h19m18s695ms]");
    // Found by comparing with Prometheus 3.15: numbers lost their parentheses.
    check("foo[((1m))] offset -(-15s)", "foo[(1m)] offset -(-15s)");
    check("foo[1m:+(30s)] offset (0)", "foo[1m:(30s)] offset (0)");
    check("foo[1m/(0)]", "foo[1m / (0)]");
    check("a+on(x)group_left(y)b", "a + on (x) group_left (y) b");
    check("a/ignoring(x)fill(0)b", "a / ignoring (x) fill (0) b");
    check("a>bool fill_left(1)fill_right(2)b", "a > bool fill_left (1) fill_right (2) b");
    check("-foo^2", "-foo ^ 2");
    check("-1^2", "-1 ^ 2");
    check("+foo", "+foo");
    check("0x1F + 5m", "31 + 5m");
    check("\"\\xff\\n\"", "\"\\xff\\n\"");
    // Such a value equals no label. It was the replacement character, which a label may have.
    check("foo{a=\"\\xff\"}", "foo{a=~\"[^\\\\x00-\\\\x{10FFFF}]\"}");
    check("foo{a!=\"\\xff\"}", "foo{a!~\"[^\\\\x00-\\\\x{10FFFF}]\"}");
    check("foo{a=\"\u{fffd}\"}", "foo{a=\"\u{fffd}\"}");
    check("sum + by", "sum + by");
    check("fill + fill(0) fill", "fill + fill (0) fill");
    check("max_of(1, min_of(2, 3))", "max_of(1, min_of(2, 3))");
}

#[test]
fn operators_bind_as_prometheus_binds_them() {
    let tree = |text: &str| format!("{:?}", parse(text).unwrap().root);
    let same = |a: &str, b: &str| {
        let strip = |text: &str| {
            // The trees must be equal except for parentheses and positions.
            let no_spans = regex::Regex::new(r"span: Span \{[^}]*\}, ").unwrap();
            let tree = no_spans.replace_all(&tree(text), "").into_owned();
            let paren = regex::Regex::new(r"Node \{ kind: Paren\(").unwrap();
            paren.replace_all(&tree, "(").into_owned()
        };
        let closing = |text: String| text.replace(" })", ")").replace([' ', '(', ')', '}'], "");
        assert_eq!(closing(strip(a)), closing(strip(b)), "{a} and {b}");
    };
    same("a ^ b ^ c", "a ^ (b ^ c)");
    same("a - b - c", "(a - b) - c");
    same("a or b and c", "a or (b and c)");
    same("a == b + c * d ^ e", "a == (b + (c * (d ^ e)))");
    same("foo offset 1m + 2", "(foo offset 1m) + 2");
    same("foo offset -2 ^ 2", "(foo offset -2) ^ 2");
}

#[test]
fn long_queries_are_split_as_prometheus_splits_them() {
    let f = |text: &str, wanted: &str| {
        let pretty = parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).pretty().to_string();
        assert_eq!(pretty, wanted, "for {text:?}");
        let again = parse(&pretty).unwrap_or_else(|e| panic!("{pretty}: {e}")).to_string();
        assert_eq!(again, parse(text).unwrap().to_string());
    };
    let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
    f("sum(a)by(b)", "sum by (b) (a)");
    f(&format!("{a}+{b}"), &format!("{a} + {b}"));
    f(&format!("{a}+{b}*{c}"), &format!("  {a}\n+\n  {b} * {c}"));
    f(
        &format!("({a}-on(x)group_left(y){b})-{c}"),
        &format!("  (\n      {a}\n    - on (x) group_left (y)\n      {b}\n  )\n-\n  {c}"),
    );
    f(
        &format!("topk by (x) (5, {a}+{b}+{c})"),
        &format!("topk by (x) (\n  5,\n    {a} + {b}\n  +\n    {c}\n)"),
    );
    f(&format!("-({a}+{b}+{c})"), &format!("-(\n    {a} + {b}\n  +\n    {c}\n)"));
    f(&format!("-{a}^{b}{c}"), &format!("-{a}\n^\n  {b}{c}"));
    f(
        &format!("max_over_time(rate({a}{b}{{x='y'}}[5m])[30m:1m] offset 5m)"),
        &format!("max_over_time(\n  rate({a}{b}{{x=\"y\"}}[5m])[30m:1m] offset 5m\n)"),
    );
    // A query that cannot be split stays one line of any length.
    f(&format!("{a}{b}{c}"), &format!("{a}{b}{c}"));
    // A subquery that fits is not indented.
    f(
        &format!("quantile_over_time(scalar({a}), rate({b}{c}[5m])[30m:1m])"),
        &format!("quantile_over_time(\n  scalar({a}),\nrate({b}{c}[5m])[30m:1m]\n)"),
    );
}
