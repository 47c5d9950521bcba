//! Server: the database over HTTP, and the two kinds of `firn cache`.
//!
//! **Owns** listeners and connections; protocols in (remote write 1.0, text exposition, groups,
//! transactions) and out (the query API of Prometheus, federation, remote read, outgoing remote
//! write); the sender cache; metadata; the threads on which requests block; scraping by
//! `prometheus.yml` and of itself; rules and the delivery of alerts; the page at `/`; and the
//! settings.
//!
//! **Never** touches a file of the database, evaluates a query or orders writes: it uses the
//! database only through `firndb`. Async ends at [`Ingest`] and at the query threads; calls below
//! them block.
//!
//! **Write path**: `http/write` reads a bounded body; a write thread decompresses and walks it
//! (`wire/remote_write`); `sender_cache` turns hashes of labels into references; `ingest` fills one
//! batch and writes it. The response is 204 once the batch is durable.
//!
//! **Read path**: `http/query` checks the parameters; a query thread evaluates and writes JSON
//! (`wire/json`), and stops when the client disconnects. `http/read` walks over raw samples and
//! hands frames (`wire/remote_read`) to the connection at its pace.
//!
//! **Caches**: `proxy` in front of other databases, `cache_server` for other programs.
//!
//! **Invariants**: a write is answered with 2xx only after the database has reported it durable;
//! every received sample is counted as written or under one reason for its rejection (`tally`);
//! bodies, decoded requests and responses are reserved in the memory budget first; every queue,
//! body, wait and number of connections is bounded; nothing is allocated, locked or counted per
//! sample; input never causes a panic.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `config`, `access`, `net`, `server`, `database`, `snapshots`, `answer`,
//! `held_body`, `app`, `http`, `ingest`, `tally`, `throttle`, `wire`, `sender_cache`, `threads`,
//! `flights`, `metadata`, `metadata_file`, `collect`, `target`, `self_scrape`, `rules`, `notify`,
//! `remote_write`, `admin_listener`, `proxy`, `cache_server`; metrics: `metrics_text`, `stats`,
//! `telemetry`, `duration_summary`, `prometheus_names`; commands: `inspect`, `scratch`; `machine`,
//! `hostname`, `clock`.

#![forbid(unsafe_code)]

mod access;
mod admin_listener;
mod answer;
mod app;
mod cache_server;
mod clock;
mod collect;
pub mod config;
mod database;
mod duration_summary;
mod flights;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod held_body;
mod hostname;
mod http;
pub mod ingest;
mod inspect;
mod machine;
pub mod metadata;
mod metadata_file;
mod metrics_text;
mod net;
mod notify;
mod prometheus_names;
mod proxy;
mod query_log;
mod remote_write;
mod rules;
mod scratch;
mod self_scrape;
pub mod sender_cache;
mod server;
mod snapshots;
mod stats;
pub mod tally;
mod target;
mod telemetry;
mod threads;
mod throttle;
pub mod wire;

pub use access::{NewUser, UserFile, UserSummary, WebConfig, hash_password};
pub use cache_server::CacheServer;
pub use collect::{FoundTargets, UnsupportedParts, discover, is_of_prometheus_config};
pub use config::{CacheConfig, DatabaseFlags, Flags, LoadedConfig, ServeConfig};
pub use firn_env::{given_file, is_same_file};
pub use firn_model::{Error, ErrorKind, GroupId, Result, Secret, one_line, redacted};
pub use firndb::{CheckProgress, CheckReport, Finding, Loss};
pub use ingest::Ingest;
pub use inspect::{
    DatabaseLocation, InspectGroups, check_folder, inspect_cardinality, inspect_groups,
    inspect_table, inspect_tables,
};
pub use net::raise_open_files;
pub use proxy::Proxy;
pub use remote_write::push_request;
pub use server::{HostProcess, Server};
