//! The machine's disk: one folder of a Linux file system.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use firn_model::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::given_file::{name_of, nonblocking};
use crate::io_error::io_error;
use crate::syncers::Syncers;
use crate::{Disk, DiskFile, DiskPath, FileStamp, FolderLock, Mapped, OpenMode, check_path};

/// The file in the root folder that a process locks; it contains that process's id.
pub const LOCK_FILE: &str = "LOCK";

/// Modes of new files and folders: only the user of the process has access. The modes of existing
/// ones are not changed.
pub(crate) const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Flag of an open that creates a file which may exist: another user of a shared folder could have
/// planted a link to a file of this process's user.
pub(crate) fn no_links() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// Size of the writes of zeros: large enough that the system call costs little compared with the
/// copy, small enough for the second-level cache.
const ZEROS: &[u8] = &[0; 256 << 10];

/// Files below one folder.
#[derive(Debug)]
pub struct LocalDisk {
    root: PathBuf,
    syncers: Syncers,
    /// Whether [`Disk::lock`] excludes writers only, and writes nothing.
    has_shared_lock: bool,
}

#[derive(Debug)]
struct LocalFile {
    path: PathBuf,
    file: File,
}

/// The lock lives as long as the open file, so the system releases it when the process ends.
#[derive(Debug)]
struct LocalLock {
    /// `None` for a folder without a lock file, which no process has ever opened.
    file: Option<File>,
    path: PathBuf,
    /// The folder, whose lock remains if the file is removed. `None` on file systems without locks
    /// of folders.
    folder: Option<File>,
}

impl LocalDisk {
    /// Opens the folder `root`; creates it and its parents if missing.
    ///
    /// # Errors
    /// `Invalid` if it is a file, `Unavailable` if it cannot be created; both name the path.
    pub fn open(root: impl Into<PathBuf>) -> Result<LocalDisk> {
        let root = root.into();
        make_dirs(&root)?;
        Ok(LocalDisk { root, syncers: Syncers::default(), has_shared_lock: false })
    }

    /// Opens the existing folder `root` for a caller that changes nothing. [`Disk::lock`] excludes
    /// those that opened it otherwise, and no other reader.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, `Invalid` if it is a file.
    pub fn open_to_read(root: impl Into<PathBuf>) -> Result<LocalDisk> {
        let root = root.into();
        check_folder(&root)?;
        Ok(LocalDisk { root, syncers: Syncers::default(), has_shared_lock: true })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, path: &DiskPath) -> Result<PathBuf> {
        check_path(path)?;
        Ok(if path.is_empty() { self.root.clone() } else { self.root.join(path) })
    }
}

impl Disk for LocalDisk {
    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn sync_files(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        self.syncers.sync(files)
    }

    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let path = self.path(path)?;
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::Read);
        let verb = match mode {
            OpenMode::Read | OpenMode::Write => "open",
            OpenMode::Create => {
                options.create_new(true).mode(FILE_MODE);
                "create"
            }
        };
        let file = open_file(&mut options, verb, &path)?;
        Ok(Arc::new(LocalFile { path, file }))
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        let path = self.path(path)?;
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&path);
        made.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => {
                io_error("make folder", &path, io::ErrorKind::NotADirectory.into())
            }
            _ => io_error("make folder", &path, e),
        })
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        let path = self.path(path)?;
        let failed = |e| io_error("list", &path, e);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            // FirnDB creates no names that are not UTF-8.
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        fs::rename(&from, &to).map_err(|e| match e.kind() {
            io::ErrorKind::IsADirectory => io_error("replace", &to, e),
            _ => io_error("rename", &from, e).context(format!("to {}", to.display())),
        })
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        let path = self.path(path)?;
        fs::remove_file(&path).map_err(|e| io_error("remove", &path, e))
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        sync_dir(&self.path(path)?)
    }

    fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)
            .map_err(|e| io_error("read the free space of", &self.root, e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// An eighth of the limit on address space (`ulimit -v`), if there is one.
    fn mapped_bytes_max(&self) -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As);
        limit.current.map_or(u64::MAX, |bytes| bytes / 8)
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        match self.has_shared_lock {
            true => Ok(Box::new(LocalLock::share(&self.root)?)),
            false => Ok(Box::new(LocalLock::take(&self.root)?)),
        }
    }
}

