//! A context with a scope sees the series that match it, whatever is requested.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::Arc;

use firndb::{
    CostOptions, Db, ForeignMember, Labels, MatchOp, Matcher, Options, QueryContext, QueryOptions,
    QueryTime, ResultOptions, TimeRange, WalkOptions, local_env,
};

const QUERIES: [&str; 13] = [
    "{__name__=~\".+\"}",
    "{team!=\"a\",job=~\".+\"}",
    "{team=\"secret\"}",
    "up",
    "up or {job=\"secret-job\"}",
    "count by (team) ({team=~\".+\"})",
    "info(up)",
    "info(up, {version=~\".+\"})",
    "info({job=\"job\"}, {__name__=~\".+_info\"})",
    "max_over_time(up[5m:15s])",
    "label_replace(up, \"x\", \"$1\", \"team\", \"(.*)\")",
    "up * on (job) group_left (version) target_info",
    "count_values(\"value\", up)",
];

fn series(team: &str, name: &str, extra: (&str, &str)) -> Labels {
    let job = if team == "a" { "job" } else { "secret-job" };
    let pairs = [("__name__", name), ("team", team), ("job", job), ("instance", "here"), extra];
    Labels::from_pairs(pairs).unwrap()
}

fn scoped(db: &Db) -> QueryContext {
    QueryContext { scope: Arc::new([Matcher::equal("team", "a")]), ..db.context() }
}

#[test]
fn no_query_list_or_read_leaves_the_scope() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
    db.enable_result_cache(ResultOptions::default()).unwrap();
    let now = db.now_ms() / 15_000 * 15_000;
    for (team, value) in [("a", 1.0), ("secret", 424_242.0)] {
        let version = if team == "a" { "v1" } else { "secret-v2" };
        for step in 0..20 {
            let ts = now - step * 15_000;
            db.put(&series(team, "up", ("x", team)), ts, value).unwrap();
            let info = series(team, "target_info", ("version", version));
            db.put(&info, ts, 1.0).unwrap();
        }
        db.put(&series(team, &format!("{team}_only"), (team, team)), now, value).unwrap();
    }
    let is_clean = |what: &str, shown: String| {
        assert!(!shown.contains("secret") && !shown.contains("424242"), "{what}: {shown}");
    };
    let options = QueryOptions::default();
    let range = QueryTime::Range { start: now - 120_000, end: now, step_ms: 15_000 };
    for time in [QueryTime::Instant(now), range] {
        for query in QUERIES {
            // Kept results of all series must not answer the others.
            for _ in 0..2 {
                let _ = db.query(query, time, &options, &db.context());
                match db.query(query, time, &options, &scoped(&db)) {
                    Ok(got) => is_clean(query, format!("{:?} {:?}", got.value, got.annotations)),
                    Err(error) => panic!("{query}: {error}"),
                }
            }
        }
    }
    let (all, context) = (TimeRange::ALL, scoped(&db));
    let any = vec![Matcher::new("team", MatchOp::Regex, ".+").unwrap()];
    let other = vec![Matcher::equal("team", "secret")];
    for selectors in [vec![any.clone()], vec![other.clone()], vec![any.clone(), other]] {
        let listed = db.series(&selectors, all, 0, &context).unwrap();
        is_clean("series", format!("{listed:?}"));
        let newest = db.newest(&selectors, all, &context).unwrap();
        is_clean("newest", format!("{newest:?}"));
        let groups = db.groups(&selectors, true, &context).unwrap().0;
        is_clean("groups", format!("{groups:?}"));
    }
    for selectors in [vec![], vec![any.clone()]] {
        is_clean("names", format!("{:?}", db.label_names(&selectors, all, 0, &context).unwrap().0));
        for name in ["__name__", "team", "job", "version"] {
            let values = db.label_values(name, &selectors, all, 0, &context).unwrap().0;
            is_clean(name, format!("{values:?}"));
        }
    }
    let costs = db.group_costs(&[], &CostOptions::default(), usize::MAX, &context).unwrap();
    assert_eq!(costs.0.groups.len(), 1);
    assert!(db.cardinality(10, &context).is_err());
    let options =
        WalkOptions { matchers: any, range: all, extra: Labels::empty(), samples_max: 1_000 };
    let mut walk = db.snapshot().walk(options, &context).unwrap();
    let mut runs = 0;
    while let Some(run) = walk.next_run().unwrap() {
        is_clean("walk", format!("{:?} {:?}", run.labels, run.values));
        runs += 1;
    }
    assert!(runs >= 3, "{runs}");
    db.close().unwrap();
}

/// Before, a group's number of slots counted the series outside the scope.
#[test]
fn a_group_shows_the_slots_in_the_scope() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
    let shared = Labels::from_pairs([("__name__", "up")]).unwrap();
    let member = |team: &str| Labels::from_pairs([("team", team)]).unwrap();
    let members = ["a", "b", "secret"].map(member);
    db.resolve_group(&shared, &members, ForeignMember::Refuse).unwrap();
    let slots = |context: &QueryContext| {
        let groups = db.groups(&[], true, context).unwrap().0;
        (groups[0].member_count, groups[0].slot_count)
    };
    assert_eq!(slots(&db.context()), (3, 3));
    assert_eq!(slots(&scoped(&db)), (1, 1));
}
