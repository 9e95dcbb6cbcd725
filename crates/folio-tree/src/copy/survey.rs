//! The content of a copy, found by a walk before it: for a progress bar, and for the size of a new
//! image.

use super::job::CopyJob;
use crate::attributes::Xattrs;
use crate::entry::join;
use crate::options::CopyOptions;
use crate::rules::OwnerRules;
use crate::source::{FileId, FoundFile, OpenMode, Source, SourceName, data_ranges, is_plain_name};
use folio::ext4::FileTreeSize;
use folio::vfs::FileType;
use std::collections::HashSet;
use std::ops::Range;

/// Receives the files of a walk.
trait Visitor<S: Source> {
    /// A file that is not a directory, at its first name.
    fn file(&mut self, dir: &S::Node, name: &[u8], found: &FoundFile);
    /// A directory with the names that are copied.
    fn directory(&mut self, _node: &S::Node, _found: &FoundFile, _names: &[SourceName]) {}
}

/// Walks some jobs as a copy would. The copy reports all failures.
struct Survey<'a, S: Source, V> {
    source: &'a S,
    options: &'a CopyOptions,
    visitor: V,
    /// Files with several names, which are copied once.
    seen: HashSet<FileId>,
    /// The current path, relative to the source.
    path: Vec<u8>,
}

struct Frame<N> {
    node: N,
    names: std::vec::IntoIter<SourceName>,
    path_len: usize,
}

impl<'a, S: Source, V: Visitor<S>> Survey<'a, S, V> {
    fn new(source: &'a S, options: &'a CopyOptions, visitor: V) -> Self {
        Self {
            source,
            options,
            visitor,
            seen: HashSet::new(),
            path: Vec::new(),
        }
    }

    /// Walks all jobs; returns the visitor, or `None` once `stop` returns true.
    fn run(mut self, jobs: &[CopyJob], stop: &dyn Fn() -> bool) -> Option<V> {
        for job in jobs {
            let start = self.source.start();
            self.path.clear();
            // The stack has one open directory per level, as that of the reader.
            let mut frames = Vec::new();
            frames.extend(self.entry(&start, &job.from));
            while let Some(frame) = frames.last_mut() {
                if stop() {
                    return None;
                }
                let Some(SourceName { name, .. }) = frame.names.next() else {
                    frames.pop();
                    continue;
                };
                self.path.truncate(frame.path_len);
                self.path.push(b'/');
                self.path.extend_from_slice(&name);
                if is_plain_name(&name) {
                    let entered = self.entry(&frame.node, &name);
                    frames.extend(entered);
                }
            }
        }
        Some(self.visitor)
    }

    /// Visits a file, or returns a directory with its names.
    fn entry(&mut self, dir: &S::Node, name: &[u8]) -> Option<Frame<S::Node>> {
        let found = self.source.stat(dir, name, self.options.follows_links);
        let found = found.ok()?;
        let attributes = &found.attributes;
        if attributes.file_type == FileType::Directory {
            return self.directory(dir, name);
        }
        let is_repeated =
            self.options.keeps_links && attributes.link_count > 1 && !self.seen.insert(found.id());
        if !is_repeated && !self.source.is_own_image(&found) {
            self.visitor.file(dir, name, &found);
        }
        None
    }

    fn directory(&mut self, dir: &S::Node, name: &[u8]) -> Option<Frame<S::Node>> {
        if !self.options.is_recursive {
            return None;
        }
        let mode = OpenMode {
            follows_links: self.options.follows_links,
            is_directory: true,
        };
        let (node, found) = self.source.open(dir, name, mode).ok()?;
        let mut names = self.source.list(&node).ok()?;
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        names.retain(|entry| {
            let path = [&self.path[..], b"/", &entry.name].concat();
            let is_directory = entry.file_type == Some(FileType::Directory);
            !self.options.excludes(&path, is_directory)
        });
        self.visitor.directory(&node, &found, &names);
        Some(Frame {
            node,
            names: names.into_iter(),
            path_len: self.path.len(),
        })
    }
}

/// Returns the bytes that a copy will read, or `None` once `stop` returns true.
pub(crate) fn total_bytes<S: Source>(
    source: &S,
    jobs: &[CopyJob],
    options: &CopyOptions,
    stop: &dyn Fn() -> bool,
) -> Option<u64> {
    struct Total(u64);
    impl<S: Source> Visitor<S> for Total {
        fn file(&mut self, _: &S::Node, _: &[u8], found: &FoundFile) {
            let attributes = &found.attributes;
            if attributes.file_type == FileType::Regular {
                let allocated = attributes.blocks_512.saturating_mul(512);
                self.0 += attributes.size_bytes.min(allocated);
            }
        }
    }
    let total = Survey::new(source, options, Total(0)).run(jobs, stop)?;
    Some(total.0)
}

struct Content<'a, S: Source> {
    source: &'a S,
    options: &'a CopyOptions,
    size: &'a mut FileTreeSize,
}

