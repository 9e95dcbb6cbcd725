//! ext4 and its journal: failing commits, replaced files, moved blocks.

use crate::{CREATE, READ, read};
use folio::base::Errno;
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::testing::{FaultDevice, FaultKind, FaultWhen};
use folio::vfs::{ExtentPlace, FallocateMode, MountOptions};
use folio::{Kernel, KernelOptions};
use std::sync::Arc;

fn mounted(device: &Arc<FaultDevice>, options: &str) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let p = kernel.process(Credentials::root());
    p.mkdir("/disk", 0o755).unwrap();
    kernel
        .mount_ext4(
            device.clone(),
            "/disk",
            &MountOptions::parse(options).unwrap(),
        )
        .unwrap();
    (kernel, p)
}

fn formatted() -> Arc<FaultDevice> {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(64 << 20)), 1));
    ext4::format(
        &*device,
        &FormatOptions {
            block_size: Some(4096),
            ..FormatOptions::default()
        },
    )
    .unwrap();
    device
}

fn put(p: &Process, path: &str, bytes: &[u8]) {
    let fd = p.open(path, CREATE | OpenFlags::TRUNC, 0o644).unwrap();
    p.write(fd, bytes).unwrap();
    p.close(fd).unwrap();
}

#[test]
fn failed_commit_keeps_synced_data() {
    for (options, reads) in [
        ("errors=continue", true),
        ("errors=remount-ro", true),
        ("errors=panic", false),
    ] {
        let device = formatted();
        let (kernel, p) = mounted(&device, options);
        put(&p, "/disk/kept", b"synced");
        p.sync().unwrap();
        put(&p, "/disk/kept", b"not synced");
        put(&p, "/disk/lost", b"not synced");
        device.fail(FaultKind::Flush, FaultWhen::Always);
        assert_eq!(p.sync().unwrap_err().errno(), Errno::IO, "{options}");
        device.clear_faults();
        let refused = if reads { Errno::ROFS } else { Errno::IO };
        assert_eq!(
            p.mkdir("/disk/more", 0o755).unwrap_err().errno(),
            refused,
            "{options}"
        );
        assert_eq!(
            p.open("/disk/absent", READ, 0).unwrap_err().errno(),
            if reads { Errno::NOENT } else { Errno::IO }
        );
        drop(p);
        drop(kernel);
        let (_kernel, p) = mounted(&device, "");
        assert_eq!(read(&p, "/disk/kept"), b"synced");
        assert_eq!(
            p.open("/disk/lost", READ, 0).unwrap_err().errno(),
            Errno::NOENT
        );
    }
}

#[test]
fn freed_blocks_are_reused_when_space_is_short() {
    let device = formatted();
    let (_kernel, p) = mounted(&device, "");
    let half = vec![7; 30 << 20];
    for _ in 0..6 {
        put(&p, "/disk/large", &half);
        p.unlink("/disk/large").unwrap();
    }
    put(&p, "/disk/large", &half);
    // Truncated and rewritten, while the disk still has the old contents.
    put(&p, "/disk/large", &half);
    p.sync().unwrap();
    put(&p, "/disk/large", &half);
    assert_eq!(read(&p, "/disk/large"), half);
}

#[test]
fn fiemap_reports_extents() {
    let device = formatted();
    let (_kernel, p) = mounted(&device, "");
    let fd = p.open("/disk/f", CREATE, 0o644).unwrap();
    p.pwrite(fd, &[1; 8192], 0).unwrap();
    p.pwrite(fd, &[2; 4096], 40_960).unwrap();
    let delayed = p.fiemap(fd, 0..u64::MAX, false).unwrap();
    assert_eq!(
        delayed
            .iter()
            .map(|e| (e.offset, e.len_bytes, e.place))
            .collect::<Vec<_>>(),
        [
            (0, 8192, ExtentPlace::Delayed),
            (40_960, 4096, ExtentPlace::Delayed)
        ]
    );
    p.fallocate(fd, FallocateMode::AllocateKeepSize, 65_536, 4096)
        .unwrap();
    let placed = p.fiemap(fd, 0..u64::MAX, true).unwrap();
    let [first, second, ahead] = &placed[..] else {
        panic!("{placed:?}")
    };
    for (extent, byte) in [(first, 1), (second, 2)] {
        let ExtentPlace::Data(at) = extent.place else {
            panic!("{extent:?}")
        };
        let mut bytes = vec![0; extent.len_bytes as usize];
        device.read_at(&mut bytes, at).unwrap();
        assert!(bytes.iter().all(|found| *found == byte));
    }
    assert!(matches!(ahead.place, ExtentPlace::Unwritten(_)));
    assert_eq!(p.fiemap(fd, 8192..40_960, false).unwrap(), []);
    // The hole is collapsed: later data stays on its blocks, at another file offset.
    p.fallocate(fd, FallocateMode::CollapseRange, 8192, 32_768)
        .unwrap();
    let moved = p.fiemap(fd, 8192..8193, false).unwrap()[0];
    let (ExtentPlace::Data(start), ExtentPlace::Data(was)) = (moved.place, second.place) else {
        panic!("{moved:?} {second:?}")
    };
    assert_eq!(start + (8192 - moved.offset), was);
}

#[test]
fn failed_mount_frees_everything() {
    for options in ["", "noload"] {
        for kind in [FaultKind::Write, FaultKind::Flush] {
            let device = formatted();
            let (kernel, p) = mounted(&device, options);
            put(&p, "/disk/synced", b"synced");
            p.sync().unwrap();
            put(&p, "/disk/synced", b"not synced");
            put(&p, "/disk/new", &[1; 100_000]);
            p.mkdir("/disk/d", 0o755).unwrap();
            device.fail(kind, FaultWhen::Always);
            drop(p);
            drop(kernel);
            assert_eq!(Arc::strong_count(&device), 1, "{options} {kind:?}");
        }
    }
}
