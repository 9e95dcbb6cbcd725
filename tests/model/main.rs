//! Model test: random operations on a file system and on a plain model give equal results and
//! trees.

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod kernel;
mod model;
mod operation;
mod run;

use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::ramfs::HostFrames;
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::FallocateMode::{CollapseRange, InsertRange, PunchHole};
use folio::vfs::{FileType, MountOptions};
use folio::{Kernel, KernelOptions, Process};
use operation::Operation;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of sequences for each file system; `FOLIO_MODEL_CASES` sets another number.
fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("FOLIO_MODEL_CASES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(support::rounds::cases(default));
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Runs the operations on a fresh ext4 in memory with a cache so small that it always evicts pages,
/// then checks the device with e2fsck.
fn on_ext4(block_size: u32, background_writeback: bool, operations: &[Operation]) {
    let device = Arc::new(MemoryDevice::new(24 << 20));
    let format = FormatOptions {
        block_size: Some(block_size),
        ..FormatOptions::default()
    };
    ext4::format(&*device, &format).unwrap();
    on_device(&device, block_size, background_writeback, operations);
}

/// Runs the operations on the ext4 of a device of 24 MiB.
fn on_device(
    device: &Arc<MemoryDevice>,
    block_size: u32,
    background_writeback: bool,
    operations: &[Operation],
) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 256 << 10,
        background_writeback,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.umask(0);
    process.mkdir("/disk", 0o755).unwrap();
    kernel
        .mount_ext4(device.clone(), "/disk", &MountOptions::default())
        .unwrap();
    process.mkdir("/disk/tree", 0o755).unwrap();
    run::run(&process, "/disk/tree", operations, Some(block_size.into()));
    drop(process);
    kernel.unmount("/disk").unwrap();
    let image = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0; 24 << 20];
    device.read_at(&mut bytes, 0).unwrap();
    std::fs::write(image.path(), bytes).unwrap();
    support::tools::fsck(image.path());
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn ramfs(operations in operation::operations(150)) {
        let kernel = Kernel::new(KernelOptions { background_writeback: false, ..KernelOptions::default() });
        let process = kernel.process(Credentials::root());
        process.umask(0);
        process.mkdir("/tree", 0o755).unwrap();
        run::run(&process, "/tree", &operations, None);
    }

    #[test]
    fn tmpfs(operations in operation::operations(150)) {
        let kernel = Kernel::new(KernelOptions { background_writeback: false, ..KernelOptions::default() });
        let process = kernel.process(Credentials::root());
        process.umask(0);
        process.mkdir("/disk", 0o755).unwrap();
        kernel.mount_tmpfs("/disk", &MountOptions::parse("size=100%").unwrap()).unwrap();
        process.mkdir("/disk/tree", 0o755).unwrap();
        run::run(&process, "/disk/tree", &operations, None);
        let mut held = BTreeMap::new();
        let names = count(&process, "/disk", &mut held);
        let stat = process.statfs("/disk").unwrap();
        assert_eq!(stat.blocks - stat.blocks_free, held.values().sum::<u64>() / 8);
        assert_eq!(stat.inodes - stat.inodes_free, names + 1);
    }
}

/// Runs the operations on a gpufs with pages of this size.
fn on_gpufs(page: &str, operations: &[Operation]) {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.umask(0);
    process.mkdir("/disk", 0o755).unwrap();
    let memory = Arc::new(HostFrames::new(64 << 20));
    let options = MountOptions::parse(&format!("size=100%,page={page}")).unwrap();
    kernel
        .mount_gpufs("/disk", memory.clone(), &options)
        .unwrap();
    process.mkdir("/disk/tree", 0o755).unwrap();
    run::run(&process, "/disk/tree", operations, None);
    let mut held = BTreeMap::new();
    count(&process, "/disk", &mut held);
    let stat = process.statfs("/disk").unwrap();
    let used_bytes = (stat.blocks - stat.blocks_free) * u64::from(stat.block_size);
    // Long symbolic links count as blocks of 4 KiB in the host's memory.
    let links = held.iter().filter(|(_, blocks)| **blocks == 8).count();
    let held_bytes = held.values().sum::<u64>() * 512;
    assert!(
        (used_bytes..=used_bytes + links as u64 * 4096).contains(&held_bytes),
        "{held_bytes} bytes of files, {used_bytes} in use"
    );
    drop(process);
    kernel.unmount("/disk").unwrap();
    drop(kernel);
    assert_eq!(memory.used_bytes(), 0);
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn gpufs_with_4_kib_pages(operations in operation::operations(150)) {
        on_gpufs("4k", &operations);
    }

    #[test]
    fn gpufs_with_64_kib_pages(operations in operation::operations(150)) {
        on_gpufs("64k", &operations);
    }
}

