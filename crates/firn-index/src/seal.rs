//! Sealing: definitions move from "only in the log" to a segment file that the manifest names.
//!
//! A segment holds a range of series numbers. A seal takes all numbers since the last, and with them
//! those of older segments that are at most twice as many, so that the number of files stays
//! logarithmic and each definition is rewritten a logarithmic number of times.

use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Error, Result};

use crate::index::{Shared, unsealed_run};
use crate::part::{Part, SegmentInfo, segment_path};
use crate::segment::Writer;
use crate::segment_read;
use crate::state::State;

/// Which segments there are.
#[derive(Debug, Default)]
pub(crate) struct SealState {
    segments: Vec<Sealed>,
    next_number: u64,
    next_ids: Vec<u64>,
    planned: Option<Planned>,
}

#[derive(Clone, Copy, Debug)]
struct Sealed {
    info: SegmentInfo,
    /// Series numbers below are in this segment or one before.
    end: u32,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    number: u64,
    kept: usize,
    end: u32,
}

/// Writes a segment; planned by [`Index::plan_seal`](crate::Index::plan_seal).
#[derive(Debug)]
pub struct SealJob {
    shared: Arc<Shared>,
    number: u64,
    kept: usize,
    /// Series numbers.
    start: u32,
    end: u32,
    next_ids: Vec<u64>,
}

// Slots encoded under one lock: below a millisecond.
const SLOTS_PER_LOCK: u32 = 4_096;

impl SealState {
    /// What `parts` say, their segments read into `state`.
    pub(crate) fn open(disk: &dyn Disk, parts: &[Part], state: &mut State) -> Result<SealState> {
        let mut infos: Vec<SegmentInfo> = Vec::new();
        let mut next_ids: Vec<u64> = Vec::new();
        for part in parts {
            if part.kept > infos.len() {
                return Err(Error::invalid(format!(
                    "an index part keeps {} segments of {}: the manifest's parts are incomplete",
                    part.kept,
                    infos.len()
                )));
            }
            infos.truncate(part.kept);
            infos.extend_from_slice(&part.added);
            next_ids.clone_from(&part.next_ids);
        }
        disk.create_dir("index")?;
        disk.sync_dir("")?;
        let mut next_number = remove_orphans(disk, &infos)?;
        let mut segments = Vec::with_capacity(infos.len());
        for info in infos {
            segment_read::read(disk, &info, state)?;
            next_number = next_number.max(info.number + 1);
            segments.push(Sealed { info, end: state.watermark().series });
        }
        state.reserve_ids(&next_ids)?;
        Ok(SealState { segments, next_number, next_ids, planned: None })
    }

    /// Series below this number are in segments that the manifest names.
    pub(crate) fn sealed_series(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.end)
    }

    /// Takes over the part of the planned job; gives the segments that it replaces.
    pub(crate) fn apply(&mut self, part: &Part) -> Result<Vec<SegmentInfo>> {
        let [info] = part.added[..] else {
            return Err(Error::invalid("an index part to apply adds one segment"));
        };
        let planned = self.planned.filter(|p| p.number == info.number && p.kept == part.kept);
        let Some(planned) = planned else {
            return Err(Error::invalid(format!("index segment {} was not planned", info.number)));
        };
        self.planned = None;
        let replaced = self.segments.split_off(part.kept);
        self.segments.push(Sealed { info, end: planned.end });
        self.next_ids.clone_from(&part.next_ids);
        Ok(replaced.into_iter().map(|segment| segment.info).collect())
    }

    pub(crate) fn snapshot(&self) -> Part {
        let added = self.segments.iter().map(|segment| segment.info).collect();
        Part { kept: 0, added, next_ids: self.next_ids.clone() }
    }

    /// Number of segments and their bytes.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let bytes = self.segments.iter().map(|segment| segment.info.file_bytes).sum();
        (self.segments.len() as u64, bytes)
    }
}

impl SealJob {
    pub(crate) fn plan(shared: &Arc<Shared>) -> Option<SealJob> {
        let mut seal = shared.seal.lock();
        let (end, next_ids, filled) = {
            let state = shared.state.read();
            (state.watermark().series, state.groups.next_ids(), state.filled)
        };
        let (mut kept, mut start) = match filled {
            true => (0, 0),
            false => (seal.segments.len(), seal.sealed_series()),
        };
        if start >= end {
            return None;
        }
        while let Some(last) = kept.checked_sub(1) {
            let last_start = last.checked_sub(1).map_or(0, |before| seal.segments[before].end);
            if u64::from(start - last_start) > 2 * u64::from(end - start) {
                break;
            }
            (kept, start) = (last, last_start);
        }
        let number = seal.next_number;
        seal.next_number += 1;
        seal.planned = Some(Planned { number, kept, end });
        Some(SealJob { shared: Arc::clone(shared), number, kept, start, end, next_ids })
    }

    /// Writes `index/<n>.seg`, makes it durable and returns the manifest part. Nothing refers to the
    /// file before the manifest has the part, so it may fail or be killed anywhere.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full.
    pub fn run(&self, disk: &dyn Disk) -> Result<Vec<u8>> {
        let mut writer = Writer::create(disk, &segment_path(self.number))?;
        let touched = self.shared.state.read().groups.touched_since(self.start);
        let mut groups = touched.into_iter().peekable();
        while groups.peek().is_some() {
            self.add_some(&mut groups, &mut writer);
            writer.write_out()?;
        }
        let (file_bytes, series_count) = writer.finish()?;
        disk.sync_dir("index")?;
        let added = vec![SegmentInfo { number: self.number, file_bytes, series_count }];
        Ok(Part { kept: self.kept, added, next_ids: self.next_ids.clone() }.encode())
    }

    /// Adds what one lock's worth of groups has in the job's range of series.
    fn add_some(&self, groups: &mut impl Iterator<Item = u32>, writer: &mut Writer) {
        let state = self.shared.state.read();
        let mut slot_count = 0;
        while slot_count < SLOTS_PER_LOCK {
            let Some(group_no) = groups.next() else { break };
            let Some(mut run) = unsealed_run(&state, group_no, self.start) else { continue };
            let end = state.groups.slot_count_below(group_no, self.end);
            run.count = end.saturating_sub(run.first_slot);
            if run.count > 0 {
                writer.add(&state, run);
            }
            slot_count += run.count.max(1);
        }
    }
}

/// Removes files that no part names; gives a number above all of them.
fn remove_orphans(disk: &dyn Disk, infos: &[SegmentInfo]) -> Result<u64> {
    let mut next_number = 1;
    for name in disk.list("index")? {
        let Some(number) = name.strip_suffix(".seg").and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        next_number = next_number.max(number.saturating_add(1));
        if infos.iter().all(|info| info.number != number) {
            disk.remove(&segment_path(number))?;
        }
    }
    Ok(next_number)
}
