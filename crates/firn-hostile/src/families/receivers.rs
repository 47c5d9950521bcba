//! Receivers of outgoing remote write in the hands of an attacker, and long labels that are sent on
//! to them.

use super::collecting::{
    SECRET, SERVED_TIME_MAX, is_unaffected, path_of, reload, setup, state, unaffected,
};
use super::peer::{Behaviour, bytes, coded, dripping, endless, peer, redirect, silent};
use super::{base_s, write_made};
use crate::attack::{Attack, Expect, Family, attack, script};
use crate::client::Answer;
use crate::target::Target;
use crate::wire::{Message, noise, series};

/// In the short run.
const QUICK: &[&str] = &["a receiver that never answers"];

pub(crate) fn family() -> Family {
    Family::new("receiver", setup(&["--remote-write-log-max=256MiB"]))
        .because("a receiver delays no other one, and no write", answers())
        .because("a window is sent in parts within the memory, whatever its labels", long_labels())
        .with_quick(QUICK)
}

const GOOD: &str = "/receiver-good";
const ACCEPTED: &str = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";

/// Samples are sent to a receiver with this behaviour, and to one that accepts them.
fn receiver(name: &'static str, behaviour: Behaviour) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, Behaviour::clone(&behaviour));
        begin(target, &[(path.as_str(), ""), (GOOD, "")], &path)
    });
    attack(name, act, sent())
}

/// New series with long labels, for a receiver with these further keys.
fn labels(name: &'static str, keys: String) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, bytes(ACCEPTED));
        let mut answers = vec![reload(target, "", &section(&[(path.as_str(), keys.as_str())]))];
        answers.extend((0..40).map(|batch| write_long(target, batch)));
        // The log reaches it, too.
        answers.extend(begin(target, &[(path.as_str(), keys.as_str()), (GOOD, "")], &path));
        answers
    });
    attack(name, act, sent().or(204))
}

/// 500 series with labels of 4 kB, which may be refused.
fn write_long(target: &Target, batch: u64) -> Answer {
    let request = write_made(move || {
        (500 * batch..500 * (batch + 1)).fold(Message::default(), |message, n| {
            let (a, b) = (noise(n, 2_000), noise(n + 1_000_000, 2_000));
            let labels = [("__name__", "long"), ("a", a.as_str()), ("b", b.as_str())];
            message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
        })
    });
    request.send(target)
}

fn section(receivers: &[(&str, &str)]) -> String {
    let address = peer().address;
    let one = |(path, keys): &(&str, &str)| {
        format!(
            "- url: 'http://{address}{path}'\n  remote_timeout: 2s\n  \
             basic_auth: {{username: u, password: {SECRET}}}\n{keys}"
        )
    };
    format!("remote_write:\n{}", receivers.iter().map(one).collect::<String>())
}

/// Waits until the receiver at `path` has requests, and the good one too. Without them the
/// responses lack those about the state.
fn begin(target: &Target, receivers: &[(&str, &str)], path: &str) -> Vec<Answer> {
    peer().set(GOOD, bytes(ACCEPTED));
    let mut answers = vec![reload(target, "", &section(receivers))];
    let time_max = target.limit(2 * SERVED_TIME_MAX);
    if peer().wait_for(path, 1, time_max) && peer().wait_for(GOOD, 2, time_max) {
        answers.extend(state(target));
    }
    answers.push(reload(target, "", ""));
    answers
}

fn sent() -> Expect {
    unaffected().within(120).check(|answers, target| {
        if answers.iter().filter(|answer| answer.status == 200).count() < 5 {
            return Err("a receiver gets no samples".to_owned());
        }
        is_unaffected(target)
    })
}

fn answers() -> Vec<Attack> {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
    vec![
        receiver("a receiver that never answers", silent("")),
        receiver("a receiver that answers byte by byte", dripping(ACCEPTED)),
        receiver("a receiver with an endless answer", endless(HEAD, |_| "x".repeat(1_000))),
        receiver(
            "a receiver with an endless refusal",
            endless("HTTP/1.1 500 Oops\r\n\r\n", |_| "oops".to_owned()),
        ),
        receiver(
            "a receiver with an endless head",
            endless("HTTP/1.1 200 OK\r\n", |n| format!("X-{n}: y\r\n")),
        ),
        receiver(
            "a receiver with an endless Retry-After",
            bytes(
                "HTTP/1.1 429 Later\r\nRetry-After: 99999999999999999999\r\nContent-Length: 1\r\n\r\nx",
            ),
        ),
        receiver(
            "a receiver that counts wrongly",
            bytes(coded("X-Prometheus-Remote-Write-Samples-Written: 18446744073709551616\r\n", "")),
        ),
        receiver("a receiver that closes", bytes("")),
        receiver(
            "a receiver that redirects to itself",
            redirect("/a-receiver-that-redirects-to-itself"),
        ),
        receiver("a receiver that redirects to a file", redirect("file:///etc/passwd")),
    ]
}

fn long_labels() -> Vec<Attack> {
    let rule = |n: usize| {
        format!(
            "  - {{target_label: r{n}, replacement: '{}$1', regex: '(.*)'}}\n",
            "x".repeat(3_000)
        )
    };
    let rules = (0..8).map(rule).collect::<String>();
    vec![
        labels("new series with long labels for a receiver", String::new()),
        labels("long labels for a receiver of 2.0", {
            "  protobuf_message: io.prometheus.write.v2.Request\n".to_owned()
        }),
        labels(
            "rules that multiply long labels for a receiver",
            format!("  write_relabel_configs:\n{rules}"),
        ),
        labels(
            "long labels in large parts for a receiver",
            "  queue_config: {max_samples_per_send: 1000000, capacity: 10000000, max_shards: 50}\n"
                .to_owned(),
        ),
    ]
}
