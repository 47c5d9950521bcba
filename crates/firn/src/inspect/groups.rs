//! The report of the costs of groups, of a database or of a running server, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use firn_model::excerpt_within;
use firn_promql::go_quote;
use firn_server::{Error, Result, one_line};
use serde::Deserialize;
use serde_json::Value;

use super::bytes;

/// The parts of a report that the table shows. Each key must be there.
#[derive(Debug, Deserialize)]
pub(super) struct GroupsReport {
    groups: Vec<GroupReport>,
    total: TotalReport,
}

#[derive(Debug, Deserialize)]
struct GroupReport {
    group: u64,
    rule: String,
    labels: BTreeMap<String, String>,
    #[serde(flatten)]
    costs: Costs,
}

#[derive(Debug, Deserialize)]
struct TotalReport {
    groups: u64,
    members_per_group: f64,
    #[serde(flatten)]
    costs: Costs,
}

#[derive(Debug, Deserialize)]
struct Costs {
    net_bytes: f64,
    members: u64,
    labels_per_series: f64,
    group_labels: u64,
    unique_labels: u64,
    samples: u64,
    index_bytes: Pair,
    data_bytes: Pair,
    timestamps: Pair,
    slow_seconds_one_member: Pair,
    slow_seconds_all_members: Pair,
}

/// The cost of series alone and of their group.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Pair {
    alone: f64,
    grouped: f64,
}

const COLUMNS: [&str; 13] = [
    "net",
    "members",
    "rule",
    "labels",
    "shared",
    "unique",
    "index alone",
    "grouped",
    "data alone",
    "grouped",
    "samples/time",
    "slow, one",
    "slow, all",
];

/// The longest text of a cell.
const CELL_BYTES_MAX: usize = 32;

impl GroupsReport {
    /// Reads `report`.
    ///
    /// # Errors
    /// `Unavailable` for a missing key and for a value of another type, with its name.
    pub(super) fn parse(report: &Value) -> Result<GroupsReport> {
        GroupsReport::deserialize(report).map_err(|error| {
            Error::unavailable(format!("expected the savings and costs of groups, got {error}"))
        })
    }

    /// A line for each group and one for all.
    pub(super) fn table(&self) -> String {
        let mut lines = vec![(COLUMNS.map(str::to_owned), "group".to_owned())];
        for group in &self.groups {
            let name = format!("{} {}", group.group, labels(&group.labels));
            lines.push((group.costs.cells(&group.rule), name));
        }
        let total = &self.total;
        let all =
            format!("all {} groups, {:.1} members each", total.groups, total.members_per_group);
        lines.push((total.costs.cells(""), all));
        let mut widths = [0; COLUMNS.len()];
        for (cells, _) in &lines {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.len().max(*width);
            }
        }
        let mut text = String::new();
        for (cells, group) in &lines {
            for (cell, width) in cells.iter().zip(&widths) {
                // Writing into a string cannot fail.
                let _ = write!(text, "{cell:>width$}  ");
            }
            let _ = writeln!(text, "{group}");
        }
        let left = total.groups.saturating_sub(self.groups.len() as u64);
        if left > 0 {
            let _ = writeln!(text, "{left} more groups cost less or save more; --top 0 lists all");
        }
        text + "net: bytes that a group costs more than its series alone; a negative number is \
                saved.\n\
                slow: time of the slow tier, alone/grouped, to read one member and all members.\n"
    }
}

impl Costs {
    fn cells(&self, rule: &str) -> [String; COLUMNS.len()] {
        let cells = [
            bytes(self.net_bytes, true),
            self.members.to_string(),
            one_line(rule).into_owned(),
            format!("{:.1}", self.labels_per_series),
            self.group_labels.to_string(),
            self.unique_labels.to_string(),
            bytes(self.index_bytes.alone, false),
            bytes(self.index_bytes.grouped, false),
            bytes(self.data_bytes.alone, false),
            bytes(self.data_bytes.grouped, false),
            self.samples_per_timestamp(),
            self.slow_seconds_one_member.seconds(),
            self.slow_seconds_all_members.seconds(),
        ];
        // A column is as wide as its longest cell, in each line: a long text would be repeated.
        cells.map(|cell| excerpt_within(&cell, CELL_BYTES_MAX).into_owned())
    }

    fn samples_per_timestamp(&self) -> String {
        match self.timestamps.grouped > 0.0 {
            true => format!("{:.1}", self.samples as f64 / self.timestamps.grouped),
            false => "-".to_owned(),
        }
    }
}

