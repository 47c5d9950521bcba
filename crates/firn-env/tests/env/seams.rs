//! The disks and buckets of this machine pass the suite that the simulated ones pass.

use std::fs;
use std::sync::Arc;

use firn_env::{Disk, FolderBucket, LocalDisk, MemoryDisk, OverlayDisk};
use firn_sim::conformance;

#[test]
fn a_local_disk_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    conformance::check_disk(&LocalDisk::open(folder.path().join("some/data")).unwrap());
}

#[test]
fn a_memory_disk_without_a_device_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    let disk = MemoryDisk::open(folder.path().join("log")).unwrap();
    conformance::check_disk(&disk);
    assert!(disk.is_direct() || disk.unit_bytes() == 8);
}

#[test]
fn an_overlay_passes_the_suite_and_keeps_the_files_below() {
    let folder = tempfile::tempdir().unwrap();
    let below = Arc::new(LocalDisk::open(folder.path()).unwrap());
    conformance::check_disk(&OverlayDisk::new(below, false));
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["LOCK"], "of the lock's own test");
}

#[test]
fn a_folder_bucket_passes_the_suite_and_leaves_only_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = FolderBucket::open(folder.path().join("slow")).unwrap();
    conformance::check_bucket(&bucket);
    let file_count = fs::read_dir(bucket.root().join(".firn-bucket")).unwrap().count();
    assert_eq!(file_count, 1, "only the lock remains");
}
