//! Mapped files for writes, and the instructions that write cache lines back.
//!
//! A file on a file system that maps the device itself (DAX) is memory that survives power loss. A
//! store reaches the device after its cache line was written back and a fence followed. The kernel
//! takes no part in this and reports no errors: access to a broken page raises a bus error, as with
//! broken memory.
//!
//! All unsafe code for this is in this file: the map and three instructions.

use std::fmt;
use std::fs::File;
use std::io;

use memmap2::MmapMut;

/// Bytes of a cache line, on all processors that support such memory.
pub const LINE_BYTES: u64 = 64;

/// Makes cache lines durable: by processor instructions, or in a simulation that loses lines which
/// were not written back.
pub trait LineFlusher: fmt::Debug + Send + Sync {
    /// Starts to write back all lines that contain a byte of `len` at `offset` of `mapping`.
    fn write_back(&self, mapping: &Mapping, offset: u64, len: u64);

    /// Waits for the lines that this thread started to write back.
    fn fence(&self);
}

/// A file that is mapped for reads and writes, shared with others that have it open.
pub struct Mapping {
    file_id: u64,
    map: MmapMut,
}

impl Mapping {
    /// Maps all of `file`, which must not be empty. `file_id` identifies it in its file system.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn of_file(file: &File, file_id: u64) -> io::Result<Mapping> {
        // SAFETY: the map is sound as long as nothing else changes the bytes while a reference to
        // them lives, and the file is not truncated. Only the two methods below create references,
        // and these end with the call: `write` has `&mut self`, `copy` copies at once. So the
        // borrow checker separates them within this process. The seam has no call that shortens a
        // file. The folder's lock excludes other FirnDB processes. A `pwrite` to the same file uses
        // the same object, behind the same lock.
        #[expect(unsafe_code, reason = "persistent memory is written by stores")]
        let map = unsafe { MmapMut::map_mut(file) }?;
        Ok(Mapping { file_id, map })
    }

    /// Identifies the file.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether it has no bytes; always `false`.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// A copy of some bytes; fewer if the map ends before.
    pub fn copy(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.len());
        self.map.get(offset as usize..end as usize).unwrap_or_default().to_vec()
    }

    /// Stores `bytes`; `false` if they do not fit.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        let Some(target) = self.map.get_mut(offset as usize..end as usize) else { return false };
        target.copy_from_slice(bytes);
        true
    }

    /// The address of the first byte.
    fn address(&self) -> usize {
        self.map.as_ptr().addr()
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping(file {}, {} bytes)", self.file_id, self.map.len())
    }
}

/// The write-back instruction of the processor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Processor {
    /// Keeps the line in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Evicts the line; unordered with others.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// Evicts the line; ordered with others.
    #[cfg(target_arch = "x86_64")]
    Clflush,
}

impl Processor {
    /// The best instruction that this processor supports; `None` if it supports none.
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
            // Every 64-bit processor supports it.
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
            // SAFETY: a write-back changes no byte that a program can see and no flag; it only
            // requires a mapped address. `at` is below the map's length, and the map lives as long
            // as `mapping` is borrowed. The processor reported support for the instruction. There
            // is no `nomem` option, so earlier stores stay before it.
            #[expect(unsafe_code, reason = "Rust has no intrinsic for this instruction")]
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
        // SAFETY: a fence orders memory and has no other effect; every x86-64 processor supports
        // it.
        #[expect(unsafe_code, reason = "Rust fences do not order write-backs")]
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
