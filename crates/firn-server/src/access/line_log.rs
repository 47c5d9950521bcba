//! Logs of JSON lines: the audit log and the query log. A request never waits for them and never
//! fails because of them: lines wait in a bounded queue, and those without room are counted.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use firn_model::{Error, Result};

use crate::telemetry::Counter;

/// A log that a thread writes.
#[derive(Debug)]
pub(crate) struct LineLog {
    sender: Option<SyncSender<Message>>,
    state: Arc<LogState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LogState {
    queued_bytes: AtomicUsize,
    written: Counter,
    dropped: Counter,
}

enum Message {
    Line(Vec<u8>),
    Reopen,
}

/// The destination of lines.
enum Sink {
    Stderr,
    File { path: PathBuf, file: Option<File> },
}

/// The name of a file that stands for standard error.
const STDERR: &str = "stderr";
const QUEUE_LEN_MAX: usize = 4_096;
const QUEUE_BYTES_MAX: usize = 8 << 20;

impl LineLog {
    /// Appends to the file `path`, or to standard error if that is its name. `setting` names it in
    /// messages.
    ///
    /// # Errors
    /// `Invalid` if the file cannot be opened, `Unavailable` without a thread.
    pub(crate) fn open(path: &Path, setting: &'static str) -> Result<LineLog> {
        let sink = match path == Path::new(STDERR) {
            true => Sink::Stderr,
            false => {
                let file = open(path).map_err(|e| {
                    Error::invalid(format!("{setting}: cannot open {}", path.display())).because(e)
                })?;
                Sink::File { path: path.to_owned(), file: Some(file) }
            }
        };
        let (sender, receiver) = sync_channel(QUEUE_LEN_MAX);
        let state = Arc::new(LogState::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("firn-lines".to_owned())
            .spawn(move || write(&receiver, sink, &shared, setting))
            .map_err(|e| Error::unavailable("cannot start a thread").because(e))?;
        Ok(LineLog { sender: Some(sender), state, thread: Some(thread) })
    }

    /// Queues a line, whose end is added here.
    pub(crate) fn push(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        let bytes = line.len();
        let queued = self.state.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_room = queued.saturating_add(bytes) <= QUEUE_BYTES_MAX;
        let sender = self.sender.as_ref().filter(|_| is_room);
        if sender.is_none_or(|sender| sender.try_send(Message::Line(line)).is_err()) {
            self.state.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.state.dropped.add(1);
        }
    }

    /// Opens the file again, which another program may have moved away.
    pub(crate) fn reopen(&self) {
        if let Some(sender) = &self.sender {
            // A full queue means that the thread hangs in a write.
            let _ = sender.try_send(Message::Reopen);
        }
    }

    /// Lines that were written, and lines that were lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.state.written.get(), self.state.dropped.get())
    }
}

impl Drop for LineLog {
    /// Writes the queued lines.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn write(receiver: &Receiver<Message>, mut sink: Sink, state: &LogState, setting: &'static str) {
    let mut has_failed = false;
    while let Ok(message) = receiver.recv() {
        let written = match message {
            Message::Line(line) => {
                state.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                let written = sink.write(&line);
                if written.is_ok() { &state.written } else { &state.dropped }.add(1);
                written
            }
            Message::Reopen => sink.reopen(),
        };
        match written {
            Ok(()) => has_failed = false,
            // One message for a series of failures.
            Err(error) if !has_failed => {
                has_failed = true;
                tracing::error!(%error, "{setting}: cannot write; lines are dropped");
            }
            Err(_) => {}
        }
    }
}

impl Sink {
    fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        match self {
            Sink::Stderr => std::io::stderr().lock().write_all(line),
            Sink::File { path, file } => {
                if file.is_none() {
                    *file = Some(open(path)?);
                }
                let written = file.as_mut().map_or(Ok(()), |file| file.write_all(line));
                if written.is_err() {
                    *file = None;
                }
                written
            }
        }
    }

    fn reopen(&mut self) -> std::io::Result<()> {
        if let Sink::File { path, file } = self {
            *file = Some(open(path)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended_and_the_file_can_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let log = LineLog::open(&path, "--audit-log").unwrap();
        log.push(b"one".to_vec());
        while log.counts().0 < 1 {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).unwrap();
        log.reopen();
        log.push(b"two".to_vec());
        drop(log);
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    #[test]
    fn a_failing_device_drops_lines_and_blocks_nobody() {
        let log = LineLog::open(Path::new("/dev/full"), "--audit-log").unwrap();
        for _ in 0..3 * QUEUE_LEN_MAX {
            log.push(vec![b'x'; 100]);
        }
        let state = Arc::clone(&log.state);
        drop(log);
        assert_eq!((state.written.get(), state.dropped.get()), (0, 3 * QUEUE_LEN_MAX as u64));
        assert_eq!(state.queued_bytes.load(Ordering::Relaxed), 0);
        assert!(LineLog::open(Path::new("/nowhere/x"), "--audit-log").is_err());
    }
}
