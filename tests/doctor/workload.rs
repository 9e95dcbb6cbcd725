//! `folio doctor -- COMMAND`: each cause by a command that has it, and commands without a fault.

use super::*;
use crate::mount::FuseMount;
use crate::served::{Keeps, Pages, Served};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Repeats a statement of Python for half a second: waits of a fast disk add up, too.
pub(super) const REPEAT: &str = "import os, time\nend = time.monotonic() + 0.5\n\
                      while time.monotonic() < end: ";

/// A script of Python that writes with O_DSYNC into the file of its first argument.
pub(super) fn synchronous_writes() -> String {
    format!(
        "import os, sys\n\
         fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_DSYNC)\n\
         {REPEAT}os.write(fd, b'x' * 4096)"
    )
}

/// Splits the time of a command; returns the part of the report about it. The command runs once
/// before, so that its program and its files are in memory.
#[track_caller]
fn workload(folder: &Path, words: &[&str]) -> Value {
    workload_with(folder, &[], words)
}

/// As `workload`, with options.
#[track_caller]
pub(super) fn workload_with(folder: &Path, options: &[&str], words: &[&str]) -> Value {
    let mut first = command("env");
    let first = first.args(words).current_dir(folder);
    first.stdin(Stdio::null()).output().unwrap();
    let output = command(env!("CARGO_BIN_EXE_folio"))
        .current_dir(folder)
        .args(["doctor", "--json"])
        .args(options)
        .arg("--")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    checked(&output)
}

/// Checks a report on a command or process; returns the part about it.
#[track_caller]
pub(super) fn checked(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(output)));
    let wrong: Vec<_> = schema()
        .iter_errors(&report)
        .map(|error| error.to_string())
        .collect();
    assert_eq!(wrong, [""; 0], "{report:#}");
    let faults = report["faults"].as_u64().unwrap();
    assert_eq!(
        output.status.code(),
        Some(i32::from(faults > 0)),
        "{report:#}"
    );
    let found = report["workload"].clone();
    assert_eq!(found["dropped_records"], 0);
    let parts = found["parts"].as_array().unwrap().iter();
    let sum: f64 = parts.map(|part| part["seconds"].as_f64().unwrap()).sum();
    let wall = found["wall_s"].as_f64().unwrap();
    assert!(
        (sum - wall).abs() <= 0.02 + wall * 0.05,
        "{sum} of {wall}: {found:#}"
    );
    found
}

/// The causes of all faults.
pub(super) fn faults(found: &Value) -> Vec<&str> {
    let checks = found["checks"].as_array().unwrap().iter();
    let faults = checks.filter(|check| check["verdict"] == "fault");
    faults
        .map(|check| check["cause"].as_str().unwrap())
        .collect()
}

pub(super) fn seconds(found: &Value, part: &str) -> f64 {
    let mut parts = found["parts"].as_array().unwrap().iter();
    let part = parts.find(|found| found["part"] == part).unwrap();
    part["seconds"].as_f64().unwrap()
}

fn python(folder: &Path, script: &str) -> Value {
    workload(folder, &["python3", "-c", script])
}

#[test]
fn writes_of_one_byte_are_tiny_buffers() {
    requires!(tool("dd"));
    let folder = TempDir::new().unwrap();
    let words = [
        "dd",
        "if=/dev/zero",
        "of=file",
        "bs=1",
        "count=400000",
        "status=none",
    ];
    let found = workload(folder.path(), &words);
    // The rest of the machine can make the share of the calls small, never another cause.
    assert!(
        faults(&found).iter().all(|cause| *cause == "tiny-buffers"),
        "{found:#}"
    );
    assert!(seconds(&found, "tiny-buffers") > 0.03, "{found:#}");
}

#[test]
fn synchronous_writes_wait_for_the_disk() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let words = ["python3", "-c", &synchronous_writes(), "file"];
    let found = workload(folder.path(), &words);
    assert_eq!(faults(&found), ["synchronous-writes"], "{found:#}");
}

