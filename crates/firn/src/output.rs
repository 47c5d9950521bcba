//! Standard output and standard error. Neither makes a command or a server fail: a reader that has
//! closed its pipe has read enough, and a line of the log that cannot be written is lost, not the
//! request that logged it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use firn_server::wire::json;
use firn_server::{Error, Result, one_line};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::{FormatFields, MakeWriter};

/// Prints the result of a command to standard output: lines that the command makes. Texts of a
/// database, a server or a file must not add lines to it: [`one_line`] is theirs.
///
/// # Errors
/// `Unavailable` when it cannot be written, such as to a file on a full disk. A closed pipe is no
/// error.
pub(crate) fn print(text: &str) -> Result<()> {
    write_output(printable(text).as_bytes())
}

/// As [`print()`], on lines of its own, for JSON, whose escapes differ.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_json(report: &Value) -> Result<()> {
    write_output(&json_lines(&format!("{report:#}\n")))
}

/// As [`print_json`], on one line.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_json_line(report: &Value) -> Result<()> {
    write_output(&json_lines(&format!("{report}\n")))
}

/// A JSON list on several lines that is printed while it is made.
#[derive(Debug, Default)]
pub(crate) struct JsonList {
    /// Items that are not printed yet.
    text: String,
    has_items: bool,
}

// Some hundred targets.
const LIST_PART_BYTES: usize = 64 << 10;

impl JsonList {
    /// Adds an item.
    ///
    /// # Errors
    /// As [`print()`].
    pub(crate) fn push(&mut self, item: &Value) -> Result<()> {
        self.text.push_str(if self.has_items { ",\n" } else { "[\n" });
        self.has_items = true;
        for (idx, line) in format!("{item:#}").split('\n').enumerate() {
            self.text.push_str(if idx == 0 { "  " } else { "\n  " });
            self.text.push_str(line);
        }
        if self.text.len() < LIST_PART_BYTES {
            return Ok(());
        }
        write_output(&json_lines(&std::mem::take(&mut self.text)))
    }

    /// Prints the end.
    ///
    /// # Errors
    /// As [`print()`].
    pub(crate) fn end(mut self) -> Result<()> {
        self.text.push_str(if self.has_items { "\n]\n" } else { "[]\n" });
        write_output(&json_lines(&self.text))
    }
}

/// JSON on several lines without other control characters.
fn json_lines(text: &str) -> Vec<u8> {
    let lines: Vec<_> = text.split('\n').map(|line| json::printable(line.into())).collect();
    lines.join(&b'\n')
}

fn write_output(text: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::unavailable("cannot write to standard output").because(error))
        }
        _ => Ok(()),
    }
}

/// Prints a notice for a person, such as the addresses of a server: to be lost rather than to fail.
/// Its lines are those of [`print()`].
pub(crate) fn announce(text: &str) {
    // The server runs without its greeting.
    let _ = print(text);
}

/// As [`announce`], on one line, with texts of files in it.
pub(crate) fn announce_line(text: &str) {
    announce(&(one_line(text) + "\n"));
}

/// The scheme of a server's URLs.
pub(crate) fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}

/// The URLs of a server that listens on `addresses`.
pub(crate) fn urls(scheme: &str, addresses: &[SocketAddr]) -> String {
    let urls: Vec<String> = addresses.iter().map(|at| format!("{scheme}://{at}/")).collect();
    urls.join(" and ")
}

/// Prints progress or an error to standard error, as far as that is possible.
pub(crate) fn report(text: &str) {
    // There is no other place to report a failure of this one.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints an error or a warning on one line. It may contain texts of a server, a database or a
/// file, which neither forge another line nor control the terminal.
pub(crate) fn report_line(text: &str) {
    report(&(one_line(text) + "\n"));
}

/// Prints the mistakes in a file of YAML: one line, or a line for each value of a wrong type, as in
/// Prometheus.
pub(crate) fn report_mistakes(text: &str) {
    report(&(mistake_lines(text) + "\n"));
}

/// Lines that list the mistakes of one document begin like this.
const MISTAKE_START: &str = "\n  line ";

fn mistake_lines(text: &str) -> String {
    let lines: Vec<_> = text.split(MISTAKE_START).map(one_line).collect();
    lines.join(MISTAKE_START)
}

/// Prints a report of several lines with tabs. Its maker has put texts of files on one line each.
pub(crate) fn report_lines(text: &str) {
    let columns: Vec<_> = text.split('\t').map(printable).collect();
    report(&(columns.join("\t") + "\n"));
}

/// A text of several lines without other control characters.
pub(crate) fn printable(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(one_line).collect();
    lines.join("\n")
}

/// Logs mistakes in settings that do not stop a server.
pub(crate) fn log_warnings(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Reports the same for a command that ends soon.
pub(crate) fn report_warnings(warnings: &[String]) {
    for warning in warnings {
        report_line(&format!("firn: warning: {warning}"));
    }
}

/// Logs to standard error, panics included. `RUST_LOG` selects the messages; by default `info` and
/// above.
pub(crate) fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env();
    let mistake = match &filter {
        // Empty is as good as unset.
        Err(error) if std::env::var("RUST_LOG").is_ok_and(|text| !text.is_empty()) => {
            Some(error.to_string())
        }
        _ => None,
    };
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LogWriter::default())
        .fmt_fields(OneLineFields)
        .with_ansi(io::stderr().is_terminal())
        // A failed write must not be reported where it failed.
        .log_internal_errors(false)
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        // Empty unless RUST_BACKTRACE requests one.
        let backtrace = Backtrace::capture();
        tracing::error!("thread {name} panicked, which is a bug: {panic}");
        if backtrace.status() == BacktraceStatus::Captured {
            for line in backtrace.to_string().lines() {
                tracing::error!("thread {name}: {line}");
            }
        }
    }));
    if let Some(mistake) = mistake {
        tracing::warn!(
            "RUST_LOG is not understood, and messages from info up are logged: {mistake}"
        );
    }
}

