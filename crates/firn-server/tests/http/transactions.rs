//! Transactions over HTTP (docs/transactions.md): every operation, every answer, every bad input.

use serde_json::{Value, json};

use crate::Running;
use crate::client::{Answer, get, send};

const T: i64 = 1_700_000_000_000;
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

fn post(server: &Running, body: &Value) -> Answer {
    send(server.at(), "POST", "/api/v1/transaction", &JSON, body.to_string().as_bytes())
}

/// The results of operations that must succeed.
fn done(server: &Running, operations: &Value) -> Value {
    let answer = post(server, &json!({ "operations": operations }));
    assert_eq!(answer.status, 200, "{operations}: {}", answer.text());
    answer.json()["data"]["results"].clone()
}

/// A request that must be refused as a whole, with these words.
fn refused(server: &Running, body: &Value, status: u16, kind: &str, wanted: &str) {
    let answer = post(server, body);
    let told = answer.json();
    let error = told["error"].as_str().unwrap_or_default();
    assert_eq!((answer.status, &told["errorType"]), (status, &json!(kind)), "{body}: {error}");
    assert!(error.contains(wanted), "{wanted:?} is not in {error:?}");
}

fn series(name: &str) -> Value {
    json!({ "__name__": name, "of": "test" })
}

fn insert(name: &str, ts: i64, value: Value) -> Value {
    json!({ "op": "insert", "series": series(name), "timestamp": ts, "value": value })
}

/// Before, a marker became another NaN, and the series had not ended.
#[test]
fn updates_leave_stale_markers() {
    let server = Running::start(&["--enable-admin-api"]);
    let range = |change: Value| {
        let mut update =
            json!({ "op": "update", "match": "{of=\"test\"}", "start": T, "end": T + 9 });
        update.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        update
    };
    let given = done(
        &server,
        &json!([
            insert("a", T, json!(1.5)),
            insert("a", T + 1, json!("stale")),
            range(json!({ "multiply": 1 })),
            range(json!({ "value": 3 })),
            { "op": "update", "series": series("a"), "timestamp": T + 1, "add": 0 },
        ]),
    );
    for idx in 2..5 {
        assert_eq!(given[idx], json!({ "samples": 1 }), "{given}");
    }
    let value_at = |ts: i64| {
        let path = format!("/api/v1/query?query=a&time={}.{:03}", ts / 1_000, ts % 1_000);
        get(server.at(), &path).json()["data"]["result"][0]["value"][1].clone()
    };
    assert_eq!(
        (value_at(T), value_at(T + 1), value_at(T + 60_000)),
        (json!("3"), Value::Null, Value::Null)
    );
    refused(
        &server,
        &json!({ "operations": [range(json!({ "add": "stale" }))] }),
        400,
        "bad_data",
        "multiply and add need numbers",
    );
}

/// Before, a marker was read as `"NaN"`, and a client that copied it made a sample of it.
#[test]
fn a_read_leaves_out_stale_markers_and_its_digest_covers_them() {
    let server = Running::start(&[]);
    let read = json!({ "op": "read", "match": "{of=\"test\"}" });
    let given = done(&server, &json!([insert("a", T, json!("NaN")), read]));
    let before = &given[1];
    let samples = json!([{ "labels": series("a"), "samples": [[T, "NaN"]] }]);
    assert_eq!(before["series"], samples);
    let marker = |name: &str| insert(name, T + 1, json!("stale"));
    let given = done(&server, &json!([marker("a"), marker("b"), read]));
    assert_eq!(given[2]["series"], samples, "{given}");
    assert_ne!(given[2]["digest"], before["digest"]);
    let mut repeated = read.clone();
    repeated["digest"] = before["digest"].clone();
    refused(&server, &json!({ "operations": [repeated] }), 409, "conflict", "have changed");
}

/// Before, the refusal named selections, of which the request has none.
#[test]
fn too_many_deletes_of_unknown_series_are_refused_as_deletes() {
    let server = Running::start(&["--enable-admin-api"]);
    let deletes = |count: usize| {
        let delete = |id: usize| {
            let series = series(&format!("unknown_{id}"));
            json!({ "op": "delete", "series": series, "timestamp": T })
        };
        json!({ "operations": (0..count).map(delete).collect::<Vec<_>>() })
    };
    assert_eq!(post(&server, &deletes(1_024)).status, 200);
    let wanted = "operation 1024: transaction too large: its reads, updates and deletes by \
                  selector, and its deletes of series that do not exist, are more than 1024";
    refused(&server, &deletes(1_025), 422, "execution", wanted);
}

