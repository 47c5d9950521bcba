//! The files of alerts that were sent: one for each group of rules, named by the group's key.

use std::collections::BTreeSet;

use firn_codec::frame::FileFormat;
use firn_env::Disk;
use firn_model::{Reservation, Result};

use crate::Engine;
use crate::kept_file::{KeptFile, remove_if_present};

const FOLDER: &str = "alerts";
const FILE: KeptFile = KeptFile {
    format: FileFormat { kind: *b"ALRT", version: 1, oldest: 1 },
    // Far above the limit of the server.
    bytes_max: 1 << 30,
};

impl Engine {
    /// Replaces the stored alerts of the group `key`; durable on return.
    ///
    /// # Errors
    /// `Closed`, and `Unavailable` if the disk fails or is full; the old alerts are then kept.
    pub fn save_alerts(&self, key: u64, payload: &[u8]) -> Result<()> {
        self.rooms.wakeup.check_open()?;
        save(&*self.rooms.env.disk, key, payload)
    }

    /// The stored alerts of the group `key`; `None` if none were stored. Their memory is reserved
    /// in `held`.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, `Invalid` for a newer version, `Busy` without memory,
    /// `Unavailable`.
    pub fn load_alerts(&self, key: u64, held: &mut Reservation) -> Result<Option<Vec<u8>>> {
        FILE.load(&*self.rooms.env.disk, FOLDER, &name(key), |bytes| held.cover(bytes))
    }

    /// Removes the stored alerts of all groups but `keys`. A crash may bring them back.
    ///
    /// # Errors
    /// `Closed`, and `Unavailable` if the disk fails.
    pub fn keep_alerts(&self, keys: &BTreeSet<u64>) -> Result<()> {
        self.rooms.wakeup.check_open()?;
        keep(&*self.rooms.env.disk, keys)
    }
}

fn save(disk: &dyn Disk, key: u64, payload: &[u8]) -> Result<()> {
    if !disk.list("")?.iter().any(|name| name == FOLDER) {
        disk.create_dir(FOLDER)?;
        disk.sync_dir("")?;
    }
    FILE.save(disk, FOLDER, &name(key), payload)
}

fn keep(disk: &dyn Disk, keys: &BTreeSet<u64>) -> Result<()> {
    let kept: BTreeSet<String> = keys.iter().map(|key| name(*key)).collect();
    for found in disk.list(FOLDER)? {
        // Includes the files that interrupted replacements have left.
        if !kept.contains(found.strip_suffix(".new").unwrap_or(&found)) {
            remove_if_present(disk, &format!("{FOLDER}/{found}"))?;
        }
    }
    Ok(())
}

fn name(key: u64) -> String {
    format!("{key:016x}")
}

#[cfg(test)]
mod tests {
    use firn_env::OpenMode;
    use firn_sim::{Faults, SimDisk};

    use super::*;

    fn load(disk: &dyn Disk, key: u64) -> Option<Vec<u8>> {
        FILE.load(disk, FOLDER, &name(key), |_| Ok(())).unwrap()
    }

    /// A power failure after each save: the file of each group is the one of its last save.
    #[test]
    fn alerts_of_each_group_survive_a_crash() {
        let disk = SimDisk::new(Faults::new(1));
        assert_eq!(load(&disk, 1), None);
        for round in 0..3_u8 {
            for key in [1, 2, u64::MAX] {
                save(&disk, key, &[round, key.to_le_bytes()[0]]).unwrap();
                disk.crash();
                disk.restart();
                assert_eq!(load(&disk, key), Some(vec![round, key.to_le_bytes()[0]]));
            }
        }
        disk.open("alerts/0000000000000003.new", OpenMode::Create).unwrap();
        keep(&disk, &BTreeSet::from([2])).unwrap();
        assert_eq!(disk.list(FOLDER).unwrap(), ["0000000000000002"]);
        keep(&disk, &BTreeSet::new()).unwrap();
        assert_eq!(load(&disk, 2), None);
    }
}
