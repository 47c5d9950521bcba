//! Signals that must not end the program, and one that ends it with a sentence.

use std::ffi::{c_int, c_void};

use rustix::process::Signal;

/// A file that reaches the limit of its size (`ulimit -f`, `LimitFSIZE`) sends SIGXFSZ. Without the
/// signal the write fails, as on a full disk.
const OF_COMMANDS: [Signal; 1] = [Signal::XFSZ];
/// Operators send these to other servers to reopen logs or print statistics. SIGHUP is received
/// once the server is set up; until then it must not end the start.
const OF_SERVERS: [Signal; 3] = [Signal::HUP, Signal::USR1, Signal::USR2];

/// `SIG_IGN` of signal.h.
const IGNORE: usize = 1;

const LOST_PAGE: &str = "firn: a file of the database became shorter, or its device failed, while \
it was mapped into memory (SIGBUS): start again, or run `firn check`; acknowledged data in other \
files is safe\n";

/// Ignores the signals that end no command, and prints a sentence before SIGBUS ends the process.
pub(crate) fn set_up_for_commands() {
    OF_COMMANDS.into_iter().for_each(|signal| set(signal, IGNORE));
    let explain: extern "C" fn(c_int) = explain_lost_page;
    set(Signal::BUS, explain as usize);
}

/// Ignores the further signals that end no server.
pub(crate) fn set_up_for_servers() {
    OF_SERVERS.into_iter().for_each(|signal| set(signal, IGNORE));
}

#[expect(unsafe_code, reason = "the interfaces in Rust need a thread or a runtime")]
fn set(number: Signal, handler: usize) {
    // SAFETY: as signal.h declares it; a handler is a function or one of its constants.
    unsafe extern "C" {
        fn signal(signal: c_int, handler: usize) -> usize;
    }
    // SAFETY: the handlers of this file call only functions that a handler may call. The call fails
    // only for signals that do not exist.
    unsafe { signal(number.as_raw(), handler) };
}

/// The handler of SIGBUS: the read of a mapped page beyond the end of its file cannot continue.
#[expect(unsafe_code, reason = "a handler may call little more than these two")]
extern "C" fn explain_lost_page(_: c_int) {
    // SAFETY: as unistd.h declares them.
    unsafe extern "C" {
        fn write(file: c_int, bytes: *const c_void, len: usize) -> isize;
        fn _exit(code: c_int) -> !;
    }
    // SAFETY: both are safe in a handler (POSIX, async-signal-safe), and the text is static.
    unsafe {
        write(2, LOST_PAGE.as_ptr().cast(), LOST_PAGE.len());
        _exit(1)
    }
}
