//! Planned failures: one counter of operations for the world, planned crashes and failures, and
//! rates, all drawn from one seed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Rng, SimClock};

/// An operation of the code under test on the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Open an existing file.
    Open,
    /// Read from a file.
    Read,
    /// List a folder.
    List,
    /// Create a file.
    Create,
    /// Create a folder.
    CreateDir,
    /// Write to a file.
    Write,
    /// Reserve room in a file.
    Preallocate,
    /// Sync a file.
    Sync,
    /// Rename a file.
    Rename,
    /// Remove a file.
    Remove,
    /// Sync a folder's names.
    SyncDir,
    /// Write cache lines of memory back.
    WriteBack,
    /// Wait until they are durable.
    Fence,
    /// Read a range of an object.
    Get,
    /// Read an object's length and version.
    Head,
    /// List objects.
    ListObjects,
    /// Write an object.
    Put,
    /// Delete an object.
    Delete,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 18] = [
        Operation::Open,
        Operation::Read,
        Operation::List,
        Operation::Create,
        Operation::CreateDir,
        Operation::Write,
        Operation::Preallocate,
        Operation::Sync,
        Operation::Rename,
        Operation::Remove,
        Operation::SyncDir,
        Operation::WriteBack,
        Operation::Fence,
        Operation::Get,
        Operation::Head,
        Operation::ListObjects,
        Operation::Put,
        Operation::Delete,
    ];

    /// Whether it can change the state after a crash. Only these operations are counted: a crash
    /// before a read leaves the same state as a crash before the next change.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Operation::Open
                | Operation::Read
                | Operation::List
                | Operation::Get
                | Operation::Head
                | Operation::ListObjects
        )
    }
}

/// The plan of failures. Clones share it.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<FaultPlan>>);

struct FaultPlan {
    rng: Rng,
    change_count: u64,
    is_off: bool,
    crash_at: Option<u64>,
    fail_at: BTreeSet<u64>,
    fail_nth: Vec<(Operation, u64)>,
    rates: [f64; Operation::ALL.len()],
    lost_acknowledgement_rate: f64,
    partial_body_rate: f64,
    /// Changes of objects until the one with a lost response, ranges until the truncated one, and
    /// requests of a bucket until it is down.
    answer_lost_in: Option<u64>,
    body_cut_in: Option<u64>,
    down_in: Option<u64>,
    /// Changes of objects until the one that fails and is applied later, and operations of all
    /// kinds until the slow one.
    done_later_in: Option<u64>,
    slow_in: Option<(u64, Duration)>,
    clock: Option<SimClock>,
    fault_count: u64,
}

/// The outcome of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeds.
    Proceed,
    /// It fails; the operation decides how much of it was done.
    Fail,
    /// The power fails meanwhile: volatile state changes, and the caller gets an error.
    Crash,
    /// The power is off.
    Off,
}

impl Faults {
    /// A plan without faults; random choices come from `seed`.
    pub fn new(seed: u64) -> Faults {
        Faults(Arc::new(Mutex::new(FaultPlan {
            rng: Rng::new(seed),
            change_count: 0,
            is_off: false,
            crash_at: None,
            fail_at: BTreeSet::new(),
            fail_nth: Vec::new(),
            rates: [0.0; Operation::ALL.len()],
            lost_acknowledgement_rate: 0.0,
            partial_body_rate: 0.0,
            answer_lost_in: None,
            body_cut_in: None,
            down_in: None,
            done_later_in: None,
            slow_in: None,
            clock: None,
            fault_count: 0,
        })))
    }

    /// Sets the clock that slow operations advance.
    pub(crate) fn set_clock(&self, clock: SimClock) {
        self.state().clock = Some(clock);
    }

    /// Number of changing operations ([`Operation::changes`]) so far. Run once without faults to
    /// learn the number, then crash at each.
    pub fn change_count(&self) -> u64 {
        self.state().change_count
    }

    /// Number of faults so far: operations that failed, lost their response, or returned a part.
    pub fn fault_count(&self) -> u64 {
        self.state().fault_count
    }

    /// Cuts the power during changing operation `number` (from 0, counted from the world's start,
    /// including restarts). It and all later operations fail with `Closed` until
    /// [`crate::Sim::restart`].
    pub fn crash_at(&self, number: u64) {
        self.state().crash_at = Some(number);
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state().is_off
    }

    /// Changing operation `number` (as in [`Faults::crash_at`]) fails with `Unavailable`.
    pub fn fail_at(&self, number: u64) {
        self.state().fail_at.insert(number);
    }

    /// The `nth` operation of its kind from now on fails with `Unavailable`; 1 is the next.
    pub fn fail_nth(&self, operation: Operation, nth: u64) {
        self.state().fail_nth.push((operation, nth.max(1)));
    }

    /// Operations of this kind fail with `probability` from now on.
    pub fn set_rate(&self, operation: Operation, probability: f64) {
        self.state().rates[operation as usize] = probability;
    }

    /// From now on a `put` or `delete` succeeds but reports `Unavailable` with `probability`.
    pub fn set_lost_acknowledgement_rate(&self, probability: f64) {
        self.state().lost_acknowledgement_rate = probability;
    }

    /// From now on a range of an object is truncated, without an error, with `probability`.
    pub fn set_partial_body_rate(&self, probability: f64) {
        self.state().partial_body_rate = probability;
    }

