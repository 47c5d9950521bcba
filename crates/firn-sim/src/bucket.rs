//! An object store that responds late, twice or never, depending on its seed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firn_env::{Bucket, ObjectInfo, PutMode, RangeRequest, check_key, corrupt_range};
use firn_model::{Error, Result};

use crate::faults::{Faults, Operation, Verdict};

/// A simulated object store. Clones share it. It outlives crashes of the machine.
#[derive(Clone)]
pub struct SimBucket {
    faults: Faults,
    state: Arc<Mutex<StoreState>>,
}

#[derive(Default)]
struct StoreState {
    objects: BTreeMap<String, Object>,
    put_count: u64,
    is_down: bool,
    /// Changes that were reported as failed and are still pending.
    late: Vec<DelayedChange>,
}

/// A change that is applied after some more requests.
struct DelayedChange {
    requests_left: u64,
    key: String,
    change: Change,
}

enum Change {
    Put(Arc<[u8]>, PutMode),
    Delete,
}

// The most requests before a delayed change is applied.
const DELAY_REQUESTS_MAX: u64 = 6;

struct Object {
    bytes: Arc<[u8]>,
    version: u64,
}

impl SimBucket {
    /// An empty store.
    pub fn new(faults: Faults) -> SimBucket {
        SimBucket { faults, state: Arc::default() }
    }

    /// While the store is down every operation fails with `Unavailable` and has no effect.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// All keys, sorted. Not an operation.
    pub fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// An object's bytes. Not an operation.
    pub fn bytes(&self, key: &str) -> Option<Arc<[u8]>> {
        self.state().objects.get(key).map(|object| Arc::clone(&object.bytes))
    }

