//! What groups save or cost, as JSON: of a server by `/api/v1/status/groups`, of a folder that no server has
//! open by [`inspect_groups`]. Both give the same.

use std::path::Path;

use firn_model::{Error, ErrorKind, Labels, Matcher, Result};
use firndb::{
    CancelToken, CheckProgress, CheckReport, Cost, CostOptions, Db, GroupCost, GroupCosts, Options,
    RecoveryProgress,
};
use serde_json::{Map, Value, json};

use crate::wire::number::parse_unit_duration_ms;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct InspectGroups {
    /// Only groups with a member that one of these matches; all without any.
    pub selectors: Vec<Vec<Matcher>>,
    /// So many groups are listed, 0 for all; the totals are of all.
    pub top: usize,
    /// What the costs are reckoned with.
    pub options: CostOptions,
}

impl InspectGroups {
    /// From texts as they are typed: selectors, a number, a duration such as `2h`.
    ///
    /// # Errors
    /// `Invalid` with the text that is not understood.
    pub fn parse<'a>(
        selectors: impl Iterator<Item = &'a str>,
        top: usize,
        partition: &str,
    ) -> Result<InspectGroups> {
        let parse = |text| {
            firn_promql::parse_selector(text)
                .map_err(|e| Error::invalid(format!("selector {text:?}: {e}")))
        };
        let partition_ms = parse_unit_duration_ms(partition)
            .filter(|&ms| ms > 0)
            .ok_or_else(|| Error::invalid(format!("{partition:?} is no duration such as 2h")))?;
        let options = CostOptions { partition_ms, ..CostOptions::default() };
        Ok(InspectGroups { selectors: selectors.map(parse).collect::<Result<_>>()?, top, options })
    }
}

/// The groups of the database in `folder`, which no other process may have open. Its log is read as at a
/// start; nothing is written to tables.
///
/// # Errors
/// `NotFound` when there is no database, `Busy` when a server has it open, and those of [`Db::open`].
pub fn inspect_groups(
    folder: &Path,
    slow_tier: Option<&str>,
    asked: &InspectGroups,
) -> Result<Value> {
    let db = open_idle(folder, slow_tier, "ask that one with --server")?;
    let costs = db.group_costs(&asked.selectors, &asked.options, &db.context())?;
    Ok(costs_json(&costs, asked))
}

/// Reads every byte of the database in `folder`, which no other process may have open, against its checksum;
/// with `repairs`, damaged tables are written anew without what is lost.
///
/// # Errors
/// `NotFound` when there is no database, `Busy` when a server has it open, and those of [`Db::check`].
pub fn check_folder(
    folder: &Path,
    slow_tier: Option<&str>,
    repairs: bool,
    each: &mut dyn FnMut(&CheckProgress),
) -> Result<CheckReport> {
    let db = open_idle(folder, slow_tier, "stop that one first")?;
    db.check(repairs, &CancelToken::new(), each)
}

/// The database of a folder without its maintenance. Its log is read as at a start.
fn open_idle(folder: &Path, slow_tier: Option<&str>, or_else: &str) -> Result<Db> {
    let shown = folder.display();
    if !folder.join("fast").is_dir() {
        return Err(Error::not_found(format!("there is no database in {shown}")));
    }
    let slow_tier =
        slow_tier.map_or_else(|| folder.join("slow").display().to_string(), str::to_owned);
    let opened = firndb::local_env_with_slow_tier(folder, &slow_tier)
        .and_then(|env| Db::open_idle(env, Options::default(), &RecoveryProgress::default()));
    opened.map_err(|error| match error.kind() {
        ErrorKind::Busy { .. } => {
            error.context(format!("the database in {shown} is open in another process; {or_else}"))
        }
        _ => error.context(format!("cannot open the database in {shown}")),
    })
}

/// The report: options, totals, and the groups that cost most.
pub(crate) fn costs_json(costs: &GroupCosts, asked: &InspectGroups) -> Value {
    let shown_count = if asked.top == 0 { costs.groups.len() } else { asked.top };
    let group = |(id, labels, cost): &(_, Labels, GroupCost)| {
        let mut group = cost_json(cost);
        let firndb::GroupId(id) = *id;
        group.insert("group".to_owned(), json!(id));
        let labels: Map<String, Value> =
            labels.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        group.insert("labels".to_owned(), Value::Object(labels));
        Value::Object(group)
    };
    let mut total = cost_json(&costs.total);
    let group_count = costs.groups.len() as f64;
    total.insert("groups".to_owned(), json!(costs.groups.len()));
    total.insert(
        "members_per_group".to_owned(),
        json!(ratio(costs.total.series_count as f64, group_count)),
    );
    let options = &asked.options;
    json!({
        "start": costs.range.start,
        "end": costs.range.end,
        "options": {
            "partition_ms": options.partition_ms,
            "posting_bytes": options.posting_bytes,
            "fast_seconds_per_byte": options.fast_seconds_per_byte,
            "slow_seconds_per_block": options.slow_seconds_per_block,
            "block_bytes": options.block_bytes,
        },
        "total": total,
        "groups": costs.groups.iter().take(shown_count).map(group).collect::<Value>(),
    })
}

fn cost_json(cost: &GroupCost) -> Map<String, Value> {
    let raw_bytes = 16.0 * cost.sample_count as f64;
    let fields = [
        ("members", json!(cost.series_count)),
        ("labels_per_series", json!(ratio(cost.pair_count as f64, cost.series_count as f64))),
        ("group_labels", json!(cost.group_pair_count)),
        ("unique_labels", json!(cost.unique_pair_count)),
        ("bytes_per_label", json!(ratio(cost.pair_bytes as f64, cost.pair_count as f64))),
        ("index_bytes", pair(cost.index_bytes)),
        ("samples", json!(cost.sample_count)),
        ("timestamps", pair(cost.timestamp_count)),
        ("data_bytes", pair(cost.data_bytes)),
        (
            "compression",
            pair(Cost {
                alone: ratio(raw_bytes, cost.data_bytes.alone),
                grouped: ratio(raw_bytes, cost.data_bytes.grouped),
            }),
        ),
        ("fast_seconds_one_member", pair(cost.fast_seconds_one)),
        ("fast_seconds_all_members", pair(cost.fast_seconds_all)),
        ("slow_seconds_one_member", pair(cost.slow_seconds_one)),
        ("slow_seconds_all_members", pair(cost.slow_seconds_all)),
        ("net_bytes", json!(cost.net_bytes())),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn pair(cost: Cost) -> Value {
    json!({ "alone": cost.alone, "grouped": cost.grouped })
}

/// 0 where there is nothing to divide by.
fn ratio(of: f64, by: f64) -> f64 {
    if by > 0.0 { of / by } else { 0.0 }
}
