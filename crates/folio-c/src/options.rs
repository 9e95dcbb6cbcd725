//! Structs that may grow. Each begins with its size in the program's version of the header: fields
//! that the program does not know yet are zero here. Linux: `copy_struct_from_user`.

use crate::argument::null;
use folio::{Errno, Error, Result};
use std::mem::MaybeUninit;

/// A struct whose first field is its size, as `size_t`.
///
/// # Safety
///
/// The struct is `repr(C)`, begins with a `usize`, and zero bytes are valid for each field.
pub(crate) unsafe trait Growable: Copy {}

/// Returns the struct at `start`; `None` for a null pointer. Fails with EINVAL for a size of 0, and
/// with E2BIG if a field that this version does not know is not zero.
///
/// # Safety
///
/// `start` is null, or a struct of the size that its first field states.
pub(crate) unsafe fn read<T: Growable>(start: *const T) -> Result<Option<T>> {
    if start.is_null() {
        return Ok(None);
    }
    // SAFETY: the first field is a `usize`, and the struct is at least as large as that.
    let size = unsafe { start.cast::<usize>().read() };
    if size < size_of::<usize>() {
        let message = format!("the struct's size is {size}: set it to sizeof the struct");
        return Err(Error::new(Errno::INVAL, message));
    }
    let known = size.min(size_of::<T>());
    for at in known..size {
        let byte = start.cast::<u8>().wrapping_add(at);
        // SAFETY: the struct has `size` bytes.
        let byte = unsafe { byte.read() };
        if byte != 0 {
            let message = "the struct has a field that this version of libfolio does not know";
            return Err(Error::new(Errno::TOOBIG, message));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    let to = value.as_mut_ptr().cast::<u8>();
    // SAFETY: both have `known` bytes, and `value` is a local variable.
    unsafe { to.copy_from_nonoverlapping(start.cast::<u8>(), known) };
    // SAFETY: zero bytes are valid for each field, and the program's bytes are valid for those.
    Ok(Some(unsafe { value.assume_init() }))
}

/// Like [`read`], but a null pointer is EFAULT.
///
/// # Safety
///
/// As for [`read`].
pub(crate) unsafe fn require<T: Growable>(start: *const T) -> Result<T> {
    // SAFETY: by this function's contract.
    unsafe { read(start) }?.ok_or_else(null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Small {
        size: usize,
        one: u64,
    }

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Large {
        size: usize,
        one: u64,
        two: u64,
    }

    // SAFETY: integers, the first of them a `usize`.
    unsafe impl Growable for Small {}
    // SAFETY: as above.
    unsafe impl Growable for Large {}

    #[test]
    fn older_struct_has_zeros_in_new_fields() {
        let old = Small {
            size: size_of::<Small>(),
            one: 1,
        };
        // SAFETY: the size is that of the struct.
        let read = unsafe { require((&raw const old).cast::<Large>()) }.unwrap();
        assert_eq!((read.one, read.two), (1, 0));
    }

    #[test]
    fn newer_struct_is_refused_if_it_says_more() {
        let mut new = Large {
            size: size_of::<Large>(),
            one: 1,
            two: 0,
        };
        // SAFETY: the size is that of the struct.
        let read = unsafe { require((&raw const new).cast::<Small>()) };
        assert_eq!(read.unwrap().one, 1);
        new.two = 2;
        // SAFETY: as above.
        let read = unsafe { require((&raw const new).cast::<Small>()) };
        assert_eq!(read.map(drop).unwrap_err().errno(), Errno::TOOBIG);
        new.size = 0;
        // SAFETY: as above; the first field is read alone.
        let read = unsafe { require(&raw const new) };
        assert_eq!(read.map(drop).unwrap_err().errno(), Errno::INVAL);
    }
}
