//! A model of writers, a transaction and readers at once: `sequence.rs` compiled against a
//! scheduler that tries many interleavings of its locks and its counter.
//!
//! A reader that learns number `n` from [`Sequence::visible`] must find the rows of every number up
//! to `n`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use firn_model::{CommitSeq, ShardId};
use shuttle::thread::spawn;

#[expect(clippy::duplicate_mod, reason = "this copy names the model's locks")]
#[expect(dead_code, reason = "the model uses a part of the interface")]
#[path = "sequence.rs"]
mod sequence;

use sequence::Sequence;

/// The lock and the counter of the model, with the interface that `sequence.rs` expects.
mod sync {
    use std::ops::DerefMut;

    pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> impl DerefMut<Target = T> {
            self.0.lock().unwrap()
        }
    }
}

const SHARDS: u16 = 2;

/// A mistake of the engine around the sequence; the model must catch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// A number counts as arrived before its rows are visible.
    ArrivedBeforeVisible,
}

struct SequenceWorld {
    sequence: Sequence,
    shards: [shuttle::sync::Mutex<()>; SHARDS as usize],
    rows: shuttle::sync::Mutex<BTreeSet<u64>>,
    mistake: Mistake,
}

impl SequenceWorld {
    /// As the engine: the number under the shard's lock, the rows visible without it, then the
    /// arrival.
    fn write(&self, shard: u16) {
        let locked = self.shards[usize::from(shard)].lock().unwrap();
        let in_flight = self.sequence.draw(ShardId(shard));
        drop(locked);
        let seq = in_flight.seq.0;
        if self.mistake == Mistake::ArrivedBeforeVisible {
            drop(in_flight);
            self.rows.lock().unwrap().insert(seq);
        } else {
            self.rows.lock().unwrap().insert(seq);
        }
    }

    /// A transaction with two deletes; another thread could report the arrival.
    fn commit(&self) {
        let numbers: Vec<CommitSeq> =
            (0..2).map(|_| self.sequence.draw(ShardId(0)).detach()).collect();
        self.rows.lock().unwrap().extend(numbers.iter().map(|number| number.0));
        numbers.iter().for_each(|number| self.sequence.arrived(ShardId(0), *number));
    }

    fn read(&self) -> CommitSeq {
        let number = self.sequence.visible();
        let rows = self.rows.lock().unwrap();
        for seq in 1..=number.0 {
            assert!(rows.contains(&seq), "{number:?} is visible without {seq}");
        }
        number
    }
}

fn model(mistake: Mistake) {
    let world = Arc::new(SequenceWorld {
        sequence: Sequence::after(CommitSeq(0), usize::from(SHARDS)),
        shards: Default::default(),
        rows: shuttle::sync::Mutex::default(),
        mistake,
    });
    let run = |work: fn(&SequenceWorld)| {
        let world = Arc::clone(&world);
        spawn(move || work(&world))
    };
    let threads = [
        run(|world| (0..2).for_each(|_| world.write(0))),
        run(|world| world.write(1)),
        run(SequenceWorld::commit),
    ];
    let mut last = CommitSeq(0);
    for _ in 0..3 {
        let number = world.read();
        assert!(number >= last, "{number:?} after {last:?}");
        last = number;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(world.read(), CommitSeq(5), "everything has arrived");
}

#[test]
fn every_row_up_to_the_visible_number_is_visible() {
    shuttle::check_random(|| model(Mistake::None), 2_000);
    shuttle::check_pct(|| model(Mistake::None), 2_000, 3);
}

#[test]
fn the_model_catches_an_early_arrival() {
    let early = || shuttle::check_random(|| model(Mistake::ArrivedBeforeVisible), 2_000);
    assert!(catch_unwind(AssertUnwindSafe(early)).is_err());
}

#[test]
fn visible_stops_below_rows_in_flight() {
    let in_turn = || {
        let sequence = Sequence::after(CommitSeq(9), usize::from(SHARDS));
        assert_eq!(sequence.visible(), CommitSeq(9));
        let first = sequence.draw(ShardId(1));
        let second = sequence.draw(ShardId(0));
        let third = sequence.draw(ShardId(0));
        assert_eq!((first.seq, third.seq), (CommitSeq(10), CommitSeq(12)));
        drop(third);
        assert_eq!(sequence.visible(), CommitSeq(9));
        drop(first);
        assert_eq!(sequence.visible(), CommitSeq(10));
        let second = second.detach();
        assert_eq!(sequence.visible(), CommitSeq(10));
        sequence.arrived(ShardId(0), second);
        assert_eq!((sequence.visible(), sequence.last()), (CommitSeq(12), CommitSeq(12)));
    };
    shuttle::check_random(in_turn, 1);
}
