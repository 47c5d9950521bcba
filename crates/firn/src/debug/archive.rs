//! A `tar.gz` of small files, in the format `ustar`.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use firn_server::given_file::OutputFile;
use flate2::Compression;
use flate2::write::GzEncoder;

/// An archive that is being written. Without [`Archive::close`] it is incomplete.
#[derive(Debug)]
pub(super) struct Archive {
    out: GzEncoder<File>,
    /// Seconds since 1970, for all files.
    modified: u64,
}

const BLOCK_BYTES: usize = 512;
const NAME_BYTES_MAX: usize = 100;

impl Archive {
    /// Replaces the file at `path`.
    pub(super) fn create(path: &Path, modified: u64) -> io::Result<Archive> {
        let out = GzEncoder::new(OutputFile::open(path)?.replace()?, Compression::default());
        Ok(Archive { out, modified })
    }

    /// Adds a file. `name` has at most 100 bytes.
    pub(super) fn add(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(name, contents.len(), self.modified)?)?;
        self.out.write_all(contents)?;
        let padding_len = contents.len().next_multiple_of(BLOCK_BYTES) - contents.len();
        self.out.write_all(&[0; BLOCK_BYTES][..padding_len])
    }

    /// Writes the end.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.out.finish()?.sync_all()
    }
}

fn header(name: &str, len: usize, modified: u64) -> io::Result<[u8; BLOCK_BYTES]> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if name.len() > NAME_BYTES_MAX {
        return Err(invalid("a name in an archive has at most 100 bytes"));
    }
    // Eleven octal digits.
    if len >= 1 << 33 {
        return Err(invalid("a file in an archive has at most 8 GiB"));
    }
    let mut header = [0; BLOCK_BYTES];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{len:011o}\0"));
    put(136, &format!("{modified:011o}\0"));
    // The checksum is that of the header with blanks in its place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_the_archive() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.tar.gz");
        let mut archive = Archive::create(&path, 1_700_000_000).expect("an archive");
        let long = vec![b'x'; 1_025];
        for (name, contents) in [("empty", &b""[..]), ("block", &[b'y'; 512]), ("long", &long)] {
            archive.add(name, contents).expect("a file");
        }
        assert!(archive.add(&"n".repeat(101), b"").is_err());
        archive.close().expect("the end");
        let tar = Command::new("tar").arg("-xzf").arg(&path).current_dir(folder.path()).output();
        let tar = tar.expect("tar runs");
        assert!(tar.status.success(), "{tar:?}");
        let read = |name: &str| std::fs::read(folder.path().join(name)).expect(name);
        assert_eq!((read("empty"), read("block"), read("long")), (vec![], vec![b'y'; 512], long));
    }
}
