//! tmpfs: exact accounting of its limits. Expectations were checked on a Linux 6.18 tmpfs.

use folio::syscall::{AT_FDCWD, AtFlags, Credentials, Fd, OpenFlags, Whence};
use folio::vfs::{FallocateMode, FileSystemStatistics, MountOptions};
use folio::{Errno, Kernel, KernelOptions, Process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;
const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);

/// Returns a kernel with a tmpfs at `/t`, mounted with these words, and a superuser process with
/// umask 0.
fn world(words: &str) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 16 << 20,
        background_writeback: false,
        ..Default::default()
    });
    mounted(kernel, words)
}

/// Mounts a tmpfs at `/t` with these words; returns the kernel and a superuser process with umask
/// 0.
fn mounted(kernel: Arc<Kernel>, words: &str) -> (Arc<Kernel>, Process) {
    let root = kernel.process(Credentials::root());
    root.umask(0);
    root.mkdir("/t", 0o755).unwrap();
    kernel
        .mount_tmpfs("/t", &MountOptions::parse(words).unwrap())
        .unwrap();
    (kernel, root)
}

fn create(process: &Process, path: &str) -> Fd {
    process.open(path, CREATE, 0o644).unwrap()
}

fn statistics(process: &Process) -> FileSystemStatistics {
    process.statfs("/t").unwrap()
}

fn blocks_free(process: &Process) -> u64 {
    statistics(process).blocks_free
}

fn inodes_free(process: &Process) -> u64 {
    statistics(process).inodes_free
}

