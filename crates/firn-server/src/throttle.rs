//! Log messages that clients cause: at most one line a minute, whatever they send.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Events of one kind, of which the log shows one line per [`INTERVAL`].
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<EventCount>);

/// As [`Throttle`], for a caller that has a lock of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventCount {
    logged: Option<Instant>,
    /// Since the last line.
    count: u64,
}

const INTERVAL: Duration = Duration::from_secs(60);

impl Throttle {
    /// For a static.
    pub(crate) const fn new() -> Throttle {
        Throttle(Mutex::new(EventCount { logged: None, count: 0 }))
    }

    /// Counts `count` events at `now`. Returns the number since the last line if the next one is
    /// due. Takes one lock.
    pub(crate) fn note(&self, count: u64, now: Instant) -> Option<u64> {
        self.0.lock().note(count, now)
    }
}

impl EventCount {
    /// As [`Throttle::note`].
    pub(crate) fn note(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.count += count;
        let waits = |logged: Instant| now.saturating_duration_since(logged) < INTERVAL;
        if self.count == 0 || self.logged.is_some_and(waits) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// The lines of the log that `work` writes on this thread.
#[cfg(test)]
pub(crate) fn lines_of(work: impl FnOnce()) -> Vec<String> {
    let (sender, lines) = std::sync::mpsc::channel();
    on_lines(move |line| drop(sender.send(line)), work);
    lines.try_iter().collect()
}

/// Calls `on_line` with each line of the log that `work` writes on this thread.
#[cfg(test)]
pub(crate) fn on_lines(on_line: impl Fn(String) + Send + Sync + 'static, work: impl FnOnce()) {
    use std::fmt::{Debug, Write as _};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    struct LogLines<F>(F);

    struct LogLine(String);

    impl Visit for LogLine {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, "{field}={value:?} ");
        }
    }

    impl<F: Fn(String) + Send + Sync + 'static> Subscriber for LogLines<F> {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = LogLine(String::new());
            event.record(&mut line);
            self.0(line.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    tracing::subscriber::with_default(LogLines(on_line), work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_events_are_one_line_a_minute() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.note(0, start), None);
        assert_eq!(throttle.note(3, start), Some(3));
        for ms in 0..5_000 {
            assert_eq!(throttle.note(2, start + Duration::from_millis(ms)), None);
        }
        assert_eq!(throttle.note(1, start + INTERVAL), Some(10_001));
        assert_eq!(throttle.note(1, start + INTERVAL), None);
    }
}
