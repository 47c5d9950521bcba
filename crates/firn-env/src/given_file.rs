//! Files that settings and variables of the environment name. Opening or reading one never waits: a
//! pipe that no program serves would otherwise block a start, a reload or a stop. The same is true
//! of the files that tools write.

use std::ffi::OsStr;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use firn_model::{Error, Result};
use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Longest file; lists of authorities have some hundred kilobytes, a user some hundred bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Longest file of certificates or of a key that is read again while the server runs. The list of
/// all authorities of a system has 220 KB.
pub const PEM_BYTES_MAX: u64 = 1 << 20;
/// Longest file of a password or a token, which is a part of a header.
pub const CREDENTIAL_BYTES_MAX: u64 = 64 << 10;
/// Longest chain of links to a log: `/dev/stdout` is one of two.
const LINKS_MAX: usize = 8;

/// Reads a file that is read once, at the start: a regular file, or a pipe that the process has
/// already open, as the shell passes `<(command)`. `setting` names it in messages.
///
/// # Errors
/// `Invalid`, naming setting and file.
pub fn read_once(path: &Path, setting: &str) -> Result<Vec<u8>> {
    match is_own_descriptor(path) {
        true => File::open(path).and_then(bounded),
        false => open_regular(path).and_then(bounded),
    }
    .map_err(|e| cannot_read(path, setting, e))
}

/// As [`read_once`], as text.
///
/// # Errors
/// As [`read_once`]; `Invalid` for a file that is not UTF-8.
pub fn read_text_once(path: &Path, setting: &str) -> Result<String> {
    read_once(path, setting).and_then(|bytes| text_of(bytes, path, setting))
}

/// Reads a regular file, which may be read again at any time.
///
/// # Errors
/// As [`read_text_once`].
pub fn read_text(path: &Path, setting: &str) -> Result<String> {
    read_text_of(path, setting, FILE_BYTES_MAX)
}

/// As [`read_text`], for a file of at most `bytes_max`.
///
/// # Errors
/// As [`read_text`].
pub fn read_text_of(path: &Path, setting: &str, bytes_max: u64) -> Result<String> {
    let bytes = open_regular(path).and_then(|file| bounded_by(file, bytes_max));
    bytes.map_err(|e| cannot_read(path, setting, e)).and_then(|bytes| text_of(bytes, path, setting))
}

/// As [`read_text_of`]. Calls `reserve` with the length of the file before it is read.
///
/// # Errors
/// As [`read_text`], and those of `reserve`.
pub fn read_text_within(
    path: &Path,
    setting: &str,
    bytes_max: u64,
    reserve: impl FnOnce(u64) -> Result<()>,
) -> Result<String> {
    let opened = open_regular(path).and_then(|file| {
        let bytes = file.metadata()?.len();
        if bytes > bytes_max { Err(too_long(bytes_max)) } else { Ok((file, bytes)) }
    });
    let (file, bytes) = opened.map_err(|e| cannot_read(path, setting, e))?;
    reserve(bytes)?;
    let buf = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0).saturating_add(1));
    let read = bounded_into(buf, file, bytes_max).map_err(|e| cannot_read(path, setting, e));
    read.and_then(|bytes| text_of(bytes, path, setting))
}

/// Reads a regular file of UTF-8 of at most `bytes_max`.
///
/// # Errors
/// Those of opening and reading; `InvalidInput` for a file of another kind or a longer one,
/// `InvalidData` for one that is not UTF-8.
pub fn read_document(path: &Path, bytes_max: u64) -> io::Result<String> {
    let file = open_regular(path)?;
    let expected = file.metadata()?.len();
    if expected > bytes_max {
        return Err(too_long(bytes_max));
    }
    // Exact, because a list that grows has up to twice its length.
    let bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0).saturating_add(1));
    text_of_document(bounded_into(bytes, file, bytes_max)?)
}

/// As [`read_document`], for a file that is read once: it may also be a pipe that the process has
/// open, as the shell passes `<(command)`.
///
/// # Errors
/// As [`read_document`].
pub fn read_document_once(path: &Path, bytes_max: u64) -> io::Result<String> {
    match is_own_descriptor(path) {
        true => read_stream(File::open(path)?, bytes_max),
        false => read_document(path, bytes_max),
    }
}

