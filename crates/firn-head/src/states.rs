//! The encoder's state of each group: its last row, and the stamp under which it was written.

use firn_codec::RowState;

use crate::payload::LocalGroup;

/// Groups per page: under 2 KiB.
const PAGE_GROUPS: usize = 64;

/// The row states of a shard: 28 bytes per group in pages, and 9 to 10 bytes per slot on the heap
/// for groups of more than one member. A lone series has nothing on the heap.
#[derive(Default)]
pub(crate) struct GroupStates {
    pages: Vec<Option<Box<StatePage>>>,
    heap_bytes: usize,
}

/// The states of some groups, in two arrays without padding.
struct StatePage {
    rows: [RowState; PAGE_GROUPS],
    /// The encoder's stamp at the last write of each group; 0 = never written. Under another stamp
    /// the group's next row must be whole.
    stamps: [u32; PAGE_GROUPS],
}

impl GroupStates {
    /// Calls `write` with the group's state and the stamp of the group's last write, 0 if there was
    /// none. Then sets the stamp to `stamp`.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        local: LocalGroup,
        stamp: u32,
        write: impl FnOnce(&mut RowState, u32) -> R,
    ) -> R {
        let page_idx = local as usize / PAGE_GROUPS;
        if self.pages.get(page_idx).is_none_or(Option::is_none) {
            self.make_page(page_idx);
        }
        let page = self.pages[page_idx].as_mut().expect("the page was just made");
        let idx = local as usize % PAGE_GROUPS;
        let last = std::mem::replace(&mut page.stamps[idx], stamp);
        let row = &mut page.rows[idx];
        let before = row.heap_bytes();
        let result = write(row, last);
        self.heap_bytes = self.heap_bytes + row.heap_bytes() - before;
        result
    }

    /// Frees the states of groups that were last written before `stamp`.
    pub(crate) fn forget_before(&mut self, stamp: u32) {
        for slot in &mut self.pages {
            let Some(page) = slot else { continue };
            let mut used = false;
            for (row, last) in page.rows.iter_mut().zip(&mut page.stamps) {
                if *last >= stamp {
                    used = true;
                } else if *last != 0 {
                    self.heap_bytes -= row.heap_bytes();
                    *row = RowState::default();
                    *last = 0;
                }
            }
            if !used {
                *slot = None;
                self.heap_bytes -= size_of::<StatePage>();
            }
        }
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.heap_bytes + self.pages.capacity() * size_of::<Option<Box<StatePage>>>()) as u64
    }

    #[cold]
    fn make_page(&mut self, page_idx: usize) {
        if self.pages.len() <= page_idx {
            self.pages.resize_with(page_idx + 1, || None);
        }
        let rows = std::array::from_fn(|_| RowState::default());
        self.pages[page_idx] = Some(Box::new(StatePage { rows, stamps: [0; PAGE_GROUPS] }));
        self.heap_bytes += size_of::<StatePage>();
    }
}

const _: () = assert!(
    size_of::<StatePage>() <= 28 * PAGE_GROUPS,
    "a lone series costs 28 bytes of state and no heap"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_kept_per_stamp_and_freed_when_idle() {
        let mut states = GroupStates::default();
        assert_eq!(states.with(1_000, 1, |_, last| last), 0);
        assert_eq!(states.with(1_000, 1, |_, last| last), 1);
        assert_eq!(states.with(1_000, 2, |_, last| last), 1);
        let held = states.heap_bytes();
        states.with(3, 5, |_, _| ());
        assert_eq!(states.heap_bytes(), held + size_of::<StatePage>() as u64);
        states.forget_before(3);
        assert_eq!(states.heap_bytes(), held, "only the page of group 3 is kept");
        assert_eq!(states.with(3, 5, |_, last| last), 5);
    }
}
