//! Neighbours: clients that take all that they are granted, for as long as they can, beside one
//! that writes and queries a little.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{base_s, json, query, range, write, write_made};
use crate::attack::{Action, Attack, Expect, Family, attack, script, status};
use crate::client::{Answer, Request, deaf_connections, form, get, insist, post};
use crate::target::{Setup, Target};
use crate::wire::{Message, noise, series, snappy};

/// A regular request is accepted within this time, or a retry of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Regular requests follow the greedy ones for a while.
const ROUNDS: u64 = 4;
/// New series in each round.
const SERIES: u64 = 200;

pub(crate) fn family() -> Family {
    let setup = Setup::database(&["--query-timeout=5s", "--enable-admin-api"]);
    Family::new("neighbours", setup)
        .because("queries leave memory for writes and for each other", readers())
        .because("writes leave memory for other writes and for queries", writers())
        .because("answers that are not read keep no memory from others", deaf())
}

fn readers() -> Vec<Attack> {
    let matcher = Message::default().bytes(2, "__name__").bytes(3, "load");
    let read_query = Message::default()
        .varint(1, ((base_s() - 3_600) * 1_000) as u64)
        .varint(2, (base_s() * 1_000) as u64)
        .message(3, matcher);
    let read = post("/api/v1/read").body(snappy(Message::default().message(1, read_query).0));
    let copy = r#"label_replace(load,"y","$1$1$1$1$1$1","path","(.*)")"#;
    let rows: Vec<(&str, usize, Request)> = vec![
        ("range queries of all series", 6, range("load", 300)),
        ("sums of many steps", 6, range("sum by (path) (rate(load[1h]))", 2_000)),
        ("queries with a copy of each label", 6, query(copy)),
        ("joins of all series", 6, range("load + on (path, instance) load", 300)),
        (
            "long regular expressions",
            6,
            query(format!("load{{path=~\"{}.*\"}}", "(a|b)?".repeat(400))),
        ),
        ("remote reads", 6, read),
        ("federations", 6, get("/federate?match[]=load")),
        ("lists of series", 6, form("/api/v1/series", [("match[]", "{__name__=~\".+\"}")])),
        ("forty range queries", 40, range("load * load", 300)),
    ];
    let queries = attack("queries of all series", beside(6, || query("load")), accepted()).quick();
    let others = rows.into_iter().map(|(name, clients, request)| {
        attack(name, beside(clients, move || request.clone()), accepted())
    });
    std::iter::once(queries).chain(others).collect()
}

fn writers() -> Vec<Attack> {
    let number = AtomicU64::new(0);
    let new_series = move || {
        let first = number.fetch_add(800, Ordering::Relaxed);
        write_made(move || {
            (first..first + 800).fold(Message::default(), |message, n| {
                let labels = [("__name__", "greedy"), ("path", &*noise(n, 1_500))];
                message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
            })
        })
    };
    // Known series: the same in each request.
    let samples = || {
        let samples: Vec<(i64, f64)> =
            (0..100).map(|n| ((base_s() - 600 + n) * 1_000, n as f64)).collect();
        write_made(move || {
            (0..5_000).fold(Message::default(), |message, n| {
                let labels = [("__name__", "many"), ("n", &*n.to_string())];
                message.message(1, series(&labels, &samples))
            })
        })
    };
    let import = || {
        post("/api/v1/import/prometheus").make(|| {
            let line = |n: usize| format!("imported{{n=\"{n}\",text=\"{:0200}\"}} 1\n", n);
            (0..20_000).map(line).collect::<String>().into_bytes()
        })
    };
    let transaction = r#"{"operations":[{"op":"read","match":"load"}]}"#;
    let delete = form("/api/v1/admin/tsdb/delete_series", [("match[]", "load"), ("end", "1")]);
    vec![
        attack("writes of long new series", beside(20, new_series), accepted()),
        attack("writes of many samples", beside(10, samples), accepted()),
        attack("imports of text", beside(10, import), accepted()),
        attack(
            "transactions of all series",
            beside(20, move || json("/api/v1/transaction", transaction)),
            accepted(),
        ),
        attack("deletes of all series", beside(20, move || delete.clone()), accepted()),
        attack("snapshots", beside(2, move || post("/api/v1/admin/tsdb/snapshot")), accepted()),
    ]
}

/// Sixty clients that read nothing hold the memory of their answers.
fn deaf() -> Vec<Attack> {
    let rows =
        [("range queries", range("load", 300)), ("federations", get("/federate?match[]=load"))];
    let attacks = rows.into_iter().map(|(name, request)| {
        let held = script(move |target| {
            let _open = deaf_connections(&request, 60, target);
            neighbour(target)
        });
        attack(format!("sixty {name} that are not read"), held, accepted())
    });
    attacks.collect()
}

/// Every regular request was accepted in time.
fn accepted() -> Expect {
    status([200, 204]).within(4 * ROUNDS * PATIENCE.as_secs())
}

/// Clients that send without a pause, beside the neighbour. The responses are the neighbour's.
fn beside(clients: usize, request: impl Fn() -> Request + Send + Sync + 'static) -> Action {
    script(move |target| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let greedy = || {
                let mut last = Answer::default();
                while !done.load(Ordering::Relaxed) {
                    last = request().send(target);
                }
                last
            };
            let greedy: Vec<_> = (0..clients).map(|_| scope.spawn(greedy)).collect();
            // All of them are busy by then.
            std::thread::sleep(Duration::from_secs(1));
            let mut answers = neighbour(target);
            done.store(true, Ordering::Relaxed);
            let greedy = greedy.into_iter().map(|client| client.join().unwrap_or_default());
            // Requests that are wrong take nothing, and show nothing.
            answers.extend(greedy.filter(|answer| matches!(answer.status, 400 | 401 | 403 | 404)));
            answers
        })
    })
}

/// Writes new and known series and queries them, a few times.
fn neighbour(target: &Target) -> Vec<Answer> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let patience = target.limit(PATIENCE);
    let mut answers = Vec::new();
    for _ in 0..ROUNDS {
        let round = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
        let samples = |offset_s: i64| {
            let message = (0..SERIES).fold(Message::default(), |message, n| {
                let n = n.to_string();
                let labels = [("__name__", "neighbour"), ("n", &*n), ("round", &*round)];
                message.message(1, series(&labels, &[((base_s() - offset_s) * 1_000, 1.0)]))
            });
            write(message)
        };
        let sum = format!("sum(neighbour{{round=\"{round}\"}})");
        let requests =
            [(samples(20), 204), (samples(10), 204), (query(&sum), 200), (range(&sum, 60), 200)];
        answers.extend(
            requests.map(|(request, wanted)| insist(patience, || request.send(target), wanted)),
        );
    }
    answers
}
