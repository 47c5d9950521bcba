//! The manifest: an atomic log of edits. What it names exists; what it does not name does not.
//!
//! Each [`Edit`] has an opaque part per room, so that one record moves all rooms at once. The file
//! is kept twice, byte for byte; a record is good if either copy of it is, so one flipped bit or
//! one lost file costs nothing. A file starts with a whole copy of the state (itself an edit) and
//! is replaced when it is full, at every open, and after a failed write. Bytes:
//! `docs/formats/manifest.md`.

use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, Result, decode_varint, encode_varint};

const FOLDER: &str = "manifest";
const MAGIC: [u8; 8] = *b"FIRNMAN1";
/// What is written, and the oldest that is read: version 1 knows no deletes.
const VERSION: u32 = 2;
const OLDEST_VERSION: u32 = 1;
const HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: u64 = 16;
// Preallocated, so that an append changes no file metadata. A flush writes some 200 bytes.
const FILE_BYTES: u64 = 256 << 10;
const COPIES: [&str; 2] = ["a", "b"];

/// The room that a part belongs to. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Engine = 1,
    Log = 2,
    Index = 3,
    Tree = 4,
}

/// What one atomic step changes, room by room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    parts: Vec<(u8, Vec<u8>)>,
}

/// The open manifest.
pub(crate) struct Manifest {
    disk: Arc<dyn Disk>,
    /// Number of the newest complete file, 0 before the first.
    file_no: u64,
    /// `None` after a failed write: the next commit starts a new file with the whole state.
    current: Option<Current>,
}

struct Current {
    copies: Vec<Arc<dyn DiskFile>>,
    /// What was preallocated.
    bytes: u64,
    end: u64,
    next_edit_no: u64,
}

/// What [`Manifest::open`] found.
#[derive(Default)]
pub(crate) struct ManifestContents {
    /// The edits in order; the first is a whole state. Empty in a new folder.
    pub(crate) edits: Vec<Edit>,
    /// One sentence for each place where a copy had to stand in for the other.
    pub(crate) repaired: Vec<String>,
}

impl ManifestContents {
    /// The parts of `room`, in order.
    pub(crate) fn parts(&self, room: Room) -> Vec<&[u8]> {
        self.edits.iter().flat_map(|edit| edit.parts(room)).collect()
    }
}

impl Edit {
    pub(crate) fn with(mut self, room: Room, part: Vec<u8>) -> Edit {
        self.parts.push((room as u8, part));
        self
    }

    /// Without the parts of `room` that `is_gone` says.
    pub(crate) fn without(mut self, room: Room, is_gone: impl Fn(&[u8]) -> bool) -> Edit {
        self.parts.retain(|part| part.0 != room as u8 || !is_gone(&part.1));
        self
    }

    pub(crate) fn parts(&self, room: Room) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().filter(move |part| part.0 == room as u8).map(|part| part.1.as_slice())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (room, part) in &self.parts {
            out.push(*room);
            encode_varint(part.len() as u64, &mut out);
            out.extend_from_slice(part);
        }
        out
    }

    fn decode(mut rest: &[u8]) -> Option<Edit> {
        let mut parts = Vec::new();
        while let Some((&room, after)) = rest.split_first() {
            rest = after;
            let part_bytes = usize::try_from(decode_varint(&mut rest)?).ok()?;
            let (part, after) = rest.split_at_checked(part_bytes)?;
            rest = after;
            parts.push((room, part.to_vec()));
        }
        Some(Edit { parts })
    }
}

