//! The kernel's xfs and btrfs on loop devices: healthy files, and each fault that they can have.

use super::*;
use rustix::fs::FallocateFlags;
use std::fs::File;

const MIB: u64 = 1 << 20;

/// A new file system of 512 MiB, mounted by the kernel; the loop device goes with the mount.
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

/// Nothing is wrong with a file that was written at once, nor with a folder; what is below is seen.
#[track_caller]
fn has_no_fault(mount: &HostMount, fs_type: &str) {
    written(&mount.at("whole"), 16 << 20);
    let told = Told::of(&mount.at("whole"), &[]);
    told.has(&[]);
    assert_eq!(told.chain()[0], format!("file-system {fs_type}"));
    assert!(
        told.chain()[1].starts_with("disk loop"),
        "{:?}",
        told.chain()
    );
    assert_eq!(told.check("fragmented")["verdict"], "fine");
    assert_eq!(told.check("sparse")["verdict"], "fine");
    assert_eq!(
        told.check("flush-on-truncate")["verdict"],
        "note",
        "not tried"
    );
    std::fs::rename(mount.at("whole"), mount.at("whole.img")).unwrap();
    Told::of(&mount.at("whole.img"), &[]).has(&[]);
    Told::of(mount.folder.path(), &[]).has(&[]);
}

/// Holes of a disk image are told, those of another file are noted, and the remedy fills them.
#[track_caller]
fn sees_holes(mount: &HostMount) {
    let image = mount.at("sparse.img");
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let told = Told::of(&image, &[]);
    told.has(&["sparse"]);
    assert_eq!(told.check("sparse")["numbers"]["percent"], 100.0);
    run("sh", ["-c", remedy(&told, "sparse")]);
    let full = mount.at("sparse-full.img");
    File::open(&full).unwrap().sync_all().unwrap();
    Told::of(&full, &[]).has(&[]);
    let reserved = File::create(mount.at("reserved.img")).unwrap();
    rustix::fs::fallocate(&reserved, FallocateFlags::empty(), 0, 16 * MIB).unwrap();
    Told::of(&mount.at("reserved.img"), &[]).has(&["unwritten"]);
    std::fs::rename(&image, mount.at("sparse")).unwrap();
    let told = Told::of(&mount.at("sparse"), &[]);
    told.has(&[]);
    assert_eq!(told.check("sparse")["verdict"], "note");
}

/// Small pieces are seen, and joined by the remedy.
#[track_caller]
fn sees_fragments(mount: &HostMount) {
    let path = mount.at("pieces");
    let file = File::create(&path).unwrap();
    let data = noise(8192);
    // Each piece has to find a place of its own before its neighbours are there.
    for number in 0..256_u64 {
        file.write_all_at(&data, number * 101 % 256 * 8192).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    let told = Told::of(&path, &[]);
    told.has(&["fragmented"]);
    let pieces = told.check("fragmented")["numbers"]["fragments"].as_u64();
    assert!(
        pieces.is_some_and(|count| count >= 100),
        "{:#}",
        told.report
    );
    // Nobody knows whether a loop device seeks.
    assert!(
        told.check("fragmented")["certainty"] == "hint" || told.seeks(),
        "{:#}",
        told.report
    );
    run("sh", ["-c", remedy(&told, "fragmented")]);
    File::open(&path).unwrap().sync_all().unwrap();
    // xfs_fsr writes past the page cache.
    std::fs::read(&path).unwrap();
    Told::of(&path, &[]).has(&[]);
}

fn remedy<'a>(told: &'a Told, cause: &str) -> &'a str {
    told.check(cause)["remedies"][0]
        .as_str()
        .unwrap_or_default()
}

#[test]
fn xfs_without_a_fault_has_none() {
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
fn holes_and_pieces_are_seen_on_xfs() {
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

/// XFS watches for truncation alone, and no option turns that off: a rename is the way around it.
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
    let told = Told::of(mount.folder.path(), &["--write-probe"]);
    told.has(&["flush-on-truncate"]);
    assert_eq!(
        remedy(&told, "flush-on-truncate"),
        "cp NEW FILE.new && mv FILE.new FILE"
    );
    let check = told.check("flush-on-truncate");
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
    assert_eq!(told.check("flush-on-rename")["verdict"], "fine");
    assert_eq!(told.check("no-delayed-allocation")["verdict"], "fine");
    assert_eq!(std::fs::read_dir(mount.folder.path()).unwrap().count(), 0);
}

/// Shared blocks are noted, and a fault of disk images.
#[test]
fn shared_blocks_are_seen_on_xfs() {
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
        // Blocks are shared, pages are not.
        std::fs::read(mount.at(name)).unwrap();
    }
    let told = Told::of(&mount.at("two"), &[]);
    told.has(&[]);
    assert_eq!(told.check("shared")["verdict"], "note");
    let told = Told::of(&mount.at("two.img"), &[]);
    told.has(&["shared"]);
    run("sh", ["-c", remedy(&told, "shared")]);
    File::open(mount.at("two-full.img"))
        .unwrap()
        .sync_all()
        .unwrap();
    Told::of(&mount.at("two-full.img"), &[]).has(&[]);
}

#[test]
fn btrfs_without_a_fault_has_none() {
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
fn holes_and_pieces_are_seen_on_btrfs() {
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

/// FIEMAP has no place for what btrfs writes until that has ended: pages in writeback tell.
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
    let told = Told::of(&mount.at("file"), &["--write-probe"]);
    told.has(&["flush-on-truncate", "flush-on-rename"]);
    for cause in ["flush-on-truncate", "flush-on-rename"] {
        let numbers = &told.check(cause)["numbers"];
        assert_eq!(
            (
                &numbers["dirty_before_bytes"],
                &numbers["dirty_after_bytes"]
            ),
            (&MIB.into(), &0.into())
        );
        assert!(
            remedy(&told, cause).starts_with("dd if=NEW of="),
            "{:#}",
            told.report
        );
    }
    // The way around it: nothing of it is written before somebody asks.
    std::fs::write(mount.at("NEW"), noise(1 << 20)).unwrap();
    let script = format!(
        "cd {} && {}",
        mount.folder.path().display(),
        remedy(&told, "flush-on-rename")
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

/// Packed blocks are noted; of a disk image they are a fault, which a copy that may not be packed
/// mends.
#[test]
fn compressed_files_are_seen_on_btrfs() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        file_system("btrfs"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mount = mounted(&folder, "btrfs", "compress-force=zstd");
    let text = "a line that is easy to pack\n".repeat(300_000);
    for name in ["text", "text.img"] {
        let file = File::create(mount.at(name)).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    let told = Told::of(&mount.at("text"), &[]);
    told.has(&[]);
    assert_eq!(told.check("compressed")["verdict"], "note");
    assert_eq!(
        told.check("fragmented")["verdict"],
        "unknown",
        "how much each piece takes is not told"
    );
    let told = Told::of(&mount.at("text.img"), &[]);
    told.has(&["compressed"]);
    assert_eq!(told.check("compressed")["numbers"]["percent"], 100.0);
    run("sh", ["-c", remedy(&told, "compressed")]);
    File::open(mount.at("text-full.img"))
        .unwrap()
        .sync_all()
        .unwrap();
    Told::of(&mount.at("text-full.img"), &[]).has(&[]);
    // What cannot be packed is stored as it is.
    written(&mount.at("noise"), 8 << 20);
    let told = Told::of(&mount.at("noise"), &[]);
    told.has(&[]);
    assert!(
        told.checks()
            .iter()
            .all(|check| check["cause"] != "compressed"),
        "{:#}",
        told.report
    );
}