/// The shell waits for the first command, which waits for the second one.
#[test]
fn pipeline_waits_for_its_slowest_command() {
    requires!(tool("dd"), tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = "python3 -c 'import sys, time\nend = time.monotonic() + 1\n\
                  while time.monotonic() < end: sys.stdout.write(\"x\" * 65536)' \
                  | dd of=file bs=4M iflag=fullblock oflag=dsync status=none";
    let found = workload(folder.path(), &["sh", "-c", script]);
    assert_eq!(faults(&found), ["synchronous-writes"], "{found:#}");
}

#[test]
fn sqlite_waits_for_fsync_unless_synchronous_is_off() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = |mode: &str| {
        format!(
            "import sqlite3\n\
             c = sqlite3.connect('base', isolation_level=None)\n\
             c.execute('pragma {mode}')\n\
             c.execute('create table if not exists t(a)')\n\
             {REPEAT}c.execute('insert into t values(1)')"
        )
    };
    let found = python(folder.path(), &script("journal_mode=delete"));
    assert_eq!(faults(&found), ["fsync-waits"], "{found:#}");
    let found = python(folder.path(), &script("synchronous=off"));
    assert_eq!(faults(&found), [""; 0], "{found:#}");
    assert_eq!(seconds(&found, "fsync"), 0.0);
}

#[test]
fn attributes_without_cache_ask_the_server() {
    requires!(root, fuse, tool("python3"));
    let script = format!("{REPEAT}os.stat('file')");
    for (ttl, causes) in [
        (Duration::ZERO, &["attributes-not-trusted"][..]),
        (Duration::from_secs(86400), &[]),
    ] {
        let served = Served::new(Keeps {
            pages: Pages::Kept,
            ttl,
        });
        let folder = served.file();
        let found = python(folder.parent().unwrap(), &script);
        assert_eq!(faults(&found), causes, "{found:#}");
    }
}

/// Continues a stopped process when it is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The command stops the server of a mount that it used.
#[test]
fn stopped_server_delays_no_report() {
    requires!(root, fuse, tool("python3"), tool("timeout"));
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("file"), 4096);
    let mount = FuseMount::new(folder.path(), "ttl=0,push=off");
    let (path, server) = (mount.at("file"), mount.process());
    let script = format!(
        "{REPEAT}os.stat({path:?})\n\
         os.kill({}, 19)",
        server.as_raw_nonzero()
    );
    let _stopped = Stopped(server);
    let doctor = |options: &[&str]| {
        // A wait for the server would have no end.
        let output = command("timeout")
            .args(["60", env!("CARGO_BIN_EXE_folio"), "doctor"])
            .args(options)
            .args(["--", "python3", "-c", &script])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        drop(Stopped(server));
        output
    };
    let found = checked(&doctor(&["--json"]));
    let place = mount.path().display().to_string();
    assert_eq!(found["unanswered"], serde_json::json!([place]));
    // What the waits show is reported.
    assert!(seconds(&found, "attributes") > 0.1, "{found:#}");
    let printed = text(&doctor(&["--write-probe"]));
    let line = format!("? {place} does not answer");
    assert!(printed.contains(&line), "{printed}");
    mount.unmount();
}

