//! The last bytes of a segment file with the offsets of everything else, and the writer of a file.
//!
//! ```text
//! file   = header, sections and arrays back to back, footer, tail
//! footer = varint(end of the sections) varint(count)*
//!          varint(section start)* varint(section bytes)*
//!          (varint(array start) varint(width) varint(count))*
//!          crc32 of each 64 KiB of the file up to that end
//! tail   = footer bytes:u32 crc32(footer):u32 crc32(the 8 bytes before):u32
//! ```

use firn_codec::bits::{bit_width, pack, packed_bytes};
use firn_codec::frame::{FileFormat, HEADER_BYTES, crc32};
use firn_env::{DiskFile, Mapped};
use firn_model::{Error, Result, decode_varint, encode_varint};

use crate::sealed::format::blocks::{
    BLOCK_BYTES, Blocks, PACKED_PAD_BYTES, PackedArray, Records, Section,
};

pub(crate) const FORMAT: FileFormat = FileFormat { kind: *b"INDX", version: 4, oldest: 4 };
const TAIL_BYTES: usize = 12;
// The file is written in pieces of 1 MiB.
const WRITE_BYTES: usize = 16 * BLOCK_BYTES;

/// The table of contents in file order: numbers, byte sections, packed arrays.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) counts: Vec<u64>,
    pub(crate) sections: Vec<Section>,
    pub(crate) arrays: Vec<PackedArray>,
}

/// Reads a [`Contents`] in its order.
#[derive(Debug)]
pub(crate) struct ContentsReader<'a> {
    contents: &'a Contents,
    count_idx: usize,
    section_idx: usize,
    array_idx: usize,
}

impl Contents {
    /// The number of its entries.
    pub(crate) fn size(&self) -> ContentsSize {
        ContentsSize {
            counts: self.counts.len(),
            sections: self.sections.len(),
            arrays: self.arrays.len(),
        }
    }
}

impl<'a> ContentsReader<'a> {
    pub(crate) fn new(contents: &'a Contents) -> ContentsReader<'a> {
        ContentsReader { contents, count_idx: 0, section_idx: 0, array_idx: 0 }
    }

    pub(crate) fn count(&mut self) -> Option<u64> {
        let count = self.contents.counts.get(self.count_idx).copied();
        self.count_idx = self.count_idx.saturating_add(1);
        count
    }

    pub(crate) fn section(&mut self) -> Option<Section> {
        let section = self.contents.sections.get(self.section_idx).copied();
        self.section_idx = self.section_idx.saturating_add(1);
        section
    }

    /// A section and the array of its starts.
    pub(crate) fn records(&mut self) -> Option<Records> {
        Some(Records { bytes: self.section()?, starts: self.array()? })
    }

    pub(crate) fn array(&mut self) -> Option<PackedArray> {
        let array = self.contents.arrays.get(self.array_idx).copied();
        self.array_idx = self.array_idx.saturating_add(1);
        array
    }
}

/// Writes sections and records their offsets.
#[derive(Debug)]
pub(crate) struct FileWriter<'f> {
    file: &'f dyn DiskFile,
    /// Bytes in the file; a multiple of the block size until the end.
    written: usize,
    buf: Vec<u8>,
    checksums: Vec<u32>,
    /// The sections that are written twice.
    heads: Vec<u8>,
    pub(crate) contents: Contents,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "offsets in a file that this process writes"
)]
impl<'f> FileWriter<'f> {
    pub(crate) fn new(file: &'f dyn DiskFile) -> FileWriter<'f> {
        let (checksums, heads, contents) = Default::default();
        FileWriter { file, written: 0, buf: FORMAT.header().to_vec(), checksums, heads, contents }
    }

    pub(crate) fn push_count(&mut self, count: u64) {
        self.contents.counts.push(count);
    }

    /// Appends a section.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    pub(crate) fn push_section(&mut self, bytes: &[u8]) -> Result<()> {
        self.begin_section();
        self.extend_section(bytes)
    }

