//! Sound images: e2fsck and folio check find nothing.

use crate::check::images::{RECIPES, Recipe};
use crate::check::judge::{folio_check, folio_check_without_replay, fsck};
use crate::support::real_tree::{self, Limits};
use crate::support::tools::command;
use crate::support::{self, Mounted, requires};
use folio::block::{self, Device, OpenOptions, RawDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{AT_FDCWD, Credentials, OpenFlags};
use folio::vfs::{DeviceNumber, FallocateMode, FileType, MountOptions, XattrFlags};
use folio::{Kernel, KernelOptions};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[track_caller]
fn assert_clean(name: &str, image: &Path) {
    let fsck = fsck(image);
    assert!(!fsck.found_damage(), "{name}: e2fsck: {}", fsck.output);
    let check = folio_check(image);
    assert!(!check.has_findings(), "{name}: {}", check.text());
}

#[test]
fn images_of_mke2fs_are_clean() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    for recipe in &RECIPES {
        assert_clean(recipe.name, &recipe.empty().path);
        assert_clean(recipe.name, &recipe.filled().path);
    }
}

/// Creates every kind of file that Folio supports, and removes some of them.
fn fill(device: &Arc<dyn Device>) -> Result<(), folio::Error> {
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755)?;
    kernel.mount_ext4(device.clone(), "/disk", &MountOptions::default())?;
    process.mkdir("/disk/many", 0o755)?;
    for i in 0..1500 {
        let path = format!("/disk/many/a-rather-long-name-{i}");
        process.close(process.open(&path, OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)?)?;
        if i % 3 == 0 {
            process.unlink(&path)?;
        }
    }
    let fd = process.open("/disk/fragments", OpenFlags::CREAT | OpenFlags::RDWR, 0o644)?;
    for i in 0..500_u64 {
        process.pwrite(fd, &[0xDA; 1024], i * 8192)?;
    }
    process.fallocate(fd, FallocateMode::Allocate, 8 << 20, 64 << 10)?;
    process.close(fd)?;
    process.setxattr(
        "/disk/fragments",
        b"user.small",
        b"value",
        XattrFlags::empty(),
    )?;
    process.setxattr(
        "/disk/fragments",
        b"user.large",
        &[7; 600],
        XattrFlags::empty(),
    )?;
    process.link("/disk/fragments", "/disk/hard")?;
    process.symlink("fragments", "/disk/short")?;
    process.symlink("x/".repeat(200), "/disk/long")?;
    process.mknodat(
        AT_FDCWD,
        "/disk/node",
        FileType::BlockDevice,
        0o600,
        DeviceNumber::new(8, 1),
    )?;
    for depth in 1..8 {
        process.mkdir(format!("/disk{}", "/deep".repeat(depth)), 0o755)?;
    }
    drop(process);
    kernel.unmount("/disk")
}

