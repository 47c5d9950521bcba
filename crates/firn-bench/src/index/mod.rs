//! Inputs of the index benchmark: label sets, two baselines and random selectors.

pub mod counting;
pub mod dictionaries;
pub mod label_sets;
pub mod nested_maps;
pub mod noise;
pub mod selectors;

/// A random number that is the same every time: the finalizer of splitmix64.
pub fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// CPU time of this thread in nanoseconds: wall time would include other load.
pub fn thread_cpu_ns() -> f64 {
    clock_ns(rustix::time::ClockId::ThreadCPUTime)
}

/// CPU time of this process, all threads, nanoseconds.
pub fn process_cpu_ns() -> f64 {
    clock_ns(rustix::time::ClockId::ProcessCPUTime)
}

fn clock_ns(clock: rustix::time::ClockId) -> f64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}