/// Reads UTF-8 of at most `bytes_max`, such as standard input.
///
/// # Errors
/// As [`read_document`].
pub fn read_stream(stream: impl Read, bytes_max: u64) -> io::Result<String> {
    bounded_by(stream, bytes_max).and_then(text_of_document)
}

fn text_of_document(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
}

/// Checks the file of the variable `SSL_CERT_FILE`, which libraries open without a check.
///
/// # Errors
/// As [`check`].
pub fn check_authorities() -> Result<()> {
    const VARIABLE: &str = "SSL_CERT_FILE";
    std::env::var_os(VARIABLE).map_or(Ok(()), |path| check(Path::new(&path), VARIABLE))
}

/// Checks a file that a library opens without a check: a regular file of bounded length. Accepts a
/// missing file, which the library reports.
///
/// # Errors
/// `Invalid`, naming setting and file.
pub fn check(path: &Path, setting: &str) -> Result<()> {
    let checked = open_regular(path).and_then(|file| match file.metadata()?.len() {
        bytes if bytes > FILE_BYTES_MAX => Err(too_long(FILE_BYTES_MAX)),
        _ => Ok(()),
    });
    match checked {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(cannot_read(path, setting, e)),
        _ => Ok(()),
    }
}

/// Opens a log to append to it, and creates it if it is missing: a file, a character device, or a
/// pipe that is read. A write that would wait fails.
///
/// A link as the last part of the path is followed only if it belongs to root or to the user of
/// this process. Other users with access to the folder cannot choose the file that grows.
///
/// # Errors
/// Those of opening, and `InvalidInput` for another kind or a link of another user.
pub fn open_log(path: &Path) -> io::Result<File> {
    open_log_trusting(path, |owner| owner == 0 || owner == geteuid().as_raw())
}

fn open_log_trusting(path: &Path, is_trusted: impl Fn(u32) -> bool) -> io::Result<File> {
    let mut path = path.to_owned();
    let mut opened = open_log_by(&path, OFlags::NOFOLLOW);
    for _ in 0..LINKS_MAX {
        let is_link = opened.as_ref().is_err_and(|e| Errno::from_io_error(e) == Some(Errno::LOOP));
        if !is_link {
            break;
        }
        let (owner, target) = read_link(&path)?;
        if !is_trusted(owner) {
            return Err(refused(&format!(
                "{} is a link of the user {owner}; expected a file, or a link of root or of the \
                 server's user",
                path.display()
            )));
        }
        // A descriptor of this process is a link that only the system can follow.
        if is_in_own_descriptors(&path) {
            opened = open_log_by(&path, OFlags::empty());
            break;
        }
        path.pop();
        path.push(target);
        opened = open_log_by(&path, OFlags::NOFOLLOW);
    }
    let file = opened.map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::NXIO) => refused("it is a pipe that no program reads, or a socket"),
        _ => e,
    })?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_char_device() || kind.is_fifo() {
        true => Ok(file),
        false => Err(refused(&format!(
            "it is {}; expected a file, a character device or a pipe",
            name_of(kind)
        ))),
    }
}

fn open_log_by(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(nonblocking() | flags.bits().cast_signed())
        .open(path)
}

/// Owner and target of a link, both of the same link if another program replaces it meanwhile.
fn read_link(path: &Path) -> io::Result<(u32, PathBuf)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let link = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let target = readlinkat(&link, "", Vec::new())?;
    Ok((link.metadata()?.uid(), PathBuf::from(OsStr::from_bytes(target.to_bytes()))))
}

/// A file that a tool writes at a path of its user. [`OutputFile::replace`] removes its contents.
#[derive(Debug)]
pub struct OutputFile(File);

