//! Some programs with the same data that take turns: the cost of one query in each of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::Connection;
use crate::report::median;
use crate::server::{Program, Server};

// A server is quiet below this share of a core; the longest wait for it follows.
const QUIET_CPU: f64 = 0.03;
const QUIET_TIME_MAX: Duration = Duration::from_secs(120);
const QUIET_WINDOW: Duration = Duration::from_secs(5);
// Checked only now and then: it costs as much as a short query.
const QUERIES_PER_CHECK: u64 = 16;

/// One program under test.
#[derive(Debug)]
pub struct Contender {
    /// The program.
    pub program: Program,
    /// Its process.
    pub server: Server,
}

impl Contender {
    /// Opens a connection. Some programs close idle ones after a minute, so none is kept.
    pub fn connect(&self) -> Connection {
        Connection::open(self.server.address)
    }
}

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// The contenders take turns this often; the median counts.
    pub count: usize,
    /// A round is as many queries as take this much CPU, so that a tick of 10 ms is a small part...
    pub cpu_s: f64,
    /// ...or this much time.
    pub time: Duration,
    /// Connections that send at the same time.
    pub client_count: usize,
}

/// Costs of one query in one program.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Median time until the whole answer is there.
    pub latency_ms: f64,
    /// User and system time of the process.
    pub cpu_ms: f64,
    /// The highest resident memory during the measurement, above that before it.
    pub memory_bytes: u64,
    /// Pages that the kernel mapped into the process: memory that it returned and took again.
    pub page_faults: f64,
}

/// Waits until flushes and compactions end, and at least `time_min`, so that their CPU is not
/// counted for the queries.
pub fn wait_until_quiet(contenders: &[Contender], time_min: Duration) {
    let started = Instant::now();
    while started.elapsed() < QUIET_TIME_MAX {
        let cpu = || -> Vec<f64> { contenders.iter().map(|c| c.server.cpu_s()).collect() };
        let before = cpu();
        std::thread::sleep(QUIET_WINDOW);
        let quiet_s = QUIET_CPU * QUIET_WINDOW.as_secs_f64();
        let is_quiet =
            !cpu().into_iter().zip(&before).any(|(after, before)| after - before > quiet_s);
        if is_quiet && started.elapsed() >= time_min {
            return;
        }
    }
    println!("a server is still busy after {} s; measuring anyway", QUIET_TIME_MAX.as_secs());
}

/// The cost of one request for each contender, in their order. `target` makes request number n.
pub fn measure(
    contenders: &[Contender],
    rounds: Rounds,
    target: &(dyn Fn(u64) -> String + Sync),
) -> Vec<Cost> {
    let memory_before: Vec<u64> = contenders.iter().map(|c| c.server.start_peak()).collect();
    let mut latencies_ms = vec![Vec::new(); contenders.len()];
    let mut cpus_ms = vec![Vec::new(); contenders.len()];
    let mut page_faults = vec![Vec::new(); contenders.len()];
    for round in 0..rounds.count {
        for (idx, contender) in contenders.iter().enumerate() {
            // Other numbers than those of checked answers, the same for each program.
            let first = 1_000_000 * (round as u64 + 1);
            let faults_before = contender.server.page_faults();
            let (cpu_ms, mut latency_ms) = measure_round(contender, rounds, first, target);
            let faults = contender.server.page_faults() - faults_before;
            page_faults[idx].push(faults as f64 / latency_ms.len() as f64);
            cpus_ms[idx].push(cpu_ms);
            latencies_ms[idx].append(&mut latency_ms);
        }
    }
    contenders
        .iter()
        .enumerate()
        .map(|(idx, contender)| Cost {
            latency_ms: median(std::mem::take(&mut latencies_ms[idx])),
            cpu_ms: median(std::mem::take(&mut cpus_ms[idx])),
            memory_bytes: contender.server.peak().saturating_sub(memory_before[idx]),
            page_faults: median(std::mem::take(&mut page_faults[idx])),
        })
        .collect()
}

/// CPU milliseconds per query, and the latency of each.
fn measure_round(
    contender: &Contender,
    rounds: Rounds,
    first: u64,
    target: &(dyn Fn(u64) -> String + Sync),
) -> (f64, Vec<f64>) {
    let server = &contender.server;
    let mut connections: Vec<Connection> =
        (0..rounds.client_count).map(|_| contender.connect()).collect();
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let cpu_before_s = server.cpu_s();
    let started = Instant::now();
    let query = |connection: &mut Connection| -> Vec<f64> {
        let mut latencies_ms = Vec::new();
        while latencies_ms.is_empty() || !is_over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let target = target(number);
            let sent = Instant::now();
            connection.get(&target);
            latencies_ms.push(sent.elapsed().as_secs_f64() * 1e3);
            let is_check = (number - first + 1).is_multiple_of(QUERIES_PER_CHECK);
            if (is_check || sent.elapsed().as_millis() > 20)
                && (server.cpu_s() - cpu_before_s >= rounds.cpu_s
                    || started.elapsed() >= rounds.time)
            {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        latencies_ms
    };
    let latencies_ms: Vec<f64> = std::thread::scope(|scope| {
        let (query, clients) = (&query, connections.iter_mut());
        let clients: Vec<_> = clients.map(|c| scope.spawn(move || query(c))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("it only queries")).collect()
    });
    let cpu_ms = (server.cpu_s() - cpu_before_s) * 1e3;
    (cpu_ms / latencies_ms.len() as f64, latencies_ms)
}
