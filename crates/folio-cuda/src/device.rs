//! The device trait: frame memory of a processor that runs kernels.

use folio::Result;
use folio::ramfs::FrameMemory;
use std::ops::Range;
use std::time::Instant;

/// A device whose memory can have frames, and which runs the kernels of device/kernels.cu.
pub trait Device: FrameMemory {
    /// Returns the name, for reports.
    fn name(&self) -> String;

    /// Starts `kernel` with `blocks` blocks of `lanes` lanes, after the calls before. Every
    /// argument is one word: an address or a number.
    ///
    /// # Errors
    /// ENOENT for an unknown kernel, EINVAL if it has another number of parameters, EIO if it
    /// cannot be started.
    fn start(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()>;

    /// Waits for the end of all calls before.
    ///
    /// # Errors
    /// EIO if one of them failed.
    fn wait(&self) -> Result<()>;

    /// Starts `kernel`, and waits for its end.
    ///
    /// # Errors
    /// Those of [`Device::start`] and [`Device::wait`].
    fn launch(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()> {
        self.start(kernel, blocks, lanes, arguments)?;
        self.wait()
    }

    /// Returns how many seconds the device needs for what `work` starts.
    ///
    /// # Errors
    /// Those of `work` and [`Device::wait`].
    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.wait()?;
        let start = Instant::now();
        work()?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Copies `len_bytes` from one address to another, after the calls before.
    ///
    /// # Errors
    /// EIO if the copy cannot be started.
    fn copy(&self, to: u64, from: u64, len_bytes: u64) -> Result<()>;

    /// Copies bytes of ordinary memory by one call of the driver, as cudaMemcpy does: the rival of
    /// [`crate::fill`].
    ///
    /// # Errors
    /// EIO if the device fails.
    fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()>;

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
