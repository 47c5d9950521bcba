//! Groups over HTTP (docs/groups.md): written by labels and by references in both forms, and every
//! bad input.

use serde_json::{Value, json};

use crate::Running;
use crate::client::{Answer, api, get, import, send, url};
use crate::write_request::{Message, series};

const T: i64 = 1_700_000_000_000;
const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
const PROTOBUF: [(&str, &str); 1] = [("Content-Type", "application/x-protobuf")];

fn post(server: &Running, path: &str, body: &Value) -> Answer {
    send(server.at(), "POST", &format!("/api/v1/{path}"), &JSON, body.to_string().as_bytes())
}

/// The `data` of a request that must succeed.
fn done(server: &Running, path: &str, body: &Value) -> Value {
    let answer = post(server, path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    assert_eq!(answer.header("content-type"), "application/json");
    answer.json()["data"].clone()
}

/// A request that must be refused as a whole, with these words.
fn refused(server: &Running, path: &str, body: &Value, status: u16, wanted: &[&str]) {
    let answer = post(server, path, body);
    let error = answer.json()["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer.status, status, "{body}: {error}");
    for wanted in wanted {
        assert!(error.contains(wanted), "{wanted:?} is not in {error:?}");
    }
    assert_eq!(answer.json()["data"], Value::Null, "nothing was done");
}

/// The pump of most tests: its group, its slots and the generation of both.
fn define_pump(server: &Running, members: &[&str]) -> (Value, Value, Value) {
    let members: Vec<Value> = members.iter().map(|name| json!({ "__name__": name })).collect();
    let group = json!({ "labels": { "device": "pump-7", "site": "north" }, "members": members });
    let data = done(server, "groups", &json!({ "groups": [group] }));
    let part = data["groups"][0]["parts"][0].clone();
    assert_eq!(data["groups"][0]["parts"].as_array().map(Vec::len), Some(1));
    (part["group"].clone(), part["slots"].clone(), data["generation"].clone())
}

/// All samples of the pump's members: `name` to `[[time, value], ..]`.
fn samples(server: &Running) -> Value {
    let params = [("query", "{device=\"pump-7\"}[1h]"), ("time", "1700000600")];
    let data = api(server.at(), "query", &params);
    let result = data["result"].as_array().expect("a matrix").iter();
    let named = result.map(|s| {
        (s["metric"]["__name__"].as_str().expect("a name").to_owned(), s["values"].clone())
    });
    Value::Object(named.collect())
}

fn metric(server: &Running, line: &str) -> bool {
    get(server.at(), "/metrics").text().lines().any(|found| found == line)
}

#[test]
fn a_group_is_defined_once_and_written_by_references() {
    let mut server = Running::start(&[]);
    let (group, slots, generation) = define_pump(&server, &["flow", "pressure"]);
    assert_eq!(slots, json!([0, 1]));
    let rows = json!([
        { "timestamp": T, "values": [1, 10.5] },
        { "timestamp": T + 15_000, "values": ["+Inf", null] },
        { "timestamp": T - 15_000, "values": [null, "-0.5"] },
    ]);
    let write = json!({
        "generation": generation,
        "groups": [{ "group": group, "slots": slots, "rows": rows }],
    });
    let data = done(&server, "groups/write", &write);
    assert_eq!((&data["written"], &data["refused_values"]), (&json!(4), &json!(0)));
    let wanted = json!({
        "flow": [[1_700_000_000, "1"], [1_700_000_015, "+Inf"]],
        "pressure": [[1_699_999_985, "-0.5"], [1_700_000_000, "10.5"]],
    });
    assert_eq!(samples(&server), wanted);
    assert!(metric(&server, "firn_write_stored_samples_total{protocol=\"groups\"} 4"));
    // A stale marker ends a series at once; it is no sample.
    let stale = json!({
        "generation": generation,
        "groups": [{ "group": group, "slots": [1], "rows": [{ "timestamp": T + 20_000, "values": ["stale"] }] }],
    });
    assert_eq!(done(&server, "groups/write", &stale)["written"], 1);
    assert_eq!(samples(&server), wanted);
    let at = |time| {
        api(server.at(), "query", &[("query", "pressure"), ("time", time)])["result"].clone()
    };
    assert_eq!(at("1700000019")[0]["value"][1], "10.5");
    assert_eq!(at("1700000021"), json!([]));
    // References are valid for one life of the server; written samples remain.
    server.restart(&[]);
    assert_eq!(samples(&server), wanted);
    refused(&server, "groups/write", &write, 404, &["groups[0]", "define the groups again"]);
    let (again, slots, _) = define_pump(&server, &["pressure", "flow", "heat"]);
    assert_eq!((again, slots), (group, json!([1, 0, 2])));
}

#[test]
fn rows_by_labels_define_new_series() {
    let server = Running::start(&[]);
    let row = |members: Value, values: Value, ts: i64| {
        json!({ "groups": [{
            "labels": { "device": "pump-7" }, "members": members,
            "rows": [{ "timestamp": ts, "values": values }],
        }] })
    };
    let flow = json!({ "__name__": "flow" });
    let heat = json!({ "__name__": "heat", "core": "1" });
    let first = done(&server, "groups/write", &row(json!([flow]), json!([1]), T));
    let both = done(&server, "groups/write", &row(json!([heat, flow]), json!([2, 3]), T + 1_000));
    let part = |data: &Value| data["groups"][0]["parts"][0].clone();
    assert_eq!(part(&both)["group"], part(&first)["group"]);
    assert_eq!((&part(&first)["slots"], &part(&both)["slots"]), (&json!([0]), &json!([1, 0])));
    let wanted = json!({
        "flow": [[1_700_000_000, "1"], [1_700_000_001, "3"]],
        "heat": [[1_700_000_001, "2"]],
    });
    assert_eq!(samples(&server), wanted);
    // The references of a write by labels are good for writes by references.
    let by_refs = json!({ "generation": both["generation"], "groups": [{
        "group": part(&both)["group"], "slots": [0], "rows": [{ "timestamp": T + 2_000, "values": [4] }],
    }] });
    done(&server, "groups/write", &by_refs);
    assert_eq!(samples(&server)["flow"][2], json!([1_700_000_002, "4"]));
}

#[test]
fn series_without_a_group_take_the_same_way() {
    let server = Running::start(&[]);
    let lone = json!({ "__name__": "temperature", "room": "attic" });
    let grouped = json!({ "__name__": "up", "job": "a", "instance": "b" });
    let write = json!({ "groups": [{
        "series": [lone, grouped],
        "rows": [{ "timestamp": T, "values": [21.5, 1] }],
    }] });
    let data = done(&server, "groups/write", &write);
    let parts = data["groups"][0]["parts"].as_array().expect("parts").clone();
    assert_eq!(parts.len(), 2, "groups of their own: {data}");
    let more = json!({ "generation": data["generation"], "groups": [{
        "group": parts[0]["group"], "slots": [0], "rows": [{ "timestamp": T + 5_000, "values": [22] }],
    }] });
    done(&server, "groups/write", &more);
    let now = api(server.at(), "query", &[("query", "temperature"), ("time", "1700000010")]);
    assert_eq!(now["result"][0]["metric"], lone);
    assert_eq!(now["result"][0]["value"][1], "22");
    // They are where remote write would have put them.
    import(server.at(), "up2{job=\"a\",instance=\"b\"} 1 1700000000000\n");
    let known = api(server.at(), &format!("groups/{}", parts[1]["group"]), &[]);
    assert_eq!(known["labels"], json!({ "job": "a", "instance": "b" }));
    assert_eq!(known["members"].as_array().map(Vec::len), Some(2), "{known}");
}

#[test]
fn groups_are_listed_and_shown() {
    let server = Running::start(&[]);
    let (group, _, _) = define_pump(&server, &["flow", "pressure"]);
    import(server.at(), "lone 1 1700000000000\n");
    let pump = json!({
        "group": group, "labels": { "device": "pump-7", "site": "north" }, "lone": false,
        "members": 2, "slots": 2,
    });
    assert_eq!(api(server.at(), "groups", &[]), json!([pump]));
    let mut of_flow = pump.clone();
    of_flow["members"] = json!(1);
    assert_eq!(api(server.at(), "groups", &[("match[]", "flow")]), json!([of_flow]));
    let both = [("match[]", "flow"), ("match[]", "{site=\"north\"}")];
    assert_eq!(api(server.at(), "groups", &both), json!([pump]));
    assert_eq!(api(server.at(), "groups", &[("match[]", "nothing")]), json!([]));
    let with_lone = api(server.at(), "groups", &[("lone", "true")]);
    assert_eq!(with_lone.as_array().map(Vec::len), Some(2), "{with_lone}");
    let answer = get(server.at(), &url("/api/v1/groups", &[("lone", "true"), ("limit", "1")]));
    assert_eq!(answer.json()["warnings"], json!(["results truncated due to limit"]));
    let shown = api(server.at(), &format!("groups/{group}"), &[]);
    assert_eq!(
        shown,
        json!({
            "group": group, "labels": { "device": "pump-7", "site": "north" }, "lone": false,
            "members": [
                { "slot": 0, "labels": { "__name__": "flow" } },
                { "slot": 1, "labels": { "__name__": "pressure" } },
            ],
        })
    );
    let f = |target: &str, status: u16, wanted: &str| {
        let answer = get(server.at(), &format!("/api/v1/groups{target}"));
        let error = answer.json()["error"].to_string();
        assert!(answer.status == status && error.contains(wanted), "{target}: {error}");
    };
    f("/77777", 404, "group 77777 does not exist");
    f("/seven", 400, "expected a number");
    f("?match[]={", 400, "match[]");
    f("?lone=perhaps", 400, "lone");
    f("?limit=-1", 400, "limit");
}

#[test]
fn protobuf_equals_json() {
    let server = Running::start(&[]);
    let names = |names: &[&str]| {
        let device = Message::default().label("device", "pump-7");
        names.iter().fold(device, |group, name| {
            group.bytes(2, Message::default().label("__name__", name).0)
        })
    };
    let row = Message::default()
        .varint(1, T as u64)
        .bytes(2, [1.5f64.to_le_bytes(), 2.5f64.to_le_bytes()].concat());
    let piece = Message::default().varint(1, (T + 1_000) as u64).varint(3, 1).double(2, 3.5);
    let group = names(&["flow", "pressure"]).bytes(6, row.0).bytes(6, piece.0);
    let request = Message::default().bytes(3, group.0);
    let answer = send(server.at(), "POST", "/api/v1/groups/write", &PROTOBUF, &request.0);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-protobuf"));
    let wanted = json!({
        "flow": [[1_700_000_000, "1.5"]],
        "pressure": [[1_700_000_000, "2.5"], [1_700_000_001, "3.5"]],
    });
    assert_eq!(samples(&server), wanted);
    // The answer is the generation, then the references: group 1, packed slots 2.
    let generation_len = usize::from(answer.body[1]);
    let generation = answer.body[2..2 + generation_len].to_vec();
    let known = api(server.at(), "groups", &[])[0]["group"].as_u64().expect("an id");
    let part = Message::default().varint(1, known).bytes(2, [0, 1]);
    let refs = Message::default().bytes(2, Message::default().bytes(1, part.0).0);
    let rest = refs.varint(3, 3).varint(4, 0);
    assert_eq!(answer.body[2 + generation_len..], rest.0);
    // By references, in a snappy block and by gzip.
    let row = Message::default().varint(1, (T + 2_000) as u64).double(2, 4.5);
    let group = Message::default().varint(4, known).bytes(5, [1]).bytes(6, row.0);
    let request = Message::default().bytes(1, generation).bytes(3, group.0);
    let block = snap::raw::Encoder::new().compress_vec(&request.0).expect("fits");
    let snappy = [PROTOBUF[0], ("Content-Encoding", "snappy")];
    assert_eq!(send(server.at(), "POST", "/api/v1/groups/write", &snappy, &block).status, 200);
    assert_eq!(samples(&server)["pressure"][2], json!([1_700_000_002, "4.5"]));
    let gzip = [PROTOBUF[0], ("Content-Encoding", "gzip")];
    let zipped = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &request.0).expect("a vector takes it");
        encoder.finish().expect("a vector takes it")
    };
    assert_eq!(send(server.at(), "POST", "/api/v1/groups/write", &gzip, &zipped).status, 200);
    // Cut anywhere it is refused, and nothing of it is written.
    let whole = Message::default()
        .bytes(3, names(&["cut"]).bytes(6, Message::default().double(2, 1.0).0).0);
    for len in 1..whole.0.len() {
        let answer = send(server.at(), "POST", "/api/v1/groups/write", &PROTOBUF, &whole.0[..len]);
        let error = answer.json()["error"].to_string();
        assert!(answer.status == 400 && error.contains("byte"), "{len}: {error}");
    }
    assert_eq!(samples(&server)["cut"], Value::Null);
}

