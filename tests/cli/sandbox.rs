//! Servers that a client has taken over: gdb makes their threads do what damaged bytes could make
//! them do.

use super::support::requires;
use super::support::tools::{command, mke2fs, succeed};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// A server, in the folder `served`, beside a file that it does not serve.
struct Server {
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts a server of an image, or of a directory, by the words of its command; they name
    /// `IMAGE`, `FOLDER`, `SOCKET` and `MOUNT`. Returns once clients can connect.
    fn start(words: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let served = folder.path().join("served");
        fs::create_dir_all(served.join("mount")).unwrap();
        fs::create_dir(served.join("folder")).unwrap();
        fs::write(served.join("folder/own"), "own").unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        let image = served.join("image");
        mke2fs(&image, "16M", &[]);
        let words = [
            ("IMAGE", "image"),
            ("FOLDER", "folder"),
            ("SOCKET", "socket"),
            ("MOUNT", "mount"),
        ]
        .iter()
        .fold(words.to_owned(), |words, (name, file)| {
            words.replace(name, served.join(file).to_str().unwrap())
        });
        let mut child = command(env!("CARGO_BIN_EXE_folio"))
            .args(words.split(' '))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("until Ctrl-C"), "{line}");
        Self { child, folder }
    }

    /// Waits until the kernel filters its system calls.
    #[expect(clippy::disallowed_methods, reason = "the kernel does not notify")]
    fn wait_until_confined(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        for _ in 0..1000 {
            if fs::read_to_string(&status).unwrap().contains("Seccomp:\t2") {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        panic!("no filter of system calls");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The results of system calls, each of which all threads make.
    fn results(&self, calls: &[String]) -> Vec<i64> {
        let pid = self.child.id().to_string();
        let mut gdb = command("gdb");
        gdb.args(["-q", "-nx", "-batch", "-p", &pid]);
        for call in calls {
            let print = format!("thread apply all -q print (long)syscall({call})");
            gdb.args(["-ex", &print]);
        }
        let output = gdb.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let values = text.lines().filter_map(|line| line.strip_prefix('$'));
        let values: Vec<i64> = values
            .filter_map(|line| line.split(" = ").nth(1)?.parse().ok())
            .collect();
        assert!(values.len() >= calls.len(), "{text}");
        values
    }

    /// Opens a file, to read, in each thread.
    fn opens(&self, path: &Path) -> Vec<i64> {
        let call = libc::SYS_openat;
        self.results(&[format!("{call}, -100, \"{}\", 0", path.display())])
    }

    /// Checks that no thread can open another file, start a program, open a connection, reach
    /// another process, or change a directory that is not served.
    fn check_confined(&self) {
        self.wait_until_confined();
        let (secret, moved) = (self.path("secret"), self.path("moved"));
        let (from, to) = (secret.display(), moved.display());
        let (open, execute, socket) = (libc::SYS_openat, libc::SYS_execve, libc::SYS_socket);
        let (kill, rename, ring) = (
            libc::SYS_kill,
            libc::SYS_renameat2,
            libc::SYS_io_uring_setup,
        );
        let results = self.results(&[
            format!("{open}, -100, \"{from}\", 0"),
            format!("{open}, -100, \"{from}\", 2"),
            format!("{execute}, \"/bin/true\", 0, 0"),
            format!("{socket}, {}, 1, 0", libc::AF_INET),
            format!("{kill}, {}, 0", std::process::id()),
            format!("{rename}, -100, \"{from}\", -100, \"{to}\", 0"),
            format!("{ring}, 8, 0"),
        ]);
        assert!(results.iter().all(|result| *result == -1), "{results:?}");
        assert!(secret.exists() && !moved.exists());
    }

    /// Ends the server as an operator does; it must have stored everything.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!self.path("served/socket").exists());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mount = self.path("served/mount");
        let _ = command("umount").args(["-l", "-q"]).arg(mount).output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nbd_server_taken_over_opens_no_file() {
    requires!(root, tool("mke2fs"), gdb_calls, tool("nbdinfo"));
    let server = Server::start("serve nbd IMAGE --socket SOCKET");
    let uri = format!(
        "nbd+unix:///?socket={}",
        server.path("served/socket").display()
    );
    succeed(command("nbdinfo").arg(&uri));
    server.check_confined();
    // It serves on.
    succeed(command("nbdinfo").arg(&uri));
    server.stop();
}

#[test]
fn server_without_sandbox_opens_files() {
    requires!(root, tool("mke2fs"), gdb_calls);
    let server = Server::start("serve nbd IMAGE --socket SOCKET --no-sandbox");
    let results = server.opens(&server.path("secret"));
    assert!(results.iter().all(|result| *result >= 0), "{results:?}");
    server.stop();
}

#[test]
fn share_taken_over_opens_its_folder_alone() {
    requires!(root, tool("mke2fs"), gdb_calls);
    for words in ["--socket SOCKET", "--listen unix:SOCKET"] {
        let server = Server::start(&format!("share FOLDER {words}"));
        server.check_confined();
        let results = server.opens(&server.path("served/folder/own"));
        assert!(results.iter().all(|result| *result >= 0), "{results:?}");
        server.stop();
    }
    let server = Server::start("share IMAGE --listen unix:SOCKET");
    server.check_confined();
    server.stop();
}

#[test]
fn mount_taken_over_opens_no_file() {
    requires!(root, fuse, tool("mke2fs"), gdb_calls);
    let server = Server::start("mount IMAGE MOUNT");
    fs::write(server.path("served/mount/a"), "a").unwrap();
    server.check_confined();
    fs::write(server.path("served/mount/b"), "b").unwrap();
    server.stop();
}

/// Only a set-user-ID program unmounts a user's mount, and a confined server starts none.
#[test]
fn confined_mount_of_a_user_is_unmounted() {
    requires!(
        root,
        fuse,
        tool("mke2fs"),
        tool("fusermount3"),
        tool("setpriv")
    );
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, "16M", &["-E", "root_owner=65534:65534"]);
    fs::create_dir(folder.path().join("mount")).unwrap();
    // A device that users may open, for these programs alone.
    let script = "
        cd \"$1\" && chmod 755 . && chown 65534 image mount && mknod fuse c 10 229 && chmod 666 fuse
        mount --bind fuse /dev/fuse
        exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c '
            \"$0\" mount image mount & server=$!
            until mountpoint -q mount; do sleep 0.1; done
            echo text > mount/file
            (cd mount; exec sleep 1000) & user=$!
            until [ \"$(readlink /proc/$user/cwd)\" = \"$PWD/mount\" ]; do sleep 0.1; done
            until grep -q Seccomp:.2 /proc/$server/status; do sleep 0.1; done
            kill -INT $server; sleep 0.5; mountpoint mount || exit 3
            kill $user; kill -INT $server; wait $server
        ' \"$2\"
    ";
    let mut unshare = command("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh"]);
    unshare.arg(folder.path()).arg(env!("CARGO_BIN_EXE_folio"));
    succeed(&mut unshare);
    let mut cat = command(env!("CARGO_BIN_EXE_folio"));
    let text = succeed(cat.arg("cat").arg(format!("{}:/file", image.display())));
    assert_eq!(String::from_utf8_lossy(&text.stdout), "text\n");
}
