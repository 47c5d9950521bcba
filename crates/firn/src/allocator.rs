//! The allocator, and how soon it returns freed memory to the operating system.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Index of `mi_option_purge_delay` in mimalloc's options, a list that only grows at its end.
const PURGE_DELAY: c_int = 15;

/// Shortest time between two releases of one thread: network threads become idle after each
/// request, and a release takes tens of microseconds.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);

#[expect(unsafe_code, reason = "the interface in Rust has no options")]
// SAFETY: as mimalloc.h declares it; mimalloc is linked as the global allocator above.
unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// Milliseconds until free pages of a server are returned to the operating system.
///
/// A query frees the columns of one group and allocates those of the next. Without a delay each
/// page is returned and faulted in again: 80,000 faults in a query of 100,000 series, half its CPU
/// time on one thread and two thirds on two, which stop each other to change the page table. With
/// the default, a second, a server at its limit holds several times the limit: 740 MB at 64 MiB
/// under the load of 40 senders.
const PURGE_DELAY_MS: c_long = 10;

/// Returns free memory to the operating system at once: for commands, which read one large text.
pub(crate) fn purge_at_once() {
    set_purge_delay(0);
}

/// Returns free memory after [`PURGE_DELAY_MS`]: for servers. Idle threads return it at once
/// ([`release`]).
pub(crate) fn purge_soon() {
    set_purge_delay(PURGE_DELAY_MS);
}

#[expect(unsafe_code, reason = "the interface in Rust has no options")]
fn set_purge_delay(ms: c_long) {
    // SAFETY: it stores a number in an atomic variable; any thread may do that at any time.
    unsafe { mi_option_set(PURGE_DELAY, ms) }
}

/// Makes all threads share one arena of the system's allocator, which only C libraries and the
/// runtime use. By default each thread maps 64 MiB of addresses at its first allocation: 1 GiB at
/// the start of a server, so that it failed under a limit of 2 GiB (`ulimit -v`).
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the interface in Rust does not have it")]
pub(crate) fn share_system_arena() {
    /// `M_ARENA_MAX` of malloc.h.
    const ARENA_MAX: c_int = -8;
    // SAFETY: as malloc.h declares it.
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // SAFETY: no thread but this one exists yet; a refused option changes nothing.
    unsafe { mallopt(ARENA_MAX, 1) };
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn share_system_arena() {}

/// Releases the memory that this thread has freed, and memory of this thread that others have
/// freed. Idle threads call it: mimalloc searches the pages of a thread only when that thread
/// allocates, so each idle thread would keep megabytes.
#[expect(unsafe_code, reason = "the interface in Rust does not have it")]
pub(crate) fn release() {
    thread_local!(static LAST: Cell<Option<Instant>> = const { Cell::new(None) });
    if LAST.get().is_some_and(|last| last.elapsed() < RELEASE_INTERVAL) {
        return;
    }
    LAST.set(Some(Instant::now()));
    // SAFETY: it reads the memory of the calling thread, and any thread may call it at any time.
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
        let default = unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(default, 1_000, "mimalloc's default, which identifies the option");
        purge_soon();
        // SAFETY: it loads a number.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, PURGE_DELAY_MS);
    }
}
