//! Users: roles and endpoints, matchers that no request escapes, limits, logs, slow logins.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::http::{Answer, encode, request};
use crate::process::{Process, firn, free_address, repository, wait_for, wait_until_ready};
use crate::remote_write::{WriteRequest, field, varint};

/// Runs `firn user` with a line of input; returns its output.
fn firn_user(file: &Path, args: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.arg("user").args(args).arg("--web-config").arg(file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("firn runs");
    // A refused command does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(format!("{input}\n").as_bytes());
    let output = child.wait_with_output().expect("firn ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn add_user(file: &Path, name: &str, args: &[&str], password: &str) {
    let args = [&["add", name], args].concat();
    let (is_done, text) = firn_user(file, &args, password);
    assert!(is_done, "{text}");
}

/// Adds a user with a token, and returns the header of its requests.
pub(crate) fn add_with_token(file: &Path, name: &str, args: &[&str]) -> String {
    add_user(file, name, &[&["--no-password"], args].concat(), "");
    let (is_done, token) = firn_user(file, &["token", name], "");
    assert!(is_done, "{token}");
    format!("Bearer {}", token.trim())
}

/// A server with users.
struct Server {
    process: Process,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts it with the file that `users` fills, and further flags.
    fn start(flags: &[&str], users: impl FnOnce(&Path)) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, address) = (folder.path().join("web.yml"), free_address());
        users(&file);
        let mut command = firn(folder.path(), address);
        command.arg("--web-config").arg(&file).args(flags);
        command.arg("--audit-log").arg(folder.path().join("audit.log"));
        command.arg("--query-log").arg(folder.path().join("query.log"));
        let process = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        Server { process, address, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn call(&self, method: &str, path: &str, authorization: &str) -> Answer {
        let headers = [("Authorization", authorization)];
        let headers = if authorization.is_empty() { &headers[..0] } else { &headers[..] };
        request(self.address, method, path, headers, &[]).expect("an answer")
    }

    fn get(&self, path: &str, authorization: &str) -> Answer {
        self.call("GET", path, authorization)
    }
}

pub(crate) fn basic(user: &str, password: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("{user}:{password}");
    let mut encoded = String::new();
    for three in text.as_bytes().chunks(3) {
        let mut bits = 0;
        for idx in 0..3 {
            bits = bits << 8 | u32::from(three.get(idx).copied().unwrap_or(0));
        }
        for idx in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * idx) & 63) as usize];
            encoded.push(if idx <= three.len() { char::from(digit) } else { '=' });
        }
    }
    format!("Basic {encoded}")
}

/// The rows of docs/security.md, which a unit test compares with the router: path, method, need.
fn documented_routes() -> Vec<(String, String, String)> {
    let page = fs::read_to_string(repository().join("docs/security.md")).expect("the page");
    let rows = page.lines().skip_while(|line| !line.starts_with("| path | methods | needs |"));
    let mut routes = Vec::new();
    for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for method in cells[2].split(", ") {
            let path = cells[1].trim_matches('`').replace("<name>", "job").replace("<group>", "1");
            routes.push((path, method.to_owned(), cells[3].replace('`', "")));
        }
    }
    assert!(routes.len() > 50, "{routes:?}");
    routes
}

#[test]
fn every_endpoint_needs_its_role_and_no_other() {
    let mut users = Vec::new();
    let server = Server::start(&[], |file| {
        let scope = ["--matchers", "{team=\"a\"}"];
        for (name, args) in [
            ("reader", &["--role", "read"][..]),
            ("writer", &["--role", "write"]),
            ("both", &["--role", "read,write"]),
            ("admin", &["--role", "admin"]),
            ("scoped", &scope),
        ] {
            users.push((name, add_with_token(file, name, args)));
        }
    });
    for (path, method, needs) in documented_routes() {
        for (name, token) in &users {
            let is_allowed = match needs.as_str() {
                "nothing" => true,
                "read" => *name != "writer",
                "read, no matchers" => !["writer", "scoped"].contains(name),
                "write" => ["writer", "both", "admin"].contains(name),
                "read and write" => ["both", "admin"].contains(name),
                "admin" => *name == "admin",
                other => panic!("{other}"),
            };
            let answer = server.call(&method, &path, token);
            let is_forbidden = answer.status == 403 && answer.body.contains("this request needs");
            assert_eq!(is_forbidden, !is_allowed, "{name} {method} {path}: {}", answer.body);
            assert!(answer.status != 401, "{name} {method} {path}");
        }
        let is_open = needs == "nothing";
        for wrong in ["", "Bearer firn_0", "Basic", "Digest x", "Bearer"] {
            let answer = server.call(&method, &path, wrong);
            assert_eq!(answer.status < 400, is_open, "{wrong:?} {method} {path}: {}", answer.body);
            assert!(is_open || !answer.body.is_empty(), "{wrong:?} {method} {path}");
        }
    }
    // Two headers could mean two users to two programs.
    let headers = [("Authorization", users[0].1.as_str()), ("Authorization", users[3].1.as_str())];
    let answer = request(server.address, "GET", "/version", &headers, &[]).expect("an answer");
    assert!(answer.status == 401 || answer.status == 429, "{}", answer.status);
}

