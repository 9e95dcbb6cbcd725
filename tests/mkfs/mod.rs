//! mkfs: Folio's images equal those of mke2fs, pass e2fsck, and are writable by the kernel.

use crate::support;

use folio::base::{Clock, Owner, Timespec};
use folio::block::{Allocation, Device, MemoryDevice, RawDevice};
use folio::ext4::{self, FormatOptions, FormatReport};
use std::path::{Path, PathBuf};
use support::tools::{command, fsck, run, succeed};
use support::{Mounted, requires};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const UUID: [u8; 16] = [0x11; 16];
const UUID_TEXT: &str = "11111111-1111-1111-1111-111111111111";
const NOW_SECS: i64 = 1_700_000_000;

/// Returns options that give reproducible images.
fn fixed() -> FormatOptions {
    let clock = Clock::Fixed(Timespec::new(NOW_SECS, 0));
    FormatOptions {
        uuid: Some(UUID),
        clock,
        ..FormatOptions::default()
    }
}

fn format_file(path: &Path, len_bytes: u64, options: &FormatOptions) -> FormatReport {
    let device = RawDevice::create(path, len_bytes).unwrap();
    ext4::format(&device, options).unwrap_or_else(|e| panic!("{len_bytes} bytes, {options:?}: {e}"))
}

/// Runs mke2fs with upstream's default features and with the hash seed and clock of `ours`.
fn mke2fs_like(
    ours: &Path,
    theirs: &Path,
    len_bytes: u64,
    options: &FormatOptions,
    arguments: &[&str],
) {
    let header = run("dumpe2fs", [Path::new("-h"), ours]);
    let seed = header
        .lines()
        .find_map(|l| l.strip_prefix("Directory Hash Seed:"))
        .unwrap()
        .trim();
    std::fs::File::create_new(theirs)
        .unwrap()
        .set_len(len_bytes)
        .unwrap();
    let Owner { uid, gid } = options.root_owner;
    let extended =
        format!("lazy_itable_init=0,lazy_journal_init=0,hash_seed={seed},root_owner={uid}:{gid}");
    let mut mke2fs = command("mke2fs");
    mke2fs.env("E2FSPROGS_FAKE_TIME", NOW_SECS.to_string());
    mke2fs.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-O",
        "metadata_csum_seed,orphan_file",
        "-U",
        UUID_TEXT,
    ]);
    mke2fs.args(["-E", &extended]).args(arguments);
    if let Some(block_size) = options.block_size {
        mke2fs.args(["-b", &block_size.to_string()]);
    }
    succeed(mke2fs.arg(theirs));
}

/// Returns the offsets of pages that differ; holes equal zeros.
fn differing_pages(a: &RawDevice, b: &RawDevice) -> Vec<u64> {
    const PAGE: u64 = 4 * KIB;
    assert_eq!(a.len_bytes(), b.len_bytes());
    let (mut at, mut found) = (0, Vec::new());
    let (mut page_a, mut page_b) = ([0; PAGE as usize], [0; PAGE as usize]);
    while at < a.len_bytes() {
        let left = a.len_bytes() - at;
        let ((kind_a, len_a), (kind_b, len_b)) = (
            a.allocation(at, left).unwrap(),
            b.allocation(at, left).unwrap(),
        );
        if kind_a != Allocation::Data && kind_b != Allocation::Data {
            at += (len_a.min(len_b) / PAGE * PAGE).max(PAGE);
            continue;
        }
        let len = left.min(PAGE) as usize;
        a.read_at(&mut page_a[..len], at).unwrap();
        b.read_at(&mut page_b[..len], at).unwrap();
        for superblock in [0, 1024] {
            clear_kbytes_written(&mut page_a[superblock..][..1024]);
            clear_kbytes_written(&mut page_b[superblock..][..1024]);
        }
        if page_a[..len] != page_b[..len] {
            found.push(at);
        }
        at += PAGE;
    }
    found
}

/// Clears `s_kbytes_written` and the checksum, which depend on how a superblock was written.
fn clear_kbytes_written(superblock: &mut [u8]) {
    if superblock[0x38..0x3A] == [0x53, 0xEF] {
        superblock[0x178..0x180].fill(0);
        superblock[0x3FC..].fill(0);
    }
}

