//! Growing an ext4: results equal resize2fs and pass e2fsck, the kernel and Folio use the new
//! space, and a power cut at any write is harmless.

mod shrink;

use crate::support;
use crate::support::rounds;

use folio::block::tools::ResizeImage;
use folio::block::{self, Device, MemoryDevice, OverlayDevice, RawDevice};
use folio::ext4::{
    self, CheckFinding, CheckListener, CheckOptions, CheckPhase, FormatOptions, ResizeOptions,
    ResizeReport,
};
use folio::syscall::{Credentials, OpenFlags};
use folio::testing::{RecordDevice, Recorded};
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, KernelOptions};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::tools::{command, fsck, mke2fs, run, text};
use support::{Mounted, requires};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns name and content of the files that every file system has before it grows.
fn files() -> Vec<(String, Vec<u8>)> {
    let content = |file: usize| {
        (0..file * 3000)
            .map(|at| (at * 7 + file * 13) as u8)
            .collect()
    };
    (0..24)
        .map(|file| (format!("file-{file}"), content(file)))
        .collect()
}

/// Runs `work` in the file system on `device`, mounted by Folio as `/`.
fn mounted<T>(device: &Arc<dyn Device>, work: impl FnOnce(&folio::Process) -> T) -> T {
    let options = KernelOptions {
        cache_bytes: 16 << 20,
        background_writeback: false,
        ..Default::default()
    };
    let kernel = Kernel::new(options);
    kernel
        .mount_ext4(device.clone(), "/", &MountOptions::default())
        .unwrap();
    let done = work(&kernel.process(Credentials::root()));
    kernel.unmount("/").unwrap();
    done
}

fn write(process: &folio::Process, path: &str, bytes: &[u8]) {
    let fd = process
        .open(path, OpenFlags::CREAT | OpenFlags::WRONLY, 0o644)
        .unwrap();
    let mut done = 0;
    while done < bytes.len() {
        done += process.write(fd, &bytes[done..]).unwrap();
    }
    process.close(fd).unwrap();
}

fn fill(device: &Arc<dyn Device>) {
    mounted(device, |process| {
        files()
            .iter()
            .for_each(|(name, bytes)| write(process, &format!("/{name}"), bytes));
    });
}

fn check_contents(device: &Arc<dyn Device>) {
    mounted(device, |process| {
        for (name, want) in files() {
            let fd = process
                .open(format!("/{name}"), OpenFlags::empty(), 0)
                .unwrap();
            let mut bytes = vec![0; want.len() + 1];
            let mut done = 0;
            loop {
                match process.read(fd, &mut bytes[done..]).unwrap() {
                    0 => break,
                    count => done += count,
                }
            }
            assert!(bytes[..done] == want[..], "{name} changed");
            process.close(fd).unwrap();
        }
    });
}

struct FindingTexts(Vec<String>);

impl CheckListener for FindingTexts {
    fn finding(&mut self, finding: &CheckFinding) {
        self.0.push(finding.to_string());
    }

