//! Tests of the walker: against a plain decoder written for clarity, and on any bytes.

use firn_model::{LabelLimits, Labels};
use proptest::prelude::*;

use super::*;

/// A request as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    series: Vec<PlainSeries>,
    metadata: Vec<(u64, String, String, String)>,
    exemplars: u64,
    histograms: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct PlainSeries {
    labels: Vec<(Vec<u8>, Vec<u8>)>,
    /// (timestamp, bits of the value)
    samples: Vec<(i64, u64)>,
}

/// A field as the wire has it.
enum Field {
    Varint(u64),
    Fixed64(u64),
    Bytes(Vec<u8>),
    Fixed32,
}

/// All fields of a message, decoded the slow and obvious way; `None` if it is malformed. Groups
/// count as malformed: the generator makes none.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = firn_model::decode_varint(&mut bytes)?;
        let take = |bytes: &mut &[u8], len: usize| {
            let (taken, rest) = bytes.split_at_checked(len)?;
            *bytes = rest;
            Some(taken.to_vec())
        };
        let value = match key & 7 {
            0 => Field::Varint(firn_model::decode_varint(&mut bytes)?),
            1 => Field::Fixed64(u64::from_le_bytes(take(&mut bytes, 8)?.try_into().ok()?)),
            2 => {
                let len = usize::try_from(firn_model::decode_varint(&mut bytes)?).ok()?;
                Field::Bytes(take(&mut bytes, len)?)
            }
            5 => take(&mut bytes, 4).map(|_| Field::Fixed32)?,
            _ => return None,
        };
        let number = key >> 3;
        (1..=0x1fff_ffff).contains(&number).then(|| found.push((number, value)))?;
    }
    Some(found)
}

fn decode_plainly(bytes: &[u8]) -> Option<Plain> {
    let mut plain = Plain::default();
    for (number, value) in fields(bytes)? {
        match (number, value) {
            (1, Field::Bytes(message)) => plain_series(&message, &mut plain)?,
            (3, Field::Bytes(message)) => {
                let mut found = (0, String::new(), String::new(), String::new());
                for (number, value) in fields(&message)? {
                    match (number, value) {
                        (1, Field::Varint(kind)) => found.0 = kind,
                        (2, Field::Bytes(text)) => found.1 = String::from_utf8(text).ok()?,
                        (4, Field::Bytes(text)) => found.2 = String::from_utf8(text).ok()?,
                        (5, Field::Bytes(text)) => found.3 = String::from_utf8(text).ok()?,
                        (1 | 2 | 4 | 5, _) => return None,
                        _ => {}
                    }
                }
                plain.metadata.push(found);
            }
            (1 | 3, _) => return None,
            _ => {}
        }
    }
    Some(plain)
}

fn plain_series(message: &[u8], plain: &mut Plain) -> Option<()> {
    let mut series = PlainSeries::default();
    for (number, value) in fields(message)? {
        match (number, value) {
            (1, Field::Bytes(message)) => {
                let (mut name, mut text) = (Vec::new(), Vec::new());
                for (number, value) in fields(&message)? {
                    match (number, value) {
                        (1, Field::Bytes(bytes)) => name = bytes,
                        (2, Field::Bytes(bytes)) => text = bytes,
                        (1 | 2, _) => return None,
                        _ => {}
                    }
                }
                series.labels.push((name, text));
            }
            (2, Field::Bytes(message)) => {
                let mut sample = (0, 0);
                for (number, value) in fields(&message)? {
                    match (number, value) {
                        (1, Field::Fixed64(bits)) => sample.1 = bits,
                        (2, Field::Varint(ts)) => sample.0 = ts as i64,
                        (1 | 2, _) => return None,
                        _ => {}
                    }
                }
                series.samples.push(sample);
            }
            (3, Field::Bytes(_)) => plain.exemplars += 1,
            (4, Field::Bytes(_)) => plain.histograms += 1,
            (1..=4, _) => return None,
            _ => {}
        }
    }
    plain.series.push(series);
    Some(())
}

