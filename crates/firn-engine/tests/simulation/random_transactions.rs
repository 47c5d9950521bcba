//! Random transactions in the simulated world: their reads, their conflicts, and that each is
//! visible as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_engine::{Engine, Mutant, ProbePoint, Transaction};
use firn_model::{ErrorKind, Labels, Matcher, Sample, SeriesRef, TimeRange, Timestamp};

use crate::world::{CommitRace, Failure, Pieces, World, read_all};

type Samples = BTreeMap<(Labels, Timestamp), u64>;

/// The changes that a transaction makes when it commits.
#[derive(Default)]
struct Changes {
    deletes: Vec<(Vec<Matcher>, TimeRange)>,
    writes: Samples,
    refs: BTreeMap<Labels, SeriesRef>,
}

impl World {
    /// Runs a transaction of several changes; sometimes another one commits in between.
    pub(crate) fn transact(&mut self) -> Result<(), Failure> {
        let labels = self.random_labels();
        self.transact_on(&labels)
    }

    /// The same, with writes of some series.
    pub(crate) fn transact_on(&mut self, labels: &[Labels]) -> Result<(), Failure> {
        let engine = self.engine();
        let mut changes = Changes::default();
        for (labels, resolved) in labels.iter().zip(engine.resolve(labels)) {
            let series = resolved.map_err(|e| Failure(format!("resolve: {e:?}")))?;
            changes.refs.insert(labels.clone(), series);
        }
        let mut transaction = match engine.begin() {
            Ok(transaction) => transaction,
            Err(e) => return self.after_error(&e),
        };
        // The transaction reads all samples, so any change by another one is a conflict.
        let mut there = match self.read_in(&engine, &mut transaction) {
            Ok(there) => there,
            Err(e) => return self.after_error(&e),
        };
        let before = there.clone();
        for _ in 0..1 + self.rng.below(5) {
            let done = self.change(&mut transaction, &mut there, &mut changes);
            if let Err(e) = done {
                return self.after_error(&e);
            }
        }
        match self.read_in(&engine, &mut transaction) {
            Ok(seen) if seen == there => {}
            Ok(seen) => {
                let (seen, there) = (seen.len(), there.len());
                return Err(Failure(format!(
                    "a transaction reads {seen} samples of its own state, not {there}"
                )));
            }
            Err(e) => return self.after_error(&e),
        }
        // Another transaction whose write failed is a conflict too.
        let mut may_conflict = false;
        if self.rng.chance(0.3) {
            match self.commit_another(&engine, labels)? {
                Some(true) => {
                    return match transaction.commit() {
                        Err(e) if *e.kind() == ErrorKind::Conflict => {
                            self.tally.count("transaction in conflict");
                            Ok(())
                        }
                        Ok(report) if report.seq.is_none() => Ok(()),
                        Err(e) => self.after_error(&e),
                        Ok(_) => {
                            Err(Failure("a transaction committed after its reads changed".into()))
                        }
                    };
                }
                Some(false) => may_conflict = true,
                // The power failed.
                None => return Ok(()),
            }
        }
        self.finish_transaction(transaction, &before, changes, may_conflict)
    }

    fn finish_transaction(
        &mut self,
        transaction: Transaction<'_>,
        before: &Samples,
        changes: Changes,
        may_conflict: bool,
    ) -> Result<(), Failure> {
        let cells = changes.writes.iter().map(|((labels, ts), &bits)| {
            (labels.clone(), Sample { ts: *ts, value: f64::from_bits(bits) })
        });
        let cells: Vec<(Labels, Sample)> = cells.collect();
        let is_new = |(labels, sample): &&(Labels, Sample)| {
            before.get(&(labels.clone(), sample.ts)) != Some(&sample.value.to_bits())
        };
        *self.race.lock() = CommitRace {
            shown: cells.iter().filter(is_new).cloned().collect(),
            contended: changes.refs.values().next().map(|&series| (series, 1_000)),
            has_interfered: false,
        };
        let begun = self.oracle.begin_transaction(&changes.deletes, cells);
        let committed = transaction.commit();
        let committed = self.received(committed);
        let race = std::mem::take(&mut *self.race.lock());
        if let Some(torn) = self.torn.lock().take() {
            return Err(Failure(torn));
        }
        match committed {
            Ok(report) => {
                if race.has_interfered {
                    return Err(Failure("another one committed after the validation".into()));
                }
                self.trace(|| format!("transaction: {report:?}"));
                self.oracle.acknowledge(begun);
                self.tally.count(match report.seq {
                    Some(_) => "transaction acknowledged",
                    None => "transaction of nothing",
                });
                let is_announced = self.changes.1.lock().contains(&report.seq.unwrap_or_default());
                if report.deleted_series > 0 && !is_announced {
                    return Err(Failure(format!("{report:?} is visible but was not announced")));
                }
                let mut pieces = Pieces::new();
                for ((labels, ts), bits) in changes.writes {
                    let group = changes.refs.get(&labels).map_or(0, |series| series.group.0);
                    pieces.entry((group, ts)).or_default().insert(labels, bits);
                }
                self.check_announced(&pieces)?;
                self.verify()
            }
            Err(e) if may_conflict && *e.kind() == ErrorKind::Conflict => {
                self.oracle.refuse(begun);
                Ok(())
            }
            Err(e) => {
                self.trace(|| format!("transaction failed: {e}"));
                self.tally.count("transaction failed");
                self.after_error(&e)
            }
        }
    }

