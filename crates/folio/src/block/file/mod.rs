//! The file seam: the files that images are stored in.
//!
//! ```text
//!   raw, qcow2
//!       |
//!   facts.rs       files of both kinds, for reading
//!       |
//!   [file seam: image_file.rs]  ImageFile    a file that grows when written
//!       |             |
//!   host_file.rs   device_file.rs            a host file or block device; a file on a Device
//!       |             |
//!       |          remote.rs                 [remote seam] files with URLs for names
//!       |
//!   lock.rs         QEMU's image locks
//!   kernel_use.rs   loop devices, mounts and swap of the host's kernel
//!   write_behind.rs early writeback of streams
//!   direct_read.rs  reads past the host's page cache
//!       |
//!   holder.rs       the programs that have a file open, for messages
//! ```
//!
//! Neighbors: above, the image formats; below, the host's system calls and [`super::Device`].

mod device_file;
mod direct_read;
mod facts;
mod holder;
mod host_file;
mod image_file;
mod kernel_use;
mod lock;
mod remote;
mod write_behind;

#[cfg(feature = "qcow2")]
pub(crate) use device_file::DeviceFile;
pub(crate) use facts::open_for_facts;
pub(crate) use host_file::{FileLock, HostFile};
pub(crate) use image_file::ImageFile;
pub use lock::check_unused;
#[cfg(feature = "qcow2")]
pub(crate) use remote::resolve_remote;
pub(crate) use remote::{RemoteFile, refuse_remote, remote};
pub use remote::{RemoteImage, RemoteImages, provide_remote_images};
