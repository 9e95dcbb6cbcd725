//! A shared host directory: changes by the host are pushed to the clients (docs/remote.md).

use crate::remote::mount::RemoteMount;
use crate::remote::proxy::Proxy;
use crate::remote::{ImageFolder, RunningCommand, ShareServer, probe, wait_until};
use crate::support::require::with_watches;
use crate::support::requires;
use crate::support::tools::fsck;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A shared host directory.
pub(crate) struct SharedDirectory {
    pub(crate) folder: TempDir,
    pub(crate) shared: ShareServer,
}

impl SharedDirectory {
    pub(crate) fn new(words: &[&str]) -> Self {
        let folder = TempDir::with_prefix("folio-remote-").unwrap();
        fs::create_dir(folder.path().join("host")).unwrap();
        let listen = format!("unix:{}", folder.path().join("socket").display());
        let shared = ShareServer::new(&folder.path().join("host"), &listen, words);
        Self { folder, shared }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("host").join(name)
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn changes_by_the_host_are_pushed() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    fs::write(host.at("file"), "first").unwrap();
    let mount = RemoteMount::new(&host.shared.address, &[]);
    assert_eq!(text(&mount.at("file")), "first");
    let held = fs::File::open(mount.at("file")).unwrap();
    for round in 0..10 {
        let new = format!("round {round} {}", "x".repeat(round * 100));
        fs::write(host.at("file"), &new).unwrap();
        wait_until("the contents are new", || text(&mount.at("file")) == new);
        wait_until("the size is new", || {
            fs::metadata(mount.at("file")).unwrap().len() == new.len() as u64
        });
        let mut bytes = vec![0; new.len()];
        wait_until("an open file shows the contents", || {
            held.read_at(&mut bytes, 0).unwrap() == new.len() && bytes == new.as_bytes()
        });
    }
    drop(held);
    fs::set_permissions(host.at("file"), fs::Permissions::from_mode(0o640)).unwrap();
    wait_until("the mode is new", || {
        fs::metadata(mount.at("file")).unwrap().mode() & 0o777 == 0o640
    });
    assert!(!mount.at("new").exists());
    fs::create_dir(host.at("new")).unwrap();
    wait_until("the folder exists", || mount.at("new").exists());
    fs::write(host.at("new/inner"), "inner").unwrap();
    wait_until("the file in it exists", || {
        text(&mount.at("new/inner")) == "inner"
    });
    fs::write(host.at("other"), "other").unwrap();
    fs::rename(host.at("other"), host.at("file")).unwrap();
    wait_until("the file is replaced", || {
        text(&mount.at("file")) == "other"
    });
    fs::rename(host.at("new"), host.at("moved")).unwrap();
    wait_until("the folder has moved", || {
        !mount.at("new").exists() && text(&mount.at("moved/inner")) == "inner"
    });
    fs::remove_file(host.at("file")).unwrap();
    wait_until("the file is removed", || !mount.at("file").exists());
    fs::write(mount.at("back"), "from the client").unwrap();
    assert_eq!(text(&host.at("back")), "from the client");
    mount.unmount();
    host.shared.stop();
}

/// Cached data is valid without a request: it can be read while the server is stopped.
#[test]
fn cached_data_is_read_without_the_server() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&["-o", "ttl=inf"]);
    fs::write(host.at("file"), "text").unwrap();
    let mount = RemoteMount::new(&host.shared.address, &[]);
    // open revalidates: it sees the host's last write.
    let file = File::open(mount.at("file")).unwrap();
    let read = || {
        let mut bytes = [0; 8];
        let len = fs::metadata(mount.at("file")).unwrap().len();
        len == 4 && file.read_at(&mut bytes, 0).unwrap() == 4 && bytes.starts_with(b"text")
    };
    let is_read_without_server = || {
        assert!(read() && read());
        host.shared.running.signal(Signal::STOP);
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(read()));
            let answered = receiver.recv_timeout(Duration::from_secs(3));
            host.shared.running.signal(Signal::CONT);
            answered == Ok(true)
        })
    };
    // For some seconds after a write, its mtime may hide another change, so the client revalidates
    // once more.
    wait_until("the data is read without a request", is_read_without_server);
    drop(file);
    mount.unmount();
    host.shared.stop();
}

