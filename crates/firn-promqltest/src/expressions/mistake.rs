//! Expressions that must be refused.

use super::generator::Generator;
use super::select::ValueNeed;

/// Invalid expressions. `$v` is replaced by an instant vector, `$m` by a window, `$s` by a scalar.
const MISTAKES: [&str; 52] = [
    "rate($v)",
    "sum($s)",
    "sum($m)",
    "abs($s)",
    "abs($m)",
    "abs()",
    "abs($v, $v)",
    "$m + 1",
    "$v + $m",
    "-$m",
    "\"text\" + 1",
    "$s and $v",
    "1 and 2",
    "1 > 2",
    "1 + bool 2",
    "$v + on (job) 1",
    "$v and on (job) group_left $v",
    "$v * on (job) group_left (job) $v",
    "topk($v)",
    "topk($v, $v)",
    "quantile(\"a\", $v)",
    "count_values(1, $v)",
    "count_values(\"a-b\", $v)",
    "label_replace($v, \"a\", \"b\", \"job\", \"(\")",
    "label_join($v)",
    "unknown_function($v)",
    "{}",
    "{job=~\".*\"}",
    "{job=\"\"}",
    "up{job=~\"(\"}",
    "up{job=\"a\"",
    "up{job}",
    "up{__name__=\"down\"}",
    "sum by (job (up)",
    "sum(up",
    "up)",
    "up offset",
    "up @ now()",
    "up[5m",
    "up[5x]",
    "up[5m][5m]",
    "rate(up[5m:1m:1m])",
    "1 2",
    "+",
    "",
    "up[0s]",
    "sum by (1) (up)",
    "rate({__name__=~\"errors_total|requests_total\"}[5m])",
    "up + on () up",
    "up * on (job) group_left up",
    "scalar(1)",
    "round($v, $v)",
];

pub(super) fn mistake(generator: &mut Generator<'_>) -> String {
    let form = *generator.choices.pick(&MISTAKES);
    let mut text = String::new();
    let mut rest = form;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let piece = match rest.as_bytes().get(at + 1) {
            Some(b'v') => generator.vector(1).text,
            Some(b'm') => generator.window(0, ValueNeed::Any).text,
            _ => generator.scalar(0).text,
        };
        text.push_str(&piece);
        rest = &rest[at + 2..];
    }
    text + rest
}
