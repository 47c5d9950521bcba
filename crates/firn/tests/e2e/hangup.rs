//! SIGHUP reloads and never ends a process; signals that it does not use do not end it either.

use std::process::Command;
use std::time::Duration;

use crate::http::get;
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};

fn survives(server: &mut Process, address: std::net::SocketAddr, path: &str) {
    // Before, they ended the process.
    server.send("-USR1");
    server.send("-USR2");
    server.hang_up();
    wait_for("the reload", Duration::from_secs(60), || {
        assert!(!server.has_ended(), "{}", server.output());
        server.output().contains("SIGHUP")
    });
    assert_eq!(get(address, path).expect("it answers").status, 200);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
}

#[test]
fn a_hangup_ends_neither_the_server_nor_the_cache_nor_the_proxy() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = Process::start("firn", folder.path(), &mut firn(folder.path(), address));
    wait_until_ready(address, "/-/ready");
    survives(&mut server, address, "/-/healthy");
    for (name, proxy) in [("cache", "none"), ("proxy", "http://127.0.0.1:9")] {
        let (data, address) = (folder.path().join(name), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["cache", "--proxy", proxy, "--listen", &address.to_string(), "--data"]);
        command.arg(&data);
        let mut cache = Process::start(name, folder.path(), &mut command);
        wait_until_ready(address, "/-/cache/metrics");
        survives(&mut cache, address, "/-/cache/metrics");
    }
}
