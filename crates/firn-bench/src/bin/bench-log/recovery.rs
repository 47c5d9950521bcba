//! Duration of the recovery after a kill.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use firn_bench::client::{Connection, percent_encoded};
use firn_bench::fleet::{Fleet, SERIES_PER_HOST};
use firn_bench::index::process_cpu_ns;
use firn_bench::load::Load;
use firn_bench::report::Aim;
use firn_bench::server::{Program, process_cpu_s, wait_until_ready};
use firn_promql::{PointValue, VectorPoint};
use firndb::{Db, Options, QueryOptions, QueryTime, RecoveryProgress, Value, local_env};

use crate::work::{ROUND_MS, fill_and_kill, now_ms};
use crate::{Outcome, SERIES_COUNT, aim};

/// Opening takes about 50 ms in any case, which must not hide the time of reading: a log of nearly
/// the default maximum. The paper's logs take 72 s and more to read.
const ROUNDS: usize = 4_000;
/// Rounds written after the checkpoint.
const ROUNDS_BEHIND: usize = ROUNDS / 100;
const OPENINGS: usize = 3;

pub(crate) fn recovery(aims: &mut Vec<Aim>) -> Outcome<()> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let samples = fill_and_kill(folder.path(), ROUNDS, 0)?;
    println!("\nreplay of {:.1} M samples, 100k grouped series", samples as f64 / 1e6);
    let mut whole_s = f64::NAN;
    for threads in [1, 2] {
        let opened = open(folder.path(), threads, samples, ROUNDS)?;
        println!(
            "  {threads} threads: {:.3} s, {:.3} s CPU, {:.1} M samples/s and core, {:.0} MB of log",
            opened.wall_s,
            opened.cpu_s,
            samples as f64 / opened.cpu_s / 1e6,
            opened.log_bytes as f64 / 1e6
        );
        if threads == 1 {
            let ns = opened.cpu_s * 1e9 / samples as f64;
            aim(aims, "replay, CPU ns a sample (5M a second and core)", ns, 200.0);
        }
        whole_s = opened.wall_s;
    }
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let samples = fill_and_kill(folder.path(), ROUNDS, ROUNDS_BEHIND)?;
    let opened = open(folder.path(), 2, samples, ROUNDS_BEHIND)?;
    println!(
        "  with a checkpoint and a hundredth behind it: {:.3} s, {:.3} s CPU",
        opened.wall_s, opened.cpu_s
    );
    let figure = opened.wall_s / whole_s;
    aim(aims, "recovery with a checkpoint over that without", figure, 0.05);
    Ok(())
}

/// Median measurements of an open.
struct Opened {
    wall_s: f64,
    cpu_s: f64,
    log_bytes: u64,
}

/// Opens a folder after a kill. Opening changes a folder, so each run opens a copy. `rounds` come
/// from the log, and each of all `samples` must be present.
fn open(folder: &Path, recovery_threads: usize, samples: u64, rounds: usize) -> Outcome<Opened> {
    let mut all = Vec::new();
    for _ in 0..OPENINGS {
        let copy = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        copy_folder(folder, copy.path())?;
        let options = Options { recovery_threads, ..Options::default() };
        let (start, cpu) = (Instant::now(), process_cpu_ns());
        let db = Db::open_idle(local_env(copy.path())?, options, &RecoveryProgress::default())?;
        let (wall_s, cpu_s) = (start.elapsed().as_secs_f64(), (process_cpu_ns() - cpu) / 1e9);
        let stats = db.stats();
        if all.is_empty() {
            let (rows, wanted) = (stats.recovery.rows, rounds * SERIES_COUNT / SERIES_PER_HOST);
            let counted = count(&db)?;
            if rows != wanted as u64 || counted != samples {
                let counts = format!("{rows} rows of {wanted}, {counted} samples of {samples}");
                return Err(format!("recovery is incomplete: {counts}").into());
            }
        }
        all.push(Opened { wall_s, cpu_s, log_bytes: stats.log.bytes });
    }
    all.sort_by(|one, other| one.wall_s.total_cmp(&other.wall_s));
    Ok(all.swap_remove(OPENINGS / 2))
}

/// Counts all samples, one metric after another: their counts have no names to distinguish them.
fn count(db: &Db) -> Outcome<u64> {
    let (options, mut all) = (QueryOptions { samples_max: u64::MAX, ..QueryOptions::default() }, 0);
    for series in 0..SERIES_PER_HOST {
        let name = Fleet::metric(series);
        let text = format!("sum(count_over_time({name}[30d]))");
        let answer = db.query(&text, QueryTime::Instant(db.now_ms()), &options, &db.context())?;
        match &answer.value {
            Value::Vector(sums) => match sums.as_slice() {
                [VectorPoint { value: PointValue::Float(count), .. }] => all += *count as u64,
                other => return Err(format!("expected one series, got {}", other.len()).into()),
            },
            other => return Err(format!("expected a vector, got {:?}", other.value_type()).into()),
        }
    }
    Ok(all)
}

