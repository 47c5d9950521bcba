//! An allocator that counts requested bytes, without the allocator's own overhead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// The system's allocator with a count. A binary makes it its `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are allocated now. Always 0 if [`Counting`] is not the allocator.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes that were allocated at one time since [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Starts a new measurement of [`peak_bytes`].
pub fn reset_peak() {
    PEAK.store(live_bytes(), Ordering::Relaxed);
}

static RESERVED: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>> = OnceLock::new();
static UNRESERVED_PEAK: AtomicI64 = AtomicI64::new(i64::MIN);

/// Compares the allocated bytes at each allocation from now on with those that `reserved` returns.
/// It must not allocate. Only the first call has an effect.
pub fn compare_with(reserved: impl Fn() -> u64 + Send + Sync + 'static) {
    let _ = RESERVED.set(Box::new(reserved));
}

/// Allocated bytes less reserved bytes now.
pub fn unreserved_bytes() -> i64 {
    let reserved = RESERVED.get().map_or(0, |reserved| reserved());
    live_bytes() as i64 - reserved as i64
}

/// The largest [`unreserved_bytes`] at an allocation since [`reset_unreserved_peak`].
pub fn unreserved_peak() -> i64 {
    UNRESERVED_PEAK.load(Ordering::Relaxed)
}

/// Starts a new measurement of [`unreserved_peak`].
pub fn reset_unreserved_peak() {
    UNRESERVED_PEAK.store(unreserved_bytes(), Ordering::Relaxed);
}

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
    // Small allocations between two large ones change little.
    if bytes >= COMPARED_BYTES_MIN && RESERVED.get().is_some() {
        UNRESERVED_PEAK.fetch_max(unreserved_bytes(), Ordering::Relaxed);
    }
}

const COMPARED_BYTES_MIN: usize = 256;

// SAFETY: every call is handed to the system's allocator unchanged; only sizes are counted.
#[expect(unsafe_code, reason = "counting allocations needs a global allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        grow(new_bytes);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.realloc(at, layout, new_bytes) }
    }
}
