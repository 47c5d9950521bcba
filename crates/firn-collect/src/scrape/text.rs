//! The text formats: Prometheus 0.0.4 and 1.0.0, and OpenMetrics, as Prometheus' scrape parsers
//! read them.
//!
//! Those parsers check syntax and little more. Unlike Prometheus, leading blanks are ignored and a
//! timestamp of the Prometheus format may have a sign; OpenMetrics is read strictly: one blank
//! between tokens, no empty line, `# EOF` at the end.

use std::borrow::Cow;
use std::ops::Range;

use firn_model::{Error, METRIC_NAME, MetricType, Result, Timestamp, excerpt};

use super::labels::{ExposedLabels, LabelSink};
use super::number::{parse_millis, parse_seconds, parse_value, push_bound, short_value};

/// Texts of one series. They are copied several times before the limits on labels apply to them.
const LABELS_BYTES_MAX: usize = 1 << 20;

/// One line of a body.
#[derive(Debug)]
pub enum Entry<'a> {
    /// A `HELP`, `TYPE` or `UNIT` line: the name of the metric family and the item.
    Metadata(Cow<'a, str>, MetadataItem<'a>),
    /// A sample.
    Sample(SampleLine),
}

/// The content of a metadata line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataItem<'a> {
    /// The help text, unescaped.
    Help(Cow<'a, str>),
    /// The type.
    Type(MetricType),
    /// The unit; empty for none.
    Unit(Cow<'a, str>),
}

/// A sample with the position of its series text.
#[derive(Clone, Debug)]
pub struct SampleLine {
    /// Name and labels as written, as a range of the body.
    pub series: Range<usize>,
    /// Whether the caller knew the text, so that [`Parser::labels`] was not filled.
    pub known: bool,
    /// The value.
    pub value: f64,
    /// The line's own time, milliseconds.
    pub ts: Option<Timestamp>,
    /// Whether an exemplar follows. It is checked and not returned.
    pub exemplar: bool,
}

/// The label that the last `TYPE` line makes a bound: its value is rewritten as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum BoundLabel {
    #[default]
    None = 0,
    /// `le` of a histogram.
    Le = 1,
    /// `quantile` of a summary.
    Quantile = 2,
}

/// Walks a body line by line, without allocation once its buffers have grown.
#[derive(Debug)]
pub struct Parser<'a, L = ExposedLabels> {
    text: &'a [u8],
    at: usize,
    open_metrics: bool,
    /// Whether the text is of [`super::protobuf::to_text`], which has types and units of
    /// OpenMetrics.
    from_protobuf: bool,
    bound_label: BoundLabel,
    labels: L,
    /// A bound as it is rewritten.
    bound: Vec<u8>,
}

/// The length of the series text at the beginning of `rest`: a name, and all between braces. 0 if
/// there is none or it does not end.
pub fn series_len(rest: &[u8]) -> usize {
    let len_of = |start: usize, accept: &dyn Fn(u8) -> bool| {
        let rest = rest.get(start..).unwrap_or(&[]);
        rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len())
    };
    if rest.first().is_none_or(u8::is_ascii_digit) {
        return 0;
    }
    let name_len = len_of(0, &|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
    let mut at = name_len;
    if rest.get(at) != Some(&b'{') {
        return name_len;
    }
    loop {
        at = at.saturating_add(1);
        at = at.saturating_add(len_of(at, &|byte| !matches!(byte, b'"' | b'}' | b'\n')));
        match rest.get(at) {
            Some(b'}') => return at.saturating_add(1),
            Some(b'"') => {}
            _ => return 0,
        }
        loop {
            at = at.saturating_add(1);
            at = at.saturating_add(len_of(at, &|byte| !matches!(byte, b'"' | b'\\')));
            match rest.get(at) {
                Some(b'"') => break,
                Some(_) => at = at.saturating_add(1),
                None => return 0,
            }
        }
    }
}

