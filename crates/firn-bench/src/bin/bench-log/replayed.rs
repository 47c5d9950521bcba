//! Replays the logs of the transactions into a head.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use firn_bench::log::central::Central;
use firn_bench::log::ycsb::{POINT_BYTES, decode_point};
use firn_env::{Clock, Disk, SystemClock};
use firn_log::{EntryKind, Log, LogSetup, StreamId};
use firn_model::{CommitSeq, Error, LogPosition, Result, RowBatch, ShardId, decode_varint};

use crate::Outcome;
use crate::store::{Store, series};

/// The result of a replay.
pub(crate) struct Recovered {
    pub(crate) points: u64,
}

/// Unencoded points that are written to the head in one batch.
const BATCH: usize = 1_000;

/// Per shard the rows of updates by number: as in the engine, they come between rows of smaller and
/// larger numbers.
type Updates = BTreeMap<ShardId, BTreeMap<CommitSeq, Vec<u8>>>;

/// Collects points that were logged unencoded, and writes them to the head in batches.
struct Points<'a> {
    store: &'a Store,
    batch: RowBatch,
    count: u64,
}

impl Points<'_> {
    fn new(store: &Store) -> Points<'_> {
        Points { store, batch: RowBatch::default(), count: 0 }
    }

    fn take(&mut self, payload: &[u8]) -> Result<()> {
        let (key, ts, value) = decode_point(payload).ok_or_else(|| Error::internal("no point"))?;
        self.batch.push(series(key as usize), ts, value);
        self.count += 1;
        if self.batch.len() == BATCH { self.insert() } else { Ok(()) }
    }

    fn insert(&mut self) -> Result<()> {
        self.batch.sort(self.store.bits);
        self.store.write(&self.batch).map_err(|e| Error::internal(e.to_string()))?;
        self.batch.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<u64> {
        self.insert()?;
        Ok(self.count)
    }
}

pub(crate) fn central(store: &Store, central: &Central) -> Outcome<Recovered> {
    let mut points = Points::new(store);
    central.replay(|payload| points.take(payload))?;
    Ok(Recovered { points: points.finish()? })
}

/// Reopens the log of `disk` and replays its streams in parallel.
pub(crate) fn log(
    store: &Store,
    disk: &Arc<dyn Disk>,
    options: LogSetup,
    floors: &[LogPosition],
) -> Outcome<Recovered> {
    // As in the server; otherwise entries are unencoded points.
    let is_encoded = options.unit_bytes > 8;
    let stream_count = options.stream_count;
    let clock = Arc::new(SystemClock::new()) as Arc<dyn Clock>;
    let log = Log::open(Arc::clone(disk), clock, options, false)?;
    let updates = if is_encoded { updates(&log, floors)? } else { Updates::new() };
    let updates = Mutex::new(updates);
    let stream = |stream: usize| -> Outcome<u64> {
        let id = StreamId(stream as u16);
        let mut all = updates.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |shard: &ShardId| log.stream_of(*shard) == id;
        let mut own: Updates = Updates::new();
        let shards: Vec<ShardId> = all.keys().copied().filter(is_own).collect();
        own.extend(shards.into_iter().filter_map(|shard| all.remove_entry(&shard)));
        drop(all);
        let (mut points, mut rows) = (Points::new(store), 0);
        log.replay(id, floors[stream], &mut |entry| {
            if !is_encoded {
                return entry.payload.chunks(POINT_BYTES).try_for_each(|point| points.take(point));
            }
            if entry.kind != EntryKind::Rows {
                return Ok(());
            }
            rows += take_updates(store, &mut own, entry.shard, entry.seq)?;
            let (apply, segment) = (!entry.below_floor, entry.segment.0);
            let (shard, position) = (entry.shard, entry.position);
            let found =
                store.head.replay(shard, entry.seq, entry.payload, position, segment, apply)?;
            rows += if apply { found.row_count } else { 0 };
            Ok(())
        })?;
        for shard in own.keys().copied().collect::<Vec<_>>() {
            rows += take_updates(store, &mut own, shard, CommitSeq(u64::MAX))?;
        }
        Ok(rows + points.finish()?)
    };
    let stream = &stream;
    let counts: Vec<Outcome<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..stream_count).map(|idx| scope.spawn(move || stream(idx))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a replay panicked")).collect()
    });
    let points = counts.into_iter().sum::<Outcome<u64>>()?;
    Ok(Recovered { points })
}

/// All updates are entries of the first stream.
fn updates(log: &Log, floors: &[LogPosition]) -> Outcome<Updates> {
    let mut updates = Updates::new();
    log.replay(log.stream_of(ShardId(0)), floors[0], &mut |entry| {
        if entry.kind != EntryKind::Transaction || entry.below_floor {
            return Ok(());
        }
        let (bad, mut rest) = (|| Error::internal("no transaction"), entry.payload);
        while !rest.is_empty() {
            let shard = ShardId(decode_varint(&mut rest).ok_or_else(bad)? as u16);
            let len = decode_varint(&mut rest).ok_or_else(bad)? as usize;
            let (rows, behind) = rest.split_at_checked(len).ok_or_else(bad)?;
            updates.entry(shard).or_default().insert(entry.seq, rows.to_vec());
            rest = behind;
        }
        Ok(())
    })?;
    Ok(updates)
}

fn take_updates(
    store: &Store,
    updates: &mut Updates,
    shard: ShardId,
    before: CommitSeq,
) -> Result<u64> {
    let mut count = 0;
    while let Some(next) = updates.get_mut(&shard).and_then(BTreeMap::first_entry)
        && *next.key() < before
    {
        let (seq, rows) = next.remove_entry();
        store.head.split_parts(shard);
        count += store.head.replay_transaction(shard, seq, &rows)?;
    }
    Ok(count)
}
