//! Linux's file I/O path as a library: a VFS, a page cache, file systems and disk images as
//! function calls, without root, mount, kernel module or virtual machine.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.qcow2");
//! use folio::Image;
//! use std::io::Write;
//!
//! // A new qcow2 image of 64 MiB with an ext4 file system.
//! let fs = Image::create(&path, 64 << 20).mount()?;
//! fs.create_dir_all("/etc/app")?;
//! fs.write("/etc/app/config.toml", "level = \"debug\"\n")?;
//! let mut log = fs.create("/log")?;
//! writeln!(log, "started")?;
//! log.sync_all()?;
//! drop(log);
//! fs.close()?;
//!
//! let fs = Image::file(&path).read_only().mount()?;
//! for entry in fs.walk("/etc")? {
//!     println!("{}", entry?.path().display());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What to open
//!
//! | source | call |
//! |---|---|
//! | image file, raw or qcow2, with or without partitions | [`Image::file`], [`Image::create`] |
//! | device of your own | [`Image::device`] with an [`Arc`](std::sync::Arc) of a [`block::Device`] |
//! | directory of the host | [`Fs::host`] |
//! | memory | [`Fs::memory`] |
//! | memory of a GPU | [`Kernel::mount_gpufs`] with a device of the crate `folio-cuda` |
//! | several of them in one tree | [`Kernel`] with its `mount_*` methods, then [`Fs::new`] |
//! | file system of your own | [`Kernel::mount`] with an implementation of [`vfs::FileSystem`] |
//!
//! [`Fs`] and [`File`] have the names of `std::fs`. [`Process`] has the system calls themselves,
//! with Linux's names, flags and errnos: `openat`, `renameat2`, `fallocate`, `copy_file_range`,
//! extended attributes, `fiemap`.
//!
//! # Layers
//!
//! ```text
//!   program   C, C++, Go   Python    mount, guest, `folio run`    block clients    shell
//!      |          |           |               |                        |             |
//!      |       folio-c     foliofs     folio-fuse, folio-remote      folio-export    folio-cli
//!      +----------+-----------+---------------+------------------------+-------------+
//!                           v
//!                       Fs, File        std::fs-like convenience API
//!                       syscall/        system calls             fds, flags, errno
//!                           v
//!                         vfs/          names and open files     path walk, dentry, inode, mount, file
//!              data  +------+------+    names, attributes
//!                    v             |    [file system trait: vfs/filesystem.rs]
//!                 cache/           |    page cache               folio, mapping, readahead, writeback
//!              hit: done           v
//!              miss: [store trait] fs/  file systems             ramfs, tmpfs, ext4, fat, hostfs
//!                                  |    [device trait: block/device.rs]
//!                                  v
//!                               block/  devices and images       raw, qcow2, memory
//!                               base/   shared vocabulary        errno, error, ids, time
//! ```
//!
//! Three traits join the layers: [`vfs::FileSystem`] with [`vfs::Inode`], [`cache::Store`] and
//! [`block::Device`]. [`Kernel`] is the composition root: only its module names concrete file
//! systems and devices.
//!
//! # Errors
//!
//! [`Fs`], [`File`] and [`Image`] return [`std::io::Error`]. The layers below return [`Error`]:
//! an errno, and where it is known, operation, place and cause ("disk.img: ext4: inode 12: extent
//! block 8193: bad checksum"). `?` converts an [`Error`] into an `io::Error` and loses nothing:
//! [`errno_of`] returns the errno of both; `get_ref()` and a downcast give the [`Error`] back.
//!
//! # Durability
//!
//! Written bytes are in the page cache when a call returns; background threads write them to the
//! image. They survive a power cut after [`File::sync_all`] or [`Fs::sync`]. [`Fs::close`] syncs,
//! marks the image clean and reports what dropping the handle would lose.
//!
//! # Threads
//!
//! Every handle is `Send` and `Sync`; calls block the calling thread. Cached reads, `stat` and path
//! walks take no lock. A mounted image has background threads for readahead, writeback and the
//! journal. After fork(2) a child process must not use handles of its parent.
//!
//! # Features
//!
//! All but the last three are on by default. `default-features = false` leaves raw images, ext4,
//! ramfs and tmpfs, and builds no C code.
//!
//! | feature | adds |
//! |---|---|
//! | `qcow2` | the image format qcow2 |
//! | `compress` | compressed clusters of qcow2 images (libdeflate and zstd, two C libraries) |
//! | `partitions` | GPT and MBR partition tables |
//! | `fat` | FAT12, FAT16 and FAT32 |
//! | `hostfs` | directories of the host as file systems ([`Fs::host`]) |
//! | `squashfs` | squashfs, read only (the crate backhand) |
//! | `erofs` | erofs, read only (the crate erofs-rs) |
//! | `verity` | hash trees of dm-verity (`block::tools::verity`) |
//!
//! # Limits
//!
//! - Linux only (the host; the images come from any system).
//! - ext2, ext3 and ext4 are read and written with the features that mke2fs 1.47 enables by
//!   default, and with those in docs/ext4-features.md. Other features are read only or refused by
//!   name.
//! - One program writes an image at a time; a lock that QEMU understands enforces it.
//! - No mmap(2), no locks of fcntl(2); a process has no root directory of its own (chroot).

#![deny(unsafe_code)]

pub mod base;
pub mod block;
pub mod cache;
mod facade;
mod fs;
mod kernel;
pub mod syscall;
pub mod testing;
pub mod vfs;

pub use base::{AlignedBuffer, Detail, Errno, Error, ErrorKind, Result, Timespec, errno_of};
pub use facade::{DirEntry, File, Fs, Image, Metadata, OpenOptions, ReadDir, Walk};
#[cfg(feature = "fat")]
pub use fs::fat;
pub use fs::{ext4, ramfs};
pub use kernel::{Kernel, KernelOptions};
pub use syscall::Process;
