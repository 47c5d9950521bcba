//! A server of many targets on one address: `/target/NUMBER`.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{Page, PageValues};

/// Targets from this number on answer 500.
pub const FAILING_FROM: u64 = 100_000;
/// Targets from this number on send a byte a second and never end.
pub const SLOW_FROM: u64 = 200_000;
/// Targets from this number on answer with 50 MB of comments.
pub const LARGE_FROM: u64 = 300_000;

const LARGE_BYTES: usize = 50_000_000;
const STACK_BYTES: usize = 128 << 10;

/// The targets. Their threads end with their connections.
#[derive(Debug)]
pub struct Targets {
    /// Of the listener.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    page: Page,
    targets: Mutex<HashMap<u64, Arc<Mutex<Target>>>>,
}

#[derive(Debug)]
struct Target {
    values: PageValues,
    requests: Vec<Instant>,
}

/// The requests to ordinary targets since a moment.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Their number.
    pub count: usize,
    /// The distance of two requests of one target from the interval, ascending, seconds.
    pub delays_s: Vec<f64>,
}

impl Targets {
    /// Listens on a free port of the loopback interface.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start() -> io::Result<Targets> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { page: Page::new(), targets: Mutex::default() });
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = Arc::clone(&server);
                let serve = move || drop(server.serve(stream));
                // Without a thread the connection is closed, and the scrape fails.
                let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
            }
        });
        Ok(Targets { address, shared })
    }

    /// The requests of ordinary targets from `start` on, which should be `interval` apart.
    pub fn requests(&self, start: Instant, interval: Duration) -> Requests {
        let mut found = Requests::default();
        let targets = lock(&self.shared.targets);
        for target in targets.values() {
            let target = lock(target);
            let from = target.requests.partition_point(|&time| time < start);
            let times = &target.requests[from..];
            found.count += times.len();
            let delay = |pair: &[Instant]| {
                ((pair[1] - pair[0]).as_secs_f64() - interval.as_secs_f64()).abs()
            };
            found.delays_s.extend(times.windows(2).map(delay));
        }
        found.delays_s.sort_by(f64::total_cmp);
        found
    }
}

impl Requests {
    /// The delay that 99 of 100 requests keep, seconds; 0 without requests.
    pub fn p99_s(&self) -> f64 {
        self.delays_s.get(self.delays_s.len() * 99 / 100).copied().unwrap_or(0.0)
    }
}

impl Shared {
    /// Answers the requests of a connection until it is closed.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        let mut body = String::new();
        loop {
            let Some(number) = read_request(&mut reader)? else { return Ok(()) };
            body.clear();
            match number {
                LARGE_FROM.. => {
                    while body.len() < LARGE_BYTES {
                        body.push_str("# a comment that makes the body long, again and again\n");
                    }
                }
                SLOW_FROM.. => return drip(&mut writer),
                FAILING_FROM.. => {
                    let head = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
                    writer.write_all(head.as_bytes())?;
                    continue;
                }
                _ => {
                    let target = self.target(number);
                    let mut target = lock(&target);
                    target.requests.push(Instant::now());
                    self.page.write(&mut target.values, &mut body);
                }
            }
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            writer.write_all(head.as_bytes())?;
            writer.write_all(body.as_bytes())?;
        }
    }

    fn target(&self, number: u64) -> Arc<Mutex<Target>> {
        let mut targets = lock(&self.targets);
        let new = || Target { values: self.page.values(number), requests: Vec::new() };
        Arc::clone(targets.entry(number).or_insert_with(|| Arc::new(Mutex::new(new()))))
    }
}

/// The number of the requested target; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut line = String::new();
    let mut number = None;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line.trim().is_empty() {
            break;
        }
        let path = line.strip_prefix("GET /target/").and_then(|rest| rest.split(' ').next());
        number = number.or(path.and_then(|path| path.parse().ok()));
    }
    number.map(Some).ok_or_else(|| io::Error::other("not the path of a target"))
}

/// Sends a byte a second until the reader closes.
fn drip(writer: &mut TcpStream) -> io::Result<()> {
    writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n")?;
    loop {
        writer.write_all(b"#")?;
        thread::sleep(Duration::from_secs(1));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
