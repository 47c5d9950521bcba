//! The log that most systems have: one queue, one counter of log sequence numbers, every entry in one order.
//!
//! Source: DecLog 3.1 (logging as it is, "strict ordering"): head and payload of an entry are durable before its tail,
//! an entry before the next one. With `groups` all entries that wait share the two fences, as a fair competitor does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use firn_env::DiskFile;
use firn_model::Result;

/// Entry: its number, its length, its bytes, and the number again, which says that it is whole.
const AROUND_BYTES: usize = 8 + 4 + 8;

/// A centralised log on one file.
#[derive(Debug)]
pub struct Central {
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    groups: bool,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The counter: end of the last entry.
    lsn: u64,
    durable_lsn: u64,
    waiting: Vec<u8>,
    offset: u64,
    is_led: bool,
    written_bytes: u64,
}

impl Central {
    /// A log that goes round and round in `file`, which is `file_bytes` long.
    pub fn new(file: Arc<dyn DiskFile>, file_bytes: u64, groups: bool) -> Central {
        Central { file, file_bytes, groups, state: Mutex::default(), done: Condvar::new() }
    }

    /// Makes `entries` durable and returns.
    ///
    /// # Errors
    /// When the device fails.
    pub fn commit<'a>(&self, entries: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            let bytes = (AROUND_BYTES + entry.len()) as u64;
            state.lsn += bytes;
            let lsn = state.lsn;
            let start = state.waiting.len();
            state.waiting.extend_from_slice(&lsn.to_le_bytes());
            state.waiting.extend_from_slice(&(entry.len() as u32).to_le_bytes());
            state.waiting.extend_from_slice(entry);
            state.waiting.extend_from_slice(&lsn.to_le_bytes());
            if !self.groups {
                // One after the other, and nobody else meanwhile.
                let entry = state.waiting[start..].to_vec();
                self.write(&mut state, &entry)?;
                state.durable_lsn = lsn;
                state.waiting.clear();
            }
        }
        let mine = state.lsn;
        while state.durable_lsn < mine {
            if state.is_led {
                state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_led = true;
            let (group, last) = (std::mem::take(&mut state.waiting), state.lsn);
            let offset = self.place(&mut state, group.len());
            drop(state);
            let written = self.write_at(offset, &group);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_led = false;
            written?;
            state.durable_lsn = last;
            self.done.notify_all();
        }
        Ok(())
    }

    /// Bytes that went to the device.
    pub fn written_bytes(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).written_bytes
    }

    fn write(&self, state: &mut State, bytes: &[u8]) -> Result<()> {
        let offset = self.place(state, bytes.len());
        self.write_at(offset, bytes)
    }

    fn place(&self, state: &mut State, bytes: usize) -> u64 {
        if state.offset + bytes as u64 > self.file_bytes {
            state.offset = 0;
        }
        let offset = state.offset;
        state.offset += bytes as u64;
        state.written_bytes += bytes as u64;
        offset
    }

    /// Heads and payloads, a fence, the last tail, a fence.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (body, tail) = bytes.split_at(bytes.len() - 8);
        self.file.write_at(offset, body)?;
        self.file.sync()?;
        self.file.write_at(offset + body.len() as u64, tail)?;
        self.file.sync()
    }
}
