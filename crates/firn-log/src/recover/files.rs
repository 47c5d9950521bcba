//! The segment files of a stream: lists them at a start, and decides where the stream continues.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, LogPosition, Result};

use crate::append::StreamId;
use crate::block::ALIGN_BYTES;
use crate::options::LogSetup;
use crate::read::SegmentReader;
use crate::segment::{
    self, CommittedPart, CurrentSegment, HEADER_BYTES, Header, PreviousSegment, SegmentNo,
};
use crate::stream::{OldSegment, ResumePoint};
use crate::sync::Mutex;

/// A tail is rewritten in steps of this.
const REWRITE_BYTES: usize = 1 << 20;

/// New positions begin at this or lower, and new segment numbers are at most one higher. No stream
/// gets this far, and the arithmetic of a running stream cannot overflow from here.
const RESUME_MAX: u64 = 1 << 62;

/// A stream that lost all segments continues this much above its floor: the positions of lost
/// entries, which followers may have recorded, are not used again.
const LOST_BYTES_MAX: u64 = 1 << 40;

/// The segment files of one stream.
#[derive(Debug)]
pub(crate) struct StreamFiles {
    pub(super) id: StreamId,
    /// Numbers of streams and shards.
    pub(super) counts: (usize, usize),
    pub(super) segments: Vec<SegmentFile>,
    /// The newest segments, if they are missing.
    pub(super) lost_end: Option<LostEnd>,
    /// Length of a new segment.
    segment_bytes: u64,
    next_number: SegmentNo,
    /// Set by the first replay.
    pub(super) replayed: Mutex<Option<ReplayOutcome>>,
}

/// The end of a stream that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostEnd {
    /// No file is left.
    All,
    /// From this segment on; only a file that was made ahead of it is left.
    From(SegmentNo),
}

#[derive(Debug)]
pub(super) struct SegmentFile {
    pub(super) number: SegmentNo,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) file_bytes: u64,
    pub(super) header: Option<Header>,
    /// Without a header: the end of the last non-zero byte; `None` if the file was never used.
    pub(super) headless_bytes: Option<u64>,
    /// For an unused file: its record of the segment that was current then.
    current_then: Option<CurrentSegment>,
}

/// The facts that a replay found about the end of a stream.
#[derive(Clone, Debug)]
pub(super) struct ReplayOutcome {
    pub(super) floor: LogPosition,
    /// The last segment with a header, and its end.
    pub(super) last: Option<PreviousSegment>,
    /// Ranges that may be in the page cache only: the end of the last segment, and the end of every
    /// segment with a failed sync.
    pub(super) unsure: Vec<PreviousSegment>,
    /// The lowest position for new entries.
    pub(super) base_min: LogPosition,
}

impl StreamFiles {
    /// Lists the segments of a stream and reads their headers. `is_started`: the stream has had a
    /// segment before, and always keeps one.
    ///
    /// # Errors
    /// `Invalid` for a segment of a newer version, a renamed file or a number out of range;
    /// `Corrupt` for a header that contradicts itself.
    pub(crate) fn open(
        disk: &dyn Disk,
        id: StreamId,
        setup: &LogSetup,
        is_started: bool,
    ) -> Result<StreamFiles> {
        let mut numbers: Vec<SegmentNo> = disk
            .list(&segment::folder(id.0))?
            .iter()
            .filter_map(|name| segment::parse_name(name))
            .collect();
        numbers.sort_unstable();
        let last_number = numbers.last().map_or(0, |last| last.0);
        if last_number > RESUME_MAX {
            return Err(Error::invalid(format!(
                "{}: expected a segment number of at most {RESUME_MAX}; move the file away",
                segment::path(id.0, SegmentNo(last_number))
            )));
        }
        let next_number = SegmentNo(last_number.saturating_add(1));
        let mut segments = Vec::with_capacity(numbers.len());
        for number in numbers {
            let path = segment::path(id.0, number);
            let file = disk.open(&path, OpenMode::Write)?;
            let file_bytes = file.len()?;
            let mut bytes = vec![0; clamp_len(file_bytes, HEADER_BYTES)];
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
            let is_blank = header.is_none() && headless_bytes.is_none();
            let current_then = is_blank.then(|| segment::current_of_blank(&bytes)).flatten();
            segments.push(SegmentFile {
                number,
                file,
                file_bytes,
                header,
                headless_bytes,
                current_then,
            });
        }
        Ok(StreamFiles {
            id,
            counts: (setup.stream_count, setup.shard_count),
            lost_end: lost_end(&segments, is_started),
            segment_bytes: setup.options.segment_bytes,
            segments,
            next_number,
            replayed: Mutex::new(None),
        })
    }

    /// The position up to which a segment was durable, as an unused file behind it records; 0
    /// without such a record.
    pub(super) fn durable_of(&self, number: SegmentNo) -> LogPosition {
        let records = current_segments(&self.segments).filter(|current| current.number == number);
        records.map(|current| current.durable).max().unwrap_or(LogPosition(0))
    }

