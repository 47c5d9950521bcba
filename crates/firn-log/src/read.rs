//! Reads a segment block by block, and skips damage to the next valid block.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{LogPosition, Result};

use crate::block::{self, Block, BlockAddress};
use crate::options::SEGMENT_BYTES_MAX;
use crate::queue::END_BYTES;
use crate::segment::{HEADER_BYTES, Header};

/// Bytes per read. Replay of a stream needs this much memory, or one block if that is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// Reads one segment file through a sliding window.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    file: Arc<dyn DiskFile>,
    bytes: u64,
    nonce: u32,
    base: LogPosition,
    window: Vec<u8>,
    window_offset: u64,
}

/// A valid block and the offset of its end in the file.
#[derive(Debug)]
pub(crate) struct LocatedBlock<'a> {
    pub(crate) block: Block<'a>,
    pub(crate) end_offset: u64,
}

impl SegmentReader {
    /// Reads the blocks of `file`, which has the header `header`. Reuses the memory of `window`.
    pub(crate) fn new(
        file: Arc<dyn DiskFile>,
        header: &Header,
        window: Vec<u8>,
    ) -> Result<SegmentReader> {
        let bytes = file.len()?.min(header.bytes);
        let (nonce, base) = (header.nonce, header.base);
        let mut window = window;
        window.clear();
        Ok(SegmentReader { file, bytes, nonce, base, window, window_offset: 0 })
    }

    /// Reads a file without a readable header, as far as a segment can be long. It yields bytes,
    /// but no block can be recognised.
    pub(crate) fn headless(file: Arc<dyn DiskFile>) -> Result<SegmentReader> {
        let bytes = file.len()?.min(SEGMENT_BYTES_MAX);
        let (nonce, base) = (0, LogPosition(0));
        Ok(SegmentReader { file, bytes, nonce, base, window: Vec::new(), window_offset: 0 })
    }

    /// Offset of the first block.
    pub(crate) fn start(&self) -> u64 {
        HEADER_BYTES as u64
    }

    /// Reads no byte at or above `bytes`: those that a follower may read grow.
    pub(crate) fn limit(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// The header that the file has now; `None` if none is readable.
    pub(crate) fn header(&self) -> Result<Option<Header>> {
        let mut head = vec![0; HEADER_BYTES];
        self.file.read_at(0, &mut head)?;
        Header::decode(&head)
    }

    /// Releases the memory of the window.
    pub(crate) fn rest(&mut self) {
        self.window = Vec::new();
        self.window_offset = 0;
    }

    /// Returns the memory of the window for the next reader.
    pub(crate) fn into_window(self) -> Vec<u8> {
        self.window
    }

    /// The block at `offset`; `None` if there is no valid block.
    pub(crate) fn block_at(&mut self, offset: u64) -> Result<Option<LocatedBlock<'_>>> {
        let nonce = self.nonce;
        let position = LogPosition(self.base.0.saturating_add(offset));
        let address = BlockAddress { nonce, position };
        let header = self.bytes_at(offset, block::HEADER_BYTES)?;
        let len = header.first_chunk().and_then(|header| block::len_of(header, nonce));
        let Some((len, end_offset)) = len.and_then(|len| {
            let end_offset = offset.checked_add(len as u64)?;
            (end_offset <= self.bytes).then_some((len, end_offset))
        }) else {
            return Ok(None);
        };
        let block = block::check(self.bytes_at(offset, len)?, address);
        Ok(block.map(|block| LocatedBlock { block, end_offset }))
    }

    /// The offset of the first valid block at or after `offset`, which is aligned.
    pub(crate) fn find_block(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let tag = self.nonce.to_le_bytes();
        while self.has_header_at(offset) {
            let window = self.bytes_from(offset)?;
            let words = window.chunks_exact(block::ALIGN_BYTES);
            let window_end = after_words(offset, words.len());
            if is_zeros(window) {
                offset = window_end;
                continue;
            }
            match words.into_iter().position(|word| word.starts_with(&tag)) {
                None => offset = window_end,
                Some(idx) => {
                    offset = after_words(offset, idx);
                    if self.block_at(offset)?.is_some() {
                        return Ok(Some(offset));
                    }
                    offset = after_words(offset, 1);
                }
            }
        }
        Ok(None)
    }

