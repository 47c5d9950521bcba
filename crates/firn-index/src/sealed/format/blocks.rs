//! The bytes of a segment file. The checksum of a block is verified before its first use.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::bits::{low_bits, packed_bytes};
use firn_codec::frame::crc32;
use firn_env::Mapped;
use firn_model::{Error, Result};

/// The bytes of one checksum. Verification takes a few microseconds at the first use.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
/// Zeros after each packed array, so that a number is read through one window.
pub(crate) const PACKED_PAD_BYTES: usize = 16;

/// A file in blocks, with a bitmap of verified blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    bytes: Mapped,
    file: String,
    checksums: Vec<u32>,
    /// One bit per block.
    sound: Vec<AtomicU64>,
    /// The end of the bytes that blocks cover.
    end: usize,
}

/// A range of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// An array of numbers of one width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackedArray {
    pub(crate) start: usize,
    pub(crate) count: u64,
    /// Bits, at most 64.
    pub(crate) width: u32,
}

/// The sections that every reader needs: each is in the file twice.
#[derive(Debug)]
pub(crate) struct DoubledSections<'a> {
    blocks: &'a Blocks,
    /// The copies of all of them.
    again: Section,
    /// The offset of the next copy.
    at: usize,
}

/// Records found by number; several may share one start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub(crate) bytes: Section,
    /// The start of each bunch of records.
    pub(crate) starts: PackedArray,
}

impl<'a> DoubledSections<'a> {
    pub(crate) fn new(blocks: &'a Blocks, again: Section) -> DoubledSections<'a> {
        DoubledSections { blocks, again, at: 0 }
    }

    /// The bytes of the next one, which is `section`.
    ///
    /// # Errors
    /// `Corrupt` if both copies are damaged.
    pub(crate) fn next(&mut self, section: Section) -> Result<&'a [u8]> {
        let at = self.at;
        self.at = self.at.saturating_add(section.len);
        let again = |error| self.blocks.part(self.again, at, section.len).map_err(|_| error);
        self.blocks.section(section).or_else(again)
    }
}

impl PackedArray {
    /// Its bytes in the file.
    pub(crate) fn bytes(&self) -> u64 {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        packed_bytes(count, self.width).saturating_add(PACKED_PAD_BYTES) as u64
    }
}

impl Records {
    /// The bytes of bunch `idx`.
    ///
    /// # Errors
    /// `Corrupt` if the bunch does not exist or its block is damaged.
    #[inline]
    pub(crate) fn get<'a>(&self, blocks: &'a Blocks, idx: u64) -> Result<&'a [u8]> {
        let start = blocks.get_usize(&self.starts, idx)?;
        let end = match idx.saturating_add(1) < self.starts.count {
            true => blocks.get_usize(&self.starts, idx.saturating_add(1))?,
            false => self.bytes.len,
        };
        blocks.part(self.bytes, start, end.checked_sub(start).ok_or_else(|| self.bad(blocks))?)
    }

    /// As [`Records::get`] for a damaged file. `read` decodes bunch `idx` from its start or, if the
    /// start cannot be read, from `next`, the end of the previous bunch. `None` if the bunch itself
    /// is damaged.
    pub(crate) fn salvage<'a, T>(
        &self,
        blocks: &'a Blocks,
        idx: u64,
        next: &mut Option<usize>,
        read: impl FnOnce(&mut &'a [u8]) -> Option<T>,
    ) -> Option<T> {
        let behind = next.take();
        let start = blocks.get_usize(&self.starts, idx).ok().or(behind)?;
        let end = self.bytes.start.checked_add(self.bytes.len)?;
        let unverified = blocks.bytes.get(self.bytes.start..end)?;
        let unverified = unverified.get(start..)?;
        let mut rest = unverified;
        let found = read(&mut rest)?;
        let len = unverified.len().checked_sub(rest.len())?;
        blocks.part(self.bytes, start, len).ok()?;
        *next = start.checked_add(len);
        Some(found)
    }

    #[cold]
    pub(crate) fn bad(&self, blocks: &Blocks) -> Error {
        blocks.corrupt(self.bytes.start, "an index record is malformed: run `firn check --repair`")
    }
}

impl Blocks {
    /// `checksums` are those of the blocks of `bytes[..end]`.
    pub(crate) fn new(bytes: Mapped, file: &str, checksums: Vec<u32>, end: usize) -> Blocks {
        let sound = (0..checksums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Blocks { bytes, file: file.to_owned(), checksums, sound, end }
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.checksums.capacity() * 4 + self.sound.capacity() * 8 + self.file.capacity()
    }

    /// `len` verified bytes at offset `at`.
    ///
    /// # Errors
    /// `Corrupt` if the range exceeds the file or one of its blocks is damaged.
    #[inline]
    pub(crate) fn slice(&self, at: usize, len: usize) -> Result<&[u8]> {
        let end = at.checked_add(len).filter(|&end| end <= self.end);
        let Some(end) = end else { return Err(self.past_end(at, len)) };
        if len > 0 {
            self.verify(at / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES))?;
        }
        self.bytes.get(at..end).ok_or_else(|| self.past_end(at, len))
    }

