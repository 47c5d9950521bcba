//! Index segments on both tiers: the same bytes as a file here and as an object there.

use std::sync::Arc;

use firn_env::{Bucket, Disk, DiskFile, Env, OpenMode, RangeRequest};
use firn_index::Index;
use firn_model::{Budget, Error, ErrorKind, Result};

use crate::folder::Writer;
use crate::slow::description::{self, Description, index_part};

/// Folder of index segments, on both tiers.
pub(crate) const INDEX_FOLDER: &str = "index/";

/// Bytes of one request when a segment is downloaded or compared.
const COPY_BYTES: u64 = 4 << 20;
/// Free disk space after a download: logs and flushes need it. Two log segments.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// The end of a segment contains the checksums of everything before it.
const END_BYTES: u64 = 64;

/// An index segment on both tiers.
pub(crate) struct TieredSegment {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) key: String,
}

impl TieredSegment {
    /// `index/7.seg` of epoch 3 is the object `index/7-3.seg`: after a restore, numbers are used
    /// again.
    pub(crate) fn new(path: &str, bytes: u64, epoch: u64) -> TieredSegment {
        TieredSegment { path: path.to_owned(), bytes, key: segment_key(path, epoch) }
    }
}

/// Key of the object with the file of `path`, uploaded in `epoch`.
pub(crate) fn segment_key(path: &str, epoch: u64) -> String {
    let stem = path.strip_suffix(".seg").unwrap_or(path);
    format!("{stem}-{epoch}.seg")
}

/// The epoch in the key of a segment's object.
pub(crate) fn epoch_in_key(key: &str) -> Option<u64> {
    key.strip_suffix(".seg")?.rsplit_once('-')?.1.parse().ok()
}

/// The segments that a manifest names.
///
/// # Errors
/// As [`Description::index_files`].
pub(crate) fn named_segments(described: &Description) -> Result<Vec<TieredSegment>> {
    let files = described.index_files()?;
    Ok(files.iter().map(|(path, bytes, epoch)| TieredSegment::new(path, *bytes, *epoch)).collect())
}

/// Objects of index segments that the manifest does not name.
///
/// # Errors
/// `Unavailable`; `Corrupt` for a manifest that contradicts itself.
pub(crate) fn orphans(described: &Description, bucket: &dyn Bucket) -> Result<Vec<String>> {
    let segments = named_segments(described)?;
    let is_named = |key: &String| segments.iter().any(|segment| segment.key == *key);
    let objects = bucket.list(INDEX_FOLDER)?.into_iter().map(|object| object.key);
    Ok(objects.filter(|key| !is_named(key)).collect())
}

/// Compares all segments of a manifest byte by byte with the local files, and their lengths.
/// Returns an error and the path of each that differs.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn differing_segments(
    env: &Env,
    described: &Description,
) -> Result<Vec<(Error, String)>> {
    let mut differing = Vec::new();
    for segment in named_segments(described)? {
        // It may have been merged with others since.
        let Ok(file) = env.disk.open(&segment.path, OpenMode::Read) else { continue };
        if let Some((offset, what)) = difference(&*env.bucket, &*file, &segment)? {
            differing.push((Error::corrupt(&*segment.key, offset, what), segment.path));
        }
    }
    Ok(differing)
}

/// The first byte at which the object of a segment differs from its local file, and how.
fn difference(
    bucket: &dyn Bucket,
    file: &dyn DiskFile,
    segment: &TieredSegment,
) -> Result<Option<(u64, String)>> {
    let mut offset = 0;
    while offset < segment.bytes {
        let len = (segment.bytes - offset).min(COPY_BYTES);
        let mut here = vec![0; len as usize];
        file.read_at(offset, &mut here)?;
        match get_range(bucket, &segment.key, offset, len) {
            Ok(there) if *there == *here => offset += len,
            Err(e) if *e.kind() == ErrorKind::Unavailable => return Err(e),
            _ => return Ok(Some((offset, "the object differs from the local index file".into()))),
        }
    }
    let bytes = bucket.head(&segment.key)?.bytes;
    let what = format!("the object has {bytes} bytes, the manifest expects {}", segment.bytes);
    Ok((bytes != segment.bytes).then_some((segment.bytes, what)))
}

/// Uploads the local file of `path` again.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn upload_again(env: &Env, described: &Description, path: &str) -> Result<()> {
    for segment in named_segments(described)?.iter().filter(|segment| segment.path == path) {
        upload(env, segment)?;
    }
    Ok(())
}

/// Uploads a segment from its mapped file, because an index may be larger than memory.
///
/// # Errors
/// `Corrupt` for a file of another length; `Unavailable`.
pub(crate) fn upload(env: &Env, segment: &TieredSegment) -> Result<()> {
    let file = env.disk.open(&segment.path, OpenMode::Read)?.map()?;
    let bytes = file.len() as u64;
    if bytes != segment.bytes {
        let what = format!("the index file has {bytes} bytes, expected {}", segment.bytes);
        return Err(Error::corrupt(&*segment.path, bytes.min(segment.bytes), what));
    }
    // No other process uses this key, and a second put has the same bytes.
    env.bucket.put_file(&segment.key, file).map(|_| ())
}

