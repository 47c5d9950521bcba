//! Scripts: text to commands.

use firn_promql::notation::SeriesLine;
use firn_promql::test_util::{parse_duration_ms, parse_number, unquote};

use regex::Regex;

/// A command with its first line.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) kind: CommandKind,
}

#[derive(Debug)]
pub(super) enum CommandKind {
    Clear,
    Load { step_ms: i64, folds_buckets: bool, series: Vec<SeriesLine> },
    Eval(Box<Case>),
}

/// The evaluation times of a case's query.
#[derive(Clone, Copy, Debug)]
pub(super) enum EvalTime {
    Instant(i64),
    Range { start: i64, end: i64, step_ms: i64 },
}

/// A pattern for an error message or an annotation.
#[derive(Debug)]
pub(super) enum TextPattern {
    Any,
    Equal(String),
    Found(Regex),
}

impl TextPattern {
    pub(super) fn fits(&self, text: &str) -> bool {
        match self {
            TextPattern::Any => true,
            TextPattern::Equal(wanted) => text == wanted,
            TextPattern::Found(regex) => regex.is_match(text),
        }
    }
}

/// A query with its expected result.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) when: EvalTime,
    pub(super) query: String,
    pub(super) fails: Option<TextPattern>,
    pub(super) warnings: Vec<TextPattern>,
    pub(super) infos: Vec<TextPattern>,
    pub(super) no_warnings: bool,
    pub(super) no_infos: bool,
    pub(super) ordered: bool,
    pub(super) text: Option<Vec<u8>>,
    /// Start, end and step of the points of an expected range vector.
    pub(super) range_vector: Option<(i64, i64, i64)>,
    pub(super) scalar: Option<f64>,
    pub(super) series: Vec<SeriesLine>,
}

/// Parses a script.
pub(super) fn parse(text: &str) -> Result<Vec<Command>, String> {
    let lines: Vec<&str> = text.split('\n').map(clean).collect();
    let mut commands = Vec::new();
    let mut next = 0;
    while let Some(head) = lines.get(next) {
        let line = next + 1;
        next += 1;
        if head.is_empty() {
            continue;
        }
        let word = head.split_whitespace().next().unwrap_or("").to_ascii_lowercase();
        if word == "clear" {
            commands.push(Command { line, kind: CommandKind::Clear });
            continue;
        }
        let body_end =
            lines[next..].iter().position(|l| l.is_empty()).unwrap_or(lines.len() - next);
        let body = &lines[next..next + body_end];
        next += body_end;
        let kind = if word.starts_with("load") {
            load(head, &word, body)
        } else if word.starts_with("eval") {
            eval(head, &word, body).map(|case| CommandKind::Eval(Box::new(case)))
        } else {
            Err(format!("unknown command {word:?}"))
        };
        commands.push(Command { line, kind: kind.map_err(|e| format!("line {line}: {e}"))? });
    }
    Ok(commands)
}

/// A line without surrounding blanks; a comment counts as empty.
fn clean(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with('#') { "" } else { line }
}

fn duration(text: &str) -> Result<i64, String> {
    parse_duration_ms(text)
}

fn load(head: &str, word: &str, body: &[&str]) -> Result<CommandKind, String> {
    let step = head.split_whitespace().nth(1).ok_or("load without a step")?;
    let series = body.iter().map(|line| SeriesLine::parse(line)).collect::<Result<_, _>>()?;
    let folds_buckets = word == "load_with_nhcb";
    Ok(CommandKind::Load { step_ms: duration(step)?, folds_buckets, series })
}

/// The first word, and the remaining text.
fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

fn expect_word<'a>(text: &'a str, word: &str) -> Result<&'a str, String> {
    let (first, rest) = split_word(text);
    if first.eq_ignore_ascii_case(word) { Ok(rest) } else { Err(format!("expected {word:?}")) }
}