/// A server with series of two teams, the tokens of a user of one and of an administrator,
/// and the time of the newest sample.
fn start_with_teams(matchers: &str) -> (Server, String, String, i64) {
    let (mut scoped, mut admin) = (String::new(), String::new());
    let server = Server::start(&["--self-scrape", "never"], |file| {
        scoped = add_with_token(file, "scoped", &["--matchers", matchers]);
        admin = add_with_token(file, "admin", &["--role", "admin"]);
    });
    let now_ms = write_teams(&server, &admin);
    (server, scoped, admin, now_ms)
}

fn write_teams(server: &Server, admin: &str) -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let now_ms = now.as_millis() as i64;
    let mut body = String::new();
    for (team, job) in [("a", "own"), ("hidden", "hiddenjob")] {
        for age in 0..5 {
            let ts = now_ms - age * 15_000;
            body += &format!(
                "up{{team=\"{team}\",job=\"{job}\",instance=\"i\"}} 1 {ts}\n\
                 target_info{{team=\"{team}\",job=\"{job}\",instance=\"i\",v=\"{job}\"}} 1 {ts}\n\
                 {team}_only{{team=\"{team}\",job=\"{job}\"}} 1 {ts}\n"
            );
        }
    }
    let headers = [("Authorization", admin)];
    let path = "/api/v1/import/prometheus";
    let sent = request(server.address, "POST", path, &headers, body.as_bytes()).expect("sent");
    assert_eq!(sent.status, 204, "{}", sent.body);
    now_ms
}

/// Every route that a user with matchers may call is decided here, with each of its methods: a new
/// one fails this test until its selectors are decided too.
#[test]
fn every_route_joins_the_matchers_of_its_user() {
    let (server, scoped, admin, now_ms) = start_with_teams("{team=~\"a|b.*c\"}");
    let (start, end) = (now_ms / 1_000 - 60, now_ms / 1_000);
    let select = encode("{team=~\".+\"}");
    let range = format!("start={start}&end={end}");
    let query =
        format!("query={select}&time={end}&{range}&step=15&timeout=1m&limit=1000&stats=all");
    let list = format!("match[]={select}&{range}&lone=true&metric={select}");
    let (mut seen, mut stats_seen) = (0, 0);
    for (path, method, needs) in documented_routes() {
        if needs != "read" {
            // Roles that a user with matchers cannot have, or a refusal, which another test checks.
            let is_open = needs == "nothing";
            assert_eq!(server.call(&method, &path, &scoped).status != 403, is_open, "{path}");
            continue;
        }
        let (parameters, has_series) = match path.as_str() {
            "/api/v1/query" | "/api/v1/query_range" => (&query, true),
            "/api/v1/query_exemplars" => (&query, false),
            "/api/v1/series" | "/api/v1/labels" | "/api/v1/groups" | "/federate" => (&list, true),
            "/api/v1/label/job/values" => (&list, true),
            // It has no parameters: its group is one of both teams' or of none.
            "/api/v1/groups/1" => (&list, false),
            // The body is protobuf: `matchers_of_a_user_cannot_be_escaped`.
            "/api/v1/read" => continue,
            // They read no series.
            "/"
            | "/graph"
            | "/version"
            | "/api/v1/features"
            | "/api/v1/format_query"
            | "/api/v1/notifications"
            | "/api/v1/parse_query"
            | "/api/v1/status/buildinfo"
            | "/api/v1/status/walreplay" => (&query, false),
            other => panic!("{method} {other}: does it join the matchers of a user?"),
        };
        let call = |token: &str| match method.as_str() {
            "POST" => {
                let form = ("Content-Type", "application/x-www-form-urlencoded");
                let headers = [("Authorization", token), form];
                let body = parameters.as_bytes();
                request(server.address, "POST", &path, &headers, body).expect("an answer")
            }
            _ => server.get(&format!("{path}?{parameters}"), token),
        };
        let (own, all) = (call(&scoped), call(&admin));
        assert!(!own.body.contains("hiddenjob"), "{method} {path}: {}", own.body);
        assert!(own.status != 403, "{method} {path}: {}", own.body);
        if all.body.contains("\"totalQueryableSamples\"") {
            // Those of storage depend on the hidden members of a group that has visible ones.
            let has_storage = |answer: &Answer| answer.body.contains("\"memoryBytes\"");
            assert!(has_storage(&all) && !has_storage(&own), "{method} {path}: {}", own.body);
            stats_seen += 1;
        }
        if has_series {
            assert_eq!((own.status, all.status), (200, 200), "{method} {path}: {}", own.body);
            // Label names are the same for both.
            let is_names = path == "/api/v1/labels";
            assert!(is_names || all.body.contains("hiddenjob"), "{method} {path}: {}", all.body);
            assert!(is_names || own.body.contains("own"), "{method} {path}: {}", own.body);
            seen += 1;
        }
    }
    assert!(seen > 8 && stats_seen == 4, "{seen} {stats_seen}");
}

