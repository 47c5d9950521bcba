//! The manifest: an atomic log of edits. It names every table and index file of the database; those
//! that it does not name are garbage.
//!
//! Each [`Edit`] has an opaque part per room, so that one record changes all rooms at once. The
//! file is stored twice, byte for byte. A record is valid if either copy is, so that one flipped
//! bit or one lost file costs nothing. A file starts with the whole state (itself an edit) and is
//! replaced when it is full, at every open, and after a failed write. Bytes:
//! `docs/formats/manifest.md`.

use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, Result};

use crate::edit::{Edit, Room};
use crate::manifest_format::{
    HEADER_BYTES, ManifestCopy, RECORD_HEADER_BYTES, VERSION, decode_copies, header, record,
};

/// The folder of the manifest.
pub(crate) const FOLDER: &str = "manifest";
/// Marks the index files as copies of those on the slow tier. It is in the folder of the manifest,
/// so that both get lost together; the next manifest file replaces it.
pub(crate) const COPIES_MARK: &str = "manifest/index-is-a-copy";
// Preallocated, so that an append changes no file metadata. A flush writes about 200 bytes.
const FILE_BYTES: u64 = 256 << 10;
const COPIES: [&str; 2] = ["a", "b"];

/// 5 million tables, and as much room for edits.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;
/// The zeros that may belong to the last edit.
const ZEROS_KEPT: usize = 4 << 20;

/// The open manifest.
pub(crate) struct Manifest {
    disk: Arc<dyn Disk>,
    /// Number of the newest complete file, 0 before the first.
    file_no: u64,
    /// `None` after a failed write: the next commit starts a new file with the whole state.
    current: Option<OpenFile>,
}

struct OpenFile {
    copies: Vec<Arc<dyn DiskFile>>,
    /// Preallocated length.
    bytes: u64,
    end: u64,
    next_edit_no: u64,
}

/// The contents that [`Manifest::open`] reads.
#[derive(Default)]
pub(crate) struct ManifestContents {
    /// The edits in order; the first is a whole state. Empty in a new folder.
    pub(crate) edits: Vec<Edit>,
    /// One sentence for each location that was read from the other copy.
    pub(crate) repaired: Vec<String>,
}

impl ManifestContents {
    /// The parts of `room`, in order.
    pub(crate) fn parts(&self, room: Room) -> Vec<&[u8]> {
        self.edits.iter().flat_map(|edit| edit.parts(room)).collect()
    }
}

impl ManifestContents {
    /// Finds files that were cut. They had their full length before they got their name, so no
    /// power failure shortens them; and the end of a cut one looks like that of a torn write.
    ///
    /// # Errors
    /// `Corrupt` if no file has its length: edits may be missing.
    fn check_lengths(&mut self, copies: &[ManifestCopy]) -> Result<()> {
        let Some(state) = self.edits.first() else { return Ok(()) };
        let bytes_min = file_bytes(needed_bytes(&state.encode()));
        let what = |copy: &ManifestCopy| {
            format!("the file was cut to {} bytes, from at least {bytes_min}", copy.file_bytes)
        };
        let is_cut = |copy: &ManifestCopy| copy.file_bytes < bytes_min;
        let is_whole = |copy: &ManifestCopy| copy.has_header() && !is_cut(copy);
        for copy in copies.iter().filter(|copy| is_cut(copy)) {
            if copies.iter().any(is_whole) {
                self.repaired.push(format!("{}: {}", copy.path, what(copy)));
                continue;
            }
            let advice = "no copy is whole, so edits may be lost: restore a backup";
            let what = format!("{}; {advice}", what(copy));
            return Err(Error::corrupt(copy.path.as_str(), copy.file_bytes, what));
        }
        Ok(())
    }
}

/// Bytes of a file with one edit, the state, and the header of another.
fn needed_bytes(encoded_state: &[u8]) -> u64 {
    (HEADER_BYTES + 2 * RECORD_HEADER_BYTES + encoded_state.len()) as u64
}

/// Length of a file that begins with `needed` bytes. It has as much room for edits as for its
/// state, so that a large state is rarely written.
fn file_bytes(needed: u64) -> u64 {
    FILE_BYTES.max(2 * needed)
}

