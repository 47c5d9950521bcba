//! Measurements during an attack: resident memory every 5 ms, and the response time of a health
//! check on a new connection each time.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::dial::Dialer;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// A probe without an answer counts as this long.
const PROBE_TIME_MAX: Duration = Duration::from_secs(3);
const PAGE_BYTES: u64 = 4_096;

/// The threads that measure; they end when this is dropped.
pub(crate) struct Watch {
    shared: Arc<Measured>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Measured {
    pid: AtomicU32,
    is_done: AtomicBool,
    peak_bytes: AtomicU64,
    samples: AtomicU64,
    probes: Mutex<Vec<Duration>>,
    probe_count: AtomicU64,
}

/// The measurements since the last reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// The largest anonymous memory that was resident. The kernel reclaims pages of files, the
    /// program's own among them, by itself.
    pub(crate) peak_bytes: u64,
    /// 99 of 100 health checks were at most this long.
    pub(crate) p99: Duration,
}

impl Watch {
    /// Starts to watch the process; `probe` is a request, `wanted` is in its response.
    pub(crate) fn start(pid: u32, dialer: Dialer, probe: Vec<u8>, wanted: &'static [u8]) -> Watch {
        let shared = Arc::new(Measured::default());
        shared.pid.store(pid, Ordering::Relaxed);
        let sampled = Arc::clone(&shared);
        let probed = Arc::clone(&shared);
        let threads = vec![
            std::thread::spawn(move || sampled.sample()),
            std::thread::spawn(move || probed.probe(&dialer, &probe, wanted)),
        ];
        Watch { shared, threads }
    }

    /// Another process has taken the place of the first.
    pub(crate) fn set_pid(&self, pid: u32) {
        self.shared.pid.store(pid, Ordering::Relaxed);
    }

    /// Forgets all measurements.
    pub(crate) fn reset(&self) {
        self.shared.peak_bytes.store(0, Ordering::Relaxed);
        self.shared.probes.lock().expect("no panic").clear();
    }

    /// Waits for one more sample and one more probe that began after the call, then reports.
    pub(crate) fn finish(&self) -> Observation {
        let (samples, probes) = (self.samples(), self.probes());
        let start = Instant::now();
        while (self.samples() < samples + 2 || self.probes() < probes + 2)
            && start.elapsed() < 3 * PROBE_TIME_MAX
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut probes = self.shared.probes.lock().expect("no panic").clone();
        probes.sort();
        let p99 = probes.get((probes.len() * 99).div_ceil(100).saturating_sub(1)).copied();
        Observation {
            peak_bytes: self.shared.peak_bytes.load(Ordering::Relaxed),
            p99: p99.unwrap_or(PROBE_TIME_MAX),
        }
    }

    fn samples(&self) -> u64 {
        self.shared.samples.load(Ordering::Relaxed)
    }

    fn probes(&self) -> u64 {
        self.shared.probe_count.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Measured {
    fn sample(&self) {
        while !self.is_done.load(Ordering::Relaxed) {
            let pid = self.pid.load(Ordering::Relaxed);
            let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            let mut pages = statm.split(' ').skip(1).map(|field| field.parse().unwrap_or(0));
            let (resident, shared): (u64, u64) =
                (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
            let bytes = resident.saturating_sub(shared) * PAGE_BYTES;
            self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
            self.samples.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(SAMPLE_INTERVAL);
        }
    }

    fn probe(&self, dialer: &Dialer, request: &[u8], wanted: &[u8]) {
        while !self.is_done.load(Ordering::Relaxed) {
            let start = Instant::now();
            let took = match probe_once(dialer, request, wanted) {
                true => start.elapsed(),
                false => PROBE_TIME_MAX,
            };
            self.probes.lock().expect("no panic").push(took);
            self.probe_count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PROBE_INTERVAL);
        }
    }
}

fn probe_once(dialer: &Dialer, request: &[u8], wanted: &[u8]) -> bool {
    let Ok(mut stream) = dialer.connect() else { return false };
    let _ = stream.socket().set_read_timeout(Some(PROBE_TIME_MAX));
    if stream.write_all(request).is_err() {
        return false;
    }
    let mut received = Vec::new();
    let mut buffer = [0; 4_096];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(&buffer[..len]);
        if received.windows(wanted.len()).any(|window| window == wanted) {
            return true;
        }
    }
    false
}
