//! Costs of label sets: bytes per series in memory and on disk, and nanoseconds per lookup, for
//! three kinds of label sets at 1M and 5M series, in groups and alone, beside nested hash maps and
//! two other dictionaries.
//!
//! `--only a,b` measures the sets with names that contain one of these words (`devops 1M grouped`,
//! ...) and prints the remaining aims. All times are CPU time of the working thread, except for
//! whole processes.

use std::collections::HashSet;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use firn_bench::index::counting::{Counting, live_bytes};
use firn_bench::index::dictionaries::{DoubleArray, Transducer, sorted};
use firn_bench::index::label_sets::{LabelSetKind, LabelSets};
use firn_bench::index::nested_maps::NestedMaps;
use firn_bench::index::selectors::selector;
use firn_bench::index::{process_cpu_ns, scatter, thread_cpu_ns};
use firn_bench::load::Load;
use firn_bench::report::{Aim, finish, median};
use firn_bench::server::Program;
use firn_env::{Disk, LocalDisk};
use firn_index::{GroupBy, Index, IndexOptions, IndexView};
use firn_model::{Grouping, Labels, MatchOp, Matcher, QueryContext, ShardBits, ShardId};
use firndb::{Db, LogOptions, Options, RowBatch, SyncPolicy, local_env};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZES: [(&str, usize); 2] = [("1M", 1_000_000), ("5M", 5_000_000)];
const SHARDS: usize = 64;
// As many label sets as a sender puts into one request.
const BATCH: usize = 2_000;
const SELECTORS: u64 = 1_000;
// The ratio of scanned to resulting series that 90% of the paper's queries stay below.
const SCANNED_PER_RESULT: f64 = 50.0;

/// One data set in one form.
struct Case {
    sets: LabelSets,
    kind: LabelSetKind,
    size: &'static str,
    grouped: bool,
}

/// The costs of an index in one case.
struct Figures {
    series: f64,
    new_ns: f64,
    known_ns: f64,
    /// Heap per series while all is active.
    active_bytes: f64,
    seal_ns: f64,
    /// Heap and files per series after it was sealed and opened again.
    sealed_heap_bytes: f64,
    sealed_file_bytes: f64,
    /// The file's bytes per series by purpose.
    bytes_by_use: Vec<(&'static str, f64)>,
    open_ms: f64,
    sealed_known_ns: f64,
    queries: Vec<Query>,
    selectors: Selected,
}

/// A kind of query, ours beside nested maps; microseconds.
struct Query {
    name: &'static str,
    found: usize,
    us: f64,
}

/// Results of 1,000 random selectors.
#[derive(Default)]
struct Selected {
    /// Time until the matching series and their number are known.
    us: Vec<f64>,
    /// Time until each has its group, its slot and its key, with the texts of all keys.
    laid_out_us: Vec<f64>,
    series: Vec<f64>,
    scanned_per_result: Vec<f64>,
    empty: usize,
}

struct Baseline {
    bytes: f64,
    new_ns: f64,
    known_ns: f64,
    queries: Vec<Query>,
}

fn main() -> io::Result<()> {
    let started = Instant::now();
    let wanted = wanted()?;
    let mut aims = Vec::new();
    for (size, series_count) in SIZES {
        for kind in LabelSetKind::ALL {
            let name = format!("{} {size}", kind.name());
            let is_wanted = |form: &str| {
                let name = format!("{name} {form}");
                wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str()))
            };
            if !is_wanted("grouped") && !is_wanted("alone") {
                continue;
            }
            let sets = match LabelSets::new(kind, series_count) {
                Ok(sets) => sets,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    println!("\n{name}: left out, there are no recordings ({e})");
                    continue;
                }
                Err(e) => return Err(e),
            };
            // Beside 5M series of text it would dominate memory, and its shape is that of 1M.
            let baseline = (size == SIZES[0].0).then(|| baseline(&sets));
            let mut case = Case { sets, kind, size, grouped: true };
            for grouped in [true, false] {
                case.grouped = grouped;
                if is_wanted(case.form()) {
                    let figures = measure(&case)?;
                    report(&case, &figures, baseline.as_ref(), &mut aims);
                }
            }
            println!("  {:.0} s so far", started.elapsed().as_secs_f64());
        }
    }
    if wanted.is_empty() || wanted.iter().any(|word| "creation".contains(word.as_str())) {
        creation(&mut aims)?;
    }
    finish("index", &aims)
}

