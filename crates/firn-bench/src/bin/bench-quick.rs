//! Server CPU per million samples and memory per active series, by remote write 1.0, time-major,
//! 10 labels, at 100k and 1M series: FirnDB beside Prometheus and VictoriaMetrics in one run, and
//! the bare cost of snappy and of a walk over the protobuf. Then FirnDB with TLS and a token beside
//! FirnDB without, in turn. `--only tls` runs this part alone.

use std::fs;
use std::hint::black_box;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_bench::client::Endpoint;
use firn_bench::load::Load;
use firn_bench::report::{Aim, finish, median};
use firn_bench::server::{Program, Server};
use firn_cache_client::{Tls, TlsOptions};
use firn_model::protobuf::Reader;

/// The amount of data to send.
struct Size {
    name: &'static str,
    series_count: usize,
    scrapes: i64,
    rounds: usize,
}

const SIZES: [Size; 2] = [
    Size { name: "100k", series_count: 100_000, scrapes: 20, rounds: 3 },
    Size { name: "1M", series_count: 1_000_000, scrapes: 5, rounds: 1 },
];
const INTERVAL_MS: i64 = 15_000;

/// Measurements of one program in one round.
struct Figures {
    /// CPU seconds per million samples, the first scrape (new series) left out.
    cpu_s: f64,
    /// CPU microseconds per new series: the first scrape.
    new_us: f64,
    /// Bytes per series above the idle process.
    series_bytes: f64,
}

/// TLS and a token may cost this much more CPU.
const SECURED_RATIO_MAX: f64 = 1.15;
const SECURED_ROUNDS: usize = 5;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let only_tls = arguments == ["--only", "tls"];
    if !only_tls && !arguments.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected `--only tls` or nothing",
        ));
    }
    let mut aims = Vec::new();
    if !only_tls {
        compare_programs(&mut aims)?;
    }
    compare_secured(&mut aims)?;
    finish(if only_tls { "quick-tls" } else { "quick" }, &aims)
}

fn compare_programs(aims: &mut Vec<Aim>) -> io::Result<()> {
    println!(
        "{:6} {:16} {:>14} {:>14} {:>14}",
        "series", "program", "CPU s/M", "us/new series", "B/series"
    );
    for size in &SIZES {
        let mut by_program: Vec<(Program, Figures)> = Vec::new();
        for program in Program::ALL {
            if program.path().is_none() {
                println!("{:6} {:16} not installed: `make deps`", size.name, program.name());
                continue;
            }
            let rounds: Vec<Figures> =
                (0..size.rounds).map(|_| round(program, size)).collect::<io::Result<_>>()?;
            let middle = |f: fn(&Figures) -> f64| median(rounds.iter().map(f).collect());
            let figures = Figures {
                cpu_s: middle(|f| f.cpu_s),
                new_us: middle(|f| f.new_us),
                series_bytes: middle(|f| f.series_bytes),
            };
            println!(
                "{:6} {:16} {:>14.3} {:>14.2} {:>14.0}",
                size.name,
                program.name(),
                figures.cpu_s,
                figures.new_us,
                figures.series_bytes
            );
            by_program.push((program, figures));
        }
        let (snappy_s, walk_s) = bare_costs(size)?;
        println!(
            "{:6} {:16} {snappy_s:>14.3}\n{:6} {:16} {walk_s:>14.3}",
            size.name, "snappy alone", size.name, "protobuf alone"
        );
        let of = |wanted| by_program.iter().find(|entry| entry.0 == wanted).map(|entry| &entry.1);
        if let (Some(ours), Some(theirs)) = (of(Program::Firn), of(Program::Prometheus)) {
            let mut aim = |name: &str, figure: f64, at_most: f64| {
                let name = format!("{name}, {} series, FirnDB / Prometheus", size.name);
                aims.push(Aim { name, figure, at_most });
            };
            aim("CPU per sample", ours.cpu_s / theirs.cpu_s, 1.0);
            aim("CPU per new series", ours.new_us / theirs.new_us, 1.0);
            aim("memory per series", ours.series_bytes / theirs.series_bytes, 0.5);
        }
        if let (Some(ours), Some(theirs)) = (of(Program::Firn), of(Program::VictoriaMetrics)) {
            println!(
                "{:6} FirnDB / VictoriaMetrics: CPU {:.2}, new series {:.2}, memory {:.2}",
                size.name,
                ours.cpu_s / theirs.cpu_s,
                ours.new_us / theirs.new_us,
                ours.series_bytes / theirs.series_bytes
            );
        }
    }
    Ok(())
}

/// A time whose encoding is as long as that of the present.
const TIMESTAMP_MS: i64 = 1_800_000_000_000;

/// Seconds per million samples, on one thread, to unpack the requests of a scrape, and to walk over
/// all their fields: no server that reads them can do with less.
fn bare_costs(size: &Size) -> io::Result<(f64, f64)> {
    const ROUNDS: usize = 5;
    let bodies = Load::new(size.series_count).bodies(TIMESTAMP_MS);
    let (mut decoder, mut unpacked) = (snap::raw::Decoder::new(), Vec::new());
    let (mut snappy_s, mut walk_s) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut snappy, mut walk) = (Duration::ZERO, Duration::ZERO);
        for body in &bodies {
            let len = snap::raw::decompress_len(body).map_err(io::Error::other)?;
            unpacked.resize(len, 0);
            let started = Instant::now();
            decoder.decompress(body, &mut unpacked).map_err(io::Error::other)?;
            snappy += started.elapsed();
            let started = Instant::now();
            black_box(field_count(Reader::new(&unpacked), 0).map_err(io::Error::other)?);
            walk += started.elapsed();
        }
        let per_million = |time: Duration| time.as_secs_f64() / size.series_count as f64 * 1e6;
        snappy_s.push(per_million(snappy));
        walk_s.push(per_million(walk));
    }
    Ok((median(snappy_s), median(walk_s)))
}

