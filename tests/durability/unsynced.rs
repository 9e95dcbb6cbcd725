//! Changes that no program syncs reach the device: soon after the last one, and within the commit
//! interval while other changes go on.

use super::support::requires;
use super::{ROOT, after_crash, create, formatted, mounted, without_journal};
use folio::block::{Device, MemoryDevice, OverlayDevice};
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::testing::RecordDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A device and the record of its writes, from which its state at one moment is rebuilt.
struct Disk {
    before: Arc<MemoryDevice>,
    record: Arc<RecordDevice>,
}

impl Disk {
    fn new(before: Arc<MemoryDevice>) -> Self {
        let record = RecordDevice::new(Arc::new(OverlayDevice::new(before.clone())));
        Self {
            before,
            record: Arc::new(record),
        }
    }

    /// Waits until the file has these contents after a crash. The limit is for a machine that does
    /// nothing for minutes; the bound itself is seconds.
    #[expect(clippy::disallowed_methods, reason = "the device does not notify")]
    #[track_caller]
    fn wait_for(&self, name: &str, bytes: &[u8]) {
        let begun = Instant::now();
        loop {
            let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(self.before.clone()));
            for entry in self.record.recorded() {
                entry.replay(&*device).unwrap();
            }
            let found = after_crash(&device, name);
            if found.as_deref() == Some(bytes) {
                return;
            }
            let (len, waited) = (found.map(|found| found.len()), begun.elapsed());
            assert!(
                waited < Duration::from_secs(300),
                "{name}: length {len:?} after {waited:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn changes_arrive(before: Arc<MemoryDevice>, change: impl FnOnce(&Process)) {
    let disk = Disk::new(before);
    let (kernel, process) = mounted(disk.record.clone(), "defaults", true);
    change(&process);
    disk.wait_for("file", b"contents");
    // Also after a rest of the thread.
    let fd = create(&process, "later");
    process.write(fd, b"later").unwrap();
    disk.wait_for("later", b"later");
    drop(process);
    kernel.unmount(ROOT).unwrap();
}

#[test]
fn closed_file_arrives_without_sync() {
    changes_arrive(formatted(), |p| {
        let fd = create(p, "file");
        p.write(fd, b"contents").unwrap();
        p.close(fd).unwrap();
    });
}

#[test]
fn closed_file_arrives_without_journal() {
    requires!(tool("mke2fs"));
    changes_arrive(without_journal(), |p| {
        let fd = create(p, "file");
        p.write(fd, b"contents").unwrap();
        p.close(fd).unwrap();
    });
}

/// As through a server, which learns of no close(2).
#[test]
fn rewritten_open_file_arrives_without_sync() {
    changes_arrive(formatted(), |p| {
        let fd = create(p, "file");
        p.write(fd, b"old contents").unwrap();
        p.fsync(fd).unwrap();
        let flags = OpenFlags::TRUNC | OpenFlags::WRONLY;
        let fd = p.open(format!("{ROOT}/file"), flags, 0).unwrap();
        p.write(fd, b"contents").unwrap();
    });
}

/// Stops the writer when it is dropped, also by a failed assertion.
struct StopWriter<'a>(&'a AtomicBool);

impl Drop for StopWriter<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn quiet_file_arrives_beside_a_steady_writer() {
    let disk = Disk::new(formatted());
    let (kernel, process) = mounted(disk.record.clone(), "defaults", true);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = kernel.process(Credentials::root());
        let stop = StopWriter(&is_over);
        scope.spawn(|| {
            let writer = writer;
            let fd = create(&writer, "log");
            let mut line = 0_u64;
            while !is_over.load(Ordering::Acquire) {
                let at = line % 50_000 * 20;
                writer.pwrite(fd, b"a line of a long log", at).unwrap();
                line += 1;
            }
            writer.close(fd).unwrap();
        });
        let fd = create(&process, "file");
        process.write(fd, b"contents").unwrap();
        process.close(fd).unwrap();
        disk.wait_for("file", b"contents");
        drop(stop);
    });
    kernel.unmount(ROOT).unwrap();
}
