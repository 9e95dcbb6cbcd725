//! Connections that are cut and servers that are killed.

use crate::remote::mount::RemoteMount;
use crate::remote::proxy::Proxy;
use crate::remote::{Bench, wait_until};
use crate::support::requires;
use crate::support::tools::fsck;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

fn is_lost(error: &std::io::Error) -> bool {
    [rustix::io::Errno::STALE, rustix::io::Errno::IO]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

/// docs/remote.md: a server that is killed and started again is found again; open files are lost,
/// what was synced is not, and nothing that was cached is believed any more.
#[test]
fn a_server_that_is_killed_is_found_again() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let bench = Bench::new();
    let mut shared = bench.share();
    let mount = RemoteMount::new(&shared.address, &[]);
    fs::create_dir(mount.at("folder")).unwrap();
    let mut open = fs::File::create_new(mount.at("folder/open")).unwrap();
    open.write_all(b"synced").unwrap();
    open.sync_all().unwrap();
    fs::write(mount.at("cached"), "as it was").unwrap();
    fs::File::open(mount.at("cached"))
        .unwrap()
        .sync_all()
        .unwrap();
    assert_eq!(fs::read_to_string(mount.at("cached")).unwrap(), "as it was");
    shared.running.kill();
    mount.running.told.line("the connection is lost");
    // Somebody else changes the image meanwhile.
    let changed = std::process::Command::new(env!("CARGO_BIN_EXE_folio"))
        .args(["rm", &format!("{}:/cached", bench.image.display())])
        .status();
    assert!(changed.unwrap().success());
    let shared = bench.share();
    mount.running.told.line("does not know this mount");
    wait_until("what was cached is forgotten", || {
        !mount.at("cached").exists()
    });
    let error = open
        .write_all_at(b"lost", 0)
        .and_then(|()| open.sync_all())
        .unwrap_err();
    assert!(is_lost(&error), "{error}");
    // While the kernel forgets what it had, a path may be stale once more.
    let synced = || fs::read_to_string(mount.at("folder/open")).is_ok_and(|text| text == "synced");
    wait_until("what was synced is read", synced);
    wait_until("the folder can be written to", || {
        fs::write(mount.at("folder/new"), "new").is_ok()
    });
    drop(open);
    mount.unmount();
    shared.stop();
    fsck(&bench.image);
}

/// docs/remote.md: who does not want to wait for ever does not.
#[test]
fn calls_fail_when_the_server_stays_away() {
    requires!(root, fuse, tool("mke2fs"));
    let bench = Bench::new();
    let mut shared = bench.share();
    let mount = RemoteMount::new(&shared.address, &["--retry", "1"]);
    fs::write(mount.at("file"), "text").unwrap();
    shared.running.kill();
    let error = fs::write(mount.at("other"), "more").unwrap_err();
    assert!(is_lost(&error), "{error}");
    mount.running.told.line("calls fail with EIO");
    let shared = bench.share();
    wait_until("calls succeed again", || {
        fs::write(mount.at("other"), "more").is_ok()
    });
    mount.unmount();
    shared.stop();
}

/// docs/remote.md: whatever happens to the connection, a request is done once.
///
/// Each of these calls tells if it is done twice (the second time it fails) or never (its effect is
/// missing).
#[test]
fn connections_that_are_cut_lose_nothing_and_double_nothing() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    for seed in [1, 0x5eed, 0xdead_beef] {
        let bench = Bench::new();
        let shared = bench.share();
        let path = |name: &str| bench.folder.path().join(name);
        let proxy = Proxy::new(&path("proxy"), &path("socket"), seed);
        // Some first connections are cut before there is a mount.
        let mut mount = None;
        for _ in 0..50 {
            mount = RemoteMount::try_new(&proxy.address(), &["--retry", "50"]);
            if mount.is_some() {
                break;
            }
        }
        let mount = mount.unwrap_or_else(|| panic!("no mount with seed {seed}"));
        std::thread::scope(|scope| {
            let (mount, work) = (&mount, &work);
            (0..4).for_each(|worker| drop(scope.spawn(move || work(mount, worker, seed))));
        });
        let cuts = proxy.cuts.load(Ordering::SeqCst);
        assert!(cuts > 3, "{cuts} connections were cut with seed {seed}");
        proxy.calm();
        mount.unmount();
        let mount = RemoteMount::new(&shared.address, &[]);
        for worker in 0..4 {
            let count = fs::read_dir(mount.at(format!("w{worker}")))
                .unwrap()
                .count();
            assert_eq!(count, 60 + 1, "seed {seed}");
            let log = fs::read(mount.at(format!("w{worker}/log"))).unwrap();
            let whole: Vec<u8> = (0..60_u32).flat_map(|round| line(worker, round)).collect();
            assert!(log == whole, "seed {seed}");
        }
        mount.unmount();
        shared.stop();
        fsck(&bench.image);
    }
}

