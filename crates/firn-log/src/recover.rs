//! Recovery of a stream: its files, and the replay of its entries.

mod files;
mod replay;

pub(crate) use files::StreamFiles;
pub use replay::{PayloadRange, ReplayEntry, ReplayReport};
