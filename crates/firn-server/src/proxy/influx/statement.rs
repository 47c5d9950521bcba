//! InfluxQL statements that can be answered in parts: aggregates by `GROUP BY time(...)` between
//! two fixed times.
//!
//! The proxy forwards all other statements unchanged, so there are no error messages here.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;

/// Aggregates with a value per bucket that depends on that bucket's points alone, and that exists
/// if and only if the bucket has points.
const AGGREGATES: [&str; 9] =
    ["count", "first", "last", "max", "mean", "median", "min", "spread", "sum"];

/// A statement with replaceable times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    text: String,
    /// The conditions `time >= ...` and `time < ...`, in any order.
    lower: Range<usize>,
    upper: Range<usize>,
    /// The first and the last nanosecond of its range.
    pub(super) range_ns: (i64, i64),
    /// Nanoseconds of a bucket.
    pub(super) interval_ns: i64,
    /// The value of empty buckets in each column, if they are returned.
    pub(super) fills: Option<Vec<&'static str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Word,
    /// In double quotes: a name.
    Name,
    /// In single quotes.
    Text,
    Regex,
    /// Digits, and the letters behind them.
    Number,
    Sign,
}

#[derive(Clone, Debug)]
struct Token<'a> {
    kind: TokenKind,
    text: &'a str,
    span: Range<usize>,
    depth: usize,
}

impl Statement {
    /// `None` unless the statement can be answered in parts.
    pub(super) fn parse(text: &str) -> Option<Statement> {
        let tokens = tokens(text)?;
        let tokens = match tokens.split_last() {
            Some((last, before)) if last.text == ";" => before,
            _ => &tokens,
        };
        let at = |word: &str| {
            let clauses = tokens.iter().enumerate().filter(|(_, token)| token.is_clause(word));
            let mut found = clauses.map(|(idx, _)| idx);
            found.next().filter(|_| found.next().is_none())
        };
        let (select, from, condition, group) =
            (at("select")?, at("from")?, at("where")?, at("group")?);
        (select == 0).then_some(())?;
        // In another order of the clauses, a range is `None`.
        let between = |clause: usize, end: usize| tokens.get(clause.checked_add(1)?..end);
        let nothing = select_items(between(select, from)?)?;
        sources(between(from, condition)?)?;
        let (lower, upper) = bounds(between(condition, group)?)?;
        let grouping = between(group, tokens.len())?;
        let (by, grouping) = grouping.split_first()?;
        by.is_clause("by").then_some(())?;
        let fill = grouping.iter().position(|token| token.is_clause("fill"));
        let (grouping, fill) = grouping.split_at_checked(fill.unwrap_or(grouping.len()))?;
        let interval_ns = dimensions(grouping)?;
        let fills = match fill {
            [] => true,
            [_, open, word, close] if open.text == "(" && close.text == ")" => {
                match word.text.to_ascii_lowercase().as_str() {
                    "null" => true,
                    "none" => false,
                    _ => return None,
                }
            }
            _ => return None,
        };
        let range_ns = (lower.1, upper.1);
        let is_range = 0 <= range_ns.0 && range_ns.0 <= range_ns.1 && interval_ns > 0;
        is_range.then(|| Statement {
            text: text.trim_end().trim_end_matches(';').to_owned(),
            lower: lower.0,
            upper: upper.0,
            range_ns,
            interval_ns,
            fills: fills.then_some(nothing),
        })
    }

    /// The statement for another range of nanoseconds, both ends included.
    pub(super) fn for_range(&self, (first, last): (i64, i64)) -> String {
        self.with(&format!("time >= {first}"), &format!("time <= {last}"))
    }

    /// The statement without its times: identifies equal statements.
    pub(super) fn key(&self) -> String {
        self.with("time >= ?", "time <= ?")
    }

    fn with(&self, lower: &str, upper: &str) -> String {
        let mut cuts = [(&self.lower, lower), (&self.upper, upper)];
        cuts.sort_by_key(|cut| cut.0.start);
        let [(one, first), (other, second)] = cuts;
        let text = &self.text;
        [&text[..one.start], first, &text[one.end..other.start], second, &text[other.end..]]
            .concat()
    }
}

impl Token<'_> {
    /// Whether it is a word of the statement itself, not inside of brackets.
    fn is_clause(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.depth == 0 && self.text.eq_ignore_ascii_case(word)
    }

    fn is_name(&self) -> bool {
        matches!(self.kind, TokenKind::Word | TokenKind::Name)
    }
}

