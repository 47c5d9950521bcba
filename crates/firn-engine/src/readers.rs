//! Readers of the log: their stored positions, and the part of the log that is kept for them.
//!
//! A reader follows all streams of the log ([`crate::LogReader`]). Its position is in a file of its
//! own, so that it survives a restart; `docs/formats/log-reader.md` has the bytes. Segments that a
//! reader has not finished with are kept beyond the floors of recovery, up to a limit. Beyond it
//! the oldest are dropped and counted: an endpoint that is down for long never fills the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::frame::{FileFormat, HEADER_BYTES, open_block, seal_block};
use firn_codec::varint::take_u64;
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, LogPosition, Result};
use parking_lot::Mutex;

use crate::Engine;
use crate::rooms::Rooms;
use crate::stats::Counter;

const FORMAT: FileFormat = FileFormat { kind: *b"LPOS", version: 1, oldest: 1 };
const FOLDER: &str = "readers";
const SLOT_UNIT: usize = 512;
const NAME_LEN_MAX: usize = 64;

/// The stored state of a reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderProgress {
    /// Per stream: the reader is done with everything up to here.
    pub done: Vec<LogPosition>,
    /// Per stream: it may have processed entries up to here. A reader that processes the same range
    /// again after a crash knows its end.
    pub tried: Vec<LogPosition>,
    /// A number of the reader.
    pub note: u64,
}

/// All readers that have a stored position.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    known: Mutex<BTreeMap<String, StoredReader>>,
    dropped_bytes: Counter,
    /// One sentence for each file that was damaged when the database opened.
    damage: Vec<String>,
}

#[derive(Debug)]
struct StoredReader {
    file: Arc<dyn DiskFile>,
    /// The number of the slot that was written last.
    number: u64,
    progress: ReaderProgress,
    /// Dropped bytes up to here were counted.
    counted: Vec<LogPosition>,
}

impl Readers {
    /// Reads the stored positions of a log with `stream_count` streams. A file that is damaged, no
    /// file, or of another number of streams is removed: its reader begins at the end.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    pub(crate) fn open(disk: &dyn Disk, stream_count: usize) -> Result<Readers> {
        let (mut known, mut damage) = (BTreeMap::new(), Vec::new());
        for name in disk.list(FOLDER)? {
            let path = path(&name);
            let opened = disk.open(&path, OpenMode::Write);
            match opened.and_then(|file| read(&*file, &path).map(|found| (file, found))) {
                Ok((file, (number, progress))) if progress.done.len() == stream_count => {
                    let counted = progress.done.clone();
                    known.insert(name, StoredReader { file, number, progress, counted });
                }
                Err(error) if *error.kind() == ErrorKind::Unavailable => return Err(error),
                other => {
                    let lost = format!(
                        "the position of log reader {name} is lost, it continues at the end"
                    );
                    match other.err() {
                        Some(error) => {
                            tracing::error!("{lost}: {error}");
                            damage.push(format!("{lost}: {error}"));
                        }
                        None => tracing::error!("{lost}: the number of log streams changed"),
                    }
                    disk.remove(&path)?;
                }
            }
        }
        Ok(Readers { known: Mutex::new(known), dropped_bytes: Counter::default(), damage })
    }

    /// The damage that [`Readers::open`] found and removed.
    pub(crate) fn damage(&self) -> &[String] {
        &self.damage
    }

    /// The positions that the log must keep, one per stream.
    pub(crate) fn holds(&self, stream_count: usize) -> Vec<LogPosition> {
        let known = self.known.lock();
        let hold = |idx| {
            let done = known.values().filter_map(|reader| reader.progress.done.get(idx));
            done.min().copied().unwrap_or(LogPosition(u64::MAX))
        };
        (0..stream_count).map(hold).collect()
    }

    /// Bytes of log that were dropped before a reader was done with them.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes.get()
    }

    /// Counts and logs the entries up to `dropped`, one position per stream, that readers lack.
    fn note_dropped(&self, dropped: &[LogPosition]) {
        let mut known = self.known.lock();
        for (name, reader) in &mut *known {
            let mut bytes = 0u64;
            let streams = reader.progress.done.iter().zip(&mut reader.counted).zip(dropped);
            for ((done, counted), &dropped) in streams {
                let from = (*counted).max(*done);
                bytes = bytes.saturating_add(dropped.0.saturating_sub(from.0));
                *counted = dropped.max(from);
            }
            if bytes > 0 {
                self.dropped_bytes.add(bytes);
                tracing::error!(
                    "dropped {bytes} bytes of log that reader {name} has not read: the log kept \
                     for readers has its maximum size, or the disk is full"
                );
            }
        }
    }
}

impl Engine {
    /// Lets the log keep the entries that readers need, and drops the others below the floors. The
    /// caller holds the lane of flushes.
    pub(crate) fn purge_log(&self, floors: &[LogPosition]) -> Result<()> {
        let Engine { rooms, readers, .. } = self;
        self.readers.keep(rooms);
        rooms.log.purge(floors)?;
        readers.note_dropped(&rooms.log.dropped());
        Ok(())
    }

