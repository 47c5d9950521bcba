//! The directory of a chunk with members: the offset and shape of each value column.
//!
//! Lengths are varints, one per member. Each block of 64 members except the first has a *step* with
//! its offsets, so that a lookup of one member among hundreds reads 32 lengths on average.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::Result;

use crate::varint::{corrupt, cut, encode_varint, take_bytes, take_count, take_u8};

/// Members of a block. 64 steps over a byte cost less than the cache miss of the next block.
pub(super) const BLOCK_MEMBERS: usize = 64;
/// Numbers of a step: the start of the block's lengths, the start of its columns, and the byte
/// count of the previous column.
pub(super) const STEP_NUMBERS: usize = 3;

/// Collects the lengths while columns are written.
pub(super) struct DirectoryBuilder {
    lengths: Vec<u8>,
    steps: Vec<[usize; STEP_NUMBERS]>,
    member_count: usize,
    last_bytes: usize,
}

impl DirectoryBuilder {
    pub(super) fn new(member_count: usize) -> DirectoryBuilder {
        DirectoryBuilder {
            lengths: Vec::with_capacity(member_count.saturating_mul(2)),
            steps: Vec::new(),
            member_count: 0,
            last_bytes: 0,
        }
    }

    /// Adds a member with the `byte_count` bytes from `start` on; 0: those of the previous member.
    pub(super) fn add(&mut self, start: usize, byte_count: usize) {
        if self.member_count > 0 && self.member_count.is_multiple_of(BLOCK_MEMBERS) {
            self.steps.push([self.lengths.len(), start, self.last_bytes]);
        }
        encode_varint(byte_count as u64, &mut self.lengths);
        self.member_count = self.member_count.saturating_add(1);
        if byte_count > 0 {
            self.last_bytes = byte_count;
        }
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        encode_varint(self.lengths.len() as u64, out);
        if !self.steps.is_empty() {
            let largest = self.steps.iter().flatten().copied().max().unwrap_or(0) as u64;
            let bits = u64::BITS.saturating_sub(largest.leading_zeros());
            let width = u8::try_from(bits.div_ceil(8).max(1)).unwrap_or(8);
            out.push(width);
            for number in self.steps.iter().flatten() {
                out.extend((*number as u64).to_le_bytes().into_iter().take(usize::from(width)));
            }
        }
        out.extend_from_slice(&self.lengths);
    }
}

/// The directory of an encoded chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory<'a> {
    /// Bytes of a number; 0 if there is only one block.
    pub(super) width: usize,
    steps: &'a [u8],
    pub(super) lengths: &'a [u8],
    pub(super) columns: &'a [u8],
}

impl<'a> Directory<'a> {
    /// Opens the directory of `member_count` members. The columns are the rest of `input`.
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
        let step_bytes = step_count.saturating_mul(STEP_NUMBERS).saturating_mul(width);
        let steps = take_bytes(&mut input, step_bytes, "directory steps")?;
        let lengths = take_bytes(&mut input, length_bytes, "directory")?;
        Ok(Directory { width, steps, lengths, columns: input })
    }

    /// Bytes of steps, lengths and columns.
    pub(super) fn byte_count(&self) -> usize {
        [self.steps, self.lengths, self.columns].iter().map(|part| part.len()).sum()
    }

    /// Number `field` of the step to block `block_idx`, which is not 0.
    pub(super) fn step(&self, block_idx: usize, field: usize) -> Result<usize> {
        let number_idx =
            block_idx.saturating_sub(1).saturating_mul(STEP_NUMBERS).saturating_add(field);
        let start = number_idx.saturating_mul(self.width);
        let bytes = self.steps.get(start..start.saturating_add(self.width));
        let bytes = bytes.ok_or_else(|| cut("directory steps"))?;
        let number = bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| cut("directory steps"))
    }
}