/// A series as the walker sees it: its labels, `None` if they are refused, and its samples.
type Walked = (Option<Labels>, Vec<(i64, u64)>);

/// The walker's view of a request.
fn walk(body: &[u8]) -> Result<(Vec<Walked>, Decoded)> {
    let mut decoded = Decoded::default();
    decoded.clear(1 << 30);
    decode(body, &SpanHasher::random(), &mut decoded)?;
    let mut builder = LabelsBuilder::default();
    let mut found = Vec::new();
    for (series, samples) in decoded.iter() {
        let parsed = match labels(&body[series.span()], &mut builder) {
            Ok(()) => builder.build(&limits()).ok(),
            Err(LabelFault::Refused(_)) => None,
            Err(LabelFault::Malformed(error)) => return Err(error),
        };
        found.push((parsed, samples.iter().map(|s| (s.ts, s.value.to_bits())).collect()));
    }
    Ok((found, decoded))
}

fn limits() -> LabelLimits {
    LabelLimits { label_count_max: 1_000, name_bytes_max: 1_000, value_bytes_max: 1_000 }
}

fn plain_labels(series: &PlainSeries) -> Option<Labels> {
    let mut builder = LabelsBuilder::default();
    for (name, value) in &series.labels {
        builder.push(std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?);
    }
    builder.build(&limits()).ok()
}

fn field(number: u64, wire: u64, body: &[u8], out: &mut Vec<u8>) {
    firn_model::encode_varint(number << 3 | wire, out);
    if wire == 2 {
        firn_model::encode_varint(body.len() as u64, out);
    }
    out.extend_from_slice(body);
}

fn label(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    field(1, 2, name, &mut out);
    field(2, 2, value, &mut out);
    out
}

fn sample(ts: i64, bits: u64) -> Vec<u8> {
    let (mut out, mut varint) = (Vec::new(), Vec::new());
    firn_model::encode_varint(ts as u64, &mut varint);
    field(1, 1, &bits.to_le_bytes(), &mut out);
    field(2, 0, &varint, &mut out);
    out
}

fn message(parts: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    parts.iter().for_each(|(number, body)| field(*number, 2, body, &mut out));
    out
}

#[test]
fn labels_between_samples_are_found_but_not_remembered() {
    let parts = [
        (1, label(b"__name__", b"m")),
        (2, sample(5, 1.5f64.to_bits())),
        (1, label(b"a", b"1")),
        (3, vec![1, 2, 3]),
        (2, sample(-6, 2)),
    ];
    let body = message(&[(1, message(&parts)), (1, message(&parts[..2]))]);
    let (found, decoded) = walk(&body).unwrap();
    assert_eq!(found[0].0.as_ref().unwrap().to_string(), r#"m{a="1"}"#);
    assert_eq!(found[0].1, [(5, 1.5f64.to_bits()), (-6, 2)]);
    assert_eq!(decoded.exemplar_count, 1);
    assert!(!decoded.series[0].cacheable && decoded.series[1].cacheable);
}

#[test]
fn equal_label_bytes_have_equal_hashes_and_others_have_not() {
    let series =
        |value: &[u8], ts| (1, message(&[(1, label(b"__name__", value)), (2, sample(ts, 0))]));
    let body = message(&[series(b"m", 1), series(b"m", 2), series(b"n", 1)]);
    let (_, decoded) = walk(&body).unwrap();
    assert_eq!(decoded.series[0].hash, decoded.series[1].hash);
    assert_ne!(decoded.series[0].hash, decoded.series[2].hash);
}

#[test]
fn malformed_messages_are_refused_with_the_byte() {
    let f = |body: &[u8], wanted: &str| {
        let error = walk(body).unwrap_err().to_string();
        assert!(error.contains(wanted), "{body:?}: {error}");
    };
    f(&[0x0a, 5, 1], "byte 2 of the decompressed request: 5 bytes are announced");
    f(&[0x08, 1], "byte 0 of the decompressed request: field 1 of WriteRequest has wire type 0");
    f(&[0x00], "field number 0 is not allowed");
    f(&[0x0e], "wire type 6 does not exist");
    f(&[0x44], "a group ends that never began");
    f(&[0xff; 11], "a number is cut short or over 64 bits");
    f(&message(&[(1, message(&[(2, vec![0x0d, 0, 0, 0, 0])]))]), "field 1 of Sample");
    f(&message(&[(1, message(&[(1, vec![0x0a, 9])]))]), "9 bytes are announced");
    f(&message(&[(3, message(&[(4, vec![0xff])]))]), "not UTF-8");
    let deep: Vec<u8> = [0x43; 40].to_vec();
    f(&deep, "groups are nested too deeply");
    // A group that is closed is an unknown field like others.
    assert!(walk(&[0x43, 0x08, 1, 0x44]).unwrap().0.is_empty());
}

#[test]
fn tiny_messages_cannot_unpack_to_much() {
    let body = message(&vec![(1, Vec::new()); 10_000]);
    let mut decoded = Decoded::default();
    decoded.clear(100_000);
    let error = decode(&body, &SpanHasher::random(), &mut decoded).unwrap_err();
    assert!(error.to_string().contains("unpack to over 100000 bytes"), "{error}");
    assert!(decoded.working_bytes() <= 100_000 + Decoded::ITEM_BYTES);
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(b"__name__".to_vec()),
        "[a-c]{0,3}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..4),
    ]
}