impl DiskFile for LocalFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(buf, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let what = format!("the file ends before the {} requested bytes", buf.len());
                Err(Error::corrupt(self.path.display().to_string(), offset, what))
            }
            Err(error) => {
                Err(io_error("read", &self.path, error).context(format!("at byte {offset}")))
            }
        }
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> bool {
        let len = buf.len();
        let (mut bufs, flags) = ([io::IoSliceMut::new(buf)], rustix::io::ReadWriteFlags::NOWAIT);
        rustix::io::preadv2(&self.file, &mut bufs, offset, flags).is_ok_and(|read| read == len)
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            // This is only advice: a file system that ignores it returns an error without effect.
            let _ =
                rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::WillNeed);
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|error| {
            let what = format!("{} bytes at {offset}", bytes.len());
            io_error("write", &self.path, error).context(what)
        })
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let old_len = self.len()?;
        if len <= old_len {
            return Ok(());
        }
        self.write_zeros(old_len, len).map_err(|error| {
            // Releases the reserved room. If this fails too, the first error is more useful.
            let _ = self.file.set_len(old_len);
            let what = format!("{} bytes", len - old_len);
            io_error("reserve room in", &self.path, error).context(what)
        })
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| io_error("sync", &self.path, e))
    }

    fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|e| io_error("examine", &self.path, e))?;
        Ok(metadata.len())
    }

    /// One system call.
    fn stamp(&self) -> Result<Option<FileStamp>> {
        let metadata = self.file.metadata().map_err(|e| io_error("examine", &self.path, e))?;
        Ok(FileStamp::of(&metadata, SystemTime::now()))
    }

    /// Two system calls.
    fn is_in_place(&self) -> bool {
        leads_to(&self.path, &self.file)
    }

    fn map(&self) -> Result<Mapped> {
        if self.is_empty()? {
            // The system cannot map an empty range.
            return Ok(Mapped::from(Vec::new()));
        }
        Mapped::of_file(&self.file).map_err(|e| io_error("map", &self.path, e))
    }
}

impl LocalFile {
    /// Reserves first: that is fast, and a full disk is refused before anything is written. Then
    /// writes real zeros, because a reserved but unwritten block costs a metadata commit at the
    /// sync after its first write (measured: 1.8 to 3.5 times the time of a prewritten block).
    fn write_zeros(&self, start: u64, end: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
        // Checked first, because a file system may allocate all free room before it fails, and
        // other programs would see a full disk meanwhile.
        let stat = fstatvfs(&self.file)?;
        if end - start > stat.f_bavail.saturating_mul(stat.f_frsize) {
            return Err(Errno::NOSPC.into());
        }
        match fallocate(&self.file, FallocateFlags::empty(), start, end - start) {
            // Some file systems cannot reserve; the write below then detects a full disk.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        let mut at = start;
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..len as usize], at)?;
            at += len;
        }
        Ok(())
    }
}

impl LocalLock {
    fn take(root: &Path) -> Result<LocalLock> {
        let path = root.join(LOCK_FILE);
        // First, so that no other file takes the place of one that was removed.
        let folder = lock_folder(root, &path, File::try_lock)?;
        // Not truncated: the file names the holder until this process has the lock.
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let mut file = open_lock(options, &path)?;
        lock_file(&path, &mut file, File::try_lock)?;
        // The lock holds without the id, for which a full disk has no room.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(LocalLock { file: Some(file), path, folder })
    }

    /// Excludes [`LocalLock::take`] and leaves the file as it is.
    fn share(root: &Path) -> Result<LocalLock> {
        let path = root.join(LOCK_FILE);
        let folder = lock_folder(root, &path, File::try_lock_shared)?;
        match open_lock(OpenOptions::new().read(true), &path) {
            Err(e) if *e.kind() == ErrorKind::NotFound => {
                Ok(LocalLock { file: None, path, folder })
            }
            Err(error) => Err(error),
            Ok(mut file) => {
                lock_file(&path, &mut file, File::try_lock_shared)?;
                Ok(LocalLock { file: Some(file), path, folder })
            }
        }
    }
}

type TryLock = fn(&File) -> std::result::Result<(), TryLockError>;

fn lock_file(path: &Path, file: &mut File, lock: TryLock) -> Result<()> {
    match lock(file) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(held(path, file)),
        Err(TryLockError::Error(error)) => Err(io_error("lock", path, error)),
    }
}