fn errno<T>(result: folio::Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

#[test]
fn statfs_reports_limits_and_use() {
    let (_kernel, p) = world("size=5000,nr_inodes=5,mode=1770,uid=3,gid=4");
    let stat = statistics(&p);
    assert_eq!(
        (stat.magic, stat.block_size, stat.name_max),
        (0x0102_1994, 4096, 255)
    );
    assert_eq!(
        (stat.blocks, stat.blocks_free, stat.blocks_available),
        (2, 2, 2)
    );
    assert_eq!((stat.inodes, stat.inodes_free), (5, 4));
    let root = p.stat("/t").unwrap();
    assert_eq!((root.mode, root.uid, root.gid), (0o1770, 3, 4));
    let (_kernel, p) = world("");
    let stat = statistics(&p);
    assert_eq!(
        (stat.blocks, stat.inodes, p.stat("/t").unwrap().mode),
        (2048, 2048, 0o1777)
    );
    let (_kernel, p) = world("size=0,nr_inodes=0");
    let stat = statistics(&p);
    assert_eq!(
        (stat.blocks, stat.blocks_free, stat.inodes, stat.inodes_free),
        (0, 0, 0, 0)
    );
}

#[test]
fn write_fails_at_the_exact_page() {
    // Many pages, so that large folios are at the limit, too.
    for pages in [1, 4, 16, 21, 100] {
        let (_kernel, p) = world(&format!("size={}", pages * PAGE));
        let fd = create(&p, "/t/f");
        let bytes: Vec<u8> = (0..(pages + 5) * PAGE + 7)
            .map(|at| (at % 251) as u8)
            .collect();
        assert_eq!(
            p.pwrite(fd, &bytes, 0).unwrap(),
            pages * PAGE,
            "{pages} pages"
        );
        assert_eq!(
            errno(p.pwrite(fd, b"x", (pages * PAGE) as u64)),
            Some(Errno::NOSPC)
        );
        assert_eq!(blocks_free(&p), 0);
        let seen = p.fstat(fd).unwrap();
        assert_eq!(
            (seen.size_bytes, seen.blocks_512),
            ((pages * PAGE) as u64, pages as u64 * 8)
        );
        let mut read = vec![0; bytes.len()];
        assert_eq!(p.pread(fd, &mut read, 0).unwrap(), pages * PAGE);
        assert_eq!(read[..pages * PAGE], bytes[..pages * PAGE]);
        // Allocated pages can be overwritten, and other files get a name only.
        assert_eq!(p.pwrite(fd, &bytes[..PAGE], 0).unwrap(), PAGE);
        let other = create(&p, "/t/g");
        assert_eq!(errno(p.write(other, b"x")), Some(Errno::NOSPC));
        assert_eq!(p.fstat(other).unwrap().size_bytes, 0);
    }
}

#[test]
fn unaligned_write_fails_at_the_exact_page() {
    let (_kernel, p) = world("size=12k");
    let fd = create(&p, "/t/f");
    assert_eq!(p.pwrite(fd, &[7; 20_000], 100).unwrap(), 3 * PAGE - 100);
    assert_eq!(p.fstat(fd).unwrap().size_bytes, 3 * PAGE as u64);
    let append = p
        .open("/t/f", OpenFlags::WRONLY | OpenFlags::APPEND, 0)
        .unwrap();
    assert_eq!(errno(p.write(append, b"x")), Some(Errno::NOSPC));
}

#[test]
fn freed_pages_are_released_at_once() {
    let (kernel, p) = world("size=1m");
    let fd = create(&p, "/t/f");
    let fill = || assert_eq!(p.pwrite(fd, &vec![1; 1 << 20], 0).unwrap(), 1 << 20);
    fill();
    p.ftruncate(fd, 3 * PAGE as u64 + 1).unwrap();
    assert_eq!(blocks_free(&p), 252);
    fill();
    p.fallocate(fd, FallocateMode::PunchHole, 1, 4 * PAGE as u64)
        .unwrap();
    assert_eq!(blocks_free(&p), 3);
    fill();
    p.close(
        p.open("/t/f", OpenFlags::WRONLY | OpenFlags::TRUNC, 0)
            .unwrap(),
    )
    .unwrap();
    assert_eq!(blocks_free(&p), 256);
    fill();
    p.unlink("/t/f").unwrap();
    assert_eq!(blocks_free(&p), 0, "somebody has it open");
    p.close(fd).unwrap();
    assert_eq!(
        (blocks_free(&p), inodes_free(&p)),
        (256, statistics(&p).inodes - 1)
    );
    let (replaced, moved) = (create(&p, "/t/a"), create(&p, "/t/b"));
    p.write(replaced, &[1; 3 * PAGE]).unwrap();
    p.write(moved, &[1; PAGE]).unwrap();
    p.close(replaced).unwrap();
    p.close(moved).unwrap();
    p.rename("/t/b", "/t/a").unwrap();
    assert_eq!(
        (blocks_free(&p), inodes_free(&p)),
        (255, statistics(&p).inodes - 2)
    );
    drop(p);
    kernel.unmount("/t").unwrap();
}

#[test]
fn holes_take_no_pages() {
    let (_kernel, p) = world("size=8k");
    let fd = create(&p, "/t/f");
    p.ftruncate(fd, 1 << 40).unwrap();
    let mut read = vec![1; 3 * PAGE];
    assert_eq!(p.pread(fd, &mut read, 123_456).unwrap(), read.len());
    assert!(read.iter().all(|byte| *byte == 0));
    assert_eq!((blocks_free(&p), p.fstat(fd).unwrap().blocks_512), (2, 0));
    p.pwrite(fd, b"x", 1 << 30).unwrap();
    p.pwrite(fd, b"x", (1 << 40) - 1).unwrap();
    assert_eq!(errno(p.pwrite(fd, b"x", 0)), Some(Errno::NOSPC));
    assert_eq!(p.lseek(fd, 0, Whence::Data).unwrap(), 1 << 30);
    // Written zeros are data, punched zeros are holes.
    p.fallocate(fd, FallocateMode::PunchHole, 100, 200).unwrap();
    assert_eq!(blocks_free(&p), 0);
    p.fallocate(fd, FallocateMode::PunchHole, 1 << 30, 1 << 39)
        .unwrap();
    assert_eq!(
        (blocks_free(&p), p.fstat(fd).unwrap().size_bytes),
        (1, 1 << 40)
    );
}

#[test]
fn fallocate_allocates_all_or_nothing() {
    use FallocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange};
    let (_kernel, p) = world("size=40k");
    let fd = create(&p, "/t/f");
    p.fallocate(fd, Allocate, 1, 3 * PAGE as u64).unwrap();
    let seen = p.fstat(fd).unwrap();
    assert_eq!(
        (seen.size_bytes, seen.blocks_512, blocks_free(&p)),
        (3 * PAGE as u64 + 1, 32, 6)
    );
    p.pwrite(fd, b"x", 5 * PAGE as u64).unwrap();
    for mode in [Allocate, AllocateKeepSize, ZeroRange] {
        assert_eq!(
            errno(p.fallocate(fd, mode, 0, 11 * PAGE as u64)),
            Some(Errno::NOSPC)
        );
        assert_eq!(errno(p.fallocate(fd, mode, 0, 1 << 50)), Some(Errno::NOSPC));
    }
    let other = create(&p, "/t/g");
    p.write(other, &[1; PAGE]).unwrap();
    assert_eq!(
        errno(p.fallocate(fd, AllocateKeepSize, 0, 10 * PAGE as u64)),
        Some(Errno::NOSPC)
    );
    assert_eq!(
        (blocks_free(&p), p.fstat(fd).unwrap().size_bytes),
        (4, 5 * PAGE as u64 + 1)
    );
    p.fallocate(fd, AllocateKeepSize, 0, 9 * PAGE as u64)
        .unwrap();
    assert_eq!(
        (blocks_free(&p), p.fstat(fd).unwrap().size_bytes),
        (0, 5 * PAGE as u64 + 1)
    );
    // Allocated pages can always be written; pages past the end are freed by a truncation to the
    // same size.
    assert_eq!(
        p.pwrite(fd, &[2; 2 * PAGE], 4 * PAGE as u64).unwrap(),
        2 * PAGE
    );
    p.ftruncate(fd, 6 * PAGE as u64).unwrap();
    assert_eq!(blocks_free(&p), 3);
    p.fallocate(fd, AllocateKeepSize, 0, 9 * PAGE as u64)
        .unwrap();
    p.fallocate(fd, PunchHole, 7 * PAGE as u64, PAGE as u64)
        .unwrap();
    assert_eq!(blocks_free(&p), 1);
    // After growth, allocated pages read as zeros.
    p.ftruncate(fd, 9 * PAGE as u64).unwrap();
    let mut read = vec![1; 3 * PAGE];
    assert_eq!(p.pread(fd, &mut read, 6 * PAGE as u64).unwrap(), 3 * PAGE);
    assert!(read.iter().all(|byte| *byte == 0));
    p.fallocate(fd, ZeroRange, 4 * PAGE as u64 + 10, PAGE as u64)
        .unwrap();
    assert_eq!(p.pread(fd, &mut read, 4 * PAGE as u64).unwrap(), 3 * PAGE);
    assert_eq!(read[..10], [2; 10]);
    assert!(read[10..PAGE + 10].iter().all(|byte| *byte == 0));
    assert_eq!(read[PAGE + 10..2 * PAGE], [2; PAGE - 10]);
}

