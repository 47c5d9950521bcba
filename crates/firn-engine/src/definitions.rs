//! Writing definitions of new series to the log.
//!
//! After a crash no row may come back without its series: ids are used again, and the row would
//! appear under another series. Within a stream, definitions precede their rows. Two events could
//! still separate them.
//!
//! *A failed write or sync* removes a part from the middle of a stream. Its writers learn of it
//! when they wake; other writers continue in the next segment before that. So every append first
//! checks whether the stream has failed since the shard's definitions were logged, and logs all
//! definitions again that no index file contains.
//!
//! *A transaction* has its rows in the first stream, and the definitions are in the streams of
//! their shards, which may not be synced yet, above all under a relaxed policy. So the end of each
//! shard's last definition is remembered, and its stream is synced up to there before the
//! transaction is logged.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use firn_log::{Append, EntryKind, EntryRef, StreamId, Tip};
use firn_model::{LogPosition, Result, ShardId};

use crate::Engine;

/// The definitions in the log.
#[derive(Debug)]
pub(crate) struct Definitions {
    /// Per shard; accessed under the shard's lock.
    shards: Vec<LoggedDefinitions>,
    /// Bytes of all definitions that were logged, those of the replay included.
    logged_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct LoggedDefinitions {
    /// Failures of the stream when the shard last checked.
    failures: AtomicU64,
    /// End of the last definition; 0 if there was none since that failure.
    end: AtomicU64,
}

impl Definitions {
    /// `logged_bytes` of definitions are in the log.
    pub(crate) fn new(shard_count: usize, logged_bytes: u64) -> Definitions {
        let shards = (0..shard_count).map(|_| LoggedDefinitions::default()).collect();
        Definitions { shards, logged_bytes: logged_bytes.into() }
    }

    /// Bytes of all definitions that were logged, below the floors or above them.
    pub(crate) fn logged_bytes(&self) -> u64 {
        self.logged_bytes.load(Relaxed)
    }

    fn of(&self, shard: ShardId) -> &LoggedDefinitions {
        &self.shards[usize::from(shard.0)]
    }

    /// `bytes` of definitions of `shard` are logged, up to `end`.
    pub(crate) fn note_logged(&self, shard: ShardId, end: LogPosition, bytes: usize) {
        self.of(shard).end.store(end.0, Relaxed);
        self.logged_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Engine {
    /// Appends to `out` the definitions of `shard` that an append to `tip` must contain. The caller
    /// holds the shard's lock until they are logged, and requeues them if that fails.
    pub(crate) fn take_definitions(&self, shard: ShardId, tip: Tip, out: &mut Vec<u8>) {
        let given = self.definitions.of(shard);
        let is_late = mutant!(self, DefinitionsRequeuedLate);
        // Stored only on a change, because other shards share the cache line.
        if given.failures.load(Relaxed) != tip.failures && !is_late {
            given.failures.store(tip.failures, Relaxed);
            self.rooms.index.requeue(shard);
            given.end.store(0, Relaxed);
            out.clear();
        }
        self.rooms.index.take_pending(shard, out);
        if mutant!(self, DefinitionsNotLogged) {
            out.clear();
        }
    }

    /// Logs the definitions of `shard` that its stream lacks. Returns the end of the last one.
    ///
    /// # Errors
    /// Those of [`firn_log::Log::append`].
    pub(crate) fn log_definitions(&self, shard: ShardId, stream: StreamId) -> Result<LogPosition> {
        let _writer = self.rooms.head.shard(shard);
        let mut definitions = Vec::new();
        loop {
            let tip = self.rooms.log.tip(stream);
            self.take_definitions(shard, tip, &mut definitions);
            if definitions.is_empty() {
                return Ok(LogPosition(self.definitions.of(shard).end.load(Relaxed)));
            }
            let in_flight = self.ledger.sequence.draw(shard);
            let (kind, seq) = (EntryKind::Definition, in_flight.seq);
            let entry = EntryRef { kind, shard, seq, payload: &definitions };
            let appended = self.rooms.log.append(stream, tip.segment, &[entry]);
            match appended.inspect_err(|_| self.rooms.index.requeue(shard))? {
                Append::At(end) => {
                    self.definitions.note_logged(shard, end, definitions.len());
                    return Ok(end);
                }
                Append::Rotated => {}
            }
        }
    }
}