    /// Drops segments that readers no longer need.
    pub(crate) fn release_log(&self) -> Result<()> {
        if self.rooms.log.held_bytes() == 0 {
            return Ok(());
        }
        let _no_flush = self.flusher.hold();
        self.purge_log(&self.ledger.cut().floors)
    }

    /// If the disk of the log is full, requests a flush that frees a part of the log, and drops the
    /// log that is kept for readers: writing comes first.
    pub(crate) fn sacrifice_log(&self) {
        let Engine { rooms, ledger, readers, .. } = self;
        let wanted = rooms.options.log.segment_bytes.saturating_mul(2);
        let is_full = rooms.env.log_disk().free_bytes().is_ok_and(|free| free < wanted);
        if is_full && rooms.log.has_closed_segments() {
            // It needs less space than a new segment, and frees closed ones.
            rooms.wakeup.request_flush();
        }
        if is_full && rooms.log.held_bytes() > 0 {
            let _no_flush = self.flusher.hold();
            rooms.log.hold(&[], 0);
            // The files that cannot be removed now are removed by the next purge.
            let _ = rooms.log.purge(&ledger.cut().floors);
            rooms.log.remove_spares();
            readers.note_dropped(&rooms.log.dropped());
        }
    }

    /// Forgets the positions of all readers but those of `names`: the log is no longer kept for
    /// them, and one that comes back begins at the end.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    pub fn keep_log_readers(&self, names: &[String]) -> Result<()> {
        let mut known = self.readers.known.lock();
        let gone: Vec<String> =
            known.keys().filter(|name| !names.contains(name)).cloned().collect();
        for name in gone {
            self.rooms.env.disk.remove(&path(&name))?;
            known.remove(&name);
        }
        Ok(())
    }

    /// The stored state of reader `name`. A new reader begins at the end of the log, which is
    /// stored.
    pub(crate) fn reader_progress(&self, name: &str) -> Result<ReaderProgress> {
        let Engine { rooms, readers, .. } = self;
        let is_name = |name: &str| {
            let is_char = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_char)
        };
        if !is_name(name) {
            return Err(Error::invalid(format!("a log reader cannot have the name {name:?}")));
        }
        let ends: Vec<LogPosition> = rooms.log_ends().into_iter().map(|(_, end)| end).collect();
        let mut known = readers.known.lock();
        if let Some(reader) = known.get_mut(name) {
            // A power loss may have taken entries back that were processed before their sync.
            let progress = &mut reader.progress;
            for (position, &end) in progress.done.iter_mut().zip(&ends) {
                *position = end.min(*position);
            }
            return Ok(progress.clone());
        }
        let progress = ReaderProgress { done: ends.clone(), tried: ends, note: 0 };
        let file = create(&*rooms.env.disk, name, &progress)?;
        let counted = progress.done.clone();
        let stored = StoredReader { file, number: 1, progress: progress.clone(), counted };
        known.insert(name.to_owned(), stored);
        Ok(progress)
    }

    /// Stores the state of reader `name`; durable on return.
    pub(crate) fn store_progress(&self, name: &str, progress: &ReaderProgress) -> Result<()> {
        let next = |reader: &mut StoredReader| {
            reader.number = reader.number.saturating_add(1);
            (Arc::clone(&reader.file), reader.number)
        };
        let forgotten = || Error::closed(format!("log reader {name} was forgotten"));
        let next = self.readers.known.lock().get_mut(name).map(next);
        let (file, number) = next.ok_or_else(forgotten)?;
        write(&*file, number, progress)?;
        let mut known = self.readers.known.lock();
        known.get_mut(name).ok_or_else(forgotten)?.progress = progress.clone();
        Ok(())
    }
}

impl Readers {
    fn keep(&self, rooms: &Rooms) {
        let holds = self.holds(rooms.streams().count());
        rooms.log.hold(&holds, rooms.options.reader_log_bytes_max);
    }
}