/// Copies a folder and syncs the copy, so that no write-back runs during a measurement.
fn copy_folder(source: &Path, target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source)? {
        let (entry, path) = entry.map(|entry| (entry.path(), target.join(entry.file_name())))?;
        if entry.is_dir() {
            copy_folder(&entry, &path)?;
        } else {
            std::fs::copy(&entry, &path)?;
            std::fs::File::open(&path)?.sync_all()?;
        }
    }
    Ok(())
}

/// A load before a kill: the number of series, samples of each, and labels that group them.
struct KillCase {
    name: &'static str,
    series_count: usize,
    rounds: i64,
    group_by: &'static str,
}

const GROUPS: &str = "job,instance";
/// No series has this label.
const NO_GROUPS: &str = "none";
const KILL_CASES: [KillCase; 4] = [
    KillCase { name: "100k grouped", series_count: 100_000, rounds: 280, group_by: GROUPS },
    KillCase { name: "100k lone", series_count: 100_000, rounds: 280, group_by: NO_GROUPS },
    KillCase { name: "1M grouped", series_count: 1_000_000, rounds: 33, group_by: GROUPS },
    KillCase { name: "1M lone", series_count: 1_000_000, rounds: 33, group_by: NO_GROUPS },
];

pub(crate) fn kill(aims: &mut Vec<Aim>) -> Outcome<()> {
    let Some(program) = Program::Firn.path() else {
        println!("\nkill: firn is not built beside this program");
        return Ok(());
    };
    println!(
        "\n{:14} {:>10} {:>10} {:>10} {:>12} {:>9} {:>9}",
        "killed", "CPU s/M", "ready s", "counted s", "replay est s", "flushes", "log MB"
    );
    KILL_CASES.iter().try_for_each(|case| kill_one(case, &program, aims))
}

fn kill_one(case: &KillCase, program: &Path, aims: &mut Vec<Aim>) -> Outcome<()> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut server = start_server(program, folder.path(), address, case.group_by)?;
    wait_until_ready(address, "/-/ready")?;
    let mut load = Load::new(case.series_count);
    let start_ms = now_ms() - case.rounds * ROUND_MS;
    for round in 0..case.rounds {
        load.scrape(address, Program::Firn.write_path(), start_ms + round * ROUND_MS);
    }
    let sample_count = case.series_count as u64 * case.rounds as u64;
    let cpu_s = process_cpu_s(server.id());
    let text = metrics(address);
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    server.kill()?;
    server.wait()?;
    let start = Instant::now();
    let mut server = start_server(program, folder.path(), address, case.group_by)?;
    wait_until_ready(address, "/-/ready")?;
    let ready_s = start.elapsed().as_secs_f64();
    // Every series, then every sample, one metric after another, because counts have no names.
    let mut connection = Connection::open(address);
    let mut ask = |query: &str| -> Outcome<u64> {
        let path =
            format!("/api/v1/query?query={}&time={}", percent_encoded(query), now_ms() / 1_000);
        let answer = String::from_utf8_lossy(connection.get(&path)).into_owned();
        let number = answer.rsplit('"').nth(1).and_then(|number| number.parse().ok());
        Ok(number.ok_or_else(|| format!("{query}: {answer}"))?)
    };
    let series = ask("count({job=\"node\"})")?;
    let all_s = start.elapsed().as_secs_f64();
    let mut samples = 0;
    for metric in (0..SERIES_PER_HOST).map(Fleet::metric) {
        samples += ask(&format!("sum(count_over_time({metric}[3h]))"))?;
    }
    server.kill()?;
    server.wait()?;
    println!(
        "{:14} {:>10.2} {ready_s:>10.2} {all_s:>10.2} {:>12.2} {:>9} {:>9.0}",
        case.name,
        cpu_s / sample_count as f64 * 1e6,
        number("firn_log_replay_seconds"),
        number("firn_flushes_total"),
        number("firn_log_replay_bytes") / 1e6,
    );
    if (series, samples) != (case.series_count as u64, sample_count) {
        return Err(format!("recovery is incomplete: {series} series, {samples} samples").into());
    }
    let name = format!("{}: s from SIGKILL's restart until all series answered", case.name);
    aim(aims, name, all_s, if case.series_count > 100_000 { 2.0 } else { 1.0 });
    Ok(())
}

fn metrics(address: SocketAddr) -> String {
    String::from_utf8_lossy(Connection::open(address).get("/metrics")).into_owned()
}

fn start_server(
    program: &Path,
    folder: &Path,
    address: SocketAddr,
    group_by: &str,
) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.arg("serve").arg("--data").arg(folder).arg("--listen").arg(address.to_string());
    command.args(["--self-scrape=never", "--flush-age-max=2h"]);
    command.arg(format!("--group-by={group_by}"));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