/// Words after `--only`.
fn wanted() -> io::Result<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument != "--only" {
            return Err(io::Error::other(format!("unknown argument {argument}")));
        }
        let words = arguments.next().unwrap_or_default().to_lowercase().replace('m', "M");
        let words = words.split(',').map(|word| word.trim().to_owned());
        wanted.extend(words.filter(|word| !word.is_empty()));
    }
    Ok(wanted)
}

impl Case {
    fn form(&self) -> &'static str {
        if self.grouped { "grouped" } else { "alone" }
    }

    fn name(&self) -> String {
        format!("{} {} {}", self.kind.name(), self.size, self.form())
    }

    fn options(&self) -> IndexOptions {
        let group_by = if self.grouped { self.sets.group_by() } else { Vec::new() };
        let group_by = GroupBy::Labels(group_by);
        IndexOptions { group_by, ..IndexOptions::default() }
    }
}

fn measure(case: &Case) -> io::Result<Figures> {
    let folder = tempfile::tempdir()?;
    let disk: Arc<dyn Disk> = Arc::new(LocalDisk::open(folder.path()).map_err(io::Error::other)?);
    let series = case.sets.series_count() as f64;
    let before = live_bytes();
    let index = Index::open(Arc::clone(&disk), ShardBits::for_count(SHARDS), case.options(), &[])
        .map_err(io::Error::other)?;
    let new_ns = resolve_all(&case.sets, &index);
    // New definitions wait in memory until the log takes them.
    for shard in 0..SHARDS as u16 {
        index.take_pending(ShardId(shard), &mut Vec::new());
    }
    let active_bytes = (live_bytes() - before) as f64 / series;
    let known_ns = resolve_some(&case.sets, &index);

    let begun = thread_cpu_ns();
    while let Some(job) = index.plan_seal() {
        let part = job.run(&*disk).map_err(io::Error::other)?;
        index.apply(&part).map_err(io::Error::other)?;
    }
    let seal_ns = (thread_cpu_ns() - begun) / series;
    let part = index.snapshot_part();
    drop(index);

    // The best of three, to exclude other load of the machine.
    let mut open_ms = f64::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        let index =
            Index::open(Arc::clone(&disk), ShardBits::for_count(SHARDS), case.options(), &[&part])
                .map_err(io::Error::other)?;
        open_ms = open_ms.min(begun.elapsed().as_secs_f64() * 1e3);
        drop(index);
    }
    let before = live_bytes();
    let index = Index::open(disk, ShardBits::for_count(SHARDS), case.options(), &[&part])
        .map_err(io::Error::other)?;
    let sealed_known_ns = resolve_some(&case.sets, &index);
    let view = index.view();
    assert_eq!(view.series_count() as f64, series, "sealing lost series");
    let queries = queries(case)
        .into_iter()
        .map(|(name, matchers)| {
            let (us, found) = best_us(|| laid_out(&view, &matchers, &Grouping::By(Vec::new())));
            Query { name, found, us }
        })
        .collect();
    let selectors = select(case, &view);
    Ok(Figures {
        series,
        new_ns,
        known_ns,
        active_bytes,
        seal_ns,
        // Measured last, so that structures built on demand are counted.
        sealed_heap_bytes: live_bytes().saturating_sub(before) as f64 / series,
        sealed_file_bytes: index.stats().segment_bytes as f64 / series,
        bytes_by_use: index
            .sealed_bytes_by_use()
            .iter()
            .map(|u| (u.0, u.1 as f64 / series))
            .collect(),
        open_ms,
        sealed_known_ns,
        queries,
        selectors,
    })
}

/// Defines every series; nanoseconds of CPU for each.
fn resolve_all(sets: &LabelSets, index: &Index) -> f64 {
    let mut out = Vec::new();
    each_batch(sets, 0..sets.group_count(), |batch| {
        index.resolve(batch, &mut out);
        assert!(out.iter().all(Result::is_ok));
    })
}

