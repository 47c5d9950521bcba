//! A model of the samples that must, may and must not be readable: a map that never crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use firn_model::{Labels, Matcher, Sample, TimeRange, Timestamp};

use crate::ObservedSamples;

/// Maximum number of differences in a report.
const REPORTED_COUNT_MAX: usize = 10;

/// A row piece or a delete. The samples of a row piece share a timestamp and a group. A piece is
/// applied as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceId(u64);

/// Records every write of a single-threaded run, in order.
///
/// A piece is *open* from [`Oracle::begin`]: it may be readable or not. [`Oracle::acknowledge`]
/// makes it certain, [`Oracle::refuse`] makes it absent. A piece that stays open (a failed write, a
/// power loss) may become readable until a restart settles it.
///
/// If writes are acknowledged before they are durable ([`Oracle::trust_power`]), a piece that was
/// acknowledged or observed is only *readable*: it becomes open again when the power fails
/// ([`Oracle::lose_power`]). [`Oracle::harden`] makes it certain.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    series: BTreeMap<Labels, BTreeMap<Timestamp, Vec<Version>>>,
    pieces: Vec<Piece>,
    floor: Option<Timestamp>,
    /// Whether acknowledged writes may be lost with the power.
    trusts_power: bool,
    /// The pieces that are readable but not certain.
    readable: BTreeSet<PieceId>,
}

#[derive(Clone, Debug)]
struct Piece {
    state: PieceState,
    cells: Vec<(Labels, Timestamp)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    Open,
    Readable,
    Certain,
    Absent,
}

/// A value that one sample may have, oldest piece first; `None` after a delete.
#[derive(Clone, Copy, Debug)]
struct Version {
    piece: PieceId,
    bits: Option<u64>,
}

/// The conclusions from a result about open pieces.
#[derive(Default)]
struct Evidence {
    /// A sample that only this piece explains.
    present: BTreeMap<PieceId, String>,
    /// A sample that this piece would have overwritten.
    absent: BTreeMap<PieceId, String>,
    /// At least one of these pieces was applied; all of them explain the value.
    one_of: Vec<BTreeSet<PieceId>>,
}

impl Oracle {
    /// An empty oracle.
    pub fn new() -> Oracle {
        Oracle::default()
    }

    /// Begins the write of a piece. Later pieces win over earlier ones.
    pub fn begin(&mut self, cells: Vec<(Labels, Sample)>) -> PieceId {
        self.begin_transaction(&[], cells)
    }

    /// Begins a delete of the samples that `matchers` select in `range` among the pieces begun
    /// before. It is acknowledged, refused and settled like a piece.
    pub fn begin_delete(&mut self, matchers: &[Matcher], range: TimeRange) -> PieceId {
        self.begin_transaction(&[(matchers.to_vec(), range)], Vec::new())
    }

    /// Begins a transaction: deletes the selected samples among the pieces begun before, and writes
    /// `cells`, atomically. It is acknowledged, refused and settled like a piece.
    pub fn begin_transaction(
        &mut self,
        deletes: &[(Vec<Matcher>, TimeRange)],
        cells: Vec<(Labels, Sample)>,
    ) -> PieceId {
        let id = PieceId(self.pieces.len() as u64);
        let mut deleted = BTreeSet::new();
        for (matchers, range) in deletes {
            let series = self.series.iter().filter(|one| all_match(matchers, one.0));
            for (labels, times) in series {
                let times = times.iter().filter(|entry| range.contains(*entry.0));
                let present = times.filter(|entry| !entry.1.is_empty());
                deleted.extend(present.map(|(&ts, _)| (labels.clone(), ts)));
            }
        }
        for (labels, sample) in &cells {
            deleted.remove(&(labels.clone(), sample.ts));
        }
        let written = cells
            .into_iter()
            .map(|(labels, sample)| ((labels, sample.ts), Some(sample.value.to_bits())));
        let mut touched = Vec::new();
        for ((labels, ts), bits) in deleted.into_iter().map(|place| (place, None)).chain(written) {
            let times = self.series.entry(labels.clone()).or_default();
            times.entry(ts).or_default().push(Version { piece: id, bits });
            touched.push((labels, ts));
        }
        self.pieces.push(Piece { state: PieceState::Open, cells: touched });
        id
    }

    /// Sets whether acknowledged or observed pieces may be lost with the power from now on.
    pub fn trust_power(&mut self, trusts_power: bool) {
        self.trusts_power = trusts_power;
    }

