//! A device without space: syncs fail with its errno, the mount stays writable, and once there is
//! space again everything is written.

use super::support::tools::{fsck, qemu_check, to_raw};
use super::support::{random::Random, requires};
use super::{ROOT, after_crash, assert_clean, create, formatted, mounted, without_journal};
use folio::base::Errno;
use folio::block::{self, Device, ImageFormat, OpenOptions};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{OpenFlags, Process};
use folio::testing::{FaultDevice, FaultKind, FaultWhen};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

fn contents(n: usize) -> Vec<u8> {
    vec![1 + (n % 200) as u8; 3000 + n * 97 % 40_000]
}

#[test]
fn fsync_succeeds_once_there_is_space() {
    requires!(tool("mke2fs"));
    for (errno, lower) in [
        (Errno::NOSPC, formatted()),
        (Errno::DQUOT, formatted()),
        (Errno::NOSPC, without_journal()),
    ] {
        let faulty = Arc::new(FaultDevice::new(lower, 1));
        let device: Arc<dyn Device> = faulty.clone();
        let (kernel, p) = mounted(device.clone(), "defaults", false);
        let fd = create(&p, "file");
        p.write(fd, b"first").unwrap();
        p.fsync(fd).unwrap();
        faulty.fail_with(FaultKind::Write, FaultWhen::Always, errno);
        p.pwrite(fd, b"second", 0).unwrap();
        p.mkdir(format!("{ROOT}/directory"), 0o755).unwrap();
        for _ in 0..3 {
            assert_eq!(p.fsync(fd).unwrap_err().errno(), errno);
            assert_eq!(p.sync().unwrap_err().errno(), errno);
        }
        p.mkdir(format!("{ROOT}/directory/below"), 0o755).unwrap();
        assert_eq!(after_crash(&device, "file").unwrap(), b"first");
        faulty.clear_faults();
        p.fsync(fd).unwrap();
        assert_eq!(after_crash(&device, "file").unwrap(), b"second");
        p.stat(format!("{ROOT}/directory/below")).unwrap();
        p.close(fd).unwrap();
        kernel.unmount(ROOT).unwrap();
        assert_clean(&device);
    }
}

/// Data that was refused space has blocks already; a crash must not show what they held before.
#[test]
fn refused_data_reads_as_old_after_a_crash() {
    let faulty = Arc::new(FaultDevice::new(formatted(), 1));
    let device: Arc<dyn Device> = faulty.clone();
    let (kernel, p) = mounted(device.clone(), "defaults", false);
    // The blocks get the bytes of another file first.
    let other = create(&p, "other");
    p.write(other, &[0xee; 400_000]).unwrap();
    p.fsync(other).unwrap();
    p.close(other).unwrap();
    p.unlink(format!("{ROOT}/other")).unwrap();
    p.sync().unwrap();
    let fd = create(&p, "file");
    p.ftruncate(fd, 400_000).unwrap();
    p.sync().unwrap();
    p.pwrite(fd, &[0x11; 400_000], 0).unwrap();
    let synced = create(&p, "synced");
    for errno in [Errno::IO, Errno::NOSPC] {
        faulty.fail_with(FaultKind::Write, FaultWhen::After(0), errno);
        assert_eq!(p.fsync(fd).unwrap_err().errno(), errno);
        faulty.clear_faults();
        p.pwrite(synced, b"x", 0).unwrap();
        p.fdatasync(synced).unwrap();
        let found = after_crash(&device, "file").unwrap();
        let is_old = found.iter().all(|byte| [0, 0x11].contains(byte));
        assert!(is_old, "{errno:?}: bytes of another file");
    }
    // An EIO of before is reported once.
    let _ = p.fsync(fd);
    p.fsync(fd).unwrap();
    assert_eq!(after_crash(&device, "file").unwrap(), [0x11; 400_000]);
    p.close(fd).unwrap();
    p.close(synced).unwrap();
    kernel.unmount(ROOT).unwrap();
    assert_clean(&device);
}

