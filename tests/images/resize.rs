//! Resizes, compared with qemu-img on a copy: equal content, and no error in either.

use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed};
use folio::block::qcow2::Repair;
use folio::block::tools::ResizeImage;
use folio::block::{self, ImageFormat, Preallocation};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn qemu_img(folder: &Path, line: &str) {
    succeed(
        command("qemu-img")
            .args(line.split_whitespace())
            .current_dir(folder),
    );
}

fn any() -> ResizeImage {
    ResizeImage {
        may_shrink: true,
        ..ResizeImage::default()
    }
}

fn write(path: &Path, lines: &[&str]) {
    run(
        "qemu-io",
        lines
            .iter()
            .flat_map(|line| ["-c", line])
            .chain([path.to_str().unwrap()]),
    );
}

#[track_caller]
fn clean(path: &Path) {
    qemu_check(path);
    let report = block::tools::check(path, None, Repair::Nothing, &mut |_| {}).unwrap();
    assert_eq!(
        (report.leaks, report.corruptions, report.check_errors),
        (0, 0, 0)
    );
}

/// Resizes `ours` with Folio and `theirs` with qemu-img.
#[track_caller]
fn resize_both(folder: &Path, len_bytes: u64) {
    block::tools::resize(folder.join("ours.qcow2"), len_bytes, &any()).unwrap();
    qemu_img(
        folder,
        &format!("resize -q --shrink theirs.qcow2 {len_bytes}"),
    );
    clean(&folder.join("ours.qcow2"));
    qemu_img(folder, "compare ours.qcow2 theirs.qcow2");
    let read_only = block::OpenOptions {
        read_only: true,
        ..block::OpenOptions::default()
    };
    assert_eq!(
        block::open(folder.join("ours.qcow2"), &read_only)
            .unwrap()
            .len_bytes(),
        len_bytes
    );
}

fn both(folder: &Path) -> [PathBuf; 2] {
    std::fs::copy(folder.join("ours.qcow2"), folder.join("theirs.qcow2")).unwrap();
    ["ours.qcow2", "theirs.qcow2"].map(|name| folder.join(name))
}

#[test]
fn shrink_and_grow_match_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in [
        "",
        "-o cluster_size=4k",
        "-o cluster_size=512",
        "-o compat=0.10",
        "-o lazy_refcounts=on",
    ] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        qemu_img(
            folder,
            &format!("create -q -f qcow2 {options} ours.qcow2 6M"),
        );
        write(
            &folder.join("ours.qcow2"),
            &["write -P 1 0 3M", "write -P 2 4M 1M", "write -P 3 5M 100k"],
        );
        let pair = both(folder);
        // qemu-img keeps the content behind the end in its cluster, so sizes are whole clusters
        // where the image grows again.
        for len_bytes in [
            5 * MIB,
            200 * MIB,
            64 * MIB,
            4 * MIB + 128 * KIB,
            2 * MIB,
            40 * MIB,
            128 * KIB,
            3 * MIB,
        ] {
            resize_both(folder, len_bytes);
            if len_bytes > MIB {
                let line = format!("write -P 7 {} 64k", len_bytes / 2);
                pair.iter().for_each(|path| write(path, &[&line]));
                clean(&pair[0]);
            }
        }
    }
}

#[test]
fn growth_moves_the_l1_table() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    qemu_img(
        folder,
        "create -q -f qcow2 -o cluster_size=512 ours.qcow2 1M",
    );
    write(&folder.join("ours.qcow2"), &["write -P 1 0 1M"]);
    let pair = both(folder);
    for size in [3, 17, 100, 1000] {
        resize_both(folder, size * MIB);
        let line = format!("write -P 5 {}k 40k", size * KIB - 40);
        pair.iter().for_each(|path| write(path, &[&line]));
        clean(&pair[0]);
    }
    // qemu-img takes minutes for this one.
    block::tools::resize(&pair[0], 2 * MIB, &any()).unwrap();
    clean(&pair[0]);
    assert!(
        std::fs::metadata(&pair[0]).unwrap().len() < 2 * MIB,
        "the file is shorter, too"
    );
    let error = block::tools::resize(&pair[0], 1 << 50, &any()).unwrap_err();
    assert_eq!(error.errno(), folio::Errno::FBIG);
}

