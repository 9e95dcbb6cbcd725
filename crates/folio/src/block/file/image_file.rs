//! The file seam: what a format's driver stands on, be it a file of the host or a device.

use crate::base::{Errno, Error, Result};
use crate::block::{Allocation, iov};
use std::io::{IoSlice, IoSliceMut};

/// Zeros written at once where nothing below can make them itself.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A file that an image lies in. Unlike a [`Device`] it ends somewhere and grows by being written:
/// what lies between its end and a write beyond reads as zeros.
pub(crate) trait ImageFile: Send + Sync {
    /// How messages call it.
    fn name(&self) -> &str;

    /// Whether it was opened for reading only.
    fn is_read_only(&self) -> bool;

    /// Where the file ends now.
    fn len_bytes(&self) -> Result<u64>;

    /// Cuts or extends the file; the new part is a hole.
    fn set_len(&self, len_bytes: u64) -> Result<()>;

    /// Fills `bufs` from `offset` on, as far as the file goes; the count says how far.
    fn read_some(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64>;

    /// Writes all of `bufs` at `offset`, growing the file where needed.
    fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()>;

    /// Everything written so far survives a power cut.
    fn sync_data(&self) -> Result<()>;

    /// Gives a range's space back, so that it reads as zeros, where that can be done; whether it
    /// was.
    fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<bool>;

    /// Reserves space for a range inside or beyond the end, which reads as before and does not make
    /// the file longer; whether that can be done here.
    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<bool>;

    /// Makes a range inside the file read as zeros: as a hole if possible, else reserved, else
    /// written.
    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()>;

    /// What lies at `offset`, and for how many of `len_bytes` that goes on.
    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)>;

    /// Fills all of `bufs`; what lies beyond the end of the file reads as zeros.
    fn read_or_zeros(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let want = iov::len_mut(bufs);
        let done = self.read_some(bufs, offset)?;
        if done < want {
            iov::fill_zeros(&mut iov::window_mut(bufs, done, want - done));
        }
        Ok(())
    }

    /// Fills all of `bufs`; a file that ends before is EIO.
    fn read(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let want = iov::len_mut(bufs);
        let done = self.read_some(bufs, offset)?;
        if done == want {
            return Ok(());
        }
        let (end, wanted) = (offset + done, offset + want);
        Err(Error::new(
            Errno::IO,
            format!("read: the file ends at {end}, before {wanted}"),
        )
        .at(self.name().to_owned()))
    }

    /// Stores zeros.
    fn fill_with_zeros(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let mut done = 0;
        while done < len_bytes {
            let count = (len_bytes - done).min(ZEROS.len() as u64);
            self.write(&[IoSlice::new(&ZEROS[..count as usize])], offset + done)?;
            done += count;
        }
        Ok(())
    }
}
