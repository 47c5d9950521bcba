//! The identity of a data folder and of the process that has it open, as the slow tier knows them.

use std::hash::{BuildHasher, Hasher, RandomState};

use parking_lot::Mutex;

use crate::parts;

/// Maximum number of claims that a folder remembers. The first is that of the process that wrote
/// the slow tier's manifest; each later process adds its own before it writes there. A claim is
/// dropped only after this many processes in a row have ended between the two steps.
const CLAIMS_MAX: usize = 32;

/// The writer of the slow tier's manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    /// The mark of the data folder; copies of a folder share it.
    pub(crate) mark: u64,
    /// The number of the process; unique.
    pub(crate) number: u64,
}

/// This process as a writer, and the processes that the folder remembers.
#[derive(Debug)]
pub(crate) struct Folder {
    writer: Writer,
    /// Numbers of processes whose manifest may be on the slow tier, oldest first. `None` in a
    /// folder that was last written by a version that did not record them.
    claims: Mutex<Option<Vec<u64>>>,
}

/// A random number that identifies a data folder or a process.
pub(crate) fn new_mark() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Folder {
    pub(crate) fn new(mark: u64, claims: Option<Vec<u64>>) -> Folder {
        Folder { writer: Writer { mark, number: new_mark() }, claims: Mutex::new(claims) }
    }

    pub(crate) fn writer(&self) -> Writer {
        self.writer
    }

    pub(crate) fn claims(&self) -> Option<Vec<u64>> {
        self.claims.lock().clone()
    }

    pub(crate) fn set_claims(&self, claims: Vec<u64>) {
        *self.claims.lock() = Some(claims);
    }

    /// For the local manifest.
    pub(crate) fn claims_part(&self) -> Option<Vec<u8>> {
        self.claims.lock().as_deref().map(parts::encode_claims)
    }

    /// Whether `writer` wrote from this folder: the same process, or an earlier one that the folder
    /// remembers. A folder without recorded claims is recognised by its mark.
    pub(crate) fn remembers(&self, writer: Writer) -> bool {
        let is_known = |ours: &Vec<u64>| ours.contains(&writer.number);
        writer == self.writer
            || writer.mark == self.writer.mark && self.claims.lock().as_ref().is_none_or(is_known)
    }

    /// The claims after this process has announced its own; `None` if it has already. `last` wrote
    /// the manifest that is on the slow tier now.
    pub(crate) fn claims_with_own(&self, last: Option<u64>) -> Option<Vec<u64>> {
        let mut claims = self.claims().unwrap_or_else(|| Vec::from_iter(last));
        // A late put of a process before `last` fails on its condition.
        let stale_count = claims.iter().position(|&number| Some(number) == last).unwrap_or(0);
        claims.drain(..stale_count);
        if claims.contains(&self.writer.number) {
            return None;
        }
        if claims.len() >= CLAIMS_MAX {
            claims.remove(1);
        }
        claims.push(self.writer.number);
        Some(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_bounded_and_keep_the_last_writer() {
        let folder = Folder::new(7, Some((0..40).collect()));
        let own = folder.writer().number;
        let claims = folder.claims_with_own(Some(3)).unwrap();
        assert_eq!((claims.len(), claims[0], claims.last()), (37, 3, Some(&own)));
        folder.set_claims(claims);
        assert_eq!(folder.claims_with_own(Some(3)), None);
        assert!(folder.remembers(Writer { mark: 7, number: 3 }));
        assert!(!folder.remembers(Writer { mark: 7, number: 2 }));
        assert!(!folder.remembers(Writer { mark: 8, number: 3 }));
        assert!(Folder::new(7, None).remembers(Writer { mark: 7, number: 2 }));
    }
}