    /// Appends a section that every reader needs; [`FileWriter::push_heads_again`] repeats it.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn push_head(&mut self, bytes: &[u8]) -> Result<()> {
        self.heads.reserve_exact(bytes.len());
        self.heads.extend_from_slice(bytes);
        self.push_section(bytes)
    }

    /// Appends a section with the copies of all heads. It is empty if it would begin in the first
    /// block, which contains the originals.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn push_heads_again(&mut self) -> Result<()> {
        let heads = std::mem::take(&mut self.heads);
        let is_elsewhere = self.written + self.buf.len() >= BLOCK_BYTES;
        self.push_section(if is_elsewhere { &heads } else { &[] })
    }

    /// Begins a section that [`FileWriter::extend_section`] fills.
    pub(crate) fn begin_section(&mut self) {
        self.contents.sections.push(Section { start: self.written + self.buf.len(), len: 0 });
    }

    /// Appends bytes to the last section.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn extend_section(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(section) = self.contents.sections.last_mut() {
            section.len += bytes.len();
        }
        bytes.chunks(WRITE_BYTES).try_for_each(|piece| self.push(piece))
    }

    /// Appends a section and the array of its starts.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn push_records(&mut self, bytes: &[u8], starts: &[u64]) -> Result<()> {
        // `Records::get` refuses a record that ends before it starts or after the section.
        assert!(starts.is_sorted(), "record starts of an index file descend");
        assert!(
            starts.last().is_none_or(|last| *last <= bytes.len() as u64),
            "a record starts after its section"
        );
        self.push_section(bytes)?;
        self.push_array(starts)
    }

    /// Appends a packed array.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn push_array(&mut self, values: &[u64]) -> Result<()> {
        let start = self.written + self.buf.len();
        let width = bit_width(values.iter().copied().max().unwrap_or(0));
        self.contents.arrays.push(PackedArray { start, count: values.len() as u64, width });
        // In pieces that end at whole bytes, to avoid a second copy of the array.
        let mut bytes = Vec::new();
        for piece in values.chunks(1 << 16) {
            bytes.clear();
            pack(piece.iter().copied(), width, &mut bytes);
            self.push(&bytes)?;
        }
        self.push(&[0; PACKED_PAD_BYTES])
    }

    /// Writes footer and tail and makes the file durable; returns its length.
    ///
    /// # Errors
    /// As [`FileWriter::push_section`].
    pub(crate) fn finish(mut self) -> Result<u64> {
        let end = self.written + self.buf.len();
        let mut footer = Vec::new();
        encode_varint(end as u64, &mut footer);
        let contents = &self.contents;
        for &count in &contents.counts {
            encode_varint(count, &mut footer);
        }
        contents
            .sections
            .iter()
            .for_each(|section| encode_varint(section.start as u64, &mut footer));
        contents.sections.iter().for_each(|section| encode_varint(section.len as u64, &mut footer));
        for array in &contents.arrays {
            encode_varint(array.start as u64, &mut footer);
            encode_varint(u64::from(array.width), &mut footer);
            encode_varint(array.count, &mut footer);
        }
        self.checksums.extend(self.buf.chunks(BLOCK_BYTES).map(crc32));
        self.checksums.iter().for_each(|sum| footer.extend_from_slice(&sum.to_le_bytes()));
        // Pairs with `open`: a footer that it would read differently must not become durable.
        let parsed = parse(&footer, end, contents.size());
        let (parsed, checksums) = parsed.expect("a footer that was just encoded is decodable");
        assert!(parsed == *contents, "index footer: decoded offsets differ from the written ones");
        assert!(checksums == self.checksums, "index footer: decoded checksums differ");
        let footer_bytes = u32::try_from(footer.len())
            .map_err(|_| Error::too_large("an index segment exceeds 64 TiB"))?;
        let mut tail = footer_bytes.to_le_bytes().to_vec();
        tail.extend_from_slice(&crc32(&footer).to_le_bytes());
        let tail_sum = crc32(&tail);
        tail.extend_from_slice(&tail_sum.to_le_bytes());
        self.buf.extend_from_slice(&footer);
        self.buf.extend_from_slice(&tail);
        self.file.write_at(self.written as u64, &self.buf)?;
        self.file.sync()?;
        Ok((self.written + self.buf.len()) as u64)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.buf.extend_from_slice(bytes);
        if self.buf.len() < WRITE_BYTES {
            return Ok(());
        }
        let whole = self.buf.len() / BLOCK_BYTES * BLOCK_BYTES;
        self.checksums.extend(self.buf[..whole].chunks(BLOCK_BYTES).map(crc32));
        self.file.write_at(self.written as u64, &self.buf[..whole])?;
        self.written += whole;
        self.buf.drain(..whole);
        Ok(())
    }
}