#[test]
fn each_hard_link_counts_as_an_inode() {
    let (_kernel, p) = world("nr_inodes=4");
    p.close(create(&p, "/t/a")).unwrap();
    p.link("/t/a", "/t/b").unwrap();
    assert_eq!(inodes_free(&p), 1);
    p.mkdir("/t/d", 0o755).unwrap();
    assert_eq!(errno(p.open("/t/c", CREATE, 0o644)), Some(Errno::NOSPC));
    assert_eq!(errno(p.mkdir("/t/c", 0o755)), Some(Errno::NOSPC));
    assert_eq!(errno(p.symlink("a", "/t/c")), Some(Errno::NOSPC));
    assert_eq!(errno(p.link("/t/a", "/t/c")), Some(Errno::NOSPC));
    assert_eq!(
        errno(p.open("/t", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644)),
        Some(Errno::NOSPC)
    );
    assert_eq!(errno(p.stat("/t/c")), Some(Errno::NOENT));
    assert_eq!(
        (
            p.stat("/t/a").unwrap().link_count,
            p.stat("/t").unwrap().link_count
        ),
        (2, 3)
    );
    p.unlink("/t/a").unwrap();
    assert_eq!(inodes_free(&p), 1);
    p.symlink("b", "/t/c").unwrap();
    p.rename("/t/c", "/t/b").unwrap();
    p.rmdir("/t/d").unwrap();
    assert_eq!(inodes_free(&p), 2);
    // An inode without a name counts, and its first name is included.
    let unnamed = p
        .open("/t", OpenFlags::TMPFILE | OpenFlags::RDWR, 0o644)
        .unwrap();
    assert_eq!(inodes_free(&p), 1);
    p.linkat(unnamed, "", AT_FDCWD, "/t/u", AtFlags::EMPTY_PATH)
        .unwrap();
    assert_eq!(inodes_free(&p), 1);
    p.close(unnamed).unwrap();
    p.unlink("/t/u").unwrap();
    p.unlink("/t/b").unwrap();
    assert_eq!(inodes_free(&p), 3);
}

