//! Translates regular expressions from Go's syntax, which Prometheus uses, to that of the regex
//! crate. The two accept different patterns, and some patterns have another meaning.
//!
//! One pass without recursion checks the pattern as Go 1.25 and later do, with Go's messages, and
//! writes every element in a form that has the same meaning in the regex crate. It takes linear
//! time. A few differences remain: of several groups of one name only the first has it,
//! and groups nest up to [`NEST_MAX`].

use std::borrow::Cow;
use std::collections::HashSet;

use regex_syntax::is_meta_character;

use crate::excerpt;
use crate::go_classes::{POSIX_CLASSES, unicode_class};

/// Groups nest up to this depth: parsing and compiling recurse over them.
pub(crate) const NEST_MAX: u32 = 100;
/// The largest count of a repetition, and the largest product of nested ones.
const REPEAT_MAX: u32 = 1_000;
/// A class without members, which a class in brackets may contain.
const NOTHING: &str = "[0&&1]";
const ANYTHING: &str = r"[\x{0}-\x{10FFFF}]";

/// The name that a group of Go, such as `1a`, has in a translated pattern: the regex crate allows
/// no digit in front. No name of Go contains a dot.
pub fn rust_group_name(name: &str) -> Cow<'_, str> {
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        Cow::Owned(format!("_.{name}"))
    } else {
        Cow::Borrowed(name)
    }
}

/// The use of a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatternUse {
    /// It matches anywhere in a text.
    Anywhere,
    /// It must match whole values. It is parsed alone first, then between [`START`] and [`END`].
    Matcher,
    /// It must match whole values. It is parsed between [`START`] and [`END`] only, so that
    /// messages contain them.
    Relabelling,
}

/// The text in front of patterns that match whole values.
pub(crate) const START: &str = "^(?s:";
/// The text behind patterns that match whole values.
pub(crate) const END: &str = ")$";

/// The pattern for the regex crate, without [`START`] and [`END`].
///
/// # Errors
/// Go's message, in one line.
pub(crate) fn translate(pattern: &str, usage: PatternUse) -> Result<String, String> {
    let (start, end) = if usage == PatternUse::Relabelling { (START, END) } else { ("", "") };
    let mut translator = Translator {
        pattern,
        usage,
        start,
        end,
        out: String::with_capacity(pattern.len()),
        flags: String::new(),
        open: Vec::new(),
        group: Group::default(),
        wrap_count: 0,
        has_no_named_class: false,
        ends_quoted: false,
        names: HashSet::new(),
    };
    translator.run()?;
    Ok(translator.out)
}

/// The state of a group, or of the whole pattern.
#[derive(Default)]
struct Group {
    /// The element that a repetition repeats.
    last: Option<Element>,
    /// The largest product of nested repetitions in it.
    repeats: u32,
    /// The flag `U`: whether repetitions take as little as possible, those with `?` as much.
    is_swapped: bool,
}

struct Element {
    out_start: usize,
    is_repeated: bool,
    /// The flag `U` in front of it.
    is_swapped: bool,
    /// The product of its nested repetitions.
    repeats: u32,
}

struct Translator<'p> {
    pattern: &'p str,
    usage: PatternUse,
    /// The texts beside the pattern in messages.
    start: &'p str,
    end: &'p str,
    out: String,
    /// Changes of flags behind the last element. They are written before the next one, because a
    /// repetition behind them repeats that element.
    flags: String,
    open: Vec<Group>,
    group: Group,
    wrap_count: u32,
    /// No `:]` follows. It is searched once, so that all searches take linear time.
    has_no_named_class: bool,
    /// The pattern ends within `\Q`.
    ends_quoted: bool,
    /// The names of groups.
    names: HashSet<&'p str>,
}

type Fault = String;

fn fault(reason: &str, fragment: &str) -> Fault {
    format!("{reason}: `{}`", excerpt(fragment))
}

/// The part of `text` in front of `rest`, which is its end.
fn before<'p>(text: &'p str, rest: &str) -> &'p str {
    text.get(..text.len().saturating_sub(rest.len())).unwrap_or(text)
}

/// The first character and the text behind it.
fn next(text: &str) -> Option<(char, &str)> {
    let mut chars = text.chars();
    Some((chars.next()?, chars.as_str()))
}

