//! A full file system: what has no space is refused, and nothing is lost.

use super::{WIDTHS, assert_clean, assert_errno, formatted, mounted, names};
use crate::support::requires;
use folio::fat::FatWidth;
use folio::{Errno, Fs};
use std::io::Write;

fn fill(fs: &Fs, name: &str) -> u64 {
    let mut file = fs.create(name).unwrap();
    let block = [0x5a; 10_000];
    while file.write_all(&block).is_ok() {}
    file.metadata().unwrap().len()
}

#[test]
fn write_without_space_fails_and_keeps_the_rest() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        fs.write("/file", "content").unwrap();
        let free = fs.statistics("/").unwrap();
        let len = fill(&fs, "/full");
        // The write before the last was short, at the end of the space.
        assert_eq!(len, free.blocks_free * u64::from(free.block_size));
        assert_eq!(fs.statistics("/").unwrap().blocks_free, 0);
        assert!(fs.read("/full").unwrap().iter().all(|byte| *byte == 0x5a));
        assert_errno(fs.create_dir("/directory"), Errno::NOSPC);
        let file = fs.open_options().write(true).open("/file").unwrap();
        assert_errno(file.set_len(1 << 20), Errno::NOSPC);
        assert_eq!(fs.read("/file").unwrap(), b"content");
        fs.remove_file("/full").unwrap();
        assert_eq!(fs.statistics("/").unwrap().blocks_free, free.blocks_free);
        file.set_len(1 << 20).unwrap();
        let mut content = b"content".to_vec();
        content.resize(1 << 20, 0);
        assert!(fs.read("/file").unwrap() == content);
        drop(file);
        fs.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn rename_without_space_loses_nothing() {
    requires!(tool("fsck.vfat"));
    let device = formatted(FatWidth::Fat32, 36 << 20);
    let fs = mounted(&device);
    fs.create_dir("/folder").unwrap();
    fs.create_dir("/target").unwrap();
    fs.write("/folder/file", "content").unwrap();
    fs.write("/target/other", "replaced").unwrap();
    // All slots of the first cluster.
    let block_size = fs.statistics("/").unwrap().block_size;
    for number in 4..block_size / 32 {
        fs.write(format!("/target/F{number}"), "").unwrap();
    }
    fill(&fs, "/full");
    assert_errno(fs.rename("/folder/file", "/target/FILE"), Errno::NOSPC);
    let long = format!("/folder/{}", "long".repeat(25));
    fs.rename("/folder/file", long).unwrap();
    assert_eq!(names(&fs, "/folder"), ["long".repeat(25)]);
    // Over another file no slot is needed.
    let long = format!("/folder/{}", "long".repeat(25));
    fs.rename(long, "/target/OTHER").unwrap();
    assert_eq!(fs.read("/target/other").unwrap(), b"content");
    assert!(names(&fs, "/folder").is_empty());
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn root_of_fixed_size_is_full_at_its_end() {
    requires!(tool("fsck.vfat"));
    let device = formatted(FatWidth::Fat16, 20 << 20);
    let fs = mounted(&device);
    // The label has a slot, too.
    for number in 0..511 {
        fs.write(format!("/F{number}"), "").unwrap();
    }
    assert_errno(fs.write("/FULL", ""), Errno::NOSPC);
    // Needs two slots.
    assert_errno(fs.rename("/F1", "/f1"), Errno::NOSPC);
    assert_eq!(names(&fs, "/").len(), 511);
    fs.rename("/F1", "/G1").unwrap();
    fs.remove_file("/F2").unwrap();
    fs.remove_file("/F3").unwrap();
    fs.rename("/G1", "/g1").unwrap();
    assert!(names(&fs, "/").contains(&"g1".to_owned()));
    fs.close().unwrap();
    assert_clean(&device);
}
