//! Where an inode's extended attributes lie: behind its fields, and in a block that inodes may
//! share.

use super::acl::{from_disk, to_disk};
use super::format::{self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, Value, Xattr};
use crate::base::{Errno, Error, PhysicalBlock, Result};
use crate::fs::ext4::Ext4;
use crate::fs::ext4::directory::inline_data;
use crate::fs::ext4::inode::{Ext4Inode, InodeState, Layout};
use crate::fs::ext4::layout::disk::inode_flags;
use crate::vfs::{Acl, FileType, XattrFlags, set_access_acl};
use std::io::IoSliceMut;

/// Largest value that is read from an inode of its own (the kernel's limit for all values).
const VALUE_LEN_MAX: u32 = 64 << 10;

impl Ext4Inode {
    fn stored_xattrs(&self, state: &InodeState) -> Result<Vec<Xattr>> {
        let mut xattrs = format::parse_inode_area(state.xattr_area())?;
        if state.xattr_block() != 0 {
            let number = PhysicalBlock(state.xattr_block());
            let block = self
                .fs
                .metadata
                .block(number)
                .map_err(|e| e.at("extended attributes"))?;
            xattrs
                .extend(format::parse_block(&block.read(), number, self.fs.checksum_seed)?.xattrs);
        }
        Ok(xattrs)
    }

    /// Names of all attributes a program may ask for.
    pub(crate) fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let xattrs = self.stored_xattrs(&self.state.read())?;
        Ok(xattrs
            .iter()
            .filter(|x| !x.is_inline_data())
            .filter_map(Xattr::full_name)
            .collect())
    }

    /// The value of one attribute.
    pub(crate) fn xattr_value(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let (index, suffix) = format::split_name(name)?;
        let xattrs = self.stored_xattrs(&self.state.read())?;
        let found = xattrs
            .into_iter()
            .find(|x| x.index == index && x.suffix == suffix && !x.is_inline_data());
        let Some(found) = found else { return Ok(None) };
        let value = match found.value {
            Value::Inline(bytes) => bytes,
            Value::EaInode {
                number, size_bytes, ..
            } => self.fs.value_of_inode(number.0, size_bytes)?,
        };
        match index {
            INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => Ok(Some(from_disk(&value)?.to_xattr())),
            _ => Ok(Some(value)),
        }
    }

    /// Sets (`Some`) or removes (`None`) one attribute.
    pub(crate) fn change_xattr(
        &self,
        name: &[u8],
        value: Option<&[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        let (index, suffix) = format::split_name(name)?;
        let probe = Xattr {
            index,
            suffix: suffix.to_vec(),
            value: Value::Inline(Vec::new()),
        };
        if probe.is_inline_data() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let mut mode = None;
        let mut value = value.map(<[u8]>::to_vec);
        if let (INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT, Some(bytes)) = (index, &value) {
            if index == INDEX_ACL_DEFAULT && self.common.file_type != FileType::Directory {
                return Err(Errno::ACCESS.into());
            }
            value = match (Acl::from_xattr(bytes)?, index) {
                (None, _) => None,
                (Some(acl), INDEX_ACL_DEFAULT) => Some(to_disk(&acl)),
                (Some(acl), _) => {
                    let old = self.state.read().raw.mode.get();
                    let (new, stored) = set_access_acl(acl, old);
                    mode = Some(new);
                    stored.map(|acl| to_disk(&acl))
                }
            };
        }
        let is_acl = matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
        self.bring_out_of_line()?;
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
            (Some(at), Some(bytes)) => xattrs[at].value = Value::Inline(bytes),
            (None, Some(bytes)) => xattrs.push(Xattr {
                value: Value::Inline(bytes),
                ..probe
            }),
        }
        self.store_xattrs(&mut state, &xattrs)?;
        if let Some(mode) = mode {
            state.raw.mode = mode.into();
        }
        state.set_changed(self.fs.now());
        self.mark_dirty(&mut state);
        Ok(())
    }

    /// Brings the access ACL, if there is one, in line with a mode that chmod(2) sets.
    pub(crate) fn change_acl_mode(&self, state: &mut InodeState, mode: u16) -> Result<()> {
        let mut xattrs = self.stored_xattrs(state)?;
        for xattr in &mut xattrs {
            if let (INDEX_ACL_ACCESS, Value::Inline(bytes)) = (xattr.index, &mut xattr.value) {
                *bytes = to_disk(&from_disk(bytes)?.with_mode(mode));
                return self.store_xattrs(state, &xattrs);
            }
        }
        Ok(())
    }

    fn store_xattrs(&self, state: &mut InodeState, xattrs: &[Xattr]) -> Result<()> {
        let fs = &self.fs;
        let layout = format::lay_out(xattrs, state.xattr_area().len(), fs.block_size)?;
        match layout.block {
            None => self.drop_xattr_block(state)?,
            Some(mut bytes) => {
                let old = state.xattr_block();
                let number = match old != 0 && !self.is_shared(old)? {
                    true => PhysicalBlock(old),
                    false => {
                        let number = fs.allocate_metadata(false)?;
                        self.drop_xattr_block(state)?;
                        state.set_xattr_block(number.0);
                        state.charge_blocks(1, fs.block_size);
                        number
                    }
                };
                format::seal_block(&mut bytes, number, fs.checksum_seed);
                fs.metadata
                    .new_block(number)?
                    .write()
                    .copy_from_slice(&bytes);
            }
        }
        state.xattr_area_mut().copy_from_slice(&layout.inode_area);
        Ok(())
    }

    fn is_shared(&self, block: u64) -> Result<bool> {
        let number = PhysicalBlock(block);
        let block = self.fs.metadata.block(number)?;
        let count =
            format::parse_block(&block.read(), number, self.fs.checksum_seed)?.reference_count;
        Ok(count > 1)
    }

    /// Lets go of the inode's xattr block, which is freed with its last user.
    pub(crate) fn drop_xattr_block(&self, state: &mut InodeState) -> Result<()> {
        if state.xattr_block() == 0 {
            return Ok(());
        }
        let fs = &self.fs;
        let number = PhysicalBlock(state.xattr_block());
        let block = fs.metadata.block(number)?;
        let count = format::parse_block(&block.read(), number, fs.checksum_seed)?.reference_count;
        if count > 1 {
            let mut bytes = block.write();
            format::set_reference_count(&mut bytes, count - 1);
            format::seal_block(&mut bytes, number, fs.checksum_seed);
        } else {
            drop(block);
            fs.free_metadata(number.0..number.0 + 1)?;
        }
        state.set_xattr_block(0);
        state.charge_blocks(-1, fs.block_size);
        Ok(())
    }

    /// The value of system.data, which continues an inline file.
    pub(crate) fn inline_data(&self, state: &InodeState) -> Result<Option<Vec<u8>>> {
        let xattrs = format::parse_inode_area(state.xattr_area())?;
        match xattrs
            .into_iter()
            .find(Xattr::is_inline_data)
            .map(|x| x.value)
        {
            Some(Value::Inline(bytes)) => Ok(Some(bytes)),
            Some(Value::EaInode { .. }) => Err(Error::corrupt("inline data in another inode")),
            None => Ok(None),
        }
    }

    /// The bytes of a file kept in its inode.
    pub(crate) fn inline_bytes(&self, state: &InodeState) -> Result<Vec<u8>> {
        let data = self.inline_data(state)?;
        Ok(inline_data::contents(
            &state.raw.block,
            data.as_deref(),
            state.recorded_size(),
        ))
    }

    /// Turns a file kept in its inode into one with blocks, as every change but to its attributes
    /// needs.
    pub(crate) fn bring_out_of_line(&self) -> Result<()> {
        let bytes = {
            let state = self.state.read();
            if state.layout != Layout::Inline {
                return Ok(());
            }
            self.inline_bytes(&state)?
        };
        let Some(mapping) = &self.common.mapping else {
            return Err(Error::unsupported(
                "changing a directory or link kept in its inode (inline_data)",
            ));
        };
        {
            let mut state = self.state_mut();
            self.reserve(
                &mut state,
                0..bytes.len().div_ceil(self.fs.block_size) as u32,
            )?;
            let mut xattrs = self.stored_xattrs(&state)?;
            xattrs.retain(|x| !x.is_inline_data());
            self.store_xattrs(&mut state, &xattrs)?;
            state.layout = Layout::Extents;
            state.map_is_dirty = true;
            // The bytes leave the inode only together with the transaction that knows where they
            // are.
            state.disk_size = 0;
            let flags = state.raw.flags.get() & !inode_flags::INLINE_DATA | inode_flags::EXTENTS;
            state.raw.flags.set(flags);
            self.mark_dirty(&mut state);
        }
        self.order();
        mapping.write(0, &bytes).map(drop)
    }
}

