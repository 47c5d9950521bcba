//! Power cuts in the middle of an evaluation.
//!
//! Crash: the machine, at each change of the disk by an evaluation of rules that read each other's
//! results. On disk: the synced data, and any part of the rest. Afterwards: each row of that
//! evaluation is complete or absent, and absent if a row of an earlier stage is; the slot is not
//! evaluated again, neither with its own time nor with another one; the next slots are complete;
//! the clock of `for` continues.

use firn_rules::group::Schedule;
use firn_sim::{Sim, for_cases};
use firndb::RecoveryProgress;

use super::*;

const RULES: &str = "groups: [{name: g, rules: [\
    {record: a, expr: x}, \
    {record: b, expr: 'x + 0.5'}, \
    {record: c, expr: 'sum(a) + sum(b)'}, \
    {alert: Waits, expr: 'a and on () c', for: 1h}, \
    {alert: Fires, expr: 'b and on () c'}, \
    {record: d, expr: 'count(ALERTS)'}]}]";

/// The rows of each stage: the names of metric and alert, and the number of series.
const STAGES: [&[(&str, usize)]; 4] = [
    &[("a", 3), ("b", 3)],
    &[("c", 1)],
    &[
        ("ALERTS Fires", 3),
        ("ALERTS Waits", 3),
        ("ALERTS_FOR_STATE Fires", 3),
        ("ALERTS_FOR_STATE Waits", 3),
    ],
    &[("d", 1)],
];
/// A process writes series of alerts from its third evaluation on.
const UNRESTORED: i64 = 2;
/// The slots of the evaluations with a crash: the first one, the first with series of alerts, and a
/// later one.
const CRASHES: [i64; 3] = [0, 2, 4];
/// More than an evaluation changes the disk.
const CHANGES: i64 = 20;

/// A process.
struct Life {
    db: Arc<Db>,
    manager: RuleManager,
    clock: Arc<AtomicI64>,
}

/// The values of all series of a row, by the names of the row and the number of its slot.
type Rows = BTreeMap<(String, i64), Vec<f64>>;

impl Life {
    fn begin(sim: &Sim, minute: i64) -> Life {
        let progress = RecoveryProgress::default();
        let db = Arc::new(Db::open_idle(sim.env(), Options::default(), &progress).unwrap());
        let clock = Arc::new(AtomicI64::new(START + minute * MINUTE));
        let manager = manager(&clock, 256 << 20);
        manager.attach(&db, URL);
        let files = TestFiles([(PathBuf::from("/r/a.yml"), RULES.to_owned())].into());
        let config = "global: {evaluation_interval: 1m}\nrule_files: [/r/a.yml]";
        let config = Config::parse(config, &|_| None).unwrap().config;
        manager.apply(manager.check(&config, &files).unwrap());
        Life { db, manager, clock }
    }

    fn put(&self, minute: i64, value: i64) {
        for n in ["1", "2", "3"] {
            let labels = Labels::from_pairs([("__name__", "x"), ("n", n)]).unwrap();
            self.db.put(&labels, START + minute * MINUTE, value as f64).unwrap();
        }
    }

    /// Returns the number of evaluations.
    fn evaluate_at(&self, minute: i64) -> usize {
        self.clock.store(START + minute * MINUTE, Ordering::Relaxed);
        self.manager.evaluate_due()
    }

    fn rows(&self) -> Rows {
        let query = "{__name__=~\"[abcd]|ALERTS.*\"}[1h]";
        let output = self.db.query_now(query, QueryTime::Instant(START + 20 * MINUTE)).unwrap();
        let Value::Matrix(series) = output.value else { panic!("a matrix") };
        let mut rows = Rows::new();
        for one in series {
            let metric = one.labels.metric_name();
            let name = match one.labels.get("alertname") {
                Some(alert) => format!("{metric} {alert}"),
                None => metric.to_owned(),
            };
            for sample in &one.floats {
                let since_first_ms = sample.ts - slot(0);
                assert_eq!(since_first_ms % MINUTE, 0, "{name} has a sample between the slots");
                let key = (name.clone(), since_first_ms / MINUTE);
                rows.entry(key).or_default().push(sample.value);
            }
        }
        rows
    }
}