impl<'a> Parser<'a> {
    /// A parser of a text of [`super::protobuf::to_text`].
    pub(super) fn of_protobuf(text: &'a [u8], labels: ExposedLabels) -> Parser<'a> {
        Parser { from_protobuf: true, ..Parser::new(text, false, labels) }
    }
}

impl<'a, L: LabelSink> Parser<'a, L> {
    /// A parser of `text`, with the buffers of an earlier one.
    pub fn new(text: &'a [u8], open_metrics: bool, labels: L) -> Parser<'a, L> {
        Parser {
            text,
            at: 0,
            open_metrics,
            from_protobuf: false,
            bound_label: BoundLabel::None,
            labels,
            bound: Vec::new(),
        }
    }

    /// Reads the series text at `span` of `text`, the Prometheus format, into `labels`.
    ///
    /// # Errors
    /// As [`Parser::next`].
    pub fn read_series(text: &'a [u8], span: Range<usize>, labels: L) -> Result<()> {
        let text = text.get(..span.end).unwrap_or(text);
        Parser { at: span.start, ..Parser::new(text, false, labels) }.series()
    }

    /// The labels of the last sample whose text the caller did not know.
    pub fn labels(&self) -> &L {
        &self.labels
    }

    /// Returns the buffers.
    pub fn into_labels(self) -> L {
        self.labels
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn bound_label(&self) -> BoundLabel {
        self.bound_label
    }

    /// Steps over lines that the caller has read before, to the state that they lead to.
    pub(super) fn skip_known(&mut self, len: usize, bound_label: BoundLabel) {
        self.step(len);
        self.bound_label = bound_label;
    }

    /// Whether the next line is a comment. Steps over empty lines and leading blanks.
    pub(super) fn at_comment(&mut self) -> bool {
        while !self.open_metrics && matches!(self.peek(), Some(b' ' | b'\t' | b'\n')) {
            self.step(1);
        }
        self.peek() == Some(b'#')
    }

    /// The next line; `None` at the end. `known` receives the rest of the body at a sample and
    /// returns the length of the series text if it recognises one there, else 0.
    ///
    /// # Errors
    /// `Invalid` with the line of the first mistake. The parser must not be used afterwards.
    #[inline]
    pub fn next(&mut self, known: impl FnOnce(&[u8]) -> usize) -> Result<Option<Entry<'a>>> {
        loop {
            if self.at_comment() {
                match self.comment()? {
                    Comment::Ignored => continue,
                    Comment::Item(name, item) => return Ok(Some(Entry::Metadata(name, item))),
                    Comment::Eof => return Ok(None),
                }
            }
            return match self.peek() {
                None if self.open_metrics => Err(self.error("the text does not end with # EOF")),
                None => Ok(None),
                Some(_) => {
                    let rest = self.text.get(self.at..).unwrap_or(&[]);
                    let len = known(rest);
                    self.sample(len).map(|line| Some(Entry::Sample(line)))
                }
            };
        }
    }

    /// The value of a line that begins with a known series text of `known_bytes` bytes, if a
    /// number in the usual form and the end of the line follow. Does not step over other lines.
    #[inline]
    pub(super) fn plain_value(&mut self, known_bytes: usize) -> Option<f64> {
        let rest = self.text.get(self.at.checked_add(known_bytes)?..)?.strip_prefix(b" ")?;
        let (value, len) = short_value(rest)?;
        if known_bytes == 0 || rest.get(len) != Some(&b'\n') {
            return None;
        }
        // The two are the blank and the end of the line.
        self.step(known_bytes.saturating_add(len).saturating_add(2));
        Some(value)
    }

    /// The rest of the body.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or(&[])
    }

    #[inline]
    fn sample(&mut self, known_bytes: usize) -> Result<SampleLine> {
        let start = self.at;
        let known = known_bytes > 0 && self.ends_series(known_bytes);
        if known {
            self.step(known_bytes);
        } else {
            self.series()?;
        }
        let series = start..self.at;
        let value = self.token("a value after the series")?;
        let value = parse_value(value).ok_or_else(|| self.bad_token(value, "a value"))?;
        let mut line = SampleLine { series, known, value, ts: None, exemplar: false };
        if self.take(b'\n') {
            return Ok(line);
        }
        self.rest_of_line(&mut line)?;
        Ok(line)
    }

