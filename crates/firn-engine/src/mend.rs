//! Index files that are damaged or missing when the database opens.
//!
//! Only an index file knows the label sets of its series. Without it they would get second
//! references, and queries would silently miss their samples, so a database does not open without
//! it. Such a file is, in this order, rewritten without its damaged blocks (only if
//! [`EngineOptions::repair_index`] is set), downloaded from the slow tier, or forgotten (only if
//! [`EngineOptions::forget_lost_index`] is set).
//!
//! Forgotten series are new series when they are written again. They never mix with their remains:
//! group ids are not reused, and existing groups take no new members, because the next slot may
//! have been assigned in the lost file.

use std::collections::BTreeSet;
use std::sync::Arc;

use firn_env::{Disk, Env, OpenMode};
use firn_index::{Index, LostSeries};
use firn_model::{Budget, Error, ErrorKind, Result, ShardBits};
use firn_tree::Tree;

use crate::folder::Folder;
use crate::options::EngineOptions;
use crate::slow::{claim, segments};

/// An index file that was rewritten or downloaded, and the series that this lost.
pub(crate) type RepairedFile = (String, Option<LostSeries>);

/// The first way that is left for a damaged index file without a copy on the slow tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    Repair,
    /// There is no file that a repair could read.
    PutBack,
    RepairFailed,
}

/// The index's parts of the manifest while their files are mended.
pub(crate) struct IndexMender<'a> {
    env: &'a Env,
    options: &'a EngineOptions,
    budget: &'a Budget,
    folder: &'a Folder,
    tree: &'a Tree,
    parts: Vec<Vec<u8>>,
    tried_repairs: BTreeSet<String>,
    tried_downloads: BTreeSet<String>,
    /// Files that were rewritten or downloaded.
    pub(crate) repairs: Vec<RepairedFile>,
    /// One sentence for each file that was forgotten.
    pub(crate) damage: Vec<String>,
}

impl<'a> IndexMender<'a> {
    /// `parts` are the index's parts of the manifest.
    pub(crate) fn new(
        (env, options, budget): (&'a Env, &'a EngineOptions, &'a Budget),
        (folder, tree): (&'a Folder, &'a Tree),
        parts: &[&[u8]],
    ) -> IndexMender<'a> {
        IndexMender {
            env,
            options,
            budget,
            folder,
            tree,
            parts: parts.iter().map(|part| part.to_vec()).collect(),
            tried_repairs: BTreeSet::new(),
            tried_downloads: BTreeSet::new(),
            repairs: Vec::new(),
            damage: Vec::new(),
        }
    }

    /// Opens the index, after mending each file whose end is damaged or missing.
    ///
    /// # Errors
    /// Those of [`Index::open`] and [`IndexMender::mend`].
    pub(crate) fn open_index(&mut self, bits: ShardBits) -> Result<Index> {
        loop {
            let disk = Arc::clone(&self.env.disk);
            let opened = Index::open(disk, bits, self.options.index.clone(), &self.slices());
            match opened {
                Err(error) => self.mend(error)?,
                opened => return opened,
            }
        }
    }

