//! Costs and benefits of the log: DecLog's transactions on memory and on a file, the log's own CPU
//! and bytes, senders that wait for the device and senders that do not, and recovery after a kill.
//!
//! `bench-log --only words`, of ycsb, alone, engine, bytes, cpu, senders, server, reads, plain,
//! recovery, kill; all by default. The folder for temporary files (`TMPDIR`) selects the device.

mod alone;
mod cost;
mod engine;
mod recovery;
mod replayed;
mod senders;
mod store;
mod transactions;
mod work;

use std::path::Path;

use firn_bench::report::{Aim, finish};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SHARD_COUNT: usize = 64;
/// On memory: a stream for each of two cores. As the server has it by default.
const STREAM_COUNT: usize = 2;
/// In files.
const FILE_STREAM_COUNT: usize = 1;
/// Samples of a sender's request, Prometheus' default.
const BATCH: usize = 2_000;
const SERIES_COUNT: usize = 100_000;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, folder, rounds, more] = args.as_slice()
        && word == "--child"
    {
        return work::write_and_wait(Path::new(folder), rounds.parse()?, more.parse()?);
    }
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1).cloned().unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split([' ', ',']).any(|word| word == name);
    let mut aims = Vec::new();
    if wanted("ycsb") {
        transactions::ycsb(&mut aims)?;
    }
    if wanted("alone") {
        alone::alone(&mut aims)?;
    }
    if wanted("engine") {
        engine::engine(&mut aims)?;
    }
    if wanted("bytes") {
        cost::bytes(&mut aims)?;
    }
    if wanted("cpu") {
        cost::cpu(&mut aims)?;
    }
    if wanted("senders") {
        senders::senders(&mut aims)?;
    }
    if wanted("server") {
        senders::server(&mut aims)?;
    }
    if wanted("reads") {
        senders::reads()?;
    }
    if wanted("plain") {
        senders::plain(&mut aims)?;
    }
    if wanted("recovery") {
        recovery::recovery(&mut aims)?;
    }
    if wanted("kill") {
        recovery::kill(&mut aims)?;
    }
    Ok(finish("log", &aims)?)
}

fn aim(aims: &mut Vec<Aim>, name: impl Into<String>, figure: f64, at_most: f64) {
    aims.push(Aim { name: name.into(), figure, at_most });
}
