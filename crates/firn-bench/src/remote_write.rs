//! Remote write 1.0 requests: protobuf by hand, snappy around it.

/// Appends one label, encoded as a field of a series.
pub(crate) fn push_label(name: &str, value: &str, out: &mut Vec<u8>) {
    let mut label = Vec::new();
    push_bytes(0x0a, name.as_bytes(), &mut label);
    push_bytes(0x12, value.as_bytes(), &mut label);
    push_bytes(0x0a, &label, out);
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
        push_bytes(0x12, &sample, &mut series);
    }
    push_bytes(0x0a, &series, body);
}

/// Appends the metadata of a metric.
pub(crate) fn push_metadata(name: &str, body: &mut Vec<u8>) {
    // A gauge.
    let mut metadata = vec![0x08, 2];
    push_bytes(0x12, name.as_bytes(), &mut metadata);
    push_bytes(0x22, b"A metric of the benchmark.", &mut metadata);
    push_bytes(0x1a, &metadata, body);
}

/// The compressed request.
pub(crate) fn packed(body: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(body).expect("fits in memory")
}

fn push_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
