//! The rows of a scrape in the database.

use firn_collect::scrape::{MetadataItem, Store};
use firn_model::{
    Error, ErrorKind, LabelLimits, Labels, MetricType, Result, RowBatch, SeriesRef, excerpt,
};
use firndb::{Db, ForeignMember};

use crate::metadata::{Metadata, MetadataBatch};
use crate::tally::{Reason, Tally};

/// The database as one scrape sees it.
#[derive(Debug)]
pub(crate) struct ScrapeStore<'a> {
    db: &'a Db,
    limits: LabelLimits,
    /// The generation of the references of this scrape.
    generation: u32,
    /// The fate of its samples.
    pub(crate) tally: Tally,
    /// Metadata that is new or has changed.
    pub(crate) metadata: MetadataBatch,
    /// The first refusal of a series or of the batch.
    pub(crate) refusal: Option<Error>,
}

// The metadata of one scrape. More is not stored.
const METADATA_BYTES_MAX: usize = 4 << 20;

impl<'a> ScrapeStore<'a> {
    /// For one scrape or end of a target.
    pub(crate) fn new(db: &'a Db, limits: LabelLimits) -> ScrapeStore<'a> {
        ScrapeStore {
            db,
            limits,
            generation: db.generation(),
            tally: Tally::default(),
            metadata: MetadataBatch::default(),
            refusal: None,
        }
    }

    /// Counts a series that the database has refused.
    fn refused(&mut self, error: Error) -> Error {
        self.tally.received += 1;
        self.tally.reject_series(Reason::of(&error), 1);
        if self.refusal.is_none() {
            self.refusal = Some(copy_of(&error));
        }
        error
    }

    /// Resolves those of `series` whose labels are within the limits, and counts the others.
    fn resolve_allowed(
        &mut self,
        group: &Labels,
        series: &[Labels],
        resolve: impl FnOnce(&Self, &[Labels]) -> Vec<Result<SeriesRef>>,
    ) -> Vec<Result<SeriesRef>> {
        let check = |member: &Labels| {
            let checked = self.limits.check(&[group, member]);
            checked.map_err(|error| error.context(excerpt(&member.to_string())))
        };
        let checked: Vec<Result<()>> = series.iter().map(check).collect();
        let mut allowed = series.to_vec();
        let mut is_allowed = checked.iter().map(Result::is_ok);
        allowed.retain(|_| is_allowed.next().unwrap_or(false));
        let resolved = if allowed.is_empty() { Vec::new() } else { resolve(self, &allowed) };
        let mut resolved = resolved.into_iter();
        let missing = || Err(Error::internal("the database has resolved too few series"));
        let one = |checked: Result<()>| {
            let found = checked.and_then(|()| resolved.next().unwrap_or_else(missing));
            found.map_err(|error| self.refused(error))
        };
        checked.into_iter().map(one).collect()
    }

    /// The references of `members`, as many as the limits on series allow.
    fn resolve_some(&self, group: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>> {
        let resolve = |members: &[Labels]| {
            self.db.resolve_group(group, members, ForeignMember::Use).map(|refs| refs.members)
        };
        let error = match resolve(members) {
            Ok(found) => return found.into_iter().map(Ok).collect(),
            Err(error) => error,
        };
        let known = self.db.find_members(group, members).unwrap_or_default();
        let mut found: Vec<Result<SeriesRef>> = (0..members.len())
            .map(|idx| known.get(idx).copied().flatten().ok_or_else(|| copy_of(&error)))
            .collect();
        if !matches!(error.kind(), ErrorKind::SeriesLimit { .. }) {
            return found;
        }
        // The limit has room for some of the new ones: fewer and fewer are tried.
        let missing: Vec<usize> = (0..found.len()).filter(|&idx| found[idx].is_err()).collect();
        let (mut start, mut count) = (0, missing.len() / 2);
        while start < missing.len() && count > 0 {
            let some = &missing[start..missing.len().min(start + count)];
            let labels: Vec<Labels> = some.iter().map(|&idx| members[idx].clone()).collect();
            match resolve(&labels) {
                Ok(refs) => {
                    some.iter().zip(refs).for_each(|(&idx, series)| found[idx] = Ok(series));
                    start += some.len();
                }
                Err(_) => count /= 2,
            }
        }
        found
    }
}

impl Store for ScrapeStore<'_> {
    fn resolve_group(&mut self, group: &Labels, members: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_allowed(group, members, |store, members| store.resolve_some(group, members))
    }

    fn resolve(&mut self, series: &[Labels]) -> Vec<Result<SeriesRef>> {
        self.resolve_allowed(&Labels::empty(), series, |store, series| store.db.resolve(series))
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn metadata(&mut self, _: &Labels, name: &str, item: MetadataItem<'_>) {
        let is_last = self.metadata.last_mut().is_some_and(|(last, _)| **last == *name);
        if !is_last {
            self.metadata.push(name, Metadata::default(), METADATA_BYTES_MAX);
        }
        // A batch that is full has dropped the entry.
        let Some((_, metadata)) = self.metadata.last_mut().filter(|(last, _)| **last == *name)
        else {
            return;
        };
        match item {
            MetadataItem::Type(kind) => metadata.kind = kind,
            MetadataItem::Help(help) => {
                metadata.help = Metadata::new(MetricType::Unknown, &help, "").help;
            }
            MetadataItem::Unit(unit) => {
                metadata.unit = Metadata::new(MetricType::Unknown, "", &unit).unit;
            }
        }
    }

    fn write(&mut self, batch: &mut RowBatch) -> Result<u64> {
        self.tally.received += batch.len() as u64;
        let written = self.db.write_known(batch, self.generation);
        let out_of_bounds = self.tally.add_outcome(&written);
        self.refusal = written.as_ref().err().map(copy_of).or(self.refusal.take());
        written.map(|_| out_of_bounds)
    }
}

/// An error of a call for each of its series or targets.
pub(super) fn copy_of(error: &Error) -> Error {
    Error::new(error.kind().clone(), error.to_string())
}

#[cfg(test)]
mod tests {
    use firndb::{IndexOptions, Options, SeriesLimits, local_env};

    use super::*;

    fn open(folder: &std::path::Path, limits: SeriesLimits) -> Db {
        let index = IndexOptions { limits, ..IndexOptions::default() };
        let options = Options { index, memory_bytes_max: 64 << 20, ..Options::default() };
        Db::open(local_env(folder).unwrap(), options).unwrap()
    }

    fn members(names: &[&str]) -> Vec<Labels> {
        names.iter().map(|name| Labels::from_pairs([("__name__", *name)]).unwrap()).collect()
    }

    // A limit of the database refuses a call as a whole: known series and those that still fit are
    // stored nevertheless.
    #[test]
    fn a_limit_on_series_refuses_only_the_series_beyond_it() {
        let folder = tempfile::tempdir().unwrap();
        let limits = SeriesLimits { series_max: Some(5), ..SeriesLimits::default() };
        let db = open(folder.path(), limits);
        let group = Labels::from_pairs([("job", "j"), ("instance", "h:1")]).unwrap();
        let mut store = ScrapeStore::new(&db, LabelLimits::default());
        assert!(store.resolve_group(&group, &members(&["a", "b"])).iter().all(Result::is_ok));
        let found = store.resolve_group(&group, &members(&["c", "b", "d", "e", "f", "g", "a"]));
        assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 5, "{found:?}");
        assert!(found[1].is_ok() && found[6].is_ok());
        let mut batch = RowBatch::default();
        let ts = db.now_ms();
        found.iter().flatten().for_each(|series| batch.push(*series, ts, 1.0));
        assert_eq!(store.write(&mut batch).unwrap(), 0);
        assert!(store.tally.is_exact(), "{:?}", store.tally);
        assert_eq!((store.tally.received, store.tally.stored), (7, 5));
        assert!(store.refusal.is_some());
        db.close().unwrap();
    }

    #[test]
    fn limits_on_labels_refuse_single_series() {
        let folder = tempfile::tempdir().unwrap();
        let db = open(folder.path(), SeriesLimits::default());
        let limits = LabelLimits { label_count_max: 3, value_bytes_max: 8, name_bytes_max: 8 };
        let mut store = ScrapeStore::new(&db, limits);
        let group = Labels::from_pairs([("job", "j")]).unwrap();
        let member = |pairs: &[(&str, &str)]| Labels::from_pairs(pairs.iter().copied()).unwrap();
        let found = store.resolve_group(
            &group,
            &[
                member(&[("__name__", "a"), ("x", "1")]),
                member(&[("__name__", "a"), ("x", "1"), ("y", "2")]),
                member(&[("__name__", "a"), ("x", "123456789")]),
                member(&[("__name__", "b")]),
            ],
        );
        let is_ok: Vec<bool> = found.iter().map(Result::is_ok).collect();
        assert_eq!(is_ok, [true, false, false, true]);
        assert!(store.resolve(&members(&["a_long_name"]))[0].is_err());
        assert_eq!(store.tally.rejected(Reason::LabelLimit), 3);
        assert!(store.tally.is_exact());
        db.close().unwrap();
    }

    #[test]
    fn the_items_of_a_family_are_one_entry() {
        let folder = tempfile::tempdir().unwrap();
        let db = open(folder.path(), SeriesLimits::default());
        let mut store = ScrapeStore::new(&db, LabelLimits::default());
        let none = Labels::empty();
        store.metadata(&none, "a", MetadataItem::Help("text".into()));
        store.metadata(&none, "a", MetadataItem::Type(MetricType::Counter));
        store.metadata(&none, "b", MetadataItem::Unit("s".into()));
        let entries = store.metadata.entries();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].1, Metadata::new(MetricType::Counter, "text", ""));
        assert_eq!(&*entries[1].1.unit, "s");
        db.close().unwrap();
    }
}
