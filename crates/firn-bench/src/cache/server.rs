//! `firn cache` as a program under test.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use firn_cache_client::{Client, Options};

use crate::server::{Program, process_cpu_s, threads_cpu_s};

/// A running `firn cache`; killed when dropped.
#[derive(Debug)]
pub struct CacheServer {
    child: Child,
    /// Its listen address.
    pub address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl CacheServer {
    /// Starts it with an empty folder and more arguments.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen within 30 s.
    pub fn start(more: &[&str]) -> io::Result<CacheServer> {
        let path = Program::Firn.path().ok_or(io::ErrorKind::NotFound)?;
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(path)
            .args(["cache", "--listen", &address.to_string()])
            .args(more)
            .arg("--data")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = CacheServer { child, address, _folder: folder };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err(io::Error::other("firn cache does not listen within 30 s"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// A client of its protocol.
    ///
    /// # Panics
    /// If it does not listen.
    pub fn client(&self) -> Client {
        Client::new(&[&self.address.to_string()], Options::default()).expect("a server")
    }

    /// User and system CPU seconds since its start.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn cpu_s(&self) -> f64 {
        process_cpu_s(self.child.id())
    }

    /// As [`threads_cpu_s`].
    ///
    /// # Panics
    /// If the process has ended.
    pub fn threads_cpu_s(&self) -> f64 {
        threads_cpu_s(self.child.id())
    }
}

impl Drop for CacheServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
