//! A lexer for Rust sources: splits a file into comments, string literals and other tokens.
//!
//! It knows raw strings, byte and C strings, character literals, lifetimes and nested block
//! comments. It never fails: an unterminated literal ends at the end of the file.

/// One file, split. Lines count from 1.
#[derive(Debug, Default)]
pub(crate) struct Source<'a> {
    pub(crate) comments: Vec<Comment<'a>>,
    pub(crate) strings: Vec<StringLiteral<'a>>,
    pub(crate) tokens: Vec<Token<'a>>,
}

/// A comment with its slashes: `// text`, `/// text` or `/* text */`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comment<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
    /// Code precedes the comment on its line.
    pub(crate) trailing: bool,
}

/// The text between the quotes, escapes as written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StringLiteral<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
    /// `r"..."`: backslashes are ordinary characters.
    pub(crate) raw: bool,
}

/// An identifier, keyword, number or lifetime, or one character of punctuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

pub(crate) fn lex(text: &str) -> Source<'_> {
    let mut lexer = Lexer { text, offset: 0, line: 1, source: Source::default() };
    while lexer.offset < text.len() {
        lexer.advance_one();
    }
    lexer.source
}

struct Lexer<'a> {
    text: &'a str,
    offset: usize,
    line: usize,
    source: Source<'a>,
}

impl<'a> Lexer<'a> {
    fn advance_one(&mut self) {
        let rest = &self.text[self.offset..];
        let Some(first) = rest.chars().next() else { return };
        let (start, line) = (self.offset, self.line);
        if rest.starts_with("//") {
            self.comment(start, rest.find('\n').unwrap_or(rest.len()));
        } else if rest.starts_with("/*") {
            self.comment(start, block_comment_bytes(rest));
        } else if let Some(prefix) = string_prefix(rest) {
            self.string(prefix);
        } else if first == '\'' {
            let length = quote_bytes(rest);
            self.consume(length);
            self.source.tokens.push(Token { line, text: &self.text[start..self.offset] });
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            self.consume(length);
            self.source.tokens.push(Token { line, text: &self.text[start..self.offset] });
        } else {
            self.consume(first.len_utf8());
            if !first.is_whitespace() {
                self.source.tokens.push(Token { line, text: &self.text[start..self.offset] });
            }
        }
    }

    fn comment(&mut self, start: usize, length: usize) {
        let line = self.line;
        let before = self.text[..start].rsplit('\n').next().unwrap_or_default();
        let trailing = !before.trim().is_empty();
        self.consume(length);
        let text = &self.text[start..self.offset];
        self.source.comments.push(Comment { line, text, trailing });
    }

    fn string(&mut self, prefix: StringPrefix) {
        let line = self.line;
        self.consume(prefix.length);
        let rest = &self.text[self.offset..];
        let (inside, closing) = if let Some(hashes) = prefix.raw_hashes {
            let end = format!("\"{}", "#".repeat(hashes));
            (rest.find(&end).unwrap_or(rest.len()), end.len())
        } else {
            (escaped_bytes(rest, b'"'), 1)
        };
        let text = &rest[..inside];
        self.consume((inside + closing).min(rest.len()));
        let raw = prefix.raw_hashes.is_some();
        self.source.strings.push(StringLiteral { line, text, raw });
        // A string is an expression; one token stands for it in the list of tokens.
        self.source.tokens.push(Token { line, text: "\"" });
    }

    fn consume(&mut self, length: usize) {
        let passed = &self.text[self.offset..self.offset + length];
        self.line += passed.matches('\n').count();
        self.offset += length;
    }
}

struct StringPrefix {
    /// Bytes up to and including the opening quote.
    length: usize,
    raw_hashes: Option<usize>,
}

