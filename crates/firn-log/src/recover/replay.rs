//! Replay: yields the entries of a stream in the order of positions.
//!
//! At every byte that does not start a valid block, replay decides whether it was ever
//! acknowledged. The header of a later segment decides: it names the end of the valid bytes of the
//! previous one. Without a later segment, the durable marks of later blocks decide. Bytes below
//! that limit were durable once, so they are damage: replay reports file and offset and continues
//! behind them. Bytes at or above it were never acknowledged: they are a tail that a crash tore,
//! and replay cuts it off.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;
use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{CommitSeq, Error, LogPosition, Result, ShardId};

use super::files::{LostEnd, ReplayOutcome, SegmentFile, StreamFiles};
use crate::append::StreamId;
use crate::block::{ALIGN_BYTES, Block};
use crate::entry::EntryKind;
use crate::read::SegmentReader;
use crate::segment::{self, Header, PreviousSegment, SegmentNo};

/// The most damaged ranges that a report describes; more are only counted.
const DAMAGE_MAX: usize = 64;

/// One replayed entry.
#[derive(Clone, Copy, Debug)]
pub struct ReplayEntry<'a> {
    /// The kind of the payload.
    pub kind: EntryKind,
    /// The shard of the entry.
    pub shard: ShardId,
    /// The commit of the entry.
    pub seq: CommitSeq,
    /// The payload, exactly as it was appended.
    pub payload: &'a [u8],
    /// The end of the entry, as [`crate::Append::At`] returned it for the last entry of an append.
    pub position: LogPosition,
    /// The segment that it was appended to.
    pub segment: SegmentNo,
    /// Whether the entry is at or below the floor: durable elsewhere, and yielded only because
    /// later payloads may be encoded against it.
    pub below_floor: bool,
    /// Set on the first entry behind a damaged range. This entry and later ones may be encoded
    /// against payloads that are missing there.
    pub after_hole: bool,
    file: &'a Arc<dyn DiskFile>,
    /// Offset of the payload in the file.
    offset: u64,
}

/// A range of a payload that stays in the log and can be read again later in the replay. It takes
/// little memory while an entry waits.
#[derive(Clone, Debug)]
pub struct PayloadRange {
    file: Arc<dyn DiskFile>,
    offset: u64,
    len: usize,
    crc: u32,
}

impl ReplayEntry<'_> {
    /// A handle to the bytes of the payload in `range`. It keeps the segment's file open.
    ///
    /// # Panics
    /// If `range` is outside the payload.
    pub fn payload_range(&self, range: Range<usize>) -> PayloadRange {
        let offset = self.offset.saturating_add(range.start as u64);
        let bytes = self.payload.get(range).expect("the caller decoded the range in this payload");
        let (len, crc) = (bytes.len(), crc32fast::hash(bytes));
        PayloadRange { file: Arc::clone(self.file), offset, len, crc }
    }
}

impl PayloadRange {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Reads the bytes into `buf` and replaces its content.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails, `Corrupt` if the bytes have changed.
    pub fn read(&self, buf: &mut Vec<u8>) -> Result<()> {
        buf.clear();
        buf.resize(self.bytes(), 0);
        self.file.read_at(self.offset, buf)?;
        if crc32fast::hash(buf) != self.crc {
            let what = "an entry changed during replay; check the disk, then run firn check";
            return Err(Error::corrupt("log", self.offset, what));
        }
        Ok(())
    }
}

/// The outcome of a replay of one stream.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// Entries yielded.
    pub entries: u64,
    /// The newest commit of the entries.
    pub seq_max: CommitSeq,
    /// The end of the stream.
    pub end: LogPosition,
    /// Bytes of its segments above the floor.
    pub bytes: u64,
    /// Segments read.
    pub segments: u64,
    /// Segments that were skipped because they are at or below the floor.
    pub segments_skipped: u64,
    /// One sentence per damaged range of durable data, with file and offset; at most 64.
    pub damage: Vec<String>,
    /// Number of damaged ranges.
    pub damage_count: u64,
    /// The tail that was cut off, if it was not clean. A crash leaves it of an unacknowledged
    /// write. Damage to the very last write looks the same, so callers should log it.
    pub torn_tail: Option<String>,
}

