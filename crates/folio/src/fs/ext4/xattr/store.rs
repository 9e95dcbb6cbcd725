//! The extended attributes of an inode: after its fields, and in a block that inodes may share.

use super::acl::{from_disk, to_disk};
use super::format::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_SYSTEM, INLINE_DATA_SUFFIX, Xattr,
    XattrLayout, XattrValue,
};
use super::values::value_numbers;
use crate::base::{Errno, Error, PhysicalBlock, Result};
use crate::fs::ext4::inode::state::InodeState;
use crate::fs::ext4::inode::{Ext4, Ext4Inode};
use crate::fs::ext4::layout::features::Incompat;
use crate::fs::ext4::space::BlockSource;
use crate::fs::ext4::space::reserved::ReservedBlocks;
use crate::vfs::{Acl, FileType, XattrFlags, set_access_acl};

/// A change of one attribute: [`Ext4Inode::plan_xattr`] checks it, [`Ext4Inode::apply_xattr`] makes
/// it.
pub(crate) struct XattrChange {
    index: u8,
    suffix: Vec<u8>,
    /// The new value as on disk; `None` removes the attribute.
    value: Option<Vec<u8>>,
    /// The mode that an access ACL brings.
    mode: Option<u16>,
}

impl Ext4Inode {
    /// Returns all attributes, those of the inode first.
    pub(super) fn stored_xattrs(&self, state: &InodeState) -> Result<Vec<Xattr>> {
        let mut xattrs = format::parse_inode_area(state.xattr_area())?;
        if state.xattr_block() != 0 {
            let number = PhysicalBlock(state.xattr_block());
            let block = self
                .fs
                .volume
                .metadata
                .block(number)
                .map_err(|e| e.at("extended attributes"))?;
            xattrs.extend(
                format::parse_block(&block.read(), number, self.fs.volume.checksum_seed)?.xattrs,
            );
        }
        Ok(xattrs)
    }

