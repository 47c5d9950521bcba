//! Scrubbing: every byte of the database against its checksum, what nobody names, and repair.

use std::collections::BTreeMap;

use firn_index::LostSeries;
use firn_model::{CancelToken, Error, ErrorKind, Pool, Result};
use firn_tree::{LostSamples, TableId};

use crate::Engine;
use crate::manifest::{Edit, Room};
use crate::parts::{self, LogCut};
use crate::rooms::Rooms;
use crate::slow::{claim, description, segments};

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
        self.rooms.wakeup.check_open()?;
        let _one_at_a_time = self.lanes.tree.lock();
        let version = self.rooms.tree.version();
        let not_ours = match self.check_ours() {
            // A replica has nothing of its own to compare with.
            Err(error) if !repairs && *error.kind() == ErrorKind::Conflict => {
                (!self.rooms.options.read_only).then_some(error)
            }
            checked => checked.map(|()| None)?,
        };
        if repairs {
            // Before, because a crash may come between.
            self.outdate_answers()?;
        }
        let segments = self.rooms.index.segment_files();
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
        for (path, lost) in &self.recovery.report.index_repairs {
            let error = Error::corrupt(path.as_str(), 0, "it was damaged where opening needs it");
            let loss = lost.map(Loss::Series);
            report.findings.push(Finding { error, loss, is_repaired: true });
        }
        for place in &self.recovery.report.damage {
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
        if self.rooms.options.read_only {
            return Ok(());
        }
        let _one_at_a_time = self.flusher.hold();
        // A number that no answer knows yet.
        drop(self.ledger.sequence.draw());
        let announced = self.ledger.all_announced(&self.rooms);
        let cut = LogCut { announced, ..self.ledger.cut() };
        let edit = Edit::default()
            .with(Room::Engine, parts::encode_sequence(announced))
            .with(Room::Log, cut.encode());
        self.ledger.commit(&self.rooms, edit, || {
            self.ledger.set_cut(cut);
            Ok(())
        })
    }

    /// The index's files, each of which is written anew if it is damaged and that is wanted.
    fn check_index(&self, repairs: bool, report: &mut CheckReport) -> Result<()> {
        let mut damage: BTreeMap<String, Vec<Error>> = BTreeMap::new();
        for error in self.rooms.index.check() {
            let path = file_of(&error).unwrap_or_default().to_owned();
            damage.entry(path).or_default().push(error);
        }
        let repairs = repairs && !self.rooms.options.read_only;
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
        let files = self.rooms.index.segment_files();
        let file_bytes = files.iter().find(|file| file.0 == path).map_or(0, |file| file.1);
        let _memory = self.pressure.reserve(
            &self.rooms,
            Pool::Jobs,
            file_bytes.saturating_mul(REPAIR_MEMORY_PER_BYTE),
        )?;
        let bucket = &*self.rooms.env.bucket;
        let described = claim::read_own(&self.ledger.folder, bucket, &self.rooms.tree);
        let copy = segments::object_reader(bucket, described.as_ref(), path);
        let Some(repaired) = self.rooms.index.repair(path, &copy)? else { return Ok(None) };
        // Nobody writes until the references of lost series are of another generation.
        let _leaving = self.upkeep.leaving.write();
        self.upkeep.apply(&self.rooms, &self.ledger, repaired.part)?;
        Ok(Some(repaired.lost))
    }

    /// The slow tier's manifest, and what nobody names there and here.
    fn check_slow_manifest(&self, repairs: bool, report: &mut CheckReport) -> Result<Vec<String>> {
        let mut orphans = self.rooms.tree.orphans(&self.rooms.env)?;
        match description::read(&*self.rooms.env.bucket) {
            // Since the check began.
            Ok(Some(described))
                if repairs
                    && !claim::is_ours(&self.ledger.folder, &described, &self.rooms.tree) =>
            {
                return Err(claim::not_ours_error(described.epoch));
            }
            Ok(Some(described)) => {
                orphans.extend(segments::orphans(&described, &*self.rooms.env.bucket)?);
                for (error, path) in segments::differing_segments(&self.rooms.env, &described)? {
                    // What is damaged here says nothing of what is there.
                    if report.findings.iter().any(|finding| is_in(finding, &path)) {
                        continue;
                    }
                    let is_repaired = repairs && !self.rooms.options.read_only;
                    if is_repaired {
                        segments::upload_again(&self.rooms.env, &described, &path)?;
                    }
                    report.findings.push(Finding { error, loss: None, is_repaired });
                }
                if let Some(offset) = described.damaged_at {
                    let is_repaired = repairs && !self.rooms.options.read_only;
                    if is_repaired {
                        // Claimed anew from the copy that is whole, it is put twice again.
                        self.slow.drop_claim();
                        while self.tend_slow_tier()? {}
                    }
                    let what = "one of its two copies is damaged; the other has everything";
                    let error = Error::corrupt(description::KEY, offset, what);
                    report.findings.push(Finding { error, loss: None, is_repaired });
                }
            }
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                let is_repaired =
                    repairs && !self.rooms.options.read_only && self.replace_slow_manifest()?;
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

    /// As [`claim::check_ours`].
    fn check_ours(&self) -> Result<()> {
        let Rooms { env, options, tree, .. } = &self.rooms;
        claim::check_ours(&self.ledger.folder, &*env.bucket, tree, options.forget_lost_history)
    }

    /// Claims the slow tier if necessary and publishes the current state. Returns whether it did.
    fn tend_slow_tier(&self) -> Result<bool> {
        self.slow.tend(&self.rooms, &self.ledger, &self.pressure)
    }

    fn replace_slow_manifest(&self) -> Result<bool> {
        self.slow.replace_damaged(&self.rooms, &self.ledger, &self.pressure)
    }

    /// Writes a damaged table anew.
    fn repair(&self, table: TableId, cancel: &CancelToken) -> Result<bool> {
        self.slow.check_writable(&self.rooms)?;
        let version = self.rooms.tree.version();
        let Some(job) = self.rooms.tree.plan_repair(&version, table) else { return Ok(false) };
        drop(version);
        if job.is_slow() {
            while self.tend_slow_tier()? {}
        }
        let edit = job.run(&self.rooms.env, &self.rooms.budget, cancel)?;
        let is_slow = job.is_slow();
        drop(job);
        self.rooms.tree.check(&edit)?;
        self.ledger.commit(&self.rooms, Edit::default().with(Room::Tree, edit.encode()), || {
            let _view = self.rooms.view.write();
            self.rooms.tree.apply(&edit)
        })?;
        self.upkeep.note_data_gone();
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
