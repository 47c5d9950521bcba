//! Scrubbing: verifies every byte of the database against its checksum, finds unreferenced files,
//! and repairs.

use std::collections::BTreeMap;

use firn_index::LostSeries;
use firn_model::{CancelToken, Error, ErrorKind, Pool, Result, ShardId};
use firn_tree::{LostSamples, TableId};

use crate::Engine;
use crate::edit::{Edit, Room};
use crate::parts::{self, LogCut};
use crate::rooms::Rooms;
use crate::slow::{claim, description, segments};

// A repair holds all bytes of the file, its texts, and the numbers of its series.
const REPAIR_MEMORY_PER_BYTE: u64 = 8;

/// Progress of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Tables and index files that were read.
    pub files_done: u64,
    /// Number of all files.
    pub files_total: u64,
    /// Bytes of the files that were read.
    pub bytes_done: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
}

/// A damaged location, and its repair.
#[derive(Debug)]
pub struct Finding {
    /// File, offset and kind of damage.
    pub error: Error,
    /// Data that is unreadable because of it; `None` if nothing is lost.
    pub loss: Option<Loss>,
    /// Whether the file was rewritten without the lost data, so that no reader meets the damage
    /// again.
    pub is_repaired: bool,
}

/// Data lost with a damaged location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Bounds of the samples.
    Samples(LostSamples),
    /// Series: their samples exist, but cannot be queried any more.
    Series(LostSeries),
    /// The rows of this part of the log that are in no table.
    Rows,
    /// Lookups that need this block of an index file fail. A repair determines the lost series.
    Unknown,
}

/// Result of [`Engine::check`].
#[derive(Debug, Default)]
pub struct CheckReport {
    /// Files and bytes that were read.
    pub progress: CheckProgress,
    /// Damaged locations, including those found when the database was opened.
    pub findings: Vec<Finding>,
    /// Files and objects that no manifest names. A server removes files at its start and objects an
    /// hour later.
    pub orphans: Vec<String>,
}