impl StreamFiles {
    /// See [`crate::Log::replay`].
    pub(crate) fn replay(
        &self,
        floor: LogPosition,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<ReplayReport> {
        let known_end = self.known_end(floor);
        let mut replay = Replay {
            id: self.id,
            counts: self.counts,
            floor,
            f,
            report: ReplayReport::default(),
            after_hole: false,
            mark: LogPosition(0),
        };
        let mut window = Vec::new();
        let mut last: Option<PreviousSegment> = None;
        let mut unsure = Vec::new();
        let mut later = self.segments.as_slice();
        while let Some((segment, rest)) = later.split_first() {
            later = rest;
            let Some(header) = &segment.header else {
                replay.headless(segment, later, self.durable_of(segment.number));
                continue;
            };
            if self.is_of_other_layout(header, floor)? {
                replay.report.segments_skipped = replay.report.segments_skipped.saturating_add(1);
                continue;
            }
            replay.check_predecessor(header, last.map(|last| last.number));
            let Some(mut extent) = extent(segment, header, later) else {
                continue;
            };
            if !extent.is_named {
                extent.durable = self.durable_of(segment.number).min(extent.end);
            }
            // An earlier replay has searched everything behind it.
            if let Some(known) = known_end.filter(|known| known.number == header.number) {
                extent.end = extent.end.min(known.end);
            }
            let mut end = extent.end;
            if end <= floor && extent.is_named {
                replay.report.segments_skipped = replay.report.segments_skipped.saturating_add(1);
            } else {
                let file = Arc::clone(&segment.file);
                let mut reader = SegmentReader::new(file, header, window)?;
                end = replay.segment(&mut reader, segment, header, &extent)?;
                replay.check_length(segment, header);
                window = reader.into_window();
                if extent.is_named && extent.durable < end {
                    unsure.push(PreviousSegment {
                        number: segment.number,
                        end,
                        durable: extent.durable,
                    });
                }
            }
            let from = header.base.max(floor);
            replay.report.bytes = replay.report.bytes.saturating_add(end.0.saturating_sub(from.0));
            last = Some(PreviousSegment { number: segment.number, end, durable: end });
        }
        replay.check_end(self.lost_end);
        let (report, mark) = (replay.report, replay.mark);
        unsure.extend(last.map(|last| PreviousSegment { durable: mark, ..last }));
        let end = last.map_or(LogPosition(0), |last| last.end);
        let base_min = self.base_min(end, floor)?;
        *self.replayed.lock() = Some(ReplayOutcome { floor, last, unsure, base_min });
        Ok(ReplayReport { end, ..report })
    }
}

/// The extent of a segment, as later segments record it.
struct SegmentExtent {
    /// End of the segment; the end of the file if no later segment records it.
    end: LogPosition,
    /// Whether a later segment records `end`. Everything up to there was then acknowledged;
    /// otherwise the marks of the segment's own blocks decide.
    is_named: bool,
    /// The segment was durable up to here when a later one, or the unused file behind it, recorded
    /// it.
    durable: LogPosition,
}

/// The extent of `segment`; `None` if a later one records that nothing in it was ever committed.
fn extent(segment: &SegmentFile, header: &Header, later: &[SegmentFile]) -> Option<SegmentExtent> {
    let file_end = LogPosition(header.base.0.saturating_add(segment.file_bytes.min(header.bytes)));
    let unknown = SegmentExtent { end: file_end, is_named: false, durable: LogPosition(0) };
    let Some(next) = later.iter().find_map(|later| later.header.as_ref()) else {
        return Some(unknown);
    };
    match next.previous {
        Some(previous) if previous.number == header.number => {
            let PreviousSegment { end, durable, .. } = previous;
            Some(SegmentExtent { end, is_named: true, durable })
        }
        Some(previous) if previous.number > header.number => Some(unknown),
        _ => None,
    }
}

struct Replay<'a> {
    id: StreamId,
    /// Numbers of streams and shards.
    counts: (usize, usize),
    floor: LogPosition,
    f: &'a mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    report: ReplayReport,
    after_hole: bool,
    mark: LogPosition,
}

