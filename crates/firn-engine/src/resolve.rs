//! Resolving label sets to series references: lookups, and definitions of new series.

use firn_index::{GroupRule, Index};
use firn_model::{Error, GroupId, Labels, Pool, Result, SeriesRef, Timestamp};

use crate::Engine;

impl Engine {
    /// Returns the references of label sets and defines the new ones (the slow path). A definition
    /// is durable with the first row of its series. Without memory for new series, known ones are
    /// still resolved.
    pub fn resolve(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, Index::resolve)
    }

    /// As [`Engine::resolve`], with a timestamp of each series, which helps to find groups.
    pub fn resolve_at(&self, labels: &[Labels], times: &[Timestamp]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, |index, labels, out| index.resolve_at(labels, times, out))
    }

    /// As [`Engine::resolve`], for series of the program itself: no limit on new series refuses
    /// them, though they count.
    pub fn resolve_exempt(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, Index::resolve_exempt)
    }

    fn resolve_by(
        &self,
        labels: &[Labels],
        resolve: impl FnOnce(&Index, &[Labels], &mut Vec<Result<SeriesRef>>),
    ) -> Vec<Result<SeriesRef>> {
        let mut refs = Vec::with_capacity(labels.len());
        if let Err(e) = self.slow.check_writable(&self.rooms) {
            let refused = || Error::new(e.kind().clone(), e.what());
            let known = |labels: &Labels| self.rooms.index.lookup(labels)?.ok_or_else(refused);
            return labels.iter().map(known).collect();
        }
        let found = self.with_index_memory(labels.iter(), || {
            resolve(&self.rooms.index, labels, &mut refs);
            let known = refs
                .iter()
                .zip(labels)
                .filter_map(|(found, labels)| Some((*found.as_ref().ok()?, labels.clone())));
            self.changes.announce_defined(known);
        });
        if let Err(e) = found {
            let refused = || Error::new(e.kind().clone(), e.what());
            let known = |labels: &Labels| self.rooms.index.lookup(labels)?.ok_or_else(refused);
            refs.extend(labels.iter().map(known));
            self.await_definers();
        }
        refs
    }

    /// Returns the references of known label sets; defines nothing.
    ///
    /// # Errors
    /// `Corrupt` if a damaged index segment may contain one of them.
    pub fn find(&self, labels: &[Labels]) -> Result<Vec<Option<SeriesRef>>> {
        let found = labels.iter().map(|labels| self.rooms.index.lookup(labels)).collect();
        self.await_definers();
        found
    }

    /// The first of `refs` that does not exist.
    ///
    /// # Errors
    /// `Corrupt` if a damaged index segment may contain one of them.
    pub fn find_unknown(&self, refs: &[SeriesRef]) -> Result<Option<SeriesRef>> {
        self.rooms.index.find_unknown(refs.iter().copied())
    }

    /// Returns the references of the members of an explicit group, and their groups: usually one.
    /// New series are defined. `members` are their labels without those of the group.
    ///
    /// # Errors
    /// `Busy` without memory, `SeriesLimit` over a limit, `Invalid` if a member repeats a label of
    /// the group.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        self.slow.check_writable(&self.rooms)?;
        let labels = members.iter().chain([group_labels]);
        self.with_index_memory(labels, || {
            let (groups, refs) = self.rooms.index.resolve_group(group_labels, members)?;
            let whole =
                |member: &Labels| Labels::from_pairs(group_labels.iter().chain(member.iter()));
            let labels = members.iter().map(whole).collect::<Result<Vec<Labels>>>()?;
            self.changes.announce_defined(refs.iter().copied().zip(labels));
            Ok((groups, refs))
        })?
    }

    /// The rule by which new series join the group with these identity labels.
    pub fn group_rule(&self, identity: &Labels) -> GroupRule {
        self.rooms.index.group_rule(identity)
    }

    /// On return, every series that this call found without holding the lock on the index's memory
    /// has been announced to the cache.
    fn await_definers(&self) {
        if self.changes.is_set() {
            drop(self.upkeep.memory.lock());
        }
    }

    /// Reserves memory for the definitions of all `labels` and for writing them to a file, then
    /// keeps the bytes that are really needed.
    fn with_index_memory<'l, T>(
        &self,
        labels: impl Iterator<Item = &'l Labels>,
        resolve: impl FnOnce() -> T,
    ) -> Result<T> {
        // A generous estimate for text, posting lists and hash entries of one series, and for
        // writing it to a file.
        const SERIES_BYTES: u64 = 512;
        const LABEL_BYTES: u64 = 32;
        // The text of each name is copied twice while it is written.
        let of_name = |(name, _): (&str, &str)| LABEL_BYTES + 2 * name.len() as u64;
        let of = |labels: &Labels| {
            let name_bytes: u64 = labels.iter().map(of_name).sum();
            SERIES_BYTES + name_bytes + labels.as_encoded().len() as u64
        };
        let bytes = labels.map(of).sum();
        let mut memory = self.upkeep.memory.lock();
        self.pressure.admit_series(&self.rooms)?;
        self.pressure.grow(&self.rooms, &mut memory, Pool::Index, bytes)?;
        self.rooms.index.tick(self.rooms.env.clock.now_ms());
        let found = resolve();
        self.upkeep.settle(&self.rooms, &mut memory);
        Ok(found)
    }
}
