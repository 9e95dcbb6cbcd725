//! Advice and sync_file_range, observed by the counters, on an ext4 in memory.

use crate::{CREATE, READ, fails, world};
use folio::block::{Device, MemoryDevice};
use folio::cache::Counters;
use folio::ext4::{self, FormatOptions};
use folio::syscall::{AT_FDCWD, Advice, Credentials, Fd, OpenFlags, SyncFileRange};
use folio::testing::{FaultDevice, FaultKind, FaultWhen};
use folio::vfs::{DeviceNumber, FileType, MountOptions};
use folio::{Kernel, KernelOptions, Process};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// Creates an ext4 with a file of this number of pages, none of them cached.
fn disk(
    cache_pages: u64,
    file_pages: u64,
    background_writeback: bool,
) -> (Arc<Kernel>, Process, Fd) {
    disk_on(
        Arc::new(MemoryDevice::new(64 << 20)),
        cache_pages,
        file_pages,
        background_writeback,
    )
}

fn disk_on(
    device: Arc<dyn Device>,
    cache_pages: u64,
    file_pages: u64,
    background_writeback: bool,
) -> (Arc<Kernel>, Process, Fd) {
    let format = FormatOptions {
        block_size: Some(4096),
        ..FormatOptions::default()
    };
    ext4::format(&*device, &format).unwrap();
    let cache_bytes = cache_pages * PAGE;
    let kernel = Kernel::new(KernelOptions {
        cache_bytes,
        background_writeback,
        ..KernelOptions::default()
    });
    let p = kernel.process(Credentials::root());
    p.mkdir("/disk", 0o755).unwrap();
    // Without a journal, which a failing device would abort.
    let options = MountOptions::parse("noload").unwrap();
    kernel.mount_ext4(device, "/disk", &options).unwrap();
    let fd = file(&p, "/disk/file", file_pages);
    (kernel, p, fd)
}

fn file(p: &Process, path: &str, pages: u64) -> Fd {
    let fd = p.open(path, CREATE, 0o644).unwrap();
    for page in 0..pages {
        p.write(fd, &[page as u8; PAGE as usize]).unwrap();
    }
    p.fsync(fd).unwrap();
    p.posix_fadvise(fd, 0, 0, Advice::DontNeed).unwrap();
    assert_eq!(p.file_counters(fd).unwrap().file_pages, 0);
    fd
}

/// Returns the changes of a file's counters by a call: misses, pages read ahead.
fn cost(p: &Process, fd: Fd, call: impl FnOnce()) -> (u64, u64) {
    let before = p.file_counters(fd).unwrap();
    call();
    let after = p.file_counters(fd).unwrap();
    (
        after.misses - before.misses,
        after.readahead_pages - before.readahead_pages,
    )
}

fn read_page(p: &Process, fd: Fd, index: u64) {
    let mut page = [0; PAGE as usize];
    assert_eq!(p.pread(fd, &mut page, index * PAGE).unwrap(), PAGE as usize);
    assert_eq!(page, [index as u8; PAGE as usize], "page {index}");
}

#[test]
fn read_patterns_set_readahead() {
    let (_kernel, p, fd) = disk(4096, 2048, false);
    let drop_all = || p.posix_fadvise(fd, 0, 0, Advice::DontNeed).unwrap();
    let scan = || (0..2048).for_each(|index| read_page(&p, fd, index));
    let (misses, ahead) = cost(&p, fd, scan);
    assert!(
        misses < 10 && misses + ahead == 2048,
        "{misses} misses, {ahead} ahead"
    );
    drop_all();
    p.posix_fadvise(fd, 0, 0, Advice::Random).unwrap();
    assert_eq!(cost(&p, fd, scan), (2048, 0));
    drop_all();
    p.posix_fadvise(fd, 0, 0, Advice::Normal).unwrap();
    assert_eq!(
        cost(&p, fd, || read_page(&p, fd, 1000)),
        (1, 0),
        "a read in the middle is random"
    );
    drop_all();
    p.posix_fadvise(fd, 0, 0, Advice::Sequential).unwrap();
    let (misses, ahead) = cost(&p, fd, || read_page(&p, fd, 1000));
    assert!(
        misses == 1 && ahead >= 15,
        "{ahead} pages ahead, for reading goes on"
    );
}

