//! Calls that a trial leaves out, on the files of one device: the header of the ring names both.

use crate::calls::{Call, Detail, Names, Op};
use crate::layout::{OMITS_SYNC_FLAGS, OMITS_SYNCS, OMITTED_DEVICE, PATH_MAX, WORKING_DIRECTORY};
use crate::{Arguments, ring, system};

/// Flags of open(2) by which each write waits for the disk: O_SYNC and O_DSYNC.
const SYNC_FLAGS: usize = 0o4_010_000;
/// O_CREAT.
const CREATES: usize = 0o100;

/// Returns whether a call waits for a file of that device to be on the disk: it is left out.
#[inline]
pub(crate) fn is_omitted(call: &Call, a: &Arguments) -> bool {
    matches!(call.op, Op::Sync | Op::SyncData)
        && ring::omitted() & OMITS_SYNCS != 0
        && is_omitted_device(system::device_of(a[0] as i32))
}

/// Returns the arguments of an open without the flags that make writes wait, if a file of that
/// device is opened and such flags are left out; else as they are.
#[inline]
pub(crate) fn without_sync_flags(name: &str, call: &Call, a: Arguments) -> Arguments {
    let Detail::Argument(place) = call.detail else {
        return a;
    };
    // The template of mkostemp(3) names no file yet.
    let is_open = call.op == Op::Open && !name.starts_with('m');
    if !is_open || a[place] & SYNC_FLAGS == 0 || ring::omitted() & OMITS_SYNC_FLAGS == 0 {
        return a;
    }
    // Before the open: to open a file, close it and open it again would end the locks that the
    // process has on it.
    if !is_omitted_device(device_to_open(call, &a, a[place] & CREATES != 0)) {
        return a;
    }
    let mut without = a;
    without[place] &= !SYNC_FLAGS;
    without
}

fn is_omitted_device(device: Option<u64>) -> bool {
    device == Some(ring::omitted() & OMITTED_DEVICE)
}

/// The device of the file that an open names, or of the directory in which it creates the file.
fn device_to_open(call: &Call, a: &Arguments, creates: bool) -> Option<u64> {
    let (directory, path) = match call.names {
        Names::Path(path) => (WORKING_DIRECTORY, a[path]),
        Names::At(directory, path) => (a[directory] as i32, a[path]),
        _ => return None,
    };
    match system::device_at(directory, path) {
        Ok(device) => Some(device),
        Err(system::ENOENT) if creates => {
            let mut parent = [0; PATH_MAX];
            let len = system::read_text(path, &mut parent);
            // The name, and what is before it.
            let name_at = parent[..len].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
            if name_at == 0 {
                parent[..2].copy_from_slice(b".\0");
            } else {
                *parent.get_mut(name_at)? = 0;
            }
            system::device_at(directory, (&raw const parent) as usize).ok()
        }
        Err(_) => None,
    }
}
