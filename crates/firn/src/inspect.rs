//! `firn inspect`: the contents of a database in a folder that no server has open, of a slow tier,
//! or of a running server.

mod tables;

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use firn_server::{
    DatabaseFlags, DatabaseLocation, InspectGroups, Result, inspect_cardinality, inspect_groups,
    inspect_table, inspect_tables, one_line, redacted,
};
use serde_json::Value;

use crate::http::ServerAccess;
use crate::output;

/// `firn inspect`.
#[derive(Debug, Subcommand)]
pub(crate) enum Inspect {
    /// Bytes that each group saves or costs, most expensive first
    ///
    /// Computed by equations 1 to 6 of TimeUnion (SIGMOD 2022) with the database's own numbers
    /// (docs/groups.md).
    Groups(Groups),
    /// Levels, partitions and tables, or the blocks, chunks and columns of one table
    ///
    /// docs/tiers.md describes levels and partitions.
    Tables(Tables),
    /// Metrics, labels and groups with the most series and bytes in the index
    Cardinality(Cardinality),
}

/// The database to inspect.
#[derive(Debug, Args)]
struct Database {
    #[command(flatten)]
    flags: DatabaseFlags,

    /// Read the slow tier alone, also while a server writes there; its index is copied to a
    /// temporary folder
    #[arg(long)]
    slow_only: bool,
}

impl Database {
    fn location(&self) -> Result<DatabaseLocation> {
        output::report_warnings(&self.flags.warnings());
        let (folder, slow_tier) = self.flags.load()?;
        Ok(DatabaseLocation { folder, slow_tier, is_slow_only: self.slow_only })
    }
}

/// `firn inspect tables`.
#[derive(Debug, Args)]
pub(crate) struct Tables {
    #[command(flatten)]
    database: Database,

    /// Show the blocks, chunks and columns of this table
    #[arg(long, value_name = "NUMBER")]
    table: Option<u64>,

    /// Show only this group of the table, each column with the labels of its series
    #[arg(long, value_name = "NUMBER", requires = "table")]
    group: Option<u64>,

    /// Print JSON instead of text; for one table a line for itself and for each block
    #[arg(long)]
    json: bool,
}

/// `firn inspect cardinality`.
#[derive(Debug, Args)]
pub(crate) struct Cardinality {
    #[command(flatten)]
    database: Database,

    /// Entries to list of each kind, at most 10,000
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    top: usize,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// `firn inspect groups`.
#[derive(Debug, Args)]
pub(crate) struct Groups {
    #[command(flatten)]
    database: Database,

    /// Address of a running server to query instead of opening the folder; https://HOST:PORT with
    /// TLS. Its user needs role read
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,

    #[command(flatten)]
    access: ServerAccess,

    /// Select groups with a member that matches, such as '{job="node"}'; may be repeated
    #[arg(long = "match", value_name = "SELECTOR")]
    selectors: Vec<String>,

    /// Groups to list, 0 for all (a server lists at most 10,000); the totals include all
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    top: usize,