/// Counts the names below a directory, and records the blocks of each inode.
fn count(process: &Process, path: &str, held: &mut BTreeMap<u64, u64>) -> u64 {
    let fd = process.open(path, OpenFlags::DIRECTORY, 0).unwrap();
    let mut names = 0;
    for entry in process.getdents(fd, usize::MAX).unwrap() {
        let name = String::from_utf8(entry.name).unwrap();
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{path}/{name}");
        let attributes = process.lstat(&path).unwrap();
        held.insert(attributes.number.0, attributes.blocks_512);
        names += 1;
        if attributes.file_type == FileType::Directory {
            names += count(process, &path, held);
        }
    }
    process.close(fd).unwrap();
    names
}

/// Runs the operations on a host directory through hostfs, then compares the host's tree through
/// another mount.
fn on_hostfs(
    words: &str,
    folder: &std::path::Path,
    block_size: Option<u64>,
    operations: &[Operation],
) {
    let host = tempfile::tempdir_in(folder).unwrap();
    let mounted = |words: &str| {
        let options = KernelOptions {
            cache_bytes: 256 << 10,
            ..KernelOptions::default()
        };
        let kernel = Kernel::new(options);
        let process = kernel.process(Credentials::root());
        process.umask(0);
        process.mkdir("/disk", 0o755).unwrap();
        kernel
            .mount_hostfs(host.path(), "/disk", &MountOptions::parse(words).unwrap())
            .unwrap();
        (process, kernel)
    };
    let (process, kernel) = mounted(words);
    process.mkdir("/disk/tree", 0o755).unwrap();
    let model = run::run(&process, "/disk/tree", operations, block_size);
    drop(process);
    kernel.unmount("/disk").unwrap();
    let (process, _kernel) = mounted("ttl=0,push=off");
    run::check(&process, "/disk/tree", &model);
}

