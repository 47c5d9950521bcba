//! The counts of discoveries that have metrics of their own in Prometheus.

use std::time::Duration;

use firn_collect::discovery::{ObjectEvents, Resource};
use parking_lot::Mutex;

use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;

/// Counts since the start, of all discoveries of a part of the server.
#[derive(Debug, Default)]
pub(super) struct DiscoveryCounts {
    /// Lists and watches that failed.
    pub(super) kubernetes_failures: Counter,
    /// By role: additions, deletions and updates.
    kubernetes_events: [[Counter; EVENTS.len()]; ROLES.len()],
    consul_failures: Counter,
    /// Number and seconds of queries: of the catalog, and of a service.
    consul_calls: [Mutex<(u64, f64)>; CALLS.len()],
    dns_lookups: Counter,
    dns_failures: Counter,
    file_read_errors: Counter,
    /// Number and seconds of reads of all files of a discovery.
    file_scans: Mutex<(u64, f64)>,
    /// By mechanism: number and seconds of refreshes.
    refreshes: [Mutex<(u64, f64)>; REFRESHED.len()],
}

const ROLES: [&str; 6] = ["endpointslice", "endpoints", "node", "pod", "service", "ingress"];
const EVENTS: [&str; 3] = ["add", "delete", "update"];
const CALLS: [&str; 2] = ["services", "service"];
/// The discoveries that read their whole list each refresh interval.
const REFRESHED: [&str; 5] = ["dns", "docker", "dockerswarm", "ec2", "http"];

/// The place in [`ROLES`]. The other objects only add labels to targets.
fn role(resource: Resource) -> Option<usize> {
    match resource {
        Resource::EndpointSlices => Some(0),
        Resource::Endpoints => Some(1),
        Resource::Nodes => Some(2),
        Resource::Pods => Some(3),
        Resource::Services => Some(4),
        Resource::Ingresses => Some(5),
        Resource::Namespaces | Resource::ReplicaSets | Resource::Jobs => None,
    }
}

impl DiscoveryCounts {
    pub(super) fn add_events(&self, resource: Resource, events: ObjectEvents) {
        let Some(counters) = role(resource).and_then(|role| self.kubernetes_events.get(role))
        else {
            return;
        };
        let counts = [events.added, events.removed, events.updated];
        counters.iter().zip(counts).for_each(|(counter, count)| counter.add(count));
    }

    /// A query of a service or of the catalog is over.
    pub(super) fn add_consul_call(&self, is_of_service: bool, took: Duration, is_good: bool) {
        self.consul_failures.add(u64::from(!is_good));
        if let Some(calls) = self.consul_calls.get(usize::from(is_of_service)) {
            add_duration(&mut calls.lock(), took);
        }
    }

    /// All files of a discovery have been read.
    pub(super) fn add_file_scan(&self, took: Duration, error_count: usize) {
        self.file_read_errors.add(error_count as u64);
        add_duration(&mut self.file_scans.lock(), took);
    }

    /// A refresh of a whole list is over.
    pub(super) fn add_refresh(&self, mechanism: &str, took: Duration) {
        let idx = REFRESHED.iter().position(|known| *known == mechanism);
        if let Some(refreshes) = idx.and_then(|idx| self.refreshes.get(idx)) {
            add_duration(&mut refreshes.lock(), took);
        }
    }

    /// The lookup of a name is over.
    pub(super) fn add_lookup(&self, is_good: bool) {
        self.dns_lookups.add(1);
        self.dns_failures.add(u64::from(!is_good));
    }
}

fn add_duration((count, seconds): &mut (u64, f64), took: Duration) {
    *count = count.saturating_add(1);
    *seconds += took.as_secs_f64();
}

/// Writes the metrics of all parts, each with its name, with names that begin with `prefix`.
pub(super) fn write_text(prefix: &str, all: &[(&str, &DiscoveryCounts)], text: &mut MetricsText) {
    type Pick = fn(&DiscoveryCounts) -> &Counter;
    let counters: [(&str, &str, Pick); 5] = [
        ("kubernetes_failures_total", "Lists and watches of Kubernetes that failed.", |counts| {
            &counts.kubernetes_failures
        }),
        ("consul_rpc_failures_total", "Queries of Consul that failed.", |counts| {
            &counts.consul_failures
        }),
        ("dns_lookups_total", "Lookups of names of DNS discoveries.", |counts| &counts.dns_lookups),
        (
            "dns_lookup_failures_total",
            "Lookups of names of DNS discoveries that failed.",
            |counts| &counts.dns_failures,
        ),
        ("file_read_errors_total", "Files of targets that could not be read.", |counts| {
            &counts.file_read_errors
        }),
    ];
    for (name, help, pick) in counters {
        let name = format!("{prefix}_sd_{name}");
        text.family(&name, Kind::Counter, help);
        for (part, counts) in all {
            text.sample(&name, &[("name", part)], pick(counts).get() as f64);
        }
    }
    let name = format!("{prefix}_sd_kubernetes_events_total");
    text.family(&name, Kind::Counter, "Changes of objects that watches of Kubernetes found.");
    for (part, counts) in all {
        for (role, counters) in ROLES.iter().zip(&counts.kubernetes_events) {
            for (event, counter) in EVENTS.iter().zip(counters) {
                let labels = [("name", *part), ("role", *role), ("event", *event)];
                text.sample(&name, &labels, counter.get() as f64);
            }
        }
    }
    let name = format!("{prefix}_sd_consul_rpc_duration_seconds");
    let help = "Durations of queries of Consul; a query waits for changes.";
    text.family(&name, Kind::Summary, help);
    for (part, counts) in all {
        for (call, calls) in CALLS.iter().zip(&counts.consul_calls) {
            let (count, seconds) = *calls.lock();
            let labels = [("name", *part), ("endpoint", "catalog"), ("call", *call)];
            text.sample(&format!("{name}_sum"), &labels, seconds);
            text.sample(&format!("{name}_count"), &labels, count as f64);
        }
    }
    let name = format!("{prefix}_sd_file_scan_duration_seconds");
    text.family(&name, Kind::Summary, "Durations of reads of all files of a discovery.");
    for (part, counts) in all {
        let (count, seconds) = *counts.file_scans.lock();
        text.sample(&format!("{name}_sum"), &[("name", *part)], seconds);
        text.sample(&format!("{name}_count"), &[("name", *part)], count as f64);
    }
    let name = format!("{prefix}_sd_refresh_duration_seconds");
    text.family(&name, Kind::Summary, "Durations of refreshes of whole lists.");
    for (part, counts) in all {
        for (mechanism, refreshes) in REFRESHED.iter().zip(&counts.refreshes) {
            let (count, seconds) = *refreshes.lock();
            let labels = [("name", *part), ("mechanism", *mechanism)];
            text.sample(&format!("{name}_sum"), &labels, seconds);
            text.sample(&format!("{name}_count"), &labels, count as f64);
        }
    }
    let name = format!("{prefix}_sd_file_watcher_errors_total");
    text.counter(&name, "Always 0: files are polled, not watched.", 0.0);
}
