//! Scrubbing: every byte of the database against its checksum, what nobody names, and repair.

use std::collections::BTreeMap;

use firn_index::LostSeries;
use firn_model::{CancelToken, Error, ErrorKind, Pool, Result};
use firn_tree::{LostSamples, TableId};

use crate::manifest::{Edit, Room};
use crate::recover::{LogCut, encode_sequence};
use crate::{Engine, tier};

// All bytes of the file, its texts, and the numbers of its series.
const REPAIR_MEMORY_PER_BYTE: u64 = 8;

/// How far a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Tables and index files that were read.
    pub files_done: u64,
    /// Of so many.
    pub files_total: u64,
    /// Bytes of them.
    pub bytes_done: u64,
    /// Of so many.
    pub bytes_total: u64,
}

/// A damaged place, and what became of it.
#[derive(Debug)]
pub struct Finding {
    /// File, offset and what is wrong there.
    pub error: Error,
    /// What cannot be read because of it; `None` if nothing is lost.
    pub loss: Option<Loss>,
    /// The file was written anew without what is lost, so that nothing stumbles over it any more.
    pub is_repaired: bool,
}

/// What is lost with a damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Bounds of the samples.
    Samples(LostSamples),
    /// Series: their samples are there, and nobody can ask for them any more.
    Series(LostSeries),
    /// What needs this block of an index file fails; a repair will tell how much that is.
    Unknown,
}

/// What [`Engine::check`] found.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// What was read.
    pub progress: CheckProgress,
    /// Damaged places, those that were met when the database was opened among them.
    pub findings: Vec<Finding>,
    /// Files and objects that no manifest names. A server removes them by itself: files at its start, objects an
    /// hour after it.
    pub orphans: Vec<String>,
}

impl Engine {
    /// Reads every byte of both tiers against its checksum and decodes it: tables, index segments, the slow
    /// tier's manifest; the log and the local manifest were read when the database was opened. `each` is told
    /// after every file. With `repairs`, damaged tables and index files are written anew without what is lost: an index file
    /// loses nothing where the slow tier's copy has the block. What is older and was overwritten by lost samples shows again.
    ///
    /// Lists the slow tier. Holds back maintenance meanwhile; writes and queries go on.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails: then it is not known what is damaged; `Canceled`; `Conflict` with `repairs` if the
    /// slow tier is another server's, or is not where this one's history lies (see
    /// [`crate::EngineOptions::forget_lost_history`]): then nothing was done, here neither. Without
    /// `repairs` that is a finding, and nothing else is told of the slow tier.
    pub fn check(
        &self,
        repairs: bool,
        cancel: &CancelToken,
        each: &mut dyn FnMut(&CheckProgress),
    ) -> Result<CheckReport> {
        self.check_open()?;
        let _one_at_a_time = self.tree_lane.lock();
        let version = self.tree.version();
        let not_ours = match self.tier.check_ours(&*self.env.bucket, &self.tree) {
            // A replica has nothing of its own to compare with.
            Err(error) if !repairs && *error.kind() == ErrorKind::Conflict => {
                (!self.options.read_only).then_some(error)
            }
            checked => checked.map(|()| None)?,
        };
        if repairs {
            // Before, because a crash may come between.
            self.outdate_answers()?;
        }
        let segments = self.index.segment_files();
        let mut report = CheckReport::default();
        let progress = &mut report.progress;
        progress.files_total = version.tables().count() as u64 + segments.len() as u64;
        progress.bytes_total = version.tables().map(|table| table.bytes).sum::<u64>()
            + segments.iter().map(|file| file.1).sum::<u64>();
        let mut damage = version.check(cancel, &mut |record| {
            progress.files_done += 1;
            progress.bytes_done += record.bytes;
            each(progress);
        })?;
        self.check_index(repairs, &mut report)?;
        report.progress.files_done = report.progress.files_total;
        report.progress.bytes_done = report.progress.bytes_total;
        each(&report.progress);
        for (path, lost) in &self.recovery.index_repairs {
            let error = Error::corrupt(path.as_str(), 0, "it was damaged where opening needs it");
            let loss = lost.map(Loss::Series);
            report.findings.push(Finding { error, loss, is_repaired: true });
        }
        for place in &self.recovery.damage {
            let error = Error::corrupt("log or manifest", 0, place.clone());
            report.findings.push(Finding { error, loss: None, is_repaired: false });
        }
        match not_ours {
            Some(error) => {
                let is_slow = |id| version.tables().any(|t| t.id == id && t.level.is_slow());
                damage.retain(|damage| !is_slow(damage.table));
                report.findings.push(Finding { error, loss: None, is_repaired: false });
            }
            None => report.orphans = self.check_slow_manifest(repairs, &mut report)?,
        }
        drop(version);
        let mut repaired: Option<(TableId, bool)> = None;
        for damage in damage {
            let is_repaired = match repaired {
                _ if !repairs => false,
                Some((table, is_repaired)) if table == damage.table => is_repaired,
                _ => self.repair(damage.table, cancel)?,
            };
            repaired = Some((damage.table, is_repaired));
            let (error, loss) = (damage.error, damage.lost.map(Loss::Samples));
            report.findings.push(Finding { error, loss, is_repaired });
        }
        if repairs {
            // And after, because answers were kept meanwhile.
            self.outdate_answers()?;
        }
        Ok(report)
    }

