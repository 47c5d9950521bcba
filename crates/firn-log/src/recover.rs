//! Recovery: which segments a stream has on disk, and where it goes on. `replay.rs` reads them.

mod replay;

use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, LogPosition, Result};

use crate::block::ALIGN_BYTES;
use crate::read::SegmentReader;
use crate::segment::{self, HEADER_BYTES, Header, Previous, SegmentNo};
use crate::stream::{OldSegment, Resume};
use crate::{LogSetup, StreamId};

pub use replay::{PayloadRange, ReplayEntry, ReplayReport};

/// A tail is made durable in steps of this.
const REWRITE_BYTES: u64 = 1 << 20;

/// A stream as it is on disk.
#[derive(Debug)]
pub(crate) struct FoundStream {
    id: StreamId,
    /// Of streams and of shards.
    counts: (usize, usize),
    segments: Vec<FoundSegment>,
    next_number: SegmentNo,
    replayed: Option<Replayed>,
}

#[derive(Debug)]
struct FoundSegment {
    number: SegmentNo,
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    header: Option<Header>,
    /// Without a header: where the last byte that is not zero ends, none if it was never used.
    headless_bytes: Option<u64>,
}

#[derive(Debug)]
struct Replayed {
    floor: LogPosition,
    /// The last segment with a header and where it ends.
    last: Option<Previous>,
    /// What may be in the machine's memory only: the end of the last segment, and of those that a sync failed in.
    unsure: Vec<Previous>,
    /// Nothing may get a position below this again.
    base_min: LogPosition,
}

impl FoundStream {
    /// Lists the segments of a stream and reads their headers.
    ///
    /// # Errors
    /// `Invalid` if it was written by a newer version, or a file was renamed.
    pub(crate) fn open(disk: &dyn Disk, id: StreamId, setup: &LogSetup) -> Result<FoundStream> {
        let mut numbers: Vec<SegmentNo> = disk
            .list(&segment::folder(id.0))?
            .iter()
            .filter_map(|name| segment::parse_name(name))
            .collect();
        numbers.sort_unstable();
        let next_number = SegmentNo(numbers.last().map_or(1, |last| last.0 + 1));
        let mut segments = Vec::with_capacity(numbers.len());
        for number in numbers {
            let path = segment::path(id.0, number);
            let file = disk.open(&path, OpenMode::Write)?;
            let file_bytes = file.len()?;
            let mut bytes = vec![0; HEADER_BYTES.min(file_bytes as usize)];
            file.read_at(0, &mut bytes)?;
            let header = Header::decode(&bytes).map_err(|error| error.context(&path))?;
            if let Some(header) = &header {
                check_name(header, id, number).map_err(|error| error.context(&path))?;
            }
            let headless_bytes = match &header {
                Some(_) => None,
                None if segment::is_blank(&bytes) => None,
                None => SegmentReader::headless(Arc::clone(&file))?.last_written(0)?,
            };
            segments.push(FoundSegment { number, file, file_bytes, header, headless_bytes });
        }
        let counts = (setup.stream_count, setup.shard_count);
        Ok(FoundStream { id, counts, segments, next_number, replayed: None })
    }