struct Scratch {
    folder: TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            folder: TempDir::with_prefix("folio-mkfs-").unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let _ = std::fs::remove_file(&path);
        path
    }
}

/// Formats with Folio and with mke2fs; returns a description of differences.
fn difference_to_mke2fs(
    len_bytes: u64,
    options: &FormatOptions,
    arguments: &[&str],
) -> Option<String> {
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.path("ours.img"), scratch.path("theirs.img"));
    let report = format_file(&ours, len_bytes, options);
    fsck(&ours);
    // A flex group of a single group: mke2fs leaves holes between bitmaps and inode table.
    if report.group_count % 16 == 1 {
        return None;
    }
    mke2fs_like(&ours, &theirs, len_bytes, options, arguments);
    let pages = {
        let device = |path: &Path| RawDevice::open(path, true).unwrap();
        differing_pages(&device(&ours), &device(&theirs))
    };
    if pages.is_empty() {
        return None;
    }
    let dump = |path: &Path| run("dumpe2fs", [path]);
    let (dump_ours, dump_theirs) = (dump(&ours), dump(&theirs));
    let lines = dump_ours
        .lines()
        .zip(dump_theirs.lines())
        .filter(|(a, b)| a != b)
        .take(12);
    let lines: Vec<String> = lines.map(|(a, b)| format!("-{a}\n+{b}")).collect();
    let (count, first) = (pages.len(), &pages[..pages.len().min(8)]);
    let lines = lines.join("\n");
    Some(format!(
        "{len_bytes} bytes, {options:?} {arguments:?}: {count} pages differ, at {first:x?}\n{lines}\n"
    ))
}

/// The matrix: size in bytes, block size (0: the default).
const MATRIX: [(u64, u32); 24] = [
    (MIB, 0),
    (2 * MIB, 0),
    (8 * MIB, 0),
    (8 * MIB, 2048),
    (8 * MIB, 4096),
    (60 * MIB, 0),
    (60 * MIB, 2048),
    (60 * MIB, 4096),
    (256 * MIB, 0),
    (256 * MIB, 2048),
    (256 * MIB, 4096),
    (511 * MIB, 0),
    (511 * MIB, 4096),
    (512 * MIB, 0),
    (512 * MIB, 1024),
    (GIB, 0),
    (GIB, 1024),
    (2 * GIB, 0),
    (2 * GIB, 1024),
    (2 * GIB, 2048),
    (2800 * MIB, 0),
    (10 * GIB, 0),
    (10 * GIB, 1024),
    (20 * GIB, 2048),
];

fn with_block_size(block_size: u32) -> FormatOptions {
    FormatOptions {
        block_size: Some(block_size).filter(|size| *size != 0),
        ..fixed()
    }
}

#[test]
fn new_images_pass_e2fsck() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    for (len_bytes, block_size) in
        MATRIX
            .into_iter()
            .chain([(100 * GIB, 0), (100 * GIB, 1024), (TIB, 0)])
    {
        let image = scratch.path("disk.img");
        format_file(&image, len_bytes, &with_block_size(block_size));
        fsck(&image);
    }
}

