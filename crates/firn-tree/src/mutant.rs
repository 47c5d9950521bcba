//! Mutants: deliberate bugs that simulation must catch. They exist only with the feature
//! `test-util`.

/// A deliberate bug in the tree.
#[cfg(feature = "test-util")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Retention drops partitions of which a part is still within the retention.
    DroppedTooEarly,
    /// The slow cache returns blocks without comparing checksums.
    FlippedBlockServed,
    /// An edit is applied to the version that its job was planned on: flushes since are lost.
    FlushDuringJobLost,
}

/// Whether `$holder` has the mutant; the constant `false` without the feature.
#[cfg(feature = "test-util")]
macro_rules! mutant {
    ($holder:expr, $mutant:ident) => {
        $holder.mutant == Some($crate::mutant::Mutant::$mutant)
    };
}
#[cfg(not(feature = "test-util"))]
macro_rules! mutant {
    ($holder:expr, $mutant:ident) => {
        false
    };
}
pub(crate) use mutant;
