//! Targets of a scraping server that are in the hands of an attacker.

use super::collecting::{
    METRICS, SECRET, SERVED_TIME_MAX, path_of, reload, setup, state, target, unaffected,
};
use super::peer::{
    Behaviour, bytes, coded, dripping, endless, late, made, peer, redirect, silent, wait_until,
    whole,
};
use crate::attack::{Attack, Expect, Family, attack, flood, script};
use crate::client::{Answer, get};
use crate::target::Target;
use crate::wire::{Message, gzip, gzip_bomb, noise, push_varint};

/// In the short run.
const QUICK: &[&str] = &[
    "an endless body of new series",
    "a gzip bomb",
    "a redirect to another host",
    "a forged line of the log",
    "a message of 2^63 bytes",
];

pub(crate) fn family() -> Family {
    Family::new("scrape", setup(&[]))
        .because("a response is bounded in bytes and in time", responses())
        .because(
            "a redirect leads nowhere that the target could not reach, with no secret",
            redirects(),
        )
        .because("samples, series and labels of a scrape are bounded", bodies())
        .because("a malformed body is refused whole", malformed())
        .because("a malformed protobuf body is refused whole", protobuf())
        .because("targets that hang cost little", hanging())
        .with_quick(QUICK)
}

/// With time for much.
const SLOW: &str = "scrape_interval: 3s\nscrape_timeout: 3s";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";

fn responses() -> Vec<Attack> {
    let gzipped = |body: fn() -> Vec<u8>| {
        let headers = "Content-Encoding: gzip\r\nContent-Type: text/plain; version=0.0.4\r\n";
        late(move || coded(headers, body()))
    };
    vec![
        target("an endless body", SLOW, endless(HEAD, |_| "endless 1\n".to_owned())),
        target(
            "an endless body of new series",
            SLOW,
            endless(HEAD, |n| format!("e{{n=\"{n}\"}} 1\n")),
        ),
        target("an endless line", SLOW, endless(HEAD, |_| "x".repeat(1_000))),
        target("an endless comment", SLOW, endless(HEAD, |n| format!("# {n}\n"))),
        target(
            "a body limit and an endless body",
            "body_size_limit: 1MB",
            endless(HEAD, |_| "a 1\n".to_owned()),
        ),
        target(
            "an endless head",
            SLOW,
            endless("HTTP/1.1 200 OK\r\n", |n| format!("X-Header-{n}: {n}\r\n")),
        ),
        target("an endless status line", SLOW, endless("HTTP/1.1 200 ", |_| "OK".to_owned())),
        target(
            "endless informational responses",
            SLOW,
            endless("", |_| "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".to_owned()),
        ),
        target(
            "endless chunk extensions",
            SLOW,
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", |_| {
                ";x=y".to_owned()
            }),
        ),
        target(
            "endless trailers",
            SLOW,
            endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", |n| {
                format!("X-{n}: y\r\n")
            }),
        ),
        target("a body byte by byte", "", dripping(whole(METRICS, "drip 1\n"))),
        target("no response", "", silent("")),
        target("half a head", "", silent("HTTP/1.1 200 OK\r\nContent-Ty")),
        target("half a body", "", silent("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n")),
        target("no HTTP", "", bytes("\0\x01\x02 this is no HTTP\r\n\r\n")),
        target("a gzip bomb", SLOW, gzipped(|| gzip_bomb(256))),
        target("gzip of many members", SLOW, gzipped(|| gzip("a 1\n").repeat(200_000))),
        target("gzip that is none", "", gzipped(|| b"nope".to_vec())),
        target("gzip that is cut", "", gzipped(|| gzip("a 1\n".repeat(999))[..30].to_vec())),
        target("an unknown coding", "", bytes(coded("Content-Encoding: br\r\n", "\x0b\x02\x03"))),
        target(
            "a body that is shorter than announced",
            "",
            bytes("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nshort 1\n"),
        ),
        target(
            "a body that is longer than announced",
            "",
            bytes("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\nb 2\nHTTP/1.1 200 OK\r\n\r\n"),
        ),
        target(
            "two lengths",
            "",
            bytes("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 9\r\n\r\na 1\nb 2\n"),
        ),
        target(
            "a length of 2^64",
            "",
            bytes("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\na 1\n"),
        ),
        target(
            "a chunk of 2^63 bytes",
            "",
            bytes("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8000000000000000\r\na 1\n"),
        ),
        target(
            "a status of its own",
            "",
            bytes("HTTP/1.1 999 \x1b[2J\r\nContent-Length: 0\r\n\r\n"),
        ),
        target(
            "a refusal without end",
            SLOW,
            endless("HTTP/1.1 500 Oops\r\n\r\n", |_| "oops".into()),
        ),
    ]
}

