//! A label set that is being changed.

use std::hash::BuildHasher;

use firn_model::{Error, Labels, Result};
use hashbrown::HashTable;

use super::pattern::Slots;

/// Labels and changes to them. Reuse one for many label sets: its buffers are kept.
///
/// Labels without a value do not exist: setting an empty value deletes.
#[derive(Debug)]
pub struct LabelEditor {
    base: Labels,
    /// The most bytes of `text`, and of each other buffer.
    bytes_max: usize,
    /// Names and values of `changes`. Only grows until the next [`LabelEditor::reset`].
    text: String,
    /// One per name, in the order of the changes.
    changes: Vec<Change>,
    /// Places in `changes` by the hash of the name, if there are over [`SEARCHED_MAX`].
    places: HashTable<u32>,
    /// Seeded at random, so that a server cannot choose names of one hash.
    hasher: foldhash::fast::RandomState,
    /// `changes` before a rule that visits all labels.
    before: Vec<Change>,
    pub(super) slots: Slots,
    /// The joined source value of a rule, and the name of its target.
    pub(super) source: String,
    pub(super) target: String,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    name: Span,
    /// `None` for a deleted label.
    value: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

/// All names and values that the rules of one label set may make, the intermediate ones too. A
/// rule can double a value, so forty rules could make a terabyte.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Changed labels of one label set.
const CHANGES_MAX: usize = 4_096;
/// As many are searched in sequence, which is faster than an index.
const SEARCHED_MAX: usize = 16;
/// A larger buffer is dropped at the next label set.
const KEPT_BYTES_MAX: usize = 64 << 10;

impl Default for LabelEditor {
    fn default() -> LabelEditor {
        LabelEditor::within(TEXT_BYTES_MAX)
    }
}

impl LabelEditor {
    /// An editor whose rules make names and values of at most `bytes_max` bytes for a label set,
    /// the intermediate ones too, and at most 1 MiB. Each of its three buffers may be twice as
    /// large.
    pub fn within(bytes_max: usize) -> LabelEditor {
        LabelEditor {
            base: Labels::empty(),
            bytes_max: bytes_max.min(TEXT_BYTES_MAX),
            text: String::new(),
            changes: Vec::new(),
            places: HashTable::new(),
            hasher: foldhash::fast::RandomState::default(),
            before: Vec::new(),
            slots: Slots::default(),
            source: String::new(),
            target: String::new(),
        }
    }

    /// Starts with `base`.
    pub fn reset(&mut self, base: &Labels) {
        self.base = base.clone();
        self.changes.clear();
        self.places.clear();
        self.before.clear();
        for buffer in [&mut self.text, &mut self.source, &mut self.target] {
            buffer.clear();
            buffer.shrink_to(KEPT_BYTES_MAX);
        }
    }

