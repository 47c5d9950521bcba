use firn_model::{ErrorKind, Pool, QueryContext, STALE_NAN, TimeRange};

use super::*;
use crate::wire::crc32c::crc32c;
use crate::wire::xor_chunk::decoder::decode as decode_chunk;
use firn_model::protobuf::{Reader, push_varint};

fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// Decodes and compiles without limits.
fn decode_all(body: &[u8]) -> firn_model::Result<ReadRequest> {
    let context = QueryContext::unbounded();
    let request = decode(body, &mut context.budget.empty(Pool::Query))?;
    request.compile(&context)?;
    Ok(request)
}

fn matcher(kind: u64, name: &[u8], value: &[u8]) -> Vec<u8> {
    message(|out| {
        push_varint(1, kind, out);
        push_bytes(2, name, out);
        push_bytes(3, value, out);
    })
}

fn query(start: i64, end: i64, matchers: &[Vec<u8>]) -> Vec<u8> {
    message(|out| {
        push_varint(1, start as u64, out);
        push_varint(2, end as u64, out);
        matchers.iter().for_each(|matcher| push_bytes(3, matcher, out));
        // Hints, and a field of the future.
        push_bytes(4, &[8, 1], out);
        push_bytes(99, b"later", out);
    })
}

fn request(queries: &[Vec<u8>], accepted: &[u64]) -> Vec<u8> {
    message(|out| {
        queries.iter().for_each(|query| push_bytes(1, query, out));
        accepted.iter().for_each(|number| push_varint(2, *number, out));
    })
}

#[test]
fn requests_are_understood() {
    let matchers: Vec<Vec<u8>> = (0..4).map(|kind| matcher(kind, b"a", b"b.*")).collect();
    let asked = decode_all(&request(&[query(-5, i64::MAX, &matchers), Vec::new()], &[])).unwrap();
    assert_eq!(asked.response_type, ResponseType::Samples);
    let named: Vec<String> = asked.queries[0].matchers.iter().map(ToString::to_string).collect();
    assert_eq!(named, [r#"a="b.*""#, r#"a!="b.*""#, r#"a=~"b.*""#, r#"a!~"b.*""#]);
    assert_eq!(asked.queries[0].range, TimeRange::new(-5, i64::MAX));
    assert_eq!(asked.queries[1].range, TimeRange::new(0, 0));
    assert!(decode_all(&[]).unwrap().queries.is_empty());
}

#[test]
fn the_first_known_response_type_is_taken() {
    let f = |accepted: &[u64]| decode_all(&request(&[], accepted)).map(|asked| asked.response_type);
    assert_eq!(f(&[]).unwrap(), ResponseType::Samples);
    assert_eq!(f(&[1, 0]).unwrap(), ResponseType::StreamedXorChunks);
    assert_eq!(f(&[0, 1]).unwrap(), ResponseType::Samples);
    assert_eq!(f(&[7, 1]).unwrap(), ResponseType::StreamedXorChunks);
    let packed = decode_all(&message(|out| push_bytes(2, &[1, 0], out))).unwrap();
    assert_eq!(packed.response_type, ResponseType::StreamedXorChunks);
    let refused = f(&[7, 9]).unwrap_err().to_string();
    assert!(refused.contains("[7, 9]") && refused.contains("SAMPLES"), "{refused}");
}

#[test]
fn bad_requests_are_named() {
    let f = |matcher: Vec<u8>, want: &str| {
        let refused = decode_all(&request(&[query(0, 1, &[matcher])], &[])).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Invalid), "{refused}");
        assert!(refused.to_string().contains(want), "{refused}");
    };
    f(matcher(4, b"a", b"b"), "matcher type 4 does not exist");
    f(matcher(2, b"a", b"("), "error parsing regexp: missing closing )");
    f(matcher(0, b"\xff", b"b"), "name of a matcher");
    f(matcher(0, b"a", b"\xff"), "value of a matcher");
    f(vec![0x08], "cut short");
    f(vec![0x0d, 0, 0, 0, 0], "field 1 of LabelMatcher has wire type 5");
    let refused = decode_all(&request(&vec![Vec::new(); 1_001], &[])).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Invalid) && refused.what().contains("queries"));
    let matchers = vec![matcher(0, b"a", b"b"); 10_001];
    let refused = decode_all(&request(&[query(0, 1, &matchers)], &[])).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Invalid) && refused.what().contains("matchers"));
}

#[test]
fn external_labels_are_not_matched_in_storage() {
    let external = Labels::from_pairs([("region", "eu")]).unwrap();
    let matchers = [
        matcher(0, b"region", b"eu"),
        matcher(0, b"region", b"us"),
        matcher(2, b"region", b"eu"),
        matcher(0, b"other", b"eu"),
    ];
    let asked = decode_all(&request(&[query(0, 1, &matchers)], &[])).unwrap().queries.remove(0);
    let asked = asked.without_external(&external);
    let named: Vec<String> = asked.matchers.iter().map(ToString::to_string).collect();
    assert_eq!(named, [r#"region="""#, r#"region="us""#, r#"region=~"eu""#, r#"other="eu""#]);
}

fn series(number: u32) -> Labels {
    Labels::from_pairs([("__name__", "m"), ("n", number.to_string().as_str())]).unwrap()
}

/// The fields of a message with bytes, and those with numbers.
fn fields(bytes: &[u8]) -> Vec<(u32, Vec<u8>, u64)> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    while !reader.is_done() {
        let (field, wire) = reader.key().unwrap();
        found.push(match wire as u8 {
            0 => (field, Vec::new(), reader.varint().unwrap()),
            1 => (field, Vec::new(), reader.fixed64().unwrap()),
            _ => (field, reader.bytes().unwrap().to_vec(), 0),
        });
    }
    found
}

fn labels_of(fields_of_series: &[(u32, Vec<u8>, u64)]) -> Labels {
    let pairs: Vec<Vec<(u32, Vec<u8>, u64)>> = fields_of_series
        .iter()
        .filter(|field| field.0 == 1)
        .map(|field| fields(&field.1))
        .collect();
    let text = |field: &(u32, Vec<u8>, u64)| String::from_utf8(field.1.clone()).unwrap();
    let pairs: Vec<(String, String)> = pairs.iter().map(|p| (text(&p[0]), text(&p[1]))).collect();
    assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "labels are sorted by name");
    Labels::from_pairs(pairs.iter().map(|(n, v)| (n.as_str(), v.as_str()))).unwrap()
}