fn redirects() -> Vec<Attack> {
    let address = peer().address;
    let to_other = format!("http://localhost:{}/stolen", address.port());
    vec![
        target("a redirect to itself", "", redirect("/a-redirect-to-itself")),
        target("a redirect to a file", "", redirect("file:///etc/passwd"))
            .with(|expect| expect.lacks("root:")),
        target("a redirect to another scheme", "", redirect("gopher://127.0.0.1:70/x")),
        target("a redirect to a port that is closed", "", redirect("http://127.0.0.1:1/")),
        target("a redirect with a line break", "", redirect("http://x/\u{b}\u{85}")),
        target(
            "a redirect to a long address",
            "",
            redirect(format!("http://x/{}", "y".repeat(9_000))),
        ),
        target("a redirect that hangs", "", redirect(format!("http://{}/", peer().silent))),
        stolen(to_other),
    ]
}

/// Credentials stay with the host of the configuration.
fn stolen(location: String) -> Attack {
    use std::sync::{Arc, Mutex};
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&heads);
    peer().serve("/stolen", move |stream, head| {
        use std::io::Write;
        recorded.lock().expect("no panic").push(head.to_owned());
        stream.write_all(&whole(METRICS, "stolen 1\n"))
    });
    let keys = "";
    target("a redirect to another host", keys, redirect(location)).with(move |expect| {
        expect.check(move |_, target| {
            super::collecting::is_unaffected(target)?;
            let heads = heads.lock().expect("no panic");
            match heads.iter().find(|head| head.to_ascii_lowercase().contains("\nauthorization")) {
                Some(head) => Err(format!("another host received credentials: {head:?}")),
                None => Ok(()),
            }
        })
    })
}

/// A body of text for each scrape.
fn text(make: impl Fn(usize) -> String + Send + Sync + 'static) -> Behaviour {
    made(move |number| whole(METRICS, make(number)))
}

/// Lines by number.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|n| line(n) + "\n").collect()
}

