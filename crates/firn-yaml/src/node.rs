//! A document as a tree whose nodes know their line and column.

use std::collections::HashMap;
use std::rc::Rc;

use firn_model::{Budget, Pool, Reservation};
use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::failure::Failure;
use super::scalar::{Kind, kind_of};
use super::tokens::{MeteredText, TokenMeter};

/// A document of a text.
#[derive(Debug)]
pub struct Document {
    /// The value; `None` for an empty document.
    pub root: Option<Rc<Node>>,
    /// The line of the second document, if the text has more than one.
    pub more_line: Option<usize>,
    /// The line of the first alias, if the document has one.
    pub alias_line: Option<usize>,
    /// The memory of the tree.
    pub(super) held: Reservation,
}

/// A node. A node with an anchor is shared by its aliases.
#[derive(Debug)]
pub struct Node {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The levels of the node with those of its aliases, at most [`DEPTH_MAX`]: bounds recursion.
    levels: usize,
    /// The contents.
    pub value: NodeValue,
}

/// The contents of a node.
#[derive(Debug)]
pub enum NodeValue {
    /// A null or no value.
    Null,
    /// Text as it was typed, and its kind.
    Scalar(String, Kind),
    /// Bytes of `!!binary` that are no text.
    Bytes(Vec<u8>),
    /// The items of a list.
    List(Vec<Rc<Node>>),
    /// Keys and values in the order of the file. A merge key is [`NodeValue::Merge`].
    Map(Vec<(Rc<Node>, Rc<Node>)>),
    /// The key `<<`.
    Merge,
}

impl Node {
    /// The name of the node's kind in messages.
    pub fn tag(&self) -> &'static str {
        match &self.value {
            NodeValue::Null => "!!null",
            NodeValue::Scalar(_, kind) => kind.tag(),
            NodeValue::Bytes(_) => "!!binary",
            NodeValue::Merge => "!!merge",
            NodeValue::List(_) => "!!seq",
            NodeValue::Map(_) => "!!map",
        }
    }
}

/// Lists and mappings inside each other. Files of configuration have about eight levels.
const DEPTH_MAX: usize = 64;
/// Nodes of a document without its aliases.
const NODES_MAX: usize = 1_000_000;
/// The memory of a node beside its text: counts of its `Rc`, the pointers of a list or a mapping
/// that has grown to twice its length, and the blocks of the allocator.
const NODE_BYTES: usize = size_of::<Node>() + 80;
/// Files of Prometheus with thousands of jobs have a few megabytes.
const TEXT_BYTES_MAX: usize = 16 << 20;

impl Document {
    /// Parses the first document of `text`; those behind it are ignored, as in Prometheus.
    ///
    /// # Errors
    /// Text that is no YAML or that exceeds a bound.
    pub fn parse(text: &str) -> Result<Document, Failure> {
        Document::parse_within(text, &Budget::unlimited())
    }