/// The opening of a string literal: `"`, `b"`, `c"`, `r"`, `r#"`, `br##"` and so on.
fn string_prefix(rest: &str) -> Option<StringPrefix> {
    let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
    let raw = match rest.get(..letters)? {
        "" | "b" | "c" => false,
        "r" | "br" | "cr" => true,
        _ => return None,
    };
    let hashes = rest[letters..].bytes().take_while(|byte| *byte == b'#').count();
    let quoted = rest[letters + hashes..].starts_with('"');
    (quoted && (raw || hashes == 0))
        .then_some(StringPrefix { length: letters + hashes + 1, raw_hashes: raw.then_some(hashes) })
}

fn block_comment_bytes(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut idx) = (0, 0);
    while idx + 1 < bytes.len() {
        match &bytes[idx..idx + 2] {
            b"/*" => (depth, idx) = (depth + 1, idx + 2),
            b"*/" => (depth, idx) = (depth - 1, idx + 2),
            _ => idx += 1,
        }
        if depth == 0 {
            return idx;
        }
    }
    rest.len()
}

/// The length of a character literal or of a lifetime; `rest` starts with the quote.
fn quote_bytes(rest: &str) -> usize {
    let inside = &rest[1..];
    if inside.starts_with('\\') {
        return (1 + escaped_bytes(inside, b'\'') + 1).min(rest.len());
    }
    let Some(character) = inside.chars().next() else { return rest.len() };
    if inside[character.len_utf8()..].starts_with('\'') {
        return character.len_utf8() + 2;
    }
    1 + inside.find(|c| !is_word(c)).unwrap_or(inside.len())
}

/// Bytes before the first `end` that no backslash precedes.
fn escaped_bytes(rest: &str, end: u8) -> usize {
    let mut escaped = false;
    for (idx, byte) in rest.bytes().enumerate() {
        if byte == end && !escaped {
            return idx;
        }
        escaped = byte == b'\\' && !escaped;
    }
    rest.len()
}

pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_texts(text: &str) -> Vec<&str> {
        lex(text).tokens.iter().map(|token| token.text).collect()
    }

    #[test]
    fn comment_kinds_and_lines() {
        let source = lex("let a = 1; // trailing\n/// doc\n/* block /* nested */ end */ fn f() {}");
        let comments: Vec<_> =
            source.comments.iter().map(|c| (c.line, c.text, c.trailing)).collect();
        let want = [
            (1, "// trailing", true),
            (2, "/// doc", false),
            (3, "/* block /* nested */ end */", false),
        ];
        assert_eq!(comments, want);
    }

    #[test]
    fn slashes_in_strings_are_not_comments() {
        let source = lex(r#"open("http://host/path \" // not a comment"); // comment"#);
        assert_eq!(source.comments.len(), 1);
        assert_eq!(source.strings[0].text, r#"http://host/path \" // not a comment"#);
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        let source = lex(r###"f(r#"a "quoted" \"#, r"b\", br##"c "# d"##, r#type)"###);
        let texts: Vec<_> = source.strings.iter().map(|literal| literal.text).collect();
        assert_eq!(texts, [r#"a "quoted" \"#, r"b\", r##"c "# d"##]);
        assert!(source.strings.iter().all(|literal| literal.raw));
        assert!(token_texts("r#type").contains(&"type"));
    }

    #[test]
    fn quotes_are_characters_or_lifetimes() {
        let text = r#"fn f<'a>(x: &'a str) { g('"', '\'', '\u{1f}', 'é', b'\\', "s") } // c"#;
        let source = lex(text);
        assert_eq!(source.strings.len(), 1);
        assert_eq!(source.comments.len(), 1);
        assert!(token_texts(text).contains(&"'a"));
        assert!(token_texts(text).contains(&"'\"'"));
    }

    #[test]
    fn string_lines_are_those_of_the_opening_quote() {
        let source = lex("f(\n\"one\ntwo\",\n\"three\")");
        assert_eq!(source.strings[0].line, 2);
        assert_eq!(source.strings[1].line, 4);
    }

    #[test]
    fn unterminated_literals_end_with_the_file() {
        for text in ["\"abc", "r#\"abc\"", "/* abc", "'", "'\\", "b\"\\"] {
            lex(text);
        }
    }
}
