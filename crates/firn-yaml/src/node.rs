//! A document as a tree whose nodes know their line and column.

use std::collections::HashMap;
use std::rc::Rc;

use firn_model::{Budget, Pool, Reservation};
use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::failure::Failure;
use super::repair::Repair;
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
// Each repair costs another reading of the text. Both bound the time: of a large text, and of a
// short one with thousands of places to repair.
const REPEATED_BYTES_MAX: usize = 64 << 20;
const REPAIRS_MAX: usize = 1_000;
/// The bytes of a repaired text beyond twice those of the text.
const REPAIRED_BYTES_MORE: usize = 4 << 10;

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
        if text.contains(is_refused_control) {
            return Err(Failure::new("yaml: control characters are not allowed"));
        }
        let mut changed: Option<(String, Reservation)> = None;
        let bytes_max = text.len().saturating_mul(2).saturating_add(REPAIRED_BYTES_MORE);
        let mut bytes_left = REPEATED_BYTES_MAX;
        let mut next = 0;
        for _ in 0..REPAIRS_MAX {
            let text = changed.as_ref().map_or(text, |(text, _)| text);
            let mut repair = None;
            let parsed = Document::parse_text(text, budget, &mut repair);
            let (Some(repair), Some(left)) = (repair, bytes_left.checked_sub(text.len())) else {
                return parsed;
            };
            // The last repair did not help.
            if repair.index() < next {
                return parsed;
            }
            next = repair.index().saturating_add(1);
            let bytes_max = bytes_max.min(TEXT_BYTES_MAX);
            let held = budget.reserve(Pool::Requests, bytes_max as u64);
            let mut held = held.map_err(|error| Failure::of_memory(&error))?;
            let Some(repaired) = repair.apply(text, bytes_max) else { return parsed };
            held.shrink_to(repaired.len() as u64);
            changed = Some((repaired, held));
            bytes_left = left;
        }
        let text = changed.as_ref().map_or(text, |(text, _)| text);
        Document::parse_text(text, budget, &mut None)
    }

    /// Sets `repair` if the parser here refuses a text that Prometheus' parser may accept.
    fn parse_text(
        text: &str,
        budget: &Budget,
        repair: &mut Option<Repair>,
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
            repair: None,
        };
        let root = reader.root();
        *repair = reader.repair;
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
    /// The change of the text with which the parsing may succeed.
    repair: Option<Repair>,
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

