//! `/federate`.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Running;
use crate::client::{get, import, send, url};

/// Two series of now, one that is too old.
fn filled(args: &[&str]) -> (Running, u128) {
    let server = Running::start(args);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let (before, old) = (now_ms - 60_000, now_ms - 301_000);
    let lines = format!(
        "b_total{{job=\"x\",instance=\"i\"}} 1 {before}\nb_total{{job=\"x\",instance=\"i\"}} 2.5 {now_ms}\n\
         a{{job=\"y\"}} 3 {before}\nold 1 {old}\n"
    );
    import(server.at(), &lines);
    (server, now_ms)
}

#[test]
fn the_newest_samples_are_returned() {
    let (server, now_ms) = filled(&["--external-labels=region=eu,job=none"]);
    let at = server.at();
    let target = url("/federate", &[("match[]", "{__name__=~'.+'}"), ("match[]", "a")]);
    let answer = get(at, &target);
    assert_eq!(answer.status, 200);
    let kind = answer.header("content-type");
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    let before = now_ms - 60_000;
    assert_eq!(
        answer.text(),
        format!(
            "# TYPE a untyped\na{{job=\"y\",instance=\"\",region=\"eu\"}} 3 {before}\n\
             # TYPE b_total untyped\nb_total{{instance=\"i\",job=\"x\",region=\"eu\"}} 2.5 {now_ms}\n"
        )
    );
    let open = [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.1")];
    let answer = send(at, "GET", &target, &open, b"");
    assert!(
        answer.header("content-type").starts_with("application/openmetrics-text; version=1.0.0")
    );
    let text = answer.text();
    assert!(text.starts_with("# TYPE a unknown\n") && text.ends_with("# EOF\n"), "{text}");
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let answer = send(at, "GET", &target, &[("Accept", protobuf)], b"");
    assert!(answer.header("content-type").starts_with("application/vnd.google.protobuf; proto="));
    assert_eq!(answer.body.get(1..5), Some(&b"\x0a\x01a\x18"[..]));
}

#[test]
fn nothing_wanted_and_mistakes() {
    let (server, _) = filled(&[]);
    let at = server.at();
    let empty = get(at, "/federate");
    assert_eq!((empty.status, empty.text().as_str()), (200, ""));
    assert_eq!(get(at, "/federate?match[]=nothing").text(), "");
    assert_eq!(get(at, "/federate?match[]=old").text(), "", "beyond the lookback");
    let wrong = get(at, "/federate?match[]=up%7B");
    assert_eq!(wrong.status, 400);
    assert_eq!(wrong.text(), "1:4: parse error: unexpected end of input inside braces\n");
    assert!(wrong.header("content-type").starts_with("text/plain"));
    assert_eq!(send(at, "POST", "/federate", &[], b"").status, 405);
}
