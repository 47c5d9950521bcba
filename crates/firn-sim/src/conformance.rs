//! One suite of rules for every disk and bucket, real or simulated.
//!
//! Tests call it with an empty disk or bucket; a violation panics and names the expected behaviour.
//! A real disk cannot be crashed, so crashes are tested on the simulated one only.

use std::collections::BTreeSet;
use std::sync::Arc;

use firn_model::{ErrorKind, Result};

use firn_env::{Bucket, Disk, OpenMode, PutMode, RangeRequest};

/// Checks every rule of [`Disk`] and [`firn_env::DiskFile`] on an empty disk.
///
/// # Panics
/// At the first violation.
pub fn check_disk(disk: &dyn Disk) {
    check_names(disk);
    check_bytes(disk);
    check_room(disk);
    check_lock(disk);
}

/// Checks every rule of [`Bucket`] on an empty bucket, which is empty again on return.
///
/// # Panics
/// At the first violation.
pub fn check_bucket(bucket: &dyn Bucket) {
    check_missing(bucket);
    check_ranges(bucket);
    check_conditions(bucket);
    check_listing(bucket);
    let keys: Vec<String> =
        bucket.list("").expect("list all").into_iter().map(|info| info.key).collect();
    bucket.delete(&keys).expect("delete all");
    assert!(bucket.list("").expect("list all").is_empty(), "deleted objects are not listed");
}

fn check_names(disk: &dyn Disk) {
    assert_eq!(disk.list("no/such/folder").expect("list a missing folder"), [""; 0]);
    disk.create_dir("names/deep/er").expect("create_dir makes parents");
    disk.create_dir("names/deep/er").expect("create_dir again");
    for name in ["b", "a"] {
        disk.open(&format!("names/{name}"), OpenMode::Create).expect("create");
    }
    assert_eq!(disk.list("names").expect("list"), ["a", "b", "deep"], "names, sorted");
    expect(disk.open("names/a", OpenMode::Create), &ErrorKind::Conflict, "names/a");
    expect(disk.open("names/c", OpenMode::Read), &ErrorKind::NotFound, "names/c");
    expect(disk.open("names/c", OpenMode::Write), &ErrorKind::NotFound, "names/c");
    expect(disk.open("nofolder/c", OpenMode::Create), &ErrorKind::NotFound, "nofolder/c");
    expect(disk.remove("names/c"), &ErrorKind::NotFound, "names/c");
    expect(disk.rename("names/c", "names/d"), &ErrorKind::NotFound, "names/c");
    for path in ["/etc", "../x", "a//b", "./a"] {
        expect(disk.open(path, OpenMode::Create), &ErrorKind::Invalid, path);
    }

    let file = disk.open("names/a", OpenMode::Write).expect("open");
    file.write_at(0, b"new").expect("write");
    disk.rename("names/a", "names/b").expect("rename over an existing file");
    disk.sync_dir("names").expect("sync_dir");
    disk.sync_dir("").expect("sync_dir of the root");
    assert_eq!(disk.list("names").expect("list"), ["b", "deep"]);
    let renamed = disk.open("names/b", OpenMode::Read).expect("open");
    disk.remove("names/b").expect("remove");
    let mut bytes = [0; 3];
    renamed.read_at(0, &mut bytes).expect("an open file outlives its name");
    assert_eq!(&bytes, b"new");
    expect(disk.sync_dir("nofolder"), &ErrorKind::NotFound, "nofolder");
}

