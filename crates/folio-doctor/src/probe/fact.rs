//! Facts: values that a probe measured, or the reason why it could not.

use crate::text::reason;
use std::io;

/// A measured value, or the reason why it is unknown.
pub type Fact<T> = Result<T, String>;

/// Reason for unknown residency without ownership or write permission.
pub(crate) const RESIDENCY_HIDDEN: &str =
    "the kernel reports residency only to the owner and to users with write permission";

/// Returns the reason why the pages of a file cannot be examined.
pub(super) fn unmapped(error: &io::Error) -> String {
    match error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error)
    {
        Some(rustix::io::Errno::NODEV) => "the file cannot be mapped into memory".to_owned(),
        _ => format!("the kernel does not report it: {}", reason(error)),
    }
}

/// Returns the voluntary context switches of this thread so far: each is a wait.
pub(crate) fn switches() -> Fact<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage =
        getrusage(UsageWho::RUSAGE_THREAD).map_err(|error| format!("getrusage: {error}"))?;
    u64::try_from(usage.voluntary_context_switches())
        .map_err(|_| "getrusage: a negative count".to_owned())
}

/// Returns the processor time of this thread, in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (time.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec as u64)
}