#[test]
fn new_images_equal_mke2fs() {
    requires!(tool("mke2fs"), tool("dumpe2fs"), tool("e2fsck"));
    let differences: Vec<String> = MATRIX
        .into_iter()
        .filter_map(|(len_bytes, block_size)| {
            difference_to_mke2fs(len_bytes, &with_block_size(block_size), &[])
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Random sizes: omitted last groups, odd inode counts, short flex groups.
#[test]
fn new_images_of_random_sizes_equal_mke2fs() {
    requires!(tool("mke2fs"), tool("dumpe2fs"), tool("e2fsck"));
    let mut random = 0x853C_49E6_748F_EA9B_u64;
    let mut next = |below: u64| {
        // xorshift64
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut differences = Vec::new();
    for _ in 0..60 {
        let pages = ((1 + next(4096)) << next(10)) + 256;
        let len_bytes = pages * 4 * KIB;
        let mut options = with_block_size([0, 1024, 2048, 4096][next(4) as usize]);
        let mut arguments = Vec::new();
        match next(4) {
            0 => {
                let count = next(len_bytes / (8 * KIB)) + 12;
                options.inode_count = Some(count as u32);
                arguments = vec!["-N".to_owned(), count.to_string()];
            }
            1 => {
                let ratio = 4096 << next(6);
                options.inode_ratio = Some(ratio as u32);
                arguments = vec!["-i".to_owned(), ratio.to_string()];
            }
            _ => {}
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        differences.extend(difference_to_mke2fs(len_bytes, &options, &arguments));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn options_have_the_effect_of_mke2fs() {
    requires!(tool("mke2fs"), tool("dumpe2fs"), tool("e2fsck"));
    let options = FormatOptions {
        label: "sixteen bytes ok".to_owned(),
        root_owner: Owner::new(70_000, 80_000),
        reserved_percent: 1.5,
        ..fixed()
    };
    let arguments = ["-L", "sixteen bytes ok", "-m", "1.5"];
    assert_eq!(difference_to_mke2fs(300 * MIB, &options, &arguments), None);
}

/// Returns the superblock's fields from dumpe2fs, without those that depend on time and writes.
fn header(image: &Path) -> Vec<String> {
    let free = ["Lifetime writes:", "Checksum:"];
    let text = run("dumpe2fs", [Path::new("-h"), image]);
    let kept = text
        .lines()
        .filter(|line| !free.iter().any(|name| line.starts_with(name)));
    kept.map(str::to_owned).collect()
}

/// Sizes at which bytes may differ: a flex group of one group, journals of many extents.
#[test]
fn superblock_fields_equal_mke2fs() {
    requires!(tool("mke2fs"), tool("dumpe2fs"));
    let scratch = Scratch::new();
    let sizes = [
        (MIB, 0),
        (2 * MIB, 0),
        (8 * MIB, 0),
        (8 * MIB, 4096),
        (100 * MIB, 4096),
        (100 * GIB, 1024),
        (TIB, 0),
    ];
    for (len_bytes, block_size) in sizes {
        let (ours, theirs) = (scratch.path("ours.img"), scratch.path("theirs.img"));
        let options = with_block_size(block_size);
        format_file(&ours, len_bytes, &options);
        mke2fs_like(&ours, &theirs, len_bytes, &options, &[]);
        assert_eq!(header(&ours), header(&theirs), "{len_bytes} bytes");
    }
}

#[test]
fn format_of_a_dirty_device_is_reproducible() {
    let read = |device: &MemoryDevice| {
        let mut bytes = vec![0; 40 * MIB as usize];
        device.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let clean = MemoryDevice::new(40 * MIB);
    let report = ext4::format(&clean, &fixed()).unwrap();
    let again = MemoryDevice::new(40 * MIB);
    assert_eq!(ext4::format(&again, &fixed()).unwrap(), report);
    let (want, got) = (read(&clean), read(&again));
    assert!(want == got, "two runs differ");
    let dirty = MemoryDevice::new(40 * MIB);
    dirty.write_at(&vec![0xA5; 40 * MIB as usize], 0).unwrap();
    ext4::format(&dirty, &fixed()).unwrap();
    let got = read(&dirty);
    // Free blocks keep their old bytes; all other blocks are as on a clean device.
    let differing = want
        .chunks(1024)
        .zip(got.chunks(1024))
        .filter(|(want, got)| want != got);
    let mut free = 0;
    for (want, got) in differing {
        assert!(want.iter().all(|byte| *byte == 0) && got.iter().all(|byte| *byte == 0xA5));
        free += 1;
    }
    assert_eq!(free, report.free_block_count);
}

#[test]
fn new_uuids_are_unique() {
    let format = || ext4::format(&MemoryDevice::new(8 * MIB), &FormatOptions::default()).unwrap();
    assert_ne!(format().uuid, format().uuid);
}

#[test]
fn new_images_are_writable_by_the_kernel() {
    requires!(root, loop_devices, linux(5, 15), tool("e2fsck"));
    let scratch = Scratch::new();
    for (len_bytes, block_size) in [
        (8 * MIB, 0),
        (256 * MIB, 0),
        (256 * MIB, 4096),
        (2 * GIB, 0),
        (100 * GIB, 0),
    ] {
        let image = scratch.path("disk.img");
        format_file(&image, len_bytes, &with_block_size(block_size));
        let mounted = Mounted::new(&image, "rw");
        for folder in 0..20 {
            let folder = mounted.path().join(format!("folder {folder}"));
            std::fs::create_dir(&folder).unwrap();
            for file in 0..20 {
                std::fs::write(
                    folder.join(format!("file {file}")),
                    vec![file; 500 * file as usize],
                )
                .unwrap();
            }
        }
        std::fs::remove_dir_all(mounted.path().join("folder 7")).unwrap();
        mounted.unmount();
        fsck(&image);
        let mounted = Mounted::new(&image, "ro");
        assert_eq!(
            std::fs::read(mounted.path().join("folder 3/file 19")).unwrap(),
            [19; 9500]
        );
        mounted.unmount();
    }
}

#[test]
fn resize2fs_grows_new_images() {
    requires!(tool("e2fsck"), tool("resize2fs"), tool("dumpe2fs"));
    let scratch = Scratch::new();
    for (len_bytes, grown) in [(8 * MIB, "2000M"), (256 * MIB, "3G"), (2 * GIB, "300G")] {
        let image = scratch.path("disk.img");
        format_file(&image, len_bytes, &fixed());
        run("resize2fs", [image.as_os_str(), grown.as_ref()]);
        fsck(&image);
    }
}

/// Returns whether the process has a capability, by its number in capabilities(7).
fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .unwrap()
        .trim();
    u64::from_str_radix(effective, 16).unwrap() >> number & 1 == 1
}

/// The kernel grows a mounted file system into the reserved blocks of the resize inode.
#[test]
fn the_kernel_grows_a_mounted_new_image() {
    requires!(
        root,
        loop_devices,
        linux(5, 15),
        tool("e2fsck"),
        tool("resize2fs"),
        tool("findmnt")
    );
    if !has_capability(24) {
        return support::require::report_skip("needs CAP_SYS_RESOURCE");
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    format_file(&image, 512 * MIB, &fixed());
    std::fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(20 * GIB)
        .unwrap();
    let mounted = Mounted::new(&image, "rw");
    let device = run(
        "findmnt",
        [Path::new("-no"), Path::new("SOURCE"), &mounted.path()],
    );
    run("resize2fs", [device.trim()]);
    std::fs::write(mounted.path().join("file"), vec![1; 1 << 20]).unwrap();
    mounted.unmount();
    fsck(&image);
}

#[test]
fn invalid_options_fail_with_a_reason() {
    let refuse = |len_bytes: u64, options: FormatOptions| {
        ext4::format(&MemoryDevice::new(len_bytes), &options)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refuse(4 * KIB, fixed()),
        "mkfs.ext4: device too small for an ext4: 4096 bytes, at least 24576 (24K) needed"
    );
    let long = FormatOptions {
        label: "seventeen bytes !".to_owned(),
        ..fixed()
    };
    assert_eq!(
        refuse(8 * MIB, long),
        "mkfs.ext4: invalid label \"seventeen bytes !\": 17 bytes long, at most 16 allowed"
    );
    let huge = refuse(1 << 60, fixed());
    assert_eq!(
        huge,
        "mkfs.ext4: too many block groups: 8589934592, at most 4294967295; use larger blocks"
    );
}

/// All sizes from 0 to 1 MiB give an error or a clean file system, never a panic.
#[test]
fn smallest_sizes_fail_or_pass_e2fsck() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    for block_size in [1024, 2048, 4096] {
        let mut first_that_fits = None;
        for len_bytes in (0..MIB).step_by(4 * KIB as usize) {
            let image = scratch.path("disk.img");
            let device = RawDevice::create(&image, len_bytes).unwrap();
            let result = ext4::format(&device, &with_block_size(block_size));
            drop(device);
            if result.is_ok() {
                first_that_fits.get_or_insert(len_bytes);
                fsck(&image);
            }
        }
        assert!(
            first_that_fits.is_some_and(|len| len < MIB / 2),
            "{first_that_fits:?}"
        );
    }
}