    /// The highest durable mark of the valid blocks at or after `offset`. All bytes below it were
    /// on disk once.
    pub(crate) fn durable_mark_behind(&mut self, mut offset: u64) -> Result<LogPosition> {
        let mut mark = LogPosition(0);
        while let Some(at) = self.find_block(offset)? {
            let Some(found) = self.block_at(at)? else { break };
            mark = mark.max(found.block.durable);
            offset = found.end_offset;
        }
        Ok(mark)
    }

    /// The end of the last non-zero byte at or after `offset`; `None` if all bytes are zero.
    pub(crate) fn last_written(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let mut last = None;
        while offset < self.bytes {
            let window = self.bytes_from(offset)?;
            if !is_zeros(window) {
                let idx = window.iter().rposition(|&byte| byte != 0);
                last = idx.map(|idx| offset.saturating_add(idx as u64).saturating_add(1));
            }
            offset = offset.saturating_add(window.len() as u64);
        }
        Ok(last)
    }

    /// As [`SegmentReader::last_written`], for a recycled file. There, zeros at `offset` mark the
    /// end of the segment. Otherwise everything up to the last block header with this segment's tag
    /// may be a torn write.
    pub(crate) fn last_tagged(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let tag = self.nonce.to_le_bytes();
        let end = self.bytes_at(offset, END_BYTES)?;
        if end.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let mut last = Some(offset.saturating_add(end.len() as u64));
        while self.has_header_at(offset) {
            let words = self.bytes_from(offset)?.chunks_exact(block::ALIGN_BYTES);
            let window_end = after_words(offset, words.len());
            if let Some(idx) = words.into_iter().rposition(|word| word.starts_with(&tag)) {
                let block_offset = after_words(offset, idx);
                last = Some(block_offset.saturating_add(block::HEADER_BYTES as u64));
            }
            offset = window_end;
        }
        Ok(last)
    }

    /// Whether the file has room for a block header at `offset`.
    fn has_header_at(&self, offset: u64) -> bool {
        offset.saturating_add(block::HEADER_BYTES as u64) <= self.bytes
    }

    /// The window from `offset` on: a multiple of the blocks' alignment, and at least one block
    /// header unless the file ends.
    fn bytes_from(&mut self, offset: u64) -> Result<&[u8]> {
        let rest = clamp_len(self.bytes.saturating_sub(offset));
        let buffered = clamp_len(self.window_end().saturating_sub(offset));
        let want = if offset >= self.window_offset && buffered >= block::HEADER_BYTES {
            buffered
        } else {
            WINDOW_BYTES
        };
        self.bytes_at(offset, want.min(rest))
    }

    /// `len` bytes at `offset`; fewer at the end of the file.
    fn bytes_at(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if offset >= self.bytes {
            return Ok(&[]);
        }
        let end = offset.saturating_add(len as u64).min(self.bytes);
        if offset < self.window_offset || end > self.window_end() {
            let want = len.max(WINDOW_BYTES).min(clamp_len(self.bytes.saturating_sub(offset)));
            self.window.clear();
            self.window.resize(want, 0);
            self.window_offset = offset;
            self.file.read_at(offset, &mut self.window)?;
        }
        let start = clamp_len(offset.saturating_sub(self.window_offset));
        let end = clamp_len(end.saturating_sub(self.window_offset));
        Ok(self.window.get(start..end).unwrap_or_default())
    }

    fn window_end(&self) -> u64 {
        self.window_offset.saturating_add(self.window.len() as u64)
    }
}

/// The rest of a segment is nearly always zeros. This form is vectorised: 16 or more bytes at a
/// time.
fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, &byte| all | byte) == 0
}

/// The offset that follows `word_count` aligned words from `offset` on.
fn after_words(offset: u64, word_count: usize) -> u64 {
    offset.saturating_add(word_count.saturating_mul(block::ALIGN_BYTES) as u64)
}

/// `bytes` as a length in memory.
fn clamp_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use firn_sim::ZeroFile;

    use super::*;

    /// Before, a start read all of it.
    #[test]
    fn a_file_without_a_header_is_read_as_far_as_a_segment_can_be_long() {
        let reader = SegmentReader::headless(Arc::new(ZeroFile(1 << 40))).unwrap();
        assert_eq!(reader.bytes, SEGMENT_BYTES_MAX);
    }
}
