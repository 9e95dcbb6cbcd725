//! The command as a service: readiness notification, sudden death, mounts without root.

use crate::support::require::find;
use crate::support::requires;
use crate::support::tools::{command, fsck, succeed, text};
use crate::{Fixture, MountSource, empty, for_each_source};
use rustix::process::Signal;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A server started by a test; no mount of it outlives the test.
struct Server<'a>(Child, &'a Path);

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = command("umount").arg("--lazy").arg(self.1).status();
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[test]
fn ready_notifies_service_manager_and_descriptor() {
    requires!(root, fuse, tool("sh"));
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("behind")).unwrap();
    fs::create_dir(at("mount")).unwrap();
    fs::write(at("behind/f"), "there").unwrap();
    let socket = UnixDatagram::bind(at("socket")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut shell = Command::new(find("sh").unwrap());
    shell
        .arg("-c")
        .arg("exec \"$0\" mount --quiet --ready-fd 7 \"$1/behind\" \"$1/mount\" 7>\"$1/ready\"");
    shell
        .arg(env!("CARGO_BIN_EXE_folio"))
        .arg(folder.path())
        .env("NOTIFY_SOCKET", at("socket"));
    let target = at("mount");
    let mut server = Server(shell.stdin(Stdio::null()).spawn().unwrap(), &target);
    let mut buf = [0; 4096];
    let receive = |buf: &mut [u8]| {
        let len = socket.recv(buf).expect("a notification arrives");
        String::from_utf8_lossy(&buf[..len]).into_owned()
    };
    let notification = receive(&mut buf);
    assert!(
        notification.starts_with("READY=1\n")
            && notification.contains(&format!("MAINPID={}", server.0.id())),
        "{notification}"
    );
    assert_eq!(fs::read(at("mount/f")).unwrap(), b"there");
    assert_eq!(fs::read_to_string(at("ready")).unwrap(), "ready\n");
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.0), Signal::TERM)
        .unwrap();
    assert!(server.0.wait().unwrap().success());
    assert_eq!(receive(&mut buf), "STOPPING=1");
    assert!(!at("mount/f").exists());
}

for_each_source! {
    killed_server_keeps_synced_data: "rw";
}

/// Calls on the dead mount fail with ENOTCONN, and the command mounts on the same directory again.
fn killed_server_keeps_synced_data(mut fixture: Fixture) {
    let synced: Vec<u8> = (0..300_000_u32)
        .map(|number| (number % 253) as u8)
        .collect();
    let mut file = File::create(fixture.at("synced")).unwrap();
    file.write_all(&synced).unwrap();
    file.sync_all().unwrap();
    File::open(fixture.mount.path())
        .unwrap()
        .sync_all()
        .unwrap();
    file.write_all(b"perhaps").unwrap();
    fs::write(fixture.at("perhaps"), "perhaps").unwrap();
    rustix::process::kill_process(fixture.mount.process(), Signal::KILL).unwrap();
    let (status, _) = fixture.mount.ended();
    assert!(!status.success());
    let dead = fs::metadata(fixture.at("synced")).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(107), "{dead}");
    // The kernel reads passed-through files by itself, but not once the server has died.
    drop(file);
    let options = format!("rw{}", fixture.source.options());
    let Fixture {
        mount,
        source,
        behind,
        folder: _folder,
    } = fixture;
    let mount = mount.again(&behind, &options);
    let found = fs::read(mount.at("synced")).unwrap();
    assert_eq!(found[..synced.len()], synced);
    mount.unmount();
    if source == MountSource::Image {
        fsck(&behind);
    }
}

/// Changes reach the image without a sync, names and contents together.
#[test]
#[expect(clippy::disallowed_methods, reason = "the image does not notify")]
fn unsynced_file_survives_a_killed_server() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let mut fixture = Fixture::new("rw");
    fs::create_dir(fixture.at("folder")).unwrap();
    fs::write(fixture.at("folder/file"), "contents").unwrap();
    let copy = fixture.folder.path().join("copy.img");
    // The limit is for a machine that does nothing for minutes; the bound itself is seconds.
    for attempt in 0.. {
        succeed(
            command("cp")
                .arg("--sparse=always")
                .arg(&fixture.behind)
                .arg(&copy),
        );
        let mut inside = copy.clone().into_os_string();
        inside.push(":/folder/file");
        let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
        let found = folio.arg("cat").arg(inside).output().unwrap();
        if found.stdout == b"contents" {
            break;
        }
        assert!(attempt < 600, "not in the image: {}", text(&found));
        std::thread::sleep(Duration::from_millis(200));
    }
    rustix::process::kill_process(fixture.mount.process(), Signal::KILL).unwrap();
    fixture.mount.ended();
    let fixture = fixture.again("rw");
    assert_eq!(fs::read(fixture.at("folder/file")).unwrap(), b"contents");
    fixture.finish();
}