/// The slot that passes in the minute `number`.
fn slot(number: i64) -> Timestamp {
    Schedule::new("/r/a.yml", "g", MINUTE).first_after(START) + number * MINUTE
}

#[test]
fn a_power_cut_in_an_evaluation_leaves_no_result_twice() {
    for_cases((CRASHES.len() as i64 * CHANGES).unsigned_abs(), |case| {
        let (crash_idx, change) = (case as usize % CRASHES.len(), case / CRASHES.len() as u64);
        let crash = CRASHES[crash_idx];
        let sim = Sim::new(case);
        let life = Life::begin(&sim, 0);
        for number in 0..crash {
            life.put(number, number);
            assert_eq!(life.evaluate_at(number + 1), 1);
        }
        life.put(crash, crash);
        sim.faults.crash_at(sim.faults.change_count() + change);
        assert_eq!(life.evaluate_at(crash + 1), 1);
        let is_cut = sim.faults.is_off();
        assert!(!is_cut || change + 1 < CHANGES.unsigned_abs(), "raise CHANGES");
        drop(life);
        sim.restart();

        let life = Life::begin(&sim, crash + 1);
        let after_crash = life.rows();
        // An evaluation of the slot, or one with its input, would see these.
        (0..=crash).for_each(|minute| life.put(minute, 1_000));
        assert_eq!(life.manager.evaluate_due(), 0, "the slot is evaluated again");
        for number in crash + 1..crash + 5 {
            life.put(number, number);
            assert_eq!(life.evaluate_at(number + 1), 1);
        }
        let rows = life.rows();
        // The last evaluation that stored when the alert began, and the end of the restoration.
        let down = (0..=crash).rev().find(|&number| {
            after_crash.contains_key(&("ALERTS_FOR_STATE Waits".to_owned(), number))
        });
        let restored_at = START + (crash + UNRESTORED + 1) * MINUTE;
        let since = match down {
            Some(down) => {
                let outage_ms = restored_at - slot(down).div_euclid(SECOND) * SECOND;
                slot(0).div_euclid(SECOND) * SECOND + outage_ms
            }
            None => slot(crash + 1),
        };

        for number in 0..crash + 5 {
            let is_first_life = number <= crash;
            let has_alerts = match is_first_life {
                true => number >= UNRESTORED,
                false => number > crash + UNRESTORED,
            };
            let mut is_whole = true;
            for stage in STAGES {
                let is_earlier_whole = is_whole;
                for (name, series_count) in stage {
                    let context = format!("{name}, slot {number}, crash in {crash}");
                    let got = rows.get(&((*name).to_owned(), number));
                    let is_recorded = ["a", "b", "c"].contains(name);
                    if !is_recorded && !has_alerts {
                        // Alerts of the life before may still be counted.
                        assert!(got.is_none() || *name == "d" && !is_first_life, "{context}");
                        continue;
                    }
                    let x = number as f64;
                    let value = match *name {
                        "a" => Some(x),
                        "b" => Some(x + 0.5),
                        "c" => Some(6.0 * x + 1.5),
                        "d" => Some(6.0),
                        "ALERTS_FOR_STATE Waits" => {
                            let since = if is_first_life { slot(0) } else { since };
                            Some(since.div_euclid(SECOND) as f64)
                        }
                        "ALERTS_FOR_STATE Fires" => None,
                        _ => Some(1.0),
                    };
                    let Some(got) = got else {
                        assert!(is_cut && number == crash, "{context} is missing");
                        is_whole = false;
                        continue;
                    };
                    assert!(is_earlier_whole, "{context} is there without its input");
                    assert_eq!(got.len(), *series_count, "{context}");
                    let is_equal = |got: &f64| value.is_none_or(|value| *got == value);
                    assert!(got.iter().all(is_equal), "{context}: {got:?}, want {value:?}");
                }
            }
        }
        assert!(rows.keys().all(|(_, number)| (0..crash + 5).contains(number)), "{rows:?}");
    });
}