#[test]
fn errors_of_the_database_leave_nothing_half_done() {
    let server = Running::start(&[]);
    let (group, slots, generation) = define_pump(&server, &["flow", "pressure"]);
    let other = json!({ "labels": { "device": "pump-8" }, "members": [{ "__name__": "flow" }] });
    let other_group = done(&server, "groups", &json!({ "groups": [other] }));
    let series_count = || api(server.at(), "status/tsdb", &[])["headStats"]["numSeries"].clone();
    let before = series_count();
    let fresh = json!({
        "labels": { "device": "fresh" }, "members": [{ "__name__": "flow" }],
        "rows": [{ "timestamp": T, "values": [1] }],
    });
    let f = |bad: Value, status: u16, wanted: &[&str]| {
        let body = json!({ "generation": generation, "groups": [fresh, bad] });
        refused(&server, "groups/write", &body, status, &[&["groups[1]"], wanted].concat());
        assert_eq!(series_count(), before, "nothing is defined");
        let found = api(server.at(), "series", &[("match[]", "{device=\"fresh\"}")]);
        assert_eq!(found, json!([]), "nothing is written");
    };
    let row = json!([{ "timestamp": T, "values": [1] }]);
    f(
        json!({ "group": group, "slots": [7], "rows": row }),
        404,
        &["has no slot 7: it has 2 slots"],
    );
    f(
        json!({ "group": 777_777, "slots": [0], "rows": row }),
        404,
        &["group 777777 does not exist"],
    );
    // A member of one group, split in another way: the group would be redefined.
    let split = json!({ "labels": { "device": "pump-7" },
        "members": [{ "site": "north", "__name__": "flow" }], "rows": row });
    let of_pump = format!("member 0 of group {group}");
    f(split.clone(), 400, &["collides", &of_pump, "pump-7"]);
    f(
        json!({ "labels": { "device": "pump-8" }, "members": [{ "device": "pump-9", "__name__": "x" }], "rows": row }),
        400,
        &["repeats label \"device\""],
    );
    // A label set that another group of the same request defines.
    f(
        json!({ "labels": {}, "members": [{ "device": "fresh", "__name__": "flow" }], "rows": row }),
        400,
        &["collides with groups[0]", "fresh"],
    );
    // A client that accepts it has its values in the existing series.
    let body = json!({ "known_elsewhere": "use", "groups": [split] });
    let data = done(&server, "groups/write", &body);
    assert_eq!(data["groups"][0]["parts"], json!([{ "group": group, "slots": [0] }]));
    // Another generation, or none.
    let old = |generation: &str| json!({ "generation": generation, "groups": [{ "group": group, "slots": slots }] });
    refused(
        &server,
        "groups/write",
        &old("0-0"),
        404,
        &["generation \"0-0\"", "define the groups"],
    );
    let none = json!({ "groups": [{ "group": group, "slots": slots }] });
    refused(&server, "groups/write", &none, 404, &["generation \"none\""]);
    refused(&server, "groups", &none, 400, &["groups[0]", "groups/write"]);
    assert_eq!(other_group["groups"][0]["parts"][0]["slots"], json!([0]));
    // Two values per request with wrong references or members, one of `fresh` and one beside it.
    let rejected = "firn_write_rejected_samples_total{protocol=\"groups\",reason=\"request\"} 8";
    assert!(metric(&server, rejected));
    assert!(metric(&server, "firn_write_rejected_requests_total{protocol=\"groups\"} 2"));
}

