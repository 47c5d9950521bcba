//! Texts: letter case, escapes, addresses.

use std::fmt::Write;

use firn_promql::is_printable;

/// Upper case, letter by letter: letters whose upper case has several stay.
pub(super) fn to_upper(text: &str) -> String {
    text.chars().map(upper).collect()
}

/// Lower case, letter by letter.
pub(super) fn to_lower(text: &str) -> String {
    text.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect()
}

fn upper(c: char) -> char {
    let mut mapped = c.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(mapped), None) => mapped,
        _ => c,
    }
}

/// Raises the first letter of each word, as `cases.Title` of Go's `x/text`, which approximates the
/// words of Unicode, annex 29: one sign such as an apostrophe or a point divides no word.
pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    let mut after_middle = false;
    for c in text.chars() {
        let is_middle = MIDDLE.contains(&c);
        in_word &= !(after_middle && is_middle);
        match is_cased(c) && !in_word {
            true => push_title(&mut out, c),
            false => out.push(c),
        }
        in_word = is_cased(c) || in_word && (is_middle || is_word_part(c));
        after_middle = is_middle;
    }
    out
}

/// Signs between letters that divide no word.
const MIDDLE: [char; 15] = [
    '\'', '.', ':', '\u{b7}', '\u{387}', '\u{55f}', '\u{5f4}', '\u{2018}', '\u{2019}', '\u{2024}',
    '\u{2027}', '\u{fe13}', '\u{fe55}', '\u{ff07}', '\u{ff1a}',
];

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// Letters, digits and marks, except for scripts without spaces between words.
fn is_word_part(c: char) -> bool {
    match u32::from(c) {
        0x5f | 0xad | 0x300..=0x36f | 0x200d | 0xfe00..=0xfe0f => true,
        0xe00..=0xeff | 0x2e80..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x3ffff => false,
        _ => c.is_alphanumeric(),
    }
}

fn push_title(out: &mut String, c: char) {
    // Digraphs have a form of their own for titles.
    let digraph = match c {
        '\u{1c4}'..='\u{1c6}' => Some('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => Some('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => Some('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => Some('\u{1f2}'),
        _ => None,
    };
    let mut mapped = c.to_uppercase();
    out.push(digraph.or_else(|| mapped.next()).unwrap_or(c));
    if digraph.is_none() {
        out.extend(mapped.flat_map(char::to_lowercase));
    }
}

/// As Go's `HTMLEscapeString`.
pub(super) fn html_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

/// As Go's `JSEscapeString`.
pub(super) fn js_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            // Writing to a string cannot fail.
            c if matches!(c, '<' | '>' | '&' | '=')
                || c < ' '
                || !c.is_ascii() && !is_printable(c) =>
            {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// As Go's `QueryEscape`.
pub(super) fn query_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            // Writing to a string cannot fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// Host and port of an address, as Go splits them. `None` if it has no port, or a wrong form.
pub(super) fn split_host_port(address: &str) -> Option<(&str, &str)> {
    let (before, port) = address.rsplit_once(':')?;
    let host = match address.strip_prefix('[') {
        Some(inside) => {
            let (host, after) = inside.split_once(']')?;
            // The last colon must be the one behind the bracket.
            (after.strip_prefix(':')? == port).then_some(())?;
            host
        }
        None if before.contains(':') => return None,
        None => before,
    };
    let rest = address.strip_prefix('[').unwrap_or(address);
    let closing_count = usize::from(rest.len() < address.len());
    let is_plain = !rest.contains('[') && rest.matches(']').count() == closing_count;
    is_plain.then_some((host, port))
}

/// As Go's `JoinHostPort`.
pub(super) fn join_host_port(host: &str, port: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// The path of a URL, without escapes.
pub(super) fn url_path(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let path = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|start| rest.get(start..)).unwrap_or_default(),
        None => url,
    };
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        let escaped = rest
            .strip_prefix('%')
            .and_then(|digits| digits.get(..2))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let length = match escaped {
            Some(byte) => {
                bytes.push(byte);
                3
            }
            None => {
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                c.len_utf8()
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_as_in_go() {
        let f = |text| split_host_port(text);
        assert_eq!(f("host:80"), Some(("host", "80")));
        assert_eq!(f("[::1]:80"), Some(("::1", "80")));
        assert_eq!(f("host:"), Some(("host", "")));
        for wrong in ["host", "::1", "[::1]", "[::1]::80", "[::1", "a]b:80", "[a[b]:80", "[a]b:80"]
        {
            assert_eq!(f(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn words_begin_with_a_raised_letter() {
        for (text, want) in [
            ("aa bb CC", "Aa Bb CC"),
            ("it's foo-bar", "It's Foo-Bar"),
            ("straße ßa ǆa", "Straße Ssa ǅa"),
            ("foo_bar.baz:qux", "Foo_bar.baz:qux"),
            ("a1.b2 1.b 5xx a..b a,b", "A1.b2 1.B 5Xx A..B A,B"),
            ("_a a_b a日b a\u{301}b", "_A A_b A日B A\u{301}b"),
        ] {
            assert_eq!(title(text), want);
        }
    }

    #[test]
    fn paths_of_urls_have_no_escapes() {
        for (url, path) in [
            ("http://h:9090/a%20b/c?x=/y#z", "/a b/c"),
            ("http://h", ""),
            ("/prefix", "/prefix"),
            ("http://h/%zz", "/%zz"),
        ] {
            assert_eq!(url_path(url), path);
        }
    }
}
