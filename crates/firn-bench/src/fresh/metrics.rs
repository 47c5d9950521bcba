//! The metrics of each shape's sources.

use crate::index::scatter;

use super::shape::{LabelForm, SenderShape, SentSeries};
use super::walk::Walk;

use Walk::{Constant, Count, Decimal, Fraction, Level, Pages, Seconds};

impl SenderShape {
    /// The series of source number `source`; the same every time.
    pub fn series(self, source: usize, form: LabelForm) -> Vec<SentSeries> {
        let mut tags = self.tags(source, form);
        let (name, value) = self.source_label(source, form);
        tags.push((name.to_owned(), value));
        let mut all =
            Adder { tags, series: Vec::with_capacity(self.series_per_source()), clock: 0 };
        match self {
            SenderShape::Tsbs => tsbs(&mut all),
            SenderShape::Telegraf => telegraf(&mut all),
            SenderShape::Otlp => otlp(&mut all, source),
            SenderShape::Cadvisor => cadvisor(&mut all, source),
            SenderShape::Iot => iot(&mut all, source),
            SenderShape::Random => random(&mut all, source),
        }
        all.series
    }
}

/// The series of one source so far.
struct Adder {
    tags: Vec<(String, String)>,
    series: Vec<SentSeries>,
    clock: u64,
}

