//! The index's part of a manifest record.
//!
//! ```text
//! part    = varint(version 1) varint(kept) varint(added count) segment* varint(shard count) varint(next local id)*
//! segment = varint(number) varint(file bytes) varint(series count)
//! ```
//! `kept` segments of those before stay, the added ones follow. The whole state as one part keeps
//! none and adds all.

use firn_model::{Error, Result, decode_varint, encode_varint};

/// One sealed segment as the manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    /// Its file is `index/<number>.seg`.
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) series_count: u64,
}

/// A change of the list of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kept: usize,
    pub(crate) added: Vec<SegmentInfo>,
    /// Per shard; ids below are never given again.
    pub(crate) next_ids: Vec<u64>,
}

const VERSION: u64 = 1;

impl SegmentInfo {
    pub(crate) fn path(&self) -> String {
        segment_path(self.number)
    }
}

/// The file of a segment.
pub(crate) fn segment_path(number: u64) -> String {
    format!("index/{number}.seg")
}

impl Part {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |value: u64| encode_varint(value, &mut out);
        put(VERSION);
        put(self.kept as u64);
        put(self.added.len() as u64);
        for segment in &self.added {
            put(segment.number);
            put(segment.file_bytes);
            put(segment.series_count);
        }
        put(self.next_ids.len() as u64);
        self.next_ids.iter().for_each(|&next| put(next));
        out
    }

    /// # Errors
    /// `Invalid` for a newer version or bytes that are no part.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Part> {
        let mut rest = bytes;
        let mut take =
            || decode_varint(&mut rest).ok_or_else(|| Error::invalid("index part is cut short"));
        let version = take()?;
        if version != VERSION {
            return Err(Error::invalid(format!(
                "index part of version {version}, this build knows {VERSION}; use a newer build"
            )));
        }
        let kept = take()? as usize;
        let mut added = Vec::new();
        for _ in 0..take()? {
            let (number, file_bytes, series_count) = (take()?, take()?, take()?);
            added.push(SegmentInfo { number, file_bytes, series_count });
        }
        let mut next_ids = Vec::new();
        for _ in 0..take()? {
            next_ids.push(take()?);
        }
        if !rest.is_empty() {
            return Err(Error::invalid("index part has bytes after its end"));
        }
        Ok(Part { kept, added, next_ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_back_and_a_bad_one_is_refused() {
        let segment = |number| SegmentInfo { number, file_bytes: 1 << 40, series_count: 9 };
        let part = Part { kept: 2, added: vec![segment(7), segment(9)], next_ids: vec![0, 300] };
        let bytes = part.encode();
        assert_eq!(Part::decode(&bytes).unwrap(), part);
        assert!((0..bytes.len()).all(|end| Part::decode(&bytes[..end]).is_err()));
        assert!(Part::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Part::decode(&[2]).unwrap_err().to_string().contains("version 2"));
    }
}
