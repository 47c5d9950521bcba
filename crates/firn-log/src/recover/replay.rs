//! Replay: a stream's entries, by position.
//!
//! The question at every byte that is not a valid block is: *was it ever acknowledged?* A later segment
//! carries the answer, where the valid bytes of the one before it end; without one a later block, the mark up to
//! where the stream was durable when it was written. Below, the byte was there once, and what was in it was
//! acknowledged, so it is damage: it is reported by file and
//! offset, and replay goes on behind it. At or above nobody was told that it is durable:
//! it is the tail that a crash tore, and it is cut.

use std::ops::Range;
use std::sync::Arc;

use firn_env::DiskFile;
use firn_model::{CommitSeq, Error, LogPosition, Result, ShardId};

use super::{FoundSegment, FoundStream, Replayed};
use crate::StreamId;
use crate::block::{ALIGN_BYTES, Block};
use crate::entry::EntryKind;
use crate::read::SegmentReader;
use crate::segment::{self, Header, Previous, SegmentNo};

/// Damaged places that a report names one by one; more are only counted.
const DAMAGE_MAX: usize = 64;

/// One entry, given back after a restart.
#[derive(Clone, Copy, Debug)]
pub struct ReplayEntry<'a> {
    /// What the payload is.
    pub kind: EntryKind,
    /// Its shard.
    pub shard: ShardId,
    /// Its commit.
    pub seq: CommitSeq,
    /// Its bytes, exactly as they were appended.
    pub payload: &'a [u8],
    /// Its end, as [`crate::Append::At`] said for the last entry of an append.
    pub position: LogPosition,
    /// The segment that it was appended to.
    pub segment: SegmentNo,
    /// Whether it is at or below the floor: already kept elsewhere, given only because what follows
    /// may be encoded against it.
    pub below_floor: bool,
    /// Set on the first entry behind a damaged place: what is missing there may be what this and
    /// later entries are encoded against.
    pub after_hole: bool,
    file: &'a Arc<dyn DiskFile>,
    /// Of the payload in the file.
    offset: u64,
}

/// A part of a payload that is left in the log, to be read again later in the replay: what takes little memory of an
/// entry whose turn has not come.
#[derive(Clone, Debug)]
pub struct PayloadRange {
    file: Arc<dyn DiskFile>,
    offset: u64,
    bytes: u32,
    crc: u32,
}

impl ReplayEntry<'_> {
    /// The bytes of the payload in `range`, left where they are. They hold the segment's file open.
    ///
    /// # Panics
    /// If the payload has no such bytes.
    pub fn payload_range(&self, range: Range<usize>) -> PayloadRange {
        let offset = self.offset + range.start as u64;
        let bytes = &self.payload[range];
        PayloadRange {
            file: Arc::clone(self.file),
            offset,
            bytes: bytes.len() as u32,
            crc: crc32fast::hash(bytes),
        }
    }
}

impl PayloadRange {
    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Reads them into `buf`, in place of what that has.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails, `Corrupt` if the bytes are no longer what they were.
    pub fn read(&self, buf: &mut Vec<u8>) -> Result<()> {
        buf.clear();
        buf.resize(self.bytes(), 0);
        self.file.read_at(self.offset, buf)?;
        if crc32fast::hash(buf) != self.crc {
            let what =
                "an entry changed while the log was read; run firn check, and look at the disk";
            return Err(Error::corrupt("log", self.offset, what));
        }
        Ok(())
    }
}

/// What a replay of one stream found.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// Entries given.
    pub entries: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// The newest commit among them.
    pub seq_max: CommitSeq,
    /// Where the stream ends.
    pub end: LogPosition,
    /// Segments read.
    pub segments: u64,
    /// Segments that were not read, because all of them is at or below the floor.
    pub segments_skipped: u64,
    /// Durable data that is damaged, one sentence each with file and offset; at most 64 of them.
    pub damage: Vec<String>,
    /// How many damaged places there are.
    pub damage_count: u64,
    /// The tail that was cut, if it is not clean: what a crash leaves of a write that was not
    /// acknowledged. Damage to the very last write looks the same, so it is worth a line in a log.
    pub torn_tail: Option<String>,
}

impl FoundStream {
    /// See [`crate::Log::replay`].
    pub(crate) fn replay(
        &mut self,
        floor: LogPosition,
        f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    ) -> Result<ReplayReport> {
        let mut replay = Replay {
            id: self.id,
            floor,
            f,
            report: ReplayReport::default(),
            after_hole: false,
            mark: LogPosition(0),
        };
        let mut window = Vec::new();
        let mut last: Option<Previous> = None;
        let mut unsure = Vec::new();
        for (idx, segment) in self.segments.iter().enumerate() {
            let Some(header) = &segment.header else {
                replay.headless(segment, &self.segments[idx + 1..]);
                continue;
            };
            if self.is_of_other_layout(header, floor)? {
                replay.report.segments_skipped += 1;
                continue;
            }
            replay.check_predecessor(header, last.map(|last| last.number));
            let Some(bounds) = bounds(segment, header, &self.segments[idx + 1..]) else {
                continue;
            };
            let mut end = bounds.end;
            if end <= floor && bounds.is_named {
                replay.report.segments_skipped += 1;
            } else {
                let file = Arc::clone(&segment.file);
                let mut reader = SegmentReader::new(file, header, window)?;
                end = replay.segment(&mut reader, segment, header, &bounds)?;
                replay.check_length(segment, header);
                window = reader.into_window();
                if bounds.is_named && bounds.durable < end {
                    unsure.push(Previous { number: segment.number, end, durable: bounds.durable });
                }
            }
            last = Some(Previous { number: segment.number, end, durable: end });
        }
        let (report, mark) = (replay.report, replay.mark);
        unsure.extend(last.map(|last| Previous { durable: mark, ..last }));
        let end = last.map_or(LogPosition(0), |last| last.end);
        let base_min = self.base_min(end, floor);
        self.replayed = Some(Replayed { floor, last, unsure, base_min });
        Ok(ReplayReport { end, ..report })
    }
}

