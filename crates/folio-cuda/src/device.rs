//! The device trait: frame memory of a processor that runs kernels.

use folio::Result;
use folio::fs::ramfs::FrameMemory;
use std::ops::Range;

/// A device whose memory can have frames, and which runs the kernels of device/kernels.cu.
pub trait Device: FrameMemory {
    /// Runs `kernel` with `blocks` blocks of `lanes` lanes, and waits for its end. Every argument
    /// is one word: an address or a number.
    ///
    /// # Errors
    /// ENOENT for an unknown kernel, EIO if the kernel fails.
    fn launch(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()>;

    /// Allocates a buffer in the host's memory from which the device copies.
    ///
    /// # Errors
    /// ENOMEM.
    fn staging(&self, len_bytes: usize) -> Result<Box<dyn Staging + '_>>;
}

/// A buffer in the host's memory from which a device copies while the host does other work.
pub trait Staging {
    /// Waits until the device has copied what was submitted; returns the bytes.
    ///
    /// # Errors
    /// EIO if the copy failed.
    fn bytes(&mut self) -> Result<&mut [u8]>;

    /// Starts copying ranges of the buffer to device addresses. They must be allocated until
    /// [`Staging::bytes`] returned or the buffer is dropped, which waits, too.
    ///
    /// # Errors
    /// EIO if the copy cannot be started.
    fn submit(&mut self, parts: &[(u64, Range<usize>)]) -> Result<()>;
}
