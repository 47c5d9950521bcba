use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

type Sample = (Vec<(String, String)>, f64, Option<Timestamp>);
type ExpectedSample<'a> = (&'a [(&'a str, &'a str)], f64, Option<Timestamp>);

fn samples(text: &[u8], open_metrics: bool) -> Result<Vec<Sample>> {
    let mut parser = Parser::new(text, open_metrics, ExposedLabels::default());
    let mut samples = Vec::new();
    while let Some(entry) = parser.next(|_| 0)? {
        if let Entry::Sample(line) = entry {
            let pairs = parser.labels().iter();
            let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            samples.push((pairs, line.value, line.ts));
        }
    }
    Ok(samples)
}

fn items(text: &str, open_metrics: bool) -> Result<Vec<(String, MetadataItem<'_>)>> {
    let mut parser = Parser::new(text.as_bytes(), open_metrics, ExposedLabels::default());
    let mut items = Vec::new();
    while let Some(entry) = parser.next(|_| 0)? {
        if let Entry::Metadata(name, item) = entry {
            items.push((name.into_owned(), item));
        }
    }
    Ok(items)
}

fn check(text: &str, open_metrics: bool, want: &[ExpectedSample<'_>]) {
    let got = samples(text.as_bytes(), open_metrics).unwrap();
    assert_eq!(got.len(), want.len(), "{text}");
    for (got, want) in got.iter().zip(want) {
        let pairs: Vec<_> = got.0.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(pairs, want.0, "{text}");
        assert_eq!(got.1.to_bits(), want.1.to_bits(), "{text}");
        assert_eq!(got.2, want.2, "{text}");
    }
}

#[test]
fn lines_of_the_prometheus_format() {
    let f = |text: &str, want: &[ExpectedSample<'_>]| {
        check(text, false, want);
    };
    f("a 1\n", &[(&[("__name__", "a")], 1.0, None)]);
    f(" a\t1  -5", &[(&[("__name__", "a")], 1.0, Some(-5))]);
    f("a{b=\"c\",}2 3\n", &[(&[("__name__", "a"), ("b", "c")], 2.0, Some(3))]);
    f("a{b=\"1\"c=\"2\"} 1", &[(&[("__name__", "a"), ("b", "1"), ("c", "2")], 1.0, None)]);
    f("{b=\"1\",\"a b\"} 1", &[(&[("b", "1"), ("__name__", "a b")], 1.0, None)]);
    f("a{\"x.y\"=\"\"} 1", &[(&[("__name__", "a"), ("x.y", "")], 1.0, None)]);
    f(
        "a{b=\"\\\"\\\\\\n\\t\0\n\"} 1",
        &[(&[("__name__", "a"), ("b", "\"\\\n\\t\0\n")], 1.0, None)],
    );
    for bad in [
        "a",
        "a ",
        "a{",
        "a{b} 1",
        "a{b=} 1",
        "a{b=\"} 1",
        "a{b=c} 1",
        "{} 1",
        "{b=\"c\"} 1",
        "a{\"b\"} 1",
        "a{,} 1",
        "a{b=\"c\",,} 1",
        "a{1=\"c\"} 1",
        "a{b=\"c\"} 1 2 3",
        "a 1 1.5",
        "a 1 # {} 1",
        "a 1\r\n",
        "1a 1",
        "a x",
        "a 0x1",
        "a\0 1",
        "a 1 1\0",
        "a{\"b\0\"=\"c\"} 1",
        "a{\"\"=\"c\"} 1",
        "# TYPE a unknown",
        "# TYPE a",
        "# TYPE a  gauge",
        "# HELP 1 x",
        "a{'b'=\"c\"} 1",
    ] {
        assert!(samples(bad.as_bytes(), false).is_err(), "{bad:?}");
    }
    assert!(samples(b"a{b=\"\xff\"} 1", false).is_err());
    assert!(samples(b"# x \xff\n#\n# HELPx\n", false).is_ok());
}

#[test]
fn lines_of_open_metrics() {
    let f = |text: &str, want: &[ExpectedSample<'_>]| {
        check(&format!("{text}\n# EOF\n"), true, want);
    };
    f("a 1", &[(&[("__name__", "a")], 1.0, None)]);
    f("a 1 1.5", &[(&[("__name__", "a")], 1.0, Some(1_500))]);
    f("a 1 -0.5 # {x=\"y\"} 1 2.5", &[(&[("__name__", "a")], 1.0, Some(-500))]);
    f(
        "{\"a b\",c=\"d\"} +Inf # {} 1",
        &[(&[("__name__", "a b"), ("c", "d")], f64::INFINITY, None)],
    );
    for bad in [
        "",
        " a 1",
        "a  1",
        "a 1 ",
        "a{b=\"1\" } 1",
        "a{b=\"1\"c=\"2\"} 1",
        "a 1 1 1",
        "a 1 NaN",
        "a 1 #{} 1",
        "a 1 # {}",
        "a 1 # {\"x\"=\"y\"} 1",
        "a 1 # {x=\"y\"} 1 1 1",
        "# comment",
        "# TYPE a untyped",
        "# UNIT a b",
        "# HELP a",
        "a{b=\"\n\"} 1",
        "# EOF",
        "a 1\r",
    ] {
        let text = format!("{bad}\n# EOF\n");
        assert!(samples(text.as_bytes(), true).is_err(), "{bad:?}");
    }
    assert!(samples(b"a 1\n# EOF", true).is_ok());
    for bad in ["", "a 1", "a 1\n", "a 1\n# EOF\n\n", "a 1\n# EOFx", "# EOF\na 1\n"] {
        assert!(samples(bad.as_bytes(), true).is_err(), "{bad:?}");
    }
}

#[test]
fn metadata_is_returned_in_order() {
    let text =
        "# HELP a one\\n\\\\ \\\"x\\\"\n# TYPE a counter\n# HELP b\n# TYPE \"c d\" untyped\n";
    assert_eq!(
        items(text, false).unwrap(),
        [
            ("a".to_owned(), MetadataItem::Help("one\n\\ \\\"x\\\"".into())),
            ("a".to_owned(), MetadataItem::Type(MetricType::Counter)),
            ("b".to_owned(), MetadataItem::Help("".into())),
            ("c d".to_owned(), MetadataItem::Type(MetricType::Unknown)),
        ]
    );
    let text = "# HELP a_s \\\"\n# TYPE a_s info\n# UNIT a_s s\n# UNIT b \n# EOF\n";
    assert_eq!(
        items(text, true).unwrap(),
        [
            ("a_s".to_owned(), MetadataItem::Help("\"".into())),
            ("a_s".to_owned(), MetadataItem::Type(MetricType::Info)),
            ("a_s".to_owned(), MetadataItem::Unit("s".into())),
            ("b".to_owned(), MetadataItem::Unit("".into())),
        ]
    );
}

/// Prometheus 3 rewrites `le` and `quantile` by the last `TYPE` line, whatever its name.
#[test]
fn bounds_of_histograms_and_summaries_are_normalised() {
    let f = |kind: &str, label: &str, value: &str, want: &str| {
        let text = format!("# TYPE x {kind}\na{{{label}=\"{value}\"}} 1\n");
        let got = samples(text.as_bytes(), false).unwrap();
        assert_eq!(got[0].0[1], (label.to_owned(), want.to_owned()), "{text}");
    };
    f("histogram", "le", "1", "1.0");
    f("histogram", "le", "+Inf", "+Inf");
    f("histogram", "le", "1000000", "1e+06");
    f("histogram", "le", "bla", "bla");
    f("histogram", "quantile", "1", "1");
    f("summary", "quantile", "0.50", "0.5");
    f("summary", "le", "1", "1");
    f("gauge", "le", "1", "1");
}

/// The lists record for each case whether the scrape parser of Prometheus 3.15.0 accepts it.
#[test]
fn shared_cases_are_accepted_exactly_when_prometheus_accepts_them() {
    let Some(folder) = shared("exposition") else { return };
    for (format, open_metrics) in [("text", false), ("openmetrics", true)] {
        let folder = folder.join(format);
        let accepts = read(folder.join("prometheus-accepts.json")).unwrap();
        let accepts: BTreeMap<String, bool> = serde_json::from_slice(&accepts).unwrap();
        assert!(accepts.len() > 15);
        for (case, accepted) in accepts {
            let text = read(folder.join(format!("{case}.txt"))).unwrap();
            let got = samples(&text, open_metrics);
            assert_eq!(got.is_ok(), accepted, "{format}/{case}: {got:?}");
        }
    }
    for (sample, open_metrics, count) in [
        ("metrics-test.prom", false, 25),
        ("alltypes.237mfs.prom.txt", false, 1_000),
        ("alltypes.5mfs.om.txt", true, 20),
        ("1histogram.om.txt", true, 10),
    ] {
        let text = read(folder.join("samples").join(sample)).unwrap();
        let found = samples(&text, open_metrics).unwrap();
        assert!(found.len() > count, "{sample}: {} samples", found.len());
    }
}

#[expect(clippy::disallowed_methods, reason = "a test reads its cases")]
pub(in crate::scrape) fn read(path: PathBuf) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

/// A folder of the material that all of the project's repositories share, beside this one.
pub(in crate::scrape) fn shared(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("FIRN_REQUIRE_SHARED").is_none_or(|value| value != "1"),
        "{} is missing and FIRN_REQUIRE_SHARED=1",
        folder.display()
    );
    eprintln!("skipped: {} is missing", folder.display());
    None
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        text in proptest::collection::vec(any::<u8>(), 0..200),
        open_metrics: bool,
    ) {
        let _ = samples(&text, open_metrics);
    }

    /// Bytes that are mostly syntax get further than random ones.
    #[test]
    fn any_syntax_is_survived(
        text in r#"([a-b{}"\\\n#=, 0-2]|# HELP a|# TYPE a|# EOF|é|\+|-|\.){0,40}"#,
        open_metrics: bool,
    ) {
        let _ = samples(text.as_bytes(), open_metrics);
    }
}

