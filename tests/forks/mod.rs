//! Kernels and fork(2). In a child, each call on a kernel of the parent fails, and drops neither
//! panic nor wait. Kernels of the child's own work (own_kernels.rs, waiting_threads.rs).
//!
//! The tests run on many threads, so the program that forks is a process of its own: this
//! executable, with one test selected.

mod own_kernels;
mod waiting_threads;

use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Errno, Fs, Kernel, KernelOptions};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::process::Command;
use std::sync::Arc;

const PROGRAM: &str = "FOLIO_TEST_FORKS";
const CREATE: OpenFlags = OpenFlags::CREAT.union(OpenFlags::RDWR);

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn kernel_in_a_forked_child_fails_and_drops_silently() {
    run_alone(
        "forks::kernel_in_a_forked_child_fails_and_drops_silently",
        program,
    );
}

/// Runs `program` in a process that runs no other test: this executable, with `test` selected.
fn run_alone(test: &str, program: fn()) {
    if std::env::var_os(PROGRAM).is_some() {
        return program();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(PROGRAM, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !printed.contains("panicked"),
        "{}: {printed}",
        output.status
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("1 passed"), "{printed}");
}

/// The program: a kernel with threads, a fork, and checks on both sides.
fn program() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 8 << 20,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    kernel
        .mount_ext4(device, "/disk", &MountOptions::default())
        .unwrap();
    let fd = process.open("/disk/f", CREATE, 0o644).unwrap();
    process.write(fd, &[1; 1 << 20]).unwrap();
    process.fsync(fd).unwrap();
    process.write(fd, b"dirty").unwrap();
    let fs = Fs::memory();
    fs.write("/g", "text").unwrap();
    // SAFETY: the child calls only this library, and ends by _exit(2).
    let child = unsafe { fork() };
    if child == 0 {
        let is_eio = |errno: Option<Errno>| errno == Some(Errno::IO);
        let errno = |result: folio::Result<()>| result.err().map(|error| error.errno());
        let mut buf = [0; 5000];
        let fails = [
            errno(process.stat("/disk/f").map(drop)),
            errno(process.open("/disk/new", CREATE, 0o644).map(drop)),
            errno(process.write(fd, b"x").map(drop)),
            errno(process.fsync(fd)),
            errno(process.sync()),
            errno(process.close(fd)),
            errno(kernel.unmount("/disk")),
        ];
        // Bytes in memory may be read.
        let _ = process.pread(fd, &mut buf, 0);
        let is_failed = fails.into_iter().all(is_eio) && fs.read("/g").is_err();
        drop((process, kernel, fs));
        // SAFETY: ends the child, whose other threads do not exist.
        unsafe { _exit(i32::from(!is_failed)) };
    }
    let pid = Pid::from_raw(child).expect("fork works");
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
    // The parent's kernel is as it was.
    process.fsync(fd).unwrap();
    assert_eq!(process.stat("/disk/f").unwrap().size_bytes, (1 << 20) + 5);
    process.close(fd).unwrap();
    kernel.unmount("/disk").unwrap();
    assert_eq!(fs.read_to_string("/g").unwrap(), "text");
}