#[test]
fn samples_of_several_queries_in_one_message() {
    let mut writer = SamplesWriter::default();
    writer.begin_series(&series(1));
    writer.push(&[-1, 0], &[-0.0, STALE_NAN]);
    writer.push(&[i64::MAX], &[1.5]);
    writer.begin_series(&series(2));
    writer.push(&[7], &[7.0]);
    writer.end_query();
    writer.end_query();
    let results = fields(&writer.into_bytes());
    assert_eq!(results.len(), 2);
    assert!(results[1].1.is_empty(), "a query without matches has an empty result");
    let found: Vec<(Labels, Vec<(i64, u64)>)> = fields(&results[0].1)
        .iter()
        .map(|(_, series, _)| {
            let series = fields(series);
            let samples = series.iter().filter(|field| field.0 == 2).map(|field| {
                let sample = fields(&field.1);
                (sample[1].2 as i64, sample[0].2)
            });
            (labels_of(&series), samples.collect())
        })
        .collect();
    let first =
        vec![(-1, (-0.0f64).to_bits()), (0, STALE_NAN.to_bits()), (i64::MAX, 1.5f64.to_bits())];
    assert_eq!(found, [(series(1), first), (series(2), vec![(7, 7.0f64.to_bits())])]);
    assert!(SamplesWriter::default().into_bytes().is_empty(), "no queries, an empty message");
}

struct Frame {
    query_idx: u64,
    labels: Labels,
    /// First, last, bytes.
    chunks: Vec<(i64, i64, Vec<u8>)>,
    bytes: usize,
}

fn frames(mut stream: &[u8]) -> Vec<Frame> {
    let mut found = Vec::new();
    while !stream.is_empty() {
        let len = firn_model::decode_varint(&mut stream).unwrap() as usize;
        let (crc, rest) = stream.split_at(4);
        let (message, rest) = rest.split_at(len);
        stream = rest;
        assert_eq!(u32::from_be_bytes(crc.try_into().unwrap()), crc32c(message));
        let message = fields(message);
        let series = fields(&message[0].1);
        let chunks = series.iter().filter(|field| field.0 == 2).map(|field| {
            let chunk = fields(&field.1);
            assert_eq!((chunk[2].0, chunk[2].2), (3, 1), "type XOR");
            (chunk[0].2 as i64, chunk[1].2 as i64, chunk[3].1.clone())
        });
        found.push(Frame {
            query_idx: message[1].2,
            labels: labels_of(&series),
            chunks: chunks.collect(),
            bytes: len,
        });
    }
    found
}

#[test]
fn frames_hold_one_series_and_about_so_many_bytes() {
    let times: Vec<i64> = (0..1_000).map(|n| -3_000_000 + n * 15_000).collect();
    // Values that do not compress, so that 120 samples take about a kilobyte.
    let values: Vec<f64> =
        (0..1_000u64).map(|n| f64::from_bits(n.wrapping_mul(0x1357_9bdf_0246_8ace))).collect();
    let mut writer = FrameWriter::new(2_500);
    for number in 1..=2 {
        writer.begin_series(&series(number));
        // In pieces that are no multiple of a chunk.
        writer.push(&times[..333], &values[..333]);
        writer.push(&times[333..], &values[333..]);
    }
    writer.end_query();
    writer.end_query();
    writer.begin_series(&series(3));
    writer.push(&[5], &[STALE_NAN]);
    writer.end_query();
    let taken = writer.frames_bytes();
    let stream = writer.take();
    assert_eq!(stream.len(), taken);
    assert_eq!(writer.frames_bytes(), 0);

    let frames = frames(&stream);
    let heads: Vec<(u64, Labels, usize)> =
        frames.iter().map(|f| (f.query_idx, f.labels.clone(), f.chunks.len())).collect();
    let three = |n| [(0, series(n), 3), (0, series(n), 3), (0, series(n), 3)];
    let wanted = [&three(1)[..], &three(2), &[(2, series(3), 1)]].concat();
    assert_eq!(heads, wanted);
    assert!(frames.iter().all(|frame| frame.bytes < 2_500 + 1_200));
    for number in 1..=2 {
        let chunks = frames.iter().filter(|f| f.labels == series(number)).flat_map(|f| &f.chunks);
        let found: Vec<(i64, u64)> = chunks
            .flat_map(|(first, last, data)| {
                let samples = decode_chunk(data);
                assert!(samples.len() <= 120);
                assert_eq!((samples[0].0, samples[samples.len() - 1].0), (*first, *last));
                samples
            })
            .collect();
        let wanted = times.iter().zip(&values).map(|(&ts, value)| (ts, value.to_bits()));
        assert_eq!(found, wanted.collect::<Vec<_>>());
    }
    assert_eq!(decode_chunk(&frames[6].chunks[0].2), [(5, STALE_NAN.to_bits())]);
}