/// Returns whether `read` needs no request to the server of the fixture.
fn needs_no_server(fixture: &Fixture, read: impl Fn() -> bool + Send + 'static) -> bool {
    assert!(read());
    let server = fixture.mount.process();
    rustix::process::kill_process(server, Signal::STOP).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || sender.send(read()));
    let answered = receiver.recv_timeout(Duration::from_secs(60));
    rustix::process::kill_process(server, Signal::CONT).unwrap();
    asking.join().unwrap().unwrap();
    answered == Ok(true)
}

/// An image has no external writers, so the kernel revalidates nothing, and opens cached files
/// without a request.
#[test]
fn cached_image_read_needs_no_server() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw,nowriteback");
    fs::write(fixture.at("file"), "text").unwrap();
    let (path, missing) = (fixture.at("file"), fixture.at("missing"));
    let read = move || {
        let there = fs::read(&path).unwrap() == b"text" && fs::metadata(&path).unwrap().len() == 4;
        there && !missing.exists()
    };
    assert!(needs_no_server(&fixture, read));
    fixture.finish();
}

/// A kernel that delays writes asks for the number of blocks after each close(2).
#[test]
fn open_image_file_read_needs_no_server() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw");
    let (path, missing) = (fixture.at("file"), fixture.at("missing"));
    fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    let read = move || {
        let mut text = [0; 4];
        file.read_exact_at(&mut text, 0).unwrap();
        let has_size = fs::metadata(&path).unwrap().len() == 4;
        text == *b"text" && has_size && !missing.exists()
    };
    assert!(needs_no_server(&fixture, read));
    fixture.finish();
}

#[test]
fn invalid_mount_returns_reason() {
    requires!(root, fuse);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = |source: &Path, target: &Path, options: &str, reason: &str| {
        let mut folio = command(env!("CARGO_BIN_EXE_folio"));
        let output = folio
            .args(["mount", "-o", options])
            .args([source, target])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(reason), "{text}");
    };
    refused(folder.path(), &file, "rw", "not a directory");
    refused(
        folder.path(),
        &folder.path().join("none"),
        "rw",
        "cannot mount here",
    );
    refused(
        folder.path(),
        folder.path(),
        "writeback",
        "external changes the kernel would not see",
    );
    refused(folder.path(), folder.path(), "ttl=soon", "ttl");
    refused(
        folder.path(),
        folder.path(),
        "passthrough=on,cache=none",
        "passthrough",
    );
    let image = empty(folder.path());
    refused(&image, folder.path(), "passthrough=on", "passthrough");
}

/// Through fusermount3, which is setuid root.
#[test]
fn unprivileged_user_mounts_own_directory() {
    requires!(root, fuse, tool("fusermount3"), tool("setpriv"));
    let mode = fs::metadata("/dev/fuse").map_or(0, |device| device.mode());
    if mode & 0o006 != 0o006 {
        return crate::support::require::report_skip("needs a /dev/fuse that all users may open");
    }
    // A user that fusermount3 finds in /etc/passwd.
    const USER: u32 = 65_534;
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("folio");
    fs::copy(env!("CARGO_BIN_EXE_folio"), &program).unwrap();
    for name in ["behind", "mount"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        chown(folder.path().join(name), Some(USER), Some(USER)).unwrap();
    }
    let target = folder.path().join("mount");
    let as_user = |script: &str| {
        let mut shell = command("setpriv");
        let ids = [
            format!("--reuid={USER}"),
            format!("--regid={USER}"),
            "--clear-groups".to_owned(),
        ];
        shell
            .args(ids)
            .args(["sh", "-ec", script, "sh"])
            .arg(folder.path());
        shell
    };
    let refused = as_user("\"$1/folio\" mount -o passthrough=on \"$1/behind\" \"$1/mount\"")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("passthrough=on: needs root"),
        "{text}"
    );
    let mounted = as_user("\"$1/folio\" mount --background \"$1/behind\" \"$1/mount\"")
        .output()
        .unwrap();
    let worked = as_user("echo mine > \"$1/mount/f\"; cat \"$1/mount/f\" \"$1/behind/f\"")
        .output()
        .unwrap();
    let unmounted = as_user("fusermount3 -u \"$1/mount\"").output().unwrap();
    if !unmounted.status.success() {
        let _ = command("umount").arg("--lazy").arg(&target).status();
    }
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(worked.stdout, b"mine\nmine\n", "{worked:?}");
    assert!(unmounted.status.success(), "{unmounted:?}");
    assert_eq!(
        fs::metadata(folder.path().join("behind/f")).unwrap().uid(),
        USER
    );
}
