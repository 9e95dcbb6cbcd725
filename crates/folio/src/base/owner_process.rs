//! The process that an object belongs to. A child of fork(2) has a copy of the object, but neither
//! its threads nor the right to use its devices, and any of its locks may be locked forever.
//!
//! A page that the host wipes in a child (MADV_WIPEONFORK, Linux 4.14) holds the number of the
//! process, so that a check is two loads. An older host detects no child.

use super::{Errno, Error, PAGE_SIZE, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process in which an object was created.
#[derive(Clone, Copy)]
pub(crate) struct OwnerProcess {
    /// The number in the wiped page; `None` if the host has no such pages.
    page: Option<&'static AtomicU32>,
    number: u32,
}

/// Numbers of processes. A child continues the count, so its number differs from its ancestors'.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl OwnerProcess {
    /// Returns the calling process.
    pub(crate) fn current() -> Self {
        static PAGE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
        let page = *PAGE.get_or_init(wiped_page);
        let number = page.map_or(0, |page| {
            if page.load(Ordering::Relaxed) == 0 {
                let next = NEXT.fetch_add(1, Ordering::Relaxed);
                // Another thread may have been faster.
                let _ = page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
            }
            page.load(Ordering::Relaxed)
        });
        Self { page, number }
    }

    /// Returns whether the calling process is this one.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.page
            .is_none_or(|page| page.load(Ordering::Relaxed) == self.number)
    }

    /// Fails with EIO in a child of this process.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.is_current() {
            Ok(())
        } else {
            Err(in_child())
        }
    }
}

#[cold]
fn in_child() -> Error {
    Error::new(
        Errno::IO,
        "this process was forked from the one that has the kernel, its threads and its devices; \
         create the kernel after fork(2)",
    )
}

/// Returns a number that reads as 0 in each child of the process; `None` if the host cannot wipe
/// it.
#[allow(unsafe_code)]
fn wiped_page() -> Option<&'static AtomicU32> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let place = std::ptr::null_mut();
    // SAFETY: an anonymous mapping at an address of the host's choice overlaps no other memory.
    let page = unsafe { mmap_anonymous(place, PAGE_SIZE, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page is our own and is never unmapped; a wiped page is all zeros.
    unsafe { madvise(page, PAGE_SIZE, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the page is aligned, zeroed, mapped for the life of the process, and only ever used
    // as this number.
    Some(unsafe { AtomicU32::from_ptr(page.cast()) })
}
