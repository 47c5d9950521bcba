//! Reading a segment back: block after block, and past a damaged one to the next.

use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{LogPosition, Result};

use crate::block::{self, Block, Place};
use crate::queue::END_BYTES;
use crate::segment::{HEADER_BYTES, Header};

/// Read at a time. Replay needs this much memory for a stream, or one block if that is larger.
const WINDOW_BYTES: usize = 1 << 20;

/// One segment file with a readable header, through a window that slides over it.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    file: Arc<dyn DiskFile>,
    bytes: u64,
    nonce: u32,
    base: LogPosition,
    window: Vec<u8>,
    window_offset: u64,
}

/// A valid block and where it ends in the file.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) block: Block<'a>,
    pub(crate) end_offset: u64,
}

impl SegmentReader {
    /// Reads `file`, whose header said `header`; `window` is reused room.
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

    /// Reads a file without a readable header: no block in it can be found, its bytes can.
    pub(crate) fn headless(file: Arc<dyn DiskFile>) -> Result<SegmentReader> {
        let bytes = file.len()?;
        let (nonce, base) = (0, LogPosition(0));
        Ok(SegmentReader { file, bytes, nonce, base, window: Vec::new(), window_offset: 0 })
    }

    /// Offset of the first block.
    pub(crate) fn start(&self) -> u64 {
        HEADER_BYTES as u64
    }

    /// Length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Gives the room for the next reader back.
    pub(crate) fn into_window(self) -> Vec<u8> {
        self.window
    }

    /// The block at `offset`; `None` if the bytes there are no valid block.
    pub(crate) fn block_at(&mut self, offset: u64) -> Result<Option<Found<'_>>> {
        let nonce = self.nonce;
        let place = Place { nonce, position: LogPosition(self.base.0 + offset) };
        let header = self.bytes_at(offset, block::HEADER_BYTES)?;
        let len = header.first_chunk().and_then(|header| block::len_of(header, nonce));
        let Some(len) = len.filter(|&len| offset + len as u64 <= self.bytes) else {
            return Ok(None);
        };
        let found = block::check(self.bytes_at(offset, len)?, place);
        Ok(found.map(|block| Found { block, end_offset: offset + len as u64 }))
    }

    /// The offset of the first valid block at or behind `offset`, which is aligned.
    pub(crate) fn find_block(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let tag = self.nonce.to_le_bytes();
        while offset + block::HEADER_BYTES as u64 <= self.bytes {
            let window = self.bytes_from(offset)?;
            let words = window.chunks_exact(block::ALIGN_BYTES);
            let step = words.len();
            if is_zeros(window) {
                offset += (step * block::ALIGN_BYTES) as u64;
                continue;
            }
            match words.into_iter().position(|word| word.starts_with(&tag)) {
                None => offset += (step * block::ALIGN_BYTES) as u64,
                Some(idx) => {
                    offset += (idx * block::ALIGN_BYTES) as u64;
                    if self.block_at(offset)?.is_some() {
                        return Ok(Some(offset));
                    }
                    offset += block::ALIGN_BYTES as u64;
                }
            }
        }
        Ok(None)
    }

    /// The highest durable mark in valid blocks at or behind `offset`: below it, everything was on
    /// disk once.
    pub(crate) fn durable_mark_behind(&mut self, mut offset: u64) -> Result<LogPosition> {
        let mut mark = LogPosition(0);
        while let Some(at) = self.find_block(offset)? {
            let Some(found) = self.block_at(at)? else { break };
            mark = mark.max(found.block.durable);
            offset = found.end_offset;
        }
        Ok(mark)
    }

    /// The offset behind the last byte at or behind `offset` that is not zero; `None` if there is
    /// none.
    pub(crate) fn last_written(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let mut last = None;
        while offset < self.bytes {
            let window = self.bytes_from(offset)?;
            if !is_zeros(window) {
                let idx = window.iter().rposition(|&byte| byte != 0);
                last = idx.map(|idx| offset + idx as u64 + 1);
            }
            offset += window.len() as u64;
        }
        Ok(last)
    }

    /// As [`SegmentReader::last_written`] in a file that was used before: there zeros at `offset` say
    /// that nothing follows, and else all up to the last header of a block of this segment may be a
    /// write that was torn.
    pub(crate) fn last_tagged(&mut self, mut offset: u64) -> Result<Option<u64>> {
        let tag = self.nonce.to_le_bytes();
        let end = self.bytes_at(offset, END_BYTES)?;
        if end.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let mut last = Some(offset + end.len() as u64);
        while offset + block::HEADER_BYTES as u64 <= self.bytes {
            let words = self.bytes_from(offset)?.chunks_exact(block::ALIGN_BYTES);
            let step = words.len();
            if let Some(idx) = words.into_iter().rposition(|word| word.starts_with(&tag)) {
                last = Some(offset + (idx * block::ALIGN_BYTES + block::HEADER_BYTES) as u64);
            }
            offset += (step * block::ALIGN_BYTES) as u64;
        }
        Ok(last)
    }

    /// The window from `offset` on, at least a block's header unless the file ends, and a multiple
    /// of the blocks' alignment.
    fn bytes_from(&mut self, offset: u64) -> Result<&[u8]> {
        let rest = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let have = self.window_end().saturating_sub(offset);
        let want = if offset >= self.window_offset && have >= block::HEADER_BYTES as u64 {
            have as usize
        } else {
            WINDOW_BYTES
        };
        self.bytes_at(offset, want.min(rest))
    }

    /// `len` bytes at `offset`; fewer where the file ends.
    fn bytes_at(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        if offset >= self.bytes {
            return Ok(&[]);
        }
        let end = (offset + len as u64).min(self.bytes);
        if offset < self.window_offset || end > self.window_end() {
            let want = (len.max(WINDOW_BYTES) as u64).min(self.bytes - offset);
            self.window.clear();
            self.window.resize(want as usize, 0);
            self.window_offset = offset;
            self.file.read_at(offset, &mut self.window)?;
        }
        let start = (offset - self.window_offset) as usize;
        Ok(&self.window[start..(end - self.window_offset) as usize])
    }

    fn window_end(&self) -> u64 {
        self.window_offset + self.window.len() as u64
    }
}

/// The rest of a segment is nearly always zeros, which this form sees sixteen and more bytes at a time.
fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, &byte| all | byte) == 0
}
