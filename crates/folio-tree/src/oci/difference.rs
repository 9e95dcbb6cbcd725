//! The files of a base image, so that a new layer holds only what differs from them.

use super::digest::{ContentHash, Digest};
use super::image::ContainerImage;
use crate::contents::remove_below;
use crate::entry::{Entry, EntryKind};
use crate::tar::Reader;
use folio::Result;
use std::collections::{BTreeMap, HashSet};
use std::io::BufRead;

/// Symbolic links that a name of the base may lead through.
const LINKS_MAX: usize = 40;

/// The files of a base image, by name.
#[derive(Default)]
pub(super) struct BaseTree {
    files: BTreeMap<Vec<u8>, BaseFile>,
    /// The names that the new tree has, and whether each is a directory.
    seen: BTreeMap<Vec<u8>, bool>,
}

#[derive(Clone)]
struct BaseFile {
    entry: Entry,
    content: Option<Digest>,
    layer: usize,
}

impl BaseTree {
    /// Reads all layers of a base image.
    pub(super) fn read(image: &ContainerImage) -> Result<Self> {
        let mut tree = Self::default();
        let mut layer = 0;
        image.each_layer(|reader| {
            layer += 1;
            tree.add_layer(reader, layer)
        })?;
        Ok(tree)
    }

    fn add_layer<R: BufRead>(&mut self, reader: &mut Reader<R>, layer: usize) -> Result<()> {
        while let Some(entry) = reader.next_entry()? {
            let Some(path) = self.canonical(&entry.path) else {
                continue;
            };
            let slash = path.iter().rposition(|byte| *byte == b'/');
            let (folder, name) = match slash {
                Some(at) => (&path[..at], &path[at + 1..]),
                None => (&b""[..], &path[..]),
            };
            if name == b".wh..wh..opq" {
                self.hide(folder, layer);
                continue;
            }
            if let Some(hidden) = name.strip_prefix(b".wh.") {
                let path = join(folder, hidden);
                if self.files.get(&path).is_some_and(|file| file.layer < layer) {
                    self.files.remove(&path);
                }
                self.hide(&path, layer);
                continue;
            }
            let mut file = BaseFile {
                entry,
                content: None,
                layer,
            };
            if let EntryKind::HardLink(target) = &file.entry.kind {
                let target = self
                    .canonical(target)
                    .and_then(|target| self.files.get(&target));
                let Some(target) = target else { continue };
                file = BaseFile {
                    layer,
                    ..target.clone()
                };
            } else if let EntryKind::File { .. } = file.entry.kind {
                file.content = Some(content_of(reader)?);
            }
            if file.entry.kind != EntryKind::Directory {
                self.hide(&path, layer);
            }
            self.files.insert(path, file);
        }
        Ok(())
    }

    /// Returns a name without "." and with symbolic links in its directories followed; `None` if it
    /// leads out.
    fn canonical(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut pending: Vec<Vec<u8>> = path
            .split(|byte| *byte == b'/')
            .rev()
            .map(<[u8]>::to_vec)
            .collect();
        pending.retain(|part| !matches!(part.as_slice(), b"" | b"."));
        let (mut done, mut links) = (Vec::new(), 0);
        while let Some(part) = pending.pop() {
            match part.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    let end = done.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    done.truncate(end);
                    continue;
                }
                _ => {}
            }
            let next = join(&done, &part);
            if !pending.is_empty()
                && let Some(BaseFile { entry, .. }) = self.files.get(&next)
                && let EntryKind::Symlink(target) = &entry.kind
            {
                links += 1;
                if links > LINKS_MAX {
                    return None;
                }
                if target.first() == Some(&b'/') {
                    done.clear();
                }
                pending.extend(target.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec));
                continue;
            }
            done = next;
        }
        Some(done)
    }

    fn hide(&mut self, path: &[u8], layer: usize) {
        remove_below(&mut self.files, path, |file| file.layer < layer);
    }

    /// Takes note of a file of the new tree; returns whether it differs from the base's.
    /// `content` returns the digest of its content.
    pub(super) fn differs(
        &mut self,
        entry: &Entry,
        content: &mut dyn FnMut() -> Result<Digest>,
    ) -> Result<bool> {
        let path = plain(&entry.path);
        let is_directory = entry.kind == EntryKind::Directory;
        self.seen.insert(path.clone(), is_directory);
        let Some(base) = self.files.get(&path) else {
            // A base rarely has an entry for its root directory.
            return Ok(!path.is_empty());
        };
        let known = &base.entry;
        let is_same = known.mode == entry.mode
            && (known.uid, known.gid) == (entry.uid, entry.gid)
            && known.modified == entry.modified;
        if let EntryKind::HardLink(_) = entry.kind {
            // Its extended attributes are those of its first name.
            return Ok(!(is_same && base.content.is_some() && base.content == Some(content()?)));
        }
        let is_same = is_same && known.xattrs == entry.xattrs;
        if !is_same || known.kind != entry.kind {
            return Ok(true);
        }
        Ok(match base.content {
            Some(digest) => digest != content()?,
            None => false,
        })
    }

    /// Returns the whiteouts of files that the new tree does not have, sorted.
    pub(super) fn whiteouts(&self) -> Vec<Vec<u8>> {
        let mut hidden: HashSet<&[u8]> = HashSet::new();
        let mut whiteouts = Vec::new();
        for path in self
            .files
            .keys()
            .filter(|path| !self.seen.contains_key(*path))
        {
            let slash = path.iter().rposition(|byte| *byte == b'/');
            let folder = slash.map_or(&b""[..], |at| &path[..at]);
            if hidden.contains(folder) {
                hidden.insert(path);
                continue;
            }
            // Where a file replaces the directory, there is nothing to hide.
            let is_there = folder.is_empty() || self.seen.get(folder) == Some(&true);
            hidden.insert(path);
            if is_there {
                let name = slash.map_or(&path[..], |at| &path[at + 1..]);
                whiteouts.push(join(folder, &[b".wh.", name].concat()));
            }
        }
        whiteouts
    }
}

fn plain(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    [folder, slash, name].concat()
}

/// Returns the digest of the current file's content.
fn content_of<R: BufRead>(reader: &mut Reader<R>) -> Result<Digest> {
    let mut hash = ContentHash::new();
    while let Some((offset, bytes)) = reader.next_data()? {
        hash.update(offset, bytes);
    }
    Ok(hash.finish())
}
