//! Queries: outputs larger than inputs, deep and long texts, many steps of many series.

use std::time::Duration;

use super::{base_s, query, range, write};
use crate::attack::{
    Action, Attack, Expect, Family, attack, bad, flood, limited, ok, script, status, survived,
};
use crate::client::{Answer, Request, form, get, insist, post};
use crate::target::Setup;
use crate::wire::{Message, encode, label, series, snappy};

pub(crate) fn family() -> Family {
    Family::new("queries", Setup::database(&["--query-timeout=5s"]))
        .because("a label is reserved before it is built", label_functions())
        .because("every function pays for its output", large_outputs())
        .because("a parser's memory is bounded by its input's limit", texts())
        .because("work is limited by the query's timeout, in every loop", work())
        .because("parameters are numbers of any size", parameters())
        .because("lists and raw reads are queries too", lists())
        .because("many queries together stay within the budget", floods())
        .because("kept answers with equal points are within the budget too", equal_points())
}

/// The query is refused, or small enough to answer.
fn refused_or_small() -> Expect {
    limited().or(200).at_most_bytes(32 << 20)
}

/// Range queries with other texts and the same answer: constants of all series.
fn equal_points() -> Vec<Attack> {
    let constants = |count: usize, steps: i64| {
        script(move |target| {
            let of = |n: usize| range(format!("load * 0 + {n} - {n}"), steps).send(target);
            // Each twice: the second answer comes from the kept one.
            (0..count).chain(0..count).map(of).collect()
        })
    };
    vec![
        attack("40 queries for constants", constants(40, 10), refused_or_small().within(60))
            .quick(),
        attack("5 queries for many constants", constants(5, 300), refused_or_small().within(60)),
    ]
}

