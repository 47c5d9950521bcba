//! Tests of the text format: our own lines, the shared cases, and no panic on any bytes.

use std::path::Path;

use firn_model::{LabelLimits, Labels};
use proptest::prelude::*;

use super::*;

/// Decodes as an import does, labels included; duplicates count as an error of the scrape.
fn import(text: &[u8], extra: &ExtraLabels) -> Result<Vec<(Labels, Sample)>> {
    let mut decoded = Decoded::default();
    decoded.clear(1 << 30);
    decode(text, 7, 0, &SpanHasher::random(), &mut decoded)?;
    let mut builder = LabelsBuilder::default();
    let mut found = Vec::new();
    for (series, samples) in decoded.iter() {
        labels(text, series.span(), extra, &mut builder).map_err(|fault| match fault {
            LabelFault::Malformed(error) | LabelFault::Refused(error) => error,
        })?;
        let limits = LabelLimits { value_bytes_max: usize::MAX, ..LabelLimits::default() };
        let labels = builder.build(&limits)?;
        found.extend(samples.iter().map(|sample| (labels.clone(), *sample)));
    }
    Ok(found)
}

fn check(text: &str, want: &[(&str, i64, f64)]) {
    let found = import(text.as_bytes(), &ExtraLabels::default()).unwrap();
    let found: Vec<_> = found.iter().map(|(l, s)| (l.to_string(), s.ts, s.value)).collect();
    let want: Vec<_> = want.iter().map(|(l, ts, v)| ((*l).to_owned(), *ts, *v)).collect();
    assert_eq!(found, want, "{text:?}");
}

fn check_error(text: &str, wanted: &str) {
    let error = import(text.as_bytes(), &ExtraLabels::default()).unwrap_err().to_string();
    assert!(error.contains(wanted), "{text:?}: {error}");
}

