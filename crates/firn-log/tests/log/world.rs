//! A simulated database that has only a log, and a model of the entries that must be replayed.

use std::sync::Arc;

use firn_env::{Clock, Disk};
use firn_log::{
    Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, ReplayReport, SegmentNo, StreamId,
    SyncPolicy,
};
use firn_model::{CommitSeq, LogPosition, Result, ShardId};
use firn_sim::{Rng, Sim};

pub(crate) const STREAM_COUNT: usize = 3;
pub(crate) const SHARD_COUNT: usize = 8;

/// `count` seeds from `first` on. `FIRN_SOAK=20` runs 20 times as many (`make soak`), `FIRN_SEED=7`
/// only that one. The output of a failure ends with the command that repeats it.
pub(crate) fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("FIRN_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + count * number("FIRN_SOAK").unwrap_or(1),
    };
    seeds.inspect(|seed| {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or_default();
        eprintln!("FIRN_SEED={seed} cargo test --package firn-log --test log {test}");
    })
}

pub(crate) fn setup(segment_bytes: u64, sync: SyncPolicy) -> LogSetup {
    LogSetup {
        stream_count: STREAM_COUNT,
        shard_count: SHARD_COUNT,
        unit_bytes: 8,
        options: LogOptions { segment_bytes, sync },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Appended, without an outcome.
    Maybe,
    /// Committed: must be replayed.
    Safe,
    /// The commit failed: may be replayed until a later segment is durable.
    Failed,
    /// Missing after a restart: must never be replayed again.
    Absent,
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) fate: Fate,
    pub(crate) kind: EntryKind,
    pub(crate) shard: ShardId,
    pub(crate) seq: CommitSeq,
    pub(crate) payload: Vec<u8>,
    pub(crate) segment: SegmentNo,
    /// End of the entry's append.
    pub(crate) position: LogPosition,
}

/// The model of one stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) records: Vec<Record>,
    pub(crate) floor: LogPosition,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) sim: Sim,
    pub(crate) rng: Rng,
    pub(crate) streams: Vec<Stream>,
    pub(crate) next_seq: u64,
    /// Whether a log was started before.
    pub(crate) is_started: bool,
}

