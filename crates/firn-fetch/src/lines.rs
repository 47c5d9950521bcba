//! Bodies that arrive line by line and may be endless.

use std::fmt;
use std::time::Duration;

use firn_model::{Budget, Pool, Reservation};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};

use crate::connect::Open;
use crate::error::{FetchError, with_causes};
use crate::sent_secrets::SentSecrets;

/// The lines of an answer. Dropping it closes the connection.
pub struct Lines {
    open: Open,
    body: Incoming,
    buffer: LineBuffer,
    secrets: SentSecrets,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    pub(crate) fn new(open: Open, body: Incoming, bytes_max: u64, budget: &Budget) -> Lines {
        let buffer = LineBuffer::new(bytes_max, budget);
        Lines { open, body, buffer, secrets: SentSecrets::default() }
    }

    /// The same lines, of a request that carried `secrets`.
    pub(crate) fn with_secrets(self, secrets: SentSecrets) -> Lines {
        Lines { secrets, ..self }
    }

    /// The text of an error that quotes the last line, without the credentials that the request
    /// carried.
    pub fn without_secrets(&self, error: impl fmt::Display) -> String {
        self.secrets.hide_in_error(&error.to_string(), self.buffer.last_line())
    }

    /// The next line without its end; `None` at the end of the body. A part of a line before the
    /// end is a line, too.
    ///
    /// # Errors
    /// `Timeout` if nothing arrives for `idle_max`, `BodyLimit` and `Memory` for a long line,
    /// `Transport` if the connection breaks.
    pub async fn next(&mut self, idle_max: Duration) -> Result<Option<&[u8]>, FetchError> {
        loop {
            if self.buffer.find_line() {
                return Ok(Some(self.buffer.take_line()));
            }
            let frame = self.open.drive(self.body.frame());
            let frame = tokio::time::timeout(idle_max, frame).await;
            match frame.map_err(|_| FetchError::Timeout)? {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.push(&data)?;
                    }
                }
                Some(Err(error)) => return Err(FetchError::Transport(with_causes(&error))),
                None => return Ok(self.buffer.take_rest()),
            }
        }
    }
}

/// The bytes that have arrived and are not read.
struct LineBuffer {
    bytes: Vec<u8>,
    held: Reservation,
    bytes_max: u64,
    /// The first byte that is not read.
    start: usize,
    /// No line ends before.
    searched: usize,
}

impl LineBuffer {
    fn new(bytes_max: u64, budget: &Budget) -> LineBuffer {
        let held = budget.empty(Pool::Requests);
        LineBuffer { bytes: Vec::new(), held, bytes_max, start: 0, searched: 0 }
    }

    /// Adds bytes behind the beginning of a line.
    fn push(&mut self, data: &Bytes) -> Result<(), FetchError> {
        self.bytes.drain(..self.start);
        self.searched = self.searched.saturating_sub(self.start);
        self.start = 0;
        let len = self.bytes.len();
        if len as u64 >= self.bytes_max {
            return Err(FetchError::BodyLimit);
        }
        let wanted = len.saturating_add(data.len());
        let capacity = self.bytes.capacity();
        if wanted > capacity {
            let capacity = capacity.saturating_mul(2).max(wanted);
            // While the bytes are copied, both buffers exist.
            let both = capacity.saturating_add(self.bytes.capacity());
            self.held.cover(both as u64).map_err(FetchError::Memory)?;
            self.bytes.reserve_exact(capacity.saturating_sub(len));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Whether there is a whole line.
    fn find_line(&mut self) -> bool {
        let rest = self.bytes.get(self.searched..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(len) => {
                self.searched = self.searched.saturating_add(len);
                true
            }
            None => {
                self.searched = self.bytes.len();
                false
            }
        }
    }

    /// The line that [`LineBuffer::find_line`] has found.
    fn take_line(&mut self) -> &[u8] {
        let (start, end) = (self.start, self.searched);
        self.start = end.saturating_add(1);
        self.searched = self.start;
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The line that was taken last, or the rest.
    fn last_line(&self) -> &[u8] {
        let read = self.bytes.get(..self.start).unwrap_or_default();
        let line = read.strip_suffix(b"\n").unwrap_or(read);
        let start =
            line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at.saturating_add(1));
        line.get(start..).unwrap_or_default()
    }

    /// The bytes behind the last line.
    fn take_rest(&mut self) -> Option<&[u8]> {
        let start = std::mem::replace(&mut self.start, self.bytes.len());
        self.bytes.get(start..).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(buffer: &mut LineBuffer, text: &str) -> Result<Vec<String>, FetchError> {
        buffer.push(&Bytes::copy_from_slice(text.as_bytes()))?;
        let mut lines = Vec::new();
        while buffer.find_line() {
            let line = buffer.take_line().to_vec();
            assert_eq!(buffer.last_line(), line);
            lines.push(String::from_utf8(line).unwrap());
        }
        Ok(lines)
    }

    #[test]
    fn lines_are_found_in_any_frames() {
        let text = "one\n\ntwo three\nfour";
        for frame_len in 1..=text.len() {
            let mut buffer = LineBuffer::new(100, &Budget::new(1 << 20));
            let frames = text.as_bytes().chunks(frame_len);
            let frames = frames.map(|frame| std::str::from_utf8(frame).unwrap());
            let lines: Vec<String> =
                frames.flat_map(|frame| push(&mut buffer, frame).unwrap()).collect();
            assert_eq!(lines, ["one", "", "two three"], "{frame_len}");
            assert_eq!(buffer.take_rest(), Some(&b"four"[..]));
            assert_eq!(buffer.last_line(), b"four");
            assert_eq!(buffer.take_rest(), None);
        }
    }

    #[test]
    fn an_endless_line_ends_at_its_limit_or_at_the_memory() {
        let f = |bytes_max, memory| {
            let mut buffer = LineBuffer::new(bytes_max, &Budget::new(memory));
            let mut pushed = 0;
            loop {
                match push(&mut buffer, &"a".repeat(1_000)) {
                    Ok(_) => pushed += 1_000,
                    Err(error) => return (pushed, error),
                }
            }
        };
        let (pushed, error) = f(10_000, 1 << 20);
        assert!(pushed == 10_000 && matches!(error, FetchError::BodyLimit), "{pushed} {error}");
        let (pushed, error) = f(1 << 30, 1 << 20);
        assert!(pushed <= 1 << 20 && matches!(error, FetchError::Memory(_)), "{pushed} {error}");
        // Many short lines need no memory.
        let mut buffer = LineBuffer::new(10_000, &Budget::new(100_000));
        for _ in 0..1_000 {
            assert_eq!(push(&mut buffer, &"a\n".repeat(500)).unwrap().len(), 500);
        }
    }
}