impl Replay<'_> {
    /// Yields all entries of a segment and returns its end.
    fn segment(
        &mut self,
        reader: &mut SegmentReader,
        segment: &SegmentFile,
        header: &Header,
        extent: &SegmentExtent,
    ) -> Result<LogPosition> {
        self.report.segments = self.report.segments.saturating_add(1);
        let position = |offset: u64| LogPosition(header.base.0.saturating_add(offset));
        let mut offset = reader.start();
        let mut acknowledged = extent.is_named.then_some(extent.end);
        while position(offset) < extent.end {
            if let Some(found) = reader.block_at(offset)? {
                let end_offset = found.end_offset;
                self.block(found.block, &segment.file, header, offset)?;
                offset = end_offset;
                continue;
            }
            let behind = offset.saturating_add(ALIGN_BYTES as u64);
            let acknowledged = match acknowledged {
                Some(acknowledged) => acknowledged,
                None => {
                    let mark = reader.durable_mark_behind(behind)?;
                    *acknowledged.insert(mark.max(extent.durable))
                }
            };
            if position(offset) >= acknowledged {
                self.cut(reader, header, offset)?;
                return Ok(position(offset));
            }
            // Behind the last block, only acknowledged bytes are known to be damaged.
            let next = match reader.find_block(behind)? {
                Some(next) => next.min(extent.end.0.saturating_sub(header.base.0)),
                None => acknowledged.0.saturating_sub(header.base.0),
            };
            let next = next.max(behind);
            self.damaged(header.number, offset, next.saturating_sub(offset));
            offset = next;
        }
        Ok(position(offset))
    }

    fn block(
        &mut self,
        block: Block<'_>,
        file: &Arc<dyn DiskFile>,
        header: &Header,
        offset: u64,
    ) -> Result<()> {
        let corrupt =
            |what: &str| Error::corrupt(segment::path(self.id.0, header.number), offset, what);
        // `block::seal` asserts the same before it writes a block.
        if block.durable.0 > header.base.0.saturating_add(offset) {
            return Err(corrupt("the durable mark of a block is beyond the block; run firn check"));
        }
        self.mark = self.mark.max(block.durable);
        for entry in block.entries() {
            let Some((entry, end)) = entry else {
                return Err(corrupt(
                    "unknown entry in a block with a matching checksum; \
                     start the version of firn that wrote it",
                ));
            };
            // `Log::append` asserts the same before it buffers an entry.
            if !self.id.owns(self.counts, entry.shard) {
                return Err(corrupt("an entry is of a shard of another stream; run firn check"));
            }
            let end_offset = offset.saturating_add(end as u64);
            let position = LogPosition(header.base.0.saturating_add(end_offset));
            let payload_bytes = entry.payload.len() as u64;
            self.report.entries = self.report.entries.saturating_add(1);
            self.report.seq_max = self.report.seq_max.max(entry.seq);
            (self.f)(ReplayEntry {
                kind: entry.kind,
                shard: entry.shard,
                seq: entry.seq,
                payload: entry.payload,
                position,
                segment: header.number,
                below_floor: position <= self.floor,
                after_hole: std::mem::take(&mut self.after_hole),
                file,
                offset: end_offset.saturating_sub(payload_bytes),
            })?;
        }
        Ok(())
    }

    /// A segment without a readable header. If it held durable data, a later segment names it as
    /// its predecessor, or the unused file behind it records how far it was `durable`. Without
    /// both, an unfinished first write may have left it, but only on a device that tears sectors:
    /// the sectors of both copies were durable as those of an unused file before.
    fn headless(&mut self, segment: &SegmentFile, later: &[SegmentFile], durable: LogPosition) {
        let is_last = later.iter().all(|later| later.header.is_none());
        let Some(bytes) = segment.headless_bytes.filter(|_| is_last) else { return };
        if segment.has_whole_sectors() || durable > LogPosition(0) {
            return self.damaged(segment.number, 0, 0);
        }
        let path = segment::path(self.id.0, segment.number);
        self.report.torn_tail =
            Some(format!("{path} at byte 0: cut off {bytes} bytes of an unfinished write"));
    }

    /// Reports missing segments at the end of the stream.
    fn check_end(&mut self, lost: Option<LostEnd>) {
        match lost {
            None => {}
            Some(LostEnd::From(number)) => self.damaged(number, 0, 0),
            Some(LostEnd::All) => {
                self.report.damage_count = self.report.damage_count.saturating_add(1);
                let folder = segment::folder(self.id.0);
                self.report.damage.push(format!(
                    "{folder}: all segments are missing; their rows that are in no table are lost"
                ));
            }
        }
    }

    /// Reports a file that is shorter than its header records: it had its full length before its
    /// first entry.
    fn check_length(&mut self, segment: &SegmentFile, header: &Header) {
        if segment.file_bytes < header.bytes {
            let missing = header.bytes.saturating_sub(segment.file_bytes);
            self.damaged(segment.number, segment.file_bytes, missing);
        }
    }

    /// Reports a missing predecessor of `header`.
    fn check_predecessor(&mut self, header: &Header, last: Option<SegmentNo>) {
        let Some(previous) = header.previous else { return };
        let is_there = last.is_some_and(|last| last >= previous.number);
        if !is_there && previous.end > self.floor {
            self.damaged(previous.number, 0, 0);
        }
    }

    fn cut(&mut self, reader: &mut SegmentReader, header: &Header, offset: u64) -> Result<()> {
        let end = if header.is_recycled {
            reader.last_tagged(offset)?
        } else {
            reader.last_written(offset)?
        };
        if let Some(end) = end {
            let path = segment::path(self.id.0, header.number);
            let bytes = end.saturating_sub(offset);
            self.report.torn_tail = Some(format!(
                "{path} at byte {offset}: cut off {bytes} bytes of an unfinished write"
            ));
        }
        Ok(())
    }

    fn damaged(&mut self, number: SegmentNo, offset: u64, bytes: u64) {
        self.after_hole = true;
        self.report.damage_count = self.report.damage_count.saturating_add(1);
        if self.report.damage.len() < DAMAGE_MAX {
            let path = segment::path(self.id.0, number);
            self.report.damage.push(match bytes {
                0 => format!(
                    "{path}: the segment is missing or has no readable header; its rows that \
                     are in no table are lost"
                ),
                _ => format!(
                    "{path} at byte {offset}: {bytes} acknowledged bytes are damaged; their \
                     rows that are in no table are lost"
                ),
            });
        }
    }
}