/// The number of fields of a write request with its series (1) and their labels and samples (2).
fn field_count(mut message: Reader<'_>, depth: u32) -> firn_model::Result<u64> {
    let mut count = 0;
    while !message.is_done() {
        let (field, wire) = message.key()?;
        count += 1;
        match (depth, field) {
            (0, 1) | (1, 1 | 2) => count += field_count(message.message()?, depth + 1)?,
            _ => message.skip(field, wire)?,
        }
    }
    Ok(count)
}

/// FirnDB with TLS and a token beside FirnDB without, one after the other in each round.
fn compare_secured(aims: &mut Vec<Aim>) -> io::Result<()> {
    let size = &SIZES[0];
    let (mut plain, mut secured) = (Vec::new(), Vec::new());
    for _ in 0..SECURED_ROUNDS {
        let server = Program::Firn.start()?;
        plain.push(measure(Program::Firn, &server, server.address.into(), size));
        drop(server);
        let (server, endpoint, _folder) = start_secured()?;
        secured.push(measure(Program::Firn, &server, endpoint, size));
    }
    for (name, figure) in [
        ("CPU per sample", (|f| f.cpu_s) as fn(&Figures) -> f64),
        ("CPU per new series", |f| f.new_us),
    ] {
        let middle = |all: &[Figures]| median(all.iter().map(figure).collect());
        let (plain, secured) = (middle(&plain), middle(&secured));
        println!("{:6} {name}: plain {plain:.3}, TLS and token {secured:.3}", size.name);
        let name = format!("{name}, {} series, TLS and token / plain", size.name);
        aims.push(Aim { name, figure: secured / plain, at_most: SECURED_RATIO_MAX });
    }
    Ok(())
}

/// FirnDB with a certificate of its own and one user.
fn start_secured() -> io::Result<(Server, Endpoint, tempfile::TempDir)> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let names = vec!["127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let (certificate, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    fs::write(&certificate, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    let web = folder.path().join("web.yml");
    fs::write(&web, "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n")?;
    let firn = Program::Firn.path().ok_or(io::ErrorKind::NotFound)?;
    let user = |arguments: &[&str]| -> io::Result<String> {
        let output = Command::new(&firn)
            .arg("user")
            .args(arguments)
            .arg("--web-config")
            .arg(&web)
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(io::Error::other(text(&output.stderr))),
        }
    };
    user(&["add", "bench", "--role", "write", "--no-password"])?;
    let token = user(&["token", "bench"])?;
    let options = TlsOptions { ca_file: Some(certificate), identity_file: None };
    let tls = Tls::open(&options).map_err(io::Error::other)?;
    let server = Program::Firn.start_with(&["--web-config", &web.display().to_string()])?;
    let endpoint = Endpoint { address: server.address, tls: Some(tls), token: Some(token) };
    Ok((server, endpoint, folder))
}

fn round(program: Program, size: &Size) -> io::Result<Figures> {
    let server = program.start()?;
    let endpoint = server.address.into();
    Ok(measure(program, &server, endpoint, size))
}

fn measure(program: Program, server: &Server, endpoint: Endpoint, size: &Size) -> Figures {
    let idle = server.memory().total();
    let mut load = Load::new(size.series_count);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let start = now - size.scrapes * INTERVAL_MS;
    let cpu_before = server.cpu_s();
    load.scrape(endpoint.clone(), program.write_path(), start);
    let cpu_first = server.cpu_s();
    for scrape in 1..size.scrapes {
        let ts = start + scrape * INTERVAL_MS;
        load.scrape(endpoint.clone(), program.write_path(), ts);
    }
    // Deferred work counts too.
    std::thread::sleep(Duration::from_secs(3));
    let samples = (size.series_count as i64 * (size.scrapes - 1)) as f64;
    let used = server.memory().total().saturating_sub(idle);
    Figures {
        cpu_s: (server.cpu_s() - cpu_first) / samples * 1e6,
        new_us: (cpu_first - cpu_before) / size.series_count as f64 * 1e6,
        series_bytes: used as f64 / size.series_count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_sees_every_label_and_sample() {
        let bodies = Load::new(2_000).bodies(TIMESTAMP_MS);
        let unpacked = snap::raw::Decoder::new().decompress_vec(&bodies[0]).unwrap();
        // Ten labels with name and value, and a sample with value and time.
        let of_series = 1 + 10 * (1 + 2) + (1 + 2);
        assert_eq!(field_count(Reader::new(&unpacked), 0).unwrap(), 2_000 * of_series);
        let size = Size { name: "2k", series_count: 2_000, scrapes: 1, rounds: 1 };
        let (snappy_s, walk_s) = bare_costs(&size).unwrap();
        assert!(snappy_s > 0.0 && walk_s > 0.0);
    }
}
