//! Logs of JSON lines: the audit log and the query log. A request never waits for them and never
//! fails because of them: lines wait in a bounded queue, and those without room are counted.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use firn_model::{Error, Result};
use parking_lot::Mutex;

use crate::telemetry::Counter;
use crate::wire::json::printable;
use firn_env::given_file::open_log;
use firn_env::is_same_file;

/// A log that a thread writes.
#[derive(Debug)]
pub(crate) struct LineLog {
    sender: Option<SyncSender<Message>>,
    state: Arc<LogState>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread ends.
    end: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct LogState {
    queued_bytes: AtomicUsize,
    written: Counter,
    dropped: Counter,
}

enum Message {
    Line(Vec<u8>),
    Reopen(Vec<InputFile>),
}

/// The destination of lines.
enum Sink {
    /// Shared with the server's log: a regular file or a socket.
    Stderr {
        is_torn: bool,
    },
    File(LogFile),
}

struct LogFile {
    path: PathBuf,
    forbidden: ForbiddenFiles,
    file: Option<File>,
    /// A part of the last line is missing, and the other part cannot be removed, so the next line
    /// begins with the end of that one.
    is_torn: bool,
}

/// The names of a file that stand for standard error.
const STDERR: [&str; 2] = ["stderr", "/dev/stderr"];
/// A device that hangs for longer at the stop loses the rest of the lines.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
const QUEUE_LEN_MAX: usize = 4_096;
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// A file that the process reads.
#[derive(Clone, Debug)]
pub(crate) struct InputFile {
    /// The setting or key that names it.
    pub(crate) setting: String,
    pub(crate) path: PathBuf,
}

/// Finds the folder of the process's own data that a file is in, for messages.
type FindOwnFolder = Arc<dyn Fn(&Path) -> Option<String> + Send + Sync>;

/// The files to which no line may be appended. They are compared at each opening: the path of a log
/// may have become a link meanwhile.
#[derive(Clone, Default)]
pub(crate) struct ForbiddenFiles {
    /// Files that the process reads.
    pub(crate) inputs: Vec<InputFile>,
    /// Files in folders of databases and caches.
    pub(crate) own: Option<FindOwnFolder>,
}

impl fmt::Debug for ForbiddenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForbiddenFiles").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl ForbiddenFiles {
    fn check(&self, path: &Path) -> io::Result<()> {
        let shown = path.display();
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if let Some(input) = self.inputs.iter().find(|input| is_same_file(path, &input.path)) {
            let setting = &input.setting;
            return refuse(format!("{shown} is also the file of {setting}; choose another file"));
        }
        match self.own.as_ref().and_then(|own| own(path)) {
            Some(own) => refuse(format!("{shown} is in {own}; choose another file")),
            None => Ok(()),
        }
    }
}

/// Whether a log of this name is standard error.
pub(crate) fn is_stderr(path: &Path) -> bool {
    STDERR.iter().any(|name| path == Path::new(name))
}

impl LineLog {
    /// Appends to the file `path`, or to standard error if that is its name. `setting` names it in
    /// messages.
    ///
    /// # Errors
    /// `Invalid` if the file cannot be opened or is a forbidden one, `Unavailable` without a
    /// thread.
    pub(crate) fn open(
        path: &Path,
        setting: &'static str,
        forbidden: ForbiddenFiles,
    ) -> Result<LineLog> {
        if !is_stderr(path) {
            forbidden.check(path).map_err(|e| Error::invalid(format!("{setting}: {e}")))?;
        }
        let sink = Sink::open(path, forbidden).map_err(|e| {
            Error::invalid(format!("{setting}: cannot open {}", path.display())).because(e)
        })?;
        let (sender, receiver) = sync_channel(QUEUE_LEN_MAX);
        let state = Arc::new(LogState::default());
        let shared = Arc::clone(&state);
        let (ending, end) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("firn-lines".to_owned())
            .spawn(move || {
                let _ending: SyncSender<()> = ending;
                write(&receiver, sink, &shared, setting);
            })
            .map_err(|e| Error::unavailable("cannot start a thread").because(e))?;
        Ok(LineLog { sender: Some(sender), state, thread: Some(thread), end: Mutex::new(end) })
    }

    /// Queues a JSON document as a line, whose end is added here.
    pub(crate) fn push(&self, document: Vec<u8>) {
        let mut line = printable(document);
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

    /// Opens the file again, which another program may have moved away. `inputs` are the files that
    /// the process reads now.
    pub(crate) fn reopen(&self, inputs: Vec<InputFile>) {
        if let Some(sender) = &self.sender {
            // A full queue means that the thread hangs in a write.
            let _ = sender.try_send(Message::Reopen(inputs));
        }
    }

    /// Lines that were written, and lines that were lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.state.written.get(), self.state.dropped.get())
    }
}

