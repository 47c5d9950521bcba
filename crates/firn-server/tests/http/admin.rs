//! Deleting, cleaning and snapshots over HTTP, and every bad request to them.

use serde_json::json;

use crate::client::{Answer, api, form, get, import, send};
use crate::{Running, start_with_data, wait_until_ready};

const ENABLED: &[&str] = &["--enable-admin-api"];

fn admin(server: &Running, method: &str, path: &str, params: &[(&str, &str)]) -> Answer {
    let target = format!("/api/v1/admin/tsdb/{path}?{}", form(params));
    send(server.at(), method, &target, &[], b"")
}

/// The values of a query at second 100.
fn values(at: std::net::SocketAddr, query: &str) -> Vec<String> {
    let data = api(at, "query", &[("query", query), ("time", "100")]);
    let result = data["result"].as_array().expect("a vector").clone();
    result.iter().map(|sample| sample["value"][1].as_str().expect("a value").to_owned()).collect()
}

fn fill(server: &Running) {
    let lines = (10..100)
        .step_by(10)
        .map(|s| format!("a{{n=\"1\"}} {s} {s}000\na{{n=\"2\"}} {s} {s}000\n"));
    import(server.at(), &lines.collect::<String>());
}

#[test]
fn the_admin_api_is_off_unless_enabled_and_never_takes_get() {
    let server = Running::start(&[]);
    for path in ["delete_series", "clean_tombstones", "snapshot"] {
        let answer = admin(&server, "POST", path, &[("match[]", "a")]);
        assert_eq!(answer.status, 500);
        let want =
            json!({"status": "error", "errorType": "unavailable", "error": "admin APIs disabled"});
        assert_eq!(answer.json(), want);
        let get = get(server.at(), &format!("/api/v1/admin/tsdb/{path}"));
        assert_eq!((get.status, get.text().as_str()), (405, "Method Not Allowed\n"));
    }
}

#[test]
fn deleted_samples_vanish_at_once_and_later_ones_are_visible() {
    let server = Running::start(ENABLED);
    fill(&server);
    let count = "count_over_time(a[100s])";
    assert_eq!(values(server.at(), count), ["9", "9"]);
    let answer = admin(
        &server,
        "POST",
        "delete_series",
        &[("match[]", "a{n=\"1\"}"), ("start", "20"), ("end", "39.999")],
    );
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(values(server.at(), count), ["7", "9"]);
    import(server.at(), "a{n=\"1\"} 5 30000\n");
    assert_eq!(values(server.at(), count), ["8", "9"]);
    // A form in the body, by PUT too; several selectors.
    let body =
        form(&[("match[]", "a{n=\"1\"}"), ("match[]", "nothing"), ("end", "1970-01-01T00:00:50Z")]);
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    let target = "/api/v1/admin/tsdb/delete_series";
    let answer = send(server.at(), "PUT", target, &headers, body.as_bytes());
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert_eq!(values(server.at(), count), ["4", "9"]);
    let answer = admin(&server, "POST", "delete_series", &[("match[]", "a{n=\"2\"}")]);
    assert_eq!(answer.status, 204);
    assert_eq!(values(server.at(), count), ["4"]);
    let series = api(server.at(), "series", &[("match[]", "a")]);
    assert_eq!(series, json!([{"__name__": "a", "n": "1"}]));
    let metrics = get(server.at(), "/metrics").text();
    assert!(metrics.contains("\nfirn_deletes_total 3\n"), "{metrics}");
    assert!(metrics.contains("\nfirn_tombstones 3\n"), "{metrics}");

    assert_eq!(admin(&server, "POST", "clean_tombstones", &[]).status, 204);
    assert_eq!(values(server.at(), count), ["4"]);
    let metrics = get(server.at(), "/metrics").text();
    assert!(metrics.contains("\nfirn_tombstones 0\n"), "{metrics}");
    assert_eq!(admin(&server, "PUT", "clean_tombstones", &[]).status, 204, "nothing to do");
}

#[test]
fn bad_deletes_are_reported_and_delete_nothing() {
    let server = Running::start(ENABLED);
    fill(&server);
    let f = |params: &[(&str, &str)], want: &str| {
        let answer = admin(&server, "POST", "delete_series", params);
        let json = answer.json();
        assert_eq!((answer.status, &json["errorType"]), (400, &json!("bad_data")), "{params:?}");
        let error = json["error"].as_str().expect("words");
        assert!(error.contains(want), "{params:?}: {error}");
    };
    f(&[], "no match[] parameter provided");
    f(&[("start", "soon")], "no match[] parameter provided");
    f(&[("match[]", "a{"), ("start", "soon")], "invalid parameter \"start\"");
    f(&[("match[]", "a{")], "invalid parameter \"match[]\"");
    f(&[("match[]", "{}")], "invalid parameter \"match[]\"");
    f(&[("match[]", "rate(a[5m])")], "invalid parameter \"match[]\"");
    f(&[("match[]", "a"), ("start", "soon")], "invalid parameter \"start\"");
    f(&[("match[]", "a"), ("end", "x")], "invalid parameter \"end\"");
    let answer = admin(
        &server,
        "POST",
        "delete_series",
        &[("match[]", "a"), ("start", "90"), ("end", "10")],
    );
    assert_eq!(answer.status, 204, "a range that ends before it starts holds nothing");
    assert_eq!(values(server.at(), "count_over_time(a[100s])"), ["9", "9"]);
    let answer = admin(&server, "POST", "snapshot", &[("skip_head", "perhaps")]);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("unable to parse boolean"), "{}", answer.text());
}

#[test]
fn a_snapshot_opens_by_itself_and_answers_the_same() {
    let mut server = Running::start(ENABLED);
    fill(&server);
    admin(&server, "POST", "delete_series", &[("match[]", "a{n=\"2\"}"), ("end", "45")]);
    let name_of = |answer: Answer| {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let json = answer.json();
        assert_eq!(json["status"], "success");
        json["data"]["name"].as_str().expect("a name").to_owned()
    };
    let without = name_of(admin(&server, "PUT", "snapshot", &[("skip_head", "true")]));
    let with = name_of(admin(&server, "POST", "snapshot", &[]));
    assert_ne!(with, without);
    let count = "count_over_time(a[100s])";
    import(server.at(), "a{n=\"1\"} 1 95000\n");
    assert_eq!(values(server.at(), count), ["10", "5"]);
    let snapshots = server.folder.path().join("data").join("snapshots");
    let folders = std::fs::read_dir(&snapshots).expect("snapshots").count();
    assert_eq!(folders, 2, "nothing unfinished is left");
    for (name, want) in [(&with, &["9", "5"][..]), (&without, &[])] {
        let mut copy = start_with_data(&snapshots.join(name), &[]);
        wait_until_ready(&mut copy);
        assert_eq!(values(copy.listen(), count), want, "{name}");
        copy.stop().expect("a clean stop");
    }
    // The original is as it was. Snapshots that a killed process has begun are removed: the names
    // end in `.unfinished` until the copy is complete.
    let begun = snapshots.join("20251121T125703Z-0000019aa67d55f3.unfinished");
    let foreign = snapshots.join("mine.unfinished");
    for folder in [&begun, &foreign] {
        std::fs::create_dir_all(folder.join("fast/tables")).expect("a folder");
        std::fs::write(folder.join("fast/tables/1.fst"), "x").expect("a file");
    }
    server.restart(ENABLED);
    assert_eq!(values(server.at(), count), ["10", "5"]);
    assert!(!begun.exists() && foreign.exists());
    assert!(snapshots.join(&with).is_dir() && snapshots.join(&without).is_dir());
}
