//! `folio cache fit`: known needs are found, and limits are restored.

use super::*;
use crate::support::guest::Guest;
use std::time::{Duration, Instant};

/// The size of the file that the programs read.
const SIZE: u64 = 48 * MIB;

/// Reads a file again and again: it needs all of it, because the kernel evicts what comes next.
const LOOP: &str = "while :; do cat file > /dev/null; done";

fn cold_file() -> Bench {
    let bench = Bench::new();
    bench.cold("file", SIZE);
    bench
}

/// A child that is killed at the end, also when the test fails.
struct KilledAtEnd(Child);

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits up to a minute.
fn until(is_so: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn loop_over_a_file_needs_its_size() {
    requires!(root);
    if Group::new(1 << 30).is_none() {
        return report_skip("no control group can be made");
    }
    undisturbed(|| {
        let bench = cold_file();
        let text = bench.ok(&[
            "cache", "fit", "--json", "--for", "15s", "--svg", "fit.svg", "--", "sh", "-c", LOOP,
        ]);
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["is_estimate"], false, "{report}");
        assert_eq!(report["bound"], "about", "{report}");
        let needed = report["needed_bytes"].as_u64().unwrap();
        assert!(needed.abs_diff(SIZE) < SIZE / 7, "{report}");
        let points = report["points"].as_array().unwrap();
        let misses = |at: usize| points[at]["misses_per_s"].as_f64().unwrap();
        assert!(
            misses(0) > 100.0 && misses(points.len() - 1) <= 100.0,
            "{report}"
        );
        let svg = fs::read_to_string(bench.path("fit.svg")).unwrap();
        assert_eq!(svg.matches("<circle").count(), points.len());
        let group = report["cgroup"].as_str().unwrap();
        assert!(!Path::new(group).exists(), "{group} is removed");
    });
}

/// Measures a loop over a file, in a guest whose memory controller is of version 2.
const SCRIPT_OF_GUEST: &str = "\
mount -t cgroup2 none /sys/fs/cgroup && echo +memory > /sys/fs/cgroup/cgroup.subtree_control || exit 1
mount -t ext4 /dev/vda /mnt && cd /mnt || exit 1
/bin/folio -q cache fit --json --for 40s -- sh -c 'while :; do cat file > /dev/null; done' > /report
echo \"report $(tr -d '\\n' < /report)\"
find /sys/fs/cgroup -type d
";

#[test]
fn loop_needs_its_size_on_cgroup_v2() {
    requires!(tool("mke2fs"));
    let bench = Bench::new();
    bench.cold("root/file", SIZE);
    let text = |name: &str| bench.path(name).display().to_string();
    let (root, disk) = (text("root"), text("disk"));
    run("mke2fs", ["-q", "-t", "ext4", "-d", &root, &disk, "80M"]);
    let guest = Guest::new()
        .and_then(|guest| guest.size(512, 2).module("virtio_blk")?.module("ext4"))
        .and_then(|guest| guest.program(Path::new(env!("CARGO_BIN_EXE_folio"))));
    let guest = match guest {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    let drive = format!("file={disk},format=raw,if=virtio");
    let guest = guest.device("-drive", &drive);
    let ran = guest
        .run(SCRIPT_OF_GUEST, Duration::from_secs(300), |_| {})
        .unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    let mut lines = ran.lines.iter();
    let report = lines.find_map(|line| line.strip_prefix("report ")).unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["method"], "memory-high", "{report}");
    let needed = report["needed_bytes"].as_u64().unwrap();
    assert!(needed.abs_diff(SIZE) < SIZE / 7, "{report}");
    let group = report["cgroup"].as_str().unwrap();
    assert!(
        !ran.lines.iter().any(|line| line == group),
        "{group} is removed"
    );
}

#[test]
fn killed_measurement_restores_the_limit() {
    requires!(root);
    let Some(group) = Group::new(1 << 30) else {
        return report_skip("no control group can be made");
    };
    let bench = cold_file();
    let files = ["memory.limit_in_bytes", "memory.high"].map(|name| group.folder().join(name));
    let file = files.into_iter().find(|file| file.is_file()).unwrap();
    let limit = || fs::read_to_string(&file).unwrap();
    let before = limit();
    let script = format!("{} && {LOOP}", group.entry());
    let mut workload = command("sh");
    workload
        .args(["-c", &script])
        .current_dir(bench.folder.path());
    let mut workload = KilledAtEnd(workload.spawn().unwrap());
    let has_processes = || {
        let processes = fs::read_to_string(group.folder().join("cgroup.procs"));
        !processes.unwrap().is_empty()
    };
    until(has_processes, "the workload is in its group");
    let folder = group.folder().to_str().unwrap();
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let mut fit = bench.command(&["cache", "fit", "--cgroup", folder]);
        let mut fit = fit
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until(|| limit() != before, "the limit is lowered");
        let pid = rustix::process::Pid::from_child(&fit);
        rustix::process::kill_process(pid, signal).unwrap();
        fit.wait().unwrap();
        until(|| limit() == before, "the limit is restored");
    }
    workload.0.kill().unwrap();
    workload.0.wait().unwrap();
    until(|| !has_processes(), "the group is empty");
}

#[test]
fn estimate_is_labeled_in_all_outputs() {
    let bench = cold_file();
    let arguments = [
        "cache",
        "fit",
        "--for",
        "2s",
        "--estimate",
        "--svg",
        "fit.svg",
    ];
    let words = ["--", "tail", "-f", "file"];
    let (output, stderr) = bench.output(&[&arguments[..], &words].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("(estimate)"), "{text}");
    assert!(stderr.contains("memory was not limited"), "{stderr}");
    let svg = fs::read_to_string(bench.path("fit.svg")).unwrap();
    assert!(svg.contains("(estimate)"), "{svg}");
    let (output, _) = bench.output(&[&arguments[..], &["--json"], &words].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["is_estimate"], true);
    assert_eq!(report["method"], "residency");
    assert_eq!(report["limit_bytes"], Value::Null);
}

#[test]
fn ended_or_missing_workload_is_reported() {
    let bench = Bench::new();
    for (arguments, words) in [
        (&["--", "true"][..], "the workload ended after"),
        (&["--", "no-such-program"], "no-such-program"),
        (&["--pid", "4194305"], "process 4194305 does not exist"),
        (
            &["--cgroup", "no/such/group"],
            "no/such/group: no control group",
        ),
    ] {
        let (output, stderr) = bench.output(&[&["cache", "fit"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
}
