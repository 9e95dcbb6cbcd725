//! Disks: warming reads the blocks that an ext4 has in use, of an image or a block device.

use super::{Bench, MIB, PAGE, forget, resident, undisturbed};
use crate::support::requires;
use crate::support::tools::{command, run, succeed};
use folio_pagecache::{ResidencyReport, residency_of};
use serde_json::Value;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const DISK_MIB: u64 = 64;
/// Offsets of the file system on a disk with partitions: of a GPT, and of an old MBR (sector 63).
const PARTITION: u64 = MIB;
const OLD_PARTITION: u64 = 63 * 512;

/// A raw image without holes: an ext4 of 50 MiB from `start` on, with a file of 5 MiB.
fn disk(bench: &Bench, name: &str, start: u64, block_size: u64) -> PathBuf {
    let image = bench.path("made");
    fs::write(&image, vec![0xa5; (DISK_MIB * MIB) as usize]).unwrap();
    let mut zeros = vec![0; start as usize];
    if start > 0 {
        File::options()
            .write(true)
            .open(&image)
            .unwrap()
            .write_all_at(&zeros, 0)
            .unwrap();
        let table = format!(
            "echo start={},size={} | sfdisk --quiet --label {} {}",
            start / 512,
            50 * MIB / 512,
            if start == PARTITION { "gpt" } else { "dos" },
            image.display()
        );
        run("sh", ["-c", &table]);
    }
    let mut make = command("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", &block_size.to_string()])
        .args(["-E", &format!("nodiscard,offset={start}")])
        .arg(&image);
    succeed(make.arg("50M"));
    zeros.resize(5 * MIB as usize, 0);
    zeros.fill(0x5a);
    fs::write(bench.path("file"), zeros).unwrap();
    succeed(
        command("debugfs")
            .args(["-w", "-R", "write file file"])
            .arg(at(&image, start))
            .current_dir(bench.folder.path()),
    );
    // mke2fs leaves holes.
    let dense = bench.path(name);
    let paths = [image.as_os_str(), dense.as_os_str()];
    run(
        "cp",
        std::iter::once("--sparse=never".as_ref()).chain(paths),
    );
    forget(&dense);
    dense
}

/// Names a file system inside an image for the tools of e2fsprogs.
fn at(image: &Path, start: u64) -> String {
    format!("{}?offset={start}", image.display())
}

/// Returns the free blocks as ranges of the image, by dumpe2fs.
fn free_ranges(image: &Path, start: u64, block_size: u64) -> Vec<Range<u64>> {
    let said = run("dumpe2fs", [at(image, start)]);
    let lists = said
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let runs = lists.flat_map(|list| list.split(", ")).filter_map(|run| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some(first.parse::<u64>().ok()?..last.parse::<u64>().ok()? + 1)
    });
    let on_disk = |block: u64| start + block * block_size;
    runs.map(|run| on_disk(run.start)..on_disk(run.end))
        .collect()
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns what is between the ranges, which are in order, up to `end`.
fn between(ranges: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start).chain([end]);
    let between = starts.zip(ends).map(|(start, end)| start..end);
    between.filter(|range| !range.is_empty()).collect()
}

/// Returns the pages that the ranges, which are in order, touch.
fn pages_of(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut pages: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let (start, end) = (range.start / PAGE * PAGE, range.end.next_multiple_of(PAGE));
        match pages.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => pages.push(start..end),
        }
    }
    pages
}

/// Returns the bytes of these ranges that are in memory.
fn resident_in(file: &File, ranges: &[Range<u64>]) -> u64 {
    let one = |range: &Range<u64>| match residency_of(file, range.clone()).unwrap() {
        ResidencyReport::Known(found) => found.resident_bytes,
        ResidencyReport::Unknown(reason) => panic!("{reason}"),
    };
    ranges.iter().map(one).sum()
}

/// Asserts that up to `end` all but the free blocks of an ext4 are in memory.
fn assert_warmed(report: &Value, file: &File, free: &[Range<u64>], end: u64) {
    let used_bytes = end - bytes(free);
    assert!(bytes(free) > 30 * MIB && used_bytes > 5 * MIB, "{free:?}");
    let used = pages_of(&between(free, end));
    assert_eq!(report["size_bytes"], bytes(&used), "{report}");
    let left_out = DISK_MIB * MIB - used_bytes;
    assert_eq!(report["unused_bytes"], left_out, "{report}");
    let free = between(&used, end);
    assert_eq!(resident_in(file, &free), 0, "free blocks: {report}");
    assert_eq!(resident_in(file, &used), bytes(&used), "{report}");
}

#[test]
fn raw_image_is_warmed_without_free_blocks() {
    undisturbed(|| {
        requires!(
            tool("mke2fs"),
            tool("debugfs"),
            tool("dumpe2fs"),
            tool("sfdisk"),
            tool("fincore")
        );
        // Blocks that are smaller than a page, and blocks that reach over two pages.
        let places = [
            (0, 4096),
            (PARTITION, 4096),
            (0, 1024),
            (OLD_PARTITION, 4096),
        ];
        for (start, block_size) in places {
            let bench = Bench::new();
            let image = disk(&bench, "disk.img", start, block_size);
            let free = free_ranges(&image, start, block_size);
            forget(&image);
            let report = bench.json(&["warm", "disk.img"]);
            let file = File::open(&image).unwrap();
            assert_warmed(&report, &file, &free, start + 50 * MIB);
            let said = bench.ok(&["warm", "--dry-run", "disk.img"]);
            assert!(said.contains(" left out: not in use"), "{said}");
            let report = bench.json(&["warm", "--whole", "disk.img"]);
            assert_eq!(report["size_bytes"], DISK_MIB * MIB, "{report}");
            assert_eq!(resident(&image), DISK_MIB * MIB);
        }
    });
}