#[test]
fn long_symlink_counts_as_a_page() {
    let (_kernel, p) = world("size=4k,nr_inodes=9");
    p.symlink("x".repeat(127), "/t/short").unwrap();
    assert_eq!(
        (blocks_free(&p), p.lstat("/t/short").unwrap().blocks_512),
        (1, 0)
    );
    p.symlink("x".repeat(128), "/t/long").unwrap();
    assert_eq!(
        (blocks_free(&p), p.lstat("/t/long").unwrap().blocks_512),
        (0, 8)
    );
    assert_eq!(
        errno(p.symlink("x".repeat(128), "/t/more")),
        Some(Errno::NOSPC)
    );
    assert_eq!(inodes_free(&p), 6);
    p.unlink("/t/long").unwrap();
    assert_eq!((blocks_free(&p), inodes_free(&p)), (1, 7));
}

#[test]
fn page_cache_budget_also_limits_tmpfs() {
    let (_kernel, p) = world("size=0");
    let fd = create(&p, "/t/f");
    let written = p.write(fd, &vec![1; 17 << 20]).unwrap();
    assert!((15 << 20..=16 << 20).contains(&written), "{written} bytes");
    assert_eq!(
        errno(p.fallocate(fd, FallocateMode::Allocate, 0, 17 << 20)),
        Some(Errno::NOSPC)
    );
    p.ftruncate(fd, 0).unwrap();
    assert_eq!(p.pwrite(fd, &vec![1; 8 << 20], 0).unwrap(), 8 << 20);
}

#[test]
fn concurrent_writers_stay_within_the_limit() {
    const PAGES: u64 = 67;
    let (kernel, p) = world(&format!("nr_blocks={PAGES},nr_inodes=20"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let process = kernel.process(Credentials::root());
            let mut fewest = PAGES;
            while !is_done.load(Ordering::Relaxed) {
                let free = blocks_free(&process);
                assert!(free <= PAGES);
                fewest = fewest.min(free);
            }
            fewest
        });
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let kernel = &kernel;
                scope.spawn(move || {
                    let process = kernel.process(Credentials::root());
                    for round in 0..200_u64 {
                        let path = format!("/t/{number}");
                        let fd = create(&process, &path);
                        let len = (1 + (round * 7 + number) % 40) as usize * PAGE;
                        let written = match process.write(fd, &vec![number as u8; len]) {
                            Ok(written) => written,
                            Err(error) => {
                                assert_eq!(error.errno(), Errno::NOSPC);
                                0
                            }
                        };
                        assert!(written.is_multiple_of(PAGE) && written <= len);
                        let mut read = vec![0; len];
                        assert_eq!(process.pread(fd, &mut read, 0).unwrap(), written);
                        assert!(read[..written].iter().all(|byte| *byte == number as u8));
                        if round % 3 == 0 {
                            process.ftruncate(fd, (written / 2) as u64).unwrap();
                        }
                        process.close(fd).unwrap();
                        process.unlink(path).unwrap();
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    assert_eq!((blocks_free(&p), inodes_free(&p)), (PAGES, 19));
    // One writer can take the whole limit.
    let fd = create(&p, "/t/all");
    assert_eq!(
        p.write(fd, &vec![1; (PAGES as usize + 1) * PAGE]).unwrap(),
        PAGES as usize * PAGE
    );
}
