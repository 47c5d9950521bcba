//! The transactions of YCSB-TS with the parameters of DecLog's Table 1: ten operations each, points
//! of 50 bytes.

use std::ops::Range;

use crate::index::scatter;

/// Operations of a transaction.
pub const OPERATIONS: usize = 10;
/// Bytes of a point as it comes from a client: key, time, value.
pub const POINT_BYTES: usize = 50;

/// A point as a client sends it: key, time and value, and zeros up to [`POINT_BYTES`].
pub fn encode_point(key: u64, ts: i64, value: f64) -> [u8; POINT_BYTES] {
    let mut point = [0; POINT_BYTES];
    point[..8].copy_from_slice(&key.to_le_bytes());
    point[8..16].copy_from_slice(&ts.to_le_bytes());
    point[16..24].copy_from_slice(&value.to_le_bytes());
    point
}

/// Key, time and value from [`encode_point`]; `None` for other bytes.
pub fn decode_point(point: &[u8]) -> Option<(u64, i64, f64)> {
    let point: &[u8; POINT_BYTES] = point.try_into().ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(point.get(at..at + 8)?.try_into().ok()?));
    Some((word(0)?, word(8)? as i64, f64::from_bits(word(16)?)))
}

/// One of the paper's workloads.
#[derive(Clone, Copy, Debug)]
pub struct YcsbWorkload {
    /// A to D.
    pub name: &'static str,
    /// Inserts per ten thousand transactions.
    pub inserts: u64,
    /// Updates per ten thousand transactions; the rest are reads.
    pub updates: u64,
    /// The skew of the keys of reads and updates.
    pub theta: f64,
}

/// DecLog, Table 1.
pub const WORKLOADS: [YcsbWorkload; 4] = [
    YcsbWorkload { name: "A", inserts: 10_000, updates: 0, theta: 0.9 },
    YcsbWorkload { name: "B", inserts: 9_000, updates: 10, theta: 0.9 },
    YcsbWorkload { name: "C", inserts: 9_000, updates: 100, theta: 0.9 },
    YcsbWorkload { name: "D", inserts: 9_000, updates: 100, theta: 1.1 },
];

/// The kind of a transaction; all its operations are of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// New points, one for each of the keys.
    Insert,
    /// New values of the keys' newest points.
    Update,
    /// The keys' newest points.
    Read,
}

/// Draws transactions.
#[derive(Debug)]
pub struct Driver {
    workload: YcsbWorkload,
    /// Sums of the chances of ranks, for the uneven draw.
    sums: Vec<f64>,
    key_count: u64,
    /// The series that inserts are drawn from.
    own: Range<u64>,
    drawn: u64,
}

impl Driver {
    /// Transactions over `key_count` keys of sender `sender` of `sender_count`. Each sender inserts
    /// into series of its own, as scrapers do.
    pub fn new(
        workload: YcsbWorkload,
        key_count: usize,
        sender: usize,
        sender_count: usize,
    ) -> Driver {
        let share = (key_count / sender_count) as u64;
        let own = sender as u64 * share..(sender as u64 + 1) * share;
        let mut sum = 0.0;
        let chance = |rank: usize| 1.0 / (rank as f64).powf(workload.theta);
        let sums = (1..=key_count).map(|rank| {
            sum += chance(rank);
            sum
        });
        let (key_count, drawn) = (key_count as u64, (sender as u64 + 1) << 40);
        Driver { workload, sums: sums.collect(), key_count, own, drawn }
    }

    /// The next transaction's kind and keys. Inserts cycle through the sender's keys.
    pub fn next(&mut self, keys: &mut [usize; OPERATIONS]) -> OperationKind {
        let dice = self.draw() % 10_000;
        let kind = match dice {
            dice if dice < self.workload.inserts => OperationKind::Insert,
            dice if dice < self.workload.inserts + self.workload.updates => OperationKind::Update,
            _ => OperationKind::Read,
        };
        for key in keys {
            *key = if kind == OperationKind::Insert { self.even() } else { self.uneven() };
        }
        kind
    }

    fn even(&mut self) -> usize {
        (self.own.start + self.draw() % (self.own.end - self.own.start)) as usize
    }

    fn uneven(&mut self) -> usize {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let at = (self.draw() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|&sum| sum < at);
        // Frequent keys are not neighbours.
        (scatter(rank as u64) % self.key_count) as usize
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        scatter(self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_comes_back() {
        let point = encode_point(7, -3, 0.5);
        assert_eq!(decode_point(&point), Some((7, -3, 0.5)));
        assert_eq!(decode_point(&point[1..]), None);
    }

    #[test]
    fn shares_are_those_of_the_table() {
        for workload in WORKLOADS {
            let mut driver = Driver::new(workload, 1_000, 1, 2);
            let (mut keys, mut counts) = ([0; OPERATIONS], [0u64; 3]);
            for _ in 0..20_000 {
                let kind = driver.next(&mut keys);
                counts[kind as usize] += 1;
                let first = if kind == OperationKind::Insert { 500 } else { 0 };
                assert!(keys.iter().all(|key| (first..1_000).contains(key)));
            }
            let inserts = counts[OperationKind::Insert as usize] / 2;
            assert!(inserts.abs_diff(workload.inserts) < 200, "{workload:?}: {counts:?}");
            assert_eq!(
                counts[OperationKind::Update as usize] > 0,
                workload.updates > 0,
                "{workload:?}"
            );
        }
    }
}
