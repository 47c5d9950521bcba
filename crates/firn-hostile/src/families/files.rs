//! The file system: a full disk, open folders, and foreign files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{base_s, query, write, write_made};
use crate::attack::{Attack, Expect, Family, attack, flood, ok, script, status};
use crate::client::{Answer, CLOSED, SILENT, get, post};
use crate::target::{Setup, Target};
use crate::wire::{Message, noise, one_series, series};

/// Files of at most 4 MiB: the log, tables and the index fail as on a full disk.
pub(crate) fn full_disk() -> Family {
    let setup =
        Setup::database(&["--head-flush-bytes=1MiB", "--log-bytes-max=64MiB", "--result-cache=0"]);
    Family::new("full-disk", setup.empty().file_bytes_max(4 << 20)).because(
        "a write that cannot be durable is not acknowledged, and nothing else is lost",
        full(),
    )
}

/// Files of the database in the hands of another user of the machine.
pub(crate) fn folders() -> Family {
    let setup = Setup::database(&["--enable-admin-api", "--flush-age-max=2s"]);
    Family::new("files", setup.empty())
        .because("data is readable by its owner only", modes())
        .because("a foreign hand in the folder ends in errors, not in a crash", tampering())
}

fn refused_or_written() -> Expect {
    status([204, 429, 500, 503, CLOSED])
}

fn fill(seed: u64) -> crate::client::Request {
    write_made(move || {
        (0..1_000).fold(Message::default(), |message, n| {
            let value = noise(seed << 32 | n, 1_000);
            let labels = [("__name__", "fill"), ("value", value.as_str())];
            message.message(1, series(&labels, &[(base_s() * 1_000, 1.0)]))
        })
    })
}

fn full() -> Vec<Attack> {
    vec![
        attack(
            "20 MB of labels",
            script(|target| (0..20).map(|n| fill(n).send(target)).collect()),
            refused_or_written(),
        )
        .quick(),
        attack("8 writers of 10 MB", flood(8, 10, fill(77)), refused_or_written()),
        attack("queries beside it", query("sum(fill)"), ok()),
        attack("a snapshot", post("/api/v1/admin/tsdb/snapshot"), status([403, 500])),
    ]
}

/// Files and folders that others may read or write.
fn open_to_others(target: &Target) -> Vec<String> {
    fn walk(path: &std::path::Path, found: &mut Vec<String>) {
        let Ok(metadata) = fs::symlink_metadata(path) else { return };
        if !metadata.is_symlink() && metadata.permissions().mode() & 0o077 != 0 && metadata.is_dir()
        {
            found.push(format!("{} {:o}", path.display(), metadata.permissions().mode() & 0o777));
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), found);
        }
    }
    let mut found = Vec::new();
    walk(&target.data(), &mut found);
    found
}

fn modes() -> Vec<Attack> {
    vec![
        attack(
            "the folder of the data is closed to others",
            get("/-/healthy"),
            ok().check(|_, target| {
                // A closed folder protects everything in it.
                let mode = fs::metadata(target.data())
                    .map_or(0o777, |metadata| metadata.permissions().mode());
                match mode & 0o077 {
                    0 => Ok(()),
                    _ => Err(format!("open to others: {:?}", open_to_others(target))),
                }
            }),
        )
        .quick(),
    ]
}

fn send_some(target: &Target) -> Vec<Answer> {
    (0..5)
        .map(|n: i64| {
            let labels = [("__name__", "some"), ("n", &n.to_string())];
            write(one_series(&labels, &[(base_s() * 1_000, 1.0)])).send(target)
        })
        .collect()
}

/// The table that was flushed last; waits until there is one.
fn newest_table(target: &Target) -> Option<PathBuf> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(15) {
        let entries =
            fs::read_dir(target.data().join("fast/tables")).into_iter().flatten().flatten();
        let tables = entries.map(|entry| entry.path()).filter(|path| {
            path.extension().is_some_and(|end| end == "fst")
                && path.metadata().is_ok_and(|m| m.len() > 64)
        });
        if let Some(newest) = tables.max() {
            return Some(newest);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

fn tampering() -> Vec<Attack> {
    vec![
        attack(
            "a folder in place of a snapshot",
            script(|target| {
                let _ = fs::write(target.data().join("snapshots"), "in the way");
                let answer = post("/api/v1/admin/tsdb/snapshot").send(target);
                let _ = fs::remove_file(target.data().join("snapshots"));
                vec![answer]
            }),
            status([500, 503, 400]),
        ),
        attack(
            "foreign files in the folder",
            script(|target| {
                for name in ["x.fst", "..hidden", "fast/99999999.fst", "log/zzz", "\u{202e}"] {
                    let _ = fs::write(target.data().join(name), "foreign");
                }
                std::thread::sleep(Duration::from_secs(1));
                send_some(target)
            }),
            status([204]),
        )
        .quick(),
        attack(
            "a link to another file",
            script(|target| {
                let _ =
                    std::os::unix::fs::symlink("/etc/passwd", target.data().join("fast/link.fst"));
                let answers = send_some(target);
                let _ = fs::remove_file(target.data().join("fast/link.fst"));
                answers
            }),
            status([204]),
        ),
        attack(
            "a table that another program cuts",
            script(|target| {
                let Some(path) = newest_table(target) else {
                    return vec![Answer::of_status(SILENT)];
                };
                let bytes = fs::read(&path).unwrap_or_default();
                let _ = fs::write(&path, &bytes[..bytes.len() / 2]);
                let mut answers = send_some(target);
                let answer = query("count_over_time(some[1h])").send(target);
                // An error that names the file is right.
                let names_file = answer.status == 500 && answer.text().contains(".fst");
                answers.extend((!names_file).then_some(answer));
                let _ = fs::write(&path, &bytes);
                answers
            }),
            status([200, 204]),
        ),
        attack(
            "the folder of the tables is away for a while",
            script(|target| {
                let (here, away) =
                    (target.data().join("fast/tables"), target.folder().join("away"));
                let _ = fs::rename(&here, &away);
                // A flush is due every 2 s.
                let mut answers = Vec::new();
                for _ in 0..6 {
                    answers.extend(send_some(target));
                    std::thread::sleep(Duration::from_millis(500));
                }
                // The server may have made a folder in its place.
                let _ = fs::remove_dir(&here);
                let _ = fs::rename(&away, &here);
                answers
            }),
            status([204, 500, 503]),
        ),
        attack(
            "links out of the folder",
            script(|target| {
                for (name, to) in
                    [("x", "/"), ("fast/tables/loop", "."), ("fast/log/none", "/nowhere/x")]
                {
                    let _ = std::os::unix::fs::symlink(to, target.data().join(name));
                }
                let mut answers = send_some(target);
                answers.push(query("sum(some)").send(target));
                answers
            }),
            status([200, 204]),
        ),
        attack(
            "a snapshot whose folder is a link elsewhere",
            script(|target| {
                let outside = target.folder().join("outside");
                let _ = fs::create_dir(&outside);
                let _ = std::os::unix::fs::symlink(&outside, target.data().join("snapshots"));
                let answer = post("/api/v1/admin/tsdb/snapshot").send(target);
                let _ = fs::remove_file(target.data().join("snapshots"));
                vec![answer]
            }),
            status([200, 500]),
        ),
    ]
}
