//! Cost of a group's static form: bytes per sample, and the time to read five minutes of one
//! member, for the head's runs and chunks and for the tuples of XOR-coded values that Heracles
//! (PVLDB 2021), sections 3.1.1 and 3.1.2, keeps in memory.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use firn_codec::bits::{BitReader, BitWriter, bit_width, packed_bytes};
use firn_codec::{Chunk, Effort, GroupColumns, MemberColumn, SeqRange, encode_run};
use firn_model::{Column, ColumnBatch, ColumnValues, Slot, TimeRange};

use crate::fleet::{Fleet, Kind, SERIES_PER_HOST};

/// The name of this part on the command line.
pub const NAME: &str = "static form of a group";

/// Two hours, every 15 s.
const ENTRIES: usize = 480;
const STEP_MS: i64 = 15_000;
/// Five minutes.
const READ_ENTRIES: usize = 20;
const READS: usize = 20_000;
const TUPLES: [usize; 3] = [8, 16, 32];
const RUNS: [usize; 3] = [8, 32, ENTRIES];

/// A form of a group in memory.
trait Form {
    fn bytes(&self) -> usize;

    /// Appends the values of entries `first..first + READ_ENTRIES` of a member.
    fn read(&self, member: usize, first: usize, out: &mut MemberColumn);
}

/// Runs all arms over a host's counters and over measurements with all their digits, and prints the
/// table.
///
/// # Errors
/// If an arm does not return its input.
pub fn run() -> io::Result<()> {
    println!(
        "\n{NAME}: {SERIES_PER_HOST} members, {ENTRIES} entries; a read is {READ_ENTRIES} entries of one member"
    );
    println!(
        "{:24} {:>16} {:>12} {:>16} {:>12}",
        "", "counts B/sample", "ns a read", "noise B/sample", "ns a read"
    );
    let sets = [counts(), noise()];
    let mut table: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for set in &sets {
        let mut row = 0;
        let mut measured = |name: String, form: &dyn Form| -> io::Result<()> {
            let figures = measure(form, set)?;
            match table.get_mut(row) {
                Some((_, known)) => known.push(figures),
                None => table.push((name, vec![figures])),
            }
            row += 1;
            Ok(())
        };
        for entries in RUNS {
            measured(format!("runs of {entries}"), &Runs::new(set, entries))?;
        }
        for size in TUPLES {
            measured(format!("XOR tuples of {size}"), &XorTuples::new(set, size))?;
        }
    }
    for (name, figures) in table {
        let cells: Vec<String> =
            figures.iter().map(|(bytes, ns)| format!("{bytes:>16.3} {ns:>12.0}")).collect();
        println!("{name:24} {}", cells.join(" "));
    }
    Ok(())
}

fn counts() -> Vec<Vec<f64>> {
    let mut fleet = Fleet::new(Kind::Grouped, SERIES_PER_HOST);
    let mut columns = vec![Vec::new(); SERIES_PER_HOST];
    for _ in 0..ENTRIES {
        fleet.next_round(0, |series, _, value| columns[series].push(value));
    }
    columns
}

fn noise() -> Vec<Vec<f64>> {
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..SERIES_PER_HOST).map(|_| (0..ENTRIES).map(|_| next()).collect()).collect()
}

/// Bytes a sample and nanoseconds a read.
fn measure(form: &dyn Form, columns: &[Vec<f64>]) -> io::Result<(f64, f64)> {
    let mut out = MemberColumn::default();
    let place =
        |read: usize| (read * 7_919 % columns.len(), read * 104_729 % (ENTRIES - READ_ENTRIES));
    for read in 0..columns.len() {
        let (member, first) = place(read);
        out.clear();
        form.read(member, first, &mut out);
        let want = &columns[member][first..first + READ_ENTRIES];
        if out.values != want || out.times.first() != Some(&(first as i64 * STEP_MS)) {
            return Err(io::Error::other("an arm does not return its input"));
        }
    }
    let start = Instant::now();
    for read in 0..READS {
        let (member, first) = place(read);
        out.clear();
        form.read(member, first, &mut out);
        black_box(&out.values);
    }
    let ns = start.elapsed().as_nanos() as f64 / READS as f64;
    Ok((form.bytes() as f64 / (columns.len() * ENTRIES) as f64, ns))
}

/// The head's form: runs of a fixed number of rows, found by their first time.
struct Runs {
    entries: usize,
    runs: Vec<Vec<u8>>,
}

impl Runs {
    fn new(columns: &[Vec<f64>], entries: usize) -> Runs {
        let run = |first: usize| {
            let times = (first..first + entries).map(|entry| entry as i64 * STEP_MS).collect();
            let column = |(slot, values): (usize, &Vec<f64>)| Column {
                slot: Slot(slot as u32),
                key: 0,
                time_idx: 0,
                presence: None,
                values: ColumnValues::F64(values[first..first + entries].to_vec()),
            };
            let columns = columns.iter().enumerate().map(column).collect();
            let batch = ColumnBatch { times: vec![times], columns };
            let mut out = Vec::new();
            let columns = GroupColumns { batch, seq: SeqRange::default() };
            encode_run(0, &columns, Effort::Fast, &mut out);
            out
        };
        Runs { entries, runs: (0..ENTRIES).step_by(entries).map(run).collect() }
    }
}