impl Pair {
    fn seconds(self) -> String {
        format!("{:.2}/{:.2} s", self.alone, self.grouped)
    }
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    let pair = |(name, value): (&String, &String)| {
        format!("{}={}", one_line(name), go_quote(value.as_bytes()))
    };
    let pairs: Vec<String> = labels.iter().map(pair).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cost(net: f64) -> Value {
        json!({
            "group": 17, "rule": "shared labels", "labels": { "device": "p7" }, "members": 101,
            "labels_per_series": 2.5, "group_labels": 1, "unique_labels": 118, "net_bytes": net,
            "samples": 300, "index_bytes": { "alone": 123_456.0, "grouped": 4_000.0 },
            "data_bytes": { "alone": 20_480.0, "grouped": 9_999.0 },
            "timestamps": { "alone": 300.0, "grouped": 100.0 },
            "slow_seconds_one_member": { "alone": 0.03, "grouped": 0.06 },
            "slow_seconds_all_members": { "alone": 3.03, "grouped": 0.06 },
        })
    }

    fn total(net: f64, groups: u64) -> Value {
        let mut total = cost(net);
        total["groups"] = json!(groups);
        total["members_per_group"] = json!(50.5);
        total
    }

    /// Before, each line of the table was as long as the longest text of a server.
    #[test]
    fn a_long_text_is_not_repeated_in_each_line() {
        let groups: Vec<Value> = (0..100)
            .map(|idx| {
                let mut cost = cost(1e300);
                cost["rule"] = json!("r".repeat(if idx == 0 { 100_000 } else { 1 }));
                cost
            })
            .collect();
        let report = json!({ "groups": groups, "total": total(-5.0, 100) });
        let text = GroupsReport::parse(&report).unwrap().table();
        assert!(text.len() < 100_000 && text.contains("... (100000 bytes)"), "{}", text.len());
    }

    #[test]
    fn the_table_has_a_line_for_each_group_and_one_for_all() {
        let report = json!({ "groups": [cost(42.0), cost(-129_000.0)], "total": total(-5.0, 3) });
        let text = GroupsReport::parse(&report).unwrap().table();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[0].ends_with("group") && lines[0].trim_start().starts_with("net"));
        assert!(lines[1].trim_start().starts_with("+42 B"), "{text}");
        assert!(lines[2].trim_start().starts_with("-126 KiB"), "{text}");
        assert!(lines[1].ends_with("17 {device=\"p7\"}"), "{text}");
        for cell in [
            "101",
            "shared labels",
            "2.5",
            "118",
            "121 KiB",
            "4000 B",
            "20 KiB",
            "9999 B",
            "3.0",
            "0.03/0.06 s",
        ] {
            assert!(lines[1].contains(cell), "{cell} is not in {text}");
        }
        assert!(lines[3].ends_with("all 3 groups, 50.5 members each"), "{text}");
        assert!(lines[4].starts_with("1 more groups"), "{text}");
        let columns = |line: &str| line.find(" B").map(|at| at + 2);
        assert_eq!(columns(lines[1]), columns(lines[3]), "numbers are aligned");
    }

    #[test]
    fn an_empty_database_has_an_empty_table() {
        let report = json!({ "groups": [], "total": total(0.0, 0) });
        let text = GroupsReport::parse(&report).unwrap().table();
        assert!(text.contains("all 0 groups"), "{text}");
        assert!(text.lines().count() == 4, "{text}");
    }

    /// Each missing key was a zero, and the command succeeded.
    #[test]
    fn a_report_without_a_key_is_an_error_that_names_it() {
        let whole = json!({ "groups": [cost(1.0)], "total": total(1.0, 1) });
        let error = |report: &Value| GroupsReport::parse(report).unwrap_err().to_string();
        for key in cost(1.0).as_object().unwrap().keys() {
            let mut report = whole.clone();
            report["groups"][0].as_object_mut().unwrap().remove(key);
            assert!(error(&report).contains(&format!("missing field `{key}`")), "{key}");
            let other = if key == "rule" { json!(1) } else { json!("text") };
            report["groups"][0][key] = other;
            assert!(error(&report).contains("invalid type"), "{key}");
        }
        for report in [json!({}), json!([]), json!(null), json!({ "groups": [] })] {
            assert!(error(&report).starts_with("expected the savings and costs of groups"));
        }
    }

    #[test]
    fn texts_of_a_server_add_no_line() {
        let mut group = cost(1.0);
        group["rule"] = json!("a\nerror: forged");
        group["labels"] = json!({ "a\nerror: forged": "b\nerror: forged\u{9b}" });
        let report = json!({ "groups": [group], "total": total(1.0, 1) });
        let text = GroupsReport::parse(&report).unwrap().table();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(!text.contains('\u{9b}'), "{text}");
    }
}