    /// The same within the memory of `budget`, which [`Document::decode`] uses too.
    ///
    /// # Errors
    /// As [`Document::parse`], and without memory.
    pub fn parse_within(text: &str, budget: &Budget) -> Result<Document, Failure> {
        if text.len() > TEXT_BYTES_MAX {
            let len = text.len();
            let text = format!("it has {len} bytes, at most {TEXT_BYTES_MAX} are read");
            return Err(Failure::new(text));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut changed: Option<(String, Reservation)> = None;
        let mut bytes_left = REPEATED_BYTES_MAX;
        let mut next = 0;
        for _ in 0..SHALLOW_SCALARS_MAX {
            let text = changed.as_ref().map_or(text, |(text, _)| text);
            let mut shallow = None;
            let parsed = Document::parse_text(text, budget, &mut shallow);
            let (Some(start), Some(left)) = (shallow, bytes_left.checked_sub(text.len())) else {
                return parsed;
            };
            // Deeper lines did not help.
            if start.index() < next {
                return parsed;
            }
            next = start.index().saturating_add(1);
            let Some(deeper) = with_indented_scalar(text, start) else { return parsed };
            let held = budget.reserve(Pool::Requests, deeper.len() as u64);
            changed = Some((deeper, held.map_err(|error| Failure::of_memory(&error))?));
            bytes_left = left;
        }
        let text = changed.as_ref().map_or(text, |(text, _)| text);
        Document::parse_text(text, budget, &mut None)
    }

    /// Sets `shallow` if the text has a quoted scalar whose lines the parser finds too little
    /// indented.
    fn parse_text(
        text: &str,
        budget: &Budget,
        shallow: &mut Option<Marker>,
    ) -> Result<Document, Failure> {
        let meter = TokenMeter::new(budget.empty(Pool::Requests));
        let parser = Parser::new_from_iter(MeteredText::new(text, &meter));
        // The parser and a node have copies of a scalar, which may be the whole text. That of the
        // parser grows to twice its length.
        let bytes = (text.len() as u64).saturating_mul(3);
        let held =
            budget.reserve(Pool::Requests, bytes).map_err(|error| Failure::of_memory(&error))?;
        let nodes_left = NODES_MAX;
        let anchors = HashMap::new();
        let alias_line = None;
        let mut reader = Reader {
            parser,
            lines: Lines { rest: text, line: 1 },
            last_end: Marker::default(),
            meter,
            anchors,
            nodes_left,
            held,
            bytes,
            alias_line,
            shallow: None,
        };
        let root = reader.root();
        *shallow = reader.shallow;
        let root = root?;
        let more_line = root.as_ref().and_then(|_| reader.more_line());
        Ok(Document { root, more_line, alias_line: reader.alias_line, held: reader.held })
    }
}

struct Reader<'a> {
    parser: Parser<'a, BufferedInput<MeteredText<'a>>>,
    /// The lines from that of the last block scalar on.
    lines: Lines<'a>,
    /// The end of the last event.
    last_end: Marker,
    meter: Rc<TokenMeter>,
    anchors: HashMap<usize, Rc<Node>>,
    nodes_left: usize,
    held: Reservation,
    /// The memory of the nodes so far.
    bytes: u64,
    alias_line: Option<usize>,
    /// The start of the quoted scalar that ended the parsing because of its indentation.
    shallow: Option<Marker>,
}

// Each scalar with lines that are too little indented costs another reading of the text. Both bound
// the time: of a large text, and of a short one with thousands of such scalars.
const REPEATED_BYTES_MAX: usize = 16 << 20;
const SHALLOW_SCALARS_MAX: usize = 100;

/// `text` with deeper lines in the quoted scalar at `start`. Prometheus' parser accepts any
/// indentation there, and blanks at the start of a line are no part of the scalar. `None` if that
/// changes nothing, or if the text would be too long.
fn with_indented_scalar(text: &str, start: Marker) -> Option<String> {
    let (at, quote) = text.char_indices().nth(start.index())?;
    let (before, rest) = text.split_at_checked(at)?;
    let (scalar, behind) = rest.split_at_checked(quoted_bytes(rest, quote))?;
    let indent = " ".repeat(start.col());
    let mut lines = scalar.split_inclusive(['\n', '\r']);
    let first = lines.next()?;
    let mut out = [before, first].concat();
    for line in lines {
        // An empty line, or the second half of a line break.
        if line == "\n" {
            out.push_str(line);
            continue;
        }
        let is_indicator = line.starts_with("---") || line.starts_with("...");
        let len: usize = [out.len(), indent.len(), line.len(), behind.len()].into_iter().sum();
        if is_indicator || indent.is_empty() || len > TEXT_BYTES_MAX {
            return None;
        }
        out.push_str(&indent);
        out.push_str(line);
    }
    let has_lines = out.len() > before.len().saturating_add(scalar.len());
    out.push_str(behind);
    has_lines.then_some(out)
}

