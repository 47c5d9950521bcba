//! Rows of one value, which take a hundredth of a byte per sample until they are decoded: many of
//! one series, of thousands of members, late, interleaved, decades apart; queries of them, and the
//! restart.

use std::sync::atomic::{AtomicI64, Ordering};

use super::{base_s, write, write_made};
use crate::attack::{Action, Attack, Expect, Family, attack, bad, flood, script, status};
use crate::client::{Request, form, post};
use crate::target::Setup;
use crate::wire::{Message, series};

/// Age of the first row: no row is younger than the present.
const AGE_MS: i64 = 7_000_000;
/// Rows decades apart, and the time between two of them: each is in an old partition of its own.
const OLD_ROWS: i64 = 29_000;
const OLD_STEP_MS: i64 = 16 * 3_600_000;
/// Answers to a flood of queries.
const READ: [u16; 3] = [200, 422, 503];

/// The log has all rows when the server is killed.
fn setup() -> Setup {
    Setup::database(&["--query-timeout=5s", "--flush-age-max=1h"])
}

pub(crate) fn of_few_series() -> Family {
    Family::new("rows-few", setup()).because("a large group is decoded in slices", few())
}

pub(crate) fn of_many_members() -> Family {
    Family::new("rows-many", setup())
        .because("a large group is decoded in slices, also at a start", many())
        .with_quick(&["8,000 rows of 1,000 members"])
}

pub(crate) fn late() -> Family {
    Family::new("rows-late", setup())
        .because("rows out of order are decoded in slices, also at a start", late_rows())
}

pub(crate) fn old() -> Family {
    let setup =
        Setup::database(&["--query-timeout=5s", "--flush-age-max=1h", "--enable-admin-api"]);
    Family::new("rows-old", setup)
        .because("a flush makes few tables of few samples, however far apart", decades())
}

fn few() -> Vec<Attack> {
    vec![
        attack(
            "3,000,000 samples of one series",
            flood(4, 19, rows("one", 1, 40_000, |row| row)),
            written_some(),
        ),
        attack("queries of these samples", read("one"), status(READ)),
        attack(
            "1,200,000 samples of four series each",
            flood(4, 30, rows("four", 4, 10_000, |row| row)),
            written_some(),
        ),
        attack("queries of these samples too", read("four"), status(READ)),
        attack(
            "500,000 interleaved samples of one series",
            flood(1, 15, rows("mixed", 1, 33_333, |row| row % 166_665 * 3 + row / 166_665)),
            written_some(),
        ),
        attack("queries of interleaved samples", read("mixed"), status(READ)),
        attack(
            "400,000 rows of two series in turn",
            flood(4, 20, rows("two", 2, 5_000, |row| -row)),
            written_some(),
        ),
        attack("queries of late samples", read("two"), status(READ)),
    ]
}

fn many() -> Vec<Attack> {
    vec![
        attack(
            "1,000 rows of 4,000 members",
            flood(4, 25, rows("wide", 4_000, 10, |row| row * 1_000)),
            written_some(),
        ),
        attack("queries of one member", read("wide"), status(READ)),
        attack(
            "8,000 rows of 1,000 members",
            flood(1, 80, rows("long", 1_000, 100, |row| row * 100)),
            written_some(),
        ),
    ]
}

fn late_rows() -> Vec<Attack> {
    vec![
        attack(
            "500 rows of 4,000 members",
            flood(1, 50, rows("late", 4_000, 10, |row| 5_000_000 + row)),
            written_some(),
        ),
        attack(
            "600,000 earlier rows of one member each",
            flood(1, 15, single_rows("late", 4_000, 10)),
            written_some(),
        ),
        attack("queries of late rows", read("late"), status(READ)),
    ]
}

/// A snapshot waits for the flush.
fn decades() -> Vec<Attack> {
    let scattered = |offset_ms: i64| {
        script(move |target| {
            let ts = |row: i64| base_ms() - offset_ms - row * OLD_STEP_MS;
            let request = |first: i64| {
                let rows = (first..(first + 1_000).min(OLD_ROWS)).rev();
                let samples: Vec<(i64, f64)> = rows.map(|row| (ts(row), 1.0)).collect();
                let labels = [("__name__", "old"), ("job", "rows")];
                write(Message::default().message(1, series(&labels, &samples)))
            };
            let requests = (0..OLD_ROWS).step_by(1_000).map(request);
            let snapshot = post("/api/v1/admin/tsdb/snapshot");
            requests.chain([snapshot]).map(|request| request.send(target)).collect()
        })
    };
    let hour_ms = 3_600_000;
    let labels = [("__name__", "ancient"), ("job", "rows")];
    let ancient = series(&labels, &[(-2_000_000_000_000_000, 1.0), (i64::MIN, 1.0)]);
    let count = form("/api/v1/query", [("query", "count_over_time(old[60y])")]);
    vec![
        attack("a sample in each 16 hours since 1973", scattered(hour_ms), status([200, 204]))
            .quick(),
        attack("the same an hour earlier", scattered(2 * hour_ms), status([200, 204])),
        attack("a query of all of them", count, status([200])),
        attack(
            "samples of other millennia",
            write(Message::default().message(1, ancient)),
            bad().contains("over 100 years old"),
        )
        .quick(),
    ]
}

/// Writes `row_count` further rows of a group in each sending; `time` is that of row `n` after the
/// first, in milliseconds.
fn rows(name: &'static str, members: u64, row_count: i64, time: fn(i64) -> i64) -> Request {
    written(name, members, row_count, move |_, row| time(row))
}

/// As [`rows`], each of one member.
fn single_rows(name: &'static str, members: u64, row_count: i64) -> Request {
    written(name, members, row_count, move |member, row| row * members as i64 + member)
}

fn written(
    name: &'static str,
    members: u64,
    row_count: i64,
    time: impl Fn(i64, i64) -> i64 + Send + Sync + 'static,
) -> Request {
    let sent = AtomicI64::new(0);
    write_made(move || {
        let first = sent.fetch_add(row_count, Ordering::Relaxed);
        (0..members).fold(Message::default(), |message, member| {
            let ts = |row| base_ms() - AGE_MS + time(member as i64, row);
            let mut times: Vec<i64> = (first..first + row_count).map(ts).collect();
            times.sort_unstable();
            let samples: Vec<(i64, f64)> = times.into_iter().map(|ts| (ts, 1.0)).collect();
            let metric = format!("{name}_{member}");
            let labels = [("__name__", &*metric), ("instance", name), ("job", "rows")];
            message.message(1, series(&labels, &samples))
        })
    })
}

fn base_ms() -> i64 {
    base_s() * 1_000
}

/// A part of a flood of writes may be refused.
fn written_some() -> Expect {
    status([204, 429, 503]).check(|answers, _| {
        let written = answers.iter().filter(|answer| answer.status == 204).count();
        let least = answers.len() / 4;
        if written > least { Ok(()) } else { Err(format!("only {written} succeeded")) }
    })
}

/// Queries of all samples of the first member.
fn read(name: &str) -> Action {
    let query = format!("count_over_time({name}_0[3h])");
    flood(4, 8, form("/api/v1/query", [("query", query.as_str())]))
}
