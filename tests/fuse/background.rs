//! Mounts in the background: readiness, their messages, and how they ended.

use crate::empty;
use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, succeed, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A directory to mount on, which is unmounted at the end.
struct Target(PathBuf);

impl Target {
    fn new(folder: &Path) -> Self {
        let target = folder.join("mount");
        fs::create_dir(&target).unwrap();
        Self(target)
    }

    fn unmount(&self) {
        succeed(command("umount").arg(&self.0));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = command("umount").args(["-l", "-q"]).arg(&self.0).output();
    }
}

fn folio() -> Command {
    command(env!("CARGO_BIN_EXE_folio"))
}

fn mount(options: &[&str], image: &Path, target: &Target) -> Output {
    let mut command = folio();
    command.args(["mount", "--background"]).args(options);
    command.arg(image).arg(&target.0).output().unwrap()
}

fn wait(place: &Path) -> Output {
    folio()
        .args(["mount", "--wait"])
        .arg(place)
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn background_mount_returns_when_ready() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let target = Target::new(folder.path());
    let refused = mount(&["-o", "rw,nonsense"], &image, &target);
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors(&refused).contains("nonsense"), "{refused:?}");
    let ls = || folio().arg("ls").arg(&image).output().unwrap();
    // Each round leaves data that the server writes after umount(8) has returned.
    for name in ["1", "2", "3"] {
        let mounted = mount(&[], &image, &target);
        assert!(mounted.status.success(), "{mounted:?}");
        fs::write(target.0.join(name), vec![1; 4 << 20]).unwrap();
        // The image is locked as long as it is served.
        assert_eq!(ls().status.code(), Some(3));
        target.unmount();
        let waited = wait(if name == "2" { &target.0 } else { &image });
        assert!(
            waited.status.success() && errors(&waited).is_empty(),
            "{waited:?}"
        );
        let listed = ls();
        assert!(
            listed.status.success() && text(&listed).contains(name),
            "{listed:?}"
        );
    }
    fsck(&image);
    assert_eq!(wait(&folder.path().join("none")).status.code(), Some(1));
}

#[test]
fn messages_of_a_background_mount_are_kept_until_read() {
    requires!(root, fuse, tool("mount"));
    let folder = TempDir::new().unwrap();
    let small = Target::new(folder.path());
    let tmpfs = ["-t", "tmpfs", "-o", "size=20M", "none"];
    succeed(command("mount").args(tmpfs).arg(&small.0));
    let (inner, log) = (TempDir::new().unwrap(), folder.path().join("log"));
    let (image, target) = (small.0.join("d.qcow2"), Target::new(inner.path()));
    // Mounts an image for which the host has no space, and fills it.
    let fail = |options: &[&str]| {
        let _ = fs::remove_file(&image);
        succeed(folio().args(["mkfs", "--size", "200M"]).arg(&image));
        let mounted = mount(options, &image, &target);
        assert!(
            mounted.status.success() && errors(&mounted).is_empty(),
            "{mounted:?}"
        );
        let _ = fs::write(target.0.join("f"), vec![1; 40 << 20]);
        target.unmount();
    };
    let assert_read = || {
        let again = wait(&image);
        assert!(
            again.status.success() && errors(&again).is_empty(),
            "{again:?}"
        );
    };
    let (full, ended) = ("file system is full", "ended with a failure");

    fail(&[]);
    let waited = wait(&target.0);
    assert_eq!(waited.status.code(), Some(1));
    assert!(
        errors(&waited).contains(full) && errors(&waited).contains(ended),
        "{waited:?}"
    );
    assert_read();

    fail(&["--log", log.to_str().unwrap()]);
    let waited = wait(&image);
    assert_eq!(waited.status.code(), Some(1));
    assert!(errors(&waited).contains(ended), "{waited:?}");
    assert!(fs::read_to_string(&log).unwrap().contains(full));

    fail(&[]);
    let is_in_use = || {
        folio()
            .arg("df")
            .arg(&image)
            .output()
            .unwrap()
            .status
            .code()
            == Some(3)
    };
    while is_in_use() {
        std::thread::yield_now();
    }
    let later = mount(&["--ro"], &image, &target);
    assert!(errors(&later).contains("an earlier mount said") && errors(&later).contains(full));
    target.unmount();
    assert_read();
}