#[test]
fn rows_too_far_in_the_future_are_listed_and_the_others_written() {
    let server = Running::start(&[]);
    let body = json!({ "groups": [
        { "labels": { "device": "pump-7" }, "members": [{ "__name__": "flow" }],
          "rows": [{ "timestamp": T, "values": [1] }] },
        { "labels": { "device": "pump-7" }, "members": [{ "__name__": "flow" }, { "__name__": "heat" }],
          "rows": [{ "timestamp": i64::MAX, "values": [2, 3] }, { "timestamp": T + 1_000, "values": [4, 5] }] },
    ] });
    let answer = post(&server, "groups/write", &body);
    let json = answer.json();
    assert_eq!((answer.status, &json["errorType"]), (400, &json!("bad_data")));
    let error = json["error"].as_str().expect("a sentence");
    assert!(error.contains("2 values") && error.contains("groups[1].rows[0]"), "{error}");
    assert_eq!((&json["data"]["written"], &json["data"]["refused_values"]), (&json!(3), &json!(2)));
    let listed = &json["data"]["refused"];
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    assert_eq!(listed[0]["group_index"], 1);
    assert_eq!(
        (&listed[0]["row_index"], &listed[0]["reason"]),
        (&json!(0), &json!("too_far_ahead"))
    );
    let wanted = json!({
        "flow": [[1_700_000_000, "1"], [1_700_000_001, "4"]], "heat": [[1_700_000_001, "5"]],
    });
    assert_eq!(samples(&server), wanted);
    let rejected =
        "firn_write_rejected_samples_total{protocol=\"groups\",reason=\"too_far_ahead\"} 2";
    assert!(metric(&server, rejected));
    let lenient = Running::start(&["--write-lenient"]);
    assert_eq!(post(&lenient, "groups/write", &body).status, 200);
}

