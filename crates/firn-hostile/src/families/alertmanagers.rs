//! Alertmanagers that are in the hands of an attacker.

use std::fs;
use std::time::Duration;

use super::collecting::{
    INTERVAL, SECRET, SERVED_TIME_MAX, is_unaffected, path_of, reload, setup, state, unaffected,
};
use super::peer::{
    Behaviour, bytes, coded, dripping, endless, late, peer, redirect, silent, whole,
};
use crate::attack::{Attack, Family, attack, script};
use crate::wire::gzip_bomb;

/// In the short run.
const QUICK: &[&str] =
    &["an Alertmanager that never answers", "an Alertmanager that redirects to another host"];

pub(crate) fn family() -> Family {
    let setup = setup(&["--alert-resend-delay=1s", "--alert-queue-max=5000"]);
    Family::new("alertmanager", setup)
        .because("an Alertmanager delays no other one and no evaluation", answers())
        .because("a list of Alertmanagers is within the memory, or refused", [long_list()])
        .because("credentials stay with the host of the configuration", [stolen()])
        .with_quick(QUICK)
}

const GOOD: &str = "/alertmanager-good";
const JSON: &str = "application/json";

/// Alerts are sent to an Alertmanager with this behaviour and to one that accepts them.
fn alertmanager(name: &'static str, behaviour: Behaviour) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, Behaviour::clone(&behaviour));
        peer().set(GOOD, bytes(whole(JSON, "{}")));
        let rules = target.folder().join("rules.yml");
        let text = format!(
            "groups:\n- name: g\n  interval: {INTERVAL}\n  rules:\n  \
             - {{alert: A, expr: load, annotations: {{a: '{}'}}}}\n",
            "x".repeat(200)
        );
        let _ = fs::write(&rules, text);
        let address = peer().address;
        let one = |prefix: &str| {
            format!(
                "  - path_prefix: '{prefix}'\n    timeout: 2s\n    \
             basic_auth: {{username: u, password: {SECRET}}}\n    \
             static_configs: [{{targets: ['{address}']}}]\n"
            )
        };
        let sections = format!(
            "rule_files: ['{}']\nalerting:\n  alertmanagers:\n{}{}",
            rules.display(),
            one(&path),
            one(GOOD)
        );
        let mut answers = vec![reload(target, "", &sections)];
        peer().wait_for(&path, 2, SERVED_TIME_MAX);
        // The other one still receives alerts.
        if peer().wait_for(GOOD, 2, target.limit(SERVED_TIME_MAX)) {
            answers.extend(state(target));
        }
        answers
    });
    attack(
        name,
        act,
        unaffected().check(|answers, target| {
            if answers.len() < 2 {
                return Err("the other Alertmanager receives no alerts".to_owned());
            }
            is_unaffected(target)
        }),
    )
}

/// More Alertmanagers than fit into the memory.
fn long_list() -> Attack {
    let act = script(|target| {
        let all: Vec<String> = (0..25_000).map(|n| format!("'127.0.0.1:{n}'")).collect();
        let list = format!("static_configs: [{{targets: [{}]}}]", all.join(", "));
        let answer = reload(target, "", &format!("alerting: {{alertmanagers: [{{{list}}}]}}"));
        let mut answers = vec![answer];
        std::thread::sleep(Duration::from_secs(3));
        answers.extend(state(target));
        answers.push(reload(target, "", ""));
        answers
    });
    attack("25,000 Alertmanagers", act, unaffected())
}

fn answers() -> Vec<Attack> {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
    vec![
        alertmanager("an Alertmanager that never answers", silent("")),
        alertmanager(
            "an Alertmanager with an endless answer",
            endless(HEAD, |_| "x".repeat(1_000)),
        ),
        alertmanager(
            "an Alertmanager that packs",
            late(|| coded("Content-Encoding: gzip\r\n", gzip_bomb(64))),
        ),
        alertmanager(
            "an Alertmanager with an endless head",
            endless("HTTP/1.1 200 OK\r\n", |n| format!("X-{n}: y\r\n")),
        ),
        alertmanager(
            "an Alertmanager that redirects to itself",
            redirect("/an-Alertmanager-that-redirects-to-itself"),
        ),
        alertmanager("an Alertmanager that redirects to a file", redirect("file:///etc/passwd")),
        alertmanager("an Alertmanager that closes", bytes("")),
        alertmanager(
            "an Alertmanager that fails",
            bytes("HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"),
        ),
        alertmanager(
            "an Alertmanager that fails without end",
            endless("HTTP/1.1 500 Oops\r\n\r\n", |_| "oops".into()),
        ),
        alertmanager(
            "an Alertmanager that refuses",
            bytes("HTTP/1.1 429 Slow\r\nRetry-After: 99999999\r\nContent-Length: 0\r\n\r\n"),
        ),
        alertmanager("an Alertmanager byte by byte", dripping(whole(JSON, "{}"))),
        alertmanager("an Alertmanager without HTTP", bytes("\0\0\0\0")),
        alertmanager(
            "an Alertmanager of another protocol",
            bytes("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
        ),
    ]
}

fn stolen() -> Attack {
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&heads);
    peer().serve("/stolen-alerts", move |stream, head| {
        recorded.lock().expect("no panic").push(head.to_owned());
        stream.write_all(&whole(JSON, "{}"))
    });
    let to = format!("http://localhost:{}/stolen-alerts", peer().address.port());
    alertmanager("an Alertmanager that redirects to another host", redirect(to)).with(|expect| {
        expect.check(move |_, target| {
            is_unaffected(target)?;
            let heads = heads.lock().expect("no panic");
            match heads.iter().find(|head| head.to_ascii_lowercase().contains("\nauthorization")) {
                Some(head) => Err(format!("another host received credentials: {head:?}")),
                None => Ok(()),
            }
        })
    })
}