/// For each segment, whether file and object are the same: they are compared by their ends, which
/// contain the checksums of the rest.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn are_same(env: &Env, segments: &[TieredSegment]) -> Result<Vec<bool>> {
    let end_of = |segment: &TieredSegment| {
        let len = segment.bytes.min(END_BYTES);
        RangeRequest { key: segment.key.clone(), offset: segment.bytes - len, len }
    };
    let local = |request: &RangeRequest, segment: &TieredSegment| {
        let mut end = vec![0; request.len as usize];
        let file = env.disk.open(&segment.path, OpenMode::Read).ok()?;
        file.read_at(request.offset, &mut end).ok()?;
        (file.len().ok()? == segment.bytes).then_some(end)
    };
    let ends: Vec<(RangeRequest, Option<Vec<u8>>)> = segments
        .iter()
        .map(|segment| (end_of(segment), segment))
        .map(|(request, segment)| {
            let end = local(&request, segment);
            (request, end)
        })
        .collect();
    // Only objects with a local file are requested.
    let here = ends.iter().filter(|end| end.1.is_some()).map(|end| end.0.clone());
    let mut answers = env.bucket.get_ranges(&here.collect::<Vec<_>>()).into_iter();
    let same = ends.into_iter().map(|(_, end)| {
        let Some(end) = end else { return Ok(false) };
        match answers.next() {
            Some(Ok(there)) => Ok(*there == *end),
            Some(Err(e)) if *e.kind() == ErrorKind::Unavailable => Err(e),
            // The object is missing or has another length.
            _ => Ok(false),
        }
    });
    same.collect()
}

/// The index segments that `described` names and that the folder lacks. They fit on the disk.
///
/// # Errors
/// `Unavailable` if they do not fit; those of both tiers.
pub(crate) fn missing_segments(env: &Env, described: &Description) -> Result<Vec<TieredSegment>> {
    let segments = named_segments(described)?;
    let is_here = are_same(env, &segments)?;
    let missing = segments.into_iter().zip(is_here).filter(|(_, is_here)| !is_here);
    let missing: Vec<TieredSegment> = missing.map(|(segment, _)| segment).collect();
    check_space(env, &missing)?;
    Ok(missing)
}

/// Refuses to fill the disk, as the manifest of another database, or one from an attacker, could.
fn check_space(env: &Env, segments: &[TieredSegment]) -> Result<()> {
    let bytes = segments.iter().fold(0, |sum: u64, segment| sum.saturating_add(segment.bytes));
    // Where the free space is unknown, failing writes reveal a full disk.
    let free_bytes = env.disk.free_bytes().unwrap_or(u64::MAX);
    if bytes == 0 || bytes.saturating_add(FREE_BYTES_MIN) <= free_bytes {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the index files that the slow tier's manifest names have {bytes} bytes, but the disk has \
         {free_bytes} bytes free, and {} MiB must stay free: free disk space, and check that \
         --slow-tier names the right database",
        FREE_BYTES_MIN >> 20
    )))
}

/// Downloads `segments`. Returns their bytes.
///
/// # Errors
/// Those of both tiers.
pub(crate) fn download_all(env: &Env, segments: &[TieredSegment]) -> Result<u64> {
    env.disk.create_dir("index")?;
    env.disk.sync_dir("")?;
    let mut bytes = 0;
    for segment in segments {
        download(env, segment)?;
        bytes += segment.bytes;
    }
    env.disk.sync_dir("index")?;
    Ok(bytes)
}

/// Downloads the index file of `path`, which `parts` name, into the folder with `mark`. `false` if
/// the slow tier's manifest does not name the same file.
///
/// # Errors
/// Those of both tiers.
pub(crate) fn download_lost(
    env: &Env,
    mark: u64,
    parts: &[&[u8]],
    path: &str,
    budget: &Budget,
) -> Result<bool> {
    let is_ours = |writer: Writer| writer.mark == mark;
    let described = description::read(&*env.bucket, budget)?.filter(|found| is_ours(found.writer));
    let Some(described) = described else { return Ok(false) };
    if !Index::name_same(parts, &[&index_part(&described.state)], path)? {
        return Ok(false);
    }
    let segments = named_segments(&described)?;
    let Some(segment) = segments.iter().find(|segment| segment.path == path) else {
        return Ok(false);
    };
    match env.bucket.head(&segment.key) {
        Ok(info) if info.bytes == segment.bytes => {}
        Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
        _ => return Ok(false),
    }
    check_space(env, std::slice::from_ref(segment))?;
    download(env, segment)?;
    env.disk.sync_dir("index")?;
    Ok(true)
}

/// A reader of ranges of the object with the index file of `path`, for a caller that can verify
/// the bytes. It returns `None` if there is no such object.
pub(crate) fn object_reader<'a>(
    bucket: &'a dyn Bucket,
    described: Option<&Description>,
    path: &str,
) -> impl Fn(u64, u64) -> Option<Arc<[u8]>> + 'a + use<'a> {
    let segments = described.and_then(|described| named_segments(described).ok());
    let segment = segments.into_iter().flatten().find(|segment| segment.path == path);
    move |offset, len| get_range(bucket, &segment.as_ref()?.key, offset, len).ok()
}

/// Writes an object as a local file.
fn download(env: &Env, segment: &TieredSegment) -> Result<()> {
    let TieredSegment { path, bytes, key } = segment;
    let disk: &dyn Disk = &*env.disk;
    match disk.remove(path) {
        Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let file = disk.open(path, OpenMode::Create)?;
    let mut offset = 0;
    while offset < *bytes {
        let len = (bytes - offset).min(COPY_BYTES);
        let piece = get_range(&*env.bucket, key, offset, len)?;
        if piece.len() as u64 != len {
            return Err(Error::unavailable(format!(
                "{key}: a range has {} bytes, expected {len}; retry",
                piece.len()
            )));
        }
        file.write_at(offset, &piece)?;
        offset += len;
    }
    file.sync()
}

fn get_range(bucket: &dyn Bucket, key: &str, offset: u64, len: u64) -> Result<Arc<[u8]>> {
    let request = RangeRequest { key: key.to_owned(), offset, len };
    let missing = || Err(Error::internal(format!("{key}: the bucket returned no range")));
    bucket.get_ranges(&[request]).pop().unwrap_or_else(missing)
}
