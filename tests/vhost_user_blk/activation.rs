//! Sockets that a service manager has bound: LISTEN_FDS of sd_listen_fds(3).

use super::connect;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, start_server, text};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Returns `folio serve vhost-user-blk` with a listening socket as descriptor 3; its messages are
/// on standard output.
fn served_by_manager(listener: &UnixListener, images: &[&Path]) -> Command {
    // The shell becomes folio, so it is the process that LISTEN_PID names.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&2 2>&1";
    let mut shell = command("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_folio")]);
    shell.args(["serve", "vhost-user-blk", "--json"]);
    shell.args(images);
    shell.stderr(OwnedFd::from(listener.try_clone().unwrap()));
    shell
}

fn image(folder: &TempDir) -> PathBuf {
    let image = folder.path().join("disk.qcow2");
    let name = image.to_str().unwrap();
    run("qemu-img", ["create", "-q", "-f", "qcow2", name, "16M"]);
    image
}

#[test]
fn passed_socket_is_served() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let socket = folder.path().join("passed.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (mut child, line) = start_server(&mut served_by_manager(&listener, &[&image]));
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["disks"][0]["socket"], socket.to_str().unwrap());
    let mut client = connect(&socket, 1, 1);
    let written = client.queues()[0].do_one(1, 0, &[1; 512], 0).unwrap();
    assert_eq!(written.status, 0);
    drop(client);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    // The file is the manager's.
    assert!(socket.exists(), "the server removed the manager's socket");
    qemu_check(&image);
}

#[test]
fn number_of_passed_sockets_is_checked() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let listener = UnixListener::bind(folder.path().join("passed.sock")).unwrap();
    let refused = |command: &mut Command, expected: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(expected), "{}", text(&output));
    };
    refused(
        &mut served_by_manager(&listener, &[&image, &image]),
        "2 images, but 1 socket: give each image a socket of its own, by --socket PATH or by",
    );
    let mut alone = command(env!("CARGO_BIN_EXE_folio"));
    alone.args(["serve", "vhost-user-blk"]).arg(&image);
    refused(&mut alone, "1 image, but 0 sockets: give");
}