impl Manifest {
    /// Reads the newest complete manifest; writes nothing.
    ///
    /// # Errors
    /// `Corrupt` if a record is damaged in both copies and others follow it, or if both copies are
    /// shorter than they were written; `Invalid` for a file of a newer version.
    pub(crate) fn open(disk: Arc<dyn Disk>) -> Result<(Manifest, ManifestContents)> {
        // A file gets its name only when it is complete, and older ones are removed afterwards.
        let Some(&file_no) = file_nos(&*disk)?.last() else {
            let manifest = Manifest { disk, file_no: 0, current: None };
            return Ok((manifest, ManifestContents::default()));
        };
        let (copies, unreadable) = read_copies(&*disk, file_no);
        let mut found = ManifestContents::default();
        found.edits = decode_copies(file_no, &copies, &mut found.repaired)?;
        found.check_lengths(&copies)?;
        found.repaired.extend(unreadable.iter().map(Error::to_string));
        if found.edits.is_empty() {
            let what = "no copy of the manifest is readable; restore a backup";
            let error = unreadable.into_iter().next().map(|error| error.context(what));
            return Err(error.unwrap_or_else(|| Error::corrupt(path(file_no, "a"), 0, what)));
        }
        Ok((Manifest { disk, file_no, current: None }, found))
    }

    /// Makes `edit` durable, all of it or nothing. `state` returns the whole state *before* `edit`;
    /// it is called only when a new file begins.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full. The edit then counts as not made: nothing that
    /// depends on it may be done, and nothing that it names may be removed before the next
    /// successful commit.
    pub(crate) fn commit(&mut self, edit: &Edit, state: impl FnOnce() -> Edit) -> Result<()> {
        let encoded = edit.encode();
        let fits = |current: &OpenFile| {
            current.end + RECORD_HEADER_BYTES as u64 + encoded.len() as u64 <= current.bytes
        };
        if !self.current.as_ref().is_some_and(fits) {
            self.begin_file(&state(), encoded.len() as u64)?;
        }
        let Some(mut current) = self.current.take() else {
            return Err(Error::internal("manifest: no current file"));
        };
        current.append(&encoded)?;
        self.current = Some(current);
        Ok(())
    }

    /// Whether the current file is still there and the newest one. If another program has removed
    /// or replaced it, no start would find the next edits.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
        // Also after a failed write, which may have been the replacement of a lost file.
        let is_newest = file_nos(&*self.disk)?.last().copied().unwrap_or(0) == self.file_no;
        let mut copies = self.current.iter().flat_map(|current| &current.copies);
        Ok(is_newest && copies.all(|copy| copy.is_in_place()))
    }

    /// Writes `state` to a file that a start prefers to all others in the folder.
    ///
    /// # Errors
    /// As [`Manifest::commit`].
    pub(crate) fn replace_lost(&mut self, state: &Edit) -> Result<()> {
        let newest = file_nos(&*self.disk)?.last().copied().unwrap_or_default();
        self.file_no = self.file_no.max(newest);
        self.disk.create_dir(FOLDER)?;
        self.disk.sync_dir("")?;
        self.begin_file(state, 0)
    }

    /// Starts the next file with the whole state, then removes the older ones.
    fn begin_file(&mut self, state: &Edit, room_bytes: u64) -> Result<()> {
        self.current = None;
        // The last number comes from a file name.
        let file_no = self.file_no.checked_add(1).ok_or_else(|| {
            Error::corrupt(path(self.file_no, COPIES[0]), 0, "no manifest number follows this one")
        })?;
        let encoded = state.encode();
        let bytes = file_bytes(needed_bytes(&encoded) + room_bytes);
        // Pairs with the check at the next open.
        if bytes > FILE_BYTES_MAX {
            return Err(Error::unavailable(format!(
                "the manifest needs {bytes} bytes, at most {FILE_BYTES_MAX} are possible"
            )));
        }
        if self.file_no == 0 {
            self.disk.create_dir(FOLDER)?;
            self.disk.sync_dir("")?;
        }
        let mut copies = Vec::new();
        for copy in COPIES {
            let unfinished = unfinished_path(file_no, copy);
            match self.disk.remove(&unfinished) {
                Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let file = self.disk.open(&unfinished, OpenMode::Create)?;
            file.preallocate(bytes)?;
            file.write_at(0, &header(file_no, VERSION))?;
            copies.push(file);
        }
        let mut current = OpenFile { copies, bytes, end: HEADER_BYTES as u64, next_edit_no: 1 };
        current.append(&encoded)?;
        // From the first rename on, this number is used, even if a later step fails.
        self.file_no = file_no;
        for copy in COPIES {
            self.disk.rename(&unfinished_path(file_no, copy), &path(file_no, copy))?;
        }
        self.disk.sync_dir(FOLDER)?;
        for (file, copy) in current.copies.iter_mut().zip(COPIES) {
            *file = self.disk.open(&path(file_no, copy), OpenMode::Write)?;
        }
        self.current = Some(current);
        self.remove_older()
    }

    fn remove_older(&self) -> Result<()> {
        for name in self.disk.list(FOLDER)? {
            if format!("{FOLDER}/{name}") == COPIES_MARK {
                self.remove_outdated(COPIES_MARK);
            }
            let number = name.split('.').next().and_then(|number| number.parse::<u64>().ok());
            let Some(number) = number.filter(|number| *number < self.file_no) else { continue };
            // Others, such as `00000001.a.bak`, are no files of this program.
            let named = format!("{FOLDER}/{name}");
            let is_ours =
                |copy| named == path(number, copy) || named == unfinished_path(number, copy);
            if COPIES.into_iter().any(is_ours) {
                self.remove_outdated(&named);
            }
        }
        Ok(())
    }

    /// Removes a file that no reader needs. The next manifest file tries it again, in vain if it is
    /// a folder.
    fn remove_outdated(&self, path: &str) {
        if let Err(error) = self.disk.remove(path) {
            tracing::warn!("an outdated file of the manifest stays: {error}");
        }
    }
}

