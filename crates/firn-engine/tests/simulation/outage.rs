//! The slow tier is down for days while the fast tier fills. Writes are accepted while there is
//! room. With a limit on the fast tier they are refused before the disk is full, without a limit
//! they fail on the full disk, and the error names the cause. Acknowledged data is readable
//! throughout, also after a crash, and the backlog is uploaded without intervention.

use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, HeadOptions, Lane, LogOptions, Mutant, RecoveryProgress};
use firn_model::{Error, ErrorKind, Labels, RowBatch, Sample, TimeRange};
use firn_sim::{ObservedSamples, Oracle, Rng, Sim, for_cases};

use crate::Outcome;
use crate::world::small_arenas;

const SERIES: u64 = 6;
const DAYS: u64 = 3;
const FAST_BYTES_MAX: u64 = 12 << 10;
// Bytes that one flush may add after a write was admitted.
const FLUSH_BYTES: u64 = 4 << 10;
const DISK_BYTES: u64 = 320 << 10;

struct Outage {
    sim: Sim,
    rng: Rng,
    options: EngineOptions,
    engine: Option<Arc<Engine>>,
    oracle: Oracle,
    is_down: bool,
    written: u64,
    refused: Option<Error>,
}

/// The slow tier is down for three days, and the power fails once in that time. Acknowledged rows
/// are in the log or in local tables. All of them are readable throughout, and the slow tier has
/// all of them in the end.
#[test]
fn an_outage_of_days_loses_nothing_and_its_backlog_is_uploaded() {
    for_cases(24, |seed| {
        run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
    });
}

/// Runs the scenario with a mutant. Returns how it was caught, or `None` if it was not.
pub(crate) fn catch_mutant(seed: u64, mutant: Mutant) -> Option<String> {
    run(seed, Some(mutant)).err()
}

fn run(seed: u64, mutant: Option<Mutant>) -> Outcome<()> {
    let has_limit = seed.is_multiple_of(2);
    let options = EngineOptions {
        shard_count: 4,
        stream_count: Some(2),
        log_bytes_max: 64 << 10,
        flush_age_ms_max: 30 * 60_000,
        tree: firn_tree::TreeOptions {
            block_bytes: 256,
            table_bytes_max: 4 << 10,
            fast_bytes_max: has_limit.then_some(FAST_BYTES_MAX),
            ..Default::default()
        },
        mutant,
        log: LogOptions { segment_bytes: 8 << 10, ..Default::default() },
        head: HeadOptions { convert: small_arenas(256), hot_bytes_max: 0, ..Default::default() },
        ..EngineOptions::default()
    };
    let (sim, rng) = (Sim::new(seed), Rng::new(seed ^ 0x0a7a6e));
    let (engine, oracle) = (None, Oracle::new());
    let (is_down, written, refused) = (false, 0, None);
    let mut outage = Outage { sim, rng, options, engine, oracle, is_down, written, refused };
    outage.open()?;
    for _ in 0..20 {
        outage.ten_minutes()?;
    }
    if let Some(error) = outage.refused.take() {
        return Err(format!("refused without an outage: {error}"));
    }
    outage.set_down(true);
    if !has_limit {
        outage.sim.disk.set_capacity_bytes(DISK_BYTES);
    }
    let crash_at = outage.rng.below(DAYS * 144);
    let before = outage.written;
    for round in 0..DAYS * 144 {
        outage.ten_minutes()?;
        outage.check_limit(has_limit)?;
        if round == crash_at {
            outage.sim.crash();
            outage.sim.restart();
            outage.open()?;
        }
        if round % 48 == 0 {
            outage.check()?;
        }
    }
    outage.check()?;
    let message = outage.refused.take().ok_or("nothing was refused in days")?.to_string();
    let cause = if has_limit { "wait for the slow tier" } else { "no space left" };
    if !message.contains(cause) || outage.written == before {
        return Err(format!("{} writes were accepted, then: {message}", outage.written - before));
    }
    outage.set_down(false);
    outage.sim.disk.set_capacity_bytes(u64::MAX);
    outage.catch_up()
}

impl Outage {
    fn engine(&self) -> &Arc<Engine> {
        self.engine.as_ref().expect("opened")
    }

    fn set_down(&mut self, is_down: bool) {
        self.is_down = is_down;
        self.sim.bucket.set_down(is_down);
    }

    fn open(&mut self) -> Outcome<()> {
        self.engine = None;
        let opened =
            Engine::open(self.sim.env(), self.options.clone(), &RecoveryProgress::default());
        self.engine = Some(opened.map_err(|e| format!("open: {e:?}"))?);
        // Only the comparison needs the slow tier; the engine does not notice that it is up.
        self.sim.bucket.set_down(false);
        let seen = self.read()?;
        self.sim.bucket.set_down(self.is_down);
        self.oracle.settle(&seen)
    }

