//! Claims of mounts on devices, for the whole process: one writer, or any number of readers, of
//! each byte of each device.
//!
//! ```text
//!   mount --claims--> overlay --reads--> partition --its range--> disk
//! ```
//!
//! Linux: `bd_prepare_to_claim`.

use super::device::Device;
use crate::base::lock::Mutex;
use crate::base::per_process::PerProcess;
use crate::base::{Errno, Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The claims of all mounts.
static CLAIMS: PerProcess<Mutex<Vec<Claim>>> = PerProcess::new(Mutex::default);
static NEXT_HOLDER: AtomicU64 = AtomicU64::new(0);

/// A claim on a part of one device.
struct Claim {
    holder: u64,
    /// Kept, so that no other device gets the same address.
    device: Arc<dyn Device>,
    range: Range<u64>,
    is_written: bool,
}

impl Claim {
    fn conflicts_with(&self, other: &Self) -> bool {
        // Addresses of the devices, without their types.
        std::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(&other.device))
            && self.range.start < other.range.end
            && other.range.start < self.range.end
            && (self.is_written || other.is_written)
    }
}

/// A mount's claim on a device and on all devices below it, until it is dropped.
pub(crate) struct DeviceClaim {
    holder: u64,
}

impl DeviceClaim {
    /// Claims a device for reading or writing.
    ///
    /// # Errors
    ///
    /// EBUSY if another mount writes a part of it, or reads a part that this one would write.
    pub(crate) fn take(device: &Arc<dyn Device>, read_only: bool) -> Result<Self> {
        let holder = NEXT_HOLDER.fetch_add(1, Ordering::Relaxed);
        let mut wanted = Vec::new();
        let whole = 0..device.len_bytes();
        collect(holder, device, whole, !read_only, &mut wanted);
        let mut claims = CLAIMS.get().lock();
        if let Some(other) = claims
            .iter()
            .find(|claim| wanted.iter().any(|new| new.conflicts_with(claim)))
        {
            let how = if other.is_written {
                "for writing"
            } else {
                "read-only"
            };
            let why = format!("the device is mounted already, {how}: unmount it first");
            return Err(Error::new(Errno::BUSY, why));
        }
        claims.append(&mut wanted);
        Ok(Self { holder })
    }
}

impl Drop for DeviceClaim {
    fn drop(&mut self) {
        let mut released = Vec::new();
        CLAIMS.get().lock().retain_mut(|claim| {
            let is_kept = claim.holder != self.holder;
            if !is_kept {
                released.push(claim.device.clone());
            }
            is_kept
        });
        // Without the lock: the last reference to a device may end here.
        drop(released);
    }
}

/// Adds the claims on a device and on those below it.
fn collect(
    holder: u64,
    device: &Arc<dyn Device>,
    range: Range<u64>,
    is_written: bool,
    claims: &mut Vec<Claim>,
) {
    for lower in device.lower_devices() {
        let is_written = is_written && lower.is_written;
        collect(holder, &lower.device, lower.range, is_written, claims);
    }
    claims.push(Claim {
        holder,
        device: device.clone(),
        range,
        is_written,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::partition::PartitionDevice;
    use crate::block::{MemoryDevice, overlay};

    #[test]
    fn overlapping_writers_exclude_each_other() {
        let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 20));
        let part = |start, len| -> Arc<dyn Device> {
            Arc::new(PartitionDevice::new(disk.clone(), start, len).unwrap())
        };
        let is_busy =
            |device: &Arc<dyn Device>, read_only| match DeviceClaim::take(device, read_only) {
                Ok(_) => false,
                Err(error) => error.errno() == Errno::BUSY,
            };
        let first = DeviceClaim::take(&part(0, 1000), false).unwrap();
        assert!(is_busy(&disk, false) && is_busy(&disk, true));
        assert!(is_busy(&part(999, 10), false) && is_busy(&part(999, 10), true));
        assert!(!is_busy(&part(1000, 10), false));
        assert!(is_busy(&overlay(disk.clone()), false));
        drop(first);
        // Overlays read what is below.
        let over = overlay(disk.clone());
        let _first = DeviceClaim::take(&over, false).unwrap();
        let _second = DeviceClaim::take(&overlay(disk.clone()), false).unwrap();
        assert!(!is_busy(&disk, true));
        assert!(is_busy(&disk, false) && is_busy(&over, false) && is_busy(&over, true));
    }
}