    /// Whether the stream had segments, and no file of it is left.
    pub(crate) fn is_missing(&self) -> bool {
        self.lost_end == Some(LostEnd::All)
    }

    /// Removes all files of a stream that is left over from a larger number of streams. All of them
    /// must be below `floor`.
    ///
    /// # Errors
    /// `Invalid` if one is not.
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

    /// Whether a segment was written with another number of streams; it is then not needed.
    ///
    /// # Errors
    /// `Invalid` if it is needed.
    pub(super) fn is_of_other_layout(&self, header: &Header, floor: LogPosition) -> Result<bool> {
        let found = (usize::from(header.stream_count), usize::from(header.shard_count));
        if found == self.counts {
            return Ok(false);
        }
        if header.base.0.saturating_add(header.bytes) > floor.0 || found.1 != self.counts.1 {
            let (streams, shards) = self.counts;
            return Err(Error::invalid(format!(
                "log segment {} of stream {}: written with {} streams and {} shards, opened with \
                 {streams} and {shards}; open it with the numbers that it was written with",
                header.number.0, self.id.0, found.0, found.1
            )));
        }
        Ok(true)
    }

    /// The last segment and its end, if a replay from `floor` has found them.
    pub(super) fn known_end(&self, floor: LogPosition) -> Option<PreviousSegment> {
        self.replayed.lock().as_ref().filter(|replayed| replayed.floor == floor)?.last
    }

    /// The most bytes that a replay from `floor` reads. The newest segment counts as full; files
    /// that wait to be recycled are below the floor.
    pub(crate) fn bytes_from(&self, floor: LogPosition) -> u64 {
        let headers = self.segments.iter().filter_map(|found| found.header.as_ref());
        let own = headers.filter(|header| usize::from(header.stream_count) == self.counts.0);
        own.map(|header| {
            header.base.0.saturating_add(header.bytes).saturating_sub(header.base.max(floor).0)
        })
        .fold(0, u64::saturating_add)
    }

    /// Makes the replayed entries durable and returns where the stream continues.
    ///
    /// # Errors
    /// `Internal` if the stream was not replayed; `Unavailable` when the disk fails.
    pub(crate) fn resume(&mut self) -> Result<ResumePoint> {
        let replayed = self.replayed.lock().clone().ok_or_else(|| {
            Error::internal(format!("log stream {}: start before replay", self.id.0))
        })?;
        replayed.unsure.iter().try_for_each(|&end| self.secure(end))?;
        // From now on older segments may be removed, in any order. Files without a record are
        // written again, too: a failed sync may have left an earlier removal in the page cache
        // only.
        let is_ahead = |file: &&SegmentFile| {
            file.current_then.is_some() || file.is_blank() && file.file_bytes >= HEADER_BYTES as u64
        };
        let mut ahead = self.segments.iter().filter(is_ahead);
        ahead.try_for_each(|segment| segment::clear_blank(&*segment.file))?;
        let next_number = self.next_number;
        // A retry after a failure must not use the number again: its file may exist.
        self.next_number.0 = self.next_number.0.saturating_add(1);
        let old_of = |segment: &SegmentFile| {
            // An unused file is free: the next segment recycles it.
            let end = if segment.is_blank() { LogPosition(0) } else { replayed.base_min };
            let extent = self.extent_of(segment, replayed.last);
            OldSegment { number: segment.number, end, bytes: segment.file_bytes, extent }
        };
        let mut old: Vec<OldSegment> = self.segments.iter().map(old_of).collect();
        // A segment ends at the base of the next one, if there is one.
        let bases = self.segments.iter().rev().filter_map(|segment| segment.header.as_ref());
        let mut next_base = replayed.base_min;
        for header in bases {
            for old in old.iter_mut().filter(|old| old.number == header.number) {
                old.end = next_base;
            }
            next_base = header.base;
        }
        Ok(ResumePoint {
            base: replayed.base_min,
            floor: replayed.floor,
            next_number,
            previous: replayed.last,
            old,
        })
    }

    /// The most bytes of the segments that are missing at the end.
    fn lost_bytes(&self) -> u64 {
        match self.lost_end {
            None => 0,
            Some(LostEnd::All) => LOST_BYTES_MAX,
            Some(LostEnd::From(number)) => {
                let count = self.next_number.0.saturating_sub(number.0);
                let longest = self.segments.iter().map(|segment| segment.file_bytes).max();
                count.saturating_mul(longest.unwrap_or(0).max(self.segment_bytes))
            }
        }
    }

