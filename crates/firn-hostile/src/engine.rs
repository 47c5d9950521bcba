//! Carries attacks out, one after another, and judges each.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::attack::{Action, Attack, Expect, Family};
use crate::canary::Canary;
use crate::client::{
    Answer, CLOSED, Request, SILENT, connect_all, deaf_connections, exchange, exchange_or_silence,
    first_answer,
};
use crate::dial::Connection;
use crate::families;
use crate::report::{FamilyResult, PEAK_BYTES_MAX, Report};
use crate::server::Server;
use crate::target::{Kind, Target};
use crate::watch::{Observation, Watch};

/// A noisy machine delays a health check now and then: an attack that fails for its latency alone
/// is repeated, and counts as withstood if one repetition is.
const LATENCY_TRIES: usize = 3;

/// A response of which the first byte is here is complete soon.
const RECEIVED_TIME_MAX: Duration = Duration::from_millis(200);

/// After SIGTERM.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// The families to attack, and the extent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `firn` program.
    pub program: PathBuf,
    /// Words of which each name of a family contains one; empty for all families.
    pub only: Vec<String>,
    /// Prints withstood attacks too.
    pub is_verbose: bool,
    /// Only the attacks of the short run, with longer limits.
    pub is_quick: bool,
    /// Upper limit of the health check's p99.
    pub latency_ms_max: f64,
}

/// Attacks with every family.
///
/// # Errors
/// If a server cannot be started.
pub fn run(options: &Options) -> Result<Report, String> {
    raise_file_limit();
    let mut report = Report { latency_ms_max: options.latency_ms_max, ..Report::default() };
    for make in families::ALL {
        let mut family = make();
        family.attacks.retain(|attack| attack.is_quick || !options.is_quick);
        let is_wanted = options.only.is_empty()
            || options.only.iter().any(|word| family.name.contains(word.as_str()));
        if is_wanted && !family.attacks.is_empty() {
            Siege::start(options, &family)?.carry_out(&family, &mut report)?;
        }
    }
    Ok(report)
}

/// A family's server under attack.
struct Siege<'a> {
    options: &'a Options,
    server: Server,
    watch: Watch,
    canary: Canary,
}

/// The outcome of one attack.
struct Judgement {
    observation: Observation,
    took: Duration,
    /// Empty if the attack was withstood.
    faults: Vec<String>,
    has_ended: bool,
    is_slow_only: bool,
}