    /// Whether a known text of `len` bytes at the cursor is all of the series: a blank follows, and
    /// no brace can follow that.
    #[inline]
    fn ends_series(&self, len: usize) -> bool {
        let rest = self.text.get(self.at.saturating_add(len)..).unwrap_or(&[]);
        matches!(rest, [b' ', after, ..] if !matches!(after, b'{' | b' ' | b'\t'))
    }

    /// Time and exemplar.
    fn rest_of_line(&mut self, line: &mut SampleLine) -> Result<()> {
        if self.open_metrics {
            if self.is_exemplar() {
                return self.exemplar(line);
            }
            let text = self.token("a timestamp")?;
            let ts = parse_seconds(text).ok_or_else(|| self.bad_token(text, "a timestamp"))?;
            line.ts = Some(ts);
            if self.is_exemplar() {
                return self.exemplar(line);
            }
        } else {
            self.skip_blanks();
            if !matches!(self.peek(), None | Some(b'\n')) {
                let text = self.token("a timestamp")?;
                let ts = parse_millis(text)
                    .ok_or_else(|| self.bad_token(text, "a timestamp in whole milliseconds"))?;
                line.ts = Some(ts);
                self.skip_blanks();
            }
            if self.peek().is_none() {
                return Ok(());
            }
        }
        self.line_end()
    }

    fn line_end(&mut self) -> Result<()> {
        if self.take(b'\n') {
            return Ok(());
        }
        Err(self.error(format_args!("expected the end of the line, got {}", self.found())))
    }

    fn is_exemplar(&self) -> bool {
        self.text.get(self.at..).is_some_and(|rest| rest.starts_with(b" # {"))
    }

    /// ` # {labels} value [timestamp]`.
    fn exemplar(&mut self, line: &mut SampleLine) -> Result<()> {
        self.step(4);
        self.labels_of_exemplar()?;
        let text = self.token("a value of the exemplar")?;
        parse_value(text).ok_or_else(|| self.bad_token(text, "a value"))?;
        if self.peek() == Some(b' ') {
            let text = self.token("a timestamp of the exemplar")?;
            parse_seconds(text).ok_or_else(|| self.bad_token(text, "a timestamp"))?;
        }
        line.exemplar = true;
        self.line_end()
    }

    /// Behind the brace. Names are not quoted here.
    fn labels_of_exemplar(&mut self) -> Result<()> {
        loop {
            if self.take(b'}') {
                return Ok(());
            }
            self.plain_label_name()?;
            self.equals("a label of an exemplar")?;
            self.quoted_span("a label value", false)?;
            if !self.take(b',') && self.peek() != Some(b'}') {
                return Err(self.error("expected `,` or `}` after a label"));
            }
        }
    }

    /// A token behind a blank: one in OpenMetrics; any number, also none, in the other format.
    #[inline]
    fn token(&mut self, name: &str) -> Result<&'a [u8]> {
        if self.open_metrics {
            if !self.take(b' ') {
                return Err(self.error(format_args!("expected {name}, got {}", self.found())));
            }
        } else {
            self.skip_blanks();
        }
        let open_metrics = self.open_metrics;
        let token = self.take_while(|byte| {
            !matches!(byte, b' ' | b'\n') && (open_metrics || !matches!(byte, b'\t' | b'{'))
        });
        if token.is_empty() {
            return Err(self.error(format_args!("expected {name}, got {}", self.found())));
        }
        Ok(token)
    }

    /// Reads a name and its braces into [`Parser::labels`].
    fn series(&mut self) -> Result<()> {
        self.labels.clear();
        let name = self.metric_name();
        let name_end = self.at;
        if let Some(name) = name {
            self.push(METRIC_NAME, name)?;
        }
        self.skip_blanks();
        if self.take(b'{') {
            return self.pairs(name.is_some());
        }
        self.at = name_end;
        match name {
            Some(_) => Ok(()),
            None => Err(self.error(format_args!("expected a metric name, got {}", self.found()))),
        }
    }

