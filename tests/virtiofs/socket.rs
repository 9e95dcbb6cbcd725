//! The socket without a guest.

use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, text};
use crate::virtiofs::SharedSource;
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
fn invalid_monitor_does_not_end_service() {
    requires!(tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = SharedSource::new(&image, &[]);
    let mut random = 1_u32;
    for round in 0..60_usize {
        let mut stream = UnixStream::connect(&shared.socket).unwrap();
        let mut bytes = GET_FEATURES.repeat(round % 3);
        for _ in 0..round * 7 % 100 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Requests of all kinds, most of them with a valid header.
            bytes.push(if bytes.len() % 12 == 4 {
                1
            } else {
                (random >> 24) as u8 % 48
            });
        }
        // The service may have disconnected already.
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
    let (status, stderr) = shared.ended();
    // Each failure is one line, and the command goes on.
    assert!(
        status.success() && !stderr.contains("panicked"),
        "{status}: {stderr}"
    );
    fsck(&image);
}

#[test]
fn invalid_share_returns_reason() {
    requires!(tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = SharedSource::new(&image, &["--read-only"]);
    let socket = folder.path().join("other.sock");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let refused = |args: &[&str]| {
        let output = command(env!("CARGO_BIN_EXE_folio"))
            .arg("share")
            .arg(&image)
            .args(args)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{args:?}");
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
    // A writer needs the image exclusively.
    assert!(refused(&["--socket", socket]).contains("in use"));
    shared.stop();
}