    /// The `nth` `put` or `delete` from now on succeeds but reports `Unavailable`; 1 is the next.
    pub fn lose_nth_answer(&self, nth: u64) {
        self.state().answer_lost_in = Some(nth.max(1));
    }

    /// The `nth` range of an object from now on is truncated, without an error; 1 is the next.
    pub fn cut_nth_body(&self, nth: u64) {
        self.state().body_cut_in = Some(nth.max(1));
    }

    /// From the `nth` request on every bucket is down, until [`Faults::clear`] or a restart; 1 is
    /// the next.
    pub fn take_down_at_nth(&self, nth: u64) {
        self.state().down_in = Some(nth.max(1));
    }

    /// The `nth` `put` or `delete` from now on reports `Unavailable` and is applied some requests
    /// later; 1 is the next.
    pub fn do_nth_later(&self, nth: u64) {
        self.state().done_later_in = Some(nth.max(1));
    }

    /// The `nth` operation of any kind from now on takes `duration`; 1 is the next.
    pub fn delay_nth(&self, nth: u64, duration: Duration) {
        self.state().slow_in = Some((nth.max(1), duration));
    }

    /// Removes every planned crash and failure; rates stay.
    pub fn forget_plans(&self) {
        self.state().forget_plans();
    }

    /// Removes every planned crash and failure and sets all rates to 0.
    pub fn clear(&self) {
        let mut state = self.state();
        state.forget_plans();
        state.rates = [0.0; Operation::ALL.len()];
        state.lost_acknowledgement_rate = 0.0;
        state.partial_body_rate = 0.0;
    }

    pub(crate) fn cut_power(&self) {
        self.state().is_off = true;
    }

    pub(crate) fn restore_power(&self) {
        let mut state = self.state();
        state.is_off = false;
        state.forget_plans();
    }

    pub(crate) fn decide(&self, operation: Operation) -> Verdict {
        self.state().decide(operation)
    }

    pub(crate) fn loses_acknowledgement(&self) -> bool {
        let mut state = self.state();
        let rate = state.lost_acknowledgement_rate;
        let is_lost = is_now(&mut state.answer_lost_in) || (rate > 0.0 && state.rng.chance(rate));
        state.fault_count += u64::from(is_lost);
        is_lost
    }

    /// Whether a change of an object fails now and is applied later.
    pub(crate) fn is_done_later(&self) -> bool {
        let mut state = self.state();
        let is_later = is_now(&mut state.done_later_in);
        state.fault_count += u64::from(is_later);
        is_later
    }

    /// Whether the bucket is down for this request.
    pub(crate) fn is_down(&self) -> bool {
        let mut state = self.state();
        if let Some(left) = &mut state.down_in {
            *left = left.saturating_sub(1);
        }
        let is_down = state.down_in == Some(0);
        state.fault_count += u64::from(is_down);
        is_down
    }

    /// Number of bytes of a body of `len` bytes that are returned.
    pub(crate) fn partial_len(&self, len: usize) -> usize {
        let mut state = self.state();
        let rate = state.partial_body_rate;
        if is_now(&mut state.body_cut_in) || (rate > 0.0 && state.rng.chance(rate)) {
            state.fault_count += 1;
            return state.rng.below(len.max(1) as u64) as usize;
        }
        len
    }

    /// An independent random stream, for one decision with many draws.
    pub(crate) fn fork_rng(&self) -> Rng {
        self.state().rng.fork()
    }

    fn state(&self) -> MutexGuard<'_, FaultPlan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultPlan {
    fn decide(&mut self, operation: Operation) -> Verdict {
        if self.is_off {
            return Verdict::Off;
        }
        if let Some((left, duration)) = &mut self.slow_in {
            *left -= 1;
            if *left == 0 {
                self.clock.iter().for_each(|clock| clock.advance(*duration));
                self.slow_in = None;
                self.fault_count += 1;
            }
        }
        let mut fails = false;
        if operation.changes() {
            let number = self.change_count;
            self.change_count += 1;
            if self.crash_at.is_some_and(|at| number >= at) {
                self.is_off = true;
                self.fault_count += 1;
                return Verdict::Crash;
            }
            fails |= self.fail_at.remove(&number);
        }
        self.fail_nth.retain_mut(|(kind, left)| {
            if *kind == operation {
                *left -= 1;
                fails |= *left == 0;
            }
            *left > 0
        });
        let rate = self.rates[operation as usize];
        fails |= rate > 0.0 && self.rng.chance(rate);
        self.fault_count += u64::from(fails);
        if fails { Verdict::Fail } else { Verdict::Proceed }
    }

    fn forget_plans(&mut self) {
        self.crash_at = None;
        self.fail_at.clear();
        self.fail_nth.clear();
        self.answer_lost_in = None;
        self.body_cut_in = None;
        self.down_in = None;
        self.done_later_in = None;
        self.slow_in = None;
    }
}

/// Decrements a counter; returns whether it reached 0.
fn is_now(left: &mut Option<u64>) -> bool {
    if let Some(count) = left {
        *count -= 1;
    }
    left.take_if(|count| *count == 0).is_some()
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Faults")
            .field("change_count", &state.change_count)
            .field("crash_at", &state.crash_at)
            .field("is_off", &state.is_off)
            .finish_non_exhaustive()
    }
}
