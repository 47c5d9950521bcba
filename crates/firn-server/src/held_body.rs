//! A body that reserves its memory before it grows.

use firn_model::{CancelToken, Pool, QueryContext, Reservation, Result};

use crate::answer::{Packing, Payload};
use crate::wire::json;

/// The body of a response, reserved in pool `query` before it grows.
#[derive(Debug)]
pub(crate) struct HeldBody {
    /// Pieces before `bytes`. One long text would be copied each time it grows, and the memory of
    /// its former copies is not returned to the system at once: ten bodies took 50 MiB beyond the
    /// limit.
    pieces: Vec<Vec<u8>>,
    bytes: Vec<u8>,
    held: Reservation,
    cancel: CancelToken,
}

// The end of a JSON answer and its notes, of which there are few and short ones.
const END_BYTES: usize = 256;
// A piece with half of them or more grows no further. Another thread frees it: the allocator keeps
// shorter ones for the thread that made them.
const PIECE_BYTES: usize = 1 << 20;

impl HeldBody {
    /// Empty, on the budget of `context`.
    pub(crate) fn new(context: &QueryContext) -> HeldBody {
        let held = context.budget.empty(Pool::Query);
        let cancel = context.cancel.clone();
        HeldBody { pieces: Vec::new(), bytes: Vec::new(), held, cancel }
    }

    /// The end of the body, with room for `bytes_max` more bytes. To write more than that is a bug.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory, `Canceled`, `Timeout`.
    pub(crate) fn room(&mut self, bytes_max: usize) -> Result<&mut Vec<u8>> {
        self.cancel.check()?;
        let (len, before) = (self.bytes.len(), self.bytes.capacity());
        if len + bytes_max <= before {
            return Ok(&mut self.bytes);
        }
        if len >= PIECE_BYTES / 2 {
            let capacity = bytes_max.max(PIECE_BYTES);
            self.held.grow(capacity as u64)?;
            let mut piece = std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity));
            if len < before / 4 * 3 {
                piece.shrink_to_fit();
                self.held.shrink((before - piece.capacity()) as u64);
            }
            self.pieces.push(piece);
        } else {
            // Old and new bytes exist together while they are copied.
            let capacity = (len + bytes_max).max(before / 2 * 3);
            self.held.grow(capacity as u64)?;
            self.bytes.reserve_exact(capacity - len);
            self.held.shrink(before as u64);
        }
        Ok(&mut self.bytes)
    }

    /// Appends a short text of our own.
    ///
    /// # Errors
    /// As [`HeldBody::room`].
    pub(crate) fn push(&mut self, text: &str) -> Result<()> {
        self.room(text.len())?.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Appends a JSON array. `bytes_max` bounds the text of an item.
    ///
    /// # Errors
    /// As [`HeldBody::room`].
    pub(crate) fn push_array<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        bytes_max: impl Fn(&T) -> usize,
        mut push: impl FnMut(T, &mut Vec<u8>),
    ) -> Result<()> {
        self.push("[")?;
        for (idx, item) in items.into_iter().enumerate() {
            let out = self.room(bytes_max(&item) + 1)?;
            if idx > 0 {
                out.push(b',');
            }
            push(item, out);
        }
        self.push("]")
    }

    /// Begins a successful answer of the API; the value of `data` follows.
    ///
    /// # Errors
    /// As [`HeldBody::room`].
    pub(crate) fn success(context: &QueryContext) -> Result<HeldBody> {
        let mut body = HeldBody::new(context);
        body.room(json::SUCCESS_HEAD.len() + END_BYTES)?.extend_from_slice(json::SUCCESS_HEAD);
        Ok(body)
    }

    /// Ends a successful answer of the API.
    ///
    /// # Errors
    /// As [`HeldBody::room`].
    pub(crate) fn end(mut self, warnings: &[String], packing: Packing) -> Result<Payload> {
        let warning_bytes = warnings.iter().map(|text| json::string_bytes(text) + 1);
        let bytes_max = END_BYTES + warning_bytes.sum::<usize>();
        json::push_end(warnings, &[], self.room(bytes_max)?);
        Ok(self.into_payload(packing))
    }

    /// The body as it is.
    pub(crate) fn into_payload(self, packing: Packing) -> Payload {
        let HeldBody { mut pieces, bytes, mut held, .. } = self;
        pieces.push(bytes);
        let capacity: usize = pieces.iter().map(Vec::capacity).sum();
        let over = (capacity as u64).saturating_sub(held.bytes());
        debug_assert_eq!(over, 0, "a body is larger than its bound");
        held.take(over);
        Payload::of_pieces(pieces, packing, Some(held))
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, ErrorKind};

    use super::*;

    fn context(limit_bytes: u64) -> QueryContext {
        QueryContext::new(CancelToken::new(), Budget::new(limit_bytes))
    }

    #[test]
    fn memory_is_reserved_before_the_body_grows() {
        let context = context(8 << 20);
        let mut body = HeldBody::success(&context).unwrap();
        let text = "\u{1}".repeat(1_000);
        for count in 1..=500 {
            let bytes_max = |text: &&str| json::string_bytes(text);
            body.push_array([text.as_str()], bytes_max, json::push_string).unwrap();
            let pieces = || body.pieces.iter().chain([&body.bytes]);
            assert!(pieces().map(Vec::len).sum::<usize>() > count * 6_000);
            assert_eq!(context.budget.usage().used_bytes, body.held.bytes());
            let capacity = pieces().map(Vec::capacity).sum::<usize>();
            assert_eq!(body.held.bytes(), capacity as u64);
        }
        assert!(body.pieces.len() > 1, "it is not one piece");
        let payload = body.end(&["a \u{2} warning".to_owned()], Packing::Plain).unwrap();
        assert!(context.budget.usage().used_bytes > 300_000);
        drop(payload);
        assert_eq!(context.budget.usage().used_bytes, 0);
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused() {
        let whole = context(1 << 20);
        let small = QueryContext { budget: whole.budget.part(10_000), ..whole };
        let mut body = HeldBody::new(&small);
        assert_eq!(body.room(20_000).unwrap_err().kind(), &ErrorKind::TooLarge);
        assert!(body.room(5_000).is_ok());
        small.cancel.time_out();
        assert_eq!(body.room(1).unwrap_err().kind(), &ErrorKind::Timeout);
    }
}
