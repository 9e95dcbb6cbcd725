//! The kernel's ext4 on a loop device, with and without each fault.

use super::*;
use crate::support::report_skip;
use folio::block::{self, ImageFormat};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, major, minor};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

const MIB: u64 = 1 << 20;

#[test]
fn ext4_default_flushes_at_close_and_rename() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let outcome = DoctorRun::of(&mounted.path(), &["--write-probe"]);
    outcome.has(&["flush-on-truncate", "flush-on-rename"]);
    let fix = outcome.check("flush-on-rename")["remedies"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        fix.starts_with("mount -o remount,noauto_da_alloc "),
        "{fix}"
    );
    assert_eq!(outcome.check("flush-on-truncate")["remedies"][0], *fix);
    for cause in ["flush-on-truncate", "flush-on-rename"] {
        let check = outcome.check(cause);
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
    let numbers = &outcome.check("flush-on-rename")["numbers"];
    assert!(
        numbers["rename_over_us"].is_number() && numbers["rename_free_us"].is_number(),
        "{numbers}"
    );
    // Without the probe ext4's default is a note, not a fault.
    let outcome = DoctorRun::of(&mounted.path(), &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("flush-on-truncate")["verdict"], "note");
    // The remedy is a command that fixes it.
    run("sh", ["-c", &fix]);
    DoctorRun::of(&mounted.path(), &["--write-probe"]).has(&[]);
    mounted.unmount();
}

#[test]
fn noauto_da_alloc_has_no_fault() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,noauto_da_alloc");
    let outcome = DoctorRun::of(&mounted.path(), &["--write-probe"]);
    outcome.has(&[]);
    for cause in [
        "flush-on-truncate",
        "flush-on-rename",
        "no-delayed-allocation",
    ] {
        assert_eq!(outcome.check(cause)["verdict"], "fine");
    }
    assert!(
        outcome.chain()[0] == "file-system ext4" && outcome.chain()[1].starts_with("disk loop"),
        "{:?}",
        outcome.chain()
    );
    mounted.unmount();
}

#[test]
fn nodelalloc_is_reported_with_and_without_probe() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,nodelalloc");
    for options in [&["--write-probe"][..], &[]] {
        let outcome = DoctorRun::of(&mounted.path(), options);
        if options.is_empty() {
            outcome.notes("no-delayed-allocation");
            continue;
        }
        outcome.has(&["no-delayed-allocation"]);
        assert_eq!(
            outcome.check("no-delayed-allocation")["certainty"],
            "certain"
        );
    }
    mounted.unmount();
}

/// The kernel does not change this option in a remount, so the remedy unmounts and mounts again. A
/// file system mounted as ext3 has the same fault.
#[test]
fn nodelalloc_remedy_restores_delayed_allocation() {
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
        let device = LoopDevice::attach(&image, &[]);
        let mount = device.mount(fs_type, options);
        let outcome = DoctorRun::of(mount.folder.path(), &["--write-probe"]);
        outcome.has(&["no-delayed-allocation"]);
        run(
            "sh",
            [
                "-c",
                outcome.check("no-delayed-allocation")["remedies"][0]
                    .as_str()
                    .unwrap(),
            ],
        );
        let outcome = DoctorRun::of(mount.folder.path(), &["--write-probe"]);
        assert_eq!(
            outcome.check("no-delayed-allocation")["verdict"],
            "fine",
            "{:#}",
            outcome.report
        );
    }
}

/// The unmount releases the loop device that mount(8) made: the remedy names the backing file, and
/// keeps the other options.
#[test]
fn nodelalloc_remedy_keeps_a_loop_mount() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let disk = folder.path().join("a disk.img");
    mke2fs(&folder.path().join("part.img"), "64M", &["-b", "4096"]);
    let script = format!(
        "dd if={0}/part.img of='{0}/a disk.img' bs=1M seek=1 status=none",
        folder.path().display()
    );
    run("sh", ["-c", &script]);
    let options = "loop,offset=1048576,nodelalloc,nosuid,noatime";
    let words = ["-t", "ext4", "-o", options].map(OsStr::new);
    let mount = HostMount::new(&[&words[..], &[disk.as_os_str()]].concat());
    std::fs::write(mount.at("file"), "kept").unwrap();
    let outcome = DoctorRun::of(mount.folder.path(), &["--write-probe"]);
    outcome.has(&["no-delayed-allocation"]);
    let fix = outcome.check("no-delayed-allocation")["remedies"][0].clone();
    apply(fix.as_str().unwrap());
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), b"kept");
    let outcome = DoctorRun::of(mount.folder.path(), &["--write-probe"]);
    assert_eq!(
        outcome.check("no-delayed-allocation")["verdict"],
        "fine",
        "{:#}",
        outcome.report
    );
    let options = outcome.report["paths"][0]["chain"][0]["options"].to_string();
    assert!(
        options.contains("nosuid") && options.contains("noatime"),
        "{options}"
    );
    // The backing file is examined as well.
    let paths = outcome.report["paths"].as_array().unwrap();
    assert_eq!(paths[paths.len() - 1]["path"], disk.display().to_string());
}