    /// Damages a stored object. Not an operation.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn damage(&self, key: &str, damage: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut state = self.state();
        let object = state.objects.get_mut(key).ok_or_else(|| missing(key))?;
        let mut bytes = object.bytes.to_vec();
        damage(&mut bytes);
        object.bytes = Arc::from(bytes);
        Ok(())
    }

    /// `Ok(true)` if the machine loses power meanwhile; the store may or may not apply the change.
    fn begin(&self, state: &mut StoreState, operation: Operation, key: &str) -> Result<bool> {
        state.apply_due();
        let verdict = self.faults.decide(operation);
        if verdict == Verdict::Off {
            return Err(power_lost(operation, key));
        }
        if state.is_down || self.faults.is_down() {
            return Err(Error::unavailable(format!("{key}: the simulated bucket is down")));
        }
        match verdict {
            Verdict::Fail => Err(failed(operation, key)),
            verdict => Ok(verdict == Verdict::Crash),
        }
    }

    /// Applies a change and decides the response to the caller.
    fn change<T>(
        &self,
        operation: Operation,
        key: &str,
        is_crash: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if is_crash && self.faults.fork_rng().chance(0.5) {
            return Err(power_lost(operation, key));
        }
        let done = change()?;
        if is_crash {
            return Err(power_lost(operation, key));
        }
        if self.faults.loses_acknowledgement() {
            return Err(Error::unavailable(format!(
                "{key}: simulated loss of the answer to {operation:?}"
            )));
        }
        Ok(done)
    }

    /// Fails the change now and queues it to be applied later.
    fn delay(&self, state: &mut StoreState, key: &str, change: Change) -> Error {
        let requests_left = 1 + self.faults.fork_rng().below(DELAY_REQUESTS_MAX);
        state.late.push(DelayedChange { requests_left, key: key.to_owned(), change });
        Error::unavailable(format!("{key}: no answer yet from the simulated bucket"))
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bucket for SimBucket {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
        let mut state = self.state();
        let answers = requests.iter().map(|request| {
            self.begin(&mut state, Operation::Get, &request.key)?;
            let object = state.objects.get(&request.key).ok_or_else(|| missing(&request.key))?;
            let range = request.offset.checked_add(request.len).and_then(|end| {
                object.bytes.get(usize::try_from(request.offset).ok()?..usize::try_from(end).ok()?)
            });
            let whole = range.ok_or_else(|| corrupt_range(request, object.bytes.len() as u64))?;
            Ok(Arc::from(&whole[..self.faults.partial_len(whole.len())]))
        });
        answers.collect()
    }

    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo> {
        check_key(key)?;
        let mut state = self.state();
        let is_crash = self.begin(&mut state, Operation::Put, key)?;
        if self.faults.is_done_later() {
            return Err(self.delay(&mut state, key, Change::Put(bytes, mode)));
        }
        self.change(Operation::Put, key, is_crash, || state.put(key, bytes, &mode))
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        let mut state = self.state();
        self.begin(&mut state, Operation::Head, key)?;
        state.objects.get(key).map(|object| object.info(key)).ok_or_else(|| missing(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let mut state = self.state();
        self.begin(&mut state, Operation::ListObjects, prefix)?;
        let from_prefix = state.objects.range(prefix.to_owned()..);
        let found = from_prefix.take_while(|(key, _)| key.starts_with(prefix));
        Ok(found.map(|(key, object)| object.info(key)).collect())
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut state = self.state();
        // One request per key, as in stores without batch deletion: after a failure some are
        // deleted.
        for key in keys {
            let is_crash = self.begin(&mut state, Operation::Delete, key)?;
            if self.faults.is_done_later() {
                return Err(self.delay(&mut state, key, Change::Delete));
            }
            self.change(Operation::Delete, key, is_crash, || {
                state.objects.remove(key);
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl StoreState {
    /// Counts a request and applies the due changes, whether or not their conditions still hold.
    fn apply_due(&mut self) {
        self.late.iter_mut().for_each(|late| late.requests_left -= 1);
        while let Some(at) = self.late.iter().position(|late| late.requests_left == 0) {
            let DelayedChange { key, change, .. } = self.late.remove(at);
            match change {
                Change::Put(bytes, mode) => drop(self.put(&key, bytes, &mode)),
                Change::Delete => drop(self.objects.remove(&key)),
            }
        }
    }

    fn put(&mut self, key: &str, bytes: Arc<[u8]>, mode: &PutMode) -> Result<ObjectInfo> {
        let present = self.objects.get(key).map(|object| object.info(key).version);
        mode.check(key, present.as_deref())?;
        self.put_count += 1;
        let object = Object { bytes, version: self.put_count };
        let info = object.info(key);
        self.objects.insert(key.to_owned(), object);
        Ok(info)
    }
}

impl Object {
    fn info(&self, key: &str) -> ObjectInfo {
        ObjectInfo {
            key: key.to_owned(),
            bytes: self.bytes.len() as u64,
            version: self.version.to_string(),
        }
    }
}

impl fmt::Debug for SimBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimBucket({} objects)", self.state().objects.len())
    }
}

fn missing(key: &str) -> Error {
    Error::not_found(format!("{key}: no such object"))
}

fn failed(operation: Operation, key: &str) -> Error {
    Error::unavailable(format!("{key}: simulated failure of {operation:?}"))
}

fn power_lost(operation: Operation, key: &str) -> Error {
    Error::closed(format!("{key}: simulated power loss during {operation:?}"))
}

#[cfg(test)]
mod tests {
    use firn_model::ErrorKind;

    use super::*;
    use crate::Sim;

    fn put(sim: &Sim, key: &str, mode: PutMode) -> Result<ObjectInfo> {
        sim.bucket.put(key, Arc::from(*b"x"), mode)
    }

    #[test]
    fn a_simulated_bucket_keeps_the_rules_of_the_seam() {
        crate::conformance::check_bucket(&Sim::new(1).bucket);
    }

    #[test]
    fn a_lost_answer_is_unavailable_and_the_object_is_there() {
        let sim = Sim::new(1);
        sim.faults.set_lost_acknowledgement_rate(1.0);
        let error = put(&sim, "a", PutMode::Create).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        assert_eq!(sim.bucket.keys(), ["a"]);
        let error = put(&sim, "a", PutMode::Create).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Conflict);
    }

    #[test]
    fn a_late_change_is_applied_without_waiters_if_its_condition_holds() {
        let sim = Sim::new(1);
        let late =
            |change: &dyn Fn() -> Result<()>, before: Option<&[u8]>, after: Option<&[u8]>| {
                sim.faults.do_nth_later(1);
                assert_eq!(change().unwrap_err().kind(), &ErrorKind::Unavailable);
                assert_eq!(sim.bucket.bytes("a").as_deref(), before);
                (0..DELAY_REQUESTS_MAX).for_each(|_| drop(sim.bucket.head("b")));
                assert_eq!(sim.bucket.bytes("a").as_deref(), after);
            };
        let put =
            |bytes: &'static [u8], mode| sim.bucket.put("a", Arc::from(bytes), mode).map(drop);
        late(&|| put(b"1", PutMode::Create), None, Some(b"1"));
        late(&|| put(b"2", PutMode::Create), Some(b"1"), Some(b"1"));
        late(&|| put(b"3", PutMode::Overwrite), Some(b"1"), Some(b"3"));
        late(&|| sim.bucket.delete(&["a".to_owned()]), Some(b"3"), None);
    }

    #[test]
    fn while_it_is_down_nothing_is_done_and_a_crash_leaves_all_or_nothing() {
        let sim = Sim::new(1);
        sim.bucket.set_down(true);
        put(&sim, "a", PutMode::Overwrite).unwrap_err();
        sim.bucket.set_down(false);
        assert!(sim.bucket.keys().is_empty());

        let mut kept = 0;
        for seed in 0..100 {
            let sim = Sim::new(seed);
            put(&sim, "a", PutMode::Overwrite).unwrap();
            sim.faults.crash_at(1);
            let error = put(&sim, "b", PutMode::Overwrite).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Closed);
            sim.bucket.head("a").unwrap_err();
            sim.restart();
            sim.bucket.head("a").unwrap();
            kept += sim.bucket.keys().len() - 1;
        }
        assert!((20..80).contains(&kept), "{kept} of 100 kept");
    }
}
