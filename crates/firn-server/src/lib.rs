//! Server: the database for people who speak HTTP.
//!
//! **Owns** the listener and its connections, protocols in (remote write 1.0, text exposition, groups) and out
//! (Prometheus' query API, federation, remote read), the sender cache, metadata, the threads on which requests
//! block, the scrape of itself, the page at `/`, and the settings.
//!
//! **Never** touches a file of the database, evaluates a query or orders a write: it sees the database
//! only through `firndb`. Async ends at [`Ingest`] and at the query threads; below them calls block.
//!
//! **A sample in**: `http/write` reads a bounded body, a write thread unpacks and walks it
//! (`wire/remote_write`), `sender_cache` turns label hashes into references, `ingest` fills one batch
//! and writes it; 204 when it is durable. **A query out**: `http/query` checks parameters, a query
//! thread evaluates and writes JSON (`wire/json`), and stops when the client has gone. **Raw samples out**:
//! `http/read` walks over series and hands frames (`wire/remote_read`) to the connection as it takes them.
//!
//! **A cache for other databases**: `proxy`; **for other programs**: `cache_server`.
//!
//! **Invariants**: a 2xx for a write leaves after the database called it durable; every sample that came in is
//! counted as written or under one reason why not (`tally`); bodies, decoded
//! requests and answers are reserved in the database's memory budget first; every queue, body, wait
//! and number of connections is bounded; nothing is allocated, locked or counted per sample; input
//! never panics.
//!
//! Reading order: `config`, `server`, `database`, `app`, `http`, `ingest`, `tally`, `wire`, `sender_cache`, `threads`, `cache_settings`, `proxy`, `cache_server`.

#![forbid(unsafe_code)]

mod app;
mod cache_server;
mod cache_settings;
pub mod config;
mod database;
mod http;
pub mod ingest;
mod inspect;
mod machine;
pub mod metadata;
mod proxy;
mod self_scrape;
pub mod sender_cache;
mod server;
mod stats;
pub mod tally;
mod target;
mod telemetry;
mod threads;
pub mod wire;

pub use cache_server::{CacheServer, CacheServerConfig};
pub use cache_settings::{CacheConfig, CacheSettings};
pub use config::{Config, Settings};
pub use firn_model::{Error, ErrorKind, GroupId, Result};
pub use firndb::{CheckProgress, CheckReport, Loss};
pub use ingest::Ingest;
pub use inspect::{
    DatabaseLocation, InspectGroups, check_folder, inspect_cardinality, inspect_groups,
    inspect_table, inspect_tables,
};
pub use proxy::{Proxy, ProxyConfig};
pub use server::Server;
