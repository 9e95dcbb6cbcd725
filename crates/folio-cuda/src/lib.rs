//! Files in a GPU's memory: a ramfs whose pages the host reads and writes by system calls, and
//! kernels read and write where they are.
//!
//! ```text
//!   system calls of Process                      kernels: folio_dev_pread, folio_dev_pwrite
//!            v                                          ^  device/folio_device.h
//!   [folio: fs/ramfs, kernel.mount_gpufs]               |
//!     names, attributes; frame_file.rs                launch.rs    epochs, misses, sizes
//!            v                                          ^
//!   [frame memory trait] ---- frames of a file ----> table.rs      (file, index) -> frame
//!            ^
//!        device.rs   [Device trait: kernels, staging buffers]      fill.rs   a file from any mount
//!            ^
//!        driver/cuda.rs   the CUDA driver, by cudarc (feature `cuda`)
//!        driver/host.rs   the device code compiled for the host: tests
//!        source.rs        the text of the device code
//!        driver/nvrtc.rs  kernels to PTX and machine code (feature `cuda`)
//! ```
//!
//! Names, attributes and sizes are the host's; a kernel sees them as of its launch. While a launch
//! runs, its table holds the frames it names, so that neither truncation nor unlink reuses them.
//! docs/gpu.md has the rules of consistency, and says when this pays.
//!
//! Only `driver` has unsafe code.

#![deny(unsafe_code)]

mod device;
mod driver;
mod fill;
mod launch;
mod source;
mod table;

pub use device::{Device, Staging};
#[cfg(feature = "cuda")]
pub use driver::cuda::CudaDevice;
pub use driver::host::HostDevice;
#[cfg(feature = "cuda")]
pub use driver::nvrtc::{Target, compile};
pub use driver::open;
pub use fill::fill;
pub use launch::{Absent, Launch, LaunchReport};
pub use source::{HEADER, KERNELS};
