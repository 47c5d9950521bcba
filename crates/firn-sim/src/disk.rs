//! A disk that loses, tears and fails depending on its seed, or byte-addressable memory with stores
//! that wait in caches.

mod names;
mod sectors;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firn_env::{Disk, DiskFile, DiskPath, FileStamp, FolderLock, Memory, OpenMode, check_path};
use firn_model::{Error, Result};

use crate::faults::{Faults, Operation, Verdict};
use names::Names;
use sectors::{FileBytes, LINE_BYTES, SECTOR_BYTES, Survival};

/// The unit that such memory writes, as in [`firn_env::MemoryDisk`].
const MEMORY_UNIT_BYTES: u64 = 256;

/// A simulated disk. Clones share it.
///
/// Lock order: the disk, then a file's bytes, then [`Faults`].
#[derive(Clone)]
pub struct SimDisk {
    faults: Faults,
    is_memory: bool,
    state: Arc<Mutex<DiskState>>,
}

struct DiskState {
    names: Names,
    capacity_bytes: u64,
    used_bytes: u64,
    /// For memory: the ranges that were written back since the last fence.
    begun: Vec<(Arc<Mutex<FileBytes>>, Range<u64>)>,
    ignores_fences: bool,
    /// Number of restarts. Files and locks of an earlier life are dead.
    life: u64,
    is_locked: bool,
    /// The power is off and the surviving data is decided.
    is_lost: bool,
}

struct SimFile {
    disk: SimDisk,
    path: String,
    mode: OpenMode,
    life: u64,
    bytes: Arc<Mutex<FileBytes>>,
}

struct SimLock {
    disk: SimDisk,
    life: u64,
}

impl SimDisk {
    /// An empty disk without a size limit.
    pub fn new(faults: Faults) -> SimDisk {
        SimDisk::with(faults, false)
    }

    /// Byte-addressable memory: a write survives once its cache lines were written back and a fence
    /// followed. A fence returns nothing, so the caller must check that the power is still on
    /// ([`Faults::is_off`]) before it relies on a result.
    pub fn of_memory(faults: Faults) -> SimDisk {
        SimDisk::with(faults, true)
    }

    fn with(faults: Faults, is_memory: bool) -> SimDisk {
        let state = DiskState {
            names: Names::new(if is_memory { LINE_BYTES } else { SECTOR_BYTES }),
            capacity_bytes: u64::MAX,
            used_bytes: 0,
            begun: Vec::new(),
            ignores_fences: false,
            life: 0,
            is_locked: false,
            is_lost: false,
        };
        SimDisk { faults, is_memory, state: Arc::new(Mutex::new(state)) }
    }

    /// Limits the disk to this many bytes. A write or reservation that would grow a file beyond it
    /// fails with `Unavailable` and has no effect.
    pub fn set_capacity_bytes(&self, capacity_bytes: u64) {
        locked(&self.state).capacity_bytes = capacity_bytes;
    }

    /// Turns fences of memory into no-ops: a mutant that every simulation must detect.
    pub fn ignore_fences(&self) {
        locked(&self.state).ignores_fences = true;
    }

    /// Cuts the power and decides which data survives. Every operation fails with `Closed` until
    /// [`SimDisk::restart`].
    pub fn crash(&self) {
        let mut state = locked(&self.state);
        self.faults.cut_power();
        if state.is_lost {
            return;
        }
        let mut rng = self.faults.fork_rng();
        let survival = Survival::draw(&mut rng);
        state.names.crash(survival, &mut rng);
        state.begun.clear();
        state.used_bytes = state.names.used_bytes();
        state.is_lost = true;
        state.is_locked = false;
    }

    /// Restarts the machine with the surviving data (cuts the power first if it is on). Files
    /// opened before stay dead; planned crashes and failures are cleared.
    pub fn restart(&self) {
        self.crash();
        let mut state = locked(&self.state);
        state.life += 1;
        state.is_lost = false;
        self.faults.restore_power();
    }

    /// Paths of all files, sorted. Not an operation: works without power and is not counted.
    pub fn files(&self) -> Vec<String> {
        locked(&self.state).names.files()
    }

