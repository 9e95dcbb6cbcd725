//! Several connections on one device, many requests on one connection, signals and locks.

use super::support::requires;
use super::support::tools::{command, qemu_check, text};
use super::wire::*;
use super::{Served, bytes, image, refusal};
use std::collections::HashSet;
use std::process::Command;
use tempfile::TempDir;

#[test]
fn a_flush_on_one_connection_covers_all() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let mut wires: Vec<_> = (0..4).map(|_| Wire::structured(&served.socket)).collect();
    for (number, wire) in wires.iter_mut().enumerate() {
        for block in 0..16u64 {
            wire.request((WRITE, 0), block, (number as u64 * 16 + block) << 16, 65536);
            wire.send(&[number as u8 + 1; 65536]);
        }
    }
    for wire in &mut wires {
        let cookies: HashSet<u64> = (0..16)
            .map(|_| wire.simple_reply())
            .map(|(_, cookie)| cookie)
            .collect();
        assert_eq!(cookies.len(), 16);
    }
    // Everybody sees everybody's writes at once.
    wires[0].request((READ, 0), 1, 3 << 20, 512);
    assert!(wires[0].chunk().payload[8..].iter().all(|byte| *byte == 4));
    wires[3].request((FLUSH, 0), 2, 0, 0);
    assert_eq!(wires[3].simple_reply(), (0, 2));
    // As much as a power cut leaves: what lies in the host's file now. A copy, because the image is
    // locked.
    let copy = folder.path().join("copy.qcow2");
    std::fs::copy(&disk, &copy).unwrap();
    for number in 0..4 {
        assert!(
            bytes(&copy, number << 20, 1 << 20)
                .iter()
                .all(|byte| u64::from(*byte) == number + 1)
        );
    }
    served.stop();
    if super::support::Need::Tool("qemu-img").met().is_ok() {
        qemu_check(&disk);
    }
}

#[test]
fn many_requests_of_one_connection_are_all_answered() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let mut wire = Wire::structured(&served.socket);
    let count = 2000u64;
    let mut reader = Wire(wire.0.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for cookie in 0..count {
                // Reads, writes, and those that take longer, in one stream.
                match cookie % 5 {
                    0 => wire.request((FLUSH, 0), cookie, 0, 0),
                    1 | 2 => {
                        wire.request((WRITE, 0), cookie, (8 << 20) + cookie * 4096, 4096);
                        wire.send(&[cookie as u8; 4096]);
                    }
                    3 => wire.request((WRITE_ZEROES, 0), cookie, 4 << 20, 65536),
                    _ => wire.request((WRITE_ZEROES, FUA), cookie, (8 << 20) + cookie * 4096, 4096),
                }
            }
        });
        let answered: HashSet<_> = (0..count).map(|_| reader.simple_reply()).collect();
        assert_eq!(answered.len(), count as usize);
        assert!(answered.iter().all(|(error, _)| *error == 0));
    });
    served.stop();
    for cookie in (0..count).filter(|cookie| matches!(cookie % 5, 1 | 2)) {
        let block = bytes(&disk, (8 << 20) + cookie * 4096, 4096);
        assert!(block.iter().all(|byte| *byte == cookie as u8), "{cookie}");
    }
}

#[test]
fn a_signal_ends_it_after_what_was_asked() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let idle = Wire::greet(&served.socket);
    let mut wire = Wire::structured(&served.socket);
    wire.request((WRITE, 0), 1, 0, 4096);
    wire.send(&[0x77; 4096]);
    assert_eq!(wire.simple_reply(), (0, 1));
    served.stop();
    wire.ends();
    idle.0.set_read_timeout(None).unwrap();
    idle.ends();
    assert!(bytes(&disk, 0, 4096).iter().all(|byte| *byte == 0x77));
}

#[test]
fn a_second_writer_is_refused() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let folio = || Command::new(env!("CARGO_BIN_EXE_folio"));
    let socket = folder.path().join("second.sock");
    let said = refusal(
        folio()
            .args(["serve", "nbd"])
            .arg(&disk)
            .arg("--socket")
            .arg(&socket),
    );
    assert!(said.contains("in use by another process"), "{said}");
    assert!(!socket.exists());
    // The socket of a server that runs is not taken over.
    let other = image(&folder, "other.qcow2");
    let said = refusal(
        folio()
            .args(["serve", "nbd"])
            .arg(&other)
            .arg("--socket")
            .arg(&served.socket),
    );
    assert!(said.contains("in use"), "{said}");
    Wire::structured(&served.socket).still_works();
    served.stop();
}

#[test]
fn qemu_respects_the_lock() {
    requires!(tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let served = Served::new(&disk, &[]);
    let output = command("qemu-io")
        .args(["-c", "write 0 4k"])
        .arg(&disk)
        .output()
        .unwrap();
    assert!(text(&output).contains("lock"), "{}", text(&output));
    served.stop();
}

#[test]
fn a_port_and_a_partition_are_served() {
    requires!(tool("nbdinfo"), tool("sfdisk"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.raw");
    let mut sfdisk = command("sh");
    sfdisk
        .args([
            "-c",
            "printf 'label: gpt\\nsize=4MiB\\nsize=8MiB\\n' | sfdisk -q \"$0\"",
        ])
        .arg(&disk);
    super::support::tools::succeed(&mut sfdisk);
    let second = folder.path().join("disk.raw@2");
    let served = Served::start(&second, &["--port", "0", "--read-only"]);
    assert!(served.uri.starts_with("nbd://127.0.0.1:"), "{}", served.uri);
    let said = super::support::tools::run("nbdinfo", ["--size", &served.uri]);
    assert_eq!(said.trim(), (8 << 20).to_string());
    served.signal();
    assert!(served.wait().success());
}

#[test]
fn command_lines_that_make_no_sense_are_refused() {
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let folio = |words: &[&str]| {
        refusal(
            Command::new(env!("CARGO_BIN_EXE_folio"))
                .args(["serve", "nbd"])
                .arg(&disk)
                .args(words),
        )
    };
    assert!(folio(&[]).contains("--socket"));
    assert!(folio(&["--socket", "x", "--port", "1"]).contains("cannot be used with"));
    assert!(folio(&["--socket", "x", "--bind", "::1"]).contains("cannot be used with"));
    assert!(folio(&["-o", "ro", "--port", "0"]).contains("nothing is mounted here"));
    assert!(
        folio(&["--socket", "/no/such/folder/x"])
            .contains("/no/such/folder/x: listen: No such file")
    );
    assert!(folio(&["--port", "0", "--export", &"x".repeat(5000)]).contains("4096"));
}
