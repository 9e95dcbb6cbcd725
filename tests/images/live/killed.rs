//! A program that is killed at each system call around a fork leaves complete images.

use super::content;
use crate::support::require::report_skip;
use crate::support::requires;
use crate::support::rounds;
use crate::support::tools::{command, qemu_check};
use folio::block::{Device, ImageFormat, LiveImage, OpenOptions, create, open};
use std::path::Path;
use tempfile::TempDir;

const TEST: &str = "images::live::killed::program_killed_in_a_fork_loses_nothing";
/// Names the folder in which the program works.
const FOLDER: &str = "FOLIO_TEST_KILLED_FORK";
/// The calls that change files or names, or make them durable.
const CALLS: [&str; 6] = [
    "pwritev",
    "fdatasync",
    "ftruncate",
    "linkat",
    "rename",
    "fsync",
];

/// The program: writes, forks, writes again; each step leaves a file once it is acknowledged.
fn program(folder: &Path) {
    let image = LiveImage::open(folder.join("disk.qcow2"), &OpenOptions::default()).unwrap();
    let done = |name: &str| std::fs::write(folder.join(name), "").unwrap();
    image.write_at(&[1; 70_000], 0).unwrap();
    image.flush().unwrap();
    done("written");
    image.fork(folder.join("fork.qcow2")).unwrap();
    done("forked");
    image.write_at(&[2; 70_000], 0).unwrap();
    image.flush().unwrap();
    done("again");
}

#[test]
fn program_killed_in_a_fork_loses_nothing() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return program(Path::new(&folder));
    }
    requires!(tool("strace"), tool("qemu-img"));
    let works = command("strace")
        .args(["-qq", "-e", "trace=none", "true"])
        .output();
    if !works.is_ok_and(|output| output.status.success()) {
        return report_skip("needs ptrace(2)");
    }
    let mut runs = 0;
    for call in CALLS {
        // The last run is not killed: it makes fewer calls.
        let mut number = 1;
        while !survives(call, number) {
            number += rounds::step(2);
            runs += 1;
        }
        assert!(number > 1, "{call}");
    }
    assert!(runs >= 12, "{runs} runs");
}

/// Runs the program, which is killed at a call, and checks what it leaves; returns whether it
/// ended by itself.
fn survives(call: &str, number: usize) -> bool {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(create(at("disk.qcow2"), ImageFormat::Qcow2, 1 << 20).unwrap());
    let output = command("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .arg("-e")
        .arg(format!("inject={call}:signal=SIGKILL:when={number}"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    // At the path is a complete image with all that was flushed.
    drop(open(at("disk.qcow2"), &OpenOptions::default()).unwrap());
    qemu_check(&at("disk.qcow2"));
    let has = |name: &str| at(name).exists();
    let bytes = content(&at("disk.qcow2"));
    let found = (bytes[0], bytes[69_999]);
    if has("again") {
        assert_eq!(found, (2, 2), "{call} {number}");
    } else if has("written") {
        assert!(found.0 > 0 && found.1 > 0, "{call} {number}");
    }
    if has("forked") {
        let fork = content(&at("fork.qcow2"));
        assert!(fork[..70_000] == [1; 70_000], "{call} {number}");
        qemu_check(&at("fork.qcow2"));
    }
    assert!(!output.status.success() || has("again"), "{call} {number}");
    output.status.success()
}
