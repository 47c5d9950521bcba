//! From points in memory to the bytes of a slab.

use firn_codec::frame::crc32;
use firn_codec::varint::{encode_varint, encode_zigzag};

use super::format::{
    BLOCK_BYTES, Extent, KEYS_MIN, MARKER_BYTES, Marker, NO_POINT, PREAMBLE_BYTES, Preamble,
    SlabKey,
};
use super::open::OpenSlab;

/// The bytes of a slab and its preamble.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) preamble: Preamble,
    pub(crate) bytes: Vec<u8>,
}

/// Encodes `slab`. `keys` are the keys of the slab, ordered by position, with their extents.
///
/// # Panics
/// If `keys` are not those of the slab.
pub(crate) fn encode(slab: &OpenSlab, keys: &[SlabKey], identity: &Identity) -> Encoded {
    assert!(
        keys.iter().map(|key| &key.text).eq(slab.keys()),
        "the keys of a slab are those of its bit arrays"
    );
    let (data, mut markers) = encode_points(slab);
    // The reader checks the same order (`Header::check_order`).
    assert!(markers.len() == data.len().div_ceil(BLOCK_BYTES), "each block has a marker");
    assert!(
        markers.is_sorted_by_key(|marker| (marker.set, marker.ts)),
        "readers binary-search the markers"
    );
    let follows = |a: &Extent, b: &Extent| a.range.end < b.range.start;
    assert!(
        keys.iter().all(|key| key.extents.is_sorted_by(follows)),
        "a time belongs to one extent"
    );
    for (marker, block) in markers.iter_mut().zip(data.chunks(BLOCK_BYTES)) {
        marker.crc = crc32(block);
    }
    let header = encode_header(slab, keys, &markers);
    let preamble = Preamble {
        generation: identity.generation,
        slot: identity.slot,
        field: slab.field(),
        heard: identity.heard,
        is_compacted: identity.is_compacted,
        is_doubted: identity.is_doubted,
        header_bytes: header.len() as u32,
        data_bytes: data.len() as u32,
        header_crc: crc32(&header),
    };
    let mut bytes = Vec::with_capacity(preamble.slab_bytes() as usize + BLOCK_BYTES);
    bytes.extend_from_slice(&preamble.encode());
    bytes.extend_from_slice(&header);
    bytes.resize(preamble.data_at() as usize, 0);
    bytes.extend_from_slice(&data);
    // Whole blocks, so that a device gets aligned writes only.
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    Encoded { preamble, bytes }
}

/// The fields of a preamble that are set when a slab is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) generation: u64,
    pub(crate) slot: u32,
    pub(crate) heard: firn_model::CommitSeq,
    pub(crate) is_compacted: bool,
    pub(crate) is_doubted: bool,
}

fn encode_points(slab: &OpenSlab) -> (Vec<u8>, Vec<Marker>) {
    let mut data = Vec::new();
    let mut markers: Vec<Marker> = Vec::new();
    let mut before = 0;
    let mut last_set = 0;
    for (set, ts, point) in slab.points() {
        if data.len() / BLOCK_BYTES >= markers.len() {
            let offset = (data.len() % BLOCK_BYTES) as u16;
            markers.push(Marker { set, ts, offset, crc: 0 });
        }
        encode_varint(ts.wrapping_sub(before) as u64, &mut data);
        encode_varint(u64::from(set), &mut data);
        encode_varint(point.head.map_or(0, |head| u64::from(head) + 1), &mut data);
        encode_varint(point.payload.len() as u64, &mut data);
        data.extend_from_slice(&point.payload);
        (before, last_set) = (ts, set);
        // Blocks that this point fills and in which no other begins.
        while markers.len() < data.len() / BLOCK_BYTES {
            markers.push(Marker { set, ts, offset: NO_POINT, crc: 0 });
        }
    }
    // The last point ends in a block in which none begins.
    if markers.len() < data.len().div_ceil(BLOCK_BYTES) {
        markers.push(Marker { set: last_set, ts: before, offset: NO_POINT, crc: 0 });
    }
    (data, markers)
}

fn encode_header(slab: &OpenSlab, keys: &[SlabKey], markers: &[Marker]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREAMBLE_BYTES + markers.len() * MARKER_BYTES);
    encode_varint(keys.len() as u64, &mut out);
    for key in keys {
        put_text(&key.text, &mut out);
        put_text(&key.note, &mut out);
        encode_varint(key.extents.len() as u64, &mut out);
        key.extents.iter().for_each(|extent| put_extent(extent, &mut out));
    }
    let bit_bytes = keys.len().max(KEYS_MIN).next_power_of_two() / 8;
    encode_varint(slab.sets().len() as u64, &mut out);
    for set in slab.sets() {
        encode_varint(bit_bytes as u64, &mut out);
        let start = out.len();
        out.resize(start + bit_bytes, 0);
        for &position in set.keys.iter() {
            out[start + position as usize / 8] |= 1 << (position % 8);
        }
    }
    encode_varint(slab.heads().len() as u64, &mut out);
    slab.heads().iter().for_each(|head| put_text(head, &mut out));
    for marker in markers {
        out.extend_from_slice(&marker.set.to_le_bytes());
        out.extend_from_slice(&marker.ts.to_le_bytes());
        out.extend_from_slice(&marker.offset.to_le_bytes());
        out.extend_from_slice(&marker.crc.to_le_bytes());
    }
    out
}

/// Appends an extent: `zigzag(start) varint(end - start) varint(number)`.
pub(crate) fn put_extent(extent: &Extent, out: &mut Vec<u8>) {
    encode_zigzag(extent.range.start, out);
    encode_varint(extent.range.end.wrapping_sub(extent.range.start) as u64, out);
    encode_varint(extent.number.0, out);
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    encode_varint(text.len() as u64, out);
    out.extend_from_slice(text);
}
