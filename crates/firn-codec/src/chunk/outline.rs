//! What a chunk is made of, for people: the codec of each column, and the bytes that it takes.

use firn_model::{Result, Slot};

use super::read::Lone;
use super::{Body, Chunk};
use crate::columns::Slots;
use crate::{integers, value_column};

/// A column of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnOutline {
    /// Its form in the words of docs/formats/chunk.md.
    pub codec: String,
    /// Timestamps or values.
    pub entry_count: usize,
    /// 0 if another column's bytes are its own too, or none are needed.
    pub bytes: usize,
}

/// The columns of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnsOutline {
    /// Time columns that are shared by members.
    pub times: Vec<ColumnOutline>,
    /// A value column for each member, by slot.
    pub values: Vec<(Slot, ColumnOutline)>,
}

impl Chunk<'_> {
    /// Names the columns; none is decoded but the time column of a lone irregular series.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged.
    pub fn outline(&self) -> Result<ColumnsOutline> {
        match &self.body {
            Body::Lone(lone) => self.outline_lone(lone),
            Body::Members(members) => {
                let mut outline =
                    ColumnsOutline { times: members.outline_times(), ..ColumnsOutline::default() };
                members.for_each_member(
                    &mut Slots::All.walk(),
                    |slot, entry_count, bytes, is_shared| {
                        let (codec, bytes) = match is_shared {
                            true => ("as the one before".to_owned(), 0),
                            false => (value_column::codec_of(bytes), bytes.len()),
                        };
                        outline.values.push((slot, ColumnOutline { codec, entry_count, bytes }));
                    },
                )?;
                Ok(outline)
            }
        }
    }

    fn outline_lone(&self, lone: &Lone<'_>) -> Result<ColumnsOutline> {
        let entry_count = lone.entry_count;
        let values = lone.values(self.range.start)?;
        let times = match lone.regular {
            true => ColumnOutline { codec: "regular".to_owned(), entry_count, bytes: 0 },
            false => ColumnOutline {
                codec: integers::codec_of(lone.bytes),
                entry_count,
                bytes: lone.bytes.len() - values.len(),
            },
        };
        let codec = value_column::codec_of(values);
        let column = ColumnOutline { codec, entry_count, bytes: values.len() };
        Ok(ColumnsOutline { times: vec![times], values: vec![(Slot(0), column)] })
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{ColumnBatch, GroupId, Timestamp};

    use super::*;
    use crate::{Effort, GroupColumns, encode_chunk};

    fn outline(members: &[(&[Timestamp], &[f64])]) -> ColumnsOutline {
        let mut columns = GroupColumns::default();
        for (slot, (times, values)) in members.iter().enumerate() {
            let one = ColumnBatch::of_one(Slot(slot as u32), (*times).into(), values.to_vec());
            if columns.batch.times.is_empty() {
                columns.batch.times = one.times;
            }
            columns.batch.columns.extend(one.columns);
        }
        let mut bytes = Vec::new();
        encode_chunk(GroupId(1), &columns, Effort::Small, &mut bytes);
        let outline = Chunk::open(&bytes).unwrap().outline().unwrap();
        let columns = outline.times.iter().chain(outline.values.iter().map(|column| &column.1));
        assert!(columns.map(|column| column.bytes).sum::<usize>() < bytes.len(), "{outline:?}");
        outline
    }

    #[test]
    fn columns_are_named_with_their_bytes() {
        let times: Vec<Timestamp> = (0..40).map(|at| at * 10_000 + at % 7).collect();
        let regular: Vec<Timestamp> = (0..40).map(|at| at * 10_000).collect();
        let rising: Vec<f64> = (0..40).map(|at| f64::from(at * at) / 10.0).collect();
        let still = vec![3.0; 40];
        let lone = outline(&[(&regular, &rising)]);
        assert_eq!((lone.times[0].codec.as_str(), lone.times[0].bytes), ("regular", 0));
        assert!(lone.values[0].1.codec.starts_with("decimals / 10^1"), "{lone:?}");
        let jittered = outline(&[(&times, &rising)]);
        assert!(jittered.times[0].codec == "delta" && jittered.times[0].bytes > 0, "{jittered:?}");
        // Late by up to a second each: near a line, while a step has the lateness of two.
        let late: Vec<Timestamp> = (0..=701).map(|at| at * 10_000 + at * at * 311 % 701).collect();
        let values: Vec<f64> = (0..=701).map(f64::from).collect();
        let near_a_line = outline(&[(&late, &values)]);
        assert!(near_a_line.times[0].codec.starts_with("line"), "{near_a_line:?}");
        let group = outline(&[(&times, &still), (&times, &still), (&times, &rising)]);
        let codecs: Vec<&str> = group.values.iter().map(|column| &*column.1.codec).collect();
        assert_eq!(codecs[..2], ["constant integer", "as the one before"]);
        assert!(group.times.len() == 1 && group.times[0].entry_count == 40, "{group:?}");
        assert!(group.values.iter().all(|column| column.1.entry_count == 40), "{group:?}");
    }
}