    /// Mends the index file that `error` names. Each way is tried once per file, so repeated calls
    /// end.
    ///
    /// # Errors
    /// `error` itself if it names no index file, or in a replica; with advice, if no way is left.
    /// `Conflict` if a repair finds another server's slow tier: then nothing is changed.
    pub(crate) fn mend(&mut self, error: Error) -> Result<()> {
        let ErrorKind::Corrupt { file, .. } = error.kind() else { return Err(error) };
        let files = Index::files_of(&self.slices())?;
        if self.options.read_only || files.iter().all(|(path, _)| path != file) {
            return Err(error);
        }
        let path = file.clone();
        if self.options.repair_index && self.tried_repairs.insert(path.clone()) {
            match self.repair(&path) {
                // Nothing in the file is readable.
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt { file, .. } if *file == path) => {}
                repaired => return repaired,
            }
        }
        if self.tried_downloads.insert(path.clone()) && self.download(&path)? {
            tracing::warn!("recovery: {error}: downloaded from the slow tier");
            self.repairs.push((path, None));
            return Ok(());
        }
        match self.options.forget_lost_index {
            true => self.forget(&path),
            false => Err(advised(&error, self.advice(&path))),
        }
    }

    /// The way that is left for a damaged file without a copy.
    fn advice(&self, path: &str) -> Advice {
        let is_readable = |path: &str| self.env.disk.open(path, OpenMode::Read).is_ok();
        if self.options.repair_index {
            Advice::RepairFailed
        } else if is_readable(path) || is_readable(&aside_of(path)) {
            Advice::Repair
        } else {
            Advice::PutBack
        }
    }

    fn slices(&self) -> Vec<&[u8]> {
        self.parts.iter().map(Vec::as_slice).collect()
    }

    /// Rewrites a file: damaged blocks come from the slow tier, or their series are lost.
    fn repair(&mut self, path: &str) -> Result<()> {
        let (bucket, disk) = (&*self.env.bucket, &*self.env.disk);
        let forgets_history = self.options.forget_lost_history;
        claim::check_ours(self.folder, bucket, self.tree, forgets_history, self.budget)?;
        let aside = aside_of(path);
        if matches!(disk.open(path, OpenMode::Read), Err(e) if *e.kind() == ErrorKind::NotFound) {
            // An interrupted repair renamed it before the manifest named its replacement.
            match disk.rename(&aside, path) {
                Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        let described = claim::read_own(self.folder, bucket, self.tree, self.budget);
        let copy = segments::object_reader(bucket, described.as_ref(), path);
        let repaired = Index::part_repaired(disk, &self.slices(), path, &copy)?;
        self.parts.push(repaired.part);
        put_aside(disk, path)?;
        self.repairs.push((path.to_owned(), repaired.lost));
        Ok(())
    }

    /// Downloads a file from the slow tier. `false` if it has no certain copy.
    fn download(&self, path: &str) -> Result<bool> {
        let mark = self.folder.writer().mark;
        segments::download_lost(self.env, mark, &self.slices(), path, self.budget).map_err(|e| {
            e.context(format!("{path} is damaged or missing; downloading it from the slow tier"))
        })
    }

    /// Removes a file from the index.
    fn forget(&mut self, path: &str) -> Result<()> {
        let (part, series_count) = Index::part_without(&self.slices(), path)?;
        self.parts.push(part);
        let aside = put_aside(&*self.env.disk, path)?;
        self.damage.push(format!(
            "{path} is damaged or missing: its {series_count} series are forgotten, as requested \
             by --forget-lost-index; a damaged file is kept as {aside}"
        ));
        Ok(())
    }
}

fn aside_of(path: &str) -> String {
    format!("{}.lost", path.trim_end_matches(".seg"))
}

/// Renames a file that is damaged or missing to a name that no program reads, which it returns.
fn put_aside(disk: &dyn Disk, path: &str) -> Result<String> {
    let aside = aside_of(path);
    match disk.rename(path, &aside) {
        Err(e) if *e.kind() != ErrorKind::NotFound => Err(e),
        _ => disk.sync_dir("index").map(|()| aside),
    }
}

/// The error with the ways that are left.
fn advised(error: &Error, advice: Advice) -> Error {
    let ErrorKind::Corrupt { file, offset } = error.kind() else {
        return Error::internal(error.what());
    };
    // The block's own advice, which the sentence repeats or contradicts.
    let what = error.what().trim_end_matches(": run `firn check --repair`");
    let way = match advice {
        Advice::Repair => "Run `firn check --repair`, which keeps its readable series, or",
        Advice::PutBack => "Put the file back, or",
        Advice::RepairFailed => "No block of it is readable: put the file back, or",
    };
    Error::corrupt(
        file.as_str(),
        *offset,
        format!(
            "{what}; the slow tier has no copy. {way} start `firn serve` with --forget-lost-index: \
             then the samples of its series cannot be queried any more, and all other series remain"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_readable_file_has_the_advice_to_repair_it() {
        let error = Error::corrupt("index/1.seg", 0, "block checksum: run `firn check --repair`");
        let told = advised(&error, Advice::Repair).to_string();
        assert_eq!(told.matches("`firn check --repair`").count(), 1, "{told}");
        for advice in [Advice::PutBack, Advice::RepairFailed] {
            let told = advised(&error, advice).to_string();
            assert!(!told.contains("repair`") && told.contains("--forget-lost-index"), "{told}");
        }
    }
}
