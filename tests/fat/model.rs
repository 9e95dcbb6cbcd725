//! Random operations on a FAT and on a plain tree give equal results, names and contents.

use super::{WIDTHS, assert_clean, formatted, mounted};
use crate::support::random::Random;
use crate::support::requires;
use folio::Fs;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};

const OPERATIONS: usize = 1000;
/// Operations between two unmounts, each with a check.
const MOUNTED_OPERATIONS: usize = 250;

/// A file's content, or a directory's names: folded, as stored, and what they name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Directory(BTreeMap<String, (String, Node)>),
}

type Path = Vec<String>;

struct Run {
    random: Random,
    root: Node,
}

fn fold(name: &str) -> String {
    name.to_uppercase()
}

fn text(path: &[String]) -> String {
    format!("/{}", path.join("/"))
}

impl Node {
    fn names(&mut self) -> Option<&mut BTreeMap<String, (String, Node)>> {
        match self {
            Self::Directory(names) => Some(names),
            Self::File(_) => None,
        }
    }

    fn find(&mut self, path: &[String]) -> Option<&mut Node> {
        path.iter().try_fold(self, |node, name| {
            node.names()?.get_mut(&fold(name)).map(|(_, node)| node)
        })
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Directory(names) if names.is_empty())
    }

    /// Reads the tree at `path`.
    fn read(fs: &Fs, path: &str) -> Self {
        if !path.is_empty() && !fs.metadata(path).unwrap().is_dir() {
            return Self::File(fs.read(path).unwrap());
        }
        let mut names = BTreeMap::new();
        for name in super::names(fs, &format!("{path}/")) {
            let node = Self::read(fs, &format!("{path}/{name}"));
            assert!(names.insert(fold(&name), (name, node)).is_none());
        }
        Self::Directory(names)
    }
}

impl Run {
    fn name(&mut self) -> String {
        let number = self.random.below(12u32);
        match self.random.below(8) {
            0 => format!("f{number}"),
            1 => format!("F{number}.TXT"),
            2 => format!("f{number}.txt"),
            3 => format!("a rather long name with the number {number}.html"),
            4 => format!("A Rather Long Name with the number {number}.html"),
            5 => format!("\u{e4}\u{f6}\u{20ac} {number}"),
            6 => format!(".hidden.{number}.tar.gz"),
            _ => "x".repeat(1 + 13 * number as usize),
        }
    }

    /// Returns the path of a random directory.
    fn directory(&mut self) -> Path {
        let mut path = Path::new();
        let mut at = &self.root;
        while let Node::Directory(names) = at {
            let below: Vec<_> = names
                .values()
                .filter(|(_, node)| matches!(node, Node::Directory(_)))
                .collect();
            if below.is_empty() || path.len() == 4 || self.random.percent(40) {
                break;
            }
            let (name, node) = below[self.random.below(below.len())];
            path.push(name.clone());
            at = node;
        }
        path
    }

    /// Returns a path, which often exists.
    fn path(&mut self) -> Path {
        let mut path = self.directory();
        let names: Vec<String> = match self.root.find(&path) {
            Some(Node::Directory(names)) => names.values().map(|(name, _)| name.clone()).collect(),
            _ => Vec::new(),
        };
        let name = if names.is_empty() || self.random.percent(40) {
            self.name()
        } else {
            self.random.pick(&names)
        };
        path.push(name);
        path
    }

    fn content(&mut self) -> Vec<u8> {
        let len = self.random.below(1usize << self.random.clone().below(15));
        (0..len).map(|_| self.random.next() as u8).collect()
    }

    fn step(&mut self, fs: &Fs) -> String {
        let path = self.path();
        let name = text(&path);
        let (done, expected, what) = match self.random.below(10) {
            0..3 => {
                let content = self.content();
                let done = fs.write(&name, &content);
                (done, self.write(&path, content), "write")
            }
            3 => {
                let (content, offset) = (self.content(), self.random.below(40_000usize));
                let file = fs.open_options().write(true).open(&name);
                let done = file.and_then(|mut file| {
                    file.seek(SeekFrom::Start(offset as u64))?;
                    file.write_all(&content)
                });
                (done, self.write_at(&path, offset, &content), "write at")
            }
            4 => {
                let len = self.random.below(40_000usize);
                let file = fs.open_options().write(true).open(&name);
                let done = file.and_then(|file| file.set_len(len as u64));
                (done, self.truncate(&path, len), "truncate")
            }
            5 => (fs.create_dir(&name), self.create_directory(&path), "mkdir"),
            6 => (fs.remove_file(&name), self.remove(&path, false), "unlink"),
            7 => (fs.remove_dir(&name), self.remove(&path, true), "rmdir"),
            _ => {
                let to = self.path();
                let done = fs.rename(&name, text(&to));
                let what = format!("rename to {}", text(&to));
                let expected = self.rename(&path, &to);
                assert_eq!(
                    done.is_ok(),
                    expected.is_some(),
                    "{what} of {name}: {done:?}"
                );
                return format!("{what} of {name}");
            }
        };
        assert_eq!(
            done.is_ok(),
            expected.is_some(),
            "{what} of {name}: {done:?}"
        );
        format!("{what} of {name}")
    }

