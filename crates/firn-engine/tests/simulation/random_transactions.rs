//! Random transactions in the simulated world: what they read, what of it others touch, and that they are there
//! whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_engine::{Engine, Mutant, ProbePoint, Transaction};
use firn_model::{ErrorKind, Labels, Matcher, Sample, SeriesRef, TimeRange, Timestamp};

use crate::world::{Amid, Failure, Pieces, World, read_all};

type Samples = BTreeMap<(Labels, Timestamp), u64>;

/// What a transaction shall have done when it commits.
#[derive(Default)]
struct Changes {
    deletes: Vec<(Vec<Matcher>, TimeRange)>,
    writes: Samples,
    refs: BTreeMap<Labels, SeriesRef>,
}

impl World {
    /// A transaction of several changes; sometimes another one commits meanwhile.
    pub(crate) fn transact(&mut self) -> Result<(), Failure> {
        let engine = self.engine();
        let labels = self.some_labels();
        let mut changes = Changes::default();
        for (labels, resolved) in labels.iter().zip(engine.resolve(&labels)) {
            let series = resolved.map_err(|e| Failure(format!("resolve: {e:?}")))?;
            changes.refs.insert(labels.clone(), series);
        }
        let mut transaction = match engine.begin() {
            Ok(transaction) => transaction,
            Err(e) => return self.after_error(&e),
        };
        // Everything is read, so whatever another one touches is a conflict.
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
        // Another one whose write failed is a conflict too.
        let mut may_conflict = false;
        if self.rng.chance(0.3) {
            match self.commit_another(&engine, &labels)? {
                Some(true) => {
                    return match transaction.commit() {
                        Err(e) if *e.kind() == ErrorKind::Conflict => {
                            self.tally.count("transaction in conflict");
                            Ok(())
                        }
                        Ok(report) if report.seq.is_none() => Ok(()),
                        Err(e) => self.after_error(&e),
                        Ok(_) => {
                            Err(Failure("what a transaction read was changed meanwhile".into()))
                        }
                    };
                }
                Some(false) => may_conflict = true,
                // The power went.
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
        *self.amid.lock() = Amid {
            shown: cells.iter().filter(is_new).cloned().collect(),
            contended: changes.refs.values().next().map(|&series| (series, 1_000)),
            is_touched: false,
        };
        let begun = self.oracle.begin_transaction(&changes.deletes, cells);
        let committed = transaction.commit();
        let committed = self.heard(committed);
        let amid = std::mem::take(&mut *self.amid.lock());
        if let Some(torn) = self.torn.lock().take() {
            return Err(Failure(torn));
        }
        match committed {
            Ok(report) => {
                if amid.is_touched {
                    return Err(Failure("another one committed after the validation".into()));
                }
                self.say(|| format!("transaction: {report:?}"));
                self.oracle.acknowledge(begun);
                self.tally.count(match report.seq {
                    Some(_) => "transaction acknowledged",
                    None => "transaction of nothing",
                });
                let told = self.changes.1.lock().contains(&report.seq.unwrap_or_default());
                if report.deleted_series > 0 && !told {
                    return Err(Failure(format!("{report:?} is visible but was not told")));
                }
                let mut pieces = Pieces::new();
                for ((labels, ts), bits) in changes.writes {
                    let group = changes.refs.get(&labels).map_or(0, |series| series.group.0);
                    pieces.entry((group, ts)).or_default().insert(labels, bits);
                }
                self.check_told(&pieces)?;
                self.verify()
            }
            Err(e) if may_conflict && *e.kind() == ErrorKind::Conflict => {
                self.oracle.refuse(begun);
                Ok(())
            }
            Err(e) => {
                self.say(|| format!("transaction failed: {e}"));
                self.tally.count("transaction failed");
                self.after_error(&e)
            }
        }
    }

    /// Everything that the transaction sees; of one without changes that is what everybody sees.
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
        // The index may have it that nobody has written yet.
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
        // Of those that it may refer to.
        let own: Vec<Timestamp> =
            there.keys().filter(|place| place.0 == labels).map(|place| place.1).collect();
        match self.rng.below(10) {
            0..=3 => {
                let (ts, bits) = (self.some_timestamp(), self.some_value());
                transaction.insert(series, ts, f64::from_bits(bits))?;
                there.insert((labels.clone(), ts), bits);
                changes.writes.insert((labels, ts), bits);
            }
            4 | 5 if !own.is_empty() => {
                let (ts, bits) = (*self.rng.pick(&own), self.some_value());
                transaction.update(series, ts, f64::from_bits(bits))?;
                there.insert((labels.clone(), ts), bits);
                changes.writes.insert((labels, ts), bits);
            }
            6 | 7 if !own.is_empty() => {
                let ts = *self.rng.pick(&own);
                if !transaction.delete(series, ts)? {
                    return Err(firn_model::Error::internal("what was read is not there"));
                }
                let all = labels.iter().map(|(name, value)| Matcher::equal(name, value));
                changes.forget(all.collect(), TimeRange::at(ts), there);
            }
            8 => {
                let (matchers, range) = (self.some_matchers(), self.some_range());
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

    /// Another transaction writes one sample. Whether it did; `None` when the power went.
    fn commit_another(
        &mut self,
        engine: &Arc<Engine>,
        labels: &[Labels],
    ) -> Result<Option<bool>, Failure> {
        let labels = self.rng.pick(labels).clone();
        let series = engine.resolve(std::slice::from_ref(&labels)).remove(0);
        let series = series.map_err(|e| Failure(format!("resolve: {e:?}")))?;
        let (ts, value) = (self.some_timestamp(), f64::from_bits(self.some_value()));
        let mut other = match engine.begin() {
            Ok(other) => other,
            Err(e) => return Err(Failure(format!("begin: {e:?}"))),
        };
        other.insert(series, ts, value).map_err(|e| Failure(format!("insert: {e:?}")))?;
        let begun = self.oracle.begin(vec![(labels, Sample { ts, value })]);
        let committed = other.commit();
        match self.heard(committed) {
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

    /// Looks, or commits, in the middle of every commit, as another thread would.
    pub(crate) fn be_amid_commits(&self, engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        let (amid, torn, mutant) = (Arc::clone(&self.amid), Arc::clone(&self.torn), self.mutant);
        engine.set_probe(Box::new(move |moment| {
            let Some(engine) = weak.upgrade().filter(|_| moment == ProbePoint::Mutant) else {
                return;
            };
            // Its own commit comes by here again.
            let mut here = std::mem::take(&mut *amid.lock());
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
                here.is_touched = other.is_ok();
            }
            *amid.lock() = here;
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
