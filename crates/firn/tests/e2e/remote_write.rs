//! A remote write 1.0 sender: protobuf by hand, snappy, one request at a time.

use std::net::SocketAddr;

use crate::http::{self, Answer};

/// Collects series for one request.
#[derive(Default)]
pub(crate) struct WriteRequest {
    body: Vec<u8>,
}

impl WriteRequest {
    /// One series with its samples (milliseconds, value).
    pub(crate) fn series(&mut self, labels: &[(&str, &str)], samples: &[(i64, f64)]) -> &mut Self {
        let mut encoded = Vec::new();
        for (ts, value) in samples {
            let mut sample = vec![0x09];
            sample.extend_from_slice(&value.to_le_bytes());
            sample.push(0x10);
            varint(*ts as u64, &mut sample);
            field(0x12, &sample, &mut encoded);
        }
        self.series_with(labels, &encoded)
    }

    /// One series with other fields of the message, encoded.
    pub(crate) fn series_with(&mut self, labels: &[(&str, &str)], fields: &[u8]) -> &mut Self {
        let mut series = Vec::new();
        for (name, value) in labels {
            let mut label = Vec::new();
            field(0x0a, name.as_bytes(), &mut label);
            field(0x12, value.as_bytes(), &mut label);
            field(0x0a, &label, &mut series);
        }
        series.extend_from_slice(fields);
        field(0x0a, &series, &mut self.body);
        self
    }

    /// Metadata of a metric: its type as a number of the protocol, its help and its unit.
    pub(crate) fn metadata(&mut self, kind: u64, name: &str, help: &str, unit: &str) -> &mut Self {
        let mut metadata = vec![0x08];
        varint(kind, &mut metadata);
        for (tag, text) in [(0x12, name), (0x22, help), (0x2a, unit)] {
            field(tag, text.as_bytes(), &mut metadata);
        }
        field(0x1a, &metadata, &mut self.body);
        self
    }

    /// Sends the request; returns status and text, status 0 without a response.
    pub(crate) fn send(&self, address: SocketAddr) -> (u16, String) {
        self.post(address).map_or((0, String::new()), |answer| (answer.status, answer.body))
    }

    /// Sends the request; `None` without a response.
    pub(crate) fn post(&self, address: SocketAddr) -> Option<Answer> {
        self.post_as(address, "Bearer none")
    }

    /// Sends the request with the header `Authorization`, which a server without users ignores.
    pub(crate) fn post_as(&self, address: SocketAddr, authorization: &str) -> Option<Answer> {
        let body = snap::raw::Encoder::new().compress_vec(&self.body).expect("fits in memory");
        let headers = [
            ("Content-Type", "application/x-protobuf"),
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", "0.1.0"),
            ("Authorization", authorization),
        ];
        http::request(address, "POST", "/api/v1/write", &headers, &body)
    }
}

pub(crate) fn field(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(crate) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