    /// Advances the clock by ten minutes, writes a sample of each series, and does the work that is
    /// due.
    fn ten_minutes(&mut self) -> Outcome<()> {
        self.sim.clock.advance(Duration::from_secs(600));
        self.write()?;
        for lane in [Lane::Head, Lane::Tree] {
            for _ in 0..50 {
                match self.engine().step(lane) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(e) => {
                        check_is_retriable(&e)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Outcome<bool> {
        let ts = self.sim.env().clock.now_ms();
        let labels: Vec<Labels> = (0..SERIES).map(labels).collect();
        let cells: Vec<(Labels, Sample)> = labels
            .iter()
            .map(|labels| (labels.clone(), Sample { ts, value: self.rng.below(1 << 40) as f64 }))
            .collect();
        let mut batch = RowBatch::default();
        for (series, (_, sample)) in self.engine().resolve(&labels).into_iter().zip(&cells) {
            match series {
                Ok(series) => batch.push(series, sample.ts, sample.value),
                Err(e) => {
                    check_is_retriable(&e)?;
                    return Ok(false);
                }
            }
        }
        // A full disk may stop a batch between two shards, so each sample is a piece of its own.
        let begin = |cell| self.oracle.begin(vec![cell]);
        let pieces: Vec<_> = cells.into_iter().map(begin).collect();
        match self.engine().write(&mut batch) {
            Ok(_) => {
                pieces.into_iter().for_each(|piece| self.oracle.acknowledge(piece));
                self.written += 1;
                Ok(true)
            }
            Err(e) => {
                check_is_retriable(&e)?;
                self.refused = Some(e);
                Ok(false)
            }
        }
    }

    fn check_limit(&self, has_limit: bool) -> Outcome<()> {
        let levels = self.engine().stats().tree.levels;
        let bytes = levels[0].bytes + levels[1].bytes;
        let most = FAST_BYTES_MAX + FAST_BYTES_MAX / 4 + FLUSH_BYTES;
        match has_limit && bytes > most {
            true => Err(format!("{bytes} bytes of local tables, the most is {most}")),
            false => Ok(()),
        }
    }

    /// Checks that data that was never uploaded is readable without the slow tier.
    fn check(&mut self) -> Outcome<()> {
        let Ok(seen) = ObservedSamples::read(&self.engine().snapshot(), &[], self.local()) else {
            return Err("local data is not read while the slow tier is down".into());
        };
        self.oracle.check(&seen)
    }

    /// The time range of which the slow tier has no data.
    fn local(&self) -> TimeRange {
        let newest = self.engine().stats().tree.newest_slow_ts.unwrap_or(i64::MIN);
        TimeRange::new(newest.saturating_add(1), i64::MAX)
    }

    fn read(&self) -> Outcome<ObservedSamples> {
        let seen = ObservedSamples::read(&self.engine().snapshot(), &[], TimeRange::ALL);
        seen.map_err(|e| format!("a read: {e:?}"))
    }

    /// After the outage writes are accepted again, and all data is uploaded.
    fn catch_up(&mut self) -> Outcome<()> {
        let mut is_accepted = false;
        for _ in 0..30 {
            self.ten_minutes()?;
            self.refused = None;
            is_accepted = self.write()?;
        }
        if !is_accepted {
            return Err(format!("writes are refused after the outage: {:?}", self.refused));
        }
        let last_ts = self.sim.env().clock.now_ms();
        self.engine().flush().map_err(|e| format!("flush: {e:?}"))?;
        for _ in 0..40 {
            self.sim.clock.advance(Duration::from_secs(600));
            while self.engine().step(Lane::Tree).map_err(|e| format!("{e:?}"))?.is_some() {}
        }
        let stats = self.engine().stats();
        let waiting = stats.tree.levels[0].table_count + stats.tree.levels[1].table_count;
        if waiting > 0 || stats.slow_tier.newest_ts != Some(last_ts) {
            return Err(format!("{waiting} tables wait, newest {:?}", stats.slow_tier.newest_ts));
        }
        let seen = self.read()?;
        self.oracle.check(&seen)
    }
}

fn labels(idx: u64) -> Labels {
    let host = format!("host-{}", idx % 2);
    let name = format!("m{idx}");
    Labels::from_pairs([("__name__", name.as_str()), ("instance", &host)]).expect("valid labels")
}

/// Accepts an error that permits a retry.
fn check_is_retriable(error: &Error) -> Outcome<()> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Busy { .. } => Ok(()),
        _ => Err(format!("an error without an injected cause: {error:?}")),
    }
}