/// Content that was cut off does not reappear, also not inside the last cluster.
#[test]
fn content_cut_off_reads_as_zeros() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in ["", "-o compat=0.10"] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("disk.qcow2");
        qemu_img(
            folder.path(),
            &format!("create -q -f qcow2 {options} disk.qcow2 1M"),
        );
        write(&path, &["write -P 1 0 1M"]);
        let mut want = vec![1; MIB as usize];
        for len_bytes in [100 * KIB + 512, 300 * KIB, 512, MIB] {
            block::tools::resize(&path, len_bytes, &any()).unwrap();
            want.resize(len_bytes as usize, 0);
            let device = block::open(&path, &block::OpenOptions::default()).unwrap();
            let mut bytes = vec![9; want.len()];
            device.read_at(&mut bytes, 0).unwrap();
            assert!(bytes == want, "{len_bytes}");
            drop(device);
            clean(&path);
        }
        // The same after a cut by qemu-img, which keeps the content.
        write(&path, &["write -P 1 0 1M"]);
        qemu_img(folder.path(), "resize -q --shrink disk.qcow2 100k");
        block::tools::resize(&path, MIB, &any()).unwrap();
        let device = block::open(&path, &block::OpenOptions::default()).unwrap();
        let mut bytes = vec![9; 900 << 10];
        device.read_at(&mut bytes, 100 * KIB).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn longer_backing_file_stays_hidden() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in ["compat=1.1", "cluster_size=4k", "compat=0.10"] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("base.raw"), vec![6; 3 * MIB as usize]).unwrap();
        qemu_img(
            folder,
            &format!("create -q -f qcow2 -o {options} -b base.raw -F raw ours.qcow2 1M"),
        );
        write(&folder.join("ours.qcow2"), &["write -P 1 500k 10k"]);
        if options == "compat=0.10" {
            // qemu-img cannot do it in version 2, which has no zero clusters.
            let path = folder.join("ours.qcow2");
            block::tools::resize(&path, 2 * MIB, &any()).unwrap();
            clean(&path);
            let device = block::open(&path, &block::OpenOptions::default()).unwrap();
            let mut bytes = vec![9; MIB as usize];
            device.read_at(&mut bytes, MIB).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            continue;
        }
        both(folder);
        resize_both(folder, 2 * MIB);
        resize_both(folder, 5 * MIB);
        resize_both(folder, 512 * KIB);
        resize_both(folder, 4 * MIB);
    }
}

#[test]
fn snapshots_keep_their_size() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    qemu_img(
        folder,
        "create -q -f qcow2 -o cluster_size=4k ours.qcow2 4M",
    );
    write(&folder.join("ours.qcow2"), &["write -P 1 0 4M"]);
    qemu_img(folder, "snapshot -c one ours.qcow2");
    let pair = both(folder);
    for len_bytes in [MIB + 512, 9 * MIB] {
        block::tools::resize(&pair[0], len_bytes, &any()).unwrap();
        qemu_img(
            folder,
            &format!("resize -q --shrink theirs.qcow2 {len_bytes}"),
        );
        clean(&pair[0]);
    }
    for path in &pair {
        qemu_img(folder, &format!("snapshot -a one {}", path.display()));
    }
    clean(&pair[0]);
    qemu_img(folder, "compare -s ours.qcow2 theirs.qcow2");
    qemu_img(folder, "create -q -f qcow2 -o compat=0.10 old.qcow2 4M");
    qemu_img(folder, "snapshot -c one old.qcow2");
    let error = block::tools::resize(folder.join("old.qcow2"), MIB * 8, &any()).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn new_part_is_preallocated() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    for preallocation in [
        Preallocation::Metadata,
        Preallocation::Falloc,
        Preallocation::Full,
    ] {
        for format in ImageFormat::ALL {
            let path = folder.path().join(format!("{preallocation:?}.{format}"));
            let device = block::create(&path, format, MIB).unwrap();
            device.write_at(&[7; 100_000], 900_000).unwrap();
            device.flush().unwrap();
            drop(device);
            let resized = block::tools::resize(
                &path,
                5 * MIB,
                &ResizeImage {
                    preallocation,
                    ..any()
                },
            );
            if format == ImageFormat::Raw && preallocation == Preallocation::Metadata {
                assert_eq!(resized.unwrap_err().errno(), folio::Errno::INVAL);
                continue;
            }
            resized.unwrap();
            let device = block::open(&path, &block::OpenOptions::default()).unwrap();
            let mut bytes = vec![9; 4 << 20];
            device.read_at(&mut bytes, MIB).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            drop(device);
            if format == ImageFormat::Qcow2 {
                clean(&path);
                let report =
                    block::tools::check(&path, None, Repair::Nothing, &mut |_| {}).unwrap();
                assert!(report.allocated_clusters >= 64, "{report:?}");
            } else {
                use std::os::unix::fs::MetadataExt;
                assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 4 * MIB);
            }
        }
    }
}

