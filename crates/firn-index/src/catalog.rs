//! The index's part of a manifest record.
//!
//! ```text
//! part    = varint(version 4) varint(removed count) varint(number)*
//!           varint(added count) segment*
//!           varint(shard count) varint(next local id)*
//!           varint(shard count) varint(closed local id)*
//!           varint(rules bytes) rules
//! segment = varint(number) varint(file bytes) varint(series count) varint(group count)
//! ```
//!
//! The added segments replace the first removed one, or are appended if none is removed. Ids only
//! increase: of two parts the larger id counts, for each shard. Groups with smaller ids than the
//! *closed* one take no new member: their slots may have been issued in a lost segment. The
//! complete state as one part removes nothing and adds all. `rules` are the learned rules of groups
//! (see `group_rules`); none: those of the part before. Version 3 has no rules.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, Result, decode_varint, encode_varint};

/// A sealed segment as the manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentInfo {
    /// Its file is `index/<number>.seg`.
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) series_count: u64,
    /// Groups that are in no older segment.
    pub(crate) group_count: u64,
}

/// A change of the list of segments: one part of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CatalogEdit {
    /// Numbers of segments that are adjacent in the list.
    pub(crate) removed: Vec<u64>,
    pub(crate) added: Vec<SegmentInfo>,
    /// Per shard: smaller ids are never issued again.
    pub(crate) next_ids: Vec<u64>,
    /// Per shard: groups with smaller ids take no new member.
    pub(crate) closed_ids: Vec<u64>,
    /// The learned rules of groups; empty: unchanged.
    pub(crate) rules: Vec<u8>,
}

/// The sealed segments, oldest first, and the issued ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalog {
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) next_ids: Vec<u64>,
    pub(crate) closed_ids: Vec<u64>,
    pub(crate) rules: Vec<u8>,
}

const VERSION: u64 = 4;
const VERSION_WITHOUT_RULES: u64 = 3;

impl SegmentInfo {
    pub(crate) fn path(&self) -> String {
        segment_path(self.number)
    }
}

/// The path of a segment file.
pub(crate) fn segment_path(number: u64) -> String {
    format!("index/{number}.seg")
}

impl Catalog {
    /// The result of `parts`, applied in order.
    ///
    /// # Errors
    /// As [`Catalog::take`] and [`CatalogEdit::decode`].
    pub(crate) fn read(parts: &[&[u8]]) -> Result<Catalog> {
        let mut catalog = Catalog::default();
        for part in parts {
            catalog.take(&CatalogEdit::decode(part)?)?;
        }
        Ok(catalog)
    }

    /// Applies a change.
    ///
    /// # Errors
    /// `Invalid` if it removes a segment that is not in the list; the catalog is unchanged then.
    pub(crate) fn take(&mut self, part: &CatalogEdit) -> Result<()> {
        let is_removed = |segment: &SegmentInfo| part.removed.contains(&segment.number);
        if self.segments.iter().filter(|segment| is_removed(segment)).count() != part.removed.len()
        {
            return Err(Error::invalid(format!(
                "an index part removes segments {:?}, the list has {:?}: restore the manifest from \
                 a backup",
                part.removed,
                self.segments.iter().map(|segment| segment.number).collect::<Vec<_>>()
            )));
        }
        let at = self.segments.iter().position(is_removed).unwrap_or(self.segments.len());
        self.segments.retain(|segment| !is_removed(segment));
        self.segments.splice(at..at, part.added.iter().copied());
        raise(&mut self.next_ids, &part.next_ids);
        raise(&mut self.closed_ids, &part.closed_ids);
        if !part.rules.is_empty() {
            self.rules.clone_from(&part.rules);
        }
        Ok(())
    }

    /// The complete state as one part.
    pub(crate) fn to_part(&self) -> CatalogEdit {
        CatalogEdit {
            removed: Vec::new(),
            added: self.segments.clone(),
            next_ids: self.next_ids.clone(),
            closed_ids: self.closed_ids.clone(),
            rules: self.rules.clone(),
        }
    }
}

fn raise(known: &mut Vec<u64>, ids: &[u64]) {
    if known.len() < ids.len() {
        known.resize(ids.len(), 0);
    }
    for (known, &id) in known.iter_mut().zip(ids) {
        *known = id.max(*known);
    }
}

