//! A device whose calls fail as a test selects. Linux: dm-flakey.

use crate::base::lock::Mutex;
use crate::base::{Detail, Errno, Error, Result};
use crate::block::{Allocation, Device, LowerDevice};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::thread::ThreadId;

/// The kind of calls that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Reads.
    Read,
    /// Writes, discards and zeroing.
    Write,
    /// Flushes.
    Flush,
}

/// When calls of a kind fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultWhen {
    /// Every time.
    Always,
    /// Once, after this many successful calls of the kind.
    After(u64),
    /// At random, once in this many calls on average, by the device's seed. Zero: never.
    OneIn(u64),
}

/// Passes all calls to the lower device, except for those that fail: they change nothing.
pub struct FaultDevice {
    lower: Arc<dyn Device>,
    plan: Mutex<FaultPlan>,
}

struct FaultPlan {
    seed: u64,
    random: u64,
    faults: Vec<(FaultKind, FaultWhen, Errno)>,
    failed: u64,
    /// Threads whose writes are lost.
    losing: Vec<ThreadId>,
}

impl FaultDevice {
    /// Returns a device over `lower` without faults. The same seed and calls give the same
    /// failures.
    pub fn new(lower: Arc<dyn Device>, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            lower,
            plan: Mutex::new(FaultPlan {
                seed,
                random,
                faults: Vec::new(),
                failed: 0,
                losing: Vec::new(),
            }),
        }
    }

    /// Adds a fault: calls of this kind fail with EIO.
    pub fn fail(&self, kind: FaultKind, when: FaultWhen) {
        self.fail_with(kind, when, Errno::IO);
    }

    /// Adds a fault: calls of this kind fail with this errno.
    pub fn fail_with(&self, kind: FaultKind, when: FaultWhen, errno: Errno) {
        self.plan.lock().faults.push((kind, when, errno));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.plan.lock().faults.clear();
    }

    /// Runs `call`; each write that this thread makes in it fails with EIO, and its data is lost: a
    /// page cache above reports the error, and does not repeat the write. Linux treats any failed
    /// write like this.
    pub fn lose_writes_in<T>(&self, call: impl FnOnce() -> T) -> T {
        let thread = std::thread::current().id();
        self.plan.lock().losing.push(thread);
        let returned = call();
        self.plan.lock().losing.retain(|losing| *losing != thread);
        returned
    }

    /// Returns the number of calls that failed.
    pub fn failed(&self) -> u64 {
        self.plan.lock().failed
    }

    fn check(&self, kind: FaultKind, operation: &str) -> Result<()> {
        let mut plan = self.plan.lock();
        if kind == FaultKind::Write && plan.losing.contains(&std::thread::current().id()) {
            plan.failed += 1;
            let error = Error::new(Errno::IO, format!("{operation}: injected fault"));
            return Err(error.about(Detail::WriteLost));
        }
        let Some(errno) = plan.next_fault(kind) else {
            return Ok(());
        };
        plan.failed += 1;
        Err(Error::new(
            errno,
            format!("{operation}: injected fault (seed {})", plan.seed),
        ))
    }
}

impl FaultPlan {
    /// Returns the errno that the next call of this kind fails with, if it fails.
    fn next_fault(&mut self, kind: FaultKind) -> Option<Errno> {
        let mut fault = None;
        let random = &mut self.random;
        self.faults.retain_mut(|(of, when, errno)| {
            if *of != kind {
                return true;
            }
            match when {
                FaultWhen::Always => fault = Some(*errno),
                FaultWhen::After(0) => {
                    fault = Some(*errno);
                    return false;
                }
                FaultWhen::After(left) => *left -= 1,
                FaultWhen::OneIn(calls) => {
                    // xorshift64*: small, and the same on every platform.
                    *random ^= *random >> 12;
                    *random ^= *random << 25;
                    *random ^= *random >> 27;
                    let number = random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
                    if number.checked_rem(*calls) == Some(0) {
                        fault = Some(*errno);
                    }
                }
            }
            true
        });
        fault
    }
}

impl Device for FaultDevice {
    fn len_bytes(&self) -> u64 {
        self.lower.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.lower.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        self.check(FaultKind::Read, "read")?;
        self.lower.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.check(FaultKind::Write, "write")?;
        self.lower.write_vectored_at(bufs, offset)
    }

    fn lower_devices(&self) -> Vec<LowerDevice> {
        vec![LowerDevice {
            device: self.lower.clone(),
            range: 0..self.lower.len_bytes(),
            is_written: true,
        }]
    }

    fn flush(&self) -> Result<()> {
        self.check(FaultKind::Flush, "flush")?;
        self.lower.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check(FaultKind::Write, "discard")?;
        self.lower.discard(offset, len_bytes)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check(FaultKind::Write, "write zeroes")?;
        self.lower.write_zeroes(offset, len_bytes)
    }

    fn allocation(&self, offset: u64, len_bytes: u64) -> Result<(Allocation, u64)> {
        self.lower.allocation(offset, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MemoryDevice;

    #[test]
    fn calls_fail_as_selected() {
        let device = FaultDevice::new(Arc::new(MemoryDevice::new(4096)), 1);
        device.fail(FaultKind::Write, FaultWhen::After(2));
        let results: Vec<bool> = (0..4).map(|_| device.write_at(&[1], 0).is_ok()).collect();
        assert_eq!(results, [true, true, false, true]);
        device.read_at(&mut [0], 0).unwrap();
        device.fail(FaultKind::Flush, FaultWhen::Always);
        assert_eq!(device.flush().unwrap_err().errno(), Errno::IO);
        assert!(device.flush().unwrap_err().to_string().contains("seed 1"));
        device.clear_faults();
        device.flush().unwrap();
        assert_eq!(device.failed(), 3);
    }

    #[test]
    fn same_seed_fails_same_calls() {
        let run = |seed| {
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(4096)), seed);
            device.fail(FaultKind::Read, FaultWhen::OneIn(4));
            (0..200)
                .map(|_| device.read_at(&mut [0], 0).is_ok())
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let failed = run(7).iter().filter(|is_ok| !**is_ok).count();
        assert!((20..100).contains(&failed), "{failed} of 200");
    }
}
