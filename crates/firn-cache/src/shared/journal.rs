//! The file of changes: sets and deletes since a checkpoint, in order. Byte by byte:
//! docs/formats/cache.md.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::sync::Arc;

use firn_codec::frame::{FileFormat, HEADER_BYTES, crc32, open_block, seal_block};
use firn_codec::varint::{
    encode_varint, encode_zigzag, take_bytes, take_count, take_varint, take_zigzag,
};
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{CommitSeq, Error, ErrorKind, Result, TimeRange};

const FILE: &str = "changes";
const FORMAT: FileFormat = FileFormat { kind: *b"CCHG", version: 1, oldest: 1 };
/// The head block after the file header: run, floor, closed, crc32.
const HEAD_BYTES: usize = 8 + 8 + 1 + 4;
/// The frame before a change: its length and checksum.
const FRAME_BYTES: usize = 8;
/// Longer changes are refused; a change with a larger length in the file is torn.
const CHANGE_BYTES_MAX: usize = 1 << 20;
/// A longer file is not read.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalHead {
    /// The run of the machine in which the file was written.
    pub(super) machine_run: u64,
    /// The checkpoint reflects all changes up to this one.
    pub(super) floor: CommitSeq,
    /// The cache was closed: everything is durable, and no change follows.
    pub(super) is_closed: bool,
}

/// A set or delete of a range of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) number: CommitSeq,
    pub(super) key: Vec<u8>,
    pub(super) field: u64,
    pub(super) range: TimeRange,
}

impl Change {
    /// The bytes of the change in the file.
    ///
    /// # Errors
    /// `TooLarge` over 1 MiB.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut payload = Vec::new();
        encode_varint(self.number.0, &mut payload);
        encode_varint(self.field, &mut payload);
        encode_zigzag(self.range.start, &mut payload);
        encode_varint(self.range.end.wrapping_sub(self.range.start) as u64, &mut payload);
        encode_varint(self.key.len() as u64, &mut payload);
        payload.extend_from_slice(&self.key);
        if payload.len() > CHANGE_BYTES_MAX {
            return Err(Error::too_large(format!(
                "cannot record a change of the cache: expected at most {CHANGE_BYTES_MAX} bytes, \
                 got {} with a key of {} bytes; use a shorter key",
                payload.len(),
                self.key.len()
            )));
        }
        Ok(payload)
    }
}

/// The file, open for appending.
#[derive(Debug)]
pub(super) struct Journal {
    file: Arc<dyn DiskFile>,
    len: u64,
    /// The number of the last change.
    pub(super) last: CommitSeq,
    /// The bytes after `len` are unknown: nothing more can be appended.
    is_torn: bool,
}

impl Journal {
    /// Reads the file; `None` if it is missing or its head is damaged. The changes end at the first
    /// torn one.
    pub(super) fn read(disk: &dyn Disk, folder: &str) -> Option<(JournalHead, Vec<Change>)> {
        let path = format!("{folder}/{FILE}");
        let file = disk.open(&path, OpenMode::Read).ok()?;
        let len = file.len().ok().filter(|&len| len <= FILE_BYTES_MAX)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_at(0, &mut bytes).ok()?;
        FORMAT.check(&path, &bytes).ok()?;
        let head = bytes.get(HEADER_BYTES..HEADER_BYTES + HEAD_BYTES)?;
        let head = decode_head(open_block(&path, HEADER_BYTES as u64, head).ok()?)?;
        let mut input = bytes.get(HEADER_BYTES + HEAD_BYTES..)?;
        let mut changes: Vec<Change> = Vec::new();
        while let Some(change) = take_change(&mut input) {
            // Numbers rise by one; any other change is of a previous file with this name.
            let last = changes.last().map_or(head.floor, |last| last.number);
            if Some(change.number.0) != last.0.checked_add(1) {
                break;
            }
            changes.push(change);
        }
        Some((head, changes))
    }

    /// Creates a new file that replaces the present one, durable on return.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the present file stays.
    pub(super) fn create(disk: &dyn Disk, folder: &str, head: JournalHead) -> Result<Journal> {
        let (path, temporary) = (format!("{folder}/{FILE}"), format!("{folder}/{FILE}.new"));
        match disk.remove(&temporary) {
            Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut bytes = FORMAT.header().to_vec();
        let start = bytes.len();
        bytes.extend_from_slice(&head.machine_run.to_le_bytes());
        bytes.extend_from_slice(&head.floor.0.to_le_bytes());
        bytes.push(u8::from(head.is_closed));
        seal_block(start, &mut bytes);
        let file = disk.open(&temporary, OpenMode::Create)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(folder)?;
        Ok(Journal { file, len: bytes.len() as u64, last: head.floor, is_torn: false })
    }

    /// Appends a change, as [`Change::encode`] returned it; on return the operating system has it.
    ///
    /// # Errors
    /// `Unavailable`; every later call fails too, until the file is [replaced](Journal::create).
    pub(super) fn append(&mut self, payload: &[u8]) -> Result<()> {
        if self.is_torn {
            return Err(Error::unavailable(
                "cannot append to the cache's file of changes: an earlier write failed",
            ));
        }
        // The reader takes a longer change for a torn one.
        assert!(payload.len() <= CHANGE_BYTES_MAX, "Change::encode refuses longer changes");
        let len = u32::try_from(payload.len()).expect("1 MiB fits");
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&crc32(payload).to_le_bytes());
        bytes.extend_from_slice(payload);
        self.is_torn = true;
        self.file.write_at(self.len, &bytes)?;
        self.len = self.len.saturating_add(bytes.len() as u64);
        self.is_torn = false;
        Ok(())
    }

    /// Length of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.len
    }
}

fn decode_head(payload: &[u8]) -> Option<JournalHead> {
    let (run, rest) = payload.split_first_chunk()?;
    let (floor, rest) = rest.split_first_chunk()?;
    Some(JournalHead {
        machine_run: u64::from_le_bytes(*run),
        floor: CommitSeq(u64::from_le_bytes(*floor)),
        is_closed: *rest.first()? != 0,
    })
}

/// The next change; `None` at the end or where one is torn.
fn take_change(input: &mut &[u8]) -> Option<Change> {
    let (frame, rest) = input.split_first_chunk::<FRAME_BYTES>()?;
    let [l0, l1, l2, l3, c0, c1, c2, c3] = *frame;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let payload = rest.get(..len).filter(|_| len <= CHANGE_BYTES_MAX)?;
    if crc32(payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return None;
    }
    *input = rest.get(len..)?;
    decode_change(payload).ok()
}

fn decode_change(mut payload: &[u8]) -> Result<Change> {
    let input = &mut payload;
    let number = CommitSeq(take_varint(input, "number")?);
    let field = take_varint(input, "field")?;
    let start = take_zigzag(input, "start")?;
    let end = start.wrapping_add(take_varint(input, "length")? as i64);
    let len = take_count(input, CHANGE_BYTES_MAX, "bytes of a key")?;
    let key = take_bytes(input, len, "key")?.to_vec();
    Ok(Change { number, key, field, range: TimeRange::new(start, end) })
}
