//! Targets of files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use firn_model::{Error, Pool, Reservation, Result};

use super::{discovered, discovered_bytes, heap_bytes};
use crate::config::discovery::{FileDiscovery, TargetGroup};
use crate::config::{Files, glob};
use crate::pool::DiscoveredGroup;

/// The last good groups of each file. The caller refreshes them when a file changes, and each
/// `refresh_interval`.
#[derive(Debug)]
pub struct FileTargets {
    config: FileDiscovery,
    files: BTreeMap<PathBuf, FileList>,
}

/// The groups of a file with their memory.
#[derive(Debug)]
struct FileList {
    groups: Vec<DiscoveredGroup>,
    _held: Reservation,
}

impl FileTargets {
    /// No groups yet.
    pub fn new(config: FileDiscovery) -> FileTargets {
        FileTargets { config, files: BTreeMap::new() }
    }

    /// The time between two reads of files that have not changed.
    pub fn refresh_ms(&self) -> u64 {
        self.config.refresh_interval.as_ms()
    }

    /// The files that exist now, in order.
    pub fn paths(&self, files: &dyn Files) -> Vec<PathBuf> {
        let found = |pattern: &_| find(pattern, files);
        let mut paths: Vec<PathBuf> = self.config.files.iter().flat_map(found).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// Reads `paths` again. A file that cannot be read keeps its groups; a file that was removed
    /// loses them. Returns the files with a mistake, each with its reason.
    pub fn refresh(&mut self, paths: &[PathBuf], files: &dyn Files) -> Vec<(PathBuf, Error)> {
        let mut errors = Vec::new();
        let mut read = BTreeMap::new();
        for path in paths {
            match read_list(path, files) {
                Ok(list) => {
                    read.insert(path.clone(), list);
                }
                Err(error) => {
                    errors.push((path.clone(), error));
                    if let Some(list) = self.files.remove(path) {
                        read.insert(path.clone(), list);
                    }
                }
            }
        }
        self.files = read;
        errors
    }

    /// An upper estimate of the memory of [`FileTargets::groups`].
    pub fn groups_bytes(&self) -> usize {
        let bytes = self.files.values().map(|list| heap_bytes(&list.groups));
        bytes.fold(0, usize::saturating_add)
    }

    /// The groups of all files.
    pub fn groups(&self) -> Vec<DiscoveredGroup> {
        self.files.values().flat_map(|list| &list.groups).cloned().collect()
    }
}

fn find(pattern: &crate::config::FilePath, files: &dyn Files) -> Vec<PathBuf> {
    // A pattern with a mistake matches nothing.
    glob(files, pattern.as_str()).unwrap_or_default()
}

fn read_list(path: &Path, files: &dyn Files) -> Result<FileList> {
    let (groups, _groups_held) = TargetGroup::read_held(path, files)?;
    let path = path.to_string_lossy();
    let meta = [("__meta_filepath", &*path)];
    let bytes = discovered_bytes(&groups, &meta);
    let held = files.budget().reserve(Pool::Cache, bytes as u64)?;
    let groups = groups.iter().map(|group| discovered(group, &meta)).collect();
    Ok(FileList { groups, _held: held })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use super::*;
    use crate::config::Config;

    /// Files of one folder.
    #[derive(Default)]
    struct ListFolder(RefCell<BTreeMap<String, String>>);

    impl ListFolder {
        fn write(&self, name: &str, text: &str) {
            self.0.borrow_mut().insert(name.to_owned(), text.to_owned());
        }
    }

    impl Files for ListFolder {
        fn read(&self, path: &Path) -> io::Result<String> {
            let name = path.file_name().unwrap().to_str().unwrap();
            self.0.borrow().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Ok(self.0.borrow().keys().cloned().collect())
        }
    }

    struct FileWorld {
        folder: ListFolder,
        targets: FileTargets,
    }

    impl FileWorld {
        fn new(files: &str) -> FileWorld {
            let text =
                format!("scrape_configs: [{{job_name: j, file_sd_configs: [{{files: {files}}}]}}]");
            let loaded = Config::parse(&text, &|_| None).unwrap();
            let config = loaded.config.scrape_configs[0].discoveries.file[0].clone();
            FileWorld { folder: ListFolder::default(), targets: FileTargets::new(config) }
        }

        /// Refreshes; the number of errors and all addresses.
        fn refresh(&mut self) -> (usize, Vec<String>) {
            let paths = self.targets.paths(&self.folder);
            let errors = self.targets.refresh(&paths, &self.folder);
            let groups = self.targets.groups();
            let targets = groups.iter().flat_map(|group| &group.targets);
            let address =
                |target: &crate::config::LabelSet| target.get("__address__").unwrap().into();
            (errors.len(), targets.map(address).collect())
        }
    }

    #[test]
    fn a_broken_file_keeps_its_last_good_list() {
        let mut world = FileWorld::new("['a*.yml', b.json]");
        assert_eq!(world.refresh(), (0, vec![]));
        world.folder.write("a1.yml", "- {targets: [h:1, h:2], labels: {x: y}}\n- {targets: [h:3]}");
        world.folder.write("b.json", r#"[{"targets": ["h:4"]}]"#);
        world.folder.write("c.yml", "- {targets: [h:9]}");
        let all = vec!["h:1".to_owned(), "h:2".into(), "h:3".into(), "h:4".into()];
        assert_eq!(world.refresh(), (0, all.clone()));
        let first = &world.targets.groups()[0];
        assert_eq!(first.labels.get("x"), Some("y"));
        assert_eq!(first.labels.get("__meta_filepath"), Some("a1.yml"));
        // Half a file, an unknown key, a null group.
        for broken in ["- {targets: [h:1", "- {target: [h:1]}", "- null"] {
            world.folder.write("a1.yml", broken);
            assert_eq!(world.refresh(), (1, all.clone()), "{broken}");
        }
        world.folder.write("a1.yml", "- {targets: [h:5]}");
        assert_eq!(world.refresh(), (0, vec!["h:5".into(), "h:4".into()]));
        // A removed file has no targets; one that comes back broken has no old list.
        world.folder.0.borrow_mut().remove("a1.yml");
        assert_eq!(world.refresh(), (0, vec!["h:4".into()]));
        world.folder.write("a1.yml", "- null");
        assert_eq!(world.refresh(), (1, vec!["h:4".into()]));
    }
}
