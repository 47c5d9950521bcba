//! Latency, server CPU and memory per query: FirnDB beside Prometheus and VictoriaMetrics, over the
//! same data in one run.
//!
//! `--only a,b` measures the patterns with names that contain one of these words (and `vector(1)`);
//! `--programs a,b` starts only the programs with such names, and always ours. The remaining aims
//! are printed.
//!
//! All programs run at once and take turns, so that noise of the machine affects all of them. CPU
//! is the process' user and system time over enough queries to make ticks of 10 ms small, the
//! median of some rounds, minus that of `vector(1)`.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_bench::agree;
use firn_bench::client::post_all;
use firn_bench::contest::{Contender, Rounds, measure, wait_until_quiet};
use firn_bench::devops::{DevOps, SLICE_COUNT, SLICE_MS};
use firn_bench::pattern::{PATTERNS, Pattern, Width};
use firn_bench::report::{Aim, finish};
use firn_bench::server::Program;

const ROUNDS: Rounds =
    Rounds { count: 3, cpu_s: 0.5, time: Duration::from_millis(1_500), client_count: 1 };
// Answers that are compared, per pattern.
const CHECKED: u64 = 3;
const CONNECTIONS: usize = 2;
// Prometheus checks once a minute whether it has something to compact.
const QUIET_TIME_MIN: Duration = Duration::from_secs(60);

/// The command line's filter; empty selects everything.
#[derive(Default)]
struct Filter {
    /// Words of patterns' names; none: all.
    patterns: Vec<String>,
    /// Words of programs' names; none: all.
    programs: Vec<String>,
}

impl Filter {
    fn of(mut arguments: impl Iterator<Item = String>) -> io::Result<Filter> {
        let mut wanted = Filter::default();
        while let Some(argument) = arguments.next() {
            let words = match argument.as_str() {
                "--only" => &mut wanted.patterns,
                "--programs" => &mut wanted.programs,
                _ => return Err(io::Error::other(format!("unknown argument {argument}"))),
            };
            let list = arguments.next().unwrap_or_default().to_lowercase();
            words
                .extend(list.split(',').map(str::trim).filter(|w| !w.is_empty()).map(String::from));
        }
        Ok(wanted)
    }

    fn pattern(&self, pattern: &Pattern) -> bool {
        pattern.width == Width::Nothing || is_named(&self.patterns, pattern.name)
    }

    fn program(&self, program: Program) -> bool {
        program == Program::Firn || is_named(&self.programs, program.name())
    }
}

fn is_named(words: &[String], name: &str) -> bool {
    let name = name.to_lowercase();
    words.is_empty() || words.iter().any(|word| name.contains(word))
}

fn main() -> io::Result<()> {
    let started = Instant::now();
    let wanted = Filter::of(std::env::args().skip(1))?;
    let mut contenders = Vec::new();
    for program in Program::ALL.into_iter().filter(|program| wanted.program(*program)) {
        if program.path().is_none() {
            println!("{}: not installed: `make deps`", program.name());
            continue;
        }
        contenders.push(Contender { program, server: program.start()? });
    }
    let end_ms = load(&contenders);
    wait_until_quiet(&contenders, QUIET_TIME_MIN);
    println!("loaded and quiet after {} s", started.elapsed().as_secs());

    let patterns: Vec<&Pattern> = PATTERNS.iter().filter(|p| wanted.pattern(p)).collect();
    let disagreements: usize =
        patterns.iter().map(|pattern| check(&contenders, pattern, end_ms)).sum();
    println!(
        "\n{:24} {:16} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "query", "program", "latency ms", "CPU ms", "net CPU ms", "memory MiB", "page faults"
    );
    let mut aims = Vec::new();
    let mut base_cpu_ms: Vec<f64> = Vec::new();
    let mut memory_bytes_max = 0;
    let mut page_faults_max: f64 = 0.0;
    for pattern in patterns {
        let costs = measure(&contenders, ROUNDS, &|number| pattern.target(end_ms, number));
        if pattern.width == Width::Nothing {
            base_cpu_ms = costs.iter().map(|cost| cost.cpu_ms).collect();
        }
        let net: Vec<(Program, f64)> = contenders
            .iter()
            .zip(costs.iter().zip(&base_cpu_ms))
            .map(|(contender, (cost, base))| (contender.program, (cost.cpu_ms - base).max(0.0)))
            .collect();
        for ((program, net_cpu_ms), cost) in net.iter().zip(&costs) {
            println!(
                "{:24} {:16} {:>12.3} {:>12.3} {:>12.3} {:>12.1} {:>12.0}",
                pattern.name,
                program.name(),
                cost.latency_ms,
                cost.cpu_ms,
                net_cpu_ms,
                cost.memory_bytes as f64 / f64::from(1 << 20),
                cost.page_faults
            );
        }
        memory_bytes_max = memory_bytes_max.max(costs[0].memory_bytes);
        page_faults_max = page_faults_max.max(costs[0].page_faults);
        aims.extend(aims_of(pattern, &net));
    }
    aims.push(Aim {
        name: "answers that differ from FirnDB's".to_owned(),
        figure: disagreements as f64,
        at_most: 0.0,
    });
    aims.push(Aim {
        name: "memory of a query at most, FirnDB, MiB".to_owned(),
        figure: memory_bytes_max as f64 / f64::from(1 << 20),
        at_most: MEMORY_MIB_MAX,
    });
    aims.push(Aim {
        name: "page faults of a query at most, FirnDB".to_owned(),
        figure: page_faults_max,
        at_most: PAGE_FAULTS_MAX,
    });
    println!("\nall of it took {} s", started.elapsed().as_secs());
    finish("query", &aims)
}

