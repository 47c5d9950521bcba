//! Another program changes an index file while the server reads it through a map.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use crate::http::get;
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

const SERIES: usize = 5_000;

/// A server all of whose series are in index files, and those files.
struct Scene {
    _folder: TempDir,
    address: SocketAddr,
    server: Process,
    files: Vec<PathBuf>,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let mut command = firn(folder.path(), address);
        command.args(["--self-scrape", "never", "--flush-age-max", "1s"]);
        let mut server = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let mut request = WriteRequest::default();
        for number in 0..SERIES {
            let host = host(number);
            request
                .series(&[("__name__", "up"), ("host", &host)], &[(now.as_millis() as i64, 1.0)]);
        }
        assert_eq!(request.send(address).0, 204);
        let index = folder.path().join("firn-data/fast/index");
        wait_for("an index file", Duration::from_secs(60), || !files_in(&index).is_empty());
        // Until the manifest names the file.
        assert_eq!(server.terminate(), Some(0));
        let mut command = firn(folder.path(), address);
        command.args(["--self-scrape", "never"]);
        let server = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        let scene = Scene { _folder: folder, address, server, files: files_in(&index) };
        assert_eq!(scene.hosts().expect("a list"), hosts());
        scene
    }

    fn hosts(&self) -> Result<Vec<String>, String> {
        let answer = get(self.address, "/api/v1/label/host/values").ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        if let Some(error) = answer["error"].as_str() {
            return Err(error.to_owned());
        }
        let hosts = answer["data"].as_array().expect("a list").iter();
        Ok(hosts.map(|host| host.as_str().expect("a text").to_owned()).collect())
    }

    fn largest(&self) -> &Path {
        let len = |path: &&PathBuf| fs::metadata(path).expect("a file").len();
        self.files.iter().max_by_key(len).expect("a file")
    }

    fn expect_named(&mut self, file: &Path) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        for _ in 0..3 {
            let is_right = self.hosts().map(|found| found == hosts());
            let error = is_right.expect_err("a damaged file is served; right values");
            assert!(error.contains(&name), "{error}");
        }
        assert!(!self.server.has_ended(), "{}", self.server.output());
    }
}

fn files_in(index: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(index).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn host(number: usize) -> String {
    format!("host-{number:05}.example")
}

fn hosts() -> Vec<String> {
    (0..SERIES).map(host).collect()
}

/// A bit of a label value flips, is restored, and then the file is cut. Before, the server listed
/// the other value without an error, and the cut ended it (SIGBUS).
#[test]
fn a_mapped_index_file_that_changes_is_named_and_the_server_lives() {
    let mut scene = Scene::new();
    let path = scene.largest().to_owned();
    let file = File::options().read(true).write(true).open(&path).expect("the index file");
    let whole = fs::read(&path).expect("the index file");
    // The last value of a front-coded block is one of a host.
    let at = whole.windows(4).rposition(|four| four == b"host").unwrap_or(whole.len() / 4);
    file.write_all_at(&[whole[at] ^ 1], at as u64).expect("written");
    scene.expect_named(&path);
    file.write_all_at(&whole, 0).expect("restored");
    assert_eq!(scene.hosts().expect("a list"), hosts());
    file.set_len(whole.len() as u64 / 8).expect("cut");
    scene.expect_named(&path);
    file.write_all_at(&whole, 0).expect("restored");
    assert_eq!(scene.hosts().expect("a list"), hosts());
}