impl<'a> Siege<'a> {
    fn start(options: &'a Options, family: &Family) -> Result<Siege<'a>, String> {
        let of_family = |e: String| format!("{}: {e}", family.name);
        let server = Server::start(&options.program, &family.setup, options.is_quick);
        let server = server.map_err(of_family)?;
        let target = &server.target;
        families::load(target, family.setup.series).map_err(of_family)?;
        let (probe, wanted): (Vec<u8>, &[u8]) = match target.kind {
            Kind::Cache => (target.with_token("version\r\n"), b"VERSION"),
            _ => {
                let health = crate::client::get(family.setup.health_path);
                (health.encode(target), b" 200 OK\r\n")
            }
        };
        let watch = Watch::start(server.pid(), target.dialer.clone(), probe, wanted);
        Ok(Siege { options, server, watch, canary: Canary::default() })
    }

    fn carry_out(mut self, family: &Family, report: &mut Report) -> Result<(), String> {
        let start = Instant::now();
        let mut result = FamilyResult {
            name: family.name,
            attacks: family.attacks.len() + 1,
            withstood: 0,
            peak_bytes: 0,
            p99: Duration::ZERO,
            ends: 0,
            took: Duration::ZERO,
        };
        for attack in &family.attacks {
            let mut judgement = self.judge(attack)?;
            for _ in 1..LATENCY_TRIES {
                if !judgement.is_slow_only {
                    break;
                }
                judgement = self.judge(attack)?;
            }
            result.peak_bytes = result.peak_bytes.max(judgement.observation.peak_bytes);
            result.p99 = result.p99.max(judgement.observation.p99);
            result.ends += usize::from(judgement.has_ended);
            result.withstood += usize::from(judgement.faults.is_empty());
            self.record(family, attack, &judgement, report);
        }
        match self.survive_kill() {
            Ok(()) => result.withstood += 1,
            Err(fault) => {
                let line = format!("FAILED {}: kill -9 and restart: {fault}", family.name);
                println!("{line}");
                report.failures.push(line);
            }
        }
        result.took = start.elapsed();
        println!(
            "{}: {} of {} in {:.0} s",
            family.name,
            result.withstood,
            result.attacks,
            result.took.as_secs_f64()
        );
        report.families.push(result);
        Ok(())
    }

    fn judge(&mut self, attack: &Attack) -> Result<Judgement, String> {
        let mut faults = Vec::new();
        faults.extend(self.canary.write(&self.server.target).err());
        if let Some(origin) = &self.server.target.origin {
            origin.take_requests();
        }
        self.watch.reset();
        let start = Instant::now();
        let answers = act(&attack.action, &attack.expect, &self.server.target);
        let took = start.elapsed();
        let observation = self.watch.finish();
        faults.extend(attack.expect.verify(&answers, took, &self.server.target).err());
        faults.extend(self.server.target.check_log().err());
        let ended = self.server.ended();
        let has_ended = ended.is_some();
        if let Some(how) = ended {
            faults = vec![how];
            self.restart()?;
        }
        if observation.peak_bytes > PEAK_BYTES_MAX {
            let peak_mib = observation.peak_bytes >> 20;
            faults.push(format!("{peak_mib} MiB resident, at most {}", PEAK_BYTES_MAX >> 20));
        }
        faults.extend(self.canary.verify(&self.server.target).err());
        let p99_ms = observation.p99.as_secs_f64() * 1e3;
        let is_slow = p99_ms > self.options.latency_ms_max;
        let is_slow_only = is_slow && faults.is_empty();
        if is_slow && !has_ended {
            let most = self.options.latency_ms_max;
            faults.push(format!("health checks took {p99_ms:.0} ms at p99, at most {most:.0}"));
        }
        Ok(Judgement { observation, took, faults, has_ended, is_slow_only })
    }

    fn restart(&mut self) -> Result<(), String> {
        let watch = &self.watch;
        self.server.restart(|pid| {
            watch.set_pid(pid);
            watch.reset();
        })
    }

    fn survive_kill(&mut self) -> Result<(), String> {
        self.restart()?;
        self.canary.verify(&self.server.target)?;
        let peak_bytes = self.watch.finish().peak_bytes;
        if peak_bytes > PEAK_BYTES_MAX {
            let (peak_mib, mib_max) = (peak_bytes >> 20, PEAK_BYTES_MAX >> 20);
            return Err(format!("{peak_mib} MiB resident, at most {mib_max}"));
        }
        self.canary.write(&self.server.target)?;
        self.server.stop(self.server.target.limit(STOP_TIME_MAX))
    }

    fn record(&self, family: &Family, attack: &Attack, judgement: &Judgement, report: &mut Report) {
        let figures = format!(
            "{:.1} s, {} MiB, p99 {:.0} ms",
            judgement.took.as_secs_f64(),
            judgement.observation.peak_bytes >> 20,
            judgement.observation.p99.as_secs_f64() * 1e3,
        );
        if judgement.faults.is_empty() {
            if self.options.is_verbose {
                println!("ok {}: {} ({figures})", family.name, attack.name);
            }
            return;
        }
        let line = format!(
            "FAILED {}: {} ({figures}): {}; because {}",
            family.name,
            attack.name,
            judgement.faults.join("; "),
            attack.reason
        );
        println!("{line}");
        report.failures.push(line);
    }
}

fn act(action: &Action, expect: &Expect, target: &Target) -> Vec<Answer> {
    match action {
        Action::Send(request) => vec![request.send(target)],
        Action::Flood { request, clients, times } => flood(request, *clients, *times, target),
        Action::Raw(bytes) if expect.allows(SILENT) => exchange_or_silence(target, bytes),
        Action::Raw(bytes) => exchange(target, bytes),
        Action::Hold { bytes, connections, time } => hold(bytes, *connections, *time, target),
        Action::Drip { bytes, connections, pause, time } => {
            drip(bytes, *connections, (*pause, *time), target)
        }
        Action::Deaf { request, connections, time } => deaf(request, *connections, *time, target),
        Action::Script(run) => run(target),
    }
}

fn flood(request: &Request, clients: usize, times: usize, target: &Target) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let client = || (0..times).map(|_| request.send(target)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

fn hold(bytes: &[u8], connections: usize, time: Duration, target: &Target) -> Vec<Answer> {
    let mut open = connect_all(connections, target);
    for connection in &mut open {
        let _ = connection.write_all(bytes);
    }
    std::thread::sleep(time);
    outcomes(open)
}

fn drip(
    bytes: &[u8],
    connections: usize,
    (pause, time): (Duration, Duration),
    target: &Target,
) -> Vec<Answer> {
    let mut open = connect_all(connections, target);
    let start = Instant::now();
    for byte in bytes {
        if start.elapsed() >= time {
            break;
        }
        for connection in &mut open {
            let _ = connection.write_all(std::slice::from_ref(byte));
        }
        std::thread::sleep(pause);
    }
    outcomes(open)
}

fn deaf(request: &Request, connections: usize, time: Duration, target: &Target) -> Vec<Answer> {
    let open = deaf_connections(request, connections, target);
    std::thread::sleep(time);
    // The responses need not be complete.
    open.into_iter().map(|_| Answer::of_status(SILENT)).collect()
}

/// The state of each connection, without waiting for more.
fn outcomes(open: Vec<Box<dyn Connection>>) -> Vec<Answer> {
    let outcome = |mut connection: Box<dyn Connection>| {
        let _ = connection.socket().set_nonblocking(true);
        let mut first = [0; 1];
        let peeked = connection.socket().peek(&mut first);
        let _ = connection.socket().set_nonblocking(false);
        match peeked {
            Ok(0) => Answer::of_status(CLOSED),
            Ok(_) => first_answer(&mut connection, RECEIVED_TIME_MAX),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Answer::of_status(SILENT),
            Err(_) => {
                let _ = connection.read(&mut first);
                Answer::of_status(CLOSED)
            }
        }
    };
    open.into_iter().map(outcome).collect()
}

/// Hundreds of connections are open at the same time.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