    /// Length of the newest data to examine
    #[arg(long, value_name = "DURATION", default_value = "2h", allow_hyphen_values = true)]
    partition: String,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

// Label values may have 4 KiB, and each of five lists is in memory several times.
const CARDINALITY_TOP_MAX: usize = 10_000;

/// Reads a database and prints the report.
///
/// # Errors
/// Those of opening the database or of the server.
pub(crate) fn inspect(inspect: &Inspect) -> Result<()> {
    let (report, is_json, text): (Value, bool, fn(&Value) -> String) = match inspect {
        Inspect::Groups(groups) => (groups_report(groups)?, groups.json, table),
        Inspect::Cardinality(Cardinality { database, top, json }) => {
            let top = (*top).min(CARDINALITY_TOP_MAX);
            (inspect_cardinality(&database.location()?, top)?, *json, tables::cardinality)
        }
        Inspect::Tables(Tables { database, table: Some(table), group, json }) => {
            return inspect_table(&database.location()?, *table, *group, &mut |part| match json {
                true => output::print_json_line(part),
                false => output::print(&tables::part(part)),
            });
        }
        Inspect::Tables(Tables { database, json, .. }) => {
            (inspect_tables(&database.location()?)?, *json, tables::levels)
        }
    };
    match is_json {
        true => output::print_json(&report),
        false => output::print(&text(&report)),
    }
}

fn groups_report(groups: &Groups) -> Result<Value> {
    match &groups.server {
        Some(server) => server_report(server, groups),
        None => {
            let selectors = groups.selectors.iter().map(String::as_str);
            let request = InspectGroups::parse(selectors, groups.top, &groups.partition)?;
            inspect_groups(&groups.database.location()?, &request)
        }
    }
}

// A server lists at most this number at once.
const SERVER_TOP_MAX: usize = 10_000;

/// The report of a running server.
fn server_report(server: &str, groups: &Groups) -> Result<Value> {
    let shown = redacted(server);
    let top = if groups.top == 0 { SERVER_TOP_MAX } else { groups.top.min(SERVER_TOP_MAX) };
    let mut params = form_urlencoded::Serializer::new(String::new());
    params.append_pair("limit", &top.to_string()).append_pair("partition", &groups.partition);
    for selector in &groups.selectors {
        params.append_pair("match[]", selector);
    }
    let target = format!("/api/v1/status/groups?{}", params.finish());
    let body = groups.access.server(server, &["FIRN_TOKEN"])?.get(&target)?;
    let json: Value = serde_json::from_slice(&body).map_err(|_| {
        let start = String::from_utf8_lossy(body.get(..body.len().min(200)).unwrap_or(&body));
        let what = format!("the server at {shown}: expected JSON, got {:?}", start.trim());
        firn_server::Error::unavailable(what)
    })?;
    match json.get("data") {
        Some(report) => Ok(report.clone()),
        None => {
            let error = json["error"].as_str().unwrap_or("no report");
            Err(firn_server::Error::invalid(format!("the server at {shown}: {error}")))
        }
    }
}

/// A column of the table: its head, and its cell for a group.
type Column = (&'static str, fn(&Value) -> String);

const COLUMNS: [Column; 13] = [
    ("net", |group| bytes(group["net_bytes"].as_f64(), true)),
    ("members", |group| number(&group["members"])),
    ("rule", |group| group["rule"].as_str().unwrap_or_default().to_owned()),
    ("labels", |group| decimal(&group["labels_per_series"])),
    ("shared", |group| number(&group["group_labels"])),
    ("unique", |group| number(&group["unique_labels"])),
    ("index alone", |group| bytes(group["index_bytes"]["alone"].as_f64(), false)),
    ("grouped", |group| bytes(group["index_bytes"]["grouped"].as_f64(), false)),
    ("data alone", |group| bytes(group["data_bytes"]["alone"].as_f64(), false)),
    ("grouped", |group| bytes(group["data_bytes"]["grouped"].as_f64(), false)),
    ("samples/time", |group| per_timestamp(group)),
    ("slow, one", |group| times(&group["slow_seconds_one_member"])),
    ("slow, all", |group| times(&group["slow_seconds_all_members"])),
];

/// A line for each group and one for all.
fn table(report: &Value) -> String {
    let mut lines: Vec<(Vec<String>, String)> =
        vec![(COLUMNS.iter().map(|(head, _)| (*head).to_owned()).collect(), "group".to_owned())];
    let cells = |group: &Value| COLUMNS.iter().map(|(_, cell)| cell(group)).collect::<Vec<_>>();
    let groups = report["groups"].as_array().map_or(&[][..], Vec::as_slice);
    for group in groups {
        lines.push((
            cells(group),
            format!("{} {}", number(&group["group"]), labels(&group["labels"])),
        ));
    }
    let total = &report["total"];
    let all = format!(
        "all {} groups, {} members each",
        number(&total["groups"]),
        decimal(&total["members_per_group"])
    );
    lines.push((cells(total), all));
    let width = |column: usize| lines.iter().map(|line| line.0[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for (cells, group) in &lines {
        for (cell, width) in cells.iter().zip(&widths) {
            // Writing into a string cannot fail.
            let _ = write!(text, "{cell:>width$}  ");
        }
        let _ = writeln!(text, "{group}");
    }
    let shown = groups.len() as u64;
    let left = total["groups"].as_u64().unwrap_or(0).saturating_sub(shown);
    if left > 0 {
        let _ = writeln!(text, "{left} more groups cost less or save more; --top 0 lists all");
    }
    text + "net: bytes that a group costs more than its series alone; a negative number is saved.\n\
            slow: time of the slow tier, alone/grouped, to read one member and all members.\n"
}

fn labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let pairs: Vec<String> =
        pairs.map(|(name, value)| format!("{}={value}", one_line(name))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn number(value: &Value) -> String {
    value.as_u64().unwrap_or(0).to_string()
}

fn decimal(value: &Value) -> String {
    format!("{:.1}", value.as_f64().unwrap_or(0.0))
}

/// Bytes in a unit that leaves at most four digits before the point.
fn bytes(bytes: Option<f64>, signed: bool) -> String {
    let mut value = bytes.unwrap_or(0.0);
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value.abs() < 10_000.0 {
            break;
        }
        value /= 1_024.0;
        unit = larger;
    }
    if signed { format!("{value:+.0} {unit}") } else { format!("{value:.0} {unit}") }
}

/// Samples per stored timestamp.
fn per_timestamp(group: &Value) -> String {
    let samples = group["samples"].as_f64().unwrap_or(0.0);
    match group["timestamps"]["grouped"].as_f64().filter(|&count| count > 0.0) {
        Some(count) => format!("{:.1}", samples / count),
        None => "-".to_owned(),
    }
}

/// Seconds: alone, grouped.
fn times(cost: &Value) -> String {
    let seconds = |name: &str| cost[name].as_f64().unwrap_or(0.0);
    format!("{:.2}/{:.2} s", seconds("alone"), seconds("grouped"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_group_and_one_for_all() {
        let cost = |net: f64| {
            json!({
                "group": 17, "rule": "shared labels", "labels": { "device": "p7" }, "members": 101, "labels_per_series": 2.5,
                "group_labels": 1, "unique_labels": 118, "net_bytes": net, "samples": 300,
                "index_bytes": { "alone": 123_456.0, "grouped": 4_000.0 },
                "data_bytes": { "alone": 20_480.0, "grouped": 9_999.0 },
                "timestamps": { "alone": 300.0, "grouped": 100.0 },
                "slow_seconds_one_member": { "alone": 0.03, "grouped": 0.06 },
                "slow_seconds_all_members": { "alone": 3.03, "grouped": 0.06 },
                "groups": 3, "members_per_group": 50.5,
            })
        };
        let text = table(&json!({ "groups": [cost(42.0), cost(-129_000.0)], "total": cost(-5.0) }));
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
        let text =
            table(&json!({ "groups": [], "total": { "groups": 0, "members_per_group": 0.0 } }));
        assert!(text.contains("all 0 groups"), "{text}");
        assert!(text.lines().count() == 4, "{text}");
    }
}
