//! The database behind the proxy: records requests, and misbehaves at some paths and queries.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The password in the proxy's URL of the origin.
pub(crate) const PASSWORD: &str = "sekret-of-the-origin";
/// The path in the proxy's URL of the origin: requests outside of it have escaped.
pub(crate) const PREFIX: &str = "/tenant-a";
/// Contained in each response to an escaped request.
pub(crate) const ESCAPED: &str = "the-other-tenant";
/// A misbehaving response lasts this long; no answer of the server may take as long.
const HANG: Duration = Duration::from_secs(240);
const HUGE_BYTES: usize = 300 << 20;

/// A running origin; its threads end with this program.
pub(crate) struct Origin {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// Listens on loopback.
    ///
    /// # Errors
    /// Without a free port.
    pub(crate) fn start() -> io::Result<Origin> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let recorded = Arc::clone(&recorded);
                std::thread::spawn(move || {
                    let _ = serve(stream, &recorded);
                });
            }
        });
        Ok(Origin { address, requests })
    }

    /// With credentials and a path.
    pub(crate) fn url(&self) -> String {
        format!("http://proxy:{PASSWORD}@{}{PREFIX}", self.address)
    }

    /// Heads of all requests, and forgets them.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("no panic"))
    }
}

fn serve(stream: TcpStream, recorded: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        recorded.lock().expect("no panic").push(head.clone());
        let lower = head.to_ascii_lowercase();
        let header = |name: &str| {
            let lines = lower.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(found, _)| *found == name).map(|(_, value)| value.to_owned()).next()
        };
        let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if lower.contains("transfer-encoding: chunked") {
            let mut line = String::new();
            while line != "0\r\n" {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
            }
            reader.read_line(&mut line)?;
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let asked = format!("{path}&{}", String::from_utf8_lossy(&body));
        let tenant = header("x-scope-orgid").unwrap_or_else(|| "none".to_owned());
        respond(&mut stream, path, &asked, &tenant)?;
    }
}

fn respond(stream: &mut TcpStream, path: &str, asked: &str, tenant: &str) -> io::Result<()> {
    if !path.starts_with(PREFIX) {
        return whole(stream, "200 OK", &format!("{ESCAPED}\n"));
    }
    if asked.contains("hang-before-head") {
        std::thread::sleep(HANG);
        return Ok(());
    }
    if asked.contains("hang-in-head") {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Ty")?;
        std::thread::sleep(HANG);
        return Ok(());
    }
    if asked.contains("hang-in-body") {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"status\":")?;
        std::thread::sleep(HANG);
        return Ok(());
    }
    if asked.contains("no-answer") {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    if asked.contains("other-protocol") {
        return stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        );
    }
    if asked.contains("empty-error") {
        return stream.write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n");
    }
    if asked.contains("garbage") {
        return stream.write_all(b"\x00\x01\x02 this is no HTTP\r\n\r\n");
    }
    if asked.contains("endless-head") {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        for idx in 0..200_000 {
            stream.write_all(format!("X-Header-{idx}: {}\r\n", "x".repeat(50)).as_bytes())?;
        }
        return Ok(());
    }
    if asked.contains("huge") {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {HUGE_BYTES}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let part = vec![b'['; 1 << 20];
        for _ in 0..HUGE_BYTES >> 20 {
            stream.write_all(&part)?;
        }
        return Ok(());
    }
    if asked.contains("nested") {
        return whole(stream, "200 OK", &"[".repeat(1 << 20));
    }
    if asked.contains("false-gzip") {
        let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope";
        return stream.write_all(head.as_bytes());
    }
    if asked.contains("query_range") {
        let number = |name: &str| {
            let rest = asked.split_once(&format!("{name}="))?.1;
            let text: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            text.parse::<f64>().ok()
        };
        let (start, end) = (number("start").unwrap_or(0.0), number("end").unwrap_or(0.0));
        let step = number("step").filter(|step| *step > 0.0).unwrap_or(60.0);
        let steps = (((end - start) / step) as usize).min(11_000);
        let values: Vec<String> =
            (0..=steps).map(|idx| format!("[{},\"1\"]", start + step * idx as f64)).collect();
        let body = format!(
            "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{{\"metric\":\
             {{\"tenant\":\"{tenant}\"}},\"values\":[{}]}}]}}}}",
            values.join(",")
        );
        return whole(stream, "200 OK", &body);
    }
    whole(stream, "200 OK", "{\"status\":\"success\",\"data\":[]}")
}

fn whole(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
