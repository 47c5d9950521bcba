//! Resolving label sets to series references: lookups, and definitions of new series.

use std::ops::Range;

use firn_index::{GroupRule, Index};
use firn_model::{Error, GroupId, Labels, Pool, Result, SeriesRef, Timestamp};

use crate::Engine;
use crate::pressure::new_series_limit;

/// One piece of a list of label sets takes at most this part of the memory of new series.
const PIECES_MIN: u64 = 8;

impl Engine {
    /// Returns the references of label sets and defines the new ones (the slow path). A definition
    /// is durable with the first row of its series. Without memory for new series, known ones are
    /// still resolved.
    pub fn resolve(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, |index, piece, out| index.resolve(&labels[piece], out))
    }

    /// As [`Engine::resolve`], with a timestamp of each series, which helps to find groups.
    pub fn resolve_at(&self, labels: &[Labels], times: &[Timestamp]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, |index, piece, out| {
            index.resolve_at(&labels[piece.clone()], times.get(piece).unwrap_or_default(), out);
        })
    }

    /// As [`Engine::resolve`], for series of the program itself: no limit on new series refuses
    /// them, though they count.
    pub fn resolve_exempt(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_by(labels, |index, piece, out| index.resolve_exempt(&labels[piece], out))
    }

    /// Resolves `labels` in pieces: the memory of a definition is estimated before and known after
    /// it, so a long list with long labels would reserve much more than it takes, and be refused
    /// for ever.
    fn resolve_by(
        &self,
        labels: &[Labels],
        resolve: impl Fn(&Index, Range<usize>, &mut Vec<Result<SeriesRef>>),
    ) -> Vec<Result<SeriesRef>> {
        let mut refs = Vec::with_capacity(labels.len());
        if let Err(e) = self.slow.check_writable(&self.rooms) {
            let refused = || Error::new(e.kind().clone(), e.what());
            let known = |labels: &Labels| self.rooms.index.lookup(labels)?.ok_or_else(refused);
            return labels.iter().map(known).collect();
        }
        let bytes_max = new_series_limit(&self.rooms.options) / PIECES_MIN;
        let mut found = Vec::new();
        while refs.len() < labels.len() {
            let piece = refs.len()..piece_end(labels, refs.len(), bytes_max);
            let piece_labels = &labels[piece.clone()];
            let resolved = self.with_index_memory(piece_labels.iter(), || {
                resolve(&self.rooms.index, piece, &mut found);
                let known = found.iter().zip(piece_labels);
                let known = known
                    .filter_map(|(found, labels)| Some((*found.as_ref().ok()?, labels.clone())));
                self.changes.announce_defined(known);
            });
            match resolved {
                Ok(()) => refs.append(&mut found),
                Err(e) => {
                    let refused = || Error::new(e.kind().clone(), e.what());
                    let index = &self.rooms.index;
                    let known = |labels: &Labels| index.lookup(labels)?.ok_or_else(refused);
                    refs.extend(piece_labels.iter().map(known));
                    self.await_definers();
                }
            }
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
    /// `Busy` without memory, `SeriesLimit` over a limit; then the first members of a long list may
    /// be defined. `TooLarge` for a member that never fits into memory, `Invalid` if a member
    /// repeats a label of the group.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        self.slow.check_writable(&self.rooms)?;
        let bytes_max = new_series_limit(&self.rooms.options) / PIECES_MIN;
        let (mut groups, mut refs) = (Vec::new(), Vec::with_capacity(members.len()));
        loop {
            let piece = refs.len()..piece_end(members, refs.len(), bytes_max);
            let members_of_piece = &members[piece];
            let labels = members_of_piece.iter().chain([group_labels]);
            let (found, mut resolved) = self.with_index_memory(labels, || {
                self.define_members(group_labels, members_of_piece)
            })??;
            for group in found {
                if !groups.contains(&group) {
                    groups.push(group);
                }
            }
            refs.append(&mut resolved);
            if refs.len() >= members.len() {
                return Ok((groups, refs));
            }
        }
    }

    fn define_members(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        let (groups, refs) = self.rooms.index.resolve_group(group_labels, members)?;
        let whole = |member: &Labels| Labels::from_pairs(group_labels.iter().chain(member.iter()));
        let labels = members.iter().map(whole).collect::<Result<Vec<Labels>>>()?;
        self.changes.announce_defined(refs.iter().copied().zip(labels));
        Ok((groups, refs))
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
        let bytes = labels.map(definition_bytes).sum();
        let bytes_max = new_series_limit(&self.rooms.options);
        if bytes > bytes_max {
            return Err(Error::too_large(format!(
                "a new series needs {bytes} bytes of memory, over the limit of {bytes_max} (3/8 of \
                 --memory): shorten its labels, or raise --memory"
            )));
        }
        let mut memory = self.upkeep.memory.lock();
        self.pressure.admit_series(&self.rooms)?;
        self.pressure.grow(&self.rooms, &mut memory, Pool::Index, bytes)?;
        self.rooms.index.tick(self.rooms.env.clock.now_ms());
        let found = resolve();
        self.upkeep.settle(&self.rooms, &mut memory);
        Ok(found)
    }
}

/// The end of the piece that starts at `start`: its definitions take at most `bytes_max`, or it has
/// one label set, or none at the end of the list.
fn piece_end(labels: &[Labels], start: usize, bytes_max: u64) -> usize {
    let mut bytes = 0;
    let has_room = |labels: &&Labels| {
        bytes += definition_bytes(labels);
        bytes <= bytes_max
    };
    let count = labels[start..].iter().take_while(has_room).count().max(1);
    (start + count).min(labels.len())
}

/// A generous estimate for text, posting lists and hash entries of one series, and for writing it
/// to a file.
fn definition_bytes(labels: &Labels) -> u64 {
    const SERIES_BYTES: u64 = 512;
    const LABEL_BYTES: u64 = 32;
    // The text of each name is copied twice while it is written.
    let of_name = |(name, _): (&str, &str)| LABEL_BYTES + 2 * name.len() as u64;
    let name_bytes: u64 = labels.iter().map(of_name).sum();
    SERIES_BYTES + name_bytes + labels.as_encoded().len() as u64
}
