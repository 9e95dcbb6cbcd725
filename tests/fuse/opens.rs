//! Files of the host that the kernel opens without a request: warm ones need no server, and a file
//! stays the same whatever external writers do to its name.

use crate::support::requires;
use crate::support::tools::command;
use crate::{Fixture, MountSource};
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a reader may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

fn shared() -> Fixture {
    Fixture::on(MountSource::Directory, "rw,push=inotify")
}

/// Waits until `is_seen`; an external change is seen soon.
#[track_caller]
fn wait_until(what: &str, mut is_seen: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_seen() {
        assert!(start.elapsed() < STUCK, "{what}: never");
        std::thread::yield_now();
    }
}

#[test]
fn warm_file_is_read_while_server_is_stopped() {
    requires!(root, fuse);
    let fixture = shared();
    fs::write(fixture.behind.join("f"), "warm").unwrap();
    // A file that has just changed is asked for again.
    wait_until("a settled file", || {
        let changed = fs::metadata(fixture.behind.join("f"))
            .unwrap()
            .modified()
            .unwrap();
        changed.elapsed().is_ok_and(|age| age.as_millis() > 200)
    });
    let path = fixture.at("f");
    let look = || (fs::metadata(&path).unwrap().len(), fs::read(&path).unwrap());
    // The second time the kernel asks for the access time, which the first read may have changed.
    for _ in 0..2 {
        assert_eq!(look(), (4, b"warm".to_vec()));
    }
    let server = fixture.mount.process();
    let (done, is_done) = channel();
    let (seen, was_stuck) = std::thread::scope(|scope| {
        kill_process(server, Signal::STOP).unwrap();
        let watchdog = scope.spawn(move || {
            let waited = is_done.recv_timeout(STUCK);
            kill_process(server, Signal::CONT).unwrap();
            waited == Err(RecvTimeoutError::Timeout)
        });
        let seen = look();
        // The watchdog has ended if the reader was stuck.
        let _ = done.send(());
        (seen, watchdog.join().unwrap())
    });
    assert!(!was_stuck, "open(2) of a warm file waited for the server");
    assert_eq!(seen, (4, b"warm".to_vec()));
    fixture.finish();
}

#[test]
fn open_file_stays_itself_after_replacement() {
    requires!(root, fuse);
    let fixture = shared();
    let host = |name: &str| fixture.behind.join(name);
    fs::write(host("f"), "old").unwrap();
    let writer = File::options().write(true).open(host("f")).unwrap();
    let held = File::open(fixture.at("f")).unwrap();
    fs::write(host("new"), "new").unwrap();
    fs::rename(host("new"), host("f")).unwrap();
    wait_until("the new file", || {
        fs::read(fixture.at("f")).is_ok_and(|read| read == b"new")
    });
    let content = || {
        let mut buf = [0; 8];
        let count = held.read_at(&mut buf, 0).unwrap();
        buf[..count].to_vec()
    };
    // Its first read comes after the replacement.
    assert_eq!(content(), b"old");
    for version in [b"1st", b"2nd", b"3rd"] {
        writer.write_all_at(version, 0).unwrap();
        wait_until("a write to the unlinked file", || content() == version);
    }
    drop(held);
    fixture.finish();
}

/// A descriptor for writing that the server kept would fail execve(2) with ETXTBSY.
#[test]
fn program_written_by_mount_runs_on_host() {
    requires!(root, fuse);
    let fixture = shared();
    for number in 0..8 {
        let name = format!("program {number}");
        fs::write(fixture.at(&name), "#!/bin/sh\nexit 7\n").unwrap();
        fs::set_permissions(fixture.at(&name), fs::Permissions::from_mode(0o755)).unwrap();
        let path = fixture.behind.join(&name);
        let status = command(path.to_str().unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(7), "{name}");
    }
    fixture.finish();
}
