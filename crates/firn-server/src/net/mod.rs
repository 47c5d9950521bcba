//! The network side of a process, the same for the database server, the cache server and the proxy.
//!
//! **Owns** listeners, the accept loop, the limits of connections in number and time, signals, and
//! the stop. **Never** knows a route, or a protocol other than the framing of HTTP.
//!
//! **Invariants**: connections, waits for a client and heads are bounded; a connection within a
//! request is not evicted; hyper reads only heads that it accepts, so every refusal has a text; a
//! body is not copied.
//!
//! Reading order: `service`, `limits`, `table`, `transport`, `tls`, `http`, `socket`, `head`,
//! `chunks`, `transfer`.

mod chunks;
mod head;
mod http;
mod limits;
mod service;
mod socket;
mod table;
mod tls;
mod transfer;
mod transport;

#[cfg(test)]
mod tests;

#[cfg(any(test, fuzzing))]
pub(crate) use self::head::HEADERS_MAX;
pub(crate) use self::head::{HEAD_BYTES_MAX, HeadRefusal, parse as parse_head, too_large};
pub(crate) use self::http::{BUFFER_BYTES_MAX, ClientAddress, HttpOptions, ListenAddress, serve};
pub(crate) use self::limits::ConnectionLimits;
pub use self::limits::raise_open_files;
pub(crate) use self::service::{Accepted, BoundService, Service, Stopping, stopped, terminated};
pub(crate) use self::table::{ConnectionHandle, ConnectionTable};
pub(crate) use self::transfer::{
    SHORT_TRANSFER_LIMITS, TRANSFER_LIMITS, TransferClock, TransferLimits, after,
};
pub(crate) use self::transport::Transport;
