//! What the encoder knows of each group: its last row, and since when that counts.

use firn_codec::RowState;

use crate::payload::Local;

/// Groups per page: under 2 KiB.
const PAGE_GROUPS: usize = 64;

/// A shard's row states: 28 bytes a group in pages, and on the heap 9 to 10 bytes a slot for groups
/// of more than one member. A lone series has nothing on the heap.
#[derive(Default)]
pub(crate) struct States {
    pages: Vec<Option<Box<Page>>>,
    heap_bytes: usize,
}

/// The states of some groups, in two arrays so that no byte is padding.
struct Page {
    rows: [RowState; PAGE_GROUPS],
    /// The encoder's stamp when each group was last written: another one means that its next row must
    /// be whole. 0 = never.
    stamps: [u32; PAGE_GROUPS],
}

impl States {
    /// Lets `write` use the group's state; `write` is told the stamp under which the group was written
    /// last, 0 if never. From now on that is `stamp`.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        local: Local,
        stamp: u32,
        write: impl FnOnce(&mut RowState, u32) -> R,
    ) -> R {
        let page_idx = local as usize / PAGE_GROUPS;
        if self.pages.get(page_idx).is_none_or(Option::is_none) {
            self.make_page(page_idx);
        }
        let page = self.pages[page_idx].as_mut().expect("the page was just made");
        let place = local as usize % PAGE_GROUPS;
        let last = std::mem::replace(&mut page.stamps[place], stamp);
        let row = &mut page.rows[place];
        let before = row.heap_bytes();
        let result = write(row, last);
        self.heap_bytes = self.heap_bytes + row.heap_bytes() - before;
        result
    }

    /// Frees the states of groups that were not written since `stamp`.
    pub(crate) fn forget_before(&mut self, stamp: u32) {
        for place in &mut self.pages {
            let Some(page) = place else { continue };
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
                *place = None;
                self.heap_bytes -= size_of::<Page>();
            }
        }
    }

    /// Bytes that it holds.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.heap_bytes + self.pages.capacity() * size_of::<Option<Box<Page>>>()) as u64
    }

    #[cold]
    fn make_page(&mut self, page_idx: usize) {
        if self.pages.len() <= page_idx {
            self.pages.resize_with(page_idx + 1, || None);
        }
        let rows = std::array::from_fn(|_| RowState::default());
        self.pages[page_idx] = Some(Box::new(Page { rows, stamps: [0; PAGE_GROUPS] }));
        self.heap_bytes += size_of::<Page>();
    }
}

const _: () = assert!(
    size_of::<Page>() <= 28 * PAGE_GROUPS,
    "a lone series costs 28 bytes of state and no heap"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_known_for_one_stamp_and_forgotten_when_idle() {
        let mut states = States::default();
        assert_eq!(states.with(1_000, 1, |_, last| last), 0);
        assert_eq!(states.with(1_000, 1, |_, last| last), 1);
        assert_eq!(states.with(1_000, 2, |_, last| last), 1);
        let held = states.heap_bytes();
        states.with(3, 5, |_, _| ());
        assert_eq!(states.heap_bytes(), held + size_of::<Page>() as u64);
        states.forget_before(3);
        assert_eq!(states.heap_bytes(), held, "the page of group 1000 is gone, that of 3 is there");
        assert_eq!(states.with(3, 5, |_, last| last), 5);
    }
}