#[test]
fn images_formatted_and_written_by_folio_are_clean() {
    requires!(tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    for (block_size, mib) in [(1024, 32), (2048, 48), (4096, 64), (4096, 1024)] {
        let path = folder.path().join(format!("{block_size}-{mib}"));
        let options = FormatOptions {
            block_size: Some(block_size),
            ..FormatOptions::default()
        };
        ext4::format(&RawDevice::create(&path, mib << 20).unwrap(), &options).unwrap();
        assert_clean("fresh", &path);
        fill(&block::open(&path, &OpenOptions::default()).unwrap()).unwrap();
        assert_clean("written", &path);
    }
}

/// Writes like a program on the kernel's mount: shared attribute blocks, holes, preallocation,
/// indexes, removals.
fn write_various_files(root: &Path) {
    fs::create_dir_all(root.join("a/b/c/d")).unwrap();
    for i in 0..900 {
        let path = root.join(format!("a/a-rather-long-name-for-a-file-{i}"));
        fs::write(&path, format!("{i}")).unwrap();
        if i % 4 == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    let holes = fs::File::create(root.join("holes")).unwrap();
    for i in 0..400_u64 {
        holes.write_all_at(&[1; 700], i * 9000).unwrap();
    }
    let _ = rustix::fs::fallocate(
        &holes,
        rustix::fs::FallocateFlags::KEEP_SIZE,
        5 << 20,
        1 << 20,
    );
    let _ = rustix::fs::fallocate(
        &holes,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        1 << 20,
    );
    fs::hard_link(root.join("holes"), root.join("a/hard")).unwrap();
    std::os::unix::fs::symlink("holes", root.join("short")).unwrap();
    std::os::unix::fs::symlink("y".repeat(500), root.join("long")).unwrap();
    for name in ["p", "q", "r"] {
        let path = root.join(name);
        fs::write(&path, "attributes").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "user.shared", &[b'v'; 400], flags).unwrap();
        rustix::fs::setxattr(&path, "user.small", name.as_bytes(), flags).unwrap();
    }
    fs::set_permissions(root.join("p"), fs::Permissions::from_mode(0o640)).unwrap();
}

#[test]
fn images_written_by_the_kernel_are_clean() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    // The kernel may lack quota support.
    for recipe in RECIPES.iter().filter(|recipe| recipe.name != "quota") {
        let image = recipe.empty();
        let mounted = Mounted::new(&image.path, "rw");
        write_various_files(&mounted.path());
        mounted.unmount();
        assert_clean(recipe.name, &image.path);
    }
}

#[test]
fn image_of_a_real_tree_is_clean() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let limits = Limits {
        files_min: 500,
        files_max: 3000,
        bytes_max: 40 << 20,
    };
    if let Err(reason) = real_tree::copy_to(&tree, limits) {
        return support::require::report_skip(&reason);
    }
    let source = tree.to_str().unwrap();
    support::tools::mke2fs(&image, "200M", &["-d", source]);
    assert_clean("tree", &image);
}

/// Returns a copy of a mounted image, the state after a power cut.
fn copy_in_use(folder: &Path, recipe: &Recipe) -> PathBuf {
    let image = recipe.empty();
    let mounted = Mounted::new(&image.path, "rw");
    write_various_files(&mounted.path());
    let orphan = mounted.path().join("orphan");
    let file = fs::File::create(&orphan).unwrap();
    file.write_all_at(&[3; 50_000], 0).unwrap();
    fs::remove_file(&orphan).unwrap();
    let root = fs::File::open(mounted.path()).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    let copy = folder.join(recipe.name);
    fs::copy(&image.path, &copy).unwrap();
    drop((file, root));
    mounted.unmount();
    copy
}

#[test]
fn dirty_journal_is_replayed_in_memory() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    for recipe in RECIPES
        .iter()
        .filter(|recipe| ["1k-checksums", "4k-checksums", "ext3"].contains(&recipe.name))
    {
        let copy = copy_in_use(folder.path(), recipe);
        let before = fs::read(&copy).unwrap();
        let check = folio_check(&copy);
        assert!(!check.found_damage(), "{}: {}", recipe.name, check.text());
        let text = check.text();
        assert!(
            text.contains("transactions to be replayed") && text.contains("orphan"),
            "{}: {text}",
            recipe.name
        );
        assert!(
            before == fs::read(&copy).unwrap(),
            "{}: the image was written",
            recipe.name
        );
        let unreplayed = folio_check_without_replay(&copy);
        assert!(
            unreplayed.found_damage() && fsck(&copy).found_damage(),
            "{}: {}",
            recipe.name,
            unreplayed.text()
        );
        let repaired = command("e2fsck").arg("-fy").arg(&copy).output().unwrap();
        assert!(
            repaired.status.code().is_some_and(|code| code < 4),
            "{}",
            support::tools::text(&repaired)
        );
        assert_clean(recipe.name, &copy);
    }
}
