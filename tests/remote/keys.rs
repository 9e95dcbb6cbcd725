//! Who may use a share.

use crate::remote::mount::RemoteMount;
use crate::remote::{Bench, Shared};
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
fn refused(words: &[&str], why: &str) {
    let output = folio(words);
    assert!(
        !output.status.success() && text(&output).contains(why),
        "{words:?}: {}",
        text(&output)
    );
}

#[test]
fn only_who_knows_the_key_gets_in() {
    requires!(root, fuse, tool("mke2fs"));
    let bench = Bench::new();
    let right = bench.key("right", "a key of more than sixteen bytes");
    let wrong = bench.key("wrong", "a key of more than sixteen byteS");
    let folder = bench.folder.path().join("mnt");
    std::fs::create_dir(&folder).unwrap();
    let target = folder.to_str().unwrap();
    let shared = Shared::new(&bench.image, "tcp:0", &["--key-file", &right]);
    assert!(
        shared.address.starts_with("tcp:127.0.0.1:"),
        "{}",
        shared.address
    );
    refused(
        &["mount", &shared.address, target, "--key-file", &wrong],
        "keys of client and server are not the same",
    );
    shared
        .running
        .told
        .line("keys of client and server are not the same");
    refused(&["mount", &shared.address, target], "--key-file");
    RemoteMount::new(&shared.address, &["--key-file", &right]).unmount();
    shared.stop();
    // A server that cannot prove that it knows the key is not trusted.
    let shared = Shared::new(&bench.image, "tcp:0", &[]);
    refused(
        &["mount", &shared.address, target, "--key-file", &right],
        "cannot prove",
    );
    shared.stop();
}

#[test]
fn nobody_beyond_this_machine_gets_in_without_a_key() {
    requires!(tool("mke2fs"));
    let bench = Bench::new();
    let image = bench.image.to_str().unwrap();
    refused(&["share", image, "--listen", "tcp:0.0.0.0:0"], "--key-file");
    refused(&["share", image, "--listen", "tcp:[::]:0"], "--key-file");
    let key = bench.key("key", "a key of more than sixteen bytes");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(
        &["share", image, "--listen", "tcp:0", "--key-file", &key],
        "chmod 600",
    );
    refused(
        &[
            "share",
            image,
            "--listen",
            "tcp:0",
            "--key-file",
            &bench.key("short", "short\n"),
        ],
        "16 bytes",
    );
    refused(
        &["share", image, "--listen", "nonsense:1"],
        "unix:, vsock: and tcp:",
    );
    refused(&["share", image], "--listen");
    refused(
        &["share", image, "--listen", "tcp:0", "--allow-cid", "3"],
        "vsock",
    );
}

#[test]
fn a_socket_is_its_owners_alone_and_goes_with_the_server() {
    requires!(tool("mke2fs"));
    let bench = Bench::new();
    let shared = bench.share();
    let path = bench.folder.path().join("socket");
    let found = std::fs::metadata(&path).unwrap();
    assert!(
        found.file_type().is_socket() && found.mode() & 0o777 == 0o600,
        "{:o}",
        found.mode()
    );
    refused(
        &[
            "share",
            bench.image.to_str().unwrap(),
            "--listen",
            &bench.socket(),
        ],
        "",
    );
    shared.stop();
    assert!(!path.exists());
}
