//! Reading segment files back, into the ids of the state.
//!
//! Bytes come from disk: nothing here indexes or unwraps, and no count asks for more memory than the
//! block has bytes.

use std::ops::Range;

use firn_codec::frame::{BLOCK_TRAILER_BYTES, HEADER_BYTES, open_block};
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, GroupId, Result, decode_varint};

use crate::part::SegmentInfo;
use crate::segment::{BLOCK_HEAD_BYTES, FORMAT, KIND_DEFINITIONS, KIND_END};
use crate::state::State;

/// Reads a segment into `state`, in the order in which it was written.
///
/// # Errors
/// `Corrupt` with the file and the offset of the block that is damaged or contradicts the state.
pub(crate) fn read(disk: &dyn Disk, info: &SegmentInfo, state: &mut State) -> Result<()> {
    let path = info.path();
    let missing = |e: Error| match e.kind() {
        ErrorKind::NotFound => Error::corrupt(&path, 0, "the manifest names it but it is missing"),
        _ => e,
    };
    let file = disk.open(&path, OpenMode::Read).map_err(missing)?;
    let file_bytes = file.len()?;
    if file_bytes != info.file_bytes {
        let what = format!("{file_bytes} bytes, the manifest says {}", info.file_bytes);
        return Err(Error::corrupt(&path, file_bytes.min(info.file_bytes), what));
    }
    let header = read_exact(&*file, &path, 0, HEADER_BYTES as u64, file_bytes)?;
    FORMAT.check(&path, &header)?;
    let (mut offset, mut block_count, mut series_count) = (HEADER_BYTES as u64, 0, 0);
    loop {
        let (kind, bytes) = read_block(&*file, &path, offset, file_bytes)?;
        let next = offset + bytes.len() as u64;
        let corrupt = |e: Error| Error::corrupt(&path, offset, e.to_string());
        let mut payload =
            bytes.get(BLOCK_HEAD_BYTES..bytes.len() - BLOCK_TRAILER_BYTES).unwrap_or(&[]);
        if kind == KIND_END {
            let totals = (decode_varint(&mut payload), decode_varint(&mut payload));
            if totals == (Some(block_count), Some(series_count)) && next == file_bytes {
                return Ok(());
            }
            return Err(corrupt(Error::invalid("its end does not match what is before it")));
        }
        series_count += decode_block(payload, state).map_err(corrupt)?;
        block_count += 1;
        offset = next;
    }
}

/// The kind and all bytes of the block at `offset`, its checksum tested.
fn read_block(
    file: &dyn DiskFile,
    path: &str,
    offset: u64,
    file_bytes: u64,
) -> Result<(u8, Vec<u8>)> {
    let head = read_exact(file, path, offset, BLOCK_HEAD_BYTES as u64, file_bytes)?;
    let &[l0, l1, l2, l3, kind] = &head[..] else {
        return Err(Error::corrupt(path, offset, "block head is cut short"));
    };
    let len = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
    if len < (BLOCK_HEAD_BYTES + BLOCK_TRAILER_BYTES) as u64 {
        return Err(Error::corrupt(path, offset, format!("block of {len} bytes")));
    }
    let bytes = read_exact(file, path, offset, len, file_bytes)?;
    open_block(path, offset, &bytes)?;
    if kind != KIND_DEFINITIONS && kind != KIND_END {
        return Err(Error::corrupt(path, offset, format!("block of unknown kind {kind}")));
    }
    Ok((kind, bytes))
}

fn read_exact(
    file: &dyn DiskFile,
    path: &str,
    offset: u64,
    len: u64,
    file_bytes: u64,
) -> Result<Vec<u8>> {
    if offset.checked_add(len).is_none_or(|end| end > file_bytes) {
        let what = format!("{len} bytes wanted, the file ends at {file_bytes}");
        return Err(Error::corrupt(path, offset, what));
    }
    let mut buf = vec![0; len as usize];
    file.read_at(offset, &mut buf)?;
    Ok(buf)
}

/// The tables of a block, in ids of the state.
struct Tables {
    /// All sets' pairs in a row.
    pairs: Vec<u32>,
    /// Where each set is in there.
    sets: Vec<Range<usize>>,
}