    /// The pairs behind the brace. A name among them may follow other pairs.
    fn pairs(&mut self, mut has_name: bool) -> Result<()> {
        loop {
            self.skip_blanks();
            if self.take(b'}') {
                break;
            }
            let is_quoted = self.peek() == Some(b'"');
            let name = if is_quoted {
                self.quoted("a name", true)?
            } else {
                Cow::Borrowed(self.plain_label_name()?)
            };
            self.skip_blanks();
            if is_quoted && matches!(self.peek(), Some(b',' | b'}')) {
                if has_name {
                    return Err(self.error("the metric's name is repeated"));
                }
                self.push(METRIC_NAME, &name)?;
                has_name = true;
                if self.take(b'}') {
                    break;
                }
                self.step(1);
                continue;
            }
            self.equals(&name)?;
            self.skip_blanks();
            let value = self.quoted("a label value", false)?;
            if name.is_empty() {
                return Err(self.error("a label has an empty name"));
            }
            let is_bound = match self.bound_label {
                BoundLabel::None => false,
                BoundLabel::Le => name == "le",
                BoundLabel::Quantile => name == "quantile",
            };
            match parse_value(value.as_bytes()).filter(|_| is_bound) {
                Some(bound) => self.push_bound(&name, bound)?,
                None => self.push(&name, &value)?,
            }
            self.skip_blanks();
            // The Prometheus format needs no comma between labels, as Prometheus reads it.
            if !self.take(b',') && self.open_metrics && self.peek() != Some(b'}') {
                return Err(self.error("expected `,` or `}` after a label"));
            }
        }
        if has_name { Ok(()) } else { Err(self.error("a series has no metric name")) }
    }

    fn push_bound(&mut self, name: &str, bound: f64) -> Result<()> {
        let mut text = std::mem::take(&mut self.bound);
        text.clear();
        push_bound(bound, &mut text);
        let pushed = self.push(name, std::str::from_utf8(&text).unwrap_or_default());
        self.bound = text;
        pushed
    }

    /// Adds a pair, unless the labels of the series become too long.
    fn push(&mut self, name: &str, value: &str) -> Result<()> {
        let bytes = self.labels.bytes().saturating_add(name.len()).saturating_add(value.len());
        if bytes > LABELS_BYTES_MAX {
            return Err(self
                .error(format_args!("the labels of a series have over {LABELS_BYTES_MAX} bytes")));
        }
        self.labels.push(name, value);
        Ok(())
    }

    fn equals(&mut self, name: &str) -> Result<()> {
        if self.take(b'=') {
            return Ok(());
        }
        Err(self.error(format_args!("label {:?} has no `=`", excerpt(name))))
    }

    /// A name of letters, digits, `_` and `:`, which is ASCII.
    fn metric_name(&mut self) -> Option<&'a str> {
        if self.peek().is_none_or(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let name = self.take_while(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    fn plain_label_name(&mut self) -> Result<&'a str> {
        let starts = self.peek().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        let name = self.take_while(|b| starts && (b.is_ascii_alphanumeric() || b == b'_'));
        match std::str::from_utf8(name) {
            Ok(name) if starts => Ok(name),
            _ => {
                Err(self.error(format_args!("expected a label name or `}}`, got {}", self.found())))
            }
        }
    }

    /// A quoted text, unescaped: `\\`, `\"` and `\n`; another `\x` stays as it is.
    fn quoted(&mut self, name: &str, is_name: bool) -> Result<Cow<'a, str>> {
        let inner = self.quoted_span(name, is_name)?;
        Ok(unescape(inner, true))
    }