/// Aggregates of one field each, with or without a name: the value of an empty bucket in each
/// column.
fn select_items(tokens: &[Token<'_>]) -> Option<Vec<&'static str>> {
    let items = tokens.split(|token| token.depth == 0 && token.text == ",");
    items
        .map(|item| {
            let (call, alias) = item.split_at_checked(4)?;
            let [function, open, field, close] = call else { return None };
            let name = function.text.to_ascii_lowercase();
            let is_call = function.kind == TokenKind::Word
                && AGGREGATES.contains(&name.as_str())
                && open.text == "("
                && field.is_name()
                && close.text == ")";
            let is_alias = match alias {
                [] => true,
                [word, alias] => word.is_clause("as") && alias.is_name(),
                _ => false,
            };
            (is_call && is_alias).then_some(if name == "count" { "0" } else { "null" })
        })
        .collect()
}

/// Measurements, no subqueries.
fn sources(tokens: &[Token<'_>]) -> Option<()> {
    let is_plain = |token: &Token<'_>| {
        matches!(token.kind, TokenKind::Word | TokenKind::Name | TokenKind::Regex)
            || token.text == "."
            || token.text == ","
    };
    let words = tokens.iter().filter(|token| token.kind == TokenKind::Word);
    let has_clause = words.clone().any(|word| word.is_clause("into"));
    (!tokens.is_empty() && tokens.iter().all(is_plain) && !has_clause).then_some(())
}

/// The position of a bound, and the first or last nanosecond inside it.
type Bound = (Range<usize>, i64);

/// One lower and one upper bound of time, joined with all else by AND.
fn bounds(tokens: &[Token<'_>]) -> Option<(Bound, Bound)> {
    let (mut lower, mut upper) = (None, None);
    let is_time =
        |token: &Token<'_>| token.is_name() && token.unquoted().eq_ignore_ascii_case("time");
    for (idx, token) in tokens.iter().enumerate() {
        if token.is_clause("or") {
            return None;
        }
        if !is_time(token) {
            continue;
        }
        let is_and = |idx: usize| tokens.get(idx).is_none_or(|token| token.is_clause("and"));
        let [_, sign, value] = tokens.get(idx..)?.first_chunk()?;
        let is_alone = token.depth == 0
            && idx.checked_sub(1).is_none_or(is_and)
            && is_and(idx.saturating_add(3))
            && value.kind == TokenKind::Number;
        is_alone.then_some(())?;
        let ns = duration_ns(value.text, 1)?;
        let span = token.span.start..value.span.end;
        let (side, bound) = match sign.text {
            ">" => (&mut lower, (span, ns.checked_add(1)?)),
            ">=" => (&mut lower, (span, ns)),
            "<" => (&mut upper, (span, ns.checked_sub(1)?)),
            "<=" => (&mut upper, (span, ns)),
            _ => return None,
        };
        side.replace(bound).is_none().then_some(())?;
    }
    Some((lower?, upper?))
}

/// One `time(...)` and names of tags: the nanoseconds of a bucket.
fn dimensions(tokens: &[Token<'_>]) -> Option<i64> {
    let mut interval_ns = None;
    for dimension in tokens.split(|token| token.depth == 0 && token.text == ",") {
        match dimension {
            [word, open, value, close]
                if word.is_clause("time") && open.text == "(" && close.text == ")" =>
            {
                let is_first = interval_ns.replace(duration_ns(value.text, 0)?).is_none();
                is_first.then_some(())?;
            }
            [name] if name.is_name() => {}
            _ => return None,
        }
    }
    interval_ns
}

/// `1700000000000ms`, `1h30m`; a number alone is of `plain_ns` nanoseconds, 0 allows none.
fn duration_ns(text: &str, plain_ns: i64) -> Option<i64> {
    let (mut rest, mut sum) = (text, 0_i64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        let unit_ns = match unit {
            "" if plain_ns > 0 => plain_ns,
            "ns" => 1,
            "u" | "\u{b5}" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "w" => 604_800_000_000_000,
            _ => return None,
        };
        sum = sum.checked_add(number.parse::<i64>().ok()?.checked_mul(unit_ns)?)?;
        rest = behind;
    }
    (!text.is_empty()).then_some(sum)
}

impl<'a> Token<'a> {
    fn unquoted(&self) -> &'a str {
        match self.kind {
            TokenKind::Name => self.text.trim_matches('"'),
            _ => self.text,
        }
    }
}

/// The tokens of the text; `None` for unsupported syntax, such as a comment or a variable.
fn tokens(text: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut rest, mut depth) = (text, 0_usize);
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = rest.get(first.len_utf8()..)?;
            continue;
        }
        let run = |is_part: &dyn Fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let before = tokens.last().map_or("", |token| token.text);
        // A slash after these tokens starts a regular expression. Division is not supported.
        let (kind, len) = match first {
            '"' => (TokenKind::Name, quoted(rest, '"')?),
            '\'' => (TokenKind::Text, quoted(rest, '\'')?),
            '/' if matches!(before, "=~" | "!~" | ",") || before.eq_ignore_ascii_case("from") => {
                (TokenKind::Regex, quoted(rest, '/')?)
            }
            '0'..='9' => (TokenKind::Number, run(&is_word)),
            c if c.is_alphabetic() || c == '_' => (TokenKind::Word, run(&is_word)),
            '(' | ')' | ',' | '.' | ';' | '*' | '+' => (TokenKind::Sign, 1),
            '-' if !rest.starts_with("--") => (TokenKind::Sign, 1),
            '<' | '>' | '=' | '!' => (TokenKind::Sign, run(&|c| "<>=!~".contains(c))),
            _ => return None,
        };
        let at = text.len().checked_sub(rest.len())?;
        let (piece, behind) = rest.split_at_checked(len)?;
        depth = if piece == ")" { depth.checked_sub(1)? } else { depth };
        tokens.push(Token { kind, text: piece, span: at..at.checked_add(len)?, depth });
        depth = depth.checked_add(usize::from(piece == "("))?;
        rest = behind;
    }
    (depth == 0 && !tokens.is_empty()).then_some(tokens)
}

