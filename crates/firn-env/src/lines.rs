//! Cache lines of a mapped file: the instructions that write them back, and the map.
//!
//! A file on a file system that maps the device itself (DAX) is memory that outlives the power: a store reaches the
//! device once its cache line was written back and a fence came after that. The kernel has no part in it, so there is
//! no error to hear of: a broken place shows as a bus error when it is touched, as broken memory does.
//!
//! All that is unsafe for this is here: the map, and three instructions.

use std::fmt;
use std::fs::File;
use std::io;

use memmap2::MmapMut;

/// Bytes of a cache line, as all processors have it that have such memory.
pub const LINE_BYTES: u64 = 64;

/// Makes cache lines durable. The real one are instructions of the processor; a simulated one loses what it was not
/// asked for.
pub trait LineFlusher: fmt::Debug + Send + Sync {
    /// Begins to write back all lines that have a byte of `len` at `offset` of `mapping`.
    fn write_back(&self, mapping: &Mapping, offset: u64, len: u64);

    /// Waits for what this thread has begun.
    fn fence(&self);
}

/// A file that is mapped for reads and writes, shared with whoever else has it open.
pub struct Mapping {
    file_id: u64,
    map: MmapMut,
}

impl Mapping {
    /// Maps all of `file`, which is not empty; `file_id` tells it from others of its file system.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of_file(file: &File, file_id: u64) -> io::Result<Mapping> {
        // SAFETY: the map is sound as long as nobody else changes the bytes while a reference to them lives, and nobody
        // cuts the file. References are made only by the two methods below and end with them: `write` has `&mut self`,
        // `copy` copies at once, so within this process the borrow checker keeps them apart. The seam has no call that
        // shortens a file. Another process of ours is kept away by the folder's lock; the same file written by `pwrite`
        // beside its map is written through the same object, behind the same lock.
        #[expect(unsafe_code, reason = "memory that outlives the power is written by stores")]
        let map = unsafe { MmapMut::map_mut(file) }?;
        Ok(Mapping { file_id, map })
    }

    /// Tells it from other files.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A copy of some bytes; fewer where the map ends.
    pub fn copy(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.len());
        self.map.get(offset as usize..end as usize).unwrap_or_default().to_vec()
    }

    /// Stores `bytes`; `false` if they do not fit.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        let Some(place) = self.map.get_mut(offset as usize..end as usize) else { return false };
        place.copy_from_slice(bytes);
        true
    }

    /// Where its bytes begin.
    fn address(&self) -> usize {
        self.map.as_ptr().addr()
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping(file {}, {} bytes)", self.file_id, self.map.len())
    }
}

/// What the processor has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Processor {
    /// Keeps the line in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Drops it, in any order with others.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// Drops it, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

impl Processor {
    /// The best that this one has; `None` where none is known.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn detect() -> Option<Processor> {
        let has = |bit: u32| {
            let leaves = std::arch::x86_64::__cpuid(0).eax;
            leaves >= 7 && std::arch::x86_64::__cpuid_count(7, 0).ebx >> bit & 1 == 1
        };
        Some(if has(24) {
            Processor::Clwb
        } else if has(23) {
            Processor::ClflushOpt
        } else {
            // Every one of 64 bits has it.
            Processor::Clflush
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn detect() -> Option<Processor> {
        None
    }
}

#[cfg(target_arch = "x86_64")]
impl LineFlusher for Processor {
    fn write_back(&self, mapping: &Mapping, offset: u64, len: u64) {
        use std::arch::asm;
        let end = offset.saturating_add(len).min(mapping.len());
        let mut at = offset & !(LINE_BYTES - 1);
        while at < end {
            let address = mapping.address() + at as usize;
            // SAFETY: a write-back changes no byte that a program can see and no flag, so all that it asks is that the
            // address is mapped: `at` is below the map's length, and the map lives as long as `mapping` is borrowed.
            // The instruction is one that this processor said it has. No `nomem`: stores before it stay before it.
            #[expect(unsafe_code, reason = "the language has no word for it")]
            unsafe {
                match self {
                    Processor::Clwb => {
                        asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
                    }
                    Processor::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
                    }
                    Processor::Clflush => {
                        asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags));
                    }
                }
            }
            at += LINE_BYTES;
        }
    }

    fn fence(&self) {
        // SAFETY: a fence orders memory and does nothing else; every processor of this kind has it.
        #[expect(unsafe_code, reason = "the language's fences do not order write-backs")]
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl LineFlusher for Processor {
    fn write_back(&self, _: &Mapping, _: u64, _: u64) {
        match *self {}
    }

    fn fence(&self) {
        match *self {}
    }
}