fn eval(head: &str, word: &str, body: &[&str]) -> Result<Case, String> {
    let (_, rest) = split_word(head);
    let (kind, rest) = split_word(rest);
    let (when, query) = match kind {
        "instant" => {
            let (time, query) = split_word(expect_word(rest, "at")?);
            (EvalTime::Instant(duration(time)?), query)
        }
        "range" => {
            let (start, rest) = split_word(expect_word(rest, "from")?);
            let (end, rest) = split_word(expect_word(rest, "to")?);
            let (step, query) = split_word(expect_word(rest, "step")?);
            let (start, end) = (duration(start)?, duration(end)?);
            (EvalTime::Range { start, end, step_ms: duration(step)? }, query)
        }
        other => return Err(format!("eval {other:?}?")),
    };
    let mut case = Case {
        when,
        query: query.trim().to_owned(),
        fails: (word == "eval_fail").then_some(TextPattern::Any),
        warnings: if word == "eval_warn" { vec![TextPattern::Any] } else { Vec::new() },
        infos: if word == "eval_info" { vec![TextPattern::Any] } else { Vec::new() },
        no_warnings: false,
        no_infos: false,
        ordered: word == "eval_ordered",
        text: None,
        range_vector: None,
        scalar: None,
        series: Vec::new(),
    };
    for line in body {
        if !case.body_line(line)? {
            break;
        }
    }
    Ok(case)
}

impl Case {
    /// Parses one line; returns whether the block continues.
    fn body_line(&mut self, line: &str) -> Result<bool, String> {
        let (first, rest) = split_word(line);
        match first {
            "expected_fail_message" => {
                self.fails = Some(TextPattern::Equal(rest.trim().to_owned()));
                return Ok(false);
            }
            "expected_fail_regexp" => {
                self.fails = Some(TextPattern::Found(regex(rest)?));
                return Ok(false);
            }
            "expect" => {
                self.expectation(rest.trim())?;
                return Ok(true);
            }
            _ => {}
        }
        if self.series.is_empty()
            && rest.is_empty()
            && let Some(value) = go_number(line)
        {
            self.scalar = Some(value);
            return Ok(false);
        }
        self.series.push(SeriesLine::parse(line)?);
        Ok(true)
    }

    fn expectation(&mut self, text: &str) -> Result<(), String> {
        let (kind, rest) = split_word(text);
        let rest = rest.trim();
        // `fail msg: ...` may also be written `fail msg:...`.
        let wording = || -> Result<TextPattern, String> {
            if let Some(wanted) = rest.strip_prefix("msg:") {
                return Ok(TextPattern::Equal(wanted.trim().to_owned()));
            }
            match rest.strip_prefix("regex:") {
                Some(pattern) => Ok(TextPattern::Found(regex(pattern)?)),
                None => Ok(TextPattern::Any),
            }
        };
        match kind {
            "fail" => self.fails = Some(wording()?),
            "warn" => self.warnings.push(wording()?),
            "info" => self.infos.push(wording()?),
            "no_warn" => self.no_warnings = true,
            "no_info" => self.no_infos = true,
            "ordered" => self.ordered = true,
            "string" => {
                self.text = Some(unquote(rest).ok_or_else(|| format!("bad string {rest}"))?);
            }
            "range" => {
                let rest = expect_word(expect_word(rest, "vector")?, "from")?;
                let (start, rest) = split_word(rest);
                let (end, rest) = split_word(expect_word(rest, "to")?);
                let (step, _) = split_word(expect_word(rest, "step")?);
                self.range_vector = Some((duration(start)?, duration(end)?, duration(step)?));
            }
            other => return Err(format!("unknown expectation {other:?}")),
        }
        Ok(())
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern.trim()).map_err(|error| error.to_string())
}

/// A single number: the expected scalar.
fn go_number(text: &str) -> Option<f64> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let starts_well = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        || ["inf", "nan"].contains(&unsigned.to_ascii_lowercase().as_str());
    let value = starts_well.then(|| parse_number(unsigned).ok())??;
    Some(if negative { -value } else { value })
}