impl<'p> Translator<'p> {
    fn run(&mut self) -> Result<(), Fault> {
        let mut rest = self.pattern;
        // The text from the repetition that has just been read.
        let mut last_repetition = None;
        while let Some((first, after)) = next(rest) {
            let mut repetition = None;
            rest = match first {
                '(' if after.starts_with('?') => self.perl_group(rest)?,
                '(' => {
                    self.open_group("(", None, rest)?;
                    after
                }
                ')' => {
                    self.close_group()?;
                    after
                }
                '|' => {
                    self.end_element();
                    self.write_flags();
                    self.out.push('|');
                    after
                }
                '^' | '$' | '.' => self.element(after, |out| out.push(first)),
                '[' => self.class(rest)?,
                '*' | '+' | '?' => {
                    repetition = Some(rest);
                    self.repeat(rest, after, None, last_repetition)?
                }
                '{' => match Counts::parse(rest) {
                    Some((counts, after)) => {
                        repetition = Some(rest);
                        self.repeat(rest, after, Some(counts), last_repetition)?
                    }
                    None => self.literal('{', after),
                },
                '\\' => self.escape(rest)?,
                _ => self.literal(first, after),
            };
            last_repetition = repetition;
        }
        let reason = "missing closing )";
        if !self.open.is_empty() {
            return Err(self.whole_fault(reason));
        }
        if self.ends_quoted && self.usage != PatternUse::Anywhere {
            // The quotation contains END.
            return Err(format!("{reason}: `{START}{}{END}`", excerpt(self.pattern)));
        }
        Ok(())
    }

    fn whole_fault(&self, reason: &str) -> Fault {
        let Translator { pattern, start, end, .. } = self;
        format!("{reason}: `{start}{}{end}`", excerpt(pattern))
    }

    /// A fault in the pattern from `text` to its end.
    fn fault_to_end(&self, reason: &str, text: &str) -> Fault {
        format!("{reason}: `{}{}`", excerpt(text), self.end)
    }

    fn write_flags(&mut self) {
        self.out.push_str(&self.flags);
        self.flags.clear();
    }

    fn end_element(&mut self) {
        if let Some(last) = self.group.last.take() {
            self.group.repeats = self.group.repeats.max(last.repeats);
        }
    }

    fn begin_element(&mut self) {
        self.end_element();
        self.write_flags();
        let (out_start, is_swapped) = (self.out.len(), self.group.is_swapped);
        self.group.last = Some(Element { out_start, is_repeated: false, is_swapped, repeats: 1 });
    }