impl Drop for LineLog {
    /// Writes the queued lines, as far as the device accepts them in time.
    fn drop(&mut self) {
        self.sender = None;
        let ended = self.end.get_mut().recv_timeout(STOP_TIME_MAX);
        if ended != Err(RecvTimeoutError::Disconnected) {
            tracing::error!("a log is not written to its end: its device hangs");
        } else if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
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
            Message::Reopen(inputs) => sink.reopen(inputs),
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
    fn open(path: &Path, forbidden: ForbiddenFiles) -> io::Result<Sink> {
        if !is_stderr(path) {
            return LogFile::open(path, forbidden).map(Sink::File);
        }
        // Opened a second time, a pipe or a terminal does not make a writer wait. A regular file
        // would have two ends, and a socket cannot be opened.
        match rustix::fs::fstat(io::stderr()).map(|found| found.st_mode) {
            Ok(mode) if has_second_opening(mode) => {
                let path = Path::new("/proc/self/fd/2");
                let opened = LogFile::open(path, ForbiddenFiles::default());
                Ok(opened.map_or(Sink::Stderr { is_torn: false }, Sink::File))
            }
            _ => Ok(Sink::Stderr { is_torn: false }),
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr { is_torn } => {
                write_line(&mut io::stderr().lock(), line, is_torn).map_err(|(error, _)| error)
            }
            Sink::File(file) => file.write(line),
        }
    }

    fn reopen(&mut self, inputs: Vec<InputFile>) -> io::Result<()> {
        match self {
            Sink::Stderr { .. } => Ok(()),
            Sink::File(file) => {
                file.forbidden.inputs = inputs;
                *file = LogFile::open(&file.path, file.forbidden.clone())?;
                Ok(())
            }
        }
    }
}

fn has_second_opening(mode: u32) -> bool {
    use rustix::fs::FileType;
    matches!(FileType::from_raw_mode(mode), FileType::Fifo | FileType::CharacterDevice)
}

impl LogFile {
    fn open(path: &Path, forbidden: ForbiddenFiles) -> io::Result<LogFile> {
        forbidden.check(path)?;
        let file = open_log(path)?;
        // An earlier process may have been killed, or its disk full, in the middle of a line.
        let is_torn = is_regular(&file) && ends_within_line(&file);
        Ok(LogFile { path: path.to_owned(), forbidden, file: Some(file), is_torn })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                self.forbidden.check(&self.path)?;
                self.file.insert(open_log(&self.path)?)
            }
        };
        let was_torn = self.is_torn;
        let Err((error, len)) = write_line(file, line, &mut self.is_torn) else { return Ok(()) };
        if len > 0 && remove_end(file, len).is_ok() {
            self.is_torn = was_torn;
        }
        self.file = None;
        Err(error)
    }
}

/// Writes `line` and, if the line before it is torn, its end first.
///
/// # Errors
/// With the number of bytes that were written.
fn write_line(
    out: &mut impl Write,
    line: &[u8],
    is_torn: &mut bool,
) -> Result<(), (io::Error, usize)> {
    let end = if *is_torn { &b"\n"[..] } else { b"" };
    let written = write_whole(out, &[end, line].concat());
    *is_torn = match &written {
        Ok(()) => false,
        Err((_, 0)) => *is_torn,
        Err(_) => true,
    };
    written
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.is_file())
}

