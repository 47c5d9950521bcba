//! The work on labels, for bounds of lists whose targets take no memory.

// Beside the bytes of a label.
const LABEL_WORK: u64 = 50;

/// The work of making or relabelling `labels`, in bytes, of which a second has some 500 MB.
pub(crate) fn labels_work<'l>(labels: impl IntoIterator<Item = (&'l str, &'l str)>) -> u64 {
    labels.into_iter().fold(0, |sum: u64, (name, value)| {
        let bytes = name.len().saturating_add(value.len()) as u64;
        sum.saturating_add(bytes).saturating_add(LABEL_WORK)
    })
}
