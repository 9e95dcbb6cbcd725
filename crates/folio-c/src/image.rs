//! New images and new file systems.

use crate::argument::Text;
use crate::call::call;
use crate::constants::FOLIO_MKFS_FORCE;
use crate::device::{FolioDeviceOps, device_of};
use crate::fork;
use crate::kernel::at;
use crate::options::{self, Growable};
use folio::base::Owner;
use folio::block::{self, CreateOptions, Device, FileSystemKind, ImageFormat};
use folio::ext4::{self, FormatOptions};
use folio::{Errno, Error, Result};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Bytes at the start of a device in which file systems and partition tables leave their marks.
const HEAD_BYTES: u64 = 128 << 10;

/// Options of folio_image_create(); fields that are 0 have their default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FolioImageOptions {
    /// sizeof(struct folio_image_options).
    pub size: usize,
    /// "raw" or "qcow2". By default qcow2 for a name that ends in .qcow2, else raw.
    pub format: *const c_char,
    /// Size of a cluster of qcow2, in bytes.
    pub cluster_bytes: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: integers and a pointer, the first of them a `usize`.
unsafe impl Growable for FolioImageOptions {}

/// Creates an image of `length` bytes that reads as zeros. Fails with -EEXIST if the file exists.
/// `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folio_image_create(
    path: Text,
    length: u64,
    options: *const FolioImageOptions,
) -> c_int {
    call("image_create", || {
        // SAFETY: by the contract of the crate.
        let options = unsafe { options::read(options) }?;
        let path = path.path()?;
        let mut format = ImageFormat::of_name(path);
        let mut create = CreateOptions::default();
        if let Some(options) = options {
            if !options.format.is_null() {
                // SAFETY: not null, so a string of the program.
                let word = unsafe { CStr::from_ptr(options.format) };
                format = parse_format(word)?;
            }
            if options.cluster_bytes != 0 {
                create.cluster_bytes = options.cluster_bytes;
            }
        }
        fork::note_use();
        block::create_with(path, format, length, &create)?;
        Ok(0)
    })
}

fn parse_format(word: &CStr) -> Result<ImageFormat> {
    match word.to_bytes() {
        b"raw" => Ok(ImageFormat::Raw),
        b"qcow2" => Ok(ImageFormat::Qcow2),
        _ => {
            let message = format!("unknown image format {word:?}: expected raw or qcow2");
            Err(Error::new(Errno::INVAL, message))
        }
    }
}

/// Options of folio_mkfs_ext4(); fields that are 0 have the default of mke2fs(8).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FolioMkfsOptions {
    /// sizeof(struct folio_mkfs_options).
    pub size: usize,
    /// FOLIO_MKFS_FORCE.
    pub flags: u32,
    /// Bytes per block: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Volume label, at most 16 bytes.
    pub label: *const c_char,
    /// UUID, 16 bytes; random if null.
    pub uuid: *const u8,
    /// Bytes of the device per inode.
    pub inode_ratio: u32,
    /// Number of inodes.
    pub inode_count: u32,
    /// Owner of the root directory.
    pub root_uid: u32,
    pub root_gid: u32,
}

// SAFETY: integers and pointers, the first of them a `usize`.
unsafe impl Growable for FolioMkfsOptions {}

/// Makes an empty ext4 file system on the image `source` (IMAGE, or IMAGE@N for its Nth
/// partition), which exists. Fails with -EEXIST unless its first 128 KiB are zeros, or
/// FOLIO_MKFS_FORCE is set. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folio_mkfs_ext4(source: Text, options: *const FolioMkfsOptions) -> c_int {
    call("mkfs_ext4", || {
        // SAFETY: by the contract of the crate.
        let options = unsafe { options::read(options) }?;
        let name = source.path()?;
        let (image, partition) = block::partition::split_partition(name.as_os_str());
        fork::note_use();
        let mut device = block::open(&image, &block::OpenOptions::default())?;
        if let Some(partition) = partition {
            let number = partition.number(&*device);
            let selected = number.and_then(|number| block::partition::select(device, Some(number)));
            device = selected.map_err(|error| at(error, name))?;
        }
        format(&*device, options).map_err(|error| at(error, name))
    })
}

/// Makes an empty ext4 file system on a device of the program's own, as folio_mkfs_ext4() does.
/// `ops->release` is called in the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn folio_mkfs_ext4_device(
    ops: *const FolioDeviceOps,
    context: *mut c_void,
    options: *const FolioMkfsOptions,
) -> c_int {
    call("mkfs_ext4_device", || {
        // SAFETY: by the contract of the crate.
        let device = unsafe { device_of(ops, context) }?;
        // SAFETY: as above.
        let options = unsafe { options::read(options) }?;
        format(&*device, options)
    })
}

fn format(device: &dyn Device, options: Option<FolioMkfsOptions>) -> Result<c_int> {
    let mut made = FormatOptions::default();
    let mut flags = 0;
    if let Some(options) = options {
        flags = options.flags;
        let given = |value: u32| (value != 0).then_some(value);
        made.block_size = given(options.block_size);
        made.inode_ratio = given(options.inode_ratio);
        made.inode_count = given(options.inode_count);
        made.root_owner = Owner::new(options.root_uid, options.root_gid);
        if !options.label.is_null() {
            // SAFETY: not null, so a string of the program.
            let label = unsafe { CStr::from_ptr(options.label) };
            let label = label.to_str().map_err(|_| Errno::INVAL)?;
            made.label = label.to_owned();
        }
        // SAFETY: null, or 16 bytes of the program.
        made.uuid = unsafe { options.uuid.cast::<[u8; 16]>().as_ref() }.copied();
    }
    if flags & !FOLIO_MKFS_FORCE != 0 {
        return Err(Errno::INVAL.into());
    }
    if flags & FOLIO_MKFS_FORCE == 0 {
        refuse_used(device)?;
    }
    ext4::format(device, &made)?;
    Ok(0)
}

/// Fails with EEXIST unless the start of the device is zeros.
fn refuse_used(device: &dyn Device) -> Result<()> {
    let mut head = vec![0; device.len_bytes().min(HEAD_BYTES) as usize];
    device.read_at(&mut head, 0)?;
    if head.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let found = match block::contents(device)? {
        Some(name) => name,
        None if FileSystemKind::of(device)?.is_some() => "ext4",
        None => "data",
    };
    let message = format!("it holds {found}: set FOLIO_MKFS_FORCE to overwrite it");
    Err(Error::new(Errno::EXIST, message))
}
