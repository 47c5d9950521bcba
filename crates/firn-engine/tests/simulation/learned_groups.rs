//! Groups that the index learns from senders without `job` and `instance` (docs/groups.md), with a
//! power failure after each step: learned, logged, flushed. A lone series becomes a member when it
//! has left the index and returns.

use std::collections::BTreeSet;

use firn_engine::{GroupRule, Lane};
use firn_model::{Labels, MatchOp, Matcher, SeriesRef};

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

    /// The first series of all hosts, which are lone, leave the index and return as members of the
    /// groups that the index has learned meanwhile.
    pub(crate) fn return_to_groups(&mut self) -> Result<(), Failure> {
        const REMOVALS_MAX: u64 = 8;
        self.learn_groups()?;
        self.flush()?;
        let all = UNTARGETED_HOSTS.into_iter().flat_map(|host| {
            (0..UNTARGETED_METRICS).map(move |metric| untargeted_series(host, metric))
        });
        let all: Vec<Labels> = all.collect();
        let found = all.iter().zip(self.refs_of(&all)?);
        let lone: Vec<Labels> = found
            .filter(|(_, series)| series.is_some_and(|series| !self.is_member(series)))
            .map(|(labels, _)| labels.clone())
            .collect();
        if lone.is_empty() {
            // A power failure has lost them.
            return Ok(());
        }
        let names: BTreeSet<&str> = lone.iter().map(Labels::metric_name).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let matcher =
            |name: &str, op, value: &str| Matcher::new(name, op, value).expect("a matcher");
        let matchers = [
            matcher("only", MatchOp::NotEqual, ""),
            matcher("__name__", MatchOp::Regex, &names.join("|")),
        ];
        // A write in between keeps a series in the index.
        for _ in 0..REMOVALS_MAX {
            self.delete_for_good(&matchers)?;
            for _ in 0..12 {
                self.step(Lane::Tree)?;
            }
            if self.refs_of(&lone)?.iter().all(Option::is_none) {
                self.tally.count("lone series left the index");
                return self.write_returned(&lone);
            }
        }
        Ok(())
    }

    /// Writes, transacts on and deletes series that have left the index. If it knows groups, they
    /// are members; a power failure after a flush moves none of them.
    fn write_returned(&mut self, labels: &[Labels]) -> Result<(), Failure> {
        let knows_groups = self.knows_groups();
        if self.write_rows(labels)? && knows_groups {
            let found = self.refs_of(labels)?;
            if found.into_iter().flatten().any(|series| !self.is_member(series)) {
                return Err(Failure("a series returned without its group".into()));
            }
            self.tally.count("lone series returned as members");
        }
        self.write_with_old_reference()?;
        self.transact_on(labels)?;
        let host = labels.first().and_then(|labels| labels.get("only")).unwrap_or_default();
        let range = self.random_range();
        self.delete_in(&[Matcher::equal("only", host)], range)?;
        self.write_rows(labels)?;
        let (before, work_done) = (self.refs_of(labels)?, self.work_done());
        self.flush()?;
        if self.work_done() == work_done {
            return Ok(());
        }
        self.crash()?;
        let after = self.refs_of(labels)?;
        if before != after {
            return Err(Failure(format!("{before:?} are {after:?} after a crash")));
        }
        self.verify()
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