impl Manifest {
    /// Reads the newest complete manifest; nothing is written yet.
    ///
    /// # Errors
    /// `Corrupt` when a record is bad in both copies and others follow it; `Invalid` for a file
    /// of a newer version.
    pub(crate) fn open(disk: Arc<dyn Disk>) -> Result<(Manifest, ManifestContents)> {
        disk.create_dir(FOLDER)?;
        disk.sync_dir("")?;
        let mut file_nos: Vec<u64> = disk
            .list(FOLDER)?
            .iter()
            .filter_map(|name| name.split_once('.'))
            .filter(|(_, copy)| COPIES.contains(copy))
            .filter_map(|(number, _)| number.parse().ok())
            .collect();
        file_nos.sort_unstable();
        file_nos.dedup();
        // A file gets its name only when it is whole, and older ones go afterwards: the newest counts.
        let Some(&file_no) = file_nos.last() else {
            let manifest = Manifest { disk, file_no: 0, current: None };
            return Ok((manifest, ManifestContents::default()));
        };
        let copies = read_copies(&*disk, file_no)?;
        let mut found = ManifestContents::default();
        found.edits = decode_copies(file_no, &copies, &mut found.repaired)?;
        if found.edits.is_empty() {
            return Err(Error::corrupt(
                path(file_no, "a"),
                0,
                "no copy of the manifest is readable; restore a backup",
            ));
        }
        Ok((Manifest { disk, file_no, current: None }, found))
    }

