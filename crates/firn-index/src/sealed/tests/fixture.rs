//! The bytes of a small segment, compared with docs/formats/index.md.

use std::fmt::Write;

use super::*;
use crate::sealed::format::footer::{self, SEGMENT_CONTENTS};

const PAGE: &str = include_str!("../../../../../docs/formats/index.md");

const SECTIONS: [&str; 13] = [
    "names",
    "lone schemas",
    "part schemas",
    "set schemas",
    "values",
    "lone cells",
    "part cells",
    "set cells",
    "parts",
    "shapes of sets",
    "shapes",
    "lists",
    "names and schemas again",
];
const TABLE_ARRAYS: [&str; 8] = [
    "starts of cells",
    "hash starts",
    "hash tags",
    "hash rows",
    "id starts",
    "id tags",
    "id rows",
    "group ids",
];

/// Two members of group 2, which share a zone, and a lone series in group 6.
fn world() -> ModelSegment {
    let mut world = ModelSegment::default();
    let mut add = |group: u64, slot: u32, pairs: &[(&str, &str)]| {
        let labels = Labels::from_pairs(pairs.iter().copied()).unwrap();
        let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
        let lone = group == 6;
        let identity = if lone { labels.clone() } else { labels.filter(is_identity) };
        world.groups.insert(series.group, (identity, lone));
        world.series.insert(labels, series);
    };
    for (slot, name) in (0..).zip(["up", "x"]) {
        add(2, slot, &[("__name__", name), ("a", "1"), ("job", "j"), ("zone", "z")]);
    }
    add(6, 0, &[("__name__", "up")]);
    world.forget_next_slots();
    world
}

/// One line per piece of the file: its name and its bytes.
fn described(bytes: &[u8]) -> String {
    let (_, contents) =
        footer::open(Mapped::from(bytes.to_vec()), "page", SEGMENT_CONTENTS).unwrap();
    let mut pieces = vec![("header".to_owned(), 0)];
    let of_sections = contents.sections.iter().zip(SECTIONS);
    pieces.extend(of_sections.map(|(section, name)| (name.to_owned(), section.start)));
    let mut arrays = vec!["starts of values".to_owned()];
    for table in ["lone", "part", "set"] {
        arrays.extend(TABLE_ARRAYS.iter().map(|array| format!("{table} {array}")));
    }
    arrays
        .extend(["parts", "shapes of sets", "shapes", "lists"].map(|of| format!("starts of {of}")));
    assert_eq!(arrays.len(), contents.arrays.len());
    pieces.extend(arrays.into_iter().zip(&contents.arrays).map(|(name, array)| {
        (format!("{name}: {} of {} bits", array.count, array.width), array.start)
    }));
    let tail_at = bytes.len() - 12;
    let footer_bytes = u32::from_le_bytes(bytes[tail_at..tail_at + 4].try_into().unwrap());
    pieces.push(("footer".to_owned(), tail_at - footer_bytes as usize));
    pieces.push(("tail".to_owned(), tail_at));
    // Empty pieces come before a piece with the same start.
    pieces.sort_by_key(|piece| piece.1);
    let ends = pieces.iter().skip(1).map(|piece| piece.1).chain([bytes.len()]);
    let mut text = String::new();
    for ((name, start), end) in pieces.iter().zip(ends) {
        if *start == end {
            continue;
        }
        write!(text, "{name}\n   ").unwrap();
        let (mut shown, mut rest) = (0, &bytes[*start..end]);
        while let Some((byte, after)) = rest.split_first() {
            let zeros = rest.iter().take_while(|byte| **byte == 0).count();
            if shown > 0 && shown % 32 == 0 {
                text.push_str("\n   ");
            }
            shown += 1;
            if zeros >= 16 {
                write!(text, " 00*{zeros}").unwrap();
                rest = &rest[zeros..];
            } else {
                write!(text, " {byte:02x}").unwrap();
                rest = after;
            }
        }
        text.push('\n');
    }
    text
}

/// The bytes of a description: its indented lines.
fn bytes_of(text: &str) -> Vec<u8> {
    let words =
        text.lines().filter(|line| line.starts_with("    ")).flat_map(str::split_whitespace);
    words
        .flat_map(|word| match word.split_once('*') {
            Some((byte, count)) => {
                vec![u8::from_str_radix(byte, 16).unwrap(); count.parse().unwrap()]
            }
            None => vec![u8::from_str_radix(word, 16).unwrap()],
        })
        .collect()
}

#[test]
fn the_page_shows_the_written_bytes_and_they_can_be_read() {
    let (_, example) = PAGE.split_once("## Example\n").expect("an example");
    let example = example.split("```").nth(1).and_then(|block| block.strip_prefix("text\n"));
    let example = example.expect("a block of text");
    let world = world();
    let pairs = pairs_of(&world);
    let mut builder = Builder::new(&[PairSource::Memory(&pairs)]).unwrap();
    add(&mut builder, (0, &pairs), &world);
    let file = file();
    builder.finish(&*file).unwrap();
    let written = described(&file.map().unwrap());
    check(&Sealed::open(Mapped::from(bytes_of(&written)), "written").unwrap(), &world);
    assert_eq!(example, written, "docs/formats/index.md should show\n{written}");
    check(&Sealed::open(Mapped::from(bytes_of(example)), "page").unwrap(), &world);
}
