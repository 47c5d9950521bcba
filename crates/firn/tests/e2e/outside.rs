//! Failures outside: a slow tier that does not respond, a full disk.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::alerts::metric;
use crate::http::{api, get};
use crate::process::{Process, firn, free_address, start_firn, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

fn send(address: SocketAddr, scrape: i64) -> (u16, String) {
    let mut request = WriteRequest::default();
    let ts = 1_700_000_000_000 + scrape * 1_000;
    request.series(&[("__name__", "outside"), ("job", "test")], &[(ts, scrape as f64)]);
    request.send(address)
}

fn stored(address: SocketAddr) -> usize {
    let query = [("query", "outside[1h]"), ("time", "1700001000")];
    let data = api(address, "/api/v1/query", &query).expect("a query");
    data["result"][0]["values"].as_array().map_or(0, Vec::len)
}

/// Uploads fail, are reported in the log and in a metric, and are retried; writes and queries
/// continue.
#[test]
fn a_slow_tier_that_is_down_hinders_neither_writes_nor_queries() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, nobody) = (free_address(), free_address());
    // A new database checks whether its slow tier belongs to another one; an existing one opens
    // without it.
    assert_eq!(start_firn(folder.path(), address).terminate(), Some(0));
    let mut command = firn(folder.path(), address);
    command.args(["--slow-tier", "s3://nobody-there/x", "--upload-age-max", "1s"]);
    command.args(["--flush-age-max", "1s"]);
    command.env("AWS_ENDPOINT", format!("http://{nobody}")).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let mut sent = 0;
    wait_for("an upload that fails", Duration::from_secs(120), || {
        let (status, text) = send(address, sent);
        assert_eq!(status, 204, "{text}");
        sent += 1;
        let metrics = get(address, "/metrics").expect("metrics").body;
        let errors = metrics.lines().find_map(|l| l.strip_prefix("firn_maintenance_errors_total "));
        errors.is_some_and(|count| count != "0")
    });
    assert_eq!(stored(address), sent as usize);
    wait_for("the error in the log", Duration::from_secs(60), || {
        let log = server.output();
        log.contains("work on the slow tier failed") && log.contains("s3://nobody-there/x")
    });
}

/// A server whose files may have 4 MiB.
fn start_limited(folder: &Path, address: SocketAddr) -> Process {
    let server = firn(folder, address);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 8192; exec \"$0\" \"$@\" --head-flush-bytes 1MiB"]);
    command.arg(server.get_program()).args(server.get_args());
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

/// Before, SIGXFSZ ended the process.
#[test]
fn a_limit_on_the_size_of_files_refuses_writes_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = start_limited(folder.path(), address);
    let mut acknowledged = 0;
    let mut refused = None;
    for round in 0..200 {
        // Labels fill the log.
        let mut request = WriteRequest::default();
        for series in 0..100 {
            let label = format!("{round}-{series}-").repeat(200);
            request
                .series(&[("__name__", "filling"), ("label", &label)], &[(1_700_000_000_000, 1.0)]);
        }
        let (status, text) = request.send(address);
        if status == 503 {
            refused = Some(text);
            break;
        }
        assert_eq!(status, 204, "{text}");
        if send(address, acknowledged).0 == 204 {
            acknowledged += 1;
        }
    }
    assert!(refused.is_some_and(|text| text.contains("ulimit -f")), "{}", server.output());
    assert!(!server.has_ended());
    assert_eq!(stored(address), acknowledged as usize);
    server.kill();
    let server = start_limited(folder.path(), address);
    assert_eq!(stored(address), acknowledged as usize, "after a restart with the limit");
    drop(server);
    let mut server = start_firn(folder.path(), address);
    assert_eq!(stored(address), acknowledged as usize, "after a restart without the limit");
    assert_eq!(send(address, acknowledged).0, 204);
    assert_eq!(server.terminate(), Some(0));
}

/// Before, the server created its next files in the folder that had replaced its own.
#[test]
fn a_data_folder_that_is_moved_or_replaced_ends_the_server_with_a_sentence() {
    for is_replaced in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let mut server = start_firn(folder.path(), address);
        for scrape in 0..20 {
            assert_eq!(send(address, scrape).0, 204);
        }
        let (data, away) = (folder.path().join("firn-data"), folder.path().join("away"));
        fs::rename(&data, &away).expect("it is moved");
        if is_replaced {
            fs::create_dir_all(data.join("fast")).expect("a folder");
            fs::write(data.join("fast/LOCK"), "another").expect("a file");
        }
        wait_for("the end of the server", Duration::from_secs(60), || server.has_ended());
        let output = server.output();
        let errors: Vec<&str> = output.lines().filter(|line| line.starts_with("firn: ")).collect();
        assert_eq!(errors.len(), 1, "{output}");
        assert!(errors[0].contains("was removed or replaced"), "{output}");
        assert!(!output.contains("panicked"), "{output}");
        if is_replaced {
            let count = |folder: &Path| fs::read_dir(folder).expect("a folder").count();
            assert_eq!(
                (count(&data), count(&data.join("fast"))),
                (1, 1),
                "files were written into a foreign folder"
            );
            fs::remove_dir_all(&data).expect("it is removed");
        }
        fs::rename(&away, &data).expect("it is moved back");
        let _server = start_firn(folder.path(), address);
        assert_eq!(stored(address), 20);
    }
}