/// Deletes and updates of ranges in transactions need role admin, also where the API is enabled.
#[test]
fn changes_of_ranges_need_an_administrator() {
    let (mut both, mut admin) = (String::new(), String::new());
    let flags = ["--self-scrape", "never", "--enable-admin-api"];
    let server = Server::start(&flags, |file| {
        both = add_with_token(file, "both", &["--role", "read,write"]);
        admin = add_with_token(file, "admin", &["--role", "admin"]);
    });
    let series = r#"{"__name__":"m","team":"a"}"#;
    let transact = |operation: &str, token: &str| {
        let body = format!("{{\"operations\":[{operation}]}}");
        let headers = [("Authorization", token)];
        let path = "/api/v1/transaction";
        request(server.address, "POST", path, &headers, body.as_bytes()).expect("an answer")
    };
    let insert = format!(
        "{{\"op\":\"insert\",\"series\":{series},\"timestamp\":1700000000000,\"value\":1}}"
    );
    let read = r#"{"op":"read","match":"m"}"#;
    let update = format!(
        "{{\"op\":\"update\",\"series\":{series},\"timestamp\":1700000000000,\"value\":2}}"
    );
    for operation in [&*insert, read, &*update] {
        let answer = transact(operation, &both);
        assert_eq!(answer.status, 200, "{operation}: {}", answer.body);
    }
    let delete = format!("{{\"op\":\"delete\",\"series\":{series},\"timestamp\":1700000000000}}");
    for operation in [
        r#"{"op":"update","match":"m","value":3}"#,
        r#"{"op":"update","match":"{team=~\"a|b.*\"}","value":3}"#,
        r#"{"op":"delete","match":"m"}"#,
        &delete,
    ] {
        let refused = transact(operation, &both);
        assert!(refused.status == 400 && refused.body.contains("role admin"), "{}", refused.body);
        let unchanged = transact(read, &both).body.replace(' ', "");
        assert!(unchanged.contains("[1700000000000,\"2\"]"), "{unchanged}");
    }
    let answer = transact(r#"{"op":"update","match":"m","value":3}"#, &admin);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A user with matchers sees only matching series, in every response.
#[test]
fn matchers_of_a_user_cannot_be_escaped() {
    let (server, scoped, admin, now_ms) = start_with_teams("{team=\"a\"}");
    let (start, end) = ((now_ms / 1_000 - 60).to_string(), (now_ms / 1_000).to_string());
    let mut paths = Vec::new();
    for query in [
        "{__name__=~\".+\"}",
        "{team!=\"a\",job=~\".+\"}",
        "{team=~\"hid.*\"}",
        "{team=\"\",job=~\".+\"} or up",
        "up or ignoring (team) {job!=\"own\"}",
        "info(up)",
        "info(up, {v=~\".+\"})",
        "count by (team, job) ({__name__=~\".+\"})",
        "topk(10, {team=~\".+\"})",
        "max_over_time({team=~\".+\"}[5m:15s])",
        "label_replace({team=~\".+\"}, \"x\", \"$1\", \"team\", \"(.*)\")",
        "absent(up) or {team=~\".+\"} offset 0s",
        "group_left_of_nothing or {team=~\".+\"} @ end()",
    ] {
        let query = encode(query);
        paths.push(format!("/api/v1/query?query={query}"));
        paths.push(format!("/api/v1/query?query={query}&stats=all"));
        paths.push(format!("/api/v1/query_range?query={query}&start={start}&end={end}&step=15"));
        paths.push(format!("/api/v1/query_exemplars?query={query}&start={start}&end={end}"));
    }
    for matcher in ["{team=~\".+\"}", "{team!=\"a\",job=~\".+\"}", "up", "{__name__=~\"hid.*\"}"] {
        let matcher = encode(matcher);
        for list in ["series", "labels", "label/team/values", "label/__name__/values", "groups"] {
            paths.push(format!("/api/v1/{list}?match[]={matcher}"));
            paths.push(format!("/api/v1/{list}?match[]={matcher}&match[]=up&lone=true"));
        }
        paths.push(format!("/federate?match[]={matcher}"));
    }
    for list in ["labels", "label/team/values", "label/v/values", "groups?lone=true"] {
        paths.push(format!("/api/v1/{list}"));
    }
    paths.extend((0..40).map(|group| format!("/api/v1/groups/{group}")));
    let (mut found, mut of_all) = (0, 0);
    for path in &paths {
        // Kept results of the other user must not answer.
        of_all += usize::from(server.get(path, &admin).body.contains("hidden"));
        let answer = server.get(path, &scoped);
        // Label names of a request appear in its errors; values of series do not.
        assert!(!answer.body.contains("hidden"), "{path}: {}", answer.body);
        assert!(answer.status != 403, "{path}: {}", answer.body);
        found += usize::from(answer.body.contains("\"own\"") || answer.body.contains("own"));
    }
    assert!(found > 30 && of_all > 30, "{found} {of_all}");
    for path in ["/metrics", "/api/v1/metadata", "/api/v1/status/tsdb", "/api/v1/targets"] {
        assert_eq!(server.get(path, &scoped).status, 403, "{path}");
    }
    // Remote read, a protobuf body: a query from the beginning of time for `team!="x"`.
    let mut matcher = vec![0x08, 1];
    field(0x12, b"team", &mut matcher);
    field(0x1a, b"x", &mut matcher);
    let mut query = vec![0x08, 0, 0x10];
    varint(now_ms as u64, &mut query);
    field(0x1a, &matcher, &mut query);
    let mut read = Vec::new();
    field(0x0a, &query, &mut read);
    let packed = snap::raw::Encoder::new().compress_vec(&read).expect("fits in memory");
    let text = |authorization: &str| {
        let headers = [("Authorization", authorization), ("Content-Encoding", "snappy")];
        let answer = request(server.address, "POST", "/api/v1/read", &headers, &packed);
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let plain = snap::raw::Decoder::new().decompress_vec(&answer.bytes).expect("snappy");
        String::from_utf8_lossy(&plain).into_owned()
    };
    assert!(text(&admin).contains("hidden"));
    let own = text(&scoped);
    assert!(own.contains("own") && !own.contains("hidden"), "{own}");
}

#[test]
fn limits_of_a_user_answer_429() {
    let (mut slow, mut small, mut narrow) = (String::new(), String::new(), String::new());
    let mut large = String::new();
    let flags = ["--self-scrape", "never", "--enable-admin-api"];
    let server = Server::start(&flags, |file| {
        large = add_with_token(file, "large", &["--role", "admin"]);
        slow = add_with_token(file, "slow", &["--role", "admin"]);
        small = add_with_token(file, "small", &["--role", "admin"]);
        narrow = add_with_token(file, "narrow", &["--role", "admin"]);
        let text = fs::read_to_string(file).expect("the file");
        let text = text.replace(
            "  - name: \"slow\"\n",
            "  - name: \"slow\"\n    limits: {requests_per_second: 2}\n",
        );
        let text = text.replace(
            "  - name: \"small\"\n",
            "  - name: \"small\"\n    limits: {samples_per_query: 1}\n",
        );
        let text = text.replace(
            "  - name: \"narrow\"\n",
            "  - name: \"narrow\"\n    limits: {new_series_per_second: 1}\n",
        );
        fs::write(file, text).expect("the file");
    });
    let mut refused = (0..200).map(|_| server.get("/version", &slow)).filter(|a| a.status == 429);
    let refused = refused.next().expect("a request over the rate");
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);

    let send = |name: &str, count: usize| {
        let mut write = WriteRequest::default();
        for idx in 0..count {
            let idx = idx.to_string();
            write.series(&[("__name__", name), ("idx", &idx)], &[(1_700_000_000_000, 1.0)]);
        }
        write.post_as(server.address, &narrow).expect("an answer")
    };
    assert_eq!(send("few", 5).status, 204);
    let refused = send("many", 100);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(send("few", 5).status, 204, "known series are written");

    let path = "/api/v1/query?query=few&time=1700000000";
    let refused = server.get(path, &small);
    assert!(refused.body.contains("too many samples"), "{}", refused.body);
    // Before, transactions and remote read read any number.
    let post = |path: &str, body: &[u8], authorization: &str| {
        let headers = [("Authorization", authorization)];
        request(server.address, "POST", path, &headers, body).expect("an answer")
    };
    let range = r#""match":"few","start":1700000000000,"end":1700000000000"#;
    for operation in
        [format!(r#"{{"op":"read",{range}}}"#), format!(r#"{{"op":"update",{range},"add":1}}"#)]
    {
        let body = format!(r#"{{"operations":[{operation}]}}"#);
        let path = "/api/v1/transaction";
        let refused = post(path, body.as_bytes(), &small);
        assert_eq!(refused.status, 422, "{}", refused.body);
        assert!(refused.body.contains("reads more samples"), "{}", refused.body);
        let done = post(path, body.as_bytes(), &large);
        assert_eq!(done.status, 200, "{}", done.body);
    }
    for accepted in [0, 1] {
        let body = read_request("few", 1_700_000_000_000, accepted);
        let refused = post("/api/v1/read", &body, &small);
        assert_eq!(refused.status, 422, "{}", refused.body);
        assert!(refused.body.contains("samples_per_query"), "{}", refused.body);
        assert_eq!(post("/api/v1/read", &body, &large).status, 200);
    }
}

/// A remote read of one metric at one time; the response of type 0 is one message, 1 a stream.
fn read_request(metric: &str, ts: u64, accepted: u64) -> Vec<u8> {
    let (mut matcher, mut query, mut message) = (Vec::new(), Vec::new(), Vec::new());
    field(0x12, b"__name__", &mut matcher);
    field(0x1a, metric.as_bytes(), &mut matcher);
    for tag in [0x08, 0x10] {
        query.push(tag);
        varint(ts, &mut query);
    }
    field(0x1a, &matcher, &mut query);
    field(0x0a, &query, &mut message);
    message.push(0x10);
    varint(accepted, &mut message);
    snap::raw::Encoder::new().compress_vec(&message).expect("fits in memory")
}

/// Before, a reload read a file that a program was writing, and a file without its last users is
/// valid: their requests failed.
#[test]
fn a_file_that_is_cut_and_written_again_fails_no_request() {
    let mut last = String::new();
    let server = Server::start(&["--enable-lifecycle"], |file| {
        add_with_token(file, "admin", &["--role", "admin"]);
        last = add_with_token(file, "last", &["--role", "admin"]);
    });
    let file = server.path("web.yml");
    let whole = fs::read_to_string(&file).expect("the file");
    let at = whole.find("  - name: \"last\"").expect("the last user");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let requests = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = server.get("/version", &last);
                assert_eq!(answer.status, 200, "{}", answer.body);
                requests.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut before = 0;
        let mut wait_for_requests = |count: usize| {
            wait_for("requests", Duration::from_secs(60), || {
                requests.load(Ordering::Relaxed) >= before + count
            });
            before = requests.load(Ordering::Relaxed);
        };
        for cut in [at, at - 1, 0, at + 20, whole.len() - 3, at] {
            fs::write(&file, &whole[..cut]).expect("the file");
            server.process.hang_up();
            wait_for_requests(3);
            fs::write(&file, &whole).expect("the file");
            server.process.hang_up();
            wait_for_requests(3);
        }
        // A program that takes longer.
        fs::write(&file, &whole[..at]).expect("the file");
        let refused = server.call("POST", "/-/reload", &last);
        assert_eq!(refused.status, 500);
        assert!(refused.body.contains("only the beginning"), "{}", refused.body);
        wait_for_requests(3);
        fs::write(&file, &whole).expect("the file");
        assert_eq!(server.call("POST", "/-/reload", &last).status, 200);
        is_over.store(true, Ordering::Relaxed);
    });
    // A change takes effect at once.
    let renamed = whole.replace("name: \"admin\"", "name: \"boss\"");
    fs::write(&file, &renamed).expect("the file");
    assert_eq!(server.call("POST", "/-/reload", &last).status, 200);
    // A pipe is not waited for, and neither is the stop.
    fs::remove_file(&file).expect("the file");
    let made = Command::new("mkfifo").arg(&file).status();
    assert!(made.expect("mkfifo runs").success());
    let refused = server.call("POST", "/-/reload", &last);
    assert!(refused.status == 500 && refused.body.contains("it is a pipe"), "{}", refused.body);
    assert_eq!(server.get("/version", &last).status, 200);
    let mut server = server;
    assert_eq!(server.process.terminate(), Some(0), "{}", server.process.output());
}

/// A flood of wrong passwords is checked one by one, beside the requests of others.
#[test]
fn a_flood_of_passwords_hinders_nobody() {
    let mut reader = String::new();
    let server = Server::start(&[], |file| {
        add_user(file, "alice", &["--role", "admin"], "right");
        reader = add_with_token(file, "reader", &[]);
        // Each check takes as long as a hundred usual ones.
        let text = fs::read_to_string(file).expect("the file");
        let at = text.find("$2b$10$").expect("a hash");
        let costly = format!("{}$2b$14${}", &text[..at], &text[at + 7..]);
        fs::write(file, costly).expect("the file");
    });
    const FLOOD: usize = 24;
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (server, finished) = (&server, &finished);
        for idx in 0..FLOOD {
            scope.spawn(move || {
                let wrong = basic("alice", &format!("wrong {idx}"));
                let answer = server.get("/version", &wrong);
                assert!(answer.status == 401 || answer.status == 429, "{}", answer.status);
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut served = 0;
        while finished.load(Ordering::Relaxed) < FLOOD {
            assert_eq!(server.get("/-/healthy", "").status, 200);
            assert_eq!(server.get("/version", &reader).status, 200);
            served += 1;
            std::thread::park_timeout(Duration::from_millis(20));
        }
        // Five passwords are checked, one by one: if each pair waited for a check, there would be
        // no more pairs than checks.
        assert!(served > 5, "the others waited for the flood: {served} pairs of requests");
    });
    let metrics = request(server.address, "GET", "/metrics", &[("Authorization", &reader)], &[]);
    let metrics = metrics.expect("metrics").body;
    let rejected = metrics.lines().find(|l| l.starts_with("firn_http_logins_total{result=\"rej"));
    assert!(rejected.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}

#[test]
fn the_logs_name_users_and_hide_secrets() {
    let mut admin = String::new();
    let mut server = Server::start(&["--enable-admin-api", "--enable-lifecycle"], |file| {
        add_user(file, "alice", &["--role", "admin"], "Tr0ub4dor");
        admin = add_with_token(file, "admin", &["--role", "admin"]);
    });
    assert_eq!(server.get("/api/v1/query?query=up", &basic("alice", "Tr0ub4dor")).status, 200);
    assert_eq!(server.get("/api/v1/query?query=up", &basic("alice", "guessed")).status, 401);
    let range = "/api/v1/query_range?query=sum(up)&start=0&end=60&step=30";
    assert_eq!(server.get(range, &admin).status, 200);
    let delete = "/api/v1/admin/tsdb/delete_series?match[]=gone";
    assert_eq!(server.call("POST", delete, &admin).status, 204);
    assert_eq!(server.call("POST", "/api/v1/admin/tsdb/snapshot", &admin).status, 200);
    assert_eq!(server.call("POST", "/-/reload", &admin).status, 200);
    assert_eq!(server.process.terminate(), Some(0), "{}", server.process.output());
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(server.path(name)).expect("the log");
        for secret in ["Tr0ub4dor", "guessed", "firn_", "$2b$", "Authorization"] {
            assert!(!text.contains(secret) || secret == "firn_", "{secret} in {text}");
        }
        assert!(!text.contains(admin.trim_start_matches("Bearer ")), "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let audit = lines("audit.log");
    for (action, user, result) in [
        ("login", "alice", "rejected"),
        ("series.delete", "admin", "ok"),
        ("snapshot.take", "admin", "ok"),
        ("server.reload", "admin", "ok"),
    ] {
        let found = audit.iter().any(|line| {
            line["action"] == action
                && line["user"] == user
                && line["result"] == result
                && line["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:"))
        });
        assert!(found, "{action} in {audit:?}");
    }
    let queries = lines("query.log");
    let range = queries.iter().find(|line| line["params"]["query"] == "sum(up)").expect("a line");
    assert_eq!(range["params"]["step"], 30);
    assert_eq!(range["params"]["end"], "1970-01-01T00:01:00Z");
    assert_eq!(range["httpRequest"]["path"], "/api/v1/query_range");
    assert_eq!(range["httpRequest"]["clientIP"], "127.0.0.1");
    assert_eq!(range["user"], "admin");
    assert!(range["stats"]["timings"]["evalTotalTime"].is_number(), "{range}");
    assert!(range["cost"]["peakBytes"].is_number() && range["ts"].is_string(), "{range}");
    assert!(!server.process.output().contains("Tr0ub4dor"));
}

/// Before, an attack ended in the audit log with its fifth guess: the throttled ones were missing.
#[test]
fn throttled_logins_are_in_the_audit_log() {
    let mut server = Server::start(&[], |file| {
        add_with_token(file, "reader", &[]);
    });
    let path = "/api/v1/query?query=up";
    let guess = |idx: usize| server.get(path, &format!("Bearer firn_{idx}")).status;
    let statuses: Vec<u16> = (0..20).map(guess).collect();
    assert_eq!((&statuses[..6], statuses.len()), (&[401, 401, 401, 401, 401, 429][..], 20));
    assert_eq!(server.process.terminate(), Some(0), "{}", server.process.output());
    let text = fs::read_to_string(server.path("audit.log")).expect("the log");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let logins: Vec<serde_json::Value> =
        lines.filter(|line: &serde_json::Value| line["action"] == "login").collect();
    let of =
        |result: &str| logins.iter().filter(|line| line["result"] == result).collect::<Vec<_>>();
    assert_eq!(of("rejected").len(), statuses.iter().filter(|&&status| status == 401).count());
    let [throttled] = of("throttled")[..] else { panic!("{text}") };
    assert_eq!(throttled["details"], serde_json::json!({ "path": "/api/v1/query", "count": 1 }));
    assert!(throttled["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")), "{text}");
}

#[test]
fn the_command_makes_users_and_a_server_reads_them_at_once() {
    let server = Server::start(&[], |file| add_user(file, "first", &[], "one"));
    let file = server.path("web.yml");
    assert_eq!(server.get("/version", &basic("first", "one")).status, 200);
    add_user(&file, "second", &["--role", "write"], "two");
    wait_for("the second user", Duration::from_secs(60), || {
        server.get("/api/v1/query", &basic("second", "two")).status == 403
    });
    let (is_right, text) = firn_user(&file, &["check", "second"], "two");
    assert!(is_right, "{text}");
    let (is_right, text) = firn_user(&file, &["check", "second"], "three");
    assert!(!is_right && text.contains("wrong"), "{text}");
    let (is_ok, text) = firn_user(&file, &["check"], "");
    assert!(is_ok && text.contains("\"second\": write, a password, 0 tokens"), "{text}");
    let (is_ok, text) = firn_user(&file, &["add", "second"], "x");
    assert!(!is_ok && text.contains("exists"), "{text}");
    // A mistake in the file keeps the users.
    for (text, error) in [("users: [", "previous version stays"), ("", "the last user cannot be")] {
        fs::write(&file, text).expect("the file");
        server.process.hang_up();
        wait_for(error, Duration::from_secs(60), || server.process.output().contains(error));
    }
    assert_eq!(server.get("/version", &basic("first", "one")).status, 200);
    assert_eq!(server.get("/version", "").status, 401);
}

#[test]
fn a_listener_without_users_is_refused_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = firn(folder.path(), free_address()).arg("--require-auth").output();
    let refused = refused.expect("firn runs");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("--require-auth"), "{text}");
    assert!(text.contains("no users"), "{text}");
}

/// Roles of the cache's protocol and of the proxy.
#[test]
fn the_cache_and_the_proxy_have_users_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("web.yml");
    let reader = add_with_token(&file, "reader", &[]);
    let writer = add_with_token(&file, "writer", &["--role", "read,write"]);
    let start = |name: &str, address: SocketAddr, proxy: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["cache", "--proxy", proxy, "--listen", &address.to_string()]);
        command.arg("--data").arg(folder.path().join(name)).arg("--web-config").arg(&file);
        Process::start(name, folder.path(), &mut command)
    };
    let is_there = |address: SocketAddr| {
        wait_for("the cache", Duration::from_secs(60), || {
            let headers = [("Authorization", reader.as_str())];
            let answer = request(address, "GET", "/-/cache/metrics", &headers, &[]);
            answer.is_some_and(|answer| answer.status == 200)
        });
        let answer = request(address, "GET", "/-/cache/metrics", &[], &[]).expect("an answer");
        assert_eq!(answer.status, 401, "{}", answer.body);
    };
    let (cache_at, proxy_at, origin_at) = (free_address(), free_address(), free_address());
    let _cache = start("cache", cache_at, "none");
    is_there(cache_at);
    let talk = |lines: &str| {
        use std::io::Read;
        let mut stream = crate::http::connect(cache_at).expect("a connection");
        stream.write_all(lines.as_bytes()).expect("a request");
        stream.shutdown(std::net::Shutdown::Write).expect("an end");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    };
    let token = |header: &str| header.trim_start_matches("Bearer ").to_owned();
    let set = "set k 0 0 1000 json 9\r\n[[5,1.5]]\r\nget k 0 0 1000 json\r\n";
    assert!(talk(set).contains("not authenticated"));
    assert!(talk("auth firn_0\r\n").contains("wrong token"));
    let read_only = talk(&format!("auth {}\r\n{set}", token(&reader)));
    assert!(
        read_only.contains("needs role write") && read_only.contains("NOT_FOUND"),
        "{read_only}"
    );
    let both = talk(&format!("auth {}\r\n{set}", token(&writer)));
    assert!(both.contains("STORED 0 1000") && both.contains("[[5,1.5]]"), "{both}");

    let _origin = crate::process::start_firn(folder.path(), origin_at);
    let _proxy = start("proxy", proxy_at, &format!("http://{origin_at}"));
    is_there(proxy_at);
    let status = |method: &str, path: &str, authorization: &str| {
        let headers = [("Authorization", authorization)];
        request(proxy_at, method, path, &headers, &[]).expect("an answer").status
    };
    assert_eq!(status("GET", "/api/v1/query?query=up", &reader), 200);
    assert_eq!(status("GET", "/api/v1/query?query=up", "Bearer x"), 401);
    assert_eq!(status("POST", "/api/v1/write", &reader), 403);
    assert_eq!(status("POST", "/api/v1/admin/tsdb/snapshot", &writer), 403);
}

