//! Simulated disk that loses its power: replays the recorded changes of a run up to a step and computes what
//! survives.
//!
//! Only synced data survives: the bytes of a file by an fsync of the file, its name by an fsync of its folder. Real
//! file systems keep more, so a run that is safe here is safe there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::{Random, Workspace, files_below};

/// Files by path. Unchanged contents are shared between states.
pub type State = BTreeMap<String, Arc<Vec<u8>>>;

#[derive(Clone, Debug)]
pub struct Change {
    kind: String,
    path: String,
    /// New name of a rename or link.
    to: String,
    /// Offset of a write, or the new length.
    offset: usize,
    bytes: Vec<u8>,
}

/// Data that survives a power cut in addition to synced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// None.
    OnlySynced,
    /// Every name, so that a rename survives and its bytes do not.
    AllNames,
    /// Every byte, under the old names.
    AllBytes,
    /// Some of the names, in order, and some of the bytes; the rest of a file's length is zeros.
    Some {
        /// Seed of the choice.
        seed: u64,
    },
    /// Like `Some`, with each folder's names chosen independently; only a file renamed between folders is never lost
    /// in between.
    Apart {
        /// Seed of the choice.
        seed: u64,
    },
}

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Arc<Vec<u8>>,
    synced: Arc<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(usize),
    Folder(usize),
}

type Names = BTreeMap<String, Node>;

/// Rename from one folder to another.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// Length of the history after it.
    when: usize,
    /// `None` once this side is synced.
    from: Option<usize>,
    to: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: Vec<File>,
    /// Current and synced names of every folder; the first is the root.
    folders: Vec<(Names, Names)>,
    /// Names of all folders after each name change that some folder has not synced yet.
    history: Vec<Vec<Names>>,
    moves: Vec<Move>,
}

/// Parses a record of the interposer.
pub fn changes(record: &[u8]) -> Vec<Change> {
    let mut rest = record;
    let mut changes = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        rest = &rest[end + 1..];
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        let mut change = Change {
            kind: words[0].to_owned(),
            path: words[1].to_owned(),
            to: String::new(),
            offset: 0,
            bytes: Vec::new(),
        };
        match words[0] {
            "rename" | "link" => words[2].clone_into(&mut change.to),
            "truncate" => change.offset = number(2),
            "write" => {
                change.offset = number(2);
                change.bytes = rest[..number(3)].to_vec();
                rest = &rest[number(3)..];
            }
            _ => {}
        }
        changes.push(change);
    }
    changes
}

