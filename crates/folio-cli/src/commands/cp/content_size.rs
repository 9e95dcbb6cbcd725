//! The size of a new image for `--create auto`: a walk over the sources counts what the copy will
//! write.

use super::batch_channel::Xattrs;
use super::options::CopyOptions;
use super::source::{CopyJob, EntryNames, Source, SourceStat, is_plain_name};
use super::target::join;
use crate::commands::ownership::OwnerRules;
use crate::session::Session;
use folio::ext4::FileTreeSize;
use folio::vfs::FileType;
use std::collections::HashSet;
use std::ops::Range;

/// Adds up the content of some jobs. The copy that follows reports all failures.
pub(crate) struct ContentWalk<'a, S: Source> {
    source: &'a S,
    options: CopyOptions,
    session: &'a Session,
    /// Files with several names, which are copied once.
    seen: HashSet<(u64, u64)>,
    size: &'a mut FileTreeSize,
    /// The current path, relative to the source.
    path: Vec<u8>,
}

/// An open directory, its names that are left, and the length of its path.
type Frame<N> = (N, std::vec::IntoIter<(Vec<u8>, Option<FileType>)>, usize);

impl<'a, S: Source> ContentWalk<'a, S> {
    pub(crate) fn new(
        source: &'a S,
        options: CopyOptions,
        session: &'a Session,
        size: &'a mut FileTreeSize,
    ) -> Self {
        Self {
            source,
            options,
            session,
            seen: HashSet::new(),
            size,
            path: Vec::new(),
        }
    }

    /// Walks all jobs. Ends early if the user interrupts.
    pub(crate) fn run(mut self, jobs: &[CopyJob]) {
        for job in jobs {
            let start = self.source.start();
            self.path.clear();
            // The stack has one open directory per level, as that of the reader.
            let mut frames = Vec::new();
            frames.extend(self.entry(&start, &job.from));
            while let Some((dir, names, path_len)) = frames.last_mut() {
                if self.session.is_interrupted() {
                    return;
                }
                let Some((name, _)) = Iterator::next(names) else {
                    frames.pop();
                    continue;
                };
                self.path.truncate(*path_len);
                self.path.push(b'/');
                self.path.extend_from_slice(&name);
                if is_plain_name(&name) {
                    let entered = self.entry(dir, &name);
                    frames.extend(entered);
                }
            }
        }
    }

    /// Adds a file, or returns a directory with its names.
    fn entry(&mut self, dir: &S::Node, name: &[u8]) -> Option<Frame<S::Node>> {
        let found = self.source.stat(dir, name, self.options.follows).ok()?;
        let attributes = &found.0;
        if attributes.file_type == FileType::Directory {
            return self.directory(dir, name);
        }
        let is_repeated = self.options.keeps_links
            && attributes.link_count > 1
            && !self.seen.insert((found.1, attributes.number.0));
        if is_repeated || self.source.is_own_image(&found) {
            return None;
        }
        match attributes.file_type {
            FileType::Regular => {
                let data = self.data(dir, name, &found);
                self.size.add_file(&data);
            }
            FileType::Symlink => self.size.add_symlink(attributes.size_bytes),
            _ => self.size.add_special(),
        }
        if self.options.keeps_xattrs {
            let xattrs = self.source.link_xattrs(dir, name, &found);
            self.xattrs(xattrs.unwrap_or_default());
        }
        None
    }

    fn directory(&mut self, dir: &S::Node, name: &[u8]) -> Option<Frame<S::Node>> {
        if !self.options.is_recursive {
            return None;
        }
        let follow = self.options.follows;
        let (node, found) = self.source.open(dir, name, follow, true).ok()?;
        let mut names: EntryNames = self.source.list(&node).ok()?;
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if let Some(excludes) = self.options.excludes {
            names.retain(|(name, file_type)| {
                let path = [&self.path[..], b"/", name].concat();
                !excludes.contains(&path, *file_type == Some(FileType::Directory))
            });
        }
        self.size
            .add_directory(names.iter().map(|(name, _)| name.as_slice()));
        if self.options.keeps_xattrs {
            let xattrs = self.source.xattrs(&node, &found);
            self.xattrs(xattrs.unwrap_or_default());
        }
        Some((node, names.into_iter(), self.path.len()))
    }

    fn xattrs(&mut self, xattrs: Xattrs) {
        if !xattrs.is_empty() {
            self.size.add_xattrs(&xattrs);
        }
    }

    /// Returns the ranges of a file that the copy will write.
    fn data(&self, dir: &S::Node, name: &[u8], found: &SourceStat) -> Vec<Range<u64>> {
        let size = found.0.size_bytes;
        let mut ranges = Vec::new();
        let mut offset = 0;
        if found.0.blocks_512.saturating_mul(512) < size {
            let opened = self.source.open(dir, name, self.options.follows, false);
            let Ok((node, _)) = opened else {
                return ranges;
            };
            while let Ok(Some((start, end))) = self.source.next_data(&node, offset) {
                let end = end.min(size);
                if end <= start || start < offset {
                    break;
                }
                ranges.push(start..end);
                offset = end;
            }
        } else if size > 0 {
            ranges.push(0..size);
        }
        ranges
    }
}

/// The paths of a manifest that the copy creates.
pub(crate) struct CopiedPaths<'a> {
    asked: HashSet<&'a [u8]>,
    found: HashSet<&'a [u8]>,
}

impl<'a> CopiedPaths<'a> {
    /// Creates an empty set. With excluded names it stays empty, as these would be looked up too.
    pub(crate) fn new(options: CopyOptions, rules: &'a OwnerRules) -> Self {
        let asked = match options.excludes {
            Some(_) => HashSet::new(),
            None => rules.created_paths(),
        };
        Self {
            asked,
            found: HashSet::new(),
        }
    }

    /// Finds the paths in a source.
    pub(crate) fn find<S: Source>(&mut self, source: &S, jobs: &[CopyJob]) {
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

    /// Whether the copy creates a path; it creates the destination.
    pub(crate) fn contains(&self, path: &[u8]) -> bool {
        path.is_empty() || self.found.contains(path)
    }
}