/// Finds the series of some groups, in no order; nanoseconds of CPU for each.
fn resolve_some(sets: &LabelSets, index: &Index) -> f64 {
    let mut out = Vec::new();
    each_batch(sets, some_groups(sets), |batch| {
        index.resolve(batch, &mut out);
        assert!(out.iter().all(Result::is_ok));
    })
}

fn some_groups(sets: &LabelSets) -> impl Iterator<Item = usize> {
    let (count, group_count) = (sets.group_count().min(2_000), sets.group_count() as u64);
    (0..count as u64).map(move |number| (scatter(number) % group_count) as usize)
}

/// Passes label sets to `take` in batches of a request's size; returns CPU nanoseconds of `take`
/// per series.
fn each_batch(
    sets: &LabelSets,
    groups: impl Iterator<Item = usize>,
    mut take: impl FnMut(&[Labels]),
) -> f64 {
    let mut batch = Vec::with_capacity(2 * BATCH);
    let (mut cpu_ns, mut count) = (0.0, 0);
    let mut hand_over = |batch: &mut Vec<Labels>| {
        let begun = thread_cpu_ns();
        take(batch);
        cpu_ns += thread_cpu_ns() - begun;
        count += batch.len();
        batch.clear();
    };
    for group in groups {
        sets.push_group(group, &mut batch);
        if batch.len() >= BATCH {
            hand_over(&mut batch);
        }
    }
    hand_over(&mut batch);
    cpu_ns / count as f64
}

/// The queries that are measured one by one.
fn queries(case: &Case) -> Vec<(&'static str, Vec<Matcher>)> {
    let regex =
        |name: &str, pattern: &str| Matcher::new(name, MatchOp::Regex, pattern).expect("a pattern");
    // A series with all the labels that are looked up.
    let (unique, prefix, infix, wide): (&str, &str, &str, &[&str]) = match case.kind {
        LabelSetKind::DevOps => ("hostname", "host_7.*", "h.*_[67]7.?", &["region", "os", "team"]),
        LabelSetKind::Kubernetes => ("pod", "service-7.*", ".*x2.*", &["namespace", "node"]),
        LabelSetKind::Recordings => ("instance", "node-7.*", ".*[67]7.example.*", &["job"]),
    };
    let series = case.sets.draw(7);
    let name = || Matcher::equal("__name__", series.metric_name());
    let equal = |label: &str| Matcher::equal(label, series.get(label).unwrap_or_default());
    vec![
        ("equality", vec![name(), equal(unique)]),
        ("a whole metric", vec![name()]),
        ("intersection", [name()].into_iter().chain(wide.iter().map(|l| equal(l))).collect()),
        ("prefix", vec![name(), regex(unique, prefix)]),
        ("regex", vec![name(), regex(unique, infix)]),
    ]
}

/// The number of matching series.
fn selected(view: &IndexView, matchers: &[Matcher]) -> usize {
    let context = QueryContext::unbounded();
    let found = view.select(matchers, &context).expect("not canceled");
    black_box(found).series_count(&context).expect("not canceled") as usize
}

/// The number of matching series, with the group, slot and key of each.
fn laid_out(view: &IndexView, matchers: &[Matcher], grouping: &Grouping) -> usize {
    let found = view.matches(matchers, grouping, &QueryContext::unbounded()).expect("not canceled");
    black_box(found).series_count()
}

/// The CPU time of the quickest of five, and its result.
fn best_us(mut run: impl FnMut() -> usize) -> (f64, usize) {
    let (mut best, mut found) = (f64::MAX, 0);
    for _ in 0..5 {
        let begun = thread_cpu_ns();
        found = run();
        best = best.min((thread_cpu_ns() - begun) / 1e3);
    }
    (best, found)
}