/// Removes the `len` bytes that were appended last, so that readers find no cut line. A full disk
/// permits that.
///
/// # Errors
/// If it is no regular file, or if another program has appended since.
fn remove_end(file: &mut File, len: usize) -> io::Result<()> {
    let end = file.stream_position()?;
    let start = end.checked_sub(len as u64);
    let is_last = is_regular(file) && file.metadata()?.len() == end;
    match start.filter(|_| is_last) {
        Some(start) => file.set_len(start),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Whether a regular file has a last line without its end. One that cannot be read has none.
fn ends_within_line(file: &File) -> bool {
    let mut last = [0];
    // Not by its path, where another program may have put a pipe meanwhile.
    let opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let read = opened.and_then(|mut file| {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)
    });
    read.is_ok() && last != *b"\n"
}

/// # Errors
/// With the number of bytes that were written.
fn write_whole(file: &mut impl Write, bytes: &[u8]) -> Result<(), (io::Error, usize)> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err((io::ErrorKind::WriteZero.into(), bytes.len() - rest.len())),
            Ok(len) => rest = rest.get(len..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((e, bytes.len() - rest.len())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> LineLog {
        LineLog::open(path, "--audit-log", ForbiddenFiles::default()).unwrap()
    }

    #[test]
    fn lines_are_appended_and_the_file_can_be_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let log = open(&path);
        log.push(b"one".to_vec());
        while log.counts().0 < 1 {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).unwrap();
        log.reopen(Vec::new());
        log.push(b"two".to_vec());
        drop(log);
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }

    /// A disk that is full in the middle of a line, here a limit on the length of files: readers of
    /// JSON lines find only whole ones.
    #[test]
    fn a_line_that_is_written_in_part_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = LogFile::open(&path, ForbiddenFiles::default()).unwrap();
        file.write(b"first\n").unwrap();
        let opened = file.file.as_mut().unwrap();
        opened.write_all(b"par").unwrap();
        remove_end(opened, 3).unwrap();
        file.write(b"second\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nsecond\n");
        // Another program has appended.
        let opened = file.file.as_mut().unwrap();
        opened.write_all(b"par").unwrap();
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
        assert!(remove_end(opened, 3).is_err());
    }

    /// The process before this one ended in the middle of a line.
    #[test]
    fn a_line_without_its_end_is_ended_before_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for (before, after) in [("", "new\n"), ("a\n", "a\nnew\n"), ("a\n{\"b", "a\n{\"b\nnew\n")] {
            std::fs::write(&path, before).unwrap();
            let log = open(&path);
            log.push(b"new".to_vec());
            drop(log);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }

    /// Before, lines were appended to the key of the server, and its next start failed.
    #[test]
    fn a_log_is_no_file_that_the_process_reads() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.pem");
        std::fs::write(&key, "a key").unwrap();
        let inputs = vec![InputFile { setting: "key_file".to_owned(), path: key.clone() }];
        let forbidden = ForbiddenFiles { inputs, own: None };
        let link = folder.path().join("audit.log");
        std::fs::hard_link(&key, &link).unwrap();
        for path in [&key, &link] {
            let opened = LineLog::open(path, "--audit-log", forbidden.clone());
            let error = opened.unwrap_err().to_string();
            let is_named = error.starts_with("--audit-log: ") && error.contains("of key_file;");
            assert!(is_named, "{error}");
        }
        let other = folder.path().join("other.log");
        drop(LineLog::open(&other, "--audit-log", forbidden).unwrap());
        assert_eq!(std::fs::read_to_string(&key).unwrap(), "a key");
    }

    /// Before, only the start compared the files: SIGHUP, and a line after a failed one, opened the
    /// file of another setting or of the database behind a link that had replaced the log.
    #[test]
    fn a_log_that_became_another_file_is_not_reopened() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["web.yml", "rules.yml", "manifest"] {
            std::fs::write(at(name), "text").unwrap();
        }
        let input = |name: &str| InputFile { setting: name.to_owned(), path: at(name) };
        let own: FindOwnFolder = Arc::new(|path: &Path| {
            is_same_file(path, &path.with_file_name("manifest")).then(String::new)
        });
        let forbidden = ForbiddenFiles { inputs: vec![input("web.yml")], own: Some(own) };
        let mut file = LogFile::open(&at("log"), forbidden).unwrap();
        file.write(b"line\n").unwrap();
        let now = || vec![input("web.yml"), input("rules.yml")];
        for name in ["web.yml", "rules.yml", "manifest"] {
            std::fs::remove_file(at("log")).unwrap();
            symlink(at(name), at("log")).unwrap();
            let mut sink = Sink::File(file);
            assert!(sink.reopen(now()).is_err(), "{name}");
            // The file that is open stays until it fails.
            sink.write(b"line\n").unwrap();
            let Sink::File(open) = sink else { panic!("a log in standard error") };
            file = LogFile { file: None, ..open };
            assert!(file.write(b"line\n").is_err(), "{name}");
            assert_eq!(std::fs::read_to_string(at(name)).unwrap(), "text");
            std::fs::remove_file(at("log")).unwrap();
            file.write(b"line\n").unwrap();
        }
    }

    #[test]
    fn a_failing_device_drops_lines_and_blocks_nobody() {
        let log = open(Path::new("/dev/full"));
        for _ in 0..3 * QUEUE_LEN_MAX {
            log.push(vec![b'x'; 100]);
        }
        let state = Arc::clone(&log.state);
        drop(log);
        assert_eq!((state.written.get(), state.dropped.get()), (0, 3 * QUEUE_LEN_MAX as u64));
        assert_eq!(state.queued_bytes.load(Ordering::Relaxed), 0);
        let nowhere = Path::new("/nowhere/x");
        assert!(LineLog::open(nowhere, "--audit-log", ForbiddenFiles::default()).is_err());
    }

    /// A pipe whose reader stops: neither a reopening nor the stop waits for it, and a line of
    /// which only a part was accepted ends before the next one.
    #[test]
    fn a_pipe_without_a_reader_blocks_nobody() {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        assert!(LineLog::open(&path, "--audit-log", ForbiddenFiles::default()).is_err());
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader =
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
        let mut file = LogFile::open(&path, ForbiddenFiles::default()).unwrap();
        let line = [&[b'x'; 40_000][..], b"\n"].concat();
        while file.write(&line).is_ok() {}
        assert!(file.is_torn);
        let mut received = Vec::new();
        let _ = reader.read_to_end(&mut received);
        file.write(b"last\n").unwrap();
        let _ = reader.read_to_end(&mut received);
        assert!(received.ends_with(b"x\nlast\n"));

        let log = open(&path);
        let state = Arc::clone(&log.state);
        drop(reader);
        log.reopen(Vec::new());
        log.push(b"lost".to_vec());
        drop(log);
        assert_eq!((state.written.get(), state.dropped.get()), (0, 1));
    }
}