    /// Acknowledges a piece: it must be readable from now on, after every crash (but see
    /// [`Oracle::trust_power`]).
    pub fn acknowledge(&mut self, piece: PieceId) {
        self.set(piece, if self.trusts_power { PieceState::Readable } else { PieceState::Certain });
    }

    /// Makes all readable pieces certain: they are durable now.
    pub fn harden(&mut self) {
        for piece in std::mem::take(&mut self.readable) {
            self.set(piece, PieceState::Certain);
        }
    }

    /// Cuts the power: each readable piece may be lost as a whole.
    pub fn lose_power(&mut self) {
        for piece in std::mem::take(&mut self.readable) {
            self.pieces[piece.0 as usize].state = PieceState::Open;
        }
    }

    /// Refuses a piece: it must never be readable.
    pub fn refuse(&mut self, piece: PieceId) {
        self.set(piece, PieceState::Absent);
    }

    /// Applies retention: samples before `floor` may be absent from now on.
    pub fn set_floor(&mut self, floor: Timestamp) {
        self.floor = Some(self.floor.map_or(floor, |old| old.max(floor)));
    }

    /// Number of samples that `matchers` select in `range` and that must be readable.
    pub fn certain_count(&self, matchers: &[Matcher], range: TimeRange) -> usize {
        let series = self.series.iter().filter(|series| all_match(matchers, series.0));
        let times = series.flat_map(|series| series.1);
        let times = times.filter(|entry| range.contains(*entry.0) && !self.may_be_absent(*entry.0));
        let is_there = |versions: &Vec<Version>| {
            let (candidates, is_certain) = self.candidates(versions);
            is_certain && candidates.iter().all(|version| version.bits.is_some())
        };
        times.filter(|entry| is_there(entry.1)).count()
    }

    /// Compares a result with the model. Open pieces that the result proves are certain from then
    /// on: reads are monotone.
    ///
    /// # Errors
    /// A report of the differences.
    pub fn check(&mut self, seen: &ObservedSamples) -> Result<(), String> {
        self.compare(seen).map(|_| ())
    }

    fn compare(&mut self, seen: &ObservedSamples) -> Result<Evidence, String> {
        let mut differences = Vec::new();
        let mut evidence = Evidence::default();
        for (labels, times) in self.series.iter().filter(|series| seen.selects(series.0)) {
            let found = seen.series.get(labels).map_or(&[][..], Vec::as_slice);
            for (&ts, versions) in times.iter().filter(|entry| seen.range.contains(*entry.0)) {
                let found = found.binary_search_by_key(&ts, |sample| sample.ts);
                let found = found.ok().map(|idx| seen.series[labels][idx].value.to_bits());
                let place = format!("{labels} at {ts}");
                if let Err(difference) = self.check_one(ts, versions, found, &place, &mut evidence)
                {
                    differences.push(format!("{place}: {difference}"));
                }
            }
        }
        self.report_unexpected(seen, &mut differences);
        for (piece, shows) in &evidence.present {
            if let Some(hides) = evidence.absent.get(piece) {
                differences.push(format!(
                    "a row piece is applied in part: {shows} is readable, {hides} is not"
                ));
            }
        }
        if !differences.is_empty() {
            return Err(report(&differences));
        }
        for &piece in evidence.present.keys() {
            self.acknowledge(piece);
        }
        Ok(evidence)
    }

    /// [`Oracle::check`] of all series and times after a restart: open pieces that are not readable
    /// are absent from then on. If [`Oracle::harden`] follows, the readable ones are durable.
    ///
    /// # Errors
    /// A report of the differences.
    ///
    /// # Panics
    /// If `seen` does not cover everything.
    pub fn settle(&mut self, seen: &ObservedSamples) -> Result<(), String> {
        assert!(seen.matchers.is_empty(), "settling needs every series");
        assert_eq!(seen.range, TimeRange::ALL, "settling needs every time");
        let state = |oracle: &Oracle, piece: &PieceId| oracle.pieces[piece.0 as usize].state;
        // A sample that one result proves may, by its absence in another, prove a delete.
        let mut open_count = self.open().len();
        let evidence = loop {
            let evidence = self.compare(seen)?;
            if std::mem::replace(&mut open_count, self.open().len()) == open_count {
                break evidence;
            }
        };
        for pieces in evidence.one_of {
            let is_there =
                |piece| matches!(state(self, piece), PieceState::Readable | PieceState::Certain);
            let is_explained = pieces.iter().any(is_there);
            let newest = pieces.iter().rfind(|piece| !evidence.absent.contains_key(piece));
            if let Some(newest) = newest.filter(|_| !is_explained) {
                self.acknowledge(*newest);
            }
        }
        self.open().into_iter().for_each(|piece| self.set(piece, PieceState::Absent));
        Ok(())
    }

