//! Addresses of the servers that tests start.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// An address on loopback that nothing uses, a different one for each call.
///
/// Its port is below those that the system assigns to connections, one of which would otherwise
/// take it first. A UDP socket of the same number, open until this process ends, keeps the port
/// from other test runs on this machine. A refused connection shows that the port is free: a
/// listener, closed again, can stay open for a while in a program that another thread starts at
/// that moment.
///
/// # Panics
/// If every port is in use.
#[must_use]
pub fn free_address() -> SocketAddr {
    const PORTS: std::ops::Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let first = std::process::id().wrapping_mul(97);
    let mut tries = 0..PORTS.len();
    tries
        .find_map(|_| {
            let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = PORTS.start + number % PORTS.len() as u32;
            let reserved = UdpSocket::bind(("127.0.0.1", port as u16)).ok()?;
            let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
            TcpStream::connect(address).is_err().then_some(())?;
            RESERVED.lock().expect("no panic").push(reserved);
            Some(address)
        })
        .expect("a free port on loopback")
}
