//! The kernel's ext4 on a loop device, with and without each fault.

use super::*;
use crate::support::report_skip;
use folio::block::{self, ImageFormat};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use std::fs::File;

const MIB: u64 = 1 << 20;

#[test]
fn a_flush_at_close_and_at_rename_is_seen_where_it_happens() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let told = Told::of(&mounted.path(), &["--write-probe"]);
    told.has(&["flush-on-truncate", "flush-on-rename"]);
    let fix = told.check("flush-on-rename")["remedies"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        fix.starts_with("mount -o remount,noauto_da_alloc "),
        "{fix}"
    );
    assert_eq!(told.check("flush-on-truncate")["remedies"][0], *fix);
    for cause in ["flush-on-truncate", "flush-on-rename"] {
        let check = told.check(cause);
        assert_eq!(check["certainty"], "certain");
        let numbers = &check["numbers"];
        assert_eq!(
            (
                &numbers["delayed_before_bytes"],
                &numbers["delayed_after_bytes"]
            ),
            (&MIB.into(), &0.into()),
            "{check:#}"
        );
        assert!(
            numbers["flushed_tries"]
                .as_u64()
                .is_some_and(|count| count >= 3),
            "{check:#}"
        );
    }
    let numbers = &told.check("flush-on-rename")["numbers"];
    assert!(
        numbers["rename_over_us"].is_number() && numbers["rename_free_us"].is_number(),
        "{numbers}"
    );
    // Without the probe ext4's default is told and not blamed.
    let told = Told::of(&mounted.path(), &[]);
    told.has(&[]);
    assert_eq!(told.check("flush-on-truncate")["verdict"], "note");
    // The remedy is a command that mends it.
    run("sh", ["-c", &fix]);
    Told::of(&mounted.path(), &["--write-probe"]).has(&[]);
    mounted.unmount();
}

#[test]
fn noauto_da_alloc_has_no_fault() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,noauto_da_alloc");
    let told = Told::of(&mounted.path(), &["--write-probe"]);
    told.has(&[]);
    for cause in [
        "flush-on-truncate",
        "flush-on-rename",
        "no-delayed-allocation",
    ] {
        assert_eq!(told.check(cause)["verdict"], "fine");
    }
    assert!(
        told.chain()[0] == "file-system ext4" && told.chain()[1].starts_with("disk loop"),
        "{:?}",
        told.chain()
    );
    mounted.unmount();
}

#[test]
fn nodelalloc_is_seen_by_trial_and_by_option() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,nodelalloc");
    for options in [&["--write-probe"][..], &[]] {
        let told = Told::of(&mounted.path(), options);
        told.has(&["no-delayed-allocation"]);
        assert_eq!(told.check("no-delayed-allocation")["certainty"], "certain");
    }
    mounted.unmount();
}

/// The kernel does not change this in a remount: the remedy mounts anew. What is mounted as ext3
/// has the same fault.
#[test]
fn the_remedies_of_nodelalloc_mend_it() {
    requires!(root, loop_devices, tool("mke2fs"), file_system("ext3"));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    for (fs_type, options) in [("ext4", "nodelalloc"), ("ext3", "rw")] {
        let _ = std::fs::remove_file(&image);
        let words = ["-q", "-F", "-t", fs_type].map(OsStr::new).into_iter();
        run(
            "mke2fs",
            words.chain([image.as_os_str(), OsStr::new("64M")]),
        );
        let device = LoopDevice::new(&image);
        let mount = HostMount::new(&["-t", fs_type, "-o", options, &device.0].map(OsStr::new));
        let told = Told::of(mount.folder.path(), &["--write-probe"]);
        told.has(&["no-delayed-allocation"]);
        run(
            "sh",
            [
                "-c",
                told.check("no-delayed-allocation")["remedies"][0]
                    .as_str()
                    .unwrap(),
            ],
        );
        let told = Told::of(mount.folder.path(), &["--write-probe"]);
        assert_eq!(
            told.check("no-delayed-allocation")["verdict"],
            "fine",
            "{:#}",
            told.report
        );
    }
}

/// A loop device that stays when it is unmounted, and goes when this is dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(image: &Path) -> Self {
        let shown = run(
            "losetup",
            ["--find".as_ref(), "--show".as_ref(), image.as_os_str()],
        );
        Self(shown.trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn what_cannot_be_written_is_unknown() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "ro");
    let told = Told::of(&mounted.path(), &["--write-probe"]);
    told.has(&[]);
    assert_eq!(told.check("flush-on-truncate")["verdict"], "unknown");
    assert_eq!(told.check("flush-on-rename")["verdict"], "unknown");
    mounted.unmount();
}

#[test]
fn images_tell_what_first_writes_cost() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let at = |name: &str| mounted.path().join(name);
    File::create(at("sparse.img"))
        .unwrap()
        .set_len(16 * MIB)
        .unwrap();
    Told::of(&at("sparse.img"), &[]).has(&["sparse"]);
    // No image: worth a note.
    std::fs::rename(at("sparse.img"), at("sparse")).unwrap();
    let told = Told::of(&at("sparse"), &[]);
    told.has(&[]);
    assert_eq!(told.check("sparse")["verdict"], "note");

    let reserved = File::create(at("reserved.img")).unwrap();
    fallocate(&reserved, FallocateFlags::empty(), 0, 16 * MIB).unwrap();
    drop(reserved);
    let told = Told::of(&at("reserved.img"), &[]);
    told.has(&["unwritten"]);
    assert_eq!(told.check("unwritten")["numbers"]["percent"], 100.0);

    written(&at("full.img"), 16 << 20);
    Told::of(&at("full.img"), &[]).has(&[]);
    let told = Told::of(&at("reserved.img"), &["--write-probe"]);
    assert!(
        told.check("unwritten")["numbers"]["first_write_us"].is_number(),
        "{:#}",
        told.report
    );
    mounted.unmount();
}

