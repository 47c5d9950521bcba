//! The bytes of the manifest: header, records, and the object on the slow tier.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, Result};

use crate::edit::Edit;

const MAGIC: [u8; 8] = *b"FIRNMAN1";
/// The version written, and the oldest version read: version 1 has no deletes.
pub(crate) const VERSION: u32 = 2;
const OLDEST_VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 24;
pub(crate) const RECORD_HEADER_BYTES: usize = 16;
/// Edits behind a damaged one that are searched for.
const LATER_EDITS: u64 = 64;

/// Encodes a whole state as an object of the slow tier: a manifest file with one record, twice in a
/// row. The file's number is the writer's epoch.
pub(crate) fn encode_object(epoch: u64, state: &Edit) -> Result<Vec<u8>> {
    let mut copy = header(epoch, VERSION);
    copy.extend_from_slice(&record(1, &state.encode())?);
    Ok(copy.repeat(2))
}

/// One copy of a manifest file.
pub(crate) struct ManifestCopy {
    pub(crate) path: String,
    /// Without most of the zeros at its end.
    pub(crate) bytes: Vec<u8>,
    /// Length of the file.
    pub(crate) file_bytes: u64,
}

impl ManifestCopy {
    /// Whether its header is valid. Without one its edits are not read.
    pub(crate) fn has_header(&self) -> bool {
        decode_header(&self.bytes).is_some()
    }
}

/// The contents of an object of [`encode_object`].
pub(crate) struct ManifestObject {
    pub(crate) epoch: u64,
    pub(crate) state: Edit,
    /// The first byte at which the damaged copy differs from the other.
    pub(crate) damaged_at: Option<u64>,
}

/// Decodes an object of [`encode_object`] from its first valid copy.
///
/// # Errors
/// `Corrupt` if neither copy is valid; `Invalid` for a newer version.
pub(crate) fn decode_object(file: &str, bytes: &[u8]) -> Result<ManifestObject> {
    let mut newer = None;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for (copy, is_first) in [(bytes, true), (second, false)] {
        let Some((version, epoch)) = decode_header(copy) else { continue };
        if version > VERSION {
            newer = Some(version);
        } else if let Some((state, end)) = decode_record(copy, HEADER_BYTES, 1) {
            let damaged_at = match is_first {
                // Also if the object has another length than it was put with.
                true => {
                    let (own, other) = copy.split_at_checked(end).unwrap_or((copy, &[]));
                    first_difference(other, own).map(|at| end.saturating_add(at))
                }
                false => first_difference(first, second),
            };
            return Ok(ManifestObject { epoch, state, damaged_at: damaged_at.map(|at| at as u64) });
        }
    }
    Err(match newer {
        Some(version) => Error::invalid(format!(
            "{file}: manifest version {version} is newer than {VERSION}, the newest that this \
             program knows; start the newer program"
        )),
        None => Error::corrupt(
            file,
            0,
            "both copies of the slow tier's manifest are damaged; the server that writes there \
             replaces it, or restore a backup",
        ),
    })
}

/// The epochs in all valid headers of a damaged object.
pub(crate) fn epochs_in(bytes: &[u8]) -> Vec<u64> {
    let tails = (0..bytes.len()).filter_map(|at| bytes.get(at..));
    tails.filter_map(|tail| Some(decode_header(tail)?.1)).collect()
}

fn first_difference(found: &[u8], whole: &[u8]) -> Option<usize> {
    let same = found.iter().zip(whole).take_while(|(a, b)| a == b).count();
    (same < found.len().max(whole.len())).then_some(same)
}

/// Version and number, if the header is valid.
fn decode_header(bytes: &[u8]) -> Option<(u32, u64)> {
    let (covered, crc) = bytes.get(..HEADER_BYTES)?.split_last_chunk::<4>()?;
    let (magic, rest) = covered.split_first_chunk::<8>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let number = u64::from_le_bytes(rest.try_into().ok()?);
    let is_valid = *magic == MAGIC && crc32fast::hash(covered).to_le_bytes() == *crc;
    is_valid.then_some((u32::from_le_bytes(*version), number))
}