    /// Makes `edit` durable, all of it or nothing. `state` gives the whole state *before* `edit`;
    /// it is asked for only when a new file begins.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full. The edit then counts as not made: nothing may
    /// be done that it would allow, and nothing that it names may be removed before the next
    /// successful commit.
    pub(crate) fn commit(&mut self, edit: &Edit, state: impl FnOnce() -> Edit) -> Result<()> {
        let encoded = edit.encode();
        let fits = |current: &Current| {
            current.end + RECORD_HEADER_BYTES + encoded.len() as u64 <= current.bytes
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

    /// Starts the next file with the whole state, then removes the older ones.
    fn begin_file(&mut self, state: &Edit, room_bytes: u64) -> Result<()> {
        self.current = None;
        let file_no = self.file_no + 1;
        let encoded = state.encode();
        let needed = HEADER_BYTES + 2 * RECORD_HEADER_BYTES + encoded.len() as u64 + room_bytes;
        // A large state is followed by as many bytes of edits, so that it is not written each time.
        let bytes = FILE_BYTES.max(2 * needed);
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
        let mut current = Current { copies, bytes, end: HEADER_BYTES, next_edit_no: 1 };
        current.append(&encoded)?;
        // From the first rename on this number is taken, whatever happens next.
        self.file_no = file_no;
        for copy in COPIES {
            self.disk.rename(&unfinished_path(file_no, copy), &path(file_no, copy))?;
        }
        self.disk.sync_dir(FOLDER)?;
        self.current = Some(current);
        self.remove_older()
    }

    fn remove_older(&self) -> Result<()> {
        for name in self.disk.list(FOLDER)? {
            let number = name.split('.').next().and_then(|number| number.parse::<u64>().ok());
            if number.is_some_and(|number| number < self.file_no) {
                self.disk.remove(&format!("{FOLDER}/{name}"))?;
            }
        }
        Ok(())
    }
}

impl Current {
    fn append(&mut self, encoded: &[u8]) -> Result<()> {
        let record = record(self.next_edit_no, encoded);
        for copy in &self.copies {
            copy.write_at(self.end, &record)?;
            copy.sync()?;
        }
        self.end += record.len() as u64;
        self.next_edit_no += 1;
        Ok(())
    }
}

/// A whole state as one object of the slow tier: a manifest file with one record, twice in a row. Its number
/// is the writer's epoch.
pub(crate) fn encode_object(epoch: u64, state: &Edit) -> Vec<u8> {
    let mut copy = header(epoch, VERSION);
    copy.extend_from_slice(&record(1, &state.encode()));
    copy.repeat(2)
}

/// What [`encode_object`] wrote.
pub(crate) struct ManifestObject {
    pub(crate) epoch: u64,
    pub(crate) state: Edit,
    /// Where the copy that is not whole differs from the other, if one is not.
    pub(crate) damaged_at: Option<u64>,
}

/// What [`encode_object`] wrote, from the copy that is whole.
///
/// # Errors
/// `Corrupt` if none is; `Invalid` for a newer version.
pub(crate) fn decode_object(file: &str, bytes: &[u8]) -> Result<ManifestObject> {
    let mut newer = None;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for (copy, is_first) in [(bytes, true), (second, false)] {
        let Some((version, epoch)) = decode_header(copy) else { continue };
        if version > VERSION {
            newer = Some(version);
        } else if let Some((state, end)) = decode_record(copy, HEADER_BYTES as usize, 1) {
            let damaged_at = match is_first {
                // Whatever the object's length has become.
                true => first_difference(&copy[end..], &copy[..end]).map(|at| end + at),
                false => first_difference(first, second),
            };
            return Ok(ManifestObject { epoch, state, damaged_at: damaged_at.map(|at| at as u64) });
        }
    }
    Err(match newer {
        Some(version) => Error::invalid(format!(
            "{file}: manifest version {version} is newer than {VERSION}, the newest that this program \
             knows; start the newer program"
        )),
        None => Error::corrupt(
            file,
            0,
            "both copies of the slow tier's manifest are damaged; the server that writes there puts \
             it anew, or restore a backup",
        ),
    })
}

/// The epochs that what is left of the two copies of an object still tells.
pub(crate) fn epochs_in(bytes: &[u8]) -> Vec<u64> {
    let starts = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(&MAGIC));
    starts.filter_map(|at| Some(decode_header(&bytes[at..])?.1)).collect()
}

fn first_difference(found: &[u8], whole: &[u8]) -> Option<usize> {
    let same = found.iter().zip(whole).take_while(|(a, b)| a == b).count();
    (same < found.len().max(whole.len())).then_some(same)
}

/// Version and number, if the header is whole.
fn decode_header(bytes: &[u8]) -> Option<(u32, u64)> {
    let header = bytes.get(..HEADER_BYTES as usize)?;
    let version = u32::from_le_bytes(header[8..12].try_into().ok()?);
    let number = u64::from_le_bytes(header[12..20].try_into().ok()?);
    let is_whole =
        header[..8] == MAGIC && header[20..24] == crc32fast::hash(&header[..20]).to_le_bytes();
    is_whole.then_some((version, number))
}

fn path(file_no: u64, copy: &str) -> String {
    format!("{FOLDER}/{file_no:08}.{copy}")
}

/// The name of a file that is not whole yet; the next open ignores it, the next file replaces it.
fn unfinished_path(file_no: u64, copy: &str) -> String {
    format!("{FOLDER}/{file_no:08}.{copy}.new")
}

fn header(file_no: u64, version: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&file_no.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out
}

fn record(edit_no: u64, encoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD_HEADER_BYTES as usize + encoded.len());
    out.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&edit_no.to_le_bytes());
    out.extend_from_slice(encoded);
    let crc = record_crc(&out);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Over the length, the edit number and the edit; the field itself is left out.
fn record_crc(record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record[..4]);
    hasher.update(&record[8..]);
    hasher.finalize()
}

