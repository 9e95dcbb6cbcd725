//! The socket without a guest.

use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, text};
use crate::virtiofs::Shared;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use tempfile::TempDir;

fn image(folder: &TempDir) -> PathBuf {
    let image = folder.path().join("disk.img");
    mke2fs(&image, "16M", &[]);
    image
}

/// `VHOST_USER_GET_FEATURES`: request, flags (version 1), length of what follows.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn monitors_come_and_go_and_break_the_rules() {
    requires!(tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = Shared::new(&image, &[]);
    let mut dice = 1_u32;
    for round in 0..60_usize {
        let mut stream = UnixStream::connect(&shared.socket).unwrap();
        let mut bytes = GET_FEATURES.repeat(round % 3);
        for _ in 0..round * 7 % 100 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Requests of all kinds, most of them with a header that makes sense.
            bytes.push(if bytes.len() % 12 == 4 {
                1
            } else {
                (dice >> 24) as u8 % 48
            });
        }
        // It may have been cut off already.
        let _ = stream.write_all(&bytes);
    }
    let mut stream = UnixStream::connect(&shared.socket).unwrap();
    stream.write_all(&GET_FEATURES).unwrap();
    let mut reply = [0; 20];
    std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
    assert_eq!(reply[..4], GET_FEATURES[..4]);
    drop(stream);
    let pid = rustix::process::Pid::from_child(&shared.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut shared = shared;
    let (status, said) = shared.ended();
    // Each is told in a line, and none of them has harmed the command.
    assert!(
        status.success() && !said.contains("panicked"),
        "{status}: {said}"
    );
    fsck(&image);
}

#[test]
fn what_cannot_be_shared_is_told() {
    requires!(tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = Shared::new(&image, &["--read-only"]);
    let socket = folder.path().join("other.sock");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let refused = |words: &[&str]| {
        let output = command(env!("CARGO_BIN_EXE_folio"))
            .arg("share")
            .arg(&image)
            .args(words)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{words:?}");
        text(&output)
    };
    let socket = socket.to_str().unwrap();
    assert!(
        refused(&["--socket", shared.socket.to_str().unwrap(), "--read-only"]).contains("in use")
    );
    let file = folder.path().join("file");
    assert!(refused(&["--socket", file.to_str().unwrap(), "--read-only"]).contains("in use"));
    assert!(
        refused(&["--socket", socket, "--read-only", "--queues", "0"]).contains("request queues")
    );
    assert!(refused(&["--socket", socket, "--read-only", "--tag", ""]).contains("tag"));
    assert!(refused(&["--socket", socket, "-o", "ttl=1h"]).contains("ttl=1h"));
    assert!(
        refused(&["--socket", socket, "--read-only", "-o", "journal=always"])
            .contains("journal=always")
    );
    // Who writes wants the image alone.
    assert!(refused(&["--socket", socket]).contains("in use"));
    shared.stop();
}