impl OutputFile {
    /// Opens or creates it: a regular file, a device such as `/dev/null`, or a descriptor that the
    /// process has already open, such as `/dev/stdout`.
    ///
    /// # Errors
    /// Those of opening; `InvalidInput` for a file of another kind.
    pub fn open(path: &Path) -> io::Result<OutputFile> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        if is_own_descriptor(path) {
            return options.open(path).map(OutputFile);
        }
        let wrong = |what: &str| refused(&format!("it is {what}; expected a regular file"));
        let opened = options.custom_flags(nonblocking()).open(path);
        let file = opened.map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NXIO) => wrong("a pipe or a socket"),
            Some(Errno::ISDIR) => wrong("a folder"),
            _ => e,
        })?;
        let kind = file.metadata()?.file_type();
        match kind.is_file() || kind.is_char_device() {
            true => Ok(OutputFile(file)),
            false => Err(wrong(name_of(kind))),
        }
    }

    /// The file without its former contents.
    ///
    /// # Errors
    /// That of the system.
    pub fn replace(self) -> io::Result<File> {
        if self.0.metadata()?.is_file() {
            self.0.set_len(0)?;
        }
        Ok(self.0)
    }
}

fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(nonblocking()).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(refused(&format!("it is {}; expected a regular file", name_of(kind)))),
    }
}

/// Flag of an open that does not wait for the other end of a pipe.
pub(crate) fn nonblocking() -> i32 {
    OFlags::NONBLOCK.bits().cast_signed()
}

fn too_long(bytes_max: u64) -> io::Error {
    refused(&format!("it is longer than {bytes_max} bytes"))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The kind of a file that is not a regular one, for messages.
pub(crate) fn name_of(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "no file",
    }
}

fn bounded(file: File) -> io::Result<Vec<u8>> {
    bounded_by(file, FILE_BYTES_MAX)
}

fn bounded_by(file: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    bounded_into(Vec::new(), file, bytes_max)
}

/// Reads into `bytes`, which is empty.
fn bounded_into(mut bytes: Vec<u8>, file: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(too_long(bytes_max)),
        false => Ok(bytes),
    }
}

fn text_of(bytes: Vec<u8>, path: &Path, setting: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| cannot_read(path, setting, refused("it is not UTF-8")))
}

fn cannot_read(path: &Path, setting: &str, why: io::Error) -> Error {
    Error::invalid(format!("cannot read {setting} {}", path.display())).because(why)
}

/// Whether `path` is a descriptor of this process: `/dev/stdin`, `/dev/fd/3`.
fn is_own_descriptor(path: &Path) -> bool {
    is_in_own_descriptors(path) || is_in_own_descriptors(&fs::read_link(path).unwrap_or_default())
}