    fn parent(&mut self, path: &[String]) -> Option<&mut BTreeMap<String, (String, Node)>> {
        self.root.find(&path[..path.len() - 1])?.names()
    }

    fn write(&mut self, path: &[String], content: Vec<u8>) -> Option<()> {
        let name = path.last()?.clone();
        let empty = (name.clone(), Node::File(Vec::new()));
        let (_, node) = self.parent(path)?.entry(fold(&name)).or_insert(empty);
        match node {
            Node::File(file) => *file = content,
            Node::Directory(_) => return None,
        }
        Some(())
    }

    fn write_at(&mut self, path: &[String], offset: usize, content: &[u8]) -> Option<()> {
        let Node::File(file) = self.root.find(path)? else {
            return None;
        };
        if !content.is_empty() {
            let end = offset + content.len();
            file.resize(file.len().max(end), 0);
            file[offset..end].copy_from_slice(content);
        }
        Some(())
    }

    fn truncate(&mut self, path: &[String], len: usize) -> Option<()> {
        let Node::File(file) = self.root.find(path)? else {
            return None;
        };
        file.resize(len, 0);
        Some(())
    }

    fn create_directory(&mut self, path: &[String]) -> Option<()> {
        let name = path.last()?.clone();
        let parent = self.parent(path)?;
        if parent.contains_key(&fold(&name)) {
            return None;
        }
        parent.insert(fold(&name), (name, Node::Directory(BTreeMap::new())));
        Some(())
    }

    fn remove(&mut self, path: &[String], is_directory: bool) -> Option<()> {
        let node = self.root.find(path)?;
        let is_right = if is_directory {
            node.is_empty()
        } else {
            matches!(node, Node::File(_))
        };
        let name = fold(path.last()?);
        is_right.then(|| self.parent(path)?.remove(&name).map(drop))?
    }

    fn rename(&mut self, from: &[String], to: &[String]) -> Option<()> {
        let fold_all = |path: &[String]| path.iter().map(|name| fold(name)).collect::<Path>();
        let (key, new_key) = (fold_all(from), fold_all(to));
        let source = self.root.find(from)?.clone();
        let name = to.last()?.clone();
        if key == new_key {
            self.parent(from)?.insert(fold(&name), (name, source));
            return Some(());
        }
        if new_key.starts_with(&key) || key.starts_with(&new_key) {
            return None;
        }
        let mut stored = name.clone();
        if let Some((kept, target)) = self.parent(to)?.get(&fold(&name)) {
            let is_allowed = match (&source, target) {
                (Node::File(_), Node::File(_)) => true,
                (Node::Directory(_), target) => target.is_empty(),
                (Node::File(_), Node::Directory(_)) => false,
            };
            if !is_allowed {
                return None;
            }
            stored.clone_from(kept);
        }
        self.parent(from)?.remove(&fold(from.last()?));
        self.parent(to)?.insert(fold(&name), (stored, source));
        Some(())
    }
}

#[test]
fn random_operations_match_the_model() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        for seed in 1..=3 {
            let device = formatted(width, len_bytes);
            let mut run = Run {
                random: Random::new(seed),
                root: Node::Directory(BTreeMap::new()),
            };
            let mut fs = mounted(&device);
            for operation in 1..=OPERATIONS {
                let what = run.step(&fs);
                if operation % 50 == 0 {
                    let found = Node::read(&fs, "");
                    let place = format!("{} seed {seed}, {operation}: {what}", width.name());
                    assert!(found == run.root, "{place}");
                }
                if operation % MOUNTED_OPERATIONS == 0 {
                    fs.close().unwrap();
                    assert_clean(&device);
                    fs = mounted(&device);
                }
            }
            assert!(
                Node::read(&fs, "") == run.root,
                "{} seed {seed}",
                width.name()
            );
        }
    }
}