fn bodies() -> Vec<Attack> {
    let fresh = |count: usize| {
        text(move |number| lines(count, |n| format!("fresh{{a=\"{number}\",n=\"{n}\"}} {n}")))
    };
    let labels = |count: usize| {
        lines(1, |_| {
            let labels: Vec<String> = (0..count).map(|n| format!("l{n}=\"v\"")).collect();
            format!("many{{{}}} 1", labels.join(","))
        })
    };
    let long = |name: usize, value: usize| {
        format!("long{{{}=\"{}\"}} 1\n", "n".repeat(name), "v".repeat(value))
    };
    let lists = |number: usize| {
        lines(2_000, |n| {
            let labels: Vec<String> =
                (0..30).map(|l| format!("k{}=\"\u{e9}\"", (n * 31 + l * 7) % 997)).collect();
            let mut labels = labels;
            labels.sort();
            labels.dedup();
            format!("lists{{{},z=\"{number}-{n}\"}} 1", labels.join(","))
        })
    };
    let help = |number: usize| {
        lines(20_000, |n| {
            format!(
                "# HELP h{n} {}\n# TYPE h{n} gauge\nh{n} {number}",
                noise((number * 20_000 + n) as u64, 100)
            )
        })
    };
    vec![
        target("5,000 new series each time", "", fresh(5_000)),
        target("100,000 new series each time", SLOW, fresh(100_000)),
        target("1,000,000 new series each time", SLOW, fresh(1_000_000)),
        target("a sample limit and many series", "sample_limit: 10", fresh(50_000)),
        target("10,000 labels", "", text(move |_| labels(10_000))),
        target(
            "a label limit and many labels",
            "label_limit: 5",
            text(move |_| {
                format!(
                    "l{{{}}} 1\n",
                    (0..50_000).map(|n| format!("l{n}=\"\"")).collect::<Vec<_>>().join(",")
                )
            }),
        ),
        target("a name of 5 MB", SLOW, text(move |_| long(5_000_000, 1))),
        target("a value of 20 MB", SLOW, text(move |_| long(1, 20_000_000))),
        target("a metric name of 5 MB", SLOW, text(|_| format!("{} 1\n", "m".repeat(5_000_000)))),
        target(
            "500 values of 60 KB",
            SLOW,
            text(|number| {
                lines(500, |n| format!("v{{n=\"{number}-{n}\",v=\"{}\"}} 1", "v".repeat(60_000)))
            }),
        ),
        target("2,000 lists of names", "", text(lists)),
        target("a number of 10 MB", SLOW, text(|_| format!("n {}\n", "1".repeat(10_000_000)))),
        target(
            "100,000 samples of one series",
            SLOW,
            text(|_| lines(100_000, |n| format!("same {n}"))),
        ),
        target(
            "one series at 50,000 times",
            SLOW,
            text(|_| {
                let now = super::base_s() * 1_000;
                lines(50_000, |n| format!("times {n} {}", now - n as i64))
            }),
        ),
        target(
            "times at the ends of all numbers",
            "",
            text(|_| {
                let times =
                    [i64::MIN, i64::MIN + 1, -1, 0, 1, 1_700_000_000, i64::MAX - 1, i64::MAX];
                times.iter().map(|ts| format!("ends{{t=\"{ts}\"}} 1 {ts}\n")).collect()
            }),
        ),
        target("times beyond all numbers", "", text(|_| "t 1 99999999999999999999999\n".into())),
        target(
            "times a day and a year ahead",
            "",
            text(|_| {
                let now = super::base_s() * 1_000;
                format!("day 1 {}\nyear 1 {}\n", now + 86_400_000, now + 31_536_000_000)
            }),
        ),
        target("20,000 new texts of help each time", SLOW, text(help)),
        target(
            "a help of 20 MB",
            SLOW,
            text(|_| format!("# HELP h {}\nh 1\n", "h".repeat(20_000_000))),
        ),
        target(
            "1,000,000 comments",
            SLOW,
            text(|_| lines(1_000_000, |n| format!("# TYPE t{n} gauge"))),
        ),
        target(
            "the names of reports",
            "honor_labels: true",
            text(|number| {
                format!(
                    "up {number}\nup{{job=\"other\"}} 0\nscrape_samples_scraped NaN\n{{\"scrape_series_added\"}} 1\n"
                )
            }),
        ),
        target(
            "rules that multiply a label",
            "metric_relabel_configs:\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}\n\
            - {source_labels: [v, v, v, v, v, v, v, v], target_label: v}",
            text(|_| lines(100, |n| format!("grows{{n=\"{n}\",v=\"{}\"}} 1", "v".repeat(1_000)))),
        ),
        target(
            "names made of values",
            "metric_relabel_configs:\n\
            - {regex: '(.*)', action: labelmap, replacement: '$1$1$1$1$1$1$1$1'}",
            text(|number| {
                lines(500, |n| format!("m{{a{n}=\"{number}\",b=\"{}\"}} 1", "b".repeat(1_000)))
            }),
        ),
    ]
}

fn malformed() -> Vec<Attack> {
    let open = |body: &'static str| bytes(whole(OPENMETRICS, body));
    let plain = |body: &'static [u8]| bytes(whole(METRICS, body));
    vec![
        target("invalid UTF-8", "", plain(b"a{b=\"\xff\xfe\"} 1\n")),
        target("a zero byte", "", plain(b"a{b=\"\0\"} 1\n\0\n")),
        target("a line without an end", "", plain(b"a{b=\"")),
        target("escapes without an end", "", plain(b"a{b=\"\\")),
        target(
            "a forged line of the log",
            "",
            bytes(whole(METRICS, format!("a{{b=\"\n{}\"}} x\n\r\x1b[2J", crate::target::FORGED))),
        ),
        target("an empty name", "", plain(b"{} 1\n{\"\"} 1\n")),
        target("a label twice", "", plain(b"a{b=\"1\",b=\"2\"} 1\n")),
        target(
            "a name of a label that is a name",
            "",
            plain(b"{\"a\",__name__=\"b\",__name__=\"c\"} 1\n"),
        ),
        target(
            "exemplars without sense",
            "",
            open("# TYPE c counter\nc_total 1 # {a=\"b\"} 1e999999 NaN\n# EOF\n"),
        ),
        target(
            "an exemplar of 100 KB",
            "",
            bytes(whole(
                OPENMETRICS,
                format!(
                    "# TYPE c counter\nc_total 1 # {{a=\"{}\"}} 1\n# EOF\n",
                    "x".repeat(100_000)
                ),
            )),
        ),
        target("an exemplar without an end", "", open("# TYPE c counter\nc_total 1 # {a=\"")),
        target("no end of the body", "", open("# TYPE c counter\nc_total 1\n")),
        target("lines behind the end", "", open("# EOF\na 1\n# EOF\n")),
        target(
            "histograms without sense",
            "",
            open(
                "# TYPE h histogram\nh_bucket{le=\"x\"} 1\nh_bucket{le=\"\"} -1\nh_bucket 3\nh_sum NaN\n\
             h_count -5\n# TYPE h histogram\n# UNIT h \n# EOF\n",
            ),
        ),
        target(
            "created times without sense",
            "",
            open("# TYPE c counter\nc_total 1\nc_created -1e300\nc_created NaN\n# EOF\n"),
        ),
        target(
            "types that change",
            "",
            made(|number| {
                whole(
                    OPENMETRICS,
                    format!(
                        "# TYPE c {}\nc 1\n# EOF\n",
                        ["gauge", "counter", "histogram", "x"][number % 4]
                    ),
                )
            }),
        ),
        target(
            "a type that is long",
            "",
            bytes(coded(
                &format!("Content-Type: text/plain; version={}\r\n", "9".repeat(8_000)),
                "a 1\n",
            )),
        ),
        target("a type that is unknown", "", bytes(whole("image/png\"\x1b", "a 1\n"))),
        target("noise", "", made(|number| whole(METRICS, noise(number as u64, 1 << 20)))),
    ]
}

