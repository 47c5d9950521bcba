//! The frame of all FirnDB files: a header with magic, kind and version, and checksummed blocks.
//!
//! ```text
//! file   = header, then the content of the kind
//! header = "FIRN" kind:4 version:u16 zero:u16 crc32(of the 12 bytes before):u32
//! block  = payload crc32(of payload):u32
//! ```
//! All numbers are little endian. Invariant 5: every file has magic, version and checksums.
//!
//! ```
//! use firn_codec::frame::{open_block, seal_block};
//!
//! let mut file = b"payload".to_vec();
//! seal_block(0, &mut file);
//! assert_eq!(open_block("a.fst", 0, &file).unwrap(), b"payload");
//! file[3] ^= 1;
//! assert!(open_block("a.fst", 0, &file).is_err());
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{Error, Result};

/// Bytes of a file header.
pub const HEADER_BYTES: usize = 16;
/// Bytes that [`seal_block`] adds to a payload.
pub const BLOCK_TRAILER_BYTES: usize = 4;

const MAGIC: [u8; 4] = *b"FIRN";

/// A kind of file: its name in the header, and the versions that this build writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFormat {
    /// Four ASCII letters, for example `TABL`.
    pub kind: [u8; 4],
    /// The version that this build writes; also the newest that it reads.
    pub version: u16,
    /// The oldest version that this build reads.
    pub oldest: u16,
}

impl FileFormat {
    /// The header of a file of the current version.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&self.kind);
        header[8..10].copy_from_slice(&self.version.to_le_bytes());
        let checksum = crc32(&header[..12]);
        header[12..].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Checks the header at the front of `bytes` and returns the file's version. `file` is used in
    /// messages only.
    ///
    /// # Errors
    /// `Corrupt` for a malformed header; `Invalid` if this build cannot read the version: the file
    /// is intact, but the build is too old or too new.
    pub fn check(&self, file: &str, bytes: &[u8]) -> Result<u16> {
        let bad = |what: String| Err(Error::corrupt(file, 0, what));
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return bad(format!("{} bytes are too few for a file header", bytes.len()));
        };
        let [m0, m1, m2, m3, k0, k1, k2, k3, v0, v1, _, _, c0, c1, c2, c3] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return bad("not a FirnDB file: it does not begin with FIRN".into());
        }
        let (found, expected) = (u32::from_le_bytes([c0, c1, c2, c3]), crc32(&header[..12]));
        if found != expected {
            return bad(format!(
                "header checksum {found:#010x}, expected {expected:#010x}: run firn check"
            ));
        }
        if [k0, k1, k2, k3] != self.kind {
            return bad(format!(
                "file kind {}, expected {}: restore the right file",
                [k0, k1, k2, k3].escape_ascii(),
                self.kind.escape_ascii()
            ));
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version < self.oldest || version > self.version {
            return Err(Error::invalid(format!(
                "{file}: format version {version}, but this build reads {} to {}: use a build that \
                 reads it",
                self.oldest, self.version
            )));
        }
        Ok(version)
    }
}

/// The CRC-32 (IEEE) of `bytes`.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The CRC-32 of the concatenation of `parts`.
pub fn crc32_parts(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Turns `out[start..]` into a block by appending its checksum.
///
/// # Panics
/// If `start` is past the end of `out`.
#[expect(clippy::indexing_slicing, reason = "a wrong start must not become durable")]
pub fn seal_block(start: usize, out: &mut Vec<u8>) {
    let checksum = crc32(&out[start..]);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// Verifies a block, which includes its checksum, and returns the payload. `file` and `offset` name
/// its location in messages.
///
/// # Errors
/// `Corrupt` if the checksum does not match.
pub fn open_block<'a>(file: &str, offset: u64, block: &'a [u8]) -> Result<&'a [u8]> {
    let Some((payload, stored)) = block.split_last_chunk::<BLOCK_TRAILER_BYTES>() else {
        return Err(Error::corrupt(file, offset, "block is shorter than its checksum"));
    };
    let (found, expected) = (crc32(payload), u32::from_le_bytes(*stored));
    if found != expected {
        return Err(Error::corrupt(
            file,
            offset,
            format!("block checksum {found:#010x}, expected {expected:#010x}: run firn check"),
        ));
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use firn_model::ErrorKind;

    use super::*;

    const FORMAT: FileFormat = FileFormat { kind: *b"TEST", version: 3, oldest: 2 };

    #[test]
    fn headers_are_checked() {
        let header = FORMAT.header();
        assert_eq!(FORMAT.check("a", &header).unwrap(), 3);
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = header;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FORMAT.check("a", &flipped).is_err(), "bit {bit}");
        }
        assert!(FORMAT.check("a", &header[..15]).is_err());
        let newer = FileFormat { version: 4, ..FORMAT }.header();
        assert_eq!(*FORMAT.check("a", &newer).unwrap_err().kind(), ErrorKind::Invalid);
        let other = FileFormat { kind: *b"TABL", ..FORMAT }.header();
        assert!(FORMAT.check("a", &other).unwrap_err().to_string().contains("TABL"));
    }

    #[test]
    fn blocks_are_checked() {
        let mut out = b"before".to_vec();
        out.extend_from_slice(b"payload");
        seal_block(6, &mut out);
        assert_eq!(open_block("a", 6, &out[6..]).unwrap(), b"payload");
        for bit in 0..11 * 8 {
            let mut flipped = out[6..].to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open_block("a", 6, &flipped).is_err());
        }
        assert!(open_block("a", 6, &out[..3]).is_err());
        assert_eq!(crc32_parts(&[b"ab", b"", b"c"]), crc32(b"abc"));
    }
}
