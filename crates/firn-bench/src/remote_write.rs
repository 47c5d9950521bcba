//! Remote write 1.0 requests: protobuf by hand, snappy around it.

/// Appends one label, encoded as a field of a series.
pub(crate) fn push_label(name: &str, value: &str, out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    for (tag, text) in [(0x0a, name), (0x12, value)] {
        inner.push(tag);
        push_varint(text.len() as u64, &mut inner);
        inner.extend_from_slice(text.as_bytes());
    }
    out.push(0x0a);
    push_varint(inner.len() as u64, out);
    out.extend_from_slice(&inner);
}

/// Appends one series: its encoded labels and its samples (milliseconds, value).
pub(crate) fn push_series(
    labels: &[u8],
    samples: impl Iterator<Item = (i64, f64)>,
    body: &mut Vec<u8>,
) {
    let mut series = labels.to_vec();
    let mut sample = Vec::with_capacity(24);
    for (ts, value) in samples {
        sample.clear();
        sample.push(0x09);
        sample.extend_from_slice(&value.to_le_bytes());
        sample.push(0x10);
        push_varint(ts as u64, &mut sample);
        series.push(0x12);
        push_varint(sample.len() as u64, &mut series);
        series.extend_from_slice(&sample);
    }
    body.push(0x0a);
    push_varint(series.len() as u64, body);
    body.extend_from_slice(&series);
}

/// Appends the metadata of a metric.
pub(crate) fn push_metadata(name: &str, body: &mut Vec<u8>) {
    // A gauge.
    let mut metadata = vec![0x08, 2];
    for (tag, text) in [(0x12, name), (0x22, "A metric of the benchmark.")] {
        metadata.push(tag);
        push_varint(text.len() as u64, &mut metadata);
        metadata.extend_from_slice(text.as_bytes());
    }
    body.push(0x1a);
    push_varint(metadata.len() as u64, body);
    body.extend_from_slice(&metadata);
}

/// The compressed request.
pub(crate) fn packed(body: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(body).expect("fits in memory")
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
