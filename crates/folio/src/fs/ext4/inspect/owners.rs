//! Owners: the inodes that use given blocks, and the paths of given inodes.

use super::inode::xattr_block;
use super::inspector::Ext4Inspector;
use crate::base::Result;
use crate::fs::ext4::layout::disk::{GROUP_INODE_UNINIT, ROOT_INODE, RawInode};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

/// Bytes of an inode table that are read at once, at most.
const CHUNK_LEN: usize = 1 << 20;

impl Ext4Inspector {
    /// Returns the inode that uses each of `blocks`, for data, its tree or its attributes; blocks
    /// without one are missing from the map. debugfs: `icheck`.
    ///
    /// # Errors
    /// The device's errors. Damaged inodes are passed over.
    pub fn block_owners(&self, blocks: &[u64]) -> Result<BTreeMap<u64, u32>> {
        let wanted: BTreeSet<u64> = blocks.iter().copied().collect();
        let mut owners = BTreeMap::new();
        for group in 0..self.superblock.group_count {
            if owners.len() == wanted.len() {
                break;
            }
            self.each_inode(group, &mut |number, raw| {
                let mut claim = |first: u64, end: u64| {
                    for block in wanted.range(first..end) {
                        owners.entry(*block).or_insert(number);
                    }
                };
                let xattrs = xattr_block(raw);
                if xattrs != 0 {
                    claim(xattrs, xattrs.saturating_add(1));
                }
                for run in self.mapping_of(raw).unwrap_or_default() {
                    claim(run.physical, run.physical + run.len);
                }
            })?;
        }
        Ok(owners)
    }

    /// Calls `visit` for each inode with a name in the table of `group`.
    fn each_inode(&self, group: u32, visit: &mut dyn FnMut(u32, &RawInode)) -> Result<()> {
        let superblock = &self.superblock;
        let (table, count) = {
            let groups = self.groups.lock();
            let facts = &groups[group as usize];
            let count = if facts.has_flag(superblock, GROUP_INODE_UNINIT) {
                0
            } else {
                superblock.inodes_per_group
            };
            (facts.inode_table(), count)
        };
        let size = superblock.inode_size;
        let per_chunk = (CHUNK_LEN / size) as u32;
        let mut bytes = Vec::new();
        for first in (0..count).step_by(per_chunk as usize) {
            let len = (count - first).min(per_chunk) as usize * size;
            bytes.resize(len, 0);
            let offset = table * self.block_size() + u64::from(first) * size as u64;
            self.device
                .read_at(&mut bytes, offset)
                .map_err(|e| e.at(format!("inode table of group {group}")))?;
            let start = group * superblock.inodes_per_group + first + 1;
            for (number, bytes) in (start..).zip(bytes.chunks_exact(size)) {
                let raw = RawInode::of_bytes(bytes);
                if raw.links_count.get() != 0 {
                    visit(number, &raw);
                }
            }
        }
        Ok(())
    }

    /// Returns all paths of each of `inodes`, found from the root. debugfs: `ncheck`.
    ///
    /// # Errors
    /// EUCLEAN for a damaged directory.
    pub fn paths(&self, inodes: &[u32]) -> Result<BTreeMap<u32, Vec<Vec<u8>>>> {
        let wanted: BTreeSet<u32> = inodes.iter().copied().collect();
        let mut paths: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        if wanted.contains(&ROOT_INODE) {
            paths.insert(ROOT_INODE, vec![b"/".to_vec()]);
        }
        let mut seen = HashSet::from([ROOT_INODE]);
        let mut queue = VecDeque::from([(ROOT_INODE, Vec::new())]);
        while let Some((directory, path)) = queue.pop_front() {
            for entry in self.entries(directory)? {
                if entry.inode == 0 || entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let path = [&path[..], b"/", &entry.name].concat();
                if wanted.contains(&entry.inode) {
                    paths.entry(entry.inode).or_default().push(path.clone());
                }
                // Without the feature filetype the type is 0.
                let may_be_directory = matches!(entry.file_type, 0 | 2);
                if may_be_directory && self.is_directory(entry.inode)? && seen.insert(entry.inode) {
                    queue.push_back((entry.inode, path));
                }
            }
        }
        Ok(paths)
    }

    fn is_directory(&self, number: u32) -> Result<bool> {
        let raw = RawInode::of_bytes(&self.inode_bytes(number)?);
        Ok(raw.mode.get() & 0xF000 == 0x4000)
    }
}
