//! Contents of a database as JSON, for `firn inspect` and `firn check`: of a folder that no server
//! has open, or of a slow tier alone, also while a server writes there. The latter uses a read-only
//! copy of the index. Costs of groups equal those of `/api/v1/status/groups`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use firn_codec::ColumnOutline;
use firn_model::{Error, ErrorKind, Labels, Matcher, QueryContext, Result, excerpt};
use firndb::{
    BlockOutline, CancelToken, CheckProgress, CheckReport, ChunkOutline, Cost, CostOptions, Db,
    GroupCost, GroupCosts, GroupId, Level, Options, RecoveryProgress, TableId, TableRecord,
};
use serde_json::{Map, Value, json};

use crate::scratch::ScratchFolder;
use crate::wire::number::{parse_unit_duration_ms, rfc3339};

/// A database to inspect.
#[derive(Clone, Debug)]
pub struct DatabaseLocation {
    /// Its folder.
    pub folder: PathBuf,
    /// The location of its history; `None`: in the folder.
    pub slow_tier: Option<String>,
    /// Read the slow tier only; the folder's own database is not opened and need not exist.
    pub is_slow_only: bool,
}

/// Selects groups and the parameters of their costs.
#[derive(Clone, Debug, Default)]
pub struct InspectGroups {
    /// Only groups with a member that one of these matches; all without any.
    pub selectors: Vec<Vec<Matcher>>,
    /// Number of listed groups, 0 for all; totals cover all.
    pub top: usize,
    /// Parameters of the cost model.
    pub options: CostOptions,
}

impl InspectGroups {
    /// The number of groups that are listed at most.
    pub(crate) fn shown_count(&self) -> usize {
        if self.top == 0 { usize::MAX } else { self.top }
    }

    /// Parses selectors and a duration such as `2h` of our own user.
    ///
    /// # Errors
    /// `Invalid` with the text that does not parse.
    pub fn parse<'a>(
        selectors: impl Iterator<Item = &'a str>,
        top: usize,
        partition: &str,
    ) -> Result<InspectGroups> {
        InspectGroups::parse_within(selectors, top, partition, &QueryContext::unbounded())
    }

    /// As [`InspectGroups::parse`], within the limits of `context`.
    ///
    /// # Errors
    /// As [`InspectGroups::parse`], and those of [`firn_promql::parse_selector`].
    pub(crate) fn parse_within<'a>(
        selectors: impl Iterator<Item = &'a str>,
        top: usize,
        partition: &str,
        context: &QueryContext,
    ) -> Result<InspectGroups> {
        let parse = |text: &str| {
            let named = |e: Error| e.context(format!("selector {:?}", excerpt(text)));
            firn_promql::parse_selector(text, context).map_err(named)
        };
        let partition_ms =
            parse_unit_duration_ms(partition).filter(|&ms| ms > 0).ok_or_else(|| {
                Error::invalid(format!(
                    "partition: expected a duration such as 2h, got {:?}",
                    excerpt(partition)
                ))
            })?;
        let options = CostOptions { partition_ms, ..CostOptions::default() };
        Ok(InspectGroups { selectors: selectors.map(parse).collect::<Result<_>>()?, top, options })
    }
}

/// Savings and costs of the groups of a database. Its log is replayed; nothing is written to
/// tables.
///
/// # Errors
/// `NotFound` without a database, `Busy` when a server has it open, and those of [`Db::open`].
pub fn inspect_groups(place: &DatabaseLocation, asked: &InspectGroups) -> Result<Value> {
    let db = open(place, "query the running server with --server")?;
    let InspectGroups { selectors, options, .. } = asked;
    let (costs, _) = db.group_costs(selectors, options, asked.shown_count(), &db.context())?;
    let mut report = costs_head(&costs, asked);
    let mut fields = GroupFields::new(&db);
    let group = |group: &GroupWithCost| {
        let labels = group.1.iter().map(|(name, value)| (name.to_owned(), json!(value)));
        let labels: Map<String, Value> = labels.collect();
        let mut fields = fields.of(group);
        fields.insert("labels".to_owned(), Value::Object(labels));
        Value::Object(fields)
    };
    let groups = costs.groups.iter().map(group);
    report.insert("groups".to_owned(), groups.collect());
    Ok(Value::Object(report))
}

