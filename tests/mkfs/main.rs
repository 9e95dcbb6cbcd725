//! mkfs: what Folio formats is what mke2fs formats, e2fsck finds nothing, the kernel writes on it.

#[path = "../support/mod.rs"]
mod support;

use folio::base::{Clock, Timespec};
use folio::block::{Allocation, Device, MemoryDevice, RawDevice};
use folio::kernel::{FormatOptions, FormatReport, format_ext4};
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

/// Options that make the same bytes each time.
fn fixed() -> FormatOptions {
    let clock = Clock::Fixed(Timespec::new(NOW_SECS, 0));
    FormatOptions { uuid: Some(UUID), clock, ..FormatOptions::default() }
}

fn format_file(path: &Path, len_bytes: u64, options: &FormatOptions) -> FormatReport {
    let device = RawDevice::create(path, len_bytes).unwrap();
    format_ext4(&device, options).unwrap_or_else(|e| panic!("{len_bytes} bytes, {options:?}: {e}"))
}

/// mke2fs with upstream's default features, and with the hash seed and the clock that Folio used on `ours`.
fn mke2fs_like(ours: &Path, theirs: &Path, len_bytes: u64, arguments: &[String]) {
    let header = run("dumpe2fs", [Path::new("-h"), ours]);
    let seed = header.lines().find_map(|l| l.strip_prefix("Directory Hash Seed:")).unwrap().trim();
    std::fs::File::create_new(theirs).unwrap().set_len(len_bytes).unwrap();
    let extended = format!("lazy_itable_init=0,lazy_journal_init=0,hash_seed={seed}");
    let mut mke2fs = command("mke2fs");
    mke2fs.env("E2FSPROGS_FAKE_TIME", NOW_SECS.to_string());
    mke2fs.args(["-q", "-F", "-t", "ext4", "-O", "metadata_csum_seed,orphan_file", "-U", UUID_TEXT]);
    succeed(mke2fs.args(["-E", &extended]).args(arguments).arg(theirs));
}

/// Where two images differ, as offsets of pages, holes taken as zeros.
fn differing_pages(a: &RawDevice, b: &RawDevice) -> Vec<u64> {
    const PAGE: u64 = 4 * KIB;
    assert_eq!(a.len_bytes(), b.len_bytes());
    let (mut at, mut found) = (0, Vec::new());
    let (mut page_a, mut page_b) = ([0; PAGE as usize], [0; PAGE as usize]);
    while at < a.len_bytes() {
        let left = a.len_bytes() - at;
        let ((kind_a, len_a), (kind_b, len_b)) =
            (a.allocation(at, left).unwrap(), b.allocation(at, left).unwrap());
        if kind_a != Allocation::Data && kind_b != Allocation::Data {
            at += (len_a.min(len_b) / PAGE * PAGE).max(PAGE);
            continue;
        }
        let len = left.min(PAGE) as usize;
        a.read_at(&mut page_a[..len], at).unwrap();
        b.read_at(&mut page_b[..len], at).unwrap();
        for superblock in [0, 1024] {
            forget_kbytes_written(&mut page_a[superblock..][..1024]);
            forget_kbytes_written(&mut page_b[superblock..][..1024]);
        }
        if page_a[..len] != page_b[..len] {
            found.push(at);
        }
        at += PAGE;
    }
    found
}

/// Blanks what depends on how a superblock was written: `s_kbytes_written`, and the checksum over it.
fn forget_kbytes_written(superblock: &mut [u8]) {
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
        Self { folder: TempDir::with_prefix("folio-mkfs-").unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let _ = std::fs::remove_file(&path);
        path
    }
}

/// Formats with Folio and with mke2fs; says how they differ, if they do.
fn difference_to_mke2fs(len_bytes: u64, options: &FormatOptions, arguments: &[&str]) -> Option<String> {
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.path("ours.img"), scratch.path("theirs.img"));
    let mut arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
    if let Some(size) = options.block_size {
        arguments.extend(["-b".to_owned(), size.to_string()]);
    }
    format_file(&ours, len_bytes, options);
    fsck(&ours);
    mke2fs_like(&ours, &theirs, len_bytes, &arguments);
    let pages = {
        let device = |path: &Path| RawDevice::open(path, true).unwrap();
        differing_pages(&device(&ours), &device(&theirs))
    };
    if pages.is_empty() {
        return None;
    }
    let dump = |path: &Path| run("dumpe2fs", [path]);
    let (dump_ours, dump_theirs) = (dump(&ours), dump(&theirs));
    let lines = dump_ours.lines().zip(dump_theirs.lines()).filter(|(a, b)| a != b).take(12);
    let lines: Vec<String> = lines.map(|(a, b)| format!("-{a}\n+{b}")).collect();
    let (count, first) = (pages.len(), &pages[..pages.len().min(8)]);
    let lines = lines.join("\n");
    Some(format!(
        "{len_bytes} bytes, {options:?} {arguments:?}: {count} pages differ, at {first:x?}\n{lines}\n"
    ))
}

/// Sizes in bytes and block sizes (0: the default) of the matrix.
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
    FormatOptions { block_size: Some(block_size).filter(|size| *size != 0), ..fixed() }
}

#[test]
fn e2fsck_finds_nothing() {
    requires!(tool("e2fsck"));
    let scratch = Scratch::new();
    for (len_bytes, block_size) in MATRIX.into_iter().chain([(100 * GIB, 0), (100 * GIB, 1024), (TIB, 0)]) {
        let image = scratch.path("disk.img");
        format_file(&image, len_bytes, &with_block_size(block_size));
        fsck(&image);
    }
}

#[test]
fn every_byte_is_as_mke2fs_writes_it() {
    requires!(tool("mke2fs"), tool("dumpe2fs"), tool("e2fsck"));
    let differences: Vec<String> = MATRIX
        .into_iter()
        .filter_map(|(len_bytes, block_size)| {
            difference_to_mke2fs(len_bytes, &with_block_size(block_size), &[])
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