    /// The value of `name`, empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        match self.position(name).and_then(|idx| self.changes.get(idx)) {
            Some(change) => change.value.map_or("", |value| self.span(value)),
            None => self.base.get(name).unwrap_or(""),
        }
    }

    /// Sets `name` to `value`; an empty value deletes. An empty name is ignored.
    ///
    /// # Errors
    /// `TooLarge` if the texts of all changes are too large together, or the changes too many.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if value.is_empty() {
            return self.delete(name);
        }
        if name.is_empty() {
            return Ok(());
        }
        let value_span = Some(self.store(value)?);
        match self.position(name) {
            Some(idx) if self.changes.get(idx).is_some_and(|change| change.value.is_some()) => {
                if let Some(change) = self.changes.get_mut(idx) {
                    change.value = value_span;
                }
            }
            position => {
                let name = match position {
                    Some(idx) => self.remove(idx).name,
                    None => self.store(name)?,
                };
                self.add(Change { name, value: value_span })?;
            }
        }
        Ok(())
    }

    /// Deletes the label `name`.
    ///
    /// # Errors
    /// As [`LabelEditor::set`].
    pub fn delete(&mut self, name: &str) -> Result<()> {
        match self.position(name).is_some() || self.base.get(name).is_some() {
            true => self.delete_known(name),
            false => Ok(()),
        }
    }

    /// The same for a label that exists: without a search of the base.
    pub(super) fn delete_known(&mut self, name: &str) -> Result<()> {
        match self.position(name) {
            Some(idx) => {
                if let Some(change) = self.changes.get_mut(idx) {
                    change.value = None;
                }
            }
            None => {
                let name = self.store(name)?;
                self.add(Change { name, value: None })?;
            }
        }
        Ok(())
    }

    /// Calls `f` with each label: those of the base that did not change in order of names, then the
    /// others in the order of their changes. `f` sees the labels of the start of the call, and may
    /// change the editor.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn for_each(
        &mut self,
        mut f: impl FnMut(&mut LabelEditor, &str, &str) -> Result<()>,
    ) -> Result<()> {
        let base = self.base.clone();
        let mut before = std::mem::take(&mut self.before);
        before.clear();
        before.extend_from_slice(&self.changes);
        let is_same: Vec<bool> =
            base.iter().map(|(name, _)| self.position(name).is_none()).collect();
        let same = base.iter().zip(is_same).filter(|(_, is_same)| *is_same);
        let mut same = same.map(|(pair, _)| pair);
        let mut result = same.try_for_each(|(name, value)| f(self, name, value));
        // The texts of changes are copied out because `f` may add to their buffer.
        let (mut name, mut value) = (String::new(), String::new());
        for change in &before {
            if let (Ok(()), Some(value_span)) = (&result, change.value) {
                name.clear();
                name.push_str(self.span(change.name));
                value.clear();
                value.push_str(self.span(value_span));
                result = f(self, &name, &value);
            }
        }
        self.before = before;
        result
    }

    /// The labels with all changes. Allocates only if they differ from the base.
    pub fn labels(&self) -> Labels {
        let is_changed = |change: &Change| {
            let value = change.value.map(|value| self.span(value));
            self.base.get(self.span(change.name)) != value
        };
        if !self.changes.iter().any(is_changed) {
            return self.base.clone();
        }
        let mut pairs: Vec<(&str, &str)> =
            Vec::with_capacity(self.base.count().saturating_add(self.changes.len()));
        pairs.extend(self.base.iter().filter(|(name, _)| self.position(name).is_none()));
        let changed =
            |change: &Change| change.value.map(|value| (self.span(change.name), self.span(value)));
        pairs.extend(self.changes.iter().filter_map(changed));
        pairs.sort_unstable();
        Labels::from_sorted(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    fn position(&self, name: &str) -> Option<usize> {
        let is_it = |change: &Change| self.span(change.name) == name;
        if self.changes.len() <= SEARCHED_MAX {
            return self.changes.iter().position(is_it);
        }
        let place = self.places.find(self.hasher.hash_one(name), |place| {
            self.changes.get(*place as usize).is_some_and(is_it)
        });
        place.map(|place| *place as usize)
    }

    fn add(&mut self, change: Change) -> Result<()> {
        if self.changes.len() >= CHANGES_MAX {
            return Err(Error::too_large(format!(
                "a discovery or relabelling sets over {CHANGES_MAX} labels of one label set"
            )));
        }
        self.changes.push(change);
        self.place_from(self.places.len());
        Ok(())
    }

    fn remove(&mut self, idx: usize) -> Change {
        let removed = self.changes.remove(idx);
        self.places.clear();
        self.place_from(0);
        removed
    }

    /// Adds the places of changes from `first` on to the index, if there is to be one.
    fn place_from(&mut self, first: usize) {
        if self.changes.len() <= SEARCHED_MAX {
            return;
        }
        let LabelEditor { changes, places, hasher, text, .. } = self;
        let hash = |place: &u32| {
            let name = changes.get(*place as usize).map(|change| change.name);
            let name = name.and_then(|span| text.get(span.start..span.end));
            hasher.hash_one(name.unwrap_or(""))
        };
        for place in (first..changes.len()).filter_map(|place| u32::try_from(place).ok()) {
            places.insert_unique(hash(&place), place, hash);
        }
    }

    fn span(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    fn store(&mut self, text: &str) -> Result<Span> {
        let start = self.text.len();
        let end = start.saturating_add(text.len());
        check_bytes(end, self.bytes_max)?;
        self.text.push_str(text);
        Ok(Span { start, end })
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

/// # Errors
/// `TooLarge` if rules make texts of `bytes` bytes, more than `bytes_max`.
pub(super) fn check_bytes(bytes: usize, bytes_max: usize) -> Result<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::too_large(format!(
        "relabelling makes names and values of over {bytes_max} bytes for one label set: use \
         shorter replacements"
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn too_much_text_is_refused() {
        let mut editor = LabelEditor::default();
        let half = "x".repeat(TEXT_BYTES_MAX / 2);
        editor.set("a", &half).unwrap();
        assert!(editor.set("b", &half).is_err());
        editor.reset(&Labels::empty());
        editor.set("b", &half).unwrap();
        let failed = (0..5_000).find(|idx| editor.set(&idx.to_string(), "x").is_err());
        assert_eq!(failed, Some(CHANGES_MAX - 1));
    }

    #[test]
    fn an_editor_may_have_a_smaller_limit() {
        let mut editor = LabelEditor::within(100);
        editor.set("a", &"x".repeat(60)).unwrap();
        assert!(editor.set("a", &"x".repeat(60)).unwrap_err().to_string().contains("over 100"));
        let mut editor = LabelEditor::within(usize::MAX);
        assert!(editor.set("a", &"x".repeat(TEXT_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn labels_are_visited_as_they_were() {
        let mut editor = LabelEditor::default();
        editor.reset(&Labels::from_pairs([("b", "1"), ("a", "2"), ("c", "3")]).unwrap());
        editor.set("c", "4").unwrap();
        editor.set("0", "5").unwrap();
        editor.delete("b").unwrap();
        editor.set("b", "6").unwrap();
        let mut seen = Vec::new();
        let visit = |editor: &mut LabelEditor, name: &str, value: &str| {
            seen.push(format!("{name}{value}"));
            editor.delete("0")?;
            editor.set(&format!("{name}x"), "7")
        };
        editor.for_each(visit).unwrap();
        assert_eq!(seen, ["a2", "c4", "05", "b6"]);
        assert_eq!(editor.get("0"), "");
    }

    #[test]
    fn unchanged_labels_are_the_same_allocation() {
        let base = Labels::from_pairs([("a", "1")]).unwrap();
        let mut editor = LabelEditor::default();
        editor.reset(&base);
        editor.set("a", "2").unwrap();
        editor.set("a", "1").unwrap();
        editor.delete("b").unwrap();
        assert_eq!(editor.labels().as_encoded().as_ptr(), base.as_encoded().as_ptr());
    }

    proptest! {
        #[test]
        fn an_editor_is_a_map(
            base in proptest::collection::btree_map("[a-z]", "[0-9]", 0..30),
            changes in proptest::collection::vec(("[a-z]", "[0-9]?"), 0..90),
        ) {
            let mut model: BTreeMap<String, String> = base.clone();
            let mut editor = LabelEditor::default();
            let pairs = base.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            editor.reset(&Labels::from_pairs(pairs).unwrap());
            for (name, value) in changes {
                editor.set(&name, &value).unwrap();
                match value.is_empty() {
                    true => model.remove(&name),
                    false => model.insert(name.clone(), value.clone()),
                };
                prop_assert_eq!(editor.get(&name), value);
            }
            let labels = editor.labels();
            let got: Vec<_> = labels.iter().collect();
            let want: Vec<_> = model.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            prop_assert_eq!(got, want);
        }
    }
}
