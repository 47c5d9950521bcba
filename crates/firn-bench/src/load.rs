//! Remote write load: hosts with 100 series of 10 labels each, scrape after scrape (time-major).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Series of one host.
pub const SERIES_PER_HOST: usize = 100;
// 20 whole hosts a request, as a sender with Prometheus' default of 2,000 samples does.
const HOSTS_PER_REQUEST: usize = 20;
const CONNECTIONS: usize = 4;

/// The series of a load: their encoded labels and the state of their values.
#[derive(Debug)]
pub struct Load {
    hosts: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    /// Each series' labels as remote write encodes them.
    labels: Vec<Vec<u8>>,
    values: Vec<f64>,
    random: u64,
}

impl Load {
    /// `series_count` (a multiple of 100) series; the same every time.
    pub fn new(series_count: usize) -> Load {
        assert!(series_count.is_multiple_of(SERIES_PER_HOST * HOSTS_PER_REQUEST));
        let hosts = (0..series_count / SERIES_PER_HOST).map(Host::new).collect();
        Load { hosts }
    }

    /// How many series.
    pub fn series_count(&self) -> usize {
        self.hosts.len() * SERIES_PER_HOST
    }

    /// Sends one sample of every series at `ts`, over four connections.
    ///
    /// # Panics
    /// If the server answers with anything but 2xx: a benchmark of errors is none.
    pub fn scrape(&mut self, address: SocketAddr, path: &str, ts: i64) {
        let bodies: Vec<Vec<u8>> =
            self.hosts.chunks_mut(HOSTS_PER_REQUEST).map(|hosts| request(hosts, ts)).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut connection = Connection::open(address);
                    while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                        connection.post(path, body);
                    }
                });
            }
        });
    }
}

impl Host {
    fn new(host: usize) -> Host {
        let tags = [
            ("arch", if host.is_multiple_of(2) { "x64".into() } else { "x86".into() }),
            ("datacenter", format!("eu-central-1{}", ["a", "b", "c"][host % 3])),
            ("instance", format!("host-{host}:9100")),
            ("job", "node".into()),
            ("os", ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"][host % 3].into()),
            ("rack", format!("{}", host % 100)),
            ("region", ["eu-central-1", "us-west-2", "ap-northeast-1"][host % 3].into()),
            ("service", format!("{}", host % 20)),
            ("team", ["SF", "NYC", "LON", "CHI"][host % 4].into()),
        ];
        let labels = (0..SERIES_PER_HOST)
            .map(|series| {
                let mut out = Vec::new();
                label("__name__", &format!("cpu_usage_of_kind_{series:02}_total"), &mut out);
                tags.iter().for_each(|(name, value)| label(name, value, &mut out));
                out
            })
            .collect();
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(host as u64 + 1);
        Host { labels, values: vec![50.0; SERIES_PER_HOST], random }
    }

    fn step(&mut self) {
        for value in &mut self.values {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            // A clamped walk in whole numbers, as TSBS DevOps makes them; a third stands still.
            let step = [0, 0, 0, 1, -1, 2, -2, 3, -3][(self.random % 9) as usize];
            *value = (*value + f64::from(step)).clamp(0.0, 100.0);
        }
    }
}

/// One WriteRequest, snappy-compressed.
fn request(hosts: &mut [Host], ts: i64) -> Vec<u8> {
    let mut body = Vec::with_capacity(hosts.len() * SERIES_PER_HOST * 300);
    let mut sample = Vec::with_capacity(24);
    for host in hosts {
        host.step();
        for (labels, value) in host.labels.iter().zip(&host.values) {
            sample.clear();
            sample.push(0x09);
            sample.extend_from_slice(&value.to_le_bytes());
            sample.push(0x10);
            varint(ts as u64, &mut sample);
            let series_bytes = labels.len() + 2 + sample.len();
            body.push(0x0a);
            varint(series_bytes as u64, &mut body);
            body.extend_from_slice(labels);
            body.push(0x12);
            varint(sample.len() as u64, &mut body);
            body.extend_from_slice(&sample);
        }
    }
    snap::raw::Encoder::new().compress_vec(&body).expect("fits in memory")
}

fn label(name: &str, value: &str, out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    for (tag, text) in [(0x0a, name), (0x12, value)] {
        inner.push(tag);
        varint(text.len() as u64, &mut inner);
        inner.extend_from_slice(text.as_bytes());
    }
    out.push(0x0a);
    varint(inner.len() as u64, out);
    out.extend_from_slice(&inner);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A kept-alive HTTP/1.1 connection; just enough for a load.
struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a TCP socket");
        Connection { stream, answer: Vec::new() }
    }

    fn post(&mut self, path: &str, body: &[u8]) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n\
             Content-Encoding: snappy\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(head.as_bytes()).expect("the server reads");
        self.stream.write_all(body).expect("the server reads");
        self.read_answer();
    }

    /// Reads one answer whole, so that the connection can be used again.
    fn read_answer(&mut self) {
        self.answer.clear();
        let mut buf = [0; 4096];
        loop {
            let read = self.stream.read(&mut buf).expect("the server answers");
            assert!(read > 0, "the server closed the connection");
            self.answer.extend_from_slice(&buf[..read]);
            let text = String::from_utf8_lossy(&self.answer);
            let Some(head_bytes) = text.find("\r\n\r\n") else { continue };
            let head = text[..head_bytes].to_ascii_lowercase();
            let status = head.split(' ').nth(1).unwrap_or_default();
            let body_bytes = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .map_or(0, |length| length.trim().parse().unwrap_or(0));
            if self.answer.len() >= head_bytes + 4 + body_bytes {
                assert!(status.starts_with('2'), "the server refused a write: {text}");
                return;
            }
        }
    }
}
