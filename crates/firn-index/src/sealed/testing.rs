//! Helpers of tests: segment files and parts of them on a simulated disk.

use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_sim::{Faults, SimDisk};

use crate::sealed::format::blocks::Blocks;
use crate::sealed::format::footer::{self, Contents, ContentsSize, FileWriter};

/// An empty file.
pub(crate) fn file() -> Arc<dyn DiskFile> {
    SimDisk::new(Faults::new(1)).open("segment", OpenMode::Create).expect("create")
}

/// A file of these sections and arrays, opened.
pub(crate) fn written(sections: &[&[u8]], arrays: &[&[u64]]) -> (Blocks, Contents) {
    let file = file();
    let mut writer = FileWriter::new(&*file);
    sections.iter().for_each(|bytes| writer.push_section(bytes).expect("write"));
    arrays.iter().for_each(|values| writer.push_array(values).expect("write"));
    writer.finish().expect("finish");
    let size = ContentsSize { counts: 0, sections: sections.len(), arrays: arrays.len() };
    footer::open(file.map().expect("map"), "segment", size).expect("open")
}
