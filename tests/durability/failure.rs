//! Damage that an operation found: the mark in the superblock outlives a power cut and replays.

use super::{DEVICE_BYTES, ROOT, create, formatted, mounted};
use crate::crash::program::copy_of;
use crate::support::{requires, tools};
use folio::Kernel;
use folio::base::Errno;
use folio::block::{Device, MemoryDevice};
use folio::syscall::{OpenFlags, Process};
use folio::testing::RecordDevice;
use std::sync::Arc;

const NAME: &str = "name-in-a-damaged-directory";
/// Offset of `s_state` on the device, and its bit for errors.
const STATE: u64 = 1024 + 0x3A;
const STATE_ERROR: u8 = 2;

fn bytes(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; DEVICE_BYTES as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn is_marked(device: &dyn Device) -> bool {
    let mut state = [0];
    device.read_at(&mut state, STATE).unwrap();
    state[0] & STATE_ERROR != 0
}

/// Finds damage on a mounted device whose log has a transaction.
fn damaged(options: &str) -> (Arc<dyn Device>, Arc<Kernel>, Process) {
    let device: Arc<dyn Device> = formatted();
    let (kernel, process) = mounted(device.clone(), "defaults", false);
    process.mkdir(format!("{ROOT}/d"), 0o755).unwrap();
    process
        .close(create(&process, &format!("d/{NAME}")))
        .unwrap();
    drop(process);
    kernel.unmount(ROOT).unwrap();
    let content = bytes(&*device);
    for at in 0..content.len() - NAME.len() {
        if content[at..].starts_with(NAME.as_bytes()) {
            device.write_at(b"X", at as u64).unwrap();
        }
    }
    let (kernel, process) = mounted(device.clone(), options, false);
    process.close(create(&process, "new")).unwrap();
    process.sync().unwrap();
    let path = format!("{ROOT}/d/{NAME}");
    let error = process.open(path, OpenFlags::empty(), 0).unwrap_err();
    assert_eq!(error.errno(), Errno::UCLEAN, "{options}: {error}");
    (device, kernel, process)
}

/// Returns a device after damage and a power cut.
fn cut_after_damage(options: &str) -> Arc<dyn Device> {
    copy_of(&*damaged(options).0)
}

fn mount_once(device: &Arc<dyn Device>) {
    let (kernel, process) = mounted(device.clone(), "defaults", false);
    drop(process);
    kernel.unmount(ROOT).unwrap();
}

#[test]
fn error_mark_survives_each_cut_of_a_replay() {
    for options in ["errors=remount-ro", "errors=panic", "errors=continue"] {
        let cut = cut_after_damage(options);
        assert!(is_marked(&*cut), "{options}: after the damage");
        let before = MemoryDevice::new(DEVICE_BYTES);
        before.write_at(&bytes(&*cut), 0).unwrap();
        let record = Arc::new(RecordDevice::new(cut));
        mount_once(&(record.clone() as Arc<dyn Device>));
        assert!(is_marked(&*record), "{options}: after the replay");
        let recorded = record.recorded();
        for (count, step) in recorded.iter().enumerate() {
            step.replay(&before).unwrap();
            let again: Arc<dyn Device> = Arc::new(before.snapshot());
            mount_once(&again);
            assert!(is_marked(&*again), "{options}: replay cut after {count}");
        }
    }
}

#[test]
fn e2fsck_finds_the_error_mark_after_an_abort() {
    requires!(tool("e2fsck"), tool("dumpe2fs"));
    let folder = tempfile::TempDir::new().unwrap();
    let image = folder.path().join("image");
    let cut = cut_after_damage("errors=remount-ro");
    std::fs::write(&image, bytes(&*cut)).unwrap();
    // As jbd2 records an abort: a program that replays the log without the mark finds it there.
    let journal = tools::run("dumpe2fs", ["-h".as_ref(), image.as_os_str()]);
    assert!(
        journal.contains("Journal errno:            -5"),
        "{journal}"
    );
    mount_once(&cut);
    std::fs::write(&image, bytes(&*cut)).unwrap();
    let header = tools::run("dumpe2fs", ["-h".as_ref(), image.as_os_str()]);
    assert!(header.contains("clean with errors"), "{header}");
    assert!(!header.contains("Journal errno"), "{header}");
    let output = tools::command("e2fsck")
        .arg("-n")
        .arg(&image)
        .output()
        .unwrap();
    let found = tools::text(&output);
    assert!(
        found.contains("contains a file system with errors"),
        "{found}"
    );
}

#[test]
fn error_mark_survives_an_unmount() {
    let (device, kernel, process) = damaged("errors=continue");
    drop(process);
    // The checkpoint writes the superblock as it was before the damage.
    kernel.unmount(ROOT).unwrap();
    assert!(is_marked(&*device));
    mount_once(&device);
    assert!(is_marked(&*device));
}
