//! The files that an archive will create, known before the first is written: for the size of a new
//! file system.

use crate::entry::{Entry, EntryKind};
use crate::tar::Reader;
use folio::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::ops::Range;

/// A file that will be created.
#[derive(Debug, Clone)]
pub struct ListedFile {
    /// The kind, with the size of a file's content or the target of a link.
    pub kind: EntryKind,
    /// The ranges of the content that are not holes, ascending.
    pub data: Vec<Range<u64>>,
    /// Bytes of the names and values of extended attributes.
    pub xattr_bytes: u64,
    /// The layer that has the file.
    layer: usize,
}

/// The files of an archive, or of all layers of a container image.
#[derive(Debug, Default)]
pub struct Contents {
    files: BTreeMap<Vec<u8>, ListedFile>,
    /// Files of earlier layers that later ones hide: they exist until then.
    hidden: BTreeMap<Vec<u8>, ListedFile>,
    layers: usize,
}

impl Contents {
    /// Adds the files of an archive onto those before it. Whiteouts hide files of earlier layers.
    ///
    /// # Errors
    ///
    /// The archive is damaged.
    pub fn add_layer<R: BufRead>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        self.layers += 1;
        while let Some(entry) = reader.next_entry()? {
            let data = reader.data_ranges();
            self.add(&entry, data);
        }
        Ok(())
    }

    /// Returns all files that unpacking creates, by name, also those that a later layer removes.
    /// Directories without an entry of their own are missing.
    pub fn files(&self) -> impl Iterator<Item = (&[u8], &ListedFile)> {
        self.files
            .iter()
            .chain(&self.hidden)
            .map(|(path, file)| (path.as_slice(), file))
    }

    /// Removes the files for which `is_kept` returns false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&[u8], &ListedFile) -> bool) {
        self.files.retain(|path, file| is_kept(path, file));
        self.hidden.retain(|path, file| is_kept(path, file));
    }

    /// Returns the directories with their names, among them those without an entry of their own.
    pub fn directories(&self) -> BTreeMap<&[u8], BTreeSet<&[u8]>> {
        let mut directories = BTreeMap::new();
        for (path, file) in self.files() {
            add_to_parents(&mut directories, path);
            if file.kind == EntryKind::Directory {
                directories.entry(path).or_default();
            }
        }
        directories
    }

    fn add(&mut self, entry: &Entry, data: Vec<Range<u64>>) {
        let parts = entry.path.split(|byte| *byte == b'/');
        let parts: Vec<_> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        let path = parts.join(&b'/');
        let name = parts.last().copied().unwrap_or(b"");
        let folder = parts[..parts.len().saturating_sub(1)].join(&b'/');
        if name == b".wh..wh..opq" {
            return self.hide(&folder);
        }
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
            let path = [&folder[..], slash, hidden].concat();
            if self
                .files
                .get(&path)
                .is_some_and(|file| file.layer < self.layers)
            {
                self.hidden.extend(self.files.remove_entry(&path));
            }
            return self.hide(&path);
        }
        if entry.kind != EntryKind::Directory {
            self.hide(&path);
        }
        let xattrs = entry
            .xattrs
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let file = ListedFile {
            kind: entry.kind.clone(),
            data,
            xattr_bytes: xattrs.sum::<usize>() as u64,
            layer: self.layers,
        };
        self.files.insert(path, file);
    }

    fn hide(&mut self, path: &[u8]) {
        let layers = self.layers;
        let hidden = remove_below(&mut self.files, path, |file| file.layer < layers);
        self.hidden.extend(hidden);
    }
}

/// Adds a name to its directory, and the directories above to theirs.
fn add_to_parents<'a>(directories: &mut BTreeMap<&'a [u8], BTreeSet<&'a [u8]>>, path: &'a [u8]) {
    let mut below = path;
    while !below.is_empty() {
        let slash = below.iter().rposition(|byte| *byte == b'/');
        let (above, name) = slash.map_or((&[][..], below), |at| (&below[..at], &below[at + 1..]));
        if !directories.entry(above).or_default().insert(name) {
            return;
        }
        below = above;
    }
}

/// Removes and returns the files below the directory `path` for which `is_hidden` returns true:
/// those of earlier layers.
pub(crate) fn remove_below<T>(
    files: &mut BTreeMap<Vec<u8>, T>,
    path: &[u8],
    is_hidden: impl Fn(&T) -> bool,
) -> Vec<(Vec<u8>, T)> {
    let below = if path.is_empty() {
        Vec::new()
    } else {
        [path, b"/"].concat()
    };
    let hidden = files.range(below.clone()..);
    let hidden: Vec<_> = hidden
        .take_while(|(key, _)| key.starts_with(&below))
        .filter(|(_, file)| is_hidden(file))
        .map(|(key, _)| key.clone())
        .collect();
    hidden
        .iter()
        .filter_map(|key| files.remove_entry(key))
        .collect()
}
