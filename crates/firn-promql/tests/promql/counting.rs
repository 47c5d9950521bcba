//! An allocator that counts the bytes that each thread holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count per thread, so that tests run side by side.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Runs `work` on this thread; returns the most bytes that it held at one time, and the bytes that
/// its result holds.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    let (peak, after) = (PEAK.get() - before, LIVE.get() - before);
    (result, peak.max(0).unsigned_abs(), after.max(0).unsigned_abs())
}

fn count(more: usize, less: usize) {
    // Without the thread's memory, at its end, nothing is counted.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + more as i64 - less as i64);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed to the system's allocator unchanged; only sizes are counted.
#[expect(unsafe_code, reason = "counting allocations needs a global allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // Both exist while the bytes are copied.
        count(new_bytes, 0);
        count(0, layout.size());
        unsafe { System.realloc(at, layout, new_bytes) }
    }
}