impl OpenFile {
    fn append(&mut self, encoded: &[u8]) -> Result<()> {
        let record = record(self.next_edit_no, encoded)?;
        for copy in &self.copies {
            copy.write_at(self.end, &record)?;
            copy.sync()?;
        }
        self.end += record.len() as u64;
        self.next_edit_no += 1;
        Ok(())
    }
}

/// The numbers of the complete files in the folder, in order.
fn file_nos(disk: &dyn Disk) -> Result<Vec<u64>> {
    let names = disk.list(FOLDER)?;
    let copies = names.iter().filter_map(|name| name.split_once('.'));
    let ours = copies.filter(|(_, copy)| COPIES.contains(copy));
    let mut file_nos: Vec<u64> = ours.filter_map(|(number, _)| number.parse().ok()).collect();
    file_nos.sort_unstable();
    file_nos.dedup();
    Ok(file_nos)
}

fn path(file_no: u64, copy: &str) -> String {
    format!("{FOLDER}/{file_no:08}.{copy}")
}

/// The name of an incomplete file. The next open ignores it, the next file replaces it.
fn unfinished_path(file_no: u64, copy: &str) -> String {
    format!("{FOLDER}/{file_no:08}.{copy}.new")
}

/// The readable copies, and the errors of the others. Either copy contains all acknowledged edits.
fn read_copies(disk: &dyn Disk, file_no: u64) -> (Vec<ManifestCopy>, Vec<Error>) {
    let (mut copies, mut unreadable) = (Vec::new(), Vec::new());
    for copy in COPIES {
        let path = path(file_no, copy);
        let file = disk.open(&path, OpenMode::Read);
        match file.and_then(|file| Ok((read_whole(&*file, &path)?, file.len()?))) {
            Ok((bytes, file_bytes)) => copies.push(ManifestCopy { path, bytes, file_bytes }),
            // After a crash between the two renames there is one copy; the next file has both
            // again.
            Err(e) if *e.kind() == ErrorKind::NotFound => {}
            Err(e) => unreadable.push(e),
        }
    }
    (copies, unreadable)
}

/// The bytes of a file, without most of the zeros at its end: a foreign or damaged file can be as
/// sparse as it is long.
fn read_whole(file: &dyn DiskFile, path: &str) -> Result<Vec<u8>> {
    let file_bytes = file.len()?;
    if file_bytes > FILE_BYTES_MAX {
        let what =
            format!("a manifest of {file_bytes} bytes, at most {FILE_BYTES_MAX} are possible");
        return Err(Error::corrupt(path, FILE_BYTES_MAX, what));
    }
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; STEP_BYTES]);
    let mut at = 0;
    while at < file_bytes {
        let len = (file_bytes - at).min(STEP_BYTES as u64);
        let chunk = chunk.get_mut(..len as usize).unwrap_or_default();
        file.read_at(at, chunk)?;
        if chunk.iter().any(|&byte| byte != 0) {
            bytes.resize(at as usize, 0);
            bytes.extend_from_slice(chunk);
        }
        at += len;
    }
    let len = file_bytes.min((bytes.len() + ZEROS_KEPT) as u64);
    bytes.resize(len as usize, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
