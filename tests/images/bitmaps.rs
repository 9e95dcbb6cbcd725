//! Persistent dirty bitmaps: readers keep them, writers mark them in-use.

use crate::images::model;
use crate::support::requires;
use crate::support::tools::{qemu_check, run};
use folio::Errno;
use folio::block::tools::ResizeImage;
use folio::block::{self, OpenOptions, open};
use std::path::Path;
use tempfile::TempDir;

/// An image of 2 MiB with two bitmaps.
fn with_bitmaps(path: &Path) {
    let text = path.to_str().unwrap();
    run("qemu-img", ["create", "-f", "qcow2", text, "2M"]);
    run("qemu-img", ["bitmap", "--add", text, "one"]);
    run("qemu-img", ["bitmap", "--add", "-g", "4k", text, "second"]);
    run("qemu-io", ["-c", "write 0 1M", text]);
}

#[test]
fn first_write_marks_bitmaps_in_use() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let text = path.to_str().unwrap();
    with_bitmaps(&path);
    let before = std::fs::read(&path).unwrap();
    let device = open(
        &path,
        &OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        },
    )
    .unwrap();
    device.read_at(&mut [0; 4096], 0).unwrap();
    drop(device);
    drop(open(&path, &OpenOptions::default()).unwrap());
    assert!(
        std::fs::read(&path).unwrap() == before,
        "nothing was written"
    );
    let device = open(&path, &OpenOptions::default()).unwrap();
    let mut want = vec![0; 2 << 20];
    device.read_at(&mut want, 0).unwrap();
    model::run(&*device, &mut want, 1, 100);
    drop(device);
    qemu_check(&path);
    let info = run("qemu-img", ["info", text]);
    assert_eq!(info.matches("in-use").count(), 2, "{info}");
    // Both programs continue to write the image.
    run("qemu-io", ["-c", "write 64k 64k", text]);
    block::tools::resize(&path, 3 << 20, &ResizeImage::default()).unwrap();
    run("qemu-io", ["-c", "write 2560k 64k", text]);
    qemu_check(&path);
    for name in ["one", "second"] {
        run("qemu-img", ["bitmap", "--remove", text, name]);
    }
    qemu_check(&path);
    assert!(!run("qemu-img", ["info", text]).contains("bitmaps"));
}

#[test]
fn corrupt_bitmap_directory_is_not_written() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    with_bitmaps(&path);
    let good = std::fs::read(&path).unwrap();
    let extension = good
        .windows(4)
        .position(|bytes| bytes == [0x23, 0x85, 0x28, 0x75])
        .unwrap()
        + 8;
    let at = u64::from_be_bytes(good[extension + 16..extension + 24].try_into().unwrap()) as usize;
    let cases: [(usize, &[u8]); 7] = [
        (extension, &u32::MAX.to_be_bytes()),
        (extension, &3u32.to_be_bytes()),
        (extension + 8, &u64::MAX.to_be_bytes()),
        (extension + 8, &30u64.to_be_bytes()),
        (extension + 16, &(1u64 << 50).to_be_bytes()),
        (extension + 16, &(at as u64 + 8).to_be_bytes()),
        (at + 20, &u32::MAX.to_be_bytes()),
    ];
    for (at, bytes) in cases {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, &image).unwrap();
        let device = open(&path, &OpenOptions::default()).unwrap();
        let error = device.write_at(&[1; 512], 0).unwrap_err();
        assert_eq!(error.errno(), Errno::UCLEAN);
        assert!(error.to_string().contains("bitmap"), "{error}");
        drop(device);
        assert!(
            std::fs::read(&path).unwrap() == image,
            "the image is unchanged"
        );
    }
}