impl Ext4 {
    /// EOPNOTSUPP for attributes that the mount goes without (`nouser_xattr`, `noacl`).
    pub(crate) fn check_namespace(&self, name: &[u8]) -> Result<()> {
        let is_absent = (!self.options.user_xattr && name.starts_with(b"user."))
            || (!self.options.acl && name.starts_with(b"system.posix_acl_"));
        if is_absent {
            Err(Errno::OPNOTSUPP.into())
        } else {
            Ok(())
        }
    }

    /// An attribute's value that has an inode of its own (`ea_inode`).
    fn value_of_inode(&self, number: u64, size_bytes: u32) -> Result<Vec<u8>> {
        let place = |e: Error| e.at(format!("xattr value inode {number}"));
        let inode = self.inode(number).map_err(place)?;
        let is_value = inode.state.read().raw.flags.get() & inode_flags::EA_INODE != 0;
        let recorded = inode.state.read().recorded_size();
        if !is_value || recorded != u64::from(size_bytes) || size_bytes > VALUE_LEN_MAX {
            return Err(place(Error::corrupt("is no attribute value of that size")));
        }
        let page = crate::base::PAGE_SIZE;
        let mut bytes = vec![0; (size_bytes as usize).next_multiple_of(page)];
        inode
            .read_data(0, &mut [IoSliceMut::new(&mut bytes)])
            .map_err(place)?;
        bytes.truncate(size_bytes as usize);
        Ok(bytes)
    }
}