fn any_series() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        3 => (any_text(), any_text()).prop_map(|(name, value)| (1, label(&name, &value))),
        3 => (any::<i64>(), any::<u64>()).prop_map(|(ts, bits)| (2, sample(ts, bits))),
        1 => (3u64..9, any_text()),
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| message(&parts))
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let metadata = (any_text(), any_text()).prop_map(|(name, help)| {
        let name = String::from_utf8_lossy(&name).into_owned().into_bytes();
        message(&[(2, name), (4, String::from_utf8_lossy(&help).into_owned().into_bytes())])
    });
    let part = prop_oneof![
        4 => any_series().prop_map(|series| (1, series)),
        1 => metadata.prop_map(|metadata| (3, metadata)),
        1 => (4u64..40, any_text()),
    ];
    proptest::collection::vec(part, 0..6).prop_map(|parts| message(&parts))
}

fn check_against_plain(body: &[u8]) -> Result<(), TestCaseError> {
    let plain = decode_plainly(body);
    let walked = walk(body);
    match (plain, walked) {
        (None, Err(_)) => {}
        // The plain decoder does not support groups.
        (None, Ok(_)) => {}
        (Some(plain), Ok((found, decoded))) => {
            let wanted: Vec<_> =
                plain.series.iter().map(|s| (plain_labels(s), s.samples.clone())).collect();
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(decoded.exemplar_count, plain.exemplars);
            prop_assert_eq!(decoded.histogram_count, plain.histograms);
            let metadata: Vec<_> = decoded
                .metadata
                .entries()
                .iter()
                .map(|(name, m)| (name.to_string(), m.help.to_string(), m.unit.to_string()))
                .collect();
            let named = plain.metadata.into_iter().filter(|m| !m.1.is_empty());
            let wanted: Vec<_> = named.map(|m| (m.1, m.2, m.3)).collect();
            prop_assert_eq!(metadata, wanted);
        }
        (Some(plain), Err(error)) => {
            prop_assert!(false, "{:?} was refused: {}", plain, error);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn walker_agrees_with_a_plain_decoder(body in any_request()) {
        check_against_plain(&body)?;
    }

    #[test]
    fn walker_agrees_on_damaged_requests(
        body in any_request(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = body;
        if !body.is_empty() {
            let at = at.index(body.len());
            body[at] = byte;
            body.truncate(cut.index(body.len() + 1));
        }
        check_against_plain(&body)?;
    }

    #[test]
    fn any_bytes_are_survived(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_against_plain(&body)?;
    }
}
