//! Measures the cost of a sample and of a series in the head.
//!
//! Run `cargo run --release -p firn-head --example rows [series] [rounds]`.
//!
//! By default 100,000 series at 15 s for 120 rounds, time-major: once as lone series, once in
//! groups of 100. Values are like a server's: a third constant, a third counters, a third small
//! gauges. Prints CPU per sample and bytes per series. After every round of the last 40, reads
//! recent samples the way queries do; prints the median of these rounds, for the first read after a
//! round and for a later one.

#![allow(clippy::print_stdout, reason = "this is a tool")]
#![allow(clippy::disallowed_methods, reason = "measures real time and memory")]

use std::time::{Duration, Instant};

use firn_codec::{MemberColumn, Slots, merge_into_one};
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
    // The kernel adds up the time at a switch.
    std::thread::yield_now();
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
    let mut reads = Reads::default();
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
        if round + 40 >= load.rounds {
            read(load, &head, members, round, &mut reads);
        }
    }
    report(load, name, &head, &budget, &times, peak);
    reads.report();
    snapshots(&head);
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

/// CPU of reads of recent samples, in microseconds per member: the first after new rows, and the
/// third.
#[derive(Default)]
struct Reads {
    by_name: Vec<(&'static str, Vec<[f64; 2]>)>,
}

impl Reads {
    fn note(&mut self, name: &'static str, us: [f64; 2]) {
        match self.by_name.iter_mut().find(|known| known.0 == name) {
            Some((_, all)) => all.push(us),
            None => self.by_name.push((name, vec![us])),
        }
    }

    fn report(&mut self) {
        for (name, all) in &mut self.by_name {
            let median = |idx: usize| {
                let mut figures: Vec<f64> = all.iter().map(|us| us[idx]).collect();
                figures.sort_by(f64::total_cmp);
                figures[figures.len() / 2]
            };
            println!("  read {name}: {:.3} us first, {:.3} us again", median(0), median(1));
        }
    }
}

/// Reads as queries do. Each kind reads other members, so that none profits from another.
fn read(load: &Load, head: &Head, members: u64, round: u64, reads: &mut Reads) {
    let snapshot = head.snapshot();
    let end = snapshot.time_range().end;
    let recent = TimeRange::new(end - 300_000, end);
    let groups = load.series / members;
    let mut column = MemberColumn::default();
    let mut timed = |name, count: u64, read: &mut dyn FnMut(&mut MemberColumn)| {
        let mut us = || {
            let start = cpu();
            read(&mut column);
            (cpu() - start).as_nanos() as f64 / 1e3 / count as f64
        };
        let first = us();
        us();
        reads.note(name, [first, us()]);
    };
    let slot = |idx: u64| Slot((idx * members.min(10) / 10 * 7 % members) as u32);
    // Groups that the other kinds read too, so half of the rounds have this kind alone.
    let narrow = |column: &mut MemberColumn| {
        for idx in 0..40 {
            let group = GroupId((idx / 5 * 97 + round) % groups);
            let mut reader = snapshot.reader(recent);
            let series = SeriesRef { group, slot: slot(idx % 5) };
            assert!(reader.read_one(series, recent, column).expect("written rows are readable"));
        }
    };
    let wide = |column: &mut MemberColumn| {
        let mut reader = snapshot.reader(recent);
        for group in 0..groups {
            let series = SeriesRef { group: GroupId(group), slot: slot(5) };
            assert!(reader.read_one(series, recent, column).expect("written rows are readable"));
        }
    };
    let slots: Vec<Slot> = (0..members.min(10)).map(|slot| Slot(slot as u32)).collect();
    let all: Vec<Slot> = (0..members).map(|slot| Slot(slot as u32)).collect();
    let each = |slots: &[Slot], range: TimeRange| {
        let mut reader = snapshot.reader(range);
        for group in 0..groups {
            let sources = reader.read(GroupId(group), Slots::Some(slots), range);
            let merged = merge_into_one(sources.expect("written rows are readable"), range);
            std::hint::black_box(merged);
        }
    };
    match round % 4 {
        0 => timed("one member of each of 40 groups", 40, &mut { narrow }),
        1 => timed("one member of all groups", groups, &mut { wide }),
        2 => timed("ten members of all groups", groups * slots.len() as u64, &mut |_| {
            each(&slots, recent);
        }),
        _ => timed("all members of all groups", load.series, &mut |_| each(&all, recent)),
    }
}

fn snapshots(head: &Head) {
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
