//! Access control of a share: keys, loopback addresses, the mode of the socket.

use crate::remote::mount::RemoteMount;
use crate::remote::{ImageFolder, ShareServer};
use crate::support::requires;
use crate::support::tools::text;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

fn folio(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_folio"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn expect_refusal(words: &[&str], reason: &str) {
    let output = folio(words);
    assert!(
        !output.status.success() && text(&output).contains(reason),
        "{words:?}: {}",
        text(&output)
    );
}

#[test]
fn only_clients_with_the_key_connect() {
    requires!(root, fuse, tool("mke2fs"));
    let files = ImageFolder::new();
    let right = files.key("right", "a key of more than sixteen bytes");
    let wrong = files.key("wrong", "a key of more than sixteen byteS");
    let folder = files.folder.path().join("mnt");
    std::fs::create_dir(&folder).unwrap();
    let target = folder.to_str().unwrap();
    let shared = ShareServer::new(&files.image, "tcp:0", &["--key-file", &right]);
    assert!(
        shared.address.starts_with("tcp:127.0.0.1:"),
        "{}",
        shared.address
    );
    expect_refusal(
        &["mount", &shared.address, target, "--key-file", &wrong],
        "keys of client and server differ",
    );
    shared
        .running
        .stderr
        .line("keys of client and server differ");
    expect_refusal(&["mount", &shared.address, target], "--key-file");
    RemoteMount::new(&shared.address, &["--key-file", &right]).unmount();
    shared.stop();
    // A client with a key does not trust a server without one.
    let shared = files.share();
    expect_refusal(
        &["mount", &shared.address, target, "--key-file", &right],
        "cannot prove",
    );
    shared.stop();
}

#[test]
fn share_by_root_over_tcp_requires_a_key() {
    requires!(root);
    let folder = tempfile::TempDir::new().unwrap();
    let shared = folder.path().to_str().unwrap();
    // A timeout ends a server that starts.
    let output = Command::new("timeout")
        .args(["5", env!("CARGO_BIN_EXE_folio"), "share", shared])
        .args(["--listen", "tcp:0"])
        .output()
        .unwrap();
    assert!(text(&output).contains("--key-file"), "{}", text(&output));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
}

#[test]
fn tcp_beyond_loopback_requires_a_key() {
    requires!(tool("mke2fs"));
    let files = ImageFolder::new();
    let image = files.image.to_str().unwrap();
    expect_refusal(&["share", image, "--listen", "tcp:0.0.0.0:0"], "--key-file");
    expect_refusal(&["share", image, "--listen", "tcp:[::]:0"], "--key-file");
    let key = files.key("key", "a key of more than sixteen bytes");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    expect_refusal(
        &["share", image, "--listen", "tcp:0", "--key-file", &key],
        "chmod 600",
    );
    expect_refusal(
        &[
            "share",
            image,
            "--listen",
            "tcp:0",
            "--key-file",
            &files.key("short", "short\n"),
        ],
        "16 bytes",
    );
    expect_refusal(
        &["share", image, "--listen", "nonsense:1"],
        "unix:, vsock: or tcp:",
    );
    expect_refusal(&["share", image], "--listen");
    expect_refusal(
        &["share", image, "--listen", "tcp:0", "--allow-cid", "3"],
        "vsock",
    );
}

#[test]
fn socket_is_private_and_removed_with_the_server() {
    requires!(tool("mke2fs"));
    let files = ImageFolder::new();
    let shared = files.share();
    let path = files.folder.path().join("socket");
    let found = std::fs::metadata(&path).unwrap();
    assert!(
        found.file_type().is_socket() && found.mode() & 0o777 == 0o600,
        "{:o}",
        found.mode()
    );
    expect_refusal(
        &[
            "share",
            files.image.to_str().unwrap(),
            "--listen",
            &files.socket(),
        ],
        "",
    );
    shared.stop();
    assert!(!path.exists());
}