fn label_functions() -> Vec<Attack> {
    let join = |sources: usize, separator: usize| {
        let sources = r#","job""#.repeat(sources);
        query(format!(r#"label_join(load,"x","{}"{sources})"#, "s".repeat(separator)))
    };
    let replace = |template: &str, pattern: &str| {
        query(format!(r#"label_replace(load,"x","{template}","path","{pattern}")"#))
    };
    vec![
        attack(
            "label_join: 60,000 sources, a separator of 500 kB",
            join(60_000, 500_000),
            limited(),
        )
        .quick(),
        attack("label_join: 2,000 sources, a separator of 2 kB", join(2_000, 2_000), limited())
            .quick(),
        attack("label_join: 100 sources, a separator of 900 kB", join(100, 900_000), limited()),
        attack("label_join: 150,000 sources", join(150_000, 0), refused_or_small()),
        attack(
            "label_join: values just over the limit of labels",
            join(2, 4_100),
            refused_or_small(),
        ),
        attack("label_replace: 14,000 groups", replace("$1", &"(.?)".repeat(14_000)), limited())
            .quick(),
        attack(
            "label_replace: 1,000 groups",
            replace("$1", &"(.?)".repeat(1_000)),
            refused_or_small(),
        )
        .quick(),
        attack("label_replace: 600 groups", replace("$1", &"(.?)".repeat(600)), refused_or_small()),
        attack(
            "label_replace: a template of 100 kB",
            replace(&"$1".repeat(50_000), "(.*)"),
            limited(),
        )
        .quick(),
        attack(
            "label_replace: a template of 900 kB of text",
            replace(&"t".repeat(900_000), ".*"),
            limited(),
        ),
        attack(
            "label_replace: a template of 4 kB, over and over",
            query((0..40).fold("load".to_owned(), |inner, n| {
                format!(r#"label_replace({inner},"l{n}","{}","path","(.*)")"#, "$1".repeat(400))
            })),
            refused_or_small(),
        ),
        attack(
            "label_replace: 500 names on one vector",
            query((0..500).fold("load".to_owned(), |inner, n| {
                format!(r#"label_replace({inner},"l{n}","v","","")"#)
            })),
            refused_or_small(),
        ),
        attack(
            "label_replace: a name of 500 kB",
            query(format!(r#"label_replace(load,"{}","v","","")"#, "n".repeat(500_000))),
            limited(),
        )
        .quick(),
        attack(
            "label_replace: all to one label set",
            query(r#"label_replace(label_replace(load,"path","","",""),"instance","","","")"#),
            status([422]),
        ),
        attack(
            "label_replace over 11,000 steps",
            range(r#"label_replace(load,"x","$1$1$1$1$1$1$1$1","path","(.*)")"#, 10_999),
            limited(),
        ),
    ]
}

/// Info metrics of some instances of the load; the answer has a label for each metric.
fn info_of(metrics: usize, instances: usize) -> Action {
    const BATCH: usize = 2_000;
    script(move |target| {
        let all: Vec<(usize, usize)> =
            (0..metrics).flat_map(|m| (0..instances).map(move |i| (m, i))).collect();
        let write_batch = |batch: &[(usize, usize)]| {
            let message = batch.iter().fold(Message::default(), |message, (metric, instance)| {
                let (name, instance) =
                    (format!("of{metrics}_{metric}_info"), format!("host-{instance:03}"));
                let label = format!("l{metric}");
                let labels = [
                    ("__name__", name.as_str()),
                    ("instance", instance.as_str()),
                    ("job", "load"),
                    (label.as_str(), "v"),
                ];
                message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
            });
            insist(
                target.limit(Duration::from_secs(5)),
                || write(message.clone()).send(target),
                204,
            )
        };
        let mut answers: Vec<Answer> = all.chunks(BATCH).map(write_batch).collect();
        let text = format!("info(load, {{__name__=~\"of{metrics}_.*_info\"}})");
        answers.push(query(text).send(target));
        answers
    })
}

fn large_outputs() -> Vec<Attack> {
    vec![
        attack("all series in 11,000 steps", range("load", 10_999), limited()).quick(),
        attack(
            "all series of everything in 11,000 steps",
            range(r#"{__name__!=""}"#, 10_999),
            limited(),
        ),
        attack("all series in 500 steps", range("load", 500), refused_or_small()),
        attack(
            "the union of 200 selections",
            query(vec!["load"; 200].join(" or ")),
            refused_or_small(),
        ),
        attack(
            "a sum of 1,000 selections",
            query(vec!["load"; 1_000].join(" + ")),
            refused_or_small(),
        ),
        attack(
            "count_values of all values",
            query(r#"count_values("v", load)"#),
            refused_or_small(),
        ),
        attack(
            "count_values over 11,000 steps",
            range(r#"count_values("v", load * time())"#, 10_999),
            limited(),
        )
        .quick(),
        attack(
            "count_values into a name of 500 kB",
            query(format!(r#"count_values("{}", load)"#, "n".repeat(500_000))),
            limited(),
        )
        .quick(),
        attack(
            "a quantile for each of 200 numbers",
            query(format!("quantile(0.5, load) {}", "or quantile(0.6, load)".repeat(200))),
            refused_or_small(),
        ),
        attack(
            "histogram_quantiles with 2,000 quantiles",
            query(format!(r#"histogram_quantiles(load, "q"{})"#, ", 0.5".repeat(2_000))),
            refused_or_small(),
        ),
        attack(
            "histogram_quantiles into a label of 500 kB",
            query(format!(r#"histogram_quantiles(load, "{}", 0.5)"#, "q".repeat(500_000))),
            refused_or_small(),
        ),
        attack("info of everything", query("info(load)"), refused_or_small()),
        attack("info of 300 metrics", info_of(300, 20), refused_or_small().or(204).within(15)),
        attack("info of 20,000 metrics", info_of(20_000, 1), refused_or_small().or(204).within(15)),
        attack(
            "an outer join by group_left with 30 labels",
            query(format!(
                "load * on(instance) group_left({}) count by (instance) (load)",
                (0..3_000).map(|n| format!("l{n}")).collect::<Vec<_>>().join(",")
            )),
            refused_or_small(),
        ),
        attack("all pairs by group_left", query("load * on(job) group_left() load"), status([422])),
        attack(
            "a string of 1 MB",
            query(format!("\"{}\"", "x".repeat((1 << 20) - 2))),
            refused_or_small(),
        ),
        attack(
            "a string of escapes",
            query(format!("\"{}\"", r"\U0001F600".repeat(100_000))),
            refused_or_small(),
        ),
        attack("a scalar in 11,000 steps", range("time()", 10_999), ok()).quick(),
        attack(
            "absent with long matchers",
            query(format!(
                r#"absent(nothing{{{}}})"#,
                (0..5_000).map(|n| format!("l{n}=\"{}\",", "v".repeat(100))).collect::<String>()
            )),
            refused_or_small(),
        ),
        attack(
            "absent_over_time in 11,000 steps",
            range(r#"absent_over_time(nothing{a="b"}[5m])"#, 10_999),
            ok(),
        ),
        attack("raw samples of a year", query("load[1y]"), refused_or_small()),
        attack("a subquery of a millisecond", query("load[1h:1ms]"), limited()).quick(),
        attack(
            "a subquery of a millisecond in another",
            query("max_over_time(max_over_time(load[1h:1ms])[1h:1ms])"),
            limited().within(15),
        )
        .quick(),
        attack(
            "five nested subqueries",
            query(
                "max_over_time(max_over_time(max_over_time(max_over_time(time()[1d:1s])[1d:1s])[1d:1s])[1d:1s])",
            ),
            limited().within(15),
        ),
        attack(
            "a subquery of 100 years",
            query("sum_over_time(load[100y:1s])"),
            limited().within(15),
        ),
        attack(
            "a subquery of scalars",
            query("max_over_time(vector(1)[365d:1ms])"),
            limited().within(15),
        ),
        attack("sort of everything", query("sort_desc(load)"), refused_or_small()),
        attack(
            "sort_by_label with 100,000 labels",
            query(format!(r#"sort_by_label(load{})"#, r#","job""#.repeat(100_000))),
            refused_or_small().within(15),
        ),
        attack(
            "sort_by_label with 60,000 other labels leaves no query",
            script(|target| {
                let names: String = (0..60_000).map(|n| format!(r#","a{n}""#)).collect();
                let answer = query(format!("sort_by_label(load{names})")).send(target);
                // The query's timeout, and a second.
                std::thread::sleep(Duration::from_secs(6));
                vec![answer]
            }),
            refused_or_small().check(|_, target| {
                let metrics = get("/metrics").send(target).text();
                match metrics.contains("\nfirn_queries_running 0\n") {
                    true => Ok(()),
                    false => Err("the query still runs".to_owned()),
                }
            }),
        ),
        attack(
            "grouping by 100,000 labels",
            query(format!("sum by ({}) (load)", vec!["job"; 100_000].join(","))),
            refused_or_small().within(15),
        ),
        attack(
            "grouping by all but 100,000 labels",
            query(format!("sum without ({}) (load)", vec!["x"; 100_000].join(","))),
            refused_or_small().within(15),
        ),
        attack("topk of everything in steps", range("topk(100000, load)", 1_000), limited()),
        attack("limitk of infinity", query("limitk(+Inf, load)"), refused_or_small()),
    ]
}

fn texts() -> Vec<Attack> {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        query(format!("{}{inner}{}", open.repeat(depth), close.repeat(depth)))
    };
    vec![
        attack("100,000 parentheses", nested("(", "1", ")", 100_000), bad()).quick(),
        attack("300 parentheses", nested("(", "1", ")", 300), status([200, 400])),
        attack("100,000 signs", nested("-", "1", "", 100_000), status([200, 400])).quick(),
        attack("50,000 calls", nested("abs(", "load", ")", 50_000), bad()),
        attack("50,000 aggregations", nested("sum(", "load", ")", 50_000), bad()),
        attack("50,000 subqueries", nested("", "load", "[1m:1m]", 50_000), bad()),
        attack("100,000 powers", query(vec!["1"; 100_000].join("^")), status([200, 400, 422])),
        attack("200,000 additions", query(vec!["1"; 200_000].join("+")), status([200, 400, 422]))
            .quick(),
        attack(
            "100,000 comparisons",
            query(vec!["1"; 100_000].join("==bool ")),
            status([200, 400, 422]),
        ),
        attack("50,000 unions", query(vec!["a"; 50_000].join(" or ")), status([200, 400, 422])),
        attack(
            "an expression of 1 MB",
            query(format!("1{}", "+1".repeat((1 << 19) - 1))),
            status([200, 400, 422]),
        ),
        attack("an expression over 1 MB", query("1+".repeat(1 << 20)), limited()),
        attack("a form of 12 MB", query("x".repeat(12 << 20)), status([400, 413])),
        attack("a number of 1 MB", query("1".repeat(1 << 20)), status([200, 400])),
        attack("a wrong number of 1 MB", query(format!("{}q", "1".repeat((1 << 20) - 1))), bad())
            .quick(),
        attack("a name of 1 MB", query("n".repeat(1 << 20)), status([200, 400])),
        attack(
            "an unknown function of 1 MB",
            query(format!("{}()", "f".repeat((1 << 20) - 2))),
            bad(),
        )
        .quick(),
        attack("an open string of 1 MB", query(format!("\"{}", "s".repeat((1 << 20) - 1))), bad()),
        attack("a duration of 1 MB", query(format!("a[{}s]", "1".repeat(1_000_000))), bad()),
        attack("an offset of 20 digits", query("load offset 99999999999999999999s"), bad()),
        attack(
            "an @ of 400 digits",
            query(format!("load @ {}", "9".repeat(400))),
            status([200, 400]),
        ),
        attack(
            "100,000 matchers",
            query(format!("a{{{}}}", "b=\"c\",".repeat(100_000))),
            status([200, 400, 422]),
        ),
        attack("100,000 comments", query(format!("{}1", "#\n".repeat(100_000))), ok()),
        attack("blanks of 300 kB", query(format!("{}1", " ".repeat(300_000))), ok()),
        attack("an empty query", query(""), bad()),
        attack(
            "bytes that are not UTF-8",
            form("/api/v1/query", [("query", &b"\xff\xfe\x00"[..])]),
            bad(),
        ),
        attack("a NUL", query("load\0"), bad()),
        attack(
            "format_query of 100,000 parentheses",
            form("/api/v1/format_query", [("query", "(".repeat(100_000))]),
            bad(),
        ),
        attack(
            "format_query that indents",
            form(
                "/api/v1/format_query",
                [("query", format!("{}a{}", "sum(".repeat(200), ")".repeat(200)))],
            ),
            status([200, 400]).at_most_bytes(1 << 20),
        ),
        attack(
            "parse_query of 100,000 additions",
            form("/api/v1/parse_query", [("query", vec!["1"; 100_000].join("+"))]),
            refused_or_small(),
        ),
    ]
}

fn work() -> Vec<Attack> {
    // Pairs of pairs: a sum of as many terms would be too deep.
    let pairs = |leaf: &str, levels: u32| {
        (0..levels).fold(leaf.to_owned(), |inner, _| format!("({inner}+{inner})"))
    };
    vec![
        attack(
            "a range query of 16,384 selections",
            range(pairs("count(load)", 14), 1),
            refused_or_small().within(15),
        ),
        attack(
            "a function of all series in 11,000 steps",
            range("sum(rate(load[1h]))", 10_999),
            refused_or_small().within(15),
        ),
        attack(
            "a quantile of all series in 11,000 steps",
            range("quantile(0.5, load)", 10_999),
            refused_or_small().within(15),
        ),
        attack(
            "a subquery per step",
            range("max_over_time(sum(load)[1h:1s])", 3_600),
            limited().or(200).within(15),
        ),
        attack(
            "predict_linear per step",
            range("sum(predict_linear(load[1h:1s], 60))", 1_000),
            limited().or(200).within(15),
        ),
        attack(
            "double exponential smoothing per step",
            range("sum(double_exponential_smoothing(load[1h:1s], 0.5, 0.5))", 1_000),
            limited().or(200).within(15),
        ),
        attack(
            "a timeout of nothing",
            form("/api/v1/query", [("query", "sum(load)"), ("timeout", "0s")]),
            status([200, 503]),
        ),
        attack(
            "a timeout of 1,000 years",
            form("/api/v1/query", [("query", "max_over_time(load[1h:1ms])"), ("timeout", "1000y")]),
            status([200, 400, 422, 503, 500]).within(15),
        ),
        attack(
            "clients that leave",
            script(|target| {
                // 50 clients send an expensive query and close the connection at once.
                let bytes = range("sum(rate(load[1h]))", 5_000).encode(target);
                for _ in 0..50 {
                    if let Ok(mut connection) = target.connect() {
                        let _ = connection.write_all(&bytes);
                    }
                }
                vec![query("1").send(target)]
            }),
            ok().within(15),
        )
        .quick(),
    ]
}

fn parameters() -> Vec<Attack> {
    let with = |pairs: &[(&str, &str)]| -> Request {
        form("/api/v1/query_range", pairs.iter().map(|(name, value)| (*name, *value)))
    };
    let range = |start: &str, end: &str, step: &str| {
        with(&[("query", "load"), ("start", start), ("end", end), ("step", step)])
    };
    vec![
        attack("a step of 0", range("0", "10", "0"), bad()).quick(),
        attack("a negative step", range("0", "10", "-1"), bad()),
        attack("a step of NaN", range("0", "10", "NaN"), bad()),
        attack("a step of 1e300", range("0", "10", "1e300"), status([200, 400])),
        attack("a step of 1e-300", range("0", "10", "1e-300"), bad()),
        attack("a start of NaN", range("NaN", "10", "1"), bad()),
        attack(
            "from the smallest time to the largest",
            range("-9223372036854775.808", "9223372036854775.807", "1000000000000"),
            status([200, 400]),
        )
        .quick(),
        attack("from -1e308 to 1e308", range("-1e308", "1e308", "1e308"), bad()),
        attack("the end before the start", range("10", "0", "1"), bad()),
        attack("11,002 steps", range("0", "11001", "1"), bad()),
        attack("a time of 1 MB", range(&"1".repeat(1 << 20), "1", "1"), bad()).quick(),
        attack("a step of 1 MB", range("0", "1", &"s".repeat(1 << 20)), bad()).quick(),
        attack(
            "a limit of 20 digits",
            with(&[
                ("query", "load"),
                ("start", "0"),
                ("end", "1"),
                ("step", "1"),
                ("limit", "99999999999999999999"),
            ]),
            bad(),
        ),
        attack("a limit of 1 MB", form("/api/v1/labels", [("limit", "9".repeat(1 << 20))]), bad()),
        attack(
            "a lookback of 1,000 years",
            form("/api/v1/query", [("query", "load"), ("lookback_delta", "1000y")]),
            status([200, 400, 422]).at_most_bytes(32 << 20),
        ),
        attack(
            "100,000 parameters",
            post("/api/v1/query")
                .header("Content-Type", "application/x-www-form-urlencoded")
                .body("a=b&".repeat(100_000)),
            bad(),
        ),
        attack(
            "5 million empty parameters",
            post("/api/v1/query")
                .header("Content-Type", "application/x-www-form-urlencoded")
                .make(|| b"a&".repeat(5 << 20)),
            bad(),
        )
        .quick(),
        attack(
            "30,000 parameters in the URLs of 200 clients",
            flood(200, 2, get(format!("/api/v1/query?{}", "a&".repeat(30_000)))),
            bad().or(503),
        ),
        attack(
            "a form with percent signs",
            post("/api/v1/query")
                .header("Content-Type", "application/x-www-form-urlencoded")
                .body("query=%zz%4"),
            bad(),
        ),
        attack("a query twice", get("/api/v1/query?query=1&query=load"), ok()),
        attack(
            "a URL of 60 kB",
            get(format!("/api/v1/query?query={}", "1%2B".repeat(15_000) + "1")),
            status([200, 400, 414, 431]),
        ),
        attack(
            "raw quotes and brackets in the URL",
            get("/api/v1/query?query=load{path=\"/path/1\"}&x=<`>"),
            ok(),
        )
        .quick(),
    ]
}

fn lists() -> Vec<Attack> {
    let matches = |count: usize, one: fn(usize) -> String| {
        (0..count).map(|n| ("match[]".to_owned(), one(n))).collect::<Vec<_>>()
    };
    let read = |queries: usize, matchers: usize| {
        let matcher = || Message::default().varint(1, 0).bytes(2, "__name__").bytes(3, "load");
        let one = (0..matchers).fold(
            Message::default().varint(1, 0).varint(2, (base_s() * 1_000) as u64),
            |message, _| message.message(3, matcher()),
        );
        let all = (0..queries).fold(Message::default(), |message, _| message.bytes(1, &one.0));
        post("/api/v1/read").header("Content-Encoding", "snappy").body(snappy(all.0))
    };
    vec![
        attack(
            "2,000 match[] on labels",
            form("/api/v1/labels", matches(2_000, |n| format!("load{{path=~\".*{n}.*\"}}"))),
            limited().or(200).within(10),
        )
        .quick(),
        attack(
            "2,000 match[] on series",
            form("/api/v1/series", matches(2_000, |n| format!("{{path=~\".*{n}\"}}"))),
            refused_or_small().within(10),
        ),
        attack(
            "2,000 match[] on values",
            get(format!(
                "/api/v1/label/path/values?{}",
                (0..2_000)
                    .map(|n| format!("match[]={}&", encode(format!("load{{path=~\"x{n}\"}}"))))
                    .collect::<String>()
                    .get(..90_000)
                    .unwrap_or_default()
            )),
            status([200, 400, 414, 422, 431]).within(10),
        ),
        attack(
            "100,000 match[]",
            form("/api/v1/series", matches(100_000, |n| format!("a{n}"))),
            refused_or_small().within(10),
        )
        .quick(),
        attack(
            "500 times all series",
            form("/api/v1/series", matches(500, |_| "load".to_owned())),
            refused_or_small().within(10),
        ),
        attack(
            "match[] that matches everything",
            form("/api/v1/series", [("match[]", "{a!=\"b\"}")]),
            bad(),
        ),
        attack(
            "values of a label of 60 kB",
            get(format!("/api/v1/label/{}/values", "l".repeat(60_000))),
            status([200, 400, 414, 431]).at_most_bytes(8_192),
        ),
        attack("values of a label that is no name", get("/api/v1/label/%ff%fe/values"), bad()),
        attack(
            "values of an escaped name with a surrogate",
            get("/api/v1/label/U__d800_/values"),
            status([200, 400]),
        ),
        attack(
            "federation of everything",
            get("/federate?match[]=%7B__name__!%3D%22%22%7D"),
            status([200, 422, 500, 503]).at_most_bytes(32 << 20),
        ),
        attack(
            "federation of 1,000 times everything",
            get(format!("/federate?{}", "match[]=load&".repeat(1_000))),
            status([200, 400, 422, 500, 503]).at_most_bytes(32 << 20),
        )
        .quick(),
        attack(
            "exemplars of everything",
            form("/api/v1/query_exemplars", [("query", "load"), ("start", "0"), ("end", "1e10")]),
            status([200, 400]),
        ),
        attack("remote read of everything", read(1, 1), status([200, 422, 503])).quick(),
        attack("remote read of everything 900 times", read(900, 1), status([200, 422, 503]))
            .quick(),
        attack("remote read with 1,001 queries", read(1_001, 1), bad()),
        attack("remote read with 10,001 matchers", read(1, 10_001), bad()),
        attack(
            "remote read of 8 million empty queries",
            post("/api/v1/read").make(|| snappy([0x0a, 0].repeat(8 << 20))),
            status([400]),
        ),
        attack(
            "remote read with 24 million response types",
            post("/api/v1/read").make(|| {
                let types = vec![5; 24 << 20];
                snappy(Message::default().bytes(2, &types).0)
            }),
            status([400, 422, 503]),
        )
        .quick(),
        attack("remote read that is text", post("/api/v1/read").body("hello"), bad()),
        attack(
            "remote read with an unknown matcher",
            post("/api/v1/read").body(snappy(
                Message::default()
                    .message(1, Message::default().message(3, label("a", "b").varint(1, 77)))
                    .0,
            )),
            bad(),
        ),
        attack(
            "TSDB status with a limit of 10^9",
            get("/api/v1/status/tsdb?limit=1000000000"),
            status([200, 400]).at_most_bytes(32 << 20),
        ),
        attack(
            "groups with a partition of 1 ms",
            get("/api/v1/status/groups?limit=1000000&partition=1ms"),
            status([200, 400, 422, 500, 503]).within(10),
        ),
        attack(
            "the list of all groups",
            get("/api/v1/groups?lone=true&limit=1000000"),
            status([200, 400]).at_most_bytes(32 << 20),
        ),
    ]
}

fn floods() -> Vec<Attack> {
    let all_in_budget = |answers: &[Answer]| {
        let bytes: u64 = answers.iter().map(|answer| answer.body_bytes).sum();
        if bytes > 0 { Ok(()) } else { Err("no client received anything".to_owned()) }
    };
    vec![
        attack(
            "30 clients that read all series",
            flood(30, 2, query("load")),
            status([200, 422, 429, 500, 503]),
        )
        .quick(),
        attack(
            "30 clients that read all series in steps",
            flood(30, 1, range("load", 100)),
            status([200, 422, 429, 500, 503]).check(move |answers, _| all_in_budget(answers)),
        ),
        attack(
            "20 subqueries of a millisecond",
            flood(20, 1, query("max_over_time(load[1h:1ms])")),
            limited().within(20),
        ),
        attack(
            "20 unions of 200 selections",
            flood(20, 1, query(vec!["load"; 200].join(" or "))),
            survived(),
        ),
        attack(
            "20 label_replace",
            flood(20, 1, query(r#"label_replace(load,"x","$1$1$1$1$1$1$1$1$1$1","path","(.*)")"#)),
            survived(),
        ),
        attack("30 federations", flood(30, 1, get("/federate?match[]=load")), survived()),
        attack(
            "30 lists of series",
            flood(30, 1, form("/api/v1/series", [("match[]", "load")])),
            survived(),
        ),
        attack(
            "20 remote reads",
            flood(
                20,
                1,
                post("/api/v1/read").body(snappy(
                    Message::default()
                        .message(
                            1,
                            Message::default().varint(2, (base_s() * 1_000) as u64).message(
                                3,
                                Message::default().bytes(2, "__name__").bytes(3, "load"),
                            ),
                        )
                        .0,
                )),
            ),
            survived(),
        ),
    ]
}
