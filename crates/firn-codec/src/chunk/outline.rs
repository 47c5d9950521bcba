//! An outline of a chunk for inspection: the codec and the byte count of each column.

use firn_model::Slot;

/// The outline of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnOutline {
    /// The codec, named as in docs/formats/chunk.md.
    pub codec: String,
    /// Number of timestamps or values.
    pub entry_count: usize,
    /// Byte count; 0 if the column shares the bytes of another one or needs none.
    pub bytes: usize,
}

/// The outline of a chunk's columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnsOutline {
    /// The time columns.
    pub times: Vec<ColumnOutline>,
    /// The value column of each member, by slot.
    pub values: Vec<(Slot, ColumnOutline)>,
}

#[cfg(test)]
mod tests {
    use firn_model::{ColumnBatch, GroupId, Timestamp};

    use super::*;
    use crate::{Chunk, Effort, GroupColumns, encode_chunk};

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
        // Late by up to a second each: near a line, while each delta contains two delays.
        let late: Vec<Timestamp> = (0..=701).map(|at| at * 10_000 + at * at * 311 % 701).collect();
        let values: Vec<f64> = (0..=701).map(f64::from).collect();
        let near_a_line = outline(&[(&late, &values)]);
        assert!(near_a_line.times[0].codec.starts_with("line"), "{near_a_line:?}");
        let group = outline(&[(&times, &still), (&times, &still), (&times, &rising)]);
        let codecs: Vec<&str> = group.values.iter().map(|column| &*column.1.codec).collect();
        assert_eq!(codecs[..2], ["constant integer", "same as the previous column"]);
        assert!(group.times.len() == 1 && group.times[0].entry_count == 40, "{group:?}");
        assert!(group.values.iter().all(|column| column.1.entry_count == 40), "{group:?}");
    }
}
