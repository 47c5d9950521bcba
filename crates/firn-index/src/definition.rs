//! Definitions of series, as the log contains them.
//!
//! ```text
//! payload    = definition*
//! definition = varint(group id) varint(1 if lone, else 0) varint(first slot)
//!              varint(member count) text(identity labels) text(common labels) text(member labels)*
//! text       = varint(bytes) bytes          labels as firn_model::Labels encodes them
//! ```
//!
//! A definition contains its group's labels, so that it can be replayed alone, twice, and in any
//! order. A lone series has one member without labels.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{Error, GroupId, Labels, Result, decode_varint, encode_varint};

/// A definition of some members of a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) group: GroupId,
    pub(crate) lone: bool,
    pub(crate) first_slot: u32,
    /// The identity labels of the group; of a lone series, all labels.
    pub(crate) labels: Labels,
    /// The labels that these members share besides.
    pub(crate) common: Labels,
    /// The labels of each member alone.
    pub(crate) members: Vec<Labels>,
}

impl Definition {
    /// Appends the definition.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        encode_varint(self.group.0, out);
        encode_varint(u64::from(self.lone), out);
        encode_varint(u64::from(self.first_slot), out);
        encode_varint(self.members.len() as u64, out);
        push_labels(&self.labels, out);
        push_labels(&self.common, out);
        self.members.iter().for_each(|member| push_labels(member, out));
        // Pairs with `decode`, which replay calls. Checked in debug builds only, because every new
        // series is encoded here.
        debug_assert!(
            decode(&mut out.get(start..).unwrap_or_default()).is_ok_and(|decoded| decoded == *self),
            "a definition that replay would refuse or change: {self:?}"
        );
    }
}

/// The series of a definition, without their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DefinedSlots {
    pub(crate) group: GroupId,
    pub(crate) first_slot: u32,
    pub(crate) count: u32,
}

/// Takes one definition from the front of `input` and reads only its numbers.
///
/// # Errors
/// `Invalid` if the bytes end too early or have too many slots.
pub(crate) fn skip(input: &mut &[u8]) -> Result<DefinedSlots> {
    let group = GroupId(take_varint(input)?);
    take_varint(input)?;
    let (first_slot, count) = (take_u32(input)?, take_u32(input)?);
    if first_slot.checked_add(count).is_none() {
        return Err(Error::invalid(format!("definition of {group}: slots exceed 2^32")));
    }
    // Identity and common labels, then those of the members.
    for _ in 0..u64::from(count).saturating_add(2) {
        take_text(input)?;
    }
    Ok(DefinedSlots { group, first_slot, count })
}

/// Takes one definition from the front of `input`.
///
/// # Errors
/// `Invalid` if the bytes are no definition.
pub(crate) fn decode(input: &mut &[u8]) -> Result<Definition> {
    let group = GroupId(take_varint(input)?);
    let lone = match take_varint(input)? {
        0 => false,
        1 => true,
        flags => {
            return Err(Error::invalid(format!(
                "definition of {group}: lone is {flags}, expected 0 or 1"
            )));
        }
    };
    let first_slot = take_u32(input)?;
    let count = take_u32(input)?;
    let (labels, common) = (take_labels(input)?, take_labels(input)?);
    // Each member takes at least one byte: bound the reservation by the input.
    let mut members = Vec::with_capacity((count as usize).min(input.len()));
    for _ in 0..count {
        members.push(take_labels(input)?);
    }
    if first_slot.checked_add(count).is_none() {
        return Err(Error::invalid(format!("definition of {group}: slots exceed 2^32")));
    }
    let is_bare = common.is_empty() && members.iter().all(Labels::is_empty);
    if lone && (first_slot != 0 || count != 1 || !is_bare) {
        return Err(Error::invalid(format!(
            "definition of {group}: a lone series with slots or member labels"
        )));
    }
    Ok(Definition { group, lone, first_slot, labels, common, members })
}

fn push_labels(labels: &Labels, out: &mut Vec<u8>) {
    encode_varint(labels.as_encoded().len() as u64, out);
    out.extend_from_slice(labels.as_encoded());
}

fn take_labels(input: &mut &[u8]) -> Result<Labels> {
    Labels::from_encoded(take_text(input)?)
}

fn take_text<'a>(input: &mut &'a [u8]) -> Result<&'a [u8]> {
    let len = take_varint(input)?;
    let split = usize::try_from(len).ok().and_then(|len| input.split_at_checked(len));
    let (text, rest) = split.ok_or_else(cut_short)?;
    *input = rest;
    Ok(text)
}

fn take_varint(input: &mut &[u8]) -> Result<u64> {
    decode_varint(input).ok_or_else(cut_short)
}

fn take_u32(input: &mut &[u8]) -> Result<u32> {
    u32::try_from(take_varint(input)?)
        .map_err(|_| Error::invalid("definition: a number exceeds 2^32"))
}

fn cut_short() -> Error {
    Error::invalid("definition ends too early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_a_definition_takes_the_bytes_that_decoding_it_takes() {
        let labels = |pairs: &[(&str, &str)]| Labels::from_pairs(pairs.iter().copied()).unwrap();
        let lone = Definition {
            group: GroupId(1 << 40),
            lone: true,
            first_slot: 0,
            labels: labels(&[("__name__", "up"), ("host", "a")]),
            common: Labels::empty(),
            members: vec![Labels::empty()],
        };
        let group = Definition {
            group: GroupId(7),
            lone: false,
            first_slot: 300,
            labels: labels(&[("job", "a")]),
            common: labels(&[("os", "linux")]),
            members: (0..200).map(|idx| labels(&[("__name__", &format!("m{idx}"))])).collect(),
        };
        for definition in [lone, group] {
            let mut bytes = Vec::new();
            definition.encode(&mut bytes);
            let len = bytes.len();
            bytes.extend([1, 2, 3]);
            let mut rest = &bytes[..];
            let count = definition.members.len() as u32;
            let Definition { group, first_slot, .. } = definition;
            assert_eq!(skip(&mut rest).unwrap(), DefinedSlots { group, first_slot, count });
            assert_eq!(rest, [1, 2, 3]);
            for cut in 0..len {
                assert!(skip(&mut &bytes[..cut]).is_err() && decode(&mut &bytes[..cut]).is_err());
            }
        }
        let mut too_many = Vec::new();
        for number in [1, 0, u64::from(u32::MAX), 1] {
            encode_varint(number, &mut too_many);
        }
        assert!(skip(&mut &too_many[..]).unwrap_err().to_string().contains("2^32"));
    }
}
