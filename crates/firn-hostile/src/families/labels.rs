//! Label sets that make matching and listing expensive: matchers that split every class of groups,
//! matchers that take every second series, long label names, and many different lists of names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{base_s, json, query, write_made};
use crate::attack::{Attack, Family, attack, flood, script, status};
use crate::client::{Request, form, get};
use crate::target::Setup;
use crate::wire::{Message, encode, series};

pub(crate) fn family() -> Family {
    Family::new("labels", Setup::database(&["--query-timeout=5s"]))
        .because("groups with every subset of some names", [subset_groups(), split_members()])
        .because("the classes and sets of a selection are reserved", classes())
        .because("series that a pattern takes by turns", [numbered_series()])
        .because("the runs of a selection are reserved", runs())
        .because("long names, and many lists of names", [long_names(), name_lists()])
        .because("names are listed one at a time", names())
        .because("an index file is written in time proportional to its labels", [own_names()])
        .because("the memory of writing an index file is counted", [names_at_once()])
}

// Each doubles the number of match classes.
const SPLIT_NAMES: usize = 12;
const MEMBERS: usize = 24_000;
const BATCH: usize = 4_000;

/// Writes may be refused once the new series fill their share of the memory.
fn load(name: &str, requests: impl Fn() -> Vec<Request> + 'static) -> Attack {
    let send = script(move |target| requests().iter().map(|one| one.send(target)).collect());
    attack(name, send, status([200, 204, 429, 503]))
}

/// At the end the server stops in time.
fn own_names() -> Attack {
    let requests = || {
        let batch = |first: usize| {
            write_made(move || {
                (first..first + BATCH).fold(Message::default(), |message, n| {
                    let (metric, name) = (format!("own_{n}"), format!("own_name_{n}"));
                    let labels =
                        [("__name__", &*metric), ("instance", "x"), ("job", "j"), (&name, "x")];
                    message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
                })
            })
        };
        (0..15 * BATCH).step_by(BATCH).map(batch).collect()
    };
    load("60,000 series, each with a name of its own", requests)
}

/// Files of tens of thousands of names are written and merged while their series arrive.
fn names_at_once() -> Attack {
    let sent = AtomicU64::new(0);
    let series_of_60 = write_made(move || {
        let first = sent.fetch_add(50, Ordering::Relaxed);
        (first..first + 50).fold(Message::default(), |message, n| {
            let metric = format!("named_{n}");
            let names: Vec<String> = (0..60)
                .map(|at| format!("named_{n:06}_{at:02}_{}", "x".repeat([1, 30, 400][at % 3])))
                .collect();
            let own = names.iter().map(|name| (name.as_str(), "v"));
            let labels: Vec<(&str, &str)> =
                [("__name__", &*metric)].into_iter().chain(own).collect();
            message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
        })
    });
    attack(
        "4 writers of series with 60 long names of their own",
        flood(4, 60, series_of_60),
        status([204, 429, 503]),
    )
}