    /// Returns the full names of all attributes that listxattr(2) shows.
    pub(crate) fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let xattrs = self.stored_xattrs(&self.state.read())?;
        Ok(xattrs
            .iter()
            .filter(|x| !x.is_inline_data())
            .filter_map(Xattr::full_name)
            .collect())
    }

    /// Returns the value of one attribute.
    pub(crate) fn xattr_value(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let (index, suffix) = format::split_name(name)?;
        let xattrs = self.stored_xattrs(&self.state.read())?;
        let found = xattrs
            .into_iter()
            .find(|x| x.index == index && x.suffix == suffix && !x.is_inline_data());
        let Some(found) = found else { return Ok(None) };
        let value = self.value_of(found)?;
        match index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => Ok(Some(from_disk(&value)?.to_xattr())),
            _ => Ok(Some(value)),
        }
    }

    fn value_of(&self, xattr: Xattr) -> Result<Vec<u8>> {
        match xattr.value {
            XattrValue::Inline(bytes) => Ok(bytes),
            XattrValue::EaInode {
                number, size_bytes, ..
            } => self.fs.value_of_inode(number.0, size_bytes),
        }
    }

    /// Checks and encodes one attribute that is to be set (`Some`) or removed (`None`). The inode
    /// is not changed before [`Ext4Inode::apply_xattr`].
    ///
    /// # Errors
    /// EOPNOTSUPP for an unknown name, EACCES for a default ACL on a file, EINVAL for an
    /// invalid ACL.
    pub(crate) fn plan_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<XattrChange> {
        let (index, suffix) = format::split_name(name)?;
        let mut change = XattrChange {
            index,
            suffix: suffix.to_vec(),
            value: value.map(<[u8]>::to_vec),
            mode: None,
        };
        let probe = Xattr {
            index,
            suffix: suffix.to_vec(),
            value: XattrValue::Inline(Vec::new()),
        };
        if probe.is_inline_data() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if let (INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT, Some(bytes)) = (index, value) {
            if index == INDEX_ACL_DEFAULT && self.common.file_type != FileType::Directory {
                return Err(Errno::ACCESS.into());
            }
            change.value = match (Acl::from_xattr(bytes)?, index) {
                (None, _) => None,
                (Some(acl), INDEX_ACL_DEFAULT) => Some(to_disk(&acl)),
                (Some(acl), _) => {
                    let old = self.state.read().raw.mode.get();
                    let (new, stored) = set_access_acl(acl, old);
                    change.mode = Some(new);
                    stored.map(|acl| to_disk(&acl))
                }
            };
        }
        Ok(change)
    }

    /// Sets or removes one attribute.
    ///
    /// # Errors
    /// EEXIST and ENODATA as setxattr(2) and removexattr(2); ENOSPC.
    pub(crate) fn apply_xattr(
        &self,
        change: XattrChange,
        flags: XattrFlags,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let XattrChange {
            index,
            suffix,
            value,
            mode,
        } = change;
        let is_acl = matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
        let mut state = self.state_mut();
        let mut xattrs = self.stored_xattrs(&state)?;
        let at = xattrs
            .iter()
            .position(|x| x.index == index && x.suffix == suffix);
        match (at, value) {
            (Some(_), Some(_)) if flags.contains(XattrFlags::CREATE) => {
                return Err(Errno::EXIST.into());
            }
            (None, Some(_)) if flags.contains(XattrFlags::REPLACE) => {
                return Err(Errno::NODATA.into());
            }
            (None, None) if !is_acl => return Err(Errno::NODATA.into()),
            (None, None) => {}
            (Some(at), None) => drop(xattrs.remove(at)),
            (Some(at), Some(bytes)) => xattrs[at].value = XattrValue::Inline(bytes),
            (None, Some(bytes)) => xattrs.push(Xattr {
                index,
                suffix,
                value: XattrValue::Inline(bytes),
            }),
        }
        self.store_xattrs(&mut state, xattrs, reserved)?;
        if let Some(mode) = mode {
            state.raw.mode = mode.into();
        }
        state.set_changed(self.fs.volume.now());
        self.mark_dirty(&mut state);
        Ok(())
    }

    /// Updates the access ACL, if there is one, for a mode that chmod(2) sets.
    pub(crate) fn change_acl_mode(
        &self,
        state: &mut InodeState,
        mode: u16,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let mut xattrs = self.stored_xattrs(state)?;
        let acl = xattrs
            .iter_mut()
            .find(|xattr| xattr.index == INDEX_ACL_ACCESS);
        let Some(acl) = acl else { return Ok(()) };
        let bytes = self.value_of(acl.clone())?;
        acl.value = XattrValue::Inline(to_disk(&from_disk(&bytes)?.with_mode(mode)));
        self.store_xattrs(state, xattrs, reserved)
    }

    /// Writes all attributes of the inode, replacing those it has.
    fn store_xattrs(
        &self,
        state: &mut InodeState,
        mut xattrs: Vec<Xattr>,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let volume = &self.fs.volume;
        // Before the change: afterwards the old references are unknown.
        let mut held = self.held_values(state)?;
        let before = if volume.has_incompat(Incompat::EA_INODE) {
            self.stored_xattrs(state)?
        } else {
            Vec::new()
        };
        let (layout, made) = self.lay_out(state, &mut xattrs, reserved)?;
        // The new values have no entry then: their references must not stay.
        if let Err(error) = self.store_layout(state, layout, reserved) {
            self.drop_values(&made)?;
            return Err(error);
        }
        volume.note_xattr();
        held.extend(made);
        let after: Vec<u64> = value_numbers(&xattrs).collect();
        self.change_references(&held, &after)?;
        self.charge_values(state, &before, &xattrs);
        Ok(())
    }

    /// Writes encoded attributes into the inode and its block.
    ///
    /// # Errors
    /// ENOSPC: nothing has changed then.
    fn store_layout(
        &self,
        state: &mut InodeState,
        layout: XattrLayout,
        reserved: ReservedBlocks,
    ) -> Result<()> {
        let volume = &self.fs.volume;
        match layout.block {
            None => self.drop_xattr_block(state)?,
            Some(mut bytes) => {
                let old = state.xattr_block();
                let number = if old != 0 && !self.is_shared(old)? {
                    PhysicalBlock(old)
                } else {
                    // Before the old block is dropped: without space nothing has changed.
                    let number = volume.allocate_metadata(BlockSource::Free(reserved))?;
                    self.drop_xattr_block(state)?;
                    state.set_xattr_block(number.0);
                    state.charge_blocks(volume.geometry.cluster_blocks.into(), volume.block_size);
                    number
                };
                format::seal_block(&mut bytes, number, volume.checksum_seed);
                volume
                    .metadata
                    .new_block(number)?
                    .write()
                    .copy_from_slice(&bytes);
            }
        }
        // Last: everything that can fail has succeeded.
        state.xattr_area_mut().copy_from_slice(&layout.inode_area);
        Ok(())
    }

    /// Whether other inodes use the block of attributes `block`, too.
    pub(super) fn is_shared(&self, block: u64) -> Result<bool> {
        let number = PhysicalBlock(block);
        let block = self.fs.volume.metadata.block(number)?;
        let count = format::parse_block(&block.read(), number, self.fs.volume.checksum_seed)?
            .reference_count;
        Ok(count > 1)
    }

    /// Drops the inode's reference to its block of attributes, which is freed with the last one.
    pub(super) fn drop_xattr_block(&self, state: &mut InodeState) -> Result<()> {
        if state.xattr_block() == 0 {
            return Ok(());
        }
        let volume = &self.fs.volume;
        let number = PhysicalBlock(state.xattr_block());
        let block = volume.metadata.block(number)?;
        let count =
            format::parse_block(&block.read(), number, volume.checksum_seed)?.reference_count;
        if count > 1 {
            let mut bytes = block.write();
            format::set_reference_count(&mut bytes, count - 1);
            format::seal_block(&mut bytes, number, volume.checksum_seed);
        } else {
            drop(block);
            volume.free_metadata(number.0..number.0 + 1)?;
        }
        state.set_xattr_block(0);
        let cluster_blocks = i64::from(volume.geometry.cluster_blocks);
        state.charge_blocks(-cluster_blocks, volume.block_size);
        Ok(())
    }

    /// Returns the value of `system.data`, which continues an inline file.
    pub(crate) fn inline_data(&self, state: &InodeState) -> Result<Option<Vec<u8>>> {
        let xattrs = format::parse_inode_area(state.xattr_area())?;
        match xattrs
            .into_iter()
            .find(Xattr::is_inline_data)
            .map(|x| x.value)
        {
            Some(XattrValue::Inline(bytes)) => Ok(Some(bytes)),
            Some(XattrValue::EaInode { .. }) => Err(Error::corrupt("inline data in another inode")),
            None => Ok(None),
        }
    }

    /// Sets (`Some`) or removes (`None`) the attribute `system.data`. All other attributes stay
    /// where they are, so that nothing is allocated.
    ///
    /// # Errors
    /// ENOSPC if the value is longer than [`Ext4Inode::inline_data_max`].
    pub(crate) fn set_inline_data(
        &self,
        state: &mut InodeState,
        value: Option<&[u8]>,
    ) -> Result<()> {
        let mut xattrs = format::parse_inode_area(state.xattr_area())?;
        xattrs.retain(|xattr| !xattr.is_inline_data());
        xattrs.extend(value.map(|value| Xattr {
            index: INDEX_SYSTEM,
            suffix: INLINE_DATA_SUFFIX.to_vec(),
            value: XattrValue::Inline(value.to_vec()),
        }));
        let area = format::lay_out_inode_area(&xattrs, state.xattr_area().len())?;
        state.xattr_area_mut().copy_from_slice(&area);
        Ok(())
    }

    /// Returns the longest value that `system.data` can get, in bytes; `None` if the inode has no
    /// room for the attribute.
    pub(crate) fn inline_data_max(&self, state: &InodeState) -> Result<Option<usize>> {
        let area = state.xattr_area();
        let xattrs = format::parse_inode_area(area)?;
        Ok(format::inline_data_max(&xattrs, area.len()))
    }
}

impl Ext4 {
    /// Checks that the mount has attributes like `name`.
    ///
    /// # Errors
    /// EOPNOTSUPP under `nouser_xattr` or `noacl`.
    pub(crate) fn check_namespace(&self, name: &[u8]) -> Result<()> {
        let is_absent = (!self.volume.options.user_xattr && name.starts_with(b"user."))
            || (!self.volume.options.acl && name.starts_with(b"system.posix_acl_"));
        if is_absent {
            Err(Errno::OPNOTSUPP.into())
        } else {
            Ok(())
        }
    }
}
