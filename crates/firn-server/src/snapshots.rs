//! The folder of snapshots below the data: their names, and the end of incomplete ones.

use std::path::{Path, PathBuf};

use firn_model::Timestamp;

use crate::wire::number::rfc3339;

/// The folder in `data` that contains a folder for each snapshot.
pub(crate) fn folder(data: &Path) -> PathBuf {
    data.join("snapshots")
}

/// `20261121T125703Z-0000019aa6d0a1f3`: readable, and never reused.
pub(crate) fn name(now_ms: Timestamp) -> String {
    let whole_seconds = rfc3339(now_ms.div_euclid(1_000) * 1_000).replace(['-', ':'], "");
    format!("{whole_seconds}-{now_ms:016x}")
}

/// Removes the snapshots that a killed process has not completed. The caller has the database in
/// `data` open, so no other process makes one there.
pub(crate) fn remove_unfinished(data: &Path) {
    for (path, removed) in firndb::remove_unfinished_copies(&folder(data), is_name) {
        let path = path.display();
        match removed {
            Ok(()) => tracing::info!("removed {path}, a snapshot that was not completed"),
            Err(error) => {
                tracing::warn!(%error, "cannot remove {path}, a snapshot that was not completed");
            }
        }
    }
}

/// Whether [`name`] makes `text`.
fn is_name(text: &str) -> bool {
    let made_ms = text.split_once('-').and_then(|(_, ms)| Timestamp::from_str_radix(ms, 16).ok());
    made_ms.is_some_and(|made_ms| made_ms >= 0 && name(made_ms) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_snapshots_only() {
        assert_eq!(name(1_763_729_823_219), "20251121T125703Z-0000019aa67d55f3");
        assert!(is_name("20251121T125703Z-0000019aa67d55f3"));
        let other_second = "20251121T125704Z-0000019aa67d55f3";
        for other in
            ["", "-", "x", "x--8000000000000000", "20251121T125703Z-19aa67d55f3", other_second]
        {
            assert!(!is_name(other), "{other}");
        }
    }
}