#[test]
fn read_only_mount_reports_flushes_as_unknown() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "ro");
    let outcome = DoctorRun::of(&mounted.path(), &["--write-probe"]);
    outcome.has(&[]);
    assert_eq!(outcome.check("flush-on-truncate")["verdict"], "unknown");
    assert_eq!(outcome.check("flush-on-rename")["verdict"], "unknown");
    mounted.unmount();
}

#[test]
fn image_with_holes_or_reserved_space_is_noted() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let at = |name: &str| mounted.path().join(name);
    File::create(at("sparse.img"))
        .unwrap()
        .set_len(16 * MIB)
        .unwrap();
    // Nothing is slow before a slow write is measured.
    let remedy = DoctorRun::of(&at("sparse.img"), &[]).notes("sparse");
    assert!(remedy.starts_with("cp "), "{remedy}");
    // A sparse file that is not an image has no remedy.
    std::fs::rename(at("sparse.img"), at("sparse")).unwrap();
    assert_eq!(DoctorRun::of(&at("sparse"), &[]).notes("sparse"), "");

    let reserved = File::create(at("reserved.img")).unwrap();
    fallocate(&reserved, FallocateFlags::empty(), 0, 16 * MIB).unwrap();
    drop(reserved);
    let outcome = DoctorRun::of(&at("reserved.img"), &[]);
    let remedy = outcome.notes("unwritten");
    assert_eq!(outcome.check("unwritten")["numbers"]["percent"], 100.0);

    written(&at("full.img"), 16 << 20);
    DoctorRun::of(&at("full.img"), &[]).has(&[]);
    let outcome = DoctorRun::of(&at("reserved.img"), &["--write-probe"]);
    assert!(
        outcome.check("unwritten")["numbers"]["first_write_us"].is_number(),
        "{:#}",
        outcome.report
    );
    apply(&remedy);
    let full = at("reserved-full.img");
    File::open(&full).unwrap().sync_all().unwrap();
    let outcome = DoctorRun::of(&full, &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("sparse")["verdict"], "fine");
    mounted.unmount();
}

#[test]
fn sparse_image_remedy_fills_holes() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let image = mounted.path().join("disk.img");
    File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    apply(&DoctorRun::of(&image, &[]).notes("sparse"));
    let full = mounted.path().join("disk-full.img");
    File::open(&full).unwrap().sync_all().unwrap();
    let outcome = DoctorRun::of(&full, &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("sparse")["verdict"], "fine");
    mounted.unmount();
}

#[test]
fn qcow2_unallocated_clusters_are_noted() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let image = mounted.path().join("disk.qcow2");
    let device = block::create(&image, ImageFormat::Qcow2, 16 * MIB).unwrap();
    let outcome = DoctorRun::of(&image, &["--write-probe"]);
    let numbers = &outcome.check("clusters-not-allocated")["numbers"];
    assert!(numbers["first_write_us"].is_number(), "{numbers}");
    let outcome = DoctorRun::of(&image, &[]);
    let remedy = outcome.notes("clusters-not-allocated");
    assert_eq!(
        outcome.check("clusters-not-allocated")["numbers"]["missing_percent"],
        100.0
    );
    // The image is in use, and is examined nevertheless.
    device.write_at(&noise(16 << 20), 0).unwrap();
    device.flush().unwrap();
    drop(device);
    DoctorRun::of(&image, &[]).has(&[]);
    apply(&remedy);
    let full = mounted.path().join("disk-full.qcow2");
    let outcome = DoctorRun::of(&full, &[]);
    outcome.has(&[]);
    assert_eq!(outcome.check("clusters-not-allocated")["verdict"], "fine");
    std::fs::write(
        mounted.path().join("bad.qcow2"),
        b"QFI\xfb and nothing that makes sense",
    )
    .unwrap();
    let outcome = DoctorRun::of(&mounted.path().join("bad.qcow2"), &[]);
    outcome.has(&[]);
    assert_eq!(
        outcome.check("clusters-not-allocated")["verdict"],
        "unknown"
    );
    mounted.unmount();
}