/// The server of the mount that the command used has read the question and waits for a server that
/// the command stopped: the doctor ends, and runs the command only once.
#[test]
fn server_that_hangs_delays_no_report() {
    requires!(root, fuse, tool("python3"));
    let (folder, place) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    written(&folder.path().join("file"), 4096);
    let below = FuseMount::new(folder.path(), "ttl=0,push=off");
    let mount = FuseMount::new(&below.path(), "ttl=0,push=off");
    let (path, server) = (mount.at("file"), below.process());
    let pid = server.as_raw_nonzero();
    let script = format!(
        "import os, time\n\
         open('runs', 'a').write('x')\n\
         os.stat({path:?})\n\
         fd = os.open('f', os.O_CREAT | os.O_RDWR)\n\
         end = time.monotonic() + 0.5\n\
         while time.monotonic() < end: os.pwrite(fd, b'x', 0); os.fsync(fd)\n\
         os.kill({pid}, 19)"
    );
    let _stopped = Stopped(server);
    // A wait for the server could not be ended otherwise.
    let mut limit = command("sh")
        .args(["-c", &format!("sleep 60; kill -CONT {pid}")])
        .spawn()
        .unwrap();
    let start = Instant::now();
    let output = command(env!("CARGO_BIN_EXE_folio"))
        .current_dir(place.path())
        .args(["doctor", "--json", "--try", "--", "python3", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let taken = start.elapsed();
    drop(Stopped(server));
    limit.kill().unwrap();
    limit.wait().unwrap();
    assert!(taken < Duration::from_secs(40), "{taken:?}");
    let found = checked(&output);
    let path = mount.path().display().to_string();
    assert_eq!(found["unanswered"], serde_json::json!([path]));
    assert_eq!(std::fs::read(place.path().join("runs")).unwrap(), b"x");
    for check in found["checks"].as_array().unwrap() {
        let reason = check["trial"]["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("does not answer"), "{check:#}");
    }
    mount.unmount();
    below.unmount();
}

#[test]
fn ext4_flushes_files_replaced_by_rename() {
    requires!(root, loop_devices, tool("python3"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let script = "import os\n\
                  for i in range(300):\n\
                  \x20   with open('new', 'wb') as f: f.write(b'x' * 1000000)\n\
                  \x20   os.rename('new', 'old')";
    let found = python(&mounted.path(), script);
    assert!(seconds(&found, "rename") > 0.0, "{found:#}");
    let unexpected = faults(&found)
        .into_iter()
        .find(|cause| *cause != "flush-on-rename");
    assert_eq!(unexpected, None, "{found:#}");
}

#[test]
fn program_without_the_library_is_unknown() {
    requires!(tool("gcc"));
    let folder = TempDir::new().unwrap();
    let source = "#include <unistd.h>\nint main(void) { return usleep(300000); }";
    std::fs::write(folder.path().join("a.c"), source).unwrap();
    let at = |name: &str| folder.path().join(name).into_os_string();
    run(
        "gcc",
        ["-static".into(), "-o".into(), at("still"), at("a.c")],
    );
    let found = workload(folder.path(), &["sh", "-c", "./still; true"]);
    assert!(seconds(&found, "unknown") >= 0.29, "{found:#}");
    let program = found["unreached"][0]["program"].as_str().unwrap();
    assert!(program.ends_with("/still"), "{found:#}");
    assert_eq!(faults(&found), [""; 0]);
}

#[test]
fn healthy_commands_have_no_fault() {
    requires!(
        tool("tar"),
        tool("git"),
        tool("python3"),
        tool("make"),
        tool("gcc")
    );
    let folder = TempDir::new().unwrap();
    let make = "all: a.o b.o\n\tgcc -o program a.o b.o\n%.o: %.c\n\tgcc -c -o $@ $<\n";
    std::fs::write(folder.path().join("Makefile"), make).unwrap();
    std::fs::write(folder.path().join("a.c"), "int main(void) { return 0; }").unwrap();
    std::fs::write(folder.path().join("b.c"), "int f(void) { return 0; }").unwrap();
    let read = "import sqlite3\n\
                c = sqlite3.connect('base')\n\
                c.execute('create table if not exists t(a)')\n\
                for i in range(3000): c.execute('select count(*) from t').fetchall()";
    run(
        "git",
        [
            OsStr::new("init"),
            OsStr::new("-q"),
            folder.path().as_os_str(),
        ],
    );
    for words in [
        &["make", "-s"][..],
        &["tar", "-cf", "tree.tar", "/usr/include"],
        &["git", "status", "--short"],
        &["python3", "-c", read],
        &["true"],
    ] {
        let found = workload(folder.path(), words);
        assert_eq!(faults(&found), [""; 0], "{found:#}");
    }
    assert!(folder.path().join("program").exists());
}

/// The example of docs/doctor.md.
#[test]
fn report_names_parts_then_findings() {
    requires!(tool("dd"));
    let folder = TempDir::new().unwrap();
    let output = command(env!("CARGO_BIN_EXE_folio"))
        .current_dir(folder.path())
        .args([
            "doctor",
            "--",
            "dd",
            "if=/dev/zero",
            "of=log",
            "bs=4k",
            "count=5000",
        ])
        .args(["oflag=dsync", "status=none"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = shown.lines().collect();
    assert!(
        lines[0].starts_with("wall ") && lines[0].contains("   sync writes "),
        "{shown}"
    );
    assert!(
        lines[1].starts_with("1. ") && lines[1].contains(" writes of 1 file on "),
        "{shown}"
    );
    assert!(
        lines[3].starts_with("   saves about ") && lines[3].contains("fdatasync"),
        "{shown}"
    );
    assert_eq!(lines.last(), Some(&"1 fault"));
}

/// A call that fails by its first path has not read the second one, and the program goes on.
#[test]
fn bad_second_path_ends_no_program() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = "import ctypes, os\n\
        bad = ctypes.c_char_p(16)\n\
        c = ctypes.CDLL(None, use_errno=True)\n\
        for old in b'', b'no/such/file', b'x' * 5000:\n\
        \x20   print(c.rename(old, bad), c.link(old, bad), ctypes.get_errno())\n\
        open('e' * 255, 'w')\n\
        raise SystemExit(7)";
    let found = workload(folder.path(), &["python3", "-c", script]);
    assert_eq!(found["exit_code"], 7, "{found:#}");
}