/// Labels, pairs, metrics and groups that make the index large, `top` of each kind.
///
/// # Errors
/// As [`inspect_groups`].
pub fn inspect_cardinality(place: &DatabaseLocation, top: usize) -> Result<Value> {
    let db = open(place, "query the running server: GET /api/v1/status/tsdb")?;
    let (cardinality, _) = db.cardinality(top, &db.context())?;
    let counts = |table: &[(String, u64)]| -> Value {
        table.iter().map(|(name, count)| json!({ "name": name, "count": count })).collect()
    };
    Ok(json!({
        "series": cardinality.series_count,
        "groups": cardinality.group_count,
        "label_names": cardinality.name_count,
        "label_pairs": cardinality.pair_count,
        "series_by_metric": counts(&cardinality.series_by_metric),
        "values_by_label": counts(&cardinality.values_by_name),
        "bytes_by_label": counts(&cardinality.bytes_by_name),
        "series_by_pair": counts(&cardinality.series_by_pair),
        "series_by_group": counts(&cardinality.series_by_group),
    }))
}

const ELSEWHERE: &str = "stop that server, or inspect its uploaded tables with --slow-only";

/// Levels, their partitions, and the tables of these.
///
/// # Errors
/// As [`inspect_groups`].
pub fn inspect_tables(place: &DatabaseLocation) -> Result<Value> {
    let db = open(place, ELSEWHERE)?;
    let snapshot = db.snapshot();
    let level = |level: Level| {
        let mut partitions: BTreeMap<_, Vec<&TableRecord>> = BTreeMap::new();
        for table in snapshot.tables().filter(|table| table.level == level) {
            let key = (table.partition.range().start, table.partition.len());
            partitions.entry(key).or_default().push(table);
        }
        let partitions = partitions.into_iter().map(|((start, len), tables)| {
            json!({
                "start": rfc3339(start),
                "length_ms": len.as_ms(),
                "tables": tables.into_iter().map(table_json).collect::<Value>(),
            })
        });
        json!({
            "level": level as u8,
            "tier": if level.is_slow() { "slow" } else { "fast" },
            "partitions": partitions.collect::<Value>(),
        })
    };
    Ok(json!({ "levels": Level::ALL.into_iter().map(level).collect::<Value>() }))
}

/// Reports one table: `each` receives its record, then its blocks with their chunks, in order. With
/// a group, only that group's columns are reported, each with its labels; otherwise the columns of
/// a chunk are counted by codec.
///
/// # Errors
/// As [`inspect_groups`]; `NotFound` without such a table; those of `each`.
pub fn inspect_table(
    place: &DatabaseLocation,
    table: u64,
    group: Option<u64>,
    each: &mut dyn FnMut(&Value) -> Result<()>,
) -> Result<()> {
    let db = open(place, ELSEWHERE)?;
    let snapshot = db.snapshot();
    if let Some(record) = snapshot.tables().find(|record| record.id == TableId(table)) {
        each(&table_json(record))?;
    }
    let group = group.map(GroupId);
    snapshot.inspect_table(TableId(table), group, &mut |block| {
        each(&block_json(&db, block, group.is_some())?)
    })
}

fn table_json(table: &TableRecord) -> Value {
    json!({
        "table": table.id.0,
        "level": table.level as u8,
        "patch": table.patch,
        "partition": rfc3339(table.partition.range().start),
        "bytes": table.bytes,
        "directory_bytes": table.suffix_bytes,
        "blocks": table.block_count,
        "chunks": table.chunk_count,
        "rows": table.entry_count,
        "samples": table.value_count,
        "groups": [table.group_min.0, table.group_max.0],
        "start": rfc3339(table.time_range.start),
        "end": rfc3339(table.time_range.end),
        "commits": [table.seq.min.0, table.seq.max.0],
        "written": rfc3339(table.written_ms),
    })
}

