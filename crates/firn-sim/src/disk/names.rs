//! Folders and names, and the changes of them that a crash may undo.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use firn_model::{Error, Result};

use super::sectors::{FileBytes, Survival};
use crate::Rng;

/// A file or a folder, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u64);

const ROOT: NodeId = NodeId(0);

/// All files and folders of a disk.
#[derive(Debug)]
pub(super) struct Names {
    /// The size of the sectors of files.
    sector_bytes: u64,
    nodes: BTreeMap<NodeId, Node>,
    node_count: u64,
    /// Changes since the last sync of their folder, in order.
    pending: Vec<NameChange>,
    /// Nodes without a name are dropped once there are this many nodes.
    nodes_max: usize,
}

/// The first value of `nodes_max`.
const NODES_MAX: usize = 64;

#[derive(Debug)]
enum Node {
    File(Arc<Mutex<FileBytes>>),
    Folder(Folder),
}

#[derive(Debug, Default)]
struct Folder {
    current: BTreeMap<String, NodeId>,
    durable: BTreeMap<String, NodeId>,
}

/// One change, applied as a whole or not at all.
#[derive(Clone, Debug)]
struct NameChange {
    node: NodeId,
    /// The removed name, if it still refers to `node`.
    removed: Option<(NodeId, String)>,
    /// The new name; replaces its previous meaning.
    new: Option<(NodeId, String)>,
}

impl Names {
    pub(super) fn new(sector_bytes: u64) -> Names {
        Names {
            sector_bytes,
            nodes: BTreeMap::from([(ROOT, Node::Folder(Folder::default()))]),
            node_count: 1,
            pending: Vec::new(),
            nodes_max: NODES_MAX,
        }
    }

    pub(super) fn file(&self, path: &str) -> Result<Arc<Mutex<FileBytes>>> {
        match self.find(path).and_then(|node| self.nodes.get(&node)) {
            Some(Node::File(bytes)) => Ok(Arc::clone(bytes)),
            Some(Node::Folder(_)) => Err(Error::invalid(format!("{path}: is a folder"))),
            None => Err(Error::not_found(format!("{path}: no such file"))),
        }
    }

    pub(super) fn create(&mut self, path: &str) -> Result<Arc<Mutex<FileBytes>>> {
        let (folder, name) = self.parent(path)?;
        if self.find(path).is_some() {
            return Err(Error::new(
                firn_model::ErrorKind::Conflict,
                format!("{path}: exists already"),
            ));
        }
        let bytes = Arc::new(Mutex::new(FileBytes::new(self.sector_bytes)));
        let node = self.add(Node::File(Arc::clone(&bytes)));
        self.change(NameChange { node, removed: None, new: Some((folder, name.to_owned())) });
        Ok(bytes)
    }

