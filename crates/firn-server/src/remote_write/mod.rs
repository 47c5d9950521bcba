//! Outgoing remote write: the destinations of `remote_write` in the configuration.
//!
//! **Owns** a task per destination, which reads the log by position, builds requests, sends them
//! and stores the position.
//!
//! **Never** keeps a second copy of samples on disk, waits inside a write of the database, or opens
//! a connection itself: `firn-fetch` does.
//!
//! **Path**: [`RemoteWriter`] is the part of the configuration. Its supervisor starts one `run` per
//! section (`destination`). That reads a *window* of samples, stores that it will try it, sends it
//! in parts (`window`), and stores that it is done. A part has the labels that relabelling makes of
//! its series (`series`) and is sent as requests (`message`) from several shards.
//!
//! **Invariants**: samples of a series are sent in the order of the log; a window is not done
//! before each of its samples was accepted, refused or dropped by a rule; after a crash the same
//! window is sent again as the same requests, except for the samples that `sent` had left out, so a
//! receiver that refuses a request with old samples as a whole loses no new ones; memory is
//! reserved before it is used, and all memory of a destination, requests that wait for an answer
//! included, is its share (`share`); the memory of the requests of a part is reserved with its
//! labels, so that nothing waits while it holds them.
//!
//! Reading order: `message`, `series`, `share`, `sent`, `window`, `metrics`, `destination`,
//! `writer`.

mod destination;
mod message;
mod metrics;
mod sent;
mod series;
mod share;
mod window;
mod writer;

pub use message::push_request;
pub(crate) use writer::{RemoteWriter, run};