impl CatalogEdit {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |value: u64| encode_varint(value, &mut out);
        put(VERSION);
        put(self.removed.len() as u64);
        self.removed.iter().for_each(|&number| put(number));
        put(self.added.len() as u64);
        for segment in &self.added {
            put(segment.number);
            put(segment.file_bytes);
            put(segment.series_count);
            put(segment.group_count);
        }
        for ids in [&self.next_ids, &self.closed_ids] {
            put(ids.len() as u64);
            ids.iter().for_each(|&id| put(id));
        }
        put(self.rules.len() as u64);
        out.extend_from_slice(&self.rules);
        // Pairs with `decode`: the next open depends on these bytes.
        let decoded = CatalogEdit::decode(&out);
        assert!(
            decoded.is_ok_and(|decoded| decoded == *self),
            "index part: {self:?} is unreadable"
        );
        out
    }

    /// # Errors
    /// `Invalid` for another version or malformed bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<CatalogEdit> {
        let mut rest = bytes;
        let ends_too_early =
            || Error::invalid("index part ends too early: restore the manifest from a backup");
        let mut take = || decode_varint(&mut rest).ok_or_else(ends_too_early);
        let version = take()?;
        if version != VERSION && version != VERSION_WITHOUT_RULES {
            return Err(Error::invalid(format!(
                "index part has version {version}, this build reads {VERSION_WITHOUT_RULES} and \
                 {VERSION}: use the build that wrote it"
            )));
        }
        let mut part = CatalogEdit::default();
        for _ in 0..take()? {
            part.removed.push(take()?);
        }
        for _ in 0..take()? {
            let (number, file_bytes) = (take()?, take()?);
            let (series_count, group_count) = (take()?, take()?);
            part.added.push(SegmentInfo { number, file_bytes, series_count, group_count });
        }
        for ids in [&mut part.next_ids, &mut part.closed_ids] {
            for _ in 0..take()? {
                ids.push(take()?);
            }
        }
        let rules_bytes = if version == VERSION { take()? } else { 0 };
        let rules_bytes = usize::try_from(rules_bytes).map_err(|_| ends_too_early())?;
        let (rules, rest) = rest.split_at_checked(rules_bytes).ok_or_else(ends_too_early)?;
        part.rules = rules.to_vec();
        if !rest.is_empty() {
            return Err(Error::invalid(
                "index part has trailing bytes: restore the manifest from a backup",
            ));
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u64) -> SegmentInfo {
        SegmentInfo { number, file_bytes: 1 << 40, series_count: 9, group_count: 3 }
    }

    #[test]
    fn a_part_is_read_back_and_a_malformed_one_is_refused() {
        let added = vec![segment(7), segment(9)];
        let part = CatalogEdit {
            removed: vec![2, 300],
            added,
            next_ids: vec![0, 300],
            closed_ids: vec![7],
            rules: vec![1, 2, 3],
        };
        let bytes = part.encode();
        assert_eq!(CatalogEdit::decode(&bytes).unwrap(), part);
        assert!((0..bytes.len()).all(|end| CatalogEdit::decode(&bytes[..end]).is_err()));
        assert!(CatalogEdit::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(CatalogEdit::decode(&[5]).unwrap_err().to_string().contains("version 5"));
    }

    #[test]
    fn a_part_without_rules_of_the_previous_version_is_read() {
        let part = CatalogEdit { added: vec![segment(7)], ..CatalogEdit::default() };
        let mut bytes = part.encode();
        assert_eq!((bytes[0], bytes.pop()), (4, Some(0)));
        bytes[0] = 3;
        assert_eq!(CatalogEdit::decode(&bytes).unwrap(), part);
        let rules = CatalogEdit { rules: vec![9], ..CatalogEdit::default() };
        let catalog = Catalog::read(&[&rules.encode(), &bytes]).unwrap();
        assert_eq!((&catalog.rules[..], catalog.segments.len()), (&[9][..], 1));
        assert_eq!(Catalog::read(&[&catalog.to_part().encode()]).unwrap(), catalog);
    }

    #[test]
    fn seals_and_merges_change_the_list_in_any_order() {
        let add = |number, next_ids: &[u64]| CatalogEdit {
            added: vec![segment(number)],
            next_ids: next_ids.to_vec(),
            ..CatalogEdit::default()
        };
        let mut catalog = Catalog::default();
        for number in 1..=4 {
            catalog.take(&add(number, &[number, 7])).unwrap();
        }
        let merge = CatalogEdit { removed: vec![2, 3], ..add(6, &[]) };
        catalog.take(&add(5, &[3, 8])).unwrap();
        catalog.take(&merge).unwrap();
        let numbers = |catalog: &Catalog| -> Vec<u64> {
            catalog.segments.iter().map(|segment| segment.number).collect()
        };
        assert_eq!(numbers(&catalog), [1, 6, 4, 5]);
        assert_eq!(catalog.next_ids, [4, 8]);
        let before = catalog.clone();
        assert!(catalog.take(&merge).is_err());
        assert_eq!(catalog, before);
        let whole = Catalog::read(&[&catalog.to_part().encode()]).unwrap();
        assert_eq!(whole, catalog);
        let closed_ids = vec![4, 8];
        let gone = CatalogEdit { removed: vec![1, 6, 4, 5], closed_ids, ..CatalogEdit::default() };
        catalog.take(&gone).unwrap();
        assert_eq!((catalog.segments.len(), catalog.next_ids), (0, vec![4, 8]));
        assert_eq!(catalog.closed_ids, [4, 8]);
    }
}
