//! Runs a command, then measures on its files what the verdicts on its time need.

use crate::bounded;
use crate::judge::{is_asked_finding, is_tiny_finding};
use crate::workload::{self, RunOptions, Workload, confirm, large_calls, last_sync};
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time of writes beside a file.
const WRITES_MAX: Duration = Duration::from_secs(30);

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
    if should_stop.load(Ordering::Relaxed) {
        return Ok(found);
    }
    ask_mounts(&mut found, should_stop);
    confirm_costs(&mut found, should_stop);
    let Workload { costs, mounts, .. } = &mut found;
    let measured = costs.iter_mut();
    for cost in measured.filter(|cost| options.may_write && mounts[cost.mount].is_answering) {
        let own = cost.clone();
        let measured = bounded::within(WRITES_MAX, should_stop, move || last_sync::measure(&own));
        cost.last_sync_ns = measured.flatten();
    }
    let is_finding = is_tiny_finding(&found);
    if let Some(tiny) = found.tiny.first_mut().filter(|_| is_finding)
        && found.mounts[tiny.mount].is_answering
    {
        let (own, may_write, started) = (tiny.clone(), options.may_write, found.started);
        let measure = move || large_calls::measure(&own, may_write, started);
        tiny.large_ns = bounded::within(WRITES_MAX, should_stop, measure).flatten();
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
    let should_stop = AtomicBool::new(false);
    ask_mounts(&mut found, &should_stop);
    confirm_costs(&mut found, &should_stop);
    Ok(found)
}

/// Asks each file system of the command once, so that no later call waits for a server that does
/// not answer.
fn ask_mounts(found: &mut Workload, should_stop: &AtomicBool) {
    for mount in found.mounts.iter_mut().filter(|mount| mount.has_files) {
        let mount_point = mount.file_system.mount_point.clone();
        mount.is_answering = bounded::is_answering(mount_point, should_stop);
    }
}

/// Measures whether servers are asked again, for the costs that are findings then.
fn confirm_costs(found: &mut Workload, should_stop: &AtomicBool) {
    for index in 0..found.costs.len() {
        let cost = &found.costs[index];
        if found.mounts[cost.mount].is_answering && is_asked_finding(found, cost) {
            confirm::confirm(&mut found.costs[index], should_stop);
        }
    }
}
