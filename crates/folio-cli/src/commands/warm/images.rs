//! Images and block devices as arguments of `folio warm`: finds the ranges of host files that hold
//! what is in use on a disk, or the files inside it.
//!
//! ```text
//!   disk.qcow2, /dev/sdb   blocks in use by ext4's bitmaps,   --.
//!                          other partitions as a whole           |
//!   disk.qcow2:/srv        extents of the files                --`--> location of these blocks in
//! --> ranges of host files                                            the image files, no holes
//! ```

use crate::arguments::image_options::image_failure;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image};
use crate::image_chain::chain_files;
use crate::image_path::{ImagePath, PathArgument};
use crate::output::counted;
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use folio::block::partition::{PartitionDevice, partitions};
use folio::block::{self, Allocation, Device, ImageFormat, OpenOptions};
use folio::ext4::Ext4Inspector;
use folio::syscall::OpenFlags;
use folio::vfs::{ExtentPlace, FileType};
use folio_pagecache::{Found, Mounts, ResidencyReport, Scan};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first bytes of a qcow2 file.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
/// Offset and bytes of the magic numbers of an ext4, and of a disk with partitions.
const EXT4_MAGIC: (usize, [u8; 2]) = (1080, [0x53, 0xef]);
const TABLE_MAGIC: (usize, [u8; 2]) = (510, [0x55, 0xaa]);
/// Bytes before the first partition that count as in use: tables and boot loader.
const HEAD_BYTES: u64 = 1 << 20;

/// What to read of an argument.
#[derive(Default)]
pub(super) struct ImageParts {
    pub(super) found: Vec<Found>,
    /// Bytes of disks that are not in use.
    pub(super) unused_bytes: u64,
    /// Block devices, held open: the kernel drops the pages of a device at its last close.
    pub(super) devices: Vec<(PathBuf, File)>,
}

impl ImageParts {
    /// Adds the parts of another argument.
    pub(super) fn append(&mut self, mut other: Self) {
        self.found.append(&mut other.found);
        self.unused_bytes += other.unused_bytes;
        self.devices.append(&mut other.devices);
    }
}

/// Closes devices, and reports those whose pages the kernel then drops.
pub(super) fn close_devices(devices: Vec<(PathBuf, File)>, session: &Session) {
    let paths: Vec<PathBuf> = devices.into_iter().map(|(path, _closed)| path).collect();
    for path in paths {
        let resident = File::open(&path).and_then(|mut device| {
            let size_bytes = device.seek(SeekFrom::End(0))?;
            folio_pagecache::residency_of(&device, 0..size_bytes)
        });
        if let Ok(ResidencyReport::Known(found)) = resident
            && found.resident_bytes == 0
            && !session.quiet
        {
            session.note(format_args!(
                "{}: the kernel has dropped its pages, as no program has the device open; \
                 --lock keeps them",
                path.display()
            ));
        }
    }
}

/// Returns the ranges to read if `word` names an image, a block device or files inside one; `None`
/// for a path of the host. `is_whole` selects all of an image.
pub(super) fn find(
    word: &Path,
    is_whole: bool,
    scan: &Scan,
    session: &Session,
) -> Outcome<Option<ImageParts>> {
    if let Ok(found) = std::fs::metadata(word) {
        return if is_disk(word, &found) {
            used_parts(word, &found, is_whole, session)
        } else {
            Ok(None)
        };
    }
    match PathArgument::parse(word.as_os_str(), false) {
        PathArgument::Image(_) if is_whole => Err(Failure::usage(format!(
            "--whole reads all of an image, not files inside it: {}",
            word.display()
        ))),
        PathArgument::Image(place) => file_parts(&place, scan, session).map(Some),
        PathArgument::Host(_) => Ok(None),
    }
}

/// Detects a disk from its first bytes, as everywhere in Folio. The bytes of a raw image without
/// partitions and without an ext4 are those of any file.
fn is_disk(path: &Path, found: &Metadata) -> bool {
    if found.file_type().is_block_device() {
        return true;
    }
    let mut head = [0; 2048];
    // `is_file` comes first: opening a FIFO would wait for a writer.
    if !found.is_file() || folio_pagecache::peek(path, &mut head).is_err() {
        return false;
    }
    let has = |(at, magic): (usize, [u8; 2])| head[at..].starts_with(&magic);
    head.starts_with(&QCOW2_MAGIC) || has(EXT4_MAGIC) || has(TABLE_MAGIC)
}

