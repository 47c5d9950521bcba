//! The mark of threads that serve sockets. Such a thread must not compute: while it compiles one
//! client's regular expression, no other client is answered.

use std::cell::Cell;

thread_local! {
    static IS_NETWORK_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with this thread marked as one that serves sockets, or not.
pub fn as_network_thread<T>(is_network_thread: bool, work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_NETWORK_THREAD.set(self.0);
        }
    }
    let _restore = Restore(IS_NETWORK_THREAD.replace(is_network_thread));
    work()
}

/// Panics in a debug build if this thread serves sockets.
#[track_caller]
pub fn assert_not_network_thread() {
    debug_assert!(
        !IS_NETWORK_THREAD.get(),
        "a network thread parses, compiles or waits for a long lock; do it on another thread"
    );
}
