//! New file systems of many sizes: width, free space, label.

use super::{assert_clean, formatted, mounted, stored};
use crate::support::requires;
use crate::support::tools::run;
use folio::Errno;
use folio::block::{Device, MemoryDevice};
use folio::fat::{FatOptions, FatWidth};
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[test]
fn new_fat_of_any_size_is_clean() {
    requires!(tool("fsck.vfat"), tool("blkid"));
    let sizes = [
        (FatWidth::Fat12, 40 * KIB),
        (FatWidth::Fat12, 1440 * KIB),
        (FatWidth::Fat12, 9 * MIB),
        (FatWidth::Fat16, 2300 * KIB),
        (FatWidth::Fat16, 5 * MIB + 512),
        (FatWidth::Fat16, 150 * MIB),
        (FatWidth::Fat32, 33_312 * KIB),
        (FatWidth::Fat32, 100 * MIB + 1),
        (FatWidth::Fat32, 300 * MIB),
    ];
    for (width, len_bytes) in sizes {
        let device = formatted(width, len_bytes);
        assert_clean(&device);
        let (_dir, path) = stored(&device);
        let said = run("blkid", ["-p".as_ref(), path.as_os_str()]);
        for want in ["LABEL=\"TEST\"", "UUID=\"1234-5678\"", "TYPE=\"vfat\""] {
            assert!(said.contains(want), "{said}");
        }
        let fs = mounted(&device);
        let free = fs.statistics("/").unwrap();
        // Tables and the root take the rest.
        let free_bytes = free.blocks_free * u64::from(free.block_size);
        let others = (64 * KIB).min(len_bytes / 2);
        assert!(free_bytes + others > len_bytes * 9 / 10, "{len_bytes}");
        fs.write("/a file", "content").unwrap();
        fs.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn size_beyond_the_width_is_refused() {
    for (width, len_bytes) in [
        (FatWidth::Fat12, 16 * KIB),
        (FatWidth::Fat12, 200 * MIB),
        (FatWidth::Fat16, 2 * MIB),
        (FatWidth::Fat32, 32 * MIB),
    ] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(len_bytes));
        let mut options = FatOptions::default();
        options.width = width;
        let error = folio::fat::format(&device, &options).unwrap_err();
        assert_eq!(error.errno(), Errno::INVAL, "{error}");
    }
}