/// How far a segment goes, as far as others know.
struct Bounds {
    /// Where it ends; the file's end if nobody knows.
    end: LogPosition,
    /// Whether a later segment names it and `end`: all up to there was acknowledged. Else its own blocks say what was.
    is_named: bool,
    /// Up to where it was durable when it was named.
    durable: LogPosition,
}

/// How far `segment` goes; `None` if a later one says that nothing in it was ever committed.
fn bounds(segment: &FoundSegment, header: &Header, later: &[FoundSegment]) -> Option<Bounds> {
    let file_end = LogPosition(header.base.0 + segment.file_bytes.min(header.bytes));
    let unknown = Bounds { end: file_end, is_named: false, durable: LogPosition(0) };
    let Some(next) = later.iter().find_map(|later| later.header.as_ref()) else {
        return Some(unknown);
    };
    match next.previous {
        Some(previous) if previous.number == header.number => {
            let Previous { end, durable, .. } = previous;
            Some(Bounds { end, is_named: true, durable })
        }
        Some(previous) if previous.number > header.number => Some(unknown),
        _ => None,
    }
}

struct Replay<'a> {
    id: StreamId,
    floor: LogPosition,
    f: &'a mut dyn FnMut(ReplayEntry<'_>) -> Result<()>,
    report: ReplayReport,
    after_hole: bool,
    mark: LogPosition,
}

impl Replay<'_> {
    /// Gives all entries of a segment and returns where it ends.
    fn segment(
        &mut self,
        reader: &mut SegmentReader,
        segment: &FoundSegment,
        header: &Header,
        bounds: &Bounds,
    ) -> Result<LogPosition> {
        self.report.segments += 1;
        let base = header.base.0;
        let mut offset = reader.start();
        let mut told = bounds.is_named.then_some(bounds.end);
        while base + offset < bounds.end.0 {
            if let Some(found) = reader.block_at(offset)? {
                let end_offset = found.end_offset;
                self.block(found.block, &segment.file, header, offset)?;
                offset = end_offset;
                continue;
            }
            let behind = offset + ALIGN_BYTES as u64;
            let told = match told {
                Some(told) => told,
                None => *told.insert(reader.durable_mark_behind(behind)?),
            };
            if base + offset >= told.0 {
                self.cut(reader, header, offset)?;
                return Ok(LogPosition(base + offset));
            }
            let next = reader.find_block(behind)?.unwrap_or(reader.len());
            let next = next.min(bounds.end.0.saturating_sub(base)).max(behind);
            self.damaged(&header.number, offset, next - offset);
            offset = next;
        }
        Ok(LogPosition(base + offset))
    }

    fn block(
        &mut self,
        block: Block<'_>,
        file: &Arc<dyn DiskFile>,
        header: &Header,
        offset: u64,
    ) -> Result<()> {
        self.mark = self.mark.max(block.durable);
        for entry in block.entries() {
            let Some((entry, end)) = entry else {
                return Err(Error::corrupt(
                    segment::path(self.id.0, header.number),
                    offset,
                    "an entry that this version cannot read in a block whose checksum is right: \
                     start the version of firn that wrote it",
                ));
            };
            let end_offset = offset + end as u64;
            let position = LogPosition(header.base.0 + end_offset);
            self.report.entries += 1;
            self.report.payload_bytes += entry.payload.len() as u64;
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
                offset: end_offset - entry.payload.len() as u64,
            })?;
        }
        Ok(())
    }

    /// A segment that cannot be identified. If it held something durable, a later segment names it
    /// as its predecessor; without a later one, only its first write can have been on its way.
    fn headless(&mut self, segment: &FoundSegment, later: &[FoundSegment]) {
        let is_last = later.iter().all(|later| later.header.is_none());
        if let Some(bytes) = segment.headless_bytes.filter(|_| is_last) {
            let path = segment::path(self.id.0, segment.number);
            self.report.torn_tail =
                Some(format!("{path} at byte 0: {bytes} bytes of an unfinished write were cut"));
        }
    }

    /// A segment was made and synced at full length before its first entry.
    fn check_length(&mut self, segment: &FoundSegment, header: &Header) {
        if segment.file_bytes < header.bytes {
            let missing = header.bytes - segment.file_bytes;
            self.damaged(&segment.number, segment.file_bytes, missing);
        }
    }

    /// Reports segments that should be before `header` and are not.
    fn check_predecessor(&mut self, header: &Header, last: Option<SegmentNo>) {
        let Some(previous) = header.previous else { return };
        let is_there = last.is_some_and(|last| last >= previous.number);
        if !is_there && previous.end > self.floor {
            self.damaged(&previous.number, 0, 0);
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
            let bytes = end - offset;
            self.report.torn_tail = Some(format!(
                "{path} at byte {offset}: {bytes} bytes of an unfinished write were cut"
            ));
        }
        Ok(())
    }

    fn damaged(&mut self, number: &SegmentNo, offset: u64, bytes: u64) {
        self.after_hole = true;
        self.report.damage_count += 1;
        if self.report.damage.len() < DAMAGE_MAX {
            let path = segment::path(self.id.0, *number);
            self.report.damage.push(match bytes {
                0 => format!(
                    "{path}: this segment is missing or cannot be identified; the rows \
                              in it that are in no table are lost"
                ),
                _ => format!(
                    "{path} at byte {offset}: {bytes} bytes that were acknowledged are damaged; the rows \
                              in them that are in no table are lost"
                ),
            });
        }
    }
}
