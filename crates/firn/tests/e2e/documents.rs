//! The format documents suffice: `docs/formats/reader.py`, written from them alone, reads the slow
//! tier of a server bit for bit.

use std::process::Command;
use std::time::Duration;

use crate::process::{
    Process, firn, free_address, installed, repository, wait_for, wait_until_ready,
};
use crate::remote_write::WriteRequest;
use crate::tiers::metric;

const START_MS: i64 = 1_700_000_000_000;
const INTERVAL_MS: i64 = 15_000;
const SAMPLES: i64 = 400;
/// Members of one group, more than a directory has in one step, and series alone.
const MEMBERS: u64 = 72;
const LONE: u64 = 8;

/// The value of a series, such that every codec is used; `None`: no sample at this time.
fn value(series: u64, idx: i64, random: u64) -> Option<f64> {
    let (at, part) = (idx as f64, (random % 1_000) as f64);
    Some(match series % 18 {
        0 => 7.0,
        1 => 0.125,
        2 => 1.0 / 3.0,
        3 => at * 17.0 + (random % 9) as f64,
        4 => part / 100.0,
        5 => part / 1_000.0 + 1.0 / 3.0,
        6 => (idx / 50) as f64,
        7 => [0.5, 1.25, 3.75][random as usize % 3],
        8 if random.is_multiple_of(20) => f64::from_bits(0x7ff0_0000_0000_0002),
        8 => (random % 5) as f64,
        9 => f64::from_bits(random),
        10 => at * 0.01 + 1e-15,
        11 if idx % 3 == 0 => return None,
        11 => at,
        12 if idx < 200 => return None,
        12 => at * 100.0,
        13 => (random % 7) as f64 * 1e25,
        14 => [-0.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324][random as usize % 4],
        15 => f64::from_bits(0x3ff0_0000_0000_0000 | (random & 0xff) << 40),
        16 => part * part * part,
        _ => (at / 20.0).sin(),
    })
}

#[test]
fn a_reader_that_was_written_after_the_documents_reads_every_bit() {
    if installed("python3").is_none() || installed("zstd").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (slow, address) = (folder.path().join("slow"), free_address());
    let mut command = firn(folder.path(), address);
    command.args(["--flush-age-max", "1s", "--upload-age-max", "1s", "--self-scrape", "never"]);
    command.arg("--slow-tier").arg(&slow);
    let mut server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");

    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut request = WriteRequest::default();
    let mut wanted: Vec<String> = Vec::new();
    for series in 0..MEMBERS + LONE {
        let mut samples = Vec::new();
        for idx in 0..SAMPLES {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Some come a little later, and of lone series some at any time.
            let jitter_ms = match idx % 7 {
                _ if series >= MEMBERS + LONE / 2 => (random >> 8) as i64 % 3_000,
                3 => idx % 10,
                _ => 0,
            };
            let ts = START_MS + idx * INTERVAL_MS + jitter_ms;
            samples.extend(value(series, idx, random >> 3).map(|value| (ts, value)));
        }
        let name = format!("documents_{series}");
        let labels = [("__name__", &*name), ("instance", "one"), ("job", "documents")];
        request.series(if series < MEMBERS { &labels } else { &labels[..1] }, &samples);
        let text = |(ts, value): &(i64, f64)| format!("{ts}:{:016x}", value.to_bits());
        wanted.push(samples.iter().map(text).collect::<Vec<_>>().join(" "));
    }
    assert_eq!(request.send(address).0, 204);
    // When this is there, all before it is.
    let last_ts = START_MS + (SAMPLES + 1) * INTERVAL_MS;
    let mut last = WriteRequest::default();
    assert_eq!(last.series(&[("__name__", "last")], &[(last_ts, 1.0)]).send(address).0, 204);
    wanted.push(format!("{last_ts}:{:016x}", 1f64.to_bits()));
    wait_for("the upload", Duration::from_secs(60), || {
        let newest = metric(address, "firn_slow_tier_newest_timestamp_seconds");
        newest.is_some_and(|newest| newest * 1e3 >= last_ts as f64)
    });
    server.kill();

    let reader = repository().join("docs/formats/reader.py");
    let output = Command::new("python3").arg(reader).arg(&slow).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let samples = |line: &str| line.splitn(3, ' ').nth(2).expect("group, slot, samples").to_owned();
    let mut found: Vec<String> = text.lines().map(samples).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted);
    }
}