/// 1,000 random selectors. *Scanned* are the series of the most selective matcher: the candidates
/// that any index must examine.
fn select(case: &Case, view: &IndexView) -> Selected {
    let mut selected_all = Selected::default();
    let mut series_of = std::collections::HashMap::new();
    for number in 0..SELECTORS {
        let selector = selector(&case.sets, number);
        let grouping = Grouping::By(vec![selector.by.clone()]);
        let timed = |run: &dyn Fn() -> usize| {
            let begun = thread_cpu_ns();
            let found = run();
            ((thread_cpu_ns() - begun) / 1e3, found)
        };
        let select = || selected(view, &selector.matchers);
        let lay_out = || laid_out(view, &selector.matchers, &grouping);
        let (first, second) = (timed(&select), timed(&select));
        selected_all.us.push(first.0.min(second.0));
        let laid = (timed(&lay_out), timed(&lay_out));
        selected_all.laid_out_us.push(laid.0.0.min(laid.1.0));
        assert_eq!(laid.0.1, first.1, "{:?}", selector.matchers);
        selected_all.series.push(first.1 as f64);
        if first.1 == 0 {
            selected_all.empty += 1;
            continue;
        }
        let positive = selector.matchers.iter().filter(|matcher| !matcher.matches(""));
        let counts = positive.map(|matcher| {
            let count = || selected(view, std::slice::from_ref(matcher));
            *series_of.entry(format!("{matcher:?}")).or_insert_with(count)
        });
        let scanned = counts.min().unwrap_or(first.1);
        selected_all.scanned_per_result.push(scanned as f64 / first.1 as f64);
    }
    selected_all
}

/// The share of figures above a limit.
fn share_over(figures: &[f64], limit: f64) -> f64 {
    share(figures, |&figure| figure > limit)
}

fn share(figures: &[f64], is_it: impl Fn(&f64) -> bool) -> f64 {
    figures.iter().filter(|figure| is_it(figure)).count() as f64 / figures.len().max(1) as f64
}

/// The figure below which `share` of all are.
fn quantile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get(((sorted.len() as f64 * share) as usize).min(sorted.len().max(1) - 1))
        .copied()
        .unwrap_or(0.0)
}

/// Nested maps and the two dictionaries over the same label sets.
fn baseline(sets: &LabelSets) -> Baseline {
    let before = live_bytes();
    let mut maps = NestedMaps::default();
    let mut ids = Vec::new();
    let new_ns = each_batch(sets, 0..sets.group_count(), |batch| {
        batch.iter().for_each(|labels| {
            maps.resolve(labels, &mut ids);
        });
    });
    maps.shrink();
    let series = maps.series_count() as f64;
    let bytes = (live_bytes() - before) as f64 / series;
    let known_ns = each_batch(sets, some_groups(sets), |batch| {
        batch.iter().for_each(|labels| {
            maps.resolve(labels, &mut ids);
        });
    });
    let kind = sets.kind();
    println!("\n{} of {series} series", kind.name());
    dictionaries(&maps, kind);
    let case = Case {
        sets: LabelSets::new(kind, maps.series_count()).expect("made before"),
        kind,
        size: "",
        grouped: false,
    };
    let queries = queries(&case)
        .into_iter()
        .map(|(name, matchers)| {
            let (us, found) = best_us(|| black_box(maps.select(&matchers)).len());
            Query { name, found, us }
        })
        .collect();
    Baseline { bytes, new_ns, known_ns, queries }
}

fn dictionaries(maps: &NestedMaps, kind: LabelSetKind) {
    let series = maps.series_count() as f64;
    let keys = sorted(maps.pair_texts());
    let transducer = Transducer::new(&keys);
    let drawn: Vec<&Vec<u8>> =
        (0..200_000).map(|n| &keys[(scatter(n) % keys.len() as u64) as usize]).collect();
    let lookup_ns = |find: &dyn Fn(&[u8]) -> Option<u32>| {
        let begun = thread_cpu_ns();
        drawn.iter().for_each(|key| assert!(black_box(find(key)).is_some()));
        (thread_cpu_ns() - begun) / drawn.len() as f64
    };
    println!("  dictionaries of {} pairs: bytes per series, ns per lookup", keys.len());
    match DoubleArray::new(&keys) {
        Some(array) => println!(
            "    double array  {:8.4} {:8.0}",
            array.byte_count() as f64 / series,
            lookup_ns(&|key| array.find(key))
        ),
        None => println!("    double array  does not take these keys"),
    }
    let known: HashSet<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    println!(
        "    transducer    {:8.4} {:8.0}",
        transducer.byte_count() as f64 / series,
        lookup_ns(&|key| transducer.find(key))
    );
    println!(
        "    hash set      {:>8} {:8.0}",
        "-",
        lookup_ns(&|key| known.contains(key).then_some(0))
    );
    let (name, prefix, infix) = match kind {
        LabelSetKind::DevOps => ("hostname", "host_7", "h.*_[67]7.?"),
        LabelSetKind::Kubernetes => ("pod", "service-7", ".*x2.*"),
        LabelSetKind::Recordings => ("instance", "node-7", ".*[67]7.example.*"),
    };
    let (prefix_us, prefixed) = best_us(|| transducer.count_prefix(name, prefix));
    let (infix_us, infixed) = best_us(|| transducer.count_regex(name, infix));
    println!(
        "    transducer    {prefix_us:.0} us for {prefixed} values by prefix, {infix_us:.0} us for {infixed} by regex, \
         its compilation included"
    );
}

