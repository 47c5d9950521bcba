//! The fate of every sample: received = stored + rejected by reason, exactly, per protocol.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{Error, ErrorKind, Result, SeriesLimit};
use firndb::{TimeRefusal, WriteReport};

use crate::metrics_text::{Kind, MetricsText};

/// The protocol of received samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Remote write.
    RemoteWrite,
    /// Import of text.
    Import,
    /// The server's scrape of itself.
    SelfScrape,
    /// The API of groups.
    Groups,
    /// Transactions: inserts and updates.
    Transactions,
    /// Scrapes of targets.
    Scrape,
}

/// Why samples were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Their series' labels break a rule: a repeated name, no metric name, not UTF-8.
    InvalidLabels,
    /// Their series has too many labels, or too long ones.
    LabelLimit,
    /// Their timestamps are too far after the clock.
    TooFarAhead,
    /// Their timestamps are older than the retention.
    TooOld,
    /// Their timestamps are in seconds instead of milliseconds.
    InSeconds,
    /// They are native histograms.
    NativeHistogram,
    /// Their series is new and over a limit.
    SeriesLimit(SeriesLimit),
    /// Their series was removed during the write.
    Removed,
    /// The database had no memory for them, or too long a log.
    Busy,
    /// The disk was full or failed, or the database was closing.
    Unavailable,
    /// Their request was refused as a whole: for another sample, as this protocol writes all or
    /// nothing, or for its form or size.
    Request,
}

/// The fate of the samples of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Samples of the request.
    pub received: u64,
    /// Samples that are durable.
    pub stored: u64,
    /// Samples that were not written, by [`Reason::number`].
    rejected: [u64; Reason::ALL.len()],
    /// Series that were refused, by the same.
    rejected_series: [u64; Reason::ALL.len()],
}

/// Tallies of all requests since the start.
#[derive(Debug, Default)]
pub(crate) struct Tallies([Totals; Protocol::ALL.len()]);

#[derive(Debug, Default)]
struct Totals {
    received: AtomicU64,
    stored: AtomicU64,
    rejected: [AtomicU64; Reason::ALL.len()],
    rejected_series: [AtomicU64; Reason::ALL.len()],
    refused_requests: AtomicU64,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 6] = [
        Protocol::RemoteWrite,
        Protocol::Import,
        Protocol::SelfScrape,
        Protocol::Groups,
        Protocol::Transactions,
        Protocol::Scrape,
    ];

    /// The value of the label `protocol` of counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::RemoteWrite => "remote_write",
            Protocol::Import => "import",
            Protocol::SelfScrape => "self_scrape",
            Protocol::Groups => "groups",
            Protocol::Transactions => "transactions",
            Protocol::Scrape => "scrape",
        }
    }
}

impl Reason {
    /// Every reason, by its number.
    pub const ALL: [Reason; 14] = [
        Reason::InvalidLabels,
        Reason::LabelLimit,
        Reason::TooFarAhead,
        Reason::NativeHistogram,
        Reason::SeriesLimit(SeriesLimit::Total),
        Reason::SeriesLimit(SeriesLimit::PerMetric),
        Reason::SeriesLimit(SeriesLimit::PerGroup),
        Reason::SeriesLimit(SeriesLimit::PerSecond),
        Reason::Removed,
        Reason::Busy,
        Reason::Unavailable,
        Reason::Request,
        Reason::TooOld,
        Reason::InSeconds,
    ];

    /// The reason for an error that refused a series or a batch.
    pub fn of(error: &Error) -> Reason {
        match *error.kind() {
            ErrorKind::Invalid => Reason::InvalidLabels,
            ErrorKind::TooLarge => Reason::LabelLimit,
            ErrorKind::SeriesLimit { limit, .. } => Reason::SeriesLimit(limit),
            ErrorKind::Busy { .. } => Reason::Busy,
            _ => Reason::Unavailable,
        }
    }