impl Disk {
    /// Creates a disk with the synced content of a folder.
    pub fn from_folder(folder: &Path) -> Self {
        let mut disk = Self { folders: vec![Default::default()], ..Self::default() };
        let mut paths = Vec::new();
        let mut open = vec![folder.to_owned()];
        while let Some(path) = open.pop() {
            for entry in fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path.clone());
                }
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
            let node = if path.is_dir() {
                disk.folders.push(Default::default());
                Node::Folder(disk.folders.len() - 1)
            } else {
                let bytes = Arc::new(fs::read(&path).unwrap());
                disk.files.push(File { synced: Arc::clone(&bytes), bytes });
                Node::File(disk.files.len() - 1)
            };
            disk.put(name, node);
        }
        disk.sync_everything();
        disk
    }

    fn sync_everything(&mut self) {
        for (now, synced) in &mut self.folders {
            synced.clone_from(now);
        }
        self.history.clear();
        self.moves.clear();
    }

    fn folder_of<'a>(&self, path: &'a str) -> (usize, &'a str) {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        match self.find(folder) {
            Node::Folder(folder) => (folder, name),
            Node::File(_) => panic!("{folder} is a file"),
        }
    }

    fn find(&self, path: &str) -> Node {
        let mut node = Node::Folder(0);
        for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
            let Node::Folder(folder) = node else { panic!("{path} goes through a file") };
            node = *self.folders[folder].0.get(name).unwrap_or_else(|| panic!("no {path}"));
        }
        node
    }

    fn put(&mut self, path: &str, node: Node) {
        let (folder, name) = self.folder_of(path);
        self.folders[folder].0.insert(name.to_owned(), node);
    }

    fn take(&mut self, path: &str) -> Node {
        let (folder, name) = self.folder_of(path);
        self.folders[folder].0.remove(name).unwrap_or_else(|| panic!("no {path}"))
    }

    /// Returns whether every name is synced; a removed folder whose removal is synced does not count.
    fn is_settled(&self) -> bool {
        let mut open = vec![0];
        while let Some(folder) = open.pop() {
            let (now, synced) = &self.folders[folder];
            if now != synced {
                return false;
            }
            open.extend(now.values().filter_map(|node| match node {
                Node::Folder(folder) => Some(*folder),
                Node::File(_) => None,
            }));
        }
        true
    }

    pub fn apply(&mut self, change: &Change) {
        let path = change.path.as_str();
        match change.kind.as_str() {
            "write" | "truncate" => {
                let Node::File(file) = self.find(path) else { panic!("{path} is a folder") };
                let bytes = Arc::make_mut(&mut self.files[file].bytes);
                let end = change.offset + change.bytes.len();
                bytes.resize(if change.kind == "write" { bytes.len().max(end) } else { end }, 0);
                bytes[change.offset..end].copy_from_slice(&change.bytes);
                return;
            }
            "fsync" => {
                match self.find(path) {
                    Node::File(file) => {
                        let file = &mut self.files[file];
                        file.synced.clone_from(&file.bytes);
                    }
                    Node::Folder(folder) => {
                        let (now, synced) = &mut self.folders[folder];
                        synced.clone_from(now);
                        // This folder's names are current in every state that the other folders may fall back to.
                        for names in self.history.iter_mut().filter_map(|all| all.get_mut(folder)) {
                            names.clone_from(now);
                        }
                        for moved in &mut self.moves {
                            moved.from = moved.from.filter(|from| *from != folder);
                        }
                    }
                }
                if self.is_settled() {
                    self.history.clear();
                    self.moves.clear();
                }
                return;
            }
            "create" => {
                self.files.push(File::default());
                self.put(path, Node::File(self.files.len() - 1));
            }
            "mkdir" => {
                self.folders.push(Default::default());
                self.put(path, Node::Folder(self.folders.len() - 1));
            }
            "rename" => {
                let node = self.take(path);
                self.put(&change.to, node);
                let (from, to) = (self.folder_of(path).0, self.folder_of(&change.to).0);
                self.moves.push(Move { when: self.history.len() + 1, from: Some(from), to });
            }
            "link" => {
                let node = self.take(path);
                self.put(path, node);
                self.put(&change.to, node);
            }
            "unlink" | "rmdir" => drop(self.take(path)),
            other => panic!("an unknown change `{other}`"),
        }
        self.history.push(self.folders.iter().map(|(now, _)| now.clone()).collect());
    }

    /// Returns the files after a power cut now: bytes by path. Empty folders are omitted.
    pub fn after_power_cut(&self, survives: Survives) -> State {
        let synced = || self.folders.iter().map(|(_, synced)| synced.clone()).collect();
        let now = || self.folders.iter().map(|(now, _)| now.clone()).collect();
        let (names, random): (Vec<Names>, _) = match survives {
            Survives::OnlySynced | Survives::AllBytes => (synced(), None),
            Survives::AllNames => (now(), None),
            Survives::Some { seed } => {
                let mut random = Random(seed);
                let some = random.below(self.history.len() as u64 + 1) as usize;
                let names =
                    some.checked_sub(1).map_or_else(synced, |last| self.history[last].clone());
                (self.at_least_synced(&names), Some(random))
            }
            Survives::Apart { seed } => {
                let mut random = Random(seed);
                (self.independent_names(&mut random), Some(random))
            }
        };
        let mut random = random;
        let bytes: Vec<Arc<Vec<u8>>> = self
            .files
            .iter()
            .map(|file| match (survives, &mut random) {
                (Survives::AllBytes, _) => Arc::clone(&file.bytes),
                (_, Some(random)) if file.bytes != file.synced => Arc::new(part_of(file, random)),
                _ => Arc::clone(&file.synced),
            })
            .collect();
        let mut found = BTreeMap::new();
        let mut open = vec![(String::new(), 0)];
        while let Some((prefix, folder)) = open.pop() {
            for (name, node) in names.get(folder).into_iter().flatten() {
                let path = format!("{prefix}{name}");
                match node {
                    Node::Folder(folder) => open.push((format!("{path}/"), *folder)),
                    Node::File(file) => drop(found.insert(path, Arc::clone(&bytes[*file]))),
                }
            }
        }
        found
    }

    /// Returns the names of an earlier state, except in folders synced since.
    fn at_least_synced(&self, names: &[Names]) -> Vec<Names> {
        self.folders
            .iter()
            .enumerate()
            .map(|(folder, (now, synced))| match names.get(folder) {
                Some(names) if now != synced => names.clone(),
                _ => synced.clone(),
            })
            .collect()
    }

    /// Returns the names of an earlier state, chosen for each folder independently.
    fn independent_names(&self, random: &mut Random) -> Vec<Names> {
        let mut moment = || random.below(self.history.len() as u64 + 1) as usize;
        let mut moments: Vec<usize> = self.folders.iter().map(|_| moment()).collect();
        loop {
            let lost = |moved: &&Move| {
                moved.from.is_none_or(|from| moments[from] >= moved.when)
                    && moments[moved.to] < moved.when
            };
            let Some(lost) = self.moves.iter().find(lost) else { break };
            moments[lost.to] = lost.when;
        }
        let names = |(folder, moment): (usize, usize)| {
            let (_, synced) = &self.folders[folder];
            let earlier = moment.checked_sub(1).and_then(|last| self.history[last].get(folder));
            earlier.unwrap_or(synced).clone()
        };
        moments.into_iter().enumerate().map(names).collect()
    }

    /// Returns the current files.
    pub fn now(&self) -> State {
        let mut synced = self.clone();
        synced.sync_everything();
        synced.after_power_cut(Survives::AllBytes)
    }
}