pub(crate) fn header(file_no: u64, version: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&file_no.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out
}

pub(crate) fn record(edit_no: u64, edit: &[u8]) -> Result<Vec<u8>> {
    let len = u32::try_from(edit.len()).map_err(|_| {
        Error::too_large(format!("manifest edit: {} bytes are over 4 GiB", edit.len()))
    })?;
    let (len, number) = (len.to_le_bytes(), edit_no.to_le_bytes());
    let crc = record_crc(len, number, edit).to_le_bytes();
    let out = [&len[..], &crc, &number, edit].concat();
    // A record decides which files exist: it must be readable.
    assert!(decode_record(&out, 0, edit_no).is_some(), "a manifest record decodes as written");
    Ok(out)
}

/// The checksum of the length, the edit number and the edit; the field itself is excluded.
fn record_crc(len: [u8; 4], number: [u8; 8], edit: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len);
    hasher.update(&number);
    hasher.update(edit);
    hasher.finalize()
}

/// Decodes the edits that are valid in at least one copy, up to the first that is valid in none.
pub(crate) fn decode_copies(
    file_no: u64,
    copies: &[ManifestCopy],
    repaired: &mut Vec<String>,
) -> Result<Vec<Edit>> {
    let mut readable = Vec::new();
    for ManifestCopy { path, bytes, .. } in copies {
        match decode_header(bytes) {
            Some((version, _)) if version > VERSION => {
                return Err(Error::invalid(format!(
                    "{path}: manifest version {version} is newer than {VERSION}, the newest that \
                     this program knows; start the newer program"
                )));
            }
            Some((version, number)) if version >= OLDEST_VERSION && number == file_no => {
                readable.push((path, bytes.as_slice()));
            }
            _ => repaired.push(format!("{path}: the header is damaged")),
        }
    }
    let mut edits = Vec::new();
    let mut at = HEADER_BYTES;
    let mut damaged: Vec<(u64, String)> = Vec::new();
    loop {
        let edit_no = (edits.len() as u64).saturating_add(1);
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
    let next = (edits.len() as u64).saturating_add(1);
    // After a crash between the two writes, the last record is valid in one copy only.
    repaired
        .extend(damaged.into_iter().filter(|one| one.0.saturating_add(1) < next).map(|one| one.1));
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

/// Whether a record after `next` is valid behind `at`. Then `next` is damaged and no torn tail.
fn later_record(bytes: &[u8], at: usize, next: u64) -> bool {
    let later = next.saturating_add(1)..next.saturating_add(LATER_EDITS);
    let written = without_last_zeros(bytes);
    (at.saturating_add(1)..written.len()).any(|start| {
        let number = bytes.get(start..).and_then(record_number);
        number.is_some_and(|no| later.contains(&no) && decode_record(bytes, start, no).is_some())
    })
}

/// The bytes before the last blocks of zeros: most of a file is not written yet.
fn without_last_zeros(mut bytes: &[u8]) -> &[u8] {
    const BLOCK: [u8; 4 << 10] = [0; 4 << 10];
    while let Some((rest, block)) = bytes.split_last_chunk()
        && *block == BLOCK
    {
        bytes = rest;
    }
    bytes
}

/// The number of the edit in the record that begins here.
fn record_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?))
}

fn decode_record(bytes: &[u8], at: usize, edit_no: u64) -> Option<(Edit, usize)> {
    let (len, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*number) != edit_no {
        return None;
    }
    let edit = rest.get(..usize::try_from(u32::from_le_bytes(*len)).ok()?)?;
    if record_crc(*len, *number, edit).to_le_bytes() != *crc {
        return None;
    }
    let end = at.checked_add(RECORD_HEADER_BYTES)?.checked_add(edit.len())?;
    Some((Edit::decode(edit)?, end))
}