/// The length of a quoted token with its quotes; a backslash escapes the next character.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at.checked_add(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grafana_statements_are_parsed() {
        let text = "SELECT mean(\"load\"), count(n) AS \"how many\" FROM \"rp\".\"cpu\" WHERE (\"host\" =~ /^(a|b c)$/ OR dc = 'time > 1') \
                    AND time >= 1700000000000ms and time <= 1700003600000ms GROUP BY time(1m), \"host\", dc fill(null);";
        let statement = Statement::parse(text).unwrap();
        assert_eq!(statement.range_ns, (1_700_000_000_000_000_000, 1_700_003_600_000_000_000));
        assert_eq!(statement.interval_ns, 60_000_000_000);
        assert_eq!(statement.fills, Some(vec!["null", "0"]));
        let moved = statement.for_range((5, 9));
        assert!(moved.contains("AND time >= 5 and time <= 9 GROUP BY"), "{moved}");
        assert_eq!(Statement::parse(&moved).unwrap().range_ns, (5, 9));
        assert_eq!(Statement::parse(&moved).unwrap().key(), statement.key());
        let other = "select max(v) from m where time < 20s and \"time\" > 1000u group by time(1h30m) fill(none)";
        let statement = Statement::parse(other).unwrap();
        assert_eq!(statement.range_ns, (1_000_001, 19_999_999_999));
        assert_eq!((statement.interval_ns, statement.fills.is_none()), (5_400_000_000_000, true));
    }

    #[test]
    fn all_else_is_passed_on() {
        let good = "SELECT mean(v) FROM m WHERE time >= 1s AND time < 9s GROUP BY time(1s)";
        assert!(Statement::parse(good).is_some());
        for (from, to) in [
            ("mean(v)", "derivative(mean(v))"),
            ("mean(v)", "mean(v) * 2"),
            ("mean(v)", "mean(*)"),
            ("mean(v)", "v"),
            ("mean(v)", "percentile(v, 90)"),
            ("mean(v)", "top(v, 2)"),
            ("mean(v)", "mean(v) INTO n"),
            ("FROM m", "FROM (SELECT v FROM m)"),
            ("FROM m", "INTO n FROM m"),
            ("time >= 1s AND ", ""),
            ("time >= 1s", "time >= now() - 1h"),
            ("time >= 1s", "time >= '2026-01-01T00:00:00Z'"),
            ("time >= 1s", "time >= 1s + 1s"),
            ("time >= 1s", "time = 1s"),
            ("time >= 1s", "time >= 1s AND time >= 2s"),
            ("time >= 1s", "(time >= 1s)"),
            ("time >= 1s AND", "a = 'b' OR time >= 1s AND"),
            ("time < 9s", "time < 1s"),
            ("time(1s)", "time(1s, 500ms)"),
            ("time(1s)", "host"),
            ("time(1s)", "time(1s), *"),
            ("time(1s)", "time(1s), /h/"),
            ("time(1s)", "time(1s) fill(previous)"),
            ("time(1s)", "time(1s) fill(0)"),
            ("time(1s)", "time(1s) ORDER BY time DESC"),
            ("time(1s)", "time(1s) LIMIT 3"),
            ("time(1s)", "time(1s) fill(none) LIMIT 3"),
            ("time(1s)", "time(1s) tz('Europe/Berlin')"),
            ("time(1s)", "time(1s); DROP DATABASE d"),
            ("time(1s)", "time(1s) -- a remark"),
            ("time(1s)", "time($interval)"),
            ("SELECT", "EXPLAIN SELECT"),
        ] {
            let text = good.replacen(from, to, 1);
            assert!(text != good && Statement::parse(&text).is_none(), "{text}");
        }
        for text in ["", "SHOW DATABASES", "SELECT mean(v) FROM m GROUP BY time(1s)", "\"", "(("] {
            assert!(Statement::parse(text).is_none(), "{text}");
        }
    }
}
