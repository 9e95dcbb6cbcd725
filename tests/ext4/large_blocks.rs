//! Blocks larger than a page, as kernels with pages of 64 KiB make them: read, and refused for
//! writing. The kernel of a machine with pages of 4 KiB may not mount them; e2fsprogs does.

use crate::names::{names, with_image};
use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, succeed};
use folio::base::{ErrorKind, PAGE_SIZE};
use folio::block::RawDevice;
use folio::syscall::{Credentials, OpenFlags, Process};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Names in one directory: more than a block of 64 KiB holds.
const NAMES: usize = 3000;

/// Makes a tree on the host: a file, a sparse file, links, a large directory.
fn tree(folder: &Path) {
    fs::create_dir_all(folder.join("names")).unwrap();
    let bytes: Vec<u8> = (0..500_000_u32).map(|n| (n / 7 * 13) as u8).collect();
    fs::write(folder.join("file"), &bytes).unwrap();
    let sparse = fs::File::create(folder.join("sparse")).unwrap();
    sparse.write_all_at(&bytes[..100], 300_000).unwrap();
    sparse.write_all_at(&bytes[..5000], 1_000_001).unwrap();
    std::os::unix::fs::symlink("t".repeat(200), folder.join("link")).unwrap();
    for number in 0..NAMES {
        let name = format!("{number}-{}", "n".repeat(number % 60));
        fs::write(folder.join("names").join(name), number.to_string()).unwrap();
    }
}

fn read(process: &Process, path: &str, len: usize, chunk: usize) -> Vec<u8> {
    let fd = process.open(path, OpenFlags::empty(), 0).unwrap();
    let mut bytes = vec![0; len];
    for (part, at) in bytes.chunks_mut(chunk).zip((0..).step_by(chunk)) {
        let mut done = 0;
        while done < part.len() {
            let count = process.pread(fd, &mut part[done..], (at + done) as u64);
            match count.unwrap() {
                0 => panic!("{path} ends at {}", at + done),
                count => done += count,
            }
        }
    }
    process.close(fd).unwrap();
    bytes
}

fn check(image: &Path, folder: &Path) {
    with_image(image, true, |process| {
        for name in ["file", "sparse"] {
            let want = fs::read(folder.join(name)).unwrap();
            // In pieces that start in the middle of blocks, so that pages are read one by one.
            for chunk in [4096, 70_000] {
                let found = read(process, &format!("/i/{name}"), want.len(), chunk);
                assert!(found == want, "{name}");
            }
        }
        let target = process.readlink("/i/link").unwrap();
        assert_eq!(target, "t".repeat(200).into_bytes());
        assert_eq!(names(process, "/i/names").len(), NAMES);
        for number in (0..NAMES).step_by(17) {
            let path = format!("/i/names/{number}-{}", "n".repeat(number % 60));
            let want = number.to_string().into_bytes();
            assert_eq!(read(process, &path, want.len(), 4096), want);
        }
        process.stat("/i/names/missing").unwrap_err();
    });
}

#[test]
fn blocks_of_64_kib_are_read() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("tree");
    tree(&folder);
    for (block_size, features) in [
        ("65536", "metadata_csum"),
        ("65536", "^metadata_csum,^has_journal"),
        ("16384", "^extent,^64bit"),
    ] {
        if block_size.parse::<usize>().unwrap() <= PAGE_SIZE {
            continue;
        }
        let image = scratch.path().join("disk.img");
        let source = folder.to_str().unwrap();
        let features = format!("{features},^resize_inode");
        let options = [
            "-b", block_size, "-O", &features, "-N", "4096", "-d", source,
        ];
        mke2fs(&image, "400M", &options);
        fsck(&image);
        check(&image, &folder);
        // Makes the index of the directory.
        let output = command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
        assert!(output.status.code() < Some(4), "{output:?}");
        fsck(&image);
        check(&image, &folder);
        refuses_writing(&image, block_size);
        succeed(command("rm").arg(&image));
    }
}

fn refuses_writing(image: &Path, block_size: &str) {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/i", 0o755).unwrap();
    let device = Arc::new(RawDevice::open(image, false).unwrap());
    let refused = kernel.mount_ext4(device, "/i", &MountOptions::default());
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains(block_size), "{error}");
}
