//! Helper threads affect only the duration of a query; the memory that they hold is bounded.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use firn_model::{
    Budget, CancelToken, Column, ColumnBatch, ColumnValues, Error, ErrorKind, Helpers, Labels,
    Pool, Presence, QueryContext, Result, Select, Selected, Selection, Slot,
};
use firn_promql::{EvalOptions, QueryOutput, eval, parse};

const GROUPS: usize = 60;
const MEMBERS: usize = 40;
const SAMPLES: usize = 300;
/// The accounted size of a batch.
const BATCH_BYTES: usize = MEMBERS * SAMPLES * 8;

/// Groups generated while they are read; they need more than one read.
#[derive(Clone, Default)]
struct GeneratedStore {
    /// Reading this group fails.
    broken: Option<usize>,
    /// Reading this group cancels the query.
    canceling: Option<(usize, CancelToken)>,
    reading_now: Arc<AtomicUsize>,
    reading_most: Arc<AtomicUsize>,
}

struct GeneratedGroups {
    keys: Vec<Labels>,
    by_series: bool,
    store: GeneratedStore,
    budget: Budget,
}

impl Select for GeneratedStore {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        let by_series = selection.grouping == firn_model::Grouping::Series;
        let labels = |idx: usize| {
            let (instance, region) = (format!("{idx}"), format!("{}", idx % 7));
            let all = [("__name__", "m_total"), ("i", &instance), ("region", &region)];
            Labels::from_pairs(all).map(|labels| selection.grouping.key(&labels))
        };
        let keys = (0..GROUPS * MEMBERS).map(labels).collect::<Result<Vec<_>>>()?;
        let budget = context.budget.clone();
        Ok(Box::new(GeneratedGroups { keys, by_series, store: self.clone(), budget }))
    }
}

impl Selected for GeneratedGroups {
    fn keys(&self) -> &[Labels] {
        &self.keys
    }

    fn group_count(&self) -> usize {
        GROUPS
    }

    fn member_count(&self, _: usize) -> usize {
        MEMBERS
    }

    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>> {
        let store = &self.store;
        let now = store.reading_now.fetch_add(1, Ordering::SeqCst) + 1;
        store.reading_most.fetch_max(now, Ordering::SeqCst);
        let batches = groups.map(|group| self.group(group)).collect();
        store.reading_now.fetch_sub(1, Ordering::SeqCst);
        batches
    }

    fn each(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&ColumnBatch) -> Result<()>,
    ) -> Result<()> {
        let batches = self.read(groups)?;
        let _held = self.budget.reserve(Pool::Query, (batches.len() * BATCH_BYTES) as u64)?;
        batches.iter().try_for_each(each)
    }
}

impl GeneratedGroups {
    fn group(&self, group: usize) -> Result<ColumnBatch> {
        if self.store.broken == Some(group) {
            return Err(Error::corrupt("made.up", 7, "broken"));
        }
        if let Some((canceling, token)) = &self.store.canceling
            && *canceling == group
        {
            token.cancel();
        }
        let times: Arc<[i64]> = (0..SAMPLES as i64).map(|idx| idx * 15_000 + 7).collect();
        let columns = (0..MEMBERS).map(|slot| {
            let mut presence = Presence::new();
            let mut values = Vec::new();
            for idx in 0..SAMPLES {
                presence.push((idx + slot) % 11 != 3 || slot % 2 == 0);
                if presence.get(idx) {
                    values.push(((idx * 7 + slot * 13 + group) % 29) as f64 / 3.0);
                }
            }
            Column {
                slot: Slot(slot as u32),
                key: (group * MEMBERS + slot) as u32,
                time_idx: 0,
                presence: (!presence.is_full()).then_some(presence),
                values: ColumnValues::F64(values),
            }
        });
        assert!(self.by_series || self.keys.len() == GROUPS * MEMBERS);
        Ok(ColumnBatch { times: vec![times], columns: columns.collect() })
    }
}

fn context(helper_count: usize) -> QueryContext {
    QueryContext { helpers: Helpers::new(helper_count), ..QueryContext::unbounded() }
}

fn run(query: &str, store: &GeneratedStore, context: &QueryContext) -> Result<QueryOutput> {
    let range = EvalOptions::range(60_000, 4_500_000, 45_000);
    let options = EvalOptions { counts_samples: true, ..range };
    eval(&parse(query).unwrap(), store, &options, context)
}

const QUERIES: [&str; 9] = [
    "sum by (region) (rate(m_total[5m]))",
    "avg by (region) (m_total)",
    "stddev(sum_over_time(m_total[10m]))",
    "max(max_over_time(m_total[3m])) - min(m_total)",
    "count by (region) (m_total > 3)",
    "quantile by (region) (0.3, m_total)",
    "topk(3, m_total)",
    "rate(m_total[5m])",
    "sum without (i) (m_total) / group without (i) (m_total)",
];

#[test]
fn results_have_the_same_bits_on_any_number_of_threads() {
    for query in QUERIES {
        let store = GeneratedStore::default();
        let alone = run(query, &store, &context(0)).unwrap();
        assert_eq!(store.reading_most.load(Ordering::SeqCst), 1);
        for helper_count in [1, 5] {
            let context = context(helper_count);
            let together = run(query, &store, &context).unwrap();
            assert_eq!(alone, together, "{query}");
            let free = context.helpers.take(usize::MAX).count();
            assert_eq!(free, helper_count, "all helpers are released");
        }
    }
}

#[test]
fn errors_and_cancellation_end_all_threads() {
    for helper_count in [0, 3] {
        let store = GeneratedStore { broken: Some(GROUPS - 2), ..GeneratedStore::default() };
        let error = run(QUERIES[0], &store, &context(helper_count)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        let context = context(helper_count);
        let canceling = Some((GROUPS - 10, context.cancel.clone()));
        let error =
            run(QUERIES[0], &GeneratedStore { canceling, ..GeneratedStore::default() }, &context);
        assert_eq!(error.unwrap_err().kind(), &ErrorKind::Canceled);
    }
}

#[test]
fn a_query_holds_only_a_few_reads_at_a_time() {
    let budget = Budget::new(1 << 40);
    for helper_count in [0, 3] {
        let part = budget.part(1 << 40);
        let context = QueryContext {
            helpers: Helpers::new(helper_count),
            ..QueryContext::new(CancelToken::new(), part.clone())
        };
        run(QUERIES[0], &GeneratedStore::default(), &context).unwrap();
        let peak = part.usage().peak_bytes;
        let all = (GROUPS * BATCH_BYTES) as u64;
        // A read is two fifths of the data. In addition a helper holds its results until its turn
        // comes.
        let reads = if helper_count == 0 { 1 } else { 3 };
        assert!(peak > all / 4 && peak < reads * all * 2 / 3, "{peak} of {all}");
        assert_eq!(part.usage().used_bytes, 0, "all memory is released");
    }
    let small =
        QueryContext::new(CancelToken::new(), budget.part_of_setting(1 << 20, "--of-a-query"));
    let error = run(QUERIES[0], &GeneratedStore::default(), &small).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TooLarge);
    assert!(error.to_string().contains("raise --of-a-query"), "{error}");
    assert_eq!(budget.usage().used_bytes, 0);
}