fn block_json(db: &Db, block: &BlockOutline, is_whole: bool) -> Result<Value> {
    let mut json = json!({
        "block": block.offset,
        "bytes": block.bytes,
        "payload_bytes": block.payload_bytes,
        "groups": [block.group_min.0, block.group_max.0],
        "start": rfc3339(block.time_range.start),
        "end": rfc3339(block.time_range.end),
    });
    match &block.chunks {
        Ok(chunks) => {
            let chunks = chunks.iter().map(|chunk| chunk_json(db, chunk, is_whole));
            json["chunks"] = chunks.collect::<Result<Value>>()?;
        }
        Err(error) => json["damaged"] = json!(error.to_string()),
    }
    Ok(json)
}

fn chunk_json(db: &Db, chunk: &ChunkOutline, is_whole: bool) -> Result<Value> {
    let snapshot = db.snapshot();
    let group = snapshot.index().group(chunk.group)?;
    let text = |labels: Option<Labels>| json!(labels.map(|labels| labels.to_string()));
    let column = |column: &ColumnOutline| json!({ "codec": column.codec, "entries": column.entry_count, "bytes": column.bytes });
    let mut values = Vec::new();
    if is_whole {
        for (slot, outline) in &chunk.columns.values {
            let series = firndb::SeriesRef { group: chunk.group, slot: *slot };
            let mut value = column(outline);
            value["slot"] = json!(slot.0);
            value["labels"] = text(snapshot.index().labels(series)?);
            values.push(value);
        }
    } else {
        let mut by_codec: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (_, outline) in &chunk.columns.values {
            let (count, bytes) = by_codec.entry(&outline.codec).or_default();
            (*count, *bytes) = (*count + 1, *bytes + outline.bytes as u64);
        }
        values.extend(by_codec.into_iter().map(
            |(codec, (count, bytes))| json!({ "codec": codec, "columns": count, "bytes": bytes }),
        ));
    }
    Ok(json!({
        "group": chunk.group.0,
        "labels": text(group.map(|group| group.labels)),
        "bytes": chunk.bytes,
        "start": rfc3339(chunk.time_range.start),
        "end": rfc3339(chunk.time_range.end),
        "commits": [chunk.seq.min.0, chunk.seq.max.0],
        "times": chunk.columns.times.iter().map(column).collect::<Value>(),
        "values": values,
    }))
}

/// Verifies the checksum of every byte of the database in `folder`, which no server may have open.
/// Without `repairs` nothing in the folder and its slow tier changes.
///
/// With `repairs`, damaged tables are rewritten without the lost blocks. With
/// `forgets_lost_history`, the history is also dropped if the slow tier has neither a manifest nor
/// any of its tables.
///
/// # Errors
/// `NotFound` without a database, `Busy` when a server has it open, and those of [`Db::check`].
pub fn check_folder(
    folder: &Path,
    slow_tier: Option<&str>,
    (repairs, forgets_lost_history): (bool, bool),
    each: &mut dyn FnMut(&CheckProgress),
) -> Result<CheckReport> {
    let options = Options {
        repair_index: repairs,
        forget_lost_history: repairs && forgets_lost_history,
        ..Options::default()
    };
    let opened = open_with(folder, slow_tier, (options, repairs), "stop that process first")?;
    let mut report = opened.check(repairs, &CancelToken::new(), each)?;
    for finding in report.findings.iter_mut().filter(|_| !repairs) {
        // An opening replaces a lost index file, here in memory only.
        finding.is_repaired = false;
    }
    Ok(report)
}

/// A database opened for inspection. A slow tier alone needs a temporary folder for the copy of its
/// index.
struct Opened {
    db: Db,
    _scratch: Option<ScratchFolder>,
}

impl Deref for Opened {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.db
    }
}