    fn element<'t>(&mut self, after: &'t str, write: impl FnOnce(&mut String)) -> &'t str {
        self.begin_element();
        write(&mut self.out);
        after
    }

    fn literal<'t>(&mut self, literal: char, after: &'t str) -> &'t str {
        self.element(after, |out| push_literal(out, literal))
    }

    fn open_group(&mut self, text: &str, swap: Option<bool>, rest: &str) -> Result<(), Fault> {
        if self.open.len() >= NEST_MAX as usize {
            return Err(self.fault_to_end("expression nests too deeply", rest));
        }
        self.begin_element();
        self.out.push_str(text);
        let is_swapped = swap.unwrap_or(self.group.is_swapped);
        let inner = Group { is_swapped, ..Group::default() };
        self.open.push(std::mem::replace(&mut self.group, inner));
        Ok(())
    }

    fn close_group(&mut self) -> Result<(), Fault> {
        let Some(outer) = self.open.pop() else {
            return Err(self.whole_fault("unexpected )"));
        };
        self.end_element();
        // Flags end with their group.
        self.flags.clear();
        self.out.push(')');
        let repeats = self.group.repeats.max(1);
        self.group = outer;
        if let Some(last) = &mut self.group.last {
            last.repeats = repeats;
        }
        Ok(())
    }

    /// `(?P<name>`, `(?<name>`, `(?i:` or `(?i)`.
    fn perl_group(&mut self, rest: &'p str) -> Result<&'p str, Fault> {
        let named = rest.strip_prefix("(?P<").filter(|name| !name.is_empty());
        let short = rest.strip_prefix("(?<").filter(|name| !name.is_empty());
        if let Some(inside) = named.or(short) {
            let invalid = "invalid named capture";
            let Some((name, after)) = inside.split_once('>') else {
                return Err(self.fault_to_end(invalid, rest));
            };
            let is_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(fault(invalid, before(rest, after)));
            }
            // Go allows several groups of one name; the regex crate does not.
            let opening = match self.names.insert(name) {
                true => format!("(?P<{}>", rust_group_name(name)),
                false => "(".to_owned(),
            };
            self.open_group(&opening, None, rest)?;
            return Ok(after);
        }
        let mut flags = Flags::default();
        let mut after = rest.get(2..).unwrap_or_default();
        loop {
            let Some((c, behind)) = next(after) else {
                return Err(self.fault_to_end("invalid or unsupported Perl syntax", rest));
            };
            after = behind;
            match c {
                ':' if flags.is_complete() => {
                    self.open_group(&format!("(?{}:", flags.text()), flags.swap(), rest)?;
                    return Ok(after);
                }
                ')' if flags.is_complete() => {
                    let text = flags.text();
                    if !text.is_empty() {
                        self.flags.push_str(&format!("(?{text})"));
                    }
                    self.group.is_swapped = flags.swap().unwrap_or(self.group.is_swapped);
                    return Ok(after);
                }
                c if flags.take(c) => {}
                _ => {
                    let fragment = before(rest, after);
                    return Err(fault("invalid or unsupported Perl syntax", fragment));
                }
            }
        }
    }

    /// Repeats the last element. `rest` begins with the operator, `after` is behind it.
    fn repeat(
        &mut self,
        rest: &'p str,
        after: &'p str,
        counts: Option<Counts>,
        last_repetition: Option<&'p str>,
    ) -> Result<&'p str, Fault> {
        let invalid_count = "invalid repeat count";
        if counts.is_some_and(|counts| !counts.are_valid()) {
            return Err(fault(invalid_count, before(rest, after)));
        }
        let kind = before(rest, after);
        let lazy = after.strip_prefix('?');
        let after = lazy.unwrap_or(after);
        if let Some(last) = last_repetition {
            return Err(fault("invalid nested repetition operator", before(last, after)));
        }
        let operator = before(rest, after);
        let Some(last) = &mut self.group.last else {
            return Err(fault("missing argument to repetition operator", operator));
        };
        if let Some(counts) = counts {
            last.repeats = counts.product(last.repeats);
            if last.repeats > REPEAT_MAX {
                return Err(fault(invalid_count, operator));
            }
        }
        if std::mem::replace(&mut last.is_repeated, true) {
            // Only flags or an empty quotation are between the two: `a*(?i)*`.
            self.wrap_count += 1;
            if self.wrap_count > NEST_MAX {
                return Err(self.fault_to_end("expression nests too deeply", rest));
            }
            self.out.insert_str(last.out_start, "(?:");
            self.out.push(')');
        }
        self.out.push_str(kind);
        // Flags between the two apply to the repetition, but are written behind it: `a(?U)*`.
        if lazy.is_some() != (last.is_swapped != self.group.is_swapped) {
            self.out.push('?');
        }
        Ok(after)
    }

    /// Reads an escape sequence outside of classes.
    fn escape(&mut self, rest: &'p str) -> Result<&'p str, Fault> {
        let after = rest.get(1..).unwrap_or_default();
        if let Some(quoted) = after.strip_prefix('Q') {
            let (text, after) = quoted.split_once("\\E").unwrap_or_else(|| {
                self.ends_quoted = true;
                (quoted, "")
            });
            for c in text.chars() {
                self.literal(c, after);
            }
            return Ok(after);
        }
        if let Some((c @ ('A' | 'z' | 'b' | 'B'), after)) = next(after) {
            return Ok(self.element(after, |out| match c {
                'A' => out.push_str(r"\A"),
                'z' => out.push_str(r"\z"),
                'b' => out.push_str(r"(?-u:\b)"),
                _ => out.push_str(r"(?-u:\B)"),
            }));
        }
        if let Some((class, after)) = self.class_escape(rest)? {
            return Ok(self.element(after, |out| out.push_str(&class)));
        }
        let (code, after) = self.character_escape(rest)?;
        Ok(match char::from_u32(code) {
            Some(c) => self.literal(c, after),
            // A surrogate: no text contains it.
            None => self.element(after, |out| out.push_str(NOTHING)),
        })
    }

    /// Reads `\d`, `\pL` or `\p{Greek}`.
    fn class_escape(&self, rest: &'p str) -> Result<Option<(Cow<'static, str>, &'p str)>, Fault> {
        let Some((letter, after)) = rest.strip_prefix('\\').and_then(next) else {
            return Ok(None);
        };
        let perl = match letter {
            'd' => "[0-9]",
            'D' => "[^0-9]",
            's' => r"[\t\n\f\r ]",
            'S' => r"[^\t\n\f\r ]",
            'w' => "[0-9A-Za-z_]",
            'W' => "[^0-9A-Za-z_]",
            'p' | 'P' => {
                let (name, after) = match after.strip_prefix('{') {
                    Some(inside) => inside
                        .split_once('}')
                        .ok_or_else(|| self.fault_to_end("invalid character class range", rest))?,
                    None => match next(after) {
                        Some((_, behind)) => (before(after, behind), behind),
                        None => ("", ""),
                    },
                };
                let positive = name.strip_prefix('^');
                let is_negated = (letter == 'P') != positive.is_some();
                let Some(class) = unicode_class(positive.unwrap_or(name), is_negated) else {
                    let fragment = before(rest, after);
                    return Err(fault("invalid character class range", fragment));
                };
                return Ok(Some((Cow::Owned(class), after)));
            }
            _ => return Ok(None),
        };
        Ok(Some((Cow::Borrowed(perl), after)))
    }

    /// Reads an escape sequence of one character.
    fn character_escape(&self, rest: &'p str) -> Result<(u32, &'p str), Fault> {
        let Some((c, mut after)) = rest.strip_prefix('\\').and_then(next) else {
            return Err(match self.usage {
                PatternUse::Relabelling => self.whole_fault("missing closing )"),
                _ => fault("trailing backslash at end of expression", ""),
            });
        };
        let code = match c {
            '0'..='7' if c == '0' || after.starts_with(|c| matches!(c, '0'..='7')) => {
                let digits = rest.get(1..).unwrap_or_default();
                let is_octal = |b: u8| matches!(b, b'0'..=b'7');
                let count = digits.bytes().take(3).take_while(|&b| is_octal(b)).count();
                let (digits, behind) = digits.split_at_checked(count).unwrap_or((digits, ""));
                after = behind;
                u32::from_str_radix(digits, 8).ok()
            }
            'x' => {
                let (code, behind) = hexadecimal(after);
                after = behind;
                code
            }
            'a' => Some(7),
            'f' => Some(12),
            'n' => Some(10),
            'r' => Some(13),
            't' => Some(9),
            'v' => Some(11),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(u32::from(c)),
            _ => None,
        };
        let code = code.ok_or_else(|| fault("invalid escape sequence", before(rest, after)))?;
        Ok((code, after))
    }

    /// Reads a class in brackets.
    fn class(&mut self, whole: &'p str) -> Result<&'p str, Fault> {
        let mut rest = whole.get(1..).unwrap_or_default();
        let negated = rest.strip_prefix('^');
        rest = negated.unwrap_or(rest);
        let mut members = String::new();
        let mut is_first = true;
        while is_first || !rest.starts_with(']') {
            is_first = false;
            if let Some((class, after)) = self.named_class(rest)? {
                members.push_str(class);
                rest = after;
                continue;
            }
            if let Some((class, after)) = self.class_escape(rest)? {
                members.push_str(&class);
                rest = after;
                continue;
            }
            let (low, after) = self.class_character(rest, whole)?;
            let mut high = low;
            let mut end = after;
            if let Some(to) = after.strip_prefix('-')
                && !to.is_empty()
                && !to.starts_with(']')
            {
                (high, end) = self.class_character(to, whole)?;
                if high < low {
                    return Err(fault("invalid character class range", before(rest, end)));
                }
            }
            push_range(&mut members, low, high);
            rest = end;
        }
        let after = rest.get(1..).unwrap_or_default();
        Ok(self.element(after, |out| match (members.as_str(), negated) {
            ("", None) => out.push_str(NOTHING),
            ("", Some(_)) => out.push_str(ANYTHING),
            (members, _) => {
                out.push_str(if negated.is_some() { "[^" } else { "[" });
                out.push_str(members);
                out.push(']');
            }
        }))
    }

    fn class_character(&self, rest: &'p str, whole: &'p str) -> Result<(u32, &'p str), Fault> {
        match next(rest) {
            None => Err(self.fault_to_end("missing closing ]", whole)),
            Some(('\\', _)) => self.character_escape(rest),
            Some((c, after)) => Ok((u32::from(c), after)),
        }
    }

    /// Reads `[:alpha:]` in a class.
    fn named_class(&mut self, rest: &'p str) -> Result<Option<(&'p str, &'p str)>, Fault> {
        let Some(inside) = rest.strip_prefix("[:").filter(|_| !self.has_no_named_class) else {
            return Ok(None);
        };
        let Some((name, after)) = inside.split_once(":]") else {
            self.has_no_named_class = true;
            return Ok(None);
        };
        let class = before(rest, after);
        if POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            Ok(Some((class, after)))
        } else {
            Err(fault("invalid character class range", class))
        }
    }
}

