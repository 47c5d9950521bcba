//! The memory of a scrape.

use firn_model::{Reservation, Result};

/// The memory of a scrape.
pub(super) struct Held<'s> {
    pub(super) reservation: &'s mut Reservation,
    /// The bytes of this scrape. The reservation may have more from an earlier one.
    pub(super) bytes: u64,
}

impl Held<'_> {
    pub(super) fn add(&mut self, bytes: usize) -> Result<()> {
        let bytes = self.bytes.saturating_add(bytes as u64);
        self.reservation.cover(bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// The scrape uses `bytes` for something else.
    pub(super) fn subtract(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