/// The length of the scalar at the start of `text`, with both of its quotes.
fn quoted_bytes(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        let is_double = quote == '"';
        if is_double && c == '\\' {
            chars.next();
        } else if c == quote && (is_double || chars.next_if(|next| next.1 == quote).is_none()) {
            return at.saturating_add(1);
        }
    }
    text.len()
}

/// Lines of a text.
struct Lines<'a> {
    rest: &'a str,
    /// The number of the first line of `rest`, from 1.
    line: usize,
}

impl<'a> Lines<'a> {
    /// Takes the lines before `line`. Returns the last of them that is not blank, with its number.
    fn take_before(&mut self, line: usize) -> Option<(usize, &'a str)> {
        let mut found = None;
        while self.line < line && !self.rest.is_empty() {
            let (text, behind) =
                self.rest.split_at(self.rest.find(['\n', '\r']).unwrap_or(self.rest.len()));
            if !text.trim_ascii().is_empty() {
                found = Some((self.line, text));
            }
            self.rest =
                ["\r\n", "\n", "\r"].iter().find_map(|end| behind.strip_prefix(end)).unwrap_or("");
            self.line = self.line.saturating_add(1);
        }
        found
    }
}

/// The place, in characters, of the indicator of a block scalar in the line with its header, from
/// the place `from` on.
fn indicator_place(line: &str, from: usize) -> Option<usize> {
    let is_header_end = |behind: &str| {
        let is_option = |c: char| matches!(c, '+' | '-') || c.is_ascii_digit();
        let behind = behind.trim_start_matches(is_option);
        let text = behind.trim_start_matches([' ', '\t']);
        text.is_empty() || (text.len() < behind.len() && text.starts_with('#'))
    };
    let mut places = line.char_indices().enumerate().skip(from);
    let found = places.find(|(_, (at, c))| {
        matches!(c, '|' | '>') && line.get(at.saturating_add(1)..).is_some_and(is_header_end)
    });
    found.map(|(place, _)| place)
}

impl<'a> Reader<'a> {
    /// The start of an event as in Prometheus. The parser's start of a block scalar without a tag
    /// and an anchor is that of its contents, unless the text ends before them.
    fn start_of(&mut self, event: &Event<'a>, span: Span) -> Marker {
        let Event::Scalar(text, ScalarStyle::Literal | ScalarStyle::Folded, 0, None) = event else {
            return span.start;
        };
        let is_blank = text.chars().all(|c| c == '\n');
        if is_blank && span.start.index() != span.end.index() {
            return span.start;
        }
        let Some((line, header)) = self.lines.take_before(span.start.line()) else {
            return span.start;
        };
        let from = if self.last_end.line() == line { self.last_end.col() } else { 0 };
        let place = indicator_place(header, from);
        place.map_or(span.start, |place| Marker::new(span.start.index(), line, place))
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Marker)>, Failure> {
        self.meter.begin_step();
        let step = self.parser.next();
        if let Some(error) = self.meter.refused() {
            return Err(Failure::of_memory(&error));
        }
        match step {
            None => Ok(None),
            Some(Ok((event, span))) => {
                let start = self.start_of(&event, span);
                self.last_end = span.end;
                Ok(Some((event, start)))
            }
            Some(Err(error)) => {
                let line = error.marker().line();
                let is_shallow = error.info() == "invalid indentation in quoted scalar";
                self.shallow = is_shallow.then(|| *error.marker());
                Err(Failure::new(format!("yaml: line {line}: {}", error.info())))
            }
        }
    }

    /// The value of the first document.
    fn root(&mut self) -> Result<Option<Rc<Node>>, Failure> {
        loop {
            match self.next()? {
                Some((Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _)) => {}
                None | Some((Event::StreamEnd | Event::DocumentEnd, _)) => return Ok(None),
                Some((event, marker)) => return self.node(event, marker, 0).map(Some),
            }
        }
    }