/// `7F` or `{10FFFF}` behind `\x`; the text behind it.
fn hexadecimal(text: &str) -> (Option<u32>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else {
        let mut code = Some(0);
        let mut rest = text;
        for _ in 0..2 {
            let (digit, after) = next(rest).unwrap_or((' ', ""));
            code = code.zip(digit.to_digit(16)).map(|(code, digit)| code * 16 + digit);
            rest = after;
        }
        return (code, rest);
    };
    let mut code = None;
    while let Some((digit, after)) = next(rest) {
        rest = after;
        if digit == '}' {
            return (code, rest);
        }
        let so_far: u32 = code.unwrap_or_default();
        code = digit.to_digit(16).map(|digit| so_far * 16 + digit);
        if code.is_none_or(|code| code > u32::from(char::MAX)) {
            return (None, rest);
        }
    }
    (None, rest)
}

/// The counts of `{2}`, `{2,}` or `{2,3}`.
#[derive(Clone, Copy)]
struct Counts {
    min: u32,
    max: Option<u32>,
}

impl Counts {
    /// The counts in front of `text`, and the text behind them. All else in braces is literal.
    fn parse(text: &str) -> Option<(Counts, &str)> {
        let (min, after) = number(text.strip_prefix('{')?)?;
        if let Some(after) = after.strip_prefix('}') {
            return Some((Counts { min, max: Some(min) }, after));
        }
        let after = after.strip_prefix(',')?;
        if let Some(after) = after.strip_prefix('}') {
            return Some((Counts { min, max: None }, after));
        }
        let (max, after) = number(after)?;
        Some((Counts { min, max: Some(max) }, after.strip_prefix('}')?))
    }

