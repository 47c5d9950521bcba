//! Measures the cost of a sample and of a series in the head.
//!
//! Run `cargo run --release -p firn-head --example measure [series] [rounds]`.
//!
//! By default 100,000 series at 15 s for 120 rounds, time-major: once as lone series, once in
//! groups of 100. Values are like a server's: a third constant, a third counters, a third small
//! gauges. Prints CPU per sample and bytes per series.

#![allow(clippy::print_stdout, reason = "this is a tool")]
#![allow(clippy::disallowed_methods, reason = "measures real time and memory")]

use std::time::{Duration, Instant};

use firn_codec::{Slots, merge_into_one};
use firn_head::{Head, HeadOptions, bound_bytes};
use firn_model::{
    Budget, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits, Slot, TimeRange,
};

const SHARDS: usize = 64;
/// Samples of one request.
const REQUEST: u64 = 10_000;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("series and rounds"));
    let load = Load { series: args.next().unwrap_or(100_000), rounds: args.next().unwrap_or(120) };
    for (name, members) in [("lone", 1), ("groups of 100", 100)] {
        run(&load, name, members);
    }
}

struct Load {
    series: u64,
    rounds: u64,
}

/// CPU time of this thread: other work on the machine does not count.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|field| field.parse().ok());
    Duration::from_nanos(ns.expect("this tool needs Linux"))
}

#[derive(Default)]
struct Times {
    sort: Duration,
    write: Duration,
    /// Parts of `write`, by the wall clock.
    encode: Duration,
    stage: Duration,
    publish: Duration,
    convert: Duration,
    compress: Duration,
    log_bytes: u64,
}

fn run(load: &Load, name: &str, members: u64) {
    let bits = ShardBits::for_count(SHARDS);
    let budget = Budget::unlimited();
    let head = Head::new(bits, HeadOptions::default(), budget.clone());
    let mut times = Times::default();
    let mut batch = RowBatch::default();
    let mut peak = 0;
    for round in 0..load.rounds {
        for first in (0..load.series).step_by(REQUEST as usize) {
            batch.clear();
            for series in first..(first + REQUEST).min(load.series) {
                let member = SeriesRef {
                    group: GroupId(series / members),
                    slot: Slot((series % members) as u32),
                };
                let jitter = (series / members * 7919) % 15_000;
                let ts = 1_700_000_000_000 + (round * 15_000 + jitter) as i64;
                batch.push(member, ts, value(series, round));
            }
            let start = cpu();
            batch.sort(bits);
            let sorted = cpu();
            write(&head, &budget, &batch, round * load.series + first + 1, &mut times);
            times.sort += sorted - start;
            times.write += cpu() - sorted;
        }
        let start = cpu();
        while let Some(job) = head.plan_convert() {
            assert!(head.apply_convert(job.run().expect("written rows are readable")));
        }
        let converted = cpu();
        while let Some(job) = head.plan_compress() {
            assert!(head.apply_convert(job.run().expect("written rows are readable")));
        }
        times.convert += converted - start;
        times.compress += cpu() - converted;
        peak = peak.max(budget.usage().used_bytes);
    }
    report(load, name, &head, &budget, &times, peak);
    read(load, &head, members);
}

fn write(head: &Head, budget: &Budget, batch: &RowBatch, seq: u64, times: &mut Times) {
    let mut given = budget.reserve(Pool::Head, bound_bytes(batch)).expect("no limit");
    for rows in batch.by_shard() {
        let start = Instant::now();
        let mut writer = head.shard(rows.shard);
        let payload = writer.encode(CommitSeq(seq), rows, 1);
        times.log_bytes += payload.len() as u64;
        let encoded = Instant::now();
        writer.stage(LogPosition(seq), &mut given);
        let staged = Instant::now();
        drop(writer);
        head.publish(rows.shard, LogPosition(seq));
        times.encode += encoded - start;
        times.stage += staged - encoded;
        times.publish += staged.elapsed();
    }
}

fn report(load: &Load, name: &str, head: &Head, budget: &Budget, times: &Times, peak: u64) {
    let samples = (load.series * load.rounds) as f64;
    let ns = |time: Duration| time.as_nanos() as f64 / samples;
    let stats = head.stats();
    let per_series = |bytes: u64| bytes as f64 / load.series as f64;
    let clock = times.encode + times.stage + times.publish;
    let share = |time: Duration| ns(times.write) * time.as_secs_f64() / clock.as_secs_f64();
    println!(
        "{name}: sort {:.1}, encode {:.1}, stage {:.1}, publish {:.1}, convert {:.1}, \
         compress {:.1} ns per sample; log {:.2} B per sample",
        ns(times.sort),
        share(times.encode),
        share(times.stage),
        share(times.publish),
        ns(times.convert),
        ns(times.compress),
        times.log_bytes as f64 / samples,
    );
    println!(
        "  bytes per series: {:.1} now ({:.1} at peak) = arenas {:.1}, \
         segments {:.1} ({} of them), states {:.1}",
        per_series(budget.usage().used_bytes),
        per_series(peak),
        per_series(stats.arena_bytes),
        per_series(stats.segment_bytes),
        stats.segment_count,
        per_series(stats.state_bytes),
    );
}

/// One member of each group over the last five minutes, and over everything.
fn read(load: &Load, head: &Head, members: u64) {
    let snapshot = head.snapshot();
    let end = snapshot.time_range().end;
    let slot = [Slot(members as u32 / 2)];
    for (name, range) in
        [("5 min", TimeRange::new(end - 300_000, end)), ("everything", TimeRange::ALL)]
    {
        let start = cpu();
        let mut value_count = 0;
        let mut reader = snapshot.reader(range);
        for group in 0..load.series / members {
            let sources = reader.read(GroupId(group), Slots::Some(&slot), range);
            let merged = merge_into_one(sources.expect("written rows are readable"), range);
            value_count += merged.value_count();
        }
        let us = (cpu() - start).as_nanos() as f64 / 1e3 / (load.series / members) as f64;
        println!("  read one member of each group, {name}: {us:.2} us each, {value_count} values");
    }
    let start = cpu();
    for _ in 0..1_000 {
        std::hint::black_box(head.snapshot());
    }
    println!("  snapshot: {:.2} us", (cpu() - start).as_nanos() as f64 / 1e6);
}

fn value(series: u64, round: u64) -> f64 {
    let noise = (series.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03))
    .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 40;
    match series % 3 {
        0 => series as f64,
        1 => (series * 1_000 + round * 37 + noise % 16) as f64,
        _ => (500 + noise % 100) as f64 / 10.0,
    }
}
