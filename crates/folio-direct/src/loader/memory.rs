//! Copies from and to the memory of the program. The kernel makes them, so that a bad pointer is
//! EFAULT and no signal. Linux: process_vm_readv(2) of the calling process.

use crate::state::PID;
use crate::system::{Errno, PROCESS_VM_READV, PROCESS_VM_WRITEV, Result, host};
use core::sync::atomic::Ordering;

const PAGE_BYTES: usize = 4096;

fn transfer(number: usize, local: [usize; 2], address: usize) -> Result<usize> {
    let remote = [address, local[1]];
    let pid = PID.load(Ordering::Relaxed);
    host!(number, pid, &raw const local, 1, &raw const remote, 1, 0)
}

/// Reads memory of the program.
pub(crate) fn read_into(into: *mut u8, len_bytes: usize, address: usize) -> Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    match transfer(PROCESS_VM_READV, [into as usize, len_bytes], address)? {
        count if count == len_bytes => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Writes memory of the program.
pub(crate) fn write_from(from: *const u8, len_bytes: usize, address: usize) -> Result<()> {
    if len_bytes == 0 {
        return Ok(());
    }
    match transfer(PROCESS_VM_WRITEV, [from as usize, len_bytes], address)? {
        count if count == len_bytes => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Values that are bytes only.
///
/// # Safety
/// Every pattern of bytes is a value.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: integers.
unsafe impl Plain for usize {}
// SAFETY: integers.
unsafe impl Plain for i64 {}
// SAFETY: as the element.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Reads a value of the program.
pub(crate) fn read<T: Plain>(address: usize) -> Result<T> {
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    read_into(value.as_mut_ptr().cast(), size_of::<T>(), address)?;
    // SAFETY: each pattern of bytes is a value.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value of the program.
pub(crate) fn write<T: Plain>(value: &T, address: usize) -> Result<()> {
    write_from((&raw const *value).cast(), size_of::<T>(), address)
}

/// Reads a text of the program up to its zero byte; returns its length. `too_long` if it does not
/// fit.
pub(crate) fn read_text(into: &mut [u8], address: usize, too_long: Errno) -> Result<usize> {
    let mut len = 0;
    while len < into.len() {
        let at = address.wrapping_add(len);
        // A page that is not mapped may follow the zero byte.
        let part = (PAGE_BYTES - at % PAGE_BYTES).min(into.len() - len);
        let part = part.min(256);
        read_into(into[len..].as_mut_ptr(), part, at)?;
        if let Some(end) = into[len..len + part].iter().position(|byte| *byte == 0) {
            return Ok(len + end);
        }
        len += part;
    }
    Err(too_long)
}

/// One buffer of readv(2) or writev(2).
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) len_bytes: usize,
}

/// Buffers of the program: one, or an array of `struct iovec`.
#[derive(Clone, Copy)]
pub(crate) enum Buffers {
    One(Buffer),
    Many { address: usize, count: usize },
}

const BUFFERS_MAX: usize = 1024;

impl Buffers {
    pub(crate) fn many(address: usize, count: usize) -> Result<Self> {
        if count > BUFFERS_MAX {
            return Err(Errno::INVAL);
        }
        Ok(Self::Many { address, count })
    }

    /// The buffer of an index.
    pub(crate) fn get(self, index: usize) -> Result<Option<Buffer>> {
        match self {
            Self::One(buffer) => Ok((index == 0).then_some(buffer)),
            Self::Many { count, .. } if index >= count => Ok(None),
            Self::Many { address, .. } => {
                let [address, len_bytes]: [usize; 2] = read(address + 16 * index)?;
                if len_bytes > isize::MAX as usize {
                    return Err(Errno::INVAL);
                }
                Ok(Some(Buffer { address, len_bytes }))
            }
        }
    }
}