    fn open(&self) -> Vec<PieceId> {
        let pieces = (0..).zip(&self.pieces);
        pieces
            .filter(|(_, piece)| piece.state == PieceState::Open)
            .map(|(id, _)| PieceId(id))
            .collect()
    }

    fn check_one(
        &self,
        ts: Timestamp,
        versions: &[Version],
        found: Option<u64>,
        place: &str,
        evidence: &mut Evidence,
    ) -> Result<(), String> {
        let (candidates, is_certain) = self.candidates(versions);
        let matching: BTreeSet<PieceId> =
            candidates.iter().filter(|v| v.bits == found).map(|v| v.piece).collect();
        // Without a certain version the sample may also be absent.
        let is_absent = found.is_none() && (!is_certain || self.may_be_absent(ts));
        if matching.is_empty() && !is_absent {
            let values = candidates.iter().filter_map(|v| v.bits);
            let expected: Vec<f64> = values.map(f64::from_bits).collect();
            let may_be_deleted = candidates.iter().any(|v| v.bits.is_none());
            let or_nothing = if is_certain && !may_be_deleted { "" } else { " or nothing" };
            let found = found.map(f64::from_bits);
            return Err(format!("expected one of {expected:?}{or_nothing}, found {found:?}"));
        }
        if found.is_none() && self.may_be_absent(ts) {
            return Ok(());
        }
        if let Some(only) = matching.first().filter(|_| matching.len() == 1 && !is_absent) {
            evidence.present.entry(*only).or_insert_with(|| place.to_owned());
        }
        if matching.len() > 1 && !is_absent {
            evidence.one_of.push(matching.clone());
        }
        // Pieces newer than every explanation of the value would have overwritten it.
        for version in candidates.iter().filter(|v| matching.last().is_none_or(|m| v.piece > *m)) {
            evidence.absent.entry(version.piece).or_insert_with(|| place.to_owned());
        }
        Ok(())
    }

    /// The versions that may be readable, oldest first, and whether one of them must be.
    fn candidates<'a>(&self, versions: &'a [Version]) -> (Vec<&'a Version>, bool) {
        let state = |v: &Version| self.pieces[v.piece.0 as usize].state;
        let is_there = |v: &Version| matches!(state(v), PieceState::Readable | PieceState::Certain);
        let newest_certain = versions.iter().rposition(is_there);
        let from = newest_certain.unwrap_or(0);
        let candidates =
            versions[from..].iter().filter(|v| state(v) != PieceState::Absent).collect();
        (candidates, newest_certain.is_some())
    }

    fn report_unexpected(&self, seen: &ObservedSamples, differences: &mut Vec<String>) {
        for (labels, samples) in &seen.series {
            let known = self.series.get(labels);
            for sample in samples {
                if known.is_none_or(|times| !times.contains_key(&sample.ts)) {
                    differences.push(format!("{labels}: {sample:?} was never written"));
                }
            }
        }
    }

    fn may_be_absent(&self, ts: Timestamp) -> bool {
        self.floor.is_some_and(|floor| ts < floor)
    }

    /// Also drops versions that can no longer be read, so that long runs stay fast.
    fn set(&mut self, id: PieceId, state: PieceState) {
        let piece = &mut self.pieces[id.0 as usize];
        match (piece.state, state) {
            (PieceState::Open, PieceState::Readable) => {
                piece.state = PieceState::Readable;
                self.readable.insert(id);
                return;
            }
            (PieceState::Open | PieceState::Readable, PieceState::Certain)
            | (PieceState::Open, PieceState::Absent) => {}
            _ => return,
        }
        piece.state = state;
        for (labels, ts) in std::mem::take(&mut piece.cells) {
            let versions = self.series.get_mut(&labels).and_then(|times| times.get_mut(&ts));
            let Some(versions) = versions else { continue };
            match state {
                PieceState::Certain => versions.retain(|version| version.piece >= id),
                PieceState::Absent => versions.retain(|version| version.piece != id),
                PieceState::Open | PieceState::Readable => {}
            }
        }
    }
}

pub(crate) fn all_match(matchers: &[Matcher], labels: &Labels) -> bool {
    matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or_default()))
}

