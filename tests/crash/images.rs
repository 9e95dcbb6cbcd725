//! Initial file systems of workloads, formatted by Folio and by mke2fs.

use crate::crash::judge::load;
use crate::support::tools::{command, mke2fs, succeed};
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Returns a file system formatted by Folio, with a journal of 1024 blocks.
pub(crate) fn folio(mib: u64, block_size: u32) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(mib * MIB);
    let uuid = Some([0x5a; 16]);
    let options = FormatOptions {
        block_size: Some(block_size),
        uuid,
        ..FormatOptions::default()
    };
    let report = ext4::format(&device, &options).unwrap();
    assert_eq!(report.journal_block_count, 1024);
    Arc::new(device)
}

/// Returns a file system formatted by mke2fs with these options.
pub(crate) fn by_mke2fs(size: &str, options: &[&str]) -> Arc<dyn Device> {
    formatted(size, options, |_| ())
}

/// Returns a file system of blocks of 1 KiB whose directories are casefolded.
pub(crate) fn casefolded(size: &str) -> Arc<dyn Device> {
    formatted(size, &["-O", "casefold", "-b", "1024"], |image| {
        // EXT4_CASEFOLD_FL with EXT4_EXTENTS_FL; new directories inherit it.
        let request = "set_inode_field / flags 0x40080000";
        succeed(command("debugfs").args(["-w", "-R", request]).arg(image));
    })
}

fn formatted(size: &str, options: &[&str], change: impl FnOnce(&Path)) -> Arc<dyn Device> {
    let folder = tempfile::TempDir::with_prefix("folio-crash-").unwrap();
    let path = folder.path().join("image");
    mke2fs(&path, size, options);
    change(&path);
    load(&path)
}