    /// Answers of before a repair are not what evaluating says after it, and nobody can say which: all that were kept
    /// up to now count as older than what can be told again.
    fn outdate_answers(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let _one_at_a_time = self.flush_lane.lock();
        // A number that no answer knows yet.
        drop(self.sequence.draw());
        let told = self.all_told();
        let cut = LogCut { told, ..self.cut.lock().clone() };
        let edit =
            Edit::default().with(Room::Engine, encode_sequence(told)).with(Room::Log, cut.encode());
        self.commit_edit(edit, || {
            *self.cut.lock() = cut;
            Ok(())
        })
    }

    /// The index's files, each of which is written anew if it is damaged and that is wanted.
    fn check_index(&self, repairs: bool, report: &mut CheckReport) -> Result<()> {
        let mut damage: BTreeMap<String, Vec<Error>> = BTreeMap::new();
        for error in self.index.check() {
            let path = file_of(&error).unwrap_or_default().to_owned();
            damage.entry(path).or_default().push(error);
        }
        let repairs = repairs && !self.options.read_only;
        if repairs && !damage.is_empty() {
            // The log must not define lost series again, beside those that get their labels from now on. A flush that itself needs
            // what is damaged can come only afterwards.
            match self.flush() {
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                    tracing::warn!("check: no flush before the repair: {error}");
                }
                flushed => flushed?,
            }
        }
        for (path, errors) in damage {
            let repaired = match repairs {
                true => self.repair_index(&path)?,
                false => None,
            };
            for (idx, error) in errors.into_iter().enumerate() {
                // All blocks of a file have lost what they have lost together.
                let loss = match repaired {
                    Some(lost) => lost.filter(|_| idx == 0).map(Loss::Series),
                    None => Some(Loss::Unknown),
                };
                let is_repaired = repaired.is_some();
                report.findings.push(Finding { error, loss, is_repaired });
            }
        }
        Ok(())
    }

    /// Writes a damaged index file anew: what is lost by that; `None` if there is no such file.
    fn repair_index(&self, path: &str) -> Result<Option<Option<LostSeries>>> {
        let files = self.index.segment_files();
        let file_bytes = files.iter().find(|file| file.0 == path).map_or(0, |file| file.1);
        let _memory =
            self.reserve(Pool::Jobs, file_bytes.saturating_mul(REPAIR_MEMORY_PER_BYTE))?;
        let copy = tier::copy_of(&*self.env.bucket, (&self.tier, &self.tree), path);
        let Some(repaired) = self.index.repair(path, &copy)? else { return Ok(None) };
        // Nobody writes until the references of lost series are of another generation.
        let _leaving = self.leaving.write();
        self.apply_index(repaired.part)?;
        Ok(Some(repaired.lost))
    }

    /// The slow tier's manifest, and what nobody names there and here.
    fn check_slow_manifest(&self, repairs: bool, report: &mut CheckReport) -> Result<Vec<String>> {
        let mut orphans = self.tree.orphans(&self.env)?;
        match tier::read(&*self.env.bucket) {
            // Since the check began.
            Ok(Some(described)) if repairs && !self.tier.is_ours(&described, &self.tree) => {
                return Err(tier::another_servers(&described));
            }
            Ok(Some(described)) => {
                orphans.extend(described.orphans(&*self.env.bucket)?);
                for (error, path) in tier::differing_segments(&self.env, &described)? {
                    // What is damaged here says nothing of what is there.
                    if report.findings.iter().any(|finding| is_in(finding, &path)) {
                        continue;
                    }
                    let is_repaired = repairs && !self.options.read_only;
                    if is_repaired {
                        tier::put_again(&self.env, &described, &path)?;
                    }
                    report.findings.push(Finding { error, loss: None, is_repaired });
                }
                if let Some(offset) = described.damaged_at {
                    let is_repaired = repairs && !self.options.read_only;
                    if is_repaired {
                        // Claimed anew from the copy that is whole, it is put twice again.
                        self.tier.forget_claim();
                        while self.tend_slow_tier()? {}
                    }
                    let what = "one of its two copies is damaged; the other has everything";
                    let error = Error::corrupt(tier::KEY, offset, what);
                    report.findings.push(Finding { error, loss: None, is_repaired });
                }
            }
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                let is_repaired = repairs && !self.options.read_only && self.put_manifest_anew()?;
                let error = match repairs && !is_repaired {
                    true => error.context(
                        "nothing that is left of it shows that this folder's server put it, so it stays: if no other \
                         server writes there, remove the object and repair again",
                    ),
                    false => error,
                };
                report.findings.push(Finding { error, loss: None, is_repaired });
            }
            Err(error) => return Err(error),
        }
        Ok(orphans)
    }

    /// Writes a damaged table anew.
    fn repair(&self, table: TableId, cancel: &CancelToken) -> Result<bool> {
        self.check_writable()?;
        let version = self.tree.version();
        let Some(job) = self.tree.plan_repair(&version, table) else { return Ok(false) };
        drop(version);
        if job.is_slow() {
            while self.tend_slow_tier()? {}
        }
        let edit = job.run(&self.env, &self.budget, cancel)?;
        let is_slow = job.is_slow();
        drop(job);
        self.tree.check(&edit)?;
        self.commit_edit(Edit::default().with(Room::Tree, edit.encode()), || {
            let _view = self.view.write();
            self.tree.apply(&edit)
        })?;
        self.note_data_gone();
        if is_slow {
            while self.tend_slow_tier()? {}
        }
        Ok(true)
    }
}

fn is_in(finding: &Finding, path: &str) -> bool {
    file_of(&finding.error) == Some(path)
}

fn file_of(error: &Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::Corrupt { file, .. } => Some(file),
        _ => None,
    }
}