#[test]
fn willneed_reads_all_of_a_long_range() {
    let (kernel, p, fd) = disk(4096, 2048, false);
    p.posix_fadvise(fd, 10 * PAGE + 1, 2000 * PAGE, Advice::WillNeed)
        .unwrap();
    let counters = p.file_counters(fd).unwrap();
    assert_eq!(
        (
            counters.file_pages,
            counters.misses,
            counters.readahead_pages
        ),
        (2001, 0, 2001)
    );
    assert_eq!(
        cost(&p, fd, || (10..2011)
            .for_each(|index| read_page(&p, fd, index))),
        (0, 0)
    );
    assert_eq!(p.file_counters(fd).unwrap().readahead_used_pages, 2001);
    assert_eq!(cost(&p, fd, || read_page(&p, fd, 9)).0, 1);
    assert!(kernel.counters().file_pages >= 2001);
}

#[test]
fn willneed_reads_in_the_background() {
    let (_kernel, p, fd) = disk(4096, 2048, true);
    p.posix_fadvise(fd, 0, 0, Advice::WillNeed).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while p.file_counters(fd).unwrap().readahead_pages < 2048 {
        assert!(Instant::now() < deadline, "{:?}", p.file_counters(fd));
        std::thread::yield_now();
    }
    assert_eq!(
        cost(&p, fd, || (0..2048)
            .for_each(|index| read_page(&p, fd, index))),
        (0, 0)
    );
}

#[test]
fn willneed_larger_than_the_cache_ends() {
    let (kernel, p, _) = disk(256, 0, false);
    let fd = p.open("/disk/hole", CREATE, 0o644).unwrap();
    p.ftruncate(fd, 1 << 40).unwrap();
    p.posix_fadvise(fd, 0, 0, Advice::WillNeed).unwrap();
    let counters = kernel.counters();
    assert!(
        counters.file_pages <= 256 && p.file_counters(fd).unwrap().file_pages > 100,
        "{counters:?}"
    );
}

#[test]
fn dontneed_writes_and_drops_whole_pages() {
    let (_kernel, p, fd) = disk(4096, 0, false);
    p.write(fd, &[7; 10 * PAGE as usize + 100]).unwrap();
    let counters = || p.file_counters(fd).unwrap();
    assert_eq!(
        (
            counters().file_pages,
            counters().dirty_pages,
            counters().written_pages
        ),
        (11, 11, 0)
    );
    p.posix_fadvise(fd, PAGE / 2, 4 * PAGE, Advice::DontNeed)
        .unwrap();
    assert_eq!(
        (counters().file_pages, counters().dirty_pages),
        (8, 6),
        "pages 1 to 3 went, 0 to 4 are clean"
    );
    p.posix_fadvise(fd, 9 * PAGE, PAGE + 100, Advice::DontNeed)
        .unwrap();
    assert_eq!(
        counters().file_pages,
        6,
        "the last page goes though it is not full"
    );
    let mut all = vec![0; 10 * PAGE as usize + 100];
    assert_eq!(p.pread(fd, &mut all, 0).unwrap(), all.len());
    assert!(all.iter().all(|byte| *byte == 7), "nothing was lost");
}

