//! The kernel's xfs and btrfs on loop devices: healthy files, and each fault that they can have.

use super::*;
use rustix::fs::FallocateFlags;
use std::fs::File;

const MIB: u64 = 1 << 20;

/// Mounts a new file system of 512 MiB by the kernel; unmounting detaches the loop device.
fn mounted(folder: &TempDir, fs_type: &str, options: &str) -> HostMount {
    let image = folder.path().join("disk.img");
    File::create(&image).unwrap().set_len(512 * MIB).unwrap();
    let image = image.as_os_str();
    run(
        &format!("mkfs.{fs_type}"),
        ["-q".as_ref(), "-f".as_ref(), image],
    );
    let options = format!("loop,{options}");
    HostMount::new(&[
        "-t".as_ref(),
        fs_type.as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        image,
    ])
}

/// Checks that a file written at once and a directory have no fault, and that the chain shows the
/// device.
#[track_caller]
fn has_no_fault(mount: &HostMount, fs_type: &str) {
    written(&mount.at("whole"), 16 << 20);
    let outcome = DoctorRun::of(&mount.at("whole"), &[]);
    outcome.has(&[]);
    assert_eq!(outcome.chain()[0], format!("file-system {fs_type}"));
    assert!(
        outcome.chain()[1].starts_with("disk loop"),
        "{:?}",
        outcome.chain()
    );
    assert_eq!(outcome.check("fragmented")["verdict"], "fine");
    assert_eq!(outcome.check("sparse")["verdict"], "fine");
    assert_eq!(
        outcome.check("flush-on-truncate")["verdict"],
        "note",
        "not tried"
    );
    std::fs::rename(mount.at("whole"), mount.at("whole.img")).unwrap();
    DoctorRun::of(&mount.at("whole.img"), &[]).has(&[]);
    DoctorRun::of(mount.folder.path(), &[]).has(&[]);
}

/// Checks that holes are a fault of a disk image and a note for another file, and that the remedy
/// fills them.
#[track_caller]
fn sees_holes(mount: &HostMount) {
    let image = mount.at("sparse.img");
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let outcome = DoctorRun::of(&image, &[]);
    let remedy = outcome.notes("sparse");
    assert_eq!(outcome.check("sparse")["numbers"]["percent"], 100.0);
    apply(&remedy);
    let full = mount.at("sparse-full.img");
    File::open(&full).unwrap().sync_all().unwrap();
    let outcome = DoctorRun::of(&full, &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("sparse")["verdict"], "fine");
    let reserved = File::create(mount.at("reserved.img")).unwrap();
    rustix::fs::fallocate(&reserved, FallocateFlags::empty(), 0, 16 * MIB).unwrap();
    DoctorRun::of(&mount.at("reserved.img"), &[]).notes("unwritten");
    std::fs::rename(&image, mount.at("sparse")).unwrap();
    DoctorRun::of(&mount.at("sparse"), &[]).notes("sparse");
}

/// Checks that small extents are a fault, and that the remedy joins them.
#[track_caller]
fn sees_fragments(mount: &HostMount) {
    let path = mount.at("pieces");
    let file = File::create(&path).unwrap();
    let data = noise(8192);
    // Each piece is allocated on its own, before the adjacent pieces are written.
    for number in 0..256_u64 {
        file.write_all_at(&data, number * 101 % 256 * 8192).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    let outcome = DoctorRun::of(&path, &[]);
    let remedy = outcome.notes("fragmented");
    let pieces = outcome.check("fragmented")["numbers"]["fragments"].as_u64();
    assert!(
        pieces.is_some_and(|count| count >= 100),
        "{:#}",
        outcome.report
    );
    apply(&remedy);
    File::open(&path).unwrap().sync_all().unwrap();
    let outcome = DoctorRun::of(&path, &[]);
    assert_eq!(outcome.check("fragmented")["verdict"], "fine");
}

fn remedy<'a>(outcome: &'a DoctorRun, cause: &str) -> &'a str {
    outcome.check(cause)["remedies"][0]
        .as_str()
        .unwrap_or_default()
}

#[test]
fn healthy_xfs_has_no_fault() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.xfs"),
        file_system("xfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "xfs", "rw");
    has_no_fault(&mount, "xfs");
}

#[test]
fn xfs_holes_and_fragments_are_reported() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.xfs"),
        tool("xfs_fsr"),
        file_system("xfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "xfs", "rw");
    sees_holes(&mount);
    sees_fragments(&mount);
}

