//! The total for the progress bar: what a copy will read, found by a walk of its own.

use super::options::CopyOptions;
use super::source::{CopyJob, Source, SourceStat, is_plain_name};
use folio::vfs::FileType;
use std::collections::HashSet;

/// Adds up the bytes that a copy of some jobs will read.
pub(crate) struct Measure<'a, S: Source> {
    source: &'a S,
    options: CopyOptions,
    stop: &'a dyn Fn() -> bool,
    /// Files with several names, which are copied once.
    seen: HashSet<(u64, u64)>,
    total_bytes: u64,
}

impl<'a, S: Source> Measure<'a, S> {
    /// Creates the sum. The walk ends early once `stop` returns true.
    pub(crate) fn new(source: &'a S, options: CopyOptions, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            source,
            options,
            stop,
            seen: HashSet::new(),
            total_bytes: 0,
        }
    }

    /// Walks all jobs; returns the sum, or `None` if `stop` ended the walk.
    pub(crate) fn run(mut self, jobs: &[CopyJob]) -> Option<u64> {
        for job in jobs {
            self.job(job)?;
        }
        Some(self.total_bytes)
    }

    fn job(&mut self, job: &CopyJob) -> Option<()> {
        let start = self.source.start();
        // The stack has one open directory per level, as that of the reader.
        let mut frames = Vec::new();
        frames.extend(self.entry(&start, &job.from));
        while let Some((dir, names)) = frames.last_mut() {
            if (self.stop)() {
                return None;
            }
            let Some(name) = Iterator::next(names) else {
                frames.pop();
                continue;
            };
            if is_plain_name(&name) {
                let entered = self.entry(dir, &name);
                frames.extend(entered);
            }
        }
        Some(())
    }

    /// Adds a file, or returns a directory with its names. The copy reports all failures.
    fn entry(
        &mut self,
        dir: &S::Node,
        name: &[u8],
    ) -> Option<(S::Node, std::vec::IntoIter<Vec<u8>>)> {
        let follow = self.options.follows;
        let found = self.source.stat(dir, name, follow).ok()?;
        match found.0.file_type {
            FileType::Regular => self.add(&found),
            FileType::Directory if self.options.is_recursive => {
                let (node, _) = self.source.open(dir, name, follow, true).ok()?;
                let names = self.source.list(&node).ok()?;
                let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
                return Some((node, names.into_iter()));
            }
            _ => {}
        }
        None
    }

    fn add(&mut self, found: &SourceStat) {
        let attributes = &found.0;
        let is_repeated = self.options.keeps_links
            && attributes.link_count > 1
            && !self.seen.insert((found.1, attributes.number.0));
        if !is_repeated && !self.source.is_own_image(found) {
            let allocated = attributes.blocks_512.saturating_mul(512);
            self.total_bytes += attributes.size_bytes.min(allocated);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cp::host_source::HostSource;
    use std::os::unix::ffi::OsStrExt;

    fn options() -> CopyOptions {
        CopyOptions {
            is_recursive: true,
            follows: false,
            keeps_mode: true,
            keeps_owner: true,
            keeps_times: true,
            keeps_links: true,
            keeps_xattrs: true,
            umask: 0,
            excludes: None,
        }
    }

    #[test]
    fn sum_has_every_directory_and_each_link_once() {
        let folder = tempfile::tempdir().unwrap();
        let source = HostSource::new(Vec::new());
        for number in 0..300 {
            let dir = folder.path().join(format!("{number}/deep/er"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("file"), [7; 4096]).unwrap();
        }
        let first = folder.path().join("0/deep/er/file");
        std::fs::hard_link(&first, folder.path().join("second name")).unwrap();
        let jobs = [CopyJob {
            from: folder.path().as_os_str().as_bytes().to_vec(),
            parent: b"/".to_vec(),
            name: b"x".to_vec(),
        }];
        let sum = |stop| Measure::new(&source, options(), &|| stop).run(&jobs);
        assert_eq!(sum(false), Some(300 * 4096));
        assert_eq!(sum(true), None);
    }
}