    fn are_valid(self) -> bool {
        let max = self.max.unwrap_or(self.min);
        self.min <= max && max <= REPEAT_MAX
    }

    /// The product of nested repetitions with this one outside of `inner`.
    fn product(self, inner: u32) -> u32 {
        match self.max {
            // Nothing is compiled.
            Some(0) => 1,
            max => inner.saturating_mul(max.unwrap_or(self.min).max(1)),
        }
    }
}

/// A number without leading zeros.
fn number(text: &str) -> Option<(u32, &str)> {
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = before(text, after);
    let is_number = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
    is_number.then(|| (digits.parse().unwrap_or(u32::MAX), after))
}

/// The flags of `(?im-s)`. The last change of a flag counts; the regex crate allows only one.
#[derive(Default)]
struct Flags {
    changes: [Option<bool>; FLAGS.len()],
    is_off: bool,
    has_flag: bool,
}

const FLAGS: [char; 4] = ['i', 'm', 's', 'U'];

impl Flags {
    /// Whether `c` is a flag, or the dash in front of the flags that are switched off.
    fn take(&mut self, c: char) -> bool {
        if c == '-' {
            self.has_flag = false;
            return !std::mem::replace(&mut self.is_off, true);
        }
        let mut of_flags = self.changes.iter_mut().zip(FLAGS);
        let Some((change, _)) = of_flags.find(|(_, flag)| *flag == c) else {
            return false;
        };
        *change = Some(!self.is_off);
        self.has_flag = true;
        true
    }

    /// The change of the flag `U`.
    fn swap(&self) -> Option<bool> {
        let mut changes = self.changes.iter().zip(FLAGS);
        changes.find(|(_, flag)| *flag == 'U').and_then(|(change, _)| *change)
    }

    fn is_complete(&self) -> bool {
        self.has_flag || !self.is_off
    }

