//! Another program changes a table while the server reads it through a map.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;
use crate::tiers::metric;

const SERIES: u64 = 100;
const SAMPLES: i64 = 200;
const STEP_MS: i64 = 5_000;

/// Values by series and time in milliseconds, as the server renders them.
type Samples = BTreeMap<(String, i64), f64>;

/// A server with tables on the disk, all of whose rows are only there.
struct Scene {
    folder: TempDir,
    address: SocketAddr,
    server: Process,
    samples: Samples,
    end_ms: i64,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let end_ms = now.as_millis() as i64;
        let mut command = firn(folder.path(), address);
        command.args(["--self-scrape", "never", "--flush-age-max", "1s"]);
        let mut server = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        let (samples, request) = samples(end_ms);
        let (status, text) = request.send(address);
        assert_eq!(status, 204, "{text}");
        wait_for("a flush", Duration::from_secs(60), || flushed(address) >= samples.len() as f64);
        // Rows that were flushed may stay in memory until the process ends.
        server.kill();
        let server = start_quiet(folder.path(), address);
        Scene { folder, address, server, samples, end_ms }
    }

    /// All samples, or the error.
    fn read(&self) -> Result<Samples, String> {
        let time = format!("{}.{:03}", self.end_ms / 1_000, self.end_ms % 1_000);
        let query = [("query", "changed[1h]"), ("time", &time)];
        let data = api(self.address, "/api/v1/query", &query)?;
        let mut samples = Samples::new();
        for series in data["result"].as_array().expect("a matrix") {
            let name = series["metric"]["series"].as_str().expect("a label");
            for sample in series["values"].as_array().expect("values") {
                let ts = (sample[0].as_f64().expect("a time") * 1_000.0).round() as i64;
                let value = sample[1].as_str().expect("a value").parse().expect("a number");
                samples.insert((name.to_owned(), ts), value);
            }
        }
        Ok(samples)
    }

    #[track_caller]
    fn expect_right(&self) {
        let found = self.read().expect("an answer");
        assert!(found == self.samples, "{} samples are wrong or missing", self.samples.len());
    }

    /// Queries until the server reads its tables through maps; their files.
    fn map(&self) -> Vec<PathBuf> {
        let tables = self.folder.path().join("firn-data/fast/tables");
        let files: Vec<PathBuf> = fs::read_dir(&tables)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert!(!files.is_empty());
        let transfers = || metric(self.address, "firn_table_reads_total").expect("a metric");
        // Not at once: a file is mapped when its last change is some seconds old.
        wait_for("a query without a transfer", Duration::from_secs(60), || {
            let before = transfers();
            self.expect_right();
            let is_from_maps = transfers() == before;
            let maps = fs::read_to_string(format!("/proc/{}/maps", self.server.id()));
            let maps = maps.expect("the kernel lists maps");
            is_from_maps && files.iter().all(|file| maps.contains(&*file.to_string_lossy()))
        });
        files
    }

    /// The error names the largest table, now and again; the server takes samples and answers.
    fn expect_named(&mut self, table: &Path) {
        let name = table.file_name().expect("a name").to_string_lossy().into_owned();
        for _ in 0..3 {
            let samples = self.read().map(|samples| samples == self.samples);
            let error = samples.expect_err("a table with other bytes is served; right values");
            assert!(error.contains(&name), "{error}");
        }
        assert!(!self.server.has_ended(), "{}", self.server.output());
        let mut request = WriteRequest::default();
        request.series(&[("__name__", "other")], &[(self.end_ms, 1.0)]);
        assert_eq!(request.send(self.address).0, 204);
        let query = [("query", "other"), ("time", &(self.end_ms / 1_000 + 1).to_string())];
        let data = api(self.address, "/api/v1/query", &query).expect("another table's samples");
        assert_eq!(data["result"].as_array().map_or(0, Vec::len), 1);
    }

    fn restart(&mut self) {
        self.server.kill();
        self.server = start_quiet(self.folder.path(), self.address);
    }
}

/// Without work of its own that would read or replace tables.
fn start_quiet(folder: &Path, address: SocketAddr) -> Process {
    let mut command = firn(folder, address);
    command.args(["--self-scrape", "never"]);
    let server = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    server
}

/// Values that no codec makes small, so that the table has many blocks.
fn samples(end_ms: i64) -> (Samples, WriteRequest) {
    let mut samples = Samples::new();
    let mut request = WriteRequest::default();
    let mut state = 7_u64;
    for series in 0..SERIES {
        let name = format!("s{series}");
        let of_series: Vec<(i64, f64)> = (0..SAMPLES)
            .map(|idx| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (end_ms - (SAMPLES - 1 - idx) * STEP_MS, (state >> 12) as f64 / 1e6)
            })
            .collect();
        request.series(&[("__name__", "changed"), ("series", &name)], &of_series);
        samples.extend(of_series.into_iter().map(|(ts, value)| ((name.clone(), ts), value)));
    }
    (samples, request)
}

/// Samples in tables.
fn flushed(address: SocketAddr) -> f64 {
    let metrics = get(address, "/metrics").map_or_else(String::new, |answer| answer.body);
    let lines = metrics.lines().filter(|line| line.starts_with("firn_tree_samples{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

fn largest(tables: &[PathBuf]) -> PathBuf {
    let len = |path: &&PathBuf| fs::metadata(path).expect("a table").len();
    tables.iter().max_by_key(len).expect("a table").clone()
}

/// A bit flips in the middle of the file, whose length stays; also when the other program sets the
/// time of the last write back. One bit, so that it is probably one of a value: most columns would
/// then decode, to wrong values.
#[test]
fn a_mapped_table_whose_bytes_change_is_named_and_never_served() {
    let mut scene = Scene::new();
    for keeps_time in [false, true] {
        let table = largest(&scene.map());
        let file = File::options().read(true).write(true).open(&table).expect("the table");
        let found = file.metadata().expect("a table");
        let mut whole = vec![0; found.len() as usize];
        file.read_exact_at(&mut whole, 0).expect("its bytes");
        let at = whole.len() / 2;
        file.write_all_at(&[whole[at] ^ 0x10], at as u64).expect("written");
        if keeps_time {
            let time = found.modified().expect("a time");
            file.set_times(FileTimes::new().set_modified(time)).expect("set");
        }
        scene.expect_named(&table);
        file.write_all_at(&whole, 0).expect("written");
        scene.restart();
        scene.expect_right();
    }
}

/// The pages behind the new end cannot be read: without a look at the file, SIGBUS ends the server.
#[test]
fn a_mapped_table_that_is_cut_is_named_and_the_server_lives() {
    let mut scene = Scene::new();
    let table = largest(&scene.map());
    let whole = fs::read(&table).expect("the table");
    let file = File::options().write(true).open(&table).expect("the table");
    file.set_len(whole.len() as u64 / 2).expect("cut");
    scene.expect_named(&table);
    file.write_all_at(&whole, 0).expect("written");
    scene.restart();
    scene.expect_right();
}

/// A table that another program overwrites with the same bytes, as a restore does, stays readable.
#[test]
fn a_mapped_table_that_is_restored_in_place_is_read() {
    let scene = Scene::new();
    let table = largest(&scene.map());
    let whole = fs::read(&table).expect("the table");
    File::options().write(true).open(&table).and_then(|file| file.write_all_at(&whole, 0)).unwrap();
    scene.expect_right();
    scene.map();
}
