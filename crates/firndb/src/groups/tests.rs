//! The insertion cases of TimeUnion (SIGMOD 2022), section 3.1, through the library. Each is
//! written piece by piece, with every piece kept in memory, converted, flushed, merged, or replayed
//! from the log before the next one, and read back by PromQL.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::{
    ConvertOptions, HeadOptions, Lane, LogOptions, Options, QueryTime, SyncPolicy, TimeRange,
    Value, local_env,
};

const T: Timestamp = 1_700_000_000_000;

/// The event of a piece before the next one is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceEvent {
    Stays,
    IsConverted,
    IsFlushed,
    IsMerged,
    IsReplayed,
}

const PIECE_EVENTS: [PieceEvent; 5] = [
    PieceEvent::Stays,
    PieceEvent::IsConverted,
    PieceEvent::IsFlushed,
    PieceEvent::IsMerged,
    PieceEvent::IsReplayed,
];

/// A row in a test: time and the value of each member.
type Row<'a> = (Timestamp, &'a [Option<f64>]);

/// The samples of each member by the member's name.
type Samples = BTreeMap<String, Vec<(Timestamp, f64)>>;

/// Writes each piece, a list of members with rows, and compares all samples of the group with
/// `want`.
fn check(pieces: &[(&[&str], &[Row<'_>])], want: &[(&str, &[(Timestamp, f64)])]) {
    for (idx, event) in PIECE_EVENTS.into_iter().enumerate() {
        // The slow and the fast path by turns; both must have the same result.
        let by_refs = idx % 2 == pieces.len() % 2;
        let folder = tempfile::tempdir().unwrap();
        let mut db = open(folder.path(), event);
        for (members, rows) in pieces {
            write(&db, members, rows, by_refs);
            db = advance(event, db, folder.path());
        }
        let want: Samples =
            want.iter().map(|(name, samples)| ((*name).to_owned(), samples.to_vec())).collect();
        assert_eq!(samples(&db), want, "{event:?}, by references: {by_refs}");
        db.flush().unwrap();
        db.settle(Lane::Tree).unwrap();
        assert_eq!(samples(&db), want, "{event:?}, then merged, by references: {by_refs}");
        drop(db);
        let db = open(folder.path(), event);
        assert_eq!(samples(&db), want, "{event:?}, then reopened, by references: {by_refs}");
        let groups = db.groups(&[], true, &db.context()).unwrap().0;
        assert_eq!(groups.len(), 1, "one group has all members");
    }
}

fn open(folder: &Path, event: PieceEvent) -> Db {
    let mut convert = ConvertOptions::default();
    if event == PieceEvent::IsConverted {
        // An arena of one byte is full after the first row, so the head lane converts it.
        convert.arena_bytes_max = 1;
    }
    let options = Options {
        head: HeadOptions { convert, ..Default::default() },
        log: LogOptions {
            // The test opens hundreds of databases; none of them has a power failure.
            segment_bytes: 1 << 20,
            sync: SyncPolicy::Never,
        },
        ..Options::default()
    };
    Db::open(local_env(folder).unwrap(), options).unwrap()
}

fn advance(event: PieceEvent, db: Db, folder: &Path) -> Db {
    match event {
        PieceEvent::Stays => {}
        PieceEvent::IsConverted => db.settle(Lane::Head).unwrap(),
        PieceEvent::IsFlushed => db.flush().unwrap(),
        PieceEvent::IsMerged => {
            db.flush().unwrap();
            db.settle(Lane::Tree).unwrap();
        }
        PieceEvent::IsReplayed => {
            drop(db);
            return open(folder, event);
        }
    }
    db
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::from_pairs(pairs.iter().copied()).unwrap()
}

fn pump() -> Labels {
    labels(&[("device", "pump-7"), ("site", "north")])
}

fn named(members: &[&str]) -> Vec<Labels> {
    members.iter().map(|name| labels(&[("__name__", name)])).collect()
}

fn write(db: &Db, members: &[&str], rows: &[Row<'_>], by_refs: bool) {
    if !by_refs {
        for (ts, values) in rows {
            db.put_row(&pump(), &named(members), *ts, values).unwrap();
        }
        return;
    }
    let refs = db.resolve_group(&pump(), &named(members), ForeignMember::Refuse).unwrap();
    let mut batch = RowBatch::default();
    rows.iter().for_each(|(ts, values)| refs.push_row(&mut batch, *ts, values));
    let value_count = batch.len() as u64;
    assert_eq!(db.write(&mut batch).unwrap().written, value_count);
}

fn samples(db: &Db) -> Samples {
    let answer = db.query_now("{device=\"pump-7\"}[1h]", QueryTime::Instant(T + 600_000)).unwrap();
    let Value::Matrix(series) = answer.value else { panic!("a matrix, not {:?}", answer.value) };
    let points = |series: firn_promql::Series| {
        assert_eq!(series.labels.get("site"), Some("north"), "every member has the group's labels");
        let points = series.floats.iter().map(|sample| (sample.ts, sample.value)).collect();
        (series.labels.metric_name().to_owned(), points)
    };
    series.into_iter().map(points).collect()
}

#[test]
fn normal_insertion() {
    check(
        &[
            (&["flow", "pressure"], &[(T, &[Some(1.0), Some(10.0)])]),
            (&["flow", "pressure"], &[(T + 15_000, &[Some(2.0), Some(20.0)])]),
        ],
        &[("flow", &[(T, 1.0), (T + 15_000, 2.0)]), ("pressure", &[(T, 10.0), (T + 15_000, 20.0)])],
    );
}

#[test]
fn insertion_with_a_new_member_leaves_its_earlier_entries_null() {
    check(
        &[
            (&["flow"], &[(T, &[Some(1.0)]), (T + 15_000, &[Some(2.0)])]),
            (&["flow", "heat"], &[(T + 30_000, &[Some(3.0), Some(30.0)])]),
        ],
        &[
            ("flow", &[(T, 1.0), (T + 15_000, 2.0), (T + 30_000, 3.0)]),
            ("heat", &[(T + 30_000, 30.0)]),
        ],
    );
}

#[test]
fn insertion_with_missing_members_leaves_them_null() {
    let both: &[&str] = &["flow", "pressure"];
    check(
        &[
            (both, &[(T, &[Some(1.0), Some(10.0)])]),
            // As NULL in the row, and by omission.
            (both, &[(T + 15_000, &[None, Some(20.0)])]),
            (&["flow"], &[(T + 30_000, &[Some(3.0)])]),
            (both, &[(T + 45_000, &[Some(4.0), Some(40.0)]), (T + 60_000, &[None, None])]),
        ],
        &[
            ("flow", &[(T, 1.0), (T + 30_000, 3.0), (T + 45_000, 4.0)]),
            ("pressure", &[(T, 10.0), (T + 15_000, 20.0), (T + 45_000, 40.0)]),
        ],
    );
}

#[test]
fn out_of_order_insertion_replaces_or_inserts() {
    let both: &[&str] = &["flow", "pressure"];
    check(
        &[
            (both, &[(T, &[Some(1.0), Some(10.0)]), (T + 30_000, &[Some(3.0), Some(30.0)])]),
            // Inserted between others, inserted before all, replaced; NULL replaces nothing.
            (both, &[(T + 15_000, &[Some(2.0), None])]),
            (both, &[(T - 900_000, &[None, Some(-1.0)])]),
            (both, &[(T, &[Some(1.5), None])]),
        ],
        &[
            ("flow", &[(T, 1.5), (T + 15_000, 2.0), (T + 30_000, 3.0)]),
            ("pressure", &[(T - 900_000, -1.0), (T, 10.0), (T + 30_000, 30.0)]),
        ],
    );
}

#[test]
fn pieces_of_a_row_come_in_any_order() {
    let orders: [[usize; 3]; 6] =
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let pieces: [(&[&str], &[Row<'_>]); 3] = [
            (&["flow"], &[(T, &[Some(1.0)]), (T + 15_000, &[Some(2.0)])]),
            (&["heat", "pressure"], &[(T, &[Some(5.0), Some(10.0)])]),
            (&["pressure", "heat"], &[(T + 15_000, &[Some(20.0), Some(6.0)])]),
        ];
        check(
            &order.map(|idx| pieces[idx]),
            &[
                ("flow", &[(T, 1.0), (T + 15_000, 2.0)]),
                ("heat", &[(T, 5.0), (T + 15_000, 6.0)]),
                ("pressure", &[(T, 10.0), (T + 15_000, 20.0)]),
            ],
        );
    }
}

/// The bytes of every table, by path.
fn tables(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tables(&path, found);
        } else if path.to_string_lossy().ends_with(".fst") {
            found.insert(path.display().to_string(), std::fs::read(&path).unwrap());
        }
    }
}

#[test]
fn out_of_order_insertion_never_touches_flushed_data() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let both: &[&str] = &["flow", "pressure"];
    write(&db, both, &[(T, &[Some(1.0), Some(10.0)]), (T + 15_000, &[Some(2.0), None])], true);
    db.flush().unwrap();
    let mut before = BTreeMap::new();
    tables(folder.path(), &mut before);
    assert!(!before.is_empty(), "the first rows are in a table");
    write(&db, both, &[(T, &[Some(7.0), None]), (T + 15_000, &[None, Some(20.0)])], true);
    let mut after = BTreeMap::new();
    tables(folder.path(), &mut after);
    assert_eq!(before, after);
    let want =
        [("flow", [(T, 7.0), (T + 15_000, 2.0)]), ("pressure", [(T, 10.0), (T + 15_000, 20.0)])];
    let want: Samples = want.map(|(name, points)| (name.to_owned(), points.to_vec())).into();
    assert_eq!(samples(&db), want);
}

#[test]
fn a_lone_series_is_a_group_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let attic = labels(&[("__name__", "temperature"), ("room", "attic")]);
    let series = db.put(&attic, T, 21.5).unwrap();
    let mut batch = RowBatch::default();
    batch.push(series, T + 15_000, 22.0);
    db.write(&mut batch).unwrap();
    let answer = db.query_now("sum_over_time(temperature[1m])", QueryTime::Instant(T + 15_000));
    let Value::Vector(points) = answer.unwrap().value else { panic!("a vector") };
    assert_eq!(points[0].labels, labels(&[("room", "attic")]));
    let (group, _) = db.group(series.group, &db.context()).unwrap().unwrap();
    assert_eq!((group.is_lone, group.labels), (true, attic.clone()));
    assert_eq!(group.members, [(Slot(0), Labels::empty())]);
    assert!(db.groups(&[], false, &db.context()).unwrap().0.is_empty());
    assert_eq!(db.groups(&[], true, &db.context()).unwrap().0[0].labels, attic);
}

#[test]
fn a_group_that_is_defined_again_keeps_its_id_and_its_slots() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let define = |members: &[&str]| {
        let refs = db.resolve_group(&pump(), &named(members), ForeignMember::Refuse).unwrap();
        refs.members.iter().map(|series| (series.group.0, series.slot.0)).collect::<Vec<_>>()
    };
    let first = define(&["flow", "pressure"]);
    let group = first[0].0;
    assert_eq!(first, [(group, 0), (group, 1)]);
    assert_eq!(define(&["pressure"]), [(group, 1)], "fewer members remove no member");
    assert_eq!(define(&["heat", "pressure", "flow"]), [(group, 2), (group, 1), (group, 0)]);
    let (known, _) = db.group(GroupId(group), &db.context()).unwrap().unwrap();
    assert_eq!(known.labels, pump());
    let members: Vec<Labels> = known.members.into_iter().map(|(_, labels)| labels).collect();
    assert_eq!(members, named(&["flow", "pressure", "heat"]));
}

