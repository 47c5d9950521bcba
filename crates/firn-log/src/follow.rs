//! Following: reads the committed entries of a stream by position while the stream is written.
//!
//! A follower reads files, so it neither delays nor slows a commit, and it may be hours behind.
//! Only committed bytes are read, which no later write changes. A payload may be encoded against
//! earlier ones of its segment: whenever a follower opens a segment, it yields all of its entries,
//! and marks those that it has yielded before.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{CommitSeq, Error, ErrorKind, LogPosition, Result, ShardId};

use crate::append::StreamId;
use crate::block::ALIGN_BYTES;
use crate::entry::EntryKind;
use crate::read::SegmentReader;
use crate::segment::{self, HEADER_BYTES, Header, SegmentNo};
use crate::stream::{FollowedSegment, Stream};

/// A reader of one stream.
#[derive(Debug)]
pub struct Follower {
    stream: StreamId,
    position: LogPosition,
    /// Nothing after it is read.
    limit: LogPosition,
    open: Option<OpenSegment>,
}

/// A segment that is being read.
#[derive(Debug)]
struct OpenSegment {
    number: SegmentNo,
    base: LogPosition,
    reader: SegmentReader,
    /// The next block.
    offset: u64,
    /// End of the last entry that was yielded since the segment was opened.
    yielded: LogPosition,
    /// The next entry is the first one, or follows a hole.
    restarts: bool,
}

/// An entry of [`crate::Log::follow`].
#[derive(Clone, Copy, Debug)]
pub struct FollowedEntry<'a> {
    /// The kind of the payload.
    pub kind: EntryKind,
    /// The shard of the entry.
    pub shard: ShardId,
    /// The commit of the entry.
    pub seq: CommitSeq,
    /// The payload, exactly as it was appended.
    pub payload: &'a [u8],
    /// The end of the entry.
    pub position: LogPosition,
    /// The first entry of a segment, or behind damage: no payload from here on can be decoded with
    /// the help of an earlier one.
    pub restarts: bool,
    /// At or below the position at which the follower began: yielded only because later payloads
    /// may be encoded against it.
    pub is_before: bool,
}

/// The outcome of [`crate::Log::follow`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowReport {
    /// Bytes of entries above the position.
    pub bytes: u64,
    /// Bytes of the log that were dropped before they were read.
    pub missing_bytes: u64,
    /// Bytes that are damaged.
    pub damaged_bytes: u64,
    /// Everything that is committed was read.
    pub is_at_end: bool,
}

/// The step after a part of a segment was read.
enum Next {
    /// `f` returned `false`.
    Stop,
    /// The committed bytes of the segment end here.
    End,
    /// The file is another segment now.
    Recycled,
}

