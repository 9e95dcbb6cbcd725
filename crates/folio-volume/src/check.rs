//! Information about a volume, and the check of what it names.

use crate::database;
use crate::format::{BLOCK_BYTES, GROUP_BLOCKS, Place, SegmentId, VolumeMeta, WriterRecord};
use crate::gc::{segment_sizes, stored_objects};
use crate::layer::block_range;
use crate::map::{MapState, VolumeMap};
use crate::place::StorePlace;
use crate::progress::{Report, WorkProgress};
use crate::read::{origin_paths, read_sources};
use crate::read_cache::ReadCache;
use crate::reader::{VolumeReader, view_sources};
use crate::snapshot::snapshots;
use folio::Result;
use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Entry};

/// Blocks read at a time by a check of the data.
const READ_BLOCKS: u64 = 1024;

/// Information about a volume.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    /// The volume's description.
    pub meta: VolumeMeta,
    /// Its last writer.
    pub writer: Option<WriterRecord>,
    /// The number of the last flush.
    pub flush: u64,
    /// Bytes of the disk that are stored, as the disk sees them.
    pub logical_bytes: u64,
    /// Bytes of all objects of the volume.
    pub stored_bytes: u64,
    /// Objects of the volume.
    pub objects: u64,
    /// Number of segments that the last flush names, in this volume or one it is a clone of.
    pub segments: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Flush points checked: the last flush and each snapshot.
    pub states: u64,
    /// Blocks whose segment was looked up.
    pub blocks: u64,
    /// Blocks whose bytes were read and compared with their checksum.
    pub read_blocks: u64,
    /// The problems, each with its place.
    pub problems: Vec<String>,
}

/// Returns information about a volume.
///
/// # Errors
///
/// ENOENT if there is no volume; EUCLEAN for a damaged map; the store's errors.
pub fn info(place: &StorePlace) -> Result<VolumeInfo> {
    let view = VolumeReader::open(place, None)?.view();
    let (objects, stored_bytes) = place.wait(stored_objects(place))?;
    Ok(VolumeInfo {
        meta: view.meta.clone(),
        writer: view.writer.clone(),
        flush: view.flush,
        logical_bytes: view.stored_blocks() * BLOCK_BYTES as u64,
        stored_bytes,
        objects,
        segments: view.segment_use().len() as u64,
    })
}

/// Checks that every segment named by the last flush or a snapshot exists in full; with
/// `reads_data`, that every block matches its checksum.
///
/// # Errors
///
/// ENOENT if there is no volume; EUCLEAN for a map that cannot be read; the store's errors.
pub fn check(
    place: &StorePlace,
    reads_data: bool,
    progress: &mut dyn FnMut(WorkProgress),
) -> Result<CheckReport> {
    let mut check = Check::new(place, reads_data, progress);
    let view = VolumeReader::open(place, None)?.view();
    check.map("last flush", &view)?;
    for snapshot in snapshots(place)? {
        let name = format!("snapshot {:?}", snapshot.name);
        match place.wait(database::load_read_only(place, Some(snapshot.id))) {
            Ok(MapState::Volume(map)) => check.map(&name, &map)?,
            Ok(_) => check.problem(format!("{name}: no volume in it")),
            Err(error) => check.problem(format!("{name}: {error}")),
        }
    }
    Ok(check.report)
}

/// Checks that every segment named by a map exists in full, and that its blocks match their
/// checksums.
///
/// # Errors
///
/// The store's.
pub(crate) fn check_map(place: &StorePlace, map: &VolumeMap) -> Result<CheckReport> {
    let mut quiet = |_| {};
    let mut check = Check::new(place, true, &mut quiet);
    check.map("map", map)?;
    Ok(check.report)
}

/// A check under way.
struct Check<'a> {
    place: &'a StorePlace,
    reads_data: bool,
    progress: Report<'a>,
    /// The segments of each origin, by its index.
    sizes: BTreeMap<u32, HashMap<SegmentId, u64>>,
    report: CheckReport,
}

impl<'a> Check<'a> {
    fn new(place: &'a StorePlace, reads_data: bool, progress: Report<'a>) -> Self {
        Self {
            place,
            reads_data,
            progress,
            sizes: BTreeMap::new(),
            report: CheckReport::default(),
        }
    }

    fn problem(&mut self, problem: String) {
        self.report.problems.push(problem);
    }

    /// Lists the segments of all origins of a map.
    fn list_segments(&mut self, map: &VolumeMap) -> Result<()> {
        for (n, origin) in (0..).zip(&map.meta.origins) {
            if let Entry::Vacant(entry) = self.sizes.entry(n) {
                let found = self
                    .place
                    .wait(segment_sizes(&self.place.sibling(origin)))?;
                let sizes = found.into_iter().map(|(id, meta)| (id, meta.size));
                entry.insert(sizes.collect());
            }
        }
        Ok(())
    }

    fn map(&mut self, name: &str, map: &VolumeMap) -> Result<()> {
        self.report.states += 1;
        self.list_segments(map)?;
        let mut missing: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for &number in map.groups().keys() {
            for block in map.group(number).into_iter().flatten() {
                self.report.blocks += 1;
                let Place::Segment { segment, index } = block.place else {
                    continue;
                };
                let id = SegmentId {
                    origin: 0,
                    ..segment
                };
                let size = self.sizes.get(&segment.origin).and_then(|of| of.get(&id));
                if size.is_none_or(|&size| size < (u64::from(index) + 1) * BLOCK_BYTES as u64) {
                    *missing.entry(segment).or_default() += 1;
                }
            }
        }
        let origins = origin_paths(&map.meta);
        for (segment, blocks) in missing {
            let path = segment.path(&origins[segment.origin as usize]);
            self.problem(format!(
                "{name}: {path} is missing or cut short: {blocks} blocks are lost"
            ));
        }
        if self.reads_data {
            self.data(name, map);
        }
        Ok(())
    }

    fn data(&mut self, name: &str, map: &VolumeMap) {
        let stored = map.stored_blocks() * BLOCK_BYTES as u64;
        (self.progress)(WorkProgress::Expected(stored));
        let origins = origin_paths(&map.meta);
        let end = map.meta.size_bytes.div_ceil(BLOCK_BYTES as u64);
        let mut buffer = vec![0; block_range(READ_BLOCKS as usize).start];
        let mut first = 0;
        while let Some(group) = map.next_group(first / GROUP_BLOCKS) {
            first = first.max(group * GROUP_BLOCKS);
            let count = READ_BLOCKS.min(end.saturating_sub(first));
            if count == 0 {
                break;
            }
            let out = &mut buffer[..count as usize * BLOCK_BYTES];
            let sources = view_sources(map, first, count);
            let stored = map.blocks(first, count).iter().flatten().count() as u64;
            match read_sources(self.place, &ReadCache::default(), &origins, sources, out) {
                Ok(()) => self.report.read_blocks += stored,
                Err(error) => self.problem(format!("{name}: blocks {first}+{count}: {error}")),
            }
            (self.progress)(WorkProgress::Done(stored * BLOCK_BYTES as u64));
            first += count;
        }
    }
}
