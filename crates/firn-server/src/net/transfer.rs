//! Time limits for the other side of a connection.

use std::time::Duration;

use tokio::time::Instant;

/// The time after `duration`.
pub(crate) fn after(duration: Duration) -> Instant {
    Instant::now() + duration
}

/// Limits for one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferLimits {
    /// Without a byte.
    pub(crate) stall: Duration,
    /// Waits in all that later bytes have not made up for at the slowest rate. Earlier ones do not
    /// count: a body that came quickly may not end at a byte per second.
    pub(crate) slack: Duration,
    /// The slowest rate.
    pub(crate) bytes_per_second_min: u64,
}

/// A body or a response: the slowest rate is that of a line with 128 kbit/s.
pub(crate) const TRANSFER_LIMITS: TransferLimits = TransferLimits {
    stall: Duration::from_secs(30),
    slack: Duration::from_secs(30),
    bytes_per_second_min: 16 << 10,
};

/// The same while the service stops, and before admission.
pub(crate) const SHORT_TRANSFER_LIMITS: TransferLimits = TransferLimits {
    stall: Duration::from_secs(3),
    slack: Duration::from_secs(6),
    bytes_per_second_min: 16 << 10,
};

/// The waits for the other side in one message. Only the time counts in which it had to act.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferClock {
    /// Since the last wait.
    bytes: u64,
    /// Beside the time of earlier bytes.
    waited: Duration,
    waiting_since: Option<Instant>,
}

impl TransferClock {
    /// It has sent or accepted `bytes`.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if let Some(since) = self.waiting_since.take() {
            self.waited = self.waited.saturating_add(since.elapsed());
        }
    }

    /// It must act from now on, if it did not have to already. Returns when it will have taken too
    /// long.
    pub(crate) fn waits(&mut self, limits: TransferLimits) -> Instant {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let bytes = std::mem::take(&mut self.bytes);
        let at_rate = bytes.saturating_mul(1_000_000) / limits.bytes_per_second_min.max(1);
        self.waited = self.waited.saturating_sub(Duration::from_micros(at_rate));
        since + limits.slack.saturating_sub(self.waited).min(limits.stall)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const LIMITS: TransferLimits = TransferLimits {
        stall: Duration::from_secs(30),
        slack: Duration::from_secs(20),
        bytes_per_second_min: 1_000,
    };

    #[tokio::test(start_paused = true)]
    async fn silence_and_trickles_end_and_a_slow_line_does_not() {
        let start = Instant::now();
        let mut silent = TransferClock::default();
        assert_eq!(silent.waits(LIMITS) - start, Duration::from_secs(20));
        advance(Duration::from_secs(5)).await;
        assert_eq!(silent.waits(LIMITS) - start, Duration::from_secs(20));

        let mut trickle = TransferClock::default();
        let start = Instant::now();
        while trickle.waits(LIMITS) > Instant::now() {
            advance(Duration::from_secs(1)).await;
            trickle.moved(1);
        }
        assert_eq!(start.elapsed(), Duration::from_secs(21));

        let mut slow = TransferClock::default();
        for _ in 0..600 {
            assert!(slow.waits(LIMITS) > Instant::now());
            advance(Duration::from_secs(1)).await;
            slow.moved(1_000);
        }

        let mut large = TransferClock::default();
        large.moved(1_000_000);
        let start = Instant::now();
        assert_eq!(large.waits(LIMITS) - start, LIMITS.slack, "no credit for its bytes");
        let patient = TransferLimits { slack: Duration::from_secs(60), ..LIMITS };
        assert_eq!(large.waits(patient) - start, Duration::from_secs(30), "the stall");
        while large.waits(LIMITS) > Instant::now() {
            advance(Duration::from_secs(1)).await;
            large.moved(1);
        }
        assert_eq!(start.elapsed(), Duration::from_secs(21), "as any trickle");
    }
}
