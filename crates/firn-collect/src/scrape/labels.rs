//! The labels of an exposed series before those of its target.

/// The pairs of a series that a [`super::Parser`] reads, `__name__` among them. `()` checks them
/// only.
pub trait LabelSink {
    /// Removes all pairs.
    fn clear(&mut self);

    /// Adds a pair.
    fn push(&mut self, name: &str, value: &str);

    /// The memory of its texts and pairs, which a parser limits.
    fn bytes(&self) -> usize;
}

/// Label pairs in the order of the line, `__name__` first. Reused from line to line, so that it
/// allocates only for the longest line so far.
#[derive(Debug, Default)]
pub struct ExposedLabels {
    text: String,
    /// (end of name = start of value, end of value); a name begins where the last value ends.
    ends: Vec<(usize, usize)>,
}

impl ExposedLabels {
    /// The pairs. An empty value is a pair too: `honor_labels` distinguishes it from none.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(middle, end)| {
            let name = self.text.get(start..middle).unwrap_or("");
            start = end;
            (name, self.text.get(middle..end).unwrap_or(""))
        })
    }

    /// Removes all pairs and keeps at most `bytes` of memory for each part.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        self.clear();
        self.text.shrink_to(bytes);
        self.ends.shrink_to(bytes.checked_div(size_of::<(usize, usize)>()).unwrap_or(0));
    }

    /// Bytes of heap memory.
    pub(super) fn heap_bytes(&self) -> usize {
        let ends = self.ends.capacity().saturating_mul(size_of::<(usize, usize)>());
        self.text.capacity().saturating_add(ends)
    }
}

impl LabelSink for () {
    fn clear(&mut self) {}

    fn push(&mut self, _: &str, _: &str) {}

    fn bytes(&self) -> usize {
        0
    }
}

impl LabelSink for ExposedLabels {
    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn push(&mut self, name: &str, value: &str) {
        self.text.push_str(name);
        let middle = self.text.len();
        self.text.push_str(value);
        self.ends.push((middle, self.text.len()));
    }

    fn bytes(&self) -> usize {
        self.text.len().saturating_add(self.ends.len().saturating_mul(size_of::<(usize, usize)>()))
    }
}