fn is_in_own_descriptors(path: &Path) -> bool {
    let Ok(own) = fs::canonicalize("/proc/self/fd") else { return false };
    path.parent().is_some_and(|folder| fs::canonicalize(folder).is_ok_and(|at| at == own))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Without the check each of these waits for ever.
    #[test]
    fn pipes_without_another_end_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
        mkfifoat(CWD, &pipe, Mode::from_raw_mode(0o600)).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let reading = read_text(&pipe, "--web-config").unwrap_err().to_string();
        assert!(reading.contains("--web-config") && reading.contains("it is a pipe"), "{reading}");
        assert!(read_once(&pipe, "--token-file").is_err());
        assert!(read_once(&socket, "--token-file").is_err());
        assert!(read_once(folder.path(), "--config").is_err());
        assert!(read_once(Path::new("/dev/zero"), "--config").is_err());
        for refused in [&pipe, &socket, folder.path()] {
            assert!(open_log(refused).is_err(), "{}", refused.display());
        }
        for refused in [&pipe, &socket, folder.path(), Path::new("/dev/zero")] {
            assert!(check(refused, "SSL_CERT_FILE").is_err(), "{}", refused.display());
        }
        assert!(open_log(&pipe).unwrap_err().to_string().contains("no program reads"));
        let _reader = OpenOptions::new().read(true).custom_flags(nonblocking()).open(&pipe);
        open_log(&pipe).unwrap();
        open_log(Path::new("/dev/null")).unwrap();
    }

    /// Before, a user with access to the folder of a log made the server append to any of its
    /// files: by a link in place of the log, at the next reopening.
    #[test]
    fn links_of_other_users_are_no_logs() {
        use std::io::Write;
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("key"), "key").unwrap();
        symlink("key", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        symlink("new", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        symlink("/proc/self/fd/0", at("descriptor")).unwrap();
        for name in ["one", "two", "dangling", "round", "descriptor"] {
            let error = open_log_trusting(&at(name), |_| false).unwrap_err().to_string();
            assert!(error.contains("is a link of the user"), "{error}");
        }
        assert_eq!(fs::read_to_string(at("key")).unwrap(), "key");
        assert!(!at("new").exists());
        let own = |owner: u32| owner == geteuid().as_raw();
        for name in ["one", "two", "dangling"] {
            open_log_trusting(&at(name), own).unwrap().write_all(b"+").unwrap();
        }
        assert_eq!(fs::read_to_string(at("key")).unwrap(), "key++");
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "+");
        assert!(open_log_trusting(&at("round"), own).is_err());
        let (mut reader, writer) = io::pipe().unwrap();
        let descriptor = Path::new("/dev/fd").join(writer.as_raw_fd().to_string());
        symlink(&descriptor, at("pipe")).unwrap();
        for path in [&descriptor, &at("pipe")] {
            open_log(path).unwrap().write_all(b"-").unwrap();
        }
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "--");
    }

    /// Before, a tool waited for ever for a program that reads the pipe.
    #[test]
    fn outputs_are_files_and_keep_their_contents_until_they_are_replaced() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifoat(CWD, at("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for name in ["pipe", "socket", "folder"] {
            let error = OutputFile::open(&at(name)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("expected a regular file"), "{error}");
        }
        let reads = OpenOptions::new().read(true).custom_flags(nonblocking()).open(at("pipe"));
        assert!(OutputFile::open(&at("pipe")).is_err(), "a read pipe");
        drop(reads);
        OutputFile::open(Path::new("/dev/null")).unwrap().replace().unwrap();
        fs::write(at("file"), "former").unwrap();
        let output = OutputFile::open(&at("file")).unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "former");
        output.replace().unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "new");
        let (mut reader, writer) = io::pipe().unwrap();
        let own = Path::new("/dev/fd").join(writer.as_raw_fd().to_string());
        OutputFile::open(&own).unwrap().replace().unwrap().write_all(b"piped").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "piped");
    }

    #[test]
    fn a_pipe_that_is_open_already_is_read_once() {
        use std::io::Write;
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"token\n").unwrap();
        drop(writer);
        for folder in ["/dev/fd", "/proc/self/fd"] {
            let path = Path::new(folder).join(reader.as_raw_fd().to_string());
            assert!(is_own_descriptor(&path), "{}", path.display());
            assert!(read_text(&path, "--web-config").is_err());
        }
        let path = Path::new("/dev/fd").join(reader.as_raw_fd().to_string());
        assert_eq!(read_text_once(&path, "--token-file").unwrap(), "token\n");
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"groups: []").unwrap();
        drop(writer);
        let path = Path::new("/dev/fd").join(reader.as_raw_fd().to_string());
        assert_eq!(read_document_once(&path, 10).unwrap(), "groups: []");
        assert!(!is_own_descriptor(Path::new("/etc/passwd")));
    }

    #[test]
    fn files_are_bounded_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path, "--config").unwrap(), "text");
        fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path, "--config").unwrap_err().to_string().contains("UTF-8"));
        File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(read_once(&path, "--config").unwrap_err().to_string().contains("longer"));
        assert!(check(&path, "--config").unwrap_err().to_string().contains("longer"));
        assert!(read_document_once(&path, 9).unwrap_err().to_string().contains("longer"));
        assert!(read_document_once(Path::new("/dev/zero"), 9).is_err());
        assert!(read_stream(io::repeat(b' '), 9).unwrap_err().to_string().contains("longer"));
        assert_eq!(read_stream(&b"nine text"[..], 9).unwrap(), "nine text");
        let none = folder.path().join("none");
        assert!(read_once(&none, "--config").is_err());
        check(&none, "--config").unwrap();
    }
}