#[test]
fn the_remedy_of_a_sparse_image_mends_it() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let image = mounted.path().join("disk.img");
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    let told = Told::of(&image, &[]);
    let fix = told.check("sparse")["remedies"][0].as_str().unwrap();
    run("sh", ["-c", fix]);
    let full = mounted.path().join("disk-full.img");
    File::open(&full).unwrap().sync_all().unwrap();
    Told::of(&full, &[]).has(&[]);
    mounted.unmount();
}

#[test]
fn qcow2_tells_which_clusters_are_allocated() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let image = mounted.path().join("disk.qcow2");
    let device = block::create(&image, ImageFormat::Qcow2, 16 * MIB).unwrap();
    let told = Told::of(&image, &[]);
    told.has(&["clusters-not-allocated"]);
    assert_eq!(
        told.check("clusters-not-allocated")["numbers"]["missing_percent"],
        100.0
    );
    // In use: it is looked at all the same.
    device.write_at(&noise(16 << 20), 0).unwrap();
    device.flush().unwrap();
    drop(device);
    Told::of(&image, &[]).has(&[]);
    std::fs::write(
        mounted.path().join("bad.qcow2"),
        b"QFI\xfb and nothing that makes sense",
    )
    .unwrap();
    let told = Told::of(&mounted.path().join("bad.qcow2"), &[]);
    told.has(&[]);
    assert_eq!(told.check("clusters-not-allocated")["verdict"], "unknown");
    mounted.unmount();
}

#[test]
fn small_pieces_are_seen() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e4defrag"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    written(&mounted.path().join("whole"), 4 << 20);
    Told::of(&mounted.path().join("whole"), &[]).has(&[]);
    // Of all that is free, every second block.
    let comb = File::create(mounted.path().join("comb")).unwrap();
    let mut len = 512 * MIB;
    while len >= MIB {
        let at = comb.metadata().unwrap().len();
        if fallocate(&comb, FallocateFlags::empty(), at, len).is_err() {
            len /= 2;
        }
    }
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for number in 0..2048 {
        fallocate(&comb, holes, number * 8192, 4096).unwrap();
    }
    drop(comb);
    run("sync", ["-f".as_ref(), mounted.path().as_os_str()]);
    written(&mounted.path().join("pieces"), 4 << 20);
    let told = Told::of(&mounted.path().join("pieces"), &[]);
    told.has(&["fragmented"]);
    assert!(
        told.check("fragmented")["numbers"]["fragments"]
            .as_u64()
            .is_some_and(|count| count >= 100),
        "{:#}",
        told.report
    );
    // With room again, the remedy joins them.
    std::fs::remove_file(mounted.path().join("comb")).unwrap();
    run("sync", ["-f".as_ref(), mounted.path().as_os_str()]);
    run(
        "sh",
        [
            "-c",
            told.check("fragmented")["remedies"][0].as_str().unwrap(),
        ],
    );
    std::fs::read(mounted.path().join("pieces")).unwrap();
    Told::of(&mounted.path().join("pieces"), &[]).has(&[]);
    mounted.unmount();
}

/// Out of the page cache, as far as it is written.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn a_cold_file_is_told_from_a_warm_one() {
    requires!(root, loop_devices, linux(6, 5), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let file = mounted.path().join("file");
    written(&file, 48 << 20);
    Told::of(&file, &[]).has(&[]);
    forget(&file);
    let told = Told::of(&file, &["--read-limit", "32M"]);
    told.has(&["cold"]);
    assert_eq!(told.check("cold")["numbers"]["resident_percent"], 0.0);
    // The remedy mends it.
    forget(&file);
    let warmed = Command::new(env!("CARGO_BIN_EXE_folio"))
        .args(["--quiet", "warm"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(warmed.status.success(), "{}", text(&warmed));
    Told::of(&file, &[]).has(&[]);
    mounted.unmount();
}

#[test]
fn a_cache_that_is_too_small_is_seen() {
    requires!(root, loop_devices, linux(6, 5), tool("mke2fs"));
    let Some(group) = Group::new(32 * MIB) else {
        return report_skip("needs control groups that limit memory");
    };
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let file = mounted.path().join("file");
    written(&file, 96 << 20);
    assert_eq!(Told::of(&file, &[]).check("evicted")["verdict"], "fine");
    forget(&file);
    read_twice(&group, &file);
    let told = Told::of(&file, &[]);
    assert!(told.faults().contains(&"evicted"), "{:#}", told.report);
    let numbers = &told.check("evicted")["numbers"];
    assert!(
        numbers["evicted_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes >= 32 * MIB),
        "{numbers}"
    );
    // What was evicted came back when the command read it, and that is counted as well.
    assert!(
        numbers["refaulted_pages"]
            .as_u64()
            .is_some_and(|pages| pages >= 4096),
        "{numbers}"
    );
    assert!(
        numbers["memory_some_percent"].is_number() || !Path::new("/proc/pressure").exists(),
        "{numbers}"
    );
    mounted.unmount();
}