fn read_copies(disk: &dyn Disk, file_no: u64) -> Result<Vec<(String, Vec<u8>)>> {
    let mut copies = Vec::new();
    for copy in COPIES {
        let path = path(file_no, copy);
        let bytes = match disk.open(&path, OpenMode::Read) {
            Ok(file) => {
                let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
                file.read_at(0, &mut bytes)?;
                bytes
            }
            // A crash between the two renames; the next file has both copies again.
            Err(e) if *e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        copies.push((path, bytes));
    }
    Ok(copies)
}

/// The edits that are whole in at least one copy, up to the first that is whole in none.
fn decode_copies(
    file_no: u64,
    copies: &[(String, Vec<u8>)],
    repaired: &mut Vec<String>,
) -> Result<Vec<Edit>> {
    let mut readable = Vec::new();
    for (path, bytes) in copies {
        let mut known = (OLDEST_VERSION..=VERSION).map(|version| header(file_no, version));
        if known.any(|header| bytes.starts_with(&header)) {
            readable.push((path, bytes.as_slice()));
        } else if bytes.get(..8) == Some(MAGIC.as_slice())
            && let Some(found) = bytes.get(8..12)
            && found > VERSION.to_le_bytes().as_slice()
            && bytes.get(20..24) == Some(&crc32fast::hash(&bytes[..20]).to_le_bytes()[..])
        {
            let found = u32::from_le_bytes([found[0], found[1], found[2], found[3]]);
            return Err(Error::invalid(format!(
                "{path}: manifest version {found} is newer than {VERSION}, the newest that this \
                 program knows; start the newer program"
            )));
        } else {
            repaired.push(format!("{path}: the header is damaged"));
        }
    }
    let mut edits = Vec::new();
    let mut at = HEADER_BYTES as usize;
    let mut damaged: Vec<(u64, String)> = Vec::new();
    loop {
        let edit_no = edits.len() as u64 + 1;
        let good = readable.iter().find_map(|(_, bytes)| decode_record(bytes, at, edit_no));
        let Some((edit, end)) = good else { break };
        for (path, bytes) in &readable {
            if decode_record(bytes, at, edit_no).is_none() {
                damaged.push((edit_no, format!("{path} at byte {at}: edit {edit_no} is damaged")));
            }
        }
        edits.push(edit);
        at = end;
    }
    let next = edits.len() as u64 + 1;
    // The last record may be whole in one copy only: so looks a crash between the two writes.
    repaired.extend(damaged.into_iter().filter(|place| place.0 + 1 < next).map(|place| place.1));
    for (path, bytes) in &readable {
        if !edits.is_empty() && later_record(bytes, at, next) {
            return Err(Error::corrupt(
                path.as_str(),
                at as u64,
                format!(
                    "edit {next} is damaged in both copies and others follow it; restore a backup"
                ),
            ));
        }
    }
    Ok(edits)
}

/// Whether some record after `next` is whole somewhere behind `at`: then `next` was no torn tail.
fn later_record(bytes: &[u8], at: usize, next: u64) -> bool {
    (at + 1..bytes.len()).filter(|&start| bytes[start] != 0).any(|start| {
        (next + 1..next + 64).any(|edit_no| decode_record(bytes, start, edit_no).is_some())
    })
}

fn decode_record(bytes: &[u8], at: usize, edit_no: u64) -> Option<(Edit, usize)> {
    let header = bytes.get(at..at.checked_add(RECORD_HEADER_BYTES as usize)?)?;
    let edit_bytes = u32::from_le_bytes(header[..4].try_into().ok()?) as usize;
    let end = at.checked_add(RECORD_HEADER_BYTES as usize)?.checked_add(edit_bytes)?;
    if u64::from_le_bytes(header[8..16].try_into().ok()?) != edit_no {
        return None;
    }
    let record = bytes.get(at..end)?;
    if record_crc(record).to_le_bytes() != header[4..8] {
        return None;
    }
    Some((Edit::decode(&record[RECORD_HEADER_BYTES as usize..])?, end))
}

#[cfg(test)]
mod tests {
    use firn_sim::{Faults, SimDisk};

    use super::*;

    fn edit(number: u8) -> Edit {
        Edit::default().with(Room::Tree, vec![number; 5]).with(Room::Index, vec![])
    }

    fn state() -> Edit {
        Edit::default().with(Room::Engine, vec![7])
    }

    fn opened(disk: &Arc<dyn Disk>) -> (Manifest, ManifestContents) {
        Manifest::open(Arc::clone(disk)).unwrap()
    }

    fn flip(disk: &Arc<dyn Disk>, path: &str, at: u64) {
        let file = disk.open(path, OpenMode::Write).unwrap();
        let mut byte = [0];
        file.read_at(at, &mut byte).unwrap();
        file.write_at(at, &[byte[0] ^ 4]).unwrap();
    }

    #[test]
    fn edits_come_back_in_order_and_a_new_file_begins_with_the_state() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, found) = opened(&disk);
        assert!(found.edits.is_empty());
        manifest.commit(&edit(1), state).unwrap();
        manifest.commit(&edit(2), || unreachable!("there is room")).unwrap();
        let (mut manifest, found) = opened(&disk);
        assert_eq!(found.edits, [state(), edit(1), edit(2)]);
        assert_eq!(found.edits[1].parts(Room::Tree).collect::<Vec<_>>(), [&[1u8; 5][..]]);
        manifest.commit(&edit(3), || edit(9)).unwrap();
        assert_eq!(opened(&disk).1.edits, [edit(9), edit(3)]);
        assert_eq!(disk.list(FOLDER).unwrap(), ["00000002.a", "00000002.b"]);
    }

    #[test]
    fn a_full_file_is_followed_by_the_next() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, _) = opened(&disk);
        for _ in 0..10 {
            let large = Edit::default().with(Room::Tree, vec![1; 60_000]);
            manifest.commit(&large, state).unwrap();
        }
        assert!(manifest.file_no > 2);
        assert_eq!(opened(&disk).1.edits[0], state());
    }

    #[test]
    fn a_state_larger_than_a_file_is_not_written_with_each_edit() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, _) = opened(&disk);
        let large = || Edit::default().with(Room::Tree, vec![1; 2 * FILE_BYTES as usize]);
        for number in 0..100 {
            manifest.commit(&edit(number), large).unwrap();
        }
        assert_eq!(manifest.file_no, 1);
        assert_eq!(opened(&disk).1.edits.len(), 101);
    }

    #[test]
    fn every_flipped_bit_in_one_copy_is_repaired_from_the_other() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, _) = opened(&disk);
        (1..4).for_each(|number| manifest.commit(&edit(number), state).unwrap());
        let end = manifest.current.as_ref().unwrap().end;
        for at in 0..end {
            let copy = format!("{FOLDER}/00000001.{}", COPIES[(at % 2) as usize]);
            flip(&disk, &copy, at);
            let found = opened(&disk).1;
            assert_eq!(found.edits, [state(), edit(1), edit(2), edit(3)], "byte {at}");
            flip(&disk, &copy, at);
        }
    }

    #[test]
    fn an_object_says_which_copy_is_damaged_and_where() {
        let whole = encode_object(7, &state());
        let half = whole.len() / 2;
        let f = |bytes: &[u8]| {
            let object = decode_object("manifest", bytes).unwrap();
            assert_eq!((object.epoch, object.state), (7, state()));
            object.damaged_at.map(|at| at as usize)
        };
        assert_eq!(f(&whole), None);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert_eq!(f(&bytes), Some(at));
        }
        assert_eq!(f(&whole[..half]), Some(half));
        assert_eq!(f(&whole[..half + 30]), Some(half + 30));
        assert_eq!(f(&[&whole[..], b"more"].concat()), Some(whole.len()));
        for bytes in [&whole[..half - 1], &[], &vec![0; whole.len()]] {
            assert!(decode_object("manifest", bytes).is_err());
        }
    }

    #[test]
    fn both_copies_damaged_in_the_middle_is_corrupt_and_named() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, _) = opened(&disk);
        (1..4).for_each(|number| manifest.commit(&edit(number), state).unwrap());
        for copy in COPIES {
            flip(&disk, &format!("{FOLDER}/00000001.{copy}"), HEADER_BYTES + 60);
        }
        let error = Manifest::open(Arc::clone(&disk)).map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("00000001.a at byte"), "{error}");
    }
}
