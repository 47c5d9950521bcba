//! The fuzz corpus: one file per target in `fuzz/corpus`, unpacked for a run.
//!
//! Layout: [`MAGIC`], then for each input its length (`u32`, little-endian) and its bytes. Inputs
//! ascend by length, then bytes, so that the same corpus is the same file.

use std::fs;
use std::path::Path;

const MAGIC: &[u8] = b"firn-corpus-1\n";

/// Writes each input of the pack as one file of `folder`, which is emptied first.
pub(crate) fn unpack(pack: &Path, folder: &Path) -> Result<usize, String> {
    let bytes = fs::read(pack).map_err(|e| format!("{}: {e}", pack.display()))?;
    let inputs = decode(&bytes).map_err(|e| format!("{}: {e}", pack.display()))?;
    let write = || {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        for (idx, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("{idx:05}")), input)?;
        }
        std::io::Result::Ok(())
    };
    write().map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(inputs.len())
}

/// Packs all files of `folder`.
pub(crate) fn pack(folder: &Path, pack: &Path) -> Result<usize, String> {
    let read = || {
        let files = fs::read_dir(folder)?.map(|entry| fs::read(entry?.path()));
        files.collect::<std::io::Result<Vec<_>>>()
    };
    let mut inputs = read().map_err(|e| format!("{}: {e}", folder.display()))?;
    inputs.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    inputs.dedup();
    let bytes = encode(&inputs).map_err(|e| format!("{}: {e}", folder.display()))?;
    fs::write(pack, bytes).map_err(|e| format!("{}: {e}", pack.display()))?;
    Ok(inputs.len())
}

fn encode(inputs: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut bytes = MAGIC.to_vec();
    for input in inputs {
        let length = u32::try_from(input.len()).map_err(|_| "an input of over 4 GiB")?;
        bytes.extend(length.to_le_bytes());
        bytes.extend(input);
    }
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or("not a corpus: wrong first bytes")?;
    let mut inputs = Vec::new();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk().ok_or("truncated in a length")?;
        let length = u32::from_le_bytes(*length) as usize;
        let (input, behind) = behind.split_at_checked(length).ok_or("truncated in an input")?;
        inputs.push(input);
        rest = behind;
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_read_as_written() {
        let inputs = [vec![], b"sum(up)".to_vec(), vec![0, 255, 10]];
        let bytes = encode(&inputs).expect("short inputs");
        assert_eq!(decode(&bytes).expect("as written"), inputs);
    }

    #[test]
    fn damaged_packs_are_refused() {
        let bytes = encode(&[b"sum(up)".to_vec()]).expect("a short input");
        for end in [0, 5, MAGIC.len() + 2, bytes.len() - 1] {
            assert!(decode(&bytes[..end]).is_err(), "{end}");
        }
    }

    /// The packs of the repository, each with at least one input.
    #[test]
    fn kept_packs_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for fuzzer in &crate::fuzz::FUZZERS {
            let name = fuzzer.name;
            let bytes = fs::read(folder.join(format!("{name}.pack"))).expect("a pack per fuzzer");
            assert!(!decode(&bytes).expect("a valid pack").is_empty(), "{name}");
        }
    }
}