impl<S: Source> Content<'_, S> {
    fn xattrs(&mut self, xattrs: impl FnOnce(&S) -> folio::Result<Xattrs>) {
        if self.options.keeps_xattrs
            && let Ok(xattrs) = xattrs(self.source)
            && !xattrs.is_empty()
        {
            self.size.add_xattrs(&xattrs);
        }
    }

    /// Returns the ranges of a file that the copy will write.
    fn data(&self, dir: &S::Node, name: &[u8], found: &FoundFile) -> Vec<Range<u64>> {
        let size_bytes = found.attributes.size_bytes;
        if found.attributes.blocks_512.saturating_mul(512) >= size_bytes {
            return Vec::from_iter((size_bytes > 0).then_some(0..size_bytes));
        }
        let mode = OpenMode {
            follows_links: self.options.follows_links,
            is_directory: false,
        };
        let opened = self.source.open(dir, name, mode);
        let ranges = opened.and_then(|(node, _)| data_ranges(self.source, &node, found));
        ranges.unwrap_or_default()
    }
}

impl<S: Source> Visitor<S> for Content<'_, S> {
    fn file(&mut self, dir: &S::Node, name: &[u8], found: &FoundFile) {
        match found.attributes.file_type {
            FileType::Regular => {
                let data = self.data(dir, name, found);
                self.size.add_file(&data);
            }
            FileType::Symlink => self.size.add_symlink(found.attributes.size_bytes),
            _ => self.size.add_special(),
        }
        self.xattrs(|source| source.link_xattrs(dir, name, found));
    }

    fn directory(&mut self, node: &S::Node, found: &FoundFile, names: &[SourceName]) {
        self.size
            .add_directory(names.iter().map(|entry| entry.name.as_slice()));
        self.xattrs(|source| source.xattrs(node, found));
    }
}

/// The content of a new file system: what copies from one source after another will write, and then
/// the manifest.
#[derive(Debug)]
pub struct CopiedContent<'a> {
    size: &'a mut FileTreeSize,
    options: &'a CopyOptions,
    rules: &'a OwnerRules,
    /// Paths that the manifest may create.
    asked: HashSet<&'a [u8]>,
    /// Those of them that a copy creates.
    found: HashSet<&'a [u8]>,
}

impl<'a> CopiedContent<'a> {
    /// Creates the sum; what is added goes to `size`.
    pub fn new(
        size: &'a mut FileTreeSize,
        options: &'a CopyOptions,
        rules: &'a OwnerRules,
    ) -> Self {
        Self {
            size,
            options,
            rules,
            // Excluded names would be looked up, too.
            asked: match &options.excludes {
                Some(_) => HashSet::new(),
                None => rules.created_paths(),
            },
            found: HashSet::new(),
        }
    }

    /// Adds what a copy will write. Ends early once `stop` returns true.
    pub fn add<S: Source>(&mut self, source: &S, jobs: &[CopyJob], stop: &dyn Fn() -> bool) {
        self.find(source, jobs);
        let content = Content {
            source,
            options: self.options,
            size: &mut *self.size,
        };
        let _ = Survey::new(source, self.options, content).run(jobs, stop);
    }

    /// Adds the files of the manifest that no copy creates.
    pub fn finish(self) {
        let found = self.found;
        // A copy creates the destination.
        let exists = |path: &[u8]| path.is_empty() || found.contains(path);
        self.rules.add_created(self.size, exists);
    }

    /// Finds the paths of the manifest in a source.
    fn find<S: Source>(&mut self, source: &S, jobs: &[CopyJob]) {
        let start = source.start();
        for job in jobs {
            let exists = |path: &&&[u8]| {
                let below = match job.name.as_slice() {
                    b"." => Some(**path),
                    name if **path == name => Some(&b"."[..]),
                    name => path
                        .strip_prefix(name)
                        .and_then(|rest| rest.strip_prefix(b"/")),
                };
                let from = below.map(|below| join(&job.from, below));
                from.is_some_and(|from| source.stat(&start, &from, false).is_ok())
            };
            self.found.extend(self.asked.iter().filter(exists));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::HostSource;

    #[test]
    fn sum_has_every_directory_and_each_link_once() {
        let folder = tempfile::tempdir().unwrap();
        let source = HostSource::default();
        for number in 0..300 {
            let dir = folder.path().join(format!("{number}/deep/er"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("file"), [7; 4096]).unwrap();
        }
        let first = folder.path().join("0/deep/er/file");
        std::fs::hard_link(&first, folder.path().join("second name")).unwrap();
        let jobs = [CopyJob::to(folder.path(), "/x".as_ref())];
        let options = CopyOptions::archive();
        let sum = |stop| total_bytes(&source, &jobs, &options, &|| stop);
        assert_eq!(sum(false), Some(300 * 4096));
        assert_eq!(sum(true), None);
    }
}