#[test]
fn operations_see_each_other_and_happen_together() {
    let server = Running::start(&["--enable-admin-api"]);
    let read = json!({ "op": "read", "match": "{of=\"test\"}" });
    let given = done(
        &server,
        &json!([
            insert("a", T, json!(1.5)),
            insert("a", T + 1, json!("NaN")),
            insert("b", T, json!("-Inf")),
            { "op": "update", "series": series("a"), "timestamp": T, "multiply": 2, "add": 1 },
            read,
            { "op": "delete", "series": series("a"), "timestamp": T + 1 },
            { "op": "delete", "series": series("c"), "timestamp": T },
            { "op": "update", "match": "{of=\"test\"}", "start": T, "end": T, "value": 9 },
            read,
        ]),
    );
    let one = json!({ "samples": 1 });
    for idx in [0, 1, 2, 3, 5] {
        assert_eq!(given[idx], one, "operation {idx}: {given}");
    }
    let samples =
        |name: &str, samples: Value| json!({ "labels": series(name), "samples": samples });
    let first = json!([
        samples("a", json!([[T, "4"], [T + 1, "NaN"]])),
        samples("b", json!([[T, "-Inf"]]))
    ]);
    assert_eq!(given[4]["series"], first);
    assert_eq!((&given[6], &given[7]), (&json!({ "samples": 0 }), &json!({ "samples": 2 })));
    let second = json!([samples("a", json!([[T, "9"]])), samples("b", json!([[T, "9"]]))]);
    assert_eq!(given[8]["series"], second);
    assert_ne!(given[4]["digest"], given[8]["digest"]);

    // Every query sees it, and a transaction that only reads has no number.
    let answer = post(&server, &json!({ "operations": [read] }));
    assert_eq!(answer.json()["data"]["sequence"], Value::Null);
    assert_eq!(answer.json()["data"]["results"][0], given[8]);
    let metrics = get(server.at(), "/metrics").text();
    for line in [
        "firn_write_stored_samples_total{protocol=\"transactions\"} 2",
        "firn_transactions_total 1",
        "firn_transaction_conflicts_total 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}

/// Before, the answer was 0, although both samples were deleted.
#[test]
fn a_delete_counts_series_that_the_same_request_inserts() {
    let server = Running::start(&["--enable-admin-api"]);
    let read = json!({ "op": "read", "match": "{of=\"test\"}" });
    let delete = json!({ "op": "delete", "match": "{of=\"test\"}", "start": T, "end": T + 1 });
    let given = done(
        &server,
        &json!([
            insert("a", T, json!(1)),
            insert("b", T + 1, json!(1)),
            insert("c", T + 2, json!(1)),
            delete,
            read
        ]),
    );
    assert_eq!(given[3], json!({ "series": 2 }));
    let left = json!([{ "labels": series("c"), "samples": [[T + 2, "1"]] }]);
    assert_eq!(given[4]["series"], left);
    assert_eq!(done(&server, &json!([read]))[0]["series"], left);
}

#[test]
fn a_digest_makes_a_read_a_condition() {
    let server = Running::start(&[]);
    done(&server, &json!([insert("a", T, json!(1))]));
    let read = json!({ "op": "read", "match": "{of=\"test\"}", "start": T - 10, "end": T + 10 });
    let mut condition = read.clone();
    condition["digest"] = done(&server, &json!([read]))[0]["digest"].clone();
    // Out of its range: not a change of it.
    done(&server, &json!([insert("a", T + 11, json!(2))]));
    done(&server, &json!([condition, insert("a", T + 1, json!(2))]));
    let again = json!({ "operations": [insert("a", T, json!(5)), condition] });
    refused(
        &server,
        &again,
        409,
        "conflict",
        "operation 1: the samples that it reads have changed",
    );
    // A series that is new in it.
    condition["digest"] = done(&server, &json!([read]))[0]["digest"].clone();
    done(&server, &json!([insert("new", T, json!(2))]));
    let again = json!({ "operations": [condition, insert("a", T, json!(5))] });
    refused(&server, &again, 409, "conflict", "retry");
    let samples = &done(&server, &json!([read]))[0]["series"][0]["samples"];
    assert_eq!(*samples, json!([[T, "1"], [T + 1, "2"]]), "no refused change is visible");
}

#[test]
fn errors_of_bad_requests_name_the_mistake_and_its_position() {
    let server = Running::start(&[]);
    let of = |operation: Value| json!({ "operations": [insert("a", T, json!(1)), operation] });
    let a = series("a");
    for (operation, status, kind, wanted) in [
        (
            json!({ "op": "update", "series": a, "timestamp": 5, "value": 1 }),
            404,
            "not_found",
            "operation 1: a{of=\"test\"} has no sample at 5",
        ),
        (
            json!({ "op": "update", "series": series("x"), "timestamp": 5, "value": 1 }),
            404,
            "not_found",
            "operation 1: ",
        ),
        (
            json!({ "op": "update", "match": "a", "value": 1 }),
            400,
            "bad_data",
            "operation 1: updates of ranges need a server that runs with --enable-admin-api",
        ),
        (
            json!({ "op": "delete", "match": "a" }),
            400,
            "bad_data",
            "operation 1: deletes need a server that runs with --enable-admin-api",
        ),
        (json!({ "op": "upsert" }), 400, "bad_data", "op \"upsert\" is none of"),
        (json!({ "series": a }), 400, "bad_data", "op is missing"),
        (json!({ "op": "read" }), 400, "bad_data", "read needs match"),
        (
            json!({ "op": "read", "match": "a", "value": 1 }),
            400,
            "bad_data",
            "read of this form does not accept value",
        ),
        (json!({ "op": "read", "match": "{a=\"\"}" }), 400, "bad_data", "non-empty matcher"),
        (json!({ "op": "read", "match": "a", "digest": "zz" }), 400, "bad_data", "got \"zz\""),
        (json!({ "op": "read", "match": "a{" }), 400, "bad_data", "operations[1].match"),
        (
            json!({ "op": "read", "match": "a", "start": 2, "end": 1 }),
            400,
            "bad_data",
            "the range ends at 1, before its start 2",
        ),
        (json!({ "op": "insert", "series": a, "value": 1 }), 400, "bad_data", "needs timestamp"),
        (
            json!({ "op": "insert", "series": { "x": "y" }, "timestamp": 1, "value": 1 }),
            400,
            "bad_data",
            "metric name",
        ),
        (
            json!({ "op": "insert", "series": a, "timestamp": 1 }),
            400,
            "bad_data",
            "insert needs value",
        ),
        (
            json!({ "op": "insert", "series": a, "timestamp": 1, "value": null }),
            400,
            "bad_data",
            "a value is missing",
        ),
        (
            json!({ "op": "insert", "series": a, "timestamp": 1, "time": 1, "value": 1 }),
            400,
            "bad_data",
            "no such field",
        ),
        (
            json!({ "op": "insert", "series": a, "timestamp": i64::MAX, "value": 1 }),
            400,
            "bad_data",
            "operation 1: insert refused: out of bounds: timestamp",
        ),
        (
            json!({ "op": "update", "series": a, "timestamp": 1 }),
            400,
            "bad_data",
            "either value, or multiply",
        ),
        (
            json!({ "op": "update", "series": a, "timestamp": 1, "value": 1, "add": 1 }),
            400,
            "bad_data",
            "either value, or multiply",
        ),
        (
            json!({ "op": "update", "timestamp": 1, "value": 1 }),
            400,
            "bad_data",
            "needs series and timestamp, or match",
        ),
    ] {
        refused(&server, &of(operation), status, kind, wanted);
    }
    refused(&server, &json!({}), 400, "bad_data", "operations is missing");
    refused(&server, &json!([]), 400, "bad_data", "an object");
    let many: Vec<Value> = (0..10_001).map(|_| json!({ "op": "read", "match": "a" })).collect();
    refused(&server, &json!({ "operations": many }), 400, "bad_data", "over 10000 operations");
    let packed = [("Content-Encoding", "gzip")];
    let answer = send(server.at(), "POST", "/api/v1/transaction", &packed, b"{}");
    assert_eq!(answer.status, 415, "{}", answer.text());
    assert_eq!(done(&server, &json!([{ "op": "read", "match": "a" }]))[0]["series"], json!([]));
    let answer = post(&server, &json!({ "operations": [] }));
    assert_eq!((answer.status, answer.json()["data"]["results"].clone()), (200, json!([])));
}