fn path(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

fn create(disk: &dyn Disk, name: &str, progress: &ReaderProgress) -> Result<Arc<dyn DiskFile>> {
    disk.create_dir(FOLDER)?;
    disk.sync_dir("")?;
    let path = path(name);
    match disk.remove(&path) {
        Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(&path, OpenMode::Create)?;
    file.write_at(0, &FORMAT.header())?;
    write(&*file, 0, progress)?;
    write(&*file, 1, progress)?;
    disk.sync_dir(FOLDER)?;
    Ok(file)
}

/// Bytes of a slot for a log with `stream_count` streams.
fn slot_bytes(stream_count: usize) -> usize {
    (4 + 3 * 8 + 16 * stream_count).next_multiple_of(SLOT_UNIT)
}

/// Writes slot `number % 2`: the other one stays whole whatever happens.
fn write(file: &dyn DiskFile, number: u64, progress: &ReaderProgress) -> Result<()> {
    let mut bytes = Vec::new();
    for value in [number, progress.done.len() as u64, progress.note] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    for position in progress.done.iter().chain(&progress.tried) {
        bytes.extend_from_slice(&position.0.to_le_bytes());
    }
    let slot_bytes = slot_bytes(progress.done.len());
    bytes.resize(slot_bytes - 4, 0);
    seal_block(0, &mut bytes);
    let slot = (number % 2) as usize;
    file.write_at((SLOT_UNIT + slot * slot_bytes) as u64, &bytes)?;
    file.sync()
}

/// The newest whole slot: its number and its content.
fn read(file: &dyn DiskFile, path: &str) -> Result<(u64, ReaderProgress)> {
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    // Two slots of a log with the most streams.
    if len < SLOT_UNIT || len > SLOT_UNIT + 2 * slot_bytes(usize::from(u16::MAX)) {
        return Err(Error::corrupt(path, 0, format!("{len} bytes are not log positions")));
    }
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    FORMAT.check(path, &bytes[..HEADER_BYTES])?;
    let slots = &bytes[SLOT_UNIT..];
    let slot_bytes = slots.len() / 2;
    let slots = slots.chunks_exact(slot_bytes.max(1)).take(2);
    let whole = slots.filter_map(|slot| decode(open_block(path, 0, slot).ok()?).ok());
    let newest = whole.max_by_key(|(number, _)| *number);
    newest.ok_or_else(|| Error::corrupt(path, SLOT_UNIT as u64, "both copies are damaged"))
}

fn decode(mut slot: &[u8]) -> Result<(u64, ReaderProgress)> {
    let number = take_u64(&mut slot, "number of log positions")?;
    let count = take_u64(&mut slot, "number of log streams")?;
    let note = take_u64(&mut slot, "note of a log reader")?;
    if count > u64::from(u16::MAX) {
        return Err(Error::corrupt("log positions", 8, "too many streams"));
    }
    let mut positions = |_| take_u64(&mut slot, "log position").map(LogPosition);
    let done = (0..count).map(&mut positions).collect::<Result<Vec<_>>>()?;
    let tried = (0..count).map(&mut positions).collect::<Result<Vec<_>>>()?;
    Ok((number, ReaderProgress { done, tried, note }))
}

#[cfg(test)]
mod tests {
    use firn_sim::{Faults, SimDisk};

    use super::*;

    fn progress(position: u64) -> ReaderProgress {
        ReaderProgress {
            done: vec![LogPosition(position), LogPosition(2 * position)],
            tried: vec![LogPosition(position + 1), LogPosition(u64::MAX)],
            note: position,
        }
    }

    #[test]
    fn the_last_whole_slot_counts_whatever_a_crash_tears() {
        let disk = SimDisk::new(Faults::new(1));
        let file = create(&disk, "a", &progress(1)).unwrap();
        write(&*file, 2, &progress(2)).unwrap();
        write(&*file, 3, &progress(3)).unwrap();
        assert_eq!(read(&*file, "a").unwrap(), (3, progress(3)));
        // Slot 1 is torn: number 2 is in slot 0.
        let torn_at = SLOT_UNIT + slot_bytes(2) + 40;
        disk.damage(&path("a"), |bytes| bytes[torn_at] ^= 1).unwrap();
        assert_eq!(read(&*file, "a").unwrap(), (2, progress(2)));
        disk.damage(&path("a"), |bytes| bytes[SLOT_UNIT] ^= 1).unwrap();
        assert!(read(&*file, "a").is_err());
        let readers = Readers::open(&disk, 2).unwrap();
        assert!(readers.known.lock().is_empty(), "a damaged file is the same as none");
        assert!(disk.open(&path("a"), OpenMode::Read).is_err());
    }

    #[test]
    fn positions_of_another_number_of_streams_are_dropped() {
        let disk = SimDisk::new(Faults::new(1));
        create(&disk, "a", &progress(1)).unwrap();
        assert_eq!(Readers::open(&disk, 2).unwrap().known.lock().len(), 1);
        assert_eq!(Readers::open(&disk, 3).unwrap().known.lock().len(), 0);
    }

    #[test]
    fn the_slowest_reader_holds_the_log() {
        let disk = SimDisk::new(Faults::new(1));
        let none = Readers::open(&disk, 2).unwrap();
        assert_eq!(none.holds(2), [LogPosition(u64::MAX); 2]);
        create(&disk, "a", &progress(100)).unwrap();
        create(&disk, "b", &progress(400)).unwrap();
        let readers = Readers::open(&disk, 2).unwrap();
        assert_eq!(readers.holds(2), [LogPosition(100), LogPosition(200)]);
        assert_eq!(readers.dropped_bytes(), 0);
        readers.note_dropped(&[LogPosition(0), LogPosition(500)]);
        assert_eq!(readers.dropped_bytes(), 300);
        readers.note_dropped(&[LogPosition(150), LogPosition(600)]);
        assert_eq!(readers.dropped_bytes(), 300 + 50 + 100);
    }
}
