use firn_model::protobuf::{push_bytes, push_fixed64, push_varint};
use firn_model::{Budget, Pool};
use proptest::prelude::*;

use super::*;
use crate::scrape::text::tests::{read, shared};
use crate::scrape::{Entry, ExposedLabels, Parser};

fn text_of(body: &[u8]) -> Result<(Vec<u8>, u64)> {
    let mut reservation = Budget::unlimited().empty(Pool::Requests);
    let mut held = Held { reservation: &mut reservation, bytes: 0 };
    let text = to_text(body, &mut held)?;
    assert!(reservation.bytes() >= text.0.len() as u64);
    Ok(text)
}

fn message(fields: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fields(&mut out);
    out
}

/// A family of one metric with the label `l="a\"b"`, behind its length.
fn body(name: &str, kind: u64, field: u32, content: &[u8]) -> Vec<u8> {
    let pair = message(|out| {
        push_bytes(1, b"l", out);
        push_bytes(2, b"a\"b", out);
    });
    let metric = message(|out| {
        push_bytes(1, &pair, out);
        push_bytes(field, content, out);
        push_varint(6, 5, out);
    });
    let family = message(|out| {
        push_bytes(1, name.as_bytes(), out);
        push_bytes(2, b"help\n", out);
        push_varint(3, kind, out);
        push_bytes(4, &metric, out);
    });
    let mut out = Vec::new();
    firn_model::encode_varint(family.len() as u64, &mut out);
    out.extend_from_slice(&family);
    out
}

/// The number of exemplars.
fn check(body: &[u8], want: &str) -> u64 {
    let (text, exemplar_count) = text_of(body).unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), want);
    exemplar_count
}

#[test]
fn a_family_becomes_lines() {
    let counter = message(|out| {
        push_fixed64(1, 1.5_f64.to_bits(), out);
        push_bytes(2, b"", out);
    });
    let exemplar_count = check(
        &body("a_total", 0, 3, &counter),
        "# HELP \"a_total\" help\\n\n# TYPE \"a_total\" counter\n{\"a_total\",\"l\"=\"a\\\"b\"} 1.5e0 5\n",
    );
    assert_eq!(exemplar_count, 1);
    let quantile = message(|out| {
        push_fixed64(1, 0.5_f64.to_bits(), out);
        push_fixed64(2, f64::NAN.to_bits(), out);
    });
    let summary = message(|out| {
        push_varint(1, 7, out);
        push_fixed64(2, 1e300_f64.to_bits(), out);
        push_bytes(3, &quantile, out);
    });
    check(
        &body("s", 2, 4, &summary),
        "# HELP \"s\" help\\n\n# TYPE \"s\" summary\n{\"s_count\",\"l\"=\"a\\\"b\"} 7 5\n\
         {\"s_sum\",\"l\"=\"a\\\"b\"} 1e300 5\n{\"s\",\"l\"=\"a\\\"b\",\"quantile\"=\"0.5\"} NaN 5\n",
    );
}

/// With `scrape_native_histograms` nothing was left of a histogram with classic and native buckets.
#[test]
fn classic_parts_of_native_histograms_are_read_and_get_their_last_bucket() {
    let bucket = message(|out| {
        push_varint(1, 3, out);
        push_fixed64(2, 1.0_f64.to_bits(), out);
    });
    let histogram = |is_classic: bool, is_native: bool| {
        message(|out| {
            push_varint(1, 4, out);
            if is_classic {
                push_bytes(3, &bucket, out);
            }
            if is_native {
                push_fixed64(6, 1e-3_f64.to_bits(), out);
                push_varint(7, 1, out);
                push_bytes(12, b"", out);
            }
        })
    };
    let head = "# HELP \"h\" help\\n\n# TYPE \"h\" histogram\n\
                {\"h_count\",\"l\"=\"a\\\"b\"} 4 5\n{\"h_sum\",\"l\"=\"a\\\"b\"} 0 5\n";
    let bucket_line = "{\"h_bucket\",\"l\"=\"a\\\"b\",\"le\"=\"1.0\"} 3 5\n";
    let last = "{\"h_bucket\",\"l\"=\"a\\\"b\",\"le\"=\"+Inf\"} 4 5\n";
    for is_native in [false, true] {
        let both = format!("{head}{bucket_line}{last}");
        check(&body("h", 4, 7, &histogram(true, is_native)), &both);
        check(&body("h", 4, 7, &histogram(false, is_native)), &format!("{head}{last}"));
    }
}

#[test]
fn messages_that_prometheus_refuses_are_refused() {
    let value = message(|out| push_fixed64(1, 0, out));
    assert!(text_of(&body("", 1, 2, &value)).is_err());
    assert!(text_of(&body("a", 6, 2, &value)).is_err());
    let mut cut = body("a", 1, 2, &value);
    cut.pop();
    assert!(text_of(&cut).is_err());
}

#[test]
fn labels_repeated_by_buckets_are_bounded() {
    let histogram = message(|out| {
        for _ in 0..60_000 {
            push_bytes(3, b"", out);
        }
    });
    let mut body = body("h", 4, 7, &histogram);
    assert!(text_of(&body).is_ok());
    body = self::body(&"h".repeat(20_000), 4, 7, &histogram);
    assert!(text_of(&body).unwrap_err().to_string().contains("over"));
}

#[test]
fn shared_bodies_are_read_as_their_text_forms() {
    let Some(folder) = shared("exposition") else { return };
    for case in ["protobuf", "protobuf-multimessage"] {
        let body = read(folder.join("protobuf").join(case)).unwrap();
        let (text, _) = text_of(&body).unwrap();
        let mut parser = Parser::of_protobuf(&text, ExposedLabels::default());
        let mut count = 0;
        while let Some(entry) = parser.next(|_| 0).unwrap() {
            count += usize::from(matches!(entry, Entry::Sample(_)));
        }
        assert!(count > 3, "{case}: {count} samples");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        small in proptest::collection::vec(0..30_u8, 0..200),
    ) {
        for body in [bytes, small] {
            if let Ok((text, _)) = text_of(&body) {
                let mut parser = Parser::of_protobuf(&text, ExposedLabels::default());
                while let Ok(Some(_)) = parser.next(|_| 0) {}
            }
        }
    }

    #[test]
    fn numbers_survive(bits: u64) {
        let value = f64::from_bits(bits);
        let gauge = message(|out| push_fixed64(1, bits, out));
        let (text, _) = text_of(&body("a", 1, 2, &gauge)).unwrap();
        let mut parser = Parser::of_protobuf(&text, ExposedLabels::default());
        let mut read = None;
        while let Some(entry) = parser.next(|_| 0).unwrap() {
            if let Entry::Sample(line) = entry {
                read = Some(line.value);
            }
        }
        let read = read.unwrap();
        prop_assert!(read.to_bits() == bits || read.is_nan() && value.is_nan());
    }
}