// A label of 20 MB was copied four times before its length was checked, and the buffer stayed as
// long as the target.
#[test]
fn labels_of_a_series_are_bounded() {
    let long = "x".repeat(LABELS_BYTES_MAX);
    for text in [
        format!("a{{b=\"{long}y\"}} 1\n"),
        format!("a{{b=\"\\n{long}\"}} 1\n"),
        format!("a{{b=\"{long}\"}} 1\n"),
        format!("{long} 1\n"),
        format!("a{{{long}=\"b\"}} 1\n"),
        format!("a{{{}}} 1\n", "b=\"12345678\",".repeat(LABELS_BYTES_MAX / 9)),
    ] {
        let error = samples(text.as_bytes(), false).unwrap_err().to_string();
        assert!(error.contains("over 1048576 bytes") && error.len() < 500, "{error}");
    }
    let text = format!("a{{b=\"{}\"}} 1\n", "x".repeat(LABELS_BYTES_MAX / 2));
    let mut parser = Parser::new(text.as_bytes(), false, ExposedLabels::default());
    assert!(parser.next(|_| 0).unwrap().is_some());
    let mut labels = parser.into_labels();
    assert!(labels.heap_bytes() > LABELS_BYTES_MAX / 2);
    labels.shrink_to(1_000);
    assert!(labels.heap_bytes() <= 2_000);
}