fn check_bytes(disk: &dyn Disk) {
    let file = disk.open("bytes", OpenMode::Create).expect("create");
    assert!(file.is_empty().expect("is_empty"));
    file.write_at(10, b"tail").expect("write past the end");
    file.write_at(0, b"head").expect("write");
    file.write_at(2, b"").expect("write nothing");
    assert_eq!(file.len().expect("len"), 14);
    let mut bytes = [9; 14];
    file.read_at(0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"head\0\0\0\0\0\0tail", "a gap reads as zeros");
    let empty = disk.open("empty", OpenMode::Create).expect("create");
    assert!(empty.map().expect("map an empty file").is_empty());
    let mapped = file.map().expect("map");
    disk.rename("bytes", "moved").expect("rename");
    disk.remove("moved").expect("remove");
    drop(file);
    assert_eq!(&mapped[..], b"head\0\0\0\0\0\0tail", "a map outlives name and handle");
    let file = disk.open("bytes", OpenMode::Create).expect("create");
    file.write_at(0, b"head\0\0\0\0\0\0tail").expect("write");
    file.read_at(14, &mut []).expect("read nothing at the end");
    let past_end = ErrorKind::Corrupt { file: String::new(), offset: 11 };
    expect(file.read_at(11, &mut [0; 4]), &past_end, "bytes");
    file.sync().expect("sync");
    let reader = disk.open("bytes", OpenMode::Read).expect("open");
    // Also for empty ranges and past the end.
    [(0, 14), (3, 0), (10, 1 << 40)].iter().for_each(|&(at, len)| reader.will_read(at, len));
    reader.read_at(10, &mut bytes[..4]).expect("read");
    assert_eq!(&bytes[..4], b"tail");
    bytes.fill(0);
    let is_here = reader.read_cached(10, &mut bytes[..4]);
    assert!(!is_here || &bytes[..4] == b"tail", "a cached read returns the stored bytes");
    assert!(!reader.read_cached(11, &mut [0; 4]), "the file ends before");
    assert!(reader.write_at(0, b"x").is_err(), "a reader does not write");
    if let Some(stamp) = reader.stamp().expect("stamp") {
        assert_eq!(stamp.len(), 14);
        assert_eq!(reader.stamp().expect("stamp"), Some(stamp), "nothing has changed it");
        file.write_at(3, b"t").expect("write");
        assert_ne!(reader.stamp().expect("stamp"), Some(stamp), "it was written to");
    }
}

fn check_room(disk: &dyn Disk) {
    let file = disk.open("room", OpenMode::Create).expect("create");
    file.write_at(0, b"kept").expect("write");
    file.preallocate(100_000).expect("preallocate");
    file.preallocate(50_000).expect("preallocate less than is there");
    assert_eq!(file.len().expect("len"), 100_000);
    let mut bytes = vec![9; 100_000];
    file.read_at(0, &mut bytes).expect("read");
    assert!(bytes.starts_with(b"kept") && bytes[4..].iter().all(|&byte| byte == 0));
    assert!(disk.free_bytes().expect("free_bytes") > 0);
}

fn check_lock(disk: &dyn Disk) {
    let lock = disk.lock().expect("lock");
    expect(disk.lock(), &ErrorKind::Busy { retry_after_ms: 0 }, "");
    drop(lock);
    drop(disk.lock().expect("lock after its release"));
}

fn check_missing(bucket: &dyn Bucket) {
    assert!(bucket.list("").expect("list").is_empty(), "the bucket must be empty at first");
    expect(bucket.head("no/such"), &ErrorKind::NotFound, "no/such");
    let answers = bucket.get_ranges(&[range("no/such", 0, 1)]);
    assert_eq!(answers.len(), 1);
    expect(answers.into_iter().next().expect("one answer"), &ErrorKind::NotFound, "no/such");
    bucket.delete(&["no/such".to_owned()]).expect("a missing object is no error");
    bucket.delete(&[]).expect("delete nothing");
    assert!(bucket.get_ranges(&[]).is_empty());
    for key in ["", "/a", "a//b", "../a"] {
        expect(bucket.put(key, bytes(b"x"), PutMode::Overwrite), &ErrorKind::Invalid, key);
    }
}

fn check_ranges(bucket: &dyn Bucket) {
    let content: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let info = bucket.put("ranges/a", bytes(&content), PutMode::Overwrite).expect("put");
    assert_eq!((info.key.as_str(), info.bytes), ("ranges/a", 100_000));
    assert_eq!(bucket.head("ranges/a").expect("head"), info);
    bucket.put("ranges/empty", bytes(b""), PutMode::Create).expect("put an empty object");
    assert_eq!(bucket.head("ranges/empty").expect("head").bytes, 0);

    // Many overlapping ranges in any order, some invalid: each has its own result at its index.
    let mut requests: Vec<RangeRequest> =
        (0..50).map(|at| range("ranges/a", (at * 7_919) % 90_000, 1 + at * 100)).collect();
    requests.push(range("ranges/a", 0, 100_000));
    requests.push(range("ranges/a", 5, 0));
    let good = requests.len();
    requests.push(range("ranges/a", 99_999, 2));
    requests.push(range("ranges/a", 100_001, 1));
    requests.push(range("ranges/a", u64::MAX, 2));
    requests.push(range("ranges/a", 7, u64::MAX));
    requests.push(range("ranges/a", 8, u64::MAX - 8));
    requests.push(range("ranges/b", 0, 1));
    let answers = bucket.get_ranges(&requests);
    assert_eq!(answers.len(), requests.len());
    for (idx, (request, answer)) in requests.iter().zip(answers).enumerate() {
        let past_end = ErrorKind::Corrupt { file: request.key.clone(), offset: request.offset };
        if idx < good {
            let (start, len) = (request.offset as usize, request.len as usize);
            let found = answer.unwrap_or_else(|e| panic!("{request:?}: {e}"));
            assert!(*found == content[start..start + len], "wrong bytes for {request:?}");
        } else if request.key == "ranges/a" {
            expect(answer, &past_end, "ranges/a");
        } else {
            expect(answer, &ErrorKind::NotFound, "ranges/b");
        }
    }
}