#[test]
fn over_a_limit_for_series_known_members_go_on() {
    let server = Running::start(&["--series-max=2"]);
    let body = |members: &[&str]| {
        let members: Vec<Value> = members.iter().map(|name| json!({ "__name__": name })).collect();
        let values: Vec<usize> = (0..members.len()).collect();
        json!({ "groups": [{ "labels": { "device": "pump-7" }, "members": members,
            "rows": [{ "timestamp": T, "values": values }] }] })
    };
    done(&server, "groups/write", &body(&["flow"]));
    let answer = post(&server, "groups/write", &body(&["new1", "flow", "new2", "new3"]));
    let json = answer.json();
    assert_eq!((answer.status, &json["errorType"]), (429, &json!("bad_data")), "{json}");
    assert!(answer.header("retry-after").parse::<u64>().is_ok());
    assert_eq!(json["data"]["refused"][0]["reason"], "series_max");
    assert_eq!(json["data"]["groups"][0]["parts"], json!([]), "some have no reference");
    assert_eq!((&json["data"]["written"], &json["data"]["refused_values"]), (&json!(2), &json!(2)));
    assert_eq!(samples(&server)["flow"], json!([[1_700_000_000, "1"]]));
    let whole = post(
        &server,
        "groups",
        &json!({ "groups": [{ "labels": { "device": "pump-8" },
        "members": [{ "__name__": "flow" }] }] }),
    );
    assert_eq!(whole.status, 429, "{}", whole.text());
    assert!(whole.header("retry-after").parse::<u64>().is_ok());
}

