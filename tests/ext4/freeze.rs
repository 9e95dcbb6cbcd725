//! Freezes: a copy of the device needs no repair, although other threads write.

use super::write;
use crate::support::requires;
use crate::support::rounds::Done;
use crate::support::tools::{fsck, mke2fs, run};
use folio::block::RawDevice;
use folio::syscall::Credentials;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Kernel, KernelOptions};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn mount(image: &Path) -> Arc<Kernel> {
    let kernel = Kernel::new(KernelOptions::default());
    kernel
        .process(Credentials::root())
        .mkdir("/i", 0o755)
        .unwrap();
    let device = Arc::new(RawDevice::open(image, false).unwrap());
    kernel
        .mount_ext4(device, "/i", &MountOptions::default())
        .unwrap();
    kernel
}

fn needs_recovery(image: &Path) -> bool {
    run("dumpe2fs", ["-h", image.to_str().unwrap()]).contains("needs_recovery")
}

#[test]
fn copies_of_a_frozen_device_are_clean() {
    requires!(
        tool("mke2fs"),
        tool("e2fsck"),
        tool("dumpe2fs"),
        tool("debugfs")
    );
    let folder = TempDir::new().unwrap();
    let [image, copy] = ["disk.img", "copy.img"].map(|name| folder.path().join(name));
    mke2fs(&image, "32M", &[]);
    let kernel = mount(&image);
    // The first freeze is that of a file system without changes.
    kernel
        .freeze_while("/i", || Ok(fs::copy(&image, &copy).unwrap()))
        .unwrap();
    fsck(&copy);
    let is_done = AtomicBool::new(false);
    let freeze = |round: usize| {
        let mark = format!("/i/mark-{round}");
        write(&kernel.process(Credentials::root()), &mark, 70_000);
        kernel.freeze_while("/i", || {
            let frozen = fs::read(&image).unwrap();
            fs::write(&copy, &frozen).unwrap();
            let is_equal = fs::read(&image).unwrap() == frozen;
            Ok(is_equal && !needs_recovery(&copy))
        })
    };
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (process, is_done) = (kernel.process(Credentials::root()), &is_done);
            scope.spawn(move || {
                for round in 0_usize.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    write(
                        &process,
                        &format!("/i/{name}-{}", round % 40),
                        round % 90_000,
                    );
                }
            });
        }
        let done = Done(&is_done);
        let frozen: Vec<_> = (0..5)
            .map(|round| {
                let frozen = freeze(round);
                fsck(&copy);
                let inside = format!("stat /mark-{round}");
                let stat = run("debugfs", ["-R", &inside, copy.to_str().unwrap()]);
                (frozen, stat.contains("Size: 70000"))
            })
            .collect();
        drop(done);
        for (is_frozen, is_stored) in frozen {
            assert!(is_frozen.unwrap() && is_stored);
        }
    });
    // Changes after a freeze demand a replay again.
    fs::copy(&image, &copy).unwrap();
    assert!(needs_recovery(&copy));
    kernel.unmount("/i").unwrap();
    fsck(&image);
}

#[test]
fn failed_work_ends_the_freeze() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "16M", &[]);
    let kernel = mount(&image);
    let process = kernel.process(Credentials::root());
    let failed = kernel.freeze_while("/i", || Err::<(), _>(Error::from(Errno::XDEV)));
    assert_eq!(failed.unwrap_err().errno(), Errno::XDEV);
    write(&process, "/i/f", 5000);
    drop(process);
    kernel.unmount("/i").unwrap();
    fsck(&image);
}