#[test]
fn noreuse_reads_do_not_mark_pages() {
    let misses_with = |advice: Advice| {
        let (_kernel, p, fd) = disk(256, 16, false);
        let scan = file(&p, "/disk/scan", 2048);
        p.posix_fadvise(fd, 0, 0, advice).unwrap();
        for index in 0..2048 {
            (0..16).for_each(|index| read_page(&p, fd, index));
            read_page(&p, scan, index);
        }
        let counters = p.file_counters(fd).unwrap();
        counters.misses + counters.readahead_pages
    };
    let (reused, not_reused) = (misses_with(Advice::Normal), misses_with(Advice::NoReuse));
    assert!(
        reused < not_reused,
        "{reused} pages read again, {not_reused} if use leaves no trace"
    );
}

#[test]
fn sync_file_range_writes_only_data() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(64 << 20)), 1));
    let (kernel, p, fd) = disk_on(device.clone(), 4096, 0, false);
    p.write(fd, &[7; 10 * PAGE as usize]).unwrap();
    device.fail(FaultKind::Flush, FaultWhen::Always);
    let dirty = || p.file_counters(fd).unwrap().dirty_pages;
    p.sync_file_range(
        fd,
        0,
        0,
        SyncFileRange::WAIT_BEFORE | SyncFileRange::WAIT_AFTER,
    )
    .unwrap();
    assert_eq!(dirty(), 10);
    p.sync_file_range(fd, 2 * PAGE + 5, PAGE, SyncFileRange::WRITE)
        .unwrap();
    assert_eq!(dirty(), 8);
    p.sync_file_range(fd, 9 * PAGE, 0, SyncFileRange::all())
        .unwrap();
    assert_eq!(dirty(), 7);
    fails! { p.fsync(fd) => IO }
    device.clear_faults();
    p.fsync(fd).unwrap();
    assert_eq!(kernel.counters().dirty_pages, 0);
}

#[test]
fn advice_errors_match_linux() {
    let (_kernel, p) = world();
    let fd = p.open("/f", CREATE, 0o644).unwrap();
    p.mknodat(
        AT_FDCWD,
        "/fifo",
        FileType::Fifo,
        0o644,
        DeviceNumber::default(),
    )
    .unwrap();
    let path = p.open("/f", OpenFlags::PATH, 0).unwrap();
    let all = SyncFileRange::all();
    fails! {
        p.posix_fadvise(Fd::from_raw(99), 0, 0, Advice::Normal) => BADF,
        p.posix_fadvise(path, 0, 0, Advice::Normal) => BADF,
        p.posix_fadvise(fd, 0, u64::MAX, Advice::Normal) => INVAL,
        p.posix_fadvise(fd, u64::MAX, 0, Advice::WillNeed) => INVAL,
        p.sync_file_range(Fd::from_raw(99), 0, 0, all) => BADF,
        p.sync_file_range(path, 0, 0, all) => BADF,
        p.sync_file_range(fd, 1 << 63, 0, all) => INVAL,
        p.sync_file_range(fd, 1, (1 << 63) - 1, all) => INVAL,
        p.sync_file_range(fd, 0, 0, SyncFileRange::from_bits_retain(8)) => INVAL,
        p.file_counters(path) => BADF,
    }
    let directory = p.open("/", READ, 0).unwrap();
    p.posix_fadvise(directory, 0, 0, Advice::WillNeed).unwrap();
    p.sync_file_range(directory, 0, 0, all).unwrap();
    assert_eq!(p.file_counters(directory).unwrap(), Counters::default());
    // The pages of a ramfs are its only copy of the file.
    p.write(fd, &[5; 9000]).unwrap();
    for advice in [
        Advice::DontNeed,
        Advice::WillNeed,
        Advice::NoReuse,
        Advice::Random,
        Advice::Sequential,
    ] {
        p.posix_fadvise(fd, 0, 0, advice).unwrap();
        p.posix_fadvise(fd, i64::MAX as u64, i64::MAX as u64, advice)
            .unwrap();
    }
    p.sync_file_range(fd, 0, 0, all).unwrap();
    assert_eq!(crate::read(&p, "/f"), [5; 9000]);
}