#[test]
fn label_bombs_wrong_types_and_large_bodies_are_refused_by_place() {
    let server = Running::start(&[
        "--label-value-bytes-max=100",
        "--request-bytes-max=90000",
        "--body-bytes-max=70000",
    ]);
    let f = |group: Value, status: u16, wanted: &[&str]| {
        refused(&server, "groups", &json!({ "groups": [group] }), status, wanted);
    };
    let long = "x".repeat(101);
    f(
        json!({ "series": [{ "__name__": "m", "a": long }] }),
        413,
        &["groups[0].series[0]", "101 bytes", "limit of 100"],
    );
    let many: serde_json::Map<String, Value> =
        (0..64).map(|idx| (format!("l{idx}"), json!("1"))).collect();
    f(
        json!({ "labels": many, "members": [{ "__name__": "m" }] }),
        413,
        &["groups[0]", "members[0]", "65 labels", "limit of 64"],
    );
    f(json!({ "labels": { "a": "1" }, "members": [{ "b": "1" }] }), 400, &["has no __name__"]);
    f(
        json!({ "labels": { "a": 1 }, "members": [] }),
        400,
        &["byte", "groups[0].labels.a", "a string"],
    );
    f(json!({ "labels": [], "members": [] }), 400, &["groups[0].labels", "expected an object"]);
    f(json!([]), 400, &["groups[0]", "expected an object, got an array"]);
    let names: Vec<Value> =
        (0..4_000).map(|idx| json!({ "__name__": format!("metric_{idx}") })).collect();
    f(json!({ "labels": {}, "members": names }), 413, &["70000 bytes", "--body-bytes-max"]);
    let raw = |headers: &[(&str, &str)], body: &[u8]| {
        send(server.at(), "POST", "/api/v1/groups", headers, body)
    };
    assert_eq!(raw(&JSON, b"").status, 400);
    assert_eq!(raw(&JSON, b"{\"groups\":[{\"labels\":{\"a\":\"1").status, 400);
    assert_eq!(raw(&[("Content-Type", "text/csv")], b"{}").status, 415);
    assert_eq!(raw(&[("Content-Encoding", "br")], b"{}").status, 415);
    let bomb = snap::raw::Encoder::new().compress_vec(&[b' '; 100_000]).expect("fits");
    let answer = raw(&[("Content-Encoding", "snappy")], &bomb);
    assert!(answer.status == 413 && answer.text().contains("limit is 90000"), "{}", answer.text());
    assert_eq!(get(server.at(), "/api/v1/groups/write").status, 405);
    assert_eq!(send(server.at(), "PUT", "/api/v1/groups", &[], b"").status, 405);
    assert_eq!(api(server.at(), "groups", &[("lone", "true")]), json!([]));
}

