//! Releases memory that other rooms need: everything here can be read or computed again.

use firn_model::Reclaim;

use super::state::Store;

impl Reclaim for Store {
    /// In the order of `StoreState::release`.
    fn reclaim(&self, bytes: u64) -> u64 {
        // Held while memory is reserved for the cache; such a reservation never calls reclaimers.
        let mut state = self.state.lock();
        state.settle_memory();
        let before = state.memory.reservation.bytes();
        if bytes > 0 {
            state.release(before.saturating_sub(bytes));
        }
        before - state.memory.reservation.bytes()
    }
}
