//! Values of attributes in inodes of their own (`ea_inode`): their contents, their reference
//! counts, and their share in quotas. Linux: fs/ext4/xattr.c (`ext4_xattr_inode_*`).
//!
//! An entry in an inode, or in a block of attributes however many inodes share it, holds one
//! reference. Contents go into metadata blocks, so that they are in the transaction of the entry.
//! An inode with a value has no times: the fields hold its reference count and checksum.

use super::format::{self, Xattr, XattrLayout, XattrValue, entry_hash};
use crate::base::{DeviceNumber, Errno, Error, InodeNumber, LogicalBlock, PhysicalBlock, Result};
use crate::fs::ext4::inode::quota::UsageChange;
use crate::fs::ext4::inode::state::InodeState;
use crate::fs::ext4::inode::{Ext4, Ext4Inode};
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{RawInode, inode_flags};
use crate::fs::ext4::layout::features::Incompat;
use crate::fs::ext4::layout::quota::owners;
use crate::fs::ext4::map::extent_map::MappedRange;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::fs::ext4::volume::Volume;
use crate::vfs::{FileType, NewInode};
use std::collections::BTreeMap;
use zerocopy::FromZeros;

/// Longest value, in bytes (the kernel's limit for all values).
const VALUE_LEN_MAX: u32 = 64 << 10;

impl Ext4Inode {
    /// Whether the inode's attributes may have values in inodes of their own. Those inodes
    /// themselves have no attributes.
    fn has_value_inodes(&self, state: &InodeState) -> bool {
        self.fs.volume.has_incompat(Incompat::EA_INODE)
            && state.raw.flags.get() & inode_flags::EA_INODE == 0
    }

    /// Encodes attributes. Values that do not fit move to new inodes, the longest first.
    ///
    /// # Errors
    /// ENOSPC: nothing has changed then.
    pub(super) fn lay_out(
        &self,
        state: &InodeState,
        xattrs: &mut [Xattr],
        reserved: ReservedBlocks,
    ) -> Result<(XattrLayout, Vec<u64>)> {
        let (area_len, block_size) = (state.xattr_area().len(), self.fs.volume.block_size);
        let mut made = Vec::new();
        loop {
            let error = match format::lay_out(xattrs, area_len, block_size) {
                Ok(layout) => return Ok((layout, made)),
                Err(error) => error,
            };
            let longest = xattrs
                .iter_mut()
                .filter(|xattr| !xattr.is_inline_data() && xattr.value_len() > 0)
                .max_by_key(|xattr| xattr.value_len())
                .filter(|_| error.errno() == Errno::NOSPC && self.has_value_inodes(state));
            let moved = longest
                .ok_or(error)
                .and_then(|xattr| self.move_value(state, xattr, reserved));
            match moved {
                Ok(number) => made.push(number),
                Err(error) => {
                    self.drop_values(&made)?;
                    return Err(error);
                }
            }
        }
    }

    /// Moves the value of `xattr` to a new inode, and returns its number.
    fn move_value(
        &self,
        state: &InodeState,
        xattr: &mut Xattr,
        reserved: ReservedBlocks,
    ) -> Result<u64> {
        let XattrValue::Inline(bytes) = &xattr.value else {
            return Err(Errno::NOSPC.into());
        };
        let volume = &self.fs.volume;
        let checksum = crc32c(volume.value_checksum_seed(), bytes);
        let number = self.make_value(state, bytes, checksum, reserved)?;
        xattr.value = XattrValue::EaInode {
            number: InodeNumber(number.into()),
            // At most what a caller can set.
            size_bytes: bytes.len() as u32,
            hash: entry_hash(&xattr.suffix, &checksum.to_le_bytes()),
        };
        Ok(number.into())
    }

    /// Makes an inode with the value `bytes` and one reference.
    fn make_value(
        &self,
        state: &InodeState,
        bytes: &[u8],
        checksum: u32,
        reserved: ReservedBlocks,
    ) -> Result<u32> {
        let volume = &self.fs.volume;
        let number = volume.space.lock().allocate_inode(
            &volume.geometry,
            &volume.metadata,
            self.number,
            false,
        )?;
        let [uid, gid, _] = owners(&state.raw);
        let new = NewInode {
            file_type: FileType::Regular,
            mode: 0o600,
            uid,
            gid,
            device: DeviceNumber::default(),
            target: b"",
        };
        let inode = Self::create(&self.fs, number, &new, &RawInode::new_zeroed());
        let mut value = inode.state_mut();
        value.raw.flags |= inode_flags::EA_INODE;
        if let Err(error) = inode.fill_value(&mut value, bytes, reserved) {
            // Dropping the last reference frees it.
            value.raw.links_count = 0.into();
            return Err(error);
        }
        (value.raw.atime, value.raw.atime_extra) = (checksum.into(), 0.into());
        value.raw.ctime_extra = 0.into();
        set_references(&mut value.raw, 1);
        inode.mark_dirty(&mut value);
        drop(value);
        self.fs.remember(inode);
        Ok(number)
    }

