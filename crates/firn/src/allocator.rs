//! The allocator, and how soon it gives memory back to the system.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` in the list of mimalloc's options, which only grows at its end.
const PURGE_DELAY: c_int = 15;

/// A thread gives back this often at most: the network's fall idle after each request, and collecting takes tens of
/// microseconds.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(20);

#[expect(unsafe_code, reason = "the interface in Rust has no options")]
// SAFETY: as mimalloc.h declares it; mimalloc is linked as the global allocator above.
unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// Freed memory goes back at once. By default that takes ten seconds, in which a server at its limit holds several times
/// the limit: 740 MB of 64 MiB when 40 senders pressed it, 54 to 134 MB without the delay. The CPU of a remote write
/// sample is the same (`make bench-head`).
#[expect(unsafe_code, reason = "the interface in Rust has no options")]
pub(crate) fn give_back_at_once() {
    // SAFETY: it stores a number in an atomic variable; any thread may do that at any time.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}

/// Gives back what this thread has freed, and what others have freed of its memory: mimalloc looks at pages of a thread only
/// when that thread wants memory again, so each idle one would keep megabytes.
#[expect(unsafe_code, reason = "the interface in Rust does not have it")]
pub(crate) fn give_back() {
    thread_local!(static LAST: Cell<Option<Instant>> = const { Cell::new(None) });
    if LAST.get().is_some_and(|last| last.elapsed() < GIVE_BACK_EVERY) {
        return;
    }
    LAST.set(Some(Instant::now()));
    // SAFETY: it looks at the memory of the thread that calls it, and any thread may call it at any time.
    unsafe { mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(unsafe_code, reason = "the interface in Rust has no options")]
    // SAFETY: as above.
    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    #[test]
    #[expect(unsafe_code, reason = "the interface in Rust has no options")]
    fn the_option_is_the_delay() {
        // SAFETY: it loads a number.
        let before = unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(before, 1_000, "mimalloc's default, by which its place is known");
        give_back_at_once();
        // SAFETY: it loads a number.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 0);
    }
}
