//! Runs a command, then measures on its files what the verdicts on its time need.

use crate::judge::{is_asked_finding, is_tiny_finding};
use crate::workload::{self, RunOptions, Workload, confirm, large_calls, last_sync};
use std::ffi::OsString;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs a command as [`record_workload`](crate::record_workload) does, then measures on the files
/// of its findings.
///
/// # Errors
/// As [`record_workload`](crate::record_workload).
pub fn run(
    words: &[OsString],
    options: &RunOptions,
    should_stop: &AtomicBool,
) -> io::Result<Workload> {
    let mut found = workload::record(words, options, should_stop)?;
    confirm_costs(&mut found, should_stop);
    if options.may_write {
        for cost in &mut found.costs {
            cost.last_sync_ns = last_sync::measure(cost);
        }
    }
    if is_tiny_finding(&found)
        && let Some(tiny) = found.tiny.first_mut()
    {
        tiny.large_ns = large_calls::measure(tiny, options.may_write);
    }
    Ok(found)
}

/// Traces a process that runs already, and returns where its time went: until it ends, for this
/// time, or until `should_stop`. It goes on as before. Then measures on the files of its findings.
///
/// # Errors
/// If the process does not exist or may not be traced.
pub fn attach(pid: u32, limit: Duration, should_stop: &AtomicBool) -> io::Result<Workload> {
    let mut found = workload::attach(pid, limit, should_stop)?;
    // `should_stop` may have ended the recording.
    confirm_costs(&mut found, &AtomicBool::new(false));
    Ok(found)
}

/// Measures whether servers are asked again, for the costs that are findings then.
fn confirm_costs(found: &mut Workload, should_stop: &AtomicBool) {
    for index in 0..found.costs.len() {
        if is_asked_finding(found, &found.costs[index]) {
            confirm::confirm(&mut found.costs[index], should_stop);
        }
    }
}