    /// Writes `bytes` into new blocks of an empty inode.
    fn fill_value(
        &self,
        state: &mut InodeState,
        bytes: &[u8],
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let volume = &self.fs.volume;
        for (chunk, logical) in bytes.chunks(volume.block_size).zip(0..) {
            let physical = self.append_block(state, LogicalBlock(logical), reserved)?;
            let block = volume.metadata.new_block(physical)?;
            block.write()[..chunk.len()].copy_from_slice(chunk);
        }
        let size = bytes.len() as u64;
        state.disk_size = size;
        state.set_recorded_size(size);
        if let Some(mapping) = &self.common.mapping {
            mapping.set_size_bytes(size);
        }
        Ok(())
    }

    /// Returns the references to values that the inode's entries hold, and those of its block of
    /// attributes unless other inodes share it.
    pub(super) fn held_values(&self, state: &InodeState) -> Result<Vec<u64>> {
        if !self.has_value_inodes(state) {
            return Ok(Vec::new());
        }
        // The entries of a shared block hold one reference for all its inodes.
        let is_own_block = state.xattr_block() == 0 || !self.is_shared(state.xattr_block())?;
        let xattrs = if is_own_block {
            self.stored_xattrs(state)?
        } else {
            format::parse_inode_area(state.xattr_area())?
        };
        Ok(value_numbers(&xattrs).collect())
    }

    /// Makes the references of `before` those of `after`. Values without any are freed.
    pub(super) fn change_references(&self, before: &[u64], after: &[u64]) -> Result<()> {
        let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
        for (numbers, change) in [(before, -1), (after, 1)] {
            for number in numbers {
                *changes.entry(*number).or_default() += change;
            }
        }
        for (number, change) in changes.into_iter().filter(|(_, change)| *change != 0) {
            self.change_reference_count(number, change)
                .map_err(|e| e.at(format!("xattr value inode {number}")))?;
        }
        Ok(())
    }

    /// Drops one reference to each of the values in the inodes `numbers`.
    pub(super) fn drop_values(&self, numbers: &[u64]) -> Result<()> {
        self.change_references(numbers, &[])
    }

    fn change_reference_count(&self, number: u64, change: i64) -> Result<()> {
        if number == u64::from(self.number) {
            return Err(Error::corrupt("is the inode itself"));
        }
        let inode = self.fs.inode(number)?;
        let mut state = inode.state_mut();
        if state.raw.flags.get() & inode_flags::EA_INODE == 0 {
            return Err(Error::corrupt("not an attribute value"));
        }
        let count = references(&state.raw).checked_add_signed(change);
        let count = count.ok_or_else(|| Error::corrupt("too few references"))?;
        set_references(&mut state.raw, count);
        if count == 0 {
            // Dropping the last reference in memory frees it.
            state.raw.links_count = 0.into();
            drop(state);
            inode.forget_dirty();
            inode.mark_dirty(&mut inode.state_mut());
        } else {
            inode.mark_dirty(&mut state);
        }
        Ok(())
    }

    /// Returns what is charged for the values of `xattrs`: blocks, in whole clusters, and inodes.
    fn value_usage(&self, xattrs: &[Xattr]) -> (i64, i64) {
        let geometry = &self.fs.volume.geometry;
        let cluster_blocks = u64::from(geometry.cluster_blocks);
        let sizes = xattrs.iter().filter_map(|xattr| match xattr.value {
            XattrValue::EaInode { size_bytes, .. } => Some(u64::from(size_bytes)),
            XattrValue::Inline(_) => None,
        });
        sizes.fold((0, 0), |(blocks, inodes), size| {
            let count = size.div_ceil(geometry.block_size as u64);
            let count = count.next_multiple_of(cluster_blocks) as i64;
            (blocks + count, inodes + 1)
        })
    }

