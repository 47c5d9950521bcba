//! The samples of one selection as a plain map.

use std::collections::BTreeMap;

use firn_model::{
    ColumnValues, Grouping, Labels, Matcher, QueryContext, Result, Sample, Select, Selection,
    TimeRange,
};

use crate::Rng;
use crate::oracle::all_match;

/// The samples of a selection, by series, in time order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSamples {
    /// The matchers of the selection.
    pub matchers: Vec<Matcher>,
    /// The range of the selection, both ends inclusive.
    pub range: TimeRange,
    /// The returned samples; series without samples are left out.
    pub series: BTreeMap<Labels, Vec<Sample>>,
}

impl ObservedSamples {
    /// Reads the samples that `matchers` select in `range` from one view.
    ///
    /// # Errors
    /// Those of [`Select::select`] and [`firn_model::Selected::read`].
    ///
    /// # Panics
    /// If the result violates a rule of the seam: a column that does not fit its timestamps,
    /// timestamps that do not rise, a sample outside the range, a series that is repeated or does
    /// not match.
    pub fn read(
        select: &dyn Select,
        matchers: &[Matcher],
        range: TimeRange,
    ) -> Result<ObservedSamples> {
        let matchers = matchers.to_vec();
        let selection = Selection { matchers, range, grouping: Grouping::Series };
        let selected = select.select(&selection, &QueryContext::unbounded())?;
        let mut seen =
            ObservedSamples { matchers: selection.matchers, range, series: BTreeMap::new() };
        let keys = selected.keys();
        for batch in selected.read(0..selected.group_count())? {
            for column in &batch.columns {
                let labels = &keys[column.key as usize];
                let times = &batch.times[column.time_idx as usize];
                assert!(times.is_sorted_by(|a, b| a < b), "{labels}: times do not rise: {times:?}");
                let present: Vec<usize> = match &column.presence {
                    None => (0..times.len()).collect(),
                    Some(presence) => {
                        assert_eq!(presence.len(), times.len(), "{labels}: presence and times");
                        presence.iter().collect()
                    }
                };
                let values = match &column.values {
                    ColumnValues::F64(values) => values,
                    other => panic!("{labels}: a column of {:?}", other.column_type()),
                };
                assert_eq!(values.len(), present.len(), "{labels}: values and entries");
                let samples = present.iter().map(|&idx| times[idx]).zip(values);
                let samples = samples.map(|(ts, &value)| Sample { ts, value }).collect();
                seen.add(labels, samples);
            }
        }
        Ok(seen)
    }

    /// A hash of the samples, for tests that one seed produces one world.
    pub fn digest(&self) -> u64 {
        let mut digest = 0;
        let mut mix = |bits: u64| digest = Rng::new(digest ^ bits).next_u64();
        for (labels, samples) in &self.series {
            mix(labels.hash64());
            for sample in samples {
                mix(sample.ts as u64);
                mix(sample.value.to_bits());
            }
        }
        digest
    }

    /// Number of samples.
    pub fn sample_count(&self) -> usize {
        self.series.values().map(Vec::len).sum()
    }

    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        all_match(&self.matchers, labels)
    }

    fn add(&mut self, labels: &Labels, samples: Vec<Sample>) {
        if samples.is_empty() {
            return;
        }
        assert!(self.selects(labels), "{labels} does not match {:?}", self.matchers);
        let outside = samples.iter().find(|sample| !self.range.contains(sample.ts));
        assert!(outside.is_none(), "{labels}: {outside:?} is outside {:?}", self.range);
        let twice = self.series.insert(labels.clone(), samples);
        assert!(twice.is_none(), "{labels} is repeated");
    }
}