    /// A file's bytes as a reader sees them. Not an operation.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn bytes(&self, path: &DiskPath) -> Result<Vec<u8>> {
        let bytes = locked(&self.state).names.file(path)?;
        let bytes = locked(&bytes);
        let mut out = vec![0; bytes.len() as usize];
        bytes.read(0, &mut out);
        Ok(out)
    }

    /// Damages a file's stored bytes durably, as a foreign program does: its stamp changes. Not an
    /// operation.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn damage(&self, path: &DiskPath, damage: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.rot(path, damage)?;
        let bytes = locked(&self.state).names.file(path)?;
        locked(&bytes).note_change();
        Ok(())
    }

    /// As [`SimDisk::damage`], but as a medium that decays: the stamp stays.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn rot(&self, path: &DiskPath, rot: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut content = self.bytes(path)?;
        rot(&mut content);
        let mut state = locked(&self.state);
        let bytes = state.names.file(path)?;
        locked(&bytes).set_durable(&content);
        state.used_bytes = state.names.used_bytes();
        Ok(())
    }

    /// The part of the verdict that all operations share. `Ok(true)` if the power fails meanwhile.
    fn begin(&self, operation: Operation, path: &DiskPath) -> Result<bool> {
        match self.faults.decide(operation) {
            Verdict::Proceed => Ok(false),
            Verdict::Crash => Ok(true),
            Verdict::Fail => Err(failed(operation, path)),
            Verdict::Off => Err(power_lost(operation, path)),
        }
    }

    /// Applies one change of names, unless it is refused; the power may fail meanwhile.
    fn change_names(
        &self,
        operation: Operation,
        path: &DiskPath,
        change: impl FnOnce(&mut Names) -> Result<()>,
    ) -> Result<()> {
        check_path(path)?;
        let mut state = locked(&self.state);
        let is_crash = self.begin(operation, path)?;
        change(&mut state.names)?;
        state.used_bytes = state.names.used_bytes();
        if is_crash { Err(power_lost(operation, path)) } else { Ok(()) }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        let mut state = locked(&self.state);
        let bytes = match mode {
            OpenMode::Read | OpenMode::Write => {
                self.begin(Operation::Open, path)?;
                state.names.file(path)?
            }
            OpenMode::Create => {
                let is_crash = self.begin(Operation::Create, path)?;
                let bytes = state.names.create(path)?;
                if is_crash {
                    return Err(power_lost(Operation::Create, path));
                }
                bytes
            }
        };
        let (disk, life) = (self.clone(), state.life);
        Ok(Arc::new(SimFile { disk, path: path.to_owned(), mode, life, bytes }))
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        self.change_names(Operation::CreateDir, path, |names| names.create_dir(path))
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        check_path(path)?;
        self.begin(Operation::List, path)?;
        Ok(locked(&self.state).names.list(path))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        check_path(to)?;
        self.change_names(Operation::Rename, from, |names| names.rename(from, to))
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.change_names(Operation::Remove, path, |names| names.remove(path))
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        check_path(path)?;
        let mut state = locked(&self.state);
        // A crash during a sync: nothing is certain to be durable.
        if self.begin(Operation::SyncDir, path)? {
            return Err(power_lost(Operation::SyncDir, path));
        }
        state.names.sync_dir(path)
    }

    fn free_bytes(&self) -> Result<u64> {
        let state = locked(&self.state);
        Ok(state.capacity_bytes.saturating_sub(state.used_bytes))
    }

    fn unit_bytes(&self) -> u64 {
        if self.is_memory { MEMORY_UNIT_BYTES } else { 8 }
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        let mut state = locked(&self.state);
        if self.faults.is_off() {
            return Err(power_lost(Operation::Open, "lock"));
        }
        if state.is_locked {
            return Err(Error::busy(
                1_000,
                "lock: another simulated process has it, stop that first",
            ));
        }
        state.is_locked = true;
        Ok(Box::new(SimLock { disk: self.clone(), life: state.life }))
    }
}

impl SimFile {
    /// Refuses a file of an earlier life and a change through a reader.
    fn check(&self, state: &DiskState, operation: Operation) -> Result<()> {
        if self.life != state.life || state.is_lost {
            return Err(power_lost(operation, &self.path));
        }
        if operation.changes() && operation != Operation::Sync && self.mode == OpenMode::Read {
            return Err(Error::internal(format!("{}: opened for reads only", self.path)));
        }
        Ok(())
    }