/// Other programs remove the files of the log or the manifest of a running server. Before, samples
/// were acknowledged that no start could find.
#[test]
fn removed_files_of_log_and_manifest_are_replaced() {
    for name in ["log", "manifest"] {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let mut server = start_firn(folder.path(), address);
        for scrape in 0..20 {
            assert_eq!(send(address, scrape).0, 204);
        }
        let removed = folder.path().join("firn-data/fast").join(name);
        fs::remove_dir_all(&removed).expect("it is removed");
        wait_for("a report", Duration::from_secs(60), || server.output().contains("has removed"));
        for scrape in 20..40 {
            assert_eq!(send(address, scrape).0, 204);
        }
        let is_flushed = || metric(address, "firn_flushes_total") > 0.0;
        wait_for("a flush", Duration::from_secs(60), || name != "log" || is_flushed());
        server.kill();
        let server = start_firn(folder.path(), address);
        assert_eq!(stored(address), 40, "{}", server.output());
        assert!(server.output().contains("damaged_places=0"), "{}", server.output());
    }
}

/// Index files are mapped into memory. Before, SIGBUS ended the process without a word.
#[test]
fn an_index_file_that_is_cut_ends_the_server_with_a_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let command = command.args(["--flush-age-max", "1s", "--self-scrape", "never"]);
    let mut server = Process::start("firn", folder.path(), command);
    wait_until_ready(address, "/-/ready");
    assert_eq!(send(address, 0).0, 204);
    // A file that is cut before it is mapped is refused when it is opened: no page of it is read.
    let mut files = Vec::new();
    wait_for("a mapped index file", Duration::from_secs(60), || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.id())).expect("its maps");
        let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
        files = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
        !files.is_empty()
    });
    wait_for("the end of the server", Duration::from_secs(60), || {
        for path in &files {
            // A merge may have replaced it.
            let _ = fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
        }
        let _ = get(address, "/api/v1/labels");
        server.has_ended()
    });
    let output = server.output();
    let errors: Vec<&str> = output.lines().filter(|line| line.starts_with("firn: ")).collect();
    assert_eq!(errors.len(), 1, "{output}");
    assert!(errors[0].contains("became shorter") && !output.contains("panicked"), "{output}");
}

/// A file system of its own in a mount namespace of its own.
struct SmallDisk {
    holder: Process,
    folder: PathBuf,
}

impl SmallDisk {
    /// `None` where the machine allows no namespaces; that is not this project's to install.
    fn mount(folder: &Path) -> Option<SmallDisk> {
        let folder = folder.join("disk");
        fs::create_dir(&folder).expect("a folder");
        let script = format!(
            "mount -t tmpfs -o size=300m tmpfs {0} && touch {0}/mounted && exec sleep 3600",
            folder.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        let parent = folder.parent().expect("a parent").to_owned();
        let holder = Process::start("disk", &parent, &mut command);
        let mut disk = SmallDisk { holder, folder };
        let (mut is_mounted, mut has_ended) = (false, false);
        wait_for("the small disk", Duration::from_secs(60), || {
            is_mounted = disk.seen_from_here("mounted").exists();
            has_ended = disk.holder.has_ended();
            is_mounted || has_ended
        });
        if has_ended {
            eprintln!("skipped: no mount namespace here: {}", disk.holder.output());
        }
        is_mounted.then_some(disk)
    }

    /// A path on the disk as processes outside of the namespace reach it.
    fn seen_from_here(&self, name: &str) -> PathBuf {
        let inside = self.folder.join(name);
        Path::new(&format!("/proc/{}/root", self.holder.id()))
            .join(inside.strip_prefix("/").unwrap())
    }

    fn start_firn(&self, address: SocketAddr) -> Process {
        let mut inner = firn(&self.folder, address);
        inner.arg("--log-streams=2");
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.holder.id().to_string(), "--"]);
        command.arg(inner.get_program()).args(inner.get_args());
        let parent = self.folder.parent().expect("a parent");
        let process = Process::start("firn", parent, &mut command);
        wait_until_ready(address, "/-/ready");
        process
    }

    /// Leaves no space. [`SmallDisk::make_room`] releases at least one log segment for each stream.
    fn fill(&self) {
        let reserve = fs::File::create(self.seen_from_here("reserve")).expect("a file");
        (&reserve).write_all(&vec![1; 2 * (32 << 20) + (16 << 20)]).expect("room for the reserve");
        let mut ballast = fs::File::create(self.seen_from_here("ballast")).expect("a file");
        while ballast.write_all(&[1; 4_096]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.seen_from_here("ballast")).expect("the ballast");
        fs::remove_file(self.seen_from_here("reserve")).expect("the reserve");
    }
}

/// Killed, then started on a full disk: it answers queries, refuses writes with 503 and a reason,
/// and accepts them again by itself once there is space. Nothing acknowledged is lost.
#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(folder.path()) else { return };
    let address = free_address();
    let mut server = disk.start_firn(address);
    for scrape in 0..20 {
        assert_eq!(send(address, scrape).0, 204);
    }
    server.kill();
    let mut acknowledged = 20;
    let (_server, status, text) = loop {
        disk.fill();
        let server = disk.start_firn(address);
        assert_eq!(stored(address), acknowledged, "queries are answered on a full disk");
        let (status, text) = send(address, acknowledged as i64);
        if status != 204 {
            break (server, status, text);
        }
        // The server found segments that the previous one had created ahead, and uses their space.
        // This write used one up.
        acknowledged += 1;
        assert!(acknowledged < 30, "a full disk takes a tenth segment");
    };
    assert!(status == 503 && text.contains("full"), "{status}: {text}");
    disk.make_room();
    wait_for("writes to be taken again", Duration::from_secs(60), || {
        send(address, acknowledged as i64).0 == 204
    });
    assert_eq!(stored(address), acknowledged + 1);
}
