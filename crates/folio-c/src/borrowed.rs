//! Reads without a copy: cached pages of a file, lent to the program.

use crate::argument::{FolioIovec, fd, handle, offset, store};
use crate::call::call;
use crate::process::FolioProcess;
use folio::Result;
use folio::syscall::Borrowed;
use libc::ssize_t;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// Bytes of a file that folio_read_borrowed() lends, until folio_release().
#[repr(C)]
pub struct FolioBorrowed {
    /// The bytes in order: `count` slices of memory, to be read only.
    pub slices: *const FolioIovec,
    pub count: usize,
    /// For folio_release().
    pub lease: *mut c_void,
}

/// The pages of a [`FolioBorrowed`], and the slices in them.
struct Lease {
    slices: Box<[FolioIovec]>,
    // Keeps the pages in memory.
    _pages: Borrowed,
}

/// Reads as pread(2) does, without a copy: stores where the cached bytes are, up to `count` bytes
/// from `offset` on; fewer at the end of the file and after 2 MiB. Returns the number of bytes.
/// After success, also of 0 bytes, folio_release() is due.
///
/// The bytes are the file's own, as with mmap(2) and MAP_SHARED: a write to the file changes them.
/// Neither truncation nor reclaim reuses their memory, which also outlives the process and the
/// kernel.
#[unsafe(no_mangle)]
pub extern "C" fn folio_read_borrowed(
    process: Option<&FolioProcess>,
    fd: c_int,
    borrowed: Option<&mut MaybeUninit<FolioBorrowed>>,
    count: usize,
    offset: i64,
) -> ssize_t {
    call("read_borrowed", || {
        let process = &handle(process)?.process;
        let pages = process.read_borrowed(self::fd(fd), self::offset(offset)?, count)?;
        let lease = Box::new(Lease::new(pages));
        let len: usize = lease.slices.iter().map(|slice| slice.iov_len).sum();
        lend(borrowed, lease)?;
        Ok(len as isize)
    })
}

impl Lease {
    fn new(pages: Borrowed) -> Self {
        let read = pages.read();
        let slices = read.slices().map(|slice| FolioIovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        });
        let slices = slices.collect();
        drop(read);
        Self {
            slices,
            _pages: pages,
        }
    }
}

fn lend(out: Option<&mut MaybeUninit<FolioBorrowed>>, lease: Box<Lease>) -> Result<()> {
    let (slices, count) = (lease.slices.as_ptr(), lease.slices.len());
    let out = handle(out)?;
    let lease = Box::into_raw(lease).cast();
    store(
        Some(out),
        FolioBorrowed {
            slices,
            count,
            lease,
        },
    )
}

/// Returns borrowed bytes; they may not be used afterwards. Any thread may release them.
#[unsafe(no_mangle)]
pub extern "C" fn folio_release(borrowed: Option<&mut FolioBorrowed>) -> c_int {
    call("release", || {
        let borrowed = handle(borrowed)?;
        let lease = std::mem::replace(&mut borrowed.lease, std::ptr::null_mut()).cast::<Lease>();
        borrowed.slices = std::ptr::null();
        borrowed.count = 0;
        if !lease.is_null() {
            // SAFETY: made by `lend` from a box, and taken out of the struct, so freed once.
            drop(unsafe { Box::from_raw(lease) });
        }
        Ok(0)
    })
}