    fn expect(&mut self) -> Result<(Event<'a>, Marker), Failure> {
        self.next()?.ok_or_else(|| Failure::new("yaml: the file ends early"))
    }

    /// Whether another document begins behind the one that was read. Text that is no YAML counts.
    fn more_line(&mut self) -> Option<usize> {
        let mut line = 1;
        loop {
            match self.next() {
                Ok(None | Some((Event::StreamEnd, _))) => return None,
                Ok(Some((Event::DocumentEnd | Event::DocumentStart(_) | Event::Nothing, at))) => {
                    line = at.line();
                }
                Ok(Some((_, at))) => return Some(at.line()),
                Err(_) => return Some(line),
            }
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        marker: Marker,
        depth: usize,
    ) -> Result<Rc<Node>, Failure> {
        let line = marker.line();
        let too_deep =
            || Failure::new(format!("yaml: line {line}: over {DEPTH_MAX} levels of nesting"));
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        self.nodes_left = self
            .nodes_left
            .checked_sub(1)
            .ok_or_else(|| Failure::new(format!("yaml: over {NODES_MAX} values in a file")))?;
        let text_bytes = if let Event::Scalar(text, ..) = &event { text.len() } else { 0 };
        self.bytes = self.bytes.saturating_add(NODE_BYTES.saturating_add(text_bytes) as u64);
        self.held.cover(self.bytes).map_err(|error| Failure::of_memory(&error))?;
        let deeper = depth.saturating_add(1);
        let (value, anchor) = match event {
            Event::Alias(anchor) => {
                self.alias_line = self.alias_line.or(Some(line));
                return self.anchors.get(&anchor).map(Rc::clone).ok_or_else(|| {
                    Failure::new(format!(
                        "yaml: line {line}: the value of the anchor contains itself"
                    ))
                });
            }
            Event::Scalar(text, style, anchor, tag) => {
                (scalar(&text, style, tag.as_deref(), line)?, anchor)
            }
            Event::SequenceStart(anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.expect()? {
                        (Event::SequenceEnd, _) => break,
                        (event, marker) => items.push(self.node(event, marker, deeper)?),
                    }
                }
                (NodeValue::List(items), anchor)
            }
            Event::MappingStart(anchor, _) => {
                let mut entries = Vec::new();
                loop {
                    let key = match self.expect()? {
                        (Event::MappingEnd, _) => break,
                        (event, marker) => self.node(event, marker, deeper)?,
                    };
                    let (event, marker) = self.expect()?;
                    entries.push((key, self.node(event, marker, deeper)?));
                }
                (NodeValue::Map(entries), anchor)
            }
            _ => return Err(Failure::new(format!("yaml: line {line}: expected a value"))),
        };
        let below = match &value {
            NodeValue::List(items) => items.iter().map(|item| item.levels).max(),
            NodeValue::Map(entries) => {
                entries.iter().map(|(key, value)| key.levels.max(value.levels)).max()
            }
            _ => None,
        };
        let levels = below.unwrap_or(0).saturating_add(1);
        if levels > DEPTH_MAX {
            return Err(too_deep());
        }
        let node = Rc::new(Node { line, column: marker.col().saturating_add(1), levels, value });
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(node)
    }
}

