//! Users, tokens and roles: missing and wrong credentials, foreign roles, escapes from a matcher.

use std::fs;
use std::io;
use std::path::Path;

use super::{base_s, query, range};
use crate::attack::{Attack, Expect, Family, attack, flood, ok, script, status};
use crate::client::{CLOSED, Request, form, get, post, request};
use crate::target::Setup;
use crate::wire::{Message, snappy};

pub(crate) fn family() -> Family {
    let setup = Setup::database(&["--enable-admin-api", "--enable-lifecycle"])
        .prepared(users)
        .authorized("Bearer hostile-admin-token");
    Family::new("authentication", setup)
        .because("every route needs credentials, except probes", missing())
        .because("wrong credentials are refused, whatever their form", wrong())
        .because("a role permits the endpoints of its row and no others", roles())
        .because("the matcher of a user is part of every selection", matcher())
        .because("a user whose matcher is not readable gets no other series", [empty_matchers()])
        .because("logins cost bounded work and are slowed after failures", floods())
        .because("credentials are shown nowhere", secrets())
}

/// Tokens by their SHA-256: `hostile-NAME-token`. Passwords: `open-sesame-admin` and
/// `open-sesame-user`.
pub(super) const USERS: &str = r#"
basic_auth_users:
  root: $2b$10$abcdefghijklmnopqrstuukWv/dYVx.zjjUn.0mwGG2KFh.iWQrhS
users:
  - name: admin
    tokens: [sha256:02f4934c21ae9ee592a6332389f2cdd16858007bf411d75c2e9048d91d20ee1e]
    roles: [read, write, admin]
  - name: reader
    password: $2b$10$abcdefghijklmnopqrstuugB.1QLfZ8j1HVo8Comvi4vjqi4IyxXi
    tokens: [sha256:8828f2296d58de70a40e7eb14c4d105390620ddda2e08375f3d30f7701cc8ba7]
    roles: [read]
  - name: writer
    tokens: [sha256:53992c5035264ed7e8624e4d88752a957a1a51552bd711376e103456ac074c61]
    roles: [write]
  - name: scoped
    tokens: [sha256:d24c7f55385753cf04a704703252f49b3bebfb1037c79d800bde0afa4b1a1f73]
    roles: [read]
    matchers: '{path="/path/1"}'
  - name: sampled
    tokens: [sha256:01b3dd81a19a8b069ac29b2e017c01594795fda4c348caa325a9fa92b70c222b]
    roles: [read, write]
    limits:
      samples_per_query: 100
  - name: limited
    tokens: [sha256:5d05930da01d8b38d8948f59ea2750bd3dfae75ae00ebc93b1af74bed96c0093]
    roles: [read, write]
    limits:
      queries_at_once: 1
      samples_per_query: 100
      new_series_per_second: 1
      requests_per_second: 1000
"#;

fn users(folder: &Path) -> io::Result<Vec<String>> {
    let path = folder.join("web.yml");
    fs::write(&path, USERS)?;
    Ok(vec![format!("--web-config={}", path.display())])
}

