//! The process that an object belongs to. A child of fork(2) has a copy of the object, but neither
//! its threads nor the right to use its devices, and any of its locks may be locked forever.
//!
//! A page that the host wipes in a child (MADV_WIPEONFORK, Linux 4.14) holds the number of the
//! process, so that a check is two loads. On an older host a handler wipes the number, for all
//! children but those of a plain clone(2).

use super::{Errno, Error, PAGE_SIZE, Result, fork};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The process in which an object was created.
#[derive(Clone, Copy)]
pub(crate) struct OwnerProcess {
    /// The number of the calling process.
    current: &'static AtomicU32,
    number: u32,
}

/// The number of the calling process, 0 in a new child; null before the first use. Set without a
/// lock: a child could find it locked.
static CURRENT: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Numbers of processes. A child continues the count, so its number differs from its ancestors'.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl OwnerProcess {
    /// Returns the calling process.
    pub(crate) fn current() -> Self {
        let current = current_number().unwrap_or_else(new_number);
        if current.load(Ordering::Relaxed) == 0 {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            // Another thread may have been faster.
            let _ = current.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        let number = current.load(Ordering::Relaxed);
        Self { current, number }
    }

    /// Returns whether the calling process is this one.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.current.load(Ordering::Relaxed) == self.number
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

#[allow(unsafe_code)]
fn current_number() -> Option<&'static AtomicU32> {
    // SAFETY: null, or published by `new_number`, from a reference that lives forever.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Publishes a number that reads as 0 in each child of the process.
#[cold]
fn new_number() -> &'static AtomicU32 {
    let new = wiped_number().unwrap_or_else(|| {
        fork::run_in_children(wipe_number);
        Box::leak(Box::default())
    });
    let published = CURRENT.compare_exchange(
        std::ptr::null_mut(),
        std::ptr::from_ref(new).cast_mut(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    // Another thread may have been faster.
    published.map_or_else(|_| current_number().unwrap_or(new), |_| new)
}

extern "C" fn wipe_number() {
    if let Some(number) = current_number() {
        number.store(0, Ordering::Relaxed);
    }
}

/// Returns a number that the host wipes in each child of the process; `None` if it cannot.
#[allow(unsafe_code)]
fn wiped_number() -> Option<&'static AtomicU32> {
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
