//! Descriptors of the image, and their placeholders.

use crate::layout::{DESCRIPTORS_MAX, RESERVED};
use crate::state::{BASE, DESCRIPTORS};
use crate::system::{Errno, FCNTL, MEMFD_CREATE, O_CLOEXEC, Result, close, host};
use core::sync::atomic::Ordering;

/// Returns whether a descriptor is one of the image.
pub(crate) fn is_image(fd: i32) -> bool {
    let Ok(fd) = usize::try_from(fd) else {
        return false;
    };
    fd < DESCRIPTORS_MAX && DESCRIPTORS[fd / 64].load(Ordering::Acquire) & 1 << (fd % 64) != 0
}

/// Returns whether a descriptor is one of the runtime, which programs cannot use.
pub(crate) fn is_reserved(fd: i32) -> bool {
    let base = BASE.load(Ordering::Relaxed);
    (base..base + RESERVED).contains(&fd)
}

pub(crate) fn insert(fd: i32) {
    let fd = fd as usize;
    DESCRIPTORS[fd / 64].fetch_or(1 << (fd % 64), Ordering::AcqRel);
}

/// Removes a descriptor; returns whether it was one of the image.
pub(crate) fn remove(fd: i32) -> bool {
    if !is_image(fd) {
        return false;
    }
    let bit = 1 << (fd as usize % 64);
    DESCRIPTORS[fd as usize / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
}

/// All descriptors of the image, in order.
pub(crate) fn all() -> impl Iterator<Item = i32> {
    DESCRIPTORS.iter().enumerate().flat_map(|(index, word)| {
        let mut bits = word.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            if bits == 0 {
                return None;
            }
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            Some((index * 64) as i32 + bit as i32)
        })
    })
}

/// Longest name of a memfd, without its zero byte.
const NAME_MAX: usize = 240;

/// Creates a placeholder at the lowest free number: an empty file of memory that nothing can
/// change. It is named after the file.
pub(crate) fn create_placeholder(path: &[u8], is_closed_on_exec: bool) -> Result<i32> {
    const MFD_CLOEXEC: usize = 1;
    const MFD_ALLOW_SEALING: usize = 2;
    const F_ADD_SEALS: usize = 1033;
    const ALL_SEALS: usize = 0xf;
    let mut name = [0_u8; NAME_MAX + 1];
    let part = &path[path.len().saturating_sub(NAME_MAX)..];
    let part = part.split(|byte| *byte == 0).next().unwrap_or_default();
    name[..part.len()].copy_from_slice(part);
    let flags = MFD_ALLOW_SEALING | if is_closed_on_exec { MFD_CLOEXEC } else { 0 };
    let fd = host!(MEMFD_CREATE, name.as_ptr(), flags)? as i32;
    if fd as usize >= DESCRIPTORS_MAX {
        close(fd);
        return Err(Errno::MFILE);
    }
    host!(FCNTL, fd, F_ADD_SEALS, ALL_SEALS)?;
    Ok(fd)
}

pub(crate) const fn is_closed_on_exec(flags: u64) -> bool {
    flags & O_CLOEXEC != 0
}