    fn text(&self) -> String {
        let of = |is_on: bool| {
            let changes = self.changes.iter().zip(FLAGS);
            changes.filter(move |(change, _)| **change == Some(is_on)).map(|(_, flag)| flag)
        };
        let mut text: String = of(true).collect();
        if of(false).next().is_some() {
            text.push('-');
            text.extend(of(false));
        }
        text
    }
}

fn push_literal(out: &mut String, literal: char) {
    if is_meta_character(literal) {
        out.push('\\');
    }
    out.push(literal);
}

/// Writes a range of a class without surrogates, which no text contains.
fn push_range(members: &mut String, low: u32, high: u32) {
    let low = char::from_u32(low).unwrap_or('\u{E000}');
    let high = char::from_u32(high).unwrap_or('\u{D7FF}');
    if low > high {
        return;
    }
    push_literal(members, low);
    if low < high {
        members.push('-');
        push_literal(members, high);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{MatchOp, Matcher};

    /// The values of the numbers in `go_patterns.tsv`.
    const TEXTS: [&str; 50] = [
        "",
        "a",
        "b",
        "A",
        "ab",
        "aa",
        "aab",
        "aaa",
        "é",
        "aé",
        "éa",
        "α",
        "Σ",
        "ς",
        "k",
        "\u{212a}",
        "s",
        "ſ",
        "1",
        "٣",
        "_",
        "-",
        "&",
        "~",
        "<",
        "<a>",
        "b]",
        "[b",
        "a]",
        "\n",
        "a\nb",
        "a b",
        "{start}a",
        "a{end}",
        "a{,2}",
        "a{02}",
        "a.b",
        "(",
        "ß",
        "aA",
        "ba",
        "\u{a0}",
        "\u{7}",
        "c",
        "#",
        "abc",
        "\\",
        "bb",
        "\0",
        "\u{10FFFF}",
    ];

    /// Found by comparing with Prometheus: Go refused patterns that were accepted, and accepted
    /// refused ones. Each line of the table has a pattern, and Go's error or the texts that it
    /// matches. It was recorded with Go 1.26.
    #[test]
    fn patterns_have_the_verdicts_of_go() {
        let mut differences = Vec::new();
        for line in include_str!("go_patterns.tsv").lines() {
            let (pattern, wanted) = line.split_once('\t').unwrap();
            let verdict = match Matcher::new("a", MatchOp::Regex, pattern) {
                Err(error) => {
                    let error = error.to_string();
                    error.strip_prefix("error parsing regexp: ").unwrap_or(&error).to_owned()
                }
                Ok(matcher) => {
                    let is_match = |text: &&str| matcher.matches(text);
                    let matched = TEXTS.iter().enumerate().filter(|(_, text)| is_match(text));
                    let matched: Vec<_> = matched.map(|(idx, _)| idx.to_string()).collect();
                    format!("= {}", matched.join(" "))
                }
            };
            if verdict != wanted {
                differences.push(format!("{pattern}\n  Go: {wanted}\n  we: {verdict}"));
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    #[test]
    fn hostile_patterns_take_linear_time() {
        for piece in
            ["[[:", "[[:a", "(?i)*", "a*(?i)*", "(?i)", "\\Q", "\\Q\\E", "(", "(?<a>", "{1,", "a?"]
        {
            let pattern = piece.repeat((256 << 10) / piece.len());
            for pattern in [format!("a{pattern}"), format!("[{pattern}"), format!("(b{pattern})")] {
                let _ = translate(&pattern, PatternUse::Anywhere);
            }
        }
    }

    proptest! {
        #[test]
        fn translated_patterns_are_patterns_of_rust(
            pattern in concat!(
                r"([a.é1<&~\-]|[*+?|^$]|[(]([?](:|i[)]|P?<[a-c1][0-9]?>))?|\)|\[\^?|\]",
                r"|\\[\PC]|\{[0-3],?[0-3]?\}|\\Q|\\E){0,12}",
            ),
        ) {
            let usages = [PatternUse::Anywhere, PatternUse::Matcher, PatternUse::Relabelling];
            for translated in usages.map(|usage| translate(&pattern, usage)).into_iter().flatten() {
                let mut parser = regex_syntax::ParserBuilder::new().utf8(false).build();
                let parsed = parser.parse(&translated);
                prop_assert!(parsed.is_ok(), "{} {:?}", translated, parsed);
            }
        }
    }
}
