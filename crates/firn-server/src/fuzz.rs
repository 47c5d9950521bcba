//! The checks that the fuzzers in `fuzz/` run on their input: one function for each decoder of
//! bytes from outside. They are here because the decoders are private, and because a test runs
//! them on the corpus without a fuzzer.
//!
//! A check panics if its decoder breaks a promise. The fuzzers also bound the memory of each call
//! by the length of its input. Compiled for tests and fuzzers only.

use axum::http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use firn_collect::scrape::parse_value;
use firn_model::{
    Budget, Error, ErrorKind, LabelLimits, LabelsBuilder, Pool, QueryContext, Result,
};

use crate::access::WebConfig;
use crate::access::login::Credentials;
use crate::answer::Packing;
use crate::http::body::{HeldBytes, Packed};
use crate::http::params::Params;
use crate::net::HEADERS_MAX;
use crate::wire::decoded::{Decoded, SpanHasher};
use crate::wire::exposition::{self, ExtraLabels};
use crate::wire::federation::FederationFormat;
use crate::wire::groups::{GroupEncoding, GroupsRequest};
use crate::wire::number;
use crate::wire::tree::push_tree;
use crate::wire::xor_chunk::{self, XorChunk};
use crate::wire::{LabelFault, remote_read, remote_write as write_1, transaction as transactions};

pub use crate::cache_server::fuzz::cache_protocol;
pub use crate::config::fuzz::config_file;
pub use crate::proxy::fuzz::{influx_answer, prometheus_answer, proxy_query};

/// Bytes of a request that a decoder may announce beside a multiple of the body's length.
const BASE_BYTES: usize = 64 << 10;
/// A message repeats at most this much of the input.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Panics if its decoder breaks a promise.
#[cfg(test)]
type Check = fn(&[u8]);

/// Every check of this module by the name of its fuzzer.
#[cfg(test)]
const CHECKS: [(&str, Check); 19] = [
    ("cache_protocol", cache_protocol),
    ("compression", compression),
    ("config_file", config_file),
    ("exposition", exposition),
    ("groups_json", groups_json),
    ("groups_protobuf", groups_protobuf),
    ("headers", headers),
    ("influx_answer", influx_answer),
    ("language", language),
    ("numbers", numbers),
    ("parameters", parameters),
    ("prometheus_answer", prometheus_answer),
    ("proxy_query", proxy_query),
    ("remote_read", remote_read),
    ("remote_write", remote_write),
    ("selector", selector),
    ("transaction", transaction),
    ("web_config", web_config),
    ("xor_chunk", xor_chunk),
];

/// A decompressed body of remote write 1.0: located series are in the body and in order, and the
/// labels of each can be parsed.
pub fn remote_write(data: &[u8]) {
    let mut decoded = Decoded::default();
    decoded.clear(data.len().saturating_mul(4).max(BASE_BYTES));
    if let Err(error) = write_1::decode(data, &SpanHasher::random(), &mut decoded) {
        return check_error(&error);
    }
    let mut builder = LabelsBuilder::default();
    check_series(&decoded, data.len(), |span| {
        write_1::labels(data.get(span).unwrap_or_default(), &mut builder)?;
        builder.build(&LabelLimits::default()).map(drop).map_err(LabelFault::Refused)
    });
}

/// A text exposition.
pub fn exposition(data: &[u8]) {
    let mut decoded = Decoded::default();
    decoded.clear(data.len().saturating_mul(12).max(BASE_BYTES));
    let extra = ExtraLabels(vec![("job".to_owned(), "fuzz".to_owned())]);
    let hasher = SpanHasher::random();
    if let Err(error) = exposition::decode(data, 0, extra.key(&hasher), &hasher, &mut decoded) {
        return check_error(&error);
    }
    let mut builder = LabelsBuilder::default();
    check_series(&decoded, data.len(), |span| {
        exposition::labels(data, span, &extra, &mut builder)?;
        builder.build(&LabelLimits::default()).map(drop).map_err(LabelFault::Malformed)
    });
}

fn check_series(
    decoded: &Decoded,
    body_bytes: usize,
    mut parse: impl FnMut(std::ops::Range<usize>) -> Result<(), LabelFault>,
) {
    let mut sample_count = 0;
    for (series, samples) in decoded.iter() {
        let span = series.span();
        assert!(span.start <= span.end && span.end <= body_bytes, "{span:?}");
        sample_count += samples.len();
        match parse(span) {
            Ok(()) => {}
            Err(LabelFault::Refused(error)) => check_error(&error),
            // The whole request is refused.
            Err(LabelFault::Malformed(error)) => return check_error(&error),
        }
    }
    assert!(sample_count <= decoded.samples.len());
}

/// The group API in JSON.
pub fn groups_json(data: &[u8]) {
    groups(GroupEncoding::Json, data);
}

/// The group API in protobuf.
pub fn groups_protobuf(data: &[u8]) {
    groups(GroupEncoding::Protobuf, data);
}