    /// The damaged blocks, each with its range and error.
    pub(crate) fn check(&self) -> Vec<(Range<usize>, Error)> {
        let bytes = |block: usize| {
            let start = block.saturating_mul(BLOCK_BYTES);
            start..start.saturating_add(BLOCK_BYTES).min(self.end)
        };
        let blocks = 0..self.checksums.len();
        let damaged = |block: usize| {
            self.verify(block..block.saturating_add(1)).err().map(|error| (bytes(block), error))
        };
        blocks.filter_map(damaged).collect()
    }

    /// All bytes, with damaged blocks replaced where the bytes of `copy` match the checksum.
    pub(crate) fn mended(&self, copy: &dyn Fn(u64, u64) -> Option<Arc<[u8]>>) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        for (range, _) in self.check() {
            let there = copy(range.start as u64, range.len() as u64);
            let expected = self.checksums.get(range.start / BLOCK_BYTES);
            if let Some(there) = there.filter(|there| there.len() == range.len())
                && expected == Some(&crc32(&there))
                && let Some(damaged) = bytes.get_mut(range)
            {
                damaged.copy_from_slice(&there);
            }
        }
        bytes
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn file_contents(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes of a section.
    ///
    /// # Errors
    /// As [`Blocks::slice`].
    pub(crate) fn section(&self, section: Section) -> Result<&[u8]> {
        self.part(section, 0, section.len)
    }

    /// `len` bytes of a section at offset `from`.
    ///
    /// # Errors
    /// As [`Blocks::slice`].
    #[inline]
    pub(crate) fn part(&self, section: Section, from: usize, len: usize) -> Result<&[u8]> {
        if from.checked_add(len).is_none_or(|end| end > section.len) {
            return Err(self.past_end(section.start.saturating_add(from), len));
        }
        self.slice(section.start.saturating_add(from), len)
    }

    /// Number `idx` of an array.
    ///
    /// # Errors
    /// `Corrupt` if the index is out of range or the block is damaged.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "hot; the array is inside the file, and idx is inside the array"
    )]
    pub(crate) fn get(&self, array: &PackedArray, idx: u64) -> Result<u64> {
        if idx >= array.count {
            return Err(self.corrupt(
                array.start,
                format!(
                    "an index array of {} numbers has no number {idx}: run `firn check --repair`",
                    array.count
                ),
            ));
        }
        let bit_idx = idx as usize * array.width as usize;
        let (at, shift) = (array.start + bit_idx / 8, bit_idx % 8);
        let window = self.slice(at, PACKED_PAD_BYTES)?;
        if array.width <= 56
            && let Some(window) = window.first_chunk::<8>()
        {
            return Ok((u64::from_le_bytes(*window) >> shift) & low_bits(array.width));
        }
        let window = window.first_chunk::<16>().map_or(0, |window| u128::from_le_bytes(*window));
        Ok((window >> shift) as u64 & low_bits(array.width))
    }

    /// As [`Blocks::get`], for an offset.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "usize has 64 bits; the caller checks the offset"
    )]
    pub(crate) fn get_usize(&self, array: &PackedArray, idx: u64) -> Result<usize> {
        Ok(self.get(array, idx)? as usize)
    }

    pub(crate) fn corrupt(&self, at: usize, what: impl Into<String>) -> Error {
        Error::corrupt(&self.file, at as u64, what)
    }

    /// Adds file and offset to `error`, which decoding the bytes at `at` returned.
    pub(crate) fn corrupt_by(&self, at: usize, error: &Error) -> Error {
        self.corrupt(at, error.what().to_owned())
    }

    #[cold]
    fn past_end(&self, at: usize, len: usize) -> Error {
        self.corrupt(at, format!("{len} bytes exceed the segment: run `firn check --repair`"))
    }

    #[inline]
    fn verify(&self, blocks: Range<usize>) -> Result<()> {
        for block in blocks {
            let word = self.sound.get(block / 64).map_or(0, |word| word.load(Ordering::Relaxed));
            if word & (1 << (block % 64)) == 0 {
                self.verify_block(block)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn verify_block(&self, block: usize) -> Result<()> {
        let start = block.saturating_mul(BLOCK_BYTES);
        let end = start.saturating_add(BLOCK_BYTES).min(self.end);
        let bytes = self.bytes.get(start..end).unwrap_or_default();
        let expected = self.checksums.get(block).copied();
        let found = crc32(bytes);
        if expected != Some(found) {
            let expected = expected.unwrap_or_default();
            return Err(self.corrupt(
                start,
                format!(
                    "index block checksum {found:#010x}, expected {expected:#010x}: run \
                     `firn check --repair`"
                ),
            ));
        }
        if let Some(word) = self.sound.get(block / 64) {
            word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
        Ok(())
    }
}