#[test]
fn a_full_group_continues_in_a_sibling_with_the_same_labels() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let names: Vec<String> = (0..4_100).map(|idx| format!("channel_{idx}")).collect();
    let members = named(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let refs = db.resolve_group(&pump(), &members, ForeignMember::Refuse).unwrap();
    let sizes: Vec<usize> =
        refs.members.chunk_by(|a, b| a.group == b.group).map(<[SeriesRef]>::len).collect();
    assert_eq!(sizes, [4_096, 4]);
    let again = db.resolve_group(&pump(), &members, ForeignMember::Refuse).unwrap();
    assert_eq!(again, refs, "a sibling is not elsewhere");
    let mut batch = RowBatch::default();
    refs.push_row(&mut batch, T, &vec![Some(1.0); members.len()]);
    db.write(&mut batch).unwrap();
    let answer = db.query_now("count({device=\"pump-7\"})", QueryTime::Instant(T)).unwrap();
    let Value::Vector(points) = answer.value else { panic!("a vector") };
    assert_eq!(points.len(), 1);
    assert!(matches!(points[0].value, firn_promql::PointValue::Float(count) if count == 4_100.0));
    let listed = db.groups(&[], false, &db.context()).unwrap().0;
    assert!(listed.len() == 2 && listed.iter().all(|group| group.labels == pump()));
}