/// Locks the folder `root` beside its file `path`, which another program may remove.
///
/// # Errors
/// `Busy` if another process has the lock.
fn lock_folder(root: &Path, path: &Path, lock: TryLock) -> Result<Option<File>> {
    let Ok(folder) = File::open(root) else { return Ok(None) };
    match lock(&folder) {
        Ok(()) => return Ok(Some(folder)),
        Err(TryLockError::Error(_)) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
    }
    if let Ok(mut file) = open_lock(OpenOptions::new().read(true), path)
        && matches!(lock(&file), Err(TryLockError::WouldBlock))
    {
        return Err(held(path, &mut file));
    }
    let (root, path) = (root.display(), path.display());
    let what = format!(
        "{root} is in use by another process, whose file {path} was removed or replaced: stop that \
         process, or use another folder"
    );
    Err(Error::busy(1_000, what))
}

impl FolderLock for LocalLock {
    fn is_in_place(&self) -> bool {
        self.file.as_ref().is_none_or(|file| leads_to(&self.path, file))
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that another thread starts at this time has a
        // copy of it until it executes its program.
        let _ = self.file.as_ref().map(File::unlock);
        let _ = self.folder.as_ref().map(File::unlock);
    }
}

/// Whether `path` is the path of `file`. A file system that fails does not show it.
fn leads_to(path: &Path, file: &File) -> bool {
    let Ok(opened) = file.metadata() else { return true };
    match fs::metadata(path) {
        Ok(found) => (found.dev(), found.ino()) == (opened.dev(), opened.ino()),
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        }
    }
}

/// Opens a file of a data folder without waiting: a pipe in its place would block the caller until
/// another program opens its other end.
///
/// # Errors
/// `Corrupt` for anything but a regular file; otherwise that of the system.
pub(crate) fn open_file(options: &mut OpenOptions, verb: &str, path: &Path) -> Result<File> {
    let file = open_now(options, nonblocking(), verb, path)?;
    let kind = file.metadata().map_err(|e| io_error(verb, path, e))?.file_type();
    // The length of a device is 0: it would be an empty file, and bytes that are written to it can
    // be lost.
    if kind.is_file() { Ok(file) } else { Err(no_file(name_of(kind), path)) }
}

/// As [`open_file`], for the file of a lock, which is a regular file and no link.
///
/// # Errors
/// `Invalid` for anything else; otherwise that of the system.
pub(crate) fn open_lock(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let opened = open_now(options, no_links() | nonblocking(), "lock", path).and_then(|file| {
        let kind = file.metadata().map_err(|e| io_error("lock", path, e))?.file_type();
        if kind.is_file() { Ok(file) } else { Err(no_file(name_of(kind), path)) }
    });
    // No bytes of it are damaged.
    opened.map_err(|e| match e.kind() {
        ErrorKind::Corrupt { .. } => Error::invalid(format!("{}: {}", path.display(), e.what())),
        _ => e,
    })
}

fn open_now(options: &mut OpenOptions, flags: i32, verb: &str, path: &Path) -> Result<File> {
    options.custom_flags(flags).open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::ISDIR) => no_file("a folder", path),
        Some(Errno::NXIO) => no_file("a pipe or a socket", path),
        _ => link_error(path, &error).unwrap_or_else(|| io_error(verb, path, error)),
    })
}

/// The error of a symbolic link in place of a file that cannot be followed, because it is in a loop
/// or leads nowhere. `None` if `path` is no link, and if a folder of it cannot be reached.
pub(crate) fn link_error(path: &Path, error: &io::Error) -> Option<Error> {
    let is_of_links = match Errno::from_io_error(error) {
        Some(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => path.is_symlink(),
        _ => false,
    };
    is_of_links.then(|| no_file("a symbolic link to no file", path))
}

/// The error of a folder, a pipe or another special file in place of a file.
pub(crate) fn no_file(what: &str, path: &Path) -> Error {
    let what = format!("it is {what}, expected a file; move it away");
    Error::corrupt(path.display().to_string(), 0, what)
}

/// # Errors
/// `NotFound` if there is nothing at `path`, `Invalid` if it is no folder.
pub(crate) fn check_folder(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(format!("{} is a file, expected a folder", path.display()))),
        Err(error) => Err(io_error("open the folder", path, error)),
    }
}

