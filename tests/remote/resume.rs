//! Cut connections and killed servers.

use crate::remote::mount::RemoteMount;
use crate::remote::proxy::Proxy;
use crate::remote::{ImageFolder, wait_until};
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

/// docs/remote.md: a client reconnects to a restarted server. Open files are lost, synced data is
/// not, and all cached data is invalidated.
#[test]
fn client_reconnects_to_a_restarted_server() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let files = ImageFolder::new();
    let mut shared = files.share();
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
    mount.running.stderr.line("the connection is lost");
    // Another process changes the image meanwhile.
    let changed = std::process::Command::new(env!("CARGO_BIN_EXE_folio"))
        .args(["rm", &format!("{}:/cached", files.image.display())])
        .status();
    assert!(changed.unwrap().success());
    let shared = files.share();
    mount.running.stderr.line("does not know this mount");
    wait_until("cached names are invalidated", || {
        !mount.at("cached").exists()
    });
    let error = open
        .write_all_at(b"lost", 0)
        .and_then(|()| open.sync_all())
        .unwrap_err();
    assert!(is_lost(&error), "{error}");
    // While the kernel drops its cache, a path may give ESTALE once more.
    let synced = || fs::read_to_string(mount.at("folder/open")).is_ok_and(|text| text == "synced");
    wait_until("synced data is read", synced);
    wait_until("the folder can be written to", || {
        fs::write(mount.at("folder/new"), "new").is_ok()
    });
    drop(open);
    mount.unmount();
    shared.stop();
    fsck(&files.image);
}

/// docs/remote.md: calls do not wait forever for a lost server.
#[test]
fn calls_fail_when_the_server_stays_away() {
    requires!(root, fuse, tool("mke2fs"));
    let files = ImageFolder::new();
    let mut shared = files.share();
    let mount = RemoteMount::new(&shared.address, &["--retry", "1"]);
    fs::write(mount.at("file"), "text").unwrap();
    shared.running.kill();
    let error = fs::write(mount.at("other"), "more").unwrap_err();
    assert!(is_lost(&error), "{error}");
    mount.running.stderr.line("calls fail with EIO");
    let shared = files.share();
    wait_until("calls succeed again", || {
        fs::write(mount.at("other"), "more").is_ok()
    });
    mount.unmount();
    shared.stop();
}

/// docs/remote.md: a request runs exactly once, even if its connection is cut.
///
/// Each of these calls detects a second run (it would fail) and a missing run (its effect would be
/// missing).
#[test]
fn cut_connections_lose_and_repeat_no_request() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    for seed in [1, 0x5eed, 0xdead_beef] {
        let files = ImageFolder::new();
        let shared = files.share();
        let path = |name: &str| files.folder.path().join(name);
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
        proxy.stop_cutting();
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
        fsck(&files.image);
    }
}

fn line(worker: u32, round: u32) -> Vec<u8> {
    format!(
        "{worker} {round} {}\n",
        "text ".repeat((round as usize * 37) % 700)
    )
    .into_bytes()
}

/// Creates, appends, renames and removes; every call has to succeed.
fn work(mount: &RemoteMount, worker: u32, seed: u64) {
    let at = |name: String| mount.at(format!("w{worker}")).join(name);
    let context =
        |what: &str, round: u32| format!("{what} in round {round} of worker {worker}, seed {seed}");
    fs::create_dir(mount.at(format!("w{worker}")))
        .unwrap_or_else(|error| panic!("{}: {error}", context("mkdir", 0)));
    let mut log = fs::OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(at("log".to_owned()))
        .unwrap();
    for round in 0..60 {
        let (old, new) = (at(format!("old{round}")), at(format!("new{round}")));
        fs::create_dir(&old).unwrap_or_else(|error| panic!("{}: {error}", context("mkdir", round)));
        fs::rename(&old, &new)
            .unwrap_or_else(|error| panic!("{}: {error}", context("rename", round)));
        log.write_all(&line(worker, round))
            .unwrap_or_else(|error| panic!("{}: {error}", context("write", round)));
        let link = at(format!("link{round}"));
        std::os::unix::fs::symlink("new0", &link)
            .unwrap_or_else(|error| panic!("{}: {error}", context("symlink", round)));
        fs::remove_file(&link)
            .unwrap_or_else(|error| panic!("{}: {error}", context("unlink", round)));
        assert_eq!(
            log.metadata().unwrap().len(),
            (0..=round)
                .map(|round| line(worker, round).len() as u64)
                .sum::<u64>()
        );
    }
    log.sync_all()
        .unwrap_or_else(|error| panic!("{}: {error}", context("fsync", 60)));
}

/// docs/remote.md: a lost client keeps its files for the grace period, and no longer.
#[test]
fn killed_client_leaves_no_files_behind() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let files = ImageFolder::new();
    let shared = crate::remote::ShareServer::new(
        &files.image,
        &files.socket(),
        &["--grace", "1", "--max-clients", "1"],
    );
    let mut mount = RemoteMount::new(&shared.address, &[]);
    let mut open = fs::File::create_new(mount.at("file")).unwrap();
    open.write_all(&[7; 1 << 20]).unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    // An open file without a name takes space until its client's session ends.
    mount.running.kill();
    shared.running.stderr.line("stayed away");
    drop(open);
    drop(mount);
    let mount = RemoteMount::new(&shared.address, &[]);
    mount.unmount();
    shared.stop();
    fsck(&files.image);
}

/// docs/remote.md: a program that waits for a lost server can be killed, and the mount can be
/// ended.
#[test]
fn waiting_calls_can_be_killed_or_abandoned() {
    requires!(root, fuse, tool("mke2fs"));
    let files = ImageFolder::new();
    let mut shared = files.share();
    let mut mount = RemoteMount::new(&shared.address, &["--retry", "1000"]);
    fs::write(mount.at("file"), "text").unwrap();
    let open = fs::File::open(mount.at("file")).unwrap();
    shared.running.kill();
    mount.running.stderr.line("the connection is lost");
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
    // The open file keeps the mount busy: it is detached, and waiting calls fail.
    mount.running.signal(rustix::process::Signal::TERM);
    mount.running.stderr.line("detached");
    let error = open.sync_all().unwrap_err();
    assert!(is_lost(&error), "{error}");
    drop(open);
    assert!(mount.running.child.wait().unwrap().success());
}

/// With a connection, open files of a detached mount stay usable.
#[test]
fn detached_mount_still_serves_open_files() {
    requires!(root, fuse, tool("mke2fs"));
    let files = ImageFolder::new();
    let shared = files.share();
    let mut mount = RemoteMount::new(&shared.address, &[]);
    let mut open = fs::File::create_new(mount.at("file")).unwrap();
    mount.running.signal(rustix::process::Signal::TERM);
    mount.running.stderr.line("detached");
    open.write_all(b"text").unwrap();
    open.sync_all().unwrap();
    drop(open);
    let status = mount.running.child.wait().unwrap();
    assert!(status.success(), "{status}");
    shared.stop();
}
