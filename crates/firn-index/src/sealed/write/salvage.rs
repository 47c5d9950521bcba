//! Adds the readable content of a damaged segment to a builder.

use firn_model::GroupId;

use crate::sealed::format::lists::TableKind;
use crate::sealed::read::salvage::{NONE, SalvagedPairs, members_of};
use crate::sealed::read::segment::Sealed;
use crate::sealed::write::builder::{Builder, PartInput};

/// The first and the last group with lost members, as far as ids could be read.
pub(crate) type LostGroups = Option<(GroupId, GroupId)>;

impl SalvagedPairs {
    /// The builder's ids of pairs of the segment; `None` if a text is lost.
    fn of(&self, builder: &Builder<'_>, pairs: &[u32]) -> Option<Vec<u32>> {
        let known = pairs.iter().map(|&pair| {
            let known = self.known.get(pair as usize).copied().filter(|known| *known != NONE)?;
            Some(builder.pair(0, known))
        });
        known.collect()
    }
}

impl Builder<'_> {
    /// Adds the readable content of a damaged segment. `pairs` must be this builder's only source.
    pub(crate) fn salvage(&mut self, segment: &Sealed, pairs: &SalvagedPairs) -> LostGroups {
        let mut lost: LostGroups = None;
        let mut lose = |group: Option<GroupId>| {
            if let Some(group) = group {
                let (first, last) = lost.unwrap_or((group, group));
                lost = Some((first.min(group), last.max(group)));
            }
        };
        let ids = segment.salvage_ids(TableKind::Lone);
        segment.salvage_rows(TableKind::Lone, |row, _, labels| {
            let group = ids[row as usize];
            let labels = labels.and_then(|labels| pairs.of(self, &labels));
            match (group, labels) {
                (Some(group), Some(identity)) => {
                    let identity = &identity;
                    self.part(PartInput { group, lone: true, identity, next_slot: 0 });
                }
                _ => lose(group),
            }
        });
        let mut sets: Vec<Option<Vec<u32>>> = Vec::new();
        segment.salvage_rows(TableKind::MemberSets, |_, _, labels| {
            sets.push(labels.and_then(|labels| pairs.of(self, &labels)));
        });
        let (parts, shapes) = (segment.salvage_parts(), segment.salvage_shapes());
        let ids = segment.salvage_ids(TableKind::Parts);
        segment.salvage_rows(TableKind::Parts, |row, schema, labels| {
            let group = ids[row as usize];
            let read = || {
                let part = parts.get(row as usize)?.as_ref()?;
                let shape = shapes.get(part.shape as usize)?.as_ref()?;
                let members = members_of(part, shape, &sets)?;
                Some((members, part.next_slot(part.member_count(shape.len))?))
            };
            let labels = labels.and_then(|labels| pairs.of(self, &labels));
            let (Some(id), Some(labels), Some((members, next_slot))) = (group, labels, read())
            else {
                return lose(group);
            };
            let of = |is_identity: bool| {
                let columns = labels.iter().enumerate();
                let columns = columns.filter(move |at| schema.is_identity(at.0) == is_identity);
                columns.map(|column| *column.1)
            };
            let (identity, common): (Vec<u32>, Vec<u32>) =
                (of(true).collect(), of(false).collect());
            self.part(PartInput { group: id, lone: false, identity: &identity, next_slot });
            for (slot, set) in members {
                match set {
                    Some(set) => self.member(slot, &[&common[..], set].concat()),
                    None => lose(group),
                }
            }
        });
        lost
    }
}
