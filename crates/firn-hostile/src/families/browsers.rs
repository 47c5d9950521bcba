//! Requests that a web page makes a browser send: other origins, rebound names, forms, preflights.

use super::{base_s, load_labels};
use crate::attack::{Attack, Expect, Family, attack, ok, status};
use crate::client::{Request, form, get, post, request};
use crate::target::Setup;
use crate::wire::{one_series, snappy};

pub(crate) fn family() -> Family {
    Family::new("browser", Setup::database(&["--enable-admin-api", "--enable-lifecycle"]))
        .because("a page of another origin cannot write", writes())
        .because("a page of another origin cannot read", reads())
        .because("a name that was rebound to loopback is no host of ours", rebinding())
        .because("a response has one type and is shown in no frame", headers())
        .because("a regular client is not a browser", regular())
}

const EVIL: &str = "https://evil.example";

/// Refused before it has an effect.
fn refused() -> Expect {
    status([400, 403, 421]).lacks("access-control-allow-origin")
}

fn overwrite() -> Request {
    post("/api/v1/transaction")
        .body(r#"{"operations":[{"op":"update","match":"{__name__=\"canary\"}","value":666}]}"#)
}

fn remote_write() -> Request {
    let series =
        one_series(&[("__name__", "canary"), ("n", "0")], &[((base_s() - 2_999) * 1_000, 666.0)]);
    post("/api/v1/write").body(snappy(series.0))
}

/// The requests that change something.
fn changes() -> Vec<(&'static str, Request)> {
    vec![
        ("a transaction with a match", overwrite()),
        ("a remote write", remote_write()),
        (
            "an import",
            post("/api/v1/import/prometheus")
                .body(format!("canary{{n=\"0\"}} 666 {}\n", (base_s() - 2_999) * 1_000)),
        ),
        (
            "a write of groups",
            post("/api/v1/groups/write").body(format!(
                r#"{{"groups":[{{"series":[{}],"rows":[{{"timestamp":{},"values":[666]}}]}}]}}"#,
                load_labels(),
                base_s() * 1_000
            )),
        ),
        (
            "a definition of groups",
            post("/api/v1/groups")
                .body(r#"{"groups":[{"labels":{"evil":"1"},"members":[{"__name__":"x"}]}]}"#),
        ),
        ("delete_series", form("/api/v1/admin/tsdb/delete_series", [("match[]", "canary")])),
        ("clean_tombstones", post("/api/v1/admin/tsdb/clean_tombstones")),
        ("a snapshot", post("/api/v1/admin/tsdb/snapshot")),
        ("quit", post("/-/quit")),
        ("reload", post("/-/reload")),
    ]
}

fn writes() -> Vec<Attack> {
    let mut attacks = Vec::new();
    for (name, request) in changes() {
        let request = request.header("Origin", EVIL).header("Content-Type", "text/plain");
        attacks
            .push(attack(format!("{name} of another origin"), request, refused().or(415)).quick());
    }
    for (name, request) in changes() {
        attacks.push(attack(
            format!("{name} of another site"),
            request.header("Sec-Fetch-Site", "cross-site"),
            refused(),
        ));
    }
    for (name, request) in changes().into_iter().take(2) {
        attacks.push(
            attack(format!("{name} of a null origin"), request.header("Origin", "null"), refused())
                .quick(),
        );
    }
    let origins = [
        "http://127.0.0.1:1",
        "http://localhost",
        "http://localhost.evil.example:9420",
        "http://127.0.0.1.evil.example",
        "file://",
        "chrome-extension://abcdef",
        "HTTPS://EVIL.EXAMPLE",
        "http://evil.example\thttp://127.0.0.1",
        "",
    ];
    attacks.extend(origins.map(|origin| {
        attack(
            format!("an overwrite of origin {origin:?}"),
            overwrite().header("Origin", origin),
            refused(),
        )
    }));
    attacks.extend(["same-site", "cross-site", "CROSS-SITE", "cross-site, same-origin"].map(
        |site| {
            attack(
                format!("an overwrite of site {site:?}"),
                overwrite().header("Sec-Fetch-Site", site),
                refused(),
            )
        },
    ));
    attacks.push(attack(
        "a form by a page",
        form("/api/v1/admin/tsdb/delete_series", [("match[]", "canary")])
            .header("Origin", EVIL)
            .header("Sec-Fetch-Mode", "navigate")
            .header("Sec-Fetch-Site", "cross-site"),
        refused(),
    ));
    attacks.push(attack(
        "a beacon",
        overwrite()
            .header("Content-Type", "text/plain;charset=UTF-8")
            .header("Origin", EVIL)
            .header("Sec-Fetch-Mode", "no-cors"),
        refused(),
    ));
    attacks.push(attack(
        "two origins",
        overwrite().header("Origin", "http://127.0.0.1").header("Origin", EVIL),
        refused(),
    ));
    attacks
}

fn reads() -> Vec<Attack> {
    let from = |request: Request| request.header("Origin", EVIL);
    // The page of another origin receives an opaque response: no header lets it read the body.
    let opaque = || status([200, 204, 400, 403, 404, 405]).lacks("access-control-allow-origin");
    let preflight = |path: &str, method: &str, headers: &str| {
        let request = request("OPTIONS", path).header("Origin", EVIL);
        request
            .header("Access-Control-Request-Method", method)
            .header("Access-Control-Request-Headers", headers)
    };
    vec![
        attack("a query", from(get("/api/v1/query?query=canary")), opaque()).quick(),
        attack(
            "a range query",
            from(get("/api/v1/query_range?query=canary&start=0&end=1&step=1")),
            opaque(),
        ),
        attack("the configuration", from(get("/api/v1/status/config")), opaque()).quick(),
        attack("the flags", from(get("/api/v1/status/flags")), opaque()),
        attack("a federation", from(get("/federate?match[]=canary")), opaque()),
        attack("the metrics", from(get("/metrics")), opaque()),
        attack("a query by a form", from(form("/api/v1/query", [("query", "canary")])), opaque()),
        attack("a remote read", from(post("/api/v1/read").body("x")), opaque()),
        attack(
            "a null origin",
            get("/api/v1/query?query=canary").header("Origin", "null"),
            opaque(),
        )
        .quick(),
        attack(
            "an origin with the name of the host",
            get("/api/v1/query?query=canary").header("Origin", "http://127.0.0.1.evil.example"),
            opaque(),
        ),
        attack(
            "a query as a script",
            get("/api/v1/query?query=canary")
                .header("Sec-Fetch-Dest", "script")
                .header("Sec-Fetch-Mode", "no-cors")
                .header("Sec-Fetch-Site", "cross-site"),
            status([200, 403]).contains("nosniff"),
        ),
        attack("a preflight of a query", preflight("/api/v1/query", "GET", "x-custom"), opaque())
            .quick(),
        attack(
            "a preflight of a write",
            preflight("/api/v1/write", "POST", "content-encoding"),
            opaque(),
        )
        .quick(),
        attack(
            "a preflight of a delete",
            preflight("/api/v1/admin/tsdb/delete_series", "POST", "authorization"),
            opaque(),
        ),
        attack(
            "a preflight for a private network",
            preflight("/api/v1/write", "POST", "*")
                .header("Access-Control-Request-Private-Network", "true"),
            opaque().lacks("allow-private-network"),
        ),
        attack(
            "a preflight of an unknown path",
            preflight("/api/v1/nothing", "DELETE", "*"),
            opaque(),
        ),
    ]
}

fn rebinding() -> Vec<Attack> {
    let hosts = [
        "evil.example",
        "evil.example:9420",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1.evil.example:80",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "localhost evil.example",
        "192.168.0.1",
        "0x7f000001.evil.example",
        "",
    ];
    let mut attacks: Vec<Attack> = hosts
        .iter()
        .map(|host| {
            let request = get("/api/v1/query?query=canary").header("Host", *host);
            attack(format!("a query for host {host:?}"), request, refused()).quick()
        })
        .collect();
    attacks.push(
        attack(
            "an overwrite for another host",
            overwrite().header("Host", "evil.example"),
            refused(),
        )
        .quick(),
    );
    attacks.push(attack(
        "a remote write for another host",
        remote_write().header("Host", "evil.example"),
        refused(),
    ));
    attacks.push(attack(
        "the page for another host",
        get("/").header("Host", "evil.example"),
        refused(),
    ));
    attacks.push(
        attack(
            "another host and its own origin",
            overwrite()
                .header("Host", "evil.example:9420")
                .header("Origin", "http://evil.example:9420"),
            refused(),
        )
        .quick(),
    );
    attacks.push(attack(
        "an absolute URL of another host",
        get("http://evil.example/api/v1/query?query=canary"),
        refused().or(404),
    ));
    attacks.push(attack(
        "a forwarded host",
        overwrite().header("Host", "evil.example").header("X-Forwarded-Host", "127.0.0.1"),
        refused(),
    ));
    attacks
}

fn headers() -> Vec<Attack> {
    let page = || get("/");
    vec![
        attack("the page in a frame", page(), ok().contains("frame-ancestors 'none'")).quick(),
        attack("a query as another type", get("/api/v1/query?query=1"), ok().contains("nosniff"))
            .quick(),
        attack(
            "an error as a page",
            get("/api/v1/query?query=%3Cscript%3Ealert(1)%3C/script%3E"),
            status([400]).contains("nosniff").lacks("text/html"),
        ),
        attack(
            "a path as a page",
            get("/%3Cscript%3E"),
            status([404]).contains("nosniff").lacks("text/html"),
        ),
        attack("metrics as another type", get("/metrics"), ok().contains("nosniff")),
        attack(
            "an error with a header of the attacker",
            get("/api/v1/query?query=%0d%0aSet-Cookie:x=1"),
            status([400]).lacks("\nset-cookie"),
        ),
        attack(
            "a redirect by a path",
            get("//evil.example/"),
            status([400, 403, 404, 421]).lacks("location:"),
        ),
    ]
}

fn regular() -> Vec<Attack> {
    let at = |host: &'static str| get("/api/v1/query?query=1").header("Host", host);
    vec![
        attack("curl at 127.0.0.1", at("127.0.0.1:9420"), ok()),
        attack("curl at localhost", at("localhost:9420"), ok()).quick(),
        attack("curl at ::1", at("[::1]:9420"), ok()),
        attack(
            "a page of the same origin",
            get("/api/v1/query?query=1").header("Sec-Fetch-Site", "same-origin"),
            ok(),
        )
        .quick(),
        attack(
            "an address that was typed",
            get("/").header("Sec-Fetch-Site", "none").header("Sec-Fetch-Mode", "navigate"),
            ok(),
        ),
        attack(
            "a link on another page",
            get("/")
                .header("Sec-Fetch-Site", "cross-site")
                .header("Sec-Fetch-Mode", "navigate")
                .header("Sec-Fetch-Dest", "document"),
            status([200, 403]),
        ),
    ]
}
