//! Walks the members of a chunk: slots, shapes and value columns together.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{Result, Slot};

use super::directory::{BLOCK_MEMBERS, Directory, STEP_NUMBERS};
use crate::columns::SlotWalk;
use crate::limits::SLOTS_MAX;
use crate::postings::{Postings, PostingsIter};
use crate::varint::{corrupt, cut, take_bytes, take_count, take_varint};

/// One member of the directory.
pub(super) struct Member<'a> {
    pub(super) slot: Slot,
    pub(super) shape: usize,
    pub(super) bytes: &'a [u8],
}

/// Walks slots, shape runs and directory together, forwards.
pub(super) struct MemberWalk<'m, 'a> {
    directory: &'m Directory<'a>,
    has_one_shape: bool,
    list: Postings<'a>,
    /// The slots after the last one that was compared.
    slots: PostingsIter<'a>,
    /// Index of the next member in `slots`.
    slot_idx: usize,
    shape_runs: &'a [u8],
    shape: usize,
    run_left: usize,
    /// Index of the next member in `lengths`.
    idx: usize,
    lengths: &'a [u8],
    columns: &'a [u8],
    bytes: &'a [u8],
    /// Bytes of the directory that were read.
    pub(super) touched: usize,
}

impl<'m, 'a> MemberWalk<'m, 'a> {
    pub(super) fn new(
        list: Postings<'a>,
        shape_runs: &'a [u8],
        has_one_shape: bool,
        directory: &'m Directory<'a>,
    ) -> MemberWalk<'m, 'a> {
        MemberWalk {
            directory,
            has_one_shape,
            list,
            slots: list.iter(),
            slot_idx: 0,
            shape_runs,
            shape: 0,
            run_left: 0,
            idx: 0,
            lengths: directory.lengths,
            columns: directory.columns,
            bytes: &[],
            touched: 0,
        }
    }

    /// The member at `slot`. Only for a walk that has returned none.
    pub(super) fn seek(&mut self, slot: Slot) -> Result<Option<Member<'a>>> {
        let (idx, is_member) = self.list.rank(u64::from(slot.0));
        match usize::try_from(idx) {
            Ok(idx) if is_member => self.member(slot, idx).map(Some),
            _ => Ok(None),
        }
    }

    /// The next selected member.
    pub(super) fn next(&mut self, wanted: &mut SlotWalk<'_>) -> Result<Option<Member<'a>>> {
        if self.slot_idx == 0
            && let Some(&[only]) = wanted.listed()
        {
            wanted.take(only);
            return self.seek(only);
        }
        while !wanted.is_done() {
            let Some(slot) = self.slots.next() else { break };
            let slot_idx = self.slot_idx;
            self.slot_idx = slot_idx.saturating_add(1);
            let slot = Slot(u32::try_from(slot).map_err(|_| corrupt(format!("slot {slot}")))?);
            if wanted.take(slot) {
                return self.member(slot, slot_idx).map(Some);
            }
        }
        Ok(None)
    }

    /// The member at `idx`, which is at or after the last length read.
    fn member(&mut self, slot: Slot, idx: usize) -> Result<Member<'a>> {
        let first_new = self.idx;
        if idx / BLOCK_MEMBERS > self.idx / BLOCK_MEMBERS {
            self.skip_to_block(idx / BLOCK_MEMBERS)?;
        }
        let before = self.lengths.len();
        let (mut skipped_bytes, mut own_bytes) = (0usize, 0);
        while self.idx <= idx {
            let byte_count = take_count(&mut self.lengths, usize::MAX, "directory")?;
            if byte_count > 0 {
                skipped_bytes = skipped_bytes.saturating_add(own_bytes);
                own_bytes = byte_count;
            }
            self.idx = self.idx.saturating_add(1);
        }
        self.touched = self.touched.saturating_add(before.saturating_sub(self.lengths.len()));
        if own_bytes > 0 {
            take_bytes(&mut self.columns, skipped_bytes, "value column")?;
            self.bytes = take_bytes(&mut self.columns, own_bytes, "value column")?;
        }
        if !self.has_one_shape {
            self.skip_shapes(idx.saturating_add(1).saturating_sub(first_new))?;
        }
        Ok(Member { slot, shape: self.shape, bytes: self.bytes })
    }

    fn skip_to_block(&mut self, block_idx: usize) -> Result<()> {
        let directory = self.directory;
        let [lengths, columns, last] = [
            directory.step(block_idx, 0)?,
            directory.step(block_idx, 1)?,
            directory.step(block_idx, 2)?,
        ];
        let step_bytes = STEP_NUMBERS.saturating_mul(directory.width);
        self.touched = self.touched.saturating_add(step_bytes);
        self.lengths = directory.lengths.get(lengths..).ok_or_else(|| cut("directory"))?;
        self.columns = directory.columns.get(columns..).ok_or_else(|| cut("value columns"))?;
        let last =
            columns.checked_sub(last).and_then(|start| directory.columns.get(start..columns));
        self.bytes = last.ok_or_else(|| cut("value columns"))?;
        self.idx = block_idx.saturating_mul(BLOCK_MEMBERS);
        Ok(())
    }

    /// Skips the shapes of the next `count` members and keeps the last one.
    fn skip_shapes(&mut self, mut count: usize) -> Result<()> {
        while count > 0 {
            if self.run_left == 0 {
                self.shape = take_count(&mut self.shape_runs, usize::MAX, "member shape")?;
                let run = take_varint(&mut self.shape_runs, "members of a shape")?;
                self.run_left = usize::try_from(run)
                    .map_or(SLOTS_MAX, |run| run.min(SLOTS_MAX))
                    .saturating_add(1);
            }
            let taken = count.min(self.run_left);
            self.run_left = self.run_left.saturating_sub(taken);
            count = count.saturating_sub(taken);
        }
        Ok(())
    }
}
