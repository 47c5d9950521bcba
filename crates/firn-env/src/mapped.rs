//! Immutable files as memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;

/// The bytes of a file that is not written again. A real disk maps them, so that only the accessed
/// pages are read and the system may drop them; a simulated disk copies them.
pub struct Mapped(MappedBytes);

enum MappedBytes {
    Map(memmap2::Mmap),
    Copy(Vec<u8>),
}

impl Mapped {
    /// Maps all of `file`. The file may be removed later.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn of_file(file: &File) -> io::Result<Mapped> {
        // SAFETY: the map is sound as long as the file is not changed or truncated. Only complete
        // files are mapped (index segments and tables, which were synced and named in the manifest
        // before). This process never writes to them again, and the folder's lock excludes other
        // FirnDB processes. The bytes are only read as bytes, and each block's checksum is verified
        // before use. Readers of tables find changes by other programs with
        // [`DiskFile::stamp`](crate::DiskFile::stamp).
        #[expect(
            unsafe_code,
            reason = "an index larger than memory is read through the page cache, and so are tables"
        )]
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Mapped(MappedBytes::Map(map)))
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Mapped {
        Mapped(MappedBytes::Copy(bytes))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            MappedBytes::Map(map) => map,
            MappedBytes::Copy(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.len())
    }
}