fn scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<NodeValue, Failure> {
    // A tag of another schema, such as `!x`, makes a text.
    let tag = tag.map(|tag| if tag.is_yaml_core_schema() { tag.suffix.as_str() } else { "str" });
    let plain = style == ScalarStyle::Plain;
    let kind = match tag {
        Some("binary") => {
            let bytes = decode_base64(text).ok_or_else(|| {
                Failure::new("yaml: !!binary value contains invalid base64 data").at(line)
            })?;
            return Ok(match String::from_utf8(bytes) {
                Ok(text) => NodeValue::Scalar(text, Kind::Text),
                Err(error) => NodeValue::Bytes(error.into_bytes()),
            });
        }
        Some("merge") => return Ok(NodeValue::Merge),
        None if plain && text == "<<" => return Ok(NodeValue::Merge),
        None if !plain => Kind::Text,
        None => kind_of(text),
        Some(tag @ ("null" | "bool" | "int" | "float" | "timestamp")) => {
            let kind = kind_of(text);
            let (own, is_whole_float) = (kind.tag(), tag == "float" && kind.tag() == "!!int");
            if own.strip_prefix("!!") != Some(tag) && !is_whole_float {
                // Without the text: its key is not known here and may be that of a password.
                let text = format!("yaml: cannot decode {own} as a !!{tag}");
                return Err(Failure::new(text).at(line));
            }
            kind
        }
        Some(_) => Kind::Text,
    };
    Ok(match kind {
        Kind::Null => NodeValue::Null,
        kind => NodeValue::Scalar(text.to_owned(), kind),
    })
}