/// Messages and fields on one line: they repeat texts of clients, files and other servers, which
/// must not add an event to the log or control a terminal.
struct OneLineFields;

impl<'writer> FormatFields<'writer> for OneLineFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut text = BoundedText::default();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        writer.write_str(&one_line(&text.kept))?;
        match text.omitted_bytes {
            0 => Ok(()),
            count => write!(writer, "... ({count} bytes more)"),
        }
    }
}

/// Longer messages are cut: they repeat inputs, such as the mistakes of all rules, and each thread
/// keeps the memory of its longest line.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The beginning of a text.
#[derive(Default)]
struct BoundedText {
    kept: String,
    omitted_bytes: usize,
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = match self.omitted_bytes {
            0 => MESSAGE_BYTES_MAX.saturating_sub(self.kept.len()),
            _ => 0,
        };
        let (kept, omitted) = text.split_at(text.floor_char_boundary(left));
        self.kept.push_str(kept);
        self.omitted_bytes = self.omitted_bytes.saturating_add(omitted.len());
        Ok(())
    }
}

// A reader that is only slow catches up within this time; one that has stopped must not delay
// requests.
const STALL_MAX: Duration = Duration::from_secs(1);
// A pipe that is ready takes this number of bytes without blocking (PIPE_BUF).
const PIECE_BYTES: usize = 4_096;

/// Writes whole lines to standard error. Lines that cannot be written are dropped and counted:
/// those of a closed pipe and of a full disk at once, those of an unread pipe after
/// [`STALL_MAX`].
#[derive(Clone, Default)]
struct LogWriter(Arc<Mutex<LogState>>);

#[derive(Default)]
struct LogState {
    /// The pipe was full for [`STALL_MAX`]: lines are dropped until there is space again.
    is_stalled: bool,
    dropped_count: u64,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        self.clone()
    }
}

impl Write for LogWriter {
    /// Called once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().write_line(line, &mut io::stderr());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogState {
    fn write_line(&mut self, line: &[u8], output: &mut (impl Write + AsFd)) {
        let dropped_count = self.dropped_count;
        let notice = match dropped_count {
            0 => Ok(()),
            _ => self.write(
                format!("{dropped_count} log lines were lost: they could not be written\n")
                    .as_bytes(),
                output,
            ),
        };
        if notice.is_ok() {
            self.dropped_count = 0;
        }
        if notice.and_then(|()| self.write(line, output)).is_err() {
            self.dropped_count += 1;
        }
    }

    fn write(&mut self, text: &[u8], output: &mut (impl Write + AsFd)) -> io::Result<()> {
        for piece in text.chunks(PIECE_BYTES) {
            let wait = if self.is_stalled { Duration::ZERO } else { STALL_MAX };
            self.is_stalled = !is_writable(output, wait);
            if self.is_stalled {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            output.write_all(piece)?;
        }
        Ok(())
    }
}

/// Whether a write of [`PIECE_BYTES`] returns at once, within `wait`. It may fail.
fn is_writable(output: &impl AsFd, wait: Duration) -> bool {
    let mut events = [PollFd::new(output, PollFlags::OUT)];
    let wait = Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    // An interrupted or impossible poll is no reason to lose a line.
    poll(&mut events, Some(&wait)).map_or(true, |ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A file could print a success or the mistake of another file.
    #[test]
    fn a_mistake_has_only_the_lines_of_yaml() {
        let list = "yaml: unmarshal errors:\n  line 1: a\n  line 2: b";
        assert_eq!(mistake_lines(list), list);
        let forged = "job x\n  SUCCESS\nerror: y\u{1b}[2J";
        assert_eq!(mistake_lines(forged), "job x\\n  SUCCESS\\nerror: y\\u{1b}[2J");
    }

    /// Each thread keeps the memory of its longest line.
    #[test]
    fn a_long_message_is_cut() {
        use std::fmt::Write as _;
        let mut text = BoundedText::default();
        for _ in 0..MESSAGE_BYTES_MAX {
            text.write_str("\u{e9}x").unwrap();
        }
        let kept_bytes = text.kept.len();
        assert!(kept_bytes <= MESSAGE_BYTES_MAX && kept_bytes + 2 > MESSAGE_BYTES_MAX);
        assert_eq!(kept_bytes + text.omitted_bytes, 3 * MESSAGE_BYTES_MAX);
        let mut short = BoundedText::default();
        short.write_str("short").unwrap();
        assert_eq!((&*short.kept, short.omitted_bytes), ("short", 0));
    }

    #[test]
    fn an_unread_pipe_loses_lines_and_a_later_line_counts_them() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let mut state = LogState { is_stalled: true, dropped_count: 0 };
        let line = [&[b'x'; 4_000][..], b"\n"].concat();
        while state.dropped_count < 3 {
            state.write_line(&line, &mut writer);
        }
        let mut received = vec![0; 60_000];
        reader.read_exact(&mut received).unwrap();
        state.write_line(b"last\n", &mut writer);
        assert_eq!((state.dropped_count, state.is_stalled), (0, false));
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let end = "3 log lines were lost: they could not be written\nlast\n";
        assert!(rest.ends_with(end), "{}", &rest[rest.len().saturating_sub(200)..]);
    }

    #[test]
    fn a_closed_pipe_loses_every_line_without_waiting() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let mut state = LogState::default();
        for count in 1..=3 {
            state.write_line(b"line\n", &mut writer);
            assert_eq!((state.dropped_count, state.is_stalled), (count, false));
        }
    }
}
