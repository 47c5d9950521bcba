//! Lists of targets that are in the hands of an attacker: of HTTP servers, of files and of names.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::collecting::{
    INTERVAL, SECRET, SERVED_TIME_MAX, path_of, reload, setup, state, unaffected,
};
use super::peer::{
    Behaviour, bytes, coded, dripping, endless, late, made, peer, redirect, silent, wait_until,
    whole,
};
use crate::attack::{Attack, Family, attack, script};
use crate::client::get;
use crate::target::Target;
use crate::wire::{gzip_bomb, noise};

/// In the short run.
const QUICK: &[&str] =
    &["300,000 empty groups", "a password in the address of a list", "a pipe in place of a list"];

pub(crate) fn family() -> Family {
    Family::new("discovery", setup(&[]))
        .because("a list of an HTTP server is bounded in bytes, time and memory", lists())
        .because("credentials of a discovery stay with its host, and are not shown", secrets())
        .because("a file of targets is a regular file of bounded length and memory", files())
        .because("names that are not found, or hang, delay no other discovery", [names()])
        .with_quick(QUICK)
}

const JSON: &str = "application/json";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";

/// A job whose list has this behaviour is refreshed twice.
fn list(name: &'static str, behaviour: Behaviour) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, Behaviour::clone(&behaviour));
        let address = peer().address;
        let job = format!(
            "- job_name: hostile\n  http_sd_configs:\n  \
             - url: 'http://{address}{path}'\n    refresh_interval: 1s\n    \
             basic_auth: {{username: u, password: {SECRET}}}\n"
        );
        let mut answers = vec![reload(target, &job, "")];
        peer().wait_for(&path, 3, SERVED_TIME_MAX);
        answers.extend(state(target));
        answers
    });
    attack(name, act, unaffected())
}

/// A list of groups with these targets and labels.
fn group(targets: &str, labels: &str) -> String {
    format!("[{{\"targets\":[{targets}],\"labels\":{{{labels}}}}}]")
}

fn joined(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(",")
}

/// Addresses where nothing listens.
fn closed(count: usize) -> String {
    joined(count, |n| format!("\"127.0.0.1:{}\"", n + 1))
}

fn json(make: impl Fn() -> String + Send + Sync + 'static) -> Behaviour {
    late(move || whole(JSON, make()))
}