/// Every value has a column, and each column at most one value in a row.
fn groups(form: GroupEncoding, data: &[u8]) {
    let budget = Budget::new((BASE_BYTES + data.len() * 100) as u64);
    let held = budget.empty(Pool::Requests);
    let request = match GroupsRequest::decode(form, data, &LabelLimits::default(), held) {
        Ok(request) => request,
        Err(error) => return check_error(&error),
    };
    let mut value_count = 0;
    for group in &request.groups {
        let column_count = group.columns.count();
        for (_, cells) in request.rows_of(group) {
            let mut columns: Vec<u32> = cells.iter().map(|cell| cell.column).collect();
            columns.sort_unstable();
            assert!(columns.is_sorted_by(|a, b| a < b), "a column has two values");
            assert!(columns.last().is_none_or(|&last| (last as usize) < column_count));
            value_count += cells.len() as u64;
        }
    }
    assert_eq!(value_count, request.value_count());
}

/// A decompressed remote read request.
pub fn remote_read(data: &[u8]) {
    let mut held = Budget::unlimited().empty(Pool::Query);
    match remote_read::decode(data, &mut held) {
        Ok(request) => {
            let context = QueryContext::unbounded();
            for query in request.queries {
                for matcher in &query.matchers {
                    let _ = matcher.compile(&context).map(|()| matcher.matches("up"));
                }
            }
        }
        Err(error) => check_error(&error),
    }
}

/// Snappy blocks and gzip bodies: the first byte selects. An unpacked body stays within its limit,
/// and a body that was packed here is restored.
pub fn compression(data: &[u8]) {
    const UNPACKED_BYTES_MAX: usize = 256 << 10;
    let Some((&kind, data)) = data.split_first() else { return };
    let budget = Budget::new(2 << 20);
    let held = |bytes: &[u8]| {
        let mut held = HeldBytes::empty(&budget, Pool::Requests);
        held.push(bytes).expect("inputs are shorter than the budget");
        held
    };
    let packed = if kind & 1 == 0 { Packed::Snappy } else { Packed::Gzip };
    let unpack = |bytes: &[u8]| held(bytes).unpack(packed, UNPACKED_BYTES_MAX, &budget);
    if kind & 2 == 0 || data.len() > UNPACKED_BYTES_MAX {
        return match unpack(data) {
            Ok(unpacked) => assert!(unpacked.bytes.len() <= UNPACKED_BYTES_MAX),
            Err(error) => check_error(&error),
        };
    }
    let packed = match kind & 1 {
        0 => snap::raw::Encoder::new().compress_vec(data).expect("inputs are under 4 GiB"),
        _ => {
            let fast = flate2::Compression::fast();
            let mut packed = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzEncoder::new(data, fast), &mut packed)
                .expect("memory does not fail");
            packed
        }
    };
    assert_eq!(unpack(&packed).expect("packed here").bytes, data);
}

/// Parameters of a URL or a form, and each reader of a parameter.
pub fn parameters(data: &[u8]) {
    let params = match Params::of_form(data) {
        Ok(params) => params,
        Err(error) => return check_message(&error.text),
    };
    for error in [
        params.time("start").err(),
        params.required_time("time").err(),
        params.duration_ns("step").err(),
        params.range().err(),
        params.limit().err(),
    ] {
        error.iter().for_each(|error| check_message(&error.text));
    }
    assert!(params.all("a").map(str::len).sum::<usize>() <= data.len());
}