/// The replay of one stream, as indexes into the model's records.
#[derive(Debug)]
pub(crate) struct StreamReplay {
    pub(crate) found: Vec<usize>,
    pub(crate) report: ReplayReport,
    /// The indexes in `found` with `after_hole` set.
    pub(crate) after_holes: Vec<usize>,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        World {
            sim: Sim::new(seed),
            rng: Rng::new(seed ^ 0x10c),
            streams: (0..STREAM_COUNT).map(|_| Stream::default()).collect(),
            next_seq: 1,
            is_started: false,
        }
    }

    pub(crate) fn open(&self, setup: LogSetup) -> Result<Log> {
        let disk: Arc<dyn Disk> = Arc::new(self.sim.disk.clone());
        let clock: Arc<dyn Clock> = Arc::new(self.sim.clock.clone());
        Log::open(disk, clock, setup, self.is_started)
    }

    /// Replays every stream. Each entry must be an appended one, bit for bit, in order, once.
    pub(crate) fn replay(&self, log: &Log) -> Result<Vec<StreamReplay>> {
        (0..STREAM_COUNT).map(|stream| self.replay_stream(log, stream)).collect()
    }

    fn replay_stream(&self, log: &Log, stream: usize) -> Result<StreamReplay> {
        let model = &self.streams[stream];
        let mut found: Vec<usize> = Vec::new();
        let mut after_holes = Vec::new();
        let report = log.replay(StreamId(stream as u16), model.floor, &mut |entry| {
            let from = found.last().map_or(0, |last| last + 1);
            let is_it = |record: &Record| {
                (record.kind, record.shard, record.seq, record.segment)
                    == (entry.kind, entry.shard, entry.seq, entry.segment)
                    && record.payload == entry.payload
            };
            let idx = from
                + model.records[from..].iter().position(is_it).unwrap_or_else(|| {
                    panic!("stream {stream}: {entry:?} was never appended or is out of order")
                });
            let record = &model.records[idx];
            assert!(entry.position <= record.position, "an entry ends behind its append");
            assert_eq!(entry.below_floor, entry.position <= model.floor);
            if entry.after_hole {
                after_holes.push(found.len());
            }
            found.push(idx);
            Ok(())
        })?;
        // Appends are whole, and the last entry of each ends at the position of the append.
        for pair in found.windows(2) {
            let [a, b] = [&model.records[pair[0]], &model.records[pair[1]]];
            let cut_between = a.seq == b.seq && pair[0] + 1 != pair[1];
            assert!(!cut_between, "half an append");
        }
        for (at, &idx) in found.iter().enumerate() {
            for neighbour in [idx.wrapping_sub(1), idx + 1] {
                let Some(record) = model.records.get(neighbour) else { continue };
                if record.seq == model.records[idx].seq {
                    let is_there = found.get(at + 1) == Some(&neighbour)
                        || at.checked_sub(1).map(|before| found[before]) == Some(neighbour);
                    assert!(is_there, "half an append: {record:?}");
                }
            }
        }
        assert_eq!(report.entries as usize, found.len());
        Ok(StreamReplay { found, report, after_holes })
    }

    /// Appends one to three entries to a shard; retries after a rotation.
    pub(crate) fn append(
        &mut self,
        log: &Log,
        payload_bytes_max: u64,
    ) -> Result<(StreamId, LogPosition)> {
        let shard = ShardId(self.rng.below(SHARD_COUNT as u64) as u16);
        let stream = log.stream_of(shard);
        let count = if self.rng.chance(0.3) { 2 + self.rng.below(2) } else { 1 };
        let payloads: Vec<Vec<u8>> =
            (0..count).map(|_| payload(&mut self.rng, payload_bytes_max)).collect();
        let kinds: Vec<EntryKind> = (0..count)
            .map(|idx| if idx + 1 < count { EntryKind::Definition } else { EntryKind::Rows })
            .collect();
        let seq = CommitSeq(self.next_seq);
        // Sequences have gaps, because other streams draw from the same counter.
        self.next_seq += 1 + self.rng.below(3);
        let entries: Vec<EntryRef<'_>> = payloads
            .iter()
            .zip(&kinds)
            .map(|(payload, &kind)| EntryRef { kind, shard, seq, payload })
            .collect();
        let mut tries = 0;
        let (segment, position) = loop {
            let segment = log.tip(stream).segment;
            match log.append(stream, segment, &entries)? {
                Append::At(position) => break (segment, position),
                Append::Rotated => tries += 1,
            }
            assert!(tries < 3, "an empty segment is full");
        };
        let model = &mut self.streams[usize::from(stream.0)];
        for (payload, &kind) in payloads.iter().zip(&kinds) {
            let payload = payload.clone();
            let fate = Fate::Maybe;
            model.records.push(Record { fate, kind, shard, seq, payload, segment, position });
        }
        Ok((stream, position))
    }

    /// Commits positions of some streams and records the outcome.
    pub(crate) fn commit(
        &mut self,
        log: &Log,
        positions: &[(StreamId, LogPosition)],
    ) -> Result<()> {
        let outcome = log.commit(positions);
        for &(stream, position) in positions {
            self.record_commit(log, stream, position);
        }
        outcome
    }

    /// Records the outcome of the commits up to `position`.
    pub(crate) fn record_commit(&mut self, log: &Log, stream: StreamId, position: LogPosition) {
        let records = &mut self.streams[usize::from(stream.0)].records;
        let waiting = records.iter_mut().filter(|record| record.fate == Fate::Maybe);
        for record in waiting.filter(|record| record.position <= position) {
            let safe = log.durable_before(stream, record.position) >= record.position;
            record.fate = if safe { Fate::Safe } else { Fate::Failed };
        }
    }

    /// All safe records are replayed, and no absent one is.
    pub(crate) fn check(&self, replayed: &[StreamReplay]) {
        for (stream, (model, replayed)) in self.streams.iter().zip(replayed).enumerate() {
            let mut is_there = vec![false; model.records.len()];
            replayed.found.iter().for_each(|&idx| is_there[idx] = true);
            let last_safe = model.records.iter().rposition(|record| record.fate == Fate::Safe);
            let last_safe = last_safe.map(|idx| model.records[idx].segment);
            for (record, is_there) in model.records.iter().zip(is_there) {
                if record.position <= model.floor {
                    continue;
                }
                match record.fate {
                    Fate::Safe => assert!(is_there, "stream {stream}: lost {record:?}"),
                    Fate::Absent => assert!(!is_there, "stream {stream}: came back {record:?}"),
                    Fate::Failed if Some(record.segment) < last_safe => {
                        assert!(!is_there, "stream {stream}: failed but there {record:?}");
                    }
                    Fate::Failed | Fate::Maybe => {}
                }
            }
            let seqs = replayed.found.iter().map(|&idx| model.records[idx].seq);
            assert_eq!(replayed.report.seq_max, seqs.max().unwrap_or_default());
        }
    }

    /// After a start: replayed records are safe, the others are absent for ever.
    pub(crate) fn settle(&mut self, replayed: &[StreamReplay]) {
        for (model, replayed) in self.streams.iter_mut().zip(replayed) {
            model.records.iter_mut().for_each(|record| record.fate = Fate::Absent);
            replayed.found.iter().for_each(|&idx| model.records[idx].fate = Fate::Safe);
        }
    }

    /// Moves each floor to a random safe position without undecided records below it, and purges.
    pub(crate) fn purge(&mut self, log: &Log) -> Result<()> {
        for model in &mut self.streams {
            let open = model.records.iter().position(|record| record.fate == Fate::Maybe);
            let settled = &model.records[..open.unwrap_or(model.records.len())];
            let safe: Vec<LogPosition> = settled
                .iter()
                .filter(|record| record.fate == Fate::Safe)
                .map(|record| record.position)
                .collect();
            if !safe.is_empty() {
                model.floor = model.floor.max(*self.rng.pick(&safe));
            }
        }
        let floors: Vec<LogPosition> = self.streams.iter().map(|model| model.floor).collect();
        log.purge(&floors)
    }
}

fn payload(rng: &mut Rng, bytes_max: u64) -> Vec<u8> {
    let bytes = match rng.below(10) {
        0 => 0,
        1..8 => rng.below(100),
        _ => rng.below(bytes_max),
    };
    // Zeros are the hard case: they look like unwritten bytes.
    let zeros = rng.chance(0.2);
    (0..bytes).map(|_| if zeros { 0 } else { rng.next_u64() as u8 }).collect()
}