#[test]
fn killed_server_is_reported() {
    requires!(root, fuse, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let target = Target::new(folder.path());
    let log = folder.path().join("log of the killed server");
    assert!(
        mount(&["--log", log.to_str().unwrap()], &image, &target)
            .status
            .success()
    );
    let servers = succeed(command("pgrep").arg("-f").arg(&log));
    let server = text(&servers).trim().parse().unwrap();
    kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
    let waited = wait(&target.0);
    assert_eq!(waited.status.code(), Some(1), "{waited:?}");
    assert!(errors(&waited).contains("killed"), "{waited:?}");
    assert!(wait(&image).status.success());
}

/// The program that wrote them may have ended before the kernel passed the bytes on.
#[test]
fn lost_delayed_writes_fail_the_wait() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("small.img");
    mke2fs(&image, "32M", &["-b", "4096"]);
    let target = Target::new(folder.path());
    let mounted = mount(&["-o", "writeback"], &image, &target);
    assert!(mounted.status.success(), "{mounted:?}");
    let mut file = fs::File::create(target.0.join("f")).unwrap();
    let bytes = vec![7; 1 << 20];
    // A write may fail already.
    let _ = (0..64).try_for_each(|_| std::io::Write::write_all(&mut file, &bytes));
    drop(file);
    target.unmount();
    let waited = wait(&image);
    assert_eq!(waited.status.code(), Some(1), "{waited:?}");
    assert!(
        errors(&waited).contains("could not be stored"),
        "{waited:?}"
    );
    fsck(&image);
}

/// Calls folio as mount(8) calls its helper `name`.
fn call_helper(name: &str, image: &Path, target: &Target, options: &str) -> Output {
    let helper = image.with_file_name(name);
    if !helper.exists() {
        symlink(env!("CARGO_BIN_EXE_folio"), &helper).unwrap();
    }
    let mut command = command(helper.to_str().unwrap());
    let command = command.arg(image).arg(&target.0).args(["-o", options]);
    command.output().unwrap()
}

#[test]
fn helper_of_mount_serves_lines_of_fstab() {
    requires!(root, fuse, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let target = Target::new(folder.path());
    let helper = |options| call_helper("mount.fuse.folio", &image, &target, options);
    let mounted = helper("ro,nofail,noauto,x-systemd.automount");
    assert!(mounted.status.success(), "{mounted:?}");
    let refused = fs::write(target.0.join("f"), "x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    target.unmount();
    assert!(wait(&image).status.success());
    let refused = helper("rw,nonsense");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn helper_of_mount_changes_a_running_mount() {
    requires!(root, fuse, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let target = Target::new(folder.path());
    let helper = |options| call_helper("mount.fuseblk.folio", &image, &target, options);
    let file = target.0.join("f");
    let done = |options| {
        let output = helper(options);
        assert!(output.status.success(), "{options}: {}", errors(&output));
    };
    let refused = |options, why| {
        let output = helper(options);
        assert_eq!(output.status.code(), Some(1), "{options}: {output:?}");
        assert!(errors(&output).contains(why), "{options}: {output:?}");
    };
    done("commit=7,threads=2,noauto");
    // As mount(8) calls it: flags of the kernel, options of fstab, and those that are asked for.
    done("ro,remount,commit=7,threads=2");
    let error = fs::write(&file, "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    done("rw,noexec,remount,noauto_da_alloc");
    fs::write(&file, "#!/bin/sh").unwrap();
    let flags = rustix::fs::statvfs(&target.0).unwrap().f_flag;
    assert!(flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    refused("rw,remount,commit=9", "only a new mount changes");
    refused("rw,remount,nonsense", "only a new mount changes");
    refused("rw,remount,threads=3", "only a new mount changes");
    // As it is shown in /proc/mounts.
    done("rw,remount,user_id=0,group_id=0,default_permissions");
    target.unmount();
    assert!(wait(&image).status.success());
    refused("rw,remount", "no mount of folio");
    done("ro");
    refused("rw,remount", "opened read-only");
    target.unmount();
    assert!(wait(&image).status.success());
    fsck(&image);
}

/// An image may come from any source: its programs gain no privileges, its device nodes do nothing.
#[test]
fn mount_of_an_image_is_nosuid_and_nodev() {
    requires!(root, fuse, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let target = Target::new(folder.path());
    let flags = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
    for (options, expected) in [
        (&[][..], flags),
        (&["-o", "suid,dev"], flags.difference(flags)),
    ] {
        let mounted = mount(options, &image, &target);
        assert!(mounted.status.success(), "{mounted:?}");
        let found = rustix::fs::statvfs(&target.0).unwrap().f_flag;
        target.unmount();
        assert!(wait(&image).status.success());
        assert_eq!(found & flags, expected, "{options:?}");
    }
}