/// Accepts protobuf alone.
const PROTOBUF_KEYS: &str = "scrape_protocols: [PrometheusProto]\nscrape_native_histograms: true\n\
    always_scrape_classic_histograms: true";

/// A message with its length.
fn delimited(message: Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_varint(message.0.len() as u64, &mut bytes);
    bytes.extend(message.0);
    bytes
}

/// A family with metrics of a type.
fn metric_family(kind: u64, metrics: impl IntoIterator<Item = Message>) -> Message {
    let head = Message::default().bytes(1, "proto").bytes(2, "help").varint(3, kind);
    metrics.into_iter().fold(head, |family, metric| family.message(4, metric))
}

fn protobuf() -> Vec<Attack> {
    let serve = |body: Vec<u8>| bytes(whole(PROTOBUF, body));
    let hostile = |name: &'static str, body: Vec<u8>| target(name, PROTOBUF_KEYS, serve(body));
    let length = |value: u64| {
        let mut bytes = Vec::new();
        push_varint(value, &mut bytes);
        bytes
    };
    let label = |name: &str, value: &str| Message::default().bytes(1, name).bytes(2, value);
    let gauge = |value: f64| Message::default().message(2, Message::default().double(1, value));
    let span = |offset: u64, len: u64| Message::default().varint(1, offset).varint(2, len);
    let native = |spans: Vec<Message>| {
        let head =
            Message::default().varint(1, 5).double(2, 1.0).varint(5, 3).double(6, 0.1).varint(7, 1);
        let histogram = spans.into_iter().fold(head, |histogram, span| histogram.message(12, span));
        metric_family(4, [Message::default().message(7, histogram)])
    };
    let buckets = |count: u64| {
        let histogram = (0..count).fold(Message::default().varint(1, 1), |histogram, n| {
            histogram.message(3, Message::default().varint(1, n).double(2, n as f64))
        });
        metric_family(4, [Message::default().message(7, histogram)])
    };
    let deep =
        (0..10_000).fold(Message::default(), |inner, _| Message::default().message(4, inner));
    vec![
        hostile("a message of 2^63 bytes", length(1 << 63)),
        hostile("a message of 2^32 bytes", [length(1 << 32), vec![0; 100]].concat()),
        hostile("a length without an end", vec![0xff; 64]),
        hostile("a message that is cut", delimited(metric_family(1, [gauge(1.0)]))[..9].to_vec()),
        hostile(
            "a field of 2^31 bytes",
            [length(7), vec![0x0a], length(1 << 31), vec![0]].concat(),
        ),
        hostile("groups without an end", delimited(Message::default().raw([0x0b].repeat(10_000)))),
        hostile("10,000 levels", delimited(deep)),
        hostile("1,000,000 empty messages", vec![0; 1_000_000]),
        hostile(
            "1,000,000 empty metrics",
            delimited(
                Message::default().bytes(1, "e").varint(3, 1).raw([0x22, 0].repeat(1_000_000)),
            ),
        ),
        hostile(
            "a name that is no UTF-8",
            delimited(Message::default().bytes(1, b"\xff\xfe").varint(3, 1).message(4, gauge(1.0))),
        ),
        hostile(
            "labels without names",
            delimited(metric_family(
                1,
                [gauge(1.0)
                    .message(1, label("", "x"))
                    .message(1, label("a", "1"))
                    .message(1, label("a", "2"))],
            )),
        ),
        hostile("an unknown type", delimited(metric_family(1 << 40, [gauge(1.0)]))),
        hostile("a span of 2^32 buckets", delimited(native(vec![span(0, u64::from(u32::MAX))]))),
        hostile(
            "100,000 spans",
            delimited(native((0..100_000).map(|_| span(1 << 31, 1)).collect())),
        ),
        hostile("200,000 buckets", delimited(buckets(200_000))),
        hostile("noise as protobuf", noise(5, 1 << 20).into_bytes()),
    ]
}

