//! Trees of processes, and the files that they have open or mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns a process and all its descendants; nothing if it has ended.
pub(super) fn tree(root: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(number) = number else {
            continue;
        };
        if let Some(parent) = parent(&entry.path()) {
            children.entry(parent).or_default().push(number);
            found.extend((number == root).then_some(number));
        }
    }
    let mut last: Vec<u32> = found.iter().copied().collect();
    while let Some(number) = last.pop() {
        for child in children.get(&number).into_iter().flatten() {
            if found.insert(*child) {
                last.push(*child);
            }
        }
    }
    found
}

/// Returns the parent of a process that has not ended, from its folder in /proc.
fn parent(folder: &Path) -> Option<u32> {
    let text = fs::read(folder.join("stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name may contain spaces and parentheses.
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    words.next()?.parse().ok().filter(|_| state != "Z")
}

/// Returns the paths of regular files that processes have open or mapped.
pub(super) fn all_files(processes: impl IntoIterator<Item = u32>) -> BTreeSet<PathBuf> {
    processes.into_iter().flat_map(files).collect()
}

fn files(process: u32) -> BTreeSet<PathBuf> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let open = fs::read_dir(folder.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let maps = fs::read(folder.join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps).into_owned();
    let mapped = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    open.chain(mapped).filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_has_children_and_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(file.reopen().unwrap())
            .spawn()
            .unwrap();
        let (own, number) = (std::process::id(), child.id());
        assert!(tree(own).is_superset(&[own, number].into()));
        assert_eq!(tree(number), [number].into());
        assert!(files(number).contains(file.path()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(tree(number).is_empty());
    }
}
