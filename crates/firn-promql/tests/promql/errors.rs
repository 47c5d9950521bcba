//! Errors have Prometheus' messages and positions.

use firn_model::{Matcher, QueryContext};
use firn_promql::prepare;

fn parse_selector(text: &str) -> firn_model::Result<Vec<Matcher>> {
    firn_promql::parse_selector(text, &QueryContext::unbounded())
}

fn check(text: &str, expected: &str) {
    let got = prepare(text, &QueryContext::unbounded()).unwrap_err().to_string();
    assert_eq!(got, expected, "for {text:?}");
}

#[test]
fn syntax_errors_have_positions() {
    check("", "unknown position: parse error: no expression found in input");
    check("1+", "1:3: parse error: unexpected end of input");
    check("# only a comment", "1:1: parse error: no expression found in input");
    check("sum(", "1:5: parse error: unclosed left parenthesis");
    check("foo!", "1:4: parse error: unexpected character after '!': '\u{fffd}'");
    check("foo{a=~'('}", "1:5: parse error: error parsing regexp: missing closing ): `(`");
    check("foo)", "1:5: parse error: unexpected right parenthesis ')'");
    check("foo[5m", "1:7: parse error: unclosed left bracket");
    check("foo{a=\"b\"", "1:10: parse error: unexpected end of input inside braces");
    check("foo\n  bar", "2:3: parse error: unexpected identifier \"bar\"");
    check("1 1", "1:3: parse error: unexpected number \"1\"");
    check("\"abc", "1:1: parse error: unterminated quoted string");
    check(
        "foo{a=b}",
        "1:7: parse error: unexpected identifier \"b\" in label matching, expected string",
    );
    check(
        "foo{a}",
        "1:6: parse error: unexpected \"}\" in label matching, expected label matching operator",
    );
    check(
        "foo{a=\"b\" c=\"d\"}",
        "1:11: parse error: unexpected identifier \"c\" in label matching, expected \",\" or \"}\"",
    );
    check(
        "sum by (1) (foo)",
        "1:9: parse error: unexpected number \"1\" in grouping opts, expected label",
    );
    check(
        "foo offset",
        "1:11: parse error: unexpected end of input in offset, expected number, duration, step(), \
         or range()",
    );
    check("foo @ bar", "1:7: parse error: unexpected identifier \"bar\" in @, expected timestamp");
    check(
        "foo[]",
        "1:5: parse error: unexpected \"]\" in subquery or range selector, expected number, \
         duration, step(), or range()",
    );
    check("foo[5m:1m", "1:10: parse error: unclosed left bracket");
    check(
        "1e309",
        "1:1: parse error: error parsing number: strconv.ParseFloat: parsing \"1e309\": value out \
         of range",
    );
    check("foo[:]", "1:6: parse error: unexpected colon before duration in duration expression");
    check("1__2", "1:1: parse error: bad number or duration syntax: \"1__\"");
    check("1..2", "1:1: parse error: bad number or duration syntax: \"1..\"");
    check("0x1_", "1:1: parse error: bad number or duration syntax: \"0x1_\"");
    check(
        "1e )",
        "1:1: parse error: error parsing number: strconv.ParseFloat: parsing \"1e\": invalid syntax",
    );
    check("foo\u{a0}", "1:4: parse error: unexpected character: '\\u00a0'");
    check("foo!\"", "1:4: parse error: unexpected character after '!': '\"'");
    check("5mm", "1:1: parse error: bad number or duration syntax: \"5mm\"");
    check("foo ! bar", "1:5: parse error: unexpected character after '!': ' '");
    check("foo(bar,)", "1:8: parse error: trailing commas not allowed in function call args");
}

