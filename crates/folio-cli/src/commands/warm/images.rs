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
/// Ranges of a disk after which a further block group counts as wholly in use. Bounds memory: a
/// bitmap of a hostile image, shared by many groups, may alternate.
const RANGES_MAX: usize = 1 << 20;
const ALL_IN_USE: &str = "all of its data counts as in use";

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
    // All are closed first; several arguments may name one device.
    let paths: BTreeSet<PathBuf> = devices.into_iter().map(|(path, _closed)| path).collect();
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
    if found.file_type().is_block_device() {
        note_mount(path, found.rdev(), session);
    }
    let mut ranges = ImageRanges::new(path)?;
    let mut parts = ImageParts {
        devices: ranges.devices()?,
        ..ImageParts::default()
    };
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
    let mut used = UsedRanges {
        path,
        session,
        ranges: Vec::new(),
    };
    match holds_ext4(&**disk) {
        Ok(true) => return Ok(used.add_ext4(disk.clone(), 0)?.then_some(used.ranges)),
        Ok(false) => {}
        Err(error) => {
            used.note(&error, ALL_IN_USE);
            return Ok(None);
        }
    }
    // Without a valid partition table, all is data.
    let partitions = partitions(&**disk).unwrap_or_default();
    let starts = partitions.iter().map(|partition| partition.start_bytes);
    used.add(0..starts.min().unwrap_or(0).min(HEAD_BYTES));
    let mut has_ext4 = false;
    for partition in partitions {
        let (start, len_bytes) = (partition.start_bytes, partition.len_bytes);
        let opened = PartitionDevice::new(disk.clone(), start, len_bytes)
            .and_then(|device| Ok((holds_ext4(&device)?, device)));
        let is_added = match opened {
            Ok((true, device)) => {
                has_ext4 = true;
                used.add_ext4(Arc::new(device), start)?
            }
            Ok((false, _)) => false,
            Err(error) => {
                used.note(&error, ALL_IN_USE);
                false
            }
        };
        if !is_added {
            used.add(start..start.saturating_add(len_bytes));
        }
    }
    Ok(has_ext4.then(|| merge(used.ranges)))
}

/// Whether a device holds an ext4. Reads no more than that: what is read stays in memory.
fn holds_ext4(device: &dyn Device) -> folio::Result<bool> {
    let (at, magic) = EXT4_MAGIC;
    let mut found = [0; 2];
    if device.len_bytes() < (at + found.len()) as u64 {
        return Ok(false);
    }
    device.read_at(&mut found, at as u64)?;
    Ok(found == magic)
}

/// The ranges of a disk that are in use.
struct UsedRanges<'a> {
    path: &'a Path,
    session: &'a Session,
    ranges: Vec<Range<u64>>,
}

impl UsedRanges<'_> {
    fn note(&self, error: &folio::Error, what: &str) {
        if !self.session.quiet {
            let path = self.path.display();
            self.session.note(format_args!("{path}: {error}; {what}"));
        }
    }

    /// Adds a range; joins it to the last one if they touch.
    fn add(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.ranges.push(range),
        }
    }

    /// Adds what the bitmaps of the ext4 at byte `start` have in use. Returns `false` if it is
    /// damaged or has features that Folio does not know.
    fn add_ext4(&mut self, device: Arc<dyn Device>, start: u64) -> Outcome<bool> {
        let inspector = match Ext4Inspector::open(device) {
            Ok(inspector) => inspector,
            Err(error) => {
                self.note(&error, ALL_IN_USE);
                return Ok(false);
            }
        };
        let (mut damaged_groups, mut damage) = (0, None);
        for used in inspector.used_blocks() {
            self.session.check_interrupt()?;
            damaged_groups += u64::from(used.damage.is_some());
            damage = damage.or(used.damage);
            let is_bounded = self.ranges.len() + used.ranges.len() <= RANGES_MAX;
            let ranges = if is_bounded {
                used.ranges
            } else {
                vec![used.group]
            };
            for range in ranges {
                self.add(start + range.start..start + range.end);
            }
        }
        if let Some(error) = damage {
            let groups = counted(damaged_groups, "group");
            self.note(&error, &format!("all blocks of {groups} count as in use"));
        }
        Ok(true)
    }
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
    image.release()?;
    worked?;
    let mut ranges = ImageRanges::new(&place.image)?;
    for run in runs {
        let end = run.end.min(selected.len_bytes());
        ranges.add(&*selected, run.start.min(end)..end, session)?;
    }
    Ok(ImageParts {
        devices: ranges.devices()?,
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

    /// Opens the block devices of the chain.
    fn devices(&self) -> Outcome<Vec<(PathBuf, File)>> {
        let mut devices = Vec::new();
        for path in &self.files {
            let name = |error| Failure::new(format!("{}: {error}", path.display()));
            let found = std::fs::metadata(path).map_err(name)?;
            if found.file_type().is_block_device() {
                devices.push((path.clone(), File::open(path).map_err(name)?));
            }
        }
        Ok(devices)
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
                merge(parts.into_iter().filter_map(whole_pages).collect())
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

/// Rounds a range outward to pages. Residency is counted in pages: one resident page of two would
/// hide that a range on both, no longer than a page, is absent in part. `None` if it is empty.
fn whole_pages(range: Range<u64>) -> Option<Range<u64>> {
    let page = folio_pagecache::page_bytes();
    let end = range.end.div_ceil(page).saturating_mul(page);
    (!range.is_empty()).then_some(range.start / page * page..end)
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

    #[test]
    fn range_is_rounded_outward_to_pages() {
        let page = folio_pagecache::page_bytes();
        assert_eq!(whole_pages(page - 1..page + 1), Some(0..2 * page));
        assert_eq!(whole_pages(page..2 * page), Some(page..2 * page));
        assert_eq!(whole_pages(1..1), None);
    }
}