const HANGING_COUNT: usize = 3_000;

fn hanging() -> Vec<Attack> {
    vec![
        many("3,000 targets that hang", HANGING_COUNT, peer().silent.to_string()),
        many("300 targets that hang", 300, peer().silent.to_string()),
        many("3,000 targets that are closed", HANGING_COUNT, "127.0.0.1:1".to_owned()),
        many("300 targets with endless bodies", 300, {
            // Made once: the targets leave the processor to the server.
            let series: String = (0..20_000).map(|n| format!("e{{n=\"{n}\"}} 1\n")).collect();
            peer().set("/endless", endless(HEAD, move |_| series.clone()));
            peer().address.to_string()
        }),
        attack("many readers of the targets", flood(50, 4, get("/api/v1/targets")), readers()),
        attack(
            "many readers of the metadata",
            flood(50, 4, get("/api/v1/targets/metadata")),
            readers(),
        ),
        attack(
            "deaf readers of the targets",
            crate::attack::deaf(40, 3, get("/api/v1/targets")),
            readers().or(crate::client::SILENT),
        ),
        attack(
            "parameters of the lists",
            script(odd_parameters),
            crate::attack::status([200, 400, 422]),
        ),
    ]
}

fn readers() -> Expect {
    unaffected()
}

fn odd_parameters(target: &Target) -> Vec<Answer> {
    let long = "x".repeat(8_000);
    let paths = [
        "/api/v1/targets?state=%00&scrapePool=%ff".to_owned(),
        format!("/api/v1/targets?scrapePool={long}"),
        format!("/api/v1/targets/metadata?metric={long}&limit=-1"),
        "/api/v1/targets/metadata?limit=99999999999999999999".to_owned(),
        "/api/v1/targets/metadata?match_target=%7Ba%3D~%22(x%7B1000%7D)%7B1000%7D%22%7D".to_owned(),
        format!("/api/v1/targets/metadata?match_target=%7B{}%3D%22%22%7D", "a".repeat(7_000)),
        "/api/v1/rules?type=x".to_owned(),
        "/api/v1/rules?group_limit=-1&group_next_token=%00".to_owned(),
        "/api/v1/rules?match[]=%7Ba%3D~%22(x%7B1000%7D)%7B1000%7D%22%7D".to_owned(),
        format!("/api/v1/rules?file[]={long}&rule_group[]={long}&rule_name[]={long}"),
    ];
    paths.iter().map(|path| get(path.as_str()).send(target)).collect()
}

/// Many targets at one address.
fn many(name: &'static str, count: usize, address: String) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        let groups: Vec<String> = (0..count)
            .map(|n| format!("{{targets: ['{address}'], labels: {{n: '{n}'}}}}"))
            .collect();
        let job = format!(
            "- job_name: hostile\n  metrics_path: /endless\n  scrape_interval: 2s\n  \
             scrape_timeout: 2s\n  basic_auth: {{username: '{path}', password: {SECRET}}}\n  \
             static_configs: [{}]\n",
            groups.join(",")
        );
        let mut answers = vec![reload(target, &job, "")];
        let is_scraped = || {
            let text = get("/api/v1/query?query=count(up{job=%22hostile%22})").send(target).text();
            text.contains(&format!("\"{count}\""))
        };
        wait_until(SERVED_TIME_MAX, is_scraped);
        answers.extend(state(target));
        // The next attack begins without them.
        answers.push(reload(target, "", ""));
        answers
    });
    attack(name, act, unaffected())
}
