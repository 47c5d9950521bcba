//! The series texts of a target's last body in order, front coded: a text is the number of bytes
//! that it shares with the previous one, and its other bytes.
//!
//! Neighbours in a body share their metric name and most labels, so a text takes about a quarter
//! of its length. A reader at an item needs only the previous text, and it has that text: the line
//! of the body that was equal to it.
//!
//! Encoding of an item: `varint(bytes of the comment lines before it, 0 for none) [hash of them,
//! 8 bytes] varint(shared bytes) varint(other bytes) other bytes`.

use firn_model::{decode_varint, encode_varint};

/// Items one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
}

/// An item at a position of [`Texts`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'t> {
    /// Bytes and hash of the comment lines before it.
    pub comments: Option<(usize, u64)>,
    /// Bytes shared with the previous text.
    pub shared_bytes: usize,
    /// The rest of the text.
    pub rest: &'t [u8],
    /// The position of the next item.
    pub next_at: usize,
}

// The most bytes of an item beside its text: three numbers and a hash.
const ITEM_BYTES: usize = 40;

impl Texts {
    /// The item at `at`; `None` at the end.
    #[inline]
    pub(super) fn item(&self, at: usize) -> Option<Item<'_>> {
        let mut rest = self.bytes.get(at..)?;
        let comment_bytes = count(&mut rest)?;
        let mut comments = None;
        if comment_bytes > 0 {
            let (hash, after) = rest.split_first_chunk::<8>()?;
            comments = Some((comment_bytes, u64::from_le_bytes(*hash)));
            rest = after;
        }
        let shared_bytes = count(&mut rest)?;
        let len = count(&mut rest)?;
        let text = rest.get(..len)?;
        let next_at = self.bytes.len().checked_sub(rest.len())?.checked_add(len)?;
        Some(Item { comments, shared_bytes, rest: text, next_at })
    }

    /// Appends an item.
    pub(super) fn push(&mut self, comments: &[u8], previous: &[u8], text: &[u8]) {
        encode_varint(comments.len() as u64, &mut self.bytes);
        if !comments.is_empty() {
            self.bytes.extend_from_slice(&hash(comments).to_le_bytes());
        }
        let shared_bytes = previous.iter().zip(text).take_while(|(a, b)| a == b).count();
        let rest = text.get(shared_bytes..).unwrap_or(&[]);
        encode_varint(shared_bytes as u64, &mut self.bytes);
        encode_varint(rest.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(rest);
    }

    /// The bytes that the list takes with room for another item of `text_bytes`, if it must grow.
    pub(super) fn grown_bytes(&self, text_bytes: usize) -> Option<usize> {
        let wanted = self.bytes.len().saturating_add(ITEM_BYTES).saturating_add(text_bytes);
        (wanted > self.bytes.capacity()).then(|| wanted.saturating_add(wanted / 4))
    }

    /// Grows the list to `bytes`.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.bytes.reserve_exact(bytes.saturating_sub(self.bytes.len()));
    }

    /// Replaces the items by those of `other` before `at`.
    pub(super) fn copy_from(&mut self, other: &Texts, at: usize) {
        self.bytes.clear();
        self.bytes.extend_from_slice(other.bytes.get(..at).unwrap_or(&[]));
    }

    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Item<'_> {
    /// The length of this text if `body` begins with it, else 0. `previous` is the previous text.
    #[inline]
    pub(super) fn matches(&self, previous: &[u8], body: &[u8]) -> usize {
        let Some((shared, after)) = body.split_at_checked(self.shared_bytes) else { return 0 };
        if previous.get(..self.shared_bytes) == Some(shared) && after.starts_with(self.rest) {
            self.shared_bytes.saturating_add(self.rest.len())
        } else {
            0
        }
    }
}

/// The hash of comment lines. A target that finds two of one hash hides a change of its own types
/// and help texts only.
#[inline]
pub(super) fn hash(comments: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(comments)
}

#[inline]
fn count(rest: &mut &[u8]) -> Option<usize> {
    if let [byte, after @ ..] = *rest
        && *byte < 0x80
    {
        *rest = after;
        return Some(usize::from(*byte));
    }
    usize::try_from(decode_varint(rest)?).ok()
}