#[test]
fn bad_members_are_refused_and_nothing_is_defined() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let known = db.resolve(&[labels(&[("device", "pump-7"), ("site", "north"), ("x", "1")])]);
    let lone = known.into_iter().next().unwrap().unwrap();
    let before = db.stats().index.series_count;
    let f = |members: &[Labels], wanted: &[&str]| {
        let error = db.resolve_group(&pump(), members, ForeignMember::Refuse).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        for wanted in wanted {
            assert!(error.to_string().contains(wanted), "{wanted:?} is not in {error}");
        }
        assert_eq!(db.stats().index.series_count, before, "{error}");
    };
    let fresh = labels(&[("__name__", "fresh")]);
    f(&[fresh.clone(), labels(&[("site", "south")])], &["member 1", "repeats label \"site\""]);
    f(&[fresh.clone(), labels(&[("a", "1")]), fresh.clone()], &["members 0 and 2", "fresh"]);
    let of_lone = format!("member 0 of group {}", lone.group.0);
    f(&[fresh.clone(), labels(&[("x", "1")])], &["member 1", "collides", &of_lone]);
    let nothing = db.resolve_group(&Labels::empty(), &[Labels::empty()], ForeignMember::Refuse);
    assert!(nothing.unwrap_err().to_string().contains("no label"));
    let short = db.put_row(&pump(), std::slice::from_ref(&fresh), T, &[]).unwrap_err();
    assert!(short.to_string().contains("0 values for 1 members"), "{short}");
    let ahead = db.put_row(&pump(), &[labels(&[("y", "1")])], i64::MAX, &[Some(1.0)]).unwrap_err();
    assert!(ahead.to_string().contains("too far in the future"), "{ahead}");
    // With `Use`, the call returns the existing reference.
    let refs =
        db.resolve_group(&pump(), &[fresh, labels(&[("x", "1")])], ForeignMember::Use).unwrap();
    assert_eq!(refs.members[1], lone);
    assert_ne!(refs.members[0].group, lone.group);
}