    /// Removes all files of a stream that there was before the number of streams was changed. All of it
    /// lies below `floor`.
    ///
    /// # Errors
    /// `Invalid` if it does not.
    pub(crate) fn discard(&self, disk: &dyn Disk, floor: LogPosition) -> Result<()> {
        for segment in &self.segments {
            if let Some(header) = &segment.header {
                self.is_of_other_layout(header, floor)?;
            }
            match disk.remove(&segment::path(self.id.0, segment.number)) {
                Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a segment was written with another number of streams: then nothing of it is needed.
    ///
    /// # Errors
    /// `Invalid` if something is.
    fn is_of_other_layout(&self, header: &Header, floor: LogPosition) -> Result<bool> {
        let found = (usize::from(header.stream_count), usize::from(header.shard_count));
        if found == self.counts {
            return Ok(false);
        }
        if header.base.0.saturating_add(header.bytes) > floor.0 || found.1 != self.counts.1 {
            let (streams, shards) = self.counts;
            return Err(Error::invalid(format!(
                "log segment {} of stream {} was written with {} streams and {} shards, not with \
                 {streams} and {shards}: open it with what it was made with",
                header.number.0, self.id.0, found.0, found.1
            )));
        }
        Ok(true)
    }

    /// Bytes from `floor` on, as far as that is known before they are read: the newest segment counts as full, and files
    /// that wait to be used again lie below.
    pub(crate) fn bytes_from(&self, floor: LogPosition) -> u64 {
        let headers = self.segments.iter().filter_map(|found| found.header.as_ref());
        let own = headers.filter(|header| usize::from(header.stream_count) == self.counts.0);
        own.map(|header| {
            header.base.0.saturating_add(header.bytes).saturating_sub(header.base.max(floor).0)
        })
        .sum()
    }

    /// Makes what was read durable and says where to go on.
    ///
    /// # Errors
    /// `Internal` if the stream was not replayed; `Unavailable` when the disk fails.
    pub(crate) fn resume(&mut self) -> Result<Resume> {
        let replayed = self.replayed.as_ref().ok_or_else(|| {
            Error::internal(format!("log stream {} was not replayed before the start", self.id.0))
        })?;
        replayed.unsure.iter().try_for_each(|&end| self.secure(end))?;
        let next_number = self.next_number;
        // A second try after a failed one must not meet the first one's file.
        self.next_number.0 += 1;
        let old_of = |segment: &FoundSegment| {
            // Nobody needs what was never used: its file is taken for the next segment.
            let end = if segment.is_blank() { LogPosition(0) } else { replayed.base_min };
            OldSegment { number: segment.number, end, bytes: segment.file_bytes }
        };
        let mut old: Vec<OldSegment> = self.segments.iter().map(old_of).collect();
        // A segment ends where the next one begins, if that is known.
        let bases = self.segments.iter().rev().filter_map(|segment| segment.header.as_ref());
        let mut next_base = replayed.base_min;
        for header in bases {
            for old in old.iter_mut().filter(|old| old.number == header.number) {
                old.end = next_base;
            }
            next_base = header.base;
        }
        Ok(Resume {
            base: replayed.base_min,
            floor: replayed.floor,
            next_number,
            previous: replayed.last,
            old,
        })
    }

    /// Closes the files: the stream goes on without them, and a file that is open keeps its room on
    /// disk after it was removed.
    pub(crate) fn close(&mut self) {
        self.segments.clear();
    }

    /// Makes durable what was given to the caller, who builds on it from here on. A killed
    /// process may have left it in the machine's page cache, and after a failed sync the kernel
    /// calls such pages clean, so that syncing them again does nothing. Therefore everything
    /// behind what is known to be durable is written once more, with the bytes that are there: if that is torn,
    /// nothing changes.
    fn secure(&self, unsure: Previous) -> Result<()> {
        let found = self.segments.iter().find(|found| found.number == unsure.number);
        let Some((segment, header)) = found.and_then(|found| Some((found, found.header.as_ref()?)))
        else {
            return Ok(());
        };
        let durable = unsure.durable.0.saturating_sub(header.base.0);
        let end = unsure.end.0.saturating_sub(header.base.0).min(segment.file_bytes);
        let mut offset = if durable < HEADER_BYTES as u64 { 0 } else { durable };
        let mut bytes = Vec::new();
        while offset < end {
            bytes.resize((end - offset).min(REWRITE_BYTES) as usize, 0);
            segment.file.read_at(offset, &mut bytes)?;
            segment.file.write_at(offset, &bytes)?;
            offset += bytes.len() as u64;
        }
        segment.file.sync()
    }

    /// The first position that nothing had before, not even something that was damaged or torn.
    fn base_min(&self, end: LogPosition, floor: LogPosition) -> LogPosition {
        let headers = self.segments.iter().filter_map(|segment| segment.header.as_ref());
        let bases = headers.map(|header| header.base.0 + ALIGN_BYTES as u64).max().unwrap_or(0);
        // A header that cannot be read hides a base; its segment lay behind the others.
        let hidden = self.segments.iter().filter(|segment| segment.headless_bytes.is_some());
        let hidden_bytes: u64 = hidden.map(|segment| segment.file_bytes).sum();
        let base = end.0.max(floor.0).max(bases) + hidden_bytes;
        LogPosition(base.next_multiple_of(ALIGN_BYTES as u64))
    }
}

impl FoundSegment {
    /// Made ahead and never used.
    fn is_blank(&self) -> bool {
        self.header.is_none() && self.headless_bytes.is_none()
    }
}

fn check_name(header: &Header, id: StreamId, number: SegmentNo) -> Result<()> {
    if header.stream != id.0 || header.number != number {
        return Err(Error::invalid(format!(
            "this is segment {} of stream {}: the file was moved or renamed, move it back",
            header.number.0, header.stream
        )));
    }
    Ok(())
}