    /// The committed part of a segment, for followers. `last` is the last segment and its end, as
    /// the replay has found them.
    fn extent_of(
        &self,
        segment: &SegmentFile,
        last: Option<PreviousSegment>,
    ) -> Option<CommittedPart> {
        let header = segment.header.as_ref()?;
        let own = (usize::from(header.stream_count), usize::from(header.shard_count));
        if own != self.counts {
            return None;
        }
        let behind = self.segments.iter().filter(|other| other.number > segment.number);
        let next = behind.filter_map(|other| other.header.as_ref()).next();
        let end = match next.map(|next| next.previous) {
            Some(Some(previous)) if previous.number == header.number => previous.end,
            // A later segment records that nothing was committed here.
            Some(None) => header.base,
            Some(Some(previous)) if previous.number < header.number => header.base,
            // It was purged, and a crash brought it back.
            Some(Some(_)) => return None,
            None => last.filter(|last| last.number == header.number).map_or(header.base, |l| l.end),
        };
        Some(CommittedPart { number: segment.number, base: header.base, end })
    }

    /// Closes the files. An open file would keep its disk space after it was removed.
    pub(crate) fn close(&mut self) {
        self.segments.clear();
    }

    /// Makes replayed entries durable before the caller builds on them. A killed process may have
    /// left them in the page cache, and after a failed sync the kernel marks such pages clean, so
    /// another sync skips them. Therefore every byte after the known durable position is written
    /// again with its present content. A torn rewrite changes nothing.
    fn secure(&self, unsure: PreviousSegment) -> Result<()> {
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
            bytes.resize(clamp_len(end.saturating_sub(offset), REWRITE_BYTES), 0);
            segment.file.read_at(offset, &mut bytes)?;
            segment.file.write_at(offset, &bytes)?;
            offset = offset.saturating_add(bytes.len() as u64);
        }
        segment.file.sync()
    }

    /// The first position above everything that was ever written, including damaged and torn bytes.
    ///
    /// # Errors
    /// `Corrupt` if a header or the floor has a position that no stream reaches.
    pub(super) fn base_min(&self, end: LogPosition, floor: LogPosition) -> Result<LogPosition> {
        let headers = self.segments.iter().filter_map(|segment| segment.header.as_ref());
        let bases = headers
            .map(|header| header.base.0.saturating_add(ALIGN_BYTES as u64))
            .max()
            .unwrap_or(0);
        // An unreadable header hides its base; its segment followed the others.
        let hidden = self.segments.iter().filter(|segment| segment.headless_bytes.is_some());
        let hidden_bytes = hidden.map(|segment| segment.file_bytes).fold(0, u64::saturating_add);
        let lost_bytes = self.lost_bytes();
        let base = end.0.max(floor.0).max(bases);
        let base = base.saturating_add(hidden_bytes).saturating_add(lost_bytes);
        let aligned = base.checked_next_multiple_of(ALIGN_BYTES as u64);
        let base_min = aligned.filter(|&base| base <= RESUME_MAX).map(LogPosition);
        base_min.ok_or_else(|| {
            let what = format!("the stream ends at position {base}, expected at most {RESUME_MAX}");
            Error::corrupt(segment::folder(self.id.0), 0, what)
        })
    }
}

impl SegmentFile {
    /// Whether a torn write leaves each sector of the file either old or new.
    pub(super) fn has_whole_sectors(&self) -> bool {
        self.file.memory().is_none()
    }

    /// Whether the file was made ahead and never used.
    fn is_blank(&self) -> bool {
        self.header.is_none() && self.headless_bytes.is_none()
    }
}

/// The newest segments, if they are missing. A segment is removed only after a later one has its
/// header, so an unused file that was made ahead of a missing one proves a loss, unless a later
/// segment has a header. So does the record that something of a segment was durable, if that file
/// has neither a header nor the remains of one.
fn lost_end(segments: &[SegmentFile], is_started: bool) -> Option<LostEnd> {
    if segments.is_empty() {
        return is_started.then_some(LostEnd::All);
    }
    let is_lost = |current: &CurrentSegment| match segments
        .iter()
        .find(|found| found.number == current.number)
    {
        Some(found) => found.is_blank() && current.durable > LogPosition(0),
        None => true,
    };
    let lost = current_segments(segments).filter(is_lost);
    lost.map(|current| current.number).min().map(LostEnd::From)
}

/// The records of unused files behind the last segment with a header.
fn current_segments(segments: &[SegmentFile]) -> impl Iterator<Item = CurrentSegment> {
    let behind = segments.iter().rev().take_while(|found| found.header.is_none());
    behind.filter_map(|found| found.current_then)
}

fn check_name(header: &Header, id: StreamId, number: SegmentNo) -> Result<()> {
    if header.stream != id.0 || header.number != number {
        return Err(Error::invalid(format!(
            "the file holds segment {} of stream {}: it was moved or renamed; move it back",
            header.number.0, header.stream
        )));
    }
    Ok(())
}

/// `bytes`, at most `max`.
fn clamp_len(bytes: u64, max: usize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(max)
}