    fn progress(&mut self, _: CheckPhase, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Asserts that `folio check` finds nothing.
fn check_clean(device: &Arc<dyn Device>) {
    let mut findings = FindingTexts(Vec::new());
    let report = ext4::check(device, &CheckOptions::default(), &mut findings).unwrap();
    assert!(report.is_clean(), "{:?}", findings.0);
}

fn open(image: &Path) -> Arc<dyn Device> {
    Arc::new(RawDevice::open(image, false).unwrap())
}

fn resize(device: &Arc<dyn Device>) -> ResizeReport {
    ext4::resize(device, &ResizeOptions::default(), &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// Grows image and file system.
fn grow(image: &Path, len_bytes: u64) -> ResizeReport {
    block::tools::resize(image, len_bytes, &ResizeImage::default()).unwrap();
    let device = open(image);
    let report = resize(&device);
    check_contents(&device);
    check_clean(&device);
    drop(device);
    fsck(image);
    report
}

/// Returns the superblock's counts and features from dumpe2fs.
fn totals(image: &Path) -> Vec<String> {
    let wanted = [
        "Inode count:",
        "Block count:",
        "Reserved block count:",
        "Free blocks:",
        "Free inodes:",
        "Reserved GDT blocks:",
        "Blocks per group:",
        "Inodes per group:",
        "Filesystem features:",
    ];
    let text = run("dumpe2fs", [Path::new("-h"), image]);
    let kept = text
        .lines()
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    kept.map(str::to_owned).collect()
}

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(TempDir::with_prefix("folio-resize-").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Options of mke2fs, the initial size, and the sizes to grow to, in MiB.
const SETS: [(&[&str], u64, &[u64]); 13] = [
    // Within the last group, by one group, by many, over the end of a flex group.
    (&["-b", "1024"], 12, &[13, 16, 24, 25, 150, 700]),
    (&["-b", "4096"], 100, &[101, 128, 256, 300, 5000]),
    (&["-b", "2048"], 40, &[41, 64, 700]),
    (
        &["-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
        100,
        &[110, 3000],
    ),
    (&["-b", "4096", "-O", "^resize_inode"], 100, &[300, 5000]),
    (&["-b", "1024", "-O", "^has_journal"], 20, &[30, 300]),
    (&["-b", "1024", "-O", "^flex_bg"], 20, &[30, 300]),
    (&["-b", "4096", "-O", "^64bit"], 100, &[300, 5000]),
    (
        &["-b", "1024", "-O", "^metadata_csum,^uninit_bg"],
        20,
        &[30, 300],
    ),
    (
        &["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
        20,
        &[30, 300],
    ),
    (
        &["-b", "1024", "-O", "meta_bg,^resize_inode"],
        20,
        &[30, 300, 1000],
    ),
    // A single step, because resize2fs moves the second backup to the new last group and Folio does
    // not.
    (
        &["-b", "1024", "-O", "sparse_super2,^resize_inode"],
        20,
        &[30],
    ),
    (&["-b", "1024", "-I", "128", "-G", "4"], 20, &[45, 300]),
];

#[test]
fn grown_images_equal_resize2fs_and_keep_files() {
    requires!(
        tool("mke2fs"),
        tool("e2fsck"),
        tool("dumpe2fs"),
        tool("resize2fs")
    );
    let scratch = Scratch::new();
    for (number, (options, start, sizes)) in SETS.into_iter().enumerate() {
        let image = scratch.path(&format!("{number}.img"));
        mke2fs(&image, &format!("{start}M"), options);
        fill(&open(&image));
        for size in sizes {
            let theirs = scratch.path("theirs.img");
            run(
                "cp",
                [
                    "--sparse=always".as_ref(),
                    image.as_os_str(),
                    theirs.as_os_str(),
                ],
            );
            // resize2fs requires a check that is newer than the last mount.
            run("e2fsck", ["-fy".as_ref(), theirs.as_os_str()]);
            run(
                "resize2fs",
                [theirs.as_os_str(), format!("{size}M").as_ref()],
            );
            let report = grow(&image, size * MIB);
            assert_eq!(totals(&image), totals(&theirs), "{options:?} to {size} MiB");
            let device = open(&image);
            let free = report.new.free_blocks * u64::from(report.block_size);
            mounted(&device, |process| {
                // More than fits in the old groups, up to a limit.
                write(
                    process,
                    "/new",
                    &vec![0xA7; (free * 9 / 10).min(40 * MIB) as usize],
                );
                process.unlink("/new").unwrap();
            });
            drop(device);
            fsck(&image);
        }
    }
}

#[test]
fn many_small_steps_keep_the_image_clean() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    ext4::format(
        &RawDevice::create(&image, 8 * MIB).unwrap(),
        &FormatOptions::default(),
    )
    .unwrap();
    fill(&open(&image));
    let mut len_bytes = 8 * MIB;
    for step in 0..40 {
        len_bytes += 4096 * (step * step * 3 % 700 + 1);
        let report = grow(&image, len_bytes);
        assert!(report.new.blocks * 1024 <= len_bytes && report.new.blocks >= report.old.blocks);
    }
}

/// The reserved descriptor blocks suffice up to 32 GiB; larger sizes need meta_bg.
#[test]
fn growth_beyond_the_reserve_uses_meta_bg() {
    requires!(tool("e2fsck"), tool("dumpe2fs"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    ext4::format(
        &RawDevice::create(&image, 8 * MIB).unwrap(),
        &FormatOptions::default(),
    )
    .unwrap();
    fill(&open(&image));
    let report = grow(&image, 64 * GIB);
    assert_eq!((report.old.groups, report.new.groups), (1, 8192));
    assert_eq!(report.new.blocks, 64 << 20);
    let features = totals(&image)
        .into_iter()
        .find(|line| line.starts_with("Filesystem features"))
        .unwrap();
    assert!(
        features.contains("meta_bg") && !features.contains("resize_inode"),
        "{features}"
    );
}

#[test]
fn new_space_is_usable_by_the_kernel() {
    requires!(root, loop_devices, tool("e2fsck"), tool("mke2fs"));
    let scratch = Scratch::new();
    let sets: [(&[&str], u64, u64); 6] = [
        (&["-b", "1024"], 12, 200),
        (&["-b", "4096"], 100, 700),
        (&["-b", "1024", "-O", "^metadata_csum,uninit_bg"], 12, 100),
        (&["-b", "1024", "-O", "meta_bg,^resize_inode"], 12, 200),
        (&["-t", "ext2", "-b", "1024"], 12, 200),
        (&["-t", "ext3", "-b", "4096"], 100, 700),
    ];
    for (number, (options, start, size)) in sets.into_iter().enumerate() {
        let image = scratch.path(&format!("{number}.img"));
        mke2fs(&image, &format!("{start}M"), options);
        fill(&open(&image));
        grow(&image, size * MIB);
        let kernel = Mounted::new(&image, "rw");
        for (name, want) in files() {
            assert_eq!(std::fs::read(kernel.path().join(&name)).unwrap(), want);
        }
        // Write until the file system is full.
        let chunk = vec![0x3C; 4 << 20];
        let full = (0..)
            .find(|at| std::fs::write(kernel.path().join(format!("new-{at}")), &chunk).is_err());
        assert!(
            full.unwrap_or(0) as u64 * 4 > size * 8 / 10,
            "{options:?}: full after {full:?} files"
        );
        kernel.unmount();
        fsck(&image);
        check_contents(&open(&image));
    }
}

#[test]
fn rejected_resizes_change_nothing() {
    requires!(tool("mke2fs"));
    let scratch = Scratch::new();
    let refuse = |options: &[&str], size: &str, len_bytes: Option<u64>| {
        let image = scratch.path("disk.img");
        let _ = std::fs::remove_file(&image);
        mke2fs(&image, size, options);
        let before = std::fs::read(&image).unwrap();
        let mut options = ResizeOptions::default();
        options.len_bytes = len_bytes;
        let error = ext4::resize(&open(&image), &options, &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert!(before == std::fs::read(&image).unwrap(), "{error}");
        error.to_string()
    };
    assert!(refuse(&["-O", "bigalloc"], "40M", None).contains("bigalloc"));
    assert!(refuse(&["-O", "quota"], "40M", None).contains("quota"));
    assert!(refuse(&[], "40M", Some(MIB)).contains("needs at least"));
    assert!(refuse(&[], "40M", Some(80 * MIB)).contains("the device has 41943040"));
}

#[test]
fn interrupted_resize_can_be_continued() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    ext4::format(
        &RawDevice::create(&image, 8 * MIB).unwrap(),
        &FormatOptions::default(),
    )
    .unwrap();
    fill(&open(&image));
    block::tools::resize(&image, 20 * GIB, &ResizeImage::default()).unwrap();
    let device = open(&image);
    let mut reported = 0;
    let error = ext4::resize(&device, &ResizeOptions::default(), &mut |done, _| {
        reported = done;
        ControlFlow::Break(())
    });
    assert_eq!(error.unwrap_err().errno(), Errno::INTR);
    check_clean(&device);
    let report = resize(&device);
    assert_eq!((report.old.blocks, report.new.blocks), (reported, 20 << 20));
    assert!(reported > 8192);
    drop(device);
    fsck(&image);
}

/// Returns the device after a power cut: all writes of the record up to the last flush before
/// `cut`, and of the later writes those for which `is_kept` is true.
fn cut(
    before: &Arc<dyn Device>,
    record: &[Recorded],
    cut: usize,
    is_kept: impl Fn(usize) -> bool,
) -> Arc<dyn Device> {
    let device = Arc::new(OverlayDevice::new(before.clone()));
    let flushed = record[..cut]
        .iter()
        .rposition(|entry| *entry == Recorded::Flush)
        .unwrap_or(0);
    for (index, entry) in record[..cut].iter().enumerate() {
        if index < flushed || is_kept(index) {
            entry.replay(&*device).unwrap();
        }
    }
    device
}

fn copy_to_file(device: &dyn Device, image: &Path) {
    let mut bytes = vec![0; device.len_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    std::fs::write(image, bytes).unwrap();
}

/// Cuts the power after each write of a growth, with all or some of the unflushed writes.
/// `may_repair` says whether e2fsck may have to repair the image.
fn cut_everywhere(features: &[&str], start: u64, end: u64, may_repair: bool) {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    mke2fs(
        &image,
        &format!("{start}M"),
        &[&["-b", "1024", "-G", "2"], features].concat(),
    );
    fill(&open(&image));
    let memory = Arc::new(MemoryDevice::new(end * MIB));
    memory.write_at(&std::fs::read(&image).unwrap(), 0).unwrap();
    // Old contents instead of zeros past the end.
    memory
        .write_at(&vec![0xE5; ((end - start) * MIB) as usize], start * MIB)
        .unwrap();
    let before: Arc<dyn Device> = memory;
    let recorder = Arc::new(RecordDevice::new(Arc::new(OverlayDevice::new(
        before.clone(),
    ))));
    let device: Arc<dyn Device> = recorder.clone();
    let done = resize(&device);
    let record = recorder.recorded();
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for at in (0..=record.len()).step_by(rounds::step(3)) {
        for lossy in [false, true] {
            random = random
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            let bits = random;
            let left = cut(&before, &record, at, |index| {
                !lossy || bits >> (index % 64) & 1 == 1
            });
            copy_to_file(&*left, &image);
            let output = command("e2fsck").arg("-fy").arg(&image).output().unwrap();
            let fsck_text = text(&output);
            let is_repaired = fsck_text.contains("? yes");
            assert!(
                may_repair || !is_repaired,
                "{features:?}, cut after {at} of {}, lossy {lossy}:\n{fsck_text}",
                record.len()
            );
            assert!(
                output.status.code().is_some_and(|code| code <= 1),
                "{fsck_text}"
            );
            fsck(&image);
            check_contents(&open(&image));
            if !is_repaired {
                // Here Folio replays the journal, not e2fsck.
                check_contents(&left);
                check_clean(&left);
                let blocks = resize(&left).old.blocks;
                *sizes.entry(blocks).or_default() += 1;
                check_clean(&left);
                copy_to_file(&*left, &image);
                fsck(&image);
            }
            assert_eq!(resize(&open(&image)).new.blocks, done.new.blocks);
            fsck(&image);
        }
    }
    assert!(
        sizes.contains_key(&done.old.blocks) && sizes.contains_key(&done.new.blocks),
        "{sizes:?}"
    );
}

#[test]
fn power_cut_at_any_write_is_replayed() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    cut_everywhere(&[], 12, 37, false);
}

#[test]
fn power_cut_with_meta_bg_is_replayed() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    // No block is reserved for descriptors, and 16 groups of 2 MiB fill the first one.
    cut_everywhere(&["-g", "2048", "-O", "^resize_inode"], 30, 40, false);
}

#[test]
fn power_cut_without_a_journal_is_repairable() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    cut_everywhere(&["-O", "^has_journal"], 12, 37, true);
}