impl Engine {
    /// Verifies every byte of both tiers against its checksum and decodes it: tables, index
    /// segments, the slow tier's manifest. The log and the local manifest were verified when the
    /// database was opened. Calls `each` after every file. With `repairs`, damaged tables and index
    /// files are rewritten without the lost data; an index file loses nothing if the slow tier's
    /// copy has the block. A damaged log is flushed: no later start needs it. Older samples that
    /// lost ones had overwritten become visible again.
    ///
    /// Lists the slow tier. Maintenance waits meanwhile; writes and queries continue.
    ///
    /// # Errors
    /// `Unavailable` if a tier fails: the damage is then unknown; `Canceled`; `Conflict` with
    /// `repairs` if the slow tier is another server's, or not the location of this database's
    /// history (see [`crate::EngineOptions::forget_lost_history`]): then nothing was done on either
    /// tier. Without `repairs` this is a finding, and the slow tier is not checked further.
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
            // A replica has no history of its own to compare with.
            Err(error) if !repairs && *error.kind() == ErrorKind::Conflict => {
                (!self.rooms.options.read_only).then_some(error)
            }
            checked => checked.map(|()| None)?,
        };
        if repairs {
            // Before the repair, because a crash may interrupt it.
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
            let what = match lost {
                Some(_) => "it was damaged when the database opened, and was rewritten",
                None => {
                    "it was damaged or missing when the database opened; the slow tier's copy \
                     replaces it"
                }
            };
            let error = Error::corrupt(path.as_str(), 0, what);
            let loss = lost.map(Loss::Series);
            report.findings.push(Finding { error, loss, is_repaired: true });
        }
        self.check_log(repairs, &mut report)?;
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
            // And after it, because answers were cached meanwhile.
            self.outdate_answers()?;
        }
        Ok(report)
    }

    /// Invalidates all cached answers. A repair changes results in unknown ways, so all answers
    /// cached so far count as older than the changes that can be announced again.
    fn outdate_answers(&self) -> Result<()> {
        if self.rooms.options.read_only {
            return Ok(());
        }
        let _one_at_a_time = self.flusher.hold();
        // A number that no cached answer has yet.
        drop(self.ledger.sequence.draw(ShardId(0)));
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

    /// Reports the damage that the opening found. With `repairs`, moves the readable rows of a
    /// damaged log to tables.
    fn check_log(&self, repairs: bool, report: &mut CheckReport) -> Result<()> {
        let damage = &self.recovery.report.damage;
        if repairs && damage.iter().any(|place| place.is_in_log) {
            self.flush()?;
        }
        for place in damage {
            // The text names file and offset.
            let error = Error::invalid(place.what.clone());
            let loss = place.is_in_log.then_some(Loss::Rows);
            report.findings.push(Finding { error, loss, is_repaired: repairs });
        }
        for what in self.readers.damage() {
            let error = Error::invalid(what.clone());
            report.findings.push(Finding { error, loss: None, is_repaired: repairs });
        }
        Ok(())
    }

    /// Checks the index's files and, with `repairs`, rewrites the damaged ones.
    fn check_index(&self, repairs: bool, report: &mut CheckReport) -> Result<()> {
        let mut damage: BTreeMap<String, Vec<Error>> = BTreeMap::new();
        for error in self.rooms.index.check() {
            let path = file_of(&error).unwrap_or_default().to_owned();
            damage.entry(path).or_default().push(error);
        }
        let repairs = repairs && !self.rooms.options.read_only;
        if repairs && !damage.is_empty() {
            // The log must not define lost series again, beside those that get their labels from
            // now on. If the flush itself needs the damaged block, the repair precedes it.
            match self.flush() {
                Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                    tracing::warn!("check: the flush before the repair failed: {error}");
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
                // The loss is that of all damaged blocks of a file together.
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

    /// Rewrites a damaged index file. Returns the lost series; `None` if there is no such file.
    fn repair_index(&self, path: &str) -> Result<Option<Option<LostSeries>>> {
        let files = self.rooms.index.segment_files();
        let file_bytes = files.iter().find(|file| file.0 == path).map_or(0, |file| file.1);
        let _memory = self.pressure.reserve(
            &self.rooms,
            Pool::Jobs,
            file_bytes.saturating_mul(REPAIR_MEMORY_PER_BYTE),
        )?;
        let bucket = &*self.rooms.env.bucket;
        let described =
            claim::read_own(&self.ledger.folder, bucket, &self.rooms.tree, &self.rooms.budget);
        let copy = segments::object_reader(bucket, described.as_ref(), path);
        let Some(repaired) = self.rooms.index.repair(path, &copy)? else { return Ok(None) };
        // Writes wait until the references of lost series have a new generation.
        let _leaving = self.upkeep.leaving.write();
        self.upkeep.apply(&self.rooms, &self.ledger, repaired.part)?;
        Ok(Some(repaired.lost))
    }

    /// Checks the slow tier's manifest, and finds unreferenced files and objects.
    fn check_slow_manifest(&self, repairs: bool, report: &mut CheckReport) -> Result<Vec<String>> {
        let mut orphans = self.rooms.tree.orphans(&self.rooms.env)?;
        match description::read(&*self.rooms.env.bucket, &self.rooms.budget) {
            // Changed since the check began.
            Ok(Some(described))
                if repairs
                    && !claim::is_ours(&self.ledger.folder, &described, &self.rooms.tree) =>
            {
                return Err(claim::not_ours_error(described.epoch));
            }
            Ok(Some(described)) => {
                orphans.extend(segments::orphans(&described, &*self.rooms.env.bucket)?);
                for (error, path) in segments::differing_segments(&self.rooms.env, &described)? {
                    // A local file with damage proves nothing about its object.
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
                        // The next claim reads the valid copy and puts both again.
                        self.slow.drop_claim();
                        self.publish_all()?;
                    }
                    let what = "one of its two copies is damaged; the other is complete";
                    let error = Error::corrupt(description::KEY, offset, what);
                    report.findings.push(Finding { error, loss: None, is_repaired });
                }
            }
            Ok(None) => report.findings.extend(self.check_no_slow_manifest(repairs)),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt { .. }) => {
                let is_repaired =
                    repairs && !self.rooms.options.read_only && self.replace_slow_manifest()?;
                let error = match repairs && !is_repaired {
                    true => error.context(
                        "its remains do not show that this folder's server put it, so it is kept: \
                         if no other server writes there, remove the object and repair again",
                    ),
                    false => error,
                };
                report.findings.push(Finding { error, loss: None, is_repaired });
            }
            Err(error) => return Err(error),
        }
        Ok(orphans)
    }

    /// A finding if there is no manifest on the slow tier although tables were uploaded. With
    /// `repairs` it is put again.
    fn check_no_slow_manifest(&self, repairs: bool) -> Option<Finding> {
        let count = self.rooms.tree.version().tables().filter(|t| t.level.is_slow()).count();
        if count == 0 {
            return None;
        }
        let what = format!(
            "the manifest is missing, but this database has uploaded {count} tables; a start of \
             the server writes it again"
        );
        let mut error = Error::corrupt(description::KEY, 0, what);
        let mut is_repaired = false;
        if repairs && !self.rooms.options.read_only {
            self.slow.drop_claim();
            match self.publish_all() {
                Ok(()) => is_repaired = true,
                Err(failed) => error = failed.context(error.to_string()),
            }
        }
        Some(Finding { error, loss: None, is_repaired })
    }

    fn publish_all(&self) -> Result<()> {
        while self.tend_slow_tier()? {}
        Ok(())
    }

    /// As [`claim::check_ours`].
    fn check_ours(&self) -> Result<()> {
        let Rooms { env, options, tree, budget, .. } = &self.rooms;
        let (folder, forgets_history) = (&self.ledger.folder, options.forget_lost_history);
        claim::check_ours(folder, &*env.bucket, tree, forgets_history, budget)
    }

    /// Claims the slow tier if necessary and publishes the current state. Returns whether it did.
    fn tend_slow_tier(&self) -> Result<bool> {
        self.slow.tend(&self.rooms, &self.ledger)
    }

    fn replace_slow_manifest(&self) -> Result<bool> {
        self.slow.replace_damaged(&self.rooms, &self.ledger)
    }

    /// Rewrites a damaged table.
    fn repair(&self, table: TableId, cancel: &CancelToken) -> Result<bool> {
        self.slow.check_writable(&self.rooms)?;
        let version = self.rooms.tree.version();
        let Some(job) = self.rooms.tree.plan_repair(&version, table) else { return Ok(false) };
        drop(version);
        if job.is_slow() {
            self.publish_all()?;
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
            self.publish_all()?;
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