fn decode_block(payload: &[u8], state: &mut State) -> Result<u64> {
    let mut rest = payload;
    let tables = decode_tables(&mut rest, state)?;
    let mut series_count = 0;
    for _ in 0..count(&mut rest)? {
        series_count += decode_record(&mut rest, &tables, state)?;
    }
    if !rest.is_empty() {
        return Err(bad("bytes after the last record"));
    }
    Ok(series_count)
}

fn decode_tables(rest: &mut &[u8], state: &mut State) -> Result<Tables> {
    let mut strings: Vec<&str> = Vec::new();
    for _ in 0..count(rest)? {
        let len = number(rest)? as usize;
        let (text, after) = rest.split_at_checked(len).ok_or_else(|| bad("string is cut short"))?;
        *rest = after;
        strings.push(std::str::from_utf8(text).map_err(|e| bad("string").because(e))?);
    }
    // (id of the pair, rank of its name), so that the order of names is checked once per string.
    let mut sorted: Vec<&str> = strings.clone();
    sorted.sort_unstable();
    let mut pairs: Vec<(u32, usize)> = Vec::new();
    for _ in 0..count(rest)? {
        let (name, value) = (*item(rest, &strings)?, *item(rest, &strings)?);
        if name.is_empty() || value.is_empty() {
            return Err(bad("empty name or value"));
        }
        let rank = sorted.partition_point(|&other| other < name);
        pairs.push((state.pairs.intern(name.as_bytes(), value.as_bytes())?, rank));
    }
    let mut tables = Tables { pairs: Vec::new(), sets: Vec::new() };
    for _ in 0..count(rest)? {
        let start = tables.pairs.len();
        let mut last = None;
        for _ in 0..count(rest)? {
            let &(pair, rank) = item(rest, &pairs)?;
            if last.replace(rank).is_some_and(|last| last >= rank) {
                return Err(bad("label names out of order"));
            }
            tables.pairs.push(pair);
        }
        tables.sets.push(start..tables.pairs.len());
    }
    Ok(tables)
}

fn decode_record(rest: &mut &[u8], tables: &Tables, state: &mut State) -> Result<u64> {
    let group = GroupId(number(rest)?);
    let lone = match number(rest)? {
        0 => false,
        1 => true,
        flags => return Err(bad(&format!("flags {flags} of {group}"))),
    };
    let labels = item(rest, &tables.sets)?;
    let group_no = state.restore_group(group, lone, tables.pairs_of(labels))?;
    if lone {
        return Ok(1);
    }
    let (mut slot, mut expected, mut series_count) = (0u32, 0i64, 0);
    for _ in 0..count(rest)? {
        let gap = u32::try_from(number(rest)?).ok();
        let beyond = || bad("slot beyond 2^32");
        slot = gap.and_then(|gap| slot.checked_add(gap)).ok_or_else(beyond)?;
        for _ in 0..count(rest)? {
            let zigzag = number(rest)?;
            let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
            let set = expected.checked_add(delta).filter(|&set| set < i64::from(u32::MAX));
            let set = set.ok_or_else(|| bad("no such set"))?;
            let member = usize::try_from(set).ok().and_then(|set| tables.sets.get(set));
            let member = member.ok_or_else(|| bad("no such set"))?;
            state.restore_member(group_no, slot, tables.pairs_of(member))?;
            expected = set + 1;
            slot = slot.checked_add(1).ok_or_else(beyond)?;
            series_count += 1;
        }
    }
    Ok(series_count)
}

impl Tables {
    fn pairs_of(&self, set: &Range<usize>) -> &[u32] {
        self.pairs.get(set.clone()).unwrap_or_default()
    }
}

fn bad(what: &str) -> Error {
    Error::invalid(format!("index block: {what}"))
}

fn number(rest: &mut &[u8]) -> Result<u64> {
    decode_varint(rest).ok_or_else(|| bad("number is cut short"))
}

/// A count of things that take at least a byte each, so that it cannot ask for more memory than the
/// block has bytes.
fn count(rest: &mut &[u8]) -> Result<usize> {
    let count = number(rest)?;
    usize::try_from(count)
        .ok()
        .filter(|&c| c <= rest.len())
        .ok_or_else(|| bad("count is too large"))
}

fn item<'t, T>(rest: &mut &[u8], table: &'t [T]) -> Result<&'t T> {
    let idx = usize::try_from(number(rest)?).ok();
    idx.and_then(|idx| table.get(idx)).ok_or_else(|| bad("reference to nothing"))
}
