//! The directory of a chunk of members: where each one's value column stands and which shape it has.
//!
//! Lengths are varints, one a member; before each block of 64 members but the first a *step* says where
//! it begins, so that a reader of one member of hundreds walks 32 lengths on average.

use firn_model::{Result, Slot};

use super::read::Members;
use crate::columns::SlotWalk;
use crate::postings::PostingsIter;
use crate::row::SLOTS_MAX;
use crate::varint::{corrupt, cut, encode_varint, take_bytes, take_count, take_u8, take_varint};

/// Members of a block. 64 steps over a byte cost less than the miss that finds the next block.
const BLOCK_MEMBERS: usize = 64;
/// Numbers of a step: where the block's lengths and its columns begin, and the bytes of the column before.
const STEP_NUMBERS: usize = 3;

/// Collects the lengths as columns are written.
pub(super) struct DirectoryBuilder {
    lengths: Vec<u8>,
    steps: Vec<[usize; STEP_NUMBERS]>,
    member_count: usize,
    last_bytes: usize,
}

impl DirectoryBuilder {
    pub(super) fn new(member_count: usize) -> DirectoryBuilder {
        DirectoryBuilder {
            lengths: Vec::with_capacity(member_count * 2),
            steps: Vec::new(),
            member_count: 0,
            last_bytes: 0,
        }
    }

    /// The next member has the `byte_count` bytes that begin at `start`; 0: those of the member before.
    pub(super) fn add(&mut self, start: usize, byte_count: usize) {
        if self.member_count > 0 && self.member_count.is_multiple_of(BLOCK_MEMBERS) {
            self.steps.push([self.lengths.len(), start, self.last_bytes]);
        }
        encode_varint(byte_count as u64, &mut self.lengths);
        self.member_count += 1;
        if byte_count > 0 {
            self.last_bytes = byte_count;
        }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        encode_varint(self.lengths.len() as u64, out);
        if !self.steps.is_empty() {
            let largest = self.steps.iter().flatten().copied().max().unwrap_or(0) as u64;
            let width = (8 - largest.leading_zeros() as usize / 8).max(1);
            out.push(width as u8);
            for number in self.steps.iter().flatten() {
                out.extend_from_slice(&(*number as u64).to_le_bytes()[..width]);
            }
        }
        out.extend_from_slice(&self.lengths);
    }
}

/// A directory as it is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory<'a> {
    /// Bytes of a number; 0 where there is one block only.
    width: usize,
    steps: &'a [u8],
    lengths: &'a [u8],
    columns: &'a [u8],
}

impl<'a> Directory<'a> {
    /// The directory of `member_count` members and the columns, which are the rest of `input`.
    pub(super) fn take(member_count: usize, mut input: &'a [u8]) -> Result<Directory<'a>> {
        let byte_count = input.len();
        let length_bytes = take_count(&mut input, byte_count, "directory bytes")?;
        let step_count = member_count.saturating_sub(1) / BLOCK_MEMBERS;
        let mut width = 0;
        if step_count > 0 {
            width = usize::from(take_u8(&mut input, "directory steps")?);
            if !(1..=8).contains(&width) {
                return Err(corrupt(format!("directory steps of {width} bytes")));
            }
        }
        let steps = take_bytes(&mut input, step_count * STEP_NUMBERS * width, "directory steps")?;
        let lengths = take_bytes(&mut input, length_bytes, "directory")?;
        Ok(Directory { width, steps, lengths, columns: input })
    }

    /// Bytes of steps, lengths and columns.
    pub(super) fn byte_count(&self) -> usize {
        self.steps.len() + self.lengths.len() + self.columns.len()
    }

    /// The number at `place` of the step to block `block_idx`, which is not 0.
    fn step(&self, block_idx: usize, place: usize) -> Result<usize> {
        let start = ((block_idx - 1) * STEP_NUMBERS + place) * self.width;
        let bytes = self.steps.get(start..start + self.width);
        let bytes = bytes.ok_or_else(|| cut("directory steps"))?;
        let number = bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| cut("directory steps"))
    }
}