    /// Reads everything that the transaction sees. Now and then compares all committed samples with
    /// the oracle as well.
    fn read_in(
        &mut self,
        engine: &Arc<Engine>,
        transaction: &mut Transaction<'_>,
    ) -> firn_model::Result<Samples> {
        let mut samples = Samples::new();
        for found in transaction.read(&[], TimeRange::ALL)? {
            for sample in found.samples {
                samples.insert((found.labels.clone(), sample.ts), sample.value.to_bits());
            }
        }
        if self.rng.chance(0.2) {
            let seen = read_all(&engine.snapshot())?;
            self.oracle.check(&seen).map_err(firn_model::Error::internal)?;
        }
        Ok(samples)
    }

    fn change(
        &mut self,
        transaction: &mut Transaction<'_>,
        there: &mut Samples,
        changes: &mut Changes,
    ) -> firn_model::Result<()> {
        let labels: Vec<Labels> = changes.refs.keys().cloned().collect();
        let labels = self.rng.pick(&labels).clone();
        let series = changes.refs[&labels];
        // The samples of this series that the transaction sees.
        let own: Vec<Timestamp> =
            there.keys().filter(|place| place.0 == labels).map(|place| place.1).collect();
        match self.rng.below(10) {
            0..=3 => {
                let (ts, bits) = (self.random_timestamp(), self.random_value());
                transaction.insert(series, ts, f64::from_bits(bits))?;
                there.insert((labels.clone(), ts), bits);
                changes.writes.insert((labels, ts), bits);
            }
            4 | 5 if !own.is_empty() => {
                let (ts, bits) = (*self.rng.pick(&own), self.random_value());
                transaction.update(series, ts, f64::from_bits(bits))?;
                there.insert((labels.clone(), ts), bits);
                changes.writes.insert((labels, ts), bits);
            }
            6 | 7 if !own.is_empty() => {
                let ts = *self.rng.pick(&own);
                if !transaction.delete(series, ts)? {
                    return Err(firn_model::Error::internal("a sample that was read is not there"));
                }
                let all = labels.iter().map(|(name, value)| Matcher::equal(name, value));
                changes.forget(all.collect(), TimeRange::at(ts), there);
            }
            8 => {
                let (matchers, range) = (self.random_matchers(), self.random_range());
                transaction.delete_range(&matchers, range)?;
                changes.forget(matchers, range, there);
            }
            _ => {
                let missing = transaction.update(series, 7, 1.0);
                if !missing.is_err_and(|e| *e.kind() == ErrorKind::NotFound) {
                    return Err(firn_model::Error::internal("a sample off the grid"));
                }
            }
        }
        Ok(())
    }

    /// Another transaction writes one sample. Returns whether it committed; `None` if the power
    /// failed.
    fn commit_another(
        &mut self,
        engine: &Arc<Engine>,
        labels: &[Labels],
    ) -> Result<Option<bool>, Failure> {
        let labels = self.rng.pick(labels).clone();
        let series = engine.resolve(std::slice::from_ref(&labels)).remove(0);
        let series = series.map_err(|e| Failure(format!("resolve: {e:?}")))?;
        let (ts, value) = (self.random_timestamp(), f64::from_bits(self.random_value()));
        let mut other = match engine.begin() {
            Ok(other) => other,
            Err(e) => return Err(Failure(format!("begin: {e:?}"))),
        };
        other.insert(series, ts, value).map_err(|e| Failure(format!("insert: {e:?}")))?;
        let begun = self.oracle.begin(vec![(labels, Sample { ts, value })]);
        let committed = other.commit();
        match self.received(committed) {
            Ok(_) => {
                self.tally.count("another transaction in between");
                self.oracle.acknowledge(begun);
                Ok(Some(true))
            }
            Err(e) => {
                let is_off = self.sim.faults.is_off();
                self.after_error(&e)?;
                Ok((!is_off).then_some(false))
            }
        }
    }

    /// Reads or commits in the middle of every commit, as another thread would.
    pub(crate) fn race_with_commits(&self, engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        let (race, torn, mutant) = (Arc::clone(&self.race), Arc::clone(&self.torn), self.mutant);
        engine.set_probe(Box::new(move |point| {
            let Some(engine) = weak.upgrade().filter(|_| point == ProbePoint::Mutant) else {
                return;
            };
            // The commit below reaches this probe too.
            let mut here = std::mem::take(&mut *race.lock());
            if mutant == Some(Mutant::TransactionShownByShard) {
                let seen = read_all(&engine.snapshot()).map(|seen| seen.series).unwrap_or_default();
                let is_shown = |(labels, sample): &&(Labels, Sample)| {
                    seen.get(labels).is_some_and(|samples| {
                        let same = |one: &Sample| {
                            (one.ts, one.value.to_bits()) == (sample.ts, sample.value.to_bits())
                        };
                        samples.iter().any(same)
                    })
                };
                let shown = here.shown.iter().filter(is_shown).count();
                if shown > 0 && shown < here.shown.len() {
                    *torn.lock() = Some(format!("{shown} of {} samples", here.shown.len()));
                }
            } else if let Some((series, ts)) = here.contended.take() {
                let other = engine.begin().and_then(|mut other| {
                    other.insert(series, ts, 1.0)?;
                    other.commit()
                });
                here.has_interfered = other.is_ok();
            }
            *race.lock() = here;
        }));
    }
}

impl Changes {
    fn forget(&mut self, matchers: Vec<Matcher>, range: TimeRange, there: &mut Samples) {
        let is_hit = |place: &(Labels, Timestamp)| {
            let labels = &place.0;
            let fits = |m: &Matcher| m.matches(labels.get(m.name()).unwrap_or_default());
            range.contains(place.1) && matchers.iter().all(fits)
        };
        let hit: BTreeSet<_> = there.keys().filter(|place| is_hit(place)).cloned().collect();
        there.retain(|place, _| !hit.contains(place));
        self.writes.retain(|place, _| !is_hit(place));
        self.deletes.push((matchers, range));
    }
}