/// Creates a folder and its missing parents, and makes each name durable.
pub(crate) fn make_dirs(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dirs(parent)?;
    }
    if path.exists() && !path.is_dir() {
        return Err(Error::invalid(format!("{} is a file, expected a folder", path.display())));
    }
    if path.is_symlink() && !path.exists() {
        let what = "is a symbolic link to a folder that does not exist";
        return Err(Error::invalid(format!("{} {what}", path.display())));
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        // Another process may have created it first.
        Err(error) if !path.is_dir() => return Err(io_error("make folder", path, error)),
        _ => {}
    }
    sync_dir(parent.unwrap_or(Path::new(".")))
}

pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(nonblocking()).open(path);
    let synced = opened.and_then(|folder| folder.sync_all());
    synced.map_err(|e| io_error("sync folder", path, e))
}

fn held(path: &Path, file: &mut File) -> Error {
    let mut holder = String::new();
    // The id of the holder is optional in the message.
    let _ = Read::by_ref(file).take(64).read_to_string(&mut holder);
    let is_shared = file.try_lock_shared().is_ok();
    let holder = match holder.trim() {
        // The file names the last process that wrote.
        _ if is_shared => "a tool that reads it".to_owned(),
        "" => "another process".to_owned(),
        pid => format!("process {pid}"),
    };
    Error::busy(
        1_000,
        format!("{} is held by {holder}: stop it, or use another folder", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, LocalDisk) {
        let folder = tempfile::tempdir().unwrap();
        let disk = LocalDisk::open(folder.path().join("some/data")).unwrap();
        (folder, disk)
    }

    #[test]
    fn a_second_lock_names_the_process_that_has_the_first() {
        let (_folder, disk) = disk();
        let lock = disk.lock().unwrap();
        let error = disk.lock().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Busy { .. }));
        let pid = std::process::id();
        assert!(error.to_string().contains(&format!("LOCK is held by process {pid}")), "{error}");
        drop(lock);
        disk.lock().unwrap();
    }

    /// Before, a second process took the new file while the first one still wrote.
    #[test]
    fn a_folder_whose_lock_was_removed_stays_locked() {
        let (_folder, disk) = disk();
        let lock = disk.lock().unwrap();
        fs::remove_file(disk.root.join(LOCK_FILE)).unwrap();
        let reader = LocalDisk::open_to_read(&disk.root).unwrap();
        for error in [disk.lock().unwrap_err(), reader.lock().unwrap_err()] {
            assert!(error.to_string().contains("LOCK was removed or replaced"), "{error}");
        }
        assert!(!disk.root.join(LOCK_FILE).exists());
        drop(lock);
        let shared = (reader.lock().unwrap(), reader.lock().unwrap());
        disk.lock().unwrap_err();
        drop(shared);
        disk.lock().unwrap();
    }

    /// A process that another thread was starting kept the lock, so that the folder was busy.
    #[test]
    fn a_copy_of_the_file_does_not_keep_the_lock() {
        let (_folder, disk) = disk();
        let lock = LocalLock::take(&disk.root).unwrap();
        let copy = lock.file.as_ref().unwrap().try_clone().unwrap();
        drop(lock);
        disk.lock().unwrap();
        drop(copy);
    }

    /// Before, folders had mode 0755 and files 0644: every user of the machine could read the data.
    #[test]
    fn new_folders_and_files_are_for_their_owner_only() {
        use std::os::unix::fs::MetadataExt;
        let (folder, disk) = disk();
        disk.create_dir("a/b").unwrap();
        disk.open("a/b/file", OpenMode::Create).unwrap();
        let _lock = disk.lock().unwrap();
        let bucket = crate::FolderBucket::open(folder.path().join("slow")).unwrap();
        let bytes = Arc::from(*b"x");
        crate::Bucket::put(&bucket, "t/1", bytes, crate::PutMode::Create).unwrap();
        for (path, mode) in [
            ("some", 0o700),
            ("some/data", 0o700),
            ("some/data/a", 0o700),
            ("some/data/a/b", 0o700),
            ("some/data/a/b/file", 0o600),
            ("some/data/LOCK", 0o600),
            ("slow", 0o700),
            ("slow/.firn-bucket/lock", 0o600),
            ("slow/t", 0o700),
            ("slow/t/1", 0o600),
        ] {
            let found = fs::metadata(folder.path().join(path)).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{path}: {found:o}, expected {mode:o}");
        }
    }

    #[test]
    fn preallocated_room_is_written_not_only_reserved() {
        use std::os::unix::fs::MetadataExt;
        let (_folder, disk) = disk();
        let file = disk.open("a", OpenMode::Create).unwrap();
        file.write_at(0, b"head").unwrap();
        file.preallocate(1 << 20).unwrap();
        file.sync().unwrap();
        let mut bytes = vec![9; 1 << 20];
        file.read_at(0, &mut bytes).unwrap();
        assert!(bytes.starts_with(b"head") && bytes[4..].iter().all(|&byte| byte == 0));
        let path = disk.root().join("a");
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20);
        // File systems report the range as data, not as a hole or an unwritten extent.
        let hole = rustix::fs::seek(File::open(&path).unwrap(), rustix::fs::SeekFrom::Hole(0));
        assert_eq!(hole.unwrap(), 1 << 20);
    }

    /// Before, the process id replaced the contents of the other file.
    #[test]
    fn a_lock_that_is_a_link_is_refused_and_its_target_kept() {
        let (_folder, disk) = disk();
        let other = disk.root().join("other");
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, disk.root().join(LOCK_FILE)).unwrap();
        let error = disk.lock().unwrap_err().to_string();
        assert!(error.contains("LOCK") && error.contains("symbolic link"), "{error}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    }

    /// Before, each of these waited for ever.
    #[test]
    fn a_pipe_or_folder_in_place_of_a_file_is_damage() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let (folder, disk) = disk();
        let pipe = |path: &Path| mkfifoat(CWD, path, Mode::from_raw_mode(0o600)).unwrap();
        pipe(&disk.root().join("pipe"));
        fs::create_dir(disk.root().join("folder")).unwrap();
        std::os::unix::fs::symlink("/dev/null", disk.root().join("device")).unwrap();
        for mode in [OpenMode::Read, OpenMode::Write] {
            let error = disk.open("pipe", mode).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("some/data/pipe") && text.contains("a pipe"), "{text}");
            let error = disk.open("folder", mode).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("it is a folder"), "{error}");
            // Before, it was an empty file.
            let error = disk.open("device", mode).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("it is a device"), "{error}");
        }
        let error = disk.remove("folder").unwrap_err().to_string();
        assert!(error.contains("data/folder: it is a folder, expected a file"), "{error}");
        disk.open("file", OpenMode::Create).unwrap();
        let error = disk.rename("file", "folder").unwrap_err().to_string();
        assert!(error.contains("data/folder: it is a folder, expected a file"), "{error}");
        for error in [disk.create_dir("pipe").unwrap_err(), disk.list("pipe").unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("data/pipe: it") && text.contains("expected a folder"), "{text}");
        }
        let bucket = crate::FolderBucket::open(folder.path().join("slow")).unwrap();
        pipe(&bucket.root().join("object"));
        let request = crate::RangeRequest { key: "object".to_owned(), offset: 0, len: 0 };
        crate::Bucket::get_ranges(&bucket, &[request]).remove(0).unwrap_err();
        let error = crate::Bucket::head(&bucket, "object").unwrap_err().to_string();
        assert!(error.contains("slow/object at byte 0: it is a pipe"), "{error}");
        fs::create_dir(bucket.root().join("manifest")).unwrap();
        let put = |key| crate::Bucket::put(&bucket, key, Arc::from(*b"x"), crate::PutMode::Create);
        let error = put("manifest").unwrap_err().to_string();
        assert!(error.contains("slow/manifest is a folder, expected an object"), "{error}");
        fs::remove_file(bucket.root().join(".firn-bucket/lock")).unwrap();
        pipe(&bucket.root().join(".firn-bucket/lock"));
        let error = put("a").unwrap_err().to_string();
        assert!(error.contains(".firn-bucket/lock: it is a pipe"), "{error}");
    }

    /// Before, a reader waited for ever for the other end of the pipe, and a writer locked it.
    #[test]
    fn a_lock_that_is_no_file_is_refused() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let (_folder, disk) = disk();
        let reader = LocalDisk::open_to_read(disk.root()).unwrap();
        let path = disk.root().join(LOCK_FILE);
        let refused = |what: &str| {
            for error in [disk.lock().unwrap_err(), reader.lock().unwrap_err()] {
                let text = error.to_string();
                assert!(text.contains("data/LOCK") && text.contains(what), "{text}");
            }
        };
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        refused("it is a pipe, expected a file");
        fs::remove_file(&path).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        refused("it is a pipe or a socket, expected a file");
        drop(socket);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("it is a folder, expected a file");
        fs::remove_dir(&path).unwrap();
        drop(disk.lock().unwrap());
        reader.lock().unwrap();
    }

    #[test]
    fn a_file_or_lock_that_was_moved_or_replaced_is_not_in_place() {
        let (_folder, disk) = disk();
        let (path, moved) = (disk.root().join("a"), disk.root().join("b"));
        let file = disk.open("a", OpenMode::Create).unwrap();
        assert!(file.is_in_place());
        fs::rename(&path, &moved).unwrap();
        assert!(!file.is_in_place());
        fs::write(&path, "").unwrap();
        assert!(!file.is_in_place());
        fs::rename(&moved, &path).unwrap();
        assert!(file.is_in_place());
        let lock = disk.lock().unwrap();
        assert!(lock.is_in_place());
        let other = disk.root().with_extension("moved");
        fs::rename(disk.root(), other).unwrap();
        assert!(!lock.is_in_place() && !file.is_in_place());
        fs::write(disk.root(), "").unwrap();
        assert!(!lock.is_in_place() && !file.is_in_place());
    }

    #[test]
    fn errors_name_the_path_and_the_system_error() {
        let (_folder, disk) = disk();
        let error = disk.open("log/1.log", OpenMode::Read).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::NotFound);
        let text = error.to_string();
        assert!(text.contains("some/data/log/1.log") && text.contains("No such file"), "{text}");
        let error = disk.rename("x", "y").unwrap_err().to_string();
        assert!(error.contains("some/data/x") && error.contains("some/data/y"), "{error}");
        fs::write(disk.root().join("file"), b"").unwrap();
        let error = LocalDisk::open(disk.root().join("file/below")).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        assert!(error.to_string().ends_with("data/file is a file, expected a folder"), "{error}");
    }

    /// The device that is always full stands for a disk without a free byte.
    #[test]
    fn a_full_disk_is_reported_as_unavailable() {
        let path = PathBuf::from("some/data/full");
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        expect_full(LocalFile { path, file }.write_at(0, b"x"), "some/data/full");
    }

    #[test]
    fn room_beyond_the_free_space_is_refused_and_released() {
        let (_folder, disk) = disk();
        let file = disk.open("a", OpenMode::Create).unwrap();
        file.write_at(0, b"abc").unwrap();
        let wanted = disk.free_bytes().unwrap() + (1 << 30);
        expect_full(file.preallocate(wanted), "some/data/a");
        assert_eq!(file.len().unwrap(), 3);
    }

    /// Runs on a file system of 1 MiB in a mount namespace, where the kernel allows one: this test
    /// runs itself again inside it.
    #[test]
    fn a_small_file_system_fills_up_and_is_usable_again() {
        const SMALL_DISK: &str = "FIRN_TEST_SMALL_DISK";
        if let Some(folder) = std::env::var_os(SMALL_DISK) {
            return fill_and_empty(&LocalDisk::open(PathBuf::from(folder)).unwrap());
        }
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=1m none \"$1\" || exit 77; shift; exec \"$@\"";
        let test = "local::tests::a_small_file_system_fills_up_and_is_usable_again";
        let inner = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .arg(folder.path())
            .arg(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(SMALL_DISK, folder.path())
            .output();
        match inner {
            Ok(inner) if inner.status.success() => {}
            // Exit status 101: a test failed inside. Any other status: the namespace was not
            // available.
            Ok(inner) if inner.status.code() == Some(101) => {
                panic!("{}", String::from_utf8_lossy(&inner.stderr));
            }
            _ => eprintln!("skipped: this machine does not allow a private file system"),
        }
    }

    fn fill_and_empty(disk: &LocalDisk) {
        let log = disk.open("log", OpenMode::Create).unwrap();
        log.preallocate(400_000).unwrap();
        expect_full(log.preallocate(4_000_000), "log");
        assert_eq!(log.len().unwrap(), 400_000);
        let table = disk.open("table", OpenMode::Create).unwrap();
        let filled = (0..).find_map(|at| table.write_at(at * 10_000, &[1; 10_000]).err()).unwrap();
        expect_full(Err(filled), "table");
        assert!(disk.free_bytes().unwrap() < 10_000);
        // Reserved room can be written although no byte is free.
        log.write_at(0, &vec![2; 400_000]).unwrap();
        log.sync().unwrap();
        disk.remove("table").unwrap();
        drop(table);
        log.preallocate(800_000).unwrap();
    }

    fn expect_full(result: Result<()>, path: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains(path) && text.contains("the disk is full; free space"), "{text}");
    }
}