/// Standard base64 with padding; line ends are ignored.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c.wrapping_sub(b'A')),
        b'a'..=b'z' => Some(c.wrapping_sub(b'a').wrapping_add(26)),
        b'0'..=b'9' => Some(c.wrapping_sub(b'0').wrapping_add(52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let chars: Vec<u8> = text.bytes().filter(|c| !matches!(c, b'\n' | b'\r')).collect();
    let mut bytes = Vec::with_capacity(chars.len());
    let mut chunks = chars.chunks(4).peekable();
    while let Some(chunk) = chunks.next() {
        let &[a, b, c, d] = chunk else { return None };
        let is_last = chunks.peek().is_none();
        let (a, b) = (digit(a)?, digit(b)?);
        bytes.push(a << 2 | b >> 4);
        if c == b'=' && d == b'=' && is_last {
            continue;
        }
        let c = digit(c)?;
        bytes.push(b << 4 | c >> 2);
        if d == b'=' && is_last {
            continue;
        }
        bytes.push(c << 6 | digit(d)?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::UnknownKeys;

    fn parse(text: &str) -> Result<Option<Rc<Node>>, Failure> {
        Document::parse(text).map(|document| document.root)
    }

    /// Visits a node before the nodes in it.
    fn each_node(node: &Node, visit: &mut dyn FnMut(&Node)) {
        visit(node);
        match &node.value {
            NodeValue::List(items) => items.iter().for_each(|item| each_node(item, visit)),
            NodeValue::Map(entries) => entries.iter().for_each(|(key, value)| {
                each_node(key, visit);
                each_node(value, visit);
            }),
            _ => {}
        }
    }

    #[test]
    fn nodes_know_their_line_and_column() {
        let root = parse("a:\n  - b: 'é'\n    c: [1, {x: 2}]\n").unwrap().unwrap();
        let mut found = Vec::new();
        each_node(&root, &mut |node| {
            found.push(format!("{}{}:{}", node.tag(), node.line, node.column));
        });
        let want = "!!map1:1 !!str1:1 !!seq2:3 !!map2:5 !!str2:5 !!str2:8 !!str3:5 !!seq3:8 \
                    !!int3:9 !!map3:12 !!str3:13 !!int3:16";
        assert_eq!(found.join(" "), want);
    }

    /// As the parser of Prometheus reads them. Before, the files were refused.
    #[test]
    fn lines_of_quoted_scalars_may_have_any_indentation() {
        let text = "a:\n  b:\n  - \"x\n y\n\n  z\\\"\\\n\tw\"\n  - 'it''s\n\"one\"'\n  c: e\n";
        let root = parse(text).unwrap().unwrap();
        let mut texts = Vec::new();
        each_node(&root, &mut |node| {
            if let NodeValue::Scalar(text, _) = &node.value {
                texts.push(format!("{} {text}", node.line));
            }
        });
        let want = ["1 a", "2 b", "3 x y\nz\"w", "8 it's \"one\"", "10 c", "10 e"];
        assert_eq!(texts, want);
        for text in ["a:\n  b: 'x\n---\n  y'\n", "a:\n  b: 'x\ny\n", "a:\n  b: 'x\ny' z\n"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["a:\n  b: 'x\r\n\r\ny'\n", "a:\n  b: 'x\ry\r'\n"] {
            assert!(parse(text).is_ok(), "{text:?}");
        }
        // Deeper lines do not help a scalar that itself begins too far to the left.
        let flow = "a:\n        b: [\n 'x\ny']\n";
        assert!(parse(flow).unwrap_err().to_string().contains("invalid indentation"));
        // Each scalar costs another reading, up to a bound; so do long lines.
        let many = |count| "a:\n".to_owned() + &"  - 'x\ny'\n".repeat(count);
        assert!(parse(&many(SHALLOW_SCALARS_MAX)).is_ok());
        let error = parse(&many(SHALLOW_SCALARS_MAX + 1)).unwrap_err().to_string();
        assert!(error.contains("invalid indentation"), "{error}");
        let long = format!("a:\n  {}: 'x\n{}'\n", "b".repeat(1_000), "y\n".repeat(20_000));
        assert!(parse(&long).unwrap_err().to_string().contains("invalid indentation"));
    }

    #[test]
    fn a_block_scalar_begins_at_its_indicator() {
        for (text, want) in [
            ("a: |\n  b\n", "1:4"),
            ("a:   >-2   # | x\n\n    b\n", "1:6"),
            ("a:\n  |+\n  b\n", "2:3"),
            ("a:\r\n  |\r\n\r\n  b\r\n", "2:3"),
            ("a:\r  |\r  b\r", "2:3"),
            ("\u{feff}\u{e9}\u{e9}: |\n  b\n", "1:5"),
            // The key looks like a header.
            ("\"a | # b\": |\n  b\n", "1:12"),
            ("a | b: >\n  b\n", "1:8"),
            ("? a\n: |\n  b", "2:3"),
            // Its contents look like one, or do not exist.
            ("a: |\n  c: |\n", "1:4"),
            ("a: |\n  |\n", "1:4"),
            ("a: |\n", "1:4"),
            ("a: |+\n\n", "1:4"),
            ("a: |\n\n# c\n", "1:4"),
            // A tag or an anchor is the start.
            ("a: !!str |\n  b\n", "1:4"),
            ("a: &x\n  |\n  b\n", "1:4"),
        ] {
            let node = parse(text).unwrap().unwrap();
            let NodeValue::Map(entries) = &node.value else { panic!("{text:?}") };
            let value = &entries[0].1;
            assert_eq!(format!("{}:{}", value.line, value.column), want, "{text:?}");
        }
        let node = parse("- |\n  a\n- - >\n\n    b\n  - |-\n- |\n c").unwrap().unwrap();
        let NodeValue::List(items) = &node.value else { panic!() };
        let NodeValue::List(inner) = &items[1].value else { panic!() };
        let all = [&items[0], &inner[0], &inner[1], &items[2]];
        assert_eq!(all.map(|node| (node.line, node.column)), [(1, 3), (3, 5), (6, 5), (7, 3)]);
    }

    #[test]
    fn the_first_alias_is_seen() {
        for (text, want) in [("a: &x 1", None), ("a: &x 1\nb: [*x]\nc: *x", Some(2))] {
            assert_eq!(Document::parse(text).unwrap().alias_line, want, "{text}");
        }
    }

    #[test]
    fn further_documents_are_seen() {
        for (text, want) in [
            ("a: b\n", None),
            ("", None),
            ("---\na: b\n", None),
            ("a: b\n...\n", None),
            ("a: b\n---\n", Some(3)),
            ("a: b\n---\nc: d\n", Some(3)),
            ("a: b\n---\n]", Some(2)),
        ] {
            assert_eq!(Document::parse(text).unwrap().more_line, want, "{text:?}");
        }
    }

    // A small text may have a large tree and large values: both are refused before they exist.
    #[test]
    fn trees_and_values_are_within_the_memory() {
        let f = |text: &str, limit_bytes: u64| {
            let budget = Budget::unlimited().part(limit_bytes);
            let mut document = Document::parse_within(text, &budget)?;
            let mut out: Vec<Vec<String>> = Vec::new();
            let held = document.decode(&mut out, UnknownKeys::Refused)?;
            let used_bytes = budget.usage().used_bytes;
            assert!(held.bytes() > 0 && used_bytes > held.bytes());
            drop((document, held));
            assert_eq!(budget.usage().used_bytes, 0);
            Ok::<u64, Failure>(used_bytes)
        };
        let list = format!("-\n{}", "  - a\n".repeat(10_000));
        let used_bytes = f(&list, u64::MAX).unwrap();
        assert!(used_bytes > 10_000 * (size_of::<Node>() + size_of::<String>()) as u64);
        assert!(f(&list, used_bytes).is_ok());
        // Without memory for the tree, and for the values alone.
        for limit_bytes in [10_000, used_bytes / 2, used_bytes - used_bytes / 10] {
            let error = f(&list, limit_bytes).unwrap_err().to_string();
            assert!(error.contains("bytes of memory"), "{error}");
        }
        // The parser's tokens, before the first node.
        let tokens = format!("[{}]", "a,".repeat(100_000));
        let error = f(&tokens, 30 << 20).unwrap_err().to_string();
        assert!(error.contains("bytes of memory"), "{error}");
        // Aliases cost nothing in the tree, and all that they repeat in the values.
        let aliases = format!("- &a [{}]\n{}", "a,".repeat(1_000), "- *a\n".repeat(1_000));
        let error = f(&aliases, 10 << 20).unwrap_err().to_string();
        assert!(error.contains("bytes of memory"), "{error}");
    }

    #[test]
    fn base64_is_decoded() {
        for (text, want) in [
            ("", Some(&b""[..])),
            ("/w==", Some(b"\xff")),
            ("YWI=", Some(b"ab")),
            ("YW\nJj", Some(b"abc")),
            ("/w==$1", None),
            ("YQ", None),
            ("Y===", None),
            ("YQ==YQ==", None),
        ] {
            assert_eq!(decode_base64(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn tags_choose_the_kind() {
        let f = |text: &str| parse(text).map(|node| format!("{:?}", node.unwrap().value));
        for (text, want) in [
            ("!!str 5", r#"Scalar("5", Text)"#),
            ("!!int '5'", r#"Scalar("5", Whole(5))"#),
            ("!!float 5", r#"Scalar("5", Whole(5))"#),
            ("!x 5", r#"Scalar("5", Text)"#),
            ("!x", r#"Scalar("", Text)"#),
            ("!!null ~", "Null"),
            ("'~'", r#"Scalar("~", Text)"#),
            ("!!binary YQ==", r#"Scalar("a", Text)"#),
        ] {
            assert_eq!(f(text).unwrap(), want, "{text}");
        }
        let error = f("!!int x").unwrap_err().to_string();
        assert_eq!(error, "yaml: cannot decode !!str as a !!int (line 1)");
    }

    #[test]
    fn deep_nesting_and_unknown_aliases_are_errors() {
        let deep = "[".repeat(100);
        // Each anchor is one level above the one before it.
        let chain: String = (1..100).map(|idx| format!("- &x{idx} [*x{}]\n", idx - 1)).collect();
        let chain = format!("- &x0 []\n{chain}");
        let many = "- a\n".repeat(NODES_MAX + 1);
        for text in
            [chain.as_str(), many.as_str(), deep.as_str(), "a: &x [*x]", "a: *y", "a: [", "a: b: c"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("").unwrap().is_none());
        assert!(parse("# nothing\n").unwrap().is_none());
    }
}