/// The value of `match[]`, matched against a few values.
pub fn selector(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match firn_promql::parse_selector(text, &QueryContext::unbounded()) {
        Ok(matchers) => {
            for value in ["", "up", "node_cpu_seconds_total", "\n", "é", text] {
                let _ = matchers.iter().all(|matcher| matcher.matches(value));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A query and the forms in which the API returns it.
pub fn language(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match firn_promql::parse(text) {
        Ok(expr) => {
            let mut tree = Vec::new();
            push_tree(&expr.root, &mut tree);
            assert!(tree.len() <= 256 * text.len(), "{} bytes of JSON", tree.len());
            serde_json::from_slice::<serde::de::IgnoredAny>(&tree)
                .unwrap_or_else(|error| panic!("{text:?} has a tree that is not JSON: {error}"));
            let pretty = expr.pretty().to_string();
            firn_promql::parse(&pretty)
                .unwrap_or_else(|error| panic!("{text:?} is printed as {pretty:?}: {error}"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Operations of a transaction.
pub fn transaction(data: &[u8]) {
    let mut held = Budget::unlimited().empty(Pool::Requests);
    if let Err(error) = transactions::decode(data, &LabelLimits::default(), &mut held) {
        check_error(&error);
    }
}

/// Numbers, times and durations: a parsed value is written as text that parses to the same value.
pub fn numbers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(value) = parse_value(data) {
        let mut written = Vec::new();
        number::push_float(value, &mut written);
        let written = String::from_utf8(written).expect("a number is ASCII");
        let again = parse_value(written.as_bytes()).expect("a written number is a number");
        assert!(again.to_bits() == value.to_bits() || value.is_nan(), "{text:?}, {written:?}");
    }
    match number::parse_time(text) {
        Ok(ts) if ts.unsigned_abs() < 1 << 46 => {
            let mut written = Vec::new();
            number::push_time(ts, &mut written);
            let written = String::from_utf8(written).expect("a time is ASCII");
            assert_eq!(number::parse_time(&written).ok(), Some(ts), "{text:?}, {written:?}");
            // From the year 0 to 9999.
            if (-62_167_219_200_000..253_402_300_800_000).contains(&ts) {
                let written = number::rfc3339(ts);
                assert_eq!(number::parse_time(&written).ok(), Some(ts), "{text:?}, {written:?}");
            }
        }
        Ok(_) => {}
        Err(error) => check_error(&error),
    }
    if let Err(error) = number::parse_duration_ns(text) {
        check_error(&error);
    }
    if let Some(ms) = number::parse_unit_duration_ms(text) {
        let written = number::unit_duration(ms);
        assert_eq!(number::parse_unit_duration_ms(&written), Some(ms), "{text:?}, {written:?}");
    }
}

/// The file of users and TLS; files that it names are not read.
pub fn web_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // An operator reads the error, not a stranger: it may repeat the file.
    if let Err(error) = WebConfig::parse(std::path::Path::new("web.yml"), text) {
        assert!(*error.kind() != ErrorKind::Internal, "{error}");
    }
}

/// Headers that negotiate a form, `Accept` and `Accept-Encoding`, and credentials.
pub fn headers(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(Credentials::of(Some(text)).user_name().len() <= data.len());
    assert!(!FederationFormat::accepted(text).content_type().is_empty());
    let mut headers = HeaderMap::new();
    // More are refused with their head.
    for line in data.split(|&byte| byte == b'\n').take(HEADERS_MAX) {
        let Ok(value) = HeaderValue::from_bytes(line) else { continue };
        headers.append(ACCEPT_ENCODING, value);
    }
    let _ = Packing::of(&headers);
    crate::proxy::fuzz::headers(&headers);
}

/// Samples of a client in the chunks of remote read, decoded as their readers do.
pub fn xor_chunk(data: &[u8]) {
    let (samples, _) = data.as_chunks::<16>();
    let samples: Vec<(i64, u64)> = samples
        .iter()
        .take(usize::from(u16::MAX))
        .map(|sample| {
            let bits = u128::from_le_bytes(*sample);
            ((bits >> 64) as i64, bits as u64)
        })
        .collect();
    let mut chunk = XorChunk::default();
    samples.iter().for_each(|&(ts, bits)| chunk.push(ts, f64::from_bits(bits)));
    assert!(xor_chunk::decoder::decode(chunk.bytes()) == samples);
}

/// A message states a reason of the input's, repeats little of it, and is no bug's.
pub(crate) fn check_error(error: &Error) {
    assert!(*error.kind() != ErrorKind::Internal, "{error}");
    check_message(&error.to_string());
}

/// A message is not empty and repeats little of the input.
pub(crate) fn check_message(text: &str) {
    assert!(!text.is_empty());
    let bytes = text.len();
    assert!(bytes <= MESSAGE_BYTES_MAX, "a message of {bytes} bytes: {text:.200}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that repeated a number of 20 MB were responses of 20 MB.
    #[test]
    fn long_input_is_not_repeated_in_messages() {
        for piece in ["9", "a", "\u{1}", "é", "\\\"", "\\u0001"] {
            let long = piece.repeat(20_000);
            for text in [
                long.clone(),
                format!("{{\"groups\":[{{\"group\":{long}"),
                format!("{{\"groups\":[{{\"labels\":{{\"{long}\":\"{long}\"}}}}]}}"),
                format!("{{\"known_elsewhere\":\"{long}\"}}"),
                format!("{{\"operations\":[{{\"op\":\"{long}\"}}]}}"),
                format!("{{\"operations\":[{{\"timestamp\":{long}}}]}}"),
                format!("a {long}"),
                format!("a 1 {long}"),
                format!("a{{{long}}} 1"),
                format!("a{{b=\"{long}\"}} 1"),
                format!("# TYPE a {long}"),
                format!("start={long}&step={long}&limit={long}&{long}=%ff"),
                format!("listen: {long}"),
                format!("{long}: 1"),
                format!("set {long} 0 1 2 json 1\n"),
            ] {
                CHECKS.iter().for_each(|(_, check)| check(text.as_bytes()));
            }
        }
    }

    /// As `xtask/src/corpus.rs` writes them.
    const MAGIC: &[u8] = b"firn-corpus-1\n";

    /// The inputs that the fuzzers found worth keeping, in every test run.
    #[test]
    fn the_corpus_passes() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (name, check) in CHECKS {
            let pack = std::fs::read(folder.join(format!("{name}.pack"))).expect("a pack per name");
            let mut rest = pack.strip_prefix(MAGIC).expect("a corpus");
            while let Some((len, behind)) = rest.split_first_chunk() {
                let (input, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
                check(input);
                rest = behind;
            }
        }
    }
}