#[test]
fn references_from_outside_are_checked_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let refs = db.resolve_group(&pump(), &named(&["flow"]), ForeignMember::Refuse).unwrap();
    db.check_refs(&refs.members).unwrap();
    let group = refs.members[0].group;
    let f = |series: SeriesRef, wanted: &str| {
        let error = db.check_refs(&[refs.members[0], series]).unwrap_err();
        assert_eq!((error.kind(), error.what()), (&ErrorKind::NotFound, wanted));
        let mut batch = RowBatch::default();
        batch.push(series, T, 1.0);
        assert_eq!(db.write(&mut batch).unwrap().unknown, 1);
    };
    let slot = format!("group {} has no slot 7: it has 1 slots, from 0", group.0);
    f(SeriesRef { group, slot: Slot(7) }, &slot);
    f(SeriesRef { group: GroupId(1 << 40), slot: Slot(0) }, "group 1099511627776 does not exist");
}

#[test]
fn groups_are_listed_if_a_member_matches() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path(), PieceEvent::Stays);
    let other = labels(&[("device", "pump-8")]);
    db.resolve_group(&pump(), &named(&["flow", "pressure"]), ForeignMember::Refuse).unwrap();
    db.resolve_group(&other, &named(&["flow"]), ForeignMember::Refuse).unwrap();
    let f = |selector: &str| {
        let selectors = match selector {
            "" => Vec::new(),
            selector => vec![firn_promql::parse_matchers(selector).unwrap()],
        };
        let groups = db.groups(&selectors, false, &db.context()).unwrap().0;
        let mut found: Vec<(String, u64, u32)> =
            groups.iter().map(|g| (g.labels.to_string(), g.member_count, g.slot_count)).collect();
        found.sort();
        found
    };
    let seven = |members| (r#"{device="pump-7",site="north"}"#.to_owned(), members, 2);
    let eight = (r#"{device="pump-8"}"#.to_owned(), 1, 1);
    assert_eq!(f(""), [seven(2), eight.clone()]);
    assert_eq!(f("flow"), [seven(1), eight]);
    assert_eq!(f("pressure"), [seven(1)]);
    assert_eq!(f("{site=\"south\"}"), []);
    assert!(db.group(GroupId(1 << 40), &db.context()).unwrap().is_none());
    let none = db.series(&[Vec::new()], TimeRange::new(i64::MIN, i64::MAX), 0, &db.context());
    assert!(none.unwrap().0.is_empty(), "series without samples are not listed");
}

#[test]
fn whole_labels_of_members_are_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { memory_bytes_max: 64 << 20, ..Options::default() };
    let db = Db::open(local_env(folder.path()).unwrap(), options).unwrap();
    let text = "x".repeat(5_000);
    let names: Vec<String> = (0..60).map(|n| format!("l{n}")).collect();
    let group = Labels::from_pairs(names.iter().map(|name| (name.as_str(), &*text))).unwrap();
    let member = |n: usize| labels(&[("__name__", &format!("m{n}"))]);
    let members: Vec<Labels> = (0..1_000).map(member).collect();
    let before = db.budget().usage().used_bytes;
    for elsewhere in [ForeignMember::Refuse, ForeignMember::Use] {
        let refused = db.resolve_group(&group, &members, elsewhere).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::TooLarge, "{refused}");
    }
    assert!(db.find_members(&group, &members).is_err());
    assert!(db.resolve_group(&group, &members[..2], ForeignMember::Refuse).is_ok());
    assert!(db.budget().usage().used_bytes < before + (1 << 20));
}