/// Series of remote write join the group of their `job` and `instance` when they are first seen,
/// and only then; without these labels they are lone series.
#[test]
fn remote_write_groups_by_job_and_instance_once() {
    let mut server = Running::start(&[]);
    let target = [("job", "node"), ("instance", "a:9100")];
    let with = |name: &'static str, rest: &[(&'static str, &'static str)]| {
        series(&[&[("__name__", name)], rest].concat()).sample(T, 1.0)
    };
    let request = Message::default()
        .series(with("cpu", &target))
        .series(with("mem", &target))
        .series(with("no_instance", &target[..1]))
        .series(with("no_job", &target[1..]))
        .series(with("empty_job", &[("job", ""), target[1]]))
        .series(with("neither", &[("zone", "z")]));
    assert_eq!(request.send(server.at()).status, 204);
    let all = |server: &Running| {
        let groups = api(server.at(), "groups", &[("lone", "true")]);
        let mut found: Vec<(String, u64)> = groups
            .as_array()
            .expect("a list")
            .iter()
            .map(|g| (g["labels"].to_string(), g["members"].as_u64().expect("a count")))
            .collect();
        found.sort();
        found
    };
    let grouped = r#"{"instance":"a:9100","job":"node"}"#.to_owned();
    let wanted = [
        (r#"{"__name__":"empty_job","instance":"a:9100"}"#.to_owned(), 1),
        (r#"{"__name__":"neither","zone":"z"}"#.to_owned(), 1),
        (r#"{"__name__":"no_instance","job":"node"}"#.to_owned(), 1),
        (r#"{"__name__":"no_job","instance":"a:9100"}"#.to_owned(), 1),
        (grouped.clone(), 2),
    ];
    assert_eq!(all(&server), wanted);
    let answers = |server: &Running| {
        let params = [("query", "{__name__=~\".+\"}"), ("time", "1700000010")];
        api(server.at(), "query", &params)["result"].as_array().map(Vec::len)
    };
    assert_eq!(answers(&server), Some(6), "every series is found, grouped or not");
    // Again with another rule: known series keep their group, new ones follow the new rule.
    assert_eq!(request.send(server.at()).status, 204);
    assert_eq!(all(&server), wanted);
    server.restart(&["--group-by=zone"]);
    assert_eq!(request.send(server.at()).status, 204);
    assert_eq!(all(&server), wanted, "grouping acts once");
    let more = Message::default().series(with("new", &[target[0], target[1], ("zone", "z")]));
    assert_eq!(more.send(server.at()).status, 204);
    let now = all(&server);
    assert!(
        now.contains(&(r#"{"zone":"z"}"#.to_owned(), 1)) && now.contains(&(grouped, 2)),
        "{now:?}"
    );
    assert_eq!(answers(&server), Some(7));
}
