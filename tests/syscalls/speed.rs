//! Cost of warm calls, beside the kernel's own calls on a tmpfs. Run by hand:
//! `cargo test --release -p folio --test syscalls -- --ignored --nocapture speed`; `ONLY=open` in
//! the environment selects one call.

use crate::{READ, write};
use folio::syscall::{Credentials, Fd};
use folio::{Kernel, KernelOptions, Process};
use rustix::fs::{Mode, OFlags};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

const CALLS: u32 = 20_000;
const REPEATS: usize = 51;
const FILE: &str = "one";
const DEEP_FILE: &str = "a/b/c/four";

/// Returns nanoseconds per call, the median of several runs, with `threads` threads calling.
fn ns_per_call(threads: usize, call: impl Fn(usize) + Sync) -> f64 {
    let run = || {
        let barrier = Barrier::new(threads);
        let spent: Vec<f64> = std::thread::scope(|scope| {
            let one = |thread| {
                let (barrier, call) = (&barrier, &call);
                move || {
                    barrier.wait();
                    let start = Instant::now();
                    for _ in 0..CALLS {
                        call(thread);
                    }
                    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
                }
            };
            if threads == 1 {
                return vec![one(0)()];
            }
            let started: Vec<_> = (0..threads)
                .map(|thread| scope.spawn(one(thread)))
                .collect();
            started
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        spent.iter().sum::<f64>() / threads as f64
    };
    let mut runs: Vec<f64> = (0..REPEATS).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    runs[REPEATS / 2]
}

fn compare(what: &str, ours: impl Fn(usize) + Sync, kernels: impl Fn(usize) + Sync) {
    if std::env::var("ONLY").is_ok_and(|only| !what.contains(&only)) {
        return;
    }
    let one = ns_per_call(1, &ours);
    let kernel = ns_per_call(1, &kernels);
    let two = ns_per_call(2, &ours);
    println!(
        "{what:<22} {one:7.1} ns   kernel {kernel:7.1} ns   {:5.1}x   two threads: {:.2} of the rate each",
        kernel / one,
        one / two
    );
}

/// The same files in a tmpfs of the kernel.
fn kernel_tree() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = dir.path().to_owned();
    std::fs::create_dir_all(root.join("a/b/c")).unwrap();
    for name in [FILE, DEEP_FILE] {
        std::fs::write(root.join(name), [7; 1 << 16]).unwrap();
    }
    (dir, root)
}

fn tree() -> Process {
    let kernel = Kernel::new(KernelOptions::default());
    let p = kernel.process(Credentials::root());
    for dir in ["/a", "/a/b", "/a/b/c"] {
        p.mkdir(dir, 0o755).unwrap();
    }
    for name in [FILE, DEEP_FILE] {
        write(&p, name, &[7; 1 << 16]);
    }
    p
}

#[test]
#[ignore = "measures; run by hand in a release build"]
fn speed() {
    let (_dir, root) = kernel_tree();
    std::env::set_current_dir(&root).unwrap();
    let p = tree();
    let fd = p.open(FILE, READ, 0).unwrap();
    let host = rustix::fs::open(FILE, OFlags::RDONLY, Mode::empty()).unwrap();
    for (what, path) in [
        ("stat, 1 component", FILE),
        ("stat, 4 components", DEEP_FILE),
    ] {
        let path = Path::new(path);
        let stat = |_| assert!(black_box(p.stat(path)).is_ok());
        compare(what, stat, |_| {
            assert!(black_box(rustix::fs::stat(path)).is_ok())
        });
    }
    let fstat = |_| assert!(black_box(p.fstat(fd)).is_ok());
    compare("fstat", fstat, |_| {
        assert!(black_box(rustix::fs::fstat(&host)).is_ok())
    });
    let path = Path::new(FILE);
    let open_close = |_| p.close(p.open(path, READ, 0).unwrap()).unwrap();
    compare("open+close", open_close, |_| {
        drop(black_box(
            rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap(),
        ));
    });
    pread(&p, fd, &host);
    compare(
        "clock",
        |_| _ = black_box(p.now()),
        |_| _ = black_box(std::time::SystemTime::now()),
    );
}

fn pread(p: &Process, fd: Fd, host: &(impl std::os::fd::AsFd + Sync)) {
    let ours = |_| {
        let mut buf = [0];
        assert_eq!(p.pread(fd, black_box(&mut buf), 5000).unwrap(), 1);
    };
    compare("pread, 1 byte", ours, |_| {
        let mut buf = [0];
        assert_eq!(
            rustix::io::pread(host, black_box(&mut buf), 5000).unwrap(),
            1
        );
    });
}
