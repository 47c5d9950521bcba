//! An immutable view of the index, for queries.

use std::sync::Arc;

use firn_model::{
    GroupId, Grouping, Labels, Matcher, QueryContext, Result, SeriesLimit, SeriesRef,
};

use crate::jobs::seal_bytes;
use crate::matched::MatchedSeries;
use crate::matches::{GroupMatch, Matches};
use crate::memory::index::{MemoryIndex, SeriesPosition, Watermark};
use crate::memory::matching;
use crate::sealed::LabelReader;
use crate::version::{FileSegment, IndexVersion};

/// The series that were known when the view was created; later ones are invisible. Cheap to clone
/// and to keep: it holds the segments and a watermark, no copy. Calls hold a segment's lock only
/// for pieces of bounded size.
///
/// Every call that reads labels fails with `Corrupt`, with file and offset, if it needs a damaged
/// block of a segment file; other calls succeed.
#[derive(Clone, Debug)]
pub struct IndexView {
    pub(crate) version: Arc<IndexVersion>,
    /// The visible part of the active segment.
    pub(crate) mark: Watermark,
}

/// A group as a view sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// The identity labels: new series with these labels join the group. For a lone series, all its
    /// labels.
    pub labels: Labels,
    /// Whether it is a lone series; such a group never gets another member.
    pub is_lone: bool,
    /// Members have slots in `0..slot_count`. Some slots may have no member any more.
    pub slot_count: u32,
}

/// Sizes of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Known series.
    pub series_count: u64,
    /// Groups, including lone series.
    pub group_count: u64,
    /// Distinct label sets of members; one that is in several segments counts in each.
    pub member_set_count: u64,
    /// Distinct label names in the segment with the most names.
    pub name_count: u64,
    /// Distinct label pairs; one that is in several segments counts in each.
    pub pair_count: u64,
    /// Memory in bytes, without mapped files. Includes segments that only views still hold.
    pub heap_bytes: u64,
    /// The part of `heap_bytes` for series that are in no segment file yet.
    pub unsealed_bytes: u64,
    /// Memory in bytes that writing these series to a file will take, besides
    /// [`WRITE_BUFFER_BYTES`](crate::WRITE_BUFFER_BYTES).
    pub seal_bytes: u64,
    /// Sealed segment files.
    pub segment_count: u64,
    /// Total length of the segment files.
    pub segment_bytes: u64,
    /// New series refused since the open, by limit in the order of [`SeriesLimit::ALL`].
    pub refused: [u64; SeriesLimit::ALL.len()],
}

impl IndexView {
    pub(crate) fn new(version: Arc<IndexVersion>, mark: Watermark) -> IndexView {
        IndexView { version, mark }
    }

    /// Selects the series for which all matchers hold. An absent label has the value `""`. Without
    /// matchers: every series.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` as the token reports, checked about once per millisecond; `Busy`
    /// without memory, `TooLarge` beyond the query's share of memory; `Corrupt`.
    pub fn select(&self, matchers: &[Matcher], context: &QueryContext) -> Result<MatchedSeries> {
        let sealed = self.version.sealed.iter();
        let sealed = sealed.map(|segment| segment.sealed.select(matchers, context));
        let sealed = sealed.collect::<Result<_>>()?;
        let in_memory = self.version.layers(self.mark);
        let in_memory = in_memory
            .map(|(layer, mark)| matching::select(&layer.memory, mark, matchers, context))
            .collect::<Result<_>>()?;
        Ok(MatchedSeries::new(Arc::clone(&self.version), self.mark, sealed, in_memory))
    }

    /// The groups and slots of [`IndexView::select`], with a key under `grouping` for each series.
    /// Only series that also match the context's `scope`.
    ///
    /// # Errors
    /// As [`MatchedSeries::collect_groups`] and [`Matcher::compile`].
    pub fn matches(
        &self,
        matchers: &[Matcher],
        grouping: &Grouping,
        context: &QueryContext,
    ) -> Result<Matches> {
        self.select_in_scope(matchers, context)?.collect_groups(grouping, context)
    }

    /// As [`IndexView::select`], with compiled matchers. Only series that also match the context's
    /// `scope`.
    ///
    /// # Errors
    /// As [`IndexView::select`] and [`Matcher::compile`].
    pub fn select_in_scope(
        &self,
        matchers: &[Matcher],
        context: &QueryContext,
    ) -> Result<MatchedSeries> {
        matchers.iter().try_for_each(|matcher| matcher.compile(context))?;
        match context.scope.is_empty() {
            true => self.select(matchers, context),
            false => self.select(&[matchers, &context.scope].concat(), context),
        }
    }

