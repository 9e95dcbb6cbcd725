//! Images as arguments of `folio warm`: finds the ranges of host files that hold the used blocks of
//! a disk, or the files inside it.
//!
//! ```text
//!   disk.qcow2        its block map         --.
//!   disk.qcow2:/srv   extents of the files   --`--> location of these blocks in the image files
//! --> ranges of host files
//! ```

use crate::arguments::image_options::image_failure;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image};
use crate::image_chain::chain_files;
use crate::image_path::{ImagePath, PathArgument};
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use folio::block::{self, Allocation, Device, ImageFormat, OpenOptions};
use folio::syscall::OpenFlags;
use folio::vfs::{ExtentPlace, FileType};
use folio_pagecache::{Found, Scan};
use std::collections::BTreeSet;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first bytes of a qcow2 file.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// Returns the ranges to read if `word` names an image or files inside one; `None` for a path of
/// the host.
pub(super) fn find(word: &Path, scan: &Scan, session: &Session) -> Outcome<Option<Vec<Found>>> {
    if word.exists() {
        return if is_qcow2(word) {
            used_ranges(word, session).map(Some)
        } else {
            Ok(None)
        };
    }
    match PathArgument::parse(word.as_os_str(), false) {
        PathArgument::Image(place) => file_ranges(&place, scan, session).map(Some),
        PathArgument::Host(_) => Ok(None),
    }
}

/// Detects qcow2 from the first bytes, as everywhere in Folio.
fn is_qcow2(path: &Path) -> bool {
    let mut magic = [0; 4];
    // `is_file` comes first: opening a FIFO would wait for a writer.
    path.is_file() && folio_pagecache::peek(path, &mut magic).is_ok() && magic == QCOW2_MAGIC
}

/// Returns the ranges of image files that a disk uses. Other programs may read or write the disk
/// meanwhile; the result may then be inconsistent.
fn used_ranges(path: &Path, session: &Session) -> Outcome<Vec<Found>> {
    let device = open(path)?;
    let mut ranges = ImageRanges::new(path)?;
    ranges.add(&*device, 0..device.len_bytes(), session)?;
    ranges.found()
}

fn open(path: &Path) -> Outcome<Arc<dyn Device>> {
    let options = OpenOptions {
        read_only: true,
        is_shared: true,
        ..OpenOptions::default()
    };
    block::open(path, &options).map_err(|error| image_failure(error, path))
}

/// Returns the ranges of image files that hold files inside an image.
fn file_ranges(place: &ImagePath, scan: &Scan, session: &Session) -> Outcome<Vec<Found>> {
    let device = open(&place.image)?;
    let selected = place
        .select(device.clone())
        .map_err(|error| image_failure(error, &place.image))?;
    let image = Image::mount(session, place, device, Access::Read)?;
    let mut runs = DeviceRanges {
        image: &image,
        scan,
        runs: Vec::new(),
        session,
    };
    let worked = image
        .stat(&place.path, true)
        .map_err(|error| image.name(error))
        .and_then(|top| walk(session, &image, &place.path, top, &mut runs));
    let runs = merge(runs.runs);
    image.close()?;
    worked?;
    let mut ranges = ImageRanges::new(&place.image)?;
    for run in runs {
        let end = run.end.min(selected.len_bytes());
        ranges.add(&*selected, run.start.min(end)..end, session)?;
    }
    ranges.found()
}

/// The locations on the device of all files of a walk.
struct DeviceRanges<'a> {
    image: &'a Image,
    scan: &'a Scan,
    runs: Vec<Range<u64>>,
    session: &'a Session,
}

impl Visitor for DeviceRanges<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        if visit.attributes.file_type == FileType::Regular
            && (visit.depth == 0 || self.scan.takes(visit.path))
        {
            let process = self.image.process();
            let found = process
                .open(visit.path, OpenFlags::empty(), 0)
                .and_then(|fd| {
                    let found = process.fiemap(fd, 0..visit.attributes.size_bytes, false);
                    process.close(fd)?;
                    found
                });
            match found {
                Ok(extents) => {
                    self.runs
                        .extend(extents.iter().filter_map(|extent| match extent.place {
                            ExtentPlace::Data(at) => Some(at..at.saturating_add(extent.len_bytes)),
                            // Holes need no read, and the inode was already read by the walk.
                            ExtentPlace::Unwritten(_)
                            | ExtentPlace::Delayed
                            | ExtentPlace::Inline => None,
                        }))
                }
                Err(error) => self.session.fail(self.image.name(error).message),
            }
        }
        Ok(WalkControl::Enter)
    }
}

/// Ranges of the files of a chain, the image first.
struct ImageRanges {
    files: Vec<PathBuf>,
    parts: Vec<Vec<Range<u64>>>,
    /// Files that are needed as a whole, because some data has no offset in them, such as
    /// compressed clusters.
    whole: BTreeSet<usize>,
}

impl ImageRanges {
    fn new(path: &Path) -> Outcome<Self> {
        let mut files = chain_files(path, true)?;
        for file in &mut files {
            // Such an image stores its blocks in the data file.
            let options = OpenOptions {
                is_shared: true,
                ..OpenOptions::default()
            };
            let info =
                block::tools::info(&*file, &options).map_err(|error| image_failure(error, file))?;
            if let Some(name) = info
                .qcow2
                .filter(|_| info.format == ImageFormat::Qcow2)
                .and_then(|q| q.data_file)
            {
                *file = file.parent().unwrap_or(Path::new("")).join(name.name);
            }
        }
        let parts = vec![Vec::new(); files.len()];
        Ok(Self {
            files,
            parts,
            whole: BTreeSet::new(),
        })
    }

    /// Adds the ranges that hold `range` of the disk.
    fn add(&mut self, device: &dyn Device, range: Range<u64>, session: &Session) -> Outcome {
        let mut at = range.start;
        while at < range.end {
            session.check_interrupt()?;
            let (extent, count) = device.map_entry(at, range.end - at)?;
            let count = count.clamp(1, range.end - at);
            at += count;
            let depth = extent.depth as usize;
            if extent.kind != Allocation::Data || depth >= self.files.len() {
                continue;
            }
            match extent.host_offset {
                Some(offset) => self.parts[depth].push(offset..offset.saturating_add(count)),
                None => {
                    self.whole.insert(depth);
                }
            }
        }
        Ok(())
    }

    fn found(self) -> Outcome<Vec<Found>> {
        let mut all = Vec::new();
        for (depth, (path, parts)) in self.files.into_iter().zip(self.parts).enumerate() {
            let ranges = if self.whole.contains(&depth) {
                Vec::new()
            } else {
                merge(parts)
            };
            if ranges.is_empty() && !self.whole.contains(&depth) {
                continue;
            }
            let found = std::fs::metadata(&path);
            let found =
                found.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
            all.push(Found {
                path,
                inode: found.ino(),
                ranges,
            });
        }
        Ok(all)
    }
}

/// Merges the ranges: in order, each byte once.
fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_sorts_and_joins_ranges() {
        let merged = merge(vec![10..20, 0..5, 5..6, 15..30, 40..40, 50..60]);
        assert_eq!(merged, [0..6, 10..30, 50..60]);
    }
}
