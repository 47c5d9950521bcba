//! `firn inspect`: the contents of a database in a folder that no server has open, of a slow tier,
//! or of a running server.

mod groups;
mod tables;

use clap::{Args, Subcommand};
use firn_server::{
    DatabaseFlags, DatabaseLocation, InspectGroups, Result, inspect_cardinality, inspect_groups,
    inspect_table, inspect_tables, redacted,
};
use serde_json::Value;

use crate::http::ServerAccess;
use crate::output;
use groups::GroupsReport;

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
        Inspect::Groups(groups) => {
            let (report, costs) = groups_report(groups)?;
            return match groups.json {
                true => output::print_json(&report),
                false => output::print(&costs.table()),
            };
        }
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

/// The report, and its parts for a table.
fn groups_report(groups: &Groups) -> Result<(Value, GroupsReport)> {
    let report = match &groups.server {
        Some(server) => return server_report(server, groups),
        None => {
            let selectors = groups.selectors.iter().map(String::as_str);
            let request = InspectGroups::parse(selectors, groups.top, &groups.partition)?;
            inspect_groups(&groups.database.location()?, &request)?
        }
    };
    let costs = GroupsReport::parse(&report)?;
    Ok((report, costs))
}

// A server lists at most this number at once.
const SERVER_TOP_MAX: usize = 10_000;
/// Values of a report, by its commas: groups have some 60. A value of two bytes takes 64 in memory.
const VALUES_MAX: usize = 4_000_000;

/// # Errors
/// `Unavailable` for a report that takes too much memory.
fn check_values(report: &[u8]) -> Result<()> {
    match report.iter().filter(|byte| **byte == b',').count() {
        0..=VALUES_MAX => Ok(()),
        count => Err(firn_server::Error::unavailable(format!(
            "the report has {count} values, expected at most {VALUES_MAX}"
        ))),
    }
}

/// The report of a running server.
fn server_report(server: &str, groups: &Groups) -> Result<(Value, GroupsReport)> {
    let shown = redacted(server);
    let top = if groups.top == 0 { SERVER_TOP_MAX } else { groups.top.min(SERVER_TOP_MAX) };
    let mut params = form_urlencoded::Serializer::new(String::new());
    params.append_pair("limit", &top.to_string()).append_pair("partition", &groups.partition);
    for selector in &groups.selectors {
        params.append_pair("match[]", selector);
    }
    let target = format!("/api/v1/status/groups?{}", params.finish());
    let body = groups.access.server(server, &["FIRN_TOKEN"])?.get(&target)?;
    check_values(&body).map_err(|error| error.context(format!("the server at {shown}")))?;
    let mut json: Value = serde_json::from_slice(&body).map_err(|_| {
        let start = String::from_utf8_lossy(body.get(..body.len().min(200)).unwrap_or(&body));
        let what = format!("the server at {shown}: expected JSON, got {:?}", start.trim());
        firn_server::Error::unavailable(what)
    })?;
    if let Some(error) = json.get("error").and_then(Value::as_str) {
        return Err(firn_server::Error::invalid(format!("the server at {shown}: {error}")));
    }
    let report = json.get_mut("data").map(Value::take).unwrap_or_default();
    let costs = GroupsReport::parse(&report)
        .map_err(|error| error.context(format!("the server at {shown}")))?;
    Ok((report, costs))
}

fn number(value: &Value) -> String {
    value.as_u64().unwrap_or(0).to_string()
}

/// Bytes in a unit that leaves at most four digits before the point.
fn bytes(bytes: f64, signed: bool) -> String {
    let mut value = bytes;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, 64 MiB of such a response took 2 GB.
    #[test]
    fn a_report_with_very_many_values_is_refused() {
        assert!(check_values(format!("[{}0]", "0,".repeat(VALUES_MAX)).as_bytes()).is_ok());
        let error = check_values(format!("[{}0]", "0,".repeat(VALUES_MAX + 1)).as_bytes());
        assert!(error.unwrap_err().to_string().contains("has 4000001 values"));
    }
}