impl Adder {
    fn add(&mut self, name: &str, more: &[(&str, &str)], walk: Walk) {
        let mut labels = self.tags.clone();
        labels.push(("__name__".to_owned(), name.to_owned()));
        labels.extend(more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        labels.sort_unstable();
        self.series.push(SentSeries { labels, walk, clock: self.clock });
    }

    /// Metrics `prefix_name`; names end at blanks.
    fn add_all(&mut self, prefix: &str, names: &str, more: &[(&str, &str)], walk: Walk) {
        for name in names.split_whitespace() {
            self.add(&format!("{prefix}_{name}"), more, walk);
        }
    }
}

const CPU: &str = "usage_user usage_system usage_idle usage_nice usage_iowait usage_irq usage_softirq \
     usage_steal usage_guest usage_guest_nice";

fn tsbs(all: &mut Adder) {
    all.add_all("cpu", CPU, &[], Level);
    let diskio = "reads writes read_bytes write_bytes read_time write_time io_time";
    all.add_all("diskio", diskio, &[], Count);
    all.add_all("disk", "total inodes_total", &[], Constant);
    all.add_all("disk", "free used inodes_free inodes_used", &[], Pages);
    all.add_all("disk", "used_percent", &[], Decimal);
    let kernel = "interrupts context_switches processes_forked disk_pages_in disk_pages_out";
    all.add_all("kernel", "boot_time", &[], Constant);
    all.add_all("kernel", kernel, &[], Count);
    all.add_all("mem", "total available used free cached buffered", &[], Pages);
    all.add_all("mem", "used_percent available_percent buffered_percent", &[], Fraction);
    let net = "bytes_sent bytes_recv packets_sent packets_recv err_in err_out drop_in drop_out";
    all.add_all("net", net, &[], Count);
    all.add_all("nginx", "accepts handled requests", &[], Count);
    all.add_all("nginx", "active reading waiting writing", &[], Level);
    let postgresl = "xact_commit xact_rollback blks_read blks_hit tup_returned tup_fetched \
                     tup_inserted tup_updated tup_deleted conflicts temp_files temp_bytes \
                     deadlocks blk_read_time blk_write_time";
    all.add_all("postgresl", "numbackends", &[], Level);
    all.add_all("postgresl", postgresl, &[], Count);
    let counts = "uptime_in_seconds total_connections_received expired_keys evicted_keys \
                  keyspace_hits keyspace_misses rdb_changes_since_last_save sync_full \
                  sync_partial_ok sync_partial_err master_repl_offset repl_backlog_histlen";
    all.add_all("redis", counts, &[], Count);
    let levels = "instantaneous_ops_per_sec instantaneous_input_kbps instantaneous_output_kbps \
                  connected_clients pubsub_channels pubsub_patterns latest_fork_usec";
    all.add_all("redis", levels, &[], Level);
    let pages = "used_memory used_memory_rss used_memory_peak used_memory_lua";
    all.add_all("redis", pages, &[], Pages);
    all.add_all("redis", "connected_slaves repl_backlog_active repl_backlog_size", &[], Constant);
    all.add_all("redis", "mem_fragmentation_ratio", &[], Decimal);
    let seconds = "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children";
    all.add_all("redis", seconds, &[], Seconds);
}

fn telegraf(all: &mut Adder) {
    for cpu in ["cpu-total", "cpu0", "cpu1", "cpu2", "cpu3"] {
        all.add_all("cpu", CPU, &[("cpu", cpu)], Decimal);
    }
    all.add_all("mem", "available buffered cached free total used slab", &[], Pages);
    all.add_all("mem", "available_percent used_percent", &[], Fraction);
    all.add_all("swap", "free total used", &[], Pages);
    all.add_all("swap", "used_percent", &[], Fraction);
    for (device, path) in [("sda1", "/"), ("sda2", "/home"), ("nvme0n1", "/var/lib/data")] {
        let tags = [("device", device), ("fstype", "ext4"), ("mode", "rw"), ("path", path)];
        all.add_all("disk", "total inodes_total", &tags, Constant);
        all.add_all("disk", "free used inodes_free inodes_used", &tags, Pages);
        all.add_all("disk", "used_percent", &tags, Fraction);
    }
    for name in ["sda", "nvme0n1"] {
        let counts = "reads writes read_bytes write_bytes read_time write_time io_time \
                      weighted_io_time";
        all.add_all("diskio", counts, &[("name", name)], Count);
        all.add_all("diskio", "iops_in_progress", &[("name", name)], Level);
    }
    for interface in ["eth0", "eth1"] {
        let net = "bytes_sent bytes_recv packets_sent packets_recv err_in err_out drop_in drop_out";
        all.add_all("net", net, &[("interface", interface)], Count);
    }
    all.add_all("system", "load1 load5 load15", &[], Decimal);
    all.add_all("system", "n_cpus", &[], Constant);
    all.add_all("system", "uptime", &[], Count);
    all.add_all("processes", "running sleeping total blocked zombies", &[], Level);
    all.add_all("kernel", "context_switches interrupts", &[], Count);
}

const ROUTES: [(&str, &str, &str); 4] = [
    ("GET", "200", "/api/carts/{id}"),
    ("POST", "201", "/api/carts"),
    ("GET", "404", "/api/products/{id}"),
    ("GET", "200", "/health"),
];
const BOUNDS: [&str; 14] = [
    "0.005", "0.01", "0.025", "0.05", "0.075", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0",
    "10.0", "+Inf",
];

fn otlp(all: &mut Adder, source: usize) {
    all.clock = source as u64 + 1;
    for (method, status, route) in ROUTES {
        let tags = [
            ("http_request_method", method),
            ("http_response_status_code", status),
            ("http_route", route),
        ];
        for bound in BOUNDS {
            let mut tags = tags.to_vec();
            tags.push(("le", bound));
            all.add("http_server_request_duration_seconds_bucket", &tags, Count);
        }
        all.add("http_server_request_duration_seconds_count", &tags, Count);
        all.add("http_server_request_duration_seconds_sum", &tags, Seconds);
    }
    for pool in ["eden", "survivor", "old", "metaspace", "code"] {
        let tags = [("jvm_memory_pool_name", pool), ("jvm_memory_type", "heap")];
        all.add("jvm_memory_used_bytes", &tags, Pages);
        all.add("jvm_memory_committed_bytes", &tags, Pages);
    }
    for state in ["runnable", "waiting", "blocked"] {
        all.add("jvm_thread_count", &[("jvm_thread_state", state)], Level);
    }
    for mode in ["user", "system"] {
        all.add("process_cpu_time_seconds_total", &[("cpu_mode", mode)], Seconds);
    }
    for action in ["minor", "major"] {
        all.add("jvm_gc_duration_seconds_count", &[("jvm_gc_action", action)], Count);
        all.add("jvm_gc_duration_seconds_sum", &[("jvm_gc_action", action)], Seconds);
    }
    for state in ["idle", "used"] {
        all.add("db_client_connection_count", &[("db_client_connection_state", state)], Level);
    }
    all.add("jvm_cpu_recent_utilization_ratio", &[], Fraction);
    all.add("jvm_class_count", &[], Constant);
    all.add("target_info", &[], Constant);
}

fn cadvisor(all: &mut Adder, source: usize) {
    let pod_id = scatter(source as u64 * 64 + 62);
    let slice = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-pod{pod_id:016x}.slice");
    for (number, container) in ["app", "proxy"].into_iter().enumerate() {
        all.clock = source as u64 * 3 + number as u64 + 1;
        let container_id = scatter(source as u64 * 64 + number as u64);
        let id = format!("{slice}/cri-containerd-{container_id:016x}{pod_id:016x}.scope");
        let image = format!("registry.example.net/{container}:1.{}", pod_id % 9);
        let name = format!("{container_id:016x}{pod_id:016x}");
        let tags = [
            ("container", container),
            ("id", id.as_str()),
            ("image", image.as_str()),
            ("name", name.as_str()),
        ];
        let seconds = "cpu_usage_seconds_total cpu_user_seconds_total cpu_system_seconds_total \
                       cpu_cfs_throttled_seconds_total";
        all.add_all("container", seconds, &tags, Seconds);
        let counts = "cpu_cfs_periods_total cpu_cfs_throttled_periods_total fs_reads_total \
                      fs_writes_total fs_reads_bytes_total fs_writes_bytes_total";
        all.add_all("container", counts, &tags, Count);
        let pages = "memory_working_set_bytes memory_usage_bytes memory_rss memory_cache \
                     memory_swap memory_mapped_file memory_max_usage_bytes";
        all.add_all("container", pages, &tags, Pages);
        all.add_all("container", "processes threads sockets file_descriptors", &tags, Level);
        let constants = "spec_memory_limit_bytes spec_cpu_shares start_time_seconds";
        all.add_all("container", constants, &tags, Constant);
        all.add_all("container", "last_seen", &tags, Count);
    }
    all.clock = source as u64 * 3 + 3;
    let net = "receive_bytes_total receive_packets_total receive_errors_total \
               receive_packets_dropped_total transmit_bytes_total transmit_packets_total \
               transmit_errors_total transmit_packets_dropped_total";
    let tags = [("id", slice.as_str()), ("interface", "eth0")];
    all.add_all("container_network", net, &tags, Count);
}

fn iot(all: &mut Adder, source: usize) {
    all.clock = source as u64 + 1;
    let decimals = "temperature_celsius humidity_percent pressure_hectopascals battery_volts";
    all.add_all("device", decimals, &[], Decimal);
    all.add_all("device", "flow_liters_per_minute", &[], Fraction);
    all.add_all("device", "motor_rpm rssi_dbm", &[], Level);
    all.add_all("device", "energy_watt_hours_total uptime_seconds_total", &[], Count);
    for axis in ["x", "y", "z"] {
        all.add("sensor_vibration_rms", &[("axis", axis)], Fraction);
    }
}

fn random(all: &mut Adder, source: usize) {
    all.clock = source as u64 + 1;
    let draw = scatter(source as u64 * 64 + 61);
    match draw % 40 {
        name @ 0..20 => all.add(&format!("events_{name:02}_total"), &[], Count),
        name => all.add(&format!("gauge_{name:02}"), &[], Decimal),
    }
}
