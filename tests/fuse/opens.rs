//! Files and directories of the host that the kernel opens without a request: warm ones need no
//! server. A file stays the same whatever external writers do to its name, and a listing kept by
//! the kernel shows all changes.

use crate::support::requires;
use crate::support::tools::command;
use crate::{Fixture, MountSource};
use rustix::process::{Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
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

/// Waits until a change of a file or directory of the host was pushed.
fn settle(path: &Path) {
    wait_until("a settled file", || {
        let changed = fs::metadata(path).unwrap().modified().unwrap();
        changed.elapsed().is_ok_and(|age| age.as_millis() > 200)
    });
}

#[test]
fn warm_file_is_read_while_server_is_stopped() {
    requires!(root, fuse);
    let fixture = shared();
    fs::write(fixture.behind.join("f"), "warm").unwrap();
    // A file that has just changed is asked for again.
    settle(&fixture.behind.join("f"));
    let path = fixture.at("f");
    let look = || (fs::metadata(&path).unwrap().len(), fs::read(&path).unwrap());
    // The second time the kernel asks for the access time, which the first read may have changed.
    for _ in 0..2 {
        assert_eq!(look(), (4, b"warm".to_vec()));
    }
    let seen = while_server_is_stopped(&fixture, look);
    assert_eq!(seen, (4, b"warm".to_vec()));
    fixture.finish();
}

/// Returns the result of `look`, which must not wait for the server.
#[track_caller]
fn while_server_is_stopped<T>(fixture: &Fixture, look: impl FnOnce() -> T) -> T {
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
    assert!(!was_stuck, "a warm file or directory needed the server");
    seen
}

/// Returns the sorted names in a directory.
fn names(directory: &Path) -> Vec<OsString> {
    let list = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = list.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn warm_listing_is_read_while_server_is_stopped() {
    requires!(root, fuse);
    let fixture = shared();
    fs::create_dir(fixture.behind.join("d")).unwrap();
    for number in 0..500 {
        fs::write(fixture.behind.join(format!("d/{number}")), "").unwrap();
    }
    let path = fixture.at("d");
    let expected = names(&fixture.behind.join("d"));
    // The second time the kernel asks for the access time.
    for _ in 0..2 {
        assert_eq!(names(&path), expected);
    }
    assert_eq!(while_server_is_stopped(&fixture, || names(&path)), expected);
    fs::write(fixture.behind.join("d/new"), "").unwrap();
    wait_until("a new name", || names(&path).len() == expected.len() + 1);
    fs::remove_file(fixture.behind.join("d/7")).unwrap();
    wait_until("a removal", || names(&path).len() == expected.len());
    fixture.finish();
}

#[test]
fn own_changes_show_in_kept_listing() {
    requires!(root, fuse);
    let fixture = shared();
    let at = |name: String| fixture.at(&name);
    for directory in ["a", "b"] {
        fs::create_dir(fixture.at(directory)).unwrap();
    }
    for round in 0..300 {
        let (from, to) = if round % 2 == 0 {
            ("a", "b")
        } else {
            ("b", "a")
        };
        match round % 5 {
            0 => fs::write(at(format!("{from}/{round}")), "").unwrap(),
            1 => fs::create_dir(at(format!("{to}/{round}"))).unwrap(),
            2 => fs::rename(
                at(format!("{from}/{}", round - 2)),
                at(format!("{to}/{round}")),
            )
            .unwrap(),
            3 => fs::hard_link(
                at(format!("{from}/{}", round - 1)),
                at(format!("{from}/{round}")),
            )
            .unwrap(),
            _ => fs::remove_file(at(format!("{to}/{}", round - 1))).unwrap(),
        }
        for directory in ["a", "b"] {
            let behind = names(&fixture.behind.join(directory));
            assert_eq!(names(&fixture.at(directory)), behind, "round {round}");
        }
    }
    fixture.finish();
}

#[test]
fn removal_while_listing_skips_and_repeats_none() {
    requires!(root, fuse);
    let fixture = shared();
    for is_kept in [false, true] {
        let path = fixture.at("d");
        fs::create_dir(fixture.behind.join("d")).unwrap();
        for number in 0..3000 {
            fs::write(fixture.behind.join(format!("d/{number}")), "").unwrap();
        }
        wait_until("the directory", || path.exists());
        if is_kept {
            assert_eq!(names(&path).len(), 3000);
        }
        let mut list = fs::read_dir(&path).unwrap();
        let first = list.next().unwrap().unwrap().path();
        fs::remove_file(first).unwrap();
        let rest = list.map(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
        assert_eq!(rest.count(), 2999);
        fs::remove_dir(&path).unwrap();
    }
    fixture.finish();
}

/// A position of an open directory names the same entry after other entries were removed, and
/// whether the kernel has kept the listing or not.
#[test]
fn position_in_listing_survives_removals() {
    requires!(root, fuse);
    let fixture = shared();
    fs::create_dir(fixture.behind.join("d")).unwrap();
    for number in 0..1000 {
        fs::write(fixture.behind.join(format!("d/{number}")), "").unwrap();
    }
    let path = fixture.at("d");
    for _ in 0..2 {
        let mut directory = rustix::fs::Dir::new(File::open(&path).unwrap()).unwrap();
        let mut read = |count: usize| -> Vec<_> {
            let next = directory.by_ref().take(count).map(Result::unwrap);
            next.map(|entry| (entry.file_name().to_owned(), entry.offset()))
                .collect()
        };
        let first = read(400);
        let following = read(2);
        let (last, position) = first.last().unwrap();
        for (name, _) in &first[200..210] {
            let name = name.to_str().unwrap();
            if !matches!(name, "." | "..") {
                fs::remove_file(path.join(name)).unwrap();
            }
        }
        directory.seek(*position).unwrap();
        let again = directory.next().unwrap().unwrap();
        assert_eq!(again.file_name(), &*following[0].0, "after {last:?}");
        directory.rewind();
        assert_eq!(directory.count(), fs::read_dir(&path).unwrap().count() + 2);
    }
    fixture.finish();
}

/// A change while a long listing is being read, or after a reader that has stopped, does not keep
/// the kernel from storing the next one.
#[test]
fn listing_is_kept_again_after_a_change() {
    requires!(root, fuse);
    let fixture = shared();
    let host = |name: &str| fixture.behind.join(name);
    fs::create_dir(host("d")).unwrap();
    let mut count = 0;
    let mut add = |most: usize| {
        while count < most {
            fs::write(host(&format!("d/name-{count:05}")), "").unwrap();
            count += 1;
        }
    };
    add(2000);
    let path = fixture.at("d");
    for most in [2001, 2002, 2003] {
        let mut partial = fs::read_dir(&path).unwrap();
        partial.next().unwrap().unwrap();
        add(most);
        drop(partial);
        settle(&host("d"));
        for _ in 0..3 {
            assert_eq!(names(&path).len(), most);
        }
        assert_eq!(
            while_server_is_stopped(&fixture, || names(&path)).len(),
            most
        );
    }
    fixture.finish();
}

/// Most directories get no watch: the kernel must not keep their listings.
#[test]
fn listing_without_watch_shows_changes() {
    requires!(root, fuse, user_namespaces);
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        cd "$1"; mkdir -p host/a host/b host/c host/d host/e mnt
        echo 2 > "$2"
        "$0" mount -q --background --log log -o push=inotify host mnt || exit 3
        for round in 1 2 3; do
            for name in a b c d e; do
                ls mnt/$name > /dev/null; ls mnt/$name > /dev/null
                > host/$name/$round
                tries=0
                until [ "$(ls mnt/$name)" = "$(ls host/$name)" ]; do
                    tries=$((tries + 1)); [ $tries -lt 1000 ] || exit 4
                done
            done
        done
        grep -q max_user_watches log
    "#;
    let mut unshare = command("unshare");
    let flags = ["--user", "--map-root-user", "--mount", "sh", "-c", script];
    unshare.args(flags).arg(env!("CARGO_BIN_EXE_folio"));
    unshare
        .arg(folder.path())
        .arg(crate::support::require::WATCHES_MAX);
    let output = unshare.output().unwrap();
    assert!(output.status.success(), "{output:?}");
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
