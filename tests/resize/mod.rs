//! Growing an ext4: e2fsck and resize2fs agree, the kernel and Folio use the new space, and the
//! power may go at any moment.

use crate::support;

use folio::block::{
    self, Device, MemoryDevice, OverlayDevice, RawDevice, RecordDevice, Recorded, ResizeImage,
};
use folio::kernel::{
    CheckFinding, CheckListener, CheckOptions, CheckPhase, FormatOptions, ResizeOptions,
    ResizeReport, check_ext4, format_ext4, resize_ext4,
};
use folio::syscall::{Credentials, OpenFlags};
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

/// Files that are in every file system before it grows, by name and content.
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

/// Works in the file system on `device`, mounted by Folio as `/`.
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

struct Quiet(Vec<String>);

impl CheckListener for Quiet {
    fn finding(&mut self, finding: &CheckFinding) {
        self.0.push(finding.to_string());
    }

    fn progress(&mut self, _: CheckPhase, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// `folio check` finds nothing.
fn check_clean(device: &Arc<dyn Device>) {
    let mut told = Quiet(Vec::new());
    let report = check_ext4(device, &CheckOptions::default(), &mut told).unwrap();
    assert!(report.is_clean(), "{:?}", told.0);
}

fn open(image: &Path) -> Arc<dyn Device> {
    Arc::new(RawDevice::open(image, false).unwrap())
}

fn resize(device: &Arc<dyn Device>) -> ResizeReport {
    resize_ext4(device, &ResizeOptions::default(), &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// Grows image and file system.
fn grow(image: &Path, len_bytes: u64) -> ResizeReport {
    block::resize(image, len_bytes, &ResizeImage::default()).unwrap();
    let device = open(image);
    let report = resize(&device);
    check_contents(&device);
    check_clean(&device);
    drop(device);
    fsck(image);
    report
}

/// What dumpe2fs says of the superblock, without what follows from when and how it was written.
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

/// Options of mke2fs, the size it begins with, and the sizes it grows to, in MiB.
const SETS: [(&[&str], u64, &[u64]); 13] = [
    // Within the last group, by a group, by many, over a flex group's end.
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
    // Once: resize2fs moves the second copy of the superblock to the new last group, Folio leaves
    // it.
    (
        &["-b", "1024", "-O", "sparse_super2,^resize_inode"],
        20,
        &[30],
    ),
    (&["-b", "1024", "-I", "128", "-G", "4"], 20, &[45, 300]),
];

#[test]
fn totals_are_as_resize2fs_has_them_and_nothing_is_lost() {
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
            // resize2fs asks for a check that is newer than the last mount.
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
                // So much that it cannot all lie in the old groups, up to a limit.
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
fn many_small_steps() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    format_ext4(
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

/// The blocks kept for descriptors end at 32 GiB; what comes then needs meta_bg.
#[test]
fn from_8_mib_to_64_gib() {
    requires!(tool("e2fsck"), tool("dumpe2fs"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    format_ext4(
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
fn the_kernel_uses_the_new_space() {
    requires!(root, loop_devices, tool("e2fsck"), tool("mke2fs"));
    let scratch = Scratch::new();
    let sets: [(&[&str], u64, u64); 4] = [
        (&["-b", "1024"], 12, 200),
        (&["-b", "4096"], 100, 700),
        (&["-b", "1024", "-O", "^metadata_csum,uninit_bg"], 12, 100),
        (&["-b", "1024", "-O", "meta_bg,^resize_inode"], 12, 200),
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
        // Until it is full.
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
fn refusals_say_why_and_change_nothing() {
    requires!(tool("mke2fs"));
    let scratch = Scratch::new();
    let refuse = |options: &[&str], size: &str, len_bytes: Option<u64>| {
        let image = scratch.path("disk.img");
        let _ = std::fs::remove_file(&image);
        mke2fs(&image, size, options);
        let before = std::fs::read(&image).unwrap();
        let options = ResizeOptions {
            len_bytes,
            ..ResizeOptions::default()
        };
        let error = resize_ext4(&open(&image), &options, &mut |_, _| {
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert!(before == std::fs::read(&image).unwrap(), "{error}");
        error.to_string()
    };
    assert!(refuse(&["-O", "bigalloc"], "40M", None).contains("bigalloc"));
    assert!(refuse(&["-O", "quota"], "40M", None).contains("quota"));
    assert!(refuse(&[], "40M", Some(20 * MIB)).contains("cannot shrink"));
    assert!(refuse(&[], "40M", Some(80 * MIB)).contains("the device has 41943040"));
}

#[test]
fn it_can_be_ended_between_two_steps() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    format_ext4(
        &RawDevice::create(&image, 8 * MIB).unwrap(),
        &FormatOptions::default(),
    )
    .unwrap();
    fill(&open(&image));
    block::resize(&image, 20 * GIB, &ResizeImage::default()).unwrap();
    let device = open(&image);
    let mut told = 0;
    let error = resize_ext4(&device, &ResizeOptions::default(), &mut |done, _| {
        told = done;
        ControlFlow::Break(())
    });
    assert_eq!(error.unwrap_err().errno(), Errno::INTR);
    check_clean(&device);
    let report = resize(&device);
    assert_eq!((report.old.blocks, report.new.blocks), (told, 20 << 20));
    assert!(told > 8192);
    drop(device);
    fsck(&image);
}

/// The device after a power cut: all of the record up to the last flush before `cut`, and of what
/// follows it up to `cut` what `is_kept` says.
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

/// Cuts the power after every write of a growth, with all or some of the last writes there. `mends`
/// is whether e2fsck may find something before that is mended.
fn cut_everywhere(features: &[&str], start: u64, end: u64, mends: bool) {
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
    // What was there before: no zeros to rely on.
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
    for at in 0..=record.len() {
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
            let said = text(&output);
            let is_mended = said.contains("? yes");
            assert!(
                mends || !is_mended,
                "{features:?}, cut after {at} of {}, lossy {lossy}:\n{said}",
                record.len()
            );
            assert!(output.status.code().is_some_and(|code| code <= 1), "{said}");
            fsck(&image);
            check_contents(&open(&image));
            if !is_mended {
                // Folio replays the journal by itself.
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
fn a_power_cut_at_any_write() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    cut_everywhere(&[], 12, 37, false);
}

#[test]
fn a_power_cut_at_any_write_of_a_file_system_that_needs_meta_bg() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    // No block is kept for more descriptors, and the first one is full with 16 groups of 2 MiB.
    cut_everywhere(&["-g", "2048", "-O", "^resize_inode"], 30, 40, false);
}

#[test]
fn a_power_cut_at_any_write_without_a_journal() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    cut_everywhere(&["-O", "^has_journal"], 12, 37, true);
}