impl Follower {
    /// A follower of `stream` that has read everything up to `position`.
    pub fn new(stream: StreamId, position: LogPosition) -> Follower {
        Follower { stream, position, limit: LogPosition(u64::MAX), open: None }
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The end of the last entry that was yielded, or of the part of the log that has none.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Reads nothing after `limit` from now on, which may be between two entries.
    pub fn set_limit(&mut self, limit: LogPosition) {
        self.limit = limit;
    }

    /// Continues behind `position`, which may be earlier. The segment is opened again.
    pub fn seek(&mut self, position: LogPosition) {
        self.position = position;
        self.open = None;
    }

    /// See [`crate::Log::follow`].
    pub(crate) fn run(
        &mut self,
        stream: &Stream,
        f: &mut dyn FnMut(FollowedEntry<'_>) -> Result<bool>,
    ) -> Result<FollowReport> {
        let mut report = FollowReport::default();
        loop {
            if self.position >= self.limit {
                return Ok(report);
            }
            let Some(found) = self.segment(stream, &mut report)? else {
                report.is_at_end = true;
                return Ok(report);
            };
            let read = self.read(&found, f, &mut report);
            match read.inspect_err(|_| self.open = None)? {
                Next::Stop => return Ok(report),
                Next::Recycled => self.open = None,
                Next::End if found.is_closed => {
                    // Not yet behind it: positions after it are used again if a crash comes first.
                    self.position = self.position.max(found.extent.end);
                    self.open = None;
                }
                Next::End => {
                    if let Some(open) = &mut self.open {
                        open.reader.rest();
                    }
                    report.is_at_end = true;
                    return Ok(report);
                }
            }
        }
    }

    /// The segment to read, opened; `None` if there is nothing to read.
    fn segment(
        &mut self,
        stream: &Stream,
        report: &mut FollowReport,
    ) -> Result<Option<FollowedSegment>> {
        loop {
            let current = stream.queue().tail();
            if let Some(open) = self.open.as_ref().filter(|open| open.number == current.number) {
                let behind = LogPosition(open.base.0.saturating_add(open.offset));
                let found = FollowedSegment { extent: current, is_closed: false, missing_bytes: 0 };
                return Ok((behind < current.end).then_some(found));
            }
            let found = stream.followed(self.position);
            let extent = found.extent;
            if self.open.as_ref().is_some_and(|open| open.number == extent.number) {
                return Ok(Some(found));
            }
            report.missing_bytes = report.missing_bytes.saturating_add(found.missing_bytes);
            self.position.0 = self.position.0.saturating_add(found.missing_bytes);
            if !extent.has_entries_after(self.position) {
                return Ok(None);
            }
            match OpenSegment::new(stream, &found) {
                Ok(Some(open)) => {
                    self.open = Some(open);
                    return Ok(Some(found));
                }
                // It was purged after it was found.
                Ok(None) => {}
                Err(error) if *error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn read(
        &mut self,
        found: &FollowedSegment,
        f: &mut dyn FnMut(FollowedEntry<'_>) -> Result<bool>,
        report: &mut FollowReport,
    ) -> Result<Next> {
        let Some(open) = &mut self.open else { return Ok(Next::Recycled) };
        let end = found.extent.end.0.saturating_sub(open.base.0);
        open.reader.limit(end);
        while open.offset < end {
            let Some(located) = open.reader.block_at(open.offset)? else {
                if !open.is_intact()? {
                    return Ok(Next::Recycled);
                }
                let behind = open.offset.saturating_add(ALIGN_BYTES as u64);
                let next = open.reader.find_block(behind)?.unwrap_or(end);
                let skipped = next.saturating_sub(open.offset);
                report.damaged_bytes = report.damaged_bytes.saturating_add(skipped);
                (open.offset, open.restarts) = (next, true);
                continue;
            };
            for entry in located.block.entries() {
                let Some((entry, entry_end)) = entry else {
                    let path = segment::path(self.stream.0, open.number);
                    let what = "unknown entry in a block with a matching checksum";
                    return Err(Error::corrupt(path, open.offset, what));
                };
                let end_offset = open.offset.saturating_add(entry_end as u64);
                let position = LogPosition(open.base.0.saturating_add(end_offset));
                if position <= open.yielded {
                    continue;
                }
                if position > self.limit {
                    // The range ends before it, whatever filled the end of the block.
                    self.position = self.position.max(self.limit);
                    return Ok(Next::Stop);
                }
                open.yielded = position;
                let is_before = position <= self.position;
                if !is_before {
                    self.position = position;
                    report.bytes = report.bytes.saturating_add(entry.payload.len() as u64);
                }
                let wants_more = f(FollowedEntry {
                    kind: entry.kind,
                    shard: entry.shard,
                    seq: entry.seq,
                    payload: entry.payload,
                    position,
                    restarts: std::mem::take(&mut open.restarts),
                    is_before,
                })?;
                if !wants_more {
                    return Ok(Next::Stop);
                }
            }
            open.offset = located.end_offset;
        }
        Ok(Next::End)
    }
}

impl OpenSegment {
    /// Opens the file of `found`; `None` if it is another segment by now.
    fn new(stream: &Stream, found: &FollowedSegment) -> Result<Option<OpenSegment>> {
        let extent = found.extent;
        let file = stream.open_followed(extent.number)?;
        let mut head = vec![0; HEADER_BYTES];
        file.read_at(0, &mut head)?;
        let header = Header::decode(&head)?.filter(|header| header.number == extent.number);
        let Some(header) = header else { return Ok(None) };
        let reader = SegmentReader::new(file, &header, Vec::new())?;
        let offset = reader.start();
        Ok(Some(OpenSegment {
            number: extent.number,
            base: extent.base,
            reader,
            offset,
            yielded: extent.base,
            restarts: true,
        }))
    }

    /// Whether the file is still this segment. The header of a purged one is overwritten first.
    fn is_intact(&self) -> Result<bool> {
        let header = self.reader.header()?;
        Ok(header.is_some_and(|header| header.number == self.number))
    }
}