fn lists() -> Vec<Attack> {
    let silent_at = peer().silent;
    vec![
        list("1,000,000 targets", json(|| group(&joined(1_000_000, |n| format!("\"h:{n}\"")), ""))),
        list("300,000 empty targets", json(|| group(&joined(300_000, |_| "\"\"".into()), ""))),
        list("300,000 empty groups", json(|| format!("[{}]", joined(300_000, |_| "{}".into())))),
        list(
            "100,000 targets of one place",
            json(move || group(&joined(100_000, |n| format!("\"{silent_at}/{n}\"")), "")),
        ),
        list(
            "20,000 targets that hang",
            json(move || {
                let group =
                    |n| format!("{{\"targets\":[\"{silent_at}\"],\"labels\":{{\"n\":\"{n}\"}}}}");
                format!("[{}]", joined(20_000, group))
            }),
        ),
        list(
            "other targets each time",
            made(move |number| {
                let group = |n| {
                    format!(
                        "{{\"targets\":[\"{silent_at}\"],\"labels\":{{\"n\":\"{number}-{n}\"}}}}"
                    )
                };
                whole(JSON, format!("[{}]", joined(2_000, group)))
            }),
        ),
        list(
            "the same target 300,000 times",
            json(move || group(&joined(300_000, |_| format!("\"{silent_at}\"")), "")),
        ),
        list(
            "the same target 20,000 times with 4,000 labels of its group",
            json(move || {
                let labels = joined(4_000, |n| format!("\"__meta_{n}\":\"v\""));
                group(&joined(20_000, |_| format!("\"{silent_at}\"")), &labels)
            }),
        ),
        // Nothing listens there: each scrape fails at once.
        list(
            "20 targets with 4,000 labels",
            json(|| group(&closed(20), &joined(4_000, |n| format!("\"l{n}\":\"v\"")))),
        ),
        list(
            "25 targets with a parameter of 1 MB",
            json(|| group(&closed(25), &format!("\"__param_x\":\"{}\"", "\u{e9}".repeat(480_000)))),
        ),
        list(
            "a label of 20 MB",
            json(|| group("\"h:1\"", &format!("\"a\":\"{}\"", "x".repeat(20_000_000)))),
        ),
        list("a target of 20 MB", json(|| group(&format!("\"{}\"", "x".repeat(20_000_000)), ""))),
        list(
            "100,000 labels",
            json(|| group("\"h:1\"", &joined(100_000, |n| format!("\"l{n}\":\"v\"")))),
        ),
        list(
            "10,000 targets with 2 KB of labels",
            json(|| {
                group(
                    &joined(10_000, |n| format!("\"h:{n}\"")),
                    &format!("\"a\":\"{}\"", "x".repeat(2_000)),
                )
            }),
        ),
        list("a list in a list", json(|| "[".repeat(1_000_000))),
        list(
            "an endless list",
            endless("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[", |_| "{},".into()),
        ),
        list("endless spaces", endless(HEAD, |_| " ".repeat(1_000))),
        list(
            "an endless head of a list",
            endless("HTTP/1.1 200 OK\r\n", |n| format!("X-{n}: y\r\n")),
        ),
        list("a list byte by byte", dripping(whole(JSON, "[{\"targets\":[\"h:1\"]}]"))),
        list("no list", silent("")),
        list(
            "half a list",
            silent(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n[",
            ),
        ),
        list("a list of another type", bytes(whole("text/html", "<html>"))),
        list(
            "a list that is packed",
            late(|| {
                coded(
                    "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
                    gzip_bomb(128),
                )
            }),
        ),
        list("a list that redirects to itself", redirect("/a-list-that-redirects-to-itself")),
        list("a list that redirects to a file", redirect("file:///etc/passwd")),
        list("a list that is refused", bytes("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")),
        list("a list that is noise", late(|| whole(JSON, noise(7, 1 << 20)))),
        list(
            "targets with odd addresses",
            json(|| {
                let odd = [
                    "",
                    "/",
                    ":",
                    "[",
                    "a b",
                    "\\u0000",
                    "h:99999",
                    "u:p@h:1",
                    "h/../x",
                    "\\ud83d\\ude00",
                    "[::1]:x",
                ];
                group(&odd.map(|odd| format!("\"{odd}\"")).join(","), "")
            }),
        ),
        list(
            "labels with odd names",
            json(|| {
                let names = [
                    "__address__",
                    "__scheme__",
                    "__metrics_path__",
                    "__param_x",
                    "__scrape_interval__",
                    "job",
                    "\\u0000",
                    " ",
                ];
                format!(
                    "[{}]",
                    names
                        .map(|name| format!(
                            "{{\"targets\":[\"h:1\"],\"labels\":{{\"{name}\":\"\\n\\u001b[2J\"}}}}"
                        ))
                        .join(",")
                )
            }),
        ),
        list(
            "intervals of a list",
            json(move || {
                let group = |interval: &str| {
                    format!(
                        "{{\"targets\":[\"{silent_at}\"],\"labels\":{{\"__scrape_interval__\":\"{interval}\",\"__scrape_timeout__\":\"{interval}\"}}}}"
                    )
                };
                format!("[{}]", ["0s", "1ms", "-1s", "1000000y", "x", ""].map(group).join(","))
            }),
        ),
    ]
}

fn secrets() -> Vec<Attack> {
    let with_url = |name: &'static str, address: String, keys: &'static str| {
        let path = path_of(name);
        let act = script(move |target: &Target| {
            peer().set(&path, bytes(whole(JSON, "[{\"targets\":[\"127.0.0.1:1\"]}]")));
            let job = format!(
                "- job_name: hostile\n  proxy_url: 'http://u:{SECRET}@127.0.0.1:1'\n  http_sd_configs:\n  \
                 - url: 'http://u:{SECRET}@{address}{path}'\n    refresh_interval: {INTERVAL}\n{keys}"
            );
            let mut answers = vec![reload(target, &job, "")];
            let shown = || get("/api/v1/targets?scrapePool=hostile").send(target).text();
            wait_until(Duration::from_secs(3), || shown().contains("\"health\":\"down\""));
            answers.extend(state(target));
            answers
        });
        attack(name, act, unaffected())
    };
    vec![
        with_url("a password in the address of a list", peer().address.to_string(), ""),
        with_url("a password in an address that fails", "127.0.0.1:1".to_owned(), ""),
        with_url(
            "a password of the proxy of a list",
            peer().address.to_string(),
            "    proxy_url: 'http://u:sekret-of-the-configuration@127.0.0.1:1'\n",
        ),
    ]
}

/// A job with the files `NAME*` in the folder of the server. `make` writes them, and returns after
/// the attack.
fn file(name: &'static str, extension: &'static str, make: impl Fn(&Path) + 'static) -> Attack {
    let act = script(move |target| {
        let folder = target.folder().join("lists");
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::create_dir(&folder);
        let path = folder.join(format!("list{extension}"));
        let job = format!(
            "- job_name: hostile\n  file_sd_configs:\n  \
             - {{files: ['{}/*{extension}'], refresh_interval: 1s}}\n",
            folder.display()
        );
        let _ = fs::write(&path, "[]");
        let mut answers = vec![reload(target, &job, "")];
        let _ = fs::remove_file(&path);
        make(&path);
        // Files are looked at each second.
        std::thread::sleep(Duration::from_millis(2_500));
        answers.extend(state(target));
        answers
    });
    attack(name, act, unaffected())
}

fn write(text: impl Fn() -> String + 'static) -> impl Fn(&Path) {
    move |path| {
        let _ = fs::write(path, text());
    }
}

/// Aliases of aliases.
pub(crate) fn laughs(levels: usize, width: usize) -> String {
    let mut text = "- &a0 {targets: [lol], labels: {a: lol}}\n".to_owned();
    for level in 1..levels {
        let aliases = joined(width, |_| format!("*a{}", level - 1));
        text.push_str(&format!("- &a{level} [{aliases}]\n"));
    }
    text
}

fn files() -> Vec<Attack> {
    let fifo = |path: &Path| {
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        );
        let _ = made;
    };
    let many = |path: &Path| {
        let folder = path.parent().unwrap_or(path);
        for n in 0..5_000 {
            let _ = fs::write(
                folder.join(format!("list-{n}.json")),
                format!("[{{\"targets\":[\"h:{n}\"]}}]"),
            );
        }
    };
    let changing = |path: &Path| {
        let begun = std::time::Instant::now();
        let mut n = 0;
        while begun.elapsed() < Duration::from_secs(4) {
            let text =
                group(&joined(5_000 + n, |target| format!("\"127.0.0.1:1/{n}/{target}\"")), "");
            let Ok(mut file) = fs::File::create(path) else { return };
            for part in text.as_bytes().chunks(10_000) {
                let _ = file.write_all(part);
            }
            n += 1;
        }
    };
    vec![
        file("a pipe in place of a list", ".json", fifo),
        file("a device in place of a list", ".json", |path| drop(symlink("/dev/zero", path))),
        file("a folder in place of a list", ".json", |path| drop(fs::create_dir(path))),
        file("a link to itself", ".json", |path| drop(symlink(path, path))),
        file("a file of 1 TiB", ".json", |path| {
            let _ = fs::File::create(path).and_then(|file| file.set_len(1 << 40));
        }),
        file("a file of 60 MiB of zeros", ".json", |path| {
            let _ = fs::File::create(path).and_then(|file| file.set_len(60 << 20));
        }),
        file(
            "1,000,000 targets of a file",
            ".json",
            write(|| group(&joined(1_000_000, |n| format!("\"h:{n}\"")), "")),
        ),
        file(
            "200,000 targets of a file",
            ".json",
            write(|| group(&joined(200_000, |n| format!("\"h:{n}\"")), "")),
        ),
        file(
            "300,000 empty groups of a file",
            ".json",
            write(|| format!("[{}]", joined(300_000, |_| "{}".into()))),
        ),
        file(
            "200,000 targets of YAML",
            ".yml",
            write(|| format!("- targets: [{}]\n", joined(200_000, |n| format!("h:{n}")))),
        ),
        file(
            "1,000,000 values of YAML",
            ".yml",
            write(|| format!("[{}]", joined(990_000, |_| "a".into()))),
        ),
        file(
            "16 MB of one value",
            ".yml",
            write(|| format!("- targets: ['{}']", "x".repeat(16_000_000))),
        ),
        file("aliases of aliases", ".yml", write(|| laughs(12, 12))),
        file(
            "1,000 aliases of a group of 1,000",
            ".yml",
            write(|| {
                let targets = joined(1_000, |n| format!("h:{n}"));
                format!("- &a {{targets: [{targets}]}}\n{}", "- *a\n".repeat(1_000))
            }),
        ),
        file("deep YAML", ".yml", write(|| "[".repeat(1_000_000))),
        file("a key of 1 MB", ".yml", write(|| format!("- {{? {} : a}}", "k".repeat(1_000_000)))),
        file("a list of noise", ".yml", write(|| noise(3, 1 << 20))),
        file("5,000 files", ".json", many),
        file("a file that changes while it is read", ".json", changing),
    ]
}

/// Names without an address, in discoveries and as targets.
fn names() -> Attack {
    let act = script(|target| {
        let names = joined(300, |n| format!("'n{n}.invalid'"));
        let targets = joined(300, |n| format!("'t{n}.invalid:1'"));
        let job = format!(
            "- job_name: hostile\n  static_configs: [{{targets: [{targets}]}}]\n  dns_sd_configs: \
             [{{names: [{names}], type: A, port: 1, refresh_interval: 1s}}]\n"
        );
        let mut answers = vec![reload(target, &job, "")];
        std::thread::sleep(Duration::from_secs(2));
        answers.extend(state(target));
        answers
    });
    attack("300 names and 300 targets without an address", act, unaffected())
}