#[test]
fn changes_without_connection_are_pushed_later() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    for number in 0..50 {
        fs::write(host.at(&format!("file{number}")), "old").unwrap();
    }
    let path = |name: &str| host.folder.path().join(name);
    let proxy = Proxy::new(&path("proxy"), &path("socket"), 1);
    proxy.stop_cutting();
    let mount = RemoteMount::new(&proxy.address(), &[]);
    let all = |text_of_all: &str| {
        (0..50).all(|number| text(&mount.at(format!("file{number}"))) == text_of_all)
    };
    assert!(all("old") && !mount.at("new").exists());
    for (count, new) in ["new", "newer", "newest"].into_iter().enumerate() {
        proxy.cut();
        mount
            .running
            .stderr
            .lines("the connection is lost", count + 1);
        for number in 0..50 {
            fs::write(host.at(&format!("file{number}")), new).unwrap();
        }
        mount.running.stderr.lines("nothing was lost", count + 1);
        wait_until("all is new", || all(new));
    }
    fs::write(host.at("new"), "new").unwrap();
    wait_until("a new name is visible", || mount.at("new").exists());
    mount.unmount();
    host.shared.stop();
}

#[test]
fn exhausted_watches_are_reported_by_the_server() {
    requires!(root, fuse, user_namespaces);
    let folder = TempDir::with_prefix("folio-remote-").unwrap();
    let host = |name: String| folder.path().join("host").join(name);
    for number in 0..6 {
        fs::create_dir_all(host(format!("folder{number}"))).unwrap();
        fs::write(host(format!("folder{number}/file")), "old").unwrap();
    }
    let mut command = with_watches(3, env!("CARGO_BIN_EXE_folio").as_ref());
    let listen = format!("unix:{}", folder.path().join("socket").display());
    command
        .arg("share")
        .arg(folder.path().join("host"))
        .args(["--listen", &listen]);
    let shared = ShareServer::from_running(RunningCommand::spawn(&mut command));
    let mount = RemoteMount::new(&shared.address, &[]);
    let all =
        |new: &str| (0..6).all(|number| text(&mount.at(format!("folder{number}/file"))) == new);
    assert!(all("old"));
    shared.running.stderr.line("fs.inotify.max_user_watches");
    for number in 0..6 {
        fs::write(host(format!("folder{number}/file")), "new").unwrap();
    }
    wait_until("all is new", || all("new"));
    mount.unmount();
    shared.stop();
}

#[test]
fn two_clients_and_the_host_agree() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    let (one, two) = (
        RemoteMount::new(&host.shared.address, &[]),
        RemoteMount::new(&host.shared.address, &[]),
    );
    for round in 0..10 {
        let (name, new) = (format!("file{}", round % 3), format!("round {round}"));
        let writer = [one.at(&name), two.at(&name), host.at(&name)];
        fs::write(&writer[round % 3], &new).unwrap();
        for reader in &writer {
            wait_until("all agree", || text(reader) == new);
        }
    }
    one.unmount();
    two.unmount();
    host.shared.stop();
}

#[test]
fn read_only_share_refuses_changes() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&["--read-only"]);
    fs::write(host.at("file"), "text").unwrap();
    let mount = RemoteMount::new(&host.shared.address, &[]);
    assert_eq!(text(&mount.at("file")), "text");
    let refused = fs::write(mount.at("file"), "changed").unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(rustix::io::Errno::ROFS.raw_os_error()),
        "{refused}"
    );
    assert!(
        fs::create_dir(mount.at("folder")).is_err() && fs::remove_file(mount.at("file")).is_err()
    );
    assert_eq!(text(&host.at("file")), "text");
    mount.unmount();
    host.shared.stop();
}

/// A share may come from any server: its programs gain no privileges, its device nodes do nothing.
#[test]
fn mount_of_a_share_is_nosuid_and_nodev() {
    requires!(root, fuse);
    let host = SharedDirectory::new(&[]);
    let flags = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
    for (words, expected) in [
        (&[][..], flags),
        (&["-o", "suid,dev"], flags.difference(flags)),
    ] {
        let mount = RemoteMount::new(&host.shared.address, words);
        let found = rustix::fs::statvfs(mount.path()).unwrap().f_flag;
        mount.unmount();
        assert_eq!(found & flags, expected, "{words:?}");
    }
    host.shared.stop();
}

/// Locks belong to the client's kernel; files without a name exist on the server.
#[test]
fn locks_and_unnamed_files_work_on_a_client() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let (host, files) = (SharedDirectory::new(&[]), ImageFolder::new());
    let image = files.share();
    for address in [&host.shared.address, &image.address] {
        let (one, two) = (
            RemoteMount::new(address, &[]),
            RemoteMount::new(address, &[]),
        );
        probe::locks(&one.at("file"));
        probe::unnamed(one.path());
        let files = [&one, &two].map(|mount| File::open(mount.at("file")).unwrap());
        for file in &files {
            flock(file, FlockOperation::NonBlockingLockExclusive)
                .expect("another client's lock does not conflict");
        }
        drop(files);
        one.unmount();
        two.unmount();
    }
    image.stop();
    host.shared.stop();
    fsck(&files.image);
}