fn subset_groups() -> Attack {
    load("groups with 4,096 subsets", || {
        let subsets = (0..1usize << SPLIT_NAMES).collect::<Vec<_>>();
        let batches = subsets.chunks(512).map(|batch| {
            let groups = batch.iter().map(|subset| {
                let mut labels = format!(r#"{{"grp":"{subset}""#);
                for name in (0..SPLIT_NAMES).filter(|name| subset >> name & 1 == 1) {
                    let _ = write!(labels, r#","g{name}":"1""#);
                }
                format!(r#"{{"labels":{labels}}},"members":[{{"__name__":"split"}}]}}"#)
            });
            let groups = groups.collect::<Vec<_>>().join(",");
            json("/api/v1/groups", format!(r#"{{"groups":[{groups}]}}"#))
        });
        batches.collect()
    })
    .quick()
}

/// Members of one group; every second one has one of the names.
fn split_members() -> Attack {
    load("24,000 members with these names", || {
        let batches = (0..MEMBERS).step_by(BATCH).map(|first| {
            let members = (first..first + BATCH).map(|n| match n % 2 {
                0 => format!(r#"{{"__name__":"split","u":"{n}"}}"#),
                _ => format!(r#"{{"__name__":"split","u":"{n}","g{}":"x"}}"#, n / 2 % SPLIT_NAMES),
            });
            let members = members.collect::<Vec<_>>().join(",");
            let group = format!(r#"{{"labels":{{"host":"{first}"}},"members":[{members}]}}"#);
            json("/api/v1/groups", format!(r#"{{"groups":[{group}]}}"#))
        });
        batches.collect()
    })
    .quick()
}

fn classes() -> Vec<Attack> {
    let mut selector = r#"{__name__=~".+""#.to_owned();
    for name in 0..SPLIT_NAMES {
        let _ = write!(selector, r#",g{name}!="x""#);
    }
    selector.push('}');
    over_lists("12 negative matchers", &selector)
}

/// The selector through each way of matching, from 8 clients at once.
fn over_lists(what: &str, selector: &str) -> Vec<Attack> {
    let expect = || status([200, 422, 429, 503]);
    let values = format!("/api/v1/label/u/values?limit=1&match[]={}", encode(selector));
    let rows = [
        ("values", get(values)),
        ("names", form("/api/v1/labels", [("limit", "1"), ("match[]", selector)])),
        ("series", form("/api/v1/series", [("limit", "1"), ("match[]", selector)])),
        ("a count", query(format!("count({selector})"))),
    ];
    let attacks = rows.into_iter().map(|(way, request)| {
        attack(format!("{what}, {way}, 8 at once"), flood(8, 1, request), expect()).quick()
    });
    attacks.collect()
}

const SERIES_COUNT: usize = 200_000;

fn numbered_series() -> Attack {
    load("200,000 numbered series", || {
        let batches = (0..SERIES_COUNT).step_by(BATCH).map(|first| {
            write_made(move || {
                let mut request = Message::default();
                for n in first..first + BATCH {
                    let number = format!("{n:07}");
                    let labels = [("__name__", "numbered"), ("u", number.as_str())];
                    request = request.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]));
                }
                request
            })
        });
        batches.collect()
    })
}

fn runs() -> Vec<Attack> {
    let selector = r#"{__name__="numbered",u=~".*[13579]",u!~".*[037]"}"#;
    let attacks = over_lists("every second series", selector).into_iter();
    attacks.map(|attack| Attack { is_quick: false, ..attack }).collect()
}

fn long_names() -> Attack {
    load("12,000 names of 1 KiB", || {
        let batches = (0..12_000).step_by(800).map(|first| {
            write_made(move || {
                let mut request = Message::default();
                for start in (first..first + 800).step_by(40) {
                    let names: Vec<String> = (start..start + 40)
                        .map(|n| format!("n{n:05}{}", "y".repeat(1_000)))
                        .collect();
                    let mut labels = vec![("__name__", "named")];
                    labels.extend(names.iter().map(|name| (name.as_str(), "1")));
                    request = request.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]));
                }
                request
            })
        });
        batches.collect()
    })
    .quick()
}

/// Series with the 60 names of a sequence that differs from series to series.
fn name_lists() -> Attack {
    load("20,000 lists of 60 names", || {
        let batches = (0..20_000usize).step_by(400).map(|first| {
            write_made(move || {
                let mut request = Message::default();
                for n in first..first + 400 {
                    let is_in = |name: &usize| {
                        n.wrapping_mul(0x9e37_79b9).wrapping_add(name * 0x85eb_ca6b) >> 7 & 3 == 0
                    };
                    let names: Vec<String> =
                        (0..200).filter(is_in).take(60).map(|name| format!("k{name:03}")).collect();
                    let number = n.to_string();
                    let mut labels = vec![("__name__", "listed")];
                    labels.extend(names.iter().map(|name| (name.as_str(), "1")));
                    labels.push(("z", &number));
                    request = request.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]));
                }
                request
            })
        });
        batches.collect()
    })
}

fn names() -> Vec<Attack> {
    let expect = || status([200, 422, 429, 503]);
    let rows = [
        ("one name", get("/api/v1/labels?limit=1"), true),
        ("all names", get("/api/v1/labels"), true),
        ("names of matched series", form("/api/v1/labels", [("match[]", r#"{z=~"1.*"}"#)]), false),
        ("TSDB status", get("/api/v1/status/tsdb?limit=10000"), false),
    ];
    let attacks = rows.into_iter().map(|(what, request, is_quick)| {
        let one = attack(format!("{what}, 20 at once"), flood(20, 1, request), expect());
        Attack { is_quick, ..one }
    });
    attacks.collect()
}