/// Numbers of entries in a table of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentsSize {
    pub(crate) counts: usize,
    pub(crate) sections: usize,
    pub(crate) arrays: usize,
}

/// The entries of a segment file. The counts are: series, groups, parts without members, names,
/// pairs; base and shift of the ids of lone series and of parts. `docs/formats/index.md` lists the
/// sections and arrays.
pub(crate) const SEGMENT_CONTENTS: ContentsSize =
    ContentsSize { counts: 9, sections: 13, arrays: 29 };

/// Reads header, tail and footer.
///
/// # Errors
/// `Corrupt` if one is damaged or inconsistent with the file; `Invalid` for another version.
pub(crate) fn open(bytes: Mapped, file: &str, size: ContentsSize) -> Result<(Blocks, Contents)> {
    FORMAT.check(file, &bytes)?;
    let tail_at = bytes.len().saturating_sub(TAIL_BYTES).max(HEADER_BYTES);
    let bad = |at: usize, what: &str| Error::corrupt(file, at as u64, what);
    let Some(&[l0, l1, l2, l3, f0, f1, f2, f3, t0, t1, t2, t3]) = bytes.get(tail_at..) else {
        return Err(bad(tail_at, "the index file has no tail"));
    };
    if crc32(&[l0, l1, l2, l3, f0, f1, f2, f3]) != u32::from_le_bytes([t0, t1, t2, t3]) {
        return Err(bad(tail_at, "the tail's checksum is wrong"));
    }
    let footer_bytes = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let footer_at = tail_at.checked_sub(footer_bytes).filter(|&at| at >= HEADER_BYTES);
    let footer_at =
        footer_at.ok_or_else(|| bad(tail_at, "the footer is longer than the index file"))?;
    let footer = bytes.get(footer_at..tail_at).unwrap_or_default();
    if crc32(footer) != u32::from_le_bytes([f0, f1, f2, f3]) {
        return Err(bad(footer_at, "the footer's checksum is wrong"));
    }
    let parsed = parse(footer, footer_at, size);
    let (contents, checksums) = parsed.ok_or_else(|| bad(footer_at, "the footer is malformed"))?;
    Ok((Blocks::new(bytes, file, checksums, footer_at), contents))
}

fn parse(mut footer: &[u8], footer_at: usize, size: ContentsSize) -> Option<(Contents, Vec<u32>)> {
    let input = &mut footer;
    let mut next = || decode_varint(input);
    if next()? != footer_at as u64 {
        return None;
    }
    let mut take = |count: usize| (0..count).map(|_| next()).collect::<Option<Vec<u64>>>();
    let counts = take(size.counts)?;
    let (starts, lens) = (take(size.sections)?, take(size.sections)?);
    let arrays = take(size.arrays.saturating_mul(3))?;
    let fits =
        |start: u64, len: u64| start.checked_add(len).is_some_and(|end| end <= footer_at as u64);
    let sections = starts.iter().zip(&lens).map(|(&start, &len)| {
        let fitting = fits(start, len).then_some((start, len));
        fitting.and_then(|(start, len)| {
            Some(Section { start: usize::try_from(start).ok()?, len: usize::try_from(len).ok()? })
        })
    });
    let arrays = arrays.chunks_exact(3).map(|array| {
        let &[start, width, count] = array else { return None };
        let width = u32::try_from(width).ok().filter(|width| *width <= 64)?;
        let len =
            packed_bytes(usize::try_from(count).ok()?, width).checked_add(PACKED_PAD_BYTES)?;
        let start = fits(start, len as u64).then_some(usize::try_from(start).ok()?)?;
        Some(PackedArray { start, count, width })
    });
    let (sections, arrays) = (sections.collect::<Option<_>>()?, arrays.collect::<Option<_>>()?);
    let (checksums, []) = footer.as_chunks::<4>() else { return None };
    if checksums.len() != footer_at.div_ceil(BLOCK_BYTES) {
        return None;
    }
    let checksums = checksums.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
    Some((Contents { counts, sections, arrays }, checksums))
}