fn by(name: &str, request: Request) -> Request {
    request.header("Authorization", format!("Bearer hostile-{name}-token"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let byte = |idx: usize| u32::from(part.get(idx).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for idx in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * idx)) as usize & 63];
            text.push(if idx > part.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

fn denied() -> Expect {
    status([401, 429])
}

fn forbidden() -> Expect {
    status([403])
}

fn missing() -> Vec<Attack> {
    let posts = [
        "/api/v1/write",
        "/api/v1/import/prometheus",
        "/api/v1/groups",
        "/api/v1/groups/write",
        "/api/v1/transaction",
        "/api/v1/read",
        "/api/v1/query",
        "/api/v1/query_range",
        "/api/v1/series",
        "/api/v1/admin/tsdb/delete_series",
        "/api/v1/admin/tsdb/clean_tombstones",
        "/api/v1/admin/tsdb/snapshot",
        "/-/quit",
        "/-/reload",
    ];
    let gets = [
        "/",
        "/metrics",
        "/federate?match[]=load",
        "/api/v1/query?query=load",
        "/api/v1/labels",
        "/api/v1/label/path/values",
        "/api/v1/series?match[]=load",
        "/api/v1/metadata",
        "/api/v1/status/config",
        "/api/v1/status/flags",
        "/api/v1/status/tsdb",
        "/api/v1/status/groups",
        "/api/v1/status/runtimeinfo",
        "/api/v1/groups",
        "/api/v1/groups/1",
        "/api/v1/targets",
        "/api/v1/rules",
        "/api/v1/format_query?query=a",
        "//api/v1/query?query=load",
        "/api/v1/query/?query=load",
        "/api/v1/%71uery?query=load",
        "/-/healthy/../../api/v1/query?query=load",
        "/-/healthy;/api/v1/query?query=load",
    ];
    let refused = || status([400, 401, 404]).lacks("/path/");
    let mut attacks: Vec<Attack> = Vec::new();
    attacks
        .extend(posts.map(|path| attack(format!("POST {path}"), post(path).anonymous(), denied())));
    attacks
        .extend(gets.map(|path| attack(format!("GET {path}"), get(path).anonymous(), refused())));
    attacks.push(attack(
        "HEAD of a query",
        request("HEAD", "/api/v1/query?query=load").anonymous(),
        status([401]),
    ));
    attacks.push(attack(
        "OPTIONS of a write",
        request("OPTIONS", "/api/v1/write").anonymous(),
        status([200, 204, 401, 403, 405]),
    ));
    attacks.push(
        attack(
            "a body of 60 MB without credentials",
            post("/api/v1/write").anonymous().make(|| vec![0; 60 << 20]),
            status([401, CLOSED]),
        )
        .quick(),
    );
    attacks.push(attack("a probe", get("/-/healthy").anonymous(), ok()).quick());
    attacks.push(attack("a probe of readiness", get("/-/ready").anonymous(), ok()));
    attacks.into_iter().map(Attack::quick).collect()
}

fn wrong() -> Vec<Attack> {
    let with = |value: &str| get("/api/v1/query?query=load").header("Authorization", value);
    let refused = || status([400, 401, 429]).lacks("/path/");
    let forms = [
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer hostile-admin-toke",
        "Bearer hostile-admin-tokens",
        "Bearer HOSTILE-ADMIN-TOKEN",
        "Bearer hostile-admin-token, Bearer wrong",
        "Bearer 02f4934c21ae9ee592a6332389f2cdd16858007bf411d75c2e9048d91d20ee1e",
        "Bearer sha256:02f4934c21ae9ee592a6332389f2cdd16858007bf411d75c2e9048d91d20ee1e",
        "Basic",
        "Basic !!!",
        "Basic YWRtaW4=",
        "Basic Og==",
        "Digest username=\"root\"",
        "Negotiate abc",
        "hostile-admin-token",
        "\u{7f}",
        "",
    ];
    let mut attacks: Vec<Attack> = forms
        .iter()
        .map(|form| attack(format!("the header {form:?}"), with(form), refused()).quick())
        .collect();
    let pairs = [
        ("root", ""),
        ("root", "open-sesame-user"),
        ("", "open-sesame-admin"),
        ("ROOT", "open-sesame-admin"),
        ("root\0", "open-sesame-admin"),
        ("root", "open-sesame-admin\0"),
        ("root", "hostile-admin-token"),
        ("reader", "hostile-admin-token"),
        ("admin", ""),
        ("nobody", "x"),
        ("root' or '1'='1", "x"),
    ];
    attacks.extend(pairs.map(|(user, password)| {
        attack(
            format!("user {user:?}, password {password:?}"),
            with(&basic(user, password)),
            refused(),
        )
    }));
    attacks.push(
        attack("a password of 60 kB", with(&basic("root", &"p".repeat(60_000))), refused().or(431))
            .quick(),
    );
    attacks.push(attack(
        "a right password, cut at 72 bytes",
        with(&basic("root", &format!("open-sesame-admin{}", "x".repeat(72)))),
        refused(),
    ));
    attacks.push(attack(
        "a token in the URL",
        get("/api/v1/query?query=load&access_token=hostile-admin-token&token=hostile-admin-token")
            .anonymous(),
        refused(),
    ));
    attacks.push(attack(
        "credentials in a cookie",
        get("/api/v1/query?query=load")
            .anonymous()
            .header("Cookie", "Authorization=Bearer hostile-admin-token"),
        refused(),
    ));
    attacks.push(attack(
        "a token as the password of its user, which is right",
        with(&basic("admin", "hostile-admin-token")),
        ok(),
    ));
    attacks.push(attack(
        "a user in a header",
        get("/api/v1/query?query=load")
            .anonymous()
            .header("X-Forwarded-User", "admin")
            .header("X-WEBAUTH-USER", "admin"),
        refused(),
    ));
    attacks.push(attack(
        "two headers, the second right",
        with("Bearer wrong").header("Authorization", "Bearer hostile-admin-token"),
        refused(),
    ));
    attacks
}

fn roles() -> Vec<Attack> {
    let writes = || {
        [
            ("a remote write", post("/api/v1/write").body(snappy([]))),
            ("an import", post("/api/v1/import/prometheus").body("a 1\n")),
            ("a group", post("/api/v1/groups").body(r#"{"groups":[]}"#)),
            ("rows", post("/api/v1/groups/write").body(r#"{"groups":[]}"#)),
            ("a transaction", post("/api/v1/transaction").body(r#"{"operations":[]}"#)),
        ]
    };
    let reads = || {
        [
            ("a query", get("/api/v1/query?query=load")),
            ("a range query", range("load", 1)),
            ("series", get("/api/v1/series?match[]=load")),
            ("labels", get("/api/v1/labels")),
            ("a federation", get("/federate?match[]=load")),
            ("a remote read", post("/api/v1/read").body(snappy([]))),
            ("the configuration", get("/api/v1/status/config")),
        ]
    };
    let admin = || {
        [
            ("delete_series", form("/api/v1/admin/tsdb/delete_series", [("match[]", "canary")])),
            ("clean_tombstones", post("/api/v1/admin/tsdb/clean_tombstones")),
            ("a snapshot", post("/api/v1/admin/tsdb/snapshot")),
            ("quit", post("/-/quit")),
            ("reload", post("/-/reload")),
        ]
    };
    let mut attacks = Vec::new();
    for user in ["reader", "scoped"] {
        attacks.extend(writes().map(|(name, request)| {
            attack(format!("{name} by {user}"), by(user, request), forbidden())
        }));
    }
    attacks.extend(reads().map(|(name, request)| {
        attack(format!("{name} by writer"), by("writer", request), forbidden())
    }));
    for user in ["reader", "writer", "scoped", "limited"] {
        attacks.extend(admin().map(|(name, request)| {
            attack(format!("{name} by {user}"), by(user, request), forbidden())
        }));
    }
    let delete = r#"{"operations":[{"op":"delete","match":"{__name__=\"canary\"}"}]}"#;
    let update = r#"{"operations":[{"op":"update","match":"{__name__=\"canary\"}","value":666}]}"#;
    attacks.push(
        attack(
            "a range delete by a transaction of a user without admin",
            by("limited", post("/api/v1/transaction").body(delete)),
            status([400, 403]),
        )
        .quick(),
    );
    attacks.push(
        attack(
            "a range update by a transaction of a user without admin",
            by("limited", post("/api/v1/transaction").body(update)),
            status([400, 403]),
        )
        .quick(),
    );
    attacks.push(
        attack(
            "a read by a transaction of a writer",
            by(
                "writer",
                post("/api/v1/transaction")
                    .body(r#"{"operations":[{"op":"read","match":"load"}]}"#),
            ),
            forbidden(),
        )
        .quick(),
    );
    attacks.into_iter().map(Attack::quick).collect()
}

/// Versions of the file in which keys of a user have no value, or which are cut there.
fn empty_matchers() -> Attack {
    let act = script(|target| {
        let (before, behind) = USERS.split_once("    matchers: '").unwrap_or_default();
        let behind = behind.split_once('\n').map_or("", |(_, behind)| behind);
        let path = target.folder().join("web.yml");
        let mut answers = Vec::new();
        for value in ["", "~", "null", "''", "'{}'", "[]", "{}"] {
            let _ = fs::write(&path, format!("{before}    matchers: {value}\n{behind}"));
            post("/-/reload").send(target);
            answers.push(by("scoped", query("load")).send(target));
        }
        let _ = fs::write(&path, format!("{before}    matchers:"));
        post("/-/reload").send(target);
        answers.push(by("scoped", query("load")).send(target));
        let _ = fs::write(&path, USERS);
        answers.push(post("/-/reload").send(target));
        answers
    });
    let expect = status([200, 401, 403, 429]).within(60).check(|answers, _| {
        let queries = answers.split_last().map_or(answers, |(_, queries)| queries);
        match queries.iter().enumerate().find(|(_, answer)| answer.text().contains("/path/2")) {
            Some((idx, answer)) => Err(format!("version {idx}: {}", answer.excerpt())),
            None => Ok(()),
        }
    });
    attack("matchers without a value", act, expect).quick()
}

fn matcher() -> Vec<Attack> {
    // Nothing of other series: neither labels, names nor values.
    let own =
        || status([200, 400, 403, 404, 422]).lacks("/path/2").lacks("canary").lacks("host-002");
    let scoped = |text: &str| by("scoped", query(text));
    let read = {
        let matcher = Message::default().bytes(2, "__name__").bytes(3, "load");
        let one = Message::default().varint(2, (base_s() * 1_000) as u64).message(3, matcher);
        post("/api/v1/read").body(snappy(Message::default().message(1, one).0))
    };
    vec![
        attack("the own series", scoped("load"), ok().contains("/path/1").lacks("/path/2")).quick(),
        attack("everything", scoped(r#"{__name__!=""}"#), own()).quick(),
        attack("another path", scoped(r#"load{path="/path/2"}"#), ok().lacks("host-002")).quick(),
        attack("a regular expression", scoped(r#"load{path=~".*"}"#), own()),
        attack("a negation", scoped(r#"load{path!="/path/1"}"#), own()),
        attack(
            "an alternative in one selector",
            scoped(r#"load{path="/path/1" or path="/path/2"}"#),
            status([400]),
        ),
        attack("a union", scoped(r#"load{path="/path/1"} or load"#), own()).quick(),
        attack("a count of everything", scoped(r#"count({__name__!=""})"#), ok().contains("\"1\""))
            .quick(),
        attack("a join", scoped("load * on(job) group_left load"), own()),
        attack("a subquery", scoped("max_over_time(load[10m:1m])"), own()),
        attack("info", scoped(r#"info(load, {__name__=~".+"})"#), own()),
        attack("absent", scoped(r#"absent(canary)"#), ok()),
        attack("a relabelled path", scoped(r#"label_replace(load,"path","/path/9","","")"#), own()),
        attack("a matcher by a quoted name", scoped(r#"{"canary"}"#), own()),
        attack(
            "a range query that another user has cached",
            script(|target| {
                let request = || range("sum(load)", 10);
                request().send(target);
                request().send(target);
                let own = by("scoped", range("sum(load)", 10)).send(target);
                let again = by("scoped", range("sum(load)", 10)).send(target);
                // The sum of all series has eight digits; the own series ends at 19.
                vec![own, again]
            }),
            ok().lacks("\"237").lacks("\"2374"),
        )
        .quick(),
        attack(
            "a range query by labels that another user has cached",
            script(|target| {
                range("load", 10).send(target);
                vec![by("scoped", range("load", 10)).send(target)]
            }),
            own(),
        )
        .quick(),
        attack("series", by("scoped", get("/api/v1/series?match[]={__name__!=%22%22}")), own())
            .quick(),
        attack("labels", by("scoped", get("/api/v1/labels")), own()),
        attack("label values", by("scoped", get("/api/v1/label/path/values")), own()).quick(),
        attack("names", by("scoped", get("/api/v1/label/__name__/values")), own()).quick(),
        attack(
            "names by a match",
            by("scoped", get("/api/v1/label/__name__/values?match[]=canary")),
            own(),
        ),
        attack("a federation", by("scoped", get("/federate?match[]={__name__!=%22%22}")), own())
            .quick(),
        attack("a remote read", by("scoped", read), own()).quick(),
        attack("groups", by("scoped", get("/api/v1/groups?lone=true")), own()).quick(),
        attack("a group by number", by("scoped", get("/api/v1/groups/1")), own()),
        attack("a group by another number", by("scoped", get("/api/v1/groups/2")), own()),
        attack("TSDB status", by("scoped", get("/api/v1/status/tsdb")), own()).quick(),
        attack("group savings", by("scoped", get("/api/v1/status/groups")), own()),
        attack("metadata", by("scoped", get("/api/v1/metadata")), own()),
        attack(
            "exemplars",
            by("scoped", get("/api/v1/query_exemplars?query=load&start=0&end=1e10")),
            own(),
        ),
        attack(
            "the configuration",
            by("scoped", get("/api/v1/status/config")),
            own().lacks("sha256"),
        ),
        attack("the metrics", by("scoped", get("/metrics")), own()),
        attack(
            "a transaction",
            by(
                "scoped",
                post("/api/v1/transaction")
                    .body(r#"{"operations":[{"op":"read","match":"canary"}]}"#),
            ),
            status([400, 403]),
        )
        .quick(),
    ]
}

fn floods() -> Vec<Attack> {
    let with = |value: String| get("/api/v1/query?query=1").header("Authorization", value);
    vec![
        attack(
            "50 clients with wrong passwords",
            flood(50, 4, with(basic("root", "guess"))),
            status([401, 429, 503]),
        )
        .quick(),
        attack(
            "50 clients with unknown users",
            flood(50, 4, with(basic("nobody", "guess"))),
            status([401, 429, 503]),
        ),
        attack(
            "1,000 wrong tokens",
            flood(10, 100, with("Bearer guess".to_owned())),
            status([401, 429, 503]),
        ),
        attack("a right token after all that", get("/api/v1/query?query=1"), ok()).quick(),
        attack(
            "one query at a time",
            flood(10, 2, by("limited", query("max_over_time(vector(1)[1h:1s])"))),
            status([200, 422, 429, 503, 500]),
        ),
        attack("100 samples per query", by("limited", query("load")), status([422])).quick(),
        attack(
            "100 samples by a transaction",
            by(
                "sampled",
                post("/api/v1/transaction")
                    .body(r#"{"operations":[{"op":"read","match":"load"}]}"#),
            ),
            status([422]),
        )
        .quick(),
        attack(
            "a file of users that is cut and written again",
            script(|target| {
                // The last user is missing, and the file is valid.
                let path = target.folder().join("web.yml");
                let at = USERS.find("  - name: limited").unwrap_or(USERS.len());
                let mut answers = Vec::new();
                for text in [&USERS[..at], USERS, &USERS[..at], USERS] {
                    let _ = fs::write(&path, text);
                    let reload = post("/-/reload");
                    std::thread::scope(|scope| {
                        let reloading = scope.spawn(|| reload.send(target));
                        answers.extend(
                            (0..50).map(|_| {
                                by("limited", get("/api/v1/status/buildinfo")).send(target)
                            }),
                        );
                        let _ = reloading.join();
                    });
                }
                answers
            }),
            ok(),
        )
        .quick(),
    ]
}

fn secrets() -> Vec<Attack> {
    let log_is_clean = |request: Request, expect: Expect| {
        (
            request,
            expect.lacks("hostile-admin-token").lacks("$2b$").lacks("open-sesame").check(
                |_, target| {
                    let log = target.log();
                    let found = ["hostile-admin-token", "open-sesame", "$2b$", "02f4934c"];
                    match found.iter().find(|secret| log.contains(**secret)) {
                        Some(secret) => Err(format!("the log contains {secret}")),
                        None => Ok(()),
                    }
                },
            ),
        )
    };
    [
        ("the configuration", get("/api/v1/status/config")),
        ("the flags", get("/api/v1/status/flags")),
        ("the metrics", get("/metrics")),
        ("the page", get("/")),
        ("the runtime", get("/api/v1/status/runtimeinfo")),
    ]
    .map(|(name, request)| {
        let (request, expect) = log_is_clean(request, ok());
        attack(name, request, expect).quick()
    })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        let f = |text: &str, want: &str| assert_eq!(base64(text.as_bytes()), want);
        f("", "");
        f("a", "YQ==");
        f("ab", "YWI=");
        f("root:x", "cm9vdDp4");
    }
}
