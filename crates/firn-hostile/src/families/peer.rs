//! The other side of a server that collects: targets, lists of targets and Alertmanagers, one
//! behaviour for each path.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A misbehaving response lasts at most this long; no answer of the server may take as long.
const HANG: Duration = Duration::from_secs(240);
const PART_BYTES: usize = 256 << 10;

/// The response to a request with this head.
pub(crate) type Behaviour = Arc<dyn Fn(&mut TcpStream, &str) -> io::Result<()> + Send + Sync>;

/// One server for all families; its threads end with this program.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Accepts connections and is silent.
    pub(crate) silent: SocketAddr,
    state: Mutex<PeerState>,
}

#[derive(Default)]
struct PeerState {
    behaviours: HashMap<String, Behaviour>,
    counts: HashMap<String, usize>,
}

/// The server, which the first call starts.
pub(crate) fn peer() -> &'static Peer {
    static PEER: OnceLock<Peer> = OnceLock::new();
    PEER.get_or_init(|| {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let silent_address = silent.local_addr().expect("it is bound");
        std::thread::spawn(move || hold(&silent));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || accept(&listener));
        Peer { address, silent: silent_address, state: Mutex::default() }
    })
}

impl Peer {
    /// Sets the behaviour at `path`, and that of all paths below it.
    pub(crate) fn serve(
        &self,
        path: &str,
        behave: impl Fn(&mut TcpStream, &str) -> io::Result<()> + Send + Sync + 'static,
    ) {
        self.set(path, Arc::new(behave));
    }

    /// The same.
    pub(crate) fn set(&self, path: &str, behaviour: Behaviour) {
        self.state.lock().expect("no panic").behaviours.insert(path.to_owned(), behaviour);
    }

    /// Requests for `path` until now.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.state.lock().expect("no panic").counts.get(path).copied().unwrap_or(0)
    }

    /// Waits for `more` further requests for `path`. Returns whether they have come.
    pub(crate) fn wait_for(&self, path: &str, more: usize, time_max: Duration) -> bool {
        let wanted = self.count(path) + more;
        wait_until(time_max, || self.count(path) >= wanted)
    }

    fn behaviour(&self, path: &str) -> Option<Behaviour> {
        let mut state = self.state.lock().expect("no panic");
        let mut known = path.split('?').next().unwrap_or_default();
        while !state.behaviours.contains_key(known) {
            known = known.rsplit_once('/')?.0;
        }
        *state.counts.entry(known.to_owned()).or_default() += 1;
        state.behaviours.get(known).cloned()
    }
}

/// Looks for a condition every 20 ms. Returns whether it has come true in time.
pub(crate) fn wait_until(time_max: Duration, is_true: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < time_max {
        if is_true() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    is_true()
}

fn hold(listener: &TcpListener) {
    // Of the connections of an attack; those of earlier ones are closed.
    const HELD_MAX: usize = 6_000;
    let mut held = std::collections::VecDeque::new();
    for stream in listener.incoming().flatten() {
        held.push_back(stream);
        if held.len() > HELD_MAX {
            held.pop_front();
        }
    }
}

fn accept(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let _ = respond(stream);
        });
    }
}

fn respond(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANG))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: u64 = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    io::copy(&mut reader.take(length), &mut io::sink())?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    match peer().behaviour(&path) {
        Some(behave) => behave(&mut stream, &head),
        None => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    }
}

/// A whole response.
pub(crate) fn whole(media_type: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    coded(&format!("Content-Type: {media_type}\r\n"), body)
}

/// A whole response with these headers.
pub(crate) fn coded(headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!(
        "HTTP/1.1 200 OK\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The same bytes for each request.
pub(crate) fn bytes(response: impl Into<Vec<u8>>) -> Behaviour {
    let response = response.into();
    Arc::new(move |stream, _| stream.write_all(&response))
}

/// Made for each request, with its number.
pub(crate) fn made(make: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static) -> Behaviour {
    let number = std::sync::atomic::AtomicUsize::new(0);
    Arc::new(move |stream, _| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        stream.write_all(&make(number))
    })
}

/// Made with the first request.
pub(crate) fn late(make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Behaviour {
    let response = OnceLock::new();
    Arc::new(move |stream, _| stream.write_all(response.get_or_init(&make)))
}

/// `start`, and then parts without end.
pub(crate) fn endless(
    start: &'static str,
    part: impl Fn(usize) -> String + Send + Sync + 'static,
) -> Behaviour {
    Arc::new(move |stream, _| {
        stream.write_all(start.as_bytes())?;
        let (mut n, begun) = (0, Instant::now());
        let mut parts = String::with_capacity(PART_BYTES * 2);
        while begun.elapsed() < HANG {
            parts.clear();
            while parts.len() < PART_BYTES {
                parts.push_str(&part(n));
                n += 1;
            }
            stream.write_all(parts.as_bytes())?;
        }
        Ok(())
    })
}

/// A byte, a pause, the next byte.
pub(crate) fn dripping(response: impl Into<Vec<u8>>) -> Behaviour {
    let response = response.into();
    Arc::new(move |stream, _| {
        for byte in &response {
            stream.write_all(std::slice::from_ref(byte))?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    })
}

/// `start`, and then silence.
pub(crate) fn silent(start: &'static str) -> Behaviour {
    Arc::new(move |stream, _| {
        stream.write_all(start.as_bytes())?;
        // Until the client closes.
        stream.set_read_timeout(Some(HANG))?;
        let _ = stream.read(&mut [0; 64]);
        Ok(())
    })
}

/// A redirect.
pub(crate) fn redirect(location: impl Into<String>) -> Behaviour {
    bytes(format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n",
        location.into()
    ))
}