    /// Checks that the file may grow to `len`.
    fn check_room(&self, state: &DiskState, file: &FileBytes, len: u64) -> Result<()> {
        let growth = len.saturating_sub(file.len());
        if growth > state.capacity_bytes.saturating_sub(state.used_bytes) {
            return Err(Error::unavailable(format!(
                "{}: no space left on the simulated disk of {} bytes ({growth} more wanted)",
                self.path, state.capacity_bytes
            )));
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let state = locked(&self.disk.state);
        self.check(&state, Operation::Read)?;
        self.disk.begin(Operation::Read, &self.path)?;
        let file = locked(&self.bytes);
        if file.read(offset, buf) {
            return Ok(());
        }
        let what = format!("file ends at {}, {} bytes wanted", file.len(), buf.len());
        Err(Error::corrupt(&*self.path, offset, what))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = locked(&self.disk.state);
        self.check(&state, Operation::Write)?;
        let verdict = self.disk.faults.decide(Operation::Write);
        if verdict == Verdict::Off {
            return Err(power_lost(Operation::Write, &self.path));
        }
        let mut file = locked(&self.bytes);
        let len = offset
            .checked_add(bytes.len() as u64)
            .ok_or_else(|| Error::invalid(format!("{}: write ends past 2^64", self.path)))?;
        self.check_room(&state, &file, len)?;
        let grows = len > file.len();
        match verdict {
            Verdict::Fail => file.write_torn(offset, bytes, &mut self.disk.faults.fork_rng()),
            _ => file.write(offset, bytes),
        }
        drop(file);
        if grows {
            state.used_bytes = state.names.used_bytes();
        }
        match verdict {
            Verdict::Fail => Err(failed(Operation::Write, &self.path)),
            Verdict::Crash => Err(power_lost(Operation::Write, &self.path)),
            _ => Ok(()),
        }
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let mut state = locked(&self.disk.state);
        self.check(&state, Operation::Preallocate)?;
        let is_crash = self.disk.begin(Operation::Preallocate, &self.path)?;
        let mut file = locked(&self.bytes);
        self.check_room(&state, &file, len)?;
        file.grow(len);
        drop(file);
        state.used_bytes = state.names.used_bytes();
        if is_crash { Err(power_lost(Operation::Preallocate, &self.path)) } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        let state = locked(&self.disk.state);
        self.check(&state, Operation::Sync)?;
        match self.disk.faults.decide(Operation::Sync) {
            Verdict::Proceed => {
                locked(&self.bytes).sync();
                Ok(())
            }
            Verdict::Fail => {
                locked(&self.bytes).sync_failed();
                Err(failed(Operation::Sync, &self.path))
            }
            Verdict::Crash | Verdict::Off => Err(power_lost(Operation::Sync, &self.path)),
        }
    }

    fn len(&self) -> Result<u64> {
        let state = locked(&self.disk.state);
        self.check(&state, Operation::Read)?;
        Ok(locked(&self.bytes).len())
    }

    fn stamp(&self) -> Result<Option<FileStamp>> {
        let state = locked(&self.disk.state);
        self.check(&state, Operation::Read)?;
        let file = locked(&self.bytes);
        Ok(Some(FileStamp::new(file.len(), [file.change_count().into(), 0])))
    }

    fn is_in_place(&self) -> bool {
        let state = locked(&self.disk.state);
        let is_found =
            || state.names.file(&self.path).is_ok_and(|found| Arc::ptr_eq(&found, &self.bytes));
        self.life != state.life || state.is_lost || is_found()
    }

    fn memory(&self) -> Option<&dyn Memory> {
        self.disk.is_memory.then_some(self)
    }
}

/// Neither method can fail: without power nothing more becomes durable.
impl Memory for SimFile {
    fn write_back(&self, offset: u64, len: u64) {
        let mut state = locked(&self.disk.state);
        let verdict = self.disk.faults.decide(Operation::WriteBack);
        if self.life == state.life && matches!(verdict, Verdict::Proceed | Verdict::Fail) {
            state.begun.push((Arc::clone(&self.bytes), offset..offset.saturating_add(len)));
        }
    }

    fn fence(&self) {
        let mut state = locked(&self.disk.state);
        let verdict = self.disk.faults.decide(Operation::Fence);
        let is_done = matches!(verdict, Verdict::Proceed | Verdict::Fail) && !state.ignores_fences;
        if self.life == state.life && is_done {
            for (bytes, range) in std::mem::take(&mut state.begun) {
                locked(&bytes).sync_range(range);
            }
        }
    }
}

impl FolderLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = locked(&self.disk.state);
        if state.life == self.life {
            state.is_locked = false;
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = locked(&self.state);
        write!(f, "SimDisk(life {}, {} bytes used)", state.life, state.used_bytes)
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({}, {:?})", self.path, self.mode)
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock(life {})", self.life)
    }
}

/// A poisoned lock means that a test panicked; the state is consistent between operations.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(operation: Operation, path: &DiskPath) -> Error {
    Error::unavailable(format!("{path}: simulated failure of {operation:?}"))
}

fn power_lost(operation: Operation, path: &DiskPath) -> Error {
    Error::closed(format!("{path}: simulated power loss, {operation:?} was not acknowledged"))
}
