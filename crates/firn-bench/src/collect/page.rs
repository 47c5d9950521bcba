//! The body of a target: 1,000 series in 50 metrics, as a machine's exporter writes them.

use std::fmt::Write as _;

use crate::fresh::walk::{Value, Walk};
use crate::index::scatter;

/// Series of a target.
pub const SERIES: usize = 1_000;
/// Metrics of a target.
pub const METRICS: usize = 50;
/// The first and the last line of a body have the same value: a reader that sees different ones has
/// seen half a scrape. The lines are not among the [`SERIES`].
pub const FIRST: &str = "bench_page_first";
/// See [`FIRST`].
pub const LAST: &str = "bench_page_last";

const SERIES_PER_METRIC: usize = SERIES / METRICS;

/// The labels of a metric's series.
#[derive(Clone, Copy, Debug)]
enum LabelScheme {
    /// Four processors with five modes each.
    Processors,
    /// Network interfaces.
    Interfaces,
    /// Mounted file systems.
    Mounts,
    /// A histogram's buckets of two handlers.
    Buckets,
    /// Unnamed parts of a service.
    Parts,
}

/// Names end at blanks; `_total` makes a counter.
const FAMILIES: [(LabelScheme, Walk, &str); 7] = [
    (
        LabelScheme::Processors,
        Walk::Seconds,
        "node_cpu_seconds_total node_cpu_guest_seconds_total node_schedstat_running_seconds_total \
         node_schedstat_waiting_seconds_total node_softnet_times_squeezed_total",
    ),
    (
        LabelScheme::Interfaces,
        Walk::Count,
        "node_network_receive_bytes_total node_network_transmit_bytes_total \
         node_network_receive_packets_total node_network_transmit_packets_total \
         node_network_receive_errs_total node_network_transmit_errs_total \
         node_network_receive_drop_total node_network_transmit_drop_total \
         node_network_receive_fifo_total node_network_receive_multicast_total",
    ),
    (
        LabelScheme::Interfaces,
        Walk::Constant,
        "node_network_up node_network_mtu_bytes node_network_speed_bytes node_network_carrier \
         node_network_iface_id node_network_flags node_network_protocol_type node_arp_entries",
    ),
    (
        LabelScheme::Mounts,
        Walk::Pages,
        "node_filesystem_avail_bytes node_filesystem_free_bytes node_filesystem_size_bytes \
         node_filesystem_files node_filesystem_files_free",
    ),
    (
        LabelScheme::Mounts,
        Walk::Count,
        "node_disk_reads_completed_total node_disk_writes_completed_total \
         node_disk_read_bytes_total node_disk_written_bytes_total node_disk_read_time_total \
         node_disk_write_time_total node_disk_io_time_total",
    ),
    (
        LabelScheme::Buckets,
        Walk::Count,
        "http_request_duration_seconds_bucket http_request_size_bytes_bucket \
         http_response_size_bytes_bucket rpc_duration_seconds_bucket \
         queue_wait_seconds_bucket",
    ),
    (
        LabelScheme::Parts,
        Walk::Decimal,
        "process_open_fds process_resident_memory_bytes go_goroutines go_memstats_alloc_bytes \
         service_connections service_queue_length service_temperature_celsius \
         service_utilization_ratio service_cache_entries service_workers",
    ),
];

/// The text around the values, which all targets share.
#[derive(Debug)]
pub struct Page {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    /// Comments before it, its name and labels, a blank.
    text: String,
    walk: Walk,
}

/// The values of one target.
#[derive(Debug)]
pub struct PageValues {
    values: Vec<Value>,
    scrape_count: u64,
}

/// Names of the metrics with a series for each target.
pub fn metric_names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|(_, _, names)| names.split_whitespace()).collect()
}

impl Page {
    /// The only one.
    pub fn new() -> Page {
        let mut lines = Vec::with_capacity(SERIES);
        for (scheme, walk, names) in FAMILIES {
            for name in names.split_whitespace() {
                let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
                let mut text = format!("# HELP {name} {}.\n# TYPE {name} {kind}\n", help(name));
                for idx in 0..SERIES_PER_METRIC {
                    let _ = write!(text, "{name}{{{}}} ", scheme.labels(idx));
                    lines.push(Line { text: std::mem::take(&mut text), walk });
                }
            }
        }
        Page { lines }
    }

    /// The values of target number `target` before its first scrape.
    pub fn values(&self, target: u64) -> PageValues {
        let seed = |idx| scatter(target << 20 | idx);
        let walks = self.lines.iter().map(|line| line.walk);
        let values = walks.zip(0..).map(|(walk, idx)| Value::new(walk, seed(idx))).collect();
        PageValues { values, scrape_count: 0 }
    }

    /// Writes the body of the next scrape.
    pub fn write(&self, values: &mut PageValues, body: &mut String) {
        values.scrape_count += 1;
        let number = values.scrape_count;
        let _ = writeln!(body, "{FIRST} {number}");
        for (line, value) in self.lines.iter().zip(&mut values.values) {
            body.push_str(&line.text);
            push_number(body, value.next());
            body.push('\n');
        }
        let _ = writeln!(body, "{LAST} {number}");
    }
}

impl Default for Page {
    fn default() -> Page {
        Page::new()
    }
}

impl LabelScheme {
    fn labels(self, idx: usize) -> String {
        match self {
            LabelScheme::Processors => {
                let modes = ["idle", "iowait", "softirq", "system", "user"];
                format!("cpu=\"{}\",mode=\"{}\"", idx / 5, modes[idx % 5])
            }
            LabelScheme::Interfaces => format!("device=\"veth{:08x}\"", scatter(idx as u64) >> 32),
            LabelScheme::Mounts => format!(
                "device=\"/dev/mapper/vg0-data{idx:02}\",fstype=\"ext4\",\
                 mountpoint=\"/srv/volumes/data{idx:02}\""
            ),
            LabelScheme::Buckets => {
                let bounds = ["0.01", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"];
                let handlers = ["/api/v1/query", "/api/v1/query_range"];
                format!(
                    "code=\"200\",handler=\"{}\",le=\"{}\"",
                    handlers[idx / 10],
                    bounds[idx % 10]
                )
            }
            LabelScheme::Parts => format!("part=\"{idx}\",pool=\"default\""),
        }
    }
}

fn help(name: &str) -> String {
    name.replace('_', " ")
}

/// As Go writes it: large numbers with an exponent of at least two digits.
fn push_number(body: &mut String, value: f64) {
    if value.abs() < 1e6 {
        let _ = write!(body, "{value}");
        return;
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let _ = write!(body, "{digits}e+{exponent:0>2}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_body_has_1000_distinct_series_and_two_marks() {
        let page = Page::new();
        let mut values = page.values(7);
        let mut body = String::new();
        page.write(&mut values, &mut body);
        let lines: Vec<&str> = body.lines().filter(|line| !line.starts_with('#')).collect();
        let series: BTreeSet<&str> =
            lines.iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        assert_eq!((lines.len(), series.len()), (SERIES + 2, SERIES + 2));
        assert_eq!(metric_names().len(), METRICS);
        assert_eq!((lines[0], lines[SERIES + 1]), ("bench_page_first 1", "bench_page_last 1"));
    }

    #[test]
    fn numbers_are_as_go_writes_them() {
        let written = |value| {
            let mut text = String::new();
            push_number(&mut text, value);
            text
        };
        assert_eq!(written(999_999.0), "999999");
        assert_eq!(written(1_000_000.0), "1e+06");
        assert_eq!(written(123_456_789.5), "1.234567895e+08");
        assert_eq!(written(1.5), "1.5");
    }
}