// The widest query holds the answers of its groups and some batches, never all samples: 100,000
// series x 260 samples are 200 MiB as plain values alone.
const MEMORY_MIB_MAX: f64 = 256.0;

// 64 MiB. The widest query decodes 200 MiB, group after group in the same memory. When the
// allocator returned each group's memory at once, it had 80,000 faults and took twice the CPU.
const PAGE_FAULTS_MAX: f64 = 16_384.0;

/// The aims of a pattern: a share of Prometheus' CPU, and at most VictoriaMetrics'.
fn aims_of(pattern: &Pattern, net: &[(Program, f64)]) -> Vec<Aim> {
    let share = match pattern.width {
        Width::Nothing => return Vec::new(),
        Width::Narrow => 1.0 / 3.0,
        Width::Middle => 1.0 / 5.0,
        Width::Wide => 1.0 / 15.0,
    };
    let of = |wanted| net.iter().find(|entry| entry.0 == wanted).map(|entry| entry.1);
    let Some(ours) = of(Program::Firn) else { return Vec::new() };
    [(Program::Prometheus, share), (Program::VictoriaMetrics, 1.0)]
        .into_iter()
        .filter_map(|(program, at_most)| {
            let theirs = of(program)?;
            let name = format!("CPU of {}, FirnDB / {}", pattern.name, program.name());
            Some(Aim { name, figure: ours / theirs, at_most })
        })
        .collect()
}

/// Writes the same data to all programs, slice by slice; returns the end of the data.
fn load(contenders: &[Contender]) -> i64 {
    let now_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let end_ms = (now_ms - 60_000) / 60_000 * 60_000;
    let mut data = DevOps::new();
    let mut loaded = 0;
    let started = Instant::now();
    for slice in 0..SLICE_COUNT {
        let (bodies, sample_count) = data.slice(slice, end_ms - (SLICE_COUNT - slice) * SLICE_MS);
        std::thread::scope(|scope| {
            for Contender { program, server, .. } in contenders {
                let (path, bodies) = (program.write_path(), &bodies);
                scope.spawn(move || post_all(server.address, path, bodies, CONNECTIONS));
            }
        });
        loaded += sample_count;
        if (slice + 1) % 15 == 0 {
            let cpu: Vec<String> = contenders
                .iter()
                .map(|c| format!("{} {:.1} s", c.program.name(), c.server.cpu_s()))
                .collect();
            println!(
                "loaded {:.1} M samples, {:.0}% of the time, in {} s; CPU {}",
                loaded as f64 / 1e6,
                (slice + 1) as f64 / SLICE_COUNT as f64 * 100.0,
                started.elapsed().as_secs(),
                cpu.join(", ")
            );
        }
    }
    end_ms
}

/// The number of answers of a pattern that differ from FirnDB's. Also warms up all programs.
fn check(contenders: &[Contender], pattern: &Pattern, end_ms: i64) -> usize {
    let mut disagreement_count = 0;
    for number in 0..CHECKED {
        let target = pattern.target(end_ms, number);
        let answers: Vec<(Program, Vec<u8>)> =
            contenders.iter().map(|c| (c.program, c.connect().get(&target).to_vec())).collect();
        let Some((_, ours)) = answers.iter().find(|(program, _)| *program == Program::Firn) else {
            continue;
        };
        for (program, theirs) in answers.iter().filter(|(program, _)| *program != Program::Firn) {
            if let Err(why) = agree::check(pattern.agreement, ours, theirs, *program) {
                println!("{}: {} differs from FirnDB: {why}", pattern.name, program.name());
                disagreement_count += 1;
            }
        }
    }
    disagreement_count
}