/// Runs sequences on host directories, as the superuser, as the model assumes.
fn hosted(words: &str) {
    requires!(root);
    let outside = std::env::temp_dir();
    let stat = rustix::fs::statfs(&outside).unwrap();
    // Only for ext4 is it known whether ranges can be collapsed, and by which unit.
    let block_size = (stat.f_type == 0xef53).then_some(stat.f_bsize as u64);
    let mut runner = proptest::test_runner::TestRunner::new(cases(20));
    let outcome = runner.run(&operation::operations(150), |mut operations| {
        // The host's ext4 may set times even if a range cannot be moved.
        let has_times = operations.len() % 2 == 0;
        operations.retain(|operation| match operation {
            Operation::Fallocate(_, CollapseRange | InsertRange, ..) => !has_times,
            Operation::SetModified(..) => has_times,
            _ => true,
        });
        on_hostfs(words, &outside, block_size, &operations);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn hostfs_writethrough_matches_model() {
    hosted("push=off");
}

#[test]
fn hostfs_writethrough_ttl_zero_matches_model() {
    hosted("ttl=0,push=off");
}

#[test]
fn hostfs_writethrough_ttl_inf_matches_model() {
    hosted("ttl=inf,push=off");
}

#[test]
fn hostfs_writeback_matches_model() {
    hosted("cache=writeback,push=off");
}

#[test]
fn hostfs_cache_host_matches_model() {
    hosted("cache=host,push=off");
}

#[test]
fn hostfs_cache_none_matches_model() {
    hosted("cache=none,push=off");
}

/// Runs sequences on ext4, unless e2fsck is missing.
fn judged(run: impl Fn(&[Operation])) {
    requires!(tool("e2fsck"));
    let mut runner = proptest::test_runner::TestRunner::new(cases(60));
    let outcome = runner.run(&operation::operations(150), |operations| {
        run(&operations);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn ext4_with_4096_byte_blocks() {
    judged(|operations| on_ext4(4096, false, operations));
}

#[test]
fn ext4_with_2048_byte_blocks() {
    judged(|operations| on_ext4(2048, true, operations));
}

#[test]
fn ext4_with_1024_byte_blocks() {
    judged(|operations| on_ext4(1024, false, operations));
}

#[test]
fn ext4_with_inline_data() {
    requires!(tool("mke2fs"));
    let image = tempfile::NamedTempFile::new().unwrap();
    let options = ["-O", "inline_data", "-I", "512", "-b", "1024"];
    support::tools::mke2fs(image.path(), "24M", &options);
    let bytes = std::fs::read(image.path()).unwrap();
    judged(|operations| {
        let device = Arc::new(MemoryDevice::new(24 << 20));
        device.write_at(&bytes, 0).unwrap();
        on_device(&device, 1024, false, operations);
    });
}

/// Runs sequences of the operations that `is_possible` on copies of an image of mke2fs.
fn on_mke2fs(options: &[&str], block_size: u32, is_possible: impl Fn(&Operation) -> bool) {
    requires!(tool("mke2fs"));
    let image = tempfile::NamedTempFile::new().unwrap();
    let size = ["-b", &block_size.to_string()];
    support::tools::mke2fs(image.path(), "24M", &[options, &size].concat());
    let bytes = std::fs::read(image.path()).unwrap();
    judged(|operations| {
        let device = Arc::new(MemoryDevice::new(24 << 20));
        device.write_at(&bytes, 0).unwrap();
        let possible = operations.iter().filter(|operation| is_possible(operation));
        let operations: Vec<_> = possible.cloned().collect();
        on_device(&device, block_size, operations.len() % 2 == 0, &operations);
    });
}

/// Pointers cannot mark a block as unwritten.
fn is_possible_with_pointers(operation: &Operation) -> bool {
    match operation {
        Operation::Fallocate(_, mode, ..) => *mode == PunchHole,
        _ => true,
    }
}

/// Inodes of 128 bytes have no nanoseconds, and attributes only in a block.
fn is_possible_in_128_bytes(operation: &Operation) -> bool {
    !matches!(operation, Operation::SetModified(..)) && is_possible_with_pointers(operation)
}

#[test]
fn ext2_with_1024_byte_blocks() {
    let options = ["-t", "ext2", "-I", "256"];
    on_mke2fs(&options, 1024, is_possible_with_pointers);
}

#[test]
fn ext2_without_features() {
    let options = ["-t", "ext2", "-O", "none", "-I", "128"];
    on_mke2fs(&options, 4096, is_possible_in_128_bytes);
}

#[test]
fn ext2_of_revision_0() {
    let options = ["-t", "ext2", "-r", "0"];
    on_mke2fs(&options, 4096, is_possible_in_128_bytes);
}

#[test]
fn ext3_with_1024_byte_blocks() {
    let options = ["-t", "ext3", "-I", "256", "-J", "size=4"];
    on_mke2fs(&options, 1024, is_possible_with_pointers);
}

#[test]
fn ext3_with_128_byte_inodes() {
    let options = ["-t", "ext3", "-I", "128", "-J", "size=4"];
    on_mke2fs(&options, 4096, is_possible_in_128_bytes);
}

#[test]
fn ext4_with_quota() {
    on_mke2fs(&["-O", "quota,project"], 1024, |_| true);
}

/// Whole clusters alone can be collapsed and inserted; the model knows blocks.
fn is_possible_with_clusters(operation: &Operation) -> bool {
    !matches!(
        operation,
        Operation::Fallocate(_, CollapseRange | InsertRange, ..)
    )
}

#[test]
fn ext4_with_bigalloc() {
    let options = ["-O", "bigalloc,quota", "-C", "8192"];
    on_mke2fs(&options, 1024, is_possible_with_clusters);
}

#[test]
fn ext4_with_large_clusters() {
    let options = ["-O", "bigalloc", "-C", "65536"];
    on_mke2fs(&options, 4096, is_possible_with_clusters);
}

#[test]
fn ext4_with_ea_inode() {
    let options = ["-O", "ea_inode,quota", "-I", "128"];
    on_mke2fs(&options, 1024, is_possible_in_128_bytes);
}

#[test]
fn ext4_without_extents() {
    let options = ["-O", "^extent,^64bit"];
    on_mke2fs(&options, 2048, is_possible_with_pointers);
}
