//! flock: locks of open files.

use super::{READ, fails, touch, world};
use folio::syscall::{FlockOperation, OpenFlags};

const SHARED: FlockOperation = FlockOperation::SH.union(FlockOperation::NB);
const EXCLUSIVE: FlockOperation = FlockOperation::EX.union(FlockOperation::NB);

#[test]
fn exclusive_lock_excludes_other_open_files() {
    let (_kernel, p) = world();
    touch(&p, "/f", 0o644);
    p.link("/f", "/other-name").unwrap();
    touch(&p, "/g", 0o644);
    let open = |path| p.open(path, READ, 0).unwrap();
    let (one, two, other) = (open("/f"), open("/other-name"), open("/g"));
    p.flock(one, SHARED).unwrap();
    p.flock(two, SHARED).unwrap();
    fails! {
        p.flock(one, EXCLUSIVE) => AGAIN,
        p.flock(one, FlockOperation::NB) => INVAL,
        p.flock(one, FlockOperation::SH | FlockOperation::EX) => INVAL,
    }
    // The conversion that failed has released the lock, as in Linux.
    p.flock(two, EXCLUSIVE).unwrap();
    p.flock(two, FlockOperation::EX).unwrap();
    p.flock(other, EXCLUSIVE).unwrap();
    fails! { p.flock(one, SHARED) => AGAIN }
    p.flock(two, FlockOperation::UN).unwrap();
    p.flock(one, SHARED).unwrap();
    let path = p.open("/f", OpenFlags::PATH, 0).unwrap();
    fails! { p.flock(path, SHARED) => BADF }
}

#[test]
fn lock_ends_with_the_last_descriptor() {
    let (kernel, p) = world();
    p.mkdir("/d", 0o755).unwrap();
    let one = p.open("/d", READ, 0).unwrap();
    let two = p.open("/d", READ, 0).unwrap();
    let copy = p.dup(one).unwrap();
    p.flock(one, EXCLUSIVE).unwrap();
    p.flock(copy, EXCLUSIVE).unwrap();
    p.close(one).unwrap();
    fails! { p.flock(two, EXCLUSIVE) => AGAIN }
    p.close(copy).unwrap();
    p.flock(two, EXCLUSIVE).unwrap();
    p.close(two).unwrap();
    // A process that ends releases its locks.
    let ends = kernel.process(folio::syscall::Credentials::root());
    ends.flock(ends.open("/d", READ, 0).unwrap(), EXCLUSIVE)
        .unwrap();
    let three = p.open("/d", READ, 0).unwrap();
    fails! { p.flock(three, SHARED) => AGAIN }
    drop(ends);
    p.flock(three, SHARED).unwrap();
}

#[test]
fn lock_ends_with_the_last_process_that_has_the_file() {
    let (_kernel, p) = world();
    touch(&p, "/f", 0o644);
    let fd = p.open("/f", READ, 0).unwrap();
    let child = p.fork().unwrap();
    // Closed before the other process locks the file.
    child.close(fd).unwrap();
    p.flock(fd, EXCLUSIVE).unwrap();
    let grandchild = p.fork().unwrap();
    p.close(fd).unwrap();
    let other = p.open("/f", READ, 0).unwrap();
    fails! { p.flock(other, SHARED) => AGAIN }
    grandchild.close(fd).unwrap();
    p.flock(other, EXCLUSIVE).unwrap();
}

#[test]
fn waiting_lock_is_granted_after_release() {
    let (_kernel, p) = world();
    touch(&p, "/f", 0o644);
    let counter = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let fd = p.open("/f", READ, 0).unwrap();
                    p.flock(fd, FlockOperation::EX).unwrap();
                    // Not an addition: a second holder of the lock would lose one.
                    let seen = counter.load(std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                    p.close(fd).unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 200);
}