#[test]
fn shrink_needs_option_and_marks_bitmaps() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let folder = folder.path();
    qemu_img(folder, "create -q -f qcow2 disk.qcow2 4M");
    qemu_img(folder, "create -q -f raw disk.raw 4M");
    for name in ["disk.qcow2", "disk.raw"] {
        let path = folder.join(name);
        let before = std::fs::read(&path).unwrap();
        let error = block::tools::resize(&path, MIB, &ResizeImage::default()).unwrap_err();
        assert!(
            error.to_string().contains("would lose the content"),
            "{error}"
        );
        assert!(std::fs::read(&path).unwrap() == before);
        block::tools::resize(&path, MIB, &any()).unwrap();
        assert_eq!(
            block::open(&path, &block::OpenOptions::default())
                .unwrap()
                .len_bytes(),
            MIB
        );
    }
    // A bitmap for the old size is marked in-use.
    qemu_img(folder, "bitmap --add disk.qcow2 one");
    for len_bytes in [8 * MIB, 2 * MIB] {
        block::tools::resize(folder.join("disk.qcow2"), len_bytes, &any()).unwrap();
        clean(&folder.join("disk.qcow2"));
    }
    let info = run(
        "qemu-img",
        ["info", folder.join("disk.qcow2").to_str().unwrap()],
    );
    assert!(info.contains("in-use"), "{info}");
}

#[test]
fn preallocated_growth_reads_as_zeros() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.qcow2");
    for preallocation in [
        Preallocation::Metadata,
        Preallocation::Falloc,
        Preallocation::Full,
    ] {
        let options = ResizeImage {
            preallocation,
            ..ResizeImage::default()
        };
        // Free clusters in the file keep old bytes, which must not appear.
        qemu_img(folder.path(), "create -q -f qcow2 a.qcow2 4M");
        write(&path, &["write -P 7 0 4M", "discard 0 2M"]);
        let mut bytes = std::fs::read(&path).unwrap();
        for cluster in bytes.chunks_exact_mut(64 << 10).skip(5) {
            if cluster.iter().all(|byte| *byte == 0) {
                cluster.fill(6);
            }
        }
        std::fs::write(&path, bytes).unwrap();
        block::tools::resize(&path, 6 * MIB, &options).unwrap();
        write(&path, &["read -P 0 4M 2M", "read -P 7 2M 2M"]);
        clean(&path);
        // A backing file, shorter and longer than the old disk.
        qemu_img(folder.path(), "create -q -f qcow2 base.qcow2 3M");
        write(&folder.path().join("base.qcow2"), &["write -P 5 0 3M"]);
        for (compat, old) in [("1.1", 3), ("1.1", 1), ("0.10", 1)] {
            let line = "create -q -f qcow2 -b base.qcow2 -F qcow2";
            qemu_img(
                folder.path(),
                &format!("{line} -o compat={compat} a.qcow2 {old}M"),
            );
            block::tools::resize(&path, 5 * MIB, &options).unwrap();
            let zeros = format!("read -P 0 {old}M {}M", 5 - old);
            write(&path, &[&zeros, &format!("read -P 5 0 {old}M")]);
            clean(&path);
        }
    }
}