fn report(differences: &[String]) -> String {
    let mut report = format!("{} differences", differences.len());
    for difference in differences.iter().take(REPORTED_COUNT_MAX) {
        let _ = write!(report, "\n  {difference}");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str) -> Labels {
        Labels::from_pairs([("__name__", name)]).unwrap()
    }

    fn cells(cells: &[(&str, i64, f64)]) -> Vec<(Labels, Sample)> {
        cells.iter().map(|&(name, ts, value)| (series(name), Sample { ts, value })).collect()
    }

    fn seen(samples: &[(&str, i64, f64)]) -> ObservedSamples {
        let mut seen = ObservedSamples {
            matchers: Vec::new(),
            range: TimeRange::ALL,
            series: BTreeMap::new(),
        };
        for (labels, sample) in cells(samples) {
            seen.series.entry(labels).or_default().push(sample);
        }
        seen
    }

    fn expect_difference(oracle: &mut Oracle, samples: &[(&str, i64, f64)], words: &str) {
        let report = oracle.check(&seen(samples)).unwrap_err();
        assert!(report.contains(words), "{report}");
    }

    #[test]
    fn acknowledged_pieces_must_be_readable_bit_for_bit() {
        let mut oracle = Oracle::new();
        let piece = oracle.begin(cells(&[("a", 1, -0.0)]));
        oracle.check(&seen(&[])).unwrap();
        oracle.acknowledge(piece);
        assert_eq!(oracle.certain_count(&[], TimeRange::ALL), 1);
        oracle.check(&seen(&[("a", 1, -0.0)])).unwrap();
        expect_difference(&mut oracle, &[], "a at 1: expected one of [-0.0], found None");
        expect_difference(&mut oracle, &[("a", 1, 0.0)], "found Some(0.0)");
        expect_difference(&mut oracle, &[("a", 1, -0.0), ("a", 2, 1.0)], "was never written");
    }

    #[test]
    fn a_later_write_wins_and_an_open_one_may() {
        let mut oracle = Oracle::new();
        for value in [1.0, 2.0] {
            let piece = oracle.begin(cells(&[("a", 1, value)]));
            oracle.acknowledge(piece);
        }
        oracle.begin(cells(&[("a", 1, 3.0)]));
        expect_difference(&mut oracle, &[("a", 1, 1.0)], "expected one of [2.0, 3.0]");
        oracle.check(&seen(&[("a", 1, 2.0)])).unwrap();
        oracle.check(&seen(&[("a", 1, 3.0)])).unwrap();
        // It was observed, so it stays.
        expect_difference(&mut oracle, &[("a", 1, 2.0)], "expected one of [3.0]");
    }

    #[test]
    fn an_open_piece_is_applied_as_a_whole_or_not_at_all() {
        let mut oracle = Oracle::new();
        let old = oracle.begin(cells(&[("a", 1, 1.0)]));
        oracle.acknowledge(old);
        oracle.begin(cells(&[("a", 1, 2.0), ("b", 1, 2.0)]));
        expect_difference(
            &mut oracle,
            &[("a", 1, 1.0), ("b", 1, 2.0)],
            "applied in part: b at 1 is",
        );
        expect_difference(&mut oracle, &[("a", 1, 2.0)], "applied in part: a at 1 is");
        oracle.settle(&seen(&[("a", 1, 1.0)])).unwrap();
        expect_difference(&mut oracle, &[("a", 1, 2.0), ("b", 1, 2.0)], "expected one of [1.0]");
    }

    #[test]
    fn one_of_two_pieces_with_equal_values_stays() {
        let mut oracle = Oracle::new();
        oracle.begin(cells(&[("a", 1, 2.0), ("b", 1, 2.0)]));
        oracle.begin(cells(&[("a", 1, 2.0)]));
        oracle.settle(&seen(&[("a", 1, 2.0)])).unwrap();
        expect_difference(&mut oracle, &[], "expected one of [2.0]");
        expect_difference(
            &mut oracle,
            &[("a", 1, 2.0), ("b", 1, 2.0)],
            "b at 1: expected one of []",
        );
    }

    #[test]
    fn refused_pieces_are_never_readable_and_retention_may_drop_old_ones() {
        let mut oracle = Oracle::new();
        let refused = oracle.begin(cells(&[("a", 1, 1.0)]));
        oracle.refuse(refused);
        expect_difference(&mut oracle, &[("a", 1, 1.0)], "expected one of [] or nothing");
        let old = oracle.begin(cells(&[("a", 5, 1.0)]));
        oracle.acknowledge(old);
        oracle.set_floor(6);
        oracle.check(&seen(&[])).unwrap();
        oracle.check(&seen(&[("a", 5, 1.0)])).unwrap();
        expect_difference(&mut oracle, &[("a", 5, 2.0)], "expected one of [1.0]");
    }

    #[test]
    fn a_delete_hides_earlier_pieces_as_a_whole_or_not_at_all() {
        let mut oracle = Oracle::new();
        for piece in [&[("a", 1, 1.0), ("a", 2, 1.0)][..], &[("b", 1, 1.0)]] {
            let piece = oracle.begin(cells(piece));
            oracle.acknowledge(piece);
        }
        oracle.begin_delete(&[], TimeRange::at(1));
        oracle.check(&seen(&[("a", 1, 1.0), ("a", 2, 1.0), ("b", 1, 1.0)])).unwrap();
        expect_difference(
            &mut oracle,
            &[("a", 2, 1.0), ("b", 1, 1.0)],
            "applied in part: a at 1 is",
        );
        expect_difference(&mut oracle, &[], "a at 2: expected one of [1.0], found None");
        oracle.check(&seen(&[("a", 2, 1.0)])).unwrap();
        // It was observed, so it stays, and later pieces are not hidden.
        expect_difference(&mut oracle, &[("a", 1, 1.0), ("a", 2, 1.0)], "found Some(1.0)");
        let again = oracle.begin(cells(&[("a", 1, 3.0)]));
        oracle.check(&seen(&[("a", 2, 1.0)])).unwrap();
        oracle.acknowledge(again);
        assert_eq!(oracle.certain_count(&[], TimeRange::ALL), 2);
        expect_difference(&mut oracle, &[("a", 2, 1.0)], "a at 1: expected one of [3.0]");
        let only_a = oracle.begin_delete(&[Matcher::equal("__name__", "a")], TimeRange::ALL);
        oracle.settle(&seen(&[("a", 1, 3.0), ("a", 2, 1.0)])).unwrap();
        expect_difference(&mut oracle, &[], "expected one of [3.0], found None");
        oracle.acknowledge(only_a);
        expect_difference(&mut oracle, &[], "expected one of [3.0], found None");
    }

    #[test]
    fn pieces_acknowledged_before_they_are_durable_may_be_lost_with_the_power() {
        let mut oracle = Oracle::new();
        oracle.trust_power(true);
        let first = oracle.begin(cells(&[("a", 1, 1.0)]));
        oracle.acknowledge(first);
        oracle.harden();
        let second = oracle.begin(cells(&[("a", 1, 2.0), ("b", 1, 2.0)]));
        oracle.acknowledge(second);
        expect_difference(&mut oracle, &[("a", 1, 1.0)], "expected one of [2.0]");
        oracle.lose_power();
        expect_difference(&mut oracle, &[("b", 1, 2.0)], "a at 1: expected one of [1.0, 2.0]");
        expect_difference(&mut oracle, &[("a", 1, 1.0), ("b", 1, 2.0)], "applied in part");
        let mut found = oracle.clone();
        found.settle(&seen(&[("a", 1, 2.0), ("b", 1, 2.0)])).unwrap();
        expect_difference(&mut found, &[("a", 1, 1.0)], "expected one of [2.0]");
        // Observed again, but not durable yet.
        found.lose_power();
        found.check(&seen(&[("a", 1, 1.0)])).unwrap();
        oracle.settle(&seen(&[("a", 1, 1.0)])).unwrap();
        expect_difference(&mut oracle, &[("b", 1, 2.0)], "b at 1: expected one of []");
    }

    #[test]
    fn a_partly_hidden_piece_proves_the_delete() {
        let mut oracle = Oracle::new();
        oracle.trust_power(true);
        let both = oracle.begin(cells(&[("a", 1, 1.0), ("b", 1, 1.0)]));
        oracle.acknowledge(both);
        let delete = oracle.begin_delete(&[Matcher::equal("__name__", "a")], TimeRange::ALL);
        oracle.acknowledge(delete);
        oracle.lose_power();
        oracle.settle(&seen(&[("b", 1, 1.0)])).unwrap();
        oracle.check(&seen(&[("b", 1, 1.0)])).unwrap();
        expect_difference(&mut oracle, &[("a", 1, 1.0), ("b", 1, 1.0)], "a at 1");
    }

    #[test]
    fn only_the_selected_samples_are_compared() {
        let mut oracle = Oracle::new();
        let piece = oracle.begin(cells(&[("a", 1, 1.0), ("b", 9, 1.0)]));
        oracle.acknowledge(piece);
        let mut part = seen(&[("a", 1, 1.0)]);
        part.matchers = vec![Matcher::equal("__name__", "a")];
        oracle.check(&part).unwrap();
        part.matchers.clear();
        part.range = TimeRange::new(0, 5);
        oracle.check(&part).unwrap();
        assert_eq!(part.sample_count(), 1);
        assert_ne!(part.digest(), seen(&[("a", 1, 2.0)]).digest());
    }
}