    /// The reason for the samples of a request that `error` refused as a whole, without one of
    /// their own.
    pub fn of_request(error: &Error) -> Reason {
        match error.kind() {
            ErrorKind::Busy { .. } => Reason::Busy,
            ErrorKind::Unavailable
            | ErrorKind::Corrupt { .. }
            | ErrorKind::Closed
            | ErrorKind::Internal => Reason::Unavailable,
            _ => Reason::Request,
        }
    }

    /// The reason for a refused timestamp.
    pub fn of_time(refusal: TimeRefusal) -> Reason {
        match refusal {
            TimeRefusal::TooFarAhead => Reason::TooFarAhead,
            TimeRefusal::TooOld => Reason::TooOld,
            TimeRefusal::InSeconds => Reason::InSeconds,
        }
    }

    /// Its index in [`Reason::ALL`].
    pub fn number(self) -> usize {
        match self {
            Reason::InvalidLabels => 0,
            Reason::LabelLimit => 1,
            Reason::TooFarAhead => 2,
            Reason::NativeHistogram => 3,
            Reason::SeriesLimit(limit) => 4 + limit as usize,
            Reason::Removed => 8,
            Reason::Busy => 9,
            Reason::Unavailable => 10,
            Reason::Request => 11,
            Reason::TooOld => 12,
            Reason::InSeconds => 13,
        }
    }

    /// The value of the label `reason` of counters.
    pub fn name(self) -> &'static str {
        match self {
            Reason::InvalidLabels => "invalid_labels",
            Reason::LabelLimit => "label_limit",
            Reason::TooFarAhead => "too_far_ahead",
            Reason::TooOld => "too_old",
            Reason::InSeconds => "timestamp_in_seconds",
            Reason::NativeHistogram => "native_histogram",
            Reason::SeriesLimit(limit) => limit.name(),
            Reason::Removed => "removed",
            Reason::Busy => "busy",
            Reason::Unavailable => "unavailable",
            Reason::Request => "request",
        }
    }
}

impl Tally {
    /// The tally of a request whose samples are all durable.
    pub(crate) fn of_stored(sample_count: u64) -> Tally {
        Tally { received: sample_count, stored: sample_count, ..Tally::default() }
    }

    /// A tally of `received` undecided samples.
    pub fn of(received: u64) -> Tally {
        Tally { received, ..Tally::default() }
    }

    /// `sample_count` samples are not written.
    pub fn reject(&mut self, reason: Reason, sample_count: u64) {
        self.rejected[reason.number()] += sample_count;
    }

    /// A series and its samples are not written.
    pub fn reject_series(&mut self, reason: Reason, sample_count: u64) {
        self.rejected_series[reason.number()] += 1;
        self.reject(reason, sample_count);
    }

    /// Counts the outcome of a batch, whose timestamps are checked once more when it is written.
    pub(crate) fn add_report(&mut self, report: &WriteReport) {
        self.stored = report.written;
        self.reject(Reason::TooFarAhead, report.too_far_ahead);
        self.reject(Reason::TooOld, report.too_old);
        self.reject(Reason::InSeconds, report.in_seconds);
        self.reject(Reason::Removed, report.unknown);
    }

    /// Counts the outcome of a batch of all undecided samples. Returns the number of samples that
    /// are left out because of their times.
    pub(crate) fn add_outcome(&mut self, written: &Result<WriteReport>) -> u64 {
        match written {
            Ok(report) => {
                self.add_report(report);
                report.too_far_ahead + report.too_old + report.in_seconds
            }
            Err(error) => {
                self.reject_rest(Reason::of_request(error));
                0
            }
        }
    }

    /// Rejects all undecided samples.
    pub fn reject_rest(&mut self, reason: Reason) {
        let rest = self.received - self.stored - self.rejected.iter().sum::<u64>();
        self.reject(reason, rest);
    }

    /// Samples that were rejected for `reason`.
    pub fn rejected(&self, reason: Reason) -> u64 {
        self.rejected[reason.number()]
    }

    /// All samples that were not written.
    pub fn rejected_count(&self) -> u64 {
        self.rejected.iter().sum()
    }

