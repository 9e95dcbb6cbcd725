//! Runs a command, then measures on its files what the verdicts on its time need.

use crate::bounded;
use crate::judge::{is_asked_finding, is_tiny_finding};
use crate::workload::{self, RunOptions, Workload, confirm, large_calls, last_sync};
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
        let measure = move || last_sync::measure(&own);
        cost.last_sync_ns = measured_ns(WRITES_MAX, should_stop, measure);
    }
    let is_finding = is_tiny_finding(&found);
    if let Some(tiny) = found.tiny.first_mut().filter(|_| is_finding)
        && found.mounts[tiny.mount].is_answering
    {
        let (own, may_write, started) = (tiny.clone(), options.may_write, found.started);
        let measure = move || large_calls::measure(&own, may_write, started);
        tiny.large_ns = measured_ns(WRITES_MAX, should_stop, measure);
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
        let is_answering = bounded::is_answering(mount_point, should_stop);
        if should_stop.load(Ordering::Relaxed) {
            return;
        }
        mount.is_answering = is_answering;
    }
}

/// Returns the nanoseconds that a call measures. Those of a call that does not return within the
/// limit are the limit, which they exceed; a call that was stopped has none.
fn measured_ns(
    limit: Duration,
    should_stop: &AtomicBool,
    measure: impl FnOnce() -> Option<u64> + Send + 'static,
) -> Option<u64> {
    let start = Instant::now();
    let measured = bounded::within(limit, should_stop, measure);
    let is_late = || start.elapsed() >= limit && !should_stop.load(Ordering::Relaxed);
    match measured {
        Some(ns) => ns,
        None => is_late().then_some(limit.as_nanos() as u64),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::layers::FileSystem;
    use crate::workload::{CommandOutput, MountedOn, Recorder};
    use std::sync::mpsc::channel;

    #[test]
    fn late_measurement_has_at_least_the_limit() {
        let (never, stopped) = (AtomicBool::new(false), AtomicBool::new(true));
        let limit = Duration::from_millis(1);
        let (_sender, receiver) = channel::<u64>();
        let waits = move || receiver.recv().ok();
        assert_eq!(measured_ns(limit, &never, waits), Some(1_000_000));
        assert_eq!(measured_ns(limit, &stopped, || Some(7)), None);
        assert_eq!(measured_ns(Duration::MAX, &never, || Some(7)), Some(7));
        assert_eq!(measured_ns(Duration::MAX, &never, || None), None);
    }

    #[test]
    fn stopped_question_marks_no_mount() {
        let options = RunOptions {
            output: CommandOutput::Dropped,
            recorder: Recorder::Preload,
            omission: None,
            folder: None,
            may_write: false,
        };
        let never = AtomicBool::new(false);
        let words = ["true"].map(Into::into);
        let mut found = workload::record(&words, &options, &never).unwrap();
        found.mounts = vec![MountedOn {
            file_system: FileSystem {
                mount_point: "/".into(),
                ..FileSystem::default()
            },
            has_files: true,
            is_answering: true,
        }];
        ask_mounts(&mut found, &AtomicBool::new(true));
        assert!(found.mounts[0].is_answering);
        ask_mounts(&mut found, &never);
        assert!(found.mounts[0].is_answering);
    }
}
