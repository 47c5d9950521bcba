//! Tables and their parts, as text.

use std::fmt::Write as _;

use firn_server::one_line;
use serde_json::Value;

use super::{bytes, number};

/// Levels, with a line for each partition and each of its tables.
pub(super) fn levels(report: &Value) -> String {
    let mut text = String::new();
    for level in list(&report["levels"]) {
        let partitions = list(&level["partitions"]);
        let tables = || partitions.iter().flat_map(|partition| list(&partition["tables"]));
        let sum = |name: &str| tables().filter_map(|table| table[name].as_u64()).sum::<u64>();
        let patches = tables().filter(|table| table["patch"] == true).count();
        line(
            &mut text,
            0,
            format!(
                "level {} ({} tier): {} partitions, {} tables ({patches} patches), {}, {} \
                 samples{}",
                level["level"],
                level["tier"].as_str().unwrap_or_default(),
                partitions.len(),
                tables().count(),
                size(sum("bytes")),
                sum("samples"),
                each(sum("bytes"), sum("samples")),
            ),
        );
        for partition in partitions {
            let minutes = partition["length_ms"].as_f64().unwrap_or_default() / 60_000.0;
            line(&mut text, 1, format!("{} for {minutes} min", word(&partition["start"])));
            list(&partition["tables"]).iter().for_each(|table| line(&mut text, 2, of_table(table)));
        }
    }
    text
}

/// A table, or one of its blocks.
pub(super) fn part(part: &Value) -> String {
    let mut text = String::new();
    if part["table"].is_u64() {
        line(&mut text, 0, of_table(part));
        return text;
    }
    let (stored, payload) = (count(&part["bytes"]), count(&part["payload_bytes"]));
    let packed = if payload > stored { format!(" (packed {payload})") } else { String::new() };
    line(
        &mut text,
        1,
        format!(
            "block at {}: {stored} bytes{packed}, groups {}, {} to {}",
            part["block"],
            ends(&part["groups"]),
            word(&part["start"]),
            word(&part["end"])
        ),
    );
    if let Some(damage) = part["damaged"].as_str() {
        line(&mut text, 2, format!("damaged: {damage}"));
    }
    for chunk in list(&part["chunks"]) {
        of_chunk(&mut text, chunk);
    }
    text
}

fn of_table(table: &Value) -> String {
    let (bytes, samples) = (count(&table["bytes"]), count(&table["samples"]));
    format!(
        "table {}{}: {}, {samples} samples{}, groups {}, {} chunks in {} blocks, {} to {}, \
         commits {}, written {}",
        table["table"],
        if table["patch"] == true { " (patch)" } else { "" },
        size(bytes),
        each(bytes, samples),
        ends(&table["groups"]),
        table["chunks"],
        table["blocks"],
        word(&table["start"]),
        word(&table["end"]),
        ends(&table["commits"]),
        word(&table["written"]),
    )
}

fn of_chunk(text: &mut String, chunk: &Value) {
    let labels = chunk["labels"].as_str().unwrap_or("{group is not in the index}");
    line(
        text,
        2,
        format!(
            "chunk of group {} {labels}: {} bytes, {} to {}, commits {}",
            chunk["group"],
            chunk["bytes"],
            word(&chunk["start"]),
            word(&chunk["end"]),
            ends(&chunk["commits"])
        ),
    );
    for times in list(&chunk["times"]) {
        line(
            text,
            3,
            format!(
                "{} times: {}, {} bytes",
                times["entries"],
                word(&times["codec"]),
                times["bytes"]
            ),
        );
    }
    for values in list(&chunk["values"]) {
        let codec = word(&values["codec"]);
        line(
            text,
            3,
            match values["columns"].as_u64() {
                Some(columns) => format!("{columns} columns: {codec}, {} bytes", values["bytes"]),
                None => format!(
                    "slot {} {}: {} values, {codec}, {} bytes",
                    values["slot"],
                    values["labels"].as_str().unwrap_or("{series is not in the index}"),
                    values["entries"],
                    values["bytes"]
                ),
            },
        );
    }
}

/// The largest metrics, label pairs, groups and labels, a table for each kind.
pub(super) fn cardinality(report: &Value) -> String {
    let mut text = format!(
        "{} series in {} groups, {} label names, {} label pairs\n",
        report["series"], report["groups"], report["label_names"], report["label_pairs"]
    );
    for (name, head) in [
        ("series_by_metric", "series by metric"),
        ("series_by_pair", "series by label pair"),
        ("series_by_group", "series by group"),
        ("values_by_label", "values by label"),
        ("bytes_by_label", "bytes of label values"),
    ] {
        line(&mut text, 0, head.to_owned());
        for count in list(&report[name]) {
            line(
                &mut text,
                1,
                format!("{:>12}  {}", number(&count["count"]), word(&count["name"])),
            );
        }
    }
    text
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// `[1,3]` as `1 to 3`.
fn ends(pair: &Value) -> String {
    format!("{} to {}", pair[0], pair[1])
}

fn size(size: u64) -> String {
    bytes(size as f64, false)
}

/// Bytes per sample.
fn each(bytes: u64, samples: u64) -> String {
    if samples == 0 { String::new() } else { format!(" of {:.2} B", bytes as f64 / samples as f64) }
}

fn line(text: &mut String, depth: usize, line: String) {
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{:indent$}{}", "", one_line(&line), indent = 2 * depth);
}