impl Form for Runs {
    fn bytes(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    fn read(&self, member: usize, first: usize, out: &mut MemberColumn) {
        let range =
            TimeRange::new(first as i64 * STEP_MS, (first + READ_ENTRIES - 1) as i64 * STEP_MS);
        for run in &self.runs[first / self.entries..=(first + READ_ENTRIES - 1) / self.entries] {
            let chunk = Chunk::open_run(run, 0).expect("our own run");
            chunk.append_one(Slot(member as u32), range, out).expect("our own run");
        }
    }
}

/// Heracles' form in memory: a tuple of times with, for each member, the bit offset of its tuple of
/// values.
struct XorTuples {
    size: usize,
    /// First time of each tuple.
    times: Vec<i64>,
    members: Vec<Member>,
    bytes: usize,
}

struct Member {
    first: u64,
    values: Vec<u8>,
    starts: Vec<usize>,
}

impl XorTuples {
    fn new(columns: &[Vec<f64>], size: usize) -> XorTuples {
        let members: Vec<Member> = columns.iter().map(|values| Member::new(values, size)).collect();
        let times: Vec<i64> = (0..ENTRIES).step_by(size).map(|e| e as i64 * STEP_MS).collect();
        // A time tuple: its first time, deltas of two bytes, and the starts of all members in as
        // many bits as the largest.
        let index_bytes = |tuple: usize| {
            let width = members.iter().map(|member| bit_width(member.starts[tuple] as u64)).max();
            8 + 2 * (size - 1) + 1 + packed_bytes(members.len(), width.unwrap_or(0))
        };
        let bytes = (0..times.len()).map(index_bytes).sum::<usize>()
            + members.iter().map(|member| 8 + member.values.len()).sum::<usize>();
        XorTuples { size, times, members, bytes }
    }
}

impl Member {
    fn new(values: &[f64], size: usize) -> Member {
        let first = values[0].to_bits();
        let (mut out, mut starts) = (Vec::new(), Vec::new());
        for tuple in values.chunks(size) {
            starts.push(out.len() * 8);
            // Each starts at a byte boundary here; the padding costs half a byte per tuple on
            // average.
            let mut writer = BitWriter::new(&mut out);
            let (mut base, mut window) = (first, None);
            for value in tuple {
                let xor = value.to_bits() ^ base;
                base = value.to_bits();
                write_xor(xor, &mut window, &mut writer);
            }
            writer.finish();
        }
        Member { first, values: out, starts }
    }
}

/// Leading zeros and length of the significant bits of the value before in this tuple.
type Window = Option<(u32, u32)>;

/// No difference: one bit. Inside the window: two bits and the window's length. Else two bits, 5 +
/// 6 for a new window, and its length.
fn write_xor(xor: u64, window: &mut Window, out: &mut BitWriter<'_>) {
    if xor == 0 {
        return out.write(0, 1);
    }
    out.write(1, 1);
    let (leading, trailing) = (xor.leading_zeros().min(31), xor.trailing_zeros());
    let fresh = (leading, 64 - leading - trailing);
    let fits = window.filter(|&(known, len)| known <= leading && 64 - known - len <= trailing);
    match fits {
        // A window that is much too large would stay for the tuple's rest (Figure 8).
        Some((known, len)) if len <= fresh.1 + 11 => {
            out.write(0, 1);
            out.write(xor >> (64 - known - len), len);
        }
        _ => {
            out.write(1, 1);
            out.write(u64::from(fresh.0), 5);
            out.write(u64::from(fresh.1 - 1), 6);
            out.write(xor >> trailing, fresh.1);
            *window = Some(fresh);
        }
    }
}

fn read_xor(window: &mut Window, input: &mut BitReader<'_>) -> firn_model::Result<u64> {
    if input.read(1)? == 0 {
        return Ok(0);
    }
    if input.read(1)? == 1 {
        *window = Some((input.read(5)? as u32, input.read(6)? as u32 + 1));
    }
    let (leading, len) = window.unwrap_or((0, 64));
    Ok(input.read(len)? << (64 - leading - len))
}

impl Form for XorTuples {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, member: usize, first: usize, out: &mut MemberColumn) {
        let member = &self.members[member];
        let start = first as i64 * STEP_MS;
        let end = (first + READ_ENTRIES) as i64 * STEP_MS;
        let from = self.times.partition_point(|&time| time <= start) - 1;
        for (tuple, &time) in self.times.iter().enumerate().skip(from) {
            if time >= end {
                break;
            }
            let mut input = BitReader::new(&member.values[member.starts[tuple] / 8..]);
            let (mut value, mut window) = (member.first, None);
            for entry in 0..self.size as i64 {
                value ^= read_xor(&mut window, &mut input).expect("our own tuple");
                let time = time + entry * STEP_MS;
                if (start..end).contains(&time) {
                    out.push(time, f64::from_bits(value));
                }
            }
        }
    }
}
