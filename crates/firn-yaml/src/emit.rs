//! Printing in block style: two columns of indentation, lists at the column of their key.

use super::decode::Encoded;
use super::scalar::{Kind, kind_of};
use crate::text::quoted;

/// `value` as a document.
pub fn print(value: &Encoded) -> String {
    let mut out = String::new();
    match value {
        Encoded::Map(entries) if !entries.is_empty() => print_map(entries, 0, false, &mut out),
        Encoded::List(items) if !items.is_empty() => print_list(items, 0, &mut out),
        other => {
            print_inline(other, false, &mut out);
            out.push('\n');
        }
    }
    out
}

fn indent(columns: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', columns));
}

/// `is_begun`: the first line is already indented.
fn print_map(entries: &[(String, Encoded)], columns: usize, is_begun: bool, out: &mut String) {
    for (idx, (key, value)) in entries.iter().enumerate() {
        if idx > 0 || !is_begun {
            indent(columns, out);
        }
        print_text(key, false, out);
        out.push(':');
        match value {
            Encoded::Map(entries) if !entries.is_empty() => {
                out.push('\n');
                print_map(entries, columns.saturating_add(2), false, out);
            }
            Encoded::List(items) if !items.is_empty() => {
                out.push('\n');
                print_list(items, columns, out);
            }
            other => {
                out.push(' ');
                print_inline(other, false, out);
                out.push('\n');
            }
        }
    }
}

fn print_list(items: &[Encoded], columns: usize, out: &mut String) {
    for item in items {
        indent(columns, out);
        out.push_str("- ");
        match item {
            Encoded::Map(entries) if !entries.is_empty() => {
                print_map(entries, columns.saturating_add(2), true, out);
            }
            other => {
                print_inline(other, false, out);
                out.push('\n');
            }
        }
    }
}

fn print_inline(value: &Encoded, in_flow: bool, out: &mut String) {
    match value {
        Encoded::Null => out.push_str("null"),
        Encoded::Word(word) => out.push_str(word),
        Encoded::Text(text) => print_text(text, in_flow, out),
        Encoded::List(items) => {
            out.push('[');
            for (idx, item) in items.iter().enumerate() {
                if idx > 0 {
                    out.push_str(", ");
                }
                print_inline(item, true, out);
            }
            out.push(']');
        }
        Encoded::Map(entries) => {
            out.push('{');
            for (idx, (key, value)) in entries.iter().enumerate() {
                if idx > 0 {
                    out.push_str(", ");
                }
                print_text(key, true, out);
                out.push_str(": ");
                print_inline(value, true, out);
            }
            out.push('}');
        }
    }
}

fn print_text(text: &str, in_flow: bool, out: &mut String) {
    if text.chars().any(|c| c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}')) {
        return out.push_str(&quoted(text.as_bytes()));
    }
    if is_plain(text, in_flow) {
        return match kind_of(text) {
            Kind::Text | Kind::Time if text != "<<" && text != "=" => out.push_str(text),
            _ => out.push_str(&quoted(text.as_bytes())),
        };
    }
    if text.is_empty() {
        return out.push_str("\"\"");
    }
    out.push('\'');
    out.push_str(&text.replace('\'', "''"));
    out.push('\'');
}

/// Whether YAML reads `text` back without quotes.
fn is_plain(text: &str, in_flow: bool) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text.chars().nth(1);
    let begins_plain = match first {
        '-' | '?' | ':' => second.is_some_and(|c| c != ' ') && !in_flow && text != "---",
        _ => !"-?:,[]{}#&*!|>'\"%@`".contains(first),
    };
    begins_plain
        && !text.starts_with(' ')
        && !text.ends_with([' ', ':'])
        && !text.starts_with("---")
        && !text.starts_with("...")
        && !text.contains(": ")
        && !text.contains(" #")
        && !(in_flow && text.contains([',', '[', ']', '{', '}', ':', '?']))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Field;
    use crate::decode::from_document;

    #[test]
    fn values_are_printed_in_block_style() {
        let text = |text: &str| Encoded::Text(text.to_owned());
        let map = Encoded::Map(vec![
            ("a".to_owned(), text("b c")),
            ("b".to_owned(), Encoded::List(vec![text("x"), Encoded::Null])),
            ("c".to_owned(), Encoded::List(vec![Encoded::Map(vec![("d".to_owned(), text("15"))])])),
            ("f".to_owned(), Encoded::Map(vec![("g".to_owned(), Encoded::Word("1".to_owned()))])),
            ("h".to_owned(), Encoded::List(Vec::new())),
            ("i".to_owned(), text("$1: x")),
        ]);
        let want = "a: b c\nb:\n- x\n- null\nc:\n- d: \"15\"\nf:\n  g: 1\nh: []\n\
                    i: '$1: x'\n";
        assert_eq!(print(&map), want);
    }

    proptest! {
        #[test]
        fn texts_are_read_back(
            map in proptest::collection::btree_map(
                "[ -~\n\té]{0,12}",
                proptest::collection::vec("[ -~\né]{0,8}|yes|1|~|2020-01-01", 0..3),
                0..4,
            ),
        ) {
            let map: BTreeMap<String, Vec<String>> = map;
            let printed = print(&map.encode());
            let mut read = BTreeMap::<String, Vec<String>>::new();
            from_document(&printed, &mut read).unwrap_or_else(|e| panic!("{e}: {printed}"));
            prop_assert_eq!(read, map, "{}", printed);
        }
    }
}
