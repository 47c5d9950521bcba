//! Releases memory that other rooms need: everything here can be read or computed again.

use firn_model::Reclaim;

use super::state::Store;

impl Reclaim for Store {
    /// Releases decoded headers first, which the file has too; then points that wait for the
    /// device; then slabs with their index entries, in the order of eviction.
    fn reclaim(&self, bytes: u64) -> u64 {
        // Held while memory is reserved for the cache; such a reservation never calls reclaimers.
        let mut state = self.state.lock();
        state.settle_memory();
        let before = state.memory.reservation.bytes();
        let target = before - bytes.min(before);
        if bytes > 0 {
            while let Some((slab, header_bytes)) = state.headers.pop_front() {
                slab.header.lock().take();
                state.header_bytes -= header_bytes;
            }
            state.settle_memory();
        }
        while state.memory.reservation.bytes() > target {
            let in_memory = state.nodes.iter().find(|one| !one.1.is_on_flash()).map(|one| *one.0);
            if let Some(slab) = in_memory {
                state.remove_slab(slab);
            } else if let Some(victim) = state.policy.victim() {
                state.evict(victim);
            } else {
                break;
            }
            state.settle_memory();
        }
        before - state.memory.reservation.bytes()
    }
}
