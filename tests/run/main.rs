//! `folio run`: commands with an image as their root, as root and as other users, with and without
//! subordinate ids.
//!
//! ```text
//!   Fixture   an image with busybox --> folio run --> what the command saw, and its exit code
//!                                                 --> e2fsck, the host's mounts and processes
//!     commands.rs    exit codes, streams, environment, users     images.rs   what reaches the image
//!     namespaces.rs  what the command sees, what remains         hostile.rs  images against the host
//!     terminals.rs   a terminal of its own                       kills.rs    SIGKILL at any moment
//!     control.rs     orders by folio ctl
//!     debian.rs      package manager, compilers and more, on request
//! ```

mod commands;
mod control;
mod debian;
mod hostile;
mod images;
mod kills;
mod namespaces;
#[path = "../support/probe.rs"]
mod probe;
#[path = "../support/mod.rs"]
mod support;
mod terminals;

use rustix::fs::{Gid, Uid};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::Need;
use support::require::{find, report_skip};
use support::tools::{command, fsck, succeed};
use tempfile::TempDir;

/// A user without an account on this machine.
const USER: u32 = 60_001;
/// The user's first subordinate id.
const SUBORDINATE: u32 = 600_000_000;

/// The user that runs `folio run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Root,
    /// A user with subordinate ids.
    WithIds,
    /// A user without.
    WithoutIds,
}

/// Makes a test of each function, with each caller.
macro_rules! for_each_caller {
    ($($test:ident;)+) => {
        mod root { $(#[test] fn $test() { crate::with(crate::Caller::Root, super::$test); })+ }
        mod with_ids { $(#[test] fn $test() { crate::with(crate::Caller::WithIds, super::$test); })+ }
        mod without_ids {
            $(#[test] fn $test() { crate::with(crate::Caller::WithoutIds, super::$test); })+
        }
    };
}
use for_each_caller;

/// Runs a test with a new fixture, or reports it as skipped.
fn with(caller: Caller, test: fn(&Fixture)) {
    let mut needs = vec![
        Need::Root,
        Need::Fuse,
        Need::Tool("busybox"),
        Need::Tool("setpriv"),
    ];
    needs.extend([Need::Tool("unshare"), Need::UserNamespaces]);
    if caller == Caller::WithIds {
        needs.push(Need::Tool("newuidmap"));
    }
    for need in needs {
        if let Err(reason) = need.met() {
            report_skip(&reason);
            return;
        }
    }
    test(&Fixture::new(caller));
}

/// An image with a static busybox as its programs, which belongs to the caller.
struct Fixture {
    caller: Caller,
    folder: TempDir,
    folio: PathBuf,
}

impl Fixture {
    fn new(caller: Caller) -> Self {
        let folder = TempDir::new().unwrap();
        let own = Path::new(env!("CARGO_BIN_EXE_folio"));
        // The user may not reach the build folder.
        let folio = folder.path().join("folio");
        if std::fs::hard_link(own, &folio).is_err() {
            std::fs::copy(own, &folio).unwrap();
        }
        let this = Self {
            caller,
            folder,
            folio,
        };
        let busybox = find("busybox").unwrap();
        let tree = this.path("tree");
        for name in ["bin", "etc", "home", "root"] {
            std::fs::create_dir_all(tree.join(name)).unwrap();
        }
        std::fs::copy(busybox, tree.join("bin/busybox")).unwrap();
        let programs = "sh ls cat id mount ps echo kill sleep tty stty env pwd chown stat touch mkdir \
                        hostname ln dd sync true false rm umount wc chmod readlink find seq tail";
        for name in programs.split_whitespace() {
            std::os::unix::fs::symlink("busybox", tree.join("bin").join(name)).unwrap();
        }
        std::fs::write(
            tree.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:100:U:/home:/bin/sh\n",
        )
        .unwrap();
        std::fs::write(
            tree.join("etc/group"),
            "root:x:0:\nusers:x:100:\naudio:x:29:user\n",
        )
        .unwrap();
        std::fs::write(tree.join("etc/shadow"), "secret\n").unwrap();
        rustix::fs::chown(tree.join("etc/shadow"), None, Some(Gid::from_raw(42))).unwrap();
        this.make_image();
        this.give(this.folder.path());
        this
    }

    /// Makes the image from the folder `tree`; the caller owns it.
    fn make_image(&self) {
        self.folio(&[
            "cp",
            "-a",
            "--quiet",
            "tree/.",
            "disk.img:/",
            "--create",
            "64M",
        ]);
        self.give(&self.path("disk.img"));
    }

    /// Makes the caller the owner of a file.
    fn give(&self, path: &Path) {
        if self.caller != Caller::Root {
            let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
            rustix::fs::chown(path, Some(user), Some(group)).unwrap();
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs another command of folio as root.
    #[track_caller]
    fn folio(&self, words: &[&str]) -> Output {
        let mut folio = Command::new(&self.folio);
        succeed(folio.args(words).current_dir(self.folder.path()))
    }

    /// Returns `folio run` with these arguments, as the caller.
    fn command(&self, words: &[&str]) -> Command {
        let mut program = match self.caller {
            Caller::Root => Command::new(&self.folio),
            _ => self.as_user(),
        };
        if self.caller != Caller::Root {
            program.arg(&self.folio);
        }
        program.args(["--quiet", "run"]).args(words);
        program
            .current_dir(self.folder.path())
            .env("HOST_VARIABLE", "1");
        program.stdin(std::process::Stdio::null());
        program
    }

    /// Returns a program that runs another one as the user, in a mount namespace with access to
    /// /dev/fuse and with the user's account.
    fn as_user(&self) -> Command {
        let ranges = match self.caller {
            Caller::WithIds => format!("folio-test:{SUBORDINATE}:65536"),
            _ => String::new(),
        };
        let script = format!(
            "set -e; mount -t tmpfs tmpfs /mnt; cp /etc/passwd /mnt/passwd; \
             echo folio-test:x:{USER}:{USER}::/:/bin/sh >>/mnt/passwd; echo '{ranges}' >/mnt/ids; \
             mknod /mnt/fuse c 10 229; chmod 666 /mnt/fuse; touch /etc/subuid /etc/subgid; \
             mount --bind /mnt/passwd /etc/passwd; mount --bind /mnt/fuse /dev/fuse; \
             mount --bind /mnt/ids /etc/subuid; mount --bind /mnt/ids /etc/subgid; umount -l /mnt; \
             exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\""
        );
        let mut program = command("unshare");
        program.args(["--mount", "sh", "-c", &script, "sh"]);
        program
    }

    /// Runs `folio run` with these arguments.
    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a shell script in the image; returns what it printed.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        self.sh_with(&[], script)
    }

    /// The same with options of `folio run`.
    #[track_caller]
    fn sh_with(&self, options: &[&str], script: &str) -> String {
        let words: Vec<_> = options
            .iter()
            .copied()
            .chain(["disk.img", "--", "/bin/sh", "-c", script])
            .collect();
        let output = succeed(&mut self.command(&words));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns whether the image has this file, with this content.
    #[track_caller]
    fn content(&self, path: &str) -> Option<String> {
        let mut cat = Command::new(&self.folio);
        cat.args(["cat", &format!("disk.img:{path}")]);
        let output = cat.current_dir(self.folder.path()).output().unwrap();
        let is_found = output.status.success();
        is_found.then(|| String::from_utf8(output.stdout).unwrap())
    }

    #[track_caller]
    fn check(&self) {
        fsck(&self.path("disk.img"));
    }
}