    /// `why` samples were rejected; the names of the reasons if that is empty.
    pub(crate) fn explain(&self, why: &dyn fmt::Display) -> String {
        let why = why.to_string();
        if !why.is_empty() {
            return why;
        }
        let has_rejected = |reason: &&Reason| self.rejected(**reason) > 0;
        let names = Reason::ALL.iter().filter(has_rejected).map(|reason| reason.name());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Whether every sample is counted once.
    pub fn is_exact(&self) -> bool {
        self.received == self.stored + self.rejected.iter().sum::<u64>()
    }
}

impl Tallies {
    /// Adds one request's.
    pub(crate) fn add(&self, protocol: Protocol, tally: &Tally) {
        debug_assert!(tally.is_exact(), "{protocol:?}: {tally:?}");
        let totals = &self.0[protocol as usize];
        let add = |total: &AtomicU64, count: u64| {
            if count > 0 {
                total.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&totals.received, tally.received);
        add(&totals.stored, tally.stored);
        totals.rejected.iter().zip(tally.rejected).for_each(|(total, count)| add(total, count));
        let series = totals.rejected_series.iter().zip(tally.rejected_series);
        series.for_each(|(total, count)| add(total, count));
    }

    /// A request was refused before its samples were counted.
    pub(crate) fn refuse(&self, protocol: Protocol) {
        self.0[protocol as usize].refused_requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        let by_protocol = |text: &mut MetricsText, name: &str, total: fn(&Totals) -> &AtomicU64| {
            for (protocol, totals) in Protocol::ALL.iter().zip(&self.0) {
                let value = total(totals).load(Ordering::Relaxed);
                text.sample(name, &[("protocol", protocol.name())], value as f64);
            }
        };
        let name = "firn_write_received_samples_total";
        let help = "Samples received: the sum of stored and rejected samples.";
        text.family(name, Kind::Counter, help);
        by_protocol(text, name, |totals| &totals.received);
        let name = "firn_write_stored_samples_total";
        text.family(name, Kind::Counter, "Samples stored.");
        by_protocol(text, name, |totals| &totals.stored);
        let name = "firn_write_rejected_requests_total";
        let help = "Requests rejected before their samples were counted.";
        text.family(name, Kind::Counter, help);
        by_protocol(text, name, |totals| &totals.refused_requests);

        let by_reason =
            |text: &mut MetricsText, name: &str, counts: fn(&Totals) -> &[AtomicU64]| {
                for (protocol, totals) in Protocol::ALL.iter().zip(&self.0) {
                    for (reason, count) in Reason::ALL.iter().zip(counts(totals)) {
                        let labels = [("protocol", protocol.name()), ("reason", reason.name())];
                        text.sample(name, &labels, count.load(Ordering::Relaxed) as f64);
                    }
                }
            };
        let name = "firn_write_rejected_samples_total";
        text.family(name, Kind::Counter, "Samples rejected by reason.");
        by_reason(text, name, |totals| &totals.rejected);
        let name = "firn_write_rejected_series_total";
        text.family(name, Kind::Counter, "Series rejected by reason.");
        by_reason(text, name, |totals| &totals.rejected_series);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_a_number_and_a_name_of_their_own() {
        for (number, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.number(), number);
        }
        let names: std::collections::BTreeSet<&str> =
            Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for (number, protocol) in Protocol::ALL.iter().enumerate() {
            assert_eq!(*protocol as usize, number);
        }
    }

    #[test]
    fn undecided_samples_are_detected() {
        let mut tally = Tally { received: 9, stored: 4, ..Tally::default() };
        tally.reject_series(Reason::LabelLimit, 3);
        assert!(!tally.is_exact());
        tally.reject_rest(Reason::Busy);
        assert!(tally.is_exact());
        assert_eq!(tally.rejected(Reason::Busy), 2);
    }

    /// The log had `rejected 1 samples; the last by scrape: ` and nothing else.
    #[test]
    fn rejections_without_a_text_are_explained_by_their_reasons() {
        let mut tally = Tally::of(5);
        tally.reject(Reason::Removed, 2);
        tally.reject(Reason::NativeHistogram, 1);
        assert_eq!(tally.explain(&""), "native_histogram, removed");
        assert_eq!(tally.explain(&"a text"), "a text");
    }
}