    /// The labels of a series; `None` if the view does not contain it.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn labels(&self, series: SeriesRef) -> Result<Option<Labels>> {
        if let Some(labels) = self.labels_in_memory(series) {
            return Ok(Some(labels));
        }
        for segment in self.version.sealed.iter().rev() {
            if let Some(labels) = segment.sealed.labels(series)? {
                return Ok(Some(labels));
            }
        }
        Ok(None)
    }

    /// Calls `each` with the labels of every member of `groups`: cheaper than one call of
    /// [`IndexView::labels`] for each.
    ///
    /// # Errors
    /// As [`IndexView::select`]; those of `each`.
    pub fn each_labels(
        &self,
        groups: &[GroupMatch],
        context: &QueryContext,
        each: &mut dyn FnMut(Labels) -> Result<()>,
    ) -> Result<()> {
        let segments = self.version.sealed.iter().rev();
        let mut readers: Vec<_> =
            segments.map(|segment| LabelReader::new(&segment.sealed)).collect();
        for found in groups {
            context.cancel.check()?;
            for member in &found.members {
                let series = SeriesRef { group: found.group, slot: member.slot };
                let mut labels = self.labels_in_memory(series);
                for reader in &mut readers {
                    if labels.is_none() {
                        labels = reader.labels(series)?;
                    }
                }
                labels.map_or(Ok(()), &mut *each)?;
            }
        }
        Ok(())
    }

    fn labels_in_memory(&self, series: SeriesRef) -> Option<Labels> {
        self.version.layers(self.mark).find_map(|(layer, mark)| {
            let memory = layer.memory.read();
            let is_seen = |position: &SeriesPosition| {
                position.at < memory.parts.count_below(position.part_no, mark.series)
            };
            memory.position(series).filter(is_seen).map(|position| memory.labels_at(position))
        })
    }

    /// A group; `None` if the view does not contain it. Its members are the slots for which
    /// [`IndexView::labels`] returns labels.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn group(&self, group: GroupId) -> Result<Option<GroupInfo>> {
        let mut found: Option<GroupInfo> = None;
        for (layer, mark) in self.version.layers(self.mark) {
            let memory = layer.memory.read();
            let end_of = |part_no: u32| {
                let count = memory.parts.count_below(part_no, mark.series);
                (count > 0).then(|| memory.parts.first_slot(part_no) + count)
            };
            let seen = memory.parts.of_group(group).filter(|&part_no| part_no < mark.parts);
            let Some((part_no, end)) = seen.filter_map(|no| Some((no, end_of(no)?))).next() else {
                continue;
            };
            let known = found.get_or_insert_with(|| {
                let none = std::iter::empty;
                let labels = memory.labels_of(memory.parts.identity(part_no), none(), none());
                GroupInfo { labels, is_lone: memory.parts.is_lone(part_no), slot_count: end }
            });
            known.slot_count = known.slot_count.max(end);
        }
        for segment in &self.version.sealed {
            let Some((labels, is_lone)) = segment.sealed.group_labels(group)? else { continue };
            let end = segment.sealed.next_slot(group)?.unwrap_or(0);
            let known = found.get_or_insert(GroupInfo { labels, is_lone, slot_count: end });
            known.slot_count = known.slot_count.max(end);
        }
        Ok(found)
    }

    /// Number of series in the view.
    pub fn series_count(&self) -> u64 {
        let sealed = self.version.sealed.iter().map(|segment| segment.info.series_count);
        let in_memory = self.version.layers(self.mark).map(|(_, mark)| u64::from(mark.series));
        sealed.sum::<u64>() + in_memory.sum::<u64>()
    }

    /// Number of groups in the view, including lone series.
    pub fn group_count(&self) -> u64 {
        let sealed = self.version.sealed.iter().map(|segment| segment.info.group_count);
        let in_memory = self.version.layers(self.mark).map(|(_, mark)| u64::from(mark.groups));
        sealed.sum::<u64>() + in_memory.sum::<u64>()
    }
}

impl IndexStats {
    pub(crate) fn add_memory(&mut self, memory: &MemoryIndex) {
        self.series_count += memory.series_count();
        self.group_count += u64::from(memory.parts.group_count());
        self.member_set_count += u64::from(memory.sets.count());
        self.name_count = self.name_count.max(u64::from(memory.pairs.name_count()));
        self.pair_count += u64::from(memory.pairs.pair_count());
        let heap_bytes = memory.heap_bytes() as u64;
        self.heap_bytes += heap_bytes;
        self.unsealed_bytes += heap_bytes;
        self.seal_bytes += seal_bytes(memory);
    }

    pub(crate) fn add_segment(&mut self, segment: &FileSegment) {
        self.series_count += segment.info.series_count;
        self.group_count += segment.info.group_count;
        self.member_set_count += segment.sealed.member_set_count();
        self.name_count = self.name_count.max(segment.sealed.name_count());
        self.pair_count += segment.sealed.pair_count();
        self.heap_bytes += segment.sealed.heap_bytes();
        self.segment_count += 1;
        self.segment_bytes += segment.sealed.file_bytes();
    }
}