/// Returns the ranges of host files that a disk uses; `None` for a raw image with unknown contents,
/// which is a file like any other. Other programs may read or write the disk meanwhile; the result
/// may then be inconsistent.
fn used_parts(
    path: &Path,
    found: &Metadata,
    is_whole: bool,
    session: &Session,
) -> Outcome<Option<ImageParts>> {
    let mut parts = ImageParts::default();
    if found.file_type().is_block_device() {
        note_mount(path, found.rdev(), session);
        let device = File::open(path);
        let device =
            device.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        parts.devices.push((path.to_owned(), device));
    }
    let mut ranges = ImageRanges::new(path)?;
    if is_whole {
        let files = ranges.files.into_iter();
        parts.found = files.map(|file| Found::whole(file, 0)).collect();
        return Ok(Some(parts));
    }
    let disk = open(path)?;
    let used = used_ranges(&disk, path, session)?;
    if ranges.is_raw && found.is_file() && used.is_none() {
        return Ok(None);
    }
    let whole = || std::iter::once(0..disk.len_bytes()).collect();
    for range in used.unwrap_or_else(whole) {
        let end = range.end.min(disk.len_bytes());
        ranges.add(&*disk, range.start.min(end)..end, session)?;
    }
    parts.unused_bytes = disk.len_bytes() - ranges.data_bytes;
    parts.found = ranges.found()?;
    Ok(Some(parts))
}

/// Reports that pages of a mounted device do not serve reads of its files.
fn note_mount(path: &Path, device: u64, session: &Session) {
    let mounts = Mounts::here();
    if let Some(mount) = mounts.near.iter().find(|mount| mount.is_on(device))
        && !session.quiet
    {
        let (path, mounted) = (path.display(), mount.path.display());
        session.note(format_args!(
            "{path} is mounted on {mounted}: files there have pages of their own, for which use \
             folio warm {mounted}"
        ));
    }
}

/// Returns what is in use on a disk: of each ext4 the blocks that its bitmaps have in use, other
/// partitions, and the start. `None` if the disk has no ext4.
fn used_ranges(
    disk: &Arc<dyn Device>,
    path: &Path,
    session: &Session,
) -> Outcome<Option<Vec<Range<u64>>>> {
    if holds_ext4(&**disk)? {
        return Ok(used_by_ext4(disk.clone(), path, session));
    }
    // Without a valid partition table, all is data.
    let partitions = partitions(&**disk).unwrap_or_default();
    let starts = partitions.iter().map(|partition| partition.start_bytes);
    let head = 0..starts.min().unwrap_or(0).min(HEAD_BYTES);
    let (mut ranges, mut has_ext4) = (vec![head], false);
    for partition in partitions {
        let (start, len_bytes) = (partition.start_bytes, partition.len_bytes);
        let device = Arc::new(PartitionDevice::new(disk.clone(), start, len_bytes)?);
        let is_ext4 = holds_ext4(&*device)?;
        has_ext4 |= is_ext4;
        let used = is_ext4.then(|| used_by_ext4(device, path, session));
        match used.flatten() {
            Some(used) => ranges.extend(used.iter().map(|r| start + r.start..start + r.end)),
            None => ranges.push(start..start + len_bytes),
        }
    }
    Ok(has_ext4.then(|| merge(ranges)))
}

/// Whether a device holds an ext4. Reads no more than that: what is read stays in memory.
fn holds_ext4(device: &dyn Device) -> Outcome<bool> {
    let (at, magic) = EXT4_MAGIC;
    let mut found = [0; 2];
    if device.len_bytes() < (at + found.len()) as u64 {
        return Ok(false);
    }
    device.read_at(&mut found, at as u64)?;
    Ok(found == magic)
}

/// Returns the bytes that the bitmaps of an ext4 have in use; `None` if it is damaged or has
/// features that Folio does not know.
fn used_by_ext4(
    device: Arc<dyn Device>,
    path: &Path,
    session: &Session,
) -> Option<Vec<Range<u64>>> {
    let note = |error: folio::Error, what: &str| {
        if !session.quiet {
            session.note(format_args!("{}: {error}; {what}", path.display()));
        }
    };
    let inspector = match Ext4Inspector::open(device) {
        Ok(inspector) => inspector,
        Err(error) => {
            note(error, "all of its data counts as in use");
            return None;
        }
    };
    let used = inspector.used_blocks();
    if let Some(error) = used.damage {
        let groups = counted(u64::from(used.damaged_groups), "group");
        note(error, &format!("all blocks of {groups} count as in use"));
    }
    Some(used.ranges)
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
fn file_parts(place: &ImagePath, scan: &Scan, session: &Session) -> Outcome<ImageParts> {
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
    Ok(ImageParts {
        found: ranges.found()?,
        ..ImageParts::default()
    })
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
    /// Bytes of the disk that these ranges hold.
    data_bytes: u64,
    /// Whether the image is raw.
    is_raw: bool,
}

impl ImageRanges {
    fn new(path: &Path) -> Outcome<Self> {
        let mut files = chain_files(path, true)?;
        let mut is_raw = files.len() == 1;
        for file in &mut files {
            // Such an image stores its blocks in the data file.
            let options = OpenOptions {
                is_shared: true,
                ..OpenOptions::default()
            };
            let info =
                block::tools::info(&*file, &options).map_err(|error| image_failure(error, file))?;
            is_raw &= info.format == ImageFormat::Raw;
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
            data_bytes: 0,
            is_raw,
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
            self.data_bytes += count;
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