fn report(case: &Case, figures: &Figures, baseline: Option<&Baseline>, aims: &mut Vec<Aim>) {
    let Figures { series, selectors, .. } = figures;
    let sealed_bytes = figures.sealed_heap_bytes + figures.sealed_file_bytes;
    println!(
        "\n{}: {series} series in {} groups of label sets",
        case.name(),
        case.sets.group_count()
    );
    println!(
        "  bytes/series  active {:.1}, sealed {sealed_bytes:.3} (file {:.3}, heap {:.3}){}",
        figures.active_bytes,
        figures.sealed_file_bytes,
        figures.sealed_heap_bytes,
        beside(baseline, |b| format!("nested maps {:.1}", b.bytes))
    );
    let uses = figures.bytes_by_use.iter().map(|(what, bytes)| format!("{what} {bytes:.3}"));
    println!("    of the file {}", uses.collect::<Vec<_>>().join(", "));
    println!(
        "    random bits {:.3}, a lower bound for any encoding",
        case.sets.random_bits() / 8.0 / figures.series
    );
    println!(
        "  resolve ns    new {:.0}, known {:.0}, known when sealed {:.0}{}",
        figures.new_ns,
        figures.known_ns,
        figures.sealed_known_ns,
        beside(baseline, |b| format!("nested maps new {:.0}, known {:.0}", b.new_ns, b.known_ns))
    );
    println!(
        "  seal          {:.0} ns per series; open {:.2} ms",
        figures.seal_ns, figures.open_ms
    );
    for (idx, query) in figures.queries.iter().enumerate() {
        println!(
            "  {:16} {:9.1} us, {} series{}",
            query.name,
            query.us,
            query.found,
            beside(baseline, |b| format!("nested maps {:.1} us", b.queries[idx].us))
        );
        if let Some(baseline) = baseline {
            assert_eq!(query.found, baseline.queries[idx].found, "{}", query.name);
        }
    }
    println!(
        "  {SELECTORS} selectors; series: median {:.0}, 90% {:.0}",
        quantile(&selectors.series, 0.5),
        quantile(&selectors.series, 0.9)
    );
    for (state, us) in [("selected", &selectors.us), ("laid out", &selectors.laid_out_us)] {
        println!(
            "    {state}    {:.1}% within 1 ms, {:.1}% within 10 ms; us: median {:.0}, 80% {:.0}, 90% {:.0}, 99% {:.0}",
            (1.0 - share_over(us, 1e3)) * 100.0,
            (1.0 - share_over(us, 1e4)) * 100.0,
            quantile(us, 0.5),
            quantile(us, 0.8),
            quantile(us, 0.9),
            quantile(us, 0.99)
        );
    }
    println!(
        "  scanned/result  median {:.1}, 90% {:.1}; {:.1}% at most {SCANNED_PER_RESULT}; {} found nothing",
        quantile(&selectors.scanned_per_result, 0.5),
        quantile(&selectors.scanned_per_result, 0.9),
        share(&selectors.scanned_per_result, |&ratio| ratio <= SCANNED_PER_RESULT) * 100.0,
        selectors.empty
    );

    let name = case.name();
    let mut aim = |what: &str, figure: f64, at_most: f64| {
        aims.push(Aim { name: format!("{name}: {what}"), figure, at_most });
    };
    let (active_max, sealed_max) = if case.grouped { (40.0, 1.0) } else { (120.0, 20.0) };
    aim("B per active series", figures.active_bytes, active_max);
    aim("B per sealed series", sealed_bytes, sealed_max);
    if let Some(baseline) = baseline {
        // The baseline must be competitive.
        aim("B per series of nested maps", baseline.bytes, 120.0);
        aim("sealed / nested maps", sealed_bytes / baseline.bytes, 0.4);
    }
    if case.size == SIZES[1].0 {
        aim("ms to open", figures.open_ms, 50.0);
        for (state, us) in [("", &selectors.us), (", laid out", &selectors.laid_out_us)] {
            aim(&format!("share of selectors over 1 ms{state}"), share_over(us, 1e3), 0.2);
            aim(&format!("share of selectors over 10 ms{state}"), share_over(us, 1e4), 0.01);
        }
    }
}