/// Opens a database; `or_else` is the advice if another process has it open.
fn open(place: &DatabaseLocation, or_else: &str) -> Result<Opened> {
    let slow_tier = place.slow_tier.as_deref();
    if !place.is_slow_only {
        return open_with(&place.folder, slow_tier, (Options::default(), false), or_else);
    }
    let in_folder = place.folder.join("slow").display().to_string();
    let slow_tier = slow_tier.unwrap_or(&in_folder);
    let scratch = ScratchFolder::new()
        .map_err(|e| Error::unavailable("cannot make a temporary folder").because(e))?;
    let options = Options { read_only: true, ..Options::default() };
    // Below the folder, which has a lock of its own.
    let db = firndb::replica_env(&scratch.path().join("replica"), slow_tier)
        .and_then(|env| Db::open_idle(env, options, &RecoveryProgress::default()))
        .map_err(|error| error.context(format!("cannot open the slow tier {slow_tier}")))?;
    Ok(Opened { db, _scratch: Some(scratch) })
}

/// The database of a folder without its maintenance. Its log is read as at a start; only with
/// `changes` does that change the folder.
fn open_with(
    folder: &Path,
    slow_tier: Option<&str>,
    (options, changes): (Options, bool),
    or_else: &str,
) -> Result<Opened> {
    let shown = folder.display();
    if !folder.join("fast").is_dir() {
        return Err(Error::not_found(format!(
            "there is no database in {shown}: set --data to its folder, or inspect a slow tier alone \
             with `firn inspect tables --slow-tier LOCATION --slow-only`"
        )));
    }
    let slow_tier =
        slow_tier.map_or_else(|| folder.join("slow").display().to_string(), str::to_owned);
    let env = match changes {
        true => firndb::local_env_with_slow_tier(folder, &slow_tier),
        false => firndb::inspection_env(folder, &slow_tier),
    };
    let opened = env.and_then(|env| Db::open_idle(env, options, &RecoveryProgress::default()));
    opened.map(|db| Opened { db, _scratch: None }).map_err(|error| match error.kind() {
        ErrorKind::Busy { .. } => {
            error.context(format!("the database in {shown} is open in another process; {or_else}"))
        }
        _ => error.context(format!("cannot open the database in {shown}")),
    })
}

/// A group, its labels and its cost.
pub(crate) type GroupWithCost = (GroupId, Labels, GroupCost);

/// The report without its groups: range, options and totals.
pub(crate) fn costs_head(costs: &GroupCosts, asked: &InspectGroups) -> Map<String, Value> {
    let mut total = cost_json(&costs.total);
    let group_count = costs.group_count as f64;
    total.insert("groups".to_owned(), json!(costs.group_count));
    total.insert(
        "members_per_group".to_owned(),
        json!(ratio(costs.total.series_count as f64, group_count)),
    );
    let options = &asked.options;
    let fields = [
        ("start", json!(costs.range.start)),
        ("end", json!(costs.range.end)),
        (
            "options",
            json!({
                "partition_ms": options.partition_ms,
                "posting_bytes": options.posting_bytes,
                "fast_seconds_per_byte": options.fast_seconds_per_byte,
                "slow_seconds_per_block": options.slow_seconds_per_block,
                "block_bytes": options.block_bytes,
            }),
        ),
        ("total", Value::Object(total)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Makes the fields of the groups of a report.
pub(crate) struct GroupFields<'a> {
    db: &'a Db,
    /// By label names: groups have few lists of names, and a rule is searched among all shapes.
    rules: BTreeMap<Vec<String>, &'static str>,
}

// A hostile sender writes each group with other names.
const KNOWN_RULES_MAX: usize = 64;

impl GroupFields<'_> {
    pub(crate) fn new(db: &Db) -> GroupFields<'_> {
        GroupFields { db, rules: BTreeMap::new() }
    }

    /// The fields of a group without its labels.
    pub(crate) fn of(&mut self, (GroupId(id), labels, cost): &GroupWithCost) -> Map<String, Value> {
        if self.rules.len() >= KNOWN_RULES_MAX {
            self.rules.clear();
        }
        let names = labels.iter().map(|pair| pair.0.to_owned()).collect();
        let rule = self.rules.entry(names).or_insert_with(|| self.db.group_rule(labels).name());
        let mut fields = cost_json(cost);
        fields.insert("group".to_owned(), json!(id));
        fields.insert("rule".to_owned(), json!(*rule));
        fields
    }
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