#[test]
fn type_errors_name_the_expected_type() {
    check("unknown(foo)", "1:1: parse error: unknown function with name \"unknown\"");
    check(
        "rate(foo)",
        "1:6: parse error: expected type range vector in call to function \"rate\", got instant \
         vector",
    );
    check("rate()", "1:1: parse error: expected 1 argument(s) in call to \"rate\", got 0");
    check(
        "round(foo, 1, 2)",
        "1:1: parse error: expected at most 2 argument(s) in call to \"round\", got 3",
    );
    check(
        "label_join(foo)",
        "1:1: parse error: expected at least 3 argument(s) in call to \"label_join\", got 1",
    );
    check(
        "sum(1)",
        "1:5: parse error: expected type instant vector in aggregation expression, got scalar",
    );
    check("sum()", "1:1: parse error: no arguments for aggregate expression provided");
    check(
        "topk(foo)",
        "1:1: parse error: wrong number of arguments for aggregate expression provided, expected \
         2, got 1",
    );
    check("1 == 1", "1:3: parse error: comparisons between scalars must use BOOL modifier");
    check(
        "foo + bool bar",
        "1:5: parse error: bool modifier can only be used on comparison operators",
    );
    check(
        "1 and 1",
        "1:1: parse error: set operator \"and\" not allowed in binary scalar expression",
    );
    check(
        "foo and on(a) group_left(b) bar",
        "1:1: parse error: no grouping allowed for \"and\" operation",
    );
    check(
        "foo + on(a) group_left(a) bar",
        "1:5: parse error: label \"a\" must not occur in ON and GROUP clause at once",
    );
    check(
        "-\"foo\"",
        "1:1: parse error: unary expression only allowed on expressions of type scalar or instant \
         vector, got \"string\"",
    );
    check("{}", "1:1: parse error: vector selector must contain at least one non-empty matcher");
    check(
        "{a=~\".*\"}",
        "1:1: parse error: vector selector must contain at least one non-empty matcher",
    );
    check(
        "foo{__name__=\"bar\"}",
        "1:1: parse error: metric name must not be set twice: \"foo\" or \"bar\"",
    );
    check("foo[5m][5m]", "1:8: parse error: ranges only allowed for vector selectors");
    check("foo[0]", "1:5: parse error: duration must be greater than 0");
    check("foo[9.5e10]", "1:5: parse error: duration out of range");
    check("foo[1m+9.5e10]", "1:8: parse error: duration out of range");
    check("foo[(1m-9.5e10)]", "1:9: parse error: duration out of range");
    check("foo[-1m]", "1:5: parse error: duration must be greater than 0");
    check(
        "foo offset (1m) + bar",
        "1:19: parse error: unexpected identifier \"bar\" in offset, expected number, duration, \
         step(), or range()",
    );
    check(
        "foo[5m:1m+]",
        "1:11: parse error: unexpected \"]\" in subquery selector, expected number, duration, \
         step(), range(), or \"]\"",
    );
    check(
        "(foo + bar) offset 5m",
        "1:1: parse error: offset modifier must be preceded by an instant vector selector or \
         range vector selector or a subquery",
    );
    check("foo offset 5m offset 5m", "1:1: parse error: offset may not be set multiple times");
    check("foo @ 1 @ 2", "1:1: parse error: @ <timestamp> may not be set multiple times");
    check(
        "foo[5m:1m] anchored",
        "1:1: parse error: anchored modifier is not supported for subqueries",
    );
    check(
        "info(foo, bar)",
        "1:11: parse error: expected label selectors only, got vector selector instead",
    );
}

#[test]
fn a_selector_is_the_whole_text() {
    assert_eq!(parse_selector("up{job=\"a\"}").unwrap().len(), 2);
    assert_eq!(parse_selector("{\"my.metric\", a!~\"b\"}").unwrap().len(), 2);
    assert_eq!(parse_selector("{}").unwrap().len(), 0, "the caller decides whether to accept it");
    for bad in ["", "1", "up + up", "rate(up[5m])", "up offset 5m"] {
        assert!(parse_selector(bad).is_err(), "{bad}");
    }
}