/// XFS flushes only after truncation, and no option turns that off. The remedy is a rename.
#[test]
fn xfs_flushes_at_close_and_not_at_rename() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.xfs"),
        file_system("xfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "xfs", "rw");
    let outcome = DoctorRun::of(mount.folder.path(), &["--write-probe"]);
    outcome.has(&["flush-on-truncate"]);
    assert_eq!(
        remedy(&outcome, "flush-on-truncate"),
        "cp NEW FILE.new && mv FILE.new FILE"
    );
    let check = outcome.check("flush-on-truncate");
    let evidence = check["evidence"].as_str().unwrap_or_default();
    assert!(
        evidence.starts_with("truncated, written again and closed in "),
        "{check:#}"
    );
    let numbers = &check["numbers"];
    assert_eq!(
        (
            &numbers["delayed_before_bytes"],
            &numbers["delayed_after_bytes"]
        ),
        (&MIB.into(), &0.into())
    );
    assert_eq!(outcome.check("flush-on-rename")["verdict"], "fine");
    assert_eq!(outcome.check("no-delayed-allocation")["verdict"], "fine");
    assert_eq!(std::fs::read_dir(mount.folder.path()).unwrap().count(), 0);
}

/// Shared blocks are a note, and a fault of disk images.
#[test]
fn xfs_shared_blocks_are_reported() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.xfs"),
        file_system("xfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "xfs", "rw");
    written(&mount.at("one"), 8 << 20);
    for name in ["two", "two.img"] {
        run(
            "cp",
            [
                "--reflink=always".as_ref(),
                mount.at("one").as_os_str(),
                mount.at(name).as_os_str(),
            ],
        );
        // Files share blocks, but not pages.
        std::fs::read(mount.at(name)).unwrap();
    }
    let outcome = DoctorRun::of(&mount.at("two"), &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("shared")["verdict"], "note");
    let outcome = DoctorRun::of(&mount.at("two.img"), &[]);
    apply(&outcome.notes("shared"));
    File::open(mount.at("two-full.img"))
        .unwrap()
        .sync_all()
        .unwrap();
    DoctorRun::of(&mount.at("two-full.img"), &[]).has(&[]);
}

#[test]
fn healthy_btrfs_has_no_fault() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        file_system("btrfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "btrfs", "rw");
    has_no_fault(&mount, "btrfs");
}

#[test]
fn btrfs_holes_and_fragments_are_reported() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        tool("btrfs"),
        file_system("btrfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "btrfs", "rw");
    sees_holes(&mount);
    sees_fragments(&mount);
}

/// FIEMAP shows no blocks for data that btrfs is still writing. Pages in writeback show the flush.
#[test]
fn btrfs_flushes_at_close_and_at_rename() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        file_system("btrfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "btrfs", "rw");
    written(&mount.at("file"), 2 << 20);
    let outcome = DoctorRun::of(&mount.at("file"), &["--write-probe"]);
    outcome.has(&["flush-on-truncate", "flush-on-rename"]);
    for cause in ["flush-on-truncate", "flush-on-rename"] {
        let numbers = &outcome.check(cause)["numbers"];
        assert_eq!(
            (
                &numbers["dirty_before_bytes"],
                &numbers["dirty_after_bytes"]
            ),
            (&MIB.into(), &0.into())
        );
        assert!(
            remedy(&outcome, cause).starts_with("dd if=NEW of="),
            "{:#}",
            outcome.report
        );
    }
    // The remedy: no page of the file is written before a sync.
    std::fs::write(mount.at("NEW"), noise(1 << 20)).unwrap();
    let script = format!(
        "cd {} && {}",
        mount.folder.path().display(),
        remedy(&outcome, "flush-on-rename")
    );
    run("sh", ["-c", &script]);
    let file = File::open(mount.at("file")).unwrap();
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), noise(1 << 20));
    let Ok(folio_pagecache::ResidencyReport::Known(found)) = folio_pagecache::residency(&file)
    else {
        panic!()
    };
    assert_eq!((found.size_bytes, found.dirty_bytes), (MIB, Some(MIB)));
}

/// Compressed blocks are a note. For a disk image they are a fault, which an uncompressed copy
/// fixes.
#[test]
fn btrfs_compressed_files_are_reported() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        file_system("btrfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "btrfs", "compress-force=zstd");
    let text = "a line that compresses well\n".repeat(300_000);
    for name in ["text", "text.img"] {
        let file = File::create(mount.at(name)).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    let outcome = DoctorRun::of(&mount.at("text"), &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("compressed")["verdict"], "note");
    assert_eq!(
        outcome.check("fragmented")["verdict"],
        "unknown",
        "btrfs does not report the size of each compressed extent"
    );
    let outcome = DoctorRun::of(&mount.at("text.img"), &[]);
    let remedy = outcome.notes("compressed");
    assert_eq!(outcome.check("compressed")["numbers"]["percent"], 100.0);
    apply(&remedy);
    File::open(mount.at("text-full.img"))
        .unwrap()
        .sync_all()
        .unwrap();
    DoctorRun::of(&mount.at("text-full.img"), &[]).has(&[]);
    // Incompressible data is stored uncompressed.
    written(&mount.at("noise"), 8 << 20);
    let outcome = DoctorRun::of(&mount.at("noise"), &[]);
    outcome.has(&[]);
    assert!(
        outcome
            .checks()
            .iter()
            .all(|check| check["cause"] != "compressed"),
        "{:#}",
        outcome.report
    );
}