fn line(worker: u32, round: u32) -> Vec<u8> {
    format!(
        "{worker} {round} {}\n",
        "text ".repeat((round as usize * 37) % 700)
    )
    .into_bytes()
}

/// Makes, appends, renames and removes; every call succeeds.
fn work(mount: &RemoteMount, worker: u32, seed: u64) {
    let at = |name: String| mount.at(format!("w{worker}")).join(name);
    let told =
        |what: &str, round: u32| format!("{what} in round {round} of worker {worker}, seed {seed}");
    fs::create_dir(mount.at(format!("w{worker}")))
        .unwrap_or_else(|error| panic!("{}: {error}", told("mkdir", 0)));
    let mut log = fs::OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(at("log".to_owned()))
        .unwrap();
    for round in 0..60 {
        let (old, new) = (at(format!("old{round}")), at(format!("new{round}")));
        fs::create_dir(&old).unwrap_or_else(|error| panic!("{}: {error}", told("mkdir", round)));
        fs::rename(&old, &new).unwrap_or_else(|error| panic!("{}: {error}", told("rename", round)));
        log.write_all(&line(worker, round))
            .unwrap_or_else(|error| panic!("{}: {error}", told("write", round)));
        let link = at(format!("link{round}"));
        std::os::unix::fs::symlink("new0", &link)
            .unwrap_or_else(|error| panic!("{}: {error}", told("symlink", round)));
        fs::remove_file(&link).unwrap_or_else(|error| panic!("{}: {error}", told("unlink", round)));
        assert_eq!(
            log.metadata().unwrap().len(),
            (0..=round)
                .map(|round| line(worker, round).len() as u64)
                .sum::<u64>()
        );
    }
    log.sync_all()
        .unwrap_or_else(|error| panic!("{}: {error}", told("fsync", 60)));
}

/// docs/remote.md: a client that is lost keeps its files for the time of grace, and no longer.
#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let bench = Bench::new();
    let shared = crate::remote::Shared::new(
        &bench.image,
        &bench.socket(),
        &["--grace", "1", "--max-clients", "1"],
    );
    let mut mount = RemoteMount::new(&shared.address, &[]);
    let mut open = fs::File::create_new(mount.at("file")).unwrap();
    open.write_all(&[7; 1 << 20]).unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    // An open file without a name takes space until its client is given up.
    mount.running.kill();
    shared.running.told.line("stayed away");
    drop(open);
    drop(mount);
    let mount = RemoteMount::new(&shared.address, &[]);
    mount.unmount();
    shared.stop();
    fsck(&bench.image);
}

/// docs/remote.md: a program that waits for a server that is away can be killed, and the mount can
/// be ended.
#[test]
fn nobody_has_to_wait_for_a_server_that_is_away() {
    requires!(root, fuse, tool("mke2fs"));
    let bench = Bench::new();
    let mut shared = bench.share();
    let mut mount = RemoteMount::new(&shared.address, &["--retry", "1000"]);
    fs::write(mount.at("file"), "text").unwrap();
    let open = fs::File::open(mount.at("file")).unwrap();
    shared.running.kill();
    mount.running.told.line("the connection is lost");
    let mut waiting = std::process::Command::new("mkdir")
        .arg(mount.at("folder"))
        .spawn()
        .unwrap();
    let proc = format!("/proc/{}/wchan", waiting.id());
    wait_until("it waits", || {
        fs::read_to_string(&proc).is_ok_and(|place| place.contains("request_wait_answer"))
    });
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    // The file that is open keeps it busy: it is detached, and what waits fails.
    mount.running.signal(rustix::process::Signal::TERM);
    mount.running.told.line("detached");
    let error = open.sync_all().unwrap_err();
    assert!(is_lost(&error), "{error}");
    drop(open);
    assert!(mount.running.child.wait().unwrap().success());
}

/// With a connection, who uses a mount that was detached goes on.
#[test]
fn a_mount_that_is_detached_serves_on() {
    requires!(root, fuse, tool("mke2fs"));
    let bench = Bench::new();
    let shared = bench.share();
    let mut mount = RemoteMount::new(&shared.address, &[]);
    let mut open = fs::File::create_new(mount.at("file")).unwrap();
    mount.running.signal(rustix::process::Signal::TERM);
    mount.running.told.line("detached");
    open.write_all(b"text").unwrap();
    open.sync_all().unwrap();
    drop(open);
    assert!(mount.running.child.wait().unwrap().success());
    shared.stop();
}