#[test]
fn qcow2_is_warmed_without_free_blocks() {
    undisturbed(|| {
        requires!(
            tool("mke2fs"),
            tool("debugfs"),
            tool("dumpe2fs"),
            tool("qemu-img"),
            tool("fincore")
        );
        let bench = Bench::new();
        let image = disk(&bench, "disk.img", 0, 4096);
        let most = 50 * MIB - bytes(&free_ranges(&image, 0, 4096));
        let made = bench.path("disk.qcow2");
        let words = ["convert", "-O", "qcow2"].map(AsRef::as_ref);
        let paths = [image.as_os_str(), made.as_os_str()];
        run("qemu-img", words.into_iter().chain(paths));
        forget(&made);
        let report = bench.json(&["warm", "disk.qcow2"]);
        let used_bytes = report["size_bytes"].as_u64().unwrap();
        // Clusters of zeros have no place.
        assert!((5 * MIB..=most).contains(&used_bytes), "{report}");
        assert_eq!(report["unused_bytes"], DISK_MIB * MIB - used_bytes);
        let there = resident(&made);
        // The command also reads the tables.
        assert!(
            (used_bytes..used_bytes + 100 * PAGE).contains(&there),
            "{there}: {report}"
        );
        let report = bench.json(&["warm", "--whole", "disk.qcow2"]);
        let len = fs::metadata(&made).unwrap().len();
        let with_holes = |name: &str| report[name].as_u64().unwrap();
        assert_eq!(
            with_holes("size_bytes") + with_holes("unused_bytes"),
            len,
            "{report}"
        );
        assert_eq!(report["size_bytes"], resident(&made), "{report}");
        let (output, stderr) = bench.output(&["warm", "--whole", "disk.qcow2:/file"]);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
    });
}

/// A loop device, detached at drop.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Self {
        let words = ["--find", "--show"].map(AsRef::as_ref);
        let said = run("losetup", words.into_iter().chain([image.as_os_str()]));
        Self(said.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn block_device_is_warmed_without_free_blocks() {
    undisturbed(|| {
        requires!(
            root,
            loop_devices,
            tool("mke2fs"),
            tool("debugfs"),
            tool("dumpe2fs"),
            tool("fincore")
        );
        let bench = Bench::new();
        let image = disk(&bench, "disk.img", 0, 4096);
        let free = free_ranges(&image, 0, 4096);
        let device = Loop::new(&image);
        // As a virtual machine would have it: the kernel drops the pages at the last close.
        let file = File::open(&device.0).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        for order in ["inode", "physical"] {
            let report = bench.json(&["warm", "--order", order, &device.0]);
            assert_warmed(&report, &file, &free, 50 * MIB);
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let report = bench.json(&["warm", "--whole", &device.0]);
        assert_eq!(report["size_bytes"], DISK_MIB * MIB, "{report}");
        assert_ne!(resident_in(&file, &free), 0, "free blocks");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let inside = format!("{}:/file", device.0);
        let report = bench.json(&["warm", &inside]);
        assert_eq!(report["size_bytes"], 5 * MIB, "{report}");
        drop(file);
        for word in [&device.0, &inside] {
            let (output, stderr) = bench.output(&["warm", word]);
            assert!(output.status.success(), "{stderr}");
            assert!(
                stderr.contains("the kernel has dropped its pages"),
                "{stderr}"
            );
        }
    });
}

#[test]
fn damaged_file_system_is_warmed_as_a_whole() {
    undisturbed(|| {
        requires!(
            tool("mke2fs"),
            tool("debugfs"),
            tool("dumpe2fs"),
            tool("fincore")
        );
        let bench = Bench::new();
        let image = disk(&bench, "disk.img", 0, 4096);
        let said = run("dumpe2fs", [&image]);
        let place = said.split("Block bitmap at ").nth(1).unwrap();
        let place: u64 = place.split_whitespace().next().unwrap().parse().unwrap();
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 64], place * PAGE).unwrap();
        let sizes = [
            // The only group has a bitmap that is damaged; then the file system is cut short.
            (
                DISK_MIB * MIB,
                50 * MIB,
                "block bitmap: bad checksum; all blocks of 1 group",
            ),
            (
                20 * MIB,
                20 * MIB,
                "truncated?; all of its data counts as in use",
            ),
            (1200, 1200, "all of its data counts as in use"),
        ];
        for (len, size_bytes, words) in sizes {
            file.set_len(len).unwrap();
            let (output, stderr) = bench.output(&["warm", "--json", "disk.img"]);
            assert!(
                output.status.success() && stderr.contains(words),
                "{stderr}"
            );
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["size_bytes"], size_bytes, "{report}");
        }
    });
}
