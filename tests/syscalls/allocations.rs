//! Warm calls allocate nothing.

use crate::{CREATE, READ, world, write};
use folio::Process;
use folio::syscall::{ReadAt, Whence};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator, counting the allocations of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system allocator; counting uses a cell of the thread, which needs
// no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller fulfills the conditions that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[test]
fn warm_calls_allocate_nothing() {
    let (_kernel, p) = world();
    p.mkdir("/a", 0o755).unwrap();
    p.mkdir("/a/b", 0o755).unwrap();
    p.mkdir("/a/b/c", 0o755).unwrap();
    write(&p, "/a/b/c/f", &[7; 10_000]);
    let fd = p.open("/a/b/c/f", READ, 0).unwrap();
    type Row<'a> = (&'a str, &'a dyn Fn(&Process));
    let rows: &[Row<'_>] = &[
        ("stat", &|p| {
            assert_eq!(p.stat("/a/b/c/f").unwrap().size_bytes, 10_000)
        }),
        ("stat of a directory", &|p| {
            assert_eq!(p.stat("a/./b/").unwrap().link_count, 3)
        }),
        ("fstat", &|p| {
            assert_eq!(p.fstat(fd).unwrap().size_bytes, 10_000)
        }),
        ("open and close", &|p| {
            p.close(p.open("/a/b/c/f", READ, 0).unwrap()).unwrap()
        }),
        ("open with O_CREAT", &|p| {
            p.close(p.open("/a/b/c/f", CREATE, 0).unwrap()).unwrap()
        }),
        ("pread", &|p| {
            assert_eq!(p.pread(fd, &mut [0; 1000], 3500).unwrap(), 1000)
        }),
        ("pread_batch", &|p| {
            let (mut first, mut second) = ([0; 1000], [0; 10]);
            let mut reads = [ReadAt::new(3500, &mut first), ReadAt::new(1, &mut second)];
            assert_eq!(p.pread_batch(fd, &mut reads).unwrap(), 2);
        }),
        ("read and lseek", &|p| {
            assert_eq!(p.lseek(fd, 9_000, Whence::Set).unwrap(), 9_000);
            assert_eq!(p.read(fd, &mut [0; 2000]).unwrap(), 1000);
        }),
    ];
    for (what, call) in rows {
        let run = || (0..200).for_each(|_| call(&p));
        run();
        let before = ALLOCATIONS.get();
        run();
        assert_eq!(ALLOCATIONS.get() - before, 0, "{what}");
    }
}