    pub(super) fn create_dir(&mut self, path: &str) -> Result<()> {
        let mut folder = ROOT;
        for name in parts(path) {
            folder = match self.entry(folder, name) {
                Some(node) if self.is_folder(node) => node,
                Some(_) => return Err(Error::invalid(format!("{path}: {name} is a file"))),
                None => {
                    let node = self.add(Node::Folder(Folder::default()));
                    let new = Some((folder, name.to_owned()));
                    self.change(NameChange { node, removed: None, new });
                    node
                }
            };
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &str) -> Vec<String> {
        match self.find(path).and_then(|node| self.nodes.get(&node)) {
            Some(Node::Folder(folder)) => folder.current.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.file(from)?;
        let (from_folder, from_name) = self.parent(from)?;
        let (to_folder, to_name) = self.parent(to)?;
        if self.find(to).is_some_and(|node| self.is_folder(node)) {
            return Err(Error::invalid(format!("{to}: is a folder")));
        }
        if let Some(node) = self.entry(from_folder, from_name) {
            let removed = Some((from_folder, from_name.to_owned()));
            let new = Some((to_folder, to_name.to_owned()));
            if removed != new {
                self.change(NameChange { node, removed, new });
            }
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> Result<()> {
        self.file(path)?;
        let (folder, name) = self.parent(path)?;
        if let Some(node) = self.entry(folder, name) {
            self.change(NameChange { node, removed: Some((folder, name.to_owned())), new: None });
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &str) -> Result<()> {
        let folder = self
            .find(path)
            .filter(|&node| self.is_folder(node))
            .ok_or_else(|| Error::not_found(format!("{path}: no such folder")))?;
        let (settled, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|change: &NameChange| change.folder() == Some(folder));
        self.pending = pending;
        let settled: Vec<NameChange> = settled;
        settled.iter().for_each(|change| self.apply(change, |folder| &mut folder.durable));
        if self.nodes.len() > self.nodes_max {
            self.drop_unreachable();
            self.nodes_max = NODES_MAX.max(2 * self.nodes.len());
        }
        Ok(())
    }

    /// Applies a power loss: of the unsynced changes, those that `survival` keeps become durable;
    /// every file keeps the surviving versions of its sectors.
    pub(super) fn crash(&mut self, survival: Survival, rng: &mut Rng) {
        self.drop_unreachable();
        let pending = std::mem::take(&mut self.pending);
        // Half of the time in order, as in a journal; otherwise any subset, as POSIX allows.
        // Changes of one file stay in order, so it never has two names.
        let in_order = rng.chance(0.5);
        let mut lost: BTreeSet<NodeId> = BTreeSet::new();
        for change in &pending {
            let keeps = survival.keeps(rng);
            let follows_loss = lost.contains(&change.node) || (in_order && !lost.is_empty());
            if keeps && !follows_loss {
                self.apply(change, |folder| &mut folder.durable);
            } else {
                lost.insert(change.node);
            }
        }
        for node in self.nodes.values_mut() {
            match node {
                Node::Folder(folder) => folder.current = folder.durable.clone(),
                Node::File(bytes) => super::locked(bytes).crash(survival, rng),
            }
        }
        self.drop_unreachable();
    }

    /// Sum of the lengths of all files with a name.
    pub(super) fn used_bytes(&self) -> u64 {
        let folders = self.nodes.values().filter_map(|node| match node {
            Node::Folder(folder) => Some(folder),
            Node::File(_) => None,
        });
        folders
            .flat_map(|folder| folder.current.values())
            .filter_map(|node| match self.nodes.get(node) {
                Some(Node::File(bytes)) => Some(super::locked(bytes).len()),
                _ => None,
            })
            .sum()
    }

    /// Paths of all files, sorted.
    pub(super) fn files(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_files(ROOT, "", &mut paths);
        paths.sort();
        paths
    }

    fn collect_files(&self, folder: NodeId, prefix: &str, paths: &mut Vec<String>) {
        let Some(Node::Folder(folder)) = self.nodes.get(&folder) else { return };
        for (name, &node) in &folder.current {
            let path = format!("{prefix}{name}");
            if self.is_folder(node) {
                self.collect_files(node, &format!("{path}/"), paths);
            } else {
                paths.push(path);
            }
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.node_count);
        self.node_count += 1;
        self.nodes.insert(id, node);
        id
    }

    fn change(&mut self, change: NameChange) {
        self.apply(&change, |folder| &mut folder.current);
        self.pending.push(change);
    }

    fn apply(
        &mut self,
        change: &NameChange,
        side: impl Fn(&mut Folder) -> &mut BTreeMap<String, NodeId>,
    ) {
        if let Some((folder, name)) = &change.removed
            && let Some(Node::Folder(folder)) = self.nodes.get_mut(folder)
            && side(folder).get(name) == Some(&change.node)
        {
            side(folder).remove(name);
        }
        if let Some((folder, name)) = &change.new
            && let Some(Node::Folder(folder)) = self.nodes.get_mut(folder)
        {
            side(folder).insert(name.clone(), change.node);
        }
    }

    fn find(&self, path: &str) -> Option<NodeId> {
        parts(path).try_fold(ROOT, |folder, name| self.entry(folder, name))
    }

    fn entry(&self, folder: NodeId, name: &str) -> Option<NodeId> {
        match self.nodes.get(&folder) {
            Some(Node::Folder(folder)) => folder.current.get(name).copied(),
            _ => None,
        }
    }

    fn is_folder(&self, node: NodeId) -> bool {
        matches!(self.nodes.get(&node), Some(Node::Folder(_)))
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(NodeId, &'a str)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        match self.find(folder).filter(|&node| self.is_folder(node)) {
            Some(node) => Ok((node, name)),
            None => Err(Error::not_found(format!("{path}: folder {folder} does not exist"))),
        }
    }

    /// Drops nodes without a durable or current name; open files keep their bytes.
    fn drop_unreachable(&mut self) {
        let mut reachable: Vec<NodeId> = vec![ROOT];
        reachable.extend(self.pending.iter().map(|change| change.node));
        for node in self.nodes.values() {
            if let Node::Folder(folder) = node {
                reachable.extend(folder.current.values().chain(folder.durable.values()));
            }
        }
        reachable.sort_unstable();
        self.nodes.retain(|node, _| reachable.binary_search(node).is_ok());
    }
}

impl NameChange {
    /// The folder with the sync that makes this durable: that of the new name, otherwise of the old
    /// one.
    fn folder(&self) -> Option<NodeId> {
        self.new.as_ref().or(self.removed.as_ref()).map(|name| name.0)
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}
