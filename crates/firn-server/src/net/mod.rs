//! The network side of a process, the same for the database server, the cache server and the proxy.
//!
//! **Owns** listeners, the accept loop with its limits, connections and their time limits, signals,
//! and the stop. **Never** knows a route or a protocol other than HTTP's framing.
//!
//! Reading order: `service`, `transport`, `tls`, `http`.

mod http;
mod service;
mod tls;
mod transport;

pub(crate) use self::http::{ClientAddress, serve};
pub(crate) use self::service::{Accepted, BoundService, Service, Stopping, stopped, terminated};
pub(crate) use self::transport::Transport;
