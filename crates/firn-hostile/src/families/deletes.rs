//! Deletes: thousands of small ones, each of which is kept until tables are rewritten.

use super::{base_s, write};
use crate::attack::{Attack, Family, attack, script, status, written};
use crate::client::{Answer, Request, form, post};
use crate::target::{Setup, Target};
use crate::wire::{Message, series};

const SERIES: usize = 500;
const DELETES: i64 = 4_000;
const CLIENTS: i64 = 4;
/// Series in one request.
const BATCH: usize = 20;

pub(crate) fn family() -> Family {
    Family::new("deletes", Setup::database(&["--enable-admin-api", "--query-timeout=5s"]))
        .because("equal deletes share memory, and many are applied by themselves", small())
}

fn small() -> Vec<Attack> {
    vec![
        attack(
            "4,000 deletes of one second each",
            script(|target| [fill(target), delete_seconds(target)].concat()),
            status([204, 429, 503])
                .check(|answers, _| {
                    let deleted = answers.iter().filter(|answer| answer.status == 204).count();
                    let most = answers.len() / 2;
                    if deleted > most { Ok(()) } else { Err(format!("only {deleted} succeeded")) }
                })
                .within(180),
        ),
        attack("a delete after them", delete(0, DELETES), written()),
        attack("a clean-up", post("/api/v1/admin/tsdb/clean_tombstones"), written().within(60)),
    ]
}

/// Writes a sample of every series in each second that is deleted.
fn fill(target: &Target) -> Vec<Answer> {
    let samples: Vec<(i64, f64)> = (0..DELETES).map(|n| (second(n) * 1_000, n as f64)).collect();
    let request = |first: usize| {
        (first..first + BATCH).fold(Message::default(), |message, n| {
            let labels = [("__name__", "small"), ("n", &*n.to_string())];
            message.message(1, series(&labels, &samples))
        })
    };
    (0..SERIES).step_by(BATCH).map(|first| write(request(first)).send(target)).collect()
}

/// A delete for each second, from several clients.
fn delete_seconds(target: &Target) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let own = (client..DELETES).step_by(CLIENTS as usize);
                scope.spawn(move || own.map(|n| delete(n, n).send(target)).collect::<Vec<_>>())
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect()
    })
}

/// Deletes these seconds, both inclusive.
fn delete(first: i64, last: i64) -> Request {
    let (start, end) = (second(first).to_string(), second(last).to_string());
    let pairs = [("match[]", "small"), ("start", &start), ("end", &end)];
    form("/api/v1/admin/tsdb/delete_series", pairs)
}

fn second(n: i64) -> i64 {
    base_s() - DELETES + n
}
