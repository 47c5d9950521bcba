//! Definitions of new series on their way into the log.
//!
//! A row must not come back after a crash without the series that it is of: ids are given again, and it would show
//! under another one. Within a stream definitions stand before their rows. Two things could still part them.
//!
//! *A failed write or sync* takes a part out of the middle of a stream: the writers whose batch it was hear of it when they
//! wake, others go on in the next segment before that. So whoever appends looks first whether the stream has failed since the
//! shard's definitions were given to it, and gives it all again that no index file has.
//!
//! *Another stream*, or a relaxed policy: the rows of a transaction stand in the first stream, definitions in that of their
//! shard. It is known where a shard's last definition ends, and that is made durable before the transaction is logged.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use firn_log::{Append, EntryKind, EntryRef, StreamId, Tip};
use firn_model::{LogPosition, Result, ShardId};

use crate::Engine;

/// What the log was given of each shard's definitions. Touched under the shard's lock.
#[derive(Debug)]
pub(crate) struct Definitions(Vec<LoggedDefinitions>);

#[derive(Debug, Default)]
struct LoggedDefinitions {
    /// How often the stream had failed when the shard last looked.
    failures: AtomicU64,
    /// Where the last one ends; 0 if none was given since that failure.
    end: AtomicU64,
}

impl Definitions {
    pub(crate) fn new(shard_count: usize) -> Definitions {
        Definitions((0..shard_count).map(|_| LoggedDefinitions::default()).collect())
    }

    fn of(&self, shard: ShardId) -> &LoggedDefinitions {
        &self.0[usize::from(shard.0)]
    }

    /// The log was given some of `shard`, up to `end`.
    pub(crate) fn note_logged(&self, shard: ShardId, end: LogPosition) {
        self.of(shard).end.store(end.0, Relaxed);
    }
}

impl Engine {
    /// Puts into `out`, behind those that it has, the definitions of `shard` that an append to `tip` must bring along. The
    /// caller holds the shard's lock until the log has them; if it does not take them they are to be requeued.
    pub(crate) fn take_definitions(&self, shard: ShardId, tip: Tip, out: &mut Vec<u8>) {
        let given = self.definitions.of(shard);
        let is_late = mutant!(self, DefinitionsRequeuedLate);
        // Stored only where it differs: others' shards are in the same cache line.
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

    /// Sees to it that the log has all definitions of `shard`. Returns where the last one ends.
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
            let in_flight = self.ledger.sequence.draw();
            let (kind, seq) = (EntryKind::Definition, in_flight.seq);
            let entry = EntryRef { kind, shard, seq, payload: &definitions };
            let appended = self.rooms.log.append(stream, tip.segment, &[entry]);
            match appended.inspect_err(|_| self.rooms.index.requeue(shard))? {
                Append::At(end) => {
                    self.definitions.note_logged(shard, end);
                    return Ok(end);
                }
                Append::Rotated => {}
            }
        }
    }
}