/// Space runs out at any write of the data, the log, the checkpoint and the superblock.
#[test]
fn synced_files_survive_refusals_at_any_write() {
    for seed in 1..=6 {
        let faulty = Arc::new(FaultDevice::new(formatted(), seed));
        let device: Arc<dyn Device> = faulty.clone();
        let (kernel, p) = mounted(device.clone(), "defaults", false);
        let mut random = Random::new(seed);
        let mut refused = 0;
        for n in 0..400 {
            faulty.clear_faults();
            let calls = 1 + random.below(6) as u64;
            faulty.fail_with(FaultKind::Write, FaultWhen::OneIn(calls), Errno::NOSPC);
            let fd = until_space(&p, &faulty, &mut refused, |p| {
                let flags = OpenFlags::CREAT | OpenFlags::RDWR;
                p.open(format!("{ROOT}/{}", n % 50), flags, 0o644)
            });
            until_space(&p, &faulty, &mut refused, |p| p.ftruncate(fd, 0));
            let written = until_space(&p, &faulty, &mut refused, |p| p.pwrite(fd, &contents(n), 0));
            assert_eq!(written, contents(n).len());
            if random.percent(60) {
                until_space(&p, &faulty, &mut refused, |p| p.fsync(fd));
                if random.percent(10) {
                    faulty.clear_faults();
                    let found = after_crash(&device, &format!("{}", n % 50)).unwrap();
                    assert!(found == contents(n), "seed {seed}: file {n}");
                }
            }
            until_space(&p, &faulty, &mut refused, |p| p.close(fd));
        }
        faulty.clear_faults();
        p.sync().unwrap();
        for n in 350..400 {
            let found = after_crash(&device, &format!("{}", n % 50)).unwrap();
            assert!(found == contents(n), "seed {seed}: file {n}");
        }
        kernel.unmount(ROOT).unwrap();
        assert_clean(&device);
        assert!(refused > 50, "{refused}");
    }
}

/// Repeats a call until it is not refused space; after some attempts there is space.
#[track_caller]
fn until_space<T>(
    process: &Process,
    faulty: &FaultDevice,
    refused: &mut usize,
    call: impl Fn(&Process) -> folio::Result<T>,
) -> T {
    for attempt in 0.. {
        match call(process) {
            Ok(value) => return value,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                *refused += 1;
            }
        }
        if attempt > 5 {
            faulty.clear_faults();
        }
        assert!(attempt < 20, "refused although there is space");
    }
    unreachable!("the loop returns")
}

/// A tmpfs of a few MiB. Dropping it unmounts it.
struct SmallHost(TempDir);

impl SmallHost {
    fn new(mib: u32) -> Self {
        let folder = TempDir::with_prefix("folio-small-").unwrap();
        let size = format!("size={mib}m");
        super::support::tools::run(
            "mount",
            [
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "-o".as_ref(),
                size.as_ref(),
                "tmpfs".as_ref(),
                folder.path().as_os_str(),
            ],
        );
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = super::support::tools::command("umount")
            .arg(self.path())
            .status();
    }
}

fn full_host(format: ImageFormat, name: &str) {
    let host = SmallHost::new(24);
    let image = host.path().join(name);
    let device = block::create(&image, format, 256 << 20).unwrap();
    let options = FormatOptions::default();
    ext4::format(&*device, &options).unwrap();
    let (kernel, p) = mounted(device, "defaults", true);
    let mut number = 0;
    let mut write_and_sync = |p: &Process| {
        let fd = create(p, &format!("file-{number}"));
        let bytes = contents(number);
        assert_eq!(p.pwrite(fd, &bytes, 0).unwrap(), bytes.len());
        let synced = p.fsync(fd);
        number += 1;
        (fd, synced)
    };
    let (_, synced) = write_and_sync(&p);
    synced.unwrap();
    // Until not a single page is left.
    let mut ballast = std::fs::File::create(host.path().join("ballast")).unwrap();
    while std::io::Write::write(&mut ballast, &[1; 4096]).is_ok_and(|count| count > 0) {}
    let refused = loop {
        let (fd, synced) = write_and_sync(&p);
        if let Err(error) = synced {
            assert_eq!(error.errno(), Errno::NOSPC, "{error}");
            break fd;
        }
    };
    assert_eq!(p.fsync(refused).unwrap_err().errno(), Errno::NOSPC);
    // Unlinked, it would stay until the children of other tests, which have copies of the
    // descriptor, execute their programs.
    ballast.set_len(0).unwrap();
    p.fsync(refused).unwrap();
    let (_, synced) = write_and_sync(&p);
    synced.unwrap();
    drop(p);
    kernel.unmount(ROOT).unwrap();
    drop(kernel);
    let folder = TempDir::new().unwrap();
    let raw = folder.path().join("raw");
    if format == ImageFormat::Qcow2 {
        qemu_check(&image);
        to_raw(&image, &raw);
    } else {
        std::fs::copy(&image, &raw).unwrap();
    }
    fsck(&raw);
    let device = block::open(&raw, &OpenOptions::default()).unwrap();
    for n in 0..number {
        let found = after_crash(&device, &format!("file-{n}")).unwrap();
        assert!(found == contents(n), "file {n} of {number}");
    }
}

#[test]
fn raw_image_on_a_full_host_recovers() {
    requires!(root, tool("e2fsck"));
    full_host(ImageFormat::Raw, "disk.img");
}

#[test]
fn qcow2_image_on_a_full_host_recovers() {
    requires!(root, tool("e2fsck"), tool("qemu-img"));
    full_host(ImageFormat::Qcow2, "disk.qcow2");
}
