//! Calls that a trial leaves out, on the files of one device: the header of the ring names both.

use crate::calls::{Call, Detail, Op};
use crate::layout::{OMITS_SYNC_FLAGS, OMITS_SYNCS, OMITTED_DEVICE};
use crate::{Arguments, ring, system};

/// Flags of open(2) by which each write waits for the disk: O_SYNC and O_DSYNC.
const SYNC_FLAGS: usize = 0o4_010_000;
/// Flags of open(2) that a second open must not have: O_EXCL and O_TRUNC.
const FIRST_OPEN_FLAGS: usize = 0o1200;

/// Returns whether a call waits for a file of that device to be on the disk: it is left out.
#[inline]
pub(crate) fn is_omitted(call: &Call, a: &Arguments) -> bool {
    matches!(call.op, Op::Sync | Op::SyncData)
        && ring::omitted() & OMITS_SYNCS != 0
        && is_on_device(a[0] as i32)
}

/// Returns the place of the flags of an open that makes writes wait, if such flags are left out.
#[inline]
pub(crate) fn sync_flags_at(name: &str, call: &Call, a: &Arguments) -> Option<usize> {
    let Detail::Argument(place) = call.detail else {
        return None;
    };
    // The template of mkostemp(3) can be used once.
    let is_open = call.op == Op::Open && !name.starts_with('m');
    let is_sync = is_open && a[place] & SYNC_FLAGS != 0;
    (is_sync && ring::omitted() & OMITS_SYNC_FLAGS != 0).then_some(place)
}

/// Opens a file without the flags at this place of its arguments, or with them if it turns out to
/// be of another device.
pub(crate) fn open(place: usize, mut a: Arguments, real: impl Fn(Arguments) -> usize) -> usize {
    let flags = a[place];
    a[place] = flags & !SYNC_FLAGS;
    let fd = real(a);
    if (fd as i32) < 0 || is_on_device(fd as i32) {
        return fd;
    }
    system::close(fd as i32);
    a[place] = flags & !FIRST_OPEN_FLAGS;
    real(a)
}

fn is_on_device(fd: i32) -> bool {
    system::device_of(fd) == Some(ring::omitted() & OMITTED_DEVICE)
}
