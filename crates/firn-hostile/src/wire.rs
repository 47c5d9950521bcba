//! Bodies by hand: protobuf with any mistake, snappy, gzip, zstd.

use std::io::Write;

/// A protobuf message under construction; fields are not checked.
#[derive(Clone, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

/// Wire types of protobuf.
pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const BYTES: u8 = 2;
pub(crate) const GROUP: u8 = 3;

impl Message {
    pub(crate) fn key(mut self, field: u64, wire: u8) -> Message {
        push_varint(field << 3 | u64::from(wire), &mut self.0);
        self
    }

    pub(crate) fn varint(mut self, field: u64, value: u64) -> Message {
        self = self.key(field, VARINT);
        push_varint(value, &mut self.0);
        self
    }

    pub(crate) fn double(mut self, field: u64, value: f64) -> Message {
        self = self.key(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Message {
        let bytes = bytes.as_ref();
        self = self.key(field, BYTES);
        push_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn message(self, field: u64, message: Message) -> Message {
        self.bytes(field, message.0)
    }

    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Message {
        self.0.extend_from_slice(bytes.as_ref());
        self
    }
}

/// A label of remote write, remote read and groups.
pub(crate) fn label(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Message {
    Message::default().bytes(1, name).bytes(2, value)
}

/// A sample of remote write.
pub(crate) fn sample(ts_ms: i64, value: f64) -> Message {
    Message::default().double(1, value).varint(2, ts_ms as u64)
}

/// A series of remote write.
pub(crate) fn series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> Message {
    let with_labels = labels
        .iter()
        .fold(Message::default(), |message, (name, value)| message.message(1, label(name, value)));
    samples.iter().fold(with_labels, |message, (ts, value)| message.message(2, sample(*ts, *value)))
}

/// A remote write request with one series.
pub(crate) fn one_series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> Message {
    Message::default().message(1, series(labels, samples))
}

/// Appends a number in protobuf's and snappy's encoding.
pub(crate) fn push_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A snappy block.
pub(crate) fn snappy(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes.as_ref()).unwrap_or_default()
}

/// A snappy block that declares `declared` bytes and has `rest` in place of them.
pub(crate) fn false_snappy(declared: u64, rest: impl AsRef<[u8]>) -> Vec<u8> {
    let mut block = Vec::new();
    push_varint(declared, &mut block);
    block.extend_from_slice(rest.as_ref());
    block
}

/// A gzip member.
pub(crate) fn gzip(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let _ = encoder.write_all(bytes.as_ref());
    encoder.finish().unwrap_or_default()
}

/// A gzip member of `mib` MiB of zeros, which has a thousandth of that.
pub(crate) fn gzip_bomb(mib: usize) -> Vec<u8> {
    let zeros = vec![b'\n'; 1 << 20];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..mib {
        let _ = encoder.write_all(&zeros);
    }
    encoder.finish().unwrap_or_default()
}

/// A zstd frame.
pub(crate) fn zstd(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    zstd::encode_all(bytes.as_ref(), 1).unwrap_or_default()
}

/// Percent-encoding of all but unreserved characters.
pub(crate) fn encode(text: impl AsRef<[u8]>) -> String {
    use std::fmt::Write;
    let text = text.as_ref();
    let mut encoded = String::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Text that does not compress, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> String {
    let mut random = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            char::from(b"abcdefghijklmnopqrstuvwxyz012345"[(random >> 32) as usize % 32])
        })
        .collect()
}
