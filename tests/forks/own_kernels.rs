//! Kernels that children create while other threads of the parent use theirs: fork(2) copies the
//! locks, but not the threads that hold them or wait for them.

use super::{_exit, fork, run_alone};
use folio::block::{self, Device, MemoryDevice, OpenOptions};
use folio::vfs::MountOptions;
use folio::{Fs, Image, Kernel, KernelOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const CHILDREN: u32 = 500;
/// A child needs milliseconds.
const CHILD_TIMEOUT: Timespec = Timespec {
    tv_sec: 600,
    tv_nsec: 0,
};

#[test]
fn children_forked_from_busy_threads_never_hang() {
    run_alone(
        "forks::own_kernels::children_forked_from_busy_threads_never_hang",
        fork_beside_busy_threads,
    );
}

fn fork_beside_busy_threads() {
    let folder = tempfile::tempdir().unwrap();
    let [own, childs] = ["parent.qcow2", "child.qcow2"].map(|name| folder.path().join(name));
    for path in [&own, &childs] {
        let fs = Image::create(path, 4 << 20).mount().unwrap();
        fs.write("/f", [1; 9000]).unwrap();
        fs.close().unwrap();
    }
    let shared = Fs::memory();
    shared.write("/f", [1; 9000]).unwrap();
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(4 << 20));
    Image::create_on(device.clone())
        .mount()
        .unwrap()
        .close()
        .unwrap();

    // Threads of std start and end under a lock of std, which a child would find locked, too: only
    // the children start any.
    let works: [&(dyn Fn() -> io::Result<()> + Sync); 5] = [
        &|| rewrite(&without_threads(), "/f"),
        &|| mount_and_unmount(&device),
        &|| read_device(&own),
        &|| rewrite(&shared, "/shared"),
        &|| rewrite(&shared, "/shared"),
    ];
    let (have_started, is_done) = (Barrier::new(works.len() + 1), AtomicBool::new(false));
    let rounds = [const { AtomicU64::new(0) }; 5];
    thread::scope(|scope| {
        for (work, rounds) in works.into_iter().zip(&rounds) {
            let (have_started, is_done) = (&have_started, &is_done);
            scope.spawn(move || {
                have_started.wait();
                while !is_done.load(Ordering::Relaxed) {
                    work().unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        have_started.wait();
        let failed = (0..CHILDREN).find_map(|child| {
            run_child(|| use_memory().and_then(|()| use_image(&childs)))
                .err()
                .map(|e| (child, e))
        });
        is_done.store(true, Ordering::Relaxed);
        if let Some((child, error)) = failed {
            panic!("child {child} of {CHILDREN}: {error}");
        }
    });
    assert!(
        rounds
            .iter()
            .all(|rounds| rounds.load(Ordering::Relaxed) > 0),
        "{rounds:?}"
    );
}

/// Forks a child that does `work` with kernels of its own, and waits for its end.
pub(super) fn run_child(work: impl Fn() -> io::Result<()>) -> Result<(), String> {
    // SAFETY: the child calls only this library and the allocator, and ends by _exit(2).
    let child = unsafe { fork() };
    if child == 0 {
        let result = work();
        // SAFETY: ends the child, whose other threads do not exist.
        unsafe { _exit(i32::from(result.is_err())) };
    }
    let pid = Pid::from_raw(child).expect("fork works");
    let ended = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let mut events = [PollFd::new(&ended, PollFlags::IN)];
    let hung = (poll(&mut events, Some(&CHILD_TIMEOUT)).unwrap() == 0).then(|| {
        let stacks = stacks_of(pid);
        kill_process(pid, Signal::KILL).unwrap();
        stacks
    });
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    match hung {
        Some(stacks) => Err(format!("hangs: {stacks}")),
        None if status.exit_status() == Some(0) => Ok(()),
        None => Err(format!("{status:?}")),
    }
}

/// Returns the stacks of a process, as far as the host has a debugger.
fn stacks_of(pid: Pid) -> String {
    let waits = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let debugger = Command::new("gdb")
        .args([
            "-p",
            &pid.to_string(),
            "-batch",
            "-ex",
            "thread apply all bt 8",
        ])
        .output();
    let stacks = debugger.map_or_else(|error| error.to_string().into(), |output| output.stdout);
    format!("in {waits}\n{}", String::from_utf8_lossy(&stacks))
}

/// Has two threads change the files of a new kernel at once.
fn use_memory() -> io::Result<()> {
    let fs = Fs::memory();
    thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, || rewrite(&fs, "/f"))?;
        rewrite(&fs, "/f")?;
        other.join().unwrap()
    })?;
    fs.close()
}

fn use_image(path: &Path) -> io::Result<()> {
    let fs = Image::file(path).read_only().mount()?;
    fs.read("/f")?;
    fs.close()
}

fn without_threads() -> Fs {
    Fs::new(Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    }))
}

fn mount_and_unmount(device: &Arc<dyn Device>) -> io::Result<()> {
    let fs = without_threads();
    fs.create_dir("/disk")?;
    let options = MountOptions::parse("ro")?;
    fs.kernel().mount_ext4(device.clone(), "/disk", &options)?;
    fs.metadata("/disk/lost+found")?;
    fs.kernel().unmount("/disk")?;
    Ok(())
}

fn read_device(image: &Path) -> io::Result<()> {
    let device = block::open(image, &OpenOptions::default())?;
    device.read_at(&mut [0; 4096], 0)?;
    Ok(())
}

/// Has pages replaced, which readers may still use, and names looked up.
fn rewrite(fs: &Fs, path: &str) -> io::Result<()> {
    for round in 0..8 {
        fs.write(path, [round; 9000])?;
        fs.read(path)?;
    }
    Ok(())
}