#[test]
fn lines_are_read_as_prometheus_reads_them() {
    check("a 1", &[("a", 7, 1.0)]);
    check("a 1 5\nb{} 2 -6\n", &[("a", 5, 1.0), ("b", -6, 2.0)]);
    check(
        "\n \t\n  a\t{ x = \"1\" , y=\"2\", } \t +Inf  9 \n",
        &[(r#"a{x="1",y="2"}"#, 9, f64::INFINITY)],
    );
    check(r#"a{x="b\\c\"d\ne\tf"} 1"#, &[(r#"a{x="b\\c\"d\ne\\tf"}"#, 7, 1.0)]);
    check("a{x=\"two\nlines}\"} 1\nb 2", &[("a{x=\"two\\nlines}\"}", 7, 1.0), ("b", 7, 2.0)]);
    check(r#"{"my.metric","a b"="c"} 1"#, &[(r#"{"my.metric","a b"="c"}"#, 7, 1.0)]);
    check(r#"{x="1","m"} 1"#, &[(r#"m{x="1"}"#, 7, 1.0)]);
    check("a{x=\"\"} 1", &[("a", 7, 1.0)]);
    check("a{x=\"1\" y=\"2\"}3", &[(r#"a{x="1",y="2"}"#, 7, 3.0)]);
    check("# anything { goes \n#\n#a\na_1:b 1e3", &[("a_1:b", 7, 1000.0)]);
}

#[test]
fn mistakes_are_reported_with_their_line() {
    check_error("a 1\n\nb", "line 3: expected a value");
    check_error("a 1\n2b 1", "line 2: expected a metric name, got \"2b 1\"");
    check_error("a{x=\"1\" 1", "line 1: expected a label name or `}`, got \"1\"");
    check_error("a{x=\"1} 1", "a quoted text is not closed");
    check_error("a{x='1'} 1", "expected a label value in quotes");
    check_error("a{x} 1", "line 1: label \"x\" has no `=`");
    check_error("a{1x=\"1\"} 1", "expected a label name");
    check_error("a{\"\"=\"1\"} 1", "a label has an empty name");
    check_error("a{\"b\"} 1", "the metric's name is repeated");
    check_error("{x=\"1\"} 1", "no metric name");
    check_error("{} 1", "no metric name");
    check_error("a 1_000", "\"1_000\" is not a value");
    check_error("a 0x1p3", "is not a value");
    check_error("a 1 2.5", "\"2.5\" is not a timestamp");
    check_error("a 1 2 3", "expected the end of the line, got \"3\"");
    check_error("a 1 2 # {x=\"1\"} 1", "expected the end of the line");
    check_error("a 1\r\n", "is not a value");
    check_error("# TYPE a unknown\n", "line 1: invalid metric type \"unknown\"");
    check_error("# HELP \n", "expected a metric name after # HELP, got the end of the line");
    check_error("a{x=\"1\",x=\"2\"} 1", "is repeated");
    let error = import(b"b 1\na{x=\"\xff\"} 1", &ExtraLabels::default()).unwrap_err();
    assert!(error.to_string().starts_with("line 2: a label value is not UTF-8"), "{error}");
}

#[test]
fn extra_labels_replace_and_change_the_key() {
    let hasher = SpanHasher::random();
    let extra = ExtraLabels(vec![("x".to_owned(), "9".to_owned())]);
    let found = import(b"a{x=\"1\",y=\"2\"} 1", &extra).unwrap();
    assert_eq!(found[0].0.to_string(), r#"a{x="9",y="2"}"#);
    assert_ne!(extra.key(&hasher), ExtraLabels::default().key(&hasher));
}

#[test]
fn types_and_help_become_metadata() {
    let text = "# HELP a one\\n\\\\ \"two\" \n# TYPE a counter\n# TYPE b gauge\n# HELP \"c.d\"\n";
    let mut decoded = Decoded::default();
    decoded.clear(1 << 20);
    decode(text.as_bytes(), 0, 0, &SpanHasher::random(), &mut decoded).unwrap();
    let f = |name: &str, kind, help| (Box::from(name), Metadata::new(kind, help, ""));
    assert_eq!(
        decoded.metadata.entries(),
        [
            f("a", MetricType::Counter, "one\n\\ \"two\" "),
            f("b", MetricType::Gauge, ""),
            f("c.d", MetricType::Unknown, ""),
        ]
    );
}

/// `text/prometheus-accepts.json` records for each case whether the scrape parser of Prometheus
/// 3.15.0 accepts it. Every accepted text can be imported. The parser alone does not detect
/// repeated label names, so a repeat counts as accepted here.
#[test]
fn shared_cases_are_accepted_exactly_when_prometheus_accepts_them() {
    let Some(folder) = shared("exposition") else { return };
    let accepts = std::fs::read(folder.join("text/prometheus-accepts.json")).unwrap();
    let accepts: std::collections::BTreeMap<String, bool> =
        serde_json::from_slice(&accepts).unwrap();
    assert!(accepts.len() > 15);
    for (case, accepted) in accepts {
        let text = std::fs::read(folder.join(format!("text/{case}.txt"))).unwrap();
        let got = match import(&text, &ExtraLabels::default()) {
            Err(error) if error.to_string().contains("is repeated") => Ok(()),
            other => other.map(drop),
        };
        assert_eq!(got.is_ok(), accepted, "{case}: {got:?}");
    }
    for sample in ["metrics-test.prom", "alltypes.237mfs.prom.txt"] {
        let text = std::fs::read(folder.join("samples").join(sample)).unwrap();
        let found = import(&text, &ExtraLabels::default()).unwrap();
        assert!(found.len() > 25, "{sample}: {} samples", found.len());
    }
}

/// A folder of the material that all of the project's repositories share, beside this one.
fn shared(name: &str) -> Option<std::path::PathBuf> {
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
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = import(&text, &ExtraLabels::default());
    }

    /// Bytes that are mostly syntax get further than random ones.
    #[test]
    fn any_syntax_is_survived(text in r#"([a-b{}"\\\n#=, 0-2]|HELP|TYPE|é|\+|-|\.){0,40}"#) {
        let _ = import(text.as_bytes(), &ExtraLabels::default());
    }

    #[test]
    fn written_values_are_read(
        name in "[a-z_:][a-z0-9_:]{0,8}",
        value in "\\PC{0,12}",
        ts in any::<i64>(),
        bits in any::<u64>(),
    ) {
        let number = f64::from_bits(bits);
        let mut line = name.clone().into_bytes();
        let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        line.extend_from_slice(format!("{{l=\"{escaped}\"}} ").as_bytes());
        crate::wire::number::push_float(number, &mut line);
        line.extend_from_slice(format!(" {ts}\n").as_bytes());
        let found = import(&line, &ExtraLabels::default()).unwrap();
        let wanted = Labels::from_pairs([("__name__", name.as_str()), ("l", value.as_str())]).unwrap();
        prop_assert_eq!(&found[0].0, &wanted);
        prop_assert_eq!(found[0].1.ts, ts);
        let got = found[0].1.value;
        prop_assert!(got.to_bits() == number.to_bits() || (got.is_nan() && number.is_nan()));
    }
}
