//! Groups that the index learns from senders without `job` and `instance` (docs/groups.md), with a
//! power failure after each step: learned, logged, flushed.

use firn_engine::GroupRule;
use firn_model::{Labels, SeriesRef};

use crate::world::{Failure, UNTARGETED_HOSTS, UNTARGETED_METRICS, World, untargeted_series};

/// The step after which the power fails.
#[derive(Clone, Copy, PartialEq)]
enum LastStep {
    Learned,
    Logged,
    Flushed,
    /// The power does not fail.
    None,
}

impl World {
    /// All hosts without `job` and `instance` send one metric after the other. The first series
    /// stay lone; series that arrive after the index has learned the groups are members.
    pub(crate) fn learn_groups(&mut self) -> Result<(), Failure> {
        for metric in 0..UNTARGETED_METRICS {
            let labels = UNTARGETED_HOSTS.map(|host| untargeted_series(host, metric));
            let was_known = self.knows_groups();
            // Defines the series, in memory only.
            let engine = self.engine();
            for resolved in engine.resolve(&labels) {
                resolved.map_err(|e| Failure(format!("resolve: {e:?}")))?;
            }
            drop(engine);
            if was_known || !self.knows_groups() {
                self.write_rows(&labels)?;
                continue;
            }
            self.tally.count("groups learned");
            self.trace(|| "groups learned".into());
            self.store_learned(&labels)?;
        }
        self.count_members();
        Ok(())
    }

    /// The first members are logged and flushed; the power fails at a random step. Members that
    /// come back are in the same group and slot, and the rule that made their groups comes back.
    fn store_learned(&mut self, labels: &[Labels]) -> Result<(), Failure> {
        use LastStep::{Flushed, Learned, Logged, None};
        let last_step = *self.rng.pick(&[Learned, Logged, Flushed, None]);
        if last_step == Learned {
            self.tally.count("power lost before learned groups were logged");
            return self.crash();
        }
        if !self.write_rows(labels)? || last_step == None {
            return Ok(());
        }
        if last_step == Flushed {
            let before = self.work_done();
            self.flush()?;
            if self.work_done() == before {
                return Ok(());
            }
        }
        let before = self.refs_of(labels)?;
        self.tally.count(match last_step {
            Flushed => "power lost after learned groups were flushed",
            _ => "power lost after learned groups were logged",
        });
        self.crash()?;
        let after = self.refs_of(labels)?;
        for (labels, (before, after)) in labels.iter().zip(before.iter().zip(&after)) {
            // A series without a row may be in no log.
            let is_certain = last_step == Flushed;
            if before != after && (is_certain || after.is_some()) {
                return Err(Failure(format!("{labels} was {before:?} and is {after:?}")));
            }
        }
        if after.into_iter().flatten().any(|series| self.is_member(series)) && !self.knows_groups()
        {
            return Err(Failure("members came back without the rule of their groups".into()));
        }
        Ok(())
    }

    fn refs_of(&self, labels: &[Labels]) -> Result<Vec<Option<SeriesRef>>, Failure> {
        self.engine().find(labels).map_err(|e| Failure(format!("find: {e:?}")))
    }

    /// Whether new series of these hosts join groups.
    fn knows_groups(&self) -> bool {
        let identity = untargeted_series(UNTARGETED_HOSTS[0], 0).filter(|name| name == "only");
        self.engine().group_rule(&identity) != GroupRule::Other
    }

    fn is_member(&self, series: SeriesRef) -> bool {
        let snapshot = self.engine().snapshot();
        let group = snapshot.index().group(series.group).expect("no file is damaged");
        !group.expect("a known series").is_lone
    }

    fn count_members(&mut self) {
        for host in UNTARGETED_HOSTS {
            let labels: Vec<Labels> =
                (0..UNTARGETED_METRICS).map(|metric| untargeted_series(host, metric)).collect();
            let found = self.refs_of(&labels).expect("no file is damaged");
            let (mut lone_count, mut member_count) = (0, 0);
            for (labels, series) in labels.into_iter().zip(found) {
                let Some(series) = series else { continue };
                if !self.is_member(series) {
                    lone_count += 1;
                    self.once_lone.insert(labels);
                    continue;
                }
                member_count += 1;
                if self.once_lone.remove(&labels) {
                    self.tally.count("member that was a lone series before");
                }
            }
            if lone_count > 0 && member_count > 0 {
                self.tally.count("host with lone series and members");
            }
        }
    }
}