/// Before, `--proxy-paths=/query` let every user with role read change an InfluxDB by GET.
#[test]
fn statements_that_change_an_influxdb_need_role_admin() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("web.yml");
    let reader = add_with_token(&file, "reader", &[]);
    let writer = add_with_token(&file, "writer", &["--role", "read,write"]);
    let admin = add_with_token(&file, "admin", &["--role", "read,admin"]);
    let (proxy_at, origin_at) = (free_address(), free_address());
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["cache", "--proxy", &format!("http://{origin_at}")]);
    command.args(["--proxy-paths=/query,/query/", "--listen", &proxy_at.to_string()]);
    command.arg("--data").arg(folder.path().join("cache")).arg("--web-config").arg(&file);
    let _proxy = Process::start("proxy", folder.path(), &mut command);
    let send = |method: &str, path: &str, body: &str, authorization: &str| {
        let form = "application/x-www-form-urlencoded";
        let headers = [("Authorization", authorization), ("Content-Type", form)];
        request(proxy_at, method, path, &headers, body.as_bytes())
    };
    wait_for("the proxy", Duration::from_secs(60), || {
        send("GET", "/-/cache/metrics", "", &reader).is_some_and(|answer| answer.status == 200)
    });
    // Nothing is at the origin: 502 is the answer to a request that was forwarded.
    for (method, path, body, is_read) in [
        ("GET", "/query?q=SELECT+v+FROM+m", "", true),
        ("POST", "/query", "q=SHOW+DATABASES", true),
        ("GET", "/query?q=DROP+DATABASE+d", "", false),
        ("POST", "/query?q=DROP+DATABASE+d", "", false),
        ("POST", "/query", "q=DROP+DATABASE+d", false),
        ("POST", "/query", "q=SELECT+1&q=DROP+DATABASE+d", false),
        ("GET", "/query?q=SELECT+v+INTO+w+FROM+m", "", false),
    ] {
        for (user, may_change) in [(&reader, false), (&writer, false), (&admin, true)] {
            let answer = send(method, path, body, user).expect("an answer");
            let wanted = if is_read || may_change { 502 } else { 403 };
            assert_eq!(answer.status, wanted, "{method} {path} {body}: {}", answer.body);
            assert!(wanted == 502 || answer.body.contains("needs role admin"), "{}", answer.body);
        }
    }
    assert_eq!(
        send("POST", "/query/", "q=DROP+DATABASE+d", &reader).expect("an answer").status,
        403
    );
}