fn check_conditions(bucket: &dyn Bucket) {
    let put = |content: &[u8], mode| bucket.put("conditions/a", bytes(content), mode);
    let missing = PutMode::IfVersion("no-such-version".to_owned());
    expect(put(b"0", missing.clone()), &ErrorKind::Conflict, "conditions/a");
    let first = put(b"one", PutMode::Create).expect("create");
    expect(put(b"one", PutMode::Create), &ErrorKind::Conflict, "conditions/a");
    expect(put(b"0", missing), &ErrorKind::Conflict, "conditions/a");
    let second = put(b"two", PutMode::IfVersion(first.version.clone())).expect("replace");
    assert_ne!(first.version, second.version, "another put, another version");
    expect(put(b"0", PutMode::IfVersion(first.version)), &ErrorKind::Conflict, "conditions/a");
    assert_eq!(bucket.head("conditions/a").expect("head"), second);
    let third = put(b"three", PutMode::Overwrite).expect("overwrite");
    expect(put(b"0", PutMode::IfVersion(second.version)), &ErrorKind::Conflict, "conditions/a");
    let found = bucket.get_ranges(&[range("conditions/a", 0, 5)]).remove(0).expect("get");
    assert_eq!(&*found, b"three", "a refused put changes nothing");
    assert_eq!(bucket.list("conditions/").expect("list"), [third]);
}

fn check_listing(bucket: &dyn Bucket) {
    let keys = ["listing/10", "listing/9", "listing/9.x", "listing/sub/a", "listingx", "listing/z"];
    for key in keys {
        bucket.put(key, bytes(key.as_bytes()), PutMode::Create).expect("put");
    }
    for prefix in ["listing/", "listing/9", "listing/sub", "listing", "lis", "listing/sub/a", "x"] {
        let expected: BTreeSet<&str> =
            keys.iter().copied().filter(|key| key.starts_with(prefix)).collect();
        let found = bucket.list(prefix).expect("list");
        let found_keys: Vec<&str> = found.iter().map(|info| info.key.as_str()).collect();
        assert_eq!(found_keys, expected.into_iter().collect::<Vec<_>>(), "prefix {prefix:?}");
        for info in found {
            assert_eq!(info.bytes, info.key.len() as u64);
            assert_eq!(bucket.head(&info.key).expect("head"), info, "list and head agree");
        }
    }
    let deleted = ["listing/9".to_owned(), "no/such".to_owned(), "listing/sub/a".to_owned()];
    bucket.delete(&deleted).expect("delete");
    assert_eq!(bucket.list("listing/").expect("list").len(), 3);
    expect(bucket.head("listing/9"), &ErrorKind::NotFound, "listing/9");
}

fn range(key: &str, offset: u64, len: u64) -> RangeRequest {
    RangeRequest { key: key.to_owned(), offset, len }
}

fn bytes(content: &[u8]) -> Arc<[u8]> {
    Arc::from(content)
}

/// `result` must be an error of this kind (offsets are compared, file names and times are not) with
/// `name` in its text.
fn expect<T>(result: Result<T>, kind: &ErrorKind, name: &str) {
    let Err(error) = result else { panic!("{name}: {kind:?} expected, no error found") };
    let is_same = match (error.kind(), kind) {
        (ErrorKind::Corrupt { offset: found, .. }, ErrorKind::Corrupt { offset, .. }) => {
            found == offset
        }
        (ErrorKind::Busy { .. }, ErrorKind::Busy { .. }) => true,
        (found, kind) => found == kind,
    };
    assert!(is_same, "{name}: {kind:?} expected, found {error:?}");
    assert!(error.to_string().contains(name), "{name} is not named: {error}");
}
