//! A new list of a job's targets, relabelled and compared with the present one.
//!
//! Relabelling 100,000 targets takes seconds. So it needs no lock of the present targets, and a
//! list takes effect once it is whole.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Budget, Error, Labels, Pool, Reservation, Result};

use super::{DiscoveredGroup, SyncReport, TargetId, labels_bytes, target_bytes};
use crate::config::{LabelSet, ScrapeConfig};
use crate::relabel::{LabelEditor, labels_work};
use crate::targets::Target;

/// A whole list of targets, with its memory.
#[derive(Debug)]
pub struct PreparedList {
    /// By all labels.
    pub(super) targets: HashMap<Labels, ListedTarget>,
    pub(super) dropped: Vec<Labels>,
    /// The memory of the labels of dropped targets.
    pub(super) held: Reservation,
    pub(super) report: SyncReport,
}

/// A target of a list that does not have effect yet.
#[derive(Debug)]
pub(super) enum ListedTarget {
    /// It is in the previous list too, perhaps with other labels before relabelling.
    Known(TargetId, Option<(Arc<Target>, Reservation)>),
    /// Its memory is reserved.
    New(Arc<Target>, Reservation),
}

/// A target of the present list, with that list's copy of its labels.
#[derive(Clone, Debug)]
pub struct KnownTarget {
    pub(super) id: TargetId,
    pub(super) labels: Labels,
    pub(super) target: Arc<Target>,
}

// Errors of one list that are kept for the log.
const ERRORS_KEPT: usize = 10;

impl PreparedList {
    /// The list of all targets of `groups`. Series have at most `label_count_max` labels: a target
    /// with more fails, because its series would all be refused, unless `metric_relabel_configs`
    /// may drop labels of its samples. `known` is [`super::ScrapePools::known`] for the job, and
    /// is called once for each listed target.
    ///
    /// # Errors
    /// `TooLarge` for too many labels of targets that are left out, `Busy` without memory.
    pub fn read<'g>(
        job: &Arc<ScrapeConfig>,
        groups: impl IntoIterator<Item = &'g DiscoveredGroup>,
        budget: &Budget,
        label_count_max: usize,
        known: impl Fn(&Labels) -> Option<KnownTarget>,
    ) -> Result<PreparedList> {
        let mut list = PreparedList {
            targets: HashMap::new(),
            dropped: Vec::new(),
            held: budget.empty(Pool::Cache),
            report: SyncReport::default(),
        };
        let reserved = |target: Target| -> Result<(Arc<Target>, Reservation)> {
            let held = budget.reserve(Pool::Cache, target_bytes(&target))?;
            Ok((Arc::new(target), held))
        };
        let (mut dropped_bytes, mut left_out_work) = (0u64, 0u64);
        let mut left_out_work_max = LEFT_OUT_WORK_MAX;
        let mut editor = LabelEditor::default();
        let kept_count = usize::try_from(job.keep_dropped_targets).unwrap_or(usize::MAX);
        for group in groups {
            let mut work_max = |labels: &LabelSet| {
                let more = labels_work(labels.iter()).saturating_mul(WORK_PER_LISTED);
                left_out_work_max = left_out_work_max.saturating_add(more);
            };
            work_max(&group.labels);
            group.targets.iter().for_each(work_max);
            for target in &group.targets {
                let discovered = Target::discovered_labels(job, target, &group.labels, &mut editor);
                let work = discovered.as_ref();
                let work = work.map_or(LABELS_WORK_MAX, |labels| labels_work(labels.iter()));
                let populated = discovered.and_then(|discovered| {
                    let target = Target::populate(job, discovered.clone(), &mut editor)?;
                    if let Some(target) = &target
                        && job.metric_relabel_configs.is_empty()
                    {
                        check_label_count(target, label_count_max)?;
                    }
                    Ok((discovered, target))
                });
                let is_left_out = match &populated {
                    Ok((_, Some(target))) => list.targets.contains_key(&target.labels),
                    _ => true,
                };
                // Listed targets are bounded by the memory.
                if is_left_out {
                    left_out_work = left_out_work.saturating_add(work);
                    if left_out_work > left_out_work_max {
                        return Err(Error::too_large(
                            "the repeated, dropped and failed targets are too many, or have too \
                             many labels: list fewer of them",
                        ));
                    }
                }
                match populated {
                    Ok((_, Some(_))) if is_left_out => {}
                    Ok((_, Some(target))) => {
                        let (labels, listed) = match known(&target.labels) {
                            Some(KnownTarget { id, labels, target: old }) => {
                                let is_same = old.discovered == target.discovered;
                                let changed = if is_same { None } else { Some(reserved(target)?) };
                                (labels, ListedTarget::Known(id, changed))
                            }
                            None => {
                                let (target, held) = reserved(target)?;
                                (target.labels.clone(), ListedTarget::New(target, held))
                            }
                        };
                        list.targets.insert(labels, listed);
                    }
                    Ok((discovered, None)) => {
                        list.report.dropped_count = list.report.dropped_count.saturating_add(1);
                        if kept_count == 0 || list.dropped.len() < kept_count {
                            dropped_bytes = dropped_bytes.saturating_add(labels_bytes(&discovered));
                            list.held.cover(dropped_bytes)?;
                            list.dropped.push(discovered);
                        }
                    }
                    Err(error) => {
                        list.report.failed_count = list.report.failed_count.saturating_add(1);
                        if list.report.errors.len() < ERRORS_KEPT {
                            list.report.errors.push(error.to_string());
                        }
                    }
                }
            }
        }
        list.report.active_count = list.targets.len();
        Ok(list)
    }
}

// Work on targets that take no memory: repeated, dropped and failed ones. Their number is that of
// short texts in an answer, each has all labels of its group, and the targets of other jobs wait
// for it. It is two seconds.
const LEFT_OUT_WORK_MAX: u64 = if cfg!(test) { 4 << 20 } else { 1 << 30 };
// Beside that, for the work on the labels of a list, each counted once: a large cluster drops most
// of its pods, which have labels of their own.
const WORK_PER_LISTED: u64 = 16;
// Of a target whose labels are too many or too long.
const LABELS_WORK_MAX: u64 = 1 << 20;

/// # Errors
/// `TooLarge` for more than `label_count_max` labels that samples have before their own rules.
fn check_label_count(target: &Target, label_count_max: usize) -> Result<()> {
    let labels = &target.labels;
    match labels.iter_bytes().filter(|(name, _)| !name.starts_with(b"__")).count() {
        count if count > label_count_max => Err(Error::too_large(format!(
            "a target has {count} labels, but series may have {label_count_max}: drop some by \
             relabel_configs, or raise --label-count-max"
        ))),
        _ => Ok(()),
    }
}
