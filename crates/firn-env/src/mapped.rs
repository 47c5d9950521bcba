//! Files that never change again, as memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;

/// The bytes of a file that is never changed again: mapped by a real disk, so that only what is
/// looked at is read and the system may take it back; copied by a simulated one.
pub struct Mapped(Bytes);

enum Bytes {
    Map(memmap2::Mmap),
    Copy(Vec<u8>),
}

impl Mapped {
    /// Maps all of `file`. Removing the file's name later does no harm.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of_file(file: &File) -> io::Result<Mapped> {
        // SAFETY: the map is sound as long as nobody changes or cuts the file. Only files that are
        // complete are mapped (index segments, which are synced and named in the manifest before),
        // this process never writes to one again, and the folder's lock keeps other processes of ours
        // away. The bytes are only ever read as bytes, and each block's checksum is compared before use.
        #[expect(
            unsafe_code,
            reason = "an index larger than memory is read through the page cache"
        )]
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Mapped(Bytes::Map(map)))
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Mapped {
        Mapped(Bytes::Copy(bytes))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Map(map) => map,
            Bytes::Copy(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.len())
    }
}