/// Whether Prometheus' parser refuses a document with this character.
fn is_refused_control(c: char) -> bool {
    let is_allowed = matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    (c.is_control() && !is_allowed) || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// The mistake that ended the parsing, in the words of Prometheus' parser.
fn failure_of(error: &ScanError) -> Failure {
    let line = error.marker().line();
    let message = match error.info() {
        // Without its name, which may be the beginning of a password.
        "while parsing node, found unknown anchor" => "unknown anchor referenced",
        "simple key expect ':'" => "could not find expected ':'",
        "misplaced bracket" => "did not find expected node content",
        "invalid trailing content after double-quoted scalar"
        | "comment intercepting the multiline text" => "did not find expected key",
        "while parsing a flow sequence, expected ',' or ']'" => "did not find expected ',' or ']'",
        "while scanning a plain scalar, found a tab" => {
            "found a tab character that violates indentation"
        }
        other if other.starts_with("tabs disallowed") || other.starts_with("unexpected char") => {
            "found character that cannot start any token"
        }
        other => match other.split_once(", ") {
            Some((context, message)) if context.starts_with("while ") => message,
            _ => other,
        },
    };
    Failure::new(format!("yaml: line {line}: {message}"))
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
                self.repair = Repair::of(&error);
                Err(failure_of(&error))
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

    fn root(text: &str) -> Rc<Node> {
        parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}")).unwrap()
    }

    /// The texts of a document with their lines; brackets around those of a collection.
    fn shown(text: &str) -> String {
        fn show(node: &Node, out: &mut String) {
            match &node.value {
                NodeValue::List(items) => {
                    out.push_str(" [");
                    items.iter().for_each(|item| show(item, out));
                    out.push_str(" ]");
                }
                NodeValue::Map(entries) => {
                    out.push_str(" {");
                    entries.iter().for_each(|(key, value)| {
                        show(key, out);
                        show(value, out);
                    });
                    out.push_str(" }");
                }
                NodeValue::Scalar(text, _) => out.push_str(&format!(" {}|{text}", node.line)),
                other => out.push_str(&format!(" {other:?}")),
            }
        }
        let mut out = String::new();
        show(&root(text), &mut out);
        out
    }

    /// As the parser of Prometheus reads them. Before, the files were refused.
    #[test]
    fn lines_in_brackets_may_have_any_indentation() {
        for (text, want) in [
            // A plain scalar at the column of its key, and a bracket to the left of it.
            ("- a: [\n  b:1,\n  'c'\n]\n- d\n", " [ { 1|a [ 2|b:1 3|c ] } 5|d ]"),
            ("a:\n  - b: [c,\n    d]\n    e: f\n", " { 1|a [ { 2|b [ 2|c 3|d ] 4|e 4|f } ] }"),
            ("a: [\nb\n]\nc: d\n", " { 1|a [ 2|b ] 4|c 4|d }"),
            // Collections in others, quotes and comments with brackets.
            (
                "- a: [{b: \"}'\",\n# ]\nc: [']', it's]},\n d] # x\n  e: f\n",
                " [ { 1|a [ { 1|b 1|}' 3|c [ 3|] 3|it's ] } 4|d ] 5|e 5|f } ]",
            ),
            ("- a: {\r\n  b: c,\r\n\r\nd: e}\r\n", " [ { 1|a { 2|b 2|c 4|d 4|e } } ]"),
            // A line of tabs behind one that is repaired.
            ("- a: {\nb: c,\n\td: e\n}\n", " [ { 1|a { 2|b 2|c 3|d 3|e } } ]"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        for text in ["- a: [\nb\n", "- a: [\nb\n---\n]\n", "- a: [\nb]\n c\n", "- a\nb\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        // A long line of blanks in front of many short ones.
        let long = format!("{}- a: [\n{}]\n", " ".repeat(1_000), "b,\n".repeat(20_000));
        assert!(parse(&long).unwrap_err().to_string().contains("invalid indentation"));
    }

    /// Before, the files were refused.
    #[test]
    fn lines_in_brackets_may_begin_with_tabs() {
        for (text, want) in [
            ("- a: [\n\tb,\n\t'c', # d]\n \t\"e\"]\n- f\n", " [ { 1|a [ 2|b 3|c 4|e ] } 5|f ]"),
            (
                "a:\n  b: {\n\tc: [d,\n\t\te],\n\tf: g }\n",
                " { 1|a { 2|b { 3|c [ 3|d 4|e ] 5|f 5|g } } }",
            ),
            ("a:\r\n- [\r\n\t{b: c},\r\n\t]\r\n", " { 1|a [ [ { 3|b 3|c } ] ] }"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        // Outside of brackets, also beside them, and in a plain scalar.
        for text in [
            "a:\n\tb: c\n",
            "a: [b]\nc:\n\td: [e]\n",
            "a:\n  - [b]\n\t- c\n",
            "- a: [\n\tb\n\t]\n",
            "- a: [\n\tb,\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        // Each line is as deep as the first.
        let long = format!("- a: [\n{}]\n", "\t'b',\n".repeat(300));
        assert_eq!(shown(&long).matches('b').count(), 300);
    }

    /// Before, the files were refused.
    #[test]
    fn comments_tabs_and_escapes_are_those_of_prometheus() {
        for (text, want) in [
            ("a: \"b\"#c\nd: [e]#f\ng: {h: 'i'}#j\n", " { 1|a 1|b 2|d [ 2|e ] 3|g { 3|h 3|i } }"),
            ("a:\tb\nc:\t \t d\n", " { 1|a 1|b 2|c 2|d }"),
            ("a:\n  b: \"x\n\ty\n \t\tz\"\nc: d\n", " { 1|a { 2|b 2|x y z } 5|c 5|d }"),
            (r#"a: ["it\'s", "\\\"\'b"]"#, r#" { 1|a [ 1|it's 1|\"'b ] }"#),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        for text in ["a:\t- b\n", r#"a: "it\'s\q""#, r#"a: "\q""#, "a: 'it\\'s'\n"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    /// As the parser of Prometheus reads them. Before, the files were refused.
    #[test]
    fn lines_of_quoted_scalars_may_have_any_indentation() {
        let text = "a:\n  b:\n  - \"x\n y\n\n  z\\\"\\\n\tw\"\n  - 'it''s\n\"one\"'\n  c: e\n";
        let root = root(text);
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
        // In brackets, the scalar itself may be too far to the left.
        assert_eq!(shown("a:\n        b: [\n 'x\ny']\n"), " { 1|a { 2|b [ 3|x y ] } }");
        // Each scalar costs another reading, up to a bound; so do long lines.
        let many = |count| "a:\n".to_owned() + &"  - 'x\ny'\n".repeat(count);
        assert!(parse(&many(REPAIRS_MAX)).is_ok());
        let error = parse(&many(REPAIRS_MAX + 1)).unwrap_err().to_string();
        assert!(error.contains("invalid indentation"), "{error}");
        let long = format!("a:\n  {}: 'x\n{}'\n", "b".repeat(1_000), "y\n".repeat(20_000));
        assert!(parse(&long).unwrap_err().to_string().contains("invalid indentation"));
    }

    /// Before, they were the parser's own.
    #[test]
    fn mistakes_have_the_words_of_prometheus() {
        for (text, want) in [
            ("a:\n\tb: c\n", "line 2: found character that cannot start any token"),
            ("a: @b\n", "line 1: found character that cannot start any token"),
            ("a: b\nc\n", "line 3: could not find expected ':'"),
            ("a:\n- b: c\n d: e\n", "line 3: did not find expected key"),
            ("a: 'b\n", "line 1: found unexpected end of stream"),
            ("a: \"b\" c\n", "line 1: did not find expected key"),
            ("a: [b\n", "line 2: did not find expected ',' or ']'"),
            ("a: b: c\n", "line 1: mapping values are not allowed in this context"),
            ("a: *secret\n", "line 1: unknown anchor referenced"),
            ("a: \"\u{1}\"\n", "control characters are not allowed"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), format!("yaml: {want}"), "{text:?}");
        }
        assert!(parse("a: \"\t\u{85}\u{fffd}\"\r\n").is_ok());
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
