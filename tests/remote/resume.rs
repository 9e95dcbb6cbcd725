//! Connections that are cut and servers that are killed.

use crate::mount::RemoteMount;
use crate::support::requires;
use crate::support::tools::fsck;
use crate::{Bench, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

fn is_lost(error: &std::io::Error) -> bool {
    [rustix::io::Errno::STALE, rustix::io::Errno::IO]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

/// docs/share.md: a server that is killed and started again is found again; open files are lost, what was synced is
/// not, and nothing that was cached is believed any more.
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
    fs::File::open(mount.at("cached")).unwrap().sync_all().unwrap();
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
    wait_until("what was cached is forgotten", || !mount.at("cached").exists());
    let error = open.write_all_at(b"lost", 0).and_then(|()| open.sync_all()).unwrap_err();
    assert!(is_lost(&error), "{error}");
    let mut text = String::new();
    fs::File::open(mount.at("folder/open")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "synced");
    fs::write(mount.at("folder/new"), "new").unwrap();
    drop(open);
    mount.unmount();
    shared.stop();
    fsck(&bench.image);
}

/// docs/share.md: who does not want to wait for ever does not.
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
    wait_until("calls succeed again", || fs::write(mount.at("other"), "more").is_ok());
    mount.unmount();
    shared.stop();
}
