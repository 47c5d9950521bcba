//! The log of most systems: one queue, one counter of log sequence numbers, all entries in one
//! order.
//!
//! Source: DecLog (PVLDB 2023), section 3.1 ("strict ordering"): head and payload of an entry are
//! durable before its tail, an entry before the next one. With `groups` it is a fair competitor:
//! all waiting entries are one write with one checksum and share one fence, and a thread spins for
//! another's fence before it sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use firn_env::DiskFile;
use firn_model::Result;

/// Before an entry its number and its length.
const HEAD_BYTES: usize = 8 + 4;
/// Before a group, its length and checksum; after an entry in strict order, its number again as the
/// proof of completeness.
const AROUND_BYTES: usize = 8;
/// A sleep costs as much as twenty fences.
const LOOK: Duration = Duration::from_micros(10);

/// A centralised log on one file.
#[derive(Debug)]
pub struct Central {
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    groups: bool,
    state: Mutex<QueueState>,
    durable_lsn: AtomicU64,
    done: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The counter: entries so far.
    lsn: u64,
    waiting: Vec<u8>,
    offset: u64,
    is_led: bool,
    written_bytes: u64,
}

impl Central {
    /// A circular log in `file`, which is `file_bytes` long.
    pub fn new(file: Arc<dyn DiskFile>, file_bytes: u64, groups: bool) -> Central {
        let (state, durable_lsn, done) = (Mutex::default(), AtomicU64::new(0), Condvar::new());
        Central { file, file_bytes, groups, state, durable_lsn, done }
    }

    /// Makes `entries` durable and returns.
    ///
    /// # Errors
    /// When the device fails.
    pub fn commit<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            if state.waiting.is_empty() && self.groups {
                state.waiting.resize(AROUND_BYTES, 0);
            }
            state.lsn += 1;
            let lsn = state.lsn;
            state.waiting.extend_from_slice(&lsn.to_le_bytes());
            state.waiting.extend_from_slice(&(entry.len() as u32).to_le_bytes());
            state.waiting.extend_from_slice(entry);
            if !self.groups {
                // One entry after the other, exclusively.
                let entry = std::mem::take(&mut state.waiting);
                let offset = self.place(&mut state, entry.len() + AROUND_BYTES);
                self.file.write_at(offset, &entry)?;
                self.file.sync()?;
                self.file.write_at(offset + entry.len() as u64, &lsn.to_le_bytes())?;
                self.file.sync()?;
                self.durable_lsn.store(lsn, Ordering::Release);
            }
        }
        let mine = state.lsn;
        let mut has_looked = false;
        while self.durable_lsn.load(Ordering::Acquire) < mine {
            if state.is_led && !has_looked {
                drop(state);
                self.look_for(mine);
                has_looked = true;
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.is_led {
                state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_led = true;
            let (mut group, last) = (std::mem::take(&mut state.waiting), state.lsn);
            let offset = self.place(&mut state, group.len());
            drop(state);
            let (head, body) = group.split_at_mut(AROUND_BYTES);
            head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
            head[4..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
            let written = self.file.write_at(offset, &group).and_then(|()| self.file.sync());
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_led = false;
            written?;
            self.durable_lsn.store(last, Ordering::Release);
            self.done.notify_all();
        }
        Ok(())
    }

    fn look_for(&self, lsn: u64) {
        let start = Instant::now();
        while self.durable_lsn.load(Ordering::Acquire) < lsn && start.elapsed() < LOOK {
            std::hint::spin_loop();
        }
    }

    /// Bytes written to the device.
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).written_bytes
    }

    /// Whether the log has not wrapped around, so that all committed entries can be replayed.
    pub fn is_whole(&self) -> bool {
        self.written_bytes() <= self.file_bytes
    }

    /// Passes the last lap's payloads to `f`, in order. Returns their number.
    ///
    /// # Errors
    /// Those of the device and of `f`.
    pub fn replay(&self, mut f: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        let mut bytes = vec![0; self.file.len()?.min(self.file_bytes) as usize];
        self.file.read_at(0, &mut bytes)?;
        let (mut input, mut count, mut last) = (bytes.as_slice(), 0, 0);
        while let Some((body, rest)) = self.take_whole(&mut input) {
            input = rest;
            let mut body = body;
            while let Some((lsn, payload)) = take_entry(&mut body) {
                // The bytes after the end are of the previous lap.
                if lsn <= last {
                    return Ok(count);
                }
                last = lsn;
                f(payload)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// One group, or one entry in strict order, and the remaining input; `None` if it is
    /// incomplete.
    fn take_whole<'a>(&self, input: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if self.groups {
            let (head, rest) = input.split_first_chunk::<AROUND_BYTES>()?;
            let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|idx| head[at + idx]));
            let (body, rest) = rest.split_at_checked(number(0) as usize)?;
            return (!body.is_empty() && crc32fast::hash(body) == number(4))
                .then_some((body, rest));
        }
        let mut behind = *input;
        let (lsn, _) = take_entry(&mut behind)?;
        let (tail, rest) = behind.split_first_chunk::<AROUND_BYTES>()?;
        let len = input.len() - behind.len();
        (lsn > 0 && u64::from_le_bytes(*tail) == lsn).then_some((&input[..len], rest))
    }

    fn place(&self, state: &mut QueueState, bytes: usize) -> u64 {
        if state.offset + bytes as u64 > self.file_bytes {
            state.offset = 0;
        }
        let offset = state.offset;
        state.offset += bytes as u64;
        state.written_bytes += bytes as u64;
        offset
    }
}

fn take_entry<'a>(input: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let (head, rest) = input.split_first_chunk::<HEAD_BYTES>()?;
    let lsn = u64::from_le_bytes(*head.first_chunk()?);
    let len = u32::from_le_bytes(*head.last_chunk()?);
    let (payload, rest) = rest.split_at_checked(len as usize)?;
    *input = rest;
    Some((lsn, payload))
}

#[cfg(test)]
mod tests {
    use firn_env::{Disk, OpenMode};

    use super::*;
    use crate::log::device::MemoryDevice;

    #[test]
    fn committed_entries_are_replayed_up_to_the_end_of_the_lap() {
        for (groups, payload_bytes, count) in [(true, 50, 20u64), (true, 50, 200), (false, 9, 100)]
        {
            let file = MemoryDevice::default().open("central.log", OpenMode::Create).unwrap();
            let central = Central::new(file, 4_096, groups);
            for number in 0..count {
                let entry = [number as u8; 64];
                central.commit([&entry[..payload_bytes]; 3].into_iter()).unwrap();
            }
            let mut found = Vec::new();
            let replayed = central.replay(|payload| {
                assert_eq!(payload.len(), payload_bytes);
                found.push(payload[0]);
                Ok(())
            });
            assert_eq!(replayed.unwrap(), found.len() as u64);
            assert_eq!(found.last(), Some(&((count - 1) as u8)));
            assert_eq!(found.len() as u64 == 3 * count, central.is_whole());
            assert!(found.is_sorted() && found.len() > 10, "{} entries", found.len());
        }
    }
}