type Hash = Vec<u8>;

/// Set of states seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Digests of contents, by the address of shared data; the data is kept alive, so that no address is reused.
    digests: HashMap<*const Vec<u8>, (Arc<Vec<u8>>, Hash)>,
    states: HashSet<Vec<(String, Hash)>>,
}

impl Seen {
    /// Adds a state; returns whether it is new.
    pub fn is_new(&mut self, state: &State) -> bool {
        let mut key = Vec::new();
        for (path, bytes) in state {
            let (_, digest) = self
                .digests
                .entry(Arc::as_ptr(bytes))
                .or_insert_with(|| (Arc::clone(bytes), Sha256::digest(&**bytes).to_vec()));
            key.push((path.clone(), digest.clone()));
        }
        self.states.insert(key)
    }
}

/// Returns a file that lost a part of its unsynced data: cut off, or with zeros instead of bytes.
fn part_of(file: &File, random: &mut Random) -> Vec<u8> {
    let length = random.below(file.bytes.len() as u64 + 1) as usize;
    let mut bytes = file.bytes.to_vec();
    match random.below(3) {
        0 => bytes.truncate(length),
        1 => bytes[length..].fill(0),
        _ => {}
    }
    bytes
}

/// Creates a workspace with the surviving files; unchanged files of `before` keep their modification times.
pub fn workspace_after(before: &Workspace, survived: &State) -> Workspace {
    let workspace = Workspace::copy_of(before);
    for path in files_below(&workspace.path("")) {
        let name = path.strip_prefix(workspace.path("")).unwrap().to_str().unwrap();
        if survived.get(name).is_none_or(|bytes| **bytes != fs::read(&path).unwrap()) {
            fs::remove_file(&path).unwrap();
        }
    }
    for (name, bytes) in survived {
        if !workspace.path(name).exists() {
            workspace.write(name, &**bytes);
        }
    }
    workspace
}