/// One member as the directory names it.
pub(super) struct Member<'a> {
    pub(super) slot: Slot,
    pub(super) shape: usize,
    pub(super) bytes: &'a [u8],
}

/// Walks slots, shape runs and directory together, forwards.
pub(super) struct MemberWalk<'m, 'a> {
    members: &'m Members<'a>,
    slots: PostingsIter<'a>,
    /// The member that the slots stand before.
    slot_idx: usize,
    shape_runs: &'a [u8],
    shape: usize,
    run_left: usize,
    /// The member that the lengths stand before.
    idx: usize,
    lengths: &'a [u8],
    columns: &'a [u8],
    bytes: &'a [u8],
    /// Bytes of the directory that were looked at.
    pub(super) touched: usize,
}

impl<'m, 'a> MemberWalk<'m, 'a> {
    pub(super) fn new(members: &'m Members<'a>) -> MemberWalk<'m, 'a> {
        MemberWalk {
            members,
            slots: members.slots.iter(),
            slot_idx: 0,
            shape_runs: members.shape_runs,
            shape: 0,
            run_left: 0,
            idx: 0,
            lengths: members.directory.lengths,
            columns: members.directory.columns,
            bytes: &[],
            touched: 0,
        }
    }

    /// The next member that is wanted.
    pub(super) fn next(&mut self, wanted: &mut SlotWalk<'_>) -> Result<Option<Member<'a>>> {
        while !wanted.is_done() {
            let Some(slot) = self.slots.next() else { break };
            self.slot_idx += 1;
            let slot = Slot(u32::try_from(slot).map_err(|_| corrupt(format!("slot {slot}")))?);
            if wanted.take(slot) {
                return self.member(slot, self.slot_idx - 1).map(Some);
            }
        }
        Ok(None)
    }

    /// The member at `idx`, which is not behind the lengths read so far.
    fn member(&mut self, slot: Slot, idx: usize) -> Result<Member<'a>> {
        let first_new = self.idx;
        if idx / BLOCK_MEMBERS > self.idx / BLOCK_MEMBERS {
            self.skip_to_block(idx / BLOCK_MEMBERS)?;
        }
        while self.idx <= idx {
            let before = self.lengths.len();
            let byte_count = take_count(&mut self.lengths, usize::MAX, "directory")?;
            self.touched += before - self.lengths.len();
            if byte_count > 0 {
                self.bytes = take_bytes(&mut self.columns, byte_count, "value column")?;
            }
            self.idx += 1;
        }
        if !self.members.has_one_shape() {
            self.skip_shapes(idx + 1 - first_new)?;
        }
        Ok(Member { slot, shape: self.shape, bytes: self.bytes })
    }

    fn skip_to_block(&mut self, block_idx: usize) -> Result<()> {
        let directory = &self.members.directory;
        let [lengths, columns, last] = [
            directory.step(block_idx, 0)?,
            directory.step(block_idx, 1)?,
            directory.step(block_idx, 2)?,
        ];
        self.touched += STEP_NUMBERS * directory.width;
        self.lengths = directory.lengths.get(lengths..).ok_or_else(|| cut("directory"))?;
        self.columns = directory.columns.get(columns..).ok_or_else(|| cut("value columns"))?;
        let last =
            columns.checked_sub(last).and_then(|start| directory.columns.get(start..columns));
        self.bytes = last.ok_or_else(|| cut("value columns"))?;
        self.idx = block_idx * BLOCK_MEMBERS;
        Ok(())
    }

    /// Takes the shapes of the next `count` members; the last one's stays.
    fn skip_shapes(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            if self.run_left == 0 {
                self.shape = take_count(&mut self.shape_runs, usize::MAX, "member shape")?;
                let run = take_varint(&mut self.shape_runs, "members of a shape")?;
                self.run_left =
                    usize::try_from(run).map_or(SLOTS_MAX, |run| run.min(SLOTS_MAX)) + 1;
            }
            let taken = count.min(self.run_left);
            self.run_left -= taken;
            count -= taken;
        }
        Ok(())
    }
}
