//! Manifest edits: the changes of one atomic step, with an opaque part per room.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{decode_varint, encode_varint};

/// The room of a part. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Engine = 1,
    Log = 2,
    Index = 3,
    Tree = 4,
}

/// The changes of one atomic step, room by room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    parts: Vec<(u8, Vec<u8>)>,
}

impl Edit {
    pub(crate) fn with(mut self, room: Room, part: Vec<u8>) -> Edit {
        self.parts.push((room as u8, part));
        self
    }

    /// Removes the parts of `room` that `is_removed` selects.
    pub(crate) fn without(mut self, room: Room, is_removed: impl Fn(&[u8]) -> bool) -> Edit {
        self.parts.retain(|part| part.0 != room as u8 || !is_removed(&part.1));
        self
    }

    pub(crate) fn parts(&self, room: Room) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().filter(move |part| part.0 == room as u8).map(|part| part.1.as_slice())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (room, part) in &self.parts {
            out.push(*room);
            encode_varint(part.len() as u64, &mut out);
            out.extend_from_slice(part);
        }
        out
    }

    pub(crate) fn decode(mut rest: &[u8]) -> Option<Edit> {
        let mut parts = Vec::new();
        while let Some((&room, after)) = rest.split_first() {
            rest = after;
            let part_bytes = usize::try_from(decode_varint(&mut rest)?).ok()?;
            let (part, after) = rest.split_at_checked(part_bytes)?;
            rest = after;
            parts.push((room, part.to_vec()));
        }
        Some(Edit { parts })
    }
}