#[test]
fn file_in_small_extents_is_fragmented() {
    requires!(root, loop_devices, tool("mke2fs"), tool("e4defrag"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    written(&mounted.path().join("whole"), 4 << 20);
    DoctorRun::of(&mounted.path().join("whole"), &[]).has(&[]);
    // Allocates all free space, with the reserve of the kernel, then frees every second block.
    let device = std::fs::metadata(mounted.path()).unwrap().dev();
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let device = std::fs::canonicalize(device).unwrap();
    let reserve = Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
    std::fs::write(reserve.join("reserved_clusters"), "0").unwrap();
    let comb = File::create(mounted.path().join("comb")).unwrap();
    let mut len = 512 * MIB;
    while len >= MIB / 4 {
        let at = comb.metadata().unwrap().len();
        if fallocate(&comb, FallocateFlags::empty(), at, len).is_err() {
            len /= 2;
        }
    }
    // For the blocks of the extent tree.
    comb.set_len(comb.metadata().unwrap().len() - MIB).unwrap();
    comb.sync_all().unwrap();
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for number in 0..2048 {
        fallocate(&comb, holes, number * 8192, 4096).unwrap();
    }
    drop(comb);
    run("sync", ["-f".as_ref(), mounted.path().as_os_str()]);
    written(&mounted.path().join("pieces"), 4 << 20);
    let outcome = DoctorRun::of(&mounted.path().join("pieces"), &[]);
    let remedy = outcome.notes("fragmented");
    assert!(
        outcome.check("fragmented")["numbers"]["fragments"]
            .as_u64()
            .is_some_and(|count| count >= 100),
        "{:#}",
        outcome.report
    );
    // With free space again, the remedy joins the extents.
    std::fs::remove_file(mounted.path().join("comb")).unwrap();
    run("sync", ["-f".as_ref(), mounted.path().as_os_str()]);
    apply(&remedy);
    let outcome = DoctorRun::of(&mounted.path().join("pieces"), &[]);
    assert_eq!(outcome.check("fragmented")["verdict"], "fine");
    mounted.unmount();
}

/// Writes a file back and drops its pages from the page cache.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn dropped_file_is_cold_until_warmed() {
    requires!(root, loop_devices, linux(6, 5), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let file = mounted.path().join("file");
    written(&file, 48 << 20);
    DoctorRun::of(&file, &[]).has(&[]);
    forget(&file);
    let outcome = DoctorRun::of(&file, &["--read-limit", "32M"]);
    let remedy = outcome.notes("cold");
    assert_eq!(outcome.check("cold")["numbers"]["resident_percent"], 0.0);
    // The remedy fixes it.
    forget(&file);
    apply(&remedy);
    DoctorRun::of(&file, &[]).has(&[]);
    mounted.unmount();
}

#[test]
fn file_larger_than_memory_is_evicted() {
    requires!(root, loop_devices, linux(6, 5), tool("mke2fs"));
    let Some(group) = Group::new(32 * MIB) else {
        return report_skip("needs control groups that limit memory");
    };
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let file = mounted.path().join("file");
    written(&file, 96 << 20);
    assert_eq!(
        DoctorRun::of(&file, &[]).check("evicted")["verdict"],
        "fine"
    );
    forget(&file);
    let reader = GroupReader::start(&group, &file);
    let outcome = DoctorRun::of(&file, &[]);
    assert!(
        outcome.faults().contains(&"evicted"),
        "{:#}",
        outcome.report
    );
    // The remedy lifts the limit of the program that reads the file.
    let remedy = outcome.check("evicted")["remedies"][0].clone();
    apply(remedy.as_str().unwrap());
    drop(reader);
    // With the memory of the machine it is not too small.
    forget(&file);
    let shown = text(&doctor([&file]));
    assert!(!shown.contains("UNIT"), "{shown}");
    assert!(!DoctorRun::of(&file, &[]).faults().contains(&"evicted"));
    let numbers = &outcome.check("evicted")["numbers"];
    assert!(
        numbers["evicted_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes >= 32 * MIB),
        "{numbers}"
    );
    // The command read the evicted pages again, and reports these refaults as well.
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
