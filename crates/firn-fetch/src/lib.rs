//! Fetch: HTTP requests as the clients of Prometheus' configuration make them.
//!
//! **Owns** connections to other servers: TLS, proxies, credentials, redirects, HTTP/1.1 with
//! keep-alive and HTTP/2, and bodies that are bounded while they are unpacked. It also looks up
//! addresses and records of names.
//!
//! **Never** interprets a body, repeats a request at an interval, or knows a target.
//!
//! **Paths**: [`Client::new`] checks a client of the configuration; [`Client::send`] makes one
//! request over the [`Connections`] that the caller keeps for a place; [`Client::watch`] reads an
//! endless answer line by line. [`dns::records`] queries name servers.
//!
//! **Invariants**: files with secrets and certificates are read at every request; credentials
//! reach only the host of the request's address; memory of a body is reserved before it is used; a
//! request ends within its time limit; names that hang occupy a part of the threads; no error and
//! no body of a refusal shows a secret that the request carried.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `error`, `body`, `tls`, `proxy`, `lookup`, `fair`, `outgoing`, `sent_secrets`,
//! `frames`, `connect`, `credentials`, `message`, `tokens`, `redirect`, `lines`, `client`, `dns`.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod body;
mod client;
mod connect;
mod credentials;
pub mod dns;
mod error;
mod fair;
mod frames;
mod lines;
mod lookup;
mod message;
mod outgoing;
mod proxy;
mod redirect;
mod sent_secrets;
mod tls;
mod tokens;

#[cfg(test)]
mod test_config;

pub use body::{Bodies, Body};
pub use client::{Client, Watched};
pub use connect::Connections;
pub use error::{FetchError, with_causes};
pub use fair::{ClientId, FairPlaces, PlacePermit};
pub use lines::Lines;
pub use message::{Content, Request, Response};
pub use outgoing::Purpose;
