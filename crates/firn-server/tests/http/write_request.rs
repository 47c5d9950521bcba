//! Remote write 1.0 requests, encoded field by field.

use std::net::SocketAddr;

use crate::client::{Answer, send};

/// A message under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    pub(crate) fn varint(mut self, field: u64, value: u64) -> Message {
        encode_varint(field << 3, &mut self.0);
        encode_varint(value, &mut self.0);
        self
    }

    pub(crate) fn double(mut self, field: u64, value: f64) -> Message {
        encode_varint(field << 3 | 1, &mut self.0);
        self.0.extend_from_slice(&value.to_bits().to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Message {
        let value = value.as_ref();
        encode_varint(field << 3 | 2, &mut self.0);
        encode_varint(value.len() as u64, &mut self.0);
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn label(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Message {
        self.bytes(1, Message::default().bytes(1, name).bytes(2, value).0)
    }

    pub(crate) fn sample(self, ts: i64, value: f64) -> Message {
        self.bytes(2, Message::default().double(1, value).varint(2, ts as u64).0)
    }

    pub(crate) fn series(self, series: Message) -> Message {
        self.bytes(1, series.0)
    }

    pub(crate) fn send(&self, to: SocketAddr) -> Answer {
        send_block(to, &snap::raw::Encoder::new().compress_vec(&self.0).expect("fits"))
    }
}

/// A series with labels.
pub(crate) fn series(labels: &[(&str, &str)]) -> Message {
    labels.iter().fold(Message::default(), |series, (name, value)| series.label(name, value))
}

/// Sends a body as Prometheus does.
pub(crate) fn send_block(to: SocketAddr, block: &[u8]) -> Answer {
    let headers = [
        ("Content-Encoding", "snappy"),
        ("Content-Type", "application/x-protobuf"),
        ("User-Agent", "test"),
        ("X-Prometheus-Remote-Write-Version", "0.1.0"),
    ];
    send(to, "POST", "/api/v1/write", &headers, block)
}

fn encode_varint(value: u64, out: &mut Vec<u8>) {
    firn_model::encode_varint(value, out);
}