    /// Charges the inode for the values of the attributes `after` instead of `before`: in full,
    /// whether other inodes share them or not.
    pub(super) fn charge_values(&self, state: &mut InodeState, before: &[Xattr], after: &[Xattr]) {
        let (old, new) = (self.value_usage(before), self.value_usage(after));
        state.charge_blocks(new.0 - old.0, self.fs.volume.block_size);
        self.charge_value_inodes(state, new.1 - old.1);
    }

    /// Charges the owners for `change` inodes with values. Blocks are charged with the inode's.
    fn charge_value_inodes(&self, state: &InodeState, change: i64) {
        if let Some(quotas) = self.fs.quotas.get().filter(|_| change != 0) {
            let change = UsageChange {
                bytes: 0,
                inodes: change,
            };
            quotas.charge(owners(&state.raw), change);
        }
    }

    /// Returns the blocks that the inode is charged for its values.
    pub(crate) fn value_blocks(&self, state: &InodeState) -> Result<i64> {
        if !self.has_value_inodes(state) {
            return Ok(0);
        }
        Ok(self.value_usage(&self.stored_xattrs(state)?).0)
    }

    /// Changes the owner, and charges the new one for the values of attributes.
    pub(crate) fn change_owner(
        &self,
        state: &mut InodeState,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let is_charged = self.fs.quotas.get().is_some() && self.has_value_inodes(state);
        if !is_charged || (uid, gid) == (None, None) {
            state.set_owner(uid, gid);
            return Ok(());
        }
        let (_, inodes) = self.value_usage(&self.stored_xattrs(state)?);
        self.charge_value_inodes(state, -inodes);
        state.set_owner(uid, gid);
        self.charge_value_inodes(state, inodes);
        Ok(())
    }

    /// Drops all attributes of an inode that is evicted, with their block and values.
    pub(crate) fn drop_xattrs(&self, state: &mut InodeState) -> Result<()> {
        let held = self.held_values(state)?;
        if self.has_value_inodes(state) {
            let xattrs = self.stored_xattrs(state)?;
            self.charge_values(state, &xattrs, &[]);
        }
        self.drop_xattr_block(state)?;
        self.drop_values(&held)
    }
}

impl Ext4 {
    /// Returns the value in the inode `number`.
    pub(super) fn value_of_inode(&self, number: u64, size_bytes: u32) -> Result<Vec<u8>> {
        let place = |e: Error| e.at(format!("xattr value inode {number}"));
        let inode = self.inode(number).map_err(place)?;
        let state = inode.state.read();
        let is_value = state.raw.flags.get() & inode_flags::EA_INODE != 0;
        if !is_value
            || !state.layout.has_blocks()
            || state.recorded_size() != u64::from(size_bytes)
            || size_bytes > VALUE_LEN_MAX
        {
            return Err(place(Error::corrupt(
                "not an attribute value of the recorded size",
            )));
        }
        let mut bytes = vec![0; size_bytes as usize];
        for (chunk, logical) in bytes.chunks_mut(self.volume.block_size).zip(0..) {
            if let MappedRange::Data { physical, .. } = state.map.lookup(LogicalBlock(logical)) {
                let PhysicalBlock(number) = physical;
                let block = self.volume.metadata.block(PhysicalBlock(number));
                chunk.copy_from_slice(&block.map_err(place)?.read()[..chunk.len()]);
            }
        }
        Ok(bytes)
    }
}

impl Volume {
    /// Returns the seed of the checksums of values, which need no `metadata_csum`.
    fn value_checksum_seed(&self) -> u32 {
        let raw = &self.geometry.raw;
        if self.has_incompat(Incompat::METADATA_CSUM_SEED) {
            raw.checksum_seed.get()
        } else {
            crc32c(!0, &raw.uuid)
        }
    }
}

/// Returns the numbers of the inodes with values of `xattrs`.
pub(super) fn value_numbers(xattrs: &[Xattr]) -> impl Iterator<Item = u64> {
    xattrs.iter().filter_map(|xattr| match xattr.value {
        XattrValue::EaInode { number, .. } => Some(number.0),
        XattrValue::Inline(_) => None,
    })
}

fn references(raw: &RawInode) -> u64 {
    u64::from(raw.ctime.get()) << 32 | u64::from(raw.version_lo.get())
}

fn set_references(raw: &mut RawInode, count: u64) {
    raw.ctime = ((count >> 32) as u32).into();
    raw.version_lo = (count as u32).into();
}
