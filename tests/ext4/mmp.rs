//! Multiple mount protection: two hosts never write one file system.

use super::write;
use crate::names::with_image;
use crate::support::random::Random;
use crate::support::tools::{fsck, mke2fs, run};
use crate::support::{Mounted, requires};
use folio::base::{Errno, Error};
use folio::block::RawDevice;
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Returns the sequence number as debugfs shows it.
fn sequence(image: &Path) -> String {
    let request = ["-R", "dump_mmp"].map(OsStr::new);
    let said = run("debugfs", request.into_iter().chain([image.as_os_str()]));
    let line = said.lines().find(|line| line.starts_with("sequence:"));
    line.unwrap_or_else(|| panic!("no sequence in {said}"))
        .to_owned()
}

fn mount(image: &Path) -> Result<Arc<Kernel>, Error> {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/i", 0o755).unwrap();
    let device = Arc::new(RawDevice::open(image, false).unwrap());
    kernel.mount_ext4(device, "/i", &MountOptions::default())?;
    Ok(kernel)
}

/// Makes an image without checksums, so that a test can write the sequence number alone. Returns
/// the byte where it is.
fn formatted(image: &Path) -> u64 {
    mke2fs(image, "16M", &["-O", "mmp,^metadata_csum", "-b", "1024"]);
    let said = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]);
    let line = said
        .lines()
        .find(|line| line.starts_with("MMP block number:"));
    let number = line.and_then(|line| line.split_whitespace().last());
    let block: u64 = number.and_then(|text| text.parse().ok()).unwrap();
    block * 1024 + 4
}

#[test]
fn mmp_is_taken_at_mount_and_cleared_after() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("debugfs")
    );
    let scratch = TempDir::new().unwrap();
    let (image, copy) = (scratch.path().join("disk.img"), scratch.path().join("copy"));
    mke2fs(&image, "32M", &["-O", "mmp"]);
    let clean = sequence(&image);
    let kernel = mount(&image).unwrap();
    let process = kernel.process(Credentials::root());
    let mut random = Random::new(17);
    for number in 0..1000 {
        let path = format!("/i/{}", random.below(200_u32));
        match random.below(3_u32) {
            0 => drop(process.unlink(&path)),
            1 => drop(process.rename(&path, format!("/i/r{number}"))),
            _ => write(&process, &path, random.below(20_000_usize)),
        }
    }
    process.sync().unwrap();
    fs::copy(&image, &copy).unwrap();
    assert_ne!(sequence(&copy), clean);
    drop(process);
    kernel.unmount("/i").unwrap();
    assert_eq!(sequence(&image), clean);
    fsck(&image);
    // The copy is as after a crash: nothing renews its claim.
    with_image(&copy, false, |process| write(process, "/i/after", 100));
    assert_eq!(sequence(&copy), clean);
    fsck(&copy);
    let mounted = Mounted::new(&copy, "rw");
    assert_eq!(fs::read(mounted.path().join("after")).unwrap(), [7; 100]);
    mounted.unmount();
    fsck(&copy);
}

#[test]
fn mmp_in_use_elsewhere_is_refused() {
    requires!(tool("mke2fs"), tool("dumpe2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let at = formatted(&image);
    let file = File::options().write(true).open(&image).unwrap();
    let write_sequence = |number: u32| file.write_all_at(&number.to_le_bytes(), at).unwrap();
    write_sequence(0xE24D_4D50);
    let error = mount(&image).err().unwrap();
    assert_eq!(error.errno(), Errno::BUSY);
    assert!(error.to_string().contains("e2fsck runs"), "{error}");
    write_sequence(1);
    let is_done = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !is_done.load(Ordering::Relaxed) {
                number += 1;
                write_sequence(number);
                std::thread::park_timeout(std::time::Duration::from_millis(100));
            }
        });
        let error = mount(&image).err();
        is_done.store(true, Ordering::Relaxed);
        error.unwrap()
    });
    assert_eq!(error.errno(), Errno::BUSY);
    assert!(error.to_string().contains("in use by host"), "{error}");
    // Reading needs no claim.
    with_image(&image, true, |process| {
        process.stat("/i/lost+found").unwrap()
    });
}

#[test]
fn mmp_taken_by_another_host_ends_changes() {
    requires!(tool("mke2fs"), tool("dumpe2fs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let at = formatted(&image);
    let kernel = mount(&image).unwrap();
    let process = kernel.process(Credentials::root());
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let stored = || {
        let mut found = [0; 4];
        file.read_exact_at(&mut found, at).unwrap();
        u32::from_le_bytes(found)
    };
    let claim = || file.write_all_at(&77_u32.to_le_bytes(), at).unwrap();
    claim();
    let mut claims = 1;
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
    let refused = (0..600).find_map(|number| {
        std::thread::park_timeout(std::time::Duration::from_millis(50));
        // A renewal that was under way at the first claim has checked the block before it.
        if claims == 1 && stored() != 77 {
            claim();
            claims += 1;
        }
        process.open(format!("/i/{number}"), flags, 0o644).err()
    });
    assert_eq!(refused.map(|error| error.errno()), Some(Errno::ROFS));
    assert_eq!(stored(), 77, "the other host's claim is overwritten");
}
