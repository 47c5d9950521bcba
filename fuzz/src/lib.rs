//! The frame of every fuzzer: it bounds the memory that a check may take by the length of its
//! input, so that a decoder which allocates before it has checked is a find.

mod allocator;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use allocator::{LIVE_BYTES, PEAK_BYTES};

/// The most memory that a check may take at once.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBound {
    /// For every input.
    pub base_bytes: usize,
    /// More for each byte of the input.
    pub bytes_per_byte: usize,
}

/// Defines a fuzzer: the function that checks an input, and the bound of its memory.
#[macro_export]
macro_rules! fuzzer {
    ($check:path, base_bytes: $base_bytes:expr, bytes_per_byte: $bytes_per_byte:expr) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            const BOUND: $crate::MemoryBound =
                $crate::MemoryBound { base_bytes: $base_bytes, bytes_per_byte: $bytes_per_byte };
            $crate::check($check, data, BOUND)
        });
    };
}

/// Checks one input.
///
/// # Panics
/// If the check panics, or takes more memory than `bound`.
pub fn check(check: fn(&[u8]), data: &[u8], bound: MemoryBound) {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    check(data);
    let taken = PEAK_BYTES.load(Relaxed).saturating_sub(before);
    report_record(taken, data.len());
    let bytes_max = bound.base_bytes + data.len() * bound.bytes_per_byte;
    assert!(
        taken <= bytes_max,
        "an input of {} bytes took {taken} bytes of memory, the bound is {bytes_max}",
        data.len()
    );
}

/// With `FIRN_FUZZ_MEMORY` prints each input that took more memory than all before it.
fn report_record(taken: usize, input_bytes: usize) {
    static RECORD: AtomicUsize = AtomicUsize::new(0);
    if taken > RECORD.load(Relaxed) && std::env::var_os("FIRN_FUZZ_MEMORY").is_some() {
        RECORD.store(taken + taken / 8, Relaxed);
        eprintln!("memory: {taken} bytes for an input of {input_bytes}");
    }
}