fn beside(baseline: Option<&Baseline>, text: impl Fn(&Baseline) -> String) -> String {
    baseline.map(|baseline| format!("   | {}", text(baseline))).unwrap_or_default()
}

/// Cost of a new series in whole programs: our library, and servers by remote write.
fn creation(aims: &mut Vec<Aim>) -> io::Result<()> {
    const SERIES: usize = 400_000;
    println!("\ncreation of {SERIES} series, CPU of the whole process");
    let library_us = median((0..3).map(|_| library_us(SERIES)).collect::<io::Result<_>>()?);
    println!("  library          {library_us:.2} us per series, its first sample's cost taken off");
    aims.push(Aim {
        name: "creation: us by the library".to_owned(),
        figure: library_us,
        at_most: 3.0,
    });
    for program in [Program::Firn, Program::VictoriaMetrics] {
        if program.path().is_none() {
            println!("  {:16} not installed: `make deps`", program.name());
            continue;
        }
        let us =
            median((0..3).map(|_| remote_write_us(program, SERIES)).collect::<io::Result<_>>()?);
        println!(
            "  {:16} {us:.2} us per series over remote write, with its first sample",
            program.name()
        );
        if program == Program::Firn {
            let name = "creation: us over remote write".to_owned();
            aims.push(Aim { name, figure: us, at_most: 6.0 });
        }
    }
    Ok(())
}

/// Resolves new series and writes a sample of each, then another of each; the difference is the
/// cost of creation.
fn library_us(series_count: usize) -> io::Result<f64> {
    let folder = tempfile::tempdir()?;
    let sets = LabelSets::new(LabelSetKind::DevOps, series_count)?;
    let options = Options {
        index: IndexOptions { group_by: GroupBy::Labels(sets.group_by()), ..Default::default() },
        log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
        ..Options::default()
    };
    let env = local_env(folder.path()).map_err(io::Error::other)?;
    let db = Db::open(env, options).map_err(io::Error::other)?;
    let (mut rows, mut refs, mut labels) = (RowBatch::default(), Vec::new(), Vec::new());
    let (mut new_ns, mut known_ns) = (0.0, 0.0);
    let ts = db.now_ms() - 60_000;
    let mut count = 0;
    for group in 0..sets.group_count() {
        sets.push_group(group, &mut labels);
        if labels.len() < BATCH && group + 1 < sets.group_count() {
            continue;
        }
        count += labels.len();
        let begun = process_cpu_ns();
        refs.clear();
        for found in db.resolve(&labels) {
            refs.push(found.map_err(io::Error::other)?);
        }
        rows.clear();
        refs.iter().for_each(|&series| rows.push(series, ts, 1.0));
        db.write(&mut rows).map_err(io::Error::other)?;
        let between = process_cpu_ns();
        rows.clear();
        refs.iter().for_each(|&series| rows.push(series, ts + 15_000, 1.0));
        db.write(&mut rows).map_err(io::Error::other)?;
        new_ns += between - begun;
        known_ns += process_cpu_ns() - between;
        labels.clear();
    }
    Ok((new_ns - known_ns) / 1e3 / count as f64)
}

fn remote_write_us(program: Program, series_count: usize) -> io::Result<f64> {
    let server = program.start()?;
    let mut load = Load::new(series_count);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ts = now.unwrap_or_default().as_millis() as i64 - 60_000;
    let begun = server.cpu_s();
    load.scrape(server.address, program.write_path(), ts);
    Ok((server.cpu_s() - begun) * 1e6 / series_count as f64)
}