    /// The text between quotes. Zero bytes are allowed in values only, line ends in the Prometheus
    /// format and in names.
    fn quoted_span(&mut self, name: &str, is_name: bool) -> Result<&'a str> {
        if !self.take(b'"') {
            let found = self.found();
            return Err(self.error(format_args!("expected {name} in quotes, got {found}")));
        }
        let start = self.at;
        loop {
            self.take_while(|byte| !matches!(byte, b'"' | b'\\' | b'\n' | 0));
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    self.step(1);
                    if self.peek().is_none_or(|byte| byte == b'\n') {
                        return Err(self.error("a quoted text is not closed"));
                    }
                    self.step(1);
                }
                Some(b'\n') if is_name || !self.open_metrics => self.step(1),
                Some(0) if !is_name => self.step(1),
                Some(0) => return Err(self.error("a name contains a zero byte")),
                _ => return Err(self.error("a quoted text is not closed")),
            }
        }
        let inner = self.text.get(start..self.at).unwrap_or(&[]);
        if inner.len() > LABELS_BYTES_MAX {
            return Err(self.error(format_args!("{name} has over {LABELS_BYTES_MAX} bytes")));
        }
        self.step(1);
        std::str::from_utf8(inner)
            .map_err(|e| self.error(format_args!("{name} is not UTF-8")).because(e))
    }

    fn comment(&mut self) -> Result<Comment<'a>> {
        if self.open_metrics {
            return self.strict_comment();
        }
        self.step(1);
        let blanks = self.take_while(|byte| byte == b' ' || byte == b'\t').len();
        let keyword = self.take_while(|byte| byte.is_ascii_alphabetic());
        let is_metadata = blanks > 0
            && (keyword == b"HELP"
                || keyword == b"TYPE"
                || keyword == b"UNIT" && self.from_protobuf)
            && matches!(self.peek(), Some(b' ' | b'\t'));
        if !is_metadata {
            self.take_while(|byte| byte != b'\n');
            return Ok(Comment::Ignored);
        }
        self.skip_blanks();
        let name = self.family_name(keyword)?;
        // One blank separates the text, the rest belongs to it.
        let text = self.take_while(|byte| byte != b'\n');
        let text = text.get(1..).unwrap_or(&[]);
        if self.from_protobuf && keyword == b"UNIT" {
            // Checked by `to_text`, which knows the suffix of a counter.
            let unit = std::str::from_utf8(text).unwrap_or("");
            return Ok(Comment::Item(name, MetadataItem::Unit(Cow::Borrowed(unit))));
        }
        self.item(keyword, name, text)
    }

    /// `# HELP`, `# TYPE`, `# UNIT` or `# EOF`.
    fn strict_comment(&mut self) -> Result<Comment<'a>> {
        let rest = self.text.get(self.at..).unwrap_or(&[]);
        if let Some(after) = rest.strip_prefix(b"# EOF") {
            return match after {
                [] | [b'\n'] => Ok(Comment::Eof),
                _ => Err(self.error("text follows # EOF")),
            };
        }
        let keyword = ["HELP", "TYPE", "UNIT"].into_iter().find(|keyword| {
            let rest = rest.strip_prefix(b"# ").unwrap_or(&[]);
            rest.strip_prefix(keyword.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '))
        });
        let Some(keyword) = keyword else {
            return Err(self.error("expected # HELP, # TYPE, # UNIT or # EOF"));
        };
        self.step(7);
        let name = self.family_name(keyword.as_bytes())?;
        if !self.take(b' ') {
            return Err(self.error(format_args!("expected a text in # {keyword}")));
        }
        let text = self.take_while(|byte| byte != b'\n');
        if !self.take(b'\n') {
            return Err(self.error("the text does not end with # EOF"));
        }
        self.item(keyword.as_bytes(), name, text)
    }

    fn family_name(&mut self, keyword: &[u8]) -> Result<Cow<'a, str>> {
        if self.peek() == Some(b'"') {
            return self.quoted("a metric name", true);
        }
        match self.metric_name() {
            Some(name) => Ok(Cow::Borrowed(name)),
            None => {
                let keyword = String::from_utf8_lossy(keyword);
                let found = self.found();
                Err(self
                    .error(format_args!("expected a metric name after # {keyword}, got {found}")))
            }
        }
    }

    fn item(&mut self, keyword: &[u8], name: Cow<'a, str>, text: &'a [u8]) -> Result<Comment<'a>> {
        let text = std::str::from_utf8(text)
            .map_err(|e| self.error("the text of a comment is not UTF-8").because(e))?;
        let item = match keyword {
            b"TYPE" => {
                let kind = self.metric_type(text)?;
                self.bound_label = match kind {
                    MetricType::Histogram => BoundLabel::Le,
                    MetricType::Summary => BoundLabel::Quantile,
                    _ => BoundLabel::None,
                };
                MetadataItem::Type(kind)
            }
            b"UNIT" => {
                let before = name.strip_suffix(text).filter(|before| before.ends_with('_'));
                if !text.is_empty() && before.is_none() {
                    return Err(self.error(format_args!(
                        "unit {:?} is not a suffix of metric {:?}",
                        excerpt(text),
                        excerpt(&name)
                    )));
                }
                MetadataItem::Unit(Cow::Borrowed(text))
            }
            _ => MetadataItem::Help(unescape(text, self.open_metrics)),
        };
        Ok(Comment::Item(name, item))
    }

    fn metric_type(&self, text: &str) -> Result<MetricType> {
        Ok(match (text, self.open_metrics || self.from_protobuf) {
            ("counter", _) => MetricType::Counter,
            ("gauge", _) => MetricType::Gauge,
            ("histogram", _) => MetricType::Histogram,
            ("summary", _) => MetricType::Summary,
            ("untyped", false) | ("unknown", true) => MetricType::Unknown,
            ("gaugehistogram", true) => MetricType::GaugeHistogram,
            ("info", true) => MetricType::Info,
            ("stateset", true) => MetricType::StateSet,
            _ => {
                return Err(self.error(format_args!("invalid metric type {:?}", excerpt(text))));
            }
        })
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn step(&mut self, len: usize) {
        self.at = self.at.saturating_add(len);
    }

    #[inline]
    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.step(usize::from(found));
        found
    }

    #[inline]
    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or(&[]);
        let len = rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
        self.step(len);
        rest.get(..len).unwrap_or(&[])
    }

    /// Blanks between tokens, which OpenMetrics does not have.
    #[inline]
    fn skip_blanks(&mut self) {
        if !self.open_metrics {
            self.take_while(|byte| byte == b' ' || byte == b'\t');
        }
    }

    #[cold]
    fn bad_token(&self, token: &[u8], name: &str) -> Error {
        let token = String::from_utf8_lossy(token);
        self.error(format_args!("{:?} is not {name}", excerpt(&token)))
    }

    /// An error that names the line, counted from 1.
    #[cold]
    fn error(&self, problem: impl std::fmt::Display) -> Error {
        at_line(self.text, self.at, problem)
    }

    /// The token at the cursor, for messages.
    #[cold]
    fn found(&self) -> String {
        match self.peek() {
            None => "the end".to_owned(),
            Some(b'\n') => "the end of the line".to_owned(),
            Some(_) => {
                let rest = self.text.get(self.at..).unwrap_or(&[]);
                let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest);
                format!("{:?}", String::from_utf8_lossy(line.get(..24).unwrap_or(line)))
            }
        }
    }
}

enum Comment<'a> {
    Ignored,
    Item(Cow<'a, str>, MetadataItem<'a>),
    Eof,
}

/// An error that names the line of byte `at`, counted from 1.
pub fn at_line(text: &[u8], at: usize, problem: impl std::fmt::Display) -> Error {
    let before = text.get(..at).unwrap_or(text);
    let line = before.iter().filter(|&&byte| byte == b'\n').count().saturating_add(1);
    Error::invalid(format!("line {line}: {problem}"))
}

fn unescape(text: &str, quotes: bool) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, rest.as_str().chars().next()) {
            ('\\', Some('n')) => plain.push('\n'),
            ('\\', Some('\\')) => plain.push('\\'),
            ('\\', Some('"')) if quotes => plain.push('"'),
            _ => {
                plain.push(c);
                continue;
            }
        }
        rest.next();
    }
    Cow::Owned(plain)
}

#[cfg(test)]
pub(super) mod tests;
